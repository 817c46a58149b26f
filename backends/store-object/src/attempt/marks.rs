//! What is remembered of bytes that were handed on and are not in memory any more: the checksum of
//! everything before each end of a chunk, so that a repeat can be told from other bytes.

use std::collections::BTreeMap;
use store_api::{Crc32c, Digest};

/// Most ends of chunks that are remembered for bytes that were handed on, per attempt.
const MAX_MARKS: usize = 65_536;
/// End of a chunk that was taken: its offset and the checksum of everything before.
pub(super) type Mark = (u64, Crc32c);

/// What is known of bytes that come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// They are those that were taken.
    Same,
    /// They are not.
    Other,
    /// What was taken is not in memory any more, and no checksum covers just this range.
    Unknown,
}

impl Repeat {
    /// What a comparison of bytes says.
    pub(super) const fn from_bytes(is_equal: bool) -> Self {
        if is_equal { Self::Same } else { Self::Other }
    }
}

/// The ends that are remembered, by subpartition and ascending.
#[derive(Debug, Default)]
pub(super) struct Marks {
    ends: BTreeMap<u32, Vec<Mark>>,
    n_held: usize,
}

impl Marks {
    /// Remembers an end: its offset is the length of the digest, of all bytes before it.
    pub(super) fn add(&mut self, index: u32, digest: Digest) {
        if self.n_held >= MAX_MARKS {
            // The oldest half of each list goes: what is repeated is what came last.
            for marks in self.ends.values_mut() {
                marks.drain(..marks.len().div_ceil(2));
            }
            self.ends.retain(|_, marks| !marks.is_empty());
            self.n_held = self.ends.values().map(Vec::len).sum();
        }
        self.ends.entry(index).or_default().push((digest.length, digest.crc));
        self.n_held = self.n_held.saturating_add(1);
    }

    /// The first remembered end of a chunk at or after an offset; 0 is one.
    pub(super) fn from(&self, index: u32, offset: u64) -> Option<Mark> {
        if offset == 0 {
            return Some((0, Crc32c::default()));
        }
        let marks = self.ends.get(&index)?;
        marks.get(marks.partition_point(|(end, _)| *end < offset)).copied()
    }

    /// The last remembered end of a chunk at or before an offset.
    pub(super) fn until(&self, index: u32, offset: u64) -> Option<Mark> {
        let marks = self.ends.get(&index)?;
        marks.partition_point(|(end, _)| *end <= offset).checked_sub(1).and_then(|at| marks.get(at)).copied()
    }

    /// Judges bytes that were handed on, as far as ends of chunks are remembered.
    pub(super) fn judge(&self, index: u32, start: u64, bytes: &[u8]) -> Repeat {
        let end = start.saturating_add(bytes.len() as u64);
        let (Some((from, before)), Some((until, after))) = (self.from(index, start), self.until(index, end)) else {
            return Repeat::Unknown;
        };
        let at = |offset: u64| usize::try_from(offset.saturating_sub(start)).unwrap_or(usize::MAX);
        let Some(inner) = bytes.get(at(from)..at(until)).filter(|_| from < until) else { return Repeat::Unknown };
        let added = Crc32c::of(inner);
        let whole = if from == 0 { added } else { before.combine(added, inner.len() as u64) };
        match (whole == after, from == start && until == end) {
            (false, _) => Repeat::Other,
            (true, true) => Repeat::Same,
            (true, false) => Repeat::Unknown,
        }
    }
}

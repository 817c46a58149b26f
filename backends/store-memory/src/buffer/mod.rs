//! The bytes of one subpartition: a run on disk, then a run in memory, one offset space.
//!
//! ```text
//!   start      floor                 border                    tail
//!     |  gone    |  extents on disk    |  chunks in memory      |
//!                     oldest first     ^ moves up as chunks are spilled
//! ```
//! The two runs touch at the border and neither overlaps the other, so a position names exactly one
//! place. Readers keep a position and nothing else: there is no cursor to share with the spiller.
//! What a call lets go is handed back as [`Dropped`], so that the caller can free it outside of its
//! lock. No I/O and no lock in here.

use bytes::Bytes;
use std::collections::VecDeque;
use store_api::{Chunk, Crc32c, Digest, Offset};

/// A chunk in memory.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    /// Offset of the first byte.
    pub(crate) start: Offset,
    /// The bytes, charged.
    pub(crate) bytes: Bytes,
    /// Their checksum.
    pub(crate) crc: Crc32c,
    /// Place in the order of all chunks of the store.
    order: u64,
    /// How often its last byte was handed to a reader.
    n_sent: u64,
}

impl Held {
    pub(crate) const fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn end(&self) -> Offset {
        Offset::new(self.start.get().saturating_add(self.length()))
    }
}

/// A chunk on disk.
#[derive(Debug, Clone)]
pub(crate) struct Extent<L> {
    /// Offset of the first byte.
    pub(crate) start: Offset,
    /// Number of bytes.
    pub(crate) length: u64,
    /// Their checksum.
    pub(crate) crc: Crc32c,
    /// Where they are.
    pub(crate) place: L,
}

impl<L> Extent<L> {
    pub(crate) fn end(&self) -> Offset {
        Offset::new(self.start.get().saturating_add(self.length))
    }
}

/// What was let go; freed when it is dropped.
#[derive(Debug)]
pub(crate) struct Dropped<L> {
    chunks: Vec<Held>,
    extents: Vec<Extent<L>>,
}

impl<L> Dropped<L> {
    const fn nothing() -> Self {
        Self { chunks: Vec::new(), extents: Vec::new() }
    }

    /// Bytes that were let go, on both media.
    pub(crate) fn bytes(&self) -> u64 {
        let in_memory = self.chunks.iter().fold(0_u64, |sum, held| sum.saturating_add(held.length()));
        self.extents.iter().fold(in_memory, |sum, extent| sum.saturating_add(extent.length))
    }
}

/// Why a chunk does not fit at the place it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Misfit {
    /// It starts after the tail.
    Gap { tail: Offset },
    /// It repeats an offset with other bytes.
    OtherBytes { tail: Offset },
    /// It repeats bytes that are gone.
    Gone { floor: Offset },
    /// The content would pass the limit.
    TooLong { length: u64 },
}

/// How a chunk fits.
#[derive(Debug)]
pub(crate) enum Fit<L> {
    /// All of it is held.
    Repeat,
    /// From its byte `skip` on it is new.
    New { skip: usize },
    /// It repeats bytes on disk, which must be compared first, up to `until`.
    Compare { extents: Vec<Extent<L>>, until: Offset },
}

/// What is at a position.
#[derive(Debug)]
pub(crate) enum Look<L> {
    /// The position is below the floor.
    Below { floor: Offset },
    /// In memory: the chunk, and how much of it comes before the position.
    Memory { held: Held, skip: usize },
    /// On disk.
    Disk { extent: Extent<L>, skip: usize },
    /// Nothing yet.
    AtTail,
}

/// Bytes held, by medium, and how many of those in memory may be dropped under pressure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amounts {
    pub(crate) memory: u64,
    pub(crate) disk: u64,
    pub(crate) droppable: u64,
}

/// The bytes of one subpartition. See the module.
#[derive(Debug)]
pub(crate) struct Buffer<L> {
    floor: Offset,
    tail: Offset,
    digest: Digest,
    sent: Option<Offset>,
    extents: VecDeque<Extent<L>>,
    chunks: VecDeque<Held>,
    amounts: Amounts,
    /// How often a chunk must have been handed out before it may be dropped; `None`: never.
    n_readers: Option<u64>,
}

impl<L: Clone> Buffer<L> {
    /// An empty buffer. `n_readers`: how often bytes must be read before pressure may drop them;
    /// `None` never drops any.
    pub(crate) fn new(start: Offset, n_readers: Option<u64>) -> Self {
        let (extents, chunks) = (VecDeque::new(), VecDeque::new());
        let amounts = Amounts::default();
        Self { floor: start, tail: start, digest: Digest::EMPTY, sent: None, extents, chunks, amounts, n_readers }
    }

    pub(crate) const fn floor(&self) -> Offset {
        self.floor
    }

    pub(crate) const fn tail(&self) -> Offset {
        self.tail
    }

    /// Digest of all bytes from the start on, also of those that are gone.
    pub(crate) const fn digest(&self) -> Digest {
        self.digest
    }

    /// First byte after the highest that was handed to a reader.
    pub(crate) const fn sent(&self) -> Option<Offset> {
        self.sent
    }

    pub(crate) const fn amounts(&self) -> Amounts {
        self.amounts
    }

    /// First offset in memory.
    fn border(&self) -> Offset {
        self.chunks.front().map_or(self.tail, |held| held.start)
    }

    /// How `chunk` fits at `at` (the tail, when `None`). Repeated bytes below `compared` have been
    /// compared already. `limit` is the longest content.
    pub(crate) fn fit(&self, at: Option<Offset>, chunk: &Chunk, compared: Offset, limit: u64) -> Result<Fit<L>, Misfit> {
        let start = at.unwrap_or(self.tail);
        if start > self.tail {
            return Err(Misfit::Gap { tail: self.tail });
        }
        if start < self.floor {
            return Err(Misfit::Gone { floor: self.floor });
        }
        if chunk.is_empty() {
            return Ok(Fit::Repeat);
        }
        let end = start.checked_add(chunk.length()).ok_or(Misfit::TooLong { length: u64::MAX })?;
        let length = self.digest.length.saturating_add(end.since(self.tail));
        if end > self.tail && length > limit {
            return Err(Misfit::TooLong { length });
        }
        let on_disk_until = end.min(self.border());
        let from = start.max(compared);
        if from < on_disk_until {
            let touched = self.extents.iter().filter(|extent| extent.end() > from && extent.start < on_disk_until);
            return Ok(Fit::Compare { extents: touched.cloned().collect(), until: on_disk_until });
        }
        if !self.is_repeat(start, chunk.bytes()) {
            return Err(Misfit::OtherBytes { tail: self.tail });
        }
        if end <= self.tail { Ok(Fit::Repeat) } else { Ok(Fit::New { skip: offset_in(self.tail, start) }) }
    }

    /// Whether what is in memory of the range that `bytes` cover from `start` on equals them.
    fn is_repeat(&self, start: Offset, bytes: &Bytes) -> bool {
        let first = self.chunks.partition_point(|held| held.end() <= start);
        for held in self.chunks.iter().skip(first) {
            let from = offset_in(held.start, start);
            if from >= bytes.len() {
                break;
            }
            let skip = offset_in(start, held.start);
            let (Some(stored), Some(sent)) = (held.bytes.get(skip..), bytes.get(from..)) else { return false };
            let both = stored.len().min(sent.len());
            if stored.get(..both) != sent.get(..both) {
                return false;
            }
        }
        true
    }

    /// Adds bytes at the tail. The caller has asked [`Buffer::fit`] under the same lock.
    pub(crate) fn push(&mut self, bytes: Bytes, crc: Crc32c, order: u64) {
        let length = bytes.len() as u64;
        // `fit` has refused what would pass the end of the offsets.
        let (Some(end), Some(digest)) = (self.tail.checked_add(length), self.digest.followed_by_bytes(&bytes, crc)) else { return };
        self.chunks.push_back(Held { start: self.tail, bytes, crc, order, n_sent: 0 });
        self.tail = end;
        self.digest = digest;
        self.amounts.memory += length;
    }

    /// What is at `position`, without counting it as sent.
    pub(crate) fn look(&self, position: Offset) -> Look<L> {
        if position < self.floor {
            return Look::Below { floor: self.floor };
        }
        if position >= self.tail {
            return Look::AtTail;
        }
        if position >= self.border() {
            let index = self.chunks.partition_point(|held| held.end() <= position);
            return match self.chunks.get(index) {
                Some(held) => Look::Memory { held: held.clone(), skip: offset_in(position, held.start) },
                None => Look::AtTail,
            };
        }
        let index = self.extents.partition_point(|extent| extent.end() <= position);
        match self.extents.get(index) {
            Some(extent) => Look::Disk { extent: extent.clone(), skip: offset_in(position, extent.start) },
            None => Look::AtTail,
        }
    }

    /// Notes that everything up to `end` of the chunk before it goes to a reader.
    pub(crate) fn mark_sent(&mut self, end: Offset) {
        self.sent = Some(self.sent.map_or(end, |sent| sent.max(end)));
        let Some(n_readers) = self.n_readers else { return };
        let index = self.chunks.partition_point(|held| held.end() < end);
        if let Some(held) = self.chunks.get_mut(index).filter(|held| held.end() == end) {
            held.n_sent = held.n_sent.saturating_add(1);
            if held.n_sent == n_readers {
                self.amounts.droppable += held.length();
            }
        }
    }

    /// Notes that every consumer has acknowledged what lies below `position`: pressure may drop it.
    pub(crate) fn mark_acknowledged(&mut self, position: Offset) {
        let Some(n_readers) = self.n_readers else { return };
        for held in self.chunks.iter_mut().take_while(|held| held.end() <= position) {
            if held.n_sent < n_readers {
                self.amounts.droppable += held.length();
                held.n_sent = n_readers;
            }
        }
    }

    /// Moves the floor up to `to`, at most to the tail. A chunk is let go once all of it is below.
    pub(crate) fn advance_floor(&mut self, to: Offset) -> Dropped<L> {
        let mut dropped = Dropped::nothing();
        self.floor = self.floor.max(to.min(self.tail));
        while let Some(extent) = self.extents.pop_front_if(|extent| extent.end() <= self.floor) {
            self.amounts.disk -= extent.length;
            dropped.extents.push(extent);
        }
        let floor = self.floor;
        while let Some(held) = self.chunks.pop_front_if(|held| held.end() <= floor) {
            self.forget(&held);
            dropped.chunks.push(held);
        }
        dropped
    }

    /// Order of the oldest chunk in memory, if it has been read often enough to be dropped.
    pub(crate) fn oldest_droppable(&self) -> Option<u64> {
        let n_readers = self.n_readers?;
        self.chunks.front().filter(|held| held.n_sent >= n_readers).map(|held| held.order)
    }

    /// Drops the oldest chunk, if it has been read often enough; the floor moves to its end.
    pub(crate) fn drop_oldest(&mut self) -> Dropped<L> {
        let end = self.oldest_droppable().and_then(|_| self.chunks.front().map(Held::end));
        end.map_or_else(Dropped::nothing, |end| self.advance_floor(end))
    }

    /// Order of the oldest chunk in memory.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.chunks.front().map(|held| held.order)
    }

    /// The oldest chunks in memory, up to `max_bytes` of them but at least one.
    pub(crate) fn spillable(&self, max_bytes: u64) -> Vec<Held> {
        let mut bytes = 0_u64;
        let fits = |held: &&Held| {
            let is_first = bytes == 0;
            bytes = bytes.saturating_add(held.length());
            is_first || bytes <= max_bytes
        };
        self.chunks.iter().take_while(fits).cloned().collect()
    }

    /// Takes over what has been written to disk, in order of offsets: the chunk leaves memory as
    /// its extent comes in. An extent whose chunk is no longer the oldest (the floor passed it) is
    /// handed back.
    pub(crate) fn settle(&mut self, written: Vec<Extent<L>>) -> Dropped<L> {
        let mut dropped = Dropped::nothing();
        for extent in written {
            match self.chunks.pop_front_if(|held| held.start == extent.start && held.length() == extent.length) {
                Some(held) => {
                    self.forget(&held);
                    self.amounts.disk += extent.length;
                    self.extents.push_back(extent);
                    dropped.chunks.push(held);
                }
                None => dropped.extents.push(extent),
            }
        }
        dropped
    }

    /// Lets everything go: the attempt has ended.
    pub(crate) fn clear(&mut self) -> Dropped<L> {
        self.advance_floor(self.tail)
    }

    fn forget(&mut self, held: &Held) {
        self.amounts.memory -= held.length();
        if self.n_readers.is_some_and(|n_readers| held.n_sent >= n_readers) {
            self.amounts.droppable -= held.length();
        }
    }
}

/// Bytes from `base` to `position` as an index; 0 when `position` is not after `base`.
fn offset_in(position: Offset, base: Offset) -> usize {
    usize::try_from(position.since(base)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;

//! Bytes of an attempt that the object store has not accepted yet, sorted by subpartition.
//!
//! A [`Buffer`] takes chunks; [`Buffer::cut`] turns what it holds into a [`Batch`]: a run of bytes
//! that goes to the object store in one request and becomes one region of the manifest. Memory
//! stays charged until the permit inside is dropped.

use crate::manifest::{Extent, Region};
use bytes::{Bytes, BytesMut};
use object_store::PutPayload;
use std::collections::BTreeMap;
use store_api::{Chunk, Crc32c, Permit};

/// Chunks up to this size are copied together; longer ones are kept as they came.
const COPY_BYTES: usize = 4096;

#[derive(Debug, Default)]
struct Run {
    /// Offset of the first byte in the subpartition.
    start: u64,
    length: u64,
    pieces: Vec<Bytes>,
    small: BytesMut,
}

impl Run {
    fn push(&mut self, bytes: &Bytes) {
        if bytes.len() <= COPY_BYTES {
            self.small.extend_from_slice(bytes);
        } else {
            self.settle();
            self.pieces.push(bytes.clone());
        }
        self.length = self.length.saturating_add(bytes.len() as u64);
    }

    fn settle(&mut self) {
        if !self.small.is_empty() {
            self.pieces.push(std::mem::take(&mut self.small).freeze());
        }
    }

    fn equals(&self, offset: u64, bytes: &[u8]) -> bool {
        let pieces = self.pieces.iter().map(AsRef::as_ref).chain([self.small.as_ref()]);
        pieces_equal(pieces, offset.saturating_sub(self.start), bytes)
    }
}

/// Whether `bytes` stand in the pieces, taken together, `skip` bytes from their start.
fn pieces_equal<'a>(pieces: impl Iterator<Item = &'a [u8]>, skip: u64, bytes: &[u8]) -> bool {
    let mut skip = usize::try_from(skip).unwrap_or(usize::MAX);
    let mut rest = bytes;
    for piece in pieces {
        if skip >= piece.len() {
            skip -= piece.len();
            continue;
        }
        let held = piece.get(skip..).unwrap_or_default();
        skip = 0;
        let compared = held.len().min(rest.len());
        if held.get(..compared) != rest.get(..compared) {
            return false;
        }
        rest = rest.get(compared..).unwrap_or_default();
        if rest.is_empty() {
            return true;
        }
    }
    rest.is_empty()
}

/// What was appended and not yet cut into a batch.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    runs: BTreeMap<u32, Run>,
    bytes: u64,
    permit: Permit,
}

impl Buffer {
    /// Adds a chunk whose first byte has this offset in its subpartition, with the permit for it.
    pub(crate) fn push(&mut self, subpartition: u32, offset: u64, chunk: &Chunk, permit: Permit) {
        let run = self.runs.entry(subpartition).or_insert_with(|| Run { start: offset, ..Run::default() });
        run.push(chunk.bytes());
        self.bytes = self.bytes.saturating_add(chunk.length());
        self.permit.merge(permit);
    }

    /// Bytes held.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// First offset of a subpartition that is held; `None` when nothing of it is.
    pub(crate) fn start(&self, subpartition: u32) -> Option<u64> {
        self.runs.get(&subpartition).map(|run| run.start)
    }

    /// Whether these bytes are held at this offset. The whole range must be held.
    pub(crate) fn equals(&self, subpartition: u32, offset: u64, bytes: &[u8]) -> bool {
        self.runs.get(&subpartition).is_some_and(|run| run.equals(offset, bytes))
    }

    /// Takes everything out as one batch, leaving nothing.
    pub(crate) fn cut(&mut self, block_bytes: u32) -> Batch {
        let Self { runs, bytes, permit } = std::mem::take(self);
        let runs: BTreeMap<u32, Run> = runs
            .into_iter()
            .map(|(subpartition, mut run)| {
                run.settle();
                (subpartition, run)
            })
            .collect();
        let mut region = Region::default();
        let mut at = 0_u64;
        for (subpartition, run) in runs.iter().filter(|(_, run)| run.length > 0) {
            // A batch has far fewer than 2^32 blocks: it fits in memory.
            let first_crc = u32::try_from(region.crcs.len()).unwrap_or(u32::MAX);
            region.extents.push(Extent { subpartition: *subpartition, start: at, length: run.length, first_crc });
            block_crcs(&run.pieces, block_bytes, &mut region.crcs);
            at = at.saturating_add(run.length);
        }
        Batch { region, runs, bytes, permit }
    }
}

fn block_crcs(pieces: &[Bytes], block_bytes: u32, out: &mut Vec<Crc32c>) {
    let block = usize::try_from(block_bytes).unwrap_or(usize::MAX).max(1);
    let (mut crc, mut filled) = (Crc32c::default(), 0_usize);
    for piece in pieces {
        let mut rest: &[u8] = piece;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(block.saturating_sub(filled)));
            crc = if filled == 0 { Crc32c::of(now) } else { crc.append(now) };
            filled += now.len();
            rest = later;
            if filled == block {
                out.push(crc);
                filled = 0;
            }
        }
    }
    if filled > 0 {
        out.push(crc);
    }
}

/// A run of bytes that goes to the object store in one request.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Its description, with starts from 0 and object 0.
    pub(crate) region: Region,
    runs: BTreeMap<u32, Run>,
    bytes: u64,
    permit: Permit,
}

impl Batch {
    /// Bytes in it.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes charged for it.
    pub(crate) fn charged(&self) -> u64 {
        self.permit.bytes()
    }

    /// The bytes, to be sent. Shares the memory.
    pub(crate) fn payload(&self) -> PutPayload {
        self.runs.values().flat_map(|run| run.pieces.iter().cloned()).collect()
    }

    /// The range of a subpartition that is held, if any.
    pub(crate) fn range(&self, subpartition: u32) -> Option<(u64, u64)> {
        self.runs.get(&subpartition).map(|run| (run.start, run.start.saturating_add(run.length)))
    }

    /// Whether these bytes are held at this offset. The whole range must be held.
    pub(crate) fn equals(&self, subpartition: u32, offset: u64, bytes: &[u8]) -> bool {
        self.runs.get(&subpartition).is_some_and(|run| run.equals(offset, bytes))
    }

    /// All bytes in one piece.
    pub(crate) fn to_bytes(&self) -> Bytes {
        let mut all = BytesMut::with_capacity(usize::try_from(self.bytes).unwrap_or(0));
        for piece in self.runs.values().flat_map(|run| run.pieces.iter()) {
            all.extend_from_slice(piece);
        }
        all.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_batch_is_the_chunks_sorted_by_subpartition_with_a_checksum_per_block(
            chunks in proptest::collection::vec((0_u32..4, 0_usize..9000), 0..12), block in 1_u32..5000,
        ) {
            let mut buffer = Buffer::default();
            let mut expected: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
            for (number, (subpartition, length)) in chunks.iter().enumerate() {
                let bytes: Vec<u8> = (0..*length).map(|at| u8::try_from((at * 7 + number) % 251).unwrap_or(0)).collect();
                let held = expected.entry(*subpartition).or_default();
                buffer.push(*subpartition, held.len() as u64, &Chunk::new(Bytes::from(bytes.clone())), Permit::none());
                held.extend_from_slice(&bytes);
            }
            for (subpartition, bytes) in &expected {
                for cut in [0, bytes.len() / 2, bytes.len()] {
                    prop_assert!(buffer.equals(*subpartition, cut as u64, &bytes[cut..]));
                }
                if let Some(last) = bytes.last() {
                    prop_assert!(!buffer.equals(*subpartition, bytes.len() as u64 - 1, &[last.wrapping_add(1)]));
                }
            }
            let batch = buffer.cut(block);
            prop_assert_eq!((buffer.bytes(), buffer.start(0)), (0, None));
            let all: Vec<u8> = expected.values().flatten().copied().collect();
            prop_assert_eq!(batch.to_bytes().to_vec(), all.clone());
            prop_assert_eq!(batch.payload().content_length(), all.len());
            let mut crcs = batch.region.crcs.iter();
            for extent in &batch.region.extents {
                let bytes = &expected[&extent.subpartition];
                prop_assert_eq!(extent.length, bytes.len() as u64);
                let start = usize::try_from(extent.start).unwrap_or(0);
                prop_assert_eq!(&all[start..start + bytes.len()], bytes.as_slice());
                for part in bytes.chunks(block as usize) {
                    prop_assert_eq!(crcs.next(), Some(&Crc32c::of(part)));
                }
            }
            prop_assert_eq!(crcs.next(), None);
        }
    }
}

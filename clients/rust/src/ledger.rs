//! What a writer wrote: digests per subpartition, put together from the checksums of its pieces.

use forebay_protocol::partitions::{AttemptDocument, SubpartitionLists};
use std::collections::BTreeMap;
use store_api::{Chunk, Crc32c};

#[derive(Debug, Clone, Copy, Default)]
struct Written {
    length: u64,
    crc: Crc32c,
}

/// Lengths and checksums of an attempt. A writer that goes on with an attempt that holds bytes
/// already knows lengths only; one that starts at offsets above 0 states nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger {
    written: BTreeMap<u32, Written>,
    has_crcs: bool,
    is_silent: bool,
}

impl Ledger {
    pub(crate) fn new(document: &AttemptDocument, has_starts: bool) -> Self {
        let tails = document.tails.iter().filter(|tail| tail.offset > 0);
        let written: BTreeMap<u32, Written> =
            tails.map(|tail| (tail.subpartition, Written { length: tail.offset, crc: Crc32c::default() })).collect();
        Self { has_crcs: written.is_empty(), written, is_silent: has_starts }
    }

    pub(crate) fn length(&self, subpartition: u32) -> u64 {
        self.written.get(&subpartition).map_or(0, |written| written.length)
    }

    pub(crate) fn wrote(&mut self, subpartition: u32, chunk: &Chunk) {
        let written = self.written.entry(subpartition).or_default();
        written.crc = written.crc.combine(chunk.crc(), chunk.length());
        written.length = written.length.saturating_add(chunk.length());
    }

    /// What a seal states: non-empty subpartitions only.
    pub(crate) fn statement(&self) -> Option<SubpartitionLists> {
        if self.is_silent {
            return None;
        }
        let non_empty = || self.written.iter().filter(|(_, written)| written.length > 0);
        Some(SubpartitionLists {
            indices: Some(non_empty().map(|(index, _)| *index).collect()),
            lengths: non_empty().map(|(_, written)| written.length).collect(),
            crcs: self.has_crcs.then(|| non_empty().map(|(_, written)| written.crc.get()).collect()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use forebay_protocol::partitions::{Location, SubpartitionOffset};
    use proptest::prelude::*;

    fn fresh(tails: Vec<SubpartitionOffset>) -> AttemptDocument {
        let location = Location { node: "n".to_owned(), life: "00000000000000a1".to_owned(), url: "http://x".to_owned() };
        AttemptDocument {
            attempt: "0.0".to_owned(),
            state: "open".to_owned(),
            location,
            next_sequence: 0,
            tails,
            max_frame_bytes: 1 << 20,
            atomic_append_bytes: 1 << 20,
        }
    }

    #[test]
    fn a_writer_that_goes_on_states_lengths_without_checksums() {
        let mut ledger = Ledger::new(&fresh(vec![SubpartitionOffset { subpartition: 4, offset: 10 }]), false);
        ledger.wrote(4, &Chunk::new(Bytes::from_static(b"abc")));
        let statement = ledger.statement().unwrap();
        assert_eq!((statement.indices, statement.lengths, statement.crcs), (Some(vec![4]), vec![13], None));
    }

    #[test]
    fn a_writer_with_start_offsets_states_nothing() {
        assert!(Ledger::new(&fresh(vec![]), true).statement().is_none());
    }

    proptest! {
        #[test]
        fn checksums_of_pieces_combine_to_that_of_the_whole(pieces in proptest::collection::vec((0_u32..4, proptest::collection::vec(any::<u8>(), 0..50)), 0..40)) {
            let mut ledger = Ledger::new(&fresh(vec![]), false);
            let mut whole: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
            for (index, piece) in pieces {
                ledger.wrote(index, &Chunk::new(Bytes::from(piece.clone())));
                whole.entry(index).or_default().extend(piece);
            }
            whole.retain(|_, bytes| !bytes.is_empty());
            let statement = ledger.statement().unwrap();
            prop_assert_eq!(statement.indices.unwrap(), whole.keys().copied().collect::<Vec<_>>());
            prop_assert_eq!(statement.crcs.unwrap(), whole.values().map(|bytes| Crc32c::of(bytes).get()).collect::<Vec<_>>());
        }
    }
}

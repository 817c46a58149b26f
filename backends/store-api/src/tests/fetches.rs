//! One stream as the events of an item.

use crate::store::follow;
use crate::{Chunk, FetchEvent, LossCause, Offset, Operation, ReadStream, StoreError, StoreErrorKind};
use bytes::Bytes;
use futures::StreamExt;
use proptest::prelude::*;

fn stream(start: u64, pieces: &[Vec<u8>], fails: bool) -> ReadStream {
    let mut steps: Vec<Result<Bytes, StoreError>> = pieces.iter().map(|piece| Ok(Bytes::from(piece.clone()))).collect();
    if fails {
        steps.push(Err(StoreError::new(StoreErrorKind::Lost { cause: LossCause::Disk }, Operation::Read, "x")));
        // Whatever a stream does after its error, nobody sees it.
        steps.push(Ok(Bytes::from_static(b"late")));
    }
    ReadStream { start: Offset::new(start), end: None, digest: None, chunks: futures::stream::iter(steps).boxed() }
}

proptest! {
    /// An item is data that follow each other without a gap, then exactly one end or failure at the
    /// first byte that was not sent.
    #[test]
    fn an_item_is_contiguous_data_and_one_end(
        start in prop_oneof![0_u64..100, Just(u64::MAX - 5000)], item in 0_usize..9, fails: bool,
        pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let events = runtime.block_on(follow(item, stream(start, &pieces, fails)).collect::<Vec<_>>());
        prop_assert_eq!(events.len(), pieces.len() + 1);
        let mut at = start;
        for (event, piece) in events.iter().zip(&pieces) {
            let FetchEvent::Data { item: of, start, chunk } = event else { return Err(TestCaseError::fail(format!("{event:?}"))) };
            prop_assert_eq!((*of, start.get()), (item, at));
            prop_assert_eq!(chunk, &Chunk::new(Bytes::from(piece.clone())), "with the checksum of its bytes");
            at += piece.len() as u64;
        }
        match events.last() {
            Some(FetchEvent::End { item: of, end }) => prop_assert_eq!((*of, end.get(), fails), (item, at, false)),
            Some(FetchEvent::Failed { item: of, at: failed, error }) => {
                prop_assert_eq!((*of, failed.get(), fails), (item, at, true));
                prop_assert_eq!(error.kind(), &StoreErrorKind::Lost { cause: LossCause::Disk });
            }
            other => return Err(TestCaseError::fail(format!("{other:?}"))),
        }
    }
}

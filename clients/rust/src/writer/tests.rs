use super::*;
use proptest::prelude::*;
use store_api::frame::{FrameDecoder, MAX_PAYLOAD};

fn window() -> Window {
    Window { frames: VecDeque::new(), n_bytes: 0, limit: 1000, max_frame: 64, first: 5, next: 5, cursor: 5 }
}

fn blocks(block: usize, budget: usize) -> Blocks {
    Blocks { block, budget, pending: BTreeMap::new(), n_bytes: 0 }
}

#[test]
fn a_window_sends_again_from_the_sequence_that_the_service_names() {
    let mut window = window();
    for byte in 0..4_u8 {
        window.append(0, Chunk::new(Bytes::from(vec![byte; 10]))).unwrap();
    }
    window.cursor = 9;
    assert!(window.unsent().is_none());
    assert!(window.held_up_to(7).unwrap());
    assert_eq!(window.unsent().map(|frame| frame.payload), Some(Bytes::from(vec![2; 10])));
    assert_eq!(window.n_bytes, 2 * (HEADER_LENGTH + 10));
    assert!(!window.held_up_to(7).unwrap());
}

#[test]
fn a_sequence_outside_the_window_means_another_writer() {
    let mut window = window();
    assert!(window.held_up_to(4).is_err());
    assert!(window.held_up_to(6).is_err());
    assert!(!window.held_up_to(5).unwrap());
}

#[test]
fn large_writes_are_not_copied_and_keep_their_order() {
    let mut blocks = blocks(4, 100);
    assert!(blocks.take(1, Bytes::from_static(b"ab")).is_empty());
    let large = Bytes::from(vec![7; 10]);
    let ready = blocks.take(1, large.clone());
    assert_eq!(ready, vec![(1, Bytes::from_static(b"ab")), (1, large.clone())]);
    assert_eq!(ready[1].1.as_ptr(), large.as_ptr());
}

proptest! {
    #[test]
    fn pending_bytes_stay_in_budget_and_none_is_lost(
        writes in proptest::collection::vec((0_u32..6, proptest::collection::vec(any::<u8>(), 0..30)), 0..60),
        block in 1_usize..40,
        budget in 1_usize..80,
    ) {
        let mut blocks = blocks(block, budget);
        let (mut wanted, mut found) = (BTreeMap::<u32, Vec<u8>>::new(), BTreeMap::<u32, Vec<u8>>::new());
        for (index, bytes) in writes {
            wanted.entry(index).or_default().extend(&bytes);
            for (index, block) in blocks.take(index, Bytes::from(bytes)) {
                found.entry(index).or_default().extend(&block);
            }
            prop_assert!(blocks.n_bytes <= budget);
            prop_assert_eq!(blocks.n_bytes, blocks.pending.values().map(BytesMut::len).sum::<usize>());
        }
        for (index, block) in blocks.drain() {
            found.entry(index).or_default().extend(&block);
        }
        wanted.retain(|_, bytes| !bytes.is_empty());
        found.retain(|_, bytes| !bytes.is_empty());
        prop_assert_eq!(wanted, found);
    }

    #[test]
    fn frames_decode_to_what_was_appended(pieces in proptest::collection::vec((any::<u32>(), proptest::collection::vec(any::<u8>(), 1..64)), 1..20)) {
        let (mut window, mut decoder) = (window(), FrameDecoder::new(MAX_PAYLOAD));
        for (index, piece) in &pieces {
            window.append(*index, Chunk::new(Bytes::from(piece.clone()))).unwrap();
        }
        for (at, (index, piece)) in pieces.iter().enumerate() {
            let frame = window.unsent().unwrap();
            window.cursor += 1;
            decoder.push(frame.header).unwrap();
            decoder.push(frame.payload).unwrap();
            let decoded = decoder.next_frame().unwrap().unwrap();
            prop_assert_eq!((decoded.header.target, decoded.header.position), (*index, 5 + at as u64));
            prop_assert_eq!(decoded.chunk.bytes().as_ref(), piece.as_slice());
        }
    }
}

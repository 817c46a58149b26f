//! Appends: in order, at the tail, idempotent by offset.

use crate::assert_refused;
use crate::scenario::{Attempt, assert_same, attempt, held_bytes, piece, spec};
use crate::suite::Stage;
use bytes::{Bytes, BytesMut};
use store_api::{DatasetSpec, Offset, StoreErrorKind};

async fn open_one(stage: &Stage, n_subpartitions: u32) -> (crate::Instance, Attempt) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), n_subpartitions)).await;
    (instance, one)
}

/// What was appended at the tail is read back in order.
pub async fn appends_are_read_back_in_order(stage: Stage) {
    let (_instance, one) = open_one(&stage, 3).await;
    let mut at = 0;
    for length in [1, 100, 4096, 65_536, 3, 70_000] {
        let ack = one.write(1, at, length).await;
        at += length;
        assert_eq!((ack.end.get(), ack.new_bytes), (at, length));
        assert_eq!(one.tail(1).await, at);
    }
    let ack = one.put(1, None, one.bytes(1, at, 50)).await.expect("an append at the tail is taken");
    assert_eq!(ack.end.get(), at + 50);
    one.seal().await;
    one.assert_holds(1, at + 50).await;
    one.assert_holds(0, 0).await;
}

/// An append behind the tail is refused with the offset that was expected, and changes nothing.
pub async fn a_gap_is_refused_with_the_expected_offset(stage: Stage) {
    let (_instance, one) = open_one(&stage, 2).await;
    one.write(0, 0, 100).await;
    for start in [101, 150, 1 << 31, 1 << 32, 1 << 63, u64::MAX] {
        let gap = one.put(0, Some(start), Bytes::from_static(b"late")).await;
        assert_refused!(gap, StoreErrorKind::OffsetMismatch { expected } if expected == Offset::new(100));
    }
    let other = one.put(1, Some(1), Bytes::from_static(b"late")).await;
    assert_refused!(other, StoreErrorKind::OffsetMismatch { expected: Offset::ZERO });
    one.write(0, 100, 10).await;
    one.seal().await;
    one.assert_holds(0, 110).await;
    one.assert_holds(1, 0).await;
}

/// A refused chunk keeps later ones out until it is in itself: they are a gap, not duplicates.
pub async fn what_follows_a_missing_chunk_stays_out(stage: Stage) {
    let (_instance, one) = open_one(&stage, 1).await;
    one.write(0, 0, 40).await;
    for start in [50, 60] {
        assert_refused!(one.put(0, Some(start), one.bytes(0, start, 10)).await, StoreErrorKind::OffsetMismatch { .. });
    }
    for start in [40, 50, 60] {
        assert_eq!(one.write(0, start, 10).await.new_bytes, 10);
    }
    one.seal().await;
    one.assert_holds(0, 70).await;
}

/// A repeat of what is held changes nothing, whatever cut it has.
pub async fn a_repeat_changes_nothing(stage: Stage) {
    let (_instance, one) = open_one(&stage, 1).await;
    for start in [0, 1000, 2000] {
        one.write(0, start, 1000).await;
    }
    let held = held_bytes(&one.store);
    for (start, length) in [(0, 1000), (2000, 1000), (0, 3000), (500, 1000), (999, 2), (2999, 1), (0, 1), (3000, 0)] {
        let ack = one.write(0, start, length).await;
        assert_eq!(ack.new_bytes, 0, "[{start}, +{length}) is held already");
        assert_eq!(one.tail(0).await, 3000);
    }
    assert!(held_bytes(&one.store) <= held, "repeats are not charged");
    one.seal().await;
    one.assert_holds(0, 3000).await;
}

/// A repeat that goes on beyond the tail has its new part added.
pub async fn an_overlapping_repeat_adds_its_new_part(stage: Stage) {
    let (_instance, one) = open_one(&stage, 1).await;
    one.write(0, 0, 100).await;
    for (start, length, new_bytes) in [(50, 100, 50), (0, 151, 1), (150, 50, 49), (199, 1000, 999)] {
        let ack = one.write(0, start, length).await;
        assert_eq!((ack.end.get(), ack.new_bytes), (start + length, new_bytes));
    }
    one.seal().await;
    one.assert_holds(0, 1199).await;
}

/// Other bytes at an offset that is held are refused, and nothing of them is taken.
pub async fn a_differing_repeat_is_refused(stage: Stage) {
    let (_instance, one) = open_one(&stage, 2).await;
    one.write(0, 0, 100).await;
    one.write(0, 100, 100).await;
    let expected = Offset::new(200);
    for (start, length, flipped) in [(0, 100, 0), (0, 100, 99), (0, 200, 150), (199, 1, 0), (150, 100, 49), (50, 300, 10)] {
        let mut bytes = BytesMut::from(one.bytes(0, start, length).as_ref());
        bytes[flipped] ^= 1;
        let answer = one.put(0, Some(start), bytes.freeze()).await;
        assert_refused!(answer, StoreErrorKind::ContentMismatch { expected: at } if at == expected);
        assert_eq!(one.tail(0).await, 200, "nothing of a refused piece is taken");
    }
    one.write(0, 200, 1).await;
    one.seal().await;
    one.assert_holds(0, 201).await;
}

/// Pieces are applied in order; those before a refused one stay, those after it do not come in.
pub async fn pieces_before_a_refused_one_stay(stage: Stage) {
    let (_instance, one) = open_one(&stage, 4).await;
    let pieces = vec![
        piece(0, Some(0), one.bytes(0, 0, 10)),
        piece(3, Some(0), one.bytes(3, 0, 20)),
        piece(0, None, one.bytes(0, 10, 5)),
        piece(3, Some(21), one.bytes(3, 21, 7)),
        piece(1, Some(0), one.bytes(1, 0, 30)),
    ];
    assert_refused!(one.append(pieces).await, StoreErrorKind::OffsetMismatch { expected } if expected == Offset::new(20));
    assert_eq!((one.tail(0).await, one.tail(1).await, one.tail(3).await), (15, 0, 20));
    let repeat = vec![
        piece(0, Some(0), one.bytes(0, 0, 10)),
        piece(3, Some(0), one.bytes(3, 0, 20)),
        piece(0, Some(10), one.bytes(0, 10, 5)),
        piece(3, Some(20), one.bytes(3, 20, 8)),
        piece(1, Some(0), one.bytes(1, 0, 30)),
    ];
    let ack = one.append(repeat).await.expect("a repeat with the missing piece is taken");
    assert_eq!((ack.end.get(), ack.new_bytes), (30, 38));
    one.seal().await;
    for (index, length) in [(0, 15), (1, 30), (2, 0), (3, 28)] {
        one.assert_holds(index, length).await;
    }
}

/// Chunks without bytes are taken and change nothing.
pub async fn an_empty_chunk_changes_nothing(stage: Stage) {
    let (_instance, one) = open_one(&stage, 2).await;
    let ack = one.put(0, None, Bytes::new()).await.expect("an empty chunk is taken");
    assert_eq!((ack.end, ack.new_bytes), (Offset::ZERO, 0));
    one.write(0, 0, 10).await;
    let ack = one.write(0, 10, 0).await;
    assert_eq!((ack.end.get(), ack.new_bytes), (10, 0));
    let pieces = vec![piece(1, None, Bytes::new()), piece(1, None, one.bytes(1, 0, 3)), piece(1, None, Bytes::new())];
    assert_eq!(one.append(pieces).await.expect("empty pieces are taken").new_bytes, 3);
    one.append(Vec::new()).await.expect("no pieces at all are taken");
    one.seal().await;
    one.assert_holds(0, 10).await;
    one.assert_holds(1, 3).await;
}

/// A chunk without bytes is refused where one with bytes would be: it tells whether an append may
/// start there.
pub async fn an_empty_chunk_is_checked_like_any_other(stage: Stage) {
    let (_instance, one) = open_one(&stage, 2).await;
    one.write(0, 0, 10).await;
    for start in [11, 1 << 40, u64::MAX] {
        let gap = one.put(0, Some(start), Bytes::new()).await;
        assert_refused!(gap, StoreErrorKind::OffsetMismatch { expected } if expected == Offset::new(10));
    }
    for start in [0, 5, 10] {
        assert_eq!(one.put(0, Some(start), Bytes::new()).await.expect("it may start there").new_bytes, 0);
    }
    assert_refused!(one.put(2, Some(0), Bytes::new()).await, StoreErrorKind::NoSuchSubpartition { count: 2 });
    one.seal().await;
    assert_refused!(one.put(0, Some(10), Bytes::new()).await, StoreErrorKind::AlreadySealed);
    one.assert_holds(0, 10).await;
}

/// Chunks on both sides of usual buffer sizes come back whole.
pub async fn chunk_sizes_around_boundaries_come_back_whole(stage: Stage) {
    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;
    let (_instance, one) = open_one(&stage, 2).await;
    let most = one.store.capabilities().max_chunk_bytes;
    let sizes = [
        [4 * MIB, MIB, 7, 3 * MIB, 1, 4 * MIB - 1].as_slice(),
        &[64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 128 * KIB, 128 * KIB + 1, 192 * KIB - 1],
        &[MIB - 1, MIB + 1, 2 * MIB + 1, 4 * KIB - 1, 4 * KIB, 4 * KIB + 1],
    ];
    let mut at = 0;
    for size in sizes.concat() {
        let size = size.min(most);
        one.write(0, at, size).await;
        at += size;
    }
    let manifest = one.seal().await;
    assert_eq!(manifest.table.total_bytes(), at);
    one.assert_holds(0, at).await;
}

/// Thousands of tiny appends come back in order.
pub async fn five_thousand_tiny_appends_come_back(stage: Stage) {
    let (_instance, one) = open_one(&stage, 2).await;
    let n_appends = if stage.rounds(100) < 100 { 1500 } else { 5000 };
    let mut at = 0;
    for number in 0..n_appends {
        let length = number % 16 + 1;
        one.write(0, at, length).await;
        at += length;
    }
    let mut pieces = Vec::new();
    let mut end = 0;
    for number in 0..5000 {
        let length = number % 16 + 1;
        pieces.push(piece(1, Some(end), one.bytes(1, end, length)));
        end += length;
    }
    one.append(pieces).await.expect("many pieces in one append are taken");
    one.seal().await;
    one.assert_holds(0, at).await;
    one.assert_holds(1, end).await;
}

/// A subpartition that does not exist is refused.
pub async fn a_subpartition_outside_is_refused(stage: Stage) {
    let (_instance, one) = open_one(&stage, 3).await;
    for index in [3, 4, 1 << 20, u32::MAX] {
        let answer = one.put(index, Some(0), Bytes::from_static(b"x")).await;
        assert_refused!(answer, StoreErrorKind::NoSuchSubpartition { count: 3 });
    }
    one.write(2, 0, 5).await;
    one.seal().await;
    assert_refused!(one.read(3, 0, None).await, StoreErrorKind::NoSuchSubpartition { count: 3 });
    one.assert_holds(2, 5).await;
}

/// A chunk over the declared limit is refused, never cut.
pub async fn a_chunk_over_the_limit_is_refused(stage: Stage) {
    let (_instance, one) = open_one(&stage, 1).await;
    let most = one.store.capabilities().max_chunk_bytes;
    if most <= 48 << 20 {
        let answer = one.put(0, Some(0), one.bytes(0, 0, most + 1)).await;
        assert_refused!(answer, StoreErrorKind::TooLarge { .. });
        assert_eq!(one.tail(0).await, 0);
    }
    let taken = most.min(16 << 20);
    one.write(0, 0, taken).await;
    one.seal().await;
    one.assert_holds(0, taken).await;
}

/// A broadcast is stored once, as subpartition 0.
pub async fn a_broadcast_is_stored_once(stage: Stage) {
    let instance = stage.fresh().await;
    let broadcast = DatasetSpec { is_broadcast: true, ..spec(stage.kind(), 5) };
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), broadcast).await;
    one.write(0, 0, 1000).await;
    assert_refused!(one.put(1, Some(0), Bytes::from_static(b"x")).await, StoreErrorKind::NoSuchSubpartition { .. });
    let manifest = one.seal().await;
    assert_eq!(manifest.table.total_bytes(), 1000);
    one.assert_holds(0, 1000).await;
}

/// Bytes of different subpartitions never mix, however their appends interleave.
pub async fn interleaved_subpartitions_stay_apart(stage: Stage) {
    const COUNT: u32 = 16;
    let (_instance, one) = open_one(&stage, COUNT).await;
    let mut tails = [0_u64; COUNT as usize];
    for round in 0..40_u64 {
        let mut pieces = Vec::new();
        for index in 0..COUNT {
            let tail = &mut tails[index as usize];
            let length = (round * 7 + u64::from(index) * 13) % 97;
            pieces.push(piece(index, Some(*tail), one.bytes(index, *tail, length)));
            *tail += length;
        }
        one.append(pieces).await.expect("appends at the tails are taken");
    }
    one.seal().await;
    for index in 0..COUNT {
        let bytes = one.read(index, 0, None).await.expect("sealed content can be read");
        assert_same(&bytes, &one.bytes(index, 0, tails[index as usize]));
    }
}

//! Generations, attempts, fencing.

use super::bench::*;
use crate::service::*;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store_api::*;

const TAIL: ReadKind = ReadKind::Tail { wait: Duration::ZERO };

#[tokio::test]
async fn attempts_of_a_generation_run_side_by_side_and_never_mix() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    for attempt in 0..2 {
        node.open(0, 0, attempt).await.unwrap();
    }
    node.write(0, a(0, 0), b"zero").await.unwrap();
    node.write(0, a(0, 1), b"one").await.unwrap();
    node.seal(0, a(0, 1)).await.unwrap();
    assert_eq!(node.read(0).await.unwrap(), b"one");
    let named = node.read_as(0, Some(a(0, 0)), ReadKind::Sealed).await;
    assert_eq!(refused(named), ServiceErrorKind::OtherAttemptWon { winner: a(0, 1) });
    assert_eq!(refused(node.write(0, a(0, 0), b"late").await), ServiceErrorKind::OtherAttemptWon { winner: a(0, 1) });
}

#[tokio::test]
async fn opening_twice_answers_where_the_attempt_stands() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.open(0, 0, 0).await.unwrap();
    node.write(0, a(0, 0), b"12345").await.unwrap();
    let again = node.open(0, 0, 0).await.unwrap();
    assert_eq!(again.tails, [(SubpartitionIndex::new(0), Offset::new(5))]);
    assert_eq!((again.state, again.location.life), (AttemptState::Open, NodeLife::new(1)));
    assert_eq!(node.service.counters().attempts_opened.value(), 1);
}

#[tokio::test]
async fn opening_after_the_seal_is_told_the_winner() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.produce(0, b"x").await;
    assert_eq!(refused(node.open(0, 0, 0).await), ServiceErrorKind::AlreadySealed);
    assert_eq!(refused(node.open(0, 0, 1).await), ServiceErrorKind::OtherAttemptWon { winner: a(0, 0) });
}

#[tokio::test]
async fn a_higher_generation_needs_the_present_epoch() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    let open = |epoch| OpenAttempt { generation: 1, epoch, ..OpenAttempt::default() };
    assert_eq!(refused(node.service.open_attempt(&at(0), open(None)).await), ServiceErrorKind::EpochRequired);
    let take_over = JobRequest { owner_nonce: "two".to_owned(), take_over: true, ..JobRequest::default() };
    node.service.put_job(&id("j"), take_over).await.unwrap();
    let former = node.service.open_attempt(&at(0), open(Some(JobEpoch::new(1)))).await;
    assert_eq!(refused(former), ServiceErrorKind::Fenced { by: FencedBy::Epoch(JobEpoch::new(2)) });
    assert!(node.service.open_attempt(&at(0), open(Some(JobEpoch::new(2)))).await.is_ok());
}

#[tokio::test]
async fn a_higher_generation_fences_lower_ones_sealed_or_not_and_gives_their_bytes_back() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    let mut events = node.service.events(&id("j"), None).await.unwrap();
    node.produce(0, b"old").await;
    node.open(1, 0, 0).await.unwrap();
    node.open(0, 1, 0).await.unwrap();
    node.open(1, 1, 0).await.unwrap();
    let by = ServiceErrorKind::Fenced { by: FencedBy::Attempt(a(1, 0)) };
    assert_eq!(refused(node.write(1, a(0, 0), b"late").await), by);
    assert_eq!(refused(node.seal(1, a(0, 0)).await), by);
    assert_eq!(refused(node.open(1, 0, 7).await), by);
    assert_eq!(refused(node.read_as(0, Some(a(0, 0)), ReadKind::Sealed).await), by);
    assert_eq!(refused(node.read(0).await), ServiceErrorKind::NotSealed);
    assert_eq!(node.service.job(&id("j")).await.unwrap().held.total(), 0);
    let kinds: Vec<EventKind> = ready_events(&mut events).await.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Sealed, EventKind::Superseded]);
    node.write(0, a(1, 0), b"new").await.unwrap();
    node.seal(0, a(1, 0)).await.unwrap();
    assert_eq!(node.read(0).await.unwrap(), b"new");
    assert_eq!(node.service.dataset(&id("j"), &dataset_id("d")).await.unwrap().n_sealed, 1);
}

#[tokio::test]
async fn a_generation_that_cannot_be_recorded_fences_nothing() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.produce(0, b"old").await;
    node.catalog.fails_writes.store(true, Ordering::SeqCst);
    assert!(matches!(refused(node.open(0, 1, 0).await), ServiceErrorKind::Unavailable { .. }));
    assert_eq!(node.read(0).await.unwrap(), b"old");
}

#[tokio::test]
async fn a_higher_pipelined_attempt_fences_lower_ones() {
    let node = Node::with_dataset(StoreClass::Pipelined).await;
    node.open(0, 0, 0).await.unwrap();
    node.write(0, a(0, 0), b"old").await.unwrap();
    node.open(0, 0, 2).await.unwrap();
    let by = ServiceErrorKind::Fenced { by: FencedBy::Attempt(a(0, 2)) };
    assert_eq!(refused(node.write(0, a(0, 0), b"late").await), by);
    assert_eq!(refused(node.open(0, 0, 1).await), by);
    assert_eq!(refused(node.open(0, 0, 0).await), by);
    assert_eq!(refused(node.read_as(0, Some(a(0, 0)), TAIL).await), by);
    node.write(0, a(0, 2), b"new").await.unwrap();
    assert_eq!(node.read_as(0, None, TAIL).await.unwrap(), b"new");
}

#[tokio::test]
async fn an_abort_is_final_idempotent_and_leaves_others_alone() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    for attempt in 0..2 {
        node.open(0, 0, attempt).await.unwrap();
        node.write(0, a(0, attempt), b"bytes").await.unwrap();
    }
    for _ in 0..2 {
        node.service.abort_attempt(&of(0, a(0, 0)), node.life()).await.unwrap();
    }
    assert_eq!(refused(node.write(0, a(0, 0), b"late").await), ServiceErrorKind::Aborted);
    assert_eq!(refused(node.open(0, 0, 0).await), ServiceErrorKind::Aborted);
    node.seal(0, a(0, 1)).await.unwrap();
    assert_eq!(refused(node.service.abort_attempt(&of(0, a(0, 1)), node.life()).await), ServiceErrorKind::AlreadySealed);
    assert_eq!(refused(node.service.abort_attempt(&of(0, a(0, 9)), node.life()).await), ServiceErrorKind::UnknownAttempt);
    assert_eq!(node.read(0).await.unwrap(), b"bytes");
}

#[tokio::test]
async fn a_partition_whose_attempts_were_all_aborted_says_so() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.open(0, 0, 0).await.unwrap();
    node.service.abort_attempt(&of(0, a(0, 0)), node.life()).await.unwrap();
    assert_eq!(refused(node.read(0).await), ServiceErrorKind::Aborted);
    assert_eq!(node.state(0).await, PartitionState::Aborted);
}

#[tokio::test]
async fn writes_name_the_life_of_the_node() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.open(0, 0, 0).await.unwrap();
    let other = Some(NodeLife::new(77));
    let by = ServiceErrorKind::Fenced { by: FencedBy::Life(NodeLife::new(1)) };
    let address = of(0, a(0, 0));
    for (life, refusal) in [(None, ServiceErrorKind::LifeRequired), (other, by.clone())] {
        assert_eq!(refused(node.service.begin_frames(&address, life).await), refusal);
        assert_eq!(refused(node.service.begin_append(&address, life, SubpartitionIndex::new(0), None, None).await), refusal);
        assert_eq!(refused(node.service.seal(&address, life, None).await), refusal);
        assert_eq!(refused(node.service.abort_attempt(&address, life).await), refusal);
    }
    let open = OpenAttempt { attempt: 1, life: other, ..OpenAttempt::default() };
    assert_eq!(refused(node.service.open_attempt(&at(0), open).await), by);
}

#[tokio::test]
async fn partitions_outside_the_dataset_are_unknown() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    assert_eq!(refused(node.open(16, 0, 0).await), ServiceErrorKind::UnknownPartition);
    assert_eq!(refused(node.read(u64::MAX).await), ServiceErrorKind::UnknownPartition);
    assert_eq!(refused(node.release(16).await), ServiceErrorKind::UnknownPartition);
}

#[tokio::test]
async fn start_offsets_are_for_pipelined_attempts() {
    let node = Node::with_dataset(StoreClass::Pipelined).await;
    node.put_dataset("j", "b", StoreClass::Blocking).await;
    let starts = vec![(SubpartitionIndex::new(2), Offset::new(70)), (SubpartitionIndex::new(0), Offset::new(5))];
    let request = || OpenAttempt { starts: starts.clone(), ..OpenAttempt::default() };
    let view = node.service.open_attempt(&at(0), request()).await.unwrap();
    assert_eq!(view.tails, [(SubpartitionIndex::new(0), Offset::new(5)), (SubpartitionIndex::new(2), Offset::new(70))]);
    let blocking = PartitionAddress { dataset: dataset_id("b"), ..at(0) };
    assert!(matches!(refused(node.service.open_attempt(&blocking, request()).await), ServiceErrorKind::BadRequest { .. }));
    let outside = OpenAttempt { starts: vec![(SubpartitionIndex::new(4), Offset::new(1))], ..OpenAttempt::default() };
    assert_eq!(refused(node.service.open_attempt(&at(1), outside).await), ServiceErrorKind::UnknownPartition);
}

#[tokio::test]
async fn the_number_of_attempts_is_bounded() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    for attempt in 0..1024 {
        node.open(0, 0, attempt).await.unwrap();
    }
    assert_eq!(refused(node.open(0, 0, 1024).await), ServiceErrorKind::TooLarge { limit: 1024 });
}

/// What is stated of, and what is known about, content that starts above 0: lengths and checksums are
/// of the bytes from the start, offsets are absolute.
#[tokio::test]
async fn content_that_starts_above_0_is_stated_by_its_bytes_and_addressed_by_its_offsets() {
    let node = Node::with_dataset(StoreClass::Pipelined).await;
    let request = OpenAttempt { starts: vec![(SubpartitionIndex::new(0), Offset::new(70))], ..OpenAttempt::default() };
    node.service.open_attempt(&at(0), request).await.unwrap();
    node.write(0, a(0, 0), b"0123456789").await.unwrap();
    let stated = |length, crc: Option<&[u8]>| {
        let crcs = crc.map(|bytes| vec![Crc32c::of(bytes)]);
        Some(StatedContent { indices: Some(vec![0]), lengths: vec![length], crcs })
    };
    let attempt = of(0, a(0, 0));
    let seal = |content| node.service.seal(&attempt, node.life(), content);
    for wrong in [stated(80, None), stated(9, None), stated(80, Some(b"0123456789")), stated(10, Some(b"0123456780"))] {
        assert!(matches!(refused(seal(wrong.clone()).await), ServiceErrorKind::DigestMismatch { .. }), "{wrong:?}");
    }
    for right in [stated(10, None), stated(10, Some(b"0123456789")), None] {
        let Ok(SealReply::Won(view)) = seal(right.clone()).await else { panic!("{right:?} was refused") };
        assert_eq!(view.manifest.table.digest(SubpartitionIndex::new(0)).unwrap(), Digest { length: 10, crc: Crc32c::of(b"0123456789") });
    }
    let readable = node.service.resolve(&at(0), SubpartitionIndex::new(0), None).await.unwrap();
    assert_eq!((readable.start, readable.floor, readable.end), (Offset::new(70), Offset::new(70), Offset::new(80)));
    assert_eq!(readable.digest.map(|digest| digest.length), Some(10), "the digest covers [start, end)");
    let want = AvailabilityWant {
        dataset: dataset_id("d"),
        partition: PartitionId::new(0),
        n_partitions: 1,
        subpartition: Some(SubpartitionIndex::new(0)),
    };
    let view = node.service.availability(&id("j"), vec![want]).await.unwrap().swap_remove(0);
    assert_eq!((view.floor, view.end), (Some(Offset::new(70)), Some(Offset::new(80))));
    let read = |start: u64, end| {
        let call =
            ReadCall { attempt: None, subpartition: SubpartitionIndex::new(0), start: Offset::new(start), end, kind: ReadKind::Sealed };
        let service = node.service.clone();
        async move {
            let chunks: Vec<bytes::Bytes> = futures::TryStreamExt::try_collect(service.read(&at(0), call).await?.chunks).await?;
            Ok(chunks.concat())
        }
    };
    assert_eq!(read(73, Some(Offset::new(76))).await.unwrap(), b"345");
    assert_eq!(read(70, None).await.unwrap(), b"0123456789");
    assert_eq!(refused(read(0, None).await), ServiceErrorKind::BelowFloor { floor: Offset::new(70) });
    assert_eq!(refused(read(81, None).await), ServiceErrorKind::RangeNotSatisfiable { end: Offset::new(80) });
}

#[tokio::test]
async fn open_attempts_and_sealed_ones_are_counted_up_and_back_to_nothing() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    let counts = || (node.service.n_open_attempts(), node.service.n_sealed(StoreClass::Blocking));
    assert_eq!(counts(), (0, 0));
    for attempt in 0..3 {
        node.open(0, 0, attempt).await.unwrap();
    }
    node.open(1, 0, 0).await.unwrap();
    assert_eq!(counts(), (4, 0));
    node.open(1, 0, 0).await.unwrap();
    assert_eq!(counts().0, 4, "a repeat opens nothing");
    node.seal(0, a(0, 1)).await.unwrap();
    assert_eq!(counts(), (1, 1), "the losers of a seal are closed with it");
    node.service.abort_attempt(&of(1, a(0, 0)), node.life()).await.unwrap();
    assert_eq!(counts(), (0, 1));
    node.open(2, 0, 0).await.unwrap();
    assert_eq!(node.service.n_sealed(StoreClass::Durable), 0, "each class is counted for itself");
    node.service.release_job(&id("j"), Some(JobEpoch::new(1))).await.unwrap();
    assert_eq!(counts(), (0, 0));
}

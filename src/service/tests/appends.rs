//! Frame streams and raw bodies.

use super::bench::*;
use crate::service::*;
use bytes::Bytes;
use futures::FutureExt;
use store_api::*;

async fn opened() -> Node {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.open(0, 0, 0).await.unwrap();
    node
}

async fn frames(node: &Node) -> FrameSink {
    node.service.begin_frames(&of(0, a(0, 0)), node.life()).await.unwrap()
}

async fn raw(node: &Node, offset: Option<u64>, length: Option<u64>) -> RawSink {
    let subpartition = SubpartitionIndex::new(0);
    node.service.begin_append(&of(0, a(0, 0)), node.life(), subpartition, offset.map(Offset::new), length).await.unwrap()
}

async fn feed(sink: &mut RawSink, bytes: &[u8]) -> ServiceResult<()> {
    let permit = sink.reserve(bytes.len() as u64).await?;
    sink.push(Bytes::copy_from_slice(bytes), permit).await
}

#[tokio::test]
async fn frames_below_the_next_sequence_are_skipped_and_gaps_refused() {
    let node = opened().await;
    let mut sink = frames(&node).await;
    let ack = push(&mut sink, vec![frame(0, 0, b"a"), frame(1, 1, b"b")]).await.unwrap();
    assert_eq!(ack, FramesAck { next_sequence: 2, new_bytes: 2 });
    let ack = push(&mut sink, vec![frame(0, 0, b"a"), frame(1, 1, b"b"), frame(2, 0, b"c")]).await.unwrap();
    assert_eq!(ack, FramesAck { next_sequence: 3, new_bytes: 3 });
    let gap = push(&mut sink, vec![frame(3, 0, b"d"), frame(5, 0, b"x")]).await;
    assert_eq!(refused(gap), ServiceErrorKind::SequenceMismatch { expected: 4 });
    let mut sink = frames(&node).await;
    assert_eq!(sink.next_sequence(), 4, "what came before the gap stays");
    push(&mut sink, vec![frame(4, 0, b"e")]).await.unwrap();
    assert_eq!(sink.finish(5).await.unwrap().next_sequence, 5);
    node.seal(0, a(0, 0)).await.unwrap();
    assert_eq!(node.read(0).await.unwrap(), b"acde");
}

#[tokio::test]
async fn a_retry_after_a_refused_frame_is_never_taken_for_old() {
    let node = opened().await;
    let mut sink = frames(&node).await;
    push(&mut sink, (0..5).map(|sequence| frame(sequence, 0, &[sequence as u8])).collect()).await.unwrap();
    for sequence in [6, 7] {
        assert_eq!(refused(push(&mut sink, vec![frame(sequence, 0, b"x")]).await), ServiceErrorKind::SequenceMismatch { expected: 5 });
    }
    push(&mut sink, (5..8).map(|sequence| frame(sequence, 0, &[sequence as u8])).collect()).await.unwrap();
    node.seal(0, a(0, 0)).await.unwrap();
    assert_eq!(node.read(0).await.unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[tokio::test]
async fn a_newer_frame_stream_fences_the_older() {
    let node = opened().await;
    let mut old = frames(&node).await;
    push(&mut old, vec![frame(0, 0, b"a")]).await.unwrap();
    let mut new = frames(&node).await;
    let by = ServiceErrorKind::Fenced { by: FencedBy::FrameStream };
    assert_eq!(refused(push(&mut old, vec![frame(1, 0, b"x")]).await), by);
    assert_eq!(refused(old.finish(1).await), by);
    assert_eq!(new.next_sequence(), 1);
    push(&mut new, vec![frame(1, 0, b"b")]).await.unwrap();
    assert_eq!(refused(new.finish(7).await), ServiceErrorKind::SequenceMismatch { expected: 2 });
}

#[tokio::test]
async fn a_batch_that_the_store_refuses_half_way_is_counted_as_far_as_it_came() {
    for left in 0..4 {
        let node = opened().await;
        let mut sink = frames(&node).await;
        push(&mut sink, vec![frame(0, 1, b"zz")]).await.unwrap();
        *node.blocking.appends_left.lock() = Some(left);
        let batch = || vec![frame(1, 0, b"a"), frame(2, 1, b"b"), frame(3, 0, b"c"), frame(4, 0, b"d")];
        assert!(matches!(refused(push(&mut sink, batch()).await), ServiceErrorKind::Unavailable { .. }));
        let mut sink = frames(&node).await;
        assert_eq!(sink.next_sequence(), 1 + left as u64);
        push(&mut sink, batch()).await.unwrap();
        node.seal(0, a(0, 0)).await.unwrap();
        assert_eq!(node.read(0).await.unwrap(), b"acd", "left {left}");
    }
}

#[tokio::test]
async fn a_batch_whose_client_leaves_is_applied_and_the_next_stream_knows() {
    let node = opened().await;
    for round in 0..50 {
        let mut sink = frames(&node).await;
        assert_eq!(sink.next_sequence(), round);
        let permit = sink.reserve(1).await.unwrap();
        let left = sink.push(vec![frame(round, 0, &[round as u8])], permit).now_or_never();
        assert!(left.is_none(), "the push is under way when its client leaves");
    }
    let sink = frames(&node).await;
    assert_eq!(sink.next_sequence(), 50);
    drop(sink);
    node.seal(0, a(0, 0)).await.unwrap();
    assert_eq!(node.read(0).await.unwrap(), (0..50).collect::<Vec<u8>>());
}

#[tokio::test]
async fn frames_and_raw_bodies_of_one_attempt_keep_their_counts_apart() {
    let node = opened().await;
    let mut sink = frames(&node).await;
    push(&mut sink, vec![frame(0, 0, b"a")]).await.unwrap();
    node.write(0, a(0, 0), b"raw").await.unwrap();
    *node.blocking.appends_left.lock() = Some(1);
    assert!(push(&mut sink, vec![frame(1, 0, b"b"), frame(2, 0, b"c")]).await.is_err());
    let sink = frames(&node).await;
    assert_eq!(sink.next_sequence(), 2);
    drop(sink);
    node.seal(0, a(0, 0)).await.unwrap();
    assert_eq!(node.read(0).await.unwrap(), b"arawb");
}

#[tokio::test]
async fn a_raw_body_that_is_cut_leaves_nothing() {
    let node = opened().await;
    for length in [None, Some(9)] {
        let mut sink = raw(&node, Some(0), length).await;
        feed(&mut sink, b"half").await.unwrap();
        assert!(sink.is_atomic());
        drop(sink);
    }
    assert!(node.open(0, 0, 0).await.unwrap().tails.is_empty());
    assert_eq!(node.service.job(&id("j")).await.unwrap().held.total(), 0);
    assert_eq!(node.service.n_writes_running(), 0);
}

#[tokio::test]
async fn a_raw_body_over_the_atomic_size_keeps_the_chunks_that_were_applied() {
    let config = ServiceConfig { atomic_append_bytes: 10, chunk_bytes: 4, ..ServiceConfig::default() };
    let node = Node::with(config).await;
    node.put_job("j").await;
    node.put_dataset("j", "d", StoreClass::Blocking).await;
    node.open(0, 0, 0).await.unwrap();
    let mut sink = raw(&node, Some(0), None).await;
    feed(&mut sink, b"0123456789").await.unwrap();
    assert!(sink.is_atomic());
    feed(&mut sink, b"abc").await.unwrap();
    assert!(!sink.is_atomic());
    drop(sink);
    assert_eq!(node.open(0, 0, 0).await.unwrap().tails, [(SubpartitionIndex::new(0), Offset::new(12))]);
    let mut sink = raw(&node, Some(0), Some(15)).await;
    feed(&mut sink, b"0123456789abcde").await.unwrap();
    assert_eq!(sink.finish().await.unwrap(), AppendReply { end: Offset::new(15), new_bytes: 3 });
    node.seal(0, a(0, 0)).await.unwrap();
    assert_eq!(node.read(0).await.unwrap(), b"0123456789abcde");
}

#[tokio::test]
async fn a_raw_append_is_idempotent_by_offset_and_names_where_to_go_on() {
    let node = opened().await;
    let append = |offset: u64, bytes: &'static [u8]| {
        let node = &node;
        async move {
            let (start, length) = (Some(Offset::new(offset)), Some(bytes.len() as u64));
            let begun = node.service.begin_append(&of(0, a(0, 0)), node.life(), SubpartitionIndex::new(0), start, length).await;
            let mut sink = begun?;
            feed(&mut sink, bytes).await?;
            sink.finish().await
        }
    };
    assert_eq!(append(0, b"abcd").await.unwrap(), AppendReply { end: Offset::new(4), new_bytes: 4 });
    assert_eq!(append(0, b"abcd").await.unwrap().new_bytes, 0);
    assert_eq!(append(2, b"cdef").await.unwrap(), AppendReply { end: Offset::new(6), new_bytes: 2 });
    assert_eq!(refused(append(9, b"x").await), ServiceErrorKind::OffsetMismatch { expected: Offset::new(6) });
    assert_eq!(refused(append(0, b"abXd").await), ServiceErrorKind::ContentMismatch { expected: Offset::new(6) });
    assert_eq!(append(6, b"").await.unwrap(), AppendReply { end: Offset::new(6), new_bytes: 0 });
    assert_eq!(refused(append(u64::MAX, b"xy").await), ServiceErrorKind::OffsetMismatch { expected: Offset::new(6) });
}

#[tokio::test]
async fn a_raw_append_that_cannot_start_where_it_says_is_refused_before_its_bytes() {
    for class in [StoreClass::Pipelined, StoreClass::Blocking, StoreClass::Durable] {
        let node = Node::with_dataset(class).await;
        node.open(0, 0, 0).await.unwrap();
        node.write(0, a(0, 0), b"abcd").await.unwrap();
        let begin = async |offset: u64| {
            let (attempt, zero) = (of(0, a(0, 0)), SubpartitionIndex::new(0));
            node.service.begin_append(&attempt, node.life(), zero, Some(Offset::new(offset)), None).await.map(|_| ())
        };
        for offset in [5, 1 << 40, u64::MAX] {
            assert_eq!(refused(begin(offset).await), ServiceErrorKind::OffsetMismatch { expected: Offset::new(4) }, "{class:?}");
        }
        for offset in [0, 3, 4] {
            begin(offset).await.unwrap();
        }
        node.seal(0, a(0, 0)).await.unwrap();
        assert_eq!(refused(begin(4).await), ServiceErrorKind::AlreadySealed, "{class:?}");
    }
}

#[tokio::test]
async fn subpartitions_outside_are_unknown() {
    let node = opened().await;
    assert_eq!(refused(node.write_to(0, a(0, 0), 4, b"x").await), ServiceErrorKind::UnknownPartition);
    let mut sink = frames(&node).await;
    assert_eq!(refused(push(&mut sink, vec![frame(0, 4, b"x")]).await), ServiceErrorKind::UnknownPartition);
}

#[tokio::test]
async fn a_quota_counts_what_is_held_and_what_is_reserved() {
    let node = Node::start().await;
    node.service.put_job(&id("j"), JobRequest { quota_bytes: Some(10), ..JobRequest::default() }).await.unwrap();
    node.put_dataset("j", "d", StoreClass::Blocking).await;
    node.open(0, 0, 0).await.unwrap();
    node.write(0, a(0, 0), b"1234").await.unwrap();
    let sink = frames(&node).await;
    let held = sink.reserve(5).await.unwrap();
    let refusal = node.write(0, a(0, 0), b"xx").await;
    assert!(matches!(refused(refusal), ServiceErrorKind::OverQuota { quota_bytes: 10, .. }));
    assert!(node.write(0, a(0, 0), b"x").await.is_ok());
    drop((held, sink));
    node.write(0, a(0, 0), b"xyzuv").await.unwrap();
    assert!(matches!(refused(node.write(0, a(0, 0), b"x").await), ServiceErrorKind::OverQuota { .. }));
    node.release(0).await.unwrap();
    node.open(1, 0, 0).await.unwrap();
    assert!(node.write(1, a(0, 0), b"0123456789").await.is_ok(), "a release must give quota back");
    assert_eq!(node.service.counters().over_quota.value(), 2);
}

#[tokio::test]
async fn a_wait_for_memory_that_is_dropped_leaves_no_reservation() {
    let node = Node::start().await;
    node.service.put_job(&id("j"), JobRequest { quota_bytes: Some(2 * BUDGET), ..JobRequest::default() }).await.unwrap();
    node.put_dataset("j", "d", StoreClass::Blocking).await;
    node.open(0, 0, 0).await.unwrap();
    let sink = frames(&node).await;
    let all = sink.reserve(BUDGET).await.unwrap();
    for _ in 0..100 {
        assert!(sink.reserve(BUDGET).now_or_never().is_none());
    }
    drop(all);
    assert!(sink.reserve(BUDGET).await.is_ok());
    // What this sink reserved counts against the quota until it is pushed or the sink is gone.
    assert!(matches!(refused(sink.reserve(1).await), ServiceErrorKind::OverQuota { .. }));
    drop(sink);
    let sink = frames(&node).await;
    assert_eq!(refused(sink.reserve(BUDGET + 1).await), ServiceErrorKind::TooLarge { limit: BUDGET });
}

#[tokio::test]
async fn a_sealed_attempt_takes_no_more_bytes() {
    let node = opened().await;
    let mut sink = frames(&node).await;
    push(&mut sink, vec![frame(0, 0, b"a")]).await.unwrap();
    node.seal(0, a(0, 0)).await.unwrap();
    let late = sink.push(vec![frame(1, 0, b"x")], Permit::none()).await;
    assert_eq!(refused(late), ServiceErrorKind::AlreadySealed);
    assert_eq!(refused(node.write(0, a(0, 0), b"x").await), ServiceErrorKind::AlreadySealed);
    assert_eq!(node.read(0).await.unwrap(), b"a");
}

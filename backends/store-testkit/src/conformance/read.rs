//! Reads: ranges, what may be read when, batches.

use crate::assert_refused;
use crate::scenario::{Attempt, assert_same, attempt, collect, fetch_all, spec};
use crate::suite::Stage;
use futures::StreamExt;
use store_api::{Offset, ReadMode, ReadRequest, StoreErrorKind};

/// What a store that reads only sealed content says before the seal.
pub async fn an_open_attempt_is_not_readable_before_its_seal(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 2)).await;
    assert_refused!(one.read(0, 0, None).await, StoreErrorKind::NotSealed);
    one.write(0, 0, 100).await;
    assert_refused!(one.read(0, 0, None).await, StoreErrorKind::NotSealed);
    let answers = fetch_all(&one.store, vec![one.request(0, 0, None, ReadMode::Sealed)]).await;
    assert!(matches!(answers[&0].failed, Some((_, StoreErrorKind::NotSealed))), "{answers:?}");
    one.seal().await;
    one.assert_holds(0, 100).await;
}

/// A store that cannot read open attempts refuses to tail one, and tails a sealed one to its end.
pub async fn tailing_an_open_attempt_is_refused(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 2)).await;
    one.write(0, 0, 100).await;
    let wait = std::time::Duration::from_millis(50);
    assert_refused!(one.tailing(0, 0, wait).await, StoreErrorKind::NotSealed | StoreErrorKind::Unsupported { .. });
    one.seal().await;
    let stream = one.tailing(0, 10, wait).await.expect("a sealed attempt can be read to its end");
    assert_same(&collect(stream).await.expect("it ends"), &one.bytes(0, 10, 90));
}

/// Every range gives exactly its bytes; the end is clipped, a start after the end is refused.
pub async fn ranges_give_exactly_their_bytes(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 1)).await;
    for (start, length) in [(0, 1), (1, 9), (10, 90), (100, 4000), (4100, 66_000)] {
        one.write(0, start, length).await;
    }
    one.seal().await;
    let end = 70_100;
    let borders = [0, 1, 2, 9, 10, 11, 99, 100, 101, 4099, 4100, 4101, end - 1, end];
    for start in borders {
        for stop in borders.into_iter().filter(|stop| *stop >= start) {
            let stream = one.reading(0, start, Some(stop)).await.expect("a range inside is served");
            assert_eq!((stream.start.get(), stream.end.map(Offset::get)), (start, Some(stop)));
            let bytes = collect(stream).await.expect("a range inside is served");
            assert_same(&bytes, &one.bytes(0, start, stop - start));
        }
        for stop in [end + 1, 1 << 31, 1 << 32, 1 << 63, u64::MAX] {
            let bytes = one.read(0, start, Some(stop)).await.expect("an end beyond is clipped");
            assert_same(&bytes, &one.bytes(0, start, end - start));
        }
    }
    for start in [end + 1, 1 << 31, 1 << 32, 1 << 63, u64::MAX] {
        for stop in [None, Some(u64::MAX), Some(start), Some(0)] {
            let kind = crate::scenario::refused(one.reading(0, start, stop).await);
            assert_eq!(kind, StoreErrorKind::BeyondEnd { end: Offset::new(end) }, "[{start}, {stop:?})");
        }
    }
}

/// Ranges on subpartitions of 0, 1 and 10 bytes.
pub async fn ranges_of_tiny_content_are_right(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 3)).await;
    let lengths = [0, 1, 10];
    for (index, length) in (0..).zip(lengths) {
        one.write(index, 0, length).await;
    }
    one.seal().await;
    for (index, length) in (0..).zip(lengths) {
        for start in 0..=length {
            for stop in [Some(start), Some(start + 1), Some(length), Some(length + 1), Some(u64::MAX), None] {
                let bytes = one.read(index, start, stop).await.expect("a start inside is served");
                let reached = stop.unwrap_or(length).min(length).max(start);
                assert_same(&bytes, &one.bytes(index, start, reached - start));
            }
        }
        assert_refused!(one.read(index, length + 1, None).await, StoreErrorKind::BeyondEnd { end } if end.get() == length);
    }
}

/// A range whose end lies before its start reads nothing.
pub async fn an_end_before_the_start_reads_nothing(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 1)).await;
    one.write(0, 0, 100).await;
    one.seal().await;
    for (start, stop) in [(50, 10), (100, 0), (1, 0)] {
        assert_eq!(one.read(0, start, Some(stop)).await.expect("an empty range is served").len(), 0);
    }
}

/// The same range read many times side by side gives the same bytes, also when readers leave early.
pub async fn readers_side_by_side_see_the_same_bytes(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 2)).await;
    let length = 300_000;
    for start in (0..length).step_by(50_000) {
        one.write(0, start, 50_000).await;
    }
    one.seal().await;
    let readers = (0..stage.rounds(60) as u64).map(|number| {
        let one = one.clone();
        async move {
            let start = number * 4999 % length;
            let mut stream = one.reading(0, start, None).await.expect("sealed content can be read");
            if number % 3 == 0 {
                let first = stream.chunks.next().await.expect("there are bytes").expect("the bytes are whole");
                assert_same(&first, &one.bytes(0, start, first.len() as u64));
                return;
            }
            let bytes = collect(stream).await.expect("sealed content can be read");
            assert_same(&bytes, &one.bytes(0, start, length - start));
        }
    });
    let tasks: Vec<_> = readers.map(crate::scenario::beside).collect();
    for task in tasks {
        task.await.expect("a reader");
    }
}

/// Every item of a batch is answered once, with its own bytes.
pub async fn a_batch_answers_every_item_once(stage: Stage) {
    let instance = stage.fresh().await;
    let n_partitions = 20;
    let mut items = Vec::new();
    let mut wanted = Vec::new();
    for number in 0..n_partitions {
        let one = Attempt::opened(&instance.store, attempt(number, 0, 0), spec(stage.kind(), 50)).await;
        let pieces = (0..50).map(|index| crate::scenario::piece(index, Some(0), one.bytes(index, 0, u64::from(index) * 3)));
        one.append(pieces.collect()).await.expect("appends at the tail are taken");
        one.seal().await;
        for index in (0..50).rev() {
            items.push(one.request(index, 0, None, ReadMode::Sealed));
            wanted.push(one.bytes(index, 0, u64::from(index) * 3));
        }
    }
    let answers = fetch_all(&instance.store, items).await;
    assert_eq!(answers.len(), wanted.len());
    for (item, bytes) in wanted.iter().enumerate() {
        assert!(answers[&item].failed.is_none(), "item {item}: {:?}", answers[&item].failed);
        assert_same(&answers[&item].bytes, bytes);
    }
    assert_eq!(fetch_all(&instance.store, Vec::new()).await.len(), 0, "an empty batch ends");
}

/// Items of a batch may be ranges, empty, the same twice, or wrong; wrong ones disturb no other.
pub async fn a_failing_item_disturbs_no_other(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 3)).await;
    one.write(0, 0, 100_000).await;
    one.write(1, 0, 500).await;
    one.seal().await;
    let open = Attempt::opened(&instance.store, attempt(1, 0, 0), spec(stage.kind(), 3)).await;
    let unknown = Attempt::new(&instance.store, attempt(9, 0, 0), spec(stage.kind(), 3));
    let request = |of: &Attempt, index, start, end| -> ReadRequest { of.request(index, start, end, ReadMode::Sealed) };
    let items = vec![
        request(&one, 0, 0, None),
        request(&unknown, 0, 0, None),
        request(&one, 0, 99_000, Some(99_001)),
        request(&one, 0, 100_001, None),
        request(&one, 1, 7, Some(u64::MAX)),
        request(&open, 0, 0, None),
        request(&one, 1, 500, None),
        request(&one, 3, 0, None),
        request(&one, 0, 0, None),
        request(&one, 2, 0, None),
        request(&one, 0, 10, Some(10)),
    ];
    let n_items = items.len();
    let answers = fetch_all(&instance.store, items).await;
    assert_eq!(answers.len(), n_items, "each item is answered");
    let failed = |item: usize| answers[&item].failed.clone().map(|(_, kind)| kind);
    assert_eq!(failed(1), Some(StoreErrorKind::NotFound));
    assert_eq!(failed(3), Some(StoreErrorKind::BeyondEnd { end: Offset::new(100_000) }));
    assert_eq!(failed(5), Some(StoreErrorKind::NotSealed));
    assert_eq!(failed(7), Some(StoreErrorKind::NoSuchSubpartition { count: 3 }));
    let right = [(0, 0, 0, 100_000), (2, 0, 99_000, 1), (4, 1, 7, 493), (6, 1, 500, 0), (8, 0, 0, 100_000), (9, 2, 0, 0), (10, 0, 10, 0)];
    for (item, index, start, length) in right {
        assert_eq!(failed(item), None, "item {item}");
        assert_same(&answers[&item].bytes, &one.bytes(index, start, length));
    }
}

/// A batch that is dropped half-way leaves the store as it was.
pub async fn a_batch_may_be_dropped_half_way(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 8)).await;
    for index in 0..8 {
        one.write(index, 0, 50_000).await;
    }
    one.seal().await;
    for n_events in 0..12 {
        let items = (0..8).map(|index| one.request(index, 0, None, ReadMode::Sealed)).collect();
        let taken: Vec<_> = instance.store.fetch(items).take(n_events).collect().await;
        assert_eq!(taken.len(), n_events);
    }
    for index in 0..8 {
        one.assert_holds(index, 50_000).await;
    }
}

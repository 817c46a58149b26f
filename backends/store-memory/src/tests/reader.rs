#![expect(clippy::disallowed_methods, reason = "tests spawn what they wait for")]

use crate::sample::{SOON, collect, config, kind, pattern, rounds, seed, spec, until};
use crate::store::fixture::{Of, store, store_with};
use futures::StreamExt;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use std::time::Duration;
use store_api::clock::ManualClock;
use store_api::{AttemptId, PartitionStore, ReadMode, ReleaseScope, Retention, StoreErrorKind};

const WAIT: Duration = Duration::from_secs(3600);

async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work).await.expect("it hangs")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wake_up_is_lost_however_appends_and_reads_fall_together() {
    let mut random = rand::rngs::StdRng::seed_from_u64(seed());
    let store = store(config(1 << 24)).await;
    for round in 0..rounds(1000) as u64 {
        let one = Of::opened(&store, round, spec(Retention::UntilAcknowledged, 1)).await;
        let mut readers = Vec::new();
        for _ in 0..random.random_range(1..4) {
            let stream = one.tail(0, 0, WAIT).await.unwrap();
            readers.push(tokio::spawn(collect(stream)));
        }
        let n_chunks = random.random_range(0..6);
        for at in 0..n_chunks {
            one.write(0, at * 10, 10).await.unwrap();
            if random.random_bool(0.3) {
                tokio::task::yield_now().await;
            }
        }
        one.seal().await;
        for reader in readers {
            let bytes = soon(reader).await.unwrap().unwrap();
            assert_eq!(bytes, pattern(0, 0, n_chunks * 10), "round {round}");
        }
        store.release(ReleaseScope::Attempt(one.key.clone())).await.unwrap();
    }
    assert_eq!(store.reserved_bytes(), 0);
}

#[tokio::test]
async fn a_wait_runs_from_the_last_byte_and_bytes_beat_the_clock() {
    let clock = Arc::new(ManualClock::new(0));
    let store = store_with(config(1 << 20), clock.clone()).await;
    let one = Of::opened(&store, 0, spec(Retention::UntilAcknowledged, 1)).await;
    let mut stream = one.tail(0, 0, Duration::from_secs(10)).await.unwrap();
    for at in 0..5 {
        let next = tokio::spawn(async move {
            let next = stream.chunks.next().await;
            (next, stream)
        });
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(9));
        one.write(0, at * 10, 10).await.unwrap();
        let (bytes, rest) = soon(next).await.unwrap();
        assert_eq!(bytes.unwrap().unwrap(), pattern(0, at * 10, 10));
        stream = rest;
    }
    let end = tokio::spawn(async move { stream.chunks.next().await.is_none() });
    tokio::task::yield_now().await;
    // A wake-up without a byte does not start the wait anew.
    clock.advance(Duration::from_secs(6));
    one.prepare().await.unwrap();
    tokio::task::yield_now().await;
    clock.advance(Duration::from_secs(5));
    assert!(soon(end).await.unwrap(), "the stream ends cleanly");
}

#[tokio::test]
async fn every_end_of_an_attempt_wakes_its_readers_with_the_reason() {
    let by = AttemptId::new(1, 0);
    for way in 0..4 {
        let store = store(config(1 << 20)).await;
        let one = Of::opened(&store, 0, spec(Retention::UntilAcknowledged, 3)).await;
        let reader = tokio::spawn(collect(one.tail(2, 0, WAIT).await.unwrap()));
        tokio::task::yield_now().await;
        let expected = match way {
            0 => {
                store.abort(&one.key).await.unwrap();
                StoreErrorKind::Aborted
            }
            1 => {
                store.release(ReleaseScope::Dataset(one.key.partition.dataset.clone())).await.unwrap();
                StoreErrorKind::Released
            }
            2 => {
                store.release(ReleaseScope::GenerationsBelow { partition: one.key.partition.clone(), by }).await.unwrap();
                StoreErrorKind::Fenced { by }
            }
            _ => {
                store.close().await.unwrap();
                StoreErrorKind::Closing
            }
        };
        assert_eq!(kind(soon(reader).await.unwrap()), expected);
    }
}

#[tokio::test]
async fn a_reader_that_is_overtaken_is_told_the_floor_and_gets_no_later_bytes() {
    let store = store(config(1 << 20)).await;
    let one = Of::opened(&store, 0, spec(Retention::UntilAcknowledged, 1)).await;
    for at in 0..4 {
        one.write(0, at * 100, 100).await.unwrap();
    }
    let mut stream = one.tail(0, 0, WAIT).await.unwrap();
    assert_eq!(stream.chunks.next().await.unwrap().unwrap(), pattern(0, 0, 100));
    one.acknowledge("g", &[(0, 250)]).await.unwrap();
    let overtaken = stream.chunks.next().await.unwrap();
    assert!(matches!(kind(overtaken), StoreErrorKind::BelowFloor { floor } if floor.get() == 250));
    assert!(stream.chunks.next().await.is_none(), "an error ends the stream");
    assert_eq!(one.bytes_from(0, 250).await.unwrap(), pattern(0, 250, 150));
}

#[tokio::test]
async fn an_end_inside_a_chunk_is_kept_to_the_byte() {
    let store = store(config(1 << 20)).await;
    let one = Of::opened(&store, 0, spec(Retention::UntilAcknowledged, 1)).await;
    one.write(0, 0, 100).await.unwrap();
    let tail = one.request(0, 30, Some(130), ReadMode::Tail { wait: WAIT });
    let reader = tokio::spawn(collect(store.read(tail).await.unwrap()));
    one.write(0, 100, 100).await.unwrap();
    assert_eq!(soon(reader).await.unwrap().unwrap(), pattern(0, 30, 100), "a bounded read of an open attempt ends at its bound");
    one.seal().await;
    let sealed = store.read(one.request(0, 199, Some(500), ReadMode::Sealed)).await.unwrap();
    assert_eq!(sealed.end.map(store_api::Offset::get), Some(200));
    assert_eq!(collect(sealed).await.unwrap(), pattern(0, 199, 1));
    let empty = store.read(one.request(0, 200, None, ReadMode::Sealed)).await.unwrap();
    assert!(collect(empty).await.unwrap().is_empty());
}

#[tokio::test]
async fn dropped_streams_leave_nothing_behind() {
    let store = store(config(1 << 20)).await;
    let one = Of::opened(&store, 0, spec(Retention::UntilAcknowledged, 1)).await;
    let mut readers = Vec::new();
    for _ in 0..2000 {
        readers.push(tokio::spawn(collect(one.tail(0, 0, WAIT).await.unwrap())));
    }
    tokio::task::yield_now().await;
    let kept = tokio::spawn(collect(one.tail(0, 0, WAIT).await.unwrap()));
    for reader in readers {
        reader.abort();
        let _ = reader.await;
    }
    one.write(0, 0, 10).await.unwrap();
    one.seal().await;
    assert_eq!(soon(kept).await.unwrap().unwrap(), pattern(0, 0, 10), "those that stay are served as if the others had never come");
    store.release(ReleaseScope::Attempt(one.key.clone())).await.unwrap();
    assert_eq!(store.reserved_bytes(), 0);
}

#[tokio::test]
async fn bytes_on_their_way_stay_charged_until_the_reader_lets_go() {
    let store = store(config(1000)).await;
    let one = Of::opened(&store, 0, spec(Retention::UntilAcknowledged, 1)).await;
    one.write(0, 0, 800).await.unwrap();
    let mut stream = one.tail(0, 0, WAIT).await.unwrap();
    let slow = stream.chunks.next().await.unwrap().unwrap();
    store.release(ReleaseScope::Attempt(one.key.clone())).await.unwrap();
    assert_eq!((one.held().total(), store.reserved_bytes()), (0, 800));
    drop(slow);
    until("the charge goes", || store.reserved_bytes() == 0).await;
}

#![expect(clippy::disallowed_methods, reason = "tests spawn what they wait for")]

use super::*;
use crate::config::SpillConfig;
use crate::sample::{SOON, attempt_key, collect, config, group, index, job, kind, pattern, rounds, seed, small_spill, spec, until};
use crate::store::fixture::{Of, store, store_with};
use bytes::Bytes;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::AtomicUsize;
use store_api::clock::ManualClock;
use store_api::{AttemptId, AttemptState, DatasetKind, Digest, LossCause, Piece, ReadMode, SubpartitionIndex, SubpartitionTable};

const SHORT: Duration = Duration::from_millis(20);

fn spilling(memory_bytes: u64, root: &std::path::Path) -> Config {
    Config { spill: Some(small_spill(root)), ..config(memory_bytes) }
}

#[tokio::test]
async fn a_class_that_cannot_be_kept_is_refused() {
    let store = store(config(1000)).await;
    let of =
        |kind| Of { store: store.clone(), key: attempt_key(0), spec: Arc::new(DatasetSpec { kind, ..spec(Retention::BestEffort, 1) }) };
    for dataset_kind in [DatasetKind::Blocking, DatasetKind::Durable, DatasetKind::Pipelined(Retention::SinceCheckpoint)] {
        assert!(matches!(kind(of(dataset_kind).open().await), StoreErrorKind::Unsupported { .. }));
    }
    assert!(!store.capabilities().retentions.contains(&Retention::SinceCheckpoint));
}

#[tokio::test]
async fn repeats_are_charged_once_and_refusals_not_at_all() {
    let store = store(config(10_000)).await;
    let one = Of::opened(&store, 0, spec(Retention::UntilAcknowledged, 2)).await;
    for _ in 0..3 {
        for start in [0, 100, 200] {
            one.write(0, start, 100).await.unwrap();
        }
    }
    one.write(0, 250, 100).await.unwrap();
    let refusals = [
        kind(one.write(0, 351, 10).await),
        kind(one.put(0, Some(0), Bytes::from(vec![9; 50]), SOON).await),
        kind(one.write(2, 0, 10).await),
    ];
    assert_eq!(refusals[0], StoreErrorKind::OffsetMismatch { expected: Offset::new(350) });
    assert_eq!(refusals[1], StoreErrorKind::ContentMismatch { expected: Offset::new(350) });
    assert_eq!(refusals[2], StoreErrorKind::NoSuchSubpartition { count: 2 });
    assert_eq!((one.held().memory, store.reserved_bytes()), (350, 350));
    assert_eq!(one.bytes_from(0, 0).await.unwrap(), pattern(0, 0, 350));
    let report = store.release(ReleaseScope::Job { job: job(), incarnation: JobIncarnation::new(1) }).await.unwrap();
    assert_eq!(report, ReleaseReport { n_attempts: 1, bytes: 350 });
    assert_eq!((one.held().total(), store.reserved_bytes()), (0, 0));
}

#[tokio::test]
async fn an_append_whose_permit_is_too_small_is_charged_all_the_same() {
    let store = store(config(100)).await;
    let one = Of::opened(&store, 0, spec(Retention::UntilAcknowledged, 1)).await;
    one.put_with(0, None, pattern(0, 0, 80), Permit::none()).await.unwrap();
    assert_eq!(store.reserved_bytes(), 80);
    let refused = one.put_with(0, None, pattern(0, 80, 30), Permit::none()).await;
    assert!(matches!(kind(refused), StoreErrorKind::Overloaded { .. }));
    assert_eq!((store.reserved_bytes(), one.held().memory), (80, 80));
}

#[tokio::test]
async fn the_stated_table_is_checked_from_the_start_of_each_subpartition() {
    let store = store(config(10_000)).await;
    let request = OpenRequest {
        attempt: attempt_key(0),
        spec: Arc::new(spec(Retention::UntilAcknowledged, 3)),
        starts: vec![(index(1), Offset::new(500))],
    };
    store.open(request).await.unwrap();
    let one = Of { store: store.clone(), key: attempt_key(0), spec: Arc::new(spec(Retention::UntilAcknowledged, 3)) };
    one.write(1, 500, 100).await.unwrap();
    one.acknowledge("g", &[(1, 550)]).await.unwrap();
    let table = |length| SubpartitionTable::new(3, [(index(1), Digest { length, ..Digest::of(&pattern(1, 500, 100)) })]).unwrap();
    let prepare = |table| PrepareRequest { attempt: attempt_key(0), expected: Some(Arc::new(table)) };
    let wrong = kind(store.prepare(prepare(table(600))).await);
    assert!(matches!(wrong, StoreErrorKind::DigestMismatch { subpartition: 1, held, .. } if held.length == 100));
    one.write(1, 600, 0).await.unwrap();
    let manifest = store.prepare(prepare(table(100))).await.unwrap();
    assert_eq!(store.prepare(prepare(table(100))).await.unwrap(), manifest);
    assert!(matches!(kind(store.prepare(prepare(table(99))).await), StoreErrorKind::DigestMismatch { .. }), "also when it is prepared");
    assert_eq!(kind(one.write(1, 600, 1).await), StoreErrorKind::AlreadySealed);
    assert_eq!(kind(store.manifest(&one.key).await), StoreErrorKind::NotSealed);
    store.publish(&one.key).await.unwrap();
    assert_eq!(store.locate(&one.key.partition, &one.spec, 0).await.unwrap(), Some(manifest));
    assert_eq!(store.locate(&one.key.partition, &one.spec, 1).await.unwrap(), None);
    assert_eq!(kind(store.abort(&one.key).await), StoreErrorKind::AlreadySealed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_append_that_was_acknowledged_is_inside_the_seal_and_no_other() {
    let mut random = rand::rngs::StdRng::seed_from_u64(seed());
    let store = store(config(1 << 26)).await;
    for round in 0..rounds(150) as u64 {
        let one = Of::opened(&store, round, spec(Retention::UntilAcknowledged, 4)).await;
        let writers: Vec<_> = (0..8_u8)
            .map(|writer| {
                let one = one.clone();
                tokio::spawn(async move {
                    let mut n_acknowledged = 0_u64;
                    loop {
                        match one.put(u32::from(writer % 4), None, Bytes::from(vec![writer; 64]), SOON).await {
                            Ok(_) => n_acknowledged += 1,
                            Err(error) if *error.kind() == StoreErrorKind::AlreadySealed => return n_acknowledged,
                            Err(error) => panic!("{error:?}"),
                        }
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_micros(random.random_range(0..2000))).await;
        let manifest = one.seal().await;
        let mut n_acknowledged = 0;
        for writer in writers {
            n_acknowledged += tokio::time::timeout(SOON, writer).await.expect("a writer hangs").unwrap();
        }
        assert_eq!(manifest.table.total_bytes(), n_acknowledged * 64, "round {round}");
        for at in 0..4 {
            let bytes = one.bytes_from(at, 0).await.unwrap();
            assert_eq!(manifest.table.digest(index(at)), Some(Digest::of(&bytes)));
        }
        store.release(ReleaseScope::Attempt(one.key.clone())).await.unwrap();
    }
    assert_eq!(store.reserved_bytes(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_spiller_readers_and_releases_that_race_leave_no_charge() {
    let mut random = rand::rngs::StdRng::seed_from_u64(seed());
    let root = tempfile::tempdir().unwrap();
    let store = store(spilling(16_000, root.path())).await;
    for round in 0..rounds(150) as u64 {
        let retention = [Retention::SinceCheckpoint, Retention::SinceCheckpoint, Retention::BestEffort][random.random_range(0..3)];
        let one = Of::opened(&store, round, spec(retention, 2)).await;
        let writers: Vec<_> = (0..2)
            .map(|at| {
                let one = one.clone();
                tokio::spawn(async move {
                    let mut start = 0;
                    while one.write(at, start, 700).await.is_ok() {
                        start += 700;
                        let _ = one.checkpoint(start, &[(at, start / 3)]).await;
                    }
                })
            })
            .collect();
        let reader = {
            let one = one.clone();
            tokio::spawn(async move {
                while let Ok(bytes) = one.bytes_from(0, 0).await {
                    assert_eq!(bytes, pattern(0, 0, bytes.len() as u64));
                }
            })
        };
        tokio::time::sleep(Duration::from_micros(random.random_range(0..8000))).await;
        store.release(ReleaseScope::Partition(one.key.partition.clone())).await.unwrap();
        for task in writers {
            tokio::time::timeout(SOON, task).await.expect("a writer hangs").unwrap();
        }
        let _ = tokio::time::timeout(SOON, reader).await.expect("a reader hangs");
        assert_eq!(one.held(), HeldBytes::default(), "round {round}");
    }
    until("the last spilled batch lets go", || store.reserved_bytes() == 0).await;
    assert_eq!(store.n_waiting(), 0);
    let n_files = || std::fs::read_dir(root.path().join("spill")).unwrap().count();
    until("only the lock file stays", || n_files() == 1).await;
}

#[tokio::test]
async fn a_full_buffer_pushes_back_until_all_groups_have_acknowledged() {
    let store = store(config(1000)).await;
    let two = DatasetSpec { groups: vec![group("g"), group("h")], ..spec(Retention::UntilAcknowledged, 1) };
    let one = Of::opened(&store, 0, two).await;
    for start in [0, 400] {
        one.write(0, start, 400).await.unwrap();
    }
    let overloaded = kind(store.reserve(&one.key, 400, SHORT).await);
    assert!(matches!(overloaded, StoreErrorKind::Overloaded { retry_after } if retry_after > Duration::ZERO));
    assert_eq!(kind(store.reserve(&one.key, 1001, SOON).await), StoreErrorKind::TooLarge { requested: 1001, limit: 1000 });
    assert_eq!(store.n_waiting(), 0, "a caller that gave up leaves no waiter");
    let writer = {
        let one = one.clone();
        tokio::spawn(async move { one.write(0, 800, 400).await })
    };
    until("the writer waits", || store.n_waiting() == 1).await;
    assert_eq!(one.acknowledge("g", &[(0, 800)]).await.unwrap(), 0);
    assert!(!writer.is_finished());
    assert_eq!(one.acknowledge("h", &[(0, 399)]).await.unwrap(), 0, "a chunk goes as a whole");
    assert_eq!(one.acknowledge("h", &[(0, 401)]).await.unwrap(), 400);
    tokio::time::timeout(SOON, writer).await.expect("the writer hangs").unwrap().unwrap();
    assert!(matches!(kind(one.bytes_from(0, 400).await), StoreErrorKind::BelowFloor { floor } if floor.get() == 401));
    assert_eq!((one.held().memory, store.reserved_bytes()), (800, 800));
}

#[tokio::test]
async fn a_retention_that_cannot_be_kept_is_said_after_the_deadline_and_not_before() {
    let clock = Arc::new(ManualClock::new(0));
    let deadline = Duration::from_secs(60);
    let store = store_with(Config { retention_deadline: deadline, ..config(1000) }, clock.clone()).await;
    let one = Of::opened(&store, 0, spec(Retention::UntilAcknowledged, 1)).await;
    one.write(0, 0, 500).await.unwrap();
    one.write(0, 500, 500).await.unwrap();
    for _ in 0..5 {
        assert!(matches!(kind(store.reserve(&one.key, 10, Duration::ZERO).await), StoreErrorKind::Overloaded { .. }));
        clock.advance(Duration::from_secs(10));
    }
    one.acknowledge("g", &[(0, 100)]).await.unwrap();
    clock.advance(Duration::from_secs(50));
    let moved = kind(store.reserve(&one.key, 10, Duration::ZERO).await);
    assert!(matches!(moved, StoreErrorKind::Overloaded { .. }), "a floor that moved starts the time anew: {moved:?}");
    clock.advance(Duration::from_secs(61));
    assert_eq!(kind(store.reserve(&one.key, 10, Duration::ZERO).await), StoreErrorKind::RetentionExhausted);
    // A patient caller is told when the deadline comes, not when its patience ends.
    one.acknowledge("g", &[(0, 200)]).await.unwrap();
    let patient = {
        let one = one.clone();
        tokio::spawn(async move { kind(one.store.reserve(&one.key, 10, Duration::from_secs(3600)).await) })
    };
    until("it waits", || store.n_waiting() == 1).await;
    tokio::task::yield_now().await;
    clock.advance(Duration::from_secs(61));
    let told = tokio::time::timeout(SOON, patient).await.expect("it hangs").unwrap();
    assert_eq!(told, StoreErrorKind::RetentionExhausted);
}

#[tokio::test]
async fn a_job_that_holds_nothing_is_not_blamed_for_memory_that_others_fill() {
    let clock = Arc::new(ManualClock::new(0));
    let store = store_with(config(1000), clock.clone()).await;
    let one = Of::opened(&store, 0, spec(Retention::UntilAcknowledged, 1)).await;
    let mut key = attempt_key(0);
    key.partition.dataset.job = JobId::new("other").unwrap();
    store.open(OpenRequest { attempt: key.clone(), spec: one.spec.clone(), starts: Vec::new() }).await.unwrap();
    one.write(0, 0, 1000).await.unwrap();
    assert!(store.reserve(&key, 10, Duration::ZERO).await.is_err());
    clock.advance(Duration::from_hours(1));
    assert!(matches!(kind(store.reserve(&key, 10, Duration::ZERO).await), StoreErrorKind::Overloaded { .. }));
}

#[tokio::test]
async fn an_end_wakes_reservations_with_the_reason() {
    let store = store(config(1000)).await;
    for (round, ends) in ["abort", "release", "seal", "close"].into_iter().enumerate() {
        let one = Of::opened(&store, round as u64, spec(Retention::UntilAcknowledged, 1)).await;
        one.write(0, 0, 1000).await.unwrap();
        let waiter = {
            let one = one.clone();
            tokio::spawn(async move { kind(one.store.reserve(&one.key, 10, Duration::from_hours(1)).await) })
        };
        until("it waits", || store.n_waiting() == 1).await;
        let expected = match ends {
            "abort" => {
                store.abort(&one.key).await.unwrap();
                StoreErrorKind::Aborted
            }
            "release" => {
                store.release(ReleaseScope::Attempt(one.key.clone())).await.unwrap();
                StoreErrorKind::Released
            }
            "seal" => {
                one.seal().await;
                StoreErrorKind::AlreadySealed
            }
            _ => {
                store.close().await.unwrap();
                StoreErrorKind::Closing
            }
        };
        assert_eq!(tokio::time::timeout(SOON, waiter).await.expect("it hangs").unwrap(), expected);
        assert_eq!(store.n_waiting(), 0);
        if ends != "close" {
            store.release(ReleaseScope::Attempt(one.key.clone())).await.unwrap();
        }
    }
}

#[tokio::test]
async fn waiters_that_leave_early_leave_nothing_and_the_others_are_served() {
    let store = store(config(1000)).await;
    let one = Of::opened(&store, 0, spec(Retention::UntilAcknowledged, 1)).await;
    let all = store.reserve(&one.key, 1000, SOON).await.unwrap();
    let waiters: Vec<_> = (0..1000)
        .map(|_| {
            let one = one.clone();
            tokio::spawn(async move { drop(one.store.reserve(&one.key, 500, Duration::from_hours(1)).await) })
        })
        .collect();
    until("all wait", || store.n_waiting() == 1000).await;
    for waiter in &waiters[1..] {
        waiter.abort();
    }
    until("they have left", || store.n_waiting() == 1).await;
    drop(all);
    until("the one that stays is served", || waiters[0].is_finished()).await;
    assert_eq!(store.reserved_bytes(), 0);
}

#[tokio::test]
async fn best_effort_makes_room_from_what_was_read_for_a_writer_that_already_waits() {
    let store = store(config(1000)).await;
    let one = Of::opened(&store, 0, spec(Retention::BestEffort, 2)).await;
    for start in [0, 250, 500, 750] {
        one.write(0, start, 250).await.unwrap();
    }
    assert!(matches!(kind(one.put(1, None, pattern(1, 0, 250), SHORT).await), StoreErrorKind::Overloaded { .. }), "unread bytes push back");
    let writer = {
        let one = one.clone();
        tokio::spawn(async move { one.write(1, 0, 250).await })
    };
    until("the writer waits", || store.n_waiting() == 1).await;
    assert_eq!(one.bytes_from(0, 0).await.unwrap(), pattern(0, 0, 1000));
    tokio::time::timeout(SOON, writer).await.expect("the writer hangs").unwrap().unwrap();
    let StoreErrorKind::BelowFloor { floor } = kind(one.bytes_from(0, 0).await) else { panic!("something was dropped") };
    assert!(floor.get() == 250 || floor.get() == 500, "no more than what was missing and some slack: {floor}");
    assert_eq!(one.bytes_from(0, floor.get()).await.unwrap(), pattern(0, floor.get(), 1000 - floor.get()));
    assert_eq!(one.held().memory, store.reserved_bytes());
}

#[tokio::test]
async fn best_effort_waits_for_every_group_and_an_acknowledgement_counts_as_read() {
    let store = store(config(1000)).await;
    let two = DatasetSpec { groups: vec![group("g"), group("h")], ..spec(Retention::BestEffort, 1) };
    let one = Of::opened(&store, 0, two).await;
    one.write(0, 0, 600).await.unwrap();
    one.bytes_from(0, 0).await.unwrap();
    assert!(store.reserve(&one.key, 600, SHORT).await.is_err(), "one of two groups has read");
    one.acknowledge("g", &[(0, 600)]).await.unwrap();
    assert!(store.reserve(&one.key, 600, SHORT).await.is_err());
    one.acknowledge("h", &[(0, 600)]).await.unwrap();
    assert_eq!(one.bytes_from(0, 0).await.unwrap().len(), 600, "what is acknowledged is kept while there is room");
    assert!(store.reserve(&one.key, 600, SHORT).await.is_ok());
}

#[tokio::test]
async fn caches_of_other_jobs_make_room_when_all_memory_is_full_and_not_before() {
    let store = store(Config { job_memory_bytes: 600, ..config(1000) }).await;
    let one = Of::opened(&store, 0, spec(Retention::BestEffort, 1)).await;
    one.write(0, 0, 600).await.unwrap();
    one.bytes_from(0, 0).await.unwrap();
    let mut other = one.clone();
    other.key.partition.dataset.job = JobId::new("other").unwrap();
    other.open().await.unwrap();
    other.write(0, 0, 400).await.unwrap();
    assert_eq!(one.held().memory, 600);
    other.write(0, 400, 100).await.unwrap();
    assert_eq!(one.held().memory, 0, "the one chunk of the cache went");
}

#[tokio::test]
async fn a_broadcast_is_stored_once_and_waits_for_every_consumer() {
    let store = store(config(10_000)).await;
    let one = Of::opened(&store, 0, DatasetSpec { is_broadcast: true, ..spec(Retention::UntilAcknowledged, 3) }).await;
    one.write(0, 0, 100).await.unwrap();
    assert_eq!(kind(one.write(1, 0, 100).await), StoreErrorKind::NoSuchSubpartition { count: 1 });
    one.acknowledge("g", &[(0, 100), (2, 100)]).await.unwrap();
    assert_eq!(one.held().memory, 100);
    assert_eq!(kind(one.acknowledge("g", &[(3, 0)]).await), StoreErrorKind::NoSuchSubpartition { count: 3 });
    assert_eq!(one.acknowledge("g", &[(1, 100)]).await.unwrap(), 100);
    assert_eq!(one.held().memory, 0);
}

#[tokio::test]
async fn what_was_sent_is_known_per_subpartition() {
    let store = store(config(10_000)).await;
    let one = Of::opened(&store, 0, spec(Retention::UntilAcknowledged, 3)).await;
    one.write(2, 0, 300).await.unwrap();
    let bounded = one.request(2, 10, Some(120), ReadMode::Tail { wait: Duration::ZERO });
    collect(store.read(bounded).await.unwrap()).await.unwrap();
    let stat = store.stat(&one.key).await.unwrap();
    assert_eq!((stat.state, stat.total_bytes), (AttemptState::Open, 300));
    assert_eq!(stat.sent, [(SubpartitionIndex::new(2), Offset::new(120))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_at_every_position_see_each_byte_once_while_the_border_moves() {
    let root = tempfile::tempdir().unwrap();
    let store = store(spilling(10_000, root.path())).await;
    let total = 120_000 * rounds(1) as u64;
    let one = Of::opened(&store, 0, spec(Retention::SinceCheckpoint, 1)).await;
    let n_reads = Arc::new(AtomicUsize::new(0));
    let readers: Vec<_> = (0..6)
        .map(|reader| {
            let (one, n_reads) = (one.clone(), n_reads.clone());
            tokio::spawn(async move {
                if reader % 2 == 0 {
                    return collect(one.tail(0, 0, SOON).await.unwrap()).await.unwrap();
                }
                loop {
                    let bytes = one.bytes_from(0, reader * 100).await;
                    n_reads.fetch_add(1, Ordering::Relaxed);
                    match bytes {
                        Ok(bytes) => assert_eq!(bytes, pattern(0, reader * 100, bytes.len() as u64)),
                        Err(error) => assert!(matches!(error.kind(), StoreErrorKind::BeyondEnd { .. }), "{error:?}"),
                    }
                    if store_is_sealed(&one).await {
                        return one.bytes_from(0, 0).await.unwrap();
                    }
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let mut start = 0;
    let mut length = 1;
    while start < total {
        length = (length * 7) % 997 + 1;
        one.write(0, start, length).await.unwrap();
        // A repeat that lies on disk, in memory or over the border.
        let back = (start * 31) % (start + 1);
        one.write(0, back, length.min(start + length - back)).await.unwrap();
        start += length;
    }
    one.seal().await;
    for reader in readers {
        assert_eq!(tokio::time::timeout(SOON, reader).await.expect("a reader hangs").unwrap(), pattern(0, 0, start));
    }
    let held = one.held();
    assert!(held.disk > 0 && held.total() == start, "{held:?}");
    assert!(n_reads.load(Ordering::Relaxed) > 0);
    let other = one.put(0, Some(0), Bytes::from_static(b"other"), SOON).await;
    assert_eq!(kind(other), StoreErrorKind::AlreadySealed);
    one.checkpoint(1, &[(0, start)]).await.unwrap();
    assert_eq!(one.held(), HeldBytes::default());
    until("everything is given back", || store.reserved_bytes() == 0).await;
}

async fn store_is_sealed(one: &Of) -> bool {
    one.store.stat(&one.key).await.unwrap().state == AttemptState::Sealed
}

#[tokio::test]
async fn other_bytes_for_what_is_on_disk_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let store = store(spilling(4000, root.path())).await;
    let one = Of::opened(&store, 0, spec(Retention::SinceCheckpoint, 1)).await;
    for at in 0..10 {
        one.write(0, at * 1000, 1000).await.unwrap();
    }
    until("something is on disk", || one.held().disk >= 2000).await;
    one.write(0, 0, 1500).await.unwrap();
    let mut other = pattern(0, 0, 1500).to_vec();
    other[1499] ^= 1;
    assert_eq!(kind(one.put(0, Some(0), other.into(), SOON).await), StoreErrorKind::ContentMismatch { expected: Offset::new(10_000) });
    assert_eq!(one.held().total(), 10_000);
}

#[tokio::test]
async fn acknowledgements_do_not_move_the_floor_since_a_checkpoint() {
    let root = tempfile::tempdir().unwrap();
    let store = store(spilling(10_000, root.path())).await;
    let one = Of::opened(&store, 0, spec(Retention::SinceCheckpoint, 1)).await;
    one.write(0, 0, 100).await.unwrap();
    one.write(0, 100, 100).await.unwrap();
    assert_eq!(one.acknowledge("g", &[(0, 200)]).await.unwrap(), 0);
    assert!(matches!(kind(one.checkpoint(4, &[(0, 201)]).await), StoreErrorKind::BeyondEnd { .. }));
    assert_eq!(one.checkpoint(4, &[(0, 100)]).await.unwrap(), 100);
    assert_eq!(one.checkpoint(3, &[(0, 200)]).await.unwrap(), 0, "an older checkpoint changes nothing");
    assert_eq!(one.bytes_from(0, 100).await.unwrap(), pattern(0, 100, 100));
    let until_acknowledged = Of::opened(&store, 1, spec(Retention::UntilAcknowledged, 1)).await;
    assert!(matches!(kind(until_acknowledged.checkpoint(1, &[(0, 0)]).await), StoreErrorKind::Unsupported { .. }));
}

#[tokio::test]
async fn a_spill_that_fails_keeps_bytes_in_memory_and_works_again_when_the_disk_is_healed() {
    let root = tempfile::tempdir().unwrap();
    let store = store(spilling(4000, root.path())).await;
    std::fs::rename(root.path().join("spill"), root.path().join("away")).unwrap();
    let one = Of::opened(&store, 0, spec(Retention::SinceCheckpoint, 1)).await;
    for at in 0..4 {
        one.write(0, at * 1000, 1000).await.unwrap();
    }
    let refused = kind(store.reserve(&one.key, 1000, Duration::from_millis(200)).await);
    assert!(matches!(refused, StoreErrorKind::Overloaded { .. }), "{refused:?}");
    assert_eq!(one.held(), HeldBytes { memory: 4000, disk: 0, object: 0 });
    assert_eq!(one.bytes_from(0, 0).await.unwrap(), pattern(0, 0, 4000));
    std::fs::rename(root.path().join("away"), root.path().join("spill")).unwrap();
    for at in 4..12 {
        one.write(0, at * 1000, 1000).await.unwrap();
    }
    assert!(one.held().disk > 0);
    assert_eq!(one.bytes_from(0, 0).await.unwrap(), pattern(0, 0, 12_000));
}

#[tokio::test]
async fn a_full_disk_pushes_back_and_then_says_that_the_retention_cannot_be_kept() {
    let root = tempfile::tempdir().unwrap();
    let full = SpillConfig { reserve_bytes: u64::MAX, ..small_spill(root.path()) };
    let deadline = Duration::from_millis(300);
    let store = store(Config { spill: Some(full), retention_deadline: deadline, ..config(1000) }).await;
    let one = Of::opened(&store, 0, spec(Retention::SinceCheckpoint, 1)).await;
    one.write(0, 0, 1000).await.unwrap();
    assert!(matches!(kind(store.reserve(&one.key, 10, SHORT).await), StoreErrorKind::Overloaded { .. }));
    assert_eq!(kind(store.reserve(&one.key, 10, SOON).await), StoreErrorKind::RetentionExhausted);
    assert_eq!(one.bytes_from(0, 0).await.unwrap(), pattern(0, 0, 1000), "nothing that was acknowledged is dropped");
    one.checkpoint(1, &[(0, 1000)]).await.unwrap();
    one.write(0, 1000, 500).await.unwrap();
}

#[tokio::test]
async fn damage_on_disk_is_said_and_the_rest_is_still_served() {
    let root = tempfile::tempdir().unwrap();
    let store = store(spilling(4000, root.path())).await;
    let one = Of::opened(&store, 0, spec(Retention::SinceCheckpoint, 2)).await;
    one.write(1, 0, 500).await.unwrap();
    for at in 0..10 {
        one.write(0, at * 1000, 1000).await.unwrap();
    }
    until("something is on disk", || one.held().disk >= 3000).await;
    one.seal().await;
    for entry in std::fs::read_dir(root.path().join("spill")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "spill") {
            let mut content = std::fs::read(&path).unwrap();
            content.iter_mut().skip(600).for_each(|byte| *byte ^= 0xff);
            std::fs::write(&path, content).unwrap();
        }
    }
    let lost = StoreErrorKind::Lost { cause: LossCause::Corruption };
    assert_eq!(kind(one.bytes_from(0, 0).await), lost);
    assert_eq!(store.stat(&one.key).await.unwrap().state, AttemptState::Lost);
    assert_eq!(kind(store.manifest(&one.key).await), lost);
    assert_eq!(one.bytes_from(1, 0).await.unwrap(), pattern(1, 0, 500), "another subpartition is served");
    assert_eq!(store.release(ReleaseScope::Attempt(one.key.clone())).await.unwrap().n_attempts, 1);
}

#[tokio::test]
async fn an_attempt_that_ended_never_comes_back() {
    let store = store(config(1000)).await;
    let one = Of::opened(&store, 0, spec(Retention::UntilAcknowledged, 1)).await;
    one.write(0, 0, 100).await.unwrap();
    let by = AttemptId::new(3, 0);
    store.release(ReleaseScope::GenerationsBelow { partition: one.key.partition.clone(), by }).await.unwrap();
    let fenced = StoreErrorKind::Fenced { by };
    assert_eq!(kind(one.open().await), fenced);
    assert_eq!(kind(one.write(0, 100, 1).await), fenced);
    assert_eq!(kind(one.prepare().await), fenced);
    assert_eq!(kind(store.publish(&one.key).await), fenced);
    assert_eq!(kind(one.acknowledge("g", &[]).await), fenced);
    assert_eq!(kind(one.bytes_from(0, 0).await), fenced);
    store.abort(&one.key).await.unwrap();
    assert_eq!(store.stat(&one.key).await.unwrap().state, AttemptState::Fenced);
    assert_eq!((one.held().total(), store.reserved_bytes()), (0, 0));
}

#[tokio::test]
async fn a_store_that_closes_gives_everything_back_and_takes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let tasks = TaskGroup::new();
    let environment = Environment {
        clock: store_api::SystemClock::shared(),
        tasks: tasks.clone(),
        node: NodeId::new("n").unwrap(),
        life: NodeLife::new(1),
    };
    let store = MemoryStore::open(spilling(4000, root.path()), environment).await.unwrap();
    let one = Of::opened(&store, 0, spec(Retention::SinceCheckpoint, 1)).await;
    for at in 0..10 {
        one.write(0, at * 1000, 1000).await.unwrap();
    }
    store.close().await.unwrap();
    store.close().await.unwrap();
    assert_eq!(kind(one.open().await), StoreErrorKind::Closing);
    assert_eq!(kind(one.write(0, 10_000, 1).await), StoreErrorKind::Closing);
    until("the room maker ends", || tasks.n_running() == 0).await;
    until("memory is given back", || store.reserved_bytes() == 0).await;
}

#[tokio::test]
async fn a_store_that_is_dropped_ends_its_background_task() {
    let tasks = TaskGroup::new();
    let environment = Environment {
        clock: store_api::SystemClock::shared(),
        tasks: tasks.clone(),
        node: NodeId::new("n").unwrap(),
        life: NodeLife::new(1),
    };
    let store = MemoryStore::open(config(100), environment).await.unwrap();
    assert_eq!(tasks.n_running(), 1);
    drop(store);
    until("the room maker ends", || tasks.n_running() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_writer_and_slow_groups_share_a_small_buffer_for_as_long_as_it_takes() {
    let random_seed = seed();
    let store = store(config(4000)).await;
    let total = 400_000 * rounds(1) as u64;
    let two = DatasetSpec { groups: vec![group("g"), group("h")], ..spec(Retention::UntilAcknowledged, 1) };
    let one = Of::opened(&store, 0, two).await;
    let readers: Vec<_> = ["g", "h"]
        .into_iter()
        .map(|name| {
            let one = one.clone();
            let mut random = rand::rngs::StdRng::seed_from_u64(random_seed ^ u64::from(name.as_bytes()[0]));
            tokio::spawn(async move {
                let (mut at, mut digest) = (0_u64, Digest::EMPTY);
                while at < total {
                    // A consumer that restarts goes back to what it acknowledged last.
                    let until = at + random.random_range(1..3000);
                    let request = one.request(0, at, Some(until), ReadMode::Tail { wait: Duration::from_millis(2) });
                    let bytes = collect(one.store.read(request).await.unwrap()).await.unwrap();
                    if random.random_bool(0.2) {
                        continue;
                    }
                    digest = digest.followed_by(Digest::of(&bytes)).unwrap();
                    at += bytes.len() as u64;
                    one.acknowledge(name, &[(0, at)]).await.unwrap();
                }
                digest
            })
        })
        .collect();
    let mut start = 0;
    while start < total {
        let length = (start % 1777 + 1).min(total - start);
        one.write(0, start, length).await.unwrap();
        start += length;
    }
    let manifest = one.seal().await;
    for reader in readers {
        let digest = tokio::time::timeout(SOON, reader).await.expect("a reader hangs").unwrap();
        assert_eq!(Some(digest), manifest.table.digest(index(0)));
    }
    assert_eq!((one.held().total(), store.reserved_bytes()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn appends_and_opens_that_race_with_a_close_leave_nothing() {
    for round in 0..rounds(100) as u64 {
        let store = store(config(1 << 20)).await;
        let one = Of::opened(&store, 0, spec(Retention::UntilAcknowledged, 2)).await;
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let one = one.clone();
                tokio::spawn(async move {
                    while one.put(writer % 2, None, Bytes::from_static(b"bytes"), SOON).await.is_ok() {}
                    let mut late = one.clone();
                    late.key = attempt_key(u64::from(writer) + 1);
                    kind(late.open().await)
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_micros(round * 13 % 500)).await;
        store.close().await.unwrap();
        for writer in writers {
            assert_eq!(tokio::time::timeout(SOON, writer).await.expect("a writer hangs").unwrap(), StoreErrorKind::Closing);
        }
        assert_eq!((one.held().total(), store.reserved_bytes()), (0, 0), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn attempts_that_open_beside_the_release_of_their_job_do_not_outlive_it() {
    for round in 0..rounds(100) as u64 {
        let store = store(config(1 << 20)).await;
        let openers: Vec<_> = (0..4)
            .map(|number| {
                let mut one = Of { store: store.clone(), key: attempt_key(number), spec: Arc::new(spec(Retention::BestEffort, 1)) };
                tokio::spawn(async move {
                    for partition in 0..1000 {
                        one.key = attempt_key(partition * 10 + number);
                        if one.open().await.is_err() || one.put(0, None, Bytes::from_static(b"x"), SOON).await.is_err() {
                            return;
                        }
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_micros(round * 17 % 700)).await;
        let scope = ReleaseScope::Job { job: job(), incarnation: JobIncarnation::new(1) };
        store.release(scope.clone()).await.unwrap();
        for opener in openers {
            tokio::time::timeout(SOON, opener).await.expect("an opener hangs").unwrap();
        }
        assert_eq!((store.held(&job(), JobIncarnation::new(1)).total(), store.reserved_bytes()), (0, 0), "round {round}");
        assert_eq!(store.release(scope).await.unwrap(), ReleaseReport::default());
        assert!(store.core.accounts.all().is_empty(), "no account outlives its job");
    }
}

#[tokio::test]
async fn a_large_reservation_is_not_starved_by_small_ones() {
    let store = store(config(1000)).await;
    let one = Of::opened(&store, 0, spec(Retention::UntilAcknowledged, 1)).await;
    let mut small: Vec<_> = Vec::new();
    for _ in 0..10 {
        small.push(store.reserve(&one.key, 100, SOON).await.unwrap());
    }
    let large = {
        let one = one.clone();
        tokio::spawn(async move { one.store.reserve(&one.key, 900, SOON).await })
    };
    until("it waits", || store.n_waiting() == 1).await;
    for _ in 0..9 {
        small.pop();
        assert!(store.reserve(&one.key, 100, Duration::ZERO).await.is_err(), "what comes back is kept for the one in front");
    }
    assert_eq!(tokio::time::timeout(SOON, large).await.expect("it hangs").unwrap().unwrap().bytes(), 900);
}

#[tokio::test]
async fn an_abandoned_subpartition_is_spilled_and_does_not_stop_the_others() {
    let root = tempfile::tempdir().unwrap();
    let store = store(spilling(8000, root.path())).await;
    let one = Of::opened(&store, 0, spec(Retention::SinceCheckpoint, 4)).await;
    for round in 0..20 {
        for at in 0..4 {
            one.write(at, round * 1000, 1000).await.unwrap();
        }
        let need: Vec<_> = (1..4).map(|at| (at, (round + 1) * 1000)).collect();
        one.checkpoint(round, &need).await.unwrap();
    }
    assert_eq!(one.held().total(), 20_000, "only what nobody read is left");
    assert_eq!(one.bytes_from(0, 0).await.unwrap(), pattern(0, 0, 20_000));
    one.checkpoint(20, &[(0, 20_000)]).await.unwrap();
    assert_eq!(one.held().total(), 0, "its reader is declared gone");
}

#[tokio::test]
async fn pieces_before_a_refused_one_stay_and_the_rest_of_the_permit_goes_back() {
    let store = store(config(1000)).await;
    let one = Of::opened(&store, 0, spec(Retention::UntilAcknowledged, 2)).await;
    let piece = |at, start: u64, length| Piece {
        subpartition: index(at),
        start: Some(Offset::new(start)),
        chunk: store_api::Chunk::new(pattern(at, start, length)),
    };
    let permit = store.reserve(&one.key, 500, SOON).await.unwrap();
    let pieces = vec![piece(0, 0, 100), piece(1, 0, 50), piece(0, 101, 100), piece(1, 50, 50)];
    let refused = store.append(AppendRequest { attempt: one.key.clone(), pieces, permit }).await;
    assert_eq!(kind(refused), StoreErrorKind::OffsetMismatch { expected: Offset::new(100) });
    let tails = store.tails(&one.key).await.unwrap().tails;
    assert_eq!(tails, [(index(0), Offset::new(100)), (index(1), Offset::new(50))]);
    assert_eq!((store.reserved_bytes(), one.held().memory), (150, 150));
    let late =
        store.append(AppendRequest { attempt: one.key.clone(), pieces: vec![piece(0, 100, 1), piece(9, 0, 1)], permit: Permit::none() });
    assert_eq!(kind(late.await), StoreErrorKind::NoSuchSubpartition { count: 2 });
    assert_eq!(store.tails(&one.key).await.unwrap().tails[0], (index(0), Offset::new(101)));
}

#[tokio::test]
async fn the_newest_sealed_attempt_is_found_when_the_engine_decides() {
    let store = store(config(1000)).await;
    let engine = Arc::new(DatasetSpec { arbitration: store_api::Arbitration::Engine, ..spec(Retention::BestEffort, 1) });
    let of = |generation, attempt| {
        let key = attempt_key(0).partition.attempt(AttemptId::new(generation, attempt));
        Of { store: store.clone(), key, spec: engine.clone() }
    };
    for (generation, attempt) in [(1, 0), (1, 1), (2, 0)] {
        of(generation, attempt).open().await.unwrap();
    }
    of(1, 0).seal().await;
    let second = of(1, 1).seal().await;
    let found = store.locate(&second.attempt.partition, &engine, 0).await.unwrap();
    assert_eq!(found, Some(second), "an open attempt of a higher generation is not sealed content");
    assert_eq!(store.locate(&attempt_key(0).partition, &engine, 2).await.unwrap(), None);
    assert!(of(1, 0).bytes_from(0, 0).await.unwrap().is_empty(), "each is readable by its name");
}

#[tokio::test]
async fn best_effort_broadcast_is_kept_until_every_consumer_has_read_it() {
    let store = store(config(1000)).await;
    let one = Of::opened(&store, 0, DatasetSpec { is_broadcast: true, ..spec(Retention::BestEffort, 3) }).await;
    one.write(0, 0, 600).await.unwrap();
    for n_read in 1..=3 {
        assert!(store.reserve(&one.key, 600, Duration::ZERO).await.is_err(), "{n_read}");
        assert_eq!(one.bytes_from(0, 0).await.unwrap().len(), 600);
    }
    assert!(store.reserve(&one.key, 600, Duration::ZERO).await.is_ok());
}

//! The disk's own faults: full, away, empty in its place, torn; and ends that race with writing.

use super::fixture::*;
use super::load::copy;
use super::memory::SmallDisk;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use store_api::*;
use store_file::DirectoryState;

#[tokio::test]
async fn one_directory_that_is_full_is_passed_over_and_used_again_once_it_has_room() {
    let (Some(large), Some(small)) = (SmallDisk::mount("8m"), SmallDisk::mount("4m")) else { return };
    let mut fixture = Fixture::new();
    // As long as it has most room, the large one is taken.
    let first = large.path().join("data");
    fixture.config.data_dirs = vec![first.clone(), small.path().join("data")];
    let store = fixture.open();
    let in_first = || std::fs::read_dir(first.join("parts")).unwrap().count();
    for number in 0..4 {
        sealed(&store, &key(number, 0, 0), 2, 150_000).await;
    }
    assert_eq!(in_first(), 4);
    // It is met full in the middle of a write.
    let filler = large.path().join("filler");
    let _ = std::fs::write(&filler, vec![0; 8 << 20]);
    for number in 4..8 {
        sealed(&store, &key(number, 0, 0), 2, 150_000).await;
    }
    let state = |at: usize| store.directories()[at].state.clone();
    assert_eq!((in_first(), state(0), state(1)), (4, DirectoryState::Full, DirectoryState::Usable), "full is not broken");
    for number in 0..8 {
        assert_eq!(read(&store, &key(number, 0, 0), 1, 0, None).await.unwrap(), pattern(1, 0, 150_000));
    }
    // Releases work in both, and the room that comes back is found without a restart.
    for number in [0, 7] {
        store.release(ReleaseScope::Attempt(key(number, 0, 0))).await.unwrap();
    }
    std::fs::remove_file(&filler).unwrap();
    let clock = SystemClock::new();
    let mut number = 100;
    while in_first() <= 3 {
        assert!(clock.monotonic() < PATIENCE, "it has room again: {:?}", state(0));
        sealed(&store, &key(number, 0, 0), 1, 1000).await;
        clock.sleep(Duration::from_millis(10)).await;
        number += 1;
    }
    let (_store, report) = fixture.reopen(store).await;
    assert_eq!((report.sealed.len() as u64, report.lost.len()), (6 + number - 100, 0));
}

/// A file system that is not mounted leaves an empty directory behind.
#[tokio::test]
async fn an_empty_directory_in_place_of_a_full_one_is_a_loss_that_heals() {
    let mut fixture = Fixture::new();
    let other = fixture.root.path().join("other");
    fixture.config.data_dirs.push(other.clone());
    let store = fixture.open();
    for number in 0..6 {
        sealed(&store, &key(number, 0, 0), 1, 1000).await;
    }
    store.close().await.unwrap();
    drop(store);
    let away = fixture.root.path().join("away");
    std::fs::rename(&other, &away).unwrap();
    std::fs::create_dir(&other).unwrap();
    let store = fixture.open();
    let report = store.recover().await.unwrap();
    let lost: Vec<AttemptKey> = report.lost.iter().map(|(key, _)| key.clone()).collect();
    assert!(!lost.is_empty() && report.sealed.len() + lost.len() == 6);
    assert!(report.lost.iter().all(|(_, cause)| *cause == LossCause::Disk));
    // One of the lost ones is given up meanwhile.
    store.release(ReleaseScope::Attempt(lost[0].clone())).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    std::fs::remove_dir_all(&other).unwrap();
    std::fs::rename(&away, &other).unwrap();
    let store = fixture.open();
    let report = store.recover().await.unwrap();
    assert_eq!((report.sealed.len(), report.lost.len(), report.n_dropped), (5, 0, 1), "what was released does not come back");
    for manifest in report.sealed {
        assert_eq!(read(&store, &manifest.attempt, 0, 0, None).await.unwrap(), pattern(0, 0, 1000));
    }
}

#[tokio::test]
async fn a_directory_that_goes_away_while_it_is_read_is_a_loss_of_its_own_partitions() {
    let mut fixture = Fixture::new();
    let other = fixture.root.path().join("other");
    fixture.config.data_dirs.push(other.clone());
    // No file stays open, so that every read has to find its name.
    fixture.config.n_open_files = 1;
    let store = fixture.open();
    for number in 0..8 {
        sealed(&store, &key(number, 0, 0), 1, 1000).await;
    }
    let away = fixture.root.path().join("away");
    std::fs::rename(&other, &away).unwrap();
    let mut n_lost = 0;
    for number in (0..8).chain(0..8) {
        match read(&store, &key(number, 0, 0), 0, 0, None).await {
            Ok(bytes) => assert_eq!(bytes, pattern(0, 0, 1000)),
            Err(error) => {
                assert_eq!(*error.kind(), StoreErrorKind::Lost { cause: LossCause::Disk });
                assert_eq!(store.stat(&key(number, 0, 0)).await.unwrap().state, AttemptState::Lost);
                n_lost += 1;
            }
        }
    }
    assert!(n_lost >= 6, "{n_lost} reads of files that are away");
    // New partitions go where there is a directory.
    let mut attempt = key(100, 0, 0);
    let clock = SystemClock::new();
    loop {
        open(&store, &attempt, 1).await;
        put(&store, &attempt, 0, 0, pattern(0, 0, 1000)).await.unwrap();
        if store.prepare(PrepareRequest { attempt: attempt.clone(), expected: None }).await.is_ok() {
            break;
        }
        assert!(clock.monotonic() < PATIENCE);
        attempt = key(attempt.partition.partition.get() + 1, 0, 0);
    }
    store.publish(&attempt).await.unwrap();
    std::fs::rename(&away, &other).unwrap_or_else(|_| {
        std::fs::remove_dir_all(&other).unwrap();
        std::fs::rename(&away, &other).unwrap();
    });
    let (store, report) = fixture.reopen(store).await;
    assert_eq!((report.sealed.len(), report.lost.len()), (9, 0), "with the directory everything is back");
    for number in 0..8 {
        assert_eq!(read(&store, &key(number, 0, 0), 0, 0, None).await.unwrap(), pattern(0, 0, 1000));
    }
}

/// The newest log of the index.
fn newest_log(index: &std::path::Path) -> PathBuf {
    let logs = std::fs::read_dir(index.join("rocksdb")).unwrap().map(|entry| entry.unwrap().path());
    let logs = logs.filter(|path| path.extension().is_some_and(|end| end == "log"));
    logs.max_by_key(|path| path.metadata().unwrap().len()).unwrap()
}

#[tokio::test]
async fn a_log_torn_at_any_byte_loses_at_most_the_last_seal_and_no_other() {
    let fixture = Fixture::new();
    let store = fixture.open();
    for number in 0..10 {
        sealed(&store, &key(number, 0, 0), 2, 700).await;
    }
    // As a kill leaves it.
    let mut image = Fixture::new();
    copy(fixture.root.path(), image.root.path());
    let whole = std::fs::read(newest_log(&image.config.index_dir)).unwrap();
    drop(store);
    for n_cut in [1, 2, 3, 5, 8, 13, 21, 34, 55, 64] {
        image = Fixture::new();
        copy(fixture.root.path(), image.root.path());
        std::fs::write(newest_log(&image.config.index_dir), &whole[..whole.len() - n_cut]).unwrap();
        for round in 0..2 {
            let store = image.open();
            let report = store.recover().await.unwrap();
            assert_eq!((report.sealed.len(), report.lost.len(), report.n_quarantined), (9, 0, 0), "{n_cut} bytes cut");
            assert_eq!(report.n_dropped, 1 - round, "the file of the seal that was forgotten goes with it, once");
            for number in 0..9 {
                assert_eq!(read(&store, &key(number, 0, 0), 1, 0, None).await.unwrap(), pattern(1, 0, 700));
            }
            assert_eq!(*read(&store, &key(9, 0, 0), 0, 0, None).await.unwrap_err().kind(), StoreErrorKind::NotFound);
            store.close().await.unwrap();
        }
        let store = image.open();
        sealed(&store, &key(9, 0, 0), 2, 700).await;
    }
}

#[tokio::test]
async fn bytes_of_an_earlier_flush_never_end_up_in_a_file() {
    let mut fixture = Fixture::new();
    fixture.config.max_chunk_bytes = 8 << 20;
    let store = fixture.open();
    let sizes = [4 << 20, 1 << 20, 7, 3 << 20, 1, (4 << 20) - 1];
    for (number, writes_out) in [(0, false), (1, true)] {
        let attempt = key(number, 0, 0);
        open(&store, &attempt, 1).await;
        let found = store.core.registry.find(&attempt).unwrap();
        let mut at = 0;
        for size in sizes {
            put(&store, &attempt, 0, at, pattern(number, at, size)).await.unwrap();
            at += size;
            if writes_out {
                store.core.spill(&found).await.unwrap();
            }
        }
        let manifest = seal(&store, &attempt).await;
        let whole = pattern(number, 0, at);
        assert_eq!(manifest.table.digest(SubpartitionIndex::new(0)), Some(Digest::of(&whole)));
        assert!(read(&store, &attempt, 0, 0, None).await.unwrap() == whole);
    }
    let total: u64 = sizes.iter().sum();
    assert_eq!(fixture.part_bytes(), 2 * (total + 16), "files are as long as what was appended");
}

#[tokio::test]
async fn a_thousand_pieces_more_than_one_call_takes_are_written_in_order() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let attempt = key(0, 0, 0);
    open(&store, &attempt, 1).await;
    // Too large to be gathered: each stays a piece of its own.
    let n_pieces = 2050_u64;
    for number in 0..n_pieces {
        put(&store, &attempt, 0, number * 4096, pattern(number, 0, 4096)).await.unwrap();
    }
    seal(&store, &attempt).await;
    let all = read(&store, &attempt, 0, 0, None).await.unwrap();
    for number in 0..n_pieces {
        let at = usize::try_from(number * 4096).unwrap();
        assert!(all[at..at + 4096] == pattern(number, 0, 4096), "piece {number}");
    }
}

/// Writes both subpartitions in turn and seals, as far as the attempt lives.
async fn write_and_seal(store: &crate::DiskStore, attempt: &AttemptKey) {
    for at in 0..8 {
        if put(store, attempt, at % 2, u64::from(at / 2) * 9000, pattern(1, u64::from(at / 2) * 9000, 9000)).await.is_err() {
            return;
        }
    }
    if store.prepare(PrepareRequest { attempt: attempt.clone(), expected: None }).await.is_ok() {
        let _ = store.publish(attempt).await;
    }
}

/// Aborts, fences or releases.
async fn end(store: &crate::DiskStore, attempt: &AttemptKey, how: u64) {
    match how {
        0 => drop(store.abort(attempt).await),
        1 => {
            let scope = ReleaseScope::GenerationsBelow { partition: attempt.partition.clone(), by: AttemptId::new(1, 0) };
            store.release(scope).await.unwrap();
        }
        _ => drop(store.release(ReleaseScope::Partition(attempt.partition.clone())).await.unwrap()),
    }
}

/// Writers, write-outs, seals, aborts, fences and releases of the same attempts, all at once. At the
/// end nothing is held anywhere, and nothing comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[expect(clippy::disallowed_methods, reason = "tests spawn what they wait for")]
async fn ends_that_race_with_writing_leave_nothing_behind() {
    let mut fixture = Fixture::new();
    (fixture.config.write_budget_bytes, fixture.config.per_job_budget_bytes) = (300_000, 300_000);
    fixture.config.sync = SyncLevel::None;
    let store = fixture.open();
    let is_over = Arc::new(AtomicBool::new(false));
    let watcher = {
        let (store, is_over) = (store.clone(), is_over.clone());
        tokio::spawn(async move {
            let mut most = 0;
            while !is_over.load(Ordering::SeqCst) {
                let seen = held(&store);
                // A count that went below 0 would be near 2^64.
                assert!(seen.memory < 1 << 30 && seen.disk < 1 << 30, "{seen:?}");
                most = most.max(seen.total());
                tokio::task::yield_now().await;
            }
            most
        })
    };
    let n_rounds = if is_long() { 400 } else { 60 };
    let mut tasks = Vec::new();
    for round in 0..n_rounds {
        let attempt = key(round, 0, 0);
        open(&store, &attempt, 2).await;
        let (writer, of_writer) = (store.clone(), attempt.clone());
        tasks.push(tokio::spawn(async move { write_and_seal(&writer, &of_writer).await }));
        let (spiller, of_spiller) = (store.clone(), attempt.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..3 {
                if let Ok(found) = spiller.core.registry.find(&of_spiller) {
                    spiller.core.spill(&found).await.unwrap();
                }
                tokio::task::yield_now().await;
            }
        }));
        let ender = store.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..round % 13 {
                tokio::task::yield_now().await;
            }
            end(&ender, &attempt, round % 3).await;
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    // Those whose abort came after their seal.
    for round in (0..n_rounds).step_by(3) {
        store.release(ReleaseScope::Attempt(key(round, 0, 0))).await.unwrap();
    }
    is_over.store(true, Ordering::SeqCst);
    assert!(watcher.await.unwrap() > 0);
    // A write-out in the background clears up after itself.
    let clock = SystemClock::new();
    while !fixture.parts().is_empty() || store.core.budget.used_bytes() > 0 {
        assert!(clock.monotonic() < PATIENCE, "{:?} and {} bytes are left", fixture.parts(), store.core.budget.used_bytes());
        clock.sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(held(&store), HeldBytes::default());
    assert!(store.core.unsettled.lock().is_empty());
    for round in 0..n_rounds {
        let late = key(round, 0, 0);
        let refused = store.append(AppendRequest { attempt: late.clone(), pieces: Vec::new(), permit: Permit::none() }).await.unwrap_err();
        let kind = refused.kind();
        assert!(matches!(kind, StoreErrorKind::Aborted | StoreErrorKind::Fenced { .. } | StoreErrorKind::Released), "{kind:?}");
    }
    let (store, report) = fixture.reopen(store).await;
    assert_eq!((report.sealed.len(), report.n_dropped, held(&store).total()), (0, 0, 0), "nothing comes back");
}

#[tokio::test]
async fn a_zombie_gets_an_answer_to_every_call_and_changes_nothing() {
    let fixture = Fixture::new();
    let mut store = fixture.open();
    let (zombie, winner) = (key(0, 1, 0), key(0, 2, 0));
    open(&store, &zombie, 1).await;
    put(&store, &zombie, 0, 0, pattern(1, 0, 1000)).await.unwrap();
    let late_permit = store.reserve(&zombie, 100, PATIENCE).await.unwrap();
    store.release(ReleaseScope::GenerationsBelow { partition: zombie.partition.clone(), by: winner.attempt }).await.unwrap();
    sealed(&store, &winner, 1, 500).await;
    let fenced = StoreErrorKind::Fenced { by: winner.attempt };
    let piece = Piece { subpartition: SubpartitionIndex::new(0), start: None, chunk: Chunk::new(pattern(1, 0, 100)) };
    let late = store.append(AppendRequest { attempt: zombie.clone(), pieces: vec![piece], permit: late_permit }).await;
    assert_eq!(*late.unwrap_err().kind(), fenced);
    for older in [zombie.clone(), key(0, 0, 7)] {
        let request = OpenRequest { attempt: older.clone(), spec: spec(1), starts: Vec::new() };
        assert_eq!(*store.open(request).await.unwrap_err().kind(), fenced);
        assert_eq!(*store.reserve(&older, 1, PATIENCE).await.unwrap_err().kind(), fenced);
        assert_eq!(*store.tails(&older).await.unwrap_err().kind(), fenced);
        assert_eq!(*store.prepare(PrepareRequest { attempt: older.clone(), expected: None }).await.unwrap_err().kind(), fenced);
        assert_eq!(*store.publish(&older).await.unwrap_err().kind(), fenced);
        assert_eq!(*read(&store, &older, 0, 0, None).await.unwrap_err().kind(), fenced);
        // Nothing to abort is not an error.
        store.abort(&older).await.unwrap();
    }
    assert_eq!(held(&store), HeldBytes { memory: 0, disk: 500, object: 0 });
    assert_eq!(store.core.budget.used_bytes(), 0, "the late permit went back");
    for _ in 0..2 {
        assert_eq!(read(&store, &winner, 0, 0, None).await.unwrap(), pattern(0, 0, 500));
        let report;
        (store, report) = fixture.reopen(store).await;
        assert_eq!((report.sealed.len(), report.sealed[0].attempt.clone()), (1, winner.clone()));
    }
}

#[tokio::test]
async fn a_fence_is_remembered_beside_the_release_of_its_dataset_whichever_came_first() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let by = AttemptId::new(2, 0);
    let dataset = key(0, 0, 0).partition.dataset;
    let fence = |partition: u64| ReleaseScope::GenerationsBelow { partition: key(partition, 0, 0).partition, by };
    open(&store, &key(9, 0, 0), 1).await;
    store.release(fence(0)).await.unwrap();
    store.release(ReleaseScope::Dataset(dataset)).await.unwrap();
    store.release(fence(1)).await.unwrap();
    for partition in [0, 1] {
        // Never opened here: a writer of a former time that comes late.
        let late = key(partition, 1, 5);
        assert_eq!(*read(&store, &late, 0, 0, None).await.unwrap_err().kind(), StoreErrorKind::Fenced { by });
        assert_eq!(*store.tails(&late).await.unwrap_err().kind(), StoreErrorKind::Fenced { by });
        assert_eq!(*store.tails(&key(partition, 2, 1)).await.unwrap_err().kind(), StoreErrorKind::NotFound);
    }
    assert_eq!(*store.tails(&key(9, 0, 0)).await.unwrap_err().kind(), StoreErrorKind::Released);
}

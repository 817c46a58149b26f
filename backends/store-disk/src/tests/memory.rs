//! Little memory, many attempts, full disks.

use super::fixture::*;
use bytes::Bytes;
use std::sync::Arc;
use store_api::*;

const KIB: u64 = 1024;

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::disallowed_methods, reason = "tests spawn what they wait for")]
async fn many_writers_with_little_memory_never_stand_still() {
    let mut fixture = Fixture::new();
    fixture.config.write_budget_bytes = 256 * KIB;
    fixture.config.per_job_budget_bytes = 256 * KIB;
    let store = fixture.open();
    let writers: Vec<_> = (0..40)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move {
                let attempt = key(number, 0, 0);
                open(&store, &attempt, 3).await;
                for round in 0..20 {
                    for index in 0..3 {
                        let bytes = pattern(number * 3 + u64::from(index), round * 2000, 2000);
                        put(&store, &attempt, index, round * 2000, bytes).await.unwrap();
                    }
                }
                seal(&store, &attempt).await;
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(held(&store), HeldBytes { memory: 0, disk: 40 * 3 * 40_000, object: 0 });
    assert_eq!(fixture.parts().len(), 40, "one file for each attempt, however often it was written out");
    assert_eq!(fixture.part_bytes(), 40 * (3 * 40_000 + 16), "no byte more than promised");
    for number in 0..40 {
        for index in 0..3 {
            let bytes = read(&store, &key(number, 0, 0), index, 0, None).await.unwrap();
            assert_eq!(bytes, pattern(number * 3 + u64::from(index), 0, 40_000));
        }
    }
    let whole = store.core.budget.try_reserve(256 * KIB).map(|permit| permit.bytes());
    assert_eq!(whole, Ok(256 * KIB), "all memory is free again");
}

#[tokio::test]
async fn a_repeat_is_compared_with_what_was_written_out() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let attempt = key(0, 0, 0);
    open(&store, &attempt, 2).await;
    let found = store.core.registry.find(&attempt).unwrap();
    for start in (0..300_000).step_by(100_000) {
        put(&store, &attempt, 1, start, pattern(1, start, 100_000)).await.unwrap();
        assert!(store.core.spill(&found).await.unwrap());
    }
    put(&store, &attempt, 1, 300_000, pattern(1, 300_000, 50_000)).await.unwrap();
    assert_eq!(held(&store), HeldBytes { memory: 50_000, disk: 300_000, object: 0 });
    for (start, length, new_bytes) in [(0, 350_000, 0), (99_999, 100_002, 0), (299_999, 2, 0), (1000, 349_001, 1)] {
        let ack = put(&store, &attempt, 1, start, pattern(1, start, length)).await.unwrap();
        assert_eq!(ack.new_bytes, new_bytes, "{start}+{length}");
    }
    for flipped in [0, 99_999, 100_000, 299_999, 300_000, 350_000] {
        let mut bytes = pattern(1, 0, 350_001).to_vec();
        bytes[flipped] ^= 1;
        let refused = put(&store, &attempt, 1, 0, bytes.into()).await.unwrap_err();
        assert_eq!(*refused.kind(), StoreErrorKind::ContentMismatch { expected: Offset::new(350_001) }, "{flipped}");
    }
    seal(&store, &attempt).await;
    assert_eq!(read(&store, &attempt, 1, 0, None).await.unwrap(), pattern(1, 0, 350_001));
}

#[tokio::test]
async fn a_request_over_the_budget_is_refused_at_once() {
    let mut fixture = Fixture::new();
    fixture.config.per_job_budget_bytes = 1000;
    let store = fixture.open();
    open(&store, &key(0, 0, 0), 1).await;
    let refused = store.reserve(&key(0, 0, 0), 1001, PATIENCE).await.unwrap_err();
    assert_eq!(*refused.kind(), StoreErrorKind::TooLarge { requested: 1001, limit: 1000 });
    assert_eq!(store.capabilities().max_chunk_bytes, 1000);
}

#[tokio::test]
async fn a_disk_without_room_refuses_new_bytes_and_serves_the_rest() {
    let mut fixture = Fixture::new();
    let store = fixture.open();
    sealed(&store, &key(0, 0, 0), 1, 5000).await;
    sealed(&store, &key(1, 0, 0), 1, 5000).await;
    fixture.config.reserve_bytes = u64::MAX;
    let (store, _) = fixture.reopen(store).await;
    open(&store, &key(2, 0, 0), 1).await;
    assert_eq!(*put(&store, &key(2, 0, 0), 0, 0, Bytes::from_static(b"x")).await.unwrap_err().kind(), StoreErrorKind::DiskFull);
    assert_eq!(read(&store, &key(0, 0, 0), 0, 0, None).await.unwrap(), pattern(0, 0, 5000));
    store.release(ReleaseScope::Attempt(key(0, 0, 0))).await.unwrap();
    assert_eq!(fixture.parts().len(), 1);
    fixture.config.reserve_bytes = 0;
    let (store, report) = fixture.reopen(store).await;
    assert_eq!(report.sealed.len(), 1);
    sealed(&store, &key(2, 0, 0), 1, 5000).await;
}

/// Mounts a small file system for one test; `None` (with the reason on the output) where that is
/// not allowed.
pub(super) struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    pub(super) fn mount(size: &str) -> Option<Self> {
        let root = tempfile::tempdir().unwrap();
        let mount = std::process::Command::new("mount");
        let mounted = { mount }.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(root.path()).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(root)),
            other => {
                println!("skipped: no small file system can be mounted here: {other:?}");
                None
            }
        }
    }
}

impl SmallDisk {
    pub(super) fn path(&self) -> &std::path::Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_in_time_keeps_its_reserve_and_works_again_after_a_release() {
    let Some(disk) = SmallDisk::mount("64m") else { return };
    let mut fixture = Fixture::new();
    fixture.config.data_dirs = vec![disk.0.path().join("one"), disk.0.path().join("two")];
    fixture.config.index_dir = disk.0.path().join("index");
    fixture.config.reserve_bytes = 8 << 20;
    fixture.config.write_budget_bytes = 1 << 20;
    let store = fixture.open();
    let mut n_sealed = 0;
    let refused = loop {
        let attempt = key(n_sealed, 0, 0);
        open(&store, &attempt, 1).await;
        let patience = std::time::Duration::from_secs(2);
        let mut outcome = Ok(());
        for start in (0..1_000_000).step_by(250_000) {
            match store.reserve(&attempt, 250_000, patience).await {
                Ok(permit) => {
                    let piece =
                        Piece { subpartition: SubpartitionIndex::new(0), start: None, chunk: Chunk::new(pattern(0, start, 250_000)) };
                    outcome = store.append(AppendRequest { attempt: attempt.clone(), pieces: vec![piece], permit }).await.map(drop);
                }
                Err(error) => outcome = Err(error),
            }
            if outcome.is_err() {
                break;
            }
        }
        if outcome.is_ok() {
            outcome = store.prepare(PrepareRequest { attempt: attempt.clone(), expected: None }).await.map(drop);
        }
        match outcome {
            Ok(()) => drop(store.publish(&attempt).await.unwrap()),
            Err(error) => break error,
        }
        n_sealed += 1;
        if n_sealed == 1 {
            // The log of the index takes its room with the first row; figures are 100 ms old at most.
            SystemClock::new().sleep(std::time::Duration::from_millis(150)).await;
        }
        assert!(n_sealed < 64, "the disk has 64 MiB");
    };
    assert_eq!(*refused.kind(), StoreErrorKind::DiskFull, "{refused:?}");
    // The log of the index takes about 20 MiB beforehand.
    assert!(n_sealed >= 25, "{n_sealed}");
    let free = |path: &std::path::Path| {
        let output = std::process::Command::new("df").args(["--output=avail", "-B1"]).arg(path).output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().nth(1).unwrap().trim().parse::<u64>().unwrap()
    };
    assert!(free(disk.0.path()) >= 7 << 20, "the reserve is kept, {} are left", free(disk.0.path()));
    for number in 0..n_sealed {
        assert_eq!(read(&store, &key(number, 0, 0), 0, 0, None).await.unwrap(), pattern(0, 0, 1_000_000));
    }
    store.abort(&key(n_sealed, 0, 0)).await.unwrap();
    store.release(ReleaseScope::Attempt(key(0, 0, 0))).await.unwrap();
    store.release(ReleaseScope::Attempt(key(1, 0, 0))).await.unwrap();
    let attempt = key(100, 0, 0);
    open(&store, &attempt, 1).await;
    let bytes = pattern(0, 0, 200_000);
    let clock = SystemClock::new();
    while let Err(error) = put(&store, &attempt, 0, 0, bytes.clone()).await {
        assert_eq!(*error.kind(), StoreErrorKind::DiskFull);
        assert!(clock.monotonic() < PATIENCE, "room was made");
        clock.sleep(std::time::Duration::from_millis(50)).await;
    }
    seal(&store, &attempt).await;
    let (_store, report) = fixture.reopen(store).await;
    assert_eq!(report.sealed.len() as u64, n_sealed - 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_was_full_works_again_once_there_is_room() {
    let Some(disk) = SmallDisk::mount("16m") else { return };
    let mut fixture = Fixture::new();
    fixture.config.index_dir = disk.0.path().join("index");
    let store = fixture.open();
    sealed(&store, &key(0, 0, 0), 1, 1000).await;
    let filler = disk.0.path().join("filler");
    let _ = std::fs::write(&filler, vec![1; 16 << 20]);
    let mut n_acknowledged = 1;
    let mut refused = None;
    for number in 1..2000 {
        let attempt = key(number, 0, 0);
        open(&store, &attempt, 100).await;
        for index in 0..100 {
            put(&store, &attempt, index, 0, pattern(0, 0, 10)).await.unwrap();
        }
        store.prepare(PrepareRequest { attempt: attempt.clone(), expected: None }).await.unwrap();
        match store.publish(&attempt).await {
            Ok(_) => n_acknowledged += 1,
            Err(error) => {
                refused = Some((attempt, error));
                break;
            }
        }
    }
    let (attempt, error) = refused.expect("a full index takes no seals");
    assert!(matches!(error.kind(), StoreErrorKind::DiskFull | StoreErrorKind::Unavailable { .. }), "{error:?}");
    assert_eq!(read(&store, &key(0, 0, 0), 0, 0, None).await.unwrap(), pattern(0, 0, 1000), "reads go on");
    std::fs::remove_file(&filler).unwrap();
    assert!(matches!(store.publish(&attempt).await.unwrap(), SealOutcome::Won(_)));
    n_acknowledged += 1;
    let (_store, report) = fixture.reopen(store).await;
    assert_eq!(report.sealed.len(), n_acknowledged);
}

#[tokio::test]
async fn a_directory_that_fails_in_between_is_left_for_another() {
    let mut fixture = Fixture::new();
    let other = fixture.root.path().join("other");
    fixture.config.data_dirs.push(other.clone());
    let store = fixture.open();
    let attempts: Vec<_> = (0..6).map(|number| key(number, 0, 0)).collect();
    for attempt in &attempts {
        open(&store, attempt, 1).await;
        put(&store, attempt, 0, 0, pattern(0, 0, 10_000)).await.unwrap();
        let found = store.core.registry.find(attempt).unwrap();
        store.core.spill(&found).await.unwrap();
    }
    // A file in place of the directory: nothing can be created there, whoever we are.
    let away = fixture.root.path().join("away");
    std::fs::rename(other.join("parts"), &away).unwrap();
    std::fs::write(other.join("parts"), b"").unwrap();
    for attempt in &attempts {
        put(&store, attempt, 0, 10_000, pattern(0, 10_000, 10_000)).await.unwrap();
        let found = store.core.registry.find(attempt).unwrap();
        store.core.spill(&found).await.unwrap();
    }
    std::fs::remove_file(other.join("parts")).unwrap();
    std::fs::rename(&away, other.join("parts")).unwrap();
    for attempt in &attempts {
        seal(&store, attempt).await;
        assert_eq!(read(&store, attempt, 0, 0, None).await.unwrap(), pattern(0, 0, 20_000));
    }
    let (store, report) = fixture.reopen(store).await;
    assert_eq!((report.sealed.len(), report.lost.len()), (6, 0));
    for attempt in &attempts {
        assert_eq!(read(&store, attempt, 0, 0, None).await.unwrap(), pattern(0, 0, 20_000));
    }
}

#[tokio::test]
async fn a_failed_prepare_keeps_all_bytes_and_succeeds_after_healing() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let attempt = key(0, 0, 0);
    open(&store, &attempt, 1).await;
    put(&store, &attempt, 0, 0, pattern(0, 0, 10_000)).await.unwrap();
    let parts = fixture.config.data_dirs[0].join("parts");
    std::fs::remove_dir(&parts).unwrap();
    let prepare = PrepareRequest { attempt: attempt.clone(), expected: None };
    let refused = store.prepare(prepare.clone()).await.unwrap_err();
    assert!(matches!(refused.kind(), StoreErrorKind::Unavailable { .. }), "{refused:?}");
    assert_eq!(store.tails(&attempt).await.unwrap().state, AttemptState::Open);
    assert_eq!(held(&store), HeldBytes { memory: 10_000, disk: 0, object: 0 }, "the memory stays charged");
    std::fs::create_dir(&parts).unwrap();
    let manifest = loop {
        match store.prepare(prepare.clone()).await {
            Ok(manifest) => break manifest,
            Err(error) => assert!(matches!(error.kind(), StoreErrorKind::Unavailable { .. }), "{error:?}"),
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(manifest.table.total_bytes(), 10_000);
    store.publish(&attempt).await.unwrap();
    assert_eq!(read(&store, &attempt, 0, 0, None).await.unwrap(), pattern(0, 0, 10_000));
}

#[tokio::test]
async fn after_a_failed_sync_bytes_in_memory_go_to_another_file() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let attempt = key(0, 0, 0);
    open(&store, &attempt, 1).await;
    put(&store, &attempt, 0, 0, pattern(0, 0, 10_000)).await.unwrap();
    store.core.media.fails_sync.store(true, std::sync::atomic::Ordering::SeqCst);
    let prepare = PrepareRequest { attempt: attempt.clone(), expected: None };
    let refused = store.prepare(prepare.clone()).await.unwrap_err();
    assert!(matches!(refused.kind(), StoreErrorKind::Unavailable { .. }), "{refused:?}");
    assert_eq!(held(&store), HeldBytes { memory: 10_000, disk: 0, object: 0 });
    assert!(fixture.parts().is_empty(), "the file whose sync failed is not used again");
    let clock = SystemClock::new();
    while let Err(error) = store.prepare(prepare.clone()).await {
        assert!(clock.monotonic() < PATIENCE, "{error:?}");
        clock.sleep(std::time::Duration::from_millis(20)).await;
    }
    store.publish(&attempt).await.unwrap();
    assert_eq!(fixture.parts().len(), 1);
    assert_eq!(read(&store, &attempt, 0, 0, None).await.unwrap(), pattern(0, 0, 10_000));
}

#[tokio::test]
async fn a_failed_sync_over_bytes_that_left_memory_is_a_loss_and_is_not_repeated() {
    let fixture = Fixture::new();
    let store = fixture.open();
    for is_removed in [false, true] {
        let attempt = key(u64::from(is_removed), 0, 0);
        open(&store, &attempt, 1).await;
        let clock = SystemClock::new();
        while let Err(error) = put(&store, &attempt, 0, 0, pattern(0, 0, 10_000)).await {
            let is_passing = matches!(error.kind(), StoreErrorKind::Unavailable { .. });
            assert!(is_passing && clock.monotonic() < PATIENCE, "a broken directory is not a full one: {error:?}");
            clock.sleep(std::time::Duration::from_millis(20)).await;
        }
        let found = store.core.registry.find(&attempt).unwrap();
        store.core.spill(&found).await.unwrap();
        put(&store, &attempt, 0, 10_000, pattern(0, 10_000, 10_000)).await.unwrap();
        if is_removed {
            std::fs::remove_file(&fixture.parts()[0]).unwrap();
        } else {
            store.core.media.fails_sync.store(true, std::sync::atomic::Ordering::SeqCst);
        }
        let prepare = PrepareRequest { attempt: attempt.clone(), expected: None };
        let clock = SystemClock::new();
        loop {
            let refused = store.prepare(prepare.clone()).await.unwrap_err();
            if *refused.kind() == (StoreErrorKind::Lost { cause: LossCause::Disk }) {
                break;
            }
            assert!(matches!(refused.kind(), StoreErrorKind::Unavailable { .. }) && clock.monotonic() < PATIENCE, "{refused:?}");
            clock.sleep(std::time::Duration::from_millis(20)).await;
        }
        for _ in 0..2 {
            let refused = store.prepare(prepare.clone()).await.unwrap_err();
            assert_eq!(*refused.kind(), StoreErrorKind::Lost { cause: LossCause::Disk });
        }
        assert_eq!((held(&store).total(), fixture.parts().len()), (0, 0));
        assert_eq!(store.core.budget.used_bytes(), 0);
    }
}

#[tokio::test]
async fn subpartitions_are_contiguous_however_they_were_interleaved() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let attempt = key(0, 0, 0);
    open(&store, &attempt, 50).await;
    for round in 0..40 {
        for index in 0..50 {
            put(&store, &attempt, index, round * 100, pattern(u64::from(index), round * 100, 100)).await.unwrap();
        }
    }
    seal(&store, &attempt).await;
    let found = store.core.registry.find(&attempt).unwrap();
    let layout = found.inner.lock().layout.clone().unwrap();
    assert_eq!(layout.regions.len(), 50, "one region for each subpartition");
    for index in 0..50 {
        assert_eq!(read(&store, &attempt, index, 0, None).await.unwrap(), pattern(u64::from(index), 0, 4000));
    }
}

#[tokio::test]
async fn thousands_of_open_attempts_need_few_descriptors() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let n_files = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let before = n_files();
    let mut attempts = Vec::new();
    for number in 0..1500 {
        let attempt = key(number, 0, 0);
        open(&store, &attempt, 4).await;
        put(&store, &attempt, 0, 0, pattern(number, 0, 100)).await.unwrap();
        let found = store.core.registry.find(&attempt).unwrap();
        store.core.spill(&found).await.unwrap();
        attempts.push(attempt);
    }
    assert!(n_files() < before + 300, "{} descriptors more", n_files() - before);
    let job = ReleaseScope::Job { job: job(), incarnation: JobIncarnation::new(1) };
    assert_eq!(store.release(job).await.unwrap(), ReleaseReport { n_attempts: 1500, bytes: 150_000 });
    assert_eq!((held(&store).total(), fixture.parts().len()), (0, 0));
    drop(Arc::clone(&store));
}

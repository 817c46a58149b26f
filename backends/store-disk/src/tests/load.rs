//! The store under load: images taken while it works, seals per second.

use super::fixture::*;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use store_api::*;

pub(super) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let target = to.join(entry.file_name());
        if entry.metadata().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// What a kill leaves behind, taken from a store that goes on: the index first, so that every row
/// in the image speaks of data that was there before it.
#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::disallowed_methods, reason = "tests spawn what they wait for")]
async fn an_image_taken_under_load_holds_every_seal_acknowledged_before_it() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let n_sealed: Arc<Vec<AtomicU64>> = Arc::new((0..4).map(|_| AtomicU64::new(0)).collect());
    let tasks: Vec<_> = (0..4_u32)
        .map(|writer| {
            let (store, n_sealed) = (store.clone(), n_sealed.clone());
            tokio::spawn(async move {
                for number in 0..120 {
                    let attempt = key(u64::from(writer) * 1000 + number, 0, 0);
                    open(&store, &attempt, 2).await;
                    put(&store, &attempt, 0, 0, pattern(number, 0, 700)).await.unwrap();
                    put(&store, &attempt, 1, 0, pattern(number, 0, 70_000)).await.unwrap();
                    seal(&store, &attempt).await;
                    n_sealed[writer as usize].store(number + 1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let n_images = if std::env::var_os("FOREBAY_LONG").is_some() { 60 } else { 6 };
    for _ in 0..n_images {
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
        let mut image = Fixture::new();
        let acknowledged: Vec<u64> = n_sealed.iter().map(|count| count.load(Ordering::SeqCst)).collect();
        copy(&fixture.config.index_dir, &image.config.index_dir);
        copy(&fixture.config.data_dirs[0], &image.config.data_dirs[0]);
        image.config.sync = SyncLevel::Full;
        let store = image.open();
        let report = store.recover().await.unwrap();
        assert!(report.lost.is_empty() && report.n_quarantined == 0, "{report:?}");
        for (writer, count) in (0..).zip(&acknowledged) {
            for number in 0..*count {
                let attempt = key(writer * 1000 + number, 0, 0);
                assert_eq!(read(&store, &attempt, 1, 0, None).await.unwrap(), pattern(number, 0, 70_000));
            }
        }
        for manifest in report.sealed {
            let number = manifest.attempt.partition.partition.get() % 1000;
            assert_eq!(read(&store, &manifest.attempt, 0, 0, None).await.unwrap(), pattern(number, 0, 700));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::disallowed_methods, reason = "tests spawn what they wait for")]
async fn small_seals_share_their_syncs() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let n_each = if std::env::var_os("FOREBAY_LONG").is_some() { 200 } else { 10 };
    let clock = SystemClock::new();
    let tasks: Vec<_> = (0..64)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                for number in 0..n_each {
                    sealed(&store, &key(writer * 1000 + number, 0, 0), 1, 1024).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let took = clock.monotonic();
    println!("{} seals of 1 KiB by 64 writers in {took:?}: {:.0} per second", 64 * n_each, (64 * n_each) as f64 / took.as_secs_f64());
    assert_eq!(held(&store).disk, 64 * n_each * 1024);
}

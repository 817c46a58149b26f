//! Reopening over damage, cuts, strangers and other formats.

use super::fixture::*;
use crate::index::{Change, Family};
use crate::keys;
use std::path::Path;
use store_api::*;

#[tokio::test]
async fn a_cut_data_file_is_never_read_as_zeros() {
    for n_left in [0_u64, 1, 16, 70_000, 100_015] {
        let fixture = Fixture::new();
        let store = fixture.open();
        let attempt = key(0, 0, 0);
        sealed(&store, &attempt, 1, 100_000).await;
        let part = fixture.parts().remove(0);
        std::fs::OpenOptions::new().write(true).open(&part).unwrap().set_len(n_left).unwrap();
        for _ in 0..2 {
            let failed = read(&store, &attempt, 0, 0, None).await.unwrap_err();
            assert_eq!(*failed.kind(), StoreErrorKind::Lost { cause: LossCause::Corruption });
        }
        let before_the_cut = read(&store, &attempt, 0, 10, Some(20)).await;
        match before_the_cut {
            Ok(bytes) => assert_eq!((bytes, n_left >= 70_000), (pattern(0, 10, 10), true)),
            Err(error) => assert_eq!(*error.kind(), StoreErrorKind::Lost { cause: LossCause::Corruption }),
        }
        assert_eq!(store.stat(&attempt).await.unwrap().state, AttemptState::Lost);
        let (store, report) = fixture.reopen(store).await;
        assert_eq!(report.lost, [(attempt.clone(), LossCause::Corruption)]);
        assert_eq!(*read(&store, &attempt, 0, 0, None).await.unwrap_err().kind(), StoreErrorKind::Lost { cause: LossCause::Corruption });
        store.release(ReleaseScope::Attempt(attempt)).await.unwrap();
        let (_store, report) = fixture.reopen(store).await;
        assert_eq!((report.lost.len(), report.n_dropped, fixture.parts().len()), (0, 0, 0));
    }
}

#[tokio::test]
async fn a_flipped_byte_fails_its_own_subpartition_only() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let attempt = key(0, 0, 0);
    sealed(&store, &attempt, 20, 1000).await;
    flip(&fixture.parts()[0], 16 + 7 * 1000 + 500);
    for index in 0..20 {
        let answer = read(&store, &attempt, index, 0, None).await;
        if index == 7 {
            assert_eq!(*answer.unwrap_err().kind(), StoreErrorKind::Lost { cause: LossCause::Corruption });
        } else {
            assert_eq!(answer.unwrap(), pattern(u64::from(index), 0, 1000));
        }
    }
    assert_eq!(store.stat(&attempt).await.unwrap().state, AttemptState::Lost, "a partition with damage counts as lost");
}

#[tokio::test]
async fn a_missing_file_is_a_lost_partition_and_no_other() {
    let fixture = Fixture::new();
    let store = fixture.open();
    for number in 0..3 {
        sealed(&store, &key(number, 0, 0), 1, 1000).await;
    }
    store.close().await.unwrap();
    drop(store);
    std::fs::remove_file(&fixture.parts()[1]).unwrap();
    for _ in 0..2 {
        let store = fixture.open();
        let report = store.recover().await.unwrap();
        assert_eq!((report.sealed.len(), report.lost.as_slice()), (2, &[(key(1, 0, 0), LossCause::Disk)][..]));
        assert_eq!(store.stat(&key(1, 0, 0)).await.unwrap().state, AttemptState::Lost);
        assert!(matches!(store.manifest(&key(1, 0, 0)).await.unwrap_err().kind(), StoreErrorKind::Lost { .. }));
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_data_directory_that_is_away_is_a_loss_that_heals() {
    let mut fixture = Fixture::new();
    let other = fixture.root.path().join("other");
    fixture.config.data_dirs.push(other.clone());
    let store = fixture.open();
    for number in 0..4 {
        sealed(&store, &key(number, 0, 0), 1, 1000).await;
    }
    store.close().await.unwrap();
    drop(store);
    let away = fixture.root.path().join("away");
    std::fs::rename(&other, &away).unwrap();
    let store = fixture.open();
    let report = store.recover().await.unwrap();
    assert_eq!(report.sealed.len() + report.lost.len(), 4);
    assert!(!report.lost.is_empty() && report.lost.iter().all(|(_, cause)| *cause == LossCause::Disk));
    sealed(&store, &key(9, 0, 0), 1, 1000).await;
    store.close().await.unwrap();
    drop(store);
    let added = other.join("parts");
    for entry in std::fs::read_dir(&added).unwrap().map(|entry| entry.unwrap()) {
        std::fs::rename(entry.path(), away.join("parts").join(entry.file_name())).unwrap();
    }
    std::fs::remove_dir_all(&other).unwrap();
    std::fs::rename(&away, &other).unwrap();
    let store = fixture.open();
    assert!(store.recover().await.unwrap().sealed.len() >= 4, "what came back is served again");
}

#[tokio::test]
async fn strangers_are_moved_aside_and_orphans_are_dropped() {
    let fixture = Fixture::new();
    let store = fixture.open();
    sealed(&store, &key(0, 0, 0), 1, 1000).await;
    open(&store, &key(1, 0, 0), 1).await;
    put(&store, &key(1, 0, 0), 0, 0, pattern(0, 0, 1000)).await.unwrap();
    store.prepare(PrepareRequest { attempt: key(1, 0, 0), expected: None }).await.unwrap();
    let parts = fixture.config.data_dirs[0].join("parts");
    std::fs::write(parts.join("notes.txt"), b"mine").unwrap();
    std::fs::create_dir(parts.join("0000000000000001-0000000000000002.part")).unwrap();
    let (store, report) = fixture.reopen(store).await;
    assert_eq!((report.sealed.len(), report.n_dropped, report.n_quarantined), (1, 1, 2));
    assert_eq!(std::fs::read(fixture.config.data_dirs[0].join("set-aside/notes.txt")).unwrap(), b"mine");
    std::fs::write(parts.join("notes.txt"), b"mine too").unwrap();
    let (_store, report) = fixture.reopen(store).await;
    assert_eq!((report.sealed.len(), report.n_dropped, report.n_quarantined), (1, 0, 1));
    assert_eq!(std::fs::read(fixture.config.data_dirs[0].join("set-aside/notes.txt.1")).unwrap(), b"mine too");
}

#[tokio::test]
async fn a_damaged_row_is_set_aside_with_its_file() {
    let fixture = Fixture::new();
    let store = fixture.open();
    for number in 0..3 {
        sealed(&store, &key(number, 0, 0), 1, 1000).await;
    }
    let row = keys::of_attempt(&key(1, 0, 0));
    let mut value = store.core.index.row(Family::Seals, &row).unwrap().unwrap();
    value[10] ^= 1;
    store.core.change(vec![Change::Put(Family::Seals, row.clone(), value.clone())]).await.unwrap();
    let (store, report) = fixture.reopen(store).await;
    assert_eq!((report.sealed.len(), report.n_dropped, report.n_quarantined), (2, 0, 2), "the row and the file it spoke of");
    assert_eq!(store.core.index.row(Family::Damaged, &row).unwrap(), Some(value));
    let (_store, report) = fixture.reopen(store).await;
    assert_eq!((report.sealed.len(), report.n_quarantined), (2, 0));
}

#[tokio::test]
async fn the_file_of_a_damaged_row_is_moved_aside_when_its_directory_comes_back() {
    let mut fixture = Fixture::new();
    let home = fixture.config.data_dirs[0].clone();
    let store = fixture.open();
    sealed(&store, &key(0, 0, 0), 1, 1000).await;
    let row = keys::of_attempt(&key(0, 0, 0));
    let mut value = store.core.index.row(Family::Seals, &row).unwrap().unwrap();
    value[10] ^= 1;
    store.core.change(vec![Change::Put(Family::Seals, row, value)]).await.unwrap();
    let named = fixture.parts();
    let bytes = std::fs::read(&named[0]).unwrap();
    // The directory is away at the start that finds the row damaged, and at one more.
    fixture.config.data_dirs = vec![fixture.root.path().join("other")];
    let (store, report) = fixture.reopen(store).await;
    assert_eq!((report.sealed.len(), report.n_quarantined), (0, 1), "the row");
    let (store, report) = fixture.reopen(store).await;
    assert_eq!((report.n_dropped, report.n_quarantined), (0, 0));
    fixture.config.data_dirs.push(home.clone());
    let (store, report) = fixture.reopen(store).await;
    assert_eq!((report.n_dropped, report.n_quarantined), (0, 1), "the file it spoke of");
    let aside = home.join("set-aside").join(named[0].file_name().unwrap());
    assert_eq!(std::fs::read(&aside).unwrap(), bytes);
    // From then on what has no row is an orphan like any other, in both directories.
    for directory in &fixture.config.data_dirs {
        std::fs::write(directory.join("parts").join(named[0].file_name().unwrap()), b"orphan").unwrap();
    }
    let (_store, report) = fixture.reopen(store).await;
    assert_eq!((report.n_dropped, report.n_quarantined), (2, 0));
    assert_eq!(std::fs::read(&aside).unwrap(), bytes);
}

/// Names, lengths and contents of all files below a directory.
fn everything(directory: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap()) {
        if entry.metadata().unwrap().is_dir() {
            found.extend(everything(&entry.path()));
        } else {
            found.push((entry.path(), std::fs::read(entry.path()).unwrap()));
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn another_format_is_refused_by_name_and_no_byte_is_changed() {
    let markers = [("index/FOREBAY.INDEX", "forebay 2\nstore 1\nid 1\n"), ("data/FOREBAY.DATA", "forebay 2\n"), ("data/FOREBAY.DATA", "?")];
    for (marker, text) in markers {
        let fixture = Fixture::new();
        let store = fixture.open();
        sealed(&store, &key(0, 0, 0), 1, 1000).await;
        store.close().await.unwrap();
        drop(store);
        std::fs::write(fixture.root.path().join(marker), text).unwrap();
        let before = everything(fixture.root.path());
        let refused = fixture.try_open().unwrap_err();
        let StoreErrorKind::Format { reason } = refused.kind() else { panic!("{refused:?}") };
        assert!(reason.contains(marker.rsplit('/').next().unwrap()), "{reason}");
        assert!(before == everything(fixture.root.path()), "{marker}: something was changed");
    }
}

#[tokio::test]
async fn a_missing_marker_or_a_foreign_directory_is_refused() {
    for marker in ["index/FOREBAY.INDEX", "data/FOREBAY.DATA"] {
        let fixture = Fixture::new();
        let store = fixture.open();
        store.close().await.unwrap();
        drop(store);
        std::fs::remove_file(fixture.root.path().join(marker)).unwrap();
        let before = everything(fixture.root.path());
        let refused = fixture.try_open().unwrap_err();
        assert!(matches!(refused.kind(), StoreErrorKind::Format { .. }), "{refused:?}");
        assert!(before == everything(fixture.root.path()), "{marker}: something was changed");
    }
    let (one, mut two) = (Fixture::new(), Fixture::new());
    one.open().close().await.unwrap();
    two.config.data_dirs = one.config.data_dirs.clone();
    assert!(matches!(two.try_open().unwrap_err().kind(), StoreErrorKind::Format { .. }), "it belongs to another index");
}

#[tokio::test]
async fn a_second_store_on_the_same_directories_fails_at_once_and_disturbs_nothing() {
    let fixture = Fixture::new();
    let store = fixture.open();
    sealed(&store, &key(0, 0, 0), 1, 1000).await;
    let refused = fixture.try_open().unwrap_err();
    assert!(format!("{refused:?}").contains("index"), "{refused:?}");
    let mut shares_data = Fixture::new();
    shares_data.config.data_dirs = fixture.config.data_dirs.clone();
    assert!(shares_data.try_open().is_err());
    assert_eq!(read(&store, &key(0, 0, 0), 0, 0, None).await.unwrap(), pattern(0, 0, 1000));
    sealed(&store, &key(1, 0, 0), 1, 1000).await;
}

#[tokio::test]
async fn every_sync_level_survives_being_dropped_without_a_close() {
    for sync in [SyncLevel::Full, SyncLevel::Data, SyncLevel::None] {
        let mut fixture = Fixture::new();
        fixture.config.sync = sync;
        let mut store = fixture.open();
        for round in 0..4 {
            let manifest = sealed(&store, &key(round, 0, 0), 2, 3000).await;
            assert_eq!(manifest.class.sync, sync);
            drop(store);
            store = fixture.open();
            let report = store.recover().await.unwrap();
            assert_eq!(report.sealed.len() as u64, round + 1);
            for number in 0..=round {
                assert_eq!(read(&store, &key(number, 0, 0), 1, 0, None).await.unwrap(), pattern(1, 0, 3000));
            }
        }
    }
}

#[tokio::test]
async fn restart_is_quick_with_many_sealed_partitions() {
    let n_partitions: u64 = if std::env::var_os("FOREBAY_LONG").is_some() { 100_000 } else { 2000 };
    let mut fixture = Fixture::new();
    fixture.config.sync = SyncLevel::None;
    let store = fixture.open();
    for number in 0..n_partitions {
        sealed(&store, &key(number, 0, 0), 2, 10).await;
    }
    store.close().await.unwrap();
    drop(store);
    let clock = SystemClock::new();
    let store = fixture.open();
    let took = clock.monotonic();
    assert_eq!(store.recover().await.unwrap().sealed.len() as u64, n_partitions);
    println!("{n_partitions} partitions in {took:?}");
    assert!(took < std::time::Duration::from_secs(2), "{took:?}");
}

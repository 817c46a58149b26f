//! Spill directories that are small, broken or not empty.

use crate::config::{Config, SpillConfig};
use crate::sample::{SOON, config, kind, pattern, small_spill, spec, until};
use crate::store::fixture::{Of, store};
use std::path::Path;
use std::time::Duration;
use store_api::{AttemptState, PartitionStore, ReleaseScope, Retention, StoreErrorKind};

/// A file system in memory; `None` (with the reason on the output) where none can be mounted.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        let root = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        match mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(root.path()).output() {
            Ok(output) if output.status.success() => Some(Self(root)),
            other => {
                println!("skipped: no small file system can be mounted here: {other:?}");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

fn over(directories: &[&Path]) -> SpillConfig {
    let root = directories[0].parent().unwrap();
    SpillConfig { directories: directories.iter().map(|path| path.to_path_buf()).collect(), ..small_spill(root) }
}

#[tokio::test]
async fn a_spill_disk_that_fills_up_loses_nothing_and_goes_on_once_there_is_room() {
    let Some(disk) = SmallDisk::mount("256k") else { return };
    let spill = SpillConfig { batch_bytes: 20_000, file_bytes: 40_000, ..over(&[&disk.0.path().join("spill")]) };
    let store = store(Config { spill: Some(spill), ..config(50_000) }).await;
    let one = Of::opened(&store, 0, spec(Retention::SinceCheckpoint, 1)).await;
    let mut tail = 0;
    // 250 KiB of disk and 50 KB of memory: somewhere the next 10 KB find no room.
    let refused = loop {
        match store.reserve(&one.key, 10_000, Duration::from_millis(300)).await {
            Ok(permit) => {
                one.put_with(0, Some(tail), pattern(0, tail, 10_000), permit).await.unwrap();
                tail += 10_000;
            }
            Err(error) => break error,
        }
        assert!(tail < 400_000, "more than there is room for");
    };
    assert!(matches!(refused.kind(), StoreErrorKind::Overloaded { .. }), "{refused:?}");
    assert!(tail >= 200_000, "the disk was used: {tail}");
    assert_eq!(one.bytes_from(0, 0).await.unwrap(), pattern(0, 0, tail), "nothing that was acknowledged is gone");
    assert_eq!(store.stat(&one.key).await.unwrap().state, AttemptState::Open, "a full disk is no loss");
    one.checkpoint(1, &[(0, 150_000)]).await.unwrap();
    for _ in 0..10 {
        one.write(0, tail, 10_000).await.unwrap();
        tail += 10_000;
    }
    assert_eq!(one.bytes_from(0, 150_000).await.unwrap(), pattern(0, 150_000, tail - 150_000));
    store.release(ReleaseScope::Attempt(one.key.clone())).await.unwrap();
    until("all is given back", || store.reserved_bytes() == 0 && one.held().total() == 0).await;
}

#[tokio::test]
async fn a_full_spill_disk_is_passed_over_for_one_with_room() {
    let Some(disk) = SmallDisk::mount("64k") else { return };
    let root = tempfile::tempdir().unwrap();
    let (small, large) = (disk.0.path().join("small"), root.path().join("large"));
    let store = store(Config { spill: Some(over(&[&small, &large])), ..config(20_000) }).await;
    std::fs::write(disk.0.path().join("filler"), vec![0; 64 * 1024]).unwrap_or_default();
    let one = Of::opened(&store, 0, spec(Retention::SinceCheckpoint, 2)).await;
    for at in 0..30 {
        one.write(0, at * 5000, 5000).await.unwrap();
    }
    assert_eq!(one.bytes_from(0, 0).await.unwrap(), pattern(0, 0, 150_000));
    assert!(one.held().disk >= 100_000);
}

#[tokio::test]
async fn one_spill_directory_that_cannot_be_used_is_not_all_of_them() {
    let root = tempfile::tempdir().unwrap();
    let (broken, sound) = (root.path().join("broken"), root.path().join("sound"));
    // A file where the directory should be.
    std::fs::write(&broken, b"").unwrap();
    let store = store(Config { spill: Some(over(&[&broken, &sound])), ..config(4000) }).await;
    let one = Of::opened(&store, 0, spec(Retention::SinceCheckpoint, 1)).await;
    for at in 0..20 {
        one.write(0, at * 1000, 1000).await.unwrap();
    }
    assert_eq!(one.bytes_from(0, 0).await.unwrap(), pattern(0, 0, 20_000));
}

#[tokio::test]
async fn what_only_looks_like_a_spill_file_is_left_alone_and_disturbs_nothing() {
    let root = tempfile::tempdir().unwrap();
    let spill = root.path().join("spill");
    // A directory of that name, with something in it, and one under the first name that is used.
    for name in ["0.spill", "old.spill"] {
        std::fs::create_dir_all(spill.join(name)).unwrap();
        std::fs::write(spill.join(name).join("notes"), b"mine").unwrap();
    }
    std::fs::write(spill.join("7.spill"), b"of a former life").unwrap();
    let store = store(Config { spill: Some(small_spill(root.path())), ..config(4000) }).await;
    assert!(!spill.join("7.spill").exists());
    let one = Of::opened(&store, 0, spec(Retention::SinceCheckpoint, 1)).await;
    for at in 0..20 {
        one.write(0, at * 1000, 1000).await.unwrap();
    }
    assert_eq!(one.bytes_from(0, 0).await.unwrap(), pattern(0, 0, 20_000));
    store.release(ReleaseScope::Attempt(one.key.clone())).await.unwrap();
    for name in ["0.spill", "old.spill"] {
        assert_eq!(std::fs::read(spill.join(name).join("notes")).unwrap(), b"mine");
    }
}

#[tokio::test]
async fn a_directory_that_is_lost_while_it_is_used_is_a_loss_of_what_was_in_it_and_no_more() {
    let root = tempfile::tempdir().unwrap();
    let store = store(Config { spill: Some(small_spill(root.path())), ..config(10_000) }).await;
    let spilled = Of::opened(&store, 0, spec(Retention::SinceCheckpoint, 1)).await;
    for at in 0..9 {
        spilled.write(0, at * 1000, 1000).await.unwrap();
    }
    until("something is on disk", || spilled.held().disk >= 2000).await;
    let kept = Of::opened(&store, 1, spec(Retention::UntilAcknowledged, 1)).await;
    kept.write(0, 0, 500).await.unwrap();
    for entry in std::fs::read_dir(root.path().join("spill")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "spill") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let outcome = spilled.bytes_from(0, 0).await;
    assert!(matches!(kind(outcome), StoreErrorKind::Lost { .. }));
    assert_eq!(store.stat(&spilled.key).await.unwrap().state, AttemptState::Lost);
    assert_eq!(kept.bytes_from(0, 0).await.unwrap(), pattern(0, 0, 500));
    kept.write(0, 500, 500).await.unwrap();
    store.release(ReleaseScope::Attempt(spilled.key.clone())).await.unwrap();
    until("only the other is left", || kept.held().total() == 1000 && store.reserved_bytes() == 1000).await;
    let next = Of::opened(&store, 2, spec(Retention::SinceCheckpoint, 1)).await;
    for at in 0..20 {
        next.put(0, Some(at * 1000), pattern(0, at * 1000, 1000), SOON).await.unwrap();
    }
    assert_eq!(next.bytes_from(0, 0).await.unwrap(), pattern(0, 0, 20_000));
}

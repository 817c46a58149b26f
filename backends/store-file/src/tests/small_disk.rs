//! A small file system for one test, and what happens when it is full.

use crate::{
    DirectoryConfig, DirectorySet, DirectoryState, FileError, FileErrorKind, FileOperation, FileReader, FileWriter, sync_directory,
};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use store_api::clock::ManualClock;

/// A file system in memory; `None` (with the reason on the output) where none can be mounted.
pub(super) struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    pub(super) fn mount(size: &str) -> Option<Self> {
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

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

fn bytes(value: u8, length: usize) -> Bytes {
    vec![value; length].into()
}

#[test]
fn an_append_that_meets_a_full_disk_leaves_nothing_and_gives_its_room_back() {
    let Some(disk) = SmallDisk::mount("1m") else { return };
    let path = disk.path().join("f");
    let mut writer = FileWriter::create(&path).unwrap();
    writer.append(&[bytes(1, 300_000)]).unwrap();
    // Half of it fits: that half must not count, and must not take room.
    for _ in 0..3 {
        let refused = writer.append(&[bytes(2, 400_000), bytes(3, 900_000)]).unwrap_err();
        assert_eq!(refused.kind, FileErrorKind::Full, "{refused}");
        assert_eq!((writer.position(), std::fs::metadata(&path).unwrap().len()), (300_000, 300_000));
    }
    assert_eq!(writer.append(&[bytes(4, 500_000)]).unwrap(), 300_000, "what fits goes where the last one ended");
    writer.sync().unwrap();
    assert_eq!(writer.finish().unwrap(), 800_000);
    let held = FileReader::open(&path).unwrap().read_exact_at(0, 800_000).unwrap();
    assert!(held[..300_000].iter().all(|byte| *byte == 1) && held[300_000..].iter().all(|byte| *byte == 4));
}

#[test]
fn a_file_made_on_a_full_disk_takes_bytes_once_there_is_room() {
    let Some(disk) = SmallDisk::mount("1m") else { return };
    let filler = disk.path().join("filler");
    let mut writer = FileWriter::create(&disk.path().join("f")).unwrap();
    let _ = std::fs::write(&filler, vec![0; 2 << 20]);
    assert_eq!(writer.append(&[bytes(1, 10_000)]).unwrap_err().kind, FileErrorKind::Full);
    assert!(sync_directory(disk.path()).is_ok(), "names are kept on a full disk");
    std::fs::remove_file(&filler).unwrap();
    assert_eq!(writer.append(&[bytes(1, 10_000)]).unwrap(), 0);
}

#[test]
fn a_full_directory_is_full_and_not_failed_and_its_neighbour_takes_over() {
    let Some(disk) = SmallDisk::mount("4m") else { return };
    let other = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(0));
    let paths = vec![disk.path().join("small"), other.path().join("large")];
    let config = DirectoryConfig { reserve_bytes: 1 << 20, reserve_per_mille: 0, ..DirectoryConfig::new(paths) };
    let set = DirectorySet::open(config, clock.clone()).unwrap();
    assert_eq!(set.place(Some(0), 1000).unwrap(), 0, "as long as it has room");
    let filler = disk.path().join("filler");
    std::fs::write(&filler, vec![0; 3_200_000]).unwrap();
    clock.advance(Duration::from_secs(2));
    assert_eq!(set.place(Some(0), 1000).unwrap(), 1, "only the reserve is left");
    assert_eq!(set.statuses()[0].state, DirectoryState::Full);
    let mut writer = FileWriter::create(&disk.path().join("small/f")).unwrap();
    writer.append(&[bytes(1, 100_000)]).expect("the reserve is there for what must be written");
    set.report(1, &FileError::new(FileErrorKind::Full, FileOperation::Write, other.path()));
    assert_eq!(set.choose(1).unwrap_err().kind, FileErrorKind::Full, "both are full");
    std::fs::remove_file(&filler).unwrap();
    clock.advance(Duration::from_secs(2));
    assert_eq!(set.place(Some(0), 1000).unwrap(), 0, "room that came back is found without a restart");
    assert_eq!(set.statuses()[0].state, DirectoryState::Usable);
}

#[test]
fn a_set_on_a_full_disk_opens_so_that_it_can_be_read_and_emptied() {
    let Some(disk) = SmallDisk::mount("1m") else { return };
    let clock = Arc::new(ManualClock::new(0));
    let directory = disk.path().join("d");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("old"), b"bytes").unwrap();
    let _ = std::fs::write(disk.path().join("filler"), vec![0; 2 << 20]);
    let config = DirectoryConfig { reserve_bytes: 0, reserve_per_mille: 0, ..DirectoryConfig::new(vec![directory.clone()]) };
    let set = DirectorySet::open(config, clock.clone()).unwrap();
    assert_eq!(set.statuses()[0].state, DirectoryState::Full);
    assert_eq!(set.choose(1).unwrap_err().kind, FileErrorKind::Full);
    assert_eq!(FileReader::open(&directory.join("old")).unwrap().read_exact_at(0, 5).unwrap(), &b"bytes"[..]);
    std::fs::remove_file(disk.path().join("filler")).unwrap();
    clock.advance(Duration::from_secs(2));
    assert_eq!(set.choose(1).unwrap(), 0);
}

#[test]
fn two_directories_of_one_small_disk_do_not_promise_its_room_twice() {
    let Some(disk) = SmallDisk::mount("8m") else { return };
    let clock = Arc::new(ManualClock::new(0));
    let config = DirectoryConfig {
        reserve_bytes: 2 << 20,
        reserve_per_mille: 0,
        ..DirectoryConfig::new(vec![disk.path().join("one"), disk.path().join("two")])
    };
    let set = DirectorySet::open(config, clock.clone()).unwrap();
    let mut n_written = 0_u64;
    let refused = loop {
        match set.choose(500_000) {
            Ok(index) => {
                let path = set.path(index).unwrap().join(n_written.to_string());
                FileWriter::create(&path).unwrap().append(&[bytes(1, 500_000)]).expect("promised room is there");
                n_written += 1;
            }
            Err(error) => break error,
        }
        if n_written.is_multiple_of(3) {
            clock.advance(Duration::from_secs(1));
        }
        assert!(n_written < 20, "8 MiB less the reserve hold 12");
    };
    assert_eq!(refused.kind, FileErrorKind::Full);
    assert!((10..=12).contains(&n_written), "{n_written}");
    let left = rustix::fs::statvfs(disk.path()).map(|answer| answer.f_bavail * answer.f_frsize).unwrap();
    assert!(left >= 2 << 20, "the reserve is kept: {left}");
}

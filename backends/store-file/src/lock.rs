//! One process per directory.

use crate::error::{FileError, FileErrorKind, FileOperation};
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::path::Path;

/// Name of the lock file within a directory.
pub const LOCK_NAME: &str = "FOREBAY.LOCK";

/// Holds a directory for this process until it is dropped or the process ends, however it ends.
#[derive(Debug)]
pub struct DirectoryLock {
    _file: File,
}

impl DirectoryLock {
    /// Takes the lock, without waiting. The lock belongs to the file and not to its name, so it
    /// also holds when the directory is reached over another path. Errors: `Locked` with the
    /// directory's path when another holder lives, in this process or in another; otherwise what
    /// the system says.
    pub fn take(directory: &Path) -> Result<Self, FileError> {
        let path = directory.join(LOCK_NAME);
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = opened.map_err(|error| FileError::io(FileOperation::Lock, directory, error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(FileError::new(FileErrorKind::Locked, FileOperation::Lock, directory)),
            Err(error) => Err(FileError::io(FileOperation::Lock, directory, error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_holder_also_over_another_path() {
        let root = tempfile::tempdir().unwrap();
        let real = root.path().join("real");
        std::fs::create_dir(&real).unwrap();
        let other = root.path().join("other");
        std::os::unix::fs::symlink(&real, &other).unwrap();
        let held = DirectoryLock::take(&real).unwrap();
        let refused = DirectoryLock::take(&other).unwrap_err();
        assert_eq!(refused.kind, FileErrorKind::Locked);
        assert_eq!(refused.path, other, "the message names the directory that was asked for");
        drop(held);
        assert!(DirectoryLock::take(&other).is_ok());
    }
}

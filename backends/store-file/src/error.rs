//! What failed on a file, in the words a caller needs.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use store_api::{LossCause, StoreErrorKind};

/// What was being done to a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOperation {
    /// Opening or creating.
    Open,
    /// Reading a range.
    Read,
    /// Appending.
    Write,
    /// Forcing to the medium.
    Sync,
    /// Deleting or moving.
    Remove,
    /// Asking for free space or names.
    Probe,
    /// Taking the lock of a directory.
    Lock,
}

/// Why it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileErrorKind {
    /// No room: the file system or a quota is full, or only the reserve is left.
    Full,
    /// The file is not there.
    Missing,
    /// The file is there already.
    Exists,
    /// The file ends before the range that was asked for.
    Short,
    /// Another process holds the directory.
    Locked,
    /// A sync of this file failed before; it takes nothing any more.
    Poisoned,
    /// No lane of the directory became free in time: its disk hangs or is overloaded.
    Busy,
    /// Anything else that the system said.
    Io,
}

/// An error of this layer: kind, operation, path and what the system said.
#[derive(Debug)]
pub struct FileError {
    /// Why.
    pub kind: FileErrorKind,
    /// What was tried.
    pub operation: FileOperation,
    /// On what.
    pub path: PathBuf,
    /// What the system said; `None` when the refusal is our own.
    pub source: Option<io::Error>,
}

/// When a caller is told to try again after an error that may pass.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl FileError {
    /// A refusal of our own.
    #[must_use]
    pub fn new(kind: FileErrorKind, operation: FileOperation, path: &Path) -> Self {
        Self { kind, operation, path: path.to_path_buf(), source: None }
    }

    /// What the system said, sorted into a kind.
    #[must_use]
    pub fn io(operation: FileOperation, path: &Path, source: io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FileErrorKind::Full,
            io::ErrorKind::NotFound => FileErrorKind::Missing,
            io::ErrorKind::AlreadyExists => FileErrorKind::Exists,
            io::ErrorKind::UnexpectedEof => FileErrorKind::Short,
            _ => FileErrorKind::Io,
        };
        Self { kind, operation, path: path.to_path_buf(), source: Some(source) }
    }

    /// What a store says to its caller about this error when it is about bytes that were not yet
    /// promised to anybody: full disks are full, all else may pass.
    #[must_use]
    pub fn write_refusal(&self) -> StoreErrorKind {
        match self.kind {
            FileErrorKind::Full => StoreErrorKind::DiskFull,
            _ => StoreErrorKind::Unavailable { retry_after: RETRY_AFTER },
        }
    }

    /// What a store says to its caller about this error when it is about bytes that were promised:
    /// a missing file is a lost disk, a short one is damage. All else may pass.
    #[must_use]
    pub fn read_refusal(&self) -> StoreErrorKind {
        match self.kind {
            FileErrorKind::Missing => StoreErrorKind::Lost { cause: LossCause::Disk },
            FileErrorKind::Short => StoreErrorKind::Lost { cause: LossCause::Corruption },
            _ => StoreErrorKind::Unavailable { retry_after: RETRY_AFTER },
        }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}: {:?}", self.operation, self.path.display(), self.kind)?;
        match &self.source {
            Some(source) => write!(f, " ({source})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for FileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}

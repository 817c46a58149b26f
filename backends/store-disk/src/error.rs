//! From what the file layer and the index say to what a caller shall do.

use std::time::Duration;
use store_api::{Operation, StoreError, StoreErrorKind};
use store_file::FileError;

/// When a caller is told to try again after an error that may pass.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// An error about bytes that were not yet promised.
pub(crate) fn write_error(error: FileError, operation: Operation, subject: impl std::fmt::Display) -> StoreError {
    StoreError::new(error.write_refusal(), operation, subject).with_source(error)
}

/// An error that may pass.
pub(crate) fn unavailable(operation: Operation, subject: impl std::fmt::Display, source: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable { retry_after: RETRY_AFTER }, operation, subject).with_source(source.into())
}

/// A stored form that this build does not read.
pub(crate) fn format(reason: String) -> StoreError {
    StoreError::new(StoreErrorKind::Format { reason }, Operation::Recover, "the disk store")
}

/// What the index said, in a form that many waiters can share.
#[derive(Debug, Clone)]
pub(crate) struct IndexError {
    pub(crate) is_full: bool,
    pub(crate) is_closed: bool,
    pub(crate) message: String,
}

impl IndexError {
    pub(crate) fn closed() -> Self {
        Self { is_full: false, is_closed: true, message: "the index is closed".to_owned() }
    }

    pub(crate) fn broken(message: impl Into<String>) -> Self {
        Self { is_full: false, is_closed: false, message: message.into() }
    }

    pub(crate) fn at(self, operation: Operation, subject: impl std::fmt::Display) -> StoreError {
        let kind = match (self.is_closed, self.is_full) {
            (true, _) => StoreErrorKind::Closing,
            (_, true) => StoreErrorKind::DiskFull,
            _ => StoreErrorKind::Unavailable { retry_after: RETRY_AFTER },
        };
        StoreError::new(kind, operation, subject).with_source(self.message)
    }
}

impl From<rocksdb::Error> for IndexError {
    fn from(error: rocksdb::Error) -> Self {
        let message = error.into_string();
        let is_full = message.contains("No space left") || message.contains("NoSpace") || message.contains("quota exceeded");
        Self { is_full, is_closed: false, message }
    }
}

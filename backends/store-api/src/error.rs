//! Errors that say what the caller shall do.
//!
//! [`StoreErrorKind`] is the whole vocabulary of a store's refusals; a backend's own errors stay
//! private and travel as `source`. [`StoreErrorKind::retry`] is part of the contract: the service
//! and the client follow it.

use crate::ids::AttemptId;
use crate::offset::Offset;
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// What a store was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// [`crate::PartitionStore::open`]
    Open,
    /// [`crate::PartitionStore::reserve`]
    Reserve,
    /// [`crate::PartitionStore::append`]
    Append,
    /// [`crate::PartitionStore::tails`]
    Tails,
    /// [`crate::PartitionStore::prepare`]
    Prepare,
    /// [`crate::PartitionStore::publish`]
    Publish,
    /// [`crate::PartitionStore::abort`]
    Abort,
    /// [`crate::PartitionStore::read`]
    Read,
    /// [`crate::PartitionStore::stat`] and [`crate::PartitionStore::manifest`]
    Stat,
    /// [`crate::PartitionStore::acknowledge`]
    Acknowledge,
    /// [`crate::PartitionStore::complete_checkpoint`]
    Checkpoint,
    /// [`crate::PartitionStore::release`]
    Release,
    /// [`crate::PartitionStore::recover`] and opening a store
    Recover,
    /// [`crate::PartitionStore::close`]
    Close,
    /// A call of [`crate::Catalog`]
    Catalog,
}

/// Why bytes that were promised cannot be served any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LossCause {
    /// The node (or the life of it) that held them is gone.
    Node,
    /// The disk or data directory that held them failed.
    Disk,
    /// The object store does not have them any more.
    ObjectStore,
    /// They are there but fail their checks.
    Corruption,
}

impl LossCause {
    /// The stable name of the cause.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Disk => "disk",
            Self::ObjectStore => "object_store",
            Self::Corruption => "corruption",
        }
    }
}

/// Whether trying again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Retry {
    /// The same request will get the same answer.
    Never,
    /// The same request may succeed later.
    Same,
    /// Ask again where the data is, then repeat.
    AfterResolving,
}

/// What is wrong, as the caller needs to know it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreErrorKind {
    /// The attempt, partition or entry is not known and, as far as the store knows, never was.
    #[error("it is not known here")]
    NotFound,
    /// The attempt is still open and this class is readable only after its seal.
    #[error("it is not sealed yet")]
    NotSealed,
    /// The attempt is sealed or prepared; it takes no more bytes.
    #[error("it is sealed and takes no more bytes")]
    AlreadySealed,
    /// The append does not start at the tail, and is not a repeat of what is held.
    #[error("the next offset is {expected}")]
    OffsetMismatch {
        /// Where the next append must start.
        expected: Offset,
    },
    /// The append repeats an offset with other bytes than those held there.
    #[error("other bytes are held at this offset; the next offset is {expected}")]
    ContentMismatch {
        /// Where the next append must start.
        expected: Offset,
    },
    /// The bytes below the floor are gone by design.
    #[error("bytes below offset {floor} are not held any more")]
    BelowFloor {
        /// First byte still held.
        floor: Offset,
    },
    /// The read starts after the last byte.
    #[error("the content ends at offset {end}")]
    BeyondEnd {
        /// First byte after the content.
        end: Offset,
    },
    /// There is no such subpartition.
    #[error("there are {count} subpartitions")]
    NoSuchSubpartition {
        /// Number of subpartitions.
        count: u32,
    },
    /// The seal states other lengths or digests than those of the bytes held.
    #[error("subpartition {subpartition} holds {held}, {stated} was stated")]
    DigestMismatch {
        /// The first subpartition that differs.
        subpartition: u32,
        /// What is held.
        held: crate::chunk::Digest,
        /// What was stated.
        stated: crate::chunk::Digest,
    },
    /// A newer attempt or generation has taken its place.
    #[error("attempt {by} has taken its place")]
    Fenced {
        /// What superseded it.
        by: AttemptId,
    },
    /// The writer, or the arbitration, ended the attempt without a result.
    #[error("it was aborted")]
    Aborted,
    /// The owner released it.
    #[error("it was released")]
    Released,
    /// It was sealed and cannot be served any more.
    #[error("it is lost ({})", cause.as_str())]
    Lost {
        /// Why.
        cause: LossCause,
    },
    /// Budgets are used up for now.
    #[error("no room for now, try again in {retry_after:?}")]
    Overloaded {
        /// Computed from how fast room becomes free.
        retry_after: Duration,
    },
    /// The retention of a pipelined dataset cannot be kept: memory, disk or quota is full and the
    /// floor did not move before the deadline.
    #[error("the retention cannot be kept: nothing was acknowledged in time")]
    RetentionExhausted,
    /// The request alone is larger than what could ever be free.
    #[error("{requested} bytes are more than the limit of {limit}")]
    TooLarge {
        /// What was asked for.
        requested: u64,
        /// What could be granted at the most.
        limit: u64,
    },
    /// No data directory has room.
    #[error("the disk is full")]
    DiskFull,
    /// The store cannot do this or cannot keep this class.
    #[error("{reason}")]
    Unsupported {
        /// What is missing.
        reason: &'static str,
    },
    /// The medium does not answer; nothing is known to be lost.
    #[error("the storage does not answer, try again in {retry_after:?}")]
    Unavailable {
        /// When to try again.
        retry_after: Duration,
    },
    /// A conditional write met another value than expected.
    #[error("another writer was first")]
    Conflict,
    /// The store is closing or closed.
    #[error("the store is closing")]
    Closing,
    /// The stored form has a version or shape that this build does not read.
    #[error("the stored form is not readable: {reason}")]
    Format {
        /// What was found, and where.
        reason: String,
    },
    /// A defect of this program or of its surroundings that no other kind describes.
    #[error("an internal error")]
    Internal,
}

impl StoreErrorKind {
    /// Whether trying again can help.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        match self {
            Self::Overloaded { .. } | Self::Unavailable { .. } | Self::NotSealed | Self::DiskFull => Retry::Same,
            Self::Closing | Self::Lost { cause: LossCause::Node } => Retry::AfterResolving,
            Self::NotFound
            | Self::AlreadySealed
            | Self::OffsetMismatch { .. }
            | Self::ContentMismatch { .. }
            | Self::BelowFloor { .. }
            | Self::BeyondEnd { .. }
            | Self::NoSuchSubpartition { .. }
            | Self::DigestMismatch { .. }
            | Self::Fenced { .. }
            | Self::Aborted
            | Self::Released
            | Self::Lost { .. }
            | Self::RetentionExhausted
            | Self::TooLarge { .. }
            | Self::Unsupported { .. }
            | Self::Conflict
            | Self::Format { .. }
            | Self::Internal => Retry::Never,
        }
    }
}

/// An error of a store: what it was doing, to what, what is wrong, and the private cause.
///
/// `Display` is fit for a client: it names ids and numbers only. The `source` chain is for the log
/// and may name paths and addresses.
pub struct StoreError {
    inner: Box<StoreErrorInner>,
}

struct StoreErrorInner {
    kind: StoreErrorKind,
    operation: Operation,
    subject: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// An error about `subject` (an attempt, a partition, a catalog key).
    pub fn new(kind: StoreErrorKind, operation: Operation, subject: impl fmt::Display) -> Self {
        Self { inner: Box::new(StoreErrorInner { kind, operation, subject: subject.to_string(), source: None }) }
    }

    /// Attaches the private cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.inner.source = Some(source.into());
        self
    }

    /// What is wrong.
    #[must_use]
    pub const fn kind(&self) -> &StoreErrorKind {
        &self.inner.kind
    }

    /// What the store was doing.
    #[must_use]
    pub const fn operation(&self) -> Operation {
        self.inner.operation
    }

    /// What it was doing it to.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.inner.subject
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}: {}", self.inner.operation, self.inner.subject, self.inner.kind)
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        match &self.inner.source {
            Some(source) => write!(f, " ({source})"),
            None => Ok(()),
        }
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.inner.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_message_does_not_hold_the_private_cause() {
        let cause = std::io::Error::other("/var/lib/secret-path");
        let error = StoreError::new(StoreErrorKind::DiskFull, Operation::Append, "job@1/d/0/0.0").with_source(cause);
        assert_eq!(error.to_string(), "Append of job@1/d/0/0.0: the disk is full");
        assert!(format!("{error:?}").contains("secret-path"));
        assert!(error.source().is_some());
    }

    #[test]
    fn an_error_is_small_enough_to_return_everywhere() {
        assert_eq!(size_of::<StoreError>(), size_of::<usize>());
    }
}

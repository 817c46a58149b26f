//! What the service refuses, and what the caller shall do: one vocabulary that the HTTP layer maps,
//! variant by variant, to the codes of the protocol.

use super::calls::Location;
use std::error::Error;
use std::fmt;
use std::time::Duration;
use store_api::{AttemptId, JobEpoch, LossCause, NodeLife, Offset, StoreError, StoreErrorKind};

/// When a caller shall come back after a refusal for which nothing better is known.
pub const DEFAULT_RETRY: Duration = Duration::from_secs(1);

/// What has taken the place of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FencedBy {
    /// A higher generation, or a higher attempt of a pipelined partition.
    Attempt(AttemptId),
    /// A newer owner of the job.
    Epoch(JobEpoch),
    /// A newer life of this node.
    Life(NodeLife),
    /// A newer frame stream of the same attempt.
    FrameStream,
}

impl fmt::Display for FencedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attempt(attempt) => write!(f, "attempt {attempt}"),
            Self::Epoch(epoch) => write!(f, "the owner with epoch {epoch}"),
            Self::Life(life) => write!(f, "life {life} of this node"),
            Self::FrameStream => f.write_str("a newer frame stream"),
        }
    }
}

/// What is wrong, as the caller needs to know it. `Display` is fit for a client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceErrorKind {
    /// The request cannot mean anything; it is refused before anything changed.
    #[error("{reason}")]
    BadRequest {
        /// What is wrong with it.
        reason: String,
    },
    /// No token was given, or one that is not known.
    #[error("a valid token is needed")]
    Unauthenticated,
    /// The token does not cover this.
    #[error("the token does not cover this")]
    Forbidden,
    /// The job never existed here.
    #[error("there is no such job")]
    UnknownJob,
    /// The dataset never existed in this job.
    #[error("the job has no such dataset")]
    UnknownDataset,
    /// The partition or subpartition is outside what the dataset declares.
    #[error("the dataset has no such partition or subpartition")]
    UnknownPartition,
    /// The attempt was never opened in this life of the node.
    #[error("there is no such attempt")]
    UnknownAttempt,
    /// No attempt at the partition has been opened yet.
    #[error("the partition has not been written yet")]
    NotWritten,
    /// The partition is open, and is readable after its seal only.
    #[error("the partition is not sealed yet")]
    NotSealed,
    /// The attempt is sealed and takes no more bytes.
    #[error("the attempt is sealed and takes no more bytes")]
    AlreadySealed,
    /// The append leaves a gap.
    #[error("the next offset is {expected}")]
    OffsetMismatch {
        /// Where to go on.
        expected: Offset,
    },
    /// Other bytes are held at this offset.
    #[error("other bytes are held at this offset; the next offset is {expected}")]
    ContentMismatch {
        /// Where to go on.
        expected: Offset,
    },
    /// The frame is not the next one.
    #[error("the next frame has sequence {expected}")]
    SequenceMismatch {
        /// Sequence of the next frame.
        expected: u64,
    },
    /// The seal states other lengths or digests than those held. Nothing became visible.
    #[error("what is held differs from what was stated: {detail}")]
    DigestMismatch {
        /// The first subpartition that differs.
        subpartition: u32,
        /// How it differs.
        detail: String,
    },
    /// The same name exists with another specification.
    #[error("it exists with another {member}")]
    SpecConflict {
        /// The first member that differs.
        member: &'static str,
    },
    /// The job has another owner; a take-over must be asked for.
    #[error("the job has another owner, of epoch {epoch}")]
    JobOwned {
        /// Epoch of the present owner.
        epoch: JobEpoch,
    },
    /// Another attempt than the one named is the sealed content.
    #[error("attempt {winner} is the content of the partition")]
    OtherAttemptWon {
        /// The sealed content.
        winner: AttemptId,
    },
    /// The attempt was ended without a result.
    #[error("the attempt was aborted")]
    Aborted,
    /// The owner released it.
    #[error("it was released")]
    Released,
    /// The lease of its job ran out.
    #[error("the lease of the job ran out")]
    Expired,
    /// It was made and cannot be served any more.
    #[error("it is lost ({})", cause.as_str())]
    Lost {
        /// Why.
        cause: LossCause,
    },
    /// The bytes were let go by design.
    #[error("bytes below offset {floor} are not held any more")]
    BelowFloor {
        /// First byte still held.
        floor: Offset,
    },
    /// Something newer has taken the caller's place.
    #[error("{by} has taken its place")]
    Fenced {
        /// What it was.
        by: FencedBy,
    },
    /// Larger than can ever be taken.
    #[error("it is over the limit of {limit}")]
    TooLarge {
        /// The limit: bytes, or items of a list.
        limit: u64,
    },
    /// The range lies outside the content.
    #[error("the content ends at offset {end}")]
    RangeNotSatisfiable {
        /// First byte after the content.
        end: Offset,
    },
    /// This node cannot keep the class that was asked for.
    #[error("this node cannot keep it: {reason}")]
    ClassUnavailable {
        /// What is missing.
        reason: String,
    },
    /// The call must name the job epoch.
    #[error("the call must name the epoch of the job")]
    EpochRequired,
    /// The call must name the node life.
    #[error("the call must name the life of the node")]
    LifeRequired,
    /// The job's quota is used up; release something.
    #[error("the job's quota of {quota_bytes} bytes is used up")]
    OverQuota {
        /// The quota, in bytes.
        quota_bytes: u64,
        /// When to try again.
        retry_after: Duration,
    },
    /// A defect; the source chain has the cause.
    #[error("an internal error")]
    Internal,
    /// Budgets are used up for now.
    #[error("no room for now, try again in {retry_after:?}")]
    Overloaded {
        /// When to try again.
        retry_after: Duration,
    },
    /// The node finishes what it has and takes nothing new.
    #[error("the node takes nothing new")]
    Draining,
    /// The node is closing.
    #[error("the node is going down")]
    Closing,
    /// A storage medium or the arbiter does not answer; nothing is known to be lost.
    #[error("the storage does not answer, try again in {retry_after:?}")]
    Unavailable {
        /// When to try again.
        retry_after: Duration,
    },
    /// No data directory has room.
    #[error("the disk is full")]
    DiskFull,
    /// A pipelined retention cannot be kept: nothing was acknowledged in time.
    #[error("the retention cannot be kept: nothing was acknowledged in time")]
    RetentionExhausted,
    /// Another node holds it: a read may go there once.
    #[error("node {} holds it", location.node)]
    Moved {
        /// Where.
        location: Location,
    },
}

/// An error of the service. `Display` names ids and numbers only; the `source` chain is for the log.
pub struct ServiceError {
    inner: Box<Inner>,
}

struct Inner {
    kind: ServiceErrorKind,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// What most calls answer.
pub type ServiceResult<T> = Result<T, ServiceError>;

impl ServiceError {
    /// An error without a private cause.
    #[must_use]
    pub fn new(kind: ServiceErrorKind) -> Self {
        Self { inner: Box::new(Inner { kind, source: None }) }
    }

    /// A request that cannot mean anything.
    pub fn bad_request(reason: impl Into<String>) -> Self {
        Self::new(ServiceErrorKind::BadRequest { reason: reason.into() })
    }

    /// Attaches the private cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.inner.source = Some(source.into());
        self
    }

    /// What is wrong.
    #[must_use]
    pub const fn kind(&self) -> &ServiceErrorKind {
        &self.inner.kind
    }
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.kind.fmt(f)
    }
}

impl fmt::Debug for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.inner.kind)?;
        match &self.inner.source {
            Some(source) => write!(f, " ({source:?})"),
            None => Ok(()),
        }
    }
}

impl Error for ServiceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.inner.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

impl From<ServiceErrorKind> for ServiceError {
    fn from(kind: ServiceErrorKind) -> Self {
        Self::new(kind)
    }
}

impl From<StoreError> for ServiceError {
    /// The store's refusal in the service's words; the store's error stays as the source.
    fn from(error: StoreError) -> Self {
        use ServiceErrorKind as K;
        let kind = match error.kind() {
            StoreErrorKind::NotFound => K::UnknownAttempt,
            StoreErrorKind::NotSealed => K::NotSealed,
            StoreErrorKind::AlreadySealed => K::AlreadySealed,
            StoreErrorKind::OffsetMismatch { expected } => K::OffsetMismatch { expected: *expected },
            StoreErrorKind::ContentMismatch { expected } => K::ContentMismatch { expected: *expected },
            StoreErrorKind::BelowFloor { floor } => K::BelowFloor { floor: *floor },
            StoreErrorKind::BeyondEnd { end } => K::RangeNotSatisfiable { end: *end },
            StoreErrorKind::NoSuchSubpartition { .. } => K::UnknownPartition,
            mismatch @ StoreErrorKind::DigestMismatch { subpartition, .. } => {
                K::DigestMismatch { subpartition: *subpartition, detail: mismatch.to_string() }
            }
            StoreErrorKind::Fenced { by } => K::Fenced { by: FencedBy::Attempt(*by) },
            StoreErrorKind::Aborted => K::Aborted,
            StoreErrorKind::Released => K::Released,
            StoreErrorKind::Lost { cause } => K::Lost { cause: *cause },
            StoreErrorKind::Overloaded { retry_after } => K::Overloaded { retry_after: *retry_after },
            StoreErrorKind::RetentionExhausted => K::RetentionExhausted,
            StoreErrorKind::TooLarge { limit, .. } => K::TooLarge { limit: *limit },
            StoreErrorKind::DiskFull => K::DiskFull,
            StoreErrorKind::Unsupported { reason } => K::ClassUnavailable { reason: (*reason).to_owned() },
            StoreErrorKind::Unavailable { retry_after } => K::Unavailable { retry_after: *retry_after },
            // A conditional write that lost a race is repeated by its caller; what leaves it is a
            // medium that could not be brought to an answer.
            StoreErrorKind::Conflict => K::Unavailable { retry_after: DEFAULT_RETRY },
            StoreErrorKind::Closing => K::Closing,
            StoreErrorKind::Format { .. } | StoreErrorKind::Internal => K::Internal,
        };
        Self::new(kind).with_source(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store_api::Operation;

    #[test]
    fn a_store_refusal_keeps_its_details_and_hides_its_cause() {
        let store = StoreError::new(StoreErrorKind::OffsetMismatch { expected: Offset::new(7) }, Operation::Append, "j@1/d/0/0.0")
            .with_source("/var/lib/secret");
        let error = ServiceError::from(store);
        assert_eq!(error.kind(), &ServiceErrorKind::OffsetMismatch { expected: Offset::new(7) });
        assert_eq!(error.to_string(), "the next offset is 7");
        assert!(format!("{error:?}").contains("secret"));
    }

    #[test]
    fn a_store_that_is_closing_is_told_apart_from_one_that_does_not_answer() {
        let of = |kind| ServiceError::from(StoreError::new(kind, Operation::Append, "x")).kind().clone();
        assert_eq!(of(StoreErrorKind::Closing), ServiceErrorKind::Closing);
        let retry_after = Duration::from_secs(3);
        assert_eq!(of(StoreErrorKind::Unavailable { retry_after }), ServiceErrorKind::Unavailable { retry_after });
    }

    #[test]
    fn an_error_is_small_enough_to_return_everywhere() {
        assert_eq!(size_of::<ServiceError>(), size_of::<usize>());
    }
}

//! Layers: stores around stores. Each adds one thing to every call and forwards everything else;
//! the compiler refuses a layer that leaves a method to its default.
//!
//! | layer | adds |
//! |---|---|
//! | [`Deadline`] | an end to calls that would hang with their medium |
//! | [`Traced`] | events for the log |
//! | [`Metered`] | counts and times |
//!
//! They know the contract and the metrics, and no backend.

mod deadline;
mod marks;
mod metered;
#[cfg(test)]
mod tests;
mod traced;

pub use deadline::Deadline;
pub use metered::Metered;
pub use traced::Traced;

use store_api::{StoreClass, StoreErrorKind};

/// The name of a class in labels and fields.
#[must_use]
pub const fn class_name(class: StoreClass) -> &'static str {
    match class {
        StoreClass::Pipelined => "pipelined",
        StoreClass::Blocking => "blocking",
        StoreClass::Durable => "durable",
    }
}

/// The name of a refusal in labels and fields.
#[must_use]
pub const fn refusal_name(kind: &StoreErrorKind) -> &'static str {
    match kind {
        StoreErrorKind::NotFound => "not_found",
        StoreErrorKind::NotSealed => "not_sealed",
        StoreErrorKind::AlreadySealed => "already_sealed",
        StoreErrorKind::OffsetMismatch { .. } => "offset_mismatch",
        StoreErrorKind::ContentMismatch { .. } => "content_mismatch",
        StoreErrorKind::BelowFloor { .. } => "below_floor",
        StoreErrorKind::BeyondEnd { .. } => "beyond_end",
        StoreErrorKind::NoSuchSubpartition { .. } => "no_such_subpartition",
        StoreErrorKind::DigestMismatch { .. } => "digest_mismatch",
        StoreErrorKind::Fenced { .. } => "fenced",
        StoreErrorKind::Aborted => "aborted",
        StoreErrorKind::Released => "released",
        StoreErrorKind::Lost { .. } => "lost",
        StoreErrorKind::Overloaded { .. } => "overloaded",
        StoreErrorKind::RetentionExhausted => "retention_exhausted",
        StoreErrorKind::TooLarge { .. } => "too_large",
        StoreErrorKind::DiskFull => "disk_full",
        StoreErrorKind::Unsupported { .. } => "unsupported",
        StoreErrorKind::Unavailable { .. } => "unavailable",
        StoreErrorKind::Conflict => "conflict",
        StoreErrorKind::Closing => "closing",
        StoreErrorKind::Format { .. } => "format",
        StoreErrorKind::Internal => "internal",
    }
}

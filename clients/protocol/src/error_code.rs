//! Every machine-readable code of an answer that is not a success, with its HTTP status and whether
//! a retry can help. The table is the contract: `openapi.yaml` lists the same codes.

use serde::{Deserialize, Serialize};

/// Whether trying again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retryable {
    /// The same request will get the same answer.
    Never,
    /// The same request may succeed later.
    SameRequest,
    /// Ask for the location again, then repeat.
    AfterResolving,
}

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $status:literal, $retryable:ident;)*) => {
        /// What an answer that is not a success means.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum ErrorCode {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl ErrorCode {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The stable text.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }

            /// The HTTP status it comes with.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status),* }
            }

            /// Whether trying again can help.
            #[must_use]
            pub const fn retryable(self) -> Retryable {
                match self { $(Self::$name => Retryable::$retryable),* }
            }
        }
    };
}

error_codes! {
    /// The request does not have the documented form.
    BadRequest = "bad_request", 400, Never;
    /// A frame stream is damaged or was cut; what was acknowledged before stays.
    BadFrame = "bad_frame", 400, Never;
    /// The body does not have its Content-Digest; nothing of it was stored.
    ContentDigestMismatch = "content_digest_mismatch", 400, SameRequest;
    /// The body ended early; nothing of an atomic append was stored.
    BodyCut = "body_cut", 400, SameRequest;
    /// No token, or one that is not known.
    Unauthenticated = "unauthenticated", 401, Never;
    /// The token does not cover this.
    Forbidden = "forbidden", 403, Never;
    /// There is no such route.
    UnknownRoute = "unknown_route", 404, Never;
    /// The job never existed here.
    UnknownJob = "unknown_job", 404, Never;
    /// The dataset never existed in this job.
    UnknownDataset = "unknown_dataset", 404, Never;
    /// The partition or subpartition is outside what the dataset declares.
    UnknownPartition = "unknown_partition", 404, Never;
    /// The attempt was never opened in this life of the node.
    UnknownAttempt = "unknown_attempt", 404, Never;
    /// No graph was declared for the job.
    UnknownGraph = "unknown_graph", 404, Never;
    /// The worker is not registered, or counts as gone: register again.
    UnknownWorker = "unknown_worker", 404, Never;
    /// There is no plan of this number.
    UnknownPlan = "unknown_plan", 404, Never;
    /// The route has no such method.
    MethodNotAllowed = "method_not_allowed", 405, Never;
    /// The client was too slow to send its request.
    RequestTimeout = "request_timeout", 408, SameRequest;
    /// No attempt at the partition has been opened yet.
    NotWritten = "not_written", 409, SameRequest;
    /// The partition is open: readable after its seal.
    NotSealed = "not_sealed", 409, SameRequest;
    /// The attempt is sealed and takes no more bytes.
    AlreadySealed = "already_sealed", 409, Never;
    /// The append leaves a gap; `expected_offset` says where to go on.
    OffsetMismatch = "offset_mismatch", 409, Never;
    /// Other bytes are held at this offset.
    ContentMismatch = "content_mismatch", 409, Never;
    /// The frame is not the next one; `expected_sequence` says which is.
    SequenceMismatch = "sequence_mismatch", 409, Never;
    /// The seal states other lengths or digests than those held.
    DigestMismatch = "digest_mismatch", 409, Never;
    /// The same name exists with another specification.
    SpecConflict = "spec_conflict", 409, Never;
    /// The job has another owner; a take-over must be asked for.
    JobOwned = "job_owned", 409, Never;
    /// Another attempt than the one named is the sealed content; `attempt` names it.
    OtherAttemptWon = "other_attempt_won", 409, Never;
    /// The attempt was ended without a result.
    Aborted = "aborted", 410, Never;
    /// The owner released it.
    Released = "released", 410, Never;
    /// The lease of its job ran out.
    Expired = "expired", 410, Never;
    /// It was made and cannot be served any more; `cause` says why.
    Lost = "lost", 410, Never;
    /// The bytes were let go by design; `floor` is the first offset still held.
    BelowFloor = "below_floor", 410, Never;
    /// A newer owner, generation, attempt, frame stream or node life has taken its place.
    Fenced = "fenced", 412, Never;
    /// The body, or what it asks for, is larger than can ever be taken; `limit_bytes` says how large.
    TooLarge = "too_large", 413, Never;
    /// The media type is not the documented one.
    UnsupportedMediaType = "unsupported_media_type", 415, Never;
    /// The range lies outside the content; `end_offset` is its length.
    RangeNotSatisfiable = "range_not_satisfiable", 416, Never;
    /// This node is no coordinator: ask the one that the cluster has.
    NotCoordinator = "not_coordinator", 421, AfterResolving;
    /// This node cannot keep the class that was asked for.
    ClassUnavailable = "class_unavailable", 422, Never;
    /// The call must name the job epoch.
    EpochRequired = "epoch_required", 428, Never;
    /// The call must name the node life.
    LifeRequired = "life_required", 428, Never;
    /// The job's quota is used up.
    OverQuota = "over_quota", 429, SameRequest;
    /// A defect; the log has the cause.
    Internal = "internal", 500, SameRequest;
    /// Budgets are used up for now.
    Overloaded = "overloaded", 503, SameRequest;
    /// The node finishes what it has and takes nothing new.
    Draining = "draining", 503, AfterResolving;
    /// The node is not ready yet.
    Starting = "starting", 503, SameRequest;
    /// A storage medium does not answer; nothing is known to be lost.
    Unavailable = "unavailable", 503, SameRequest;
    /// No data directory has room.
    DiskFull = "disk_full", 507, SameRequest;
    /// A pipelined retention cannot be kept: nothing was acknowledged in time.
    RetentionExhausted = "retention_exhausted", 507, Never;
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_print_as_they_parse() {
        let mut seen = std::collections::BTreeSet::new();
        for code in ErrorCode::ALL {
            assert!(seen.insert(code.as_str()), "{code} is there twice");
            let json = serde_json::to_string(code).unwrap_or_default();
            assert_eq!(json, format!("\"{code}\""));
            assert_eq!(serde_json::from_str::<ErrorCode>(&json).ok(), Some(*code));
            assert!((400..600).contains(&code.status()));
        }
    }

    #[test]
    fn what_is_gone_for_good_is_never_worth_a_retry() {
        for code in ErrorCode::ALL.iter().filter(|code| code.status() == 410) {
            assert_eq!(code.retryable(), Retryable::Never, "{code}");
        }
    }
}

//! Header names and media types.

/// Life of the node that a write is meant for; required on every write.
pub const NODE_LIFE: &str = "forebay-node-life";
/// Node that answers.
pub const NODE: &str = "forebay-node";
/// Epoch of the job's owner; required on control calls (release, lease, raising a generation).
pub const JOB_EPOCH: &str = "forebay-job-epoch";
/// Attempt whose bytes are in the body, `{generation}.{attempt}`.
pub const ATTEMPT: &str = "forebay-attempt";
/// Class achieved of the attempt that is read, as in [`crate::partitions::ClassDocument::text`].
pub const CLASS: &str = "forebay-class";
/// Offset of the first byte of a body that tails an open attempt.
pub const START_OFFSET: &str = "forebay-start-offset";
/// Trailer: first offset after the last byte of a body that tailed an open attempt.
pub const NEXT_OFFSET: &str = "forebay-next-offset";
/// Trailer (in the head of an answer without a byte): why a tailing body ended, one of
/// [`END_REASONS`].
pub const END_REASON: &str = "forebay-end-reason";
/// [`END_REASON`]: the body ended at the sealed end; there is nothing behind it.
pub const END_SEALED: &str = "sealed";
/// [`END_REASON`]: the body ended at the `to` of the request; the content goes on, or may.
pub const END_RANGE: &str = "range";
/// [`END_REASON`]: nothing came for the wait that was asked for, or the node ends; ask again from
/// [`NEXT_OFFSET`] on.
pub const END_WAITED: &str = "waited";
/// Every value of [`END_REASON`].
pub const END_REASONS: [&str; 3] = [END_SEALED, END_RANGE, END_WAITED];

/// Media type of frame streams; see `store_api::frame`.
pub const FRAMES_MEDIA_TYPE: &str = "application/vnd.forebay.frames";
/// Media type of problem documents (RFC 9457).
pub const PROBLEM_MEDIA_TYPE: &str = "application/problem+json";
/// Media type of the bytes of a subpartition.
pub const BYTES_MEDIA_TYPE: &str = "application/octet-stream";

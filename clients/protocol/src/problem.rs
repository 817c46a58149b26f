//! The problem document (RFC 9457) of every answer that is not a success.

use crate::error_code::{ErrorCode, Retryable};
use serde::{Deserialize, Serialize};

/// Says what is wrong, in a form that a program can act on. Members that do not apply are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// `urn:forebay:problem:{code}`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The code in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened to what, for people. Holds ids and numbers, no paths and no secrets.
    pub detail: String,
    /// The machine-readable code.
    pub code: ErrorCode,
    /// Whether trying again can help.
    pub retryable: Retryable,
    /// When to try again, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Offset at which the next append must start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_offset: Option<u64>,
    /// Sequence of the next frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_sequence: Option<u64>,
    /// The first subpartition that differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subpartition: Option<u32>,
    /// First offset still held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<u64>,
    /// First offset after the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_offset: Option<u64>,
    /// Largest size that is taken, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// The attempt that superseded, or that won, `{generation}.{attempt}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<String>,
    /// The job epoch that superseded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// The node life that superseded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life: Option<String>,
    /// Why something is lost: `node`, `disk`, `object_store`, `corruption`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

impl Problem {
    /// A problem with a code and a detail; the other members follow from the code or are left out.
    #[must_use]
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:forebay:problem:{code}"),
            title: code.as_str().replace('_', " "),
            status: code.status(),
            detail: detail.into(),
            code,
            retryable: code.retryable(),
            retry_after_ms: None,
            expected_offset: None,
            expected_sequence: None,
            subpartition: None,
            floor: None,
            end_offset: None,
            limit_bytes: None,
            attempt: None,
            epoch: None,
            life: None,
            cause: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_do_not_apply_are_left_out() {
        let problem = Problem { expected_offset: Some(7), ..Problem::new(ErrorCode::OffsetMismatch, "gap") };
        let json = serde_json::to_value(&problem).unwrap_or_default();
        assert_eq!(
            json,
            serde_json::json!({
                "type": "urn:forebay:problem:offset_mismatch", "title": "offset mismatch", "status": 409, "detail": "gap",
                "code": "offset_mismatch", "retryable": "never", "expected_offset": 7,
            })
        );
        assert_eq!(serde_json::from_value::<Problem>(json).ok(), Some(problem));
    }
}

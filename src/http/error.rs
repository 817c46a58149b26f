//! Refusals: from the service's words to the problem document of the protocol. One table, no
//! catch-all, so that a new kind of refusal does not compile until it has a code.

use crate::coordinator::CoordinatorError;
use crate::service::{FencedBy, Location, ServiceError, ServiceErrorKind};
use axum::response::{IntoResponse, Response};
use forebay_protocol::headers::PROBLEM_MEDIA_TYPE;
use forebay_protocol::{ErrorCode, Problem};
use http::header::{ALLOW, CONTENT_RANGE, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};
use std::time::Duration;

/// What a caller is told who shall come back, when nothing better is known.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// An answer that is not a success.
#[derive(Debug, Clone)]
pub struct Refusal {
    problem: Box<Problem>,
}

/// What a handler answers.
pub(crate) type Answer<T = Response> = Result<T, Refusal>;

impl Refusal {
    /// A refusal with a code and a detail for people.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self::of(Problem::new(code, detail))
    }

    fn of(mut problem: Problem) -> Self {
        if problem.retry_after_ms.is_none() && asks_to_come_back(problem.code) {
            problem.retry_after_ms = Some(as_ms(RETRY));
        }
        Self { problem: Box::new(problem) }
    }

    /// The request does not have the documented form.
    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(ErrorCode::BadRequest, detail)
    }

    /// Larger than `limit_bytes`.
    pub(crate) fn too_large(limit_bytes: u64) -> Self {
        let detail = format!("it is over the limit of {limit_bytes} bytes");
        Self::of(Problem { limit_bytes: Some(limit_bytes), ..Problem::new(ErrorCode::TooLarge, detail) })
    }

    /// More than `limit` items in a list.
    pub(crate) fn too_many(limit: u64) -> Self {
        Self::new(ErrorCode::TooLarge, format!("it names more than {limit} items"))
    }

    /// The same refusal that also names the next frame's sequence.
    pub(crate) fn expecting_sequence(mut self, sequence: u64) -> Self {
        self.problem.expected_sequence.get_or_insert(sequence);
        self
    }

    /// The document.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The document as it stands in an answer or in a frame.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        // A struct of texts and numbers always has a JSON form.
        serde_json::to_vec(&self.problem).unwrap_or_default()
    }
}

const fn asks_to_come_back(code: ErrorCode) -> bool {
    matches!(code.status(), 429 | 503 | 507) && !matches!(code, ErrorCode::RetentionExhausted)
}

fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl From<ServiceError> for Refusal {
    fn from(error: ServiceError) -> Self {
        Self::from(&error)
    }
}

impl From<&ServiceError> for Refusal {
    fn from(error: &ServiceError) -> Self {
        let code = code_of(error.kind());
        if code == ErrorCode::Internal {
            tracing::error!(error = ?error, "an internal error was answered");
        } else {
            tracing::debug!(error = ?error, %code, "refused");
        }
        Self::of(with_members(Problem::new(code, error.to_string()), error.kind()))
    }
}

impl From<CoordinatorError> for Refusal {
    fn from(error: CoordinatorError) -> Self {
        use CoordinatorError as E;
        let code = match &error {
            E::UnknownGraph => ErrorCode::UnknownGraph,
            E::UnknownWorker => ErrorCode::UnknownWorker,
            E::UnknownPlan => ErrorCode::UnknownPlan,
            E::BadRequest(_) | E::Graph(_) | E::Budget(_) => ErrorCode::BadRequest,
            E::GraphConflict => ErrorCode::SpecConflict,
            E::FencedByEpoch(_) | E::FencedByLife(_) => ErrorCode::Fenced,
            E::TooLarge(_) => ErrorCode::TooLarge,
            E::Journal(_) => ErrorCode::Unavailable,
            E::Closing => ErrorCode::Draining,
        };
        tracing::debug!(%error, %code, "refused");
        let problem = Problem::new(code, error.to_string());
        Self::of(match error {
            E::FencedByEpoch(epoch) => Problem { epoch: Some(epoch.get()), ..problem },
            E::FencedByLife(life) => Problem { life: Some(life.to_string()), ..problem },
            E::TooLarge(limit) => Problem { limit_bytes: Some(limit), ..problem },
            _ => problem,
        })
    }
}

/// The table: every refusal of the service and its code.
const fn code_of(kind: &ServiceErrorKind) -> ErrorCode {
    use ServiceErrorKind as K;
    match kind {
        K::BadRequest { .. } => ErrorCode::BadRequest,
        K::Unauthenticated => ErrorCode::Unauthenticated,
        K::Forbidden => ErrorCode::Forbidden,
        K::UnknownJob => ErrorCode::UnknownJob,
        K::UnknownDataset => ErrorCode::UnknownDataset,
        K::UnknownPartition => ErrorCode::UnknownPartition,
        K::UnknownAttempt => ErrorCode::UnknownAttempt,
        K::NotWritten => ErrorCode::NotWritten,
        K::NotSealed => ErrorCode::NotSealed,
        K::AlreadySealed => ErrorCode::AlreadySealed,
        K::OffsetMismatch { .. } => ErrorCode::OffsetMismatch,
        K::ContentMismatch { .. } => ErrorCode::ContentMismatch,
        K::SequenceMismatch { .. } => ErrorCode::SequenceMismatch,
        K::DigestMismatch { .. } => ErrorCode::DigestMismatch,
        K::SpecConflict { .. } => ErrorCode::SpecConflict,
        K::JobOwned { .. } => ErrorCode::JobOwned,
        K::OtherAttemptWon { .. } => ErrorCode::OtherAttemptWon,
        K::Aborted => ErrorCode::Aborted,
        K::Released => ErrorCode::Released,
        K::Expired => ErrorCode::Expired,
        K::Lost { .. } => ErrorCode::Lost,
        K::BelowFloor { .. } => ErrorCode::BelowFloor,
        K::Fenced { .. } => ErrorCode::Fenced,
        K::TooLarge { .. } => ErrorCode::TooLarge,
        K::RangeNotSatisfiable { .. } => ErrorCode::RangeNotSatisfiable,
        K::ClassUnavailable { .. } => ErrorCode::ClassUnavailable,
        K::EpochRequired => ErrorCode::EpochRequired,
        K::LifeRequired => ErrorCode::LifeRequired,
        K::OverQuota { .. } => ErrorCode::OverQuota,
        K::Internal => ErrorCode::Internal,
        K::Overloaded { .. } => ErrorCode::Overloaded,
        K::Draining | K::Closing => ErrorCode::Draining,
        // Reads answer a move with a redirect before they come here; a second hop is not made.
        K::Unavailable { .. } | K::Moved { .. } => ErrorCode::Unavailable,
        K::DiskFull => ErrorCode::DiskFull,
        K::RetentionExhausted => ErrorCode::RetentionExhausted,
    }
}

fn with_members(problem: Problem, kind: &ServiceErrorKind) -> Problem {
    use ServiceErrorKind as K;
    match kind {
        K::OffsetMismatch { expected } | K::ContentMismatch { expected } => Problem { expected_offset: Some(expected.get()), ..problem },
        K::DigestMismatch { subpartition, .. } => Problem { subpartition: Some(*subpartition), ..problem },
        K::SequenceMismatch { expected } => Problem { expected_sequence: Some(*expected), ..problem },
        K::JobOwned { epoch } => Problem { epoch: Some(epoch.get()), ..problem },
        K::OtherAttemptWon { winner } => Problem { attempt: Some(winner.to_string()), ..problem },
        K::Lost { cause } => Problem { cause: Some(cause.as_str().to_owned()), ..problem },
        K::BelowFloor { floor } => Problem { floor: Some(floor.get()), ..problem },
        K::Fenced { by } => fenced(problem, *by),
        K::TooLarge { limit } => Problem { limit_bytes: Some(*limit), ..problem },
        K::RangeNotSatisfiable { end } => Problem { end_offset: Some(end.get()), ..problem },
        K::OverQuota { quota_bytes, retry_after } => {
            Problem { limit_bytes: Some(*quota_bytes), retry_after_ms: Some(as_ms(*retry_after)), ..problem }
        }
        K::Overloaded { retry_after } | K::Unavailable { retry_after } => Problem { retry_after_ms: Some(as_ms(*retry_after)), ..problem },
        K::BadRequest { .. }
        | K::Unauthenticated
        | K::Forbidden
        | K::UnknownJob
        | K::UnknownDataset
        | K::UnknownPartition
        | K::UnknownAttempt
        | K::NotWritten
        | K::NotSealed
        | K::AlreadySealed
        | K::SpecConflict { .. }
        | K::Aborted
        | K::Released
        | K::Expired
        | K::ClassUnavailable { .. }
        | K::EpochRequired
        | K::LifeRequired
        | K::Internal
        | K::Draining
        | K::Closing
        | K::DiskFull
        | K::RetentionExhausted
        | K::Moved { .. } => problem,
    }
}

fn fenced(problem: Problem, by: FencedBy) -> Problem {
    match by {
        FencedBy::Attempt(attempt) => Problem { attempt: Some(attempt.to_string()), ..problem },
        FencedBy::Epoch(epoch) => Problem { epoch: Some(epoch.get()), ..problem },
        FencedBy::Life(life) => Problem { life: Some(life.to_string()), ..problem },
        FencedBy::FrameStream => problem,
    }
}

/// Where a read shall go instead, if that is what the refusal says.
pub(crate) fn moved_to(error: &ServiceError) -> Option<&Location> {
    match error.kind() {
        ServiceErrorKind::Moved { location } => Some(location),
        _ => None,
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, self.to_json()).into_response();
        response.extensions_mut().insert(self.problem.code);
        let mut set = |name: HeaderName, value: HeaderValue| {
            response.headers_mut().insert(name, value);
        };
        set(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_MEDIA_TYPE));
        if let Some(retry_after_ms) = self.problem.retry_after_ms {
            set(RETRY_AFTER, HeaderValue::from(retry_after_ms.div_ceil(1000)));
        }
        if self.problem.code == ErrorCode::Unauthenticated {
            set(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let (ErrorCode::RangeNotSatisfiable, Some(end)) = (self.problem.code, self.problem.end_offset)
            && let Ok(value) = HeaderValue::try_from(format!("bytes */{end}"))
        {
            set(CONTENT_RANGE, value);
        }
        response
    }
}

/// The answer to a method that a route does not have; keeps the `Allow` header of `refused`.
pub(crate) fn method_not_allowed(allow: Option<HeaderValue>) -> Response {
    let mut response = Refusal::new(ErrorCode::MethodNotAllowed, "the route has no such method").into_response();
    if let Some(allow) = allow {
        response.headers_mut().insert(ALLOW, allow);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use store_api::{AttemptId, LossCause, Offset};

    fn answer(kind: ServiceErrorKind) -> Response {
        Refusal::from(ServiceError::new(kind)).into_response()
    }

    #[test]
    fn the_status_and_the_media_type_are_those_of_the_contract() {
        let response = answer(ServiceErrorKind::Lost { cause: LossCause::Corruption });
        assert_eq!(response.status(), StatusCode::GONE);
        assert_eq!(response.headers().get(CONTENT_TYPE), Some(&HeaderValue::from_static("application/problem+json")));
    }

    #[test]
    fn a_caller_that_shall_come_back_is_told_when_in_whole_seconds_rounded_up() {
        let response = answer(ServiceErrorKind::Overloaded { retry_after: Duration::from_millis(1001) });
        assert_eq!(response.headers().get(RETRY_AFTER), Some(&HeaderValue::from_static("2")));
        let response = answer(ServiceErrorKind::DiskFull);
        assert_eq!(response.headers().get(RETRY_AFTER), Some(&HeaderValue::from_static("1")));
        assert_eq!(answer(ServiceErrorKind::RetentionExhausted).headers().get(RETRY_AFTER), None);
    }

    #[test]
    fn the_problem_names_what_a_program_needs_to_go_on() {
        let refusal = |kind| Refusal::from(ServiceError::new(kind)).problem().clone();
        let expected = Offset::new(7);
        assert_eq!(refusal(ServiceErrorKind::OffsetMismatch { expected }).expected_offset, Some(7));
        assert_eq!(refusal(ServiceErrorKind::SequenceMismatch { expected: 3 }).expected_sequence, Some(3));
        let by = FencedBy::Attempt(AttemptId::new(1, 2));
        assert_eq!(refusal(ServiceErrorKind::Fenced { by }).attempt.as_deref(), Some("1.2"));
        assert_eq!(refusal(ServiceErrorKind::BelowFloor { floor: expected }).floor, Some(7));
    }

    #[test]
    fn the_private_cause_does_not_reach_the_document() {
        let error = ServiceError::new(ServiceErrorKind::Internal).with_source("/var/lib/secret");
        let text = String::from_utf8(Refusal::from(error).to_json()).expect("text");
        assert!(!text.contains("secret"), "{text}");
    }

    #[test]
    fn a_range_outside_names_the_length() {
        let response = answer(ServiceErrorKind::RangeNotSatisfiable { end: Offset::new(10) });
        assert_eq!(response.headers().get(CONTENT_RANGE), Some(&HeaderValue::from_static("bytes */10")));
    }
}

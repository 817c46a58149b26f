//! One HTTP exchange, and the loop that repeats it within the policy. Knows headers, problems and
//! time; knows nothing of jobs or partitions.

use crate::error::{ClientError, Result};
use crate::retry::{Attempts, Jitter, RetryPolicy};
use bytes::Bytes;
use forebay_protocol::headers::NODE_LIFE;
use forebay_protocol::problem::Problem;
use forebay_protocol::{ErrorCode, Retryable};
use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::BodyExt as _;
use reqwest::Url;
use serde::de::DeserializeOwned;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use store_api::SharedClock;
use store_api::clock::within;

/// Largest document that is read into memory, in bytes.
const MAX_DOCUMENT: usize = 1024 * 1024 * 1024;
const MAX_PROBLEM: usize = 1024 * 1024;

/// What all calls of a client share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) http: reqwest::Client,
    pub(crate) policy: RetryPolicy,
    pub(crate) stall: Duration,
    pub(crate) clock: SharedClock,
    pub(crate) jitter: Jitter,
}

/// Calls one node with one token.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) shared: Arc<Shared>,
    pub(crate) base: Url,
    pub(crate) token: Option<HeaderValue>,
}

/// A request that can be made again.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<Bytes>,
}

impl Call {
    pub(crate) fn with(mut self, name: &'static str, value: impl ToString) -> Result<Self> {
        let value =
            HeaderValue::try_from(value.to_string()).map_err(|cause| ClientError::invalid_because(format!("header {name}"), cause))?;
        self.headers.insert(HeaderName::from_static(name), value);
        Ok(self)
    }

    pub(crate) fn maybe_with(self, name: &'static str, value: Option<impl ToString>) -> Result<Self> {
        match value {
            Some(value) => self.with(name, value),
            None => Ok(self),
        }
    }

    pub(crate) fn query(mut self, name: &str, value: impl ToString) -> Self {
        self.url.query_pairs_mut().append_pair(name, &value.to_string());
        self
    }

    pub(crate) fn json(mut self, document: &impl serde::Serialize) -> Result<Self> {
        let bytes = serde_json::to_vec(document).map_err(|cause| ClientError::invalid_because("the request document", cause))?;
        self.body = Some(Bytes::from(bytes));
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(self)
    }
}

/// How one exchange failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The service said so.
    Problem { problem: Box<Problem>, after: Option<Duration> },
    /// An answer without a problem document, for example of a proxy.
    Status { status: StatusCode, after: Option<Duration> },
    /// No answer, or a body that was cut.
    Transport { detail: &'static str, source: Option<Box<dyn Error + Send + Sync>> },
    /// Bytes that do not have their checksum.
    Damaged { detail: String },
    /// Nothing that a repeat can change.
    Final(ClientError),
}

impl Failure {
    pub(crate) fn cut(detail: &'static str) -> Self {
        Self::Transport { detail, source: None }
    }

    pub(crate) const fn is_retryable(&self) -> bool {
        match self {
            Self::Problem { problem, .. } => {
                matches!(problem.retryable, Retryable::SameRequest) && !matches!(problem.code, ErrorCode::NotSealed | ErrorCode::NotWritten)
            }
            Self::Status { status, .. } => matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504),
            Self::Transport { .. } | Self::Damaged { .. } => true,
            Self::Final(_) => false,
        }
    }

    pub(crate) const fn after(&self) -> Option<Duration> {
        match self {
            Self::Problem { after, .. } | Self::Status { after, .. } => *after,
            Self::Transport { .. } | Self::Damaged { .. } | Self::Final(_) => None,
        }
    }

    pub(crate) fn into_error(self, attempts: u32) -> ClientError {
        match self {
            Self::Problem { problem, .. } => ClientError::from_problem(*problem, attempts),
            Self::Status { status, .. } if matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504) => {
                ClientError::Transport { detail: format!("status {status} without a problem document"), attempts, source: None }
            }
            Self::Status { status, .. } => ClientError::unexpected(format!("status {status} without a problem document")),
            Self::Transport { detail, source } => ClientError::Transport { detail: detail.to_owned(), attempts, source },
            Self::Damaged { detail } => ClientError::Damaged { detail, attempts },
            Self::Final(error) => error,
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::Final(error)
    }
}

/// An answer whose body has not been read.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: AnswerBody,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(crate) fn life(&self) -> Option<String> {
        self.header(NODE_LIFE).map(str::to_owned)
    }
}

/// A body that is read piece by piece, each within the stall time.
#[derive(Debug)]
pub(crate) struct AnswerBody {
    body: reqwest::Body,
    shared: Arc<Shared>,
    pub(crate) trailers: HeaderMap,
}

impl AnswerBody {
    /// The next piece; `None` at a clean end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> std::result::Result<Option<Bytes>, Failure> {
        self.next_within(self.shared.stall).await
    }

    pub(crate) async fn next_within(&mut self, patience: Duration) -> std::result::Result<Option<Bytes>, Failure> {
        loop {
            let frame = within(&*self.shared.clock, patience, self.body.frame()).await;
            let frame = match frame {
                None => return Err(Failure::cut("the body made no progress")),
                Some(None) => return Ok(None),
                Some(Some(Err(cause))) => return Err(transport("the body was cut", cause)),
                Some(Some(Ok(frame))) => frame,
            };
            match frame.into_data() {
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => return Ok(Some(bytes)),
                Err(other) => {
                    if let Ok(trailers) = other.into_trailers() {
                        self.trailers.extend(trailers);
                    }
                }
            }
        }
    }

    async fn collect(&mut self, limit: usize) -> std::result::Result<Vec<u8>, Failure> {
        let mut whole = Vec::new();
        while let Some(piece) = self.next().await? {
            if whole.len().saturating_add(piece.len()) > limit {
                return Err(Failure::Final(ClientError::unexpected("a document of unreasonable size")));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole)
    }
}

fn transport(detail: &'static str, cause: reqwest::Error) -> Failure {
    // Addresses belong into the log of who asks for them, not into the message.
    Failure::Transport { detail, source: Some(Box::new(cause.without_url())) }
}

impl Caller {
    /// The same token and policy, another node. Errors: an address that cannot be used, or one that
    /// would send the token unencrypted although this node is asked with TLS.
    pub(crate) fn at(&self, url: &str) -> Result<Self> {
        let base = Url::parse(url).map_err(|cause| ClientError::Unexpected {
            detail: "a node's address is not a URL".to_owned(),
            source: Some(Box::new(cause)),
        })?;
        self.check_hop(&base)?;
        Ok(Self { base, ..self.clone() })
    }

    /// Refuses addresses that would weaken what the caller configured.
    pub(crate) fn check_hop(&self, url: &Url) -> Result<()> {
        match url.scheme() {
            "https" => Ok(()),
            "http" if self.base.scheme() == "http" => Ok(()),
            _ => Err(ClientError::unexpected("a node was named with an address that is not encrypted")),
        }
    }

    pub(crate) fn call(&self, method: Method, path: &str) -> Result<Call> {
        let base = self.base.as_str().trim_end_matches('/');
        let url = Url::parse(&format!("{base}{path}")).map_err(|cause| ClientError::invalid_because("the URL", cause))?;
        Ok(Call { method, url, headers: HeaderMap::new(), body: None })
    }

    fn prepare(&self, call: Call, body: Option<reqwest::Body>) -> reqwest::RequestBuilder {
        let mut request = self.shared.http.request(call.method, call.url).headers(call.headers);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token.clone());
        }
        match body {
            Some(body) => request.body(body),
            None => request,
        }
    }

    /// One exchange; the head must come within the stall time. Redirects are answers here.
    pub(crate) async fn once(&self, call: &Call, patience: Duration) -> std::result::Result<Answer, Failure> {
        let request = self.prepare(call.clone(), call.body.clone().map(reqwest::Body::from));
        match within(&*self.shared.clock, patience, request.send()).await {
            None => Err(Failure::cut("no answer in time")),
            Some(Err(cause)) => Err(transport("the request failed", cause)),
            Some(Ok(response)) => self.sort(response).await,
        }
    }

    /// One exchange whose body streams. There is no limit of time here: the caller watches progress.
    pub(crate) async fn stream(&self, call: Call, body: reqwest::Body) -> std::result::Result<Answer, Failure> {
        match self.prepare(call, Some(body)).send().await {
            Err(cause) => Err(transport("the request failed", cause)),
            Ok(response) => self.sort(response).await,
        }
    }

    async fn sort(&self, response: reqwest::Response) -> std::result::Result<Answer, Failure> {
        let (parts, body) = http::Response::<reqwest::Body>::from(response).into_parts();
        let body = AnswerBody { body, shared: self.shared.clone(), trailers: HeaderMap::new() };
        let mut answer = Answer { status: parts.status, headers: parts.headers, body };
        if answer.status.is_success() || answer.status == StatusCode::TEMPORARY_REDIRECT {
            return Ok(answer);
        }
        let seconds = answer.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()).and_then(|text| text.trim().parse().ok());
        let after = seconds.map(Duration::from_secs);
        let status = answer.status;
        let Ok(document) = answer.body.collect(MAX_PROBLEM).await else { return Err(Failure::Status { status, after }) };
        match serde_json::from_slice::<Problem>(&document) {
            Ok(problem) => {
                let after = problem.retry_after_ms.map(Duration::from_millis).or(after);
                Err(Failure::Problem { problem: Box::new(problem), after })
            }
            Err(_) => Err(Failure::Status { status, after }),
        }
    }

    /// Waits before the next attempt, or says why there is none.
    pub(crate) async fn pause(&self, attempts: &mut Attempts, failure: Failure) -> Result<()> {
        if !failure.is_retryable() {
            return Err(failure.into_error(attempts.n_failed().saturating_add(1)));
        }
        match attempts.failed(&*self.shared.clock, &self.shared.jitter, failure.after()) {
            Some(pause) => {
                self.shared.clock.sleep(pause).await;
                Ok(())
            }
            None => Err(failure.into_error(attempts.n_failed())),
        }
    }

    pub(crate) fn attempts(&self) -> Attempts {
        Attempts::new(self.shared.policy)
    }

    /// Repeats an exchange until its head is a success or a redirect.
    pub(crate) async fn send(&self, call: &Call) -> Result<Answer> {
        let mut attempts = self.attempts();
        loop {
            match self.once(call, self.shared.stall).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => self.pause(&mut attempts, failure).await?,
            }
        }
    }

    /// Repeats an exchange until its whole document has arrived.
    pub(crate) async fn document<T: DeserializeOwned>(&self, call: &Call) -> Result<(T, Option<String>)> {
        let mut attempts = self.attempts();
        loop {
            match self.document_once(call).await {
                Ok(found) => return Ok(found),
                Err(failure) => self.pause(&mut attempts, failure).await?,
            }
        }
    }

    pub(crate) async fn document_once<T: DeserializeOwned>(&self, call: &Call) -> std::result::Result<(T, Option<String>), Failure> {
        let mut answer = self.once(call, self.shared.stall).await?;
        let life = answer.life();
        Ok((parse_document(&mut answer).await?, life))
    }
}

/// Reads a document of an answer.
pub(crate) async fn parse_document<T: DeserializeOwned>(answer: &mut Answer) -> std::result::Result<T, Failure> {
    if !answer.status.is_success() {
        return Err(Failure::Final(ClientError::unexpected("a redirect where none is documented")));
    }
    let bytes = answer.body.collect(MAX_DOCUMENT).await?;
    serde_json::from_slice(&bytes).map_err(|cause| {
        Failure::Final(ClientError::Unexpected {
            detail: "the document is not of the documented form".to_owned(),
            source: Some(Box::new(cause)),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_seal_is_the_callers_choice() {
        let failure = |code| Failure::Problem { problem: Box::new(Problem::new(code, "x")), after: None };
        assert!(!failure(ErrorCode::NotSealed).is_retryable());
        assert!(!failure(ErrorCode::Draining).is_retryable());
        assert!(failure(ErrorCode::Overloaded).is_retryable());
        assert!(failure(ErrorCode::OverQuota).is_retryable());
        assert!(!failure(ErrorCode::Lost).is_retryable());
    }

    #[test]
    fn a_proxys_bad_gateway_is_worth_a_retry_and_its_not_found_is_not() {
        assert!(Failure::Status { status: StatusCode::BAD_GATEWAY, after: None }.is_retryable());
        let missing = Failure::Status { status: StatusCode::NOT_FOUND, after: None };
        assert!(!missing.is_retryable());
        assert!(matches!(missing.into_error(1), ClientError::Unexpected { .. }));
    }
}

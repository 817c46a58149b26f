//! Requests with retry: the one place that sends.

use crate::error::{ClientError, Result};
use crate::retry::{Retries, RetryPolicy};
use forebay_protocol::{Problem, Retryable, headers};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use reqwest::{Body, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store_api::clock::within;
use store_api::{SharedClock, TaskGroup};

/// Most bytes of a problem document that are read.
const MAX_PROBLEM_BYTES: usize = 64 * 1024;

/// What a client is made of.
#[derive(Debug)]
pub(crate) struct Transport {
    pub(crate) http: reqwest::Client,
    pub(crate) urls: Vec<String>,
    pub(crate) preferred: AtomicUsize,
    pub(crate) token: Option<HeaderValue>,
    pub(crate) retry: RetryPolicy,
    pub(crate) stall: Duration,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: TaskGroup,
}

/// A shared transport.
pub(crate) type SharedTransport = Arc<Transport>;

/// A request that can be sent any number of times.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: bytes::Bytes,
    /// Node to ask instead of the client's own.
    pub(crate) url: Option<String>,
}

impl Call {
    pub(crate) fn new(method: Method, path: String) -> Self {
        Self { method, path, headers: HeaderMap::new(), body: bytes::Bytes::new(), url: None }
    }

    /// With a JSON body.
    pub(crate) fn json<T: Serialize>(mut self, document: &T) -> Result<Self> {
        self.body = serde_json::to_vec(document).map_err(ClientError::protocol)?.into();
        self.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(self)
    }

    /// With a header; a value that is no header value is left out.
    pub(crate) fn header(mut self, name: &'static str, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(HeaderName::from_static(name), value);
        }
        self
    }

    /// Sent to another node than the client's own.
    pub(crate) fn at(mut self, url: Option<String>) -> Self {
        self.url = url;
        self
    }
}

impl Transport {
    /// Now, by the client's clock.
    pub(crate) fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    fn base(&self) -> &str {
        let at = self.preferred.load(Ordering::Relaxed) % self.urls.len().max(1);
        self.urls.get(at).map_or("", String::as_str)
    }

    /// Turns to the next of several nodes, because this one did not answer.
    fn prefer_next(&self) {
        if self.urls.len() > 1 {
            self.preferred.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends once, with a body of the caller's making. Follows one redirect of a request without
    /// body. Errors are transport errors; any status is an answer.
    pub(crate) async fn send(&self, call: &Call, body: Body) -> std::result::Result<Response, String> {
        let first = call.url.as_deref().unwrap_or_else(|| self.base());
        let response = self.send_to(&join(first, &call.path), call, body).await?;
        if response.status() != StatusCode::TEMPORARY_REDIRECT {
            return Ok(response);
        }
        let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
        let target = location.ok_or("a redirect without a location")?.to_owned();
        let target = if target.starts_with('/') { join(first, &target) } else { target };
        self.send_to(&target, call, Body::from(call.body.clone())).await
    }

    async fn send_to(&self, url: &str, call: &Call, body: Body) -> std::result::Result<Response, String> {
        let mut request = self.http.request(call.method.clone(), url).headers(call.headers.clone()).body(body);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token.clone());
        }
        let answered = within(self.clock.as_ref(), self.stall, request.send()).await;
        answered.ok_or_else(|| format!("no answer within {:?}", self.stall))?.map_err(|error| chain(&error))
    }

    /// Sends until there is a success, or an answer that trying again does not change.
    pub(crate) async fn call(&self, call: &Call) -> Result<Response> {
        let mut retries = Retries::new(self.retry, self.now());
        loop {
            let failure = match self.send(call, Body::from(call.body.clone())).await {
                Ok(response) if response.status().is_success() => return Ok(response),
                Ok(response) => Failure::Refused(problem(response).await?),
                Err(cause) => Failure::Transport(cause),
            };
            self.wait_or_fail(&mut retries, failure).await?;
        }
    }

    /// Waits before the next attempt, or gives up with what went wrong.
    pub(crate) async fn wait_or_fail(&self, retries: &mut Retries, failure: Failure) -> Result<()> {
        let asked = match &failure {
            Failure::Refused(problem) if problem.retryable == Retryable::Never => return Err(failure.into_error(retries.n_attempts())),
            Failure::Refused(problem) => problem.retry_after_ms.map(Duration::from_millis),
            Failure::Transport(_) => None,
        };
        let moves_on = match &failure {
            Failure::Transport(_) => true,
            Failure::Refused(problem) => problem.retryable == Retryable::AfterResolving,
        };
        if moves_on {
            self.prefer_next();
        }
        match retries.next_wait(self.now(), asked) {
            Some(wait) => {
                self.clock.sleep(wait).await;
                Ok(())
            }
            None => Err(failure.into_error(retries.n_attempts())),
        }
    }

    /// Sends, and reads a JSON answer.
    pub(crate) async fn document<T: DeserializeOwned>(&self, call: &Call) -> Result<T> {
        let mut retries = Retries::new(self.retry, self.now());
        loop {
            let response = self.call(call).await?;
            match within(self.clock.as_ref(), self.stall, response.bytes()).await {
                Some(Ok(bytes)) => return serde_json::from_slice(&bytes).map_err(ClientError::protocol),
                Some(Err(error)) => self.wait_or_fail(&mut retries, Failure::Transport(chain(&error))).await?,
                None => self.wait_or_fail(&mut retries, Failure::Transport("an answer was cut".to_owned())).await?,
            }
        }
    }
}

/// Why one attempt did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    Refused(Box<Problem>),
    Transport(String),
}

impl Failure {
    fn into_error(self, attempts: u32) -> ClientError {
        match self {
            Self::Refused(problem) => ClientError::Refused(problem),
            Self::Transport(cause) => ClientError::Transport { attempts, cause },
        }
    }
}

/// The problem document of an answer that is not a success. Errors: it has none.
pub(crate) async fn problem(response: Response) -> Result<Box<Problem>> {
    let status = response.status();
    let is_problem = response
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.starts_with(headers::PROBLEM_MEDIA_TYPE));
    let body = response.bytes().await.unwrap_or_default();
    let body = body.get(..body.len().min(MAX_PROBLEM_BYTES)).unwrap_or_default();
    if is_problem && let Ok(problem) = serde_json::from_slice(body) {
        return Ok(problem);
    }
    if status.is_server_error() {
        // A proxy in between, perhaps: worth trying again.
        return Ok(Box::new(Problem::new(forebay_protocol::ErrorCode::Unavailable, format!("status {status} without a problem document"))));
    }
    Err(ClientError::Protocol(format!("status {status} without a problem document")))
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}

fn join(base: &str, path: &str) -> String {
    format!("{}{path}", base.trim_end_matches('/'))
}

//! What every request passes on its way in and out, outermost first: the limit on requests
//! under way and the names in the answer, panics, bodies that were not read, tokens.

use super::Answered;
use super::Api;
use super::connection::ConnectionState;
use super::error::{self, Answer, Refusal};
use crate::service::Need;
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use bytes::Bytes;
use forebay_protocol::{ErrorCode, headers, paths};
use futures::FutureExt as _;
use http::header::{AUTHORIZATION, CONNECTION, EXPECT, HeaderMap};
use http::{HeaderName, HeaderValue, Method, Version};
use http_body::{Frame, SizeHint};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use store_api::JobId;
use store_api::clock::within as wait_within;
use tokio::sync::OwnedSemaphorePermit;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest request id that is taken over from a client.
const MAX_REQUEST_ID: usize = 128;
/// A body that was not read is read to its end, and its connection kept, up to this size.
const SMALL_REST: u64 = 64 * 1024;
/// The same over HTTP/2: what fits in flight on one stream. A stream that is refused while its body
/// comes in is reset, and HTTP/2 ends a connection, with all its streams, after many of those.
const SMALL_REST_H2: u64 = 2 * 1024 * 1024;
/// Longest wait for the rest of such a body.
const SMALL_REST_WAIT: Duration = Duration::from_millis(200);

/// What a route needs a token for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nothing: anyone may call it.
    Open,
    /// The admin token.
    Admin,
    /// The admin token, or the present token of the job in the path.
    PutJob,
    /// The admin token or that of the job in the path.
    Job,
}

/// What a method of a route needs. A route that is not known here needs the admin token, so that a
/// new one is closed until somebody says otherwise.
#[must_use]
pub fn access_of(method: &Method, route: &str, protects_metrics: bool) -> Access {
    match route {
        paths::HEALTHZ | paths::READYZ | paths::NODE => Access::Open,
        paths::METRICS if !protects_metrics => Access::Open,
        paths::JOB if method == Method::PUT => Access::PutJob,
        inside if inside == paths::JOB || inside.starts_with("/v1/jobs/{job}/") => Access::Job,
        _ => Access::Admin,
    }
}

/// Puts everything around the routes.
pub(super) fn around(routes: Router<Arc<Api>>, api: &Arc<Api>) -> Router<Arc<Api>> {
    routes
        .layer(from_fn_with_state(api.clone(), authorize))
        .layer(from_fn_with_state(api.clone(), settle_body))
        .layer(from_fn(catch_panic))
        .layer(from_fn_with_state(api.clone(), name_and_count))
}

/// A route whose calls end within `limit`.
pub(super) fn within(route: MethodRouter<Arc<Api>>, api: &Arc<Api>, limit: Duration) -> MethodRouter<Arc<Api>> {
    let clock = api.clock.clone();
    route.layer(from_fn(move |request: Request, next: Next| {
        let clock = clock.clone();
        async move {
            let answered = wait_within(clock.as_ref(), limit, next.run(request)).await;
            answered.unwrap_or_else(|| Refusal::new(ErrorCode::Unavailable, "the call took too long").into_response())
        }
    }))
}

/// The answer where no route matches.
pub(super) async fn unknown_route() -> Response {
    Refusal::new(ErrorCode::UnknownRoute, "there is no such route").into_response()
}

/// The answer where the route has no such method; `around` adds what it allows.
pub(super) async fn method_not_allowed() -> Response {
    error::method_not_allowed(None)
}

async fn name_and_count(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let begun = api.clock.monotonic();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map(|path| Arc::from(path.as_str()));
    let request_id = request_id(&api, request.headers());
    let permit = api.requests.clone().try_acquire_owned().ok();
    api.observer.n_in_flight(api.config.max_requests.saturating_sub(api.requests.available_permits()));
    let mut response = if permit.is_some() { next.run(request).await } else { refuse_for_number(&request) };
    let names = response.headers_mut();
    if let Some(id) = request_id {
        names.insert(REQUEST_ID, id);
    }
    if let Ok(service) = api.ready() {
        let location = service.node().location;
        set(names, headers::NODE, &location.node.to_string());
        set(names, headers::NODE_LIFE, &location.life.to_string());
    }
    let until_head = api.clock.monotonic().saturating_sub(begun);
    let status = response.status().as_u16();
    let answered = Answered { method, route, status, until_head, until_end: until_head, sent_bytes: 0 };
    response.map(|inner| Body::new(CountedBody { inner, answered, begun, api, _permit: permit }))
}

fn refuse_for_number(request: &Request) -> Response {
    let mut response = Refusal::new(ErrorCode::Overloaded, "too many requests at a time").into_response();
    if !request.body().is_end_stream() && request.version() < Version::HTTP_2 {
        close_after(&mut response, request.extensions().get::<Arc<ConnectionState>>());
    }
    response
}

/// Closes the connection after the answer, and reads on for a bounded time before.
fn close_after(response: &mut Response, connection: Option<&Arc<ConnectionState>>) {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    if let Some(connection) = connection {
        connection.linger();
    }
}

fn set(names: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        names.insert(HeaderName::from_static(name), value);
    }
}

/// The client's own id if it is fit for a header and a log line; else the next number.
fn request_id(api: &Api, named: &HeaderMap) -> Option<HeaderValue> {
    let is_fit = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        !bytes.is_empty() && bytes.len() <= MAX_REQUEST_ID && bytes.iter().all(u8::is_ascii_graphic)
    };
    let own = named.get(REQUEST_ID).filter(is_fit).cloned();
    own.or_else(|| HeaderValue::from_str(&api.next_request.fetch_add(1, Ordering::Relaxed).to_string()).ok())
}

async fn catch_panic(request: Request, next: Next) -> Response {
    let answered = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    answered.unwrap_or_else(|_| {
        // The panic hook has logged where.
        tracing::error!("a handler panicked");
        Refusal::new(ErrorCode::Internal, "an internal error").into_response()
    })
}

/// Sees to a body that was not read to its end when the answer is ready: a small rest is read, so
/// that the connection can be used again; otherwise the connection is closed after the answer, and
/// read on for a bounded time before, so that the client can read the answer.
async fn settle_body(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let connection = request.extensions().get::<Arc<ConnectionState>>().cloned();
    let version = request.version();
    let is_waiting = request.headers().contains_key(EXPECT);
    let is_ended = Arc::new(AtomicBool::new(request.body().is_end_stream()));
    let rest = Arc::new(parking_lot::Mutex::new(None));
    let request = request.map(|inner| Body::new(ReturnedBody { inner: Some(inner), is_ended: is_ended.clone(), rest: rest.clone() }));
    let mut response = next.run(request).await;
    if is_ended.load(Ordering::Acquire) {
        return response;
    }
    let rest = rest.lock().take();
    if version >= Version::HTTP_2 {
        if let (Some(rest), false) = (rest, is_waiting) {
            read_rest(&api, rest, SMALL_REST_H2).await;
        }
        return response;
    }
    let is_small = rest.as_ref().and_then(|rest: &Body| rest.size_hint().upper()).is_some_and(|upper| upper <= SMALL_REST);
    if let (Some(rest), true, false) = (rest, is_small, is_waiting)
        && read_rest(&api, rest, SMALL_REST).await
    {
        return response;
    }
    close_after(&mut response, connection.as_ref());
    response
}

/// Reads and drops what is left, up to a limit. Answers whether the end was reached.
async fn read_rest(api: &Api, mut rest: Body, limit: u64) -> bool {
    let read = async {
        let mut n_read = 0_u64;
        // Ends with the body, or at the limit.
        while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut rest).poll_frame(context)).await {
            let Ok(frame) = frame else { return false };
            n_read = n_read.saturating_add(frame.data_ref().map_or(0, |bytes| bytes.len() as u64));
            if n_read > limit {
                return false;
            }
        }
        true
    };
    wait_within(api.clock.as_ref(), SMALL_REST_WAIT, read).await.unwrap_or(false)
}

async fn authorize(State(api): State<Arc<Api>>, parameters: RawPathParams, request: Request, next: Next) -> Response {
    let Some(route) = request.extensions().get::<MatchedPath>() else { return next.run(request).await };
    let access = access_of(request.method(), route.as_str(), api.config.protect_metrics);
    let token = bearer(request.headers()).map(|token| token.map(str::to_owned));
    match check_token(&api, &parameters, access, token).await {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

async fn check_token(api: &Api, parameters: &RawPathParams, access: Access, token: Answer<Option<String>>) -> Answer<()> {
    if access == Access::Open {
        return Ok(());
    }
    let token = token?;
    let service = api.ready()?;
    let job = || {
        let text = parameters.iter().find(|(name, _)| *name == "job").map_or("", |(_, value)| value);
        JobId::new(text).map_err(|error| Refusal::bad_request(format!("job in the path: {error}")))
    };
    match access {
        Access::Open => Ok(()),
        Access::Admin => Ok(service.authorize(Need::Admin, token.as_deref()).await?),
        Access::PutJob => Ok(service.authorize(Need::PutJob(&job()?), token.as_deref()).await?),
        Access::Job => Ok(service.authorize(Need::Job(&job()?), token.as_deref()).await?),
    }
}

/// The bearer token, if there is an Authorization header. Errors: another scheme, two headers, no
/// token.
fn bearer(named: &HeaderMap) -> Answer<Option<&str>> {
    let refuse = || Refusal::new(ErrorCode::Unauthenticated, "Authorization must be: Bearer, one blank, the token");
    let mut values = named.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(refuse());
    }
    let text = value.to_str().map_err(|_| refuse())?;
    let (scheme, token) = text.split_once(' ').ok_or_else(refuse)?;
    if !scheme.eq_ignore_ascii_case("bearer") || token.trim().is_empty() {
        return Err(refuse());
    }
    Ok(Some(token.trim()))
}

/// A request's body that comes back when it is dropped before its end.
struct ReturnedBody {
    inner: Option<Body>,
    is_ended: Arc<AtomicBool>,
    rest: Arc<parking_lot::Mutex<Option<Body>>>,
}

impl HttpBody for ReturnedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        let polled = Pin::new(inner).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) {
            self.is_ended.store(true, Ordering::Release);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}

impl Drop for ReturnedBody {
    fn drop(&mut self) {
        if self.is_end_stream() {
            self.is_ended.store(true, Ordering::Release);
        }
        *self.rest.lock() = self.inner.take();
    }
}

/// An answer's body that counts its bytes and tells the observer when it ends.
struct CountedBody {
    inner: Body,
    answered: Answered,
    begun: Duration,
    api: Arc<Api>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(bytes) = frame.data_ref()
        {
            self.answered.sent_bytes = self.answered.sent_bytes.saturating_add(bytes.len() as u64);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        self.answered.until_end = self.api.clock.monotonic().saturating_sub(self.begun);
        self.api.observer.answered(&self.answered);
    }
}

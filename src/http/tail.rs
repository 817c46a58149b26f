//! Reads that follow what is written: bytes as they come, and trailers that say where and why the
//! body ended.

use super::Api;
use super::error::{Answer, Refusal};
use super::extract::text_header;
use super::handlers::read::{Asked, describe};
use crate::service::{PartitionAddress, PartitionService, ReadCall, ReadKind, ReadReply, ServiceError};
use crate::shutdown::Shutdown;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use forebay_protocol::headers::{END_RANGE, END_REASON, END_SEALED, END_WAITED, NEXT_OFFSET, START_OFFSET};
use futures::stream::{BoxStream, StreamExt as _, unfold};
use http::header::TRAILER;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Frame;
use std::sync::Arc;
use std::time::Duration;
use store_api::ids::parse_decimal;
use store_api::{AttemptId, Offset, SubpartitionIndex};

const PREFER: HeaderName = HeaderName::from_static("prefer");

/// Answers a read that follows. The inner error is the service's, which may be a redirect.
pub(super) async fn answer(
    api: &Api,
    service: &Arc<PartitionService>,
    asked: &Asked,
    from: Offset,
    headers: &HeaderMap,
) -> Answer<Result<Response, ServiceError>> {
    let kind = ReadKind::Tail { wait: preferred_wait(headers)? };
    let call = ReadCall { attempt: asked.attempt, subpartition: asked.subpartition, start: from, end: asked.to, kind };
    let reply = match service.read(&asked.partition, call).await {
        Ok(reply) => reply,
        Err(error) => return Ok(Err(error)),
    };
    let (attempt, class) = (reply.attempt, reply.class);
    let mut tail = Tail::new(service.clone(), asked, api.shutdown.clone(), reply);
    let first = match tail.next().await {
        Step::Bytes(bytes) => bytes,
        Step::Failed(error) => return Ok(Err(error)),
        Step::Ended(ended) => return Ok(Ok(nothing(attempt, class, from, ended))),
    };
    let mut response = api.streaming().body(frames(first, tail), None).into_response();
    describe(response.headers_mut(), attempt, class);
    response.headers_mut().insert(HeaderName::from_static(START_OFFSET), HeaderValue::from(from.get()));
    response.headers_mut().insert(TRAILER, HeaderValue::from_static("Forebay-Next-Offset, Forebay-End-Reason"));
    Ok(Ok(response))
}

/// The wait of `Prefer: wait=S`; none without it. Other preferences are not looked at. Errors: the
/// wait is not a decimal number.
fn preferred_wait(headers: &HeaderMap) -> Answer<Duration> {
    let Some(text) = text_header(headers, &PREFER)? else { return Ok(Duration::ZERO) };
    let Some(wait) = text.split([',', ';']).find_map(|part| part.trim().strip_prefix("wait=")) else { return Ok(Duration::ZERO) };
    let seconds = parse_decimal(wait.trim().trim_matches('"'));
    seconds.map(Duration::from_secs).ok_or_else(|| Refusal::bad_request("Prefer: wait is a number of seconds"))
}

/// An answer without a byte: what trailers would say stands in its head, for clients that do not
/// read trailers.
fn nothing(attempt: AttemptId, class: store_api::ClassAchieved, from: Offset, ended: Ended) -> Response {
    let mut response = ().into_response();
    describe(response.headers_mut(), attempt, class);
    response.headers_mut().insert(HeaderName::from_static(START_OFFSET), HeaderValue::from(from.get()));
    response.headers_mut().extend(ended.names());
    response
}

/// Where and why a body ended.
struct Ended {
    next: Offset,
    reason: &'static str,
}

impl Ended {
    fn names(&self) -> HeaderMap {
        let mut names = HeaderMap::new();
        names.insert(HeaderName::from_static(NEXT_OFFSET), HeaderValue::from(self.next.get()));
        names.insert(HeaderName::from_static(END_REASON), HeaderValue::from_static(self.reason));
        names
    }
}

enum Step {
    Bytes(Bytes),
    Failed(ServiceError),
    Ended(Ended),
}

/// A read that follows, and how far it has come.
struct Tail {
    at: Reached,
    shutdown: Shutdown,
    chunks: BoxStream<'static, Result<Bytes, ServiceError>>,
}

/// How far a read has come in what.
struct Reached {
    service: Arc<PartitionService>,
    partition: PartitionAddress,
    subpartition: SubpartitionIndex,
    attempt: AttemptId,
    next: Offset,
    to: Option<Offset>,
}

impl Tail {
    fn new(service: Arc<PartitionService>, asked: &Asked, shutdown: Shutdown, reply: ReadReply) -> Self {
        let (partition, subpartition) = (asked.partition.clone(), asked.subpartition);
        let at = Reached { service, partition, subpartition, attempt: reply.attempt, next: reply.start, to: asked.to };
        Self { at, shutdown, chunks: reply.chunks }
    }

    /// The next bytes, or how the read ended. A server that ends answers at once.
    async fn next(&mut self) -> Step {
        let chunk = tokio::select! {
            biased;
            chunk = self.chunks.next() => chunk,
            () = self.shutdown.begun() => None,
        };
        match chunk {
            Some(Ok(bytes)) => {
                self.at.next = self.at.next.checked_add(bytes.len() as u64).unwrap_or(self.at.next);
                Step::Bytes(bytes)
            }
            Some(Err(error)) => Step::Failed(error),
            None => Step::Ended(Ended { next: self.at.next, reason: self.at.reason().await }),
        }
    }
}

impl Reached {
    async fn reason(&self) -> &'static str {
        let resolved = self.service.resolve(&self.partition, self.subpartition, Some(self.attempt)).await;
        match resolved {
            Ok(readable) if readable.digest.is_some() && readable.end <= self.next => END_SEALED,
            _ if self.to.is_some_and(|to| to <= self.next) => END_RANGE,
            _ => END_WAITED,
        }
    }
}

type Frames = BoxStream<'static, Result<Frame<Bytes>, Box<dyn std::error::Error + Send + Sync>>>;

fn frames(first: Bytes, tail: Tail) -> Frames {
    let rest = unfold(Some(tail), |tail| async move {
        let mut tail = tail?;
        Some(match tail.next().await {
            Step::Bytes(bytes) => (Ok(Frame::data(bytes)), Some(tail)),
            Step::Ended(ended) => (Ok(Frame::trailers(ended.names())), None),
            Step::Failed(error) => {
                tracing::debug!(error = ?error, "a read that follows failed in the middle of its body");
                (Err(error.into()), None)
            }
        })
    });
    futures::stream::iter([Ok(Frame::data(first))]).chain(rest).boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(text: &'static str) -> Option<Duration> {
        let mut map = HeaderMap::new();
        map.insert(PREFER, HeaderValue::from_static(text));
        preferred_wait(&map).ok()
    }

    #[test]
    fn the_wait_is_found_among_other_preferences() {
        assert_eq!(wait("wait=20"), Some(Duration::from_secs(20)));
        assert_eq!(wait("respond-async, wait=\"5\""), Some(Duration::from_secs(5)));
        assert_eq!(wait("return=minimal"), Some(Duration::ZERO));
        assert_eq!(wait("wait=-1"), None);
        assert_eq!(wait("wait=1.5"), None);
    }

    #[test]
    fn the_trailers_say_where_to_go_on_and_why_it_ended() {
        let names = Ended { next: Offset::new(7), reason: END_WAITED }.names();
        assert_eq!(names.get("forebay-next-offset"), Some(&HeaderValue::from_static("7")));
        assert_eq!(names.get("forebay-end-reason"), Some(&HeaderValue::from_static("waited")));
    }
}

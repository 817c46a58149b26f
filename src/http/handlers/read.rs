//! Reads of one subpartition: sealed content with ranges and validators, and bytes as they come.

use crate::http::Api;
use crate::http::error::{Answer, Refusal, moved_to};
use crate::http::extract::{Ids, Query, Ready, check_life, decimal, parameter, text_header};
use crate::http::range::{Wanted, wanted};
use crate::http::{map, tail};
use crate::service::{
    Location, PartitionAddress, PartitionService, ReadCall, ReadKind, ReadReply, Readable, ServiceError, ServiceErrorKind,
};
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use forebay_protocol::headers::{ATTEMPT, BYTES_MEDIA_TYPE, CLASS, START_OFFSET};
use futures::stream::{BoxStream, StreamExt as _};
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH, IF_RANGE, LOCATION, RANGE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use serde::Deserialize;
use std::ops::Range;
use std::sync::Arc;
use store_api::{AttemptId, ClassAchieved, Digest, NodeLife, Offset, StoreClass, SubpartitionIndex};

const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");

/// What is read.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct ReadQuery {
    from: Option<String>,
    to: Option<String>,
    attempt: Option<String>,
    life: Option<String>,
    hop: Option<String>,
}

/// A read, parsed.
pub(in crate::http) struct Asked {
    pub(in crate::http) partition: PartitionAddress,
    pub(in crate::http) subpartition: SubpartitionIndex,
    pub(in crate::http) attempt: Option<AttemptId>,
    /// Where a read that follows what is written starts.
    pub(in crate::http) from: Option<Offset>,
    pub(in crate::http) to: Option<Offset>,
    is_hop: bool,
}

impl Asked {
    fn parse(service: &PartitionService, ids: &Ids, query: &ReadQuery) -> Answer<Self> {
        let from = decimal("from", query.from.as_deref())?.map(Offset::new);
        let to = decimal("to", query.to.as_deref())?.map(Offset::new);
        if to.is_some() && (from.is_none() || to < from) {
            return Err(Refusal::bad_request("to needs from, and lies behind it"));
        }
        let is_hop = match query.hop.as_deref() {
            None => false,
            Some("1") => true,
            Some(_) => return Err(Refusal::bad_request("hop is 1")),
        };
        check_life(service, parameter::<NodeLife>("life", query.life.as_deref())?)?;
        let attempt = parameter("attempt", query.attempt.as_deref())?;
        Ok(Self { partition: ids.partition()?, subpartition: ids.subpartition()?, attempt, from, to, is_hop })
    }

    /// The refusal, or the way to the node that holds it, at most one hop.
    fn refuse(&self, error: &ServiceError, uri: &Uri) -> Answer<Response> {
        match moved_to(error) {
            Some(location) if !self.is_hop => redirect(location, uri),
            _ => Err(error.into()),
        }
    }
}

pub(in crate::http) fn redirect(location: &Location, uri: &Uri) -> Answer<Response> {
    let kept = uri.query().into_iter().flat_map(|query| query.split('&')).filter(|pair| !pair.starts_with("life=") && !pair.is_empty());
    let query: Vec<&str> = kept.collect();
    let separator = if query.is_empty() { "" } else { "&" };
    let base = location.url.trim_end_matches('/');
    let target = format!("{base}{}?{}{separator}life={}&hop=1", uri.path(), query.join("&"), location.life);
    let target = HeaderValue::try_from(target).map_err(|_| Refusal::new(forebay_protocol::ErrorCode::Internal, "an internal error"))?;
    Ok((StatusCode::TEMPORARY_REDIRECT, [(LOCATION, target)]).into_response())
}

pub(in crate::http) async fn read(
    State(api): State<Arc<Api>>,
    Ready(service): Ready,
    ids: Ids,
    Query(query): Query<ReadQuery>,
    uri: Uri,
    headers: HeaderMap,
) -> Answer<Response> {
    let asked = Asked::parse(&service, &ids, &query)?;
    if let Some(from) = asked.from {
        return match tail::answer(&api, &service, &asked, from, &headers).await? {
            Ok(response) => Ok(response),
            Err(error) => asked.refuse(&error, &uri),
        };
    }
    let readable = match service.resolve(&asked.partition, asked.subpartition, asked.attempt).await {
        Ok(readable) => readable,
        Err(error) => return asked.refuse(&error, &uri),
    };
    let digest = readable.digest.ok_or(ServiceError::from(ServiceErrorKind::NotSealed))?;
    let plan = Plan::of(&headers, digest, &readable)?;
    let Plan::Send { range, is_part } = plan else { return plan.without_body(digest, &readable) };
    let call = ReadCall {
        attempt: Some(readable.attempt),
        subpartition: asked.subpartition,
        start: Offset::new(range.start),
        end: Some(Offset::new(range.end)),
        kind: ReadKind::Sealed,
    };
    let body = match service.read(&asked.partition, call).await {
        Ok(reply) => checked_body(&api, reply, &range).await?,
        Err(error) => return asked.refuse(&error, &uri),
    };
    let status = if is_part { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let mut response = (status, body).into_response();
    describe(response.headers_mut(), readable.attempt, readable.class);
    validate(response.headers_mut(), digest, &readable);
    size(response.headers_mut(), &range, is_part.then_some(readable.end));
    Ok(response)
}

pub(in crate::http) async fn head(
    Ready(service): Ready,
    ids: Ids,
    Query(query): Query<ReadQuery>,
    uri: Uri,
    headers: HeaderMap,
) -> Answer<Response> {
    let asked = Asked::parse(&service, &ids, &query)?;
    let readable = match service.resolve(&asked.partition, asked.subpartition, asked.attempt).await {
        Ok(readable) => readable,
        Err(error) => return asked.refuse(&error, &uri),
    };
    if let Some(from) = asked.from {
        return following_head(from, &readable);
    }
    let digest = readable.digest.ok_or(ServiceError::from(ServiceErrorKind::NotSealed))?;
    let plan = Plan::of(&headers, digest, &readable)?;
    plan.without_body(digest, &readable)
}

/// What is known without reading of a read that follows from `from` on: whether it would start.
fn following_head(from: Offset, readable: &Readable) -> Answer<Response> {
    if readable.digest.is_none() && readable.class.class != StoreClass::Pipelined {
        return Err(ServiceError::from(ServiceErrorKind::NotSealed).into());
    }
    if from < readable.floor {
        return Err(ServiceError::from(ServiceErrorKind::BelowFloor { floor: readable.floor }).into());
    }
    if from > readable.end {
        return Err(ServiceError::from(ServiceErrorKind::RangeNotSatisfiable { end: readable.end }).into());
    }
    let mut response = StatusCode::OK.into_response();
    describe(response.headers_mut(), readable.attempt, readable.class);
    response.headers_mut().insert(HeaderName::from_static(START_OFFSET), HeaderValue::from(from.get()));
    Ok(response)
}

/// What the conditions and the range of a request come to, for a sealed content.
enum Plan {
    /// The content still is what the client has.
    NotModified,
    /// These bytes.
    Send { range: Range<u64>, is_part: bool },
}

impl Plan {
    fn of(headers: &HeaderMap, digest: Digest, readable: &Readable) -> Answer<Self> {
        let (tag, end) = (entity_tag(digest, readable.attempt), readable.end.get());
        if text_header(headers, &IF_NONE_MATCH)?.is_some_and(|held| matches_any(held, &tag)) {
            return Ok(Self::NotModified);
        }
        let counts = text_header(headers, &IF_RANGE)?.is_none_or(|held| held.trim() == tag);
        let range = text_header(headers, &RANGE)?.filter(|_| counts);
        match range.map_or(Wanted::Whole, |range| wanted(range, end)) {
            Wanted::Whole => Ok(Self::Send { range: 0..end, is_part: false }),
            Wanted::Part(range) => Ok(Self::Send { range, is_part: true }),
            Wanted::Outside => Err(ServiceError::from(ServiceErrorKind::RangeNotSatisfiable { end: readable.end }).into()),
        }
    }

    /// The head of the answer alone.
    fn without_body(&self, digest: Digest, readable: &Readable) -> Answer<Response> {
        let status = match self {
            Self::NotModified => StatusCode::NOT_MODIFIED,
            Self::Send { is_part: true, .. } => StatusCode::PARTIAL_CONTENT,
            Self::Send { .. } => StatusCode::OK,
        };
        let mut response = status.into_response();
        describe(response.headers_mut(), readable.attempt, readable.class);
        validate(response.headers_mut(), digest, readable);
        if let Self::Send { range, is_part } = self {
            size(response.headers_mut(), range, is_part.then_some(readable.end));
        }
        Ok(response)
    }
}

/// Names the content of this subpartition of this attempt, and nothing else.
fn entity_tag(digest: Digest, attempt: AttemptId) -> String {
    format!("\"crc32c-{}-{}-{attempt}\"", digest.crc, digest.length)
}

fn matches_any(held: &str, tag: &str) -> bool {
    held.split(',').map(str::trim).any(|held| held == "*" || held.strip_prefix("W/").unwrap_or(held) == tag)
}

fn set(map: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        map.insert(name, value);
    }
}

/// Which attempt it is and how it is kept.
pub(in crate::http) fn describe(names: &mut HeaderMap, attempt: AttemptId, class: ClassAchieved) {
    set(names, CONTENT_TYPE, BYTES_MEDIA_TYPE);
    set(names, HeaderName::from_static(ATTEMPT), &attempt.to_string());
    set(names, HeaderName::from_static(CLASS), &map::class(class).text());
}

fn validate(names: &mut HeaderMap, digest: Digest, readable: &Readable) {
    set(names, ETAG, &entity_tag(digest, readable.attempt));
    // Content that starts above 0 has no digest of the bytes from 0 on.
    if readable.start == Offset::ZERO {
        set(names, REPR_DIGEST, &format!("crc32c=:{}:", encode_base64(digest.crc.get().to_be_bytes())));
    }
    set(names, ACCEPT_RANGES, "bytes");
}

fn size(names: &mut HeaderMap, range: &Range<u64>, whole: Option<Offset>) {
    names.insert(CONTENT_LENGTH, HeaderValue::from(range.end.saturating_sub(range.start)));
    if let Some(end) = whole {
        set(names, CONTENT_RANGE, &format!("bytes {}-{}/{end}", range.start, range.end.saturating_sub(1)));
    }
}

/// Four bytes in base64.
fn encode_base64(bytes: [u8; 4]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u64::from(u32::from_be_bytes(bytes)) << 4;
    let digit = |shift: u32| DIGITS.get((bits >> shift & 0x3f) as usize).map_or('A', |digit| char::from(*digit));
    let digits = [30, 24, 18, 12, 6, 0].into_iter().map(digit);
    digits.chain("==".chars()).collect()
}

/// The body, once its first bytes are there: what goes wrong before is still an answer of its own.
async fn checked_body(api: &Api, reply: ReadReply, range: &Range<u64>) -> Answer<Body> {
    let length = range.end.saturating_sub(range.start);
    let is_right = reply.start.get() == range.start && reply.end.is_none_or(|end| end.get() == range.end);
    let mut chunks = reply.chunks;
    let first = match chunks.next().await {
        Some(first) => first?,
        None if length > 0 => return Err(internal("a sealed read has no bytes")),
        None => Bytes::new(),
    };
    if !is_right {
        return Err(internal("a sealed read has another range"));
    }
    Ok(api.streaming().bytes(with_first(first, chunks), Some(length)))
}

fn internal(what: &'static str) -> Refusal {
    ServiceError::from(ServiceErrorKind::Internal).with_source(what).into()
}

type Chunks = BoxStream<'static, Result<Bytes, ServiceError>>;
type BodyChunks = BoxStream<'static, Result<Bytes, Box<dyn std::error::Error + Send + Sync>>>;

/// The chunks as they go into a body. An error in the middle is logged here, once: the reader only
/// sees that the body was cut.
fn with_first(first: Bytes, rest: Chunks) -> BodyChunks {
    let rest = rest.map(|chunk| {
        chunk.map_err(|error| {
            tracing::warn!(error = ?error, "a read failed in the middle of its body");
            error.into()
        })
    });
    futures::stream::iter([Ok(first)]).chain(rest).boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use store_api::{Crc32c, NodeId};

    const DIGEST: Digest = Digest { length: 9, crc: Crc32c::new(0xe306_9283) };

    /// Content whose first byte is at `start`.
    fn readable(start: u64) -> Readable {
        Readable {
            attempt: AttemptId::new(0, 1),
            digest: Some(DIGEST),
            start: Offset::new(start),
            floor: Offset::new(start),
            end: Offset::new(start + DIGEST.length),
            class: ClassAchieved {
                class: StoreClass::Pipelined,
                durability: store_api::Durability::Volatile,
                sync: store_api::SyncLevel::None,
                scope: store_api::Scope::NodeLife,
            },
            location: Location { node: NodeId::new("n").expect("an id"), life: NodeLife::new(1), url: "http://n".into() },
        }
    }

    #[test]
    fn content_that_starts_above_0_has_absolute_offsets_and_no_digest_of_the_whole() {
        let map = HeaderMap::from_iter([(RANGE, HeaderValue::from_static("bytes=72-74"))]);
        let plan = Plan::of(&map, DIGEST, &readable(70));
        assert!(matches!(plan, Ok(Plan::Send { range, is_part: true }) if range == (72..75)));
        for (start, has_digest) in [(0, true), (70, false)] {
            let mut names = HeaderMap::new();
            validate(&mut names, DIGEST, &readable(start));
            assert_eq!((names.contains_key(REPR_DIGEST), names.contains_key(ETAG)), (has_digest, true));
        }
    }

    fn plan(pairs: &[(HeaderName, &'static str)]) -> Option<(Range<u64>, bool)> {
        let map = pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect();
        match Plan::of(&map, DIGEST, &readable(0)) {
            Ok(Plan::Send { range, is_part }) => Some((range, is_part)),
            _ => None,
        }
    }

    #[test]
    fn the_tag_names_checksum_length_and_attempt() {
        assert_eq!(entity_tag(DIGEST, AttemptId::new(0, 1)), "\"crc32c-e3069283-9-0.1\"");
        assert_eq!(encode_base64(DIGEST.crc.get().to_be_bytes()), "4waSgw==");
    }

    #[test]
    fn a_range_counts_only_while_its_condition_holds() {
        let range = (RANGE, "bytes=2-3");
        assert_eq!(plan(std::slice::from_ref(&range)), Some((2..4, true)));
        let same = (IF_RANGE, "\"crc32c-e3069283-9-0.1\"");
        assert_eq!(plan(&[range.clone(), same]), Some((2..4, true)));
        for other in ["\"crc32c-e3069283-9-0.2\"", "W/\"crc32c-e3069283-9-0.1\"", "Wed, 21 Oct 2015 07:28:00 GMT"] {
            assert_eq!(plan(&[range.clone(), (IF_RANGE, other)]), Some((0..9, false)), "{other}");
        }
    }

    #[test]
    fn what_the_client_has_is_not_sent_again() {
        for held in ["\"crc32c-e3069283-9-0.1\"", "*", "\"x\", W/\"crc32c-e3069283-9-0.1\""] {
            assert_eq!(plan(&[(IF_NONE_MATCH, held)]), None, "{held}");
        }
        assert_eq!(plan(&[(IF_NONE_MATCH, "\"x\"")]), Some((0..9, false)));
    }

    #[test]
    fn a_redirect_keeps_the_query_and_names_the_life_and_the_hop() {
        let life = NodeLife::new(0xa1);
        let location = Location { node: NodeId::new("n").expect("an id"), life, url: "http://other:1/".into() };
        let target = |uri: &'static str| {
            let response = redirect(&location, &Uri::from_static(uri)).expect("a redirect");
            response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        let expected = "http://other:1/v1/x?attempt=0.1&life=00000000000000a1&hop=1";
        assert_eq!(target("/v1/x?attempt=0.1&life=00000000000000ff").as_deref(), Some(expected));
        assert_eq!(target("/v1/x").as_deref(), Some("http://other:1/v1/x?life=00000000000000a1&hop=1"));
    }
}

//! What a handler takes out of a request. Every part is parsed once, here; every part that is not
//! as documented is refused with a problem document that says which.

use super::Api;
use super::body::RequestBody;
use super::error::{Answer, Refusal};
use crate::service::{AttemptAddress, FencedBy, PartitionAddress, PartitionService, ServiceError, ServiceErrorKind};
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use bytes::{Bytes, BytesMut};
use forebay_protocol::{ErrorCode, headers};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use serde::de::DeserializeOwned;
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;
use store_api::ids::parse_decimal;
use store_api::{DatasetId, JobEpoch, JobId, NodeLife, Permit, SubpartitionIndex, WorkerId};

/// The service, once it is ready.
pub(crate) struct Ready(pub(crate) Arc<PartitionService>);

impl FromRequestParts<Arc<Api>> for Ready {
    type Rejection = Refusal;
    async fn from_request_parts(_: &mut Parts, api: &Arc<Api>) -> Answer<Self> {
        api.ready().map(Self)
    }
}

/// The ids in the path.
pub(crate) struct Ids(Vec<(String, String)>);

impl FromRequestParts<Arc<Api>> for Ids {
    type Rejection = Refusal;
    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Answer<Self> {
        let raw = RawPathParams::from_request_parts(parts, api).await.map_err(|_| Refusal::bad_request("the path is not UTF-8"))?;
        Ok(Self(raw.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()))
    }
}

impl Ids {
    fn parse<T: FromStr<Err = store_api::ids::IdError>>(&self, name: &str) -> Answer<T> {
        let text = self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.as_str());
        text.parse().map_err(|error| Refusal::bad_request(format!("{name} in the path: {error}")))
    }

    pub(crate) fn job(&self) -> Answer<JobId> {
        self.parse("job")
    }

    pub(crate) fn dataset(&self) -> Answer<DatasetId> {
        self.parse("dataset")
    }

    pub(crate) fn partition(&self) -> Answer<PartitionAddress> {
        Ok(PartitionAddress { job: self.job()?, dataset: self.dataset()?, partition: self.parse("partition")? })
    }

    pub(crate) fn attempt(&self) -> Answer<AttemptAddress> {
        Ok(AttemptAddress { partition: self.partition()?, attempt: self.parse("attempt")? })
    }

    pub(crate) fn subpartition(&self) -> Answer<SubpartitionIndex> {
        self.parse("subpartition")
    }

    pub(crate) fn worker(&self) -> Answer<WorkerId> {
        self.parse("worker")
    }

    pub(crate) fn plan(&self) -> Answer<u64> {
        let text = self.0.iter().find(|(key, _)| key == "plan").map_or("", |(_, value)| value.as_str());
        parse_decimal(text).ok_or_else(|| Refusal::bad_request("a plan is a decimal number from 0 to 2^64-1"))
    }

    pub(crate) fn checkpoint(&self) -> Answer<u64> {
        let text = self.0.iter().find(|(key, _)| key == "checkpoint").map_or("", |(_, value)| value.as_str());
        parse_decimal(text).ok_or_else(|| Refusal::bad_request("a checkpoint is a decimal number from 0 to 2^64-1"))
    }
}

/// The life of the node that the call is meant for, if it says so; already compared with the
/// node's own.
pub(crate) struct Life(pub(crate) Option<NodeLife>);

impl FromRequestParts<Arc<Api>> for Life {
    type Rejection = Refusal;
    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Answer<Self> {
        let life = parsed_header::<NodeLife>(&parts.headers, headers::NODE_LIFE)?;
        check_life(&*api.ready()?, life)?;
        Ok(Self(life))
    }
}

impl Life {
    /// Errors: `LifeRequired` when the call did not name it.
    pub(crate) fn required(&self) -> Answer<()> {
        self.0.map(|_| ()).ok_or_else(|| ServiceError::from(ServiceErrorKind::LifeRequired).into())
    }
}

/// Errors: `Fenced` when `life` is named and is not the node's.
pub(crate) fn check_life(service: &PartitionService, life: Option<NodeLife>) -> Answer<()> {
    let own = service.node().location.life;
    match life {
        Some(life) if life != own => Err(ServiceError::from(ServiceErrorKind::Fenced { by: FencedBy::Life(own) }).into()),
        _ => Ok(()),
    }
}

/// The epoch of the job's owner, if the call names it.
pub(crate) struct Epoch(pub(crate) Option<JobEpoch>);

impl FromRequestParts<Arc<Api>> for Epoch {
    type Rejection = Refusal;
    async fn from_request_parts(parts: &mut Parts, _: &Arc<Api>) -> Answer<Self> {
        parsed_header(&parts.headers, headers::JOB_EPOCH).map(Self)
    }
}

fn parsed_header<T: FromStr<Err = store_api::ids::IdError>>(map: &HeaderMap, name: &'static str) -> Answer<Option<T>> {
    let Some(text) = text_header(map, &HeaderName::from_static(name))? else { return Ok(None) };
    text.parse().map(Some).map_err(|error| Refusal::bad_request(format!("{name}: {error}")))
}

/// A header that may stand there once. Errors: it stands there twice, or is not visible ASCII.
pub(crate) fn text_header<'a>(map: &'a HeaderMap, name: &HeaderName) -> Answer<Option<&'a str>> {
    let mut values = map.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Refusal::bad_request(format!("{name} stands there twice")));
    }
    value.to_str().map(Some).map_err(|_| Refusal::bad_request(format!("{name} is not visible ASCII")))
}

/// The query. Parameters that are not documented, and repeated ones, are refused.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<Arc<Api>> for Query<T> {
    type Rejection = Refusal;
    async fn from_request_parts(parts: &mut Parts, _: &Arc<Api>) -> Answer<Self> {
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        query.map(|query| Self(query.0)).map_err(|rejection| Refusal::bad_request(rejection.body_text()))
    }
}

/// Parses a query parameter. Errors: it is there and is not what it should be.
pub(crate) fn parameter<T: FromStr<Err = store_api::ids::IdError>>(name: &str, text: Option<&str>) -> Answer<Option<T>> {
    text.map(str::parse).transpose().map_err(|error: store_api::ids::IdError| Refusal::bad_request(format!("{name}: {error}")))
}

/// Parses a decimal query parameter. Errors: it is there and is not a decimal number of 64 bits.
pub(crate) fn decimal(name: &str, text: Option<&str>) -> Answer<Option<u64>> {
    let refuse = || Refusal::bad_request(format!("{name} is a decimal number from 0 to 2^64-1"));
    text.map(|text| parse_decimal(text).ok_or_else(refuse)).transpose()
}

/// Content-Length, if it is there; hyper has refused any that is not a number.
pub(crate) fn content_length(map: &HeaderMap) -> Option<u64> {
    map.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()).and_then(parse_decimal)
}

/// Errors: `UnsupportedMediaType` unless Content-Type is `wanted`, whatever its parameters.
pub(crate) fn check_content_type(map: &HeaderMap, wanted: &'static str) -> Answer<()> {
    if is_content_type(map, wanted)? {
        return Ok(());
    }
    Err(Refusal::new(ErrorCode::UnsupportedMediaType, format!("Content-Type must be {wanted}")))
}

/// Whether Content-Type is `wanted`, whatever its parameters. Errors: it stands there twice.
pub(crate) fn is_content_type(map: &HeaderMap, wanted: &str) -> Answer<bool> {
    let named = text_header(map, &CONTENT_TYPE)?.unwrap_or_default();
    let essence = named.split(';').next().unwrap_or_default().trim();
    Ok(essence.eq_ignore_ascii_case(wanted))
}

/// A JSON document of at most the configured size that has not been read yet, so that what is wrong
/// with the rest of the request is answered first: a client that waits for `100 Continue` then never
/// sends it. Its media type and its announced length have been checked.
pub(crate) struct Document<T> {
    api: Arc<Api>,
    body: Body,
    length: Option<u64>,
    wanted: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> FromRequest<Arc<Api>> for Document<T> {
    type Rejection = Refusal;
    async fn from_request(request: Request, api: &Arc<Api>) -> Answer<Self> {
        let (parts, body) = request.into_parts();
        let length = content_length(&parts.headers);
        let is_announced_empty = length.map_or_else(|| http_body::Body::is_end_stream(&body), |length| length == 0);
        if !is_announced_empty {
            check_content_type(&parts.headers, "application/json")?;
        }
        let limit = api.config.max_document_bytes;
        if length.is_some_and(|length| length > limit) {
            return Err(Refusal::too_large(limit));
        }
        Ok(Self { api: api.clone(), body, length, wanted: PhantomData })
    }
}

impl<T: DeserializeOwned> Document<T> {
    /// Reads it. Unknown members and numbers that do not fit are refused. An empty body is an empty
    /// document.
    pub(crate) async fn read(self) -> Answer<T> {
        let (bytes, _permit) = read_document(&self.api, self.body, self.length).await?;
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        serde_json::from_slice(text).map_err(|error| Refusal::bad_request(format!("the document: {error}")))
    }
}

/// Reads a whole body into memory that was reserved for documents.
async fn read_document(api: &Api, body: Body, length: Option<u64>) -> Answer<(Bytes, Permit)> {
    let limit = api.config.max_document_bytes;
    let mut permit = Permit::none();
    let mut reserve = |bytes: u64| match api.documents.try_reserve(bytes) {
        Ok(more) => {
            permit.merge(more);
            Ok(())
        }
        Err(_) => Err(Refusal::new(ErrorCode::Overloaded, "too many large documents at a time")),
    };
    reserve(length.unwrap_or(0))?;
    let mut body = api.request_body(body, length);
    let mut whole = BytesMut::new();
    while let Some(piece) = body.next().await? {
        if length.is_none() {
            reserve(piece.len() as u64)?;
        }
        if whole.len().saturating_add(piece.len()) as u64 > limit {
            return Err(Refusal::too_large(limit));
        }
        whole.extend_from_slice(&piece);
    }
    Ok((whole.freeze(), permit))
}

/// A body that the handler reads itself, piece by piece.
pub(crate) struct Streamed {
    pub(crate) headers: HeaderMap,
    pub(crate) body: RequestBody,
    pub(crate) length: Option<u64>,
}

impl FromRequest<Arc<Api>> for Streamed {
    type Rejection = Refusal;
    async fn from_request(request: Request, api: &Arc<Api>) -> Answer<Self> {
        let (parts, body) = request.into_parts();
        let length = content_length(&parts.headers);
        Ok(Self { headers: parts.headers, body: api.request_body(body, length), length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        map
    }

    fn code<T>(answer: Answer<T>) -> Option<ErrorCode> {
        answer.err().map(|refusal| refusal.problem().code)
    }

    #[test]
    fn a_header_that_stands_there_twice_is_refused() {
        let twice = map(&[(headers::JOB_EPOCH, "1"), (headers::JOB_EPOCH, "1")]);
        assert_eq!(code(parsed_header::<JobEpoch>(&twice, headers::JOB_EPOCH)), Some(ErrorCode::BadRequest));
    }

    #[test]
    fn numbers_with_signs_blanks_or_fractions_are_refused() {
        for text in ["+1", "-1", " 1", "1.0", "1e3", "", "18446744073709551616"] {
            assert_eq!(code(decimal("offset", Some(text))), Some(ErrorCode::BadRequest), "{text:?}");
        }
        assert_eq!(decimal("offset", Some("18446744073709551615")).ok().flatten(), Some(u64::MAX));
    }

    #[test]
    fn the_media_type_counts_and_its_parameters_do_not() {
        assert!(check_content_type(&map(&[("content-type", "Application/JSON; charset=utf-8")]), "application/json").is_ok());
        for other in ["text/plain", "", "application/jsonx"] {
            let refused = check_content_type(&map(&[("content-type", other)]), "application/json");
            assert_eq!(code(refused), Some(ErrorCode::UnsupportedMediaType), "{other:?}");
        }
        assert_eq!(code(check_content_type(&map(&[]), "application/json")), Some(ErrorCode::UnsupportedMediaType));
    }

    #[test]
    fn ids_that_leave_their_alphabet_are_refused_by_name() {
        let ids = Ids(vec![("job".to_owned(), "../x".to_owned()), ("checkpoint".to_owned(), "-1".to_owned())]);
        let refused = ids.job().err().map(|refusal| refusal.problem().detail.clone()).unwrap_or_default();
        assert!(refused.starts_with("job in the path"), "{refused}");
        assert_eq!(code(ids.checkpoint()), Some(ErrorCode::BadRequest));
        assert_eq!(code(ids.dataset()), Some(ErrorCode::BadRequest), "a missing id is no id");
    }
}

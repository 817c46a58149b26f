//! Raw appends: memory is reserved before the bytes it is for are read.

use crate::http::body::RequestBody;
use crate::http::error::{Answer, Refusal};
use crate::http::extract::{Ids, Life, Query, Ready, Streamed, decimal, is_content_type, text_header};
use crate::service::RawSink;
use axum::Json;
use bytes::Bytes;
use forebay_protocol::ErrorCode;
use forebay_protocol::headers::FRAMES_MEDIA_TYPE;
use forebay_protocol::partitions::AppendDocument;
use http::{HeaderMap, HeaderName};
use serde::Deserialize;
use store_api::{Crc32c, Offset, Permit};

const CONTENT_DIGEST: HeaderName = HeaderName::from_static("content-digest");

/// Where the body starts.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct AppendQuery {
    offset: Option<String>,
}

pub(in crate::http) async fn append(
    Ready(service): Ready,
    ids: Ids,
    life: Life,
    Query(query): Query<AppendQuery>,
    request: Streamed,
) -> Answer<Json<AppendDocument>> {
    life.required()?;
    let offset = decimal("offset", query.offset.as_deref())?.ok_or_else(|| Refusal::bad_request("offset is required"))?;
    // The bytes are opaque, whatever the client's library calls them. Frames were meant for another
    // route: as bytes they would be stored with their headers.
    if is_content_type(&request.headers, FRAMES_MEDIA_TYPE)? {
        return Err(Refusal::new(ErrorCode::UnsupportedMediaType, "frames are appended with POST to the attempt's frames"));
    }
    let stated = content_digest(&request.headers)?;
    let atomic_bytes = service.config().atomic_append_bytes;
    let length = request.length;
    if stated.is_some() && length.is_some_and(|length| length > atomic_bytes) {
        return Err(Refusal::too_large(atomic_bytes));
    }
    let attempt = ids.attempt()?;
    let sink = service.begin_append(&attempt, life.0, ids.subpartition()?, Some(Offset::new(offset)), length).await?;
    // An atomic append reserves all it needs at once, so that two of them never wait for each other.
    let at_once = length.filter(|length| *length <= atomic_bytes);
    let upload = Upload { sink, body: request.body, stated, atomic_bytes, permit: Permit::none(), crc: Crc32c::default() };
    let reply = upload.run(at_once).await?;
    Ok(Json(reply))
}

/// The `crc32c` member of a Content-Digest (RFC 9530): base64 of the checksum, high byte first.
fn content_digest(map: &HeaderMap) -> Answer<Option<Crc32c>> {
    let Some(text) = text_header(map, &CONTENT_DIGEST)? else { return Ok(None) };
    let Some(value) = text.split(',').find_map(|member| member.trim().strip_prefix("crc32c=")) else { return Ok(None) };
    let decoded = value.strip_prefix(':').and_then(|value| value.strip_suffix(':')).and_then(decode_base64);
    decoded
        .map(|bytes| Some(Crc32c::new(u32::from_be_bytes(bytes))))
        .ok_or_else(|| Refusal::bad_request("Content-Digest: crc32c=:4 bytes in base64:"))
}

/// Exactly four bytes in base64: six digits and two signs of filling.
fn decode_base64(text: &str) -> Option<[u8; 4]> {
    let digits = text.strip_suffix("==").filter(|digits| digits.len() == 6)?;
    let mut bits = 0_u64;
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u64::from(value);
    }
    // 36 bits were read, the last four of them mean nothing.
    u32::try_from(bits >> 4).ok().filter(|_| bits & 0xf == 0).map(u32::to_be_bytes)
}

/// A body on its way into the service.
struct Upload {
    sink: RawSink,
    body: RequestBody,
    stated: Option<Crc32c>,
    atomic_bytes: u64,
    permit: Permit,
    crc: Crc32c,
}

impl Upload {
    async fn run(mut self, at_once: Option<u64>) -> Answer<AppendDocument> {
        if let Some(bytes) = at_once {
            self.permit = self.sink.reserve(bytes).await?;
        } else {
            self.permit = self.sink.reserve(self.sink.block_bytes()).await?;
        }
        while let Some(piece) = self.body.next().await? {
            self.take(piece).await?;
        }
        if self.stated.is_some_and(|stated| stated != self.crc) {
            return Err(Refusal::new(ErrorCode::ContentDigestMismatch, "the body does not have its Content-Digest"));
        }
        let reply = self.sink.finish().await?;
        Ok(AppendDocument { end_offset: reply.end.get(), new_bytes: reply.new_bytes })
    }

    async fn take(&mut self, mut piece: Bytes) -> Answer<()> {
        if self.stated.is_some() {
            self.crc = self.crc.append(&piece);
        }
        // Ends with the piece; each round takes at least one byte of it.
        while !piece.is_empty() {
            if self.permit.bytes() == 0 {
                self.permit = self.sink.reserve(self.sink.block_bytes().max(1)).await?;
            }
            let n = piece.len().min(usize::try_from(self.permit.bytes()).unwrap_or(usize::MAX));
            let Some(permit) = self.permit.split(n as u64) else { return Err(Refusal::new(ErrorCode::Internal, "an internal error")) };
            self.sink.push(piece.split_to(n), permit).await?;
        }
        if self.stated.is_some() && !self.sink.is_atomic() {
            return Err(Refusal::too_large(self.atomic_bytes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn digest(text: &'static str) -> Result<Option<u32>, ErrorCode> {
        let mut map = HeaderMap::new();
        map.insert(CONTENT_DIGEST, HeaderValue::from_static(text));
        content_digest(&map).map(|crc| crc.map(Crc32c::get)).map_err(|refusal| refusal.problem().code)
    }

    #[test]
    fn the_check_value_of_the_algorithm_is_read() {
        assert_eq!(digest("crc32c=:4waSgw==:"), Ok(Some(0xe306_9283)));
        assert_eq!(digest("sha-256=:AAAA:, crc32c=:AAAAAA==:"), Ok(Some(0)));
        assert_eq!(digest("crc32c=://///w==:"), Ok(Some(u32::MAX)));
    }

    #[test]
    fn other_algorithms_are_not_looked_at() {
        assert_eq!(digest("sha-256=:AAAA:"), Ok(None));
        assert_eq!(content_digest(&HeaderMap::new()).ok(), Some(None));
    }

    #[test]
    fn a_digest_of_another_form_is_refused() {
        for text in ["crc32c=", "crc32c=4waSgw==", "crc32c=:4waSgw:", "crc32c=:4waSg===:", "crc32c=:4waSgx==:", "crc32c=:4wa!gw==:"] {
            assert_eq!(digest(text), Err(ErrorCode::BadRequest), "{text}");
        }
    }
}

//! Reads the sealed bytes of one subpartition, over as many connections as it takes.

use crate::dataset::DatasetHandle;
use crate::error::{ClientError, Result};
use crate::transport::{Answer, AnswerBody, Call, Caller, Failure};
use bytes::{Bytes, BytesMut};
use forebay_protocol::ErrorCode;
use forebay_protocol::headers::ATTEMPT;
use futures::stream::{BoxStream, StreamExt as _};
use http::{Method, StatusCode};
use reqwest::Url;
use store_api::{AttemptId, Crc32c, Offset, PartitionId, SubpartitionIndex};

/// Which bytes, and of which attempt.
///
/// ```
/// use forebay_client::ReadRange;
/// use store_api::{AttemptId, Offset};
/// let range = ReadRange::from(Offset::new(100)).to(Offset::new(200)).attempt(AttemptId::new(0, 1));
/// assert_eq!(range.start, Offset::new(100));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadRange {
    /// First byte wanted.
    pub start: Offset,
    /// First byte not wanted; the end when it is left out.
    pub end: Option<Offset>,
    /// The attempt that the reader was told to read; the sealed content when it is left out.
    pub attempt: Option<AttemptId>,
}

impl ReadRange {
    /// The whole content.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// From an offset to the end.
    #[must_use]
    pub const fn from(start: Offset) -> Self {
        Self { start, end: None, attempt: None }
    }

    /// Up to an offset, which is not inside.
    #[must_use]
    pub const fn to(mut self, end: Offset) -> Self {
        self.end = Some(end);
        self
    }

    /// Of this attempt only.
    #[must_use]
    pub const fn attempt(mut self, attempt: AttemptId) -> Self {
        self.attempt = Some(attempt);
        self
    }
}

/// Makes a read, and follows one redirect to the holder.
pub(crate) async fn follow_once(caller: &Caller, call: &Call, patience: std::time::Duration) -> std::result::Result<Answer, Failure> {
    let answer = caller.once(call, patience).await?;
    if answer.status != StatusCode::TEMPORARY_REDIRECT {
        return Ok(answer);
    }
    let place = answer.header("location").and_then(|place| call.url.join(place).ok());
    let url: Url = place.ok_or_else(|| ClientError::unexpected("a redirect without a place"))?;
    caller.check_hop(&url)?;
    let hop = Call { url, ..call.clone() };
    let answer = caller.once(&hop, patience).await?;
    if answer.status == StatusCode::TEMPORARY_REDIRECT { Err(Failure::Final(ClientError::moved_again())) } else { Ok(answer) }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// `crc32c=:{base64 of 4 bytes, big-endian}:`.
pub(crate) fn digest_text(crc: Crc32c) -> String {
    let bits = u64::from(crc.get()) << 4;
    let digit = |at: u32| {
        usize::try_from((bits >> (30 - 6 * at)) & 63).ok().and_then(|digit| ALPHABET.get(digit)).map_or('A', |byte| char::from(*byte))
    };
    let digits: String = (0..6).map(digit).collect();
    format!("crc32c=:{digits}==:")
}

/// The CRC-32C of a digest list, if there is one.
pub(crate) fn parse_digest(text: &str) -> Option<Crc32c> {
    let value = text.split(',').find_map(|part| part.trim().strip_prefix("crc32c=:"))?;
    let digits = value.strip_suffix("==:").filter(|digits| digits.len() == 6)?;
    let bits = digits.bytes().try_fold(0_u64, |bits, byte| {
        let digit = ALPHABET.iter().position(|known| *known == byte)?;
        Some((bits << 6) | u64::try_from(digit).ok()?)
    })?;
    u32::try_from(bits >> 4).ok().map(Crc32c::new)
}

/// What the head of a sealed read says.
#[derive(Debug, Clone)]
struct Head {
    attempt: Option<String>,
    etag: Option<String>,
    digest: Option<Crc32c>,
    start: u64,
    end: u64,
    total: u64,
}

fn parse_head(answer: &Answer) -> Option<Head> {
    let number = |text: &str| store_api::ids::parse_decimal(text);
    let (start, end, total) = if answer.status == StatusCode::PARTIAL_CONTENT {
        let (range, total) = answer.header("content-range")?.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        (number(first)?, number(last)?.checked_add(1)?, number(total)?)
    } else {
        let total = number(answer.header("content-length")?)?;
        (0, total, total)
    };
    let text = |name| answer.header(name).map(str::to_owned);
    Some(Head {
        attempt: text(ATTEMPT),
        etag: text("etag"),
        digest: answer.header("repr-digest").and_then(parse_digest),
        start,
        end,
        total,
    })
}

impl DatasetHandle {
    /// Reads the sealed bytes of a subpartition. See [`SubpartitionReader`].
    pub async fn read(&self, partition: PartitionId, subpartition: SubpartitionIndex, range: ReadRange) -> Result<SubpartitionReader> {
        SubpartitionReader::open(self.clone(), partition, subpartition, range).await
    }
}

/// The bytes of a subpartition, in pieces.
///
/// A cut connection is resumed where it stopped, and only on the same content: the ETag and the
/// attempt of the first answer hold for all further ones. When the whole was read its checksum is
/// compared. The stream ends without an error only if every byte asked for has been handed out.
#[derive(Debug)]
pub struct SubpartitionReader {
    source: Source,
    head: Head,
    at: u64,
    crc: Crc32c,
    body: Option<AnswerBody>,
    attempts: crate::retry::Attempts,
    is_failed: bool,
}

#[derive(Debug, Clone)]
struct Source {
    dataset: DatasetHandle,
    partition: PartitionId,
    subpartition: SubpartitionIndex,
    range: ReadRange,
}

impl Source {
    fn caller(&self) -> &Caller {
        &self.dataset.job.caller
    }

    fn call(&self, attempt: Option<&str>, start: u64, end: Option<u64>) -> Result<Call> {
        let mut call = self.dataset.call(Method::GET, &format!("/partitions/{}/subpartitions/{}", self.partition, self.subpartition))?;
        if let Some(attempt) = attempt {
            call = call.query("attempt", attempt);
        }
        match end {
            None if start == 0 => Ok(call),
            None => call.with("range", format!("bytes={start}-")),
            Some(end) => call.with("range", format!("bytes={start}-{}", end.saturating_sub(1))),
        }
    }

    async fn first(&self) -> std::result::Result<(Head, Option<AnswerBody>), Failure> {
        let (start, end) = (self.range.start.get(), self.range.end.map(Offset::get));
        let attempt = self.range.attempt.map(|attempt| attempt.to_string());
        let call = self.call(attempt.as_deref(), start, end)?;
        match follow_once(self.caller(), &call, self.caller().shared.stall).await {
            Ok(answer) => {
                let head = parse_head(&answer).ok_or_else(|| ClientError::unexpected("a read without its length"))?;
                if head.start != start || end.is_some_and(|end| head.end > end) {
                    return Err(Failure::Final(ClientError::unexpected("another range than the one asked for")));
                }
                Ok((head, Some(answer.body)))
            }
            // Nothing follows the last byte: an empty rest, not a mistake.
            Err(Failure::Problem { problem, .. })
                if problem.code == ErrorCode::RangeNotSatisfiable && problem.end_offset == Some(start) =>
            {
                Ok((Head { attempt, etag: None, digest: None, start, end: start, total: start }, None))
            }
            Err(failure) => Err(failure),
        }
    }
}

impl SubpartitionReader {
    pub(crate) async fn open(
        dataset: DatasetHandle,
        partition: PartitionId,
        subpartition: SubpartitionIndex,
        range: ReadRange,
    ) -> Result<Self> {
        if range.end.is_some_and(|end| end <= range.start) {
            return Err(ClientError::invalid("a range that holds no byte"));
        }
        let source = Source { dataset, partition, subpartition, range };
        let mut attempts = source.caller().attempts();
        loop {
            match source.first().await {
                Ok((head, body)) => {
                    let at = head.start;
                    return Ok(Self { source, head, at, crc: Crc32c::default(), body, attempts, is_failed: false });
                }
                Err(failure) => source.caller().pause(&mut attempts, failure).await?,
            }
        }
    }

    /// The attempt whose bytes these are, `{generation}.{attempt}`.
    #[must_use]
    pub fn attempt(&self) -> Option<&str> {
        self.head.attempt.as_deref()
    }

    /// Offset of the next byte that will be handed out.
    #[must_use]
    pub const fn offset(&self) -> Offset {
        Offset::new(self.at)
    }

    /// First byte after those asked for.
    #[must_use]
    pub const fn end(&self) -> Offset {
        Offset::new(self.head.end)
    }

    /// Length of the whole subpartition.
    #[must_use]
    pub const fn total_bytes(&self) -> u64 {
        self.head.total
    }

    /// The next bytes; `None` when all have been handed out. Cancel-safe. After an error there is
    /// nothing more.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        if self.is_failed {
            return None;
        }
        loop {
            let failure = match self.step().await {
                Ok(Some(bytes)) => return Some(Ok(bytes)),
                Ok(None) => return None,
                Err(failure) => failure,
            };
            self.body = None;
            let caller = self.source.caller().clone();
            if let Err(error) = caller.pause(&mut self.attempts, failure).await {
                self.is_failed = true;
                return Some(Err(error));
            }
        }
    }

    async fn step(&mut self) -> std::result::Result<Option<Bytes>, Failure> {
        if self.at == self.head.end {
            return self.check_whole().map(|()| None);
        }
        let body = match &mut self.body {
            Some(body) => body,
            None => {
                let body = self.resume().await?;
                self.body.insert(body)
            }
        };
        let Some(bytes) = body.next().await? else { return Err(Failure::cut("the body ended early")) };
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.at = self.at.saturating_add(length);
        if self.at > self.head.end {
            return Err(Failure::Final(ClientError::unexpected("more bytes than the head said")));
        }
        self.crc = self.crc.append(&bytes);
        self.attempts.progressed();
        Ok(Some(bytes))
    }

    async fn resume(&self) -> std::result::Result<AnswerBody, Failure> {
        let Some(etag) = &self.head.etag else {
            return Err(Failure::Final(ClientError::unexpected("a read without an ETag cannot be resumed")));
        };
        let call = self.source.call(self.head.attempt.as_deref(), self.at, Some(self.head.end))?.with("if-range", etag)?;
        let answer = follow_once(self.source.caller(), &call, self.source.caller().shared.stall).await?;
        let head = parse_head(&answer).ok_or_else(|| ClientError::unexpected("a read without its length"))?;
        let is_same = head.etag.as_ref() == Some(etag) && head.attempt == self.head.attempt;
        if !is_same {
            let detail = "the content changed while it was read".to_owned();
            return Err(Failure::Final(ClientError::ResolveAgain { detail, problem: None }));
        }
        if head.start != self.at || head.end != self.head.end {
            return Err(Failure::Final(ClientError::unexpected("another range than the one asked for")));
        }
        Ok(answer.body)
    }

    fn check_whole(&self) -> std::result::Result<(), Failure> {
        let is_whole = self.head.start == 0 && self.head.end == self.head.total;
        match self.head.digest {
            Some(digest) if is_whole && digest != self.crc => {
                let detail = format!("the content has checksum {}, {digest} was stated", self.crc);
                Err(Failure::Final(ClientError::Damaged { detail, attempts: 1 }))
            }
            _ => Ok(()),
        }
    }

    /// All bytes in one piece. Content that arrives damaged is read again within the policy. Errors:
    /// [`ClientError::Invalid`] when there are more than `limit_bytes`.
    pub async fn collect(mut self, limit_bytes: u64) -> Result<Bytes> {
        let mut damages = self.source.caller().attempts();
        loop {
            match self.collect_once(limit_bytes).await {
                Err(ClientError::Damaged { detail, .. }) => {
                    let source = self.source.clone();
                    source.caller().pause(&mut damages, Failure::Damaged { detail }).await?;
                    self = Self::open(source.dataset, source.partition, source.subpartition, source.range).await?;
                }
                other => return other,
            }
        }
    }

    async fn collect_once(&mut self, limit_bytes: u64) -> Result<Bytes> {
        let length = self.head.end.saturating_sub(self.head.start);
        let capacity = usize::try_from(length).ok().filter(|_| length <= limit_bytes);
        let capacity = capacity.ok_or_else(|| ClientError::invalid(format!("{length} bytes are over the limit of {limit_bytes}")))?;
        let mut whole = BytesMut::with_capacity(capacity);
        while let Some(piece) = self.next().await {
            whole.extend_from_slice(&piece?);
        }
        Ok(whole.freeze())
    }

    /// The pieces as a stream, which ends after the first error.
    #[must_use]
    pub fn into_stream(self) -> BoxStream<'static, Result<Bytes>> {
        futures::stream::unfold(self, |mut reader| async move { reader.next().await.map(|piece| (piece, reader)) }).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_digest_is_written_as_the_contract_says() {
        assert_eq!(digest_text(Crc32c::of(b"123456789")), "crc32c=:4waSgw==:");
    }

    proptest! {
        #[test]
        fn digests_parse_back(crc: u32) {
            let text = format!("sha-256=:AAAA:, {}", digest_text(Crc32c::new(crc)));
            prop_assert_eq!(parse_digest(&text), Some(Crc32c::new(crc)));
        }

        #[test]
        fn no_digest_makes_the_parser_panic(text: String) {
            let _ = parse_digest(&text);
        }
    }
}

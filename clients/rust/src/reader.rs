//! Readers of one subpartition: sealed, with resume and verification; and open, following the tail.

use crate::dataset::DatasetHandle;
use crate::error::{ClientError, Result};
use crate::retry::Retries;
use crate::transport::{Call, Failure, SharedTransport, chain, problem};
use bytes::Bytes;
use forebay_protocol::partitions::PartitionStateName;
use forebay_protocol::reads::{AvailabilityDocument, AvailabilityItem, AvailabilityRequest};
use forebay_protocol::{ErrorCode, Problem, headers, paths};
use http::{Method, StatusCode, header};
use reqwest::{Body, Response};
use store_api::clock::within;
use store_api::{AttemptId, Crc32c, Digest, Offset, PartitionId, SubpartitionIndex};

/// Seconds that a tail read waits for new bytes before it asks again.
const TAIL_WAIT_SECONDS: u32 = 20;

/// What to read of a sealed subpartition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// First byte wanted.
    pub from: Offset,
    /// First byte not wanted; the end when it is left out.
    pub to: Option<Offset>,
    /// The attempt that the reader was told to read; the sealed content when it is left out.
    pub attempt: Option<AttemptId>,
}

/// A read under way. Pull with [`SubpartitionReader::next`]; dropping it ends the read.
#[derive(Debug)]
pub struct SubpartitionReader {
    transport: SharedTransport,
    path: String,
    options: ReadOptions,
    at: u64,
    end: Option<u64>,
    etag: Option<String>,
    digest: Option<Digest>,
    seen: Digest,
    response: Option<Response>,
    retries: Retries,
    is_done: bool,
}

impl SubpartitionReader {
    pub(crate) fn new(transport: SharedTransport, path: String, options: ReadOptions) -> Self {
        let retries = Retries::new(transport.retry, transport.now());
        let at = options.from.get();
        Self {
            transport,
            path,
            options,
            at,
            end: None,
            etag: None,
            digest: None,
            seen: Digest::EMPTY,
            response: None,
            retries,
            is_done: false,
        }
    }

    /// The offset of the byte that comes next.
    #[must_use]
    pub const fn offset(&self) -> Offset {
        Offset::new(self.at)
    }

    /// The next bytes; `None` after the last one. When the whole subpartition was read, its digest
    /// has been checked by then. Cancel-safe: a dropped call loses nothing.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        while !self.is_done {
            if self.response.is_none() {
                self.connect().await?;
            }
            let Some(response) = self.response.as_mut() else { continue };
            let failure = match within(self.transport.clock.as_ref(), self.transport.stall, response.chunk()).await {
                Some(Ok(Some(bytes))) if bytes.is_empty() => continue,
                Some(Ok(Some(bytes))) => return self.take(bytes).map(Some),
                Some(Ok(None)) if self.end == Some(self.at) => {
                    self.finish()?;
                    continue;
                }
                Some(Ok(None)) => "the body ended early".to_owned(),
                Some(Err(error)) => chain(&error),
                None => "no byte came".to_owned(),
            };
            self.response = None;
            self.transport.wait_or_fail(&mut self.retries, Failure::Transport(failure)).await?;
        }
        Ok(None)
    }

    /// Reads on to the end and gives all bytes in one piece. For small subpartitions.
    pub async fn read_to_end(mut self) -> Result<Bytes> {
        let mut all = bytes::BytesMut::new();
        while let Some(bytes) = self.next().await? {
            all.extend_from_slice(&bytes);
        }
        Ok(all.freeze())
    }

    fn take(&mut self, bytes: Bytes) -> Result<Bytes> {
        self.at = self.at.saturating_add(bytes.len() as u64);
        if self.end.is_some_and(|end| self.at > end) {
            return Err(ClientError::Protocol("more bytes came than were announced".to_owned()));
        }
        if self.options.from == Offset::ZERO {
            self.seen = Digest { length: self.at, crc: self.seen.crc.append(&bytes) };
        }
        self.retries.made_progress(self.transport.now());
        Ok(bytes)
    }

    fn finish(&mut self) -> Result<()> {
        self.is_done = true;
        self.response = None;
        match self.digest {
            Some(digest) if self.options.from == Offset::ZERO && digest.length == self.at && digest != self.seen => {
                Err(ClientError::Damaged(format!("the service names {digest}, {} was read", self.seen)))
            }
            _ => Ok(()),
        }
    }

    fn call(&self) -> Call {
        let query = self.options.attempt.map(|attempt| format!("?attempt={attempt}")).unwrap_or_default();
        let mut call = Call::new(Method::GET, format!("{}{query}", self.path));
        let last = self.options.to.map(|to| to.get().saturating_sub(1));
        if self.at > 0 || last.is_some() {
            let last = last.map(|last| last.to_string()).unwrap_or_default();
            call = call.header("range", &format!("bytes={}-{last}", self.at));
        }
        match &self.etag {
            Some(etag) => call.header("if-range", etag),
            None => call,
        }
    }

    async fn connect(&mut self) -> Result<()> {
        if self.options.to.is_some_and(|to| to.get() <= self.at) {
            return self.finish();
        }
        let call = self.call();
        let failure = match self.transport.send(&call, Body::default()).await {
            Ok(response) if response.status().is_success() => return self.accept(response),
            Ok(response) => Failure::Refused(problem(response).await?),
            Err(cause) => Failure::Transport(cause),
        };
        if let Failure::Refused(refused) = &failure
            && refused.code == ErrorCode::RangeNotSatisfiable
            && refused.end_offset == Some(self.at)
        {
            self.end = Some(self.at);
            return self.finish();
        }
        self.transport.wait_or_fail(&mut self.retries, failure).await
    }

    fn accept(&mut self, response: Response) -> Result<()> {
        let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let etag = text("etag");
        if self.etag.is_some() && etag != self.etag {
            let problem = Problem::new(ErrorCode::OtherAttemptWon, "the content of the partition changed during the read");
            return Err(ClientError::Refused(Box::new(problem)));
        }
        let length = response.content_length().ok_or_else(|| ClientError::Protocol("a sealed read without a length".to_owned()))?;
        let starts_at = match response.status() {
            StatusCode::PARTIAL_CONTENT => text(header::CONTENT_RANGE.as_str()).as_deref().and_then(range_start),
            _ => Some(0),
        };
        if starts_at != Some(self.at) {
            return Err(ClientError::Protocol(format!("bytes from {} were asked for, the answer starts at {starts_at:?}", self.at)));
        }
        self.end = Some(self.at.saturating_add(length));
        self.digest = text("etag").as_deref().and_then(parse_etag).or(self.digest);
        self.etag = etag;
        self.response = Some(response);
        Ok(())
    }
}

/// First byte of a `Content-Range: bytes a-b/c`.
fn range_start(text: &str) -> Option<u64> {
    text.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok()
}

/// The digest of the whole subpartition in an ETag `"crc32c-<8 hex>-<length>…"`.
fn parse_etag(text: &str) -> Option<Digest> {
    let mut parts = text.trim_matches('"').strip_prefix("crc32c-")?.split('-');
    let crc = u32::from_str_radix(parts.next()?, 16).ok()?;
    Some(Digest { crc: Crc32c::new(crc), length: parts.next()?.parse().ok()? })
}

/// A read that follows an open subpartition. Dropping it ends the read.
#[derive(Debug)]
pub struct TailReader {
    dataset: DatasetHandle,
    transport: SharedTransport,
    partition: PartitionId,
    subpartition: SubpartitionIndex,
    attempt: Option<String>,
    at: u64,
    response: Option<Response>,
    retries: Retries,
    is_done: bool,
}

impl TailReader {
    pub(crate) fn new(
        dataset: DatasetHandle,
        transport: SharedTransport,
        partition: PartitionId,
        subpartition: SubpartitionIndex,
        from: Offset,
        attempt: Option<AttemptId>,
    ) -> Self {
        let retries = Retries::new(transport.retry, transport.now());
        let attempt = attempt.map(|attempt| attempt.to_string());
        Self { dataset, transport, partition, subpartition, attempt, at: from.get(), response: None, retries, is_done: false }
    }

    /// The offset of the byte that comes next: where a restarted reader goes on.
    #[must_use]
    pub const fn offset(&self) -> Offset {
        Offset::new(self.at)
    }

    /// The attempt that is followed, once it is known.
    #[must_use]
    pub fn attempt(&self) -> Option<&str> {
        self.attempt.as_deref()
    }

    /// The next bytes, as soon as there are any; `None` at the sealed end. A partition that nobody
    /// has begun to write is waited for. Errors: the attempt was superseded (it never goes on with
    /// another one's bytes), lost, aborted, or the offset is below the floor. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        while !self.is_done {
            if self.response.is_none() {
                self.connect().await?;
            }
            let Some(response) = self.response.as_mut() else { continue };
            let patience = self.transport.stall.max(std::time::Duration::from_secs(u64::from(TAIL_WAIT_SECONDS) + 10));
            let failure = match within(self.transport.clock.as_ref(), patience, response.chunk()).await {
                Some(Ok(Some(bytes))) if bytes.is_empty() => continue,
                Some(Ok(Some(bytes))) => {
                    self.at = self.at.saturating_add(bytes.len() as u64);
                    self.retries.made_progress(self.transport.now());
                    return Ok(Some(bytes));
                }
                Some(Ok(None)) => {
                    self.response = None;
                    self.is_done = self.is_at_end().await?;
                    continue;
                }
                Some(Err(error)) => chain(&error),
                None => "no byte came".to_owned(),
            };
            self.response = None;
            self.transport.wait_or_fail(&mut self.retries, Failure::Transport(failure)).await?;
        }
        Ok(None)
    }

    /// Whether the attempt that is followed is sealed and has no byte beyond the offset.
    async fn is_at_end(&self) -> Result<bool> {
        let (job, dataset) = self.dataset.job_handle_parts();
        let item = AvailabilityItem {
            dataset: dataset.to_string(),
            partition: self.partition.get(),
            n_partitions: 1,
            subpartition: Some(self.subpartition.get()),
        };
        let call = Call::new(Method::POST, format!("{}/availability", paths::job(job)));
        let answer: AvailabilityDocument = self.transport.document(&call.json(&AvailabilityRequest { items: vec![item] })?).await?;
        let Some(entry) = answer.partitions.first() else { return Ok(false) };
        Ok(entry.state == PartitionStateName::Sealed && entry.end == Some(self.at) && entry.attempt == self.attempt)
    }

    async fn connect(&mut self) -> Result<()> {
        let attempt = self.attempt.as_ref().map(|attempt| format!("&attempt={attempt}")).unwrap_or_default();
        let path = format!("{}?from={}{attempt}", self.dataset.read_path(self.partition, self.subpartition), self.at);
        let call = Call::new(Method::GET, path).header("prefer", &format!("wait={TAIL_WAIT_SECONDS}"));
        let failure = match self.transport.send(&call, Body::default()).await {
            Ok(response) if response.status().is_success() => {
                let named = response.headers().get(headers::ATTEMPT).and_then(|value| value.to_str().ok());
                self.attempt = named.map(str::to_owned).or_else(|| self.attempt.take());
                self.response = Some(response);
                return Ok(());
            }
            Ok(response) => Failure::Refused(problem(response).await?),
            Err(cause) => Failure::Transport(cause),
        };
        if let Failure::Refused(refused) = &failure
            && refused.code == ErrorCode::NotWritten
        {
            // The producer has not begun: that is no failure, however long it takes.
            self.retries.made_progress(self.transport.now());
        }
        self.transport.wait_or_fail(&mut self.retries, failure).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etag_gives_the_digest_back() {
        let digest = parse_etag("\"crc32c-e3069283-9-0.1\"");
        assert_eq!(digest, Some(Digest { crc: Crc32c::new(0xe306_9283), length: 9 }));
        for junk in ["", "\"x\"", "\"crc32c-\"", "\"crc32c-zz-1\"", "\"crc32c-1\""] {
            assert_eq!(parse_etag(junk), None, "{junk}");
        }
    }

    #[test]
    fn a_content_range_gives_its_start() {
        assert_eq!(range_start("bytes 7-9/10"), Some(7));
        assert_eq!(range_start("bytes */10"), None);
        assert_eq!(range_start("items 7-9/10"), None);
    }
}

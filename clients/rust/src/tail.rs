//! Follows a subpartition while it is written, over as many requests as it takes.

use crate::dataset::DatasetHandle;
use crate::error::{ClientError, Result};
use crate::read::follow_once;
use crate::retry::Attempts;
use crate::transport::{Answer, Failure};
use bytes::Bytes;
use forebay_protocol::headers::{ATTEMPT, END_RANGE, END_REASON, END_SEALED, NEXT_OFFSET, START_OFFSET};
use futures::stream::{BoxStream, StreamExt as _};
use http::Method;
use std::time::Duration;
use store_api::ids::parse_decimal;
use store_api::{AttemptId, Offset, PartitionId, SubpartitionIndex};

/// Where a tail starts and how it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailOptions {
    /// First byte wanted.
    pub from: Offset,
    /// First byte not wanted; the sealed end when it is left out.
    pub to: Option<Offset>,
    /// The attempt that the reader was told to read; the present one when it is left out.
    pub attempt: Option<AttemptId>,
    /// How long one request waits for a byte; at least a second, at most the node's limit.
    pub wait: Duration,
}

impl Default for TailOptions {
    fn default() -> Self {
        Self { from: Offset::ZERO, to: None, attempt: None, wait: Duration::from_secs(20) }
    }
}

impl DatasetHandle {
    /// Follows a subpartition that is being written. See [`TailReader`].
    #[must_use]
    pub fn tail(&self, partition: PartitionId, subpartition: SubpartitionIndex, options: TailOptions) -> TailReader {
        TailReader::new(self.clone(), partition, subpartition, options)
    }
}

/// The bytes of a subpartition as they are written, of one attempt only. Ends without an error only
/// at the sealed end, or at [`TailOptions::to`].
///
/// ```no_run
/// # use forebay_client::TailOptions;
/// # use store_api::{PartitionId, SubpartitionIndex};
/// # async fn example(stage: forebay_client::DatasetHandle) -> forebay_client::Result<()> {
/// let mut tail = stage.tail(PartitionId::new(0), SubpartitionIndex::new(3), TailOptions::default());
/// while let Some(bytes) = tail.next().await {
///     println!("{} more, up to {}", bytes?.len(), tail.next_offset());
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct TailReader {
    dataset: DatasetHandle,
    partition: PartitionId,
    subpartition: SubpartitionIndex,
    options: TailOptions,
    attempt: Option<String>,
    at: Offset,
    answer: Option<Answer>,
    has_moved: bool,
    attempts: Attempts,
    is_ended: bool,
}

impl TailReader {
    pub(crate) fn new(dataset: DatasetHandle, partition: PartitionId, subpartition: SubpartitionIndex, options: TailOptions) -> Self {
        let attempts = dataset.job.caller.attempts();
        let (attempt, at) = (options.attempt.map(|attempt| attempt.to_string()), options.from);
        Self { dataset, partition, subpartition, options, attempt, at, answer: None, has_moved: false, attempts, is_ended: false }
    }

    /// Offset of the next byte: where another reader would go on.
    #[must_use]
    pub const fn next_offset(&self) -> Offset {
        self.at
    }

    /// The attempt whose bytes these are, once it is known.
    #[must_use]
    pub fn attempt(&self) -> Option<&str> {
        self.attempt.as_deref()
    }

    /// The next bytes, waiting for them as long as the writer takes; `None` at the end. Cancel-safe.
    /// After an error there is nothing more; [`TailReader::next_offset`] still holds.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        while !self.is_ended {
            let failure = match self.step().await {
                Ok(Some(bytes)) => return Some(Ok(bytes)),
                Ok(None) => continue,
                Err(failure) => failure,
            };
            self.answer = None;
            let caller = self.dataset.job.caller.clone();
            if let Err(error) = caller.pause(&mut self.attempts, failure).await {
                self.is_ended = true;
                return Some(Err(error));
            }
        }
        None
    }

    async fn step(&mut self) -> std::result::Result<Option<Bytes>, Failure> {
        let patience = self.dataset.job.caller.shared.stall.saturating_add(self.wait());
        let answer = match &mut self.answer {
            Some(answer) => answer,
            None => {
                let answer = self.ask(patience).await?;
                self.has_moved = false;
                self.answer.insert(answer)
            }
        };
        if let Some(bytes) = answer.body.next_within(patience).await? {
            let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            self.at = self.at.checked_add(length).ok_or_else(|| ClientError::unexpected("an offset over 2^64-1"))?;
            self.has_moved = true;
            self.attempts.progressed();
            return Ok(Some(bytes));
        }
        let Some(answer) = self.answer.take() else { return Ok(None) };
        self.end_of_answer(&answer)
    }

    /// Sorts the clean end of one answer.
    fn end_of_answer(&mut self, answer: &Answer) -> std::result::Result<Option<Bytes>, Failure> {
        let said = |name: &str| answer.body.trailers.get(name).or_else(|| answer.headers.get(name)).and_then(|value| value.to_str().ok());
        if let Some(next) = said(NEXT_OFFSET).and_then(parse_decimal)
            && next != self.at.get()
        {
            return Err(Failure::cut("the body does not end where its trailer says"));
        }
        match said(END_REASON) {
            Some(END_SEALED | END_RANGE) => self.is_ended = true,
            Some(_) => self.attempts.progressed(),
            // Somewhere on the way the trailers were taken off: the next answer tells.
            None if self.has_moved => {}
            None => return Err(Failure::cut("the body ended without a reason")),
        }
        Ok(None)
    }

    fn wait(&self) -> Duration {
        self.options.wait.max(Duration::from_secs(1))
    }

    async fn ask(&mut self, patience: Duration) -> std::result::Result<Answer, Failure> {
        let path = format!("/partitions/{}/subpartitions/{}", self.partition, self.subpartition);
        let mut call = self.dataset.call(Method::GET, &path)?.query("from", self.at);
        if let Some(to) = self.options.to {
            call = call.query("to", to);
        }
        if let Some(attempt) = &self.attempt {
            call = call.query("attempt", attempt);
        }
        let call = call.with("prefer", format!("wait={}", self.wait().as_secs()))?.with("te", "trailers")?;
        let answer = follow_once(&self.dataset.job.caller, &call, patience).await?;
        if let Some(start) = answer.header(START_OFFSET).and_then(parse_decimal)
            && start != self.at.get()
        {
            return Err(Failure::Final(ClientError::unexpected("another offset than the one asked for")));
        }
        let attempt = answer.header(ATTEMPT).map(str::to_owned);
        if self.attempt.is_some() && attempt.is_some() && self.attempt != attempt {
            let detail = "another attempt took the place of the one that was followed".to_owned();
            return Err(Failure::Final(ClientError::ResolveAgain { detail, problem: None }));
        }
        self.attempt = self.attempt.take().or(attempt);
        Ok(answer)
    }

    /// The pieces as a stream, which ends after the first error.
    #[must_use]
    pub fn into_stream(self) -> BoxStream<'static, Result<Bytes>> {
        futures::stream::unfold(self, |mut tail| async move { tail.next().await.map(|piece| (piece, tail)) }).boxed()
    }
}

//! The framed writer: many subpartitions through one streaming request.
//!
//! ```text
//! write ─> pending block per subpartition ─> frame ─┬─> bounded queue ─> request body
//!                                                   └─> replay window, until the stream is answered
//! ```
//! A stream that breaks is replaced: the attempt says which sequence comes next, and the frames from
//! there on are sent again from the window. When the window is full the stream is ended and its
//! answer awaited before the next one starts.

use crate::attempt::{Attempt, Sealed};
use crate::error::{ClientError, Result};
use crate::retry::Attempts;
use crate::transport::{Failure, parse_document};
use bytes::{Bytes, BytesMut};
use forebay_protocol::ErrorCode;
use forebay_protocol::headers::FRAMES_MEDIA_TYPE;
use forebay_protocol::partitions::FramesDocument;
use http::Method;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use store_api::clock::within;
use store_api::frame::{FrameHeader, FrameKind, HEADER_LENGTH};
use store_api::{Chunk, SubpartitionIndex, TaskGroup};
use tokio::sync::{mpsc, oneshot};

const QUEUED_FRAMES: usize = 16;

/// Buffers of a [`PartitionWriter`], in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterOptions {
    /// A subpartition's bytes become a frame when this many are pending.
    pub block_bytes: usize,
    /// Most bytes pending in all subpartitions together; the largest block goes first.
    pub pending_bytes: usize,
    /// Most bytes sent and not yet answered for, apart from what a single call adds.
    pub replay_bytes: usize,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self { block_bytes: 64 * 1024, pending_bytes: 8 * 1024 * 1024, replay_bytes: 32 * 1024 * 1024 }
    }
}

#[derive(Debug, Clone)]
struct OutFrame {
    header: Bytes,
    payload: Bytes,
}

impl Attempt {
    /// Writes many subpartitions through one stream: the fast path.
    #[must_use]
    pub fn into_writer(self) -> PartitionWriter {
        self.into_writer_with(WriterOptions::default())
    }

    /// The same, with other buffers.
    #[must_use]
    pub fn into_writer_with(self, options: WriterOptions) -> PartitionWriter {
        PartitionWriter::new(self, options)
    }
}

/// Writes an attempt, any subpartition at any time, in order within each.
///
/// Bytes that a call took are sent even if its future is dropped: the next call goes on. After an
/// error the writer takes nothing more. Dropping it without [`PartitionWriter::seal`] seals nothing.
///
/// ```no_run
/// # use bytes::Bytes;
/// # use store_api::{AttemptId, PartitionId, SubpartitionIndex};
/// # async fn example(stage: forebay_client::DatasetHandle) -> forebay_client::Result<()> {
/// let mut writer = stage.open_attempt(PartitionId::new(3), AttemptId::new(0, 0), vec![]).await?.into_writer();
/// for row in 0_u32..1000 {
///     writer.write(SubpartitionIndex::new(row % 8), Bytes::copy_from_slice(&row.to_le_bytes())).await?;
/// }
/// let sealed = writer.seal().await?;
/// println!("{} bytes", sealed.manifest().total_bytes);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct PartitionWriter {
    attempt: Attempt,
    blocks: Blocks,
    window: Window,
    live: Option<Live>,
    attempts: Attempts,
    is_uncertain: bool,
    is_closed: bool,
}

impl PartitionWriter {
    pub(crate) fn new(attempt: Attempt, options: WriterOptions) -> Self {
        let max_frame = usize::try_from(attempt.document.max_frame_bytes).unwrap_or(usize::MAX).clamp(1, 1 << 30);
        let blocks =
            Blocks { block: options.block_bytes.clamp(1, max_frame), budget: options.pending_bytes, pending: BTreeMap::new(), n_bytes: 0 };
        let next = attempt.document.next_sequence;
        let window =
            Window { frames: VecDeque::new(), n_bytes: 0, limit: options.replay_bytes, max_frame, first: next, next, cursor: next };
        let attempts = attempt.dataset.job.caller.attempts();
        Self { attempt, blocks, window, live: None, attempts, is_uncertain: false, is_closed: false }
    }

    /// The attempt that is written.
    #[must_use]
    pub const fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// Takes bytes for a subpartition. Waits while the service pushes back. Not durable before the
    /// seal. Errors: [`ClientError::Fenced`] by a node life asks to rewrite the attempt.
    pub async fn write(&mut self, subpartition: SubpartitionIndex, bytes: Bytes) -> Result<()> {
        self.check_open()?;
        for (index, block) in self.blocks.take(subpartition.get(), bytes) {
            self.frame(index, block)?;
        }
        self.pump(self.window.n_bytes >= self.window.limit).await
    }

    /// Sends everything that is pending and waits until the service holds it.
    pub async fn flush(&mut self) -> Result<()> {
        self.check_open()?;
        for (index, block) in self.blocks.drain() {
            self.frame(index, block)?;
        }
        self.pump(true).await
    }

    /// Flushes, then makes the attempt final: states length and checksum of every subpartition, so
    /// that what is sealed is what was written. Idempotent: may be called again after an error that
    /// asks to retry.
    pub async fn seal(&mut self) -> Result<Sealed> {
        if !self.is_closed {
            self.flush().await?;
        } else if !self.window.frames.is_empty() {
            return Err(closed());
        }
        self.is_closed = true;
        self.attempt.seal().await
    }

    /// Ends the attempt without a result. Idempotent.
    pub async fn abort(mut self) -> Result<()> {
        self.live = None;
        self.attempt.abort().await
    }

    fn check_open(&self) -> Result<()> {
        if self.is_closed { Err(closed()) } else { Ok(()) }
    }

    fn frame(&mut self, subpartition: u32, mut block: Bytes) -> Result<()> {
        while !block.is_empty() {
            let chunk = Chunk::new(block.split_to(block.len().min(self.window.max_frame)));
            self.attempt.ledger.wrote(subpartition, &chunk);
            self.window.append(subpartition, chunk)?;
        }
        Ok(())
    }

    async fn pump(&mut self, is_end: bool) -> Result<()> {
        let caller = self.attempt.dataset.job.caller.clone();
        loop {
            let Err(failure) = self.pump_once(is_end).await else { return Ok(()) };
            self.live = None;
            self.is_uncertain = true;
            let failure = self.attempt.mind_life(mendable(failure));
            if let Err(error) = caller.pause(&mut self.attempts, failure).await {
                self.is_closed = true;
                return Err(error);
            }
        }
    }

    async fn pump_once(&mut self, is_end: bool) -> std::result::Result<(), Failure> {
        if self.is_uncertain {
            self.live = None;
            let document = self.attempt.state_once().await?;
            if self.window.held_up_to(document.next_sequence)? {
                self.attempts.progressed();
            }
            self.is_uncertain = false;
        }
        if self.window.frames.is_empty() {
            return Ok(());
        }
        let live = match &mut self.live {
            Some(live) => live,
            None => self.live.insert(Live::start(&self.attempt)?),
        };
        while let Some(frame) = self.window.unsent() {
            live.push(frame).await?;
            self.window.cursor += 1;
        }
        if !is_end {
            return Ok(());
        }
        let end = FrameHeader::bare(FrameKind::End, 0, self.window.next).encode();
        live.push(OutFrame { header: Bytes::copy_from_slice(&end), payload: Bytes::new() }).await?;
        // From here on the stream takes nothing more, also if this future is dropped.
        self.is_uncertain = true;
        let document = live.answer().await?;
        self.live = None;
        self.window.held_up_to(document.next_sequence)?;
        self.attempts.progressed();
        self.is_uncertain = false;
        if self.window.frames.is_empty() { Ok(()) } else { Err(Failure::cut("the stream was answered before its end")) }
    }
}

fn closed() -> ClientError {
    ClientError::invalid("the writer failed or was sealed before")
}

/// Frames that arrived damaged, cut or out of order are sent again from the window.
fn mendable(failure: Failure) -> Failure {
    match failure {
        Failure::Problem { problem, after: _ }
            if matches!(problem.code, ErrorCode::BadFrame | ErrorCode::BodyCut | ErrorCode::SequenceMismatch) =>
        {
            Failure::Transport { detail: "frames did not arrive as they were sent", source: None }
        }
        other => other,
    }
}

/// Bytes that are not frames yet.
#[derive(Debug)]
struct Blocks {
    block: usize,
    budget: usize,
    pending: BTreeMap<u32, BytesMut>,
    n_bytes: usize,
}

impl Blocks {
    /// Takes bytes; answers the blocks that are ready.
    fn take(&mut self, index: u32, bytes: Bytes) -> Vec<(u32, Bytes)> {
        let mut ready = Vec::new();
        if bytes.len() >= self.block {
            ready.extend(self.remove(index));
            ready.push((index, bytes));
            return ready;
        }
        self.n_bytes += bytes.len();
        let pending = self.pending.entry(index).or_default();
        pending.extend_from_slice(&bytes);
        if pending.len() >= self.block {
            ready.extend(self.remove(index));
        }
        while self.n_bytes > self.budget {
            let largest = self.pending.iter().max_by_key(|(_, pending)| pending.len()).map(|(index, _)| *index);
            match largest.and_then(|index| self.remove(index)) {
                Some(block) => ready.push(block),
                None => break,
            }
        }
        ready
    }

    fn remove(&mut self, index: u32) -> Option<(u32, Bytes)> {
        let block = self.pending.remove(&index)?;
        self.n_bytes = self.n_bytes.saturating_sub(block.len());
        Some((index, block.freeze()))
    }

    fn drain(&mut self) -> Vec<(u32, Bytes)> {
        self.n_bytes = 0;
        std::mem::take(&mut self.pending).into_iter().map(|(index, block)| (index, block.freeze())).collect()
    }
}

/// Frames that the service has not answered for: sequences `first..next`, sent up to `cursor`.
#[derive(Debug)]
struct Window {
    frames: VecDeque<OutFrame>,
    n_bytes: usize,
    limit: usize,
    max_frame: usize,
    first: u64,
    next: u64,
    cursor: u64,
}

impl Window {
    fn append(&mut self, subpartition: u32, chunk: Chunk) -> Result<()> {
        let header = FrameHeader::data(subpartition, self.next, &chunk).ok_or_else(|| ClientError::invalid("a frame over 4 GiB"))?;
        self.n_bytes += HEADER_LENGTH + chunk.bytes().len();
        self.frames.push_back(OutFrame { header: Bytes::copy_from_slice(&header.encode()), payload: chunk.into_bytes() });
        self.next += 1;
        Ok(())
    }

    fn unsent(&self) -> Option<OutFrame> {
        let at = usize::try_from(self.cursor.saturating_sub(self.first)).ok()?;
        self.frames.get(at).cloned()
    }

    /// The service holds everything below `sequence`: forgets it, and sends from there on. Answers
    /// whether that was news. Errors: somebody else writes this attempt.
    fn held_up_to(&mut self, sequence: u64) -> Result<bool> {
        if sequence < self.first || sequence > self.next {
            return Err(ClientError::unexpected(format!("the attempt is at sequence {sequence}, outside {}..={}", self.first, self.next)));
        }
        let is_news = sequence > self.first;
        while self.first < sequence {
            if let Some(frame) = self.frames.pop_front() {
                self.n_bytes = self.n_bytes.saturating_sub(HEADER_LENGTH + frame.payload.len());
            }
            self.first += 1;
        }
        self.cursor = sequence;
        Ok(is_news)
    }
}

/// A stream that is being sent. Ends when it is dropped, without its end frame.
#[derive(Debug)]
struct Live {
    frames: mpsc::Sender<OutFrame>,
    answer: oneshot::Receiver<std::result::Result<FramesDocument, Failure>>,
    n_taken: Arc<AtomicU64>,
    attempt: Attempt,
    tasks: TaskGroup,
}

impl Drop for Live {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

impl Live {
    fn start(attempt: &Attempt) -> Result<Self> {
        let call = attempt.call(Method::POST, "/frames")?.with("content-type", FRAMES_MEDIA_TYPE)?;
        let (frames, queue) = mpsc::channel(QUEUED_FRAMES);
        let (sender, answer) = oneshot::channel();
        let n_taken = Arc::new(AtomicU64::new(0));
        let body = body(queue, n_taken.clone());
        let (caller, tasks) = (attempt.dataset.job.caller.clone(), TaskGroup::new());
        tasks.spawn(async move {
            let found = match caller.stream(call, body).await {
                Ok(mut answer) => parse_document::<FramesDocument>(&mut answer).await,
                Err(failure) => Err(failure),
            };
            // Fails only when the writer has given this stream up.
            let _ = sender.send(found);
        });
        Ok(Self { frames, answer, n_taken, attempt: attempt.clone(), tasks })
    }

    async fn push(&mut self, frame: OutFrame) -> std::result::Result<(), Failure> {
        let shared = &self.attempt.dataset.job.caller.shared;
        let early = tokio::select! {
            biased;
            early = &mut self.answer => early,
            sent = self.frames.send(frame) => {
                if sent.is_ok() {
                    return Ok(());
                }
                match within(&*shared.clock, shared.stall, &mut self.answer).await {
                    Some(answer) => answer,
                    None => return Err(Failure::cut("the stream was dropped")),
                }
            }
            () = shared.clock.sleep(shared.stall) => return Err(Failure::cut("the stream made no progress")),
        };
        match early {
            Ok(Err(failure)) => Err(failure),
            Ok(Ok(_)) | Err(_) => Err(Failure::cut("the stream was answered before its end")),
        }
    }

    /// Waits for the answer as long as frames are being taken.
    async fn answer(&mut self) -> std::result::Result<FramesDocument, Failure> {
        let shared = &self.attempt.dataset.job.caller.shared;
        loop {
            let before = self.n_taken.load(Ordering::Relaxed);
            match within(&*shared.clock, shared.stall, &mut self.answer).await {
                Some(Ok(found)) => return found,
                Some(Err(_)) => return Err(Failure::cut("the stream was dropped")),
                None if self.n_taken.load(Ordering::Relaxed) == before => return Err(Failure::cut("the stream was not answered in time")),
                None => {}
            }
        }
    }
}

/// The queue as a request body. It ends cleanly after the end frame only; a queue that is dropped
/// before cuts the request.
fn body(queue: mpsc::Receiver<OutFrame>, n_taken: Arc<AtomicU64>) -> reqwest::Body {
    let pieces = futures::stream::unfold((queue, None::<Bytes>, false), move |(mut queue, payload, is_ended)| {
        let n_taken = n_taken.clone();
        async move {
            if let Some(payload) = payload.filter(|payload| !payload.is_empty()) {
                return Some((Ok(payload), (queue, None, is_ended)));
            }
            if is_ended {
                return None;
            }
            let Some(frame) = queue.recv().await else {
                return Some((Err(std::io::Error::from(std::io::ErrorKind::ConnectionAborted)), (queue, None, true)));
            };
            n_taken.fetch_add(1, Ordering::Relaxed);
            let is_end = frame.header.get(2) == Some(&(FrameKind::End as u8));
            Some((Ok(frame.header), (queue, Some(frame.payload), is_end)))
        }
    });
    reqwest::Body::wrap_stream(pieces)
}

#[cfg(test)]
mod tests;

//! The streaming writer: many subpartitions over frame streams, with idempotent retry.
//!
//! Small writes are gathered per subpartition into blocks; blocks become frames with a per-attempt
//! sequence; frames are sent in rounds. While one round is on its way the next one is filled, so the
//! producer waits only when both are full. A round that was cut is resumed at the sequence that the
//! service names, so no byte is stored twice and none is left out.

use crate::error::{ClientError, Result};
use crate::retry::Retries;
use crate::transport::{Call, Failure, SharedTransport, problem};
use bytes::{Bytes, BytesMut};
use forebay_protocol::partitions::{AttemptDocument, FramesDocument, SealDocument, SealRequest, SubpartitionLists};
use forebay_protocol::{ErrorCode, headers};
use http::Method;
use reqwest::Body;
use std::collections::BTreeMap;
use std::sync::Arc;
use store_api::clock::within;
use store_api::frame::{FrameHeader, FrameKind};
use store_api::{Chunk, Digest, SubpartitionIndex};
use tokio::sync::oneshot;

/// How a writer gathers and sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterOptions {
    /// Bytes of a subpartition that are gathered before they become a frame.
    pub block_bytes: usize,
    /// Bytes that are gathered over all subpartitions before the largest are framed anyway.
    pub buffer_bytes: usize,
    /// Bytes of a round. Twice as much is held at the most: one round that is filled, one that is
    /// sent and kept until it is acknowledged.
    pub round_bytes: usize,
}

impl Default for WriterOptions {
    /// Blocks of 64 KiB, 8 MiB gathered, rounds of 8 MiB.
    fn default() -> Self {
        Self { block_bytes: 64 * 1024, buffer_bytes: 8 * 1024 * 1024, round_bytes: 8 * 1024 * 1024 }
    }
}

/// A frame that is kept until it is acknowledged.
#[derive(Debug, Clone)]
struct Kept {
    sequence: u64,
    header: Bytes,
    payload: Bytes,
}

/// Writes one attempt at a partition. Dropping it without [`PartitionWriter::seal`] leaves the
/// attempt unsealed: readers never take it for complete.
#[derive(Debug)]
pub struct PartitionWriter {
    transport: SharedTransport,
    path: Arc<str>,
    life: Arc<str>,
    options: WriterOptions,
    max_frame: usize,
    gathered: BTreeMap<u32, BytesMut>,
    gathered_bytes: usize,
    digests: BTreeMap<u32, Digest>,
    next_sequence: u64,
    round: Vec<Kept>,
    round_bytes: usize,
    in_flight: Option<oneshot::Receiver<Result<()>>>,
    written_bytes: u64,
}

impl PartitionWriter {
    pub(crate) fn new(transport: SharedTransport, path: String, document: &AttemptDocument, options: WriterOptions) -> Result<Self> {
        if document.next_sequence != 0 || !document.tails.is_empty() {
            return Err(ClientError::Invalid(format!(
                "attempt {} already holds bytes of another writer; open a new attempt, or go on with the raw writer",
                document.attempt
            )));
        }
        Ok(Self {
            transport,
            path: Arc::from(path),
            life: Arc::from(document.location.life.as_str()),
            options,
            max_frame: usize::try_from(document.max_frame_bytes).unwrap_or(usize::MAX).max(1),
            gathered: BTreeMap::new(),
            gathered_bytes: 0,
            digests: BTreeMap::new(),
            next_sequence: 0,
            round: Vec::new(),
            round_bytes: 0,
            in_flight: None,
            written_bytes: 0,
        })
    }

    /// Bytes taken in so far.
    #[must_use]
    pub const fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Adds bytes at the end of a subpartition. Returns once they are gathered or on their way, which
    /// is not yet an acknowledgement: [`PartitionWriter::flush`] and [`PartitionWriter::seal`] are.
    /// Errors: those of an earlier round; the attempt is then to be aborted. Not cancel-safe: after
    /// a dropped call abort the attempt.
    pub async fn write(&mut self, subpartition: SubpartitionIndex, bytes: Bytes) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.written_bytes = self.written_bytes.saturating_add(bytes.len() as u64);
        let index = subpartition.get();
        let is_large = bytes.len() >= self.options.block_bytes;
        if is_large {
            self.frame_gathered(index).await?;
            return self.frame(index, bytes).await;
        }
        self.gathered_bytes += bytes.len();
        let block = self.gathered.entry(index).or_default();
        block.extend_from_slice(&bytes);
        if block.len() >= self.options.block_bytes {
            self.frame_gathered(index).await?;
        }
        while self.gathered_bytes > self.options.buffer_bytes {
            let Some(largest) = self.gathered.iter().max_by_key(|(_, block)| block.len()).map(|(index, _)| *index) else { break };
            self.frame_gathered(largest).await?;
        }
        Ok(())
    }

    async fn frame_gathered(&mut self, index: u32) -> Result<()> {
        let Some(block) = self.gathered.remove(&index) else { return Ok(()) };
        self.gathered_bytes = self.gathered_bytes.saturating_sub(block.len());
        self.frame(index, block.freeze()).await
    }

    async fn frame(&mut self, index: u32, mut bytes: Bytes) -> Result<()> {
        while !bytes.is_empty() {
            let chunk = Chunk::new(bytes.split_to(bytes.len().min(self.max_frame)));
            let digest = self.digests.entry(index).or_default();
            let followed = digest.followed_by(Digest::from(&chunk));
            *digest = followed.ok_or_else(|| ClientError::Invalid("a subpartition is longer than 2^64-1 bytes".to_owned()))?;
            let header = FrameHeader::data(index, self.next_sequence, &chunk);
            let header = header.ok_or_else(|| ClientError::Invalid("a block is longer than a frame can be".to_owned()))?;
            self.round_bytes += chunk.bytes().len();
            let header = Bytes::copy_from_slice(&header.encode());
            self.round.push(Kept { sequence: self.next_sequence, header, payload: chunk.into_bytes() });
            self.next_sequence += 1;
            if self.round_bytes >= self.options.round_bytes {
                self.send_round().await?;
            }
        }
        Ok(())
    }

    /// Waits for the round that is on its way, then sends the one that is filled.
    async fn send_round(&mut self) -> Result<()> {
        self.settle().await?;
        if self.round.is_empty() {
            return Ok(());
        }
        let frames = std::mem::take(&mut self.round);
        self.round_bytes = 0;
        let (answer, in_flight) = oneshot::channel();
        let (transport, path, life) = (self.transport.clone(), self.path.clone(), self.life.clone());
        self.transport.tasks.spawn(async move {
            // The writer may be gone; then nobody waits for the answer.
            let _ = answer.send(send_frames(&transport, &path, &life, frames).await);
        });
        self.in_flight = Some(in_flight);
        Ok(())
    }

    async fn settle(&mut self) -> Result<()> {
        match self.in_flight.take() {
            Some(in_flight) => in_flight.await.unwrap_or_else(|_| Err(ClientError::Invalid("the client was shut down".to_owned()))),
            None => Ok(()),
        }
    }

    /// Sends all that was written and waits until the service has acknowledged it.
    pub async fn flush(&mut self) -> Result<()> {
        let pending: Vec<u32> = self.gathered.keys().copied().collect();
        for index in pending {
            self.frame_gathered(index).await?;
        }
        self.send_round().await?;
        self.settle().await
    }

    /// Sends what is left and seals the attempt, stating length and digest of every subpartition.
    /// Idempotent against lost answers. The document says whether this attempt or another one of
    /// its generation is the content; either way the producer's task is done.
    pub async fn seal(mut self) -> Result<SealDocument> {
        self.flush().await?;
        let filled = || self.digests.iter().filter(|(_, digest)| digest.length > 0);
        let lists = SubpartitionLists {
            indices: Some(filled().map(|(index, _)| *index).collect()),
            lengths: filled().map(|(_, digest)| digest.length).collect(),
            crcs: Some(filled().map(|(_, digest)| digest.crc.get()).collect()),
        };
        let call = Call::new(Method::POST, format!("{}/seal", self.path)).header(headers::NODE_LIFE, &self.life);
        self.transport.document(&call.json(&SealRequest { subpartitions: Some(lists) })?).await
    }

    /// Ends the attempt without a result. Idempotent.
    pub async fn abort(mut self) -> Result<()> {
        self.in_flight = None;
        let call = Call::new(Method::DELETE, self.path.to_string()).header(headers::NODE_LIFE, &self.life);
        self.transport.call(&call).await.map(drop)
    }
}

/// Sends frames until all are acknowledged or trying again makes no sense.
async fn send_frames(transport: &SharedTransport, path: &str, life: &str, mut frames: Vec<Kept>) -> Result<()> {
    let mut retries = Retries::new(transport.retry, transport.now());
    let call = Call::new(Method::POST, format!("{path}/frames"))
        .header("content-type", headers::FRAMES_MEDIA_TYPE)
        .header(headers::NODE_LIFE, life);
    loop {
        let n_before = frames.len();
        let failure = match send_once(transport, &call, &frames).await {
            Ok(()) => return Ok(()),
            Err(failure) => failure,
        };
        if let Failure::Refused(problem) = &failure
            && !matches!(problem.code, ErrorCode::BadFrame | ErrorCode::BodyCut | ErrorCode::SequenceMismatch)
        {
            transport.wait_or_fail(&mut retries, failure).await?;
        } else {
            let cause = match failure {
                Failure::Refused(problem) => problem.detail,
                Failure::Transport(cause) => cause,
            };
            transport.wait_or_fail(&mut retries, Failure::Transport(cause)).await?;
        }
        let next = next_sequence(transport, path).await?;
        frames.retain(|frame| frame.sequence >= next);
        if frames.is_empty() {
            return Ok(());
        }
        if frames.len() < n_before {
            retries.made_progress(transport.now());
        }
    }
}

async fn next_sequence(transport: &SharedTransport, path: &str) -> Result<u64> {
    let document: AttemptDocument = transport.document(&Call::new(Method::GET, path.to_owned())).await?;
    Ok(document.next_sequence)
}

async fn send_once(transport: &SharedTransport, call: &Call, frames: &[Kept]) -> std::result::Result<(), Failure> {
    let after = frames.last().map_or(0, |frame| frame.sequence + 1);
    let end = Bytes::copy_from_slice(&FrameHeader::bare(FrameKind::End, 0, after).encode());
    let mut pieces: Vec<std::result::Result<Bytes, std::convert::Infallible>> = Vec::with_capacity(frames.len() * 2 + 1);
    for frame in frames {
        pieces.push(Ok(frame.header.clone()));
        pieces.push(Ok(frame.payload.clone()));
    }
    pieces.push(Ok(end));
    let body = Body::wrap_stream(futures::stream::iter(pieces));
    let response = transport.send(call, body).await.map_err(Failure::Transport)?;
    if !response.status().is_success() {
        let refused = problem(response).await.map_err(|error| Failure::Transport(error.to_string()))?;
        return Err(Failure::Refused(refused));
    }
    let bytes = within(transport.clock.as_ref(), transport.stall, response.bytes()).await;
    let bytes = bytes.ok_or_else(|| Failure::Transport("an answer was cut".to_owned()))?;
    let bytes = bytes.map_err(|error| Failure::Transport(error.to_string()))?;
    let document: FramesDocument = serde_json::from_slice(&bytes).map_err(|error| Failure::Transport(error.to_string()))?;
    if document.next_sequence < after {
        return Err(Failure::Transport(format!("frames up to {after} were sent, {} were taken", document.next_sequence)));
    }
    Ok(())
}

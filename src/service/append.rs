//! Appends: frame streams and raw bodies.
//!
//! Every call into the store runs in the task group until it ends, also when the client leaves, so
//! what is known of an attempt is never half of what happened. The lane of an attempt orders them:
//! frames exclude everything else, raw bodies run side by side.
//!
//! A store that refuses a batch has applied a prefix of it. The lane then asks for the tails and
//! counts how far it came; if even that is not answered, it asks again before the next batch.

use super::admission::Reservation;
use super::calls::{AppendReply, AttemptAddress, DataFrame, FramesAck};
use super::error::{ServiceError, ServiceErrorKind, ServiceResult};
use super::registry::LiveAttempt;
use super::{PartitionService, WriteGuard};
use bytes::{Bytes, BytesMut};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use store_api::{AppendAck, AppendRequest, Chunk, NodeLife, Offset, Permit, Piece, SharedStore, SubpartitionIndex};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard};

/// Where the frames of an attempt stand.
#[derive(Debug, Default)]
pub(super) struct Lane {
    next_sequence: u64,
    /// Tails that frames rely on; unknown before the first frame.
    tails: Option<HashMap<u32, u64>>,
    /// A raw body has moved tails since they were asked for.
    is_stale: AtomicBool,
    /// Frames of a batch whose outcome is not known: subpartition and length of each.
    unsettled: Option<Vec<(u32, u64)>>,
}

impl Lane {
    pub(super) const fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Finds out how far a batch came whose outcome is not known. Errors: those of
    /// [`store_api::PartitionStore::tails`]; the batch then stays unsettled.
    async fn settle(&mut self, store: &SharedStore, live: &LiveAttempt) -> ServiceResult<()> {
        let Some(batch) = &self.unsettled else { return Ok(()) };
        let now = held_tails(store, live).await?;
        let mut tails = self.tails.take().unwrap_or_default();
        for (subpartition, length) in batch {
            let tail = tails.entry(*subpartition).or_default();
            let end = tail.saturating_add(*length);
            if end > now.get(subpartition).copied().unwrap_or_default() {
                break;
            }
            *tail = end;
            self.next_sequence = self.next_sequence.saturating_add(1);
        }
        self.unsettled = None;
        self.tails = Some(now);
        Ok(())
    }

    async fn learn_tails(&mut self, store: &SharedStore, live: &LiveAttempt) -> ServiceResult<()> {
        if self.is_stale.swap(false, Ordering::AcqRel) || self.tails.is_none() {
            self.tails = None;
            self.tails = Some(held_tails(store, live).await?);
        }
        Ok(())
    }

    fn advance(&mut self, batch: &[(u32, u64)]) {
        let tails = self.tails.get_or_insert_default();
        for (subpartition, length) in batch {
            let tail = tails.entry(*subpartition).or_default();
            *tail = tail.saturating_add(*length);
        }
        self.next_sequence = self.next_sequence.saturating_add(batch.len() as u64);
    }
}

async fn held_tails(store: &SharedStore, live: &LiveAttempt) -> ServiceResult<HashMap<u32, u64>> {
    let held = store.tails(&live.key).await?;
    Ok(held.tails.into_iter().map(|(subpartition, tail)| (subpartition.get(), tail.get())).collect())
}

/// The frames of a batch that are new, as far as they follow on; and whether one was out of order.
fn due_frames(next: u64, frames: Vec<DataFrame>) -> (Vec<Piece>, u64, bool) {
    let (mut pieces, mut expected, mut n_repeated) = (Vec::with_capacity(frames.len()), next, 0);
    for frame in frames {
        if frame.sequence < expected {
            n_repeated += 1;
        } else if frame.sequence > expected {
            return (pieces, n_repeated, true);
        } else {
            pieces.push(Piece { subpartition: frame.subpartition, start: None, chunk: frame.chunk });
            expected = expected.saturating_add(1);
        }
    }
    (pieces, n_repeated, false)
}

/// Applies frames; runs to its end, with the lane held. Answers the next sequence and the bytes that
/// were new.
async fn apply_frames(
    service: Arc<PartitionService>,
    live: Arc<LiveAttempt>,
    mut lane: OwnedRwLockWriteGuard<Lane>,
    frames: Vec<DataFrame>,
    permit: Permit,
) -> ServiceResult<FramesAck> {
    let store = live.dataset.store()?;
    lane.settle(store, &live).await.map_err(|error| service.refine(&live, error))?;
    let (pieces, n_repeated, has_gap) = due_frames(lane.next_sequence, frames);
    service.counters.repeated_frames.add(n_repeated);
    let mut new_bytes = 0;
    if !pieces.is_empty() {
        lane.learn_tails(store, &live).await.map_err(|error| service.refine(&live, error))?;
        let batch: Vec<(u32, u64)> = pieces.iter().map(|piece| (piece.subpartition.get(), piece.chunk.length())).collect();
        match store.append(AppendRequest { attempt: live.key.clone(), pieces, permit }).await {
            Ok(ack) => {
                lane.advance(&batch);
                new_bytes = ack.new_bytes;
                service.counters.appended_bytes.add(new_bytes);
            }
            Err(error) => {
                lane.unsettled = Some(batch);
                if let Err(unknown) = lane.settle(store, &live).await {
                    tracing::debug!(attempt = %live.key, error = %unknown, "outcome of a batch of frames is not known yet");
                }
                return Err(service.refine(&live, error.into()));
            }
        }
    }
    if has_gap {
        return Err(ServiceErrorKind::SequenceMismatch { expected: lane.next_sequence }.into());
    }
    Ok(FramesAck { next_sequence: lane.next_sequence, new_bytes })
}

/// The one live frame stream of an attempt. Dropping it ends the stream; what was applied stays.
#[derive(Debug)]
pub struct FrameSink {
    service: Arc<PartitionService>,
    live: Arc<LiveAttempt>,
    stream: u64,
    ack: FramesAck,
    reservation: Reservation,
    _running: WriteGuard,
}

impl std::fmt::Debug for LiveAttempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LiveAttempt({})", self.key)
    }
}

impl PartitionService {
    /// Starts the frame stream of an attempt.
    ///
    /// There is one live stream per attempt: an older one is fenced, its batch under way is waited
    /// for. Frames carry a sequence per attempt; the sink says which is next. Cancel-safe. Errors:
    /// `LifeRequired`, `Fenced`, `UnknownAttempt`, `AlreadySealed`, `OtherAttemptWon`, `Aborted`,
    /// `Released`, `Expired`, those of finding the partition.
    pub async fn begin_frames(self: &Arc<Self>, attempt: &AttemptAddress, life: Option<NodeLife>) -> ServiceResult<FrameSink> {
        let live = self.live_attempt(attempt, life).await?;
        let running = WriteGuard::new(&self.n_writes);
        let stream = live.next_stream();
        let next_sequence = {
            let mut lane = live.lane.write().await;
            lane.settle(live.dataset.store()?, &live).await.map_err(|error| self.refine(&live, error))?;
            lane.next_sequence
        };
        let ack = FramesAck { next_sequence, new_bytes: 0 };
        let reservation = Reservation::new(&live.job);
        Ok(FrameSink { service: self.clone(), live, stream, ack, reservation, _running: running })
    }

    /// Starts a raw append to one subpartition.
    ///
    /// `offset` is where the body starts (a repeat of what is held is a success, a gap or other
    /// bytes are not); `None` appends at the tail, and a repeat then appends again. `length` is the
    /// length of the body, if it is known. A body of at most `atomic_append_bytes` is applied when
    /// it is complete, wholly or not at all; a longer one chunk by chunk, and what was applied
    /// stays when it is cut. A body that cannot be taken where it starts is refused here, before a
    /// byte of it is read. Errors as [`Self::begin_frames`], `UnknownPartition` for a subpartition
    /// outside, `OffsetMismatch` for a gap, `BelowFloor`, `BadRequest` for an end past 2^64-1.
    pub async fn begin_append(
        self: &Arc<Self>,
        attempt: &AttemptAddress,
        life: Option<NodeLife>,
        subpartition: SubpartitionIndex,
        offset: Option<Offset>,
        length: Option<u64>,
    ) -> ServiceResult<RawSink> {
        let live = self.live_attempt(attempt, life).await?;
        if subpartition.get() >= live.dataset.spec.stored_subpartitions() {
            return Err(ServiceErrorKind::UnknownPartition.into());
        }
        if let Some(offset) = offset {
            self.check_start(&live, subpartition, offset).await?;
            offset.checked_add(length.unwrap_or(0)).ok_or_else(offset_overflow)?;
        }
        Ok(RawSink {
            service: self.clone(),
            subpartition,
            next: offset,
            is_atomic: length.is_none_or(|length| length <= self.config.atomic_append_bytes),
            partial: BytesMut::new(),
            chunks: Vec::new(),
            waiting_bytes: 0,
            permit: Permit::none(),
            reply: None,
            reservation: Reservation::new(&live.job),
            _running: WriteGuard::new(&self.n_writes),
            live,
        })
    }
}

impl PartitionService {
    /// Asks the store whether a piece may start here: one without bytes is checked like any other and
    /// changes nothing.
    async fn check_start(&self, live: &LiveAttempt, subpartition: SubpartitionIndex, offset: Offset) -> ServiceResult<()> {
        let pieces = vec![Piece { subpartition, start: Some(offset), chunk: Chunk::new(Bytes::new()) }];
        let request = AppendRequest { attempt: live.key.clone(), pieces, permit: Permit::none() };
        live.dataset.store()?.append(request).await.map(|_| ()).map_err(|error| self.refine(live, error.into()))
    }
}

impl FrameSink {
    /// Sequence of the next frame.
    #[must_use]
    pub const fn next_sequence(&self) -> u64 {
        self.ack.next_sequence
    }

    /// Reserves memory before a payload is read, waiting as configured. A permit that is dropped
    /// gives its memory back, and counts against the quota until the sink is gone. Cancel-safe.
    /// Errors: `OverQuota`, `Overloaded`, `RetentionExhausted`, `TooLarge`, `DiskFull`, and why the
    /// attempt cannot be written.
    pub async fn reserve(&self, bytes: u64) -> ServiceResult<Permit> {
        self.live.check_stream(self.stream)?;
        self.service.reserve(&self.live, &self.reservation, bytes).await
    }

    /// Applies frames in order.
    ///
    /// A frame below the next sequence was applied before and is skipped; one above it is refused
    /// with `SequenceMismatch`, and those before it stay applied, as on every error. `permit` holds
    /// at least the bytes of the frames. Cancelled half-way: the batch is not begun, or it is applied
    /// to its end; the next stream waits for that and says how far it came. Errors: `SequenceMismatch`, `Fenced`, `TooLarge`,
    /// `UnknownPartition`, and why the attempt cannot be written.
    pub async fn push(&mut self, frames: Vec<DataFrame>, permit: Permit) -> ServiceResult<FramesAck> {
        let reserved = permit.bytes();
        let lane = self.live.lane.clone().write_owned().await;
        self.live.check_stream(self.stream)?;
        let work = apply_frames(self.service.clone(), self.live.clone(), lane, frames, permit);
        let outcome = self.service.run_to_end(work).await.flatten();
        self.reservation.settle(reserved);
        let applied = outcome?;
        self.ack.next_sequence = applied.next_sequence;
        self.ack.new_bytes = self.ack.new_bytes.saturating_add(applied.new_bytes);
        Ok(self.ack)
    }

    /// Ends the stream: `sequence` is the position of its end frame, which must be the next sequence
    /// (or lower, in a repeat). Errors: `SequenceMismatch` when frames are missing, `Fenced`.
    pub async fn finish(self, sequence: u64) -> ServiceResult<FramesAck> {
        self.live.check_stream(self.stream)?;
        if sequence > self.ack.next_sequence {
            return Err(ServiceErrorKind::SequenceMismatch { expected: self.ack.next_sequence }.into());
        }
        Ok(self.ack)
    }
}

/// Applies pieces of a raw body; runs to its end, with the lane shared.
async fn apply_raw(
    service: Arc<PartitionService>,
    live: Arc<LiveAttempt>,
    lane: OwnedRwLockReadGuard<Lane>,
    pieces: Vec<Piece>,
    permit: Permit,
) -> ServiceResult<AppendAck> {
    lane.is_stale.store(true, Ordering::Release);
    let request = AppendRequest { attempt: live.key.clone(), pieces, permit };
    let ack = live.dataset.store()?.append(request).await.map_err(|error| service.refine(&live, error.into()))?;
    service.counters.appended_bytes.add(ack.new_bytes);
    Ok(ack)
}

/// A raw append under way. Dropping it ends it: an atomic append then leaves nothing, a longer one
/// the chunks that were applied.
#[derive(Debug)]
pub struct RawSink {
    service: Arc<PartitionService>,
    live: Arc<LiveAttempt>,
    subpartition: SubpartitionIndex,
    /// Where the next chunk goes; `None` for the tail.
    next: Option<Offset>,
    is_atomic: bool,
    /// Bytes that do not make a chunk yet.
    partial: BytesMut,
    /// Chunks that wait for the end of an atomic body.
    chunks: Vec<Chunk>,
    /// Bytes in `partial` and `chunks`.
    waiting_bytes: u64,
    permit: Permit,
    reply: Option<AppendReply>,
    reservation: Reservation,
    _running: WriteGuard,
}

impl RawSink {
    /// Most bytes to reserve and push at a time.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.chunk_length() as u64
    }

    fn chunk_length(&self) -> usize {
        let most = self.live.dataset.store().map_or(u64::MAX, |store| store.capabilities().max_chunk_bytes);
        usize::try_from(self.service.config.chunk_bytes.min(most)).unwrap_or(usize::MAX).max(1)
    }

    /// Reserves memory before a block is read, waiting as configured. Errors as
    /// [`FrameSink::reserve`].
    pub async fn reserve(&self, bytes: u64) -> ServiceResult<Permit> {
        self.service.reserve(&self.live, &self.reservation, bytes).await
    }

    /// Whether nothing has been applied yet, so that dropping the sink leaves nothing.
    #[must_use]
    pub const fn is_atomic(&self) -> bool {
        self.is_atomic
    }

    /// Takes the next bytes of the body, with a permit of at least as many bytes. Cancelled
    /// half-way: drop the sink; a chunk that was begun is applied to its end. Errors: `OffsetMismatch`,
    /// `ContentMismatch`, `BelowFloor`, `TooLarge`, and why the attempt cannot be written.
    pub async fn push(&mut self, mut bytes: Bytes, permit: Permit) -> ServiceResult<()> {
        self.permit.merge(permit);
        self.waiting_bytes = self.waiting_bytes.saturating_add(bytes.len() as u64);
        let length = self.chunk_length();
        while !bytes.is_empty() {
            if self.partial.is_empty() && bytes.len() >= length {
                self.chunks.push(Chunk::new(bytes.split_to(length)));
                continue;
            }
            let taken = bytes.len().min(length.saturating_sub(self.partial.len()));
            self.partial.extend_from_slice(&bytes.split_to(taken));
            if self.partial.len() >= length {
                self.cut_partial();
            }
        }
        if self.is_atomic && self.waiting_bytes > self.service.config.atomic_append_bytes {
            self.is_atomic = false;
        }
        if !self.is_atomic && !self.chunks.is_empty() {
            self.apply().await?;
        }
        Ok(())
    }

    fn cut_partial(&mut self) {
        let bytes = std::mem::take(&mut self.partial).freeze();
        self.chunks.push(Chunk::new(bytes));
    }

    async fn apply(&mut self) -> ServiceResult<()> {
        let chunks = std::mem::take(&mut self.chunks);
        let bytes = chunks.iter().fold(0_u64, |sum, chunk| sum.saturating_add(chunk.length()));
        let mut pieces = Vec::with_capacity(chunks.len());
        let mut start = self.next;
        for chunk in chunks {
            let end = start.map(|start| start.checked_add(chunk.length()).ok_or_else(offset_overflow)).transpose()?;
            pieces.push(Piece { subpartition: self.subpartition, start, chunk });
            start = end;
        }
        let permit = self.permit.split(bytes).unwrap_or_else(|| std::mem::take(&mut self.permit));
        let lane = self.live.lane.clone().read_owned().await;
        let work = apply_raw(self.service.clone(), self.live.clone(), lane, pieces, permit);
        let outcome = self.service.run_to_end(work).await.flatten();
        self.reservation.settle(bytes);
        let ack = outcome?;
        self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes);
        // A body at the tail goes on where its first chunk went, not where others have got to since.
        self.next = start.or(Some(ack.end));
        let earlier = self.reply.map_or(0, |reply| reply.new_bytes);
        // The end of a repeat is where the repeat ends, not the tail that others may have moved.
        self.reply = Some(AppendReply { end: ack.end, new_bytes: earlier.saturating_add(ack.new_bytes) });
        Ok(())
    }

    /// The body is complete (and, if it had a digest, checked): applies what waits. Cancelled
    /// half-way: applied all the same. Errors as [`Self::push`].
    pub async fn finish(mut self) -> ServiceResult<AppendReply> {
        if !self.partial.is_empty() {
            self.cut_partial();
        }
        if self.chunks.is_empty() && self.reply.is_none() {
            self.chunks.push(Chunk::new(Bytes::new()));
        }
        if !self.chunks.is_empty() {
            self.apply().await?;
        }
        self.reply.ok_or_else(|| ServiceErrorKind::Internal.into())
    }
}

fn offset_overflow() -> ServiceError {
    ServiceError::bad_request("the append would pass offset 2^64-1")
}

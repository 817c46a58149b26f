//! Opening attempts and appending to them.

use crate::attempt::{Attempt, Subpartition};
use crate::buffer::{Extent, Fit, Misfit};
use crate::core::Core;
use crate::error::{Subject, budget_kind};
use crate::registry::Known;
use crate::spill::Place;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store_api::reads::charged;
use store_api::{
    AppendAck, AppendRequest, AttemptTails, Chunk, DatasetKind, Offset, OpenRequest, Operation, Permit, Piece, Retention, StoreError,
    StoreErrorKind, SubpartitionBounds, SubpartitionIndex,
};

/// How far one piece got.
enum Applied {
    /// It is in; the tail after it and the bytes that were new.
    Done { end: Offset, new_bytes: u64 },
    /// Bytes on disk must be compared with it first, up to `until`.
    Compare { extents: Vec<Extent<Place>>, until: Offset },
}

impl Core {
    /// See [`store_api::PartitionStore::open`].
    pub(crate) fn open_attempt(&self, request: &OpenRequest) -> Result<AttemptTails, StoreError> {
        let subject = Subject::new(Operation::Open, &request.attempt);
        self.check_running(Operation::Open, &request.attempt)?;
        let DatasetKind::Pipelined(retention) = request.spec.kind else {
            return Err(subject.refuse(StoreErrorKind::Unsupported { reason: "this store keeps pipelined datasets only" }));
        };
        if retention == Retention::SinceCheckpoint && self.spill.is_none() {
            return Err(subject.refuse(StoreErrorKind::Unsupported { reason: "since_checkpoint needs a spill directory" }));
        }
        let count = request.spec.stored_subpartitions();
        if let Some((index, _)) = request.starts.iter().find(|(index, _)| index.get() >= count) {
            return Err(subject.refuse_at(StoreErrorKind::NoSuchSubpartition { count }, *index));
        }
        let make = || {
            self.accounts.enrol(&request.attempt, |account| {
                let attempt = Attempt::new(request.attempt.clone(), request.spec.clone(), retention, account);
                for (index, start) in &request.starts {
                    attempt.touch(*index, *start);
                }
                Arc::new(attempt)
            })
        };
        let tails = match self.registry.find_or_insert(&request.attempt, make) {
            Some(Known::Live(attempt)) => tails_of(&attempt),
            Some(Known::Ended(ending)) => return Err(subject.ended(ending)),
            None => return Err(subject.refuse(StoreErrorKind::Internal)),
        };
        // `close` may have passed between the first look and the insertion; it would not know this attempt.
        self.check_running(Operation::Open, &request.attempt)?;
        Ok(tails)
    }

    /// See [`store_api::PartitionStore::append`].
    pub(crate) async fn append_pieces(&self, request: AppendRequest) -> Result<AppendAck, StoreError> {
        let AppendRequest { attempt: key, pieces, mut permit } = request;
        let subject = Subject::new(Operation::Append, &key);
        self.check_running(Operation::Append, &key)?;
        let attempt = self.registry.live(subject)?;
        attempt.life().check_open(subject)?;
        let mut ack = AppendAck { end: Offset::ZERO, new_bytes: 0 };
        for piece in &pieces {
            let (end, new_bytes) = self.append_piece(&attempt, piece, &mut permit).await?;
            ack = AppendAck { end, new_bytes: ack.new_bytes.saturating_add(new_bytes) };
        }
        drop(permit);
        let is_wanted = || self.demands.is_any() || self.is_over_mark(&attempt.account);
        if attempt.retention == Retention::SinceCheckpoint && is_wanted() {
            self.kick.notify_one();
        }
        Ok(ack)
    }

    async fn append_piece(&self, attempt: &Attempt, piece: &Piece, permit: &mut Permit) -> Result<(Offset, u64), StoreError> {
        let subject = Subject::new(Operation::Append, &attempt.key);
        let limit = self.config.max_chunk_bytes;
        if piece.chunk.length() > limit {
            let requested = piece.chunk.length();
            return Err(subject.refuse_at(StoreErrorKind::TooLarge { requested, limit }, piece.subpartition));
        }
        let subpartition = attempt.subpartition(piece.subpartition, subject)?;
        let mut compared = Offset::ZERO;
        loop {
            // Each round either ends or moves `compared` up over bytes that stay on disk.
            match self.apply(attempt, &subpartition, piece, compared, permit)? {
                Applied::Done { end, new_bytes } => return Ok((end, new_bytes)),
                Applied::Compare { extents, until } => {
                    self.compare(attempt, piece, &extents).await?;
                    compared = until;
                }
            }
        }
    }

    /// Applies a piece, wholly or not at all. The state is held still meanwhile, so a seal comes
    /// before or after it.
    fn apply(
        &self,
        attempt: &Attempt,
        subpartition: &Subpartition,
        piece: &Piece,
        compared: Offset,
        permit: &mut Permit,
    ) -> Result<Applied, StoreError> {
        let subject = Subject::new(Operation::Append, &attempt.key);
        let refuse = |kind| subject.refuse_at(kind, piece.subpartition);
        let limit = self.config.max_subpartition_bytes;
        let life = attempt.life();
        // Looked at under the state, as `close` takes the state before it lets the bytes go.
        self.check_running(Operation::Append, &attempt.key)?;
        life.check_open(subject)?;
        let applied = subpartition.change(|buffer, _| {
            let skip = match buffer.fit(piece.start, &piece.chunk, compared, limit) {
                Ok(Fit::Repeat) => return Ok(Applied::Done { end: buffer.tail(), new_bytes: 0 }),
                Ok(Fit::Compare { extents, until }) => return Ok(Applied::Compare { extents, until }),
                Ok(Fit::New { skip }) => skip,
                Err(misfit) => return Err(misfit_kind(misfit, limit)),
            };
            let fresh = if skip == 0 { piece.chunk.clone() } else { Chunk::new(piece.chunk.bytes().slice(skip..)) };
            let (new_bytes, crc) = (fresh.length(), fresh.crc());
            let paid = pay(attempt, permit, new_bytes)?;
            let order = self.order.fetch_add(1, Ordering::Relaxed);
            buffer.push(charged(fresh.into_bytes(), paid), crc, order);
            Ok(Applied::Done { end: buffer.tail(), new_bytes })
        });
        if matches!(applied, Ok(Applied::Done { new_bytes: 1.., .. })) {
            subpartition.grown.notify_waiters();
        }
        drop(life);
        applied.map_err(refuse)
    }

    /// Compares a piece with the bytes on disk that it repeats.
    async fn compare(&self, attempt: &Attempt, piece: &Piece, extents: &[Extent<Place>]) -> Result<(), StoreError> {
        let subject = Subject::new(Operation::Append, &attempt.key);
        let refuse = |kind| subject.refuse_at(kind, piece.subpartition);
        let (Some(spill), Some(start)) = (&self.spill, piece.start) else { return Err(refuse(StoreErrorKind::Internal)) };
        for extent in extents {
            let stored = spill.read(extent).await.map_err(|failure| {
                if let Some(cause) = failure.loss() {
                    attempt.lose(cause);
                }
                refuse(failure.kind).with_source(failure.source)
            })?;
            if !is_equal_where_both(&stored, extent.start, piece.chunk.bytes(), start) {
                let tail = attempt.subpartition(piece.subpartition, subject)?.ask(|buffer, _| buffer.tail());
                return Err(refuse(StoreErrorKind::ContentMismatch { expected: tail }));
            }
        }
        Ok(())
    }
}

/// Takes what new bytes cost out of the caller's permit; when that is not enough, from the job's
/// budget, as far as it is free now.
fn pay(attempt: &Attempt, permit: &mut Permit, bytes: u64) -> Result<Permit, StoreErrorKind> {
    let from_permit = bytes.min(permit.bytes());
    let missing = bytes.saturating_sub(from_permit);
    let extra = if missing > 0 { attempt.account.budget.try_reserve(missing).map_err(budget_kind)? } else { Permit::none() };
    // `from_permit` is at most what the permit holds.
    let mut paid = permit.split(from_permit).unwrap_or_default();
    paid.merge(extra);
    Ok(paid)
}

const fn misfit_kind(misfit: Misfit, limit: u64) -> StoreErrorKind {
    match misfit {
        Misfit::Gap { tail } => StoreErrorKind::OffsetMismatch { expected: tail },
        Misfit::OtherBytes { tail } => StoreErrorKind::ContentMismatch { expected: tail },
        Misfit::Gone { floor } => StoreErrorKind::BelowFloor { floor },
        Misfit::TooLong { length } => StoreErrorKind::TooLarge { requested: length, limit },
    }
}

/// Whether two runs of bytes are equal over the offsets that both cover.
fn is_equal_where_both(one: &Bytes, one_start: Offset, two: &Bytes, two_start: Offset) -> bool {
    let skip_of = |from: Offset, to: Offset| usize::try_from(to.since(from)).unwrap_or(usize::MAX);
    let one = one.get(skip_of(one_start, two_start)..).unwrap_or_default();
    let two = two.get(skip_of(two_start, one_start)..).unwrap_or_default();
    let both = one.len().min(two.len());
    one.get(..both) == two.get(..both)
}

/// State of an attempt, and where one subpartition stands.
pub(crate) fn bounds_of(attempt: &Attempt, index: SubpartitionIndex, subject: Subject<'_>) -> Result<SubpartitionBounds, StoreError> {
    let state = attempt.life().shown_state();
    let (floor, tail) = attempt
        .find(index, subject)?
        .map_or((Offset::ZERO, Offset::ZERO), |subpartition| subpartition.ask(|buffer, _| (buffer.floor(), buffer.tail())));
    Ok(SubpartitionBounds { state, floor, tail })
}

/// State and tails of an attempt.
pub(crate) fn tails_of(attempt: &Attempt) -> AttemptTails {
    let state = attempt.life().shown_state();
    let tails = attempt.present_in_order().into_iter().filter_map(|(index, subpartition)| {
        let tail = subpartition.ask(|buffer, _| buffer.tail());
        (tail > Offset::ZERO).then_some((index, tail))
    });
    AttemptTails { state, tails: tails.collect() }
}

//! Reads: a position, and a loop that looks what is there.
//!
//! Each step registers for wake-ups first, then looks at the state, then at the buffer, and only
//! then waits; so an append, a seal or an end between two of these is never missed. The state is
//! looked at before the buffer: a step that saw "sealed" and then finds the tail is at the end.
//! Bytes are checked against their checksum outside of all locks. A stream that is dropped leaves
//! nothing behind: it owns its registration.

use crate::attempt::{Attempt, Subpartition};
use crate::buffer::{Extent, Held, Look};
use crate::core::Core;
use crate::error::{Subject, budget_kind};
use crate::spill::Place;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use store_api::clock::within;
use store_api::reads::charged;
use store_api::store::clip_range;
use store_api::{
    AttemptState, Crc32c, LossCause, Offset, Operation, ReadMode, ReadRequest, ReadStream, Retention, StoreError, StoreErrorKind,
};

/// One read under way.
struct Reader {
    core: Arc<Core>,
    attempt: Arc<Attempt>,
    subpartition: Arc<Subpartition>,
    request: ReadRequest,
    position: Offset,
}

/// What a step found.
enum Step {
    Bytes(Bytes),
    End,
    /// A read from disk that has to be done without a lock.
    Load(Extent<Place>, usize),
    Wait,
}

impl Core {
    /// Starts a read. See [`store_api::PartitionStore::read`].
    pub(crate) fn start_read(self: &Arc<Self>, request: ReadRequest) -> Result<ReadStream, StoreError> {
        let subject = Subject::new(Operation::Read, &request.attempt);
        self.check_running(Operation::Read, &request.attempt)?;
        let attempt = self.registry.live(subject)?;
        let is_sealed = {
            let life = attempt.life();
            life.check_alive(subject)?;
            is_final(life.state)
        };
        if !is_sealed && request.mode == ReadMode::Sealed {
            return Err(subject.refuse(StoreErrorKind::NotSealed));
        }
        let subpartition = attempt.subpartition(request.subpartition, subject)?;
        let (floor, tail, digest) = subpartition.ask(|buffer, _| (buffer.floor(), buffer.tail(), buffer.digest()));
        let range = clip_range(&request, floor, tail);
        // An attempt that ends lets go of its bytes; that end is then the reason, not the floor.
        attempt.life().check_alive(subject)?;
        let range = range?;
        let (end, digest) = if is_sealed { (Some(range.end()), Some(digest)) } else { (None, None) };
        let reader = Reader { core: self.clone(), attempt, subpartition, position: request.start, request };
        Ok(ReadStream { start: range.start(), end, digest, chunks: reader.stream() })
    }
}

impl Reader {
    fn stream(self) -> BoxStream<'static, Result<Bytes, StoreError>> {
        futures::stream::unfold(Some(self), |reader| async move {
            let mut reader = reader?;
            match reader.next().await {
                Ok(Some(bytes)) => Some((Ok(bytes), Some(reader))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })
        .boxed()
    }

    const fn subject(&self) -> Subject<'_> {
        Subject::new(Operation::Read, &self.request.attempt)
    }

    /// The next bytes; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        let mut wait_until: Option<Duration> = None;
        let subpartition = self.subpartition.clone();
        loop {
            let mut grown = pin!(subpartition.grown.notified());
            grown.as_mut().enable();
            match self.step()? {
                Step::Bytes(bytes) => return Ok(Some(bytes)),
                Step::End => return Ok(None),
                Step::Load(extent, skip) => return self.load(extent, skip).await.map(Some),
                Step::Wait => {}
            }
            let ReadMode::Tail { wait } = self.request.mode else {
                // A sealed content has no end that could still come.
                return Err(self.subject().refuse_at(StoreErrorKind::Internal, self.request.subpartition));
            };
            // Wake-ups that bring no byte do not start the wait anew.
            let now = self.core.clock.monotonic();
            let until = *wait_until.get_or_insert_with(|| now.saturating_add(wait));
            if now >= until || within(self.core.clock.as_ref(), until.saturating_sub(now), grown).await.is_none() {
                // The clock may have won against an append in the same moment: bytes come first.
                return match self.step()? {
                    Step::Bytes(bytes) => Ok(Some(bytes)),
                    Step::Load(extent, skip) => self.load(extent, skip).await.map(Some),
                    Step::End | Step::Wait => Ok(None),
                };
            }
        }
    }

    /// Looks what is at the position, and moves on over what is taken.
    fn step(&mut self) -> Result<Step, StoreError> {
        self.core.check_running(Operation::Read, &self.request.attempt)?;
        let is_sealed = {
            let life = self.attempt.life();
            life.check_alive(self.subject())?;
            is_final(life.state)
        };
        if self.request.end.is_some_and(|end| self.position >= end) {
            return Ok(Step::End);
        }
        let (position, end) = (self.position, self.request.end);
        let mut next = position;
        let looked = self.subpartition.change(|buffer, _| {
            let looked = buffer.look(position);
            let last = match &looked {
                Look::Memory { held, skip } => Some((held.length(), *skip)),
                Look::Disk { extent, skip } => Some((extent.length, *skip)),
                Look::Below { .. } | Look::AtTail => None,
            };
            if let Some((length, skip)) = last {
                let whole = Offset::new(position.get().saturating_add(length.saturating_sub(skip as u64)));
                next = end.map_or(whole, |end| end.min(whole));
                buffer.mark_sent(next);
            }
            looked
        });
        match looked {
            Look::Below { floor } => {
                // An attempt that ends lets go of its bytes; that end is then the reason.
                self.attempt.life().check_alive(self.subject())?;
                Err(self.subject().refuse_at(StoreErrorKind::BelowFloor { floor }, self.request.subpartition))
            }
            Look::AtTail => Ok(if is_sealed { Step::End } else { Step::Wait }),
            Look::Disk { extent, skip } => Ok(Step::Load(extent, skip)),
            Look::Memory { held, skip } => {
                if self.attempt.retention == Retention::BestEffort && self.core.demands.is_any() {
                    self.core.kick.notify_one();
                }
                self.check(&held)?;
                self.take(&held.bytes, skip, next).map(Step::Bytes)
            }
        }
    }

    async fn load(&mut self, extent: Extent<Place>, skip: usize) -> Result<Bytes, StoreError> {
        let Some(spill) = &self.core.spill else {
            return Err(self.subject().refuse_at(StoreErrorKind::Internal, self.request.subpartition));
        };
        let reserved = self.core.reads.reserve(extent.length).await;
        let permit = reserved.map_err(|error| self.subject().refuse_at(budget_kind(error), self.request.subpartition))?;
        let read = spill.read(&extent).await.map(|bytes| charged(bytes, permit));
        let bytes = read.map_err(|failure| {
            if let Some(cause) = failure.loss() {
                self.attempt.lose(cause);
            }
            self.subject().refuse_at(failure.kind, self.request.subpartition).with_source(failure.source)
        })?;
        let whole = extent.end();
        let next = self.request.end.map_or(whole, |end| end.min(whole));
        self.take(&bytes, skip, next)
    }

    /// Memory is checked like a disk: a chunk whose bytes have changed is not handed out.
    fn check(&self, held: &Held) -> Result<(), StoreError> {
        if Crc32c::of(&held.bytes) == held.crc {
            return Ok(());
        }
        self.attempt.lose(LossCause::Corruption);
        Err(self.subject().refuse_at(StoreErrorKind::Lost { cause: LossCause::Corruption }, self.request.subpartition))
    }

    /// Cuts out `bytes` from `skip` up to the offset `next`, and moves there.
    fn take(&mut self, bytes: &Bytes, skip: usize, next: Offset) -> Result<Bytes, StoreError> {
        let length = usize::try_from(next.since(self.position)).unwrap_or(usize::MAX);
        let range = skip..skip.saturating_add(length);
        if range.end > bytes.len() || range.is_empty() {
            return Err(self.subject().refuse_at(StoreErrorKind::Internal, self.request.subpartition));
        }
        self.position = next;
        Ok(bytes.slice(range))
    }
}

/// Whether no byte comes any more.
const fn is_final(state: AttemptState) -> bool {
    matches!(state, AttemptState::Sealed | AttemptState::Lost)
}

//! Reads: which attempt is readable, and its bytes.
//!
//! "No" has many meanings, and each has its own answer: unknown job, dataset or partition; not
//! written; not sealed; released; expired; lost, and why; fenced by a higher generation; aborted;
//! another attempt won.

use super::PartitionService;
use super::attempt::peek;
use super::calls::{EventKind, PartitionAddress, ReadCall, ReadKind, ReadReply, Readable};
use super::error::{ServiceError, ServiceErrorKind, ServiceResult};
use super::events::Subject;
use super::registry::{Attempt, Dataset, Job, Partition};
use futures::StreamExt;
use std::sync::Arc;
use store_api::{
    AttemptId, AttemptState, Digest, LossCause, Offset, PartitionId, ReadMode, ReadRequest, SealManifest, StoreError, StoreErrorKind,
    SubpartitionIndex,
};

/// The attempt that a reader gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Picked {
    pub(super) attempt: AttemptId,
    pub(super) is_sealed: bool,
}

impl Partition {
    /// The attempt that a reader gets that may have been told one. Errors: why there is none.
    pub(super) fn pick(&self, dataset: &Dataset, named: Option<AttemptId>) -> ServiceResult<Picked> {
        if self.is_released {
            return Err(ServiceErrorKind::Released.into());
        }
        match named {
            Some(named) => self.pick_named(dataset, named),
            None => self.pick_any(dataset),
        }
    }

    fn pick_named(&self, dataset: &Dataset, named: AttemptId) -> ServiceResult<Picked> {
        let winner = self.sealed().filter(|winner| dataset.has_one_winner() && self.id(winner) != named);
        if let Some(winner) = winner.filter(|_| named.generation == self.generation) {
            return Err(ServiceErrorKind::OtherAttemptWon { winner: self.id(winner) }.into());
        }
        if let Some(refusal) = self.refusal(dataset, named) {
            return Err(refusal);
        }
        match self.attempt(named.attempt).filter(|_| named.generation == self.generation) {
            Some(attempt) => self.picked(dataset, attempt),
            None => Err(self.lost.map_or(ServiceErrorKind::UnknownAttempt, |cause| ServiceErrorKind::Lost { cause }).into()),
        }
    }

    fn pick_any(&self, dataset: &Dataset) -> ServiceResult<Picked> {
        let mut candidates = self.sealed_attempts().chain(self.open().filter(|_| dataset.is_pipelined()));
        let first = if dataset.has_one_winner() { self.sealed().or_else(|| candidates.next()) } else { candidates.next() };
        if let Some(first) = first {
            if !dataset.has_one_winner() && candidates.next().is_some() {
                return Err(ServiceError::bad_request("the partition has several attempts: name the one to read"));
            }
            return self.picked(dataset, first);
        }
        if let Some(cause) = self.lost {
            return Err(ServiceErrorKind::Lost { cause }.into());
        }
        if self.open().is_some() {
            return Err(ServiceErrorKind::NotSealed.into());
        }
        match self.attempts.last() {
            None => Err(ServiceErrorKind::NotWritten.into()),
            Some(ended) => Err(self.refusal(dataset, self.id(ended)).unwrap_or_else(|| ServiceErrorKind::NotWritten.into())),
        }
    }

    fn picked(&self, dataset: &Dataset, attempt: &Attempt) -> ServiceResult<Picked> {
        let is_sealed = attempt.state == AttemptState::Sealed;
        if !is_sealed && !dataset.is_pipelined() {
            return Err(ServiceErrorKind::NotSealed.into());
        }
        Ok(Picked { attempt: self.id(attempt), is_sealed })
    }
}

/// Whether another node may know more about a durable partition.
pub(super) const fn may_be_elsewhere(kind: &ServiceErrorKind) -> bool {
    matches!(
        kind,
        ServiceErrorKind::NotWritten | ServiceErrorKind::NotSealed | ServiceErrorKind::UnknownAttempt | ServiceErrorKind::Aborted
    )
}

impl Dataset {
    /// A subpartition as it is stored. Errors: `UnknownPartition`.
    pub(super) fn stored(&self, subpartition: SubpartitionIndex) -> ServiceResult<SubpartitionIndex> {
        if subpartition.get() >= self.spec.n_subpartitions {
            return Err(ServiceErrorKind::UnknownPartition.into());
        }
        Ok(if self.spec.is_broadcast { SubpartitionIndex::new(0) } else { subpartition })
    }
}

impl PartitionService {
    /// The attempt that a reader gets. A durable partition that is not known here is looked for on
    /// the medium. Errors: why there is none; `Unavailable`, never taken for "none".
    pub(super) async fn pick(
        &self,
        job: &Job,
        dataset: &Dataset,
        partition: PartitionId,
        named: Option<AttemptId>,
    ) -> ServiceResult<Picked> {
        let known = peek(dataset, partition, |known| known.pick(dataset, named));
        match known {
            Err(error) if dataset.is_durable() && may_be_elsewhere(error.kind()) => {
                if self.locate(job, dataset, partition).await? {
                    return peek(dataset, partition, |known| known.pick(dataset, named));
                }
                Err(error)
            }
            known => known,
        }
    }

    /// Looks for sealed content on a medium that other nodes write to. Answers whether some was
    /// found.
    pub(super) async fn locate(&self, job: &Job, dataset: &Dataset, partition: PartitionId) -> ServiceResult<bool> {
        let generation = peek(dataset, partition, |known| Ok(known.generation))?;
        let found = dataset.store()?.locate(&dataset.key.partition(partition), &dataset.spec, generation).await?;
        if let Some(manifest) = &found {
            self.note_found(job, dataset, manifest);
        }
        Ok(found.is_some())
    }

    /// Enters content that another node has sealed.
    pub(super) fn note_found(&self, job: &Job, dataset: &Dataset, manifest: &SealManifest) {
        let (partition, id) = (manifest.attempt.partition.partition, manifest.attempt.attempt);
        let mut partitions = dataset.partitions.write();
        let known = partitions.entry(partition.get()).or_insert_with(|| dataset.untouched());
        if known.is_released || id.generation < known.generation {
            return;
        }
        if id.generation > known.generation && known.supersede(dataset, id) {
            let subject =
                Subject { dataset: Some(dataset.key.dataset.clone()), partition: Some(partition), attempt: Some(id), location: None };
            job.events.push(EventKind::Superseded, subject);
        }
        if known.attempt(id.attempt).is_some_and(|attempt| attempt.state == AttemptState::Sealed) {
            return;
        }
        let bytes = manifest.table.total_bytes();
        known.attempts.retain(|attempt| attempt.number != id.attempt);
        known.attempts.push(Attempt { number: id.attempt, state: AttemptState::Sealed, bytes, live: None });
        known.by = known.by.max(id.attempt);
        dataset.count_sealed(bytes);
    }

    /// Enters that sealed content cannot be served any more, and tells of it once.
    pub(super) fn note_lost(&self, job: &Job, dataset: &Dataset, partition: PartitionId, id: AttemptId, cause: LossCause) {
        {
            let mut partitions = dataset.partitions.write();
            let known = partitions.get_mut(&partition.get()).filter(|known| known.generation == id.generation);
            let Some(known) = known else { return };
            let Some(attempt) = known.attempt_mut(id.attempt).filter(|attempt| attempt.state == AttemptState::Sealed) else { return };
            dataset.uncount_sealed([&*attempt]);
            attempt.state = AttemptState::Lost;
            known.lost = Some(cause);
        }
        self.counters.partitions_lost.add(1);
        tracing::error!(dataset = %dataset.key, %partition, attempt = %id, cause = cause.as_str(), "sealed content is lost");
        let subject = Subject { dataset: Some(dataset.key.dataset.clone()), partition: Some(partition), attempt: Some(id), location: None };
        job.events.push(EventKind::Lost { cause }, subject);
    }

    /// A store's refusal of a read: a loss is entered, an end is seen with what the registry knows.
    pub(super) fn refine_read(
        &self,
        job: &Job,
        dataset: &Dataset,
        partition: PartitionId,
        id: AttemptId,
        error: StoreError,
    ) -> ServiceError {
        if let StoreErrorKind::Lost { cause } = error.kind() {
            self.note_lost(job, dataset, partition, id, *cause);
        }
        self.refine_at(job, dataset, partition, id, error.into())
    }

    pub(super) async fn manifest_at(
        &self,
        job: &Job,
        dataset: &Dataset,
        partition: PartitionId,
        id: AttemptId,
    ) -> ServiceResult<Arc<SealManifest>> {
        let key = dataset.attempt_key(partition, id);
        dataset.store()?.manifest(&key).await.map_err(|error| self.refine_read(job, dataset, partition, id, error))
    }

    /// What a read of the subpartition would serve, without reading: for `HEAD`, `If-Range`, suffix
    /// ranges, and to tell a sealed end from one that was waited for. Cancel-safe. Errors: as
    /// [`Self::read`].
    pub async fn resolve(
        &self,
        at: &PartitionAddress,
        subpartition: SubpartitionIndex,
        attempt: Option<AttemptId>,
    ) -> ServiceResult<Readable> {
        let (job, dataset) = self.find_partition(at).await?;
        let stored = dataset.stored(subpartition)?;
        let picked = self.pick(&job, &dataset, at.partition, attempt).await?;
        let store = dataset.store()?;
        let key = dataset.attempt_key(at.partition, picked.attempt);
        let refine = |error| self.refine_read(&job, &dataset, at.partition, picked.attempt, error);
        let mut readable = Readable {
            attempt: picked.attempt,
            digest: None,
            start: Offset::ZERO,
            floor: Offset::ZERO,
            end: Offset::ZERO,
            class: dataset.class,
            location: self.node.location.clone(),
        };
        if picked.is_sealed {
            let manifest = store.manifest(&key).await.map_err(refine)?;
            let digest = manifest.table.digest(stored).unwrap_or(Digest::EMPTY);
            readable.class = manifest.class;
            readable.end = Offset::new(digest.length);
            readable.digest = Some(digest);
        }
        // A pipelined attempt that started beyond 0 has an end that is not its length.
        if !picked.is_sealed || dataset.is_pipelined() {
            let bounds = store.bounds(&key, stored).await.map_err(refine)?;
            (readable.floor, readable.end) = (bounds.floor, bounds.tail);
        }
        if let Some(digest) = readable.digest {
            readable.start = Offset::new(readable.end.get().saturating_sub(digest.length));
        }
        Ok(readable)
    }

    /// Starts a read of one subpartition.
    ///
    /// The bytes are those of one attempt only: the one that is named, or the readable one. A
    /// broadcast is read through any subpartition. A tail read sends bytes as they come and waits
    /// for more at most as long as it asked, clipped to the node's limit. A release during the read
    /// ends it with an error or lets it finish with the right bytes. Cancel-safe: drop the stream.
    /// Errors, before the first byte or in the stream: `NotWritten`, `NotSealed`, `Released`,
    /// `Expired`, `Lost`, `Fenced`, `Aborted`, `OtherAttemptWon`, `BelowFloor`,
    /// `RangeNotSatisfiable`, `UnknownAttempt`, `BadRequest` (an engine's partition with several
    /// attempts and none named), `Overloaded`, `Unavailable`, those of finding the partition.
    pub async fn read(self: &Arc<Self>, at: &PartitionAddress, call: ReadCall) -> ServiceResult<ReadReply> {
        let (job, dataset) = self.find_partition(at).await?;
        let subpartition = dataset.stored(call.subpartition)?;
        let picked = self.pick(&job, &dataset, at.partition, call.attempt).await?;
        let mode = match call.kind {
            ReadKind::Tail { wait } if !picked.is_sealed => ReadMode::Tail { wait: wait.min(self.config.max_tail_wait) },
            ReadKind::Sealed if !picked.is_sealed => return Err(ServiceErrorKind::NotSealed.into()),
            ReadKind::Tail { .. } | ReadKind::Sealed => ReadMode::Sealed,
        };
        let request = ReadRequest {
            attempt: dataset.attempt_key(at.partition, picked.attempt),
            subpartition,
            start: call.start,
            end: call.end,
            mode,
        };
        let opened = dataset.store()?.read(request).await;
        let stream = opened.map_err(|error| self.refine_read(&job, &dataset, at.partition, picked.attempt, error))?;
        self.counters.reads.add(1);
        let (service, partition, class, attempt) = (self.clone(), at.partition, dataset.class, picked.attempt);
        let chunks = stream.chunks.map(move |chunk| match chunk {
            Ok(bytes) => {
                service.counters.read_bytes.add(bytes.len() as u64);
                Ok(bytes)
            }
            Err(error) => Err(service.refine_read(&job, &dataset, partition, attempt, error)),
        });
        Ok(ReadReply { attempt, class, start: stream.start, end: stream.end, digest: stream.digest, chunks: chunks.boxed() })
    }
}

/// The offset of one subpartition in an ascending list that leaves out zeros.
pub(super) fn offset_of(offsets: &[(SubpartitionIndex, Offset)], wanted: SubpartitionIndex) -> Offset {
    let found = offsets.binary_search_by_key(&wanted, |(index, _)| *index).ok();
    found.and_then(|at| offsets.get(at)).map_or(Offset::ZERO, |(_, offset)| *offset)
}

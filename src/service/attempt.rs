//! Attempts: which of them may write, which is the content, what is fenced.
//!
//! Within a generation attempts run side by side; the first valid seal is the content (or the engine
//! decides). A higher generation fences every lower one, sealed or not; only the owner raises it.
//! Among pipelined attempts a higher number fences lower ones: their readers follow one producer.

use super::PartitionService;
use super::calls::{AttemptAddress, AttemptView, EventKind, OpenAttempt, PartitionAddress};
use super::error::{FencedBy, ServiceError, ServiceErrorKind, ServiceResult};
use super::events::Subject;
use super::records::PartitionRecord;
use super::registry::{Attempt, Counted, Dataset, Job, LiveAttempt, Partition};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use store_api::{
    AttemptId, AttemptState, AttemptTails, JobEpoch, NodeLife, Offset, OpenRequest, PartitionId, ReleaseScope, StoreErrorKind,
    SubpartitionIndex,
};

/// Most attempts of one generation of a partition.
pub const MAX_ATTEMPTS: usize = 1024;
/// How often an opening looks again when the generation keeps rising under it.
const MAX_OPEN_ROUNDS: u32 = 4;

/// What opening an attempt has to begin with.
enum Opening {
    Repeat,
    Fresh,
    Raise,
}

impl Partition {
    /// What opening `wanted` means here. Errors: why it cannot be opened.
    fn opening(&self, dataset: &Dataset, wanted: AttemptId) -> ServiceResult<Opening> {
        if self.is_released {
            return Err(ServiceErrorKind::Released.into());
        }
        if wanted.generation > self.generation {
            return Ok(Opening::Raise);
        }
        if let Some(refusal) = self.refusal(dataset, wanted) {
            return Err(refusal);
        }
        if let Some(cause) = self.lost.filter(|_| dataset.has_one_winner() || self.attempts.is_empty()) {
            return Err(ServiceErrorKind::Lost { cause }.into());
        }
        if let Some(known) = self.attempt(wanted.attempt) {
            let is_sealed = known.state == AttemptState::Sealed;
            return if is_sealed { Err(ServiceErrorKind::AlreadySealed.into()) } else { Ok(Opening::Repeat) };
        }
        if dataset.has_one_winner()
            && let Some(winner) = self.sealed()
        {
            return Err(ServiceErrorKind::OtherAttemptWon { winner: self.id(winner) }.into());
        }
        let newer =
            self.attempts.iter().map(|attempt| attempt.number).max().filter(|newest| dataset.is_pipelined() && *newest > wanted.attempt);
        if let Some(newer) = newer {
            let by = FencedBy::Attempt(AttemptId::new(self.generation, newer));
            return Err(ServiceErrorKind::Fenced { by }.into());
        }
        if self.attempts.len() >= MAX_ATTEMPTS {
            return Err(ServiceErrorKind::TooLarge { limit: MAX_ATTEMPTS as u64 }.into());
        }
        Ok(Opening::Fresh)
    }

    /// Why an attempt has ended, if it has: the one answer for writers, readers and openers.
    pub(super) fn refusal(&self, dataset: &Dataset, id: AttemptId) -> Option<ServiceError> {
        if self.is_released {
            return Some(ServiceErrorKind::Released.into());
        }
        if id.generation < self.generation {
            return Some(ServiceErrorKind::Fenced { by: FencedBy::Attempt(self.superseder()) }.into());
        }
        let attempt = self.attempt(id.attempt).filter(|_| id.generation == self.generation)?;
        let kind = match attempt.state {
            AttemptState::Open | AttemptState::Prepared | AttemptState::Sealed => return None,
            AttemptState::Aborted => match self.sealed().filter(|_| dataset.has_one_winner()) {
                Some(winner) => ServiceErrorKind::OtherAttemptWon { winner: self.id(winner) },
                None => ServiceErrorKind::Aborted,
            },
            AttemptState::Fenced => {
                let newest = self.attempts.iter().map(|attempt| attempt.number).max().unwrap_or(self.by);
                ServiceErrorKind::Fenced { by: FencedBy::Attempt(AttemptId::new(self.generation, newest)) }
            }
            AttemptState::Released => ServiceErrorKind::Released,
            AttemptState::Lost => ServiceErrorKind::Lost { cause: self.lost? },
        };
        Some(kind.into())
    }

    /// Makes a generation the current one; answers whether sealed content was superseded.
    pub(super) fn supersede(&mut self, dataset: &Dataset, by: AttemptId) -> bool {
        let had_content = self.sealed().is_some();
        dataset.uncount_sealed(&self.attempts);
        *self = Self { generation: by.generation, by: by.attempt, ..Self::default() };
        had_content
    }
}

impl PartitionService {
    /// Job and dataset of an address, both alive. Errors: `UnknownJob`, `UnknownDataset`,
    /// `UnknownPartition`, `Released`, `Expired`, `Unavailable`.
    pub(super) async fn find_partition(&self, at: &PartitionAddress) -> ServiceResult<(Arc<Job>, Arc<Dataset>)> {
        let job = self.find_job(&at.job).await?;
        let dataset = self.find_dataset(&job, &at.dataset).await?;
        dataset.check_partition(at.partition)?;
        Ok((job, dataset))
    }

    /// For [`Self::open_attempt`]. Errors: those of [`Self::admit_dataset`], `UnknownPartition`, and
    /// of a named epoch those of [`Self::admit_control`].
    pub async fn admit_opening(&self, at: &PartitionAddress, epoch: Option<JobEpoch>) -> ServiceResult<()> {
        let (job, _) = self.find_partition(at).await?;
        if epoch.is_some() { job.check_epoch(epoch) } else { Ok(()) }
    }

    /// Opens an attempt, with no bytes in it.
    ///
    /// A repeat answers where the attempt stands. A generation above the partition's is recorded
    /// (durably, and with the owner's epoch only) before anything else; then everything of lower
    /// generations is fenced and given back. Where the first seal counts and there is one, the
    /// answer is `AlreadySealed` or `OtherAttemptWon` with the winner's name. A pipelined partition
    /// whose content went with a former life of the node, and any partition whose content is lost,
    /// takes new attempts in a higher generation only, so that no reader mixes two executions.
    /// Cancelled half-way: opened or not; repeat it. Errors: those, `Fenced`, `EpochRequired`,
    /// `Aborted`, `Released`, `Lost`, `Draining`, `TooLarge` (attempts of one generation), `BadRequest`,
    /// those of finding the partition, `DiskFull`, `Unavailable`.
    pub async fn open_attempt(&self, at: &PartitionAddress, request: OpenAttempt) -> ServiceResult<AttemptView> {
        if request.life.is_some() {
            self.check_life(request.life)?;
        }
        let (job, dataset) = self.find_partition(at).await?;
        if request.epoch.is_some() {
            job.check_epoch(request.epoch)?;
        }
        let wanted = AttemptId::new(request.generation, request.attempt);
        let starts = checked_starts(&dataset, request.starts)?;
        self.learn_shared_partition(&job, &dataset, at.partition).await?;
        for _ in 0..MAX_OPEN_ROUNDS {
            let opening = peek(&dataset, at.partition, |partition| partition.opening(&dataset, wanted))?;
            match opening {
                Opening::Repeat => {}
                _ if self.is_draining() => return Err(ServiceErrorKind::Draining.into()),
                Opening::Fresh => {}
                Opening::Raise => {
                    self.raise_generation(&job, &dataset, at.partition, wanted, request.epoch).await?;
                    continue;
                }
            }
            return self.open_in_store(&job, &dataset, at.partition, wanted, starts).await;
        }
        Err(ServiceErrorKind::Unavailable { retry_after: super::error::DEFAULT_RETRY }.into())
    }

    async fn open_in_store(
        &self,
        job: &Arc<Job>,
        dataset: &Arc<Dataset>,
        partition: PartitionId,
        wanted: AttemptId,
        starts: Vec<(SubpartitionIndex, Offset)>,
    ) -> ServiceResult<AttemptView> {
        let store = dataset.store()?;
        let key = dataset.attempt_key(partition, wanted);
        let request = OpenRequest { attempt: key.clone(), spec: dataset.spec.clone(), starts };
        let tails = store.open(request).await.map_err(|error| self.refine_at(job, dataset, partition, wanted, error.into()))?;
        // Nobody can have appended to an attempt that is not registered: its tails are its starts.
        let registered = register(job, dataset, partition, wanted, &tails.tails, &self.n_open_attempts);
        let alive = job.check_live().and_then(|()| dataset.check_live());
        let (live, is_new, fenced) = match alive.and(registered) {
            Ok(registered) => registered,
            Err(error) => {
                // It ended while the store was opening it: nothing may stay behind.
                self.release_or_put_off(dataset.spec.kind.class(), ReleaseScope::Attempt(key)).await;
                return Err(error);
            }
        };
        if is_new {
            self.counters.attempts_opened.add(1);
        }
        for lower in fenced {
            match store.abort(&dataset.attempt_key(partition, lower)).await {
                Err(error) if !matches!(error.kind(), StoreErrorKind::AlreadySealed) => return Err(error.into()),
                Err(_) | Ok(()) => {}
            }
        }
        let next_sequence = live.lane.read().await.next_sequence();
        Ok(self.attempt_view(wanted, &tails, next_sequence))
    }

    fn attempt_view(&self, attempt: AttemptId, tails: &AttemptTails, next_sequence: u64) -> AttemptView {
        AttemptView {
            attempt,
            state: tails.state,
            location: self.node.location.clone(),
            next_sequence,
            tails: tails.tails.clone(),
            max_frame_bytes: self.config.max_frame_bytes,
            atomic_append_bytes: self.config.atomic_append_bytes,
        }
    }

    /// Records a higher generation, then fences what is below it.
    pub(super) async fn raise_generation(
        &self,
        job: &Arc<Job>,
        dataset: &Arc<Dataset>,
        partition: PartitionId,
        wanted: AttemptId,
        epoch: Option<JobEpoch>,
    ) -> ServiceResult<()> {
        let one_at_a_time = job.gate.lock().await;
        job.check_epoch(epoch)?;
        dataset.check_live()?;
        let is_needed =
            peek(dataset, partition, |known| known.opening(dataset, wanted)).map(|opening| matches!(opening, Opening::Raise))?;
        if !is_needed {
            return Ok(());
        }
        let record = self.put_generation(dataset, partition, PartitionRecord::raised(wanted)).await?;
        drop(one_at_a_time);
        self.counters.generations_raised.add(1);
        self.apply_partition_record(job, dataset, partition, record).await;
        Ok(())
    }

    /// Brings the registry and the store to what a partition's record says.
    pub(super) async fn apply_partition_record(&self, job: &Job, dataset: &Dataset, partition: PartitionId, record: PartitionRecord) {
        let by = AttemptId::new(record.generation, record.by);
        let (is_raised, had_content) = {
            let mut partitions = dataset.partitions.write();
            let known = partitions.entry(partition.get()).or_insert_with(|| dataset.untouched());
            let is_raised = by.generation > known.generation;
            let had_content = is_raised && known.supersede(dataset, by);
            known.is_released |= record.is_released;
            (is_raised, had_content)
        };
        if !is_raised {
            return;
        }
        if had_content {
            let subject =
                Subject { dataset: Some(dataset.key.dataset.clone()), partition: Some(partition), attempt: Some(by), location: None };
            job.events.push(EventKind::Superseded, subject);
        }
        let scope = ReleaseScope::GenerationsBelow { partition: dataset.key.partition(partition), by };
        self.release_or_put_off(dataset.spec.kind.class(), scope).await;
    }

    /// For the first attempt of a durable partition here: what other nodes have recorded of it.
    async fn learn_shared_partition(&self, job: &Job, dataset: &Dataset, partition: PartitionId) -> ServiceResult<()> {
        if !dataset.is_durable() || dataset.partitions.read().contains_key(&partition.get()) {
            return Ok(());
        }
        if let Some(record) = self.shared_partition(dataset, partition).await? {
            self.apply_partition_record(job, dataset, partition, record).await;
        }
        Ok(())
    }

    /// Where an attempt stands. Errors: `UnknownAttempt`, why it has ended, those of finding the
    /// partition.
    pub async fn attempt(&self, at: &AttemptAddress) -> ServiceResult<AttemptView> {
        let (job, dataset) = self.find_partition(&at.partition).await?;
        let partition = at.partition.partition;
        let live = peek(&dataset, partition, |known| {
            if let Some(refusal) = known.refusal(&dataset, at.attempt) {
                return Err(refusal);
            }
            let attempt = known.attempt(at.attempt.attempt).filter(|_| at.attempt.generation == known.generation);
            attempt.map(|attempt| attempt.live.clone()).ok_or_else(|| ServiceErrorKind::UnknownAttempt.into())
        })?;
        let key = dataset.attempt_key(partition, at.attempt);
        let tails =
            dataset.store()?.tails(&key).await.map_err(|error| self.refine_at(&job, &dataset, partition, at.attempt, error.into()))?;
        let next_sequence = match live {
            Some(live) => live.lane.read().await.next_sequence(),
            None => 0,
        };
        Ok(self.attempt_view(at.attempt, &tails, next_sequence))
    }

    /// Ends an unsealed attempt without a result and gives its storage back. Idempotent. Cancelled
    /// half-way: aborted or not; repeat it. Errors: `LifeRequired`, `Fenced`, `AlreadySealed`,
    /// `UnknownAttempt`, `Released`, those of finding the partition.
    pub async fn abort_attempt(&self, at: &AttemptAddress, life: Option<NodeLife>) -> ServiceResult<()> {
        self.check_life(life)?;
        let (_, dataset) = self.find_partition(&at.partition).await?;
        let partition = at.partition.partition;
        let state = peek(&dataset, partition, |known| {
            if at.attempt.generation < known.generation {
                return Ok(AttemptState::Fenced);
            }
            let attempt = known.attempt(at.attempt.attempt).filter(|_| at.attempt.generation == known.generation);
            attempt.map(|attempt| attempt.state).ok_or_else(|| ServiceErrorKind::UnknownAttempt.into())
        })?;
        match state {
            AttemptState::Open | AttemptState::Prepared => {}
            AttemptState::Sealed => return Err(ServiceErrorKind::AlreadySealed.into()),
            AttemptState::Aborted | AttemptState::Fenced | AttemptState::Released | AttemptState::Lost => return Ok(()),
        }
        let key = dataset.attempt_key(partition, at.attempt);
        dataset.store()?.abort(&key).await?;
        if end_attempt(&dataset, partition, at.attempt, AttemptState::Aborted) {
            self.counters.attempts_aborted.add(1);
        }
        self.arbiter.withdraw(&key.partition, at.attempt);
        Ok(())
    }

    /// The attempt, for a write. Errors: why it cannot be written.
    pub(super) async fn live_attempt(&self, at: &AttemptAddress, life: Option<NodeLife>) -> ServiceResult<Arc<LiveAttempt>> {
        self.check_life(life)?;
        let (_, dataset) = self.find_partition(&at.partition).await?;
        peek(&dataset, at.partition.partition, |known| {
            if let Some(refusal) = known.refusal(&dataset, at.attempt) {
                return Err(refusal);
            }
            let attempt = known.attempt(at.attempt.attempt).filter(|_| at.attempt.generation == known.generation);
            let attempt = attempt.ok_or(ServiceErrorKind::UnknownAttempt)?;
            attempt.live.clone().ok_or_else(|| ServiceErrorKind::AlreadySealed.into())
        })
    }

    /// A store's refusal, seen with what the registry knows: a winner, a higher attempt, an expiry.
    pub(super) fn refine(&self, live: &LiveAttempt, error: ServiceError) -> ServiceError {
        let key = &live.key;
        self.refine_at(&live.job, &live.dataset, key.partition.partition, key.attempt, error)
    }

    /// As [`Self::refine`], for an attempt that may not be live.
    pub(super) fn refine_at(
        &self,
        job: &Job,
        dataset: &Dataset,
        partition: PartitionId,
        attempt: AttemptId,
        error: ServiceError,
    ) -> ServiceError {
        use ServiceErrorKind as K;
        let is_end =
            matches!(error.kind(), K::UnknownAttempt | K::Aborted | K::Released | K::Fenced { .. } | K::NotSealed | K::AlreadySealed);
        if !is_end {
            return error;
        }
        let known = job.check_live().and_then(|()| dataset.check_live()).err();
        let known = known.or_else(|| dataset.partitions.read().get(&partition.get())?.refusal(dataset, attempt));
        known.unwrap_or(error)
    }
}

/// Looks at a partition under the lock; one without an entry is seen as what it would be.
pub(super) fn peek<T>(dataset: &Dataset, partition: PartitionId, look: impl FnOnce(&Partition) -> ServiceResult<T>) -> ServiceResult<T> {
    let partitions = dataset.partitions.read();
    match partitions.get(&partition.get()) {
        Some(known) => look(known),
        None => look(&dataset.untouched()),
    }
}

/// Puts an attempt that is not sealed into an end state. Answers whether this call did.
pub(super) fn end_attempt(dataset: &Dataset, partition: PartitionId, id: AttemptId, state: AttemptState) -> bool {
    let mut partitions = dataset.partitions.write();
    let Some(known) = partitions.get_mut(&partition.get()).filter(|known| known.generation == id.generation) else { return false };
    match known.attempt_mut(id.attempt) {
        Some(attempt) if matches!(attempt.state, AttemptState::Open | AttemptState::Prepared) => {
            attempt.state = state;
            attempt.live = None;
            true
        }
        Some(_) | None => false,
    }
}

type Registered = (Arc<LiveAttempt>, bool, Vec<AttemptId>);

/// Enters an opened attempt. Answers the attempts that it fences. Errors: what has happened since.
fn register(
    job: &Arc<Job>,
    dataset: &Arc<Dataset>,
    partition: PartitionId,
    wanted: AttemptId,
    starts: &[(SubpartitionIndex, Offset)],
    n_open: &Arc<AtomicUsize>,
) -> ServiceResult<Registered> {
    let mut partitions = dataset.partitions.write();
    let known = partitions.entry(partition.get()).or_insert_with(|| dataset.untouched());
    match known.opening(dataset, wanted)? {
        Opening::Repeat => {
            let live = known.attempt(wanted.attempt).and_then(|attempt| attempt.live.clone());
            return live.map(|live| (live, false, Vec::new())).ok_or_else(|| ServiceErrorKind::AlreadySealed.into());
        }
        Opening::Raise => return Err(ServiceErrorKind::Internal.into()),
        Opening::Fresh => {}
    }
    let mut fenced = Vec::new();
    if dataset.is_pipelined() {
        let generation = known.generation;
        for lower in &mut known.attempts {
            if matches!(lower.state, AttemptState::Open | AttemptState::Prepared) {
                lower.state = AttemptState::Fenced;
                lower.live = None;
                fenced.push(AttemptId::new(generation, lower.number));
            }
        }
    }
    let counted = Counted::new(n_open);
    let live = LiveAttempt::new(dataset.attempt_key(partition, wanted), job.clone(), dataset.clone(), starts.to_vec(), counted);
    known.attempts.push(Attempt { number: wanted.attempt, state: AttemptState::Open, bytes: 0, live: Some(live.clone()) });
    known.by = known.by.max(wanted.attempt);
    Ok((live, true, fenced))
}

/// Start offsets in order. Errors: `BadRequest`, `UnknownPartition` for a subpartition outside.
fn checked_starts(dataset: &Dataset, mut starts: Vec<(SubpartitionIndex, Offset)>) -> ServiceResult<Vec<(SubpartitionIndex, Offset)>> {
    starts.retain(|(_, offset)| *offset > Offset::ZERO);
    if starts.is_empty() {
        return Ok(starts);
    }
    if !dataset.is_pipelined() {
        return Err(ServiceError::bad_request("only attempts of pipelined datasets start at other offsets than 0"));
    }
    starts.sort_unstable_by_key(|(index, _)| *index);
    if starts.array_windows::<2>().any(|[one, two]| one.0 == two.0) {
        return Err(ServiceError::bad_request("a subpartition is named twice"));
    }
    let is_outside = starts.last().is_some_and(|(index, _)| index.get() >= dataset.spec.stored_subpartitions());
    if is_outside { Err(ServiceErrorKind::UnknownPartition.into()) } else { Ok(starts) }
}

impl LiveAttempt {
    /// Makes a new frame stream the newest; answers its number.
    pub(super) fn next_stream(&self) -> u64 {
        self.stream.fetch_add(1, Ordering::AcqRel).saturating_add(1)
    }

    /// Errors: `Fenced` by a newer frame stream.
    pub(super) fn check_stream(&self, number: u64) -> ServiceResult<()> {
        if self.stream.load(Ordering::Acquire) == number {
            return Ok(());
        }
        Err(ServiceErrorKind::Fenced { by: FencedBy::FrameStream }.into())
    }
}

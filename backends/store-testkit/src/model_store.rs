//! The model behind the trait: the store that the suite itself is checked with.
//!
//! Everything lives in memory, under one lock. [`ModelProfile`] picks what it stands for; one that
//! "survives" keeps its sealed attempts in [`ModelStore::reopened`].

use crate::model::{Answer, Model, Rules};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use store_api::clock::within;
use store_api::store::fetch_in_order;
use store_api::{
    AcknowledgeRequest, AppendAck, AppendRequest, AttemptKey, AttemptStat, AttemptState, AttemptTails, BudgetError, ByteBudget,
    Capabilities, CheckpointRequest, ClassAchieved, DatasetKind, DatasetSpec, Durability, FetchEvent, FloorReport, HeldBytes, JobId,
    JobIncarnation, Offset, OpenRequest, Operation, PartitionKey, PartitionStore, Permit, PrepareRequest, ReadMode, ReadRequest,
    ReadStream, RecoveryReport, ReleaseReport, ReleaseScope, Retention, Scope, SealManifest, SealOutcome, SharedClock, StoreClass,
    StoreError, StoreErrorKind, SubpartitionBounds, SubpartitionIndex, SyncLevel,
};
use tokio::sync::watch;

/// Largest piece of a read, in bytes.
const READ_LENGTH: usize = 64 * 1024;

/// What a model store stands for.
#[derive(Debug, Clone)]
pub struct ModelProfile {
    /// What it declares.
    pub capabilities: Capabilities,
    /// Whether `publish` may lose.
    pub arbitrates: bool,
}

impl ModelProfile {
    fn of(class: StoreClass, durability: Durability, scope: Scope) -> Self {
        let class = ClassAchieved { class, durability, sync: SyncLevel::None, scope };
        let capabilities =
            Capabilities { class, reads_open: false, retentions: Vec::new(), max_chunk_bytes: 8 << 20, max_subpartition_bytes: 1 << 40 };
        Self { capabilities, arbitrates: false }
    }

    /// Volatile, read after the seal, keeps everything.
    #[must_use]
    pub fn sealed_only() -> Self {
        Self::of(StoreClass::Blocking, Durability::Volatile, Scope::NodeLife)
    }

    /// As a store on a disk: sealed attempts survive.
    #[must_use]
    pub fn surviving() -> Self {
        Self::of(StoreClass::Blocking, Durability::Local, Scope::NodeDisk)
    }

    /// As a store on a shared medium that arbitrates.
    #[must_use]
    pub fn arbitrating() -> Self {
        Self { arbitrates: true, ..Self::of(StoreClass::Durable, Durability::Shared, Scope::ObjectStore) }
    }

    /// Reads open attempts and keeps every retention.
    #[must_use]
    pub fn pipelined() -> Self {
        let mut profile = Self::of(StoreClass::Pipelined, Durability::Volatile, Scope::NodeLife);
        profile.capabilities.reads_open = true;
        profile.capabilities.retentions = vec![Retention::UntilAcknowledged, Retention::BestEffort, Retention::SinceCheckpoint];
        profile
    }
}

#[derive(Debug)]
struct Held {
    model: Model,
    permits: BTreeMap<AttemptKey, Permit>,
    report: RecoveryReport,
    is_closed: bool,
}

/// A store that is the model. Cloning gives another handle.
#[derive(Debug, Clone)]
pub struct ModelStore {
    profile: ModelProfile,
    budget: ByteBudget,
    clock: SharedClock,
    held: Arc<Mutex<Held>>,
    changes: Arc<watch::Sender<u64>>,
}

fn refuse(operation: Operation, subject: &impl Display) -> impl Fn(StoreErrorKind) -> StoreError {
    move |kind| StoreError::new(kind, operation, subject)
}

impl ModelStore {
    /// An empty store that lends at most `budget_bytes`.
    #[must_use]
    pub fn new(profile: ModelProfile, budget_bytes: u64, clock: SharedClock) -> Arc<Self> {
        let capabilities = &profile.capabilities;
        let rules = Rules { arbitrates: profile.arbitrates, max_chunk_bytes: capabilities.max_chunk_bytes, class: capabilities.class };
        Self::of(profile, Model::new(rules), RecoveryReport::default(), ByteBudget::new(budget_bytes, clock.clone()), clock)
    }

    fn of(profile: ModelProfile, model: Model, report: RecoveryReport, budget: ByteBudget, clock: SharedClock) -> Arc<Self> {
        let held = Held { model, permits: BTreeMap::new(), report, is_closed: false };
        Arc::new(Self { profile, budget, clock, held: Arc::new(Mutex::new(held)), changes: Arc::new(watch::Sender::new(0)) })
    }

    /// A new store with what of this one survives.
    #[must_use]
    pub fn reopened(&self) -> Arc<Self> {
        let mut model = self.held.lock().model.clone();
        let n_dropped = model.reopen();
        let sealed = model.entries().map(|(key, _)| key.clone()).collect::<Vec<_>>();
        let sealed = sealed.iter().filter_map(|key| model.manifest(key).ok()).collect();
        let report = RecoveryReport { sealed, n_dropped, ..RecoveryReport::default() };
        let budget = ByteBudget::new(self.budget.limit_bytes(), self.clock.clone());
        Self::of(self.profile.clone(), model, report, budget, self.clock.clone())
    }

    /// Makes a call on the model, lets permits of ended attempts go, and wakes readers.
    fn call<T>(&self, is_work: bool, call: impl FnOnce(&mut Model) -> Answer<T>) -> Answer<T> {
        let mut held = self.held.lock();
        if held.is_closed && is_work {
            return Err(StoreErrorKind::Closing);
        }
        let answer = call(&mut held.model);
        self.settle(&mut held);
        drop(held);
        self.changes.send_modify(|count| *count += 1);
        answer
    }

    /// Gives memory back that is no longer needed: all of an ended attempt, and what lies below the
    /// floors.
    fn settle(&self, held: &mut Held) {
        let Held { model, permits, .. } = held;
        permits.retain(|attempt, permit| {
            let needed = model.entry(attempt).map_or(0, |entry| if self.charges(entry.spec()) { entry.held_bytes() } else { 0 });
            drop(permit.split(permit.bytes().saturating_sub(needed)));
            permit.bytes() > 0
        });
    }

    /// Whether bytes stay charged after their append; others count as written to a disk.
    const fn charges(&self, spec: &DatasetSpec) -> bool {
        matches!(spec.kind, DatasetKind::Pipelined(Retention::UntilAcknowledged | Retention::BestEffort))
    }

    fn keeps(&self, kind: DatasetKind) -> bool {
        let is_kept = match kind {
            DatasetKind::Pipelined(retention) => self.profile.capabilities.retentions.contains(&retention),
            DatasetKind::Blocking | DatasetKind::Durable => true,
        };
        kind.class() == self.profile.capabilities.class.class && is_kept
    }

    fn check_reserve(&self, attempt: &AttemptKey) -> Answer<Retention> {
        self.call(true, |model| {
            let entry = model.live(attempt)?;
            match (entry.state(), entry.spec().kind) {
                (AttemptState::Open, DatasetKind::Pipelined(retention)) => Ok(retention),
                (AttemptState::Open, _) => Ok(Retention::SinceCheckpoint),
                _ => Err(StoreErrorKind::AlreadySealed),
            }
        })
    }

    /// The next bytes of a tailing read: `Ok(None)` when there are none yet, `Err(None)` at the
    /// sealed end.
    fn next_of_tail(&self, request: &ReadRequest, at: u64) -> Result<Option<Bytes>, Option<StoreErrorKind>> {
        let index = request.subpartition.get();
        let mut held = self.held.lock();
        if held.is_closed {
            return Err(Some(StoreErrorKind::Closing));
        }
        let entry = held.model.live(&request.attempt).map_err(Some)?;
        let most = at.saturating_add(READ_LENGTH as u64);
        let end = request.end.map_or(most, |end| end.get().min(most));
        let bytes = entry.read(index, at, Some(end)).map_err(Some)?;
        let is_at_end = entry.state() == AttemptState::Sealed || request.end.is_some_and(|end| at >= end.get());
        if bytes.is_empty() {
            return if is_at_end { Err(None) } else { Ok(None) };
        }
        entry.mark_sent(index, at + bytes.len() as u64);
        Ok(Some(bytes))
    }

    async fn wait_for_tail(&self, request: &ReadRequest, at: u64, wait: Duration) -> Option<Result<Bytes, StoreError>> {
        let mut changes = self.changes.subscribe();
        let arrived = async {
            loop {
                changes.borrow_and_update();
                match self.next_of_tail(request, at) {
                    Ok(Some(bytes)) => return Some(Ok(bytes)),
                    Ok(None) => {}
                    Err(None) => return None,
                    Err(Some(kind)) => return Some(Err(refuse(Operation::Read, &request.attempt)(kind))),
                }
                if changes.changed().await.is_err() {
                    return None;
                }
            }
        };
        within(self.clock.as_ref(), wait, arrived).await.flatten()
    }

    fn tail(&self, request: ReadRequest, wait: Duration) -> Answer<ReadStream> {
        let start = request.start;
        let end = self.call(true, |model| {
            let entry = model.live(&request.attempt)?;
            entry.read(request.subpartition.get(), start.get(), Some(start.get()))?;
            let tail = entry.read(request.subpartition.get(), start.get(), None)?.len() as u64;
            Ok((entry.state() == AttemptState::Sealed).then(|| Offset::new(start.get() + tail)))
        })?;
        let state = Some((self.clone(), request, start.get()));
        let chunks = stream::unfold(state, move |state| async move {
            let (store, request, at) = state?;
            let next = store.wait_for_tail(&request, at, wait).await?;
            let after = next.as_ref().map_or(None, |bytes| Some((store, request, at + bytes.len() as u64)));
            Some((next, after))
        });
        Ok(ReadStream { start, end, digest: None, chunks: chunks.boxed() })
    }

    fn read_sealed(&self, request: &ReadRequest) -> Answer<ReadStream> {
        let (index, start) = (request.subpartition.get(), request.start.get());
        let (bytes, digest) = self.call(true, |model| {
            let found = model.read(&request.attempt, index, start, request.end.map(Offset::get))?;
            model.live(&request.attempt)?.mark_sent(index, start + found.0.len() as u64);
            Ok(found)
        })?;
        let end = Offset::new(start + bytes.len() as u64);
        let pieces: Vec<_> = (0..bytes.len()).step_by(READ_LENGTH).map(|at| bytes.slice(at..bytes.len().min(at + READ_LENGTH))).collect();
        let chunks = stream::iter(pieces.into_iter().map(Ok)).boxed();
        Ok(ReadStream { start: request.start, end: Some(end), digest: Some(digest), chunks })
    }
}

#[async_trait]
impl PartitionStore for ModelStore {
    fn capabilities(&self) -> &Capabilities {
        &self.profile.capabilities
    }

    fn held(&self, job: &JobId, incarnation: JobIncarnation) -> HeldBytes {
        HeldBytes { memory: self.held.lock().model.held(job, incarnation), ..HeldBytes::default() }
    }

    async fn open(&self, request: OpenRequest) -> Result<AttemptTails, StoreError> {
        let is_kept = self.keeps(request.spec.kind);
        let opened = self.call(true, |model| {
            if !is_kept {
                return Err(StoreErrorKind::Unsupported { reason: "this kind is not kept here" });
            }
            model.open(&request)
        });
        opened.map_err(refuse(Operation::Open, &request.attempt))
    }

    async fn reserve(&self, attempt: &AttemptKey, bytes: u64, patience: Duration) -> Result<Permit, StoreError> {
        let refuse = refuse(Operation::Reserve, attempt);
        let retention = self.check_reserve(attempt).map_err(&refuse)?;
        if retention == Retention::BestEffort && bytes > self.budget.free_bytes() {
            self.call(true, |model| Ok(model.evict_sent(attempt))).map_err(&refuse)?;
        }
        self.budget.reserve(bytes, patience).await.map_err(|error| match error {
            BudgetError::TooLarge { requested, limit } => refuse(StoreErrorKind::TooLarge { requested, limit }),
            BudgetError::Exhausted { retry_after } => refuse(StoreErrorKind::Overloaded { retry_after }),
        })
    }

    async fn append(&self, request: AppendRequest) -> Result<AppendAck, StoreError> {
        let AppendRequest { attempt, pieces, permit } = request;
        let refuse = refuse(Operation::Append, &attempt);
        let mut ack = AppendAck { end: Offset::ZERO, new_bytes: 0 };
        if !self.held.lock().is_closed {
            self.check_reserve(&attempt).map_err(&refuse)?;
            self.held.lock().permits.entry(attempt.clone()).or_default().merge(permit);
        }
        let applied = self.call(true, |model| {
            for piece in &pieces {
                let (end, new_bytes) = model.append(&attempt, piece)?;
                ack = AppendAck { end: Offset::new(end), new_bytes: ack.new_bytes + new_bytes };
            }
            Ok(ack)
        });
        applied.map_err(refuse)
    }

    async fn tails(&self, attempt: &AttemptKey) -> Result<AttemptTails, StoreError> {
        self.call(false, |model| model.tails(attempt)).map_err(refuse(Operation::Tails, attempt))
    }

    async fn bounds(&self, attempt: &AttemptKey, subpartition: SubpartitionIndex) -> Result<SubpartitionBounds, StoreError> {
        self.call(false, |model| model.bounds(attempt, subpartition)).map_err(refuse(Operation::Tails, attempt))
    }

    async fn prepare(&self, request: PrepareRequest) -> Result<Arc<SealManifest>, StoreError> {
        let prepared = self.call(true, |model| model.prepare(&request.attempt, request.expected.as_deref()));
        prepared.map_err(refuse(Operation::Prepare, &request.attempt))
    }

    async fn publish(&self, attempt: &AttemptKey) -> Result<SealOutcome, StoreError> {
        self.call(true, |model| model.publish(attempt)).map_err(refuse(Operation::Publish, attempt))
    }

    async fn abort(&self, attempt: &AttemptKey) -> Result<(), StoreError> {
        self.call(true, |model| model.abort(attempt)).map_err(refuse(Operation::Abort, attempt))
    }

    async fn read(&self, request: ReadRequest) -> Result<ReadStream, StoreError> {
        let attempt = request.attempt.clone();
        let is_sealed = || self.held.lock().model.entry(&attempt).is_none_or(|entry| entry.state() != AttemptState::Open);
        let stream = match request.mode {
            ReadMode::Tail { wait } if self.profile.capabilities.reads_open || !is_sealed() => {
                if self.profile.capabilities.reads_open {
                    self.tail(request, wait)
                } else {
                    Err(StoreErrorKind::NotSealed)
                }
            }
            ReadMode::Tail { .. } | ReadMode::Sealed => self.read_sealed(&request),
        };
        stream.map_err(refuse(Operation::Read, &attempt))
    }

    fn fetch(&self, items: Vec<ReadRequest>) -> BoxStream<'static, FetchEvent> {
        fetch_in_order(Arc::new(self.clone()), items)
    }

    async fn stat(&self, attempt: &AttemptKey) -> Result<AttemptStat, StoreError> {
        self.call(false, |model| model.stat(attempt)).map_err(refuse(Operation::Stat, attempt))
    }

    async fn manifest(&self, attempt: &AttemptKey) -> Result<Arc<SealManifest>, StoreError> {
        self.call(false, |model| model.manifest(attempt)).map_err(refuse(Operation::Stat, attempt))
    }

    async fn locate(
        &self,
        partition: &PartitionKey,
        _spec: &DatasetSpec,
        from_generation: u32,
    ) -> Result<Option<Arc<SealManifest>>, StoreError> {
        Ok(self.held.lock().model.locate(partition, from_generation))
    }

    async fn acknowledge(&self, request: AcknowledgeRequest) -> Result<FloorReport, StoreError> {
        let has_floors = self.profile.capabilities.moves_floors();
        let taken = self.call(true, |model| {
            if has_floors { model.acknowledge(&request) } else { Err(StoreErrorKind::Unsupported { reason: "there are no floors here" }) }
        });
        taken.map_err(refuse(Operation::Acknowledge, &request.attempt))
    }

    async fn complete_checkpoint(&self, request: CheckpointRequest) -> Result<FloorReport, StoreError> {
        let has_floors = self.profile.capabilities.moves_floors();
        let taken = self.call(true, |model| {
            if has_floors {
                model.complete_checkpoint(&request)
            } else {
                Err(StoreErrorKind::Unsupported { reason: "there are no floors here" })
            }
        });
        taken.map_err(refuse(Operation::Checkpoint, &request.attempt))
    }

    async fn release(&self, scope: ReleaseScope) -> Result<ReleaseReport, StoreError> {
        self.call(true, |model| Ok(model.release(&scope))).map_err(refuse(Operation::Release, &"a scope"))
    }

    async fn recover(&self) -> Result<RecoveryReport, StoreError> {
        Ok(std::mem::take(&mut self.held.lock().report))
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.held.lock().is_closed = true;
        self.changes.send_modify(|count| *count += 1);
        Ok(())
    }
}

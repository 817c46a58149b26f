//! The store behind its trait.

use crate::attempt::{Applied, Attempt, Compare, End, NotAborted, Phase};
use crate::catalog::DiskCatalog;
use crate::config::{Config, Environment};
use crate::core::{Core, Unsettled};
use crate::error::unavailable;
use crate::index::{Change, Family};
use crate::layout::extents;
use crate::{keys, recovery};
use async_trait::async_trait;
use futures::stream::BoxStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store_api::{
    AcknowledgeRequest, AppendAck, AppendRequest, AttemptKey, AttemptStat, AttemptTails, BudgetError, ByteBudget, Capabilities,
    CheckpointRequest, DatasetKind, DatasetSpec, FetchEvent, FloorReport, HeldBytes, JobId, JobIncarnation, LossCause, Offset, OffsetRange,
    OpenRequest, Operation, PartitionKey, PartitionStore, Permit, Piece, PrepareRequest, ReadRequest, ReadStream, RecoveryReport,
    ReleaseReport, ReleaseScope, SealManifest, SealOutcome, StoreError, StoreErrorKind, SubpartitionBounds, SubpartitionIndex,
};
use store_file::{DirectoryState, DirectoryStatus};

/// How often a waiting reservation looks whether writing out has to be started again.
const NUDGE: Duration = Duration::from_millis(200);

/// Keeps blocking partitions in local directories. Cheap to share.
#[derive(Debug)]
pub struct DiskStore {
    pub(crate) core: Arc<Core>,
}

/// Counts a waiter for as long as it waits.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::SeqCst);
        Self(counter)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl DiskStore {
    /// Opens the store on its directories, which are made if they are not there, and recovers what
    /// is sealed in them. Blocking: the time grows with the number of sealed partitions, not with
    /// their bytes. Errors: `Format` when a directory was written in another form or belongs to
    /// another store (no byte is changed then); `Unavailable` naming a directory that another
    /// process uses, or when no directory can be used; `DiskFull`.
    pub fn open(config: Config, environment: Environment) -> Result<Arc<Self>, StoreError> {
        Ok(Arc::new(Self { core: Arc::new(recovery::open(config, environment)?) }))
    }

    /// The catalog in the same index. Any number of them are the same catalog.
    #[must_use]
    pub fn catalog(&self) -> DiskCatalog {
        DiskCatalog::new(self.core.clone())
    }

    /// The memory for bytes on their way to disk, of all jobs together.
    #[must_use]
    pub fn budget(&self) -> ByteBudget {
        self.core.budget.clone()
    }

    /// Where the data directories stand. No I/O.
    #[must_use]
    pub fn directories(&self) -> Vec<DirectoryStatus> {
        self.core.media.directories.statuses()
    }

    /// Memory that is reserved for bytes which are not on disk yet. For metrics.
    #[must_use]
    pub fn unwritten_bytes(&self) -> u64 {
        self.core.budget.used_bytes()
    }

    /// Bytes in data files, by number of the directory. No I/O. For metrics.
    #[must_use]
    pub fn file_bytes(&self) -> Vec<u64> {
        self.core.media.sizes.by_directory()
    }

    fn find(&self, key: &AttemptKey, operation: Operation) -> Result<Arc<Attempt>, StoreError> {
        self.core.refuse_closing(operation, key)?;
        self.core.registry.find(key).map_err(|kind| StoreError::new(kind, operation, key))
    }

    /// Why no directory takes bytes now; `None` when one does. Full is not broken.
    async fn room_refusal(&self) -> Option<StoreErrorKind> {
        let is_usable = |status: &DirectoryStatus| status.state == DirectoryState::Usable;
        if self.core.media.directories.statuses().iter().any(is_usable) {
            return None;
        }
        let media = self.core.media.clone();
        let chosen = self.core.media.tasks.run_blocking(move || media.directories.choose(1)).await;
        match chosen {
            Some(Ok(_)) => None,
            Some(Err(error)) => Some(error.write_refusal()),
            None => Some(StoreErrorKind::Closing),
        }
    }

    async fn apply(&self, attempt: &Attempt, piece: &Piece, permit: &mut Permit) -> Result<(u64, u64), StoreError> {
        let limit = self.core.capabilities.max_chunk_bytes;
        if piece.chunk.length() > limit {
            let kind = StoreErrorKind::TooLarge { requested: piece.chunk.length(), limit };
            return Err(attempt.refuse(kind, Operation::Append));
        }
        let mut equal_until = 0;
        loop {
            match attempt.apply(piece, permit, equal_until)? {
                Applied::Done(end, new_bytes) => return Ok((end, new_bytes)),
                Applied::Needs(compare) => {
                    // Held bytes never change, so what was equal once stays equal.
                    equal_until = compare.end;
                    self.compare(attempt, piece, compare).await?;
                }
            }
        }
    }

    /// Compares the part of a piece that is on disk already with what is there.
    async fn compare(&self, attempt: &Attempt, piece: &Piece, compare: Compare) -> Result<(), StoreError> {
        let refuse = |kind| attempt.refuse(kind, Operation::Append);
        let start = piece.start.unwrap_or_default();
        let lost = || refuse(StoreErrorKind::Lost { cause: LossCause::Corruption });
        let range = OffsetRange::new(start, Offset::new(compare.end)).ok_or_else(|| refuse(StoreErrorKind::Internal))?;
        let reads = extents(&compare.regions, &compare.crcs, range, self.core.config.fetch_bytes).ok_or_else(lost)?;
        let mut rest = piece.chunk.bytes().clone();
        for extent in reads {
            let file = compare.files.get(usize::from(extent.file)).copied();
            let held = self.core.media.read_extent(attempt, file, extent).await?;
            let repeated = rest.split_to(held.len().min(rest.len()));
            if repeated != held {
                let tails = attempt.tails(Operation::Append)?.tails;
                let tail = tails.iter().find(|(index, _)| *index == piece.subpartition).map_or(Offset::ZERO, |(_, tail)| *tail);
                return Err(refuse(StoreErrorKind::ContentMismatch { expected: tail }));
            }
        }
        Ok(())
    }
}

impl Core {
    /// Ends attempts in a scope. To be run to its end.
    async fn release(self: Arc<Self>, scope: ReleaseScope) -> Result<ReleaseReport, StoreError> {
        let end = match &scope {
            ReleaseScope::GenerationsBelow { by, .. } => End::Fenced(*by),
            _ => End::Released,
        };
        let mut report = ReleaseReport::default();
        let (mut files, mut has_rows) = (Vec::new(), false);
        for attempt in self.registry.close_scope(&scope) {
            let remains = attempt.end(end);
            report.n_attempts += u64::from(remains.was_alive);
            report.bytes = report.bytes.saturating_add(remains.bytes);
            has_rows |= remains.has_row;
            files.extend(remains.files);
        }
        let mut work = std::mem::take(&mut *self.unsettled.lock());
        let changes = if has_rows { vec![rows_of(&scope)] } else { Vec::new() };
        work.push(Unsettled { changes, files });
        let changes: Vec<Change> = work.iter().flat_map(|one| one.changes.iter().cloned()).collect();
        if !changes.is_empty()
            && let Err(error) = self.change(changes).await
        {
            self.unsettled.lock().extend(work);
            return Err(error.at(Operation::Release, format_args!("{scope:?}")));
        }
        self.media.remove(work.into_iter().flat_map(|one| one.files).collect()).await;
        Ok(report)
    }

    /// Ends an unsealed attempt. To be run to its end.
    async fn abort(self: Arc<Self>, attempt: Arc<Attempt>) -> Result<(), StoreError> {
        let remains = loop {
            match attempt.abort() {
                Ok(remains) => break remains,
                Err(NotAborted::Sealed) => return Err(attempt.refuse(StoreErrorKind::AlreadySealed, Operation::Abort)),
                Err(NotAborted::Publishing) => drop(attempt.turn.lock().await),
            }
        };
        self.clear(&attempt, remains).await.map_err(|error| error.at(Operation::Abort, &attempt.key))
    }
}

/// The rows of a scope.
fn rows_of(scope: &ReleaseScope) -> Change {
    let range = |prefix: Vec<u8>| {
        let end = keys::after(&prefix);
        Change::DeleteRange(Family::Seals, prefix, end)
    };
    match scope {
        ReleaseScope::Job { job, incarnation } => range(keys::of_job(job, *incarnation)),
        ReleaseScope::Dataset(key) => range(keys::of_dataset(key)),
        ReleaseScope::Partition(key) => range(keys::of_partition(key)),
        ReleaseScope::Attempt(key) => Change::Delete(Family::Seals, keys::of_attempt(key)),
        ReleaseScope::GenerationsBelow { partition, by } => {
            Change::DeleteRange(Family::Seals, keys::of_partition(partition), keys::of_generation(partition, by.generation))
        }
    }
}

fn ended(operation: Operation, subject: impl std::fmt::Display) -> StoreError {
    unavailable(operation, subject, "the work ended without a result")
}

#[async_trait]
impl PartitionStore for DiskStore {
    fn capabilities(&self) -> &Capabilities {
        &self.core.capabilities
    }

    fn held(&self, job: &JobId, incarnation: JobIncarnation) -> HeldBytes {
        self.core.registry.held(job, incarnation)
    }

    async fn open(&self, request: OpenRequest) -> Result<AttemptTails, StoreError> {
        let key = &request.attempt;
        let refuse = |kind| StoreError::new(kind, Operation::Open, key);
        self.core.refuse_closing(Operation::Open, key)?;
        if request.spec.kind != DatasetKind::Blocking {
            return Err(refuse(StoreErrorKind::Unsupported { reason: "this store keeps blocking datasets only" }));
        }
        if request.starts.iter().any(|(_, start)| *start > Offset::ZERO) {
            return Err(refuse(StoreErrorKind::Unsupported { reason: "blocking attempts start at 0" }));
        }
        let n_subpartitions = request.spec.stored_subpartitions();
        let attempt =
            self.core.registry.find_or_add(key, |account| Attempt::open(key.clone(), n_subpartitions, account)).map_err(refuse)?;
        attempt.tails(Operation::Open)
    }

    async fn reserve(&self, attempt: &AttemptKey, bytes: u64, patience: Duration) -> Result<Permit, StoreError> {
        let found = self.find(attempt, Operation::Reserve)?;
        let refuse = |kind| StoreError::new(kind, Operation::Reserve, attempt);
        if let Some(kind) = found.append_refusal() {
            return Err(refuse(kind));
        }
        let core = self.core.clone();
        let budget_error = |error| {
            refuse(match error {
                BudgetError::TooLarge { requested, limit } => StoreErrorKind::TooLarge { requested, limit },
                // Nothing becomes free because nothing can be written out.
                BudgetError::Exhausted { .. } if core.is_disk_full.load(Ordering::SeqCst) => StoreErrorKind::DiskFull,
                BudgetError::Exhausted { retry_after } => StoreErrorKind::Overloaded { retry_after },
            })
        };
        let account = found.account.clone();
        drop(found);
        if let Some(kind) = self.room_refusal().await {
            return Err(refuse(kind));
        }
        match account.budget.try_reserve(bytes) {
            Ok(permit) => {
                self.core.relieve(&account);
                return Ok(permit);
            }
            Err(error @ BudgetError::TooLarge { .. }) => return Err(budget_error(error)),
            Err(BudgetError::Exhausted { .. }) => {}
        }
        let _waiting = Waiting::new(&self.core.n_waiting);
        let granted = account.budget.reserve(bytes, patience);
        tokio::pin!(granted);
        loop {
            self.core.relieve(&account);
            tokio::select! {
                biased;
                result = &mut granted => return result.map_err(budget_error),
                () = self.core.environment.clock.sleep(NUDGE) => {}
            }
            self.core.refuse_closing(Operation::Reserve, attempt)?;
        }
    }

    async fn append(&self, request: AppendRequest) -> Result<AppendAck, StoreError> {
        let attempt = self.find(&request.attempt, Operation::Append)?;
        let mut permit = request.permit;
        let mut ack = AppendAck { end: Offset::ZERO, new_bytes: 0 };
        if let Some(kind) = attempt.append_refusal() {
            return Err(attempt.refuse(kind, Operation::Append));
        }
        for piece in request.pieces {
            let (end, new_bytes) = self.apply(&attempt, &piece, &mut permit).await?;
            ack = AppendAck { end: Offset::new(end), new_bytes: ack.new_bytes.saturating_add(new_bytes) };
        }
        drop(permit);
        self.core.relieve(&attempt.account);
        // An append into memory waits for nothing; a writer in a loop must not keep others out.
        tokio::task::coop::consume_budget().await;
        Ok(ack)
    }

    async fn tails(&self, attempt: &AttemptKey) -> Result<AttemptTails, StoreError> {
        self.find(attempt, Operation::Tails)?.tails(Operation::Tails)
    }

    async fn bounds(&self, attempt: &AttemptKey, subpartition: SubpartitionIndex) -> Result<SubpartitionBounds, StoreError> {
        self.find(attempt, Operation::Tails)?.bounds(subpartition, Operation::Tails)
    }

    async fn prepare(&self, request: PrepareRequest) -> Result<Arc<SealManifest>, StoreError> {
        let attempt = self.find(&request.attempt, Operation::Prepare)?;
        let work = self.core.clone().prepare(attempt, request.expected);
        self.core.to_end(work).await.unwrap_or_else(|| Err(ended(Operation::Prepare, &request.attempt)))
    }

    async fn publish(&self, attempt: &AttemptKey) -> Result<SealOutcome, StoreError> {
        let found = self.find(attempt, Operation::Publish)?;
        let work = self.core.clone().publish(found);
        self.core.to_end(work).await.unwrap_or_else(|| Err(ended(Operation::Publish, attempt)))
    }

    async fn abort(&self, attempt: &AttemptKey) -> Result<(), StoreError> {
        self.core.refuse_closing(Operation::Abort, attempt)?;
        // What is not known, or lies in a scope that has ended, has nothing to abort.
        let Ok(found) = self.core.registry.find(attempt) else { return Ok(()) };
        let work = self.core.clone().abort(found);
        self.core.to_end(work).await.unwrap_or_else(|| Err(ended(Operation::Abort, attempt)))
    }

    async fn read(&self, request: ReadRequest) -> Result<ReadStream, StoreError> {
        let plan = self.core.plan(&request)?;
        Ok(self.core.stream(plan))
    }

    fn fetch(&self, items: Vec<ReadRequest>) -> BoxStream<'static, FetchEvent> {
        self.core.batch(items)
    }

    async fn stat(&self, attempt: &AttemptKey) -> Result<AttemptStat, StoreError> {
        let found = self.find(attempt, Operation::Stat).map_err(|error| match error.kind() {
            // Below a fence but never seen here, or in a dataset that is gone: nothing to tell of it.
            StoreErrorKind::Fenced { .. } | StoreErrorKind::Released | StoreErrorKind::Aborted => {
                StoreError::new(StoreErrorKind::NotFound, Operation::Stat, attempt)
            }
            _ => error,
        });
        let (state, total_bytes) = found?.stat();
        Ok(AttemptStat { state, total_bytes, floors: Vec::new(), sent: Vec::new() })
    }

    async fn manifest(&self, attempt: &AttemptKey) -> Result<Arc<SealManifest>, StoreError> {
        let found = self.find(attempt, Operation::Stat)?;
        let inner = found.inner.lock();
        let kind = match &inner.phase {
            Phase::Sealed(manifest) => return Ok(manifest.clone()),
            Phase::Gone(_, cause) => StoreErrorKind::Lost { cause: *cause },
            Phase::Ended(end) => end.kind(),
            Phase::Open | Phase::Preparing | Phase::Prepared(_) | Phase::Publishing(_) => StoreErrorKind::NotSealed,
        };
        Err(found.refuse(kind, Operation::Stat))
    }

    async fn locate(
        &self,
        partition: &PartitionKey,
        _spec: &DatasetSpec,
        from_generation: u32,
    ) -> Result<Option<Arc<SealManifest>>, StoreError> {
        self.core.refuse_closing(Operation::Stat, partition)?;
        let found = self.core.registry.locate(partition, from_generation);
        found.map_err(|kind| StoreError::new(kind, Operation::Stat, partition))
    }

    async fn acknowledge(&self, request: AcknowledgeRequest) -> Result<FloorReport, StoreError> {
        let kind = StoreErrorKind::Unsupported { reason: "blocking partitions have no floors" };
        Err(StoreError::new(kind, Operation::Acknowledge, &request.attempt))
    }

    async fn complete_checkpoint(&self, request: CheckpointRequest) -> Result<FloorReport, StoreError> {
        let kind = StoreErrorKind::Unsupported { reason: "blocking partitions have no floors" };
        Err(StoreError::new(kind, Operation::Checkpoint, &request.attempt))
    }

    async fn release(&self, scope: ReleaseScope) -> Result<ReleaseReport, StoreError> {
        self.core.refuse_closing(Operation::Release, format_args!("{scope:?}"))?;
        let work = self.core.clone().release(scope.clone());
        self.core.to_end(work).await.unwrap_or_else(|| Err(ended(Operation::Release, format_args!("{scope:?}"))))
    }

    async fn recover(&self) -> Result<RecoveryReport, StoreError> {
        Ok(self.core.recovery.lock().take().unwrap_or_default())
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.core.media.is_closing.store(true, Ordering::SeqCst);
        let index = self.core.index.clone();
        let closed = self.core.media.tasks.run_blocking(move || index.close()).await;
        self.core.locks.lock().clear();
        match closed {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(unavailable(Operation::Close, "the disk store", error.message)),
            None => Err(ended(Operation::Close, "the disk store")),
        }
    }
}

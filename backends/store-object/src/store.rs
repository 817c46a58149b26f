//! [`ObjectStore`]: the store behind the trait.

use crate::attempt::{Attempt, Cutting};
use crate::bucket::{Bucket, Connection, Limits, Parts};
use crate::cache::ManifestCache;
use crate::config::{ConditionalPut, Config};
use crate::connect::connect;
use crate::error::{BucketError, Fault, Secrets};
use crate::inner::Inner;
use crate::layout::Layout;
use crate::lookup::unknown;
use crate::probe::{Probed, probe};
use crate::registry::Registry;
use crate::sweep::{SweepReport, SweepRequest};
use async_trait::async_trait;
use futures::stream::BoxStream;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use store_api::store::fetch_in_order;
use store_api::{
    AcknowledgeRequest, AppendAck, AppendRequest, AttemptKey, AttemptStat, AttemptState, AttemptTails, BudgetError, ByteBudget,
    Capabilities, CheckpointRequest, ClassAchieved, DatasetKind, DatasetSpec, Durability, FetchEvent, FloorReport, HeldBytes, JobId,
    JobIncarnation, NodeId, NodeLife, Offset, OpenRequest, Operation, PartitionKey, PartitionStore, Permit, PrepareRequest, ReadBudget,
    ReadRequest, ReadStream, RecoveryReport, ReleaseReport, ReleaseScope, Scope, SealManifest, SealOutcome, SharedClock, SharedMedium,
    StoreClass, StoreError, StoreErrorKind, SubpartitionBounds, SubpartitionIndex, Swept, SyncLevel, TaskGroup,
};

/// Largest chunk that is taken, in bytes.
const MAX_CHUNK_BYTES: u64 = 16 * 1024 * 1024;
/// Longest wait at closing for what is being sent.
const CLOSE_PATIENCE: Duration = Duration::from_secs(30);
/// Longest wait of a reader for memory, when none is shared with other stores.
const READ_PATIENCE: Duration = Duration::from_secs(30);

/// What a store is given by its surroundings.
#[derive(Debug, Clone)]
pub struct Environment {
    /// Time.
    pub clock: SharedClock,
    /// Background work. The store ends its own at [`PartitionStore::close`] and leaves the group to
    /// its owner.
    pub tasks: TaskGroup,
    /// This node.
    pub node: NodeId,
    /// This life of it: never used before.
    pub life: NodeLife,
}

/// Durable partitions in an object store. See the crate.
pub struct ObjectStore {
    inner: Arc<Inner>,
}

impl fmt::Debug for ObjectStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectStore")
            .field("capabilities", &self.inner.capabilities)
            .field("probed", &self.inner.probed)
            .finish_non_exhaustive()
    }
}

/// Capabilities of a store at this place.
const fn capabilities(scope: Scope) -> Capabilities {
    let class = ClassAchieved { class: StoreClass::Durable, durability: Durability::Shared, sync: SyncLevel::Full, scope };
    Capabilities {
        class,
        reads_open: false,
        retentions: Vec::new(),
        max_chunk_bytes: MAX_CHUNK_BYTES,
        max_subpartition_bytes: u64::MAX >> 1,
    }
}

fn refused_config(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    let reason = "the settings of the object store cannot be used";
    StoreError::new(StoreErrorKind::Unsupported { reason }, Operation::Recover, "object store").with_source(error)
}

impl ObjectStore {
    /// Connects to the configured object store and probes it. Installs the process's TLS provider
    /// if none is installed.
    ///
    /// Errors: `Unsupported` when the settings cannot be used or the store's conditional puts do
    /// not work and [`ConditionalPut::Require`] is set; `Unavailable` when it does not answer.
    pub async fn open(config: Config, environment: Environment) -> Result<Arc<Self>, StoreError> {
        config.validate().map_err(refused_config)?;
        let secrets = Secrets::new(config.secrets());
        let connection = connect(&config).map_err(|error| refused_config(BucketError::sort(&error, &secrets)))?;
        Self::open_connection(config, connection, environment).await
    }

    /// The memory for bytes on their way to the object store.
    #[must_use]
    pub fn budget(&self) -> ByteBudget {
        self.inner.budget.clone()
    }

    /// Opens a store on a client that the caller has made; `parts` is the same client where it can
    /// upload in parts. The `store` of the settings is not used; the scope achieved is `scope`.
    ///
    /// Errors: as [`ObjectStore::open`].
    pub async fn open_with(
        raw: Arc<dyn object_store::ObjectStore>,
        parts: Option<Parts>,
        scope: Scope,
        config: Config,
        environment: Environment,
    ) -> Result<Arc<Self>, StoreError> {
        config.validate().map_err(refused_config)?;
        Self::open_connection(config, Connection { raw, parts, single: None, scope }, environment).await
    }

    async fn open_connection(config: Config, connection: Connection, environment: Environment) -> Result<Arc<Self>, StoreError> {
        let Environment { clock, tasks, node, life } = environment;
        let scope = connection.scope;
        let limits = Limits { answer: config.answer_limit(), slowest_transfer: config.slowest_transfer, tries: config.tries };
        let bucket = Bucket::new(connection, clock.clone(), Secrets::new(config.secrets()), limits);
        let layout = Layout::new(&config.prefix);
        let probed =
            probe(&bucket, &layout.probe(&node, life)).await.map_err(|error| unknown(error, Operation::Recover, "object store"))?;
        match (probed.refusal(), config.conditional_put) {
            (None, _) => {}
            (Some(reason), ConditionalPut::Require) => {
                return Err(StoreError::new(StoreErrorKind::Unsupported { reason }, Operation::Recover, "object store"));
            }
            (Some(reason), ConditionalPut::Arbitrated) => tracing::warn!(reason, "seals are arbitrated by the coordinator alone"),
        }
        let cutting = Cutting {
            // Validated: below 4 GiB.
            block_bytes: u32::try_from(config.block_bytes).unwrap_or(u32::MAX),
            part_bytes: config.part_bytes,
            max_part_bytes: config.max_part_bytes,
            has_parts: bucket.has_parts(),
        };
        let inner = Inner {
            budget: ByteBudget::new(config.memory_bytes, clock.clone()),
            reads: config.reads.clone().unwrap_or_else(|| ReadBudget::new(config.read_memory_bytes, READ_PATIENCE, clock.clone())),
            cache: ManifestCache::new(config.manifest_cache_bytes, config.manifest_age()),
            capabilities: capabilities(scope),
            registry: Registry::default(),
            numbers: AtomicU64::new(0),
            background: tokio::sync::watch::Sender::new(0),
            is_closing: AtomicBool::new(false),
            is_recovered: AtomicBool::new(false),
            config,
            bucket,
            layout,
            clock,
            tasks,
            node,
            life,
            probed,
            cutting,
        };
        Ok(Arc::new(Self { inner: Arc::new(inner) }))
    }

    /// What the probe at opening found.
    #[must_use]
    pub fn probed(&self) -> Probed {
        self.inner.probed
    }

    /// A catalog in the same object store, under its own prefix.
    #[must_use]
    pub fn catalog(&self) -> crate::ObjectCatalog {
        crate::ObjectCatalog::new(self.inner.clone())
    }

    /// Memory that is reserved for bytes which the object store has not accepted. For metrics.
    #[must_use]
    pub fn unsent_bytes(&self) -> u64 {
        self.inner.budget.used_bytes()
    }

    /// Takes away what dead jobs and former lives of this node left behind, or counts it. Idempotent.
    /// Errors: `Unavailable`; what was not reached stays.
    pub async fn sweep(&self, request: &SweepRequest) -> Result<SweepReport, StoreError> {
        self.inner.check_open(Operation::Release, "sweep")?;
        self.inner.sweep(request).await
    }

    /// Incarnations of jobs that have anything in the object store, by one listing per job: for the
    /// caller to compare with the jobs that it knows. Errors: `Unavailable`.
    pub async fn jobs(&self) -> Result<Vec<(JobId, JobIncarnation)>, StoreError> {
        self.inner.jobs().await
    }

    /// The attempt, for calls that must not wait for the object store.
    fn known(&self, key: &AttemptKey, operation: Operation) -> Result<Arc<Attempt>, StoreError> {
        self.inner.registry.find(key).ok_or_else(|| {
            let kind = self.inner.registry.unknown(key).unwrap_or(StoreErrorKind::NotFound);
            StoreError::new(kind, operation, key)
        })
    }

    fn check_spec(request: &OpenRequest) -> Result<(), StoreErrorKind> {
        if request.spec.kind != DatasetKind::Durable {
            return Err(StoreErrorKind::Unsupported { reason: "an object store keeps durable datasets only" });
        }
        if !request.starts.is_empty() {
            return Err(StoreErrorKind::Unsupported { reason: "durable attempts start at offset 0" });
        }
        Ok(())
    }

    /// An attempt that is opened may have been sealed by another life or node, or be fenced.
    async fn open_new(&self, request: &OpenRequest) -> Result<Arc<Attempt>, StoreError> {
        let key = &request.attempt;
        match self.inner.adopt(key, Operation::Open).await {
            Ok(attempt) => return Ok(attempt),
            Err(error) if *error.kind() == StoreErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let path = self.inner.seal_path(key, &request.spec);
        let attempt = Attempt::open(key.clone(), path, request.spec.stored_subpartitions());
        self.inner.registry.add(attempt).map_err(|kind| StoreError::new(kind, Operation::Open, key))
    }
}

#[async_trait]
impl SharedMedium for ObjectStore {
    async fn jobs(&self) -> Result<Vec<(JobId, JobIncarnation)>, StoreError> {
        self.inner.jobs().await
    }

    async fn sweep(&self, dead: &[(JobId, JobIncarnation)]) -> Result<Swept, StoreError> {
        self.inner.check_open(Operation::Release, "sweep")?;
        let report = self.inner.sweep(&SweepRequest { dead: dead.to_vec(), is_dry_run: false }).await?;
        Ok(Swept { n_objects: report.n_objects, bytes: report.bytes, n_uploads: report.n_uploads })
    }
}

#[async_trait]
impl PartitionStore for ObjectStore {
    fn capabilities(&self) -> &Capabilities {
        &self.inner.capabilities
    }

    fn held(&self, job: &JobId, incarnation: JobIncarnation) -> HeldBytes {
        self.inner.registry.held(job, incarnation)
    }

    async fn open(&self, request: OpenRequest) -> Result<AttemptTails, StoreError> {
        let fail = |kind| StoreError::new(kind, Operation::Open, &request.attempt);
        self.inner.check_open(Operation::Open, &request.attempt)?;
        Self::check_spec(&request).map_err(fail)?;
        let attempt = match self.inner.registry.find(&request.attempt) {
            Some(attempt) => attempt,
            None => self.open_new(&request).await?,
        };
        let core = attempt.lock();
        match core.refusal() {
            Some(kind) => Err(fail(kind)),
            None => Ok(core.tails()),
        }
    }

    async fn reserve(&self, attempt: &AttemptKey, bytes: u64, patience: Duration) -> Result<Permit, StoreError> {
        let fail = |kind| StoreError::new(kind, Operation::Reserve, attempt);
        self.inner.check_open(Operation::Reserve, attempt)?;
        if let Some(kind) = self.known(attempt, Operation::Reserve)?.lock().write_refusal() {
            return Err(fail(kind));
        }
        if let Ok(permit) = self.inner.budget.try_reserve(bytes) {
            return Ok(permit);
        }
        self.inner.relieve(bytes);
        self.inner.budget.reserve(bytes, patience).await.map_err(|error| match error {
            BudgetError::TooLarge { requested, limit } => fail(StoreErrorKind::TooLarge { requested, limit }),
            BudgetError::Exhausted { retry_after } => fail(StoreErrorKind::Overloaded { retry_after }),
        })
    }

    async fn append(&self, request: AppendRequest) -> Result<AppendAck, StoreError> {
        let AppendRequest { attempt: key, pieces, mut permit } = request;
        let fail = |kind| StoreError::new(kind, Operation::Append, &key);
        self.inner.check_open(Operation::Append, &key)?;
        let attempt = self.known(&key, Operation::Append)?;
        let mut ack = AppendAck { end: Offset::ZERO, new_bytes: 0 };
        {
            let mut core = attempt.lock();
            if let Some(kind) = core.write_refusal() {
                return Err(fail(kind));
            }
            let too_large = pieces.iter().find(|piece| piece.chunk.length() > MAX_CHUNK_BYTES);
            if let Some(piece) = too_large {
                return Err(fail(StoreErrorKind::TooLarge { requested: piece.chunk.length(), limit: MAX_CHUNK_BYTES }));
            }
            for piece in &pieces {
                let (end, new_bytes) = core.take(attempt.n_stored, piece, &mut permit).map_err(fail)?;
                ack = AppendAck { end, new_bytes: ack.new_bytes.saturating_add(new_bytes) };
            }
            if !core.is_full(&self.inner.cutting) {
                return Ok(ack);
            }
            core.cut(&self.inner.cutting, false, || self.inner.new_content(&key));
        }
        self.inner.send(&attempt);
        Ok(ack)
    }

    async fn tails(&self, attempt: &AttemptKey) -> Result<AttemptTails, StoreError> {
        let found = self.inner.adopt(attempt, Operation::Tails).await?;
        let core = found.lock();
        match core.refusal() {
            Some(kind) => Err(StoreError::new(kind, Operation::Tails, attempt)),
            None => Ok(core.tails()),
        }
    }

    async fn bounds(&self, attempt: &AttemptKey, subpartition: SubpartitionIndex) -> Result<SubpartitionBounds, StoreError> {
        let fail = |kind| StoreError::new(kind, Operation::Tails, attempt);
        let found = self.inner.adopt(attempt, Operation::Tails).await?;
        let core = found.lock();
        if let Some(kind) = core.refusal() {
            return Err(fail(kind));
        }
        if subpartition.get() >= found.n_stored {
            return Err(fail(StoreErrorKind::NoSuchSubpartition { count: found.n_stored }));
        }
        Ok(core.bounds(subpartition))
    }

    async fn prepare(&self, request: PrepareRequest) -> Result<Arc<SealManifest>, StoreError> {
        self.inner.check_open(Operation::Prepare, &request.attempt)?;
        let attempt = self.inner.adopt(&request.attempt, Operation::Prepare).await?;
        self.inner.prepare(&attempt, request.expected.as_deref()).await
    }

    async fn publish(&self, attempt: &AttemptKey) -> Result<SealOutcome, StoreError> {
        self.inner.check_open(Operation::Publish, attempt)?;
        let found = self.inner.adopt(attempt, Operation::Publish).await?;
        self.inner.publish(&found).await
    }

    async fn abort(&self, attempt: &AttemptKey) -> Result<(), StoreError> {
        self.inner.check_open(Operation::Abort, attempt)?;
        let Some(found) = self.inner.registry.find(attempt) else { return Ok(()) };
        self.inner.abort(&found).await
    }

    async fn read(&self, request: ReadRequest) -> Result<ReadStream, StoreError> {
        self.inner.read(request).await
    }

    fn fetch(&self, items: Vec<ReadRequest>) -> BoxStream<'static, FetchEvent> {
        fetch_in_order(Arc::new(Self { inner: self.inner.clone() }), items)
    }

    async fn stat(&self, attempt: &AttemptKey) -> Result<AttemptStat, StoreError> {
        let of = |state, total_bytes| AttemptStat { state, total_bytes, floors: Vec::new(), sent: Vec::new() };
        if let Some(known) = self.inner.registry.find(attempt) {
            let core = known.lock();
            return Ok(of(core.state(), core.total_bytes()));
        }
        match self.inner.find(attempt, Operation::Stat).await {
            Ok(sealed) => Ok(of(AttemptState::Sealed, sealed.manifest.table.total_bytes())),
            Err(error) => match error.kind() {
                StoreErrorKind::Lost { .. } => Ok(of(AttemptState::Lost, 0)),
                StoreErrorKind::Released | StoreErrorKind::Fenced { .. } => {
                    Err(StoreError::new(StoreErrorKind::NotFound, Operation::Stat, attempt).with_source(error))
                }
                _ => Err(error),
            },
        }
    }

    async fn manifest(&self, attempt: &AttemptKey) -> Result<Arc<SealManifest>, StoreError> {
        let sealed = self.inner.find(attempt, Operation::Stat).await?;
        Ok(sealed.manifest.clone())
    }

    async fn locate(
        &self,
        partition: &PartitionKey,
        spec: &DatasetSpec,
        from_generation: u32,
    ) -> Result<Option<Arc<SealManifest>>, StoreError> {
        self.inner.check_open(Operation::Stat, partition)?;
        self.inner.locate(partition, spec, from_generation).await
    }

    async fn acknowledge(&self, request: AcknowledgeRequest) -> Result<FloorReport, StoreError> {
        let reason = "durable datasets have no floors";
        Err(StoreError::new(StoreErrorKind::Unsupported { reason }, Operation::Acknowledge, &request.attempt))
    }

    async fn complete_checkpoint(&self, request: CheckpointRequest) -> Result<FloorReport, StoreError> {
        let reason = "durable datasets have no floors";
        Err(StoreError::new(StoreErrorKind::Unsupported { reason }, Operation::Checkpoint, &request.attempt))
    }

    async fn release(&self, scope: ReleaseScope) -> Result<ReleaseReport, StoreError> {
        self.inner.check_open(Operation::Release, "a scope")?;
        self.inner.release(scope).await
    }

    async fn recover(&self) -> Result<RecoveryReport, StoreError> {
        if self.inner.is_recovered.swap(true, Ordering::AcqRel) {
            return Ok(RecoveryReport::default());
        }
        let recovered = self.inner.recover().await;
        if recovered.is_err() {
            self.inner.is_recovered.store(false, Ordering::Release);
        }
        recovered
    }

    async fn close(&self) -> Result<(), StoreError> {
        if self.inner.is_closing.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let mut objects = Vec::new();
        for attempt in self.inner.registry.all() {
            let mut core = attempt.lock();
            if core.state() != AttemptState::Sealed {
                objects.extend(core.end(AttemptState::Aborted, None).map(|ended| ended.objects).unwrap_or_default());
            }
            drop(core);
            attempt.notify();
        }
        let inner = &self.inner;
        let ended = async {
            inner.settled().await;
            inner.erase(&objects, Vec::new()).await
        };
        let ended = store_api::clock::within(inner.clock.as_ref(), CLOSE_PATIENCE, ended).await;
        if let Err(error) = ended.unwrap_or_else(|| Err(BucketError::own(Fault::Passing, "closing took too long"))) {
            tracing::warn!(%error, "content of unsealed attempts is left for the sweep of their jobs");
        }
        Ok(())
    }
}

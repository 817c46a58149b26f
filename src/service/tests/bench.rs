//! Nodes for tests: model stores, a catalog that can fail, a clock that is moved by hand.

use crate::service::*;
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use store_api::clock::ManualClock;
use store_api::*;
use store_testkit::model_store::{ModelProfile, ModelStore};

pub(super) const BUDGET: u64 = 64 << 20;

/// A catalog in memory. It survives a restart of the node that uses it, and fails when told.
#[derive(Default)]
pub(super) struct TestCatalog {
    entries: Mutex<BTreeMap<String, (Bytes, u64)>>,
    n_writes: AtomicU64,
    pub(super) fails_writes: AtomicBool,
    pub(super) fails_reads: AtomicBool,
}

impl TestCatalog {
    fn refuse(key: &str) -> StoreError {
        StoreError::new(StoreErrorKind::Unavailable { retry_after: Duration::from_secs(1) }, Operation::Catalog, key)
    }

    pub(super) fn keys(&self, prefix: &str) -> Vec<String> {
        self.entries.lock().keys().filter(|key| key.starts_with(prefix)).cloned().collect()
    }
}

#[async_trait]
impl Catalog for TestCatalog {
    async fn get(&self, key: &str) -> Result<Option<CatalogEntry>, StoreError> {
        if self.fails_reads.load(Ordering::SeqCst) {
            return Err(Self::refuse(key));
        }
        let entries = self.entries.lock();
        Ok(entries.get(key).map(|(value, version)| CatalogEntry { value: value.clone(), version: Version(version.to_string().into()) }))
    }

    async fn put(&self, key: &str, value: Bytes, expect: Expect) -> Result<Version, StoreError> {
        assert!(key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte)), "{key:?} is not a key");
        if self.fails_writes.load(Ordering::SeqCst) {
            return Err(Self::refuse(key));
        }
        let mut entries = self.entries.lock();
        let present = entries.get(key).map(|(_, version)| Version(version.to_string().into()));
        let holds = match &expect {
            Expect::Any => true,
            Expect::Absent => present.is_none(),
            Expect::Version(version) => present.as_ref() == Some(version),
        };
        if !holds {
            return Err(StoreError::new(StoreErrorKind::Conflict, Operation::Catalog, key));
        }
        let version = self.n_writes.fetch_add(1, Ordering::SeqCst);
        entries.insert(key.to_owned(), (value, version));
        Ok(Version(version.to_string().into()))
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        if self.fails_writes.load(Ordering::SeqCst) {
            return Err(Self::refuse(key));
        }
        self.entries.lock().remove(key);
        Ok(())
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<(String, CatalogEntry)>, StoreError> {
        let entries = self.entries.lock();
        let found = entries.iter().filter(|(key, _)| key.starts_with(prefix));
        Ok(found
            .map(|(key, (value, version))| {
                (key.clone(), CatalogEntry { value: value.clone(), version: Version(version.to_string().into()) })
            })
            .collect())
    }
}

/// Passes calls on, except those that it was told to refuse.
pub(super) struct Switch {
    pub(super) inner: Arc<ModelStore>,
    pub(super) refuses_release: AtomicBool,
    pub(super) refuses_publish: AtomicBool,
    pub(super) loses_reads: AtomicBool,
    /// Pieces that still go through before an append is refused in the middle.
    pub(super) appends_left: Mutex<Option<usize>>,
}

impl Switch {
    pub(super) fn new(inner: Arc<ModelStore>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            refuses_release: AtomicBool::default(),
            refuses_publish: AtomicBool::default(),
            loses_reads: AtomicBool::default(),
            appends_left: Mutex::default(),
        })
    }

    fn refuse(operation: Operation) -> StoreError {
        StoreError::new(StoreErrorKind::Unavailable { retry_after: Duration::from_secs(1) }, operation, "switched off")
    }
}

#[async_trait]
impl PartitionStore for Switch {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn held(&self, job: &JobId, incarnation: JobIncarnation) -> HeldBytes {
        self.inner.held(job, incarnation)
    }
    async fn open(&self, request: OpenRequest) -> Result<AttemptTails, StoreError> {
        self.inner.open(request).await
    }
    async fn reserve(&self, attempt: &AttemptKey, bytes: u64, patience: Duration) -> Result<Permit, StoreError> {
        self.inner.reserve(attempt, bytes, patience).await
    }
    async fn append(&self, mut request: AppendRequest) -> Result<AppendAck, StoreError> {
        let left = self.appends_left.lock().take();
        match left {
            Some(left) => {
                request.pieces.truncate(left);
                if !request.pieces.is_empty() {
                    self.inner.append(request).await?;
                }
                Err(Self::refuse(Operation::Append))
            }
            None => self.inner.append(request).await,
        }
    }
    async fn tails(&self, attempt: &AttemptKey) -> Result<AttemptTails, StoreError> {
        self.inner.tails(attempt).await
    }
    async fn bounds(&self, attempt: &AttemptKey, subpartition: SubpartitionIndex) -> Result<SubpartitionBounds, StoreError> {
        self.inner.bounds(attempt, subpartition).await
    }
    async fn prepare(&self, request: PrepareRequest) -> Result<Arc<SealManifest>, StoreError> {
        self.inner.prepare(request).await
    }
    async fn publish(&self, attempt: &AttemptKey) -> Result<SealOutcome, StoreError> {
        if self.refuses_publish.load(Ordering::SeqCst) {
            return Err(Self::refuse(Operation::Publish));
        }
        self.inner.publish(attempt).await
    }
    async fn abort(&self, attempt: &AttemptKey) -> Result<(), StoreError> {
        self.inner.abort(attempt).await
    }
    async fn read(&self, request: ReadRequest) -> Result<ReadStream, StoreError> {
        if self.loses_reads.load(Ordering::SeqCst) {
            return Err(StoreError::new(StoreErrorKind::Lost { cause: LossCause::Disk }, Operation::Read, &request.attempt));
        }
        self.inner.read(request).await
    }
    fn fetch(&self, items: Vec<ReadRequest>) -> BoxStream<'static, FetchEvent> {
        self.inner.fetch(items)
    }
    async fn stat(&self, attempt: &AttemptKey) -> Result<AttemptStat, StoreError> {
        self.inner.stat(attempt).await
    }
    async fn manifest(&self, attempt: &AttemptKey) -> Result<Arc<SealManifest>, StoreError> {
        self.inner.manifest(attempt).await
    }
    async fn locate(&self, partition: &PartitionKey, spec: &DatasetSpec, from: u32) -> Result<Option<Arc<SealManifest>>, StoreError> {
        self.inner.locate(partition, spec, from).await
    }
    async fn acknowledge(&self, request: AcknowledgeRequest) -> Result<FloorReport, StoreError> {
        self.inner.acknowledge(request).await
    }
    async fn complete_checkpoint(&self, request: CheckpointRequest) -> Result<FloorReport, StoreError> {
        self.inner.complete_checkpoint(request).await
    }
    async fn release(&self, scope: ReleaseScope) -> Result<ReleaseReport, StoreError> {
        if self.refuses_release.load(Ordering::SeqCst) {
            return Err(Self::refuse(Operation::Release));
        }
        self.inner.release(scope).await
    }
    async fn recover(&self) -> Result<RecoveryReport, StoreError> {
        self.inner.recover().await
    }
    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}

struct Counting(AtomicU64);

impl RandomSource for Counting {
    fn next_u64(&self) -> u64 {
        // Distinct over all nodes of a test run, and never 0.
        self.0.fetch_add(1, Ordering::SeqCst).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
    }
}

static DRAWN: AtomicU64 = AtomicU64::new(1);

/// One life of a node.
pub(super) struct Node {
    pub(super) service: Arc<PartitionService>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) blocking: Arc<Switch>,
    pub(super) durable: Arc<ModelStore>,
    pub(super) catalog: Arc<TestCatalog>,
    pub(super) shared: Option<Arc<TestCatalog>>,
    pub(super) tasks: TaskGroup,
    pub(super) config: ServiceConfig,
    name: String,
    life: u64,
    medium: Option<Arc<dyn SharedMedium>>,
}

/// What a node is made from.
pub(super) struct Plan {
    pub(super) config: ServiceConfig,
    pub(super) name: &'static str,
    pub(super) shared: Option<Arc<TestCatalog>>,
    /// The medium that nodes share.
    pub(super) durable: Option<Arc<ModelStore>>,
    pub(super) clock: Option<Arc<ManualClock>>,
    pub(super) medium: Option<Arc<dyn SharedMedium>>,
}

impl Default for Plan {
    fn default() -> Self {
        Self { config: ServiceConfig::default(), name: "node", shared: None, durable: None, clock: None, medium: None }
    }
}

impl Node {
    pub(super) async fn start() -> Self {
        Self::plan(Plan::default()).await
    }

    pub(super) async fn with(config: ServiceConfig) -> Self {
        Self::plan(Plan { config, ..Plan::default() }).await
    }

    pub(super) async fn plan(plan: Plan) -> Self {
        let clock = plan.clock.unwrap_or_else(|| Arc::new(ManualClock::new(1_000_000_000_000)));
        let model = |profile| ModelStore::new(profile, BUDGET, clock.clone());
        let durable = plan.durable.unwrap_or_else(|| model(ModelProfile::arbitrating()));
        let (pipelined, blocking) = (Switch::new(model(ModelProfile::pipelined())), Switch::new(model(ModelProfile::surviving())));
        Self::build(plan.config, plan.name.to_owned(), 1, clock, pipelined, blocking, durable, Arc::default(), plan.shared, plan.medium)
            .await
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a node, once")]
    async fn build(
        config: ServiceConfig,
        name: String,
        life: u64,
        clock: Arc<ManualClock>,
        pipelined: Arc<Switch>,
        blocking: Arc<Switch>,
        durable: Arc<ModelStore>,
        catalog: Arc<TestCatalog>,
        shared: Option<Arc<TestCatalog>>,
        medium: Option<Arc<dyn SharedMedium>>,
    ) -> Self {
        let tasks = TaskGroup::new();
        let stores = Stores { pipelined: Some(pipelined.clone()), blocking: Some(blocking.clone()), durable: Some(durable.clone()) };
        let parts = ServiceParts {
            stores,
            local_catalog: catalog.clone(),
            shared_catalog: shared.clone().map(|shared| shared as Arc<dyn Catalog>),
            medium: medium.clone(),
            arbiter: Arc::new(LocalArbiter::new()),
            clock: clock.clone(),
            tasks: tasks.clone(),
            node: NodeId::new(&name).unwrap(),
            life: NodeLife::new(life),
            url: format!("http://{name}"),
            random: Arc::new(Counting(AtomicU64::new(DRAWN.fetch_add(1 << 20, Ordering::SeqCst)))),
        };
        let service = PartitionService::start(config.clone(), parts).await.unwrap();
        Self { service, clock, blocking, durable, catalog, shared, tasks, config, name, life, medium }
    }

    /// The next life of this node: what was only in memory is gone.
    pub(super) async fn restart(self) -> Self {
        self.tasks.cancel();
        let pipelined = Switch::new(ModelStore::new(ModelProfile::pipelined(), BUDGET, self.clock.clone()));
        let blocking = Switch::new(self.blocking.inner.reopened());
        let (life, medium) = (self.life + 1, self.medium);
        Self::build(self.config, self.name, life, self.clock, pipelined, blocking, self.durable, self.catalog, self.shared, medium).await
    }

    pub(super) fn life(&self) -> Option<NodeLife> {
        Some(NodeLife::new(self.life))
    }

    pub(super) async fn put_job(&self, job: &str) -> JobView {
        self.service.put_job(&id(job), JobRequest::default()).await.unwrap()
    }

    pub(super) async fn put_dataset(&self, job: &str, dataset: &str, class: StoreClass) -> DatasetView {
        self.service.put_dataset(&id(job), &dataset_id(dataset), spec(class)).await.unwrap()
    }

    /// A job `j` with a dataset `d` of the class.
    pub(super) async fn with_dataset(class: StoreClass) -> Self {
        let node = Self::start().await;
        node.put_job("j").await;
        node.put_dataset("j", "d", class).await;
        node
    }

    pub(super) async fn open(&self, partition: u64, generation: u32, attempt: u32) -> ServiceResult<AttemptView> {
        let epoch = (generation > 0).then(|| JobEpoch::new(1));
        let request = OpenAttempt { generation, attempt, epoch, ..OpenAttempt::default() };
        self.service.open_attempt(&at(partition), request).await
    }

    /// Appends at the tail of subpartition 0.
    pub(super) async fn write(&self, partition: u64, attempt: AttemptId, bytes: &[u8]) -> ServiceResult<AppendReply> {
        self.write_to(partition, attempt, 0, bytes).await
    }

    pub(super) async fn write_to(&self, partition: u64, attempt: AttemptId, subpartition: u32, bytes: &[u8]) -> ServiceResult<AppendReply> {
        let subpartition = SubpartitionIndex::new(subpartition);
        let address = of(partition, attempt);
        let mut sink = self.service.begin_append(&address, self.life(), subpartition, None, Some(bytes.len() as u64)).await?;
        let permit = sink.reserve(bytes.len() as u64).await?;
        sink.push(Bytes::copy_from_slice(bytes), permit).await?;
        sink.finish().await
    }

    pub(super) async fn seal(&self, partition: u64, attempt: AttemptId) -> ServiceResult<SealReply> {
        self.service.seal(&of(partition, attempt), self.life(), None).await
    }

    /// Opens, writes to subpartition 0 and seals attempt 0.0.
    pub(super) async fn produce(&self, partition: u64, bytes: &[u8]) {
        self.open(partition, 0, 0).await.unwrap();
        self.write(partition, a(0, 0), bytes).await.unwrap();
        assert!(matches!(self.seal(partition, a(0, 0)).await.unwrap(), SealReply::Won(_)));
    }

    pub(super) async fn read(&self, partition: u64) -> ServiceResult<Vec<u8>> {
        self.read_as(partition, None, ReadKind::Sealed).await
    }

    pub(super) async fn read_as(&self, partition: u64, attempt: Option<AttemptId>, kind: ReadKind) -> ServiceResult<Vec<u8>> {
        let call = ReadCall { attempt, subpartition: SubpartitionIndex::new(0), start: Offset::ZERO, end: None, kind };
        let reply = self.service.read(&at(partition), call).await?;
        let chunks: Vec<Bytes> = reply.chunks.try_collect().await?;
        Ok(chunks.concat())
    }

    pub(super) async fn state(&self, partition: u64) -> PartitionState {
        self.service.partition(&at(partition)).await.unwrap().state
    }

    pub(super) async fn release(&self, partition: u64) -> ServiceResult<ReleaseReport> {
        self.service.release_partition(&at(partition), Some(JobEpoch::new(1))).await
    }

    /// Moves the clock and lets one round of the reaper see it.
    pub(super) async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.service.reap().await;
    }
}

pub(super) fn id(job: &str) -> JobId {
    JobId::new(job).unwrap()
}

pub(super) fn dataset_id(dataset: &str) -> DatasetId {
    DatasetId::new(dataset).unwrap()
}

/// An attempt id.
pub(super) const fn a(generation: u32, attempt: u32) -> AttemptId {
    AttemptId::new(generation, attempt)
}

/// A partition of dataset `d` of job `j`.
pub(super) fn at(partition: u64) -> PartitionAddress {
    PartitionAddress { job: id("j"), dataset: dataset_id("d"), partition: PartitionId::new(partition) }
}

pub(super) fn of(partition: u64, attempt: AttemptId) -> AttemptAddress {
    AttemptAddress { partition: at(partition), attempt }
}

/// A dataset of 16 partitions with 4 subpartitions each.
pub(super) fn spec(class: StoreClass) -> DatasetRequest {
    DatasetRequest {
        class: Some(class),
        retention: None,
        n_partitions: Some(16),
        n_subpartitions: 4,
        is_broadcast: false,
        arbitration: Arbitration::Store,
        groups: Vec::new(),
        content: None,
    }
}

/// The kind of a refusal.
#[track_caller]
pub(super) fn refused<T>(outcome: ServiceResult<T>) -> ServiceErrorKind {
    match outcome {
        Ok(_) => panic!("it was accepted"),
        Err(error) => error.kind().clone(),
    }
}

pub(super) fn frame(sequence: u64, subpartition: u32, bytes: &[u8]) -> DataFrame {
    DataFrame { sequence, subpartition: SubpartitionIndex::new(subpartition), chunk: Chunk::new(Bytes::copy_from_slice(bytes)) }
}

/// Pushes frames with memory for them.
pub(super) async fn push(sink: &mut FrameSink, frames: Vec<DataFrame>) -> ServiceResult<FramesAck> {
    let bytes = frames.iter().map(|frame| frame.chunk.length()).sum();
    let permit = sink.reserve(bytes).await?;
    sink.push(frames, permit).await
}

/// The next events of a stream, as long as they come at once.
pub(super) async fn ready_events(events: &mut BoxStream<'static, Event>) -> Vec<Event> {
    let mut seen = Vec::new();
    while let Some(Some(event)) = futures::FutureExt::now_or_never(events.next()) {
        seen.push(event);
    }
    seen
}

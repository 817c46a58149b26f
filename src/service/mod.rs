//! The service: use cases and policy of a node. Sole caller of the partition stores.
//!
//! Knows owners, tokens, leases, quotas, epochs, generations and attempts; knows nothing of HTTP
//! and of any medium.

pub mod calls;
pub mod config;
pub mod error;

pub use calls::*;
pub use config::ServiceConfig;
pub use error::{FencedBy, ServiceError, ServiceErrorKind, ServiceResult};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use std::sync::Arc;
use store_api::{
    AttemptId, AttemptKey, Catalog, DatasetId, DatasetSpec, JobEpoch, JobId, NodeId, NodeLife, Offset, PartitionId, PartitionKey, Permit,
    ReleaseReport, SharedClock, SharedStore, StoreError, SubpartitionIndex, TaskGroup,
};

/// Draws numbers that nobody can guess: incarnations and tokens.
pub trait RandomSource: Send + Sync + 'static {
    /// The next number.
    fn next_u64(&self) -> u64;
}

/// Who decides which attempt of a generation is the content of a partition.
#[async_trait]
pub trait SealArbiter: Send + Sync + 'static {
    /// Compare-and-set: the first proposal for (partition, generation) wins; answers the winner.
    /// Idempotent. Errors: `Unavailable` (the prepared seal is kept and proposed again).
    async fn decide(&self, partition: &PartitionKey, attempt: AttemptId, node: &NodeId, life: NodeLife) -> Result<AttemptId, StoreError>;
    /// Forgets what was decided about a partition (all generations); called on release.
    fn forget(&self, partition: &PartitionKey);
}

/// The stores of a node. A class that is not there is refused with `ClassUnavailable`.
#[derive(Clone, Default)]
pub struct Stores {
    /// Keeps pipelined datasets.
    pub pipelined: Option<SharedStore>,
    /// Keeps blocking datasets.
    pub blocking: Option<SharedStore>,
    /// Keeps durable datasets.
    pub durable: Option<SharedStore>,
}

/// What the service is built from.
pub struct ServiceParts {
    /// The stores.
    pub stores: Stores,
    /// Catalog on this node's disk (or in memory, for a node without one).
    pub local_catalog: Arc<dyn Catalog>,
    /// Catalog in the object store.
    pub shared_catalog: Option<Arc<dyn Catalog>>,
    /// Decides seals of stores whose medium does not.
    pub arbiter: Arc<dyn SealArbiter>,
    /// Time.
    pub clock: SharedClock,
    /// Background work: seals, the reaper.
    pub tasks: TaskGroup,
    /// This node.
    pub node: NodeId,
    /// This life of it.
    pub life: NodeLife,
    /// Base URL under which others reach it.
    pub url: String,
    /// Randomness.
    pub random: Arc<dyn RandomSource>,
}

/// The service of one node. Every method takes `&self`, may run side by side with every other, and
/// is cancel-safe unless it says otherwise.
pub struct PartitionService {
    config: ServiceConfig,
    node: NodeView,
}

fn not_yet<T>() -> ServiceResult<T> {
    Err(ServiceErrorKind::Internal.into())
}

impl PartitionService {
    /// Recovers every store, loads jobs, datasets and release records, reconciles them, and starts
    /// the reaper. Answers when the node is ready to serve.
    pub async fn start(config: ServiceConfig, parts: ServiceParts) -> ServiceResult<Arc<Self>> {
        let location = Location { node: parts.node, life: parts.life, url: Arc::from(parts.url) };
        Ok(Arc::new(Self { config, node: NodeView { location, state: NodeState::Ready, classes: Vec::new() } }))
    }

    /// The configuration that it runs with.
    #[must_use]
    pub const fn config(&self) -> &ServiceConfig {
        &self.config
    }

    /// Checks a bearer token. `Ok` at once when tokens are off. Unknown jobs are answered with
    /// `Unauthenticated` or `Forbidden`, except to the admin. Call it before anything else.
    pub async fn authorize(&self, need: Need<'_>, bearer: Option<&str>) -> ServiceResult<()> {
        let _ = (need, bearer);
        not_yet()
    }

    /// This node: location, state, classes.
    #[must_use]
    pub fn node(&self) -> NodeView {
        self.node.clone()
    }

    /// Refuses new jobs, datasets and attempts with `Draining`; writes and reads go on. Idempotent.
    pub fn begin_drain(&self) {}

    /// Frame streams, raw appends and seals that run now: a drain waits for 0.
    #[must_use]
    pub fn n_writes_running(&self) -> usize {
        0
    }

    /// Closes the stores. Idempotent.
    pub async fn close(&self) -> ServiceResult<()> {
        not_yet()
    }

    /// Creates a job or takes it over. Idempotent by `owner_nonce`.
    pub async fn put_job(&self, job: &JobId, request: JobRequest) -> ServiceResult<JobView> {
        let _ = (job, request);
        not_yet()
    }

    /// A job. Errors: `UnknownJob`, `Released`, `Expired`.
    pub async fn job(&self, job: &JobId) -> ServiceResult<JobView> {
        let _ = job;
        not_yet()
    }

    /// All jobs that this node knows, by id.
    pub async fn jobs(&self) -> ServiceResult<Vec<JobView>> {
        not_yet()
    }

    /// Renews a lease. Errors: `EpochRequired`, `Fenced`, `Expired`, ...
    pub async fn renew_lease(&self, job: &JobId, epoch: Option<JobEpoch>, lease: Option<std::time::Duration>) -> ServiceResult<LeaseView> {
        let _ = (job, epoch, lease);
        not_yet()
    }

    /// Releases a job and all it holds. Idempotent (`Ok` with an empty report when already released).
    pub async fn release_job(&self, job: &JobId, epoch: Option<JobEpoch>) -> ServiceResult<ReleaseReport> {
        let _ = (job, epoch);
        not_yet()
    }

    /// Declares a dataset. Idempotent; a differing repeat is a `SpecConflict`.
    pub async fn put_dataset(&self, job: &JobId, dataset: &DatasetId, request: DatasetRequest) -> ServiceResult<DatasetView> {
        let _ = (job, dataset, request);
        not_yet()
    }

    /// A dataset.
    pub async fn dataset(&self, job: &JobId, dataset: &DatasetId) -> ServiceResult<DatasetView> {
        let _ = (job, dataset);
        not_yet()
    }

    /// The specification alone: cheap, for decoding bodies that depend on it.
    pub async fn dataset_spec(&self, job: &JobId, dataset: &DatasetId) -> ServiceResult<Arc<DatasetSpec>> {
        let _ = (job, dataset);
        not_yet()
    }

    /// The datasets of a job, by id.
    pub async fn datasets(&self, job: &JobId) -> ServiceResult<Vec<DatasetView>> {
        let _ = job;
        not_yet()
    }

    /// Releases a dataset. Idempotent.
    pub async fn release_dataset(&self, job: &JobId, dataset: &DatasetId, epoch: Option<JobEpoch>) -> ServiceResult<ReleaseReport> {
        let _ = (job, dataset, epoch);
        not_yet()
    }

    /// Opens an attempt. Idempotent.
    pub async fn open_attempt(&self, partition: &PartitionAddress, request: OpenAttempt) -> ServiceResult<AttemptView> {
        let _ = (partition, request);
        not_yet()
    }

    /// Where an attempt stands.
    pub async fn attempt(&self, attempt: &AttemptAddress) -> ServiceResult<AttemptView> {
        let _ = attempt;
        not_yet()
    }

    /// Ends an unsealed attempt. Idempotent. `life` as on every write.
    pub async fn abort_attempt(&self, attempt: &AttemptAddress, life: Option<NodeLife>) -> ServiceResult<()> {
        let _ = (attempt, life);
        not_yet()
    }

    /// Starts the frame stream of an attempt; an older stream of it is fenced.
    pub async fn begin_frames(self: &Arc<Self>, attempt: &AttemptAddress, life: Option<NodeLife>) -> ServiceResult<FrameSink> {
        let _ = (attempt, life);
        not_yet()
    }

    /// Starts a raw append. `offset` is where the body starts; `None` appends at the tail.
    /// `length` is the Content-Length, if known. A length of at most `atomic_append_bytes` makes
    /// the append atomic; a body of unknown length is atomic as long as it stays below.
    pub async fn begin_append(
        self: &Arc<Self>,
        attempt: &AttemptAddress,
        life: Option<NodeLife>,
        subpartition: SubpartitionIndex,
        offset: Option<Offset>,
        length: Option<u64>,
    ) -> ServiceResult<RawSink> {
        let _ = (attempt, life, subpartition, offset, length);
        not_yet()
    }

    /// Seals an attempt. Idempotent. Runs to its end even when the caller leaves.
    pub async fn seal(
        self: &Arc<Self>,
        attempt: &AttemptAddress,
        life: Option<NodeLife>,
        stated: Option<StatedContent>,
    ) -> ServiceResult<SealReply> {
        let _ = (attempt, life, stated);
        not_yet()
    }

    /// A partition. Errors: `UnknownJob`, `UnknownDataset`, `UnknownPartition`, `Unavailable`.
    pub async fn partition(&self, partition: &PartitionAddress) -> ServiceResult<PartitionView> {
        let _ = partition;
        not_yet()
    }

    /// A page of the sealed partitions after `after`; at most `limit`, clipped to `max_page`.
    pub async fn partitions(
        &self,
        job: &JobId,
        dataset: &DatasetId,
        after: Option<(PartitionId, AttemptId)>,
        limit: Option<usize>,
    ) -> ServiceResult<PartitionPage> {
        let _ = (job, dataset, after, limit);
        not_yet()
    }

    /// Releases a partition, all attempts. Idempotent.
    pub async fn release_partition(&self, partition: &PartitionAddress, epoch: Option<JobEpoch>) -> ServiceResult<ReleaseReport> {
        let _ = (partition, epoch);
        not_yet()
    }

    /// What a read of the subpartition would serve, without reading.
    pub async fn resolve(
        &self,
        partition: &PartitionAddress,
        subpartition: SubpartitionIndex,
        attempt: Option<AttemptId>,
    ) -> ServiceResult<Readable> {
        let _ = (partition, subpartition, attempt);
        not_yet()
    }

    /// Starts a read.
    pub async fn read(self: &Arc<Self>, partition: &PartitionAddress, call: ReadCall) -> ServiceResult<ReadReply> {
        let _ = (partition, call);
        not_yet()
    }

    /// Reads many ranges. `budget_bytes` is clipped to `max_fetch_bytes`. Errors before the stream:
    /// those of the job and dataset, `TooLarge` for too many items.
    pub async fn fetch(
        self: &Arc<Self>,
        job: &JobId,
        dataset: &DatasetId,
        items: Vec<FetchWant>,
        budget_bytes: Option<u64>,
    ) -> ServiceResult<BoxStream<'static, FetchStep>> {
        let _ = (job, dataset, items, budget_bytes);
        not_yet()
    }

    /// Moves the floors of a pipelined dataset. `group` is `default` when left out.
    pub async fn acknowledge(
        &self,
        job: &JobId,
        dataset: &DatasetId,
        group: Option<store_api::ConsumerId>,
        positions: Vec<ConsumerPosition>,
    ) -> ServiceResult<AcknowledgeReply> {
        let _ = (job, dataset, group, positions);
        not_yet()
    }

    /// A checkpoint of the job is complete: moves floors of `since_checkpoint` datasets. Answers the
    /// bytes that were let go. Needs the epoch.
    pub async fn complete_checkpoint(
        &self,
        job: &JobId,
        epoch: Option<JobEpoch>,
        checkpoint: u64,
        need: Vec<NeedPosition>,
    ) -> ServiceResult<u64> {
        let _ = (job, epoch, checkpoint, need);
        not_yet()
    }

    /// States of many partitions, in the order asked. Unknown datasets and partitions are answered
    /// as such. Errors: those of the job, `TooLarge`.
    pub async fn availability(&self, job: &JobId, wants: Vec<AvailabilityWant>) -> ServiceResult<Vec<AvailabilityView>> {
        let _ = (job, wants);
        not_yet()
    }

    /// The events of a job after a cursor (from now on when left out). The stream ends when the job
    /// has ended (after its last event) or the node drains.
    pub async fn events(&self, job: &JobId, after: Option<EventCursor>) -> ServiceResult<BoxStream<'static, Event>> {
        let _ = (job, after);
        not_yet()
    }
}

/// The one live frame stream of an attempt. Dropping it ends the stream; what was applied stays.
#[derive(Debug)]
pub struct FrameSink {
    attempt: AttemptKey,
}

impl FrameSink {
    /// Sequence of the next frame.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        let _ = &self.attempt;
        0
    }

    /// Reserves memory before a payload is read. Errors: `OverQuota`, `Overloaded`,
    /// `RetentionExhausted`, `TooLarge`, `Fenced`, ...
    pub async fn reserve(&self, bytes: u64) -> ServiceResult<Permit> {
        let _ = bytes;
        not_yet()
    }

    /// Applies frames in order. Frames whose sequence was already applied are skipped; a gap is a
    /// `SequenceMismatch`. `permit` holds at least the bytes of the frames. On an error the frames
    /// before the refused one stay applied.
    pub async fn push(&mut self, frames: Vec<DataFrame>, permit: Permit) -> ServiceResult<FramesAck> {
        let _ = (frames, permit);
        not_yet()
    }

    /// The end of the stream: `sequence` is the position of the end frame, which must be the next
    /// sequence (or below, for a repeat).
    pub async fn finish(self, sequence: u64) -> ServiceResult<FramesAck> {
        let _ = sequence;
        not_yet()
    }
}

/// A raw append under way. Dropping it ends it: an atomic append then leaves nothing, a longer one
/// the chunks that were applied.
#[derive(Debug)]
pub struct RawSink {
    attempt: AttemptKey,
}

impl RawSink {
    /// Most bytes to reserve and push at a time.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        let _ = &self.attempt;
        0
    }

    /// Reserves memory before a block is read. Errors as [`FrameSink::reserve`].
    pub async fn reserve(&self, bytes: u64) -> ServiceResult<Permit> {
        let _ = bytes;
        not_yet()
    }

    /// Takes the next bytes of the body, with a permit of at least as many bytes.
    pub async fn push(&mut self, bytes: Bytes, permit: Permit) -> ServiceResult<()> {
        let _ = (bytes, permit);
        not_yet()
    }

    /// Whether nothing has been applied yet, so that dropping the sink leaves nothing.
    #[must_use]
    pub fn is_atomic(&self) -> bool {
        true
    }

    /// The body is complete (and, if it had a digest, checked).
    pub async fn finish(self) -> ServiceResult<AppendReply> {
        not_yet()
    }
}

//! [`MemoryStore`]: the parts put together behind the trait.

use crate::attempt::{Accounts, Attempt};
use crate::config::Config;
use crate::core::Core;
use crate::error::Subject;
use crate::registry::{Known, Registry};
use crate::room;
use crate::spill::Spill;
use crate::write::{bounds_of, tails_of};
use async_trait::async_trait;
use futures::stream::BoxStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use store_api::store::fetch_in_order;
use store_api::{
    AcknowledgeRequest, AppendAck, AppendRequest, AttemptKey, AttemptStat, AttemptTails, ByteBudget, Capabilities, CheckpointRequest,
    ClassAchieved, DatasetSpec, Durability, FetchEvent, FloorReport, HeldBytes, JobId, JobIncarnation, NodeId, NodeLife, Offset,
    OpenRequest, Operation, PartitionKey, PartitionStore, Permit, PrepareRequest, ReadBudget, ReadRequest, ReadStream, RecoveryReport,
    ReleaseReport, ReleaseScope, Retention, Scope, SealManifest, SealOutcome, SharedClock, SharedStore, StoreClass, StoreError,
    StoreErrorKind, SubpartitionBounds, SubpartitionIndex, SyncLevel, TaskGroup,
};
use tokio::sync::Notify;

/// What a store gets from its surroundings.
#[derive(Debug, Clone)]
pub struct Environment {
    /// Time.
    pub clock: SharedClock,
    /// Where background work runs; the store ends with it at the latest.
    pub tasks: TaskGroup,
    /// The node, as it stands in manifests.
    pub node: NodeId,
    /// The life of the node, as it stands in manifests.
    pub life: NodeLife,
}

/// Keeps pipelined partitions in memory, and in spill files when they must be kept and memory is
/// short. See the crate for what it promises. Cloning gives another handle to the same store.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    core: Arc<Core>,
}

impl MemoryStore {
    /// Opens an empty store. Spill files of a former life are removed. Starts one background task
    /// in the environment's task group. Errors: `Unavailable` and `DiskFull` when no spill
    /// directory can be used or another store holds one.
    pub async fn open(config: Config, environment: Environment) -> Result<Arc<Self>, StoreError> {
        let Environment { clock, tasks, node, life } = environment;
        let kick = Arc::new(Notify::new());
        let spill = match config.spill.clone() {
            None => None,
            Some(spill) => {
                let opened = Spill::open(spill, clock.clone(), tasks.clone(), kick.clone()).await;
                let failed =
                    |error: store_file::FileError| StoreError::new(error.write_refusal(), Operation::Recover, "spill").with_source(error);
                Some(opened.map_err(failed)?)
            }
        };
        let root = ByteBudget::new(config.memory_bytes, clock.clone());
        let core = Arc::new(Core {
            capabilities: capabilities(&config, &root),
            registry: Registry::new(config.n_tombstones),
            accounts: Accounts::new(root, config.job_memory_bytes),
            demands: Arc::default(),
            kick,
            order: AtomicU64::new(0),
            is_closing: AtomicBool::new(false),
            reads: config.reads.clone().unwrap_or_else(|| ReadBudget::own(clock.clone())),
            node_life: life,
            config,
            clock,
            tasks,
            node,
            spill,
        });
        room::start(&core);
        Ok(Arc::new(Self { core }))
    }

    /// Bytes reserved of all jobs' memory: what is held, what is reserved and not yet appended, and
    /// what is on its way to readers. For metrics.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.core.accounts.root().used_bytes()
    }

    /// The memory of all jobs together.
    #[must_use]
    pub fn budget(&self) -> ByteBudget {
        self.core.accounts.root().clone()
    }

    /// Bytes of all jobs in spill files. For metrics.
    #[must_use]
    pub fn spilled_bytes(&self) -> u64 {
        self.core.accounts.all().iter().fold(0_u64, |sum, account| sum.saturating_add(account.usage.held().disk))
    }

    /// Reservations that wait for room now. For metrics.
    #[must_use]
    pub fn n_waiting(&self) -> u64 {
        self.core.demands.count()
    }
}

fn capabilities(config: &Config, root: &ByteBudget) -> Capabilities {
    let class =
        ClassAchieved { class: StoreClass::Pipelined, durability: Durability::Volatile, sync: SyncLevel::None, scope: Scope::NodeLife };
    let mut retentions = vec![Retention::UntilAcknowledged, Retention::BestEffort];
    if config.spill.is_some() {
        retentions.push(Retention::SinceCheckpoint);
    }
    let max_chunk_bytes = config.max_chunk_bytes.min(config.job_memory_bytes).min(root.limit_bytes());
    Capabilities { class, reads_open: true, retentions, max_chunk_bytes, max_subpartition_bytes: config.max_subpartition_bytes }
}

#[async_trait]
impl PartitionStore for MemoryStore {
    fn capabilities(&self) -> &Capabilities {
        &self.core.capabilities
    }

    fn held(&self, job: &JobId, incarnation: JobIncarnation) -> HeldBytes {
        self.core.accounts.held(job, incarnation)
    }

    async fn open(&self, request: OpenRequest) -> Result<AttemptTails, StoreError> {
        self.core.open_attempt(&request)
    }

    async fn reserve(&self, attempt: &AttemptKey, bytes: u64, patience: Duration) -> Result<Permit, StoreError> {
        self.core.check_running(Operation::Reserve, attempt)?;
        let found = self.core.registry.live(Subject::new(Operation::Reserve, attempt))?;
        self.core.reserve_for(&found, bytes, patience).await
    }

    async fn append(&self, request: AppendRequest) -> Result<AppendAck, StoreError> {
        self.core.append_pieces(request).await
    }

    async fn tails(&self, attempt: &AttemptKey) -> Result<AttemptTails, StoreError> {
        self.core.check_running(Operation::Tails, attempt)?;
        let found = self.core.registry.live(Subject::new(Operation::Tails, attempt))?;
        Ok(tails_of(&found))
    }

    async fn bounds(&self, attempt: &AttemptKey, subpartition: SubpartitionIndex) -> Result<SubpartitionBounds, StoreError> {
        let subject = Subject::new(Operation::Tails, attempt);
        self.core.check_running(Operation::Tails, attempt)?;
        let found = self.core.registry.live(subject)?;
        bounds_of(&found, subpartition, subject)
    }

    async fn prepare(&self, request: PrepareRequest) -> Result<Arc<SealManifest>, StoreError> {
        self.core.prepare_seal(&request)
    }

    async fn publish(&self, attempt: &AttemptKey) -> Result<SealOutcome, StoreError> {
        self.core.publish_seal(attempt)
    }

    async fn abort(&self, attempt: &AttemptKey) -> Result<(), StoreError> {
        self.core.check_running(Operation::Abort, attempt)?;
        let ended = self.core.registry.abort(Subject::new(Operation::Abort, attempt))?;
        self.core.bury(ended.as_slice());
        self.core.remove_condemned().await;
        Ok(())
    }

    async fn read(&self, request: ReadRequest) -> Result<ReadStream, StoreError> {
        self.core.start_read(request)
    }

    fn fetch(&self, items: Vec<ReadRequest>) -> BoxStream<'static, FetchEvent> {
        let store: SharedStore = Arc::new(self.clone());
        fetch_in_order(store, items)
    }

    async fn stat(&self, attempt: &AttemptKey) -> Result<AttemptStat, StoreError> {
        self.core.check_running(Operation::Stat, attempt)?;
        match self.core.registry.find_own(attempt) {
            Some(Known::Live(found)) => Ok(stat_of(&found)),
            Some(Known::Ended(ending)) => Ok(AttemptStat { state: ending.state(), total_bytes: 0, floors: Vec::new(), sent: Vec::new() }),
            None => Err(Subject::new(Operation::Stat, attempt).refuse(StoreErrorKind::NotFound)),
        }
    }

    async fn manifest(&self, attempt: &AttemptKey) -> Result<Arc<SealManifest>, StoreError> {
        self.core.sealed_manifest(attempt)
    }

    async fn locate(
        &self,
        partition: &PartitionKey,
        _spec: &DatasetSpec,
        from_generation: u32,
    ) -> Result<Option<Arc<SealManifest>>, StoreError> {
        self.core.find_sealed(partition, from_generation)
    }

    async fn acknowledge(&self, request: AcknowledgeRequest) -> Result<FloorReport, StoreError> {
        self.core.take_acknowledgement(request).await
    }

    async fn complete_checkpoint(&self, request: CheckpointRequest) -> Result<FloorReport, StoreError> {
        self.core.take_checkpoint(request).await
    }

    async fn release(&self, scope: ReleaseScope) -> Result<ReleaseReport, StoreError> {
        self.core.check_running(Operation::Release, format_args!("{scope:?}"))?;
        let ended = self.core.registry.release(&scope);
        let report = self.core.bury(&ended);
        self.core.remove_condemned().await;
        Ok(report)
    }

    async fn recover(&self) -> Result<RecoveryReport, StoreError> {
        self.core.check_running(Operation::Recover, "memory")?;
        // Nothing of a former life can be read; its spill files were removed when the store opened.
        if let Some(n_files) = self.core.spill.as_ref().map(Spill::take_stale).filter(|n_files| *n_files > 0) {
            tracing::info!(n_files, "spill files of a former life were removed");
        }
        Ok(RecoveryReport::default())
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.core.is_closing.store(true, Ordering::SeqCst);
        self.core.kick.notify_one();
        for attempt in self.core.registry.all() {
            // Waits out appends that are under way; later ones see that the store closes.
            attempt.turn(|_| ());
            attempt.clear();
        }
        self.core.remove_condemned().await;
        Ok(())
    }
}

fn stat_of(attempt: &Attempt) -> AttemptStat {
    let mut stat = AttemptStat { state: attempt.life().shown_state(), total_bytes: 0, floors: Vec::new(), sent: Vec::new() };
    for (index, subpartition) in attempt.present_in_order() {
        let (bytes, floor, sent) = subpartition.ask(|buffer, _| (buffer.digest().length, buffer.floor(), buffer.sent()));
        stat.total_bytes = stat.total_bytes.saturating_add(bytes);
        if floor > Offset::ZERO {
            stat.floors.push((index, floor));
        }
        if let Some(sent) = sent {
            stat.sent.push((index, sent));
        }
    }
    stat
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

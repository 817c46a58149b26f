//! The coordinator: the graphs of jobs, what runs where, what is held where, and plans.
//!
//! It knows the planner and a catalog for its journal. It knows nothing of HTTP, of the service of a
//! node, or of any medium; whether a job still exists it asks a [`JobAuthority`].
//!
//! | module | what it holds |
//! |---|---|
//! | [`calls`], [`error`] | what goes in and comes out |
//! | `job` | one job: a pure state, changed by entries |
//! | `entry`, `journal` | what is kept over a restart, and where |
//! | `nodes` | who stores, and what |
//! | `events` | what drivers follow |
//! | `tell` | reports, failures, workers, nodes |
//! | `look` | views, dry runs, locations |
//! | `upkeep` | silence, grace and delays that run out; jobs that have ended |
//! | `arbiter`, `shared_catalog` | which seal counts; what nodes share |
//!
//! ```text
//!   report ─► preview ─► journal ─► apply ─┐
//!   silence, loss, announcement ───────────┴► wants a plan? ─► propose ─► journal ─► apply ─► events
//! ```
//!
//! # Rules that hold everywhere
//! * An entry is in the journal before an answer or an event relies on it.
//! * Entries of a job are written one after the other, under its gate; its state is locked for
//!   moments only, and never over a call of the catalog.
//! * What changes a job runs to its end in the task group, whatever becomes of the caller.
//! * Time is the coordinator's own: it does not run while the coordinator is down, and never steps.

mod arbiter;
pub mod calls;
mod entry;
pub mod error;
mod events;
mod job;
mod journal;
mod look;
mod nodes;
mod shared_catalog;
mod tell;
#[cfg(test)]
mod tests;
mod upkeep;

pub use calls::*;
pub use entry::{Because, CostRecord, PartitionTriple, PlanRecord, PlanVerdict, RowRecord, Rule, WaveRecord};
pub use error::{CoordinatorError, CoordinatorResult};
pub use look::Rehearsal;
pub use shared_catalog::SharedCatalog;

use async_trait::async_trait;
use entry::{Change, ENTRY_VERSION, Entry, as_ms};
use events::EventRing;
use job::JobState;
use journal::Journal;
use nodes::{NodeTable, NodesNow};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use store_api::{Catalog, JobId, SharedClock, StoreErrorKind, TaskGroup};
use tokio::sync::oneshot;

/// Limits and times of a coordinator.
#[derive(Debug, Clone)]
pub struct CoordinatorConfig {
    /// Time between two heartbeats. 10 s, as Apache Flink's `heartbeat.interval`.
    pub heartbeat_interval: Duration,
    /// Silence after which a member counts as gone. 50 s, as Apache Flink's `heartbeat.timeout`.
    pub heartbeat_timeout: Duration,
    /// Time between two looks at what runs out. 200 ms.
    pub check_interval: Duration,
    /// Time between two looks whether jobs still exist. 10 s.
    pub authority_interval: Duration,
    /// Events kept for each job. 4096.
    pub event_capacity: usize,
    /// Whether other nodes may join. A process that keeps partitions itself decides its seals alone, in
    /// memory, and takes no other node; one that only coordinates does.
    pub serves_nodes: bool,
    /// Most reports of one call. 100,000.
    pub max_reports: usize,
    /// Most partitions in one report of a node. 1,000,000.
    pub max_held: usize,
}

impl Default for CoordinatorConfig {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_secs(10),
            heartbeat_timeout: Duration::from_secs(50),
            check_interval: Duration::from_millis(200),
            authority_interval: Duration::from_secs(10),
            event_capacity: 4096,
            serves_nodes: true,
            max_reports: 100_000,
            max_held: 1_000_000,
        }
    }
}

impl CoordinatorConfig {
    /// Silence after which a member is suspect: two heartbeats missed.
    fn suspect_after(&self) -> Duration {
        self.heartbeat_interval.saturating_mul(2).min(self.heartbeat_timeout)
    }
}

/// Knows which jobs exist.
#[async_trait]
pub trait JobAuthority: Send + Sync + 'static {
    /// Whether this existence of the job is over for certain. Unknown is `false`.
    async fn is_over(&self, job: &JobKey) -> bool;
}

/// Draws the jitter of delays.
pub trait JitterSource: Send + Sync + 'static {
    /// A number from −1 to 1.
    fn draw(&self) -> f64;
}

/// What a coordinator is built from.
pub struct CoordinatorParts {
    /// Where the journal is kept.
    pub catalog: Arc<dyn Catalog>,
    /// Which jobs exist.
    pub authority: Arc<dyn JobAuthority>,
    /// Time.
    pub clock: SharedClock,
    /// Background work.
    pub tasks: TaskGroup,
    /// Jitter of delays.
    pub jitter: Arc<dyn JitterSource>,
}

struct JobSlot {
    key: JobKey,
    /// Held while an entry is decided, written and applied.
    gate: tokio::sync::Mutex<()>,
    state: Mutex<JobState>,
    /// An append ended without an answer: whether it happened has to be looked up.
    is_unsure: AtomicBool,
}

/// The coordinator. Every method may run side by side with every other and is cancel-safe.
pub struct Coordinator {
    config: CoordinatorConfig,
    epoch: u64,
    journal: Journal,
    shared_catalog: Arc<dyn Catalog>,
    authority: Arc<dyn JobAuthority>,
    clock: SharedClock,
    tasks: TaskGroup,
    jitter: Arc<dyn JitterSource>,
    /// Time of the newest entry at the start, and the clock's time at the start.
    base: Duration,
    started: Duration,
    jobs: RwLock<HashMap<JobId, Arc<JobSlot>>>,
    nodes: Mutex<NodeTable>,
    /// Held while a job is taken in or forgotten.
    creation: tokio::sync::Mutex<()>,
    myself: Weak<Self>,
}

impl std::fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coordinator").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Coordinator {
    /// Raises the epoch, reads the journal, and starts the upkeep. Errors: those of the catalog.
    pub async fn start(config: CoordinatorConfig, parts: CoordinatorParts) -> CoordinatorResult<Arc<Self>> {
        let shared_catalog = Arc::new(SharedCatalog::new(parts.catalog.clone()));
        let journal = Journal::new(parts.catalog);
        let epoch = journal.raise_epoch().await?;
        let (mut jobs, mut base_ms) = (HashMap::new(), 0);
        for (key, log) in journal.load().await? {
            base_ms = log.values().map(|entry| entry.at_ms).fold(base_ms, u64::max);
            match replay(&key, epoch, config.event_capacity, &log) {
                Some(state) => drop(jobs.insert(key.job.clone(), JobSlot::new(key, state))),
                None => tracing::error!(job = %key.job, "the journal of a job cannot be taken up; its driver has to declare it again"),
            }
        }
        let n_jobs = jobs.len();
        let coordinator = Arc::new_cyclic(|myself| Self {
            config,
            epoch,
            journal,
            shared_catalog,
            authority: parts.authority,
            started: parts.clock.monotonic(),
            clock: parts.clock,
            tasks: parts.tasks,
            jitter: parts.jitter,
            base: Duration::from_millis(base_ms),
            jobs: RwLock::new(jobs),
            nodes: Mutex::new(NodeTable::default()),
            creation: tokio::sync::Mutex::new(()),
            myself: myself.clone(),
        });
        tracing::info!(epoch, n_jobs, "coordinator started");
        coordinator.begin();
        coordinator.start_upkeep();
        Ok(coordinator)
    }

    /// What was under way before the start is suspect from now on.
    fn begin(&self) {
        let now = self.now();
        for slot in self.jobs.read().values() {
            slot.state.lock().begin_anew(now);
        }
    }

    /// Raised with every start.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Limits and times.
    #[must_use]
    pub const fn config(&self) -> &CoordinatorConfig {
        &self.config
    }

    /// The catalog that nodes without an object store share.
    #[must_use]
    pub fn shared_catalog(&self) -> Arc<dyn Catalog> {
        self.shared_catalog.clone()
    }

    fn now(&self) -> Duration {
        self.base.saturating_add(self.clock.monotonic().saturating_sub(self.started))
    }

    fn nodes_now(&self) -> NodesNow {
        self.nodes.lock().now()
    }

    /// Errors: `UnknownGraph`.
    fn slot(&self, job: &JobKey) -> CoordinatorResult<Arc<JobSlot>> {
        let found = self.jobs.read().get(&job.job).filter(|slot| slot.key == *job).cloned();
        found.ok_or(CoordinatorError::UnknownGraph)
    }

    fn slots(&self) -> Vec<Arc<JobSlot>> {
        self.jobs.read().values().cloned().collect()
    }

    /// Runs `work` to its end in the task group and waits for its value. Errors: `Closing`.
    async fn run_to_end<T, F, W>(&self, work: W) -> CoordinatorResult<T>
    where
        T: Send + 'static,
        F: Future<Output = CoordinatorResult<T>> + Send + 'static,
        W: FnOnce(Arc<Self>) -> F,
    {
        let work = work(self.myself.upgrade().ok_or(CoordinatorError::Closing)?);
        let (sender, receiver) = oneshot::channel();
        self.tasks.spawn_to_end(async move {
            // The caller may have left: the work is done all the same.
            let _ = sender.send(work.await);
        });
        receiver.await.map_err(|_| CoordinatorError::Closing)?
    }

    /// Writes a change and takes it in. The slot's gate must be held. Errors: `Journal`; whether it
    /// was written is looked up before the next change then.
    async fn commit(&self, slot: &JobSlot, change: Change) -> CoordinatorResult<Vec<ReportOutcome>> {
        self.settle(slot).await?;
        let number = slot.state.lock().next_entry();
        let entry = Entry { version: ENTRY_VERSION, at_ms: as_ms(self.now()), change };
        if let Err(error) = self.journal.append(&slot.key, number, &entry).await {
            slot.is_unsure.store(!matches!(error.kind(), StoreErrorKind::TooLarge { .. }), Ordering::Release);
            return Err(error.into());
        }
        Ok(self.take_in(slot, &entry))
    }

    /// Finds out what became of an append that ended without an answer.
    async fn settle(&self, slot: &JobSlot) -> CoordinatorResult<()> {
        if slot.is_unsure.load(Ordering::Acquire) {
            let number = slot.state.lock().next_entry();
            if let Some(entry) = self.journal.read(&slot.key, number).await? {
                self.take_in(slot, &entry);
            }
            slot.is_unsure.store(false, Ordering::Release);
        }
        Ok(())
    }

    fn take_in(&self, slot: &JobSlot, entry: &Entry) -> Vec<ReportOutcome> {
        let nodes = self.nodes_now();
        let (outcomes, orders, graph) = {
            let mut state = slot.state.lock();
            let outcomes = state.apply(entry, &nodes).unwrap_or_else(|_| {
                tracing::error!(job = %slot.key.job, "an entry that was just made does not fit its job");
                Vec::new()
            });
            (outcomes, state.take_orders(), state.graph().clone())
        };
        for (node, partition, attempt) in orders {
            let Some(dataset) = graph.dataset(partition.dataset) else { continue };
            let partition = store_api::PartitionId::new(u64::from(partition.producer));
            let key = HeldKey { job: slot.key.clone(), dataset: dataset.id.clone(), partition };
            let held = Held { attempt, state: HeldState::Sealed, bytes: 0, is_shared: false };
            self.nodes.lock().order(&node, key, held);
        }
        outcomes
    }

    /// Plans for what is wrong, if something is. The slot's gate must be held. Errors: `Journal`;
    /// the upkeep tries again.
    async fn plan_if_wanted(&self, slot: &Arc<JobSlot>) -> CoordinatorResult<()> {
        let now = self.now();
        if !slot.state.lock().wants_plan(now) {
            return Ok(());
        }
        let (nodes, jitter, planned) = (self.nodes_now(), self.jitter.draw(), slot.clone());
        let proposed = self.tasks.run_blocking(move || {
            let mut state = planned.state.lock();
            let proposal = state.propose(now, &nodes, jitter);
            if let Ok(proposal) = &proposal {
                state.note_planned(proposal);
            }
            proposal
        });
        let proposal = match proposed.await {
            None => return Err(CoordinatorError::Closing),
            Some(Err(error)) => {
                tracing::error!(job = %slot.key.job, %error, "the state of a job contradicts itself");
                return Ok(());
            }
            Some(Ok(proposal)) => proposal,
        };
        let Some(plan) = proposal.plan else { return Ok(()) };
        tracing::info!(job = %slot.key.job, plan = plan.number, verdict = ?plan.verdict, n_restart = plan.restart.len(), "planned");
        if let Err(error) = self.commit(slot, Change::Planned(Box::new(plan))).await {
            slot.state.lock().request_plan();
            return Err(error);
        }
        Ok(())
    }
}

impl JobSlot {
    fn new(key: JobKey, state: JobState) -> Arc<Self> {
        Arc::new(Self { key, gate: tokio::sync::Mutex::new(()), state: Mutex::new(state), is_unsure: AtomicBool::new(false) })
    }
}

/// A job's state out of its entries; `None` when they do not make one.
fn replay(key: &JobKey, epoch: u64, event_capacity: usize, log: &journal::Log) -> Option<JobState> {
    let mut entries = log.values();
    let events = EventRing::new(key.clone(), epoch, event_capacity);
    let mut state = JobState::begin(key.clone(), epoch, entries.next()?, events).ok()?;
    for entry in entries {
        state.apply(entry, &NodesNow::default()).ok()?;
    }
    Some(state)
}

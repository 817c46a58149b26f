//! The service: use cases and policy of a node. Sole caller of the partition stores.
//!
//! It knows owners, tokens, leases, quotas, epochs, generations and attempts. It knows nothing of
//! HTTP and of any medium: stores, catalogs, time, randomness and the arbiter come in by argument.
//!
//! | module | use cases | module | what it keeps or decides |
//! |---|---|---|---|
//! | `job` | create, take over, look at | `registry` | job → dataset → partition → attempts |
//! | `lease` | renew | `shared` | records in the node's catalog and the shared one |
//! | `dataset` | declare, list | `records` | keys and codec of those records |
//! | `attempt` | open, look at, abort | `arbiter` | which attempt of a generation wins |
//! | `append` | frame streams, raw bodies | `admission` | life, quota, memory before bytes |
//! | `seal` | prepare, decide, publish | `reaper` | expired leases, releases that failed |
//! | `read`, `fetch` | one range, many | `recover` | what a start finds, and what is in force |
//! | `acknowledge` | floors, checkpoints | `events` | the ring of events per job |
//! | `availability` | states, listings | `auth` | tokens |
//! | `release` | job, dataset, partition | `orphans` | what dead jobs left on a shared medium |
//! | `inventory` | what this node holds | `counters` | what is counted |
//!
//! Values of calls stand in [`calls`], refusals in [`error`], limits in [`config`].
//!
//! # Rules that hold everywhere
//! * A record is in the catalog before an answer relies on it; reads refuse from the record on.
//! * No lock is held over a call of a store; what was decided before such a call is checked again
//!   after it, and what a late winner left behind is released.
//! * A write names the life of the node. Every method may run side by side with every other and is
//!   cancel-safe: what must run to its end runs in the task group.

pub mod acknowledge;
pub mod admission;
pub mod append;
pub mod arbiter;
pub mod attempt;
pub mod auth;
pub mod availability;
pub mod calls;
pub mod config;
pub mod counters;
pub mod dataset;
pub mod error;
pub mod events;
pub mod fetch;
pub mod inventory;
pub mod job;
pub mod lease;
pub mod orphans;
pub mod read;
pub mod reaper;
mod records;
pub mod recover;
mod registry;
pub mod release;
pub mod seal;
mod shared;
#[cfg(test)]
mod tests;

pub use append::{FrameSink, RawSink};
pub use arbiter::{LocalArbiter, SealArbiter};
pub use auth::hash_token;
pub use calls::*;
pub use config::ServiceConfig;
pub use counters::Counters;
pub use error::{FencedBy, ServiceError, ServiceErrorKind, ServiceResult};
pub use inventory::{Holding, HoldingState};

use orphans::Suspects;
use reaper::Backlog;
use registry::Registry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use store_api::{Catalog, NodeId, NodeLife, SharedClock, SharedMedium, SharedStore, StoreClass, TaskGroup};
use tokio::sync::{oneshot, watch};

/// Draws numbers that nobody can guess: incarnations and tokens.
pub trait RandomSource: Send + Sync + 'static {
    /// The next number.
    fn next_u64(&self) -> u64;
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

impl Stores {
    /// The store of a class.
    #[must_use]
    pub const fn of(&self, class: StoreClass) -> Option<&SharedStore> {
        match class {
            StoreClass::Pipelined => self.pipelined.as_ref(),
            StoreClass::Blocking => self.blocking.as_ref(),
            StoreClass::Durable => self.durable.as_ref(),
        }
    }

    /// Every store that is there.
    pub fn all(&self) -> impl Iterator<Item = &SharedStore> {
        [&self.pipelined, &self.blocking, &self.durable].into_iter().flatten()
    }
}

/// What the service is built from.
pub struct ServiceParts {
    /// The stores.
    pub stores: Stores,
    /// Catalog on this node's disk (or in memory, for a node without one).
    pub local_catalog: Arc<dyn Catalog>,
    /// Catalog in the object store.
    pub shared_catalog: Option<Arc<dyn Catalog>>,
    /// The medium of durable partitions, for taking away what dead jobs left on it.
    pub medium: Option<Arc<dyn SharedMedium>>,
    /// Decides seals of stores whose medium does not.
    pub arbiter: Arc<dyn SealArbiter>,
    /// Time.
    pub clock: SharedClock,
    /// Background work: seals, appends under way, reaper and sweeper.
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
    stores: Stores,
    local_catalog: Arc<dyn Catalog>,
    shared_catalog: Option<Arc<dyn Catalog>>,
    medium: Option<Arc<dyn SharedMedium>>,
    arbiter: Arc<dyn SealArbiter>,
    clock: SharedClock,
    tasks: TaskGroup,
    random: Arc<dyn RandomSource>,
    node: NodeView,
    registry: Registry,
    /// Held while a job id is given out or its records are removed.
    creation: tokio::sync::Mutex<()>,
    draining: watch::Sender<bool>,
    n_writes: Arc<AtomicUsize>,
    n_open_attempts: Arc<AtomicUsize>,
    backlog: Backlog,
    suspects: tokio::sync::Mutex<Suspects>,
    counters: Counters,
    /// This service, for work that outlives the call that began it.
    myself: Weak<Self>,
}

impl std::fmt::Debug for PartitionService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartitionService").field("node", &self.node.location).finish_non_exhaustive()
    }
}

impl PartitionService {
    /// Recovers every store, loads jobs, datasets and release records from the local catalog,
    /// reconciles them (the catalog is the authority) and starts reaper and sweeper. Answers when the node
    /// is ready to serve. Errors: those of stores and catalog; nothing is served then.
    pub async fn start(config: ServiceConfig, parts: ServiceParts) -> ServiceResult<Arc<Self>> {
        let location = Location { node: parts.node, life: parts.life, url: Arc::from(parts.url) };
        let classes = parts.stores.all().map(|store| store.capabilities().class).collect();
        let service = Arc::new_cyclic(|myself| Self {
            config,
            stores: parts.stores,
            local_catalog: parts.local_catalog,
            shared_catalog: parts.shared_catalog,
            medium: parts.medium,
            arbiter: parts.arbiter,
            clock: parts.clock,
            tasks: parts.tasks,
            random: parts.random,
            node: NodeView { location, state: NodeState::Ready, classes },
            registry: Registry::default(),
            creation: tokio::sync::Mutex::new(()),
            draining: watch::Sender::new(false),
            n_writes: Arc::new(AtomicUsize::new(0)),
            n_open_attempts: Arc::new(AtomicUsize::new(0)),
            backlog: Backlog::default(),
            suspects: tokio::sync::Mutex::default(),
            counters: Counters::default(),
            myself: myself.clone(),
        });
        service.recover().await?;
        service.start_reaper();
        service.start_sweeper();
        Ok(service)
    }

    /// The configuration that it runs with.
    #[must_use]
    pub const fn config(&self) -> &ServiceConfig {
        &self.config
    }

    /// What happened so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// This node: location, state, classes.
    #[must_use]
    pub fn node(&self) -> NodeView {
        let state = if self.is_draining() { NodeState::Draining } else { NodeState::Ready };
        NodeView { state, ..self.node.clone() }
    }

    /// Refuses new jobs, datasets and attempts with `Draining` and ends event streams; writes to
    /// open attempts, seals and reads go on. Idempotent.
    pub fn begin_drain(&self) {
        self.draining.send_replace(true);
    }

    /// Whether a drain has begun.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Frame streams, raw appends and seals that run now: a drain waits for 0.
    #[must_use]
    pub fn n_writes_running(&self) -> usize {
        self.n_writes.load(Ordering::Acquire)
    }

    /// Number of jobs that have not ended.
    #[must_use]
    pub fn n_jobs(&self) -> usize {
        self.registry.n_live()
    }

    /// Attempts that can be written, or that a writer still holds.
    #[must_use]
    pub fn n_open_attempts(&self) -> usize {
        self.n_open_attempts.load(Ordering::Acquire)
    }

    /// Sealed attempts that are in force, by class. Asks every dataset for its count: short, no I/O.
    #[must_use]
    pub fn n_sealed(&self, class: StoreClass) -> u64 {
        let jobs = self.registry.live_jobs();
        let of_job = |job: &Arc<registry::Job>| {
            let datasets = job.datasets.read();
            let of_class = datasets.values().filter(|dataset| dataset.spec.kind.class() == class);
            of_class.fold(0_u64, |sum, dataset| sum.saturating_add(dataset.n_sealed.load(Ordering::Relaxed)))
        };
        jobs.iter().map(of_job).fold(0, u64::saturating_add)
    }

    /// Errors: `Closing` when the last handle is gone.
    fn shared_self(&self) -> ServiceResult<Arc<Self>> {
        self.myself.upgrade().ok_or_else(|| ServiceErrorKind::Closing.into())
    }

    /// Runs `work` to its end in the task group and waits for its value; dropping the future does
    /// not stop it. Errors: `Closing` when the runtime goes down first.
    async fn run_to_end<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> ServiceResult<T> {
        let (sender, receiver) = oneshot::channel();
        self.tasks.spawn_to_end(async move {
            // The caller may have left: the work is done all the same.
            let _ = sender.send(work.await);
        });
        receiver.await.map_err(|_| ServiceErrorKind::Closing.into())
    }

    /// Closes the stores: new work is refused, what must be is forced out. Call it after the drain
    /// and before the task group is closed. Idempotent. Errors: the last one of a store; every store
    /// was closed.
    pub async fn close(&self) -> ServiceResult<()> {
        self.begin_drain();
        let mut outcome = Ok(());
        for store in self.stores.all() {
            if let Err(error) = store.close().await {
                outcome = Err(error.into());
            }
        }
        outcome
    }
}

/// One write that runs; a drain waits for it.
type WriteGuard = registry::Counted;

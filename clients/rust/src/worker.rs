//! The worker side of recovery: registering, heartbeats, reports, and what to stop.
//!
//! A worker is a process that runs attempts of tasks. It registers once under a life that it draws,
//! says which attempts it runs, and is told which of them to stop. When its heartbeats stop, what it
//! ran is planned for.
//!
//! ```no_run
//! # async fn example(job: forebay_client::JobHandle) -> forebay_client::Result<()> {
//! use forebay_client::{Worker, WorkerOrder};
//! let mut worker = Worker::register(job, "worker-1").await?;
//! worker.begin("map", 0, "0.0").await?;
//! loop {
//!     // ... compute a little ...
//!     if let Some(WorkerOrder::Stop(attempt)) = worker.beat_if_due().await? {
//!         // ... stop it ...
//!         worker.stopped(&attempt).await?;
//!         break;
//!     }
//! #   break;
//! }
//! worker.finish("map", 0, "0.0").await?;
//! worker.leave().await
//! # }
//! ```

use crate::error::{ClientError, Result};
use crate::job::JobHandle;
use forebay_protocol::ErrorCode;
use forebay_protocol::members::{WorkerDocument, WorkerHeartbeat, WorkerHeartbeatAnswer, WorkerRequest};
use forebay_protocol::recovery::{PartitionTrouble, ReportResult, ReportedState, TaskAttempt, TaskReport};
use http::Method;
use rand::TryRng as _;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use store_api::{NodeLife, WorkerId};

/// What a worker has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerOrder {
    /// Stop this attempt, then say so with [`Worker::stopped`].
    Stop(TaskAttempt),
}

/// A registered worker of a job.
#[derive(Debug)]
pub struct Worker {
    job: JobHandle,
    id: WorkerId,
    life: NodeLife,
    interval: Duration,
    timeout: Duration,
    coordinator_epoch: u64,
    running: BTreeSet<TaskAttempt>,
    orders: VecDeque<TaskAttempt>,
    next_beat: Duration,
}

impl Worker {
    /// Registers under a life drawn at random. Errors: [`ClientError::Refused`] with `unknown_graph`
    /// before the driver has declared the graph.
    pub async fn register(job: JobHandle, id: &str) -> Result<Self> {
        let id = WorkerId::new(id).map_err(|cause| ClientError::invalid_because("the worker id", cause))?;
        let life = rand::rngs::SysRng.try_next_u64().map_err(|cause| ClientError::invalid_because("the system's randomness", cause))?;
        let mut worker = Self {
            job,
            id,
            life: NodeLife::new(life),
            interval: Duration::ZERO,
            timeout: Duration::ZERO,
            coordinator_epoch: 0,
            running: BTreeSet::new(),
            orders: VecDeque::new(),
            next_beat: Duration::ZERO,
        };
        worker.register_again().await?;
        Ok(worker)
    }

    async fn register_again(&mut self) -> Result<()> {
        let request = WorkerRequest { life: self.life.to_string() };
        let call = self.job.call(Method::PUT, &format!("/workers/{}", self.id))?.json(&request)?;
        let (document, _) = self.job.caller.document::<WorkerDocument>(&call).await?;
        self.interval = Duration::from_millis(document.heartbeat_interval_ms);
        self.timeout = Duration::from_millis(document.heartbeat_timeout_ms);
        self.coordinator_epoch = document.coordinator_epoch;
        self.next_beat = self.now().saturating_add(self.interval);
        Ok(())
    }

    fn now(&self) -> Duration {
        self.job.caller.shared.clock.monotonic()
    }

    /// The job.
    #[must_use]
    pub const fn job(&self) -> &JobHandle {
        &self.job
    }

    /// Time between two heartbeats.
    #[must_use]
    pub const fn interval(&self) -> Duration {
        self.interval
    }

    /// Silence after which this worker counts as gone.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The coordinator that answered last; another number means that it was restarted.
    #[must_use]
    pub const fn coordinator_epoch(&self) -> u64 {
        self.coordinator_epoch
    }

    /// Attempts that run here.
    pub fn running(&self) -> impl Iterator<Item = &TaskAttempt> {
        self.running.iter()
    }

    /// An attempt begins here. Answers whether it counts; when not, do not run it. Idempotent.
    pub async fn begin(&mut self, vertex: &str, index: u32, attempt: &str) -> Result<bool> {
        let named = TaskAttempt { vertex: vertex.to_owned(), index, attempt: attempt.to_owned() };
        self.running.insert(named.clone());
        let result = self.report(&named, ReportedState::Running, |_| {}).await?;
        let counts = matches!(result, ReportResult::Accepted | ReportResult::Duplicate);
        if !counts {
            self.running.remove(&named);
        }
        Ok(counts)
    }

    /// An attempt ended well: its outputs are sealed. Answers whether it counts. Idempotent.
    pub async fn finish(&mut self, vertex: &str, index: u32, attempt: &str) -> Result<bool> {
        let named = TaskAttempt { vertex: vertex.to_owned(), index, attempt: attempt.to_owned() };
        let result = self.report(&named, ReportedState::Finished, |_| {}).await?;
        self.running.remove(&named);
        Ok(matches!(result, ReportResult::Accepted | ReportResult::Duplicate))
    }

    /// An attempt failed, perhaps over an input. Idempotent.
    pub async fn fail(&mut self, attempt: &TaskAttempt, input: Option<PartitionTrouble>) -> Result<ReportResult> {
        let result = self.report(attempt, ReportedState::Failed, |report| report.input = input).await?;
        self.running.remove(attempt);
        Ok(result)
    }

    /// An attempt that had to be stopped has stopped. Idempotent.
    pub async fn stopped(&mut self, attempt: &TaskAttempt) -> Result<()> {
        self.report(attempt, ReportedState::Cancelled, |_| {}).await?;
        self.running.remove(attempt);
        self.orders.retain(|order| order != attempt);
        Ok(())
    }

    async fn report(&self, attempt: &TaskAttempt, state: ReportedState, change: impl FnOnce(&mut TaskReport)) -> Result<ReportResult> {
        let mut report = TaskReport {
            vertex: attempt.vertex.clone(),
            index: attempt.index,
            attempt: attempt.attempt.clone(),
            state,
            worker: Some(self.id.to_string()),
            committed: false,
            unrecoverable: false,
            input: None,
        };
        change(&mut report);
        let results = self.job.report(vec![report]).await?;
        results.results.first().copied().ok_or_else(|| ClientError::unexpected("no result for a report"))
    }

    /// Sends a heartbeat if it is time for one, and answers the next order. Call it often: it makes
    /// a call only once per interval.
    pub async fn beat_if_due(&mut self) -> Result<Option<WorkerOrder>> {
        if self.now() >= self.next_beat {
            self.beat().await?;
        }
        Ok(self.next_order())
    }

    /// Waits for the next heartbeat's time, sends it, and answers the next order. Cancel-safe.
    pub async fn next_beat(&mut self) -> Result<Option<WorkerOrder>> {
        let wait = self.next_beat.saturating_sub(self.now());
        self.job.caller.shared.clock.sleep(wait).await;
        self.beat_if_due().await
    }

    /// Sends a heartbeat now; registers again with a coordinator that does not know this worker.
    /// Errors: [`ClientError::Fenced`] when another process has taken this worker's place.
    pub async fn beat(&mut self) -> Result<()> {
        let beat = WorkerHeartbeat { life: self.life.to_string(), running: self.running.iter().cloned().collect() };
        let call = self.job.call(Method::POST, &format!("/workers/{}/heartbeat", self.id))?.json(&beat)?;
        let answer = match self.job.caller.document::<WorkerHeartbeatAnswer>(&call).await {
            Err(error) if error.code() == Some(ErrorCode::UnknownWorker) => {
                self.register_again().await?;
                self.job.caller.document::<WorkerHeartbeatAnswer>(&call).await?.0
            }
            answer => answer?.0,
        };
        self.coordinator_epoch = answer.coordinator_epoch;
        self.next_beat = self.now().saturating_add(self.interval);
        let new: Vec<TaskAttempt> = answer.cancel.into_iter().filter(|one| !self.orders.contains(one)).collect();
        self.orders.extend(new);
        Ok(())
    }

    /// The next order that was not carried out.
    #[must_use]
    pub fn next_order(&self) -> Option<WorkerOrder> {
        self.orders.front().cloned().map(WorkerOrder::Stop)
    }

    /// Leaves in good order: what still runs here is planned for at once.
    pub async fn leave(self) -> Result<()> {
        let call = self.job.call(Method::DELETE, &format!("/workers/{}?life={}", self.id, self.life))?;
        self.job.caller.send(&call).await.map(drop)
    }
}

//! What goes into the calls of a coordinator and comes out of them: plain values.

use super::entry::PlanRecord;
pub use super::entry::Trouble;
use crate::recovery::graph::JobGraph;
use crate::recovery::graph_spec::GraphSpec;
use crate::recovery::policy::Strategy;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use store_api::{AttemptId, DatasetId, JobEpoch, JobId, JobIncarnation, NodeId, NodeLife, PartitionId, WorkerId};

/// One existence of a job id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobKey {
    /// The job.
    pub job: JobId,
    /// Which existence of it.
    pub incarnation: JobIncarnation,
}

/// Declares a graph.
#[derive(Debug, Clone)]
pub struct DeclareGraph {
    /// The shape of the job.
    pub spec: GraphSpec,
    /// Which tasks a plan may restart.
    pub strategy: Strategy,
    /// How long bytes that cannot be reached count as there; the heartbeat timeout when left out.
    pub suspect_grace: Option<Duration>,
    /// Whether declarations of determinism are believed.
    pub determinism: crate::recovery::policy::Determinism,
    /// Options of the restart strategy.
    pub restart: BTreeMap<String, String>,
    /// Epoch of the job's owner.
    pub epoch: JobEpoch,
}

/// A task, by vertex and index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskAddress {
    /// The vertex.
    pub vertex: String,
    /// The index in it.
    pub index: u32,
}

/// A partition with which somebody had trouble.
#[derive(Debug, Clone)]
pub struct InputTrouble {
    /// The dataset.
    pub dataset: DatasetId,
    /// The partition.
    pub partition: PartitionId,
    /// The attempt that was read.
    pub attempt: AttemptId,
    /// What is wrong.
    pub trouble: Trouble,
}

/// What an attempt has come to.
#[derive(Debug, Clone)]
pub enum AttemptNews {
    /// It runs, on this worker if that is known.
    Running {
        /// The worker.
        worker: Option<WorkerId>,
    },
    /// It ended well.
    Finished {
        /// Whether effects of it are published.
        is_committed: bool,
    },
    /// It failed.
    Failed {
        /// Whether a restart cannot help.
        is_unrecoverable: bool,
        /// The input that failed it.
        input: Option<InputTrouble>,
    },
    /// It was stopped.
    Cancelled,
}

/// A report about an attempt.
#[derive(Debug, Clone)]
pub struct AttemptReport {
    /// The task.
    pub task: TaskAddress,
    /// The attempt.
    pub attempt: AttemptId,
    /// What it has come to.
    pub news: AttemptNews,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportOutcome {
    /// It counts.
    Accepted,
    /// It was there before.
    Duplicate,
    /// The attempt is out, but another one of the task lives.
    AttemptDropped,
    /// The attempt was being stopped: it counts as stopped.
    CountsAsCancelled,
    /// Nothing is lost: read on.
    ReadOn,
    /// The attempt is not current.
    NotCurrent,
    /// Another attempt of the partition is current.
    LookUpAgain,
    /// It was sent to an earlier coordinator.
    OldCoordinator,
    /// The job does not have it.
    Unknown,
}

/// What became of reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// One for each report, in their order.
    pub outcomes: Vec<ReportOutcome>,
    /// The plan that followed.
    pub plan: Option<u64>,
}

/// Failures that are not those of one attempt.
#[derive(Debug, Clone, Default)]
pub struct Failures {
    /// Partitions that readers had trouble with.
    pub partitions: Vec<InputTrouble>,
    /// Workers that are gone.
    pub workers: Vec<WorkerId>,
    /// Tasks whose current attempts failed.
    pub tasks: Vec<TaskAddress>,
    /// Everything restarts.
    pub restart_all: bool,
    /// The version of the graph for which everything restarts; any when left out.
    pub graph_version: Option<u64>,
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobStanding {
    /// Tasks run or wait for their turn.
    Running,
    /// A plan is being carried out.
    Restarting,
    /// There is work, and no worker.
    Blocked,
    /// Published effects stand against a restart.
    Inconsistent,
    /// No valid plan under the policy.
    Unrecoverable,
    /// The job is given up.
    GivenUp,
    /// Every task has finished.
    Finished,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphView {
    /// The job.
    pub key: JobKey,
    /// The coordinator.
    pub coordinator_epoch: u64,
    /// Raised with every plan.
    pub graph_version: u64,
    /// Where the job stands.
    pub standing: JobStanding,
    /// Tasks by state: created, scheduled, running, finished, failed.
    pub n_by_state: [u32; 5],
    /// Workers that are alive.
    pub n_workers: u32,
    /// Plans so far.
    pub n_plans: u64,
}

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskStanding {
    /// Never started.
    Created,
    /// Scheduled by a plan.
    Scheduled,
    /// Runs.
    Running,
    /// Ended well.
    Finished,
    /// Failed.
    Failed,
}

/// A task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskView {
    /// Which.
    pub task: TaskAddress,
    /// Where it stands.
    pub standing: TaskStanding,
    /// Attempts that count.
    pub attempts: Vec<AttemptId>,
    /// Former attempts whose end is awaited.
    pub stopping: Vec<AttemptId>,
    /// The worker of the first attempt.
    pub worker: Option<WorkerId>,
}

/// How far a plan is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanStage {
    /// Only asked for.
    DryRun,
    /// Attempts that it stops have not all ended, or its delay is not over.
    Stopping,
    /// Its tasks may be started.
    Ready,
    /// All its tasks run, have finished, or are taken over.
    Done,
    /// It has no actions.
    Final,
}

/// A plan.
#[derive(Debug, Clone)]
pub struct PlanView {
    /// The job.
    pub job: JobId,
    /// What was planned.
    pub record: Arc<PlanRecord>,
    /// Names of tasks and datasets.
    pub graph: Arc<JobGraph>,
    /// How far it is.
    pub stage: PlanStage,
}

/// How a member answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberStanding {
    /// It answers.
    Up,
    /// It has been silent for a while.
    Suspect,
    /// It counts as gone.
    Lost,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerView {
    /// Which.
    pub worker: WorkerId,
    /// Which start of it.
    pub life: NodeLife,
    /// How it answers.
    pub standing: MemberStanding,
}

/// An attempt of a task.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskAttempt {
    /// The task.
    pub task: TaskAddress,
    /// The attempt.
    pub attempt: AttemptId,
}

/// Where a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePlace {
    /// The node.
    pub node: NodeId,
    /// Which start of it.
    pub life: NodeLife,
    /// Its base URL.
    pub url: String,
}

/// What a node holds of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldState {
    /// It is being written.
    Open,
    /// Its content is final.
    Sealed,
    /// It was there and is gone.
    Lost,
    /// It is there and damaged.
    Corrupt,
    /// Nothing of it.
    Absent,
}

/// A partition on a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HeldKey {
    /// The job.
    pub job: JobKey,
    /// The dataset.
    pub dataset: DatasetId,
    /// The partition.
    pub partition: PartitionId,
}

/// What a node holds of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The attempt.
    pub attempt: AttemptId,
    /// What it is.
    pub state: HeldState,
    /// Bytes of it.
    pub bytes: u64,
    /// Whether every node of the object store can serve it.
    pub is_shared: bool,
}

/// A node is alive, and this has changed there.
#[derive(Debug, Clone)]
pub struct NodeReport {
    /// Where it is.
    pub place: NodePlace,
    /// 0 with everything; then one more each time.
    pub sequence: u64,
    /// Everything, or what has changed.
    pub held: Vec<(HeldKey, Held)>,
}

/// What a node has to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeOrders {
    /// The next report has to carry everything.
    pub begin_anew: bool,
    /// Attempts to give back.
    pub release: Vec<(HeldKey, Held)>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// Where it is.
    pub place: NodePlace,
    /// How it answers.
    pub standing: MemberStanding,
    /// Partitions that it holds.
    pub n_held: u64,
}

/// Where a partition is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// The partition.
    pub partition: PartitionId,
    /// What is there.
    pub held: Held,
    /// Where.
    pub place: NodePlace,
}

/// Proposes a sealed attempt as the content of a partition.
#[derive(Debug, Clone)]
pub struct SealProposal {
    /// The partition.
    pub key: HeldKey,
    /// The attempt.
    pub attempt: AttemptId,
    /// The node that holds it.
    pub node: NodeId,
    /// The life of that node.
    pub life: NodeLife,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryEventKind {
    /// A plan was made.
    Plan,
    /// A plan is ready.
    Ready,
    /// An attempt ended badly.
    AttemptFailed,
    /// A worker is gone.
    WorkerLost,
    /// A partition is lost.
    PartitionLost,
    /// There is work, and no worker.
    Blocked,
    /// Every task has finished.
    Finished,
    /// Events may have been missed.
    Reset,
}

/// What an event is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventSubject {
    /// The plan.
    pub plan: Option<u64>,
    /// The attempt.
    pub attempt: Option<TaskAttempt>,
    /// The worker.
    pub worker: Option<WorkerId>,
    /// The partition.
    pub partition: Option<(DatasetId, u64)>,
}

/// Where to go on after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveryCursor {
    /// The coordinator.
    pub epoch: u64,
    /// The event.
    pub sequence: u64,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryEvent {
    /// Where to go on after it.
    pub cursor: RecoveryCursor,
    /// What happened.
    pub kind: RecoveryEventKind,
    /// The job.
    pub job: JobId,
    /// To what.
    pub subject: EventSubject,
}

//! Documents of plans: what restarts, what is read again, why, and at what cost.

use crate::recovery::{StrategyName, TaskAttempt, TaskName};
use serde::{Deserialize, Serialize};

/// What comes out of planning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictName {
    /// Nothing has to restart.
    Nothing,
    /// The actions of the plan bring the job back.
    Restart,
    /// Tasks whose effects are published would have to run again.
    Inconsistent,
    /// The job fails: a restart cannot help.
    Unrecoverable,
    /// The job fails: the restart budget is used up.
    NoBudget,
    /// The failed tasks alone do not suffice, and the policy allows no more.
    NotIndividuallyRecoverable,
    /// Bytes between where a consumer begins and where its producer begins are held by nobody.
    RestorePointRejected,
}

/// The rule that brought a task into a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleName {
    /// Its last attempt failed.
    Failed,
    /// Every attempt of it was on a worker that is gone.
    WorkerLost,
    /// An earlier plan stopped it and it has not run since.
    Stopped,
    /// Its re-run wrote something else than the run before it.
    ReplayedDifferently,
    /// A reader needs bytes of it that are not to be had any more.
    Need,
    /// It has seen bytes that are written anew, perhaps differently.
    Taint,
    /// It restarts only together with another task.
    Gang,
    /// Everything restarts.
    Everything,
}

/// Why a task is in a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BecauseDocument {
    /// The vertex of the task.
    pub vertex: String,
    /// The index of the task.
    pub index: u32,
    /// The rule.
    pub rule: RuleName,
    /// The task through which it came in: the reader, the producer, the other of the gang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<TaskName>,
    /// The dataset over which it came in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// The partition over which it came in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u64>,
}

/// A partition as one attempt wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionAttemptDocument {
    /// The dataset.
    pub dataset: String,
    /// The partition.
    pub partition: u64,
    /// The attempt.
    pub attempt: String,
}

/// Who reads one partition, and from where. One row stands for any number of consumers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadRowDocument {
    /// The dataset.
    pub dataset: String,
    /// The partition.
    pub partition: u64,
    /// The attempt of it that is read.
    pub attempt: String,
    /// The consumer group.
    pub group: String,
    /// The vertex that reads.
    pub vertex: String,
    /// The consumers: ascending half-open ranges of indices, `[start, end]`.
    pub consumers: Vec<Vec<u32>>,
    /// First byte read by every consumer that is not in `others`; they read nothing when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// Consumers that begin elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<ReaderOffset>,
}

/// Where one consumer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReaderOffset {
    /// Index of the consumer.
    pub index: u32,
    /// First byte read; nothing is read when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
}

/// Tasks that start together, after everything in the waves before them that they wait for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaveDocument {
    /// The tasks, producers before their consumers.
    pub tasks: Vec<TaskName>,
    /// Some of them wait for a seal by others of them: they need slots for all at once.
    pub has_inner_seal: bool,
}

/// What a plan costs, in tasks and bytes, as far as it is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostDocument {
    /// Tasks that run again.
    pub n_tasks: u32,
    /// Bytes that exist and are read once more.
    pub reread_bytes: u64,
    /// Bytes that existed and are written once more.
    pub recomputed_bytes: u64,
}

/// How far a plan is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanProgress {
    /// Only asked for: nothing is carried out.
    DryRun,
    /// Attempts that it stops have not all ended, or its delay is not over.
    Stopping,
    /// Its tasks may be started.
    Ready,
    /// All its tasks run, have finished, or are taken over by a newer plan.
    Done,
    /// It has no actions: see the verdict.
    Final,
}

/// What to do after a failure. Carry it out in this order: stop what `cancel` names and report it
/// `cancelled`; when the plan is `ready`, start `restart` wave by wave, each task with the attempt
/// named here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanDocument {
    /// The job.
    pub job: String,
    /// Its number, from 1; 0 for a dry run.
    pub plan: u64,
    /// The coordinator that made it.
    pub coordinator_epoch: u64,
    /// Epoch of the job's owner.
    pub job_epoch: u64,
    /// The version of the graph that it was made from.
    pub graph_version: u64,
    /// How far it is.
    pub progress: PlanProgress,
    /// The strategy that was followed.
    pub strategy: StrategyName,
    /// What came out.
    pub verdict: VerdictName,
    /// Tasks that run again, each with its new attempt.
    pub restart: Vec<TaskAttempt>,
    /// Attempts to stop.
    pub cancel: Vec<TaskAttempt>,
    /// Outputs that are given back.
    pub release: Vec<PartitionAttemptDocument>,
    /// Outputs of restarted tasks that stay.
    pub keep: Vec<PartitionAttemptDocument>,
    /// Outputs that restarted consumers read again.
    pub reread: Vec<ReadRowDocument>,
    /// Consumers left alone whose producer runs again.
    pub resume: Vec<ReadRowDocument>,
    /// The order in which to start.
    pub waves: Vec<WaveDocument>,
    /// Why each task is in it.
    pub because: Vec<BecauseDocument>,
    /// What stands against restarting the failed tasks alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub obstacles: Vec<BecauseDocument>,
    /// Tasks whose published effects stand against the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub committed: Vec<TaskName>,
    /// Whether obstacles were ignored on demand: bytes may be missing or doubled.
    pub lossy: bool,
    /// Time between the plan and the start of its tasks, in milliseconds.
    pub delay_ms: u64,
    /// What it costs.
    pub cost: CostDocument,
    /// What restarting everything would cost.
    pub cost_of_full: CostDocument,
}

/// A plan in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanSummary {
    /// Its number.
    pub plan: u64,
    /// How far it is.
    pub progress: PlanProgress,
    /// What came out.
    pub verdict: VerdictName,
    /// The strategy that was followed.
    pub strategy: StrategyName,
    /// What it costs.
    pub cost: CostDocument,
    /// What restarting everything would cost.
    pub cost_of_full: CostDocument,
}

/// The plans of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanList {
    /// The coordinator that answers.
    pub coordinator_epoch: u64,
    /// The plans, oldest first.
    pub plans: Vec<PlanSummary>,
}

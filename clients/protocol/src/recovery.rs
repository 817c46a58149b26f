//! Documents about recovery: job graphs, states of tasks, failures, plans.
//!
//! A task is named by its vertex and its index in it; an attempt of it by `{generation}.{attempt}`,
//! which is also the attempt that it opens at its partitions.

use crate::datasets::{Kind, RetentionName, default_group};
use crate::partitions::Location;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which producers a consumer reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PatternName {
    /// Every consumer reads every producer.
    AllToAll,
    /// Neighbours only, divided as evenly as the two parallelisms allow.
    Pointwise,
}

/// Which tasks a plan may restart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StrategyName {
    /// The least set that gives every reader every byte, once, of one version.
    #[default]
    Region,
    /// What failed, and nothing else.
    Individual,
    /// Everything that was ever started.
    Full,
}

/// What to do when the failed tasks alone do not suffice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FallbackName {
    /// Plan by region and say so.
    #[default]
    Escalate,
    /// Plan nothing and list every obstacle.
    Refuse,
    /// Restart the failed tasks all the same; the plan says that bytes may be missing or doubled.
    Lossy,
}

/// Whether a declaration that a vertex repeats itself byte for byte is believed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeterminismName {
    /// Where the store can compare digests.
    #[default]
    Verified,
    /// Always.
    Believed,
    /// Never.
    Ignored,
}

/// Which tasks of a gang belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GangScopeName {
    /// Tasks of the same index, one of each vertex.
    SameIndex,
    /// All tasks of all the vertices.
    AllTasks,
}

/// One vertex: a stage of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VertexDocument {
    /// Its name, in the alphabet of ids.
    pub name: String,
    /// Number of its tasks.
    pub parallelism: u32,
    /// Whether the same input always gives the same output, byte for byte.
    #[serde(default)]
    pub deterministic: bool,
}

/// One group of readers of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReaderDocument {
    /// Name of the group; `default` when it is left out.
    #[serde(default = "default_group")]
    pub group: String,
    /// The vertex whose tasks read.
    pub vertex: String,
    /// Who reads whom.
    pub pattern: PatternName,
}

/// One dataset: what a vertex writes and who reads it. Task `i` of the producer writes partition `i`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EdgeDocument {
    /// The dataset.
    pub dataset: String,
    /// The vertex that writes it.
    pub producer: String,
    /// Its kind.
    pub kind: Kind,
    /// Its retention, for pipelined datasets; `until_acknowledged` when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<RetentionName>,
    /// Its readers.
    #[serde(default)]
    pub readers: Vec<ReaderDocument>,
}

/// Vertices whose tasks are placed together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GangDocument {
    /// The vertices.
    pub vertices: Vec<String>,
    /// Which of their tasks belong together.
    pub scope: GangScopeName,
    /// Whether a restart of one restarts the others.
    #[serde(default)]
    pub restarts_together: bool,
}

/// How the job recovers. Every member may be left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyDocument {
    /// Which tasks a plan may restart; `region` when it is left out.
    pub strategy: StrategyName,
    /// For `individual`: what to do when the failed tasks alone do not suffice.
    pub individual_fallback: FallbackName,
    /// How long bytes that cannot be reached count as there, in milliseconds; the coordinator's
    /// heartbeat timeout when it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspect_grace_ms: Option<u64>,
    /// Whether declarations of determinism are believed.
    pub determinism: DeterminismName,
    /// How often and how soon the job may restart: options `restart-strategy.*`. Exponential delay
    /// when none is named.
    pub restart: BTreeMap<String, String>,
}

/// The shape of a job and how it recovers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphRequest {
    /// The vertices.
    pub vertices: Vec<VertexDocument>,
    /// The datasets between them.
    #[serde(default)]
    pub datasets: Vec<EdgeDocument>,
    /// Tasks that are placed together.
    #[serde(default)]
    pub gangs: Vec<GangDocument>,
    /// How the job recovers.
    #[serde(default)]
    pub policy: PolicyDocument,
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobStateName {
    /// Tasks run or wait for their turn.
    Running,
    /// A plan is being carried out.
    Restarting,
    /// There is work, and no worker that could do it.
    Blocked,
    /// Tasks whose effects are published would have to run again; an operator decides.
    Inconsistent,
    /// No valid plan under the policy.
    Unrecoverable,
    /// The restart budget is used up, or a restart cannot help.
    GivenUp,
    /// Every task has finished.
    Finished,
}

/// A job as the coordinator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphDocument {
    /// The job.
    pub job: String,
    /// Which existence of the id.
    pub incarnation: String,
    /// Raised with every start of the coordinator.
    pub coordinator_epoch: u64,
    /// Raised with every plan.
    pub graph_version: u64,
    /// Where the job stands.
    pub state: JobStateName,
    /// Number of tasks.
    pub n_tasks: u32,
    /// How many of them are not started yet.
    pub n_created: u32,
    /// How many are scheduled by a plan and not yet reported running.
    pub n_scheduled: u32,
    /// How many run.
    pub n_running: u32,
    /// How many have finished.
    pub n_finished: u32,
    /// How many have failed and are not planned for.
    pub n_failed: u32,
    /// How many workers are alive.
    pub n_workers: u32,
    /// Number of plans so far; the newest has this number.
    pub n_plans: u64,
}

/// A task.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskName {
    /// Its vertex.
    pub vertex: String,
    /// Its index in the vertex.
    pub index: u32,
}

/// An attempt of a task.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskAttempt {
    /// The vertex of the task.
    pub vertex: String,
    /// The index of the task.
    pub index: u32,
    /// The attempt.
    pub attempt: String,
}

/// What an attempt has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportedState {
    /// It runs.
    Running,
    /// It ended well: its outputs are sealed.
    Finished,
    /// It failed.
    Failed,
    /// It was stopped, as a plan asked.
    Cancelled,
}

/// What is wrong with a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TroubleName {
    /// Broken off in the middle, or busy: read on from the same offset.
    Transient,
    /// Could not be reached.
    Unreachable,
    /// The store says it is not there any more.
    Gone,
    /// It is there and its digest is wrong.
    Corrupt,
}

/// A partition, as a reader found it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionTrouble {
    /// The dataset.
    pub dataset: String,
    /// The partition.
    pub partition: u64,
    /// The attempt of it that was read.
    pub attempt: String,
    /// What is wrong.
    pub trouble: TroubleName,
}

/// One report about an attempt. Repeating it is harmless.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskReport {
    /// The vertex of the task.
    pub vertex: String,
    /// The index of the task.
    pub index: u32,
    /// The attempt.
    pub attempt: String,
    /// What it has come to.
    pub state: ReportedState,
    /// The worker on which it runs, for `running`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// For `finished`: whether effects of it are published outside the job.
    #[serde(default)]
    pub committed: bool,
    /// For `failed`: whether a restart cannot help.
    #[serde(default)]
    pub unrecoverable: bool,
    /// For `failed`: the input that failed it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<PartitionTrouble>,
}

/// Reports about attempts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskReports {
    /// The coordinator that the reporter believes in; a report to an older one is dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordinator_epoch: Option<u64>,
    /// The reports, in their order.
    pub reports: Vec<TaskReport>,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportResult {
    /// It counts.
    Accepted,
    /// It was there before.
    Duplicate,
    /// The attempt is out, but another one of the task lives.
    AttemptDropped,
    /// The attempt was being stopped: it counts as stopped, and its outputs are not used.
    CountsAsCancelled,
    /// Nothing is lost: read on from the same offset.
    ReadOn,
    /// It speaks of an attempt that is not current; stop it.
    NotCurrent,
    /// It speaks of another attempt of the partition than the current one: look it up again.
    LookUpAgain,
    /// It was sent to an earlier coordinator.
    OldCoordinator,
    /// It speaks of something that the job does not have.
    Unknown,
}

/// What became of reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportResults {
    /// The coordinator that answers.
    pub coordinator_epoch: u64,
    /// One for each report, in their order.
    pub results: Vec<ReportResult>,
    /// The plan that followed, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<u64>,
}

/// Failures that are not those of one attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FailureRequest {
    /// Partitions that readers had trouble with.
    pub partitions: Vec<PartitionTrouble>,
    /// Workers that are known to be gone.
    pub workers: Vec<String>,
    /// Tasks whose attempts failed; their current attempts are meant.
    pub tasks: Vec<TaskName>,
    /// Something that all tasks rest on is gone: everything restarts.
    pub restart_all: bool,
    /// With `restart_all`: the version of the graph in which that happened. With it, repeating the
    /// report is harmless; a report about an older version changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph_version: Option<u64>,
}

/// What would fail, for a dry run. Empty: what is wrong now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlanRequest {
    /// Partitions that would be in trouble.
    pub partitions: Vec<PartitionTrouble>,
    /// Workers that would be gone.
    pub workers: Vec<String>,
    /// Nodes that would be gone.
    pub nodes: Vec<String>,
    /// Tasks that would fail.
    pub tasks: Vec<TaskName>,
    /// Everything would have to restart.
    pub restart_all: bool,
    /// The strategy to plan by; the job's when it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<StrategyName>,
}

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskStateName {
    /// Never started.
    Created,
    /// A plan has given it an attempt that is not reported running yet.
    Scheduled,
    /// An attempt runs.
    Running,
    /// An attempt ended well.
    Finished,
    /// The last attempt failed.
    Failed,
}

/// A task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskDocument {
    /// Its vertex.
    pub vertex: String,
    /// Its index.
    pub index: u32,
    /// Where it stands.
    pub state: TaskStateName,
    /// Attempts that count, `{generation}.{attempt}`.
    pub attempts: Vec<String>,
    /// Former attempts whose end is awaited.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stopping: Vec<String>,
    /// The worker of the first of them, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
}

/// The tasks of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskList {
    /// Raised with every plan.
    pub graph_version: u64,
    /// The tasks, by vertex as declared and by index.
    pub tasks: Vec<TaskDocument>,
}

/// What happened to a job's recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryEventKind {
    /// A plan was made: stop what it stops.
    Plan,
    /// A plan is ready: start its tasks.
    Ready,
    /// An attempt ended badly.
    AttemptFailed,
    /// A worker is gone.
    WorkerLost,
    /// A partition is lost.
    PartitionLost,
    /// There is work, and no worker that could do it.
    Blocked,
    /// Every task has finished.
    Finished,
    /// The cursor is too old or of another coordinator: ask for the tasks and plans, then follow on.
    Reset,
}

impl RecoveryEventKind {
    /// The name, as it stands in the `event:` line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Ready => "ready",
            Self::AttemptFailed => "attempt_failed",
            Self::WorkerLost => "worker_lost",
            Self::PartitionLost => "partition_lost",
            Self::Blocked => "blocked",
            Self::Finished => "finished",
            Self::Reset => "reset",
        }
    }
}

/// One event. Its `id:` line is the cursor `{coordinator epoch}-{sequence}` to resume after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryEventDocument {
    /// What happened.
    pub kind: RecoveryEventKind,
    /// The job.
    pub job: String,
    /// The plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<u64>,
    /// The attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<TaskAttempt>,
    /// The worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// The partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u64>,
}

/// Asks where partitions are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocateRequest {
    /// The dataset.
    pub dataset: String,
    /// The partitions; every one that is held somewhere when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<Vec<u64>>,
}

/// Where a partition is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocatedPartition {
    /// The partition.
    pub partition: u64,
    /// The attempt that is there.
    pub attempt: String,
    /// Whether its content is final.
    pub sealed: bool,
    /// The node that holds it.
    pub location: Location,
}

/// Where partitions are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocateDocument {
    /// Those that are held by a node that answers.
    pub partitions: Vec<LocatedPartition>,
}

//! Documents about workers and nodes: who is there, and what nodes hold.

use crate::partitions::Location;
use crate::recovery::TaskAttempt;
use serde::{Deserialize, Serialize};

/// How a member answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It answers.
    Up,
    /// It has been silent for a while.
    Suspect,
    /// It counts as gone.
    Lost,
}

/// Registers a worker: a process that computes. Repeating it is harmless; another life takes the
/// place of the former one, and what ran there has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerRequest {
    /// Which start of the worker this is, 16 hexadecimal digits drawn at random.
    pub life: String,
}

/// What a worker has to keep to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerDocument {
    /// The coordinator that answers.
    pub coordinator_epoch: u64,
    /// Time between two heartbeats, in milliseconds.
    pub heartbeat_interval_ms: u64,
    /// Silence after which the worker counts as gone, in milliseconds.
    pub heartbeat_timeout_ms: u64,
}

/// A worker is alive and runs these attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerHeartbeat {
    /// Which start of the worker this is.
    pub life: String,
    /// Attempts that run there.
    pub running: Vec<TaskAttempt>,
}

/// What a worker has to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerHeartbeatAnswer {
    /// The coordinator that answers.
    pub coordinator_epoch: u64,
    /// Attempts to stop, out of those that it runs.
    pub cancel: Vec<TaskAttempt>,
}

/// A worker in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerEntry {
    /// The worker.
    pub worker: String,
    /// Which start of it.
    pub life: String,
    /// How it answers.
    pub standing: Standing,
}

/// The workers of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerList {
    /// The workers.
    pub workers: Vec<WorkerEntry>,
}

/// What a node holds of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldState {
    /// It is being written.
    Open,
    /// Its content is final.
    Sealed,
    /// It was there and is gone.
    Lost,
    /// It is there and damaged.
    Corrupt,
    /// The node has nothing of the partition any more.
    Absent,
}

/// What a node holds of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldPartition {
    /// The job.
    pub job: String,
    /// Which existence of the job id.
    pub incarnation: String,
    /// The dataset.
    pub dataset: String,
    /// The partition.
    pub partition: u64,
    /// The attempt.
    pub attempt: String,
    /// What it is.
    pub state: HeldState,
    /// Bytes of it.
    pub bytes: u64,
    /// Whether every node of the object store can serve it.
    #[serde(default)]
    pub shared: bool,
}

/// A node is alive, and this has changed there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeHeartbeat {
    /// Node, life and base URL.
    pub location: Location,
    /// Number of this report: one more than the last that was answered. 0 begins anew and carries
    /// everything that the node holds.
    pub sequence: u64,
    /// Everything, or what has changed since the report before.
    pub held: Vec<HeldPartition>,
}

/// What a node has to do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHeartbeatAnswer {
    /// The coordinator that answers.
    pub coordinator_epoch: u64,
    /// Whether the next report has to carry everything.
    pub begin_anew: bool,
    /// Attempts to give back: something newer has taken their place.
    pub release: Vec<HeldPartition>,
}

/// A node in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEntry {
    /// Node, life and base URL.
    pub location: Location,
    /// How it answers.
    pub standing: Standing,
    /// Partitions that it holds.
    pub n_held: u64,
}

/// The nodes that a coordinator knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeList {
    /// The coordinator that answers.
    pub coordinator_epoch: u64,
    /// The nodes, by id.
    pub nodes: Vec<NodeEntry>,
}

/// Asks which attempt of a generation is the content of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealProposal {
    /// The job.
    pub job: String,
    /// Which existence of the job id.
    pub incarnation: String,
    /// The dataset.
    pub dataset: String,
    /// The partition.
    pub partition: u64,
    /// The attempt that is proposed.
    pub attempt: String,
    /// The node that holds it.
    pub node: String,
    /// The life of that node.
    pub life: String,
    /// Takes the decision back instead, if it was for this attempt and node.
    #[serde(default)]
    pub withdraw: bool,
}

/// Which attempt it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealDecision {
    /// The attempt.
    pub attempt: String,
}

/// What is done to the shared catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CatalogAction {
    /// Reads one entry.
    Get,
    /// Writes one entry.
    Put,
    /// Removes one entry.
    Delete,
    /// Reads every entry whose key starts with `key`.
    Scan,
}

/// One call of the shared catalog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogRequest {
    /// What is done.
    pub action: CatalogAction,
    /// The key, or the beginning of keys.
    pub key: String,
    /// For `put`: the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// For `put`: only if the entry has this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_version: Option<String>,
    /// For `put`: only if there is no entry.
    #[serde(default)]
    pub if_absent: bool,
}

/// An entry of the shared catalog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogEntryDocument {
    /// Its key.
    pub key: String,
    /// Its value; left out in the answer to a `put`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Its version.
    pub version: String,
}

/// What a call of the shared catalog answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogAnswer {
    /// The entries that were read, or the one that was written.
    pub entries: Vec<CatalogEntryDocument>,
    /// For `put`: the entry was not as expected, and nothing was written.
    pub conflict: bool,
}

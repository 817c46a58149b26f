//! Documents about jobs, leases and checkpoints.

use crate::datasets::{Kind, RetentionName};
use serde::{Deserialize, Serialize};

/// Creates a job or takes one over. Every member may be left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobRequest {
    /// Names the owner. A repeat with the nonce of the present owner is answered like the first
    /// call; another nonce needs `take_over`. At most 128 characters.
    pub owner_nonce: String,
    /// The job's token, chosen by the client (16 to 256 visible ASCII characters), so that a lost
    /// answer does not lose it. Drawn by the service when it is left out and tokens are on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_secret: Option<String>,
    /// Kind of datasets that name none. `blocking` when it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_kind: Option<Kind>,
    /// Retention of pipelined datasets that name none. `until_acknowledged` when it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_retention: Option<RetentionName>,
    /// Length of the lease, in milliseconds; 300,000 when it is left out, within the bounds of the
    /// node's configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// Most bytes that the job may hold on this node, all media together; no limit when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// Makes another nonce the owner: raises the epoch and fences the former owner's control calls.
    pub take_over: bool,
    /// With `take_over`: also aborts every unsealed attempt.
    pub fence_writers: bool,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDocument {
    /// The id.
    pub job: String,
    /// Which existence of the id, 16 hexadecimal digits.
    pub incarnation: String,
    /// Epoch of the present owner.
    pub epoch: u64,
    /// Kind of datasets that name none.
    pub default_kind: Kind,
    /// Length of the lease, in milliseconds.
    pub lease_ms: u64,
    /// What is left of the lease, in milliseconds.
    pub lease_remaining_ms: u64,
    /// Most bytes that the job may hold on this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// What the job holds on this node, in bytes.
    pub held: HeldDocument,
    /// Number of datasets.
    pub n_datasets: u64,
    /// The job's token, only in the answer that created it and only when tokens are on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// Bytes held, by medium.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldDocument {
    /// In memory.
    pub memory: u64,
    /// On local disk.
    pub disk: u64,
    /// In the object store.
    pub object: u64,
}

/// All jobs that this node knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobList {
    /// The jobs, by id.
    pub jobs: Vec<JobDocument>,
}

/// Renews a lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LeaseRequest {
    /// New length of the lease, in milliseconds; the present one when it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
}

/// A lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseDocument {
    /// Its length, in milliseconds.
    pub lease_ms: u64,
    /// What is left of it, in milliseconds.
    pub lease_remaining_ms: u64,
}

/// A checkpoint of the job is complete: restarts will not go back before it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointCompletion {
    /// Where a restarted consumer will read from.
    #[serde(default)]
    pub need: Vec<NeedPosition>,
    /// Where a restarted producer will write from.
    #[serde(default)]
    pub rewind: Vec<RewindPosition>,
}

/// Offset from which a restarted consumer will read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeedPosition {
    /// The dataset.
    pub dataset: String,
    /// The partition.
    pub partition: u64,
    /// The subpartition.
    pub subpartition: u32,
    /// The consumer group; `default` when it is left out.
    #[serde(default = "crate::datasets::default_group")]
    pub group: String,
    /// First byte that a restarted consumer needs.
    pub offset: u64,
}

/// Offset from which a restarted producer will write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RewindPosition {
    /// The dataset.
    pub dataset: String,
    /// The partition.
    pub partition: u64,
    /// The subpartition.
    pub subpartition: u32,
    /// First byte that a restarted producer writes.
    pub offset: u64,
}

/// What a checkpoint let go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointDocument {
    /// The checkpoint.
    pub checkpoint: u64,
    /// Bytes that were let go.
    pub freed_bytes: u64,
}

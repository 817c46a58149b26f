//! Documents about datasets and their listings.

use crate::partitions::{ClassDocument, ManifestDocument};
use serde::{Deserialize, Serialize};

/// How an intermediate result is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// In memory, readable while it is produced.
    Pipelined,
    /// On the node's disk, readable after the seal.
    Blocking,
    /// In the object store, readable after the seal through any node.
    Durable,
}

/// What a pipelined dataset keeps of the bytes that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetentionName {
    /// What is not yet acknowledged; a full buffer pushes back.
    UntilAcknowledged,
    /// Read bytes too, oldest dropped first when memory is needed.
    BestEffort,
    /// Everything since the last completed checkpoint.
    SinceCheckpoint,
}

/// Who decides which attempt of a generation counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArbitrationName {
    /// The first valid seal.
    #[default]
    Store,
    /// The engine; every sealed attempt is readable by its name.
    Engine,
}

/// The group that acknowledges when none is declared.
#[must_use]
pub fn default_group() -> String {
    "default".to_owned()
}

/// Declares a dataset. A repeat with the same members is a success; with others, a conflict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetRequest {
    /// The kind; the job's default when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// The retention, for pipelined datasets only; the job's default when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<RetentionName>,
    /// Number of partitions; open-ended when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<u64>,
    /// Number of subpartitions of each partition, 1 to 1,048,576.
    pub subpartitions: u32,
    /// Stored once and served as every subpartition.
    #[serde(default)]
    pub broadcast: bool,
    /// Who decides which attempt counts.
    #[serde(default)]
    pub arbitration: ArbitrationName,
    /// Consumer groups of a pipelined dataset; one called `default` when it is left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// A note about the content's coding, kept and handed back; at most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

impl DatasetRequest {
    /// A dataset of the job's default kind.
    #[must_use]
    pub const fn new(subpartitions: u32) -> Self {
        Self {
            kind: None,
            retention: None,
            partitions: None,
            subpartitions,
            broadcast: false,
            arbitration: ArbitrationName::Store,
            groups: Vec::new(),
            content: None,
        }
    }
}

/// A dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetDocument {
    /// The job.
    pub job: String,
    /// The id.
    pub dataset: String,
    /// The kind.
    pub kind: Kind,
    /// The retention of a pipelined dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<RetentionName>,
    /// Number of partitions, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<u64>,
    /// Number of subpartitions of each partition.
    pub subpartitions: u32,
    /// Stored once and served as every subpartition.
    pub broadcast: bool,
    /// Who decides which attempt counts.
    pub arbitration: ArbitrationName,
    /// Consumer groups of a pipelined dataset.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// The note about the content's coding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// The class that its sealed partitions reach on this node.
    pub class: ClassDocument,
    /// Number of partitions sealed on this node or found through it.
    pub n_sealed: u64,
    /// Bytes of those partitions.
    pub sealed_bytes: u64,
}

/// The datasets of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetList {
    /// The datasets, by id.
    pub datasets: Vec<DatasetDocument>,
}

/// One page of the sealed partitions of a dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionPage {
    /// The sealed partitions, by number and attempt.
    pub partitions: Vec<ManifestDocument>,
    /// The `after` of the next page; left out on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<String>,
}

/// What a release gave back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseDocument {
    /// Attempts that were dropped.
    pub n_attempts: u64,
    /// Bytes that were given back, or will be when the last reader is gone.
    pub bytes: u64,
}

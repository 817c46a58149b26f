//! Documents about partitions, attempts, appends and seals.

use serde::{Deserialize, Serialize};

/// The state of a partition, as one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartitionStateName {
    /// No attempt has been opened.
    NotWritten,
    /// An attempt is being written.
    Open,
    /// Readable and final.
    Sealed,
    /// Released by its owner.
    Released,
    /// Gone with the lease of its job.
    Expired,
    /// Made once, and not to be had any more.
    Lost,
    /// A higher generation has been opened.
    Superseded,
    /// Ended without a result.
    Aborted,
    /// The job, dataset or partition never existed.
    Unknown,
}

/// The class achieved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassDocument {
    /// `pipelined`, `blocking` or `durable`.
    pub class: String,
    /// What it survives: `volatile`, `local` or `shared`.
    pub durability: String,
    /// When it was forced to the medium: `full`, `data` or `none`.
    pub sync: String,
    /// Where it lives: `node_life`, `node_disk`, `this_file_system` or `object_store`.
    pub scope: String,
}

impl ClassDocument {
    /// The class in one line, as it stands in a header.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}; durability={}; sync={}; scope={}", self.class, self.durability, self.sync, self.scope)
    }
}

/// Where something is held.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Location {
    /// The node.
    pub node: String,
    /// Its life, 16 hexadecimal digits.
    pub life: String,
    /// Its base URL.
    pub url: String,
}

/// Numbers per subpartition. Without `indices` the lists go over all subpartitions from 0; with
/// it, over those named, and all others are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubpartitionLists {
    /// The subpartitions named, ascending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub indices: Option<Vec<u32>>,
    /// Length of each, in bytes.
    pub lengths: Vec<u64>,
    /// CRC-32C of each, as a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crcs: Option<Vec<u32>>,
}

/// Opens an attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OpenAttemptRequest {
    /// The generation; raising it needs the owner's epoch.
    pub generation: u32,
    /// The attempt within the generation.
    pub attempt: u32,
    /// Start offsets that are not 0 (pipelined only).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub starts: Vec<SubpartitionOffset>,
}

/// An offset in a subpartition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubpartitionOffset {
    /// The subpartition.
    pub subpartition: u32,
    /// The offset.
    pub offset: u64,
}

/// Where an attempt stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptDocument {
    /// `{generation}.{attempt}`.
    pub attempt: String,
    /// Its state: `open`, `prepared`, `sealed`, `aborted`, `superseded`, `released` or `lost`.
    pub state: String,
    /// The node that holds it.
    pub location: Location,
    /// Sequence of the next frame.
    pub next_sequence: u64,
    /// Tails that are not 0, ascending.
    pub tails: Vec<SubpartitionOffset>,
    /// Largest payload of a frame, in bytes.
    pub max_frame_bytes: u64,
    /// Raw bodies up to this size are stored wholly or not at all; longer ones chunk by chunk.
    pub atomic_append_bytes: u64,
}

/// The end of a raw append.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppendDocument {
    /// Tail of the subpartition.
    pub end_offset: u64,
    /// Bytes that were new; repeats count nothing.
    pub new_bytes: u64,
}

/// The end of a frame stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FramesDocument {
    /// Sequence of the next frame.
    pub next_sequence: u64,
    /// Bytes that were new; repeats count nothing.
    pub new_bytes: u64,
}

/// Seals an attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SealRequest {
    /// What the writer says it wrote; what is held is taken when it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subpartitions: Option<SubpartitionLists>,
}

/// How a seal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SealResult {
    /// This attempt is the sealed content.
    Won,
    /// Another attempt of the generation was first; the manifest is that attempt's, and the
    /// producer's task is done all the same.
    OtherWon,
}

/// A sealed attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestDocument {
    /// The partition.
    pub partition: u64,
    /// The attempt whose content it is.
    pub attempt: String,
    /// Bytes of all subpartitions together.
    pub total_bytes: u64,
    /// One value for the lengths and checksums of all subpartitions, 8 hexadecimal digits.
    pub fingerprint: String,
    /// Name of the checksum: `crc32c`.
    pub checksum: String,
    /// The class achieved.
    pub class: ClassDocument,
    /// Where it is held.
    pub location: Location,
    /// Wall clock of the seal, in milliseconds since 1970.
    pub sealed_at_ms: u64,
    /// Lengths and checksums; left out of listings that did not ask for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subpartitions: Option<SubpartitionLists>,
}

/// The answer to a seal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealDocument {
    /// How it ended.
    pub result: SealResult,
    /// The sealed content of the partition.
    pub manifest: ManifestDocument,
}

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionDocument {
    /// The partition.
    pub partition: u64,
    /// Its state.
    pub state: PartitionStateName,
    /// The current generation.
    pub generation: u32,
    /// Its sealed content, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<ManifestDocument>,
    /// Every sealed attempt, for datasets whose engine decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<String>,
    /// Why it is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

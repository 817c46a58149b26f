//! Documents about batch reads, acknowledgements and availability.

use crate::partitions::{ClassDocument, Location, PartitionStateName};
use serde::{Deserialize, Serialize};

/// Reads many ranges in one request. The answer is a frame stream; see `store_api::frame`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FetchRequest {
    /// What is wanted. Items that name several subpartitions count as that many; frames carry the
    /// number that results from counting them out in order.
    pub items: Vec<FetchItem>,
    /// Payload bytes after which the rest is paused, at a frame's border; the node's limit when it
    /// is left out. At least one frame is always sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_bytes: Option<u64>,
}

const fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_one(count: &u32) -> bool {
    *count == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero(offset: &u64) -> bool {
    *offset == 0
}

/// One or more subpartitions of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FetchItem {
    /// The partition.
    pub partition: u64,
    /// The first subpartition.
    pub subpartition: u32,
    /// How many subpartitions from there on; 1 when it is left out.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub n_subpartitions: u32,
    /// First byte wanted, of each.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub from: u64,
    /// First byte not wanted, of each; the end when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// The attempt that the reader was told to read; the sealed content when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<String>,
}

/// Consumers' positions in a pipelined dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcknowledgeRequest {
    /// The consumer group.
    #[serde(default = "crate::datasets::default_group")]
    pub group: String,
    /// The consumer, for the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// The positions.
    pub positions: Vec<Position>,
}

/// A position of a consumer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// The partition.
    pub partition: u64,
    /// The subpartition.
    pub subpartition: u32,
    /// First byte not yet read for good.
    pub offset: u64,
    /// The attempt that was read; the current one when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<String>,
}

/// What an acknowledgement changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcknowledgeDocument {
    /// The floors of the subpartitions named.
    pub floors: Vec<FloorDocument>,
    /// Bytes that were let go.
    pub freed_bytes: u64,
}

/// The floor of a subpartition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FloorDocument {
    /// The partition.
    pub partition: u64,
    /// The subpartition.
    pub subpartition: u32,
    /// First byte still held.
    pub floor: u64,
}

/// Asks for the states of many partitions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AvailabilityRequest {
    /// What is asked.
    pub items: Vec<AvailabilityItem>,
}

/// A run of partitions of a dataset, and perhaps one subpartition of each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AvailabilityItem {
    /// The dataset.
    pub dataset: String,
    /// The first partition.
    pub partition: u64,
    /// How many partitions from there on; 1 when it is left out.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub n_partitions: u32,
    /// Also answers floor, end and digest of this subpartition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subpartition: Option<u32>,
}

/// States of many partitions, in the order asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AvailabilityDocument {
    /// One per partition asked for.
    pub partitions: Vec<AvailabilityEntry>,
}

/// The state of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AvailabilityEntry {
    /// The dataset.
    pub dataset: String,
    /// The partition.
    pub partition: u64,
    /// Its state.
    pub state: PartitionStateName,
    /// The attempt that is readable or being written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<String>,
    /// Bytes of all subpartitions together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// The class achieved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ClassDocument>,
    /// Where it is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<Location>,
    /// First byte still held of the subpartition asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<u64>,
    /// Tail or end of the subpartition asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<u64>,
    /// CRC-32C of the subpartition asked for, 8 hexadecimal digits, once sealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crc: Option<String>,
    /// First byte never handed to a reader, of the subpartition asked for; pipelined only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<u64>,
    /// Why it is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

//! Documents about the node.

use crate::partitions::{ClassDocument, Location};
use serde::{Deserialize, Serialize};

/// Whether the node takes work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Recovering what its media hold.
    Starting,
    /// Takes everything.
    Ready,
    /// Finishes what it has.
    Draining,
}

/// This node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDocument {
    /// Node, life and base URL.
    pub location: Location,
    /// Whether it takes work.
    pub state: NodeState,
    /// Version of the program.
    pub version: String,
    /// The classes that it can keep.
    pub classes: Vec<ClassDocument>,
    /// Memory that its parts may reserve, all together, in bytes: pipelined content, bytes on their
    /// way to disk and object store and from there to readers, documents.
    pub memory_budget_bytes: u64,
    /// How much of it is reserved now, in bytes.
    pub memory_used_bytes: u64,
}

/// Health of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthDocument {
    /// `ok` or `degraded`.
    pub status: String,
    /// What is wrong, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

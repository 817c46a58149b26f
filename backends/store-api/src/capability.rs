//! What a store promises. Tests pick their cases by it; the service refuses by it.

use crate::partition::{Retention, StoreClass};
use std::fmt;

/// What an acknowledged seal survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Durability {
    /// The life of the node's process.
    Volatile,
    /// kill -9 and restart of the node, as long as its disk lives.
    Local,
    /// The loss of the node.
    Shared,
}

impl Durability {
    /// The stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Volatile => "volatile",
            Self::Local => "local",
            Self::Shared => "shared",
        }
    }
}

/// When bytes and index are forced to the medium.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum SyncLevel {
    /// Data synced, then index committed with a synced log: survives power cut. The default.
    #[default]
    Full,
    /// Data synced, index log not: a power cut may forget the newest seals, never damage one.
    Data,
    /// Nothing synced: survives kill -9, not a power cut.
    None,
}

impl SyncLevel {
    /// The stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Data => "data",
            Self::None => "none",
        }
    }
}

/// The class achieved: stated in every answer about a sealed attempt, never weaker than asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClassAchieved {
    /// The class of store that keeps it.
    pub class: StoreClass,
    /// What it survives.
    pub durability: Durability,
    /// When it was forced to the medium.
    pub sync: SyncLevel,
    /// Where it lives.
    pub scope: Scope,
}

/// Where a sealed attempt lives, and so what may take it away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Memory and spill files of one node life.
    NodeLife,
    /// Data directories of one node.
    NodeDisk,
    /// A directory that stands in for an object store: as durable as its file system.
    FileSystem,
    /// An object store that any node configured for it can serve from.
    ObjectStore,
}

impl Scope {
    /// The stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NodeLife => "node_life",
            Self::NodeDisk => "node_disk",
            Self::FileSystem => "this_file_system",
            Self::ObjectStore => "object_store",
        }
    }
}

impl fmt::Display for ClassAchieved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, scope {})", self.class, self.durability.as_str(), self.scope.as_str())
    }
}

/// What a store can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// The class that sealed attempts reach.
    pub class: ClassAchieved,
    /// Whether an open attempt can be read.
    pub reads_open: bool,
    /// Retentions that can be kept; empty for stores that keep everything until released.
    pub retentions: Vec<Retention>,
    /// Largest chunk that is taken, in bytes.
    pub max_chunk_bytes: u64,
    /// Largest length of one subpartition, in bytes.
    pub max_subpartition_bytes: u64,
}

impl Capabilities {
    /// Whether a sealed attempt is there again after the store was opened anew on its medium.
    #[must_use]
    pub fn survives_reopen(&self) -> bool {
        self.class.durability > Durability::Volatile
    }

    /// Whether acknowledgements and checkpoints move floors.
    #[must_use]
    pub const fn moves_floors(&self) -> bool {
        !self.retentions.is_empty()
    }
}

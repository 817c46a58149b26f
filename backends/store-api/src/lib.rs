//! The contract of Forebay's partition stores.
//!
//! | module | what it holds |
//! |---|---|
//! | [`ids`], [`offset`] | names and byte positions |
//! | [`chunk`], [`table`], [`frame`] | bytes with checksums (joined by `polynomial`), digests per subpartition, the frame codec |
//! | [`partition`], [`capability`] | kinds and states, and what a store promises |
//! | [`error`] | what a caller shall do |
//! | [`budget`], [`clock`], [`task`] | memory, time and background work, passed in |
//! | [`store`], [`catalog`] | the two traits that backends implement |
//!
//! Arrows inside: `store`, `catalog` → `error`, `budget`, `capability`, `partition`, `table` →
//! `chunk` → `ids`, `offset`; `budget`, `task` → `clock`.
//!
//! This crate knows nothing of HTTP, of any medium, of owners, tokens or leases.

pub mod budget;
pub mod capability;
pub mod catalog;
pub mod chunk;
pub mod clock;
pub mod error;
pub mod frame;
pub mod ids;
pub mod medium;
pub mod offset;
pub mod partition;
mod polynomial;
pub mod reads;
pub mod store;
pub mod table;
pub mod task;

pub use budget::{BudgetError, ByteBudget, Permit};
pub use capability::{Capabilities, ClassAchieved, Durability, Scope, SyncLevel};
pub use catalog::{Catalog, CatalogEntry, Expect, Version};
pub use chunk::{Chunk, Crc32c, Digest};
pub use clock::{Clock, SharedClock, SystemClock};
pub use error::{LossCause, Operation, Retry, StoreError, StoreErrorKind};
pub use ids::{
    AttemptId, AttemptKey, ConsumerId, DatasetId, DatasetKey, JobEpoch, JobId, JobIncarnation, NodeId, NodeLife, PartitionId, PartitionKey,
    SubpartitionIndex, WorkerId,
};
pub use medium::{SharedMedium, Swept};
pub use offset::{Offset, OffsetRange};
pub use partition::{Arbitration, AttemptEvent, AttemptState, DatasetKind, DatasetSpec, Retention, StoreClass};
pub use reads::ReadBudget;
pub use store::{
    AcknowledgeRequest, AppendAck, AppendRequest, AttemptStat, AttemptTails, CheckpointRequest, FetchEvent, FloorReport, HeldBytes,
    OpenRequest, PartitionStore, Piece, PrepareRequest, ReadMode, ReadRequest, ReadStream, RecoveryReport, ReleaseReport, ReleaseScope,
    SealManifest, SealOutcome, SharedStore, SubpartitionBounds,
};
pub use table::SubpartitionTable;
pub use task::TaskGroup;

#[cfg(test)]
mod tests;

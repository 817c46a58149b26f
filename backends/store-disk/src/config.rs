//! What a disk store is told when it is opened.

use std::path::PathBuf;
use std::time::Duration;
use store_api::{NodeId, NodeLife, ReadBudget, SharedClock, SyncLevel, TaskGroup};

const MIB: u64 = 1024 * 1024;

/// Settings of a disk store. Sizes are in bytes.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where data files go. Several directories may lie on one file system or on several.
    pub data_dirs: Vec<PathBuf>,
    /// Where the index lies: seals and the catalog.
    pub index_dir: PathBuf,
    /// What a seal survives.
    pub sync: SyncLevel,
    /// Memory for bytes that are not on disk yet, all jobs together.
    pub write_budget_bytes: u64,
    /// The same for one job.
    pub per_job_budget_bytes: u64,
    /// Largest chunk that is taken; never more than the budget of a job.
    pub max_chunk_bytes: u64,
    /// Memory for bytes on their way to readers, which other stores may share. `None`: 64 MiB of its
    /// own, for which a reader waits 10 s.
    pub reads: Option<ReadBudget>,
    /// Most that one call reads for a stream; less when that memory is short.
    pub read_bytes: u64,
    /// Most that one call reads for neighbouring items of a batch.
    pub fetch_bytes: u64,
    /// Room on each file system that data files leave for the index and for others.
    pub reserve_bytes: u64,
    /// The same in thousandths of the file system; the larger of the two counts.
    pub reserve_per_mille: u16,
    /// Blocking calls that one data directory may hold at once.
    pub n_lanes: usize,
    /// Longest wait for one of them.
    pub lane_patience: Duration,
    /// Files kept open for reading.
    pub n_open_files: usize,
    /// Block cache of the index.
    pub index_cache_bytes: usize,
}

impl Config {
    /// Full sync, 256 MiB to write with (all of it for any one job), chunks up to 16 MiB, a reserve
    /// of 64 MiB or 1 %, 256 open files.
    #[must_use]
    pub fn new(data_dirs: Vec<PathBuf>, index_dir: PathBuf) -> Self {
        Self {
            data_dirs,
            index_dir,
            sync: SyncLevel::Full,
            write_budget_bytes: 256 * MIB,
            per_job_budget_bytes: 256 * MIB,
            max_chunk_bytes: 16 * MIB,
            reads: None,
            read_bytes: MIB / 2,
            fetch_bytes: MIB,
            reserve_bytes: 64 * MIB,
            reserve_per_mille: 10,
            n_lanes: 8,
            lane_patience: Duration::from_secs(30),
            n_open_files: 256,
            index_cache_bytes: 16 * 1024 * 1024,
        }
    }
}

/// What a disk store needs from its surroundings.
#[derive(Debug, Clone)]
pub struct Environment {
    /// Time.
    pub clock: SharedClock,
    /// Where background and blocking work runs.
    pub tasks: TaskGroup,
    /// The node that seals.
    pub node: NodeId,
    /// The life of the node. Data files are named by it, so it must never be used twice on the same
    /// directories.
    pub life: NodeLife,
}

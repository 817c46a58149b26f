//! What can be set, with defaults and the reasons for them.

use std::path::PathBuf;
use std::time::Duration;
use store_api::ReadBudget;

const MIB: u64 = 1024 * 1024;

/// Settings of a [`crate::MemoryStore`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Memory for the bytes of all jobs. Default 1 GiB: leaves room on a small node; set it to what
    /// the machine can spare, because every byte of it will be used.
    pub memory_bytes: u64,
    /// Memory for the bytes of one job, at most `memory_bytes`. Default 1 GiB (no limit of its
    /// own): a single job should be able to use an idle node.
    pub job_memory_bytes: u64,
    /// Largest chunk that is taken. Default 16 MiB, the largest payload of a frame.
    pub max_chunk_bytes: u64,
    /// Largest content of one subpartition. Default 2^60: nobody hits it, and offsets cannot
    /// overflow below it.
    pub max_subpartition_bytes: u64,
    /// How long memory may be full without a floor of the job moving before a writer is told
    /// `RetentionExhausted`. Default 5 minutes: longer than a consumer's restart, shorter than the
    /// time after which people call a job hung.
    pub retention_deadline: Duration,
    /// Attempts that ended are remembered by name so that late calls get the right answer; this
    /// many at least, the oldest forgotten first. Default 65,536: about 20 MiB.
    pub n_tombstones: usize,
    /// Where `SinceCheckpoint` attempts go on when memory is full. `None`: that retention is
    /// refused.
    pub spill: Option<SpillConfig>,
    /// Memory for bytes that come back from spill files on their way to readers, which other stores
    /// may share. `None`: 64 MiB of its own, for which a reader waits 10 s.
    pub reads: Option<ReadBudget>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            memory_bytes: 1024 * MIB,
            job_memory_bytes: 1024 * MIB,
            max_chunk_bytes: 16 * MIB,
            max_subpartition_bytes: 1 << 60,
            retention_deadline: Duration::from_mins(5),
            n_tombstones: 65_536,
            spill: None,
            reads: None,
        }
    }
}

/// Settings of spilling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpillConfig {
    /// Directories that belong to this store alone: what is found in them at start is removed.
    pub directories: Vec<PathBuf>,
    /// Share of memory, in percent, from which on bytes are written to disk in the background.
    /// Default 70: starts before writers must wait, and still leaves most reads to memory.
    pub start_percent: u8,
    /// Bytes written at once. Default 8 MiB: large enough to be sequential, small enough not to
    /// hold memory twice for long.
    pub batch_bytes: u64,
    /// Size from which a spill file takes no more. Default 64 MiB: a file is removed as a whole,
    /// once no byte of it is held.
    pub file_bytes: u64,
    /// Whether a batch is synced before its memory is let go. Default true: a disk that fails at
    /// writing back is then found out while the bytes are still in memory.
    pub is_synced: bool,
    /// Room on a file system that is never used, in bytes. Default 64 MiB: a full disk can still be
    /// cleaned up.
    pub reserve_bytes: u64,
    /// How long spilling rests after it failed. Default 1 s: a full disk costs one try per second.
    pub pause_after_failure: Duration,
}

impl SpillConfig {
    /// The defaults for these directories.
    #[must_use]
    pub fn new(directories: Vec<PathBuf>) -> Self {
        Self {
            directories,
            start_percent: 70,
            batch_bytes: 8 * MIB,
            file_bytes: 64 * MIB,
            is_synced: true,
            reserve_bytes: 64 * MIB,
            pause_after_failure: Duration::from_secs(1),
        }
    }
}

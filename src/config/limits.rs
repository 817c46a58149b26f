//! `[limits]`, `[log]`: how much one call may ask for; what is logged.

use super::schema::{choice, section};
use super::units::{ByteSize, TimeSpan};

section! {
    /// How much one call or one job may ask for, and how long calls of the stores may take.
    Limits {
        /// Largest payload of a frame. Memory is reserved for it before it is read. 4MiB, and on small
        /// nodes half of the smallest store budget, when it is left out.
        max_frame: Option<ByteSize> = None;
        /// Raw appends up to this size are stored wholly or not at all. 8MiB, and on small nodes half
        /// of the smallest store budget, when it is left out.
        atomic_append: Option<ByteSize> = None;
        /// Size of the chunks that raw appends are cut into.
        chunk: ByteSize = ByteSize::mib(1);
        /// Longest wait for memory before a body is read: bridges a spill, below client timeouts.
        append_patience: TimeSpan = TimeSpan::secs(10);
        /// Memory for bytes on their way to readers, from disk, spill files and the object store; 10 % of
        /// node.memory when it is left out. When it is short a reader gets a 512th of it at a time
        /// (64KiB or one block at the least), so that slow readers do not keep the others out.
        read_budget: Option<ByteSize> = None;
        /// Longest wait of a reader for its share of it; the reader is then told when to come again.
        read_patience: TimeSpan = TimeSpan::secs(10);
        /// Longest wait of a read for the next byte of an open partition: below proxy timeouts.
        max_tail_wait: TimeSpan = TimeSpan::secs(60);
        /// Most payload of one batch read.
        max_fetch: ByteSize = ByteSize::gib(1);
        /// Most items of one batch read.
        max_fetch_items: usize = 100_000;
        /// Most jobs.
        max_jobs: usize = 10_000;
        /// Most datasets of one job.
        max_datasets: usize = 10_000;
        /// Events kept per job for subscribers that come back.
        event_capacity: usize = 4096;
        /// Longest call of a store that moves no bytes: a medium that hangs is answered for.
        store_call: TimeSpan = TimeSpan::secs(60);
        /// Longest time without a byte on a read of a store.
        store_stall: TimeSpan = TimeSpan::secs(120);
    }
}

choice! {
    /// How log lines look.
    LogFormat = "\"auto\"" {
        /// For people on a terminal, JSON elsewhere.
        Auto = "auto",
        /// For people.
        Human = "human",
        /// One JSON object per line.
        Json = "json",
    }
}

section! {
    /// The log, on standard error.
    Log {
        /// auto (for people on a terminal, JSON elsewhere), human or json.
        format: LogFormat = LogFormat::Auto;
        /// What is logged: error, warn, info, debug or trace, also per module, as in
        /// "info,forebay::service=debug".
        level: String = "info".to_owned();
    }
}

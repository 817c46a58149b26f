//! Plain counters of what the service did; whoever exports metrics reads them.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The number.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What happened since the start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Jobs created.
    pub jobs_created: Counter,
    /// Jobs taken over.
    pub jobs_taken_over: Counter,
    /// Jobs released by their owners.
    pub jobs_released: Counter,
    /// Jobs whose lease ran out.
    pub jobs_expired: Counter,
    /// Attempts opened.
    pub attempts_opened: Counter,
    /// Attempts aborted by their writers, by a take-over or by a lost arbitration.
    pub attempts_aborted: Counter,
    /// Generations raised.
    pub generations_raised: Counter,
    /// Bytes appended that were new.
    pub appended_bytes: Counter,
    /// Frames that were skipped as repeats.
    pub repeated_frames: Counter,
    /// Seals won.
    pub seals_won: Counter,
    /// Seals answered with another attempt's manifest.
    pub seals_lost: Counter,
    /// Bytes sealed.
    pub sealed_bytes: Counter,
    /// Reads started, items of batch reads included.
    pub reads: Counter,
    /// Bytes handed to readers.
    pub read_bytes: Counter,
    /// Partitions found lost.
    pub partitions_lost: Counter,
    /// Appends refused because of a quota.
    pub over_quota: Counter,
    /// Appends refused because memory was not free in time.
    pub overloaded: Counter,
    /// Rounds of the reaper.
    pub reaper_rounds: Counter,
    /// Releases that a store refused and that were put off.
    pub releases_put_off: Counter,
    /// Looks for orphans on the shared medium.
    pub orphan_sweeps: Counter,
    /// Looks for orphans that failed.
    pub orphan_sweeps_failed: Counter,
    /// Objects of dead jobs that were taken away.
    pub orphan_objects: Counter,
    /// Their bytes.
    pub orphan_bytes: Counter,
    /// Unfinished uploads of former lives that were ended.
    pub orphan_uploads: Counter,
}

//! The policy of a node, typed, with defaults and the reason for each.

use std::time::Duration;

/// Every limit and period of the service. Build it with struct update from [`ServiceConfig::default`].
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// Lease of a job that names none. 5 min: longer than a master's restart, short enough that
    /// what a dead job left is gone within minutes.
    pub default_lease: Duration,
    /// Shortest lease: asked for less, the job gets this. 1 s: below it, clocks and networks decide.
    pub min_lease: Duration,
    /// Longest lease: asked for more, the job gets this. 7 days: nothing is held for ever by mistake.
    pub max_lease: Duration,
    /// Time between two looks for expired leases and failed releases. 1 s.
    pub reap_interval: Duration,
    /// Longest wait for memory before a body is read. 10 s: bridges a spill, stays below common
    /// client timeouts.
    pub append_patience: Duration,
    /// Largest payload of a frame, in bytes. 4 MiB.
    pub max_frame_bytes: u64,
    /// Raw bodies up to this size are stored wholly or not at all, in bytes. 8 MiB.
    pub atomic_append_bytes: u64,
    /// Size of the chunks that raw bodies are cut into, in bytes. 1 MiB.
    pub chunk_bytes: u64,
    /// Longest wait of a tail read for a new byte. 60 s: below idle timeouts of proxies.
    pub max_tail_wait: Duration,
    /// Most items of one batch read. 100,000.
    pub max_fetch_items: usize,
    /// Payload bytes of one batch read when the client names no budget, and at the most. 1 GiB.
    pub max_fetch_bytes: u64,
    /// Most partitions of one availability call. 100,000.
    pub max_availability_items: usize,
    /// Most positions of one acknowledgement or checkpoint. 1,000,000.
    pub max_positions: usize,
    /// Most partitions of one page of a listing. 10,000.
    pub max_page: usize,
    /// Events kept per job for subscribers that come back. 4096.
    pub event_capacity: usize,
    /// Most jobs. 10,000.
    pub max_jobs: usize,
    /// Most datasets of one job. 10,000.
    pub max_datasets: usize,
    /// Most consumer groups of one dataset. 64.
    pub max_groups: usize,
    /// How long the end of a job is remembered, for `released` and `expired` answers. 1 day.
    pub tombstone_time: Duration,
    /// Most ended jobs that are remembered. 10,000.
    pub max_tombstones: usize,
    /// How old the knowledge of a shared job record may be on a control call. 5 s.
    pub shared_record_age: Duration,
    /// First wait after a store refused a release; doubles with each failure. 1 s.
    pub release_backoff: Duration,
    /// Longest wait between two tries of a release. 60 s.
    pub max_release_backoff: Duration,
    /// Time between two looks for what dead jobs left on a shared medium. 10 min: each look costs one
    /// listing per job there.
    pub orphan_interval: Duration,
    /// How long a job must have been found dead before what it left there is taken away. 10 min:
    /// longer than any write can be under way. Never shorter than a lease, whatever stands here.
    pub orphan_grace: Duration,
    /// Longest time a seal that has begun keeps trying an arbiter that does not answer. 10 s.
    pub seal_patience: Duration,
    /// SHA-256 of the admin token; `None` turns tokens off: everyone may do everything.
    pub admin_token_hash: Option<[u8; 32]>,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        const MIB: u64 = 1024 * 1024;
        Self {
            default_lease: Duration::from_secs(300),
            min_lease: Duration::from_secs(1),
            max_lease: Duration::from_hours(7 * 24),
            reap_interval: Duration::from_secs(1),
            append_patience: Duration::from_secs(10),
            max_frame_bytes: 4 * MIB,
            atomic_append_bytes: 8 * MIB,
            chunk_bytes: MIB,
            max_tail_wait: Duration::from_secs(60),
            max_fetch_items: 100_000,
            max_fetch_bytes: 1024 * MIB,
            max_availability_items: 100_000,
            max_positions: 1_000_000,
            max_page: 10_000,
            event_capacity: 4096,
            max_jobs: 10_000,
            max_datasets: 10_000,
            max_groups: 64,
            tombstone_time: Duration::from_hours(24),
            max_tombstones: 10_000,
            shared_record_age: Duration::from_secs(5),
            release_backoff: Duration::from_secs(1),
            max_release_backoff: Duration::from_secs(60),
            orphan_interval: Duration::from_mins(10),
            orphan_grace: Duration::from_mins(10),
            seal_patience: Duration::from_secs(10),
            admin_token_hash: None,
        }
    }
}

impl ServiceConfig {
    /// The lease that a job gets that asks for `wanted`: within the bounds, the default for nothing.
    #[must_use]
    pub fn bounded_lease(&self, wanted: Option<Duration>) -> Duration {
        let floor = self.min_lease.min(self.max_lease);
        wanted.unwrap_or(self.default_lease).clamp(floor, self.max_lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_of_nothing_and_of_ten_thousand_years_are_brought_within_bounds() {
        let config = ServiceConfig::default();
        assert_eq!(config.bounded_lease(Some(Duration::ZERO)), config.min_lease);
        assert_eq!(config.bounded_lease(Some(Duration::MAX)), config.max_lease);
        assert_eq!(config.bounded_lease(None), config.default_lease);
    }
}

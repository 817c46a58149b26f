//! Leases: how long a job's data is kept without a word from its owner.
//!
//! A lease runs on the monotonic clock, so steps of the wall clock do not matter. A renewal and an
//! expiry are decided under the lock of the job: whoever is first wins, and the other hears of it.
//! Until the reaper has decided, a late renewal still saves the job. After a restart every job gets
//! its full lease again: its owner has had no chance to renew.

use super::PartitionService;
use super::calls::LeaseView;
use super::error::ServiceResult;
use super::registry::{Ending, Job};
use std::time::Duration;
use store_api::{JobEpoch, JobId};

/// A claim that runs out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) length: Duration,
    /// Monotonic time at which it ends.
    pub(super) ends_at: Duration,
}

impl Lease {
    pub(super) fn granted(now: Duration, length: Duration) -> Self {
        Self { length, ends_at: now.saturating_add(length) }
    }

    pub(super) fn remaining(self, now: Duration) -> Duration {
        self.ends_at.saturating_sub(now)
    }

    pub(super) fn has_run_out(self, now: Duration) -> bool {
        now >= self.ends_at
    }
}

impl Job {
    /// Ends the job if its lease has run out and nobody was first. Answers whether this call did.
    pub(super) fn try_expire(&self, now: Duration) -> bool {
        let mut control = self.control.lock();
        if control.ending.is_some() || !control.lease.has_run_out(now) {
            return false;
        }
        control.ending = Some(Ending::Expired);
        true
    }
}

impl PartitionService {
    /// Renews a lease, from now on.
    ///
    /// Needs the epoch. A length outside the node's bounds is brought within them (0 is the
    /// shortest, never "for ever"). Not durable, and need not be: a restart grants the full lease
    /// again; a new length is recorded before the answer. Idempotent. A renewal that is answered
    /// with success keeps everything; one that comes after the expiry was decided gets `Expired`.
    /// Errors: `EpochRequired`, `Fenced`, `UnknownJob`, `Released`, `Expired`, `Unavailable`.
    pub async fn renew_lease(&self, job: &JobId, epoch: Option<JobEpoch>, lease: Option<Duration>) -> ServiceResult<LeaseView> {
        let job = self.control_job(job).await?;
        let _one_at_a_time = job.gate.lock().await;
        job.check_epoch(epoch)?;
        let (renewed, is_changed) = {
            let now = self.clock.monotonic();
            let mut control = job.control.lock();
            if let Some(ending) = control.ending {
                return Err(ending.refusal());
            }
            let length = lease.map_or(control.lease.length, |wanted| self.config.bounded_lease(Some(wanted)));
            let is_changed = length != control.lease.length;
            control.lease = Lease::granted(now, length);
            (control.lease, is_changed)
        };
        if is_changed {
            self.store_job_record(&job).await?;
        }
        Ok(LeaseView { lease: renewed.length, remaining: renewed.length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_longer_than_the_clock_can_count_do_not_wrap() {
        let lease = Lease::granted(Duration::from_secs(1), Duration::MAX);
        assert!(!lease.has_run_out(Duration::from_secs(u64::from(u32::MAX))));
    }

    #[test]
    fn a_lease_ends_at_its_length_and_not_before() {
        let lease = Lease::granted(Duration::from_secs(10), Duration::from_secs(5));
        assert!(!lease.has_run_out(Duration::from_millis(14_999)));
        assert!(lease.has_run_out(Duration::from_secs(15)));
        assert_eq!(lease.remaining(Duration::from_secs(20)), Duration::ZERO);
    }
}

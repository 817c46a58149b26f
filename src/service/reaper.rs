//! The reaper: ends jobs whose lease ran out, repeats releases that a store refused, and forgets
//! ends that are old.

use super::PartitionService;
use super::error::ServiceResult;
use super::records::{self, EndedRecord};
use super::registry::{Job, Slot};
use futures::StreamExt;
use futures::stream;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;
use store_api::{JobId, JobIncarnation, ReleaseScope, StoreClass};

/// Most releases that wait to be repeated. Beyond it the oldest are left to the end of their job or
/// to the next start, which finds them by the records.
const MAX_PUT_OFF: usize = 100_000;
/// Releases that run at a time.
const CONCURRENCY: usize = 4;

/// A job that has ended and whose storage is to be given back.
#[derive(Debug, Clone)]
pub(super) struct EndedWork {
    pub(super) job: JobId,
    pub(super) incarnation: JobIncarnation,
    pub(super) record: EndedRecord,
}

/// A release that has to be repeated.
#[derive(Debug, Clone)]
pub(super) enum PutOff {
    Scope(StoreClass, ReleaseScope),
    Job(EndedWork),
}

#[derive(Debug)]
struct Waiting {
    work: PutOff,
    due: Duration,
    wait: Duration,
}

/// Releases that wait to be repeated.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    waiting: Mutex<Vec<Waiting>>,
}

impl Backlog {
    fn take_due(&self, now: Duration) -> Vec<Waiting> {
        let mut waiting = self.waiting.lock();
        let (due, later) = std::mem::take(&mut *waiting).into_iter().partition(|entry| entry.due <= now);
        *waiting = later;
        due
    }

    fn push(&self, entry: Waiting) {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= MAX_PUT_OFF {
            waiting.remove(0);
        }
        waiting.push(entry);
    }
}

impl PartitionService {
    /// Releases that wait to be repeated.
    #[must_use]
    pub fn n_releases_put_off(&self) -> usize {
        self.backlog.waiting.lock().len()
    }

    pub(super) fn put_off(&self, work: PutOff) {
        self.counters.releases_put_off.add(1);
        let wait = self.config.release_backoff;
        let due = self.clock.monotonic().saturating_add(wait);
        self.backlog.push(Waiting { work, due, wait });
    }

    /// Runs the reaper until the task group is cancelled or the service is dropped.
    pub(super) fn start_reaper(self: &Arc<Self>) {
        let service: Weak<Self> = Arc::downgrade(self);
        let (clock, interval) = (self.clock.clone(), self.config.reap_interval.max(Duration::from_millis(1)));
        self.tasks.spawn(async move {
            loop {
                clock.sleep(interval).await;
                let Some(service) = service.upgrade() else { return };
                service.reap().await;
            }
        });
    }

    /// One round: expired leases, releases that are due, ends that are old. Errors are logged and
    /// tried again in the next round.
    pub async fn reap(&self) {
        self.counters.reaper_rounds.add(1);
        let now = self.clock.monotonic();
        let expired: Vec<Arc<Job>> =
            self.registry.live_jobs().into_iter().filter(|job| job.try_expire(now) || job.check_live().is_err()).collect();
        let ends = stream::iter(expired).map(|job| async move {
            match self.end_expired(&job).await {
                Ok(Some(work)) => {
                    let _ = self.give_back(work).await;
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(job = %job.id, ?error, "end of a job could not be recorded yet"),
            }
        });
        ends.buffer_unordered(CONCURRENCY).collect::<()>().await;
        let repeats = stream::iter(self.backlog.take_due(now)).map(|entry| self.repeat(entry));
        repeats.buffer_unordered(CONCURRENCY).collect::<()>().await;
        if let Err(error) = self.forget_old_ends().await {
            tracing::warn!(?error, "old ends of jobs could not be forgotten yet");
        }
    }

    async fn repeat(&self, entry: Waiting) {
        let outcome: ServiceResult<()> = match &entry.work {
            PutOff::Scope(class, scope) => match self.stores.of(*class) {
                Some(store) => store.release(scope.clone()).await.map(drop).map_err(Into::into),
                None => Ok(()),
            },
            PutOff::Job(work) => self.try_give_back(work).await.1,
        };
        if let Err(error) = outcome {
            tracing::debug!(?error, "release is put off again");
            let wait = entry.wait.saturating_mul(2).min(self.config.max_release_backoff);
            let due = self.clock.monotonic().saturating_add(wait);
            self.backlog.push(Waiting { work: entry.work, due, wait });
        }
    }

    /// Forgets ends of jobs beyond the time and number for which they are remembered, once nothing
    /// of them is left to give back.
    async fn forget_old_ends(&self) -> ServiceResult<()> {
        for (job, incarnation) in self.old_ends() {
            if self.backlog.waiting.lock().iter().any(|entry| is_of(&entry.work, &job, incarnation)) {
                continue;
            }
            self.local_catalog.delete(&records::ended_key(&job, incarnation)).await?;
            let mut jobs = self.registry.jobs.write();
            if matches!(jobs.get(&job), Some(Slot::Ended(ended)) if ended.incarnation == incarnation) {
                jobs.remove(&job);
            }
        }
        Ok(())
    }

    fn old_ends(&self) -> Vec<(JobId, JobIncarnation)> {
        let keep_ms = u64::try_from(self.config.tombstone_time.as_millis()).unwrap_or(u64::MAX);
        let oldest_kept = self.clock.unix_ms().saturating_sub(keep_ms);
        let mut ends: Vec<(u64, JobId, JobIncarnation)> = {
            let jobs = self.registry.jobs.read();
            let ended = jobs.iter().filter_map(|(id, slot)| match slot {
                Slot::Ended(ended) => Some((ended.at_ms, id.clone(), ended.incarnation)),
                Slot::Live(_) => None,
            });
            ended.collect()
        };
        ends.sort_by_key(|(at_ms, ..)| *at_ms);
        let n_over = ends.len().saturating_sub(self.config.max_tombstones);
        let is_old = |(place, (at_ms, ..)): &(usize, (u64, JobId, JobIncarnation))| *place < n_over || *at_ms < oldest_kept;
        ends.into_iter().enumerate().filter(is_old).map(|(_, (_, job, incarnation))| (job, incarnation)).collect()
    }
}

fn is_of(work: &PutOff, job: &JobId, incarnation: JobIncarnation) -> bool {
    match work {
        PutOff::Job(work) => work.job == *job && work.incarnation == incarnation,
        PutOff::Scope(..) => false,
    }
}

//! Orphans: what jobs that are gone left on a medium that nodes share.
//!
//! A release gives back what its node knows of. It does not reach what a writer that was cut off
//! left there, tombstones, or jobs whose node never came back to give them up. Every node looks from
//! time to time at what is on the medium and compares it with the records:
//!
//! | found on the medium | then |
//! |---|---|
//! | of a job that is alive here, or has a record in the shared catalog | left alone |
//! | of a job with the record of an end | dead; taken away after the grace time |
//! | of a job without any record, or whose id names a later existence | the same: nobody can claim it any more |
//! | anything, while the catalog does not answer | left alone: unknown is never dead |
//!
//! The grace time runs from the moment at which this life of the node first found the job dead, so
//! that a write that is still on its way has ended before. It is never shorter than a lease.

use super::PartitionService;
use super::error::ServiceResult;
use super::records::{self, EndedRecord, JobRecord};
use super::registry::Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use store_api::{Catalog, JobId, JobIncarnation, Swept};

/// One existence of a job.
type Existence = (JobId, JobIncarnation);

/// What the sweeps of this life have seen.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    /// Dead existences, and when they were first found so.
    since: BTreeMap<Existence, Duration>,
    /// The longest lease that was seen: no grace time is shorter.
    longest_lease: Duration,
    /// When old ends were last taken out of the shared catalog.
    pruned_at: Option<Duration>,
}

impl PartitionService {
    /// Runs sweeps until the task group is cancelled or the service is dropped.
    pub(super) fn start_sweeper(self: &Arc<Self>) {
        if self.medium.is_none() {
            return;
        }
        let service: Weak<Self> = Arc::downgrade(self);
        let (clock, interval) = (self.clock.clone(), self.config.orphan_interval.max(Duration::from_millis(1)));
        self.tasks.spawn(async move {
            // Ends with the task group, or with the service.
            loop {
                clock.sleep(interval).await;
                let Some(service) = service.upgrade() else { return };
                if let Err(error) = service.sweep_orphans().await {
                    service.counters.orphan_sweeps_failed.add(1);
                    tracing::warn!(?error, "orphans could not be swept; the next round tries again");
                }
            }
        });
    }

    /// One sweep: see the module. Answers what was taken away; nothing without a shared medium. One
    /// runs at a time. Cancelled half-way: some of it is gone; repeat it. Errors: those of medium and
    /// catalog; nothing is taken away on account of what could not be asked.
    pub async fn sweep_orphans(&self) -> ServiceResult<Swept> {
        let Some(medium) = &self.medium else { return Ok(Swept::default()) };
        let mut suspects = self.suspects.lock().await;
        self.counters.orphan_sweeps.add(1);
        let found: BTreeSet<Existence> = medium.jobs().await?.into_iter().collect();
        suspects.since.retain(|existence, _| found.contains(existence));
        let grace = self.orphan_grace(&mut suspects);
        let now = self.clock.monotonic();
        let mut dead = Vec::new();
        for existence in &found {
            if self.is_in_force(existence).await? {
                suspects.since.remove(existence);
                continue;
            }
            let since = *suspects.since.entry(existence.clone()).or_insert(now);
            if now.saturating_sub(since) >= grace {
                dead.push(existence.clone());
            }
        }
        let swept = medium.sweep(&dead).await?;
        for existence in &dead {
            self.forget_records(existence).await?;
            suspects.since.remove(existence);
        }
        self.note_swept(&swept, dead.len());
        self.prune_ends(&mut suspects, &found).await?;
        Ok(swept)
    }

    /// The configured grace time, or the longest lease that this life has seen.
    fn orphan_grace(&self, suspects: &mut Suspects) -> Duration {
        let leases = self.registry.live_jobs().into_iter().map(|job| job.control.lock().lease.length);
        suspects.longest_lease = leases.fold(suspects.longest_lease.max(self.config.default_lease), Duration::max);
        self.config.orphan_grace.max(suspects.longest_lease)
    }

    /// Whether anything may still claim an existence of a job. Errors: those of the catalog.
    async fn is_in_force(&self, (job, incarnation): &Existence) -> ServiceResult<bool> {
        // One whose end is decided and not recorded yet counts too: its record comes first.
        if let Some(Slot::Live(live)) = self.registry.slot(job)
            && live.incarnation == *incarnation
        {
            return Ok(true);
        }
        let catalog: &dyn Catalog = self.shared_catalog.as_deref().unwrap_or(self.local_catalog.as_ref());
        if catalog.get(&records::ended_key(job, *incarnation)).await?.is_some() {
            return Ok(false);
        }
        let key = records::job_key(job);
        let Some(entry) = catalog.get(&key).await? else { return Ok(false) };
        let record: JobRecord = records::decode(&key, &entry.value)?;
        let facts = record.facts().ok_or_else(|| records::damaged(&key))?;
        Ok(facts.incarnation == *incarnation)
    }

    /// Removes what the shared catalog still says of a dead existence, its end excepted.
    async fn forget_records(&self, (job, incarnation): &Existence) -> ServiceResult<()> {
        let Some(shared) = &self.shared_catalog else { return Ok(()) };
        for prefix in records::prefixes_of(job, *incarnation) {
            for (key, _) in shared.scan(&prefix).await? {
                shared.delete(&key).await?;
            }
        }
        Ok(())
    }

    fn note_swept(&self, swept: &Swept, n_dead: usize) {
        self.counters.orphan_objects.add(swept.n_objects);
        self.counters.orphan_bytes.add(swept.bytes);
        self.counters.orphan_uploads.add(swept.n_uploads);
        if *swept != Swept::default() {
            let Swept { n_objects, bytes, n_uploads } = swept;
            tracing::info!(n_dead, n_objects, bytes, n_uploads, "orphans were taken away");
        }
    }

    /// Takes ends out of the shared catalog that are older than any lease and any memory of them, and
    /// of which nothing is on the medium. Without it each job would leave an entry there for ever.
    async fn prune_ends(&self, suspects: &mut Suspects, found: &BTreeSet<Existence>) -> ServiceResult<()> {
        let Some(shared) = &self.shared_catalog else { return Ok(()) };
        let (now, kept) = (self.clock.monotonic(), self.config.tombstone_time.max(self.config.max_lease));
        if suspects.pruned_at.is_some_and(|at| now.saturating_sub(at) < self.config.tombstone_time / 4) {
            return Ok(());
        }
        suspects.pruned_at = Some(now);
        let kept_ms = u64::try_from(kept.as_millis()).unwrap_or(u64::MAX);
        let oldest_kept = self.clock.unix_ms().saturating_sub(kept_ms);
        for (key, entry) in shared.scan(records::ENDED).await? {
            let (job, incarnation, ..) = records::parse_key(&key).ok_or_else(|| records::damaged(&key))?;
            let record: EndedRecord = records::decode(&key, &entry.value)?;
            if record.at_ms < oldest_kept && !found.contains(&(job, incarnation)) {
                shared.delete(&key).await?;
            }
        }
        Ok(())
    }
}

//! All attempts of this store, by job, dataset and partition, and what each job holds.
//!
//! An attempt that has ended stays here as its own tombstone until its dataset or job is released.
//! A released dataset keeps only the names of what it held, until its job is released; released jobs are remembered up
//! to a bound, which is enough because an incarnation is never used again.

use crate::account::JobAccount;
use crate::attempt::{Attempt, Phase};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use store_api::{
    AttemptId, AttemptKey, ByteBudget, DatasetId, HeldBytes, JobId, JobIncarnation, PartitionId, PartitionKey, ReleaseScope, SealManifest,
    StoreErrorKind,
};

/// Released jobs that are remembered.
const MAX_RELEASED_JOBS: usize = 65_536;

#[derive(Debug, Default)]
struct PartitionEntry {
    fence: Option<AttemptId>,
    attempts: BTreeMap<AttemptId, Arc<Attempt>>,
}

#[derive(Debug, Default)]
struct DatasetEntry {
    is_released: bool,
    /// What was inside when it was released, and how it ended.
    ended: HashMap<(PartitionId, AttemptId), StoreErrorKind>,
    /// Fences of its partitions once it is released: a late writer is still told what superseded it.
    fences: HashMap<PartitionId, AttemptId>,
    partitions: HashMap<PartitionId, PartitionEntry>,
}

#[derive(Debug)]
struct JobEntry {
    account: Arc<JobAccount>,
    datasets: HashMap<DatasetId, DatasetEntry>,
}

type JobKey = (JobId, JobIncarnation);

#[derive(Debug, Default)]
struct Tables {
    jobs: HashMap<JobKey, JobEntry>,
    released: HashSet<JobKey>,
    released_order: VecDeque<JobKey>,
}

/// The attempts of a store.
#[derive(Debug)]
pub(crate) struct Registry {
    budget: ByteBudget,
    per_job_bytes: u64,
    tables: Mutex<Tables>,
}

fn job_key(key: &PartitionKey) -> JobKey {
    (key.dataset.job.clone(), key.dataset.incarnation)
}

impl Registry {
    pub(crate) fn new(budget: ByteBudget, per_job_bytes: u64) -> Self {
        Self { budget, per_job_bytes, tables: Mutex::new(Tables::default()) }
    }

    /// The attempt, in whatever state. Errors: `Released` or how else it ended for what was in a
    /// released dataset, `Fenced`, `NotFound` (also for what was in a released job: that is forgotten).
    pub(crate) fn find(&self, key: &AttemptKey) -> Result<Arc<Attempt>, StoreErrorKind> {
        let tables = self.tables.lock();
        let job = job_key(&key.partition);
        let Some(entry) = tables.jobs.get(&job) else { return Err(StoreErrorKind::NotFound) };
        let Some(dataset) = entry.datasets.get(&key.partition.dataset.dataset) else { return Err(StoreErrorKind::NotFound) };
        if dataset.is_released {
            let end = dataset.ended.get(&(key.partition.partition, key.attempt)).cloned();
            let fence = dataset.fences.get(&key.partition.partition).filter(|by| key.attempt.generation < by.generation);
            return Err(end.or(fence.map(|by| StoreErrorKind::Fenced { by: *by })).unwrap_or(StoreErrorKind::NotFound));
        }
        let Some(partition) = dataset.partitions.get(&key.partition.partition) else { return Err(StoreErrorKind::NotFound) };
        match (partition.attempts.get(&key.attempt), partition.fence) {
            (Some(attempt), _) => Ok(attempt.clone()),
            (None, Some(by)) if key.attempt.generation < by.generation => Err(StoreErrorKind::Fenced { by }),
            (None, _) => Err(StoreErrorKind::NotFound),
        }
    }

    /// The attempt, made by `make` if it is new. Errors: `Released`, `Fenced`.
    pub(crate) fn find_or_add(
        &self,
        key: &AttemptKey,
        make: impl FnOnce(Arc<JobAccount>) -> Attempt,
    ) -> Result<Arc<Attempt>, StoreErrorKind> {
        let mut tables = self.tables.lock();
        let job = job_key(&key.partition);
        if tables.released.contains(&job) {
            return Err(StoreErrorKind::Released);
        }
        let entry = tables.jobs.entry(job).or_insert_with(|| self.new_job());
        let dataset = entry.datasets.entry(key.partition.dataset.dataset.clone()).or_default();
        if dataset.is_released {
            let end = dataset.ended.get(&(key.partition.partition, key.attempt));
            return Err(end.cloned().unwrap_or(StoreErrorKind::Released));
        }
        let partition = dataset.partitions.entry(key.partition.partition).or_default();
        if let Some(attempt) = partition.attempts.get(&key.attempt) {
            return Ok(attempt.clone());
        }
        if let Some(by) = partition.fence.filter(|by| key.attempt.generation < by.generation) {
            return Err(StoreErrorKind::Fenced { by });
        }
        let attempt = Arc::new(make(entry.account.clone()));
        partition.attempts.insert(key.attempt, attempt.clone());
        Ok(attempt)
    }

    fn new_job(&self) -> JobEntry {
        let budget = self.budget.child(self.per_job_bytes);
        let account = Arc::new(JobAccount { memory: AtomicU64::new(0), disk: AtomicU64::new(0), budget });
        JobEntry { account, datasets: HashMap::new() }
    }

    /// Marks a scope as released (or fenced) and answers all attempts that were inside.
    pub(crate) fn close_scope(&self, scope: &ReleaseScope) -> Vec<Arc<Attempt>> {
        let mut tables = self.tables.lock();
        match scope {
            ReleaseScope::Job { job, incarnation } => tables.close_job((job.clone(), *incarnation)),
            ReleaseScope::Dataset(key) => {
                let Some(entry) = tables.jobs.get_mut(&(key.job.clone(), key.incarnation)) else { return Vec::new() };
                let dataset = entry.datasets.entry(key.dataset.clone()).or_default();
                dataset.is_released = true;
                let fences = dataset.partitions.iter().filter_map(|(partition, entry)| Some((*partition, entry.fence?)));
                dataset.fences.extend(fences);
                let attempts = attempts_of(std::mem::take(&mut dataset.partitions).into_values());
                let end = |attempt: &Attempt| match attempt.end_kind() {
                    // The first end stays.
                    Some(kind @ (StoreErrorKind::Fenced { .. } | StoreErrorKind::Aborted)) => kind,
                    _ => StoreErrorKind::Released,
                };
                let name = |attempt: &Attempt| (attempt.key.partition.partition, attempt.key.attempt);
                dataset.ended.extend(attempts.iter().map(|attempt| (name(attempt), end(attempt))));
                attempts
            }
            ReleaseScope::Partition(key) => {
                tables.partition(key).map(|entry| entry.attempts.values().cloned().collect()).unwrap_or_default()
            }
            ReleaseScope::Attempt(key) => {
                let found = tables.partition(&key.partition).and_then(|entry| entry.attempts.get(&key.attempt).cloned());
                found.into_iter().collect()
            }
            ReleaseScope::GenerationsBelow { partition, by } => {
                // A fence holds for attempts that were never seen here too.
                let job = job_key(partition);
                if tables.released.contains(&job) {
                    return Vec::new();
                }
                let dataset = tables.jobs.entry(job).or_insert_with(|| self.new_job());
                let dataset = dataset.datasets.entry(partition.dataset.dataset.clone()).or_default();
                if dataset.is_released {
                    let fence = dataset.fences.entry(partition.partition).or_insert(*by);
                    *fence = (*fence).max(*by);
                    return Vec::new();
                }
                let entry = dataset.partitions.entry(partition.partition).or_default();
                if entry.fence.is_none_or(|fence| fence.generation < by.generation) {
                    entry.fence = Some(*by);
                }
                entry.attempts.range(..AttemptId::new(by.generation, 0)).map(|(_, attempt)| attempt.clone()).collect()
            }
        }
    }

    /// The sealed attempt of the highest generation, at or above `from_generation`. Errors:
    /// `Released`, `Fenced`.
    pub(crate) fn locate(&self, key: &PartitionKey, from_generation: u32) -> Result<Option<Arc<SealManifest>>, StoreErrorKind> {
        let mut tables = self.tables.lock();
        let job = job_key(key);
        let is_released = |entry: &JobEntry| entry.datasets.get(&key.dataset.dataset).is_some_and(|dataset| dataset.is_released);
        if tables.released.contains(&job) || tables.jobs.get(&job).is_some_and(is_released) {
            return Err(StoreErrorKind::Released);
        }
        let Some(entry) = tables.partition(key) else { return Ok(None) };
        let newest_first = entry.attempts.range(AttemptId::new(from_generation, 0)..).rev();
        let sealed = newest_first.filter_map(|(_, attempt)| match &attempt.inner.lock().phase {
            Phase::Sealed(manifest) => Some(manifest.clone()),
            _ => None,
        });
        // Within a generation the first seal counts, and that is the lowest that is not aborted.
        let mut best: Option<Arc<SealManifest>> = None;
        for manifest in sealed {
            match &best {
                Some(found) if found.attempt.attempt.generation != manifest.attempt.attempt.generation => break,
                _ => best = Some(manifest),
            }
        }
        Ok(best)
    }

    /// What a job holds.
    pub(crate) fn held(&self, job: &JobId, incarnation: JobIncarnation) -> HeldBytes {
        let tables = self.tables.lock();
        let Some(entry) = tables.jobs.get(&(job.clone(), incarnation)) else { return HeldBytes::default() };
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        HeldBytes { memory: read(&entry.account.memory), disk: read(&entry.account.disk), object: 0 }
    }

    /// Attempts with memory that could be written out, those with most first.
    pub(crate) fn spillable(&self) -> Vec<(u64, Arc<Attempt>)> {
        let all: Vec<Arc<Attempt>> = {
            let tables = self.tables.lock();
            let busy = tables.jobs.values().filter(|job| job.account.memory.load(Ordering::Relaxed) > 0);
            let partitions = busy.flat_map(|job| job.datasets.values()).flat_map(|dataset| dataset.partitions.values());
            partitions.flat_map(|partition| partition.attempts.values().cloned()).collect()
        };
        let sized = all.into_iter().map(|attempt| (attempt.spillable_bytes(), attempt));
        let mut found: Vec<_> = sized.filter(|(bytes, _)| *bytes > 0).collect();
        found.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        found
    }
}

impl Tables {
    fn partition(&mut self, key: &PartitionKey) -> Option<&mut PartitionEntry> {
        self.jobs.get_mut(&job_key(key))?.datasets.get_mut(&key.dataset.dataset)?.partitions.get_mut(&key.partition)
    }

    fn close_job(&mut self, key: JobKey) -> Vec<Arc<Attempt>> {
        if self.released.insert(key.clone()) {
            self.released_order.push_back(key.clone());
        }
        while self.released_order.len() > MAX_RELEASED_JOBS {
            if let Some(oldest) = self.released_order.pop_front() {
                self.released.remove(&oldest);
            }
        }
        let entry = self.jobs.remove(&key);
        let partitions = entry.into_iter().flat_map(|job| job.datasets.into_values()).flat_map(|dataset| dataset.partitions.into_values());
        attempts_of(partitions)
    }
}

fn attempts_of(partitions: impl Iterator<Item = PartitionEntry>) -> Vec<Arc<Attempt>> {
    partitions.flat_map(|partition| partition.attempts.into_values()).collect()
}

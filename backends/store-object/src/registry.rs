//! What this process knows: the attempts of each incarnation of a job, and which scopes were
//! released or fenced.

use crate::attempt::Attempt;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use store_api::{AttemptId, AttemptKey, DatasetId, DatasetKey, HeldBytes, JobId, JobIncarnation, PartitionKey, StoreErrorKind};

/// Released jobs that are remembered, so that late calls are told so.
const MAX_RELEASED_JOBS: usize = 100_000;

type JobKey = (JobId, JobIncarnation);

#[derive(Debug, Default)]
struct Job {
    attempts: BTreeMap<AttemptKey, Arc<Attempt>>,
    is_released: bool,
    datasets: HashSet<DatasetId>,
    partitions: HashSet<PartitionKey>,
    fences: HashMap<PartitionKey, AttemptId>,
}

impl Job {
    fn refusal(&self, attempt: &AttemptKey) -> Option<StoreErrorKind> {
        self.is_released(attempt).then_some(StoreErrorKind::Released).or_else(|| self.fenced(attempt))
    }

    fn is_released(&self, attempt: &AttemptKey) -> bool {
        let partition = &attempt.partition;
        self.is_released || self.datasets.contains(&partition.dataset.dataset) || self.partitions.contains(partition)
    }

    fn fenced(&self, attempt: &AttemptKey) -> Option<StoreErrorKind> {
        let fence = self.fences.get(&attempt.partition).filter(|by| attempt.attempt.generation < by.generation);
        fence.map(|by| StoreErrorKind::Fenced { by: *by })
    }

    fn of_partition<'a>(&'a self, key: &'a PartitionKey) -> impl Iterator<Item = &'a Arc<Attempt>> + 'a {
        let range = key.attempt(AttemptId::new(0, 0))..=key.attempt(AttemptId::new(u32::MAX, u32::MAX));
        self.attempts.range(range).map(|(_, attempt)| attempt)
    }
}

#[derive(Debug, Default)]
struct Jobs {
    jobs: HashMap<JobKey, Job>,
    released: VecDeque<JobKey>,
}

fn job_key(dataset: &DatasetKey) -> JobKey {
    (dataset.job.clone(), dataset.incarnation)
}

/// The registry.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    jobs: Mutex<Jobs>,
}

impl Registry {
    /// The attempt, if it is known.
    pub(crate) fn find(&self, key: &AttemptKey) -> Option<Arc<Attempt>> {
        let jobs = self.jobs.lock();
        jobs.jobs.get(&job_key(&key.partition.dataset))?.attempts.get(key).cloned()
    }

    /// Why an attempt cannot be opened; `None` when it can.
    pub(crate) fn refusal(&self, key: &AttemptKey) -> Option<StoreErrorKind> {
        self.jobs.lock().jobs.get(&job_key(&key.partition.dataset))?.refusal(key)
    }

    /// What is said of an attempt that this process does not know and need not look for: `NotFound`
    /// in a released scope (whether it ever was is not known), `Fenced` below a fence.
    pub(crate) fn unknown(&self, key: &AttemptKey) -> Option<StoreErrorKind> {
        let jobs = self.jobs.lock();
        let job = jobs.jobs.get(&job_key(&key.partition.dataset))?;
        job.fenced(key).or_else(|| job.is_released(key).then_some(StoreErrorKind::NotFound))
    }

    /// The fence of a partition.
    pub(crate) fn fence(&self, key: &PartitionKey) -> Option<AttemptId> {
        self.jobs.lock().jobs.get(&job_key(&key.dataset))?.fences.get(key).copied()
    }

    /// Adds an attempt unless it is known or its scope is released or fenced. Answers the one that
    /// is known in the end.
    pub(crate) fn add(&self, attempt: Attempt) -> Result<Arc<Attempt>, StoreErrorKind> {
        let mut jobs = self.jobs.lock();
        let job = jobs.jobs.entry(job_key(&attempt.key.partition.dataset)).or_default();
        if let Some(known) = job.attempts.get(&attempt.key) {
            return Ok(known.clone());
        }
        if let Some(refusal) = job.refusal(&attempt.key) {
            return Err(refusal);
        }
        let attempt = Arc::new(attempt);
        job.attempts.insert(attempt.key.clone(), attempt.clone());
        Ok(attempt)
    }

    /// Attempts of a partition.
    pub(crate) fn of_partition(&self, key: &PartitionKey) -> Vec<Arc<Attempt>> {
        let jobs = self.jobs.lock();
        jobs.jobs.get(&job_key(&key.dataset)).map(|job| job.of_partition(key).cloned().collect()).unwrap_or_default()
    }

    /// All attempts.
    pub(crate) fn all(&self) -> Vec<Arc<Attempt>> {
        self.jobs.lock().jobs.values().flat_map(|job| job.attempts.values().cloned()).collect()
    }

    /// Marks a job as released and answers its attempts.
    pub(crate) fn release_job(&self, job: &JobId, incarnation: JobIncarnation) -> Vec<Arc<Attempt>> {
        let key = (job.clone(), incarnation);
        let mut jobs = self.jobs.lock();
        let entry = jobs.jobs.entry(key.clone()).or_default();
        let attempts = entry.attempts.values().cloned().collect();
        if !std::mem::replace(&mut entry.is_released, true) {
            jobs.released.push_back(key);
            if jobs.released.len() > MAX_RELEASED_JOBS
                && let Some(oldest) = jobs.released.pop_front()
            {
                jobs.jobs.remove(&oldest);
            }
        }
        attempts
    }

    /// Marks a dataset as released and answers its attempts.
    pub(crate) fn release_dataset(&self, key: &DatasetKey) -> Vec<Arc<Attempt>> {
        let mut jobs = self.jobs.lock();
        let job = jobs.jobs.entry(job_key(key)).or_default();
        job.datasets.insert(key.dataset.clone());
        job.attempts.values().filter(|attempt| attempt.key.partition.dataset == *key).cloned().collect()
    }

    /// Marks a partition as released and answers its attempts.
    pub(crate) fn release_partition(&self, key: &PartitionKey) -> Vec<Arc<Attempt>> {
        let mut jobs = self.jobs.lock();
        let job = jobs.jobs.entry(job_key(&key.dataset)).or_default();
        job.partitions.insert(key.clone());
        job.of_partition(key).cloned().collect()
    }

    /// Fences the generations below and answers their attempts, and whether the fence is new.
    pub(crate) fn raise_fence(&self, key: &PartitionKey, by: AttemptId) -> (Vec<Arc<Attempt>>, bool) {
        let mut jobs = self.jobs.lock();
        let job = jobs.jobs.entry(job_key(&key.dataset)).or_default();
        let before = job.fences.get(key).copied();
        let is_new = before.is_none_or(|before| before.generation < by.generation);
        if is_new {
            job.fences.insert(key.clone(), by);
        }
        let below = job.of_partition(key).filter(|attempt| attempt.key.attempt.generation < by.generation);
        (below.cloned().collect(), is_new)
    }

    /// Lets everything of a released job go once nothing of it is left. It stays marked.
    pub(crate) fn forget(&self, job: &JobId, incarnation: JobIncarnation) {
        if let Some(job) = self.jobs.lock().jobs.get_mut(&(job.clone(), incarnation)) {
            *job = Job { is_released: true, ..Job::default() };
        }
    }

    /// What one incarnation of a job holds.
    pub(crate) fn held(&self, job: &JobId, incarnation: JobIncarnation) -> HeldBytes {
        let jobs = self.jobs.lock();
        let mut held = HeldBytes::default();
        for attempt in jobs.jobs.get(&(job.clone(), incarnation)).into_iter().flat_map(|job| job.attempts.values()) {
            let (memory, object) = attempt.lock().held();
            held.memory = held.memory.saturating_add(memory);
            held.object = held.object.saturating_add(object);
        }
        held
    }
}

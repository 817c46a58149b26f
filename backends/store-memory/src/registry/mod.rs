//! Which attempts there are, and which there were.
//!
//! Partitions are spread over shards by hash; a call that names a partition locks one shard, and
//! only for a look-up. Attempts that ended leave a tombstone, so that a late call gets the answer
//! that fits and nothing comes back to life; the oldest tombstones of a shard are forgotten when it
//! has too many. A released job, whose incarnation is over for good, leaves one tombstone for
//! everything under it.

use crate::attempt::Attempt;
use crate::ending::Ending;
use crate::error::Subject;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use store_api::{
    AttemptId, AttemptKey, DatasetKey, JobId, JobIncarnation, Operation, PartitionKey, ReleaseScope, StoreError, StoreErrorKind,
};

const N_SHARDS: usize = 64;

/// What is known of an attempt.
#[derive(Debug, Clone)]
pub(crate) enum Known {
    Live(Arc<Attempt>),
    Ended(Ending),
}

#[derive(Debug, Default)]
struct Attempts {
    by_id: BTreeMap<AttemptId, Known>,
    /// The newest attempt whose generation fences lower ones.
    fence: Option<AttemptId>,
}

impl Attempts {
    fn find(&self, id: AttemptId) -> Option<Known> {
        let fenced = || self.fence.filter(|by| id.generation < by.generation).map(|by| Known::Ended(Ending::Fenced { by }));
        self.by_id.get(&id).cloned().or_else(fenced)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Tombstone {
    Attempt(AttemptKey),
    Fence(PartitionKey),
}

impl Tombstone {
    const fn partition(&self) -> &PartitionKey {
        match self {
            Self::Attempt(key) => &key.partition,
            Self::Fence(key) => key,
        }
    }
}

#[derive(Debug, Default)]
struct Shard {
    partitions: HashMap<PartitionKey, Attempts>,
    tombstones: VecDeque<Tombstone>,
}

impl Shard {
    fn bury(&mut self, tombstone: Tombstone, capacity: usize) {
        self.tombstones.push_back(tombstone);
        while self.tombstones.len() > capacity {
            let Some(oldest) = self.tombstones.pop_front() else { return };
            self.forget(&oldest);
        }
    }

    fn forget(&mut self, tombstone: &Tombstone) {
        let Some(attempts) = self.partitions.get_mut(tombstone.partition()) else { return };
        match tombstone {
            Tombstone::Attempt(key) => {
                if matches!(attempts.by_id.get(&key.attempt), Some(Known::Ended(_))) {
                    attempts.by_id.remove(&key.attempt);
                }
            }
            Tombstone::Fence(_) => attempts.fence = None,
        }
        if attempts.by_id.is_empty() && attempts.fence.is_none() {
            self.partitions.remove(tombstone.partition());
        }
    }

    /// Ends the attempts of one partition that `picks`, and remembers each.
    fn end(&mut self, partition: &PartitionKey, ending: Ending, capacity: usize, picks: impl Fn(AttemptId) -> bool) -> Vec<Arc<Attempt>> {
        let mut ended = Vec::new();
        if let Some(attempts) = self.partitions.get_mut(partition) {
            end_in(attempts, ending, picks, &mut ended);
        }
        self.bury_all(&ended, capacity);
        ended
    }

    /// Ends the attempts of one dataset, and remembers each.
    fn end_dataset(&mut self, dataset: &DatasetKey, capacity: usize) -> Vec<Arc<Attempt>> {
        let mut ended = Vec::new();
        for (_, attempts) in self.partitions.iter_mut().filter(|(key, _)| key.dataset == *dataset) {
            end_in(attempts, Ending::Released, |_| true, &mut ended);
        }
        self.bury_all(&ended, capacity);
        ended
    }

    fn bury_all(&mut self, ended: &[Arc<Attempt>], capacity: usize) {
        for attempt in ended {
            self.bury(Tombstone::Attempt(attempt.key.clone()), capacity);
        }
    }

    /// Ends everything of a job and forgets the names: the job has a tombstone of its own.
    fn end_job(&mut self, job: &JobKey, ended: &mut Vec<Arc<Attempt>>) {
        self.partitions.retain(|key, attempts| {
            let is_inside = key.dataset.job == job.0 && key.dataset.incarnation == job.1;
            if is_inside {
                end_in(attempts, Ending::Released, |_| true, ended);
            }
            !is_inside
        });
        let partitions = &self.partitions;
        self.tombstones.retain(|tombstone| partitions.contains_key(tombstone.partition()));
    }
}

fn end_in(attempts: &mut Attempts, ending: Ending, picks: impl Fn(AttemptId) -> bool, ended: &mut Vec<Arc<Attempt>>) {
    for (_, known) in attempts.by_id.iter_mut().filter(|(id, _)| picks(**id)) {
        end_one(known, ending, ended);
    }
}

fn end_one(known: &mut Known, ending: Ending, ended: &mut Vec<Arc<Attempt>>) {
    let Known::Live(attempt) = known else { return };
    // Only an abort of a sealed attempt can be refused, and aborts do not come this way.
    let is_ended = attempt.end(ending, Subject::new(Operation::Release, &attempt.key));
    if is_ended.is_ok() {
        ended.push(attempt.clone());
        *known = Known::Ended(ending);
    }
}

type JobKey = (JobId, JobIncarnation);

/// Jobs that were released as a whole, oldest first.
#[derive(Debug, Default)]
struct Jobs {
    released: HashSet<JobKey>,
    order: VecDeque<JobKey>,
}

impl Jobs {
    fn covers(&self, key: &AttemptKey) -> bool {
        let dataset = &key.partition.dataset;
        self.released.contains(&(dataset.job.clone(), dataset.incarnation))
    }

    fn bury(&mut self, job: &JobKey, capacity: usize) {
        if !self.released.insert(job.clone()) {
            return;
        }
        self.order.push_back(job.clone());
        while self.order.len() > capacity {
            let Some(oldest) = self.order.pop_front() else { return };
            self.released.remove(&oldest);
        }
    }
}

/// All attempts of a store. See the module.
#[derive(Debug)]
pub(crate) struct Registry {
    shards: Vec<RwLock<Shard>>,
    spread: RandomState,
    jobs: Mutex<Jobs>,
    capacity: usize,
    shard_capacity: usize,
}

impl Registry {
    /// Remembers at least `n_tombstones` attempts that ended.
    pub(crate) fn new(n_tombstones: usize) -> Self {
        let shards = std::iter::repeat_with(RwLock::default).take(N_SHARDS).collect();
        let shard_capacity = n_tombstones.div_ceil(N_SHARDS).max(16);
        Self { shards, spread: RandomState::new(), jobs: Mutex::default(), capacity: n_tombstones.max(16), shard_capacity }
    }

    fn shard(&self, partition: &PartitionKey) -> Option<&RwLock<Shard>> {
        // The remainder is below the number of shards, which is not 0.
        let index = self.spread.hash_one(partition) % N_SHARDS as u64;
        self.shards.get(usize::try_from(index).unwrap_or_default())
    }

    /// What is known of an attempt.
    pub(crate) fn find(&self, key: &AttemptKey) -> Option<Known> {
        let shard = self.shard(&key.partition)?.read();
        let found = shard.partitions.get(&key.partition).and_then(|attempts| attempts.find(key.attempt));
        drop(shard);
        found.or_else(|| self.jobs.lock().covers(key).then_some(Known::Ended(Ending::Released)))
    }

    /// The same for an attempt that was itself here: one that a fence refuses without having been
    /// opened is not known.
    pub(crate) fn find_own(&self, key: &AttemptKey) -> Option<Known> {
        let own = |shard: &Shard| shard.partitions.get(&key.partition).and_then(|attempts| attempts.by_id.get(&key.attempt).cloned());
        let found = self.shard(&key.partition).and_then(|shard| own(&shard.read()));
        found.or_else(|| self.jobs.lock().covers(key).then_some(Known::Ended(Ending::Released)))
    }

    /// The live attempt. Errors: `NotFound`, `Fenced`, `Aborted`, `Released`.
    pub(crate) fn live(&self, subject: Subject<'_>) -> Result<Arc<Attempt>, StoreError> {
        match self.find(subject.attempt) {
            Some(Known::Live(attempt)) => Ok(attempt),
            Some(Known::Ended(ending)) => Err(subject.ended(ending)),
            None => Err(subject.refuse(StoreErrorKind::NotFound)),
        }
    }

    /// The attempt, made by `make` when it was never there.
    pub(crate) fn find_or_insert(&self, key: &AttemptKey, make: impl FnOnce() -> Arc<Attempt>) -> Option<Known> {
        let mut shard = self.shard(&key.partition)?.write();
        if let Some(known) = shard.partitions.get(&key.partition).and_then(|attempts| attempts.find(key.attempt)) {
            return Some(known);
        }
        if self.jobs.lock().covers(key) {
            return Some(Known::Ended(Ending::Released));
        }
        let made = Known::Live(make());
        shard.partitions.entry(key.partition.clone()).or_default().by_id.insert(key.attempt, made.clone());
        Some(made)
    }

    /// The live attempts of a partition, oldest first.
    pub(crate) fn of_partition(&self, partition: &PartitionKey) -> Vec<Arc<Attempt>> {
        let Some(shard) = self.shard(partition).map(|shard| shard.read()) else { return Vec::new() };
        let live = |known: &Known| match known {
            Known::Live(attempt) => Some(attempt.clone()),
            Known::Ended(_) => None,
        };
        shard.partitions.get(partition).map(|attempts| attempts.by_id.values().filter_map(live).collect()).unwrap_or_default()
    }

    /// Every live attempt.
    pub(crate) fn all(&self) -> Vec<Arc<Attempt>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            for attempts in shard.read().partitions.values() {
                all.extend(attempts.by_id.values().filter_map(|known| match known {
                    Known::Live(attempt) => Some(attempt.clone()),
                    Known::Ended(_) => None,
                }));
            }
        }
        all
    }

    /// Aborts one attempt. `None` when it is not live. Errors: `AlreadySealed`.
    pub(crate) fn abort(&self, subject: Subject<'_>) -> Result<Option<Arc<Attempt>>, StoreError> {
        let key = subject.attempt;
        let Some(mut shard) = self.shard(&key.partition).map(|shard| shard.write()) else { return Ok(None) };
        let found = shard.partitions.get_mut(&key.partition).and_then(|attempts| attempts.by_id.get_mut(&key.attempt));
        let Some(known) = found else { return Ok(None) };
        let Known::Live(attempt) = known else { return Ok(None) };
        let attempt = attempt.clone();
        attempt.end(Ending::Aborted, subject)?;
        *known = Known::Ended(Ending::Aborted);
        shard.bury(Tombstone::Attempt(key.clone()), self.shard_capacity);
        Ok(Some(attempt))
    }

    /// Ends every attempt inside a scope and returns those that this call ended. When it returns,
    /// none of them takes an append or starts a read.
    pub(crate) fn release(&self, scope: &ReleaseScope) -> Vec<Arc<Attempt>> {
        match scope {
            ReleaseScope::Job { job, incarnation } => self.end_job(&(job.clone(), *incarnation)),
            ReleaseScope::Dataset(dataset) => {
                self.shards.iter().flat_map(|shard| shard.write().end_dataset(dataset, self.shard_capacity)).collect()
            }
            ReleaseScope::Partition(partition) => self.end_in(partition, Ending::Released, |_| true),
            ReleaseScope::Attempt(key) => self.end_in(&key.partition, Ending::Released, |id| id == key.attempt),
            ReleaseScope::GenerationsBelow { partition, by } => {
                self.raise_fence(partition, *by);
                self.end_in(partition, Ending::Fenced { by: *by }, |id| id.generation < by.generation)
            }
        }
    }

    fn end_in(&self, partition: &PartitionKey, ending: Ending, picks: impl Fn(AttemptId) -> bool) -> Vec<Arc<Attempt>> {
        let shard = self.shard(partition).map(|shard| shard.write());
        shard.map(|mut shard| shard.end(partition, ending, self.shard_capacity, picks)).unwrap_or_default()
    }

    fn raise_fence(&self, partition: &PartitionKey, by: AttemptId) {
        let Some(mut shard) = self.shard(partition).map(|shard| shard.write()) else { return };
        let fence = &mut shard.partitions.entry(partition.clone()).or_default().fence;
        if *fence >= Some(by) {
            return;
        }
        let is_first = fence.replace(by).is_none();
        let tombstone = Tombstone::Fence(partition.clone());
        if !is_first {
            // It is as young as its last raise; were it forgotten at the age of its first, a
            // writer that was just fenced could open again.
            shard.tombstones.retain(|other| *other != tombstone);
        }
        shard.bury(tombstone, self.shard_capacity);
    }

    fn end_job(&self, job: &JobKey) -> Vec<Arc<Attempt>> {
        // From here on nothing opens under the job; what is open by then, the shards know.
        self.jobs.lock().bury(job, self.capacity);
        let mut ended = Vec::new();
        for shard in &self.shards {
            shard.write().end_job(job, &mut ended);
        }
        ended
    }
}

#[cfg(test)]
mod tests;

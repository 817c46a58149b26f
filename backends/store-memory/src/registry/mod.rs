//! Which attempts there are, and which there were.
//!
//! Partitions are spread over shards by hash; a call that names a partition locks one shard, and
//! only for a look-up. Attempts that ended leave a tombstone, so that a late call gets the answer
//! that fits and nothing comes back to life; the oldest tombstones of a shard are forgotten when it
//! has too many. A released dataset leaves one tombstone for all its attempts (up to the highest
//! generation it had), a released job one for everything under it.

use crate::attempt::{Attempt, Ending};
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
            for (_, known) in attempts.by_id.iter_mut().filter(|(id, _)| picks(**id)) {
                end_one(known, ending, &mut ended);
            }
        }
        for attempt in &ended {
            self.bury(Tombstone::Attempt(attempt.key.clone()), capacity);
        }
        ended
    }

    /// Ends everything under a scope and forgets the names: the scope has a tombstone of its own.
    /// Returns the highest generation seen.
    fn sweep(&mut self, covers: &impl Fn(&PartitionKey, u32) -> bool, ended: &mut Vec<Arc<Attempt>>) -> Option<u32> {
        let mut highest = None;
        self.partitions.retain(|key, attempts| {
            attempts.by_id.retain(|id, known| {
                let is_covered = covers(key, id.generation);
                if is_covered {
                    highest = highest.max(Some(id.generation));
                    end_one(known, Ending::Released, ended);
                }
                !is_covered
            });
            if let Some(fence) = attempts.fence.filter(|fence| covers(key, fence.generation)) {
                highest = highest.max(Some(fence.generation));
                attempts.fence = None;
            }
            !attempts.by_id.is_empty() || attempts.fence.is_some()
        });
        let partitions = &self.partitions;
        self.tombstones.retain(|tombstone| match (tombstone, partitions.get(tombstone.partition())) {
            (_, None) => false,
            (Tombstone::Attempt(key), Some(attempts)) => attempts.by_id.contains_key(&key.attempt),
            (Tombstone::Fence(_), Some(attempts)) => attempts.fence.is_some(),
        });
        highest
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

/// Scopes that were released as a whole.
#[derive(Debug, Default)]
struct Scopes {
    datasets: HashMap<DatasetKey, u32>,
    jobs: HashSet<(JobId, JobIncarnation)>,
    order: VecDeque<ReleaseScope>,
}

impl Scopes {
    fn is_released(&self, key: &AttemptKey) -> bool {
        let dataset = &key.partition.dataset;
        let under_dataset = self.datasets.get(dataset).is_some_and(|highest| key.attempt.generation <= *highest);
        under_dataset || self.jobs.contains(&(dataset.job.clone(), dataset.incarnation))
    }

    /// Returns the highest generation that is covered.
    fn bury_dataset(&mut self, dataset: &DatasetKey, highest: u32, capacity: usize) -> u32 {
        if let Some(known) = self.datasets.get_mut(dataset) {
            *known = highest.max(*known);
            return *known;
        }
        self.datasets.insert(dataset.clone(), highest);
        self.remember(ReleaseScope::Dataset(dataset.clone()), capacity);
        highest
    }

    /// Returns the highest generation that is covered: every one.
    fn bury_job(&mut self, job: &JobId, incarnation: JobIncarnation, capacity: usize) -> u32 {
        let is_under = |dataset: &DatasetKey| dataset.job == *job && dataset.incarnation == incarnation;
        self.datasets.retain(|dataset, _| !is_under(dataset));
        self.order.retain(|scope| !matches!(scope, ReleaseScope::Dataset(dataset) if is_under(dataset)));
        if self.jobs.insert((job.clone(), incarnation)) {
            self.remember(ReleaseScope::Job { job: job.clone(), incarnation }, capacity);
        }
        u32::MAX
    }

    fn remember(&mut self, scope: ReleaseScope, capacity: usize) {
        self.order.push_back(scope);
        while self.order.len() > capacity {
            match self.order.pop_front() {
                Some(ReleaseScope::Dataset(dataset)) => drop(self.datasets.remove(&dataset)),
                Some(ReleaseScope::Job { job, incarnation }) => drop(self.jobs.remove(&(job, incarnation))),
                _ => {}
            }
        }
    }
}

/// All attempts of a store. See the module.
#[derive(Debug)]
pub(crate) struct Registry {
    shards: Vec<RwLock<Shard>>,
    spread: RandomState,
    scopes: Mutex<Scopes>,
    capacity: usize,
    shard_capacity: usize,
}

impl Registry {
    /// Remembers at least `n_tombstones` attempts that ended.
    pub(crate) fn new(n_tombstones: usize) -> Self {
        let shards = std::iter::repeat_with(RwLock::default).take(N_SHARDS).collect();
        let shard_capacity = n_tombstones.div_ceil(N_SHARDS).max(16);
        Self { shards, spread: RandomState::new(), scopes: Mutex::default(), capacity: n_tombstones.max(16), shard_capacity }
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
        found.or_else(|| self.scopes.lock().is_released(key).then_some(Known::Ended(Ending::Released)))
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
        if self.scopes.lock().is_released(key) {
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
            ReleaseScope::Job { job, incarnation } => {
                let is_under = |key: &PartitionKey, _: u32| key.dataset.job == *job && key.dataset.incarnation == *incarnation;
                self.sweep(&is_under, |scopes, _, capacity| scopes.bury_job(job, *incarnation, capacity))
            }
            ReleaseScope::Dataset(dataset) => {
                let is_under = |key: &PartitionKey, _: u32| key.dataset == *dataset;
                self.sweep(&is_under, |scopes, highest, capacity| scopes.bury_dataset(dataset, highest, capacity))
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
        let is_first = fence.is_none();
        *fence = (*fence).max(Some(by));
        if is_first {
            shard.bury(Tombstone::Fence(partition.clone()), self.shard_capacity);
        }
    }

    fn sweep(&self, covers: &impl Fn(&PartitionKey, u32) -> bool, bury: impl FnOnce(&mut Scopes, u32, usize) -> u32) -> Vec<Arc<Attempt>> {
        let mut ended = Vec::new();
        let highest = self.shards.iter().filter_map(|shard| shard.write().sweep(covers, &mut ended)).max();
        let Some(highest) = highest else { return ended };
        let covered = bury(&mut self.scopes.lock(), highest, self.capacity);
        // An attempt that was opened beside the first sweep is caught by the second; one that is
        // opened later finds the tombstone.
        for shard in &self.shards {
            shard.write().sweep(&|key, generation| generation <= covered && covers(key, generation), &mut ended);
        }
        ended
    }
}

#[cfg(test)]
mod tests;

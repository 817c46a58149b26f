//! What one job holds, and who waits for its memory. `A` is the attempt that an account lists; this
//! module does not look into it.

use crate::buffer::Amounts;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use store_api::{AttemptKey, ByteBudget, HeldBytes, JobId, JobIncarnation};

/// Counts of bytes that many threads move.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    memory: AtomicU64,
    disk: AtomicU64,
    droppable: AtomicU64,
}

impl Usage {
    /// Takes the step from `before` to `after`. Steps of one buffer are made under its lock, so the
    /// sum of all steps is what is held.
    pub(crate) fn step(&self, before: Amounts, after: Amounts) {
        // Adding the difference modulo 2^64 is adding or subtracting it.
        let add = |count: &AtomicU64, from: u64, to: u64| {
            if from != to {
                count.fetch_add(to.wrapping_sub(from), Ordering::Relaxed);
            }
        };
        add(&self.memory, before.memory, after.memory);
        add(&self.disk, before.disk, after.disk);
        add(&self.droppable, before.droppable, after.droppable);
    }

    pub(crate) fn held(&self) -> HeldBytes {
        HeldBytes { memory: self.memory.load(Ordering::Relaxed), disk: self.disk.load(Ordering::Relaxed), object: 0 }
    }

    pub(crate) fn droppable(&self) -> u64 {
        self.droppable.load(Ordering::Relaxed)
    }
}

/// The account of one incarnation of a job.
#[derive(Debug)]
pub(crate) struct Account<A> {
    /// What the job may reserve.
    pub(crate) budget: ByteBudget,
    /// What its attempts hold.
    pub(crate) usage: Usage,
    /// When a floor of the job last moved, in milliseconds of the monotonic clock.
    moved_ms: AtomicU64,
    attempts: Mutex<BTreeMap<AttemptKey, Weak<A>>>,
}

impl<A> Account<A> {
    fn new(budget: ByteBudget) -> Self {
        Self { budget, usage: Usage::default(), moved_ms: AtomicU64::new(0), attempts: Mutex::default() }
    }

    /// A floor has moved at `now`.
    pub(crate) fn note_moved(&self, now: Duration) {
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.moved_ms.fetch_max(now_ms, Ordering::Relaxed);
    }

    /// When a floor of the job last moved.
    pub(crate) fn moved(&self) -> Duration {
        Duration::from_millis(self.moved_ms.load(Ordering::Relaxed))
    }

    /// The attempts that are live now.
    pub(crate) fn attempts(&self) -> Vec<Arc<A>> {
        self.attempts.lock().values().filter_map(Weak::upgrade).collect()
    }
}

type JobKey = (JobId, JobIncarnation);

/// The accounts of all jobs that have a live attempt.
#[derive(Debug)]
pub(crate) struct Accounts<A> {
    root: ByteBudget,
    job_limit: u64,
    by_job: RwLock<HashMap<JobKey, Arc<Account<A>>>>,
}

impl<A> Accounts<A> {
    pub(crate) fn new(root: ByteBudget, job_limit: u64) -> Self {
        Self { root, job_limit, by_job: RwLock::default() }
    }

    /// The budget of all jobs together.
    pub(crate) const fn root(&self) -> &ByteBudget {
        &self.root
    }

    /// What a job holds; 0 when it has no live attempt.
    pub(crate) fn held(&self, job: &JobId, incarnation: JobIncarnation) -> HeldBytes {
        let found = self.by_job.read().get(&(job.clone(), incarnation)).cloned();
        found.map(|account| account.usage.held()).unwrap_or_default()
    }

    /// All accounts.
    pub(crate) fn all(&self) -> Vec<Arc<Account<A>>> {
        self.by_job.read().values().cloned().collect()
    }

    /// Makes an attempt with its job's account, which is made when this is the first one.
    pub(crate) fn enrol(&self, key: &AttemptKey, make: impl FnOnce(Arc<Account<A>>) -> Arc<A>) -> Arc<A> {
        let mut by_job = self.by_job.write();
        let account = by_job.entry(job_of(key)).or_insert_with(|| Arc::new(Account::new(self.root.child(self.job_limit))));
        let attempt = make(account.clone());
        account.attempts.lock().insert(key.clone(), Arc::downgrade(&attempt));
        attempt
    }

    /// Takes an attempt that has ended out of its job's account; the account goes with the last
    /// one. Bytes that are still on their way to readers stay charged to the budget of all.
    pub(crate) fn dismiss(&self, key: &AttemptKey) {
        let mut by_job = self.by_job.write();
        let job = job_of(key);
        let is_empty = by_job.get(&job).is_some_and(|account| {
            let mut attempts = account.attempts.lock();
            attempts.remove(key);
            attempts.is_empty()
        });
        if is_empty {
            by_job.remove(&job);
        }
    }
}

fn job_of(key: &AttemptKey) -> JobKey {
    (key.job().clone(), key.partition.dataset.incarnation)
}

/// Reservations that wait for room, so that whoever makes room knows for whom and how much.
#[derive(Debug)]
pub(crate) struct Demands<A> {
    waiting: Mutex<Waiting<A>>,
    n_waiting: AtomicU64,
}

#[derive(Debug)]
struct Waiting<A> {
    next: u64,
    entries: BTreeMap<u64, (Arc<Account<A>>, u64)>,
}

impl<A> Default for Demands<A> {
    fn default() -> Self {
        Self { waiting: Mutex::new(Waiting { next: 0, entries: BTreeMap::new() }), n_waiting: AtomicU64::new(0) }
    }
}

impl<A> Demands<A> {
    /// Enters a demand; it is withdrawn when the guard drops, on every path.
    pub(crate) fn enter(self: &Arc<Self>, account: &Arc<Account<A>>, bytes: u64) -> Demand<A> {
        let mut waiting = self.waiting.lock();
        let number = waiting.next;
        waiting.next = waiting.next.wrapping_add(1);
        waiting.entries.insert(number, (account.clone(), bytes));
        self.n_waiting.fetch_add(1, Ordering::SeqCst);
        Demand { of: self.clone(), number }
    }

    /// Whether anyone waits.
    pub(crate) fn is_any(&self) -> bool {
        self.count() > 0
    }

    /// How many wait.
    pub(crate) fn count(&self) -> u64 {
        self.n_waiting.load(Ordering::SeqCst)
    }

    /// Bytes that are waited for, per job.
    pub(crate) fn by_account(&self) -> Vec<(Arc<Account<A>>, u64)> {
        let mut sums: Vec<(Arc<Account<A>>, u64)> = Vec::new();
        for (account, bytes) in self.waiting.lock().entries.values() {
            match sums.iter_mut().find(|(known, _)| Arc::ptr_eq(known, account)) {
                Some((_, sum)) => *sum = sum.saturating_add(*bytes),
                None => sums.push((account.clone(), *bytes)),
            }
        }
        sums
    }
}

/// A demand that is entered.
#[derive(Debug)]
pub(crate) struct Demand<A> {
    of: Arc<Demands<A>>,
    number: u64,
}

impl<A> Drop for Demand<A> {
    fn drop(&mut self) {
        self.of.waiting.lock().entries.remove(&self.number);
        self.of.n_waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store_api::SystemClock;

    #[test]
    fn steps_add_up_to_what_is_held() {
        let usage = Usage::default();
        let steps =
            [(0, 0, 0), (10, 0, 0), (4, 6, 0), (4, 0, 4), (0, 0, 0)].map(|(memory, disk, droppable)| Amounts { memory, disk, droppable });
        for pair in steps.windows(2) {
            usage.step(pair[0], pair[1]);
            let held = usage.held();
            assert_eq!((held.memory, held.disk, usage.droppable()), (pair[1].memory, pair[1].disk, pair[1].droppable));
        }
    }

    #[test]
    fn a_demand_is_withdrawn_when_its_guard_drops() {
        let demands = Arc::new(Demands::<()>::default());
        let account = Arc::new(Account::new(ByteBudget::new(10, SystemClock::shared())));
        let (one, two) = (demands.enter(&account, 3), demands.enter(&account, 4));
        assert_eq!(demands.by_account().iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(), [7]);
        drop(one);
        assert!(demands.is_any());
        drop(two);
        assert!(!demands.is_any() && demands.by_account().is_empty());
    }
}

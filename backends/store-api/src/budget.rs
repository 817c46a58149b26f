//! Byte budgets: memory is reserved before a byte is read, and given back when its permit drops.
//!
//! A budget may have children (one per job, say): a child's permit counts against the child and
//! against every ancestor. Waiters are served in order of arrival at each level, so a large request
//! is not starved by small ones. A permit that is dropped anywhere, on any path, gives back exactly
//! what it holds: there is no other way to change the count.

use crate::clock::{SharedClock, within};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Shortest time a refused caller is told to wait.
const MIN_RETRY: Duration = Duration::from_millis(50);
/// Longest time a refused caller is told to wait.
const MAX_RETRY: Duration = Duration::from_secs(30);
/// What a refused caller is told when nothing has been given back lately.
const IDLE_RETRY: Duration = Duration::from_secs(1);
/// Length of a measuring window of the drain rate.
const WINDOW: Duration = Duration::from_secs(1);
/// Largest single reservation, in bytes: what one call can take from the counter.
const MAX_REQUEST: u64 = u32::MAX as u64;

/// Why bytes were not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// More than the budget could ever grant.
    #[error("{requested} bytes are more than the budget of {limit} bytes")]
    TooLarge {
        /// What was asked for, in bytes.
        requested: u64,
        /// The most that one request can get, in bytes.
        limit: u64,
    },
    /// Nothing became free in time.
    #[error("the budget is used up, try again in {retry_after:?}")]
    Exhausted {
        /// Computed from how fast bytes have been given back lately.
        retry_after: Duration,
    },
}

#[derive(Debug)]
struct Level {
    limit: u64,
    free: Arc<Semaphore>,
    drain: Mutex<Drain>,
    parent: Option<Arc<Level>>,
    clock: SharedClock,
}

/// How fast bytes are given back: bytes of the window that runs and rate of the last full one.
#[derive(Debug, Default)]
struct Drain {
    window_start: Duration,
    window_bytes: u64,
    bytes_per_second: u64,
}

impl Drain {
    fn record(&mut self, now: Duration, bytes: u64) {
        self.roll(now);
        self.window_bytes = self.window_bytes.saturating_add(bytes);
    }

    fn roll(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.window_start);
        if elapsed < WINDOW {
            return;
        }
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
        self.bytes_per_second = self.window_bytes.saturating_mul(1000) / elapsed_ms;
        self.window_start = now;
        self.window_bytes = 0;
    }
}

/// A bounded number of bytes that can be reserved. Cloning gives another handle to the same budget.
#[derive(Debug, Clone)]
pub struct ByteBudget {
    level: Arc<Level>,
}

impl ByteBudget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: u64, clock: SharedClock) -> Self {
        Self::with_parent(limit, clock, None)
    }

    /// A budget of at most `limit` bytes within this one.
    #[must_use]
    pub fn child(&self, limit: u64) -> Self {
        Self::with_parent(limit.min(self.level.limit), self.level.clock.clone(), Some(self.level.clone()))
    }

    fn with_parent(limit: u64, clock: SharedClock, parent: Option<Arc<Level>>) -> Self {
        let capacity = usize::try_from(limit).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        let free = Arc::new(Semaphore::new(capacity));
        Self { level: Arc::new(Level { limit: capacity as u64, free, drain: Mutex::new(Drain::default()), parent, clock }) }
    }

    /// The size of the budget, in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.level.limit
    }

    /// Bytes that are reserved now.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.level.limit.saturating_sub(self.level.free.available_permits() as u64)
    }

    /// Bytes that could be reserved at once now, here and at every ancestor.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        let mut free = u64::MAX;
        let mut level = Some(&self.level);
        while let Some(at) = level {
            free = free.min(at.free.available_permits() as u64);
            level = at.parent.as_ref();
        }
        free
    }

    /// Reserves `bytes` if they are free now. Errors: both of [`BudgetError`].
    pub fn try_reserve(&self, bytes: u64) -> Result<Permit, BudgetError> {
        let count = self.count(bytes)?;
        let mut held = Vec::with_capacity(2);
        let mut level = Some(&self.level);
        while let Some(at) = level {
            let granted = at.free.clone().try_acquire_many_owned(count).map_err(|_| self.exhausted(bytes))?;
            held.push(Held { permit: granted, level: at.clone() });
            level = at.parent.as_ref();
        }
        Ok(Permit { parts: vec![Part { bytes, held }] })
    }

    /// Reserves `bytes`, waiting for them at most `patience`. Cancel-safe: dropping the future
    /// leaves nothing reserved and no waiter behind. Errors: both of [`BudgetError`]; a request
    /// that is too large is refused at once.
    pub async fn reserve(&self, bytes: u64, patience: Duration) -> Result<Permit, BudgetError> {
        let count = self.count(bytes)?;
        if let Ok(permit) = self.try_reserve(bytes) {
            return Ok(permit);
        }
        let clock = self.level.clock.clone();
        let waited = within(clock.as_ref(), patience, self.wait(bytes, count)).await;
        waited.flatten().ok_or_else(|| self.exhausted(bytes))
    }

    async fn wait(&self, bytes: u64, count: u32) -> Option<Permit> {
        let mut held = Vec::with_capacity(2);
        let mut level = Some(&self.level);
        while let Some(at) = level {
            // Fails only for a closed semaphore, and these are never closed.
            let granted = at.free.clone().acquire_many_owned(count).await.ok()?;
            held.push(Held { permit: granted, level: at.clone() });
            level = at.parent.as_ref();
        }
        Some(Permit { parts: vec![Part { bytes, held }] })
    }

    /// How long a caller that wants `bytes` should wait, from how fast bytes have been given back
    /// lately: 50 ms to 30 s, 1 s when nothing has been.
    #[must_use]
    pub fn retry_after(&self, bytes: u64) -> Duration {
        let missing = bytes.saturating_sub(self.free_bytes());
        let mut drain = self.level.drain.lock();
        drain.roll(self.level.clock.monotonic());
        if drain.bytes_per_second == 0 {
            return IDLE_RETRY;
        }
        let wait_ms = missing.saturating_mul(1000) / drain.bytes_per_second;
        Duration::from_millis(wait_ms).clamp(MIN_RETRY, MAX_RETRY)
    }

    fn exhausted(&self, bytes: u64) -> BudgetError {
        BudgetError::Exhausted { retry_after: self.retry_after(bytes) }
    }

    fn count(&self, bytes: u64) -> Result<u32, BudgetError> {
        let limit = self.level.limit.min(MAX_REQUEST);
        let too_large = BudgetError::TooLarge { requested: bytes, limit };
        if bytes > limit { Err(too_large) } else { u32::try_from(bytes).map_err(|_| too_large) }
    }
}

#[derive(Debug)]
struct Held {
    permit: OwnedSemaphorePermit,
    level: Arc<Level>,
}

/// Bytes of one budget: every level from it to the root holds exactly `bytes`.
#[derive(Debug)]
struct Part {
    bytes: u64,
    held: Vec<Held>,
}

impl Part {
    fn is_of_same_budget(&self, other: &Self) -> bool {
        match (self.held.first(), other.held.first()) {
            (Some(mine), Some(theirs)) => Arc::ptr_eq(&mine.level, &theirs.level),
            _ => false,
        }
    }

    fn split(&mut self, bytes: u64) -> Option<Self> {
        let count = usize::try_from(bytes).ok().filter(|_| bytes <= self.bytes)?;
        let mut held = Vec::with_capacity(self.held.len());
        for mine in &mut self.held {
            held.push(Held { permit: mine.permit.split(count)?, level: mine.level.clone() });
        }
        self.bytes -= bytes;
        Some(Self { bytes, held })
    }

    fn merge(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        for (mine, theirs) in self.held.iter_mut().zip(other.held) {
            mine.permit.merge(theirs.permit);
        }
    }

    fn give_back(&self) {
        for held in &self.held {
            let now = held.level.clock.monotonic();
            held.level.drain.lock().record(now, self.bytes);
        }
    }
}

/// Reserved bytes. Dropping it gives them back.
#[derive(Debug, Default)]
#[must_use = "a permit that is dropped gives its bytes back"]
pub struct Permit {
    parts: Vec<Part>,
}

impl Permit {
    /// A permit of no bytes, from no budget.
    pub const fn none() -> Self {
        Self { parts: Vec::new() }
    }

    /// Bytes reserved.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| part.bytes.saturating_add(sum))
    }

    /// Takes `bytes` out into a permit of their own; `None`, and nothing changed, when there are
    /// not that many.
    pub fn split(&mut self, bytes: u64) -> Option<Self> {
        if bytes > self.bytes() {
            return None;
        }
        let mut taken = Self::none();
        let mut missing = bytes;
        while missing > 0 {
            let last = self.parts.last_mut()?;
            if last.bytes <= missing {
                missing -= last.bytes;
                taken.parts.extend(self.parts.pop());
            } else {
                taken.parts.push(last.split(missing)?);
                missing = 0;
            }
        }
        Some(taken)
    }

    /// Puts another permit into this one; it may be of another budget.
    pub fn merge(&mut self, mut other: Self) {
        for part in std::mem::take(&mut other.parts) {
            match self.parts.iter_mut().find(|mine| mine.is_of_same_budget(&part)) {
                Some(mine) => mine.merge(part),
                None => self.parts.push(part),
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        for part in &self.parts {
            part.give_back();
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests spawn what they wait for")]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use proptest::prelude::*;

    fn budget(limit: u64) -> (ByteBudget, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::new(0));
        (ByteBudget::new(limit, clock.clone()), clock)
    }

    #[test]
    fn a_request_larger_than_the_budget_is_refused_at_once() {
        let (budget, _) = budget(10);
        let refused = budget.try_reserve(11).map(|permit| permit.bytes());
        assert_eq!(refused, Err(BudgetError::TooLarge { requested: 11, limit: 10 }));
    }

    #[test]
    fn a_child_counts_against_its_parent() {
        let (parent, _) = budget(10);
        let (one, two) = (parent.child(8), parent.child(8));
        let first = one.try_reserve(8);
        assert_eq!((parent.used_bytes(), two.free_bytes()), (8, 2));
        assert!(two.try_reserve(3).is_err());
        assert_eq!(two.used_bytes(), 0, "a refusal must not leave a charge");
        drop(first);
        assert_eq!(parent.used_bytes(), 0);
        assert!(two.try_reserve(8).is_ok());
    }

    #[tokio::test]
    async fn a_waiter_is_served_when_bytes_come_back_and_leaves_nothing_when_it_gives_up() {
        let (budget, clock) = budget(10);
        let held = budget.try_reserve(10);
        let waiting = {
            let budget = budget.clone();
            tokio::spawn(async move { budget.reserve(4, Duration::from_secs(5)).await.map(|permit| permit.bytes()) })
        };
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(6));
        assert!(matches!(waiting.await, Ok(Err(BudgetError::Exhausted { .. }))));
        let waiting = {
            let budget = budget.clone();
            tokio::spawn(async move { budget.reserve(4, Duration::from_secs(5)).await.map(|permit| permit.bytes()) })
        };
        tokio::task::yield_now().await;
        drop(held);
        assert!(matches!(waiting.await, Ok(Ok(4))));
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn retry_after_follows_the_drain_rate() {
        let (budget, clock) = budget(1000);
        assert_eq!(budget.retry_after(1000), MIN_RETRY.max(IDLE_RETRY));
        drop(budget.try_reserve(500));
        clock.advance(Duration::from_secs(1));
        let held = budget.try_reserve(1000);
        assert_eq!(budget.retry_after(1000), Duration::from_secs(2));
        drop(held);
    }

    proptest! {
        #[test]
        fn the_count_is_what_the_permits_hold(steps in proptest::collection::vec((0u8..4, 0u64..40), 1..60)) {
            let (budget, _) = budget(100);
            let child = budget.child(70);
            let mut permits: Vec<Permit> = Vec::new();
            for (step, amount) in steps {
                match step {
                    0 => permits.extend(budget.try_reserve(amount).ok()),
                    1 => permits.extend(child.try_reserve(amount).ok()),
                    2 => { let part = permits.last_mut().and_then(|permit| permit.split(amount)); permits.extend(part); }
                    _ => if let (Some(other), Some(last)) = (permits.pop(), permits.last_mut()) { last.merge(other); },
                }
                let held: u64 = permits.iter().map(Permit::bytes).sum();
                prop_assert_eq!(budget.used_bytes(), held);
                prop_assert!(child.used_bytes() <= 70);
            }
            permits.clear();
            prop_assert_eq!(budget.used_bytes(), 0);
            prop_assert_eq!(child.used_bytes(), 0);
        }
    }
}

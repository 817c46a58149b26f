//! Room in memory: reservations, and what is dropped or spilled so that they can be granted.
//!
//! A reservation takes what is free. When that is not enough it drops read bytes of `BestEffort`
//! attempts itself (no I/O); when that is not enough either, it enters its demand, kicks the room
//! maker and waits in the queue of the budget. The room maker is one background task: it drops and
//! spills for the demands that are entered, and spills `SinceCheckpoint` attempts ahead of need
//! once memory is filled beyond a mark.

use crate::attempt::Account;
use crate::attempt::{Attempt, Subpartition};
use crate::buffer::Held;
use crate::core::Core;
use crate::error::{Subject, budget_kind};
use crate::spill::Spill;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use store_api::{BudgetError, ByteBudget, Operation, Permit, Retention, StoreError, StoreErrorKind};

/// Part of a budget that is dropped beyond what is missing, so that not every reservation has to
/// look for something to drop.
const SLACK: u64 = 32;

impl Core {
    /// Reserves `bytes` for an append to `attempt`. See [`store_api::PartitionStore::reserve`].
    pub(crate) async fn reserve_for(&self, attempt: &Attempt, bytes: u64, patience: Duration) -> Result<Permit, StoreError> {
        let subject = Subject::new(Operation::Reserve, &attempt.key);
        attempt.life().check_open(subject)?;
        let budget = &attempt.account.budget;
        if let Some(permit) = self.reserve_now(attempt, bytes, subject)? {
            return Ok(permit);
        }
        let deadline = self.clock.monotonic().saturating_add(patience);
        loop {
            let now = self.clock.monotonic();
            let left = deadline.saturating_sub(now).min(self.until_exhausted(attempt, now));
            let waited = self.wait_for_room(attempt, bytes, left).await?;
            let now = self.clock.monotonic();
            if let Some(permit) = waited {
                attempt.note_room();
                return Ok(permit);
            }
            let is_exhausted = self.until_exhausted(attempt, now).is_zero() && attempt.account.usage.held().total() > 0;
            if is_exhausted {
                return Err(subject.refuse(StoreErrorKind::RetentionExhausted));
            }
            if now >= deadline || left.is_zero() {
                return Err(subject.refuse(StoreErrorKind::Overloaded { retry_after: budget.retry_after(bytes) }));
            }
        }
    }

    /// Takes what is free or can be made free without waiting. `None` when that is not enough.
    fn reserve_now(&self, attempt: &Attempt, bytes: u64, subject: Subject<'_>) -> Result<Option<Permit>, StoreError> {
        let budget = &attempt.account.budget;
        for _ in 0..2 {
            match budget.try_reserve(bytes) {
                Ok(permit) => {
                    attempt.note_room();
                    return Ok(Some(permit));
                }
                Err(error @ BudgetError::TooLarge { .. }) => return Err(subject.refuse(budget_kind(error))),
                Err(BudgetError::Exhausted { .. }) => self.drop_read(&attempt.account, bytes),
            };
        }
        let now = self.clock.monotonic();
        attempt.full_since.lock().get_or_insert(now);
        Ok(None)
    }

    /// Waits in the queue of the budget. `None` when nothing was granted in time. Errors: the
    /// attempt has ended or was sealed, or the store closes.
    async fn wait_for_room(&self, attempt: &Attempt, bytes: u64, patience: Duration) -> Result<Option<Permit>, StoreError> {
        let subject = Subject::new(Operation::Reserve, &attempt.key);
        let _demand = self.demands.enter(&attempt.account, bytes);
        self.kick.notify_one();
        let mut granted = pin!(attempt.account.budget.reserve(bytes, patience));
        loop {
            let mut turned = pin!(attempt.turned.notified());
            // Registered before the state is looked at, so that a change in between is not missed.
            turned.as_mut().enable();
            self.check_running(Operation::Reserve, &attempt.key)?;
            attempt.life().check_open(subject)?;
            let granted = tokio::select! {
                biased;
                granted = &mut granted => granted,
                () = turned => continue,
            };
            // The end of the attempt may be what made the room.
            self.check_running(Operation::Reserve, &attempt.key)?;
            attempt.life().check_open(subject)?;
            return match granted {
                Ok(permit) => Ok(Some(permit)),
                Err(BudgetError::Exhausted { .. }) => Ok(None),
                Err(error @ BudgetError::TooLarge { .. }) => Err(subject.refuse(budget_kind(error))),
            };
        }
    }

    /// How long it is until the retention counts as impossible to keep: from the later of "memory
    /// became full for this attempt" and "a floor of the job moved" on.
    fn until_exhausted(&self, attempt: &Attempt, now: Duration) -> Duration {
        let full_since = attempt.full_since.lock().unwrap_or(now);
        let since = full_since.max(attempt.account.moved());
        since.saturating_add(self.config.retention_deadline).saturating_sub(now)
    }

    /// Drops read bytes of `BestEffort` attempts until `bytes` fit: those of the job as far as the
    /// job's own limit is what is short, those of every job as far as the limit of all is.
    pub(crate) fn drop_read(&self, account: &Arc<Account>, bytes: u64) {
        let root = self.accounts.root();
        if let Some(missing) = missing(&account.budget, bytes) {
            self.drop_oldest_read(std::slice::from_ref(account), missing);
        }
        if let Some(missing) = missing(root, bytes) {
            self.drop_oldest_read(&self.accounts.all(), missing);
        }
    }

    fn drop_oldest_read(&self, accounts: &[Arc<Account>], bytes: u64) {
        let mut candidates: Vec<(Arc<Subpartition>, Arc<Account>)> = Vec::new();
        for account in accounts.iter().filter(|account| account.usage.droppable() > 0) {
            for attempt in account.attempts().iter().filter(|attempt| attempt.usage.droppable() > 0) {
                candidates.extend(attempt.present().into_iter().map(|(_, subpartition)| (subpartition, account.clone())));
            }
        }
        let order =
            |index: usize| candidates.get(index).and_then(|(subpartition, _)| subpartition.ask(|buffer, _| buffer.oldest_droppable()));
        let mut oldest: BinaryHeap<_> = (0..candidates.len()).filter_map(|index| Some(Reverse((order(index)?, index)))).collect();
        let mut freed = 0_u64;
        while freed < bytes {
            let Some(Reverse((_, index))) = oldest.pop() else { return };
            let Some((subpartition, account)) = candidates.get(index) else { return };
            let dropped = subpartition.change(|buffer, _| buffer.drop_oldest());
            freed = freed.saturating_add(dropped.bytes());
            drop(dropped);
            account.note_moved(self.clock.monotonic());
            // Readers below the new floor must learn of it.
            subpartition.grown.notify_waiters();
            if let Some(next) = order(index) {
                oldest.push(Reverse((next, index)));
            }
        }
    }

    /// Whether spilling should go on, for the job or for all.
    pub(crate) fn is_over_mark(&self, account: &Account) -> bool {
        let Some(spill) = &self.spill else { return false };
        is_over(&account.budget, 0, spill) || is_over(self.accounts.root(), 0, spill)
    }

    /// Drops and spills for those who wait, and spills down to the mark. Returns how long spilling
    /// must rest, when it failed.
    async fn make_room(&self, may_spill: bool) -> Option<Duration> {
        loop {
            let demands = self.demands.by_account();
            for (account, bytes) in &demands {
                self.drop_read(account, *bytes);
            }
            self.remove_condemned().await;
            let spill = self.spill.as_ref().filter(|_| may_spill)?;
            let attempt = self.next_to_spill(spill, &demands)?;
            if let Err(error) = spill_batch(spill, &attempt).await {
                tracing::warn!(attempt = %attempt.key, error = %error, "bytes could not be spilled and stay in memory");
                return Some(spill.config.pause_after_failure);
            }
        }
    }

    /// The attempt with the oldest chunk in memory, among those whose spilling would help.
    fn next_to_spill(&self, spill: &Spill, demands: &[(Arc<Account>, u64)]) -> Option<Arc<Attempt>> {
        let wanted_of =
            |account: &Arc<Account>| demands.iter().find(|(known, _)| Arc::ptr_eq(known, account)).map_or(0, |(_, bytes)| *bytes);
        let wanted = demands.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        let is_root_over = is_over(self.accounts.root(), wanted, spill);
        let accounts = self.accounts.all();
        let short = accounts.iter().filter(|account| is_root_over || is_over(&account.budget, wanted_of(account), spill));
        let attempts = short.flat_map(|account| account.attempts());
        let spillable = attempts.filter(|attempt| attempt.retention == Retention::SinceCheckpoint && attempt.usage.held().memory > 0);
        let with_order = spillable.filter_map(|attempt| {
            let oldest = attempt.present().iter().filter_map(|(_, subpartition)| subpartition.ask(|buffer, _| buffer.oldest())).min();
            Some((oldest?, attempt))
        });
        with_order.min_by_key(|(oldest, _)| *oldest).map(|(_, attempt)| attempt)
    }
}

/// Writes the oldest chunks of an attempt to disk, then lets them go from memory. They stay in
/// memory when the write fails.
async fn spill_batch(spill: &Spill, attempt: &Attempt) -> Result<(), store_file::FileError> {
    let mut by_age: Vec<(u64, Arc<Subpartition>)> = attempt
        .present()
        .into_iter()
        .filter_map(|(_, subpartition)| Some((subpartition.ask(|buffer, _| buffer.oldest())?, subpartition)))
        .collect();
    by_age.sort_unstable_by_key(|(oldest, _)| *oldest);
    let mut left = spill.config.batch_bytes;
    let mut chunks: Vec<Held> = Vec::new();
    let mut parts: Vec<(Arc<Subpartition>, usize)> = Vec::new();
    for (_, subpartition) in by_age {
        let taken = subpartition.ask(|buffer, _| buffer.spillable(left));
        left = taken.iter().fold(left, |left, held| left.saturating_sub(held.length()));
        parts.push((subpartition, taken.len()));
        chunks.extend(taken);
        if left == 0 || chunks.len() >= MAX_BATCH_CHUNKS {
            break;
        }
    }
    let mut extents = spill.write(&attempt.spill_file, &chunks).await?.into_iter();
    // An attempt that ended meanwhile has taken its file out before it could be put in again.
    if attempt.life().ending.is_some() {
        drop(attempt.spill_file.lock().take());
    }
    drop(chunks);
    for (subpartition, n_chunks) in parts {
        let written = extents.by_ref().take(n_chunks).collect();
        let dropped = subpartition.change(|buffer, _| buffer.settle(written));
        drop(dropped);
    }
    Ok(())
}

/// Chunks of one batch: bounds what is looked at when chunks are tiny.
const MAX_BATCH_CHUNKS: usize = 65_536;

/// What is missing for `bytes`, and some slack; `None` when they fit.
fn missing(budget: &ByteBudget, bytes: u64) -> Option<u64> {
    let free = budget.limit_bytes().saturating_sub(budget.used_bytes());
    let missing = bytes.checked_sub(free).filter(|missing| *missing > 0)?;
    Some(missing.saturating_add(budget.limit_bytes() / SLACK))
}

fn is_over(budget: &ByteBudget, wanted: u64, spill: &Spill) -> bool {
    let mark = budget.limit_bytes() / 100 * u64::from(spill.config.start_percent.min(100));
    budget.used_bytes().saturating_add(wanted) > mark
}

/// Starts the room maker. It ends with its task group, with the store, or when the store closes.
pub(crate) fn start(core: &Arc<Core>) {
    let (weak, kick, clock) = (Arc::downgrade(core), core.kick.clone(), core.clock.clone());
    core.tasks.spawn(async move {
        let mut rest_until: Option<Duration> = None;
        loop {
            match rest_until {
                None => kick.notified().await,
                Some(until) => {
                    tokio::select! {
                        () = kick.notified() => {}
                        () = clock.sleep(until.saturating_sub(clock.monotonic())) => {}
                    }
                }
            }
            let Some(core) = weak.upgrade().filter(|core| !core.is_closing()) else { return };
            let may_spill = rest_until.is_none_or(|until| clock.monotonic() >= until);
            let rest = core.make_room(may_spill).await;
            if may_spill {
                rest_until = rest.map(|rest| clock.monotonic().saturating_add(rest));
            }
        }
    });
}

//! One live attempt: its state, its subpartitions, and who is to be woken.
//!
//! Two locks, taken in this order. `life` holds the state: appends and acknowledgements hold it
//! shared while they work (no I/O, no await), a seal or an end holds it alone for a moment, so each
//! append is wholly before or wholly after it. Each subpartition has its own lock around its buffer.

use crate::account::{self, Usage};
use crate::buffer::{Buffer, Dropped};
use crate::ending::Ending;
use crate::error::Subject;
use crate::floors::Positions;
use crate::spill::{Place, SpillFile};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use store_api::{
    AttemptEvent, AttemptKey, AttemptState, ConsumerId, DatasetSpec, LossCause, Offset, Retention, SealManifest, StoreError,
    StoreErrorKind, SubpartitionIndex,
};
use tokio::sync::Notify;

/// The account of one incarnation of a job.
pub(crate) type Account = account::Account<Attempt>;
/// The accounts of all jobs.
pub(crate) type Accounts = account::Accounts<Attempt>;
/// Reservations that wait for room.
pub(crate) type Demands = account::Demands<Attempt>;

/// Where an attempt stands.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) state: AttemptState,
    /// From the preparation on.
    pub(crate) manifest: Option<Arc<SealManifest>>,
    /// Why nothing works any more.
    pub(crate) ending: Option<Ending>,
    /// What was found when bytes turned out to be unreadable.
    pub(crate) loss: Option<LossCause>,
}

impl Life {
    /// Refuses when the attempt has ended.
    pub(crate) fn check_alive(&self, subject: Subject<'_>) -> Result<(), StoreError> {
        self.ending.map_or(Ok(()), |ending| Err(subject.ended(ending)))
    }

    /// Refuses when bytes of the attempt have been found gone or damaged.
    pub(crate) fn check_whole(&self, subject: Subject<'_>) -> Result<(), StoreError> {
        self.loss.map_or(Ok(()), |cause| Err(subject.refuse(StoreErrorKind::Lost { cause })))
    }

    /// The state as others are told it.
    pub(crate) const fn shown_state(&self) -> AttemptState {
        match (self.ending, self.loss) {
            (None, Some(_)) => AttemptState::Lost,
            _ => self.state,
        }
    }

    /// Refuses unless the attempt takes bytes.
    pub(crate) fn check_open(&self, subject: Subject<'_>) -> Result<(), StoreError> {
        self.check_alive(subject)?;
        if self.state == AttemptState::Open { Ok(()) } else { Err(subject.refuse(StoreErrorKind::AlreadySealed)) }
    }
}

/// A buffer, where its consumers stand, and who waits for it.
#[derive(Debug)]
pub(crate) struct Subpartition {
    content: Mutex<Content>,
    /// Wakes readers after each append and each change of state.
    pub(crate) grown: Notify,
    /// Both counts follow every change of the buffer.
    usage: Arc<Usage>,
    account: Arc<Account>,
}

#[derive(Debug)]
struct Content {
    buffer: Buffer<Place>,
    positions: Positions,
}

impl Subpartition {
    /// Runs `change` under the lock and carries the difference in bytes to the counts: the one way
    /// to change a buffer.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Buffer<Place>, &mut Positions) -> T) -> T {
        let mut content = self.content.lock();
        let before = content.buffer.amounts();
        let Content { buffer, positions } = &mut *content;
        let value = change(buffer, positions);
        let after = content.buffer.amounts();
        self.usage.step(before, after);
        self.account.usage.step(before, after);
        value
    }

    /// Runs `ask` under the lock.
    pub(crate) fn ask<T>(&self, ask: impl FnOnce(&Buffer<Place>, &Positions) -> T) -> T {
        let content = self.content.lock();
        ask(&content.buffer, &content.positions)
    }
}

/// One live attempt. See the module.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) key: AttemptKey,
    pub(crate) spec: Arc<DatasetSpec>,
    pub(crate) retention: Retention,
    pub(crate) account: Arc<Account>,
    pub(crate) usage: Arc<Usage>,
    life: RwLock<Life>,
    subpartitions: RwLock<HashMap<u32, Arc<Subpartition>>>,
    /// Wakes reservations after a change of state.
    pub(crate) turned: Notify,
    /// Since when reservations could not be granted at once.
    pub(crate) full_since: Mutex<Option<Duration>>,
    /// The newest checkpoint taken.
    pub(crate) checkpoint: Mutex<Option<u64>>,
    /// The file that spilled chunks are written to now.
    pub(crate) spill_file: Mutex<Option<Arc<SpillFile>>>,
}

impl Attempt {
    pub(crate) fn new(key: AttemptKey, spec: Arc<DatasetSpec>, retention: Retention, account: Arc<Account>) -> Self {
        let life = Life { state: AttemptState::Open, manifest: None, ending: None, loss: None };
        Self {
            key,
            spec,
            retention,
            account,
            usage: Arc::default(),
            life: RwLock::new(life),
            subpartitions: RwLock::default(),
            turned: Notify::new(),
            full_since: Mutex::new(None),
            checkpoint: Mutex::new(None),
            spill_file: Mutex::new(None),
        }
    }

    /// The state, held as long as the guard lives. Never over an await.
    pub(crate) fn life(&self) -> RwLockReadGuard<'_, Life> {
        self.life.read()
    }

    /// Changes the state alone, then wakes everyone who waits for it.
    pub(crate) fn turn<T>(&self, change: impl FnOnce(&mut Life) -> T) -> T {
        let value = change(&mut self.life.write());
        self.wake_all();
        value
    }

    /// Wakes every reader and every reservation.
    pub(crate) fn wake_all(&self) {
        for (_, subpartition) in self.present() {
            subpartition.grown.notify_waiters();
        }
        self.turned.notify_waiters();
    }

    /// Ends the attempt for good; its bytes stay until [`Attempt::clear`]. Returns whether this
    /// call ended it. Errors: `AlreadySealed` when a sealed attempt is aborted.
    pub(crate) fn end(&self, ending: Ending, subject: Subject<'_>) -> Result<bool, StoreError> {
        self.turn(|life| match life.state.after(ending.event()) {
            Ok(after) if after == life.state => Ok(false),
            Ok(after) => {
                life.state = after;
                life.ending = Some(ending);
                Ok(true)
            }
            Err(_) if life.state.is_final() => Ok(false),
            Err(_) => Err(subject.refuse(StoreErrorKind::AlreadySealed)),
        })
    }

    /// Bytes of the attempt were found gone or damaged. The first cause stays.
    pub(crate) fn lose(&self, cause: LossCause) {
        self.turn(|life| {
            life.state = life.state.after(AttemptEvent::Lose).unwrap_or(life.state);
            life.loss = life.loss.or(Some(cause));
        });
    }

    /// Lets go of every byte. Returns how many.
    pub(crate) fn clear(&self) -> u64 {
        let file = self.spill_file.lock().take();
        let mut bytes = 0_u64;
        for (_, subpartition) in self.present() {
            let dropped: Dropped<Place> = subpartition.change(|buffer, _| buffer.clear());
            bytes = bytes.saturating_add(dropped.bytes());
        }
        drop(file);
        bytes
    }

    /// The subpartitions that have been touched, in no order.
    pub(crate) fn present(&self) -> Vec<(u32, Arc<Subpartition>)> {
        self.subpartitions.read().iter().map(|(index, subpartition)| (*index, subpartition.clone())).collect()
    }

    /// The same in ascending order of index.
    pub(crate) fn present_in_order(&self) -> Vec<(SubpartitionIndex, Arc<Subpartition>)> {
        let mut present = self.present();
        present.sort_unstable_by_key(|(index, _)| *index);
        present.into_iter().map(|(index, subpartition)| (SubpartitionIndex::new(index), subpartition)).collect()
    }

    /// A stored subpartition, if it has been touched. Errors: `NoSuchSubpartition`.
    pub(crate) fn find(&self, index: SubpartitionIndex, subject: Subject<'_>) -> Result<Option<Arc<Subpartition>>, StoreError> {
        let count = self.spec.stored_subpartitions();
        if index.get() >= count {
            return Err(subject.refuse_at(StoreErrorKind::NoSuchSubpartition { count }, index));
        }
        Ok(self.subpartitions.read().get(&index.get()).cloned())
    }

    /// A stored subpartition. Errors: `NoSuchSubpartition`.
    pub(crate) fn subpartition(&self, index: SubpartitionIndex, subject: Subject<'_>) -> Result<Arc<Subpartition>, StoreError> {
        Ok(self.find(index, subject)?.unwrap_or_else(|| self.touch(index, Offset::ZERO)))
    }

    /// A stored subpartition, made when it is not there yet, with its first byte at `start`.
    pub(crate) fn touch(&self, index: SubpartitionIndex, start: Offset) -> Arc<Subpartition> {
        let make = || {
            let n_consumers = self.n_consumers();
            let n_readers = (self.retention == Retention::BestEffort).then_some(n_consumers);
            let content = Content { buffer: Buffer::new(start, n_readers), positions: Positions::new(start, n_consumers) };
            let (usage, account) = (self.usage.clone(), self.account.clone());
            Arc::new(Subpartition { content: Mutex::new(content), grown: Notify::new(), usage, account })
        };
        self.subpartitions.write().entry(index.get()).or_insert_with(make).clone()
    }

    /// How many consumers read each stored subpartition.
    fn n_consumers(&self) -> u64 {
        let n_logical = if self.spec.is_broadcast { u64::from(self.spec.n_subpartitions) } else { 1 };
        (self.spec.groups.len() as u64).saturating_mul(n_logical).max(1)
    }

    /// Number of a declared group.
    pub(crate) fn group(&self, name: &ConsumerId) -> Option<usize> {
        self.spec.groups.iter().position(|group| group == name)
    }

    /// Where the bytes of a logical subpartition are stored.
    pub(crate) fn stored(&self, logical: SubpartitionIndex) -> SubpartitionIndex {
        if self.spec.is_broadcast { SubpartitionIndex::new(0) } else { logical }
    }

    /// A reservation was granted, or a floor has moved.
    pub(crate) fn note_room(&self) {
        *self.full_since.lock() = None;
    }
}

//! What happened in a job's recovery: a bounded ring and a cursor to come back with.
//!
//! Each follower reads the ring at its own pace. One that falls behind, or comes back with a cursor
//! of another coordinator, gets one `Reset` and goes on from the present.

use super::calls::{EventSubject, JobKey, RecoveryCursor, RecoveryEvent, RecoveryEventKind};
use futures::stream::{BoxStream, StreamExt as _, unfold};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::watch;

#[derive(Debug, Clone)]
struct Entry {
    sequence: u64,
    kind: RecoveryEventKind,
    subject: EventSubject,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Progress {
    newest: u64,
    is_closed: bool,
}

/// The events of one job.
pub(super) struct EventRing {
    job: JobKey,
    epoch: u64,
    capacity: usize,
    ring: Mutex<VecDeque<Entry>>,
    progress: watch::Sender<Progress>,
}

impl EventRing {
    pub(super) fn new(job: JobKey, epoch: u64, capacity: usize) -> Arc<Self> {
        let (ring, progress) = (Mutex::new(VecDeque::new()), watch::Sender::new(Progress::default()));
        Arc::new(Self { job, epoch, capacity: capacity.max(1), ring, progress })
    }

    /// Adds an event; the oldest makes room.
    pub(super) fn push(&self, kind: RecoveryEventKind, subject: EventSubject) {
        let mut ring = self.ring.lock();
        let sequence = self.progress.borrow().newest.saturating_add(1);
        if ring.len() >= self.capacity {
            ring.pop_front();
        }
        ring.push_back(Entry { sequence, kind, subject });
        self.progress.send_modify(|progress| progress.newest = sequence);
    }

    /// No more events will come.
    pub(super) fn close(&self) {
        self.progress.send_modify(|progress| progress.is_closed = true);
    }

    /// The event after `sequence`; `Err` when it has left the ring or was never there.
    fn after(&self, sequence: u64) -> Result<Option<Entry>, ()> {
        let ring = self.ring.lock();
        let newest = self.progress.borrow().newest;
        if sequence == newest {
            return Ok(None);
        }
        let next = sequence.saturating_add(1);
        let oldest = ring.front().map_or(newest, |entry| entry.sequence);
        let place = next.checked_sub(oldest).filter(|_| sequence < newest).ok_or(())?;
        ring.get(usize::try_from(place).map_err(|_| ())?).cloned().map(Some).ok_or(())
    }

    /// The events after a cursor; from now on without one. Dropping the stream unsubscribes.
    pub(super) fn follow(self: &Arc<Self>, after: Option<RecoveryCursor>) -> BoxStream<'static, RecoveryEvent> {
        let progress = self.progress.subscribe();
        let newest = progress.borrow().newest;
        let (sequence, needs_reset) = match after {
            None => (newest, false),
            Some(cursor) if cursor.epoch == self.epoch => (cursor.sequence, false),
            Some(_) => (newest, true),
        };
        let follower = Follower { ring: self.clone(), progress, sequence, needs_reset };
        unfold(follower, |mut follower| async move { follower.next().await.map(|event| (event, follower)) }).boxed()
    }
}

struct Follower {
    ring: Arc<EventRing>,
    progress: watch::Receiver<Progress>,
    sequence: u64,
    needs_reset: bool,
}

impl Follower {
    fn event(&self, kind: RecoveryEventKind, subject: EventSubject) -> RecoveryEvent {
        let cursor = RecoveryCursor { epoch: self.ring.epoch, sequence: self.sequence };
        RecoveryEvent { cursor, kind, job: self.ring.job.job.clone(), subject }
    }

    async fn next(&mut self) -> Option<RecoveryEvent> {
        loop {
            if std::mem::take(&mut self.needs_reset) {
                self.sequence = self.ring.progress.borrow().newest;
                return Some(self.event(RecoveryEventKind::Reset, EventSubject::default()));
            }
            let is_closed = self.progress.borrow_and_update().is_closed;
            match self.ring.after(self.sequence) {
                Ok(Some(entry)) => {
                    self.sequence = entry.sequence;
                    return Some(self.event(entry.kind, entry.subject));
                }
                Err(()) => self.needs_reset = true,
                Ok(None) if is_closed => return None,
                Ok(None) => self.progress.changed().await.ok()?,
            }
        }
    }
}

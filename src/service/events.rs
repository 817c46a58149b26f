//! What happened in a job, for those who follow it: a bounded ring and a cursor to come back with.
//!
//! There is no queue per subscriber: each reads the ring at its own pace. One that falls behind the
//! ring, or comes back with a cursor of another life of the node, gets one `Reset` and goes on from
//! the present; it should ask for availability then.

use super::PartitionService;
use super::calls::{Event, EventCursor, EventKind, Location};
use super::error::ServiceResult;
use super::registry::Job;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use store_api::{AttemptId, DatasetId, JobId, NodeLife, PartitionId};
use tokio::sync::watch;

/// What an event is about; the job is known.
#[derive(Debug, Clone, Default)]
pub(super) struct Subject {
    pub(super) dataset: Option<DatasetId>,
    pub(super) partition: Option<PartitionId>,
    pub(super) attempt: Option<AttemptId>,
    pub(super) location: Option<Location>,
}

#[derive(Debug, Clone)]
struct Entry {
    sequence: u64,
    kind: EventKind,
    subject: Subject,
}

/// How far a log has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Progress {
    /// Sequence of the newest event; 0 when there was none.
    newest: u64,
    is_closed: bool,
}

/// The events of one job.
pub(super) struct EventLog {
    capacity: usize,
    ring: Mutex<VecDeque<Entry>>,
    progress: watch::Sender<Progress>,
}

impl EventLog {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), ring: Mutex::new(VecDeque::new()), progress: watch::Sender::new(Progress::default()) }
    }

    /// Adds an event; the oldest makes room.
    pub(super) fn push(&self, kind: EventKind, subject: Subject) {
        let mut ring = self.ring.lock();
        let sequence = self.progress.borrow().newest.saturating_add(1);
        if ring.len() >= self.capacity {
            ring.pop_front();
        }
        ring.push_back(Entry { sequence, kind, subject });
        self.progress.send_modify(|progress| progress.newest = sequence);
    }

    /// Sequence of the newest event; 0 when there was none.
    pub(super) fn newest(&self) -> u64 {
        self.progress.borrow().newest
    }

    /// No more events will come: streams end after the last.
    pub(super) fn close(&self) {
        self.progress.send_modify(|progress| progress.is_closed = true);
    }

    /// The event after `sequence`; `Err` with the newest sequence when it has left the ring or was
    /// never there.
    fn after(&self, sequence: u64) -> Result<Option<Entry>, u64> {
        let ring = self.ring.lock();
        let newest = self.progress.borrow().newest;
        if sequence == newest {
            return Ok(None);
        }
        let oldest = ring.front().map_or(newest, |entry| entry.sequence);
        if sequence > newest || sequence.saturating_add(1) < oldest {
            return Err(newest);
        }
        let at = usize::try_from(sequence.saturating_add(1).saturating_sub(oldest)).unwrap_or(usize::MAX);
        ring.get(at).cloned().map(Some).ok_or(newest)
    }
}

/// A subscriber.
struct Follower {
    job: Arc<Job>,
    life: NodeLife,
    progress: watch::Receiver<Progress>,
    sequence: u64,
    needs_reset: bool,
}

impl Follower {
    fn event(&self, sequence: u64, kind: EventKind, subject: Subject) -> Event {
        Event {
            cursor: EventCursor { life: self.life, sequence },
            kind,
            job: self.job.id.clone(),
            dataset: subject.dataset,
            partition: subject.partition,
            attempt: subject.attempt,
            location: subject.location,
        }
    }

    fn reset(&mut self) -> Event {
        self.needs_reset = false;
        self.sequence = self.job.events.progress.borrow().newest;
        self.event(self.sequence, EventKind::Reset, Subject::default())
    }

    /// The next event; `None` when the log is closed and all was told.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if self.needs_reset {
                return Some(self.reset());
            }
            let is_closed = self.progress.borrow_and_update().is_closed;
            match self.job.events.after(self.sequence) {
                Ok(Some(entry)) => {
                    self.sequence = entry.sequence;
                    return Some(self.event(entry.sequence, entry.kind, entry.subject));
                }
                Err(_) => self.needs_reset = true,
                Ok(None) if is_closed => return None,
                Ok(None) => self.progress.changed().await.ok()?,
            }
        }
    }
}

impl PartitionService {
    /// The events of a job after a cursor; from now on when it is left out.
    ///
    /// The first event is `Reset` when the cursor is of another life of the node or has left the
    /// ring. The stream ends after the last event of a job that has ended, and when the node
    /// drains. Dropping it unsubscribes. Errors: `UnknownJob`, `Released`, `Expired`.
    pub async fn events(&self, job: &JobId, after: Option<EventCursor>) -> ServiceResult<BoxStream<'static, Event>> {
        let job = self.find_job(job).await?;
        let progress = job.events.progress.subscribe();
        let newest = progress.borrow().newest;
        let life = self.node.location.life;
        let (sequence, needs_reset) = match after {
            None => (newest, false),
            Some(cursor) if cursor.life == life => (cursor.sequence, false),
            Some(_) => (newest, true),
        };
        let follower = Follower { job, life, progress, sequence, needs_reset };
        let draining = self.draining.subscribe();
        let events = stream::unfold((follower, draining), |(mut follower, mut draining)| async move {
            let next = tokio::select! {
                biased;
                next = follower.next() => next,
                _ = draining.wait_for(|is_draining| *is_draining) => None,
            };
            next.map(|event| (event, (follower, draining)))
        });
        Ok(events.boxed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_answers_what_it_holds_and_says_when_it_does_not() {
        let log = EventLog::new(3);
        assert!(matches!(log.after(0), Ok(None)));
        for _ in 0..5 {
            log.push(EventKind::Sealed, Subject::default());
        }
        assert!(matches!(log.after(1), Err(5)));
        for sequence in 2..5 {
            let next = log.after(sequence).unwrap().map(|entry| entry.sequence);
            assert_eq!(next, Some(sequence + 1));
        }
        assert!(matches!(log.after(5), Ok(None)));
        assert!(matches!(log.after(6), Err(5)));
        assert!(matches!(log.after(u64::MAX), Err(5)));
    }
}

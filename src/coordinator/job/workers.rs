//! Who computes for the job. Nothing here is journaled: workers say it again.

use super::super::calls::{EventSubject, MemberStanding, RecoveryEventKind, TaskAddress, TaskAttempt, WorkerView};
use super::JobState;
use crate::recovery::graph::TaskIndex;
use crate::recovery::snapshot::TaskState;
use std::time::Duration;
use store_api::{NodeLife, WorkerId};

/// One start of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WorkerRecord {
    pub(super) id: WorkerId,
    pub(super) life: NodeLife,
    pub(super) heard_at: Duration,
    pub(super) is_lost: bool,
}

/// Why a worker is not listened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::coordinator) enum NotHeard {
    /// It is not registered, or counts as gone.
    Unknown,
    /// It has a newer life.
    Former(NodeLife),
}

impl JobState {
    pub(super) fn worker_id(&self, place: u32) -> Option<WorkerId> {
        self.workers.get(place as usize).map(|worker| worker.id.clone())
    }

    /// The current life of a worker that is registered.
    pub(in crate::coordinator) fn worker_life(&self, worker: &WorkerId) -> Option<NodeLife> {
        let place = *self.current_workers.get(worker)?;
        self.workers.get(place as usize).map(|worker| worker.life)
    }

    /// The place and the life of a worker that is registered.
    pub(in crate::coordinator) fn worker_named(&self, worker: &WorkerId) -> Option<(u32, NodeLife)> {
        let place = *self.current_workers.get(worker)?;
        self.workers.get(place as usize).map(|worker| (place, worker.life))
    }

    /// The place of a life of a worker. One that is met for the first time counts as heard now: a
    /// coordinator that starts gives it one timeout to register again.
    pub(super) fn worker_place(&mut self, worker: &WorkerId, life: NodeLife, now: Duration) -> u32 {
        if let Some(place) = self.workers.iter().position(|known| known.id == *worker && known.life == life) {
            return u32::try_from(place).unwrap_or(u32::MAX);
        }
        let place = u32::try_from(self.workers.len()).unwrap_or(u32::MAX);
        self.workers.push(WorkerRecord { id: worker.clone(), life, heard_at: now, is_lost: false });
        if let Some(former) = self.current_workers.insert(worker.clone(), place) {
            self.lose(former);
        }
        place
    }

    /// Registers a life of a worker; a former one is gone with it. Errors: a life that was replaced.
    pub(in crate::coordinator) fn register_worker(&mut self, worker: &WorkerId, life: NodeLife, now: Duration) -> Result<(), NotHeard> {
        let known = self.workers.iter().position(|known| known.id == *worker && known.life == life);
        let current = self.worker_life(worker);
        match (known, current) {
            (Some(_), Some(current)) if current != life => return Err(NotHeard::Former(current)),
            // A life that was given up may come back: what ran there was planned for.
            (Some(place), _) => {
                if let Some(record) = self.workers.get_mut(place) {
                    (record.heard_at, record.is_lost) = (now, false);
                }
                self.current_workers.insert(worker.clone(), u32::try_from(place).unwrap_or(u32::MAX));
            }
            (None, _) => drop(self.worker_place(worker, life, now)),
        }
        Ok(())
    }

    /// A worker is alive and runs these attempts. Answers those that it shall stop.
    pub(in crate::coordinator) fn hear_worker(
        &mut self,
        worker: &WorkerId,
        life: NodeLife,
        running: Vec<TaskAttempt>,
        now: Duration,
    ) -> Result<Vec<TaskAttempt>, NotHeard> {
        let place = *self.current_workers.get(worker).ok_or(NotHeard::Unknown)?;
        let record = self.workers.get_mut(place as usize).ok_or(NotHeard::Unknown)?;
        if record.life != life {
            return Err(NotHeard::Former(record.life));
        }
        record.heard_at = now;
        Ok(running.into_iter().filter(|one| !self.is_to_run(one, place)).collect())
    }

    /// Whether an attempt that runs on a worker counts; notes where it runs. One that was never
    /// reported is left alone: its report is on its way.
    fn is_to_run(&mut self, attempt: &TaskAttempt, place: u32) -> bool {
        let Some(task) = self.task(&attempt.task) else { return false };
        if let Some(worker) = self.stopping.get_mut(&(task.number(), attempt.attempt)) {
            *worker = Some(place);
            return false;
        }
        let Some(record) = self.record_mut(task) else { return false };
        if let Some(known) = record.attempts.iter_mut().find(|known| known.attempt == attempt.attempt) {
            if record.state != TaskState::Finished {
                known.worker = Some(place);
            }
            return true;
        }
        record.last_attempt.is_none_or(|last| attempt.attempt > last)
    }

    /// A worker is gone. Answers whether it was there.
    pub(in crate::coordinator) fn lose_worker(&mut self, worker: &WorkerId, life: Option<NodeLife>) -> bool {
        let Some(place) = self.current_workers.get(worker).copied() else { return false };
        let is_meant = self.workers.get(place as usize).is_some_and(|record| life.is_none_or(|life| record.life == life));
        if is_meant {
            self.current_workers.remove(worker);
            self.lose(place);
        }
        is_meant
    }

    fn lose(&mut self, place: u32) {
        let Some(record) = self.workers.get_mut(place as usize) else { return };
        record.is_lost = true;
        let worker = Some(record.id.clone());
        self.stopping.retain(|_, on| *on != Some(place));
        let runs = |task: &crate::recovery::snapshot::TaskRecord| {
            task.state.is_live() && task.attempts.iter().any(|attempt| attempt.worker == Some(place))
        };
        self.needs_plan |= self.tasks.iter().any(runs);
        self.events.push(RecoveryEventKind::WorkerLost, EventSubject { worker, ..EventSubject::default() });
    }

    pub(super) fn hear_all_workers(&mut self, now: Duration) {
        self.workers.iter_mut().filter(|worker| !worker.is_lost).for_each(|worker| worker.heard_at = now);
    }

    /// Workers that have been silent for `timeout` are gone.
    pub(in crate::coordinator) fn expire_workers(&mut self, now: Duration, timeout: Duration) {
        let is_silent = |place: &u32| self.workers.get(*place as usize).is_some_and(|one| now.saturating_sub(one.heard_at) >= timeout);
        let silent: Vec<WorkerId> =
            self.current_workers.iter().filter(|(_, place)| is_silent(place)).map(|(worker, _)| worker.clone()).collect();
        for worker in silent {
            self.lose_worker(&worker, None);
        }
    }

    /// Every worker that was met, by its newest life.
    pub(in crate::coordinator) fn worker_views(&self, now: Duration, suspect_after: Duration) -> Vec<WorkerView> {
        let standing = |worker: &WorkerRecord| match now.saturating_sub(worker.heard_at) {
            _ if worker.is_lost => MemberStanding::Lost,
            silence if silence >= suspect_after => MemberStanding::Suspect,
            _ => MemberStanding::Up,
        };
        let mut newest: std::collections::BTreeMap<&WorkerId, &WorkerRecord> = std::collections::BTreeMap::new();
        for worker in &self.workers {
            newest.insert(&worker.id, worker);
        }
        let view = |worker: &WorkerRecord| WorkerView { worker: worker.id.clone(), life: worker.life, standing: standing(worker) };
        newest.into_values().map(view).collect()
    }

    /// Current attempts of a task.
    pub(in crate::coordinator) fn attempts_of(&self, task: &TaskAddress) -> Option<(TaskIndex, Vec<store_api::AttemptId>)> {
        let task = self.task(task)?;
        let record = self.record(task).filter(|record| record.state.is_live());
        Some((task, record.map(|record| record.attempts.iter().map(|one| one.attempt).collect()).unwrap_or_default()))
    }
}

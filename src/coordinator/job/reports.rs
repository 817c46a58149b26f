//! Which reports count, and what they change.
//!
//! A report about an attempt that counts changes its task; one about an attempt that is being
//! stopped only says that it has ended; any other changes nothing and is answered so. Failures and
//! troubles go through the planner's fencing.

use super::super::calls::{EventSubject, RecoveryEventKind, ReportOutcome};
use super::super::entry::{InputRecord, ToldRecord, Trouble, attempt_of};
use super::super::nodes::NodesNow;
use super::JobState;
use crate::recovery::graph::{DatasetIndex, PartitionRef, TaskIndex};
use crate::recovery::report::{self, DropReason, FailureCause, Report, ReportVerdict, Speaker};
use crate::recovery::snapshot::{AttemptRecord, GlobalFailure, PartitionStatus, TaskState};
use std::time::Duration;
use store_api::{AttemptId, NodeLife, WorkerId};

impl InputRecord {
    const fn partition(self) -> PartitionRef {
        PartitionRef { dataset: DatasetIndex::new(self.dataset), producer: self.producer }
    }

    const fn trouble(self) -> report::Trouble {
        match self.trouble {
            Trouble::Transient => report::Trouble::Transient,
            Trouble::Unreachable => report::Trouble::Unreachable,
            Trouble::Gone => report::Trouble::Gone,
            Trouble::Corrupt => report::Trouble::Corrupt,
        }
    }
}

impl JobState {
    /// What a report comes to if it changes nothing; `None` when it has to be taken in.
    pub(in crate::coordinator) fn preview(&self, told: &ToldRecord) -> Option<ReportOutcome> {
        use ReportOutcome as O;
        match told {
            ToldRecord::Running { task, attempt, worker, life } => {
                let place = worker.as_ref().and_then(|worker| self.known_place(worker, *life));
                self.preview_running(TaskIndex::new(*task), attempt_of(*attempt), place)
            }
            ToldRecord::Finished { task, attempt, .. } | ToldRecord::Failed { task, attempt, .. } => {
                self.preview_end(TaskIndex::new(*task), attempt_of(*attempt), O::NotCurrent)
            }
            ToldRecord::Cancelled { task, attempt } => self.preview_end(TaskIndex::new(*task), attempt_of(*attempt), O::Duplicate),
            ToldRecord::Trouble(input) => self.preview_trouble(*input),
            ToldRecord::RestartAll { version } => {
                let is_old = version.is_some_and(|version| version != self.version);
                (is_old || self.global.is_some()).then_some(O::Duplicate)
            }
        }
    }

    fn known_place(&self, worker: &str, life: Option<u64>) -> Option<u32> {
        let place = self.workers.iter().position(|known| known.id.as_str() == worker && Some(known.life.get()) == life)?;
        u32::try_from(place).ok()
    }

    fn preview_running(&self, task: TaskIndex, attempt: AttemptId, place: Option<u32>) -> Option<ReportOutcome> {
        let Some(record) = self.record(task) else { return Some(ReportOutcome::Unknown) };
        if self.stopping.contains_key(&(task.number(), attempt)) {
            return Some(ReportOutcome::NotCurrent);
        }
        let known = record.attempts.iter().find(|known| known.attempt == attempt);
        match (known, record.state) {
            (Some(known), TaskState::Running) if place.is_none() || known.worker == place => Some(ReportOutcome::Duplicate),
            (Some(_), TaskState::Finished) => Some(ReportOutcome::Duplicate),
            (Some(_), _) | (None, TaskState::Created) => None,
            // Another execution of a running task, side by side.
            (None, TaskState::Scheduled | TaskState::Running) if record.last_attempt.is_some_and(|last| is_beside(attempt, last)) => None,
            (None, _) => Some(ReportOutcome::NotCurrent),
        }
    }

    fn preview_end(&self, task: TaskIndex, attempt: AttemptId, otherwise: ReportOutcome) -> Option<ReportOutcome> {
        let Some(record) = self.record(task) else { return Some(ReportOutcome::Unknown) };
        if self.stopping.contains_key(&(task.number(), attempt)) {
            return None;
        }
        let is_known = record.attempts.iter().any(|known| known.attempt == attempt);
        match record.state {
            _ if !is_known => Some(otherwise),
            TaskState::Finished => Some(ReportOutcome::Duplicate),
            _ => None,
        }
    }

    fn preview_trouble(&self, input: InputRecord) -> Option<ReportOutcome> {
        let Some(copy) = self.copy(input.partition()) else { return Some(ReportOutcome::Unknown) };
        match copy.status {
            _ if copy.attempt != attempt_of(input.attempt) => Some(ReportOutcome::LookUpAgain),
            _ if input.trouble == Trouble::Transient => Some(ReportOutcome::ReadOn),
            PartitionStatus::Lost | PartitionStatus::Corrupt | PartitionStatus::Released => Some(ReportOutcome::Duplicate),
            PartitionStatus::Suspect { .. } if input.trouble == Trouble::Unreachable => Some(ReportOutcome::Duplicate),
            PartitionStatus::Available | PartitionStatus::Suspect { .. } => None,
        }
    }

    /// Takes a report in.
    pub(super) fn take_report(&mut self, told: &ToldRecord, at: Duration, nodes: &NodesNow) -> ReportOutcome {
        if let Some(outcome) = self.preview(told) {
            return outcome;
        }
        match told {
            ToldRecord::Running { task, attempt, worker, life } => {
                let worker = worker.as_ref().zip(*life).and_then(|(worker, life)| Some((WorkerId::new(worker).ok()?, NodeLife::new(life))));
                let place = worker.map(|(worker, life)| self.worker_place(&worker, life, at));
                self.take_running(TaskIndex::new(*task), attempt_of(*attempt), place)
            }
            ToldRecord::Finished { task, attempt, is_committed } => {
                self.take_finished(TaskIndex::new(*task), attempt_of(*attempt), *is_committed, at)
            }
            ToldRecord::Failed { task, attempt, is_unrecoverable, input } => {
                let cause = match input {
                    _ if *is_unrecoverable => FailureCause::Unrecoverable,
                    Some(input) => {
                        FailureCause::Input { partition: input.partition(), read: attempt_of(input.attempt), trouble: input.trouble() }
                    }
                    None => FailureCause::Own,
                };
                self.take_failed(TaskIndex::new(*task), attempt_of(*attempt), cause, at, nodes)
            }
            ToldRecord::Cancelled { task, attempt } => {
                let (task, attempt) = (TaskIndex::new(*task), attempt_of(*attempt));
                if self.stopping.remove(&(task.number(), attempt)).is_some() {
                    return ReportOutcome::Accepted;
                }
                // Nobody asked for it: it has ended without a result.
                self.take_failed(task, attempt, FailureCause::Own, at, nodes)
            }
            ToldRecord::Trouble(input) => {
                let held = attempt_of(input.attempt);
                self.fence(Report::PartitionTrouble { partition: input.partition(), held, trouble: input.trouble() }, at, nodes)
            }
            ToldRecord::RestartAll { .. } => {
                (self.global, self.needs_plan) = (Some(GlobalFailure::RestartAll), true);
                ReportOutcome::Accepted
            }
        }
    }

    fn take_running(&mut self, task: TaskIndex, attempt: AttemptId, worker: Option<u32>) -> ReportOutcome {
        let Some(record) = self.record_mut(task) else { return ReportOutcome::Unknown };
        record.state = TaskState::Running;
        record.last_attempt = record.last_attempt.max(Some(attempt));
        match record.attempts.iter_mut().find(|known| known.attempt == attempt) {
            Some(known) => known.worker = worker.or(known.worker),
            None => record.attempts.push(AttemptRecord { attempt, worker }),
        }
        self.expect_open_outputs(task, attempt);
        ReportOutcome::Accepted
    }

    fn take_finished(&mut self, task: TaskIndex, attempt: AttemptId, is_committed: bool, at: Duration) -> ReportOutcome {
        if self.stopping.remove(&(task.number(), attempt)).is_some() {
            return ReportOutcome::CountsAsCancelled;
        }
        let Some(record) = self.record_mut(task) else { return ReportOutcome::Unknown };
        record.state = TaskState::Finished;
        record.is_committed |= is_committed;
        let losers: Vec<AttemptRecord> = record.attempts.iter().filter(|known| known.attempt != attempt).copied().collect();
        record.attempts.retain(|known| known.attempt == attempt);
        self.stopping.extend(losers.into_iter().map(|loser| ((task.number(), loser.attempt), loser.worker)));
        self.expect_outputs(task, attempt, at);
        ReportOutcome::Accepted
    }

    fn take_failed(&mut self, task: TaskIndex, attempt: AttemptId, cause: FailureCause, at: Duration, nodes: &NodesNow) -> ReportOutcome {
        if self.stopping.remove(&(task.number(), attempt)).is_some() {
            return ReportOutcome::CountsAsCancelled;
        }
        let of = Speaker { task, attempt, coordinator_epoch: self.coordinator_epoch };
        let outcome = self.fence(Report::AttemptFailed { of, cause }, at, nodes);
        let attempt = Some(self.named(task, attempt));
        self.events.push(RecoveryEventKind::AttemptFailed, EventSubject { attempt, ..EventSubject::default() });
        outcome
    }

    /// Lets the planner's fencing judge a report, and takes over what it believes.
    fn fence(&mut self, report: Report, at: Duration, nodes: &NodesNow) -> ReportOutcome {
        let snapshot = match self.snapshot(at, nodes) {
            Ok(snapshot) => snapshot,
            Err(error) => {
                tracing::error!(job = %self.key.job, %error, "the state of a job contradicts itself");
                return ReportOutcome::Unknown;
            }
        };
        let fenced = report::fence(&snapshot, &[report]);
        let verdict = fenced.verdicts.first().copied().unwrap_or(ReportVerdict::Dropped(DropReason::Unknown));
        if matches!(verdict, ReportVerdict::Dropped(_) | ReportVerdict::ReadOn) {
            return outcome_of(verdict);
        }
        let draft = fenced.snapshot.into_draft();
        self.tasks = draft.tasks;
        self.global = draft.global_failure;
        for (copies, records) in self.partitions.iter_mut().zip(draft.partitions) {
            for (copy, record) in copies.iter_mut().zip(records) {
                if let (Some(copy), Some(record)) = (copy, record) {
                    (copy.attempt, copy.is_sealed, copy.status) = (record.attempt, record.is_sealed, record.status);
                }
            }
        }
        self.needs_plan |= verdict != ReportVerdict::AttemptDropped;
        outcome_of(verdict)
    }
}

/// Whether an attempt may run beside the newest one of its task: of the same generation.
const fn is_beside(attempt: AttemptId, last: AttemptId) -> bool {
    attempt.generation == last.generation && attempt.attempt != last.attempt
}

const fn outcome_of(verdict: ReportVerdict) -> ReportOutcome {
    match verdict {
        ReportVerdict::Accepted => ReportOutcome::Accepted,
        ReportVerdict::AttemptDropped => ReportOutcome::AttemptDropped,
        ReportVerdict::CountsAsCancelled => ReportOutcome::CountsAsCancelled,
        ReportVerdict::ReadOn => ReportOutcome::ReadOn,
        ReportVerdict::SealConflict { .. } => ReportOutcome::LookUpAgain,
        ReportVerdict::Dropped(reason) => match reason {
            DropReason::OldCoordinator => ReportOutcome::OldCoordinator,
            DropReason::AttemptNotCurrent | DropReason::FormerLife => ReportOutcome::NotCurrent,
            DropReason::AlreadyFinished | DropReason::Duplicate => ReportOutcome::Duplicate,
            DropReason::PartitionNotCurrent | DropReason::Released => ReportOutcome::LookUpAgain,
            DropReason::Unknown => ReportOutcome::Unknown,
        },
    }
}

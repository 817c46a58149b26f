//! Proposing a plan, taking it into force, and how far it is.

use super::super::calls::{EventSubject, PlanStage, PlanView, RecoveryEventKind};
use super::super::entry::{PlanRecord, PlanVerdict, attempt_of, partition_of};
use super::super::nodes::NodesNow;
use super::{JobState, Place};
use crate::recovery::graph::{PartitionRef, TaskIndex};
use crate::recovery::plan::Verdict;
use crate::recovery::policy::Policy;
use crate::recovery::report::Report;
use crate::recovery::restart_budget::{Allowance, JitterDraw};
use crate::recovery::snapshot::{AttemptRecord, SnapshotError, TaskState};
use crate::recovery::{fence, plan};
use std::sync::Arc;
use std::time::Duration;
use store_api::AttemptId;

/// What planning came to.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::coordinator) struct Proposal {
    /// A plan to take into force; `None` when nothing changes.
    pub(in crate::coordinator) plan: Option<PlanRecord>,
    /// When to look again although nothing is heard.
    again_at: Option<Duration>,
}

impl JobState {
    /// Whether it is time to plan.
    pub(in crate::coordinator) fn wants_plan(&self, now: Duration) -> bool {
        !self.is_given_up() && (self.needs_plan || self.plan_again_at.is_some_and(|at| at <= now))
    }

    /// A plan for what is wrong now. Pure. Errors: the state contradicts itself.
    pub(in crate::coordinator) fn propose(&self, now: Duration, nodes: &NodesNow, jitter: f64) -> Result<Proposal, SnapshotError> {
        if self.is_given_up() {
            return Ok(Proposal { plan: None, again_at: None });
        }
        let snapshot = self.snapshot(now, nodes)?;
        let mut planned = plan(&snapshot, &self.policy, Allowance::After(Duration::ZERO));
        if planned.verdict == Verdict::Restart {
            let draw = JitterDraw::new(jitter).unwrap_or(JitterDraw::MIDDLE);
            let (_, allowance) = self.budget.clone().after_failure(now, draw);
            planned = plan(&snapshot, &self.policy, allowance);
        }
        let again_at = planned.plan_again_at;
        let record = PlanRecord::of(&planned, self.plans.len() as u64 + 1, self.coordinator_epoch, jitter);
        let is_new = match record.verdict {
            PlanVerdict::Nothing => false,
            PlanVerdict::Restart => true,
            // The same refusal is not told twice.
            _ => self.plans.last().is_none_or(|(_, last)| last.verdict != record.verdict || last.because != record.because),
        };
        Ok(Proposal { plan: is_new.then_some(record), again_at })
    }

    /// Nothing has to be planned for until something is heard, or until the time that planning named.
    pub(in crate::coordinator) fn note_planned(&mut self, proposal: &Proposal) {
        (self.needs_plan, self.plan_again_at) = (false, proposal.again_at);
    }

    /// A plan for what would be wrong if these failed too; changes nothing. Errors: the state
    /// contradicts itself.
    pub(in crate::coordinator) fn rehearse(
        &self,
        reports: &[Report],
        policy: Option<Policy>,
        now: Duration,
        nodes: &NodesNow,
    ) -> Result<PlanRecord, SnapshotError> {
        let snapshot = fence(&self.snapshot(now, nodes)?, reports).snapshot;
        let planned = plan(&snapshot, &policy.unwrap_or(self.policy), Allowance::After(Duration::ZERO));
        Ok(PlanRecord::of(&planned, 0, self.coordinator_epoch, 0.0))
    }

    /// The policy of the job.
    pub(in crate::coordinator) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Takes a plan into force: the attempts that it stops no longer count, the new ones do.
    pub(super) fn take_plan(&mut self, record: Arc<PlanRecord>, at: Duration) {
        let number = record.number;
        if matches!(record.verdict, PlanVerdict::Restart | PlanVerdict::NoBudget) {
            let draw = JitterDraw::new(record.jitter).unwrap_or(JitterDraw::MIDDLE);
            self.budget = self.budget.clone().after_failure(at, draw).0;
        }
        if record.verdict == PlanVerdict::Restart {
            self.version = record.graph_version.saturating_add(1);
            for (task, attempt) in &record.cancel {
                let attempt = attempt_of(*attempt);
                let worker = self.record(TaskIndex::new(*task)).and_then(|record| worker_of(&record.attempts, attempt));
                let is_gone = worker.is_some_and(|worker| self.workers.get(worker as usize).is_some_and(|worker| worker.is_lost));
                if !is_gone {
                    self.stopping.insert((*task, attempt), worker);
                }
            }
            for (task, attempt) in &record.restart {
                self.schedule(TaskIndex::new(*task), attempt_of(*attempt));
            }
            for released in &record.release {
                self.give_back(partition_of(*released), attempt_of(released.2));
            }
            self.global = None;
        }
        self.plans.push((at, record));
        self.events.push(RecoveryEventKind::Plan, EventSubject { plan: Some(number), ..EventSubject::default() });
    }

    fn schedule(&mut self, task: TaskIndex, attempt: AttemptId) {
        let Some(record) = self.record_mut(task) else { return };
        record.state = TaskState::Scheduled;
        record.attempts = vec![AttemptRecord { attempt, worker: None }];
        record.last_attempt = Some(attempt);
        record.has_replayed_differently = false;
    }

    fn give_back(&mut self, partition: PartitionRef, attempt: AttemptId) {
        let Some(slot) = self.copy_slot(partition) else { return };
        if let Some(copy) = slot.take_if(|copy| copy.attempt <= attempt)
            && let Place::Node(node, _) = copy.place
        {
            self.orders.push((node, partition, copy.attempt));
        }
    }

    /// How far a plan is.
    fn stage(&self, plan: &PlanRecord, at: Duration, now: Duration, nodes: &NodesNow) -> PlanStage {
        if plan.verdict != PlanVerdict::Restart {
            return PlanStage::Final;
        }
        let waits = |(task, attempt): &(u32, (u32, u32))| {
            let record = self.record(TaskIndex::new(*task));
            record.is_some_and(|record| {
                let is_mine = record.attempts.iter().any(|known| known.attempt == attempt_of(*attempt));
                is_mine && record.state == TaskState::Scheduled
            })
        };
        if !plan.restart.iter().any(waits) {
            return PlanStage::Done;
        }
        let is_stopping = plan.cancel.iter().any(|(task, attempt)| self.stopping.contains_key(&(*task, attempt_of(*attempt))));
        let is_early = now < at.saturating_add(Duration::from_millis(plan.delay_ms));
        // Rows of partitions that a newer plan makes anew have no copy: they do not hold anybody up.
        let is_held_up = plan.reread.iter().any(|row| !self.answers(partition_of(row.read), nodes));
        if is_stopping || is_early || is_held_up { PlanStage::Stopping } else { PlanStage::Ready }
    }

    /// Tells of plans that have become ready since the last look.
    pub(in crate::coordinator) fn tell_ready(&mut self, now: Duration, nodes: &NodesNow) {
        let open = self.plans.iter().filter(|(_, plan)| plan.number > self.told_ready);
        let stages: Vec<(u64, PlanStage)> = open.map(|(at, plan)| (plan.number, self.stage(plan, *at, now, nodes))).collect();
        for (number, stage) in stages {
            match stage {
                PlanStage::Stopping | PlanStage::DryRun => return,
                PlanStage::Ready => {
                    self.events.push(RecoveryEventKind::Ready, EventSubject { plan: Some(number), ..EventSubject::default() });
                }
                PlanStage::Done | PlanStage::Final => {}
            }
            self.told_ready = number;
        }
    }

    /// A plan by its number.
    pub(in crate::coordinator) fn plan_view(&self, number: u64, now: Duration, nodes: &NodesNow) -> Option<PlanView> {
        let place = usize::try_from(number.checked_sub(1)?).ok()?;
        let (at, record) = self.plans.get(place)?;
        let stage = self.stage(record, *at, now, nodes);
        Some(PlanView { job: self.key.job.clone(), record: record.clone(), graph: self.graph.clone(), stage })
    }

    /// Every plan, oldest first.
    pub(in crate::coordinator) fn plan_views(&self, now: Duration, nodes: &NodesNow) -> Vec<PlanView> {
        (1..=self.plans.len() as u64).filter_map(|number| self.plan_view(number, now, nodes)).collect()
    }

    /// Number of plans so far.
    pub(in crate::coordinator) fn n_plans(&self) -> u64 {
        self.plans.len() as u64
    }
}

fn worker_of(attempts: &[AttemptRecord], attempt: AttemptId) -> Option<u32> {
    attempts.iter().find(|known| known.attempt == attempt).and_then(|known| known.worker)
}

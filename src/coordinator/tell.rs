//! What a coordinator is told: graphs, reports, failures; workers and nodes that are alive.

use super::calls::{
    AttemptNews, AttemptReport, DeclareGraph, Failures, GraphView, HeldState, InputTrouble, JobKey, NodeOrders, NodeReport, ReportOutcome,
    TaskAttempt, Told, WorkerView,
};
use super::entry::{Change, ENTRY_VERSION, Entry, GraphRecord, InputRecord, PolicyRecord, ToldRecord, as_ms, pair};
use super::error::{CoordinatorError, CoordinatorResult};
use super::events::EventRing;
use super::job::{Announced, JobState, NotHeard};
use super::{Coordinator, JobSlot};
use crate::recovery::graph::JobGraph;
use crate::recovery::policy::Policy;
use crate::recovery::restart_budget::RestartStrategy;
use std::sync::Arc;
use store_api::{JobEpoch, NodeId, NodeLife, WorkerId};

impl From<NotHeard> for CoordinatorError {
    fn from(why: NotHeard) -> Self {
        match why {
            NotHeard::Unknown => Self::UnknownWorker,
            NotHeard::Former(current) => Self::FencedByLife(current),
        }
    }
}

/// Errors: `FencedByEpoch` when the job has a newer owner.
fn check_epoch(state: &JobState, epoch: Option<JobEpoch>) -> CoordinatorResult<()> {
    match epoch {
        Some(epoch) if epoch < state.epoch() => Err(CoordinatorError::FencedByEpoch(state.epoch())),
        Some(_) | None => Ok(()),
    }
}

impl Coordinator {
    /// Declares the graph of a job and how it recovers; durable when it returns. Idempotent. Another
    /// graph may take its place until a task was started. Errors: `Graph`, `Budget`, `GraphConflict`,
    /// `FencedByEpoch`, `Journal`.
    pub async fn declare(&self, job: JobKey, call: DeclareGraph) -> CoordinatorResult<GraphView> {
        JobGraph::parse(call.spec.clone())?;
        RestartStrategy::parse(&call.restart)?;
        let suspect_grace = call.suspect_grace.unwrap_or(self.config.heartbeat_timeout);
        let policy = Policy { strategy: call.strategy, suspect_grace, determinism: call.determinism };
        let (graph, policy) = (GraphRecord::of(&call.spec), PolicyRecord::of(&policy, call.restart));
        let epoch = call.epoch;
        self.run_to_end(|this| async move {
            let slot = this.slot_for(job, &graph, &policy, epoch).await?;
            let gate = slot.gate.lock().await;
            let (is_known, is_refused) = {
                let state = slot.state.lock();
                check_epoch(&state, Some(epoch))?;
                (state.is_declared(&graph, &policy, epoch), !state.may_become(&graph))
            };
            if is_refused {
                return Err(CoordinatorError::GraphConflict);
            }
            if !is_known {
                this.commit(&slot, Change::Declared { graph, policy, job_epoch: epoch.get() }).await?;
                this.take_in_holdings(&slot);
            }
            this.plan_if_wanted(&slot).await?;
            drop(gate);
            let view = slot.state.lock().view();
            Ok(view)
        })
        .await
    }

    /// The slot of a job; a new one begins with this declaration.
    async fn slot_for(&self, job: JobKey, graph: &GraphRecord, policy: &PolicyRecord, epoch: JobEpoch) -> CoordinatorResult<Arc<JobSlot>> {
        let _creation = self.creation.lock().await;
        let known = self.jobs.read().get(&job.job).cloned();
        match known {
            Some(slot) if slot.key == job => return Ok(slot),
            Some(former) => self.forget_slot(&former).await?,
            None => {}
        }
        let change = Change::Declared { graph: graph.clone(), policy: policy.clone(), job_epoch: epoch.get() };
        let entry = Entry { version: ENTRY_VERSION, at_ms: as_ms(self.now()), change };
        let events = EventRing::new(job.clone(), self.epoch, self.config.event_capacity);
        let damaged = |_| CoordinatorError::BadRequest("the graph cannot be read back".to_owned());
        let written = match self.journal.append(&job, 0, &entry).await {
            Ok(()) => entry,
            // An earlier call was cut between writing and answering.
            Err(error) => self.journal.read(&job, 0).await?.ok_or(error)?,
        };
        let slot = JobSlot::new(job.clone(), JobState::begin(job.clone(), self.epoch, &written, events).map_err(damaged)?);
        self.take_in_holdings(&slot);
        self.jobs.write().insert(job.job, slot.clone());
        Ok(slot)
    }

    /// Tells a job that is new here what nodes hold of it.
    fn take_in_holdings(&self, slot: &JobSlot) {
        let held = self.nodes.lock().held_of(&slot.key);
        let mut state = slot.state.lock();
        for (place, key, held) in held {
            state.announce(&key, &held, &place);
        }
    }

    /// Reports about attempts, durable when it returns. Each is judged for itself; repeating it is
    /// harmless. Errors: `UnknownGraph`, `FencedByEpoch`, `TooLarge`, `Journal` (repeat it).
    pub async fn report(
        &self,
        job: &JobKey,
        epoch: Option<JobEpoch>,
        coordinator_epoch: Option<u64>,
        reports: Vec<AttemptReport>,
    ) -> CoordinatorResult<Told> {
        let slot = self.slot(job)?;
        check_epoch(&slot.state.lock(), epoch)?;
        if reports.len() > self.config.max_reports {
            return Err(CoordinatorError::TooLarge(self.config.max_reports as u64));
        }
        if coordinator_epoch.is_some_and(|believed| believed < self.epoch) {
            return Ok(Told { outcomes: vec![ReportOutcome::OldCoordinator; reports.len()], plan: None });
        }
        let told = {
            let state = slot.state.lock();
            reports.iter().map(|report| told_of(&state, report)).collect()
        };
        self.tell(slot, told).await
    }

    /// Failures that are not those of one attempt; a plan follows if something has to restart.
    /// Errors: `UnknownGraph`, `FencedByEpoch`, `TooLarge`, `Journal` (repeat it).
    pub async fn fail(&self, job: &JobKey, epoch: Option<JobEpoch>, failures: Failures) -> CoordinatorResult<Told> {
        let slot = self.slot(job)?;
        let n = failures.partitions.len().saturating_add(failures.tasks.len()).saturating_add(failures.workers.len());
        if n > self.config.max_reports {
            return Err(CoordinatorError::TooLarge(self.config.max_reports as u64));
        }
        let told = {
            let mut state = slot.state.lock();
            check_epoch(&state, epoch)?;
            for worker in &failures.workers {
                state.lose_worker(worker, None);
            }
            failures_of(&state, &failures)
        };
        self.tell(slot, told).await
    }

    /// Journals and takes in what changes something, and plans.
    async fn tell(&self, slot: Arc<JobSlot>, told: Vec<Option<ToldRecord>>) -> CoordinatorResult<Told> {
        self.run_to_end(|this| async move {
            let gate = slot.gate.lock().await;
            this.settle(&slot).await?;
            let n_before = slot.state.lock().n_plans();
            let mut outcomes: Vec<Option<ReportOutcome>> = {
                let state = slot.state.lock();
                told.iter().map(|told| told.as_ref().map_or(Some(ReportOutcome::Unknown), |told| state.preview(told))).collect()
            };
            let changing: Vec<ToldRecord> =
                told.into_iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_none()).filter_map(|(told, _)| told).collect();
            if !changing.is_empty() {
                let mut found = this.commit(&slot, Change::Told(changing)).await?.into_iter();
                for outcome in outcomes.iter_mut().filter(|outcome| outcome.is_none()) {
                    *outcome = found.next();
                }
            }
            this.plan_if_wanted(&slot).await?;
            drop(gate);
            let nodes = this.nodes_now();
            let mut state = slot.state.lock();
            state.tell_ready(this.now(), &nodes);
            state.tell_standing();
            let n_after = state.n_plans();
            let outcomes = outcomes.into_iter().map(|outcome| outcome.unwrap_or(ReportOutcome::Unknown)).collect();
            Ok(Told { outcomes, plan: (n_after > n_before).then_some(n_after) })
        })
        .await
    }

    /// Registers a worker. Idempotent; another life takes the place of the former one. Errors:
    /// `UnknownGraph`, `FencedByLife`.
    pub async fn register_worker(&self, job: &JobKey, worker: &WorkerId, life: NodeLife) -> CoordinatorResult<()> {
        let slot = self.slot(job)?;
        slot.state.lock().register_worker(worker, life, self.now())?;
        self.plan_in_turn(slot).await
    }

    /// A worker is alive and runs these attempts; answers those that it shall stop. Not journaled.
    /// Errors: `UnknownGraph`, `UnknownWorker` (register again), `FencedByLife`.
    pub fn worker_heartbeat(
        &self,
        job: &JobKey,
        worker: &WorkerId,
        life: NodeLife,
        running: Vec<TaskAttempt>,
    ) -> CoordinatorResult<Vec<TaskAttempt>> {
        let slot = self.slot(job)?;
        let stop = slot.state.lock().hear_worker(worker, life, running, self.now())?;
        Ok(stop)
    }

    /// A worker ends in good order: what ran there is planned for at once. Idempotent; a former life
    /// changes nothing. Errors: `UnknownGraph`, `Journal`.
    pub async fn deregister_worker(&self, job: &JobKey, worker: &WorkerId, life: NodeLife) -> CoordinatorResult<()> {
        let slot = self.slot(job)?;
        slot.state.lock().lose_worker(worker, Some(life));
        self.plan_in_turn(slot).await
    }

    /// Plans if something is wrong, and tells of what has become ready.
    pub(super) async fn plan_in_turn(&self, slot: Arc<JobSlot>) -> CoordinatorResult<()> {
        self.run_to_end(|this| async move {
            let gate = slot.gate.lock().await;
            let planned = this.plan_if_wanted(&slot).await;
            drop(gate);
            let nodes = this.nodes_now();
            let mut state = slot.state.lock();
            state.tell_ready(this.now(), &nodes);
            state.tell_standing();
            planned
        })
        .await
    }

    /// The workers of a job. Errors: `UnknownGraph`.
    pub fn workers(&self, job: &JobKey) -> CoordinatorResult<Vec<WorkerView>> {
        let slot = self.slot(job)?;
        let views = slot.state.lock().worker_views(self.now(), self.config.suspect_after());
        Ok(views)
    }

    /// A node is alive, and says what it holds. Not journaled. Losses are planned for before this
    /// returns. Errors: `FencedByLife`, `TooLarge`.
    pub async fn node_report(&self, report: NodeReport) -> CoordinatorResult<NodeOrders> {
        if report.held.len() > self.config.max_held {
            return Err(CoordinatorError::TooLarge(self.config.max_held as u64));
        }
        let (place, now) = (report.place.clone(), self.now());
        let heard = self.nodes.lock().hear(report, now).map_err(CoordinatorError::FencedByLife)?;
        let mut release = Vec::new();
        let mut changed: std::collections::BTreeMap<JobKey, Arc<JobSlot>> = std::collections::BTreeMap::new();
        for (key, held) in &heard.changes {
            let Ok(slot) = self.slot(&key.job) else { continue };
            let announced = slot.state.lock().announce(key, held, &place);
            if announced == Announced::Stale && held.state != HeldState::Absent {
                release.push((key.clone(), *held));
            }
            changed.entry(key.job.clone()).or_insert(slot);
        }
        if heard.has_come {
            self.look_at_node(&place.node, &mut changed);
        }
        for slot in changed.into_values() {
            if let Err(error) = self.plan_in_turn(slot).await {
                tracing::warn!(%error, "planning is put off");
            }
        }
        release.extend(self.nodes.lock().take_orders(&place.node));
        Ok(NodeOrders { begin_anew: heard.begin_anew, release })
    }

    /// Jobs with bytes on a node whose standing has changed want a plan.
    pub(super) fn look_at_node(&self, node: &NodeId, changed: &mut std::collections::BTreeMap<JobKey, Arc<JobSlot>>) {
        for slot in self.slots() {
            let mut state = slot.state.lock();
            if state.has_copies_on(node) {
                state.request_plan();
                changed.insert(slot.key.clone(), slot.clone());
            }
        }
    }
}

fn input_of(state: &JobState, input: &InputTrouble) -> Option<InputRecord> {
    let dataset = state.dataset(&input.dataset)?;
    let producer = u32::try_from(input.partition.get()).ok()?;
    Some(InputRecord { dataset, producer, attempt: pair(input.attempt), trouble: input.trouble })
}

/// A report in the words of the journal; `None` when it names what the job does not have.
fn told_of(state: &JobState, report: &AttemptReport) -> Option<ToldRecord> {
    let (task, attempt) = (state.task(&report.task)?.number(), pair(report.attempt));
    Some(match &report.news {
        AttemptNews::Running { worker } => {
            let life = worker.as_ref().and_then(|worker| state.worker_life(worker)).map(NodeLife::get);
            ToldRecord::Running { task, attempt, worker: worker.as_ref().map(ToString::to_string), life }
        }
        AttemptNews::Finished { is_committed } => ToldRecord::Finished { task, attempt, is_committed: *is_committed },
        AttemptNews::Failed { is_unrecoverable, input } => {
            let input = input.as_ref().and_then(|input| input_of(state, input));
            ToldRecord::Failed { task, attempt, is_unrecoverable: *is_unrecoverable, input }
        }
        AttemptNews::Cancelled => ToldRecord::Cancelled { task, attempt },
    })
}

/// Failures in the words of the journal.
fn failures_of(state: &JobState, failures: &Failures) -> Vec<Option<ToldRecord>> {
    let mut told: Vec<Option<ToldRecord>> =
        failures.partitions.iter().map(|input| input_of(state, input).map(ToldRecord::Trouble)).collect();
    for task in &failures.tasks {
        let Some((task, attempts)) = state.attempts_of(task) else {
            told.push(None);
            continue;
        };
        let failed = |attempt| ToldRecord::Failed { task: task.number(), attempt: pair(attempt), is_unrecoverable: false, input: None };
        told.extend(attempts.into_iter().map(failed).map(Some));
    }
    told.extend(failures.restart_all.then_some(Some(ToldRecord::RestartAll { version: failures.graph_version })));
    told
}

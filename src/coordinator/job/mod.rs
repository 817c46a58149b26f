//! One job: a pure state that changes only by entries of the journal, and by what is said again
//! anyway (workers, what nodes hold).
//!
//! | module | what it holds |
//! |---|---|
//! | `reports` | which reports count, and what they change |
//! | `holdings` | what nodes say they hold |
//! | `gather` | the state as a snapshot for the planner |
//! | `planning` | proposing a plan, taking it into force, how far it is |
//! | `workers` | who computes |

mod gather;
mod holdings;
mod planning;
mod reports;
mod workers;

pub(super) use holdings::Announced;
pub(super) use workers::NotHeard;

use super::calls::{EventSubject, GraphView, JobKey, JobStanding, RecoveryEventKind, TaskAddress, TaskAttempt, TaskStanding, TaskView};
use super::entry::{Change, Entry, GraphRecord, PlanRecord, PlanVerdict, PolicyRecord, parse_graph};
use super::events::EventRing;
use super::nodes::NodesNow;
use crate::recovery::graph::{JobGraph, PartitionRef, TaskIndex};
use crate::recovery::policy::Policy;
use crate::recovery::restart_budget::{RestartBudget, RestartStrategy};
use crate::recovery::snapshot::{GlobalFailure, PartitionStatus, TaskRecord, TaskState};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use store_api::{AttemptId, DatasetId, JobEpoch, NodeId, NodeLife, WorkerId};
use workers::WorkerRecord;

/// Where the bytes of a partition are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// Nobody has said yet.
    Unknown,
    /// Any node of the object store.
    Shared,
    /// On a node.
    Node(NodeId, NodeLife),
}

/// A partition that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) attempt: AttemptId,
    pub(super) is_sealed: bool,
    pub(super) bytes: u64,
    pub(super) status: PartitionStatus,
    pub(super) place: Place,
}

/// The state of one job.
pub(super) struct JobState {
    key: JobKey,
    job_epoch: JobEpoch,
    graph_record: GraphRecord,
    policy_record: PolicyRecord,
    graph: Arc<JobGraph>,
    datasets: HashMap<DatasetId, u32>,
    policy: Policy,
    coordinator_epoch: u64,
    version: u64,
    tasks: Vec<TaskRecord>,
    /// Attempts that no longer count and whose end is awaited, with their worker.
    stopping: BTreeMap<(u32, AttemptId), Option<u32>>,
    partitions: Vec<Vec<Option<Copy>>>,
    plans: Vec<(Duration, Arc<PlanRecord>)>,
    budget: RestartBudget,
    global: Option<GlobalFailure>,
    workers: Vec<WorkerRecord>,
    current_workers: HashMap<WorkerId, u32>,
    /// Attempts that a node shall give back.
    orders: Vec<(NodeId, PartitionRef, AttemptId)>,
    needs_plan: bool,
    plan_again_at: Option<Duration>,
    /// The newest plan that was told to be ready, and the standing that was told last.
    told_ready: u64,
    told_standing: Option<JobStanding>,
    events: Arc<EventRing>,
    /// Number of the next entry.
    next_entry: u64,
}

/// An entry that cannot be taken in: it names what the graph does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Damaged;

impl JobState {
    /// A job from its first entry, which declares its graph.
    pub(super) fn begin(key: JobKey, coordinator_epoch: u64, entry: &Entry, events: Arc<EventRing>) -> Result<Self, Damaged> {
        let Change::Declared { graph: graph_record, policy: policy_record, job_epoch } = &entry.change else { return Err(Damaged) };
        let graph = Arc::new(parse_graph(graph_record).ok_or(Damaged)?);
        let strategy = RestartStrategy::parse(&policy_record.restart).map_err(|_| Damaged)?;
        let mut state = Self {
            key,
            job_epoch: JobEpoch::new(*job_epoch),
            graph_record: graph_record.clone(),
            policy_record: policy_record.clone(),
            graph: graph.clone(),
            datasets: HashMap::new(),
            policy: policy_record.policy(),
            coordinator_epoch,
            version: 0,
            tasks: Vec::new(),
            stopping: BTreeMap::new(),
            partitions: Vec::new(),
            plans: Vec::new(),
            budget: RestartBudget::new(strategy),
            global: None,
            workers: Vec::new(),
            current_workers: HashMap::new(),
            orders: Vec::new(),
            needs_plan: false,
            plan_again_at: None,
            told_ready: 0,
            told_standing: None,
            events,
            next_entry: 1,
        };
        state.lay_out(graph);
        Ok(state)
    }

    fn lay_out(&mut self, graph: Arc<JobGraph>) {
        self.tasks = (0..graph.n_tasks()).map(|_| TaskRecord::created()).collect();
        self.partitions = graph.datasets().iter().map(|dataset| vec![None; graph.parallelism(dataset.producer) as usize]).collect();
        self.datasets = (0..).zip(graph.datasets()).map(|(place, dataset)| (dataset.id.clone(), place)).collect();
        self.graph = graph;
    }

    /// Takes an entry in. The only way in which what is journaled changes. Answers one outcome for
    /// each report of the entry.
    pub(super) fn apply(&mut self, entry: &Entry, nodes: &NodesNow) -> Result<Vec<super::calls::ReportOutcome>, Damaged> {
        let at = Duration::from_millis(entry.at_ms);
        self.next_entry = self.next_entry.saturating_add(1);
        match &entry.change {
            Change::Declared { graph, policy, job_epoch } => {
                self.declare_again(graph, policy, JobEpoch::new(*job_epoch))?;
                Ok(Vec::new())
            }
            Change::Told(reports) => Ok(reports.iter().map(|report| self.take_report(report, at, nodes)).collect()),
            Change::Planned(plan) => {
                self.take_plan(Arc::new(*plan.clone()), at);
                Ok(Vec::new())
            }
        }
    }

    fn declare_again(&mut self, graph: &GraphRecord, policy: &PolicyRecord, job_epoch: JobEpoch) -> Result<(), Damaged> {
        let strategy = RestartStrategy::parse(&policy.restart).map_err(|_| Damaged)?;
        if *graph != self.graph_record {
            let parsed = parse_graph(graph).ok_or(Damaged)?;
            self.graph_record = graph.clone();
            self.lay_out(Arc::new(parsed));
        }
        if strategy != self.budget.strategy() {
            self.budget = RestartBudget::new(strategy);
        }
        (self.policy, self.policy_record) = (policy.policy(), policy.clone());
        self.job_epoch = self.job_epoch.max(job_epoch);
        Ok(())
    }

    /// Whether a declaration says nothing new.
    pub(super) fn is_declared(&self, graph: &GraphRecord, policy: &PolicyRecord, epoch: JobEpoch) -> bool {
        self.graph_record == *graph && self.policy_record == *policy && self.job_epoch >= epoch
    }

    /// Whether another graph may take the place of this one.
    pub(super) fn may_become(&self, graph: &GraphRecord) -> bool {
        self.graph_record == *graph || self.tasks.iter().all(|task| task.state == TaskState::Created)
    }

    pub(super) const fn key(&self) -> &JobKey {
        &self.key
    }

    pub(super) const fn epoch(&self) -> JobEpoch {
        self.job_epoch
    }

    pub(super) const fn next_entry(&self) -> u64 {
        self.next_entry
    }

    pub(super) const fn events(&self) -> &Arc<EventRing> {
        &self.events
    }

    pub(super) const fn graph(&self) -> &Arc<JobGraph> {
        &self.graph
    }

    /// The place of a dataset in the graph.
    pub(super) fn dataset(&self, dataset: &DatasetId) -> Option<u32> {
        self.datasets.get(dataset).copied()
    }

    pub(super) fn task(&self, address: &TaskAddress) -> Option<TaskIndex> {
        self.graph.task_named(&address.vertex, address.index)
    }

    fn record(&self, task: TaskIndex) -> Option<&TaskRecord> {
        self.tasks.get(task.number() as usize)
    }

    fn record_mut(&mut self, task: TaskIndex) -> Option<&mut TaskRecord> {
        self.tasks.get_mut(task.number() as usize)
    }

    fn copy(&self, partition: PartitionRef) -> Option<&Copy> {
        self.partitions.get(partition.dataset.number() as usize)?.get(partition.producer as usize)?.as_ref()
    }

    fn copy_slot(&mut self, partition: PartitionRef) -> Option<&mut Option<Copy>> {
        self.partitions.get_mut(partition.dataset.number() as usize)?.get_mut(partition.producer as usize)
    }

    fn address(&self, task: TaskIndex) -> TaskAddress {
        let vertex = self.graph.vertex_of(task).map(|vertex| vertex.name.clone()).unwrap_or_default();
        TaskAddress { vertex, index: self.graph.index_in_vertex(task) }
    }

    fn named(&self, task: TaskIndex, attempt: AttemptId) -> TaskAttempt {
        TaskAttempt { task: self.address(task), attempt }
    }

    /// A coordinator has started: what was expected before it is expected from now on, and workers
    /// have one timeout to be heard.
    pub(super) fn begin_anew(&mut self, now: Duration) {
        let mut is_suspect = false;
        for copy in self.partitions.iter_mut().flatten().flatten() {
            if let PartitionStatus::Suspect { since } = &mut copy.status {
                (*since, is_suspect) = (now, true);
            }
        }
        self.plan_again_at = None;
        if is_suspect {
            self.suspect_at(now);
        }
        self.hear_all_workers(now);
        // A failure may have been journaled, and the plan for it not.
        self.needs_plan = true;
    }

    fn suspect_at(&mut self, since: Duration) {
        let due = since.saturating_add(self.policy.suspect_grace);
        self.plan_again_at = Some(self.plan_again_at.map_or(due, |at| at.min(due)));
    }

    /// Attempts that nodes shall give back, once.
    pub(super) fn take_orders(&mut self) -> Vec<(NodeId, PartitionRef, AttemptId)> {
        std::mem::take(&mut self.orders)
    }

    /// Where the job stands.
    pub(super) fn standing(&self) -> JobStanding {
        let last = self.plans.last().map(|(_, plan)| &plan.verdict);
        let is_settled = |state: TaskState| state == TaskState::Finished;
        match last {
            Some(PlanVerdict::Unrecoverable | PlanVerdict::NoBudget) => return JobStanding::GivenUp,
            Some(PlanVerdict::Inconsistent(_)) if self.has_failed() => return JobStanding::Inconsistent,
            Some(PlanVerdict::NotIndividuallyRecoverable | PlanVerdict::RestorePointRejected) if self.has_failed() => {
                return JobStanding::Unrecoverable;
            }
            Some(_) | None => {}
        }
        if self.tasks.iter().all(|task| is_settled(task.state)) {
            return JobStanding::Finished;
        }
        if !self.workers.is_empty() && self.current_workers.is_empty() {
            return JobStanding::Blocked;
        }
        let is_restarting = !self.stopping.is_empty() || self.tasks.iter().any(|task| task.state == TaskState::Scheduled);
        if is_restarting { JobStanding::Restarting } else { JobStanding::Running }
    }

    fn has_failed(&self) -> bool {
        self.tasks.iter().any(|task| task.state.must_run_again()) || self.needs_plan
    }

    /// Whether a restart would revive what was given up.
    pub(super) fn is_given_up(&self) -> bool {
        self.standing() == JobStanding::GivenUp
    }

    pub(super) fn view(&self) -> GraphView {
        let mut n_by_state = [0_u32; 5];
        for task in &self.tasks {
            let place = standing_of(task.state) as usize;
            if let Some(count) = n_by_state.get_mut(place) {
                *count = count.saturating_add(1);
            }
        }
        GraphView {
            key: self.key.clone(),
            coordinator_epoch: self.coordinator_epoch,
            graph_version: self.version,
            standing: self.standing(),
            n_by_state,
            n_workers: u32::try_from(self.current_workers.len()).unwrap_or(u32::MAX),
            n_plans: self.plans.len() as u64,
        }
    }

    /// Every task and the version of the graph.
    pub(super) fn task_views(&self) -> (u64, Vec<TaskView>) {
        let mut stopping: BTreeMap<u32, Vec<AttemptId>> = BTreeMap::new();
        for (task, attempt) in self.stopping.keys() {
            stopping.entry(*task).or_default().push(*attempt);
        }
        let view = |(task, record): (TaskIndex, &TaskRecord)| TaskView {
            task: self.address(task),
            standing: standing_of(record.state),
            attempts: record.attempts.iter().map(|one| one.attempt).collect(),
            stopping: stopping.get(&task.number()).cloned().unwrap_or_default(),
            worker: record.attempts.first().and_then(|one| self.worker_id(one.worker?)),
        };
        (self.version, (0..).map(TaskIndex::new).zip(&self.tasks).map(view).collect())
    }

    /// Tells of a standing that somebody has to know of, once.
    pub(super) fn tell_standing(&mut self) {
        let standing = self.standing();
        if self.told_standing == Some(standing) {
            return;
        }
        self.told_standing = Some(standing);
        let kind = match standing {
            JobStanding::Blocked => RecoveryEventKind::Blocked,
            JobStanding::Finished => RecoveryEventKind::Finished,
            JobStanding::Running
            | JobStanding::Restarting
            | JobStanding::Inconsistent
            | JobStanding::Unrecoverable
            | JobStanding::GivenUp => return,
        };
        self.events.push(kind, EventSubject::default());
    }
}

const fn standing_of(state: TaskState) -> TaskStanding {
    match state {
        TaskState::Created => TaskStanding::Created,
        TaskState::Scheduled => TaskStanding::Scheduled,
        TaskState::Running => TaskStanding::Running,
        TaskState::Finished => TaskStanding::Finished,
        TaskState::Failed | TaskState::Cancelling | TaskState::Cancelled => TaskStanding::Failed,
    }
}

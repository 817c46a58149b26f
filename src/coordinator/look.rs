//! What a coordinator is asked: jobs, tasks, plans, dry runs, nodes, locations.

use super::calls::{Failures, GraphView, JobKey, Located, NodeView, PlanStage, PlanView, RecoveryCursor, RecoveryEvent, TaskView};
use super::error::{CoordinatorError, CoordinatorResult};
use super::job::JobState;
use super::{Coordinator, Trouble};
use crate::recovery::graph::{DatasetIndex, PartitionRef};
use crate::recovery::policy::{Policy, Strategy};
use crate::recovery::report::{self, FailureCause, Report, Speaker};
use crate::recovery::snapshot::GlobalFailure;
use futures::stream::BoxStream;
use store_api::{DatasetId, NodeId, PartitionId};

/// What would go wrong, and under which strategy it would be planned for.
#[derive(Debug, Clone, Default)]
pub struct Rehearsal {
    /// The failures.
    pub failures: Failures,
    /// Nodes that would be gone.
    pub nodes: Vec<NodeId>,
    /// The strategy; the job's when left out.
    pub strategy: Option<Strategy>,
}

impl Coordinator {
    /// A job. Errors: `UnknownGraph`.
    pub fn graph(&self, job: &JobKey) -> CoordinatorResult<GraphView> {
        let slot = self.slot(job)?;
        let view = slot.state.lock().view();
        Ok(view)
    }

    /// The version of the graph and every task. Errors: `UnknownGraph`.
    pub fn tasks(&self, job: &JobKey) -> CoordinatorResult<(u64, Vec<TaskView>)> {
        let slot = self.slot(job)?;
        let views = slot.state.lock().task_views();
        Ok(views)
    }

    /// Every plan, oldest first. Errors: `UnknownGraph`.
    pub fn plans(&self, job: &JobKey) -> CoordinatorResult<Vec<PlanView>> {
        let (slot, nodes) = (self.slot(job)?, self.nodes_now());
        let views = slot.state.lock().plan_views(self.now(), &nodes);
        Ok(views)
    }

    /// One plan. Errors: `UnknownGraph`, `UnknownPlan`.
    pub fn plan(&self, job: &JobKey, number: u64) -> CoordinatorResult<PlanView> {
        let (slot, nodes) = (self.slot(job)?, self.nodes_now());
        let view = slot.state.lock().plan_view(number, self.now(), &nodes);
        view.ok_or(CoordinatorError::UnknownPlan)
    }

    /// Plans for what is wrong now, and answers the newest plan; `None` when there never was one.
    /// Errors: `UnknownGraph`, `Journal`.
    pub async fn plan_now(&self, job: &JobKey) -> CoordinatorResult<Option<PlanView>> {
        let slot = self.slot(job)?;
        slot.state.lock().request_plan();
        self.plan_in_turn(slot.clone()).await?;
        let nodes = self.nodes_now();
        let state = slot.state.lock();
        Ok(state.plan_view(state.n_plans(), self.now(), &nodes))
    }

    /// The plan that would follow if this failed now; changes nothing. Errors: `UnknownGraph`,
    /// `BadRequest` for what the job does not have.
    pub async fn rehearse(&self, job: &JobKey, rehearsal: Rehearsal) -> CoordinatorResult<PlanView> {
        let (slot, nodes, now) = (self.slot(job)?, self.nodes_now(), self.now());
        let planned = self.tasks.run_blocking(move || {
            let state = slot.state.lock();
            let reports = reports_of(&state, &rehearsal, &nodes, state.view().coordinator_epoch)?;
            let policy = rehearsal.strategy.map(|strategy| Policy { strategy, ..*state.policy() });
            let record = state.rehearse(&reports, policy, now, &nodes);
            let record = record.map_err(|error| CoordinatorError::BadRequest(error.to_string()))?;
            let (job, graph) = (state.key().job.clone(), state.graph().clone());
            Ok(PlanView { job, record: record.into(), graph, stage: PlanStage::DryRun })
        });
        planned.await.ok_or(CoordinatorError::Closing)?
    }

    /// What happens in the job's recovery after a cursor; from now on without one. The first event
    /// is `Reset` when the cursor is of another coordinator or too old. Errors: `UnknownGraph`.
    pub fn events(&self, job: &JobKey, after: Option<RecoveryCursor>) -> CoordinatorResult<BoxStream<'static, RecoveryEvent>> {
        let slot = self.slot(job)?;
        let events = slot.state.lock().events().follow(after);
        Ok(events)
    }

    /// Every node that was heard of since the start.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeView> {
        self.nodes.lock().views()
    }

    /// Where partitions of a dataset are; all that are held somewhere without `wanted`.
    #[must_use]
    pub fn locate(&self, job: &JobKey, dataset: &DatasetId, wanted: Option<&[PartitionId]>) -> Vec<Located> {
        self.nodes.lock().locate(job, dataset, wanted)
    }
}

fn reports_of(
    state: &JobState,
    rehearsal: &Rehearsal,
    nodes: &super::nodes::NodesNow,
    coordinator_epoch: u64,
) -> CoordinatorResult<Vec<Report>> {
    let unknown = |what: &str, name: &dyn std::fmt::Display| CoordinatorError::BadRequest(format!("{what} {name} is not there"));
    let mut reports = Vec::new();
    for task in &rehearsal.failures.tasks {
        let (index, attempts) = state.attempts_of(task).ok_or_else(|| unknown("task", &format!("{}#{}", task.vertex, task.index)))?;
        let failed = |attempt| Report::AttemptFailed { of: Speaker { task: index, attempt, coordinator_epoch }, cause: FailureCause::Own };
        reports.extend(attempts.into_iter().map(failed));
    }
    for input in &rehearsal.failures.partitions {
        let dataset = state.dataset(&input.dataset).ok_or_else(|| unknown("dataset", &input.dataset))?;
        let producer = u32::try_from(input.partition.get()).map_err(|_| unknown("partition", &input.partition))?;
        let trouble = match input.trouble {
            Trouble::Transient => report::Trouble::Transient,
            Trouble::Unreachable => report::Trouble::Unreachable,
            Trouble::Gone => report::Trouble::Gone,
            Trouble::Corrupt => report::Trouble::Corrupt,
        };
        let partition = PartitionRef { dataset: DatasetIndex::new(dataset), producer };
        reports.push(Report::PartitionTrouble { partition, held: input.attempt, trouble });
    }
    for worker in &rehearsal.failures.workers {
        let (place, life) = state.worker_named(worker).ok_or_else(|| unknown("worker", worker))?;
        reports.push(Report::WorkerLost { worker: place, life });
    }
    for node in &rehearsal.nodes {
        let place = nodes.place_of(node).ok_or_else(|| unknown("node", node))?;
        let life = nodes.records().get(place as usize).map(|record| record.life).ok_or_else(|| unknown("node", node))?;
        reports.push(Report::NodeLost { node: place, life });
    }
    reports.extend(rehearsal.failures.restart_all.then_some(Report::Global(GlobalFailure::RestartAll)));
    Ok(reports)
}

//! Graphs, reports, plans, members: documents as calls of the coordinator, and its values as documents.

use super::{attempt as parse_attempt, named};
use crate::coordinator as domain;
use crate::http::error::{Answer, Refusal};
use crate::recovery::graph::{DatasetIndex, GroupIndex, JobGraph, TaskIndex};
use crate::recovery::graph_spec as spec;
use crate::recovery::policy::{Determinism, Fallback, Strategy};
use forebay_protocol::{datasets, members, partitions, plans, recovery as wire};
use store_api::{AttemptId, ConsumerId, DatasetId, JobEpoch, JobId, NodeId, PartitionId, WorkerId};

fn attempt(text: &str) -> Answer<AttemptId> {
    parse_attempt(Some(text))?.ok_or_else(|| Refusal::bad_request("attempt is missing"))
}

fn attempt_text(pair: (u32, u32)) -> String {
    format!("{}.{}", pair.0, pair.1)
}

fn properties(kind: datasets::Kind, retention: Option<datasets::RetentionName>) -> Answer<spec::DatasetProperties> {
    use datasets::{Kind, RetentionName as R};
    match (kind, retention) {
        (Kind::Pipelined, None | Some(R::UntilAcknowledged)) => Ok(spec::DatasetProperties::pipelined(spec::Keeps::Unacknowledged)),
        (Kind::Pipelined, Some(R::BestEffort)) => Ok(spec::DatasetProperties::pipelined(spec::Keeps::BestEffort)),
        (Kind::Pipelined, Some(R::SinceCheckpoint)) => Ok(spec::DatasetProperties::pipelined(spec::Keeps::SinceCheckpoint)),
        (Kind::Blocking, None) => Ok(spec::DatasetProperties::blocking()),
        (Kind::Durable, None) => Ok(spec::DatasetProperties::durable()),
        (Kind::Blocking | Kind::Durable, Some(_)) => Err(Refusal::bad_request("only pipelined datasets have a retention")),
    }
}

const fn strategy(name: wire::StrategyName, fallback: wire::FallbackName) -> Strategy {
    match name {
        wire::StrategyName::Region => Strategy::Region,
        wire::StrategyName::Full => Strategy::Full,
        wire::StrategyName::Individual => Strategy::Individual(match fallback {
            wire::FallbackName::Escalate => Fallback::Escalate,
            wire::FallbackName::Refuse => Fallback::Refuse,
            wire::FallbackName::Lossy => Fallback::Lossy,
        }),
    }
}

const fn strategy_name(strategy: Strategy) -> wire::StrategyName {
    match strategy {
        Strategy::Region => wire::StrategyName::Region,
        Strategy::Full => wire::StrategyName::Full,
        Strategy::Individual(_) => wire::StrategyName::Individual,
    }
}

fn edge(edge: wire::EdgeDocument) -> Answer<spec::DatasetSpec> {
    let reader = |reader: wire::ReaderDocument| {
        let pattern = match reader.pattern {
            wire::PatternName::AllToAll => spec::Pattern::AllToAll,
            wire::PatternName::Pointwise => spec::Pattern::Pointwise,
        };
        Ok(spec::GroupSpec { id: named("group", ConsumerId::new(&reader.group))?, vertex: reader.vertex, pattern })
    };
    Ok(spec::DatasetSpec {
        id: named("dataset", DatasetId::new(&edge.dataset))?,
        producer: edge.producer,
        properties: properties(edge.kind, edge.retention)?,
        groups: edge.readers.into_iter().map(reader).collect::<Answer<_>>()?,
    })
}

pub(in crate::http) fn graph_request(request: wire::GraphRequest, epoch: JobEpoch) -> Answer<domain::DeclareGraph> {
    let vertex = |vertex: wire::VertexDocument| {
        // In the alphabet of ids, so that a task can stand in a command line and a URL.
        named("vertex", ConsumerId::new(&vertex.name))?;
        Ok(spec::VertexSpec { name: vertex.name, parallelism: vertex.parallelism, is_deterministic: vertex.deterministic })
    };
    let gang = |gang: wire::GangDocument| spec::GangSpec {
        vertices: gang.vertices,
        scope: match gang.scope {
            wire::GangScopeName::SameIndex => spec::GangScope::SameIndex,
            wire::GangScopeName::AllTasks => spec::GangScope::AllTasks,
        },
        restarts_together: gang.restarts_together,
    };
    let policy = request.policy;
    Ok(domain::DeclareGraph {
        spec: spec::GraphSpec {
            vertices: request.vertices.into_iter().map(vertex).collect::<Answer<_>>()?,
            datasets: request.datasets.into_iter().map(edge).collect::<Answer<_>>()?,
            gangs: request.gangs.into_iter().map(gang).collect(),
        },
        strategy: strategy(policy.strategy, policy.individual_fallback),
        suspect_grace: policy.suspect_grace_ms.map(std::time::Duration::from_millis),
        determinism: match policy.determinism {
            wire::DeterminismName::Verified => Determinism::Verified,
            wire::DeterminismName::Believed => Determinism::Believed,
            wire::DeterminismName::Ignored => Determinism::Ignored,
        },
        restart: policy.restart,
        epoch,
    })
}

pub(in crate::http) fn graph(view: &domain::GraphView) -> wire::GraphDocument {
    use domain::JobStanding as S;
    let [n_created, n_scheduled, n_running, n_finished, n_failed] = view.n_by_state;
    wire::GraphDocument {
        job: view.key.job.to_string(),
        incarnation: view.key.incarnation.to_string(),
        coordinator_epoch: view.coordinator_epoch,
        graph_version: view.graph_version,
        state: match view.standing {
            S::Running => wire::JobStateName::Running,
            S::Restarting => wire::JobStateName::Restarting,
            S::Blocked => wire::JobStateName::Blocked,
            S::Inconsistent => wire::JobStateName::Inconsistent,
            S::Unrecoverable => wire::JobStateName::Unrecoverable,
            S::GivenUp => wire::JobStateName::GivenUp,
            S::Finished => wire::JobStateName::Finished,
        },
        n_tasks: view.n_by_state.iter().fold(0_u32, |sum, n| sum.saturating_add(*n)),
        n_created,
        n_scheduled,
        n_running,
        n_finished,
        n_failed,
        n_workers: view.n_workers,
        n_plans: view.n_plans,
    }
}

fn trouble(trouble: &wire::PartitionTrouble) -> Answer<domain::InputTrouble> {
    Ok(domain::InputTrouble {
        dataset: named("dataset", DatasetId::new(&trouble.dataset))?,
        partition: PartitionId::new(trouble.partition),
        attempt: attempt(&trouble.attempt)?,
        trouble: match trouble.trouble {
            wire::TroubleName::Transient => domain::Trouble::Transient,
            wire::TroubleName::Unreachable => domain::Trouble::Unreachable,
            wire::TroubleName::Gone => domain::Trouble::Gone,
            wire::TroubleName::Corrupt => domain::Trouble::Corrupt,
        },
    })
}

pub(in crate::http) fn report(report: &wire::TaskReport) -> Answer<domain::AttemptReport> {
    let worker = report.worker.as_deref().map(|worker| named("worker", WorkerId::new(worker))).transpose()?;
    let news = match report.state {
        wire::ReportedState::Running => domain::AttemptNews::Running { worker },
        wire::ReportedState::Finished => domain::AttemptNews::Finished { is_committed: report.committed },
        wire::ReportedState::Failed => {
            let input = report.input.as_ref().map(trouble).transpose()?;
            domain::AttemptNews::Failed { is_unrecoverable: report.unrecoverable, input }
        }
        wire::ReportedState::Cancelled => domain::AttemptNews::Cancelled,
    };
    let task = domain::TaskAddress { vertex: report.vertex.clone(), index: report.index };
    Ok(domain::AttemptReport { task, attempt: attempt(&report.attempt)?, news })
}

pub(in crate::http) fn told(coordinator_epoch: u64, told: &domain::Told) -> wire::ReportResults {
    use domain::ReportOutcome as O;
    let result = |outcome: &O| match outcome {
        O::Accepted => wire::ReportResult::Accepted,
        O::Duplicate => wire::ReportResult::Duplicate,
        O::AttemptDropped => wire::ReportResult::AttemptDropped,
        O::CountsAsCancelled => wire::ReportResult::CountsAsCancelled,
        O::ReadOn => wire::ReportResult::ReadOn,
        O::NotCurrent => wire::ReportResult::NotCurrent,
        O::LookUpAgain => wire::ReportResult::LookUpAgain,
        O::OldCoordinator => wire::ReportResult::OldCoordinator,
        O::Unknown => wire::ReportResult::Unknown,
    };
    wire::ReportResults { coordinator_epoch, results: told.outcomes.iter().map(result).collect(), plan: told.plan }
}

pub(in crate::http) fn failures(request: &wire::FailureRequest) -> Answer<domain::Failures> {
    let task = |task: &wire::TaskName| domain::TaskAddress { vertex: task.vertex.clone(), index: task.index };
    Ok(domain::Failures {
        partitions: request.partitions.iter().map(trouble).collect::<Answer<_>>()?,
        workers: request.workers.iter().map(|worker| named("worker", WorkerId::new(worker))).collect::<Answer<_>>()?,
        tasks: request.tasks.iter().map(task).collect(),
        restart_all: request.restart_all,
        graph_version: request.graph_version,
    })
}

pub(in crate::http) fn rehearsal(request: &wire::PlanRequest) -> Answer<domain::Rehearsal> {
    let failures = failures(&wire::FailureRequest {
        partitions: request.partitions.clone(),
        workers: request.workers.clone(),
        tasks: request.tasks.clone(),
        restart_all: request.restart_all,
        graph_version: None,
    })?;
    let nodes = request.nodes.iter().map(|node| named("node", NodeId::new(node))).collect::<Answer<_>>()?;
    let strategy = request.strategy.map(|name| strategy(name, wire::FallbackName::Escalate));
    Ok(domain::Rehearsal { failures, nodes, strategy })
}

fn task_name(graph: &JobGraph, task: u32) -> wire::TaskName {
    let task = TaskIndex::new(task);
    let vertex = graph.vertex_of(task).map(|vertex| vertex.name.clone()).unwrap_or_default();
    wire::TaskName { vertex, index: graph.index_in_vertex(task) }
}

fn task_attempt(graph: &JobGraph, (task, attempt): &(u32, (u32, u32))) -> wire::TaskAttempt {
    let wire::TaskName { vertex, index } = task_name(graph, *task);
    wire::TaskAttempt { vertex, index, attempt: attempt_text(*attempt) }
}

fn dataset_name(graph: &JobGraph, dataset: u32) -> String {
    graph.dataset(DatasetIndex::new(dataset)).map(|dataset| dataset.id.to_string()).unwrap_or_default()
}

fn partition_attempt(graph: &JobGraph, triple: &domain::PartitionTriple) -> plans::PartitionAttemptDocument {
    let (dataset, partition) = (dataset_name(graph, triple.0), u64::from(triple.1));
    plans::PartitionAttemptDocument { dataset, partition, attempt: attempt_text(triple.2) }
}

fn row(graph: &JobGraph, row: &domain::RowRecord) -> plans::ReadRowDocument {
    let group = graph.group(GroupIndex::new(row.group));
    let vertex = group.and_then(|group| graph.vertices().get(group.consumer.number() as usize));
    let read = partition_attempt(graph, &row.read);
    plans::ReadRowDocument {
        dataset: read.dataset,
        partition: read.partition,
        attempt: read.attempt,
        group: group.map(|group| group.id.to_string()).unwrap_or_default(),
        vertex: vertex.map(|vertex| vertex.name.clone()).unwrap_or_default(),
        consumers: row.consumers.iter().map(|(start, end)| vec![*start, *end]).collect(),
        from: row.from,
        others: row.others.iter().map(|(index, from)| plans::ReaderOffset { index: *index, from: *from }).collect(),
    }
}

fn because(graph: &JobGraph, because: &domain::Because) -> plans::BecauseDocument {
    use domain::Rule as R;
    let wire::TaskName { vertex, index } = task_name(graph, because.task);
    plans::BecauseDocument {
        vertex,
        index,
        rule: match because.rule {
            R::Failed => plans::RuleName::Failed,
            R::WorkerLost => plans::RuleName::WorkerLost,
            R::Stopped => plans::RuleName::Stopped,
            R::ReplayedDifferently => plans::RuleName::ReplayedDifferently,
            R::Need => plans::RuleName::Need,
            R::Taint => plans::RuleName::Taint,
            R::Gang => plans::RuleName::Gang,
            R::Everything => plans::RuleName::Everything,
        },
        via: because.via.map(|task| task_name(graph, task)),
        dataset: because.over.map(|(dataset, _)| dataset_name(graph, dataset)),
        partition: because.over.map(|(_, partition)| u64::from(partition)),
    }
}

const fn cost(cost: domain::CostRecord) -> plans::CostDocument {
    plans::CostDocument { n_tasks: cost.n_tasks, reread_bytes: cost.reread_bytes, recomputed_bytes: cost.recomputed_bytes }
}

const fn stage(stage: domain::PlanStage) -> plans::PlanProgress {
    match stage {
        domain::PlanStage::DryRun => plans::PlanProgress::DryRun,
        domain::PlanStage::Stopping => plans::PlanProgress::Stopping,
        domain::PlanStage::Ready => plans::PlanProgress::Ready,
        domain::PlanStage::Done => plans::PlanProgress::Done,
        domain::PlanStage::Final => plans::PlanProgress::Final,
    }
}

const fn verdict(verdict: &domain::PlanVerdict) -> plans::VerdictName {
    use domain::PlanVerdict as V;
    match verdict {
        V::Nothing => plans::VerdictName::Nothing,
        V::Restart => plans::VerdictName::Restart,
        V::Inconsistent(_) => plans::VerdictName::Inconsistent,
        V::Unrecoverable => plans::VerdictName::Unrecoverable,
        V::NoBudget => plans::VerdictName::NoBudget,
        V::NotIndividuallyRecoverable => plans::VerdictName::NotIndividuallyRecoverable,
        V::RestorePointRejected => plans::VerdictName::RestorePointRejected,
    }
}

pub(in crate::http) fn plan(view: &domain::PlanView) -> plans::PlanDocument {
    let (graph, record) = (&*view.graph, &*view.record);
    let wave = |wave: &domain::WaveRecord| plans::WaveDocument {
        tasks: wave.tasks.iter().map(|task| task_name(graph, *task)).collect(),
        has_inner_seal: wave.has_inner_seal,
    };
    let committed = match &record.verdict {
        domain::PlanVerdict::Inconsistent(tasks) => tasks.iter().map(|task| task_name(graph, *task)).collect(),
        _ => Vec::new(),
    };
    plans::PlanDocument {
        job: view.job.to_string(),
        plan: record.number,
        coordinator_epoch: record.coordinator_epoch,
        job_epoch: record.job_epoch,
        graph_version: record.graph_version,
        progress: stage(view.stage),
        strategy: strategy_name(record.strategy()),
        verdict: verdict(&record.verdict),
        restart: record.restart.iter().map(|one| task_attempt(graph, one)).collect(),
        cancel: record.cancel.iter().map(|one| task_attempt(graph, one)).collect(),
        release: record.release.iter().map(|one| partition_attempt(graph, one)).collect(),
        keep: record.keep.iter().map(|one| partition_attempt(graph, one)).collect(),
        reread: record.reread.iter().map(|one| row(graph, one)).collect(),
        resume: record.resume.iter().map(|one| row(graph, one)).collect(),
        waves: record.waves.iter().map(wave).collect(),
        because: record.because.iter().map(|one| because(graph, one)).collect(),
        obstacles: record.obstacles.iter().map(|one| because(graph, one)).collect(),
        committed,
        lossy: record.is_lossy,
        delay_ms: record.delay_ms,
        cost: cost(record.cost),
        cost_of_full: cost(record.cost_of_full),
    }
}

pub(in crate::http) fn plan_summary(view: &domain::PlanView) -> plans::PlanSummary {
    plans::PlanSummary {
        plan: view.record.number,
        progress: stage(view.stage),
        verdict: verdict(&view.record.verdict),
        strategy: strategy_name(view.record.strategy()),
        cost: cost(view.record.cost),
        cost_of_full: cost(view.record.cost_of_full),
    }
}

pub(in crate::http) fn task(view: domain::TaskView) -> wire::TaskDocument {
    use domain::TaskStanding as S;
    wire::TaskDocument {
        vertex: view.task.vertex,
        index: view.task.index,
        state: match view.standing {
            S::Created => wire::TaskStateName::Created,
            S::Scheduled => wire::TaskStateName::Scheduled,
            S::Running => wire::TaskStateName::Running,
            S::Finished => wire::TaskStateName::Finished,
            S::Failed => wire::TaskStateName::Failed,
        },
        attempts: view.attempts.iter().map(ToString::to_string).collect(),
        stopping: view.stopping.iter().map(ToString::to_string).collect(),
        worker: view.worker.map(|worker| worker.to_string()),
    }
}

fn named_attempt(attempt: domain::TaskAttempt) -> wire::TaskAttempt {
    wire::TaskAttempt { vertex: attempt.task.vertex, index: attempt.task.index, attempt: attempt.attempt.to_string() }
}

pub(in crate::http) fn event(event: &domain::RecoveryEvent) -> wire::RecoveryEventDocument {
    use domain::RecoveryEventKind as K;
    let subject = event.subject.clone();
    wire::RecoveryEventDocument {
        kind: match event.kind {
            K::Plan => wire::RecoveryEventKind::Plan,
            K::Ready => wire::RecoveryEventKind::Ready,
            K::AttemptFailed => wire::RecoveryEventKind::AttemptFailed,
            K::WorkerLost => wire::RecoveryEventKind::WorkerLost,
            K::PartitionLost => wire::RecoveryEventKind::PartitionLost,
            K::Blocked => wire::RecoveryEventKind::Blocked,
            K::Finished => wire::RecoveryEventKind::Finished,
            K::Reset => wire::RecoveryEventKind::Reset,
        },
        job: event.job.to_string(),
        plan: subject.plan,
        attempt: subject.attempt.map(named_attempt),
        worker: subject.worker.map(|worker| worker.to_string()),
        dataset: subject.partition.as_ref().map(|(dataset, _)| dataset.to_string()),
        partition: subject.partition.map(|(_, partition)| partition),
    }
}

const fn standing(standing: domain::MemberStanding) -> members::Standing {
    match standing {
        domain::MemberStanding::Up => members::Standing::Up,
        domain::MemberStanding::Suspect => members::Standing::Suspect,
        domain::MemberStanding::Lost => members::Standing::Lost,
    }
}

pub(in crate::http) fn worker(view: &domain::WorkerView) -> members::WorkerEntry {
    members::WorkerEntry { worker: view.worker.to_string(), life: view.life.to_string(), standing: standing(view.standing) }
}

pub(in crate::http) fn running(attempts: &[wire::TaskAttempt]) -> Answer<Vec<domain::TaskAttempt>> {
    let one = |one: &wire::TaskAttempt| {
        let task = domain::TaskAddress { vertex: one.vertex.clone(), index: one.index };
        Ok(domain::TaskAttempt { task, attempt: attempt(&one.attempt)? })
    };
    attempts.iter().map(one).collect()
}

pub(in crate::http) fn cancel(coordinator_epoch: u64, attempts: Vec<domain::TaskAttempt>) -> members::WorkerHeartbeatAnswer {
    members::WorkerHeartbeatAnswer { coordinator_epoch, cancel: attempts.into_iter().map(named_attempt).collect() }
}

fn place(location: &partitions::Location) -> Answer<domain::NodePlace> {
    Ok(domain::NodePlace {
        node: named("node", NodeId::new(&location.node))?,
        life: named("life", location.life.parse())?,
        url: location.url.clone(),
    })
}

fn location(place: &domain::NodePlace) -> partitions::Location {
    partitions::Location { node: place.node.to_string(), life: place.life.to_string(), url: place.url.clone() }
}

fn held_key(job: &str, incarnation: &str, dataset: &str, partition: u64) -> Answer<domain::HeldKey> {
    let (job, incarnation) = (named("job", JobId::new(job))?, named("incarnation", incarnation.parse())?);
    let dataset = named("dataset", DatasetId::new(dataset))?;
    Ok(domain::HeldKey { job: domain::JobKey { job, incarnation }, dataset, partition: PartitionId::new(partition) })
}

pub(in crate::http) fn node_report(report: &members::NodeHeartbeat) -> Answer<domain::NodeReport> {
    let held = |one: &members::HeldPartition| {
        let state = match one.state {
            members::HeldState::Open => domain::HeldState::Open,
            members::HeldState::Sealed => domain::HeldState::Sealed,
            members::HeldState::Lost => domain::HeldState::Lost,
            members::HeldState::Corrupt => domain::HeldState::Corrupt,
            members::HeldState::Absent => domain::HeldState::Absent,
        };
        let key = held_key(&one.job, &one.incarnation, &one.dataset, one.partition)?;
        Ok((key, domain::Held { attempt: attempt(&one.attempt)?, state, bytes: one.bytes, is_shared: one.shared }))
    };
    let place = place(&report.location)?;
    Ok(domain::NodeReport { place, sequence: report.sequence, held: report.held.iter().map(held).collect::<Answer<_>>()? })
}

const fn held_state(state: domain::HeldState) -> members::HeldState {
    match state {
        domain::HeldState::Open => members::HeldState::Open,
        domain::HeldState::Sealed => members::HeldState::Sealed,
        domain::HeldState::Lost => members::HeldState::Lost,
        domain::HeldState::Corrupt => members::HeldState::Corrupt,
        domain::HeldState::Absent => members::HeldState::Absent,
    }
}

pub(in crate::http) fn node_orders(coordinator_epoch: u64, orders: &domain::NodeOrders) -> members::NodeHeartbeatAnswer {
    let release = |(key, held): &(domain::HeldKey, domain::Held)| members::HeldPartition {
        job: key.job.job.to_string(),
        incarnation: key.job.incarnation.to_string(),
        dataset: key.dataset.to_string(),
        partition: key.partition.get(),
        attempt: held.attempt.to_string(),
        state: held_state(held.state),
        bytes: held.bytes,
        shared: held.is_shared,
    };
    members::NodeHeartbeatAnswer { coordinator_epoch, begin_anew: orders.begin_anew, release: orders.release.iter().map(release).collect() }
}

pub(in crate::http) fn node(view: &domain::NodeView) -> members::NodeEntry {
    members::NodeEntry { location: location(&view.place), standing: standing(view.standing), n_held: view.n_held }
}

pub(in crate::http) fn located(located: &domain::Located) -> wire::LocatedPartition {
    wire::LocatedPartition {
        partition: located.partition.get(),
        attempt: located.held.attempt.to_string(),
        sealed: located.held.state == domain::HeldState::Sealed,
        location: location(&located.place),
    }
}

pub(in crate::http) fn seal_proposal(proposal: &members::SealProposal) -> Answer<domain::SealProposal> {
    Ok(domain::SealProposal {
        key: held_key(&proposal.job, &proposal.incarnation, &proposal.dataset, proposal.partition)?,
        attempt: attempt(&proposal.attempt)?,
        node: named("node", NodeId::new(&proposal.node))?,
        life: named("life", proposal.life.parse())?,
    })
}

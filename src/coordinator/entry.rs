//! What stands in the journal: plain records with a version, and their way to and from the planner's
//! values. Tasks, datasets and groups are named by their place in the graph that was declared.

use crate::recovery::closure::Reason;
use crate::recovery::cost::Cost;
use crate::recovery::graph::{DatasetIndex, JobGraph, PartitionRef, TaskIndex};
use crate::recovery::graph_spec::{DatasetProperties, DatasetSpec, GangScope, GangSpec, GraphSpec, GroupSpec, Keeps, Pattern, VertexSpec};
use crate::recovery::plan::{GiveUpReason, Plan, ReadRow, Verdict};
use crate::recovery::policy::{Determinism, Fallback, Policy, Strategy};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use store_api::{AttemptId, ConsumerId, DatasetId, Operation, StoreError, StoreErrorKind};

/// Version of the form below. A newer program reads every older version.
pub(super) const ENTRY_VERSION: u32 = 1;

/// One change of a job's state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) version: u32,
    /// Time of the coordinator, which does not run while it is down.
    pub(super) at_ms: u64,
    pub(super) change: Change,
}

/// What changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Change {
    /// A graph was declared, or its policy changed, or the job has another owner.
    Declared { graph: GraphRecord, policy: PolicyRecord, job_epoch: u64 },
    /// Reports came in. Which of them count follows from the state.
    Told(Vec<ToldRecord>),
    /// A plan was made and is in force.
    Planned(Box<PlanRecord>),
}

/// An attempt as two numbers.
pub(super) type AttemptPair = (u32, u32);

pub(super) const fn pair(attempt: AttemptId) -> AttemptPair {
    (attempt.generation, attempt.attempt)
}

pub(super) const fn attempt_of(pair: AttemptPair) -> AttemptId {
    AttemptId::new(pair.0, pair.1)
}

/// What is wrong with a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trouble {
    /// Broken off in the middle, or busy.
    Transient,
    /// Could not be reached.
    Unreachable,
    /// Not there any more.
    Gone,
    /// Its digest is wrong.
    Corrupt,
}

/// An input of which somebody speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InputRecord {
    pub(super) dataset: u32,
    pub(super) producer: u32,
    pub(super) attempt: AttemptPair,
    pub(super) trouble: Trouble,
}

/// One report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToldRecord {
    Running { task: u32, attempt: AttemptPair, worker: Option<String>, life: Option<u64> },
    Finished { task: u32, attempt: AttemptPair, is_committed: bool },
    Failed { task: u32, attempt: AttemptPair, is_unrecoverable: bool, input: Option<InputRecord> },
    Cancelled { task: u32, attempt: AttemptPair },
    Trouble(InputRecord),
    RestartAll { version: Option<u64> },
}

/// A graph as it was declared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GraphRecord {
    vertices: Vec<(String, u32, bool)>,
    datasets: Vec<DatasetRecord>,
    gangs: Vec<(Vec<String>, bool, bool)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct DatasetRecord {
    dataset: String,
    producer: String,
    kind: KindRecord,
    readers: Vec<(String, String, bool)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum KindRecord {
    UntilAcknowledged,
    BestEffort,
    SinceCheckpoint,
    Blocking,
    Durable,
}

impl KindRecord {
    fn of(properties: DatasetProperties) -> Self {
        if properties == DatasetProperties::durable() {
            return Self::Durable;
        }
        match properties.keeps {
            Keeps::Unacknowledged => Self::UntilAcknowledged,
            Keeps::BestEffort => Self::BestEffort,
            Keeps::SinceCheckpoint => Self::SinceCheckpoint,
            Keeps::Everything => Self::Blocking,
        }
    }

    const fn properties(self) -> DatasetProperties {
        match self {
            Self::UntilAcknowledged => DatasetProperties::pipelined(Keeps::Unacknowledged),
            Self::BestEffort => DatasetProperties::pipelined(Keeps::BestEffort),
            Self::SinceCheckpoint => DatasetProperties::pipelined(Keeps::SinceCheckpoint),
            Self::Blocking => DatasetProperties::blocking(),
            Self::Durable => DatasetProperties::durable(),
        }
    }
}

impl GraphRecord {
    pub(super) fn of(spec: &GraphSpec) -> Self {
        let reader = |group: &GroupSpec| (group.id.to_string(), group.vertex.clone(), group.pattern == Pattern::AllToAll);
        let dataset = |spec: &DatasetSpec| DatasetRecord {
            dataset: spec.id.to_string(),
            producer: spec.producer.clone(),
            kind: KindRecord::of(spec.properties),
            readers: spec.groups.iter().map(reader).collect(),
        };
        let gang = |gang: &GangSpec| (gang.vertices.clone(), gang.scope == GangScope::AllTasks, gang.restarts_together);
        Self {
            vertices: spec.vertices.iter().map(|vertex| (vertex.name.clone(), vertex.parallelism, vertex.is_deterministic)).collect(),
            datasets: spec.datasets.iter().map(dataset).collect(),
            gangs: spec.gangs.iter().map(gang).collect(),
        }
    }

    /// The declaration. `None` when an id in it is none.
    pub(super) fn spec(&self) -> Option<GraphSpec> {
        let vertex = |(name, parallelism, is_deterministic): &(String, u32, bool)| VertexSpec {
            name: name.clone(),
            parallelism: *parallelism,
            is_deterministic: *is_deterministic,
        };
        let reader = |(group, vertex, is_all): &(String, String, bool)| {
            let pattern = if *is_all { Pattern::AllToAll } else { Pattern::Pointwise };
            Some(GroupSpec { id: ConsumerId::new(group).ok()?, vertex: vertex.clone(), pattern })
        };
        let dataset = |record: &DatasetRecord| {
            Some(DatasetSpec {
                id: DatasetId::new(&record.dataset).ok()?,
                producer: record.producer.clone(),
                properties: record.kind.properties(),
                groups: record.readers.iter().map(reader).collect::<Option<_>>()?,
            })
        };
        let gang = |(vertices, is_all, restarts_together): &(Vec<String>, bool, bool)| GangSpec {
            vertices: vertices.clone(),
            scope: if *is_all { GangScope::AllTasks } else { GangScope::SameIndex },
            restarts_together: *restarts_together,
        };
        Some(GraphSpec {
            vertices: self.vertices.iter().map(vertex).collect(),
            datasets: self.datasets.iter().map(dataset).collect::<Option<_>>()?,
            gangs: self.gangs.iter().map(gang).collect(),
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum StrategyRecord {
    Full,
    Region,
    IndividualOrRegion,
    IndividualOrNothing,
    IndividualLossy,
}

impl StrategyRecord {
    pub(super) const fn of(strategy: Strategy) -> Self {
        match strategy {
            Strategy::Full => Self::Full,
            Strategy::Region => Self::Region,
            Strategy::Individual(Fallback::Escalate) => Self::IndividualOrRegion,
            Strategy::Individual(Fallback::Refuse) => Self::IndividualOrNothing,
            Strategy::Individual(Fallback::Lossy) => Self::IndividualLossy,
        }
    }

    pub(super) const fn strategy(self) -> Strategy {
        match self {
            Self::Full => Strategy::Full,
            Self::Region => Strategy::Region,
            Self::IndividualOrRegion => Strategy::Individual(Fallback::Escalate),
            Self::IndividualOrNothing => Strategy::Individual(Fallback::Refuse),
            Self::IndividualLossy => Strategy::Individual(Fallback::Lossy),
        }
    }
}

/// How a job recovers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PolicyRecord {
    strategy: StrategyRecord,
    suspect_grace_ms: u64,
    /// 0 verified, 1 believed, 2 ignored.
    determinism: u8,
    pub(super) restart: BTreeMap<String, String>,
}

impl PolicyRecord {
    pub(super) fn of(policy: &Policy, restart: BTreeMap<String, String>) -> Self {
        let determinism = match policy.determinism {
            Determinism::Verified => 0,
            Determinism::Believed => 1,
            Determinism::Ignored => 2,
        };
        Self { strategy: StrategyRecord::of(policy.strategy), suspect_grace_ms: as_ms(policy.suspect_grace), determinism, restart }
    }

    pub(super) const fn policy(&self) -> Policy {
        let determinism = match self.determinism {
            0 => Determinism::Verified,
            1 => Determinism::Believed,
            _ => Determinism::Ignored,
        };
        Policy { strategy: self.strategy.strategy(), suspect_grace: Duration::from_millis(self.suspect_grace_ms), determinism }
    }
}

pub(super) fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What came out of planning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlanVerdict {
    /// Nothing has to restart.
    Nothing,
    /// The actions bring the job back.
    Restart,
    /// These tasks, of which effects are published, would have to run again.
    Inconsistent(Vec<u32>),
    /// A restart cannot help.
    Unrecoverable,
    /// The restart budget is used up.
    NoBudget,
    /// The failed tasks alone do not suffice.
    NotIndividuallyRecoverable,
    /// The restore point cannot be used.
    RestorePointRejected,
}

impl PlanVerdict {
    fn of(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Nothing => Self::Nothing,
            Verdict::Restart => Self::Restart,
            Verdict::Inconsistent { tasks } => Self::Inconsistent(tasks.iter().map(|task| task.number()).collect()),
            Verdict::GiveUp(GiveUpReason::Unrecoverable) => Self::Unrecoverable,
            Verdict::GiveUp(GiveUpReason::NoBudget) => Self::NoBudget,
            Verdict::NotIndividuallyRecoverable => Self::NotIndividuallyRecoverable,
            Verdict::RestorePointRejected { .. } => Self::RestorePointRejected,
        }
    }
}

/// The rule that brought a task in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rule {
    /// Its last attempt failed.
    Failed,
    /// Its worker is gone.
    WorkerLost,
    /// An earlier plan stopped it.
    Stopped,
    /// Its re-run differs.
    ReplayedDifferently,
    /// A reader needs bytes that are gone.
    Need,
    /// It has seen what is written anew.
    Taint,
    /// It restarts together with another.
    Gang,
    /// Everything restarts.
    Everything,
}

/// Why a task is in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Because {
    /// The task.
    pub task: u32,
    /// The rule.
    pub rule: Rule,
    /// The task through which it came in.
    pub via: Option<u32>,
    /// The partition (dataset, producer) over which it came in.
    pub over: Option<(u32, u32)>,
}

impl Because {
    fn of(task: TaskIndex, reason: Reason) -> Self {
        let over = |partition: PartitionRef| Some((partition.dataset.number(), partition.producer));
        let (rule, via, over) = match reason {
            Reason::Failed => (Rule::Failed, None, None),
            Reason::WorkerLost => (Rule::WorkerLost, None, None),
            Reason::Stopped => (Rule::Stopped, None, None),
            Reason::ReplayedDifferently => (Rule::ReplayedDifferently, None, None),
            Reason::Need { partition, consumer, .. } => (Rule::Need, Some(consumer.number()), over(partition)),
            Reason::Taint { partition, producer, .. } => (Rule::Taint, Some(producer.number()), over(partition)),
            Reason::Gang { with } => (Rule::Gang, Some(with.number()), None),
            Reason::Everything => (Rule::Everything, None, None),
        };
        Self { task: task.number(), rule, via, over }
    }
}

/// A partition as one attempt wrote it: dataset, producer, attempt.
pub type PartitionTriple = (u32, u32, (u32, u32));

/// Who reads one partition, and from where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowRecord {
    /// The consumer group, by its place in the graph.
    pub group: u32,
    /// What is read.
    pub read: PartitionTriple,
    /// First byte read by those that are not in `others`.
    pub from: Option<u64>,
    /// The consumers.
    pub consumers: Vec<(u32, u32)>,
    /// Consumers that begin elsewhere.
    pub others: Vec<(u32, Option<u64>)>,
}

impl RowRecord {
    fn of(row: &ReadRow) -> Self {
        Self {
            group: row.group.number(),
            read: triple(row.read.partition, row.read.attempt),
            from: row.from.map(store_api::Offset::get),
            consumers: row.consumers.iter().map(|range| (range.start, range.end)).collect(),
            others: row.others.iter().map(|(index, from)| (*index, from.map(store_api::Offset::get))).collect(),
        }
    }
}

const fn triple(partition: PartitionRef, attempt: AttemptId) -> PartitionTriple {
    (partition.dataset.number(), partition.producer, pair(attempt))
}

pub(super) const fn partition_of(triple: PartitionTriple) -> PartitionRef {
    PartitionRef { dataset: DatasetIndex::new(triple.0), producer: triple.1 }
}

/// Tasks that start together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaveRecord {
    /// The tasks.
    pub tasks: Vec<u32>,
    /// Whether some of them wait for a seal by others of them.
    pub has_inner_seal: bool,
}

/// What a plan costs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostRecord {
    /// Tasks that run again.
    pub n_tasks: u32,
    /// Bytes read once more.
    pub reread_bytes: u64,
    /// Bytes written once more.
    pub recomputed_bytes: u64,
}

impl CostRecord {
    const fn of(cost: Cost) -> Self {
        Self { n_tasks: cost.n_tasks, reread_bytes: cost.reread_bytes, recomputed_bytes: cost.recomputed_bytes }
    }
}

/// A plan as it was made. Tasks, datasets and groups are places in the graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanRecord {
    /// Its number, from 1; 0 for a dry run.
    pub number: u64,
    /// The coordinator that made it.
    pub coordinator_epoch: u64,
    /// Epoch of the job's owner.
    pub job_epoch: u64,
    /// The version of the graph that it was made from.
    pub graph_version: u64,
    pub(super) strategy: StrategyRecord,
    /// What came out.
    pub verdict: PlanVerdict,
    /// Tasks that run again, and their new attempts.
    pub restart: Vec<(u32, (u32, u32))>,
    /// Attempts to stop.
    pub cancel: Vec<(u32, (u32, u32))>,
    /// Outputs that are given back.
    pub release: Vec<PartitionTriple>,
    /// Outputs that stay.
    pub keep: Vec<PartitionTriple>,
    /// What restarted consumers read again.
    pub reread: Vec<RowRecord>,
    /// What consumers that go on read of restarted producers.
    pub resume: Vec<RowRecord>,
    /// The order in which to start.
    pub waves: Vec<WaveRecord>,
    /// Why each task is in it.
    pub because: Vec<Because>,
    /// What stands against restarting the failed tasks alone.
    pub obstacles: Vec<Because>,
    /// Whether bytes may be missing or doubled.
    pub is_lossy: bool,
    /// Time until its tasks may start, in milliseconds.
    pub delay_ms: u64,
    /// The draw for the jitter of the delay, from −1 to 1.
    pub(super) jitter: f64,
    /// What it costs.
    pub cost: CostRecord,
    /// What restarting everything would cost.
    pub cost_of_full: CostRecord,
}

impl PlanRecord {
    pub(super) fn of(plan: &Plan, number: u64, coordinator_epoch: u64, jitter: f64) -> Self {
        let actions = &plan.actions;
        let attempts = |task: TaskIndex, attempt: AttemptId| (task.number(), pair(attempt));
        Self {
            number,
            coordinator_epoch,
            job_epoch: plan.job_epoch.get(),
            graph_version: plan.graph_version,
            strategy: StrategyRecord::of(plan.strategy),
            verdict: PlanVerdict::of(&plan.verdict),
            restart: actions.restart.iter().map(|one| attempts(one.task, one.attempt)).collect(),
            cancel: actions.cancel.iter().map(|one| attempts(one.task, one.attempt)).collect(),
            release: actions.release.iter().map(|one| triple(one.partition, one.attempt)).collect(),
            keep: actions.keep.iter().map(|keep| triple(keep.kept.partition, keep.kept.attempt)).collect(),
            reread: actions.reread.iter().map(RowRecord::of).collect(),
            resume: actions.resume.iter().map(RowRecord::of).collect(),
            waves: actions
                .waves
                .iter()
                .map(|wave| WaveRecord {
                    tasks: wave.tasks.iter().map(|task| task.number()).collect(),
                    has_inner_seal: wave.has_inner_seal,
                })
                .collect(),
            because: plan.because.iter().map(|(task, reason)| Because::of(*task, *reason)).collect(),
            obstacles: plan.obstacles.iter().map(|obstacle| Because::of(obstacle.task, obstacle.reason)).collect(),
            is_lossy: plan.is_lossy,
            delay_ms: as_ms(plan.delay),
            jitter,
            cost: CostRecord::of(plan.cost),
            cost_of_full: CostRecord::of(plan.cost_of_full),
        }
    }

    /// The strategy that was followed.
    #[must_use]
    pub const fn strategy(&self) -> Strategy {
        self.strategy.strategy()
    }
}

/// Reads an entry. Errors: `Format`.
pub(super) fn decode(key: &str, bytes: &[u8]) -> Result<Entry, StoreError> {
    let entry: Entry = serde_json::from_slice(bytes).map_err(|error| damaged(key).with_source(error))?;
    if entry.version > ENTRY_VERSION { Err(damaged(key)) } else { Ok(entry) }
}

/// The error for an entry that cannot be read.
pub(super) fn damaged(key: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Format { reason: "no journal entry of a known version".to_owned() }, Operation::Catalog, key)
}

/// Parses the graph of an entry. `None` when it is damaged.
pub(super) fn parse_graph(record: &GraphRecord) -> Option<JobGraph> {
    JobGraph::parse(record.spec()?).ok()
}

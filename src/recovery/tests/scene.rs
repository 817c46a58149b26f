//! Small jobs written in a few words.

use crate::recovery::graph::{JobGraph, PartitionRef, TaskIndex};
use crate::recovery::graph_spec::{
    DatasetProperties, DatasetSpec, DiesWith, GangSpec, GraphSpec, GroupSpec, Keeps, Pattern, Readable, VertexSpec,
};
use crate::recovery::plan::{Plan, Read, ReadRow};
use crate::recovery::policy::{Determinism, Policy, Strategy};
use crate::recovery::report::{Report, Speaker};
use crate::recovery::restart_budget::Allowance;
use crate::recovery::snapshot::{
    Confirmed, GroupProgress, Location, NodeRecord, NodeStanding, PartitionRecord, PartitionStatus, Progress, Sent, Snapshot,
    SnapshotDraft, TaskRecord, TaskState, WorkerRecord,
};
use crate::recovery::{fence, plan};
use std::sync::Arc;
use std::time::Duration;
use store_api::ids::{AttemptId, ConsumerId, DatasetId, JobEpoch, JobId, JobIncarnation, NodeId, NodeLife};
use store_api::offset::Offset;

pub(super) const LIFE: NodeLife = NodeLife::new(7);
pub(super) const NOW: Duration = Duration::from_secs(1_000);
pub(super) const AT_ONCE: Allowance = Allowance::After(Duration::ZERO);
pub(super) const N_NODES: u32 = 3;

/// A job in the making. Tasks run as attempt 0.0 on worker 0, partitions are open on node 0 and
/// untouched, until told otherwise. Worker k and node k stand for one host.
#[derive(Clone)]
pub(super) struct Scene {
    pub(super) draft: SnapshotDraft,
    pub(super) policy: Policy,
}

pub(super) fn kind(name: &str) -> DatasetProperties {
    match name {
        "until_acknowledged" => DatasetProperties::pipelined(Keeps::Unacknowledged),
        "best_effort" => DatasetProperties::pipelined(Keeps::BestEffort),
        "since_checkpoint" => DatasetProperties::pipelined(Keeps::SinceCheckpoint),
        "full_copy" => DatasetProperties { readable: Readable::WhileProduced, keeps: Keeps::Everything, dies_with: DiesWith::NodeLife },
        "blocking" => DatasetProperties::blocking(),
        "durable" => DatasetProperties::durable(),
        other => panic!("no kind {other}"),
    }
}

/// "A*2 B*3!" is two vertices, the second one deterministic. "A all blocking B" is an edge, with a
/// fifth word for the name of the dataset ("A-B" without one); edges of one name are groups of one
/// dataset.
pub(super) fn graph_spec(vertices: &str, edges: &[&str]) -> GraphSpec {
    let vertex = |text: &str| {
        let (name, number) = text.split_once('*').unwrap();
        let parallelism = number.trim_end_matches('!').parse().unwrap();
        VertexSpec { name: name.to_owned(), parallelism, is_deterministic: number.ends_with('!') }
    };
    let mut spec = GraphSpec { vertices: vertices.split(' ').map(vertex).collect(), ..GraphSpec::default() };
    for edge in edges {
        let words: Vec<&str> = edge.split(' ').collect();
        let id = words.get(4).map_or_else(|| format!("{}-{}", words[0], words[3]), |name| (*name).to_owned());
        let id = DatasetId::new(&id).unwrap();
        let pattern = if words[1] == "all" { Pattern::AllToAll } else { Pattern::Pointwise };
        let group = GroupSpec { id: ConsumerId::new(words[3]).unwrap(), vertex: words[3].to_owned(), pattern };
        match spec.datasets.iter_mut().find(|dataset| dataset.id == id) {
            Some(dataset) => dataset.groups.push(group),
            None => spec.datasets.push(DatasetSpec { id, producer: words[0].to_owned(), properties: kind(words[2]), groups: vec![group] }),
        }
    }
    spec
}

pub(super) fn attempt(generation: u32) -> AttemptId {
    AttemptId::new(generation, 0)
}

pub(super) fn offset(bytes: u64) -> Offset {
    Offset::new(bytes)
}

/// Floor, taken and sent, need, rewind; `None` for taken to the end.
pub(super) fn progress(floor: u64, taken: Option<u64>, need: u64, rewind: u64) -> Progress {
    Progress {
        floor: offset(floor),
        end: offset(taken.unwrap_or(1000).max(need)),
        confirmed: taken.map_or(Confirmed::End, |bytes| Confirmed::UpTo(offset(bytes))),
        sent: taken.map_or(Sent::End, |bytes| Sent::UpTo(offset(bytes))),
        need: offset(need),
        rewind: offset(rewind),
    }
}

pub(super) fn draft_of(graph: JobGraph) -> SnapshotDraft {
    let graph = Arc::new(graph);
    let open = |n_groups: usize| PartitionRecord {
        attempt: attempt(0),
        is_sealed: false,
        is_promoted: false,
        is_pinned: false,
        has_digests: true,
        status: PartitionStatus::Available,
        location: Location::Node { node: 0, life: LIFE },
        progress: vec![GroupProgress::of_all(Progress::UNTOUCHED); n_groups],
    };
    let node = |number: u32| NodeRecord {
        id: NodeId::new(&format!("n{number}")).unwrap(),
        life: LIFE,
        life_since: Duration::ZERO,
        standing: NodeStanding::Up,
    };
    SnapshotDraft {
        job: JobId::new("job").unwrap(),
        incarnation: JobIncarnation::new(1),
        job_epoch: JobEpoch::new(1),
        coordinator_epoch: 5,
        graph_version: 3,
        now: NOW,
        tasks: vec![TaskRecord::with_attempt(TaskState::Running, attempt(0), Some(0)); graph.n_tasks() as usize],
        workers: (0..N_NODES).map(|_| WorkerRecord { life: LIFE, is_lost: false }).collect(),
        nodes: (0..N_NODES).map(node).collect(),
        partitions: graph
            .datasets()
            .iter()
            .map(|dataset| vec![Some(open(dataset.groups.len())); graph.parallelism(dataset.producer) as usize])
            .collect(),
        global_failure: None,
        graph,
    }
}

impl Scene {
    pub(super) fn new(vertices: &str, edges: &[&str]) -> Self {
        Self::with_gangs(vertices, edges, Vec::new())
    }

    pub(super) fn with_gangs(vertices: &str, edges: &[&str], gangs: Vec<GangSpec>) -> Self {
        let spec = GraphSpec { gangs, ..graph_spec(vertices, edges) };
        Self { draft: draft_of(JobGraph::parse(spec).unwrap()), policy: Policy::default() }
    }

    pub(super) fn strategy(mut self, strategy: Strategy) -> Self {
        self.policy.strategy = strategy;
        self
    }

    pub(super) fn determinism(mut self, determinism: Determinism) -> Self {
        self.policy.determinism = determinism;
        self
    }

    pub(super) fn graph(&self) -> &JobGraph {
        &self.draft.graph
    }

    /// The task that a name such as "B1" means.
    pub(super) fn task(&self, name: &str) -> TaskIndex {
        let split = name.find(|c: char| c.is_ascii_digit()).unwrap();
        self.graph().task_named(&name[..split], name[split..].parse().unwrap()).unwrap_or_else(|| panic!("no task {name}"))
    }

    pub(super) fn name(&self, task: TaskIndex) -> String {
        self.graph().label(task).replace('#', "")
    }

    /// Puts tasks, given as "A0 A1", into a state.
    pub(super) fn are(mut self, state: TaskState, names: &str) -> Self {
        for name in names.split(' ') {
            let task = self.task(name).at();
            let record = &mut self.draft.tasks[task];
            record.state = state;
            match state {
                TaskState::Created => *record = TaskRecord::created(),
                TaskState::Failed | TaskState::Cancelled => record.attempts.clear(),
                _ => {}
            }
        }
        self
    }

    /// Puts a task on a host.
    pub(super) fn on(mut self, name: &str, worker: u32) -> Self {
        let task = self.task(name).at();
        self.draft.tasks[task].attempts.iter_mut().for_each(|attempt| attempt.worker = Some(worker));
        self
    }

    pub(super) fn tune(mut self, name: &str, change: impl Fn(&mut TaskRecord)) -> Self {
        let task = self.task(name).at();
        change(&mut self.draft.tasks[task]);
        self
    }

    /// The partition that a task writes in a dataset: "A0 A-B".
    pub(super) fn partition(&self, name: &str) -> PartitionRef {
        let (task, dataset) = name.split_once(' ').unwrap();
        let id = DatasetId::new(dataset).unwrap();
        let is_it = |partition: &PartitionRef| self.graph().dataset(partition.dataset).unwrap().id == id;
        self.graph().outputs_of(self.task(task)).find(is_it).unwrap_or_else(|| panic!("no partition {name}"))
    }

    pub(super) fn part(mut self, name: &str, change: impl Fn(&mut PartitionRecord)) -> Self {
        let partition = self.partition(name);
        change(self.draft.partitions[partition.dataset.at()][partition.producer as usize].as_mut().unwrap());
        self
    }

    /// Seals the partitions and has every reader of them at `taken`.
    pub(super) fn sealed(mut self, names: &[&str], taken: Option<u64>) -> Self {
        for name in names {
            self = self.part(name, |record| {
                record.is_sealed = true;
                record.progress.iter_mut().for_each(|group| {
                    *group = GroupProgress::of_all(Progress { end: offset(1000), ..progress(0, taken, 0, 0) });
                });
            });
        }
        self
    }

    /// Gives one reader of a partition a progress of its own, or all of them one.
    pub(super) fn reads(self, reader: &str, name: &str, one: Progress) -> Self {
        let partition = self.partition(name);
        let task = self.task(reader);
        let index = self.graph().index_in_vertex(task);
        let vertex = self.graph().vertex_of(task).unwrap().name.clone();
        let dataset = self.graph().dataset(partition.dataset).unwrap();
        let is_its = |group: &&_| self.graph().vertices()[self.graph().group(**group).unwrap().consumer.at()].name == vertex;
        let slot = self.graph().group(*dataset.groups.iter().find(is_its).unwrap()).unwrap().slot;
        self.part(name, |record| {
            let others = &mut record.progress[slot].others;
            others.retain(|(consumer, _)| *consumer != index);
            others.push((index, one));
            others.sort_by_key(|(consumer, _)| *consumer);
        })
    }

    pub(super) fn lose_host(mut self, host: u32) -> Self {
        self.draft.nodes[host as usize].standing = NodeStanding::Lost;
        self.draft.workers[host as usize].is_lost = true;
        self
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot::parse(self.draft.clone()).unwrap()
    }

    pub(super) fn plan(&self) -> Plan {
        plan(&self.snapshot(), &self.policy, AT_ONCE)
    }

    pub(super) fn plan_from(&self, snapshot: &Snapshot) -> Plan {
        plan(snapshot, &self.policy, AT_ONCE)
    }

    /// Judges reports and goes on from there.
    pub(super) fn after(&self, reports: &[Report]) -> Self {
        let fenced = fence(&self.snapshot(), reports);
        Self { draft: fenced.snapshot.into_draft(), policy: self.policy }
    }

    pub(super) fn speaker(&self, task: &str, attempt: AttemptId) -> Speaker {
        Speaker { task: self.task(task), attempt, coordinator_epoch: 5 }
    }

    /// Names of the tasks that a plan restarts, or would.
    pub(super) fn restarts(&self, plan: &Plan) -> String {
        plan.tasks().map(|task| self.name(task)).collect::<Vec<_>>().join(" ")
    }

    /// "B1 A0 A-B 100" for each read of the rows.
    pub(super) fn reads_of(&self, rows: &[ReadRow]) -> Vec<String> {
        let text = |read: Read| format!("{} {} {}", self.name(read.consumer), self.partition_name(read.read.partition), read.from);
        let mut all: Vec<String> = rows.iter().flat_map(|row| row.reads(self.graph())).map(text).collect();
        all.sort();
        all
    }

    pub(super) fn partition_name(&self, partition: PartitionRef) -> String {
        let dataset = self.graph().dataset(partition.dataset).unwrap();
        format!("{} {}", self.name(self.graph().producer_of(partition).unwrap()), dataset.id)
    }

    pub(super) fn partition_names(&self, partitions: impl IntoIterator<Item = PartitionRef>) -> Vec<String> {
        let mut names: Vec<String> = partitions.into_iter().map(|partition| self.partition_name(partition)).collect();
        names.sort();
        names
    }

    pub(super) fn waves(&self, plan: &Plan) -> Vec<String> {
        plan.actions.waves.iter().map(|wave| wave.tasks.iter().map(|task| self.name(*task)).collect::<Vec<_>>().join(" ")).collect()
    }
}

//! What is really there: tasks, workers, nodes, partitions and how far everybody has read.
//!
//! A [`SnapshotDraft`] is what the coordinator gathered; [`Snapshot::parse`] checks it against the
//! job graph. From then on it does not change: planning reads it, [`super::report::fence`] makes a
//! new one out of it.
//!
//! How far a consumer has read a partition is one [`Progress`]. A partition holds, for each of its
//! consumer groups, one progress that stands for all consumers and a short list of those that
//! differ: 10,000 producers times 10,000 consumers take 10,000 entries. Where the consumers differ
//! in numbers that decide nothing, the common entry may hold bounds (highest floor and sent, lowest
//! confirmed, need and rewind): a plan from bounds restarts at most too much, never too little.

use super::graph::{Dataset, GroupIndex, JobGraph, PartitionRef, TaskIndex};
use super::graph_spec::{DatasetProperties, DiesWith, Keeps};
use std::sync::Arc;
use std::time::Duration;
use store_api::ids::{AttemptId, JobEpoch, JobId, JobIncarnation, NodeId, NodeLife};
use store_api::offset::Offset;

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// Never deployed. Is not restarted by any plan: it has done nothing yet.
    Created,
    /// An attempt is on its way to a worker.
    Scheduled,
    /// An attempt runs.
    Running,
    /// An attempt ended well.
    Finished,
    /// The last attempt failed.
    Failed,
    /// A plan is stopping its attempts; it will run again.
    Cancelling,
    /// Its attempts were stopped by a plan and nothing has replaced them yet.
    Cancelled,
}

impl TaskState {
    /// Whether an attempt runs or is about to.
    #[must_use]
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Scheduled | Self::Running)
    }

    /// Whether the task has still to read, if nothing restarts it.
    #[must_use]
    pub const fn will_read(self) -> bool {
        matches!(self, Self::Created | Self::Scheduled | Self::Running)
    }

    /// Whether nothing runs and something should.
    #[must_use]
    pub const fn must_run_again(self) -> bool {
        matches!(self, Self::Failed | Self::Cancelling | Self::Cancelled)
    }
}

/// A process that computes. Not a node: losing it loses no partition by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRecord {
    /// Which start of the worker this is.
    pub life: NodeLife,
    /// Whether it is known to be gone.
    pub is_lost: bool,
}

/// One execution of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptRecord {
    /// Its number.
    pub attempt: AttemptId,
    /// Where it runs: a place in [`SnapshotDraft::workers`]; `None` while it has none.
    pub worker: Option<u32>,
}

/// One task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRecord {
    /// Where it stands.
    pub state: TaskState,
    /// Attempts that are alive; for a finished task the one that finished.
    pub attempts: Vec<AttemptRecord>,
    /// Highest attempt that was ever given out; `None` before the first.
    pub last_attempt: Option<AttemptId>,
    /// Whether effects of it are published outside the job. Never runs again silently.
    pub is_committed: bool,
    /// Whether a re-run was found to write something else than the run before it.
    pub has_replayed_differently: bool,
}

impl TaskRecord {
    /// A task that was never deployed.
    #[must_use]
    pub const fn created() -> Self {
        Self { state: TaskState::Created, attempts: Vec::new(), last_attempt: None, is_committed: false, has_replayed_differently: false }
    }

    /// A task with one attempt.
    #[must_use]
    pub fn with_attempt(state: TaskState, attempt: AttemptId, worker: Option<u32>) -> Self {
        let attempts = vec![AttemptRecord { attempt, worker }];
        Self { state, attempts, last_attempt: Some(attempt), is_committed: false, has_replayed_differently: false }
    }
}

/// How a node answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeStanding {
    /// It answers.
    Up,
    /// It has not answered since this time.
    Suspect {
        /// When it was first missed, on the clock of [`SnapshotDraft::now`].
        since: Duration,
    },
    /// It is known to be gone.
    Lost,
}

/// A process that stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRecord {
    /// Its name.
    pub id: NodeId,
    /// Which start of it is current.
    pub life: NodeLife,
    /// When this life was first heard of, on the clock of [`SnapshotDraft::now`].
    pub life_since: Duration,
    /// How it answers.
    pub standing: NodeStanding,
}

/// Where the bytes of a partition are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Location {
    /// In a store that is no single node's.
    Shared,
    /// On a node.
    Node {
        /// A place in [`SnapshotDraft::nodes`].
        node: u32,
        /// The life of the node that announced them.
        life: NodeLife,
    },
}

/// What is believed of the bytes of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionStatus {
    /// They can be read.
    Available,
    /// They could not be reached; whether they are gone is not known.
    Suspect {
        /// When that was first seen, on the clock of [`SnapshotDraft::now`].
        since: Duration,
    },
    /// They are gone.
    Lost,
    /// They are there and wrong.
    Corrupt,
    /// They were given back. Not the same as empty: reading them is an error.
    Released,
}

/// How far a consumer has taken a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirmed {
    /// Everything below this offset.
    UpTo(Offset),
    /// Everything, and it was told that there is no more.
    End,
}

/// How far the serving node has sent a partition to a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// Not known; counts as infinitely far.
    Unknown,
    /// Everything below this offset, and no end.
    UpTo(Offset),
    /// Everything, with the end, even if there was no byte before it.
    End,
}

/// What one consumer and one partition have to do with each other. Offsets are absolute and stay
/// the same over attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Lowest offset that can still be read. [`NOTHING_HELD`] when nothing can.
    pub floor: Offset,
    /// First byte not yet written.
    pub end: Offset,
    /// What the consumer has taken, as it last said.
    pub confirmed: Confirmed,
    /// What the node has sent, over all attempts of the producer that this run of the consumer read.
    pub sent: Sent,
    /// Where the consumer begins when it is restarted from the restore point; 0 without one.
    pub need: Offset,
    /// Where the producer begins to write when it is restarted from the restore point; 0 without one.
    pub rewind: Offset,
}

/// A floor above every byte.
pub const NOTHING_HELD: Offset = Offset::new(u64::MAX);

impl Progress {
    /// Nothing written, nothing read.
    pub const UNTOUCHED: Self = Self {
        floor: Offset::ZERO,
        end: Offset::ZERO,
        confirmed: Confirmed::UpTo(Offset::ZERO),
        sent: Sent::UpTo(Offset::ZERO),
        need: Offset::ZERO,
        rewind: Offset::ZERO,
    };

    /// Where a consumer that is not restarted goes on. It has passed the restore point, whatever it
    /// last confirmed. `None`: it wants nothing more.
    pub(super) fn running_position(&self) -> Option<Offset> {
        match self.confirmed {
            Confirmed::End => None,
            Confirmed::UpTo(confirmed) => Some(confirmed.max(self.need)),
        }
    }

    /// Whether the consumer may have seen something that a re-run of the producer writes anew.
    pub(super) fn has_seen_beyond_rewind(&self) -> bool {
        match self.sent {
            Sent::Unknown | Sent::End => true,
            Sent::UpTo(sent) => sent > self.rewind,
        }
    }
}

/// The progress of all consumers of one group in one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupProgress {
    /// Of every consumer that is not in `others`.
    pub common: Progress,
    /// Consumers that differ, by their index in their vertex; ascending, each once, and each a
    /// reader of this partition.
    pub others: Vec<(u32, Progress)>,
}

impl GroupProgress {
    /// One progress for all.
    #[must_use]
    pub const fn of_all(common: Progress) -> Self {
        Self { common, others: Vec::new() }
    }

    /// The progress of one consumer.
    #[must_use]
    pub fn of(&self, consumer: u32) -> &Progress {
        self.own(consumer).unwrap_or(&self.common)
    }

    pub(super) fn own(&self, consumer: u32) -> Option<&Progress> {
        let place = self.others.binary_search_by_key(&consumer, |(consumer, _)| *consumer).ok()?;
        self.others.get(place).map(|(_, progress)| progress)
    }
}

/// The output of one producer task in one dataset, as far as it exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionRecord {
    /// The attempt that wrote, or writes, the bytes that count.
    pub attempt: AttemptId,
    /// Whether its content is final.
    pub is_sealed: bool,
    /// Whether it was handed to somebody outside the job; it is then never changed or released.
    pub is_promoted: bool,
    /// Whether a reader or a plan in flight holds a pin on it.
    pub is_pinned: bool,
    /// Whether the store can compare a re-run with it, byte for byte, by digests.
    pub has_digests: bool,
    /// What is believed of its bytes.
    pub status: PartitionStatus,
    /// Where they are.
    pub location: Location,
    /// One entry for each consumer group of the dataset, in the order of the declaration.
    pub progress: Vec<GroupProgress>,
}

/// Why the job cannot go on at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GlobalFailure {
    /// Something all tasks rest on (the restore point, the coordinator's state) is gone: everything
    /// restarts.
    RestartAll,
    /// A restart cannot help.
    Unrecoverable,
}

/// A snapshot as gathered, not yet believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotDraft {
    /// The job.
    pub job: JobId,
    /// Which existence of the job id.
    pub incarnation: JobIncarnation,
    /// Ownership of the job.
    pub job_epoch: JobEpoch,
    /// Which coordinator gathered it; reports to an older one are dropped.
    pub coordinator_epoch: u64,
    /// Raised by every plan that is committed.
    pub graph_version: u64,
    /// The shape of the job.
    pub graph: Arc<JobGraph>,
    /// When it was gathered, on a clock of the coordinator's that only differences are taken of.
    pub now: Duration,
    /// One entry for each task, in the order of the graph.
    pub tasks: Vec<TaskRecord>,
    /// Workers, in any order.
    pub workers: Vec<WorkerRecord>,
    /// Nodes, in any order.
    pub nodes: Vec<NodeRecord>,
    /// For each dataset, for each producer: its partition, `None` before it was opened.
    pub partitions: Vec<Vec<Option<PartitionRecord>>>,
    /// A failure that concerns the whole job.
    pub global_failure: Option<GlobalFailure>,
}

/// Why a gathered snapshot does not fit its graph.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// A list is not as long as the graph says.
    #[error("{what}: {found} entries, the graph has {expected}")]
    Length {
        /// Which list.
        what: &'static str,
        /// What the graph says.
        expected: usize,
        /// What was there.
        found: usize,
    },
    /// A task's attempts do not go with its state.
    #[error("task {task} is {state:?} and has {n_attempts} attempts")]
    Attempts {
        /// The task.
        task: String,
        /// Its state.
        state: TaskState,
        /// How many attempts it has.
        n_attempts: usize,
    },
    /// A task or partition names a worker or node that is not listed.
    #[error("{whose} names {what} {place}, which is not listed")]
    Unlisted {
        /// What names it.
        whose: String,
        /// Worker or node.
        what: &'static str,
        /// The place it names.
        place: u32,
    },
    /// A partition was handed out of the job before its seal, or is of a kind that forgets.
    #[error("partition {producer} of dataset {dataset} is promoted, but not sealed or not kept whole")]
    Promoted {
        /// The dataset.
        dataset: String,
        /// The producer's index.
        producer: u32,
    },
    /// Consumers with progress of their own are not ascending or do not read the partition.
    #[error("partition {producer} of dataset {dataset}: consumer {consumer} has progress out of order or does not read it")]
    Consumer {
        /// The dataset.
        dataset: String,
        /// The producer's index.
        producer: u32,
        /// The consumer's index.
        consumer: u32,
    },
}

/// What is there, checked against the job graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub(super) inner: SnapshotDraft,
}

/// Whether bytes can be counted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Readable,
    Suspect { until: Duration },
    Gone,
}

impl Snapshot {
    /// Checks a draft. Errors: [`SnapshotError`], the first fault found.
    pub fn parse(draft: SnapshotDraft) -> Result<Self, SnapshotError> {
        let graph = Arc::clone(&draft.graph);
        expect_length("tasks", graph.n_tasks() as usize, draft.tasks.len())?;
        expect_length("datasets", graph.datasets().len(), draft.partitions.len())?;
        for (task, record) in (0..).map(TaskIndex::new).zip(&draft.tasks) {
            check_task(&graph, task, record, draft.workers.len())?;
        }
        for (dataset, partitions) in graph.datasets().iter().zip(&draft.partitions) {
            expect_length("partitions of a dataset", graph.parallelism(dataset.producer) as usize, partitions.len())?;
            for (producer, record) in (0..).zip(partitions) {
                if let Some(record) = record {
                    check_partition(&graph, dataset, producer, record, draft.nodes.len())?;
                }
            }
        }
        Ok(Self { inner: draft })
    }

    /// What it was made of; change it and parse it again to plan from something newer.
    #[must_use]
    pub fn into_draft(self) -> SnapshotDraft {
        self.inner
    }

    /// The job graph.
    #[must_use]
    pub fn graph(&self) -> &JobGraph {
        &self.inner.graph
    }

    /// One task; `None` when there is no such task.
    #[must_use]
    pub fn task(&self, task: TaskIndex) -> Option<&TaskRecord> {
        self.inner.tasks.get(task.at())
    }

    /// State of a task; a task that is not there counts as created.
    #[must_use]
    pub fn state(&self, task: TaskIndex) -> TaskState {
        self.task(task).map_or(TaskState::Created, |task| task.state)
    }

    /// One partition; `None` before it was opened.
    #[must_use]
    pub fn partition(&self, partition: PartitionRef) -> Option<&PartitionRecord> {
        self.inner.partitions.get(partition.dataset.at())?.get(partition.producer as usize)?.as_ref()
    }

    /// All partitions that exist, by dataset and producer.
    pub fn partitions(&self) -> impl Iterator<Item = (PartitionRef, &PartitionRecord)> {
        let datasets = (0..).map(super::graph::DatasetIndex::new).zip(&self.inner.partitions);
        datasets.flat_map(|(dataset, partitions)| {
            let numbered = (0..).zip(partitions);
            numbered.filter_map(move |(producer, record)| Some((PartitionRef { dataset, producer }, record.as_ref()?)))
        })
    }

    /// The same with nothing held for one consumer of one partition: what a refused pin says.
    /// Nothing changes when the consumer does not read the partition.
    #[must_use]
    pub fn with_refused_pin(mut self, group: GroupIndex, producer: u32, consumer: u32) -> Self {
        let graph = Arc::clone(&self.inner.graph);
        let Some(readers) = graph.group(group).filter(|group| group.consumers_of(producer).contains(&consumer)) else { return self };
        let partition = PartitionRef { dataset: readers.dataset, producer };
        if let Some(record) = self.partition_mut(partition)
            && let Some(progress) = record.progress.get_mut(readers.slot)
        {
            let refused = Progress { floor: NOTHING_HELD, ..*progress.of(consumer) };
            match progress.others.binary_search_by_key(&consumer, |(consumer, _)| *consumer) {
                Ok(place) => progress.others.iter_mut().skip(place).take(1).for_each(|(_, own)| *own = refused),
                Err(place) => progress.others.insert(place, (consumer, refused)),
            }
        }
        self
    }

    pub(super) fn partition_mut(&mut self, partition: PartitionRef) -> Option<&mut PartitionRecord> {
        self.inner.partitions.get_mut(partition.dataset.at())?.get_mut(partition.producer as usize)?.as_mut()
    }

    pub(super) fn task_mut(&mut self, task: TaskIndex) -> Option<&mut TaskRecord> {
        self.inner.tasks.get_mut(task.at())
    }

    /// Whether an attempt sits on a worker that is gone.
    pub(super) fn is_on_lost_worker(&self, attempt: &AttemptRecord) -> bool {
        let worker = attempt.worker.and_then(|worker| self.inner.workers.get(worker as usize));
        worker.is_some_and(|worker| worker.is_lost)
    }

    /// Whether the bytes of a partition can be counted on, after its own status and its node's.
    pub(super) fn standing(&self, properties: DatasetProperties, record: &PartitionRecord, grace: Duration) -> Standing {
        let of_status = match record.status {
            PartitionStatus::Available => Standing::Readable,
            PartitionStatus::Suspect { since } => self.suspect(since, grace),
            PartitionStatus::Lost | PartitionStatus::Corrupt | PartitionStatus::Released => return Standing::Gone,
        };
        let of_node = match record.location {
            Location::Node { node, life } if properties.dies_with != DiesWith::Nothing => self.node_standing(properties, node, life, grace),
            Location::Node { .. } | Location::Shared => Standing::Readable,
        };
        match (of_status, of_node) {
            (Standing::Gone, _) | (_, Standing::Gone) => Standing::Gone,
            (Standing::Suspect { until: one }, Standing::Suspect { until: two }) => Standing::Suspect { until: one.min(two) },
            (Standing::Suspect { until }, Standing::Readable) | (Standing::Readable, Standing::Suspect { until }) => {
                Standing::Suspect { until }
            }
            (Standing::Readable, Standing::Readable) => Standing::Readable,
        }
    }

    fn node_standing(&self, properties: DatasetProperties, node: u32, life: NodeLife, grace: Duration) -> Standing {
        let Some(node) = self.inner.nodes.get(node as usize) else { return Standing::Gone };
        match node.standing {
            NodeStanding::Lost => Standing::Gone,
            // A disk may come back with the new life, memory cannot.
            NodeStanding::Up | NodeStanding::Suspect { .. } if node.life != life && properties.dies_with == DiesWith::NodeLife => {
                Standing::Gone
            }
            NodeStanding::Suspect { since } => self.suspect(since, grace),
            NodeStanding::Up if node.life != life => self.suspect(node.life_since, grace),
            NodeStanding::Up => Standing::Readable,
        }
    }

    fn suspect(&self, since: Duration, grace: Duration) -> Standing {
        let is_over = self.inner.now.saturating_sub(since) >= grace;
        if is_over { Standing::Gone } else { Standing::Suspect { until: since.saturating_add(grace) } }
    }
}

impl DatasetProperties {
    /// Whether a reader must pin what it counts on.
    pub(super) fn needs_pin(self) -> bool {
        self.keeps == Keeps::BestEffort
    }
}

fn expect_length(what: &'static str, expected: usize, found: usize) -> Result<(), SnapshotError> {
    if expected == found { Ok(()) } else { Err(SnapshotError::Length { what, expected, found }) }
}

fn check_task(graph: &JobGraph, task: TaskIndex, record: &TaskRecord, n_workers: usize) -> Result<(), SnapshotError> {
    let n_attempts = record.attempts.len();
    let fits = match record.state {
        TaskState::Created | TaskState::Failed | TaskState::Cancelled => n_attempts == 0,
        TaskState::Scheduled | TaskState::Running | TaskState::Cancelling => n_attempts > 0,
        TaskState::Finished => n_attempts <= 1,
    };
    if !fits {
        return Err(SnapshotError::Attempts { task: graph.label(task), state: record.state, n_attempts });
    }
    let is_unlisted = |worker: &u32| *worker as usize >= n_workers;
    match record.attempts.iter().filter_map(|attempt| attempt.worker).find(is_unlisted) {
        Some(place) => Err(SnapshotError::Unlisted { whose: format!("task {}", graph.label(task)), what: "worker", place }),
        None => Ok(()),
    }
}

fn check_partition(
    graph: &JobGraph,
    dataset: &Dataset,
    producer: u32,
    record: &PartitionRecord,
    n_nodes: usize,
) -> Result<(), SnapshotError> {
    expect_length("groups of a partition", dataset.groups.len(), record.progress.len())?;
    if let Location::Node { node, .. } = record.location
        && node as usize >= n_nodes
    {
        return Err(SnapshotError::Unlisted {
            whose: format!("partition {producer} of dataset {}", dataset.id),
            what: "node",
            place: node,
        });
    }
    if record.is_promoted && !(record.is_sealed && dataset.properties.keeps == Keeps::Everything) {
        return Err(SnapshotError::Promoted { dataset: dataset.id.to_string(), producer });
    }
    for (group, progress) in dataset.groups.iter().zip(&record.progress) {
        if let Some(consumer) = misplaced_consumer(graph, *group, producer, progress) {
            return Err(SnapshotError::Consumer { dataset: dataset.id.to_string(), producer, consumer });
        }
    }
    Ok(())
}

fn misplaced_consumer(graph: &JobGraph, group: GroupIndex, producer: u32, progress: &GroupProgress) -> Option<u32> {
    let readers = graph.group(group)?.consumers_of(producer);
    let mut last = None;
    for (consumer, _) in &progress.others {
        if !readers.contains(consumer) || last.is_some_and(|last| last >= *consumer) {
            return Some(*consumer);
        }
        last = Some(*consumer);
    }
    None
}

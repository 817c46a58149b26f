//! A snapshot as a policy sees it: what serves, what is believed, who reads.

use super::graph::{ConsumerGroup, GroupIndex, PartitionRef, TaskIndex};
use super::graph_spec::{DatasetProperties, DiesWith, Keeps, Readable};
use super::policy::{Determinism, Policy};
use super::snapshot::{GroupProgress, PartitionRecord, Snapshot, Standing, TaskState};
use super::task_set::TaskSet;
use std::ops::Range;

#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) policy: &'a Policy,
}

/// A partition seen from one of its consumer groups.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) group_index: GroupIndex,
    pub(super) group: &'a ConsumerGroup,
    pub(super) partition: PartitionRef,
    pub(super) record: Option<&'a PartitionRecord>,
    pub(super) progress: Option<&'a GroupProgress>,
}

impl Row<'_> {
    /// Indices of the consumers that read the partition.
    pub(super) fn readers(&self) -> Range<u32> {
        self.group.consumers_of(self.partition.producer)
    }
}

impl<'a> View<'a> {
    pub(super) fn properties(&self, partition: PartitionRef) -> DatasetProperties {
        let unknown = DatasetProperties { readable: Readable::AfterSeal, keeps: Keeps::Everything, dies_with: DiesWith::NodeLife };
        self.snapshot.graph().dataset(partition.dataset).map_or(unknown, |dataset| dataset.properties)
    }

    pub(super) fn standing(&self, partition: PartitionRef, record: &PartitionRecord) -> Standing {
        self.snapshot.standing(self.properties(partition), record, self.policy.suspect_grace)
    }

    /// Whether what is held of a partition can be read and what is missing will come, if its
    /// producer is left alone. Floors are another question.
    pub(super) fn serves(&self, partition: PartitionRef) -> bool {
        let state = self.snapshot.graph().producer_of(partition).map_or(TaskState::Created, |task| self.snapshot.state(task));
        let will_write = state.is_live() || state == TaskState::Created;
        match self.snapshot.partition(partition) {
            None => will_write,
            Some(record) => self.standing(partition, record) != Standing::Gone && (record.is_sealed || will_write),
        }
    }

    /// Whether a restarted task is expected to write what it wrote before, given the same input.
    pub(super) fn repeats_itself(&self, task: TaskIndex) -> bool {
        let (graph, record) = (self.snapshot.graph(), self.snapshot.task(task));
        let is_declared = graph.vertex_of(task).is_some_and(|vertex| vertex.is_deterministic);
        if !is_declared || record.is_some_and(|record| record.has_replayed_differently) {
            return false;
        }
        match self.policy.determinism {
            Determinism::Ignored => false,
            Determinism::Believed => true,
            Determinism::Verified => {
                graph.outputs_of(task).filter_map(|partition| self.snapshot.partition(partition)).all(|record| record.has_digests)
            }
        }
    }

    /// Whether a partition is final, readable and held from wherever any of its readers may begin.
    pub(super) fn is_whole(&self, partition: PartitionRef) -> bool {
        let Some(record) = self.snapshot.partition(partition) else { return false };
        let holds = |progress: &GroupProgress| {
            let others = progress.others.iter().map(|(_, progress)| progress);
            others.chain([&progress.common]).all(|progress| progress.floor <= progress.need)
        };
        record.is_sealed && self.standing(partition, record) != Standing::Gone && record.progress.iter().all(holds)
    }

    /// Whether a partition was handed out of the job and can still be read there.
    pub(super) fn is_promoted_whole(&self, partition: PartitionRef) -> bool {
        self.snapshot.partition(partition).is_some_and(|record| record.is_promoted && self.standing(partition, record) != Standing::Gone)
    }

    /// Every partition of every dataset, once for each group that reads it.
    pub(super) fn rows(&self) -> impl Iterator<Item = Row<'a>> + use<'a> {
        let snapshot = self.snapshot;
        let groups = (0..).map(GroupIndex::new).zip(snapshot.graph().groups());
        groups.flat_map(move |(index, group)| (0..group.n_producers).map(move |producer| row(snapshot, index, group, producer)))
    }

    /// The rows of one partition.
    pub(super) fn rows_of(&self, partition: PartitionRef) -> impl Iterator<Item = Row<'a>> + use<'a> {
        let (snapshot, graph) = (self.snapshot, self.snapshot.graph());
        let groups = graph.dataset(partition.dataset).map(|dataset| dataset.groups.as_slice()).unwrap_or_default();
        groups.iter().filter_map(move |index| Some(row(snapshot, *index, graph.group(*index)?, partition.producer)))
    }
}

pub(super) fn row<'a>(snapshot: &'a Snapshot, group_index: GroupIndex, group: &'a ConsumerGroup, producer: u32) -> Row<'a> {
    let partition = PartitionRef { dataset: group.dataset, producer };
    let record = snapshot.partition(partition);
    Row { group_index, group, partition, record, progress: record.and_then(|record| record.progress.get(group.slot)) }
}

/// The tasks of a vertex by what they will read, as ascending indices within the vertex.
#[derive(Default)]
pub(super) struct Readers {
    /// Restarted: read from their need on.
    pub(super) restarting: Vec<u32>,
    /// Left running: go on where they are.
    pub(super) running: Vec<u32>,
    /// Never deployed: will begin at the beginning.
    pub(super) created: Vec<u32>,
}

/// The readers of every vertex, given which tasks restart.
pub(super) fn readers_by_vertex(snapshot: &Snapshot, restart: &TaskSet) -> Vec<Readers> {
    let of_vertex = |vertex: &super::graph::Vertex| {
        let mut readers = Readers::default();
        for (index, task) in (0..).zip(vertex.tasks()) {
            match snapshot.state(task) {
                _ if restart.contains(task) => readers.restarting.push(index),
                TaskState::Created => readers.created.push(index),
                TaskState::Scheduled | TaskState::Running => readers.running.push(index),
                TaskState::Finished | TaskState::Failed | TaskState::Cancelling | TaskState::Cancelled => {}
            }
        }
        readers
    };
    snapshot.graph().vertices().iter().map(of_vertex).collect()
}

/// The part of an ascending list that lies in a range.
pub(super) fn within(list: &[u32], range: Range<u32>) -> &[u32] {
    let start = list.partition_point(|index| *index < range.start);
    let end = list.partition_point(|index| *index < range.end);
    list.get(start..end).unwrap_or_default()
}

/// How many consumers of an ascending list have no progress of their own.
pub(super) fn count_common(list: &[u32], progress: &GroupProgress) -> usize {
    list.len() - progress.others.iter().filter(|(consumer, _)| list.binary_search(consumer).is_ok()).count()
}

/// The first consumer of an ascending list that has no progress of its own.
pub(super) fn first_common(list: &[u32], progress: Option<&GroupProgress>) -> Option<u32> {
    list.iter().copied().find(|consumer| progress.is_none_or(|progress| progress.own(*consumer).is_none()))
}

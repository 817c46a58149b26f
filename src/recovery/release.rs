//! What can be given back although nothing failed.

use super::graph::{PartitionRef, TaskIndex};
use super::graph_spec::{DiesWith, Pattern};
use super::plan::PartitionAttempt;
use super::snapshot::{PartitionRecord, PartitionStatus, Snapshot, TaskState};
use super::task_set::TaskSet;

/// How long finished inputs are held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ReleasePolicy {
    /// Until everything downstream of them, up to a durable or promoted result, is finished: a later
    /// failure there finds its inputs.
    #[default]
    PreferRecovery,
    /// Until their own consumers are finished.
    PreferSpace,
}

/// Why a partition is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldReason {
    /// It does not exist, or was given back before.
    NotHeld,
    /// It belongs to somebody outside the job.
    Promoted,
    /// Somebody counts on it.
    Pinned,
    /// It is still written.
    Unsealed,
    /// A consumer has not finished.
    Consumer {
        /// That consumer.
        task: TaskIndex,
    },
    /// A task further down has not finished, and nothing durable lies between.
    Downstream,
}

/// The partitions that can be given back, ascending. Giving one back twice is harmless: the second
/// time it is not listed.
#[must_use]
pub fn releasable(snapshot: &Snapshot, policy: ReleasePolicy) -> Vec<PartitionAttempt> {
    let open = open_below(snapshot);
    let free = snapshot.partitions().filter(|(partition, _)| judge(snapshot, *partition, policy, &open).is_none());
    free.map(|(partition, record)| PartitionAttempt { partition, attempt: record.attempt }).collect()
}

/// Why a partition is held; `None` when it can be given back.
#[must_use]
pub fn hold_reason(snapshot: &Snapshot, partition: PartitionRef, policy: ReleasePolicy) -> Option<HoldReason> {
    judge(snapshot, partition, policy, &open_below(snapshot))
}

/// What can be given back when the job has ended, well or not: everything that was not promoted,
/// whether or not anybody read it.
#[must_use]
pub fn releasable_at_job_end(snapshot: &Snapshot) -> Vec<PartitionAttempt> {
    let is_held = |record: &PartitionRecord| !record.is_promoted && record.status != PartitionStatus::Released;
    let held = snapshot.partitions().filter(|(_, record)| is_held(record));
    held.map(|(partition, record)| PartitionAttempt { partition, attempt: record.attempt }).collect()
}

fn judge(snapshot: &Snapshot, partition: PartitionRef, policy: ReleasePolicy, open: &Open) -> Option<HoldReason> {
    let record = snapshot.partition(partition).filter(|record| record.status != PartitionStatus::Released);
    let Some(record) = record else { return Some(HoldReason::NotHeld) };
    if record.is_promoted {
        return Some(HoldReason::Promoted);
    }
    if record.is_pinned {
        return Some(HoldReason::Pinned);
    }
    if !record.is_sealed {
        return Some(HoldReason::Unsealed);
    }
    let graph = snapshot.graph();
    let mut is_open_below = false;
    for group_index in graph.dataset(partition.dataset).map(|dataset| dataset.groups.as_slice()).unwrap_or_default() {
        let Some(group) = graph.group(*group_index) else { continue };
        if group.pattern == Pattern::AllToAll {
            let of_vertex = open.vertices.get(group.consumer.at());
            if let Some(task) = of_vertex.and_then(|of_vertex| of_vertex.first_unfinished) {
                return Some(HoldReason::Consumer { task });
            }
            is_open_below |= of_vertex.is_some_and(|of_vertex| of_vertex.is_open);
            continue;
        }
        for consumer in group.consumers_of(partition.producer).filter_map(|index| graph.task(group.consumer, index)) {
            if snapshot.state(consumer) != TaskState::Finished {
                return Some(HoldReason::Consumer { task: consumer });
            }
            is_open_below |= open.tasks.contains(consumer);
        }
    }
    let needs_more = policy == ReleasePolicy::PreferRecovery && is_open_below;
    needs_more.then_some(HoldReason::Downstream)
}

#[derive(Default, Clone, Copy)]
struct OpenVertex {
    first_unfinished: Option<TaskIndex>,
    is_open: bool,
}

/// Tasks that have not finished, and those from which an unfinished one can be reached without
/// crossing a durable or promoted result.
struct Open {
    tasks: TaskSet,
    vertices: Vec<OpenVertex>,
}

fn open_below(snapshot: &Snapshot) -> Open {
    let graph = snapshot.graph();
    let mut open = TaskSet::none(graph.n_tasks());
    let unfinished = (0..graph.n_tasks()).map(TaskIndex::new).filter(|task| snapshot.state(*task) != TaskState::Finished);
    let mut work: Vec<TaskIndex> = unfinished.filter(|task| open.insert(*task)).collect();
    let mut is_visited = vec![false; graph.groups().len()];
    while let Some(task) = work.pop() {
        let index = graph.index_in_vertex(task);
        for group_index in graph.inputs_of(task) {
            let Some(group) = graph.group(*group_index) else { continue };
            let was_visited = is_visited.get_mut(group_index.at()).is_none_or(|place| std::mem::replace(place, true));
            if was_visited && group.pattern == Pattern::AllToAll {
                continue;
            }
            for producer in group.producers_of(index) {
                let partition = PartitionRef { dataset: group.dataset, producer };
                let upstream = graph.producer_of(partition).filter(|_| !is_cut(snapshot, partition));
                work.extend(upstream.filter(|upstream| open.insert(*upstream)));
            }
        }
    }
    let of_vertex = |vertex: &super::graph::Vertex| OpenVertex {
        first_unfinished: vertex.tasks().find(|task| snapshot.state(*task) != TaskState::Finished),
        is_open: vertex.tasks().any(|task| open.contains(task)),
    };
    let vertices = graph.vertices().iter().map(of_vertex).collect();
    Open { tasks: open, vertices }
}

/// Whether a later failure below a partition never reaches above it.
fn is_cut(snapshot: &Snapshot, partition: PartitionRef) -> bool {
    let is_durable = snapshot.graph().dataset(partition.dataset).is_some_and(|dataset| dataset.properties.dies_with == DiesWith::Nothing);
    snapshot
        .partition(partition)
        .is_some_and(|record| record.is_sealed && record.status == PartitionStatus::Available && (is_durable || record.is_promoted))
}

//! The state as a snapshot for the planner.
//!
//! How far readers are is filled in from what is certain. Of bytes that are all kept a consumer may
//! have seen anything, and can read everything again. Of an open pipelined partition that lets go of
//! what was read, nothing can be had again, except by consumers that were never started. States of
//! consumers say the rest to the planner, so that one entry stands for all readers of a partition.

use super::super::nodes::NodesNow;
use super::{Copy, JobState, Place};
use crate::recovery::graph::{ConsumerGroup, DatasetIndex};
use crate::recovery::graph_spec::Keeps;
use crate::recovery::snapshot::{
    Confirmed, GroupProgress, Location, NOTHING_HELD, PartitionRecord, Progress, Sent, Snapshot, SnapshotDraft, SnapshotError, TaskState,
    WorkerRecord,
};
use std::time::Duration;
use store_api::Offset;

/// The readers of a group that were never started, ascending, and whether those are all.
struct Readers<'a> {
    group: &'a ConsumerGroup,
    created: Vec<u32>,
    are_all_created: bool,
}

impl JobState {
    /// The state at `now`. Errors: the state contradicts itself.
    pub(super) fn snapshot(&self, now: Duration, nodes: &NodesNow) -> Result<Snapshot, SnapshotError> {
        let worker = |record: &super::WorkerRecord| WorkerRecord { life: record.life, is_lost: record.is_lost };
        let partitions = (0..).map(DatasetIndex::new).zip(&self.partitions).map(|(dataset, copies)| {
            let groups: Vec<Readers<'_>> =
                self.graph.groups().iter().filter(|group| group.dataset == dataset).map(|group| self.readers_of(group)).collect();
            let keeps = self.graph.dataset(dataset).map_or(Keeps::Everything, |dataset| dataset.properties.keeps);
            let numbered = (0..).zip(copies);
            let record = |(producer, copy): (u32, &Option<Copy>)| {
                copy.as_ref()
                    .map(|copy| partition_record(copy, nodes, groups.iter().map(|group| progress_of(group, producer, copy, keeps))))
            };
            numbered.map(record).collect()
        });
        Snapshot::parse(SnapshotDraft {
            job: self.key.job.clone(),
            incarnation: self.key.incarnation,
            job_epoch: self.job_epoch,
            coordinator_epoch: self.coordinator_epoch,
            graph_version: self.version,
            graph: self.graph.clone(),
            now,
            tasks: self.tasks.clone(),
            workers: self.workers.iter().map(worker).collect(),
            nodes: nodes.records().to_vec(),
            partitions: partitions.collect(),
            global_failure: self.global,
        })
    }

    fn readers_of<'a>(&self, group: &'a ConsumerGroup) -> Readers<'a> {
        let is_created = |index: &u32| {
            let task = self.graph.task(group.consumer, *index);
            task.and_then(|task| self.record(task)).is_none_or(|record| record.state == TaskState::Created)
        };
        let n_readers = self.graph.parallelism(group.consumer);
        let created: Vec<u32> = (0..n_readers).filter(is_created).collect();
        Readers { group, are_all_created: created.len() == n_readers as usize, created }
    }
}

fn partition_record(copy: &Copy, nodes: &NodesNow, progress: impl Iterator<Item = GroupProgress>) -> PartitionRecord {
    let location = match &copy.place {
        Place::Node(node, life) => nodes.place_of(node).map_or(Location::Shared, |node| Location::Node { node, life: *life }),
        Place::Shared | Place::Unknown => Location::Shared,
    };
    PartitionRecord {
        attempt: copy.attempt,
        is_sealed: copy.is_sealed,
        is_promoted: false,
        is_pinned: false,
        // Nobody compares a re-run with what was there before, so a declaration is not verified.
        has_digests: false,
        status: copy.status,
        location,
        progress: progress.collect(),
    }
}

fn progress_of(readers: &Readers<'_>, producer: u32, copy: &Copy, keeps: Keeps) -> GroupProgress {
    let range = readers.group.consumers_of(producer);
    let n_readers = u64::try_from(range.len()).unwrap_or(u64::MAX).max(1);
    let untouched = Progress { end: Offset::new(copy.bytes / n_readers), ..Progress::UNTOUCHED };
    if matches!(keeps, Keeps::Everything | Keeps::SinceCheckpoint) {
        return GroupProgress::of_all(Progress { sent: Sent::Unknown, ..untouched });
    }
    if readers.are_all_created {
        return GroupProgress::of_all(untouched);
    }
    // Whoever runs goes on wherever it is.
    let gone = Progress { floor: NOTHING_HELD, confirmed: Confirmed::UpTo(NOTHING_HELD), sent: Sent::Unknown, ..untouched };
    let others = readers.created.iter().filter(|index| range.contains(index)).map(|index| (*index, untouched));
    GroupProgress { common: gone, others: others.collect() }
}

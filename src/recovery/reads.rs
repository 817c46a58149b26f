//! Who reads what from where after a plan: re-reads, resumes, pins, and beginnings of older attempts
//! that are still needed.

use super::closure::Closure;
use super::graph::{GroupIndex, PartitionRef};
use super::plan::{Keep, KeepReason, MissingPrefix, PartitionAttempt, ReadRow, Restart, Truncate};
use super::snapshot::{GroupProgress, Progress, Standing};
use super::view::{Readers, Row, View, readers_by_vertex, within};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use store_api::ids::AttemptId;
use store_api::offset::Offset;

/// A set of restarts worked out against its snapshot.
pub(super) struct Outcome<'a> {
    pub(super) view: View<'a>,
    pub(super) closure: &'a Closure,
    pub(super) readers: Vec<Readers>,
    pub(super) kept: BTreeMap<PartitionRef, KeepReason>,
    pub(super) is_lossy: bool,
}

/// Which consumers of a row are meant.
#[derive(Clone, Copy)]
enum Class {
    Restarting,
    Running,
    Created,
}

impl<'a> Outcome<'a> {
    /// With `keeps_identical`, whole outputs of tasks that repeat themselves stay.
    pub(super) fn new(view: View<'a>, closure: &'a Closure, keeps_identical: bool, is_lossy: bool) -> Self {
        let graph = view.snapshot.graph();
        let mut kept = BTreeMap::new();
        for task in closure.restart.iter() {
            for partition in graph.outputs_of(task) {
                if view.is_promoted_whole(partition) {
                    kept.insert(partition, KeepReason::Promoted);
                } else if keeps_identical && !closure.differs.contains(task) && view.is_whole(partition) {
                    kept.insert(partition, KeepReason::Identical);
                }
            }
        }
        Self { view, closure, readers: readers_by_vertex(view.snapshot, &closure.restart), kept, is_lossy }
    }

    /// Whether a partition is written again.
    pub(super) fn is_rewritten(&self, partition: PartitionRef) -> bool {
        let producer = self.view.snapshot.graph().producer_of(partition);
        producer.is_some_and(|producer| self.closure.restart.contains(producer)) && !self.kept.contains_key(&partition)
    }

    /// The consumers of a row that restart.
    pub(super) fn restarting(&self, row: Row<'_>) -> &[u32] {
        self.members(row, Class::Restarting)
    }

    fn members(&self, row: Row<'_>, class: Class) -> &[u32] {
        let Some(of_vertex) = self.readers.get(row.group.consumer.at()) else { return &[] };
        let list = match class {
            Class::Restarting => &of_vertex.restarting,
            Class::Running => &of_vertex.running,
            Class::Created => &of_vertex.created,
        };
        within(list, row.readers())
    }

    fn position(&self, class: Class, progress: &Progress) -> Option<Offset> {
        match class {
            Class::Restarting if self.is_lossy => Some(progress.need.max(progress.floor)),
            Class::Restarting | Class::Created => Some(progress.need),
            Class::Running => progress.running_position(),
        }
    }

    /// Outputs of restarted tasks that stay.
    pub(super) fn keeps(&self) -> Vec<Keep> {
        let keep = |(partition, reason): (&PartitionRef, &KeepReason)| {
            let attempt = self.view.snapshot.partition(*partition)?.attempt;
            Some(Keep { kept: PartitionAttempt { partition: *partition, attempt }, reason: *reason })
        };
        self.kept.iter().filter_map(keep).collect()
    }

    /// Restarted consumers of partitions that are there.
    pub(super) fn rereads(&self) -> Vec<ReadRow> {
        let mut rows = RowMaker::default();
        for row in self.view.rows().filter(|row| !self.is_rewritten(row.partition)) {
            let Some(record) = row.record else { continue };
            let until = match self.view.standing(row.partition, record) {
                Standing::Readable => None,
                Standing::Suspect { until } => Some(until),
                Standing::Gone => continue,
            };
            let found = rows.make(self, row, Class::Restarting, record.attempt);
            rows.rows.extend(found.map(|found| ReadRow { suspect_until: until, ..found }));
        }
        rows.rows
    }

    /// Consumers left alone whose producers write again.
    pub(super) fn resumes(&self, restarts: &[Restart]) -> Vec<ReadRow> {
        let (mut rows, graph) = (RowMaker::default(), self.view.snapshot.graph());
        for row in self.view.rows().filter(|row| self.is_rewritten(row.partition)) {
            let Some(producer) = graph.producer_of(row.partition) else { continue };
            let Ok(place) = restarts.binary_search_by_key(&producer, |restart| restart.task) else { continue };
            let Some(restart) = restarts.get(place) else { continue };
            let has_digests = row.record.is_some_and(|record| record.has_digests);
            let must_match_digest = has_digests && !self.closure.differs.contains(producer);
            let running = rows.make(self, row, Class::Running, restart.attempt);
            rows.rows.extend(running.map(|found| ReadRow { must_match_digest, ..found }));
            let created = rows.make(self, row, Class::Created, restart.attempt);
            rows.rows.extend(created);
        }
        rows.rows
    }

    /// The re-reads that count on bytes which memory pressure may take.
    pub(super) fn pins(&self, rereads: &[ReadRow]) -> Vec<ReadRow> {
        rereads.iter().filter(|row| self.view.properties(row.read.partition).needs_pin()).cloned().collect()
    }

    /// Older attempts whose beginning somebody needs, and where that beginning is gone.
    pub(super) fn prefixes(&self) -> (Vec<Truncate>, Vec<MissingPrefix>) {
        let (mut truncates, mut missing) = (Vec::new(), Vec::new());
        for row in self.view.rows().filter(|row| self.is_rewritten(row.partition)) {
            let (Some(record), Some(progress)) = (row.record, row.progress) else { continue };
            let positions = self.positions_below_rewind(row, progress);
            if positions.is_empty() {
                continue;
            }
            let is_gone = self.view.standing(row.partition, record) == Standing::Gone;
            let lost = positions.iter().find(|(progress, position)| is_gone || progress.floor > *position);
            match lost {
                Some((progress, from)) => {
                    missing.push(MissingPrefix { partition: row.partition, group: row.group_index, from: *from, rewind: progress.rewind });
                }
                None => truncates.push(Truncate {
                    cut: PartitionAttempt { partition: row.partition, attempt: record.attempt },
                    group: row.group_index,
                    at: progress.common.rewind,
                    others: progress.others.iter().map(|(consumer, own)| (*consumer, own.rewind)).collect(),
                }),
            }
        }
        (truncates, missing)
    }

    /// What the readers of a partition that is written again need from before it is.
    fn positions_below_rewind<'p>(&self, row: Row<'_>, progress: &'p GroupProgress) -> Vec<(&'p Progress, Offset)> {
        let mut found = Vec::new();
        for class in [Class::Restarting, Class::Running, Class::Created] {
            let members = self.members(row, class);
            let below = |one: &Progress| self.position(class, one).filter(|position| *position < one.rewind);
            if super::view::first_common(members, Some(progress)).is_some() {
                found.extend(below(&progress.common).map(|position| (&progress.common, position)));
            }
            let own = progress.others.iter().filter(|(consumer, _)| members.binary_search(consumer).is_ok());
            found.extend(own.filter_map(|(_, one)| Some((one, below(one)?))));
        }
        found
    }
}

/// Makes rows; the consumers of an all-to-all group are listed once and shared.
#[derive(Default)]
struct RowMaker {
    rows: Vec<ReadRow>,
    shared: BTreeMap<(GroupIndex, u8), Arc<[Range<u32>]>>,
}

impl RowMaker {
    /// `None` when nobody of the class reads anything.
    fn make(&mut self, outcome: &Outcome<'_>, row: Row<'_>, class: Class, attempt: AttemptId) -> Option<ReadRow> {
        let members = outcome.members(row, class);
        if members.is_empty() {
            return None;
        }
        let (from, others) = match row.progress {
            None => (Some(Offset::ZERO), Vec::new()),
            Some(progress) => {
                let own = progress.others.iter().filter(|(consumer, _)| members.binary_search(consumer).is_ok());
                let others = own.map(|(consumer, one)| (*consumer, outcome.position(class, one))).collect::<Vec<_>>();
                (outcome.position(class, &progress.common), others)
            }
        };
        if from.is_none() && others.iter().all(|(_, from)| from.is_none()) {
            return None;
        }
        let is_everybody = row.readers() == (0..row.group.n_consumers);
        let consumers = if is_everybody {
            let key = (row.group_index, class as u8);
            Arc::clone(self.shared.entry(key).or_insert_with(|| ranges(members)))
        } else {
            ranges(members)
        };
        let read = PartitionAttempt { partition: row.partition, attempt };
        Some(ReadRow { group: row.group_index, read, from, consumers, others, suspect_until: None, must_match_digest: false })
    }
}

/// Ascending numbers as ranges.
fn ranges(list: &[u32]) -> Arc<[Range<u32>]> {
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for index in list {
        match ranges.last_mut() {
            Some(last) if last.end == *index => last.end = index + 1,
            _ => ranges.push(*index..index + 1),
        }
    }
    ranges.into()
}

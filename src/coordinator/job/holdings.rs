//! What nodes say they hold of the job. Not journaled: nodes say it again.

use super::super::calls::{EventSubject, Held, HeldKey, HeldState, NodePlace, RecoveryEventKind};
use super::{Copy, JobState, Place};
use crate::recovery::graph::{DatasetIndex, PartitionRef};
use crate::recovery::graph_spec::Readable;
use crate::recovery::snapshot::PartitionStatus;
use std::time::Duration;
use store_api::AttemptId;

/// What an announcement comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::coordinator) enum Announced {
    /// It is, or is not, what the job reads.
    Noted,
    /// Something newer has taken its place: give it back.
    Stale,
}

impl JobState {
    /// Takes in what a node holds of a partition.
    pub(in crate::coordinator) fn announce(&mut self, key: &HeldKey, held: &Held, from: &NodePlace) -> Announced {
        let Some(dataset) = self.dataset(&key.dataset) else { return Announced::Noted };
        let Ok(producer) = u32::try_from(key.partition.get()) else { return Announced::Noted };
        let partition = PartitionRef { dataset: DatasetIndex::new(dataset), producer };
        let Some(task) = self.graph.producer_of(partition) else { return Announced::Noted };
        let last = self.record(task).and_then(|record| record.last_attempt);
        match held.state {
            HeldState::Open | HeldState::Sealed => self.announce_bytes(partition, last, held, from),
            HeldState::Lost | HeldState::Absent => self.announce_end(partition, held, from, PartitionStatus::Lost),
            HeldState::Corrupt => self.announce_end(partition, held, from, PartitionStatus::Corrupt),
        }
    }

    fn announce_bytes(&mut self, partition: PartitionRef, last: Option<AttemptId>, held: &Held, from: &NodePlace) -> Announced {
        let is_sealed = held.state == HeldState::Sealed;
        let place = if held.is_shared { Place::Shared } else { Place::Node(from.node.clone(), from.life) };
        let announced = Copy { attempt: held.attempt, is_sealed, bytes: held.bytes, status: PartitionStatus::Available, place };
        let generation = last.map_or(0, |last| last.generation);
        let Some(slot) = self.copy_slot(partition) else { return Announced::Noted };
        match slot {
            None if held.attempt.generation < generation => return Announced::Stale,
            None => *slot = Some(announced),
            Some(known) if known.attempt == held.attempt => {
                // Its task has finished: the seal is on its way.
                if known.is_sealed && !is_sealed {
                    return Announced::Noted;
                }
                // Two nodes may hold a copy: the one that is read stays the one that is read.
                let is_elsewhere = matches!(&known.place, Place::Node(node, _) if *node != from.node);
                if !(is_elsewhere && known.status == PartitionStatus::Available) {
                    *known = announced;
                }
            }
            Some(known) if held.attempt < known.attempt && held.attempt.generation < known.attempt.generation => return Announced::Stale,
            Some(known) if known.is_sealed && held.attempt.generation == known.attempt.generation => return Announced::Noted,
            Some(known) if held.attempt > known.attempt || is_sealed => *known = announced,
            Some(_) => {}
        }
        Announced::Noted
    }

    fn announce_end(&mut self, partition: PartitionRef, held: &Held, from: &NodePlace, status: PartitionStatus) -> Announced {
        let Some(Some(known)) = self.copy_slot(partition) else { return Announced::Noted };
        let is_meant = match &known.place {
            Place::Node(node, _) => *node == from.node,
            Place::Shared => held.state != HeldState::Absent && held.is_shared,
            Place::Unknown => false,
        };
        let is_current = held.state == HeldState::Absent || known.attempt == held.attempt;
        if !is_meant || !is_current || matches!(known.status, PartitionStatus::Lost | PartitionStatus::Corrupt) {
            return Announced::Noted;
        }
        known.status = status;
        self.note_loss(partition);
        Announced::Noted
    }

    fn note_loss(&mut self, partition: PartitionRef) {
        self.needs_plan = true;
        let dataset = self.graph.dataset(partition.dataset).map(|dataset| (dataset.id.clone(), u64::from(partition.producer)));
        self.events.push(RecoveryEventKind::PartitionLost, EventSubject { partition: dataset, ..EventSubject::default() });
    }

    /// Whether a change at a node may have taken bytes of this job with it.
    pub(in crate::coordinator) fn has_copies_on(&self, node: &store_api::NodeId) -> bool {
        let is_there = |copy: &Copy| matches!(&copy.place, Place::Node(at, _) if at == node);
        self.partitions.iter().flatten().flatten().any(is_there)
    }

    /// The next look of the upkeep plans, whatever happened.
    pub(in crate::coordinator) fn request_plan(&mut self) {
        self.needs_plan = true;
    }

    /// The outputs of a task that runs and may be read meanwhile: somebody may have read of them
    /// before any node announces them.
    pub(super) fn expect_open_outputs(&mut self, task: crate::recovery::graph::TaskIndex, attempt: AttemptId) {
        let outputs: Vec<PartitionRef> = self.graph.outputs_of(task).collect();
        for partition in outputs {
            let properties = self.graph.dataset(partition.dataset).map(|dataset| dataset.properties.readable);
            if properties == Some(Readable::WhileProduced)
                && let Some(slot) = self.copy_slot(partition).filter(|slot| slot.is_none())
            {
                *slot = Some(Copy { attempt, is_sealed: false, bytes: 0, status: PartitionStatus::Available, place: Place::Unknown });
            }
        }
    }

    /// The outputs of a task that has finished: what no node has announced as sealed is suspect
    /// until one does.
    pub(super) fn expect_outputs(&mut self, task: crate::recovery::graph::TaskIndex, attempt: AttemptId, now: Duration) {
        let outputs: Vec<PartitionRef> = self.graph.outputs_of(task).collect();
        for partition in outputs {
            let expected =
                Copy { attempt, is_sealed: true, bytes: 0, status: PartitionStatus::Suspect { since: now }, place: Place::Unknown };
            let Some(slot) = self.copy_slot(partition) else { continue };
            match slot {
                Some(known) if known.attempt == attempt && known.is_sealed => continue,
                Some(known) if known.attempt == attempt => *known = Copy { place: known.place.clone(), bytes: known.bytes, ..expected },
                Some(_) | None => *slot = Some(expected),
            }
            self.suspect_at(now);
        }
    }

    /// Whether what a plan reads again answers now.
    pub(super) fn answers(&self, partition: PartitionRef, nodes: &super::NodesNow) -> bool {
        let Some(copy) = self.copy(partition) else { return true };
        if copy.status != PartitionStatus::Available {
            return false;
        }
        match &copy.place {
            Place::Shared => true,
            // Its producer has still to open it: its readers wait for that by themselves.
            Place::Unknown => !copy.is_sealed,
            Place::Node(node, life) => nodes.is_up(node, *life),
        }
    }
}

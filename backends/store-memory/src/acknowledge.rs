//! Floors: acknowledgements and completed checkpoints.
//!
//! | retention | the floor moves |
//! |---|---|
//! | `UntilAcknowledged` | with the lowest acknowledgement |
//! | `BestEffort` | only when memory is needed, over bytes that every consumer has read or acknowledged |
//! | `SinceCheckpoint` | with the lowest need of the last completed checkpoint |

use crate::attempt::{Attempt, Subpartition};
use crate::core::Core;
use crate::error::Subject;
use std::sync::Arc;
use store_api::{
    AcknowledgeRequest, CheckpointRequest, FloorReport, Offset, Operation, Retention, StoreError, StoreErrorKind, SubpartitionIndex,
};

/// A position of a consumer: number of its group, logical subpartition, offset.
type Position = (usize, SubpartitionIndex, Offset);

impl Core {
    /// See [`store_api::PartitionStore::acknowledge`].
    pub(crate) async fn take_acknowledgement(&self, request: AcknowledgeRequest) -> Result<FloorReport, StoreError> {
        let subject = Subject::new(Operation::Acknowledge, &request.attempt);
        self.check_running(Operation::Acknowledge, &request.attempt)?;
        let attempt = self.registry.live(subject)?;
        let group = attempt.group(&request.group).ok_or_else(|| subject.refuse(StoreErrorKind::NotFound))?;
        let positions: Vec<Position> = request.offsets.iter().map(|(index, offset)| (group, *index, *offset)).collect();
        let moves = attempt.retention != Retention::SinceCheckpoint;
        let report = self.advance(&attempt, &positions, moves, subject)?;
        self.remove_condemned().await;
        Ok(report)
    }

    /// See [`store_api::PartitionStore::complete_checkpoint`].
    pub(crate) async fn take_checkpoint(&self, request: CheckpointRequest) -> Result<FloorReport, StoreError> {
        let subject = Subject::new(Operation::Checkpoint, &request.attempt);
        self.check_running(Operation::Checkpoint, &request.attempt)?;
        let attempt = self.registry.live(subject)?;
        if attempt.retention != Retention::SinceCheckpoint {
            return Err(subject.refuse(StoreErrorKind::Unsupported { reason: "only since_checkpoint datasets take checkpoints" }));
        }
        let mut positions: Vec<Position> = Vec::with_capacity(request.need.len());
        for (name, index, offset) in &request.need {
            let group = attempt.group(name).ok_or_else(|| subject.refuse(StoreErrorKind::NotFound))?;
            positions.push((group, *index, *offset));
        }
        let report = {
            let mut newest = attempt.checkpoint.lock();
            // A repeat brings nothing new, and an older one came late.
            let is_newer = newest.is_none_or(|newest| request.checkpoint > newest);
            let report = self.advance(&attempt, &positions, is_newer, subject)?;
            *newest = (*newest).max(Some(request.checkpoint));
            report
        };
        self.remove_condemned().await;
        Ok(report)
    }

    /// Checks all positions, then takes them (`moves`) or only reports the floors.
    fn advance(
        &self,
        attempt: &Arc<Attempt>,
        positions: &[Position],
        moves: bool,
        subject: Subject<'_>,
    ) -> Result<FloorReport, StoreError> {
        let targets = check_positions(attempt, positions, subject)?;
        let life = attempt.life();
        life.check_alive(subject)?;
        let mut report = FloorReport::default();
        for ((group, logical, offset), subpartition) in positions.iter().zip(&targets) {
            let (floor, dropped) = subpartition.change(|buffer, consumers| {
                let mut dropped = None;
                if moves {
                    consumers.advance((*group, logical.get()), *offset);
                    match attempt.retention {
                        Retention::BestEffort => buffer.mark_acknowledged(consumers.lowest()),
                        Retention::UntilAcknowledged | Retention::SinceCheckpoint => {
                            let before = buffer.floor();
                            let let_go = buffer.advance_floor(consumers.lowest());
                            dropped = (buffer.floor() > before).then_some(let_go);
                        }
                    }
                }
                (buffer.floor(), dropped)
            });
            if let Some(dropped) = dropped {
                report.freed_bytes = report.freed_bytes.saturating_add(dropped.bytes());
                attempt.account.note_moved(self.clock.monotonic());
                attempt.note_room();
                // Readers below the new floor must learn of it.
                subpartition.grown.notify_waiters();
            }
            report.floors.push((*logical, floor));
        }
        drop(life);
        if attempt.retention == Retention::BestEffort && self.demands.is_any() {
            self.kick.notify_one();
        }
        // Of several positions of one subpartition the last one saw the floor after all of them.
        report.floors.reverse();
        report.floors.sort_by_key(|(index, _)| *index);
        report.floors.dedup_by_key(|(index, _)| *index);
        Ok(report)
    }
}

/// The subpartitions that positions are about. Errors: `NoSuchSubpartition`, `BeyondEnd`; nothing
/// has been taken then.
fn check_positions(attempt: &Attempt, positions: &[Position], subject: Subject<'_>) -> Result<Vec<Arc<Subpartition>>, StoreError> {
    let count = attempt.spec.n_subpartitions;
    let mut targets = Vec::with_capacity(positions.len());
    for (_, logical, offset) in positions {
        if logical.get() >= count {
            return Err(subject.refuse_at(StoreErrorKind::NoSuchSubpartition { count }, *logical));
        }
        let subpartition = attempt.subpartition(attempt.stored(*logical), subject)?;
        let tail = subpartition.ask(|buffer, _| buffer.tail());
        if *offset > tail {
            return Err(subject.refuse_at(StoreErrorKind::BeyondEnd { end: tail }, *logical));
        }
        targets.push(subpartition);
    }
    Ok(targets)
}

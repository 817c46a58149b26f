//! Fencing: which reports are believed, before anything is planned.
//!
//! [`fence`] takes a snapshot and reports and gives a new snapshot, together with one verdict for
//! each report. Every report is judged against the snapshot that came in, not against what earlier
//! reports of the same batch did to it, so that the order within a batch makes no difference. The
//! one exception is a race that somebody must win: of two seals of one partition in a batch, the
//! first in the list is the first.

use super::graph::{PartitionRef, TaskIndex};
use super::plan::{Cancel, PartitionAttempt};
use super::snapshot::{AttemptRecord, GlobalFailure, Location, NodeStanding, PartitionRecord, PartitionStatus, Snapshot, TaskState};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use store_api::ids::{AttemptId, NodeLife};

/// How bad a reader found a partition to be. Every error of a store is mapped to one of these; what
/// is not known is [`Trouble::Unreachable`], so that it ends at the latest with the grace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Trouble {
    /// Broken off in the middle, or busy: read on from the same offset.
    Transient,
    /// Could not be reached.
    Unreachable,
    /// The store says it is not there any more.
    Gone,
    /// It is there and its digest is wrong.
    Corrupt,
}

/// Why an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureCause {
    /// Its own fault, or its worker's.
    Own,
    /// An input failed it. The failure is counted for the input's producer.
    Input {
        /// The input.
        partition: PartitionRef,
        /// The attempt of it that was being read.
        read: AttemptId,
        /// What was wrong.
        trouble: Trouble,
    },
    /// A writer waited in vain for room in an output: readers do not acknowledge, or there is no
    /// space for what must be kept. A restart may meet the same again; an operator should know.
    RetentionExhausted {
        /// The output.
        partition: PartitionRef,
    },
    /// A restart cannot help.
    Unrecoverable,
}

/// What somebody says about one attempt of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Speaker {
    /// The task.
    pub task: TaskIndex,
    /// The attempt that speaks, or that is spoken of.
    pub attempt: AttemptId,
    /// The coordinator that the speaker believes in.
    pub coordinator_epoch: u64,
}

/// Something that was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Report {
    /// An attempt failed.
    AttemptFailed {
        /// Which.
        of: Speaker,
        /// Why.
        cause: FailureCause,
    },
    /// An attempt ended well.
    AttemptFinished {
        /// Which.
        of: Speaker,
    },
    /// A reader that goes on living has trouble with an input.
    InputTrouble {
        /// The reader.
        reader: Speaker,
        /// The input.
        partition: PartitionRef,
        /// The attempt of it that was being read.
        read: AttemptId,
        /// What is wrong.
        trouble: Trouble,
    },
    /// A store says that a partition it held is gone or damaged, without anybody reading it.
    PartitionTrouble {
        /// The partition.
        partition: PartitionRef,
        /// The attempt that was held.
        held: AttemptId,
        /// What is wrong.
        trouble: Trouble,
    },
    /// A partition answers.
    PartitionAnswers {
        /// The partition.
        partition: PartitionRef,
        /// The attempt that is there.
        held: AttemptId,
        /// Where.
        location: Location,
    },
    /// An attempt asks to seal its partition.
    Seal {
        /// The partition.
        partition: PartitionRef,
        /// The attempt that asks.
        attempt: AttemptId,
        /// Where the bytes are.
        location: Location,
    },
    /// A node is gone.
    NodeLost {
        /// Its place in the snapshot.
        node: u32,
        /// The life that ended.
        life: NodeLife,
    },
    /// A node does not answer.
    NodeUnreachable {
        /// Its place in the snapshot.
        node: u32,
        /// The life that does not answer.
        life: NodeLife,
    },
    /// A worker is gone.
    WorkerLost {
        /// Its place in the snapshot.
        worker: u32,
        /// The life that ended.
        life: NodeLife,
    },
    /// A re-run wrote something else than the run before it.
    ReplayDiffers {
        /// The attempt that re-ran.
        of: Speaker,
    },
    /// Something that concerns the whole job failed.
    Global(GlobalFailure),
}

/// Why a report changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// It was sent to an earlier coordinator.
    OldCoordinator,
    /// It speaks of an attempt that is not alive: superseded, or never given out.
    AttemptNotCurrent,
    /// It speaks of a task that has finished: what reads its output failed, not it.
    AlreadyFinished,
    /// It speaks of another attempt of the partition than the current one. The reader only has to
    /// look the partition up again.
    PartitionNotCurrent,
    /// It speaks of a task, partition, node or worker that the job does not have.
    Unknown,
    /// It speaks of a former life of a node or worker.
    FormerLife,
    /// The bytes were given back; they do not come back.
    Released,
    /// It was there before.
    Duplicate,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportVerdict {
    /// It is in the new snapshot.
    Accepted,
    /// The attempt is out, but another one of the task lives: the task has not failed.
    AttemptDropped,
    /// The end of an attempt that was being stopped: it counts as stopped.
    CountsAsCancelled,
    /// Read on from the same offset; nobody restarts for it.
    ReadOn,
    /// Another attempt was sealed before.
    SealConflict {
        /// That attempt.
        winner: AttemptId,
    },
    /// It changes nothing.
    Dropped(DropReason),
}

/// A snapshot after its reports.
#[derive(Debug, Clone)]
pub struct Fenced {
    /// What is there now.
    pub snapshot: Snapshot,
    /// What became of each report, in their order.
    pub verdicts: Vec<ReportVerdict>,
    /// Bytes of attempts that lost or were dropped, to be given back; ascending.
    pub release: Vec<PartitionAttempt>,
    /// Attempts that run on although another one of their task finished first; to be stopped.
    pub cancel: Vec<Cancel>,
    /// Tasks that the failures are counted for, ascending: the producer, where an input failed its
    /// reader.
    pub charged: Vec<TaskIndex>,
    /// Outputs whose writers failed for want of room, ascending: to be reported, not waited for.
    pub exhausted: Vec<PartitionRef>,
}

/// What the accepted reports amount to. Sets, so that order makes no difference.
#[derive(Default)]
struct Effects {
    failed: BTreeSet<(TaskIndex, AttemptId)>,
    finished: BTreeMap<TaskIndex, AttemptId>,
    cancelled: BTreeSet<(TaskIndex, AttemptId)>,
    trouble: BTreeMap<PartitionRef, Trouble>,
    answers: BTreeMap<PartitionRef, Location>,
    seals: BTreeMap<PartitionRef, (AttemptId, Location)>,
    lost_nodes: BTreeSet<u32>,
    unreachable_nodes: BTreeSet<u32>,
    lost_workers: BTreeSet<u32>,
    differing: BTreeSet<TaskIndex>,
    global: Option<GlobalFailure>,
    release: BTreeSet<PartitionAttempt>,
    charged: BTreeSet<TaskIndex>,
    exhausted: BTreeSet<PartitionRef>,
}

/// Judges reports against a snapshot and carries the believed ones into a new one. Pure.
#[must_use]
pub fn fence(snapshot: &Snapshot, reports: &[Report]) -> Fenced {
    let mut effects = Effects::default();
    let mut verdicts: Vec<ReportVerdict> = Vec::with_capacity(reports.len());
    let mut seen = HashSet::new();
    for report in reports {
        let is_repeated = !seen.insert(report);
        let verdict = judge(snapshot, report, &mut effects);
        let is_counted = is_repeated && !matches!(verdict, ReportVerdict::Dropped(_) | ReportVerdict::SealConflict { .. });
        verdicts.push(if is_counted { ReportVerdict::Dropped(DropReason::Duplicate) } else { verdict });
    }
    let (charged, exhausted) = (effects.charged.iter().copied().collect(), effects.exhausted.iter().copied().collect());
    let mut after = snapshot.clone();
    let (release, cancel) = apply(&mut after, effects);
    for (report, verdict) in reports.iter().zip(&mut verdicts) {
        settle_failure(&after, report, verdict);
    }
    Fenced { snapshot: after, verdicts, release: release.into_iter().collect(), cancel, charged, exhausted }
}

/// A failure is only that of its task when no other attempt is left after the whole batch.
fn settle_failure(after: &Snapshot, report: &Report, verdict: &mut ReportVerdict) {
    if let Report::AttemptFailed { of, .. } = report
        && *verdict == ReportVerdict::Accepted
        && after.task(of.task).is_some_and(|task| task.state.is_live() || task.state == TaskState::Finished)
    {
        *verdict = ReportVerdict::AttemptDropped;
    }
}

fn judge(snapshot: &Snapshot, report: &Report, effects: &mut Effects) -> ReportVerdict {
    match *report {
        Report::AttemptFailed { of, cause } => judge_failed(snapshot, of, cause, effects),
        Report::AttemptFinished { of } => judge_finished(snapshot, of, effects),
        Report::InputTrouble { reader, partition, read, trouble } => match check_speaker(snapshot, reader) {
            Err(reason) => ReportVerdict::Dropped(reason),
            Ok(_) => judge_trouble(snapshot, partition, read, trouble, effects),
        },
        Report::PartitionTrouble { partition, held, trouble } => judge_trouble(snapshot, partition, held, trouble, effects),
        Report::PartitionAnswers { partition, held, location } => judge_answer(snapshot, partition, held, location, effects),
        Report::Seal { partition, attempt, location } => judge_seal(snapshot, partition, attempt, location, effects),
        Report::NodeLost { node, life } => judge_node(snapshot, node, life, &mut effects.lost_nodes),
        Report::NodeUnreachable { node, life } => judge_node(snapshot, node, life, &mut effects.unreachable_nodes),
        Report::WorkerLost { worker, life } => {
            let current = snapshot.inner.workers.get(worker as usize).map(|worker| worker.life);
            judge_life(current, life, worker, &mut effects.lost_workers)
        }
        Report::ReplayDiffers { of } => match check_speaker(snapshot, of) {
            Err(DropReason::AlreadyFinished) | Ok(_) => {
                effects.differing.insert(of.task);
                ReportVerdict::Accepted
            }
            Err(reason) => ReportVerdict::Dropped(reason),
        },
        Report::Global(failure) => {
            let is_worse = effects.global != Some(GlobalFailure::Unrecoverable);
            effects.global = if is_worse { Some(failure) } else { effects.global };
            ReportVerdict::Accepted
        }
    }
}

/// The record of a task of which this attempt is alive.
fn check_speaker(snapshot: &Snapshot, speaker: Speaker) -> Result<AttemptRecord, DropReason> {
    if speaker.coordinator_epoch < snapshot.inner.coordinator_epoch {
        return Err(DropReason::OldCoordinator);
    }
    let task = snapshot.task(speaker.task).ok_or(DropReason::Unknown)?;
    let current = task.attempts.iter().find(|attempt| attempt.attempt == speaker.attempt);
    match current {
        None => Err(DropReason::AttemptNotCurrent),
        Some(_) if task.state == TaskState::Finished => Err(DropReason::AlreadyFinished),
        Some(attempt) => Ok(*attempt),
    }
}

fn judge_failed(snapshot: &Snapshot, of: Speaker, cause: FailureCause, effects: &mut Effects) -> ReportVerdict {
    if let Err(reason) = check_speaker(snapshot, of) {
        return ReportVerdict::Dropped(reason);
    }
    effects.failed.insert((of.task, of.attempt));
    match cause {
        FailureCause::Own => {
            effects.charged.insert(of.task);
        }
        FailureCause::RetentionExhausted { partition } => {
            effects.charged.insert(of.task);
            effects.exhausted.insert(partition);
        }
        FailureCause::Unrecoverable => {
            effects.charged.insert(of.task);
            effects.global = Some(GlobalFailure::Unrecoverable);
        }
        FailureCause::Input { partition, read, trouble } => {
            let is_its_fault = !matches!(judge_trouble(snapshot, partition, read, trouble, effects), ReportVerdict::Dropped(_));
            let producer = snapshot.graph().producer_of(partition).filter(|_| is_its_fault);
            effects.charged.insert(producer.unwrap_or(of.task));
        }
    }
    ReportVerdict::Accepted
}

fn judge_finished(snapshot: &Snapshot, of: Speaker, effects: &mut Effects) -> ReportVerdict {
    match check_speaker(snapshot, of) {
        Err(DropReason::AlreadyFinished) => ReportVerdict::Dropped(DropReason::Duplicate),
        Err(reason) => ReportVerdict::Dropped(reason),
        Ok(_) if snapshot.state(of.task) == TaskState::Cancelling => {
            effects.cancelled.insert((of.task, of.attempt));
            ReportVerdict::CountsAsCancelled
        }
        Ok(_) => {
            let first = effects.finished.entry(of.task).or_insert(of.attempt);
            *first = (*first).min(of.attempt);
            ReportVerdict::Accepted
        }
    }
}

fn current_partition(snapshot: &Snapshot, partition: PartitionRef, attempt: AttemptId) -> Result<&PartitionRecord, DropReason> {
    let record = snapshot.partition(partition).ok_or(DropReason::Unknown)?;
    match record.status {
        _ if record.attempt != attempt => Err(DropReason::PartitionNotCurrent),
        PartitionStatus::Released => Err(DropReason::Released),
        PartitionStatus::Available | PartitionStatus::Suspect { .. } | PartitionStatus::Lost | PartitionStatus::Corrupt => Ok(record),
    }
}

fn judge_trouble(snapshot: &Snapshot, partition: PartitionRef, read: AttemptId, trouble: Trouble, effects: &mut Effects) -> ReportVerdict {
    if let Err(reason) = current_partition(snapshot, partition, read) {
        return ReportVerdict::Dropped(reason);
    }
    if trouble == Trouble::Transient {
        return ReportVerdict::ReadOn;
    }
    let worst = effects.trouble.entry(partition).or_insert(trouble);
    *worst = (*worst).max(trouble);
    ReportVerdict::Accepted
}

fn judge_answer(snapshot: &Snapshot, partition: PartitionRef, held: AttemptId, location: Location, effects: &mut Effects) -> ReportVerdict {
    match current_partition(snapshot, partition, held) {
        Err(reason) => {
            // Bytes of an attempt that no longer counts came back with their node.
            let is_stale =
                snapshot.partition(partition).is_some_and(|record| held < record.attempt || record.status == PartitionStatus::Released);
            if is_stale {
                effects.release.insert(PartitionAttempt { partition, attempt: held });
            }
            ReportVerdict::Dropped(reason)
        }
        Ok(_) if !is_present(snapshot, location) => ReportVerdict::Dropped(DropReason::FormerLife),
        Ok(_) => {
            effects.answers.insert(partition, location);
            ReportVerdict::Accepted
        }
    }
}

fn is_present(snapshot: &Snapshot, location: Location) -> bool {
    match location {
        Location::Shared => true,
        Location::Node { node, life } => snapshot.inner.nodes.get(node as usize).is_some_and(|node| node.life == life),
    }
}

fn judge_seal(
    snapshot: &Snapshot,
    partition: PartitionRef,
    attempt: AttemptId,
    location: Location,
    effects: &mut Effects,
) -> ReportVerdict {
    let named = PartitionAttempt { partition, attempt };
    let Some(record) = snapshot.partition(partition) else { return ReportVerdict::Dropped(DropReason::Unknown) };
    if record.status == PartitionStatus::Released {
        effects.release.insert(named);
        return ReportVerdict::Dropped(DropReason::Released);
    }
    if attempt.generation != record.attempt.generation || !is_present(snapshot, location) {
        if attempt.generation < record.attempt.generation {
            effects.release.insert(named);
        }
        return ReportVerdict::Dropped(DropReason::PartitionNotCurrent);
    }
    let winner = if record.is_sealed { Some(record.attempt) } else { effects.seals.get(&partition).map(|(attempt, _)| *attempt) };
    match winner {
        Some(winner) if winner == attempt => ReportVerdict::Dropped(DropReason::Duplicate),
        Some(winner) => {
            effects.release.insert(named);
            ReportVerdict::SealConflict { winner }
        }
        None => {
            effects.seals.insert(partition, (attempt, location));
            ReportVerdict::Accepted
        }
    }
}

fn judge_node(snapshot: &Snapshot, node: u32, life: NodeLife, accepted: &mut BTreeSet<u32>) -> ReportVerdict {
    judge_life(snapshot.inner.nodes.get(node as usize).map(|node| node.life), life, node, accepted)
}

fn judge_life(current: Option<NodeLife>, life: NodeLife, place: u32, accepted: &mut BTreeSet<u32>) -> ReportVerdict {
    match current {
        None => ReportVerdict::Dropped(DropReason::Unknown),
        Some(current) if current != life => ReportVerdict::Dropped(DropReason::FormerLife),
        Some(_) => {
            accepted.insert(place);
            ReportVerdict::Accepted
        }
    }
}

/// Carries the effects in, and adds what they leave behind to what is given back.
fn apply(snapshot: &mut Snapshot, effects: Effects) -> (BTreeSet<PartitionAttempt>, Vec<Cancel>) {
    let (now, mut release, mut cancel) = (snapshot.inner.now, effects.release, Vec::new());
    for (partition, (attempt, location)) in effects.seals {
        if let Some(record) = snapshot.partition_mut(partition) {
            (record.attempt, record.location, record.is_sealed) = (attempt, location, true);
        }
    }
    for (partition, location) in effects.answers {
        if let Some(record) = snapshot.partition_mut(partition) {
            (record.status, record.location) = (PartitionStatus::Available, location);
        }
    }
    for (partition, trouble) in effects.trouble {
        if let Some(record) = snapshot.partition_mut(partition) {
            record.status = worse(record.status, trouble, now);
        }
    }
    for (task, attempt) in &effects.finished {
        cancel.extend(finish(snapshot, *task, *attempt, &mut release));
    }
    for (task, attempt) in effects.failed.iter().chain(&effects.cancelled) {
        if effects.finished.get(task) != Some(attempt) {
            drop_attempt(snapshot, *task, *attempt, effects.cancelled.contains(&(*task, *attempt)), &mut release);
        }
    }
    for node in &effects.unreachable_nodes {
        if let Some(node) = snapshot.inner.nodes.get_mut(*node as usize).filter(|node| node.standing == NodeStanding::Up) {
            node.standing = NodeStanding::Suspect { since: now };
        }
    }
    for node in &effects.lost_nodes {
        if let Some(node) = snapshot.inner.nodes.get_mut(*node as usize) {
            node.standing = NodeStanding::Lost;
        }
    }
    for worker in &effects.lost_workers {
        if let Some(worker) = snapshot.inner.workers.get_mut(*worker as usize) {
            worker.is_lost = true;
        }
    }
    for task in &effects.differing {
        if let Some(record) = snapshot.task_mut(*task) {
            record.has_replayed_differently = true;
        }
    }
    snapshot.inner.global_failure = match (snapshot.inner.global_failure, effects.global) {
        (Some(GlobalFailure::Unrecoverable), _) => Some(GlobalFailure::Unrecoverable),
        (before, after) => after.or(before),
    };
    cancel.retain(|loser| !effects.failed.contains(&(loser.task, loser.attempt)));
    (release, cancel)
}

/// Lets an attempt win its task. The others are to be stopped, and what they left is given back.
fn finish(snapshot: &mut Snapshot, task: TaskIndex, winner: AttemptId, release: &mut BTreeSet<PartitionAttempt>) -> Vec<Cancel> {
    let Some(record) = snapshot.task_mut(task) else { return Vec::new() };
    record.state = TaskState::Finished;
    let losers = record.attempts.extract_if(.., |one| one.attempt != winner);
    let losers: Vec<Cancel> = losers.map(|one| Cancel { task, attempt: one.attempt }).collect();
    for loser in &losers {
        let left = unsealed_outputs(snapshot, task, loser.attempt);
        release.extend(left.into_iter().map(|partition| PartitionAttempt { partition, attempt: loser.attempt }));
    }
    losers
}

/// What is lost does not become merely unreachable again.
fn worse(status: PartitionStatus, trouble: Trouble, now: std::time::Duration) -> PartitionStatus {
    match (status, trouble) {
        (PartitionStatus::Lost | PartitionStatus::Corrupt | PartitionStatus::Released, _) | (_, Trouble::Transient) => status,
        (PartitionStatus::Suspect { since }, Trouble::Unreachable) => PartitionStatus::Suspect { since },
        (PartitionStatus::Available, Trouble::Unreachable) => PartitionStatus::Suspect { since: now },
        (PartitionStatus::Available | PartitionStatus::Suspect { .. }, Trouble::Gone) => PartitionStatus::Lost,
        (PartitionStatus::Available | PartitionStatus::Suspect { .. }, Trouble::Corrupt) => PartitionStatus::Corrupt,
    }
}

/// Takes an attempt out. When it was the last one its task fails, and what becomes of its output is
/// the plan's to say; otherwise what it left unsealed is given back and the task goes on.
fn drop_attempt(snapshot: &mut Snapshot, task: TaskIndex, attempt: AttemptId, was_stopped: bool, release: &mut BTreeSet<PartitionAttempt>) {
    let Some(record) = snapshot.task_mut(task) else { return };
    record.attempts.retain(|one| one.attempt != attempt);
    let Some(survivor) = record.attempts.first().map(|one| one.attempt) else {
        let stopped = was_stopped || record.state == TaskState::Cancelling;
        record.state = if stopped { TaskState::Cancelled } else { TaskState::Failed };
        return;
    };
    for partition in unsealed_outputs(snapshot, task, attempt) {
        release.insert(PartitionAttempt { partition, attempt });
        if let Some(record) = snapshot.partition_mut(partition).filter(|record| record.attempt == attempt) {
            record.attempt = survivor;
        }
    }
}

/// Outputs of a task that an attempt of it may have begun and did not get sealed.
fn unsealed_outputs(snapshot: &Snapshot, task: TaskIndex, attempt: AttemptId) -> Vec<PartitionRef> {
    let is_left =
        |partition: &PartitionRef| snapshot.partition(*partition).is_some_and(|record| !record.is_sealed || record.attempt != attempt);
    snapshot.graph().outputs_of(task).filter(is_left).collect()
}

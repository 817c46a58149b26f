//! What a plan says.
//!
//! A plan describes itself: whoever carries it out needs the graph to name tasks, but not the
//! snapshot it was made from. Lists are in ascending order and the same snapshot gives the same
//! plan, so that two plans can be compared byte for byte.

use super::closure::Reason;
use super::cost::Cost;
use super::graph::{DatasetIndex, GroupIndex, JobGraph, PartitionRef, TaskIndex};
use super::policy::Strategy;
use super::snapshot::Snapshot;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use store_api::ids::{AttemptId, JobEpoch, JobId, JobIncarnation};
use store_api::offset::Offset;

/// Why a job is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GiveUpReason {
    /// A restart cannot help.
    Unrecoverable,
    /// The restart budget is used up.
    NoBudget,
}

/// A task outside the failed ones that would have to restart, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Obstacle {
    /// The task.
    pub task: TaskIndex,
    /// Why.
    pub reason: Reason,
}

/// Bytes that lie between where a consumer begins and where its producer begins to write anew, and
/// that no older attempt holds any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingPrefix {
    /// The partition.
    pub partition: PartitionRef,
    /// As a member of which group it is read.
    pub group: GroupIndex,
    /// First byte that is missing.
    pub from: Offset,
    /// First byte that is written anew.
    pub rewind: Offset,
}

/// What comes out of planning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing has to restart.
    Nothing,
    /// The actions of the plan bring the job back.
    Restart,
    /// Tasks whose effects are published would have to run again. Nothing is carried out; an
    /// operator decides.
    Inconsistent {
        /// Those tasks.
        tasks: Vec<TaskIndex>,
    },
    /// The job fails for good.
    GiveUp(GiveUpReason),
    /// The failed tasks alone do not suffice, and the policy allows no more.
    NotIndividuallyRecoverable,
    /// The restore point cannot be used: bytes between need and rewind are held by nobody. An older
    /// restore point may do.
    RestorePointRejected {
        /// What is missing.
        missing: Vec<MissingPrefix>,
    },
}

/// A partition as one attempt wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartitionAttempt {
    /// The partition.
    pub partition: PartitionRef,
    /// The attempt.
    pub attempt: AttemptId,
}

/// A task that runs again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart {
    /// The task.
    pub task: TaskIndex,
    /// Its new attempt. Its generation is above every one of the task before it, so that everything
    /// older is fenced, sealed or not.
    pub attempt: AttemptId,
}

/// An attempt to stop. Carried out when it is acknowledged or its worker is known to be gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cancel {
    /// The task.
    pub task: TaskIndex,
    /// The attempt.
    pub attempt: AttemptId,
}

/// Why an output of a restarted task is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepReason {
    /// The task repeats itself, and this output is whole.
    Identical,
    /// It was handed out of the job.
    Promoted,
}

/// An output of a restarted task that is neither released nor written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// What is kept.
    pub kept: PartitionAttempt,
    /// Why.
    pub reason: KeepReason,
}

/// An older attempt of which the beginning is still read: bytes from `at` on go, the rest stays
/// until its readers have passed `at`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truncate {
    /// What is cut.
    pub cut: PartitionAttempt,
    /// For the readers of which group.
    pub group: GroupIndex,
    /// Where, for every reader that is not in `others`.
    pub at: Offset,
    /// Readers that differ, by their index.
    pub others: Vec<(u32, Offset)>,
}

/// Who reads one partition, and from where. One row stands for any number of consumers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadRow {
    /// As members of which group.
    pub group: GroupIndex,
    /// What is read, and which attempt of it.
    pub read: PartitionAttempt,
    /// First byte read, by every consumer that is not in `others`; `None`: they read nothing.
    pub from: Option<Offset>,
    /// The consumers, as ascending ranges of indices within their vertex. Shared between rows.
    pub consumers: Arc<[Range<u32>]>,
    /// Consumers that begin elsewhere, or (`None`) do not read; ascending.
    pub others: Vec<(u32, Option<Offset>)>,
    /// The bytes could not be reached. No reader of them may be started before they answer; when
    /// they have not at this time, on the clock of the snapshot, they count as lost and a new plan
    /// is due.
    pub suspect_until: Option<Duration>,
    /// The reader has bytes of the older attempt. The store serves it only if the digest of what
    /// was written anew below its offset equals the older one; otherwise the producer has replayed
    /// differently and a new plan is due.
    pub must_match_digest: bool,
}

/// One consumer of a [`ReadRow`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// Who reads.
    pub consumer: TaskIndex,
    /// What.
    pub read: PartitionAttempt,
    /// From where.
    pub from: Offset,
}

impl ReadRow {
    /// The consumers of the row one by one.
    pub fn reads<'a>(&'a self, graph: &'a JobGraph) -> impl Iterator<Item = Read> + 'a {
        let vertex = graph.group(self.group).map(|group| group.consumer);
        self.consumers.iter().flat_map(Clone::clone).filter_map(move |index| {
            let own = self.others.binary_search_by_key(&index, |(consumer, _)| *consumer).ok().and_then(|place| self.others.get(place));
            let from = own.map_or(self.from, |(_, from)| *from)?;
            Some(Read { consumer: graph.task(vertex?, index)?, read: self.read, from })
        })
    }
}

/// Tasks that start together, after everything in the waves before them that they wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wave {
    /// The tasks, producers before their consumers.
    pub tasks: Vec<TaskIndex>,
    /// Some of them wait for a seal by others of them: they need slots for all at once.
    pub has_inner_seal: bool,
}

/// What has to be done, in this order: cancel, commit of the new attempts, release and truncate,
/// pins, waves. Every action names attempts, so that repeating it changes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Actions {
    /// Tasks that run again.
    pub restart: Vec<Restart>,
    /// Attempts to stop.
    pub cancel: Vec<Cancel>,
    /// Outputs that are given back, after the plan is committed.
    pub release: Vec<PartitionAttempt>,
    /// Outputs of restarted tasks that stay.
    pub keep: Vec<Keep>,
    /// Outputs of which only the beginning stays.
    pub truncate: Vec<Truncate>,
    /// Restarted consumers that read partitions which are there.
    pub reread: Vec<ReadRow>,
    /// Consumers left alone whose producer runs again: they connect to the new attempt. Offsets are
    /// hints; a consumer knows best how far it is.
    pub resume: Vec<ReadRow>,
    /// The part of `reread` that must be pinned before the plan is committed. A refused pin leads to
    /// a new plan.
    pub pins: Vec<ReadRow>,
    /// The order in which to start.
    pub waves: Vec<Wave>,
}

/// What to do after a failure. Made by [`super::plan()`]; carried out by the coordinator, if the
/// graph's version is still the one it was made from.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The job.
    pub job: JobId,
    /// Which existence of the job id.
    pub incarnation: JobIncarnation,
    /// Ownership it was made under.
    pub job_epoch: JobEpoch,
    /// Version of the graph it was made from.
    pub graph_version: u64,
    /// The strategy that was followed: the policy's, or what it escalated to.
    pub strategy: Strategy,
    /// What came out.
    pub verdict: Verdict,
    /// What to do; empty unless the verdict is [`Verdict::Restart`].
    pub actions: Actions,
    /// Every task that restarts, or would, with the rule that brought it in.
    pub because: BTreeMap<TaskIndex, Reason>,
    /// Under the individual strategy: what stands against restarting the failed tasks alone.
    pub obstacles: Vec<Obstacle>,
    /// Whether the obstacles were ignored on demand: bytes may be missing or doubled there.
    pub is_lossy: bool,
    /// Promoted partitions that stay although their producer may write something else now: those
    /// outside the job and those inside may see two versions.
    pub mixed_versions: Vec<PartitionRef>,
    /// Promoted datasets of which a partition is gone.
    pub incomplete: Vec<DatasetIndex>,
    /// How long to wait before the waves start.
    pub delay: Duration,
    /// When suspects that somebody waits for turn into losses, if they do not answer: plan again
    /// then. On the clock of the snapshot.
    pub plan_again_at: Option<Duration>,
    /// What the plan costs.
    pub cost: Cost,
    /// What restarting everything would cost.
    pub cost_of_full: Cost,
}

impl Plan {
    /// Whether the plan may still be carried out: it was made from this version of this job, under
    /// its present owner. A plan that no longer fits is dropped, and a new one made.
    #[must_use]
    pub fn fits(&self, snapshot: &Snapshot) -> bool {
        let now = &snapshot.inner;
        (&self.job, self.incarnation, self.job_epoch, self.graph_version) == (&now.job, now.incarnation, now.job_epoch, now.graph_version)
    }

    /// The tasks that restart, or would, in ascending order.
    pub fn tasks(&self) -> impl Iterator<Item = TaskIndex> + '_ {
        self.because.keys().copied()
    }

    /// The chain of reasons that led to a task, from the task itself back to a failure or a loss.
    #[must_use]
    pub fn why(&self, task: TaskIndex) -> Vec<(TaskIndex, Reason)> {
        let (mut chain, mut next) = (Vec::new(), Some(task));
        // A reason names a task that came in earlier, so that the chain ends; the bound is a belt.
        while let Some((task, reason)) = next.and_then(|task| Some((task, *self.because.get(&task)?))) {
            chain.push((task, reason));
            next = match reason {
                Reason::Need { consumer, .. } => Some(consumer),
                Reason::Taint { producer, .. } => Some(producer),
                Reason::Gang { with } => Some(with),
                Reason::Failed | Reason::WorkerLost | Reason::Stopped | Reason::ReplayedDifferently | Reason::Everything => None,
            };
            if chain.len() >= self.because.len() {
                break;
            }
        }
        chain
    }
}

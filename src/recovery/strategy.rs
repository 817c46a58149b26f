//! From a snapshot to a plan: which set of tasks, by which strategy, and what follows from it.

use super::closure::{Closure, everything, failed_only, region};
use super::cost::cost_of;
use super::graph::{DatasetIndex, PartitionRef, TaskIndex};
use super::plan::{Actions, Cancel, GiveUpReason, Obstacle, PartitionAttempt, Plan, Restart, Verdict};
use super::policy::{Fallback, Policy, Strategy};
use super::reads::Outcome;
use super::restart_budget::Allowance;
use super::snapshot::{GlobalFailure, Snapshot, Standing};
use super::task_set::TaskSet;
use super::view::{View, readers_by_vertex, within};
use super::waves::waves_of;
use std::collections::BTreeSet;
use std::time::Duration;
use store_api::ids::AttemptId;

/// The set that a strategy chose.
struct Choice {
    closure: Closure,
    strategy: Strategy,
    obstacles: Vec<Obstacle>,
    is_refused: bool,
    is_lossy: bool,
}

/// Plans what to do about everything that is wrong in a snapshot. Pure: the same snapshot, policy
/// and allowance give the same plan.
///
/// `allowance` is what the restart budget says about this failure; it is asked for once for each
/// plan that restarts something, and failures that join a pending restart share it.
#[must_use]
pub fn plan(snapshot: &Snapshot, policy: &Policy, allowance: Allowance) -> Plan {
    let view = View { snapshot, policy };
    let choice = choose(view);
    let closure = &choice.closure;
    let is_full = choice.strategy == Strategy::Full;
    let outcome = Outcome::new(view, closure, !is_full, choice.is_lossy);
    let all = everything(view);
    let of_all = Outcome::new(view, &all, false, false);
    let verdict = judge(view, &choice, &outcome, allowance);
    let actions = if verdict == Verdict::Restart { actions_of(&outcome) } else { Actions::default() };
    Plan {
        job: snapshot.inner.job.clone(),
        incarnation: snapshot.inner.incarnation,
        job_epoch: snapshot.inner.job_epoch,
        graph_version: snapshot.inner.graph_version,
        strategy: choice.strategy,
        mixed_versions: mixed_versions(&outcome),
        incomplete: incomplete_datasets(view),
        delay: if verdict == Verdict::Restart { allowance.delay() } else { Duration::ZERO },
        plan_again_at: earliest_expiry(view, &closure.restart),
        cost: cost_of(&outcome),
        cost_of_full: cost_of(&of_all),
        verdict,
        actions,
        because: choice.closure.because,
        obstacles: choice.obstacles,
        is_lossy: choice.is_lossy,
    }
}

fn choose(view: View<'_>) -> Choice {
    let simple = |closure, strategy| Choice { closure, strategy, obstacles: Vec::new(), is_refused: false, is_lossy: false };
    if view.snapshot.inner.global_failure.is_some() {
        return simple(everything(view), Strategy::Full);
    }
    let needed = region(view);
    match view.policy.strategy {
        // Without anything wrong there is nothing to restart, not even under "everything".
        Strategy::Full if needed.restart.is_empty() => simple(needed, Strategy::Full),
        Strategy::Full => simple(everything(view), Strategy::Full),
        Strategy::Region => simple(needed, Strategy::Region),
        Strategy::Individual(fallback) => {
            let alone = failed_only(view);
            let outside = needed.because.iter().filter(|(task, _)| !alone.restart.contains(**task));
            let obstacles: Vec<_> = outside.map(|(task, reason)| Obstacle { task: *task, reason: *reason }).collect();
            let strategy = Strategy::Individual(fallback);
            match fallback {
                _ if obstacles.is_empty() => simple(needed, strategy),
                Fallback::Escalate => Choice { obstacles, ..simple(needed, Strategy::Region) },
                Fallback::Refuse => Choice { obstacles, is_refused: true, ..simple(alone, strategy) },
                Fallback::Lossy => Choice { obstacles, is_lossy: true, ..simple(alone, strategy) },
            }
        }
    }
}

fn judge(view: View<'_>, choice: &Choice, outcome: &Outcome<'_>, allowance: Allowance) -> Verdict {
    let restart = &choice.closure.restart;
    if view.snapshot.inner.global_failure == Some(GlobalFailure::Unrecoverable) {
        return Verdict::GiveUp(GiveUpReason::Unrecoverable);
    }
    if choice.is_refused {
        return Verdict::NotIndividuallyRecoverable;
    }
    if restart.is_empty() {
        return Verdict::Nothing;
    }
    let tasks: Vec<TaskIndex> = restart.iter().filter(|task| view.snapshot.task(*task).is_some_and(|record| record.is_committed)).collect();
    if !tasks.is_empty() {
        return Verdict::Inconsistent { tasks };
    }
    let (_, missing) = outcome.prefixes();
    if !missing.is_empty() && !choice.is_lossy {
        return Verdict::RestorePointRejected { missing };
    }
    if allowance == Allowance::Refused { Verdict::GiveUp(GiveUpReason::NoBudget) } else { Verdict::Restart }
}

fn actions_of(outcome: &Outcome<'_>) -> Actions {
    let restart: Vec<Restart> =
        outcome.closure.restart.iter().map(|task| Restart { task, attempt: next_attempt(outcome.view.snapshot, task) }).collect();
    let (truncate, _) = outcome.prefixes();
    let cut: BTreeSet<PartitionRef> = truncate.iter().map(|truncate| truncate.cut.partition).collect();
    let reread = outcome.rereads();
    Actions {
        cancel: cancels(outcome),
        release: releases(outcome, &cut),
        keep: outcome.keeps(),
        truncate,
        resume: outcome.resumes(&restart),
        pins: outcome.pins(&reread),
        reread,
        waves: waves_of(outcome),
        restart,
    }
}

/// An attempt of a generation above every one that the task or an output of it ever had.
fn next_attempt(snapshot: &Snapshot, task: TaskIndex) -> AttemptId {
    let of_task = snapshot.task(task).and_then(|record| record.last_attempt);
    let of_outputs = snapshot.graph().outputs_of(task).filter_map(|partition| snapshot.partition(partition)).map(|record| record.attempt);
    let highest = of_outputs.chain(of_task).map(|attempt| attempt.generation).max();
    AttemptId::new(highest.map_or(0, |generation| generation.saturating_add(1)), 0)
}

fn cancels(outcome: &Outcome<'_>) -> Vec<Cancel> {
    let live = |task: TaskIndex| {
        let record = outcome.view.snapshot.task(task);
        let is_over = record.is_none_or(|record| record.state == super::snapshot::TaskState::Finished);
        let attempts = record.map(|record| record.attempts.as_slice()).unwrap_or_default();
        attempts.iter().filter(move |_| !is_over).map(move |attempt| Cancel { task, attempt: attempt.attempt })
    };
    outcome.closure.restart.iter().flat_map(live).collect()
}

fn releases(outcome: &Outcome<'_>, cut: &BTreeSet<PartitionRef>) -> Vec<PartitionAttempt> {
    let graph = outcome.view.snapshot.graph();
    let outputs = outcome.closure.restart.iter().flat_map(|task| graph.outputs_of(task));
    let gone = outputs.filter(|partition| outcome.is_rewritten(*partition) && !cut.contains(partition));
    let named = gone.filter_map(|partition| {
        let attempt = outcome.view.snapshot.partition(partition)?.attempt;
        Some(PartitionAttempt { partition, attempt })
    });
    let mut named: Vec<_> = named.collect();
    named.sort_unstable();
    named
}

fn mixed_versions(outcome: &Outcome<'_>) -> Vec<PartitionRef> {
    let graph = outcome.view.snapshot.graph();
    let differs = |partition: &PartitionRef| graph.producer_of(*partition).is_some_and(|task| outcome.closure.differs.contains(task));
    outcome.keeps().into_iter().map(|keep| keep.kept.partition).filter(differs).collect()
}

/// Promoted datasets with a partition that cannot be read any more.
fn incomplete_datasets(view: View<'_>) -> Vec<DatasetIndex> {
    let promoted = view.snapshot.partitions().filter(|(_, record)| record.is_promoted);
    let gone = promoted.filter(|(partition, record)| view.standing(*partition, record) == Standing::Gone);
    gone.map(|(partition, _)| partition.dataset).collect::<BTreeSet<_>>().into_iter().collect()
}

/// When the first suspect that somebody still reads turns into a loss.
fn earliest_expiry(view: View<'_>, restart: &TaskSet) -> Option<Duration> {
    let readers = readers_by_vertex(view.snapshot, restart);
    let expiry = |row: super::view::Row<'_>| {
        let of_vertex = readers.get(row.group.consumer.at())?;
        let lists = [&of_vertex.restarting, &of_vertex.running, &of_vertex.created];
        let is_read = lists.iter().any(|list| !within(list, row.readers()).is_empty());
        match view.standing(row.partition, row.record?) {
            Standing::Suspect { until } if is_read => Some(until),
            Standing::Suspect { .. } | Standing::Readable | Standing::Gone => None,
        }
    };
    view.rows().filter_map(expiry).min()
}

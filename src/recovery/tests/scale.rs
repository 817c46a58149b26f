//! Large jobs: the size of what comes out, and, with `--ignored --nocapture` in a release build, how
//! long it took and how much memory.

use super::scene::{AT_ONCE, draft_of, graph_spec, offset, progress};
use crate::recovery::graph::{JobGraph, TaskIndex};
use crate::recovery::plan::{Plan, Verdict};
use crate::recovery::policy::{Determinism, Policy};
use crate::recovery::snapshot::{GroupProgress, PartitionStatus, Progress, Snapshot, SnapshotDraft, TaskState};
use crate::recovery::{fence, plan};
use std::fmt::Write as _;

/// All tasks of the first vertex finished and sealed, the second one running at byte 10.
fn all_to_all(n_producers: u32, n_consumers: u32, kind: &str) -> SnapshotDraft {
    let vertices = format!("A*{n_producers} B*{n_consumers}");
    let graph = JobGraph::parse(graph_spec(&vertices, &[&format!("A all {kind} B")])).unwrap();
    let mut draft = draft_of(graph);
    let is_blocking = kind == "blocking";
    for record in draft.partitions.iter_mut().flatten().flatten() {
        record.is_sealed = is_blocking;
        let one = if is_blocking { progress(0, Some(10), 0, 0) } else { progress(140, Some(140), 100, 100) };
        record.progress = vec![GroupProgress::of_all(Progress { end: offset(1000), ..one })];
    }
    if is_blocking {
        draft.tasks.iter_mut().take(n_producers as usize).for_each(|record| record.state = TaskState::Finished);
    }
    draft
}

fn fail(draft: &mut SnapshotDraft, task: u32) {
    let record = &mut draft.tasks[task as usize];
    record.state = TaskState::Failed;
    record.attempts.clear();
}

/// Stages in a row, all to all, everything before the last stage finished.
fn stages(n_stages: u32, parallelism: u32) -> SnapshotDraft {
    let mut vertices = String::new();
    for stage in 0..n_stages {
        write!(vertices, "{}V{stage:03}s*{parallelism}", if stage == 0 { "" } else { " " }).unwrap();
    }
    let edges: Vec<String> = (1..n_stages).map(|stage| format!("V{:03}s all blocking V{stage:03}s", stage - 1)).collect();
    let edges: Vec<&str> = edges.iter().map(String::as_str).collect();
    let mut draft = draft_of(JobGraph::parse(graph_spec(&vertices, &edges)).unwrap());
    let n_finished = ((n_stages - 1) * parallelism) as usize;
    draft.tasks.iter_mut().take(n_finished).for_each(|record| record.state = TaskState::Finished);
    for record in draft.partitions.iter_mut().flatten().flatten() {
        record.is_sealed = true;
        record.progress = vec![GroupProgress::of_all(Progress { end: offset(1000), ..progress(0, None, 0, 0) })];
    }
    draft
}

fn planned(draft: SnapshotDraft, determinism: Determinism) -> (Snapshot, Plan) {
    let snapshot = Snapshot::parse(draft).unwrap();
    let policy = Policy { determinism, ..Policy::default() };
    let plan = plan(&snapshot, &policy, AT_ONCE);
    (snapshot, plan)
}

#[test]
fn a_lost_output_between_thousands_is_planned_in_rows_not_in_pairs() {
    let mut draft = all_to_all(2_000, 2_000, "blocking");
    fail(&mut draft, 2_000);
    draft.partitions[0][7].as_mut().unwrap().status = PartitionStatus::Lost;
    let (snapshot, plan) = planned(draft, Determinism::Ignored);
    assert_eq!(plan.verdict, Verdict::Restart);
    assert_eq!(plan.because.len(), 2_001);
    assert_eq!(plan.actions.reread.len(), 1_999);
    let n_reads: usize = plan.actions.reread.iter().map(|row| row.reads(snapshot.graph()).count()).sum();
    assert_eq!(n_reads, 1_999 * 2_000);
    assert_eq!(plan.cost.reread_bytes, 1_999 * 2_000 * 1_000);
    assert_eq!(plan.cost.recomputed_bytes, 2_000 * 1_000);
    assert_eq!(plan.cost_of_full.recomputed_bytes, 2_000 * 2_000 * 1_000);
}

#[test]
fn readers_with_progress_of_their_own_are_told_apart_among_thousands() {
    let mut draft = all_to_all(1_000, 1_000, "since_checkpoint");
    for (place, record) in draft.partitions[0].iter_mut().flatten().enumerate() {
        record.progress[0].common = Progress { floor: offset(100), ..record.progress[0].common };
        // Reader 5 needs what only even writers still hold; reader 6 has seen nothing at all.
        let floor = if place % 2 == 0 { 50 } else { 100 };
        record.progress[0].others = vec![(5, progress(floor, Some(140), 50, 50)), (6, progress(100, Some(100), 100, 100))];
    }
    fail(&mut draft, 1_005);
    let (_, plan) = planned(draft, Determinism::Ignored);
    let n_writers = plan.because.keys().filter(|task| task.number() < 1_000).count();
    assert_eq!(n_writers, 500, "every second writer");
    assert!(!plan.because.contains_key(&TaskIndex::new(1_006)), "who has seen nothing goes on");
    assert_eq!(plan.because.len(), 500 + 999);
    assert!(plan.verdict == Verdict::Restart);
}

#[test]
fn a_loss_in_every_stage_of_a_long_chain_goes_back_to_the_first() {
    let mut draft = stages(100, 20);
    fail(&mut draft, 99 * 20);
    draft.partitions.iter_mut().for_each(|stage| stage[0].as_mut().unwrap().status = PartitionStatus::Lost);
    let (_, plan) = planned(draft, Determinism::Believed);
    // Not declared repeatable: every reader of a rewritten output restarts.
    assert_eq!(plan.because.len(), 1 + 99 * 20);
    assert_eq!(plan.actions.waves.len(), 100);
}

#[expect(clippy::disallowed_methods, reason = "measures; nothing depends on it")]
fn seconds(work: impl FnOnce() -> Plan) -> (f64, Plan) {
    let start = std::time::Instant::now();
    let plan = work();
    (start.elapsed().as_secs_f64(), plan)
}

/// Most memory the process ever held, in MiB; 0 where the system does not tell.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0").trim();
    line.split(' ').next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn measure(name: &str, draft: SnapshotDraft) {
    let snapshot = Snapshot::parse(draft).unwrap();
    let policy = Policy::default();
    let (time, plan) = seconds(|| plan(&snapshot, &policy, AT_ONCE));
    println!(
        "{name}: {} of {} tasks restart, {:.1} ms, peak {} MiB",
        plan.because.len(),
        snapshot.graph().n_tasks(),
        time * 1e3,
        peak_mib()
    );
}

#[test]
#[ignore = "measures; run alone in a release build with --nocapture"]
fn figures_of_large_jobs() {
    println!("before: peak {} MiB", peak_mib());
    let mut draft = all_to_all(10_000, 10_000, "blocking");
    fail(&mut draft, 10_000);
    measure("10,000 x 10,000 sealed, a reader fails", draft.clone());
    draft.partitions[0].iter_mut().flatten().for_each(|record| record.status = PartitionStatus::Lost);
    measure("10,000 x 10,000 sealed, all output lost", draft.clone());
    draft.partitions[0].iter_mut().flatten().for_each(|record| {
        record.status = PartitionStatus::Available;
        record.progress[0].others = (0..10).map(|reader| (reader * 999, progress(0, Some(0), 0, 0))).collect();
    });
    draft.partitions[0][0].as_mut().unwrap().status = PartitionStatus::Lost;
    measure("10,000 x 10,000 sealed, one output lost, 100,000 progress entries", draft);
    let mut draft = all_to_all(10_000, 10_000, "until_acknowledged");
    fail(&mut draft, 17_000);
    measure("10,000 x 10,000 pipelined, a reader fails", draft.clone());
    draft.partitions[0].iter_mut().flatten().for_each(|record| {
        record.progress[0].common.floor = offset(100);
    });
    measure("10,000 x 10,000 kept, a reader fails", draft);
    let mut draft = stages(100, 1_000);
    fail(&mut draft, 99_000);
    measure("100 stages of 1,000, a reader fails", draft.clone());
    draft.partitions.iter_mut().for_each(|stage| stage[0].as_mut().unwrap().status = PartitionStatus::Lost);
    measure("100 stages of 1,000, one output lost in each", draft.clone());
    draft.partitions.iter_mut().flatten().flatten().for_each(|record| record.status = PartitionStatus::Lost);
    measure("100 stages of 1,000, everything lost", draft);
    let (time, _) = seconds(|| {
        let snapshot = Snapshot::parse(stages(100, 1_000)).unwrap();
        let fenced = fence(&snapshot, &[]);
        plan(&fenced.snapshot, &Policy::default(), AT_ONCE)
    });
    println!("100 stages of 1,000, gather, check, fence and plan: {:.1} ms, peak {} MiB", time * 1e3, peak_mib());
}

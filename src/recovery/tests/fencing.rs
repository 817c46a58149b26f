//! Which reports are believed, and what follows from them.

use super::scene::{AT_ONCE, LIFE, NOW, Scene, attempt, offset, progress};
use crate::recovery::fence;
use crate::recovery::graph::GroupIndex;
use crate::recovery::plan::{KeepReason, PartitionAttempt, Verdict};
use crate::recovery::policy::Determinism;
use crate::recovery::report::{DropReason, FailureCause, Report, ReportVerdict, Trouble};
use crate::recovery::snapshot::{AttemptRecord, GlobalFailure, Location, PartitionStatus, Sent, TaskState};
use std::time::Duration;
use store_api::ids::{AttemptId, NodeLife};

fn failed(scene: &Scene, task: &str, number: AttemptId) -> Report {
    Report::AttemptFailed { of: scene.speaker(task, number), cause: FailureCause::Own }
}

fn verdicts(scene: &Scene, reports: &[Report]) -> Vec<ReportVerdict> {
    fence(&scene.snapshot(), reports).verdicts
}

fn here() -> Location {
    Location::Node { node: 0, life: LIFE }
}

fn two_attempts(scene: Scene, task: &str) -> Scene {
    scene.tune(task, |record| {
        record.attempts.push(AttemptRecord { attempt: AttemptId::new(0, 1), worker: Some(1) });
        record.last_attempt = Some(AttemptId::new(0, 1));
    })
}

/// X1
#[test]
fn a_task_with_another_live_attempt_has_not_failed() {
    let scene =
        two_attempts(Scene::new("A*1 B*1", &["A all blocking B"]).sealed(&["A0 A-B"], Some(0)).are(TaskState::Finished, "A0"), "B0");
    let one = failed(&scene, "B0", attempt(0));
    assert_eq!(verdicts(&scene, &[one]), [ReportVerdict::AttemptDropped]);
    assert_eq!(scene.after(&[one]).plan().verdict, Verdict::Nothing);
    let both = [one, failed(&scene, "B0", AttemptId::new(0, 1))];
    assert_eq!(verdicts(&scene, &both), [ReportVerdict::Accepted, ReportVerdict::Accepted]);
    let after = scene.after(&both);
    assert_eq!(after.restarts(&after.plan()), "B0");
}

#[test]
fn what_a_dropped_attempt_left_unsealed_is_given_back_and_the_survivor_writes_on() {
    let scene = two_attempts(Scene::new("A*1 B*1", &["A all blocking B"]).are(TaskState::Created, "B0"), "A0");
    let fenced = fence(&scene.snapshot(), &[failed(&scene, "A0", attempt(0))]);
    let partition = scene.partition("A0 A-B");
    assert_eq!(fenced.release, [PartitionAttempt { partition, attempt: attempt(0) }]);
    assert_eq!(fenced.snapshot.partition(partition).unwrap().attempt, AttemptId::new(0, 1));
    assert_eq!(fenced.charged, [scene.task("A0")]);
}

/// X2
#[test]
fn a_failure_of_an_attempt_that_is_no_longer_current_changes_nothing() {
    let scene = Scene::new("A*1 B*1", &["A all until_acknowledged B"]).tune("B0", |record| record.attempts[0].attempt = attempt(1));
    let report = failed(&scene, "B0", attempt(0));
    assert_eq!(verdicts(&scene, &[report]), [ReportVerdict::Dropped(DropReason::AttemptNotCurrent)]);
    assert_eq!(scene.after(&[report]).draft, scene.draft);
}

/// X3
#[test]
fn a_reader_that_dies_of_an_older_attempt_of_its_input_restarts_alone() {
    let scene = Scene::new("A*1 B*1", &["A all blocking B"])
        .are(TaskState::Finished, "A0")
        .sealed(&["A0 A-B"], Some(10))
        .part("A0 A-B", |record| record.attempt = attempt(1));
    let cause = FailureCause::Input { partition: scene.partition("A0 A-B"), read: attempt(0), trouble: Trouble::Gone };
    let report = Report::AttemptFailed { of: scene.speaker("B0", attempt(0)), cause };
    let after = scene.after(&[report]);
    assert_eq!(after.restarts(&after.plan()), "B0");
    assert_eq!(after.reads_of(&after.plan().actions.reread), ["B0 A0 A-B 0"]);
    let living = Report::InputTrouble {
        reader: scene.speaker("B0", attempt(0)),
        partition: scene.partition("A0 A-B"),
        read: attempt(0),
        trouble: Trouble::Gone,
    };
    assert_eq!(verdicts(&scene, &[living]), [ReportVerdict::Dropped(DropReason::PartitionNotCurrent)]);
}

/// X4
#[test]
fn a_node_that_returns_with_a_superseded_attempt_is_refused_and_gives_it_back() {
    let scene = Scene::new("A*1 B*1", &["A all blocking B"]).part("A0 A-B", |record| record.attempt = attempt(1));
    let partition = scene.partition("A0 A-B");
    let answers = Report::PartitionAnswers { partition, held: attempt(0), location: here() };
    let seals = Report::Seal { partition, attempt: attempt(0), location: here() };
    let fenced = fence(&scene.snapshot(), &[answers, seals]);
    assert_eq!(fenced.verdicts, [ReportVerdict::Dropped(DropReason::PartitionNotCurrent); 2]);
    assert_eq!(fenced.release, [PartitionAttempt { partition, attempt: attempt(0) }]);
    assert_eq!(fenced.snapshot, scene.snapshot());
}

/// X5
#[test]
fn a_refused_pin_leads_to_a_plan_that_does_not_count_on_the_bytes() {
    let mut scene = Scene::new("A*2 B*2", &["A all best_effort B"]);
    for (writer, reader) in [("A0", "B0"), ("A0", "B1"), ("A1", "B0"), ("A1", "B1")] {
        scene = scene.reads(reader, &format!("{writer} A-B"), progress(100, Some(140), 100, 100));
    }
    let scene = scene.are(TaskState::Failed, "B1");
    let hopeful = scene.plan();
    assert_eq!(scene.restarts(&hopeful), "B1");
    assert_eq!(scene.reads_of(&hopeful.actions.pins), ["B1 A0 A-B 100", "B1 A1 A-B 100"]);
    let refused = scene.plan_from(&scene.snapshot().with_refused_pin(GroupIndex::new(0), 1, 1));
    assert_eq!(scene.restarts(&refused), "A1 B0 B1");
    assert_eq!(scene.reads_of(&refused.actions.pins), ["B0 A0 A-B 100", "B1 A0 A-B 100"]);
}

/// X6
#[test]
fn a_suspect_that_answers_within_the_grace_restarts_nobody() {
    let scene = Scene::new("A*1 B*1", &["A all blocking B"]).are(TaskState::Finished, "A0").sealed(&["A0 A-B"], Some(10));
    let partition = scene.partition("A0 A-B");
    let unreachable =
        Report::InputTrouble { reader: scene.speaker("B0", attempt(0)), partition, read: attempt(0), trouble: Trouble::Unreachable };
    let doubted = scene.after(&[unreachable]);
    assert_eq!(doubted.plan().verdict, Verdict::Nothing);
    assert_eq!(doubted.plan().plan_again_at, Some(NOW + doubted.policy.suspect_grace));
    let answered = doubted.after(&[Report::PartitionAnswers { partition, held: attempt(0), location: here() }]);
    assert_eq!(answered.plan().verdict, Verdict::Nothing);
    assert_eq!(answered.plan().plan_again_at, None);
    let mut silent = doubted;
    silent.draft.now = NOW + silent.policy.suspect_grace;
    assert_eq!(silent.restarts(&silent.plan()), "A0 B0");
}

fn kept_edge_below_repeatable_chains() -> Scene {
    let mut scene = Scene::new("A*2! B*2! C*2", &["A pointwise until_acknowledged B", "B all since_checkpoint C"]);
    for (writer, reader) in [("A0 A-B", "B0"), ("A1 A-B", "B1")] {
        scene = scene.reads(reader, writer, progress(140, Some(140), 100, 100));
    }
    for (writer, reader) in [("B0 B-C", "C0"), ("B0 B-C", "C1"), ("B1 B-C", "C0"), ("B1 B-C", "C1")] {
        scene = scene.reads(reader, writer, progress(100, Some(140), 100, 100));
    }
    scene
}

/// X7
#[test]
fn a_replay_that_differs_takes_in_everybody_who_saw_the_first_run() {
    let scene = kept_edge_below_repeatable_chains().determinism(Determinism::Verified);
    let broken = scene.after(&[failed(&scene, "A0", attempt(0))]);
    let first = broken.plan();
    assert_eq!(broken.restarts(&first), "A0");
    let resume = &first.actions.resume[0];
    assert!(resume.must_match_digest, "a believed writer is checked at the seam");
    let again = first.actions.restart[0].attempt;
    let rerun = broken.tune("A0", |record| {
        record.state = TaskState::Running;
        record.attempts = vec![AttemptRecord { attempt: again, worker: Some(1) }];
        record.last_attempt = Some(again);
    });
    let after = rerun.after(&[Report::ReplayDiffers { of: rerun.speaker("A0", again) }]);
    let second = after.plan();
    assert_eq!(after.restarts(&second), "A0 B0 C0 C1");
    assert!(second.actions.restart[0].attempt > again);
}

/// X8
#[test]
fn a_promoted_output_is_kept_whatever_becomes_of_its_producer() {
    let scene = Scene::new("A*1 B*1 C*1", &["A all blocking B out", "A all blocking C rest"])
        .are(TaskState::Finished, "A0")
        .are(TaskState::Finished, "B0")
        .sealed(&["A0 out"], None)
        .sealed(&["A0 rest"], Some(10))
        .part("A0 out", |record| record.is_promoted = true)
        .part("A0 rest", |record| record.status = PartitionStatus::Lost);
    let plan = scene.plan();
    assert_eq!(scene.restarts(&plan), "A0 C0", "the reader of the promoted output would read the same again");
    assert_eq!(scene.partition_names(plan.actions.release.iter().map(|one| one.partition)), ["A0 rest"]);
    assert_eq!(plan.actions.keep[0].reason, KeepReason::Promoted);
    assert_eq!(plan.mixed_versions, [scene.partition("A0 out")]);
}

#[test]
fn the_first_valid_seal_wins_and_later_ones_are_given_back() {
    let scene = two_attempts(Scene::new("A*1 B*1", &["A all blocking B"]).are(TaskState::Created, "B0"), "A0");
    let partition = scene.partition("A0 A-B");
    let seal = |number| Report::Seal { partition, attempt: AttemptId::new(0, number), location: here() };
    let fenced = fence(&scene.snapshot(), &[seal(1), seal(0), seal(1)]);
    let winner = AttemptId::new(0, 1);
    assert_eq!(
        fenced.verdicts,
        [ReportVerdict::Accepted, ReportVerdict::SealConflict { winner }, ReportVerdict::Dropped(DropReason::Duplicate)]
    );
    assert_eq!(fenced.release, [PartitionAttempt { partition, attempt: attempt(0) }]);
    let record = fenced.snapshot.partition(partition).unwrap();
    assert!(record.is_sealed && record.attempt == winner);
    let late = fence(&fenced.snapshot, &[seal(0)]);
    assert_eq!(late.verdicts, [ReportVerdict::SealConflict { winner }]);
    let released = scene.part("A0 A-B", |record| record.status = PartitionStatus::Released);
    assert_eq!(verdicts(&released, &[seal(0)]), [ReportVerdict::Dropped(DropReason::Released)]);
}

#[test]
fn reports_to_a_former_coordinator_and_about_former_lives_are_dropped() {
    let scene = Scene::new("A*1 B*1", &["A all blocking B"]);
    let mut of = scene.speaker("B0", attempt(0));
    of.coordinator_epoch = 4;
    let reports = [
        Report::AttemptFailed { of, cause: FailureCause::Own },
        Report::NodeLost { node: 0, life: NodeLife::new(6) },
        Report::WorkerLost { worker: 0, life: NodeLife::new(6) },
        Report::NodeLost { node: 9, life: LIFE },
    ];
    let former = ReportVerdict::Dropped(DropReason::FormerLife);
    let expected = [ReportVerdict::Dropped(DropReason::OldCoordinator), former, former, ReportVerdict::Dropped(DropReason::Unknown)];
    assert_eq!(verdicts(&scene, &reports), expected);
    assert_eq!(scene.after(&reports).draft, scene.draft);
}

#[test]
fn trouble_is_graded_and_never_gets_better_by_a_milder_report() {
    let scene = Scene::new("A*1 B*1", &["A all blocking B"]).are(TaskState::Finished, "A0").sealed(&["A0 A-B"], Some(10));
    let partition = scene.partition("A0 A-B");
    let report = |trouble| Report::PartitionTrouble { partition, held: attempt(0), trouble };
    let status = |scene: &Scene| scene.snapshot().partition(partition).unwrap().status;
    assert_eq!(verdicts(&scene, &[report(Trouble::Transient)]), [ReportVerdict::ReadOn]);
    assert_eq!(status(&scene.after(&[report(Trouble::Transient)])), PartitionStatus::Available);
    let unreachable = scene.after(&[report(Trouble::Unreachable)]);
    assert_eq!(status(&unreachable), PartitionStatus::Suspect { since: NOW });
    let mut later = unreachable;
    later.draft.now += Duration::from_secs(10);
    assert_eq!(
        status(&later.after(&[report(Trouble::Unreachable)])),
        PartitionStatus::Suspect { since: NOW },
        "the grace does not begin anew"
    );
    assert_eq!(status(&later.after(&[report(Trouble::Corrupt), report(Trouble::Gone)])), PartitionStatus::Corrupt);
    let lost = later.after(&[report(Trouble::Gone)]);
    assert_eq!(status(&lost.after(&[report(Trouble::Unreachable)])), PartitionStatus::Lost);
}

#[test]
fn a_writer_without_room_is_a_failure_to_report_not_a_wait() {
    let scene = Scene::new("A*1 B*1", &["A all since_checkpoint B"]);
    let partition = scene.partition("A0 A-B");
    let cause = FailureCause::RetentionExhausted { partition };
    let fenced = fence(&scene.snapshot(), &[Report::AttemptFailed { of: scene.speaker("A0", attempt(0)), cause }]);
    assert_eq!(fenced.exhausted, [partition]);
    assert_eq!(scene.restarts(&scene.plan_from(&fenced.snapshot)), "A0");
}

#[test]
fn who_dies_of_bytes_that_no_longer_count_blames_nobody_else() {
    let scene = Scene::new("A*1 B*1", &["A all until_acknowledged B"]).part("A0 A-B", |record| record.attempt = attempt(1));
    let cause = FailureCause::Input { partition: scene.partition("A0 A-B"), read: attempt(0), trouble: Trouble::Gone };
    let fenced = fence(&scene.snapshot(), &[Report::AttemptFailed { of: scene.speaker("B0", attempt(0)), cause }]);
    assert_eq!(fenced.charged, [scene.task("B0")]);
}

#[test]
fn an_unrecoverable_cause_gives_the_job_up_before_the_budget_is_asked() {
    let scene = Scene::new("A*1 B*1", &["A all blocking B"]);
    let report = Report::AttemptFailed { of: scene.speaker("B0", attempt(0)), cause: FailureCause::Unrecoverable };
    let after = scene.after(&[Report::Global(GlobalFailure::RestartAll), report, Report::Global(GlobalFailure::RestartAll)]);
    assert_eq!(after.draft.global_failure, Some(GlobalFailure::Unrecoverable));
    let plan = crate::recovery::plan(&after.snapshot(), &after.policy, AT_ONCE);
    assert_eq!(plan.verdict, Verdict::GiveUp(crate::recovery::plan::GiveUpReason::Unrecoverable));
}

#[test]
fn a_global_failure_restarts_everything_under_any_strategy() {
    let scene = Scene::new("A*2 B*1", &["A all blocking B"]).are(TaskState::Created, "B0");
    let after = scene.after(&[Report::Global(GlobalFailure::RestartAll)]);
    assert_eq!(after.restarts(&after.plan()), "A0 A1");
}

#[test]
fn a_reader_past_what_it_confirmed_is_caught_by_what_was_sent() {
    let mut one = progress(0, Some(0), 0, 0);
    one.sent = Sent::UpTo(offset(3));
    let scene = Scene::new("A*1 B*1", &["A all since_checkpoint B"]).reads("B0", "A0 A-B", one).are(TaskState::Failed, "A0");
    assert_eq!(scene.restarts(&scene.plan()), "A0 B0");
    one.sent = Sent::Unknown;
    let unknown = scene.clone().reads("B0", "A0 A-B", one);
    assert_eq!(unknown.restarts(&unknown.plan()), "A0 B0");
}

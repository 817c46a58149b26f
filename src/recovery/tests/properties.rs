//! What others learned the hard way, as claims. The numbers are those of `docs/recovery.md`.

use super::random::random_scene;
use super::scene::{AT_ONCE, NOW, Scene, attempt, offset, progress};
use crate::recovery::plan::{Actions, GiveUpReason, Verdict};
use crate::recovery::policy::{Determinism, Fallback, Strategy};
use crate::recovery::release::{HoldReason, ReleasePolicy, hold_reason, releasable, releasable_at_job_end};
use crate::recovery::report::{DropReason, FailureCause, Report, ReportVerdict, Trouble};
use crate::recovery::restart_budget::Allowance;
use crate::recovery::snapshot::{AttemptRecord, Confirmed, Location, PartitionStatus, Progress, Sent, TaskState};
use crate::recovery::{Plan, fence, plan};
use std::time::Duration;
use store_api::ids::{AttemptId, JobEpoch, JobIncarnation};

fn failed(scene: &Scene, task: &str) -> Report {
    Report::AttemptFailed { of: scene.speaker(task, attempt(0)), cause: FailureCause::Own }
}

fn lost(scene: Scene, names: &[&str]) -> Scene {
    names.iter().fold(scene, |scene, name| scene.part(name, |record| record.status = PartitionStatus::Lost))
}

/// A ⇒ B, both finished and read to the end, and C that has read some of B's output.
fn sealed_chain() -> Scene {
    Scene::new("A*1 B*1 C*1", &["A all blocking B", "B all blocking C"])
        .are(TaskState::Finished, "A0 B0")
        .sealed(&["A0 A-B"], None)
        .sealed(&["B0 B-C"], Some(10))
}

#[test]
fn property_01_a_restarted_reader_gets_every_byte_from_its_offset_or_its_writer_restarts() {
    let scene = |floor| {
        let scene = Scene::new("A*1 B*1", &["A all since_checkpoint B"]);
        scene.reads("B0", "A0 A-B", progress(floor, Some(140), 100, 100)).are(TaskState::Failed, "B0")
    };
    assert_eq!(scene(100).restarts(&scene(100).plan()), "B0");
    assert_eq!(scene(101).restarts(&scene(101).plan()), "A0 B0");
}

#[test]
fn property_02_backtracking_goes_on_to_the_first_cut_that_holds() {
    let scene = sealed_chain().are(TaskState::Failed, "C0");
    let restarts = |names: &[&str]| {
        let scene = lost(scene.clone(), names);
        scene.restarts(&scene.plan())
    };
    assert_eq!(restarts(&[]), "C0");
    assert_eq!(restarts(&["B0 B-C"]), "B0 C0");
    assert_eq!(restarts(&["B0 B-C", "A0 A-B"]), "A0 B0 C0");
    assert_eq!(restarts(&["A0 A-B"]), "C0", "what nobody reads any more is not mended");
}

#[test]
fn property_03_many_known_losses_make_one_plan() {
    let scene = Scene::new("A*5 B*1", &["A all blocking B"])
        .are(TaskState::Finished, "A0 A1 A2 A3 A4")
        .sealed(&["A0 A-B", "A1 A-B", "A2 A-B", "A3 A-B", "A4 A-B"], Some(10))
        .are(TaskState::Failed, "B0");
    let scene = lost(scene, &["A0 A-B", "A2 A-B", "A4 A-B"]);
    assert_eq!(scene.restarts(&scene.plan()), "A0 A2 A4 B0");
}

#[test]
fn property_04_a_loss_is_mended_before_the_reader_that_waits_for_it_fails() {
    let scene = Scene::new("A*1 B*1", &["A all blocking B"]).are(TaskState::Finished, "A0").sealed(&["A0 A-B"], Some(0));
    let scene = lost(scene, &["A0 A-B"]);
    let plan = scene.plan();
    assert_eq!(scene.restarts(&plan), "A0");
    assert_eq!(scene.reads_of(&plan.actions.resume), ["B0 A0 A-B 0"]);
}

#[test]
fn property_05_groups_that_wait_for_each_other_start_in_one_wave() {
    let edges =
        ["A pointwise until_acknowledged B", "B all blocking D", "A pointwise until_acknowledged C", "C pointwise until_acknowledged D"];
    let scene = Scene::new("A*2 B*2 C*2 D*2", &edges).are(TaskState::Failed, "A0").strategy(Strategy::Full);
    let plan = scene.plan();
    assert_eq!(scene.waves(&plan), ["A0 A1 C0 C1 B0 B1 D0 D1"]);
    assert!(plan.actions.waves[0].has_inner_seal);
}

#[test]
fn property_06_a_rerun_among_neighbours_concerns_its_own_reader_only() {
    let scene = |taken| {
        let scene =
            Scene::new("P*4 C*4", &["P pointwise blocking C"]).are(TaskState::Finished, "P0 P1 P2 P3").are(TaskState::Finished, "C0");
        let scene =
            scene.sealed(&["P0 P-C"], None).sealed(&["P1 P-C"], Some(taken)).sealed(&["P2 P-C"], Some(10)).sealed(&["P3 P-C"], Some(0));
        lost(scene.are(TaskState::Created, "C3"), &["P1 P-C"])
    };
    assert_eq!(scene(10).restarts(&scene(10).plan()), "P1 C1");
    let plan = scene(0).plan();
    assert_eq!(scene(0).restarts(&plan), "P1");
    assert_eq!(scene(0).reads_of(&plan.actions.resume), ["C1 P1 P-C 0"], "and the reader is told the new writer");
}

#[test]
fn property_07_a_writer_that_was_reset_no_longer_counts_as_finished() {
    let scene = sealed_chain().are(TaskState::Finished, "C0").sealed(&["B0 B-C"], None);
    assert_eq!(hold_reason(&scene.snapshot(), scene.partition("A0 A-B"), ReleasePolicy::PreferSpace), None);
    let reset = scene.tune("B0", |record| record.state = TaskState::Running).part("B0 B-C", |record| record.is_sealed = false);
    let reason = |name| hold_reason(&reset.snapshot(), reset.partition(name), ReleasePolicy::PreferSpace);
    assert_eq!(reason("A0 A-B"), Some(HoldReason::Consumer { task: reset.task("B0") }));
    assert_eq!(reason("B0 B-C"), Some(HoldReason::Unsealed));
}

#[test]
fn property_08_the_end_of_an_attempt_that_is_being_stopped_counts_as_stopped() {
    let scene = sealed_chain().tune("C0", |record| record.state = TaskState::Cancelling);
    let fenced = fence(&scene.snapshot(), &[Report::AttemptFinished { of: scene.speaker("C0", attempt(0)) }]);
    assert_eq!(fenced.verdicts, [ReportVerdict::CountsAsCancelled]);
    assert_eq!(fenced.snapshot.state(scene.task("C0")), TaskState::Cancelled);
    assert!(releasable(&fenced.snapshot, ReleasePolicy::PreferSpace).iter().all(|one| one.partition != scene.partition("B0 B-C")));
    assert_eq!(scene.restarts(&scene.plan_from(&fenced.snapshot)), "C0");
}

#[test]
fn property_09_what_a_failed_attempt_left_unsealed_is_not_believed_for_a_moment() {
    let scene = Scene::new("A*1 B*1", &["A all full_copy B"]).reads("B0", "A0 A-B", progress(0, Some(10), 0, 0));
    let after = scene.after(&[failed(&scene, "A0"), failed(&scene, "B0")]);
    assert_eq!(after.restarts(&after.plan()), "A0 B0");
    assert!(after.plan().actions.reread.is_empty());
    let sealed = scene.part("A0 A-B", |record| record.is_sealed = true);
    let after = sealed.are(TaskState::Failed, "A0");
    assert_eq!(after.restarts(&after.plan()), "A0 B0", "not even what a failed attempt had sealed, if it may differ");
}

#[test]
fn property_10_output_of_readers_that_never_came_is_given_back_at_the_end() {
    let scene = Scene::new("A*1 B*1", &["A all blocking B"])
        .are(TaskState::Finished, "A0")
        .sealed(&["A0 A-B"], Some(0))
        .are(TaskState::Created, "B0");
    assert!(releasable(&scene.snapshot(), ReleasePolicy::PreferSpace).is_empty());
    assert_eq!(releasable_at_job_end(&scene.snapshot()).len(), 1);
    let promoted = scene.part("A0 A-B", |record| record.is_promoted = true);
    assert!(releasable_at_job_end(&promoted.snapshot()).is_empty());
}

#[test]
fn property_11_a_buffer_nobody_attached_to_is_released_when_its_writer_restarts() {
    let scene = Scene::new("A*1 B*1", &["A all until_acknowledged B"])
        .are(TaskState::Created, "B0")
        .are(TaskState::Failed, "A0")
        .part("A0 A-B", |record| record.is_sealed = true);
    let plan = scene.plan();
    assert_eq!(scene.partition_names(plan.actions.release.iter().map(|one| one.partition)), ["A0 A-B"]);
    assert_eq!(scene.reads_of(&plan.actions.resume), ["B0 A0 A-B 0"]);
}

#[test]
fn property_12_what_is_stored_elsewhere_survives_the_node_of_its_writer() {
    let scene = sealed_chain().on("A0", 1).on("B0", 1).on("C0", 1).lose_host(1);
    assert_eq!(scene.restarts(&scene.plan()), "C0");
    let local = scene.part("B0 B-C", |record| record.location = Location::Node { node: 1, life: super::scene::LIFE });
    assert_eq!(local.restarts(&local.plan()), "B0 C0");
}

#[test]
fn property_13_a_partition_with_several_groups_is_given_back_after_all_of_them_and_once() {
    let scene = Scene::new("A*1 B*1 C*1", &["A all blocking B out", "A pointwise blocking C out"])
        .are(TaskState::Finished, "A0 B0")
        .sealed(&["A0 out"], None);
    let reason = |scene: &Scene| hold_reason(&scene.snapshot(), scene.partition("A0 out"), ReleasePolicy::default());
    assert_eq!(reason(&scene), Some(HoldReason::Consumer { task: scene.task("C0") }));
    let done = scene.are(TaskState::Finished, "C0");
    assert_eq!(reason(&done), None);
    assert_eq!(reason(&done.clone().part("A0 out", |record| record.is_pinned = true)), Some(HoldReason::Pinned));
    let released = done.part("A0 out", |record| record.status = PartitionStatus::Released);
    assert_eq!(reason(&released), Some(HoldReason::NotHeld));
    assert!(releasable(&released.snapshot(), ReleasePolicy::default()).is_empty());
}

#[test]
fn property_14_a_failed_reader_of_a_full_copy_does_not_restart_its_finished_writer() {
    let scene = Scene::new("A*1 B*1", &["A all full_copy B"])
        .are(TaskState::Finished, "A0")
        .sealed(&["A0 A-B"], Some(10))
        .are(TaskState::Failed, "B0");
    assert_eq!(scene.restarts(&scene.plan()), "B0");
}

#[test]
fn property_16_damaged_bytes_are_lost_bytes() {
    let scene = sealed_chain();
    let cause = FailureCause::Input { partition: scene.partition("B0 B-C"), read: attempt(0), trouble: Trouble::Corrupt };
    let after = scene.after(&[Report::AttemptFailed { of: scene.speaker("C0", attempt(0)), cause }]);
    assert_eq!(after.restarts(&after.plan()), "B0 C0");
}

#[test]
fn property_17_a_broken_transfer_reads_on_and_restarts_no_writer() {
    let scene = sealed_chain();
    let partition = scene.partition("B0 B-C");
    let report = Report::InputTrouble { reader: scene.speaker("C0", attempt(0)), partition, read: attempt(0), trouble: Trouble::Transient };
    assert_eq!(fence(&scene.snapshot(), &[report]).verdicts, [ReportVerdict::ReadOn]);
    let cause = FailureCause::Input { partition, read: attempt(0), trouble: Trouble::Transient };
    let after = scene.after(&[Report::AttemptFailed { of: scene.speaker("C0", attempt(0)), cause }]);
    assert_eq!(after.restarts(&after.plan()), "C0");
}

#[test]
fn property_18_a_failed_connection_makes_a_suspect_whose_readers_wait() {
    let scene = sealed_chain();
    let cause = FailureCause::Input { partition: scene.partition("B0 B-C"), read: attempt(0), trouble: Trouble::Unreachable };
    let after = scene.after(&[Report::AttemptFailed { of: scene.speaker("C0", attempt(0)), cause }]);
    let plan = after.plan();
    assert_eq!(after.restarts(&plan), "C0");
    assert_eq!(plan.actions.reread[0].suspect_until, Some(NOW + after.policy.suspect_grace));
    assert_eq!(plan.plan_again_at, plan.actions.reread[0].suspect_until);
}

#[test]
fn property_19_a_reader_that_fails_for_its_input_is_not_blamed() {
    let scene = Scene::new("A*1 B*1", &["A all until_acknowledged B"]).reads("B0", "A0 A-B", progress(10, Some(10), 0, 0));
    let cause = FailureCause::Input { partition: scene.partition("A0 A-B"), read: attempt(0), trouble: Trouble::Gone };
    let reports = [Report::AttemptFailed { of: scene.speaker("B0", attempt(0)), cause }, failed(&scene, "A0")];
    assert_eq!(fence(&scene.snapshot(), &reports).charged, [scene.task("A0")]);
    assert_eq!(fence(&scene.snapshot(), &reports[..1]).charged, [scene.task("A0")]);
}

#[test]
fn property_20_a_partition_not_yet_opened_is_waited_for() {
    let mut scene = Scene::new("A*1 B*1", &["A all blocking B"]).are(TaskState::Failed, "B0").are(TaskState::Scheduled, "A0");
    scene.draft.partitions[0][0] = None;
    assert_eq!(scene.restarts(&scene.plan()), "B0");
    let gone = scene.are(TaskState::Finished, "A0");
    assert_eq!(gone.restarts(&gone.plan()), "A0 B0", "but a finished writer opens nothing any more");
}

#[test]
fn property_21_a_plan_stops_the_attempts_it_knows_and_no_newer_ones() {
    let newer = AttemptId::new(3, 1);
    let scene = Scene::new("A*1 B*1", &["A all until_acknowledged B"])
        .reads("B0", "A0 A-B", progress(10, Some(10), 0, 0))
        .tune("B0", |record| {
            record.attempts = vec![AttemptRecord { attempt: newer, worker: Some(1) }];
            record.last_attempt = Some(newer);
        })
        .are(TaskState::Failed, "A0");
    let plan = scene.plan();
    assert_eq!(plan.actions.cancel.iter().map(|cancel| cancel.attempt).collect::<Vec<_>>(), [newer]);
    let numbers: Vec<_> = plan.actions.restart.iter().map(|restart| restart.attempt).collect();
    assert_eq!(numbers, [AttemptId::new(1, 0), AttemptId::new(4, 0)], "and every restart is above everything before it");
}

#[test]
fn property_22_a_plan_of_a_job_that_has_gone_on_or_ended_is_not_carried_out() {
    let scene = sealed_chain().are(TaskState::Failed, "C0");
    let plan = scene.plan();
    assert!(plan.fits(&scene.snapshot()));
    let moved = |change: fn(&mut Scene)| {
        let mut scene = scene.clone();
        change(&mut scene);
        scene.snapshot()
    };
    assert!(!plan.fits(&moved(|scene| scene.draft.graph_version += 1)));
    assert!(!plan.fits(&moved(|scene| scene.draft.job_epoch = JobEpoch::new(2))));
    assert!(!plan.fits(&moved(|scene| scene.draft.incarnation = JobIncarnation::new(2))));
}

#[test]
fn property_23_every_plan_asks_the_budget_and_keeps_its_delay() {
    let scene = sealed_chain().are(TaskState::Failed, "C0");
    let with = |allowance| plan(&scene.snapshot(), &scene.policy, allowance);
    assert_eq!(with(Allowance::Refused).verdict, Verdict::GiveUp(GiveUpReason::NoBudget));
    let pause = Duration::from_secs(7);
    assert_eq!(with(Allowance::After(pause)).delay, pause);
    assert_eq!(with(Allowance::Joins { remaining: pause }).delay, pause);
    let idle = plan(&sealed_chain().snapshot(), &scene.policy, Allowance::Refused);
    assert_eq!(idle.verdict, Verdict::Nothing, "where nothing restarts, no budget is needed");
}

#[test]
fn property_24_failures_during_a_restart_join_it_in_one_plan() {
    let scene = Scene::new("A*2 B*2", &["A pointwise until_acknowledged B"]);
    let scene = scene.reads("B0", "A0 A-B", progress(10, Some(10), 0, 0)).reads("B1", "A1 A-B", progress(10, Some(10), 0, 0));
    let first = scene.after(&[failed(&scene, "A0")]);
    assert_eq!(first.restarts(&first.plan()), "A0 B0");
    let underway = first.are(TaskState::Cancelled, "A0").tune("B0", |record| record.state = TaskState::Cancelling);
    let second = underway.after(&[failed(&underway, "B1"), failed(&underway, "B1")]);
    assert_eq!(second.restarts(&second.plan()), "A0 A1 B0 B1");
}

#[test]
fn property_25_a_restart_begins_at_the_restore_point_exactly() {
    let scene = Scene::new("A*1 B*2", &["A all since_checkpoint B"])
        .reads("B0", "A0 A-B", progress(100, Some(300), 100, 100))
        .reads("B1", "A0 A-B", progress(250, Some(300), 250, 250))
        .are(TaskState::Failed, "B0 B1");
    let plan = scene.plan();
    assert_eq!(scene.restarts(&plan), "B0 B1");
    assert_eq!(scene.reads_of(&plan.actions.reread), ["B0 A0 A-B 100", "B1 A0 A-B 250"]);
}

#[test]
fn property_27_a_late_failure_of_a_loser_leaves_a_finished_task_finished() {
    let loser = AttemptRecord { attempt: AttemptId::new(0, 1), worker: Some(1) };
    let scene = sealed_chain().tune("C0", |record| record.attempts.push(loser));
    let finished = Report::AttemptFinished { of: scene.speaker("C0", attempt(0)) };
    let late = Report::AttemptFailed { of: scene.speaker("C0", loser.attempt), cause: FailureCause::Own };
    let fenced = fence(&scene.snapshot(), &[finished]);
    assert_eq!(fenced.cancel.len(), 1, "the loser is stopped");
    assert_eq!(fence(&fenced.snapshot, &[late]).verdicts, [ReportVerdict::Dropped(DropReason::AttemptNotCurrent)]);
    let together = fence(&scene.snapshot(), &[late, finished]);
    assert_eq!(together.verdicts, [ReportVerdict::AttemptDropped, ReportVerdict::Accepted]);
    assert_eq!(together.snapshot.state(scene.task("C0")), TaskState::Finished);
    assert!(together.cancel.is_empty());
}

#[test]
fn property_30_a_promoted_dataset_with_a_lost_partition_is_incomplete() {
    let scene = sealed_chain().are(TaskState::Finished, "C0").sealed(&["B0 B-C"], None).part("B0 B-C", |record| record.is_promoted = true);
    assert!(scene.plan().incomplete.is_empty());
    let broken = lost(scene, &["B0 B-C"]);
    let plan = broken.plan();
    assert_eq!(plan.verdict, Verdict::Nothing);
    assert_eq!(plan.incomplete, [broken.partition("B0 B-C").dataset]);
}

#[test]
fn property_32_a_failure_named_after_a_finished_writer_is_not_its_own() {
    let scene = sealed_chain();
    let report = failed(&scene, "B0");
    assert_eq!(fence(&scene.snapshot(), &[report]).verdicts, [ReportVerdict::Dropped(DropReason::AlreadyFinished)]);
    assert_eq!(scene.after(&[report]).plan().verdict, Verdict::Nothing);
}

#[test]
fn property_34_what_was_given_back_is_not_read_as_empty() {
    let scene = sealed_chain().part("B0 B-C", |record| record.status = PartitionStatus::Released).are(TaskState::Failed, "C0");
    let plan = scene.plan();
    assert_eq!(scene.restarts(&plan), "B0 C0");
    assert_eq!(scene.reads_of(&plan.actions.reread), ["B0 A0 A-B 0"]);
}

#[test]
fn property_35_nobody_goes_on_from_one_attempt_to_another_unchecked() {
    let mut n_checked = 0;
    for seed in 0..2_000 {
        let scene = random_scene(seed, true).determinism(Determinism::Verified);
        let (plan, snapshot) = (scene.plan(), scene.snapshot());
        for row in &plan.actions.resume {
            let slot = scene.graph().group(row.group).unwrap().slot;
            let record = snapshot.partition(row.read.partition);
            for read in row.reads(scene.graph()) {
                let index = scene.graph().index_in_vertex(read.consumer);
                let one = record.map_or(Progress::UNTOUCHED, |record| *record.progress[slot].of(index));
                let has_seen = one.has_seen_beyond_rewind() && snapshot.state(read.consumer) != TaskState::Created;
                assert!(!has_seen || row.must_match_digest, "seed {seed}");
                n_checked += u32::from(has_seen);
            }
        }
    }
    assert!(n_checked > 50, "only {n_checked} reads had seen anything");
}

#[test]
fn property_36_trouble_that_nobody_can_name_ends_with_the_grace() {
    let scene = sealed_chain();
    let report = Report::PartitionTrouble { partition: scene.partition("B0 B-C"), held: attempt(0), trouble: Trouble::Unreachable };
    let mut after = scene.after(&[report]);
    assert_eq!(after.plan().verdict, Verdict::Nothing);
    after.draft.now += after.policy.suspect_grace;
    assert_eq!(after.restarts(&after.plan()), "B0 C0");
}

#[test]
fn property_37_diamonds_and_circles_come_to_an_end() {
    let diamond = Scene::new(
        "A*1 B*1 C*1 D*1",
        &["A all until_acknowledged B", "A all until_acknowledged C", "B all until_acknowledged D", "C all until_acknowledged D"],
    );
    let read = progress(10, Some(10), 0, 0);
    let diamond = diamond.reads("B0", "A0 A-B", read).reads("C0", "A0 A-C", read).reads("D0", "B0 B-D", read).reads("D0", "C0 C-D", read);
    let diamond = diamond.are(TaskState::Failed, "B0");
    assert_eq!(diamond.restarts(&diamond.plan()), "A0 B0 C0 D0");
    let circle = Scene::new("A*1 B*1", &["A all until_acknowledged B", "B all until_acknowledged A"]);
    let circle = circle.reads("B0", "A0 A-B", read).reads("A0", "B0 B-A", read).are(TaskState::Failed, "A0");
    let plan = circle.plan();
    assert_eq!(circle.restarts(&plan), "A0 B0");
    assert_eq!(circle.waves(&plan).len(), 1);
}

#[test]
fn property_38_losing_bytes_is_asked_for_and_said() {
    let scene = Scene::new("A*1 B*1", &["A all until_acknowledged B"])
        .reads("B0", "A0 A-B", progress(140, Some(140), 100, 100))
        .are(TaskState::Failed, "B0");
    assert!(!scene.plan().is_lossy);
    let lossy = scene.strategy(Strategy::Individual(Fallback::Lossy));
    let plan = lossy.plan();
    assert_eq!(lossy.restarts(&plan), "B0");
    assert!(plan.is_lossy);
    assert_eq!(plan.obstacles.iter().map(|one| lossy.name(one.task)).collect::<Vec<_>>(), ["A0"]);
    assert_eq!(lossy.reads_of(&plan.actions.reread), ["B0 A0 A-B 140"], "from what is left");
    let harmless = lossy.reads("B0", "A0 A-B", progress(100, Some(140), 100, 100));
    assert!(!harmless.plan().is_lossy, "where nothing is lost, nothing is said to be");
}

#[test]
fn the_end_of_an_empty_partition_counts_as_seen() {
    let told = Progress { sent: Sent::End, confirmed: Confirmed::End, ..Progress::UNTOUCHED };
    let scene = |one| Scene::new("A*1 B*1", &["A all full_copy B"]).reads("B0", "A0 A-B", one).are(TaskState::Failed, "A0");
    assert_eq!(scene(told).restarts(&scene(told).plan()), "A0 B0");
    assert_eq!(scene(Progress::UNTOUCHED).restarts(&scene(Progress::UNTOUCHED).plan()), "A0");
}

#[test]
fn a_reader_that_has_taken_everything_does_not_mind_a_loss() {
    let scene = lost(sealed_chain().sealed(&["B0 B-C"], None), &["B0 B-C"]);
    assert_eq!(scene.plan().verdict, Verdict::Nothing);
    let fails = scene.are(TaskState::Failed, "C0");
    assert_eq!(fails.restarts(&fails.plan()), "B0 C0");
}

#[test]
fn a_confirmation_older_than_the_restore_point_is_no_loss() {
    let stale = Progress { confirmed: Confirmed::UpTo(offset(60)), ..progress(100, Some(140), 100, 100) };
    let scene = Scene::new("A*1 B*1", &["A all since_checkpoint B"]).reads("B0", "A0 A-B", stale);
    assert_eq!(scene.plan().verdict, Verdict::Nothing);
}

#[test]
fn a_prefix_that_only_the_old_attempt_has_is_cut_not_released_or_the_restore_point_is_refused() {
    let scene = |floor| {
        let one = Progress { floor: offset(floor), ..progress(0, Some(140), 50, 100) };
        Scene::new("A*1 B*1", &["A all since_checkpoint B"]).reads("B0", "A0 A-B", one).are(TaskState::Failed, "A0 B0")
    };
    let plan = scene(50).plan();
    assert_eq!(plan.verdict, Verdict::Restart);
    assert!(plan.actions.release.is_empty());
    assert_eq!(plan.actions.truncate[0].others, [(0, offset(100))]);
    let Verdict::RestorePointRejected { missing } = scene(51).plan().verdict else { panic!("bytes 50 to 51 are gone") };
    assert_eq!((missing[0].from, missing[0].rewind), (offset(50), offset(100)));
}

#[test]
fn a_whole_output_of_a_writer_that_repeats_itself_is_kept_and_read() {
    let scene = Scene::new("A*1! B*1 C*1", &["A all blocking B", "A all blocking C"])
        .are(TaskState::Finished, "A0")
        .sealed(&["A0 A-B", "A0 A-C"], Some(10))
        .are(TaskState::Failed, "B0 C0");
    let scene = lost(scene, &["A0 A-C"]);
    let plan = scene.plan();
    assert_eq!(scene.restarts(&plan), "A0 B0 C0");
    assert_eq!(scene.reads_of(&plan.actions.reread), ["B0 A0 A-B 0"]);
    assert_eq!(scene.waves(&plan), ["A0 B0", "C0"], "who reads what is kept waits for nobody");
    assert_eq!((plan.cost.reread_bytes, plan.cost.recomputed_bytes, plan.cost.n_tasks), (1000, 1000, 3));
    assert_eq!((plan.cost_of_full.reread_bytes, plan.cost_of_full.recomputed_bytes), (0, 2000));
    let ignored = scene.clone().determinism(Determinism::Ignored).plan();
    assert_eq!(scene.partition_names(ignored.actions.release.iter().map(|one| one.partition)), ["A0 A-B", "A0 A-C"]);
    let without = scene.part("A0 A-B", |record| record.has_digests = false);
    assert!(without.plan().actions.keep.is_empty(), "what cannot be verified is not believed");
}

#[test]
fn a_committed_task_is_never_restarted_silently_under_any_strategy() {
    for strategy in [Strategy::Full, Strategy::Region, Strategy::Individual(Fallback::Escalate), Strategy::Individual(Fallback::Lossy)] {
        let scene = sealed_chain().tune("C0", |record| record.is_committed = true).are(TaskState::Failed, "C0").strategy(strategy);
        let plan = scene.plan();
        assert_eq!(plan.verdict, Verdict::Inconsistent { tasks: vec![scene.task("C0")] });
        assert_eq!(plan.actions, Actions::default());
    }
}

#[test]
fn an_operator_sees_the_chain_of_reasons_back_to_the_failure() {
    let scene = lost(sealed_chain().are(TaskState::Failed, "C0"), &["B0 B-C", "A0 A-B"]);
    let plan = scene.plan();
    let chain: Vec<String> = plan.why(scene.task("A0")).iter().map(|(task, _)| scene.name(*task)).collect();
    assert_eq!(chain, ["A0", "B0", "C0"]);
    assert_eq!(scene.waves(&plan), ["A0", "B0", "C0"], "and writers start before their readers");
    assert_eq!(plan, plan_again(&scene), "asked twice, the same");
}

fn plan_again(scene: &Scene) -> Plan {
    plan(&scene.snapshot(), &scene.policy, AT_ONCE)
}

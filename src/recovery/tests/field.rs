//! Faults that people met, as they would look here.

use super::scene::{AT_ONCE, LIFE, NOW, Scene, attempt, offset, progress};
use crate::recovery::graph_spec::{GangScope, GangSpec};
use crate::recovery::plan::Verdict;
use crate::recovery::policy::{Determinism, Strategy};
use crate::recovery::release::{HoldReason, ReleasePolicy, hold_reason};
use crate::recovery::report::{FailureCause, Report};
use crate::recovery::snapshot::{GroupProgress, Location, NodeStanding, PartitionStatus, TaskState};
use crate::recovery::{fence, plan};
use std::time::Duration;
use store_api::ids::NodeLife;

fn chain(edges: &[&str]) -> Scene {
    Scene::new("A*1 B*1 C*1 D*1 E*1", edges)
        .are(TaskState::Finished, "A0 B0 C0 E0")
        .sealed(&["A0 A-B", "B0 B-C"], None)
        .are(TaskState::Failed, "D0")
}

fn restarts(scene: &Scene, lost: &[&str]) -> String {
    let scene = lost.iter().fold(scene.clone(), |scene, name| scene.part(name, |record| record.status = PartitionStatus::Lost));
    scene.restarts(&scene.plan())
}

/// P1
#[test]
fn lost_inputs_are_followed_upwards_and_no_further_than_needed() {
    let sealed = chain(&["A all blocking B", "B all blocking C", "C all blocking D"]).sealed(&["C0 C-D"], Some(10));
    assert_eq!(restarts(&sealed, &[]), "D0");
    assert_eq!(restarts(&sealed, &["C0 C-D"]), "C0 D0");
    assert_eq!(restarts(&sealed, &["C0 C-D", "B0 B-C"]), "B0 C0 D0");
    assert_eq!(restarts(&sealed, &["C0 C-D", "B0 B-C", "A0 A-B"]), "A0 B0 C0 D0");
    assert_eq!(restarts(&sealed, &["A0 A-B", "B0 B-C"]), "D0");
    let durable = chain(&["A all blocking B", "B all blocking C", "C all durable D"]).sealed(&["C0 C-D"], Some(10));
    let durable = durable.part("C0 C-D", |record| record.location = Location::Node { node: 1, life: LIFE }).lose_host(1);
    assert_eq!(restarts(&durable, &[]), "D0");
    let shared = ["A all blocking B", "B all blocking C", "C all blocking D out", "C all blocking E out"];
    let two = chain(&shared).sealed(&["C0 out"], Some(10));
    assert_eq!(restarts(&two, &["C0 out"]), "C0 D0 E0", "the finished reader too");
    let repeatable =
        Scene::new("A*1 B*1 C*1! D*1 E*1", &shared).are(TaskState::Finished, "A0 B0 C0 E0").sealed(&["A0 A-B", "B0 B-C"], None);
    let repeatable = repeatable.sealed(&["C0 out"], Some(10)).are(TaskState::Failed, "D0").determinism(Determinism::Believed);
    assert_eq!(restarts(&repeatable, &["C0 out"]), "C0 D0");
}

/// P2
#[test]
fn the_loss_of_a_host_is_the_loss_of_all_it_held_in_one_plan() {
    let mut scene = Scene::new("A*5 B*3", &["A pointwise blocking B"]).are(TaskState::Finished, "A0 A1 A2 A3 A4");
    for (name, host) in [("A0 A-B", 1), ("A1 A-B", 1), ("A2 A-B", 2), ("A3 A-B", 1), ("A4 A-B", 1)] {
        scene = scene.sealed(&[name], Some(0)).part(name, |record| record.location = Location::Node { node: host, life: LIFE });
    }
    // The reader of A3 and A4 has finished: they are needed no more.
    let scene = scene.are(TaskState::Finished, "B2");
    let after = scene.after(&[Report::NodeLost { node: 1, life: LIFE }]);
    assert_eq!(after.restarts(&after.plan()), "A0 A1");
    let doubted = scene.after(&[Report::NodeUnreachable { node: 1, life: LIFE }]);
    assert_eq!(doubted.plan().verdict, Verdict::Nothing);
    assert_eq!(doubted.plan().plan_again_at, Some(NOW + doubted.policy.suspect_grace));
}

/// P5, B7
#[test]
fn what_is_heard_late_of_a_former_life_does_not_touch_the_present_one() {
    let scene = Scene::new("A*1 B*1", &["A all blocking B"]).are(TaskState::Finished, "A0").sealed(&["A0 A-B"], Some(10));
    let late = [Report::NodeLost { node: 0, life: NodeLife::new(1) }, Report::WorkerLost { worker: 0, life: NodeLife::new(1) }];
    assert_eq!(scene.after(&late).plan().verdict, Verdict::Nothing);
}

#[test]
fn a_node_that_comes_back_is_waited_for_where_a_disk_can_come_back() {
    let scene = |kind: &str| {
        let scene = Scene::new("A*1 B*1", &[&format!("A all {kind} B")]).are(TaskState::Finished, "A0").sealed(&["A0 A-B"], Some(10));
        let mut scene = scene.are(TaskState::Failed, "B0");
        scene.draft.nodes[0].life = NodeLife::new(8);
        scene.draft.nodes[0].life_since = NOW - Duration::from_secs(5);
        scene
    };
    assert_eq!(scene("full_copy").restarts(&scene("full_copy").plan()), "A0 B0", "memory does not come back");
    let disk = scene("blocking");
    let plan = disk.plan();
    assert_eq!(disk.restarts(&plan), "B0");
    assert!(plan.actions.reread[0].suspect_until.is_some());
    let here = Location::Node { node: 0, life: NodeLife::new(8) };
    let back = disk.after(&[Report::PartitionAnswers { partition: disk.partition("A0 A-B"), held: attempt(0), location: here }]);
    assert_eq!(back.plan().actions.reread[0].suspect_until, None);
    let mut late = disk;
    late.draft.now += late.policy.suspect_grace;
    assert_eq!(late.restarts(&late.plan()), "A0 B0");
}

#[test]
fn losing_a_worker_loses_no_partition_and_losing_a_node_fails_no_task() {
    let scene = Scene::new("A*1 B*1", &["A all blocking B"]).are(TaskState::Finished, "A0").sealed(&["A0 A-B"], Some(0));
    let worker = scene.after(&[Report::WorkerLost { worker: 0, life: LIFE }]);
    assert_eq!(worker.restarts(&worker.plan()), "B0");
    let node = scene.after(&[Report::NodeLost { node: 0, life: LIFE }]);
    assert_eq!(node.restarts(&node.plan()), "A0", "B0 has seen nothing and runs on");
}

/// P8: the plan is there before a host is.
#[test]
fn with_the_last_host_gone_there_is_a_plan_that_waits_for_one() {
    let scene = Scene::new("A*2 B*1", &["A all until_acknowledged B"]);
    let scene = (0..super::scene::N_NODES).fold(scene, Scene::lose_host);
    assert_eq!(scene.restarts(&scene.plan()), "A0 A1 B0");
    assert_eq!(scene.plan().verdict, Verdict::Restart);
}

/// P11
#[test]
fn a_second_failure_makes_one_plan_for_both_and_the_first_no_longer_fits() {
    let scene = Scene::new("A*2 B*2", &["A pointwise until_acknowledged B"]);
    let fails = |task| Report::AttemptFailed { of: scene.speaker(task, attempt(0)), cause: FailureCause::Own };
    let first = scene.after(&[fails("A0")]);
    let plan_one = first.plan();
    let mut committed = first.clone();
    committed.draft.graph_version += 1;
    let second = committed.after(&[fails("B1"), fails("B1"), fails("A0")]);
    assert_eq!(second.restarts(&second.plan()), "A0 B1");
    assert!(!plan_one.fits(&second.snapshot()));
    assert!(second.plan().fits(&second.snapshot()));
}

/// P14, and gangs in general.
#[test]
fn gangs_restart_together_only_if_they_say_so() {
    let scene = |restarts_together, scope| {
        let gang = GangSpec { vertices: vec!["A".to_owned(), "B".to_owned()], scope, restarts_together };
        Scene::with_gangs("A*2 B*2", &["A pointwise blocking B"], vec![gang])
            .are(TaskState::Finished, "A0 A1")
            .sealed(&["A0 A-B", "A1 A-B"], Some(10))
            .are(TaskState::Failed, "B0")
    };
    let restarts = |together, scope| scene(together, scope).restarts(&scene(together, scope).plan());
    assert_eq!(restarts(false, GangScope::AllTasks), "B0");
    assert_eq!(restarts(true, GangScope::SameIndex), "A0 B0");
    assert_eq!(restarts(true, GangScope::AllTasks), "A0 A1 B0 B1");
    let together = scene(true, GangScope::SameIndex);
    let plan = together.plan();
    assert_eq!(together.waves(&plan), ["A0 B0"]);
    assert!(plan.actions.waves[0].has_inner_seal);
}

#[test]
fn inputs_are_held_until_a_cut_below_them_is_complete_unless_space_is_preferred() {
    let scene = |kind: &str| {
        let last = format!("B all {kind} C");
        Scene::new("A*2 B*2 C*1", &["A all blocking B", &last])
            .are(TaskState::Finished, "A0 A1 B0 B1")
            .sealed(&["A0 A-B", "A1 A-B"], None)
            .sealed(&["B0 B-C", "B1 B-C"], Some(10))
    };
    let reason = |scene: &Scene, policy| hold_reason(&scene.snapshot(), scene.partition("A0 A-B"), policy);
    let local = scene("blocking");
    assert_eq!(reason(&local, ReleasePolicy::PreferRecovery), Some(HoldReason::Downstream));
    assert_eq!(reason(&local, ReleasePolicy::PreferSpace), None);
    assert_eq!(reason(&scene("durable"), ReleasePolicy::PreferRecovery), None);
    assert_eq!(reason(&local.clone().are(TaskState::Finished, "C0"), ReleasePolicy::PreferRecovery), None);
    let half = scene("durable").part("B1 B-C", |record| record.status = PartitionStatus::Lost);
    assert_eq!(reason(&half, ReleasePolicy::PreferRecovery), Some(HoldReason::Downstream));
    let promoted = local.part("B0 B-C", |record| record.is_promoted = true).part("B1 B-C", |record| record.is_promoted = true);
    assert_eq!(reason(&promoted, ReleasePolicy::PreferRecovery), None);
}

#[test]
fn full_gives_back_everything_that_was_not_promoted() {
    let scene = Scene::new("A*1! B*1", &["A all blocking B", "A all blocking B out"])
        .are(TaskState::Finished, "A0")
        .sealed(&["A0 A-B", "A0 out"], Some(10))
        .part("A0 out", |record| record.is_promoted = true)
        .are(TaskState::Failed, "B0")
        .strategy(Strategy::Full);
    let plan = scene.plan();
    assert_eq!(scene.partition_names(plan.actions.release.iter().map(|one| one.partition)), ["A0 A-B"]);
    assert_eq!(scene.partition_names(plan.actions.keep.iter().map(|one| one.kept.partition)), ["A0 out"]);
    assert_eq!(scene.reads_of(&plan.actions.reread), ["B0 A0 out 0"]);
    assert_eq!(plan.cost, plan.cost_of_full);
    assert!(fence(&scene.snapshot(), &[]).release.is_empty());
}

#[test]
fn bounds_in_place_of_single_numbers_restart_at_most_too_much() {
    for seed in 0..2_000 {
        let exact = super::random::random_scene(seed, true);
        let mut bound = exact.clone();
        for group in bound.draft.partitions.iter_mut().flatten().flatten().flat_map(|record| record.progress.iter_mut()) {
            *group = GroupProgress::of_all(super::random::bounds_of(group));
        }
        let tasks = |scene: &Scene| scene.plan().tasks().collect::<std::collections::BTreeSet<_>>();
        assert!(tasks(&exact).is_subset(&tasks(&bound)), "seed {seed}");
    }
}

#[test]
fn a_task_on_a_lost_worker_with_an_attempt_elsewhere_goes_on() {
    let scene = Scene::new("A*1 B*1", &["A all blocking B"]).are(TaskState::Created, "B0").tune("A0", |record| {
        let elsewhere = crate::recovery::snapshot::AttemptRecord { attempt: store_api::ids::AttemptId::new(0, 1), worker: Some(1) };
        record.attempts.push(elsewhere);
    });
    let mut scene = scene;
    scene.draft.workers[0].is_lost = true;
    assert_eq!(plan(&scene.snapshot(), &scene.policy, AT_ONCE).verdict, Verdict::Nothing);
    scene.draft.workers[1].is_lost = true;
    assert_eq!(scene.restarts(&scene.plan()), "A0");
    assert_eq!(scene.plan().actions.cancel.len(), 2, "both are stopped, should they still live");
    scene.draft.nodes[0].standing = NodeStanding::Up;
    let seen = scene.reads("B0", "A0 A-B", progress(0, Some(0), 0, 0)).part("A0 A-B", |record| record.progress[0].common.end = offset(0));
    assert_eq!(seen.restarts(&seen.plan()), "A0");
}

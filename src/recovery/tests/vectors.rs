//! Cases written down as JSON, each a claim.

use super::scene::{LIFE, Scene, offset, progress};
use super::static_regions;
use crate::recovery::plan::Verdict;
use crate::recovery::policy::{Determinism, Fallback, Strategy};
use crate::recovery::snapshot::{Location, PartitionStatus, Progress, TaskState};
use serde_json::Value;
use std::collections::BTreeSet;

fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()).collect()
}

/// ["A0", "A-B", 10] as "A0 A-B 10", sorted.
fn lines(value: &Value) -> Vec<String> {
    let word = |one: &Value| one.as_str().map_or_else(|| one.to_string(), str::to_owned);
    let line = |one: &Value| one.as_array().unwrap().iter().map(word).collect::<Vec<_>>().join(" ");
    let mut all: Vec<String> = value.as_array().unwrap().iter().map(line).collect();
    all.sort();
    all
}

fn host(name: &Value) -> u32 {
    name.as_str().map_or(0, |name| name.trim_start_matches('n').parse().unwrap())
}

fn scene_of(case: &Value) -> Scene {
    let edges = strings(&case["edges"]);
    let edges: Vec<&str> = edges.iter().map(String::as_str).collect();
    let mut scene = Scene::new(case["vertices"].as_str().unwrap(), &edges).determinism(Determinism::Believed);
    for (task, node) in case["placed"].as_object().unwrap() {
        scene = scene.on(task, host(node));
    }
    for (task, state) in case["tasks"].as_object().unwrap() {
        let state = match state.as_str().unwrap() {
            "created" => TaskState::Created,
            "running" => TaskState::Running,
            "finished" => TaskState::Finished,
            other => panic!("no state {other}"),
        };
        scene = scene.are(state, task);
    }
    for task in strings(&case["committed"]) {
        scene = scene.tune(&task, |record| record.is_committed = true);
    }
    for partition in case["partitions"].as_array().unwrap() {
        let name = format!("{} {}", partition[0].as_str().unwrap(), partition[1].as_str().unwrap());
        let is_sealed = partition[2] == "sealed";
        scene = scene.part(&name, |record| {
            record.is_sealed = is_sealed;
            record.location = Location::Node { node: host(&partition[3]), life: LIFE };
        });
        for (reader, numbers) in partition[4].as_object().unwrap() {
            let number = |place: usize| numbers[place].as_u64().unwrap();
            let one = progress(number(0), numbers[1].as_u64(), number(2), number(3));
            let one = if is_sealed { Progress { end: offset(1000), ..one } } else { one };
            scene = scene.reads(reader, &name, one);
        }
    }
    for task in strings(&case["failed_tasks"]) {
        scene = scene.are(TaskState::Failed, &task);
    }
    for node in case["lost_nodes"].as_array().unwrap() {
        scene = scene.lose_host(host(node));
    }
    for name in lines(&case["lost_partitions"]) {
        scene = scene.part(&name, |record| record.status = PartitionStatus::Lost);
    }
    scene
}

fn cases() -> Vec<Value> {
    let cases: Vec<Value> = serde_json::from_str(include_str!("vectors.json")).unwrap();
    assert_eq!(cases.len(), 24);
    cases
}

#[test]
fn the_region_strategy_restarts_reads_and_releases_what_each_case_says() {
    for case in cases() {
        let (claim, scene) = (&case["claim"], scene_of(&case));
        let plan = scene.plan();
        assert_eq!(scene.restarts(&plan), strings(&case["restart"]).join(" "), "{claim}");
        let published = strings(&case["inconsistent"]);
        if !published.is_empty() {
            assert_eq!(plan.verdict, Verdict::Inconsistent { tasks: published.iter().map(|name| scene.task(name)).collect() }, "{claim}");
            assert_eq!(plan.actions, crate::recovery::plan::Actions::default(), "{claim}: nothing may be carried out");
            continue;
        }
        assert_eq!(plan.verdict, Verdict::Restart, "{claim}");
        assert_eq!(scene.reads_of(&plan.actions.reread), lines(&case["reread"]), "{claim}: re-reads");
        assert_eq!(scene.reads_of(&plan.actions.resume), lines(&case["resume"]), "{claim}: resumes");
        let released = plan.actions.release.iter().map(|released| released.partition);
        assert_eq!(scene.partition_names(released), lines(&case["release"]), "{claim}: releases");
        let kept = plan.actions.keep.iter().map(|keep| keep.kept.partition);
        assert_eq!(scene.partition_names(kept), lines(&case["keep"]), "{claim}: keeps");
    }
}

#[test]
fn the_individual_strategy_names_the_obstacles_that_each_case_says() {
    for case in cases() {
        let claim = &case["claim"];
        let obstacles = strings(&case["obstacles"]);
        let scene = scene_of(&case).strategy(Strategy::Individual(Fallback::Refuse));
        let plan = scene.plan();
        let named: Vec<String> = plan.obstacles.iter().map(|obstacle| scene.name(obstacle.task)).collect();
        assert_eq!(named, obstacles, "{claim}");
        assert_eq!(plan.verdict == Verdict::NotIndividuallyRecoverable, !obstacles.is_empty(), "{claim}");

        let escalated = scene.clone().strategy(Strategy::Individual(Fallback::Escalate)).plan();
        assert_eq!(scene.restarts(&escalated), strings(&case["restart"]).join(" "), "{claim}: escalated");
        assert_eq!(escalated.strategy == Strategy::Region, !obstacles.is_empty(), "{claim}: says what it did");
    }
}

#[test]
fn the_full_strategy_restarts_everything_that_was_ever_deployed() {
    for case in cases() {
        let scene = scene_of(&case).strategy(Strategy::Full);
        let plan = scene.plan();
        let tasks = case["tasks"].as_object().unwrap();
        let deployed: Vec<&str> = tasks.iter().filter(|(_, state)| *state != "created").map(|(task, _)| task.as_str()).collect();
        assert_eq!(scene.restarts(&plan), deployed.join(" "), "{}", case["claim"]);
        let is_inconsistent = matches!(plan.verdict, Verdict::Inconsistent { .. });
        assert_eq!(is_inconsistent, !strings(&case["committed"]).is_empty(), "{}", case["claim"]);
        assert_eq!(plan.cost, plan.cost_of_full, "{}", case["claim"]);
    }
}

#[test]
fn no_plan_is_larger_than_that_of_static_regions_unless_it_acts_on_a_loss_nobody_has_run_into() {
    for case in cases() {
        let (claim, scene) = (&case["claim"], scene_of(&case));
        let snapshot = scene.snapshot();
        let failed_tasks = strings(&case["failed_tasks"]);
        let on_lost = case["placed"].as_object().unwrap().iter().filter(|(_, node)| case["lost_nodes"].as_array().unwrap().contains(node));
        let failed: BTreeSet<_> = failed_tasks.iter().chain(on_lost.map(|(task, _)| task)).map(|name| scene.task(name)).collect();
        let is_available = |partition| {
            let record = snapshot.partition(partition).unwrap();
            let is_durable = scene.graph().dataset(partition.dataset).unwrap().properties == super::scene::kind("durable");
            let node_is_up = !matches!(record.location, Location::Node { node, .. } if case["lost_nodes"].as_array().unwrap().iter().any(|lost| host(lost) == node));
            record.status == PartitionStatus::Available && (node_is_up || is_durable)
        };
        let theirs = static_regions::restarts(scene.graph(), &failed, is_available, |task| snapshot.state(task));
        let names: Vec<String> = theirs.iter().map(|task| scene.name(*task)).collect();
        assert_eq!(names, strings(&case["by_static_regions"]), "{claim}: the yardstick");
        let ours: BTreeSet<_> = scene.plan().tasks().collect();
        assert!(ours.is_subset(&theirs) || failed.is_empty(), "{claim}");
    }
}

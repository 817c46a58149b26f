//! From a failure to a plan that is in force, and to the end of it.

use super::*;

#[tokio::test]
async fn a_failed_consumer_behind_blocking_outputs_restarts_alone() {
    let driver = Driver::new().await.with_maps_done().await;
    driver.run("join", 0, "0.0", Some("w1")).await;
    driver.run("join", 1, "0.0", Some("w1")).await;
    let told = driver.fail("join", 1, "0.0").await;
    assert_eq!((told.outcomes[0], told.plan), (ReportOutcome::Accepted, Some(1)));
    assert_eq!(driver.plan(), (PlanVerdict::Restart, vec!["join#1 1.0".to_owned()]));
    assert_eq!(driver.stage(1), PlanStage::Ready, "nothing had to be stopped");
    assert_eq!(driver.run("join", 1, "1.0", Some("w1")).await, ReportOutcome::Accepted);
    assert_eq!(driver.stage(1), PlanStage::Done);
}

#[tokio::test]
async fn a_plan_waits_until_what_it_stops_has_stopped() {
    let driver = Driver::bare().await;
    driver.declare(driver::three_stages(DatasetProperties::pipelined(Keeps::Unacknowledged)), "5").await;
    for (vertex, index) in [("map", 0), ("map", 1), ("join", 0), ("join", 1)] {
        driver.run(vertex, index, "0.0", None).await;
    }
    driver.fail("join", 1, "0.0").await;
    let restarted = ["map#0 1.0", "map#1 1.0", "join#0 1.0", "join#1 1.0"].map(str::to_owned).to_vec();
    assert_eq!(driver.plan(), (PlanVerdict::Restart, restarted));
    assert_eq!(driver.stage(1), PlanStage::Stopping);
    assert_eq!(driver.stopped("map", 0, "0.0").await, ReportOutcome::Accepted);
    assert_eq!(driver.finish("map", 1, "0.0").await, ReportOutcome::CountsAsCancelled, "it ended while it was being stopped");
    assert_eq!(driver.stage(1), PlanStage::Stopping);
    assert_eq!(driver.stopped("join", 0, "0.0").await, ReportOutcome::Accepted);
    assert_eq!(driver.stage(1), PlanStage::Ready);
    assert_eq!(driver.stopped("join", 0, "0.0").await, ReportOutcome::Duplicate);
    let (_, tasks) = driver.coordinator.tasks(&driver.job).unwrap();
    assert!(tasks.iter().take(4).all(|task| task.standing == TaskStanding::Scheduled), "{tasks:?}");
}

/// X2, B9, P3: reports about attempts that are not current change nothing.
#[tokio::test]
async fn late_reports_of_a_superseded_attempt_change_nothing() {
    let driver = Driver::new().await.with_maps_done().await;
    driver.run("join", 1, "0.0", None).await;
    driver.fail("join", 1, "0.0").await;
    driver.run("join", 1, "1.0", None).await;
    let before = driver.state();
    let writes = *driver.catalog.n_writes.lock();
    for _ in 0..2 {
        assert_eq!(driver.fail("join", 1, "0.0").await, Told { outcomes: vec![ReportOutcome::NotCurrent], plan: None });
        assert_eq!(driver.finish("join", 1, "0.0").await, ReportOutcome::NotCurrent);
        assert_eq!(driver.run("join", 1, "0.0", None).await, ReportOutcome::NotCurrent);
        assert_eq!(driver.run("join", 1, "1.0", None).await, ReportOutcome::Duplicate);
    }
    assert_eq!(driver.state(), before);
    assert_eq!(*driver.catalog.n_writes.lock(), writes, "what changes nothing is not journaled");
}

/// X1: a task with another live attempt has not failed; the first end wins and stops the others.
#[tokio::test]
async fn attempts_side_by_side_fail_one_by_one_and_the_first_end_wins() {
    let driver = Driver::new().await;
    driver.run("map", 0, "0.0", None).await;
    driver.run("map", 0, "0.1", None).await;
    assert_eq!(driver.fail("map", 0, "0.0").await, Told { outcomes: vec![ReportOutcome::AttemptDropped], plan: None });
    driver.run("map", 1, "0.0", None).await;
    driver.run("map", 1, "0.1", None).await;
    assert_eq!(driver.finish("map", 1, "0.1").await, ReportOutcome::Accepted);
    let (_, tasks) = driver.coordinator.tasks(&driver.job).unwrap();
    assert_eq!(tasks[1].stopping, vec![driver::attempt("0.0")]);
    assert_eq!(driver.finish("map", 1, "0.0").await, ReportOutcome::CountsAsCancelled);
    assert_eq!(driver.fail("map", 0, "0.1").await.plan, Some(1));
}

/// C3, P2: everything that is known to be lost is in one plan.
#[tokio::test]
async fn the_loss_of_a_node_is_one_plan_with_every_producer_that_is_still_needed() {
    let driver = Driver::new().await.with_maps_done().await;
    driver.run("join", 0, "0.0", None).await;
    driver.wait(Duration::from_secs(30)).await;
    assert_eq!(driver.n_plans(), 0, "suspect is not lost");
    driver.wait(Duration::from_secs(20)).await;
    let restarted = ["map#0 1.0", "map#1 1.0", "join#0 1.0"].map(str::to_owned).to_vec();
    assert_eq!(driver.plan(), (PlanVerdict::Restart, restarted));
    driver.wait(Duration::from_secs(50)).await;
    assert_eq!(driver.n_plans(), 1);
}

/// C4: a loss that a node reports is planned for before a consumer fails over it.
#[tokio::test]
async fn a_loss_that_a_node_reports_is_planned_for_at_once() {
    let driver = Driver::new().await.with_maps_done().await;
    let lost = driver.held("shuffle", 1, "0.0", HeldState::Lost);
    driver.node_adds(1, 1, vec![lost]).await;
    assert_eq!(driver.plan(), (PlanVerdict::Restart, vec!["map#1 1.0".to_owned()]));
}

/// C12: what is shared stays when the node that made it goes.
#[tokio::test]
async fn shared_partitions_outlive_their_node() {
    let driver = Driver::bare().await;
    driver.declare(driver::three_stages(DatasetProperties::durable()), "5").await;
    for index in 0..2 {
        driver.run("map", index, "0.0", None).await;
        driver.finish("map", index, "0.0").await;
    }
    let shared = |partition| {
        let (key, held) = driver.held("shuffle", partition, "0.0", HeldState::Sealed);
        (key, Held { is_shared: true, ..held })
    };
    driver.node_holds(1, 1, vec![shared(0), shared(1)]).await;
    driver.run("join", 0, "0.0", None).await;
    driver.wait(Duration::from_secs(120)).await;
    assert_eq!(driver.n_plans(), 0);
    driver.fail("join", 0, "0.0").await;
    assert_eq!(driver.plan(), (PlanVerdict::Restart, vec!["join#0 1.0".to_owned()]));
}

/// X4: a node that comes back with what was planned away is told to give it back.
#[tokio::test]
async fn what_was_planned_away_is_given_back_when_its_node_returns() {
    let driver = Driver::new().await.with_maps_done().await;
    driver.wait(Duration::from_secs(60)).await;
    assert_eq!(driver.plan().1, ["map#0 1.0", "map#1 1.0"].map(str::to_owned).to_vec());
    let old = vec![driver.held("shuffle", 0, "0.0", HeldState::Sealed)];
    let orders = driver.node_holds(1, 2, old.clone()).await;
    assert!(orders.release.iter().any(|(key, held)| *key == old[0].0 && held.attempt == driver::attempt("0.0")), "{orders:?}");
    assert_eq!(driver.n_plans(), 1);
}

/// A node that comes back with its disk in time is used again.
#[tokio::test]
async fn a_node_that_returns_with_its_disk_in_time_changes_nothing() {
    let driver = Driver::new().await.with_maps_done().await;
    driver.run("join", 0, "0.0", None).await;
    driver.wait(Duration::from_secs(40)).await;
    let sealed = (0..2).map(|partition| driver.held("shuffle", partition, "0.0", HeldState::Sealed)).collect();
    driver.node_holds(1, 2, sealed).await;
    driver.wait(Duration::from_secs(45)).await;
    assert_eq!(driver.n_plans(), 0);
}

/// ... and what it did not bring back is lost at once.
#[tokio::test]
async fn what_a_new_life_of_a_node_does_not_name_is_lost() {
    let driver = Driver::new().await.with_maps_done().await;
    let kept = vec![driver.held("shuffle", 0, "0.0", HeldState::Sealed)];
    driver.node_holds(1, 2, kept).await;
    assert_eq!(driver.plan(), (PlanVerdict::Restart, vec!["map#1 1.0".to_owned()]));
}

/// C23: every plan takes from the budget, and the last refusal is told once.
#[tokio::test]
async fn a_job_whose_budget_is_used_up_is_given_up_and_nothing_revives_it() {
    let driver = Driver::bare().await;
    driver.declare(driver::three_stages(DatasetProperties::blocking()), "1").await;
    driver.run("map", 0, "0.0", None).await;
    driver.run("map", 1, "0.0", None).await;
    driver.fail("map", 0, "0.0").await;
    driver.wait(Duration::from_secs(1)).await;
    driver.run("map", 0, "1.0", None).await;
    driver.fail("map", 0, "1.0").await;
    assert_eq!(driver.plan(), (PlanVerdict::NoBudget, Vec::new()));
    assert_eq!(driver.coordinator.graph(&driver.job).unwrap().standing, JobStanding::GivenUp);
    driver.fail("map", 1, "0.0").await;
    driver.wait(Duration::from_secs(100)).await;
    assert_eq!(driver.n_plans(), 2);
}

/// P11: failures during a restart lead to another plan; what it does not name stays in force.
#[tokio::test]
async fn a_failure_during_a_restart_does_not_restart_twice_what_is_scheduled() {
    let driver = Driver::new().await.with_maps_done().await;
    driver.run("join", 0, "0.0", None).await;
    driver.run("join", 1, "0.0", None).await;
    driver.fail("join", 0, "0.0").await;
    driver.fail("join", 1, "0.0").await;
    assert_eq!(driver.plan().1, vec!["join#1 1.0".to_owned()]);
    assert_eq!((driver.stage(1), driver.stage(2)), (PlanStage::Ready, PlanStage::Ready));
    assert_eq!(driver.coordinator.graph(&driver.job).unwrap().graph_version, 2);
}

#[tokio::test]
async fn a_dry_run_shows_what_would_follow_and_changes_nothing() {
    let driver = Driver::new().await.with_maps_done().await;
    driver.run("join", 0, "0.0", None).await;
    let before = driver.state();
    let failures = Failures { tasks: vec![TaskAddress { vertex: "join".to_owned(), index: 0 }], ..Failures::default() };
    let rehearsal = Rehearsal { failures, nodes: vec![NodeId::new("n1").unwrap()], strategy: None };
    let view = driver.coordinator.rehearse(&driver.job, rehearsal).await.unwrap();
    assert_eq!((view.stage, view.record.number, view.record.restart.len()), (PlanStage::DryRun, 0, 3));
    assert_eq!(driver.state(), before);
    let full = Rehearsal { strategy: Some(Strategy::Full), ..Rehearsal::default() };
    assert_eq!(driver.coordinator.rehearse(&driver.job, full).await.unwrap().record.verdict, PlanVerdict::Nothing);
}

#[tokio::test]
async fn events_resume_after_a_cursor_and_a_strange_cursor_gets_one_reset() {
    use futures::StreamExt as _;
    let driver = Driver::new().await.with_maps_done().await;
    let mut events = driver.coordinator.events(&driver.job, None).unwrap();
    driver.run("join", 0, "0.0", None).await;
    driver.fail("join", 0, "0.0").await;
    let mut kinds = Vec::new();
    let mut cursor = None;
    for _ in 0..3 {
        let event = events.next().await.unwrap();
        cursor = cursor.or(Some(event.cursor));
        kinds.push(event.kind);
    }
    assert_eq!(kinds, [RecoveryEventKind::AttemptFailed, RecoveryEventKind::Plan, RecoveryEventKind::Ready]);
    let mut again = driver.coordinator.events(&driver.job, cursor).unwrap();
    assert_eq!(again.next().await.unwrap().kind, RecoveryEventKind::Plan);
    let strange = RecoveryCursor { epoch: 99, sequence: 1 };
    let mut after = driver.coordinator.events(&driver.job, Some(strange)).unwrap();
    assert_eq!(after.next().await.unwrap().kind, RecoveryEventKind::Reset);
}

#[tokio::test]
async fn another_graph_is_taken_until_a_task_was_started() {
    let driver = Driver::new().await;
    driver.declare(driver::three_stages(DatasetProperties::durable()), "5").await;
    driver.run("map", 0, "0.0", None).await;
    driver.declare(driver::three_stages(DatasetProperties::durable()), "5").await;
    let other = driver::declaration(driver::three_stages(DatasetProperties::blocking()), "5");
    let refused = driver.coordinator.declare(driver.job.clone(), other).await;
    assert!(matches!(refused, Err(CoordinatorError::GraphConflict)), "{refused:?}");
}

#[tokio::test]
async fn a_former_owner_is_fenced() {
    let driver = Driver::new().await;
    let newer = DeclareGraph { epoch: JobEpoch::new(2), ..driver::declaration(driver::three_stages(DatasetProperties::blocking()), "5") };
    driver.coordinator.declare(driver.job.clone(), newer).await.unwrap();
    let former = Some(JobEpoch::new(1));
    let refused = driver.coordinator.report(&driver.job, former, None, Vec::new()).await;
    assert!(matches!(refused, Err(CoordinatorError::FencedByEpoch(epoch)) if epoch.get() == 2), "{refused:?}");
}

#[tokio::test]
async fn the_first_proposal_of_a_seal_wins_also_after_a_restart() {
    let driver = Driver::new().await;
    let proposal = |number: &str, node: &str| SealProposal {
        key: driver.held("shuffle", 0, "0.0", HeldState::Sealed).0,
        attempt: driver::attempt(number),
        node: NodeId::new(node).unwrap(),
        life: NodeLife::new(1),
    };
    let (one, two) = (proposal("0.1", "n1"), proposal("0.2", "n2"));
    assert_eq!(driver.coordinator.decide_seal(&one).await.unwrap(), one.attempt);
    let driver = driver.restart().await;
    assert_eq!(driver.coordinator.decide_seal(&two).await.unwrap(), one.attempt);
    driver.coordinator.withdraw_seal(&two).await.unwrap();
    assert_eq!(driver.coordinator.decide_seal(&two).await.unwrap(), one.attempt);
    driver.coordinator.withdraw_seal(&one).await.unwrap();
    assert_eq!(driver.coordinator.decide_seal(&two).await.unwrap(), two.attempt);
}

//! kill -9 at every write of the journal.

use super::*;

/// What a driver does in a small job with a failure, step by step. Ends at the first refusal.
async fn story(driver: &Driver) -> CoordinatorResult<()> {
    let declared = driver::declaration(driver::three_stages(DatasetProperties::blocking()), "5");
    driver.coordinator.declare(driver.job.clone(), declared).await?;
    let running = || AttemptNews::Running { worker: None };
    let finished = || AttemptNews::Finished { is_committed: false };
    for index in 0..2 {
        driver.try_tell("map", index, "0.0", running()).await?;
        driver.try_tell("map", index, "0.0", finished()).await?;
    }
    driver.try_tell("join", 0, "0.0", running()).await?;
    driver.try_tell("join", 1, "0.0", running()).await?;
    driver.try_tell("join", 0, "0.0", AttemptNews::Failed { is_unrecoverable: false, input: None }).await?;
    driver.try_tell("join", 0, "1.0", running()).await?;
    driver.coordinator.fail(&driver.job, None, Failures { restart_all: true, graph_version: Some(1), ..Failures::default() }).await?;
    for (vertex, index, number) in [("join", 0, "1.0"), ("join", 1, "0.0")] {
        driver.try_tell(vertex, index, number, AttemptNews::Cancelled).await?;
    }
    for index in 0..2 {
        driver.try_tell("map", index, "1.0", running()).await?;
    }
    Ok(())
}

/// The story again and again until it is told whole, as a driver does after `unavailable`; reports
/// that came through before are repeats.
async fn told_whole(driver: &Driver) {
    story(driver).await.unwrap();
}

#[tokio::test]
async fn a_crash_at_any_write_leaves_a_state_from_which_the_same_story_ends_the_same() {
    let whole = Driver::bare().await;
    told_whole(&whole).await;
    let (expected, n_writes) = (whole.state(), *whole.catalog.n_writes.lock());
    assert!(n_writes > 15, "{n_writes}");
    for at in 0..n_writes - 1 {
        for happens in [false, true] {
            let driver = Driver::bare().await;
            *driver.catalog.fault.lock() = Some((at, happens));
            let cut = story(&driver).await;
            assert!(matches!(cut, Err(CoordinatorError::Journal(_))) || at + 1 >= n_writes - 1, "write {at}: {cut:?}");
            let driver = driver.restart().await;
            assert_eq!(driver.coordinator.epoch(), 2);
            told_whole(&driver).await;
            let (version, tasks, plans) = driver.state();
            assert_eq!((version, &tasks), (expected.0, &expected.1), "write {at}, happens {happens}");
            let actions =
                |plans: &[PlanRecord]| -> Vec<_> { plans.iter().map(|plan| (plan.restart.clone(), plan.cancel.clone())).collect() };
            assert_eq!(actions(&plans), actions(&expected.2), "write {at}, happens {happens}: no plan is doubled");
        }
    }
}

#[tokio::test]
async fn without_a_crash_an_answer_that_was_lost_is_looked_up() {
    for happens in [false, true] {
        let driver = Driver::new().await;
        *driver.catalog.fault.lock() = Some((0, happens));
        let cut = driver.try_tell("map", 0, "0.0", AttemptNews::Running { worker: None }).await;
        assert!(matches!(cut, Err(CoordinatorError::Journal(_))));
        *driver.catalog.fault.lock() = None;
        let outcome = driver.run("map", 0, "0.0", None).await;
        assert_eq!(outcome, if happens { ReportOutcome::Duplicate } else { ReportOutcome::Accepted });
        assert_eq!(driver.finish("map", 0, "0.0").await, ReportOutcome::Accepted);
    }
}

/// P13, C31: what nobody announces after a restart is lost when the grace is over, and not before.
#[tokio::test]
async fn a_node_that_died_with_the_coordinator_is_missed_one_grace_after_the_start() {
    let driver = Driver::new().await.with_maps_done().await;
    driver.run("join", 0, "0.0", None).await;
    let driver = driver.restart().await;
    let half = vec![driver.held("shuffle", 0, "0.0", HeldState::Sealed)];
    driver.node_holds(2, 5, half).await;
    driver.wait(Duration::from_secs(45)).await;
    driver.node_adds(2, 5, Vec::new()).await;
    assert_eq!(driver.n_plans(), 0);
    driver.wait(Duration::from_secs(10)).await;
    assert_eq!(driver.plan(), (PlanVerdict::Restart, vec!["map#1 1.0".to_owned(), "join#0 1.0".to_owned()]));
}

#[tokio::test]
async fn a_restart_with_everybody_there_plans_nothing() {
    let driver = Driver::new().await.with_maps_done().await;
    driver.run("join", 0, "0.0", Some("w1")).await;
    let driver = driver.restart().await;
    driver.coordinator.register_worker(&driver.job, &WorkerId::new("w1").unwrap(), NodeLife::new(1)).await.unwrap();
    let sealed = (0..2).map(|partition| driver.held("shuffle", partition, "0.0", HeldState::Sealed)).collect();
    driver.node_holds(1, 1, sealed).await;
    for _ in 0..10 {
        driver.wait(Duration::from_secs(10)).await;
        driver.node_adds(1, 1, Vec::new()).await;
        driver.coordinator.worker_heartbeat(&driver.job, &WorkerId::new("w1").unwrap(), NodeLife::new(1), Vec::new()).unwrap();
    }
    assert_eq!(driver.n_plans(), 0);
}

/// The coordinator dies in the middle of a plan: it goes on where it was.
#[tokio::test]
async fn a_plan_that_was_half_carried_out_goes_on_after_a_restart() {
    let driver = Driver::bare().await;
    driver.declare(driver::three_stages(DatasetProperties::pipelined(Keeps::Unacknowledged)), "5").await;
    for (vertex, index) in [("map", 0), ("map", 1), ("join", 0), ("join", 1)] {
        driver.run(vertex, index, "0.0", None).await;
    }
    driver.fail("join", 1, "0.0").await;
    driver.stopped("map", 0, "0.0").await;
    let before = driver.state();
    let driver = driver.restart().await;
    assert_eq!(driver.state(), before);
    assert_eq!(driver.stage(1), PlanStage::Stopping);
    driver.stopped("map", 1, "0.0").await;
    driver.stopped("join", 0, "0.0").await;
    assert_eq!(driver.stage(1), PlanStage::Ready);
    driver.wait(Duration::from_secs(1)).await;
    assert_eq!(driver.n_plans(), 1);
}

#[tokio::test]
async fn an_ended_job_leaves_nothing_behind() {
    let driver = Driver::new().await.with_maps_done().await;
    driver.coordinator.end_job(&driver.job).await.unwrap();
    driver.coordinator.end_job(&driver.job).await.unwrap();
    assert!(matches!(driver.coordinator.graph(&driver.job), Err(CoordinatorError::UnknownGraph)));
    let left: Vec<String> = driver.catalog.scan("coordinator/log/").await.unwrap().into_iter().map(|(key, _)| key).collect();
    assert_eq!(left, Vec::<String>::new());
}

#[tokio::test]
async fn entries_larger_than_a_value_are_cut_and_joined_and_half_an_entry_does_not_count() {
    let catalog = Arc::new(MemoryCatalog::default());
    let journal = Journal::with_part_bytes(catalog.clone(), 16);
    let job = JobKey { job: JobId::new("q1").unwrap(), incarnation: JobIncarnation::new(7) };
    let spec = driver::three_stages(DatasetProperties::blocking());
    let policy = crate::recovery::policy::Policy::default();
    let change = Change::Declared {
        graph: entry::GraphRecord::of(&spec),
        policy: entry::PolicyRecord::of(&policy, std::collections::BTreeMap::new()),
        job_epoch: 1,
    };
    let whole = Entry { version: ENTRY_VERSION, at_ms: 5, change };
    *catalog.fault.lock() = Some((3, false));
    assert!(journal.append(&job, 0, &whole).await.is_err());
    *catalog.fault.lock() = None;
    assert!(journal.load().await.unwrap().is_empty());
    journal.append(&job, 0, &whole).await.unwrap();
    journal.append(&job, 0, &whole).await.unwrap();
    let other = Entry { at_ms: 6, ..whole.clone() };
    assert!(journal.append(&job, 0, &other).await.is_err(), "another entry has this number");
    assert_eq!(journal.load().await.unwrap()[&job][&0], whole);
}

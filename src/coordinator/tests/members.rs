//! Workers and nodes that come, fall silent, and come back.

use super::*;

fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).unwrap()
}

impl Driver {
    async fn register(&self, name: &str, life: u64) -> CoordinatorResult<()> {
        self.coordinator.register_worker(&self.job, &worker(name), NodeLife::new(life)).await
    }

    fn beat(&self, name: &str, life: u64, running: &[(&str, u32, &str)]) -> CoordinatorResult<Vec<TaskAttempt>> {
        let named = |(vertex, index, number): &(&str, u32, &str)| TaskAttempt {
            task: TaskAddress { vertex: (*vertex).to_owned(), index: *index },
            attempt: driver::attempt(number),
        };
        let running = running.iter().map(named).collect();
        self.coordinator.worker_heartbeat(&self.job, &worker(name), NodeLife::new(life), running)
    }
}

/// The claim of issue and product: within one timeout plus one interval.
#[tokio::test]
async fn a_worker_that_is_killed_is_in_a_plan_within_a_timeout_and_an_interval() {
    let driver = Driver::new().await.with_maps_done().await;
    driver.run("join", 0, "0.0", Some("w1")).await;
    for _ in 0..6 {
        driver.wait(Duration::from_secs(10)).await;
        driver.node_adds(1, 1, Vec::new()).await;
        if driver.n_plans() > 0 {
            break;
        }
    }
    assert_eq!(driver.plan(), (PlanVerdict::Restart, vec!["join#0 1.0".to_owned()]));
    assert_eq!(driver.stage(1), PlanStage::Ready, "what ran there needs no stopping any more");
}

/// M5: every heartbeat counts, for as long as they come.
#[tokio::test]
async fn a_worker_that_beats_lives() {
    let driver = Driver::new().await;
    driver.register("w1", 1).await.unwrap();
    driver.run("map", 0, "0.0", Some("w1")).await;
    for _ in 0..100 {
        driver.wait(Duration::from_secs(10)).await;
        assert_eq!(driver.beat("w1", 1, &[("map", 0, "0.0")]).unwrap(), Vec::new());
    }
    assert_eq!(driver.n_plans(), 0);
}

#[tokio::test]
async fn an_orderly_end_is_planned_for_at_once() {
    let driver = Driver::new().await;
    driver.register("w1", 1).await.unwrap();
    driver.run("map", 0, "0.0", Some("w1")).await;
    driver.coordinator.deregister_worker(&driver.job, &worker("w1"), NodeLife::new(1)).await.unwrap();
    assert_eq!(driver.plan(), (PlanVerdict::Restart, vec!["map#0 1.0".to_owned()]));
}

/// B7, P5: the end of a former life does not touch the new one.
#[tokio::test]
async fn a_late_end_of_a_former_life_does_not_touch_the_new_one() {
    let driver = Driver::new().await;
    driver.register("w1", 1).await.unwrap();
    driver.run("map", 0, "0.0", Some("w1")).await;
    driver.wait(Duration::from_secs(45)).await;
    driver.register("w1", 2).await.unwrap();
    assert_eq!(driver.plan().1, vec!["map#0 1.0".to_owned()], "what ran in the former life has failed");
    driver.run("map", 0, "1.0", Some("w1")).await;
    for _ in 0..2 {
        driver.coordinator.deregister_worker(&driver.job, &worker("w1"), NodeLife::new(1)).await.unwrap();
        let refused = driver.register("w1", 1).await;
        assert!(matches!(refused, Err(CoordinatorError::FencedByLife(life)) if life.get() == 2), "{refused:?}");
        assert!(driver.beat("w1", 1, &[]).is_err());
    }
    driver.wait(Duration::from_secs(20)).await;
    assert_eq!((driver.n_plans(), driver.beat("w1", 2, &[("map", 0, "1.0")]).unwrap()), (1, Vec::new()));
}

/// C21, C26: heartbeats say what to stop, and leave alone what was not reported yet.
#[tokio::test]
async fn a_heartbeat_is_answered_with_what_does_not_count_any_more() {
    let driver = Driver::new().await;
    driver.register("w1", 1).await.unwrap();
    assert_eq!(driver.beat("w1", 1, &[("map", 0, "0.0")]).unwrap(), Vec::new(), "its report is on its way");
    driver.run("map", 0, "0.0", Some("w1")).await;
    driver.coordinator.fail(&driver.job, None, Failures { restart_all: true, ..Failures::default() }).await.unwrap();
    let stop = driver.beat("w1", 1, &[("map", 0, "0.0")]).unwrap();
    assert_eq!(stop.len(), 1);
    driver.stopped("map", 0, "0.0").await;
    assert_eq!(driver.beat("w1", 1, &[("map", 0, "0.0")]).unwrap().len(), 1, "it is still not to run");
    assert!(matches!(driver.beat("w9", 1, &[]), Err(CoordinatorError::UnknownWorker)));
}

/// P8: with the last worker gone the job says so, and goes on when one comes.
#[tokio::test]
async fn a_job_without_workers_is_blocked_until_one_comes() {
    let driver = Driver::new().await;
    driver.register("w1", 1).await.unwrap();
    driver.run("map", 0, "0.0", Some("w1")).await;
    driver.wait(Duration::from_secs(51)).await;
    assert_eq!(driver.coordinator.graph(&driver.job).unwrap().standing, JobStanding::Blocked);
    assert_eq!((driver.n_plans(), driver.stage(1)), (1, PlanStage::Ready));
    driver.register("w2", 2).await.unwrap();
    assert_eq!(driver.coordinator.graph(&driver.job).unwrap().standing, JobStanding::Restarting);
}

/// A gap in the numbers, or a coordinator that does not know the node, begins anew.
#[tokio::test]
async fn reports_of_nodes_are_numbered_and_a_gap_begins_anew() {
    let driver = Driver::new().await;
    let sealed = |partition| vec![driver.held("shuffle", partition, "0.0", HeldState::Sealed)];
    assert!(driver.node_says(1, 1, 5, sealed(0)).await.unwrap().begin_anew);
    assert!(!driver.node_says(1, 1, 0, sealed(0)).await.unwrap().begin_anew);
    assert!(!driver.node_says(1, 1, 1, sealed(1)).await.unwrap().begin_anew);
    assert!(!driver.node_says(1, 1, 1, sealed(1)).await.unwrap().begin_anew, "a repeat after a lost answer");
    assert!(driver.node_says(1, 1, 3, Vec::new()).await.unwrap().begin_anew);
    let located = driver.coordinator.locate(&driver.job, &DatasetId::new("shuffle").unwrap(), None);
    assert_eq!(located.iter().map(|one| one.partition.get()).collect::<Vec<_>>(), [0, 1]);
    assert!(!driver.node_says(1, 2, 0, sealed(1)).await.unwrap().begin_anew);
    assert!(driver.node_says(1, 1, 2, Vec::new()).await.is_err(), "a former life");
    let located = driver.coordinator.locate(&driver.job, &DatasetId::new("shuffle").unwrap(), None);
    assert_eq!(located.iter().map(|one| (one.partition.get(), one.place.life.get())).collect::<Vec<_>>(), [(1, 2)]);
}

#[tokio::test]
async fn the_upkeep_runs_by_itself() {
    let driver = Driver::new().await;
    driver.register("w1", 1).await.unwrap();
    driver.run("map", 0, "0.0", Some("w1")).await;
    let mut events = driver.coordinator.events(&driver.job, None).unwrap();
    let event = hasten(&driver.clock, futures::StreamExt::next(&mut events)).await.unwrap();
    assert_eq!(event.kind, RecoveryEventKind::WorkerLost);
}

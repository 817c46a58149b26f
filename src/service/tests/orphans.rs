//! What dead jobs left on a shared medium, and that nothing else is touched.

use super::bench::*;
use crate::service::*;
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use store_api::*;

/// A medium that holds names only: one object of 10 bytes per existence.
#[derive(Default)]
struct Names {
    held: Mutex<BTreeSet<(JobId, JobIncarnation)>>,
    fails: AtomicBool,
}

impl Names {
    fn put(&self, job: &str, incarnation: JobIncarnation) {
        self.held.lock().insert((id(job), incarnation));
    }

    fn jobs_held(&self) -> Vec<String> {
        self.held.lock().iter().map(|(job, _)| job.to_string()).collect()
    }
}

#[async_trait]
impl SharedMedium for Names {
    async fn jobs(&self) -> Result<Vec<(JobId, JobIncarnation)>, StoreError> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(StoreError::new(StoreErrorKind::Unavailable { retry_after: Duration::ZERO }, Operation::Recover, "names"));
        }
        Ok(self.held.lock().iter().cloned().collect())
    }

    async fn sweep(&self, dead: &[(JobId, JobIncarnation)]) -> Result<Swept, StoreError> {
        let mut held = self.held.lock();
        let n_objects = dead.iter().filter(|existence| held.remove(existence)).count() as u64;
        Ok(Swept { n_objects, bytes: 10 * n_objects, n_uploads: 0 })
    }
}

const GRACE: Duration = Duration::from_secs(600);
const AGO: JobIncarnation = JobIncarnation::new(0xA60);

struct Scene {
    node: Node,
    names: Arc<Names>,
    shared: Arc<TestCatalog>,
}

async fn scene(config: ServiceConfig) -> Scene {
    let (names, shared) = (Arc::new(Names::default()), Arc::new(TestCatalog::default()));
    let plan = Plan { config, shared: Some(shared.clone()), medium: Some(names.clone()), ..Plan::default() };
    Scene { node: Node::plan(plan).await, names, shared }
}

impl Scene {
    async fn sweep(&self) -> Swept {
        self.node.service.sweep_orphans().await.unwrap()
    }

    /// A sweep, the grace time, and another sweep.
    async fn sweep_twice(&self) -> Swept {
        assert_eq!(self.sweep().await, Swept::default(), "nothing goes at first sight");
        self.node.clock.advance(GRACE);
        self.sweep().await
    }
}

/// A lease that outlasts these tests.
fn for_long() -> JobRequest {
    JobRequest { lease: Some(GRACE * 10), ..JobRequest::default() }
}

#[tokio::test]
async fn what_nobody_has_heard_of_goes_after_the_grace_time_and_not_before() {
    let scene = scene(ServiceConfig::default()).await;
    scene.names.put("gone", AGO);
    assert_eq!(scene.sweep().await, Swept::default());
    scene.node.clock.advance(GRACE - Duration::from_millis(1));
    assert_eq!(scene.sweep().await, Swept::default());
    scene.node.clock.advance(Duration::from_millis(1));
    assert_eq!(scene.sweep().await, Swept { n_objects: 1, bytes: 10, n_uploads: 0 });
    let counters = scene.node.service.counters();
    assert_eq!((counters.orphan_objects.value(), counters.orphan_bytes.value()), (1, 10));
    assert_eq!(scene.sweep().await, Swept::default());
}

#[tokio::test]
async fn live_jobs_of_this_node_and_of_others_stay() {
    let scene = scene(ServiceConfig::default()).await;
    let mine = scene.node.service.put_job(&id("mine"), for_long()).await.unwrap();
    let plan = Plan { name: "other", shared: Some(scene.shared.clone()), clock: Some(scene.node.clock.clone()), ..Plan::default() };
    let other = Node::plan(plan).await;
    let theirs = other.service.put_job(&id("theirs"), for_long()).await.unwrap();
    scene.names.put("mine", mine.incarnation);
    scene.names.put("theirs", theirs.incarnation);
    assert_eq!(scene.sweep_twice().await, Swept::default());
    scene.node.clock.advance(GRACE * 2);
    assert_eq!(scene.sweep().await, Swept::default());
    assert_eq!(scene.names.jobs_held(), ["mine", "theirs"]);
    other.service.release_job(&id("theirs"), Some(JobEpoch::new(1))).await.unwrap();
    scene.sweep().await;
    scene.node.clock.advance(GRACE * 10);
    scene.sweep().await;
    assert_eq!(scene.names.jobs_held(), ["mine"], "the end that the other node recorded was seen");
}

#[tokio::test]
async fn a_former_existence_of_an_id_goes_and_the_present_one_stays() {
    let scene = scene(ServiceConfig::default()).await;
    let first = scene.node.put_job("j").await.incarnation;
    scene.node.service.release_job(&id("j"), Some(JobEpoch::new(1))).await.unwrap();
    let second = scene.node.service.put_job(&id("j"), for_long()).await.unwrap().incarnation;
    scene.names.put("j", first);
    scene.names.put("j", second);
    scene.sweep().await;
    for _ in 0..2 {
        scene.node.clock.advance(GRACE * 5);
        scene.node.service.renew_lease(&id("j"), Some(JobEpoch::new(1)), None).await.unwrap();
    }
    assert_eq!(scene.sweep().await.n_objects, 1);
    assert_eq!(scene.names.held.lock().iter().map(|(_, incarnation)| *incarnation).collect::<Vec<_>>(), [second]);
}

#[tokio::test]
async fn a_catalog_or_medium_that_does_not_answer_costs_nobody_anything() {
    let scene = scene(ServiceConfig::default()).await;
    scene.names.put("gone", AGO);
    scene.sweep().await;
    scene.node.clock.advance(GRACE * 2);
    scene.shared.fails_reads.store(true, Ordering::SeqCst);
    assert!(scene.node.service.sweep_orphans().await.is_err());
    scene.shared.fails_reads.store(false, Ordering::SeqCst);
    scene.names.fails.store(true, Ordering::SeqCst);
    assert!(scene.node.service.sweep_orphans().await.is_err());
    assert_eq!(scene.names.jobs_held(), ["gone"]);
    scene.names.fails.store(false, Ordering::SeqCst);
    assert_eq!(scene.sweep().await.n_objects, 1);
}

#[tokio::test]
async fn the_grace_time_is_never_shorter_than_a_lease_that_was_given() {
    let config = ServiceConfig { orphan_grace: Duration::ZERO, ..ServiceConfig::default() };
    let scene = scene(config).await;
    let lease = Duration::from_secs(7200);
    scene.node.service.put_job(&id("long"), JobRequest { lease: Some(lease), ..JobRequest::default() }).await.unwrap();
    scene.names.put("gone", AGO);
    scene.sweep().await;
    scene.node.service.release_job(&id("long"), Some(JobEpoch::new(1))).await.unwrap();
    scene.node.clock.advance(lease - Duration::from_secs(1));
    assert_eq!(scene.sweep().await, Swept::default());
    scene.node.clock.advance(Duration::from_secs(1));
    assert_eq!(scene.sweep().await.n_objects, 1);
}

#[tokio::test]
async fn a_new_life_of_the_node_waits_the_grace_time_anew() {
    let Scene { node, names, shared } = scene(ServiceConfig::default()).await;
    names.put("gone", AGO);
    node.service.sweep_orphans().await.unwrap();
    node.clock.advance(GRACE);
    let scene = Scene { node: node.restart().await, names, shared };
    assert_eq!(scene.sweep_twice().await.n_objects, 1);
}

#[tokio::test]
async fn the_records_of_what_was_swept_go_with_it() {
    let scene = scene(ServiceConfig::default()).await;
    scene.names.put("gone", AGO);
    let keys = [format!("dataset/gone/{AGO}/d"), format!("partition/gone/{AGO}/d/{:020}", 3)];
    for key in &keys {
        scene.shared.put(key, bytes::Bytes::from_static(b"{\"version\":1}"), Expect::Any).await.unwrap();
    }
    scene.sweep_twice().await;
    assert!(scene.shared.keys("dataset/").is_empty() && scene.shared.keys("partition/").is_empty());
}

#[tokio::test]
async fn ends_leave_the_shared_catalog_once_no_lease_can_reach_back_to_them() {
    let scene = scene(ServiceConfig::default()).await;
    scene.node.put_job("j").await;
    scene.node.service.release_job(&id("j"), Some(JobEpoch::new(1))).await.unwrap();
    scene.sweep().await;
    assert_eq!(scene.shared.keys("ended/").len(), 1);
    scene.node.clock.advance(scene.node.config.max_lease);
    scene.sweep().await;
    assert_eq!(scene.shared.keys("ended/").len(), 1);
    scene.node.clock.advance(scene.node.config.tombstone_time);
    scene.sweep().await;
    assert!(scene.shared.keys("ended/").is_empty());
}

#[tokio::test]
async fn the_service_sweeps_by_itself_each_interval_and_again_after_a_failure() {
    let interval = Duration::from_secs(60);
    let config = ServiceConfig { orphan_interval: interval, ..ServiceConfig::default() };
    let scene = scene(config).await;
    scene.names.put("gone", AGO);
    scene.names.fails.store(true, Ordering::SeqCst);
    let counters = scene.node.service.counters();
    crate::test_time::hasten(&scene.node.clock, async {
        while counters.orphan_sweeps_failed.value() == 0 {
            tokio::task::yield_now().await;
        }
        scene.names.fails.store(false, Ordering::SeqCst);
        while counters.orphan_objects.value() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(scene.names.jobs_held().is_empty());
    // The first sweep that answered, the sweeps of the grace time, and the one that failed before.
    assert!(counters.orphan_sweeps.value() >= 12, "{}", counters.orphan_sweeps.value());
}

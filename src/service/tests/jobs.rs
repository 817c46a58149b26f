//! Jobs, leases, tokens and datasets.

use super::bench::*;
use crate::service::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store_api::*;

fn owner(nonce: &str) -> JobRequest {
    JobRequest { owner_nonce: nonce.to_owned(), ..JobRequest::default() }
}

#[tokio::test]
async fn a_repeat_by_the_owner_changes_nothing() {
    let node = Node::start().await;
    let first = node.service.put_job(&id("j"), owner("o")).await.unwrap();
    let second = node.service.put_job(&id("j"), owner("o")).await.unwrap();
    assert_eq!((first.epoch, first.is_new), (JobEpoch::new(1), true));
    assert_eq!((second.epoch, second.is_new, second.incarnation), (JobEpoch::new(1), false, first.incarnation));
}

#[tokio::test]
async fn another_owner_must_ask_for_a_take_over_and_then_fences_the_former_one() {
    let node = Node::start().await;
    node.service.put_job(&id("j"), owner("one")).await.unwrap();
    let refused_first = refused(node.service.put_job(&id("j"), owner("two")).await);
    assert_eq!(refused_first, ServiceErrorKind::JobOwned { epoch: JobEpoch::new(1) });
    let taken = node.service.put_job(&id("j"), JobRequest { take_over: true, ..owner("two") }).await.unwrap();
    assert_eq!(taken.epoch, JobEpoch::new(2));
    let repeat = node.service.put_job(&id("j"), JobRequest { take_over: true, ..owner("two") }).await.unwrap();
    assert_eq!(repeat.epoch, JobEpoch::new(2), "a repeated take-over must not raise the epoch again");
    let by = FencedBy::Epoch(JobEpoch::new(2));
    assert_eq!(refused(node.service.renew_lease(&id("j"), Some(JobEpoch::new(1)), None).await), ServiceErrorKind::Fenced { by });
    assert_eq!(refused(node.service.release_job(&id("j"), Some(JobEpoch::new(1))).await), ServiceErrorKind::Fenced { by });
    assert!(node.service.renew_lease(&id("j"), Some(JobEpoch::new(2)), None).await.is_ok());
}

#[tokio::test]
async fn control_calls_need_the_epoch_and_refuse_one_never_given_out() {
    let node = Node::start().await;
    node.put_job("j").await;
    assert_eq!(refused(node.service.renew_lease(&id("j"), None, None).await), ServiceErrorKind::EpochRequired);
    assert_eq!(refused(node.service.release_job(&id("j"), None).await), ServiceErrorKind::EpochRequired);
    let ahead = node.service.release_job(&id("j"), Some(JobEpoch::new(9))).await;
    assert!(matches!(refused(ahead), ServiceErrorKind::BadRequest { .. }));
}

#[tokio::test]
async fn a_take_over_that_fences_writers_aborts_every_unsealed_attempt_and_no_sealed_one() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.produce(0, b"kept").await;
    node.open(1, 0, 0).await.unwrap();
    node.write(1, a(0, 0), b"gone").await.unwrap();
    let request = JobRequest { take_over: true, fence_writers: true, ..owner("two") };
    node.service.put_job(&id("j"), request).await.unwrap();
    assert_eq!(refused(node.write(1, a(0, 0), b"late").await), ServiceErrorKind::Aborted);
    assert_eq!(refused(node.seal(1, a(0, 0)).await), ServiceErrorKind::Aborted);
    assert_eq!(node.read(0).await.unwrap(), b"kept");
}

#[tokio::test]
async fn a_take_over_alone_lets_writers_go_on() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.open(1, 0, 0).await.unwrap();
    node.service.put_job(&id("j"), JobRequest { take_over: true, ..owner("two") }).await.unwrap();
    node.write(1, a(0, 0), b"on").await.unwrap();
    assert!(node.seal(1, a(0, 0)).await.is_ok());
}

#[tokio::test]
async fn leases_are_brought_within_bounds_and_none_is_for_ever() {
    let node = Node::start().await;
    for (wanted, granted) in [
        (Duration::ZERO, node.config.min_lease),
        (Duration::from_millis(1), node.config.min_lease),
        (Duration::from_secs(7), Duration::from_secs(7)),
        (Duration::from_millis(u64::MAX), node.config.max_lease),
        (Duration::MAX, node.config.max_lease),
    ] {
        let name = format!("job-{}", wanted.as_millis() % 1000);
        let view = node.service.put_job(&id(&name), JobRequest { lease: Some(wanted), owner_nonce: name.clone(), ..owner("") }).await;
        let Ok(view) = view else { continue };
        assert_eq!(view.lease, granted, "{wanted:?}");
        let renewed = node.service.renew_lease(&id(&name), Some(JobEpoch::new(1)), Some(wanted)).await.unwrap();
        assert_eq!(renewed.lease, granted, "{wanted:?}");
        node.service.release_job(&id(&name), Some(JobEpoch::new(1))).await.unwrap();
    }
}

#[tokio::test]
async fn a_lease_that_is_not_renewed_ends_everything_and_a_renewed_one_nothing() {
    let node = Node::start().await;
    for job in ["j", "kept"] {
        node.service.put_job(&id(job), JobRequest { lease: Some(Duration::from_secs(10)), ..owner("") }).await.unwrap();
    }
    node.put_dataset("j", "d", StoreClass::Blocking).await;
    node.produce(0, b"bytes").await;
    node.pass(Duration::from_secs(9)).await;
    assert_eq!(node.read(0).await.unwrap(), b"bytes");
    node.service.renew_lease(&id("kept"), Some(JobEpoch::new(1)), None).await.unwrap();
    node.pass(Duration::from_secs(1)).await;
    assert_eq!(refused(node.read(0).await), ServiceErrorKind::Expired);
    assert_eq!(refused(node.write(0, a(0, 0), b"late").await), ServiceErrorKind::Expired);
    assert_eq!(refused(node.service.renew_lease(&id("j"), Some(JobEpoch::new(1)), None).await), ServiceErrorKind::Expired);
    assert!(node.service.job(&id("kept")).await.is_ok());
    let held = node.blocking.inner.held(&id("j"), JobIncarnation::new(0));
    assert_eq!(held.total(), 0);
    assert!(node.catalog.keys("dataset/j/").is_empty());
    assert_eq!(node.service.counters().jobs_expired.value(), 1);
}

#[tokio::test]
async fn an_expiry_whose_record_cannot_be_written_answers_expired_and_is_tried_again() {
    let node = Node::start().await;
    node.service.put_job(&id("j"), JobRequest { lease: Some(Duration::from_secs(1)), ..owner("") }).await.unwrap();
    node.catalog.fails_writes.store(true, Ordering::SeqCst);
    node.pass(Duration::from_secs(2)).await;
    assert_eq!(refused(node.service.renew_lease(&id("j"), Some(JobEpoch::new(1)), None).await), ServiceErrorKind::Expired);
    assert!(node.catalog.keys("ended/").is_empty());
    node.catalog.fails_writes.store(false, Ordering::SeqCst);
    node.pass(Duration::from_secs(1)).await;
    assert_eq!(node.catalog.keys("ended/").len(), 1);
    assert!(node.catalog.keys("job/").is_empty());
}

#[tokio::test]
async fn an_expired_id_is_free_at_once_even_before_its_end_is_recorded() {
    let node = Node::start().await;
    let first = node.service.put_job(&id("j"), JobRequest { lease: Some(Duration::from_secs(1)), ..owner("") }).await.unwrap();
    node.catalog.fails_writes.store(true, Ordering::SeqCst);
    node.pass(Duration::from_secs(2)).await;
    node.catalog.fails_writes.store(false, Ordering::SeqCst);
    let second = node.put_job("j").await;
    assert!(second.is_new);
    assert_ne!(first.incarnation, second.incarnation);
    assert_eq!(node.catalog.keys("ended/").len(), 1, "the former end must be recorded, or its storage stays");
}

#[tokio::test]
async fn a_released_id_is_free_at_once_with_other_settings_and_nothing_in_it() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    for round in 0..20_u64 {
        node.produce(0, b"old").await;
        node.service.release_job(&id("j"), Some(JobEpoch::new(1))).await.unwrap();
        assert_eq!(refused(node.service.job(&id("j")).await), ServiceErrorKind::Released);
        let view = node.service.put_job(&id("j"), JobRequest { quota_bytes: Some(1000 + round), ..owner("x") }).await.unwrap();
        assert_eq!((view.n_datasets, view.quota_bytes, view.held.total()), (0, Some(1000 + round), 0));
        assert_eq!(refused(node.read(0).await), ServiceErrorKind::UnknownDataset);
        node.put_dataset("j", "d", StoreClass::Blocking).await;
        assert_eq!(refused(node.read(0).await), ServiceErrorKind::NotWritten);
    }
}

#[tokio::test]
async fn tokens_cover_their_job_only_and_end_with_it() {
    let config = ServiceConfig { admin_token_hash: Some(hash_token("the-admin-token-of-this-test")), ..ServiceConfig::default() };
    let node = Node::with(config).await;
    let (one, two) = (id("one"), id("two"));
    let own = JobRequest { token_secret: Some("token-of-job-one-0123".to_owned()), ..owner("o") };
    let chosen = node.service.put_job(&one, own.clone()).await.unwrap();
    assert_eq!(chosen.token.as_deref(), Some("token-of-job-one-0123"));
    assert_eq!(node.service.put_job(&one, own).await.unwrap().token.as_deref(), Some("token-of-job-one-0123"));
    let drawn = node.service.put_job(&two, owner("o")).await.unwrap().token.unwrap();
    let service = &node.service;
    let check = |need: Need<'static>, token: Option<&'static str>| {
        let service = service.clone();
        async move { service.authorize(need, token).await.map_err(|error| error.kind().clone()) }
    };
    let (one, two): (&'static JobId, &'static JobId) = (Box::leak(Box::new(one)), Box::leak(Box::new(two)));
    let drawn: &'static str = Box::leak(drawn.into_boxed_str());
    assert_eq!(check(Need::Job(one), Some("token-of-job-one-0123")).await, Ok(()));
    assert_eq!(check(Need::Job(two), Some(drawn)).await, Ok(()));
    assert_eq!(check(Need::Job(one), Some(drawn)).await, Err(ServiceErrorKind::Forbidden));
    assert_eq!(check(Need::Job(two), Some("token-of-job-one-0123")).await, Err(ServiceErrorKind::Forbidden));
    assert_eq!(check(Need::Admin, Some(drawn)).await, Err(ServiceErrorKind::Forbidden));
    assert_eq!(check(Need::Admin, None).await, Err(ServiceErrorKind::Unauthenticated));
    assert_eq!(check(Need::Job(one), Some("")).await, Err(ServiceErrorKind::Unauthenticated));
    for need in [Need::Admin, Need::Job(one), Need::PutJob(one)] {
        assert_eq!(check(need, Some("the-admin-token-of-this-test")).await, Ok(()));
    }
    service.release_job(two, Some(JobEpoch::new(1))).await.unwrap();
    assert_eq!(check(Need::Job(two), Some(drawn)).await, Ok(()), "the owner may repeat its release");
    assert_eq!(check(Need::Job(one), Some(drawn)).await, Err(ServiceErrorKind::Forbidden), "it is known, as that of another job");
    service.put_job(two, owner("again")).await.unwrap();
    assert_eq!(check(Need::Job(two), Some(drawn)).await, Err(ServiceErrorKind::Unauthenticated), "it is nobody's any more");
    let unknown: &'static JobId = Box::leak(Box::new(id("never-put")));
    for need in [Need::Admin, Need::Job(one), Need::Job(unknown), Need::PutJob(one), Need::PutJob(unknown)] {
        assert_eq!(check(need, Some("a-token-that-nobody-knows")).await, Err(ServiceErrorKind::Unauthenticated), "{need:?}");
        let of_one = check(need, Some("token-of-job-one-0123")).await;
        let is_own = matches!(need, Need::Job(job) | Need::PutJob(job) if job == one);
        assert_eq!(of_one, if is_own { Ok(()) } else { Err(ServiceErrorKind::Forbidden) }, "{need:?}");
    }
}

#[tokio::test]
async fn a_repeat_with_another_token_does_not_change_the_token() {
    let config = ServiceConfig { admin_token_hash: Some(hash_token("the-admin-token-of-this-test")), ..ServiceConfig::default() };
    let node = Node::with(config).await;
    let with = |token: &str| JobRequest { token_secret: Some(token.to_owned()), ..owner("o") };
    node.service.put_job(&id("j"), with("token-one-0123456789")).await.unwrap();
    let other = node.service.put_job(&id("j"), with("token-two-0123456789")).await;
    assert_eq!(refused(other), ServiceErrorKind::SpecConflict { member: "token" });
    assert!(node.service.authorize(Need::Job(&id("j")), Some("token-one-0123456789")).await.is_ok());
}

#[tokio::test]
async fn no_token_stands_in_the_catalog() {
    let config = ServiceConfig { admin_token_hash: Some(hash_token("the-admin-token-of-this-test")), ..ServiceConfig::default() };
    let node = Node::with(config).await;
    let token = node.put_job("j").await.token.unwrap();
    for (_, entry) in node.catalog.scan("").await.unwrap() {
        assert!(!String::from_utf8_lossy(&entry.value).contains(&token));
    }
}

#[tokio::test]
async fn a_differing_repeat_of_a_dataset_is_a_conflict_that_names_the_member() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    let put = |request| {
        let service = node.service.clone();
        async move { service.put_dataset(&id("j"), &dataset_id("d"), request).await }
    };
    assert!(!put(spec(StoreClass::Blocking)).await.unwrap().is_new);
    let base = || spec(StoreClass::Blocking);
    for (request, member) in [
        (spec(StoreClass::Durable), "kind"),
        (DatasetRequest { n_partitions: None, ..base() }, "partitions"),
        (DatasetRequest { n_subpartitions: 5, ..base() }, "subpartitions"),
        (DatasetRequest { is_broadcast: true, ..base() }, "broadcast"),
        (DatasetRequest { arbitration: Arbitration::Engine, ..base() }, "arbitration"),
        (DatasetRequest { content: Some("zstd".to_owned()), ..base() }, "content"),
    ] {
        assert_eq!(refused(put(request).await), ServiceErrorKind::SpecConflict { member });
    }
}

#[tokio::test]
async fn a_class_that_cannot_be_kept_is_refused_and_never_weakened() {
    let clock = Arc::new(clock::ManualClock::new(0));
    let model = store_testkit::model_store::ModelStore::new(store_testkit::model_store::ModelProfile::surviving(), BUDGET, clock.clone());
    let node = Node::start().await;
    let parts = ServiceParts {
        stores: Stores { blocking: Some(model), ..Stores::default() },
        local_catalog: node.catalog.clone(),
        shared_catalog: None,
        medium: None,
        arbiter: Arc::new(LocalArbiter::new()),
        clock,
        tasks: TaskGroup::new(),
        node: NodeId::new("n").unwrap(),
        life: NodeLife::new(1),
        url: String::new(),
        random: Arc::new(Fixed),
    };
    let service = PartitionService::start(ServiceConfig::default(), parts).await.unwrap();
    service.put_job(&id("j"), owner("")).await.unwrap();
    for class in [StoreClass::Durable, StoreClass::Pipelined] {
        let put = service.put_dataset(&id("j"), &dataset_id("d"), spec(class)).await;
        assert!(matches!(refused(put), ServiceErrorKind::ClassUnavailable { .. }));
    }
    assert!(service.put_dataset(&id("j"), &dataset_id("d"), spec(StoreClass::Blocking)).await.is_ok());
}

struct Fixed;

impl RandomSource for Fixed {
    fn next_u64(&self) -> u64 {
        4
    }
}

#[tokio::test]
async fn datasets_that_mean_nothing_are_refused() {
    let node = Node::start().await;
    node.put_job("j").await;
    let group = |name: &str| ConsumerId::new(name).unwrap();
    for request in [
        DatasetRequest { n_subpartitions: 0, ..spec(StoreClass::Blocking) },
        DatasetRequest { n_subpartitions: u32::MAX, ..spec(StoreClass::Blocking) },
        DatasetRequest { content: Some("x".repeat(257)), ..spec(StoreClass::Blocking) },
        DatasetRequest { retention: Some(Retention::BestEffort), ..spec(StoreClass::Blocking) },
        DatasetRequest { groups: vec![group("g")], ..spec(StoreClass::Durable) },
        DatasetRequest { groups: vec![group("g"), group("g")], ..spec(StoreClass::Pipelined) },
    ] {
        let put = node.service.put_dataset(&id("j"), &dataset_id("d"), request).await;
        assert!(matches!(refused(put), ServiceErrorKind::BadRequest { .. }));
    }
    assert_eq!(refused(node.service.dataset(&id("j"), &dataset_id("d")).await), ServiceErrorKind::UnknownDataset);
}

#[tokio::test]
async fn a_pipelined_dataset_without_groups_gets_the_default_one() {
    let node = Node::with_dataset(StoreClass::Pipelined).await;
    let view = node.service.dataset(&id("j"), &dataset_id("d")).await.unwrap();
    assert_eq!(view.spec.groups, [ConsumerId::new("default").unwrap()]);
}

#[tokio::test]
async fn a_draining_node_takes_nothing_new_and_finishes_what_it_has() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.open(0, 0, 0).await.unwrap();
    let mut events = node.service.events(&id("j"), None).await.unwrap();
    node.service.begin_drain();
    assert_eq!(refused(node.open(1, 0, 0).await), ServiceErrorKind::Draining);
    assert_eq!(refused(node.service.put_job(&id("new"), owner("")).await), ServiceErrorKind::Draining);
    let put = node.service.put_dataset(&id("j"), &dataset_id("new"), spec(StoreClass::Blocking)).await;
    assert_eq!(refused(put), ServiceErrorKind::Draining);
    assert!(node.open(0, 0, 0).await.is_ok(), "a repeat is nothing new");
    node.write(0, a(0, 0), b"x").await.unwrap();
    node.seal(0, a(0, 0)).await.unwrap();
    assert_eq!(node.read(0).await.unwrap(), b"x");
    assert_eq!(futures::StreamExt::next(&mut events).await.map(|event| event.kind), Some(EventKind::Sealed));
    assert!(futures::StreamExt::next(&mut events).await.is_none(), "event streams end with the drain");
    assert_eq!(node.service.n_writes_running(), 0);
}

#[tokio::test]
async fn a_record_that_cannot_be_written_leaves_no_job_and_no_dataset() {
    let node = Node::start().await;
    node.catalog.fails_writes.store(true, Ordering::SeqCst);
    let put = node.service.put_job(&id("j"), owner("")).await;
    assert!(matches!(refused(put), ServiceErrorKind::Unavailable { .. }));
    node.catalog.fails_writes.store(false, Ordering::SeqCst);
    assert_eq!(refused(node.service.job(&id("j")).await), ServiceErrorKind::UnknownJob);
    node.put_job("j").await;
    node.catalog.fails_writes.store(true, Ordering::SeqCst);
    let put = node.service.put_dataset(&id("j"), &dataset_id("d"), spec(StoreClass::Blocking)).await;
    assert!(matches!(refused(put), ServiceErrorKind::Unavailable { .. }));
    assert_eq!(refused(node.service.dataset(&id("j"), &dataset_id("d")).await), ServiceErrorKind::UnknownDataset);
}

#[tokio::test]
async fn ends_of_jobs_are_remembered_for_a_bounded_time_and_number() {
    let config = ServiceConfig { max_tombstones: 3, tombstone_time: Duration::from_secs(100), ..ServiceConfig::default() };
    let node = Node::with(config).await;
    for number in 0..5 {
        let job = id(&format!("j{number}"));
        node.service.put_job(&job, owner("")).await.unwrap();
        node.service.release_job(&job, Some(JobEpoch::new(1))).await.unwrap();
        node.pass(Duration::from_secs(1)).await;
    }
    assert_eq!(refused(node.service.job(&id("j0")).await), ServiceErrorKind::UnknownJob);
    assert_eq!(refused(node.service.job(&id("j4")).await), ServiceErrorKind::Released);
    assert_eq!(node.catalog.keys("ended/").len(), 3);
    node.pass(Duration::from_secs(200)).await;
    assert_eq!(refused(node.service.job(&id("j4")).await), ServiceErrorKind::UnknownJob);
    assert!(node.catalog.keys("").is_empty());
}

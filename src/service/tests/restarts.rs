//! What a new life of a node finds.

use super::bench::*;
use crate::service::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store_api::*;

#[tokio::test]
async fn sealed_blocking_content_is_there_again_and_a_repeated_seal_is_recognised() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.produce(0, b"kept").await;
    node.open(1, 0, 0).await.unwrap();
    let node = node.restart().await;
    assert_eq!(node.read(0).await.unwrap(), b"kept");
    assert!(matches!(node.seal(0, a(0, 0)).await.unwrap(), SealReply::Won(_)));
    assert_eq!(refused(node.write(0, a(0, 0), b"late").await), ServiceErrorKind::AlreadySealed);
    assert_eq!(refused(node.open(0, 0, 1).await), ServiceErrorKind::OtherAttemptWon { winner: a(0, 0) });
    assert_eq!(refused(node.seal(1, a(0, 0)).await), ServiceErrorKind::UnknownAttempt);
    assert_eq!(refused(node.read(1).await), ServiceErrorKind::NotWritten);
    let view = node.service.dataset(&id("j"), &dataset_id("d")).await.unwrap();
    assert_eq!((view.n_sealed, view.sealed_bytes), (1, 4));
    let former = node.service.seal(&of(0, a(0, 0)), Some(NodeLife::new(1)), None).await;
    assert_eq!(refused(former), ServiceErrorKind::Fenced { by: FencedBy::Life(NodeLife::new(2)) });
}

#[tokio::test]
async fn owner_token_and_settings_are_those_of_before() {
    let config = ServiceConfig { admin_token_hash: Some(hash_token("the-admin-token-of-this-test")), ..ServiceConfig::default() };
    let node = Node::with(config).await;
    let request =
        JobRequest { owner_nonce: "o".to_owned(), quota_bytes: Some(77), lease: Some(Duration::from_secs(33)), ..JobRequest::default() };
    let before = node.service.put_job(&id("j"), request.clone()).await.unwrap();
    let token = before.token.clone().unwrap();
    let node = node.restart().await;
    let after = node.service.job(&id("j")).await.unwrap();
    assert_eq!(
        (after.incarnation, after.epoch, after.quota_bytes, after.lease),
        (before.incarnation, before.epoch, Some(77), Duration::from_secs(33))
    );
    assert!(node.service.authorize(Need::Job(&id("j")), Some(&token)).await.is_ok());
    assert_eq!(node.service.put_job(&id("j"), request).await.unwrap().epoch, JobEpoch::new(1));
    node.service.release_job(&id("j"), Some(JobEpoch::new(1))).await.unwrap();
    let node = node.restart().await;
    assert_eq!(refused(node.service.job(&id("j")).await), ServiceErrorKind::Released);
    node.put_job("j").await;
    assert!(node.service.authorize(Need::Job(&id("j")), Some(&token)).await.is_err());
}

#[tokio::test]
async fn every_recovered_job_has_its_full_lease_again() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.produce(0, b"x").await;
    node.clock.advance(node.config.default_lease * 10);
    let node = node.restart().await;
    node.pass(node.config.default_lease - Duration::from_secs(1)).await;
    assert_eq!(node.read(0).await.unwrap(), b"x");
    node.pass(Duration::from_secs(1)).await;
    assert_eq!(refused(node.read(0).await), ServiceErrorKind::Expired);
    let node = node.restart().await;
    assert_eq!(refused(node.read(0).await), ServiceErrorKind::Expired);
    assert_eq!(node.blocking.inner.reopened().recover().await.unwrap().sealed.len(), 0);
}

#[tokio::test]
async fn a_raised_generation_is_in_force_after_a_restart_even_if_the_store_had_not_heard_of_it() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.produce(0, b"old").await;
    node.blocking.refuses_release.store(true, Ordering::SeqCst);
    node.open(0, 1, 0).await.unwrap();
    let node = node.restart().await;
    assert_eq!(refused(node.read(0).await), ServiceErrorKind::NotWritten);
    assert_eq!(node.state(0).await, PartitionState::Superseded);
    let by = FencedBy::Attempt(a(1, 0));
    assert_eq!(refused(node.read_as(0, Some(a(0, 0)), ReadKind::Sealed).await), ServiceErrorKind::Fenced { by });
    assert_eq!(refused(node.open(0, 0, 5).await), ServiceErrorKind::Fenced { by });
    assert_eq!(node.service.job(&id("j")).await.unwrap().held.total(), 0);
    node.open(0, 1, 0).await.unwrap();
    node.write(0, a(1, 0), b"new").await.unwrap();
    node.seal(0, a(1, 0)).await.unwrap();
    assert_eq!(node.read(0).await.unwrap(), b"new");
}

#[tokio::test]
async fn pipelined_content_of_a_former_life_is_lost_and_a_higher_generation_makes_it_good() {
    let node = Node::with_dataset(StoreClass::Pipelined).await;
    node.produce(0, b"x").await;
    node.open(1, 2, 0).await.unwrap();
    let node = node.restart().await;
    let lost = ServiceErrorKind::Lost { cause: LossCause::Node };
    for partition in 0..2 {
        assert_eq!(refused(node.read(partition).await), lost);
        assert_eq!(node.state(partition).await, PartitionState::Lost { cause: LossCause::Node });
    }
    assert_eq!(refused(node.open(0, 0, 7).await), lost);
    assert_eq!(refused(node.open(1, 2, 7).await), lost);
    node.open(0, 1, 0).await.unwrap();
    node.open(1, 3, 0).await.unwrap();
    node.write(0, a(1, 0), b"again").await.unwrap();
    node.seal(0, a(1, 0)).await.unwrap();
    assert_eq!(node.read(0).await.unwrap(), b"again");
    let node = node.restart().await;
    assert_eq!(refused(node.read(0).await), lost, "and again in the life after");
}

#[tokio::test]
async fn sealed_content_of_a_job_without_a_record_is_given_back() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.produce(0, b"x").await;
    let incarnation = node.service.job(&id("j")).await.unwrap().incarnation;
    node.catalog.delete("job/j").await.unwrap();
    let node = node.restart().await;
    assert_eq!(node.blocking.held(&id("j"), incarnation).total(), 0);
    assert_eq!(refused(node.service.job(&id("j")).await), ServiceErrorKind::UnknownJob);
}

#[tokio::test]
async fn a_crash_between_the_end_of_a_job_and_the_removal_of_its_record_leaves_it_ended() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    let record = node.catalog.get("job/j").await.unwrap().unwrap();
    node.service.release_job(&id("j"), Some(JobEpoch::new(1))).await.unwrap();
    node.catalog.put("job/j", record.value, Expect::Any).await.unwrap();
    let node = node.restart().await;
    assert_eq!(refused(node.service.job(&id("j")).await), ServiceErrorKind::Released);
    assert!(node.catalog.keys("job/").is_empty());
}

#[tokio::test]
async fn a_record_that_cannot_be_read_stops_the_start() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.catalog.put("dataset/j/0000000000000001/x", bytes::Bytes::from_static(b"{\"version\":99}"), Expect::Any).await.unwrap();
    node.catalog.put("job/bad", bytes::Bytes::from_static(b"{\"version\":99}"), Expect::Any).await.unwrap();
    let parts = ServiceParts {
        stores: Stores::default(),
        local_catalog: node.catalog.clone(),
        shared_catalog: None,
        medium: None,
        arbiter: Arc::new(LocalArbiter::new()),
        clock: node.clock.clone(),
        tasks: TaskGroup::new(),
        node: NodeId::new("n").unwrap(),
        life: NodeLife::new(2),
        url: String::new(),
        random: Arc::new(Never),
    };
    assert_eq!(refused(PartitionService::start(ServiceConfig::default(), parts).await), ServiceErrorKind::Internal);
}

struct Never;

impl RandomSource for Never {
    fn next_u64(&self) -> u64 {
        panic!("nothing is drawn at a start")
    }
}

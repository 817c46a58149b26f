//! Two nodes over one object store and one shared catalog.

use super::bench::*;
use crate::service::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store_api::clock::ManualClock;
use store_api::*;
use store_testkit::model_store::{ModelProfile, ModelStore};

/// A node that has a job `j` with a durable dataset `d`, and another that has heard of nothing.
async fn two() -> (Node, Node) {
    let clock = Arc::new(ManualClock::new(1_000_000_000_000));
    let shared = Arc::new(TestCatalog::default());
    let durable = ModelStore::new(ModelProfile::arbitrating(), BUDGET, clock.clone());
    let config = ServiceConfig { admin_token_hash: Some(hash_token("the-admin-token-of-this-test")), ..ServiceConfig::default() };
    let plan = |name| Plan {
        config: config.clone(),
        name,
        shared: Some(shared.clone()),
        durable: Some(durable.clone()),
        clock: Some(clock.clone()),
        medium: None,
    };
    let (one, two) = (Node::plan(plan("one")).await, Node::plan(plan("two")).await);
    let request =
        JobRequest { owner_nonce: "one".to_owned(), token_secret: Some("the-token-of-job-j-0123".to_owned()), ..JobRequest::default() };
    one.service.put_job(&id("j"), request).await.unwrap();
    one.put_dataset("j", "d", StoreClass::Durable).await;
    (one, two)
}

#[tokio::test]
async fn another_node_serves_durable_content_of_a_job_that_it_never_heard_of() {
    let (one, two) = two().await;
    one.produce(0, b"durable").await;
    drop(one);
    assert!(two.service.authorize(Need::Job(&id("j")), Some("the-token-of-job-j-0123")).await.is_ok());
    assert!(two.service.authorize(Need::Job(&id("j")), Some("another-token-0123456")).await.is_err());
    assert_eq!(two.read(0).await.unwrap(), b"durable");
    assert_eq!(two.state(0).await, PartitionState::Sealed);
    assert_eq!(refused(two.read(1).await), ServiceErrorKind::NotWritten);
    let want = FetchWant {
        partition: PartitionId::new(0),
        subpartition: SubpartitionIndex::new(0),
        start: Offset::ZERO,
        end: None,
        attempt: Some(a(0, 0)),
    };
    let two = two.restart().await;
    let steps: Vec<FetchStep> =
        futures::StreamExt::collect(two.service.fetch(&id("j"), &dataset_id("d"), vec![want], None).await.unwrap()).await;
    assert!(steps.iter().any(|step| matches!(step, FetchStep::End { .. })), "{steps:?}");
}

#[tokio::test]
async fn a_shared_catalog_that_does_not_answer_is_never_taken_for_unknown() {
    let (one, two) = two().await;
    one.produce(0, b"x").await;
    two.shared.as_ref().unwrap().fails_reads.store(true, Ordering::SeqCst);
    assert!(matches!(refused(two.read(0).await), ServiceErrorKind::Unavailable { .. }));
    assert_eq!(one.read(0).await.unwrap(), b"x");
    one.clock.advance(Duration::from_secs(10));
    assert!(one.service.renew_lease(&id("j"), Some(JobEpoch::new(1)), None).await.is_ok(), "what is known stays in force");
}

#[tokio::test]
async fn a_take_over_at_another_node_fences_the_owner_here_within_the_bounded_age() {
    let (one, two) = two().await;
    let request = JobRequest { owner_nonce: "two".to_owned(), take_over: true, ..JobRequest::default() };
    let taken = two.service.put_job(&id("j"), request).await.unwrap();
    assert_eq!((taken.epoch, taken.is_new), (JobEpoch::new(2), false));
    one.clock.advance(one.config.shared_record_age);
    let by = FencedBy::Epoch(JobEpoch::new(2));
    assert_eq!(refused(one.service.release_job(&id("j"), Some(JobEpoch::new(1))).await), ServiceErrorKind::Fenced { by });
    assert!(one.service.renew_lease(&id("j"), Some(JobEpoch::new(2)), None).await.is_ok());
}

#[tokio::test]
async fn a_release_at_one_node_ends_reads_at_the_other() {
    let (one, two) = two().await;
    one.produce(0, b"x").await;
    one.produce(1, b"y").await;
    assert_eq!(two.read(1).await.unwrap(), b"y");
    one.service.release_job(&id("j"), Some(JobEpoch::new(1))).await.unwrap();
    assert!(two.read(0).await.is_err());
    assert!(two.read(1).await.is_err());
    two.clock.advance(two.config.shared_record_age);
    assert_eq!(refused(two.service.renew_lease(&id("j"), Some(JobEpoch::new(1)), None).await), ServiceErrorKind::Released);
    assert_eq!(refused(two.service.job(&id("j")).await), ServiceErrorKind::Released);
}

#[tokio::test]
async fn the_lease_at_a_node_that_is_not_the_jobs_home_takes_nothing_durable_away() {
    let (one, two) = two().await;
    one.produce(0, b"x").await;
    assert_eq!(two.read(0).await.unwrap(), b"x");
    for _ in 0..3 {
        one.clock.advance(one.config.default_lease / 2);
        one.service.renew_lease(&id("j"), Some(JobEpoch::new(1)), None).await.unwrap();
        two.service.reap().await;
    }
    assert_eq!(one.read(0).await.unwrap(), b"x");
    assert_eq!(two.read(0).await.unwrap(), b"x", "it is taken up again when it is asked for");
}

#[tokio::test]
async fn of_two_nodes_that_seal_one_partition_one_wins_and_both_serve_it() {
    let (one, two) = two().await;
    one.open(0, 0, 0).await.unwrap();
    one.write(0, a(0, 0), b"one").await.unwrap();
    two.open(0, 0, 1).await.unwrap();
    two.write(0, a(0, 1), b"two").await.unwrap();
    assert!(matches!(two.seal(0, a(0, 1)).await.unwrap(), SealReply::Won(_)));
    assert!(matches!(one.seal(0, a(0, 0)).await.unwrap(), SealReply::OtherWon(_)));
    assert_eq!(one.read(0).await.unwrap(), b"two");
    assert_eq!(two.read(0).await.unwrap(), b"two");
}

#[tokio::test]
async fn a_generation_raised_at_one_node_is_known_at_the_other() {
    let (one, two) = two().await;
    one.produce(0, b"x").await;
    one.open(0, 1, 0).await.unwrap();
    assert_eq!(refused(two.open(0, 0, 7).await), ServiceErrorKind::Fenced { by: FencedBy::Attempt(a(1, 0)) });
}

#[tokio::test]
async fn one_dataset_cannot_be_declared_differently_at_two_nodes() {
    let (_one, two) = two().await;
    let other = DatasetRequest { n_subpartitions: 9, ..spec(StoreClass::Durable) };
    let put = two.service.put_dataset(&id("j"), &dataset_id("d"), other).await;
    assert_eq!(refused(put), ServiceErrorKind::SpecConflict { member: "subpartitions" });
    assert!(two.service.put_dataset(&id("j"), &dataset_id("d"), spec(StoreClass::Durable)).await.is_ok());
}

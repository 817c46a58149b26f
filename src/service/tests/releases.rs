//! Releases: the record first, then the stores; and never more than was asked for.

use super::bench::*;
use crate::service::*;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store_api::*;

#[tokio::test]
async fn a_released_partition_stays_so_and_its_neighbours_go_on() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.produce(0, b"going").await;
    node.open(1, 0, 0).await.unwrap();
    let report = node.release(0).await.unwrap();
    assert_eq!((report.n_attempts, report.bytes), (1, 5));
    assert_eq!(node.release(0).await.unwrap(), ReleaseReport::default());
    assert_eq!(refused(node.read(0).await), ServiceErrorKind::Released);
    assert_eq!(refused(node.open(0, 0, 1).await), ServiceErrorKind::Released);
    assert_eq!(refused(node.open(0, 3, 0).await), ServiceErrorKind::Released);
    assert_eq!(refused(node.seal(0, a(0, 0)).await), ServiceErrorKind::Released);
    node.write(1, a(0, 0), b"on").await.unwrap();
    node.seal(1, a(0, 0)).await.unwrap();
    assert_eq!(node.read(1).await.unwrap(), b"on");
    let node = node.restart().await;
    assert_eq!(refused(node.read(0).await), ServiceErrorKind::Released);
    assert_eq!(refused(node.open(0, 0, 1).await), ServiceErrorKind::Released);
    assert_eq!(node.read(1).await.unwrap(), b"on");
}

#[tokio::test]
async fn a_partition_that_is_being_written_is_released_with_its_writer() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.open(0, 0, 0).await.unwrap();
    let mut sink = node.service.begin_frames(&of(0, a(0, 0)), node.life()).await.unwrap();
    push(&mut sink, vec![frame(0, 0, b"abc")]).await.unwrap();
    let permit = sink.reserve(1).await.unwrap();
    node.release(0).await.unwrap();
    assert_eq!(refused(sink.push(vec![frame(1, 0, b"x")], permit).await), ServiceErrorKind::Released);
    assert_eq!(refused(sink.reserve(1).await), ServiceErrorKind::Released);
    drop(sink);
    assert_eq!(node.service.job(&id("j")).await.unwrap().held.total(), 0);
}

#[tokio::test]
async fn a_released_dataset_stays_so_until_its_job_ends() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.put_dataset("j", "kept", StoreClass::Blocking).await;
    node.produce(0, b"x").await;
    let epoch = Some(JobEpoch::new(1));
    assert_eq!(node.service.release_dataset(&id("j"), &dataset_id("d"), epoch).await.unwrap().n_attempts, 1);
    assert_eq!(node.service.release_dataset(&id("j"), &dataset_id("d"), epoch).await.unwrap().n_attempts, 0);
    for node in [node] {
        let node = node.restart().await;
        assert_eq!(refused(node.read(0).await), ServiceErrorKind::Released);
        let put = node.service.put_dataset(&id("j"), &dataset_id("d"), spec(StoreClass::Blocking)).await;
        assert_eq!(refused(put), ServiceErrorKind::Released);
        let names: Vec<DatasetId> = node.service.datasets(&id("j")).await.unwrap().into_iter().map(|view| view.dataset).collect();
        assert_eq!(names, [dataset_id("kept")]);
    }
}

#[tokio::test]
async fn what_never_was_is_unknown_to_a_release() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    let epoch = Some(JobEpoch::new(1));
    assert_eq!(refused(node.service.release_job(&id("nope"), epoch).await), ServiceErrorKind::UnknownJob);
    assert_eq!(refused(node.service.release_dataset(&id("j"), &dataset_id("nope"), epoch).await), ServiceErrorKind::UnknownDataset);
}

#[tokio::test]
async fn a_release_that_cannot_be_recorded_releases_nothing() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.produce(0, b"x").await;
    let epoch = Some(JobEpoch::new(1));
    node.catalog.fails_writes.store(true, Ordering::SeqCst);
    assert!(matches!(refused(node.release(0).await), ServiceErrorKind::Unavailable { .. }));
    assert!(matches!(refused(node.service.release_dataset(&id("j"), &dataset_id("d"), epoch).await), ServiceErrorKind::Unavailable { .. }));
    assert!(matches!(refused(node.service.release_job(&id("j"), epoch).await), ServiceErrorKind::Unavailable { .. }));
    assert_eq!(node.read(0).await.unwrap(), b"x");
}

#[tokio::test]
async fn a_release_that_the_store_refuses_stands_and_is_repeated_until_the_bytes_are_gone() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.produce(0, b"12345").await;
    node.blocking.refuses_release.store(true, Ordering::SeqCst);
    node.release(0).await.unwrap();
    assert_eq!(refused(node.read(0).await), ServiceErrorKind::Released);
    for _ in 0..3 {
        node.pass(Duration::from_secs(60)).await;
        node.service.renew_lease(&id("j"), Some(JobEpoch::new(1)), None).await.unwrap();
    }
    assert_eq!(node.service.n_releases_put_off(), 1);
    node.blocking.refuses_release.store(false, Ordering::SeqCst);
    node.pass(Duration::from_secs(60)).await;
    assert_eq!(node.service.n_releases_put_off(), 0);
    assert_eq!(node.service.job(&id("j")).await.unwrap().held.total(), 0);
}

#[tokio::test]
async fn a_job_whose_storage_was_not_given_back_before_a_restart_is_given_back_after_it() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.produce(0, b"12345").await;
    let incarnation = node.service.job(&id("j")).await.unwrap().incarnation;
    node.blocking.refuses_release.store(true, Ordering::SeqCst);
    node.service.release_job(&id("j"), Some(JobEpoch::new(1))).await.unwrap();
    assert_eq!(node.blocking.held(&id("j"), incarnation).total(), 5);
    let node = node.restart().await;
    assert_eq!(node.blocking.held(&id("j"), incarnation).total(), 0);
    assert_eq!(refused(node.service.job(&id("j")).await), ServiceErrorKind::Released);
    assert!(node.catalog.keys("dataset/").is_empty());
}

#[tokio::test]
async fn a_late_deletion_cannot_hit_what_came_after() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.produce(0, b"old").await;
    node.blocking.refuses_release.store(true, Ordering::SeqCst);
    node.service.release_job(&id("j"), Some(JobEpoch::new(1))).await.unwrap();
    node.put_job("j").await;
    node.put_dataset("j", "d", StoreClass::Blocking).await;
    node.produce(0, b"new").await;
    node.blocking.refuses_release.store(false, Ordering::SeqCst);
    node.pass(Duration::from_secs(60)).await;
    assert_eq!(node.service.n_releases_put_off(), 0);
    assert_eq!(node.read(0).await.unwrap(), b"new");
    let node = node.restart().await;
    assert_eq!(node.read(0).await.unwrap(), b"new");
}

//! Seals: who wins, repeats, and what a failure leaves.

use super::bench::*;
use crate::service::*;
use std::sync::atomic::Ordering;
use store_api::*;

fn stated(lengths: &[u64], crcs: Option<&[u32]>) -> Option<StatedContent> {
    let crcs = crcs.map(|crcs| crcs.iter().copied().map(Crc32c::new).collect());
    Some(StatedContent { indices: None, lengths: lengths.to_vec(), crcs })
}

async fn written(class: StoreClass) -> Node {
    let node = Node::with_dataset(class).await;
    node.open(0, 0, 0).await.unwrap();
    node.write(0, a(0, 0), b"hello").await.unwrap();
    node
}

async fn seal(node: &Node, content: Option<StatedContent>) -> ServiceResult<SealReply> {
    node.service.seal(&of(0, a(0, 0)), node.life(), content).await
}

#[tokio::test]
async fn a_repeated_seal_answers_the_same_and_one_with_other_content_is_refused() {
    let node = written(StoreClass::Blocking).await;
    let crc = Crc32c::of(b"hello").get();
    let good = || stated(&[5, 0, 0, 0], Some(&[crc, 0, 0, 0]));
    let Ok(SealReply::Won(first)) = seal(&node, good()).await else { panic!("it must win") };
    for content in [good(), None, stated(&[5, 0, 0, 0], None)] {
        let Ok(SealReply::Won(again)) = seal(&node, content).await else { panic!("it must win again") };
        assert_eq!(again.manifest, first.manifest);
    }
    for content in [stated(&[5, 0, 0, 0], Some(&[crc ^ 1, 0, 0, 0])), stated(&[4, 0, 0, 0], None), stated(&[5, 1, 0, 0], None)] {
        assert!(matches!(refused(seal(&node, content).await), ServiceErrorKind::DigestMismatch { .. }));
    }
    assert_eq!(node.service.counters().seals_won.value(), 1);
}

#[tokio::test]
async fn a_seal_that_states_other_content_leaves_the_attempt_open() {
    for content in [stated(&[6, 0, 0, 0], None), stated(&[5, 0, 0, 0], Some(&[1, 0, 0, 0]))] {
        let node = written(StoreClass::Blocking).await;
        assert!(matches!(refused(seal(&node, content).await), ServiceErrorKind::DigestMismatch { .. }));
        assert_eq!(refused(node.read(0).await), ServiceErrorKind::NotSealed);
        node.write(0, a(0, 0), b"!").await.unwrap();
        assert!(seal(&node, stated(&[6, 0, 0, 0], None)).await.is_ok());
        assert_eq!(node.read(0).await.unwrap(), b"hello!");
    }
}

#[tokio::test]
async fn a_seal_whose_lists_do_not_fit_is_refused() {
    let node = written(StoreClass::Blocking).await;
    let named =
        |indices: &[u32], lengths: &[u64]| Some(StatedContent { indices: Some(indices.to_vec()), lengths: lengths.to_vec(), crcs: None });
    for content in
        [stated(&[5], None), stated(&[5, 0, 0, 0], Some(&[1])), named(&[0, 0], &[5, 0]), named(&[1, 0], &[0, 5]), named(&[0], &[])]
    {
        assert!(matches!(refused(seal(&node, content).await), ServiceErrorKind::BadRequest { .. }));
    }
    assert_eq!(refused(seal(&node, named(&[4], &[0])).await), ServiceErrorKind::UnknownPartition);
    assert!(seal(&node, named(&[0], &[5])).await.is_ok());
}

#[tokio::test]
async fn a_later_seal_gets_the_winners_manifest_and_its_own_bytes_go() {
    for class in [StoreClass::Blocking, StoreClass::Durable] {
        let node = written(class).await;
        node.open(0, 0, 1).await.unwrap();
        node.write(0, a(0, 1), b"other").await.unwrap();
        let reply = node.seal(0, a(0, 1)).await.unwrap();
        assert!(matches!(reply, SealReply::Won(_)));
        for _ in 0..2 {
            let Ok(SealReply::OtherWon(view)) = seal(&node, None).await else { panic!("the other won") };
            assert_eq!(view.manifest.attempt.attempt, a(0, 1));
        }
        assert_eq!(node.read(0).await.unwrap(), b"other");
        node.tasks.close(node.clock.as_ref(), std::time::Duration::from_secs(1)).await;
        assert_eq!(node.service.job(&id("j")).await.unwrap().held.total(), 5, "{class}: only the winner's bytes remain");
    }
}

#[tokio::test]
async fn where_the_engine_decides_every_seal_wins_and_readers_name_one() {
    let node = Node::start().await;
    node.put_job("j").await;
    let request = DatasetRequest { arbitration: Arbitration::Engine, ..spec(StoreClass::Blocking) };
    node.service.put_dataset(&id("j"), &dataset_id("d"), request).await.unwrap();
    for (attempt, bytes) in [(0, b"zero"), (1, b"one!")] {
        node.open(0, 0, attempt).await.unwrap();
        node.write(0, a(0, attempt), bytes).await.unwrap();
        if attempt == 1 {
            assert_eq!(node.read(0).await.unwrap(), b"zero", "one attempt needs no name");
        }
        assert!(matches!(node.seal(0, a(0, attempt)).await.unwrap(), SealReply::Won(_)));
    }
    assert!(matches!(refused(node.read(0).await), ServiceErrorKind::BadRequest { .. }));
    assert_eq!(node.read_as(0, Some(a(0, 0)), ReadKind::Sealed).await.unwrap(), b"zero");
    assert_eq!(node.read_as(0, Some(a(0, 1)), ReadKind::Sealed).await.unwrap(), b"one!");
    let view = node.service.partition(&at(0)).await.unwrap();
    assert_eq!(view.attempts, [a(0, 0), a(0, 1)]);
}

#[tokio::test]
async fn a_publication_that_fails_keeps_what_is_prepared_and_a_repeat_succeeds() {
    let node = written(StoreClass::Blocking).await;
    node.blocking.refuses_publish.store(true, Ordering::SeqCst);
    assert!(matches!(refused(seal(&node, None).await), ServiceErrorKind::Unavailable { .. }));
    assert_eq!(refused(node.read(0).await), ServiceErrorKind::NotSealed);
    node.blocking.refuses_publish.store(false, Ordering::SeqCst);
    assert!(seal(&node, None).await.is_ok());
    assert_eq!(node.read(0).await.unwrap(), b"hello");
}

#[tokio::test]
async fn a_winner_that_was_aborted_before_its_publication_lets_another_win() {
    let node = written(StoreClass::Blocking).await;
    node.open(0, 0, 1).await.unwrap();
    node.blocking.refuses_publish.store(true, Ordering::SeqCst);
    assert!(seal(&node, None).await.is_err());
    node.blocking.refuses_publish.store(false, Ordering::SeqCst);
    node.service.abort_attempt(&of(0, a(0, 0)), node.life()).await.unwrap();
    assert!(matches!(node.seal(0, a(0, 1)).await.unwrap(), SealReply::Won(_)));
}

#[tokio::test]
async fn a_partition_without_bytes_is_sealed_listed_and_read_as_empty() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.open(3, 0, 0).await.unwrap();
    node.seal(3, a(0, 0)).await.unwrap();
    assert_eq!(node.read(3).await.unwrap(), b"");
    let page = node.service.partitions(&id("j"), &dataset_id("d"), None, None).await.unwrap();
    assert_eq!(page.manifests.len(), 1);
    assert_eq!(page.manifests[0].manifest.table.total_bytes(), 0);
}

#[tokio::test]
async fn a_seal_runs_to_its_end_when_its_caller_leaves() {
    let node = written(StoreClass::Blocking).await;
    let left = futures::FutureExt::now_or_never(seal(&node, None));
    assert!(left.is_none());
    while node.service.n_writes_running() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(node.read(0).await.unwrap(), b"hello");
}

#[tokio::test]
async fn a_release_during_the_seal_wins_and_nothing_stays_behind() {
    let node = written(StoreClass::Blocking).await;
    let address = of(0, a(0, 0));
    let (sealed, released) = tokio::join!(node.service.seal(&address, node.life(), None), node.release(0));
    released.unwrap();
    if let Err(error) = sealed {
        assert_eq!(error.kind(), &ServiceErrorKind::Released);
    }
    assert_eq!(refused(node.read(0).await), ServiceErrorKind::Released);
    assert_eq!(node.service.job(&id("j")).await.unwrap().held.total(), 0);
}

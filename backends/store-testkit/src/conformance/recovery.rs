//! What is there again after the medium was opened anew.

use crate::scenario::{Attempt, assert_nothing_held, attempt, held_bytes, is_gone, partition, refused, spec};
use crate::suite::Stage;
use crate::{Instance, assert_refused};
use store_api::{AttemptId, AttemptState, RecoveryReport, ReleaseScope, SealManifest, StoreErrorKind};

/// Ends the store (closed, or dropped as it is) and opens its medium again.
async fn again(stage: &Stage, instance: Instance, is_closed: bool) -> (Instance, RecoveryReport) {
    if is_closed {
        instance.store.close().await.expect("it can be closed");
    }
    let instance = stage.reopen(instance).await;
    let report = instance.store.recover().await.expect("its medium can be recovered");
    (instance, report)
}

fn manifests(report: &RecoveryReport) -> Vec<SealManifest> {
    let mut all: Vec<_> = report.sealed.iter().map(|manifest| SealManifest::clone(manifest)).collect();
    all.sort_by(|one, two| one.attempt.cmp(&two.attempt));
    all
}

/// Sealed content is there after each of several reopens, the same in every byte and manifest.
pub async fn sealed_content_survives_three_reopens(stage: Stage) {
    let mut instance = stage.fresh().await;
    let mut wanted = Vec::new();
    for number in 0..6 {
        let one = Attempt::opened(&instance.store, attempt(number, 0, 0), spec(stage.kind(), 3)).await;
        one.write(0, 0, 1000 * number).await;
        one.write(2, 0, 70_000).await;
        wanted.push(SealManifest::clone(&*one.seal().await));
    }
    for round in 0..3 {
        let (next, report) = again(&stage, instance, round % 2 == 0).await;
        instance = next;
        assert_eq!(manifests(&report), wanted, "round {round}");
        assert!(report.lost.is_empty());
        for number in 0..6 {
            let one = Attempt::new(&instance.store, attempt(number, 0, 0), spec(stage.kind(), 3));
            one.assert_holds(0, 1000 * number).await;
            one.assert_holds(2, 70_000).await;
            assert_eq!(one.store.stat(&one.key).await.expect("it is known").state, AttemptState::Sealed);
            assert_eq!(*one.store.manifest(&one.key).await.expect("it has a manifest"), wanted[usize::try_from(number).expect("small")]);
        }
        assert!(held_bytes(&instance.store) >= 6 * 70_000, "what is there again is held again");
    }
}

/// What was not sealed is dropped, counted, and leaves room for a new attempt of the same name.
pub async fn unsealed_attempts_are_dropped_and_counted(stage: Stage) {
    for is_closed in [true, false] {
        let instance = stage.fresh().await;
        for number in 0..4 {
            let one = Attempt::opened(&instance.store, attempt(number, 0, 0), spec(stage.kind(), 2)).await;
            one.write(0, 0, 10_000).await;
            if number == 2 {
                one.prepare().await.expect("it can be prepared");
            }
            if number == 3 {
                one.seal().await;
            }
        }
        let (instance, report) = again(&stage, instance, is_closed).await;
        assert_eq!(report.sealed.len(), 1);
        assert!(report.n_dropped <= 3, "{} were dropped, three were not sealed", report.n_dropped);
        for number in 0..3 {
            let one = Attempt::new(&instance.store, attempt(number, 0, 0), spec(stage.kind(), 2));
            assert_refused!(one.read(0, 0, None).await, StoreErrorKind::NotFound | StoreErrorKind::Aborted);
            one.open().await.expect("the name is free again");
            assert_eq!(one.tail(0).await, 0, "nothing of the dropped attempt comes back");
            one.write(0, 0, 77).await;
            one.seal().await;
            one.assert_holds(0, 77).await;
        }
        Attempt::new(&instance.store, attempt(3, 0, 0), spec(stage.kind(), 2)).assert_holds(0, 10_000).await;
    }
}

/// Nothing that was released, aborted or fenced comes back.
pub async fn nothing_released_comes_back(stage: Stage) {
    for is_closed in [true, false] {
        let instance = stage.fresh().await;
        for number in 0..4 {
            let one = Attempt::opened(&instance.store, attempt(number, 0, 0), spec(stage.kind(), 2)).await;
            one.write(0, 0, 10_000).await;
            one.seal().await;
        }
        let store = &instance.store;
        store.release(ReleaseScope::Attempt(attempt(0, 0, 0))).await.expect("it can be released");
        store.release(ReleaseScope::Partition(partition(1))).await.expect("it can be released");
        let by = AttemptId::new(1, 0);
        Attempt::opened(store, attempt(2, 1, 0), spec(stage.kind(), 2)).await;
        store.release(ReleaseScope::GenerationsBelow { partition: partition(2), by }).await.expect("it can be fenced");
        let (mut instance, mut report) = again(&stage, instance, is_closed).await;
        for _ in 0..2 {
            let names: Vec<_> = manifests(&report).into_iter().map(|manifest| manifest.attempt).collect();
            assert_eq!(names, [attempt(3, 0, 0)]);
            for number in 0..3 {
                let one = Attempt::new(&instance.store, attempt(number, 0, 0), spec(stage.kind(), 2));
                let kind = refused(one.read(0, 0, None).await);
                assert!(is_gone(&kind) || matches!(kind, StoreErrorKind::Fenced { .. }), "{kind:?}");
            }
            (instance, report) = again(&stage, instance, !is_closed).await;
        }
        instance.store.release(ReleaseScope::Dataset(partition(3).dataset)).await.expect("it can be released");
        assert_nothing_held(&instance.store).await;
        let (instance, report) = again(&stage, instance, is_closed).await;
        assert!(report.sealed.is_empty());
        assert_nothing_held(&instance.store).await;
    }
}

/// Repeats of a seal whose reply was lost are answered after a reopen as before it.
pub async fn a_seal_is_repeated_after_a_reopen(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 2)).await;
    one.write(0, 0, 500).await;
    let before = one.seal().await;
    let (key, spec) = (one.key.clone(), spec(stage.kind(), 2));
    drop(one);
    let (instance, _) = again(&stage, instance, false).await;
    let one = Attempt::new(&instance.store, key, spec);
    assert_eq!(one.seal().await, before);
    assert_eq!(one.open().await.expect("a sealed attempt says so").state, AttemptState::Sealed);
    assert_refused!(one.put(0, None, bytes::Bytes::from_static(b"late")).await, StoreErrorKind::AlreadySealed);
    assert_refused!(one.store.abort(&one.key).await, StoreErrorKind::AlreadySealed);
    one.assert_holds(0, 500).await;
}

/// A store that was opened again works: new attempts beside the old ones, then another reopen.
pub async fn a_reopened_store_goes_on(stage: Stage) {
    let mut instance = stage.fresh().await;
    for round in 0..4 {
        let one = Attempt::opened(&instance.store, attempt(round, 0, 0), spec(stage.kind(), 2)).await;
        one.write(1, 0, 3000 + round).await;
        one.seal().await;
        drop(one);
        let report;
        (instance, report) = again(&stage, instance, round % 2 == 1).await;
        if stage.reach().reports_recovery {
            assert_eq!(report.sealed.len() as u64, round + 1);
        }
        for number in 0..=round {
            Attempt::new(&instance.store, attempt(number, 0, 0), spec(stage.kind(), 2)).assert_holds(1, 3000 + number).await;
        }
    }
}

/// An empty sealed partition is there again and still empty.
pub async fn an_empty_partition_survives_a_reopen(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 100)).await;
    one.seal().await;
    drop(one);
    let (instance, _) = again(&stage, instance, true).await;
    let one = Attempt::new(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 100));
    one.assert_holds(0, 0).await;
    one.assert_holds(99, 0).await;
}

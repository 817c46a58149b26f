//! Attempts: aborted, side by side, arbitrated, fenced.

use crate::assert_refused;
use crate::scenario::{Attempt, assert_nothing_held, assert_same, attempt, partition, spec};
use crate::suite::Stage;
use bytes::Bytes;
use store_api::{Arbitration, AttemptId, AttemptState, DatasetSpec, ReleaseScope, SealOutcome, StoreErrorKind};

/// An aborted attempt takes nothing and shows nothing; aborting again is a success.
pub async fn an_aborted_attempt_is_at_its_end(stage: Stage) {
    let instance = stage.fresh().await;
    for is_prepared in [false, true].into_iter().filter(|is_prepared| !is_prepared || stage.reach().prepares) {
        let one = Attempt::opened(&instance.store, attempt(u64::from(is_prepared), 0, 0), spec(stage.kind(), 2)).await;
        one.write(0, 0, 1000).await;
        if is_prepared {
            one.prepare().await.expect("it can be prepared");
        }
        for _ in 0..2 {
            one.store.abort(&one.key).await.expect("aborting is idempotent");
        }
        assert_refused!(one.open().await, StoreErrorKind::Aborted);
        assert_refused!(one.put(0, None, Bytes::from_static(b"late")).await, StoreErrorKind::Aborted);
        assert_refused!(one.tails().await, StoreErrorKind::Aborted);
        assert_refused!(one.prepare().await, StoreErrorKind::Aborted);
        assert_refused!(one.publish().await, StoreErrorKind::Aborted);
        assert_refused!(one.read(0, 0, None).await, StoreErrorKind::Aborted);
        assert_refused!(one.store.manifest(&one.key).await, StoreErrorKind::Aborted);
    }
}

/// What an aborted attempt held is given back.
pub async fn aborting_gives_storage_back(stage: Stage) {
    let instance = stage.fresh().await;
    for number in 0..5 {
        let one = Attempt::opened(&instance.store, attempt(0, 0, number), spec(stage.kind(), 2)).await;
        one.write(0, 0, 200_000).await;
        if number % 2 == 1 && stage.reach().prepares {
            one.prepare().await.expect("it can be prepared");
        }
        one.store.abort(&one.key).await.expect("it can be aborted");
        assert_nothing_held(&one.store).await;
    }
}

/// A sealed attempt cannot be aborted.
pub async fn a_sealed_attempt_cannot_be_aborted(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 2)).await;
    one.write(0, 0, 1000).await;
    one.seal().await;
    for _ in 0..2 {
        assert_refused!(one.store.abort(&one.key).await, StoreErrorKind::AlreadySealed);
    }
    one.assert_holds(0, 1000).await;
}

/// Attempts of one generation are written side by side and never mix.
pub async fn two_attempts_of_a_generation_stay_apart(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 2)).await;
    let two = Attempt::opened(&instance.store, attempt(0, 0, 1), spec(stage.kind(), 2)).await;
    for start in (0..1000).step_by(100) {
        one.write(0, start, 100).await;
        two.write(0, start, 50).await;
        two.write(0, start + 50, 50).await;
        one.write(1, start, 100).await;
    }
    one.store.abort(&one.key).await.expect("it can be aborted");
    one.store.abort(&one.key).await.expect("a late abort is a success");
    two.write(0, 1000, 10).await;
    two.seal().await;
    two.assert_holds(0, 1010).await;
    two.assert_holds(1, 0).await;
    assert_refused!(one.read(0, 0, None).await, StoreErrorKind::Aborted);
}

/// Where the medium arbitrates, the second of two seals gets the winner's manifest and is aborted.
pub async fn the_second_seal_gets_the_winner(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 2)).await;
    let two = Attempt::opened(&instance.store, attempt(0, 0, 1), spec(stage.kind(), 2)).await;
    one.write(0, 0, 100).await;
    two.write(0, 0, 300).await;
    one.prepare().await.expect("it can be prepared");
    two.prepare().await.expect("it can be prepared beside the other");
    let SealOutcome::Won(manifest) = two.publish().await.expect("it can be published") else {
        panic!("the first to publish wins");
    };
    assert_eq!(manifest.attempt, two.key);
    assert_eq!(one.publish().await.expect("losing is an answer, not an error"), SealOutcome::Lost(manifest.clone()));
    assert_refused!(one.read(0, 0, None).await, StoreErrorKind::Aborted | StoreErrorKind::NotFound);
    assert_eq!(two.publish().await.expect("a repeat is a success"), SealOutcome::Won(manifest));
    two.assert_holds(0, 300).await;
}

/// Where the service arbitrates, the store answers `Won` to whoever is published; the loser is
/// aborted before that.
pub async fn a_store_that_does_not_arbitrate_never_answers_lost(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 2)).await;
    one.write(0, 0, 100).await;
    one.seal().await;
    let two = Attempt::opened(&instance.store, attempt(0, 0, 1), spec(stage.kind(), 2)).await;
    two.write(0, 0, 300).await;
    two.prepare().await.expect("it can be prepared");
    let three = Attempt::opened(&instance.store, attempt(0, 0, 2), spec(stage.kind(), 2)).await;
    three.write(0, 0, 5).await;
    three.seal().await;
    two.store.abort(&two.key).await.expect("a loser can be aborted");
    one.assert_holds(0, 100).await;
    three.assert_holds(0, 5).await;
}

/// When the engine decides, every sealed attempt is readable by its name.
pub async fn the_engine_may_read_every_sealed_attempt(stage: Stage) {
    let instance = stage.fresh().await;
    let engine = DatasetSpec { arbitration: Arbitration::Engine, ..spec(stage.kind(), 2) };
    let mut sealed = Vec::new();
    for number in 0..3 {
        let one = Attempt::opened(&instance.store, attempt(0, 0, number), engine.clone()).await;
        one.write(0, 0, 100 + u64::from(number)).await;
        one.seal().await;
        sealed.push(one);
    }
    for (one, length) in sealed.iter().zip(100..) {
        one.assert_holds(0, length).await;
    }
    instance.store.release(ReleaseScope::Attempt(sealed[1].key.clone())).await.expect("it can be released");
    sealed[0].assert_holds(0, 100).await;
    sealed[2].assert_holds(0, 102).await;
}

/// A newer generation fences every attempt below it, whatever its state, and says by what.
pub async fn a_newer_generation_fences_lower_ones(stage: Stage) {
    let instance = stage.fresh().await;
    let engine = DatasetSpec { arbitration: Arbitration::Engine, ..spec(stage.kind(), 2) };
    let mut lower = Vec::new();
    for (generation, state) in [(1, AttemptState::Open), (2, AttemptState::Prepared), (3, AttemptState::Sealed)] {
        let one = Attempt::opened(&instance.store, attempt(0, generation, 7), engine.clone()).await;
        one.write(0, 0, 100).await;
        if state != AttemptState::Open {
            one.prepare().await.expect("it can be prepared");
        }
        if state == AttemptState::Sealed {
            one.publish().await.expect("it can be published");
        }
        lower.push(one);
    }
    let neighbour = Attempt::opened(&instance.store, attempt(1, 1, 0), engine.clone()).await;
    neighbour.write(0, 0, 10).await;
    let newer = Attempt::opened(&instance.store, attempt(0, 4, 2), engine.clone()).await;
    newer.write(0, 0, 50).await;
    let fence = ReleaseScope::GenerationsBelow { partition: partition(0), by: AttemptId::new(4, 2) };
    let report = instance.store.release(fence.clone()).await.expect("lower generations can be fenced");
    if stage.reach().releases_attempts {
        assert_eq!(report.n_attempts, 3);
    }
    for one in &lower {
        let by = AttemptId::new(4, 2);
        assert_refused!(one.open().await, StoreErrorKind::Fenced { by: found } if found == by);
        assert_refused!(one.put(0, None, Bytes::from_static(b"late")).await, StoreErrorKind::Fenced { .. });
        assert_refused!(one.tails().await, StoreErrorKind::Fenced { .. });
        assert_refused!(one.prepare().await, StoreErrorKind::Fenced { .. });
        assert_refused!(one.publish().await, StoreErrorKind::Fenced { .. });
        assert_refused!(one.read(0, 0, None).await, StoreErrorKind::Fenced { by: found } if found == by);
        one.store.abort(&one.key).await.expect("a late abort of a fenced attempt is a success");
    }
    let late = Attempt::new(&instance.store, attempt(0, 3, 99), engine);
    assert_refused!(late.open().await, StoreErrorKind::Fenced { .. });
    assert_eq!(instance.store.release(fence).await.expect("fencing is idempotent").n_attempts, 0);
    newer.write(0, 50, 50).await;
    newer.seal().await;
    newer.assert_holds(0, 100).await;
    neighbour.write(0, 10, 10).await;
    neighbour.seal().await;
    neighbour.assert_holds(0, 20).await;
}

/// Fencing gives back what the lower generations held.
pub async fn fencing_gives_storage_back(stage: Stage) {
    let instance = stage.fresh().await;
    for generation in 0..3 {
        let one = Attempt::opened(&instance.store, attempt(0, generation, 0), spec(stage.kind(), 2)).await;
        one.write(0, 0, 100_000).await;
        one.seal().await;
    }
    let fence = ReleaseScope::GenerationsBelow { partition: partition(0), by: AttemptId::new(3, 0) };
    instance.store.release(fence).await.expect("lower generations can be fenced");
    assert_nothing_held(&instance.store).await;
    let newer = Attempt::opened(&instance.store, attempt(0, 3, 0), spec(stage.kind(), 2)).await;
    newer.write(0, 0, 10).await;
    newer.seal().await;
    newer.assert_holds(0, 10).await;
}

/// A read that was under way when its attempt was fenced ends with an error or with the right
/// bytes.
pub async fn a_fence_never_mixes_into_a_read(stage: Stage) {
    let instance = stage.fresh().await;
    let length = 400_000;
    for round in 0..stage.rounds(10) {
        let number = u64::try_from(round).expect("few rounds");
        let old = Attempt::opened(&instance.store, attempt(number, 0, 0), spec(stage.kind(), 1)).await;
        for start in (0..length).step_by(100_000) {
            old.write(0, start, 100_000).await;
        }
        old.seal().await;
        let stream = old.reading(0, 0, None).await.expect("sealed content can be read");
        let new = Attempt::opened(&instance.store, attempt(number, 1, 0), spec(stage.kind(), 1)).await;
        new.write(0, 0, length).await;
        let fence = ReleaseScope::GenerationsBelow { partition: partition(number), by: new.key.attempt };
        instance.store.release(fence).await.expect("lower generations can be fenced");
        new.seal().await;
        match crate::scenario::collect(stream).await {
            Ok(bytes) => assert_same(&bytes, &old.bytes(0, 0, length)),
            Err((bytes, error)) => {
                assert_same(&bytes, &old.bytes(0, 0, bytes.len() as u64));
                let kind = error.kind();
                let says_so = matches!(kind, StoreErrorKind::Fenced { .. } | StoreErrorKind::Released | StoreErrorKind::NotFound);
                assert!(says_so, "{kind:?}");
            }
        }
        new.assert_holds(0, length).await;
    }
}

//! Giving storage back, at every scope.

use crate::assert_refused;
use crate::scenario::{Attempt, assert_nothing_held, assert_same, attempt, collect, dataset, held_bytes, is_gone, job, refused, spec};
use crate::suite::Stage;
use bytes::Bytes;
use futures::StreamExt;
use store_api::{AttemptId, AttemptKey, JobIncarnation, PartitionId, ReleaseScope, StoreErrorKind};

fn key(name: &str, incarnation: u64, of: &str, partition: u64, number: u32) -> AttemptKey {
    dataset(name, incarnation, of).partition(PartitionId::new(partition)).attempt(AttemptId::new(number, 0))
}

async fn sealed(stage: &Stage, instance: &crate::Instance, key: AttemptKey) -> Attempt {
    let one = Attempt::opened(&instance.store, key, spec(stage.kind(), 2)).await;
    one.write(0, 0, 1000).await;
    one.seal().await;
    one
}

/// Asserts that every call on a released attempt is refused.
async fn assert_released(one: &Attempt) {
    let kinds = [
        refused(one.put(0, None, Bytes::from_static(b"late")).await),
        refused(one.tails().await),
        refused(one.prepare().await),
        refused(one.publish().await),
        refused(one.read(0, 0, None).await),
        refused(one.store.manifest(&one.key).await),
    ];
    assert!(kinds.iter().all(is_gone), "{}: {kinds:?}", one.key);
    assert_refused!(one.open().await, StoreErrorKind::Released);
}

/// Each scope releases what is inside it and nothing beside it, and can be released again.
pub async fn each_scope_releases_its_inside_only(stage: Stage) {
    let instance = stage.fresh().await;
    let names = [("job", 1, "d", 0, 0), ("job", 1, "d", 1, 0), ("job", 1, "d", 10, 0), ("job", 1, "d1", 0, 0), ("job", 2, "d", 0, 0)];
    let mut others = Vec::new();
    for (name, incarnation, of, partition, number) in names.into_iter().chain([("job1", 1, "d", 0, 0), ("jo", 1, "d", 0, 0)]) {
        others.push(sealed(&stage, &instance, key(name, incarnation, of, partition, number)).await);
    }
    let base = &others[0].key;
    let scopes = [
        (ReleaseScope::Attempt(base.clone()), 0),
        (ReleaseScope::Partition(others[1].key.partition.clone()), 1),
        (ReleaseScope::Dataset(base.partition.dataset.clone()), 2),
        (ReleaseScope::Job { job: job("job"), incarnation: JobIncarnation::new(1) }, 3),
        (ReleaseScope::Job { job: job("job"), incarnation: JobIncarnation::new(2) }, 4),
    ];
    for (scope, last) in scopes {
        let report = instance.store.release(scope.clone()).await.expect("it can be released");
        assert_eq!(report.n_attempts, 1, "{scope:?}");
        assert!(report.bytes >= 1000, "{scope:?} gave {} bytes back", report.bytes);
        let again = instance.store.release(scope.clone()).await.expect("releasing is idempotent");
        assert_eq!((again.n_attempts, again.bytes), (0, 0), "{scope:?}");
        for (at, other) in others.iter().enumerate() {
            if at <= last {
                assert_released(other).await;
            } else {
                other.assert_holds(0, 1000).await;
            }
        }
    }
}

/// Attempts in every state are released, and nothing stays charged.
pub async fn attempts_in_every_state_are_released(stage: Stage) {
    let instance = stage.fresh().await;
    let mut all = Vec::new();
    for number in 0..3 {
        let one = Attempt::opened(&instance.store, attempt(number, 0, 0), spec(stage.kind(), 2)).await;
        one.write(0, 0, 50_000).await;
        if number > 0 {
            one.prepare().await.expect("it can be prepared");
        }
        if number > 1 {
            one.publish().await.expect("it can be published");
        }
        all.push(one);
    }
    let scope = ReleaseScope::Dataset(all[0].key.partition.dataset.clone());
    assert_eq!(instance.store.release(scope).await.expect("it can be released").n_attempts, 3);
    for one in &all {
        assert_released(one).await;
        one.store.abort(&one.key).await.expect("a late abort of a released attempt is a success");
    }
    assert_nothing_held(&instance.store).await;
}

/// Writing goes on next to a partition that is released.
pub async fn a_neighbour_goes_on_while_another_is_released(stage: Stage) {
    let instance = stage.fresh().await;
    let neighbour = Attempt::opened(&instance.store, attempt(1, 0, 0), spec(stage.kind(), 2)).await;
    for round in 0..5 {
        let one = Attempt::opened(&instance.store, attempt(100 + round, 0, 0), spec(stage.kind(), 2)).await;
        one.write(0, 0, 1000).await;
        neighbour.write(0, round * 500, 500).await;
        if round % 2 == 0 {
            one.seal().await;
        }
        instance.store.release(ReleaseScope::Partition(one.key.partition.clone())).await.expect("it can be released");
    }
    neighbour.seal().await;
    neighbour.assert_holds(0, 2500).await;
}

/// A job id is used again at once under a new incarnation, with other settings.
pub async fn a_job_is_created_again_under_a_new_incarnation(stage: Stage) {
    let instance = stage.fresh().await;
    for incarnation in 1..=stage.rounds(20) as u64 {
        let count = u32::try_from(incarnation % 3).expect("a small number") + 1;
        let one = Attempt::opened(&instance.store, key("job", incarnation, "d", 0, 0), spec(stage.kind(), count)).await;
        assert_eq!(one.tail(0).await, 0, "a new incarnation starts empty");
        one.write(0, 0, 100 + incarnation).await;
        let manifest = one.seal().await;
        assert_eq!(manifest.table.count(), count);
        one.assert_holds(0, 100 + incarnation).await;
        let scope = ReleaseScope::Job { job: job("job"), incarnation: JobIncarnation::new(incarnation) };
        instance.store.release(scope).await.expect("it can be released");
        assert_refused!(one.read(0, 0, None).await, StoreErrorKind::Released | StoreErrorKind::NotFound);
    }
}

/// A read that was under way at the release ends with an error or with the right bytes; the space
/// is free when it has ended.
pub async fn a_read_under_way_ends_rightly_at_a_release(stage: Stage) {
    let instance = stage.fresh().await;
    let length = 500_000;
    for round in 0..stage.rounds(10) as u64 {
        let one = Attempt::opened(&instance.store, attempt(round, 0, 0), spec(stage.kind(), 1)).await;
        for start in (0..length).step_by(50_000) {
            one.write(0, start, 50_000).await;
        }
        one.seal().await;
        let mut begun = one.reading(0, 0, None).await.expect("sealed content can be read");
        let not_begun = one.reading(0, 0, None).await.expect("sealed content can be read");
        let first = begun.chunks.next().await.expect("there are bytes").expect("the bytes are whole");
        instance.store.release(ReleaseScope::Partition(one.key.partition.clone())).await.expect("it can be released");
        assert!(is_gone(&refused(one.reading(0, 0, None).await)), "no new read starts after a release");
        let taken = first.len() as u64;
        for (stream, from) in [(begun, taken), (not_begun, 0)] {
            match collect(stream).await {
                Ok(bytes) => assert_same(&bytes, &one.bytes(0, from, length - from)),
                Err((bytes, error)) => {
                    assert_same(&bytes, &one.bytes(0, from, bytes.len() as u64));
                    assert!(is_gone(error.kind()), "{error:?}");
                }
            }
        }
    }
    assert_nothing_held(&instance.store).await;
}

/// A reader that stands still does not keep a release from returning, nor its bytes once it has
/// left.
pub async fn a_reader_that_stands_still_does_not_block_a_release(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 1)).await;
    for start in (0..1_000_000).step_by(100_000) {
        one.write(0, start, 100_000).await;
    }
    one.seal().await;
    let mut stream = one.reading(0, 0, None).await.expect("sealed content can be read");
    let _ = stream.chunks.next().await;
    let scope = ReleaseScope::Dataset(one.key.partition.dataset.clone());
    crate::scenario::soon("the release", instance.store.release(scope)).await.expect("it can be released");
    drop(stream);
    assert_nothing_held(&instance.store).await;
}

/// Releasing again and again gives everything back each time.
pub async fn storage_is_used_again_after_releases(stage: Stage) {
    let instance = stage.fresh().await;
    for round in 0..stage.rounds(30) as u64 {
        let one = Attempt::opened(&instance.store, attempt(round, 0, 0), spec(stage.kind(), 4)).await;
        for index in 0..4 {
            one.write(index, 0, 250_000).await;
        }
        one.seal().await;
        instance.store.release(ReleaseScope::Attempt(one.key.clone())).await.expect("it can be released");
    }
    assert_nothing_held(&instance.store).await;
    assert_eq!(held_bytes(&instance.store), 0);
}

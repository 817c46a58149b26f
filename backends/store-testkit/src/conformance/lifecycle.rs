//! From opening to closing: states, what is not known, what is held.

use crate::assert_refused;
use crate::scenario::{Attempt, assert_nothing_held, attempt, dataset, held_bytes, partition, refused, spec};
use crate::suite::Stage;
use bytes::Bytes;
use std::time::Duration;
use store_api::{
    AcknowledgeRequest, AttemptId, AttemptState, DatasetKind, Durability, OpenRequest, PartitionId, ReleaseScope, Retention, StoreClass,
    StoreErrorKind,
};

/// The declared capabilities do not contradict each other or the factory's kind.
pub async fn capabilities_fit_together(stage: Stage) {
    let instance = stage.fresh().await;
    let capabilities = instance.store.capabilities();
    assert_eq!(capabilities.class.class, stage.kind().class());
    assert!(capabilities.max_chunk_bytes > 0 && capabilities.max_subpartition_bytes >= capabilities.max_chunk_bytes);
    assert_eq!(capabilities.moves_floors(), stage.kind().class() == StoreClass::Pipelined, "floors are what pipelined stores have");
    if let DatasetKind::Pipelined(retention) = stage.kind() {
        assert!(capabilities.retentions.contains(&retention), "the kind of the factory must be kept");
    }
    assert_eq!(capabilities.survives_reopen(), capabilities.class.durability > Durability::Volatile);
    assert_eq!(instance.store.capabilities(), capabilities, "capabilities never change");
}

/// A repeat of an open answers where the attempt stands and changes nothing.
pub async fn open_is_idempotent(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 4)).await;
    let empty = one.open().await.expect("an open attempt can be opened again");
    assert_eq!((empty.state, empty.tails.len()), (AttemptState::Open, 0));
    one.write(2, 0, 1000).await;
    one.write(0, 0, 10).await;
    let again = one.open().await.expect("an open attempt can be opened again");
    assert_eq!(again, one.tails().await.expect("an open attempt has tails"));
    assert_eq!((one.tail(0).await, one.tail(1).await, one.tail(2).await), (10, 0, 1000));
    one.prepare().await.expect("it can be prepared");
    if stage.reach().prepares {
        assert_eq!(one.open().await.expect("a prepared attempt says so").state, AttemptState::Prepared);
    }
    one.publish().await.expect("it can be published");
    assert_eq!(one.open().await.expect("a sealed attempt says so").state, AttemptState::Sealed);
    one.assert_holds(2, 1000).await;
}

/// An attempt that was never opened is not known to any call; aborting it is a success.
pub async fn an_unknown_attempt_is_not_found(stage: Stage) {
    let instance = stage.fresh().await;
    Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 4)).await;
    let one = Attempt::new(&instance.store, attempt(0, 0, 1), spec(stage.kind(), 4));
    assert_refused!(one.put(0, None, Bytes::from_static(b"x")).await, StoreErrorKind::NotFound);
    assert_refused!(one.tails().await, StoreErrorKind::NotFound);
    assert_refused!(one.prepare().await, StoreErrorKind::NotFound);
    assert_refused!(one.publish().await, StoreErrorKind::NotFound);
    assert_refused!(one.read(0, 0, None).await, StoreErrorKind::NotFound);
    assert_refused!(one.store.stat(&one.key).await, StoreErrorKind::NotFound);
    assert_refused!(one.store.manifest(&one.key).await, StoreErrorKind::NotFound);
    one.store.abort(&one.key).await.expect("aborting what is not known is a success");
    let nothing = one.store.release(ReleaseScope::Partition(partition(77))).await.expect("releasing nothing is a success");
    assert_eq!((nothing.n_attempts, nothing.bytes), (0, 0));
}

/// Only the true name finds an attempt; every permutation of its numbers does not.
pub async fn swapped_ids_find_nothing(stage: Stage) {
    let instance = stage.fresh().await;
    let key = dataset("job-11", 11, "d-7").partition(PartitionId::new(7)).attempt(AttemptId::new(2, 3));
    let true_one = Attempt::opened(&instance.store, key, spec(stage.kind(), 6)).await;
    true_one.write(5, 0, 100).await;
    true_one.seal().await;
    true_one.assert_holds(5, 100).await;
    let named = |job, incarnation, name, partition, generation, number| {
        dataset(job, incarnation, name).partition(PartitionId::new(partition)).attempt(AttemptId::new(generation, number))
    };
    let wrong = [
        named("job-7", 11, "d-7", 7, 2, 3),
        named("d-7", 11, "job-11", 7, 2, 3),
        named("job-11", 7, "d-7", 11, 2, 3),
        named("job-11", 11, "d-11", 7, 2, 3),
        named("job-11", 11, "d-7", 2, 7, 3),
        named("job-11", 11, "d-7", 3, 2, 7),
        named("job-11", 11, "d-7", 7, 3, 2),
        named("job-1", 11, "d-7", 7, 2, 3),
        named("job-11", 11, "d-77", 7, 2, 3),
        named("job-11", 11, "d-7", 77, 2, 3),
    ];
    for key in wrong {
        let other = Attempt::new(&instance.store, key, spec(stage.kind(), 6));
        let kind = refused(other.read(5, 0, None).await);
        assert_eq!(kind, StoreErrorKind::NotFound, "{}", other.key);
    }
    for index in [0, 2, 3] {
        assert_eq!(true_one.read(index, 0, None).await.expect("an empty subpartition can be read").len(), 0);
    }
    assert_refused!(true_one.read(7, 0, None).await, StoreErrorKind::NoSuchSubpartition { count: 6 });
}

/// `stat` tells the state and the bytes at each step.
pub async fn stat_tells_state_and_bytes(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(3, 0, 0), spec(stage.kind(), 4)).await;
    let stat = || async { one.store.stat(&one.key).await.map(|stat| (stat.state, stat.total_bytes)) };
    assert_eq!(stat().await.expect("it is known"), (AttemptState::Open, 0));
    one.write(1, 0, 700).await;
    one.write(3, 0, 1).await;
    assert_eq!(stat().await.expect("it is known"), (AttemptState::Open, 701));
    one.prepare().await.expect("it can be prepared");
    if stage.reach().prepares {
        assert_eq!(stat().await.expect("it is known"), (AttemptState::Prepared, 701));
    }
    one.publish().await.expect("it can be published");
    assert_eq!(stat().await.expect("it is known"), (AttemptState::Sealed, 701));
}

/// What is held counts unique bytes, and nothing is held after everything was released.
pub async fn held_counts_and_returns_to_zero(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 4)).await;
    one.write(0, 0, 100_000).await;
    let written = held_bytes(&one.store);
    one.write(0, 0, 100_000).await;
    one.write(0, 50_000, 50_000).await;
    assert!(held_bytes(&one.store) <= written, "repeats are not charged");
    let two = Attempt::opened(&instance.store, attempt(1, 0, 0), spec(stage.kind(), 4)).await;
    two.write(0, 0, 5000).await;
    one.seal().await;
    two.seal().await;
    assert!(held_bytes(&one.store) >= 105_000, "sealed bytes are held");
    assert_eq!(one.store.held(one.key.job(), store_api::JobIncarnation::new(2)).total(), 0, "another incarnation holds nothing");
    let job = ReleaseScope::Job { job: one.key.job().clone(), incarnation: one.key.partition.dataset.incarnation };
    one.store.release(job).await.expect("a job can be released");
    assert_nothing_held(&one.store).await;
}

/// A spec whose kind the store does not keep is refused at opening.
pub async fn a_kind_of_another_class_is_unsupported(stage: Stage) {
    let instance = stage.fresh().await;
    let kinds = [DatasetKind::Blocking, DatasetKind::Durable, DatasetKind::Pipelined(Retention::UntilAcknowledged)];
    for kind in kinds.into_iter().filter(|kind| kind.class() != stage.kind().class()) {
        let other = Attempt::new(&instance.store, attempt(0, 0, 0), spec(kind, 4));
        assert_refused!(other.open().await, StoreErrorKind::Unsupported { .. });
        assert_refused!(other.tails().await, StoreErrorKind::NotFound);
    }
    Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 4)).await;
}

/// `locate` finds sealed content only, from the generation on that was asked for.
pub async fn locate_finds_sealed_content_only(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 1, 0), spec(stage.kind(), 4)).await;
    one.write(0, 0, 10).await;
    assert_eq!(locate_at(&one, 0).await, None, "an open attempt is not content");
    one.prepare().await.expect("it can be prepared");
    if stage.reach().prepares {
        assert_eq!(locate_at(&one, 0).await, None, "a prepared attempt is not content");
    }
    one.publish().await.expect("it can be published");
    assert_eq!(locate_at(&one, 0).await, Some(one.key.attempt));
    assert_eq!(locate_at(&one, 1).await, Some(one.key.attempt));
    assert_eq!(locate_at(&one, 2).await, None);
}

async fn locate_at(one: &Attempt, from_generation: u32) -> Option<AttemptId> {
    let found = one.store.locate(&one.key.partition, &one.spec, from_generation).await.expect("a medium that works answers");
    found.map(|manifest| manifest.attempt.attempt)
}

/// Stores that keep everything have no floors to move.
pub async fn acknowledging_is_unsupported_without_floors(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 4)).await;
    one.write(0, 0, 10).await;
    one.seal().await;
    let request = AcknowledgeRequest { attempt: one.key.clone(), group: crate::scenario::group("g"), offsets: Vec::new() };
    assert_refused!(one.store.acknowledge(request).await, StoreErrorKind::Unsupported { .. });
    one.assert_holds(0, 10).await;
}

/// A closed store refuses new work and can be closed again.
pub async fn a_closed_store_refuses_new_work(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 4)).await;
    one.write(0, 0, 10).await;
    instance.store.close().await.expect("it can be closed");
    let again = OpenRequest { attempt: attempt(1, 0, 0), spec: one.spec.clone(), starts: Vec::new() };
    assert_refused!(instance.store.open(again).await, StoreErrorKind::Closing);
    assert_refused!(instance.store.reserve(&one.key, 1, Duration::ZERO).await, StoreErrorKind::Closing);
    assert_refused!(one.prepare().await, StoreErrorKind::Closing);
    instance.store.close().await.expect("closing is idempotent");
}

/// The report of what was found is given once.
pub async fn recover_reports_once(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 4)).await;
    one.write(0, 0, 10).await;
    one.seal().await;
    let again = instance.store.recover().await.expect("a second call is a success");
    assert!(again.sealed.is_empty() && again.lost.is_empty() && again.n_dropped == 0);
    one.assert_holds(0, 10).await;
}

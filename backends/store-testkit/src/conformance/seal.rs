//! Preparing and publishing.

use crate::assert_refused;
use crate::scenario::{Attempt, attempt, spec, table};
use crate::suite::Stage;
use bytes::Bytes;
use store_api::{AttemptState, Digest, SealOutcome, StoreErrorKind, SubpartitionIndex};

async fn written(stage: &Stage) -> (crate::Instance, Attempt) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 4)).await;
    one.write(0, 0, 1000).await;
    one.write(2, 0, 5).await;
    (instance, one)
}

/// The manifest tells lengths, digests, the class achieved and the node.
pub async fn the_manifest_tells_what_is_held(stage: Stage) {
    let (instance, one) = written(&stage).await;
    let contents = [(0, one.bytes(0, 0, 1000)), (2, one.bytes(2, 0, 5))];
    let manifest = one.prepare_with(table(4, &contents)).await.expect("what is held was stated");
    assert_eq!(manifest.attempt, one.key);
    assert_eq!(manifest.table, table(4, &contents));
    assert_eq!(manifest.class, instance.store.capabilities().class);
    let outcome = one.publish().await.expect("a prepared attempt can be published");
    assert_eq!(outcome, SealOutcome::Won(manifest.clone()));
    assert_eq!(one.store.manifest(&one.key).await.expect("a sealed attempt has a manifest"), manifest);
    let stream = one.reading(0, 0, None).await.expect("sealed content can be read");
    assert_eq!(stream.digest, Some(Digest::of(&contents[0].1)));
    one.assert_holds(0, 1000).await;
}

/// A table that states something else is refused and leaves the attempt open.
pub async fn a_wrong_table_is_refused_and_leaves_the_attempt_open(stage: Stage) {
    let (_instance, one) = written(&stage).await;
    let (zero, two) = (one.bytes(0, 0, 1000), one.bytes(2, 0, 5));
    let wrong = [
        (vec![(0, zero.clone())], 2),
        (vec![(0, zero.slice(..999)), (2, two.clone())], 0),
        (vec![(0, zero.clone()), (2, Bytes::from_static(b"other"))], 2),
        (vec![(0, zero.clone()), (1, Bytes::from_static(b"x")), (2, two.clone())], 1),
        (vec![(0, two.clone()), (2, zero.clone())], 0),
        (Vec::new(), 0),
    ];
    for (contents, first) in wrong {
        let answer = one.prepare_with(table(4, &contents)).await;
        assert_refused!(answer, StoreErrorKind::DigestMismatch { subpartition, .. } if subpartition == first);
        assert_eq!(one.tails().await.expect("it is still there").state, AttemptState::Open);
    }
    one.write(2, 5, 5).await;
    let right = table(4, &[(0, zero), (2, one.bytes(2, 0, 10))]);
    one.prepare_with(right).await.expect("the right table is taken after wrong ones");
    one.publish().await.expect("it can be published");
    one.assert_holds(2, 10).await;
}

/// Preparing again answers the same manifest; another table is refused even then.
pub async fn prepare_is_idempotent(stage: Stage) {
    let (_instance, one) = written(&stage).await;
    let first = one.prepare().await.expect("it can be prepared");
    assert_eq!(one.prepare().await.expect("a repeat is a success"), first);
    let right = table(4, &[(0, one.bytes(0, 0, 1000)), (2, one.bytes(2, 0, 5))]);
    assert_eq!(one.prepare_with(right.clone()).await.expect("a repeat is a success"), first);
    one.publish().await.expect("it can be published");
    assert_eq!(one.prepare_with(right).await.expect("a repeat after the seal is a success"), first);
    let other = table(4, &[(0, one.bytes(0, 0, 1000))]);
    assert_refused!(one.prepare_with(other).await, StoreErrorKind::DigestMismatch { subpartition: 2, .. });
    one.assert_holds(0, 1000).await;
}

/// Publishing again answers `Won` with the same manifest.
pub async fn publish_is_idempotent(stage: Stage) {
    let (_instance, one) = written(&stage).await;
    let manifest = one.seal().await;
    for _ in 0..3 {
        assert_eq!(one.publish().await.expect("a repeat is a success"), SealOutcome::Won(manifest.clone()));
    }
}

/// Without a preparation there is nothing to publish.
pub async fn publishing_unprepared_is_refused(stage: Stage) {
    let (_instance, one) = written(&stage).await;
    assert_refused!(one.publish().await, StoreErrorKind::NotSealed);
    assert_refused!(one.store.manifest(&one.key).await, StoreErrorKind::NotSealed);
    one.write(0, 1000, 1).await;
    one.seal().await;
    one.assert_holds(0, 1001).await;
}

/// A prepared or sealed attempt takes no bytes, not even repeats of its own.
pub async fn a_prepared_attempt_takes_no_bytes(stage: Stage) {
    let (_instance, one) = written(&stage).await;
    one.prepare().await.expect("it can be prepared");
    assert_refused!(one.put(0, Some(1000), Bytes::from_static(b"late")).await, StoreErrorKind::AlreadySealed);
    assert_refused!(one.put(0, Some(0), one.bytes(0, 0, 10)).await, StoreErrorKind::AlreadySealed);
    one.publish().await.expect("it can be published");
    assert_refused!(one.put(1, None, Bytes::from_static(b"late")).await, StoreErrorKind::AlreadySealed);
    one.assert_holds(0, 1000).await;
    one.assert_holds(1, 0).await;
}

/// A prepared attempt is not visible.
pub async fn a_prepared_attempt_is_not_visible(stage: Stage) {
    let (_instance, one) = written(&stage).await;
    one.prepare().await.expect("it can be prepared");
    assert_refused!(one.read(0, 0, None).await, StoreErrorKind::NotSealed);
    assert_refused!(one.store.manifest(&one.key).await, StoreErrorKind::NotSealed);
    one.publish().await.expect("it can be published");
    one.assert_holds(0, 1000).await;
}

/// An attempt without a byte can be sealed and reads as empty.
pub async fn an_empty_attempt_is_sealed_and_reads_as_empty(stage: Stage) {
    let instance = stage.fresh().await;
    for (number, count) in [(0, 1), (1, 100)] {
        let one = Attempt::opened(&instance.store, attempt(number, 0, 0), spec(stage.kind(), count)).await;
        let manifest = one.prepare_with(table(count, &[])).await.expect("an empty table is right");
        assert_eq!((manifest.table.count(), manifest.table.total_bytes()), (count, 0));
        one.publish().await.expect("it can be published");
        for index in [0, count - 1] {
            let stream = one.reading(index, 0, None).await.expect("an empty subpartition can be read");
            assert_eq!((stream.end.map(store_api::Offset::get), stream.digest), (Some(0), Some(Digest::EMPTY)));
            one.assert_holds(index, 0).await;
        }
        assert_refused!(one.put(0, None, Bytes::from_static(b"late")).await, StoreErrorKind::AlreadySealed);
    }
}

/// A table with few entries among very many subpartitions is kept as it is.
pub async fn a_sparse_table_is_kept(stage: Stage) {
    const COUNT: u32 = 1 << 20;
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), COUNT)).await;
    let filled = [0, 1, 1023, 65_536, COUNT - 1];
    for index in filled {
        one.write(index, 0, u64::from(index % 50) + 1).await;
    }
    let manifest = one.seal().await;
    let found: Vec<_> = manifest.table.non_empty().map(|(index, digest)| (index.get(), digest.length)).collect();
    let wanted: Vec<_> = filled.iter().map(|index| (*index, u64::from(index % 50) + 1)).collect();
    assert_eq!(found, wanted);
    for (index, length) in wanted {
        one.assert_holds(index, length).await;
    }
    one.assert_holds(2, 0).await;
    assert_eq!(manifest.table.digest(SubpartitionIndex::new(COUNT)), None);
}

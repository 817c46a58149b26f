//! What the store makes of an object store that fails, lies, or is shared.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a panic is a failed test")]

mod outcomes;
mod support;

use forebay_store_object::{ConditionalPut, Config, Support, SweepReport, SweepRequest};
use std::sync::Arc;
use std::time::Duration;
use store_api::{AttemptId, AttemptState, JobId, JobIncarnation, LossCause, PartitionStore, ReleaseScope, SealOutcome, StoreErrorKind};
use support::{
    Call, Fault, FaultBucket, append, assert_holds, attempt, config, fresh, open, open_as, pattern, prepare, read, seal, spec, write,
};

fn count(counts: &std::collections::BTreeMap<Call, usize>, call: Call) -> usize {
    counts.get(&call).copied().unwrap_or(0)
}

fn job_scope() -> ReleaseScope {
    ReleaseScope::Job { job: JobId::new("job").unwrap(), incarnation: JobIncarnation::new(1) }
}

#[tokio::test]
async fn a_small_partition_costs_one_put_and_a_larger_one_two_and_nothing_is_listed() {
    let (bucket, store) = fresh().await;
    for (number, length, puts) in [(0, 0, 0), (1, 500, 0), (2, 5000, 1)] {
        let key = attempt(number, 0, 0);
        write(&store, &key, 1, length).await;
        assert!(matches!(seal(&store, &key).await, SealOutcome::Won(_)));
        assert_holds(&store, &key, 1, length).await;
        let counts = bucket.take_counts();
        assert_eq!((count(&counts, Call::Put), count(&counts, Call::Create)), (puts, 1), "{length} bytes: {counts:?}");
        store.release(ReleaseScope::Partition(key.partition.clone())).await.unwrap();
        let counts = bucket.take_counts();
        assert_eq!((count(&counts, Call::Put), count(&counts, Call::List)), (1, 0), "{length} bytes: {counts:?}");
    }
    let large = attempt(9, 0, 0);
    write(&store, &large, 0, 95_000).await;
    seal(&store, &large).await;
    assert_holds(&store, &large, 0, 95_000).await;
    let counts = bucket.take_counts();
    assert_eq!((count(&counts, Call::Begin), count(&counts, Call::Complete), count(&counts, Call::List)), (1, 1, 0), "{counts:?}");
    assert_eq!(bucket.names(".bytes").await.len(), 1, "one content object per attempt");
}

#[tokio::test]
async fn a_seal_whose_reply_was_lost_is_recognised_as_our_own() {
    let (bucket, store) = fresh().await;
    let key = attempt(0, 0, 0);
    write(&store, &key, 0, 5000).await;
    prepare(&store, &key).await.unwrap();
    bucket.fail(Call::Create, ".seal", Fault::ReplyLost, 1);
    assert!(matches!(store.publish(&key).await.unwrap(), SealOutcome::Won(manifest) if manifest.attempt == key));
    assert_holds(&store, &key, 0, 5000).await;
}

#[tokio::test]
async fn the_second_seal_of_a_generation_loses_on_every_node_and_leaves_nothing_behind() {
    let (bucket, one) = fresh().await;
    let two = open_as(&bucket, config(), "n2", 2).await.unwrap();
    let (first, second) = (attempt(0, 0, 0), attempt(0, 0, 1));
    write(&one, &first, 0, 25_000).await;
    write(&two, &second, 0, 25_000).await;
    let SealOutcome::Won(winner) = seal(&one, &first).await else { panic!("the first seal wins") };
    assert_eq!(seal(&two, &second).await, SealOutcome::Lost(winner.clone()));
    assert_eq!(bucket.names(".bytes").await.len(), 1, "the loser's content is deleted");
    assert_eq!(two.locate(&first.partition, &spec(), 0).await.unwrap(), Some(winner));
    assert_holds(&two, &first, 0, 25_000).await;
    let refused = read(&two, &second, 0).await.unwrap_err();
    assert_eq!(*refused.kind(), StoreErrorKind::Aborted);
}

#[tokio::test]
async fn a_seal_that_does_not_answer_stays_prepared_and_is_proposed_again() {
    let (bucket, store) = fresh().await;
    let key = attempt(0, 0, 0);
    write(&store, &key, 0, 5000).await;
    prepare(&store, &key).await.unwrap();
    bucket.fail(Call::Create, ".seal", Fault::Status(503), 2);
    assert!(matches!(store.publish(&key).await.unwrap_err().kind(), StoreErrorKind::Unavailable { .. }));
    assert_eq!(store.stat(&key).await.unwrap().state, AttemptState::Prepared);
    assert_eq!(*read(&store, &key, 0).await.unwrap_err().kind(), StoreErrorKind::NotSealed);
    assert!(matches!(store.publish(&key).await.unwrap(), SealOutcome::Won(_)));
}

#[tokio::test]
async fn a_part_that_fails_is_sent_again_and_its_memory_stays_charged_until_then() {
    let (bucket, store) = fresh().await;
    let key = attempt(0, 0, 0);
    write(&store, &key, 0, 25_000).await;
    bucket.fail(Call::Part, ".bytes", Fault::Status(503), usize::MAX);
    append(&store, &key, 0, 25_000, pattern(&key, 0, 25_000, 20_000)).await.unwrap();
    let error = prepare(&store, &key).await.unwrap_err();
    assert!(matches!(error.kind(), StoreErrorKind::Unavailable { .. }), "{error:?}");
    let held = store.held(key.job(), JobIncarnation::new(1));
    assert!(held.memory >= 20_000, "{held:?}");
    assert_eq!(store.stat(&key).await.unwrap().state, AttemptState::Open);
    bucket.heal();
    append(&store, &key, 0, 45_000, pattern(&key, 0, 45_000, 100)).await.unwrap();
    seal(&store, &key).await;
    assert_holds(&store, &key, 0, 45_100).await;
    assert_eq!(store.held(key.job(), JobIncarnation::new(1)).memory, 0);
    assert_eq!(bucket.n_uploads(), 0);
}

#[tokio::test]
async fn a_complete_that_failed_is_an_error_and_one_whose_reply_was_lost_is_not() {
    let (bucket, store) = fresh().await;
    for (number, fault, is_error) in [(0, Fault::Status(503), true), (1, Fault::ReplyLost, false)] {
        let key = attempt(number, 0, 0);
        write(&store, &key, 0, 25_000).await;
        bucket.fail(Call::Complete, ".bytes", fault, usize::MAX);
        assert_eq!(prepare(&store, &key).await.is_err(), is_error, "{fault:?}");
        assert_eq!(*read(&store, &key, 0).await.unwrap_err().kind(), StoreErrorKind::NotSealed);
        bucket.heal();
        seal(&store, &key).await;
        assert_holds(&store, &key, 0, 25_000).await;
    }
    assert_eq!(bucket.n_uploads(), 0);
}

#[tokio::test]
async fn an_upload_that_is_gone_loses_the_attempt_and_never_shows_a_part_of_it() {
    let (bucket, store) = fresh().await;
    let key = attempt(0, 0, 0);
    write(&store, &key, 0, 25_000).await;
    bucket.fail(Call::Complete, ".bytes", Fault::Status(404), usize::MAX);
    let lost = StoreErrorKind::Lost { cause: LossCause::ObjectStore };
    assert_eq!(*prepare(&store, &key).await.unwrap_err().kind(), lost);
    assert_eq!(*store.publish(&key).await.unwrap_err().kind(), lost);
    assert_eq!(store.held(key.job(), JobIncarnation::new(1)).total(), 0);
    let again = attempt(0, 0, 1);
    bucket.heal();
    write(&store, &again, 0, 25_000).await;
    assert!(matches!(seal(&store, &again).await, SealOutcome::Won(_)));
}

#[tokio::test]
async fn a_body_that_breaks_is_gone_on_with_and_gives_the_exact_bytes() {
    let (bucket, store) = fresh().await;
    let key = attempt(0, 0, 0);
    write(&store, &key, 2, 50_000).await;
    seal(&store, &key).await;
    for (cut, status) in [(1, 500), (999, 429), (3000, 503)] {
        bucket.fail(Call::Get, ".bytes", Fault::CutAt(cut), 1);
        bucket.fail(Call::Get, ".bytes", Fault::Status(status), 1);
        assert_holds(&store, &key, 2, 50_000).await;
    }
    bucket.fail(Call::Get, ".bytes", Fault::CutAt(0), usize::MAX);
    let error = read(&store, &key, 2).await.unwrap_err();
    assert!(matches!(error.kind(), StoreErrorKind::Unavailable { .. }), "{error:?}");
}

#[tokio::test]
async fn a_damaged_block_is_fetched_once_more_and_then_lost() {
    let (bucket, store) = fresh().await;
    let key = attempt(0, 0, 0);
    write(&store, &key, 0, 5000).await;
    append(&store, &key, 3, 0, pattern(&key, 3, 0, 2000)).await.unwrap();
    seal(&store, &key).await;
    bucket.fail(Call::Get, ".bytes", Fault::Damage, 1);
    assert_holds(&store, &key, 0, 5000).await;
    let name = bucket.names(".bytes").await.remove(0);
    bucket.damage(&name, 4321).await;
    let lost = StoreErrorKind::Lost { cause: LossCause::Corruption };
    assert_eq!(*read(&store, &key, 0).await.unwrap_err().kind(), lost);
    assert_holds(&store, &key, 3, 2000).await;
}

#[tokio::test]
async fn a_damaged_manifest_is_a_loss_and_never_other_content() {
    let (bucket, store) = fresh().await;
    let key = attempt(0, 0, 0);
    write(&store, &key, 0, 700).await;
    seal(&store, &key).await;
    let name = bucket.names(".seal").await.remove(0);
    bucket.damage(&name, 300).await;
    assert_eq!(*read(&store, &key, 0).await.unwrap_err().kind(), StoreErrorKind::Lost { cause: LossCause::Corruption });
    let located = store.locate(&key.partition, &spec(), 0).await.unwrap_err();
    assert!(matches!(located.kind(), StoreErrorKind::Format { .. }), "{located:?}");
}

#[tokio::test]
async fn content_that_is_gone_is_a_loss_and_a_store_that_is_silent_is_not() {
    let (bucket, store) = fresh().await;
    let key = attempt(0, 0, 0);
    write(&store, &key, 0, 5000).await;
    seal(&store, &key).await;
    for code in [500, 503, 429] {
        bucket.fail(Call::Get, "", Fault::Status(code), usize::MAX);
        assert!(matches!(read(&store, &key, 0).await.unwrap_err().kind(), StoreErrorKind::Unavailable { .. }));
        assert!(matches!(store.locate(&key.partition, &spec(), 0).await.unwrap_err().kind(), StoreErrorKind::Unavailable { .. }));
        bucket.heal();
    }
    assert_holds(&store, &key, 0, 5000).await;
    bucket.fail(Call::Get, ".bytes", Fault::Status(404), usize::MAX);
    assert_eq!(*read(&store, &key, 0).await.unwrap_err().kind(), StoreErrorKind::Lost { cause: LossCause::ObjectStore });
}

#[tokio::test]
async fn another_node_serves_releases_and_fences_what_the_first_has_sealed() {
    let (bucket, one) = fresh().await;
    let two = open_as(&bucket, config(), "n2", 9).await.unwrap();
    for (number, length) in [(0, 500), (1, 25_000), (2, 5000)] {
        let key = attempt(number, 0, 3);
        write(&one, &key, 0, length).await;
        let SealOutcome::Won(manifest) = seal(&one, &key).await else { panic!("nobody else seals") };
        assert_eq!(two.manifest(&key).await.unwrap(), manifest);
        assert_eq!(two.stat(&key).await.unwrap().state, AttemptState::Sealed);
        assert_eq!(two.locate(&key.partition, &spec(), 0).await.unwrap(), Some(manifest));
        assert_holds(&two, &key, 0, length).await;
    }
    let released = two.release(ReleaseScope::Partition(attempt(0, 0, 3).partition)).await.unwrap();
    assert_eq!((released.n_attempts, released.bytes), (1, 500));
    assert_eq!(*read(&one, &attempt(0, 0, 3), 0).await.unwrap_err().kind(), StoreErrorKind::Released);
    let by = AttemptId::new(4, 0);
    two.release(ReleaseScope::GenerationsBelow { partition: attempt(1, 0, 0).partition, by }).await.unwrap();
    assert_eq!(*read(&one, &attempt(1, 0, 3), 0).await.unwrap_err().kind(), StoreErrorKind::Fenced { by });
    let late = open(&one, &attempt(1, 0, 8)).await.unwrap_err();
    assert_eq!(*late.kind(), StoreErrorKind::Fenced { by });
    write(&two, &attempt(1, 4, 0), 0, 100).await;
    seal(&two, &attempt(1, 4, 0)).await;
    let found = one.locate(&attempt(1, 0, 0).partition, &spec(), 0).await.unwrap();
    assert_eq!(found.map(|manifest| manifest.attempt.attempt), Some(by), "generations are hopped");
    two.release(job_scope()).await.unwrap();
    assert_eq!(*read(&one, &attempt(2, 0, 3), 0).await.unwrap_err().kind(), StoreErrorKind::Released);
    assert_eq!(bucket.names("partitions/").await, ["forebay/v1/partitions/job/0000000000000001/=released"]);
}

#[tokio::test]
async fn a_late_create_does_not_bring_back_what_was_released_or_fenced() {
    let (bucket, one) = fresh().await;
    let two = open_as(&bucket, config(), "n2", 9).await.unwrap();
    let by = AttemptId::new(1, 0);
    let scopes = [
        (ReleaseScope::Partition(attempt(0, 0, 0).partition), StoreErrorKind::Released),
        (ReleaseScope::GenerationsBelow { partition: attempt(1, 0, 0).partition, by }, StoreErrorKind::Fenced { by }),
    ];
    for (number, (scope, kind)) in (0..).zip(scopes) {
        let (winner, late) = (attempt(number, 0, 0), attempt(number, 0, 1));
        write(&one, &winner, 0, 500).await;
        write(&two, &late, 0, 25_000).await;
        prepare(&two, &late).await.unwrap();
        seal(&one, &winner).await;
        one.release(scope).await.unwrap();
        assert_eq!(*two.publish(&late).await.unwrap_err().kind(), kind);
        assert_eq!(*read(&two, &late, 0).await.unwrap_err().kind(), kind);
    }
    assert!(bucket.names(".bytes").await.is_empty());
    assert_eq!(two.held(attempt(0, 0, 0).job(), JobIncarnation::new(1)).total(), 0);
}

#[tokio::test]
async fn a_release_that_failed_half_way_is_repeated_to_its_end() {
    for (call, fault) in [(Call::Put, Fault::Status(503)), (Call::Delete, Fault::Status(503)), (Call::List, Fault::CutAt(2))] {
        for scope in [job_scope(), ReleaseScope::Partition(attempt(0, 0, 0).partition)] {
            let (bucket, store) = fresh().await;
            let key = attempt(0, 0, 0);
            write(&store, &key, 0, 25_000).await;
            seal(&store, &key).await;
            bucket.fail(call, "", fault, usize::MAX);
            let first = store.release(scope.clone()).await;
            assert_eq!(*read(&store, &key, 0).await.unwrap_err().kind(), StoreErrorKind::Released, "{call:?}");
            bucket.heal();
            if first.is_err() {
                store.release(scope.clone()).await.unwrap();
            }
            assert!(bucket.names(".bytes").await.is_empty(), "{call:?} {scope:?}");
            let next = open_as(&bucket, config(), "n1", 2).await.unwrap();
            assert_eq!(*read(&next, &key, 0).await.unwrap_err().kind(), StoreErrorKind::Released, "{call:?} {scope:?}");
        }
    }
}

#[tokio::test]
async fn a_release_of_many_objects_deletes_in_bulk() {
    let (bucket, store) = fresh().await;
    for number in 0..1200 {
        let key = attempt(number, 0, 0);
        write(&store, &key, 0, 1500).await;
        seal(&store, &key).await;
    }
    bucket.take_counts();
    assert_eq!(store.release(job_scope()).await.unwrap().n_attempts, 1200);
    let counts = bucket.take_counts();
    assert_eq!((count(&counts, Call::Delete), count(&counts, Call::List), count(&counts, Call::Put)), (3, 1, 1), "{counts:?}");
    assert_eq!(store.held(attempt(0, 0, 0).job(), JobIncarnation::new(1)).total(), 0);
    assert_eq!(store.release(job_scope()).await.unwrap().n_attempts, 0);
}

#[tokio::test]
async fn a_store_that_ignores_conditions_is_refused_unless_a_coordinator_arbitrates() {
    let bucket = Arc::new(FaultBucket::that_ignores_conditions());
    let refused = open_as(&bucket, config(), "n1", 1).await.unwrap_err();
    assert!(matches!(refused.kind(), StoreErrorKind::Unsupported { reason } if reason.contains("ignores conditional puts")), "{refused:?}");
    let arbitrated = Config { conditional_put: ConditionalPut::Arbitrated, ..config() };
    let store = open_as(&bucket, arbitrated, "n1", 2).await.unwrap();
    assert_eq!(store.probed().create, Support::Ignored);
    let (key, late) = (attempt(0, 0, 0), attempt(0, 0, 1));
    write(&store, &key, 0, 500).await;
    write(&store, &late, 0, 700).await;
    assert!(matches!(seal(&store, &key).await, SealOutcome::Won(_)));
    assert!(matches!(seal(&store, &late).await, SealOutcome::Lost(_)), "what stands is never written over");
    assert_holds(&store, &key, 0, 500).await;
    assert!(bucket.names("probe").await.is_empty(), "the scratch key is taken away");
}

#[tokio::test]
async fn a_store_that_refuses_conditions_or_is_silent_is_told_from_one_that_works() {
    let bucket = Arc::new(FaultBucket::default());
    bucket.fail(Call::Create, "probe", Fault::Status(501), usize::MAX);
    let refused = open_as(&bucket, config(), "n1", 1).await.unwrap_err();
    assert!(matches!(refused.kind(), StoreErrorKind::Unsupported { reason } if reason.contains("refuses conditional puts")));
    bucket.heal();
    bucket.fail(Call::Create, "probe", Fault::Status(503), usize::MAX);
    assert!(matches!(open_as(&bucket, config(), "n1", 2).await.unwrap_err().kind(), StoreErrorKind::Unavailable { .. }));
    bucket.heal();
    bucket.fail(Call::Update, "probe", Fault::Status(412), usize::MAX);
    let store = open_as(&bucket, config(), "n1", 3).await.unwrap();
    assert_eq!((store.probed().create, store.probed().update), (Support::Works, Support::Refused));
    bucket.heal();
    bucket.fail(Call::Create, "probe", Fault::ReplyLost, 1);
    let store = open_as(&bucket, config(), "n1", 4).await.unwrap();
    assert_eq!((store.probed().create, store.probed().update), (Support::Works, Support::Works));
}

#[tokio::test]
async fn uploads_of_a_former_life_are_ended_and_those_of_others_are_not() {
    let (bucket, dead) = fresh().await;
    let other = open_as(&bucket, config(), "n2", 7).await.unwrap();
    write(&dead, &attempt(0, 0, 0), 0, 15_000).await;
    write(&other, &attempt(1, 0, 0), 0, 15_000).await;
    eventually(|| bucket.n_uploads() == 2).await;
    eventually_named(&bucket, "uploads/", 2).await;
    let next = open_as(&bucket, config(), "n1", 2).await.unwrap();
    let dry = next.sweep(&SweepRequest { dead: Vec::new(), is_dry_run: true }).await.unwrap();
    assert_eq!((dry.n_uploads, bucket.n_uploads()), (1, 2));
    assert_eq!(next.recover().await.unwrap().n_dropped, 1);
    assert_eq!(bucket.n_uploads(), 1);
    seal(&other, &attempt(1, 0, 0)).await;
    assert_holds(&other, &attempt(1, 0, 0), 0, 15_000).await;
    drop(dead);
}

#[tokio::test]
async fn aborting_and_closing_leave_no_upload_and_no_content() {
    let (bucket, store) = fresh().await;
    let (one, two) = (attempt(0, 0, 0), attempt(1, 0, 0));
    write(&store, &one, 0, 35_000).await;
    write(&store, &two, 0, 35_000).await;
    store.abort(&one).await.unwrap();
    store.close().await.unwrap();
    eventually(|| bucket.n_uploads() == 0).await;
    eventually_named(&bucket, ".bytes", 0).await;
    assert_eq!(store.held(one.job(), JobIncarnation::new(1)).total(), 0);
}

#[tokio::test]
async fn a_sweep_takes_dead_jobs_only_and_counts_first() {
    let (bucket, store) = fresh().await;
    let key = attempt(0, 0, 0);
    write(&store, &key, 0, 5000).await;
    seal(&store, &key).await;
    let names = bucket.names("partitions/").await.len() as u64;
    let jobs = store.jobs().await.unwrap();
    assert_eq!(jobs, [(JobId::new("job").unwrap(), JobIncarnation::new(1))]);
    let other = vec![(JobId::new("jo").unwrap(), JobIncarnation::new(1))];
    assert_eq!(store.sweep(&SweepRequest { dead: other, is_dry_run: false }).await.unwrap(), SweepReport::default());
    let dry = store.sweep(&SweepRequest { dead: jobs.clone(), is_dry_run: true }).await.unwrap();
    assert_eq!(dry.n_objects, names);
    assert_holds(&store, &key, 0, 5000).await;
    bucket.fail(Call::List, "partitions", Fault::CutAt(1), 1);
    assert!(store.sweep(&SweepRequest { dead: jobs.clone(), is_dry_run: false }).await.is_err());
    assert_eq!(bucket.names("partitions/").await.len() as u64, names, "nothing is decided from a part of a listing");
    assert_eq!(store.sweep(&SweepRequest { dead: jobs, is_dry_run: false }).await.unwrap().n_objects, names);
    assert!(bucket.names("partitions/").await.is_empty());
}

#[tokio::test]
async fn many_small_writers_share_a_budget_that_none_of_them_can_fill_alone() {
    let bucket = Arc::new(FaultBucket::default());
    let small = Config { memory_bytes: 20_000, part_bytes: 10_000, ..config() };
    let store = open_as(&bucket, small, "n1", 1).await.unwrap();
    for start in (0..10_000).step_by(1000) {
        for number in 0..10 {
            let key = attempt(number, 0, 0);
            if start == 0 {
                open(&store, &key).await.unwrap();
            }
            append(&store, &key, 0, start, pattern(&key, 0, start, 1000)).await.unwrap();
        }
    }
    for number in 0..10 {
        seal(&store, &attempt(number, 0, 0)).await;
        assert_holds(&store, &attempt(number, 0, 0), 0, 10_000).await;
    }
}

#[tokio::test]
async fn the_tombstone_of_one_attempt_says_nothing_of_another_that_was_never_there() {
    let (bucket, store) = fresh().await;
    let (sealed, never) = (attempt(0, 0, 0), attempt(0, 0, 1));
    write(&store, &sealed, 0, 100).await;
    seal(&store, &sealed).await;
    store.release(ReleaseScope::Attempt(sealed.clone())).await.unwrap();
    let other = open_as(&bucket, config(), "n2", 9).await.unwrap();
    for store in [&store, &other] {
        assert_eq!(*read(store, &never, 0).await.unwrap_err().kind(), StoreErrorKind::NotFound);
        assert_eq!(*store.tails(&never).await.unwrap_err().kind(), StoreErrorKind::NotFound);
        assert_eq!(*read(store, &sealed, 0).await.unwrap_err().kind(), StoreErrorKind::Released);
        // The generation is decided: what would be opened in it could never be sealed.
        assert_eq!(*open(store, &never).await.unwrap_err().kind(), StoreErrorKind::Released);
    }
}

#[tokio::test]
async fn a_repeat_of_bytes_that_were_sent_on_is_checked_by_its_checksum() {
    let (_bucket, store) = fresh().await;
    let key = attempt(0, 0, 0);
    write(&store, &key, 0, 35_000).await;
    let ack = append(&store, &key, 0, 5000, pattern(&key, 0, 5000, 5000)).await.unwrap();
    assert_eq!(ack.new_bytes, 0);
    let ack = append(&store, &key, 0, 30_000, pattern(&key, 0, 30_000, 6000)).await.unwrap();
    assert_eq!(ack.new_bytes, 1000);
    let mut other = pattern(&key, 0, 5000, 5000).to_vec();
    other[17] ^= 1;
    let refused = append(&store, &key, 0, 5000, other.into()).await.unwrap_err();
    assert!(matches!(refused.kind(), StoreErrorKind::ContentMismatch { .. }), "{refused:?}");
    // Several pieces at once are a repeat too.
    let ack = append(&store, &key, 0, 0, pattern(&key, 0, 0, 15_000)).await.unwrap();
    assert_eq!(ack.new_bytes, 0);
    seal(&store, &key).await;
    assert_holds(&store, &key, 0, 36_000).await;
}

async fn eventually(mut holds: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        pause().await;
    }
    panic!("it did not come about");
}

async fn eventually_named(bucket: &FaultBucket, part: &str, count: usize) {
    for _ in 0..1000 {
        if bucket.names(part).await.len() == count {
            return;
        }
        pause().await;
    }
    panic!("names with {part}: {:?}", bucket.names(part).await);
}

#[expect(clippy::disallowed_methods, reason = "a step of a wait for a condition")]
async fn pause() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

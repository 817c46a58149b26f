//! Counts, sizes and budgets.

use crate::assert_refused;
use crate::scenario::{Attempt, assert_nothing_held, assert_same, attempt, beside, group, held_bytes, patience, piece, spec};
use crate::suite::Stage;
use bytes::Bytes;
use std::time::Duration;
use store_api::{AcknowledgeRequest, Offset, ReleaseScope, StoreErrorKind, SubpartitionIndex};

/// Every subpartition of usual and odd counts holds its own number.
pub async fn subpartition_counts_around_powers_of_two(stage: Stage) {
    let instance = stage.fresh().await;
    for (number, count) in (0..).zip([1_u32, 2, 1023, 1024, 1025, 4096, 65_535, 65_536]) {
        let one = Attempt::opened(&instance.store, attempt(number, 0, 0), spec(stage.kind(), count)).await;
        let own = |index: u32| Bytes::copy_from_slice(&index.to_le_bytes());
        for from in (0..count).step_by(5000) {
            let pieces = (from..count.min(from + 5000)).map(|index| piece(index, Some(0), own(index)));
            one.append(pieces.collect()).await.expect("appends at the tail are taken");
        }
        let manifest = one.seal().await;
        assert_eq!((manifest.table.count(), manifest.table.non_empty().len()), (count, count as usize));
        let step = (count / 200).max(1);
        for index in (0..count).step_by(step as usize).chain([count - 1]) {
            let bytes = one.read(index, 0, None).await.expect("sealed content can be read");
            assert_same(&bytes, &own(index));
        }
        instance.store.release(ReleaseScope::Attempt(one.key.clone())).await.expect("it can be released");
    }
}

/// Partition numbers are 64 bits wide and not dense.
pub async fn partition_numbers_use_all_their_bits(stage: Stage) {
    let instance = stage.fresh().await;
    let numbers = [0, 1, u64::from(u32::MAX), 1 << 32, (1 << 32) + 1, 1 << 63, u64::MAX - 1, u64::MAX];
    let mut all = Vec::new();
    for number in numbers {
        let one = Attempt::opened(&instance.store, attempt(number, u32::MAX, u32::MAX), spec(stage.kind(), 1)).await;
        one.write(0, 0, 300).await;
        one.seal().await;
        all.push(one);
    }
    for one in &all {
        one.assert_holds(0, 300).await;
    }
}

/// Content larger than the memory of the store is written and read back.
pub async fn content_larger_than_memory_is_kept(stage: Stage) {
    let instance = stage.fresh_small().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 3)).await;
    let small = stage.small_budget_bytes();
    let length = (small / 16).clamp(1, one.store.capabilities().max_chunk_bytes);
    let per_subpartition = small / length * length;
    for start in (0..per_subpartition).step_by(usize::try_from(length).expect("a chunk fits in memory")) {
        for index in 0..3 {
            one.write(index, start, length).await;
        }
    }
    one.seal().await;
    for index in 0..3 {
        one.assert_holds(index, per_subpartition).await;
    }
}

/// The most that one reservation can get, as the store says it.
async fn limit_of(one: &Attempt) -> u64 {
    let kind = crate::scenario::refused(one.store.reserve(&one.key, u64::MAX, Duration::from_secs(3600)).await);
    let StoreErrorKind::TooLarge { requested, limit } = kind else { panic!("what can never be granted is too large, not {kind:?}") };
    assert_eq!(requested, u64::MAX);
    limit
}

/// What could never be granted is refused at once, however patient the caller is.
pub async fn a_reservation_over_the_budget_is_refused_at_once(stage: Stage) {
    let instance = stage.fresh_small().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 1)).await;
    let limit = limit_of(&one).await;
    assert!(limit <= stage.small_budget_bytes(), "one request cannot get more than the budget");
    let patient = one.store.reserve(&one.key, limit + 1, Duration::from_secs(3600));
    assert_refused!(crate::scenario::soon("the refusal", patient).await, StoreErrorKind::TooLarge { .. });
    let permit = one.store.reserve(&one.key, limit, patience()).await.expect("all of it can be reserved");
    assert!(permit.bytes() >= limit);
}

/// A reservation waits its patience and then says when to try again; a permit that is dropped gives
/// everything back.
pub async fn an_exhausted_budget_says_when_to_try_again(stage: Stage) {
    let instance = stage.fresh_small().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 1)).await;
    let limit = limit_of(&one).await;
    for _ in 0..3 {
        let all = one.store.reserve(&one.key, limit, patience()).await.expect("all of it can be reserved");
        let waits = one.store.reserve(&one.key, limit, Duration::from_millis(30));
        let kind = crate::scenario::refused(crate::scenario::soon("the refusal", waits).await);
        let StoreErrorKind::Overloaded { retry_after } = kind else { panic!("a full budget is an overload, not {kind:?}") };
        assert!(retry_after > Duration::ZERO && retry_after <= Duration::from_secs(60), "{retry_after:?}");
        drop(all);
    }
    one.write(0, 0, 100.min(limit)).await;
}

/// A waiter gets what another gives back, and one that leaves early leaves nothing behind.
pub async fn waiters_are_served_and_leave_nothing_behind(stage: Stage) {
    let instance = stage.fresh_small().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 1)).await;
    let limit = limit_of(&one).await;
    let clock = stage.clock();
    for _ in 0..stage.rounds(20) {
        let all = one.store.reserve(&one.key, limit, patience()).await.expect("all of it can be reserved");
        for n_polls in 1..4 {
            let left = crate::scenario::cancelled_after(&clock, n_polls, one.store.reserve(&one.key, limit, patience())).await;
            assert!(left.is_none(), "nothing is free");
        }
        let waiter = beside({
            let one = one.clone();
            async move { one.store.reserve(&one.key, limit, patience()).await.map(|permit| permit.bytes()) }
        });
        tokio::task::yield_now().await;
        drop(all);
        let got = waiter.await.expect("the waiter").expect("what was given back is granted");
        assert!(got >= limit);
    }
    let _all = one.store.reserve(&one.key, limit, patience()).await.expect("the whole budget is there at the end");
}

/// Refused appends give their reservation back.
pub async fn refused_appends_give_their_memory_back(stage: Stage) {
    let instance = stage.fresh_small().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 1)).await;
    let limit = limit_of(&one).await;
    let length = (limit / 4).min(one.store.capabilities().max_chunk_bytes);
    one.write(0, 0, 10).await;
    for round in 0..stage.rounds(40) as u64 {
        let answer = match round % 3 {
            0 => one.put(0, Some(11), one.bytes(0, 11, length)).await,
            1 => one.put(0, Some(0), one.bytes(9, 0, length)).await,
            _ => one.put(5, Some(0), one.bytes(5, 0, length)).await,
        };
        let kind = crate::scenario::refused(answer);
        assert!(!matches!(kind, StoreErrorKind::Overloaded { .. }), "round {round}: refused bytes are still charged");
    }
    assert!(held_bytes(&instance.store) < length.max(4096), "refused bytes are not held");
    one.store.abort(&one.key).await.expect("it can be aborted");
    assert_nothing_held(&instance.store).await;
    let two = Attempt::opened(&instance.store, attempt(1, 0, 0), spec(stage.kind(), 1)).await;
    let _all = two.store.reserve(&two.key, limit, patience()).await.expect("the whole budget is there at the end");
}

/// Appends, aborts and releases bring the whole budget back in the end.
pub async fn the_whole_budget_comes_back(stage: Stage) {
    let instance = stage.fresh_small().await;
    let probe = Attempt::opened(&instance.store, attempt(99, 0, 0), spec(stage.kind(), 1)).await;
    let limit = limit_of(&probe).await;
    let length = (limit / 8).min(one_chunk(&probe));
    for round in 0..stage.rounds(24) as u64 {
        let one = Attempt::opened(&instance.store, attempt(round, 0, 0), spec(stage.kind(), 2)).await;
        one.write(0, 0, length).await;
        one.write(1, 0, length / 2).await;
        one.write(0, 0, length).await;
        match round % 4 {
            0 => one.store.abort(&one.key).await.expect("it can be aborted"),
            1 => {
                one.seal().await;
            }
            2 => {
                one.prepare().await.expect("it can be prepared");
            }
            _ => {}
        }
        instance.store.release(ReleaseScope::Partition(one.key.partition.clone())).await.expect("it can be released");
    }
    let _all = probe.store.reserve(&probe.key, limit, patience()).await.expect("the whole budget is there at the end");
}

fn one_chunk(of: &Attempt) -> u64 {
    of.store.capabilities().max_chunk_bytes
}

/// Reservations for attempts that have ended are refused.
pub async fn no_memory_for_attempts_that_have_ended(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 1)).await;
    let reserve = |of: Attempt| async move { of.store.reserve(&of.key, 10, Duration::ZERO).await };
    one.seal().await;
    assert_refused!(reserve(one.clone()).await, StoreErrorKind::AlreadySealed);
    instance.store.release(ReleaseScope::Attempt(one.key.clone())).await.expect("it can be released");
    assert_refused!(reserve(one).await, StoreErrorKind::Released | StoreErrorKind::NotFound);
    let two = Attempt::opened(&instance.store, attempt(1, 0, 0), spec(stage.kind(), 1)).await;
    two.store.abort(&two.key).await.expect("it can be aborted");
    assert_refused!(reserve(two).await, StoreErrorKind::Aborted);
    assert_refused!(reserve(Attempt::new(&instance.store, attempt(2, 0, 0), spec(stage.kind(), 1))).await, StoreErrorKind::NotFound);
}

/// A full buffer pushes back until something was acknowledged; then the same append is taken.
pub async fn acknowledging_makes_room(stage: Stage) {
    let instance = stage.fresh_small().await;
    let kind = store_api::DatasetKind::Pipelined(store_api::Retention::UntilAcknowledged);
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(kind, 1)).await;
    let limit = limit_of(&one).await;
    let length = (limit / 8).min(one_chunk(&one));
    let mut tail = 0;
    for _ in 0..3 {
        while let Ok(permit) = one.store.reserve(&one.key, length, Duration::from_millis(20)).await {
            drop(permit);
            one.write(0, tail, length).await;
            tail += length;
            assert!(tail < 64 * limit.max(1), "a full buffer must push back");
        }
        let writer = beside({
            let one = one.clone();
            async move { one.put(0, Some(tail), one.bytes(0, tail, length)).await.map(|ack| ack.end.get()) }
        });
        tokio::task::yield_now().await;
        let offsets = vec![(SubpartitionIndex::new(0), Offset::new(tail))];
        let request = AcknowledgeRequest { attempt: one.key.clone(), group: group("g"), offsets };
        let report = one.store.acknowledge(request).await.expect("what was read can be acknowledged");
        assert!(report.freed_bytes > 0);
        let end = crate::scenario::soon("the append", writer).await.expect("the writer");
        assert_eq!(end.expect("room was made"), tail + length);
        tail += length;
    }
}

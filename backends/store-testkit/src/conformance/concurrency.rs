//! Races between writers, readers, seals, releases, and callers that leave.

use crate::history::{History, Record};
use crate::scenario::{
    Attempt, assert_nothing_held, attempt, beside, cancelled_after, collect, dataset, is_gone, mix, patience, refused, soon, spec,
};
use crate::suite::{Stage, seed};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use store_api::{AttemptId, AttemptState, PartitionId, ReleaseScope, SealOutcome, StoreErrorKind};

/// More records than a writer appends before the race it is in ends.
const ENDLESS: u64 = 1 << 20;

/// Appends records at the tail until the attempt takes no more; returns the kind of the refusal.
async fn write_records(one: Attempt, history: Arc<History>, subpartition: u32, writer: u32, most: u64) -> Option<StoreErrorKind> {
    let tag = Record::tag_of(&one.key);
    for number in 0..most {
        let record = Record { tag, subpartition, writer, number };
        match one.put(subpartition, None, record.encode()).await {
            Ok(_) => history.acked(&one.key, record),
            Err(error) => return Some(error.kind().clone()),
        }
        tokio::task::yield_now().await;
    }
    None
}

async fn record_content(one: &Attempt, history: &History, n_subpartitions: u32) {
    for index in 0..n_subpartitions {
        let bytes = one.read(index, 0, None).await.expect("sealed content can be read");
        history.content(&one.key, index, bytes);
    }
}

/// Every append that was acknowledged before a seal is inside, once; each other one is told that
/// the attempt is sealed; the seal ends soon.
pub async fn a_seal_keeps_every_acknowledged_append(stage: Stage) {
    let random = seed("a_seal_keeps_every_acknowledged_append");
    let instance = stage.fresh().await;
    let clock = stage.clock();
    for round in 0..stage.rounds(50) as u64 {
        let one = Attempt::opened(&instance.store, attempt(round, 0, 0), spec(stage.kind(), 4)).await;
        let history = Arc::new(History::new());
        let writers: Vec<_> =
            (0..8).map(|writer| beside(write_records(one.clone(), history.clone(), writer % 4, writer, ENDLESS))).collect();
        clock.sleep(Duration::from_micros(mix(random ^ round) % 3000)).await;
        let first = soon("the preparation", one.prepare()).await.expect("it can be prepared while it is written");
        for writer in writers {
            let kind = soon("a writer", writer).await.expect("the writer");
            assert!(matches!(kind, Some(StoreErrorKind::AlreadySealed)), "round {round}: {kind:?}");
        }
        assert_eq!(one.prepare().await.expect("a repeat is a success"), first);
        one.publish().await.expect("it can be published");
        record_content(&one, &history, 4).await;
        assert_eq!(history.check(true), Ok(()), "round {round}");
        instance.store.release(ReleaseScope::Attempt(one.key.clone())).await.expect("it can be released");
    }
}

/// Writers that append at the tail of one subpartition side by side lose and double nothing.
pub async fn writers_of_one_subpartition_are_serialised(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 1)).await;
    let history = Arc::new(History::new());
    let most = stage.rounds(100) as u64;
    let writers: Vec<_> = (0..8).map(|writer| beside(write_records(one.clone(), history.clone(), 0, writer, most))).collect();
    for writer in writers {
        assert_eq!(writer.await.expect("the writer"), None);
    }
    assert_eq!(one.tail(0).await, 8 * most * crate::history::RECORD_LENGTH as u64);
    one.seal().await;
    record_content(&one, &history, 1).await;
    assert_eq!(history.check(true), Ok(()));
}

/// The same chunk sent several times at once is taken once; of different chunks for one offset one
/// is taken.
pub async fn parallel_repeats_are_taken_once(stage: Stage) {
    let instance = stage.fresh().await;
    let same = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 1)).await;
    let differ = Attempt::opened(&instance.store, attempt(1, 0, 0), spec(stage.kind(), 1)).await;
    for round in 0..stage.rounds(50) as u64 {
        let at = round * 1000;
        let repeats: Vec<_> = (0..4).map(|_| beside(same.clone().write(0, at, 1000))).collect();
        let mut new_bytes = 0;
        for repeat in repeats {
            new_bytes += repeat.await.expect("a repeat").new_bytes;
        }
        assert_eq!((same.tail(0).await, new_bytes), (at + 1000, 1000));
        let put = |number: u8| {
            let differ = differ.clone();
            beside(async move { differ.put(0, Some(at), Bytes::from(vec![number; 1000])).await })
        };
        let rivals: Vec<_> = (0..4).map(put).collect();
        let mut n_taken = 0;
        for rival in rivals {
            match rival.await.expect("a rival") {
                Ok(_) => n_taken += 1,
                Err(error) => assert!(matches!(error.kind(), StoreErrorKind::ContentMismatch { .. }), "{error:?}"),
            }
        }
        assert_eq!((differ.tail(0).await, n_taken), (at + 1000, 1));
    }
    same.seal().await;
    same.assert_holds(0, stage.rounds(50) as u64 * 1000).await;
}

/// An attempt that many open at once is opened once.
pub async fn parallel_opens_open_once(stage: Stage) {
    let instance = stage.fresh().await;
    for round in 0..stage.rounds(20) as u64 {
        let one = Attempt::new(&instance.store, attempt(round, 0, 0), spec(stage.kind(), 2));
        let open = |number: u64| {
            let one = one.clone();
            beside(async move {
                one.open().await.expect("it can be opened");
                if number == 0 {
                    one.write(0, 0, 100).await;
                }
            })
        };
        for opened in (0..8).map(open).collect::<Vec<_>>() {
            opened.await.expect("an opener");
        }
        assert_eq!(one.tail(0).await, 100, "a late open does not empty the attempt");
    }
}

/// Seals of one attempt that race all answer the same manifest.
pub async fn racing_seals_of_one_attempt_agree(stage: Stage) {
    let instance = stage.fresh().await;
    for round in 0..stage.rounds(20) as u64 {
        let one = Attempt::opened(&instance.store, attempt(round, 0, 0), spec(stage.kind(), 2)).await;
        one.write(0, 0, 5000).await;
        let seal = |_| {
            let one = one.clone();
            beside(async move { one.seal().await })
        };
        let mut manifests = Vec::new();
        for sealed in (0..6).map(seal).collect::<Vec<_>>() {
            manifests.push(soon("a seal", sealed).await.expect("a seal"));
        }
        assert!(manifests.iter().all(|manifest| *manifest == manifests[0]));
        one.assert_holds(0, 5000).await;
    }
}

/// Where the medium arbitrates, exactly one of two racing attempts wins, both are told the same,
/// and the loser's bytes are given back.
pub async fn one_of_two_racing_attempts_wins(stage: Stage) {
    let instance = stage.fresh().await;
    for round in 0..stage.rounds(50) as u64 {
        let history = History::new();
        let mut racers = Vec::new();
        for number in 0..2 {
            let one = Attempt::opened(&instance.store, attempt(round, 0, number), spec(stage.kind(), 1)).await;
            one.write(0, 0, 1000 + u64::from(number)).await;
            racers.push(one);
        }
        let seal = |one: &Attempt| {
            let one = one.clone();
            beside(async move { one.try_seal().await.expect("a seal that races is answered") })
        };
        let seals: Vec<_> = racers.iter().map(seal).collect();
        let mut told = Vec::new();
        for (sealed, one) in seals.into_iter().zip(&racers) {
            let (SealOutcome::Won(manifest) | SealOutcome::Lost(manifest)) = &match soon("a seal", sealed).await.expect("a seal") {
                SealOutcome::Won(manifest) => {
                    history.won(&one.key);
                    SealOutcome::Won(manifest)
                }
                lost => lost,
            };
            told.push(manifest.clone());
        }
        assert_eq!(history.check(true), Ok(()), "round {round}");
        assert_eq!(told[0], told[1], "both are told the same winner");
        for (number, one) in (0..).zip(&racers) {
            if told[0].attempt == one.key {
                one.assert_holds(0, 1000 + number).await;
            } else {
                assert!(matches!(refused(one.read(0, 0, None).await), StoreErrorKind::Aborted | StoreErrorKind::NotFound));
            }
        }
        instance.store.release(ReleaseScope::Partition(racers[0].key.partition.clone())).await.expect("it can be released");
    }
    assert_nothing_held(&instance.store).await;
}

/// Releases that race with writers, seals and readers leave nothing charged and nothing readable.
pub async fn a_release_that_races_leaves_nothing(stage: Stage) {
    let random = seed("a_release_that_races_leaves_nothing");
    let instance = stage.fresh().await;
    let clock = stage.clock();
    for round in 0..stage.rounds(40) as u64 {
        let history = Arc::new(History::new());
        let of_round = dataset("job", 1, &format!("d{round}"));
        let key = |number| of_round.partition(PartitionId::new(number)).attempt(AttemptId::new(0, 0));
        let one = Attempt::opened(&instance.store, key(0), spec(stage.kind(), 2)).await;
        let sealed = Attempt::opened(&instance.store, key(1), spec(stage.kind(), 2)).await;
        write_records(sealed.clone(), history.clone(), 0, 9, 50).await;
        sealed.seal().await;
        record_content(&sealed, &history, 1).await;
        let writers: Vec<_> = (0..2).map(|writer| beside(write_records(one.clone(), history.clone(), writer, writer, ENDLESS))).collect();
        let sealing = beside(seal_in_a_race(one.clone(), mix(random ^ round) % 2000));
        let readers: Vec<_> = (0..2).map(|_| beside(read_until_gone(sealed.clone(), history.clone()))).collect();
        clock.sleep(Duration::from_micros(mix(random.rotate_left(9) ^ round) % 3000)).await;
        let scope = ReleaseScope::Dataset(of_round.clone());
        soon("the release", instance.store.release(scope)).await.expect("it can be released");
        history.released(&one.key);
        history.released(&sealed.key);
        for writer in writers {
            let kind = soon("a writer", writer).await.expect("the writer").expect("a writer is refused in the end");
            assert!(is_gone(&kind) || kind == StoreErrorKind::AlreadySealed, "round {round}: {kind:?}");
        }
        soon("the seal", sealing).await.expect("the seal");
        for reader in readers {
            soon("a reader", reader).await.expect("the reader");
        }
        assert!(is_gone(&refused(one.read(0, 0, None).await)), "round {round}: it came back");
        assert_eq!(refused(one.open().await), StoreErrorKind::Released);
        assert_eq!(history.check(true), Ok(()), "round {round}");
    }
    assert_nothing_held(&instance.store).await;
}

async fn seal_in_a_race(one: Attempt, after_us: u64) {
    store_api::SystemClock::shared().sleep(Duration::from_micros(after_us)).await;
    match one.try_seal().await {
        Ok(_) => {}
        Err(error) => assert!(is_gone(error.kind()), "{error:?}"),
    }
}

async fn read_until_gone(one: Attempt, history: Arc<History>) {
    loop {
        let began = history.now();
        let (bytes, is_whole) = match one.reading(0, 0, None).await {
            Err(error) => {
                assert!(is_gone(error.kind()), "{error:?}");
                return;
            }
            Ok(stream) => match collect(stream).await {
                Ok(bytes) => (bytes, true),
                Err((bytes, error)) => {
                    assert!(is_gone(error.kind()), "{error:?}");
                    (bytes, false)
                }
            },
        };
        history.read(&one.key, 0, began, bytes, is_whole);
        tokio::task::yield_now().await;
    }
}

/// Callers that leave in the middle of any call leave nothing charged and nothing stuck: repeating
/// the call works.
pub async fn callers_that_leave_can_come_back(stage: Stage) {
    let random = seed("callers_that_leave_can_come_back");
    let instance = stage.fresh().await;
    let clock = stage.clock();
    for round in 0..stage.rounds(60) as u64 {
        let polls = |step: u64| usize::try_from(mix(random ^ (round << 8) ^ step) % 6).expect("small");
        let one = Attempt::new(&instance.store, attempt(round, 0, 0), spec(stage.kind(), 2));
        cancelled_after(&clock, polls(0), one.open()).await;
        one.open().await.expect("opening can be repeated");
        for start in (0..30_000).step_by(10_000) {
            let again = one.bytes(0, start, 10_000);
            cancelled_after(&clock, polls(start + 1), one.put(0, Some(start), again)).await;
            soon("the append", one.write(0, start, 10_000)).await;
        }
        cancelled_after(&clock, polls(2), one.prepare()).await;
        if round % 5 == 4 && stage.reach().prepares {
            cancelled_after(&clock, polls(4), one.store.abort(&one.key)).await;
            soon("the abort", one.store.abort(&one.key)).await.expect("aborting can be repeated");
            continue;
        }
        soon("the preparation", one.prepare()).await.expect("preparing can be repeated");
        cancelled_after(&clock, polls(3), one.publish()).await;
        soon("the seal", one.seal()).await;
        cancelled_after(&clock, polls(5), one.read(0, 0, None)).await;
        one.assert_holds(0, 30_000).await;
        let scope = ReleaseScope::Partition(one.key.partition.clone());
        cancelled_after(&clock, polls(6), one.store.release(scope.clone())).await;
        soon("the release", one.store.release(scope)).await.expect("releasing can be repeated");
    }
    assert_nothing_held(&instance.store).await;
}

/// Callers that leave give all reserved memory back.
pub async fn callers_that_leave_give_their_memory_back(stage: Stage) {
    let random = seed("callers_that_leave_give_their_memory_back");
    let instance = stage.fresh_small().await;
    let clock = stage.clock();
    let probe = Attempt::opened(&instance.store, attempt(1 << 40, 0, 0), spec(stage.kind(), 1)).await;
    let StoreErrorKind::TooLarge { limit, .. } = refused(probe.store.reserve(&probe.key, u64::MAX, patience()).await) else {
        panic!("what can never be granted is too large")
    };
    let length = (limit / 4).min(probe.store.capabilities().max_chunk_bytes);
    for round in 0..stage.rounds(40) as u64 {
        let polls = |step: u64| usize::try_from(mix(random ^ (round << 8) ^ step) % 6).expect("small");
        let one = Attempt::opened(&instance.store, attempt(round, 0, 0), spec(stage.kind(), 1)).await;
        cancelled_after(&clock, polls(0), one.put(0, Some(0), one.bytes(0, 0, length))).await;
        cancelled_after(&clock, polls(1), one.put(0, Some(0), one.bytes(0, 0, length))).await;
        cancelled_after(&clock, polls(2), one.prepare()).await;
        soon("the abort", one.store.abort(&one.key)).await.expect("an unsealed attempt can be aborted");
    }
    let _all = probe.store.reserve(&probe.key, limit, patience()).await.expect("the whole budget is there at the end");
    probe.store.abort(&probe.key).await.expect("it can be aborted");
    assert_nothing_held(&instance.store).await;
}

/// An abort that races with appends refuses them from then on and keeps nothing.
pub async fn an_abort_that_races_leaves_nothing(stage: Stage) {
    let instance = stage.fresh().await;
    let clock = stage.clock();
    for round in 0..stage.rounds(30) as u64 {
        let one = Attempt::opened(&instance.store, attempt(round, 0, 0), spec(stage.kind(), 2)).await;
        let history = Arc::new(History::new());
        let writers: Vec<_> =
            (0..3).map(|writer| beside(write_records(one.clone(), history.clone(), writer % 2, writer, ENDLESS))).collect();
        clock.sleep(Duration::from_micros(round * 97 % 2000)).await;
        soon("the abort", one.store.abort(&one.key)).await.expect("an open attempt can be aborted");
        for writer in writers {
            let kind = soon("a writer", writer).await.expect("the writer");
            assert!(matches!(kind, Some(StoreErrorKind::Aborted)), "round {round}: {kind:?}");
        }
    }
    assert_nothing_held(&instance.store).await;
}

/// Attempts of many partitions are written, sealed and read side by side without disturbing each
/// other.
pub async fn many_partitions_side_by_side(stage: Stage) {
    let instance = stage.fresh().await;
    let work = |number: u64| {
        let (store, spec) = (instance.store.clone(), spec(stage.kind(), 3));
        beside(async move {
            let one = Attempt::opened(&store, attempt(number, 0, 0), spec).await;
            for start in (0..5000).step_by(500) {
                one.write(u32::try_from(number % 3).expect("small"), start, 500).await;
            }
            one.seal().await;
            one.assert_holds(u32::try_from(number % 3).expect("small"), 5000).await;
        })
    };
    let works: Vec<_> = (0..stage.rounds(60) as u64).map(work).collect();
    for done in works {
        done.await.expect("a partition");
    }
    let probe = Attempt::new(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 3));
    assert_eq!(probe.store.stat(&probe.key).await.expect("it is known").state, AttemptState::Sealed);
}

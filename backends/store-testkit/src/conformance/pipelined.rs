//! Reading while it is written; floors, acknowledgements, checkpoints.

use crate::assert_refused;
use crate::scenario::{
    Attempt, assert_nothing_held, assert_same, attempt, beside, collect, group, is_gone, mix, partition, patience, soon, spec,
};
use crate::suite::{Stage, seed};
use bytes::Bytes;
use futures::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use store_api::{
    AcknowledgeRequest, AttemptId, CheckpointRequest, DatasetKind, DatasetSpec, FloorReport, Offset, OpenRequest, ReadMode, ReleaseScope,
    Retention, StoreError, StoreErrorKind, SubpartitionIndex,
};

/// Longer than any case; a read that waits this long has missed its wake-up.
const LONG_WAIT: Duration = Duration::from_secs(3600);

const UNTIL_ACKNOWLEDGED: DatasetKind = DatasetKind::Pipelined(Retention::UntilAcknowledged);
const BEST_EFFORT: DatasetKind = DatasetKind::Pipelined(Retention::BestEffort);
const SINCE_CHECKPOINT: DatasetKind = DatasetKind::Pipelined(Retention::SinceCheckpoint);

async fn acknowledge(one: &Attempt, name: &str, offsets: &[(u32, u64)]) -> Result<FloorReport, StoreError> {
    let offsets = offsets.iter().map(|(index, offset)| (SubpartitionIndex::new(*index), Offset::new(*offset))).collect();
    one.store.acknowledge(AcknowledgeRequest { attempt: one.key.clone(), group: group(name), offsets }).await
}

async fn checkpoint(one: &Attempt, number: u64, need: &[(&str, u32, u64)]) -> Result<FloorReport, StoreError> {
    let need = need.iter().map(|(name, index, offset)| (group(name), SubpartitionIndex::new(*index), Offset::new(*offset)));
    one.store.complete_checkpoint(CheckpointRequest { attempt: one.key.clone(), checkpoint: number, need: need.collect() }).await
}

/// Everything that a tailing read gives from `start` on.
async fn tail_of(one: &Attempt, index: u32, start: u64, wait: Duration) -> Result<Bytes, StoreError> {
    collect(one.tailing(index, start, wait).await?).await.map_err(|(_, error)| error)
}

async fn floor_of(one: &Attempt, index: u32) -> u64 {
    let stat = one.store.stat(&one.key).await.expect("it is known");
    stat.floors.iter().find(|(at, _)| at.get() == index).map_or(0, |(_, floor)| floor.get())
}

/// What was written is read before the seal, and the read goes on as bytes come.
pub async fn an_open_attempt_is_read_while_it_is_written(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 2)).await;
    one.write(0, 0, 1000).await;
    let mut stream = one.tailing(0, 100, LONG_WAIT).await.expect("an open attempt can be tailed");
    assert_eq!((stream.start.get(), stream.end), (100, None));
    let mut at = 100;
    for end in [1000, 1001, 5000, 90_000] {
        if end > 1000 {
            one.write(0, at, end - at).await;
        }
        while at < end {
            let bytes = soon("the next bytes", stream.chunks.next()).await.expect("it goes on").expect("the bytes are whole");
            assert_same(&bytes, &one.bytes(0, at, bytes.len() as u64));
            at += bytes.len() as u64;
        }
    }
    one.seal().await;
    assert!(soon("the end", stream.chunks.next()).await.is_none(), "a tailing read ends at the sealed end");
    one.assert_holds(0, 90_000).await;
}

/// A reader that waits is woken by each append and by the seal, in every round.
pub async fn a_waiting_reader_is_woken(stage: Stage) {
    let random = seed("a_waiting_reader_is_woken");
    let instance = stage.fresh().await;
    let clock = stage.clock();
    for round in 0..stage.rounds(200) as u64 {
        let one = Attempt::opened(&instance.store, attempt(round, 0, 0), spec(stage.kind(), 1)).await;
        let n_readers = round % 4 + 1;
        let read = |_| {
            let one = one.clone();
            beside(async move { tail_of(&one, 0, 0, LONG_WAIT).await.expect("nothing disturbs it") })
        };
        let readers: Vec<_> = (0..n_readers).map(read).collect();
        let n_chunks = [1, 2, 5][usize::try_from(round % 3).expect("small")];
        for number in 0..n_chunks {
            if mix(random ^ round ^ number).is_multiple_of(2) {
                clock.sleep(Duration::from_micros(mix(random ^ (round << 8) ^ number) % 1500)).await;
            }
            one.write(0, number * 10, 10).await;
        }
        one.seal().await;
        for reader in readers {
            let bytes = soon("a waiting reader", reader).await.expect("a reader");
            assert_same(&bytes, &one.bytes(0, 0, n_chunks * 10));
        }
        instance.store.release(ReleaseScope::Attempt(one.key.clone())).await.expect("it can be released");
    }
}

/// A tailing read ends cleanly when nothing came during its wait, near its expiry too, and the next
/// one goes on where it ended.
pub async fn a_tailing_read_ends_after_its_wait(stage: Stage) {
    let random = seed("a_tailing_read_ends_after_its_wait");
    let instance = stage.fresh().await;
    let clock = stage.clock();
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 1)).await;
    let wait = Duration::from_millis(5);
    assert_eq!(soon("an idle read", tail_of(&one, 0, 0, wait)).await.expect("it ends cleanly").len(), 0);
    assert_eq!(soon("an idle read", tail_of(&one, 0, 0, Duration::ZERO)).await.expect("it ends cleanly").len(), 0);
    let (mut written, mut read) = (0, 0);
    for round in 0..stage.rounds(60) as u64 {
        let reader = beside({
            let one = one.clone();
            async move { tail_of(&one, 0, read, wait).await.expect("it ends cleanly") }
        });
        clock.sleep(Duration::from_micros(3000 + mix(random ^ round) % 4000)).await;
        one.write(0, written, 7).await;
        written += 7;
        let bytes = soon("a read", reader).await.expect("a reader");
        assert_same(&bytes, &one.bytes(0, read, bytes.len() as u64));
        read += bytes.len() as u64;
    }
    let rest = soon("the rest", tail_of(&one, 0, read, wait)).await.expect("it ends cleanly");
    assert_same(&rest, &one.bytes(0, read, written - read));
}

/// A tailing read keeps its bounds: it may stop at an end, start at the tail, not after it.
pub async fn a_tailing_read_keeps_its_bounds(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 2)).await;
    one.write(0, 0, 100).await;
    let to = |start, end| one.store.read(one.request(0, start, Some(end), ReadMode::Tail { wait: LONG_WAIT }));
    let stream = to(10, 60).await.expect("a range inside can be tailed");
    assert_same(&soon("a bounded read", collect(stream)).await.expect("it ends at its end"), &one.bytes(0, 10, 50));
    let stream = to(100, 150).await.expect("a read may start at the tail");
    let reader = beside(async move { collect(stream).await.expect("it ends at its end") });
    one.write(0, 100, 80).await;
    assert_same(&soon("a bounded read", reader).await.expect("a reader"), &one.bytes(0, 100, 50));
    assert_refused!(one.tailing(0, 181, LONG_WAIT).await, StoreErrorKind::BeyondEnd { end } if end.get() == 180);
    assert_refused!(one.tailing(0, u64::MAX, LONG_WAIT).await, StoreErrorKind::BeyondEnd { .. });
    assert_refused!(one.tailing(2, 0, LONG_WAIT).await, StoreErrorKind::NoSuchSubpartition { .. });
    one.seal().await;
    let whole = soon("a sealed tail", tail_of(&one, 0, 0, LONG_WAIT)).await.expect("it ends");
    assert_same(&whole, &one.bytes(0, 0, 180));
    assert_eq!(soon("a read at the end", tail_of(&one, 0, 180, LONG_WAIT)).await.expect("it ends").len(), 0);
    assert_eq!(soon("an empty one", tail_of(&one, 1, 0, LONG_WAIT)).await.expect("it ends").len(), 0);
}

/// Readers that wait are told at once when their attempt is aborted, fenced or released.
pub async fn waiting_readers_are_told_the_end_of_their_attempt(stage: Stage) {
    let instance = stage.fresh().await;
    for round in 0..stage.rounds(30) as u64 {
        let one = Attempt::opened(&instance.store, attempt(round, 0, 0), spec(stage.kind(), 1)).await;
        one.write(0, 0, 10).await;
        let mut stream = one.tailing(0, 0, LONG_WAIT).await.expect("an open attempt can be tailed");
        let first = soon("the first bytes", stream.chunks.next()).await.expect("there are bytes").expect("the bytes are whole");
        assert_same(&first, &one.bytes(0, 0, 10));
        let reader = beside(collect(stream));
        if round % 2 == 0 {
            tokio::task::yield_now().await;
        }
        match round % 3 {
            0 => one.store.abort(&one.key).await.expect("it can be aborted"),
            1 => {
                let scope = ReleaseScope::GenerationsBelow { partition: partition(round), by: AttemptId::new(1, 0) };
                instance.store.release(scope).await.expect("it can be fenced");
            }
            _ => {
                instance.store.release(ReleaseScope::Attempt(one.key.clone())).await.expect("it can be released");
            }
        }
        let Err((rest, error)) = soon("the end", reader).await.expect("a reader") else {
            panic!("round {round}: a cut attempt must not look like a finished one")
        };
        assert!(rest.is_empty());
        match round % 3 {
            0 => assert!(matches!(error.kind(), StoreErrorKind::Aborted), "{error:?}"),
            1 => assert!(matches!(error.kind(), StoreErrorKind::Fenced { .. }), "{error:?}"),
            _ => assert!(is_gone(error.kind()), "{error:?}"),
        }
    }
    assert_nothing_held(&instance.store).await;
}

/// A newer generation fences a pipelined attempt; the newer one works.
pub async fn a_pipelined_attempt_is_fenced(stage: Stage) {
    let instance = stage.fresh().await;
    let old = Attempt::opened(&instance.store, attempt(0, 0, 3), spec(stage.kind(), 1)).await;
    old.write(0, 0, 100).await;
    let new = Attempt::opened(&instance.store, attempt(0, 1, 0), spec(stage.kind(), 1)).await;
    let scope = ReleaseScope::GenerationsBelow { partition: partition(0), by: new.key.attempt };
    instance.store.release(scope).await.expect("it can be fenced");
    assert_refused!(old.put(0, None, Bytes::from_static(b"late")).await, StoreErrorKind::Fenced { by } if by == new.key.attempt);
    assert_refused!(old.open().await, StoreErrorKind::Fenced { .. });
    assert_refused!(old.tailing(0, 0, LONG_WAIT).await, StoreErrorKind::Fenced { .. });
    assert_refused!(old.prepare().await, StoreErrorKind::Fenced { .. });
    new.write(0, 0, 50).await;
    new.seal().await;
    new.assert_holds(0, 50).await;
}

/// Readers that leave while they wait leave nothing behind; those that stay are served.
pub async fn readers_that_leave_disturb_no_other(stage: Stage) {
    let instance = stage.fresh().await;
    let clock = stage.clock();
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 1)).await;
    let stays = beside({
        let one = one.clone();
        async move { tail_of(&one, 0, 0, LONG_WAIT).await.expect("nothing disturbs it") }
    });
    let n_rounds = stage.rounds(50);
    for round in 0..n_rounds {
        for n_polls in [1, 2, 4] {
            let left = crate::scenario::cancelled_after(&clock, n_polls, tail_of(&one, 0, round as u64, LONG_WAIT)).await;
            assert!(left.is_none(), "an open attempt has no end");
        }
        one.write(0, round as u64, 1).await;
    }
    one.seal().await;
    let bytes = soon("the reader that stays", stays).await.expect("a reader");
    assert_same(&bytes, &one.bytes(0, 0, n_rounds as u64));
    instance.store.release(ReleaseScope::Attempt(one.key.clone())).await.expect("it can be released");
    assert_nothing_held(&instance.store).await;
}

/// `stat` tells how far readers were served.
pub async fn stat_tells_what_was_sent(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 3)).await;
    one.write(0, 0, 100).await;
    one.write(2, 0, 100).await;
    let sent = || async { one.store.stat(&one.key).await.expect("it is known").sent };
    assert_eq!(sent().await, []);
    tail_of(&one, 2, 0, Duration::ZERO).await.expect("it ends cleanly");
    assert_eq!(sent().await, [(SubpartitionIndex::new(2), Offset::new(100))]);
    one.write(2, 100, 20).await;
    tail_of(&one, 2, 110, Duration::ZERO).await.expect("it ends cleanly");
    assert_eq!(sent().await, [(SubpartitionIndex::new(2), Offset::new(120))], "the mark never goes back");
}

/// The floor is the lowest acknowledged offset over all groups; what lies below is gone, and said
/// to be.
pub async fn the_floor_is_the_minimum_over_groups(stage: Stage) {
    let instance = stage.fresh().await;
    let two_groups = DatasetSpec { groups: vec![group("g"), group("h")], ..spec(UNTIL_ACKNOWLEDGED, 2) };
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), two_groups).await;
    for start in [0, 100, 200] {
        one.write(0, start, 100).await;
        one.write(1, start, 100).await;
    }
    let report = acknowledge(&one, "g", &[(0, 200)]).await.expect("it can be acknowledged");
    assert_eq!((report.freed_bytes, floor_of(&one, 0).await), (0, 0), "the other group has read nothing");
    assert_same(&tail_of(&one, 0, 0, Duration::ZERO).await.expect("all is held"), &one.bytes(0, 0, 300));
    let report = acknowledge(&one, "h", &[(0, 100), (1, 300)]).await.expect("it can be acknowledged");
    assert_eq!(report.freed_bytes, 100);
    assert_eq!(report.floors, [(SubpartitionIndex::new(0), Offset::new(100)), (SubpartitionIndex::new(1), Offset::ZERO)]);
    assert_eq!((floor_of(&one, 0).await, floor_of(&one, 1).await), (100, 0));
    for start in [0, 1, 99] {
        assert_refused!(one.tailing(0, start, LONG_WAIT).await, StoreErrorKind::BelowFloor { floor } if floor.get() == 100);
    }
    assert_same(&tail_of(&one, 0, 100, Duration::ZERO).await.expect("it is held"), &one.bytes(0, 100, 200));
    let earlier = acknowledge(&one, "h", &[(0, 50)]).await.expect("an earlier offset changes nothing");
    assert_eq!((earlier.freed_bytes, floor_of(&one, 0).await), (0, 100));
    assert_refused!(one.put(0, Some(50), one.bytes(0, 50, 10)).await, StoreErrorKind::BelowFloor { floor } if floor.get() == 100);
    assert_refused!(one.put(0, Some(50), Bytes::new()).await, StoreErrorKind::BelowFloor { floor } if floor.get() == 100);
    one.write(0, 250, 100).await;
    one.seal().await;
    assert_same(&one.read(0, 100, None).await.expect("it is held"), &one.bytes(0, 100, 250));
    assert_refused!(one.read(0, 99, None).await, StoreErrorKind::BelowFloor { .. });
    acknowledge(&one, "h", &[(0, 350)]).await.expect("a sealed attempt can be acknowledged");
    acknowledge(&one, "g", &[(0, 350)]).await.expect("a sealed attempt can be acknowledged");
    assert_eq!(one.read(0, 350, None).await.expect("a read at the end is served").len(), 0);
}

/// A floor may lie inside a chunk: what is needed is still there.
pub async fn a_floor_inside_a_chunk_keeps_what_is_needed(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(UNTIL_ACKNOWLEDGED, 1)).await;
    one.write(0, 0, 1000).await;
    one.write(0, 1000, 1000).await;
    for at in [1, 999, 1001, 1999] {
        acknowledge(&one, "g", &[(0, at)]).await.expect("it can be acknowledged");
        let floor = floor_of(&one, 0).await;
        assert!(floor <= at, "the floor {floor} has passed {at}");
        let rest = tail_of(&one, 0, at, Duration::ZERO).await.expect("what is not acknowledged is held");
        assert_same(&rest, &one.bytes(0, at, 2000 - at));
        if floor > 0 {
            assert_refused!(one.tailing(0, floor - 1, LONG_WAIT).await, StoreErrorKind::BelowFloor { .. });
        }
    }
}

/// Acknowledgements that cannot be are refused, and nothing of them is taken.
pub async fn a_wrong_acknowledgement_takes_nothing(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(UNTIL_ACKNOWLEDGED, 3)).await;
    for index in 0..3 {
        one.write(index, 0, 100).await;
    }
    let beyond = acknowledge(&one, "g", &[(0, 50), (1, 101), (2, 50)]).await;
    assert_refused!(beyond, StoreErrorKind::BeyondEnd { end } if end.get() == 100);
    assert_refused!(acknowledge(&one, "g", &[(0, u64::MAX)]).await, StoreErrorKind::BeyondEnd { .. });
    assert_refused!(acknowledge(&one, "g", &[(3, 0)]).await, StoreErrorKind::NoSuchSubpartition { .. });
    assert_refused!(acknowledge(&one, "nobody", &[(0, 10)]).await, StoreErrorKind::NotFound);
    for index in 0..3 {
        assert_eq!(floor_of(&one, index).await, 0);
        assert_same(&tail_of(&one, index, 0, Duration::ZERO).await.expect("all is held"), &one.bytes(index, 0, 100));
    }
    one.store.abort(&one.key).await.expect("it can be aborted");
    assert_refused!(acknowledge(&one, "g", &[(0, 10)]).await, StoreErrorKind::Aborted);
    let unknown = Attempt::new(&instance.store, attempt(7, 0, 0), spec(UNTIL_ACKNOWLEDGED, 3));
    assert_refused!(acknowledge(&unknown, "g", &[(0, 0)]).await, StoreErrorKind::NotFound);
}

/// A broadcast is let go when every consumer has acknowledged it.
pub async fn a_broadcast_waits_for_every_consumer(stage: Stage) {
    let instance = stage.fresh().await;
    let broadcast = DatasetSpec { is_broadcast: true, ..spec(UNTIL_ACKNOWLEDGED, 3) };
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), broadcast).await;
    one.write(0, 0, 100).await;
    acknowledge(&one, "g", &[(0, 100), (1, 60)]).await.expect("it can be acknowledged");
    assert_same(&tail_of(&one, 0, 0, Duration::ZERO).await.expect("one has not read"), &one.bytes(0, 0, 100));
    acknowledge(&one, "g", &[(2, 100)]).await.expect("it can be acknowledged");
    assert!(floor_of(&one, 0).await <= 60);
    assert_same(&tail_of(&one, 0, 60, Duration::ZERO).await.expect("it is held"), &one.bytes(0, 60, 40));
    let report = acknowledge(&one, "g", &[(1, 100)]).await.expect("it can be acknowledged");
    assert!(report.freed_bytes > 0);
    assert_refused!(one.tailing(0, 0, LONG_WAIT).await, StoreErrorKind::BelowFloor { .. });
}

/// Whatever is acknowledged while readers read, a reader sees the right bytes or is told the floor.
pub async fn a_reader_that_is_overtaken_is_told(stage: Stage) {
    let instance = stage.fresh().await;
    for round in 0..stage.rounds(20) as u64 {
        let one = Attempt::opened(&instance.store, attempt(round, 0, 0), spec(UNTIL_ACKNOWLEDGED, 1)).await;
        for start in (0..200_000).step_by(20_000) {
            one.write(0, start, 20_000).await;
        }
        let mut stream = one.tailing(0, 0, Duration::ZERO).await.expect("an open attempt can be tailed");
        let first = soon("the first bytes", stream.chunks.next()).await.expect("there are bytes").expect("the bytes are whole");
        let taken = first.len() as u64;
        acknowledge(&one, "g", &[(0, 200_000 - round)]).await.expect("it can be acknowledged");
        match collect(stream).await {
            Ok(bytes) => assert_same(&bytes, &one.bytes(0, taken, bytes.len() as u64)),
            Err((bytes, error)) => {
                assert_same(&bytes, &one.bytes(0, taken, bytes.len() as u64));
                assert!(matches!(error.kind(), StoreErrorKind::BelowFloor { .. }), "{error:?}");
            }
        }
        instance.store.release(ReleaseScope::Attempt(one.key.clone())).await.expect("it can be released");
    }
}

/// A producer that was re-run goes on at the offsets where its predecessor's readers were.
pub async fn an_attempt_may_start_beyond_zero(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::new(&instance.store, attempt(0, 0, 0), spec(stage.kind(), 3));
    let starts = vec![(SubpartitionIndex::new(1), Offset::new(500))];
    let request = OpenRequest { attempt: one.key.clone(), spec: Arc::new(spec(stage.kind(), 3)), starts };
    let opened = one.store.open(request.clone()).await.expect("it can be opened");
    assert_eq!(opened.tails, [(SubpartitionIndex::new(1), Offset::new(500))]);
    assert_eq!(one.store.open(request).await.expect("opening is idempotent"), opened);
    assert_refused!(one.put(1, Some(0), Bytes::from_static(b"x")).await, StoreErrorKind::BelowFloor { floor } if floor.get() == 500);
    one.write(1, 500, 100).await;
    one.write(0, 0, 10).await;
    assert_refused!(one.tailing(1, 499, LONG_WAIT).await, StoreErrorKind::BelowFloor { floor } if floor.get() == 500);
    assert_same(&tail_of(&one, 1, 500, Duration::ZERO).await.expect("it is held"), &one.bytes(1, 500, 100));
    assert_eq!(one.store.stat(&one.key).await.expect("it is known").total_bytes, 110);
}

/// Everything since the last completed checkpoint is kept, whatever was acknowledged.
pub async fn a_checkpoint_moves_the_floor(stage: Stage) {
    let instance = stage.fresh().await;
    let two_groups = DatasetSpec { groups: vec![group("g"), group("h")], ..spec(SINCE_CHECKPOINT, 1) };
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), two_groups).await;
    for start in [0, 100, 200] {
        one.write(0, start, 100).await;
    }
    for name in ["g", "h"] {
        acknowledge(&one, name, &[(0, 300)]).await.expect("it can be acknowledged");
    }
    assert_same(&tail_of(&one, 0, 0, Duration::ZERO).await.expect("no checkpoint yet"), &one.bytes(0, 0, 300));
    checkpoint(&one, 5, &[("g", 0, 200), ("h", 0, 100)]).await.expect("it can be completed");
    assert_refused!(one.tailing(0, 99, LONG_WAIT).await, StoreErrorKind::BelowFloor { floor } if floor.get() == 100);
    assert_same(&tail_of(&one, 0, 100, Duration::ZERO).await.expect("it is held"), &one.bytes(0, 100, 200));
    checkpoint(&one, 4, &[("g", 0, 300), ("h", 0, 300)]).await.expect("an older checkpoint changes nothing");
    assert_same(&tail_of(&one, 0, 100, Duration::ZERO).await.expect("it is held"), &one.bytes(0, 100, 200));
    assert_refused!(checkpoint(&one, 6, &[("g", 0, 301), ("h", 0, 200)]).await, StoreErrorKind::BeyondEnd { .. });
    assert_same(&tail_of(&one, 0, 100, Duration::ZERO).await.expect("nothing was taken"), &one.bytes(0, 100, 200));
    checkpoint(&one, 7, &[("g", 0, 300), ("h", 0, 200)]).await.expect("it can be completed");
    assert_refused!(one.tailing(0, 199, LONG_WAIT).await, StoreErrorKind::BelowFloor { .. });
    one.write(0, 300, 50).await;
    one.seal().await;
    assert_same(&one.read(0, 200, None).await.expect("it is held"), &one.bytes(0, 200, 150));
}

/// What is kept since a checkpoint may be larger than memory.
pub async fn since_a_checkpoint_more_than_memory_is_kept(stage: Stage) {
    let instance = stage.fresh_small().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(SINCE_CHECKPOINT, 2)).await;
    let small = stage.small_budget_bytes();
    let length = (small / 16).clamp(1, one.store.capabilities().max_chunk_bytes);
    let total = small / length * length * 3 / 2;
    let total = total / length * length;
    let reader = beside({
        let one = one.clone();
        async move { tail_of(&one, 0, 0, LONG_WAIT).await.expect("nothing disturbs it") }
    });
    for start in (0..total).step_by(usize::try_from(length).expect("a chunk fits in memory")) {
        one.write(0, start, length).await;
        one.write(1, start, length).await;
    }
    for start in [0, length - 1, total / 2, total - 1] {
        let rest = soon("a read", tail_of(&one, 1, start, Duration::from_millis(50))).await.expect("all is kept");
        assert_same(&rest, &one.bytes(1, start, total - start));
    }
    one.seal().await;
    assert_same(&soon("the reader", reader).await.expect("a reader"), &one.bytes(0, 0, total));
    checkpoint(&one, 1, &[("g", 0, total), ("g", 1, total)]).await.expect("it can be completed");
    assert_refused!(one.read(1, 0, None).await, StoreErrorKind::BelowFloor { .. });
    instance.store.release(ReleaseScope::Attempt(one.key.clone())).await.expect("it can be released");
    assert_nothing_held(&instance.store).await;
}

/// With best effort, bytes that were read make room for new ones; who comes late is told the
/// floor, and bytes that were not read are never dropped.
pub async fn best_effort_drops_only_what_was_read(stage: Stage) {
    let instance = stage.fresh_small().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(BEST_EFFORT, 1)).await;
    let small = stage.small_budget_bytes();
    let length = (small / 16).clamp(1, one.store.capabilities().max_chunk_bytes);
    let mut at = 0;
    while at < small * 3 {
        soon("an append", one.write(0, at, length)).await;
        let bytes = soon("a read", tail_of(&one, 0, at, Duration::ZERO)).await.expect("the newest bytes are held");
        assert_same(&bytes, &one.bytes(0, at, length));
        at += length;
    }
    let StoreErrorKind::BelowFloor { floor } = crate::scenario::refused(one.tailing(0, 0, LONG_WAIT).await) else {
        panic!("the first bytes cannot be held any more")
    };
    assert!(floor.get() <= at);
    assert_same(&tail_of(&one, 0, floor.get(), Duration::ZERO).await.expect("it is held"), &one.bytes(0, floor.get(), at - floor.get()));
    let unread_from = at;
    let mut n_bytes = 0;
    while let Ok(permit) = one.store.reserve(&one.key, length, Duration::from_millis(20)).await {
        drop(permit);
        one.write(0, at, length).await;
        at += length;
        n_bytes += length;
        assert!(n_bytes <= small * 2, "bytes that nobody has read must push back");
    }
    let unread = soon("a read", tail_of(&one, 0, unread_from, Duration::ZERO)).await.expect("unread bytes are held");
    assert_same(&unread, &one.bytes(0, unread_from, at - unread_from));
    let room = one.store.reserve(&one.key, length, patience()).await.expect("what was read makes room");
    assert!(room.bytes() >= length);
}

/// With best effort, what fits in memory is read as often as it is wanted.
pub async fn best_effort_serves_again_what_fits(stage: Stage) {
    let instance = stage.fresh().await;
    let one = Attempt::opened(&instance.store, attempt(0, 0, 0), spec(BEST_EFFORT, 1)).await;
    one.write(0, 0, 10_000).await;
    for _ in 0..3 {
        assert_same(&tail_of(&one, 0, 0, Duration::ZERO).await.expect("it is held"), &one.bytes(0, 0, 10_000));
    }
    one.seal().await;
    one.assert_holds(0, 10_000).await;
}

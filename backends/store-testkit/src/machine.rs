//! Random operations against model and store, answers compared.
//!
//! The operations are drawn from a seed and made one after the other; each answer of the store is
//! compared with the model's by kind, offsets and bytes. A difference is shrunk to the shortest
//! sequence that still shows it. Where the docs leave a store a choice (a released attempt may be
//! forgotten, say), both answers pass; where the medium remembers more than the model after a
//! release, the operation is skipped.

use crate::model::{Answer, Model, Rules, is_inside};
use crate::scenario::{Attempt, assert_nothing_held, attempt, collect, group, partition, patience, piece, spec, with_patience};
use crate::suite::Stage;
use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use std::collections::BTreeSet;
use std::time::Duration;
use store_api::{
    AcknowledgeRequest, AttemptId, AttemptKey, AttemptState, DatasetKind, Digest, Offset, OpenRequest, PartitionKey, ReleaseScope,
    Retention, SealOutcome, StoreClass, StoreError, StoreErrorKind, SubpartitionBounds, SubpartitionIndex, SubpartitionTable, TaskGroup,
};

/// Subpartitions of every attempt.
const N_LANES: u32 = 3;

/// What a writer states at the preparation.
#[derive(Debug, Clone, Copy)]
enum Stated {
    /// Nothing.
    Nothing,
    /// What is held.
    Right,
    /// One byte more in subpartition 0.
    Wrong,
}

/// Where an append starts.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// At the tail, unsaid.
    Unsaid,
    /// At the tail, or so many bytes before it.
    Back(u64),
    /// So many bytes after the tail.
    Beyond(u64),
    /// At the highest offset there is.
    Top,
}

/// One operation, on one of a few attempts.
#[derive(Debug, Clone)]
enum Op {
    /// Opens.
    Open(usize),
    /// Appends `length` bytes at `start`, at the tail if it is `None`; `is_other` flips a bit.
    Append { slot: usize, lane: u32, place: Place, length: u64, is_other: bool },
    /// Asks for the tails.
    Tails(usize),
    /// Asks for the bounds of a subpartition.
    Bounds(usize, u32),
    /// Prepares.
    Prepare(usize, Stated),
    /// Publishes.
    Publish(usize),
    /// Aborts.
    Abort(usize),
    /// Reads sealed content.
    Read { slot: usize, lane: u32, start: u64, end: Option<u64> },
    /// Reads what is there of an open attempt.
    Tail { slot: usize, lane: u32, start: u64 },
    /// Asks for the state.
    Stat(usize),
    /// Asks for the manifest.
    Manifest(usize),
    /// Acknowledges a subpartition up to its tail.
    Acknowledge(usize, u32),
    /// Releases the attempt, its partition or (seldom) its dataset.
    Release(usize, u8),
    /// Fences the generations below the attempt's next one.
    Fence(usize),
    /// Opens the medium again.
    Reopen,
}

fn lengths() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0_u64..40, 1 => 60_000_u64..70_000]
}

fn places() -> impl Strategy<Value = Place> {
    prop_oneof![
        2 => Just(Place::Unsaid),
        4 => Just(Place::Back(0)),
        4 => (0_u64..60).prop_map(Place::Back),
        1 => (1_u64..60).prop_map(Place::Beyond),
        1 => Just(Place::Top),
    ]
}

fn starts() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0_u64..160, 1 => 60_000_u64..70_000, 2 => Just(u64::MAX)]
}

/// An operation on one of `n_slots` attempts.
fn op(n_slots: usize) -> impl Strategy<Value = Op> {
    // Most operations meet on two attempts; spread evenly they would seldom build on each other.
    let slot = prop_oneof![5 => Just(0), 3 => Just(1), 2 => 0..n_slots];
    let stated = prop_oneof![Just(Stated::Nothing), Just(Stated::Right), Just(Stated::Wrong)];
    let lane = prop_oneof![6 => Just(0_u32), 3 => 1..N_LANES, 1 => Just(N_LANES)];
    let is_other = prop::bool::weighted(0.15);
    let append = (slot.clone(), lane.clone(), places(), lengths(), is_other);
    prop_oneof![
        8 => slot.clone().prop_map(Op::Open),
        42 => append.prop_map(|(slot, lane, place, length, is_other)| Op::Append { slot, lane, place, length, is_other }),
        4 => slot.clone().prop_map(Op::Tails),
        4 => (slot.clone(), lane.clone()).prop_map(|(slot, lane)| Op::Bounds(slot, lane)),
        6 => (slot.clone(), stated).prop_map(|(slot, stated)| Op::Prepare(slot, stated)),
        6 => slot.clone().prop_map(Op::Publish),
        1 => slot.clone().prop_map(Op::Abort),
        18 => (slot.clone(), lane.clone(), starts(), prop::option::of(starts()))
            .prop_map(|(slot, lane, start, end)| Op::Read { slot, lane, start, end }),
        12 => (slot.clone(), lane.clone(), starts()).prop_map(|(slot, lane, start)| Op::Tail { slot, lane, start }),
        4 => slot.clone().prop_map(Op::Stat),
        3 => slot.clone().prop_map(Op::Manifest),
        4 => (slot.clone(), lane).prop_map(|(slot, lane)| Op::Acknowledge(slot, lane)),
        1 => (slot.clone(), 0_u8..7).prop_map(|(slot, scope)| Op::Release(slot, scope)),
        1 => slot.prop_map(Op::Fence),
        2 => Just(Op::Reopen),
    ]
}

/// What an answer says, in a form that model and store share.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Said {
    Tails(AttemptState, Vec<(u32, u64)>),
    Bounds(SubpartitionBounds),
    Ack(u64, u64),
    Table(SubpartitionTable),
    Winner(AttemptKey, bool),
    Content(Bytes),
    Stat(AttemptState, u64),
    Floor(Vec<(SubpartitionIndex, Offset)>),
    Nothing,
}

/// A run: the store, the model, and what must not be touched any more.
struct Run {
    stage: Stage,
    instance: Option<crate::Instance>,
    model: Model,
    slots: Vec<AttemptKey>,
    released: Vec<ReleaseScope>,
    forgotten: BTreeSet<AttemptKey>,
}

impl Run {
    async fn new(stage: &Stage) -> Self {
        let instance = stage.fresh().await;
        let capabilities = instance.store.capabilities();
        let rules = Rules { arbitrates: stage.arbitrates(), max_chunk_bytes: capabilities.max_chunk_bytes, class: capabilities.class };
        Self {
            stage: stage.clone(),
            instance: Some(instance),
            model: Model::new(rules),
            slots: slots(stage.kind()),
            released: Vec::new(),
            forgotten: BTreeSet::new(),
        }
    }

    fn of(&self, slot: usize) -> Attempt {
        let instance = self.instance.as_ref().expect("there is a store between operations");
        Attempt::new(&instance.store, self.slots[slot].clone(), spec(self.stage.kind(), N_LANES))
    }

    /// Whether the docs leave open what the store answers.
    fn is_open_question(&self, op: &Op) -> bool {
        let (Op::Open(slot)
        | Op::Append { slot, .. }
        | Op::Tails(slot)
        | Op::Bounds(slot, _)
        | Op::Prepare(slot, _)
        | Op::Publish(slot)
        | Op::Abort(slot)
        | Op::Read { slot, .. }
        | Op::Tail { slot, .. }
        | Op::Stat(slot)
        | Op::Manifest(slot)
        | Op::Acknowledge(slot, _)
        | Op::Release(slot, _)
        | Op::Fence(slot)) = op
        else {
            return false;
        };
        let key = &self.slots[*slot];
        let is_new = self.model.entry(key).is_none();
        let is_released = self.released.iter().any(|scope| is_inside(key, scope));
        let touches_partition = |scope: &ReleaseScope| partition_of(scope).is_none_or(|partition| *partition == key.partition);
        let is_remembered = self.stage.arbitrates() && self.released.iter().any(touches_partition);
        let state = self.model.entry(key).map(crate::model::Entry::state);
        match op {
            Op::Open(_) if is_new && is_released => true,
            Op::Open(_) | Op::Prepare(..) | Op::Publish(_) if is_remembered => true,
            Op::Tail { .. } => state == Some(AttemptState::Prepared),
            _ => self.forgotten.contains(key),
        }
    }

    async fn step(&mut self, op: &Op) -> Result<(), TestCaseError> {
        if self.is_open_question(op) {
            return Ok(());
        }
        if matches!(op, Op::Reopen) {
            return self.reopen().await;
        }
        let Some((modelled, found)) = self.both(op).await else { return Ok(()) };
        let found = found.map_err(|error| error.kind().clone());
        prop_assert!(is_same(&modelled, &found), "{op:?}: the model says {}, the store {}", shown(&modelled), shown(&found));
        Ok(())
    }

    /// Makes the operation on both; `None` when it does not apply.
    async fn both(&mut self, op: &Op) -> Option<(Answer<Said>, Result<Said, StoreError>)> {
        match *op {
            Op::Append { slot, lane, place, length, is_other } => Some(self.append(slot, lane, place, length, is_other).await),
            Op::Read { slot, lane, start, end } => {
                let modelled = self.model.read(&self.slots[slot], lane, start, end).map(|(bytes, _)| Said::Content(bytes));
                Some((modelled, self.of(slot).read(lane, start, end).await.map(Said::Content)))
            }
            Op::Tail { slot, lane, start } => self.tail(slot, lane, start).await,
            Op::Acknowledge(slot, lane) => self.acknowledge(slot, lane).await,
            Op::Release(slot, scope) => self.release(slot, scope).await,
            Op::Fence(slot) => self.fence(slot).await,
            Op::Prepare(slot, stated) => Some(self.prepare(slot, stated).await),
            Op::Open(slot) => {
                let one = self.of(slot);
                let request = OpenRequest { attempt: one.key.clone(), spec: one.spec.clone(), starts: Vec::new() };
                Some((self.model.open(&request).map(tails), one.open().await.map(tails)))
            }
            Op::Tails(slot) => Some((self.model.tails(&self.slots[slot]).map(tails), self.of(slot).tails().await.map(tails))),
            Op::Bounds(slot, lane) => {
                let one = self.of(slot);
                let found = one.store.bounds(&one.key, SubpartitionIndex::new(lane)).await.map(Said::Bounds);
                Some((self.model.bounds(&one.key, SubpartitionIndex::new(lane)).map(Said::Bounds), found))
            }
            Op::Publish(slot) => Some((
                self.model.publish(&self.slots[slot]).map(|outcome| winner(&outcome)),
                self.of(slot).publish().await.map(|outcome| winner(&outcome)),
            )),
            Op::Abort(slot) => {
                let one = self.of(slot);
                Some((self.model.abort(&one.key).map(|()| Said::Nothing), one.store.abort(&one.key).await.map(|()| Said::Nothing)))
            }
            Op::Stat(slot) => {
                let one = self.of(slot);
                let said = |stat: store_api::AttemptStat| Said::Stat(stat.state, stat.total_bytes);
                Some((self.model.stat(&one.key).map(said), one.store.stat(&one.key).await.map(said)))
            }
            Op::Manifest(slot) => {
                let one = self.of(slot);
                let found = one.store.manifest(&one.key).await.map(|manifest| Said::Table(manifest.table.clone()));
                Some((self.model.manifest(&one.key).map(|manifest| Said::Table(manifest.table.clone())), found))
            }
            Op::Reopen => None,
        }
    }

    async fn append(
        &mut self,
        slot: usize,
        lane: u32,
        place: Place,
        length: u64,
        is_other: bool,
    ) -> (Answer<Said>, Result<Said, StoreError>) {
        let one = self.of(slot);
        let tail = self.model.entry(&one.key).map_or(0, |entry| entry.tail(lane));
        let (start, at) = match place {
            Place::Unsaid => (None, tail),
            Place::Back(by) => (Some(tail.saturating_sub(by)), tail.saturating_sub(by)),
            Place::Beyond(by) => (Some(tail + by), tail + by),
            Place::Top => (Some(u64::MAX), 0),
        };
        let mut bytes = BytesMut::from(one.bytes(lane, at, length).as_ref());
        if let Some(first) = bytes.first_mut().filter(|_| is_other) {
            *first ^= 1;
        }
        let one_piece = piece(lane, start, bytes.freeze());
        let is_retained = self.is_retained(&one.key, lane, at, length);
        let before = self.model.clone();
        let modelled = self.model.append(&one.key, &one_piece).map(|(end, new_bytes)| Said::Ack(end, new_bytes));
        let found = one.append(vec![one_piece]).await.map(|ack| Said::Ack(ack.end.get(), ack.new_bytes));
        if let Err(error) = &found
            && let StoreErrorKind::BelowFloor { floor } = error.kind()
            && !is_retained
            && (at + 1..=tail).contains(&floor.get())
        {
            // Nothing of such a piece is applied.
            self.model = before;
            return (Err(error.kind().clone()), found);
        }
        (modelled, found)
    }

    /// Whether a store must be able to judge the old part of a piece: a durable one need only when
    /// it starts and ends where pieces did.
    fn is_retained(&self, key: &AttemptKey, lane: u32, start: u64, length: u64) -> bool {
        let Some(entry) = self.model.entry(key).filter(|_| self.stage.kind().class() == StoreClass::Durable) else { return true };
        let tail = entry.tail(lane);
        let old_end = start.saturating_add(length).min(tail);
        start >= tail || (entry.is_end_of_piece(lane, start) && entry.is_end_of_piece(lane, old_end))
    }

    async fn prepare(&mut self, slot: usize, stated: Stated) -> (Answer<Said>, Result<Said, StoreError>) {
        let one = self.of(slot);
        let held = self.model.entry(&one.key).map(crate::model::Entry::table).unwrap_or_default();
        let stated = match stated {
            Stated::Nothing => None,
            Stated::Right => Some(held),
            Stated::Wrong => {
                let longer = |(index, digest): (SubpartitionIndex, Digest)| (index, Digest { length: digest.length + 1, ..digest });
                let zero = (SubpartitionIndex::new(0), held.digest(SubpartitionIndex::new(0)).unwrap_or_default());
                let others = held.non_empty().filter(|(index, _)| index.get() > 0);
                Some(SubpartitionTable::new(N_LANES, others.chain([longer(zero)])).expect("a table"))
            }
        };
        let modelled = self.model.prepare(&one.key, stated.as_ref()).map(|manifest| Said::Table(manifest.table.clone()));
        let found = match stated {
            Some(table) => one.prepare_with(table).await,
            None => one.prepare().await,
        };
        (modelled, found.map(|manifest| Said::Table(manifest.table.clone())))
    }

    async fn tail(&mut self, slot: usize, lane: u32, start: u64) -> Option<(Answer<Said>, Result<Said, StoreError>)> {
        let one = self.of(slot);
        if !one.store.capabilities().reads_open {
            return None;
        }
        let modelled = self.model.live(&one.key).and_then(|entry| entry.read(lane, start, None)).map(Said::Content);
        let found = match one.tailing(lane, start, Duration::ZERO).await {
            Ok(stream) => collect(stream).await.map(Said::Content).map_err(|(_, error)| error),
            Err(error) => Err(error),
        };
        Some((modelled, found))
    }

    async fn acknowledge(&mut self, slot: usize, lane: u32) -> Option<(Answer<Said>, Result<Said, StoreError>)> {
        if self.stage.kind() != DatasetKind::Pipelined(Retention::UntilAcknowledged) {
            return None;
        }
        let one = self.of(slot);
        let tail = self.model.entry(&one.key).map_or(0, |entry| entry.tail(lane));
        let offsets = vec![(SubpartitionIndex::new(lane), Offset::new(tail))];
        let request = AcknowledgeRequest { attempt: one.key.clone(), group: group("g"), offsets };
        let modelled = self.model.acknowledge(&request).map(|report| Said::Floor(report.floors));
        Some((modelled, one.store.acknowledge(request).await.map(|report| Said::Floor(report.floors))))
    }

    async fn release(&mut self, slot: usize, scope: u8) -> Option<(Answer<Said>, Result<Said, StoreError>)> {
        let one = self.of(slot);
        let scope = match scope {
            0..=3 => ReleaseScope::Attempt(one.key.clone()),
            4 | 5 => ReleaseScope::Partition(one.key.partition.clone()),
            _ => ReleaseScope::Dataset(one.key.partition.dataset.clone()),
        };
        Some(self.release_scope(&one, scope).await)
    }

    async fn fence(&mut self, slot: usize) -> Option<(Answer<Said>, Result<Said, StoreError>)> {
        let one = self.of(slot);
        let by = AttemptId::new(one.key.attempt.generation + 1, 0);
        let scope = ReleaseScope::GenerationsBelow { partition: one.key.partition.clone(), by };
        Some(self.release_scope(&one, scope).await)
    }

    async fn release_scope(&mut self, one: &Attempt, scope: ReleaseScope) -> (Answer<Said>, Result<Said, StoreError>) {
        self.model.release(&scope);
        let found = one.store.release(scope.clone()).await;
        self.released.push(scope);
        (Ok(Said::Nothing), found.map(|_| Said::Nothing))
    }

    async fn reopen(&mut self) -> Result<(), TestCaseError> {
        let Some(instance) = self.instance.take() else { return Ok(()) };
        if !instance.store.capabilities().survives_reopen() {
            self.instance = Some(instance);
            return Ok(());
        }
        let instance = self.stage.reopen(instance).await;
        let report = instance.store.recover().await.map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
        self.instance = Some(instance);
        let has_ended = |key: &&AttemptKey| self.model.entry(key).is_some_and(|entry| entry.state().is_final());
        let is_released = |key: &&AttemptKey| self.released.iter().any(|scope| is_inside(key, scope));
        let gone: Vec<_> = self.slots.iter().filter(|key| has_ended(key) || is_released(key)).cloned().collect();
        self.forgotten.extend(gone);
        self.model.reopen();
        if self.stage.reach().reports_recovery {
            let found: BTreeSet<_> = report.sealed.iter().map(|manifest| manifest.attempt.clone()).collect();
            let wanted: BTreeSet<_> = self.model.entries().map(|(key, _)| key.clone()).collect();
            prop_assert_eq!(found, wanted, "after a reopen");
        }
        Ok(())
    }

    async fn finish(self) {
        let instance = self.instance.expect("there is a store between operations");
        let dataset = ReleaseScope::Dataset(partition(0).dataset);
        instance.store.release(dataset).await.expect("everything can be released");
        if self.stage.reach().counts_held {
            assert_nothing_held(&instance.store).await;
        }
    }
}

/// The attempts of a run. Rivals of one partition only where they live side by side.
fn slots(kind: DatasetKind) -> Vec<AttemptKey> {
    if kind.class() == StoreClass::Pipelined {
        return (0..4).map(|number| attempt(number, 0, 0)).collect();
    }
    let of_partition = |number| [attempt(number, 0, 0), attempt(number, 0, 1), attempt(number, 1, 0)];
    (0..2).flat_map(of_partition).collect()
}

const fn partition_of(scope: &ReleaseScope) -> Option<&PartitionKey> {
    match scope {
        ReleaseScope::Attempt(key) => Some(&key.partition),
        ReleaseScope::Partition(key) | ReleaseScope::GenerationsBelow { partition: key, .. } => Some(key),
        ReleaseScope::Job { .. } | ReleaseScope::Dataset(_) => None,
    }
}

fn tails(found: store_api::AttemptTails) -> Said {
    Said::Tails(found.state, found.tails.into_iter().map(|(index, tail)| (index.get(), tail.get())).collect())
}

fn winner(outcome: &SealOutcome) -> Said {
    match outcome {
        SealOutcome::Won(manifest) => Said::Winner(manifest.attempt.clone(), true),
        SealOutcome::Lost(manifest) => Said::Winner(manifest.attempt.clone(), false),
    }
}

/// Whether the store's answer is one that the model's allows.
fn is_same(modelled: &Answer<Said>, found: &Answer<Said>) -> bool {
    use StoreErrorKind as Kind;
    match (modelled, found) {
        // What has ended may be forgotten by `stat`, and its bytes need not be counted.
        (Ok(Said::Stat(state, _)), Ok(Said::Stat(other, _))) if state.is_final() => state == other,
        (Ok(Said::Stat(state, _)), Err(Kind::NotFound)) => state.is_final(),
        (Err(Kind::DigestMismatch { subpartition: one, .. }), Err(Kind::DigestMismatch { subpartition: two, .. })) => one == two,
        (Err(Kind::Released | Kind::Aborted), Err(Kind::NotFound)) => true,
        (one, two) => one == two,
    }
}

/// An answer without megabytes.
fn shown(answer: &Answer<Said>) -> String {
    match answer {
        Ok(Said::Content(bytes)) => format!("{} bytes with digest {}", bytes.len(), Digest::of(bytes)),
        other => format!("{other:?}"),
    }
}

/// Runs `n_runs` random sequences against fresh stores. Panics with the shortest sequence that
/// shows a difference.
pub async fn compare(stage: Stage, seed: u64, n_runs: usize) {
    let work = TaskGroup::new();
    let runtime = tokio::runtime::Handle::current();
    let (n_slots, patience) = (slots(stage.kind()).len(), patience());
    let found = work.run_blocking(move || {
        let config = Config {
            cases: u32::try_from(n_runs).unwrap_or(u32::MAX),
            failure_persistence: None,
            max_shrink_iters: 400,
            max_shrink_time: 20_000,
            ..Config::default()
        };
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
        runner.run(&vec(op(n_slots), 1..60), |ops| {
            runtime.block_on(with_patience(patience, async {
                let mut run = Run::new(&stage).await;
                for slot in 0..2 {
                    run.step(&Op::Open(slot)).await?;
                }
                for op in &ops {
                    run.step(op).await?;
                }
                run.finish().await;
                Ok(())
            }))
        })
    });
    match found.await.expect("the comparison does not panic") {
        Ok(()) => {}
        Err(TestError::Abort(reason)) => panic!("seed {seed}: {reason}"),
        Err(TestError::Fail(reason, ops)) => panic!("seed {seed}: {reason}\nshortest sequence: {ops:#?}"),
    }
}

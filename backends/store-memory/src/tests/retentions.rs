//! All retentions together under little memory: random writes, repeats, reads, acknowledgements,
//! checkpoints and releases of two jobs, against a model that keeps every byte in its head.
//!
//! The model knows exactly what must be held, what may be dropped and what may be spilled, so it
//! says of each reservation whether it must be granted.

use crate::config::Config;
use crate::sample::{SOON, config, group, index, kind, pattern, rounds, seed, small_spill, spec, until};
use crate::store::MemoryStore;
use crate::store::fixture::{Of, store};
use bytes::Bytes;
use futures::StreamExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use std::time::Duration;
use store_api::{
    AcknowledgeRequest, AttemptId, AttemptState, CheckpointRequest, DatasetId, DatasetKey, JobId, JobIncarnation, Offset, PartitionId,
    PartitionStore, Permit, ReadMode, ReleaseScope, Retention, StoreErrorKind,
};

const MEMORY: u64 = 6000;
const JOB_MEMORY: u64 = 4000;
const N_LANES: u32 = 2;
const GROUPS: [&str; 2] = ["g", "h"];
const NEVER: Duration = Duration::ZERO;

#[derive(Debug, Clone, Copy)]
struct Piece {
    start: u64,
    end: u64,
    /// How often its last byte was handed out.
    n_read: u64,
}

#[derive(Debug, Default)]
struct Lane {
    floor: u64,
    /// Every chunk that was taken.
    pieces: Vec<Piece>,
    /// Position of each group.
    positions: [u64; 2],
    sent: Option<u64>,
}

impl Lane {
    fn tail(&self) -> u64 {
        self.pieces.last().map_or(0, |piece| piece.end)
    }

    fn held(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().filter(|piece| piece.end > self.floor)
    }

    fn held_bytes(&self) -> u64 {
        self.held().map(|piece| piece.end - piece.start).sum()
    }

    fn lowest(&self) -> u64 {
        self.positions.into_iter().min().unwrap()
    }

    /// Whether every consumer has had or acknowledged all of a chunk.
    fn is_done_with(&self, piece: &Piece) -> bool {
        piece.n_read >= GROUPS.len() as u64 || piece.end <= self.lowest()
    }

    /// Bytes that pressure may drop: the oldest ones, up to the first that somebody may still want.
    fn droppable(&self) -> u64 {
        self.held().take_while(|piece| self.is_done_with(piece)).map(|piece| piece.end - piece.start).sum()
    }
}

struct Modelled {
    of: Of,
    retention: Retention,
    lanes: Vec<Lane>,
    checkpoint: u64,
}

impl Modelled {
    fn held(&self) -> u64 {
        self.lanes.iter().map(Lane::held_bytes).sum()
    }

    /// Bytes that stay in memory whatever the pressure.
    fn stuck(&self) -> u64 {
        match self.retention {
            Retention::UntilAcknowledged => self.held(),
            Retention::BestEffort => self.held() - self.lanes.iter().map(Lane::droppable).sum::<u64>(),
            Retention::SinceCheckpoint => 0,
        }
    }
}

struct World {
    store: Arc<MemoryStore>,
    /// Two attempts of each of two jobs.
    attempts: Vec<Modelled>,
    random: StdRng,
    n_opened: u64,
    n_refused: usize,
}

fn job(slot: usize) -> JobId {
    JobId::new(["a", "b"][slot / 2]).unwrap()
}

impl World {
    async fn new(store: Arc<MemoryStore>, seed: u64) -> Self {
        let mut world = Self { store, attempts: Vec::new(), random: StdRng::seed_from_u64(seed), n_opened: 0, n_refused: 0 };
        for slot in 0..4 {
            let opened = world.opened(slot).await;
            world.attempts.push(opened);
        }
        world
    }

    async fn opened(&mut self, slot: usize) -> Modelled {
        let retentions = [Retention::UntilAcknowledged, Retention::BestEffort, Retention::SinceCheckpoint];
        let retention = retentions[self.random.random_range(0..3)];
        let dataset = DatasetKey { job: job(slot), incarnation: JobIncarnation::new(1), dataset: DatasetId::new("d").unwrap() };
        self.n_opened += 1;
        let key = dataset.partition(PartitionId::new(self.n_opened)).attempt(AttemptId::new(0, 0));
        let mut spec = spec(retention, N_LANES);
        spec.groups = GROUPS.into_iter().map(group).collect();
        let of = Of { store: self.store.clone(), key, spec: Arc::new(spec) };
        of.open().await.unwrap();
        Modelled { of, retention, lanes: (0..N_LANES).map(|_| Lane::default()).collect(), checkpoint: 0 }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.random_range(0..end.max(1))
    }

    fn stuck_of_job(&self, slot: usize) -> u64 {
        self.attempts.iter().enumerate().filter(|(at, _)| at / 2 == slot / 2).map(|(_, one)| one.stuck()).sum()
    }

    async fn write(&mut self, slot: usize, lane: usize) {
        let length = 1 + self.below(700);
        let stuck: u64 = self.attempts.iter().map(Modelled::stuck).sum();
        let must_fit = self.stuck_of_job(slot) + length <= JOB_MEMORY && stuck + length <= MEMORY;
        let one = &mut self.attempts[slot];
        let patience = if must_fit { SOON } else { NEVER };
        match self.store.reserve(&one.of.key, length, patience).await {
            Ok(permit) => {
                assert!(must_fit, "{length} bytes were granted, {stuck} can go nowhere");
                let lane_index = u32::try_from(lane).unwrap();
                let tail = one.lanes[lane].tail();
                let bytes = pattern(lane_index, tail, length);
                let ack = one.of.put_with(lane_index, Some(tail), bytes, permit).await.unwrap();
                assert_eq!((ack.end.get(), ack.new_bytes), (tail + length, length));
                one.lanes[lane].pieces.push(Piece { start: tail, end: tail + length, n_read: 0 });
            }
            Err(error) => {
                assert!(!must_fit, "{length} bytes fit: {error:?}");
                assert!(matches!(error.kind(), StoreErrorKind::Overloaded { .. }), "{error:?}");
                self.n_refused += 1;
            }
        }
        self.learn_floors().await;
    }

    /// Pressure may have dropped read bytes of any best-effort attempt, but nothing else.
    async fn learn_floors(&mut self) {
        for one in self.attempts.iter_mut().filter(|one| one.retention == Retention::BestEffort) {
            let stat = one.of.store.stat(&one.of.key).await.unwrap();
            for (number, lane) in one.lanes.iter_mut().enumerate() {
                let told = stat.floors.iter().find(|(at, _)| at.get() as usize == number).map_or(0, |(_, floor)| floor.get());
                assert!(told >= lane.floor, "a floor never goes back");
                for piece in lane.held().filter(|piece| piece.start < told) {
                    assert!(piece.end <= told, "chunks go whole");
                    assert!(lane.is_done_with(piece), "{piece:?} was dropped and somebody may still want it");
                }
                lane.floor = told;
            }
        }
    }

    async fn repeat(&mut self, slot: usize, lane: usize) {
        let tail = self.attempts[slot].lanes[lane].tail();
        let (start, is_other) = (self.below(tail), self.below(5) == 0);
        let length = 1 + self.below((tail - start).min(500));
        let one = &self.attempts[slot];
        if start + length > tail {
            return;
        }
        let lane_index = u32::try_from(lane).unwrap();
        let mut bytes = pattern(lane_index, start, length).to_vec();
        if is_other {
            let last = bytes.len() - 1;
            bytes[last] ^= 0x55;
        }
        let answer = one.of.put_with(lane_index, Some(start), Bytes::from(bytes), Permit::none()).await;
        let floor = Offset::new(one.lanes[lane].floor);
        if start < floor.get() {
            assert_eq!(kind(answer), StoreErrorKind::BelowFloor { floor });
        } else if is_other {
            assert_eq!(kind(answer), StoreErrorKind::ContentMismatch { expected: Offset::new(tail) });
        } else {
            let ack = answer.unwrap();
            assert_eq!((ack.end.get(), ack.new_bytes), (tail, 0), "a repeat changes nothing");
        }
    }

    async fn read(&mut self, slot: usize, lane: usize) {
        let tail = self.attempts[slot].lanes[lane].tail();
        // Often from the floor, as consumers do.
        let start = if self.below(2) == 0 { self.attempts[slot].lanes[lane].floor } else { self.below(tail + 2) };
        let end = (self.below(3) == 0).then(|| self.below(tail + 50));
        let one = &mut self.attempts[slot];
        let lane_index = u32::try_from(lane).unwrap();
        let request = one.of.request(lane_index, start, end, ReadMode::Tail { wait: Duration::ZERO });
        let opened = self.store.read(request).await;
        let lane = &mut one.lanes[lane];
        if start < lane.floor {
            assert_eq!(
                opened.map(drop).map_err(|error| error.kind().clone()),
                Err(StoreErrorKind::BelowFloor { floor: Offset::new(lane.floor) })
            );
            return;
        }
        if start > tail {
            assert_eq!(opened.map(drop).map_err(|error| error.kind().clone()), Err(StoreErrorKind::BeyondEnd { end: Offset::new(tail) }));
            return;
        }
        let mut all = Vec::new();
        let mut stream = opened.unwrap().chunks;
        while let Some(bytes) = stream.next().await {
            all.extend_from_slice(&bytes.unwrap());
        }
        let stop = end.unwrap_or(tail).min(tail).max(start);
        assert!(all == pattern(lane_index, start, stop - start), "[{start}, {stop}) of {tail}: {} bytes", all.len());
        for piece in lane.pieces.iter_mut().filter(|piece| piece.end > start && piece.end <= stop) {
            piece.n_read += 1;
        }
        if stop > start {
            lane.sent = lane.sent.max(Some(stop));
        }
    }

    async fn acknowledge(&mut self, slot: usize) {
        let group_number = usize::from(self.random.random_bool(0.5));
        let tails: Vec<u64> = self.attempts[slot].lanes.iter().map(Lane::tail).collect();
        // Sometimes beyond what was written: then nothing of the call may be taken.
        let mut is_wrong = false;
        let mut offsets = Vec::new();
        for (lane, tail) in tails.iter().enumerate() {
            if self.random.random_bool(0.7) {
                let to = if self.random.random_bool(0.05) { tail + 1 } else { self.below(tail + 1) };
                is_wrong |= to > *tail;
                offsets.push((lane, to));
            }
        }
        let one = &mut self.attempts[slot];
        let before = one.held();
        let request = AcknowledgeRequest {
            attempt: one.of.key.clone(),
            group: group(GROUPS[group_number]),
            offsets: offsets.iter().map(|(lane, to)| (index(u32::try_from(*lane).unwrap()), Offset::new(*to))).collect(),
        };
        let answer = self.store.acknowledge(request).await;
        if is_wrong {
            assert!(matches!(kind(answer), StoreErrorKind::BeyondEnd { .. }));
            return;
        }
        let report = answer.unwrap();
        for (lane, to) in &offsets {
            let lane = &mut one.lanes[*lane];
            if one.retention != Retention::SinceCheckpoint {
                lane.positions[group_number] = lane.positions[group_number].max(*to);
            }
            if one.retention == Retention::UntilAcknowledged {
                lane.floor = lane.lowest();
            }
        }
        let floors: Vec<(u32, u64)> = report.floors.iter().map(|(lane, floor)| (lane.get(), floor.get())).collect();
        let wanted: Vec<(u32, u64)> = offsets.iter().map(|(lane, _)| (u32::try_from(*lane).unwrap(), one.lanes[*lane].floor)).collect();
        assert_eq!(floors, wanted);
        assert_eq!(report.freed_bytes, before - one.held(), "what is let go is what is not held any more");
    }

    async fn complete_checkpoint(&mut self, slot: usize) {
        let last = self.attempts[slot].checkpoint;
        // Also old numbers and repeats, as they come late.
        let checkpoint = (last + self.below(3)).max(1);
        let mut need = Vec::new();
        for lane in 0..self.attempts[slot].lanes.len() {
            let tail = self.attempts[slot].lanes[lane].tail();
            for group_number in 0..GROUPS.len() {
                need.push((group_number, lane, self.below(tail + 1)));
            }
        }
        let one = &mut self.attempts[slot];
        let before = one.held();
        let request = CheckpointRequest {
            attempt: one.of.key.clone(),
            checkpoint,
            need: need.iter().map(|(by, lane, to)| (group(GROUPS[*by]), index(u32::try_from(*lane).unwrap()), Offset::new(*to))).collect(),
        };
        let answer = self.store.complete_checkpoint(request).await;
        if one.retention != Retention::SinceCheckpoint {
            assert!(matches!(kind(answer), StoreErrorKind::Unsupported { .. }));
            return;
        }
        if checkpoint > last {
            one.checkpoint = checkpoint;
            for (by, lane, to) in &need {
                let lane = &mut one.lanes[*lane];
                lane.positions[*by] = lane.positions[*by].max(*to);
                lane.floor = lane.lowest().max(lane.floor);
            }
        }
        // The floor is the lowest of all groups only after the whole call.
        for lane in &mut one.lanes {
            lane.floor = lane.lowest();
        }
        assert_eq!(answer.unwrap().freed_bytes, before - one.held());
    }

    async fn release(&mut self, slot: usize) {
        let fresh = self.opened(slot).await;
        let old = std::mem::replace(&mut self.attempts[slot], fresh);
        let report = self.store.release(ReleaseScope::Attempt(old.of.key.clone())).await.unwrap();
        assert_eq!((report.n_attempts, report.bytes), (1, old.held()));
        assert_eq!(kind(old.of.bytes_from(0, 0).await), StoreErrorKind::Released);
    }

    /// What the store says of itself is what the model holds.
    async fn check(&self) {
        for one in &self.attempts {
            let stat = self.store.stat(&one.of.key).await.unwrap();
            let total: u64 = one.lanes.iter().map(Lane::tail).sum();
            assert_eq!((stat.state, stat.total_bytes), (AttemptState::Open, total));
            for (number, lane) in one.lanes.iter().enumerate() {
                let of = |told: &[(store_api::SubpartitionIndex, Offset)]| {
                    told.iter().find(|(at, _)| at.get() as usize == number).map(|(_, offset)| offset.get())
                };
                assert_eq!(of(&stat.floors).unwrap_or(0), lane.floor, "{:?}", one.retention);
                assert_eq!(of(&stat.sent), lane.sent);
            }
        }
        for slot in [0, 2] {
            let wanted: u64 = self.attempts[slot..slot + 2].iter().map(Modelled::held).sum();
            let held = || self.store.held(&job(slot), JobIncarnation::new(1));
            // While a chunk moves to disk the two counts are not read together.
            until("the bytes held are those of the model", || held().total() == wanted).await;
        }
        assert!(self.store.reserved_bytes() <= MEMORY);
    }
}

#[tokio::test]
async fn every_retention_keeps_its_promise_under_any_pressure() {
    let first = seed();
    let mut n_refused = 0;
    for run in 0..rounds(12) as u64 {
        let root = tempfile::tempdir().unwrap();
        let limits = Config { job_memory_bytes: JOB_MEMORY, spill: Some(small_spill(root.path())), ..config(MEMORY) };
        let mut world = World::new(store(limits).await, first.wrapping_add(run)).await;
        for _ in 0..220 {
            let slot = usize::try_from(world.below(4)).unwrap();
            let lane = usize::try_from(world.below(u64::from(N_LANES))).unwrap();
            match world.below(100) {
                0..45 => world.write(slot, lane).await,
                45..55 => world.repeat(slot, lane).await,
                55..75 => world.read(slot, lane).await,
                75..87 => world.acknowledge(slot).await,
                87..97 => world.complete_checkpoint(slot).await,
                _ => world.release(slot).await,
            }
            world.check().await;
        }
        n_refused += world.n_refused;
        for slot in [0, 2] {
            world.store.release(ReleaseScope::Job { job: job(slot), incarnation: JobIncarnation::new(1) }).await.unwrap();
        }
        let store = world.store.clone();
        until("all memory is given back", || store.reserved_bytes() == 0).await;
        let spilled =
            || std::fs::read_dir(root.path().join("spill")).unwrap().filter(|entry| is_spill_file(entry.as_ref().unwrap())).count();
        until("no spill file is left", || spilled() == 0).await;
    }
    assert!(n_refused > 0, "there was no pressure");
}

fn is_spill_file(entry: &std::fs::DirEntry) -> bool {
    entry.path().extension().is_some_and(|extension| extension == "spill")
}

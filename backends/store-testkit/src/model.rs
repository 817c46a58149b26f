//! A plain sequential model: what attempts hold and what each call answers.
//!
//! One map of attempts, one call at a time, no I/O, no time, no memory limits. It is the docs of
//! [`store_api::PartitionStore`] in the shortest form that runs; [`crate::machine`] compares stores
//! with it, and [`crate::model_store`] puts it behind the trait.

use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store_api::{
    AcknowledgeRequest, Arbitration, AttemptEvent, AttemptId, AttemptKey, AttemptStat, AttemptState, AttemptTails, CheckpointRequest,
    ClassAchieved, ConsumerId, DatasetKind, DatasetSpec, Digest, FloorReport, JobId, JobIncarnation, NodeId, NodeLife, Offset, OpenRequest,
    PartitionKey, Piece, ReleaseReport, ReleaseScope, Retention, SealManifest, SealOutcome, StoreErrorKind, SubpartitionBounds,
    SubpartitionIndex, SubpartitionTable,
};

/// An answer of the model.
pub type Answer<T> = Result<T, StoreErrorKind>;

/// What differs between the stores that the model stands for.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Whether `publish` may lose against another attempt of the generation.
    pub arbitrates: bool,
    /// Largest chunk, in bytes.
    pub max_chunk_bytes: u64,
    /// The class in manifests.
    pub class: ClassAchieved,
}

/// One subpartition: the bytes from its floor to its tail.
#[derive(Debug, Clone, Default)]
pub struct Lane {
    start: u64,
    floor: u64,
    held: BytesMut,
    digest: Digest,
    sent: u64,
    /// Where pieces ended.
    ends: BTreeSet<u64>,
}

impl Lane {
    fn starting_at(start: u64) -> Self {
        Self { start, floor: start, held: BytesMut::new(), digest: Digest::EMPTY, sent: start, ends: BTreeSet::new() }
    }

    /// First byte not yet written.
    #[must_use]
    pub fn tail(&self) -> u64 {
        self.floor + self.held.len() as u64
    }

    /// First byte still held.
    #[must_use]
    pub const fn floor(&self) -> u64 {
        self.floor
    }

    /// The bytes of `[start, end)`, which must be held.
    #[must_use]
    pub fn slice(&self, start: u64, end: u64) -> &[u8] {
        let at = |offset: u64| usize::try_from(offset - self.floor).unwrap_or(usize::MAX);
        &self.held[at(start)..at(end)]
    }

    /// Lets the bytes below `floor` go; returns how many.
    fn raise_floor(&mut self, floor: u64) -> u64 {
        let freed = floor.min(self.tail()).saturating_sub(self.floor);
        let _ = self.held.split_to(usize::try_from(freed).unwrap_or(0));
        self.floor += freed;
        freed
    }

    fn append(&mut self, start: u64, bytes: &Bytes) -> Answer<u64> {
        let tail = self.tail();
        if start > tail {
            return Err(StoreErrorKind::OffsetMismatch { expected: Offset::new(tail) });
        }
        if start < self.floor {
            return Err(StoreErrorKind::BelowFloor { floor: Offset::new(self.floor) });
        }
        let repeated = (tail - start).min(bytes.len() as u64);
        let (old, new) = bytes.split_at(usize::try_from(repeated).unwrap_or(usize::MAX));
        if !old.is_empty() && self.slice(start, start + repeated) != old {
            return Err(StoreErrorKind::ContentMismatch { expected: Offset::new(tail) });
        }
        self.held.extend_from_slice(new);
        self.digest = self.digest.followed_by(Digest::of(new)).ok_or(StoreErrorKind::Internal)?;
        self.ends.insert(self.tail());
        Ok(new.len() as u64)
    }
}

/// One attempt.
#[derive(Debug, Clone)]
pub struct Entry {
    spec: Arc<DatasetSpec>,
    state: AttemptState,
    fenced_by: Option<AttemptId>,
    lanes: BTreeMap<u32, Lane>,
    manifest: Option<Arc<SealManifest>>,
    positions: BTreeMap<(ConsumerId, u32), u64>,
    checkpoint: Option<u64>,
}

impl Entry {
    fn new(request: &OpenRequest) -> Self {
        let lanes = request.starts.iter().map(|(index, start)| (index.get(), Lane::starting_at(start.get())));
        Self {
            spec: request.spec.clone(),
            state: AttemptState::Open,
            fenced_by: None,
            lanes: lanes.collect(),
            manifest: None,
            positions: BTreeMap::new(),
            checkpoint: None,
        }
    }

    /// The dataset it belongs to.
    #[must_use]
    pub fn spec(&self) -> &DatasetSpec {
        &self.spec
    }

    /// The state.
    #[must_use]
    pub const fn state(&self) -> AttemptState {
        self.state
    }

    /// Bytes held.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.lanes.values().map(|lane| lane.held.len() as u64).sum()
    }

    /// Tail of a subpartition, 0 when nothing was written there.
    #[must_use]
    pub fn tail(&self, index: u32) -> u64 {
        self.lanes.get(&index).map_or(0, Lane::tail)
    }

    /// Whether a piece that was taken ended at an offset, or the subpartition starts there.
    #[must_use]
    pub fn is_end_of_piece(&self, index: u32, offset: u64) -> bool {
        self.lanes.get(&index).map_or(offset == 0, |lane| offset == lane.start || lane.ends.contains(&offset))
    }

    fn ended(&self) -> Option<StoreErrorKind> {
        match self.state {
            AttemptState::Aborted => Some(StoreErrorKind::Aborted),
            AttemptState::Released => Some(StoreErrorKind::Released),
            AttemptState::Fenced => Some(StoreErrorKind::Fenced { by: self.fenced_by.unwrap_or(AttemptId::new(0, 0)) }),
            AttemptState::Open | AttemptState::Prepared | AttemptState::Sealed | AttemptState::Lost => None,
        }
    }

    fn end_as(&mut self, event: AttemptEvent) {
        if let Ok(state) = self.state.after(event) {
            self.state = state;
            self.lanes.clear();
        }
    }

    fn tails(&self) -> AttemptTails {
        let tails = self.lanes.iter().filter(|(_, lane)| lane.tail() > 0);
        let tails = tails.map(|(index, lane)| (SubpartitionIndex::new(*index), Offset::new(lane.tail()))).collect();
        AttemptTails { state: self.state, tails }
    }

    /// Lengths and digests of all that was written.
    #[must_use]
    pub fn table(&self) -> SubpartitionTable {
        let entries = self.lanes.iter().map(|(index, lane)| (SubpartitionIndex::new(*index), lane.digest));
        SubpartitionTable::new(self.spec.stored_subpartitions(), entries).unwrap_or_default()
    }

    fn stored_index(&self, logical: u32) -> Answer<u32> {
        if logical >= self.spec.n_subpartitions {
            return Err(StoreErrorKind::NoSuchSubpartition { count: self.spec.n_subpartitions });
        }
        Ok(if self.spec.is_broadcast { 0 } else { logical })
    }

    /// The lowest offset that any reader may still need of a stored subpartition.
    fn needed_from(&self, stored: u32) -> u64 {
        let logical = if self.spec.is_broadcast { 0..self.spec.n_subpartitions } else { stored..stored + 1 };
        let of_group =
            |group: &ConsumerId| logical.clone().map(|index| self.positions.get(&(group.clone(), index)).copied().unwrap_or(0)).min();
        self.spec.groups.iter().filter_map(of_group).min().unwrap_or(0)
    }

    /// Takes positions of readers, all or none, and moves the floors of what was named.
    fn take_positions(&mut self, positions: &[(ConsumerId, SubpartitionIndex, Offset)], moves_floors: bool) -> Answer<FloorReport> {
        for (group, index, offset) in positions {
            if !self.spec.groups.contains(group) {
                return Err(StoreErrorKind::NotFound);
            }
            let tail = self.lanes.get(&self.stored_index(index.get())?).map_or(0, Lane::tail);
            if offset.get() > tail {
                return Err(StoreErrorKind::BeyondEnd { end: Offset::new(tail) });
            }
        }
        let mut report = FloorReport::default();
        for (group, index, offset) in positions {
            let position = self.positions.entry((group.clone(), index.get())).or_default();
            *position = offset.get().max(*position);
        }
        let mut named: Vec<_> = positions.iter().map(|(_, index, _)| *index).collect();
        named.sort_unstable();
        named.dedup();
        for index in named {
            let stored = self.stored_index(index.get())?;
            let needed = if moves_floors { self.needed_from(stored) } else { 0 };
            if let Some(lane) = self.lanes.get_mut(&stored) {
                report.freed_bytes += lane.raise_floor(needed);
            }
            let floor = self.lanes.get(&stored).map_or(0, Lane::floor);
            report.floors.push((index, Offset::new(floor)));
        }
        Ok(report)
    }
}

/// All attempts of one store.
#[derive(Debug, Clone)]
pub struct Model {
    rules: Rules,
    entries: BTreeMap<AttemptKey, Entry>,
    fences: BTreeMap<PartitionKey, AttemptId>,
}

impl Model {
    /// Nothing is held.
    #[must_use]
    pub const fn new(rules: Rules) -> Self {
        Self { rules, entries: BTreeMap::new(), fences: BTreeMap::new() }
    }

    /// The attempts that are known.
    pub fn entries(&self) -> impl Iterator<Item = (&AttemptKey, &Entry)> {
        self.entries.iter()
    }

    /// An attempt, if it is known.
    #[must_use]
    pub fn entry(&self, attempt: &AttemptKey) -> Option<&Entry> {
        self.entries.get(attempt)
    }

    fn fence_of(&self, attempt: &AttemptKey) -> Option<StoreErrorKind> {
        let by = *self.fences.get(&attempt.partition)?;
        (attempt.attempt.generation < by.generation).then_some(StoreErrorKind::Fenced { by })
    }

    /// The attempt, when it has not ended.
    pub fn live(&mut self, attempt: &AttemptKey) -> Answer<&mut Entry> {
        let fence = self.fence_of(attempt);
        match self.entries.get_mut(attempt) {
            Some(entry) => entry.ended().map_or(Ok(entry), Err),
            None => Err(fence.unwrap_or(StoreErrorKind::NotFound)),
        }
    }

    /// `PartitionStore::open`.
    pub fn open(&mut self, request: &OpenRequest) -> Answer<AttemptTails> {
        match self.live(&request.attempt) {
            Ok(entry) => Ok(entry.tails()),
            Err(StoreErrorKind::NotFound) => {
                let entry = Entry::new(request);
                let tails = entry.tails();
                self.entries.insert(request.attempt.clone(), entry);
                Ok(tails)
            }
            Err(kind) => Err(kind),
        }
    }

    /// `PartitionStore::tails`.
    pub fn tails(&mut self, attempt: &AttemptKey) -> Answer<AttemptTails> {
        self.live(attempt).map(|entry| entry.tails())
    }

    /// `PartitionStore::bounds`.
    pub fn bounds(&mut self, attempt: &AttemptKey, index: SubpartitionIndex) -> Answer<SubpartitionBounds> {
        let entry = self.live(attempt)?;
        let count = entry.spec.stored_subpartitions();
        if index.get() >= count {
            return Err(StoreErrorKind::NoSuchSubpartition { count });
        }
        let (floor, tail) = entry.lanes.get(&index.get()).map_or((0, 0), |lane| (lane.floor(), lane.tail()));
        Ok(SubpartitionBounds { state: entry.state, floor: Offset::new(floor), tail: Offset::new(tail) })
    }

    /// `PartitionStore::append`: one piece. Answers the tail after it and the number of new bytes.
    pub fn append(&mut self, attempt: &AttemptKey, piece: &Piece) -> Answer<(u64, u64)> {
        let limit = self.rules.max_chunk_bytes;
        let entry = self.live(attempt)?;
        if entry.state != AttemptState::Open {
            return Err(StoreErrorKind::AlreadySealed);
        }
        let count = entry.spec.stored_subpartitions();
        if piece.subpartition.get() >= count {
            return Err(StoreErrorKind::NoSuchSubpartition { count });
        }
        if piece.chunk.length() > limit {
            return Err(StoreErrorKind::TooLarge { requested: piece.chunk.length(), limit });
        }
        let lane = entry.lanes.entry(piece.subpartition.get()).or_default();
        let start = piece.start.map_or(lane.tail(), Offset::get);
        let new_bytes = lane.append(start, piece.chunk.bytes())?;
        Ok((lane.tail(), new_bytes))
    }

    /// `PartitionStore::prepare`.
    pub fn prepare(&mut self, attempt: &AttemptKey, expected: Option<&SubpartitionTable>) -> Answer<Arc<SealManifest>> {
        let class = self.rules.class;
        let entry = self.live(attempt)?;
        let table = entry.manifest.as_ref().map_or_else(|| entry.table(), |manifest| manifest.table.clone());
        if let Some(expected) = expected.filter(|expected| **expected != table) {
            return Err(first_difference(&table, expected));
        }
        if entry.state == AttemptState::Open {
            entry.state = AttemptState::Prepared;
            let node = NodeId::new("model").map_err(|_| StoreErrorKind::Internal)?;
            let manifest = SealManifest { attempt: attempt.clone(), table, class, node, life: NodeLife::new(1), sealed_at_ms: 0 };
            entry.manifest = Some(Arc::new(manifest));
        }
        entry.manifest.clone().ok_or(StoreErrorKind::Internal)
    }

    /// `PartitionStore::publish`.
    pub fn publish(&mut self, attempt: &AttemptKey) -> Answer<SealOutcome> {
        let winner = self.winner(&attempt.partition, attempt.attempt.generation).filter(|winner| winner.attempt != *attempt);
        let arbitrates = self.rules.arbitrates;
        let entry = self.live(attempt)?;
        if entry.state == AttemptState::Open {
            return Err(StoreErrorKind::NotSealed);
        }
        if let Some(winner) = winner.filter(|_| arbitrates && entry.spec.arbitration == Arbitration::Store) {
            entry.end_as(AttemptEvent::Abort);
            return Ok(SealOutcome::Lost(winner));
        }
        entry.state = AttemptState::Sealed;
        entry.manifest.clone().map(SealOutcome::Won).ok_or(StoreErrorKind::Internal)
    }

    fn winner(&self, partition: &PartitionKey, generation: u32) -> Option<Arc<SealManifest>> {
        let mut sealed = self.entries.iter().filter(|(key, entry)| {
            key.partition == *partition && key.attempt.generation == generation && entry.state == AttemptState::Sealed
        });
        sealed.next().and_then(|(_, entry)| entry.manifest.clone())
    }

    /// `PartitionStore::locate`.
    #[must_use]
    pub fn locate(&self, partition: &PartitionKey, from_generation: u32) -> Option<Arc<SealManifest>> {
        let of_partition = |key: &&AttemptKey| key.partition == *partition && key.attempt.generation >= from_generation;
        let mut generations: Vec<_> = self.entries.keys().filter(of_partition).map(|key| key.attempt.generation).collect();
        generations.dedup();
        generations.into_iter().rev().find_map(|generation| self.winner(partition, generation))
    }

    /// `PartitionStore::abort`.
    pub fn abort(&mut self, attempt: &AttemptKey) -> Answer<()> {
        match self.live(attempt) {
            Ok(entry) if entry.state == AttemptState::Sealed => Err(StoreErrorKind::AlreadySealed),
            Ok(entry) => {
                entry.end_as(AttemptEvent::Abort);
                Ok(())
            }
            Err(_) => Ok(()),
        }
    }

    /// `PartitionStore::read` of sealed content: the bytes and their digest.
    pub fn read(&mut self, attempt: &AttemptKey, index: u32, start: u64, end: Option<u64>) -> Answer<(Bytes, Digest)> {
        let entry = self.live(attempt)?;
        if entry.state != AttemptState::Sealed {
            return Err(StoreErrorKind::NotSealed);
        }
        let bytes = entry.read(index, start, end)?;
        Ok((bytes, entry.lanes.get(&index).map_or(Digest::EMPTY, |lane| lane.digest)))
    }

    /// `PartitionStore::stat`.
    pub fn stat(&self, attempt: &AttemptKey) -> Answer<AttemptStat> {
        let entry = self.entries.get(attempt).ok_or(StoreErrorKind::NotFound)?;
        let offset = |(index, at): (&u32, u64)| (SubpartitionIndex::new(*index), Offset::new(at));
        let floors = entry.lanes.iter().map(|(index, lane)| (index, lane.floor)).filter(|(_, floor)| *floor > 0).map(offset);
        let sent = entry.lanes.iter().filter(|(_, lane)| lane.sent > lane.start).map(|(index, lane)| (index, lane.sent)).map(offset);
        let is_pipelined = matches!(entry.spec.kind, DatasetKind::Pipelined(_));
        Ok(AttemptStat {
            state: entry.state,
            total_bytes: entry.lanes.values().map(|lane| lane.tail() - lane.start).sum(),
            floors: floors.collect(),
            sent: if is_pipelined { sent.collect() } else { Vec::new() },
        })
    }

    /// `PartitionStore::manifest`.
    pub fn manifest(&mut self, attempt: &AttemptKey) -> Answer<Arc<SealManifest>> {
        let entry = self.live(attempt)?;
        entry.manifest.clone().filter(|_| entry.state == AttemptState::Sealed).ok_or(StoreErrorKind::NotSealed)
    }

    /// `PartitionStore::acknowledge`.
    pub fn acknowledge(&mut self, request: &AcknowledgeRequest) -> Answer<FloorReport> {
        let entry = self.live(&request.attempt)?;
        if !entry.spec.groups.contains(&request.group) {
            return Err(StoreErrorKind::NotFound);
        }
        let positions: Vec<_> = request.offsets.iter().map(|(index, offset)| (request.group.clone(), *index, *offset)).collect();
        if entry.spec.kind == DatasetKind::Pipelined(Retention::SinceCheckpoint) {
            // Acknowledgements do not move these floors; they are checked all the same.
            return entry.clone().take_positions(&positions, false);
        }
        let moves_floors = entry.spec.kind == DatasetKind::Pipelined(Retention::UntilAcknowledged);
        entry.take_positions(&positions, moves_floors)
    }

    /// `PartitionStore::complete_checkpoint`.
    pub fn complete_checkpoint(&mut self, request: &CheckpointRequest) -> Answer<FloorReport> {
        let entry = self.live(&request.attempt)?;
        if entry.checkpoint.is_some_and(|last| request.checkpoint <= last) {
            return entry.clone().take_positions(&[], false);
        }
        let report = entry.take_positions(&request.need, true)?;
        entry.checkpoint = Some(request.checkpoint);
        Ok(report)
    }

    /// `PartitionStore::release`.
    pub fn release(&mut self, scope: &ReleaseScope) -> ReleaseReport {
        let mut report = ReleaseReport::default();
        if let ReleaseScope::GenerationsBelow { partition, by } = scope {
            let fence = self.fences.entry(partition.clone()).or_insert(*by);
            *fence = (*fence).max(*by);
        }
        for (key, entry) in &mut self.entries {
            if !is_inside(key, scope) || entry.ended().is_some() {
                continue;
            }
            report.n_attempts += 1;
            report.bytes += entry.held_bytes();
            if let ReleaseScope::GenerationsBelow { by, .. } = scope {
                entry.fenced_by = Some(*by);
                entry.end_as(AttemptEvent::Fence);
            } else {
                entry.end_as(AttemptEvent::Release);
            }
        }
        report
    }

    /// What is there after the medium was opened again: sealed attempts only. Answers how many
    /// others were dropped.
    pub fn reopen(&mut self) -> u64 {
        let unsealed = |entry: &Entry| matches!(entry.state, AttemptState::Open | AttemptState::Prepared);
        let n_dropped = self.entries.values().filter(|entry| unsealed(entry)).count() as u64;
        self.entries.retain(|_, entry| entry.state == AttemptState::Sealed);
        self.fences.clear();
        n_dropped
    }

    /// Bytes held for one incarnation of a job.
    #[must_use]
    pub fn held(&self, job: &JobId, incarnation: JobIncarnation) -> u64 {
        let of_job = |key: &AttemptKey| key.job() == job && key.partition.dataset.incarnation == incarnation;
        self.entries.iter().filter(|(key, _)| of_job(key)).map(|(_, entry)| entry.held_bytes()).sum()
    }

    /// Lets bytes go that a best-effort dataset has sent already. Answers how many.
    pub fn evict_sent(&mut self, attempt: &AttemptKey) -> u64 {
        let Ok(entry) = self.live(attempt) else { return 0 };
        entry.lanes.values_mut().map(|lane| lane.raise_floor(lane.sent)).sum()
    }
}

impl Entry {
    /// The bytes of a range, clipped to the tail.
    pub fn read(&self, index: u32, start: u64, end: Option<u64>) -> Answer<Bytes> {
        let count = self.spec.stored_subpartitions();
        if index >= count {
            return Err(StoreErrorKind::NoSuchSubpartition { count });
        }
        let empty = Lane::default();
        let lane = self.lanes.get(&index).unwrap_or(&empty);
        if start < lane.floor {
            return Err(StoreErrorKind::BelowFloor { floor: Offset::new(lane.floor) });
        }
        if start > lane.tail() {
            return Err(StoreErrorKind::BeyondEnd { end: Offset::new(lane.tail()) });
        }
        let end = end.unwrap_or(u64::MAX).min(lane.tail()).max(start);
        Ok(Bytes::copy_from_slice(lane.slice(start, end)))
    }

    /// Says that the bytes up to `end` were handed to a reader.
    pub fn mark_sent(&mut self, index: u32, end: u64) {
        if let Some(lane) = self.lanes.get_mut(&index) {
            lane.sent = lane.sent.max(end);
        }
    }
}

/// Whether an attempt lies inside a scope.
#[must_use]
pub fn is_inside(attempt: &AttemptKey, scope: &ReleaseScope) -> bool {
    let dataset = &attempt.partition.dataset;
    match scope {
        ReleaseScope::Job { job, incarnation } => dataset.job == *job && dataset.incarnation == *incarnation,
        ReleaseScope::Dataset(key) => dataset == key,
        ReleaseScope::Partition(key) => attempt.partition == *key,
        ReleaseScope::Attempt(key) => attempt == key,
        ReleaseScope::GenerationsBelow { partition, by } => attempt.partition == *partition && attempt.attempt.generation < by.generation,
    }
}

fn first_difference(held: &SubpartitionTable, stated: &SubpartitionTable) -> StoreErrorKind {
    let mut indices: Vec<_> = held.non_empty().chain(stated.non_empty()).map(|(index, _)| index).collect();
    indices.sort_unstable();
    let digests = |index: SubpartitionIndex| (held.digest(index).unwrap_or_default(), stated.digest(index).unwrap_or_default());
    let first = indices.into_iter().find(|index| digests(*index).0 != digests(*index).1);
    let index = first.unwrap_or(SubpartitionIndex::new(0));
    let (held, stated) = digests(index);
    StoreErrorKind::DigestMismatch { subpartition: index.get(), held, stated }
}

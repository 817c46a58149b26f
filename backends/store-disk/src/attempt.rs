//! One attempt: its buffer, its state, and what of it is on disk.
//!
//! All changes happen under one short lock; files are written by whoever holds the attempt's turn.
//! While a writer is at work (`is_busy`), an end of the attempt leaves the files to it.

use crate::account::JobAccount;
use crate::layout::{FileId, FileSpan, Layout, Region, Run, RunPart};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store_api::table::TableError;
use store_api::{
    AttemptId, AttemptKey, AttemptState, AttemptTails, Chunk, Digest, LossCause, Offset, Operation, Permit, Piece, SealManifest,
    StoreError, StoreErrorKind, SubpartitionBounds, SubpartitionIndex, SubpartitionTable,
};

/// Chunks below this are copied together, so that a tiny chunk costs its bytes and no more.
const SMALL_CHUNK_BYTES: usize = 4096;
/// Size at which copied chunks become a piece of their own.
const GATHERED_BYTES: usize = 64 * 1024;

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Aborted,
    Fenced(AttemptId),
    Released,
    Lost(LossCause),
}

impl End {
    pub(crate) const fn kind(self) -> StoreErrorKind {
        match self {
            Self::Aborted => StoreErrorKind::Aborted,
            Self::Fenced(by) => StoreErrorKind::Fenced { by },
            Self::Released => StoreErrorKind::Released,
            Self::Lost(cause) => StoreErrorKind::Lost { cause },
        }
    }
}

/// Where an attempt stands; finer than [`AttemptState`] because some steps take a while.
#[derive(Debug, Clone)]
pub(crate) enum Phase {
    Open,
    Preparing,
    Prepared(Arc<SealManifest>),
    /// Its row is on the way into the index.
    Publishing(Arc<SealManifest>),
    Sealed(Arc<SealManifest>),
    /// Sealed once; its bytes are gone. Its row is kept until it is released.
    Gone(Arc<SealManifest>, LossCause),
    Ended(End),
}

/// A data file that an attempt writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnFile {
    /// Index into the directory set.
    pub(crate) directory: usize,
    pub(crate) span: FileSpan,
    /// Bytes that are synced.
    pub(crate) synced: u64,
    /// Whether its name is durable.
    pub(crate) is_named: bool,
    /// It takes no more bytes: its disk is full or failed.
    pub(crate) is_closed: bool,
}

/// One subpartition of an open attempt.
#[derive(Debug, Default)]
struct Buffer {
    digest: Digest,
    /// Offset up to which bytes are on disk; those behind it are in memory.
    spilled: u64,
    regions: Vec<Region>,
    pieces: VecDeque<Bytes>,
    small: BytesMut,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) phase: Phase,
    buffers: BTreeMap<u32, Buffer>,
    permit: Permit,
    pub(crate) files: Vec<OwnFile>,
    crcs: Vec<u32>,
    memory_bytes: u64,
    disk_bytes: u64,
    pub(crate) layout: Option<Arc<Layout>>,
    is_busy: bool,
    /// A row may be in the index.
    pub(crate) has_row: bool,
    /// Found damaged by a read; other subpartitions are still served.
    damage: Option<LossCause>,
}

/// An attempt.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) key: AttemptKey,
    pub(crate) n_subpartitions: u32,
    pub(crate) account: Arc<JobAccount>,
    /// Held by whoever writes files of this attempt or changes its row.
    pub(crate) turn: tokio::sync::Mutex<()>,
    pub(crate) inner: Mutex<Inner>,
}

/// What has to be compared on disk before a repeat is accepted.
#[derive(Debug)]
pub(crate) struct Compare {
    pub(crate) regions: Vec<Region>,
    pub(crate) crcs: Vec<u32>,
    pub(crate) files: Vec<(usize, FileId)>,
    pub(crate) end: u64,
}

/// What applying a piece came to.
#[derive(Debug)]
pub(crate) enum Applied {
    /// The new tail and the number of new bytes.
    Done(u64, u64),
    /// Bytes on disk have to be compared first.
    Needs(Compare),
}

/// A seal that came too late.
#[derive(Debug)]
pub(crate) struct EndedMeanwhile {
    pub(crate) error: StoreError,
    /// Files to remove.
    pub(crate) files: Vec<(usize, FileId)>,
}

/// Why an attempt was not aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotAborted {
    /// It is sealed.
    Sealed,
    /// Its row is on the way; ask again once the turn is free.
    Publishing,
}

/// What an ended attempt leaves to be done.
#[derive(Debug, Default)]
pub(crate) struct Remains {
    /// Whether it was alive.
    pub(crate) was_alive: bool,
    /// Bytes that were held.
    pub(crate) bytes: u64,
    /// Files to remove; empty when a writer is at work and will do it.
    pub(crate) files: Vec<(usize, FileId)>,
    /// Whether its row has to go.
    pub(crate) has_row: bool,
}

impl Attempt {
    /// An open attempt without bytes.
    pub(crate) fn open(key: AttemptKey, n_subpartitions: u32, account: Arc<JobAccount>) -> Self {
        Self::new(key, n_subpartitions, account, Phase::Open, None, Vec::new())
    }

    /// An attempt that was found in the index.
    pub(crate) fn recovered(
        manifest: Arc<SealManifest>,
        layout: Layout,
        files: Vec<OwnFile>,
        account: Arc<JobAccount>,
        lost: Option<LossCause>,
    ) -> Self {
        let phase = match lost {
            Some(cause) => Phase::Gone(manifest.clone(), cause),
            None => Phase::Sealed(manifest.clone()),
        };
        let attempt = Self::new(manifest.attempt.clone(), manifest.table.count(), account, phase, Some(Arc::new(layout)), files);
        {
            let mut inner = attempt.inner.lock();
            inner.has_row = true;
            inner.disk_bytes = if lost.is_some() { 0 } else { manifest.table.total_bytes() };
            attempt.account.disk.fetch_add(inner.disk_bytes, Ordering::Relaxed);
        }
        attempt
    }

    fn new(
        key: AttemptKey,
        n_subpartitions: u32,
        account: Arc<JobAccount>,
        phase: Phase,
        layout: Option<Arc<Layout>>,
        files: Vec<OwnFile>,
    ) -> Self {
        let inner = Inner {
            phase,
            buffers: BTreeMap::new(),
            permit: Permit::none(),
            files,
            crcs: Vec::new(),
            memory_bytes: 0,
            disk_bytes: 0,
            layout,
            is_busy: false,
            has_row: false,
            damage: None,
        };
        Self { key, n_subpartitions, account, turn: tokio::sync::Mutex::new(()), inner: Mutex::new(inner) }
    }

    /// An error about this attempt.
    pub(crate) fn refuse(&self, kind: StoreErrorKind, operation: Operation) -> StoreError {
        StoreError::new(kind, operation, &self.key)
    }

    /// Why it takes no bytes; `None` when it does.
    pub(crate) fn append_refusal(&self) -> Option<StoreErrorKind> {
        append_refusal(&self.inner.lock().phase)
    }

    /// The error of an attempt that has ended or is gone; `None` while it is alive.
    pub(crate) fn end_kind(&self) -> Option<StoreErrorKind> {
        match self.inner.lock().phase {
            Phase::Ended(end) => Some(end.kind()),
            Phase::Gone(_, cause) => Some(StoreErrorKind::Lost { cause }),
            _ => None,
        }
    }

    /// Applies one piece. `equal_until` is the offset up to which the piece was compared with the
    /// disk and found equal.
    pub(crate) fn apply(&self, piece: &Piece, permit: &mut Permit, equal_until: u64) -> Result<Applied, StoreError> {
        let refuse = |kind| Err(self.refuse(kind, Operation::Append));
        let mut inner = self.inner.lock();
        if let Some(kind) = append_refusal(&inner.phase) {
            return refuse(kind);
        }
        let index = piece.subpartition.get();
        if index >= self.n_subpartitions {
            return refuse(StoreErrorKind::NoSuchSubpartition { count: self.n_subpartitions });
        }
        let tail = inner.buffers.get(&index).map_or(0, |buffer| buffer.digest.length);
        let start = piece.start.map_or(tail, Offset::get);
        let expected = Offset::new(tail);
        if start > tail {
            return refuse(StoreErrorKind::OffsetMismatch { expected });
        }
        if piece.chunk.is_empty() {
            return Ok(Applied::Done(tail, 0));
        }
        let bytes = piece.chunk.bytes();
        let n_old = usize::try_from(tail - start).unwrap_or(usize::MAX).min(bytes.len());
        if n_old > 0
            && let Some(buffer) = inner.buffers.get(&index)
        {
            let old = bytes.get(..n_old).unwrap_or_default();
            let Some(old_end) = start.checked_add(n_old as u64) else { return refuse(StoreErrorKind::Internal) };
            if !buffer.equals(start, old) {
                return refuse(StoreErrorKind::ContentMismatch { expected });
            }
            let on_disk_end = old_end.min(buffer.spilled);
            if start < on_disk_end && equal_until < on_disk_end {
                let files = inner.files.iter().map(|file| (file.directory, file.span.file)).collect();
                return Ok(Applied::Needs(Compare { regions: buffer.regions.clone(), crcs: inner.crcs.clone(), files, end: on_disk_end }));
            }
        }
        if n_old == bytes.len() {
            return Ok(Applied::Done(tail, 0));
        }
        let chunk = if n_old == 0 { piece.chunk.clone() } else { Chunk::new(bytes.slice(n_old..)) };
        self.add(&mut inner, index, chunk, permit)
    }

    fn add(&self, inner: &mut Inner, index: u32, chunk: Chunk, permit: &mut Permit) -> Result<Applied, StoreError> {
        let length = chunk.length();
        let digest = inner.buffers.get(&index).map_or(Digest::EMPTY, |buffer| buffer.digest);
        let Some(digest) = digest.followed_by_bytes(chunk.bytes(), chunk.crc()) else {
            let limit = u64::MAX - digest.length;
            return Err(self.refuse(StoreErrorKind::TooLarge { requested: length, limit }, Operation::Append));
        };
        let kept = match permit.split(length) {
            Some(kept) => kept,
            // The caller reserved less than it brings.
            None => self.account.budget.try_reserve(length).map_err(|_| {
                let retry_after = self.account.budget.retry_after(length);
                self.refuse(StoreErrorKind::Overloaded { retry_after }, Operation::Append)
            })?,
        };
        let buffer = inner.buffers.entry(index).or_default();
        buffer.digest = digest;
        buffer.push(chunk.into_bytes());
        inner.permit.merge(kept);
        inner.memory_bytes += length;
        self.account.memory.fetch_add(length, Ordering::Relaxed);
        Ok(Applied::Done(digest.length, length))
    }

    /// Where it stands.
    pub(crate) fn tails(&self, operation: Operation) -> Result<AttemptTails, StoreError> {
        let inner = self.inner.lock();
        let state = inner.state();
        let tails = match &inner.phase {
            Phase::Ended(end) => return Err(self.refuse(end.kind(), operation)),
            Phase::Gone(manifest, _) | Phase::Sealed(manifest) => {
                manifest.table.non_empty().map(|(index, digest)| (index, Offset::new(digest.length))).collect()
            }
            _ => inner.buffers.iter().map(|(index, buffer)| (SubpartitionIndex::new(*index), Offset::new(buffer.digest.length))).collect(),
        };
        Ok(AttemptTails { state, tails })
    }

    /// Where one subpartition stands.
    pub(crate) fn bounds(&self, index: SubpartitionIndex, operation: Operation) -> Result<SubpartitionBounds, StoreError> {
        let inner = self.inner.lock();
        let length = match &inner.phase {
            Phase::Ended(end) => return Err(self.refuse(end.kind(), operation)),
            _ if index.get() >= self.n_subpartitions => {
                return Err(self.refuse(StoreErrorKind::NoSuchSubpartition { count: self.n_subpartitions }, operation));
            }
            Phase::Gone(manifest, _) | Phase::Sealed(manifest) => manifest.table.digest(index).map_or(0, |digest| digest.length),
            _ => inner.buffers.get(&index.get()).map_or(0, |buffer| buffer.digest.length),
        };
        Ok(SubpartitionBounds { state: inner.state(), floor: Offset::ZERO, tail: Offset::new(length) })
    }

    /// Its state and its bytes.
    pub(crate) fn stat(&self) -> (AttemptState, u64) {
        let inner = self.inner.lock();
        let bytes = match &inner.phase {
            Phase::Sealed(manifest) | Phase::Gone(manifest, _) => manifest.table.total_bytes(),
            Phase::Ended(_) => 0,
            _ => inner.buffers.values().fold(0, |sum, buffer| buffer.digest.length.saturating_add(sum)),
        };
        (inner.state(), bytes)
    }

    /// Bytes in memory that a write-out could free now.
    pub(crate) fn spillable_bytes(&self) -> u64 {
        let inner = self.inner.lock();
        if matches!(inner.phase, Phase::Open) && !inner.is_busy { inner.memory_bytes } else { 0 }
    }

    /// Starts a write-out of all that is in memory; `None` when there is nothing to write or the
    /// attempt takes no bytes. The caller holds the turn and calls [`Attempt::finish_run`] after.
    pub(crate) fn begin_spill(&self) -> Option<Run> {
        let mut inner = self.inner.lock();
        if !matches!(inner.phase, Phase::Open) || inner.memory_bytes == 0 {
            return None;
        }
        inner.is_busy = true;
        Some(inner.snapshot())
    }

    /// Starts the seal: no more appends from here on. `Err` when the table differs or the attempt
    /// has ended, `Ok(Err(manifest))` when it is prepared or sealed already.
    pub(crate) fn begin_prepare(&self, expected: Option<&SubpartitionTable>) -> Result<Result<Run, Arc<SealManifest>>, StoreError> {
        let mut inner = self.inner.lock();
        match &inner.phase {
            Phase::Prepared(manifest) | Phase::Publishing(manifest) | Phase::Sealed(manifest) => {
                let manifest = manifest.clone();
                self.compare(&manifest.table, expected)?;
                return Ok(Err(manifest));
            }
            Phase::Ended(end) => return Err(self.refuse(end.kind(), Operation::Prepare)),
            Phase::Gone(_, cause) => return Err(self.refuse(StoreErrorKind::Lost { cause: *cause }, Operation::Prepare)),
            // Callers hold the turn, so nobody else is preparing.
            Phase::Open | Phase::Preparing => {}
        }
        let table = self.table(&inner)?;
        self.compare(&table, expected)?;
        inner.phase = Phase::Preparing;
        inner.is_busy = true;
        Ok(Ok(inner.snapshot()))
    }

    fn table(&self, inner: &Inner) -> Result<SubpartitionTable, StoreError> {
        let entries = inner.buffers.iter().map(|(index, buffer)| (SubpartitionIndex::new(*index), buffer.digest));
        SubpartitionTable::new(self.n_subpartitions, entries)
            .map_err(|error: TableError| self.refuse(StoreErrorKind::Internal, Operation::Prepare).with_source(error))
    }

    fn compare(&self, held: &SubpartitionTable, expected: Option<&SubpartitionTable>) -> Result<(), StoreError> {
        let Some(stated) = expected.filter(|stated| *stated != held) else { return Ok(()) };
        let named = held.non_empty().chain(stated.non_empty()).map(|(index, _)| index);
        let digests = |index| (held.digest(index).unwrap_or_default(), stated.digest(index).unwrap_or_default());
        let differs = named.filter(|index| digests(*index).0 != digests(*index).1).min();
        let Some(index) = differs else {
            // Only the number of subpartitions differs.
            return Err(self.refuse(StoreErrorKind::NoSuchSubpartition { count: self.n_subpartitions }, Operation::Prepare));
        };
        let (held, stated) = digests(index);
        Err(self.refuse(StoreErrorKind::DigestMismatch { subpartition: index.get(), held, stated }, Operation::Prepare))
    }

    /// Takes a written run in: its bytes are on disk from here on, their memory is free. `files` is
    /// the list of files with the one written to at `file`, `offset` where the run starts.
    fn take_in(&self, inner: &mut Inner, run: &Run, file: u16, offset: u64) {
        let (regions, crcs) = run.regions(file, offset, inner.crcs.len());
        inner.crcs.extend(crcs);
        for (part, region) in run.parts.iter().zip(regions) {
            if let Some(buffer) = inner.buffers.get_mut(&part.subpartition) {
                buffer.pieces.drain(..part.pieces.len().min(buffer.pieces.len()));
                buffer.spilled += part.length;
                buffer.regions.push(region);
            }
        }
        drop(inner.permit.split(run.length));
        inner.memory_bytes -= run.length.min(inner.memory_bytes);
        inner.disk_bytes += run.length;
        self.account.memory.fetch_sub(run.length, Ordering::Relaxed);
        self.account.disk.fetch_add(run.length, Ordering::Relaxed);
    }

    /// Ends a write-out. `written` says where the run went; `None` when it failed and everything
    /// stays as it is. The files are those after the write. Answers the files to remove when the
    /// attempt has ended meanwhile.
    pub(crate) fn finish_run(&self, run: &Run, files: Vec<OwnFile>, written: Option<(u16, u64)>) -> Vec<(usize, FileId)> {
        let mut inner = self.inner.lock();
        inner.is_busy = false;
        inner.files = files;
        if matches!(inner.phase, Phase::Ended(_)) {
            return inner.take_files();
        }
        if matches!(inner.phase, Phase::Preparing) {
            inner.phase = Phase::Open;
        }
        if let Some((file, offset)) = written {
            self.take_in(&mut inner, run, file, offset);
        }
        Vec::new()
    }

    /// Ends a seal that succeeded. `Err` with the files to remove when the attempt ended meanwhile.
    pub(crate) fn finish_prepare(
        &self,
        run: &Run,
        files: Vec<OwnFile>,
        written: Option<(u16, u64)>,
        manifest: impl FnOnce(SubpartitionTable) -> SealManifest,
    ) -> Result<Arc<SealManifest>, EndedMeanwhile> {
        let mut inner = self.inner.lock();
        inner.is_busy = false;
        inner.files = files;
        if let Phase::Ended(end) = inner.phase {
            return Err(EndedMeanwhile { error: self.refuse(end.kind(), Operation::Prepare), files: inner.take_files() });
        }
        let table = self.table(&inner).map_err(|error| EndedMeanwhile { error, files: Vec::new() })?;
        if let Some((file, offset)) = written {
            self.take_in(&mut inner, run, file, offset);
        }
        let regions = inner.buffers.values_mut().flat_map(|buffer| std::mem::take(&mut buffer.regions)).collect();
        let files = inner.files.iter().map(|file| file.span).collect();
        let layout = Layout { files, regions, crcs: std::mem::take(&mut inner.crcs) };
        inner.layout = Some(Arc::new(layout));
        let manifest = Arc::new(manifest(table));
        inner.phase = Phase::Prepared(manifest.clone());
        Ok(manifest)
    }

    /// Ends the attempt. Idempotent: the first end stays. Its memory is free at once.
    pub(crate) fn end(&self, end: End) -> Remains {
        self.end_locked(&mut self.inner.lock(), end)
    }

    /// Aborts the attempt; an attempt that has ended stays as it is. Errors: where it stands, when
    /// it is sealed or about to be.
    pub(crate) fn abort(&self) -> Result<Remains, NotAborted> {
        let mut inner = self.inner.lock();
        match inner.phase {
            Phase::Sealed(_) | Phase::Gone(..) => Err(NotAborted::Sealed),
            Phase::Publishing(_) => Err(NotAborted::Publishing),
            _ => Ok(self.end_locked(&mut inner, End::Aborted)),
        }
    }

    fn end_locked(&self, inner: &mut Inner, end: End) -> Remains {
        if matches!(inner.phase, Phase::Ended(_)) {
            return Remains::default();
        }
        let bytes = inner.memory_bytes + inner.disk_bytes;
        self.account.memory.fetch_sub(inner.memory_bytes, Ordering::Relaxed);
        self.account.disk.fetch_sub(inner.disk_bytes, Ordering::Relaxed);
        let has_row = inner.has_row || matches!(inner.phase, Phase::Publishing(_));
        inner.phase = Phase::Ended(end);
        inner.memory_bytes = 0;
        inner.disk_bytes = 0;
        inner.buffers = BTreeMap::new();
        inner.crcs = Vec::new();
        inner.layout = None;
        inner.permit = Permit::none();
        let files = if inner.is_busy { Vec::new() } else { inner.take_files() };
        Remains { was_alive: true, bytes, files, has_row }
    }

    /// Notes that a read found bytes gone or damaged.
    pub(crate) fn note_damage(&self, cause: LossCause) {
        self.inner.lock().damage.get_or_insert(cause);
    }
}

fn append_refusal(phase: &Phase) -> Option<StoreErrorKind> {
    match phase {
        Phase::Open => None,
        Phase::Preparing | Phase::Prepared(_) | Phase::Publishing(_) | Phase::Sealed(_) => Some(StoreErrorKind::AlreadySealed),
        Phase::Gone(_, cause) => Some(StoreErrorKind::Lost { cause: *cause }),
        Phase::Ended(end) => Some(end.kind()),
    }
}

impl Inner {
    fn state(&self) -> AttemptState {
        match &self.phase {
            Phase::Open | Phase::Preparing => AttemptState::Open,
            Phase::Prepared(_) | Phase::Publishing(_) => AttemptState::Prepared,
            Phase::Sealed(_) if self.damage.is_none() => AttemptState::Sealed,
            Phase::Sealed(_) | Phase::Gone(..) | Phase::Ended(End::Lost(_)) => AttemptState::Lost,
            Phase::Ended(End::Aborted) => AttemptState::Aborted,
            Phase::Ended(End::Fenced(_)) => AttemptState::Fenced,
            Phase::Ended(End::Released) => AttemptState::Released,
        }
    }

    fn snapshot(&mut self) -> Run {
        let mut run = Run::default();
        for (index, buffer) in &mut self.buffers {
            let pieces = buffer.gathered();
            let length: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
            if length > 0 {
                run.length += length;
                run.parts.push(RunPart { subpartition: *index, start: buffer.spilled, length, pieces });
            }
        }
        run
    }

    fn take_files(&mut self) -> Vec<(usize, FileId)> {
        std::mem::take(&mut self.files).into_iter().map(|file| (file.directory, file.span.file)).collect()
    }
}

impl Buffer {
    fn push(&mut self, bytes: Bytes) {
        if bytes.len() < SMALL_CHUNK_BYTES {
            self.small.extend_from_slice(&bytes);
            if self.small.len() >= GATHERED_BYTES {
                self.pieces.push_back(self.small.split().freeze());
            }
            return;
        }
        if !self.small.is_empty() {
            self.pieces.push_back(self.small.split().freeze());
        }
        self.pieces.push_back(bytes);
    }

    fn gathered(&mut self) -> Vec<Bytes> {
        if !self.small.is_empty() {
            self.pieces.push_back(std::mem::take(&mut self.small).freeze());
        }
        self.pieces.iter().cloned().collect()
    }

    /// Whether the part of `bytes` (at `start`) that is in memory equals what is held there.
    fn equals(&self, start: u64, bytes: &[u8]) -> bool {
        let mut at = self.spilled;
        let end = start.saturating_add(bytes.len() as u64);
        for held in self.pieces.iter().map(|piece| &piece[..]).chain([&self.small[..]]) {
            let held_end = at.saturating_add(held.len() as u64);
            let (from, to) = (start.max(at), end.min(held_end));
            if from < to && cut(held, from - at, to - at) != cut(bytes, from - start, to - start) {
                return false;
            }
            at = held_end;
        }
        true
    }
}

fn cut(bytes: &[u8], from: u64, to: u64) -> Option<&[u8]> {
    bytes.get(usize::try_from(from).ok()?..usize::try_from(to).ok()?)
}

//! One attempt as this process knows it: its state, its tails, and which of its bytes are where.
//!
//! Everything here is in memory and done under one short lock; what talks to the object store is in
//! [`crate::upload`], [`crate::seal`] and [`crate::release`].
//!
//! ```text
//!  append ─► buffer ─cut─► pending batches ─accepted─► content objects ─seal─► manifest
//!            (charged)      (charged)                   (memory given back)
//! ```

mod marks;

use crate::buffer::{Batch, Buffer};
use crate::error::BucketError;
use crate::layout::ContentName;
use crate::manifest::{Content, ObjectContent, Region, Sealed};
use marks::{Marks, Repeat};
use object_store::MultipartId;
use object_store::multipart::PartId;
use object_store::path::Path;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use store_api::{
    AttemptId, AttemptKey, AttemptState, AttemptTails, Digest, LossCause, Offset, Permit, Piece, SealManifest, StoreErrorKind,
    SubpartitionBounds, SubpartitionIndex, SubpartitionTable,
};
use tokio::sync::{OnceCell, watch};

/// Parts of a multipart upload after which the part size doubles.
const PARTS_PER_STEP: usize = 1000;
/// Most parts of one multipart upload: the limit of S3.
pub(crate) const MAX_PARTS: usize = 10_000;

/// How content is cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cutting {
    /// Bytes under one checksum.
    pub(crate) block_bytes: u32,
    /// Size of the first parts.
    pub(crate) part_bytes: u64,
    /// Size that parts grow to.
    pub(crate) max_part_bytes: u64,
    /// Whether the object store takes uploads in parts.
    pub(crate) has_parts: bool,
}

/// An upload in parts. Its id is drawn by whichever part is sent first.
#[derive(Debug, Default)]
pub(crate) struct Multipart {
    /// The id and the number of the note about the upload.
    pub(crate) id: OnceCell<(MultipartId, u64)>,
}

/// A content object that was begun.
#[derive(Debug, Clone)]
pub(crate) struct ContentObject {
    /// Number in its name.
    pub(crate) number: u64,
    /// Its name.
    pub(crate) path: Path,
    /// Bytes given to it.
    pub(crate) size: u64,
    /// Set when it is uploaded in parts.
    pub(crate) multipart: Option<Arc<Multipart>>,
    /// Parts the store has accepted, by index.
    pub(crate) parts: Vec<Option<PartId>>,
    /// Whether the object stands in the store.
    pub(crate) is_complete: bool,
}

/// Where a batch goes.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    /// Number of the batch.
    pub(crate) batch: usize,
    /// The bytes.
    pub(crate) bytes: Arc<Batch>,
    /// Index of the content object.
    pub(crate) object: usize,
    /// Its name.
    pub(crate) path: Path,
    /// Upload and part, when it goes there in parts.
    pub(crate) part: Option<(Arc<Multipart>, usize)>,
}

/// What an attempt has of bytes and uploads. Emptied when the attempt ends.
#[derive(Debug, Default)]
pub(crate) struct Writing {
    buffer: Buffer,
    marks: Marks,
    /// Content objects, in the order in which they were begun.
    pub(crate) objects: Vec<ContentObject>,
    open_multipart: Option<usize>,
    regions: Vec<Region>,
    pending: BTreeMap<usize, Task>,
    waiting: VecDeque<usize>,
    accepted_bytes: u64,
    /// Whether a task is sending batches.
    pub(crate) is_pumping: bool,
    /// Why sending stopped. Cleared when it is tried again.
    pub(crate) failure: Option<BucketError>,
    prepared: Option<(Arc<Sealed>, Option<Arc<Batch>>)>,
}

/// The part of an attempt behind its lock.
#[derive(Debug)]
pub(crate) struct Core {
    state: AttemptState,
    by: Option<AttemptId>,
    is_lost_unsealed: bool,
    is_sealing: bool,
    tails: BTreeMap<u32, Digest>,
    total_bytes: u64,
    /// Bytes and uploads.
    pub(crate) writing: Writing,
    sealed: Option<Arc<SealManifest>>,
    /// Names of all content that may stand in the store.
    content: Vec<Path>,
    sealed_bytes: u64,
    /// Whether nothing of an ended attempt is left in the store, as far as is known.
    pub(crate) is_erased: bool,
    /// Whether its seal may stand in the store.
    pub(crate) may_be_published: bool,
}

/// An attempt.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// Its name.
    pub(crate) key: AttemptKey,
    /// Where its seal stands or will stand.
    pub(crate) seal_path: Path,
    /// Number of subpartitions that are stored.
    pub(crate) n_stored: u32,
    core: Mutex<Core>,
    /// Held by whoever prepares or publishes.
    pub(crate) work: tokio::sync::Mutex<()>,
    changed: watch::Sender<u64>,
}

impl Attempt {
    fn with(key: AttemptKey, seal_path: Path, n_stored: u32, core: Core) -> Self {
        Self { key, seal_path, n_stored, core: Mutex::new(core), work: tokio::sync::Mutex::new(()), changed: watch::Sender::new(0) }
    }

    /// An attempt without bytes.
    pub(crate) fn open(key: AttemptKey, seal_path: Path, n_stored: u32) -> Self {
        Self::with(key, seal_path, n_stored, Core::new(AttemptState::Open))
    }

    /// An attempt that was found sealed in the object store.
    pub(crate) fn found(sealed: &Sealed, seal_path: Path, content: Vec<Path>) -> Self {
        let manifest = sealed.manifest.clone();
        let mut core = Core::new(AttemptState::Sealed);
        core.tails = manifest.table.non_empty().map(|(index, digest)| (index.get(), digest)).collect();
        core.total_bytes = manifest.table.total_bytes();
        core.sealed_bytes = core.total_bytes;
        core.content = content;
        core.may_be_published = true;
        core.sealed = Some(manifest.clone());
        Self::with(manifest.attempt.clone(), seal_path, manifest.table.count(), core)
    }

    /// Takes the lock. Never held over a wait.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }

    /// Told of every step of the uploads and of the end of the attempt.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Tells whoever watches.
    pub(crate) fn notify(&self) {
        self.changed.send_modify(|step| *step = step.wrapping_add(1));
    }
}

impl Core {
    fn new(state: AttemptState) -> Self {
        Self {
            state,
            by: None,
            is_lost_unsealed: false,
            is_sealing: false,
            tails: BTreeMap::new(),
            total_bytes: 0,
            writing: Writing::default(),
            sealed: None,
            content: Vec::new(),
            sealed_bytes: 0,
            is_erased: false,
            may_be_published: false,
        }
    }

    /// The state.
    pub(crate) const fn state(&self) -> AttemptState {
        self.state
    }

    /// Why an attempt that has ended answers nothing; `None` while it lives.
    pub(crate) fn refusal(&self) -> Option<StoreErrorKind> {
        match self.state {
            AttemptState::Open | AttemptState::Prepared | AttemptState::Sealed => None,
            AttemptState::Aborted if self.is_lost_unsealed => Some(StoreErrorKind::Lost { cause: LossCause::ObjectStore }),
            AttemptState::Aborted => Some(StoreErrorKind::Aborted),
            AttemptState::Fenced => Some(StoreErrorKind::Fenced { by: self.by.unwrap_or(AttemptId::new(u32::MAX, u32::MAX)) }),
            AttemptState::Released => Some(StoreErrorKind::Released),
            AttemptState::Lost => Some(StoreErrorKind::Lost { cause: LossCause::ObjectStore }),
        }
    }

    /// Why no bytes are taken; `None` when they are.
    pub(crate) fn write_refusal(&self) -> Option<StoreErrorKind> {
        self.refusal().or_else(|| (self.state != AttemptState::Open || self.is_sealing).then_some(StoreErrorKind::AlreadySealed))
    }

    /// State and tails.
    pub(crate) fn tails(&self) -> AttemptTails {
        let tails = self.tails.iter().map(|(index, digest)| (SubpartitionIndex::new(*index), Offset::new(digest.length))).collect();
        AttemptTails { state: self.state, tails }
    }

    /// State and tail of one subpartition.
    pub(crate) fn bounds(&self, index: SubpartitionIndex) -> SubpartitionBounds {
        let tail = self.tails.get(&index.get()).map_or(0, |digest| digest.length);
        SubpartitionBounds { state: self.state, floor: Offset::ZERO, tail: Offset::new(tail) }
    }

    /// Bytes of all subpartitions.
    pub(crate) const fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Bytes in memory and bytes in the object store.
    pub(crate) fn held(&self) -> (u64, u64) {
        let writing = &self.writing;
        let pending: u64 = writing.pending.values().map(|task| task.bytes.bytes()).sum();
        let inline = writing.prepared.as_ref().and_then(|(_, inline)| inline.as_ref()).map_or(0, |batch| batch.bytes());
        (writing.buffer.bytes().saturating_add(pending).saturating_add(inline), writing.accepted_bytes.saturating_add(self.sealed_bytes))
    }

    /// Bytes that could be sent at once, and bytes that are being sent.
    pub(crate) fn unsent(&self) -> (u64, u64) {
        let pending = self.writing.pending.values().map(|task| task.bytes.charged()).sum();
        (if self.write_refusal().is_none() { self.writing.buffer.bytes() } else { 0 }, pending)
    }

    /// The manifest, once sealed.
    pub(crate) fn sealed(&self) -> Option<Arc<SealManifest>> {
        self.sealed.clone().filter(|_| self.state == AttemptState::Sealed)
    }

    /// What is prepared.
    pub(crate) fn prepared(&self) -> Option<Arc<Sealed>> {
        self.writing.prepared.as_ref().map(|(sealed, _)| sealed.clone())
    }

    /// Length and digest of every subpartition.
    pub(crate) fn table(&self, n_stored: u32) -> Option<SubpartitionTable> {
        let entries = self.tails.iter().map(|(index, digest)| (SubpartitionIndex::new(*index), *digest));
        SubpartitionTable::new(n_stored, entries).ok()
    }

    /// Takes one piece: all of it or nothing. Answers the tail and how many bytes were new, which
    /// are charged to `permit`.
    pub(crate) fn take(&mut self, n_stored: u32, piece: &Piece, permit: &mut Permit) -> Result<(Offset, u64), StoreErrorKind> {
        let index = piece.subpartition.get();
        if index >= n_stored {
            return Err(StoreErrorKind::NoSuchSubpartition { count: n_stored });
        }
        let digest = self.tails.get(&index).copied().unwrap_or_default();
        let tail = digest.length;
        let expected = Offset::new(tail);
        let start = piece.start.map_or(tail, Offset::get);
        if start > tail {
            return Err(StoreErrorKind::OffsetMismatch { expected });
        }
        let known = tail.saturating_sub(start).min(piece.chunk.length());
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        let bytes = piece.chunk.bytes();
        match self.judge(index, start, bytes.get(..known).unwrap_or_default()) {
            Repeat::Same => {}
            Repeat::Other => return Err(StoreErrorKind::ContentMismatch { expected }),
            Repeat::Unknown => return Err(StoreErrorKind::BelowFloor { floor: Offset::new(self.retained_from(index, tail)) }),
        }
        if known >= bytes.len() {
            return Ok((expected, 0));
        }
        let fresh = if known == 0 { piece.chunk.clone() } else { store_api::Chunk::new(bytes.slice(known..)) };
        let too_large = |limit| StoreErrorKind::TooLarge { requested: fresh.length(), limit };
        let next = digest.followed_by_bytes(fresh.bytes(), fresh.crc()).ok_or_else(|| too_large(u64::MAX.saturating_sub(tail)))?;
        let total = self.total_bytes.checked_add(fresh.length()).ok_or_else(|| too_large(u64::MAX.saturating_sub(self.total_bytes)))?;
        let charge = permit.split(fresh.length()).ok_or_else(|| too_large(permit.bytes()))?;
        self.writing.buffer.push(index, tail, &fresh, charge);
        self.tails.insert(index, next);
        self.total_bytes = total;
        self.writing.marks.add(index, next);
        Ok((Offset::new(next.length), fresh.length()))
    }

    /// Whether these bytes were taken at this offset. Bytes that are still in memory are compared;
    /// of those that were handed on, checksums between remembered ends of chunks. What lies between
    /// an end of the range and the next remembered one cannot be judged, and is neither acknowledged
    /// nor called other bytes.
    fn judge(&self, index: u32, start: u64, bytes: &[u8]) -> Repeat {
        let mut rest = bytes;
        let mut at = start;
        let mut all = Repeat::Same;
        while !rest.is_empty() {
            let (until, repeat) = self.compare(index, at, rest);
            let step = usize::try_from(until.saturating_sub(at)).unwrap_or(0).min(rest.len());
            match repeat {
                Repeat::Other => return Repeat::Other,
                _ if step == 0 => return Repeat::Unknown,
                Repeat::Unknown => all = Repeat::Unknown,
                Repeat::Same => {}
            }
            rest = rest.get(step..).unwrap_or_default();
            at = until;
        }
        all
    }

    /// First offset from which all bytes of a subpartition are still in memory.
    fn retained_from(&self, index: u32, tail: u64) -> u64 {
        let in_buffer = self.writing.buffer.start(index).unwrap_or(tail);
        let ranges = self.writing.pending.values().rev().filter_map(|task| task.bytes.range(index));
        ranges.fold(in_buffer, |from, (start, stop)| if stop == from { start } else { from })
    }

    /// Compares as far as one place holds the bytes: where that ends, and what was found.
    fn compare(&self, index: u32, at: u64, bytes: &[u8]) -> (u64, Repeat) {
        let end = at.saturating_add(bytes.len() as u64);
        let part = |until: u64| bytes.get(..usize::try_from(until.saturating_sub(at)).unwrap_or(0)).unwrap_or_default();
        let in_buffer = self.writing.buffer.start(index);
        if in_buffer.is_some_and(|start| start <= at) {
            return (end, Repeat::from_bytes(self.writing.buffer.equals(index, at, bytes)));
        }
        let mut until = in_buffer.unwrap_or(u64::MAX).min(end);
        for task in self.writing.pending.values() {
            match task.bytes.range(index) {
                Some((start, stop)) if start <= at && at < stop => {
                    let until = stop.min(end);
                    return (until, Repeat::from_bytes(task.bytes.equals(index, at, part(until))));
                }
                Some((start, _)) if start > at => until = until.min(start),
                _ => {}
            }
        }
        (until, self.writing.marks.judge(index, at, part(until)))
    }

    /// Whether enough is buffered to be sent.
    pub(crate) fn is_full(&self, cutting: &Cutting) -> bool {
        self.writing.buffer.bytes() >= self.writing.part_target(cutting)
    }

    /// Turns what is buffered into a batch that waits to be sent. `is_last` says that nothing will
    /// follow; `number` draws a number for the name of a content object.
    pub(crate) fn cut(&mut self, cutting: &Cutting, is_last: bool, name: impl FnOnce() -> (ContentName, Path)) {
        let writing = &mut self.writing;
        if writing.buffer.bytes() == 0 {
            return;
        }
        let target = writing.part_target(cutting);
        let is_part = cutting.has_parts && (writing.buffer.bytes() >= target || is_last) && (!is_last || writing.open_multipart.is_some());
        let batch = writing.buffer.cut(cutting.block_bytes);
        let object = match writing.open_multipart.filter(|_| is_part) {
            Some(object) => object,
            None => {
                let (name, path) = name();
                self.content.push(path.clone());
                let multipart = is_part.then(|| Arc::new(Multipart::default()));
                let object = ContentObject { number: name.number, path, size: 0, multipart, parts: Vec::new(), is_complete: false };
                writing.objects.push(object);
                writing.objects.len().saturating_sub(1)
            }
        };
        writing.place(object, batch, is_part, is_last);
    }

    /// The next batch to be sent.
    pub(crate) fn next_task(&mut self) -> Option<Task> {
        let writing = &mut self.writing;
        if writing.failure.is_some() {
            return None;
        }
        let batch = writing.waiting.pop_front()?;
        writing.pending.get(&batch).cloned()
    }

    /// Notes that the store has a batch: its memory is given back once the last copy is dropped.
    /// `false` when the attempt has ended meanwhile, so that what was sent is to be deleted.
    pub(crate) fn accepted(&mut self, task: &Task, part: Option<PartId>) -> bool {
        let writing = &mut self.writing;
        if writing.pending.remove(&task.batch).is_none() {
            return false;
        }
        writing.accepted_bytes = writing.accepted_bytes.saturating_add(task.bytes.bytes());
        if let Some(object) = writing.objects.get_mut(task.object) {
            match (part, task.part.as_ref()) {
                (Some(id), Some((_, index))) => {
                    if let Some(slot) = object.parts.get_mut(*index) {
                        *slot = Some(id);
                    }
                }
                _ => object.is_complete = true,
            }
        }
        true
    }

    /// Notes that a batch was not taken; it is sent again when sending goes on.
    pub(crate) fn refused(&mut self, task: &Task, error: BucketError) {
        if self.writing.pending.contains_key(&task.batch) {
            self.writing.waiting.push_front(task.batch);
            self.writing.failure = Some(error);
        }
    }

    /// Ends sending unless something waits and may be sent. Whether it has ended.
    pub(crate) fn stop_pumping(&mut self) -> bool {
        let goes_on = !self.writing.waiting.is_empty() && self.writing.failure.is_none();
        if !goes_on {
            self.writing.is_pumping = false;
        }
        !goes_on
    }

    /// Whether bytes were handed to an upload in parts that is not an object yet.
    pub(crate) fn has_begun_parts(&self) -> bool {
        self.writing.objects.iter().any(|object| !object.is_complete && object.parts.iter().any(Option::is_some))
    }

    /// Whether every batch that was cut is in the store.
    pub(crate) fn is_sent(&self) -> bool {
        self.writing.pending.is_empty()
    }

    /// Stops appends while the content is made final; `false` lets them go on.
    pub(crate) fn set_sealing(&mut self, is_sealing: bool) {
        self.is_sealing = is_sealing;
    }

    /// Whether the content fits into its manifest and none of it was sent.
    pub(crate) fn fits_inline(&self, inline_bytes: u64) -> bool {
        self.total_bytes <= inline_bytes && self.writing.objects.is_empty()
    }

    /// Takes the content for a manifest that holds it. Call when it fits.
    pub(crate) fn cut_inline(&mut self, cutting: &Cutting) -> Arc<Batch> {
        Arc::new(self.writing.buffer.cut(cutting.block_bytes))
    }

    /// Puts back that the content is described in objects. `None` when a number does not fit.
    pub(crate) fn object_content(&self, block_bytes: u32) -> Option<ObjectContent> {
        let objects: Vec<(u64, u64)> = self.writing.objects.iter().map(|object| (object.number, object.size)).collect();
        u32::try_from(objects.len()).ok()?;
        Some(ObjectContent { block_bytes, objects, regions: self.writing.regions.clone() })
    }

    /// The attempt is prepared. A batch is kept for content inside the manifest, so that its memory
    /// stays charged.
    pub(crate) fn prepare(&mut self, sealed: Arc<Sealed>, inline: Option<Arc<Batch>>) {
        self.state = AttemptState::Prepared;
        self.is_sealing = false;
        self.writing.prepared = Some((sealed, inline));
        self.writing.marks = Marks::default();
    }

    /// The attempt is sealed, with `content` as the names of what the manifest refers to.
    pub(crate) fn seal(&mut self, manifest: Arc<SealManifest>, content: Vec<Path>) {
        self.state = AttemptState::Sealed;
        self.sealed_bytes = manifest.table.total_bytes();
        self.tails = manifest.table.non_empty().map(|(index, digest)| (index.get(), digest)).collect();
        self.total_bytes = self.sealed_bytes;
        self.sealed = Some(manifest);
        self.writing = Writing::default();
        self.content = content;
    }

    /// The attempt ends, its memory is given back. Answers what is to be erased in the store and
    /// how many bytes that gives back; `None` when it had ended before. What was sealed stays lost
    /// or sealed in no case.
    pub(crate) fn end(&mut self, state: AttemptState, by: Option<AttemptId>) -> Option<Ended> {
        if self.state.is_final() {
            return None;
        }
        let (memory, object) = self.held();
        let ended = Ended { bytes: memory.saturating_add(object), objects: std::mem::take(&mut self.writing.objects) };
        self.state = state;
        self.by = by;
        self.is_sealing = false;
        let is_pumping = self.writing.is_pumping;
        self.writing = Writing { is_pumping, ..Writing::default() };
        self.sealed_bytes = 0;
        self.sealed = None;
        Some(ended)
    }

    /// The bytes of an unsealed attempt are gone for good.
    pub(crate) fn lose(&mut self) -> Option<Ended> {
        self.is_lost_unsealed = true;
        self.end(AttemptState::Aborted, None)
    }

    /// Names of all content that may stand in the store.
    pub(crate) fn content(&self) -> Vec<Path> {
        self.content.clone()
    }
}

/// What an attempt leaves behind when it ends.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Bytes given back.
    pub(crate) bytes: u64,
    /// Content objects that were begun and not sealed.
    pub(crate) objects: Vec<ContentObject>,
}

impl Writing {
    fn part_target(&self, cutting: &Cutting) -> u64 {
        let n_parts = self.open_multipart.and_then(|at| self.objects.get(at)).map_or(0, |object| object.parts.len());
        let steps = u32::try_from(n_parts / PARTS_PER_STEP).unwrap_or(u32::MAX);
        let grown = cutting.part_bytes.checked_mul(1_u64.checked_shl(steps).unwrap_or(u64::MAX));
        grown.unwrap_or(u64::MAX).min(cutting.max_part_bytes)
    }

    fn place(&mut self, object: usize, batch: Batch, is_part: bool, is_last: bool) {
        let number = self.regions.len();
        let Some(target) = self.objects.get_mut(object) else { return };
        let mut region = batch.region.clone();
        // Fewer than 2^32 objects: each holds at least a byte of memory here.
        region.object = u32::try_from(object).unwrap_or(u32::MAX);
        for extent in &mut region.extents {
            extent.start = extent.start.saturating_add(target.size);
        }
        target.size = target.size.saturating_add(batch.bytes());
        let part = target.multipart.clone().map(|multipart| (multipart, target.parts.len()));
        if part.is_some() {
            target.parts.push(None);
        }
        // Only the last part may be small, so nothing follows a last one; a full upload is followed
        // by another.
        let goes_on = is_part && !is_last && target.parts.len() < MAX_PARTS;
        if is_part {
            self.open_multipart = goes_on.then_some(object);
        }
        let task = Task { batch: number, bytes: Arc::new(batch), object, path: target.path.clone(), part };
        self.regions.push(region);
        self.pending.insert(number, task);
        self.waiting.push_back(number);
    }
}

/// The content of a prepared attempt inside its manifest.
pub(crate) fn inline_content(batch: &Batch) -> Content {
    Content::Inline(batch.to_bytes())
}

#[cfg(test)]
mod tests;

//! The one stored form that decides what exists: a manifest, or the tombstone that took its place.
//!
//! ```text
//! | "FBYM" | version 1 | kind | … | crc of all before |          numbers are little-endian
//! kind 1, sealed:   job, incarnation, dataset, partition, generation, attempt, node, life,
//!                   sealed_at_ms, table, then
//!                   0, length, the content itself                        (small partitions), or
//!                   1, block size, objects (number, size)…, regions…
//!                   region: object, extents (subpartition, length, crc per block)…
//! kind 2, released: generation and attempt that was sealed here; nothing more for a whole partition
//! kind 3, fenced:   generation and attempt that took its place
//! ```
//! Texts have a length of 2 bytes. A region is a run of one content object, its extents in
//! ascending order of subpartition; the extents of one subpartition over all regions, in order,
//! are its bytes. Where an extent lies follows from the lengths before it. A block is at most
//! `block size` bytes of one extent, and has a CRC-32C of its own.

use bytes::{Buf, BufMut, Bytes};
use std::sync::Arc;
use store_api::{
    AttemptId, AttemptKey, ClassAchieved, Crc32c, DatasetId, DatasetKey, JobId, JobIncarnation, NodeId, NodeLife, PartitionId,
    SealManifest, SubpartitionTable,
};

const MAGIC: &[u8; 4] = b"FBYM";
/// Version of the stored form.
pub(crate) const MANIFEST_VERSION: u8 = 1;
const SEALED: u8 = 1;
const RELEASED: u8 = 2;
const FENCED: u8 = 3;
const INLINE: u8 = 0;
const OBJECTS: u8 = 1;
const FRAME_LENGTH: usize = 4 + 1 + 1 + 4;
/// No tombstone is longer than this, and no manifest as short.
pub(crate) const LONGEST_TOMBSTONE: u64 = (FRAME_LENGTH + 8) as u64;

/// Why bytes are not a manifest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CodecError {
    /// They do not start like one.
    #[error("this is no manifest")]
    Magic,
    /// A version or kind that this build does not know.
    #[error("manifest version {version} kind {kind} is not known here")]
    Unknown {
        /// Version found.
        version: u8,
        /// Kind found.
        kind: u8,
    },
    /// They do not have their checksum, or do not add up.
    #[error("the manifest is damaged")]
    Damaged,
}

/// What is stored under the name of a seal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// A sealed attempt.
    Sealed(Sealed),
    /// The owner released it.
    Released {
        /// The attempt that was sealed here; `None` when all of the partition was released.
        attempt: Option<AttemptId>,
    },
    /// A higher generation took its place.
    Fenced {
        /// What superseded it.
        by: AttemptId,
    },
}

/// A sealed attempt and where its bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sealed {
    /// What callers see of it. Shared: a table has up to a million entries.
    pub(crate) manifest: Arc<SealManifest>,
    /// Where the bytes are.
    pub(crate) content: Content,
}

/// Where the bytes of a sealed attempt are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// Here, subpartition after subpartition.
    Inline(Bytes),
    /// In objects.
    Objects(ObjectContent),
}

/// Content in objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ObjectContent {
    /// Largest number of bytes under one checksum.
    pub(crate) block_bytes: u32,
    /// Number (as in the name) and size of each object.
    pub(crate) objects: Vec<(u64, u64)>,
    /// In the order in which they were written.
    pub(crate) regions: Vec<Region>,
}

/// A run of one content object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Region {
    /// Index into the objects.
    pub(crate) object: u32,
    /// In ascending order of subpartition.
    pub(crate) extents: Vec<Extent>,
    /// Checksums of the blocks of all extents, one after the other.
    pub(crate) crcs: Vec<Crc32c>,
}

/// The bytes of one subpartition in one region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The subpartition.
    pub(crate) subpartition: u32,
    /// Where it starts in the object.
    pub(crate) start: u64,
    /// How long it is, at least 1.
    pub(crate) length: u64,
    /// Index of the checksum of its first block.
    pub(crate) first_crc: u32,
}

impl Region {
    /// The extent of a subpartition, if the region holds any of its bytes.
    pub(crate) fn extent(&self, subpartition: u32) -> Option<&Extent> {
        let at = self.extents.binary_search_by_key(&subpartition, |extent| extent.subpartition).ok()?;
        self.extents.get(at)
    }
}

impl Sealed {
    /// The stored form of a sealed record.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = head(SEALED);
        encode_sealed(self, &mut out);
        finish(out)
    }

    /// Bytes of memory that it takes, about.
    pub(crate) fn weight(&self) -> u64 {
        let content = match &self.content {
            Content::Inline(bytes) => bytes.len(),
            Content::Objects(content) => {
                content.regions.iter().map(|region| 64 + region.extents.len() * size_of::<Extent>() + region.crcs.len() * 4).sum()
            }
        };
        (512 + content + self.manifest.table.non_empty().len() * 24) as u64
    }
}

impl Record {
    /// The stored form.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Sealed(sealed) => sealed.encode(),
            Self::Released { attempt } => {
                let mut out = head(RELEASED);
                if let Some(attempt) = attempt {
                    out.put_u32_le(attempt.generation);
                    out.put_u32_le(attempt.attempt);
                }
                finish(out)
            }
            Self::Fenced { by } => {
                let mut out = head(FENCED);
                out.put_u32_le(by.generation);
                out.put_u32_le(by.attempt);
                finish(out)
            }
        }
    }

    /// Reads the stored form. `class` is what this store promises: it is not stored. Errors: all of
    /// [`CodecError`].
    pub(crate) fn decode(bytes: &Bytes, class: ClassAchieved) -> Result<Self, CodecError> {
        if bytes.get(..MAGIC.len()) != Some(MAGIC.as_slice()) {
            return Err(CodecError::Magic);
        }
        let (Some(version), Some(kind)) = (bytes.get(4).copied(), bytes.get(5).copied()) else { return Err(CodecError::Damaged) };
        if version != MANIFEST_VERSION {
            return Err(CodecError::Unknown { version, kind });
        }
        let covered = bytes.len().checked_sub(4).filter(|length| *length >= 6).ok_or(CodecError::Damaged)?;
        let mut check = bytes.slice(covered..);
        if Crc32c::of(bytes.get(..covered).unwrap_or_default()).get() != check.get_u32_le() {
            return Err(CodecError::Damaged);
        }
        let mut body = bytes.slice(6..covered);
        let record = match kind {
            SEALED => Self::Sealed(decode_sealed(&mut body, class)?),
            RELEASED if body.is_empty() => Self::Released { attempt: None },
            RELEASED => Self::Released { attempt: Some(AttemptId::new(u32_of(&mut body)?, u32_of(&mut body)?)) },
            FENCED => Self::Fenced { by: AttemptId::new(u32_of(&mut body)?, u32_of(&mut body)?) },
            _ => return Err(CodecError::Unknown { version, kind }),
        };
        if body.is_empty() { Ok(record) } else { Err(CodecError::Damaged) }
    }
}

fn head(kind: u8) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_slice(MAGIC);
    out.put_u8(MANIFEST_VERSION);
    out.put_u8(kind);
    out
}

fn finish(mut out: Vec<u8>) -> Vec<u8> {
    let crc = Crc32c::of(&out);
    out.put_u32_le(crc.get());
    out
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    // Ids are at most 128 bytes long.
    out.put_u16_le(u16::try_from(text.len()).unwrap_or(u16::MAX));
    out.put_slice(text.as_bytes());
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    // No attempt has 2^32 objects, regions or extents: its bytes would not fit any store.
    out.put_u32_le(u32::try_from(count).unwrap_or(u32::MAX));
}

fn encode_sealed(sealed: &Sealed, out: &mut Vec<u8>) {
    let SealManifest { attempt, table, class: _, node, life, sealed_at_ms } = sealed.manifest.as_ref();
    let dataset = &attempt.partition.dataset;
    put_text(out, dataset.job.as_str());
    out.put_u64_le(dataset.incarnation.get());
    put_text(out, dataset.dataset.as_str());
    out.put_u64_le(attempt.partition.partition.get());
    out.put_u32_le(attempt.attempt.generation);
    out.put_u32_le(attempt.attempt.attempt);
    put_text(out, node.as_str());
    out.put_u64_le(life.get());
    out.put_u64_le(*sealed_at_ms);
    table.encode(out);
    match &sealed.content {
        Content::Inline(bytes) => {
            out.put_u8(INLINE);
            put_count(out, bytes.len());
            out.put_slice(bytes);
        }
        Content::Objects(content) => {
            out.put_u8(OBJECTS);
            encode_objects(content, out);
        }
    }
}

fn encode_objects(content: &ObjectContent, out: &mut Vec<u8>) {
    out.put_u32_le(content.block_bytes);
    put_count(out, content.objects.len());
    for (number, size) in &content.objects {
        out.put_u64_le(*number);
        out.put_u64_le(*size);
    }
    put_count(out, content.regions.len());
    for region in &content.regions {
        out.put_u32_le(region.object);
        put_count(out, region.extents.len());
        for extent in &region.extents {
            out.put_u32_le(extent.subpartition);
            out.put_u64_le(extent.length);
        }
        for crc in &region.crcs {
            out.put_u32_le(crc.get());
        }
    }
}

fn u8_of(body: &mut Bytes) -> Result<u8, CodecError> {
    body.try_get_u8().map_err(|_| CodecError::Damaged)
}

fn u32_of(body: &mut Bytes) -> Result<u32, CodecError> {
    body.try_get_u32_le().map_err(|_| CodecError::Damaged)
}

fn u64_of(body: &mut Bytes) -> Result<u64, CodecError> {
    body.try_get_u64_le().map_err(|_| CodecError::Damaged)
}

fn bytes_of(body: &mut Bytes, length: usize) -> Result<Bytes, CodecError> {
    if body.len() < length { Err(CodecError::Damaged) } else { Ok(body.split_to(length)) }
}

fn text_of(body: &mut Bytes) -> Result<String, CodecError> {
    let length = body.try_get_u16_le().map_err(|_| CodecError::Damaged)?;
    let bytes = bytes_of(body, usize::from(length))?;
    String::from_utf8(bytes.to_vec()).map_err(|_| CodecError::Damaged)
}

/// A number of things that take at least `each` bytes: never more than what is left can hold, so
/// that a damaged count reserves no memory.
fn count_of(body: &mut Bytes, each: usize) -> Result<usize, CodecError> {
    let count = usize::try_from(u32_of(body)?).map_err(|_| CodecError::Damaged)?;
    if count.saturating_mul(each) > body.len() { Err(CodecError::Damaged) } else { Ok(count) }
}

fn decode_sealed(body: &mut Bytes, class: ClassAchieved) -> Result<Sealed, CodecError> {
    let job = JobId::new(&text_of(body)?).map_err(|_| CodecError::Damaged)?;
    let incarnation = JobIncarnation::new(u64_of(body)?);
    let dataset = DatasetId::new(&text_of(body)?).map_err(|_| CodecError::Damaged)?;
    let partition = DatasetKey { job, incarnation, dataset }.partition(PartitionId::new(u64_of(body)?));
    let attempt: AttemptKey = partition.attempt(AttemptId::new(u32_of(body)?, u32_of(body)?));
    let node = NodeId::new(&text_of(body)?).map_err(|_| CodecError::Damaged)?;
    let (life, sealed_at_ms) = (NodeLife::new(u64_of(body)?), u64_of(body)?);
    let mut rest: &[u8] = body;
    let table = SubpartitionTable::decode(&mut rest).map_err(|_| CodecError::Damaged)?;
    let used = body.len().saturating_sub(rest.len());
    body.advance(used);
    let content = match u8_of(body)? {
        INLINE => {
            let length = count_of(body, 1)?;
            Content::Inline(bytes_of(body, length)?)
        }
        OBJECTS => Content::Objects(decode_objects(body)?),
        _ => return Err(CodecError::Damaged),
    };
    if content_bytes(&content) != table.total_bytes() {
        return Err(CodecError::Damaged);
    }
    Ok(Sealed { manifest: Arc::new(SealManifest { attempt, table, class, node, life, sealed_at_ms }), content })
}

fn content_bytes(content: &Content) -> u64 {
    match content {
        Content::Inline(bytes) => bytes.len() as u64,
        Content::Objects(content) => content.objects.iter().fold(0, |sum, (_, size)| size.saturating_add(sum)),
    }
}

fn decode_objects(body: &mut Bytes) -> Result<ObjectContent, CodecError> {
    let block_bytes = u32_of(body)?;
    if block_bytes == 0 {
        return Err(CodecError::Damaged);
    }
    let n_objects = count_of(body, 16)?;
    let mut objects = Vec::with_capacity(n_objects);
    for _ in 0..n_objects {
        objects.push((u64_of(body)?, u64_of(body)?));
    }
    let mut ends = vec![0_u64; n_objects];
    let n_regions = count_of(body, 8)?;
    let mut regions = Vec::with_capacity(n_regions);
    for _ in 0..n_regions {
        let object = u32_of(body)?;
        let end = usize::try_from(object).ok().and_then(|at| ends.get_mut(at)).ok_or(CodecError::Damaged)?;
        regions.push(decode_region(body, object, block_bytes, end)?);
    }
    let is_whole = objects.iter().zip(&ends).all(|((_, size), end)| size == end);
    if is_whole { Ok(ObjectContent { block_bytes, objects, regions }) } else { Err(CodecError::Damaged) }
}

fn decode_region(body: &mut Bytes, object: u32, block_bytes: u32, end: &mut u64) -> Result<Region, CodecError> {
    let n_extents = count_of(body, 12)?;
    let mut extents: Vec<Extent> = Vec::with_capacity(n_extents);
    let mut n_crcs = 0_u64;
    for _ in 0..n_extents {
        let (subpartition, length) = (u32_of(body)?, u64_of(body)?);
        let is_ordered = extents.last().is_none_or(|last| last.subpartition < subpartition);
        let first_crc = u32::try_from(n_crcs).map_err(|_| CodecError::Damaged)?;
        if !is_ordered || length == 0 {
            return Err(CodecError::Damaged);
        }
        extents.push(Extent { subpartition, start: *end, length, first_crc });
        *end = end.checked_add(length).ok_or(CodecError::Damaged)?;
        n_crcs = n_crcs.saturating_add(length.div_ceil(u64::from(block_bytes)));
    }
    let n_crcs = usize::try_from(n_crcs).ok().filter(|count| count.saturating_mul(4) <= body.len()).ok_or(CodecError::Damaged)?;
    let mut crcs = Vec::with_capacity(n_crcs);
    for _ in 0..n_crcs {
        crcs.push(Crc32c::new(u32_of(body)?));
    }
    Ok(Region { object, extents, crcs })
}

#[cfg(test)]
mod tests;

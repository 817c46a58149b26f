//! The row of a sealed attempt in the index: manifest and layout, in one versioned form.
//!
//! ```text
//!   version (1) | sync (1) | life (8) | sealed_at_ms (8) | length of node (1), node | table
//!   | n_files (2), each: directory (8), life (8), number (8), length (8)
//!   | n_regions (4), each: subpartition (4), start (8), length (8), file (2), offset (8), first_crc (4)
//!   | n_crcs (4), each (4) | CRC-32C of all before it (4)
//! ```
//! Numbers are little-endian. The attempt itself is the key of the row.

use crate::layout::{BLOCK_BYTES, FileId, FileSpan, Layout, Region};
use bytes::{Buf, BufMut};
use store_api::{
    AttemptKey, ClassAchieved, Crc32c, Durability, NodeId, NodeLife, Scope, SealManifest, StoreClass, SubpartitionTable, SyncLevel,
};

/// Version of the form.
pub(crate) const ROW_VERSION: u8 = 1;

/// What the store promises about a seal at a sync level.
pub(crate) const fn class_achieved(sync: SyncLevel) -> ClassAchieved {
    ClassAchieved { class: StoreClass::Blocking, durability: Durability::Local, sync, scope: Scope::NodeDisk }
}

/// Why bytes are not a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RowError {
    /// Written by another build.
    #[error("row version {found} is not known here")]
    Version {
        /// What was found.
        found: u8,
    },
    /// Cut, flipped or never a row.
    #[error("the row is damaged")]
    Damaged,
}

/// Appends the stored form.
pub(crate) fn encode(manifest: &SealManifest, layout: &Layout) -> Vec<u8> {
    let mut out = Vec::with_capacity(128 + layout.regions.len() * 34 + layout.crcs.len() * 4);
    out.put_u8(ROW_VERSION);
    out.put_u8(match manifest.class.sync {
        SyncLevel::Full => 0,
        SyncLevel::Data => 1,
        SyncLevel::None => 2,
    });
    out.put_u64_le(manifest.life.get());
    out.put_u64_le(manifest.sealed_at_ms);
    let node = manifest.node.as_str().as_bytes();
    // Ids have at most 128 characters.
    out.put_u8(u8::try_from(node.len()).unwrap_or(u8::MAX));
    out.put_slice(node);
    manifest.table.encode(&mut out);
    out.put_u16_le(u16::try_from(layout.files.len()).unwrap_or(u16::MAX));
    for span in &layout.files {
        out.put_u64_le(span.directory);
        out.put_u64_le(span.file.life);
        out.put_u64_le(span.file.number);
        out.put_u64_le(span.length);
    }
    out.put_u32_le(u32::try_from(layout.regions.len()).unwrap_or(u32::MAX));
    for region in &layout.regions {
        out.put_u32_le(region.subpartition);
        out.put_u64_le(region.start);
        out.put_u64_le(region.length);
        out.put_u16_le(region.file);
        out.put_u64_le(region.offset);
        out.put_u32_le(region.first_crc);
    }
    out.put_u32_le(u32::try_from(layout.crcs.len()).unwrap_or(u32::MAX));
    for crc in &layout.crcs {
        out.put_u32_le(*crc);
    }
    let crc = Crc32c::of(&out);
    out.put_u32_le(crc.get());
    out
}

/// Reads a row. The version is looked at only once the checksum holds. Errors: every [`RowError`].
pub(crate) fn decode(attempt: AttemptKey, row: &[u8]) -> Result<(SealManifest, Layout), RowError> {
    let (body, stated) = row.split_last_chunk::<4>().ok_or(RowError::Damaged)?;
    if Crc32c::of(body).get() != u32::from_le_bytes(*stated) {
        return Err(RowError::Damaged);
    }
    match body.first() {
        Some(&ROW_VERSION) => decode_body(attempt, body).ok_or(RowError::Damaged),
        Some(&found) => Err(RowError::Version { found }),
        None => Err(RowError::Damaged),
    }
}

fn decode_body(attempt: AttemptKey, mut body: &[u8]) -> Option<(SealManifest, Layout)> {
    let bytes = &mut body;
    bytes.try_get_u8().ok()?;
    let sync = match bytes.try_get_u8().ok()? {
        0 => SyncLevel::Full,
        1 => SyncLevel::Data,
        2 => SyncLevel::None,
        _ => return None,
    };
    let life = NodeLife::new(bytes.try_get_u64_le().ok()?);
    let sealed_at_ms = bytes.try_get_u64_le().ok()?;
    let n_node = usize::from(bytes.try_get_u8().ok()?);
    let (node, rest) = bytes.split_at_checked(n_node)?;
    let node = NodeId::new(std::str::from_utf8(node).ok()?).ok()?;
    *bytes = rest;
    let table = SubpartitionTable::decode(bytes).ok()?;
    let layout = decode_layout(bytes, &table)?;
    bytes.is_empty().then_some(())?;
    Some((SealManifest { attempt, table, class: class_achieved(sync), node, life, sealed_at_ms }, layout))
}

fn decode_layout(bytes: &mut &[u8], table: &SubpartitionTable) -> Option<Layout> {
    let n_files = bytes.try_get_u16_le().ok()?;
    let mut layout = Layout::default();
    for _ in 0..n_files {
        layout.files.push(FileSpan {
            directory: bytes.try_get_u64_le().ok()?,
            file: FileId { life: bytes.try_get_u64_le().ok()?, number: bytes.try_get_u64_le().ok()? },
            length: bytes.try_get_u64_le().ok()?,
        });
    }
    let n_regions = usize::try_from(bytes.try_get_u32_le().ok()?).ok()?;
    layout.regions.reserve_exact(n_regions.min(bytes.len() / 34));
    for _ in 0..n_regions {
        layout.regions.push(Region {
            subpartition: bytes.try_get_u32_le().ok()?,
            start: bytes.try_get_u64_le().ok()?,
            length: bytes.try_get_u64_le().ok()?,
            file: bytes.try_get_u16_le().ok()?,
            offset: bytes.try_get_u64_le().ok()?,
            first_crc: bytes.try_get_u32_le().ok()?,
        });
    }
    let n_crcs = usize::try_from(bytes.try_get_u32_le().ok()?).ok()?;
    layout.crcs.reserve_exact(n_crcs.min(bytes.len() / 4));
    for _ in 0..n_crcs {
        layout.crcs.push(bytes.try_get_u32_le().ok()?);
    }
    is_consistent(&layout, table).then_some(layout)
}

/// Whether every region lies inside its file, has its checksums, and the regions of each
/// subpartition follow each other from 0 to the length in the table.
fn is_consistent(layout: &Layout, table: &SubpartitionTable) -> bool {
    let n_crcs = layout.crcs.len() as u64;
    let fits = |region: &Region| {
        let end = region.offset.checked_add(region.length);
        let file = layout.files.get(usize::from(region.file));
        let last_crc = u64::from(region.first_crc).checked_add(region.length.div_ceil(BLOCK_BYTES));
        region.length > 0
            && file.is_some_and(|file| end.is_some_and(|end| end <= file.length))
            && last_crc.is_some_and(|last| last <= n_crcs)
    };
    let mut regions = layout.regions.iter().peekable();
    for (index, digest) in table.non_empty() {
        let mut at = 0_u64;
        while let Some(region) = regions.next_if(|region| region.subpartition == index.get()) {
            if region.start != at || !fits(region) {
                return false;
            }
            at = at.saturating_add(region.length);
        }
        if at != digest.length {
            return false;
        }
    }
    regions.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use store_api::{AttemptId, DatasetId, DatasetKey, Digest, JobId, JobIncarnation, PartitionId, SubpartitionIndex};

    fn attempt() -> AttemptKey {
        let dataset =
            DatasetKey { job: JobId::new("j").unwrap(), incarnation: JobIncarnation::new(1), dataset: DatasetId::new("d").unwrap() };
        dataset.partition(PartitionId::new(2)).attempt(AttemptId::new(0, 1))
    }

    fn sample(lengths: &[u64], sync: SyncLevel) -> (SealManifest, Layout) {
        let entries = lengths.iter().enumerate().map(|(index, length)| {
            (SubpartitionIndex::new(u32::try_from(index).unwrap()), Digest { length: *length, crc: Crc32c::new(9) })
        });
        let table = SubpartitionTable::new(u32::try_from(lengths.len()).unwrap() + 1, entries).unwrap();
        let mut layout = Layout::default();
        let mut at = 16;
        for (index, digest) in table.non_empty() {
            let first_crc = u32::try_from(layout.crcs.len()).unwrap();
            layout.regions.push(Region { subpartition: index.get(), start: 0, length: digest.length, file: 0, offset: at, first_crc });
            layout.crcs.extend((0..digest.length.div_ceil(BLOCK_BYTES)).map(|n| u32::try_from(n).unwrap() * 7));
            at += digest.length;
        }
        layout.files.push(FileSpan { directory: 3, file: FileId { life: 4, number: 5 }, length: at });
        let manifest = SealManifest {
            attempt: attempt(),
            table,
            class: class_achieved(sync),
            node: NodeId::new("n1").unwrap(),
            life: NodeLife::new(4),
            sealed_at_ms: 1000,
        };
        (manifest, layout)
    }

    #[test]
    fn the_stored_bytes_never_change() {
        let (manifest, layout) = sample(&[3], SyncLevel::Full);
        let golden = concat!(
            "0100",
            "0400000000000000",
            "e803000000000000",
            "026e31",
            "010200000001000000",
            "00000000030000000000000009000000",
            "0100",
            "0300000000000000",
            "0400000000000000",
            "0500000000000000",
            "1300000000000000",
            "01000000",
            "00000000",
            "0000000000000000",
            "0300000000000000",
            "0000",
            "1000000000000000",
            "00000000",
            "01000000",
            "00000000"
        );
        let stored = encode(&manifest, &layout);
        let hex: String = stored.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex[..hex.len() - 8], *golden);
        assert_eq!(decode(attempt(), &stored), Ok((manifest, layout)));
    }

    #[test]
    fn a_newer_version_is_told_from_damage() {
        let (manifest, layout) = sample(&[3], SyncLevel::Full);
        let mut stored = encode(&manifest, &layout);
        stored.truncate(stored.len() - 4);
        stored[0] = 2;
        let crc = Crc32c::of(&stored);
        stored.put_u32_le(crc.get());
        assert_eq!(decode(attempt(), &stored), Err(RowError::Version { found: 2 }));
    }

    proptest! {
        #[test]
        fn rows_come_back_and_damaged_ones_do_not(
            lengths in proptest::collection::vec(0u64..200_000, 0..20), level in 0u8..3, at: prop::sample::Index, bit in 0u8..8,
        ) {
            let sync = [SyncLevel::Full, SyncLevel::Data, SyncLevel::None][usize::from(level)];
            let (manifest, layout) = sample(&lengths, sync);
            let stored = encode(&manifest, &layout);
            prop_assert_eq!(decode(attempt(), &stored), Ok((manifest, layout)));
            let mut damaged = stored.clone();
            damaged[at.index(stored.len())] ^= 1 << bit;
            prop_assert_eq!(decode(attempt(), &damaged), Err(RowError::Damaged));
            prop_assert_eq!(decode(attempt(), &stored[..at.index(stored.len())]), Err(RowError::Damaged));
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(mut bytes: Vec<u8>) {
            let crc = Crc32c::of(&bytes);
            bytes.put_u32_le(crc.get());
            let _ = decode(attempt(), &bytes);
        }
    }
}

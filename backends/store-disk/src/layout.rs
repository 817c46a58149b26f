//! Where the bytes of an attempt lie: files, regions, blocks.
//!
//! An attempt has one data file (more only when a disk filled up or failed in between). Each time
//! its buffer is written out, the bytes are sorted by subpartition, so a subpartition has one
//! *region* per write-out, however its appends were interleaved. A region is cut into *blocks* of
//! [`BLOCK_BYTES`]; each has a CRC-32C, and nothing is handed out before its block was checked.
//!
//! ```text
//!   file  | header | s0 s1 s2 … | s0 s1 s2 … |        two write-outs
//!                    ^^ region of subpartition 0: blocks of 64 KiB, the last one shorter
//! ```

use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use store_api::{Crc32c, OffsetRange};

/// Bytes under one checksum.
pub(crate) const BLOCK_BYTES: u64 = 64 * 1024;
/// First bytes of every data file: name and version of its form.
pub(crate) const FILE_MAGIC: &[u8; 16] = b"forebay-part  1\n";

/// Name of a data file, never used twice: the node life and a number counted in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FileId {
    pub(crate) life: u64,
    pub(crate) number: u64,
}

impl FileId {
    /// Reads the name of a data file; `None` when it is none.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (life, number) = name.strip_suffix(".part")?.split_once('-')?;
        let hex = |text: &str| (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok()).flatten();
        let id = Self { life: hex(life)?, number: hex(number)? };
        (id.to_string() == name).then_some(id)
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}.part", self.life, self.number)
    }
}

/// A data file as the index names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileSpan {
    /// The id of its data directory.
    pub(crate) directory: u64,
    pub(crate) file: FileId,
    /// Bytes that must be there.
    pub(crate) length: u64,
}

/// Bytes of one subpartition that lie together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) subpartition: u32,
    /// Offset of the first byte within the subpartition.
    pub(crate) start: u64,
    pub(crate) length: u64,
    /// Index into [`Layout::files`].
    pub(crate) file: u16,
    /// Where it starts in the file.
    pub(crate) offset: u64,
    /// Index of its first block's checksum in [`Layout::crcs`].
    pub(crate) first_crc: u32,
}

/// Where all bytes of an attempt lie. Regions are ordered by subpartition and start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) files: Vec<FileSpan>,
    pub(crate) regions: Vec<Region>,
    pub(crate) crcs: Vec<u32>,
}

impl Layout {
    /// The regions of a subpartition, in order.
    pub(crate) fn regions_of(&self, subpartition: u32) -> &[Region] {
        let first = self.regions.partition_point(|region| region.subpartition < subpartition);
        let end = self.regions.partition_point(|region| region.subpartition <= subpartition);
        self.regions.get(first..end).unwrap_or_default()
    }
}

/// Whole blocks that one call reads, and which of their bytes are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Index into the files.
    pub(crate) file: u16,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) crcs: Vec<u32>,
    /// The wanted bytes within it.
    pub(crate) wanted: Range<usize>,
}

impl Extent {
    /// Checks every block and cuts out what is wanted; `None` when a block is damaged.
    pub(crate) fn verified(&self, bytes: &Bytes) -> Option<Bytes> {
        let block = usize::try_from(BLOCK_BYTES).ok()?;
        let mut blocks = bytes.chunks(block);
        let all_match = self.crcs.iter().all(|stated| blocks.next().is_some_and(|held| Crc32c::of(held).get() == *stated));
        let is_whole = blocks.next().is_none() && bytes.len() as u64 == self.length;
        (all_match && is_whole && self.wanted.end <= bytes.len()).then(|| bytes.slice(self.wanted.clone()))
    }
}

/// The next read of `[at, end)` of one subpartition: whole blocks of one region, at most
/// `max_bytes` (but at least one block), and the offset after it. `None` when no region holds `at`.
pub(crate) fn next_extent(regions: &[Region], crcs: &[u32], at: u64, end: u64, max_bytes: u64) -> Option<(Extent, u64)> {
    let found = regions.partition_point(|region| region.start.saturating_add(region.length) <= at);
    let region = regions.get(found)?;
    let within = at.checked_sub(region.start)?;
    let first_block = within / BLOCK_BYTES;
    let block_start = first_block * BLOCK_BYTES;
    let wanted_end = end.checked_sub(region.start)?.min(region.length);
    // No block is read that holds nothing wanted.
    let needed = wanted_end.checked_sub(block_start)?.div_ceil(BLOCK_BYTES);
    let n_blocks = needed.min((max_bytes / BLOCK_BYTES).max(1));
    let length = (region.length - block_start).min(n_blocks * BLOCK_BYTES);
    let stop = (block_start + length).min(wanted_end);
    let first_crc = usize::try_from(u64::from(region.first_crc) + first_block).ok()?;
    let crcs = crcs.get(first_crc..)?.get(..usize::try_from(n_blocks).ok()?)?;
    let wanted = usize::try_from(within - block_start).ok()?..usize::try_from(stop - block_start).ok()?;
    let offset = region.offset.checked_add(block_start)?;
    Some((Extent { file: region.file, offset, length, crcs: crcs.to_vec(), wanted }, region.start + stop))
}

/// Cuts a range of one subpartition into reads of whole blocks. `None` when the regions do not
/// cover it.
pub(crate) fn extents(regions: &[Region], crcs: &[u32], range: OffsetRange, max_bytes: u64) -> Option<Vec<Extent>> {
    let (mut at, end) = (range.start().get(), range.end().get());
    let mut found = Vec::new();
    while at < end {
        let (extent, next) = next_extent(regions, crcs, at, end, max_bytes)?;
        found.push(extent);
        at = next;
    }
    Some(found)
}

/// Bytes of one subpartition on their way to a file.
#[derive(Debug, Clone)]
pub(crate) struct RunPart {
    pub(crate) subpartition: u32,
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) pieces: Vec<Bytes>,
}

/// One write-out: parts in order of subpartition.
#[derive(Debug, Clone, Default)]
pub(crate) struct Run {
    pub(crate) parts: Vec<RunPart>,
    pub(crate) length: u64,
}

impl Run {
    /// The pieces in the order in which they are written.
    pub(crate) fn pieces(&self) -> Vec<Bytes> {
        self.parts.iter().flat_map(|part| part.pieces.iter().cloned()).collect()
    }

    /// The regions that the run makes when it is written at `offset` of file `file`, and the
    /// checksums of their blocks; `first_crc` is the number of checksums there already.
    pub(crate) fn regions(&self, file: u16, offset: u64, first_crc: usize) -> (Vec<Region>, Vec<u32>) {
        let mut at = offset;
        let mut crcs = Vec::new();
        let mut regions = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let first_crc = u32::try_from(first_crc + crcs.len()).unwrap_or(u32::MAX);
            regions.push(Region { subpartition: part.subpartition, start: part.start, length: part.length, file, offset: at, first_crc });
            at = at.saturating_add(part.length);
            block_crcs(&part.pieces, &mut crcs);
        }
        (regions, crcs)
    }
}

fn block_crcs(pieces: &[Bytes], out: &mut Vec<u32>) {
    let block = usize::try_from(BLOCK_BYTES).unwrap_or(usize::MAX);
    let (mut crc, mut filled) = (Crc32c::default(), 0);
    for piece in pieces {
        let mut rest: &[u8] = piece;
        while !rest.is_empty() {
            let (head, tail) = rest.split_at(rest.len().min(block - filled));
            crc = crc.append(head);
            filled += head.len();
            rest = tail;
            if filled == block {
                out.push(crc.get());
                (crc, filled) = (Crc32c::default(), 0);
            }
        }
    }
    if filled > 0 {
        out.push(crc.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use store_api::Offset;

    #[test]
    fn only_our_own_file_names_are_taken_for_ours() {
        let id = FileId { life: 0xabc, number: 7 };
        assert_eq!(FileId::parse(&id.to_string()), Some(id));
        for name in ["", "x.part", "abc-7.part", "0000000000000abc-0000000000000007", "0000000000000ABC-0000000000000007.part"] {
            assert_eq!(FileId::parse(name), None, "{name}");
        }
    }

    #[test]
    fn the_form_of_a_data_file_never_changes() {
        assert_eq!(FILE_MAGIC, b"forebay-part  1\n");
        assert_eq!(BLOCK_BYTES, 65_536);
    }

    fn size(n: u64) -> usize {
        usize::try_from(n).unwrap()
    }

    proptest! {
        #[test]
        fn any_range_is_cut_into_verified_reads_that_give_exactly_it(
            runs in proptest::collection::vec(proptest::collection::vec(0usize..90_000, 0..4), 1..4),
            from in 0u64..300_000, length in 0u64..300_000, max_bytes in 0u64..300_000,
        ) {
            let mut file = Vec::new();
            let (mut regions, mut crcs, mut content) = (Vec::new(), Vec::new(), Vec::new());
            for (number, sizes) in runs.iter().enumerate() {
                let pieces: Vec<Bytes> = sizes.iter().enumerate().map(|(at, size)| vec![u8::try_from(number * 16 + at).unwrap(); *size].into()).collect();
                let bytes = pieces.concat();
                if bytes.is_empty() { continue; }
                let part = RunPart { subpartition: 3, start: content.len() as u64, length: bytes.len() as u64, pieces };
                let run = Run { length: part.length, parts: vec![part] };
                file.resize(file.len() + 5, 0xee);
                let (new_regions, new_crcs) = run.regions(0, file.len() as u64, crcs.len());
                regions.extend(new_regions);
                crcs.extend(new_crcs);
                file.extend_from_slice(&run.pieces().concat());
                content.extend_from_slice(&bytes);
            }
            let (from, to) = (from.min(content.len() as u64), from.saturating_add(length).min(content.len() as u64));
            let range = OffsetRange::new(Offset::new(from), Offset::new(to)).unwrap();
            let found = extents(&regions, &crcs, range, max_bytes).unwrap();
            let mut read = Vec::new();
            for extent in &found {
                prop_assert!(extent.length <= max_bytes.max(BLOCK_BYTES));
                let on_disk = Bytes::copy_from_slice(&file[size(extent.offset)..size(extent.offset + extent.length)]);
                read.extend_from_slice(&extent.verified(&on_disk).unwrap());
                let mut damaged = on_disk.to_vec();
                damaged[extent.wanted.start] ^= 1;
                prop_assert_eq!(extent.verified(&damaged.into()), None);
                prop_assert_eq!(extent.verified(&on_disk.slice(1..)), None);
            }
            prop_assert_eq!(&read[..], &content[size(from)..size(to)]);
            let beyond = OffsetRange::new(Offset::new(from), Offset::new(content.len() as u64 + 1)).unwrap();
            prop_assert_eq!(extents(&regions, &crcs, beyond, max_bytes), None);
        }
    }
}

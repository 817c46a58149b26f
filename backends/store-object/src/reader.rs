//! Reads of sealed content: ranged, a little ahead of the reader, every block checked before it is
//! handed out.
//!
//! A body that breaks is gone on with where it broke ([`crate::bucket::Bucket::fetch_range`]). A
//! block that fails its check is fetched once more; if it fails again the content is lost. Content
//! that is not there any more makes the reader look at the seal again: it was released, or fenced,
//! or is lost.

use crate::error::{BucketError, Fault};
use crate::inner::Inner;
use crate::lookup::unknown;
use crate::manifest::{Content, ObjectContent, Sealed};
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use object_store::path::Path;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use store_api::store::clip_range;
use store_api::{
    AttemptKey, BudgetError, Crc32c, LossCause, Offset, OffsetRange, Operation, ReadRequest, ReadStream, StoreError, StoreErrorKind,
};

/// Fetches under way or waiting for the reader, per stream.
const AHEAD: usize = 2;
/// Longest wait for memory to read into.
const PATIENCE: Duration = Duration::from_secs(30);

/// One fetch: some whole blocks of one object, of which a part is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Step {
    object: usize,
    /// In the object; whole blocks.
    range: Range<u64>,
    /// Lengths and checksums of the blocks.
    blocks: Vec<(u64, Crc32c)>,
    /// Bytes at the front that are not wanted.
    skip: u64,
    /// Bytes wanted.
    take: u64,
}

/// Cuts a range of a subpartition into fetches of at most about `read_bytes`.
fn plan(content: &ObjectContent, subpartition: u32, wanted: OffsetRange, read_bytes: u64) -> Vec<Step> {
    let block_bytes = u64::from(content.block_bytes).max(1);
    let mut steps: Vec<Step> = Vec::new();
    let mut at = Offset::ZERO;
    for region in &content.regions {
        let Some(extent) = region.extent(subpartition) else { continue };
        let Some(held) = OffsetRange::at(at, extent.length) else { return steps };
        at = held.end();
        let Some(part) = held.intersect(wanted) else { continue };
        let first = part.start().since(held.start()) / block_bytes;
        let last = part.end().since(held.start()).div_ceil(block_bytes);
        for block in first..last {
            let from = block.saturating_mul(block_bytes);
            let until = from.saturating_add(block_bytes).min(extent.length);
            let crc_at = usize::try_from(block).ok().and_then(|block| block.checked_add(usize::try_from(extent.first_crc).ok()?));
            // The codec refuses a manifest with fewer checksums than blocks.
            let crc = crc_at.and_then(|index| region.crcs.get(index)).copied().unwrap_or_default();
            let skip = part.start().since(held.start()).saturating_sub(from);
            let end = part.end().since(held.start()).min(until);
            let take = end.saturating_sub(from.saturating_add(skip));
            let range = extent.start.saturating_add(from)..extent.start.saturating_add(until);
            let object = usize::try_from(region.object).unwrap_or(usize::MAX);
            match steps.last_mut() {
                // Blocks that follow each other and are wanted to their borders share a fetch.
                Some(step)
                    if step.object == object
                        && step.range.end == range.start
                        && skip == 0
                        && step.range.end.saturating_sub(step.range.start) == step.skip.saturating_add(step.take)
                        && range.end.saturating_sub(step.range.start) <= read_bytes =>
                {
                    step.range.end = range.end;
                    step.blocks.push((until.saturating_sub(from), crc));
                    step.take = step.take.saturating_add(take);
                }
                _ => steps.push(Step { object, range, blocks: vec![(until.saturating_sub(from), crc)], skip, take }),
            }
        }
    }
    steps
}

fn verify(bytes: &Bytes, blocks: &[(u64, Crc32c)]) -> bool {
    let mut rest: &[u8] = bytes;
    for (length, crc) in blocks {
        let length = usize::try_from(*length).unwrap_or(usize::MAX);
        let Some((block, later)) = rest.split_at_checked(length) else { return false };
        if Crc32c::of(block) != *crc {
            return false;
        }
        rest = later;
    }
    rest.is_empty()
}

impl Inner {
    /// See [`store_api::PartitionStore::read`].
    pub(crate) async fn read(self: &Arc<Self>, request: ReadRequest) -> Result<ReadStream, StoreError> {
        self.check_open(Operation::Read, &request.attempt)?;
        let sealed = self.find(&request.attempt, Operation::Read).await?;
        let table = &sealed.manifest.table;
        let digest = table.digest(request.subpartition).ok_or_else(|| {
            StoreError::new(StoreErrorKind::NoSuchSubpartition { count: table.count() }, Operation::Read, &request.attempt)
        })?;
        let range = clip_range(&request, Offset::ZERO, Offset::new(digest.length))?;
        let chunks = match &sealed.content {
            Content::Inline(bytes) => inline(&sealed, bytes, &request, range)?,
            Content::Objects(content) => {
                let steps = plan(content, request.subpartition.get(), range, self.config.read_bytes);
                self.clone().stream(request.attempt, self.content_paths(&sealed).into(), steps)
            }
        };
        Ok(ReadStream { start: range.start(), end: Some(range.end()), digest: Some(digest), chunks })
    }

    fn stream(self: Arc<Self>, key: AttemptKey, paths: Arc<[Path]>, steps: Vec<Step>) -> BoxStream<'static, Result<Bytes, StoreError>> {
        let fetches = futures::stream::iter(steps).map(move |step| {
            let (inner, key, paths) = (self.clone(), key.clone(), paths.clone());
            async move { inner.fetch_step(&key, &paths, step).await }
        });
        let ahead = fetches.buffered(AHEAD).boxed();
        let until_error = futures::stream::unfold(Some(ahead), |ahead| async move {
            let mut ahead = ahead?;
            match ahead.next().await? {
                Ok(bytes) => Some((Ok(bytes), Some(ahead))),
                Err(error) => Some((Err(error), None)),
            }
        });
        until_error.boxed()
    }

    async fn fetch_step(&self, key: &AttemptKey, paths: &[Path], step: Step) -> Result<Bytes, StoreError> {
        let fail = |kind| StoreError::new(kind, Operation::Read, key);
        let length = step.range.end.saturating_sub(step.range.start);
        let path = paths.get(step.object).ok_or_else(|| fail(StoreErrorKind::Internal))?;
        let _memory = self.reads.reserve(length, PATIENCE).await.map_err(|error| {
            fail(match error {
                BudgetError::TooLarge { requested, limit } => StoreErrorKind::TooLarge { requested, limit },
                BudgetError::Exhausted { retry_after } => StoreErrorKind::Overloaded { retry_after },
            })
        })?;
        for _ in 0..2 {
            self.check_open(Operation::Read, key)?;
            let bytes = match self.bucket.fetch_range(path, step.range.clone()).await {
                Ok(bytes) => bytes,
                Err(error) => return Err(self.explain_read(error, key, path, step.range.end).await),
            };
            if verify(&bytes, &step.blocks) {
                // Sizes of blocks in memory fit a usize.
                let skip = usize::try_from(step.skip).unwrap_or(usize::MAX).min(bytes.len());
                let end = skip.saturating_add(usize::try_from(step.take).unwrap_or(usize::MAX)).min(bytes.len());
                return Ok(bytes.slice(skip..end));
            }
            tracing::warn!(attempt = %key, start = step.range.start, bytes = length, "a block from the object store fails its check");
        }
        Err(fail(StoreErrorKind::Lost { cause: LossCause::Corruption }))
    }

    /// Why content cannot be read: gone on purpose, gone, too short, or not known.
    async fn explain_read(&self, error: BucketError, key: &AttemptKey, path: &Path, end: u64) -> StoreError {
        let fail = |kind| StoreError::new(kind, Operation::Read, key);
        if error.fault == Fault::Missing {
            return match self.refresh(key, Operation::Read).await {
                Err(reason) => reason,
                Ok(_) => fail(StoreErrorKind::Lost { cause: LossCause::ObjectStore }).with_source(error),
            };
        }
        match self.bucket.size(path).await {
            Ok(Some(size)) if size < end => fail(StoreErrorKind::Lost { cause: LossCause::Corruption }).with_source(error),
            _ => unknown(error, Operation::Read, key),
        }
    }
}

/// Content that came with its manifest, whose checksum covers it.
fn inline(
    sealed: &Sealed,
    bytes: &Bytes,
    request: &ReadRequest,
    range: OffsetRange,
) -> Result<BoxStream<'static, Result<Bytes, StoreError>>, StoreError> {
    let before = sealed.manifest.table.non_empty().take_while(|(index, _)| *index < request.subpartition);
    let base = before.fold(0_u64, |sum, (_, digest)| sum.saturating_add(digest.length));
    let border = |offset: Offset| usize::try_from(base.saturating_add(offset.get())).unwrap_or(usize::MAX);
    let (start, end) = (border(range.start()), border(range.end()));
    if start > end || end > bytes.len() {
        return Err(StoreError::new(StoreErrorKind::Lost { cause: LossCause::Corruption }, Operation::Read, &request.attempt));
    }
    let wanted = (start < end).then(|| Ok(bytes.slice(start..end)));
    Ok(futures::stream::iter(wanted).boxed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Extent, Region};
    use proptest::prelude::*;

    /// Two subpartitions in regions of the given lengths, all in one object.
    fn content(lengths: &[(u64, u64)], block_bytes: u32) -> (ObjectContent, Vec<u8>, [Vec<u8>; 2]) {
        let mut object: Vec<u8> = Vec::new();
        let mut each = [Vec::new(), Vec::new()];
        let mut regions = Vec::new();
        for (zero, one) in lengths {
            let mut region = Region::default();
            for (index, length) in [(0_u32, *zero), (1, *one)] {
                if length == 0 {
                    continue;
                }
                let bytes: Vec<u8> = (0..length).map(|at| u8::try_from((at * 31 + object.len() as u64) % 251).unwrap()).collect();
                let first_crc = u32::try_from(region.crcs.len()).unwrap();
                region.extents.push(Extent { subpartition: index, start: object.len() as u64, length, first_crc });
                region.crcs.extend(bytes.chunks(block_bytes as usize).map(Crc32c::of));
                object.extend_from_slice(&bytes);
                each[index as usize].extend_from_slice(&bytes);
            }
            regions.push(region);
        }
        (ObjectContent { block_bytes, objects: vec![(0, object.len() as u64)], regions }, object, each)
    }

    proptest! {
        #[test]
        fn a_plan_gives_exactly_the_wanted_bytes(
            lengths in proptest::collection::vec((0_u64..60, 0_u64..60), 0..6),
            block in 1_u32..40, read in 40_u64..200, start in 0_u64..200, length in 0_u64..200, index in 0_u32..2,
        ) {
            let (content, object, each) = content(&lengths, block);
            let held = &each[index as usize];
            let start = start.min(held.len() as u64);
            let end = (start + length).min(held.len() as u64);
            let wanted = OffsetRange::new(Offset::new(start), Offset::new(end)).unwrap();
            let mut got = Vec::new();
            for step in plan(&content, index, wanted, read) {
                prop_assert!(step.range.end - step.range.start <= read.max(u64::from(block)));
                let range = usize::try_from(step.range.start).unwrap()..usize::try_from(step.range.end).unwrap();
                let bytes = Bytes::copy_from_slice(&object[range]);
                prop_assert!(verify(&bytes, &step.blocks));
                let skip = usize::try_from(step.skip).unwrap();
                got.extend_from_slice(&bytes[skip..skip + usize::try_from(step.take).unwrap()]);
            }
            prop_assert_eq!(got.as_slice(), &held[usize::try_from(start).unwrap()..usize::try_from(end).unwrap()]);
        }
    }

    /// Two subpartitions over two objects and four regions, the first of gigabytes.
    fn huge(block_bytes: u32) -> ObjectContent {
        const GIB: u64 = 1 << 30;
        let lengths = [(0_u32, [5 * GIB + 7, 100]), (0, [3, 0]), (1, [6 * GIB, 1]), (1, [1, 9 * GIB])];
        let mut ends = [0_u64; 2];
        let mut regions = Vec::new();
        for (object, each) in lengths {
            let mut region = Region { object, ..Region::default() };
            for (subpartition, length) in (0..).zip(each).filter(|(_, length)| *length > 0) {
                let first_crc = u32::try_from(region.crcs.len()).unwrap();
                region.extents.push(Extent { subpartition, start: ends[object as usize], length, first_crc });
                // Each block's checksum is its number, so that it can be told which were taken.
                let n_blocks = u32::try_from(length.div_ceil(u64::from(block_bytes))).unwrap();
                region.crcs.extend((0..n_blocks).map(|block| Crc32c::new(first_crc + block)));
                ends[object as usize] += length;
            }
            regions.push(region);
        }
        ObjectContent { block_bytes, objects: vec![(0, ends[0]), (1, ends[1])], regions }
    }

    #[test]
    fn plans_far_out_name_the_right_bytes_of_the_right_object() {
        let block_bytes = 1_u32 << 20;
        let content = huge(block_bytes);
        let block = u64::from(block_bytes);
        for index in 0..2 {
            let extents: Vec<(u32, Extent)> =
                content.regions.iter().filter_map(|region| Some((region.object, *region.extent(index)?))).collect();
            let total: u64 = extents.iter().map(|(_, extent)| extent.length).sum();
            let edges = [1_u64 << 31, 1 << 32, (5 << 30) + 7, (5 << 30) + 10, 100, 101, total];
            for start in edges.into_iter().map(|edge| edge.saturating_sub(3)) {
                for length in [1, 5, 3 * block + 1] {
                    let end = (start + length).min(total);
                    let wanted = OffsetRange::new(Offset::new(start), Offset::new(end.max(start))).unwrap();
                    let mut at = start;
                    for step in plan(&content, index, wanted, 4 << 20) {
                        // Where the next byte lies, found by walking over the extents.
                        let mut before = 0;
                        let (object, extent) = extents
                            .iter()
                            .find(|(_, extent)| {
                                let is_here = at - before < extent.length;
                                before += if is_here { 0 } else { extent.length };
                                is_here
                            })
                            .unwrap();
                        assert_eq!(step.object, *object as usize);
                        assert_eq!(step.range.start + step.skip, extent.start + (at - before), "[{start}, {end}) at {at}");
                        assert!(step.range.end <= extent.start + extent.length && step.range.end - step.range.start <= 4 << 20);
                        let first_block = u32::try_from((at - before) / block).unwrap();
                        assert_eq!(step.blocks[0].1, Crc32c::new(extent.first_crc + first_block));
                        assert_eq!(step.blocks.iter().map(|(length, _)| length).sum::<u64>(), step.range.end - step.range.start);
                        at += step.take;
                    }
                    assert_eq!(at, end.max(start), "[{start}, {end})");
                }
            }
        }
    }

    #[test]
    fn a_damaged_or_short_block_fails_its_check() {
        let block = Bytes::from_static(b"0123456789");
        let blocks = [(4, Crc32c::of(b"0123")), (6, Crc32c::of(b"456789"))];
        assert!(verify(&block, &blocks));
        assert!(!verify(&Bytes::from_static(b"0123456780"), &blocks));
        assert!(!verify(&block.slice(..9), &blocks));
        assert!(!verify(&block, &blocks[..1]));
    }
}

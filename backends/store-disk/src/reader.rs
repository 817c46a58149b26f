//! Reads of sealed attempts: streams with read-ahead, and batches in the order of the medium.

use crate::attempt::{Attempt, Phase};
use crate::core::{Core, FileAt, Media, read_failure};
use crate::layout::{Extent, Layout, next_extent};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use std::future::ready;
use std::sync::Arc;
use store_api::reads::{charged, paced};
use store_api::store::{clip_range, follow};
use store_api::{
    BudgetError, Chunk, Digest, FetchEvent, LossCause, Offset, OffsetRange, Operation, Permit, ReadBudget, ReadRequest, ReadStream,
    StoreError, StoreErrorKind,
};

/// Bytes between two items of a batch that are read for nothing rather than making a call more.
const MAX_GAP: u64 = 64 * 1024;

/// A read that was checked against what is held.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    attempt: Arc<Attempt>,
    layout: Arc<Layout>,
    range: OffsetRange,
    digest: Digest,
    subpartition: u32,
}

impl Plan {
    fn next_extent(&self, at: u64, max_bytes: u64) -> Option<(Extent, u64)> {
        let regions = self.layout.regions_of(self.subpartition);
        next_extent(regions, &self.layout.crcs, at, self.range.end().get(), max_bytes)
    }

    fn file(&self, media: &Media, extent: &Extent) -> Option<FileAt> {
        self.layout.files.get(usize::from(extent.file)).and_then(|span| media.place(span))
    }
}

impl Core {
    /// Checks a read request. Errors: those of a read before its first byte.
    pub(crate) fn plan(&self, request: &ReadRequest) -> Result<Plan, StoreError> {
        self.refuse_closing(Operation::Read, &request.attempt)?;
        let found = self.registry.find(&request.attempt);
        let attempt = found.map_err(|kind| StoreError::new(kind, Operation::Read, &request.attempt))?;
        let (manifest, layout) = {
            let inner = attempt.inner.lock();
            let refuse = |kind| Err(attempt.refuse(kind, Operation::Read));
            match (&inner.phase, &inner.layout) {
                (Phase::Sealed(manifest), Some(layout)) => (manifest.clone(), layout.clone()),
                (Phase::Sealed(_), None) => return refuse(StoreErrorKind::Internal),
                (Phase::Gone(_, cause), _) => return refuse(StoreErrorKind::Lost { cause: *cause }),
                (Phase::Ended(end), _) => return refuse(end.kind()),
                (Phase::Open | Phase::Preparing | Phase::Prepared(_) | Phase::Publishing(_), _) => {
                    return refuse(StoreErrorKind::NotSealed);
                }
            }
        };
        let Some(digest) = manifest.table.digest(request.subpartition) else {
            return Err(attempt.refuse(StoreErrorKind::NoSuchSubpartition { count: attempt.n_subpartitions }, Operation::Read));
        };
        let range = clip_range(request, Offset::ZERO, Offset::new(digest.length))?;
        Ok(Plan { attempt, layout, range, digest, subpartition: request.subpartition.get() })
    }

    /// Starts a stream.
    pub(crate) fn stream(&self, plan: Plan) -> ReadStream {
        let (start, end, digest) = (plan.range.start(), plan.range.end(), plan.digest);
        let plan = Arc::new(plan);
        let (of_steps, media, max_bytes) = (plan.clone(), self.media.clone(), self.config.read_bytes);
        let mut at = Some(start.get());
        let next_step = move |budget: &ReadBudget| {
            let from = at.filter(|from| *from < end.get())?;
            let next = of_steps.next_extent(from, budget.share(max_bytes));
            at = next.as_ref().map(|(_, next)| *next);
            let extent = next.map(|(extent, _)| extent);
            Some((extent.as_ref().map_or(0, |extent| extent.length), extent))
        };
        let chunks = paced(self.reads.clone(), next_step, move |extent: Option<Extent>, permit| {
            let (media, plan) = (media.clone(), plan.clone());
            async move {
                let lost = StoreErrorKind::Lost { cause: LossCause::Corruption };
                let extent = extent.ok_or_else(|| read_failure(&plan.attempt, lost))?;
                let permit = permit.map_err(|error| plan.attempt.refuse(no_memory(error), Operation::Read))?;
                let at = plan.file(&media, &extent);
                Ok(charged(media.read_extent(&plan.attempt, at, extent).await?, permit))
            }
        });
        let chunks = chunks
            .scan(false, |has_failed, step: Result<Bytes, StoreError>| {
                let is_over = std::mem::replace(has_failed, step.is_err());
                ready((!is_over).then_some(step))
            })
            .boxed();
        ReadStream { start, end: Some(end), digest: Some(digest), chunks }
    }

    /// Reads many items: those that one call can serve in the order of the medium, neighbours in
    /// one call; the rest as streams.
    pub(crate) fn batch(self: &Arc<Self>, items: Vec<ReadRequest>) -> BoxStream<'static, FetchEvent> {
        let mut at_once = Vec::new();
        let mut single = Vec::new();
        let mut long = Vec::new();
        let max_bytes = self.reads.share(self.config.fetch_bytes);
        for (item, request) in items.into_iter().enumerate() {
            let plan = match self.plan(&request) {
                Ok(plan) => plan,
                Err(error) => {
                    at_once.push(FetchEvent::Failed { item, at: request.start, error });
                    continue;
                }
            };
            if plan.range.is_empty() {
                at_once.push(FetchEvent::End { item, end: plan.range.end() });
                continue;
            }
            let first = plan.next_extent(plan.range.start().get(), max_bytes);
            match first {
                Some((extent, next)) if next == plan.range.end().get() => {
                    let file = plan.file(&self.media, &extent);
                    single.push(Single { item, plan, file, extent });
                }
                _ => long.push((item, plan)),
            }
        }
        single.sort_by_key(|one| (one.file, one.extent.offset));
        let (media, core) = (self.media.clone(), self.clone());
        let mut groups = group(single, max_bytes).into_iter();
        let next_group = move |_: &ReadBudget| groups.next().map(|group| (span_of(&group).1, group));
        let reads = self.reads.clone();
        let read = move |group, permit| read_group(media.clone(), reads.clone(), group, permit);
        let singles = paced(self.reads.clone(), next_group, read).flat_map(stream::iter);
        let longs = stream::iter(long).flat_map(move |(item, plan)| follow(item, core.stream(plan)));
        stream::iter(at_once).chain(singles).chain(longs).boxed()
    }
}

/// An item that one extent serves.
#[derive(Debug)]
struct Single {
    item: usize,
    plan: Plan,
    file: Option<FileAt>,
    extent: Extent,
}

/// Puts neighbours together: same file, little between them, no more than `max_bytes` in all.
fn group(sorted: Vec<Single>, max_bytes: u64) -> Vec<Vec<Single>> {
    let mut groups: Vec<Vec<Single>> = Vec::new();
    let mut reach = (None, 0_u64, 0_u64);
    for one in sorted {
        let (file, start, end) = reach;
        let one_end = one.extent.offset.saturating_add(one.extent.length).max(if file == Some(one.file) { end } else { 0 });
        let is_near = file == Some(one.file) && one.extent.offset <= end.saturating_add(MAX_GAP) && one_end - start <= max_bytes;
        match groups.last_mut().filter(|_| is_near) {
            Some(group) => {
                reach.2 = one_end;
                group.push(one);
            }
            None => {
                reach = (Some(one.file), one.extent.offset, one.extent.offset.saturating_add(one.extent.length));
                groups.push(vec![one]);
            }
        }
    }
    groups
}

/// Where a group starts in its file, and how long it is.
fn span_of(group: &[Single]) -> (u64, u64) {
    let start = group.iter().map(|one| one.extent.offset).min().unwrap_or_default();
    let end = group.iter().map(|one| one.extent.offset.saturating_add(one.extent.length)).max().unwrap_or_default();
    (start, end.saturating_sub(start))
}

/// The refusal of a reader for whose bytes there is no memory.
fn no_memory(error: BudgetError) -> StoreErrorKind {
    match error {
        BudgetError::TooLarge { requested, limit } => StoreErrorKind::TooLarge { requested, limit },
        BudgetError::Exhausted { retry_after } => StoreErrorKind::Overloaded { retry_after },
    }
}

/// Reads a group with one call and cuts it up; when that fails, each item for itself, so that one
/// bad place fails only its own item.
async fn read_group(media: Arc<Media>, reads: ReadBudget, group: Vec<Single>, permit: Result<Permit, BudgetError>) -> Vec<FetchEvent> {
    let (start, length) = span_of(&group);
    let file = group.first().and_then(|one| one.file);
    let mut events = Vec::with_capacity(group.len() * 2);
    let mut permit = match permit {
        Ok(permit) => Some(permit),
        Err(error) => {
            let refuse = |one: Single| {
                let refusal = one.plan.attempt.refuse(no_memory(error), Operation::Read);
                FetchEvent::Failed { item: one.item, at: one.plan.range.start(), error: refusal }
            };
            return group.into_iter().map(refuse).collect();
        }
    };
    let together = match file.filter(|_| group.len() > 1 && !media.is_closing.load(std::sync::atomic::Ordering::SeqCst)) {
        Some(file) => {
            let read = media.read(file, (start, length), |bytes| bytes).await.ok();
            read.and_then(|bytes| permit.take().map(|permit| charged(bytes, permit)))
        }
        None => None,
    };
    for one in group {
        let cut = together.as_ref().and_then(|bytes| {
            let from = usize::try_from(one.extent.offset - start).ok()?;
            let to = from.checked_add(usize::try_from(one.extent.length).ok()?)?;
            (to <= bytes.len()).then(|| bytes.slice(from..to))
        });
        let served = match cut.and_then(|bytes| one.extent.verified(&bytes)) {
            Some(bytes) => Ok(bytes),
            None => {
                // The memory of the group is enough for any one of it.
                let memory = match permit.take() {
                    Some(permit) => Ok(permit),
                    None => reads.reserve(one.extent.length).await,
                };
                read_one(&media, &one, memory).await
            }
        };
        push_single(&mut events, one.item, &one.plan, served);
    }
    events
}

async fn read_one(media: &Arc<Media>, one: &Single, permit: Result<Permit, BudgetError>) -> Result<Bytes, StoreError> {
    let permit = permit.map_err(|error| one.plan.attempt.refuse(no_memory(error), Operation::Read))?;
    Ok(charged(media.read_extent(&one.plan.attempt, one.file, one.extent.clone()).await?, permit))
}

fn push_single(events: &mut Vec<FetchEvent>, item: usize, plan: &Plan, served: Result<Bytes, StoreError>) {
    let start = plan.range.start();
    match served {
        Ok(bytes) => {
            events.push(FetchEvent::Data { item, start, chunk: Chunk::new(bytes) });
            events.push(FetchEvent::End { item, end: plan.range.end() });
        }
        Err(error) => events.push(FetchEvent::Failed { item, at: start, error }),
    }
}

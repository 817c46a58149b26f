//! Batch reads: many ranges, from all nodes that hold them, as one stream.
//!
//! Items are resolved (attempt and holder, by one availability call for those that name none),
//! grouped by node, and asked for with a byte budget per request; nodes are read side by side. What
//! is paused, cut or damaged goes on where it stopped, on the same attempt. A moved item is followed
//! once. What cannot be had is an error of that item alone.

use crate::dataset::DatasetHandle;
use crate::error::{ClientError, Result};
use crate::retry::Attempts;
use crate::transport::{Answer, Caller, Failure};
use bytes::Bytes;
use forebay_protocol::Problem;
use forebay_protocol::partitions::{Location, ManifestDocument};
use forebay_protocol::reads::{AvailabilityItem, FetchItem, FetchRequest};
use futures::Stream;
use futures::stream::{BoxStream, StreamExt as _};
use http::Method;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use store_api::frame::{Frame, FrameDecoder, FrameError, FrameKind, MAX_PAYLOAD};
use store_api::{Offset, PartitionId, SubpartitionIndex};

const NODES_AT_ONCE: usize = 8;
const ITEMS_PER_REQUEST: usize = 10_000;

/// What is wanted, and where it is if that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchTarget {
    /// What is wanted. An item that names no attempt gets the present one.
    pub item: FetchItem,
    /// The holder, from a listing or from the availability; asked for when it is left out.
    pub location: Option<Location>,
}

impl FetchTarget {
    /// A run of subpartitions of a partition that a listing or a seal named.
    #[must_use]
    pub fn sealed(manifest: &ManifestDocument, first: SubpartitionIndex, n_subpartitions: u32) -> Self {
        let attempt = Some(manifest.attempt.clone());
        let item = FetchItem { partition: manifest.partition, subpartition: first.get(), n_subpartitions, from: 0, to: None, attempt };
        Self { item, location: Some(manifest.location.clone()) }
    }

    /// A whole subpartition, wherever it is.
    #[must_use]
    pub const fn anywhere(partition: PartitionId, subpartition: SubpartitionIndex) -> Self {
        let item = FetchItem {
            partition: partition.get(),
            subpartition: subpartition.get(),
            n_subpartitions: 1,
            from: 0,
            to: None,
            attempt: None,
        };
        Self { item, location: None }
    }
}

/// Names the subpartition that a piece belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FetchedItem {
    /// Which of the targets asked for it, from 0.
    pub target: usize,
    /// The partition.
    pub partition: PartitionId,
    /// The subpartition.
    pub subpartition: SubpartitionIndex,
}

/// One piece of the answer. Pieces of one item come in order; items come in any.
#[derive(Debug)]
pub enum FetchPiece {
    /// Bytes, checked.
    Bytes {
        /// Whose they are.
        item: FetchedItem,
        /// Where they start.
        offset: Offset,
        /// The bytes.
        bytes: Bytes,
    },
    /// All of the item has been handed out.
    End {
        /// Which.
        item: FetchedItem,
        /// Where it ended.
        offset: Offset,
    },
    /// The rest of the item cannot be had.
    Failed {
        /// Which.
        item: FetchedItem,
        /// First byte that was not handed out.
        offset: Offset,
        /// Why.
        error: ClientError,
    },
}

impl DatasetHandle {
    /// Reads many ranges from all nodes that hold them. See [`FetchStream`].
    #[must_use]
    pub fn fetch(&self, targets: Vec<FetchTarget>, budget_bytes: u64) -> FetchStream {
        FetchStream::new(self.clone(), targets, budget_bytes)
    }
}

/// The pieces of a batch read. Every item ends with exactly one [`FetchPiece::End`] or
/// [`FetchPiece::Failed`]. Dropping the stream ends its requests.
///
/// ```no_run
/// # use futures::StreamExt;
/// # use forebay_client::{FetchPiece, FetchTarget};
/// # use store_api::{PartitionId, SubpartitionIndex};
/// # async fn example(stage: forebay_client::DatasetHandle) -> forebay_client::Result<()> {
/// let targets = (0..8).map(|partition| FetchTarget::anywhere(PartitionId::new(partition), SubpartitionIndex::new(3))).collect();
/// let mut pieces = stage.fetch(targets, 64 << 20);
/// while let Some(piece) = pieces.next().await {
///     if let FetchPiece::Failed { error, .. } = piece {
///         return Err(error);
///     }
/// }
/// # Ok(()) }
/// ```
pub struct FetchStream(BoxStream<'static, FetchPiece>);

impl std::fmt::Debug for FetchStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FetchStream")
    }
}

impl Stream for FetchStream {
    type Item = FetchPiece;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<FetchPiece>> {
        self.0.as_mut().poll_next(cx)
    }
}

impl FetchStream {
    pub(crate) fn new(dataset: DatasetHandle, targets: Vec<FetchTarget>, budget_bytes: u64) -> Self {
        let start = async move {
            let (units, failed) = resolve(&dataset, targets).await;
            let mut nodes: BTreeMap<Option<String>, VecDeque<Unit>> = BTreeMap::new();
            for (url, unit) in units {
                nodes.entry(url).or_default().push_back(unit);
            }
            let nodes =
                futures::stream::iter(nodes).map(move |(url, units)| NodeRead::new(dataset.clone(), url, units, budget_bytes).pieces());
            futures::stream::iter(failed).chain(nodes.flatten_unordered(NODES_AT_ONCE))
        };
        Self(futures::stream::once(start).flatten().boxed())
    }
}

/// One subpartition of a target, and how far it has come.
#[derive(Debug, Clone)]
struct Unit {
    id: FetchedItem,
    at: u64,
    to: Option<u64>,
    attempt: Option<String>,
    has_begun: bool,
    has_moved: bool,
    n_refused: u32,
}

impl Unit {
    fn failed(&self, error: ClientError) -> FetchPiece {
        FetchPiece::Failed { item: self.id, offset: Offset::new(self.at), error }
    }
}

/// Finds attempt and holder of the targets that do not name them, and counts out the runs.
async fn resolve(dataset: &DatasetHandle, targets: Vec<FetchTarget>) -> (Vec<(Option<String>, Unit)>, Vec<FetchPiece>) {
    let is_open = |target: &&FetchTarget| target.item.attempt.is_none() || target.location.is_none();
    let mut wanted: Vec<u64> = targets.iter().filter(is_open).map(|target| target.item.partition).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let mut known = HashMap::new();
    let mut failure: Option<ClientError> = None;
    for part in wanted.chunks(ITEMS_PER_REQUEST) {
        let name = dataset.id.to_string();
        let ask = |partition: &u64| AvailabilityItem { dataset: name.clone(), partition: *partition, n_partitions: 1, subpartition: None };
        match dataset.job.availability(part.iter().map(ask).collect()).await {
            Ok(found) => known.extend(found.partitions.into_iter().map(|entry| (entry.partition, entry))),
            Err(error) => failure = Some(error),
        }
    }
    let (mut units, mut failed) = (Vec::new(), Vec::new());
    for (at, target) in targets.iter().enumerate() {
        let entry = is_open(&target).then(|| known.get(&target.item.partition)).flatten();
        let location = target.location.as_ref().or_else(|| entry.and_then(|entry| entry.location.as_ref()));
        let attempt = target.item.attempt.clone().or_else(|| entry.and_then(|entry| entry.attempt.clone()));
        for step in 0..target.item.n_subpartitions {
            let subpartition = SubpartitionIndex::new(target.item.subpartition.saturating_add(step));
            let id = FetchedItem { target: at, partition: PartitionId::new(target.item.partition), subpartition };
            let unit = Unit {
                id,
                at: target.item.from,
                to: target.item.to,
                attempt: attempt.clone(),
                has_begun: false,
                has_moved: false,
                n_refused: 0,
            };
            if is_open(&target) && entry.is_none() && failure.is_some() {
                let detail = "the availability could not be asked for".to_owned();
                let error = failure.take().unwrap_or(ClientError::ResolveAgain { detail: detail.clone(), problem: None });
                failure = Some(ClientError::ResolveAgain { detail, problem: None });
                failed.push(unit.failed(error));
            } else {
                units.push((location.map(|location| location.url.clone()), unit));
            }
        }
    }
    (units, failed)
}

/// Joins units that follow each other, so that a request stays short. Counting the items out gives
/// the units in their order again.
fn pack<'a>(units: impl Iterator<Item = &'a Unit>) -> Vec<FetchItem> {
    let mut items: Vec<FetchItem> = Vec::new();
    for unit in units {
        let (partition, subpartition) = (unit.id.partition.get(), unit.id.subpartition.get());
        if let Some(last) = items.last_mut()
            && last.partition == partition
            && last.subpartition.checked_add(last.n_subpartitions) == Some(subpartition)
            && (last.from, last.to, &last.attempt) == (unit.at, unit.to, &unit.attempt)
        {
            last.n_subpartitions += 1;
        } else {
            let attempt = unit.attempt.clone();
            items.push(FetchItem { partition, subpartition, n_subpartitions: 1, from: unit.at, to: unit.to, attempt });
        }
    }
    items
}

struct Batch {
    url: Option<String>,
    units: VecDeque<Unit>,
}

/// A request that is being answered. Units leave it as they end; `None` is a unit that has left.
struct Open {
    answer: Answer,
    decoder: FrameDecoder,
    units: Vec<Option<Unit>>,
    paused: Vec<Unit>,
    pause: Option<Duration>,
    has_moved_on: bool,
}

/// Reads from one node, and from those that it names.
struct NodeRead {
    dataset: DatasetHandle,
    budget_bytes: u64,
    work: VecDeque<Batch>,
    open: Option<Open>,
    ready: VecDeque<FetchPiece>,
    attempts: Attempts,
}

impl NodeRead {
    fn new(dataset: DatasetHandle, url: Option<String>, units: VecDeque<Unit>, budget_bytes: u64) -> Self {
        let attempts = dataset.job.caller.attempts();
        Self { dataset, budget_bytes, work: VecDeque::from([Batch { url, units }]), open: None, ready: VecDeque::new(), attempts }
    }

    fn pieces(self) -> BoxStream<'static, FetchPiece> {
        futures::stream::unfold(self, |mut read| async move { read.next().await.map(|piece| (piece, read)) }).boxed()
    }

    async fn next(&mut self) -> Option<FetchPiece> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Some(piece);
            }
            if self.open.is_none() {
                while self.work.front().is_some_and(|batch| batch.units.is_empty()) {
                    self.work.pop_front();
                    self.attempts = self.dataset.job.caller.attempts();
                }
                self.work.front()?;
            }
            if let Err(failure) = self.step().await {
                self.give_back();
                self.pause(failure).await;
            }
        }
    }

    /// Waits before the next request, or fails what can no longer be hoped for.
    async fn pause(&mut self, failure: Failure) {
        let is_damage = matches!(failure, Failure::Damaged { .. });
        let caller = self.dataset.job.caller.clone();
        let Err(error) = caller.pause(&mut self.attempts, failure).await else { return };
        let Some(batch) = self.work.front_mut() else { return };
        // Damage is of the first item that is left; silence and refusals are of the whole node.
        let n_failed = if is_damage { 1 } else { batch.units.len() };
        let detail = error.to_string();
        let mut first = Some(error);
        for unit in batch.units.drain(..n_failed.min(batch.units.len())) {
            let error = first.take().unwrap_or_else(|| ClientError::ResolveAgain { detail: detail.clone(), problem: None });
            self.ready.push_back(unit.failed(error));
        }
        self.attempts.progressed();
    }

    /// Puts what an answer left over back in front; items that cannot be resumed safely fail.
    fn give_back(&mut self) {
        let Some(open) = self.open.take() else { return };
        let Some(batch) = self.work.front_mut() else { return };
        for unit in open.paused.into_iter().rev().chain(open.units.into_iter().flatten().rev()) {
            if unit.has_begun && unit.attempt.is_none() {
                let detail = "the item was cut, and no attempt is known to go on with".to_owned();
                self.ready.push_back(unit.failed(ClientError::ResolveAgain { detail, problem: None }));
            } else {
                batch.units.push_front(unit);
            }
        }
    }

    async fn step(&mut self) -> std::result::Result<(), Failure> {
        if self.open.is_none() {
            let open = self.request().await?;
            self.open = Some(open);
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        let frame = loop {
            match open.decoder.next_frame() {
                Ok(Some(frame)) => break frame,
                Ok(None) => {}
                Err(FrameError::PayloadChecksum(cause)) => {
                    let damaged = open.decoder.peek_header().ok().flatten().and_then(|header| usize::try_from(header.target).ok());
                    // The damaged item goes to the front, so that it is the one to fail in the end.
                    if let Some(unit) = damaged.and_then(|at| open.units.get_mut(at)).and_then(Option::take) {
                        open.units.insert(0, Some(unit));
                    }
                    return Err(Failure::Damaged { detail: cause.to_string() });
                }
                Err(cause) => return Err(Failure::Transport { detail: "the frame stream is damaged", source: Some(Box::new(cause)) }),
            }
            match open.answer.body.next().await? {
                Some(piece) => open
                    .decoder
                    .push(piece)
                    .map_err(|cause| Failure::Transport { detail: "the frame stream is damaged", source: Some(Box::new(cause)) })?,
                None => return Err(Failure::cut("the frame stream was cut")),
            }
        };
        self.take(frame).await
    }

    async fn request(&mut self) -> std::result::Result<Open, Failure> {
        let base = self.dataset.job.caller.clone();
        let Some(batch) = self.work.front_mut() else { return Err(Failure::cut("nothing to ask for")) };
        let caller: Caller = match &batch.url {
            Some(url) => base.at(url)?,
            None => base,
        };
        let path = format!("{}/fetch", forebay_protocol::paths::dataset(&self.dataset.job.id, &self.dataset.id));
        let n_units = batch.units.len().min(ITEMS_PER_REQUEST);
        let request = FetchRequest { items: pack(batch.units.iter().take(n_units)), budget_bytes: Some(self.budget_bytes) };
        let call = caller.call(Method::POST, &path)?.json(&request)?;
        let answer = crate::read::follow_once(&caller, &call, caller.shared.stall).await?;
        let units = batch.units.drain(..n_units).map(Some).collect();
        Ok(Open { answer, decoder: FrameDecoder::new(MAX_PAYLOAD), units, paused: Vec::new(), pause: None, has_moved_on: false })
    }

    async fn take(&mut self, frame: Frame) -> std::result::Result<(), Failure> {
        let header = frame.header;
        if header.kind == FrameKind::End {
            return self.end().await;
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        let at = usize::try_from(header.target).unwrap_or(usize::MAX);
        let slot = open.units.get_mut(at).ok_or_else(|| ClientError::unexpected("a frame for an item that was not asked for"))?;
        let Some(mut unit) = slot.take() else { return Err(Failure::Final(ClientError::unexpected("a frame for an item that has ended"))) };
        if unit.at != header.position && header.kind != FrameKind::ItemError {
            *slot = Some(unit);
            return Err(Failure::cut("a frame at another offset than the next one"));
        }
        open.has_moved_on = true;
        match header.kind {
            FrameKind::Data => {
                let (item, offset) = (unit.id, Offset::new(unit.at));
                unit.at = unit.at.saturating_add(frame.chunk.length());
                unit.has_begun = true;
                *slot = Some(unit);
                self.attempts.progressed();
                self.ready.push_back(FetchPiece::Bytes { item, offset, bytes: frame.chunk.into_bytes() });
            }
            FrameKind::ItemEnd => self.ready.push_back(FetchPiece::End { item: unit.id, offset: Offset::new(unit.at) }),
            FrameKind::ItemPaused => open.paused.push(unit),
            FrameKind::ItemError => self.refused(unit, frame.chunk.bytes()),
            FrameKind::ItemMoved => self.moved(unit, frame.chunk.bytes()),
            FrameKind::End => {}
        }
        Ok(())
    }

    fn refused(&mut self, mut unit: Unit, document: &[u8]) {
        unit.n_refused += 1;
        let failure = match serde_json::from_slice::<Problem>(document) {
            Ok(problem) => Failure::Problem { after: problem.retry_after_ms.map(Duration::from_millis), problem: Box::new(problem) },
            Err(_) => Failure::Final(ClientError::unexpected("an item's error is not of the documented form")),
        };
        let shared = &self.dataset.job.caller.shared;
        match &mut self.open {
            Some(open) if failure.is_retryable() && unit.n_refused < shared.policy.max_attempts => {
                let pause = failure.after().unwrap_or(shared.policy.first_backoff).min(shared.policy.deadline);
                open.pause = Some(open.pause.map_or(pause, |other| other.max(pause)));
                open.paused.push(unit);
            }
            _ => {
                let attempts = unit.n_refused;
                self.ready.push_back(unit.failed(failure.into_error(attempts)));
            }
        }
    }

    fn moved(&mut self, mut unit: Unit, document: &[u8]) {
        let location: Result<Location> =
            serde_json::from_slice(document).map_err(|_| ClientError::unexpected("an item's new place is not of the documented form"));
        let location = match location {
            Ok(location) if !unit.has_moved => location,
            Ok(_) => return self.ready.push_back(unit.failed(ClientError::moved_again())),
            Err(error) => return self.ready.push_back(unit.failed(error)),
        };
        unit.has_moved = true;
        let url = Some(location.url);
        // The first batch is the one that is being asked for: what moved never joins it.
        match self.work.iter_mut().skip(1).find(|batch| batch.url == url) {
            Some(batch) => batch.units.push_back(unit),
            None => self.work.push_back(Batch { url, units: VecDeque::from([unit]) }),
        }
    }

    async fn end(&mut self) -> std::result::Result<(), Failure> {
        let Some(open) = &mut self.open else { return Ok(()) };
        if open.units.iter().any(Option::is_some) {
            return Err(Failure::cut("the frame stream ended before all items had"));
        }
        if !open.has_moved_on {
            return Err(Failure::cut("an answer without an item"));
        }
        let pause = open.pause;
        self.give_back();
        if let Some(pause) = pause {
            self.dataset.job.caller.shared.clock.sleep(pause).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(partition: u64, subpartition: u32, at: u64) -> Unit {
        let id = FetchedItem { target: 0, partition: PartitionId::new(partition), subpartition: SubpartitionIndex::new(subpartition) };
        Unit { id, at, to: None, attempt: Some("0.0".to_owned()), has_begun: false, has_moved: false, n_refused: 0 }
    }

    #[test]
    fn packed_items_count_out_to_the_units_they_came_from() {
        let units = [unit(0, 0, 0), unit(0, 1, 0), unit(0, 2, 7), unit(0, 3, 7), unit(1, 4, 7), unit(1, 4, 7)];
        let items = pack(units.iter());
        assert_eq!(items.iter().map(|item| item.n_subpartitions).collect::<Vec<_>>(), [2, 2, 1, 1]);
        let counted =
            items.iter().flat_map(|item| (0..item.n_subpartitions).map(|step| (item.partition, item.subpartition + step, item.from)));
        let wanted = units.iter().map(|unit| (unit.id.partition.get(), unit.id.subpartition.get(), unit.at));
        assert!(counted.eq(wanted));
    }
}

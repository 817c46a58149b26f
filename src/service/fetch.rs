//! Batch reads: many ranges in one answer, under a byte budget, with an outcome per item.

use super::PartitionService;
use super::attempt::peek;
use super::calls::{FetchStep, FetchWant};
use super::error::{ServiceErrorKind, ServiceResult};
use super::read::may_be_elsewhere;
use super::registry::{Dataset, Job};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use store_api::{AttemptId, DatasetId, FetchEvent, JobId, Offset, PartitionId, ReadMode, ReadRequest};

/// Partitions that are looked for on the medium at a time.
const LOCATE_CONCURRENCY: usize = 16;

/// An item that is being read.
struct Item {
    /// Its number in the request of the client.
    number: u32,
    partition: PartitionId,
    attempt: AttemptId,
    next: Offset,
    is_answered: bool,
}

/// A batch read under way.
struct Batch {
    service: Arc<PartitionService>,
    job: Arc<Job>,
    dataset: Arc<Dataset>,
    items: Vec<Item>,
    events: BoxStream<'static, FetchEvent>,
    /// Steps that are known already.
    ready: VecDeque<FetchStep>,
    left_bytes: u64,
}

impl PartitionService {
    /// Reads many ranges of one dataset.
    ///
    /// Every item ends with exactly one `End`, `Failed`, `Moved` or `Paused`, in any order of items;
    /// an item that fails does not disturb the others. When `budget_bytes` (the node's limit when
    /// left out, and clipped to it) are used up, what is not answered is `Paused` with the offset to
    /// go on from; at least one chunk is sent before that. Items are of sealed attempts. Cancel-safe:
    /// drop the stream. Errors before the stream: those of the dataset, `TooLarge` for too many
    /// items.
    pub async fn fetch(
        self: &Arc<Self>,
        job: &JobId,
        dataset: &DatasetId,
        wants: Vec<FetchWant>,
        budget_bytes: Option<u64>,
    ) -> ServiceResult<BoxStream<'static, FetchStep>> {
        if wants.len() > self.config.max_fetch_items {
            return Err(ServiceErrorKind::TooLarge { limit: self.config.max_fetch_items as u64 }.into());
        }
        let job = self.find_job(job).await?;
        let dataset = self.find_dataset(&job, dataset).await?;
        dataset.store()?;
        let left_bytes = budget_bytes.map_or(self.config.max_fetch_bytes, |bytes| bytes.min(self.config.max_fetch_bytes));
        let (service, counted) = (self.clone(), wants.len() as u64);
        self.counters.reads.add(counted);
        let begun = stream::once(async move {
            service.locate_missing(&job, &dataset, &wants).await;
            service.begin_batch(job, dataset, wants, left_bytes)
        });
        Ok(begun.flat_map(|batch| stream::unfold(batch, |mut batch| async move { batch.next().await.map(|step| (step, batch)) })).boxed())
    }

    /// Looks on the medium for durable partitions that are not known here, several at a time. What
    /// is not found, or cannot be asked for, fails as an item.
    async fn locate_missing(&self, job: &Arc<Job>, dataset: &Arc<Dataset>, wants: &[FetchWant]) {
        if !dataset.is_durable() {
            return;
        }
        let is_missing = |want: &&FetchWant| {
            let picked = peek(dataset, want.partition, |known| known.pick(dataset, want.attempt));
            dataset.check_partition(want.partition).is_ok() && picked.is_err_and(|error| may_be_elsewhere(error.kind()))
        };
        let missing: BTreeSet<PartitionId> = wants.iter().filter(is_missing).map(|want| want.partition).collect();
        let looks = stream::iter(missing).map(|partition| async move { self.locate(job, dataset, partition).await.map(drop) });
        if let Err(error) = looks.buffer_unordered(LOCATE_CONCURRENCY).try_collect::<()>().await {
            tracing::warn!(dataset = %dataset.key, ?error, "partitions could not be looked for");
        }
    }

    fn begin_batch(self: Arc<Self>, job: Arc<Job>, dataset: Arc<Dataset>, wants: Vec<FetchWant>, left_bytes: u64) -> Batch {
        let (mut items, mut requests, mut ready) = (Vec::with_capacity(wants.len()), Vec::with_capacity(wants.len()), VecDeque::new());
        // The number of items is bounded by the configuration, far below 2^32.
        for (number, want) in (0_u32..).zip(wants) {
            match request_of(&dataset, &want) {
                Ok(request) => {
                    let attempt = request.attempt.attempt;
                    items.push(Item { number, partition: want.partition, attempt, next: want.start, is_answered: false });
                    requests.push(request);
                }
                Err(error) => ready.push_back(FetchStep::Failed { item: number, at: want.start, error }),
            }
        }
        let events = match dataset.store() {
            Ok(store) => store.fetch(requests),
            Err(_) => stream::empty().boxed(),
        };
        Batch { service: self, job, dataset, items, events, ready, left_bytes }
    }
}

fn request_of(dataset: &Dataset, want: &FetchWant) -> ServiceResult<ReadRequest> {
    dataset.check_partition(want.partition)?;
    let subpartition = dataset.stored(want.subpartition)?;
    let picked = peek(dataset, want.partition, |known| known.pick(dataset, want.attempt))?;
    if !picked.is_sealed {
        return Err(ServiceErrorKind::NotSealed.into());
    }
    let attempt = dataset.attempt_key(want.partition, picked.attempt);
    Ok(ReadRequest { attempt, subpartition, start: want.start, end: want.end, mode: ReadMode::Sealed })
}

impl Batch {
    async fn next(&mut self) -> Option<FetchStep> {
        loop {
            if let Some(step) = self.ready.pop_front() {
                return Some(step);
            }
            let event = self.events.next().await?;
            if let Some(step) = self.step(event) {
                return Some(step);
            }
        }
    }

    fn step(&mut self, event: FetchEvent) -> Option<FetchStep> {
        let (FetchEvent::Data { item: at, .. } | FetchEvent::End { item: at, .. } | FetchEvent::Failed { item: at, .. }) = &event;
        let item = self.items.get_mut(*at)?;
        let number = item.number;
        match event {
            FetchEvent::Data { start, chunk, .. } => {
                let bytes = chunk.length();
                item.next = start.checked_add(bytes).unwrap_or(start);
                self.service.counters.read_bytes.add(bytes);
                self.left_bytes = self.left_bytes.saturating_sub(bytes);
                if self.left_bytes == 0 {
                    self.pause();
                }
                Some(FetchStep::Data { item: number, start, chunk })
            }
            FetchEvent::End { end, .. } => {
                item.is_answered = true;
                Some(FetchStep::End { item: number, end })
            }
            FetchEvent::Failed { at, error, .. } => {
                item.is_answered = true;
                let (partition, attempt) = (item.partition, item.attempt);
                let error = self.service.refine_read(&self.job, &self.dataset, partition, attempt, error);
                Some(FetchStep::Failed { item: number, at, error })
            }
        }
    }

    /// Ends the reading: everything that is not answered is paused.
    fn pause(&mut self) {
        self.events = stream::empty().boxed();
        let left = self.items.iter_mut().filter(|item| !item.is_answered);
        self.ready.extend(left.map(|item| {
            item.is_answered = true;
            FetchStep::Paused { item: item.number, at: item.next }
        }));
    }
}

//! Counts and times every call.

use super::marks::{ReadMarks, below};
use super::{class_name, refusal_name};
use crate::metrics::Metrics;
use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use std::sync::Arc;
use std::time::Duration;
use store_api::{
    AcknowledgeRequest, AppendAck, AppendRequest, AttemptKey, AttemptStat, AttemptTails, Capabilities, CheckpointRequest, DatasetSpec,
    FetchEvent, FloorReport, HeldBytes, JobId, JobIncarnation, OpenRequest, PartitionKey, PartitionStore, Permit, PrepareRequest,
    ReadRequest, ReadStream, RecoveryReport, ReleaseReport, ReleaseScope, SealManifest, SealOutcome, SharedClock, SharedStore, StoreError,
    SubpartitionBounds, SubpartitionIndex,
};

/// Subpartitions whose read marks are kept: about 20 MiB at the most.
const N_MARKS: usize = 65_536;

/// A store whose calls are counted and timed.
pub struct Metered {
    inner: SharedStore,
    counting: Arc<Counting>,
    clock: SharedClock,
}

/// What streams keep counting with after the call.
struct Counting {
    metrics: Arc<Metrics>,
    class: &'static str,
    marks: ReadMarks,
}

impl Metered {
    /// Counts the calls of `inner`.
    #[must_use]
    pub fn new(inner: SharedStore, metrics: Arc<Metrics>, clock: SharedClock) -> Self {
        let class = class_name(inner.capabilities().class.class);
        Self { inner, counting: Arc::new(Counting { metrics, class, marks: ReadMarks::new(N_MARKS) }), clock }
    }

    fn note<T>(&self, operation: &'static str, begun: Duration, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
        let refusal = outcome.as_ref().err().map(|error| refusal_name(error.kind()));
        self.counting.metrics.store_call(self.counting.class, operation, refusal, self.clock.monotonic().saturating_sub(begun));
        outcome
    }
}

/// One read under way: counts its bytes, and moves the mark when it ends, however it ends.
struct Reading {
    counting: Arc<Counting>,
    attempt: AttemptKey,
    subpartition: SubpartitionIndex,
    mark: u64,
    at: u64,
}

impl Reading {
    fn new(counting: &Arc<Counting>, attempt: AttemptKey, subpartition: SubpartitionIndex, start: u64) -> Self {
        counting.metrics.reader(counting.class, true);
        let mark = counting.marks.mark(&attempt, subpartition);
        Self { counting: counting.clone(), attempt, subpartition, mark, at: start }
    }

    fn count(&mut self, length: u64) {
        let again = below(self.mark, self.at, length);
        self.counting.metrics.read(self.counting.class, length.saturating_sub(again), again);
        self.at = self.at.saturating_add(length);
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.counting.marks.raise(&self.attempt, self.subpartition, self.at);
        self.counting.metrics.reader(self.counting.class, false);
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl PartitionStore for Metered {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn held(&self, job: &JobId, incarnation: JobIncarnation) -> HeldBytes {
        self.inner.held(job, incarnation)
    }

    async fn open(&self, request: OpenRequest) -> Result<AttemptTails, StoreError> {
        let begun = self.clock.monotonic();
        self.note("open", begun, self.inner.open(request).await)
    }

    async fn reserve(&self, attempt: &AttemptKey, bytes: u64, patience: Duration) -> Result<Permit, StoreError> {
        let begun = self.clock.monotonic();
        self.note("reserve", begun, self.inner.reserve(attempt, bytes, patience).await)
    }

    async fn append(&self, request: AppendRequest) -> Result<AppendAck, StoreError> {
        let begun = self.clock.monotonic();
        let ack = self.note("append", begun, self.inner.append(request).await)?;
        self.counting.metrics.written(self.counting.class, ack.new_bytes);
        Ok(ack)
    }

    async fn tails(&self, attempt: &AttemptKey) -> Result<AttemptTails, StoreError> {
        let begun = self.clock.monotonic();
        self.note("tails", begun, self.inner.tails(attempt).await)
    }

    async fn bounds(&self, attempt: &AttemptKey, subpartition: SubpartitionIndex) -> Result<SubpartitionBounds, StoreError> {
        let begun = self.clock.monotonic();
        self.note("bounds", begun, self.inner.bounds(attempt, subpartition).await)
    }

    async fn prepare(&self, request: PrepareRequest) -> Result<Arc<SealManifest>, StoreError> {
        let begun = self.clock.monotonic();
        self.note("prepare", begun, self.inner.prepare(request).await)
    }

    async fn publish(&self, attempt: &AttemptKey) -> Result<SealOutcome, StoreError> {
        let begun = self.clock.monotonic();
        let outcome = self.note("publish", begun, self.inner.publish(attempt).await)?;
        if let SealOutcome::Won(manifest) = &outcome {
            self.counting.metrics.sealed(self.counting.class, manifest.table.total_bytes());
        }
        Ok(outcome)
    }

    async fn abort(&self, attempt: &AttemptKey) -> Result<(), StoreError> {
        let begun = self.clock.monotonic();
        self.note("abort", begun, self.inner.abort(attempt).await)
    }

    async fn read(&self, request: ReadRequest) -> Result<ReadStream, StoreError> {
        let begun = self.clock.monotonic();
        let (attempt, subpartition) = (request.attempt.clone(), request.subpartition);
        let stream = self.note("read", begun, self.inner.read(request).await)?;
        let mut reading = Reading::new(&self.counting, attempt, subpartition, stream.start.get());
        let chunks = stream.chunks.inspect(move |chunk| {
            if let Ok(bytes) = chunk {
                reading.count(bytes.len() as u64);
            }
        });
        Ok(ReadStream { chunks: chunks.boxed(), ..stream })
    }

    fn fetch(&self, items: Vec<ReadRequest>) -> BoxStream<'static, FetchEvent> {
        let mut readings: Vec<Option<Reading>> = Vec::new();
        for item in &items {
            let start = item.start.get();
            readings.push(Some(Reading::new(&self.counting, item.attempt.clone(), item.subpartition, start)));
        }
        let counted = self.inner.fetch(items).inspect(move |event| match event {
            FetchEvent::Data { item, chunk, .. } => {
                if let Some(Some(reading)) = readings.get_mut(*item) {
                    reading.count(chunk.length());
                }
            }
            FetchEvent::End { item, .. } | FetchEvent::Failed { item, .. } => {
                if let Some(reading) = readings.get_mut(*item) {
                    *reading = None;
                }
            }
        });
        counted.boxed()
    }

    async fn stat(&self, attempt: &AttemptKey) -> Result<AttemptStat, StoreError> {
        let begun = self.clock.monotonic();
        self.note("stat", begun, self.inner.stat(attempt).await)
    }

    async fn manifest(&self, attempt: &AttemptKey) -> Result<Arc<SealManifest>, StoreError> {
        let begun = self.clock.monotonic();
        self.note("manifest", begun, self.inner.manifest(attempt).await)
    }

    async fn locate(
        &self,
        partition: &PartitionKey,
        spec: &DatasetSpec,
        from_generation: u32,
    ) -> Result<Option<Arc<SealManifest>>, StoreError> {
        let begun = self.clock.monotonic();
        self.note("locate", begun, self.inner.locate(partition, spec, from_generation).await)
    }

    async fn acknowledge(&self, request: AcknowledgeRequest) -> Result<FloorReport, StoreError> {
        let begun = self.clock.monotonic();
        self.note("acknowledge", begun, self.inner.acknowledge(request).await)
    }

    async fn complete_checkpoint(&self, request: CheckpointRequest) -> Result<FloorReport, StoreError> {
        let begun = self.clock.monotonic();
        self.note("checkpoint", begun, self.inner.complete_checkpoint(request).await)
    }

    async fn release(&self, scope: ReleaseScope) -> Result<ReleaseReport, StoreError> {
        let begun = self.clock.monotonic();
        self.note("release", begun, self.inner.release(scope).await)
    }

    async fn recover(&self) -> Result<RecoveryReport, StoreError> {
        let begun = self.clock.monotonic();
        self.note("recover", begun, self.inner.recover().await)
    }

    async fn close(&self) -> Result<(), StoreError> {
        let begun = self.clock.monotonic();
        self.note("close", begun, self.inner.close().await)
    }
}

//! Ends calls that would hang with their medium: what takes longer is answered `Unavailable`, and
//! the call is dropped, which every method of the contract allows. Seals and recovery are left to
//! take what their bytes take; each of their operations on a medium has its own limit in the store.

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use std::sync::Arc;
use std::time::Duration;
use store_api::clock::within;
use store_api::{
    AcknowledgeRequest, AppendAck, AppendRequest, AttemptKey, AttemptStat, AttemptTails, Capabilities, CheckpointRequest, DatasetSpec,
    FetchEvent, FloorReport, HeldBytes, JobId, JobIncarnation, Offset, OpenRequest, Operation, PartitionKey, PartitionStore, Permit,
    PrepareRequest, ReadMode, ReadRequest, ReadStream, RecoveryReport, ReleaseReport, ReleaseScope, SealManifest, SealOutcome, SharedClock,
    SharedStore, StoreError, StoreErrorKind, SubpartitionBounds, SubpartitionIndex,
};

/// When a caller shall try again after a call that hung.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A store whose calls end.
pub struct Deadline {
    inner: SharedStore,
    clock: SharedClock,
    call: Duration,
    stall: Duration,
}

impl Deadline {
    /// Calls of `inner` end after `call`, reads after `stall` without a byte.
    #[must_use]
    pub fn new(inner: SharedStore, clock: SharedClock, call: Duration, stall: Duration) -> Self {
        Self { inner, clock, call, stall }
    }

    async fn end<T>(
        &self,
        limit: Duration,
        operation: Operation,
        subject: impl std::fmt::Display,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        within(self.clock.as_ref(), limit, call).await.unwrap_or_else(|| Err(hung(operation, subject)))
    }
}

fn hung(operation: Operation, subject: impl std::fmt::Display) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable { retry_after: RETRY_AFTER }, operation, subject)
}

/// How long a read may be without a byte: tail reads wait on purpose.
const fn stall_of(stall: Duration, mode: ReadMode) -> Duration {
    match mode {
        ReadMode::Sealed => stall,
        ReadMode::Tail { wait } => stall.saturating_add(wait),
    }
}

/// Where the items of a batch stand: the next offset, `None` once an item has ended.
type Progress = Vec<Option<Offset>>;

fn note_progress(progress: &mut Progress, event: &FetchEvent) {
    let (item, next) = match event {
        FetchEvent::Data { item, start, chunk } => (*item, start.checked_add(chunk.length())),
        FetchEvent::End { item, .. } | FetchEvent::Failed { item, .. } => (*item, None),
    };
    if let Some(at) = progress.get_mut(item) {
        *at = next;
    }
}

/// Every item that has not ended fails.
fn fail_rest(progress: Progress) -> Vec<FetchEvent> {
    let open = progress.into_iter().enumerate().filter_map(|(item, at)| at.map(|at| (item, at)));
    open.map(|(item, at)| FetchEvent::Failed { item, at, error: hung(Operation::Read, format_args!("item {item} of a batch")) }).collect()
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl PartitionStore for Deadline {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn held(&self, job: &JobId, incarnation: JobIncarnation) -> HeldBytes {
        self.inner.held(job, incarnation)
    }

    async fn open(&self, request: OpenRequest) -> Result<AttemptTails, StoreError> {
        let attempt = request.attempt.clone();
        self.end(self.call, Operation::Open, attempt, self.inner.open(request)).await
    }

    async fn reserve(&self, attempt: &AttemptKey, bytes: u64, patience: Duration) -> Result<Permit, StoreError> {
        let limit = self.call.saturating_add(patience);
        self.end(limit, Operation::Reserve, attempt, self.inner.reserve(attempt, bytes, patience)).await
    }

    async fn append(&self, request: AppendRequest) -> Result<AppendAck, StoreError> {
        let attempt = request.attempt.clone();
        self.end(self.stall, Operation::Append, attempt, self.inner.append(request)).await
    }

    async fn tails(&self, attempt: &AttemptKey) -> Result<AttemptTails, StoreError> {
        self.end(self.call, Operation::Tails, attempt, self.inner.tails(attempt)).await
    }

    async fn bounds(&self, attempt: &AttemptKey, subpartition: SubpartitionIndex) -> Result<SubpartitionBounds, StoreError> {
        self.end(self.call, Operation::Tails, attempt, self.inner.bounds(attempt, subpartition)).await
    }

    async fn prepare(&self, request: PrepareRequest) -> Result<Arc<SealManifest>, StoreError> {
        self.inner.prepare(request).await
    }

    async fn publish(&self, attempt: &AttemptKey) -> Result<SealOutcome, StoreError> {
        self.inner.publish(attempt).await
    }

    async fn abort(&self, attempt: &AttemptKey) -> Result<(), StoreError> {
        self.end(self.call, Operation::Abort, attempt, self.inner.abort(attempt)).await
    }

    async fn read(&self, request: ReadRequest) -> Result<ReadStream, StoreError> {
        let subject = format!("{}/{}", request.attempt, request.subpartition);
        let stall = stall_of(self.stall, request.mode);
        let stream = self.end(self.call, Operation::Read, &subject, self.inner.read(request)).await?;
        let state = Some((stream.chunks, self.clock.clone(), subject));
        let chunks = stream::unfold(state, move |state| async move {
            let (mut chunks, clock, subject) = state?;
            match within(clock.as_ref(), stall, chunks.next()).await {
                Some(Some(chunk)) => Some((chunk, Some((chunks, clock, subject)))),
                Some(None) => None,
                None => Some((Err(hung(Operation::Read, subject)), None)),
            }
        });
        Ok(ReadStream { start: stream.start, end: stream.end, digest: stream.digest, chunks: chunks.boxed() })
    }

    fn fetch(&self, items: Vec<ReadRequest>) -> BoxStream<'static, FetchEvent> {
        let stall = items.iter().map(|item| stall_of(self.stall, item.mode)).max().unwrap_or(self.stall);
        let progress: Progress = items.iter().map(|item| Some(item.start)).collect();
        let state = Some((self.inner.fetch(items), self.clock.clone(), progress));
        let rounds = stream::unfold(state, move |state| async move {
            let (mut events, clock, mut progress) = state?;
            match within(clock.as_ref(), stall, events.next()).await {
                Some(Some(event)) => {
                    note_progress(&mut progress, &event);
                    Some((vec![event], Some((events, clock, progress))))
                }
                Some(None) => None,
                None => Some((fail_rest(progress), None)),
            }
        });
        rounds.flat_map(stream::iter).boxed()
    }

    async fn stat(&self, attempt: &AttemptKey) -> Result<AttemptStat, StoreError> {
        self.end(self.call, Operation::Stat, attempt, self.inner.stat(attempt)).await
    }

    async fn manifest(&self, attempt: &AttemptKey) -> Result<Arc<SealManifest>, StoreError> {
        self.end(self.call, Operation::Stat, attempt, self.inner.manifest(attempt)).await
    }

    async fn locate(
        &self,
        partition: &PartitionKey,
        spec: &DatasetSpec,
        from_generation: u32,
    ) -> Result<Option<Arc<SealManifest>>, StoreError> {
        self.end(self.call, Operation::Stat, partition, self.inner.locate(partition, spec, from_generation)).await
    }

    async fn acknowledge(&self, request: AcknowledgeRequest) -> Result<FloorReport, StoreError> {
        let attempt = request.attempt.clone();
        self.end(self.call, Operation::Acknowledge, attempt, self.inner.acknowledge(request)).await
    }

    async fn complete_checkpoint(&self, request: CheckpointRequest) -> Result<FloorReport, StoreError> {
        let attempt = request.attempt.clone();
        self.end(self.call, Operation::Checkpoint, attempt, self.inner.complete_checkpoint(request)).await
    }

    async fn release(&self, scope: ReleaseScope) -> Result<ReleaseReport, StoreError> {
        self.end(self.call, Operation::Release, "a scope", self.inner.release(scope)).await
    }

    async fn recover(&self) -> Result<RecoveryReport, StoreError> {
        self.inner.recover().await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}

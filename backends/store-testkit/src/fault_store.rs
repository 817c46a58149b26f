//! A decorator that fails, delays and cancels calls of any store by a seed.
//!
//! | fault | what the caller sees | what the store did |
//! |---|---|---|
//! | refused | `Unavailable` | nothing |
//! | reply lost | `Unavailable` | all of it |
//! | cancelled | `Unavailable` | what it did before the future was dropped |
//! | delayed | the answer, later | all of it |
//!
//! The n-th call of one seed always has the same fault; which call is the n-th is up to the callers.

use crate::scenario::{cancelled_after, mix};
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store_api::{
    AcknowledgeRequest, AppendAck, AppendRequest, AttemptKey, AttemptStat, AttemptTails, Capabilities, CheckpointRequest, DatasetSpec,
    FetchEvent, FloorReport, HeldBytes, JobId, JobIncarnation, OpenRequest, Operation, PartitionKey, PartitionStore, Permit,
    PrepareRequest, ReadRequest, ReadStream, RecoveryReport, ReleaseReport, ReleaseScope, SealManifest, SealOutcome, SharedClock,
    SharedStore, StoreError, StoreErrorKind, SubpartitionBounds, SubpartitionIndex,
};

/// How often each fault comes, in calls of a hundred.
#[derive(Debug, Clone, Copy)]
pub struct FaultPlan {
    /// What the faults are drawn from.
    pub seed: u64,
    /// Calls that are refused before they reach the store.
    pub n_refused: u64,
    /// Calls whose answer is lost.
    pub n_reply_lost: u64,
    /// Calls that are dropped half-way.
    pub n_cancelled: u64,
    /// Calls that wait first.
    pub n_delayed: u64,
    /// Longest wait of a delayed call.
    pub longest_delay: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Refused,
    ReplyLost,
    Cancelled { n_polls: usize },
    Delayed { wait: Duration },
}

impl FaultPlan {
    fn fault(&self, number: u64) -> Fault {
        let drawn = mix(self.seed ^ mix(number));
        let detail = drawn >> 32;
        let mut sum = 0;
        let mut is_next = |share: u64| {
            sum += share;
            drawn % 100 < sum
        };
        if is_next(self.n_refused) {
            Fault::Refused
        } else if is_next(self.n_reply_lost) {
            Fault::ReplyLost
        } else if is_next(self.n_cancelled) {
            Fault::Cancelled { n_polls: usize::try_from(detail % 5).unwrap_or(0) }
        } else if is_next(self.n_delayed) {
            let most_us = u64::try_from(self.longest_delay.as_micros()).unwrap_or(u64::MAX).max(1);
            Fault::Delayed { wait: Duration::from_micros(detail % most_us) }
        } else {
            Fault::None
        }
    }
}

/// A store that is disturbed. `capabilities`, `held`, `recover` and `close` are passed on as they
/// are; of a batch read the order and the items are kept.
pub struct FaultStore {
    inner: SharedStore,
    plan: FaultPlan,
    clock: SharedClock,
    n_calls: Arc<AtomicU64>,
}

fn unavailable(operation: Operation) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable { retry_after: Duration::from_millis(1) }, operation, "a disturbed call")
}

impl FaultStore {
    /// Disturbs `inner` by `plan`.
    #[must_use]
    pub fn new(inner: SharedStore, plan: FaultPlan, clock: SharedClock) -> Self {
        Self { inner, plan, clock, n_calls: Arc::default() }
    }

    /// Number of calls so far.
    #[must_use]
    pub fn n_calls(&self) -> u64 {
        self.n_calls.load(Ordering::Relaxed)
    }

    async fn disturbed<T>(&self, operation: Operation, call: impl Future<Output = Result<T, StoreError>> + Send) -> Result<T, StoreError> {
        match self.plan.fault(self.n_calls.fetch_add(1, Ordering::Relaxed)) {
            Fault::None => call.await,
            Fault::Refused => Err(unavailable(operation)),
            Fault::ReplyLost => {
                let lost = call.await;
                drop(lost);
                Err(unavailable(operation))
            }
            Fault::Cancelled { n_polls } => {
                cancelled_after(&self.clock, n_polls, call).await.unwrap_or_else(|| Err(unavailable(operation)))
            }
            Fault::Delayed { wait } => {
                self.clock.sleep(wait).await;
                call.await
            }
        }
    }

    /// Cuts a stream at a chunk that is drawn to be refused.
    fn disturbed_stream(&self, stream: ReadStream) -> ReadStream {
        let (plan, n_calls) = (self.plan, self.n_calls.clone());
        let chunks = stream.chunks.scan(false, move |is_cut, next| {
            let fault = plan.fault(n_calls.fetch_add(1, Ordering::Relaxed));
            let next = match (*is_cut, fault) {
                (true, _) => None,
                (false, Fault::Refused) => Some(Err(unavailable(Operation::Read))),
                (false, _) => Some(next),
            };
            *is_cut |= matches!(next, Some(Err(_)));
            std::future::ready(next)
        });
        ReadStream { chunks: chunks.boxed(), ..stream }
    }
}

#[async_trait]
impl PartitionStore for FaultStore {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn held(&self, job: &JobId, incarnation: JobIncarnation) -> HeldBytes {
        self.inner.held(job, incarnation)
    }

    async fn open(&self, request: OpenRequest) -> Result<AttemptTails, StoreError> {
        self.disturbed(Operation::Open, self.inner.open(request)).await
    }

    async fn reserve(&self, attempt: &AttemptKey, bytes: u64, patience: Duration) -> Result<Permit, StoreError> {
        self.disturbed(Operation::Reserve, self.inner.reserve(attempt, bytes, patience)).await
    }

    async fn append(&self, request: AppendRequest) -> Result<AppendAck, StoreError> {
        self.disturbed(Operation::Append, self.inner.append(request)).await
    }

    async fn tails(&self, attempt: &AttemptKey) -> Result<AttemptTails, StoreError> {
        self.disturbed(Operation::Tails, self.inner.tails(attempt)).await
    }

    async fn bounds(&self, attempt: &AttemptKey, subpartition: SubpartitionIndex) -> Result<SubpartitionBounds, StoreError> {
        self.disturbed(Operation::Tails, self.inner.bounds(attempt, subpartition)).await
    }

    async fn prepare(&self, request: PrepareRequest) -> Result<Arc<SealManifest>, StoreError> {
        self.disturbed(Operation::Prepare, self.inner.prepare(request)).await
    }

    async fn publish(&self, attempt: &AttemptKey) -> Result<SealOutcome, StoreError> {
        self.disturbed(Operation::Publish, self.inner.publish(attempt)).await
    }

    async fn abort(&self, attempt: &AttemptKey) -> Result<(), StoreError> {
        self.disturbed(Operation::Abort, self.inner.abort(attempt)).await
    }

    async fn read(&self, request: ReadRequest) -> Result<ReadStream, StoreError> {
        let stream = self.disturbed(Operation::Read, self.inner.read(request)).await?;
        Ok(self.disturbed_stream(stream))
    }

    fn fetch(&self, items: Vec<ReadRequest>) -> BoxStream<'static, FetchEvent> {
        self.inner.fetch(items)
    }

    async fn stat(&self, attempt: &AttemptKey) -> Result<AttemptStat, StoreError> {
        self.disturbed(Operation::Stat, self.inner.stat(attempt)).await
    }

    async fn manifest(&self, attempt: &AttemptKey) -> Result<Arc<SealManifest>, StoreError> {
        self.disturbed(Operation::Stat, self.inner.manifest(attempt)).await
    }

    async fn locate(
        &self,
        partition: &PartitionKey,
        spec: &DatasetSpec,
        from_generation: u32,
    ) -> Result<Option<Arc<SealManifest>>, StoreError> {
        self.disturbed(Operation::Stat, self.inner.locate(partition, spec, from_generation)).await
    }

    async fn acknowledge(&self, request: AcknowledgeRequest) -> Result<FloorReport, StoreError> {
        self.disturbed(Operation::Acknowledge, self.inner.acknowledge(request)).await
    }

    async fn complete_checkpoint(&self, request: CheckpointRequest) -> Result<FloorReport, StoreError> {
        self.disturbed(Operation::Checkpoint, self.inner.complete_checkpoint(request)).await
    }

    async fn release(&self, scope: ReleaseScope) -> Result<ReleaseReport, StoreError> {
        self.disturbed(Operation::Release, self.inner.release(scope)).await
    }

    async fn recover(&self) -> Result<RecoveryReport, StoreError> {
        self.inner.recover().await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: FaultPlan =
        FaultPlan { seed: 5, n_refused: 10, n_reply_lost: 20, n_cancelled: 5, n_delayed: 15, longest_delay: Duration::from_millis(3) };

    #[test]
    fn the_same_seed_draws_the_same_faults() {
        let other = FaultPlan { seed: 6, ..PLAN };
        let drawn = |plan: FaultPlan| (0..1000).map(|number| plan.fault(number)).collect::<Vec<_>>();
        assert_eq!(drawn(PLAN), drawn(PLAN));
        assert_ne!(drawn(PLAN), drawn(other));
    }

    #[test]
    fn faults_come_about_as_often_as_planned() {
        let count = |is_wanted: fn(Fault) -> bool| (0..10_000).filter(|number| is_wanted(PLAN.fault(*number))).count();
        let near = |found: usize, wanted: usize| found.abs_diff(wanted) < 200;
        assert!(near(count(|fault| fault == Fault::Refused), 1000));
        assert!(near(count(|fault| fault == Fault::ReplyLost), 2000));
        assert!(near(count(|fault| matches!(fault, Fault::Cancelled { .. })), 500));
        assert!(near(count(|fault| matches!(fault, Fault::Delayed { .. })), 1500));
        assert!(near(count(|fault| fault == Fault::None), 5000));
    }
}

//! Tells the log about calls: what moves state at debug, refusals too, and what the operator must
//! know (a medium that fails, stored forms that cannot be read, losses, defects) as a warning, with
//! its private cause.

use super::{class_name, refusal_name};
use async_trait::async_trait;
use futures::stream::BoxStream;
use std::error::Error as _;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use store_api::{
    AcknowledgeRequest, AppendAck, AppendRequest, AttemptKey, AttemptStat, AttemptTails, Capabilities, CheckpointRequest, DatasetSpec,
    FetchEvent, FloorReport, HeldBytes, JobId, JobIncarnation, OpenRequest, PartitionKey, PartitionStore, Permit, PrepareRequest,
    ReadRequest, ReadStream, RecoveryReport, ReleaseReport, ReleaseScope, SealManifest, SealOutcome, SharedStore, StoreError,
    StoreErrorKind, SubpartitionBounds, SubpartitionIndex,
};

/// A store whose calls are told to the log.
pub struct Traced {
    inner: SharedStore,
    class: &'static str,
}

impl Traced {
    /// Tells of the calls of `inner`.
    #[must_use]
    pub fn new(inner: SharedStore) -> Self {
        let class = class_name(inner.capabilities().class.class);
        Self { inner, class }
    }

    fn note<T>(&self, operation: &'static str, subject: &(dyn Display + Sync), outcome: Result<T, StoreError>) -> Result<T, StoreError> {
        match &outcome {
            Ok(_) => tracing::trace!(class = self.class, operation, subject = %subject, "store call"),
            Err(error) if needs_operator(error.kind()) => {
                let cause = error.source().map(ToString::to_string).unwrap_or_default();
                tracing::warn!(class = self.class, operation, subject = %subject, code = refusal_name(error.kind()), %error, cause, "store call failed");
            }
            Err(error) => {
                tracing::debug!(class = self.class, operation, subject = %subject, code = refusal_name(error.kind()), "store call refused");
            }
        }
        outcome
    }
}

/// Whether a refusal is no business of the caller's alone.
const fn needs_operator(kind: &StoreErrorKind) -> bool {
    matches!(
        kind,
        StoreErrorKind::Unavailable { .. }
            | StoreErrorKind::DiskFull
            | StoreErrorKind::Lost { .. }
            | StoreErrorKind::Format { .. }
            | StoreErrorKind::Internal
    )
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl PartitionStore for Traced {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn held(&self, job: &JobId, incarnation: JobIncarnation) -> HeldBytes {
        self.inner.held(job, incarnation)
    }

    async fn open(&self, request: OpenRequest) -> Result<AttemptTails, StoreError> {
        let attempt = request.attempt.clone();
        self.note("open", &attempt, self.inner.open(request).await)
    }

    async fn reserve(&self, attempt: &AttemptKey, bytes: u64, patience: Duration) -> Result<Permit, StoreError> {
        self.note("reserve", attempt, self.inner.reserve(attempt, bytes, patience).await)
    }

    async fn append(&self, request: AppendRequest) -> Result<AppendAck, StoreError> {
        let attempt = request.attempt.clone();
        self.note("append", &attempt, self.inner.append(request).await)
    }

    async fn tails(&self, attempt: &AttemptKey) -> Result<AttemptTails, StoreError> {
        self.note("tails", attempt, self.inner.tails(attempt).await)
    }

    async fn bounds(&self, attempt: &AttemptKey, subpartition: SubpartitionIndex) -> Result<SubpartitionBounds, StoreError> {
        self.note("bounds", attempt, self.inner.bounds(attempt, subpartition).await)
    }

    async fn prepare(&self, request: PrepareRequest) -> Result<Arc<SealManifest>, StoreError> {
        let attempt = request.attempt.clone();
        self.note("prepare", &attempt, self.inner.prepare(request).await)
    }

    async fn publish(&self, attempt: &AttemptKey) -> Result<SealOutcome, StoreError> {
        self.note("publish", attempt, self.inner.publish(attempt).await)
    }

    async fn abort(&self, attempt: &AttemptKey) -> Result<(), StoreError> {
        self.note("abort", attempt, self.inner.abort(attempt).await)
    }

    async fn read(&self, request: ReadRequest) -> Result<ReadStream, StoreError> {
        let attempt = request.attempt.clone();
        self.note("read", &attempt, self.inner.read(request).await)
    }

    fn fetch(&self, items: Vec<ReadRequest>) -> BoxStream<'static, FetchEvent> {
        tracing::trace!(class = self.class, operation = "fetch", n_items = items.len(), "store call");
        self.inner.fetch(items)
    }

    async fn stat(&self, attempt: &AttemptKey) -> Result<AttemptStat, StoreError> {
        self.note("stat", attempt, self.inner.stat(attempt).await)
    }

    async fn manifest(&self, attempt: &AttemptKey) -> Result<Arc<SealManifest>, StoreError> {
        self.note("manifest", attempt, self.inner.manifest(attempt).await)
    }

    async fn locate(
        &self,
        partition: &PartitionKey,
        spec: &DatasetSpec,
        from_generation: u32,
    ) -> Result<Option<Arc<SealManifest>>, StoreError> {
        self.note("locate", partition, self.inner.locate(partition, spec, from_generation).await)
    }

    async fn acknowledge(&self, request: AcknowledgeRequest) -> Result<FloorReport, StoreError> {
        let attempt = request.attempt.clone();
        self.note("acknowledge", &attempt, self.inner.acknowledge(request).await)
    }

    async fn complete_checkpoint(&self, request: CheckpointRequest) -> Result<FloorReport, StoreError> {
        let attempt = request.attempt.clone();
        self.note("checkpoint", &attempt, self.inner.complete_checkpoint(request).await)
    }

    async fn release(&self, scope: ReleaseScope) -> Result<ReleaseReport, StoreError> {
        let subject = format!("{scope:?}");
        self.note("release", &subject, self.inner.release(scope).await)
    }

    async fn recover(&self) -> Result<RecoveryReport, StoreError> {
        let report = self.note("recover", &self.class, self.inner.recover().await)?;
        tracing::info!(
            class = self.class,
            n_sealed = report.sealed.len(),
            n_lost = report.lost.len(),
            n_dropped = report.n_dropped,
            n_quarantined = report.n_quarantined,
            "recovered"
        );
        Ok(report)
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.note("close", &self.class, self.inner.close().await)
    }
}

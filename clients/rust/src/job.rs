//! A job: its datasets, lease, availability, events, checkpoints and end.

use crate::error::{ClientError, Result};
use crate::transport::{Call, Caller};
use forebay_protocol::datasets::{DatasetList, ReleaseDocument};
use forebay_protocol::headers::JOB_EPOCH;
use forebay_protocol::jobs::{CheckpointCompletion, CheckpointDocument, JobDocument, LeaseDocument, LeaseRequest};
use forebay_protocol::paths;
use forebay_protocol::reads::{AvailabilityDocument, AvailabilityItem, AvailabilityRequest};
use http::Method;
use std::sync::Arc;
use std::time::Duration;
use store_api::{JobEpoch, JobId, TaskGroup};
use tokio::sync::watch;

/// A job. Cloning is cheap.
#[derive(Clone)]
pub struct JobHandle {
    pub(crate) caller: Caller,
    pub(crate) id: JobId,
    epoch: Option<JobEpoch>,
    token: Option<String>,
    lease_ms: Option<u64>,
}

impl std::fmt::Debug for JobHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobHandle").field("id", &self.id).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl JobHandle {
    pub(crate) const fn new(caller: Caller, id: JobId, epoch: Option<JobEpoch>, token: Option<String>, lease_ms: Option<u64>) -> Self {
        Self { caller, id, epoch, token, lease_ms }
    }

    /// The id.
    #[must_use]
    pub const fn id(&self) -> &JobId {
        &self.id
    }

    /// The owner's epoch, for handles of an owner.
    #[must_use]
    pub const fn epoch(&self) -> Option<JobEpoch> {
        self.epoch
    }

    /// The job's token, to hand to writers and readers; `None` when tokens are off.
    #[must_use]
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// The same handle with an epoch that was handed over by the owner.
    #[must_use]
    pub const fn with_epoch(mut self, epoch: JobEpoch) -> Self {
        self.epoch = Some(epoch);
        self
    }

    pub(crate) fn call(&self, method: Method, below: &str) -> Result<Call> {
        self.caller.call(method, &format!("{}{below}", paths::job(&self.id)))
    }

    pub(crate) fn owner_call(&self, method: Method, below: &str) -> Result<Call> {
        let epoch = self.epoch.ok_or_else(|| ClientError::invalid("this call needs the owner's epoch"))?;
        self.call(method, below)?.with(JOB_EPOCH, epoch)
    }

    /// The job as it stands.
    pub async fn state(&self) -> Result<JobDocument> {
        Ok(self.caller.document(&self.call(Method::GET, "")?).await?.0)
    }

    /// The datasets of the job.
    pub async fn datasets(&self) -> Result<DatasetList> {
        Ok(self.caller.document(&self.call(Method::GET, "/datasets")?).await?.0)
    }

    /// Renews the lease, with another length if one is given. Idempotent. Errors:
    /// [`ClientError::Fenced`] when the job has another owner, [`ClientError::Released`] when it ended.
    pub async fn renew_lease(&self, length: Option<Duration>) -> Result<LeaseDocument> {
        let lease_ms = length.map(|length| u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
        let call = self.owner_call(Method::POST, "/lease")?.json(&LeaseRequest { lease_ms })?;
        Ok(self.caller.document(&call).await?.0)
    }

    /// Renews the lease in the background, three times per length, until the returned guard is
    /// dropped or the service refuses for good. A node that is away is asked again each time.
    ///
    /// ```no_run
    /// # async fn example(job: forebay_client::JobHandle) {
    /// let alive = job.keep_alive();
    /// // work
    /// drop(alive);
    /// # }
    /// ```
    #[must_use]
    pub fn keep_alive(&self) -> KeepAlive {
        let tasks = TaskGroup::new();
        let (sender, failure) = watch::channel(None);
        let job = self.clone();
        tasks.spawn(async move {
            let mut lease_ms = job.lease_ms.unwrap_or(0);
            loop {
                match job.renew_lease(None).await {
                    Ok(lease) => lease_ms = lease.lease_ms,
                    Err(ClientError::RetryLater { .. } | ClientError::Transport { .. } | ClientError::ResolveAgain { .. }) => {}
                    Err(error) => {
                        sender.send_replace(Some(Arc::new(error)));
                        return;
                    }
                }
                let pause = Duration::from_millis(lease_ms / 3).clamp(Duration::from_millis(50), Duration::from_hours(1));
                job.caller.shared.clock.sleep(pause).await;
            }
        });
        KeepAlive { tasks, failure }
    }

    /// States of many partitions, in the order asked.
    pub async fn availability(&self, items: Vec<AvailabilityItem>) -> Result<AvailabilityDocument> {
        let call = self.call(Method::POST, "/availability")?.json(&AvailabilityRequest { items })?;
        Ok(self.caller.document(&call).await?.0)
    }

    /// Says that a checkpoint is complete: restarts will not go back before it. Idempotent.
    pub async fn complete_checkpoint(&self, checkpoint: u64, completion: &CheckpointCompletion) -> Result<CheckpointDocument> {
        let call = self.owner_call(Method::POST, &format!("/checkpoints/{checkpoint}/complete"))?.json(completion)?;
        Ok(self.caller.document(&call).await?.0)
    }

    /// Ends the job and gives everything back. Idempotent: a job that was released before is a
    /// success.
    pub async fn release(&self) -> Result<ReleaseDocument> {
        self.release_at("").await
    }

    pub(crate) async fn release_at(&self, below: &str) -> Result<ReleaseDocument> {
        let call = self.owner_call(Method::DELETE, below)?;
        match self.caller.document(&call).await {
            Ok((document, _)) => Ok(document),
            Err(ClientError::Released(_)) => Ok(ReleaseDocument::default()),
            Err(error) => Err(error),
        }
    }
}

/// Keeps a lease alive until it is dropped.
#[derive(Debug)]
pub struct KeepAlive {
    tasks: TaskGroup,
    failure: watch::Receiver<Option<Arc<ClientError>>>,
}

impl KeepAlive {
    /// Why the lease is not renewed any more; `None` while it is.
    #[must_use]
    pub fn failure(&self) -> Option<Arc<ClientError>> {
        self.failure.borrow().clone()
    }

    /// Waits until the lease is not renewed any more. Cancel-safe.
    pub async fn failed(&mut self) -> Option<Arc<ClientError>> {
        self.failure.wait_for(Option::is_some).await.ok().and_then(|failure| failure.clone())
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

//! What can be done with a job.

use crate::dataset::DatasetHandle;
use crate::error::{ClientError, Result};
use crate::events::EventStream;
use crate::transport::{Call, SharedTransport};
use forebay_protocol::datasets::{DatasetDocument, DatasetList, DatasetRequest, ReleaseDocument};
use forebay_protocol::jobs::{CheckpointCompletion, CheckpointDocument, JobDocument, LeaseDocument, LeaseRequest};
use forebay_protocol::reads::{AvailabilityDocument, AvailabilityItem, AvailabilityRequest};
use forebay_protocol::{headers, paths};
use http::Method;
use std::time::Duration;
use store_api::{DatasetId, JobEpoch, JobId, TaskGroup};

/// A job. Cheap to clone.
#[derive(Debug, Clone)]
pub struct JobHandle {
    transport: SharedTransport,
    job: JobId,
    epoch: Option<JobEpoch>,
}

impl JobHandle {
    pub(crate) const fn new(transport: SharedTransport, job: JobId, epoch: Option<JobEpoch>) -> Self {
        Self { transport, job, epoch }
    }

    /// The job's id.
    #[must_use]
    pub const fn id(&self) -> &JobId {
        &self.job
    }

    /// The epoch under which this handle owns the job, if it does.
    #[must_use]
    pub const fn epoch(&self) -> Option<JobEpoch> {
        self.epoch
    }

    fn control(&self, method: Method, path: String) -> Result<Call> {
        control(self.epoch, method, path)
    }

    /// The job as it stands.
    pub async fn document(&self) -> Result<JobDocument> {
        self.transport.document(&Call::new(Method::GET, paths::job(&self.job))).await
    }

    /// Renews the lease, at the same length when `length` is left out. Errors: `Invalid` without
    /// ownership; a refusal when the job was taken over or has expired.
    pub async fn renew_lease(&self, length: Option<Duration>) -> Result<LeaseDocument> {
        let lease_ms = length.map(|length| u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
        let call = self.control(Method::POST, format!("{}/lease", paths::job(&self.job)))?;
        self.transport.document(&call.json(&LeaseRequest { lease_ms })?).await
    }

    /// Renews the lease in the background, at a third of its length, until the guard is dropped or a
    /// renewal is refused.
    pub async fn keep_alive(&self) -> Result<KeepAlive> {
        let lease = self.renew_lease(None).await?;
        let interval = Duration::from_millis(lease.lease_ms / 3).max(Duration::from_millis(100));
        let tasks = TaskGroup::new();
        let renewing = self.clone();
        tasks.spawn(async move {
            loop {
                renewing.transport.clock.sleep(interval).await;
                if matches!(renewing.renew_lease(None).await, Err(ClientError::Refused(_))) {
                    return;
                }
            }
        });
        Ok(KeepAlive { tasks })
    }

    /// Declares a dataset. Idempotent.
    pub async fn put_dataset(&self, dataset: &DatasetId, request: &DatasetRequest) -> Result<(DatasetHandle, DatasetDocument)> {
        let call = Call::new(Method::PUT, paths::dataset(&self.job, dataset)).json(request)?;
        let document = self.transport.document(&call).await?;
        Ok((self.dataset(dataset), document))
    }

    /// A handle to a dataset that exists.
    #[must_use]
    pub fn dataset(&self, dataset: &DatasetId) -> DatasetHandle {
        DatasetHandle::new(self.transport.clone(), self.job.clone(), dataset.clone(), self.epoch)
    }

    /// The datasets of the job.
    pub async fn datasets(&self) -> Result<DatasetList> {
        self.transport.document(&Call::new(Method::GET, format!("{}/datasets", paths::job(&self.job)))).await
    }

    /// States of many partitions, in the order asked.
    pub async fn availability(&self, items: Vec<AvailabilityItem>) -> Result<AvailabilityDocument> {
        let call = Call::new(Method::POST, format!("{}/availability", paths::job(&self.job)));
        self.transport.document(&call.json(&AvailabilityRequest { items })?).await
    }

    /// What happens to the job from now on, or after a cursor that an earlier stream gave.
    #[must_use]
    pub fn events(&self, after: Option<String>) -> EventStream {
        EventStream::new(self.transport.clone(), &self.job, after)
    }

    /// Says that a checkpoint is complete, so that floors may move. Idempotent.
    pub async fn complete_checkpoint(&self, checkpoint: u64, completion: &CheckpointCompletion) -> Result<CheckpointDocument> {
        let path = format!("{}/checkpoints/{checkpoint}/complete", paths::job(&self.job));
        self.transport.document(&self.control(Method::POST, path)?.json(completion)?).await
    }

    /// Releases the job and all it holds. Idempotent.
    pub async fn release(&self) -> Result<ReleaseDocument> {
        self.transport.document(&self.control(Method::DELETE, paths::job(&self.job))?).await
    }
}

/// A call that only the owner may make.
pub(crate) fn control(epoch: Option<JobEpoch>, method: Method, path: String) -> Result<Call> {
    let epoch =
        epoch.ok_or_else(|| ClientError::Invalid("this handle does not own the job: put_job or job_at gives one that does".to_owned()))?;
    Ok(Call::new(method, path).header(headers::JOB_EPOCH, &epoch.to_string()))
}

/// Renews a lease until it is dropped.
#[derive(Debug)]
pub struct KeepAlive {
    tasks: TaskGroup,
}

impl KeepAlive {
    /// Whether renewals go on: `false` once one was refused.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.tasks.n_running() > 0
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

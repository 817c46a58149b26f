//! A dataset: attempts, listings, reads, acknowledgements, release.

use crate::error::{ClientError, Result};
use crate::job::JobHandle;
use crate::transport::Call;
use forebay_protocol::datasets::{DatasetDocument, DatasetRequest, PartitionPage, ReleaseDocument};
use forebay_protocol::headers::{JOB_EPOCH, NODE_LIFE};
use forebay_protocol::node::NodeDocument;
use forebay_protocol::partitions::{ManifestDocument, PartitionDocument};
use forebay_protocol::paths;
use forebay_protocol::reads::{AcknowledgeDocument, AcknowledgeRequest};
use futures::stream::{BoxStream, StreamExt as _, TryStreamExt as _};
use http::Method;
use std::sync::{Arc, OnceLock};
use store_api::{DatasetId, PartitionId};

impl JobHandle {
    /// Declares a dataset. Idempotent; another specification under the same name is refused.
    ///
    /// ```no_run
    /// # use forebay_client::{DatasetRequest, JobHandle, Kind};
    /// # async fn example(job: JobHandle) -> forebay_client::Result<()> {
    /// let stage = job.put_dataset("stage-1", DatasetRequest { kind: Some(Kind::Blocking), partitions: Some(8), ..DatasetRequest::new(8) }).await?;
    /// # Ok(()) }
    /// ```
    pub async fn put_dataset(&self, dataset: &str, request: DatasetRequest) -> Result<DatasetHandle> {
        let handle = self.dataset(dataset)?;
        let call = handle.call(Method::PUT, "")?.maybe_with(JOB_EPOCH, self.epoch())?.json(&request)?;
        let (_, life) = self.caller.document::<DatasetDocument>(&call).await?;
        if let Some(life) = life {
            handle.learn_life(life);
        }
        Ok(handle)
    }

    /// A dataset that exists. Makes no call. Errors: [`ClientError::Invalid`] for an id that is none.
    pub fn dataset(&self, dataset: &str) -> Result<DatasetHandle> {
        let id = DatasetId::new(dataset).map_err(|cause| ClientError::invalid_because("the dataset id", cause))?;
        Ok(DatasetHandle::new(self.clone(), id))
    }
}

/// A dataset. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct DatasetHandle {
    pub(crate) job: JobHandle,
    pub(crate) id: DatasetId,
    life: Arc<OnceLock<String>>,
}

impl DatasetHandle {
    pub(crate) fn new(job: JobHandle, id: DatasetId) -> Self {
        Self { job, id, life: Arc::default() }
    }

    pub(crate) fn learn_life(&self, life: String) {
        // The first life that was heard of stays: writes for it must not reach a later one.
        let _ = self.life.set(life);
    }

    /// The id.
    #[must_use]
    pub const fn id(&self) -> &DatasetId {
        &self.id
    }

    /// The job.
    #[must_use]
    pub const fn job(&self) -> &JobHandle {
        &self.job
    }

    pub(crate) fn call(&self, method: Method, below: &str) -> Result<Call> {
        self.job.call(method, &format!("/datasets/{}{below}", self.id))
    }

    async fn life(&self) -> Result<String> {
        if let Some(life) = self.life.get() {
            return Ok(life.clone());
        }
        let (node, _) = self.job.caller.document::<NodeDocument>(&self.job.caller.call(Method::GET, paths::NODE)?).await?;
        self.learn_life(node.location.life.clone());
        Ok(self.life.get().cloned().unwrap_or(node.location.life))
    }

    /// The dataset as it stands.
    pub async fn state(&self) -> Result<DatasetDocument> {
        Ok(self.job.caller.document(&self.call(Method::GET, "")?).await?.0)
    }

    /// A partition as it stands; `with_lists` asks for lengths and checksums per subpartition too.
    pub async fn partition(&self, partition: PartitionId, with_lists: bool) -> Result<PartitionDocument> {
        let call = self.call(Method::GET, &format!("/partitions/{partition}"))?.query("lists", with_lists);
        Ok(self.job.caller.document(&call).await?.0)
    }

    /// One page of the sealed partitions: those after `after`, at most `limit`.
    pub async fn partition_page(&self, after: Option<&str>, limit: u32, with_lists: bool) -> Result<PartitionPage> {
        let mut call = self.call(Method::GET, "/partitions")?.query("limit", limit).query("lists", with_lists);
        if let Some(after) = after {
            call = call.query("after", after);
        }
        Ok(self.job.caller.document(&call).await?.0)
    }

    /// All sealed partitions, page by page, by number and attempt.
    ///
    /// ```no_run
    /// # use futures::TryStreamExt;
    /// # async fn example(stage: forebay_client::DatasetHandle) -> forebay_client::Result<()> {
    /// let mut sealed = stage.partitions(true);
    /// while let Some(manifest) = sealed.try_next().await? {
    ///     println!("{} holds {} bytes", manifest.partition, manifest.total_bytes);
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn partitions(&self, with_lists: bool) -> BoxStream<'static, Result<ManifestDocument>> {
        const PAGE: u32 = 1000;
        let stage = self.clone();
        let pages = futures::stream::try_unfold(Some(None::<String>), move |cursor| {
            let stage = stage.clone();
            async move {
                let Some(after) = cursor else { return Ok(None) };
                let page = stage.partition_page(after.as_deref(), PAGE, with_lists).await?;
                if page.next_after.is_some() && page.next_after == after {
                    return Err(ClientError::unexpected("a listing that does not move on"));
                }
                let next = page.next_after.map(Some);
                Ok(Some((futures::stream::iter(page.partitions.into_iter().map(Ok)), next)))
            }
        });
        pages.try_flatten().boxed()
    }

    /// Says how far consumers of a pipelined dataset have read for good. Idempotent. Errors:
    /// [`ClientError::Fenced`] when the node was started anew since this handle was made.
    pub async fn acknowledge(&self, request: &AcknowledgeRequest) -> Result<AcknowledgeDocument> {
        let life = self.life().await?;
        let call = self.call(Method::POST, "/acknowledge")?.with(NODE_LIFE, life)?.json(request)?;
        Ok(self.job.caller.document(&call).await?.0)
    }

    /// Releases the dataset. Idempotent. Needs a handle with the owner's epoch.
    pub async fn release(&self) -> Result<ReleaseDocument> {
        self.job.release_at(&format!("/datasets/{}", self.id)).await
    }

    /// Releases one partition, all attempts. Idempotent. Needs a handle with the owner's epoch.
    pub async fn release_partition(&self, partition: PartitionId) -> Result<ReleaseDocument> {
        self.job.release_at(&format!("/datasets/{}/partitions/{partition}", self.id)).await
    }
}

//! A dataset: attempts, listings, reads, acknowledgements, release.

use crate::attempt::Attempt;
use crate::error::{ClientError, Result};
use crate::fetch::{FetchStream, FetchTarget};
use crate::job::JobHandle;
use crate::read::{ReadRange, SubpartitionReader};
use crate::tail::{TailOptions, TailReader};
use crate::transport::Call;
use forebay_protocol::datasets::{DatasetDocument, PartitionPage, ReleaseDocument};
use forebay_protocol::headers::{JOB_EPOCH, NODE_LIFE};
use forebay_protocol::node::NodeDocument;
use forebay_protocol::partitions::{AttemptDocument, ManifestDocument, OpenAttemptRequest, PartitionDocument, SubpartitionOffset};
use forebay_protocol::paths;
use forebay_protocol::reads::{AcknowledgeDocument, AcknowledgeRequest};
use futures::stream::{BoxStream, StreamExt as _, TryStreamExt as _};
use http::Method;
use std::sync::{Arc, OnceLock};
use store_api::{AttemptId, DatasetId, Offset, PartitionId, SubpartitionIndex};

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

    /// Opens an attempt at a partition, with start offsets that are not 0 (pipelined only).
    /// Idempotent: a repeat answers where the attempt stands. Raising the generation needs a handle
    /// with the owner's epoch.
    pub async fn open_attempt(
        &self,
        partition: PartitionId,
        attempt: AttemptId,
        starts: Vec<(SubpartitionIndex, Offset)>,
    ) -> Result<Attempt> {
        let has_starts = !starts.is_empty();
        let starts = starts.into_iter().map(|(index, offset)| SubpartitionOffset { subpartition: index.get(), offset: offset.get() });
        let request = OpenAttemptRequest { generation: attempt.generation, attempt: attempt.attempt, starts: starts.collect() };
        let call = self.call(Method::POST, &format!("/partitions/{partition}/attempts"))?;
        let call = call.maybe_with(JOB_EPOCH, self.job.epoch())?.json(&request)?;
        let (document, _) = self.job.caller.document::<AttemptDocument>(&call).await?;
        Ok(Attempt::new(self.clone(), partition, attempt, document, has_starts))
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

    /// Reads the sealed bytes of a subpartition. See [`SubpartitionReader`].
    pub async fn read(&self, partition: PartitionId, subpartition: SubpartitionIndex, range: ReadRange) -> Result<SubpartitionReader> {
        SubpartitionReader::open(self.clone(), partition, subpartition, range).await
    }

    /// Follows a subpartition that is being written. See [`TailReader`].
    #[must_use]
    pub fn tail(&self, partition: PartitionId, subpartition: SubpartitionIndex, options: TailOptions) -> TailReader {
        TailReader::new(self.clone(), partition, subpartition, options)
    }

    /// Reads many ranges from all nodes that hold them. See [`FetchStream`].
    #[must_use]
    pub fn fetch(&self, targets: Vec<FetchTarget>, budget_bytes: u64) -> FetchStream {
        FetchStream::new(self.clone(), targets, budget_bytes)
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

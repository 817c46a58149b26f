//! What can be done with a dataset.

use crate::error::{ClientError, Result};
use crate::fetch::{Fetch, FetchOptions};
use crate::job::control;
use crate::raw::RawWriter;
use crate::reader::{ReadOptions, SubpartitionReader, TailReader};
use crate::transport::{Call, SharedTransport};
use crate::writer::{PartitionWriter, WriterOptions};
use forebay_protocol::datasets::{DatasetDocument, PartitionPage, ReleaseDocument};
use forebay_protocol::partitions::{AttemptDocument, ManifestDocument, OpenAttemptRequest, PartitionDocument, SubpartitionOffset};
use forebay_protocol::reads::{AcknowledgeDocument, AcknowledgeRequest, FetchItem, Position};
use forebay_protocol::{headers, paths};
use http::Method;
use store_api::{AttemptId, DatasetId, JobEpoch, JobId, Offset, PartitionId, SubpartitionIndex};

/// A dataset. Cheap to clone.
#[derive(Debug, Clone)]
pub struct DatasetHandle {
    transport: SharedTransport,
    job: JobId,
    dataset: DatasetId,
    epoch: Option<JobEpoch>,
}

impl DatasetHandle {
    pub(crate) const fn new(transport: SharedTransport, job: JobId, dataset: DatasetId, epoch: Option<JobEpoch>) -> Self {
        Self { transport, job, dataset, epoch }
    }

    /// The dataset's id.
    #[must_use]
    pub const fn id(&self) -> &DatasetId {
        &self.dataset
    }

    fn path(&self) -> String {
        paths::dataset(&self.job, &self.dataset)
    }

    /// The dataset as it stands.
    pub async fn document(&self) -> Result<DatasetDocument> {
        self.transport.document(&Call::new(Method::GET, self.path())).await
    }

    /// Opens an attempt and gives the streaming writer of it. Idempotent: an attempt that was cut
    /// goes on where it stands. A generation above the current one needs ownership of the job.
    pub async fn writer(&self, partition: PartitionId, attempt: AttemptId, options: WriterOptions) -> Result<PartitionWriter> {
        let document = self.open_attempt(partition, attempt, &[]).await?;
        PartitionWriter::new(self.transport.clone(), self.attempt_path(partition, attempt), &document, options)
    }

    /// Opens an attempt and gives the raw writer of it: bytes at offsets, without frames.
    pub async fn raw_writer(&self, partition: PartitionId, attempt: AttemptId) -> Result<RawWriter> {
        let document = self.open_attempt(partition, attempt, &[]).await?;
        Ok(RawWriter::new(self.transport.clone(), self.attempt_path(partition, attempt), &document))
    }

    fn attempt_path(&self, partition: PartitionId, attempt: AttemptId) -> String {
        paths::attempt(&self.job, &self.dataset, partition, attempt)
    }

    /// Opens an attempt, with start offsets that are not 0 (pipelined only). Idempotent.
    pub async fn open_attempt(
        &self,
        partition: PartitionId,
        attempt: AttemptId,
        starts: &[(SubpartitionIndex, Offset)],
    ) -> Result<AttemptDocument> {
        let to_wire =
            |(index, offset): &(SubpartitionIndex, Offset)| SubpartitionOffset { subpartition: index.get(), offset: offset.get() };
        let request =
            OpenAttemptRequest { generation: attempt.generation, attempt: attempt.attempt, starts: starts.iter().map(to_wire).collect() };
        let path = format!("{}/attempts", paths::partition(&self.job, &self.dataset, partition));
        let mut call = Call::new(Method::POST, path).json(&request)?;
        if let Some(epoch) = self.epoch {
            call = call.header(headers::JOB_EPOCH, &epoch.to_string());
        }
        self.transport.document(&call).await
    }

    /// Where an attempt stands.
    pub async fn attempt(&self, partition: PartitionId, attempt: AttemptId) -> Result<AttemptDocument> {
        self.transport.document(&Call::new(Method::GET, self.attempt_path(partition, attempt))).await
    }

    /// A partition as it stands.
    pub async fn partition(&self, partition: PartitionId) -> Result<PartitionDocument> {
        self.transport.document(&Call::new(Method::GET, paths::partition(&self.job, &self.dataset, partition))).await
    }

    /// One page of the sealed partitions, after the `next_after` of the page before.
    pub async fn page(&self, after: Option<&str>, with_lengths: bool) -> Result<PartitionPage> {
        let after = after.map(|after| format!("&after={after}")).unwrap_or_default();
        let path = format!("{}/partitions?lists={with_lengths}{after}", self.path());
        self.transport.document(&Call::new(Method::GET, path)).await
    }

    /// Every sealed partition, page by page.
    pub async fn sealed(&self, with_lengths: bool) -> Result<Vec<ManifestDocument>> {
        let (mut found, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = self.page(after.as_deref(), with_lengths).await?;
            found.extend(page.partitions);
            match page.next_after {
                Some(next) if after.as_ref() != Some(&next) => after = Some(next),
                Some(next) => return Err(ClientError::Protocol(format!("the listing repeats {next}"))),
                None => return Ok(found),
            }
        }
    }

    /// Reads a sealed subpartition, or a range of it. The read goes on by itself after a cut, never
    /// mixes attempts, and ends in an error rather than short.
    #[must_use]
    pub fn read(&self, partition: PartitionId, subpartition: SubpartitionIndex, options: ReadOptions) -> SubpartitionReader {
        let path = paths::read(&self.job, &self.dataset, partition, subpartition);
        SubpartitionReader::new(self.transport.clone(), path, options)
    }

    /// Follows a subpartition of an open pipelined partition from an offset on, to its sealed end.
    #[must_use]
    pub fn tail(&self, partition: PartitionId, subpartition: SubpartitionIndex, from: Offset, attempt: Option<AttemptId>) -> TailReader {
        TailReader::new(self.clone(), self.transport.clone(), partition, subpartition, from, attempt)
    }

    pub(crate) fn read_path(&self, partition: PartitionId, subpartition: SubpartitionIndex) -> String {
        paths::read(&self.job, &self.dataset, partition, subpartition)
    }

    pub(crate) const fn job_handle_parts(&self) -> (&JobId, &DatasetId) {
        (&self.job, &self.dataset)
    }

    /// Reads many ranges with few requests, from whichever nodes hold them.
    #[must_use]
    pub fn fetch(&self, items: Vec<FetchItem>, options: FetchOptions) -> Fetch {
        Fetch::new(self.transport.clone(), format!("{}/fetch", self.path()), items, options)
    }

    /// Says how far a consumer group has read for good (pipelined). Idempotent.
    pub async fn acknowledge(&self, group: &str, positions: Vec<Position>) -> Result<AcknowledgeDocument> {
        let request = AcknowledgeRequest { group: group.to_owned(), consumer: None, positions };
        self.transport.document(&Call::new(Method::POST, format!("{}/acknowledge", self.path())).json(&request)?).await
    }

    /// Releases the dataset. Idempotent; needs ownership of the job.
    pub async fn release(&self) -> Result<ReleaseDocument> {
        self.transport.document(&control(self.epoch, Method::DELETE, self.path())?).await
    }

    /// Releases one partition. Idempotent; needs ownership of the job.
    pub async fn release_partition(&self, partition: PartitionId) -> Result<ReleaseDocument> {
        let path = paths::partition(&self.job, &self.dataset, partition);
        self.transport.document(&control(self.epoch, Method::DELETE, path)?).await
    }
}

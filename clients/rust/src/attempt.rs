//! One execution of a producer: where it stands, its seal, its end without a result.

use crate::dataset::DatasetHandle;
use crate::error::{ClientError, FencedBy, Result};
use crate::ledger::Ledger;
use crate::transport::{Call, Failure};
use forebay_protocol::ErrorCode;
use forebay_protocol::headers::{JOB_EPOCH, NODE_LIFE};
use forebay_protocol::partitions::{
    AttemptDocument, ManifestDocument, OpenAttemptRequest, SealDocument, SealRequest, SealResult, SubpartitionOffset,
};
use http::Method;
use store_api::{AttemptId, Offset, PartitionId, SubpartitionIndex};

/// How a seal ended. Both ways the producer's task is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sealed {
    /// This attempt is the content of the partition.
    Won(ManifestDocument),
    /// Another attempt of the generation was first; the manifest is that attempt's.
    OtherWon(ManifestDocument),
}

impl Sealed {
    /// The manifest of the content.
    #[must_use]
    pub const fn manifest(&self) -> &ManifestDocument {
        match self {
            Self::Won(manifest) | Self::OtherWon(manifest) => manifest,
        }
    }

    /// Whether this attempt is the content.
    #[must_use]
    pub const fn is_won(&self) -> bool {
        matches!(self, Self::Won(_))
    }
}

impl DatasetHandle {
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
}

/// An open attempt. Dropping it neither seals nor aborts.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub(crate) dataset: DatasetHandle,
    partition: PartitionId,
    attempt: AttemptId,
    pub(crate) document: AttemptDocument,
    pub(crate) ledger: Ledger,
}

impl Attempt {
    pub(crate) fn new(
        dataset: DatasetHandle,
        partition: PartitionId,
        attempt: AttemptId,
        document: AttemptDocument,
        has_starts: bool,
    ) -> Self {
        let ledger = Ledger::new(&document, has_starts);
        Self { dataset, partition, attempt, document, ledger }
    }

    /// The partition.
    #[must_use]
    pub const fn partition(&self) -> PartitionId {
        self.partition
    }

    /// The attempt.
    #[must_use]
    pub const fn id(&self) -> AttemptId {
        self.attempt
    }

    /// Where the attempt stood when it was opened: tails, next sequence, limits of the node.
    #[must_use]
    pub const fn opened(&self) -> &AttemptDocument {
        &self.document
    }

    pub(crate) fn call(&self, method: Method, below: &str) -> Result<Call> {
        let path = format!("/partitions/{}/attempts/{}{below}", self.partition, self.attempt);
        self.dataset.call(method, &path)?.with(NODE_LIFE, &self.document.location.life)
    }

    /// Where the attempt stands now.
    pub async fn state(&self) -> Result<AttemptDocument> {
        let call = self.call(Method::GET, "")?;
        let found = self.dataset.job.caller.document::<AttemptDocument>(&call).await;
        self.check(found.map(|(document, _)| document))
    }

    pub(crate) async fn state_once(&self) -> std::result::Result<AttemptDocument, Failure> {
        let call = self.call(Method::GET, "")?;
        let (document, _) =
            self.dataset.job.caller.document_once::<AttemptDocument>(&call).await.map_err(|failure| self.mind_life(failure))?;
        Ok(self.check(Ok(document))?)
    }

    /// An attempt that was opened and is not known any more went with the node's life, and so did
    /// one that another life answers for.
    fn check(&self, found: Result<AttemptDocument>) -> Result<AttemptDocument> {
        match found {
            Ok(document) if document.location.life == self.document.location.life => Ok(document),
            Ok(document) => {
                let problem = forebay_protocol::Problem::new(ErrorCode::Fenced, "the node was started anew: the attempt must be rewritten");
                Err(ClientError::Fenced { by: FencedBy::NodeLife(document.location.life), problem: Box::new(problem) })
            }
            Err(error) => Err(rewrite_if_unknown(error)),
        }
    }

    pub(crate) fn mind_life(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Problem { problem, .. } if problem.code == ErrorCode::UnknownAttempt => {
                Failure::Final(rewrite_if_unknown(ClientError::NeverExisted(problem)))
            }
            other => other,
        }
    }

    /// Makes the attempt final. Idempotent: retried until the answer is known, within the policy.
    pub(crate) async fn seal(&self) -> Result<Sealed> {
        let call = self.call(Method::POST, "/seal")?.json(&SealRequest { subpartitions: self.ledger.statement() })?;
        let found = self.dataset.job.caller.document::<SealDocument>(&call).await.map_err(rewrite_if_unknown);
        let (document, _) = found?;
        Ok(match document.result {
            SealResult::Won => Sealed::Won(document.manifest),
            SealResult::OtherWon => Sealed::OtherWon(document.manifest),
        })
    }

    /// Ends the attempt without a result. Idempotent: one that is gone already is a success.
    pub async fn abort(&self) -> Result<()> {
        let call = self.call(Method::DELETE, "")?;
        match self.dataset.job.caller.send(&call).await {
            Ok(_) | Err(ClientError::Released(_)) => Ok(()),
            Err(ClientError::NeverExisted(problem)) if problem.code == ErrorCode::UnknownAttempt => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn rewrite_if_unknown(error: ClientError) -> ClientError {
    match error {
        ClientError::NeverExisted(problem) if problem.code == ErrorCode::UnknownAttempt => {
            ClientError::Fenced { by: FencedBy::NodeLife(problem.life.clone().unwrap_or_default()), problem }
        }
        other => other,
    }
}

//! A medium that several nodes share: what is asked of it beyond keeping partitions.

use crate::error::StoreError;
use crate::ids::{JobId, JobIncarnation};
use async_trait::async_trait;

/// A medium that several nodes write to.
#[async_trait]
pub trait SharedMedium: Send + Sync + 'static {
    /// Incarnations of jobs that have anything on the medium. Cancel-safe. Errors: `Unavailable`,
    /// never taken for "none".
    async fn jobs(&self) -> Result<Vec<(JobId, JobIncarnation)>, StoreError>;

    /// Takes away everything of incarnations that are dead, and what former lives of this node left
    /// unfinished. Idempotent. Cancelled half-way: some of it is gone; repeat it. Errors:
    /// `Unavailable`; what was not reached stays.
    async fn sweep(&self, dead: &[(JobId, JobIncarnation)]) -> Result<Swept, StoreError>;
}

/// What a sweep took away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Objects of dead jobs.
    pub n_objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Uploads that former lives of this node left unfinished.
    pub n_uploads: u64,
}

//! What a write must bring before its bytes are read: the node's life, room in the job's quota, and
//! memory of the store.

use super::PartitionService;
use super::error::{DEFAULT_RETRY, FencedBy, ServiceErrorKind, ServiceResult};
use super::registry::{Job, LiveAttempt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use store_api::{NodeLife, Permit, StoreErrorKind};

/// Bytes that one writer has reserved and not yet applied; they count against the job's quota.
#[derive(Debug)]
pub(super) struct Reservation {
    total: Arc<JobReserved>,
    mine: AtomicU64,
}

/// Lets a reservation outlive the borrow of its job.
pub(super) struct JobReserved(Arc<Job>);

impl std::fmt::Debug for JobReserved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.reserved.fmt(f)
    }
}

impl Reservation {
    pub(super) fn new(job: &Arc<Job>) -> Self {
        Self { total: Arc::new(JobReserved(job.clone())), mine: AtomicU64::new(0) }
    }

    fn add(&self, bytes: u64) {
        self.total.0.reserved.fetch_add(bytes, Ordering::AcqRel);
        self.mine.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Bytes that are now held by the store, or were given back.
    pub(super) fn settle(&self, bytes: u64) {
        let mine = self.mine.load(Ordering::Acquire);
        let settled = bytes.min(mine);
        self.mine.fetch_sub(settled, Ordering::AcqRel);
        self.total.0.reserved.fetch_sub(settled, Ordering::AcqRel);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.settle(u64::MAX);
    }
}

impl PartitionService {
    /// Checks the life that a write names. Errors: `LifeRequired`, `Fenced` by this life.
    pub(super) fn check_life(&self, life: Option<NodeLife>) -> ServiceResult<()> {
        let present = self.node.location.life;
        match life {
            None => Err(ServiceErrorKind::LifeRequired.into()),
            Some(named) if named != present => Err(ServiceErrorKind::Fenced { by: FencedBy::Life(present) }.into()),
            Some(_) => Ok(()),
        }
    }

    /// Reserves memory for bytes that are about to be read: first the job's quota, refused at once,
    /// then the store's memory, waited for as configured. Errors: `OverQuota`, those of
    /// [`store_api::PartitionStore::reserve`].
    pub(super) async fn reserve(&self, live: &LiveAttempt, reservation: &Reservation, bytes: u64) -> ServiceResult<Permit> {
        // Counted before the check and the wait, so that many writers cannot pass the check together.
        reservation.add(bytes);
        let mut undo = Undo { reservation, bytes };
        self.check_quota(&live.job)?;
        match live.dataset.store()?.reserve(&live.key, bytes, self.config.append_patience).await {
            Ok(permit) => {
                undo.bytes = 0;
                Ok(permit)
            }
            Err(error) => {
                if matches!(error.kind(), StoreErrorKind::Overloaded { .. }) {
                    self.counters.overloaded.add(1);
                }
                Err(self.refine(live, error.into()))
            }
        }
    }

    fn check_quota(&self, job: &Job) -> ServiceResult<()> {
        let Some(quota_bytes) = job.control.lock().quota_bytes else { return Ok(()) };
        let used = self.held(job).total().saturating_add(job.reserved.load(Ordering::Acquire));
        if used > quota_bytes {
            self.counters.over_quota.add(1);
            return Err(ServiceErrorKind::OverQuota { quota_bytes, retry_after: DEFAULT_RETRY }.into());
        }
        Ok(())
    }
}

/// Takes a reservation back when the wait for memory fails or is dropped.
struct Undo<'a> {
    reservation: &'a Reservation,
    bytes: u64,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        self.reservation.settle(self.bytes);
    }
}

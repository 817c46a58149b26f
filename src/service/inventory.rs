//! What this node holds, for whoever keeps the overview; and giving back what was planned away.

use super::PartitionService;
use super::error::{ServiceErrorKind, ServiceResult};
use super::registry::{Dataset, Job, Partition};
use store_api::{AttemptId, AttemptState, DatasetKey, JobEpoch, LossCause, PartitionId, PartitionKey};

/// What is held of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldingState {
    /// It is being written.
    Open,
    /// Its content is final.
    Sealed,
    /// It was there and is gone.
    Lost(LossCause),
}

/// What this node holds of a partition: its content, or else what comes nearest to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// The partition.
    pub partition: PartitionKey,
    /// The attempt.
    pub attempt: AttemptId,
    /// What it is.
    pub state: HoldingState,
    /// Bytes of it, once sealed.
    pub bytes: u64,
    /// Whether every node of the object store can serve it.
    pub is_shared: bool,
}

impl Partition {
    fn holding(&self) -> Option<(AttemptId, HoldingState, u64)> {
        if self.is_released {
            return None;
        }
        if let Some(sealed) = self.sealed() {
            return Some((self.id(sealed), HoldingState::Sealed, sealed.bytes));
        }
        if let Some(open) = self.open() {
            return Some((self.id(open), HoldingState::Open, 0));
        }
        let lost = self.attempts.iter().find(|attempt| attempt.state == AttemptState::Lost)?;
        Some((self.id(lost), HoldingState::Lost(self.lost?), 0))
    }
}

impl PartitionService {
    /// A number that changes whenever what [`Self::holdings`] answers may have changed.
    #[must_use]
    pub fn change_mark(&self) -> u64 {
        let counted = [&self.counters.attempts_opened, &self.counters.attempts_aborted, &self.counters.generations_raised];
        let of_counters = counted.into_iter().map(|counter| counter.value()).fold(0, u64::wrapping_add);
        let jobs = self.registry.live_jobs();
        jobs.iter().map(|job| job.events.newest()).fold(of_counters.wrapping_add(jobs.len() as u64), u64::wrapping_add)
    }

    /// Everything that this node holds of jobs that have not ended, in order. No I/O; linear in
    /// partitions.
    #[must_use]
    pub fn holdings(&self) -> Vec<Holding> {
        let mut found: Vec<Holding> = self.registry.live_jobs().iter().flat_map(|job| holdings_of_job(job)).collect();
        found.sort_by(|one, two| one.partition.cmp(&two.partition));
        found
    }

    /// Gives back what this node holds of an attempt that something newer has taken the place of:
    /// raises the generation above it. Does nothing when that has happened. Once recorded it runs to
    /// its end at the next reaper round. Errors: `UnknownJob` and `UnknownDataset` when they are
    /// gone, `DiskFull`, `Unavailable` (it is ordered again).
    pub async fn give_back_attempt(&self, partition: &PartitionKey, attempt: AttemptId) -> ServiceResult<()> {
        let DatasetKey { job, incarnation, dataset } = &partition.dataset;
        let job = self.find_job(job).await?;
        if job.incarnation != *incarnation {
            return Err(ServiceErrorKind::UnknownJob.into());
        }
        let dataset = self.find_dataset(&job, dataset).await?;
        let above = AttemptId::new(attempt.generation.saturating_add(1), 0);
        let epoch: JobEpoch = job.control.lock().epoch;
        self.raise_generation(&job, &dataset, partition.partition, above, Some(epoch)).await
    }
}

fn holdings_of_job(job: &Job) -> Vec<Holding> {
    let datasets = job.datasets.read();
    datasets.values().filter(|dataset| dataset.check_live().is_ok()).flat_map(|dataset| holdings_of_dataset(dataset)).collect()
}

fn holdings_of_dataset(dataset: &Dataset) -> Vec<Holding> {
    let partitions = dataset.partitions.read();
    let holding = |(number, known): (&u64, &Partition)| {
        let (attempt, state, bytes) = known.holding()?;
        let partition = dataset.key.partition(PartitionId::new(*number));
        Some(Holding { partition, attempt, state, bytes, is_shared: dataset.is_durable() && state == HoldingState::Sealed })
    };
    partitions.iter().filter_map(holding).collect()
}

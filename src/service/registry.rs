//! What the node knows: job → dataset → partition → attempts of the current generation.
//!
//! ```text
//!   Registry ── jobs: RwLock<map> ──► Job ── datasets: RwLock<map> ──► Dataset ── partitions: RwLock<map>
//!                                      │ control: Mutex (owner, lease, end)            │ 1 entry per partition,
//!                                      │ gate: async Mutex (one control call at a time)│ ids and states only
//! ```
//! Appends hold their [`LiveAttempt`] and never come back here; reads take each lock for a look-up,
//! shared. No lock is held over a call of a store or a catalog, except the gate. Manifests stay with
//! the stores: a sealed partition costs about a hundred bytes here.

use super::append::Lane;
use super::error::{FencedBy, ServiceError, ServiceErrorKind, ServiceResult};
use super::events::EventLog;
use super::lease::Lease;
use super::seal::SealSlot;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use store_api::{
    Arbitration, AttemptId, AttemptKey, AttemptState, ClassAchieved, DatasetId, DatasetKey, DatasetSpec, JobEpoch, JobId, JobIncarnation,
    LossCause, NodeId, Offset, PartitionId, Retention, SharedStore, StoreClass, SubpartitionIndex,
};

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Released,
    Expired,
}

impl Ending {
    pub(super) fn refusal(self) -> ServiceError {
        match self {
            Self::Released => ServiceErrorKind::Released.into(),
            Self::Expired => ServiceErrorKind::Expired.into(),
        }
    }
}

/// What is remembered of a job that has ended.
#[derive(Debug, Clone)]
pub(super) struct EndedJob {
    pub(super) incarnation: JobIncarnation,
    pub(super) ending: Ending,
    pub(super) at_ms: u64,
    pub(super) token_hash: Option<[u8; 32]>,
    /// Whether the job is over everywhere, or this node has only stopped keeping its part.
    pub(super) is_final: bool,
}

/// A job id that is known.
#[derive(Clone)]
pub(super) enum Slot {
    Live(Arc<Job>),
    Ended(EndedJob),
}

/// All jobs.
#[derive(Default)]
pub(super) struct Registry {
    pub(super) jobs: RwLock<HashMap<JobId, Slot>>,
}

impl Registry {
    pub(super) fn slot(&self, job: &JobId) -> Option<Slot> {
        self.jobs.read().get(job).cloned()
    }

    pub(super) fn live_jobs(&self) -> Vec<Arc<Job>> {
        let jobs = self.jobs.read();
        jobs.values().filter_map(|slot| if let Slot::Live(job) = slot { Some(job.clone()) } else { None }).collect()
    }

    /// The hashes of the tokens of all jobs that are known, also of those that have ended.
    pub(super) fn token_hashes(&self) -> Vec<[u8; 32]> {
        let jobs = self.jobs.read();
        let hash_of = |slot: &Slot| match slot {
            Slot::Live(job) => job.control.lock().token_hash,
            Slot::Ended(ended) => ended.token_hash,
        };
        jobs.values().filter_map(hash_of).collect()
    }

    pub(super) fn n_live(&self) -> usize {
        self.jobs.read().values().filter(|slot| matches!(slot, Slot::Live(_))).count()
    }

    /// Puts the end of a job in its place, unless the id is in use again.
    pub(super) fn bury(&self, job: &Job, ended: EndedJob) {
        let mut jobs = self.jobs.write();
        let is_same = matches!(jobs.get(&job.id), Some(Slot::Live(live)) if live.incarnation == job.incarnation);
        if is_same {
            jobs.insert(job.id.clone(), Slot::Ended(ended));
        }
    }
}

/// What only the owner changes. One lock: a renewal and an expiry cannot both win.
#[derive(Debug, Clone)]
pub(super) struct Control {
    pub(super) epoch: JobEpoch,
    pub(super) nonce: String,
    pub(super) token_hash: Option<[u8; 32]>,
    pub(super) default_class: StoreClass,
    pub(super) default_retention: Retention,
    pub(super) lease: Lease,
    pub(super) quota_bytes: Option<u64>,
    /// The node whose lease decides about durable data: where the owner last put the job.
    pub(super) home: NodeId,
    pub(super) ending: Option<Ending>,
    /// Monotonic time at which the shared record was last looked at.
    pub(super) checked_at: Duration,
}

/// A job that has not ended.
pub(super) struct Job {
    pub(super) id: JobId,
    pub(super) incarnation: JobIncarnation,
    pub(super) control: Mutex<Control>,
    /// Held over control calls that write to a catalog, so that records are written in the order in
    /// which they were decided.
    pub(super) gate: tokio::sync::Mutex<()>,
    pub(super) datasets: RwLock<BTreeMap<DatasetId, Arc<Dataset>>>,
    pub(super) events: EventLog,
    /// Bytes reserved for appends and not yet applied.
    pub(super) reserved: AtomicU64,
}

impl Job {
    pub(super) fn new(id: JobId, incarnation: JobIncarnation, control: Control, events: EventLog) -> Arc<Self> {
        Arc::new(Self {
            id,
            incarnation,
            control: Mutex::new(control),
            gate: tokio::sync::Mutex::new(()),
            datasets: RwLock::new(BTreeMap::new()),
            events,
            reserved: AtomicU64::new(0),
        })
    }

    /// Errors: `Released`, `Expired` once the job has ended.
    pub(super) fn check_live(&self) -> ServiceResult<()> {
        match self.control.lock().ending {
            Some(ending) => Err(ending.refusal()),
            None => Ok(()),
        }
    }

    /// Checks the epoch of a control call. Errors: `EpochRequired`; `Fenced` by the present epoch
    /// when the caller's is lower; `BadRequest` for one that was never given out; `Released`,
    /// `Expired`.
    pub(super) fn check_epoch(&self, epoch: Option<JobEpoch>) -> ServiceResult<()> {
        let control = self.control.lock();
        if let Some(ending) = control.ending {
            return Err(ending.refusal());
        }
        let epoch = epoch.ok_or(ServiceErrorKind::EpochRequired)?;
        if epoch > control.epoch {
            return Err(ServiceError::bad_request(format!("epoch {epoch} has not been given out; the job is at {}", control.epoch)));
        }
        if epoch < control.epoch {
            return Err(ServiceErrorKind::Fenced { by: FencedBy::Epoch(control.epoch) }.into());
        }
        Ok(())
    }

    pub(super) fn dataset_key(&self, dataset: &DatasetId) -> DatasetKey {
        DatasetKey { job: self.id.clone(), incarnation: self.incarnation, dataset: dataset.clone() }
    }
}

/// A dataset of a job.
pub(super) struct Dataset {
    pub(super) key: DatasetKey,
    pub(super) spec: Arc<DatasetSpec>,
    pub(super) content: Option<Arc<str>>,
    /// Pipelined and declared in a former life of the node: what was written then is lost.
    pub(super) is_of_former_life: bool,
    /// `None` when this life of the node has no store of the class.
    pub(super) store: Option<SharedStore>,
    pub(super) class: ClassAchieved,
    pub(super) is_released: AtomicBool,
    pub(super) partitions: RwLock<BTreeMap<u64, Partition>>,
    pub(super) n_sealed: AtomicU64,
    pub(super) sealed_bytes: AtomicU64,
}

impl Dataset {
    pub(super) fn is_pipelined(&self) -> bool {
        self.spec.kind.class() == StoreClass::Pipelined
    }

    pub(super) fn is_durable(&self) -> bool {
        self.spec.kind.class() == StoreClass::Durable
    }

    /// Whether the first seal of a generation is its content.
    pub(super) fn has_one_winner(&self) -> bool {
        self.spec.arbitration == Arbitration::Store
    }

    /// Errors: `ClassUnavailable`.
    pub(super) fn store(&self) -> ServiceResult<&SharedStore> {
        self.store.as_ref().ok_or_else(|| {
            let reason = format!("no store for {} datasets is configured", self.spec.kind.class());
            ServiceErrorKind::ClassUnavailable { reason }.into()
        })
    }

    /// Errors: `Released`.
    pub(super) fn check_live(&self) -> ServiceResult<()> {
        if self.is_released.load(Ordering::Acquire) { Err(ServiceErrorKind::Released.into()) } else { Ok(()) }
    }

    /// Errors: `UnknownPartition` for one outside what was declared.
    pub(super) fn check_partition(&self, partition: PartitionId) -> ServiceResult<()> {
        match self.spec.n_partitions {
            Some(count) if partition.get() >= count => Err(ServiceErrorKind::UnknownPartition.into()),
            _ => Ok(()),
        }
    }

    /// What a partition without an entry is.
    pub(super) fn untouched(&self) -> Partition {
        Partition { lost: self.is_of_former_life.then_some(LossCause::Node), ..Partition::default() }
    }

    pub(super) fn attempt_key(&self, partition: PartitionId, attempt: AttemptId) -> AttemptKey {
        self.key.partition(partition).attempt(attempt)
    }

    pub(super) fn count_sealed(&self, bytes: u64) {
        self.n_sealed.fetch_add(1, Ordering::Relaxed);
        self.sealed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes attempts that are gone out of the counts.
    pub(super) fn uncount_sealed<'a>(&self, attempts: impl IntoIterator<Item = &'a Attempt>) {
        for attempt in attempts.into_iter().filter(|attempt| attempt.state == AttemptState::Sealed) {
            self.n_sealed.fetch_sub(1, Ordering::Relaxed);
            self.sealed_bytes.fetch_sub(attempt.bytes, Ordering::Relaxed);
        }
    }
}

/// A partition: its current generation and the attempts of that generation.
#[derive(Default, Clone)]
pub(super) struct Partition {
    pub(super) generation: u32,
    /// The attempt with which the generation was opened, or the newest known of it.
    pub(super) by: u32,
    pub(super) is_released: bool,
    /// The content of this generation was there and is gone.
    pub(super) lost: Option<LossCause>,
    pub(super) attempts: Vec<Attempt>,
}

/// An attempt of the current generation.
#[derive(Clone)]
pub(super) struct Attempt {
    pub(super) number: u32,
    pub(super) state: AttemptState,
    /// Bytes of its content, once sealed.
    pub(super) bytes: u64,
    /// While it can be written.
    pub(super) live: Option<Arc<LiveAttempt>>,
}

impl Partition {
    pub(super) fn attempt(&self, number: u32) -> Option<&Attempt> {
        self.attempts.iter().find(|attempt| attempt.number == number)
    }

    pub(super) fn attempt_mut(&mut self, number: u32) -> Option<&mut Attempt> {
        self.attempts.iter_mut().find(|attempt| attempt.number == number)
    }

    pub(super) fn id(&self, attempt: &Attempt) -> AttemptId {
        AttemptId::new(self.generation, attempt.number)
    }

    /// The sealed attempt; the lowest when there are several.
    pub(super) fn sealed(&self) -> Option<&Attempt> {
        self.sealed_attempts().min_by_key(|attempt| attempt.number)
    }

    pub(super) fn sealed_attempts(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.iter().filter(|attempt| attempt.state == AttemptState::Sealed)
    }

    /// The highest attempt that takes bytes or waits for its seal.
    pub(super) fn open(&self) -> Option<&Attempt> {
        let is_open = |attempt: &&Attempt| matches!(attempt.state, AttemptState::Open | AttemptState::Prepared);
        self.attempts.iter().filter(is_open).max_by_key(|attempt| attempt.number)
    }

    /// What stands for this generation in a `Fenced` answer.
    pub(super) fn superseder(&self) -> AttemptId {
        AttemptId::new(self.generation, self.by)
    }
}

/// An attempt that can be written.
pub(super) struct LiveAttempt {
    pub(super) key: AttemptKey,
    pub(super) job: Arc<Job>,
    pub(super) dataset: Arc<Dataset>,
    /// Offsets at which subpartitions start that do not start at 0, in ascending order of index.
    pub(super) starts: Vec<(SubpartitionIndex, Offset)>,
    pub(super) lane: Arc<tokio::sync::RwLock<Lane>>,
    /// Number of the newest frame stream.
    pub(super) stream: AtomicU64,
    pub(super) seal: Mutex<SealSlot>,
    _counted: Counted,
}

/// Counts something for as long as it is there.
#[derive(Debug)]
pub(super) struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl LiveAttempt {
    pub(super) fn new(
        key: AttemptKey,
        job: Arc<Job>,
        dataset: Arc<Dataset>,
        starts: Vec<(SubpartitionIndex, Offset)>,
        counted: Counted,
    ) -> Arc<Self> {
        Arc::new(Self {
            key,
            job,
            dataset,
            lane: Arc::new(tokio::sync::RwLock::new(Lane::default())),
            stream: AtomicU64::new(0),
            starts,
            seal: Mutex::new(SealSlot::default()),
            _counted: counted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_partition_is_small() {
        assert!(size_of::<Partition>() <= 40, "{}", size_of::<Partition>());
        assert!(size_of::<Attempt>() <= 24, "{}", size_of::<Attempt>());
    }
}

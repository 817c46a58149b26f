//! Jobs: create, take over, look at.

use super::auth::{check_token, draw_token, hash_token};
use super::calls::{JobRequest, JobView};
use super::error::{ServiceError, ServiceErrorKind, ServiceResult};
use super::events::EventLog;
use super::lease::Lease;
use super::records::JobRecord;
use super::registry::{Control, Job, Slot};
use super::{PartitionService, registry};
use std::sync::Arc;
use store_api::{AttemptKey, AttemptState, HeldBytes, JobEpoch, JobId, JobIncarnation, Retention, StoreClass, StoreErrorKind};

/// Longest owner nonce, in bytes.
const MAX_NONCE_LENGTH: usize = 128;
/// How often a creation is tried again when another node keeps being first.
const MAX_CREATION_ROUNDS: u32 = 4;

impl PartitionService {
    /// Refuses a call about a job before its document is read, as the call itself would; a body that
    /// is never read is one that a client which waits for `100 Continue` never sends. As all `admit_`
    /// calls cheap and cancel-safe. Errors: `UnknownJob`, `Released`, `Expired`, `Unavailable`.
    pub async fn admit_job(&self, job: &JobId) -> ServiceResult<()> {
        self.find_job(job).await.map(|_| ())
    }

    /// For a control call. Errors: those of [`Self::admit_job`], `EpochRequired`, `Fenced`,
    /// `BadRequest` for an epoch that was never given out.
    pub async fn admit_control(&self, job: &JobId, epoch: Option<JobEpoch>) -> ServiceResult<()> {
        self.control_job(job).await?.check_epoch(epoch)
    }

    /// For [`Self::put_job`]. Errors: `Draining` when the job would be a new one, `Unavailable`.
    pub async fn admit_job_creation(&self, job: &JobId) -> ServiceResult<()> {
        match self.find_job(job).await {
            Ok(_) => Ok(()),
            Err(error) if !is_free(error.kind()) => Err(error),
            Err(_) if self.is_draining() => Err(ServiceErrorKind::Draining.into()),
            Err(_) => Ok(()),
        }
    }

    /// Creates a job or takes it over.
    ///
    /// A new id, and an id whose job has ended, becomes a new job with a new incarnation and the
    /// epoch 1. A repeat by the present owner (same `owner_nonce`) changes nothing but renews the lease;
    /// its `token_secret`, if it names one, must be the one that is set. Another nonce gets
    /// `JobOwned` unless it asks to take over: then the epoch rises, the former owner's control
    /// calls are fenced, its token ends, and with `fence_writers` every unsealed attempt is aborted.
    /// Members that a take-over leaves out stay as they are. Durable before the answer. Only the
    /// hash of the token is kept: an owner that wants to survive a lost answer supplies its own.
    /// Cancelled half-way: done or not; repeat it. Errors: `BadRequest`, `JobOwned`, `SpecConflict`,
    /// `Draining` (new jobs), `TooLarge` (too many jobs), `Fenced` (a later owner at another node),
    /// `Unavailable`, `DiskFull`.
    pub async fn put_job(&self, job: &JobId, request: JobRequest) -> ServiceResult<JobView> {
        if request.owner_nonce.len() > MAX_NONCE_LENGTH {
            return Err(ServiceError::bad_request("an owner nonce has at most 128 bytes"));
        }
        if let Some(token) = &request.token_secret {
            check_token(token)?;
        }
        for _ in 0..MAX_CREATION_ROUNDS {
            match self.control_job(job).await {
                Ok(live) => match self.put_live_job(&live, &request).await {
                    Err(error) if live.check_live().is_err() => drop(error),
                    answer => return answer,
                },
                Err(error) if is_free(error.kind()) => {
                    if let Some(view) = self.create_job(job, &request).await? {
                        return Ok(view);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(ServiceErrorKind::Unavailable { retry_after: super::error::DEFAULT_RETRY }.into())
    }

    /// Creates a job; `None` when somebody was first.
    async fn create_job(&self, id: &JobId, request: &JobRequest) -> ServiceResult<Option<JobView>> {
        if self.is_draining() {
            return Err(ServiceErrorKind::Draining.into());
        }
        if let Some(Slot::Live(former)) = self.registry.slot(id)
            && former.check_live().is_err()
        {
            self.bury_expired(&former).await?;
        }
        let _one_at_a_time = self.creation.lock().await;
        if matches!(self.registry.slot(id), Some(Slot::Live(_))) {
            return Ok(None);
        }
        if self.registry.n_live() >= self.config.max_jobs {
            return Err(ServiceErrorKind::TooLarge { limit: self.config.max_jobs as u64 }.into());
        }
        let token = self.token_of(request);
        let now = self.clock.monotonic();
        let control = Control {
            epoch: JobEpoch::new(1),
            nonce: request.owner_nonce.clone(),
            token_hash: token.as_deref().map(hash_token),
            default_class: request.default_class.unwrap_or(StoreClass::Blocking),
            default_retention: request.default_retention.unwrap_or(Retention::UntilAcknowledged),
            lease: Lease::granted(now, self.config.bounded_lease(request.lease)),
            quota_bytes: request.quota_bytes,
            home: self.node.location.node.clone(),
            ending: None,
            checked_at: now,
        };
        let job = Job::new(id.clone(), self.draw_incarnation(), control, EventLog::new(self.config.event_capacity));
        let record = JobRecord::new(job.incarnation, &job.control.lock().clone());
        if !self.claim_shared_job(id, &record).await? {
            return Ok(None);
        }
        self.put_local(&super::records::job_key(id), &record).await?;
        // A lease runs from the answer, not from before a slow disk.
        job.control.lock().lease = Lease::granted(self.clock.monotonic(), self.config.bounded_lease(request.lease));
        self.registry.jobs.write().insert(id.clone(), Slot::Live(job.clone()));
        self.counters.jobs_created.add(1);
        Ok(Some(JobView { token: token.filter(|_| self.has_tokens()), is_new: true, ..self.view_of(&job) }))
    }

    /// Makes the id of a job free whose expiry is decided but not entered; its storage is given back
    /// meanwhile.
    async fn bury_expired(&self, former: &Arc<Job>) -> ServiceResult<()> {
        if let Some(work) = self.end_expired(former).await? {
            let service = self.shared_self()?;
            self.tasks.spawn_to_end(async move {
                let _ = service.give_back(work).await;
            });
        }
        Ok(())
    }

    fn draw_incarnation(&self) -> JobIncarnation {
        JobIncarnation::new(self.random.next_u64())
    }

    /// The token that a request sets.
    fn token_of(&self, request: &JobRequest) -> Option<String> {
        let drawn = || self.has_tokens().then(|| draw_token(self.random.as_ref()));
        request.token_secret.clone().or_else(drawn)
    }

    async fn put_live_job(&self, job: &Arc<Job>, request: &JobRequest) -> ServiceResult<JobView> {
        let _one_at_a_time = job.gate.lock().await;
        let present = job.control.lock().clone();
        if present.nonce == request.owner_nonce {
            return self.repeat_put(job, request);
        }
        if !request.take_over {
            return Err(ServiceErrorKind::JobOwned { epoch: present.epoch }.into());
        }
        let token = self.token_of(request);
        let length = request.lease.map_or(present.lease.length, |wanted| self.config.bounded_lease(Some(wanted)));
        let next = Control {
            epoch: JobEpoch::new(present.epoch.get().saturating_add(1)),
            nonce: request.owner_nonce.clone(),
            token_hash: token.as_deref().map(hash_token),
            default_class: request.default_class.unwrap_or(present.default_class),
            default_retention: request.default_retention.unwrap_or(present.default_retention),
            lease: Lease::granted(self.clock.monotonic(), length),
            quota_bytes: request.quota_bytes.or(present.quota_bytes),
            home: self.node.location.node.clone(),
            ending: None,
            checked_at: self.clock.monotonic(),
        };
        self.store_control(job, &next).await?;
        {
            let mut control = job.control.lock();
            if let Some(ending) = control.ending {
                return Err(ending.refusal());
            }
            *control = Control { lease: Lease::granted(self.clock.monotonic(), length), ..next };
        }
        self.counters.jobs_taken_over.add(1);
        if request.fence_writers {
            self.abort_unsealed(job).await?;
        }
        Ok(JobView { token: token.filter(|_| self.has_tokens()), ..self.view_of(job) })
    }

    fn repeat_put(&self, job: &Arc<Job>, request: &JobRequest) -> ServiceResult<JobView> {
        let now = self.clock.monotonic();
        let mut control = job.control.lock();
        if let Some(ending) = control.ending {
            return Err(ending.refusal());
        }
        if let Some(token) = &request.token_secret
            && control.token_hash != Some(hash_token(token))
        {
            return Err(ServiceErrorKind::SpecConflict { member: "token" }.into());
        }
        control.lease = Lease::granted(now, control.lease.length);
        drop(control);
        let token = request.token_secret.clone().filter(|_| self.has_tokens());
        Ok(JobView { token, ..self.view_of(job) })
    }

    /// Aborts every unsealed attempt of a job. Errors: the last refusal of a store; every attempt was
    /// tried.
    async fn abort_unsealed(&self, job: &Job) -> ServiceResult<()> {
        let datasets: Vec<_> = job.datasets.read().values().cloned().collect();
        let mut outcome = Ok(());
        for dataset in datasets {
            let Some(store) = dataset.store.clone() else { continue };
            for attempt in mark_unsealed_aborted(&dataset) {
                self.counters.attempts_aborted.add(1);
                match store.abort(&attempt).await {
                    // Sealed at the same moment: its seal finds the mark and takes it back.
                    Err(error) if !matches!(error.kind(), StoreErrorKind::AlreadySealed) => outcome = Err(error.into()),
                    Err(_) | Ok(()) => {}
                }
            }
        }
        outcome
    }

    /// A job. Errors: `UnknownJob`, `Released`, `Expired`, `Unavailable`.
    pub async fn job(&self, job: &JobId) -> ServiceResult<JobView> {
        let job = self.find_job(job).await?;
        Ok(self.view_of(&job))
    }

    /// All jobs that this node knows and that have not ended, by id. Errors: none today.
    pub async fn jobs(&self) -> ServiceResult<Vec<JobView>> {
        let mut views: Vec<JobView> =
            self.registry.live_jobs().iter().filter(|job| job.check_live().is_ok()).map(|job| self.view_of(job)).collect();
        views.sort_by(|one, two| one.job.cmp(&two.job));
        Ok(views)
    }

    fn view_of(&self, job: &Job) -> JobView {
        let control = job.control.lock().clone();
        JobView {
            job: job.id.clone(),
            incarnation: job.incarnation,
            epoch: control.epoch,
            default_class: control.default_class,
            default_retention: control.default_retention,
            lease: control.lease.length,
            lease_remaining: control.lease.remaining(self.clock.monotonic()),
            quota_bytes: control.quota_bytes,
            held: self.held(job),
            n_datasets: job.datasets.read().len() as u64,
            token: None,
            is_new: false,
        }
    }

    /// What a job holds in all stores of this node.
    pub(super) fn held(&self, job: &Job) -> HeldBytes {
        self.stores.all().fold(HeldBytes::default(), |sum, store| {
            let held = store.held(&job.id, job.incarnation);
            HeldBytes {
                memory: sum.memory.saturating_add(held.memory),
                disk: sum.disk.saturating_add(held.disk),
                object: sum.object.saturating_add(held.object),
            }
        })
    }
}

/// Whether the id can become a new job.
const fn is_free(kind: &ServiceErrorKind) -> bool {
    matches!(kind, ServiceErrorKind::UnknownJob | ServiceErrorKind::Released | ServiceErrorKind::Expired)
}

fn mark_unsealed_aborted(dataset: &registry::Dataset) -> Vec<AttemptKey> {
    let mut aborted = Vec::new();
    let mut partitions = dataset.partitions.write();
    for (number, partition) in partitions.iter_mut() {
        let generation = partition.generation;
        for attempt in &mut partition.attempts {
            if matches!(attempt.state, AttemptState::Open | AttemptState::Prepared) {
                attempt.state = AttemptState::Aborted;
                attempt.live = None;
                let id = store_api::AttemptId::new(generation, attempt.number);
                aborted.push(dataset.attempt_key(store_api::PartitionId::new(*number), id));
            }
        }
    }
    aborted
}

//! Records in both catalogs: the node's own, and the shared one through which another node finds a
//! job whose first node is gone.
//!
//! The shared catalog is the authority for owner, epoch and token of a job wherever it is
//! configured. A node looks there when it is asked for a job or durable dataset that it does not
//! know, and again on control calls when what it knows is older than `shared_record_age`. While the
//! shared catalog does not answer, what is known stays in force: unknown is never dead.

use super::PartitionService;
use super::error::{ServiceError, ServiceErrorKind, ServiceResult};
use super::events::EventLog;
use super::lease::Lease;
use super::records::{self, DatasetRecord, EndedRecord, JobFacts, JobRecord, PartitionRecord};
use super::registry::{Control, Dataset, Ending, Job, Slot};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use store_api::{Catalog, DatasetId, Expect, JobId, PartitionId, StoreErrorKind, Version};

/// Tries of a conditional put that keeps losing.
const MAX_PUT_ROUNDS: u32 = 8;

async fn read<T: DeserializeOwned>(catalog: &dyn Catalog, key: &str) -> ServiceResult<Option<(T, Version)>> {
    let Some(entry) = catalog.get(key).await? else { return Ok(None) };
    Ok(Some((records::decode(key, &entry.value)?, entry.version)))
}

fn is_conflict(error: &store_api::StoreError) -> bool {
    matches!(error.kind(), StoreErrorKind::Conflict)
}

impl PartitionService {
    /// A job that has not ended, for calls that read and write. Errors: `UnknownJob`, `Released`,
    /// `Expired`, `Unavailable`.
    pub(super) async fn find_job(&self, job: &JobId) -> ServiceResult<Arc<Job>> {
        match self.registry.slot(job) {
            Some(Slot::Live(live)) => live.check_live().map(|()| live),
            Some(Slot::Ended(ended)) => self.adopt_shared_job(job).await?.ok_or_else(|| ended.ending.refusal()),
            None => self.adopt_shared_job(job).await?.ok_or_else(|| ServiceErrorKind::UnknownJob.into()),
        }
    }

    /// As [`Self::find_job`], for control calls: asks the shared catalog whether another node has
    /// taken the job over or ended it, unless that was done a moment ago.
    pub(super) async fn control_job(&self, id: &JobId) -> ServiceResult<Arc<Job>> {
        let job = self.find_job(id).await?;
        let age = self.clock.monotonic().saturating_sub(job.control.lock().checked_at);
        if self.shared_catalog.is_none() || age < self.config.shared_record_age {
            return Ok(job);
        }
        match self.refresh_shared_job(&job).await {
            Ok(()) => self.find_job(id).await,
            Err(error) if matches!(error.kind(), ServiceErrorKind::Unavailable { .. } | ServiceErrorKind::Overloaded { .. }) => {
                tracing::warn!(job = %id, %error, "shared catalog does not answer, going on with what is known");
                Ok(job)
            }
            Err(error) => Err(error),
        }
    }

    async fn refresh_shared_job(&self, job: &Arc<Job>) -> ServiceResult<()> {
        let Some(shared) = &self.shared_catalog else { return Ok(()) };
        let record = read::<JobRecord>(shared.as_ref(), &records::job_key(&job.id)).await?;
        let ended = read::<EndedRecord>(shared.as_ref(), &records::ended_key(&job.id, job.incarnation)).await?;
        if let Some((ended, _)) = ended {
            return self.end_here(job, ended.ending()).await;
        }
        let Some((record, _)) = record else { return Ok(()) };
        let facts = record.facts().ok_or_else(|| records::damaged(&records::job_key(&job.id)))?;
        if facts.incarnation != job.incarnation {
            return self.end_here(job, Ending::Released).await;
        }
        self.adopt_facts(job, &record, &facts);
        Ok(())
    }

    fn adopt_facts(&self, job: &Job, record: &JobRecord, facts: &JobFacts) {
        let now = self.clock.monotonic();
        let mut control = job.control.lock();
        control.checked_at = now;
        if facts.epoch > control.epoch {
            control.epoch = facts.epoch;
            control.nonce.clone_from(&record.nonce);
            control.token_hash = facts.token_hash;
            control.home = facts.home.clone();
            tracing::info!(job = %job.id, epoch = %facts.epoch, home = %facts.home, "job was taken over at another node");
        }
    }

    /// Looks for a job in the shared catalog. `None` without one, when it is not there, or when the
    /// existence that is there has ended.
    pub(super) async fn adopt_shared_job(&self, id: &JobId) -> ServiceResult<Option<Arc<Job>>> {
        let Some(shared) = &self.shared_catalog else { return Ok(None) };
        let key = records::job_key(id);
        let Some((record, _)) = read::<JobRecord>(shared.as_ref(), &key).await? else { return Ok(None) };
        let facts = record.facts().ok_or_else(|| records::damaged(&key))?;
        if shared.get(&records::ended_key(id, facts.incarnation)).await?.is_some() {
            return Ok(None);
        }
        if let Some(Slot::Live(live)) = self.registry.slot(id)
            && live.incarnation != facts.incarnation
        {
            self.end_here(&live, Ending::Released).await?;
        }
        let _one_at_a_time = self.creation.lock().await;
        match self.registry.slot(id) {
            Some(Slot::Live(live)) if live.incarnation == facts.incarnation => {
                self.adopt_facts(&live, &record, &facts);
                return live.check_live().map(|()| Some(live));
            }
            Some(Slot::Ended(ended)) if ended.is_final && ended.incarnation == facts.incarnation => return Ok(None),
            Some(Slot::Live(_)) => return Err(ServiceErrorKind::Unavailable { retry_after: super::error::DEFAULT_RETRY }.into()),
            Some(Slot::Ended(_)) | None => {}
        }
        let job = self.job_from_record(id, &record, &facts);
        let record = JobRecord::new(job.incarnation, &job.control.lock().clone());
        self.put_local(&key, &record).await?;
        self.local_catalog.delete(&records::ended_key(id, job.incarnation)).await?;
        self.registry.jobs.write().insert(id.clone(), Slot::Live(job.clone()));
        Ok(Some(job))
    }

    pub(super) fn job_from_record(&self, id: &JobId, record: &JobRecord, facts: &JobFacts) -> Arc<Job> {
        let now = self.clock.monotonic();
        let control = Control {
            epoch: facts.epoch,
            nonce: record.nonce.clone(),
            token_hash: facts.token_hash,
            default_class: facts.default_class,
            default_retention: facts.default_retention,
            lease: Lease::granted(now, self.config.bounded_lease(Some(facts.lease))),
            quota_bytes: record.quota_bytes,
            home: facts.home.clone(),
            ending: None,
            checked_at: now,
        };
        Job::new(id.clone(), facts.incarnation, control, EventLog::new(self.config.event_capacity))
    }

    /// Looks for a durable dataset in the shared catalog. Errors: `UnknownDataset`, `Released`,
    /// `Unavailable`.
    pub(super) async fn adopt_shared_dataset(&self, job: &Arc<Job>, id: &DatasetId) -> ServiceResult<Arc<Dataset>> {
        let unknown = || ServiceError::new(ServiceErrorKind::UnknownDataset);
        let Some(shared) = &self.shared_catalog else { return Err(unknown()) };
        let key = records::dataset_key(&job.dataset_key(id));
        let Some((record, _)) = read::<DatasetRecord>(shared.as_ref(), &key).await? else { return Err(unknown()) };
        let dataset = self.dataset_from_record(job, id, &record).ok_or_else(|| records::damaged(&key))?;
        let dataset = job.datasets.write().entry(id.clone()).or_insert(dataset).clone();
        dataset.check_live().map(|()| dataset)
    }

    /// What the shared catalog says about a partition of a durable dataset.
    pub(super) async fn shared_partition(&self, dataset: &Dataset, partition: PartitionId) -> ServiceResult<Option<PartitionRecord>> {
        let Some(shared) = self.shared_catalog.as_ref().filter(|_| dataset.is_durable()) else { return Ok(None) };
        let found = read(shared.as_ref(), &records::partition_key(&dataset.key, partition)).await?;
        Ok(found.map(|(record, _)| record))
    }

    pub(super) async fn put_local(&self, key: &str, record: &impl Serialize) -> ServiceResult<()> {
        self.local_catalog.put(key, records::encode(record)?, Expect::Any).await?;
        Ok(())
    }

    /// Writes the record of a job that is there: locally, and in the shared catalog unless another
    /// owner has been there. Errors: `Fenced`, `Unavailable`, `DiskFull`.
    pub(super) async fn store_job_record(&self, job: &Job) -> ServiceResult<()> {
        let control = job.control.lock().clone();
        self.store_control(job, &control).await
    }

    /// Writes what the control of a job is about to become.
    pub(super) async fn store_control(&self, job: &Job, control: &Control) -> ServiceResult<()> {
        let (key, record) = (records::job_key(&job.id), JobRecord::new(job.incarnation, control));
        if let Some(shared) = &self.shared_catalog {
            let mut rounds = 0;
            loop {
                let expect = match read::<JobRecord>(shared.as_ref(), &key).await? {
                    Some((found, version)) => {
                        self.check_not_overtaken(job, &found, &record)?;
                        Expect::Version(version)
                    }
                    None => Expect::Absent,
                };
                match shared.put(&key, records::encode(&record)?, expect).await {
                    Ok(_) => break,
                    Err(error) if is_conflict(&error) && rounds < MAX_PUT_ROUNDS => rounds += 1,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        self.put_local(&key, &record).await
    }

    /// Errors: `Fenced` when the shared record is of a later owner than the one to be written.
    fn check_not_overtaken(&self, job: &Job, found: &JobRecord, wanted: &JobRecord) -> ServiceResult<()> {
        let facts = found.facts().ok_or_else(|| records::damaged(&records::job_key(&job.id)))?;
        let is_same_owner = found.epoch == wanted.epoch && found.nonce == wanted.nonce;
        if facts.incarnation == job.incarnation && (found.epoch < wanted.epoch || is_same_owner) {
            return Ok(());
        }
        if facts.incarnation == job.incarnation {
            self.adopt_facts(job, found, &facts);
        }
        Err(ServiceErrorKind::Fenced { by: super::FencedBy::Epoch(facts.epoch) }.into())
    }

    /// Claims a new job in the shared catalog. `false` when another node was first.
    pub(super) async fn claim_shared_job(&self, id: &JobId, record: &JobRecord) -> ServiceResult<bool> {
        let Some(shared) = &self.shared_catalog else { return Ok(true) };
        match shared.put(&records::job_key(id), records::encode(record)?, Expect::Absent).await {
            Ok(_) => Ok(true),
            Err(error) if is_conflict(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the record of a dataset: to the shared catalog too for a durable one. Answers the
    /// record that is in force: another one when a node was first with it.
    pub(super) async fn claim_dataset(&self, key: &str, record: &DatasetRecord, is_durable: bool) -> ServiceResult<DatasetRecord> {
        let mut in_force = record.clone();
        if let Some(shared) = self.shared_catalog.as_ref().filter(|_| is_durable) {
            match shared.put(key, records::encode(record)?, Expect::Absent).await {
                Ok(_) => {}
                Err(error) if is_conflict(&error) => {
                    let found = read::<DatasetRecord>(shared.as_ref(), key).await?;
                    in_force =
                        found.map(|(found, _)| found).ok_or(ServiceErrorKind::Unavailable { retry_after: Duration::from_secs(1) })?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.put_local(key, &in_force).await?;
        Ok(in_force)
    }

    /// Writes a record about a dataset or partition that is already known, to the shared catalog
    /// first when it is about durable data.
    pub(super) async fn put_everywhere(&self, key: &str, record: &impl Serialize, is_durable: bool) -> ServiceResult<()> {
        if let Some(shared) = self.shared_catalog.as_ref().filter(|_| is_durable) {
            shared.put(key, records::encode(record)?, Expect::Any).await?;
        }
        self.put_local(key, record).await
    }

    /// Raises the generation of a partition in the records. A higher one that another node has
    /// recorded is answered instead of being lowered.
    pub(super) async fn put_generation(
        &self,
        dataset: &Dataset,
        partition: PartitionId,
        wanted: PartitionRecord,
    ) -> ServiceResult<PartitionRecord> {
        let key = records::partition_key(&dataset.key, partition);
        if let Some(shared) = self.shared_catalog.as_ref().filter(|_| dataset.is_durable()) {
            let mut rounds = 0;
            loop {
                let expect = match read::<PartitionRecord>(shared.as_ref(), &key).await? {
                    Some((found, _)) if found.is_released || found.generation >= wanted.generation => return Ok(found),
                    Some((_, version)) => Expect::Version(version),
                    None => Expect::Absent,
                };
                match shared.put(&key, records::encode(&wanted)?, expect).await {
                    Ok(_) => break,
                    Err(error) if is_conflict(&error) && rounds < MAX_PUT_ROUNDS => rounds += 1,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        self.put_local(&key, &wanted).await?;
        Ok(wanted)
    }

    /// Records the end of a job; from its return on the end is in force, also after a restart. The
    /// caller holds the job's gate: no other record of it is being written.
    pub(super) async fn put_end(&self, job: &Job, record: &EndedRecord) -> ServiceResult<()> {
        let _no_creation = self.creation.lock().await;
        let key = records::ended_key(&job.id, job.incarnation);
        if let Some(shared) = self.shared_catalog.as_ref().filter(|_| record.ends_durable) {
            shared.put(&key, records::encode(record)?, Expect::Any).await?;
            // The end stands; a job record that stays behind is only an entry that is skipped.
            if let Some((found, _)) = read::<JobRecord>(shared.as_ref(), &records::job_key(&job.id)).await?
                && found.facts().is_some_and(|facts| facts.incarnation == job.incarnation)
            {
                shared.delete(&records::job_key(&job.id)).await?;
            }
        }
        self.put_local(&key, record).await?;
        self.local_catalog.delete(&records::job_key(&job.id)).await?;
        Ok(())
    }
}

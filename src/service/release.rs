//! Releases: of a partition, a dataset, a job; and the end of jobs whose lease ran out.
//!
//! The order is always the same: the record in the catalog (from then on no read answers, also after
//! a restart), the registry, the stores, the answer. A store that refuses is asked again by the
//! reaper; the release stands all the same. Keys on every medium hold the incarnation of the job and
//! the attempt, so a late deletion cannot hit what came after.

use super::PartitionService;
use super::calls::{EventKind, PartitionAddress};
use super::error::{ServiceErrorKind, ServiceResult};
use super::events::Subject;
use super::reaper::{EndedWork, PutOff};
use super::records::{self, DatasetRecord, EndedRecord, PartitionRecord};
use super::registry::{Dataset, EndedJob, Ending, Job, Slot};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store_api::{AttemptId, DatasetId, JobEpoch, JobId, ReleaseReport, ReleaseScope, StoreClass};

impl PartitionService {
    /// Releases a job and all it holds, on this node and, as its owner, in the object store.
    ///
    /// Needs the epoch. From the answer on nothing of the job is read any more, also after a
    /// restart; the id may be used again at once. Idempotent: a job that was released answers an
    /// empty report. Once recorded it runs to its end, also when the caller leaves. Errors:
    /// `EpochRequired`, `Fenced`, `UnknownJob`, `Expired`, `Unavailable`, `DiskFull` (nothing is
    /// released then).
    pub async fn release_job(&self, job: &JobId, epoch: Option<JobEpoch>) -> ServiceResult<ReleaseReport> {
        let job = match self.control_job(job).await {
            Ok(job) => job,
            Err(error) if matches!(error.kind(), ServiceErrorKind::Released) => return Ok(ReleaseReport::default()),
            Err(error) => return Err(error),
        };
        match job.check_epoch(epoch) {
            Err(error) if matches!(error.kind(), ServiceErrorKind::Released) => return Ok(ReleaseReport::default()),
            checked => checked?,
        }
        let service = self.shared_self()?;
        let report = self.run_to_end(async move { service.end_released(&job, epoch).await }).await.flatten()?;
        Ok(report)
    }

    async fn end_released(&self, job: &Arc<Job>, epoch: Option<JobEpoch>) -> ServiceResult<ReleaseReport> {
        let one_at_a_time = job.gate.lock().await;
        match job.check_epoch(epoch) {
            Err(error) if matches!(error.kind(), ServiceErrorKind::Released) => return Ok(ReleaseReport::default()),
            checked => checked?,
        }
        let record = self.end_record(job, Ending::Released, true, true);
        self.put_end(job, &record).await?;
        self.enter_end(job, Ending::Released, &record);
        drop(one_at_a_time);
        self.counters.jobs_released.add(1);
        Ok(self.give_back(ended_work(job, record)).await)
    }

    fn end_record(&self, job: &Job, ending: Ending, ends_durable: bool, is_final: bool) -> EndedRecord {
        let token_hash = job.control.lock().token_hash;
        EndedRecord::new(ending, self.clock.unix_ms(), token_hash.as_ref(), ends_durable, is_final)
    }

    /// Records the end of a job whose expiry is decided, unless that was done; answers what is to be
    /// given back. Errors: the record could not be written; the job answers `Expired` all the same
    /// and the reaper tries again.
    pub(super) async fn end_expired(&self, job: &Arc<Job>) -> ServiceResult<Option<EndedWork>> {
        let one_at_a_time = job.gate.lock().await;
        if !matches!(self.registry.slot(&job.id), Some(Slot::Live(live)) if live.incarnation == job.incarnation) {
            return Ok(None);
        }
        let is_home = job.control.lock().home == self.node.location.node;
        let owns_all = is_home || self.shared_catalog.is_none();
        let record = self.end_record(job, Ending::Expired, owns_all, owns_all);
        self.put_end(job, &record).await?;
        self.enter_end(job, Ending::Expired, &record);
        drop(one_at_a_time);
        self.counters.jobs_expired.add(1);
        tracing::info!(job = %job.id, incarnation = %job.incarnation, "lease ran out");
        Ok(Some(ended_work(job, record)))
    }

    /// Ends what this node holds of a job that ended elsewhere.
    pub(super) async fn end_here(&self, job: &Arc<Job>, ending: Ending) -> ServiceResult<()> {
        let one_at_a_time = job.gate.lock().await;
        if job.check_live().is_err() {
            return Ok(());
        }
        let record = self.end_record(job, ending, false, true);
        self.put_end(job, &record).await?;
        self.enter_end(job, ending, &record);
        drop(one_at_a_time);
        self.give_back(ended_work(job, record)).await;
        Ok(())
    }

    /// Brings the registry to a recorded end and tells of it.
    fn enter_end(&self, job: &Arc<Job>, ending: Ending, record: &EndedRecord) {
        job.control.lock().ending = Some(ending);
        let token_hash = record.token_hash();
        let ended = EndedJob { incarnation: job.incarnation, ending, at_ms: record.at_ms, token_hash, is_final: record.is_final };
        self.registry.bury(job, ended);
        let datasets = std::mem::take(&mut *job.datasets.write());
        for dataset in datasets.values() {
            self.arbiter.forget(&dataset.key);
            dataset.partitions.write().clear();
        }
        let kind = match ending {
            Ending::Released => EventKind::Released,
            Ending::Expired => EventKind::Expired,
        };
        job.events.push(kind, Subject::default());
        job.events.close();
    }

    /// Releases a dataset.
    ///
    /// Needs the epoch. The id stays released until the job ends. Idempotent. Once recorded it runs
    /// to its end. Errors: `EpochRequired`, `Fenced`, `UnknownJob`, `UnknownDataset`, `Released` and
    /// `Expired` of the job, `Unavailable`, `DiskFull` (nothing is released then).
    pub async fn release_dataset(&self, job: &JobId, dataset: &DatasetId, epoch: Option<JobEpoch>) -> ServiceResult<ReleaseReport> {
        let job = self.control_job(job).await?;
        job.check_epoch(epoch)?;
        let dataset = match self.find_dataset(&job, dataset).await {
            Ok(dataset) => dataset,
            Err(error) if matches!(error.kind(), ServiceErrorKind::Released) => return Ok(ReleaseReport::default()),
            Err(error) => return Err(error),
        };
        let service = self.shared_self()?;
        self.run_to_end(async move { service.end_dataset(&job, &dataset, epoch).await }).await.flatten()
    }

    async fn end_dataset(&self, job: &Arc<Job>, dataset: &Arc<Dataset>, epoch: Option<JobEpoch>) -> ServiceResult<ReleaseReport> {
        let one_at_a_time = job.gate.lock().await;
        job.check_epoch(epoch)?;
        if dataset.check_live().is_ok() {
            let mut record = DatasetRecord::new(&dataset.spec, dataset.content.as_deref(), self.node.location.life);
            record.is_released = true;
            self.put_everywhere(&records::dataset_key(&dataset.key), &record, dataset.is_durable()).await?;
            dataset.is_released.store(true, Ordering::Release);
            self.arbiter.forget(&dataset.key);
            {
                let mut partitions = dataset.partitions.write();
                dataset.uncount_sealed(partitions.values().flat_map(|known| &known.attempts));
                partitions.clear();
            }
            let subject = Subject { dataset: Some(dataset.key.dataset.clone()), ..Subject::default() };
            job.events.push(EventKind::Released, subject);
        }
        drop(one_at_a_time);
        Ok(self.release_or_put_off(dataset.spec.kind.class(), ReleaseScope::Dataset(dataset.key.clone())).await)
    }

    /// Releases a partition, all its attempts.
    ///
    /// Needs the epoch. It stays released until the dataset ends, also one that was never written.
    /// Idempotent. Once recorded it runs to its end. Errors: as [`Self::release_dataset`], and
    /// `UnknownPartition`.
    pub async fn release_partition(&self, at: &PartitionAddress, epoch: Option<JobEpoch>) -> ServiceResult<ReleaseReport> {
        let job = self.control_job(&at.job).await?;
        job.check_epoch(epoch)?;
        let dataset = match self.find_dataset(&job, &at.dataset).await {
            Ok(dataset) => dataset,
            Err(error) if matches!(error.kind(), ServiceErrorKind::Released) => return Ok(ReleaseReport::default()),
            Err(error) => return Err(error),
        };
        dataset.check_partition(at.partition)?;
        let (service, at) = (self.shared_self()?, at.clone());
        self.run_to_end(async move { service.end_partition(&job, &dataset, &at, epoch).await }).await.flatten()
    }

    async fn end_partition(
        &self,
        job: &Arc<Job>,
        dataset: &Arc<Dataset>,
        at: &PartitionAddress,
        epoch: Option<JobEpoch>,
    ) -> ServiceResult<ReleaseReport> {
        let one_at_a_time = job.gate.lock().await;
        job.check_epoch(epoch)?;
        dataset.check_live()?;
        let (superseder, is_released) = super::attempt::peek(dataset, at.partition, |known| Ok((known.superseder(), known.is_released)))?;
        if !is_released {
            let record = PartitionRecord::released(superseder);
            self.put_everywhere(&records::partition_key(&dataset.key, at.partition), &record, dataset.is_durable()).await?;
            mark_released(dataset, at, superseder);
            let subject = Subject { dataset: Some(dataset.key.dataset.clone()), partition: Some(at.partition), ..Subject::default() };
            job.events.push(EventKind::Released, subject);
        }
        drop(one_at_a_time);
        let scope = ReleaseScope::Partition(dataset.key.partition(at.partition));
        Ok(self.release_or_put_off(dataset.spec.kind.class(), scope).await)
    }

    /// Gives storage back; a refusal is put off for the reaper.
    pub(super) async fn release_or_put_off(&self, class: StoreClass, scope: ReleaseScope) -> ReleaseReport {
        let Some(store) = self.stores.of(class) else { return ReleaseReport::default() };
        match store.release(scope.clone()).await {
            Ok(report) => report,
            Err(error) => {
                tracing::warn!(%error, ?scope, "release is put off");
                self.put_off(PutOff::Scope(class, scope));
                ReleaseReport::default()
            }
        }
    }

    /// Gives back everything of a job that has ended, then removes its records. What fails is put
    /// off.
    pub(super) async fn give_back(&self, work: EndedWork) -> ReleaseReport {
        let (report, outcome) = self.try_give_back(&work).await;
        if let Err(error) = outcome {
            tracing::warn!(job = %work.job, incarnation = %work.incarnation, ?error, "release is put off");
            self.put_off(PutOff::Job(work));
        }
        report
    }

    pub(super) async fn try_give_back(&self, work: &EndedWork) -> (ReleaseReport, ServiceResult<()>) {
        let (mut total, mut outcome) = (ReleaseReport::default(), Ok(()));
        let classes = [StoreClass::Pipelined, StoreClass::Blocking, StoreClass::Durable];
        for class in classes.into_iter().filter(|class| *class != StoreClass::Durable || work.record.ends_durable) {
            let Some(store) = self.stores.of(class) else { continue };
            let scope = ReleaseScope::Job { job: work.job.clone(), incarnation: work.incarnation };
            match store.release(scope).await {
                Ok(report) => {
                    total.n_attempts = total.n_attempts.saturating_add(report.n_attempts);
                    total.bytes = total.bytes.saturating_add(report.bytes);
                }
                Err(error) => outcome = Err(error.into()),
            }
        }
        if outcome.is_ok() {
            outcome = self.settle_end(work).await;
        }
        (total, outcome)
    }

    /// Removes the records of a job that every store has given back, and notes that.
    async fn settle_end(&self, work: &EndedWork) -> ServiceResult<()> {
        for prefix in records::prefixes_of(&work.job, work.incarnation) {
            for (key, _) in self.local_catalog.scan(&prefix).await? {
                self.local_catalog.delete(&key).await?;
            }
            if let Some(shared) = self.shared_catalog.as_ref().filter(|_| work.record.ends_durable) {
                for (key, _) in shared.scan(&prefix).await? {
                    shared.delete(&key).await?;
                }
            }
        }
        let key = records::ended_key(&work.job, work.incarnation);
        // A job that this node only stopped keeping may have been taken up again meanwhile.
        if self.local_catalog.get(&key).await?.is_some() {
            let mut record = work.record.clone();
            record.is_settled = true;
            self.put_local(&key, &record).await?;
        }
        Ok(())
    }
}

fn ended_work(job: &Job, record: EndedRecord) -> EndedWork {
    EndedWork { job: job.id.clone(), incarnation: job.incarnation, record }
}

fn mark_released(dataset: &Dataset, at: &PartitionAddress, superseder: AttemptId) {
    let mut partitions = dataset.partitions.write();
    let known = partitions.entry(at.partition.get()).or_insert_with(|| dataset.untouched());
    dataset.uncount_sealed(&known.attempts);
    known.attempts = Vec::new();
    known.is_released = true;
    known.by = superseder.attempt;
}

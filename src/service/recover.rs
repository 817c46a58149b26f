//! What a start finds. The catalog is the authority over what is in force; the stores say what of it
//! is still there.
//!
//! | found | then |
//! |---|---|
//! | job record without an end | a job, with its full lease again: its owner had no chance to renew |
//! | end of a job that is not settled | everything of it is released again |
//! | sealed attempt of a dataset that is in force | readable |
//! | of a released partition or dataset, or below the recorded generation | released again |
//! | of a job that is not known, in a store of this node alone | released: its record went first |
//! | of a job that is not known, in a shared store | left alone: another node may know it |
//! | lost attempt | its partition answers `Lost` with the cause |
//! | pipelined dataset of a former life | its partitions answer `Lost`, cause node |

use super::PartitionService;
use super::error::ServiceResult;
use super::reaper::EndedWork;
use super::records::{self, DatasetRecord, EndedRecord, JobRecord, PartitionRecord};
use super::registry::{Attempt, Dataset, EndedJob, Job, Slot};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use store_api::{
    AttemptId, AttemptKey, AttemptState, JobId, JobIncarnation, LossCause, RecoveryReport, ReleaseScope, SealManifest, StoreClass,
};

type EndedRecords = BTreeMap<(JobId, JobIncarnation), EndedRecord>;

impl PartitionService {
    /// Loads the catalog and the stores. Errors: those of both.
    pub(super) async fn recover(&self) -> ServiceResult<()> {
        let ended = self.load_ends().await?;
        self.load_jobs(&ended).await?;
        self.load_datasets().await?;
        self.load_partitions().await?;
        for class in [StoreClass::Pipelined, StoreClass::Blocking, StoreClass::Durable] {
            if let Some(store) = self.stores.of(class) {
                let report = store.recover().await?;
                self.reconcile(class, report).await;
            }
        }
        for ((job, incarnation), record) in ended.into_iter().filter(|(_, record)| !record.is_settled) {
            self.give_back(EndedWork { job, incarnation, record }).await;
        }
        Ok(())
    }

    async fn load_ends(&self) -> ServiceResult<EndedRecords> {
        let mut ended = EndedRecords::new();
        for (key, entry) in self.local_catalog.scan(records::ENDED).await? {
            let (job, incarnation, ..) = records::parse_key(&key).ok_or_else(|| records::damaged(&key))?;
            let record: EndedRecord = records::decode(&key, &entry.value)?;
            ended.insert((job, incarnation), record);
        }
        let mut jobs = self.registry.jobs.write();
        for ((job, incarnation), record) in &ended {
            let end = EndedJob {
                incarnation: *incarnation,
                ending: record.ending(),
                at_ms: record.at_ms,
                token_hash: record.token_hash(),
                is_final: record.is_final,
            };
            // Of several existences of one id the latest end is the one that is asked about.
            let is_older = matches!(jobs.get(job), Some(Slot::Ended(known)) if known.at_ms > end.at_ms);
            if !is_older {
                jobs.insert(job.clone(), Slot::Ended(end));
            }
        }
        Ok(ended)
    }

    async fn load_jobs(&self, ended: &EndedRecords) -> ServiceResult<()> {
        for (key, entry) in self.local_catalog.scan(records::JOBS).await? {
            let id = key.strip_prefix(records::JOBS).and_then(|id| JobId::new(id).ok()).ok_or_else(|| records::damaged(&key))?;
            let record: JobRecord = records::decode(&key, &entry.value)?;
            let facts = record.facts().ok_or_else(|| records::damaged(&key))?;
            if ended.contains_key(&(id.clone(), facts.incarnation)) {
                // The node went down between the record of the end and the removal of this one.
                self.local_catalog.delete(&key).await?;
                continue;
            }
            let job = self.job_from_record(&id, &record, &facts);
            self.registry.jobs.write().insert(id, Slot::Live(job));
        }
        Ok(())
    }

    fn live_job(&self, job: &JobId, incarnation: JobIncarnation) -> Option<Arc<Job>> {
        match self.registry.slot(job) {
            Some(Slot::Live(live)) if live.incarnation == incarnation => Some(live),
            Some(Slot::Live(_) | Slot::Ended(_)) | None => None,
        }
    }

    async fn load_datasets(&self) -> ServiceResult<()> {
        for (key, entry) in self.local_catalog.scan(records::DATASETS).await? {
            let (job, incarnation, id, _) = records::parse_key(&key).ok_or_else(|| records::damaged(&key))?;
            let id = id.ok_or_else(|| records::damaged(&key))?;
            let Some(job) = self.live_job(&job, incarnation) else { continue };
            let record: DatasetRecord = records::decode(&key, &entry.value)?;
            let dataset = self.dataset_from_record(&job, &id, &record).ok_or_else(|| records::damaged(&key))?;
            job.datasets.write().insert(id, dataset);
        }
        Ok(())
    }

    async fn load_partitions(&self) -> ServiceResult<()> {
        for (key, entry) in self.local_catalog.scan(records::PARTITIONS).await? {
            let parsed = records::parse_key(&key).ok_or_else(|| records::damaged(&key))?;
            let (job, incarnation, Some(dataset), Some(partition)) = parsed else {
                return Err(records::damaged(&key).into());
            };
            let Some(job) = self.live_job(&job, incarnation) else { continue };
            let Some(dataset) = job.datasets.read().get(&dataset).cloned() else { continue };
            let record: PartitionRecord = records::decode(&key, &entry.value)?;
            let mut known = dataset.untouched();
            known.generation = record.generation;
            known.by = record.by;
            known.is_released = record.is_released;
            dataset.partitions.write().insert(partition.get(), known);
        }
        Ok(())
    }

    /// Brings what a store has found to what is in force.
    async fn reconcile(&self, class: StoreClass, report: RecoveryReport) {
        let mut refused: Vec<ReleaseScope> = Vec::new();
        let mut unknown: HashSet<(JobId, JobIncarnation)> = HashSet::new();
        let is_shared = class == StoreClass::Durable;
        for manifest in &report.sealed {
            match self.place_of(class, &manifest.attempt) {
                Place::Unknown if is_shared => {}
                Place::Unknown => drop(unknown.insert(job_of(&manifest.attempt))),
                Place::Known(job, dataset) => {
                    if let Some(scope) = self.enter_recovered(&job, &dataset, manifest) {
                        refused.push(scope);
                    }
                }
                Place::Ended => refused.push(ReleaseScope::Attempt(manifest.attempt.clone())),
            }
        }
        for (key, cause) in &report.lost {
            if let Place::Known(_, dataset) = self.place_of(class, key) {
                enter_lost(&dataset, key, *cause);
            }
        }
        let n_recovered = report.sealed.len().saturating_sub(refused.len());
        tracing::info!(
            %class, n_recovered, n_lost = report.lost.len(), n_refused = refused.len(), n_unknown_jobs = unknown.len(),
            n_dropped = report.n_dropped, n_quarantined = report.n_quarantined, "store recovered"
        );
        let of_unknown = unknown.into_iter().map(|(job, incarnation)| ReleaseScope::Job { job, incarnation });
        for scope in refused.into_iter().chain(of_unknown) {
            self.release_or_put_off(class, scope).await;
        }
    }

    /// Where an attempt belongs by the records.
    fn place_of(&self, class: StoreClass, key: &AttemptKey) -> Place {
        let of = &key.partition.dataset;
        let Some(job) = self.live_job(&of.job, of.incarnation) else { return Place::Unknown };
        let found = job.datasets.read().get(&of.dataset).cloned();
        match found {
            Some(dataset) if dataset.check_live().is_ok() && dataset.spec.kind.class() == class => Place::Known(job, dataset),
            Some(_) => Place::Ended,
            None if class == StoreClass::Durable => Place::Unknown,
            None => Place::Ended,
        }
    }

    /// Enters a sealed attempt. Answers what has to be released when it is not in force.
    fn enter_recovered(&self, job: &Job, dataset: &Dataset, manifest: &SealManifest) -> Option<ReleaseScope> {
        let (partition, id) = (manifest.attempt.partition.partition, manifest.attempt.attempt);
        let refused = ReleaseScope::Attempt(manifest.attempt.clone());
        {
            let partitions = dataset.partitions.read();
            if let Some(known) = partitions.get(&partition.get()) {
                let by = known.superseder();
                if known.is_released {
                    return Some(refused);
                }
                if id.generation < known.generation {
                    return Some(ReleaseScope::GenerationsBelow { partition: manifest.attempt.partition.clone(), by });
                }
                let is_second = known.generation == id.generation && known.sealed().is_some_and(|winner| known.id(winner) != id);
                if is_second && dataset.has_one_winner() {
                    tracing::error!(attempt = %manifest.attempt, "a second sealed attempt of one generation was found; the first one stays");
                    return Some(refused);
                }
            }
        }
        self.note_found(job, dataset, manifest);
        None
    }
}

enum Place {
    /// No record of the job, or, on a medium that nodes share, of the dataset.
    Unknown,
    /// The dataset is released, or its record is gone.
    Ended,
    Known(Arc<Job>, Arc<Dataset>),
}

fn job_of(key: &AttemptKey) -> (JobId, JobIncarnation) {
    (key.partition.dataset.job.clone(), key.partition.dataset.incarnation)
}

/// Enters that a sealed attempt was found gone.
fn enter_lost(dataset: &Dataset, key: &AttemptKey, cause: LossCause) {
    let AttemptId { generation, attempt } = key.attempt;
    let mut partitions = dataset.partitions.write();
    let known = partitions.entry(key.partition.partition.get()).or_insert_with(|| dataset.untouched());
    if known.is_released || generation < known.generation {
        return;
    }
    if generation > known.generation {
        known.supersede(dataset, key.attempt);
    }
    known.lost = Some(cause);
    known.attempts.retain(|entry| entry.number != attempt);
    known.attempts.push(Attempt { number: attempt, state: AttemptState::Lost, bytes: 0, live: None });
}

//! Datasets: declare and look at.

use super::PartitionService;
use super::calls::{DatasetRequest, DatasetView};
use super::error::{ServiceError, ServiceErrorKind, ServiceResult};
use super::records::{self, DatasetRecord};
use super::registry::{Dataset, Job};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use store_api::partition::MAX_SUBPARTITIONS;
use store_api::{ClassAchieved, ConsumerId, DatasetId, DatasetKind, DatasetSpec, Durability, JobId, Scope, StoreClass, SyncLevel};

/// Longest note about the content's coding, in characters.
const MAX_CONTENT_LENGTH: usize = 256;
/// Name of the group that acknowledges when none is declared.
pub const DEFAULT_GROUP: &str = "default";

/// The group that acknowledges when none is declared.
pub(super) fn default_group() -> ServiceResult<ConsumerId> {
    // The name is a constant of the right form.
    ConsumerId::new(DEFAULT_GROUP).map_err(|error| ServiceError::new(ServiceErrorKind::Internal).with_source(error))
}

impl PartitionService {
    /// For a call about a dataset. Errors: those of [`Self::admit_job`], `UnknownDataset`.
    pub async fn admit_dataset(&self, job: &JobId, dataset: &DatasetId) -> ServiceResult<()> {
        let job = self.find_job(job).await?;
        self.find_dataset(&job, dataset).await.map(|_| ())
    }

    /// For [`Self::put_dataset`]. Errors: those of [`Self::admit_job`]; `Draining` and `TooLarge`
    /// when the dataset would be a new one.
    pub async fn admit_dataset_creation(&self, job: &JobId, dataset: &DatasetId) -> ServiceResult<()> {
        let job = self.find_job(job).await?;
        if let Some(known) = job.datasets.read().get(dataset) {
            return known.check_live();
        }
        if self.is_draining() {
            return Err(ServiceErrorKind::Draining.into());
        }
        if job.datasets.read().len() >= self.config.max_datasets {
            return Err(ServiceErrorKind::TooLarge { limit: self.config.max_datasets as u64 }.into());
        }
        Ok(())
    }

    /// Declares a dataset.
    ///
    /// Its kind is the request's, or the job's default. A repeat with the same members is a success,
    /// also when two come at once; with others it is a `SpecConflict` that names the member. A
    /// dataset that was released stays so: the id is free again with the next existence of the job.
    /// The class is kept or refused, never weakened. Durable before the answer. Cancelled half-way:
    /// done or not; repeat it. Errors: `BadRequest`, `ClassUnavailable`, `SpecConflict`, `Released`,
    /// `UnknownJob`, `Expired`, `Draining`, `TooLarge` (too many datasets), `Unavailable`, `DiskFull`.
    pub async fn put_dataset(&self, job: &JobId, dataset: &DatasetId, request: DatasetRequest) -> ServiceResult<DatasetView> {
        let job = self.find_job(job).await?;
        let (spec, content) = self.checked_spec(&job, request)?;
        let _one_at_a_time = job.gate.lock().await;
        job.check_live()?;
        let known = job.datasets.read().get(dataset).cloned();
        if let Some(known) = known {
            known.check_live()?;
            check_same(&known, &spec, content.as_deref())?;
            return Ok(self.dataset_view(&job, &known));
        }
        if self.is_draining() {
            return Err(ServiceErrorKind::Draining.into());
        }
        self.check_class(&spec)?;
        if job.datasets.read().len() >= self.config.max_datasets {
            return Err(ServiceErrorKind::TooLarge { limit: self.config.max_datasets as u64 }.into());
        }
        let key = records::dataset_key(&job.dataset_key(dataset));
        let record = DatasetRecord::new(&spec, content.as_deref(), self.node.location.life);
        let in_force = self.claim_dataset(&key, &record, spec.kind.class() == StoreClass::Durable).await?;
        let built = self.dataset_from_record(&job, dataset, &in_force).ok_or_else(|| records::damaged(&key))?;
        job.check_live()?;
        let built = job.datasets.write().entry(dataset.clone()).or_insert(built).clone();
        built.check_live()?;
        check_same(&built, &spec, content.as_deref())?;
        Ok(DatasetView { is_new: in_force == record, ..self.dataset_view(&job, &built) })
    }

    fn checked_spec(&self, job: &Job, request: DatasetRequest) -> ServiceResult<(DatasetSpec, Option<String>)> {
        let refuse = |reason: &str| Err(ServiceError::bad_request(reason));
        if request.n_subpartitions == 0 || request.n_subpartitions > MAX_SUBPARTITIONS {
            return refuse("a partition has 1 to 1048576 subpartitions");
        }
        if request.content.as_ref().is_some_and(|content| content.chars().count() > MAX_CONTENT_LENGTH) {
            return refuse("a note about the content has at most 256 characters");
        }
        let (default_class, default_retention) = {
            let control = job.control.lock();
            (control.default_class, control.default_retention)
        };
        let class = request.class.unwrap_or(default_class);
        let kind = match class {
            StoreClass::Pipelined => DatasetKind::Pipelined(request.retention.unwrap_or(default_retention)),
            StoreClass::Blocking => DatasetKind::Blocking,
            StoreClass::Durable => DatasetKind::Durable,
        };
        let is_pipelined = class == StoreClass::Pipelined;
        if !is_pipelined && (request.retention.is_some() || !request.groups.is_empty()) {
            return refuse("only a pipelined dataset has a retention and consumer groups");
        }
        if request.groups.len() > self.config.max_groups {
            return Err(ServiceErrorKind::TooLarge { limit: self.config.max_groups as u64 }.into());
        }
        let mut groups = request.groups;
        if is_pipelined && groups.is_empty() {
            groups.push(default_group()?);
        }
        groups.sort();
        if groups.array_windows::<2>().any(|[one, two]| one == two) {
            return refuse("a consumer group is named twice");
        }
        let spec = DatasetSpec {
            kind,
            n_partitions: request.n_partitions,
            n_subpartitions: request.n_subpartitions,
            is_broadcast: request.is_broadcast,
            arbitration: request.arbitration,
            groups,
        };
        Ok((spec, request.content))
    }

    /// Errors: `ClassUnavailable` when no store keeps the class, or not with this retention.
    fn check_class(&self, spec: &DatasetSpec) -> ServiceResult<()> {
        let class = spec.kind.class();
        let refuse = |reason: String| Err(ServiceErrorKind::ClassUnavailable { reason }.into());
        let Some(store) = self.stores.of(class) else {
            return refuse(format!("no store for {class} datasets is configured"));
        };
        match spec.kind {
            DatasetKind::Pipelined(retention) if !store.capabilities().retentions.contains(&retention) => {
                refuse(format!("the store for {class} datasets does not keep this retention"))
            }
            DatasetKind::Pipelined(_) | DatasetKind::Blocking | DatasetKind::Durable => Ok(()),
        }
    }

    /// A dataset as its record says; `None` when the record does not parse.
    pub(super) fn dataset_from_record(&self, job: &Job, id: &DatasetId, record: &DatasetRecord) -> Option<Arc<Dataset>> {
        let spec = Arc::new(record.spec()?);
        let class = spec.kind.class();
        let store = self.stores.of(class).cloned();
        let achieved = store.as_ref().map_or_else(|| without_store(class), |store| store.capabilities().class);
        let is_of_former_life = class == StoreClass::Pipelined && record.life()? != self.node.location.life;
        Some(Arc::new(Dataset {
            key: job.dataset_key(id),
            spec,
            content: record.content.as_deref().map(Arc::from),
            is_of_former_life,
            store,
            class: achieved,
            is_released: AtomicBool::new(record.is_released),
            partitions: RwLock::new(BTreeMap::new()),
            n_sealed: AtomicU64::new(0),
            sealed_bytes: AtomicU64::new(0),
        }))
    }

    /// A dataset that has not been released. Errors: `UnknownDataset`, `Released`, `Expired`,
    /// `Unavailable`.
    pub(super) async fn find_dataset(&self, job: &Arc<Job>, dataset: &DatasetId) -> ServiceResult<Arc<Dataset>> {
        let known = job.datasets.read().get(dataset).cloned();
        match known {
            Some(known) => known.check_live().map(|()| known),
            None => self.adopt_shared_dataset(job, dataset).await,
        }
    }

    /// A dataset. Errors: `UnknownJob`, `UnknownDataset`, `Released`, `Expired`, `Unavailable`.
    pub async fn dataset(&self, job: &JobId, dataset: &DatasetId) -> ServiceResult<DatasetView> {
        let job = self.find_job(job).await?;
        let dataset = self.find_dataset(&job, dataset).await?;
        Ok(self.dataset_view(&job, &dataset))
    }

    /// The specification alone: cheap, for decoding bodies that depend on it. Errors as
    /// [`Self::dataset`].
    pub async fn dataset_spec(&self, job: &JobId, dataset: &DatasetId) -> ServiceResult<Arc<DatasetSpec>> {
        let job = self.find_job(job).await?;
        let dataset = self.find_dataset(&job, dataset).await?;
        Ok(dataset.spec.clone())
    }

    /// The datasets of a job that this node knows and that have not been released, by id. Errors:
    /// `UnknownJob`, `Released`, `Expired`, `Unavailable`.
    pub async fn datasets(&self, job: &JobId) -> ServiceResult<Vec<DatasetView>> {
        let job = self.find_job(job).await?;
        let datasets: Vec<_> = job.datasets.read().values().cloned().collect();
        Ok(datasets.iter().filter(|dataset| dataset.check_live().is_ok()).map(|dataset| self.dataset_view(&job, dataset)).collect())
    }

    fn dataset_view(&self, job: &Job, dataset: &Dataset) -> DatasetView {
        DatasetView {
            job: job.id.clone(),
            dataset: dataset.key.dataset.clone(),
            spec: dataset.spec.clone(),
            content: dataset.content.clone(),
            class: dataset.class,
            n_sealed: dataset.n_sealed.load(Ordering::Relaxed),
            sealed_bytes: dataset.sealed_bytes.load(Ordering::Relaxed),
            is_new: false,
        }
    }
}

/// The weakest class that a node without the store could state about what it cannot serve.
const fn without_store(class: StoreClass) -> ClassAchieved {
    ClassAchieved { class, durability: Durability::Volatile, sync: SyncLevel::None, scope: Scope::NodeLife }
}

/// Errors: `SpecConflict` naming the first member that differs.
fn check_same(known: &Dataset, spec: &DatasetSpec, content: Option<&str>) -> ServiceResult<()> {
    let have = &known.spec;
    let differing = [
        (have.kind.class() != spec.kind.class(), "kind"),
        (have.kind != spec.kind, "retention"),
        (have.n_partitions != spec.n_partitions, "partitions"),
        (have.n_subpartitions != spec.n_subpartitions, "subpartitions"),
        (have.is_broadcast != spec.is_broadcast, "broadcast"),
        (have.arbitration != spec.arbitration, "arbitration"),
        (have.groups != spec.groups, "groups"),
        (known.content.as_deref() != content, "content"),
    ];
    match differing.into_iter().find(|(differs, _)| *differs) {
        Some((_, member)) => Err(ServiceErrorKind::SpecConflict { member }.into()),
        None => Ok(()),
    }
}

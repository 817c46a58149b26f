//! What the suite calls things, and what the service calls them.
//!
//! The suite numbers the existences of a job and gives every attempt a specification of its own; the
//! service draws the existences itself and has one specification per dataset. So each existence
//! becomes a job, and each specification within a dataset a dataset. The names live as long as the
//! medium.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store_api::{AttemptId, AttemptKey, DatasetKey, DatasetSpec, JobId, JobIncarnation, PartitionKey};

/// A dataset of the service and its specification.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) dataset: String,
    pub(crate) spec: Arc<DatasetSpec>,
}

#[derive(Debug, Default)]
struct Tables {
    epochs: BTreeMap<String, u64>,
    datasets: BTreeMap<DatasetKey, Vec<Place>>,
    partitions: BTreeMap<PartitionKey, Place>,
    attempts: BTreeMap<PartitionKey, BTreeSet<AttemptId>>,
    lanes: BTreeMap<AttemptKey, Arc<tokio::sync::Mutex<()>>>,
}

/// The names of one medium.
#[derive(Debug, Default)]
pub(crate) struct Names {
    tables: std::sync::Mutex<Tables>,
    /// Held while a job or a dataset is made.
    pub(crate) making: tokio::sync::Mutex<()>,
}

/// The job of an existence.
pub(crate) fn job_name(job: &JobId, incarnation: JobIncarnation) -> String {
    format!("{job}.{}", incarnation.get())
}

impl Names {
    fn tables(&self) -> std::sync::MutexGuard<'_, Tables> {
        self.tables.lock().expect("nothing panics under this lock")
    }

    pub(crate) fn epoch(&self, job: &str) -> Option<u64> {
        self.tables().epochs.get(job).copied()
    }

    pub(crate) fn note_job(&self, job: String, epoch: u64) {
        self.tables().epochs.insert(job, epoch);
    }

    /// The dataset that has this specification, if it was made.
    pub(crate) fn find(&self, key: &DatasetKey, spec: &DatasetSpec) -> Option<Place> {
        self.datasets(key).into_iter().find(|place| *place.spec == *spec)
    }

    pub(crate) fn datasets(&self, key: &DatasetKey) -> Vec<Place> {
        self.tables().datasets.get(key).cloned().unwrap_or_default()
    }

    pub(crate) fn note_dataset(&self, key: &DatasetKey, place: Place) {
        self.tables().datasets.entry(key.clone()).or_default().push(place);
    }

    /// Notes an attempt that is opened; a partition stays in the dataset of its first attempt.
    pub(crate) fn note_attempt(&self, key: &AttemptKey, place: &Place) {
        let mut tables = self.tables();
        tables.partitions.entry(key.partition.clone()).or_insert_with(|| place.clone());
        tables.attempts.entry(key.partition.clone()).or_default().insert(key.attempt);
    }

    pub(crate) fn n_attempts(&self, partition: &PartitionKey) -> usize {
        self.tables().attempts.get(partition).map_or(0, BTreeSet::len)
    }

    /// Where a partition is: in the dataset of its first attempt, else in the first dataset of this
    /// name, else nowhere.
    pub(crate) fn place(&self, partition: &PartitionKey) -> Option<Place> {
        let tables = self.tables();
        let first = || tables.datasets.get(&partition.dataset).and_then(|places| places.first());
        tables.partitions.get(partition).or_else(first).cloned()
    }

    /// Orders the appends of an attempt that must know its tails.
    pub(crate) fn lane(&self, key: &AttemptKey) -> Arc<tokio::sync::Mutex<()>> {
        self.tables().lanes.entry(key.clone()).or_default().clone()
    }
}

//! `forebay stat`, `forebay ls` and `forebay rm`: what there is, and giving it back.

use super::connection::{ConnectionArguments, failure};
use super::output::print;
use super::target::Target;
use super::{Failure, runtime};
use clap::Args;
use forebay_client::{ClientError, DatasetHandle, JobHandle};
use serde::Serialize;
use serde_json::Value;
use store_api::JobEpoch;

/// Arguments of `stat` and `rm`.
#[derive(Debug, Args)]
pub(super) struct TargetArguments {
    /// JOB[/DATASET[/PARTITION]]
    #[arg(value_name = "TARGET")]
    target: Target,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Arguments of `ls`.
#[derive(Debug, Args)]
pub(super) struct ListArguments {
    /// JOB lists its datasets, JOB/DATASET its sealed partitions; the jobs without it
    #[arg(value_name = "TARGET")]
    target: Option<Target>,
    #[command(flatten)]
    connection: ConnectionArguments,
}

pub(super) fn stat(arguments: &TargetArguments) -> Result<(), Failure> {
    let target = &arguments.target;
    let value = runtime()?.block_on(async {
        let job = arguments.connection.client()?.job(&target.job);
        match (dataset_of(&job, target), target.partition) {
            (None, _) => to_value(job.document().await),
            (Some(dataset), None) => to_value(dataset.document().await),
            (Some(dataset), Some(partition)) => to_value(dataset.partition(partition).await),
        }
    })?;
    print(&value, arguments.connection.json)
}

pub(super) fn ls(arguments: &ListArguments) -> Result<(), Failure> {
    let is_json = arguments.connection.json;
    runtime()?.block_on(async {
        let client = arguments.connection.client()?;
        let Some(target) = &arguments.target else {
            let jobs = client.jobs().await.map_err(failure)?.jobs;
            return print_all(&jobs, is_json, &["job", "default_kind", "n_datasets", "lease_remaining_ms"]);
        };
        let job = client.job(&target.job);
        match dataset_of(&job, target) {
            None => {
                let datasets = job.datasets().await.map_err(failure)?.datasets;
                print_all(&datasets, is_json, &["dataset", "kind", "subpartitions", "n_sealed", "sealed_bytes"])
            }
            Some(dataset) => {
                // Page by page: a dataset may have more partitions than fit into memory twice.
                let mut after = None;
                loop {
                    let page = dataset.page(after.as_deref(), false).await.map_err(failure)?;
                    print_all(&page.partitions, is_json, &["partition", "attempt", "total_bytes", "fingerprint"])?;
                    after = page.next_after;
                    if after.is_none() {
                        return Ok(());
                    }
                }
            }
        }
    })
}

pub(super) fn rm(arguments: &TargetArguments) -> Result<(), Failure> {
    let target = &arguments.target;
    if target.subpartition.is_some() {
        return Err(Failure::usage("subpartitions are not released one by one: JOB[/DATASET[/PARTITION]]"));
    }
    let value = runtime()?.block_on(async {
        let client = arguments.connection.client()?;
        let epoch = client.job(&target.job).document().await.map_err(failure)?.epoch;
        let job = client.job_at(&target.job, JobEpoch::new(epoch));
        match (dataset_of(&job, target), target.partition) {
            (None, _) => to_value(job.release().await),
            (Some(dataset), None) => to_value(dataset.release().await),
            (Some(dataset), Some(partition)) => to_value(dataset.release_partition(partition).await),
        }
    })?;
    print(&value, arguments.connection.json)
}

fn dataset_of(job: &JobHandle, target: &Target) -> Option<DatasetHandle> {
    target.dataset.as_ref().map(|dataset| job.dataset(dataset))
}

fn to_value(answer: Result<impl Serialize, ClientError>) -> Result<Value, Failure> {
    serde_json::to_value(answer.map_err(failure)?).map_err(|error| Failure::failed(error.to_string()))
}

/// One line per item: JSON, or the columns named, between tabs.
fn print_all(items: &[impl Serialize], is_json: bool, columns: &[&str]) -> Result<(), Failure> {
    for item in items {
        let value = to_value(Ok(item))?;
        if is_json {
            print(&value, true)?;
        } else {
            super::output::write_out((row(&value, columns) + "\n").as_bytes())?;
        }
    }
    Ok(())
}

fn row(value: &Value, columns: &[&str]) -> String {
    let cell = |name: &&str| match value.get(*name) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => "-".to_owned(),
    };
    columns.iter().map(cell).collect::<Vec<_>>().join("\t")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_the_columns_named_and_a_dash_for_what_is_not_there() {
        let value = serde_json::json!({"job": "j", "n": 3, "more": true});
        assert_eq!(row(&value, &["job", "n", "none"]), "j\t3\t-");
    }
}

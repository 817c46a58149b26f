//! `forebay stat`, `forebay ls` and `forebay rm`: what there is, and giving it back.

use super::connection::{ConnectionArguments, failure};
use super::output::print;
use super::target::Target;
use super::{Failure, runtime};
use clap::Args;
use forebay_client::{Client, ClientError, DatasetHandle, JobHandle};
use futures::StreamExt as _;
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
        let job = job_of(&arguments.connection.client()?, target)?;
        match (dataset_of(&job, target)?, target.partition) {
            (None, _) => to_value(job.state().await),
            (Some(dataset), None) => to_value(dataset.state().await),
            (Some(dataset), Some(partition)) => to_value(dataset.partition(partition, true).await),
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
        let job = job_of(&client, target)?;
        match dataset_of(&job, target)? {
            None => {
                let datasets = job.datasets().await.map_err(failure)?.datasets;
                print_all(&datasets, is_json, &["dataset", "kind", "subpartitions", "n_sealed", "sealed_bytes"])
            }
            Some(dataset) => {
                let mut partitions = dataset.partitions(false);
                while let Some(partition) = partitions.next().await {
                    print_all(&[partition.map_err(failure)?], is_json, &["partition", "attempt", "total_bytes", "fingerprint"])?;
                }
                Ok(())
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
        let job = job_of(&arguments.connection.client()?, target)?;
        let epoch = job.state().await.map_err(failure)?.epoch;
        let job = job.with_epoch(JobEpoch::new(epoch));
        match (dataset_of(&job, target)?, target.partition) {
            (None, _) => to_value(job.release().await),
            (Some(dataset), None) => to_value(dataset.release().await),
            (Some(dataset), Some(partition)) => to_value(dataset.release_partition(partition).await),
        }
    })?;
    print(&value, arguments.connection.json)
}

fn job_of(client: &Client, target: &Target) -> Result<JobHandle, Failure> {
    client.job(target.job.as_str()).map_err(failure)
}

fn dataset_of(job: &JobHandle, target: &Target) -> Result<Option<DatasetHandle>, Failure> {
    target.dataset.as_ref().map(|dataset| job.dataset(dataset.as_str()).map_err(failure)).transpose()
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

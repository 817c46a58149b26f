//! Floors of pipelined datasets: acknowledgements and checkpoints.

use super::PartitionService;
use super::attempt::peek;
use super::calls::{AcknowledgeReply, ConsumerPosition, NeedPosition};
use super::dataset::default_group;
use super::error::{ServiceError, ServiceErrorKind, ServiceResult};
use super::registry::Dataset;
use std::collections::BTreeMap;
use std::sync::Arc;
use store_api::{
    AcknowledgeRequest, AttemptId, CheckpointRequest, ConsumerId, DatasetId, DatasetKind, JobEpoch, JobId, Offset, PartitionId, Retention,
    SubpartitionIndex,
};

type Positions = BTreeMap<SubpartitionIndex, Offset>;
type Needs = BTreeMap<(ConsumerId, SubpartitionIndex), Offset>;

impl PartitionService {
    /// Moves the floors of a pipelined dataset: what a group has read for good may be let go.
    ///
    /// Positions below earlier ones change nothing. All positions are checked before the first is
    /// taken; when a store refuses one partition, those before it are taken: repeat the call.
    /// Idempotent. Errors: `BadRequest` (not pipelined, group not declared), `TooLarge` (too many
    /// positions), `RangeNotSatisfiable` for an offset past the tail, `UnknownPartition`, why an
    /// attempt cannot be read, those of the dataset.
    pub async fn acknowledge(
        &self,
        job: &JobId,
        dataset: &DatasetId,
        group: Option<ConsumerId>,
        positions: Vec<ConsumerPosition>,
    ) -> ServiceResult<AcknowledgeReply> {
        self.check_positions(positions.len())?;
        let job = self.find_job(job).await?;
        let dataset = self.find_dataset(&job, dataset).await?;
        let group = group.map_or_else(default_group, Ok)?;
        check_group(&dataset, &group)?;
        let mut attempts: BTreeMap<(PartitionId, AttemptId), Positions> = BTreeMap::new();
        for position in positions {
            let attempt = pick(&dataset, position.partition, position.subpartition, position.attempt)?;
            let offset = attempts.entry((position.partition, attempt)).or_default().entry(position.subpartition).or_default();
            *offset = position.offset.max(*offset);
        }
        let mut reply = AcknowledgeReply::default();
        for ((partition, attempt), offsets) in attempts {
            let request = AcknowledgeRequest {
                attempt: dataset.attempt_key(partition, attempt),
                group: group.clone(),
                offsets: offsets.into_iter().collect(),
            };
            let report = dataset.store()?.acknowledge(request).await;
            let report = report.map_err(|error| self.refine_at(&job, &dataset, partition, attempt, error.into()))?;
            reply.floors.extend(report.floors.into_iter().map(|(subpartition, floor)| (partition, subpartition, floor)));
            reply.freed_bytes = reply.freed_bytes.saturating_add(report.freed_bytes);
        }
        Ok(reply)
    }

    /// A checkpoint of the job is complete: restarts will not go back before it. Moves the floors of
    /// `since_checkpoint` partitions that are named. Answers the bytes that were let go.
    ///
    /// Needs the epoch. A checkpoint older than the last one taken changes nothing. Idempotent;
    /// checked and taken like an acknowledgement. Errors: `EpochRequired`, `Fenced`, `BadRequest`
    /// for datasets of another retention, and those of [`Self::acknowledge`].
    pub async fn complete_checkpoint(
        &self,
        job: &JobId,
        epoch: Option<JobEpoch>,
        checkpoint: u64,
        need: Vec<NeedPosition>,
    ) -> ServiceResult<u64> {
        self.check_positions(need.len())?;
        let job = self.control_job(job).await?;
        job.check_epoch(epoch)?;
        let mut datasets: BTreeMap<DatasetId, Arc<Dataset>> = BTreeMap::new();
        let mut attempts: BTreeMap<(DatasetId, PartitionId, AttemptId), Needs> = BTreeMap::new();
        for position in need {
            let dataset = match datasets.get(&position.dataset) {
                Some(dataset) => dataset.clone(),
                None => self.find_dataset(&job, &position.dataset).await?,
            };
            if dataset.spec.kind != DatasetKind::Pipelined(Retention::SinceCheckpoint) {
                return Err(ServiceError::bad_request("checkpoints move floors of datasets with retention since_checkpoint"));
            }
            check_group(&dataset, &position.group)?;
            let attempt = pick(&dataset, position.partition, position.subpartition, None)?;
            datasets.insert(position.dataset.clone(), dataset);
            let needs = attempts.entry((position.dataset, position.partition, attempt)).or_default();
            let offset = needs.entry((position.group, position.subpartition)).or_insert(position.offset);
            // Of two needs of one consumer the lower one keeps more.
            *offset = position.offset.min(*offset);
        }
        let mut freed_bytes = 0_u64;
        for ((id, partition, attempt), needs) in attempts {
            let Some(dataset) = datasets.get(&id) else { continue };
            let need = needs.into_iter().map(|((group, subpartition), offset)| (group, subpartition, offset)).collect();
            let request = CheckpointRequest { attempt: dataset.attempt_key(partition, attempt), checkpoint, need };
            let report = dataset.store()?.complete_checkpoint(request).await;
            let report = report.map_err(|error| self.refine_at(&job, dataset, partition, attempt, error.into()))?;
            freed_bytes = freed_bytes.saturating_add(report.freed_bytes);
        }
        Ok(freed_bytes)
    }

    fn check_positions(&self, count: usize) -> ServiceResult<()> {
        if count > self.config.max_positions {
            return Err(ServiceErrorKind::TooLarge { limit: self.config.max_positions as u64 }.into());
        }
        Ok(())
    }
}

fn check_group(dataset: &Dataset, group: &ConsumerId) -> ServiceResult<()> {
    if !dataset.is_pipelined() {
        return Err(ServiceError::bad_request("only pipelined datasets have floors to move"));
    }
    if !dataset.spec.groups.contains(group) {
        return Err(ServiceError::bad_request(format!("the dataset declares no consumer group {group}")));
    }
    Ok(())
}

fn pick(dataset: &Dataset, partition: PartitionId, subpartition: SubpartitionIndex, named: Option<AttemptId>) -> ServiceResult<AttemptId> {
    dataset.check_partition(partition)?;
    dataset.stored(subpartition)?;
    peek(dataset, partition, |known| known.pick(dataset, named)).map(|picked| picked.attempt)
}

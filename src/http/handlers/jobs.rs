//! Jobs, leases, checkpoints.

use crate::http::error::Answer;
use crate::http::extract::{Document, Epoch, Ids, Life, Ready};
use crate::http::map;
use axum::Json;
use forebay_protocol::datasets::ReleaseDocument;
use forebay_protocol::jobs::{CheckpointCompletion, CheckpointDocument, JobDocument, JobList, JobRequest, LeaseDocument, LeaseRequest};
use http::StatusCode;
use std::time::Duration;

pub(in crate::http) async fn list(Ready(service): Ready) -> Answer<Json<JobList>> {
    let jobs = service.jobs().await?;
    Ok(Json(JobList { jobs: jobs.into_iter().map(map::job).collect() }))
}

pub(in crate::http) async fn put(
    Ready(service): Ready,
    ids: Ids,
    _: Life,
    document: Document<JobRequest>,
) -> Answer<(StatusCode, Json<JobDocument>)> {
    let job = ids.job()?;
    service.admit_job_creation(&job).await?;
    let view = service.put_job(&job, map::job_request(document.read().await?)).await?;
    let status = if view.is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(map::job(view))))
}

pub(in crate::http) async fn read(Ready(service): Ready, ids: Ids) -> Answer<Json<JobDocument>> {
    Ok(Json(map::job(service.job(&ids.job()?).await?)))
}

pub(in crate::http) async fn release(Ready(service): Ready, ids: Ids, _: Life, Epoch(epoch): Epoch) -> Answer<Json<ReleaseDocument>> {
    Ok(Json(map::release(service.release_job(&ids.job()?, epoch).await?)))
}

pub(in crate::http) async fn renew_lease(
    Ready(service): Ready,
    ids: Ids,
    _: Life,
    Epoch(epoch): Epoch,
    document: Document<LeaseRequest>,
) -> Answer<Json<LeaseDocument>> {
    let job = ids.job()?;
    service.admit_control(&job, epoch).await?;
    let lease = document.read().await?.lease_ms.map(Duration::from_millis);
    Ok(Json(map::lease(service.renew_lease(&job, epoch, lease).await?)))
}

pub(in crate::http) async fn complete_checkpoint(
    Ready(service): Ready,
    ids: Ids,
    _: Life,
    Epoch(epoch): Epoch,
    document: Document<CheckpointCompletion>,
) -> Answer<Json<CheckpointDocument>> {
    let (job, checkpoint) = (ids.job()?, ids.checkpoint()?);
    service.admit_control(&job, epoch).await?;
    let needs = map::needs(document.read().await?)?;
    let freed_bytes = service.complete_checkpoint(&job, epoch, checkpoint, needs).await?;
    Ok(Json(CheckpointDocument { checkpoint, freed_bytes }))
}

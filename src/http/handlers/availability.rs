//! What is there, and how far it has been read for good.

use crate::http::error::Answer;
use crate::http::extract::{Document, Ids, Life, Ready};
use crate::http::map;
use axum::Json;
use forebay_protocol::reads::{AcknowledgeDocument, AcknowledgeRequest, AvailabilityDocument, AvailabilityRequest};

pub(in crate::http) async fn ask(
    Ready(service): Ready,
    ids: Ids,
    document: Document<AvailabilityRequest>,
) -> Answer<Json<AvailabilityDocument>> {
    let job = ids.job()?;
    service.admit_job(&job).await?;
    let views = service.availability(&job, map::availability_wants(&document.read().await?.items)?).await?;
    Ok(Json(AvailabilityDocument { partitions: views.iter().map(map::availability).collect() }))
}

pub(in crate::http) async fn acknowledge(
    Ready(service): Ready,
    ids: Ids,
    life: Life,
    document: Document<AcknowledgeRequest>,
) -> Answer<Json<AcknowledgeDocument>> {
    life.required()?;
    let (job, dataset) = (ids.job()?, ids.dataset()?);
    service.admit_dataset(&job, &dataset).await?;
    let request = document.read().await?;
    if let Some(consumer) = &request.consumer {
        tracing::debug!(consumer, group = request.group, "acknowledged");
    }
    let (group, positions) = (map::group(&request.group)?, map::positions(&request.positions)?);
    let reply = service.acknowledge(&job, &dataset, Some(group), positions).await?;
    Ok(Json(map::acknowledged(&reply)))
}

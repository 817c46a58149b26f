//! What is there, and how far it has been read for good.

use crate::http::error::Answer;
use crate::http::extract::{Document, Ids, Life, Ready};
use crate::http::map;
use axum::Json;
use forebay_protocol::reads::{AcknowledgeDocument, AcknowledgeRequest, AvailabilityDocument, AvailabilityRequest};

pub(in crate::http) async fn ask(
    Ready(service): Ready,
    ids: Ids,
    Document(request): Document<AvailabilityRequest>,
) -> Answer<Json<AvailabilityDocument>> {
    let views = service.availability(&ids.job()?, map::availability_wants(&request.items)?).await?;
    Ok(Json(AvailabilityDocument { partitions: views.iter().map(map::availability).collect() }))
}

pub(in crate::http) async fn acknowledge(
    Ready(service): Ready,
    ids: Ids,
    life: Life,
    Document(request): Document<AcknowledgeRequest>,
) -> Answer<Json<AcknowledgeDocument>> {
    life.required()?;
    if let Some(consumer) = &request.consumer {
        tracing::debug!(consumer, group = request.group, "acknowledged");
    }
    let (group, positions) = (map::group(&request.group)?, map::positions(&request.positions)?);
    let reply = service.acknowledge(&ids.job()?, &ids.dataset()?, Some(group), positions).await?;
    Ok(Json(map::acknowledged(&reply)))
}

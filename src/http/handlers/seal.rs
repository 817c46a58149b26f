//! Seals.

use crate::http::error::Answer;
use crate::http::extract::{Document, Ids, Life, Ready};
use crate::http::map;
use axum::Json;
use forebay_protocol::partitions::{SealDocument, SealRequest};

pub(in crate::http) async fn seal(
    Ready(service): Ready,
    ids: Ids,
    life: Life,
    document: Document<SealRequest>,
) -> Answer<Json<SealDocument>> {
    life.required()?;
    let attempt = ids.attempt()?;
    service.admit_seal(&attempt, life.0).await?;
    let reply = service.seal(&attempt, life.0, map::stated(document.read().await?)).await?;
    Ok(Json(map::seal(&reply)))
}

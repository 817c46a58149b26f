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
    Document(request): Document<SealRequest>,
) -> Answer<Json<SealDocument>> {
    life.required()?;
    let reply = service.seal(&ids.attempt()?, life.0, map::stated(request)).await?;
    Ok(Json(map::seal(&reply)))
}

//! Partitions and attempts, without their bytes.

use crate::http::error::{Answer, Refusal};
use crate::http::extract::{Document, Epoch, Ids, Life, Query, Ready, decimal};
use crate::http::map;
use crate::service::OpenAttempt;
use axum::Json;
use forebay_protocol::datasets::{PartitionPage, ReleaseDocument};
use forebay_protocol::partitions::{AttemptDocument, OpenAttemptRequest, PartitionDocument};
use http::StatusCode;
use serde::Deserialize;

/// Whether lengths and checksums per subpartition are wanted.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct PartitionQuery {
    #[serde(default)]
    lists: bool,
}

/// Where a page starts and what is on it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct PageQuery {
    after: Option<String>,
    limit: Option<String>,
    #[serde(default)]
    lists: bool,
}

pub(in crate::http) async fn list(Ready(service): Ready, ids: Ids, Query(query): Query<PageQuery>) -> Answer<Json<PartitionPage>> {
    let after = query.after.as_deref().map(map::page_cursor).transpose()?;
    let limit = match decimal("limit", query.limit.as_deref())? {
        Some(0) => return Err(Refusal::bad_request("limit must be at least 1")),
        limit => limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)),
    };
    let page = service.partitions(&ids.job()?, &ids.dataset()?, after, limit).await?;
    Ok(Json(map::page(&page, query.lists)))
}

pub(in crate::http) async fn read(Ready(service): Ready, ids: Ids, Query(query): Query<PartitionQuery>) -> Answer<Json<PartitionDocument>> {
    let view = service.partition(&ids.partition()?).await?;
    Ok(Json(map::partition(&view, query.lists)))
}

pub(in crate::http) async fn release(Ready(service): Ready, ids: Ids, _: Life, Epoch(epoch): Epoch) -> Answer<Json<ReleaseDocument>> {
    Ok(Json(map::release(service.release_partition(&ids.partition()?, epoch).await?)))
}

pub(in crate::http) async fn open_attempt(
    Ready(service): Ready,
    ids: Ids,
    Life(life): Life,
    Epoch(epoch): Epoch,
    document: Document<OpenAttemptRequest>,
) -> Answer<Json<AttemptDocument>> {
    let partition = ids.partition()?;
    service.admit_opening(&partition, epoch).await?;
    let request = OpenAttempt { epoch, life, ..map::open_attempt(&document.read().await?) };
    let view = service.open_attempt(&partition, request).await?;
    Ok(Json(map::attempt_document(&view)))
}

pub(in crate::http) async fn read_attempt(Ready(service): Ready, ids: Ids) -> Answer<Json<AttemptDocument>> {
    Ok(Json(map::attempt_document(&service.attempt(&ids.attempt()?).await?)))
}

pub(in crate::http) async fn abort_attempt(Ready(service): Ready, ids: Ids, life: Life) -> Answer<StatusCode> {
    life.required()?;
    service.abort_attempt(&ids.attempt()?, life.0).await?;
    Ok(StatusCode::NO_CONTENT)
}

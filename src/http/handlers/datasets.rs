//! Datasets.

use crate::http::error::Answer;
use crate::http::extract::{Document, Epoch, Ids, Life, Ready};
use crate::http::map;
use axum::Json;
use forebay_protocol::datasets::{DatasetDocument, DatasetList, DatasetRequest, ReleaseDocument};
use http::StatusCode;

pub(in crate::http) async fn list(Ready(service): Ready, ids: Ids) -> Answer<Json<DatasetList>> {
    let datasets = service.datasets(&ids.job()?).await?;
    Ok(Json(DatasetList { datasets: datasets.iter().map(map::dataset).collect() }))
}

pub(in crate::http) async fn put(
    Ready(service): Ready,
    ids: Ids,
    _: Life,
    document: Document<DatasetRequest>,
) -> Answer<(StatusCode, Json<DatasetDocument>)> {
    let (job, dataset) = (ids.job()?, ids.dataset()?);
    service.admit_dataset_creation(&job, &dataset).await?;
    let view = service.put_dataset(&job, &dataset, map::dataset_request(document.read().await?)?).await?;
    let status = if view.is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(map::dataset(&view))))
}

pub(in crate::http) async fn read(Ready(service): Ready, ids: Ids) -> Answer<Json<DatasetDocument>> {
    Ok(Json(map::dataset(&service.dataset(&ids.job()?, &ids.dataset()?).await?)))
}

pub(in crate::http) async fn release(Ready(service): Ready, ids: Ids, _: Life, Epoch(epoch): Epoch) -> Answer<Json<ReleaseDocument>> {
    Ok(Json(map::release(service.release_dataset(&ids.job()?, &ids.dataset()?, epoch).await?)))
}

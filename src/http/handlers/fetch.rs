//! Batch reads.

use crate::http::Api;
use crate::http::error::Answer;
use crate::http::extract::{Document, Ids, Ready};
use crate::http::{frames, map};
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use forebay_protocol::headers::FRAMES_MEDIA_TYPE;
use forebay_protocol::reads::FetchRequest;
use http::header::CONTENT_TYPE;
use std::sync::Arc;

pub(in crate::http) async fn fetch(
    State(api): State<Arc<Api>>,
    Ready(service): Ready,
    ids: Ids,
    document: Document<FetchRequest>,
) -> Answer<Response> {
    let (job, dataset) = (ids.job()?, ids.dataset()?);
    service.admit_dataset(&job, &dataset).await?;
    let request = document.read().await?;
    let wants = map::fetch_wants(&request.items, service.config().max_fetch_items)?;
    let steps = service.fetch(&job, &dataset, wants, request.budget_bytes).await?;
    Ok(([(CONTENT_TYPE, FRAMES_MEDIA_TYPE)], frames::body(&api.streaming(), steps)).into_response())
}

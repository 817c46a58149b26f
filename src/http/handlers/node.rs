//! The node: health, metrics, drain.

use crate::http::error::{Answer, Refusal};
use crate::http::extract::Ready;
use crate::http::{Api, map};
use crate::service::NodeState;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use forebay_protocol::ErrorCode;
use forebay_protocol::node::{HealthDocument, NodeDocument};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use std::sync::Arc;

pub(in crate::http) async fn health(State(api): State<Arc<Api>>) -> Json<HealthDocument> {
    let problems = (api.health)();
    let status = if problems.is_empty() { "ok" } else { "degraded" };
    Json(HealthDocument { status: status.to_owned(), problems })
}

pub(in crate::http) async fn readiness(State(api): State<Arc<Api>>, Ready(service): Ready) -> Answer<Json<HealthDocument>> {
    if api.shutdown.is_begun() || service.node().state == NodeState::Draining {
        return Err(Refusal::new(ErrorCode::Draining, "the node finishes what it has"));
    }
    Ok(health(State(api)).await)
}

pub(in crate::http) async fn metrics(State(api): State<Arc<Api>>) -> Response {
    let (page, media_type) = api.observer.page();
    ([(CONTENT_TYPE, media_type)], page).into_response()
}

pub(in crate::http) async fn read(State(api): State<Arc<Api>>, Ready(service): Ready) -> Json<NodeDocument> {
    Json(map::node(&service.node(), api.memory_bytes()))
}

pub(in crate::http) async fn drain(State(api): State<Arc<Api>>, Ready(service): Ready) -> (StatusCode, Json<NodeDocument>) {
    service.begin_drain();
    (StatusCode::ACCEPTED, Json(map::node(&service.node(), api.memory_bytes())))
}

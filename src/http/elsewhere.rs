//! Reads of what this node does not hold: it asks who does, and sends the reader there, once.

use super::Api;
use super::handlers::read::redirect;
use crate::service::Location;
use async_trait::async_trait;
use axum::extract::{RawPathParams, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use forebay_protocol::ErrorCode;
use std::sync::Arc;
use store_api::{DatasetId, JobId, PartitionId};

/// Knows which node holds a partition.
#[async_trait]
pub trait Locator: Send + Sync + 'static {
    /// Another node that holds it and answers; `None` when there is none, or nobody can say.
    async fn locate(&self, job: &JobId, dataset: &DatasetId, partition: PartitionId) -> Option<Location>;
}

/// Refusals that mean no more than "not here".
const fn may_be_elsewhere(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::UnknownDataset | ErrorCode::UnknownPartition | ErrorCode::NotWritten | ErrorCode::UnknownAttempt | ErrorCode::Fenced
    )
}

/// Answers 307 to the holder in place of "not here", unless the reader was sent here already.
pub(super) async fn send_to_holder(State(api): State<Arc<Api>>, params: RawPathParams, request: Request, next: Next) -> Response {
    let Some(locator) = api.locator.clone() else { return next.run(request).await };
    let uri = request.uri().clone();
    let is_hop = uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "hop=1"));
    let named = |name: &str| params.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).unwrap_or_default();
    let (job, dataset, partition) =
        (JobId::new(&named("job")), DatasetId::new(&named("dataset")), named("partition").parse::<PartitionId>());
    let response = next.run(request).await;
    let is_not_here = response.extensions().get::<ErrorCode>().is_some_and(|code| may_be_elsewhere(*code));
    if is_hop || !is_not_here {
        return response;
    }
    let (Ok(job), Ok(dataset), Ok(partition)) = (job, dataset, partition) else { return response };
    match locator.locate(&job, &dataset, partition).await {
        Some(location) => redirect(&location, &uri).unwrap_or(response),
        None => response,
    }
}

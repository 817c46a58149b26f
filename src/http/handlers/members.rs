//! Workers of a job, and nodes.

use super::recovery::known_job;
use crate::coordinator::Coordinator;
use crate::http::Api;
use crate::http::error::{Answer, Refusal};
use crate::http::extract::{Document, Ids, Query, Ready};
use crate::http::map::recovery as map;
use crate::service::ServiceError;
use axum::Json;
use axum::extract::State;
use forebay_protocol::ErrorCode;
use forebay_protocol::members::{
    CatalogAction, CatalogAnswer, CatalogEntryDocument, CatalogRequest, NodeHeartbeat, NodeHeartbeatAnswer, NodeList, SealDecision,
    SealProposal, WorkerDocument, WorkerHeartbeat, WorkerHeartbeatAnswer, WorkerList, WorkerRequest,
};
use http::StatusCode;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use store_api::{CatalogEntry, Expect, NodeLife, StoreError, StoreErrorKind, Version};

fn life(text: &str) -> Answer<NodeLife> {
    text.parse().map_err(|error| Refusal::bad_request(format!("life: {error}")))
}

fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

pub(in crate::http) async fn list_workers(State(api): State<Arc<Api>>, Ready(service): Ready, ids: Ids) -> Answer<Json<WorkerList>> {
    let coordinator = api.coordinator()?;
    let (job, _) = known_job(&service, &ids).await?;
    Ok(Json(WorkerList { workers: coordinator.workers(&job)?.iter().map(map::worker).collect() }))
}

pub(in crate::http) async fn register_worker(
    State(api): State<Arc<Api>>,
    Ready(service): Ready,
    ids: Ids,
    document: Document<WorkerRequest>,
) -> Answer<Json<WorkerDocument>> {
    let coordinator = api.coordinator()?;
    let (job, _) = known_job(&service, &ids).await?;
    let request = document.read().await?;
    coordinator.register_worker(&job, &ids.worker()?, life(&request.life)?).await?;
    let config = coordinator.config();
    Ok(Json(WorkerDocument {
        coordinator_epoch: coordinator.epoch(),
        heartbeat_interval_ms: as_ms(config.heartbeat_interval),
        heartbeat_timeout_ms: as_ms(config.heartbeat_timeout),
    }))
}

pub(in crate::http) async fn hear_worker(
    State(api): State<Arc<Api>>,
    Ready(service): Ready,
    ids: Ids,
    document: Document<WorkerHeartbeat>,
) -> Answer<Json<WorkerHeartbeatAnswer>> {
    let coordinator = api.coordinator()?;
    let (job, _) = known_job(&service, &ids).await?;
    let request = document.read().await?;
    let running = map::running(&request.running)?;
    let cancel = coordinator.worker_heartbeat(&job, &ids.worker()?, life(&request.life)?, running)?;
    Ok(Json(map::cancel(coordinator.epoch(), cancel)))
}

/// Which start of the worker ends.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct LifeQuery {
    life: Option<String>,
}

pub(in crate::http) async fn end_worker(
    State(api): State<Arc<Api>>,
    Ready(service): Ready,
    ids: Ids,
    Query(query): Query<LifeQuery>,
) -> Answer<StatusCode> {
    let coordinator = api.coordinator()?;
    let named = query.life.as_deref().ok_or_else(|| Refusal::bad_request("life is missing"))?;
    let (job, _) = known_job(&service, &ids).await?;
    coordinator.deregister_worker(&job, &ids.worker()?, life(named)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(in crate::http) async fn list_nodes(State(api): State<Arc<Api>>, Ready(_): Ready) -> Answer<Json<NodeList>> {
    let coordinator = api.coordinator()?;
    Ok(Json(NodeList { coordinator_epoch: coordinator.epoch(), nodes: coordinator.nodes().iter().map(map::node).collect() }))
}

/// The coordinator, if other nodes may join it. Errors: `NotCoordinator`.
fn for_nodes(api: &Api) -> Answer<Arc<Coordinator>> {
    let coordinator = api.coordinator()?;
    if !coordinator.config().serves_nodes {
        let detail = "this process keeps partitions itself and takes no other node: run a coordinator of its own";
        return Err(Refusal::new(ErrorCode::NotCoordinator, detail));
    }
    Ok(coordinator)
}

pub(in crate::http) async fn hear_node(
    State(api): State<Arc<Api>>,
    Ready(_): Ready,
    document: Document<NodeHeartbeat>,
) -> Answer<Json<NodeHeartbeatAnswer>> {
    let coordinator = for_nodes(&api)?;
    let request = document.read().await?;
    let orders = coordinator.node_report(map::node_report(&request)?).await?;
    Ok(Json(map::node_orders(coordinator.epoch(), &orders)))
}

pub(in crate::http) async fn decide_seal(
    State(api): State<Arc<Api>>,
    Ready(_): Ready,
    document: Document<SealProposal>,
) -> Answer<Json<SealDecision>> {
    let coordinator = for_nodes(&api)?;
    let request = document.read().await?;
    let proposal = map::seal_proposal(&request)?;
    if request.withdraw {
        coordinator.withdraw_seal(&proposal).await?;
        return Ok(Json(SealDecision { attempt: proposal.attempt.to_string() }));
    }
    Ok(Json(SealDecision { attempt: coordinator.decide_seal(&proposal).await?.to_string() }))
}

pub(in crate::http) async fn shared_catalog(
    State(api): State<Arc<Api>>,
    Ready(_): Ready,
    document: Document<CatalogRequest>,
) -> Answer<Json<CatalogAnswer>> {
    let catalog = for_nodes(&api)?.shared_catalog();
    let request = document.read().await?;
    let refuse = |error: StoreError| Refusal::from(ServiceError::from(error));
    let document = |(key, entry): (String, CatalogEntry)| CatalogEntryDocument {
        key,
        value: Some(String::from_utf8_lossy(&entry.value).into_owned()),
        version: entry.version.0.to_string(),
    };
    let mut answer = CatalogAnswer::default();
    match request.action {
        CatalogAction::Get => {
            let found = catalog.get(&request.key).await.map_err(refuse)?;
            answer.entries.extend(found.map(|entry| document((request.key, entry))));
        }
        CatalogAction::Scan => {
            answer.entries = catalog.scan(&request.key).await.map_err(refuse)?.into_iter().map(document).collect();
        }
        CatalogAction::Delete => catalog.delete(&request.key).await.map_err(refuse)?,
        CatalogAction::Put => {
            let value = request.value.ok_or_else(|| Refusal::bad_request("a put needs a value"))?;
            let expect = match (request.if_version, request.if_absent) {
                (None, false) => Expect::Any,
                (None, true) => Expect::Absent,
                (Some(version), false) => Expect::Version(Version(version.into())),
                (Some(_), true) => return Err(Refusal::bad_request("if_version and if_absent contradict each other")),
            };
            match catalog.put(&request.key, value.into(), expect).await {
                Ok(version) => {
                    answer.entries.push(CatalogEntryDocument { key: request.key, value: None, version: version.0.to_string() });
                }
                Err(error) if matches!(error.kind(), StoreErrorKind::Conflict) => answer.conflict = true,
                Err(error) => return Err(refuse(error)),
            }
        }
    }
    Ok(Json(answer))
}

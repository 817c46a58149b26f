//! Graphs, task reports, failures, plans, and the events that a driver follows.

use crate::coordinator::{Coordinator, JobKey, RecoveryCursor, RecoveryEvent};
use crate::http::Api;
use crate::http::error::{Answer, Refusal};
use crate::http::extract::{Document, Epoch, Ids, Query, Ready, text_header};
use crate::http::handlers::events::sse;
use crate::http::map::recovery as map;
use crate::service::{FencedBy, PartitionService, ServiceError, ServiceErrorKind};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use forebay_protocol::plans::{PlanDocument, PlanList};
use forebay_protocol::recovery::{
    FailureRequest, GraphDocument, GraphRequest, LocateDocument, LocateRequest, PlanRequest, ReportResults, TaskList, TaskReports,
};
use futures::stream::StreamExt as _;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderName};
use serde::Deserialize;
use std::sync::Arc;
use store_api::ids::parse_decimal;
use store_api::{DatasetId, JobEpoch, PartitionId};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// A job that the service knows, with the epoch of its owner.
pub(in crate::http) async fn known_job(service: &PartitionService, ids: &Ids) -> Answer<(JobKey, JobEpoch)> {
    let view = service.job(&ids.job()?).await?;
    Ok((JobKey { job: view.job, incarnation: view.incarnation }, view.epoch))
}

/// Errors: `EpochRequired`, `Fenced` by the present owner, `BadRequest` for one never given out.
fn owner(epoch: Option<JobEpoch>, present: JobEpoch) -> Answer<JobEpoch> {
    let epoch = epoch.ok_or(ServiceError::from(ServiceErrorKind::EpochRequired))?;
    not_former(Some(epoch), present)?;
    Ok(epoch)
}

/// Errors: `Fenced`, `BadRequest`, if an epoch is named.
fn not_former(epoch: Option<JobEpoch>, present: JobEpoch) -> Answer<()> {
    match epoch {
        Some(epoch) if epoch < present => Err(ServiceError::from(ServiceErrorKind::Fenced { by: FencedBy::Epoch(present) }).into()),
        Some(epoch) if epoch > present => Err(Refusal::bad_request(format!("epoch {epoch} has not been given out"))),
        Some(_) | None => Ok(()),
    }
}

pub(in crate::http) async fn put_graph(
    State(api): State<Arc<Api>>,
    Ready(service): Ready,
    ids: Ids,
    Epoch(epoch): Epoch,
    document: Document<GraphRequest>,
) -> Answer<Json<GraphDocument>> {
    let coordinator = api.coordinator()?;
    let (job, present) = known_job(&service, &ids).await?;
    let epoch = owner(epoch, present)?;
    let request = document.read().await?;
    Ok(Json(map::graph(&coordinator.declare(job, map::graph_request(request, epoch)?).await?)))
}

pub(in crate::http) async fn read_graph(State(api): State<Arc<Api>>, Ready(service): Ready, ids: Ids) -> Answer<Json<GraphDocument>> {
    let coordinator = api.coordinator()?;
    let (job, _) = known_job(&service, &ids).await?;
    Ok(Json(map::graph(&coordinator.graph(&job)?)))
}

pub(in crate::http) async fn read_tasks(State(api): State<Arc<Api>>, Ready(service): Ready, ids: Ids) -> Answer<Json<TaskList>> {
    let coordinator = api.coordinator()?;
    let (job, _) = known_job(&service, &ids).await?;
    let (graph_version, tasks) = coordinator.tasks(&job)?;
    Ok(Json(TaskList { graph_version, tasks: tasks.into_iter().map(map::task).collect() }))
}

pub(in crate::http) async fn report_tasks(
    State(api): State<Arc<Api>>,
    Ready(service): Ready,
    ids: Ids,
    Epoch(epoch): Epoch,
    document: Document<TaskReports>,
) -> Answer<Json<ReportResults>> {
    let coordinator = api.coordinator()?;
    let (job, present) = known_job(&service, &ids).await?;
    not_former(epoch, present)?;
    let request = document.read().await?;
    let reports = request.reports.iter().map(map::report).collect::<Answer<_>>()?;
    let told = coordinator.report(&job, epoch, request.coordinator_epoch, reports).await?;
    Ok(Json(map::told(coordinator.epoch(), &told)))
}

pub(in crate::http) async fn report_failures(
    State(api): State<Arc<Api>>,
    Ready(service): Ready,
    ids: Ids,
    Epoch(epoch): Epoch,
    document: Document<FailureRequest>,
) -> Answer<Json<ReportResults>> {
    let coordinator = api.coordinator()?;
    let (job, present) = known_job(&service, &ids).await?;
    not_former(epoch, present)?;
    let request = document.read().await?;
    let told = coordinator.fail(&job, epoch, map::failures(&request)?).await?;
    Ok(Json(map::told(coordinator.epoch(), &told)))
}

/// Whether the plan is only asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct PlanQuery {
    dry_run: Option<String>,
}

pub(in crate::http) async fn plan(
    State(api): State<Arc<Api>>,
    Ready(service): Ready,
    ids: Ids,
    Epoch(epoch): Epoch,
    Query(query): Query<PlanQuery>,
    document: Document<PlanRequest>,
) -> Answer<Json<PlanDocument>> {
    let coordinator = api.coordinator()?;
    let is_dry = match query.dry_run.as_deref() {
        Some("true") => true,
        None | Some("false") => false,
        Some(_) => return Err(Refusal::bad_request("dry_run is true or false")),
    };
    let (job, present) = known_job(&service, &ids).await?;
    if !is_dry {
        owner(epoch, present)?;
    }
    let request = document.read().await?;
    if is_dry {
        let view = coordinator.rehearse(&job, map::rehearsal(&request)?).await?;
        return Ok(Json(map::plan(&view)));
    }
    if request != PlanRequest::default() {
        return Err(Refusal::bad_request("what would fail is for a dry run; what has failed goes to failures"));
    }
    let view =
        coordinator.plan_now(&job).await?.ok_or_else(|| Refusal::new(forebay_protocol::ErrorCode::UnknownPlan, "nothing has failed"))?;
    Ok(Json(map::plan(&view)))
}

pub(in crate::http) async fn list_plans(State(api): State<Arc<Api>>, Ready(service): Ready, ids: Ids) -> Answer<Json<PlanList>> {
    let coordinator = api.coordinator()?;
    let (job, _) = known_job(&service, &ids).await?;
    let plans = coordinator.plans(&job)?.iter().map(map::plan_summary).collect();
    Ok(Json(PlanList { coordinator_epoch: coordinator.epoch(), plans }))
}

pub(in crate::http) async fn read_plan(State(api): State<Arc<Api>>, Ready(service): Ready, ids: Ids) -> Answer<Json<PlanDocument>> {
    let coordinator = api.coordinator()?;
    let (job, _) = known_job(&service, &ids).await?;
    Ok(Json(map::plan(&coordinator.plan(&job, ids.plan()?)?)))
}

pub(in crate::http) async fn locate(
    State(api): State<Arc<Api>>,
    Ready(service): Ready,
    ids: Ids,
    document: Document<LocateRequest>,
) -> Answer<Json<LocateDocument>> {
    let coordinator: Arc<Coordinator> = api.coordinator()?;
    let (job, _) = known_job(&service, &ids).await?;
    let request = document.read().await?;
    let dataset = DatasetId::new(&request.dataset).map_err(|error| Refusal::bad_request(format!("dataset: {error}")))?;
    let wanted: Option<Vec<PartitionId>> = request.partitions.map(|wanted| wanted.into_iter().map(PartitionId::new).collect());
    let located = coordinator.locate(&job, &dataset, wanted.as_deref());
    Ok(Json(LocateDocument { partitions: located.iter().map(map::located).collect() }))
}

/// Where the stream goes on.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct FollowQuery {
    after: Option<String>,
}

pub(in crate::http) async fn follow(
    State(api): State<Arc<Api>>,
    Ready(service): Ready,
    ids: Ids,
    Query(query): Query<FollowQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    let coordinator = api.coordinator()?;
    let named = text_header(&headers, &LAST_EVENT_ID)?.filter(|id| !id.is_empty()).or(query.after.as_deref());
    let after = named.map(cursor).transpose()?;
    let (job, _) = known_job(&service, &ids).await?;
    let lines = coordinator.events(&job, after)?.map(|event| line(&event)).boxed();
    let lines = sse(lines, api.clock.clone(), api.config.event_keep_alive, api.shutdown.clone());
    let names = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((names, api.streaming().bytes(lines.map(Ok).boxed(), None)).into_response())
}

/// `{coordinator epoch}-{sequence}`.
fn cursor(text: &str) -> Answer<RecoveryCursor> {
    let parsed = text
        .split_once('-')
        .and_then(|(epoch, sequence)| Some(RecoveryCursor { epoch: parse_decimal(epoch)?, sequence: parse_decimal(sequence)? }));
    parsed.ok_or_else(|| Refusal::bad_request("a cursor is {coordinator epoch}-{sequence}"))
}

fn line(event: &RecoveryEvent) -> Bytes {
    let document = map::event(event);
    let json = serde_json::to_string(&document).unwrap_or_default();
    let RecoveryCursor { epoch, sequence } = event.cursor;
    Bytes::from(format!("id: {epoch}-{sequence}\nevent: {}\ndata: {json}\n\n", document.kind.as_str()))
}

//! The HTTP side of the service: extract, call, map.
//!
//! | part | what it is |
//! |---|---|
//! | `handlers` | one function per operation of `openapi.yaml` |
//! | `extract` | ids, headers, queries and documents, parsed once |
//! | `body`, `frames`, `range` | streaming bodies, frame streams on their way out, byte ranges |
//! | `middleware` | what every request passes: counting, panics, limits, tokens |
//! | `error`, `map` | the service's words and values as documents of the protocol |
//! | `connection` | what the server and the routes know about a connection |
//!
//! It knows the service and the protocol; it knows no store, no medium and no configuration file.

mod body;
mod connection;
mod elsewhere;
mod error;
mod extract;
mod frames;
mod handlers;
mod map;
mod middleware;
pub mod range;
mod tail;

pub use connection::{ConnectionState, InFlight};
pub use elsewhere::Locator;
pub use error::Refusal;
pub use middleware::{Access, access_of};

use crate::coordinator::Coordinator;
use crate::service::PartitionService;
use crate::shutdown::Shutdown;
use axum::Router;
use axum::body::Body;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, delete, get, post, put};
use body::{RequestBody, Streaming};
use error::Answer;
use forebay_protocol::{ErrorCode, paths};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use store_api::{ByteBudget, SharedClock, TaskGroup};
use tokio::sync::Semaphore;

/// Limits of the HTTP side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// Largest JSON document, in bytes. A seal of 2^20 subpartitions with its lists has about 30 MiB.
    pub max_document_bytes: u64,
    /// Memory for JSON documents that are being read, in bytes, all requests together.
    pub document_budget_bytes: u64,
    /// Most requests at a time, waiting reads and event streams included.
    pub max_requests: usize,
    /// Longest time in which a request's body makes no progress.
    pub body_stall: Duration,
    /// Longest time without a frame on a frame stream that stands between two frames.
    pub frame_pause: Duration,
    /// Longest time that a reader may leave what it was sent untaken.
    pub read_stall: Duration,
    /// Longest time for a call that neither streams nor seals.
    pub call_timeout: Duration,
    /// Longest time for a seal; it goes on in the background when it takes longer.
    pub seal_timeout: Duration,
    /// Time between two comment lines on an event stream on which nothing happens.
    pub event_keep_alive: Duration,
    /// Whether `/metrics` needs the admin token.
    pub protect_metrics: bool,
}

impl Default for HttpConfig {
    fn default() -> Self {
        const MIB: u64 = 1024 * 1024;
        Self {
            max_document_bytes: 32 * MIB,
            document_budget_bytes: 128 * MIB,
            max_requests: 8192,
            body_stall: Duration::from_secs(30),
            frame_pause: Duration::from_secs(300),
            read_stall: Duration::from_secs(30),
            call_timeout: Duration::from_secs(60),
            seal_timeout: Duration::from_secs(600),
            event_keep_alive: Duration::from_secs(15),
            protect_metrics: false,
        }
    }
}

/// A request that has been answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The method.
    pub method: http::Method,
    /// The route's template; `None` when no route matched.
    pub route: Option<Arc<str>>,
    /// The status.
    pub status: u16,
    /// From the head of the request to the head of the answer.
    pub until_head: Duration,
    /// From the head of the request to the end of the answer's body, or to the reader's leaving.
    pub until_end: Duration,
    /// Bytes of the answer's body.
    pub sent_bytes: u64,
}

/// Told about every request, and asked for the metrics page. Calls must be short.
pub trait HttpObserver: Send + Sync + 'static {
    /// A request has been answered.
    fn answered(&self, request: &Answered);
    /// Requests that are under way now.
    fn n_in_flight(&self, n: usize);
    /// The metrics page and its media type.
    fn page(&self) -> (String, &'static str);
}

/// An observer that keeps nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl HttpObserver for NoObserver {
    fn answered(&self, _: &Answered) {}
    fn n_in_flight(&self, _: usize) {}
    fn page(&self) -> (String, &'static str) {
        (String::new(), "text/plain; version=0.0.4")
    }
}

/// What the routes are built from.
pub struct ApiParts {
    /// The limits.
    pub config: HttpConfig,
    /// The service; empty while it starts, and every route that needs it then answers `starting`.
    pub service: Arc<OnceLock<Arc<PartitionService>>>,
    /// The coordinator, empty while it starts; `None` at a node that is not one.
    pub coordinator: Option<Arc<OnceLock<Arc<Coordinator>>>>,
    /// Knows who holds what this node does not; `None` where there is no other node.
    pub locator: Option<Arc<dyn Locator>>,
    /// Time.
    pub clock: SharedClock,
    /// Watches over answers that stream.
    pub tasks: TaskGroup,
    /// Ends waiting reads and event streams, and is begun by the drain call.
    pub shutdown: Shutdown,
    /// Told about every request.
    pub observer: Arc<dyn HttpObserver>,
    /// The memory budgets of the stores, for the answer about the node; empty while it starts.
    pub memory: Arc<OnceLock<Vec<ByteBudget>>>,
    /// What is wrong with the node, one line each, for `/healthz`.
    pub health: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
}

/// What every handler has at hand.
pub(crate) struct Api {
    pub(crate) config: HttpConfig,
    service: Arc<OnceLock<Arc<PartitionService>>>,
    coordinator: Option<Arc<OnceLock<Arc<Coordinator>>>>,
    pub(crate) locator: Option<Arc<dyn Locator>>,
    pub(crate) clock: SharedClock,
    tasks: TaskGroup,
    pub(crate) shutdown: Shutdown,
    pub(crate) observer: Arc<dyn HttpObserver>,
    memory: Arc<OnceLock<Vec<ByteBudget>>>,
    pub(crate) health: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    pub(crate) documents: ByteBudget,
    pub(crate) requests: Arc<Semaphore>,
    pub(crate) next_request: AtomicU64,
}

impl Api {
    fn new(parts: ApiParts) -> Self {
        Self {
            documents: ByteBudget::new(parts.config.document_budget_bytes, parts.clock.clone()),
            requests: Arc::new(Semaphore::new(parts.config.max_requests.min(Semaphore::MAX_PERMITS))),
            next_request: AtomicU64::new(0),
            config: parts.config,
            service: parts.service,
            coordinator: parts.coordinator,
            locator: parts.locator,
            clock: parts.clock,
            tasks: parts.tasks,
            shutdown: parts.shutdown,
            observer: parts.observer,
            memory: parts.memory,
            health: parts.health,
        }
    }

    /// The service. Errors: `Starting` until it is there.
    pub(crate) fn ready(&self) -> Answer<Arc<PartitionService>> {
        self.service.get().cloned().ok_or_else(|| Refusal::new(ErrorCode::Starting, "the node is not ready yet"))
    }

    /// The memory that the node may reserve and what of it is reserved now, in bytes, documents that
    /// are being read included.
    pub(crate) fn memory_bytes(&self) -> (u64, u64) {
        let budgets = self.memory.get().map(Vec::as_slice).unwrap_or_default().iter().chain([&self.documents]);
        budgets.fold((0, 0), |(limit, used), budget| (limit.saturating_add(budget.limit_bytes()), used.saturating_add(budget.used_bytes())))
    }

    /// The coordinator. Errors: `NotCoordinator` at a node that is none, `Starting` until it is there.
    pub(crate) fn coordinator(&self) -> Answer<Arc<Coordinator>> {
        let slot = self.coordinator.as_ref();
        let slot = slot.ok_or_else(|| Refusal::new(ErrorCode::NotCoordinator, "this node is no coordinator: ask the cluster's"))?;
        slot.get().cloned().ok_or_else(|| Refusal::new(ErrorCode::Starting, "the coordinator is not ready yet"))
    }

    pub(crate) fn request_body(&self, body: Body, length: Option<u64>) -> RequestBody {
        RequestBody::new(body, length, self.clock.clone(), self.config.body_stall)
    }

    pub(crate) fn streaming(&self) -> Streaming {
        Streaming { tasks: self.tasks.clone(), clock: self.clock.clone(), stall: self.config.read_stall }
    }
}

/// The methods of a route of the protocol. The router is built from this table; a test holds it
/// against `openapi.yaml`.
pub const ROUTES: &[(&str, &[&str])] = &[
    (paths::HEALTHZ, &["GET"]),
    (paths::READYZ, &["GET"]),
    (paths::METRICS, &["GET"]),
    (paths::NODE, &["GET"]),
    (paths::DRAIN, &["POST"]),
    (paths::JOBS, &["GET"]),
    (paths::JOB, &["PUT", "GET", "DELETE"]),
    (paths::LEASE, &["POST"]),
    (paths::AVAILABILITY, &["POST"]),
    (paths::EVENTS, &["GET"]),
    (paths::CHECKPOINT, &["POST"]),
    (paths::DATASETS, &["GET"]),
    (paths::DATASET, &["PUT", "GET", "DELETE"]),
    (paths::PARTITIONS, &["GET"]),
    (paths::FETCH, &["POST"]),
    (paths::ACKNOWLEDGE, &["POST"]),
    (paths::PARTITION, &["GET", "DELETE"]),
    (paths::ATTEMPTS, &["POST"]),
    (paths::ATTEMPT, &["GET", "DELETE"]),
    (paths::APPEND, &["PUT"]),
    (paths::FRAMES, &["POST"]),
    (paths::SEAL, &["POST"]),
    (paths::READ, &["GET", "HEAD"]),
    (paths::GRAPH, &["PUT", "GET"]),
    (paths::TASKS, &["GET", "POST"]),
    (paths::FAILURES, &["POST"]),
    (paths::PLAN, &["POST"]),
    (paths::PLANS, &["GET"]),
    (paths::PLAN_NUMBER, &["GET"]),
    (paths::RECOVERY_EVENTS, &["GET"]),
    (paths::LOCATE, &["POST"]),
    (paths::WORKERS, &["GET"]),
    (paths::WORKER, &["PUT", "DELETE"]),
    (paths::WORKER_HEARTBEAT, &["POST"]),
    (paths::NODES, &["GET"]),
    (paths::NODE_HEARTBEAT, &["POST"]),
    (paths::SEAL_DECISION, &["POST"]),
    (paths::NODE_CATALOG, &["POST"]),
];

/// The routes.
pub fn router(parts: ApiParts) -> Router {
    let api = Arc::new(Api::new(parts));
    let routes = routes(&api)
        .merge(recovery_routes(&api))
        .fallback(middleware::unknown_route)
        .method_not_allowed_fallback(middleware::method_not_allowed);
    middleware::around(routes, &api).with_state(api)
}

fn routes(api: &Arc<Api>) -> Router<Arc<Api>> {
    use handlers as h;
    let within = |route: MethodRouter<Arc<Api>>, limit: Duration| middleware::within(route, api, limit);
    let call = |route| within(route, api.config.call_timeout);
    Router::new()
        .route(paths::HEALTHZ, get(h::node::health))
        .route(paths::READYZ, get(h::node::readiness))
        .route(paths::METRICS, get(h::node::metrics))
        .route(paths::NODE, get(h::node::read))
        .route(paths::DRAIN, post(h::node::drain))
        .route(paths::JOBS, call(get(h::jobs::list)))
        .route(paths::JOB, call(put(h::jobs::put).get(h::jobs::read).delete(h::jobs::release)))
        .route(paths::LEASE, call(post(h::jobs::renew_lease)))
        .route(paths::AVAILABILITY, call(post(h::availability::ask)))
        .route(paths::EVENTS, get(h::events::follow))
        .route(paths::CHECKPOINT, call(post(h::jobs::complete_checkpoint)))
        .route(paths::DATASETS, call(get(h::datasets::list)))
        .route(paths::DATASET, call(put(h::datasets::put).get(h::datasets::read).delete(h::datasets::release)))
        .route(paths::PARTITIONS, call(get(h::partitions::list)))
        .route(paths::FETCH, post(h::fetch::fetch))
        .route(paths::ACKNOWLEDGE, call(post(h::availability::acknowledge)))
        .route(paths::PARTITION, call(get(h::partitions::read).merge(delete(h::partitions::release))))
        .route(paths::ATTEMPTS, call(post(h::partitions::open_attempt)))
        .route(paths::ATTEMPT, call(get(h::partitions::read_attempt).merge(delete(h::partitions::abort_attempt))))
        .route(paths::APPEND, put(h::append::append))
        .route(paths::FRAMES, post(h::frames::append))
        .route(paths::SEAL, within(post(h::seal::seal), api.config.seal_timeout))
        .route(paths::READ, get(h::read::read).head(h::read::head).layer(from_fn_with_state(api.clone(), elsewhere::send_to_holder)))
}

fn recovery_routes(api: &Arc<Api>) -> Router<Arc<Api>> {
    use handlers::{members, recovery};
    let call = |route: MethodRouter<Arc<Api>>| middleware::within(route, api, api.config.call_timeout);
    Router::new()
        .route(paths::GRAPH, call(put(recovery::put_graph).get(recovery::read_graph)))
        .route(paths::TASKS, call(post(recovery::report_tasks).get(recovery::read_tasks)))
        .route(paths::FAILURES, call(post(recovery::report_failures)))
        .route(paths::PLAN, call(post(recovery::plan)))
        .route(paths::PLANS, call(get(recovery::list_plans)))
        .route(paths::PLAN_NUMBER, call(get(recovery::read_plan)))
        .route(paths::RECOVERY_EVENTS, get(recovery::follow))
        .route(paths::LOCATE, call(post(recovery::locate)))
        .route(paths::WORKERS, call(get(members::list_workers)))
        .route(paths::WORKER, call(put(members::register_worker).delete(members::end_worker)))
        .route(paths::WORKER_HEARTBEAT, call(post(members::hear_worker)))
        .route(paths::NODES, call(get(members::list_nodes)))
        .route(paths::NODE_HEARTBEAT, call(post(members::hear_node)))
        .route(paths::SEAL_DECISION, call(post(members::decide_seal)))
        .route(paths::NODE_CATALOG, call(post(members::shared_catalog)))
}

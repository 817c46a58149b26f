//! A running node: configuration, identity, stores, service and port put together, from the start to
//! the end of the process.
//!
//! ```text
//!   identity → port (answers `starting`) → stores → service → ready ──signal──► drain → close
//! ```
//!
//! | part | what it is |
//! |---|---|
//! | `settings` | the configuration in the words of service and port |
//! | `cluster` | the way to the coordinator, in this process or another |
//! | `observer` | metrics of requests and of the service |
//! | `random` | numbers that nobody can guess |
//! | `ready_file` | tells whoever started the node where it is |

mod cluster;
mod observer;
mod random;
mod ready_file;
mod settings;
#[cfg(test)]
mod tests;

pub use ready_file::ReadyDocument;

use crate::config::{Config, ConfigError, Role};
use crate::coordinator::{Coordinator, CoordinatorError, CoordinatorParts, SharedCatalog};
use crate::http::{ApiParts, Locator, router};
use crate::metrics::Metrics;
use crate::node_identity::{self, IdentityError, NodeIdentity};
use crate::server::{Server, ServerError};
use crate::service::{LocalArbiter, PartitionService, RandomSource, SealArbiter, ServiceError, ServiceParts, Stores};
use crate::shutdown::Shutdown;
use crate::store_stack::{self, Health, StackError, StoreStack, Surroundings};
use cluster::{Announcer, Link, RandomJitter, RemoteArbiter, RemoteCatalog, ServiceAuthority};
use forebay_client::{Client, ClientError};
use observer::Observer;
use random::SeededRandom;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use store_api::clock::within;
use store_api::{ByteBudget, Catalog, NodeId, SharedClock, TaskGroup};

/// Why a node does not run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A setting cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The node cannot have its directory.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The port cannot be served.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A store cannot be opened.
    #[error(transparent)]
    Stores(#[from] StackError),
    /// What the stores hold cannot be taken up.
    #[error("the node cannot recover")]
    Service(#[from] ServiceError),
    /// The journal of the coordinator cannot be taken up.
    #[error("the coordinator cannot start")]
    Coordinator(#[from] CoordinatorError),
    /// The coordinator cannot be spoken to.
    #[error("the coordinator's address cannot be used")]
    Link(#[from] ClientError),
    /// The file that says where the node is cannot be written.
    #[error("the ready file cannot be written: {0}")]
    ReadyFile(std::io::Error),
    /// The end was asked for before the node was ready.
    #[error("the node was asked to end before it was ready")]
    EndedEarly,
}

/// What a node is started with.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// The configuration, validated.
    pub config: Config,
    /// Written once the node is ready.
    pub ready_file: Option<PathBuf>,
    /// Time.
    pub clock: SharedClock,
    /// The wish that the node ends.
    pub shutdown: Shutdown,
}

/// How a node ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Whether everything under way could finish in its time.
    pub is_clean: bool,
}

/// What the parts of a node share while it runs.
struct Running {
    options: NodeOptions,
    identity: NodeIdentity,
    url: String,
    tasks: TaskGroup,
    metrics: Arc<Metrics>,
    service: Arc<OnceLock<Arc<PartitionService>>>,
    coordinator: Option<Arc<OnceLock<Arc<Coordinator>>>>,
    locator: Option<Arc<dyn Locator>>,
    /// The coordinator in another process.
    remote: Option<Client>,
    health: Arc<OnceLock<Health>>,
    memory: Arc<OnceLock<Vec<ByteBudget>>>,
    admin_token_hash: Option<[u8; 32]>,
}

/// Runs a node until its shutdown ends it. The port answers `starting` until the stores are
/// recovered. Not cancel-safe: what is under way is cut when the future is dropped, as by kill -9.
/// Errors: all of [`NodeError`]; the port is closed again then.
pub async fn run(options: NodeOptions) -> Result<Ended, NodeError> {
    let config = &options.config;
    let admin_token_hash = config.admin_token()?.map(|token| crate::service::hash_token(token.reveal()));
    let wanted = config.node.id.as_deref().and_then(|id| NodeId::new(id).ok());
    let identity = node_identity::take(&config.node.directory, wanted.as_ref())?;
    let server = Server::bind(settings::server(config), options.clock.clone()).await?;
    let address = server.address();
    let remote = if config.coordinator.role == Role::Node { Some(cluster::client(config)?) } else { None };
    let running = Running {
        url: settings::url(config, address),
        tasks: TaskGroup::new(),
        metrics: Arc::new(Metrics::new()),
        service: Arc::new(OnceLock::new()),
        locator: remote.clone().map(|client| cluster::locator(client, identity.node.clone())),
        remote,
        coordinator: (config.coordinator.role != Role::Node).then(|| Arc::new(OnceLock::new())),
        health: Arc::new(OnceLock::new()),
        memory: Arc::new(OnceLock::new()),
        identity,
        admin_token_hash,
        options: options.clone(),
    };
    tracing::info!(node = %running.identity.node, life = %running.identity.life, %address, url = running.url, "starting");
    let api = router(running.api_parts());
    let serving = server.serve(api, options.shutdown.clone());
    let (have_finished, started) = Box::pin(async { tokio::join!(serving, running.start_and_wait(address)) }).await;
    let have_closed = running.close().await;
    started?;
    Ok(Ended { is_clean: have_finished && have_closed })
}

impl Running {
    fn api_parts(&self) -> ApiParts {
        let health = self.health.clone();
        ApiParts {
            config: settings::http(&self.options.config),
            service: self.service.clone(),
            coordinator: self.coordinator.clone(),
            locator: self.locator.clone(),
            clock: self.options.clock.clone(),
            tasks: self.tasks.clone(),
            shutdown: self.options.shutdown.clone(),
            observer: Arc::new(Observer::new(self.metrics.clone())),
            memory: self.memory.clone(),
            health: Arc::new(move || health.get().map(|ask| ask()).unwrap_or_default()),
        }
    }

    /// Starts, says so, and waits for the wish to end; a start that fails is that wish.
    async fn start_and_wait(&self, address: std::net::SocketAddr) -> Result<(), NodeError> {
        let shutdown = &self.options.shutdown;
        let started = tokio::select! {
            biased;
            () = shutdown.begun() => Err(NodeError::EndedEarly),
            started = self.start() => started,
        };
        let told = started.and_then(|service| {
            self.tell(address)?;
            Ok(service)
        });
        match told {
            Ok(service) => {
                shutdown.begun().await;
                service.begin_drain();
                Ok(())
            }
            Err(error) => {
                shutdown.end_now();
                Err(error)
            }
        }
    }

    async fn start(&self) -> Result<Arc<PartitionService>, NodeError> {
        let config = &self.options.config;
        let surroundings = Surroundings {
            clock: self.options.clock.clone(),
            tasks: self.tasks.clone(),
            node: self.identity.node.clone(),
            life: self.identity.life,
        };
        let mut stack = store_stack::open(config, &surroundings, &self.metrics).await?;
        if config.coordinator.role == Role::Coordinator {
            (stack.pipelined, stack.blocking, stack.durable) = (None, None, None);
        }
        // Set once: there is one start.
        let _ = self.health.set(stack.health.clone());
        let _ = self.memory.set(stack.memory.clone());
        let (parts, link) = self.service_parts(stack)?;
        let (catalog, random) = (parts.local_catalog.clone(), parts.random.clone());
        let service = PartitionService::start(settings::service(config, self.admin_token_hash), parts).await?;
        self.start_coordinator(&service, catalog, random).await?;
        if config.coordinator.role != Role::Coordinator {
            let (clock, interval) = (self.options.clock.clone(), config.coordinator.heartbeat_interval.get());
            Announcer { link, service: service.clone(), clock, interval }.start(&self.tasks);
        }
        self.metrics.register_sources(observer::service_sources(&service));
        let _ = self.service.set(service.clone());
        Ok(service)
    }

    async fn start_coordinator(
        &self,
        service: &Arc<PartitionService>,
        catalog: Arc<dyn Catalog>,
        random: Arc<dyn RandomSource>,
    ) -> Result<(), NodeError> {
        let Some(slot) = &self.coordinator else { return Ok(()) };
        let parts = CoordinatorParts {
            catalog,
            authority: Arc::new(ServiceAuthority(service.clone())),
            clock: self.options.clock.clone(),
            tasks: self.tasks.clone(),
            jitter: Arc::new(RandomJitter(random)),
        };
        let coordinator = Coordinator::start(settings::coordinator(&self.options.config), parts).await?;
        let _ = slot.set(coordinator);
        Ok(())
    }

    /// The way to the coordinator.
    fn link(&self) -> Link {
        match (&self.remote, &self.coordinator) {
            (Some(client), _) => Link::There(client.clone()),
            (None, slot) => Link::Here(slot.clone().unwrap_or_default()),
        }
    }

    fn arbiter(&self, link: &Link) -> Arc<dyn SealArbiter> {
        let (tasks, node, life) = (self.tasks.clone(), self.identity.node.clone(), self.identity.life);
        match link {
            // One process is a whole service, and no other node may join it.
            Link::Here(_) => Arc::new(LocalArbiter::new()),
            Link::There(client) => Arc::new(RemoteArbiter { client: client.clone(), tasks, node, life }),
        }
    }

    fn service_parts(&self, mut stack: StoreStack) -> Result<(ServiceParts, Link), NodeError> {
        let random = SeededRandom::from_system().map_err(|_| IdentityError::Random)?;
        let link = self.link();
        let shared_catalog = match (&link, stack.shared_catalog.take()) {
            (_, Some(shared)) => Some(shared),
            (Link::There(client), None) => Some(Arc::new(RemoteCatalog(client.clone())) as Arc<dyn Catalog>),
            (Link::Here(_), None) if self.options.config.coordinator.role == Role::Coordinator => {
                Some(Arc::new(SharedCatalog::new(stack.local_catalog.clone())) as Arc<dyn Catalog>)
            }
            (Link::Here(_), None) => None,
        };
        let parts = ServiceParts {
            stores: Stores { pipelined: stack.pipelined, blocking: stack.blocking, durable: stack.durable },
            local_catalog: stack.local_catalog,
            shared_catalog,
            medium: stack.medium,
            arbiter: self.arbiter(&link),
            clock: self.options.clock.clone(),
            tasks: self.tasks.clone(),
            node: self.identity.node.clone(),
            life: self.identity.life,
            url: self.url.clone(),
            random: Arc::new(random),
        };
        Ok((parts, link))
    }

    fn tell(&self, address: std::net::SocketAddr) -> Result<(), NodeError> {
        tracing::info!(url = self.url, "ready");
        let Some(path) = &self.options.ready_file else { return Ok(()) };
        let document = ReadyDocument {
            url: self.url.clone(),
            address: address.to_string(),
            node: self.identity.node.to_string(),
            life: self.identity.life.to_string(),
            pid: std::process::id(),
        };
        document.write(path).map_err(NodeError::ReadyFile)
    }

    /// Closes the stores and ends background work. Answers whether all of it ended in its time.
    async fn close(&self) -> bool {
        let (clock, patience) = (&self.options.clock, self.options.config.shutdown.close.get());
        let stores_closed = match self.service.get() {
            None => true,
            Some(service) => match within(clock.as_ref(), patience, service.close()).await {
                Some(Ok(())) => true,
                Some(Err(error)) => {
                    tracing::warn!(%error, "a store did not close cleanly");
                    false
                }
                None => {
                    tracing::warn!("the stores did not close in time");
                    false
                }
            },
        };
        let tasks_ended = self.tasks.close(clock.as_ref(), patience).await;
        tracing::info!(stores_closed, tasks_ended, "ended");
        stores_closed && tasks_ended
    }
}

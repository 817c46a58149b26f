//! A node in this process: memory, a local disk, and a directory in place of an object store.

use super::client::Client;
use super::recovery;
use forebay::coordinator::CoordinatorConfig;
use forebay::http::{ApiParts, HttpConfig, NoObserver, router};
use forebay::server::{Server, ServerConfig};
use forebay::service::{LocalArbiter, PartitionService, RandomSource, ServiceConfig, ServiceParts, Stores, hash_token};
use forebay::shutdown::Shutdown;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use store_api::{ByteBudget, Catalog, NodeId, NodeLife, SystemClock, TaskGroup};
use tempfile::TempDir;
use tokio::task::JoinHandle;

static NEXT_LIFE: AtomicU64 = AtomicU64::new(0xa1);

/// How a node is set up.
pub(crate) struct NodeOptions {
    pub(crate) admin_token: Option<&'static str>,
    pub(crate) http: HttpConfig,
    pub(crate) server: ServerConfig,
    pub(crate) service: ServiceConfig,
    pub(crate) coordinator: CoordinatorConfig,
    pub(crate) memory_bytes: u64,
    pub(crate) disk_budget_bytes: u64,
    pub(crate) object_budget_bytes: u64,
    /// Whether there is a disk and an object store.
    pub(crate) has_media: bool,
    /// Whether the service is there from the start.
    pub(crate) is_started: bool,
    /// What it is called.
    pub(crate) node: &'static str,
    /// A directory in place of an object store that several nodes share, catalog included.
    pub(crate) shared_objects: Option<PathBuf>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            admin_token: None,
            http: HttpConfig::default(),
            server: ServerConfig { listen: SocketAddr::from(([127, 0, 0, 1], 0)), ..ServerConfig::default() },
            service: ServiceConfig::default(),
            coordinator: CoordinatorConfig::default(),
            memory_bytes: 64 << 20,
            disk_budget_bytes: 64 << 20,
            object_budget_bytes: 64 << 20,
            has_media: true,
            is_started: true,
            node: "node-1",
            shared_objects: None,
        }
    }
}

/// A running node. Dropping it ends it at once.
pub(crate) struct Node {
    pub(crate) address: SocketAddr,
    pub(crate) shutdown: Shutdown,
    pub(crate) service: Option<Arc<PartitionService>>,
    served: Option<JoinHandle<bool>>,
    tasks: TaskGroup,
    directory: Option<TempDir>,
}

struct Random;

impl RandomSource for Random {
    fn next_u64(&self) -> u64 {
        rand::random()
    }
}

impl Node {
    pub(crate) async fn start() -> Self {
        Self::start_with(NodeOptions::default()).await
    }

    pub(crate) async fn start_with(options: NodeOptions) -> Self {
        Self::start_on(tempfile::tempdir().expect("a directory"), options).await
    }

    /// Starts a node on a directory that may hold what an earlier one left.
    pub(crate) async fn start_on(directory: TempDir, options: NodeOptions) -> Self {
        let (tasks, shutdown, clock) = (TaskGroup::new(), Shutdown::new(), SystemClock::shared());
        let server = Server::bind(options.server.clone(), clock.clone()).await.expect("bound");
        let address = server.address();
        let (slot, memory) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
        let coordinator_slot = Arc::new(OnceLock::new());
        let mut service = None;
        if options.is_started {
            let (started, budgets, catalog) = start_service(directory.path(), &options, &tasks, address).await;
            let coordinator = recovery::start(options.coordinator.clone(), started.clone(), catalog, &tasks).await;
            assert!(slot.set(started.clone()).is_ok() && memory.set(budgets).is_ok() && coordinator_slot.set(coordinator).is_ok());
            service = Some(started);
        }
        let parts = ApiParts {
            config: options.http.clone(),
            service: slot,
            coordinator: Some(coordinator_slot),
            locator: None,
            clock,
            tasks: tasks.clone(),
            shutdown: shutdown.clone(),
            observer: Arc::new(NoObserver),
            memory,
            health: Arc::new(Vec::new),
        };
        let served = tokio::spawn(server.serve(router(parts), shutdown.clone()));
        Self { address, shutdown, service, served: Some(served), tasks, directory: Some(directory) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Options for the next life of this node, on the same port.
    pub(crate) fn restarted(&self) -> NodeOptions {
        let server = ServerConfig { listen: self.address, ..ServerConfig::default() };
        NodeOptions { server, ..NodeOptions::default() }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.url(), None)
    }

    pub(crate) fn client_with(&self, token: &str) -> Client {
        Client::new(self.url(), Some(token.to_owned()))
    }

    /// Waits for the end of the server; answers whether all requests could finish.
    pub(crate) async fn ended(&mut self) -> bool {
        self.served.take().expect("waited for once").await.expect("no panic")
    }

    /// Ends the node in good order and hands on its directory.
    pub(crate) async fn stop(mut self) -> TempDir {
        self.shutdown.end_now();
        self.ended().await;
        if let Some(service) = self.service.take() {
            service.close().await.expect("closed");
        }
        self.tasks.close(&SystemClock::new(), std::time::Duration::from_secs(10)).await;
        self.directory.take().expect("stopped once")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shutdown.end_now();
        self.tasks.cancel();
    }
}

async fn start_service(
    directory: &Path,
    options: &NodeOptions,
    tasks: &TaskGroup,
    address: SocketAddr,
) -> (Arc<PartitionService>, Vec<ByteBudget>, Arc<dyn Catalog>) {
    let (clock, node) = (SystemClock::shared(), NodeId::new(options.node).expect("an id"));
    let life = NodeLife::new(NEXT_LIFE.fetch_add(1, Ordering::Relaxed) << 32 | u64::from(rand::random::<u32>()));
    let memory = store_memory::MemoryStore::open(
        store_memory::Config {
            memory_bytes: options.memory_bytes,
            job_memory_bytes: options.memory_bytes,
            spill: options
                .has_media
                .then(|| store_memory::SpillConfig { reserve_bytes: 0, ..store_memory::SpillConfig::new(vec![directory.join("spill")]) }),
            ..store_memory::Config::default()
        },
        store_memory::Environment { clock: clock.clone(), tasks: tasks.clone(), node: node.clone(), life },
    );
    let memory = memory.await.expect("a memory store");
    let mut budgets = vec![memory.budget()];
    let mut stores = Stores { pipelined: Some(memory), ..Stores::default() };
    let config = store_disk::Config {
        write_budget_bytes: options.disk_budget_bytes,
        per_job_budget_bytes: options.disk_budget_bytes,
        max_chunk_bytes: options.disk_budget_bytes.min(16 << 20),
        reserve_bytes: 0,
        reserve_per_mille: 0,
        ..store_disk::Config::new(vec![directory.join("disk")], directory.join("index"))
    };
    let environment = store_disk::Environment { clock: clock.clone(), tasks: tasks.clone(), node: node.clone(), life };
    let disk = store_disk::DiskStore::open(config, environment).expect("a disk store");
    let local_catalog: Arc<dyn Catalog> = Arc::new(disk.catalog());
    let mut shared_catalog = None;
    if options.has_media {
        budgets.push(disk.budget());
        stores.blocking = Some(disk);
        let object = object_store(directory, options, tasks, life).await;
        budgets.push(object.budget());
        shared_catalog = options.shared_objects.is_some().then(|| Arc::new(object.catalog()) as Arc<dyn Catalog>);
        stores.durable = Some(object);
    }
    let parts = ServiceParts {
        stores,
        local_catalog: local_catalog.clone(),
        shared_catalog,
        medium: None,
        arbiter: Arc::new(LocalArbiter::new()),
        clock,
        tasks: tasks.clone(),
        node,
        life,
        url: format!("http://{address}"),
        random: Arc::new(Random),
    };
    let config = ServiceConfig { admin_token_hash: options.admin_token.map(hash_token), ..options.service.clone() };
    (PartitionService::start(config, parts).await.expect("started"), budgets, local_catalog)
}

async fn object_store(directory: &Path, options: &NodeOptions, tasks: &TaskGroup, life: NodeLife) -> Arc<store_object::ObjectStore> {
    let path = options.shared_objects.clone().unwrap_or_else(|| directory.join("objects"));
    let store = store_object::StoreConfig::Directory(store_object::DirectoryConfig { path });
    let config = store_object::Config {
        memory_bytes: options.object_budget_bytes,
        part_bytes: 64 << 10,
        max_part_bytes: 1 << 20,
        inline_bytes: 4 << 10,
        ..store_object::Config::new(store)
    };
    let environment = store_object::Environment {
        clock: SystemClock::shared(),
        tasks: tasks.clone(),
        node: NodeId::new(options.node).expect("an id"),
        life,
    };
    store_object::ObjectStore::open(config, environment).await.expect("an object store")
}

//! The stores of a node, built from its configuration and wrapped in layers.
//!
//! ```text
//!   caller → Metered → Traced → Deadline → backend
//! ```
//! Counting is outermost, so that what the deadline ended is counted and told. All stores share one
//! budget for bytes on their way to readers. `gauges` says what is held where.

mod gauges;

use crate::config::{Budgets, Config, ConfigError, ObjectKind, Sync, secret_of};
use crate::layer::{Deadline, Metered, Traced};
use crate::metrics::Metrics;
use std::sync::Arc;
use store_api::{
    ByteBudget, Catalog, NodeId, NodeLife, Operation, ReadBudget, SharedClock, SharedMedium, SharedStore, StoreError, StoreErrorKind,
    SyncLevel, TaskGroup,
};
use store_disk::DiskStore;
use store_memory::MemoryStore;
use store_object::ObjectStore;

/// Memory for writing when blocking partitions are off: the index is there all the same.
const IDLE_DISK_BUDGET: u64 = 16 * 1024 * 1024;
/// Largest chunk of every store.
const MAX_CHUNK_BYTES: u64 = 16 * 1024 * 1024;

/// Why the stores cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// A secret cannot be read.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A store refuses.
    #[error("the {what} cannot be opened")]
    Store {
        /// Which store.
        what: &'static str,
        /// Why.
        source: StoreError,
    },
}

/// What the stores need from their surroundings.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// Time.
    pub clock: SharedClock,
    /// Background work.
    pub tasks: TaskGroup,
    /// The node.
    pub node: NodeId,
    /// This life of it.
    pub life: NodeLife,
}

/// Asks what is wrong with the stores, one line each. No I/O.
pub type Health = Arc<dyn Fn() -> Vec<String> + Send + std::marker::Sync>;

/// The stores of a node.
pub struct StoreStack {
    /// Keeps pipelined partitions.
    pub pipelined: Option<SharedStore>,
    /// Keeps blocking partitions.
    pub blocking: Option<SharedStore>,
    /// Keeps durable partitions.
    pub durable: Option<SharedStore>,
    /// The catalog on this node's disk.
    pub local_catalog: Arc<dyn Catalog>,
    /// The catalog in the object store.
    pub shared_catalog: Option<Arc<dyn Catalog>>,
    /// The object store, for taking away what dead jobs left in it.
    pub medium: Option<Arc<dyn SharedMedium>>,
    /// What is wrong.
    pub health: Health,
    /// The memory budgets of the stores that are on, and of their reads.
    pub memory: Vec<ByteBudget>,
}

/// Opens the stores and wraps them. Takes as long as the index needs to open and the object store
/// to answer. Errors: both of [`StackError`]; what was opened before is dropped.
pub async fn open(config: &Config, surroundings: &Surroundings, metrics: &Arc<Metrics>) -> Result<StoreStack, StackError> {
    let reads = ReadBudget::new(Budgets::of(config).reads.bytes(), config.limits.read_patience.get(), surroundings.clock.clone());
    let disk = open_disk(config, surroundings, &reads).await?;
    let memory = if config.memory.enabled { Some(open_memory(config, surroundings, &reads).await?) } else { None };
    let object = open_object(config, surroundings, &reads).await?;
    let wrap = |store: SharedStore| wrap(store, config, surroundings, metrics);
    metrics.register_sources(gauges::sources(config, &reads, memory.as_ref(), &disk, object.as_ref()));
    let shared_catalog = object.as_ref().map(|store| Arc::new(store.catalog()) as Arc<dyn Catalog>);
    let budgets = [memory.as_ref().map(|store| store.budget()), config.disk.enabled.then(|| disk.budget())];
    let budgets = budgets.into_iter().flatten().chain(object.iter().map(|store| store.budget())).chain([reads.budget()]).collect();
    Ok(StoreStack {
        pipelined: memory.map(|store| wrap(store)),
        blocking: config.disk.enabled.then(|| wrap(disk.clone())),
        medium: object.clone().map(|store| store as Arc<dyn SharedMedium>),
        durable: object.map(|store| wrap(store)),
        local_catalog: Arc::new(disk.catalog()),
        shared_catalog,
        health: health(disk),
        memory: budgets,
    })
}

fn wrap(store: SharedStore, config: &Config, surroundings: &Surroundings, metrics: &Arc<Metrics>) -> SharedStore {
    let (clock, limits) = (&surroundings.clock, &config.limits);
    let bounded = Arc::new(Deadline::new(store, clock.clone(), limits.store_call.get(), limits.store_stall.get()));
    Arc::new(Metered::new(Arc::new(Traced::new(bounded)), metrics.clone(), clock.clone()))
}

fn refused(what: &'static str) -> impl Fn(StoreError) -> StackError {
    move |source| StackError::Store { what, source }
}

async fn open_memory(config: &Config, surroundings: &Surroundings, reads: &ReadBudget) -> Result<Arc<MemoryStore>, StackError> {
    let Surroundings { clock, tasks, node, life } = surroundings.clone();
    let environment = store_memory::Environment { clock, tasks, node, life };
    let settings = store_memory::Config { reads: Some(reads.clone()), ..memory_config(config) };
    MemoryStore::open(settings, environment).await.map_err(refused("store of pipelined partitions"))
}

fn memory_config(config: &Config) -> store_memory::Config {
    let budget = Budgets::of(config).pipelined;
    let spill = store_memory::SpillConfig {
        is_synced: config.memory.spill_sync,
        reserve_bytes: config.disk.reserve.bytes(),
        ..store_memory::SpillConfig::new(config.spill_directories())
    };
    store_memory::Config {
        memory_bytes: budget.bytes(),
        job_memory_bytes: config.memory.job_budget.unwrap_or(budget).min(budget).bytes(),
        max_chunk_bytes: MAX_CHUNK_BYTES,
        retention_deadline: config.memory.retention_deadline.get(),
        spill: config.memory.spill.then_some(spill),
        ..store_memory::Config::default()
    }
}

async fn open_disk(config: &Config, surroundings: &Surroundings, reads: &ReadBudget) -> Result<Arc<DiskStore>, StackError> {
    let what = "store of blocking partitions";
    let Surroundings { clock, tasks, node, life } = surroundings.clone();
    let settings = store_disk::Config { reads: Some(reads.clone()), ..disk_config(config) };
    let environment = store_disk::Environment { clock, tasks: tasks.clone(), node, life };
    let opened = tasks.run_blocking(move || DiskStore::open(settings, environment)).await;
    let panicked = || StoreError::new(StoreErrorKind::Internal, Operation::Recover, "opening");
    opened.unwrap_or_else(|| Err(panicked())).map_err(refused(what))
}

fn disk_config(config: &Config) -> store_disk::Config {
    let disk = &config.disk;
    let budget = Budgets::of(config).blocking.bytes().max(IDLE_DISK_BUDGET);
    store_disk::Config {
        sync: match disk.sync {
            Sync::Full => SyncLevel::Full,
            Sync::Data => SyncLevel::Data,
            Sync::None => SyncLevel::None,
        },
        write_budget_bytes: budget,
        per_job_budget_bytes: disk.job_budget.map_or(budget, |size| size.bytes().min(budget)),
        max_chunk_bytes: MAX_CHUNK_BYTES,
        reserve_bytes: disk.reserve.bytes(),
        reserve_per_mille: disk.reserve_per_mille,
        n_lanes: disk.lanes,
        lane_patience: disk.lane_patience.get(),
        n_open_files: disk.open_files,
        index_cache_bytes: config.index_cache().as_usize(),
        ..store_disk::Config::new(config.disk_directories(), config.index_directory())
    }
}

async fn open_object(config: &Config, surroundings: &Surroundings, reads: &ReadBudget) -> Result<Option<Arc<ObjectStore>>, StackError> {
    let Some(settings) = object_config(config)? else { return Ok(None) };
    let settings = store_object::Config { reads: Some(reads.clone()), ..settings };
    let Surroundings { clock, tasks, node, life } = surroundings.clone();
    let environment = store_object::Environment { clock, tasks, node, life };
    let opened = ObjectStore::open(settings, environment).await;
    opened.map(Some).map_err(refused("store of durable partitions"))
}

fn object_config(config: &Config) -> Result<Option<store_object::Config>, ConfigError> {
    let object = &config.object;
    let Some(store) = object_store(config)? else { return Ok(None) };
    let budgets = Budgets::of(config);
    Ok(Some(store_object::Config {
        store,
        prefix: object.prefix.clone(),
        memory_bytes: budgets.durable.bytes(),
        manifest_cache_bytes: config.manifest_cache().bytes(),
        part_bytes: object.part_size.bytes(),
        uploads_per_attempt: object.uploads_per_attempt,
        manifest_age_ms: object.manifest_age.as_ms(),
        answer_limit_ms: object.answer_limit.as_ms(),
        lists_at_start: object.list_at_start,
        ..store_object::Config::default()
    }))
}

fn object_store(config: &Config) -> Result<Option<store_object::StoreConfig>, ConfigError> {
    let object = &config.object;
    let secret = |inline: Option<&crate::config::Secret>| inline.map(|secret| store_object::Secret::new(secret.reveal()));
    let store = match object.kind {
        ObjectKind::None => return Ok(None),
        ObjectKind::S3 => {
            let (s3, setting) = (&object.s3, "object.s3.secret_access_key_file");
            let key = secret_of(s3.secret_access_key.as_ref(), s3.secret_access_key_file.as_deref(), setting)?;
            store_object::StoreConfig::S3(store_object::S3Config {
                bucket: s3.bucket.clone(),
                region: s3.region.clone(),
                endpoint: s3.endpoint.clone(),
                allow_http: s3.allow_http,
                virtual_hosted: s3.virtual_hosted,
                access_key_id: s3.access_key_id.clone(),
                secret_access_key: secret(key.as_ref()),
                session_token: secret(s3.session_token.as_ref()),
                upload_checksum: s3.upload_checksum,
            })
        }
        ObjectKind::Gcs => store_object::StoreConfig::Gcs(store_object::GcsConfig {
            bucket: object.gcs.bucket.clone(),
            endpoint: object.gcs.endpoint.clone(),
            allow_http: object.gcs.allow_http,
            service_account_path: object.gcs.service_account_file.as_ref().map(|path| path.display().to_string()),
            service_account_key: None,
            skip_signature: object.gcs.skip_signature,
        }),
        ObjectKind::Azure => {
            let azure = &object.azure;
            let key = secret_of(azure.access_key.as_ref(), azure.access_key_file.as_deref(), "object.azure.access_key_file")?;
            store_object::StoreConfig::Azure(store_object::AzureConfig {
                account: azure.account.clone(),
                container: azure.container.clone(),
                endpoint: azure.endpoint.clone(),
                allow_http: azure.allow_http,
                emulator: azure.emulator,
                access_key: secret(key.as_ref()),
                sas: secret(azure.sas.as_ref()),
            })
        }
        ObjectKind::Directory => store_object::StoreConfig::Directory(store_object::DirectoryConfig { path: config.object_directory() }),
    };
    Ok(Some(store))
}

fn health(disk: Arc<DiskStore>) -> Health {
    Arc::new(move || {
        let numbered = disk.directories().into_iter().enumerate();
        // Numbers, no paths: anyone may ask.
        let failing = numbered.filter(|(_, status)| format!("{:?}", status.state) != "Usable");
        failing.map(|(number, status)| format!("data directory {number}: {:?}", status.state)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ByteSize, Secret, TimeSpan};

    /// M4: every time and size reaches the store that it is for, in the store's unit.
    #[test]
    fn times_and_sizes_arrive_in_the_units_of_the_stores() {
        let mut config = Config::embedded();
        config.memory.budget = Some(ByteSize::mib(32));
        config.memory.job_budget = Some(ByteSize::mib(64));
        config.memory.retention_deadline = TimeSpan::secs(2);
        config.disk.budget = Some(ByteSize::mib(24));
        config.disk.job_budget = Some(ByteSize::mib(20));
        config.disk.reserve = ByteSize::mib(3);
        config.disk.lane_patience = TimeSpan::secs(2);
        config.disk.index_cache = Some(ByteSize::mib(5));
        config.object.budget = Some(ByteSize::mib(40));
        config.object.part_size = ByteSize::mib(7);
        config.object.manifest_age = TimeSpan::secs(2);
        config.object.answer_limit = TimeSpan::secs(2);
        let memory = memory_config(&config);
        assert_eq!((memory.memory_bytes, memory.job_memory_bytes), (32 << 20, 32 << 20), "one job gets no more than all");
        assert_eq!(memory.retention_deadline.as_millis(), 2000);
        let disk = disk_config(&config);
        assert_eq!((disk.write_budget_bytes, disk.per_job_budget_bytes, disk.reserve_bytes), (24 << 20, 20 << 20, 3 << 20));
        assert_eq!((disk.lane_patience.as_millis(), disk.index_cache_bytes), (2000, 5 << 20));
        let object = object_config(&config).unwrap().unwrap();
        assert_eq!((object.memory_bytes, object.part_bytes), (40 << 20, 7 << 20));
        assert_eq!((object.manifest_age_ms, object.answer_limit_ms), (2000, 2000));
        assert_eq!(object.validate(), Ok(()));
    }

    #[test]
    fn a_secret_comes_from_its_file_and_is_not_printed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        std::fs::write(&path, "MARKER1\n").unwrap();
        let mut config = Config::default();
        config.object.kind = ObjectKind::S3;
        config.object.s3.secret_access_key_file = Some(path);
        config.object.s3.session_token = Some(Secret::new("MARKER2"));
        let object = object_config(&config).unwrap().unwrap();
        assert!(matches!(&object.store, store_object::StoreConfig::S3(s3) if s3.secret_access_key.as_ref().unwrap().reveal() == "MARKER1"));
        assert!(!format!("{object:?}").contains("MARKER"));
    }

    #[test]
    fn without_an_object_store_there_is_none() {
        assert_eq!(object_config(&Config::default()), Ok(None));
    }
}

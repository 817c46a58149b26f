//! The store suite over memory, with and without uploads in parts, and over a directory.
#![expect(clippy::unwrap_used, reason = "a panic is a failed test")]

use forebay_store_object::{Config, DirectoryConfig, Environment, ObjectStore, Parts, StoreConfig};
use object_store::memory::InMemory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use store_api::{DatasetKind, NodeId, NodeLife, Scope, SystemClock, TaskGroup};
use store_testkit::{Instance, StoreFactory, conformance_suite};

const KIB: u64 = 1024;

fn environment(lives: &AtomicU64) -> Environment {
    Environment {
        clock: SystemClock::shared(),
        tasks: TaskGroup::new(),
        node: NodeId::new("node-1").unwrap(),
        life: NodeLife::new(lives.fetch_add(1, Ordering::Relaxed)),
    }
}

/// Small parts and blocks, so that the cases meet every border.
fn config(store: StoreConfig, memory_bytes: u64) -> Config {
    Config {
        memory_bytes,
        part_bytes: 64 * KIB,
        max_part_bytes: 128 * KIB,
        inline_bytes: 4 * KIB,
        block_bytes: 16 * KIB,
        read_bytes: 100 * KIB,
        ..Config::new(store)
    }
}

#[derive(Default)]
struct Memory {
    has_parts: bool,
    lives: AtomicU64,
}

impl Memory {
    async fn open(&self, medium: Arc<InMemory>, memory_bytes: u64) -> Instance {
        let parts: Option<Parts> = self.has_parts.then(|| medium.clone() as Parts);
        let config = config(StoreConfig::Memory, memory_bytes);
        let store = ObjectStore::open_with(medium.clone(), parts, Scope::ObjectStore, config, environment(&self.lives)).await;
        Instance::new(store.unwrap()).on(medium)
    }
}

#[async_trait::async_trait]
impl StoreFactory for Memory {
    fn kind(&self) -> DatasetKind {
        DatasetKind::Durable
    }

    async fn fresh(&self) -> Instance {
        self.open(Arc::new(InMemory::new()), 64 << 20).await
    }

    async fn fresh_small(&self) -> Instance {
        self.open(Arc::new(InMemory::new()), self.small_budget_bytes()).await
    }

    async fn reopen(&self, instance: Instance) -> Option<Instance> {
        let medium: Arc<InMemory> = instance.into_medium()?;
        Some(self.open(medium, 64 << 20).await)
    }
}

#[derive(Default)]
struct Directory {
    lives: AtomicU64,
}

impl Directory {
    async fn open(&self, folder: tempfile::TempDir, memory_bytes: u64) -> Instance {
        let directory = DirectoryConfig { path: folder.path().to_owned() };
        let config = config(StoreConfig::Directory(directory), memory_bytes);
        let store = ObjectStore::open(config, environment(&self.lives)).await;
        Instance::new(store.unwrap()).on(folder)
    }
}

#[async_trait::async_trait]
impl StoreFactory for Directory {
    fn kind(&self) -> DatasetKind {
        DatasetKind::Durable
    }

    async fn fresh(&self) -> Instance {
        self.open(tempfile::tempdir().unwrap(), 64 << 20).await
    }

    async fn fresh_small(&self) -> Instance {
        self.open(tempfile::tempdir().unwrap(), self.small_budget_bytes()).await
    }

    fn pace(&self) -> store_testkit::Pace {
        store_testkit::Pace::Slow
    }

    async fn reopen(&self, instance: Instance) -> Option<Instance> {
        let folder: tempfile::TempDir = instance.into_medium()?;
        Some(self.open(folder, 64 << 20).await)
    }
}

conformance_suite!(memory, Memory { has_parts: true, lives: AtomicU64::new(1) });
conformance_suite!(memory_without_parts, Memory { has_parts: false, lives: AtomicU64::new(1) });
conformance_suite!(directory, Directory { lives: AtomicU64::new(1) });

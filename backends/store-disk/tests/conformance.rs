//! The conformance suite of all stores, on directories that are opened again.
#![expect(clippy::expect_used, reason = "a factory that cannot make a store fails its case")]

use async_trait::async_trait;
use forebay_store_disk::{Config, DiskStore, Environment};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store_api::clock::within;
use store_api::{DatasetKind, NodeId, NodeLife, SystemClock, TaskGroup};
use store_testkit::{Instance, StoreFactory, conformance_suite};
use tempfile::TempDir;

/// Opens stores in temporary directories; each opening is a new life.
#[derive(Default)]
struct Disk {
    n_lives: AtomicU64,
}

impl Disk {
    fn open(&self, root: &TempDir, budget_bytes: u64) -> Arc<DiskStore> {
        self.try_open(root, budget_bytes).expect("the directories can be opened")
    }

    fn try_open(&self, root: &TempDir, budget_bytes: u64) -> Result<Arc<DiskStore>, store_api::StoreError> {
        let mut config = Config::new(vec![root.path().join("one"), root.path().join("two")], root.path().join("index"));
        config.write_budget_bytes = budget_bytes;
        config.per_job_budget_bytes = budget_bytes;
        let life = NodeLife::new((self.n_lives.fetch_add(1, Ordering::SeqCst) + 1) << 16);
        let node = NodeId::new("node").expect("a legal id");
        DiskStore::open(config, Environment { clock: SystemClock::shared(), tasks: TaskGroup::new(), node, life })
    }
}

#[async_trait]
impl StoreFactory for Disk {
    fn kind(&self) -> DatasetKind {
        DatasetKind::Blocking
    }

    async fn fresh(&self) -> Instance {
        let root = TempDir::new().expect("a temporary directory");
        Instance::new(self.open(&root, 96 << 20)).on(root)
    }

    async fn fresh_small(&self) -> Instance {
        let root = TempDir::new().expect("a temporary directory");
        Instance::new(self.open(&root, self.small_budget_bytes())).on(root)
    }

    async fn reopen(&self, instance: Instance) -> Option<Instance> {
        let root = instance.into_medium::<TempDir>()?;
        // Work of the former store that was under way lets go of the locks when it ends.
        let clock = SystemClock::shared();
        let opened = within(clock.as_ref(), Duration::from_secs(10), async {
            loop {
                match self.try_open(&root, 96 << 20) {
                    Ok(store) => return store,
                    Err(_) => clock.sleep(Duration::from_millis(5)).await,
                }
            }
        });
        let store = opened.await?;
        Some(Instance::new(store).on(root))
    }
}

conformance_suite!(disk, Disk::default());

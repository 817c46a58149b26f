//! The conformance suite against the pipelined store, once per retention.

#![expect(clippy::unwrap_used, reason = "a store that cannot be made fails the test")]

use forebay_store_memory::{Config, Environment, MemoryStore, SpillConfig};
use store_api::{DatasetKind, NodeId, NodeLife, Retention, SystemClock, TaskGroup};
use store_testkit::{Instance, StoreFactory, conformance_suite};

struct Memory(Retention);

#[async_trait::async_trait]
impl StoreFactory for Memory {
    fn kind(&self) -> DatasetKind {
        DatasetKind::Pipelined(self.0)
    }

    async fn fresh(&self) -> Instance {
        open(64 << 20).await
    }

    async fn fresh_small(&self) -> Instance {
        open(self.small_budget_bytes()).await
    }
}

async fn open(memory_bytes: u64) -> Instance {
    let root = tempfile::tempdir().unwrap();
    let spill = SpillConfig { reserve_bytes: 0, batch_bytes: 1 << 18, ..SpillConfig::new(vec![root.path().join("spill")]) };
    let config = Config { memory_bytes, job_memory_bytes: memory_bytes, spill: Some(spill), ..Config::default() };
    let environment =
        Environment { clock: SystemClock::shared(), tasks: TaskGroup::new(), node: NodeId::new("n").unwrap(), life: NodeLife::new(1) };
    Instance::new(MemoryStore::open(config, environment).await.unwrap()).on(root)
}

conformance_suite!(until_acknowledged, Memory(Retention::UntilAcknowledged));
conformance_suite!(best_effort, Memory(Retention::BestEffort));
conformance_suite!(since_checkpoint, Memory(Retention::SinceCheckpoint));

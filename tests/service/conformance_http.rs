//! The store suite once more, through HTTP: a store that is a service behind a port, over memory,
//! disk and a directory in place of an object store.
//!
//! What cannot be asked over HTTP is left out by declaration: `not_applicable` of each suite prints
//! the cases and the need that is not met.

use crate::support::http_store::{HttpStore, Names, servers};
use crate::support::{Node, NodeOptions};
use std::sync::Arc;
use std::time::Duration;
use store_api::{DatasetKind, Retention, StoreClass};
use store_testkit::{Instance, Pace, Reach, StoreFactory, conformance_suite};
use tempfile::TempDir;

/// A node and what its data is called.
struct Medium {
    node: Node,
    names: Arc<Names>,
}

struct Remote(DatasetKind);

impl Remote {
    async fn start(&self, directory: TempDir, names: Arc<Names>, budget_bytes: u64) -> Instance {
        let started = servers().spawn(async move {
            let options = NodeOptions {
                memory_bytes: budget_bytes,
                disk_budget_bytes: budget_bytes,
                object_budget_bytes: budget_bytes,
                ..NodeOptions::default()
            };
            Node::start_on(directory, options).await
        });
        let node = started.await.expect("a node");
        let store = HttpStore::connect(node.url(), self.0, names.clone()).await;
        Instance::new(Arc::new(store)).on(Medium { node, names })
    }
}

#[async_trait::async_trait]
impl StoreFactory for Remote {
    fn kind(&self) -> DatasetKind {
        self.0
    }

    async fn fresh(&self) -> Instance {
        self.start(tempfile::tempdir().expect("a directory"), Arc::default(), 64 << 20).await
    }

    async fn fresh_small(&self) -> Instance {
        self.start(tempfile::tempdir().expect("a directory"), Arc::default(), self.small_budget_bytes()).await
    }

    async fn reopen(&self, instance: Instance) -> Option<Instance> {
        let Medium { node, names } = instance.into_medium::<Medium>()?;
        let directory = servers().spawn(node.stop()).await.expect("a node that ends");
        Some(self.start(directory, names, 64 << 20).await)
    }

    /// The service answers who won, whatever the medium.
    fn arbitrates(&self) -> bool {
        self.0.class() != StoreClass::Pipelined
    }

    fn pace(&self) -> Pace {
        Pace::Slow
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(20)
    }

    /// What a job holds can be asked for; the rest is as behind any wire.
    fn reach(&self) -> Reach {
        Reach { counts_held: true, ..Reach::REMOTE }
    }
}

conformance_suite!(until_acknowledged, Remote(DatasetKind::Pipelined(Retention::UntilAcknowledged)));
conformance_suite!(best_effort, Remote(DatasetKind::Pipelined(Retention::BestEffort)));
conformance_suite!(since_checkpoint, Remote(DatasetKind::Pipelined(Retention::SinceCheckpoint)));
conformance_suite!(blocking, Remote(DatasetKind::Blocking));
conformance_suite!(durable, Remote(DatasetKind::Durable));

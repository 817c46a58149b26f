//! A coordinator beside a node of this process, and the words of a driver.

use async_trait::async_trait;
use forebay::coordinator::{Coordinator, CoordinatorConfig, CoordinatorParts, JitterSource, JobAuthority, JobKey};
use forebay::service::PartitionService;
use serde_json::{Value, json};
use std::sync::Arc;
use store_api::{Catalog, SystemClock, TaskGroup};

struct Authority(Arc<PartitionService>);

#[async_trait]
impl JobAuthority for Authority {
    async fn is_over(&self, job: &JobKey) -> bool {
        self.0.job(&job.job).await.is_err()
    }
}

struct NoJitter;

impl JitterSource for NoJitter {
    fn draw(&self) -> f64 {
        0.0
    }
}

pub(crate) async fn start(
    config: CoordinatorConfig,
    service: Arc<PartitionService>,
    catalog: Arc<dyn Catalog>,
    tasks: &TaskGroup,
) -> Arc<Coordinator> {
    let parts = CoordinatorParts {
        catalog,
        authority: Arc::new(Authority(service)),
        clock: SystemClock::shared(),
        tasks: tasks.clone(),
        jitter: Arc::new(NoJitter),
    };
    Coordinator::start(config, parts).await.expect("a coordinator")
}

/// Three stages, two tasks each: map and join over `kind`, join and sink blocking and point by point.
pub(crate) fn three_stages(kind: &str) -> Value {
    json!({
        "vertices": [
            {"name": "map", "parallelism": 2}, {"name": "join", "parallelism": 2}, {"name": "sink", "parallelism": 2},
        ],
        "datasets": [
            {"dataset": "shuffle", "producer": "map", "kind": kind, "readers": [{"vertex": "join", "pattern": "all_to_all"}]},
            {"dataset": "joined", "producer": "join", "kind": "blocking", "readers": [{"vertex": "sink", "pattern": "pointwise"}]},
        ],
        "policy": {"restart": {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "5",
                               "restart-strategy.fixed-delay.delay": "0 ms"}},
    })
}

pub(crate) fn report(vertex: &str, index: u32, attempt: &str, state: &str) -> Value {
    json!({"vertex": vertex, "index": index, "attempt": attempt, "state": state})
}

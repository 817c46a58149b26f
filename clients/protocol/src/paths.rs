//! Route templates, as axum and OpenAPI write them, and the builder of concrete paths.

use store_api::ids::{AttemptId, DatasetId, JobId, PartitionId, SubpartitionIndex};

/// `GET`: alive.
pub const HEALTHZ: &str = "/healthz";
/// `GET`: ready to serve.
pub const READYZ: &str = "/readyz";
/// `GET`: Prometheus metrics.
pub const METRICS: &str = "/metrics";
/// `GET`: this node.
pub const NODE: &str = "/v1/node";
/// `POST`: stop admitting, finish, end.
pub const DRAIN: &str = "/v1/admin/drain";
/// `GET`: all jobs (admin).
pub const JOBS: &str = "/v1/jobs";
/// `PUT`, `GET`, `DELETE`: a job.
pub const JOB: &str = "/v1/jobs/{job}";
/// `POST`: renew the lease.
pub const LEASE: &str = "/v1/jobs/{job}/lease";
/// `POST`: states of many partitions.
pub const AVAILABILITY: &str = "/v1/jobs/{job}/availability";
/// `GET`: server-sent events.
pub const EVENTS: &str = "/v1/jobs/{job}/events";
/// `POST`: a checkpoint of the job is complete.
pub const CHECKPOINT: &str = "/v1/jobs/{job}/checkpoints/{checkpoint}/complete";
/// `GET`: the datasets of a job.
pub const DATASETS: &str = "/v1/jobs/{job}/datasets";
/// `PUT`, `GET`, `DELETE`: a dataset.
pub const DATASET: &str = "/v1/jobs/{job}/datasets/{dataset}";
/// `GET`: sealed partitions, paged.
pub const PARTITIONS: &str = "/v1/jobs/{job}/datasets/{dataset}/partitions";
/// `POST`: batch read.
pub const FETCH: &str = "/v1/jobs/{job}/datasets/{dataset}/fetch";
/// `POST`: consumers' positions.
pub const ACKNOWLEDGE: &str = "/v1/jobs/{job}/datasets/{dataset}/acknowledge";
/// `GET`, `DELETE`: a partition.
pub const PARTITION: &str = "/v1/jobs/{job}/datasets/{dataset}/partitions/{partition}";
/// `POST`: open an attempt.
pub const ATTEMPTS: &str = "/v1/jobs/{job}/datasets/{dataset}/partitions/{partition}/attempts";
/// `GET`, `DELETE`: an attempt.
pub const ATTEMPT: &str = "/v1/jobs/{job}/datasets/{dataset}/partitions/{partition}/attempts/{attempt}";
/// `PUT`: raw append.
pub const APPEND: &str = "/v1/jobs/{job}/datasets/{dataset}/partitions/{partition}/attempts/{attempt}/subpartitions/{subpartition}";
/// `POST`: framed append.
pub const FRAMES: &str = "/v1/jobs/{job}/datasets/{dataset}/partitions/{partition}/attempts/{attempt}/frames";
/// `POST`: seal.
pub const SEAL: &str = "/v1/jobs/{job}/datasets/{dataset}/partitions/{partition}/attempts/{attempt}/seal";
/// `GET`, `HEAD`: the bytes of a subpartition.
pub const READ: &str = "/v1/jobs/{job}/datasets/{dataset}/partitions/{partition}/subpartitions/{subpartition}";
/// `PUT`, `GET`: the shape of the job and how it recovers.
pub const GRAPH: &str = "/v1/jobs/{job}/graph";
/// `GET`, `POST`: states of tasks.
pub const TASKS: &str = "/v1/jobs/{job}/tasks";
/// `POST`: failures that are not those of one attempt.
pub const FAILURES: &str = "/v1/jobs/{job}/failures";
/// `POST`: a plan for what is wrong now, or would be.
pub const PLAN: &str = "/v1/jobs/{job}/plan";
/// `GET`: the plans of a job.
pub const PLANS: &str = "/v1/jobs/{job}/plans";
/// `GET`: one plan.
pub const PLAN_NUMBER: &str = "/v1/jobs/{job}/plans/{plan}";
/// `GET`: server-sent events about recovery.
pub const RECOVERY_EVENTS: &str = "/v1/jobs/{job}/recovery-events";
/// `POST`: where partitions are.
pub const LOCATE: &str = "/v1/jobs/{job}/locate";
/// `GET`: the workers of a job.
pub const WORKERS: &str = "/v1/jobs/{job}/workers";
/// `PUT`, `DELETE`: a worker.
pub const WORKER: &str = "/v1/jobs/{job}/workers/{worker}";
/// `POST`: a worker is alive.
pub const WORKER_HEARTBEAT: &str = "/v1/jobs/{job}/workers/{worker}/heartbeat";
/// `GET`: the nodes (admin).
pub const NODES: &str = "/v1/nodes";
/// `POST`: a node is alive (admin).
pub const NODE_HEARTBEAT: &str = "/v1/nodes/heartbeat";
/// `POST`: which attempt is the content (admin).
pub const SEAL_DECISION: &str = "/v1/nodes/seal-decision";
/// `POST`: the catalog that nodes without an object store share (admin).
pub const NODE_CATALOG: &str = "/v1/nodes/catalog";

/// Every route template.
pub const ALL: [&str; 38] = [
    HEALTHZ,
    READYZ,
    METRICS,
    NODE,
    DRAIN,
    JOBS,
    JOB,
    LEASE,
    AVAILABILITY,
    EVENTS,
    CHECKPOINT,
    DATASETS,
    DATASET,
    PARTITIONS,
    FETCH,
    ACKNOWLEDGE,
    PARTITION,
    ATTEMPTS,
    ATTEMPT,
    APPEND,
    FRAMES,
    SEAL,
    READ,
    GRAPH,
    TASKS,
    FAILURES,
    PLAN,
    PLANS,
    PLAN_NUMBER,
    RECOVERY_EVENTS,
    LOCATE,
    WORKERS,
    WORKER,
    WORKER_HEARTBEAT,
    NODES,
    NODE_HEARTBEAT,
    SEAL_DECISION,
    NODE_CATALOG,
];

/// The path of a job. Ids need no escaping: their alphabet is safe in a URL.
#[must_use]
pub fn job(job: &JobId) -> String {
    format!("/v1/jobs/{job}")
}

/// The path of a dataset.
#[must_use]
pub fn dataset(job: &JobId, dataset: &DatasetId) -> String {
    format!("/v1/jobs/{job}/datasets/{dataset}")
}

/// The path of a partition.
#[must_use]
pub fn partition(job: &JobId, dataset: &DatasetId, partition: PartitionId) -> String {
    format!("/v1/jobs/{job}/datasets/{dataset}/partitions/{partition}")
}

/// The path of an attempt.
#[must_use]
pub fn attempt(job: &JobId, dataset: &DatasetId, partition: PartitionId, attempt: AttemptId) -> String {
    format!("/v1/jobs/{job}/datasets/{dataset}/partitions/{partition}/attempts/{attempt}")
}

/// The path of the bytes of a subpartition.
#[must_use]
pub fn read(job: &JobId, dataset: &DatasetId, partition: PartitionId, subpartition: SubpartitionIndex) -> String {
    format!("/v1/jobs/{job}/datasets/{dataset}/partitions/{partition}/subpartitions/{subpartition}")
}

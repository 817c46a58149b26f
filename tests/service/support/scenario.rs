//! A job on a node, and the calls that most tests make.

use super::frames;
use super::{Answer, Client, Node};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};

/// Every kind of dataset, as a request names it.
pub(crate) const KINDS: [(&str, Option<&str>); 5] = [
    ("pipelined", Some("until_acknowledged")),
    ("pipelined", Some("best_effort")),
    ("pipelined", Some("since_checkpoint")),
    ("blocking", None),
    ("durable", None),
];

static NEXT_JOB: AtomicU64 = AtomicU64::new(0);

/// Bytes that say where they belong.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..length).map(step).collect()
}

/// A job with one dataset.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) client: Client,
    pub(crate) job: String,
    pub(crate) kind: &'static str,
}

impl Scenario {
    /// A new job on `node`, with a dataset `d` of 4 partitions of 4 subpartitions.
    pub(crate) async fn new(node: &Node, kind: (&'static str, Option<&'static str>)) -> Self {
        Self::with_client(node.client(), kind, json!({ "partitions": 4, "subpartitions": 4 })).await
    }

    pub(crate) async fn with_client(client: Client, (kind, retention): (&'static str, Option<&'static str>), mut dataset: Value) -> Self {
        let life = client.get("/v1/node").await.success()["location"]["life"].as_str().expect("a life").to_owned();
        let job = format!("job-{}", NEXT_JOB.fetch_add(1, Ordering::Relaxed));
        let made = client.put(&format!("/v1/jobs/{job}"), json!({ "owner_nonce": "owner" })).await.success();
        let epoch = made["epoch"].as_u64().expect("an epoch");
        let client = client.with("forebay-node-life", &life).with("forebay-job-epoch", &epoch.to_string());
        dataset["kind"] = json!(kind);
        if let Some(retention) = retention {
            dataset["retention"] = json!(retention);
        }
        client.put(&format!("/v1/jobs/{job}/datasets/d"), dataset).await.success();
        Self { client, job, kind }
    }

    pub(crate) fn job_path(&self) -> String {
        format!("/v1/jobs/{}", self.job)
    }

    pub(crate) fn dataset(&self) -> String {
        format!("/v1/jobs/{}/datasets/d", self.job)
    }

    pub(crate) fn partition(&self, partition: u64) -> String {
        format!("{}/partitions/{partition}", self.dataset())
    }

    pub(crate) fn attempt(&self, partition: u64, attempt: &str) -> String {
        format!("{}/attempts/{attempt}", self.partition(partition))
    }

    pub(crate) fn append_path(&self, partition: u64, attempt: &str, subpartition: u32) -> String {
        format!("{}/subpartitions/{subpartition}", self.attempt(partition, attempt))
    }

    pub(crate) fn read_path(&self, partition: u64, subpartition: u32) -> String {
        format!("{}/subpartitions/{subpartition}", self.partition(partition))
    }

    /// Opens `{generation}.{attempt}`.
    pub(crate) async fn open(&self, partition: u64, attempt: &str) -> Answer {
        let (generation, number) = attempt.split_once('.').expect("an attempt");
        let numbers: (u32, u32) = (generation.parse().expect("a number"), number.parse().expect("a number"));
        let path = format!("{}/attempts", self.partition(partition));
        self.client.post(&path, json!({ "generation": numbers.0, "attempt": numbers.1 })).await
    }

    pub(crate) async fn append(&self, partition: u64, attempt: &str, subpartition: u32, offset: u64, bytes: &[u8]) -> Answer {
        let path = format!("{}?offset={offset}", self.append_path(partition, attempt, subpartition));
        self.client.body("PUT", &path, "application/octet-stream", bytes.to_vec()).await
    }

    pub(crate) async fn frames(&self, partition: u64, attempt: &str, stream: Vec<u8>) -> Answer {
        let path = format!("{}/frames", self.attempt(partition, attempt));
        self.client.body("POST", &path, "application/vnd.forebay.frames", stream).await
    }

    pub(crate) async fn seal(&self, partition: u64, attempt: &str) -> Answer {
        self.client.post(&format!("{}/seal", self.attempt(partition, attempt)), json!({})).await
    }

    pub(crate) async fn read(&self, partition: u64, subpartition: u32) -> Answer {
        self.client.get(&self.read_path(partition, subpartition)).await
    }

    pub(crate) async fn fetch(&self, request: Value) -> Vec<frames::Frame> {
        let answer = self.client.post(&format!("{}/fetch", self.dataset()), request).await;
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
        frames::decode(&answer.bytes)
    }

    /// Writes and seals attempt 0.0 with these bytes in subpartition 0 and following.
    pub(crate) async fn write_sealed(&self, partition: u64, contents: &[&[u8]]) {
        self.open(partition, "0.0").await.success();
        for (subpartition, bytes) in (0..).zip(contents) {
            self.append(partition, "0.0", subpartition, 0, bytes).await.success();
        }
        self.seal(partition, "0.0").await.success();
    }
}

//! Claims about a whole node, over its port.

#![expect(clippy::disallowed_methods, reason = "tests spawn what they wait for")]

use super::*;
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use store_api::SystemClock;
use tokio::task::JoinHandle;

/// Longest wait of any test for anything.
const PATIENCE: Duration = Duration::from_secs(20);

struct Node {
    url: String,
    life: String,
    shutdown: Shutdown,
    running: JoinHandle<Result<Ended, NodeError>>,
    client: Client,
}

fn config_in(directory: &Path) -> Config {
    let mut config = Config::embedded();
    config.node.directory = directory.join("node");
    config.http.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    config.disk.reserve_per_mille = 0;
    config
}

fn options(config: Config, ready_file: Option<PathBuf>) -> NodeOptions {
    NodeOptions { config, ready_file, clock: SystemClock::shared(), shutdown: Shutdown::new() }
}

async fn start(config: Config, directory: &Path) -> Node {
    let ready_file = directory.join("ready.json");
    let _ = std::fs::remove_file(&ready_file);
    let options = options(config, Some(ready_file.clone()));
    let shutdown = options.shutdown.clone();
    let running = tokio::spawn(run(options));
    let clock = SystemClock::new();
    let ready = within(&clock, PATIENCE, async {
        loop {
            if let Ok(text) = std::fs::read_to_string(&ready_file) {
                break serde_json::from_str::<ReadyDocument>(&text).unwrap();
            }
            assert!(!running.is_finished(), "the node ended before it was ready");
            store_api::Clock::sleep(&clock, Duration::from_millis(5)).await;
        }
    });
    let ready = ready.await.expect("the node is ready in time");
    let _ = rustls::crypto::ring::default_provider().install_default();
    Node { url: ready.url, life: ready.life, shutdown, running, client: Client::new() }
}

impl Node {
    async fn end(self) -> Ended {
        self.shutdown.begin();
        drop(self.client);
        let clock = SystemClock::new();
        within(&clock, PATIENCE, self.running).await.expect("the node ends in time").unwrap().unwrap()
    }

    async fn call(&self, method: reqwest::Method, path: &str, body: Value) -> (StatusCode, Value) {
        let request = self
            .client
            .request(method, format!("{}{path}", self.url))
            .header("forebay-node-life", &self.life)
            .header("forebay-job-epoch", 1)
            .json(&body);
        let answer = request.send().await.unwrap();
        (answer.status(), answer.json().await.unwrap_or(Value::Null))
    }

    async fn expect(&self, method: reqwest::Method, path: &str, body: Value) -> Value {
        let (status, answer) = self.call(method, path, body).await;
        assert!(status.is_success(), "{path}: {status} {answer}");
        answer
    }

    async fn put(&self, dataset: &str, content: &[u8]) -> Value {
        self.expect(reqwest::Method::PUT, &format!("/v1/jobs/j/datasets/{dataset}"), json!({"kind": dataset, "subpartitions": 2})).await;
        let partition = format!("/v1/jobs/j/datasets/{dataset}/partitions/0");
        self.expect(reqwest::Method::POST, &format!("{partition}/attempts"), json!({})).await;
        let append = format!("{}{partition}/attempts/0.0/subpartitions/1?offset=0", self.url);
        let request = self.client.put(append).header("forebay-node-life", &self.life).header("content-type", "application/octet-stream");
        let appended = request.body(content.to_vec()).send().await.unwrap();
        assert!(appended.status().is_success(), "{}", appended.text().await.unwrap());
        self.expect(reqwest::Method::POST, &format!("{partition}/attempts/0.0/seal"), json!({})).await
    }

    async fn read(&self, dataset: &str) -> (StatusCode, Vec<u8>) {
        let url = format!("{}/v1/jobs/j/datasets/{dataset}/partitions/0/subpartitions/1", self.url);
        let answer = self.client.get(url).send().await.unwrap();
        (answer.status(), answer.bytes().await.unwrap().to_vec())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_keeps_all_three_kinds_and_after_a_restart_those_that_it_promised() {
    let directory = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let node = start(config_in(directory.path()), directory.path()).await;
    node.expect(reqwest::Method::PUT, "/v1/jobs/j", json!({"owner_nonce": "n"})).await;
    for kind in ["pipelined", "blocking", "durable"] {
        let sealed = node.put(kind, &content).await;
        assert_eq!((&sealed["result"], &sealed["manifest"]["class"]["class"]), (&json!("won"), &json!(kind)));
        let (status, read) = node.read(kind).await;
        assert!(status.is_success() && read == content, "{kind}");
    }
    assert!(node.end().await.is_clean);
    let node = start(config_in(directory.path()), directory.path()).await;
    for kind in ["blocking", "durable"] {
        let (status, read) = node.read(kind).await;
        assert!(status.is_success() && read == content, "{kind} after the restart: {status}");
    }
    let (status, problem) = node.read("pipelined").await;
    assert_eq!(status, StatusCode::GONE);
    assert_eq!(serde_json::from_slice::<Value>(&problem).unwrap()["code"], "lost");
    assert!(node.end().await.is_clean);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_tells_the_memory_that_it_was_given_and_what_of_it_is_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let config = config_in(directory.path());
    // Windows of connections are bounded, not counted.
    let budgets = crate::config::Budgets::of(&config);
    let given = budgets.total().bytes() - budgets.connections.bytes();
    let node = start(config, directory.path()).await;
    let idle = node.expect(reqwest::Method::GET, "/v1/node", Value::Null).await;
    assert_eq!((&idle["memory_budget_bytes"], idle["location"]["url"].as_str()), (&json!(given), Some(node.url.as_str())));
    node.expect(reqwest::Method::PUT, "/v1/jobs/j", json!({"owner_nonce": "n"})).await;
    node.put("pipelined", &[7; 300_000]).await;
    let used = node.expect(reqwest::Method::GET, "/v1/node", Value::Null).await["memory_used_bytes"].as_u64().unwrap();
    assert!((300_000..given).contains(&used), "{used} of {given} bytes");
    node.expect(reqwest::Method::DELETE, "/v1/jobs/j/datasets/pipelined", Value::Null).await;
    let released = node.expect(reqwest::Method::GET, "/v1/node", Value::Null).await["memory_used_bytes"].as_u64().unwrap();
    assert!(released < 300_000, "{released} bytes are in use after the release");
    assert!(node.end().await.is_clean);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_node_on_the_directory_is_refused_and_the_first_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let node = start(config_in(directory.path()), directory.path()).await;
    let refused = run(options(config_in(directory.path()), None)).await.unwrap_err();
    assert!(matches!(refused, NodeError::Identity(IdentityError::InUse { .. })), "{refused}");
    node.expect(reqwest::Method::PUT, "/v1/jobs/j", json!({"owner_nonce": "n"})).await;
    assert!(node.end().await.is_clean);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_admin_token_nothing_goes_without_one() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config_in(directory.path());
    config.auth.admin_token = Some(crate::config::Secret::new("MARKER-0123456789"));
    let node = start(config, directory.path()).await;
    let (status, _) = node.call(reqwest::Method::PUT, "/v1/jobs/j", json!({"owner_nonce": "n"})).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let request = node.client.put(format!("{}/v1/jobs/j", node.url)).bearer_auth("MARKER-0123456789").json(&json!({"owner_nonce": "n"}));
    let answer = request.send().await.unwrap();
    assert!(answer.status().is_success());
    let page = node.client.get(format!("{}/metrics", node.url)).send().await.unwrap().text().await.unwrap();
    assert!(page.contains("forebay_jobs_created_total 1") && !page.contains("MARKER"), "{page}");
    node.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_start_says_why_and_leaves_the_port() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config_in(directory.path());
    std::fs::write(directory.path().join("file"), "in the way").unwrap();
    config.disk.directories = vec![directory.path().join("file/blocking")];
    let clock = SystemClock::new();
    let refused = within(&clock, PATIENCE, run(options(config, None))).await.expect("ends in time").unwrap_err();
    assert!(matches!(refused, NodeError::Stores(_)), "{refused}");
}

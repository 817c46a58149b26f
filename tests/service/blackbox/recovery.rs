//! Recovery over the port, as a driver and workers in any language see it.

use crate::support::recovery::{report, three_stages};
use crate::support::{Client, Node, NodeOptions, eventually};
use forebay::coordinator::CoordinatorConfig;
use serde_json::{Value, json};
use std::time::Duration;

struct Job {
    client: Client,
    path: String,
}

impl Job {
    async fn new(node: &Node) -> Self {
        let (client, path) = (node.client(), "/v1/jobs/q1".to_owned());
        let epoch = client.put(&path, json!({ "owner_nonce": "driver" })).await.success()["epoch"].to_string();
        let job = Self { client: client.with("forebay-job-epoch", &epoch), path };
        job.client.put(&format!("{}/graph", job.path), three_stages("blocking")).await.success();
        job
    }

    async fn tell(&self, reports: Vec<Value>) -> Value {
        self.client.post(&format!("{}/tasks", self.path), json!({ "reports": reports })).await.success()
    }

    async fn get(&self, below: &str) -> Value {
        self.client.get(&format!("{}{below}", self.path)).await.success()
    }
}

fn quick() -> NodeOptions {
    let coordinator = CoordinatorConfig {
        heartbeat_interval: Duration::from_millis(100),
        heartbeat_timeout: Duration::from_millis(400),
        check_interval: Duration::from_millis(20),
        ..CoordinatorConfig::default()
    };
    NodeOptions { coordinator, ..NodeOptions::default() }
}

#[tokio::test]
async fn a_failure_leads_to_a_plan_that_can_be_read_and_carried_out() {
    let node = Node::start().await;
    let job = Job::new(&node).await;
    job.tell(vec![report("map", 0, "0.0", "running"), report("map", 1, "0.0", "running")]).await;
    let told =
        job.tell(vec![report("map", 1, "0.0", "failed"), report("map", 1, "0.0", "failed"), report("none", 0, "0.0", "failed")]).await;
    assert_eq!((&told["results"], &told["plan"]), (&json!(["accepted", "not_current", "unknown"]), &json!(1)));
    let plan = job.get("/plans/1").await;
    assert_eq!(plan["restart"], json!([{"vertex": "map", "index": 1, "attempt": "1.0"}]));
    assert_eq!((&plan["progress"], &plan["because"][0]["rule"]), (&json!("ready"), &json!("failed")));
    assert_eq!(job.get("/plans").await["plans"].as_array().map(Vec::len), Some(1));
    assert_eq!(job.tell(vec![report("map", 1, "1.0", "running")]).await["results"], json!(["accepted"]));
    assert_eq!(job.get("/plans/1").await["progress"], "done");
    let graph = job.get("/graph").await;
    assert_eq!((&graph["state"], &graph["n_running"], &graph["graph_version"]), (&json!("running"), &json!(2), &json!(1)));
    job.client.get(&format!("{}/plans/2", job.path)).await.refused("unknown_plan");
}

#[tokio::test]
async fn a_dry_run_and_its_reasons() {
    let node = Node::start().await;
    let job = Job::new(&node).await;
    job.tell(vec![report("map", 0, "0.0", "running")]).await;
    let asked = json!({ "tasks": [{"vertex": "map", "index": 0}], "strategy": "full" });
    let plan = job.client.post(&format!("{}/plan?dry_run=true", job.path), asked).await.success();
    assert_eq!((&plan["progress"], &plan["plan"], &plan["strategy"]), (&json!("dry_run"), &json!(0), &json!("full")));
    assert_eq!(plan["because"][0]["rule"], "failed");
    assert_eq!(job.get("/plans").await["plans"], json!([]));
    job.client.post(&format!("{}/plan", job.path), json!({})).await.refused("unknown_plan");
    job.client.post(&format!("{}/plan", job.path), json!({ "restart_all": true })).await.refused("bad_request");
    job.client.post(&format!("{}/plan?dry_run=1", job.path), json!({})).await.refused("bad_request");
}

#[tokio::test]
async fn a_silent_worker_is_planned_for_and_one_that_leaves_at_once() {
    let node = Node::start_with(quick()).await;
    let job = Job::new(&node).await;
    for (worker, life) in [("w1", "00000000000000a1"), ("w2", "00000000000000a2")] {
        job.client.put(&format!("{}/workers/{worker}", job.path), json!({ "life": life })).await.success();
    }
    let on = |worker: &str, index| {
        let mut report = report("map", index, "0.0", "running");
        report["worker"] = json!(worker);
        report
    };
    job.tell(vec![on("w1", 0), on("w2", 1)]).await;
    let beat = json!({ "life": "00000000000000a1", "running": [{"vertex": "map", "index": 0, "attempt": "0.0"}] });
    let answer = job.client.post(&format!("{}/workers/w1/heartbeat", job.path), beat.clone()).await.success();
    assert_eq!(answer["cancel"], json!([]));
    assert_eq!(job.client.delete(&format!("{}/workers/w2?life=00000000000000a2", job.path)).await.status, 204);
    assert_eq!(job.get("/plans/1").await["restart"], json!([{"vertex": "map", "index": 1, "attempt": "1.0"}]));
    eventually("the silent worker is in a plan", || async { job.get("/plans").await["plans"].as_array().map(Vec::len) == Some(2) }).await;
    assert_eq!(job.get("/plans/2").await["because"][0]["rule"], "worker_lost");
    job.client.post(&format!("{}/workers/w1/heartbeat", job.path), beat).await.refused("unknown_worker");
    assert_eq!(job.get("/graph").await["state"], "blocked");
    assert_eq!(job.get("/workers").await["workers"][0]["standing"], "lost");
}

#[tokio::test]
async fn events_come_as_they_happen_and_resume_after_a_cursor() {
    let node = Node::start().await;
    let job = Job::new(&node).await;
    job.tell(vec![report("map", 0, "0.0", "running")]).await;
    let path = format!("{}/recovery-events", job.path);
    let mut stream = job.client.request("GET", &path).send().await.expect("answered");
    let mut text = String::from_utf8(stream.chunk().await.expect("a chunk").expect("a comment").to_vec()).expect("text");
    job.tell(vec![report("map", 0, "0.0", "failed")]).await;
    while !text.contains("event: ready") {
        text += str::from_utf8(&stream.chunk().await.expect("a chunk").expect("more")).expect("text");
    }
    assert!(text.contains("id: 1-1\nevent: attempt_failed\n") && text.contains("event: plan\n"), "{text}");
    let mut again = job.client.request("GET", &format!("{path}?after=1-2")).send().await.expect("answered");
    let mut text = String::new();
    while !text.contains("event: ") {
        text += str::from_utf8(&again.chunk().await.expect("a chunk").expect("more")).expect("text");
    }
    assert!(text.contains("id: 1-3\nevent: ready\n"), "{text}");
    let mut strange = job.client.request("GET", &format!("{path}?after=9-1")).send().await.expect("answered");
    let mut text = String::new();
    while !text.contains("event: ") {
        text += str::from_utf8(&strange.chunk().await.expect("a chunk").expect("more")).expect("text");
    }
    assert!(text.contains("event: reset\n"), "{text}");
    job.client.get(&format!("{path}?after=x")).await.refused("bad_request");
}

#[tokio::test]
async fn graphs_that_are_none_are_refused_with_a_reason_and_owners_are_checked() {
    let node = Node::start().await;
    let job = Job::new(&node).await;
    let path = format!("{}/graph", job.path);
    for (change, value) in [
        ("/vertices/0/parallelism", json!(0)),
        ("/vertices/1/name", json!("map")),
        ("/vertices/0/name", json!("a/b")),
        ("/datasets/0/producer", json!("none")),
        ("/datasets/0/retention", json!("best_effort")),
        ("/policy/restart/restart-strategy.type", json!("sometimes")),
    ] {
        let mut graph = three_stages("blocking");
        match graph.pointer_mut(change) {
            Some(place) => *place = value,
            None => graph["datasets"][0]["retention"] = value,
        }
        job.client.put(&path, graph).await.refused("bad_request");
    }
    job.client.clone().without("forebay-job-epoch").put(&path, three_stages("blocking")).await.refused("epoch_required");
    let other = node.client().with("forebay-job-epoch", "1");
    other.put("/v1/jobs/q1", json!({ "owner_nonce": "other", "take_over": true })).await.success();
    job.client.put(&path, three_stages("blocking")).await.refused("fenced");
    node.client().put("/v1/jobs/q2", json!({})).await.success();
    node.client().get("/v1/jobs/q2/graph").await.refused("unknown_graph");
    node.client().get("/v1/jobs/q3/graph").await.refused("unknown_job");
}

#[tokio::test]
async fn nodes_report_what_they_hold_and_the_rest_can_be_found_by_it() {
    let node = Node::start().await;
    let client = node.client();
    let made = client.put("/v1/jobs/q1", json!({ "owner_nonce": "driver" })).await.success();
    let job = Job { client: client.with("forebay-job-epoch", "1"), path: "/v1/jobs/q1".to_owned() };
    let held = |partition: u64, state: &str| {
        json!({"job": "q1", "incarnation": made["incarnation"], "dataset": "shuffle", "partition": partition, "attempt": "0.0",
               "state": state, "bytes": 10})
    };
    let beat = |sequence: u64, held: Vec<Value>| {
        let location = json!({"node": "n9", "life": "00000000000000c1", "url": "http://n9:1"});
        json!({"location": location, "sequence": sequence, "held": held})
    };
    let send = |document: Value| job.client.post("/v1/nodes/heartbeat", document);
    assert_eq!(send(beat(3, Vec::new())).await.success()["begin_anew"], true);
    assert_eq!(send(beat(0, vec![held(0, "sealed")])).await.success()["begin_anew"], false);
    assert_eq!(send(beat(1, vec![held(1, "sealed")])).await.success()["begin_anew"], false);
    let located = job.client.post("/v1/jobs/q1/locate", json!({ "dataset": "shuffle", "partitions": [1] })).await.success();
    assert_eq!((&located["partitions"][0]["partition"], &located["partitions"][0]["location"]["node"]), (&json!(1), &json!("n9")));
    // The graph comes after the data, and knows of it.
    job.client.put("/v1/jobs/q1/graph", three_stages("blocking")).await.success();
    for index in 0..2 {
        job.tell(vec![report("map", index, "0.0", "running"), report("map", index, "0.0", "finished")]).await;
    }
    send(beat(2, vec![held(0, "lost")])).await.success();
    assert_eq!(job.get("/plans/1").await["restart"], json!([{"vertex": "map", "index": 0, "attempt": "1.0"}]));
    let nodes = job.client.get("/v1/nodes").await.success();
    assert_eq!((&nodes["nodes"][0]["standing"], &nodes["nodes"][0]["n_held"]), (&json!("up"), &json!(2)));
}

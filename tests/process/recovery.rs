//! The coordinator as a process: killed workers, killed nodes, its own kill -9 in the middle of a plan.

use super::support::{Api, LIMIT, Node, Place, Spec, content, eventually, is_long};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::Command;

fn quick(spec: Spec) -> Spec {
    spec.set("coordinator.heartbeat_interval=500ms").set("coordinator.heartbeat_timeout=5s")
}

/// map → join over `kind`, all to all; two tasks each.
fn graph(kind: &str) -> Value {
    json!({
        "vertices": [{"name": "map", "parallelism": 2}, {"name": "join", "parallelism": 2}],
        "datasets": [{"dataset": "d", "producer": "map", "kind": kind, "readers": [{"vertex": "join", "pattern": "all_to_all"}]}],
        "policy": {"restart": {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "9",
                               "restart-strategy.fixed-delay.delay": "0 ms"}},
    })
}

async fn declare_graph(api: &Api, job: &str, epoch: u64, kind: &str) {
    let path = format!("/v1/jobs/{job}/graph");
    let request = api.request(reqwest::Method::PUT, &path).header("Forebay-Job-Epoch", epoch).json(&graph(kind));
    api.send(request).await.expect("answered").ok();
}

async fn tell(api: &Api, job: &str, vertex: &str, index: u32, attempt: &str, state: &str) -> String {
    let report = json!({"vertex": vertex, "index": index, "attempt": attempt, "state": state});
    let told = api.post(&format!("/v1/jobs/{job}/tasks"), &json!({"reports": [report]})).await.expect("answered").ok();
    told["results"][0].as_str().expect("a result").to_owned()
}

async fn plans(api: &Api, job: &str) -> Vec<Value> {
    let listed = api.get(&format!("/v1/jobs/{job}/plans")).await.expect("answered").ok();
    let mut plans = Vec::new();
    for summary in listed["plans"].as_array().expect("a list") {
        plans.push(api.get(&format!("/v1/jobs/{job}/plans/{}", summary["plan"])).await.expect("answered").ok());
    }
    plans
}

fn restarted(plan: &Value) -> Vec<String> {
    let named = |one: &Value| {
        format!("{}#{} {}", one["vertex"].as_str().unwrap_or_default(), one["index"], one["attempt"].as_str().unwrap_or_default())
    };
    plan["restart"].as_array().expect("a list").iter().map(named).collect()
}

/// The example of the documentation, as a new user runs it.
#[tokio::test(flavor = "multi_thread")]
async fn the_driver_in_python_brings_a_job_whose_worker_is_killed_to_the_right_result() {
    let has_python = Command::new("python3").arg("--version").output().await.is_ok_and(|output| output.status.success());
    if !has_python {
        println!("python3 is not there: not tried");
        return;
    }
    let root = tempfile::tempdir().expect("a directory");
    let node = quick(Spec::new(&root.path().join("node"))).start().await;
    let script: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/examples/three_stages.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(&node.api.url).env("no_proxy", "*").env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(LIMIT, command.output()).await.expect("it ends in time").expect("it runs");
    let (shown, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{shown}\n{errors}");
    println!("{shown}");
    let said: Value = serde_json::from_str(shown.trim()).expect("one line of JSON");
    assert_eq!(said["result"], said["expected"]);
    assert_eq!(said["restarted"], json!(["join#1 1.0"]), "the finished map tasks are not made again");
    assert_eq!(said["because"], json!(["worker_lost"]));
}

/// kill -9 of the coordinator in the middle of a plan: it is finished, not doubled.
#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_is_killed_in_the_middle_of_a_plan_goes_on_where_it_was() {
    let root = tempfile::tempdir().expect("a directory");
    let spec = quick(Spec::new(&root.path().join("node")));
    let node = spec.start().await;
    let epoch = node.api.create_job("q1").await["epoch"].as_u64().expect("an epoch");
    declare_graph(&node.api, "q1", epoch, "pipelined").await;
    for (vertex, index) in [("map", 0), ("map", 1), ("join", 0), ("join", 1)] {
        assert_eq!(tell(&node.api, "q1", vertex, index, "0.0", "running").await, "accepted");
    }
    assert_eq!(tell(&node.api, "q1", "join", 1, "0.0", "failed").await, "accepted");
    assert_eq!(tell(&node.api, "q1", "map", 0, "0.0", "cancelled").await, "accepted");
    let before = plans(&node.api, "q1").await;
    assert_eq!((before.len(), &before[0]["progress"]), (1, &json!("stopping")));
    node.kill().await;

    let node = spec.start().await;
    let after = plans(&node.api, "q1").await;
    assert_eq!(after, before, "the same plan, as far as it was");
    assert_eq!(tell(&node.api, "q1", "map", 1, "0.0", "cancelled").await, "accepted");
    assert_eq!(tell(&node.api, "q1", "join", 0, "0.0", "finished").await, "counts_as_cancelled");
    let plan = &plans(&node.api, "q1").await[0];
    assert_eq!(plan["progress"], "ready");
    assert_eq!(restarted(plan), ["map#0 1.0", "map#1 1.0", "join#0 1.0", "join#1 1.0"]);
    for one in plan["restart"].as_array().expect("a list") {
        let (vertex, index) = (one["vertex"].as_str().expect("a name"), one["index"].as_u64().expect("an index"));
        assert_eq!(tell(&node.api, "q1", vertex, u32::try_from(index).expect("small"), "1.0", "running").await, "accepted");
    }
    let plans = plans(&node.api, "q1").await;
    assert_eq!((plans.len(), &plans[0]["progress"]), (1, &json!("done")));
}

struct Cluster {
    coordinator: Node,
    nodes: Vec<Node>,
}

async fn cluster(root: &Path, n_nodes: usize, objects: Option<&Path>) -> Cluster {
    let with_objects = |spec: Spec| match objects {
        Some(path) => spec.with_objects(path),
        None => spec.set("object.kind=none"),
    };
    let spec = with_objects(quick(Spec::new(&root.join("coordinator"))).set("coordinator.role=coordinator"));
    let coordinator = spec.start().await;
    let mut nodes = Vec::new();
    for number in 0..n_nodes {
        let spec = with_objects(quick(Spec::new(&root.join(format!("node-{number}")))));
        let spec = spec.set("coordinator.role=node").set(format!("coordinator.url={}", coordinator.api.url));
        nodes.push(spec.start().await);
    }
    Cluster { coordinator, nodes }
}

/// Both maps run and finish, one partition on each of two nodes; join#0 runs.
async fn run_maps(cluster: &Cluster, kind: &str) {
    let epoch = cluster.nodes[0].api.create_job("q1").await["epoch"].as_u64().expect("an epoch");
    for node in &cluster.nodes {
        node.api.declare("q1", "d", &json!({"kind": kind, "subpartitions": 2})).await;
    }
    let api = &cluster.coordinator.api;
    declare_graph(api, "q1", epoch, kind).await;
    for (index, node) in (0_u32..).zip(&cluster.nodes).take(2) {
        let place = Place { job: "q1", dataset: "d", partition: u64::from(index) };
        assert_eq!(tell(api, "q1", "map", index, "0.0", "running").await, "accepted");
        node.api.open(&place, 0, 0).await.expect("answered").ok();
        node.api.append(&place, "0.0", 0, 0, content(u64::from(index), 1000)).await.expect("answered").ok();
        node.api.seal(&place, "0.0").await.expect("answered").ok();
        assert_eq!(tell(api, "q1", "map", index, "0.0", "finished").await, "accepted");
    }
    assert_eq!(tell(api, "q1", "join", 0, "0.0", "running").await, "accepted");
    eventually("both partitions are known", LIMIT, || async {
        let located = api.post("/v1/jobs/q1/locate", &json!({"dataset": "d"})).await.expect("answered").ok();
        (located["partitions"].as_array().map(Vec::len) == Some(2)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_asks_any_node_and_is_sent_to_the_holder_and_a_killed_node_is_planned_for() {
    let root = tempfile::tempdir().expect("a directory");
    let mut cluster = cluster(root.path(), 2, None).await;
    run_maps(&cluster, "blocking").await;
    let place = Place { job: "q1", dataset: "d", partition: 1 };
    let other = cluster.nodes[0].api.clone();
    let asked = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().expect("a client");
    let path = format!("{}/subpartitions/0", place.path());
    let sent = asked.get(format!("{}{path}", other.url)).send().await.expect("answered");
    assert_eq!(sent.status(), 307);
    let target = sent.headers()["location"].to_str().expect("a URL").to_owned();
    assert!(target.starts_with(&cluster.nodes[1].api.url) && target.contains("hop=1"), "{target}");
    assert_eq!(other.read(&place, 0).await.expect("answered").body, content(1, 1000), "a client that follows gets the bytes");

    let killed_at = Instant::now();
    cluster.nodes.remove(1).kill().await;
    let api = cluster.coordinator.api.clone();
    let plan = eventually("a plan", LIMIT, || async { plans(&api, "q1").await.into_iter().next() }).await;
    println!("node killed: in a plan after {:?}", killed_at.elapsed());
    assert_eq!(restarted(&plan), ["map#1 1.0", "join#0 1.0"]);
    assert_eq!(plan["reread"][0]["partition"], 0, "what the other node holds is read again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_durable_partition_outlives_its_node_and_nothing_restarts() {
    let root = tempfile::tempdir().expect("a directory");
    let objects = root.path().join("objects");
    let mut cluster = cluster(root.path(), 2, Some(&objects)).await;
    run_maps(&cluster, "durable").await;
    cluster.nodes.remove(1).kill().await;
    let api = cluster.coordinator.api.clone();
    eventually("the node counts as lost", LIMIT, || async {
        let nodes = api.get("/v1/nodes").await.expect("answered").ok();
        let is_lost = nodes["nodes"].as_array().expect("a list").iter().any(|node| node["standing"] == "lost");
        is_lost.then_some(())
    })
    .await;
    assert!(plans(&api, "q1").await.is_empty());
    let place = Place { job: "q1", dataset: "d", partition: 1 };
    assert_eq!(cluster.nodes[0].api.read(&place, 0).await.expect("answered").body, content(1, 1000));
    assert_eq!(tell(&api, "q1", "join", 0, "0.0", "failed").await, "accepted");
    let plan = &plans(&api, "q1").await[0];
    assert_eq!(restarted(plan), ["join#0 1.0"]);
}

/// What heartbeats of 10,000 workers cost. Long: `FOREBAY_LONG=1`.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_workers_beat_on_one_coordinator() {
    let n_workers: u64 = if is_long() { 10_000 } else { 200 };
    let root = tempfile::tempdir().expect("a directory");
    let node = Spec::new(&root.path().join("node")).start().await;
    let epoch = node.api.create_job("q1").await["epoch"].as_u64().expect("an epoch");
    declare_graph(&node.api, "q1", epoch, "blocking").await;
    let api = node.api.clone();
    let begun = Instant::now();
    super::support::for_each(n_workers, 32, move |number| {
        let api = api.clone();
        async move {
            let life = json!({"life": format!("{number:016x}")});
            api.put(&format!("/v1/jobs/q1/workers/w{number}"), &life).await.expect("answered").ok();
        }
    })
    .await;
    let registered = begun.elapsed();
    let (begun, api) = (Instant::now(), node.api.clone());
    super::support::for_each(n_workers, 32, move |number| {
        let api = api.clone();
        async move {
            let beat = json!({"life": format!("{number:016x}"), "running": []});
            api.post(&format!("/v1/jobs/q1/workers/w{number}/heartbeat"), &beat).await.expect("answered").ok();
        }
    })
    .await;
    let beaten = begun.elapsed();
    let workers = node.api.get("/v1/jobs/q1/workers").await.expect("answered").ok();
    let up = workers["workers"].as_array().expect("a list").iter().filter(|worker| worker["standing"] == "up").count();
    assert_eq!(up as u64, n_workers);
    let rate = f64::from(u32::try_from(n_workers).expect("small")) / beaten.as_secs_f64().max(0.001);
    println!("{n_workers} workers: registered in {registered:?}, one heartbeat of each in {beaten:?} ({rate:.0} per second)");
    assert!(Duration::ZERO < beaten);
}

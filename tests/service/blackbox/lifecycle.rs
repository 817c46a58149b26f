//! Jobs, datasets, partitions: made, looked at, released.

use crate::support::{KINDS, Node, Scenario, pattern};
use serde_json::json;

#[tokio::test]
async fn a_job_lives_from_put_to_release() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        let bytes = pattern(1, 3000);
        s.write_sealed(0, &[&bytes, &[], &bytes]).await;
        let job = s.client.get(&s.job_path()).await.success();
        assert_eq!((&job["epoch"], &job["n_datasets"]), (&json!(1), &json!(1)), "{kind:?}");
        let dataset = s.client.get(&s.dataset()).await.success();
        assert_eq!((&dataset["n_sealed"], &dataset["sealed_bytes"]), (&json!(1), &json!(6000)), "{kind:?}");
        assert_eq!(s.client.get(&format!("{}/datasets", s.job_path())).await.success()["datasets"][0], dataset);
        let partition = s.client.get(&format!("{}?lists=true", s.partition(0))).await.success();
        assert_eq!(partition["state"], "sealed");
        assert_eq!(partition["manifest"]["class"]["class"], kind.0);
        let released = s.client.delete(&s.job_path()).await.success();
        assert_eq!(released["n_attempts"], 1, "{kind:?}");
        s.client.delete(&s.job_path()).await.success();
        s.client.get(&s.job_path()).await.refused("released");
        assert_eq!(s.read(0, 0).await.status, 410, "{kind:?}: a read after the release");
    }
}

#[tokio::test]
async fn putting_a_job_again_with_its_nonce_answers_the_same() {
    let node = Node::start().await;
    let client = node.client();
    let request = json!({ "owner_nonce": "one", "default_kind": "pipelined", "lease_ms": 60_000 });
    let first = client.put("/v1/jobs/q1", request.clone()).await;
    assert_eq!(first.status, 201);
    let second = client.put("/v1/jobs/q1", request).await;
    assert_eq!(second.status, 200);
    let (first, second) = (first.json(), second.json());
    assert_eq!((&first["epoch"], &first["incarnation"]), (&second["epoch"], &second["incarnation"]));
    let other = client.put("/v1/jobs/q1", json!({ "owner_nonce": "two" })).await;
    assert_eq!(other.refused("job_owned")["epoch"], 1);
    let taken = client.put("/v1/jobs/q1", json!({ "owner_nonce": "two", "take_over": true })).await.success();
    assert_eq!(taken["epoch"], 2);
}

#[tokio::test]
async fn a_dataset_declared_twice_is_one_and_another_form_of_it_conflicts() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        let mut same = json!({ "kind": kind.0, "partitions": 4, "subpartitions": 4 });
        if let Some(retention) = kind.1 {
            same["retention"] = json!(retention);
        }
        assert_eq!(s.client.put(&s.dataset(), same.clone()).await.status, 200);
        same["subpartitions"] = json!(5);
        s.client.put(&s.dataset(), same).await.refused("spec_conflict");
    }
}

#[tokio::test]
async fn a_node_refuses_a_class_that_it_cannot_keep() {
    let node = Node::start_with(crate::support::NodeOptions { has_media: false, ..Default::default() }).await;
    let client = node.client();
    client.put("/v1/jobs/q1", json!({})).await.success();
    for kind in ["blocking", "durable"] {
        let answer = client.put("/v1/jobs/q1/datasets/d", json!({ "kind": kind, "subpartitions": 1 })).await;
        assert_eq!(answer.status, 422);
        answer.refused("class_unavailable");
    }
    let kept = client.put("/v1/jobs/q1/datasets/d", json!({ "kind": "pipelined", "subpartitions": 1 })).await.success();
    assert_eq!(kept["class"]["durability"], "volatile");
}

#[tokio::test]
async fn partitions_are_listed_in_pages_without_gaps_or_repeats() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::with_client(node.client(), kind, json!({ "subpartitions": 2 })).await;
        for partition in [7, 0, 1_000_000_000_000, 3, 5] {
            s.write_sealed(partition, &[&pattern(partition, 10)]).await;
        }
        let (mut seen, mut after) = (Vec::new(), String::new());
        for _ in 0..10 {
            let page = s.client.get(&format!("{}/partitions?limit=2{after}", s.dataset())).await.success();
            let listed = page["partitions"].as_array().expect("a list");
            assert!(listed.len() <= 2);
            seen.extend(listed.iter().map(|one| one["partition"].as_u64().expect("a number")));
            match page["next_after"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        assert_eq!(seen, [0, 3, 5, 7, 1_000_000_000_000], "{kind:?}");
    }
}

#[tokio::test]
async fn a_dataset_and_a_partition_can_be_released_alone() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.write_sealed(0, &[b"zero"]).await;
        s.write_sealed(1, &[b"one"]).await;
        s.client.delete(&s.partition(0)).await.success();
        s.read(0, 0).await.refused("released");
        assert_eq!(s.read(1, 0).await.bytes, b"one", "{kind:?}");
        s.client.delete(&s.dataset()).await.success();
        assert_eq!(s.read(1, 0).await.status, 410, "{kind:?}");
    }
}

#[tokio::test]
async fn an_id_that_was_released_can_be_used_again_and_never_shows_the_old_bytes() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.write_sealed(0, &[b"old"]).await;
        let old = s.client.get(&s.job_path()).await.success();
        s.client.delete(&s.job_path()).await.success();
        let new = s.client.put(&s.job_path(), json!({ "owner_nonce": "next" })).await.success();
        assert_ne!(old["incarnation"], new["incarnation"]);
        let mut dataset = json!({ "kind": kind.0, "subpartitions": 4 });
        if let Some(retention) = kind.1 {
            dataset["retention"] = json!(retention);
        }
        s.client.put(&s.dataset(), dataset).await.success();
        s.read(0, 0).await.refused("not_written");
        s.write_sealed(0, &[b"new"]).await;
        assert_eq!(s.read(0, 0).await.bytes, b"new", "{kind:?}");
    }
}

#[tokio::test]
async fn what_is_sealed_on_a_medium_is_there_after_a_restart() {
    let mut node = Node::start().await;
    let mut before = Vec::new();
    for kind in [KINDS[3], KINDS[4]] {
        let s = Scenario::new(&node, kind).await;
        s.write_sealed(0, &[&pattern(5, 100_000), b"x"]).await;
        before.push((s.clone(), s.read(0, 0).await));
    }
    node = Node::start_on(node.stop().await, Default::default()).await;
    for (s, was) in before {
        let now = node.client().get(&s.read_path(0, 0)).await;
        assert_eq!(now.status, 200, "{}", s.kind);
        assert_eq!(now.bytes, was.bytes);
        assert_eq!(now.header("etag"), was.header("etag"));
        assert_ne!(now.header("forebay-node-life"), was.header("forebay-node-life"));
    }
}

#[tokio::test]
async fn availability_and_events_tell_what_happened() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        let mut events = s.client.request("GET", &format!("{}/events", s.job_path())).send().await.expect("a stream");
        s.write_sealed(1, &[b"abc"]).await;
        let asked = json!({ "items": [{ "dataset": "d", "partition": 0, "n_partitions": 2, "subpartition": 0 }] });
        let answer = s.client.post(&format!("{}/availability", s.job_path()), asked).await.success();
        assert_eq!(answer["partitions"][0]["state"], "not_written");
        assert_eq!((&answer["partitions"][1]["state"], &answer["partitions"][1]["end"]), (&json!("sealed"), &json!(3)), "{kind:?}");
        let mut text = String::new();
        while !text.contains("event: sealed") {
            let chunk = tokio::time::timeout(std::time::Duration::from_secs(10), events.chunk()).await;
            text.push_str(&String::from_utf8_lossy(&chunk.expect("an event in time").expect("a stream").expect("no end")));
        }
        assert!(text.contains("\"partition\":1"), "{text}");
        let cursor = text.lines().find_map(|line| line.strip_prefix("id: ")).expect("an id").to_owned();
        s.client.delete(&s.job_path()).await.success();
        let rest = s.client.request("GET", &format!("{}/events?after={cursor}", s.job_path())).send().await.expect("an answer");
        assert!([200, 410].contains(&rest.status().as_u16()));
    }
}

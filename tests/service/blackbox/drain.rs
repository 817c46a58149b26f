//! A node that goes away: nothing new, what is under way is finished, nobody holds it up.

use crate::support::raw::Raw;
use crate::support::{KINDS, Node, Scenario};
use serde_json::json;
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_draining_node_finishes_what_it_has_and_takes_nothing_new() {
    let node = Node::start().await;
    let s = Scenario::new(&node, KINDS[3]).await;
    s.open(0, "0.0").await.success();
    let drained = s.client.post("/v1/admin/drain", json!({})).await;
    assert_eq!((drained.status, &drained.json()["state"]), (202, &json!("draining")));
    s.client.get("/readyz").await.refused("draining");
    s.client.get("/healthz").await.success();
    s.client.put("/v1/jobs/another", json!({})).await.refused("draining");
    s.open(1, "0.0").await.refused("draining");
    s.append(0, "0.0", 0, 0, b"abc").await.success();
    s.seal(0, "0.0").await.success();
    assert_eq!(s.read(0, 0).await.bytes, b"abc");
}

#[tokio::test]
async fn waiting_reads_and_event_streams_are_answered_at_once_when_the_server_ends() {
    let mut node = Node::start().await;
    let s = Scenario::new(&node, KINDS[0]).await;
    s.open(0, "0.0").await.success();
    let (waiting, path) = (s.client.clone().with("prefer", "wait=50"), format!("{}?from=0", s.read_path(0, 0)));
    let poll = tokio::spawn(async move { waiting.get(&path).await });
    let events = s.client.request("GET", &format!("{}/events", s.job_path())).send().await.expect("a stream");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let begun = Instant::now();
    node.shutdown.begin();
    let answer = poll.await.expect("answered");
    assert_eq!((answer.status, answer.header("forebay-next-offset"), answer.header("forebay-end-reason")), (200, "0", "waited"));
    assert!(events.text().await.is_ok(), "the stream has an end");
    assert!(node.ended().await);
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn an_upload_under_way_may_finish() {
    let mut node = Node::start().await;
    let s = Scenario::new(&node, KINDS[3]).await;
    s.open(0, "0.0").await.success();
    let life = s.client.get("/v1/node").await.success()["location"]["life"].as_str().expect("a life").to_owned();
    let mut raw = Raw::connect(node.address).await;
    let path = s.append_path(0, "0.0", 0);
    let head = format!(
        "PUT {path}?offset=0 HTTP/1.1\r\nHost: x\r\nForebay-Node-Life: {life}\r\nContent-Type: application/octet-stream\r\nContent-Length: 10\r\n\r\n"
    );
    raw.send(head.as_bytes()).await;
    raw.send(b"01234").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    node.shutdown.begin();
    tokio::time::sleep(Duration::from_millis(600)).await;
    raw.send(b"56789").await;
    let (answer, _) = raw.read_to_close(Duration::from_secs(10)).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(node.ended().await);
}

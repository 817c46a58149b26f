//! More than fits: every refusal is an answer, and what was refused works once there is room.

use crate::support::{KINDS, Node, NodeOptions, Scenario, pattern};
use forebay::http::HttpConfig;
use forebay::service::ServiceConfig;
use serde_json::json;
use std::time::{Duration, Instant};

async fn small() -> Node {
    let service = ServiceConfig { append_patience: Duration::from_millis(200), ..ServiceConfig::default() };
    Node::start_with(NodeOptions { memory_bytes: 1 << 20, service, ..NodeOptions::default() }).await
}

#[tokio::test]
async fn a_full_buffer_pushes_back_and_goes_on_when_it_is_acknowledged() {
    let node = small().await;
    let s = Scenario::new(&node, KINDS[0]).await;
    s.open(0, "0.0").await.success();
    let block = pattern(1, 200_000);
    let mut end = 0_u64;
    let refused = loop {
        let begun = Instant::now();
        let answer = s.append(0, "0.0", 0, end, &block).await;
        assert!(begun.elapsed() < Duration::from_secs(5), "the refusal took too long");
        if answer.status != 200 {
            break answer;
        }
        end += block.len() as u64;
        assert!(end <= 1 << 20, "more was taken than there is room for");
    };
    refused.refused("overloaded");
    assert!(!refused.header("retry-after").is_empty());
    let positions = json!({ "positions": [{ "partition": 0, "subpartition": 0, "offset": end }] });
    s.client.post(&format!("{}/acknowledge", s.dataset()), positions).await.success();
    s.append(0, "0.0", 0, end, &block).await.success();
}

#[tokio::test]
async fn a_body_larger_than_could_ever_be_free_is_answered_at_once() {
    let node = small().await;
    let s = Scenario::new(&node, KINDS[0]).await;
    s.open(0, "0.0").await.success();
    let begun = Instant::now();
    let answer = s.append(0, "0.0", 0, 0, &pattern(1, 3 << 20)).await;
    assert!([413, 503, 507].contains(&answer.status), "{}", answer.status);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_job_stays_within_its_quota_and_has_room_again_after_a_release() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        let job = json!({ "owner_nonce": "limited", "quota_bytes": 300_000 });
        let path = format!("{}-limited", s.job_path());
        s.client.put(&path, job).await.success();
        let limited = Scenario { job: format!("{}-limited", s.job), ..s.clone() };
        let mut dataset = json!({ "kind": kind.0, "subpartitions": 1 });
        if let Some(retention) = kind.1 {
            dataset["retention"] = json!(retention);
        }
        limited.client.put(&limited.dataset(), dataset).await.success();
        limited.write_sealed(0, &[&pattern(1, 200_000)]).await;
        limited.open(1, "0.0").await.success();
        let refused = limited.append(1, "0.0", 0, 0, &pattern(2, 200_000)).await;
        assert_eq!(refused.status, 429, "{kind:?}");
        refused.refused("over_quota");
        limited.client.delete(&limited.partition(0)).await.success();
        limited.append(1, "0.0", 0, 0, &pattern(2, 200_000)).await.success();
    }
}

#[tokio::test]
async fn requests_beyond_the_limit_are_told_to_come_back() {
    let http = HttpConfig { max_requests: 0, ..HttpConfig::default() };
    let node = Node::start_with(NodeOptions { http, ..NodeOptions::default() }).await;
    let answer = node.client().get("/v1/node").await;
    answer.refused("overloaded");
    assert_eq!(answer.header("retry-after"), "1");
}

#[tokio::test]
async fn a_document_over_the_limit_is_refused_by_its_length_and_by_its_bytes() {
    let http = HttpConfig { max_document_bytes: 1000, ..HttpConfig::default() };
    let node = Node::start_with(NodeOptions { http, ..NodeOptions::default() }).await;
    let client = node.client();
    let large = json!({ "owner_nonce": "x".repeat(2000) }).to_string();
    let refused = client.body("PUT", "/v1/jobs/q1", "application/json", large.clone()).await;
    assert_eq!(refused.refused("too_large")["limit_bytes"], 1000);
    let pieces =
        futures::stream::iter(large.into_bytes().chunks(100).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect::<Vec<_>>());
    client.body("PUT", "/v1/jobs/q1", "application/json", reqwest::Body::wrap_stream(pieces)).await.refused("too_large");
    client.get("/v1/jobs/q1").await.refused("unknown_job");
}

#[tokio::test]
async fn a_frame_over_the_limit_is_refused_from_its_header() {
    let service = ServiceConfig { max_frame_bytes: 1000, ..ServiceConfig::default() };
    let node = Node::start_with(NodeOptions { service, ..NodeOptions::default() }).await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.open(0, "0.0").await.success();
        let refused = s.frames(0, "0.0", crate::support::frames::data(0, 0, &[0; 1001])).await;
        assert_eq!(refused.refused("too_large")["limit_bytes"], 1000, "{kind:?}");
        assert_eq!(s.client.get(&s.attempt(0, "0.0")).await.success()["max_frame_bytes"], 1000);
    }
}

#[tokio::test]
async fn a_batch_of_too_many_items_is_refused() {
    let node = Node::start().await;
    let s = Scenario::new(&node, KINDS[3]).await;
    let items = json!({ "items": [{ "partition": 0, "subpartition": 0, "n_subpartitions": 4_294_967_295_u32 }] });
    s.client.post(&format!("{}/fetch", s.dataset()), items).await.refused("too_large");
}

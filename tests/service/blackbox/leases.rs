//! Leases and owners.

use crate::support::{KINDS, Node, NodeOptions, Scenario, eventually};
use forebay::service::ServiceConfig;
use serde_json::json;
use std::time::Duration;

async fn quick() -> Node {
    let service =
        ServiceConfig { min_lease: Duration::from_millis(50), reap_interval: Duration::from_millis(50), ..ServiceConfig::default() };
    Node::start_with(NodeOptions { service, ..NodeOptions::default() }).await
}

#[tokio::test]
async fn what_a_job_held_is_gone_with_its_lease() {
    let node = quick().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.write_sealed(0, &[b"abc"]).await;
        let renewed = s.client.post(&format!("{}/lease", s.job_path()), json!({ "lease_ms": 100 })).await.success();
        assert_eq!(renewed["lease_ms"], 100);
        eventually("the lease ends", async || s.client.get(&s.job_path()).await.code() == "expired").await;
        s.read(0, 0).await.refused("expired");
        s.client.post(&format!("{}/lease", s.job_path()), json!({})).await.refused("expired");
    }
}

#[tokio::test]
async fn a_lease_that_is_renewed_does_not_end() {
    let node = quick().await;
    let s = Scenario::new(&node, KINDS[3]).await;
    s.write_sealed(0, &[b"abc"]).await;
    for _ in 0..8 {
        s.client.post(&format!("{}/lease", s.job_path()), json!({ "lease_ms": 1500 })).await.success();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(s.read(0, 0).await.bytes, b"abc");
}

#[tokio::test]
async fn control_calls_of_a_former_owner_are_fenced_and_its_writers_go_on() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.open(0, "0.0").await.success();
        let taken = s.client.put(&s.job_path(), json!({ "owner_nonce": "next", "take_over": true })).await.success();
        assert_eq!(taken["epoch"], 2);
        for answer in [
            s.client.post(&format!("{}/lease", s.job_path()), json!({})).await,
            s.client.delete(&s.partition(0)).await,
            s.client.delete(&s.dataset()).await,
            s.client.delete(&s.job_path()).await,
        ] {
            assert_eq!(answer.refused("fenced")["epoch"], 2);
        }
        s.append(0, "0.0", 0, 0, b"abc").await.success();
        s.seal(0, "0.0").await.success();
        assert_eq!(s.read(0, 0).await.bytes, b"abc", "{kind:?}");
    }
}

#[tokio::test]
async fn a_take_over_that_fences_writers_aborts_them() {
    let node = Node::start().await;
    let s = Scenario::new(&node, KINDS[3]).await;
    s.open(0, "0.0").await.success();
    s.client.put(&s.job_path(), json!({ "owner_nonce": "next", "take_over": true, "fence_writers": true })).await.success();
    assert!([410, 412].contains(&s.append(0, "0.0", 0, 0, b"abc").await.status));
}

#[tokio::test]
async fn control_calls_without_an_epoch_are_refused() {
    let node = Node::start().await;
    let s = Scenario::new(&node, KINDS[3]).await;
    let client = s.client.clone().without("forebay-job-epoch");
    for path in [s.partition(0), s.dataset(), s.job_path()] {
        client.delete(&path).await.refused("epoch_required");
    }
    client.post(&format!("{}/lease", s.job_path()), json!({})).await.refused("epoch_required");
}

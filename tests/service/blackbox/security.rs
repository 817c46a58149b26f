//! Tokens: every operation asks for one, and for the right one.

use crate::support::openapi::Contract;
use crate::support::{Client, Node, NodeOptions};
use serde_json::json;

const ADMIN: &str = "the-admin-token-of-this-test";

async fn guarded() -> Node {
    Node::start_with(NodeOptions { admin_token: Some(ADMIN), ..NodeOptions::default() }).await
}

async fn job(admin: &Client, job: &str) -> String {
    let made = admin.put(&format!("/v1/jobs/{job}"), json!({ "owner_nonce": "one" })).await.success();
    admin.put(&format!("/v1/jobs/{job}/datasets/d"), json!({ "kind": "pipelined", "subpartitions": 1 })).await.success();
    made["token"].as_str().expect("a token").to_owned()
}

fn concrete(route: &str, job: &str) -> String {
    let ids =
        [("{job}", job), ("{dataset}", "d"), ("{partition}", "0"), ("{subpartition}", "0"), ("{attempt}", "0.0"), ("{checkpoint}", "1")];
    ids.iter().fold(route.to_owned(), |path, (name, id)| path.replace(name, id))
}

/// Every operation that needs a token, on this job.
fn closed_operations(job: &str) -> Vec<(String, String)> {
    let contract = Contract::shared();
    let is_closed = |(route, method): &(String, String)| {
        let operation = contract.operation(method, route).expect("an operation");
        operation.get("security").is_none_or(|security| security.as_array().is_some_and(|one| !one.is_empty() && one[0] != json!({})))
    };
    let operations = contract.operations().into_iter().filter(is_closed);
    operations.filter(|(_, method)| method != "HEAD").map(|(route, method)| (method, concrete(&route, job))).collect()
}

#[tokio::test]
async fn no_operation_answers_without_a_token_that_covers_it() {
    let node = guarded().await;
    let admin = node.client_with(ADMIN);
    let (token_a, _) = (job(&admin, "a").await, job(&admin, "b").await);
    let before = admin.get("/v1/jobs/b").await.success();
    for (method, path) in closed_operations("b") {
        for client in [node.client(), node.client().with("authorization", "Basic eDp5")] {
            let answer = client.send(&method, &path, client.request(&method, &path).json(&json!({}))).await;
            assert_eq!(answer.status, 401, "{method} {path}");
            assert!(!answer.header("www-authenticate").is_empty());
        }
        let guess = node.client_with("some-other-token-entirely");
        let answer = guess.send(&method, &path, guess.request(&method, &path).json(&json!({}))).await;
        assert_eq!(answer.status, 401, "{method} {path}: nobody knows this token");
        let stranger = node.client_with(&token_a);
        let answer = stranger.send(&method, &path, stranger.request(&method, &path).json(&json!({}))).await;
        assert_eq!(answer.status, 403, "{method} {path}: {}", String::from_utf8_lossy(&answer.bytes));
    }
    let after = admin.get("/v1/jobs/b").await.success();
    assert_eq!((&before["epoch"], &before["n_datasets"]), (&after["epoch"], &after["n_datasets"]));
}

#[tokio::test]
async fn the_token_of_a_job_covers_it_and_ends_with_it() {
    let node = guarded().await;
    let admin = node.client_with(ADMIN);
    let token = job(&admin, "a").await;
    let owner = node.client_with(&token);
    owner.get("/v1/jobs/a").await.success();
    owner.get("/v1/jobs").await.refused("forbidden");
    owner.post("/v1/admin/drain", json!({})).await.refused("forbidden");
    let epoch = owner.clone().with("forebay-job-epoch", "1");
    epoch.delete("/v1/jobs/a").await.success();
    let next = job(&admin, "a").await;
    assert_ne!(token, next);
    owner.get("/v1/jobs/a").await.refused("unauthenticated");
    node.client_with(&next).get("/v1/jobs/a").await.success();
}

#[tokio::test]
async fn a_token_is_good_after_a_restart() {
    let mut node = guarded().await;
    let admin = node.client_with(ADMIN);
    let made = admin.put("/v1/jobs/a", json!({ "owner_nonce": "one", "token_secret": "chosen-by-the-client-1" })).await.success();
    assert_eq!(made["token"], "chosen-by-the-client-1");
    node = Node::start_on(node.stop().await, NodeOptions { admin_token: Some(ADMIN), ..NodeOptions::default() }).await;
    node.client_with("chosen-by-the-client-1").get("/v1/jobs/a").await.success();
    node.client_with("chosen-by-the-client-2").get("/v1/jobs/a").await.refused("unauthenticated");
}

#[tokio::test]
async fn health_and_the_node_are_open_to_all() {
    let node = guarded().await;
    for path in ["/healthz", "/readyz", "/v1/node"] {
        node.client().get(path).await.success();
    }
}

#[tokio::test]
async fn a_token_in_the_query_is_no_token() {
    let node = guarded().await;
    let path = format!("/v1/jobs?token={ADMIN}");
    node.client().get(&path).await.refused("unauthenticated");
    let twice = node.client_with(ADMIN).with("authorization", "Bearer x");
    assert_eq!(twice.get("/v1/jobs").await.status, 401);
}

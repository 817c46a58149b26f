//! Requests that cannot be meant.

use crate::support::{KINDS, Node, Scenario};
use serde_json::json;

#[tokio::test]
async fn ids_that_leave_their_alphabet_are_refused_and_make_nothing() {
    let node = Node::start().await;
    let client = node.client();
    for id in ["%2e%2e", "..%2fx", "%2e", "a%2fb", "a%00", "a%0a", "a%20b", "a%5cb", "%c3%a4", "a%25b", &"x".repeat(129)] {
        for path in [format!("/v1/jobs/{id}"), format!("/v1/jobs/q1/datasets/{id}")] {
            let answer = client.send("PUT", &path, client.request("PUT", &path).json(&json!({ "subpartitions": 1 }))).await;
            assert!([400, 404].contains(&answer.status), "{path}: {}", answer.status);
        }
    }
    assert_eq!(client.get("/v1/jobs").await.success()["jobs"], json!([]));
}

#[tokio::test]
async fn ids_of_every_allowed_shape_work_and_never_meet() {
    let node = Node::start().await;
    let client = node.client();
    for (at, id) in ["a", "application_1_2", "application_1_3", "local-1", "...", "-", "0", &"x".repeat(128)].iter().enumerate() {
        client.put(&format!("/v1/jobs/{id}"), json!({ "owner_nonce": format!("{at}") })).await.success();
        assert_eq!(client.get(&format!("/v1/jobs/{id}")).await.success()["job"], *id);
    }
    assert_eq!(client.get("/v1/jobs").await.success()["jobs"].as_array().map(Vec::len), Some(8));
}

#[tokio::test]
async fn numbers_out_of_their_range_are_refused() {
    let node = Node::start().await;
    let s = Scenario::new(&node, KINDS[0]).await;
    s.write_sealed(0, &[b"0123456789"]).await;
    for number in ["-1", "x", "", "18446744073709551616", "1.0", "%2B1"] {
        for parameter in ["from", "to"] {
            let path = format!("{}?{parameter}={number}", s.read_path(0, 0));
            s.client.get(&path).await.refused("bad_request");
        }
    }
    for number in ["11", "2147483648", "4294967296", "9223372036854775808", "18446744073709551615"] {
        let answer = s.client.get(&format!("{}?from={number}", s.read_path(0, 0))).await;
        assert_eq!(answer.refused("range_not_satisfiable")["end_offset"], 10, "{number}");
    }
    for path in [
        "partitions/-1",
        "partitions/x",
        "partitions/18446744073709551616",
        "partitions/0/attempts/1",
        "partitions/0/attempts/0.4294967296",
    ] {
        s.client.get(&format!("{}/{path}", s.dataset())).await.refused("bad_request");
    }
    s.read(4, 0).await.refused("unknown_partition");
    s.read(0, 4).await.refused("unknown_partition");
}

#[tokio::test]
async fn documents_with_numbers_of_another_kind_or_repeated_members_are_refused() {
    let node = Node::start().await;
    let s = Scenario::new(&node, KINDS[3]).await;
    let path = format!("{}x", s.dataset());
    for text in [
        "{\"subpartitions\": 1.0}",
        "{\"subpartitions\": -1}",
        "{\"subpartitions\": \"1\"}",
        "{\"subpartitions\": 4294967297}",
        "{\"subpartitions\": 1, \"subpartitions\": 2}",
        "{\"subpartitions\": 1} x",
        "{\"subpartitions\": 0}",
        "[]",
        "{",
        "",
    ] {
        s.client.body("PUT", &path, "application/json", text).await.refused("bad_request");
    }
}

#[tokio::test]
async fn ids_in_the_wrong_place_find_nothing() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::with_client(node.client(), kind, json!({ "subpartitions": 9 })).await;
        s.open(7, "0.2").await.success();
        s.append(7, "0.2", 3, 0, b"here").await.success();
        s.seal(7, "0.2").await.success();
        assert_eq!(s.read(7, 3).await.bytes, b"here");
        for (partition, subpartition) in [(3, 7), (2, 3), (0, 3)] {
            s.read(partition, subpartition).await.refused("not_written");
        }
        assert!(s.read(7, 2).await.bytes.is_empty(), "{kind:?}");
        for attempt in ["2.0", "0.7", "0.3"] {
            let answer = s.client.get(&format!("{}?attempt={attempt}", s.read_path(7, 3))).await;
            assert_ne!(answer.status, 200, "{kind:?} {attempt}");
        }
    }
}

#[tokio::test]
async fn no_has_many_meanings_and_each_its_own_code() {
    let node = Node::start().await;
    for kind in [KINDS[3], KINDS[4]] {
        let s = Scenario::new(&node, kind).await;
        s.client.get("/v1/jobs/never").await.refused("unknown_job");
        s.client.get(&format!("{}/datasets/never", s.job_path())).await.refused("unknown_dataset");
        s.read(0, 0).await.refused("not_written");
        s.client.get(&s.attempt(0, "0.0")).await.refused("unknown_attempt");
        s.open(0, "0.0").await.success();
        s.read(0, 0).await.refused("not_sealed");
        s.client.get(&format!("{}?from=0", s.read_path(0, 0))).await.refused("not_sealed");
        s.seal(0, "0.0").await.success();
        assert_eq!(s.read(0, 0).await.status, 200);
        s.client.delete(&s.partition(0)).await.success();
        s.read(0, 0).await.refused("released");
    }
}

#[tokio::test]
async fn a_request_id_is_kept_and_a_wild_one_is_not() {
    let node = Node::start().await;
    let kept = node.client().with("x-request-id", "abc-1").get("/healthz").await;
    assert_eq!(kept.header("x-request-id"), "abc-1");
    let wild = node.client().with("x-request-id", &"x".repeat(129)).get("/healthz").await;
    assert!(wild.header("x-request-id").len() < 30);
}

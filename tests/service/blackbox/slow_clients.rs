//! Clients that are slow, silent, cut off, or that send more than is taken.

use crate::support::raw::Raw;
use crate::support::{KINDS, Node, NodeOptions, Scenario, pattern};
use forebay::http::HttpConfig;
use forebay::server::ServerConfig;
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;

const PATIENCE: Duration = Duration::from_secs(20);

async fn strict() -> Node {
    let http = HttpConfig {
        body_stall: Duration::from_millis(300),
        read_stall: Duration::from_millis(500),
        max_document_bytes: 1 << 20,
        ..HttpConfig::default()
    };
    let server = ServerConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        write_stall: Duration::from_millis(500),
        linger_bytes: 16 << 20,
        ..ServerConfig::default()
    };
    Node::start_with(NodeOptions { http, server, ..NodeOptions::default() }).await
}

fn head(s: &Scenario, life: &str, more: &str) -> String {
    let path = s.append_path(0, "0.0", 0);
    format!("PUT {path}?offset=0 HTTP/1.1\r\nHost: x\r\nForebay-Node-Life: {life}\r\nContent-Type: application/octet-stream\r\n{more}\r\n")
}

async fn opened(node: &Node, kind: (&'static str, Option<&'static str>)) -> (Scenario, String) {
    let s = Scenario::new(node, kind).await;
    s.open(0, "0.0").await.success();
    let life = s.client.get("/v1/node").await.success()["location"]["life"].as_str().expect("a life").to_owned();
    (s, life)
}

#[tokio::test]
async fn a_body_that_is_cut_is_never_acknowledged_and_leaves_nothing() {
    let node = strict().await;
    for kind in KINDS {
        let (s, life) = opened(&node, kind).await;
        let chunked = head(&s, &life, "Transfer-Encoding: chunked\r\n");
        let bodies = [
            format!("{chunked}5\r\nhello\r\n"),
            format!("{chunked}5\r\nhel"),
            format!("{chunked}5\r\nhello\r\n0\r\n"),
            format!("{}hello", head(&s, &life, "Content-Length: 6\r\n")),
        ];
        for body in &bodies {
            for is_half_closed in [true, false] {
                let mut raw = Raw::connect(node.address).await;
                raw.send(body.as_bytes()).await;
                if is_half_closed {
                    tokio::io::AsyncWriteExt::shutdown(&mut raw.socket).await.expect("half closed");
                    let (answer, _) = raw.read_to_close(PATIENCE).await;
                    assert!(!answer.starts_with("HTTP/1.1 2"), "{kind:?}: {body:?} was acknowledged: {answer}");
                }
            }
        }
        assert_eq!(s.client.get(&s.attempt(0, "0.0")).await.success()["tails"], json!([]), "{kind:?}");
        s.append(0, "0.0", 0, 0, b"whole").await.success();
        s.seal(0, "0.0").await.success();
        assert_eq!(s.read(0, 0).await.bytes, b"whole", "{kind:?}");
    }
}

#[tokio::test]
async fn a_body_that_stalls_is_timed_out_with_an_answer() {
    let node = strict().await;
    let (s, life) = opened(&node, KINDS[3]).await;
    let mut raw = Raw::connect(node.address).await;
    raw.send(head(&s, &life, "Content-Length: 100\r\n").as_bytes()).await;
    raw.send(b"some").await;
    let (answer, is_closed) = raw.read_to_close(PATIENCE).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(is_closed && answer.contains("request_timeout"));
}

#[tokio::test]
async fn a_client_that_asks_first_is_told_to_go_on_only_when_all_else_is_right() {
    let node = strict().await;
    let (s, life) = opened(&node, KINDS[3]).await;
    let more = "Content-Length: 5\r\nExpect: 100-continue\r\n";
    let mut raw = Raw::connect(node.address).await;
    raw.send(head(&s, &life, more).as_bytes()).await;
    assert!(raw.read_head().await.0.starts_with("HTTP/1.1 100"));
    raw.send(b"hello").await;
    assert!(raw.read_head().await.0.starts_with("HTTP/1.1 200"));
    let other_attempt = head(&s, &life, more).replace("attempts/0.0", "attempts/0.9");
    for wrong in [head(&s, "00000000000000ff", more), other_attempt] {
        let mut raw = Raw::connect(node.address).await;
        raw.send(wrong.as_bytes()).await;
        let (answer, _) = raw.read_head().await;
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
}

/// Sends a head that asks first and no body. Answers the code of the problem; fails when the client
/// is told to go on.
async fn refused_before_the_body(node: &Node, line: &str, more: &str) -> String {
    let mut raw = Raw::connect(node.address).await;
    let length = if more.contains("Content-Length") { "" } else { "Content-Length: 5\r\n" };
    raw.send(format!("{line} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n{length}{more}\r\n").as_bytes()).await;
    let (head, begun) = raw.read_head().await;
    assert!(head.starts_with("HTTP/1.1 4"), "{line}: {head}");
    let (rest, _) = raw.read_to_close(PATIENCE).await;
    let body = format!("{}{rest}", String::from_utf8_lossy(&begun));
    let document: serde_json::Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{line}: {body}"));
    document["code"].as_str().expect("a code").to_owned()
}

#[tokio::test]
async fn a_writer_that_asks_first_never_sends_a_body_that_would_be_refused() {
    let node = strict().await;
    for kind in KINDS {
        let (s, life) = opened(&node, kind).await;
        s.append(0, "0.0", 0, 0, b"abcdef").await.success();
        s.write_sealed(1, &[b"sealed"]).await;
        s.open(2, "0.0").await.success();
        s.open(2, "1.0").await.success();
        s.open(3, "0.0").await.success();
        s.client.delete(&s.partition(3)).await.success();
        let life = format!("Forebay-Node-Life: {life}\r\n");
        let old = "Forebay-Node-Life: 00000000000000ff\r\n".to_owned();
        let frames = format!("{life}Content-Type: application/vnd.forebay.frames\r\n");
        let digest = format!("{life}Content-Length: 999999999\r\nContent-Digest: crc32c=:4waSgw==:\r\n");
        let append = |partition, attempt, query: &str| format!("PUT {}{query}", s.append_path(partition, attempt, 0));
        let refusals = [
            (append(0, "0.0", "?offset=7"), &life, "offset_mismatch"),
            (append(0, "0.0", "?offset=18446744073709551615"), &life, "offset_mismatch"),
            (append(0, "0.0", "?offset=18446744073709551610"), &life, "offset_mismatch"),
            (append(0, "0.0", "?offset=x"), &life, "bad_request"),
            (append(0, "0.0", ""), &life, "bad_request"),
            (append(0, "0.0", "?offset=6"), &old, "fenced"),
            (append(0, "0.0", "?offset=6"), &String::new(), "life_required"),
            (append(0, "0.0", "?offset=6"), &frames, "unsupported_media_type"),
            (append(0, "0.0", "?offset=6"), &digest, "too_large"),
            (append(0, "0.9", "?offset=0"), &life, "unknown_attempt"),
            (append(0, "0.x", "?offset=0"), &life, "bad_request"),
            (append(9, "0.0", "?offset=0"), &life, "unknown_partition"),
            (append(1, "0.0", "?offset=6"), &life, "already_sealed"),
            (append(2, "0.0", "?offset=0"), &life, "fenced"),
            (append(3, "0.0", "?offset=0"), &life, "released"),
            (format!("PUT {}?offset=0", s.append_path(0, "0.0", 4)), &life, "unknown_partition"),
            (format!("POST {}/frames", s.attempt(0, "0.0")), &life, "unsupported_media_type"),
            (format!("POST {}/frames", s.attempt(0, "0.9")), &frames, "unknown_attempt"),
            (format!("POST {}/frames", s.attempt(1, "0.0")), &frames, "already_sealed"),
            (format!("POST {}/frames", s.attempt(2, "0.0")), &frames, "fenced"),
        ];
        for (line, more, code) in refusals {
            assert_eq!(refused_before_the_body(&node, &line, more).await, code, "{kind:?}: {line} {more}");
        }
        s.append(0, "0.0", 0, 6, b"g").await.success();
    }
    let (s, life) = opened(&node, KINDS[0]).await;
    s.append(0, "0.0", 0, 0, b"abcdef").await.success();
    let positions = json!({ "positions": [{ "partition": 0, "subpartition": 0, "offset": 4 }] });
    s.client.post(&format!("{}/acknowledge", s.dataset()), positions).await.success();
    let line = format!("PUT {}?offset=3", s.append_path(0, "0.0", 0));
    assert_eq!(refused_before_the_body(&node, &line, &format!("Forebay-Node-Life: {life}\r\n")).await, "below_floor");
}

#[tokio::test]
async fn a_document_is_not_asked_for_when_the_call_is_refused_without_it() {
    let node = strict().await;
    let (s, life) = opened(&node, KINDS[2]).await;
    let (json, text) = ("Content-Type: application/json\r\n", "Content-Type: text/plain\r\n");
    let written = format!("{json}Forebay-Node-Life: {life}\r\n");
    let (owned, unowned) = (format!("{json}Forebay-Job-Epoch: 1\r\n"), format!("{json}Forebay-Job-Epoch: 7\r\n"));
    let long = format!("{json}Content-Length: 2000000\r\n");
    let job = s.job_path();
    let refusals = [
        (format!("PUT {job}"), text, "unsupported_media_type"),
        (format!("PUT {job}"), &long, "too_large"),
        ("PUT /v1/jobs/a%2Fb".to_owned(), json, "bad_request"),
        (format!("POST {job}/lease"), json, "epoch_required"),
        (format!("POST {job}/lease"), &unowned, "bad_request"),
        ("POST /v1/jobs/none/lease".to_owned(), &owned, "unknown_job"),
        ("POST /v1/jobs/none/availability".to_owned(), json, "unknown_job"),
        (format!("POST {job}/checkpoints/x/complete"), &owned, "bad_request"),
        (format!("POST {job}/checkpoints/1/complete"), json, "epoch_required"),
        ("PUT /v1/jobs/none/datasets/d".to_owned(), json, "unknown_job"),
        (format!("POST {job}/datasets/none/fetch"), json, "unknown_dataset"),
        (format!("POST {job}/datasets/d/acknowledge"), json, "life_required"),
        (format!("POST {job}/datasets/none/acknowledge"), &written, "unknown_dataset"),
        (format!("POST {}/attempts", s.partition(9)), json, "unknown_partition"),
        (format!("POST {}/attempts", s.partition(0)), &unowned, "bad_request"),
        (format!("POST {}/seal", s.attempt(0, "0.0")), json, "life_required"),
        (format!("POST {}/seal", s.attempt(0, "0.9")), &written, "unknown_attempt"),
        ("PUT /v1/nothing".to_owned(), json, "unknown_route"),
        (format!("POST {job}"), json, "method_not_allowed"),
    ];
    for (line, more, code) in refusals {
        assert_eq!(refused_before_the_body(&node, &line, more).await, code, "{line} {more}");
    }
    let node = Node::start_with(NodeOptions { admin_token: Some("0123456789abcdef"), ..NodeOptions::default() }).await;
    assert_eq!(refused_before_the_body(&node, "PUT /v1/jobs/j", json).await, "unauthenticated");
    assert_eq!(refused_before_the_body(&node, "PUT /v1/jobs/j", &format!("{json}Authorization: Bearer x\r\n")).await, "unauthenticated");
}

#[tokio::test]
async fn a_writer_over_its_quota_is_told_before_it_sends() {
    let node = strict().await;
    let (s, life) = opened(&node, KINDS[3]).await;
    let other = json!({ "owner_nonce": "other", "quota_bytes": 4, "take_over": true });
    s.client.put(&s.job_path(), other).await.success();
    let line = format!("PUT {}?offset=0", s.append_path(0, "0.0", 0));
    assert_eq!(refused_before_the_body(&node, &line, &format!("Forebay-Node-Life: {life}\r\n")).await, "over_quota");
}

#[tokio::test]
async fn a_client_that_writes_all_before_it_reads_still_reads_why_it_was_refused() {
    let node = strict().await;
    let body = vec![b' '; 3 << 20];
    for round in 0..20 {
        let mut raw = Raw::connect(node.address).await;
        let head =
            format!("PUT /v1/jobs/q1 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
        raw.send(head.as_bytes()).await;
        assert!(raw.try_send(&body).await, "round {round}: reset while writing");
        let (answer, _) = raw.read_to_close(PATIENCE).await;
        assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("too_large"), "round {round}: {answer:?}");
    }
}

#[tokio::test]
async fn a_body_of_which_no_end_is_in_sight_is_not_swallowed() {
    let node = strict().await;
    let mut raw = Raw::connect(node.address).await;
    raw.send(b"PUT /v1/jobs/q1 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 8589934592\r\n\r\n").await;
    let block = vec![b' '; 1 << 20];
    let mut n_taken = 0_u64;
    while n_taken < 256 && tokio::time::timeout(PATIENCE, raw.try_send(&block)).await.unwrap_or(false) {
        n_taken += 1;
    }
    assert!(n_taken < 64, "{n_taken} MiB were taken");
}

#[tokio::test]
async fn a_reader_that_stops_reading_is_cut_off_and_the_others_are_served() {
    let node = strict().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        let bytes = pattern(7, 24 << 20);
        s.open(0, "0.0").await.success();
        s.append(0, "0.0", 0, 0, &bytes).await.success();
        s.seal(0, "0.0").await.success();
        let mut stalled = Raw::connect(node.address).await;
        stalled.send(format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", s.read_path(0, 0)).as_bytes()).await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(s.read(0, 0).await.bytes, bytes, "{kind:?}");
        let (mut n_read, mut buffer) = (0, vec![0; 1 << 16]);
        while let Ok(Ok(n)) = tokio::time::timeout(PATIENCE, stalled.socket.read(&mut buffer)).await {
            if n == 0 {
                break;
            }
            n_read += n;
        }
        assert!(n_read < bytes.len(), "{kind:?}: a stalled reader was waited for");
        s.client.delete(&s.job_path()).await.success();
    }
}

#[tokio::test]
async fn one_unread_stream_does_not_stop_the_others_of_its_connection() {
    let node = Node::start().await;
    let mut s = Scenario::new(&node, KINDS[3]).await;
    let bytes = pattern(7, 4 << 20);
    s.write_sealed(0, &[&bytes]).await;
    s.client = s.client.clone().over_http2();
    let unread = s.client.request("GET", &s.read_path(0, 0)).send().await.expect("an answer");
    for _ in 0..5 {
        assert_eq!(s.read(0, 0).await.bytes, bytes);
    }
    drop(unread);
}

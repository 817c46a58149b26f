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

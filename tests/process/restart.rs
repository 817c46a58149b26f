//! What holds over restarts, orderly ends, and the loss of a node.

use super::ledger::{Ledger, check_all, declare, start_writers};
use super::support::{Api, LIMIT, Place, Spec, content, eventually, is_long, join_all, seed};
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use reqwest::Method;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const JOB: &str = "q1";
const ADMIN: &str = "admin-token-of-the-tests";
const GRACE: Duration = Duration::from_secs(4);

async fn owner(api: &Api, nonce: &str, take_over: bool) -> (u16, String) {
    let answer = api.put(&format!("/v1/jobs/{JOB}"), &json!({"owner_nonce": nonce, "take_over": take_over})).await.expect("answered");
    (answer.status, answer.json()["token"].as_str().unwrap_or_default().to_owned())
}

async fn status_of(api: &Api, token: &str) -> u16 {
    api.with_token(token).get(&format!("/v1/jobs/{JOB}")).await.expect("answered").status
}

/// J8.
#[tokio::test(flavor = "multi_thread")]
async fn job_tokens_outlive_the_process_and_end_with_their_owner_or_job() {
    let root = tempfile::tempdir().expect("a directory");
    let (token_file, config) = (root.path().join("admin"), root.path().join("forebay.toml"));
    std::fs::write(&token_file, format!("{ADMIN}\n")).expect("written");
    std::fs::write(&config, format!("[auth]\nadmin_token_file = {:?}\n", token_file.display().to_string())).expect("written");
    let spec = Spec::new(&root.path().join("node")).with_config(&config);
    let node = spec.start().await;
    let (status, first) = owner(&node.api.with_token(ADMIN), "one", false).await;
    assert_eq!((status, first.len() >= 16), (201, true));
    node.kill().await;

    let node = spec.start().await;
    assert_eq!(status_of(&node.api, &first).await, 200);
    let (status, second) = owner(&node.api.with_token(&first), "two", true).await;
    assert_eq!((status, second.len() >= 16), (200, true));
    assert_eq!((status_of(&node.api, &first).await, status_of(&node.api, &second).await), (401, 200));
    node.kill().await;

    let node = spec.start().await;
    assert_eq!((status_of(&node.api, &first).await, status_of(&node.api, &second).await), (401, 200));
    node.api.with_token(&second).release(&format!("/v1/jobs/{JOB}"), 2).await.expect("answered").ok();
    let (status, third) = owner(&node.api.with_token(ADMIN), "three", false).await;
    assert_eq!((status, third.len() >= 16), (201, true));
    assert_eq!((status_of(&node.api, &second).await, status_of(&node.api, &third).await), (401, 200));
    node.kill().await;
    let node = spec.start().await;
    assert_eq!((status_of(&node.api, &second).await, status_of(&node.api, &third).await), (401, 200));
}

/// F12.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_before_sigterm_holds() {
    let seed = seed("sigterm");
    let mut rng = StdRng::seed_from_u64(seed);
    let root = tempfile::tempdir().expect("a directory");
    let spec = Spec::new(&root.path().join("node")).with_objects(&root.path().join("objects"));
    let spec = spec.set(format!("shutdown.grace={}s", GRACE.as_secs()));
    let ledger = Arc::new(Ledger::new(seed, &["draining", "unavailable"]));
    let node = spec.start().await;
    declare(&node.api).await;
    node.terminate();
    assert!(node.ended(LIMIT).await.success());
    for round in 0..if is_long() { 100 } else { 6 } {
        let node = spec.start().await;
        println!("round {round}: {:?}", check_all(&node.api, &ledger).await);
        let sealed_before = ledger.n_sealed();
        let writers = start_writers(&node.api, &ledger);
        eventually("a seal is acknowledged", LIMIT, async || (ledger.n_sealed() > sealed_before).then_some(())).await;
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..300))).await;
        let begun = Instant::now();
        node.terminate();
        match round % 3 {
            // Most ends are orderly.
            0 => {
                let status = node.ended(LIMIT).await;
                assert!(status.success(), "{status:?}");
                assert!(begun.elapsed() <= GRACE + Duration::from_secs(1), "it took {:?}", begun.elapsed());
            }
            // Somebody is in a hurry.
            1 => {
                tokio::time::sleep(Duration::from_millis(rng.random_range(0..100))).await;
                node.terminate();
                let status = node.ended(LIMIT).await;
                assert!(status.success(), "{status:?}");
            }
            // The supervisor does not wait.
            _ => {
                tokio::time::sleep(Duration::from_millis(rng.random_range(0..100))).await;
                node.kill().await;
            }
        }
        join_all(writers).await;
    }
    let node = spec.start().await;
    println!("after all: {:?}", check_all(&node.api, &ledger).await);
}

async fn raw(address: &str, text: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.expect("connected");
    socket.write_all(text.as_bytes()).await.expect("sent");
    socket
}

/// I8.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_do_nothing_do_not_hold_up_the_end() {
    let root = tempfile::tempdir().expect("a directory");
    let node = Spec::new(&root.path().join("node")).set(format!("shutdown.grace={}s", GRACE.as_secs())).start().await;
    node.api.create_job(JOB).await;
    node.api.declare(JOB, "blocking", &json!({"kind": "blocking", "subpartitions": 1})).await;
    node.api.declare(JOB, "pipelined", &json!({"kind": "pipelined", "subpartitions": 1})).await;
    let (sealed, open) = (Place { job: JOB, dataset: "blocking", partition: 0 }, Place { job: JOB, dataset: "pipelined", partition: 0 });
    let written = Place { partition: 1, ..sealed.clone() };
    for place in [&sealed, &open, &written] {
        node.api.open(place, 0, 0).await.expect("answered").ok();
    }
    for at in 0..8 {
        node.api.append(&sealed, "0.0", 0, at << 22, content(at, 4 << 20)).await.expect("answered").ok();
    }
    node.api.seal(&sealed, "0.0").await.expect("answered").ok();

    let (address, life) = (node.address.clone(), node.api.life.clone());
    let mut idle = raw(&address, "GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n").await;
    assert!(idle.read(&mut [0; 1024]).await.expect("answered") > 0);
    let _silent = raw(&address, "").await;
    let _half_head = raw(&address, "GET /healthz HT").await;
    let _stalled = raw(&address, &format!("GET {}/subpartitions/0 HTTP/1.1\r\nHost: n\r\n\r\n", sealed.path())).await;
    let tail = format!("GET {}/subpartitions/0?from=0 HTTP/1.1\r\nHost: n\r\nPrefer: wait=50\r\n\r\n", open.path());
    let mut tail = raw(&address, &tail).await;
    let upload = format!(
        "PUT {}/attempts/0.0/subpartitions/0?offset=0 HTTP/1.1\r\nHost: n\r\nForebay-Node-Life: {life}\r\n\
         Content-Type: application/octet-stream\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n",
        written.path()
    );
    let mut upload = raw(&address, &upload).await;
    // The node has begun with the upload once it asks for the body.
    let mut go_on = [0; 25];
    upload.read_exact(&mut go_on).await.expect("the node asks for the body");
    assert!(go_on.starts_with(b"HTTP/1.1 100"), "{:?}", String::from_utf8_lossy(&go_on));
    upload.write_all(b"01234").await.expect("sent");

    let begun = Instant::now();
    node.terminate();
    let answer_of_tail = tokio::time::timeout(Duration::from_secs(2), async {
        let mut text = String::new();
        drop(tail.read_to_string(&mut text).await);
        text
    });
    let answer_of_tail = answer_of_tail.await.expect("a waiting read is answered at once");
    assert!(answer_of_tail.starts_with("HTTP/1.1 200") || answer_of_tail.starts_with("HTTP/1.1 503"), "{answer_of_tail:?}");
    eventually("new connections are refused", GRACE, async || TcpStream::connect(&address).await.err()).await;
    upload.write_all(b"56789").await.expect("an upload may finish");
    let mut answer = vec![0; 4096];
    let n = upload.read(&mut answer).await.expect("an upload is answered");
    assert!(answer[..n].starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&answer[..n]));
    assert!(node.ended(LIMIT).await.success());
    assert!(begun.elapsed() <= GRACE + Duration::from_secs(1), "the end took {:?}", begun.elapsed());
}

/// F11.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_on_one_directory_is_refused_and_disturbs_nothing() {
    let root = tempfile::tempdir().expect("a directory");
    let (real, other) = (root.path().join("node"), root.path().join("also"));
    let node = Spec::new(&real).start().await;
    std::os::unix::fs::symlink(&real, &other).expect("a link");
    node.api.create_job(JOB).await;
    node.api.declare(JOB, "blocking", &json!({"kind": "blocking", "subpartitions": 1})).await;
    let place = Place { job: JOB, dataset: "blocking", partition: 0 };
    node.api.open(&place, 0, 0).await.expect("answered").ok();
    node.api.append(&place, "0.0", 0, 0, Bytes::from_static(b"before ")).await.expect("answered").ok();
    for directory in [&real, &other] {
        let second = Spec::new(directory);
        let begun = Instant::now();
        let mut child = second.spawn();
        let status = tokio::time::timeout(LIMIT, child.wait()).await.expect("it ends").expect("a status");
        assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
        assert!(!status.success() && status.code().is_some(), "{status:?}");
        assert!(second.log().contains(&format!("{} is in use", directory.display())), "{}", second.log());
    }
    node.api.append(&place, "0.0", 0, 7, Bytes::from_static(b"and after")).await.expect("answered").ok();
    node.api.seal(&place, "0.0").await.expect("answered").ok();
    assert_eq!(node.api.read(&place, 0).await.expect("answered").text(), "before and after");
}

fn durable(partition: u64) -> Place {
    Place { job: JOB, dataset: "durable", partition }
}

async fn write_durable(api: &Api, partition: u64) {
    let place = durable(partition);
    api.open(&place, 0, 0).await.expect("answered").ok();
    let bytes = content(partition, 100_000 * usize::try_from(partition + 1).expect("small"));
    api.append(&place, "0.0", 0, 0, bytes).await.expect("answered").ok();
    api.seal(&place, "0.0").await.expect("answered").ok();
}

async fn check_durable(api: &Api, n: u64) {
    for partition in 0..n {
        let answer = api.read(&durable(partition), 0).await.expect("answered");
        if partition == 3 {
            assert_eq!(answer.code(), "released");
        } else {
            let wanted = content(partition, 100_000 * usize::try_from(partition + 1).expect("small"));
            assert!(answer.status == 200 && answer.body == wanted, "partition {partition}: {}", answer.status);
        }
    }
}

fn sharing(root: &Path, name: &str) -> Spec {
    Spec::new(&root.join(name)).with_objects(&root.join("objects")).set("object.manifest_age=500ms")
}

#[tokio::test(flavor = "multi_thread")]
async fn another_node_serves_everything_durable_of_a_node_that_is_gone_with_its_disk() {
    let root = tempfile::tempdir().expect("a directory");
    let (one, two) = (sharing(root.path(), "one").start().await, sharing(root.path(), "two").start().await);
    one.api.create_job(JOB).await;
    one.api.declare(JOB, "durable", &json!({"kind": "durable", "partitions": 10, "subpartitions": 1})).await;
    one.api.declare(JOB, "blocking", &json!({"kind": "blocking", "partitions": 10, "subpartitions": 1})).await;
    for partition in 0..8 {
        write_durable(&one.api, partition).await;
    }
    let local = Place { job: JOB, dataset: "blocking", partition: 0 };
    one.api.open(&local, 0, 0).await.expect("answered").ok();
    one.api.append(&local, "0.0", 0, 0, Bytes::from_static(b"local")).await.expect("answered").ok();
    one.api.seal(&local, "0.0").await.expect("answered").ok();
    one.api.release(&durable(3).path(), 1).await.expect("answered").ok();
    one.kill().await;
    std::fs::remove_dir_all(root.path().join("one")).expect("removed");

    check_durable(&two.api, 8).await;
    // What was on the disk that is gone is not there, and nobody says otherwise.
    let answer = two.api.read(&local, 0).await.expect("answered");
    assert!(!answer.is_success(), "{}", answer.text());
    // The other node also goes on: the job's owner writes there and ends the job there.
    write_durable(&two.api, 8).await;
    check_durable(&two.api, 9).await;
    let three = sharing(root.path(), "three").start().await;
    check_durable(&three.api, 9).await;
    two.api.release(&format!("/v1/jobs/{JOB}"), 1).await.expect("answered").ok();
    let refused = two.api.read(&durable(0), 0).await.expect("answered");
    assert_eq!(refused.code(), "released");
    eventually("the release is seen elsewhere", LIMIT, async || {
        let request = three.api.request(Method::GET, &format!("{}/subpartitions/0", durable(0).path()));
        let answer = three.api.send(request).await.expect("answered");
        (!answer.is_success()).then_some(())
    })
    .await;
}

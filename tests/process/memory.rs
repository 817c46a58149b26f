//! Memory of the process while many writers push as fast as they can and many readers dawdle.

use super::support::{Answered, Api, Node, Place, Spec, client, content, frame_stream, install_crypto, is_long, join_all};
use bytes::Bytes;
use reqwest::Method;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

const JOB: &str = "memory";
const N: u64 = 100;
const MIB: u64 = 1024 * 1024;
/// `node.memory`: far below what is written.
const BUDGET_MIB: u64 = 64;
/// What a process may use beside its budget under this load: itself with the index of the disk store
/// (20 MiB before the first request); 1.5 MiB for each of the 100 readers of blocking partitions, whose
/// reads ahead are not charged to the budget (three reads of 512 KiB); and buffers of connections with
/// what the system's allocator keeps. Grows with the number of readers, so it holds for 100 of them.
const OVERHEAD_MIB: u64 = 200;
const APPEND: usize = 256 * 1024;
/// Pause of a follower after each piece: slow enough that its writer fills the budget and must wait.
const PAUSE_OF_A_FOLLOWER: Duration = Duration::from_millis(40);

/// Bytes that all writers together write: enough that keeping them would break the limit.
fn target_bytes() -> u64 {
    let mib = if is_long() { 4096 } else { 400 };
    assert!(mib > BUDGET_MIB + OVERHEAD_MIB);
    mib * MIB
}

fn spec(directory: &Path) -> Spec {
    Spec::new(directory)
        .set(format!("node.memory={BUDGET_MIB}MiB"))
        .set("object.kind=none")
        .set("http.max_document=1MiB")
        .set("limits.max_frame=1MiB")
        .set("limits.atomic_append=1MiB")
        .set("limits.chunk=256KiB")
        .set("limits.append_patience=100ms")
        // Three connections for each of the 100 pairs of a writer and a follower, and some to spare:
        // together 20 MiB, so pipelined partitions get less than their share.
        .set("http.max_connections=320")
        .set("http.max_streams=16")
        .set("http.stream_window=4KiB")
        .set("http.budget=20MiB")
        .set("memory.budget=20MiB")
}

/// Most memory that the process ever had, in MiB.
fn peak_mib(node: &Node) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") / 1024
}

fn assert_bounded(what: &str, node: &Node, at_start: u64) {
    let (peak, written) = (peak_mib(node), target_bytes() / MIB);
    println!("{what}: {at_start} MiB at the start, {peak} MiB at most, {written} MiB written, budget {BUDGET_MIB} MiB");
    assert!(peak <= BUDGET_MIB + OVERHEAD_MIB, "{what}: {peak} MiB is more than {BUDGET_MIB} + {OVERHEAD_MIB}");
}

/// Reads a sealed subpartition over and over, a little at a time, until told to stop. Answers the
/// bytes it took.
async fn dawdle(api: Api, place: Place, wanted: Bytes, is_over: Arc<AtomicBool>) -> u64 {
    let mut taken = 0;
    while !is_over.load(Ordering::Relaxed) {
        let request = api.request(Method::GET, &format!("{}/subpartitions/0", place.path()));
        let mut response = request.send().await.expect("answered");
        assert_eq!(response.status(), 200);
        let mut at = 0;
        while let Some(piece) = response.chunk().await.expect("not cut") {
            assert!(wanted[at..].starts_with(&piece), "other bytes at {at}");
            at += piece.len();
            taken += piece.len() as u64;
            if is_over.load(Ordering::Relaxed) {
                return taken;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(at, wanted.len());
    }
    taken
}

async fn write_blocking(api: Api, writer: u64, frames: Bytes, bytes_each: u64, counters: Arc<Counters>) {
    let mut partition = 1000 + writer;
    while counters.written.fetch_add(bytes_each, Ordering::Relaxed) < target_bytes() {
        let place = Place { job: JOB, dataset: "blocking", partition };
        while !counters.took(api.open(&place, 0, 0).await).await {}
        while !counters.took(api.frames(&place, "0.0", frames.clone()).await).await {}
        while !counters.took(api.seal(&place, "0.0").await).await {}
        while !counters.took(api.release(&place.path(), 1).await).await {}
        partition += N;
    }
}

#[derive(Default)]
struct Counters {
    written: AtomicU64,
    refused: AtomicU64,
}

impl Counters {
    /// Whether the node took a request; after the pause it asked for when it was busy. Panics at any
    /// other refusal.
    async fn took(&self, answered: Answered) -> bool {
        let answer = answered.expect("answered");
        if answer.is_success() {
            return true;
        }
        assert_eq!(answer.code(), "overloaded", "{}", answer.text());
        self.refused.fetch_add(1, Ordering::Relaxed);
        let pause = answer.json()["retry_after_ms"].as_u64().unwrap_or(20).clamp(5, 200);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        false
    }
}

async fn fill(api: &Api, place: &Place, bytes: &Bytes) {
    api.open(place, 0, 0).await.expect("answered").ok();
    let mut offset = 0;
    for piece in bytes.chunks(APPEND) {
        api.append(place, "0.0", 0, offset, Bytes::copy_from_slice(piece)).await.expect("answered").ok();
        offset += piece.len() as u64;
    }
    api.seal(place, "0.0").await.expect("answered").ok();
}

async fn check_blocking(what: &str, http: reqwest::Client) {
    let root = tempfile::tempdir().expect("a directory");
    let node = spec(&root.path().join("node")).start().await;
    let writing = Api { http, ..node.api.clone() };
    let at_start = peak_mib(&node);
    node.api.create_job(JOB).await;
    node.api.declare(JOB, "blocking", &json!({"kind": "blocking", "subpartitions": 4})).await;
    let (source, whole) = (Place { job: JOB, dataset: "blocking", partition: 0 }, content(1, 32 * 1024 * 1024));
    fill(&node.api, &source, &whole).await;
    let (is_over, counters) = (Arc::new(AtomicBool::new(false)), Arc::new(Counters::default()));
    let readers: Vec<JoinHandle<u64>> =
        (0..N).map(|_| tokio::spawn(dawdle(node.api.clone(), source.clone(), whole.clone(), is_over.clone()))).collect();
    let block = content(2, APPEND);
    let frames = frame_stream((0..4).map(|subpartition| (subpartition, &block)));
    let write = |writer| write_blocking(writing.clone(), writer, frames.clone(), 4 * APPEND as u64, counters.clone());
    join_all((0..N).map(|writer| tokio::spawn(write(writer))).collect()).await;
    is_over.store(true, Ordering::Relaxed);
    let taken: u64 = join_all(readers).await.iter().sum();
    println!("{what}: readers took {} MiB, {} requests were told to wait", taken / MIB, counters.refused.load(Ordering::Relaxed));
    assert!(taken > 0);
    assert_bounded(what, &node, at_start);
}

#[tokio::test(flavor = "multi_thread")]
async fn blocking_partitions_stay_within_the_memory_budget() {
    check_blocking("blocking over HTTP/1.1", client()).await;
}

/// All writers over one connection: what a client may send ahead is bounded too.
#[tokio::test(flavor = "multi_thread")]
async fn blocking_partitions_over_http_2_stay_within_the_memory_budget() {
    install_crypto();
    let http = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().expect("a client");
    check_blocking("blocking over HTTP/2", http).await;
}

async fn write_pipelined(api: Api, place: Place, n_appends: u64, counters: Arc<Counters>) {
    let block = content(place.partition, APPEND);
    for append in 0..n_appends {
        let offset = append * APPEND as u64;
        while !counters.took(api.append(&place, "0.0", 0, offset, block.clone()).await).await {}
        counters.written.fetch_add(APPEND as u64, Ordering::Relaxed);
    }
    while !counters.took(api.seal(&place, "0.0").await).await {}
}

/// Follows an open subpartition to its end, a little at a time, and acknowledges what it took.
async fn follow(api: Api, place: Place, total: u64) {
    let block = content(place.partition, APPEND);
    let (mut at, mut acknowledged) = (0_u64, 0);
    while at < total {
        let request = api.request(Method::GET, &format!("{}/subpartitions/0?from={at}", place.path()));
        let mut response = request.send().await.expect("answered");
        assert_eq!(response.status(), 200);
        while let Some(piece) = response.chunk().await.expect("not cut") {
            for byte_run in piece.chunks(4096) {
                let within = usize::try_from(at % APPEND as u64).expect("small");
                let n_same = byte_run.len().min(APPEND - within);
                assert!(block[within..].starts_with(&byte_run[..n_same]) && block.starts_with(&byte_run[n_same..]), "other bytes at {at}");
                at += byte_run.len() as u64;
            }
            tokio::time::sleep(PAUSE_OF_A_FOLLOWER).await;
            // Also where an append ends: nothing may follow until there is room again.
            if at - acknowledged >= APPEND as u64 / 2 || at % APPEND as u64 == 0 {
                acknowledge(&api, &place, at).await;
                acknowledged = at;
            }
        }
    }
    assert_eq!(at, total);
}

async fn acknowledge(api: &Api, place: &Place, offset: u64) {
    let positions = json!({"positions": [{"partition": place.partition, "subpartition": 0, "offset": offset}]});
    let path = format!("/v1/jobs/{JOB}/datasets/{}/acknowledge", place.dataset);
    api.send(api.request(Method::POST, &path).header("Forebay-Node-Life", &api.life).json(&positions)).await.expect("answered").ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_partitions_stay_within_the_memory_budget() {
    let root = tempfile::tempdir().expect("a directory");
    let node = spec(&root.path().join("node")).start().await;
    let at_start = peak_mib(&node);
    node.api.create_job(JOB).await;
    node.api.declare(JOB, "pipelined", &json!({"kind": "pipelined", "partitions": N, "subpartitions": 1})).await;
    let n_appends = target_bytes() / N / APPEND as u64;
    let place = |partition| Place { job: JOB, dataset: "pipelined", partition };
    for partition in 0..N {
        node.api.open(&place(partition), 0, 0).await.expect("answered").ok();
    }
    let counters = Arc::new(Counters::default());
    let reader = |partition| tokio::spawn(follow(node.api.clone(), place(partition), n_appends * APPEND as u64));
    let writer = |partition| tokio::spawn(write_pipelined(node.api.clone(), place(partition), n_appends, counters.clone()));
    join_all((0..N).flat_map(|partition| [reader(partition), writer(partition)]).collect()).await;
    println!("pipelined: {} appends were told to wait", counters.refused.load(Ordering::Relaxed));
    assert!(counters.refused.load(Ordering::Relaxed) > 0, "the budget was never full: this shows nothing");
    assert_eq!(counters.written.load(Ordering::Relaxed), N * n_appends * APPEND as u64);
    assert_bounded("pipelined", &node, at_start);
}

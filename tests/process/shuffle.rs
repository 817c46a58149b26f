//! A shuffle of many producers and many consumers of small blocks: three requests for each producer,
//! one for each consumer.

use super::support::{Api, Place, Spec, content, for_each, frame_stream, is_long};
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use store_api::frame::FrameKind;

const JOB: &str = "shuffle";
const DATASET: &str = "stage-1";
const BLOCK: usize = 1024;
/// Tasks at a time, as of a cluster that has this many slots.
const WIDTH: usize = 16;

fn block(producer: u64, consumer: u64) -> Bytes {
    content(producer << 32 | consumer, BLOCK)
}

fn subpartition(number: u64) -> u32 {
    u32::try_from(number).expect("a subpartition")
}

async fn produce(api: Api, producer: u64, n_consumers: u64, n_requests: Arc<AtomicU64>) {
    let place = Place { job: JOB, dataset: DATASET, partition: producer };
    let blocks: Vec<(u32, Bytes)> = (0..n_consumers).map(|consumer| (subpartition(consumer), block(producer, consumer))).collect();
    let frames = frame_stream(blocks.iter().map(|(subpartition, bytes)| (*subpartition, bytes)));
    api.open(&place, 0, 0).await.expect("answered").ok();
    let written = api.frames(&place, "0.0", frames).await.expect("answered").ok();
    assert_eq!(written["new_bytes"].as_u64(), Some(n_consumers * BLOCK as u64));
    let sealed = api.seal(&place, "0.0").await.expect("answered").ok();
    assert_eq!(sealed["result"], "won");
    n_requests.fetch_add(3, Ordering::Relaxed);
}

async fn consume(api: Api, consumer: u64, n_producers: u64, n_requests: Arc<AtomicU64>) {
    let items: Value = (0..n_producers).map(|partition| json!({"partition": partition, "subpartition": consumer})).collect();
    let frames = api.fetch(JOB, DATASET, &items).await.expect("answered in full");
    n_requests.fetch_add(1, Ordering::Relaxed);
    let mut received = vec![Vec::new(); usize::try_from(n_producers).expect("few")];
    let (mut n_ended, mut is_ended) = (0, false);
    for frame in frames {
        let part = received.get_mut(frame.header.target as usize).expect("an item that was asked for");
        match frame.header.kind {
            FrameKind::Data => {
                assert_eq!(frame.header.position, part.len() as u64, "bytes come in order");
                part.extend_from_slice(frame.chunk.bytes());
            }
            FrameKind::ItemEnd => n_ended += 1,
            FrameKind::End => is_ended = frame.header.position == n_producers,
            other => panic!("{other:?} for item {}: {:?}", frame.header.target, frame.chunk.bytes()),
        }
    }
    assert_eq!((n_ended, is_ended), (n_producers, true), "every item is answered");
    for (producer, part) in (0..).zip(received) {
        assert!(part == block(producer, consumer), "block {producer} to {consumer} differs");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_block_of_a_wide_shuffle_arrives_in_few_requests() {
    let n: u64 = if is_long() { 1000 } else { 100 };
    let root = tempfile::tempdir().expect("a directory");
    let node = Spec::new(&root.path().join("node")).start().await;
    node.api.create_job(JOB).await;
    node.api.declare(JOB, DATASET, &json!({"kind": "blocking", "partitions": n, "subpartitions": n})).await;
    let (api, n_requests) = (node.api.clone(), Arc::new(AtomicU64::new(0)));
    let begun = Instant::now();
    let (writers, written) = (api.clone(), n_requests.clone());
    for_each(n, WIDTH, move |producer| produce(writers.clone(), producer, n, written.clone())).await;
    let write_time = begun.elapsed();
    let (readers, read) = (api.clone(), n_requests.clone());
    for_each(n, WIDTH, move |consumer| consume(readers.clone(), consumer, n, read.clone())).await;
    let read_time = begun.elapsed() - write_time;
    println!("shuffle {n} x {n} blocks of {BLOCK} bytes: written in {write_time:?}, read and compared in {read_time:?}");
    assert_eq!(n_requests.load(Ordering::Relaxed), 4 * n);
    let dataset = api.get(&format!("/v1/jobs/{JOB}/datasets/{DATASET}")).await.expect("answered").ok();
    assert_eq!((dataset["n_sealed"].as_u64(), dataset["sealed_bytes"].as_u64()), (Some(n), Some(n * n * BLOCK as u64)));
}

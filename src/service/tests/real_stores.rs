//! The service over the stores that it will run with: disk, memory, and the disk's catalog.

use super::bench::*;
use crate::service::*;
use bytes::Bytes;
use futures::TryStreamExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use store_api::*;
use store_disk::DiskStore;
use store_memory::MemoryStore;
use tempfile::TempDir;

struct Drawn(AtomicU64);

impl RandomSource for Drawn {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::SeqCst)
    }
}

/// Opens a node on a directory; the directory outlives it.
async fn open(root: &TempDir, life: u64) -> (Arc<PartitionService>, TaskGroup) {
    let (tasks, clock) = (TaskGroup::new(), SystemClock::shared());
    let (node, life) = (NodeId::new("node").unwrap(), NodeLife::new(life));
    let mut config = store_disk::Config::new(vec![root.path().join("one")], root.path().join("index"));
    config.write_budget_bytes = 64 << 20;
    config.per_job_budget_bytes = 64 << 20;
    let environment = store_disk::Environment { clock: clock.clone(), tasks: tasks.clone(), node: node.clone(), life };
    let disk = DiskStore::open(config, environment).unwrap();
    let memory_config = store_memory::Config { memory_bytes: 16 << 20, job_memory_bytes: 16 << 20, spill: None, ..Default::default() };
    let environment = store_memory::Environment { clock: clock.clone(), tasks: tasks.clone(), node: node.clone(), life };
    let memory = MemoryStore::open(memory_config, environment).await.unwrap();
    let parts = ServiceParts {
        stores: Stores { pipelined: Some(memory), blocking: Some(disk.clone()), durable: None },
        local_catalog: Arc::new(disk.catalog()),
        shared_catalog: None,
        medium: None,
        arbiter: Arc::new(LocalArbiter::new()),
        clock,
        tasks: tasks.clone(),
        node,
        life,
        url: "http://node".to_owned(),
        random: Arc::new(Drawn(AtomicU64::new(1))),
    };
    (PartitionService::start(ServiceConfig::default(), parts).await.unwrap(), tasks)
}

async fn produce(service: &Arc<PartitionService>, address: &PartitionAddress, bytes: &[u8]) {
    let life = Some(service.node().location.life);
    service.open_attempt(address, OpenAttempt::default()).await.unwrap();
    let attempt = AttemptAddress { partition: address.clone(), attempt: a(0, 0) };
    let mut sink = service.begin_frames(&attempt, life).await.unwrap();
    let frames = bytes.chunks(1000).enumerate().map(|(sequence, part)| frame(sequence as u64, 1, part)).collect();
    let ack = push(&mut sink, frames).await.unwrap();
    sink.finish(ack.next_sequence).await.unwrap();
    assert!(matches!(service.seal(&attempt, life, None).await.unwrap(), SealReply::Won(_)));
}

async fn read(service: &Arc<PartitionService>, address: &PartitionAddress) -> ServiceResult<Vec<u8>> {
    let call = ReadCall { attempt: None, subpartition: SubpartitionIndex::new(1), start: Offset::ZERO, end: None, kind: ReadKind::Sealed };
    let chunks: Vec<Bytes> = service.read(address, call).await?.chunks.try_collect().await?;
    Ok(chunks.concat())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_on_disk_and_in_memory_lives_through_a_restart_as_its_classes_say() {
    let root = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..100_000_u32).map(|number| number as u8).collect();
    let in_memory = PartitionAddress { dataset: dataset_id("p"), ..at(0) };
    {
        let (service, tasks) = open(&root, 1).await;
        service.put_job(&id("j"), JobRequest::default()).await.unwrap();
        service.put_dataset(&id("j"), &dataset_id("d"), spec(StoreClass::Blocking)).await.unwrap();
        service.put_dataset(&id("j"), &dataset_id("p"), spec(StoreClass::Pipelined)).await.unwrap();
        produce(&service, &at(0), &bytes).await;
        produce(&service, &at(1), &bytes).await;
        produce(&service, &in_memory, &bytes).await;
        assert_eq!(read(&service, &at(0)).await.unwrap(), bytes);
        assert_eq!(read(&service, &in_memory).await.unwrap(), bytes);
        service.release_partition(&at(1), Some(JobEpoch::new(1))).await.unwrap();
        service.close().await.unwrap();
        assert!(tasks.close(&SystemClock::new(), std::time::Duration::from_secs(10)).await);
    }
    let (service, tasks) = open(&root, 2).await;
    assert_eq!(read(&service, &at(0)).await.unwrap(), bytes);
    assert_eq!(refused(read(&service, &at(1)).await), ServiceErrorKind::Released);
    assert_eq!(refused(read(&service, &in_memory).await), ServiceErrorKind::Lost { cause: LossCause::Node });
    assert_eq!(service.job(&id("j")).await.unwrap().held.memory, 0);
    service.release_job(&id("j"), Some(JobEpoch::new(1))).await.unwrap();
    assert_eq!(refused(read(&service, &at(0)).await), ServiceErrorKind::Released);
    service.close().await.unwrap();
    assert!(tasks.close(&SystemClock::new(), std::time::Duration::from_secs(10)).await);
}

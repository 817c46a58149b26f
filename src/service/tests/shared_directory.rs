//! Two nodes over one real object store in a directory: what one has sealed the other serves, also when
//! the first is gone for good.

use super::bench::*;
use crate::service::*;
use bytes::Bytes;
use futures::TryStreamExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store_api::clock::ManualClock;
use store_api::*;
use store_object::{DirectoryConfig, ObjectStore, StoreConfig};

struct Drawn(AtomicU64);

impl RandomSource for Drawn {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::SeqCst)
    }
}

/// One node: its local catalog is its own, everything else lies in the directory.
struct Member {
    service: Arc<PartitionService>,
    tasks: TaskGroup,
    /// The service's clock; the store runs on the system's.
    clock: Arc<ManualClock>,
}

async fn join(directory: &Path, name: &str, life: u64) -> Member {
    let (tasks, clock) = (TaskGroup::new(), Arc::new(ManualClock::new(1_000_000_000_000)));
    let (node, life) = (NodeId::new(name).unwrap(), NodeLife::new(life));
    let config = store_object::Config {
        store: StoreConfig::Directory(DirectoryConfig { path: directory.to_owned() }),
        // Asked again at each use, so that a release through the other node is seen at once.
        manifest_age_ms: 0,
        // Small, so that the larger partitions are content objects of several blocks and parts.
        inline_bytes: 1000,
        block_bytes: 4096,
        read_bytes: 16 * 1024,
        part_bytes: 100_000,
        ..store_object::Config::default()
    };
    let environment = store_object::Environment { clock: SystemClock::shared(), tasks: tasks.clone(), node: node.clone(), life };
    let store = ObjectStore::open(config, environment).await.unwrap();
    let parts = ServiceParts {
        stores: Stores { durable: Some(store.clone()), ..Stores::default() },
        local_catalog: Arc::new(TestCatalog::default()),
        shared_catalog: Some(Arc::new(store.catalog())),
        medium: Some(store.clone()),
        arbiter: Arc::new(LocalArbiter::new()),
        clock: clock.clone(),
        tasks: tasks.clone(),
        node,
        life,
        url: format!("http://{name}"),
        random: Arc::new(Drawn(AtomicU64::new(life.get()))),
    };
    let config = ServiceConfig { shared_record_age: Duration::ZERO, ..ServiceConfig::default() };
    Member { service: PartitionService::start(config, parts).await.unwrap(), tasks, clock }
}

fn content(seed: u32, length: usize) -> Vec<u8> {
    (0..length as u32).map(|at| (at.wrapping_mul(31).wrapping_add(seed) % 251) as u8).collect()
}

impl Member {
    async fn declare(&self) {
        self.service.put_job(&id("j"), JobRequest::default()).await.unwrap();
        self.service.put_dataset(&id("j"), &dataset_id("d"), spec(StoreClass::Durable)).await.unwrap();
    }

    /// Opens an attempt and writes it, without sealing it.
    async fn write(&self, partition: u64, attempt: AttemptId, bytes: &[u8]) {
        let request = OpenAttempt { generation: attempt.generation, attempt: attempt.attempt, ..OpenAttempt::default() };
        self.service.open_attempt(&at(partition), request).await.unwrap();
        let life = Some(self.service.node().location.life);
        let mut sink = self.service.begin_frames(&of(partition, attempt), life).await.unwrap();
        let frames = bytes.chunks(5000).enumerate().map(|(sequence, part)| frame(sequence as u64, 2, part)).collect();
        let ack = push(&mut sink, frames).await.unwrap();
        sink.finish(ack.next_sequence).await.unwrap();
    }

    async fn seal(&self, partition: u64, attempt: AttemptId) -> SealReply {
        let life = Some(self.service.node().location.life);
        self.service.seal(&of(partition, attempt), life, None).await.unwrap()
    }

    async fn read(&self, partition: u64) -> ServiceResult<Vec<u8>> {
        let call =
            ReadCall { attempt: None, subpartition: SubpartitionIndex::new(2), start: Offset::ZERO, end: None, kind: ReadKind::Sealed };
        let chunks: Vec<Bytes> = self.service.read(&at(partition), call).await?.chunks.try_collect().await?;
        Ok(chunks.concat())
    }

    async fn states(&self, n_partitions: u32) -> Vec<(PartitionState, Option<u64>)> {
        let want = AvailabilityWant { dataset: dataset_id("d"), partition: PartitionId::new(0), n_partitions, subpartition: None };
        let views = self.service.availability(&id("j"), vec![want]).await.unwrap();
        views.into_iter().map(|view| (view.state, view.total_bytes)).collect()
    }

    /// Its process is gone, without a word.
    fn vanish(self) {
        self.tasks.cancel();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_durable_is_served_by_another_node_after_the_first_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let lengths = [0_usize, 1, 900, 4096, 4097, 250_000];
    let one = join(directory.path(), "one", 1).await;
    one.declare().await;
    for (partition, length) in (0..).zip(lengths) {
        one.write(partition, a(0, 0), &content(partition as u32, length)).await;
        assert!(matches!(one.seal(partition, a(0, 0)).await, SealReply::Won(_)));
    }
    one.write(6, a(0, 0), &content(6, 100)).await;
    one.vanish();
    let two = join(directory.path(), "two", 2).await;
    for (partition, length) in (0..).zip(lengths) {
        assert_eq!(two.read(partition).await.unwrap(), content(partition as u32, length), "partition {partition}");
        let view = two.service.partition(&at(partition)).await.unwrap();
        assert_eq!(view.state, PartitionState::Sealed);
        let held = view.manifest.unwrap();
        assert_eq!((held.location.node.to_string(), held.manifest.node.to_string()), ("two".to_owned(), "one".to_owned()));
    }
    let sealed = lengths.map(|length| (PartitionState::Sealed, Some(length as u64)));
    let states = two.states(8).await;
    assert_eq!(states[..6], sealed);
    assert_eq!(states[6].0, PartitionState::NotWritten, "an attempt that was never sealed is nobody's content");
    assert_eq!(refused(two.read(6).await), ServiceErrorKind::NotWritten);
    let job = two.service.job(&id("j")).await.unwrap();
    assert_eq!((job.epoch, job.is_new), (JobEpoch::new(1), false));
    let wants = (0..6).map(|partition| FetchWant {
        partition: PartitionId::new(partition),
        subpartition: SubpartitionIndex::new(2),
        start: Offset::ZERO,
        end: None,
        attempt: None,
    });
    let steps = two.service.fetch(&id("j"), &dataset_id("d"), wants.collect(), None).await.unwrap();
    let steps: Vec<FetchStep> = futures::StreamExt::collect(steps).await;
    assert_eq!(steps.iter().filter(|step| matches!(step, FetchStep::End { .. })).count(), 6, "{steps:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_on_at_the_other_node_and_the_release_there_is_final() {
    let directory = tempfile::tempdir().unwrap();
    let one = join(directory.path(), "one", 1).await;
    one.declare().await;
    one.write(0, a(0, 0), b"first half").await;
    one.seal(0, a(0, 0)).await;
    one.vanish();
    let two = join(directory.path(), "two", 2).await;
    let request = JobRequest { owner_nonce: "heir".to_owned(), take_over: true, ..JobRequest::default() };
    assert_eq!(two.service.put_job(&id("j"), request).await.unwrap().epoch, JobEpoch::new(2));
    two.write(1, a(0, 1), b"second half").await;
    assert!(matches!(two.seal(1, a(0, 1)).await, SealReply::Won(_)));
    let three = join(directory.path(), "three", 3).await;
    assert_eq!((three.read(0).await.unwrap(), three.read(1).await.unwrap()), (b"first half".to_vec(), b"second half".to_vec()));
    two.service.release_job(&id("j"), Some(JobEpoch::new(2))).await.unwrap();
    for member in [&two, &three] {
        assert!(member.read(0).await.is_err() && member.read(1).await.is_err());
    }
    let back = join(directory.path(), "one", 4).await;
    assert_eq!(refused(back.read(0).await), ServiceErrorKind::UnknownJob, "a node that comes back finds no trace of it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_and_a_dataset_released_at_one_node_are_so_at_the_other() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two) = (join(directory.path(), "one", 1).await, join(directory.path(), "two", 2).await);
    one.declare().await;
    for partition in 0..3 {
        one.write(partition, a(0, 0), &content(1, 10_000)).await;
        one.seal(partition, a(0, 0)).await;
    }
    assert_eq!(two.read(0).await.unwrap(), content(1, 10_000));
    one.service.release_partition(&at(0), Some(JobEpoch::new(1))).await.unwrap();
    one.service.release_partition(&at(1), Some(JobEpoch::new(1))).await.unwrap();
    assert_eq!(refused(two.read(0).await), ServiceErrorKind::Released, "one that it had served");
    assert!(two.read(1).await.is_err(), "one that it had never heard of");
    assert_eq!(two.read(2).await.unwrap(), content(1, 10_000), "the others stay");
    one.service.release_dataset(&id("j"), &dataset_id("d"), Some(JobEpoch::new(1))).await.unwrap();
    assert!(two.read(2).await.is_err());
    let late = join(directory.path(), "late", 9).await;
    assert_eq!(refused(late.read(2).await), ServiceErrorKind::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_seals_that_race_at_two_nodes_exactly_one_wins_and_both_serve_it() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two) = (join(directory.path(), "one", 1).await, join(directory.path(), "two", 2).await);
    one.declare().await;
    for partition in 0..12 {
        let (of_one, of_two) = (content(1, 3000), content(2, 3500));
        one.write(partition, a(0, 1), &of_one).await;
        two.write(partition, a(0, 2), &of_two).await;
        let (first, second) = tokio::join!(one.seal(partition, a(0, 1)), two.seal(partition, a(0, 2)));
        let winner = match (&first, &second) {
            (SealReply::Won(_), SealReply::OtherWon(winner)) => {
                assert_eq!(winner.manifest.attempt.attempt, a(0, 1));
                of_one
            }
            (SealReply::OtherWon(winner), SealReply::Won(_)) => {
                assert_eq!(winner.manifest.attempt.attempt, a(0, 2));
                of_two
            }
            other => panic!("two winners or none: {other:?}"),
        };
        assert_eq!(one.read(partition).await.unwrap(), winner);
        assert_eq!(two.read(partition).await.unwrap(), winner);
    }
    let repeated = one.seal(0, a(0, 1)).await;
    assert!(matches!(repeated, SealReply::Won(_) | SealReply::OtherWon(_)), "a repeat gets an answer again");
}

/// Files of a job in the directory, by any node.
fn files_of(directory: &Path, job: &str) -> usize {
    fn count(path: &Path, job: &str, is_inside: bool) -> usize {
        let Ok(entries) = std::fs::read_dir(path) else { return 0 };
        let of_entry = |entry: std::fs::DirEntry| {
            let is_inside = is_inside || entry.file_name() == job;
            if entry.path().is_dir() { count(&entry.path(), job, is_inside) } else { usize::from(is_inside) }
        };
        entries.flatten().map(of_entry).sum()
    }
    count(&directory.join("forebay/v1/partitions"), job, false)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_vanished_node_left_of_a_dead_job_is_swept_and_a_live_job_is_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let one = join(directory.path(), "one", 1).await;
    one.declare().await;
    one.write(0, a(0, 0), &content(1, 10_000)).await;
    one.seal(0, a(0, 0)).await;
    // Large enough that parts of it are in the object store before any seal.
    one.write(1, a(0, 0), &content(2, 500_000)).await;
    one.vanish();
    let two = join(directory.path(), "two", 2).await;
    let grace = two.service.config().orphan_grace;
    for _ in 0..3 {
        assert_eq!(two.service.sweep_orphans().await.unwrap(), Swept::default(), "its record says that it is alive");
        two.clock.advance(grace);
    }
    assert_eq!(two.read(0).await.unwrap(), content(1, 10_000));
    let request = JobRequest { owner_nonce: "heir".to_owned(), take_over: true, ..JobRequest::default() };
    two.service.put_job(&id("j"), request).await.unwrap();
    two.service.put_job(&id("alive"), JobRequest { lease: Some(grace * 20), ..JobRequest::default() }).await.unwrap();
    two.service.put_dataset(&id("alive"), &dataset_id("d"), spec(StoreClass::Durable)).await.unwrap();
    let address = PartitionAddress { job: id("alive"), ..at(0) };
    two.service.open_attempt(&address, OpenAttempt::default()).await.unwrap();
    let life = Some(two.service.node().location.life);
    two.service.seal(&AttemptAddress { partition: address, attempt: a(0, 0) }, life, None).await.unwrap();
    two.service.release_job(&id("j"), Some(JobEpoch::new(2))).await.unwrap();
    assert!(files_of(directory.path(), "j") > 0, "a release leaves tombstones and what it does not know of");
    two.service.sweep_orphans().await.unwrap();
    two.clock.advance(grace * 20 - Duration::from_secs(1));
    assert_eq!(two.service.sweep_orphans().await.unwrap(), Swept::default(), "not before the longest lease has passed");
    two.service.renew_lease(&id("alive"), Some(JobEpoch::new(1)), None).await.unwrap();
    two.clock.advance(Duration::from_secs(1));
    let swept = two.service.sweep_orphans().await.unwrap();
    assert!(swept.n_objects > 0, "{swept:?}");
    assert_eq!(files_of(directory.path(), "j"), 0);
    assert!(files_of(directory.path(), "alive") > 0);
}

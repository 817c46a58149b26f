//! Every gauge goes up with what it speaks of, and back to where it was.

use crate::config::{ByteSize, Config};
use crate::metrics::Metrics;
use crate::store_stack::{StoreStack, Surroundings, open};
use bytes::Bytes;
use futures::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use store_api::*;

struct Scene {
    stack: StoreStack,
    metrics: Arc<Metrics>,
    _directory: tempfile::TempDir,
}

async fn scene() -> Scene {
    let directory = tempfile::tempdir().unwrap();
    let mut config = Config::embedded();
    config.node.directory = directory.path().to_owned();
    config.node.memory = ByteSize::gib(1);
    config.memory.budget = Some(ByteSize::mib(16));
    config.disk.sync = crate::config::Sync::None;
    let metrics = Arc::new(Metrics::new());
    let surroundings =
        Surroundings { clock: SystemClock::shared(), tasks: TaskGroup::new(), node: NodeId::new("n").unwrap(), life: NodeLife::new(1) };
    let stack = open(&config, &surroundings, &metrics).await.unwrap();
    for store in [&stack.pipelined, &stack.blocking, &stack.durable].into_iter().flatten() {
        store.recover().await.unwrap();
    }
    Scene { stack, metrics, _directory: directory }
}

impl Scene {
    /// The value of a series on the page. Panics when it is not there.
    #[track_caller]
    fn value(&self, series: &str) -> u64 {
        let page = self.metrics.page();
        let line = page.lines().find_map(|line| line.strip_prefix("forebay_")?.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{series} is not in\n{page}")).parse().unwrap()
    }

    fn used(&self, part: &str) -> u64 {
        self.value(&format!("budget_used_bytes{{part=\"{part}\"}}"))
    }

    /// Waits until a series is as wanted; work in the background brings it there.
    async fn until(&self, series: &str, is_wanted: impl Fn(u64) -> bool) {
        let reached = async {
            while !is_wanted(self.value(series)) {
                tokio::task::yield_now().await;
            }
        };
        let reached = clock::within(&SystemClock::new(), Duration::from_secs(30), reached).await;
        assert!(reached.is_some(), "{series} stayed at {}", self.value(series));
    }
}

fn spec(kind: DatasetKind) -> Arc<DatasetSpec> {
    let groups = if matches!(kind, DatasetKind::Pipelined(_)) { vec![ConsumerId::new("g").unwrap()] } else { Vec::new() };
    Arc::new(DatasetSpec { kind, n_partitions: Some(4), n_subpartitions: 1, is_broadcast: false, arbitration: Arbitration::Store, groups })
}

fn key(dataset: &str) -> AttemptKey {
    let dataset =
        DatasetKey { job: JobId::new("j").unwrap(), incarnation: JobIncarnation::new(1), dataset: DatasetId::new(dataset).unwrap() };
    dataset.partition(PartitionId::new(0)).attempt(AttemptId::new(0, 0))
}

async fn append(store: &SharedStore, key: &AttemptKey, length: usize) {
    let permit = store.reserve(key, length as u64, Duration::from_secs(10)).await.unwrap();
    let piece = Piece { subpartition: SubpartitionIndex::new(0), start: None, chunk: Chunk::new(Bytes::from(vec![7; length])) };
    store.append(AppendRequest { attempt: key.clone(), pieces: vec![piece], permit }).await.unwrap();
}

async fn seal(store: &SharedStore, key: &AttemptKey) {
    store.prepare(PrepareRequest { attempt: key.clone(), expected: None }).await.unwrap();
    store.publish(key).await.unwrap();
}

fn whole(key: &AttemptKey) -> ReadRequest {
    ReadRequest { attempt: key.clone(), subpartition: SubpartitionIndex::new(0), start: Offset::ZERO, end: None, mode: ReadMode::Sealed }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_disk_and_reads_of_blocking_and_durable_partitions_are_on_the_page_and_go_back_to_nothing() {
    const LENGTH: usize = 600_000;
    let scene = scene().await;
    for (class, store, kind) in
        [("blocking", &scene.stack.blocking, DatasetKind::Blocking), ("durable", &scene.stack.durable, DatasetKind::Durable)]
    {
        let (store, key) = (store.as_ref().unwrap(), key(class));
        store.open(OpenRequest { attempt: key.clone(), spec: spec(kind), starts: Vec::new() }).await.unwrap();
        assert_eq!(scene.used(class), 0);
        append(store, &key, LENGTH).await;
        assert_eq!(scene.used(class), LENGTH as u64, "{class}: memory");
        seal(store, &key).await;
        scene.until(&format!("budget_used_bytes{{part=\"{class}\"}}"), |used| used == 0).await;
        let readers = format!("open_readers{{class=\"{class}\"}}");
        let mut stream = store.read(whole(&key)).await.unwrap();
        assert_eq!((scene.value(&readers), scene.used("reads")), (1, 0), "{class}: nothing is read before it is asked for");
        let first = stream.chunks.next().await.unwrap().unwrap();
        assert!(scene.used("reads") >= first.len() as u64, "{class}: what the reader holds is charged");
        drop(stream);
        assert_eq!(scene.value(&readers), 0);
        scene.until("budget_used_bytes{part=\"reads\"}", |used| used == first.len() as u64).await;
        drop(first);
        assert_eq!(scene.used("reads"), 0, "{class}");
        if class == "blocking" {
            assert!(scene.value("disk_held_bytes{directory=\"0\"}") >= LENGTH as u64);
        }
        store.release(ReleaseScope::Job { job: key.job().clone(), incarnation: JobIncarnation::new(1) }).await.unwrap();
    }
    scene.until("disk_held_bytes{directory=\"0\"}", |held| held == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_and_spill_files_of_pipelined_partitions_are_on_the_page_and_go_back_to_nothing() {
    const LENGTH: usize = 1 << 20;
    let scene = scene().await;
    let (store, key) = (scene.stack.pipelined.as_ref().unwrap(), key("p"));
    let kind = DatasetKind::Pipelined(Retention::SinceCheckpoint);
    store.open(OpenRequest { attempt: key.clone(), spec: spec(kind), starts: Vec::new() }).await.unwrap();
    assert_eq!((scene.used("pipelined"), scene.value("spilled_bytes"), scene.value("pipelined_waiting")), (0, 0, 0));
    append(store, &key, LENGTH).await;
    assert_eq!(scene.used("pipelined"), LENGTH as u64);
    for _ in 0..23 {
        append(store, &key, LENGTH).await;
    }
    scene.until("spilled_bytes", |bytes| bytes >= 8 * LENGTH as u64).await;
    assert!(scene.used("pipelined") <= 16 * LENGTH as u64);
    seal(store, &key).await;
    let mut stream = store.read(whole(&key)).await.unwrap();
    let first = stream.chunks.next().await.unwrap().unwrap();
    assert_eq!(scene.used("reads"), first.len() as u64, "bytes that come back from disk are charged to readers");
    drop((first, stream));
    assert_eq!(scene.used("reads"), 0);
    store.release(ReleaseScope::Job { job: key.job().clone(), incarnation: JobIncarnation::new(1) }).await.unwrap();
    scene.until("spilled_bytes", |bytes| bytes == 0).await;
    scene.until("budget_used_bytes{part=\"pipelined\"}", |bytes| bytes == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_readers_that_take_nothing_stay_inside_the_read_budget_and_are_all_served() {
    const LENGTH: usize = 4 << 20;
    let scene = scene().await;
    let (store, key) = (scene.stack.blocking.as_ref().unwrap(), key("b"));
    store.open(OpenRequest { attempt: key.clone(), spec: spec(DatasetKind::Blocking), starts: Vec::new() }).await.unwrap();
    for _ in 0..4 {
        append(store, &key, LENGTH / 4).await;
    }
    seal(store, &key).await;
    let mut slow = Vec::new();
    for reader in 0..200 {
        let mut stream = store.read(whole(&key)).await.unwrap();
        let first = stream.chunks.next().await.unwrap();
        assert!(first.is_ok(), "reader {reader}: {first:?}");
        slow.push((stream, first));
    }
    let limit = scene.value("budget_limit_bytes{part=\"reads\"}");
    assert!(scene.used("reads") <= limit, "{} of {limit}", scene.used("reads"));
    // One that reads on gets all of it, while the others hold what they have.
    let chunks: Vec<_> = store.read(whole(&key)).await.unwrap().chunks.collect().await;
    let n_bytes: usize = chunks.iter().map(|chunk| chunk.as_ref().map_or(0, Bytes::len)).sum();
    assert_eq!(n_bytes, LENGTH, "{:?}", chunks.iter().find_map(|chunk| chunk.as_ref().err()));
    drop((slow, chunks));
    scene.until("budget_used_bytes{part=\"reads\"}", |used| used == 0).await;
}

//! Claims about the layers, over a store that notes which methods were called.

use super::*;
use crate::metrics::Metrics;
use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use store_api::clock::ManualClock;
use store_api::{
    AcknowledgeRequest, AppendAck, AppendRequest, AttemptId, AttemptKey, AttemptStat, AttemptState, AttemptTails, ByteBudget, Capabilities,
    CheckpointRequest, Chunk, ClassAchieved, DatasetId, DatasetKey, DatasetSpec, Durability, FetchEvent, FloorReport, HeldBytes, JobId,
    JobIncarnation, NodeId, NodeLife, Offset, OpenRequest, Operation, PartitionId, PartitionKey, PartitionStore, Permit, PrepareRequest,
    ReadMode, ReadRequest, ReadStream, RecoveryReport, ReleaseReport, ReleaseScope, Scope, SealManifest, SealOutcome, SharedClock,
    SharedStore, StoreError, SubpartitionBounds, SubpartitionIndex, SubpartitionTable, SyncLevel,
};

pub(super) fn attempt_key(partition: u64) -> AttemptKey {
    let dataset =
        DatasetKey { job: JobId::new("job-MARKER").unwrap(), incarnation: JobIncarnation::new(1), dataset: DatasetId::new("d").unwrap() };
    dataset.partition(PartitionId::new(partition)).attempt(AttemptId::new(0, 0))
}

/// How the store behaves.
#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Answers,
    Refuses,
    Hangs,
}

struct Noting {
    capabilities: Capabilities,
    called: Mutex<Vec<&'static str>>,
    mood: Mood,
    clock: SharedClock,
}

impl Noting {
    fn new(mood: Mood, clock: SharedClock) -> Arc<Self> {
        let class =
            ClassAchieved { class: StoreClass::Blocking, durability: Durability::Local, sync: SyncLevel::Full, scope: Scope::NodeDisk };
        let capabilities = Capabilities { class, reads_open: false, retentions: Vec::new(), max_chunk_bytes: 1, max_subpartition_bytes: 1 };
        Arc::new(Self { capabilities, called: Mutex::default(), mood, clock })
    }

    async fn answer<T>(&self, name: &'static str, value: T) -> Result<T, StoreError> {
        self.called.lock().push(name);
        match self.mood {
            Mood::Answers => Ok(value),
            Mood::Refuses => Err(StoreError::new(StoreErrorKind::DiskFull, Operation::Append, "x")),
            Mood::Hangs => std::future::pending().await,
        }
    }
}

fn tails() -> AttemptTails {
    AttemptTails { state: AttemptState::Open, tails: Vec::new() }
}

fn manifest() -> Arc<SealManifest> {
    Arc::new(SealManifest {
        attempt: attempt_key(0),
        table: SubpartitionTable::new(1, []).unwrap(),
        class: Noting::new(Mood::Answers, Arc::new(ManualClock::new(0))).capabilities.class,
        node: NodeId::new("n").unwrap(),
        life: NodeLife::new(1),
        sealed_at_ms: 0,
    })
}

#[async_trait]
impl PartitionStore for Noting {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn held(&self, _: &JobId, _: JobIncarnation) -> HeldBytes {
        self.called.lock().push("held");
        HeldBytes { memory: 1, disk: 2, object: 3 }
    }
    async fn open(&self, _: OpenRequest) -> Result<AttemptTails, StoreError> {
        self.answer("open", tails()).await
    }
    async fn reserve(&self, _: &AttemptKey, bytes: u64, _: Duration) -> Result<Permit, StoreError> {
        self.answer("reserve", ByteBudget::new(10, self.clock.clone()).try_reserve(bytes).unwrap()).await
    }
    async fn append(&self, _: AppendRequest) -> Result<AppendAck, StoreError> {
        self.answer("append", AppendAck { end: Offset::new(5), new_bytes: 5 }).await
    }
    async fn tails(&self, _: &AttemptKey) -> Result<AttemptTails, StoreError> {
        self.answer("tails", tails()).await
    }
    async fn bounds(&self, _: &AttemptKey, _: SubpartitionIndex) -> Result<SubpartitionBounds, StoreError> {
        self.answer("bounds", SubpartitionBounds { state: AttemptState::Open, floor: Offset::ZERO, tail: Offset::ZERO }).await
    }
    async fn prepare(&self, _: PrepareRequest) -> Result<Arc<SealManifest>, StoreError> {
        self.answer("prepare", manifest()).await
    }
    async fn publish(&self, _: &AttemptKey) -> Result<SealOutcome, StoreError> {
        self.answer("publish", SealOutcome::Won(manifest())).await
    }
    async fn abort(&self, _: &AttemptKey) -> Result<(), StoreError> {
        self.answer("abort", ()).await
    }
    async fn read(&self, request: ReadRequest) -> Result<ReadStream, StoreError> {
        let end = stream::iter([Ok(bytes::Bytes::from_static(b"12345"))]);
        let chunks = if self.mood == Mood::Hangs { end.chain(stream::pending()).boxed() } else { end.boxed() };
        self.called.lock().push("read");
        Ok(ReadStream { start: request.start, end: Some(Offset::new(5)), digest: None, chunks })
    }
    fn fetch(&self, items: Vec<ReadRequest>) -> BoxStream<'static, FetchEvent> {
        self.called.lock().push("fetch");
        let first = FetchEvent::Data { item: 0, start: Offset::new(0), chunk: Chunk::new(bytes::Bytes::from_static(b"12345")) };
        let ends: Vec<_> = (0..items.len()).map(|item| FetchEvent::End { item, end: Offset::new(5) }).collect();
        let head = stream::iter([first]);
        if self.mood == Mood::Hangs { head.chain(stream::pending()).boxed() } else { head.chain(stream::iter(ends)).boxed() }
    }
    async fn stat(&self, _: &AttemptKey) -> Result<AttemptStat, StoreError> {
        self.answer("stat", AttemptStat { state: AttemptState::Open, total_bytes: 0, floors: Vec::new(), sent: Vec::new() }).await
    }
    async fn manifest(&self, _: &AttemptKey) -> Result<Arc<SealManifest>, StoreError> {
        self.answer("manifest", manifest()).await
    }
    async fn locate(&self, _: &PartitionKey, _: &DatasetSpec, _: u32) -> Result<Option<Arc<SealManifest>>, StoreError> {
        self.answer("locate", None).await
    }
    async fn acknowledge(&self, _: AcknowledgeRequest) -> Result<FloorReport, StoreError> {
        self.answer("acknowledge", FloorReport::default()).await
    }
    async fn complete_checkpoint(&self, _: CheckpointRequest) -> Result<FloorReport, StoreError> {
        self.answer("complete_checkpoint", FloorReport::default()).await
    }
    async fn release(&self, _: ReleaseScope) -> Result<ReleaseReport, StoreError> {
        self.answer("release", ReleaseReport::default()).await
    }
    async fn recover(&self) -> Result<RecoveryReport, StoreError> {
        self.answer("recover", RecoveryReport::default()).await
    }
    async fn close(&self) -> Result<(), StoreError> {
        self.answer("close", ()).await
    }
}

fn read_request() -> ReadRequest {
    ReadRequest {
        attempt: attempt_key(0),
        subpartition: SubpartitionIndex::new(0),
        start: Offset::new(0),
        end: None,
        mode: ReadMode::Sealed,
    }
}

fn spec() -> Arc<DatasetSpec> {
    Arc::new(DatasetSpec {
        kind: store_api::DatasetKind::Blocking,
        n_partitions: Some(1),
        n_subpartitions: 1,
        is_broadcast: false,
        arbitration: store_api::Arbitration::Store,
        groups: Vec::new(),
    })
}

/// Calls every method once; answers how many failed.
async fn call_all(store: &SharedStore, clock: &SharedClock) -> usize {
    let key = attempt_key(0);
    store.held(key.job(), JobIncarnation::new(1));
    let permit = ByteBudget::new(10, clock.clone()).try_reserve(5).unwrap();
    let acknowledge = AcknowledgeRequest { attempt: key.clone(), group: store_api::ConsumerId::new("g").unwrap(), offsets: Vec::new() };
    let checkpoint = CheckpointRequest { attempt: key.clone(), checkpoint: 1, need: Vec::new() };
    let mut failed = 0;
    let mut note = |has_failed: bool| failed += usize::from(has_failed);
    note(store.open(OpenRequest { attempt: key.clone(), spec: spec(), starts: Vec::new() }).await.is_err());
    note(store.reserve(&key, 5, Duration::ZERO).await.is_err());
    note(store.append(AppendRequest { attempt: key.clone(), pieces: Vec::new(), permit }).await.is_err());
    note(store.tails(&key).await.is_err());
    note(store.prepare(PrepareRequest { attempt: key.clone(), expected: None }).await.is_err());
    note(store.publish(&key).await.is_err());
    note(store.abort(&key).await.is_err());
    note(store.stat(&key).await.is_err());
    note(store.manifest(&key).await.is_err());
    note(store.locate(&key.partition, &spec(), 0).await.is_err());
    note(store.acknowledge(acknowledge).await.is_err());
    note(store.complete_checkpoint(checkpoint).await.is_err());
    note(store.release(ReleaseScope::Attempt(key.clone())).await.is_err());
    note(store.recover().await.is_err());
    note(store.close().await.is_err());
    let n_chunks = store.read(read_request()).await.unwrap().chunks.count().await;
    let n_events = store.fetch(vec![read_request()]).count().await;
    assert_eq!((n_chunks, n_events), (1, 2));
    failed
}

const EVERY_METHOD: &[&str] = &[
    "abort",
    "acknowledge",
    "append",
    "close",
    "complete_checkpoint",
    "fetch",
    "held",
    "locate",
    "manifest",
    "open",
    "prepare",
    "publish",
    "read",
    "recover",
    "release",
    "reserve",
    "stat",
    "tails",
];

fn each_layer(inner: &Arc<Noting>, clock: &SharedClock, metrics: &Arc<Metrics>) -> Vec<SharedStore> {
    let inner: SharedStore = inner.clone();
    vec![
        Arc::new(Metered::new(inner.clone(), metrics.clone(), clock.clone())),
        Arc::new(Traced::new(inner.clone())),
        Arc::new(Deadline::new(inner, clock.clone(), Duration::from_secs(1), Duration::from_secs(1))),
    ]
}

#[tokio::test]
async fn every_layer_forwards_every_method_once_and_every_answer() {
    let clock: SharedClock = Arc::new(ManualClock::new(0));
    for (mood, n_refused) in [(Mood::Answers, 0), (Mood::Refuses, 15)] {
        for at in 0..3 {
            let inner = Noting::new(mood, clock.clone());
            let layer = each_layer(&inner, &clock, &Arc::new(Metrics::new())).swap_remove(at);
            assert_eq!(call_all(&layer, &clock).await, n_refused, "layer {at}");
            let mut called = inner.called.lock().clone();
            called.sort_unstable();
            assert_eq!(called, EVERY_METHOD, "layer {at}");
            assert_eq!(layer.capabilities(), &inner.capabilities);
        }
    }
}

#[tokio::test]
async fn calls_are_counted_without_the_name_of_the_job() {
    let clock: SharedClock = Arc::new(ManualClock::new(0));
    let metrics = Arc::new(Metrics::new());
    let layer = each_layer(&Noting::new(Mood::Answers, clock.clone()), &clock, &metrics).swap_remove(0);
    call_all(&layer, &clock).await;
    call_all(&layer, &clock).await;
    let page = metrics.page();
    for line in [
        "forebay_written_bytes_total{class=\"blocking\"} 10",
        "forebay_seals_total{class=\"blocking\"} 2",
        "forebay_read_bytes_total{class=\"blocking\",pass=\"first\"} 5",
        "forebay_read_bytes_total{class=\"blocking\",pass=\"again\"} 15",
        "forebay_open_readers{class=\"blocking\"} 0",
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
    assert!(!page.contains("MARKER"));
}

#[tokio::test]
async fn the_page_does_not_grow_with_jobs() {
    let clock: SharedClock = Arc::new(ManualClock::new(0));
    let metrics = Arc::new(Metrics::new());
    let layer = each_layer(&Noting::new(Mood::Refuses, clock.clone()), &clock, &metrics).swap_remove(0);
    call_all(&layer, &clock).await;
    let n_lines = metrics.page().lines().count();
    for number in 0..200 {
        let mut key = attempt_key(number);
        key.partition.dataset.job = JobId::new(&format!("job-{number}")).unwrap();
        let _ = layer.tails(&key).await;
        let _ = layer.read(ReadRequest { attempt: key, ..read_request() }).await;
    }
    assert_eq!(metrics.page().lines().count(), n_lines);
}

#[tokio::test]
async fn what_hangs_is_answered_as_unavailable() {
    let manual = Arc::new(ManualClock::new(0));
    let clock: SharedClock = manual.clone();
    let layer = each_layer(&Noting::new(Mood::Hangs, clock.clone()), &clock, &Arc::new(Metrics::new())).swap_remove(2);
    let refused = crate::test_time::hasten(&manual, layer.tails(&attempt_key(0))).await.unwrap_err();
    assert!(matches!(refused.kind(), StoreErrorKind::Unavailable { .. }));
    let stream = layer.read(read_request()).await.unwrap();
    let chunks: Vec<Result<bytes::Bytes, StoreError>> = crate::test_time::hasten(&manual, stream.chunks.collect()).await;
    assert!(chunks[0].is_ok() && chunks[1].as_ref().is_err_and(|error| matches!(error.kind(), StoreErrorKind::Unavailable { .. })));
    assert_eq!(chunks.len(), 2, "an error ends the stream");
}

#[tokio::test]
async fn a_batch_that_hangs_ends_every_item_where_it_stands() {
    let manual = Arc::new(ManualClock::new(0));
    let clock: SharedClock = manual.clone();
    let layer = each_layer(&Noting::new(Mood::Hangs, clock.clone()), &clock, &Arc::new(Metrics::new())).swap_remove(2);
    let events: Vec<FetchEvent> = crate::test_time::hasten(&manual, layer.fetch(vec![read_request(), read_request()]).collect()).await;
    let failed = events.iter().filter_map(|event| match event {
        FetchEvent::Failed { item, at, .. } => Some((*item, at.get())),
        FetchEvent::Data { .. } | FetchEvent::End { .. } => None,
    });
    assert_eq!(failed.collect::<Vec<_>>(), [(0, 5), (1, 0)]);
}

//! What the tests of this crate share: stores, keys, and short forms of calls.

mod disks;
mod retentions;

use crate::config::{Config, SpillConfig};
use crate::store::{Environment, MemoryStore};
use bytes::Bytes;
use futures::StreamExt;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use store_api::{
    AcknowledgeRequest, AppendAck, AppendRequest, Arbitration, AttemptId, AttemptKey, CheckpointRequest, Chunk, ConsumerId, DatasetId,
    DatasetKey, DatasetKind, DatasetSpec, HeldBytes, JobId, JobIncarnation, NodeId, NodeLife, Offset, OpenRequest, PartitionId,
    PartitionStore, Permit, Piece, PrepareRequest, ReadMode, ReadRequest, ReadStream, Retention, SealManifest, SharedClock, StoreError,
    StoreErrorKind, SubpartitionIndex, SystemClock, TaskGroup,
};

/// Longer than anything takes that does not hang.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) fn index(number: u32) -> SubpartitionIndex {
    SubpartitionIndex::new(number)
}

pub(crate) fn job() -> JobId {
    JobId::new("job").unwrap()
}

pub(crate) fn dataset(name: &str) -> DatasetKey {
    DatasetKey { job: job(), incarnation: JobIncarnation::new(1), dataset: DatasetId::new(name).unwrap() }
}

pub(crate) fn attempt_key(partition: u64) -> AttemptKey {
    dataset("d").partition(PartitionId::new(partition)).attempt(AttemptId::new(0, 0))
}

pub(crate) fn group(name: &str) -> ConsumerId {
    ConsumerId::new(name).unwrap()
}

pub(crate) fn spec(retention: Retention, n_subpartitions: u32) -> DatasetSpec {
    DatasetSpec {
        kind: DatasetKind::Pipelined(retention),
        n_partitions: None,
        n_subpartitions,
        is_broadcast: false,
        arbitration: Arbitration::Store,
        groups: vec![group("g")],
    }
}

/// Bytes that differ by subpartition and position.
pub(crate) fn pattern(subpartition: u32, start: u64, length: u64) -> Bytes {
    (start..start + length).map(|at| u8::try_from((at ^ (at >> 8) ^ (u64::from(subpartition) * 37)) & 0xff).unwrap()).collect()
}

pub(crate) fn small_spill(root: &Path) -> SpillConfig {
    SpillConfig {
        batch_bytes: 2000,
        file_bytes: 8000,
        reserve_bytes: 0,
        pause_after_failure: Duration::from_millis(20),
        ..SpillConfig::new(vec![root.join("spill")])
    }
}

pub(crate) fn config(memory_bytes: u64) -> Config {
    Config { memory_bytes, job_memory_bytes: memory_bytes, ..Config::default() }
}

pub(crate) async fn store_with(config: Config, clock: SharedClock) -> Arc<MemoryStore> {
    let environment = Environment { clock, tasks: TaskGroup::new(), node: NodeId::new("n").unwrap(), life: NodeLife::new(1) };
    MemoryStore::open(config, environment).await.unwrap()
}

pub(crate) async fn store(config: Config) -> Arc<MemoryStore> {
    store_with(config, SystemClock::shared()).await
}

/// An attempt of a store.
#[derive(Clone)]
pub(crate) struct Of {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) key: AttemptKey,
    pub(crate) spec: Arc<DatasetSpec>,
}

impl Of {
    pub(crate) async fn opened(store: &Arc<MemoryStore>, partition: u64, spec: DatasetSpec) -> Self {
        let of = Self { store: store.clone(), key: attempt_key(partition), spec: Arc::new(spec) };
        of.open().await.unwrap();
        of
    }

    pub(crate) async fn open(&self) -> Result<(), StoreError> {
        let request = OpenRequest { attempt: self.key.clone(), spec: self.spec.clone(), starts: Vec::new() };
        self.store.open(request).await.map(|_| ())
    }

    pub(crate) async fn put(
        &self,
        subpartition: u32,
        start: Option<u64>,
        bytes: Bytes,
        patience: Duration,
    ) -> Result<AppendAck, StoreError> {
        let permit = self.store.reserve(&self.key, bytes.len() as u64, patience).await?;
        self.put_with(subpartition, start, bytes, permit).await
    }

    pub(crate) async fn put_with(
        &self,
        subpartition: u32,
        start: Option<u64>,
        bytes: Bytes,
        permit: Permit,
    ) -> Result<AppendAck, StoreError> {
        let piece = Piece { subpartition: index(subpartition), start: start.map(Offset::new), chunk: Chunk::new(bytes) };
        self.store.append(AppendRequest { attempt: self.key.clone(), pieces: vec![piece], permit }).await
    }

    /// Appends pattern bytes.
    pub(crate) async fn write(&self, subpartition: u32, start: u64, length: u64) -> Result<AppendAck, StoreError> {
        self.put(subpartition, Some(start), pattern(subpartition, start, length), SOON).await
    }

    pub(crate) async fn tail(&self, subpartition: u32, start: u64, wait: Duration) -> Result<ReadStream, StoreError> {
        self.store.read(self.request(subpartition, start, None, ReadMode::Tail { wait })).await
    }

    pub(crate) fn request(&self, subpartition: u32, start: u64, end: Option<u64>, mode: ReadMode) -> ReadRequest {
        ReadRequest {
            attempt: self.key.clone(),
            subpartition: index(subpartition),
            start: Offset::new(start),
            end: end.map(Offset::new),
            mode,
        }
    }

    /// Everything that is there from `start` on.
    pub(crate) async fn bytes_from(&self, subpartition: u32, start: u64) -> Result<Bytes, StoreError> {
        collect(self.tail(subpartition, start, Duration::ZERO).await?).await
    }

    pub(crate) async fn prepare(&self) -> Result<Arc<SealManifest>, StoreError> {
        self.store.prepare(PrepareRequest { attempt: self.key.clone(), expected: None }).await
    }

    pub(crate) async fn seal(&self) -> Arc<SealManifest> {
        let manifest = self.prepare().await.unwrap();
        self.store.publish(&self.key).await.unwrap();
        manifest
    }

    pub(crate) async fn acknowledge(&self, name: &str, offsets: &[(u32, u64)]) -> Result<u64, StoreError> {
        let offsets = offsets.iter().map(|(at, offset)| (index(*at), Offset::new(*offset))).collect();
        let request = AcknowledgeRequest { attempt: self.key.clone(), group: group(name), offsets };
        self.store.acknowledge(request).await.map(|report| report.freed_bytes)
    }

    pub(crate) async fn checkpoint(&self, checkpoint: u64, need: &[(u32, u64)]) -> Result<u64, StoreError> {
        let need = need.iter().map(|(at, offset)| (group("g"), index(*at), Offset::new(*offset))).collect();
        let request = CheckpointRequest { attempt: self.key.clone(), checkpoint, need };
        self.store.complete_checkpoint(request).await.map(|report| report.freed_bytes)
    }

    pub(crate) fn held(&self) -> HeldBytes {
        self.store.held(&job(), JobIncarnation::new(1))
    }
}

pub(crate) async fn collect(mut stream: ReadStream) -> Result<Bytes, StoreError> {
    let mut all = Vec::new();
    while let Some(bytes) = stream.chunks.next().await {
        all.extend_from_slice(&bytes?);
    }
    Ok(all.into())
}

pub(crate) fn kind<T>(result: Result<T, StoreError>) -> StoreErrorKind {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(error) => error.kind().clone(),
    }
}

/// Waits until `is_so`, and fails when that does not come.
#[expect(clippy::disallowed_methods, reason = "a test waits on a condition in small steps")]
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..4000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: it did not come");
}

/// Whether many rounds are wanted.
pub(crate) fn rounds(short: usize) -> usize {
    if std::env::var_os("FOREBAY_LONG").is_some() { short * 10 } else { short }
}

/// The seed of a random run, printed so that a failure can be repeated with `FOREBAY_SEED`.
pub(crate) fn seed() -> u64 {
    let given = std::env::var("FOREBAY_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one("seed"));
    println!("FOREBAY_SEED={seed}");
    seed
}

//! A store in a temporary directory, and short calls.

use crate::{Config, DiskStore, Environment};
use bytes::Bytes;
use futures::StreamExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store_api::*;

pub(super) const PATIENCE: Duration = Duration::from_secs(20);
static NEXT_LIFE: AtomicU64 = AtomicU64::new(1);

pub(super) struct Fixture {
    pub(super) root: tempfile::TempDir,
    pub(super) config: Config,
    pub(super) tasks: TaskGroup,
}

impl Fixture {
    pub(super) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut config = Config::new(vec![root.path().join("data")], root.path().join("index"));
        config.reserve_bytes = 0;
        config.reserve_per_mille = 0;
        Self { root, config, tasks: TaskGroup::new() }
    }

    pub(super) fn try_open(&self) -> Result<Arc<DiskStore>, StoreError> {
        let life = NodeLife::new(NEXT_LIFE.fetch_add(1, Ordering::SeqCst) << 16);
        let node = NodeId::new("node").unwrap();
        let environment = Environment { clock: SystemClock::shared(), tasks: self.tasks.clone(), node, life };
        DiskStore::open(self.config.clone(), environment)
    }

    pub(super) fn open(&self) -> Arc<DiskStore> {
        self.try_open().unwrap()
    }

    /// Opens again once background work of the former store has let go of its locks.
    pub(super) async fn reopen(&self, store: Arc<DiskStore>) -> (Arc<DiskStore>, RecoveryReport) {
        store.close().await.unwrap();
        drop(store);
        let store = self.open();
        let report = store.recover().await.unwrap();
        (store, report)
    }

    /// The data files there are.
    pub(super) fn parts(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for directory in &self.config.data_dirs {
            let entries = std::fs::read_dir(directory.join("parts")).into_iter().flatten();
            found.extend(entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|end| end == "part")));
        }
        found.sort();
        found
    }

    pub(super) fn part_bytes(&self) -> u64 {
        self.parts().iter().map(|path| path.metadata().unwrap().len()).sum()
    }
}

pub(super) fn job() -> JobId {
    JobId::new("job").unwrap()
}

pub(super) fn held(store: &DiskStore) -> HeldBytes {
    store.held(&job(), JobIncarnation::new(1))
}

pub(super) fn key(partition: u64, generation: u32, attempt: u32) -> AttemptKey {
    let dataset = DatasetKey { job: job(), incarnation: JobIncarnation::new(1), dataset: DatasetId::new("d").unwrap() };
    dataset.partition(PartitionId::new(partition)).attempt(AttemptId::new(generation, attempt))
}

pub(super) fn spec(n_subpartitions: u32) -> Arc<DatasetSpec> {
    Arc::new(DatasetSpec {
        kind: DatasetKind::Blocking,
        n_partitions: None,
        n_subpartitions,
        is_broadcast: false,
        arbitration: Arbitration::Store,
        groups: Vec::new(),
    })
}

/// Bytes that tell where they belong.
pub(super) fn pattern(salt: u64, start: u64, length: u64) -> Bytes {
    let mixed = |at: u64| at.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(salt.wrapping_mul(0xD134_2543_DE82_EF95));
    let byte = |at: u64| mixed(at).to_le_bytes()[4];
    (start..start + length).map(byte).collect()
}

pub(super) async fn open(store: &DiskStore, attempt: &AttemptKey, n_subpartitions: u32) {
    let request = OpenRequest { attempt: attempt.clone(), spec: spec(n_subpartitions), starts: Vec::new() };
    store.open(request).await.unwrap();
}

pub(super) async fn put(
    store: &DiskStore,
    attempt: &AttemptKey,
    subpartition: u32,
    start: u64,
    bytes: Bytes,
) -> Result<AppendAck, StoreError> {
    let permit = store.reserve(attempt, bytes.len() as u64, PATIENCE).await?;
    let piece = Piece { subpartition: SubpartitionIndex::new(subpartition), start: Some(Offset::new(start)), chunk: Chunk::new(bytes) };
    store.append(AppendRequest { attempt: attempt.clone(), pieces: vec![piece], permit }).await
}

pub(super) async fn seal(store: &DiskStore, attempt: &AttemptKey) -> Arc<SealManifest> {
    store.prepare(PrepareRequest { attempt: attempt.clone(), expected: None }).await.unwrap();
    match store.publish(attempt).await.unwrap() {
        SealOutcome::Won(manifest) => manifest,
        SealOutcome::Lost(_) => panic!("this store never answers so"),
    }
}

/// Opens, writes `length` bytes of the pattern to each subpartition and seals.
pub(super) async fn sealed(store: &DiskStore, attempt: &AttemptKey, n_subpartitions: u32, length: u64) -> Arc<SealManifest> {
    open(store, attempt, n_subpartitions).await;
    for index in 0..n_subpartitions {
        put(store, attempt, index, 0, pattern(u64::from(index), 0, length)).await.unwrap();
    }
    seal(store, attempt).await
}

pub(super) fn request(attempt: &AttemptKey, subpartition: u32, start: u64, end: Option<u64>) -> ReadRequest {
    ReadRequest {
        attempt: attempt.clone(),
        subpartition: SubpartitionIndex::new(subpartition),
        start: Offset::new(start),
        end: end.map(Offset::new),
        mode: ReadMode::Sealed,
    }
}

pub(super) async fn read(
    store: &DiskStore,
    attempt: &AttemptKey,
    subpartition: u32,
    start: u64,
    end: Option<u64>,
) -> Result<Bytes, StoreError> {
    let mut stream = store.read(request(attempt, subpartition, start, end)).await?;
    let mut all = Vec::new();
    while let Some(chunk) = stream.chunks.next().await {
        all.extend_from_slice(&chunk?);
    }
    Ok(all.into())
}

pub(super) fn flip(path: &Path, at: u64) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[usize::try_from(at).unwrap()] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// Whether many rounds are wanted.
pub(super) fn is_long() -> bool {
    store_testkit::suite::is_long()
}

/// The seed of a random run, printed so that a failure can be repeated with `FOREBAY_SEED`.
pub(super) fn seed() -> u64 {
    store_testkit::suite::seed("store-disk")
}

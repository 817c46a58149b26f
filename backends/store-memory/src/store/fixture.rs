//! Stores for tests, and short forms of the calls of one attempt.

use super::{Environment, MemoryStore};
use crate::config::Config;
use crate::sample::{SOON, attempt_key, collect, group, index, job, pattern};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use store_api::{
    AcknowledgeRequest, AppendAck, AppendRequest, AttemptKey, CheckpointRequest, Chunk, DatasetSpec, HeldBytes, JobIncarnation, NodeId,
    NodeLife, Offset, OpenRequest, PartitionStore, Permit, Piece, PrepareRequest, ReadMode, ReadRequest, ReadStream, SealManifest,
    SharedClock, StoreError, SystemClock, TaskGroup,
};

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

//! An object store in memory that fails as it is told and counts what it is asked, and the calls
//! that the tests make.

use async_trait::async_trait;
use bytes::Bytes;
use forebay_store_object::{Config, Environment, ObjectStore, Parts, StoreConfig};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartId, MultipartUpload, ObjectMeta,
    ObjectStore as RawStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use store_api::{
    AppendAck, AppendRequest, Arbitration, AttemptId, AttemptKey, Chunk, Clock, DatasetId, DatasetKey, DatasetKind, DatasetSpec, JobId,
    JobIncarnation, NodeId, NodeLife, Offset, OpenRequest, PartitionId, PartitionStore, Piece, PrepareRequest, ReadMode, ReadRequest,
    Scope, SealManifest, SealOutcome, StoreError, SubpartitionIndex, SystemClock, TaskGroup,
};

/// What the object store was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Call {
    Put,
    Create,
    Update,
    Get,
    Delete,
    List,
    Begin,
    Part,
    Complete,
    Abort,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing is done, the answer has this status.
    Status(u16),
    /// It is done, the answer is lost.
    ReplyLost,
    /// The body of the answer breaks after so many bytes.
    CutAt(usize),
    /// The body of the answer ends after so many bytes, as if that were all.
    EndAt(usize),
    /// The whole object is answered, whatever range was asked for.
    IgnoresRange,
    /// One byte of the body is another.
    Damage,
    /// Nothing is done yet, the answer is an error; a put is done when it is delivered.
    Late,
}

struct Rule {
    call: Call,
    name: &'static str,
    fault: Fault,
    times: usize,
}

/// The object store.
#[derive(Default)]
pub(crate) struct FaultBucket {
    memory: InMemory,
    ignores_conditions: bool,
    rules: Mutex<Vec<Rule>>,
    counts: Mutex<BTreeMap<Call, usize>>,
    uploads: Mutex<BTreeSet<String>>,
    late: Mutex<Vec<(Path, PutPayload, PutOptions)>>,
}

fn status(code: u16) -> Error {
    Error::Generic { store: "faults", source: format!("Server returned non-2xx status code: {code} X: injected").into() }
}

impl FaultBucket {
    /// One that takes conditional puts for unconditional ones, without an error.
    pub(crate) fn that_ignores_conditions() -> Self {
        Self { ignores_conditions: true, ..Self::default() }
    }

    /// The next `times` calls on names that contain `name` fail like this.
    pub(crate) fn fail(&self, call: Call, name: &'static str, fault: Fault, times: usize) {
        self.rules.lock().push(Rule { call, name, fault, times });
    }

    /// Nothing fails any more.
    pub(crate) fn heal(&self) {
        self.rules.lock().clear();
    }

    fn fault(&self, call: Call, path: &str) -> Option<Fault> {
        *self.counts.lock().entry(call).or_default() += 1;
        let mut rules = self.rules.lock();
        let rule = rules.iter_mut().find(|rule| rule.call == call && rule.times > 0 && path.contains(rule.name))?;
        rule.times -= 1;
        Some(rule.fault)
    }

    /// Fails before the call when it is to.
    fn before(&self, call: Call, path: &str) -> Result<Option<Fault>> {
        match self.fault(call, path) {
            Some(Fault::Status(404)) => Err(Error::NotFound { path: path.to_owned(), source: "injected".into() }),
            Some(Fault::Status(code)) => Err(status(code)),
            Some(Fault::Late) if !matches!(call, Call::Put | Call::Create | Call::Update) => Err(status(504)),
            other => Ok(other),
        }
    }

    /// Puts that were on their way arrive now, in order. Answers how many changed something.
    pub(crate) async fn deliver(&self) -> usize {
        let late = std::mem::take(&mut *self.late.lock());
        let mut n_done = 0;
        for (path, payload, options) in late {
            n_done += usize::from(self.memory.put_opts(&path, payload, options).await.is_ok());
        }
        n_done
    }

    /// Calls since the last time, by kind.
    pub(crate) fn take_counts(&self) -> BTreeMap<Call, usize> {
        std::mem::take(&mut self.counts.lock())
    }

    /// Uploads in parts that are neither finished nor ended.
    pub(crate) fn n_uploads(&self) -> usize {
        self.uploads.lock().len()
    }

    /// Names of all objects that contain `part`.
    pub(crate) async fn names(&self, part: &str) -> Vec<String> {
        let found: Vec<ObjectMeta> = self.memory.list(None).try_collect().await.unwrap();
        let mut names: Vec<String> = found.into_iter().map(|meta| meta.location.to_string()).filter(|name| name.contains(part)).collect();
        names.sort();
        names
    }

    /// Changes one byte of an object.
    pub(crate) async fn damage(&self, name: &str, at: usize) {
        let path = Path::from(name);
        let mut bytes = self.memory.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
        bytes[at] ^= 1;
        self.memory.put(&path, bytes.into()).await.unwrap();
    }
}

impl std::fmt::Debug for FaultBucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FaultBucket")
    }
}

impl std::fmt::Display for FaultBucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FaultBucket")
    }
}

fn reply<T>(fault: Option<Fault>, answer: T) -> Result<T> {
    if fault == Some(Fault::ReplyLost) {
        Err(Error::Generic { store: "faults", source: "connection reset by peer".into() })
    } else {
        Ok(answer)
    }
}

#[async_trait]
impl RawStore for FaultBucket {
    async fn put_opts(&self, location: &Path, payload: PutPayload, mut opts: PutOptions) -> Result<PutResult> {
        let call = match opts.mode {
            PutMode::Overwrite => Call::Put,
            PutMode::Create => Call::Create,
            PutMode::Update(_) => Call::Update,
        };
        let fault = self.before(call, location.as_ref())?;
        if self.ignores_conditions {
            opts.mode = PutMode::Overwrite;
        }
        if fault == Some(Fault::Late) {
            self.late.lock().push((location.clone(), payload, opts));
            return Err(status(504));
        }
        reply(fault, self.memory.put_opts(location, payload, opts).await?)
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.memory.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, mut options: GetOptions) -> Result<GetResult> {
        let fault = self.before(Call::Get, location.as_ref())?;
        if fault == Some(Fault::IgnoresRange) {
            options.range = None;
        }
        let is_head = options.head;
        let mut result = self.memory.get_opts(location, options).await?;
        if is_head {
            return reply(fault, result);
        }
        let (meta, range, attributes) = (result.meta.clone(), result.range.clone(), result.attributes.clone());
        let extensions = std::mem::take(&mut result.extensions);
        let body = result.bytes().await?;
        let pieces: Vec<Result<Bytes>> = match fault {
            Some(Fault::CutAt(length)) => vec![Ok(body.slice(..length.min(body.len()))), Err(status(500))],
            Some(Fault::EndAt(length)) => vec![Ok(body.slice(..length.min(body.len())))],
            Some(Fault::Damage) => {
                let mut bytes = body.to_vec();
                if let Some(byte) = bytes.first_mut() {
                    *byte ^= 1;
                }
                vec![Ok(bytes.into())]
            }
            _ => vec![Ok(body)],
        };
        reply(
            fault,
            GetResult { payload: GetResultPayload::Stream(futures::stream::iter(pieces).boxed()), meta, range, attributes, extensions },
        )
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        match self.before(Call::Delete, "") {
            Err(error) => futures::stream::once(std::future::ready(Err(error))).boxed(),
            Ok(_) => self.memory.delete_stream(locations),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.before(Call::List, prefix.map_or("", |prefix| prefix.as_ref())) {
            Err(error) => futures::stream::once(std::future::ready(Err(error))).boxed(),
            Ok(Some(Fault::CutAt(n))) => {
                let some = self.memory.list(prefix).take(n).chain(futures::stream::once(std::future::ready(Err(status(500)))));
                some.boxed()
            }
            Ok(_) => self.memory.list(prefix),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.memory.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.memory.copy_opts(from, to, options).await
    }
}

#[async_trait]
impl MultipartStore for FaultBucket {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        let fault = self.before(Call::Begin, path.as_ref())?;
        let id = self.memory.create_multipart(path).await?;
        self.uploads.lock().insert(id.clone());
        reply(fault, id)
    }

    async fn put_part(&self, path: &Path, id: &MultipartId, part_idx: usize, data: PutPayload) -> Result<PartId> {
        let fault = self.before(Call::Part, path.as_ref())?;
        reply(fault, self.memory.put_part(path, id, part_idx, data).await?)
    }

    async fn complete_multipart(&self, path: &Path, id: &MultipartId, parts: Vec<PartId>) -> Result<PutResult> {
        let fault = self.before(Call::Complete, path.as_ref())?;
        let done = self.memory.complete_multipart(path, id, parts).await?;
        self.uploads.lock().remove(id);
        reply(fault, done)
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        let fault = self.before(Call::Abort, path.as_ref())?;
        self.memory.abort_multipart(path, id).await?;
        self.uploads.lock().remove(id);
        reply(fault, ())
    }
}

/// Small sizes, short waits.
pub(crate) fn config() -> Config {
    Config {
        memory_bytes: 1 << 20,
        part_bytes: 10_000,
        max_part_bytes: 40_000,
        inline_bytes: 1000,
        block_bytes: 1000,
        read_bytes: 4000,
        read_memory_bytes: 1 << 20,
        manifest_age_ms: 0,
        answer_limit_ms: 5000,
        tries: 2,
        lists_at_start: false,
        ..Config::new(StoreConfig::Memory)
    }
}

/// The system's clock, but short pauses (those between two tries) take no time.
#[derive(Debug)]
struct Hasty(SystemClock);

#[async_trait]
impl Clock for Hasty {
    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn unix_ms(&self) -> u64 {
        self.0.unix_ms()
    }

    async fn sleep(&self, duration: Duration) {
        if duration < Duration::from_secs(1) { tokio::task::yield_now().await } else { self.0.sleep(duration).await }
    }
}

/// A node's surroundings.
pub(crate) fn environment(node: &str, life: u64) -> Environment {
    Environment {
        clock: Arc::new(Hasty(SystemClock::new())),
        tasks: TaskGroup::new(),
        node: NodeId::new(node).unwrap(),
        life: NodeLife::new(life),
    }
}

/// A store of one life of a node.
pub(crate) async fn open_as(
    bucket: &Arc<FaultBucket>,
    config: Config,
    node: &str,
    life: u64,
) -> std::result::Result<Arc<ObjectStore>, StoreError> {
    let parts: Parts = bucket.clone();
    ObjectStore::open_with(bucket.clone(), Some(parts), Scope::ObjectStore, config, environment(node, life)).await
}

/// A store over a new object store.
pub(crate) async fn fresh() -> (Arc<FaultBucket>, Arc<ObjectStore>) {
    let bucket = Arc::new(FaultBucket::default());
    let store = open_as(&bucket, config(), "n1", 1).await.unwrap();
    bucket.take_counts();
    (bucket, store)
}

/// Attempt `generation.number` of partition `partition`.
pub(crate) fn attempt(partition: u64, generation: u32, number: u32) -> AttemptKey {
    let dataset =
        DatasetKey { job: JobId::new("job").unwrap(), incarnation: JobIncarnation::new(1), dataset: DatasetId::new("d").unwrap() };
    dataset.partition(PartitionId::new(partition)).attempt(AttemptId::new(generation, number))
}

/// A durable dataset of 4 subpartitions.
pub(crate) fn spec() -> Arc<DatasetSpec> {
    Arc::new(DatasetSpec {
        kind: DatasetKind::Durable,
        n_partitions: None,
        n_subpartitions: 4,
        is_broadcast: false,
        arbitration: Arbitration::Store,
        groups: Vec::new(),
    })
}

/// Bytes of an attempt at a place.
pub(crate) fn pattern(key: &AttemptKey, subpartition: u32, start: u64, length: usize) -> Bytes {
    let salt = key.partition.partition.get() * 7 + u64::from(key.attempt.attempt) * 13 + u64::from(subpartition) * 31;
    (start..start + length as u64)
        .map(|at| u8::try_from((at.wrapping_mul(2_654_435_761) >> 7).wrapping_add(salt + at) & 0xff).unwrap())
        .collect()
}

pub(crate) async fn open(store: &ObjectStore, key: &AttemptKey) -> std::result::Result<(), StoreError> {
    store.open(OpenRequest { attempt: key.clone(), spec: spec(), starts: Vec::new() }).await.map(drop)
}

pub(crate) async fn append(
    store: &ObjectStore,
    key: &AttemptKey,
    subpartition: u32,
    start: u64,
    bytes: Bytes,
) -> std::result::Result<AppendAck, StoreError> {
    let permit = store.reserve(key, bytes.len() as u64, Duration::from_secs(5)).await?;
    let piece = Piece { subpartition: SubpartitionIndex::new(subpartition), start: Some(Offset::new(start)), chunk: Chunk::new(bytes) };
    store.append(AppendRequest { attempt: key.clone(), pieces: vec![piece], permit }).await
}

/// Opens an attempt and appends its pattern in pieces of at most 5,000 bytes.
pub(crate) async fn write(store: &ObjectStore, key: &AttemptKey, subpartition: u32, length: usize) {
    open(store, key).await.unwrap();
    let mut at = 0;
    while at < length {
        let step = (length - at).min(5000);
        append(store, key, subpartition, at as u64, pattern(key, subpartition, at as u64, step)).await.unwrap();
        at += step;
    }
}

pub(crate) async fn prepare(store: &ObjectStore, key: &AttemptKey) -> std::result::Result<Arc<SealManifest>, StoreError> {
    store.prepare(PrepareRequest { attempt: key.clone(), expected: None }).await
}

pub(crate) async fn seal(store: &ObjectStore, key: &AttemptKey) -> SealOutcome {
    prepare(store, key).await.unwrap();
    store.publish(key).await.unwrap()
}

pub(crate) async fn read(store: &ObjectStore, key: &AttemptKey, subpartition: u32) -> std::result::Result<Bytes, StoreError> {
    let request = ReadRequest {
        attempt: key.clone(),
        subpartition: SubpartitionIndex::new(subpartition),
        start: Offset::ZERO,
        end: None,
        mode: ReadMode::Sealed,
    };
    let pieces: Vec<Bytes> = store.read(request).await?.chunks.try_collect().await?;
    Ok(pieces.concat().into())
}

/// Asserts that a subpartition holds the attempt's pattern.
pub(crate) async fn assert_holds(store: &ObjectStore, key: &AttemptKey, subpartition: u32, length: usize) {
    let held = read(store, key, subpartition).await.unwrap();
    assert!(held == pattern(key, subpartition, 0, length), "{} bytes of {key} are not what was written", held.len());
}

//! Keys, specs, patterns, and the calls that cases make.
//!
//! Bytes come from [`pattern`]: a function of a salt and the position, so that a byte at a wrong
//! place or of a wrong attempt is never equal by chance for long.

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use store_api::clock::within;
use store_api::{
    AppendAck, AppendRequest, Arbitration, AttemptId, AttemptKey, AttemptTails, Chunk, ConsumerId, DatasetId, DatasetKey, DatasetKind,
    DatasetSpec, Digest, FetchEvent, JobId, JobIncarnation, Offset, OpenRequest, PartitionId, PartitionKey, Piece, PrepareRequest,
    ReadMode, ReadRequest, ReadStream, SealManifest, SealOutcome, SharedClock, SharedStore, StoreError, StoreErrorKind, SubpartitionIndex,
    SubpartitionTable, SystemClock,
};

/// Longest time for something that must come soon, unless the factory says another.
pub const SOON: Duration = Duration::from_secs(10);

tokio::task_local! {
    static PATIENCE: Duration;
}

/// Longest time for something that must come soon, in the case that runs.
#[must_use]
pub fn patience() -> Duration {
    PATIENCE.try_with(|patience| *patience).unwrap_or(SOON)
}

/// Runs a case in which "soon" means `patience`.
pub async fn with_patience<T>(patience: Duration, case: impl Future<Output = T>) -> T {
    PATIENCE.scope(patience, case).await
}

/// The job `name`.
#[must_use]
pub fn job(name: &str) -> JobId {
    JobId::new(name).expect("the names of the cases are ids")
}

/// The consumer group `name`.
#[must_use]
pub fn group(name: &str) -> ConsumerId {
    ConsumerId::new(name).expect("the names of the cases are ids")
}

/// Dataset `dataset` of incarnation `incarnation` of job `name`.
#[must_use]
pub fn dataset(name: &str, incarnation: u64, dataset: &str) -> DatasetKey {
    let dataset = DatasetId::new(dataset).expect("the names of the cases are ids");
    DatasetKey { job: job(name), incarnation: JobIncarnation::new(incarnation), dataset }
}

/// A partition of dataset `d` of the usual job.
#[must_use]
pub fn partition(number: u64) -> PartitionKey {
    dataset("job", 1, "d").partition(PartitionId::new(number))
}

/// Attempt `generation.number` of a partition of the usual dataset.
#[must_use]
pub fn attempt(of: u64, generation: u32, number: u32) -> AttemptKey {
    partition(of).attempt(AttemptId::new(generation, number))
}

/// A dataset spec of `kind`, arbitrated by the store, with the one group `g` if it is pipelined.
#[must_use]
pub fn spec(kind: DatasetKind, n_subpartitions: u32) -> DatasetSpec {
    let groups = if matches!(kind, DatasetKind::Pipelined(_)) { vec![group("g")] } else { Vec::new() };
    DatasetSpec { kind, n_partitions: None, n_subpartitions, is_broadcast: false, arbitration: Arbitration::Store, groups }
}

/// `length` bytes of the pattern of `salt` from position `start` on.
#[must_use]
pub fn pattern(salt: u64, start: u64, length: u64) -> Bytes {
    let mut out = BytesMut::with_capacity(usize::try_from(length).unwrap_or(0) + 16);
    let end = start + length;
    let mut word = start / 8;
    while word * 8 < end {
        out.extend_from_slice(&mix(salt ^ mix(word)).to_le_bytes());
        word += 1;
    }
    let skip = usize::try_from(start % 8).unwrap_or(0);
    out.freeze().slice(skip..skip + usize::try_from(length).unwrap_or(0))
}

/// Spreads a number over 64 bits (the finaliser of a splittable generator).
#[must_use]
pub const fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The kind of a refusal. Panics when the call succeeded.
#[track_caller]
pub fn refused<T: Debug>(result: Result<T, StoreError>) -> StoreErrorKind {
    match result {
        Ok(value) => panic!("this was to be refused, but the answer was {value:?}"),
        Err(error) => error.kind().clone(),
    }
}

/// Whether the kind says that something released is not there (any more).
#[must_use]
pub fn is_gone(kind: &StoreErrorKind) -> bool {
    matches!(kind, StoreErrorKind::Released | StoreErrorKind::NotFound)
}

/// Asserts that a call was refused with a kind of this shape.
#[macro_export]
macro_rules! assert_refused {
    ($result:expr, $shape:pat $(if $guard:expr)?) => {{
        let kind = $crate::scenario::refused($result);
        assert!(matches!(kind, $shape $(if $guard)?), "refused with {kind:?}, not with {}", stringify!($shape));
    }};
}

/// All bytes of a stream, or the bytes before its error.
pub async fn collect(stream: ReadStream) -> Result<Bytes, (Bytes, StoreError)> {
    let mut chunks = stream.chunks;
    let mut out = BytesMut::new();
    while let Some(next) = chunks.next().await {
        match next {
            Ok(bytes) => out.extend_from_slice(&bytes),
            Err(error) => return Err((out.freeze(), error)),
        }
    }
    Ok(out.freeze())
}

/// One attempt of a store, with the calls that cases make.
#[derive(Clone)]
pub struct Attempt {
    /// The store.
    pub store: SharedStore,
    /// The attempt.
    pub key: AttemptKey,
    /// The dataset it belongs to.
    pub spec: Arc<DatasetSpec>,
}

impl Attempt {
    /// An attempt that is not opened.
    #[must_use]
    pub fn new(store: &SharedStore, key: AttemptKey, spec: DatasetSpec) -> Self {
        Self { store: store.clone(), key, spec: Arc::new(spec) }
    }

    /// An attempt that is open.
    pub async fn opened(store: &SharedStore, key: AttemptKey, spec: DatasetSpec) -> Self {
        let this = Self::new(store, key, spec);
        this.open().await.expect("a new attempt can be opened");
        this
    }

    /// The salt of this attempt's pattern in a subpartition.
    #[must_use]
    pub fn salt(&self, subpartition: u32) -> u64 {
        let AttemptId { generation, attempt } = self.key.attempt;
        let place = mix(self.key.partition.partition.get()) ^ mix(self.key.partition.dataset.incarnation.get()).rotate_left(7);
        mix(place ^ (u64::from(generation) << 40) ^ (u64::from(attempt) << 20) ^ u64::from(subpartition))
    }

    /// Bytes of this attempt's pattern.
    #[must_use]
    pub fn bytes(&self, subpartition: u32, start: u64, length: u64) -> Bytes {
        pattern(self.salt(subpartition), start, length)
    }

    /// Opens it.
    pub async fn open(&self) -> Result<AttemptTails, StoreError> {
        self.store.open(OpenRequest { attempt: self.key.clone(), spec: self.spec.clone(), starts: Vec::new() }).await
    }

    /// Reserves and appends pieces.
    pub async fn append(&self, pieces: Vec<Piece>) -> Result<AppendAck, StoreError> {
        let total = pieces.iter().map(|piece| piece.chunk.length()).sum();
        let permit = self.store.reserve(&self.key, total, patience() * 2).await?;
        self.store.append(AppendRequest { attempt: self.key.clone(), pieces, permit }).await
    }

    /// Appends one chunk of any bytes.
    pub async fn put(&self, subpartition: u32, start: Option<u64>, bytes: Bytes) -> Result<AppendAck, StoreError> {
        self.append(vec![piece(subpartition, start, bytes)]).await
    }

    /// Appends bytes of the pattern at their place. Panics when refused.
    #[track_caller]
    pub fn write(&self, subpartition: u32, start: u64, length: u64) -> impl Future<Output = AppendAck> + Send + use<> {
        let this = self.clone();
        let caller = std::panic::Location::caller();
        async move {
            let bytes = this.bytes(subpartition, start, length);
            match this.put(subpartition, Some(start), bytes).await {
                Ok(ack) => ack,
                Err(error) => panic!("{caller}: [{start}, {}) was not taken: {error:?}", start + length),
            }
        }
    }

    /// Where it stands.
    pub async fn tails(&self) -> Result<AttemptTails, StoreError> {
        self.store.tails(&self.key).await
    }

    /// Tail of one subpartition. Panics when refused.
    pub async fn tail(&self, subpartition: u32) -> u64 {
        let tails = self.tails().await.expect("an attempt that lives has tails").tails;
        assert!(tails.is_sorted_by(|one, two| one.0 < two.0), "tails come in ascending order: {tails:?}");
        tails.iter().find(|(index, _)| index.get() == subpartition).map_or(0, |(_, tail)| tail.get())
    }

    /// Prepares it with what is held.
    pub async fn prepare(&self) -> Result<Arc<SealManifest>, StoreError> {
        self.store.prepare(PrepareRequest { attempt: self.key.clone(), expected: None }).await
    }

    /// Prepares it with a stated table.
    pub async fn prepare_with(&self, table: SubpartitionTable) -> Result<Arc<SealManifest>, StoreError> {
        self.store.prepare(PrepareRequest { attempt: self.key.clone(), expected: Some(Arc::new(table)) }).await
    }

    /// Publishes it.
    pub async fn publish(&self) -> Result<SealOutcome, StoreError> {
        self.store.publish(&self.key).await
    }

    /// Prepares and publishes it.
    pub async fn try_seal(&self) -> Result<SealOutcome, StoreError> {
        self.prepare().await?;
        self.publish().await
    }

    /// Prepares and publishes it; it must win.
    pub async fn seal(&self) -> Arc<SealManifest> {
        match self.try_seal().await.expect("an attempt that nothing disturbs can be sealed") {
            SealOutcome::Won(manifest) => manifest,
            SealOutcome::Lost(winner) => panic!("{} lost to {}, which should not have been there", self.key, winner.attempt),
        }
    }

    /// A read request for this attempt.
    #[must_use]
    pub fn request(&self, subpartition: u32, start: u64, end: Option<u64>, mode: ReadMode) -> ReadRequest {
        let subpartition = SubpartitionIndex::new(subpartition);
        ReadRequest { attempt: self.key.clone(), subpartition, start: Offset::new(start), end: end.map(Offset::new), mode }
    }

    /// Starts a read of sealed content.
    pub async fn reading(&self, subpartition: u32, start: u64, end: Option<u64>) -> Result<ReadStream, StoreError> {
        self.store.read(self.request(subpartition, start, end, ReadMode::Sealed)).await
    }

    /// Starts a read that tails.
    pub async fn tailing(&self, subpartition: u32, start: u64, wait: Duration) -> Result<ReadStream, StoreError> {
        self.store.read(self.request(subpartition, start, None, ReadMode::Tail { wait })).await
    }

    /// Reads a range of sealed content whole.
    pub async fn read(&self, subpartition: u32, start: u64, end: Option<u64>) -> Result<Bytes, StoreError> {
        let stream = self.reading(subpartition, start, end).await?;
        collect(stream).await.map_err(|(_, error)| error)
    }

    /// Asserts that the sealed content of a subpartition is this attempt's pattern of `length`
    /// bytes.
    pub async fn assert_holds(&self, subpartition: u32, length: u64) {
        let bytes = self.read(subpartition, 0, None).await.expect("sealed content can be read");
        assert_same(&bytes, &self.bytes(subpartition, 0, length));
    }
}

/// One piece.
#[must_use]
pub fn piece(subpartition: u32, start: Option<u64>, bytes: Bytes) -> Piece {
    Piece { subpartition: SubpartitionIndex::new(subpartition), start: start.map(Offset::new), chunk: Chunk::new(bytes) }
}

/// Asserts that bytes are the same without printing megabytes when they are not.
#[track_caller]
pub fn assert_same(found: &[u8], wanted: &[u8]) {
    if found == wanted {
        return;
    }
    let at = found.iter().zip(wanted).position(|(one, two)| one != two).unwrap_or(found.len().min(wanted.len()));
    panic!("{} bytes instead of {}, first difference at {at}", found.len(), wanted.len());
}

/// A table of `count` subpartitions with the digests of `contents`.
#[must_use]
pub fn table(count: u32, contents: &[(u32, Bytes)]) -> SubpartitionTable {
    let entries = contents.iter().map(|(index, bytes)| (SubpartitionIndex::new(*index), Digest::of(bytes)));
    SubpartitionTable::new(count, entries).expect("the cases state tables that are tables")
}

/// Waits until `condition` holds, at most [`patience`]. Panics with `what` after that.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let clock = SystemClock::shared();
    let until = clock.monotonic() + patience();
    while !condition().await {
        assert!(clock.monotonic() < until, "not after {:?}: {what}", patience());
        clock.sleep(Duration::from_millis(2)).await;
    }
}

/// Waits for `future` at most [`patience`]. Panics with `what` after that.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let clock = SystemClock::new();
    within(&clock, patience(), future).await.unwrap_or_else(|| panic!("not after {:?}: {what}", patience()))
}

/// Waits until nothing is held for the usual job in its incarnation 1.
pub async fn assert_nothing_held(store: &SharedStore) {
    let job = job("job");
    let held = || store.held(&job, JobIncarnation::new(1)).total();
    eventually("nothing is held any more", || std::future::ready(held() == 0)).await;
}

/// Bytes held for the usual job in its incarnation 1.
#[must_use]
pub fn held_bytes(store: &SharedStore) -> u64 {
    store.held(&job("job"), JobIncarnation::new(1)).total()
}

/// Runs `future` beside the case. What it returns is waited for by the caller.
#[expect(clippy::disallowed_methods, reason = "the cases wait for what they spawn")]
pub fn beside<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> tokio::task::JoinHandle<T> {
    tokio::spawn(future)
}

/// What a fetch answered for one item.
#[derive(Debug, Default)]
pub struct ItemAnswer {
    /// Its bytes.
    pub bytes: BytesMut,
    /// Where it ended.
    pub end: Option<Offset>,
    /// Where and why it failed.
    pub failed: Option<(Offset, StoreErrorKind)>,
}

/// Takes a fetch to its end. Panics when an item is answered twice, goes on after its end, or skips
/// bytes.
pub async fn fetch_all(store: &SharedStore, items: Vec<ReadRequest>) -> BTreeMap<usize, ItemAnswer> {
    let starts: Vec<_> = items.iter().map(|item| item.start.get()).collect();
    let mut events = store.fetch(items);
    let mut answers: BTreeMap<usize, ItemAnswer> = BTreeMap::new();
    while let Some(event) = events.next().await {
        let (FetchEvent::Data { item, .. } | FetchEvent::End { item, .. } | FetchEvent::Failed { item, .. }) = &event;
        assert!(*item < starts.len(), "there is no item {item}");
        let (item, answer) = (*item, answers.entry(*item).or_default());
        assert!(answer.end.is_none() && answer.failed.is_none(), "item {item} goes on after its end");
        let reached = starts[item] + answer.bytes.len() as u64;
        match event {
            FetchEvent::Data { start, chunk, .. } => {
                assert_eq!(start.get(), reached, "item {item} goes on somewhere else");
                answer.bytes.extend_from_slice(chunk.bytes());
            }
            FetchEvent::End { end, .. } => {
                assert_eq!(end.get(), reached, "item {item} ends somewhere else");
                answer.end = Some(end);
            }
            FetchEvent::Failed { at, error, .. } => {
                assert_eq!(at.get(), reached, "item {item} fails somewhere else");
                answer.failed = Some((at, error.kind().clone()));
            }
        }
    }
    answers
}

/// Polls a future `n_polls` times at the most, with short waits between, then drops it. `Some` when
/// it ended before.
pub async fn cancelled_after<T>(clock: &SharedClock, n_polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    for round in 0..n_polls {
        if let std::task::Poll::Ready(value) = futures::poll!(future.as_mut()) {
            return Some(value);
        }
        if round % 3 == 2 {
            clock.sleep(Duration::from_millis(1)).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
    None
}

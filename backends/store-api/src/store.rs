//! The partition store: the one trait behind which memory, disk and object store stand.
//!
//! # Offsets of one subpartition of one attempt
//! ```text
//!   0             floor                                tail
//!   |     gone      |             held                   |     not written yet
//!   |---------------|------------------------------------|-------------------->
//!                   ^ inclusive: first byte that a read  ^ exclusive: first byte that an
//!                     may start at                         append may start at
//! ```
//! `floor <= tail` always. The floor is 0 except in pipelined stores. After the seal the tail is
//! called the end and never moves again. A read of `[start, end)` is legal for
//! `floor <= start <= end <= tail`; `start == tail` reads nothing (or waits, when it tails).
//!
//! # What a store decides, and what not
//! A store keeps attempts apart, keeps bytes in order, and makes seals durable. It does not know
//! owners, tokens, leases or quotas, and it does not decide which of two attempts wins, except where
//! its medium is the arbiter ([`SealOutcome::Lost`]). Fencing by generation reaches it as a
//! [`ReleaseScope::GenerationsBelow`].
//!
//! # Cancellation
//! The HTTP server drops the future of a call when its client leaves. Each method says what then
//! holds. No method leaves memory charged, a lock held or a waiter queued.

use crate::budget::Permit;
use crate::capability::{Capabilities, ClassAchieved};
use crate::chunk::{Chunk, Digest};
use crate::error::{Operation, StoreError, StoreErrorKind};
use crate::ids::{AttemptId, AttemptKey, ConsumerId, DatasetKey, JobId, JobIncarnation, NodeId, NodeLife, PartitionKey, SubpartitionIndex};
use crate::offset::{Offset, OffsetRange};
use crate::partition::{AttemptState, DatasetSpec};
use crate::table::SubpartitionTable;
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use std::sync::Arc;
use std::time::Duration;

/// Opens an attempt for writing.
#[derive(Debug, Clone)]
pub struct OpenRequest {
    /// The attempt.
    pub attempt: AttemptKey,
    /// The dataset it belongs to.
    pub spec: Arc<DatasetSpec>,
    /// Where the subpartitions start that do not start at 0, in ascending order of index.
    /// Pipelined attempts only: a producer that was re-run goes on where its predecessor's readers
    /// were.
    pub starts: Vec<(SubpartitionIndex, Offset)>,
}

/// Where an open attempt stands, per subpartition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptTails {
    /// The state of the attempt.
    pub state: AttemptState,
    /// Tail of every subpartition that is not at 0, in ascending order of index.
    pub tails: Vec<(SubpartitionIndex, Offset)>,
}

/// Where one subpartition of an attempt stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubpartitionBounds {
    /// The state of the attempt.
    pub state: AttemptState,
    /// First byte still held; 0 in stores without floors.
    pub floor: Offset,
    /// First byte not yet written; the end, once it is sealed.
    pub tail: Offset,
}

/// One chunk and where it goes.
#[derive(Debug, Clone)]
pub struct Piece {
    /// The subpartition.
    pub subpartition: SubpartitionIndex,
    /// Where it starts; `None` appends at the tail, wherever that is.
    pub start: Option<Offset>,
    /// The bytes, with their checksum.
    pub chunk: Chunk,
}

/// Adds chunks to an open attempt.
#[derive(Debug)]
pub struct AppendRequest {
    /// The attempt.
    pub attempt: AttemptKey,
    /// The chunks, applied in order.
    pub pieces: Vec<Piece>,
    /// Reserved memory, at least as many bytes as the chunks have. The store keeps what it needs
    /// and gives the rest back.
    pub permit: Permit,
}

/// Where an append ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendAck {
    /// Tail of the subpartition of the last piece, after it.
    pub end: Offset,
    /// Bytes that were new; repeats of what is held count nothing.
    pub new_bytes: u64,
}

/// Makes the content of an attempt final.
#[derive(Debug, Clone)]
pub struct PrepareRequest {
    /// The attempt.
    pub attempt: AttemptKey,
    /// What the writer says it wrote; checked against what is held. `None` takes what is held.
    pub expected: Option<Arc<SubpartitionTable>>,
}

/// What a sealed attempt holds and how it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealManifest {
    /// The attempt.
    pub attempt: AttemptKey,
    /// Length and digest of every subpartition.
    pub table: SubpartitionTable,
    /// The class achieved.
    pub class: ClassAchieved,
    /// The node that sealed it.
    pub node: NodeId,
    /// The life of that node in which it was sealed.
    pub life: NodeLife,
    /// Wall clock of the seal, in milliseconds since 1970. For people, not for ordering.
    pub sealed_at_ms: u64,
}

/// How a publication ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SealOutcome {
    /// This attempt is the sealed content.
    Won(Arc<SealManifest>),
    /// Another attempt of the generation was first; its manifest.
    Lost(Arc<SealManifest>),
}

/// What an attempt is, in short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptStat {
    /// The state.
    pub state: AttemptState,
    /// Bytes of all subpartitions together, from their starts to their tails.
    pub total_bytes: u64,
    /// Floor of every subpartition that is not at 0, in ascending order of index.
    pub floors: Vec<(SubpartitionIndex, Offset)>,
    /// First byte after the highest that was ever handed to a reader, per subpartition that was
    /// read, in ascending order of index. Pipelined stores only.
    pub sent: Vec<(SubpartitionIndex, Offset)>,
}

/// How a read treats the end of what is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadMode {
    /// The attempt must be sealed; the range lies inside its content.
    Sealed,
    /// The attempt may be open: the stream goes on as bytes come and ends at the sealed end, or
    /// after `wait` without any new byte.
    Tail {
        /// Longest time without a new byte before the stream ends (cleanly, at the offset reached).
        wait: Duration,
    },
}

/// Reads bytes of one subpartition.
#[derive(Debug, Clone)]
pub struct ReadRequest {
    /// The attempt.
    pub attempt: AttemptKey,
    /// The subpartition, as it is stored (0 for a broadcast).
    pub subpartition: SubpartitionIndex,
    /// First byte wanted.
    pub start: Offset,
    /// First byte not wanted; `None` reads to the end.
    pub end: Option<Offset>,
    /// How the end of what is written is treated.
    pub mode: ReadMode,
}

/// Bytes on their way to a reader.
pub struct ReadStream {
    /// What will be sent: known to the end for a sealed attempt, otherwise from here on.
    pub start: Offset,
    /// First byte after the last; `None` while the attempt is open.
    pub end: Option<Offset>,
    /// The digest of the whole subpartition, for a sealed attempt.
    pub digest: Option<Digest>,
    /// The bytes in order, every one of them checked against its stored checksum before it is
    /// handed out. An error ends the stream; a stream that ends without an error has reached `end`
    /// (or, when it tails, its wait). Dropping the stream ends the read and frees what it holds.
    pub chunks: BoxStream<'static, Result<Bytes, StoreError>>,
}

impl std::fmt::Debug for ReadStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadStream")
            .field("start", &self.start)
            .field("end", &self.end)
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

/// One step of the answer to a batch read. Events of different items never interleave within an
/// item: `Data* (End | Failed)` per item, items in any order.
#[derive(Debug)]
pub enum FetchEvent {
    /// Bytes of an item.
    Data {
        /// Index into the request.
        item: usize,
        /// Offset of the first byte.
        start: Offset,
        /// The bytes and their checksum.
        chunk: Chunk,
    },
    /// An item has been sent in full.
    End {
        /// Index into the request.
        item: usize,
        /// First byte after the last.
        end: Offset,
    },
    /// An item could not be served (further); the others go on.
    Failed {
        /// Index into the request.
        item: usize,
        /// First byte that was not sent.
        at: Offset,
        /// Why.
        error: StoreError,
    },
}

/// How far a consumer group has read for good.
#[derive(Debug, Clone)]
pub struct AcknowledgeRequest {
    /// The attempt that was read.
    pub attempt: AttemptKey,
    /// The group, one of those declared with the dataset.
    pub group: ConsumerId,
    /// The consumers' positions, in ascending order of index: the first byte *not* yet read for
    /// good. Logical indices, also for a broadcast.
    pub offsets: Vec<(SubpartitionIndex, Offset)>,
}

/// What an acknowledgement or a checkpoint changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FloorReport {
    /// New floor of every subpartition that was named, in ascending order of index.
    pub floors: Vec<(SubpartitionIndex, Offset)>,
    /// Bytes that were let go.
    pub freed_bytes: u64,
}

/// A checkpoint of the job is complete: restarts will not go back before it.
#[derive(Debug, Clone)]
pub struct CheckpointRequest {
    /// The attempt.
    pub attempt: AttemptKey,
    /// Number of the checkpoint; rises within a job.
    pub checkpoint: u64,
    /// Per group and subpartition, the offset from which a restarted consumer will read.
    pub need: Vec<(ConsumerId, SubpartitionIndex, Offset)>,
}

/// What is to be released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReleaseScope {
    /// Everything of one incarnation of a job.
    Job {
        /// The job.
        job: JobId,
        /// Which existence of it.
        incarnation: JobIncarnation,
    },
    /// One dataset.
    Dataset(DatasetKey),
    /// One partition, all attempts.
    Partition(PartitionKey),
    /// One attempt.
    Attempt(AttemptKey),
    /// All attempts of a partition whose generation is lower: they are fenced.
    GenerationsBelow {
        /// The partition.
        partition: PartitionKey,
        /// The attempt that was opened in the new generation.
        by: AttemptId,
    },
}

/// What a release gave back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReleaseReport {
    /// Attempts that were dropped.
    pub n_attempts: u64,
    /// Bytes that were given back, or will be when the last reader is gone.
    pub bytes: u64,
}

/// What a store found on its medium when it was opened.
#[derive(Debug, Default)]
pub struct RecoveryReport {
    /// Sealed attempts that can be read.
    pub sealed: Vec<Arc<SealManifest>>,
    /// Sealed attempts that cannot be read any more, and why.
    pub lost: Vec<(AttemptKey, crate::error::LossCause)>,
    /// Unsealed attempts that were dropped.
    pub n_dropped: u64,
    /// Things that were set aside because they failed their checks or are not known.
    pub n_quarantined: u64,
}

/// What a job holds in a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeldBytes {
    /// In memory.
    pub memory: u64,
    /// On local disk.
    pub disk: u64,
    /// In the object store.
    pub object: u64,
}

impl HeldBytes {
    /// All media together.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.memory.saturating_add(self.disk).saturating_add(self.object)
    }
}

/// Keeps partitions. See the module for offsets and for what a store decides.
#[async_trait]
pub trait PartitionStore: Send + Sync + 'static {
    /// What this store promises. Never changes.
    fn capabilities(&self) -> &Capabilities;

    /// Bytes held for one incarnation of a job. Falls back to 0 when all of it is released. Cheap:
    /// no I/O.
    fn held(&self, job: &JobId, incarnation: JobIncarnation) -> HeldBytes;

    /// Opens an attempt, with no bytes in it.
    ///
    /// Durable: never; an attempt that is not sealed does not survive a reopen. Idempotent: a
    /// repeat answers where the attempt stands now and changes nothing. Concurrent with everything.
    /// Cancelled half-way: opened or not; repeat it. Errors: `Fenced`, `Aborted`, `Released` when
    /// the attempt has ended, `Unsupported` when the spec's kind or retention cannot be kept,
    /// `DiskFull`, `Closing`.
    async fn open(&self, request: OpenRequest) -> Result<AttemptTails, StoreError>;

    /// Reserves memory for an append to the attempt, waiting at most `patience`; called before the
    /// bytes are read from the client.
    ///
    /// Durable: no. Not idempotent; a permit that is dropped gives everything back. Concurrent with
    /// everything; waiters of one job are served in order. Cancelled half-way: nothing is reserved.
    /// Errors: `NotFound`, `AlreadySealed`, `Fenced`, `Aborted`, `Released`; `TooLarge` at once for
    /// what could never be granted; `Overloaded` when the patience ran out; `RetentionExhausted`
    /// when a pipelined floor has not moved for the configured deadline; `DiskFull` when the store
    /// writes to a disk without room; `Closing`.
    async fn reserve(&self, attempt: &AttemptKey, bytes: u64, patience: Duration) -> Result<Permit, StoreError>;

    /// Adds chunks at the tails of an open attempt.
    ///
    /// Effect: the pieces are applied in order; when one is refused, those before it stay applied
    /// (ask [`PartitionStore::tails`]). Durable: pipelined, never; others, with the seal.
    /// Idempotent by offset, within what is retained: a piece that lies wholly below the tail and
    /// equals what is held changes nothing; a piece that starts below the tail and goes beyond it has
    /// its new part applied when the old part is equal. A durable store hands bytes on before the seal
    /// and then retains checksums of them, from one end of a piece to another: it recognises a repeat
    /// whose old part starts and ends where pieces did, as one after a lost reply does, and refuses any
    /// other that reaches below what is in memory with `BelowFloor` (the floor of the writer alone,
    /// nothing is gone for readers), unless it can tell that the bytes are others. The writer goes on
    /// at the tail. A piece without bytes is checked for its place and for
    /// the attempt like any other and changes nothing. Concurrent with appends to other subpartitions and with
    /// reads; appends to one subpartition are serialised. Cancelled half-way: a prefix of the
    /// pieces has been applied, each wholly or not at all. Errors: `OffsetMismatch` for a gap,
    /// `ContentMismatch` for other bytes at a held offset, `BelowFloor` for a repeat of bytes that
    /// are not retained, `NoSuchSubpartition`, `TooLarge`, `NotFound`, `AlreadySealed`, `Fenced`,
    /// `Aborted`, `Released`, `DiskFull`, `Unavailable`, `Closing`.
    async fn append(&self, request: AppendRequest) -> Result<AppendAck, StoreError>;

    /// Where an attempt stands. The answer and its cost grow with the number of subpartitions: for
    /// one of them ask [`PartitionStore::bounds`]. Idempotent, cancel-safe. Errors: `NotFound`,
    /// `Fenced`, `Aborted`, `Released`.
    async fn tails(&self, attempt: &AttemptKey) -> Result<AttemptTails, StoreError>;

    /// Where one stored subpartition of an attempt stands: the same as in
    /// [`PartitionStore::tails`] and [`PartitionStore::stat`], at a cost that does not grow with the
    /// number of subpartitions. Idempotent, cancel-safe. Errors: as [`PartitionStore::tails`], and
    /// `NoSuchSubpartition`.
    async fn bounds(&self, attempt: &AttemptKey, subpartition: SubpartitionIndex) -> Result<SubpartitionBounds, StoreError>;

    /// Checks what the writer says it wrote and makes the content final and durable, not visible.
    ///
    /// Durable when it returns: the data, as the class promises; the seal itself, not yet.
    /// Idempotent: a repeat answers the same manifest. Concurrent with appends: each append that
    /// was acknowledged is inside, each other gets `AlreadySealed`. Cancelled half-way: open or
    /// prepared; repeat it. A failure leaves the attempt open, with its memory charged, unless its
    /// bytes are gone for good (then `Lost`); a failed sync is never repeated on the same file: the
    /// bytes go to a new one or the attempt is lost. Errors: `DigestMismatch`, `NotFound`,
    /// `Fenced`, `Aborted`, `Released`, `DiskFull`, `Unavailable`, `Lost`, `Closing`.
    async fn prepare(&self, request: PrepareRequest) -> Result<Arc<SealManifest>, StoreError>;

    /// Makes a prepared attempt visible; called once the arbiter has decided for it.
    ///
    /// Durable when it returns, as the class promises. Idempotent: a repeat on a sealed attempt
    /// answers `Won` with the same manifest; a repeat after a lost reply recognises its own seal.
    /// Stores whose medium arbitrates (object stores) answer `Lost` with the winner's manifest when
    /// another attempt of the generation was first, and the attempt is then aborted; others always
    /// answer `Won`. Concurrent with everything. Cancelled half-way: sealed or prepared; repeat it.
    /// Errors: `NotFound`, `NotSealed` (not prepared), `Fenced`, `Aborted`, `Released`, `DiskFull`,
    /// `Unavailable`, `Closing`.
    async fn publish(&self, attempt: &AttemptKey) -> Result<SealOutcome, StoreError>;

    /// Ends an unsealed attempt without a result and gives its storage back.
    ///
    /// Durable: not needed; a reopen drops it anyway. Idempotent; an attempt that is not known is a
    /// success. Concurrent with its own appends, which are refused from then on. Cancelled
    /// half-way: aborted or not; repeat it. Errors: `AlreadySealed` when it is sealed, also by a
    /// publication that was answered with an error and had happened; `Unavailable` when that cannot
    /// be found out now (nothing has changed then); `Closing`.
    async fn abort(&self, attempt: &AttemptKey) -> Result<(), StoreError>;

    /// Starts a read of one subpartition.
    ///
    /// Idempotent, cancel-safe; any number side by side. A release, fence or loss during the read
    /// ends the stream with an error or lets it finish with the right bytes, never otherwise.
    /// Errors before the first byte: `NotFound`, `NotSealed`, `BeyondEnd` (start after the end),
    /// `BelowFloor`, `NoSuchSubpartition`, `Fenced`, `Aborted`, `Released`, `Lost`, `Unavailable`,
    /// `Overloaded`, `Closing`; in the stream: `BelowFloor` (overtaken), `Lost`, `Fenced`,
    /// `Aborted`, `Released`, `Unavailable`, `Closing`. An attempt that was never known is `NotFound`,
    /// also when another of its generation was sealed and released; that a whole partition, dataset
    /// or job was released may be said of anything in it.
    async fn read(&self, request: ReadRequest) -> Result<ReadStream, StoreError>;

    /// Reads many ranges of sealed attempts in whatever order serves the medium best.
    ///
    /// Every item gets exactly one `End` or `Failed`; an item that fails does not disturb the
    /// others. Idempotent, cancel-safe (drop the stream). The order of items is the store's choice.
    fn fetch(&self, items: Vec<ReadRequest>) -> BoxStream<'static, FetchEvent>;

    /// What an attempt is, in short. Idempotent, cancel-safe. Errors: `NotFound`, `Unavailable`.
    async fn stat(&self, attempt: &AttemptKey) -> Result<AttemptStat, StoreError>;

    /// The manifest of a sealed attempt. Idempotent, cancel-safe. Errors: `NotFound`, `NotSealed`,
    /// `Fenced`, `Aborted`, `Released`, `Lost`, `Unavailable`.
    async fn manifest(&self, attempt: &AttemptKey) -> Result<Arc<SealManifest>, StoreError>;

    /// Looks on the medium for the sealed content of a partition that this process has not seen:
    /// the winner of the newest generation at or above `from_generation`. `None` when nothing is
    /// sealed there. Only stores whose medium is shared between nodes find anything; others answer
    /// from memory. Idempotent, cancel-safe. Errors: `Released`, `Fenced`, `Unavailable` (never
    /// taken for "nothing"), `Format`.
    async fn locate(
        &self,
        partition: &PartitionKey,
        spec: &DatasetSpec,
        from_generation: u32,
    ) -> Result<Option<Arc<SealManifest>>, StoreError>;

    /// Moves the floors of a pipelined attempt. Offsets below an earlier acknowledgement change
    /// nothing.
    ///
    /// Durable: no. Idempotent. Concurrent with everything. Cancelled half-way: a prefix of the
    /// offsets has been taken. Errors: `Unsupported` for stores without floors, `NotFound` (also
    /// for an undeclared group), `BeyondEnd` for an offset past the tail (nothing is taken then),
    /// `NoSuchSubpartition`, `Fenced`, `Aborted`, `Released`.
    async fn acknowledge(&self, request: AcknowledgeRequest) -> Result<FloorReport, StoreError>;

    /// Moves the floors of a `since_checkpoint` attempt. A checkpoint older than the last one taken
    /// changes nothing. Semantics and errors as [`PartitionStore::acknowledge`].
    async fn complete_checkpoint(&self, request: CheckpointRequest) -> Result<FloorReport, StoreError>;

    /// Gives storage back. From its return on no new read of what is inside the scope succeeds on
    /// this node.
    ///
    /// Durable when it returns: a reopen does not bring anything back. Idempotent; a scope in which
    /// nothing is held is a success with an empty report. Concurrent with everything: appends and
    /// seals inside the scope are refused from then on. Space is free at the latest when the last
    /// read that was under way has ended. Cancelled half-way: repeat it. Errors: `Unavailable`
    /// (nothing or a part was released; repeat it), `Closing`.
    async fn release(&self, scope: ReleaseScope) -> Result<ReleaseReport, StoreError>;

    /// What was found on the medium at opening: called once, before anything else; a second call
    /// answers an empty report. Errors: `Format`, `Unavailable`.
    async fn recover(&self) -> Result<RecoveryReport, StoreError>;

    /// Refuses new work with `Closing`, ends background work and streams, and forces out what must
    /// be. Sealed attempts stay on the medium. Idempotent. Errors: what the last flush said.
    async fn close(&self) -> Result<(), StoreError>;
}

/// A store that is shared.
pub type SharedStore = Arc<dyn PartitionStore>;

/// The range of a read against the bounds of a subpartition, checked: the one rule that every store
/// follows. `end` of the request is clipped to `tail`. Errors: `BelowFloor`, `BeyondEnd`.
pub fn clip_range(request: &ReadRequest, floor: Offset, tail: Offset) -> Result<OffsetRange, StoreError> {
    let refuse = |kind| StoreError::new(kind, Operation::Read, format_args!("{}/{}", request.attempt, request.subpartition));
    if request.start < floor {
        return Err(refuse(StoreErrorKind::BelowFloor { floor }));
    }
    if request.start > tail {
        return Err(refuse(StoreErrorKind::BeyondEnd { end: tail }));
    }
    let end = request.end.map_or(tail, |end| end.min(tail)).max(request.start);
    OffsetRange::new(request.start, end).ok_or_else(|| refuse(StoreErrorKind::Internal))
}

/// Reads items one after the other with [`PartitionStore::read`]: for stores whose medium has no
/// better order.
pub fn fetch_in_order(store: SharedStore, items: Vec<ReadRequest>) -> BoxStream<'static, FetchEvent> {
    let numbered = futures::stream::iter(items.into_iter().enumerate());
    numbered.flat_map(move |(item, request)| fetch_one(store.clone(), item, request)).boxed()
}

fn fetch_one(store: SharedStore, item: usize, request: ReadRequest) -> BoxStream<'static, FetchEvent> {
    let start = request.start;
    let opened = async move { (store.read(request).await, start) };
    let events = futures::stream::once(opened).flat_map(move |(opened, start)| match opened {
        Err(error) => futures::stream::once(std::future::ready(FetchEvent::Failed { item, at: start, error })).boxed(),
        Ok(stream) => follow(item, stream),
    });
    events.boxed()
}

/// Turns a read stream into the events of one item.
pub fn follow(item: usize, stream: ReadStream) -> BoxStream<'static, FetchEvent> {
    let state = Some((stream.chunks, stream.start));
    futures::stream::unfold(state, move |state| async move {
        let (mut chunks, at) = state?;
        match chunks.next().await {
            Some(Ok(bytes)) => {
                let chunk = Chunk::new(bytes);
                let next = at.checked_add(chunk.length()).unwrap_or(at);
                Some((FetchEvent::Data { item, start: at, chunk }, Some((chunks, next))))
            }
            Some(Err(error)) => Some((FetchEvent::Failed { item, at, error }, None)),
            None => Some((FetchEvent::End { item, end: at }, None)),
        }
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{DatasetId, PartitionId};
    use proptest::prelude::*;

    fn request(start: u64, end: Option<u64>) -> Option<ReadRequest> {
        let dataset = DatasetKey { job: JobId::new("j").ok()?, incarnation: JobIncarnation::new(1), dataset: DatasetId::new("d").ok()? };
        Some(ReadRequest {
            attempt: dataset.partition(PartitionId::new(0)).attempt(AttemptId::new(0, 0)),
            subpartition: SubpartitionIndex::new(0),
            start: Offset::new(start),
            end: end.map(Offset::new),
            mode: ReadMode::Sealed,
        })
    }

    proptest! {
        #[test]
        fn a_clipped_range_lies_between_floor_and_tail(start: u64, end: Option<u64>, floor: u64, tail: u64) {
            let (floor, tail) = (Offset::new(floor.min(tail)), Offset::new(floor.max(tail)));
            let Some(request) = request(start, end) else { return Err(TestCaseError::fail("ids")) };
            match clip_range(&request, floor, tail) {
                Ok(range) => {
                    prop_assert!(floor <= range.start() && range.end() <= tail);
                    prop_assert_eq!(range.start(), request.start);
                }
                Err(error) => match error.kind() {
                    StoreErrorKind::BelowFloor { .. } => prop_assert!(request.start < floor),
                    StoreErrorKind::BeyondEnd { .. } => prop_assert!(request.start > tail),
                    other => return Err(TestCaseError::fail(format!("{other:?}"))),
                },
            }
        }
    }
}

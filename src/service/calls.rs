//! What goes into the calls of the service and comes out of them: plain values, no behaviour.

use super::error::ServiceError;
use bytes::Bytes;
use futures::stream::BoxStream;
use std::sync::Arc;
use std::time::Duration;
use store_api::{
    Arbitration, AttemptId, AttemptState, Chunk, ClassAchieved, ConsumerId, Crc32c, DatasetId, DatasetSpec, Digest, HeldBytes, JobEpoch,
    JobId, JobIncarnation, LossCause, NodeId, NodeLife, Offset, PartitionId, Retention, SealManifest, StoreClass, SubpartitionIndex,
};

/// Where something is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The node.
    pub node: NodeId,
    /// The life of the node in which it was sealed, or this one.
    pub life: NodeLife,
    /// Base URL of the node.
    pub url: Arc<str>,
}

/// A partition as a caller names it: without the incarnation, which the service knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PartitionAddress {
    /// The job.
    pub job: JobId,
    /// The dataset.
    pub dataset: DatasetId,
    /// The partition.
    pub partition: PartitionId,
}

/// An attempt as a caller names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AttemptAddress {
    /// The partition.
    pub partition: PartitionAddress,
    /// The attempt.
    pub attempt: AttemptId,
}

/// What a call needs a token for.
#[derive(Debug, Clone, Copy)]
pub enum Need<'a> {
    /// Node-wide calls: listing jobs, draining.
    Admin,
    /// `put_job`: the admin token, or the present token of that job.
    PutJob(&'a JobId),
    /// Anything inside a job: the admin token or the job's.
    Job(&'a JobId),
}

/// Creates a job or takes one over.
#[derive(Debug, Clone, Default)]
pub struct JobRequest {
    /// Names the owner; at most 128 bytes.
    pub owner_nonce: String,
    /// The token that the client chose, 16 to 256 visible ASCII characters; drawn when left out.
    pub token_secret: Option<String>,
    /// Class of datasets that name none; blocking when left out.
    pub default_class: Option<StoreClass>,
    /// Retention of pipelined datasets that name none; until acknowledged when left out.
    pub default_retention: Option<Retention>,
    /// Length of the lease; the node's default when left out.
    pub lease: Option<Duration>,
    /// Most bytes that the job may hold on this node; no limit when left out.
    pub quota_bytes: Option<u64>,
    /// Makes another nonce the owner.
    pub take_over: bool,
    /// With `take_over`: aborts every unsealed attempt.
    pub fence_writers: bool,
}

/// A job.
#[derive(Debug, Clone)]
pub struct JobView {
    /// The id.
    pub job: JobId,
    /// Which existence of the id.
    pub incarnation: JobIncarnation,
    /// Epoch of the present owner.
    pub epoch: JobEpoch,
    /// Class of datasets that name none.
    pub default_class: StoreClass,
    /// Retention of pipelined datasets that name none.
    pub default_retention: Retention,
    /// Length of the lease.
    pub lease: Duration,
    /// What is left of it.
    pub lease_remaining: Duration,
    /// Most bytes that the job may hold on this node.
    pub quota_bytes: Option<u64>,
    /// What it holds on this node.
    pub held: HeldBytes,
    /// Number of datasets.
    pub n_datasets: u64,
    /// The token, only in answers of `put_job` to the owner that set it, and only with tokens on.
    pub token: Option<String>,
    /// Whether this call created the job (201 rather than 200).
    pub is_new: bool,
}

/// A lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseView {
    /// Its length.
    pub lease: Duration,
    /// What is left of it.
    pub remaining: Duration,
}

/// Declares a dataset.
#[derive(Debug, Clone)]
pub struct DatasetRequest {
    /// The class; the job's default when left out.
    pub class: Option<StoreClass>,
    /// The retention, for pipelined datasets only; the job's default when left out.
    pub retention: Option<Retention>,
    /// Number of partitions; open-ended when left out.
    pub n_partitions: Option<u64>,
    /// Number of subpartitions of each partition.
    pub n_subpartitions: u32,
    /// Stored once and served as every subpartition.
    pub is_broadcast: bool,
    /// Who decides which attempt counts.
    pub arbitration: Arbitration,
    /// Consumer groups of a pipelined dataset; one called `default` when empty.
    pub groups: Vec<ConsumerId>,
    /// A note about the content's coding, at most 256 characters.
    pub content: Option<String>,
}

/// A dataset.
#[derive(Debug, Clone)]
pub struct DatasetView {
    /// The job.
    pub job: JobId,
    /// The id.
    pub dataset: DatasetId,
    /// What was declared.
    pub spec: Arc<DatasetSpec>,
    /// The note about the content's coding.
    pub content: Option<Arc<str>>,
    /// The class that its sealed partitions reach on this node.
    pub class: ClassAchieved,
    /// Number of partitions sealed on this node or found through it.
    pub n_sealed: u64,
    /// Bytes of those partitions.
    pub sealed_bytes: u64,
    /// Whether this call created the dataset.
    pub is_new: bool,
}

/// Opens an attempt.
#[derive(Debug, Clone, Default)]
pub struct OpenAttempt {
    /// The generation; raising it needs the owner's epoch.
    pub generation: u32,
    /// The attempt within the generation.
    pub attempt: u32,
    /// Start offsets that are not 0, in any order (pipelined only).
    pub starts: Vec<(SubpartitionIndex, Offset)>,
    /// Epoch of the job's owner.
    pub epoch: Option<JobEpoch>,
    /// Life of the node that is meant. May be left out here: the answer names it.
    pub life: Option<NodeLife>,
}

/// Where an attempt stands.
#[derive(Debug, Clone)]
pub struct AttemptView {
    /// The attempt.
    pub attempt: AttemptId,
    /// Its state (`Fenced` is called `superseded` on the wire).
    pub state: AttemptState,
    /// The node that holds it.
    pub location: Location,
    /// Sequence of the next frame.
    pub next_sequence: u64,
    /// Tails that are not 0, ascending.
    pub tails: Vec<(SubpartitionIndex, Offset)>,
    /// Largest payload of a frame, in bytes.
    pub max_frame_bytes: u64,
    /// Raw bodies up to this size are stored wholly or not at all.
    pub atomic_append_bytes: u64,
}

/// One data frame of a framed append.
#[derive(Debug, Clone)]
pub struct DataFrame {
    /// Its sequence.
    pub sequence: u64,
    /// The subpartition.
    pub subpartition: SubpartitionIndex,
    /// The bytes, checked.
    pub chunk: Chunk,
}

/// How far a frame stream has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FramesAck {
    /// Sequence of the next frame.
    pub next_sequence: u64,
    /// Bytes of this stream that were new.
    pub new_bytes: u64,
}

/// The end of a raw append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendReply {
    /// Tail of the subpartition.
    pub end: Offset,
    /// Bytes that were new.
    pub new_bytes: u64,
}

/// What the writer says it wrote. Without `indices` the lists go over all subpartitions from 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatedContent {
    /// The subpartitions named, ascending; all others are empty.
    pub indices: Option<Vec<u32>>,
    /// Length of each, in bytes.
    pub lengths: Vec<u64>,
    /// Checksum of each; only lengths are compared when left out.
    pub crcs: Option<Vec<Crc32c>>,
}

/// A sealed attempt and where it is held.
#[derive(Debug, Clone)]
pub struct ManifestView {
    /// What it holds.
    pub manifest: Arc<SealManifest>,
    /// Where readers shall go: this node for what it serves itself.
    pub location: Location,
}

/// How a seal ended.
#[derive(Debug, Clone)]
pub enum SealReply {
    /// This attempt is the sealed content.
    Won(ManifestView),
    /// Another attempt of the generation was first; that attempt's manifest.
    OtherWon(ManifestView),
}

/// The state of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionState {
    /// No attempt has been opened.
    NotWritten,
    /// An attempt is being written.
    Open,
    /// Readable and final.
    Sealed,
    /// Released by its owner.
    Released,
    /// Gone with the lease of its job.
    Expired,
    /// Made once, and not to be had any more.
    Lost {
        /// Why.
        cause: LossCause,
    },
    /// A higher generation has been opened, and nothing of it is there yet.
    Superseded,
    /// Ended without a result.
    Aborted,
    /// The dataset or partition never existed.
    Unknown,
}

/// A partition.
#[derive(Debug, Clone)]
pub struct PartitionView {
    /// The partition.
    pub partition: PartitionId,
    /// Its state.
    pub state: PartitionState,
    /// The current generation.
    pub generation: u32,
    /// Its sealed content, if there is one.
    pub manifest: Option<ManifestView>,
    /// Every sealed attempt of the current generation, for datasets whose engine decides.
    pub attempts: Vec<AttemptId>,
}

/// One page of the sealed partitions of a dataset, in order of (partition, attempt).
#[derive(Debug, Clone, Default)]
pub struct PartitionPage {
    /// The sealed attempts.
    pub manifests: Vec<ManifestView>,
    /// The `after` of the next page; `None` on the last one.
    pub next_after: Option<(PartitionId, AttemptId)>,
}

/// How the end of what is written is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadKind {
    /// The attempt must be sealed.
    Sealed,
    /// The attempt may be open (pipelined): bytes are sent as they come.
    Tail {
        /// Longest time without a new byte; clipped to the node's limit.
        wait: Duration,
    },
}

/// Reads bytes of one subpartition.
#[derive(Debug, Clone)]
pub struct ReadCall {
    /// The attempt that the reader was told to read; the readable one when left out.
    pub attempt: Option<AttemptId>,
    /// The subpartition, as the reader counts it (a broadcast is mapped by the service).
    pub subpartition: SubpartitionIndex,
    /// First byte wanted.
    pub start: Offset,
    /// First byte not wanted; the end when left out.
    pub end: Option<Offset>,
    /// How the end of what is written is treated.
    pub kind: ReadKind,
}

/// What a read would serve: for `HEAD`, `If-Range` and suffix ranges.
#[derive(Debug, Clone)]
pub struct Readable {
    /// The attempt.
    pub attempt: AttemptId,
    /// Length and checksum of the subpartition; `None` while the attempt is open.
    pub digest: Option<Digest>,
    /// First byte of the content: 0, or where the attempt was opened to start. The digest covers
    /// `[start, end)`.
    pub start: Offset,
    /// First byte still held.
    pub floor: Offset,
    /// End of the content, or the present tail of an open attempt.
    pub end: Offset,
    /// The class achieved; of an open attempt, the class that it will have.
    pub class: ClassAchieved,
    /// Where it is held.
    pub location: Location,
}

/// Bytes on their way to a reader.
pub struct ReadReply {
    /// The attempt.
    pub attempt: AttemptId,
    /// The class achieved; of an open attempt, the class that it will have.
    pub class: ClassAchieved,
    /// First byte of the stream.
    pub start: Offset,
    /// First byte after the last; `None` while the attempt is open.
    pub end: Option<Offset>,
    /// Digest of the whole subpartition, for a sealed attempt.
    pub digest: Option<Digest>,
    /// The bytes in order. An error ends the stream. After a clean end of a tail read,
    /// [`super::PartitionService::resolve`] says whether the offset reached is the sealed end.
    pub chunks: BoxStream<'static, Result<Bytes, ServiceError>>,
}

impl std::fmt::Debug for ReadReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadReply").field("attempt", &self.attempt).field("start", &self.start).finish_non_exhaustive()
    }
}

/// One item of a batch read: one range of one subpartition.
#[derive(Debug, Clone)]
pub struct FetchWant {
    /// The partition.
    pub partition: PartitionId,
    /// The subpartition.
    pub subpartition: SubpartitionIndex,
    /// First byte wanted.
    pub start: Offset,
    /// First byte not wanted; the end when left out.
    pub end: Option<Offset>,
    /// The attempt that the reader was told to read.
    pub attempt: Option<AttemptId>,
}

/// One step of the answer to a batch read. Every item ends with exactly one of `End`, `Failed`,
/// `Moved`, `Paused`; its `Data` come before that, in order.
#[derive(Debug)]
pub enum FetchStep {
    /// Bytes of an item.
    Data {
        /// Index into the request.
        item: u32,
        /// Offset of the first byte.
        start: Offset,
        /// The bytes and their checksum.
        chunk: Chunk,
    },
    /// An item has been sent in full.
    End {
        /// Index into the request.
        item: u32,
        /// First byte after the last.
        end: Offset,
    },
    /// An item could not be served (further).
    Failed {
        /// Index into the request.
        item: u32,
        /// First byte that was not sent.
        at: Offset,
        /// Why.
        error: ServiceError,
    },
    /// Another node holds the item.
    Moved {
        /// Index into the request.
        item: u32,
        /// Offset to go on from.
        at: Offset,
        /// Where.
        location: Location,
    },
    /// The byte budget is used up; the item goes on in another request.
    Paused {
        /// Index into the request.
        item: u32,
        /// Offset to go on from.
        at: Offset,
    },
}

/// A position of a consumer in a pipelined dataset.
#[derive(Debug, Clone)]
pub struct ConsumerPosition {
    /// The partition.
    pub partition: PartitionId,
    /// The subpartition.
    pub subpartition: SubpartitionIndex,
    /// First byte not yet read for good.
    pub offset: Offset,
    /// The attempt that was read; the current one when left out.
    pub attempt: Option<AttemptId>,
}

/// What an acknowledgement changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AcknowledgeReply {
    /// The floors of the subpartitions named, in the order of the request's partitions.
    pub floors: Vec<(PartitionId, SubpartitionIndex, Offset)>,
    /// Bytes that were let go.
    pub freed_bytes: u64,
}

/// Offset from which a restarted consumer will read.
#[derive(Debug, Clone)]
pub struct NeedPosition {
    /// The dataset.
    pub dataset: DatasetId,
    /// The partition.
    pub partition: PartitionId,
    /// The subpartition.
    pub subpartition: SubpartitionIndex,
    /// The consumer group.
    pub group: ConsumerId,
    /// First byte that a restarted consumer needs.
    pub offset: Offset,
}

/// Asks for a run of partitions of a dataset.
#[derive(Debug, Clone)]
pub struct AvailabilityWant {
    /// The dataset.
    pub dataset: DatasetId,
    /// The first partition.
    pub partition: PartitionId,
    /// How many from there on.
    pub n_partitions: u32,
    /// Also answers floor, end, digest and sent mark of this subpartition.
    pub subpartition: Option<SubpartitionIndex>,
}

/// The state of one partition.
#[derive(Debug, Clone)]
pub struct AvailabilityView {
    /// The dataset.
    pub dataset: DatasetId,
    /// The partition.
    pub partition: PartitionId,
    /// Its state.
    pub state: PartitionState,
    /// The attempt that is readable or being written.
    pub attempt: Option<AttemptId>,
    /// Bytes of all subpartitions together.
    pub total_bytes: Option<u64>,
    /// The class achieved.
    pub class: Option<ClassAchieved>,
    /// Where it is held.
    pub location: Option<Location>,
    /// First byte still held of the subpartition asked for.
    pub floor: Option<Offset>,
    /// Tail or end of the subpartition asked for.
    pub end: Option<Offset>,
    /// Checksum of the subpartition asked for, once sealed.
    pub crc: Option<Crc32c>,
    /// First byte never handed to a reader; pipelined only.
    pub sent: Option<Offset>,
}

/// Where a subscriber of events stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventCursor {
    /// Life of the node that counted.
    pub life: NodeLife,
    /// Sequence of the last event seen.
    pub sequence: u64,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A partition was sealed.
    Sealed,
    /// A partition was found lost.
    Lost {
        /// Why.
        cause: LossCause,
    },
    /// A partition, dataset or job was released.
    Released,
    /// The lease of the job ran out.
    Expired,
    /// A higher generation superseded a partition's content.
    Superseded,
    /// The cursor is too old or of another life: ask for availability, then follow on.
    Reset,
}

/// One event of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Resume after this.
    pub cursor: EventCursor,
    /// What happened.
    pub kind: EventKind,
    /// The job.
    pub job: JobId,
    /// The dataset, unless the whole job is meant.
    pub dataset: Option<DatasetId>,
    /// The partition, unless the whole dataset or job is meant.
    pub partition: Option<PartitionId>,
    /// The attempt.
    pub attempt: Option<AttemptId>,
    /// Where it is held, for seals.
    pub location: Option<Location>,
}

/// Whether the node takes work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    /// Takes everything.
    Ready,
    /// Finishes what it has.
    Draining,
}

/// This node.
#[derive(Debug, Clone)]
pub struct NodeView {
    /// Node, life and base URL.
    pub location: Location,
    /// Whether it takes work.
    pub state: NodeState,
    /// The classes that it can keep.
    pub classes: Vec<ClassAchieved>,
}

//! Rust client for Forebay, the store of intermediate results.
//!
//! | module | what it holds |
//! |---|---|
//! | [`client`] | [`Client`] and its builder: address, token, TLS, times, retries |
//! | [`job`] | [`JobHandle`]: datasets, lease, availability, checkpoints, release |
//! | [`dataset`] | [`DatasetHandle`]: attempts, listings, acknowledgements |
//! | [`attempt`] | [`Attempt`]: one execution of a producer; seal and abort |
//! | [`writer`], [`raw`] | [`PartitionWriter`] (framed, the fast path) and [`RawWriter`] |
//! | [`read`], [`tail`], [`fetch`] | one subpartition, an open one, many of many nodes |
//! | [`events`] | what happens to a job, as a stream that resumes |
//! | [`recovery`], [`worker`] | for drivers: graph, reports, plans; for workers: heartbeats and orders |
//! | [`cluster`] | calls of nodes to their coordinator |
//! | [`error`], [`retry`] | what to do about a failure, and how long the client tries by itself |
//!
//! What the client promises: a read never ends early as if it were whole, never mixes attempts, and
//! checks every checksum there is; a write is repeated only where the service makes repeats
//! harmless; every wait has an end; nothing is sealed unless [`PartitionWriter::seal`] is called.
//!
//! ```no_run
//! use bytes::Bytes;
//! use forebay_client::{Client, DatasetRequest, JobRequest, ReadRange};
//! use store_api::{AttemptId, PartitionId, SubpartitionIndex};
//!
//! # async fn example() -> forebay_client::Result<()> {
//! let client = Client::builder("http://127.0.0.1:7440").build()?;
//! let job = client.put_job("query-17", JobRequest { owner_nonce: "driver-1".into(), ..JobRequest::default() }).await?;
//! let stage = job.put_dataset("stage-1", DatasetRequest::new(2)).await?;
//! let mut writer = stage.open_attempt(PartitionId::new(0), AttemptId::new(0, 0), vec![]).await?.into_writer();
//! writer.write(SubpartitionIndex::new(1), Bytes::from_static(b"rows")).await?;
//! writer.seal().await?;
//! let rows = stage.read(PartitionId::new(0), SubpartitionIndex::new(1), ReadRange::all()).await?.collect(1 << 20).await?;
//! assert_eq!(rows, b"rows"[..]);
//! # Ok(()) }
//! ```

pub mod attempt;
pub mod client;
pub mod cluster;
pub mod dataset;
pub mod error;
pub mod events;
pub mod fetch;
pub mod job;
mod ledger;
pub mod raw;
pub mod read;
pub mod recovery;
pub mod retry;
mod sse;
pub mod tail;
mod transport;
pub mod worker;
pub mod writer;

pub use attempt::{Attempt, Sealed};
pub use client::{Client, ClientBuilder};
pub use dataset::DatasetHandle;
pub use error::{Action, ClientError, FencedBy, Result};
pub use events::{JobEvent, JobEvents};
pub use fetch::{FetchPiece, FetchStream, FetchTarget, FetchedItem};
pub use forebay_protocol::datasets::{ArbitrationName, DatasetRequest, Kind, RetentionName};
pub use forebay_protocol::jobs::JobRequest;
pub use job::{JobHandle, KeepAlive};
pub use raw::RawWriter;
pub use read::{ReadRange, SubpartitionReader};
pub use recovery::RecoveryEvents;
pub use retry::RetryPolicy;
pub use tail::{TailOptions, TailReader};
pub use worker::{Worker, WorkerOrder};
pub use writer::{PartitionWriter, WriterOptions};

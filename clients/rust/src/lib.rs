//! The Rust client of Forebay, an intermediate-result store for data engines.
//!
//! | module | what it holds |
//! |---|---|
//! | [`client`] | the client and its builder: node, token, timeouts, retries |
//! | [`job`], [`dataset`] | handles: declare, list, release, lease, availability |
//! | [`writer`], [`raw`] | the streaming frame writer, and the raw one |
//! | [`reader`], [`fetch`] | sealed and tailing readers, batch reads |
//! | [`events`] | what happens to a job |
//! | [`error`], [`retry`] | errors that say what to do, and when calls are repeated |
//!
//! Writers repeat what was cut and never store a byte twice; readers take up where they were cut,
//! check what they read, never mix attempts and never end short.
//!
//! ```no_run
//! use forebay_client::{AttemptId, Client, DatasetId, JobId, PartitionId, ReadOptions, Result, SubpartitionIndex, WriterOptions};
//! use forebay_client::protocol::{datasets::DatasetRequest, jobs::JobRequest};
//!
//! async fn tour() -> Result<()> {
//!     let client = Client::builder("http://127.0.0.1:7464").build()?;
//!     let id = |text: &str| JobId::new(text).map_err(|error| forebay_client::ClientError::Invalid(error.to_string()));
//!     let (job, _) = client.put_job(&id("wordcount")?, &JobRequest::default()).await?;
//!     let name = DatasetId::new("words").map_err(|error| forebay_client::ClientError::Invalid(error.to_string()))?;
//!     let (words, _) = job.put_dataset(&name, &DatasetRequest::new(8)).await?;
//!
//!     let mut writer = words.writer(PartitionId::new(0), AttemptId::new(0, 0), WriterOptions::default()).await?;
//!     writer.write(SubpartitionIndex::new(3), "to be or not to be".into()).await?;
//!     let sealed = writer.seal().await?;
//!     println!("kept as {}", sealed.manifest.class.text());
//!
//!     let bytes = words.read(PartitionId::new(0), SubpartitionIndex::new(3), ReadOptions::default()).read_to_end().await?;
//!     assert_eq!(bytes, "to be or not to be");
//!     job.release().await?;
//!     Ok(())
//! }
//! ```

pub mod client;
pub mod dataset;
pub mod error;
pub mod events;
pub mod fetch;
pub mod job;
pub mod raw;
pub mod reader;
pub mod retry;
mod transport;
pub mod writer;

pub use client::{Client, ClientBuilder};
pub use dataset::DatasetHandle;
pub use error::{Action, ClientError, Result};
pub use events::EventStream;
pub use fetch::{Fetch, FetchOptions, Fetched};
pub use forebay_protocol as protocol;
pub use job::{JobHandle, KeepAlive};
pub use raw::RawWriter;
pub use reader::{ReadOptions, SubpartitionReader, TailReader};
pub use retry::RetryPolicy;
pub use store_api::{AttemptId, DatasetId, JobEpoch, JobId, Offset, PartitionId, SubpartitionIndex};
pub use writer::{PartitionWriter, WriterOptions};

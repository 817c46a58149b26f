//! Durable partitions in an object store.
//!
//! | module | what it holds |
//! |---|---|
//! | `config`, `connect` | what can be set; the client of S3, GCS, Azure, a directory, memory |
//! | `bucket`, `error` | few operations with limits and tries; errors by what can be done |
//! | `probe` | what conditional puts are worth on this store |
//! | `layout`, `manifest` | names of objects; the stored form that decides what exists |
//! | `attempt`, `buffer` | an attempt in memory; its bytes that are not accepted yet |
//! | `upload`, `seal` | sending while the producer writes; prepare and publish |
//! | `lookup`, `cache`, `reader` | finding sealed content, without listing; reading it, checked |
//! | `release`, `sweep`, `registry` | giving back; what was left behind; what this process knows |
//! | `store`, `catalog` | the two traits |
//!
//! The create of a manifest is the seal, and the object store its arbiter: see
//! `docs/adr/0006-object-layout-and-commit.md`. This crate knows no HTTP, no leases, no owners.

mod attempt;
mod bucket;
mod buffer;
mod cache;
mod catalog;
mod config;
mod connect;
mod error;
mod inner;
mod layout;
mod lookup;
mod manifest;
mod probe;
mod reader;
mod registry;
mod release;
mod seal;
mod store;
mod sweep;
mod upload;

pub use bucket::Parts;
pub use catalog::ObjectCatalog;
pub use config::{
    AzureConfig, ConditionalPut, Config, ConfigError, DirectoryConfig, GcsConfig, MIN_CLOUD_PART_BYTES, S3Config, Secret, StoreConfig,
};
pub use probe::{Probed, Support};
pub use store::{Environment, ObjectStore};
pub use sweep::{SweepReport, SweepRequest};

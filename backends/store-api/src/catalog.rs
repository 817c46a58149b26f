//! The catalog: a small ordered map of names to bytes that survives restarts, for what must outlive
//! a process besides partitions (jobs, datasets, token hashes, release records).
//!
//! A local one lies on the node's disk; a shared one in the object store, so that another node can
//! find a job whose first node is gone. Conditional puts make both safe against two writers.

use crate::error::StoreError;
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;

/// Longest key, in bytes.
pub const MAX_KEY_LENGTH: usize = 900;
/// Longest value, in bytes.
pub const MAX_VALUE_LENGTH: usize = 1024 * 1024;

/// Opaque version of an entry; equal versions mean equal content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(pub Arc<str>);

/// An entry as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogEntry {
    /// The value.
    pub value: Bytes,
    /// Names this state of the entry in a later [`Expect::Version`].
    pub version: Version,
}

/// What a conditional put expects to find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// Anything: the last writer wins.
    Any,
    /// No entry.
    Absent,
    /// The entry in exactly this version.
    Version(Version),
}

/// A small durable map. Keys are made of `A-Z a-z 0-9 . _ - /`, are ordered by bytes, and are at
/// most [`MAX_KEY_LENGTH`] long; values are at most [`MAX_VALUE_LENGTH`].
#[async_trait]
pub trait Catalog: Send + Sync + 'static {
    /// Reads an entry; `None` when there is none. Reads follow writes of this process at once.
    /// Cancel-safe. Errors: `Unavailable` (never taken for "absent"), `Format`.
    async fn get(&self, key: &str) -> Result<Option<CatalogEntry>, StoreError>;

    /// Writes an entry if `expect` holds. Durable when it returns. Idempotent for the same value:
    /// a repeat after a lost reply that finds its own value succeeds. Cancelled half-way: it has
    /// happened or not. Errors: `Conflict` when `expect` does not hold, `TooLarge`, `DiskFull`,
    /// `Unavailable`.
    async fn put(&self, key: &str, value: Bytes, expect: Expect) -> Result<Version, StoreError>;

    /// Removes an entry; succeeds when there is none. Durable when it returns. Errors: `Unavailable`.
    async fn delete(&self, key: &str) -> Result<(), StoreError>;

    /// All entries whose key starts with `prefix`, in key order. Not for hot paths. Errors:
    /// `Unavailable`; never a partial answer.
    async fn scan(&self, prefix: &str) -> Result<Vec<(String, CatalogEntry)>, StoreError>;
}

//! The catalog of a single node: a family of the same index, with a synced log whatever the level
//! of the store.
//!
//! ```text
//!   value in the index: version (1) | life (8) | number (8) | value
//! ```
//! The version of an entry is the node life and a number counted in it, so no two writes ever have
//! the same. Conditional puts take one lock around compare and write; the directory is locked, so
//! there is no other writer.

use crate::core::Core;
use crate::error::IndexError;
use crate::index::{Change, Family};
use async_trait::async_trait;
use bytes::{Buf, BufMut, Bytes};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store_api::catalog::{MAX_KEY_LENGTH, MAX_VALUE_LENGTH};
use store_api::{Catalog, CatalogEntry, Expect, Operation, StoreError, StoreErrorKind, Version};

const VALUE_VERSION: u8 = 1;

/// A small durable map beside the partitions of a disk store.
#[derive(Debug, Clone)]
pub struct DiskCatalog {
    core: Arc<Core>,
}

fn version(life: u64, number: u64) -> Version {
    Version(Arc::from(format!("{life:016x}-{number}")))
}

fn encode(life: u64, number: u64, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(17 + value.len());
    out.put_u8(VALUE_VERSION);
    out.put_u64_le(life);
    out.put_u64_le(number);
    out.put_slice(value);
    out
}

fn decode(key: &str, stored: Vec<u8>) -> Result<CatalogEntry, StoreError> {
    let mut bytes = Bytes::from(stored);
    let refuse = |reason: String| StoreError::new(StoreErrorKind::Format { reason }, Operation::Catalog, key);
    match bytes.try_get_u8() {
        Ok(VALUE_VERSION) => {}
        Ok(found) => return Err(refuse(format!("catalog entry version {found} is not known here"))),
        Err(_) => return Err(refuse("the catalog entry is empty".to_owned())),
    }
    match (bytes.try_get_u64_le(), bytes.try_get_u64_le()) {
        (Ok(life), Ok(number)) => Ok(CatalogEntry { value: bytes, version: version(life, number) }),
        _ => Err(refuse("the catalog entry is damaged".to_owned())),
    }
}

impl DiskCatalog {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        key: &str,
        work: impl FnOnce(&Core) -> Result<T, IndexError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let core = self.core.clone();
        let done = self.core.media.tasks.run_blocking(move || work(&core)).await;
        let done = done.unwrap_or_else(|| Err(IndexError::broken("the work ended without a result")));
        done.map_err(|error| error.at(Operation::Catalog, key))
    }

    /// Compares and writes under the catalog's lock. To be run to its end.
    async fn put_locked(self, key: String, value: Bytes, expect: Expect) -> Result<Version, StoreError> {
        let _writer = self.core.catalog_turn.lock().await;
        let held = self.get(&key).await?;
        let is_met = match (&expect, &held) {
            (Expect::Any, _) | (Expect::Absent, None) => true,
            (Expect::Version(wanted), Some(entry)) => entry.version == *wanted,
            (Expect::Absent, Some(_)) | (Expect::Version(_), None) => false,
        };
        if !is_met {
            // A repeat after a lost reply finds its own value.
            return match held {
                Some(entry) if entry.value == value => Ok(entry.version),
                _ => Err(StoreError::new(StoreErrorKind::Conflict, Operation::Catalog, &key)),
            };
        }
        let life = self.core.environment.life.get();
        let number = self.core.next_file.fetch_add(1, Ordering::Relaxed);
        let put = Change::Put(Family::Catalog, key.clone().into_bytes(), encode(life, number, &value));
        self.settle(&key, put).await?;
        Ok(version(life, number))
    }

    async fn settle(&self, key: &str, change: Change) -> Result<(), StoreError> {
        let ticket = self.core.index.queue(vec![change], true);
        let settled = self.core.index.settle(&self.core.media.tasks, ticket).await;
        settled.map_err(|error| error.at(Operation::Catalog, key))
    }
}

fn check_key(key: &str) -> Result<(), StoreError> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'/');
    if key.len() > MAX_KEY_LENGTH {
        let kind = StoreErrorKind::TooLarge { requested: key.len() as u64, limit: MAX_KEY_LENGTH as u64 };
        return Err(StoreError::new(kind, Operation::Catalog, "a key"));
    }
    if key.is_empty() || !key.bytes().all(is_allowed) {
        let reason = "a catalog key is made of A-Z a-z 0-9 . _ - /";
        return Err(StoreError::new(StoreErrorKind::Unsupported { reason }, Operation::Catalog, "a key"));
    }
    Ok(())
}

#[async_trait]
impl Catalog for DiskCatalog {
    async fn get(&self, key: &str) -> Result<Option<CatalogEntry>, StoreError> {
        check_key(key)?;
        let row = key.as_bytes().to_vec();
        let found = self.blocking(key, move |core| core.index.row(Family::Catalog, &row)).await?;
        found.map(|stored| decode(key, stored)).transpose()
    }

    async fn put(&self, key: &str, value: Bytes, expect: Expect) -> Result<Version, StoreError> {
        check_key(key)?;
        if value.len() > MAX_VALUE_LENGTH {
            let kind = StoreErrorKind::TooLarge { requested: value.len() as u64, limit: MAX_VALUE_LENGTH as u64 };
            return Err(StoreError::new(kind, Operation::Catalog, key));
        }
        let work = self.clone().put_locked(key.to_owned(), value, expect);
        let done = self.core.to_end(work).await;
        done.unwrap_or_else(|| Err(IndexError::broken("the write ended without a result").at(Operation::Catalog, key)))
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        check_key(key)?;
        let (catalog, row) = (self.clone(), key.to_owned());
        let work = async move {
            let _writer = catalog.core.catalog_turn.lock().await;
            catalog.settle(&row, Change::Delete(Family::Catalog, row.clone().into_bytes())).await
        };
        let done = self.core.to_end(work).await;
        done.unwrap_or_else(|| Err(IndexError::broken("the write ended without a result").at(Operation::Catalog, key)))
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<(String, CatalogEntry)>, StoreError> {
        let from = prefix.as_bytes().to_vec();
        let rows = self.blocking(prefix, move |core| {
            let mut rows = Vec::new();
            let to = (!from.is_empty()).then(|| crate::keys::after(&from));
            core.index.rows(Family::Catalog, &from, to, &mut |key, value| {
                rows.push((String::from_utf8_lossy(key).into_owned(), value.to_vec()));
            })?;
            Ok(rows)
        });
        rows.await?.into_iter().map(|(key, stored)| decode(&key, stored).map(|entry| (key, entry))).collect()
    }
}

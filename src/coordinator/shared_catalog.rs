//! A part of a catalog that looks like a whole one: what nodes without an object store share.

use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;
use store_api::{Catalog, CatalogEntry, Expect, StoreError, Version};

const SHARED: &str = "coordinator/shared/";

/// The entries of a catalog below a prefix.
pub struct SharedCatalog {
    inner: Arc<dyn Catalog>,
}

impl SharedCatalog {
    /// The shared part of a coordinator's catalog.
    #[must_use]
    pub fn new(inner: Arc<dyn Catalog>) -> Self {
        Self { inner }
    }
}

#[async_trait]
impl Catalog for SharedCatalog {
    async fn get(&self, key: &str) -> Result<Option<CatalogEntry>, StoreError> {
        self.inner.get(&format!("{SHARED}{key}")).await
    }

    async fn put(&self, key: &str, value: Bytes, expect: Expect) -> Result<Version, StoreError> {
        self.inner.put(&format!("{SHARED}{key}"), value, expect).await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.inner.delete(&format!("{SHARED}{key}")).await
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<(String, CatalogEntry)>, StoreError> {
        let found = self.inner.scan(&format!("{SHARED}{prefix}")).await?;
        Ok(found.into_iter().map(|(key, entry)| (key.strip_prefix(SHARED).unwrap_or_default().to_owned(), entry)).collect())
    }
}

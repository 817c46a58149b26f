//! The shared catalog: a small map of names to bytes in the object store.
//!
//! # Names
//! A key is cut at its slashes; a part that something follows ends in `=`, the last one in `=v`, and
//! a part over 180 characters is cut into pieces that end in `==`. Keys hold no `=`, so no two keys
//! meet, and no entry is the parent of another.
//!
//! # Two ways to be conditional
//! Where the probe saw conditional updates work, an entry is one object: `Absent` is a create and
//! `Version` an update of the version that was read. Elsewhere (a directory; gateways that refuse a
//! correct version) an entry is a row of revisions, `{name}r/{number}`, each written with a create:
//! the highest is the entry, a removal is a revision too, and an older revision goes when a newer
//! one stands. Finding the highest is a listing of that row. A writer that was slow finds out, by a
//! second listing after its create, that the row had gone on without it.

use crate::error::{BucketError, Fault};
use crate::inner::Inner;
use crate::lookup::unknown;
use crate::probe::Support;
use async_trait::async_trait;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt};
use object_store::UpdateVersion;
use object_store::path::Path;
use std::collections::BTreeMap;
use std::sync::Arc;
use store_api::catalog::{MAX_KEY_LENGTH, MAX_VALUE_LENGTH};
use store_api::{Catalog, CatalogEntry, Crc32c, Expect, Operation, StoreError, StoreErrorKind, Version};

const LONGEST_PART: usize = 180;
const ENTRY_VERSION: u8 = 1;
const VALUE: u8 = 1;
const REMOVED: u8 = 2;
/// Tries of an unconditional put among writers that do the same.
const MAX_ROUNDS: usize = 16;
const SIDE_BY_SIDE: usize = 16;

/// A catalog in an object store. Made by [`crate::ObjectStore::catalog`].
pub struct ObjectCatalog {
    inner: Arc<Inner>,
    root: String,
}

impl std::fmt::Debug for ObjectCatalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectCatalog").field("root", &self.root).finish_non_exhaustive()
    }
}

/// The name of a key's entry, below the root.
fn encode_key(key: &str) -> String {
    let mut name = String::with_capacity(key.len() + 16);
    let mut parts = key.split('/').peekable();
    while let Some(part) = parts.next() {
        let mut rest = part;
        while rest.len() > LONGEST_PART {
            // Keys are ASCII: every position is a border.
            let (piece, later) = rest.split_at_checked(LONGEST_PART).unwrap_or((rest, ""));
            name.push_str(piece);
            name.push_str("==/");
            rest = later;
        }
        name.push_str(rest);
        name.push_str(if parts.peek().is_some() { "=/" } else { "=v" });
    }
    name
}

/// The key of an entry's name; `None` when it is none of ours.
fn decode_key(name: &str) -> Option<String> {
    let mut key = String::with_capacity(name.len());
    let mut parts = name.split('/').peekable();
    while let Some(part) = parts.next() {
        let is_last = parts.peek().is_none();
        if is_last {
            key.push_str(part.strip_suffix("=v")?);
        } else if let Some(piece) = part.strip_suffix("==") {
            key.push_str(piece);
        } else {
            key.push_str(part.strip_suffix('=')?);
            key.push('/');
        }
    }
    Some(key)
}

fn encode_entry(kind: u8, value: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(value.len() + 6);
    out.put_u8(ENTRY_VERSION);
    out.put_u8(kind);
    out.put_slice(value);
    let crc = Crc32c::of(&out);
    out.put_u32_le(crc.get());
    out.freeze()
}

/// The value of a stored entry; `None` for a removal.
fn decode_entry(mut stored: Bytes) -> Result<Option<Bytes>, &'static str> {
    let covered = stored.len().checked_sub(4).filter(|length| *length >= 2).ok_or("an entry is cut")?;
    if stored.first() != Some(&ENTRY_VERSION) {
        return Err("an entry has another version");
    }
    let mut check = stored.split_off(covered);
    if Crc32c::of(&stored).get() != check.get_u32_le() {
        return Err("an entry is damaged");
    }
    stored.advance(1);
    match stored.get_u8() {
        VALUE => Ok(Some(stored)),
        REMOVED => Ok(None),
        _ => Err("an entry is of another kind"),
    }
}

fn version_of(version: &UpdateVersion) -> Version {
    let (tag, number) = (version.e_tag.as_deref().unwrap_or_default(), version.version.as_deref().unwrap_or_default());
    Version(Arc::from(format!("{tag}\n{number}")))
}

fn update_of(version: &Version) -> UpdateVersion {
    let (tag, number) = version.0.split_once('\n').unwrap_or((&version.0, ""));
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    UpdateVersion { e_tag: some(tag), version: some(number) }
}

impl ObjectCatalog {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        let root = inner.layout.catalog();
        Self { inner, root }
    }

    fn fail(kind: StoreErrorKind, key: &str) -> StoreError {
        StoreError::new(kind, Operation::Catalog, key)
    }

    fn unknown(error: BucketError, key: &str) -> StoreError {
        unknown(error, Operation::Catalog, key)
    }

    fn format(reason: &'static str, key: &str) -> StoreError {
        Self::fail(StoreErrorKind::Format { reason: reason.to_owned() }, key)
    }

    fn is_updating(&self) -> bool {
        self.inner.probed.update == Support::Works
    }

    fn check_key(key: &str) -> Result<(), StoreError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'/');
        if key.len() > MAX_KEY_LENGTH {
            let kind = StoreErrorKind::TooLarge { requested: key.len() as u64, limit: MAX_KEY_LENGTH as u64 };
            return Err(Self::fail(kind, key));
        }
        if key.is_empty() || !key.bytes().all(is_allowed) {
            return Err(Self::fail(StoreErrorKind::Unsupported { reason: "a catalog key is made of A-Z a-z 0-9 . _ - /" }, key));
        }
        Ok(())
    }

    fn path(&self, key: &str) -> Path {
        Path::from(format!("{}/{}", self.root, encode_key(key)))
    }

    /// Parent of the revisions of a key.
    fn row(&self, key: &str) -> Path {
        Path::from(format!("{}/{}r", self.root, encode_key(key)))
    }

    fn revision(&self, key: &str, number: u64) -> Path {
        Path::from(format!("{}/{}r/{number:020}", self.root, encode_key(key)))
    }

    /// Numbers of the revisions that stand, ascending.
    async fn revisions(&self, key: &str) -> Result<Vec<u64>, BucketError> {
        let found = self.inner.bucket.list(&self.row(key)).await?;
        let mut numbers: Vec<u64> = found.iter().filter_map(|meta| meta.location.filename()?.parse().ok()).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Number of the newest revision and its value; `None` for the value when it is a removal.
    async fn newest(&self, key: &str) -> Result<Option<(u64, Option<Bytes>)>, StoreError> {
        for _ in 0..MAX_ROUNDS {
            let numbers = self.revisions(key).await.map_err(|error| Self::unknown(error, key))?;
            let Some(number) = numbers.last().copied() else { return Ok(None) };
            let fetched = self.inner.bucket.fetch(&self.revision(key, number)).await.map_err(|error| Self::unknown(error, key))?;
            // Gone since the listing: a newer one stands.
            let Some((stored, _)) = fetched else { continue };
            let value = decode_entry(stored).map_err(|reason| Self::format(reason, key))?;
            return Ok(Some((number, value)));
        }
        Err(Self::fail(StoreErrorKind::Unavailable { retry_after: crate::error::RETRY_AFTER }, key))
    }

    /// Adds revision `number` on top of the one before it. `false` when another writer was first.
    async fn add_revision(&self, key: &str, number: u64, stored: Bytes) -> Result<bool, StoreError> {
        let fail = |error| Self::unknown(error, key);
        let path = self.revision(key, number);
        match self.inner.bucket.put_create(&path, stored.clone().into()).await {
            Ok(_) => {}
            Err(error) if error.fault == Fault::Exists => {
                // Ours after a lost reply, or another's.
                let found = self.inner.bucket.fetch(&path).await.map_err(fail)?;
                if found.is_none_or(|(there, _)| there != stored) {
                    return Ok(false);
                }
            }
            Err(error) => return Err(fail(error)),
        }
        let numbers = self.revisions(key).await.map_err(fail)?;
        if numbers.last().is_some_and(|last| *last > number) {
            // The row had gone on: this number was used and taken away before.
            return Ok(false);
        }
        let older: Vec<Path> = numbers.iter().filter(|older| **older < number).map(|older| self.revision(key, *older)).collect();
        if let Err(error) = self.inner.bucket.delete(&older).await {
            tracing::debug!(%error, "older revisions of a catalog entry are left for its next writer");
        }
        Ok(true)
    }

    async fn put_revision(&self, key: &str, value: &Bytes, expect: &Expect) -> Result<Version, StoreError> {
        let stored = encode_entry(VALUE, value);
        for _ in 0..MAX_ROUNDS {
            let newest = self.newest(key).await?;
            let number = newest.as_ref().map_or(0, |(number, _)| *number);
            let current = newest.and_then(|(_, value)| value);
            let holds = match expect {
                Expect::Any => true,
                Expect::Absent => current.is_none(),
                Expect::Version(version) => current.is_some() && version.0.as_ref() == number.to_string(),
            };
            if !holds {
                let is_own = current.as_ref() == Some(value);
                return if is_own { Ok(Version(Arc::from(number.to_string()))) } else { Err(Self::fail(StoreErrorKind::Conflict, key)) };
            }
            let next = number.saturating_add(1);
            if self.add_revision(key, next, stored.clone()).await? {
                return Ok(Version(Arc::from(next.to_string())));
            }
        }
        Err(Self::fail(StoreErrorKind::Unavailable { retry_after: crate::error::RETRY_AFTER }, key))
    }

    async fn fetch(&self, key: &str, path: &Path) -> Result<Option<CatalogEntry>, StoreError> {
        let fetched = self.inner.bucket.fetch(path).await.map_err(|error| Self::unknown(error, key))?;
        let Some((stored, version)) = fetched else { return Ok(None) };
        let value = decode_entry(stored).map_err(|reason| Self::format(reason, key))?;
        Ok(value.map(|value| CatalogEntry { value, version: version_of(&version) }))
    }

    async fn put_object(&self, key: &str, value: &Bytes, expect: &Expect) -> Result<Version, StoreError> {
        let path = self.path(key);
        let payload = encode_entry(VALUE, value);
        let bucket = &self.inner.bucket;
        let put = match expect {
            Expect::Any => bucket.put(&path, payload.into()).await,
            Expect::Absent => bucket.put_create(&path, payload.into()).await,
            Expect::Version(version) => bucket.put_update(&path, payload.into(), update_of(version)).await,
        };
        match put {
            Ok(version) => match version_of(&version) {
                // Some stores name no version in the answer to a put.
                unnamed if unnamed.0.as_ref() == "\n" => self.own(key, &path, value).await,
                named => Ok(named),
            },
            Err(error) if matches!(error.fault, Fault::Exists | Fault::Missing) => self.own(key, &path, value).await,
            Err(error) => Err(Self::unknown(error, key)),
        }
    }

    /// The version of the entry if it has our value: ours, written before a lost reply, or as good.
    async fn own(&self, key: &str, path: &Path, value: &Bytes) -> Result<Version, StoreError> {
        match self.fetch(key, path).await? {
            Some(entry) if entry.value == *value => Ok(entry.version),
            _ => Err(Self::fail(StoreErrorKind::Conflict, key)),
        }
    }
}

#[async_trait]
impl Catalog for ObjectCatalog {
    async fn get(&self, key: &str) -> Result<Option<CatalogEntry>, StoreError> {
        Self::check_key(key)?;
        if self.is_updating() {
            return self.fetch(key, &self.path(key)).await;
        }
        let newest = self.newest(key).await?;
        Ok(newest.and_then(|(number, value)| Some(CatalogEntry { value: value?, version: Version(Arc::from(number.to_string())) })))
    }

    async fn put(&self, key: &str, value: Bytes, expect: Expect) -> Result<Version, StoreError> {
        Self::check_key(key)?;
        if value.len() > MAX_VALUE_LENGTH {
            let kind = StoreErrorKind::TooLarge { requested: value.len() as u64, limit: MAX_VALUE_LENGTH as u64 };
            return Err(Self::fail(kind, key));
        }
        if self.is_updating() { self.put_object(key, &value, &expect).await } else { self.put_revision(key, &value, &expect).await }
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        Self::check_key(key)?;
        if self.is_updating() {
            return self.inner.bucket.delete(&[self.path(key)]).await.map_err(|error| Self::unknown(error, key));
        }
        for _ in 0..MAX_ROUNDS {
            match self.newest(key).await? {
                None | Some((_, None)) => return Ok(()),
                Some((number, Some(_))) => {
                    if self.add_revision(key, number.saturating_add(1), encode_entry(REMOVED, &[])).await? {
                        return Ok(());
                    }
                }
            }
        }
        Err(Self::fail(StoreErrorKind::Unavailable { retry_after: crate::error::RETRY_AFTER }, key))
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<(String, CatalogEntry)>, StoreError> {
        if !prefix.is_empty() {
            Self::check_key(prefix)?;
        }
        // The listing starts at the last slash: a prefix may end inside a part.
        let parent = prefix.rsplit_once('/').map_or(String::new(), |(parent, _)| parent.to_owned());
        let below =
            if parent.is_empty() { self.root.clone() } else { format!("{}/{}", self.root, encode_key(&parent).trim_end_matches('v')) };
        let found = self.inner.bucket.list(&Path::from(below)).await.map_err(|error| Self::unknown(error, prefix))?;
        let mut keys: BTreeMap<String, ()> = BTreeMap::new();
        for meta in found {
            let Some(name) = meta.location.as_ref().strip_prefix(self.root.as_str()).and_then(|name| name.strip_prefix('/')) else {
                continue;
            };
            let entry_name = if self.is_updating() { Some(name) } else { name.rsplit_once('/').and_then(|(row, _)| row.strip_suffix('r')) };
            if let Some(key) = entry_name.and_then(decode_key).filter(|key| key.starts_with(prefix)) {
                keys.insert(key, ());
            }
        }
        let entries = futures::stream::iter(keys.into_keys()).map(|key| async move {
            let entry = self.get(&key).await?;
            Ok::<_, StoreError>(entry.map(|entry| (key, entry)))
        });
        let entries: Vec<Option<(String, CatalogEntry)>> = entries.buffered(SIDE_BY_SIDE).try_collect().await?;
        Ok(entries.into_iter().flatten().collect())
    }
}

#[cfg(test)]
mod tests;

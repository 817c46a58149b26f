//! The object store as the rest of this crate uses it: few operations, each with a limit, a bounded
//! number of tries, and errors that say what can be done.
//!
//! | operation | tried again | a lost reply shows as |
//! |---|---|---|
//! | [`Bucket::put`] | yes: same name, same bytes | success |
//! | [`Bucket::put_create`] | yes | `Exists`; the caller compares what is there with what it wrote |
//! | [`Bucket::put_update`] | yes | `Exists`; as above |
//! | [`Bucket::fetch`], [`Bucket::fetch_range`] | yes, from where the body broke | – |
//! | [`Bucket::delete`] | yes | success: what is not there was deleted |
//! | [`Bucket::complete`] | yes | checked by the size of the object |

use crate::error::{BucketError, Fault, Secrets};
use bytes::{Bytes, BytesMut};
use futures::stream::{BoxStream, StreamExt};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    GetOptions, GetResult, MultipartId, ObjectMeta, ObjectStore as RawStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use store_api::clock::within;
use store_api::{Scope, SharedClock};

/// A client that uploads in parts.
pub type Parts = Arc<dyn MultipartStore>;
type Answer<T> = Result<T, BucketError>;

/// A client and what is known of it beforehand.
#[derive(Clone)]
pub(crate) struct Connection {
    /// The client.
    pub(crate) raw: Arc<dyn RawStore>,
    /// The same client, where it can upload in parts that are retried one by one.
    pub(crate) parts: Option<Parts>,
    /// A client that deletes one by one, for stores that know no bulk delete.
    pub(crate) single: Option<Arc<dyn RawStore>>,
    /// Where what is written lives.
    pub(crate) scope: Scope,
}

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Names in one bulk delete: the most that S3 takes.
const DELETE_BATCH: usize = 1000;

/// How long and how often.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Longest time for one answer, besides the time for its bytes.
    pub(crate) answer: Duration,
    /// Slowest transfer that is waited for, in bytes per second.
    pub(crate) slowest_transfer: u64,
    /// How often a request is made.
    pub(crate) tries: u32,
}

/// An object store.
pub(crate) struct Bucket {
    raw: Arc<dyn RawStore>,
    parts: Option<Parts>,
    single: Option<Arc<dyn RawStore>>,
    deletes_singly: AtomicBool,
    clock: SharedClock,
    secrets: Secrets,
    limits: Limits,
}

impl Bucket {
    /// Wraps a client.
    pub(crate) fn new(connection: Connection, clock: SharedClock, secrets: Secrets, limits: Limits) -> Self {
        let Connection { raw, parts, single, scope: _ } = connection;
        Self { raw, parts, single, deletes_singly: AtomicBool::new(false), clock, secrets, limits }
    }

    /// Whether uploads in parts are possible.
    pub(crate) fn has_parts(&self) -> bool {
        self.parts.is_some()
    }

    fn limit(&self, bytes: u64) -> Duration {
        self.limits.answer.saturating_add(Duration::from_secs(bytes / self.limits.slowest_transfer.max(1)))
    }

    async fn once<T>(&self, bytes: u64, call: impl Future<Output = Result<T, object_store::Error>>) -> Answer<T> {
        let answer = within(self.clock.as_ref(), self.limit(bytes), call).await;
        match answer {
            Some(answer) => answer.map_err(|error| BucketError::sort(&error, &self.secrets)),
            None => Err(BucketError::own(Fault::Passing, "the object store gave no answer in time")),
        }
    }

    async fn tried<T, C, F>(&self, bytes: u64, mut call: C) -> Answer<T>
    where
        C: FnMut() -> F,
        F: Future<Output = Result<T, object_store::Error>>,
    {
        let mut wait = FIRST_WAIT;
        for _ in 1..self.limits.tries {
            match self.once(bytes, call()).await {
                Err(error) if error.is_passing() => tracing::debug!(%error, "object store request is tried again"),
                answer => return answer,
            }
            self.clock.sleep(wait).await;
            wait = wait.saturating_mul(2).min(LONGEST_WAIT);
        }
        self.once(bytes, call()).await
    }

    async fn put_as(&self, path: &Path, payload: PutPayload, mode: PutMode) -> Answer<UpdateVersion> {
        let bytes = payload.content_length() as u64;
        let put = || {
            let options = PutOptions::from(mode.clone());
            self.raw.put_opts(path, payload.clone(), options)
        };
        let result = self.tried(bytes, put).await?;
        Ok(UpdateVersion { e_tag: result.e_tag, version: result.version })
    }

    /// Writes an object, whatever was there.
    pub(crate) async fn put(&self, path: &Path, payload: PutPayload) -> Answer<UpdateVersion> {
        self.put_as(path, payload, PutMode::Overwrite).await
    }

    /// Writes an object that is not there yet. `Exists` when it is, or when a reply was lost.
    pub(crate) async fn put_create(&self, path: &Path, payload: PutPayload) -> Answer<UpdateVersion> {
        self.put_as(path, payload, PutMode::Create).await
    }

    /// Writes an object that is there in exactly this version. `Exists` or `Missing` when it is
    /// not, or when a reply was lost.
    pub(crate) async fn put_update(&self, path: &Path, payload: PutPayload, version: UpdateVersion) -> Answer<UpdateVersion> {
        self.put_as(path, payload, PutMode::Update(version)).await
    }

    /// Reads a whole object and its version; `None` when it is not there.
    pub(crate) async fn fetch(&self, path: &Path) -> Answer<Option<(Bytes, UpdateVersion)>> {
        let mut wait = FIRST_WAIT;
        let mut tries = self.limits.tries;
        loop {
            tries = tries.saturating_sub(1);
            match self.fetch_once(path).await {
                Err(error) if error.fault == Fault::Missing => return Ok(None),
                Err(error) if error.is_passing() && tries > 0 => tracing::debug!(%error, "object store read is tried again"),
                answer => return answer.map(Some),
            }
            self.clock.sleep(wait).await;
            wait = wait.saturating_mul(2).min(LONGEST_WAIT);
        }
    }

    async fn fetch_once(&self, path: &Path) -> Answer<(Bytes, UpdateVersion)> {
        let result = self.once(0, self.raw.get_opts(path, GetOptions::default())).await?;
        let version = UpdateVersion { e_tag: result.meta.e_tag.clone(), version: result.meta.version.clone() };
        let length = result.range.end.saturating_sub(result.range.start);
        let mut body = BytesMut::new();
        self.receive(result, length, &mut body).await?;
        Ok((body.freeze(), version))
    }

    /// Reads a range, going on from where a body broke. Every wait for a piece of the body is
    /// bounded; so is the number of times that no progress was made.
    pub(crate) async fn fetch_range(&self, path: &Path, range: Range<u64>) -> Answer<Bytes> {
        let wanted = range.end.saturating_sub(range.start);
        let mut body = BytesMut::with_capacity(usize::try_from(wanted).unwrap_or(0));
        let mut wait = FIRST_WAIT;
        let mut tries = self.limits.tries.saturating_add(2);
        loop {
            let start = range.start.saturating_add(body.len() as u64);
            if start >= range.end {
                return Ok(body.freeze());
            }
            let options = GetOptions::new().with_range(Some(start..range.end));
            let received = match self.once(0, self.raw.get_opts(path, options)).await {
                Ok(result) if result.range.start == start => self.receive(result, range.end.saturating_sub(start), &mut body).await,
                Ok(_) => Err(BucketError::own(Fault::Permanent, "the object store answered another range than was asked for")),
                Err(error) => Err(error),
            };
            tries = tries.saturating_sub(1);
            match received {
                Ok(()) => {}
                Err(error) if error.is_passing() && tries > 0 => {
                    tracing::debug!(%error, received = body.len(), wanted, "object store read goes on where it broke");
                    self.clock.sleep(wait).await;
                    wait = wait.saturating_mul(2).min(LONGEST_WAIT);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the body of an answer, at most `wanted` bytes. A body that ends early is an error in
    /// passing; what has arrived stays in `body`.
    async fn receive(&self, result: GetResult, wanted: u64, body: &mut BytesMut) -> Answer<()> {
        let mut stream = result.into_stream();
        let mut missing = wanted;
        while missing > 0 {
            let piece = within(self.clock.as_ref(), self.limits.answer, stream.next()).await;
            let piece = match piece {
                None => return Err(BucketError::own(Fault::Passing, "the body of an answer stalled")),
                Some(None) => return Err(BucketError::own(Fault::Passing, "the body of an answer ended early")),
                Some(Some(piece)) => piece.map_err(|error| broken_body(&error, &self.secrets))?,
            };
            let taken = piece.len().min(usize::try_from(missing).unwrap_or(usize::MAX));
            body.extend_from_slice(piece.get(..taken).unwrap_or_default());
            missing = missing.saturating_sub(taken as u64);
        }
        Ok(())
    }

    /// Size of an object; `None` when it is not there.
    pub(crate) async fn size(&self, path: &Path) -> Answer<Option<u64>> {
        match self.tried(0, || self.raw.head(path)).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(error) if error.fault == Fault::Missing => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes objects; those that are not there count as deleted. In bulk where the store can.
    pub(crate) async fn delete(&self, paths: &[Path]) -> Answer<()> {
        for batch in paths.chunks(DELETE_BATCH) {
            self.delete_batch(batch).await?;
        }
        Ok(())
    }

    async fn delete_batch(&self, batch: &[Path]) -> Answer<()> {
        let mut wait = FIRST_WAIT;
        let mut tries = self.limits.tries;
        loop {
            let is_single = self.deletes_singly.load(Ordering::Relaxed);
            let client = self.single.as_ref().filter(|_| is_single).unwrap_or(&self.raw);
            let Err(error) = self.delete_once(client, batch).await else { return Ok(()) };
            let may_be_unknown = matches!(error.fault, Fault::Unsupported | Fault::Permanent);
            if may_be_unknown && !is_single && self.single.is_some() {
                tracing::warn!(%error, "the object store knows no bulk delete: objects are deleted one by one from now on");
                self.deletes_singly.store(true, Ordering::Relaxed);
                continue;
            }
            tries = tries.saturating_sub(1);
            if tries == 0 || !error.is_passing() {
                return Err(error);
            }
            self.clock.sleep(wait).await;
            wait = wait.saturating_mul(2).min(LONGEST_WAIT);
        }
    }

    async fn delete_once(&self, client: &Arc<dyn RawStore>, batch: &[Path]) -> Answer<()> {
        let names: Vec<Result<Path, object_store::Error>> = batch.iter().cloned().map(Ok).collect();
        let mut deleted = client.delete_stream(futures::stream::iter(names).boxed());
        let mut failed = None;
        loop {
            let answer = match within(self.clock.as_ref(), self.limits.answer, deleted.next()).await {
                None => return Err(BucketError::own(Fault::Passing, "a delete gave no answer in time")),
                Some(None) => break,
                Some(Some(answer)) => answer,
            };
            if let Err(error) = answer {
                let error = BucketError::sort(&error, &self.secrets);
                if error.fault != Fault::Missing {
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// The names right below `prefix` that have objects below them: what a directory calls folders.
    /// Errors: as [`Bucket::list`].
    pub(crate) async fn folders(&self, prefix: &Path) -> Answer<Vec<Path>> {
        let listing = self.raw.list_with_delimiter(Some(prefix));
        match within(self.clock.as_ref(), self.limits.answer.saturating_mul(2), listing).await {
            None => Err(BucketError::own(Fault::Passing, "a listing gave no answer in time")),
            Some(Ok(listed)) => Ok(listed.common_prefixes),
            Some(Err(error)) => {
                let error = BucketError::sort(&error, &self.secrets);
                if error.fault == Fault::Missing { Ok(Vec::new()) } else { Err(error) }
            }
        }
    }

    /// All objects below a prefix that ends at a slash: all of them or an error. Not tried again
    /// here: the client library retries each page.
    pub(crate) async fn list(&self, prefix: &Path) -> Answer<Vec<ObjectMeta>> {
        let mut found = Vec::new();
        let mut listing: BoxStream<'static, Result<ObjectMeta, object_store::Error>> = self.raw.list(Some(prefix));
        loop {
            match within(self.clock.as_ref(), self.limits.answer.saturating_mul(2), listing.next()).await {
                None => return Err(BucketError::own(Fault::Passing, "a listing gave no answer in time")),
                Some(None) => return Ok(found),
                Some(Some(Ok(meta))) => found.push(meta),
                Some(Some(Err(error))) => {
                    let error = BucketError::sort(&error, &self.secrets);
                    // A directory without the prefix says so; a bucket just lists nothing.
                    return if error.fault == Fault::Missing && found.is_empty() { Ok(found) } else { Err(error) };
                }
            }
        }
    }

    fn multipart(&self) -> Answer<&Parts> {
        self.parts.as_ref().ok_or_else(|| BucketError::own(Fault::Unsupported, "this object store has no uploads in parts"))
    }

    /// Begins an upload in parts. Tried once more often than needed, it leaves an upload without
    /// parts behind, which the store's own rules for unfinished uploads remove.
    pub(crate) async fn begin(&self, path: &Path) -> Answer<MultipartId> {
        let parts = self.multipart()?;
        self.tried(0, || parts.create_multipart(path)).await
    }

    /// Uploads a part.
    pub(crate) async fn put_part(&self, path: &Path, id: &MultipartId, index: usize, payload: PutPayload) -> Answer<PartId> {
        let parts = self.multipart()?;
        let bytes = payload.content_length() as u64;
        self.tried(bytes, || parts.put_part(path, id, index, payload.clone())).await
    }

    /// Makes an object of its parts. An answer that may be a lie (a lost reply, an error in the
    /// body of a success, an upload that is not known any more) is settled by the object itself:
    /// there with the right size, or not.
    pub(crate) async fn complete(&self, path: &Path, id: &MultipartId, part_ids: &[PartId], size: u64) -> Answer<()> {
        let parts = self.multipart()?;
        let Err(error) = self.tried(0, || parts.complete_multipart(path, id, part_ids.to_vec())).await else { return Ok(()) };
        match self.size(path).await {
            Ok(Some(found)) if found == size => Ok(()),
            Ok(_) => Err(error),
            // That the upload is not known any more may just mean that it is done.
            Err(unknown) => Err(if error.fault == Fault::Missing { unknown } else { error }),
        }
    }

    /// Ends an upload in parts without an object. Succeeds when there is no such upload.
    pub(crate) async fn abort(&self, path: &Path, id: &MultipartId) -> Answer<()> {
        let parts = self.multipart()?;
        match self.tried(0, || parts.abort_multipart(path, id)).await {
            Err(error) if error.is_passing() || error.fault == Fault::Denied => Err(error),
            _ => Ok(()),
        }
    }
}

/// A body that breaks is worth another try whatever broke it, unless the object is gone.
fn broken_body(error: &object_store::Error, secrets: &Secrets) -> BucketError {
    let sorted = BucketError::sort(error, secrets);
    if sorted.fault == Fault::Missing { sorted } else { BucketError::own(Fault::Passing, sorted.to_string()) }
}

//! What the parts of the store share.

use crate::attempt::{Attempt, Remains};
use crate::config::{Config, Environment};
use crate::error::IndexError;
use crate::index::{Change, Index};
use crate::layout::{Extent, FileId, FileSpan};
use crate::registry::Registry;
use crate::sizes::FileSizes;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use store_api::{ByteBudget, Capabilities, LossCause, Operation, ReadBudget, RecoveryReport, StoreError, StoreErrorKind, TaskGroup};
use store_file::{DirectoryLock, DirectorySet, FileError, FileErrorKind, FileOperation, FileWriter, OpenFiles};

/// A data file: index of its directory, and its name.
pub(crate) type FileAt = (usize, FileId);

/// The data directories. Streams hold this and not the store, so that a reader who does not come
/// back keeps nothing else alive.
#[derive(Debug)]
pub(crate) struct Media {
    pub(crate) directories: Arc<DirectorySet>,
    /// The stored id of each directory, by index.
    pub(crate) directory_ids: Vec<u64>,
    pub(crate) open_files: OpenFiles,
    /// What lies in each directory.
    pub(crate) sizes: FileSizes,
    pub(crate) tasks: TaskGroup,
    pub(crate) is_closing: AtomicBool,
    /// The next sync of a data file fails.
    #[cfg(test)]
    pub(crate) fails_sync: AtomicBool,
}

impl Media {
    pub(crate) fn path(&self, (directory, file): FileAt) -> PathBuf {
        self.directories.path(directory).unwrap_or(Path::new("")).join(file.to_string())
    }

    /// Forces a data file to the medium. Blocking.
    pub(crate) fn sync(&self, writer: &mut FileWriter) -> Result<(), FileError> {
        #[cfg(test)]
        if self.fails_sync.swap(false, Ordering::SeqCst) {
            return Err(FileError::io(FileOperation::Sync, writer.path(), std::io::Error::other("as asked")));
        }
        writer.sync()
    }

    /// Where a file of the index lies now; `None` when its directory is not there.
    pub(crate) fn place(&self, span: &FileSpan) -> Option<FileAt> {
        let index = self.directory_ids.iter().position(|id| *id == span.directory)?;
        Some((index, span.file))
    }

    /// Reads bytes of a file and lets `check` make something of them, on the blocking pool.
    pub(crate) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        at: FileAt,
        (offset, length): (u64, u64),
        check: impl FnOnce(Bytes) -> T + Send + 'static,
    ) -> Result<T, FileError> {
        let (media, path) = (self.clone(), self.path(at));
        let work = move || {
            let length = usize::try_from(length).map_err(|_| FileError::new(FileErrorKind::Short, FileOperation::Read, &path))?;
            // Without `?` on the spot: a reader must not make its directory look failed.
            let bytes = media.open_files.open(&path).and_then(|reader| reader.read_exact_at(offset, length));
            bytes.map(check).map_err(|error| FileError { operation: FileOperation::Read, ..error })
        };
        self.directories.run(&self.tasks, at.0, work).await
    }

    /// Reads an extent and checks it. Errors: why its attempt has ended, if it has; `Lost`,
    /// `Unavailable`, `Closing`.
    pub(crate) async fn read_extent(self: &Arc<Self>, attempt: &Attempt, at: Option<FileAt>, extent: Extent) -> Result<Bytes, StoreError> {
        if self.is_closing.load(Ordering::SeqCst) {
            return Err(attempt.refuse(StoreErrorKind::Closing, Operation::Read));
        }
        let Some(at) = at else { return Err(read_failure(attempt, StoreErrorKind::Lost { cause: LossCause::Disk })) };
        let range = (extent.offset, extent.length);
        match self.read(at, range, move |bytes| extent.verified(&bytes)).await {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(read_failure(attempt, StoreErrorKind::Lost { cause: LossCause::Corruption })),
            Err(error) => Err(read_failure(attempt, error.read_refusal()).with_source(error)),
        }
    }

    /// Removes files. What cannot be removed now is an orphan, which the next start removes.
    pub(crate) async fn remove(self: &Arc<Self>, files: Vec<FileAt>) {
        let mut by_directory: BTreeMap<usize, Vec<FileAt>> = BTreeMap::new();
        for at in files {
            by_directory.entry(at.0).or_default().push(at);
        }
        for (directory, files) in by_directory {
            let media = self.clone();
            let remove = move |at: &FileAt| {
                let removed = media.open_files.remove(&media.path(*at));
                if removed.is_ok() {
                    media.sizes.forget(*at);
                }
                removed
            };
            let work = move || files.iter().map(remove).fold(Ok(()), Result::and);
            if let Err(error) = self.directories.run(&self.tasks, directory, work).await {
                tracing::warn!(%error, "data files were not removed; the next start does it");
            }
        }
    }
}

/// The error of a read that failed: that its attempt has ended goes before all else.
pub(crate) fn read_failure(attempt: &Attempt, kind: StoreErrorKind) -> StoreError {
    if let Some(end) = attempt.end_kind() {
        return attempt.refuse(end, Operation::Read);
    }
    if let StoreErrorKind::Lost { cause } = kind {
        attempt.note_damage(cause);
        tracing::error!(attempt = %attempt.key, cause = cause.as_str(), "sealed bytes cannot be served");
    }
    attempt.refuse(kind, Operation::Read)
}

/// Rows and files of a release that could not be written; the next one tries again.
#[derive(Debug)]
pub(crate) struct Unsettled {
    pub(crate) changes: Vec<Change>,
    pub(crate) files: Vec<FileAt>,
}

/// The store behind its trait.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) environment: Environment,
    pub(crate) capabilities: Capabilities,
    pub(crate) media: Arc<Media>,
    pub(crate) index: Arc<Index>,
    pub(crate) registry: Registry,
    pub(crate) budget: ByteBudget,
    /// Memory for bytes on their way to readers.
    pub(crate) reads: ReadBudget,
    pub(crate) next_file: AtomicU64,
    pub(crate) is_spilling: AtomicBool,
    /// The last write-out failed.
    pub(crate) has_spill_failed: AtomicBool,
    /// It failed because no directory has room.
    pub(crate) is_disk_full: AtomicBool,
    pub(crate) n_waiting: AtomicUsize,
    pub(crate) recovery: Mutex<Option<RecoveryReport>>,
    pub(crate) unsettled: Mutex<Vec<Unsettled>>,
    pub(crate) locks: Mutex<Vec<DirectoryLock>>,
    /// Held by whoever changes the catalog.
    pub(crate) catalog_turn: tokio::sync::Mutex<()>,
}

impl Core {
    /// Refuses when the store is closing.
    pub(crate) fn refuse_closing(&self, operation: Operation, subject: impl std::fmt::Display) -> Result<(), StoreError> {
        if self.media.is_closing.load(Ordering::SeqCst) {
            return Err(StoreError::new(StoreErrorKind::Closing, operation, subject));
        }
        Ok(())
    }

    /// Runs work to its end even when the caller leaves half-way.
    pub(crate) async fn to_end<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (done, answer) = tokio::sync::oneshot::channel();
        self.media.tasks.spawn_to_end(async move {
            // A caller that left does not need its answer.
            let _ = done.send(work.await);
        });
        answer.await.ok()
    }

    /// Writes changes of the index and waits for them.
    pub(crate) async fn change(&self, changes: Vec<Change>) -> Result<(), IndexError> {
        let ticket = self.index.queue(changes, false);
        self.index.settle(&self.media.tasks, ticket).await
    }

    /// Clears away what an attempt left that was ended by its writer: the row, if there may be one,
    /// then the files.
    pub(crate) async fn clear(&self, attempt: &Attempt, remains: Remains) -> Result<(), IndexError> {
        if remains.has_row {
            let row = Change::Delete(crate::index::Family::Seals, crate::keys::of_attempt(&attempt.key));
            if let Err(error) = self.change(vec![row.clone()]).await {
                self.unsettled.lock().push(Unsettled { changes: vec![row], files: remains.files });
                return Err(error);
            }
        }
        self.media.remove(remains.files).await;
        Ok(())
    }
}

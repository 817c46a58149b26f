//! Spill files: where the oldest bytes of `SinceCheckpoint` attempts go when memory is short.
//!
//! An attempt writes to one file at a time, from its oldest chunk on, several subpartitions mixed;
//! a file that is full or failed is followed by another, perhaps in another directory. Nothing
//! describes the files but the extents in memory: they belong to one life of the node, and what a
//! former life left is removed at start. A file is removed as a whole once no extent is in it; the
//! last extent to go (or the last reader of one) condemns it, and the room maker or
//! whoever comes by first removes it, so that nothing blocks in a destructor.

use crate::buffer::{Extent, Held};
use crate::config::SpillConfig;
use bytes::Bytes;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store_api::clock::within;
use store_api::{Chunk, LossCause, SharedClock, StoreErrorKind, TaskGroup};
use store_file::{DirectoryConfig, DirectoryLock, DirectorySet, FileError, FileErrorKind, FileOperation, FileWriter, OpenFiles};
use tokio::sync::Notify;

const SUFFIX: &str = "spill";
/// Files kept open for reading. 256 leaves most of a usual limit of 1,024 descriptors to sockets.
const N_OPEN: usize = 256;
/// Longest wait for one read or write. A disk that takes longer hangs; what waits for it must not.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time that one call spends on removing files for others.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(5);

/// Files that no extent is in any more, and whom to tell.
#[derive(Debug)]
struct Condemned {
    files: Mutex<Vec<(usize, PathBuf)>>,
    kick: Arc<Notify>,
}

/// A spill file. Its name is given up when the last extent in it is dropped.
#[derive(Debug)]
pub(crate) struct SpillFile {
    directory: usize,
    path: PathBuf,
    /// `None` once the file is full or has failed.
    writer: Mutex<Option<FileWriter>>,
    condemned: Arc<Condemned>,
}

impl Drop for SpillFile {
    fn drop(&mut self) {
        self.condemned.files.lock().push((self.directory, std::mem::take(&mut self.path)));
        self.condemned.kick.notify_one();
    }
}

/// Where an extent lies.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    file: Arc<SpillFile>,
    position: u64,
}

/// Why an extent could not be read.
#[derive(Debug)]
pub(crate) struct ReadFailure {
    pub(crate) kind: StoreErrorKind,
    pub(crate) source: Box<dyn std::error::Error + Send + Sync>,
}

impl ReadFailure {
    /// Why the bytes are gone; `None` when they may still be there.
    pub(crate) const fn loss(&self) -> Option<LossCause> {
        match self.kind {
            StoreErrorKind::Lost { cause } => Some(cause),
            _ => None,
        }
    }
}

/// The spill files of a store.
#[derive(Debug)]
pub(crate) struct Spill {
    pub(crate) config: SpillConfig,
    set: Arc<DirectorySet>,
    open: Arc<OpenFiles>,
    clock: SharedClock,
    tasks: TaskGroup,
    next: AtomicU64,
    condemned: Arc<Condemned>,
    n_stale: AtomicU64,
    /// One store per directory.
    _locks: Vec<DirectoryLock>,
}

impl Spill {
    /// Takes the directories and removes what a former life left in them. Notifies `kick` when a
    /// file can be removed. Errors: those of [`DirectorySet::open`] and [`DirectoryLock::take`].
    pub(crate) async fn open(config: SpillConfig, clock: SharedClock, tasks: TaskGroup, kick: Arc<Notify>) -> Result<Self, FileError> {
        let directories = DirectoryConfig { reserve_bytes: config.reserve_bytes, ..DirectoryConfig::new(config.directories.clone()) };
        let opened = tasks
            .run_blocking({
                let clock = clock.clone();
                move || open_directories(directories, clock)
            })
            .await;
        let (set, locks, n_stale) = opened.unwrap_or_else(|| Err(interrupted()))?;
        Ok(Self {
            config,
            set: Arc::new(set),
            open: Arc::new(OpenFiles::new(N_OPEN)),
            clock,
            tasks,
            next: AtomicU64::new(0),
            condemned: Arc::new(Condemned { files: Mutex::default(), kick }),
            n_stale: AtomicU64::new(n_stale),
            _locks: locks,
        })
    }

    /// Number of files that a former life left; 0 from the second call on.
    pub(crate) fn take_stale(&self) -> u64 {
        self.n_stale.swap(0, Ordering::Relaxed)
    }

    /// Writes chunks to the current file of an attempt, one behind the other, and answers where
    /// each lies. After a failure nothing counts as written and the next call takes another file.
    /// Errors: what the directory set and the file say.
    pub(crate) async fn write(&self, current: &Mutex<Option<Arc<SpillFile>>>, chunks: &[Held]) -> Result<Vec<Extent<Place>>, FileError> {
        let pieces: Vec<Bytes> = chunks.iter().map(|held| held.bytes.clone()).collect();
        let n_bytes = chunks.iter().fold(0_u64, |sum, held| sum.saturating_add(held.length()));
        // A writer that is locked is in a write that hangs: nothing waits for it here.
        let is_usable = |file: &Arc<SpillFile>| file.writer.try_lock().is_some_and(|writer| writer.is_some());
        let usable = current.lock().clone().filter(is_usable);
        let directory = self.place(usable.as_ref().map(|file| file.directory), n_bytes).await?;
        let file = match usable.filter(|file| file.directory == directory) {
            Some(file) => file,
            None => self.create(directory).await?,
        };
        *current.lock() = Some(file.clone());
        let (target, is_synced, file_bytes) = (file.clone(), self.config.is_synced, self.config.file_bytes);
        let work = move || append(&target, &pieces, is_synced, file_bytes);
        let start = self.patiently(file.directory, self.set.run(&self.tasks, file.directory, work)).await?;
        let mut position = start;
        let place = |held: &Held| {
            let extent = Extent { start: held.start, length: held.length(), crc: held.crc, place: Place { file: file.clone(), position } };
            position = position.saturating_add(held.length());
            extent
        };
        Ok(chunks.iter().map(place).collect())
    }

    /// A directory with room, the preferred one if it has some.
    async fn place(&self, preferred: Option<usize>, n_bytes: u64) -> Result<usize, FileError> {
        let set = self.set.clone();
        let placed = self.tasks.run_blocking(move || set.place(preferred, n_bytes));
        within(self.clock.as_ref(), PATIENCE, placed).await.flatten().unwrap_or_else(|| Err(interrupted()))
    }

    async fn create(&self, directory: usize) -> Result<Arc<SpillFile>, FileError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.set.path(directory).unwrap_or(Path::new("")).join(format!("{number}.{SUFFIX}"));
        let condemned = self.condemned.clone();
        let make = move || {
            let writer = FileWriter::create(&path)?;
            Ok(Arc::new(SpillFile { directory, path, writer: Mutex::new(Some(writer)), condemned }))
        };
        self.patiently(directory, self.set.run(&self.tasks, directory, make)).await
    }

    /// Waits for work on a directory, but not for ever. Work that has begun goes on to its end.
    async fn patiently<T>(&self, directory: usize, work: impl Future<Output = Result<T, FileError>>) -> Result<T, FileError> {
        let path = self.set.path(directory).unwrap_or(Path::new(""));
        let hangs = || Err(FileError::new(FileErrorKind::Busy, FileOperation::Probe, path));
        within(self.clock.as_ref(), PATIENCE, work).await.unwrap_or_else(hangs)
    }

    /// Reads an extent back, in full, and checks it. Errors: `Lost` when the file is gone, ends too
    /// early or has other bytes; `Unavailable`.
    pub(crate) async fn read(&self, extent: &Extent<Place>) -> Result<Bytes, ReadFailure> {
        let (open, place) = (self.open.clone(), extent.place.clone());
        let length = usize::try_from(extent.length).unwrap_or(usize::MAX);
        // The place goes into the work, so that the file keeps its name as long as the read needs it.
        let work = move || open.open(&place.file.path)?.read_exact_at(place.position, length);
        let directory = extent.place.file.directory;
        let read = self.patiently(directory, self.set.run(&self.tasks, directory, work)).await;
        let bytes = read.map_err(|error| ReadFailure { kind: error.read_refusal(), source: Box::new(error) })?;
        let checked = Chunk::verified(bytes, extent.crc);
        checked
            .map(Chunk::into_bytes)
            .map_err(|mismatch| ReadFailure { kind: StoreErrorKind::Lost { cause: LossCause::Corruption }, source: Box::new(mismatch) })
    }

    /// Removes the files that no extent is in any more, as far as that goes quickly. A file that
    /// cannot be removed is left to the next start.
    pub(crate) async fn remove_condemned(&self) {
        let removal = async {
            while let Some((directory, path)) = self.next_condemned() {
                let open = self.open.clone();
                let removed = self.set.run(&self.tasks, directory, move || open.remove(&path)).await;
                if let Err(error) = removed {
                    tracing::warn!(error = %error, "a spill file could not be removed");
                }
            }
        };
        if within(self.clock.as_ref(), REMOVAL_PATIENCE, removal).await.is_none() {
            tracing::warn!("removing spill files takes long; the rest follows later");
        }
    }

    fn next_condemned(&self) -> Option<(usize, PathBuf)> {
        self.condemned.files.lock().pop()
    }
}

fn interrupted() -> FileError {
    FileError::io(FileOperation::Open, Path::new(""), std::io::Error::other("the work ended without a result"))
}

fn open_directories(config: DirectoryConfig, clock: SharedClock) -> Result<(DirectorySet, Vec<DirectoryLock>, u64), FileError> {
    let paths = config.paths.clone();
    let set = DirectorySet::open(config, clock)?;
    let (mut locks, mut n_stale) = (Vec::new(), 0);
    for (index, path) in paths.iter().enumerate() {
        match DirectoryLock::take(path) {
            Ok(lock) => locks.push(lock),
            Err(error) if error.kind == FileErrorKind::Locked => return Err(error),
            Err(error) => {
                // One directory that cannot be used is not all of them.
                set.report(index, &error);
                continue;
            }
        }
        match wipe(path) {
            Ok(n_removed) => n_stale += n_removed,
            Err(error) => set.report(index, &error),
        }
    }
    Ok((set, locks, n_stale))
}

/// Removes the spill files in a directory, and nothing else: what only has the name of one, a
/// directory say, is not ours.
fn wipe(directory: &Path) -> Result<u64, FileError> {
    let failed = |error| FileError::io(FileOperation::Remove, directory, error);
    let mut n_removed = 0;
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let is_file = entry.file_type().map_err(failed)?.is_file();
        if is_file && path.extension().is_some_and(|extension| extension == SUFFIX) {
            std::fs::remove_file(&path).map_err(failed)?;
            n_removed += 1;
        }
    }
    Ok(n_removed)
}

fn append(file: &SpillFile, pieces: &[Bytes], is_synced: bool, file_bytes: u64) -> Result<u64, FileError> {
    let mut slot = file.writer.lock();
    let Some(writer) = slot.as_mut() else {
        return Err(FileError::new(FileErrorKind::Poisoned, FileOperation::Write, &file.path));
    };
    let appended = writer.append(pieces).and_then(|start| if is_synced { writer.sync().map(|()| start) } else { Ok(start) });
    if appended.is_err() || writer.position() >= file_bytes {
        *slot = None;
    }
    appended
}

#[cfg(test)]
mod tests;

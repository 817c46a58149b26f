//! Several directories as one place to write to.
//!
//! ```text
//!            no room                    room again (looked at after `probe_interval`)
//!   Usable ───────────► Full   ──────────────────────────► Usable
//!      │    any other error                a probe file can be written again
//!      └──────────────► Failed ──────────────────────────► Usable
//! ```
//! A full directory is not broken: it is still read and removed from. Room is counted once per file
//! system, however many directories lie on it.

use crate::error::{FileError, FileErrorKind, FileOperation};
use crate::writer::{FileWriter, sync_directory};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use store_api::clock::within;
use store_api::{SharedClock, TaskGroup};
use tokio::sync::Semaphore;

/// How a [`DirectorySet`] behaves.
#[derive(Debug, Clone)]
pub struct DirectoryConfig {
    /// The directories; at least one. They are created when they are not there.
    pub paths: Vec<PathBuf>,
    /// Room that is never used, in bytes, per file system.
    pub reserve_bytes: u64,
    /// Room that is never used, in thousandths of the size of the file system. The larger of the
    /// two reserves counts.
    pub reserve_per_mille: u16,
    /// How many blocking calls one directory may hold at once.
    pub n_lanes: usize,
    /// Longest wait for a lane; after that the disk is said to be busy.
    pub lane_patience: Duration,
    /// How long a full or failed directory is left alone before it is looked at again. The room of
    /// a usable one is believed for a tenth of this.
    pub probe_interval: Duration,
}

impl DirectoryConfig {
    /// The given directories, a reserve of 64 MiB or 1 %, 8 lanes each, 30 s of patience, probes
    /// each second.
    #[must_use]
    pub fn new(paths: Vec<PathBuf>) -> Self {
        Self {
            paths,
            reserve_bytes: 64 * 1024 * 1024,
            reserve_per_mille: 10,
            n_lanes: 8,
            lane_patience: Duration::from_secs(30),
            probe_interval: Duration::from_secs(1),
        }
    }
}

/// Where a directory stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectoryState {
    /// It takes writes.
    Usable,
    /// It has no room for now; reads and removals go on.
    Full,
    /// It does not take writes, and why.
    Failed {
        /// What the system said.
        reason: String,
    },
}

/// A directory as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryStatus {
    /// Its path.
    pub path: PathBuf,
    /// Where it stands.
    pub state: DirectoryState,
    /// Room on its file system beyond the reserve, in bytes; directories on one file system all
    /// show the same room.
    pub free_bytes: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Space {
    /// Which file system.
    device: u64,
    /// Room beyond the reserve.
    free_bytes: u64,
}

#[derive(Debug)]
struct Health {
    state: DirectoryState,
    space: Space,
    probed_at: Option<Duration>,
    /// Since when somebody waits for the file system to answer.
    probing_since: Option<Duration>,
}

#[derive(Debug)]
struct Directory {
    path: PathBuf,
    health: Mutex<Health>,
    lanes: Arc<Semaphore>,
    n_sync_wanted: AtomicU64,
    n_synced: Mutex<u64>,
}

/// Several data directories. Indices are those of [`DirectoryConfig::paths`] and never change.
#[derive(Debug)]
pub struct DirectorySet {
    config: DirectoryConfig,
    clock: SharedClock,
    directories: Vec<Directory>,
    turn: AtomicUsize,
}

impl DirectorySet {
    /// Creates what is not there and looks at each. A directory that cannot be used is `Failed`,
    /// not an error, as long as one can. Blocking. Errors: that of the last directory when none can
    /// be used.
    pub fn open(config: DirectoryConfig, clock: SharedClock) -> Result<Self, FileError> {
        let directories: Vec<Directory> = config.paths.iter().map(|path| Directory::new(path, config.n_lanes)).collect();
        let set = Self { config, clock, directories, turn: AtomicUsize::new(0) };
        let mut last = FileError::new(FileErrorKind::Missing, FileOperation::Open, Path::new(""));
        let mut n_opened = 0;
        for directory in &set.directories {
            let created =
                std::fs::create_dir_all(&directory.path).map_err(|error| FileError::io(FileOperation::Open, &directory.path, error));
            match created.and_then(|()| set.probe(directory)) {
                Ok(()) => n_opened += 1,
                Err(error) => {
                    directory.note(&error, set.clock.monotonic());
                    // A full directory can still be read and removed from.
                    n_opened += usize::from(error.kind == FileErrorKind::Full);
                    last = error;
                }
            }
        }
        if n_opened == 0 { Err(last) } else { Ok(set) }
    }

    /// Number of directories, usable or not.
    #[must_use]
    pub fn count(&self) -> usize {
        self.directories.len()
    }

    /// The path of a directory; `None` when there is no such index.
    #[must_use]
    pub fn path(&self, index: usize) -> Option<&Path> {
        self.directories.get(index).map(|directory| directory.path.as_path())
    }

    /// A directory with room for `bytes` more: of the file system with most room, and in turn among
    /// those that lie on it. Directories that are full or failed are passed over, and looked at again once
    /// the probe interval has passed. The room counts as taken until the system was asked again, so
    /// that many writers do not all take the same. Blocking (asks the system at most once per
    /// interval and directory). Errors: `Full` when the usable ones have no room or all are full;
    /// otherwise the state of the last failed one as `Io`.
    pub fn choose(&self, bytes: u64) -> Result<usize, FileError> {
        self.place(None, bytes)
    }

    /// As [`DirectorySet::choose`], but stays with `preferred` as long as that has room.
    pub fn place(&self, preferred: Option<usize>, bytes: u64) -> Result<usize, FileError> {
        let mut best: Option<(Space, usize)> = None;
        let n_directories = self.directories.len().max(1);
        let first = preferred.unwrap_or_else(|| self.turn.fetch_add(1, Ordering::Relaxed)) % n_directories;
        let mut refusal = FileError::new(FileErrorKind::Full, FileOperation::Probe, Path::new(""));
        let mut is_room_short = false;
        for step in 0..self.directories.len() {
            let index = (first + step) % n_directories;
            let Some(directory) = self.directories.get(index) else { continue };
            let (state, space) = self.refresh(directory);
            refusal.path.clone_from(&directory.path);
            match state {
                DirectoryState::Usable if space.free_bytes >= bytes.max(1) => {
                    if preferred == Some(index) {
                        self.take_room(space.device, bytes);
                        return Ok(index);
                    }
                    // Of those on one file system the first in turn is taken, whatever was measured when.
                    let is_better = |(found, _): (Space, usize)| space.device != found.device && space.free_bytes > found.free_bytes;
                    if best.is_none_or(is_better) {
                        best = Some((space, index));
                    }
                }
                DirectoryState::Usable | DirectoryState::Full => is_room_short = true,
                DirectoryState::Failed { reason } => refusal.source = Some(std::io::Error::other(reason)),
            }
        }
        if let Some((space, index)) = best {
            self.take_room(space.device, bytes);
            return Ok(index);
        }
        if !is_room_short {
            refusal.kind = FileErrorKind::Io;
        }
        Err(refusal)
    }

    fn take_room(&self, device: u64, bytes: u64) {
        for directory in &self.directories {
            let mut health = directory.health.lock();
            if health.space.device == device {
                health.space.free_bytes = health.space.free_bytes.saturating_sub(bytes);
            }
        }
    }

    /// Room in all usable directories beyond the reserves, in bytes, each file system counted
    /// once. Blocking like [`DirectorySet::choose`].
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        let mut by_device = BTreeMap::new();
        for directory in &self.directories {
            if let (DirectoryState::Usable, space) = self.refresh(directory) {
                by_device.insert(space.device, space.free_bytes);
            }
        }
        by_device.into_values().fold(0, u64::saturating_add)
    }

    /// Where each directory stands, as last seen. No I/O.
    #[must_use]
    pub fn statuses(&self) -> Vec<DirectoryStatus> {
        let status = |directory: &Directory| {
            let health = directory.health.lock();
            DirectoryStatus { path: directory.path.clone(), state: health.state.clone(), free_bytes: health.space.free_bytes }
        };
        self.directories.iter().map(status).collect()
    }

    /// Tells the set that an operation in a directory failed. No room makes it `Full`; refusals
    /// that are about one file only (`Short`, `Exists`, `Poisoned`, `Busy`) and errors of reads
    /// change nothing; all else makes it `Failed`. No I/O.
    pub fn report(&self, index: usize, error: &FileError) {
        let is_about_directory = match error.kind {
            FileErrorKind::Full => true,
            FileErrorKind::Io | FileErrorKind::Missing | FileErrorKind::Locked => error.operation != FileOperation::Read,
            FileErrorKind::Short | FileErrorKind::Exists | FileErrorKind::Poisoned | FileErrorKind::Busy => false,
        };
        if let Some(directory) = self.directories.get(index).filter(|_| is_about_directory) {
            directory.note(error, self.clock.monotonic());
        }
    }

    /// Makes the names in a directory durable. Calls that wait at the same time share one sync:
    /// each is answered by a sync that began after it was made. Blocking. Errors: `Io`, `Missing`.
    pub fn sync_names(&self, index: usize) -> Result<(), FileError> {
        let Some(directory) = self.directories.get(index) else {
            return Err(FileError::new(FileErrorKind::Missing, FileOperation::Sync, Path::new("")));
        };
        let ticket = directory.n_sync_wanted.fetch_add(1, Ordering::SeqCst) + 1;
        let mut n_synced = directory.n_synced.lock();
        if *n_synced >= ticket {
            return Ok(());
        }
        let covered = directory.n_sync_wanted.load(Ordering::SeqCst);
        sync_directory(&directory.path)?;
        *n_synced = covered;
        Ok(())
    }

    /// Runs blocking work on a directory in one of its lanes, so that a disk that hangs holds a
    /// bounded number of threads. Failures are reported to the set. Cancelled half-way: work that
    /// has begun goes on to its end and keeps its lane until then. Errors: what the work says;
    /// `Busy` when no lane became free in time; `Io` when the work panicked or the runtime is
    /// going down.
    pub async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        tasks: &TaskGroup,
        index: usize,
        work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, FileError> {
        let Some(directory) = self.directories.get(index) else {
            return Err(FileError::new(FileErrorKind::Missing, FileOperation::Open, Path::new("")));
        };
        let busy = || FileError::new(FileErrorKind::Busy, FileOperation::Probe, &directory.path);
        let lane = within(self.clock.as_ref(), self.config.lane_patience, directory.lanes.clone().acquire_owned()).await;
        let lane = lane.and_then(Result::ok).ok_or_else(busy)?;
        let set = self.clone();
        let done = tasks.run_blocking(move || {
            let result = work();
            if let Err(error) = &result {
                set.report(index, error);
            }
            drop(lane);
            result
        });
        done.await.unwrap_or_else(|| {
            let ended = std::io::Error::other("the work ended without a result");
            Err(FileError::io(FileOperation::Probe, &directory.path, ended))
        })
    }

    /// State and room, asked anew when they are old. A file system that does not answer holds one
    /// caller; others go on with what is known, and after the lane patience take it for failed.
    fn refresh(&self, directory: &Directory) -> (DirectoryState, Space) {
        let now = self.clock.monotonic();
        let mut health = directory.health.lock();
        if let Some(since) = health.probing_since {
            if now.saturating_sub(since) > self.config.lane_patience {
                health.state = DirectoryState::Failed { reason: format!("{} does not answer", directory.path.display()) };
            }
        } else if health.probed_at.is_none_or(|at| now.saturating_sub(at) >= self.believed_for(&health.state)) {
            health.probing_since = Some(now);
            drop(health);
            let probed = self.probe(directory);
            if let Err(error) = probed {
                directory.note(&error, now);
            }
            health = directory.health.lock();
            health.probing_since = None;
        }
        (health.state.clone(), health.space)
    }

    /// Others write to the file system too, so the room of a usable directory is asked for often.
    fn believed_for(&self, state: &DirectoryState) -> Duration {
        match state {
            DirectoryState::Usable => self.config.probe_interval / 10,
            DirectoryState::Full | DirectoryState::Failed { .. } => self.config.probe_interval,
        }
    }

    fn probe(&self, directory: &Directory) -> Result<(), FileError> {
        let space = self.measure(&directory.path)?;
        let was_failed = matches!(directory.health.lock().state, DirectoryState::Failed { .. });
        if was_failed || directory.health.lock().probed_at.is_none() {
            write_probe_file(&directory.path)?;
        }
        let mut health = directory.health.lock();
        health.space = space;
        health.probed_at = Some(self.clock.monotonic());
        health.state = if space.free_bytes > 0 { DirectoryState::Usable } else { DirectoryState::Full };
        Ok(())
    }

    fn measure(&self, path: &Path) -> Result<Space, FileError> {
        let failed = |error| FileError::io(FileOperation::Probe, path, error);
        let device = std::fs::metadata(path).map_err(failed)?.dev();
        let answer = rustix::fs::statvfs(path).map_err(|error| failed(error.into()))?;
        let of_size = answer.f_blocks.saturating_mul(answer.f_frsize) / 1000;
        let reserve = self.config.reserve_bytes.max(of_size.saturating_mul(u64::from(self.config.reserve_per_mille)));
        Ok(Space { device, free_bytes: answer.f_bavail.saturating_mul(answer.f_frsize).saturating_sub(reserve) })
    }
}

impl Directory {
    fn new(path: &Path, n_lanes: usize) -> Self {
        let health = Health { state: DirectoryState::Usable, space: Space::default(), probed_at: None, probing_since: None };
        Self {
            path: path.to_path_buf(),
            health: Mutex::new(health),
            lanes: Arc::new(Semaphore::new(n_lanes.clamp(1, 1024))),
            n_sync_wanted: AtomicU64::new(0),
            n_synced: Mutex::new(0),
        }
    }

    fn note(&self, error: &FileError, now: Duration) {
        let mut health = self.health.lock();
        health.probed_at = Some(now);
        health.space.free_bytes = 0;
        health.state =
            if error.kind == FileErrorKind::Full { DirectoryState::Full } else { DirectoryState::Failed { reason: error.to_string() } };
    }
}

/// Finds out whether a directory takes writes: read-only and vanished mounts still answer questions
/// about their room.
fn write_probe_file(directory: &Path) -> Result<(), FileError> {
    let path = directory.join(format!("FOREBAY.PROBE.{}", std::process::id()));
    let removed = |path: &Path| match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(FileError::io(FileOperation::Remove, path, error)),
        _ => Ok(()),
    };
    removed(&path)?;
    let mut writer = FileWriter::create(&path)?;
    let written = writer.append(&[bytes::Bytes::from_static(b"probe")]);
    removed(&path)?;
    written.map(|_| ())
}

#[cfg(test)]
mod tests;

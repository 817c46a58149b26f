//! Opening: format and locks first, then the index, then what of it is really there.
//!
//! Nothing is changed before every marker was read and understood. Rows that fail their checks and
//! files that nobody knows are set aside, never deleted; files of attempts that were not sealed are
//! deleted, unless a damaged row may have spoken of them.

use crate::attempt::{Attempt, OwnFile};
use crate::config::{Config, Environment};
use crate::core::{Core, Media};
use crate::error::{format, unavailable};
use crate::index::{Change, Family, Index};
use crate::layout::{FileId, Layout};
use crate::registry::Registry;
use crate::row::{RowError, class_achieved};
use crate::sizes::FileSizes;
use crate::{keys, row};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use store_api::{
    AttemptKey, ByteBudget, Capabilities, LossCause, Operation, ReadBudget, RecoveryReport, SealManifest, StoreError, StoreErrorKind,
};
use store_file::{DirectoryConfig, DirectoryLock, DirectorySet, FileError, FileErrorKind, OpenFiles, sync_directory};

/// Marker of the index directory.
const INDEX_MARKER: &str = "FOREBAY.INDEX";
/// Marker of a data directory.
const DATA_MARKER: &str = "FOREBAY.DATA";
/// Version that both markers name.
const FORMAT_VERSION: &str = "1";
/// Where data files lie within a data directory.
const PARTS: &str = "parts";
/// Where unknown files are moved.
const SET_ASIDE: &str = "set-aside";
const SUBJECT: &str = "the disk store";

/// A marker: version, the store it belongs to, and, for data directories, their own id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Marker {
    store: u64,
    id: u64,
}

impl Marker {
    fn text(self) -> String {
        format!("forebay {FORMAT_VERSION}\nstore {:016x}\nid {:016x}\n", self.store, self.id)
    }

    /// Reads a marker. `None` when the directory is new. Errors: `Format` for another version,
    /// damage, or files without a marker.
    fn read(directory: &Path, name: &str) -> Result<Option<Self>, StoreError> {
        let path = directory.join(name);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return if is_new(directory)? { Ok(None) } else { Err(refuse_marker(&path, "is missing, and the directory is not empty")) };
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(refuse_marker(&path, "is damaged")),
            Err(error) => return Err(unavailable(Operation::Recover, SUBJECT, format!("{}: {error}", path.display()))),
        };
        let mut lines = text.lines();
        match lines.next().and_then(|line| line.strip_prefix("forebay ")) {
            Some(FORMAT_VERSION) => {}
            Some(other) => return Err(refuse_marker(&path, &format!("names format version {other}, this build reads {FORMAT_VERSION}"))),
            None => return Err(refuse_marker(&path, "is damaged")),
        }
        let mut number = |label: &str| {
            let hex = lines.next()?.strip_prefix(label)?;
            u64::from_str_radix(hex, 16).ok()
        };
        let found = number("store ").zip(number("id ")).map(|(store, id)| Self { store, id });
        found.map(Some).ok_or_else(|| refuse_marker(&path, "is damaged"))
    }

    fn write(self, directory: &Path, name: &str) -> io::Result<()> {
        let (path, draft) = (directory.join(name), directory.join(format!("{name}.new")));
        std::fs::write(&draft, self.text())?;
        std::fs::File::open(&draft)?.sync_all()?;
        std::fs::rename(&draft, &path)?;
        std::fs::File::open(directory)?.sync_all()
    }
}

fn refuse_marker(path: &Path, what: &str) -> StoreError {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    format(format!("the marker {name} {what}")).with_source(path.display().to_string())
}

/// Whether a directory is missing or holds nothing of anybody.
fn is_new(directory: &Path) -> Result<bool, StoreError> {
    let ours = |name: &str| name == store_file::lock::LOCK_NAME || name == "lost+found" || name.ends_with(".new");
    match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(unavailable(Operation::Recover, SUBJECT, format!("{}: {error}", directory.display()))),
        Ok(mut entries) => Ok(entries.all(|entry| entry.is_ok_and(|entry| entry.file_name().to_str().is_some_and(ours)))),
    }
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |error| {
        let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let failure = unavailable(Operation::Recover, SUBJECT, format!("{}: {error}", path.display()));
        if is_full { StoreError::new(StoreErrorKind::DiskFull, Operation::Recover, SUBJECT).with_source(error) } else { failure }
    }
}

fn lock(directory: &Path) -> Result<DirectoryLock, StoreError> {
    DirectoryLock::take(directory).map_err(|error: FileError| {
        if error.kind == FileErrorKind::Locked {
            let reason = format!("the directory {} is in use by another process", directory.display());
            return unavailable(Operation::Recover, SUBJECT, reason);
        }
        crate::error::write_error(error, Operation::Recover, SUBJECT)
    })
}

/// Directories that are marked and locked.
struct Places {
    locks: Vec<DirectoryLock>,
    parts: Vec<PathBuf>,
    ids: Vec<u64>,
}

/// Reads all markers, then writes those that are missing. A data directory that cannot be used is
/// left out (its partitions are lost for now), as long as one can.
fn take_places(config: &Config, environment: &Environment) -> Result<Places, StoreError> {
    let index_marker = Marker::read(&config.index_dir, INDEX_MARKER)?;
    let mut found = Vec::new();
    for directory in &config.data_dirs {
        match Marker::read(directory, DATA_MARKER) {
            Ok(marker) => found.push((directory, marker)),
            Err(error) if matches!(error.kind(), StoreErrorKind::Format { .. }) => return Err(error),
            Err(error) => tracing::error!(path = %directory.display(), ?error, "data directory left out"),
        }
    }
    let store = index_marker.map_or(environment.life.get(), |marker| marker.store);
    if let Some((directory, _)) = found.iter().find(|(_, marker)| marker.is_some_and(|marker| marker.store != store)) {
        return Err(refuse_marker(&directory.join(DATA_MARKER), "belongs to another index"));
    }
    std::fs::create_dir_all(&config.index_dir).map_err(io_error(&config.index_dir))?;
    let mut places = Places { locks: vec![lock(&config.index_dir)?], parts: Vec::new(), ids: Vec::new() };
    if index_marker.is_none() {
        Marker { store, id: store }.write(&config.index_dir, INDEX_MARKER).map_err(io_error(&config.index_dir))?;
    }
    let mut last_error = None;
    for (number, (directory, marker)) in found.into_iter().enumerate() {
        let new_id = environment.life.get().wrapping_add(number as u64);
        match take_data_directory(directory, marker, Marker { store, id: new_id }) {
            Ok((held, id)) => {
                places.locks.push(held);
                places.parts.push(directory.join(PARTS));
                places.ids.push(id);
            }
            Err((error, true)) => return Err(error),
            Err((error, false)) => {
                tracing::error!(path = %directory.display(), ?error, "data directory left out");
                last_error = Some(error);
            }
        }
    }
    if places.parts.is_empty() {
        return Err(last_error.unwrap_or_else(|| unavailable(Operation::Recover, SUBJECT, "no data directory can be used")));
    }
    Ok(places)
}

/// `true` with the error when it forbids to go on without the directory.
fn take_data_directory(directory: &Path, marker: Option<Marker>, new: Marker) -> Result<(DirectoryLock, u64), (StoreError, bool)> {
    let failed = |error| (io_error(directory)(error), false);
    std::fs::create_dir_all(directory.join(PARTS)).map_err(failed)?;
    let held = DirectoryLock::take(directory).map_err(|error| {
        let is_locked = error.kind == FileErrorKind::Locked;
        let reason = format!("the directory {}: {error}", directory.display());
        (unavailable(Operation::Recover, SUBJECT, reason), is_locked)
    })?;
    if marker.is_none() {
        new.write(directory, DATA_MARKER).map_err(failed)?;
    }
    Ok((held, marker.unwrap_or(new).id))
}

/// Opens everything. Blocking. See [`crate::DiskStore::open`] for the errors.
pub(crate) fn open(config: Config, environment: Environment) -> Result<Core, StoreError> {
    let places = take_places(&config, &environment)?;
    let index = Index::open(&config.index_dir.join("rocksdb"), config.sync, config.index_cache_bytes);
    let index = index.map_err(|error| error.at(Operation::Recover, SUBJECT))?;
    let directory_config = DirectoryConfig {
        reserve_bytes: config.reserve_bytes,
        reserve_per_mille: config.reserve_per_mille,
        n_lanes: config.n_lanes,
        lane_patience: config.lane_patience,
        ..DirectoryConfig::new(places.parts)
    };
    let directories = DirectorySet::open(directory_config, environment.clock.clone());
    let directories = directories.map_err(|error| crate::error::write_error(error, Operation::Recover, SUBJECT))?;
    let media = Media {
        sizes: FileSizes::new(directories.count()),
        directories: Arc::new(directories),
        directory_ids: places.ids,
        open_files: OpenFiles::new(config.n_open_files),
        tasks: environment.tasks.clone(),
        is_closing: AtomicBool::new(false),
        #[cfg(test)]
        fails_sync: AtomicBool::new(false),
    };
    let budget = ByteBudget::new(config.write_budget_bytes, environment.clock.clone());
    let reads = config.reads.clone().unwrap_or_else(|| ReadBudget::own(environment.clock.clone()));
    let capabilities = Capabilities {
        class: class_achieved(config.sync),
        reads_open: false,
        retentions: Vec::new(),
        max_chunk_bytes: config.max_chunk_bytes.min(config.per_job_budget_bytes).min(config.write_budget_bytes),
        max_subpartition_bytes: u64::MAX >> 1,
    };
    let registry = Registry::new(budget.clone(), config.per_job_budget_bytes);
    let report = recover(&media, &index, &registry)?;
    Ok(Core {
        config,
        environment,
        capabilities,
        media: Arc::new(media),
        index: Arc::new(index),
        registry,
        budget,
        reads,
        next_file: AtomicU64::new(0),
        is_spilling: AtomicBool::new(false),
        has_spill_failed: AtomicBool::new(false),
        is_disk_full: AtomicBool::new(false),
        n_waiting: AtomicUsize::new(0),
        recovery: Mutex::new(Some(report)),
        unsettled: Mutex::new(Vec::new()),
        locks: Mutex::new(places.locks),
        catalog_turn: tokio::sync::Mutex::new(()),
    })
}

/// A row that was read.
type Sealed = (SealManifest, Layout);

fn recover(media: &Media, index: &Index, registry: &Registry) -> Result<RecoveryReport, StoreError> {
    let (rows, damaged) = read_rows(index)?;
    let n_damaged = damaged.len();
    let damages = Damages::note(index, damaged)?;
    let mut held = Vec::new();
    for directory in 0..media.directories.count() {
        held.push(list(media, directory)?);
    }
    let mut report = RecoveryReport::default();
    let mut known = HashSet::new();
    for (manifest, layout) in rows {
        known.extend(layout.files.iter().filter_map(|span| media.place(span)));
        let lost = layout.files.iter().find_map(|span| {
            let length = media.place(span).and_then(|(directory, file)| held.get(directory)?.parts.get(&file));
            match length {
                None => Some(LossCause::Disk),
                Some(length) if *length < span.length => Some(LossCause::Corruption),
                Some(_) => None,
            }
        });
        register(media, registry, Arc::new(manifest), layout, lost, &mut report)?;
    }
    report.n_quarantined = n_damaged as u64;
    for (directory, list) in held.iter().enumerate() {
        let id = media.directory_ids.get(directory).copied().unwrap_or_default();
        let keeps_orphans = damages.may_be_named(index, id)?;
        sweep(media, directory, list, &known, keeps_orphans, &mut report)?;
        if keeps_orphans {
            damages.note_swept(index, id);
        }
    }
    Ok(report)
}

fn read_rows(index: &Index) -> Result<(Vec<Sealed>, Vec<Vec<u8>>), StoreError> {
    let (mut rows, mut damaged, mut newer) = (Vec::new(), Vec::new(), None);
    let scanned = index.rows(Family::Seals, b"", None, &mut |key, value| {
        let decoded = keys::decode(key).ok_or(RowError::Damaged).and_then(|attempt: AttemptKey| row::decode(attempt, value));
        match decoded {
            Ok(row) => rows.push(row),
            Err(RowError::Version { found }) => newer = Some(found),
            Err(RowError::Damaged) => damaged.push(key.to_vec()),
        }
    });
    scanned.map_err(|error| error.at(Operation::Recover, SUBJECT))?;
    match newer {
        Some(found) => Err(format(format!("a row of the index has version {found}, this build reads {}", row::ROW_VERSION))),
        None => Ok((rows, damaged)),
    }
}

/// Key of the number of times that rows were set aside; the other keys are ids of directories.
const N_DAMAGES: &[u8] = b"damages";

/// How often rows were set aside, over all starts. A row may speak of files in a directory that is
/// away, so each directory must be swept once after the last time before orphans in it are deleted.
#[derive(Debug, Clone, Copy)]
struct Damages {
    /// `None` when the index could not be told: then nothing is deleted, and nothing noted.
    count: Option<u64>,
}

impl Damages {
    /// Moves damaged rows into a family of their own and counts that.
    fn note(index: &Index, damaged: Vec<Vec<u8>>) -> Result<Self, StoreError> {
        let count = number(index, N_DAMAGES)?.map_or_else(|| of_former_builds(index), Ok)?;
        if damaged.is_empty() {
            return Ok(Self { count: Some(count) });
        }
        let count = count.saturating_add(1);
        let mut changes = vec![Change::Put(Family::Sweeps, N_DAMAGES.to_vec(), count.to_be_bytes().to_vec())];
        for key in damaged {
            let value = index.row(Family::Seals, &key).map_err(|error| error.at(Operation::Recover, SUBJECT))?.unwrap_or_default();
            tracing::error!(key = %key.escape_ascii(), "damaged row of the index set aside");
            changes.extend([Change::Put(Family::Damaged, key.clone(), value), Change::Delete(Family::Seals, key)]);
        }
        let written = index.write_now(&changes);
        if let Err(error) = &written {
            tracing::error!(?error, "damaged rows were not set aside; the next start tries again");
        }
        Ok(Self { count: written.is_ok().then_some(count) })
    }

    /// Whether a row that was set aside may speak of a file in this directory.
    fn may_be_named(self, index: &Index, directory: u64) -> Result<bool, StoreError> {
        let swept = number(index, &directory.to_be_bytes())?.unwrap_or(0);
        Ok(self.count.is_none_or(|count| swept < count))
    }

    /// Notes that the orphans of a directory were moved aside. If that fails, the next start does it
    /// again.
    fn note_swept(self, index: &Index, directory: u64) {
        let Some(count) = self.count else { return };
        let change = Change::Put(Family::Sweeps, directory.to_be_bytes().to_vec(), count.to_be_bytes().to_vec());
        if let Err(error) = index.write_now(&[change]) {
            tracing::warn!(?error, "the sweep of a directory was not noted");
        }
    }
}

fn number(index: &Index, key: &[u8]) -> Result<Option<u64>, StoreError> {
    let row = index.row(Family::Sweeps, key).map_err(|error| error.at(Operation::Recover, SUBJECT))?;
    // What cannot be read counts as never: more is kept than need be.
    Ok(row.map(|bytes| <[u8; 8]>::try_from(bytes).map_or(0, u64::from_be_bytes)))
}

/// Builds that did not count yet may have set rows aside.
fn of_former_builds(index: &Index) -> Result<u64, StoreError> {
    let mut has_rows = false;
    let scanned = index.rows(Family::Damaged, b"", None, &mut |_, _| has_rows = true);
    scanned.map_err(|error| error.at(Operation::Recover, SUBJECT))?;
    Ok(u64::from(has_rows))
}

fn register(
    media: &Media,
    registry: &Registry,
    manifest: Arc<SealManifest>,
    layout: Layout,
    lost: Option<LossCause>,
    report: &mut RecoveryReport,
) -> Result<(), StoreError> {
    for span in layout.files.iter().filter(|_| lost.is_none()) {
        if let Some(at) = media.place(span) {
            media.sizes.note(at, span.length);
        }
    }
    let places = layout.files.iter().filter_map(|span| media.place(span).map(|(directory, _)| (directory, *span)));
    let files = places.map(|(directory, span)| OwnFile { directory, span, synced: span.length, is_named: true, is_closed: true }).collect();
    let key = manifest.attempt.clone();
    let added = registry.find_or_add(&key, |account| Attempt::recovered(manifest.clone(), layout, files, account, lost));
    added.map_err(|kind| StoreError::new(kind, Operation::Recover, &key))?;
    match lost {
        Some(cause) => report.lost.push((key, cause)),
        None => report.sealed.push(manifest),
    }
    Ok(())
}

/// What a data directory holds.
#[derive(Debug, Default)]
struct Listing {
    parts: HashMap<FileId, u64>,
    unknown: Vec<PathBuf>,
}

fn list(media: &Media, directory: usize) -> Result<Listing, StoreError> {
    let mut listing = Listing::default();
    let Some(path) = media.directories.path(directory) else { return Ok(listing) };
    for entry in std::fs::read_dir(path).map_err(io_error(path))? {
        let entry = entry.map_err(io_error(path))?;
        let name = entry.file_name();
        let text = name.to_str().unwrap_or_default();
        let metadata = entry.metadata().map_err(io_error(path))?;
        match FileId::parse(text).filter(|_| metadata.is_file()) {
            Some(id) => {
                listing.parts.insert(id, metadata.len());
            }
            // Left behind by a process that ended while it looked at the directory.
            None if text.starts_with("FOREBAY.PROBE.") => std::fs::remove_file(entry.path()).map_err(io_error(path))?,
            None => listing.unknown.push(entry.path()),
        }
    }
    Ok(listing)
}

/// Deletes what belonged to unsealed attempts and moves aside what is not ours.
fn sweep(
    media: &Media,
    directory: usize,
    listing: &Listing,
    known: &HashSet<(usize, FileId)>,
    keeps_orphans: bool,
    report: &mut RecoveryReport,
) -> Result<(), StoreError> {
    let Some(parts) = media.directories.path(directory) else { return Ok(()) };
    let orphans = listing.parts.keys().filter(|file| !known.contains(&(directory, **file))).map(|file| parts.join(file.to_string()));
    let mut to_move = listing.unknown.clone();
    for path in orphans {
        if keeps_orphans {
            to_move.push(path);
            continue;
        }
        std::fs::remove_file(&path).map_err(io_error(&path))?;
        report.n_dropped += 1;
    }
    if to_move.is_empty() {
        return Ok(());
    }
    let aside = parts.parent().unwrap_or(parts).join(SET_ASIDE);
    std::fs::create_dir_all(&aside).map_err(io_error(&aside))?;
    for path in to_move {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut target = aside.join(&name);
        let mut number = 1_u32;
        while target.exists() {
            target = aside.join(format!("{name}.{number}"));
            number += 1;
        }
        std::fs::rename(&path, &target).map_err(io_error(&path))?;
        tracing::warn!(from = %path.display(), to = %target.display(), "file set aside");
        report.n_quarantined += 1;
    }
    sync_directory(&aside).map_err(|error| crate::error::write_error(error, Operation::Recover, SUBJECT))
}

//! The index: RocksDB with one column family for seals and one for the catalog.
//!
//! Writers put their changes into a queue and then settle: whoever gets the turn writes all that is
//! queued as one batch with one sync of the log, and answers the others. So a lone writer waits for
//! nobody, and many share a sync. Changes are written in the order in which they were queued.
//!
//! After a failed write RocksDB refuses all others until it is opened again; the next writer does
//! that.

use crate::error::IndexError;
use parking_lot::{Mutex, RwLock};
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBRecoveryMode, IteratorMode, Options, ReadOptions, WriteBatch,
    WriteOptions,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use store_api::{SyncLevel, TaskGroup};
use tokio::sync::oneshot;

/// Most changes in one batch.
const MAX_BATCH: usize = 1024;
const MIB: usize = 1024 * 1024;

/// A part of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// Rows of sealed attempts.
    Seals,
    /// Entries of the catalog.
    Catalog,
    /// Rows of seals that failed their checks.
    Damaged,
    /// How often rows were set aside, and after which of these each data directory was swept.
    Sweeps,
}

impl Family {
    const ALL: [Self; 4] = [Self::Seals, Self::Catalog, Self::Damaged, Self::Sweeps];

    const fn name(self) -> &'static str {
        match self {
            Self::Seals => "seals",
            Self::Catalog => "catalog",
            Self::Damaged => "damaged",
            Self::Sweeps => "sweeps",
        }
    }
}

/// A change of the index.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// Writes a row.
    Put(Family, Vec<u8>, Vec<u8>),
    /// Removes a row.
    Delete(Family, Vec<u8>),
    /// Removes all rows from the first key on and before the second.
    DeleteRange(Family, Vec<u8>, Vec<u8>),
}

struct Pending {
    changes: Vec<Change>,
    is_synced: bool,
    done: oneshot::Sender<Result<(), IndexError>>,
}

/// A change that is queued; [`Index::settle`] waits for it.
#[derive(Debug)]
pub(crate) struct Ticket {
    done: oneshot::Receiver<Result<(), IndexError>>,
}

/// The open index.
pub(crate) struct Index {
    path: PathBuf,
    sync: SyncLevel,
    cache_bytes: usize,
    /// `None` once it is closed, and between a failed write and the next.
    db: RwLock<Option<DB>>,
    is_closed: AtomicBool,
    is_broken: AtomicBool,
    queue: Mutex<Vec<Pending>>,
    turn: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("path", &self.path).finish_non_exhaustive()
    }
}

fn options(sync: SyncLevel, cache_bytes: usize) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    // With a synced log only the tail can be torn, and damage before it must not be passed over.
    // Without, a power cut may leave holes; what lies before the first one is good.
    options.set_wal_recovery_mode(match sync {
        SyncLevel::Full => DBRecoveryMode::TolerateCorruptedTailRecords,
        SyncLevel::Data | SyncLevel::None => DBRecoveryMode::PointInTime,
    });
    options.set_max_open_files(128);
    options.set_keep_log_file_num(4);
    options.set_max_log_file_size(4 * MIB);
    options.set_max_total_wal_size(64 * MIB as u64);
    options.set_db_write_buffer_size(32 * MIB);
    options.set_write_buffer_size(16 * MIB);
    options.set_max_write_buffer_number(2);
    options.set_max_background_jobs(2);
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&Cache::new_lru_cache(cache_bytes));
    blocks.set_cache_index_and_filter_blocks(true);
    options.set_block_based_table_factory(&blocks);
    options
}

fn open_db(path: &Path, sync: SyncLevel, cache_bytes: usize) -> Result<DB, IndexError> {
    let options = options(sync, cache_bytes);
    // Families of other builds are opened and left as they are.
    let mut names = if path.join("CURRENT").exists() { DB::list_cf(&options, path)? } else { Vec::new() };
    for name in Family::ALL.map(Family::name).into_iter().chain(["default"]) {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    let families = names.into_iter().map(|name| ColumnFamilyDescriptor::new(name, options.clone()));
    Ok(DB::open_cf_descriptors(&options, path, families)?)
}

impl Index {
    /// Opens the index. Blocking. Errors: what RocksDB says.
    pub(crate) fn open(path: &Path, sync: SyncLevel, cache_bytes: usize) -> Result<Self, IndexError> {
        let db = open_db(path, sync, cache_bytes)?;
        Ok(Self {
            path: path.to_path_buf(),
            sync,
            cache_bytes,
            db: RwLock::new(Some(db)),
            is_closed: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            queue: Mutex::new(Vec::new()),
            turn: tokio::sync::Mutex::new(()),
        })
    }

    /// Queues changes, which will be written together, in the order of calls. `always_synced` syncs
    /// the log whatever the level. No I/O: callable under a lock, so that the order of changes is
    /// that of what they follow from.
    pub(crate) fn queue(&self, changes: Vec<Change>, always_synced: bool) -> Ticket {
        let (answer, done) = oneshot::channel();
        let is_synced = always_synced || self.sync == SyncLevel::Full;
        self.queue.lock().push(Pending { changes, is_synced, done: answer });
        Ticket { done }
    }

    /// Waits until queued changes are written. Not cancel-safe in one sense: a change that nobody
    /// settles is written with the next one, so callers run this to its end.
    pub(crate) async fn settle(self: &Arc<Self>, tasks: &TaskGroup, mut ticket: Ticket) -> Result<(), IndexError> {
        loop {
            let turn = self.turn.lock().await;
            match ticket.done.try_recv() {
                Ok(answer) => return answer,
                Err(oneshot::error::TryRecvError::Closed) => return Err(IndexError::broken("the write ended without an answer")),
                Err(oneshot::error::TryRecvError::Empty) => {}
            }
            let index = self.clone();
            let written = tasks.run_blocking(move || index.write_queued()).await;
            drop(turn);
            if written.is_none() {
                return Err(IndexError::broken("the write ended without an answer"));
            }
        }
    }

    /// Writes what is queued. Blocking.
    pub(crate) fn write_queued(&self) {
        let batch: Vec<Pending> = {
            let mut queue = self.queue.lock();
            let n_taken = queue.len().min(MAX_BATCH);
            queue.drain(..n_taken).collect()
        };
        if batch.is_empty() {
            return;
        }
        let is_synced = batch.iter().any(|pending| pending.is_synced);
        let written = self.write(batch.iter().flat_map(|pending| &pending.changes), is_synced);
        for pending in batch {
            // A waiter that is gone does not need its answer.
            let _ = pending.done.send(written.clone());
        }
    }

    /// Writes changes together, before anything is queued, with a synced log. Blocking. For the start.
    pub(crate) fn write_now(&self, changes: &[Change]) -> Result<(), IndexError> {
        self.write(changes.iter(), true)
    }

    fn write<'a>(&self, all: impl Iterator<Item = &'a Change>, is_synced: bool) -> Result<(), IndexError> {
        self.mend()?;
        let guard = self.db.read();
        let db = guard.as_ref().ok_or_else(IndexError::closed)?;
        let mut changes = WriteBatch::default();
        for change in all {
            match change {
                Change::Put(at, key, value) => changes.put_cf(family(db, *at)?, key, value),
                Change::Delete(at, key) => changes.delete_cf(family(db, *at)?, key),
                Change::DeleteRange(at, from, to) => changes.delete_range_cf(family(db, *at)?, from, to),
            }
        }
        let mut how = WriteOptions::default();
        how.set_sync(is_synced);
        db.write_opt(changes, &how).map_err(|error| {
            self.is_broken.store(true, Ordering::SeqCst);
            IndexError::from(error)
        })
    }

    /// Opens the index again after a failed write.
    fn mend(&self) -> Result<(), IndexError> {
        if !self.is_broken.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut guard = self.db.write();
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(IndexError::closed());
        }
        // The old one has to be gone before its files can be opened again.
        drop(guard.take());
        *guard = Some(open_db(&self.path, self.sync, self.cache_bytes)?);
        self.is_broken.store(false, Ordering::SeqCst);
        tracing::warn!(path = %self.path.display(), "index opened again after a failed write");
        Ok(())
    }

    fn with_db<T>(&self, work: impl FnOnce(&DB) -> Result<T, IndexError>) -> Result<T, IndexError> {
        self.mend()?;
        let guard = self.db.read();
        work(guard.as_ref().ok_or_else(IndexError::closed)?)
    }

    /// Reads a row. Blocking.
    pub(crate) fn row(&self, at: Family, key: &[u8]) -> Result<Option<Vec<u8>>, IndexError> {
        self.with_db(|db| Ok(db.get_cf(family(db, at)?, key)?))
    }

    /// All rows from `from` on and before `to` (or to the end), in order. Blocking.
    pub(crate) fn rows(&self, at: Family, from: &[u8], to: Option<Vec<u8>>, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), IndexError> {
        self.with_db(|db| {
            let mut bounds = ReadOptions::default();
            bounds.set_iterate_lower_bound(from);
            if let Some(to) = to {
                bounds.set_iterate_upper_bound(to);
            }
            for row in db.iterator_cf_opt(family(db, at)?, bounds, IteratorMode::Start) {
                let (key, value) = row?;
                visit(&key, &value);
            }
            Ok(())
        })
    }

    /// Forces the log out and closes. Idempotent. Blocking. Errors: what the last sync said.
    pub(crate) fn close(&self) -> Result<(), IndexError> {
        self.write_queued();
        let mut guard = self.db.write();
        self.is_closed.store(true, Ordering::SeqCst);
        let Some(db) = guard.take() else { return Ok(()) };
        Ok(db.flush_wal(true)?)
    }
}

fn family(db: &DB, at: Family) -> Result<&ColumnFamily, IndexError> {
    db.cf_handle(at.name()).ok_or_else(|| IndexError::broken(format!("the index has no part {}", at.name())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &str) -> Change {
        Change::Put(Family::Seals, key.as_bytes().to_vec(), value.as_bytes().to_vec())
    }

    fn all(index: &Index) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        index.rows(Family::Seals, b"", None, &mut |key, value| found.push((text(key), text(value)))).unwrap();
        found
    }

    #[tokio::test]
    async fn queued_changes_are_written_in_the_order_of_the_queue() {
        let root = tempfile::tempdir().unwrap();
        let index = Arc::new(Index::open(root.path(), SyncLevel::Full, MIB).unwrap());
        let tasks = TaskGroup::new();
        let first = index.queue(vec![put("a", "1"), put("b", "1")], false);
        let second = index.queue(vec![Change::DeleteRange(Family::Seals, b"a".to_vec(), b"b".to_vec())], false);
        let third = index.queue(vec![put("b", "2")], false);
        index.settle(&tasks, third).await.unwrap();
        index.settle(&tasks, first).await.unwrap();
        index.settle(&tasks, second).await.unwrap();
        assert_eq!(all(&index), [("b".to_owned(), "2".to_owned())]);
        index.close().unwrap();
        index.close().unwrap();
        assert!(index.row(Family::Seals, b"b").unwrap_err().is_closed);
    }

    #[tokio::test]
    async fn a_family_of_another_build_is_left_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let options = options(SyncLevel::Full, MIB);
        let db = DB::open_cf(&options, root.path(), ["default", "of-the-future"]).unwrap();
        db.put_cf(db.cf_handle("of-the-future").unwrap(), b"k", b"v").unwrap();
        drop(db);
        let index = Index::open(root.path(), SyncLevel::Full, MIB).unwrap();
        index.close().unwrap();
        let names = Family::ALL.map(Family::name).into_iter().chain(["default", "of-the-future"]);
        let db = DB::open_cf(&options, root.path(), names).unwrap();
        assert_eq!(db.get_cf(db.cf_handle("of-the-future").unwrap(), b"k").unwrap().unwrap(), b"v");
    }

    #[tokio::test]
    async fn a_write_that_failed_is_followed_by_a_working_index() {
        let root = tempfile::tempdir().unwrap();
        let index = Arc::new(Index::open(root.path(), SyncLevel::Full, MIB).unwrap());
        let tasks = TaskGroup::new();
        let ticket = index.queue(vec![put("a", "1")], false);
        index.settle(&tasks, ticket).await.unwrap();
        index.is_broken.store(true, Ordering::SeqCst);
        let ticket = index.queue(vec![put("b", "2")], false);
        index.settle(&tasks, ticket).await.unwrap();
        assert_eq!(all(&index).len(), 2);
    }

    #[tokio::test]
    async fn a_torn_tail_of_the_log_does_not_keep_the_index_shut() {
        for n_cut in [1_u64, 2, 7, 8, 20, 64] {
            let root = tempfile::tempdir().unwrap();
            // The log is the same at every level; only its reading, below, is of the strictest.
            let index = Arc::new(Index::open(root.path(), SyncLevel::None, MIB).unwrap());
            let tasks = TaskGroup::new();
            for n in 0..20 {
                let ticket = index.queue(vec![put(&format!("{n:02}"), &"v".repeat(100))], false);
                index.settle(&tasks, ticket).await.unwrap();
            }
            index.close().unwrap();
            drop(index);
            let logs = std::fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().path());
            let log =
                logs.filter(|path| path.extension().is_some_and(|end| end == "log")).max_by_key(|path| path.metadata().unwrap().len());
            let file = std::fs::OpenOptions::new().write(true).open(log.unwrap()).unwrap();
            file.set_len(file.metadata().unwrap().len() - n_cut).unwrap();
            let index = Index::open(root.path(), SyncLevel::Full, MIB).unwrap();
            assert!(all(&index).len() >= 19, "only the torn record may be gone");
        }
    }
}

//! Reads of exact ranges, over a bounded number of descriptors.

use crate::error::{FileError, FileErrorKind, FileOperation};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An open file to read from. Cloning is cheap and shares the descriptor. A file that is removed
/// stays readable, and its space taken, until the last clone is gone.
#[derive(Debug, Clone)]
pub struct FileReader {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: File,
    path: PathBuf,
}

impl FileReader {
    /// Opens a file. Errors: `Missing`, `Io`.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let file = File::open(path).map_err(|error| FileError::io(FileOperation::Open, path, error))?;
        Ok(Self { inner: Arc::new(Inner { file, path: path.to_path_buf() }) })
    }

    /// The path under which it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Length of the file now, in bytes. Errors: `Io`.
    pub fn length(&self) -> Result<u64, FileError> {
        let found = self.inner.file.metadata().map(|metadata| metadata.len());
        found.map_err(|error| FileError::io(FileOperation::Probe, &self.inner.path, error))
    }

    /// Whether the file has no name any more: only those who hold it can read it.
    fn is_removed(&self) -> bool {
        self.inner.file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
    }

    /// Reads exactly `length` bytes from `offset` on. A file that ends earlier is an error: never
    /// fewer bytes, never zeros in their place. Errors: `Short`, `Io`.
    pub fn read_exact_at(&self, offset: u64, length: usize) -> Result<Bytes, FileError> {
        // Looked at first, so that a damaged length cannot make us take memory for nothing.
        let end = offset.checked_add(length as u64);
        if end.is_none_or(|end| self.length().is_ok_and(|held| held < end)) {
            return Err(FileError::new(FileErrorKind::Short, FileOperation::Read, &self.inner.path));
        }
        let mut buffer = BytesMut::zeroed(length);
        let read = self.inner.file.read_exact_at(&mut buffer, offset);
        read.map_err(|error| FileError::io(FileOperation::Read, &self.inner.path, error))?;
        Ok(buffer.freeze())
    }
}

#[derive(Debug)]
struct Slot {
    reader: FileReader,
    last_used: u64,
}

#[derive(Debug, Default)]
struct Cache {
    slots: HashMap<PathBuf, Slot>,
    turn: u64,
}

/// Keeps up to a fixed number of files open between reads. Readers that are in use elsewhere stay
/// open when they are dropped from here.
#[derive(Debug)]
pub struct OpenFiles {
    capacity: usize,
    cache: Mutex<Cache>,
}

impl OpenFiles {
    /// Keeps at most `capacity` files, at least one.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), cache: Mutex::new(Cache::default()) }
    }

    /// The reader of a file, opened if it is not open. Blocking. Errors: `Missing`, `Io`.
    pub fn open(&self, path: &Path) -> Result<FileReader, FileError> {
        if let Some(reader) = self.cached(path) {
            return Ok(reader);
        }
        let reader = FileReader::open(path)?;
        let mut cache = self.cache.lock();
        while cache.slots.len() >= self.capacity {
            let oldest = cache.slots.iter().min_by_key(|(_, slot)| slot.last_used).map(|(path, _)| path.clone());
            match oldest {
                Some(path) => cache.slots.remove(&path),
                None => break,
            };
        }
        cache.turn += 1;
        let slot = Slot { reader: reader.clone(), last_used: cache.turn };
        cache.slots.insert(path.to_path_buf(), slot);
        drop(cache);
        // A removal that came between the opening and the keeping has found nothing to forget; one
        // that comes later finds what is kept.
        if reader.is_removed() {
            self.forget(path);
        }
        Ok(reader)
    }

    fn cached(&self, path: &Path) -> Option<FileReader> {
        let mut cache = self.cache.lock();
        cache.turn += 1;
        let turn = cache.turn;
        let slot = cache.slots.get_mut(path)?;
        slot.last_used = turn;
        Some(slot.reader.clone())
    }

    /// Lets go of a file that is about to be removed, so that its space comes back with its last
    /// reader. Returns whether it was open here.
    pub fn forget(&self, path: &Path) -> bool {
        self.cache.lock().slots.remove(path).is_some()
    }

    /// Removes a file: forgets it, then deletes its name. A file that is not there is a success.
    /// Blocking. Errors: `Io`.
    pub fn remove(&self, path: &Path) -> Result<(), FileError> {
        self.forget(path);
        let removed = std::fs::remove_file(path);
        // A read may have opened it again in between.
        self.forget(path);
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(FileError::io(FileOperation::Remove, path, error)),
            _ => Ok(()),
        }
    }

    /// Number of files that are kept open.
    #[must_use]
    pub fn n_open(&self) -> usize {
        self.cache.lock().slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_over_the_end_is_an_error_and_never_zeros() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("f");
        std::fs::write(&path, b"0123456789").unwrap();
        let reader = FileReader::open(&path).unwrap();
        assert_eq!(reader.read_exact_at(3, 7).unwrap(), &b"3456789"[..]);
        for (offset, length) in [(3, 8), (10, 1), (11, 1), (u64::MAX, 1), (0, 1 << 40)] {
            assert_eq!(reader.read_exact_at(offset, length).unwrap_err().kind, FileErrorKind::Short, "{offset}+{length}");
        }
        assert!(reader.read_exact_at(10, 0).unwrap().is_empty());
    }

    #[test]
    fn no_more_files_stay_open_than_allowed_and_the_oldest_goes_first() {
        let root = tempfile::tempdir().unwrap();
        let open = OpenFiles::new(3);
        let path = |n: u32| root.path().join(n.to_string());
        for n in 0..10 {
            std::fs::write(path(n), n.to_string()).unwrap();
            open.open(&path(n)).unwrap();
            open.open(&path(0)).unwrap();
            assert!(open.n_open() <= 3);
        }
        assert!(open.forget(&path(0)), "the one in constant use was kept");
    }

    #[test]
    fn a_removed_file_is_readable_for_who_holds_it_and_missing_for_others() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("f");
        std::fs::write(&path, b"bytes").unwrap();
        let open = OpenFiles::new(3);
        let reader = open.open(&path).unwrap();
        open.remove(&path).unwrap();
        open.remove(&path).unwrap();
        assert_eq!(reader.read_exact_at(0, 5).unwrap(), &b"bytes"[..]);
        assert_eq!(open.open(&path).unwrap_err().kind, FileErrorKind::Missing);
        assert_eq!(open.n_open(), 0);
    }
}

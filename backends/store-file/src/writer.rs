//! Files that are appended to and synced.

use crate::error::{FileError, FileErrorKind, FileOperation};
use bytes::Bytes;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

/// Most slices that one system call takes (`IOV_MAX` of Linux).
const MAX_SLICES: usize = 1024;

/// The one writer of a file. Its position moves only over bytes that were written in full, so a
/// failed append leaves nothing that counts.
///
/// After a failed sync the file is poisoned: the system may have dropped what it could not write,
/// and a later sync would say "done" about bytes that are gone. Every later append or sync is
/// refused; the bytes have to go to another file.
#[derive(Debug)]
pub struct FileWriter {
    file: File,
    path: PathBuf,
    position: u64,
    is_poisoned: bool,
}

impl FileWriter {
    /// Creates a file that must not exist. The name is durable after [`sync_directory`]. Errors:
    /// `Exists`, `Full`, `Missing` (of the directory), `Io`.
    pub fn create(path: &Path) -> Result<Self, FileError> {
        let opened = OpenOptions::new().write(true).create_new(true).open(path);
        let file = opened.map_err(|error| FileError::io(FileOperation::Open, path, error))?;
        Ok(Self { file, path: path.to_path_buf(), position: 0, is_poisoned: false })
    }

    /// Opens a file again to go on at `position`; what lies behind it is cut off. For writers that
    /// close their files between appends to save descriptors. Errors: `Missing`, `Short` when the
    /// file ends before `position`, `Io`.
    pub fn resume(path: &Path, position: u64) -> Result<Self, FileError> {
        let failed = |error| FileError::io(FileOperation::Open, path, error);
        let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        if length < position {
            return Err(FileError::new(FileErrorKind::Short, FileOperation::Open, path));
        }
        if length > position {
            file.set_len(position).map_err(failed)?;
        }
        Ok(Self { file, path: path.to_path_buf(), position, is_poisoned: false })
    }

    /// Where the next append will start, in bytes.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends all pieces one behind the other, however many there are, and answers where the
    /// first one starts. Not durable before [`FileWriter::sync`]. Not idempotent. On an error
    /// nothing counts as written: the next append starts at the same place. Errors: `Full`,
    /// `Poisoned`, `Io`.
    pub fn append(&mut self, pieces: &[Bytes]) -> Result<u64, FileError> {
        self.refuse_poisoned(FileOperation::Write)?;
        let start = self.position;
        match self.write_all(pieces) {
            Ok(end) => {
                self.position = end;
                Ok(start)
            }
            Err(error) => {
                // Gives back the room that a half-written append took. If this fails too, the next
                // append overwrites those bytes, and `resume` cuts them off.
                let _ = self.file.set_len(start);
                Err(FileError::io(FileOperation::Write, &self.path, error))
            }
        }
    }

    fn write_all(&self, pieces: &[Bytes]) -> io::Result<u64> {
        let mut at = self.position;
        for group in pieces.chunks(MAX_SLICES) {
            let mut slices: Vec<IoSlice<'_>> = group.iter().map(|piece| IoSlice::new(piece)).collect();
            let mut left: &mut [IoSlice<'_>] = &mut slices;
            // Leading empty slices would make a write of nothing look like no progress.
            IoSlice::advance_slices(&mut left, 0);
            while !left.is_empty() {
                let n_written = match rustix::io::pwritev(&self.file, left, at) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(n_written) => n_written,
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(error) => return Err(error.into()),
                };
                at = at.saturating_add(n_written as u64);
                IoSlice::advance_slices(&mut left, n_written);
            }
        }
        Ok(at)
    }

    /// Forces all appended bytes to the medium. Errors: `Poisoned` for every sync after one that
    /// failed; `Full`, `Io` for the one that fails.
    pub fn sync(&mut self) -> Result<(), FileError> {
        self.refuse_poisoned(FileOperation::Sync)?;
        self.file.sync_data().map_err(|error| {
            self.is_poisoned = true;
            FileError::io(FileOperation::Sync, &self.path, error)
        })
    }

    /// Ends writing and checks that the file is as long as what was appended, so that a write that
    /// the system only pretended to take does not count. Errors: `Short`, `Poisoned`, `Io`.
    pub fn finish(self) -> Result<u64, FileError> {
        self.refuse_poisoned(FileOperation::Write)?;
        let length = self.file.metadata().map_err(|error| FileError::io(FileOperation::Write, &self.path, error))?.len();
        if length < self.position {
            return Err(FileError::new(FileErrorKind::Short, FileOperation::Write, &self.path));
        }
        Ok(self.position)
    }

    fn refuse_poisoned(&self, operation: FileOperation) -> Result<(), FileError> {
        if self.is_poisoned { Err(FileError::new(FileErrorKind::Poisoned, operation, &self.path)) } else { Ok(()) }
    }

    /// Makes the file behave as after a failed sync.
    #[cfg(test)]
    pub(crate) fn poison(&mut self) {
        self.is_poisoned = true;
    }
}

/// Makes the names in a directory durable: creations, renames and removals so far. Errors: `Io`,
/// `Missing`.
pub fn sync_directory(path: &Path) -> Result<(), FileError> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(|error| FileError::io(FileOperation::Sync, path, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn thousands_of_tiny_pieces_are_written_whole_and_in_order() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("f");
        let pieces: Vec<Bytes> = (0..5000_u32).map(|n| Bytes::from(n.to_le_bytes()[..(n % 5) as usize].to_vec())).collect();
        let mut writer = FileWriter::create(&path).unwrap();
        assert_eq!(writer.append(&pieces).unwrap(), 0);
        writer.sync().unwrap();
        let expected = pieces.concat();
        assert_eq!(writer.finish().unwrap(), expected.len() as u64);
        assert_eq!(std::fs::read(&path).unwrap(), expected);
    }

    #[test]
    fn a_name_is_never_taken_twice() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("f");
        FileWriter::create(&path).unwrap();
        assert_eq!(FileWriter::create(&path).unwrap_err().kind, FileErrorKind::Exists);
    }

    #[test]
    fn a_poisoned_file_takes_nothing_and_is_never_synced_again() {
        let root = tempfile::tempdir().unwrap();
        let mut writer = FileWriter::create(&root.path().join("f")).unwrap();
        writer.append(&[Bytes::from_static(b"x")]).unwrap();
        writer.poison();
        assert_eq!(writer.append(&[Bytes::from_static(b"y")]).unwrap_err().kind, FileErrorKind::Poisoned);
        assert_eq!(writer.sync().unwrap_err().kind, FileErrorKind::Poisoned);
        assert_eq!(writer.finish().unwrap_err().kind, FileErrorKind::Poisoned);
    }

    #[test]
    fn resuming_cuts_off_what_never_counted_and_refuses_a_short_file() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("f");
        std::fs::write(&path, b"0123456789").unwrap();
        let mut writer = FileWriter::resume(&path, 4).unwrap();
        writer.append(&[Bytes::from_static(b"ab")]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"0123ab");
        assert_eq!(FileWriter::resume(&path, 7).unwrap_err().kind, FileErrorKind::Short);
    }

    proptest! {
        #[test]
        fn appends_in_any_cut_give_the_same_file(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..60), cut in 0usize..60) {
            let root = tempfile::tempdir().unwrap();
            let path = root.path().join("f");
            let pieces: Vec<Bytes> = pieces.into_iter().map(Bytes::from).collect();
            let (one, two) = pieces.split_at(cut.min(pieces.len()));
            let mut writer = FileWriter::create(&path).unwrap();
            writer.append(one).unwrap();
            let position = writer.finish().unwrap();
            let mut writer = FileWriter::resume(&path, position).unwrap();
            prop_assert_eq!(writer.append(two).unwrap(), one.concat().len() as u64);
            prop_assert_eq!(std::fs::read(&path).unwrap(), pieces.concat());
        }
    }
}

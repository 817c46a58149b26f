//! Lengths of the data files, and their sums by directory.

use crate::layout::FileId;
use parking_lot::Mutex;
use std::collections::HashMap;

/// A data file: index of its directory, and its name.
type FileAt = (usize, FileId);

/// What lies in each data directory.
#[derive(Debug)]
pub(crate) struct FileSizes {
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    files: HashMap<FileAt, u64>,
    by_directory: Vec<u64>,
}

impl FileSizes {
    /// Nothing, in `n_directories`.
    pub(crate) fn new(n_directories: usize) -> Self {
        Self { held: Mutex::new(Held { files: HashMap::new(), by_directory: vec![0; n_directories] }) }
    }

    /// A file has this length now.
    pub(crate) fn note(&self, file: FileAt, length: u64) {
        let mut held = self.held.lock();
        let before = held.files.insert(file, length).unwrap_or(0);
        if let Some(sum) = held.by_directory.get_mut(file.0) {
            *sum = sum.saturating_sub(before).saturating_add(length);
        }
    }

    /// A file is gone.
    pub(crate) fn forget(&self, file: FileAt) {
        let mut held = self.held.lock();
        let before = held.files.remove(&file).unwrap_or(0);
        if let Some(sum) = held.by_directory.get_mut(file.0) {
            *sum = sum.saturating_sub(before);
        }
    }

    /// Bytes by number of the directory.
    pub(crate) fn by_directory(&self) -> Vec<u64> {
        self.held.lock().by_directory.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_follow_files_that_grow_and_go() {
        let sizes = FileSizes::new(2);
        let file = |directory, number| (directory, FileId { life: 1, number });
        sizes.note(file(0, 1), 10);
        sizes.note(file(0, 1), 25);
        sizes.note(file(1, 2), 7);
        assert_eq!(sizes.by_directory(), [25, 7]);
        sizes.forget(file(0, 1));
        sizes.forget(file(0, 1));
        sizes.forget(file(1, 2));
        assert_eq!(sizes.by_directory(), [0, 0]);
    }
}

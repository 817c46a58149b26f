//! File layer shared by spill files and data files: the one place that touches local files.
//!
//! | module | what it holds |
//! |---|---|
//! | [`directory`] | [`DirectorySet`]: several data directories, their states, room and lanes |
//! | [`lock`] | [`DirectoryLock`]: one process per directory |
//! | [`writer`] | [`FileWriter`]: append, sync, poison after a failed sync |
//! | [`reader`] | [`FileReader`], [`OpenFiles`]: exact reads, a bounded number of descriptors |
//! | [`error`] | [`FileError`]: what failed, where, and what a store says about it |
//!
//! Everything blocks, and is meant to run through [`DirectorySet::run`], which uses
//! `store_api::TaskGroup::run_blocking` and bounds how many calls one directory may hold at once.
//!
//! This crate knows nothing of partitions, attempts or formats. Checksums are its callers' affair.

pub mod directory;
pub mod error;
pub mod lock;
pub mod reader;
pub mod writer;

pub use directory::{DirectoryConfig, DirectorySet, DirectoryState, DirectoryStatus};
pub use error::{FileError, FileErrorKind, FileOperation};
pub use lock::DirectoryLock;
pub use reader::{FileReader, OpenFiles};
pub use writer::{FileWriter, sync_directory};

#[cfg(test)]
mod tests;

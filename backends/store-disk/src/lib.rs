//! Blocking partitions on local disk.
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | settings, and what the store needs from outside |
//! | [`store`] | [`DiskStore`]: the trait, each call in a few lines |
//! | `core` | what the parts share: directories, index, registry, budget |
//! | `account`, `registry`, `attempt` | what a job holds; which attempts there are; one attempt's buffer and state |
//! | `writer` | write-outs under pressure, prepare, publish |
//! | `reader` | streams and batches |
//! | `layout`, `row`, `keys` | where bytes lie; the stored forms of rows and keys |
//! | `index` | RocksDB with group commit |
//! | `recovery` | opening: format, locks, what survives |
//! | [`catalog`] | [`DiskCatalog`]: a small durable map in the same index |
//!
//! Arrows: `store` → `recovery`, `writer`, `reader` → `core` → `registry` → `attempt` → `layout`;
//! `core` → `index`; `row`, `keys` → `layout`.
//!
//! The README tells the promises, the form on disk and the recovery.

mod account;
mod attempt;
pub mod catalog;
pub mod config;
mod core;
mod error;
mod index;
mod keys;
mod layout;
mod reader;
mod recovery;
mod registry;
mod row;
mod sizes;
pub mod store;
mod writer;

pub use catalog::DiskCatalog;
pub use config::{Config, Environment};
pub use store::DiskStore;

#[cfg(test)]
mod tests;

//! Pipelined partitions: readable while they are written, in memory, with spill files for what must
//! be kept when memory is short.
//!
//! | module | what it holds |
//! |---|---|
//! | [`store`] | [`MemoryStore`]: the trait, put together from the parts below |
//! | [`config`] | settings, defaults, reasons |
//! | `registry` | which attempts there are and were; tombstones |
//! | `attempt` | one attempt: state, subpartitions, who is to be woken |
//! | `buffer` | the bytes of one subpartition: a run on disk, a run in memory, one offset space |
//! | `floors` | where consumers stand, and the lowest of them |
//! | `write`, `seal`, `reader`, `acknowledge` | the calls, by subject |
//! | `core`, `ending` | what the parts share; how an attempt ends for good |
//! | `account`, `room` | memory: budgets, who waits, what is dropped or spilled for them |
//! | `spill` | spill files |
//!
//! Arrows inside: `store` → `write`, `seal`, `reader`, `acknowledge`, `room` → `core` →
//! `registry` → `attempt` → `account`, `buffer`, `floors`, `spill`.
//!
//! # Promises
//! An acknowledged append is in memory (or a spill file) of this life of the node, once, at its
//! offset, until its retention lets it go. A seal survives nothing: `Durability::Volatile`. The
//! README says how floors move and what happens when memory is full.
//!
//! # Locks
//! Never held over an await. In this order: shard of the registry, accounts, state of an attempt,
//! a subpartition. Append and read take the shard and the state shared, and only their own
//! subpartition alone.
//!
//! This crate knows nothing of HTTP, owners, tokens or leases, and of files only through
//! `store-file`.

mod account;
mod acknowledge;
mod attempt;
mod buffer;
pub mod config;
mod core;
mod ending;
mod error;
mod floors;
mod reader;
mod registry;
mod room;
#[cfg(test)]
mod sample;
mod seal;
mod spill;
pub mod store;
#[cfg(test)]
mod tests;
mod write;

pub use config::{Config, SpillConfig};
pub use store::{Environment, MemoryStore};

//! The recovery planner: which tasks must restart, which finished output is read again and from
//! where, and what is left alone.
//!
//! | module | what it holds |
//! |---|---|
//! | [`graph_spec`], [`graph`] | a job as declared; a job that was checked |
//! | [`snapshot`] | what is there: tasks, workers, nodes, partitions, progress |
//! | [`policy`] | what the owner of a job decides |
//! | [`report`] | fencing: which reports are believed |
//! | `view` | a snapshot as a policy sees it |
//! | [`closure`] | the least set of tasks that must restart |
//! | [`strategy`] | [`plan()`]: strategies, verdicts, actions |
//! | `reads`, `waves`, [`cost`] | who reads what; in which order to start; what it costs |
//! | [`mod@plan`], [`task_set`] | what a plan says |
//! | [`restart_budget`] | how often and how soon a job may restart |
//! | [`release`] | what can be given back when nothing failed |
//! | `components` | strongly connected components |
//!
//! ```text
//! snapshot ─► fence(reports) ─► snapshot ─► plan(policy, allowance) ─► Plan ─► carried out elsewhere
//!                                             ▲ RestartBudget::after_failure(now, jitter)
//! ```
//!
//! Everything here is a pure function: no I/O, no clock, no randomness, nothing asynchronous. Of the
//! rest of Forebay it knows ids and offsets only. The rules and their reasons:
//! `docs/adr/0008-recovery-planner.md`; what was learned from others, claim by claim:
//! `docs/recovery.md`.

pub mod closure;
mod components;
pub mod cost;
pub mod graph;
pub mod graph_spec;
pub mod plan;
pub mod policy;
mod reads;
pub mod release;
pub mod report;
pub mod restart_budget;
pub mod snapshot;
pub mod strategy;
pub mod task_set;
mod view;
mod waves;

#[cfg(test)]
mod tests;

pub use plan::Plan;
pub use policy::Policy;
pub use report::fence;
pub use restart_budget::RestartBudget;
pub use snapshot::Snapshot;
pub use strategy::plan;

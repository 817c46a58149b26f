//! Claims about the service, one per test.
//!
//! [`bench`] builds nodes over the testkit's model stores and a catalog that can fail, on a clock
//! that only moves when told; the rest says what must hold.
#![expect(clippy::cast_possible_truncation, reason = "patterns are made from small numbers")]

mod appends;
mod attempts;
mod bench;
mod floors;
mod jobs;
mod nodes;
mod orphans;
mod races;
mod reads;
mod real_stores;
mod rebuilt;
mod refusals;
mod releases;
mod restarts;
mod seals;
mod shared_directory;

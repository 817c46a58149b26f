//! Promises of the whole, held against the real binary: each test starts `forebay serve` as a process
//! of its own and speaks HTTP to it.
//!
//! | module | promise |
//! |---|---|
//! | `crash` | what was acknowledged survives kill -9 at any moment; nothing is half-visible |
//! | `curl` | the tour of the README, with curl alone |
//! | `ledger` | what writers were told, held against what the node says later |
//! | `memory` | memory stays under the budget and a fixed overhead |
//! | `recovery` | killed workers and nodes, and a coordinator killed in the middle of a plan |
//! | `restart` | tokens, SIGTERM, two processes on one directory, loss of a node |
//! | `shuffle` | many producers and consumers, few requests for each |
//! | `tls` | HTTP/1.1 and HTTP/2 with and without TLS; tokens on every route |
//! | `support` | starting, killing and speaking to a node |
//!
//! Short forms by default; `FOREBAY_LONG=1` runs the long ones.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "tests fail by panicking and print what they saw"
)]
#![expect(clippy::disallowed_methods, reason = "tests spawn what they wait for, and look at the time")]

mod crash;
mod curl;
mod ledger;
mod memory;
mod recovery;
mod restart;
mod shuffle;
mod support;
mod tls;

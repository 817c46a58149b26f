//! Forebay's HTTP contract as Rust types, shared by the service and the Rust client.
//!
//! | module | what it holds |
//! |---|---|
//! | [`paths`] | route templates and the builder of concrete paths |
//! | [`headers`] | header names, media types |
//! | [`error_code`] | every code with its status and whether a retry can help |
//! | [`problem`] | the `application/problem+json` document |
//! | [`jobs`], [`datasets`], [`partitions`], [`reads`], [`events`], [`node`] | request and answer documents |
//! | [`recovery`], [`plans`], [`members`] | graphs and tasks; plans; workers and nodes |
//!
//! `openapi.yaml` at the top of the repository is the contract; a test of the service holds it
//! against these types in both directions. This crate knows no HTTP library and no runtime, and
//! none of its types is ever stored: media have codecs of their own.
//!
//! Requests refuse unknown fields, so that a misspelt option is an error; answers may gain fields.

pub mod datasets;
pub mod error_code;
pub mod events;
pub mod headers;
pub mod jobs;
pub mod members;
pub mod node;
pub mod partitions;
pub mod paths;
pub mod plans;
pub mod problem;
pub mod reads;
pub mod recovery;

pub use error_code::{ErrorCode, Retryable};
pub use problem::Problem;

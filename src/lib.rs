//! The Forebay service.
//!
//! | module | what it is | may know |
//! |---|---|---|
//! | [`cli`] | the commands of the binary | everything but the stores |
//! | [`node`] | a running node, put together | everything |
//! | [`server`], [`http`] | the port; the API | `service`, the protocol |
//! | [`service`] | use cases and policy | the store contract |
//! | [`store_stack`] | the three stores, wrapped in layers | `config`, `layer`, the backends |
//! | [`layer`] | stores around stores | the store contract, `metrics` |
//! | [`coordinator`] | graphs, tasks, workers, nodes, plans | `recovery`, the catalog |
//! | [`recovery`] | the recovery planner: pure functions | ids and offsets |
//! | [`config`], [`telemetry`], [`metrics`] | settings; log; counts | little |
//! | [`node_identity`], [`shutdown`] | who the node is; its end | nothing of ours |
//!
//! In one sentence: HTTP knows the service, the service knows the trait, only the stack knows the
//! backends, and backends know only the contract.

pub mod cli;
pub mod config;
pub mod coordinator;
pub mod demo;
pub mod http;
pub mod layer;
pub mod metrics;
pub mod node;
pub mod node_identity;
pub mod recovery;
pub mod server;
pub mod service;
pub mod shutdown;
pub mod store_stack;
pub mod telemetry;

#[cfg(test)]
mod test_time;

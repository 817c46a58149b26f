//! A server to test against, clients for it, and the contract that every answer is held against.

pub(crate) mod client;
pub(crate) mod frames;
pub(crate) mod http_store;
pub(crate) mod node;
pub(crate) mod openapi;
pub(crate) mod proxy;
pub(crate) mod raw;
pub(crate) mod recovery;
pub(crate) mod scenario;

pub(crate) use client::{Answer, Client};
pub(crate) use node::{Node, NodeOptions};
pub(crate) use scenario::{KINDS, Scenario, pattern};

use std::time::Duration;

/// Waits until `condition` holds; fails after ten seconds.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    for _ in 0..500 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what}: not within ten seconds");
}

//! What one job holds and may reserve.

use std::sync::atomic::AtomicU64;
use store_api::ByteBudget;

/// What one incarnation of a job holds, and its share of the memory.
#[derive(Debug)]
pub(crate) struct JobAccount {
    pub(crate) memory: AtomicU64,
    pub(crate) disk: AtomicU64,
    pub(crate) budget: ByteBudget,
}

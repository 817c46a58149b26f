//! What the parts of the store share.

use crate::attempt::{Accounts, Attempt, Demands};
use crate::config::Config;
use crate::error::closing;
use crate::registry::Registry;
use crate::spill::Spill;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use store_api::{Capabilities, NodeId, NodeLife, Operation, ReadBudget, ReleaseReport, SharedClock, StoreError, TaskGroup};
use tokio::sync::Notify;

/// What every part of the store shares.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: TaskGroup,
    pub(crate) node: NodeId,
    pub(crate) node_life: NodeLife,
    pub(crate) capabilities: Capabilities,
    pub(crate) registry: Registry,
    pub(crate) accounts: Accounts,
    pub(crate) demands: Arc<Demands>,
    /// Wakes the room maker.
    pub(crate) kick: Arc<Notify>,
    /// Order of chunks over the whole store.
    pub(crate) order: AtomicU64,
    pub(crate) spill: Option<Spill>,
    /// Memory for bytes that come back from spill files.
    pub(crate) reads: ReadBudget,
    pub(crate) is_closing: AtomicBool,
}

impl Core {
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst)
    }

    /// Errors: `Closing`.
    pub(crate) fn check_running(&self, operation: Operation, subject: impl Display) -> Result<(), StoreError> {
        if self.is_closing() { Err(closing(operation, subject)) } else { Ok(()) }
    }

    /// Takes files off the disk that no byte is in any more.
    pub(crate) async fn remove_condemned(&self) {
        if let Some(spill) = &self.spill {
            spill.remove_condemned().await;
        }
    }

    /// Lets go of attempts that have ended, and answers how much that was.
    pub(crate) fn bury(&self, ended: &[Arc<Attempt>]) -> ReleaseReport {
        let mut report = ReleaseReport::default();
        for attempt in ended {
            report.n_attempts = report.n_attempts.saturating_add(1);
            report.bytes = report.bytes.saturating_add(attempt.clear());
            self.accounts.dismiss(&attempt.key);
        }
        report
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // The room maker holds no store while it waits, and ends when it finds none.
        self.kick.notify_one();
    }
}

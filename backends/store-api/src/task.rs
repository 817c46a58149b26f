//! Background work that can be ended and waited for. The only place in the workspace that spawns.

use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::{Clock, within};

/// A group of background tasks with one way to end them all.
///
/// Cloning gives another handle to the same group.
#[derive(Debug, Clone, Default)]
pub struct TaskGroup {
    tracker: TaskTracker,
    token: CancellationToken,
}

impl TaskGroup {
    /// An empty group.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `work` until it ends by itself or the group is cancelled, whichever is first. Work that
    /// must not be dropped half-way uses [`TaskGroup::spawn_to_end`].
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let token = self.token.clone();
        self.track(async move {
            tokio::select! {
                () = token.cancelled() => {}
                () = work => {}
            }
        });
    }

    /// Runs `work` until it ends by itself. It should watch [`TaskGroup::cancelled`].
    pub fn spawn_to_end(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.track(work);
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place that spawns")]
    fn track(&self, work: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(self.tracker.track_future(work));
    }

    /// Runs blocking work on the pool for it and waits for its value. `None` when it panicked or
    /// the runtime is going down. Dropping the future does not stop work that has begun.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that spawns")]
    pub async fn run_blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let token = self.tracker.token();
        tokio::task::spawn_blocking(move || {
            let _tracked = token;
            work()
        })
        .await
        .ok()
    }

    /// Returns once the group is cancelled. Cancel-safe.
    pub async fn cancelled(&self) {
        self.token.cancelled().await;
    }

    /// Whether the group is cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Asks every task to end; idempotent.
    pub fn cancel(&self) {
        self.token.cancel();
    }

    /// Cancels, then waits for all tasks at most `patience`. Returns whether all have ended.
    pub async fn close(&self, clock: &dyn Clock, patience: Duration) -> bool {
        self.cancel();
        self.tracker.close();
        within(clock, patience, self.tracker.wait()).await.is_some()
    }

    /// Number of tasks that run.
    #[must_use]
    pub fn n_running(&self) -> usize {
        self.tracker.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    #[tokio::test]
    async fn closing_ends_tasks_that_would_run_for_ever() {
        let group = TaskGroup::new();
        for _ in 0..10 {
            group.spawn(std::future::pending());
        }
        assert_eq!(group.n_running(), 10);
        assert!(group.close(&SystemClock::new(), Duration::from_secs(10)).await);
        assert_eq!(group.n_running(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn closing_does_not_wait_longer_than_it_was_told() {
        let group = TaskGroup::new();
        group.spawn_to_end(std::future::pending());
        assert!(!group.close(&SystemClock::new(), Duration::from_secs(1)).await);
    }
}

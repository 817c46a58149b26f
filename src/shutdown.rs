//! How the process is asked to end: first to finish what it has, then to end at once.
//!
//! ```text
//!   running ──begin──► finishing ──end_now──► ending
//! ```
//! Nothing leads back. The first SIGTERM or SIGINT begins, a second one ends at once.

use tokio_util::sync::CancellationToken;

/// The wish that the process ends. Cloning gives another handle to the same wish.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    begun: CancellationToken,
    now: CancellationToken,
}

impl Shutdown {
    /// Nobody wishes anything yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks everybody to take nothing new and to finish what is under way. Idempotent.
    pub fn begin(&self) {
        self.begun.cancel();
    }

    /// Asks everybody to end at once. Idempotent.
    pub fn end_now(&self) {
        self.begun.cancel();
        self.now.cancel();
    }

    /// Whether [`Shutdown::begin`] was called.
    #[must_use]
    pub fn is_begun(&self) -> bool {
        self.begun.is_cancelled()
    }

    /// Whether [`Shutdown::end_now`] was called.
    #[must_use]
    pub fn is_now(&self) -> bool {
        self.now.is_cancelled()
    }

    /// Returns once [`Shutdown::begin`] was called. Cancel-safe.
    pub async fn begun(&self) {
        self.begun.cancelled().await;
    }

    /// Returns once [`Shutdown::end_now`] was called. Cancel-safe.
    pub async fn now(&self) {
        self.now.cancelled().await;
    }

    /// Follows the signals of the process: SIGTERM or SIGINT begins, another one ends at once.
    /// Returns after the second. Errors: the signals cannot be watched.
    #[cfg(unix)]
    pub async fn follow_signals(&self) -> std::io::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        for is_first in [true, false] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if is_first {
                tracing::info!("asked to end: finishing what is under way");
                self.begin();
            } else {
                tracing::warn!("asked to end again: ending now");
                self.end_now();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn to_end_now_is_also_to_begin() {
        let shutdown = Shutdown::new();
        assert!(!shutdown.is_begun());
        shutdown.clone().end_now();
        shutdown.begun().await;
        shutdown.now().await;
        assert!(shutdown.is_begun() && shutdown.is_now());
    }

    #[test]
    fn to_begin_is_not_to_end_now() {
        let shutdown = Shutdown::new();
        shutdown.begin();
        assert!(shutdown.is_begun() && !shutdown.is_now());
    }
}

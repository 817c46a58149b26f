//! Time comes in by argument. Nothing outside this file asks the system for it.

use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of time.
#[async_trait]
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Time since some fixed moment; never goes back. For measuring waits.
    fn monotonic(&self) -> Duration;

    /// Milliseconds since 1970 by the wall clock, which may step. For stamps that people read and
    /// for deadlines that outlive a process; never for measuring.
    fn unix_ms(&self) -> u64;

    /// Returns once `duration` has passed. Cancel-safe: dropping the future ends the wait.
    async fn sleep(&self, duration: Duration);
}

/// A clock that is shared.
pub type SharedClock = Arc<dyn Clock>;

/// The system's clocks.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that asks the system for the time")]
    #[must_use]
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }

    /// The same, shared.
    #[must_use]
    pub fn shared() -> SharedClock {
        Arc::new(Self::new())
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place that asks the system for the time")]
    fn unix_ms(&self) -> u64 {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place that sleeps")]
    async fn sleep(&self, duration: Duration) {
        // The timer wheel takes about two years; longer waits are cut into rounds.
        const ROUND: Duration = Duration::from_hours(24 * 30);
        let mut left = duration;
        while left > ROUND {
            tokio::time::sleep(ROUND).await;
            left = left.saturating_sub(ROUND);
        }
        tokio::time::sleep(left).await;
    }
}

/// Waits for `future` at most `patience`. `None` when the time ran out first; the future is then
/// dropped, so it must be cancel-safe.
pub async fn within<T>(clock: &dyn Clock, patience: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        value = future => Some(value),
        () = clock.sleep(patience) => None,
    }
}

#[cfg(any(test, feature = "test-util"))]
mod manual {
    use super::{Clock, Duration, async_trait};
    use tokio::sync::watch;

    /// A clock that only moves when told.
    #[derive(Debug)]
    pub struct ManualClock {
        elapsed: watch::Sender<Duration>,
        wall_start_ms: u64,
    }

    impl ManualClock {
        /// A clock that stands at 0, its wall clock at `wall_start_ms`.
        #[must_use]
        pub fn new(wall_start_ms: u64) -> Self {
            Self { elapsed: watch::Sender::new(Duration::ZERO), wall_start_ms }
        }

        /// Moves on by `step` and wakes every sleeper whose time has come.
        pub fn advance(&self, step: Duration) {
            self.elapsed.send_modify(|elapsed| *elapsed = elapsed.saturating_add(step));
        }
    }

    #[async_trait]
    impl Clock for ManualClock {
        fn monotonic(&self) -> Duration {
            *self.elapsed.borrow()
        }

        fn unix_ms(&self) -> u64 {
            let elapsed_ms = u64::try_from(self.monotonic().as_millis()).unwrap_or(u64::MAX);
            self.wall_start_ms.saturating_add(elapsed_ms)
        }

        async fn sleep(&self, duration: Duration) {
            let mut elapsed = self.elapsed.subscribe();
            let until = self.monotonic().saturating_add(duration);
            // Fails only when the sender is gone, and then nobody can wake this sleeper any more.
            let _ = elapsed.wait_for(|now| *now >= until).await;
        }
    }
}

#[cfg(any(test, feature = "test-util"))]
pub use manual::ManualClock;

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests spawn what they wait for")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_manual_clock_wakes_sleepers_when_it_is_moved() {
        let clock = Arc::new(ManualClock::new(5));
        let sleeper = clock.clone();
        let sleep = tokio::spawn(async move { sleeper.sleep(Duration::from_secs(10)).await });
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(9));
        tokio::task::yield_now().await;
        assert!(!sleep.is_finished());
        clock.advance(Duration::from_secs(1));
        assert!(sleep.await.is_ok());
        assert_eq!(clock.unix_ms(), 10_005);
    }

    #[tokio::test(start_paused = true)]
    async fn sleeps_of_ten_thousand_years_do_not_panic() {
        let clock = SystemClock::new();
        let long = Duration::from_hours(24 * 365 * 10_000);
        let waited = within(&clock, Duration::from_secs(1), clock.sleep(long)).await;
        assert_eq!(waited, None);
    }
}

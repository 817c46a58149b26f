//! When and how often a call is tried again.

use rand::RngExt;
use std::time::Duration;

/// Bounds of trying again. Both must hold: a call ends with its last error when either is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Most attempts without any progress, the first one included.
    pub max_attempts: u32,
    /// Longest time from the first attempt without any progress.
    pub total: Duration,
    /// Wait before the second attempt; doubles from there.
    pub first_wait: Duration,
    /// Longest wait between two attempts, unless the service asks for more.
    pub max_wait: Duration,
}

impl Default for RetryPolicy {
    /// 12 attempts within 60 s, waits from 50 ms to 5 s: enough to outlast the restart of a node.
    fn default() -> Self {
        Self { max_attempts: 12, total: Duration::from_secs(60), first_wait: Duration::from_millis(50), max_wait: Duration::from_secs(5) }
    }
}

impl RetryPolicy {
    /// One attempt only.
    #[must_use]
    pub const fn never() -> Self {
        Self { max_attempts: 1, total: Duration::MAX, first_wait: Duration::ZERO, max_wait: Duration::ZERO }
    }
}

/// The retries of one call.
#[derive(Debug)]
pub(crate) struct Retries {
    policy: RetryPolicy,
    started: Duration,
    n_attempts: u32,
}

impl Retries {
    pub(crate) const fn new(policy: RetryPolicy, now: Duration) -> Self {
        Self { policy, started: now, n_attempts: 0 }
    }

    pub(crate) const fn n_attempts(&self) -> u32 {
        self.n_attempts
    }

    /// Starts counting anew, because something was achieved.
    pub(crate) fn made_progress(&mut self, now: Duration) {
        self.started = now;
        self.n_attempts = 0;
    }

    /// How long to wait before the next attempt; `None` when there shall be none. The wait is drawn
    /// between half and all of the exponential step, so that callers that failed together do not
    /// come back together; what the service asks for is the lower bound.
    pub(crate) fn next_wait(&mut self, now: Duration, asked: Option<Duration>) -> Option<Duration> {
        self.n_attempts = self.n_attempts.saturating_add(1);
        if self.n_attempts >= self.policy.max_attempts {
            return None;
        }
        let doubled = 2_u32.saturating_pow(self.n_attempts.saturating_sub(1));
        let step = self.policy.first_wait.saturating_mul(doubled).min(self.policy.max_wait);
        let jittered = step.mul_f64(rand::rng().random_range(0.5..=1.0));
        let wait = jittered.max(asked.unwrap_or(Duration::ZERO));
        let is_in_time = now.saturating_sub(self.started).saturating_add(wait) <= self.policy.total;
        is_in_time.then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_end_after_the_attempts_that_are_allowed() {
        let policy = RetryPolicy { max_attempts: 4, ..RetryPolicy::default() };
        let mut retries = Retries::new(policy, Duration::ZERO);
        let n_waits = std::iter::from_fn(|| retries.next_wait(Duration::ZERO, None)).count();
        assert_eq!(n_waits, 3);
    }

    #[test]
    fn retries_end_after_the_time_that_is_allowed() {
        let mut retries = Retries::new(RetryPolicy::default(), Duration::ZERO);
        assert_eq!(retries.next_wait(Duration::from_secs(59), Some(Duration::from_secs(2))), None);
    }

    #[test]
    fn waits_grow_up_to_their_bound_and_follow_the_service() {
        let policy = RetryPolicy { max_attempts: 100, total: Duration::MAX, ..RetryPolicy::default() };
        let mut retries = Retries::new(policy, Duration::ZERO);
        for step in [50_u64, 100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let wait = retries.next_wait(Duration::ZERO, None).unwrap_or_default();
            assert!(wait >= Duration::from_millis(step / 2) && wait <= Duration::from_millis(step), "{wait:?} for {step}");
        }
        assert_eq!(retries.next_wait(Duration::ZERO, Some(Duration::from_secs(9))), Some(Duration::from_secs(9)));
        retries.made_progress(Duration::ZERO);
        assert!(retries.next_wait(Duration::ZERO, None).unwrap_or_default() <= Duration::from_millis(50));
    }
}

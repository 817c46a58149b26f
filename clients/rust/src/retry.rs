//! When to try again: bounded attempts, a total deadline, exponential backoff with jitter, and the
//! service's own word where it gave one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store_api::Clock;

/// How long the client goes on by itself.
///
/// ```
/// use forebay_client::RetryPolicy;
/// use std::time::Duration;
/// let patient = RetryPolicy { max_attempts: 20, deadline: Duration::from_secs(120), ..RetryPolicy::default() };
/// assert!(patient.first_backoff < patient.max_backoff);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Most attempts without progress, the first one included. At least 1 is made.
    pub max_attempts: u32,
    /// Longest time without progress from the first failure to the start of the last attempt.
    pub deadline: Duration,
    /// Longest pause before the second attempt; doubles from there on.
    pub first_backoff: Duration,
    /// Longest pause of all. The service's own Retry-After may be longer; the deadline bounds it.
    pub max_backoff: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 8,
            deadline: Duration::from_secs(60),
            first_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(5),
        }
    }
}

impl RetryPolicy {
    /// Tries once.
    #[must_use]
    pub fn never() -> Self {
        Self { max_attempts: 1, ..Self::default() }
    }
}

/// Numbers for jitter; not for secrets.
#[derive(Debug)]
pub(crate) struct Jitter(AtomicU64);

impl Jitter {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// A duration between half of `whole` and all of it.
    fn of(&self, whole: Duration) -> Duration {
        let mut mixed = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let part = u32::try_from(mixed >> 48).unwrap_or(0);
        let half = whole / 2;
        half + half.saturating_mul(part) / 65_536
    }
}

/// The attempts of one call, or of one stretch of a stream without progress.
#[derive(Debug)]
pub(crate) struct Attempts {
    policy: RetryPolicy,
    started: Duration,
    n_failed: u32,
}

impl Attempts {
    pub(crate) const fn new(policy: RetryPolicy) -> Self {
        Self { policy, started: Duration::ZERO, n_failed: 0 }
    }

    /// Attempts that failed since the last progress.
    pub(crate) const fn n_failed(&self) -> u32 {
        self.n_failed
    }

    /// Bytes got through: count from here.
    pub(crate) const fn progressed(&mut self) {
        self.n_failed = 0;
    }

    /// Counts a failure. The pause before the next attempt, or `None` when there shall be none.
    pub(crate) fn failed(&mut self, clock: &dyn Clock, jitter: &Jitter, asked: Option<Duration>) -> Option<Duration> {
        if self.n_failed == 0 {
            // Time that the caller took between two calls is not time without progress.
            self.started = clock.monotonic();
        }
        self.n_failed = self.n_failed.saturating_add(1);
        if self.n_failed >= self.policy.max_attempts {
            return None;
        }
        let doubled = 2_u32.saturating_pow(self.n_failed.saturating_sub(1));
        let backoff = jitter.of(self.policy.first_backoff.saturating_mul(doubled).min(self.policy.max_backoff));
        let pause = asked.map_or(backoff, |asked| asked.max(backoff));
        let elapsed = clock.monotonic().saturating_sub(self.started);
        (elapsed.saturating_add(pause) <= self.policy.deadline).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use store_api::clock::ManualClock;

    fn policy() -> RetryPolicy {
        RetryPolicy {
            max_attempts: 5,
            deadline: Duration::from_secs(10),
            first_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_millis(300),
        }
    }

    #[test]
    fn attempts_are_bounded_and_pauses_grow_to_their_bound() {
        let (clock, jitter) = (ManualClock::new(0), Jitter::new(7));
        let mut attempts = Attempts::new(policy());
        for bound_ms in [100, 200, 300, 300] {
            let pause = attempts.failed(&clock, &jitter, None);
            let bound = Duration::from_millis(bound_ms);
            assert!(pause.is_some_and(|pause| pause >= bound / 2 && pause <= bound), "{pause:?} for {bound:?}");
        }
        assert_eq!(attempts.failed(&clock, &jitter, None), None);
        assert_eq!(attempts.n_failed(), 5);
    }

    #[test]
    fn the_services_word_is_honoured_up_to_the_deadline() {
        let (clock, jitter) = (ManualClock::new(0), Jitter::new(7));
        let mut attempts = Attempts::new(policy());
        assert_eq!(attempts.failed(&clock, &jitter, Some(Duration::from_secs(9))), Some(Duration::from_secs(9)));
        clock.advance(Duration::from_secs(9));
        assert_eq!(attempts.failed(&clock, &jitter, Some(Duration::from_secs(2))), None);
    }

    #[test]
    fn progress_starts_the_count_again() {
        let (clock, jitter) = (ManualClock::new(0), Jitter::new(7));
        let mut attempts = Attempts::new(policy());
        for _ in 0..4 {
            attempts.failed(&clock, &jitter, None);
        }
        clock.advance(Duration::from_secs(100));
        attempts.progressed();
        assert!(attempts.failed(&clock, &jitter, None).is_some());
    }

    #[test]
    fn a_caller_that_takes_its_time_loses_no_retries() {
        let (clock, jitter) = (ManualClock::new(0), Jitter::new(7));
        let mut attempts = Attempts::new(policy());
        clock.advance(Duration::from_hours(1));
        assert!(attempts.failed(&clock, &jitter, None).is_some());
        clock.advance(Duration::from_secs(11));
        assert!(attempts.failed(&clock, &jitter, None).is_none());
    }

    #[test]
    fn a_policy_of_no_retries_never_pauses() {
        let clock = ManualClock::new(0);
        assert_eq!(Attempts::new(RetryPolicy::never()).failed(&clock, &Jitter::new(0), None), None);
    }

    proptest! {
        #[test]
        fn jitter_stays_between_half_and_whole(seed: u64, ms in 0_u64..100_000_000) {
            let whole = Duration::from_millis(ms);
            let drawn = Jitter::new(seed).of(whole);
            prop_assert!(drawn >= whole / 2 && drawn <= whole);
        }
    }
}

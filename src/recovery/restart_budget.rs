//! How often and how soon a job may restart.
//!
//! Four strategies under the names, option keys and defaults that Apache Flink 1.20 documents
//! (`restart-strategy.*`), so that a job's settings can be carried over. Pure state machines: the
//! time and the draw for the jitter come in by argument.
//!
//! A failure that arrives while a restart is pending joins it: it takes nothing from the budget and
//! does not move the time of the restart.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Most failures that a failure rate may allow in its interval; bounds what is remembered.
pub const MAX_FAILURES_PER_INTERVAL: u32 = 10_000;

/// Longest delay or interval that is accepted: 400 days.
pub const MAX_DURATION: Duration = Duration::from_secs(400 * 24 * 3600);

/// A restart strategy and its options.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RestartStrategy {
    /// Never restarts.
    None,
    /// A number of restarts, each after the same delay.
    FixedDelay {
        /// `restart-strategy.fixed-delay.attempts`
        attempts: u32,
        /// `restart-strategy.fixed-delay.delay`
        delay: Duration,
    },
    /// Restarts as long as failures are rare.
    FailureRate {
        /// `restart-strategy.failure-rate.max-failures-per-interval`
        max_failures_per_interval: u32,
        /// `restart-strategy.failure-rate.failure-rate-interval`
        failure_rate_interval: Duration,
        /// `restart-strategy.failure-rate.delay`
        delay: Duration,
    },
    /// Restarts after a delay that grows with every failure until the job has run well for a while.
    ExponentialDelay {
        /// `restart-strategy.exponential-delay.initial-backoff`
        initial_backoff: Duration,
        /// `restart-strategy.exponential-delay.max-backoff`
        max_backoff: Duration,
        /// `restart-strategy.exponential-delay.backoff-multiplier`, at least 1.
        backoff_multiplier: f64,
        /// `restart-strategy.exponential-delay.reset-backoff-threshold`
        reset_backoff_threshold: Duration,
        /// `restart-strategy.exponential-delay.jitter-factor`, 0 to 1.
        jitter_factor: f64,
        /// `restart-strategy.exponential-delay.attempts-before-reset-backoff`; `None`: any number.
        attempts_before_reset_backoff: Option<u32>,
    },
}

impl RestartStrategy {
    /// Fixed delay with its defaults: one attempt after a second.
    pub const FIXED_DELAY: Self = Self::FixedDelay { attempts: 1, delay: Duration::from_secs(1) };

    /// Failure rate with its defaults: one failure a minute, restart after a second.
    pub const FAILURE_RATE: Self =
        Self::FailureRate { max_failures_per_interval: 1, failure_rate_interval: Duration::from_secs(60), delay: Duration::from_secs(1) };

    /// Exponential delay with its defaults: 1 s to 1 min, times 1.5, jitter 0.1, reset after an hour
    /// without failure, any number of attempts.
    pub const EXPONENTIAL_DELAY: Self = Self::ExponentialDelay {
        initial_backoff: Duration::from_secs(1),
        max_backoff: Duration::from_secs(60),
        backoff_multiplier: 1.5,
        reset_backoff_threshold: Duration::from_secs(3600),
        jitter_factor: 0.1,
        attempts_before_reset_backoff: None,
    };

    /// Reads the strategy from options by their full keys. Without `restart-strategy.type` it is
    /// [`Self::EXPONENTIAL_DELAY`]. Keys that are not options of any strategy are an error; options
    /// of another strategy are not looked at. Errors: [`BudgetOptionError`].
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self, BudgetOptionError> {
        if let Some(unknown) = options.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(BudgetOptionError::UnknownKey(unknown.clone()));
        }
        let read = Options(options);
        let kind = options.get(TYPE).map_or("exponential-delay", String::as_str);
        match kind {
            "none" | "off" | "disable" => Ok(Self::None),
            "fixed-delay" | "fixeddelay" => Ok(Self::FixedDelay {
                attempts: read.number(FIXED_ATTEMPTS, 1, u32::MAX)?,
                delay: read.duration(FIXED_DELAY, Duration::from_secs(1))?,
            }),
            "failure-rate" | "failurerate" => Ok(Self::FailureRate {
                max_failures_per_interval: read.number(RATE_FAILURES, 1, MAX_FAILURES_PER_INTERVAL)?,
                failure_rate_interval: read.duration(RATE_INTERVAL, Duration::from_secs(60))?,
                delay: read.duration(RATE_DELAY, Duration::from_secs(1))?,
            }),
            "exponential-delay" | "exponentialdelay" => read.exponential(),
            other => Err(BudgetOptionError::Value {
                key: TYPE.to_owned(),
                value: other.to_owned(),
                expected: "none, fixed-delay, failure-rate or exponential-delay",
            }),
        }
    }
}

const TYPE: &str = "restart-strategy.type";
const FIXED_ATTEMPTS: &str = "restart-strategy.fixed-delay.attempts";
const FIXED_DELAY: &str = "restart-strategy.fixed-delay.delay";
const RATE_FAILURES: &str = "restart-strategy.failure-rate.max-failures-per-interval";
const RATE_INTERVAL: &str = "restart-strategy.failure-rate.failure-rate-interval";
const RATE_DELAY: &str = "restart-strategy.failure-rate.delay";
const INITIAL_BACKOFF: &str = "restart-strategy.exponential-delay.initial-backoff";
const MAX_BACKOFF: &str = "restart-strategy.exponential-delay.max-backoff";
const MULTIPLIER: &str = "restart-strategy.exponential-delay.backoff-multiplier";
const RESET_THRESHOLD: &str = "restart-strategy.exponential-delay.reset-backoff-threshold";
const JITTER: &str = "restart-strategy.exponential-delay.jitter-factor";
const ATTEMPTS_BEFORE_RESET: &str = "restart-strategy.exponential-delay.attempts-before-reset-backoff";
const KEYS: [&str; 12] = [
    TYPE,
    FIXED_ATTEMPTS,
    FIXED_DELAY,
    RATE_FAILURES,
    RATE_INTERVAL,
    RATE_DELAY,
    INITIAL_BACKOFF,
    MAX_BACKOFF,
    MULTIPLIER,
    RESET_THRESHOLD,
    JITTER,
    ATTEMPTS_BEFORE_RESET,
];

/// Why options are not a restart strategy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BudgetOptionError {
    /// There is no such option.
    #[error("{0} is not an option of a restart strategy")]
    UnknownKey(String),
    /// An option has a value that it cannot have.
    #[error("{key} must be {expected}, not {value:?}")]
    Value {
        /// The option.
        key: String,
        /// Its value.
        value: String,
        /// What it could be.
        expected: &'static str,
    },
}

struct Options<'a>(&'a BTreeMap<String, String>);

impl Options<'_> {
    fn read<T>(&self, key: &str, default: T, expected: &'static str, parse: impl Fn(&str) -> Option<T>) -> Result<T, BudgetOptionError> {
        let Some(value) = self.0.get(key) else { return Ok(default) };
        parse(value.trim()).ok_or_else(|| BudgetOptionError::Value { key: key.to_owned(), value: value.clone(), expected })
    }

    fn number(&self, key: &str, default: u32, most: u32) -> Result<u32, BudgetOptionError> {
        self.read(key, default, "a whole number, not too large", |text| text.parse().ok().filter(|number| *number <= most))
    }

    fn duration(&self, key: &str, default: Duration) -> Result<Duration, BudgetOptionError> {
        self.read(key, default, "a duration such as 500 ms, 1 s or 1 min, of at most 400 days", parse_duration)
    }

    fn exponential(&self) -> Result<RestartStrategy, BudgetOptionError> {
        let ratio = |text: &str| text.parse::<f64>().ok().filter(|factor| (0.0..=1.0).contains(factor));
        let factor = |text: &str| text.parse::<f64>().ok().filter(|factor| factor.is_finite() && *factor >= 1.0);
        let attempts = |text: &str| if text == "infinite" { Some(None) } else { text.parse().ok().filter(|number| *number > 0).map(Some) };
        let initial_backoff = self.duration(INITIAL_BACKOFF, Duration::from_secs(1))?;
        let max_backoff = self.duration(MAX_BACKOFF, Duration::from_secs(60))?;
        if max_backoff < initial_backoff || initial_backoff.is_zero() {
            let value = format!("{max_backoff:?}");
            return Err(BudgetOptionError::Value {
                key: MAX_BACKOFF.to_owned(),
                value,
                expected: "at least the initial backoff, and that above 0",
            });
        }
        Ok(RestartStrategy::ExponentialDelay {
            initial_backoff,
            max_backoff,
            backoff_multiplier: self.read(MULTIPLIER, 1.5, "a number of at least 1", factor)?,
            reset_backoff_threshold: self.duration(RESET_THRESHOLD, Duration::from_secs(3600))?,
            jitter_factor: self.read(JITTER, 0.1, "a number from 0 to 1", ratio)?,
            attempts_before_reset_backoff: self.read(ATTEMPTS_BEFORE_RESET, None, "a whole number above 0, or infinite", attempts)?,
        })
    }
}

/// Number and unit, with or without a blank between; milliseconds without a unit. Whole numbers only.
fn parse_duration(text: &str) -> Option<Duration> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(split)?;
    let number: u64 = number.parse().ok()?;
    let unit_ms: u64 = match unit.trim() {
        "" | "ms" | "milli" | "millis" | "millisecond" | "milliseconds" => 1,
        "s" | "sec" | "secs" | "second" | "seconds" => 1000,
        "m" | "min" | "minute" | "minutes" => 60_000,
        "h" | "hour" | "hours" => 3_600_000,
        "d" | "day" | "days" => 86_400_000,
        _ => return None,
    };
    Some(Duration::from_millis(number.checked_mul(unit_ms)?)).filter(|duration| *duration <= MAX_DURATION)
}

/// What a budget says about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowance {
    /// Restart after this time. One attempt was taken from the budget.
    After(Duration),
    /// A restart is pending already; the failure joins it and costs nothing.
    Joins {
        /// Time until that restart.
        remaining: Duration,
    },
    /// No restart: the budget is used up.
    Refused,
}

impl Allowance {
    /// How long to wait before restarting; zero when refused.
    #[must_use]
    pub const fn delay(self) -> Duration {
        match self {
            Self::After(delay) | Self::Joins { remaining: delay } => delay,
            Self::Refused => Duration::ZERO,
        }
    }
}

/// A draw from −1 to 1: where in the range of the jitter a delay falls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JitterDraw(f64);

impl JitterDraw {
    /// The middle: no jitter.
    pub const MIDDLE: Self = Self(0.0);

    /// A draw; `None` when it is not a number from −1 to 1.
    #[must_use]
    pub fn new(draw: f64) -> Option<Self> {
        (-1.0..=1.0).contains(&draw).then_some(Self(draw))
    }
}

/// What a job has left of its restarts.
#[derive(Debug, Clone, PartialEq)]
pub struct RestartBudget {
    strategy: RestartStrategy,
    /// Restarts taken; with exponential delay, since the last reset.
    n_attempts: u32,
    /// Times of recent failures, for the failure rate. At most one more than it allows.
    recent: VecDeque<Duration>,
    /// Time of the restart given out last.
    restart_at: Option<Duration>,
    /// Delay before jitter given out last, with exponential delay.
    backoff: Duration,
}

impl RestartBudget {
    /// A full budget.
    #[must_use]
    pub const fn new(strategy: RestartStrategy) -> Self {
        Self { strategy, n_attempts: 0, recent: VecDeque::new(), restart_at: None, backoff: Duration::ZERO }
    }

    /// The budget after a failure at `now`, and what it says. `now` is on any clock that only
    /// differences are taken of; one that steps back makes nothing worse than a delay of what was
    /// pending. `jitter` is used by exponential delay only.
    #[must_use]
    pub fn after_failure(mut self, now: Duration, jitter: JitterDraw) -> (Self, Allowance) {
        if let Some(remaining) = self.restart_at.and_then(|at| at.checked_sub(now)).filter(|remaining| !remaining.is_zero()) {
            return (self, Allowance::Joins { remaining });
        }
        let allowance = match self.strategy {
            RestartStrategy::None => Allowance::Refused,
            RestartStrategy::FixedDelay { attempts, delay } => self.take(attempts, delay),
            RestartStrategy::FailureRate { max_failures_per_interval, failure_rate_interval, delay } => {
                self.take_by_rate(now, max_failures_per_interval, failure_rate_interval, delay)
            }
            RestartStrategy::ExponentialDelay { .. } => self.take_exponential(now, jitter),
        };
        if let Allowance::After(delay) = allowance {
            self.restart_at = Some(now.saturating_add(delay));
        }
        (self, allowance)
    }

    /// The strategy.
    #[must_use]
    pub const fn strategy(&self) -> RestartStrategy {
        self.strategy
    }

    fn take(&mut self, most: u32, delay: Duration) -> Allowance {
        if self.n_attempts >= most {
            return Allowance::Refused;
        }
        self.n_attempts += 1;
        Allowance::After(delay)
    }

    fn take_by_rate(&mut self, now: Duration, most: u32, interval: Duration, delay: Duration) -> Allowance {
        self.recent.push_back(now);
        while self.recent.len() > most as usize + 1 {
            self.recent.pop_front();
        }
        let oldest = self.recent.front().copied().unwrap_or(now);
        let is_full = self.recent.len() > most as usize;
        if is_full && now.saturating_sub(oldest) <= interval { Allowance::Refused } else { Allowance::After(delay) }
    }

    fn take_exponential(&mut self, now: Duration, jitter: JitterDraw) -> Allowance {
        let RestartStrategy::ExponentialDelay {
            initial_backoff,
            max_backoff,
            backoff_multiplier,
            reset_backoff_threshold,
            jitter_factor,
            attempts_before_reset_backoff,
        } = self.strategy
        else {
            return Allowance::Refused;
        };
        let has_run_well = self.restart_at.is_none_or(|at| now.saturating_sub(at) >= reset_backoff_threshold);
        if has_run_well {
            (self.n_attempts, self.backoff) = (0, initial_backoff);
        } else {
            self.backoff = scale(self.backoff, backoff_multiplier, max_backoff);
        }
        if attempts_before_reset_backoff.is_some_and(|most| self.n_attempts >= most) {
            return Allowance::Refused;
        }
        self.n_attempts = self.n_attempts.saturating_add(1);
        let jittered = scale(self.backoff, 1.0 + jitter_factor * jitter.0, max_backoff);
        Allowance::After(jittered.max(initial_backoff.min(max_backoff)))
    }
}

/// `duration` times a factor of at least 0, at most `most`.
fn scale(duration: Duration, factor: f64, most: Duration) -> Duration {
    Duration::try_from_secs_f64(duration.as_secs_f64() * factor).unwrap_or(most).min(most)
}

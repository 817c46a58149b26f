//! How often and how soon a job may restart.

use crate::recovery::restart_budget::{Allowance, BudgetOptionError, JitterDraw, MAX_DURATION, RestartBudget, RestartStrategy};
use std::collections::BTreeMap;
use std::time::Duration;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn options(pairs: &[(&str, &str)]) -> Result<RestartStrategy, BudgetOptionError> {
    let pairs = pairs.iter().map(|(key, value)| (format!("restart-strategy.{key}"), (*value).to_owned()));
    RestartStrategy::parse(&pairs.collect::<BTreeMap<_, _>>())
}

/// What a budget says to failures at these seconds, without jitter.
fn answers(strategy: RestartStrategy, failures: &[u64]) -> Vec<Allowance> {
    let mut budget = RestartBudget::new(strategy);
    let mut said = Vec::new();
    for at in failures {
        let (next, allowance) = budget.after_failure(secs(*at), JitterDraw::MIDDLE);
        budget = next;
        said.push(allowance);
    }
    said
}

fn after(seconds: u64) -> Allowance {
    Allowance::After(secs(seconds))
}

#[test]
fn without_a_strategy_named_it_is_exponential_delay_with_its_defaults() {
    assert_eq!(options(&[]), Ok(RestartStrategy::EXPONENTIAL_DELAY));
    assert_eq!(options(&[("type", "fixed-delay")]), Ok(RestartStrategy::FIXED_DELAY));
    assert_eq!(options(&[("type", "failure-rate")]), Ok(RestartStrategy::FAILURE_RATE));
    for name in ["none", "off", "disable"] {
        assert_eq!(options(&[("type", name)]), Ok(RestartStrategy::None));
    }
}

#[test]
fn every_option_is_read_in_its_own_unit() {
    let fixed = options(&[("type", "fixeddelay"), ("fixed-delay.attempts", "7"), ("fixed-delay.delay", "1500 ms")]);
    assert_eq!(fixed, Ok(RestartStrategy::FixedDelay { attempts: 7, delay: Duration::from_millis(1500) }));
    let rate = options(&[
        ("type", "failurerate"),
        ("failure-rate.max-failures-per-interval", "3"),
        ("failure-rate.failure-rate-interval", "5min"),
        ("failure-rate.delay", "250"),
    ]);
    let expected =
        RestartStrategy::FailureRate { max_failures_per_interval: 3, failure_rate_interval: secs(300), delay: Duration::from_millis(250) };
    assert_eq!(rate, Ok(expected));
    let growing = options(&[
        ("exponential-delay.initial-backoff", "2 s"),
        ("exponential-delay.max-backoff", "1 h"),
        ("exponential-delay.backoff-multiplier", "2.0"),
        ("exponential-delay.reset-backoff-threshold", "1 d"),
        ("exponential-delay.jitter-factor", "0.5"),
        ("exponential-delay.attempts-before-reset-backoff", "9"),
    ]);
    let expected = RestartStrategy::ExponentialDelay {
        initial_backoff: secs(2),
        max_backoff: secs(3600),
        backoff_multiplier: 2.0,
        reset_backoff_threshold: secs(86_400),
        jitter_factor: 0.5,
        attempts_before_reset_backoff: Some(9),
    };
    assert_eq!(growing, Ok(expected));
}

#[test]
fn options_that_mean_nothing_are_refused() {
    assert_eq!(
        options(&[("fixed-delay.atempts", "7")]),
        Err(BudgetOptionError::UnknownKey("restart-strategy.fixed-delay.atempts".to_owned()))
    );
    let bad = [
        ("type", "sometimes"),
        ("exponential-delay.initial-backoff", "-1"),
        ("exponential-delay.initial-backoff", "0"),
        ("exponential-delay.initial-backoff", "1.5 s"),
        ("exponential-delay.initial-backoff", "2 min"),
        ("exponential-delay.max-backoff", "18446744073709551615 d"),
        ("exponential-delay.max-backoff", "401 d"),
        ("exponential-delay.max-backoff", "s"),
        ("exponential-delay.max-backoff", "1 é"),
        ("exponential-delay.backoff-multiplier", "0.5"),
        ("exponential-delay.backoff-multiplier", "NaN"),
        ("exponential-delay.backoff-multiplier", "inf"),
        ("exponential-delay.jitter-factor", "1.1"),
        ("exponential-delay.attempts-before-reset-backoff", "0"),
    ];
    for (key, value) in bad {
        assert!(matches!(options(&[(key, value)]), Err(BudgetOptionError::Value { .. })), "{key} = {value}");
    }
}

#[test]
fn none_never_restarts() {
    assert_eq!(answers(RestartStrategy::None, &[0]), [Allowance::Refused]);
}

#[test]
fn fixed_delay_allows_its_number_of_attempts() {
    let strategy = RestartStrategy::FixedDelay { attempts: 2, delay: secs(10) };
    assert_eq!(answers(strategy, &[0, 20, 40, 1_000_000]), [after(10), after(10), Allowance::Refused, Allowance::Refused]);
}

#[test]
fn failure_rate_refuses_when_one_more_than_it_allows_lie_in_the_interval() {
    let strategy = RestartStrategy::FailureRate { max_failures_per_interval: 2, failure_rate_interval: secs(60), delay: secs(1) };
    assert_eq!(answers(strategy, &[0, 30, 60]), [after(1), after(1), Allowance::Refused]);
    assert_eq!(answers(strategy, &[0, 30, 61, 92]), [after(1); 4]);
    let never = RestartStrategy::FailureRate { max_failures_per_interval: 0, failure_rate_interval: secs(60), delay: secs(1) };
    assert_eq!(answers(never, &[0]), [Allowance::Refused]);
}

#[test]
fn exponential_delay_grows_up_to_its_limit_and_starts_anew_after_a_good_hour() {
    let strategy = RestartStrategy::EXPONENTIAL_DELAY;
    let mut at = 0;
    let mut failures = Vec::new();
    for _ in 0..13 {
        failures.push(at);
        at += 100;
    }
    let delays: Vec<f64> = answers(strategy, &failures).iter().map(|allowance| allowance.delay().as_secs_f64()).collect();
    assert_eq!(&delays[..5], [1.0, 1.5, 2.25, 3.375, 5.0625]);
    assert_eq!(delays[12], 60.0);
    // The hour is counted from the restart, not from the failure before it.
    assert_eq!(answers(strategy, &[0, 3600]), [after(1), Allowance::After(Duration::from_millis(1500))]);
    assert_eq!(answers(strategy, &[0, 3601]), [after(1), after(1)]);
}

#[test]
fn exponential_delay_refuses_after_its_attempts_until_it_is_reset() {
    let RestartStrategy::ExponentialDelay {
        initial_backoff, max_backoff, backoff_multiplier, reset_backoff_threshold, jitter_factor, ..
    } = RestartStrategy::EXPONENTIAL_DELAY
    else {
        panic!("exponential delay is exponential");
    };
    let strategy = RestartStrategy::ExponentialDelay {
        initial_backoff,
        max_backoff,
        backoff_multiplier,
        reset_backoff_threshold,
        jitter_factor,
        attempts_before_reset_backoff: Some(2),
    };
    let said = answers(strategy, &[0, 100, 200, 10_000]);
    assert_eq!(said[2], Allowance::Refused);
    assert_eq!(said[3], after(1));
}

#[test]
fn jitter_stays_within_its_factor_the_initial_delay_and_the_limit() {
    let first =
        |draw: f64| RestartBudget::new(RestartStrategy::EXPONENTIAL_DELAY).after_failure(secs(0), JitterDraw::new(draw).unwrap()).1.delay();
    assert_eq!(first(-1.0), secs(1), "never below the initial delay");
    assert_eq!(first(1.0), Duration::from_millis(1100));
    let mut budget = RestartBudget::new(RestartStrategy::EXPONENTIAL_DELAY);
    for at in 0..30 {
        let (next, allowance) = budget.after_failure(secs(at * 100), JitterDraw::new(1.0).unwrap());
        budget = next;
        assert!(allowance.delay() <= secs(60));
    }
    for outside in [1.01, -1.01, f64::NAN, f64::INFINITY] {
        assert_eq!(JitterDraw::new(outside), None);
    }
}

/// Property 24
#[test]
fn failures_while_a_restart_is_pending_join_it_and_cost_nothing() {
    let strategies = [
        RestartStrategy::FixedDelay { attempts: 2, delay: secs(10) },
        RestartStrategy::FailureRate { max_failures_per_interval: 2, failure_rate_interval: secs(15), delay: secs(10) },
    ];
    for strategy in strategies {
        let joins = |seconds| Allowance::Joins { remaining: secs(seconds) };
        let said = answers(strategy, &[100, 101, 105, 109, 110, 111]);
        assert_eq!(said, [after(10), joins(9), joins(5), joins(1), after(10), joins(9)], "{strategy:?}");
    }
}

/// Field cases M1, M2, M3
#[test]
fn clocks_that_step_back_and_very_long_times_do_no_harm() {
    let said = answers(RestartStrategy::FixedDelay { attempts: 3, delay: secs(10) }, &[1000, 0, 1010]);
    assert_eq!(said, [after(10), Allowance::Joins { remaining: secs(1010) }, after(10)]);
    let long = RestartStrategy::FailureRate { max_failures_per_interval: 1, failure_rate_interval: MAX_DURATION, delay: MAX_DURATION };
    let (budget, allowance) = RestartBudget::new(long).after_failure(Duration::MAX, JitterDraw::MIDDLE);
    assert_eq!(allowance, Allowance::After(MAX_DURATION));
    let (_, again) = budget.after_failure(Duration::MAX, JitterDraw::MIDDLE);
    assert_eq!(again, Allowance::Refused);
}

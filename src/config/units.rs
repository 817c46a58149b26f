//! Sizes and times as people write them: every time says its unit, a size without one is in bytes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Decimal digits after the point that a size may have.
const MAX_FRACTION_DIGITS: usize = 6;

/// Why a text is not a size or a time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct UnitError {
    text: String,
    expected: &'static str,
}

/// A number of bytes. Written as `"64MiB"`, `"1.5GB"`, or a plain number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(u64);

const SIZE_UNITS: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];
const SIZE_FORM: &str = "a size: bytes as a plain number, or with KiB, MiB, GiB, TiB (1024) or KB, MB, GB, TB (1000), as in \"64MiB\"";

impl ByteSize {
    /// A number of bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// A number of KiB.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 10))
    }

    /// A number of MiB.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }

    /// A number of GiB.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 30))
    }

    /// The bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The bytes, for in-memory sizes.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// A share of it.
    #[must_use]
    pub const fn percent(self, share: u64) -> Self {
        Self(self.0 / 100 * share + self.0 % 100 * share / 100)
    }
}

/// Digits, point and digits as (whole, fraction, digits of the fraction).
fn parse_number(text: &str) -> Option<(u64, u64, u32)> {
    let (whole, fraction) = text.split_once('.').map_or((text, None), |(whole, fraction)| (whole, Some(fraction)));
    let digits = |part: &str| store_api::ids::parse_decimal(part);
    let Some(fraction) = fraction else { return Some((digits(whole)?, 0, 0)) };
    if fraction.len() > MAX_FRACTION_DIGITS {
        return None;
    }
    Some((digits(whole)?, digits(fraction)?, u32::try_from(fraction.len()).ok()?))
}

/// `number` in `unit`s; `None` when it is not whole or does not fit.
fn scale((whole, fraction, n_digits): (u64, u64, u32), unit: u64) -> Option<u64> {
    let divisor = 10_u64.checked_pow(n_digits)?;
    let part = u128::from(fraction) * u128::from(unit);
    if part % u128::from(divisor) != 0 {
        return None;
    }
    whole.checked_mul(unit)?.checked_add(u64::try_from(part / u128::from(divisor)).ok()?)
}

impl FromStr for ByteSize {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let refused = || UnitError { text: text.to_owned(), expected: SIZE_FORM };
        let trimmed = text.trim();
        let at = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(at);
        let unit = unit.trim_start();
        let unit = if unit.is_empty() { "B" } else { unit };
        let factor = SIZE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|(_, factor)| *factor);
        let number = parse_number(number).ok_or_else(refused)?;
        factor.and_then(|factor| scale(number, factor)).map(Self).ok_or_else(refused)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |factor: u64| self.0 != 0 && self.0.is_multiple_of(factor);
        match SIZE_UNITS.iter().find(|(name, factor)| name.ends_with("iB") && fits(*factor)) {
            Some((name, factor)) => write!(f, "{}{name}", self.0 / factor),
            None => write!(f, "{}B", self.0),
        }
    }
}

/// A length of time. Written as `"250ms"`, `"30s"`, `"5m"`, `"2h"`, `"7d"`, or several of them from
/// the largest to the smallest, as in `"1h30m"`. Plain numbers are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan(Duration);

const TIME_UNITS: &[(&str, u64)] = &[("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
pub(super) const TIME_FORM: &str = "a time with its unit: ms, s, m, h or d, as in \"250ms\", \"30s\", \"1h30m\"";

impl TimeSpan {
    /// A number of milliseconds.
    #[must_use]
    pub const fn millis(n: u64) -> Self {
        Self(Duration::from_millis(n))
    }

    /// A number of seconds.
    #[must_use]
    pub const fn secs(n: u64) -> Self {
        Self(Duration::from_secs(n))
    }

    /// The time.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }

    /// Whole milliseconds.
    #[must_use]
    pub fn as_ms(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl FromStr for TimeSpan {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let refused = || UnitError { text: text.to_owned(), expected: TIME_FORM };
        let (mut rest, mut total_ms, mut last_unit) = (text.trim(), 0_u64, u64::MAX);
        if rest.is_empty() {
            return Err(refused());
        }
        while !rest.is_empty() {
            let at = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(refused)?;
            let (number, tail) = rest.split_at(at);
            let end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
            let (unit, next) = tail.split_at(end);
            let factor = TIME_UNITS.iter().find(|(name, _)| *name == unit.trim()).map(|(_, factor)| *factor).ok_or_else(refused)?;
            let number = store_api::ids::parse_decimal(number).ok_or_else(refused)?;
            // Each unit once, from the largest down, so that "5s5m" is not taken for something.
            if factor >= last_unit {
                return Err(refused());
            }
            last_unit = factor;
            total_ms = number.checked_mul(factor).and_then(|part| total_ms.checked_add(part)).ok_or_else(refused)?;
            rest = next;
        }
        Ok(Self::millis(total_ms))
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.as_ms();
        if left == 0 {
            return f.write_str("0s");
        }
        for (name, factor) in TIME_UNITS {
            if left >= *factor {
                write!(f, "{}{name}", left / factor)?;
                left %= factor;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_with_binary_and_decimal_units() {
        let cases = [
            ("0", 0),
            ("17", 17),
            ("17B", 17),
            ("64MiB", 64 << 20),
            ("64 MiB", 64 << 20),
            ("64mib", 64 << 20),
            ("1KB", 1000),
            ("1KiB", 1024),
            ("1.5GB", 1_500_000_000),
            ("0.5KiB", 512),
            ("2TiB", 2 << 40),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse::<ByteSize>().map(ByteSize::bytes), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn sizes_that_could_mean_two_things_are_refused() {
        for text in ["", "MiB", "-1", "64M", "64G", "1.5", "0.3B", "1,5GB", "1e3", "64MiBx", "99999999TiB", "1.2.3MB", "0x10", ".5MiB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn times_are_read_with_their_units() {
        let cases =
            [("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("7d", 604_800_000), ("1h30m", 5_400_000), ("0s", 0)];
        for (text, ms) in cases {
            assert_eq!(text.parse::<TimeSpan>().map(TimeSpan::as_ms), Ok(ms), "{text}");
        }
    }

    #[test]
    fn times_without_unit_or_out_of_order_are_refused() {
        for text in ["", "30", "1.5h", "-5s", "5 minutes", "5s5m", "5s5s", "s", "5M", "5S", "99999999999999999999s", "30 000"] {
            let refused = text.parse::<TimeSpan>();
            assert!(refused.is_err(), "{text:?} was accepted");
            assert!(refused.unwrap_err().to_string().contains("30s"), "the message shows the form");
        }
    }

    #[test]
    fn a_share_does_not_overflow() {
        assert_eq!(ByteSize::new(u64::MAX).percent(50).bytes(), u64::MAX / 2);
        assert_eq!(ByteSize::new(199).percent(50).bytes(), 99);
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(bytes: u64, ms in 0_u64..1 << 50) {
            prop_assert_eq!(ByteSize::new(bytes).to_string().parse(), Ok(ByteSize::new(bytes)));
            prop_assert_eq!(TimeSpan::millis(ms).to_string().parse(), Ok(TimeSpan::millis(ms)));
        }

        #[test]
        fn no_text_makes_the_parsers_panic(text: String) {
            let _ = text.parse::<ByteSize>();
            let _ = text.parse::<TimeSpan>();
        }
    }
}

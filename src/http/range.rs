//! The `Range` header (RFC 9110, section 14) for contents of any length that 64 bits can count.
//!
//! One range is served. A header that asks for several, that has another unit, or that is not
//! well-formed is not looked at, as the RFC allows: the answer is the whole content.

use std::ops::Range;

/// What a `Range` header asks of a content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// All of it.
    Whole,
    /// The bytes of this range, which lies inside the content and is not empty.
    Part(Range<u64>),
    /// A range that lies outside.
    Outside,
}

/// Reads the header against a content of `length` bytes.
#[must_use]
pub fn wanted(header: &str, length: u64) -> Wanted {
    let Some((unit, set)) = header.split_once('=') else { return Wanted::Whole };
    if !unit.trim().eq_ignore_ascii_case("bytes") || set.contains(',') {
        return Wanted::Whole;
    }
    let Some((first, last)) = set.trim().split_once('-') else { return Wanted::Whole };
    match (first.trim(), last.trim()) {
        ("", suffix) => number(suffix).map_or(Wanted::Whole, |suffix| part(length.saturating_sub(suffix), length)),
        (first, "") => number(first).map_or(Wanted::Whole, |first| part(first, length)),
        (first, last) => match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => part(first, last.saturating_add(1).min(length)),
            _ => Wanted::Whole,
        },
    }
}

const fn part(start: u64, end: u64) -> Wanted {
    if start < end { Wanted::Part(start..end) } else { Wanted::Outside }
}

/// Decimal digits; a number beyond 64 bits counts as the largest one, which no content reaches.
fn number(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_range_inside_the_content_is_served() {
        assert_eq!(wanted("bytes=0-0", 10), Wanted::Part(0..1));
        assert_eq!(wanted("bytes=2-5", 10), Wanted::Part(2..6));
        assert_eq!(wanted("bytes=9-", 10), Wanted::Part(9..10));
        assert_eq!(wanted("Bytes=-3", 10), Wanted::Part(7..10));
        assert_eq!(wanted("bytes=-30", 10), Wanted::Part(0..10));
    }

    #[test]
    fn the_largest_number_is_never_taken_for_zero() {
        assert_eq!(wanted("bytes=0-18446744073709551615", 10), Wanted::Part(0..10));
        assert_eq!(wanted("bytes=0-99999999999999999999999", 10), Wanted::Part(0..10));
        assert_eq!(wanted("bytes=18446744073709551615-", 10), Wanted::Outside);
        assert_eq!(wanted("bytes=18446744073709551615-18446744073709551615", u64::MAX), Wanted::Outside);
        assert_eq!(wanted("bytes=18446744073709551614-18446744073709551615", u64::MAX), Wanted::Part(u64::MAX - 1..u64::MAX));
    }

    #[test]
    fn nothing_of_an_empty_content_can_be_served() {
        for header in ["bytes=0-0", "bytes=0-", "bytes=-0", "bytes=-1", "bytes=5-9"] {
            assert_eq!(wanted(header, 0), Wanted::Outside, "{header}");
        }
    }

    #[test]
    fn ranges_past_the_end_are_outside() {
        assert_eq!(wanted("bytes=10-", 10), Wanted::Outside);
        assert_eq!(wanted("bytes=10-20", 10), Wanted::Outside);
        assert_eq!(wanted("bytes=-0", 10), Wanted::Outside);
    }

    #[test]
    fn what_is_not_one_byte_range_is_not_looked_at() {
        for header in
            ["", "bytes", "bytes=", "bytes=-", "bytes=5-2", "bytes=a-b", "bytes=+1-2", "bytes=0-1,3-4", "items=0-1", "bytes=1 2-3"]
        {
            assert_eq!(wanted(header, 10), Wanted::Whole, "{header}");
        }
    }

    proptest! {
        #[test]
        fn a_part_lies_inside_and_junk_does_no_harm(header in "(bytes=)?[0-9]{0,21}-?[0-9]{0,21}|.*", length: u64) {
            if let Wanted::Part(range) = wanted(&header, length) {
                prop_assert!(range.start < range.end && range.end <= length);
            }
        }
    }
}

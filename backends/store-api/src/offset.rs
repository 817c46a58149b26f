//! Byte positions within one subpartition of one attempt.
//!
//! ```text
//!   0            floor            committed reads            tail
//!   |--- gone ----|------------ held, readable ---------------|--- not written yet --->
//!                 ^ first byte still held                     ^ first byte not yet written
//! ```
//! Every range is half-open: `start` is inside, `end` is not.

use std::fmt;

/// An absolute byte position: the first byte *not yet* passed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Offset(u64);

impl Offset {
    /// The first byte of a subpartition.
    pub const ZERO: Self = Self(0);

    /// An offset of `bytes` from the start.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Bytes from the start.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The offset `bytes` further on; `None` when it would pass 2^64-1.
    #[must_use]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// Bytes from `earlier` to here; 0 when `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A half-open range of offsets, `start <= end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OffsetRange {
    start: Offset,
    end: Offset,
}

impl OffsetRange {
    /// From `start` (inside) to `end` (outside); `None` when `start > end`.
    #[must_use]
    pub fn new(start: Offset, end: Offset) -> Option<Self> {
        (start <= end).then_some(Self { start, end })
    }

    /// `length` bytes from `start`; `None` when the end would pass 2^64-1.
    #[must_use]
    pub fn at(start: Offset, length: u64) -> Option<Self> {
        Some(Self { start, end: start.checked_add(length)? })
    }

    /// First byte inside.
    #[must_use]
    pub const fn start(self) -> Offset {
        self.start
    }

    /// First byte after the range.
    #[must_use]
    pub const fn end(self) -> Offset {
        self.end
    }

    /// Number of bytes.
    #[must_use]
    pub const fn length(self) -> u64 {
        self.end.since(self.start)
    }

    /// Whether no byte is inside.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The bytes that are in both ranges; `None` when there are none.
    #[must_use]
    pub fn intersect(self, other: Self) -> Option<Self> {
        let start = self.start.max(other.start);
        let end = self.end.min(other.end);
        (start < end).then_some(Self { start, end })
    }
}

impl fmt::Display for OffsetRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn arithmetic_at_the_top_never_wraps() {
        let top = Offset::new(u64::MAX);
        assert_eq!(top.checked_add(1), None);
        assert_eq!(OffsetRange::at(top, 1), None);
        assert_eq!(OffsetRange::at(top, 0).map(OffsetRange::length), Some(0));
        assert_eq!(Offset::ZERO.since(top), 0);
    }

    proptest! {
        #[test]
        fn intersection_is_symmetric_and_inside_both(a: u64, b: u64, c: u64, d: u64) {
            let range = |x: u64, y: u64| OffsetRange::new(Offset::new(x.min(y)), Offset::new(x.max(y)));
            let (Some(one), Some(two)) = (range(a, b), range(c, d)) else { return Ok(()) };
            prop_assert_eq!(one.intersect(two), two.intersect(one));
            if let Some(both) = one.intersect(two) {
                prop_assert!(both.start() >= one.start() && both.end() <= one.end());
                prop_assert!(both.start() >= two.start() && both.end() <= two.end());
                prop_assert!(!both.is_empty());
            }
        }
    }
}

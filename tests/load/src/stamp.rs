//! Moments that processes of one machine can compare.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the system's monotonic clock, which all processes share.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or_default())
}

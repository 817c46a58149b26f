//! What the server and the routes know together about one connection: how many requests are under
//! way on it, since when it is idle, and whether a body was refused before it was read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use store_api::SharedClock;

/// The state of one connection. The server puts it, shared, into the extensions of each request.
#[derive(Debug)]
pub struct ConnectionState {
    clock: SharedClock,
    n_in_flight: AtomicUsize,
    idle_since_ms: AtomicU64,
    lingers: AtomicBool,
}

impl ConnectionState {
    /// A connection that has just been made.
    #[must_use]
    pub fn new(clock: SharedClock) -> Self {
        let now_ms = as_ms(clock.monotonic());
        Self { clock, n_in_flight: AtomicUsize::new(0), idle_since_ms: AtomicU64::new(now_ms), lingers: AtomicBool::new(false) }
    }

    /// Counts a request until the guard drops.
    #[must_use]
    pub fn enter(self: &Arc<Self>) -> InFlight {
        self.n_in_flight.fetch_add(1, Ordering::AcqRel);
        InFlight { state: self.clone() }
    }

    /// How long no request has been under way; `None` while one is.
    #[must_use]
    pub fn idle_for(&self) -> Option<Duration> {
        if self.n_in_flight.load(Ordering::Acquire) > 0 {
            return None;
        }
        let since = Duration::from_millis(self.idle_since_ms.load(Ordering::Acquire));
        Some(self.clock.monotonic().saturating_sub(since))
    }

    /// Says that an answer was given before the request's body was read: the connection reads on
    /// for a bounded time after it, so that the peer can read the answer.
    pub fn linger(&self) {
        self.lingers.store(true, Ordering::Release);
    }

    /// Whether [`ConnectionState::linger`] was called.
    #[must_use]
    pub fn lingers(&self) -> bool {
        self.lingers.load(Ordering::Acquire)
    }
}

/// One request under way.
#[derive(Debug)]
pub struct InFlight {
    state: Arc<ConnectionState>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.state.idle_since_ms.store(as_ms(self.state.clock.monotonic()), Ordering::Release);
        self.state.n_in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use store_api::clock::ManualClock;

    #[test]
    fn a_connection_is_idle_from_the_end_of_its_last_request() {
        let clock = Arc::new(ManualClock::new(0));
        let state = Arc::new(ConnectionState::new(clock.clone()));
        clock.advance(Duration::from_secs(3));
        assert_eq!(state.idle_for(), Some(Duration::from_secs(3)));
        let (one, two) = (state.enter(), state.enter());
        clock.advance(Duration::from_secs(3));
        drop(one);
        assert_eq!(state.idle_for(), None);
        drop(two);
        clock.advance(Duration::from_secs(1));
        assert_eq!(state.idle_for(), Some(Duration::from_secs(1)));
    }
}

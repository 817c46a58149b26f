//! Tests of waits, without waiting.

use std::pin::pin;
use std::time::Duration;
use store_api::clock::ManualClock;

const STEP: Duration = Duration::from_millis(100);

/// Runs `future` to its end while the clock moves on by itself, one step whenever nothing else can
/// go on.
pub(crate) async fn hasten<T>(clock: &ManualClock, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    // Ends with the future; a test that hangs is ended by its runner.
    loop {
        tokio::select! {
            biased;
            value = &mut future => return value,
            () = settle() => clock.advance(STEP),
        }
    }
}

async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

//! The client against a server that breaks: cuts, lost replies, refusals, damage, silence.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test ends by panicking, and bounds its own time"
)]

mod fake;
mod fetches;
mod reads;
mod store;
mod streams;
mod writes;

use forebay_client::{Client, DatasetHandle, RetryPolicy};
use std::time::Duration;

pub(crate) fn client(url: &str) -> Client {
    let policy = RetryPolicy {
        max_attempts: 30,
        deadline: Duration::from_secs(20),
        first_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(3),
    };
    Client::builder(url).retry(policy).seed(1).build().unwrap()
}

/// A client that gives up soon.
pub(crate) fn hasty(url: &str) -> Client {
    let policy = RetryPolicy { max_attempts: 3, first_backoff: Duration::from_millis(1), ..RetryPolicy::default() };
    Client::builder(url).retry(policy).stall_timeout(Duration::from_millis(200)).seed(1).build().unwrap()
}

pub(crate) fn stage(client: &Client) -> DatasetHandle {
    client.job("j").unwrap().dataset("d").unwrap()
}

/// Fails the test instead of hanging it.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("the client hangs")
}

pub(crate) fn n_seeds() -> u64 {
    if std::env::var_os("FOREBAY_LONG").is_some() { 500 } else { 25 }
}

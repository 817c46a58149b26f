//! Many clients at once, each a task of its own.

use crate::error::{LoadError, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use store_api::TaskGroup;
use tokio::sync::mpsc;

/// Ends what still runs when nobody waits for it any more.
struct Ended(TaskGroup);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Runs all of the work side by side and waits for it. The first failure ends the rest.
pub(crate) async fn all<T: Send + 'static>(work: Vec<impl Future<Output = Result<T>> + Send + 'static>) -> Result<Vec<T>> {
    let group = TaskGroup::new();
    let _ended = Ended(group.clone());
    let n = work.len();
    let (sender, mut results) = mpsc::channel(n.max(1));
    for (number, one) in work.into_iter().enumerate() {
        let sender = sender.clone();
        group.spawn(async move {
            // Fails only when an earlier failure has ended the whole crew.
            let _ = sender.send((number, one.await)).await;
        });
    }
    drop(sender);
    let mut found = Vec::with_capacity(n);
    while let Some((number, result)) = results.recv().await {
        found.push((number, result?));
    }
    if found.len() != n {
        return Err(LoadError::check("a client ended without a result"));
    }
    found.sort_by_key(|(number, _)| *number);
    Ok(found.into_iter().map(|(_, value)| value).collect())
}

/// Numbers that a crew takes work by, each handed out once.
#[derive(Debug, Clone)]
pub(crate) struct Tickets {
    next: Arc<AtomicU64>,
    end: u64,
}

impl Tickets {
    /// The numbers below `end`.
    pub(crate) fn new(end: u64) -> Self {
        Self { next: Arc::default(), end }
    }

    /// The next one; `None` when all are taken.
    pub(crate) fn take(&self) -> Option<u64> {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        (ticket < self.end).then_some(ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn results_come_in_order_and_every_ticket_once() {
        let tickets = Tickets::new(100);
        let take = |tickets: Tickets| async move {
            let mut taken = Vec::new();
            while let Some(ticket) = tickets.take() {
                taken.push(ticket);
                tokio::task::yield_now().await;
            }
            Ok(taken)
        };
        let mut taken = all((0..7).map(|_| take(tickets.clone())).collect()).await.unwrap().concat();
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..100));
        let numbers = all((0..50).map(|number| async move { Ok(number) }).collect()).await.unwrap();
        assert!(numbers.into_iter().eq(0..50));
    }

    #[tokio::test]
    async fn one_failure_fails_the_crew() {
        let work = |number: u32| async move {
            if number == 3 { Err(LoadError::check("three")) } else { std::future::pending::<Result<()>>().await }
        };
        assert!(all((0..5).map(work).collect()).await.is_err());
    }
}

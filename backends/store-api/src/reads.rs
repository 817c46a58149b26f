//! Memory for bytes on their way to readers.
//!
//! A read reserves before it makes a buffer, and the reservation goes with the bytes: it is given back
//! when the last slice of them is dropped, wherever that is (in a body, in the queue of a socket). So a
//! reader that takes nothing holds what it was given, and no more is read for it.
//!
//! ```text
//!   0                 1/4                                             limit
//!   |---- ample -------|---- short ---------------------------------------|---- full ----
//!     reads as large     reads of a 512th of the budget (64 KiB at the     a reader waits for
//!     as the store        least), none ahead of the reader                  its share, then is
//!     likes, one ahead                                                      told to come again
//! ```
//! A store reads whole blocks, so a share is never smaller than one of its blocks. A slow reader holds
//! at most two shares (one that is being sent, and one behind it), so well over 200 of them fit, also
//! when the first ones came while there was plenty.

use crate::budget::{BudgetError, ByteBudget, Permit};
use crate::clock::SharedClock;
use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesOrdered};
use std::sync::Arc;
use std::time::Duration;

/// Size of a budget that a store makes for itself alone, in bytes.
const OWN_BYTES: u64 = 64 * 1024 * 1024;
/// Patience of such a budget.
const OWN_PATIENCE: Duration = Duration::from_secs(10);
/// Parts into which a budget that is short is cut.
const N_SHARES: u64 = 512;
/// Smallest share, in bytes: below it the calls cost more than the bytes.
const MIN_SHARE: u64 = 64 * 1024;
/// The part of a budget, as a divisor, up to which there is plenty.
const AMPLE: u64 = 4;
/// Reads of one stream that are under way at once: one that is waited for, one ahead.
const N_UNDER_WAY: usize = 2;

/// A bounded number of bytes on their way to readers. Cloning gives another handle to the same one.
#[derive(Debug, Clone)]
pub struct ReadBudget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    bytes: ByteBudget,
    patience: Duration,
}

impl PartialEq for ReadBudget {
    /// Whether both are handles to one budget.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Eq for ReadBudget {}

/// Bytes and the reservation that pays for them.
struct Charged {
    bytes: Bytes,
    _permit: Permit,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Ties bytes to the reservation for their buffer: it is given back with their last slice.
#[must_use]
pub fn charged(bytes: Bytes, permit: Permit) -> Bytes {
    Bytes::from_owner(Charged { bytes, _permit: permit })
}

impl ReadBudget {
    /// A budget of `limit` bytes of which a reader waits for its share at most `patience`.
    #[must_use]
    pub fn new(limit: u64, patience: Duration, clock: SharedClock) -> Self {
        Self { shared: Arc::new(Shared { bytes: ByteBudget::new(limit, clock), patience }) }
    }

    /// The budget of a store that shares none: 64 MiB, for which a reader waits 10 s.
    #[must_use]
    pub fn own(clock: SharedClock) -> Self {
        Self::new(OWN_BYTES, OWN_PATIENCE, clock)
    }

    /// The size of the budget, in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.shared.bytes.limit_bytes()
    }

    /// Bytes that are reserved now.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.shared.bytes.used_bytes()
    }

    /// The budget that reads are charged to. For whoever shows the memory of a node as a whole.
    #[must_use]
    pub fn budget(&self) -> ByteBudget {
        self.shared.bytes.clone()
    }

    fn is_ample(&self) -> bool {
        self.used_bytes().saturating_mul(AMPLE) <= self.limit_bytes()
    }

    /// How much the next read may take that would like `wanted` bytes. A store rounds it up to a block.
    #[must_use]
    pub fn share(&self, wanted: u64) -> u64 {
        if self.is_ample() { wanted } else { wanted.min((self.limit_bytes() / N_SHARES).max(MIN_SHARE)) }
    }

    /// Reserves memory for a buffer of `bytes`, waiting for it as long as the budget's patience. A
    /// block that is larger than the whole budget gets all of it: what was written under other
    /// settings stays readable. Cancel-safe. Errors: `Exhausted`.
    pub async fn reserve(&self, bytes: u64) -> Result<Permit, BudgetError> {
        let Shared { bytes: budget, patience } = &*self.shared;
        budget.reserve(bytes.min(budget.limit_bytes()), *patience).await
    }

    /// Reserves for a read ahead of the reader, only while there is plenty.
    fn reserve_ahead(&self, bytes: u64) -> Option<Permit> {
        if self.is_ample() { self.shared.bytes.try_reserve(bytes).ok() } else { None }
    }
}

/// Runs the reads of one reader in their order, one ahead while there is plenty of memory.
///
/// `next` makes the next read and says how many bytes its buffer takes; it may ask
/// [`ReadBudget::share`] first. `read` runs one with the memory for it, or with why there is none. The
/// stream starts no read before it is polled, and never waits for memory while it holds some for a
/// read that has not begun. Cancel-safe: drop the stream.
pub fn paced<S, T, N, R, F>(budget: ReadBudget, next: N, read: R) -> BoxStream<'static, T>
where
    S: Send + 'static,
    T: Send + 'static,
    N: FnMut(&ReadBudget) -> Option<(u64, S)> + Send + 'static,
    R: Fn(S, Result<Permit, BudgetError>) -> F + Send + Sync + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let paced = Paced { budget, next, read: Arc::new(read), peeked: None, under_way: FuturesOrdered::new() };
    futures::stream::unfold(paced, |mut paced| async move { paced.step().await.map(|step| (step, paced)) }).boxed()
}

struct Paced<S, T, N, R> {
    budget: ReadBudget,
    next: N,
    read: Arc<R>,
    /// A read that was made and could not begin ahead.
    peeked: Option<(u64, S)>,
    under_way: FuturesOrdered<BoxFuture<'static, T>>,
}

impl<S, T, N, R, F> Paced<S, T, N, R>
where
    S: Send + 'static,
    T: Send + 'static,
    N: FnMut(&ReadBudget) -> Option<(u64, S)>,
    R: Fn(S, Result<Permit, BudgetError>) -> F + Send + Sync + 'static,
    F: Future<Output = T> + Send + 'static,
{
    async fn step(&mut self) -> Option<T> {
        if self.under_way.is_empty() {
            let (bytes, step) = self.take()?;
            let (budget, read) = (self.budget.clone(), self.read.clone());
            self.under_way.push_back(Box::pin(async move {
                let permit = budget.reserve(bytes).await;
                read(step, permit).await
            }));
        }
        while self.under_way.len() < N_UNDER_WAY && self.budget.is_ample() {
            let Some((bytes, step)) = self.take() else { break };
            match self.budget.reserve_ahead(bytes) {
                Some(permit) => {
                    let read = self.read.clone();
                    self.under_way.push_back(Box::pin(async move { read(step, Ok(permit)).await }));
                }
                None => {
                    self.peeked = Some((bytes, step));
                    break;
                }
            }
        }
        self.under_way.next().await
    }

    fn take(&mut self) -> Option<(u64, S)> {
        self.peeked.take().or_else(|| (self.next)(&self.budget))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const KIB: u64 = 1024;

    fn budget(limit: u64) -> (ReadBudget, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::new(0));
        (ReadBudget::new(limit, Duration::from_secs(10), clock.clone()), clock)
    }

    /// A reader of `n` reads of as much as it may get, at most `wanted`; and how many have begun.
    fn reader(budget: &ReadBudget, n: usize, wanted: u64) -> (BoxStream<'static, Result<Bytes, BudgetError>>, Arc<AtomicUsize>) {
        let begun = Arc::new(AtomicUsize::new(0));
        let (counted, mut left) = (begun.clone(), n);
        let next = move |budget: &ReadBudget| {
            left = left.checked_sub(1)?;
            let bytes = budget.share(wanted);
            Some((bytes, bytes))
        };
        let stream = paced(budget.clone(), next, move |bytes, permit| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move { Ok(charged(Bytes::from(vec![7; usize::try_from(bytes).unwrap()]), permit?)) }
        });
        (stream, begun)
    }

    #[tokio::test]
    async fn bytes_are_charged_until_their_last_slice_is_gone() {
        let (budget, _) = budget(1024 * KIB);
        let permit = budget.reserve(100).await.unwrap();
        let bytes = charged(Bytes::from_static(&[1; 100]), permit);
        let slice = bytes.slice(40..41);
        drop(bytes);
        assert_eq!(budget.used_bytes(), 100);
        drop(slice);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[tokio::test]
    async fn a_stream_gives_every_byte_in_order_and_holds_nothing_at_its_end() {
        let (budget, _) = budget(64 * KIB);
        let (mut stream, begun) = reader(&budget, 20, 10 * KIB);
        let mut n_bytes = 0;
        while let Some(bytes) = stream.next().await {
            n_bytes += bytes.unwrap().len();
        }
        assert_eq!((n_bytes, begun.load(Ordering::SeqCst)), (200 * 1024, 20));
        assert_eq!(budget.used_bytes(), 0);
    }

    #[tokio::test]
    async fn two_hundred_readers_that_take_nothing_fit_and_the_next_is_told_to_wait() {
        let (budget, clock) = budget(96 * 1024 * KIB);
        let mut held = Vec::new();
        for number in 0..200 {
            let (mut stream, begun) = reader(&budget, 1000, 512 * KIB);
            let first = stream.next().await.unwrap();
            assert!(first.is_ok(), "reader {number}");
            assert!(begun.load(Ordering::SeqCst) <= N_UNDER_WAY);
            held.push((stream, first));
        }
        assert!(budget.used_bytes() <= budget.limit_bytes());
        let rest = budget.shared.bytes.try_reserve(budget.limit_bytes() - budget.used_bytes()).unwrap();
        let (mut late, _) = reader(&budget, 1, 512 * KIB);
        let waiting = late.next();
        let refused = tokio::select! {
            biased;
            refused = waiting => refused,
            () = async { for _ in 0..20 { tokio::task::yield_now().await; clock.advance(Duration::from_secs(1)); } std::future::pending::<()>().await } => None,
        };
        assert!(matches!(refused, Some(Err(BudgetError::Exhausted { .. }))), "{refused:?}");
        drop((rest, held));
        assert_eq!(budget.used_bytes(), 0);
    }

    #[tokio::test]
    async fn nothing_is_read_ahead_when_memory_is_short() {
        let (budget, _) = budget(1024 * KIB);
        let _others = budget.reserve(512 * KIB).await.unwrap();
        let (mut stream, begun) = reader(&budget, 10, 512 * KIB);
        let first = stream.next().await.unwrap().unwrap();
        assert_eq!((first.len() as u64, begun.load(Ordering::SeqCst)), (MIN_SHARE, 1));
        drop(first);
        assert_eq!(budget.used_bytes(), 512 * KIB);
    }

    #[tokio::test]
    async fn a_block_larger_than_the_budget_is_read_all_the_same() {
        let (budget, _) = budget(10);
        assert_eq!(budget.reserve(11).await.unwrap().bytes(), 10);
    }
}

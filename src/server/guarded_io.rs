//! A connection's socket, guarded: a peer that takes no bytes for too long is an error, and a
//! connection that refused a body early reads on for a bounded time after its answer, so that the
//! peer can still read that answer.

use crate::http::ConnectionState;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use store_api::SharedClock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

type Timer = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Bytes thrown away in one step while a refused body is drained.
const DRAIN_STEP: usize = 16 * 1024;

/// The limits of a guarded socket.
#[derive(Debug, Clone, Copy)]
pub(super) struct IoLimits {
    /// Longest time without a byte taken by the peer while there is something to send.
    pub(super) write_stall: Duration,
    /// Longest time to read on after an early refusal.
    pub(super) linger: Duration,
    /// Most bytes to read on after an early refusal.
    pub(super) linger_bytes: u64,
}

/// The socket. See the module.
pub(super) struct GuardedIo<T> {
    inner: T,
    limits: IoLimits,
    clock: SharedClock,
    state: Arc<ConnectionState>,
    /// When the peer was first found to take nothing; `None` while bytes flow.
    stalled_since: Option<Duration>,
    stall_timer: Option<Timer>,
    linger_timer: Option<Timer>,
    drained_bytes: u64,
    is_write_shut: bool,
}

impl<T> GuardedIo<T> {
    pub(super) fn new(inner: T, limits: IoLimits, clock: SharedClock, state: Arc<ConnectionState>) -> Self {
        Self {
            inner,
            limits,
            clock,
            state,
            stalled_since: None,
            stall_timer: None,
            linger_timer: None,
            drained_bytes: 0,
            is_write_shut: false,
        }
    }

    fn timer(&self, wait: Duration) -> Timer {
        let clock = self.clock.clone();
        Box::pin(async move { clock.sleep(wait).await })
    }

    /// What a write came to, unless the peer has taken nothing for too long. One timer serves a
    /// whole stall period, however often the peer takes a little.
    fn watch<V>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<V>>) -> Poll<io::Result<V>> {
        if written.is_ready() {
            self.stalled_since = None;
            return written;
        }
        let now = self.clock.monotonic();
        let since = *self.stalled_since.get_or_insert(now);
        loop {
            let left = self.limits.write_stall.saturating_sub(now.saturating_sub(since));
            if left.is_zero() {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes no bytes")));
            }
            if self.stall_timer.is_none() {
                self.stall_timer = Some(self.timer(left));
            }
            let Some(timer) = &mut self.stall_timer else { return Poll::Pending };
            ready!(timer.as_mut().poll(context));
            self.stall_timer = None;
        }
    }
}

impl<T: AsyncRead + Unpin> GuardedIo<T> {
    /// Reads and drops what the peer still sends, until it stops or a limit is reached.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.linger_timer.is_none() {
            self.linger_timer = Some(self.timer(self.limits.linger));
        }
        if let Some(timer) = &mut self.linger_timer
            && timer.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(());
        }
        let mut scratch = [0_u8; DRAIN_STEP];
        // Ends at the latest after `linger_bytes`.
        while self.drained_bytes < self.limits.linger_bytes {
            let mut buffer = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(&mut self.inner).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {
                    self.drained_bytes = self.drained_bytes.saturating_add(buffer.filled().len() as u64);
                }
                Ok(()) | Err(_) => return Poll::Ready(()),
            }
        }
        Poll::Ready(())
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for GuardedIo<T> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(context, buffer)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for GuardedIo<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write(context, bytes);
        this.watch(context, written)
    }

    fn poll_write_vectored(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write_vectored(context, bytes);
        this.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.inner).poll_flush(context);
        this.watch(context, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.is_write_shut {
            let shut = Pin::new(&mut this.inner).poll_shutdown(context);
            ready!(this.watch(context, shut))?;
            this.is_write_shut = true;
        }
        if this.state.lingers() {
            ready!(this.poll_linger(context));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_time::hasten;
    use store_api::clock::{ManualClock, within};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    fn guarded<T>(inner: T, clock: &Arc<ManualClock>) -> (GuardedIo<T>, Arc<ConnectionState>) {
        let state = Arc::new(ConnectionState::new(clock.clone()));
        let limits = IoLimits { write_stall: Duration::from_secs(3), linger: Duration::from_secs(2), linger_bytes: 100_000 };
        (GuardedIo::new(inner, limits, clock.clone(), state.clone()), state)
    }

    fn clock() -> Arc<ManualClock> {
        Arc::new(ManualClock::new(0))
    }

    #[tokio::test]
    async fn a_peer_that_takes_nothing_is_an_error_after_the_limit() {
        let (clock, (near, _far)) = (clock(), tokio::io::duplex(16));
        let (mut io, _) = guarded(near, &clock);
        let refused = hasten(&clock, io.write_all(&[0; 17])).await.map_err(|error| error.kind());
        assert_eq!(refused, Err(io::ErrorKind::TimedOut));
    }

    #[tokio::test]
    async fn a_peer_that_takes_a_little_now_and_then_is_not_cut() {
        let (clock, (near, mut far)) = (clock(), tokio::io::duplex(1));
        let (mut io, _) = guarded(near, &clock);
        let reader = async {
            for _ in 0..20 {
                store_api::Clock::sleep(clock.as_ref(), Duration::from_secs(2)).await;
                far.read_u8().await?;
            }
            Ok::<(), io::Error>(())
        };
        let (written, read) = hasten(&clock, async { tokio::join!(io.write_all(&[0; 20]), reader) }).await;
        assert!(written.is_ok() && read.is_ok());
    }

    #[tokio::test]
    async fn after_a_refusal_the_rest_is_read_up_to_the_limit_and_no_further() {
        let (clock, (near, mut far)) = (clock(), tokio::io::duplex(1000));
        let (mut io, state) = guarded(near, &clock);
        state.linger();
        let flood = async {
            let mut n_sent = 0_usize;
            while far.write_all(&[0; 1000]).await.is_ok() {
                n_sent += 1000;
            }
            n_sent
        };
        let close = async {
            io.shutdown().await.expect("shut down");
            drop(io);
        };
        let (n_sent, ()) = tokio::join!(flood, close);
        assert!((100_000..120_000).contains(&n_sent), "{n_sent} bytes were taken");
    }

    #[tokio::test]
    async fn a_refused_peer_that_goes_silent_is_not_waited_for() {
        let (clock, (near, _far)) = (clock(), tokio::io::duplex(1000));
        let (mut io, state) = guarded(near, &clock);
        state.linger();
        let closed = hasten(&clock, within(clock.as_ref(), Duration::from_secs(4), io.shutdown())).await;
        assert!(closed.is_some_and(|closed| closed.is_ok()));
    }
}

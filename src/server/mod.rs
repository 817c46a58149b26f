//! The listener: one port for HTTP/1.1 and HTTP/2, with or without TLS.
//!
//! | part | what it is |
//! |---|---|
//! | `connection` | one connection, from its handshake to its end |
//! | `guarded_io` | its socket: write stalls, reading on after an early refusal |
//! | `tls` | certificate and key |
//!
//! It knows the router as a black box and nothing of the service. Every wait has a limit of
//! [`ServerConfig`]; a peer that does nothing is closed, and never holds up the others or the end.

mod connection;
mod guarded_io;
mod tls;

#[cfg(test)]
mod tests;

pub use connection::PeerAddress;
pub use tls::TlsFiles;

use crate::shutdown::Shutdown;
use axum::Router;
use connection::Shared;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use store_api::{SharedClock, TaskGroup};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// First pause after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause after accepts that failed one after the other.
const MAX_ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Failing accepts are logged once in this time.
const ACCEPT_LOG_PERIOD: Duration = Duration::from_secs(10);
/// How long connections get to notice that they shall end at once.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// How the port is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// The address to bind; port 0 takes any free one.
    pub listen: SocketAddr,
    /// Certificate and key; plain HTTP without.
    pub tls: Option<TlsFiles>,
    /// Most connections at a time; further ones wait in the kernel's queue.
    pub max_connections: usize,
    /// Longest time for a TLS handshake.
    pub handshake_timeout: Duration,
    /// Longest time for the head of a request, from the connection's start or the end of the
    /// answer before: so also how long a connection may be idle.
    pub head_timeout: Duration,
    /// Largest head, in bytes.
    pub head_bytes: usize,
    /// Longest time without a byte taken by a peer that is being sent something.
    pub write_stall: Duration,
    /// How long a connection is read on after a body was refused early.
    pub linger: Duration,
    /// How many bytes of a body that was refused early are read, at most.
    pub linger_bytes: u64,
    /// HTTP/2: bytes that a client may send ahead on one stream. All connections together hold at most
    /// `max_connections` x `h2_max_streams` x this (and 64 KiB a connection at the least).
    pub h2_stream_window_bytes: u32,
    /// HTTP/2: streams of one connection at a time.
    pub h2_max_streams: u32,
    /// How long requests under way may take once the server ends.
    pub grace: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7440)),
            tls: None,
            max_connections: 256,
            handshake_timeout: Duration::from_secs(10),
            head_timeout: Duration::from_secs(30),
            head_bytes: 64 * 1024,
            write_stall: Duration::from_secs(30),
            linger: Duration::from_secs(5),
            linger_bytes: 16 * 1024 * 1024,
            h2_stream_window_bytes: 16 * 1024,
            h2_max_streams: 32,
            grace: Duration::from_secs(30),
        }
    }
}

/// Why a port is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be bound.
    #[error("{listen} cannot be bound")]
    Bind {
        /// The address.
        listen: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// TLS cannot be set up.
    #[error("TLS: {what}")]
    Tls {
        /// What is wrong.
        what: &'static str,
        /// The cause; may name paths.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A bound port that is not served yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<tokio_rustls::TlsAcceptor>,
    config: ServerConfig,
    clock: SharedClock,
}

impl Server {
    /// Binds the port. Errors: both of [`ServerError`].
    pub async fn bind(config: ServerConfig, clock: SharedClock) -> Result<Self, ServerError> {
        let tls = config.tls.as_ref().map(TlsFiles::acceptor).transpose()?;
        let refuse = |source| ServerError::Bind { listen: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(refuse)?;
        let address = listener.local_addr().map_err(refuse)?;
        Ok(Self { listener, address, tls, config, clock })
    }

    /// The address that was bound.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` begins; then takes no new connection, lets requests under way finish
    /// for the grace time, and ends. A second wish to end cuts the grace time short. Returns whether
    /// all requests could finish.
    pub async fn serve(self, router: Router, shutdown: Shutdown) -> bool {
        let Self { listener, tls, config, clock, .. } = self;
        let (grace, max_connections) = (config.grace, config.max_connections);
        // Connections get a wish of their own, so that the end of the grace time ends them as well.
        let connection_end = Shutdown::new();
        let streams = TaskGroup::new();
        let shared =
            Arc::new(Shared { config, router, tls, clock: clock.clone(), shutdown: connection_end.clone(), streams: streams.clone() });
        let connections = TaskGroup::new();
        accept_all(listener, &shared, &connections, &shutdown, max_connections).await;
        connection_end.begin();
        let have_ended = tokio::select! {
            have_ended = connections.close(clock.as_ref(), grace) => have_ended,
            () = shutdown.now() => false,
        };
        connection_end.end_now();
        connections.close(clock.as_ref(), END_PATIENCE).await;
        streams.close(clock.as_ref(), END_PATIENCE).await;
        have_ended
    }
}

/// Accepts connections until the wish to end.
async fn accept_all(listener: TcpListener, shared: &Arc<Shared>, connections: &TaskGroup, shutdown: &Shutdown, max_connections: usize) {
    let slots = Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS)));
    let mut trouble = AcceptTrouble::default();
    // Ends with the server.
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.begun() => return,
            accepted = accept_one(&listener, &slots) => accepted,
        };
        match accepted {
            Ok((slot, socket, peer)) => {
                trouble.pause = None;
                let serving = shared.clone().serve(socket, peer);
                connections.spawn_to_end(async move {
                    serving.await;
                    drop(slot);
                });
            }
            Err(error) => {
                let pause = trouble.note(&error, shared.clock.monotonic());
                tokio::select! {
                    () = shutdown.begun() => return,
                    () = shared.clock.sleep(pause) => {}
                }
            }
        }
    }
}

async fn accept_one(listener: &TcpListener, slots: &Arc<Semaphore>) -> io::Result<(OwnedSemaphorePermit, TcpStream, SocketAddr)> {
    let slot = slots.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (socket, peer) = listener.accept().await?;
    Ok((slot, socket, peer))
}

/// Accepts that fail one after the other, as when descriptors run out: pauses grow, and the log
/// gets one line in a while.
#[derive(Debug, Default)]
struct AcceptTrouble {
    pause: Option<Duration>,
    logged_at: Option<Duration>,
    n_unlogged: u64,
}

impl AcceptTrouble {
    fn note(&mut self, error: &io::Error, now: Duration) -> Duration {
        self.n_unlogged += 1;
        if self.logged_at.is_none_or(|at| now.saturating_sub(at) >= ACCEPT_LOG_PERIOD) {
            tracing::warn!(%error, n_failures = self.n_unlogged, "connections cannot be accepted");
            (self.logged_at, self.n_unlogged) = (Some(now), 0);
        }
        let pause = self.pause.map_or(ACCEPT_PAUSE, |pause| pause.saturating_mul(2).min(MAX_ACCEPT_PAUSE));
        self.pause = Some(pause);
        pause
    }
}

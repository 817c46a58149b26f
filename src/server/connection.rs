//! One connection: HTTP/1.1 or HTTP/2, whichever the peer speaks, until the peer leaves, is idle
//! for too long, or the server ends.

use super::ServerConfig;
use super::guarded_io::{GuardedIo, IoLimits};
use crate::http::{ConnectionState, InFlight};
use crate::shutdown::Shutdown;
use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use store_api::clock::within;
use store_api::{SharedClock, TaskGroup};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tower::util::ServiceExt as _;

/// How long a connection without a request may stay once the server ends.
const IDLE_AT_END: Duration = Duration::from_millis(300);
/// How often an idle connection is looked at once the server ends.
const TICK_AT_END: Duration = Duration::from_millis(100);

/// The address of the peer, in the extensions of each request.
#[derive(Debug, Clone, Copy)]
pub struct PeerAddress(pub SocketAddr);

/// What every connection of a server shares.
pub(super) struct Shared {
    pub(super) config: ServerConfig,
    pub(super) router: Router,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) clock: SharedClock,
    pub(super) shutdown: Shutdown,
    /// Tasks of HTTP/2 streams.
    pub(super) streams: TaskGroup,
}

#[derive(Clone)]
struct StreamExecutor(TaskGroup);

impl<F: Future + Send + 'static> hyper::rt::Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        self.0.spawn(async move {
            stream.await;
        });
    }
}

impl Shared {
    fn builder(&self) -> Builder<StreamExecutor> {
        let mut builder = Builder::new(StreamExecutor(self.streams.clone()));
        let config = &self.config;
        builder.http1().timer(TokioTimer::new()).header_read_timeout(config.head_timeout).max_buf_size(config.head_bytes);
        let connection_window = config.h2_stream_window_bytes.saturating_mul(config.h2_max_streams).clamp(MIN_WINDOW, MAX_WINDOW);
        builder
            .http2()
            .timer(TokioTimer::new())
            .initial_stream_window_size(config.h2_stream_window_bytes)
            .initial_connection_window_size(connection_window)
            .max_concurrent_streams(config.h2_max_streams)
            .max_header_list_size(u32::try_from(config.head_bytes).unwrap_or(u32::MAX))
            .keep_alive_interval(config.head_timeout)
            .keep_alive_timeout(config.head_timeout);
        builder
    }

    /// Serves a connection to its end. Errors end it and are worth no more than a debug line: they
    /// are the peer's.
    pub(super) async fn serve(self: Arc<Self>, socket: TcpStream, peer: SocketAddr) {
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "the socket takes no options");
        }
        let state = Arc::new(ConnectionState::new(self.clock.clone()));
        let limits = IoLimits { write_stall: self.config.write_stall, linger: self.config.linger, linger_bytes: self.config.linger_bytes };
        let io = GuardedIo::new(socket, limits, self.clock.clone(), state.clone());
        let Some(acceptor) = &self.tls else { return self.serve_http(io, peer, state).await };
        let handshake = within(self.clock.as_ref(), self.config.handshake_timeout, acceptor.accept(io));
        let shaken = tokio::select! {
            shaken = handshake => shaken,
            () = self.shutdown.begun() => return,
        };
        match shaken {
            Some(Ok(stream)) => self.serve_http(stream, peer, state).await,
            Some(Err(error)) => tracing::debug!(%error, "the TLS handshake failed"),
            None => tracing::debug!("the TLS handshake took too long"),
        }
    }

    async fn serve_http<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(&self, io: I, peer: SocketAddr, state: Arc<ConnectionState>) {
        let router = self.router.clone();
        let request_state = state.clone();
        let service =
            hyper::service::service_fn(move |request: Request<Incoming>| answer(router.clone(), request, peer, request_state.clone()));
        let builder = self.builder();
        let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
        let (mut tick, mut idle_limit) = (self.config.head_timeout / 2, self.config.head_timeout);
        let mut is_ending = false;
        // Ends with the connection, with the server, or when the connection stays idle.
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a connection ended with an error");
                    }
                    return;
                }
                () = self.shutdown.now() => return,
                () = self.shutdown.begun(), if !is_ending => {
                    (is_ending, tick, idle_limit) = (true, TICK_AT_END, IDLE_AT_END);
                    connection.as_mut().graceful_shutdown();
                }
                () = self.clock.sleep(tick) => {
                    if state.idle_for().is_none_or(|idle| idle < idle_limit) {
                        continue;
                    }
                    if is_ending {
                        return;
                    }
                    (is_ending, tick, idle_limit) = (true, TICK_AT_END, idle_limit.saturating_add(IDLE_AT_END));
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// Window with which every HTTP/2 connection starts, in bytes; no setting makes it smaller.
const MIN_WINDOW: u32 = (1 << 16) - 1;
/// Largest window that HTTP/2 knows, in bytes.
const MAX_WINDOW: u32 = (1 << 31) - 1;

async fn answer(
    router: Router,
    request: Request<Incoming>,
    peer: SocketAddr,
    state: Arc<ConnectionState>,
) -> Result<Response<TrackedBody>, Infallible> {
    let in_flight = state.enter();
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(PeerAddress(peer));
    request.extensions_mut().insert(state);
    let response = router.oneshot(request).await?;
    Ok(response.map(|inner| TrackedBody { inner, _in_flight: in_flight }))
}

/// A body that counts its request as under way until it is dropped.
struct TrackedBody {
    inner: Body,
    _in_flight: InFlight,
}

impl http_body::Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

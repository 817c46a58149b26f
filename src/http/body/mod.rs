//! Bodies that stream. A request's body is read with a limit on how slow it may come; an answer's
//! body gives up what it holds when its reader stops reading.

use super::error::{Answer, Refusal};
use axum::body::Body;
use bytes::Bytes;
use forebay_protocol::ErrorCode;
use futures::stream::{BoxStream, StreamExt as _};
use http_body::{Body as _, Frame, SizeHint};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use store_api::clock::within;
use store_api::{SharedClock, TaskGroup};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Bytes that must come within one stall time, unless the body ends before.
const PROGRESS_BYTES: u64 = 1024;
/// Largest piece that is handed on at once, so that progress shows on slow connections.
const PIECE_BYTES: usize = 256 * 1024;

/// What a body is that does not end as it should.
type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A request's body. Nothing of it is read, and no `100 Continue` is sent, before the first call.
pub(crate) struct RequestBody {
    body: Body,
    clock: SharedClock,
    stall: Duration,
    /// Time spent waiting and bytes got since progress was last seen.
    waited: Duration,
    n_since_progress: u64,
    /// Bytes still announced by Content-Length.
    missing: Option<u64>,
}

impl RequestBody {
    pub(crate) fn new(body: Body, length: Option<u64>, clock: SharedClock, stall: Duration) -> Self {
        Self { body, clock, stall, waited: Duration::ZERO, n_since_progress: 0, missing: length }
    }

    /// The next bytes; `None` at the end, and only at a true end. Cancel-safe. Errors: `BodyCut`
    /// when the body ended early, `RequestTimeout` when it comes too slowly.
    pub(crate) async fn next(&mut self) -> Answer<Option<Bytes>> {
        self.next_within(self.stall).await
    }

    /// As [`RequestBody::next`], for a moment at which the sender may have nothing to say for
    /// `patience`.
    pub(crate) async fn next_after_pause(&mut self, patience: Duration) -> Answer<Option<Bytes>> {
        self.waited = Duration::ZERO;
        self.n_since_progress = 0;
        self.next_within(patience.max(self.stall)).await
    }

    async fn next_within(&mut self, limit: Duration) -> Answer<Option<Bytes>> {
        // Ends with the body or with the stall time.
        loop {
            let begun = self.clock.monotonic();
            let left = limit.saturating_sub(self.waited);
            let frame = within(self.clock.as_ref(), left, next_frame(&mut self.body)).await;
            self.waited = self.waited.saturating_add(self.clock.monotonic().saturating_sub(begun));
            match frame {
                None => return Err(Refusal::new(ErrorCode::RequestTimeout, "the body comes too slowly")),
                Some(None) => return self.end(),
                Some(Some(Err(error))) => {
                    tracing::debug!(%error, "a request body was cut");
                    return Err(cut());
                }
                Some(Some(Ok(frame))) => {
                    // Trailers of a request mean nothing here.
                    let Ok(bytes) = frame.into_data() else { continue };
                    if !bytes.is_empty() {
                        self.note(bytes.len() as u64);
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    fn end(&self) -> Answer<Option<Bytes>> {
        match self.missing {
            Some(missing) if missing > 0 => Err(cut()),
            _ => Ok(None),
        }
    }

    fn note(&mut self, n: u64) {
        self.missing = self.missing.map(|missing| missing.saturating_sub(n));
        self.n_since_progress = self.n_since_progress.saturating_add(n);
        if self.n_since_progress >= PROGRESS_BYTES {
            self.n_since_progress = 0;
            self.waited = Duration::ZERO;
        }
    }
}

fn cut() -> Refusal {
    Refusal::new(ErrorCode::BodyCut, "the body ended early")
}

async fn next_frame(body: &mut Body) -> Option<Result<Frame<Bytes>, axum::Error>> {
    std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
}

/// What a streaming answer needs of its surroundings.
#[derive(Clone)]
pub(crate) struct Streaming {
    pub(crate) tasks: TaskGroup,
    pub(crate) clock: SharedClock,
    /// Longest time that a reader may leave a piece untaken.
    pub(crate) stall: Duration,
}

impl Streaming {
    /// A body of frames. An error of the stream aborts the body: the reader sees an incomplete
    /// transfer. With a `length`, a stream that ends early does so too.
    pub(crate) fn body(&self, frames: BoxStream<'static, Result<Frame<Bytes>, BodyError>>, length: Option<u64>) -> Body {
        let ended = CancellationToken::new();
        let watched = Arc::new(Mutex::new(Watched { frames: Some(frames), untaken_since: None }));
        self.tasks.spawn(watch(Arc::downgrade(&watched), ended.clone(), self.clock.clone(), self.stall));
        Body::new(StreamingBody { watched, clock: self.clock.clone(), rest: Bytes::new(), missing: length, _ended: ended.drop_guard() })
    }

    /// A body of bytes; see [`Streaming::body`].
    pub(crate) fn bytes(&self, bytes: BoxStream<'static, Result<Bytes, BodyError>>, length: Option<u64>) -> Body {
        self.body(bytes.map(|bytes| bytes.map(Frame::data)).boxed(), length)
    }
}

struct Watched {
    /// `None` once the reader has been given up.
    frames: Option<BoxStream<'static, Result<Frame<Bytes>, BodyError>>>,
    /// When a piece was handed over after which the reader has not asked again.
    untaken_since: Option<Duration>,
}

/// Takes what the body holds away from a reader that has stopped reading. HTTP/2 does not poll a
/// body whose stream has no window, so the body cannot see this itself.
async fn watch(watched: std::sync::Weak<Mutex<Watched>>, ended: CancellationToken, clock: SharedClock, stall: Duration) {
    // Ends with the body.
    loop {
        tokio::select! {
            () = ended.cancelled() => return,
            () = clock.sleep(stall / 2) => {}
        }
        let Some(watched) = watched.upgrade() else { return };
        let mut watched = watched.lock();
        let now = clock.monotonic();
        if watched.untaken_since.is_some_and(|since| now.saturating_sub(since) >= stall) {
            let given_up = watched.frames.take();
            drop(watched);
            drop(given_up);
            tracing::debug!("a reader has stopped reading: its answer is given up");
            return;
        }
    }
}

struct StreamingBody {
    watched: Arc<Mutex<Watched>>,
    clock: SharedClock,
    rest: Bytes,
    missing: Option<u64>,
    _ended: DropGuard,
}

impl StreamingBody {
    fn poll_inner(&self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut watched = self.watched.lock();
        watched.untaken_since = None;
        let Some(frames) = &mut watched.frames else { return Poll::Ready(Some(Err("the reader was given up".into()))) };
        frames.poll_next_unpin(context)
    }

    /// Hands over at most one piece of what is left of the last chunk.
    fn piece(&mut self) -> Frame<Bytes> {
        let piece = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
        self.missing = self.missing.map(|missing| missing.saturating_sub(piece.len() as u64));
        self.watched.lock().untaken_since = Some(self.clock.monotonic());
        Frame::data(piece)
    }
}

impl http_body::Body for StreamingBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(self.piece())));
        }
        // Ends with the stream; empty chunks are skipped.
        loop {
            match std::task::ready!(self.poll_inner(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) if bytes.is_empty() => {}
                    Ok(bytes) => {
                        self.rest = bytes;
                        return Poll::Ready(Some(Ok(self.piece())));
                    }
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None if self.missing.is_some_and(|missing| missing > 0) => {
                    return Poll::Ready(Some(Err("the content ended early".into())));
                }
                None => return Poll::Ready(None),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.missing == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.missing.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests;

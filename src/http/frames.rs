//! The frame stream of a batch read on its way out: steps of the service become frames, and small
//! frames become large writes. Payloads are passed on as they are; only small ones are copied.

use super::body::Streaming;
use super::error::Refusal;
use super::map;
use crate::service::FetchStep;
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures::stream::{BoxStream, Stream, StreamExt as _};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use store_api::frame::{FrameHeader, FrameKind};
use store_api::{Chunk, Crc32c};

/// Payloads below this size are copied next to each other.
const COPY_BELOW: usize = 16 * 1024;
/// Bytes that are gathered before they are handed on, as long as more is ready.
const BATCH_BYTES: usize = 128 * 1024;

/// The body of the answer.
pub(super) fn body(streaming: &Streaming, steps: BoxStream<'static, FetchStep>) -> Body {
    let writer = FrameWriter { steps, gathered: BytesMut::new(), out: VecDeque::new(), n_out_bytes: 0, n_items: 0, is_ended: false };
    streaming.bytes(writer.map(Ok).boxed(), None)
}

struct FrameWriter {
    steps: BoxStream<'static, FetchStep>,
    /// Small frames that are not handed on yet; they come after `out`.
    gathered: BytesMut,
    out: VecDeque<Bytes>,
    n_out_bytes: usize,
    n_items: u64,
    is_ended: bool,
}

impl FrameWriter {
    fn write(&mut self, step: FetchStep) {
        match step {
            FetchStep::Data { item, start, chunk } => self.data(item, start.get(), chunk),
            FetchStep::End { item, end } => self.bare(FrameKind::ItemEnd, item, end.get()),
            FetchStep::Paused { item, at } => self.bare(FrameKind::ItemPaused, item, at.get()),
            FetchStep::Failed { item, at, error } => {
                self.document(FrameKind::ItemError, item, at.get(), Refusal::from(&error).to_json());
            }
            FetchStep::Moved { item, at, location } => {
                let document = serde_json::to_vec(&map::location(&location)).unwrap_or_default();
                self.document(FrameKind::ItemMoved, item, at.get(), document);
            }
        }
    }

    fn data(&mut self, item: u32, start: u64, chunk: Chunk) {
        // Chunks are far below the 4 GiB that a frame can carry; one that is not is cut.
        let Some(header) = FrameHeader::data(item, start, &chunk) else { return self.cut(item, start, chunk) };
        self.gathered.extend_from_slice(&header.encode());
        self.payload(chunk.into_bytes());
    }

    fn cut(&mut self, item: u32, start: u64, chunk: Chunk) {
        let mut bytes = chunk.into_bytes();
        let mut at = start;
        // Ends with the bytes.
        while !bytes.is_empty() {
            let piece = Chunk::new(bytes.split_to(bytes.len().min(store_api::frame::MAX_PAYLOAD as usize)));
            let next = at.saturating_add(piece.length());
            self.data(item, at, piece);
            at = next;
        }
    }

    fn bare(&mut self, kind: FrameKind, target: u32, position: u64) {
        self.gathered.extend_from_slice(&FrameHeader::bare(kind, target, position).encode());
        self.n_items += u64::from(kind != FrameKind::End);
    }

    fn document(&mut self, kind: FrameKind, target: u32, position: u64, document: Vec<u8>) {
        let length = u32::try_from(document.len()).unwrap_or_default();
        let header = FrameHeader { kind, target, position, length, crc: Crc32c::of(&document) };
        self.gathered.extend_from_slice(&header.encode());
        self.payload(Bytes::from(document));
        self.n_items += 1;
    }

    fn payload(&mut self, bytes: Bytes) {
        if bytes.len() < COPY_BELOW {
            self.gathered.extend_from_slice(&bytes);
        } else {
            self.hand_on();
            self.n_out_bytes += bytes.len();
            self.out.push_back(bytes);
        }
    }

    /// Puts what was gathered behind what goes out.
    fn hand_on(&mut self) {
        if !self.gathered.is_empty() {
            self.n_out_bytes += self.gathered.len();
            self.out.push_back(self.gathered.split().freeze());
        }
    }

    fn next_out(&mut self) -> Option<Bytes> {
        let bytes = self.out.pop_front()?;
        self.n_out_bytes -= bytes.len();
        Some(bytes)
    }
}

impl Stream for FrameWriter {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        // Ends when enough is gathered, nothing more is ready, or the steps have ended.
        while !self.is_ended && self.out.is_empty() && self.gathered.len() < BATCH_BYTES {
            match self.steps.poll_next_unpin(context) {
                Poll::Ready(Some(step)) => self.write(step),
                Poll::Ready(None) => {
                    let n_items = self.n_items;
                    self.bare(FrameKind::End, 0, n_items);
                    self.is_ended = true;
                }
                Poll::Pending if self.gathered.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        if self.out.is_empty() {
            self.hand_on();
        }
        Poll::Ready(self.next_out())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::{ServiceError, ServiceErrorKind};
    use futures::stream;
    use store_api::Offset;
    use store_api::frame::{Frame, FrameDecoder, MAX_PAYLOAD};

    async fn written(steps: Vec<FetchStep>) -> Vec<Bytes> {
        let steps = stream::iter(steps).boxed();
        let writer = FrameWriter { steps, gathered: BytesMut::new(), out: VecDeque::new(), n_out_bytes: 0, n_items: 0, is_ended: false };
        writer.collect().await
    }

    fn decoded(pieces: &[Bytes]) -> Vec<Frame> {
        let mut decoder = FrameDecoder::new(MAX_PAYLOAD);
        let mut frames = Vec::new();
        for piece in pieces {
            decoder.push(piece.clone()).expect("in order");
            while let Some(frame) = decoder.next_frame().expect("a frame") {
                frames.push(frame);
            }
        }
        decoder.finish().expect("an end frame");
        frames
    }

    fn data(item: u32, start: u64, size: usize) -> FetchStep {
        FetchStep::Data { item, start: Offset::new(start), chunk: Chunk::new(Bytes::from(vec![7; size])) }
    }

    #[tokio::test]
    async fn an_answer_without_items_is_an_end_frame() {
        let frames = decoded(&written(Vec::new()).await);
        assert_eq!(frames.iter().map(|frame| (frame.header.kind, frame.header.position)).collect::<Vec<_>>(), [(FrameKind::End, 0)]);
    }

    #[tokio::test]
    async fn small_frames_share_writes_and_large_payloads_are_not_copied() {
        let large = Bytes::from(vec![1; 100_000]);
        let mut steps: Vec<FetchStep> = (0..1000).map(|item| data(item, 0, 100)).collect();
        steps.push(FetchStep::Data { item: 1000, start: Offset::ZERO, chunk: Chunk::new(large.clone()) });
        let pieces = written(steps).await;
        assert!(pieces.len() <= 4, "{} writes", pieces.len());
        assert!(pieces.iter().any(|piece| piece.as_ptr() == large.as_ptr()), "the large payload was copied");
        assert_eq!(decoded(&pieces).len(), 1002);
    }

    #[tokio::test]
    async fn an_item_that_fails_carries_its_problem_and_the_others_go_on() {
        let failed = FetchStep::Failed { item: 0, at: Offset::new(5), error: ServiceError::new(ServiceErrorKind::Released) };
        let steps = vec![data(0, 0, 5), failed, data(1, 9, 1), FetchStep::Paused { item: 1, at: Offset::new(10) }];
        let frames = decoded(&written(steps).await);
        let kinds: Vec<FrameKind> = frames.iter().map(|frame| frame.header.kind).collect();
        assert_eq!(kinds, [FrameKind::Data, FrameKind::ItemError, FrameKind::Data, FrameKind::ItemPaused, FrameKind::End]);
        let problem: serde_json::Value = serde_json::from_slice(frames[1].chunk.bytes()).expect("a document");
        assert_eq!(problem["code"], "released");
        assert_eq!(frames[4].header.position, 2, "two items were answered");
    }
}

//! Framed appends: one streaming body that interleaves many subpartitions. Memory for a payload is
//! reserved when its header has come, before the payload is read on.

use crate::http::Api;
use crate::http::body::RequestBody;
use crate::http::error::{Answer, Refusal};
use crate::http::extract::{Ids, Life, Ready, Streamed, check_content_type};
use crate::service::{DataFrame, FrameSink, FramesAck};
use axum::Json;
use axum::extract::State;
use forebay_protocol::ErrorCode;
use forebay_protocol::headers::FRAMES_MEDIA_TYPE;
use forebay_protocol::partitions::FramesDocument;
use std::sync::Arc;
use std::time::Duration;
use store_api::frame::{Frame, FrameDecoder, FrameError, FrameKind, HEADER_LENGTH};
use store_api::{Permit, SubpartitionIndex};

/// Payload bytes that are gathered before they are pushed, as long as more has arrived.
const BATCH_BYTES: u64 = 256 * 1024;

pub(in crate::http) async fn append(
    State(api): State<Arc<Api>>,
    Ready(service): Ready,
    ids: Ids,
    life: Life,
    request: Streamed,
) -> Answer<Json<FramesDocument>> {
    life.required()?;
    check_content_type(&request.headers, FRAMES_MEDIA_TYPE)?;
    let limit = u32::try_from(service.config().max_frame_bytes).unwrap_or(u32::MAX);
    let sink = service.begin_frames(&ids.attempt()?, life.0).await?;
    // A node without room says so before the first byte is read.
    drop(sink.reserve(0).await?);
    let intake = Intake {
        decoder: FrameDecoder::new(limit),
        sink,
        body: request.body,
        pause: api.config.frame_pause,
        batch: Vec::new(),
        batch_permit: Permit::none(),
        next_permit: None,
    };
    let ack = intake.run().await?;
    Ok(Json(FramesDocument { next_sequence: ack.next_sequence, new_bytes: ack.new_bytes }))
}

/// A frame stream on its way into the service.
struct Intake {
    decoder: FrameDecoder,
    sink: FrameSink,
    body: RequestBody,
    /// How long the sender may be silent between two frames.
    pause: Duration,
    batch: Vec<DataFrame>,
    batch_permit: Permit,
    /// Memory for the frame whose header has come.
    next_permit: Option<Permit>,
}

impl Intake {
    async fn run(mut self) -> Answer<FramesAck> {
        let taken = self.take_all().await;
        // What came whole before a cut or a damage stays, and the refusal says where to go on.
        let end = match taken {
            Ok(end) => end,
            Err(refusal) => {
                let _ = self.push().await;
                return Err(refusal.expecting_sequence(self.sink.next_sequence()));
            }
        };
        let next_sequence = self.sink.next_sequence();
        self.sink.finish(end).await.map_err(|error| Refusal::from(error).expecting_sequence(next_sequence))
    }

    /// Takes every frame; answers the position of the end frame, behind which the body has ended.
    async fn take_all(&mut self) -> Answer<u64> {
        // Ends with the end frame, with the body, or with a refusal.
        loop {
            while let Some(frame) = self.next_frame().await? {
                if frame.header.kind == FrameKind::End {
                    let position = end_position(&frame)?;
                    self.push().await?;
                    return self.expect_end().await.map(|()| position);
                }
                self.gather(frame).await?;
            }
            self.push().await?;
            let piece = if self.is_between_frames() { self.body.next_after_pause(self.pause).await? } else { self.body.next().await? };
            match piece {
                Some(piece) => self.decoder.push(piece).map_err(|error| damaged(&error))?,
                None => self.decoder.finish().map_err(|error| damaged(&error))?,
            }
        }
    }

    /// The next frame, if it has arrived whole; reserves its memory as soon as its header is there.
    async fn next_frame(&mut self) -> Answer<Option<Frame>> {
        let Some(header) = self.decoder.peek_header().map_err(|error| damaged(&error))? else { return Ok(None) };
        if self.next_permit.is_none() {
            self.next_permit = Some(self.reserve(u64::from(header.length)).await?);
        }
        self.decoder.next_frame().map_err(|error| damaged(&error))
    }

    /// Reserves memory; never waits while it holds frames that others could already read.
    async fn reserve(&mut self, bytes: u64) -> Answer<Permit> {
        if self.batch_permit.bytes().saturating_add(bytes) > BATCH_BYTES {
            self.push().await?;
        }
        Ok(self.sink.reserve(bytes).await?)
    }

    async fn gather(&mut self, frame: Frame) -> Answer<()> {
        if frame.header.kind != FrameKind::Data {
            return Err(Refusal::new(ErrorCode::BadFrame, "an append takes data frames and an end frame"));
        }
        self.batch_permit.merge(self.next_permit.take().unwrap_or_default());
        self.batch.push(DataFrame {
            sequence: frame.header.position,
            subpartition: SubpartitionIndex::new(frame.header.target),
            chunk: frame.chunk,
        });
        if self.batch_permit.bytes() >= BATCH_BYTES { self.push().await } else { Ok(()) }
    }

    /// Hands the gathered frames over.
    async fn push(&mut self) -> Answer<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let (batch, permit) = (std::mem::take(&mut self.batch), std::mem::take(&mut self.batch_permit));
        self.sink.push(batch, permit).await?;
        Ok(())
    }

    fn is_between_frames(&mut self) -> bool {
        let has_header = matches!(self.decoder.peek_header(), Ok(Some(_)));
        !has_header && matches!(self.decoder.finish(), Err(FrameError::Cut { missing: HEADER_LENGTH }))
    }

    /// The body must end behind the end frame; only then is it known not to be cut.
    async fn expect_end(&mut self) -> Answer<()> {
        while let Some(piece) = self.body.next().await? {
            self.decoder.push(piece).map_err(|error| damaged(&error))?;
        }
        Ok(())
    }
}

fn end_position(frame: &Frame) -> Answer<u64> {
    if frame.header.target != 0 || !frame.chunk.is_empty() {
        return Err(Refusal::new(ErrorCode::BadFrame, "an end frame has no target and no payload"));
    }
    Ok(frame.header.position)
}

fn damaged(error: &FrameError) -> Refusal {
    match error {
        FrameError::TooLong { limit, .. } => Refusal::too_large(u64::from(*limit)),
        FrameError::Cut { .. } => Refusal::new(ErrorCode::BodyCut, error.to_string()),
        FrameError::Magic { .. }
        | FrameError::Kind { .. }
        | FrameError::Flags { .. }
        | FrameError::HeaderChecksum
        | FrameError::PayloadChecksum(_)
        | FrameError::Trailing { .. } => Refusal::new(ErrorCode::BadFrame, error.to_string()),
    }
}

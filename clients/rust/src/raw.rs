//! The raw writer: bytes at an offset, one request per piece. Repeats are harmless, because the
//! service compares what it holds at the offset.

use crate::attempt::{Attempt, Sealed};
use crate::error::{ClientError, Result};
use bytes::{Bytes, BytesMut};
use forebay_protocol::headers::BYTES_MEDIA_TYPE;
use forebay_protocol::partitions::AppendDocument;
use http::Method;
use store_api::{Chunk, Offset, SubpartitionIndex};
use tokio::io::{AsyncRead, AsyncReadExt as _};

const PIECE: usize = 1024 * 1024;

impl Attempt {
    /// Writes at offsets of one's own choice, one request per piece.
    #[must_use]
    pub const fn into_raw_writer(self) -> RawWriter {
        RawWriter::new(self)
    }
}

/// Writes an attempt at offsets. Dropping it without [`RawWriter::seal`] seals nothing.
#[derive(Debug)]
pub struct RawWriter {
    attempt: Attempt,
}

impl RawWriter {
    pub(crate) const fn new(attempt: Attempt) -> Self {
        Self { attempt }
    }

    /// The attempt that is written.
    #[must_use]
    pub const fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    fn piece_bytes(&self) -> usize {
        usize::try_from(self.attempt.document.atomic_append_bytes).unwrap_or(PIECE).clamp(1, PIECE)
    }

    /// Appends bytes at `offset`, which must be the tail or name what is held there already; in
    /// pieces that are stored wholly or not at all. Idempotent; retried within the policy. Answers
    /// the tail. Errors: [`ClientError::Refused`] with `offset_mismatch` or `content_mismatch`.
    pub async fn append(&mut self, subpartition: SubpartitionIndex, offset: Offset, mut bytes: Bytes) -> Result<Offset> {
        let mut at = offset;
        loop {
            let piece = Chunk::new(bytes.split_to(bytes.len().min(self.piece_bytes())));
            at = self.append_piece(subpartition, at, &piece).await?;
            if bytes.is_empty() {
                return Ok(at);
            }
        }
    }

    async fn append_piece(&mut self, subpartition: SubpartitionIndex, at: Offset, piece: &Chunk) -> Result<Offset> {
        let caller = self.attempt.dataset.job.caller.clone();
        let call = self.attempt.call(Method::PUT, &format!("/subpartitions/{subpartition}"))?.query("offset", at);
        let mut call = call.with("content-type", BYTES_MEDIA_TYPE)?.with("content-digest", crate::read::digest_text(piece.crc()))?;
        call.body = Some(piece.bytes().clone());
        let mut attempts = caller.attempts();
        loop {
            match caller.document_once::<AppendDocument>(&call).await {
                Ok((document, _)) => {
                    let end = at.checked_add(piece.length()).ok_or_else(|| ClientError::invalid("the end offset"))?;
                    if document.end_offset < end.get() {
                        return Err(ClientError::unexpected("an append was answered with a tail before its end"));
                    }
                    // What was repeated has been counted before, or belongs to an earlier writer.
                    if self.attempt.ledger.length(subpartition.get()) == at.get() {
                        self.attempt.ledger.wrote(subpartition.get(), piece);
                    }
                    return Ok(end);
                }
                Err(failure) => caller.pause(&mut attempts, self.attempt.mind_life(failure)).await?,
            }
        }
    }

    /// Appends all that a reader yields, from `offset` on; each piece is kept until the service
    /// holds it, so a cut connection costs one piece. Answers the tail. Errors: those of
    /// [`RawWriter::append`], and [`ClientError::Invalid`] with the reader's own error.
    pub async fn append_from(
        &mut self,
        subpartition: SubpartitionIndex,
        offset: Offset,
        mut source: impl AsyncRead + Unpin,
    ) -> Result<Offset> {
        let (size, mut at) = (self.piece_bytes(), offset);
        loop {
            let mut piece = BytesMut::with_capacity(size);
            while piece.len() < size {
                let room = u64::try_from(size - piece.len()).unwrap_or(u64::MAX);
                let n_read = (&mut source).take(room).read_buf(&mut piece).await;
                if n_read.map_err(|cause| ClientError::invalid_because("the source of the bytes", cause))? == 0 {
                    break;
                }
            }
            if piece.is_empty() {
                return Ok(at);
            }
            at = self.append_piece(subpartition, at, &Chunk::new(piece.freeze())).await?;
        }
    }

    /// Makes the attempt final, stating lengths and checksums of what was written through this
    /// writer. Idempotent: may be called again after an error that asks to retry.
    pub async fn seal(&mut self) -> Result<Sealed> {
        self.attempt.seal().await
    }

    /// Ends the attempt without a result. Idempotent.
    pub async fn abort(self) -> Result<()> {
        self.attempt.abort().await
    }
}

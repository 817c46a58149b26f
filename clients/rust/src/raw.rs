//! The raw writer: bytes at offsets of one subpartition at a time, as curl would send them.

use crate::error::{ClientError, Result};
use crate::transport::{Call, SharedTransport};
use bytes::Bytes;
use forebay_protocol::headers;
use forebay_protocol::partitions::{AppendDocument, AttemptDocument, SealDocument, SealRequest};
use http::Method;
use std::collections::BTreeMap;
use store_api::{Offset, SubpartitionIndex};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Writes one attempt without frames. Each append is stored wholly or not at all, and is repeated
/// at its offset after a cut.
#[derive(Debug)]
pub struct RawWriter {
    transport: SharedTransport,
    path: String,
    life: String,
    piece_bytes: usize,
    tails: BTreeMap<u32, u64>,
}

impl RawWriter {
    pub(crate) fn new(transport: SharedTransport, path: String, document: &AttemptDocument) -> Self {
        Self {
            transport,
            path,
            life: document.location.life.clone(),
            piece_bytes: usize::try_from(document.atomic_append_bytes).unwrap_or(usize::MAX).max(1),
            tails: document.tails.iter().map(|tail| (tail.subpartition, tail.offset)).collect(),
        }
    }

    /// The offset at which the next append to a subpartition goes.
    #[must_use]
    pub fn tail(&self, subpartition: SubpartitionIndex) -> Offset {
        Offset::new(self.tails.get(&subpartition.get()).copied().unwrap_or(0))
    }

    /// Adds bytes at the tail of a subpartition and waits for the acknowledgement. Bytes longer than
    /// the service stores in one piece are cut. A retry after a lost answer is recognised by its
    /// offset.
    pub async fn append(&mut self, subpartition: SubpartitionIndex, mut bytes: Bytes) -> Result<Offset> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(self.piece_bytes));
            let (length, offset) = (piece.len() as u64, self.tail(subpartition).get());
            let mut call = Call::new(Method::PUT, format!("{}/subpartitions/{subpartition}?offset={offset}", self.path))
                .header("content-type", headers::BYTES_MEDIA_TYPE)
                .header(headers::NODE_LIFE, &self.life);
            call.body = piece;
            let document: AppendDocument = self.transport.document(&call).await?;
            if document.end_offset != offset.saturating_add(length) {
                return Err(ClientError::Protocol(format!("{length} bytes at {offset} ended at {}", document.end_offset)));
            }
            self.tails.insert(subpartition.get(), document.end_offset);
        }
        Ok(self.tail(subpartition))
    }

    /// Adds all that a reader gives, piece by piece, and calls `progress` with the bytes so far.
    pub async fn append_all(
        &mut self,
        subpartition: SubpartitionIndex,
        reader: &mut (impl AsyncRead + Unpin + Send),
        mut progress: impl FnMut(u64) + Send,
    ) -> Result<Offset> {
        let mut total = 0_u64;
        loop {
            let mut piece = Vec::with_capacity(self.piece_bytes.min(8 * 1024 * 1024));
            let limit = piece.capacity() as u64;
            let n_read = reader.take(limit).read_to_end(&mut piece).await.map_err(|error| ClientError::Invalid(error.to_string()))?;
            if n_read == 0 {
                return Ok(self.tail(subpartition));
            }
            self.append(subpartition, Bytes::from(piece)).await?;
            total = total.saturating_add(n_read as u64);
            progress(total);
        }
    }

    /// Seals what is held. Idempotent.
    pub async fn seal(self) -> Result<SealDocument> {
        let call = Call::new(Method::POST, format!("{}/seal", self.path)).header(headers::NODE_LIFE, &self.life);
        self.transport.document(&call.json(&SealRequest::default())?).await
    }

    /// Ends the attempt without a result. Idempotent.
    pub async fn abort(self) -> Result<()> {
        let call = Call::new(Method::DELETE, self.path.clone()).header(headers::NODE_LIFE, &self.life);
        self.transport.call(&call).await.map(drop)
    }
}

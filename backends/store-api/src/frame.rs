//! The frame: a fixed header and a payload. One codec serves framed appends and batch reads.
//!
//! ```text
//!  0      2    3     4        8          16       20            24           28
//!  | magic|kind|flags| target | position | length | payload crc | header crc | payload …
//! ```
//! All numbers are little-endian. `header crc` is the CRC-32C of bytes 0 to 24 (24 outside), so a
//! damaged length or target is found before a byte of the payload is trusted; `payload crc` is the
//! CRC-32C of the payload alone, so a receiver checks the bytes once and keeps the checksum.
//!
//! | stream | kind | target | position | payload |
//! |---|---|---|---|---|
//! | append | [`FrameKind::Data`] | subpartition | sequence, from the attempt's next one, step 1 | the bytes |
//! | append | [`FrameKind::End`] | 0 | sequence after the last | none |
//! | fetch | [`FrameKind::Data`] | item | offset of the first byte | the bytes |
//! | fetch | [`FrameKind::ItemEnd`] | item | end offset: all that was asked has been sent | none |
//! | fetch | [`FrameKind::ItemPaused`] | item | offset to go on from: the byte budget is used up | none |
//! | fetch | [`FrameKind::ItemError`] | item | offset that could not be served | a problem document |
//! | fetch | [`FrameKind::ItemMoved`] | item | offset to go on from | a location document |
//! | fetch | [`FrameKind::End`] | 0 | number of items answered | none |
//!
//! A stream without its `End` frame was cut, however politely the connection closed.

use crate::chunk::{ChecksumMismatch, Chunk, Crc32c};
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Bytes of a header.
pub const HEADER_LENGTH: usize = 28;
/// First two bytes of every frame.
pub const MAGIC: u16 = 0xFB17;
/// Largest payload that a decoder accepts unless it is told another limit, in bytes.
pub const MAX_PAYLOAD: u32 = 16 * 1024 * 1024;

const CRC_START: usize = 24;

/// What a frame says. Numbers on the wire are never given another meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// Bytes.
    Data = 1,
    /// Last frame of a stream.
    End = 2,
    /// An item of a fetch has been answered in full.
    ItemEnd = 3,
    /// An item of a fetch could not be served.
    ItemError = 4,
    /// An item of a fetch is held by another node.
    ItemMoved = 5,
    /// An item of a fetch goes on in another request.
    ItemPaused = 6,
}

impl FrameKind {
    fn from_wire(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Data,
            2 => Self::End,
            3 => Self::ItemEnd,
            4 => Self::ItemError,
            5 => Self::ItemMoved,
            6 => Self::ItemPaused,
            _ => return None,
        })
    }
}

/// Why bytes are not a frame. None of these can be mended by reading on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first two bytes are not [`MAGIC`].
    #[error("a frame starts with {MAGIC:#06x}, these bytes start with {found:#06x}")]
    Magic {
        /// What was there.
        found: u16,
    },
    /// The kind is not known to this version.
    #[error("frame kind {kind} is not known here")]
    Kind {
        /// The unknown kind.
        kind: u8,
    },
    /// Flags are reserved and must be 0.
    #[error("frame flags {flags:#04x} are not known here")]
    Flags {
        /// The unknown flags.
        flags: u8,
    },
    /// The header does not have its checksum.
    #[error("the frame header is damaged")]
    HeaderChecksum,
    /// The payload does not have its checksum.
    #[error("the frame payload is damaged: {0}")]
    PayloadChecksum(#[from] ChecksumMismatch),
    /// The payload is longer than the receiver takes.
    #[error("a payload of {length} bytes is over the limit of {limit}")]
    TooLong {
        /// Stated length.
        length: u32,
        /// The receiver's limit.
        limit: u32,
    },
    /// The stream ended inside a frame or before its end frame.
    #[error("the stream was cut: {missing} more bytes were expected")]
    Cut {
        /// How many bytes at least are missing.
        missing: usize,
    },
    /// Bytes follow the end frame.
    #[error("{extra} bytes follow the end frame")]
    Trailing {
        /// How many.
        extra: usize,
    },
}

/// A decoded header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the frame says.
    pub kind: FrameKind,
    /// Subpartition or item; see the table of the module.
    pub target: u32,
    /// Sequence or offset; see the table of the module.
    pub position: u64,
    /// Bytes of payload.
    pub length: u32,
    /// Checksum of the payload.
    pub crc: Crc32c,
}

impl FrameHeader {
    /// The header of a frame that carries `chunk`. `None` when the chunk is longer than a frame
    /// can be.
    #[must_use]
    pub fn data(target: u32, position: u64, chunk: &Chunk) -> Option<Self> {
        let length = u32::try_from(chunk.length()).ok()?;
        Some(Self { kind: FrameKind::Data, target, position, length, crc: chunk.crc() })
    }

    /// The header of a frame without payload.
    #[must_use]
    pub const fn bare(kind: FrameKind, target: u32, position: u64) -> Self {
        Self { kind, target, position, length: 0, crc: Crc32c::new(0) }
    }

    /// The header as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LENGTH] {
        let mut out = [0_u8; HEADER_LENGTH];
        let mut cursor: &mut [u8] = &mut out;
        cursor.put_u16_le(MAGIC);
        cursor.put_u8(self.kind as u8);
        cursor.put_u8(0);
        cursor.put_u32_le(self.target);
        cursor.put_u64_le(self.position);
        cursor.put_u32_le(self.length);
        cursor.put_u32_le(self.crc.get());
        let (covered, check) = out.split_at_mut(CRC_START);
        check.copy_from_slice(&Crc32c::of(covered).get().to_le_bytes());
        out
    }

    /// Reads a header. Errors: all of [`FrameError`] that concern the header, `limit` being the
    /// largest payload taken.
    pub fn decode(bytes: &[u8; HEADER_LENGTH], limit: u32) -> Result<Self, FrameError> {
        let mut cursor: &[u8] = bytes;
        let found = cursor.get_u16_le();
        if found != MAGIC {
            return Err(FrameError::Magic { found });
        }
        let (kind_byte, flags) = (cursor.get_u8(), cursor.get_u8());
        let (target, position) = (cursor.get_u32_le(), cursor.get_u64_le());
        let (length, crc) = (cursor.get_u32_le(), Crc32c::new(cursor.get_u32_le()));
        let (covered, _) = bytes.split_at(CRC_START);
        if Crc32c::of(covered).get() != cursor.get_u32_le() {
            return Err(FrameError::HeaderChecksum);
        }
        let kind = FrameKind::from_wire(kind_byte).ok_or(FrameError::Kind { kind: kind_byte })?;
        if flags != 0 {
            return Err(FrameError::Flags { flags });
        }
        if length > limit {
            return Err(FrameError::TooLong { length, limit });
        }
        Ok(Self { kind, target, position, length, crc })
    }
}

/// A frame with its payload, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The header.
    pub header: FrameHeader,
    /// The payload, whose checksum is the header's.
    pub chunk: Chunk,
}

/// Takes frames out of a byte stream that arrives in pieces of any size.
///
/// Payloads are slices of what was pushed when they lie in one piece; otherwise they are copied
/// once. The decoder holds at most one unfinished frame plus the pieces not yet taken.
#[derive(Debug)]
pub struct FrameDecoder {
    buffer: BytesMut,
    header: Option<FrameHeader>,
    limit: u32,
    is_ended: bool,
}

impl FrameDecoder {
    /// A decoder that refuses payloads over `limit` bytes.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        Self { buffer: BytesMut::new(), header: None, limit, is_ended: false }
    }

    /// Adds bytes that arrived. Errors: [`FrameError::Trailing`] after the end frame.
    pub fn push(&mut self, piece: Bytes) -> Result<(), FrameError> {
        if self.is_ended && !piece.is_empty() {
            return Err(FrameError::Trailing { extra: piece.len() });
        }
        if self.buffer.is_empty() {
            match piece.try_into_mut() {
                Ok(owned) => self.buffer = owned,
                Err(shared) => self.buffer = BytesMut::from(shared.as_ref()),
            }
        } else {
            self.buffer.extend_from_slice(&piece);
        }
        Ok(())
    }

    /// The header of the frame that comes next, as soon as it has arrived; lets a receiver reserve
    /// memory for the payload before it reads on. Errors: a damaged header.
    pub fn peek_header(&mut self) -> Result<Option<FrameHeader>, FrameError> {
        if self.header.is_none() && !self.is_ended {
            let Some(bytes) = self.buffer.first_chunk::<HEADER_LENGTH>() else { return Ok(None) };
            let header = FrameHeader::decode(bytes, self.limit)?;
            self.buffer.advance(HEADER_LENGTH);
            self.header = Some(header);
        }
        Ok(self.header)
    }

    /// The next frame, as soon as it has arrived whole. Errors: a damaged frame, or bytes after the
    /// end frame.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(header) = self.peek_header()? else { return Ok(None) };
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        if self.buffer.len() < length {
            return Ok(None);
        }
        let payload = self.buffer.split_to(length).freeze();
        let chunk = Chunk::verified(payload, header.crc)?;
        self.header = None;
        if header.kind == FrameKind::End {
            self.is_ended = true;
            if !self.buffer.is_empty() {
                return Err(FrameError::Trailing { extra: self.buffer.len() });
            }
        }
        Ok(Some(Frame { header, chunk }))
    }

    /// Whether the end frame has been taken.
    #[must_use]
    pub const fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Says that no more bytes will come. Errors: [`FrameError::Cut`] unless the end frame was the
    /// last thing.
    pub fn finish(&self) -> Result<(), FrameError> {
        if self.is_ended {
            return Ok(());
        }
        let expected = self.header.map_or(HEADER_LENGTH, |header| usize::try_from(header.length).unwrap_or(usize::MAX));
        Err(FrameError::Cut { missing: expected.saturating_sub(self.buffer.len()).max(1) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(frames: &[(u32, u64, Vec<u8>)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (target, position, payload) in frames {
            let chunk = Chunk::new(Bytes::from(payload.clone()));
            if let Some(header) = FrameHeader::data(*target, *position, &chunk) {
                out.extend_from_slice(&header.encode());
                out.extend_from_slice(payload);
            }
        }
        out.extend_from_slice(&FrameHeader::bare(FrameKind::End, 0, frames.len() as u64).encode());
        out
    }

    fn decode(bytes: &[u8], piece: usize) -> Result<Vec<Frame>, FrameError> {
        let mut decoder = FrameDecoder::new(MAX_PAYLOAD);
        let mut frames = Vec::new();
        for part in bytes.chunks(piece.max(1)) {
            decoder.push(Bytes::copy_from_slice(part))?;
            while let Some(frame) = decoder.next_frame()? {
                frames.push(frame);
            }
        }
        decoder.finish()?;
        Ok(frames)
    }

    #[test]
    fn the_bytes_of_a_frame_are_what_the_docs_say() {
        let chunk = Chunk::new(Bytes::from_static(b"123456789"));
        let header = FrameHeader::data(0x0403_0201, 0x0807_0605_0403_0201, &chunk).map(|header| header.encode());
        let golden = [0x17, 0xFB, 1, 0, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0x83, 0x92, 0x06, 0xE3];
        let mut whole = [0; HEADER_LENGTH];
        whole[..24].copy_from_slice(&golden);
        whole[24..].copy_from_slice(&Crc32c::of(&golden).get().to_le_bytes());
        assert_eq!(header, Some(whole));
    }

    #[test]
    fn a_stream_cut_at_any_byte_is_never_complete() {
        let whole = encode(&[(0, 0, vec![7; 40]), (1, 1, Vec::new()), (2, 2, vec![1])]);
        for cut in 0..whole.len() {
            assert!(matches!(decode(&whole[..cut], 13), Err(FrameError::Cut { .. })), "cut at {cut}");
        }
        assert_eq!(decode(&whole, 13).map(|frames| frames.len()), Ok(4));
    }

    #[test]
    fn any_flipped_bit_is_found() {
        let whole = encode(&[(3, 9, vec![5; 20])]);
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged, 1000).is_err(), "bit {bit} was not noticed");
        }
    }

    #[test]
    fn bytes_after_the_end_frame_are_refused() {
        let mut whole = encode(&[(0, 0, vec![1])]);
        whole.push(0);
        assert!(matches!(decode(&whole, 1000), Err(FrameError::Trailing { extra: 1 })));
        assert!(matches!(decode(&whole, 1), Err(FrameError::Trailing { extra: 1 })));
    }

    #[test]
    fn a_payload_over_the_limit_is_refused_from_its_header() {
        let header = FrameHeader { kind: FrameKind::Data, target: 0, position: 0, length: 101, crc: Crc32c::default() };
        assert_eq!(FrameHeader::decode(&header.encode(), 100), Err(FrameError::TooLong { length: 101, limit: 100 }));
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut_into_pieces(
            frames in proptest::collection::vec((any::<u32>(), any::<u64>(), proptest::collection::vec(any::<u8>(), 0..200)), 0..20),
            piece in 1usize..500,
        ) {
            let decoded = decode(&encode(&frames), piece);
            let Ok(decoded) = decoded else { return Err(TestCaseError::fail("not decoded")) };
            prop_assert_eq!(decoded.len(), frames.len() + 1);
            for (frame, (target, position, payload)) in decoded.iter().zip(&frames) {
                prop_assert_eq!(frame.header.target, *target);
                prop_assert_eq!(frame.header.position, *position);
                prop_assert_eq!(frame.chunk.bytes().as_ref(), payload.as_slice());
            }
        }

        #[test]
        fn junk_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), piece in 1usize..50) {
            let _ = decode(&bytes, piece);
        }
    }
}

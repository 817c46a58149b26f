//! Chunks (opaque bytes with their checksum) and digests that combine from chunks.
//!
//! The checksum is CRC-32C (Castagnoli polynomial, RFC 3720 appendix B.4), computed in hardware
//! where the processor has it. A digest of a subpartition is the CRC-32C of all its bytes together
//! with their number, and it can be put together from the checksums of its chunks without touching
//! a byte again; so a seal never reads back what was written.

use crate::polynomial::shift;
use bytes::Bytes;
use std::fmt;

/// Name of the checksum in manifests and on the wire.
pub const CHECKSUM_NAME: &str = "crc32c";

/// A CRC-32C value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Crc32c(u32);

impl Crc32c {
    /// Wraps a stored or received value.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value)
    }

    /// The checksum of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(crc32c::crc32c(bytes))
    }

    /// The checksum of what this value covers, followed by `bytes`.
    #[must_use]
    pub fn append(self, bytes: &[u8]) -> Self {
        Self(crc32c::crc32c_append(self.0, bytes))
    }

    /// The checksum of what this value covers, followed by `next_length` bytes with checksum
    /// `next`.
    #[must_use]
    pub fn combine(self, next: Self, next_length: u64) -> Self {
        Self(shift(self.0, next_length) ^ next.0)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Crc32c {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Bytes did not have the checksum that was stated for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes have checksum {actual}, {stated} was stated")]
pub struct ChecksumMismatch {
    /// What was stated.
    pub stated: Crc32c,
    /// What the bytes have.
    pub actual: Crc32c,
    /// How many bytes were checked.
    pub length: usize,
}

/// Opaque bytes together with their checksum: the unit of append.
///
/// A chunk can only be made by computing or by checking the checksum, so holding one means that
/// the two agree. Cloning is cheap: the bytes are shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    bytes: Bytes,
    crc: Crc32c,
}

impl Chunk {
    /// Computes the checksum of `bytes`.
    #[must_use]
    pub fn new(bytes: Bytes) -> Self {
        let crc = Crc32c::of(&bytes);
        Self { bytes, crc }
    }

    /// Checks `bytes` against a stated checksum. Errors: [`ChecksumMismatch`].
    pub fn verified(bytes: Bytes, stated: Crc32c) -> Result<Self, ChecksumMismatch> {
        let actual = Crc32c::of(&bytes);
        if actual == stated { Ok(Self { bytes, crc: stated }) } else { Err(ChecksumMismatch { stated, actual, length: bytes.len() }) }
    }

    /// The bytes.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Takes the bytes out.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Their checksum.
    #[must_use]
    pub const fn crc(&self) -> Crc32c {
        self.crc
    }

    /// Number of bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether there are no bytes. An empty chunk is legal and changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// Length and checksum of a run of bytes. The digest of nothing is [`Digest::EMPTY`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest {
    /// Number of bytes.
    pub length: u64,
    /// CRC-32C of all of them.
    pub crc: Crc32c,
}

impl Default for Digest {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Digest {
    /// The digest of no bytes.
    pub const EMPTY: Self = Self { length: 0, crc: Crc32c::new(0) };

    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self { length: bytes.len() as u64, crc: Crc32c::of(bytes) }
    }

    /// The digest of what this one covers, followed by what `next` covers. `None` when the length
    /// would pass 2^64-1.
    #[must_use]
    pub fn followed_by(self, next: Self) -> Option<Self> {
        let length = self.length.checked_add(next.length)?;
        let crc = if self.length == 0 { next.crc } else { self.crc.combine(next.crc, next.length) };
        Some(Self { length, crc })
    }

    /// The digest of what this one covers, followed by `bytes`, whose checksum is known to be `crc`.
    /// The same as [`Digest::followed_by`], and cheaper for few bytes. `None` when the length would
    /// pass 2^64-1.
    #[must_use]
    pub fn followed_by_bytes(self, bytes: &[u8], crc: Crc32c) -> Option<Self> {
        let added = bytes.len() as u64;
        if self.length == 0 || added > SHORT {
            return self.followed_by(Self { length: added, crc });
        }
        Some(Self { length: self.length.checked_add(added)?, crc: self.crc.append(bytes) })
    }
}

/// Up to this length it is cheaper to go over bytes once more than to join two checksums: a join
/// costs about as much as going over a kilobyte.
const SHORT: u64 = 1024;

impl From<&Chunk> for Digest {
    fn from(chunk: &Chunk) -> Self {
        Self { length: chunk.length(), crc: chunk.crc() }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{CHECKSUM_NAME}:{}:{}", self.crc, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_check_value_of_the_algorithm_is_kept() {
        // RFC 3720 B.4: 32 bytes of zeros, 32 bytes of ones; and the usual "123456789".
        assert_eq!(Crc32c::of(&[0; 32]).get(), 0x8a91_36aa);
        assert_eq!(Crc32c::of(&[0xff; 32]).get(), 0x62a8_ab43);
        assert_eq!(Crc32c::of(b"123456789").get(), 0xe306_9283);
    }

    #[test]
    fn bytes_that_differ_from_their_checksum_make_no_chunk() {
        let stated = Crc32c::of(b"right");
        assert!(Chunk::verified(Bytes::from_static(b"right"), stated).is_ok());
        let refused = Chunk::verified(Bytes::from_static(b"wrong"), stated);
        assert_eq!(refused.map_err(|mismatch| mismatch.length), Err(5));
    }

    proptest! {
        #[test]
        fn a_digest_is_the_same_however_the_bytes_were_cut(
            bytes in proptest::collection::vec(any::<u8>(), 0..6000), cuts in proptest::collection::vec(0_usize..2000, 0..8),
        ) {
            let (mut digest, mut joined) = (Digest::EMPTY, Digest::EMPTY);
            let mut rest: &[u8] = &bytes;
            for cut in cuts {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                digest = digest.followed_by_bytes(head, Crc32c::of(head)).unwrap_or_default();
                joined = joined.followed_by(Digest::of(head)).unwrap_or_default();
                rest = tail;
            }
            digest = digest.followed_by_bytes(rest, Crc32c::of(rest)).unwrap_or_default();
            joined = joined.followed_by(Digest::of(rest)).unwrap_or_default();
            prop_assert_eq!((digest, joined), (Digest::of(&bytes), Digest::of(&bytes)));
        }
    }
}

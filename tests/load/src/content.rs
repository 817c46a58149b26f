//! Bytes to write and to compare with: slices of one pool that does not compress, so that making and
//! checking them costs next to nothing.

use crate::error::{LoadError, Result, ensure};
use bytes::Bytes;
use std::ops::Range;
use store_api::Crc32c;

const POOL_BYTES: usize = 4 * 1024 * 1024;
/// Odd and of middling size, so that neighbouring blocks are different.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The pool. Cloning is cheap.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    bytes: Bytes,
}

impl Pool {
    /// The same each time.
    pub(crate) fn new() -> Self {
        let mut state = 0x2545_F491_4F6C_DD1D_u64;
        let mut bytes = Vec::with_capacity(POOL_BYTES);
        while bytes.len() < POOL_BYTES {
            // xorshift64 of Marsaglia, "Xorshift RNGs", 2003.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend_from_slice(&state.to_le_bytes());
        }
        Self { bytes: bytes.into() }
    }

    /// Block `number`, of at most 1 MiB. Blocks of different numbers are different.
    pub(crate) fn block(&self, number: u64, length: usize) -> Result<Bytes> {
        let room = self.bytes.len().checked_sub(length).filter(|room| *room > 0);
        let room = room.ok_or_else(|| LoadError::check(format!("a block of {length} bytes is larger than the pool")))?;
        let start = (number.wrapping_mul(STEP) >> 16) % room as u64;
        let start = usize::try_from(start).unwrap_or_default();
        Ok(self.bytes.slice(start..start + length))
    }

    /// Fails unless these bytes are those of the block at this range.
    pub(crate) fn check(&self, number: u64, length: usize, range: Range<usize>, found: &[u8]) -> Result<()> {
        let wanted = self.block(number, length)?;
        let is_same = wanted.get(range.clone()).is_some_and(|wanted| wanted == found);
        ensure(is_same, || format!("block {number} has other bytes at {range:?} than were written"))
    }

    /// Pieces of one long content of `total` bytes, its checksum, and the number that they start at.
    pub(crate) fn long(&self, number: u64, total: u64, piece: usize) -> Result<Long> {
        let (mut pieces, mut left, mut crc) = (Vec::new(), total, Crc32c::default());
        let mut next = number.wrapping_mul(1 << 20);
        while left > 0 {
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(piece);
            let bytes = self.block(next, length)?;
            crc = crc.append(&bytes);
            left -= bytes.len() as u64;
            pieces.push(bytes);
            next = next.wrapping_add(1);
        }
        Ok(Long { pieces, total, crc })
    }
}

/// A content that is longer than the pool.
#[derive(Debug, Clone)]
pub(crate) struct Long {
    /// The content, in order.
    pub(crate) pieces: Vec<Bytes>,
    /// Its length.
    pub(crate) total: u64,
    /// Its checksum.
    pub(crate) crc: Crc32c,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_the_same_each_time_and_differ_from_each_other() {
        let (one, two) = (Pool::new(), Pool::new());
        for number in 0..1000 {
            let block = one.block(number, 1024).unwrap();
            assert_eq!(block, two.block(number, 1024).unwrap());
            assert_ne!(block, two.block(number + 1, 1024).unwrap());
            two.check(number, 1024, 0..1024, &block).unwrap();
            assert!(two.check(number + 1, 1024, 0..1024, &block).is_err());
        }
        assert!(one.block(0, POOL_BYTES).is_err());
    }

    #[test]
    fn a_long_content_has_its_length_and_checksum() {
        let long = Pool::new().long(5, 2_500_000, 1_000_000).unwrap();
        let whole = long.pieces.concat();
        assert_eq!((whole.len() as u64, long.total), (2_500_000, 2_500_000));
        assert_eq!(Crc32c::of(&whole), long.crc);
    }
}

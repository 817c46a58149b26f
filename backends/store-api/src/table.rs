//! The subpartition table: digest of each subpartition of an attempt, in a form that stays small
//! when most of them are empty, with the one binary codec that every medium uses.

use crate::chunk::{Crc32c, Digest};
use crate::ids::SubpartitionIndex;
use bytes::{Buf, BufMut};

/// Version byte in front of an encoded table.
pub const TABLE_VERSION: u8 = 1;
const ENTRY_LENGTH: usize = 16;
const PREFIX_LENGTH: usize = 1 + 4 + 4;

/// Digests of the subpartitions `0..count` of one attempt. Only those that hold bytes are stored:
/// 16 bytes each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubpartitionTable {
    count: u32,
    entries: Vec<(u32, Digest)>,
}

/// Why bytes or entries are not a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// An entry names a subpartition that does not exist.
    #[error("subpartition {index} is outside 0..{count}")]
    Outside {
        /// The index named.
        index: u32,
        /// Number of subpartitions.
        count: u32,
    },
    /// Two entries name the same subpartition.
    #[error("subpartition {index} is named twice")]
    Twice {
        /// The index named twice.
        index: u32,
    },
    /// The lengths add up to more than 2^64-1.
    #[error("the lengths add up to more than 2^64-1 bytes")]
    Overflow,
    /// The encoded form has another version.
    #[error("table version {found} is not known here")]
    Version {
        /// What was found.
        found: u8,
    },
    /// The encoded form has the wrong length or order.
    #[error("the encoded table is damaged")]
    Damaged,
}

impl SubpartitionTable {
    /// A table of `count` subpartitions from entries in any order. Entries of length 0 are left
    /// out. Errors: [`TableError::Outside`], [`TableError::Twice`], [`TableError::Overflow`].
    pub fn new(count: u32, entries: impl IntoIterator<Item = (SubpartitionIndex, Digest)>) -> Result<Self, TableError> {
        let mut kept: Vec<(u32, Digest)> =
            entries.into_iter().filter(|(_, digest)| digest.length > 0).map(|(index, digest)| (index.get(), digest)).collect();
        kept.sort_unstable_by_key(|(index, _)| *index);
        if let Some((index, _)) = kept.last().filter(|(index, _)| *index >= count) {
            return Err(TableError::Outside { index: *index, count });
        }
        if let Some([(index, _), _]) = kept.array_windows::<2>().find(|[one, two]| one.0 == two.0) {
            return Err(TableError::Twice { index: *index });
        }
        let total = kept.iter().try_fold(0_u64, |sum, (_, digest)| sum.checked_add(digest.length));
        total.ok_or(TableError::Overflow)?;
        Ok(Self { count, entries: kept })
    }

    /// Number of subpartitions, empty ones too.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// The digest of a subpartition; `None` when there is no such subpartition.
    #[must_use]
    pub fn digest(&self, index: SubpartitionIndex) -> Option<Digest> {
        if index.get() >= self.count {
            return None;
        }
        let found = self.entries.binary_search_by_key(&index.get(), |(at, _)| *at).ok();
        Some(found.and_then(|at| self.entries.get(at)).map_or(Digest::EMPTY, |(_, digest)| *digest))
    }

    /// The subpartitions that hold bytes, in ascending order.
    pub fn non_empty(&self) -> impl ExactSizeIterator<Item = (SubpartitionIndex, Digest)> + '_ {
        self.entries.iter().map(|(index, digest)| (SubpartitionIndex::new(*index), *digest))
    }

    /// Bytes of all subpartitions together.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        // `new` and `decode` refuse tables whose sum does not fit.
        self.entries.iter().fold(0_u64, |sum, (_, digest)| sum.saturating_add(digest.length))
    }

    /// One value that stands for the whole table: the CRC-32C of its encoded form.
    #[must_use]
    pub fn fingerprint(&self) -> Crc32c {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        Crc32c::of(&bytes)
    }

    /// Appends the encoded form: version, count, number of entries, then per entry index (4 bytes),
    /// length (8) and checksum (4), little-endian.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(PREFIX_LENGTH + self.entries.len() * ENTRY_LENGTH);
        out.put_u8(TABLE_VERSION);
        out.put_u32_le(self.count);
        // At most `count` entries exist, and `count` is a u32.
        out.put_u32_le(u32::try_from(self.entries.len()).unwrap_or(u32::MAX));
        for (index, digest) in &self.entries {
            out.put_u32_le(*index);
            out.put_u64_le(digest.length);
            out.put_u32_le(digest.crc.get());
        }
    }

    /// Reads an encoded table from the front of `bytes` and moves past it. Errors: every
    /// [`TableError`].
    pub fn decode(bytes: &mut &[u8]) -> Result<Self, TableError> {
        if bytes.len() < PREFIX_LENGTH {
            return Err(TableError::Damaged);
        }
        let found = bytes.get_u8();
        if found != TABLE_VERSION {
            return Err(TableError::Version { found });
        }
        let (count, n_entries) = (bytes.get_u32_le(), bytes.get_u32_le());
        let n_entries = usize::try_from(n_entries).map_err(|_| TableError::Damaged)?;
        if n_entries.checked_mul(ENTRY_LENGTH).is_none_or(|needed| needed > bytes.len()) {
            return Err(TableError::Damaged);
        }
        let mut entries = Vec::with_capacity(n_entries);
        for _ in 0..n_entries {
            let index = SubpartitionIndex::new(bytes.get_u32_le());
            let digest = Digest { length: bytes.get_u64_le(), crc: Crc32c::new(bytes.get_u32_le()) };
            entries.push((index, digest));
        }
        let is_ascending = entries.array_windows::<2>().all(|[one, two]| one.0 < two.0);
        let table = Self::new(count, entries)?;
        if !is_ascending || table.entries.len() != n_entries {
            return Err(TableError::Damaged);
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn digest(length: u64) -> Digest {
        Digest { length, crc: Crc32c::new(7) }
    }

    #[test]
    fn entries_outside_or_named_twice_are_refused() {
        let index = SubpartitionIndex::new;
        assert_eq!(SubpartitionTable::new(2, [(index(2), digest(1))]), Err(TableError::Outside { index: 2, count: 2 }));
        assert_eq!(SubpartitionTable::new(2, [(index(1), digest(1)), (index(1), digest(2))]), Err(TableError::Twice { index: 1 }));
        assert_eq!(SubpartitionTable::new(2, [(index(0), digest(u64::MAX)), (index(1), digest(1))]), Err(TableError::Overflow));
    }

    #[test]
    fn the_encoded_form_is_fixed() {
        let table = SubpartitionTable::new(3, [(SubpartitionIndex::new(2), Digest { length: 5, crc: Crc32c::new(0x0403_0201) })]);
        let mut bytes = Vec::new();
        if let Ok(table) = table {
            table.encode(&mut bytes);
        }
        assert_eq!(bytes, [1, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
    }

    proptest! {
        #[test]
        fn tables_decode_to_what_was_encoded(lengths in proptest::collection::vec(0u64..3, 0..50)) {
            let count = u32::try_from(lengths.len()).unwrap_or(0);
            let entries = (0..count).map(SubpartitionIndex::new).zip(lengths.iter().copied().map(digest));
            let table = SubpartitionTable::new(count, entries).map_err(|error| TestCaseError::fail(error.to_string()))?;
            let mut bytes = Vec::new();
            table.encode(&mut bytes);
            let mut cursor: &[u8] = &bytes;
            prop_assert_eq!(SubpartitionTable::decode(&mut cursor), Ok(table.clone()));
            prop_assert!(cursor.is_empty());
            for cut in 0..bytes.len() {
                let mut cursor: &[u8] = bytes.get(..cut).unwrap_or_default();
                prop_assert!(SubpartitionTable::decode(&mut cursor).is_err());
            }
            for (index, length) in lengths.iter().enumerate() {
                let index = SubpartitionIndex::new(u32::try_from(index).unwrap_or(0));
                prop_assert_eq!(table.digest(index).map(|digest| digest.length), Some(*length));
            }
        }

        #[test]
        fn junk_never_panics(bytes: Vec<u8>) {
            let _ = SubpartitionTable::decode(&mut bytes.as_slice());
        }
    }
}

//! Names of jobs, datasets, partitions, subpartitions, attempts and nodes.
//!
//! A name from outside is parsed once, at the edge; from there on the types below carry it.
//! Textual ids are 1–128 characters of `A-Z a-z 0-9 . _ -` and are neither `.` nor `..`, so that
//! an id can stand in a URL, a file name or an object key without being escaped.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Longest textual id, in characters.
pub const MAX_ID_LENGTH: usize = 128;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text is empty or longer than [`MAX_ID_LENGTH`].
    #[error("an id has 1 to 128 characters, this one has {length}")]
    Length {
        /// Length of the refused text, in bytes.
        length: usize,
    },
    /// The text holds a character outside `A-Z a-z 0-9 . _ -`, or is `.` or `..`.
    #[error("an id is made of A-Z a-z 0-9 . _ - and is neither '.' nor '..'")]
    Character,
    /// The text is not a decimal or hexadecimal number in the range of its kind.
    #[error("{what} must be {expected}")]
    Number {
        /// Which id was being parsed.
        what: &'static str,
        /// What would have been accepted.
        expected: &'static str,
    },
}

fn check_text(text: &str) -> Result<(), IdError> {
    if text.is_empty() || text.len() > MAX_ID_LENGTH {
        return Err(IdError::Length { length: text.len() });
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if text == "." || text == ".." || !text.bytes().all(is_allowed) {
        return Err(IdError::Character);
    }
    Ok(())
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Parses an id. Errors: [`IdError::Length`], [`IdError::Character`].
            pub fn new(text: &str) -> Result<Self, IdError> {
                check_text(text)?;
                Ok(Self(Arc::from(text)))
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

text_id! {
    /// Owner of datasets; the unit of lease, quota and bulk release.
    JobId
}
text_id! {
    /// The intermediate result of one producer stage.
    DatasetId
}
text_id! {
    /// A storage node. Stays the same over restarts; see [`NodeLife`].
    NodeId
}
text_id! {
    /// A process that computes. Not a node: losing one loses nothing of the other.
    WorkerId
}
text_id! {
    /// A consumer, or a group of consumers, that acknowledges what it has read.
    ConsumerId
}

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u64);

        impl $name {
            /// Wraps a number drawn at random by the caller.
            #[must_use]
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            /// The number behind the id.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            /// Parses exactly 16 lower-case hexadecimal digits, the form that `Display` prints.
            fn from_str(text: &str) -> Result<Self, IdError> {
                let refused = IdError::Number { what: $what, expected: "16 lower-case hexadecimal digits" };
                let is_hex = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
                if text.len() != 16 || !text.bytes().all(is_hex) {
                    return Err(refused);
                }
                u64::from_str_radix(text, 16).map(Self).map_err(|_| refused)
            }
        }
    };
}

hex_id! {
    /// One existence of a job id, drawn when the job is created. Part of every key on every
    /// medium and never reused, so that a job id can be used again after its end.
    JobIncarnation, "a job incarnation"
}
hex_id! {
    /// One process start of a node. Writes that name a former life are refused.
    NodeLife, "a node life"
}

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $what:literal, $expected:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name($inner);

        impl $name {
            /// Wraps a number.
            #[must_use]
            pub const fn new(value: $inner) -> Self {
                Self(value)
            }

            /// The number.
            #[must_use]
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            /// Parses plain decimal digits: no sign, no blanks.
            fn from_str(text: &str) -> Result<Self, IdError> {
                parse_decimal(text)
                    .and_then(|number| <$inner>::try_from(number).ok())
                    .map(Self)
                    .ok_or(IdError::Number { what: $what, expected: $expected })
            }
        }
    };
}

/// Parses plain decimal digits without sign or blanks; `None` when it is anything else or does not
/// fit.
#[must_use]
pub fn parse_decimal(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

number_id! {
    /// Output of one producer task in a dataset. 64 bits and not dense: engines number map tasks
    /// as they like.
    PartitionId, u64, "a partition", "a decimal number from 0 to 2^64-1"
}
number_id! {
    /// The slice of a partition for one consumer, counted from 0.
    SubpartitionIndex, u32, "a subpartition", "a decimal number from 0 to 2^32-1"
}
number_id! {
    /// How often a job's ownership has changed hands. The first owner has epoch 1. Fences control
    /// calls of former owners.
    JobEpoch, u64, "a job epoch", "a decimal number from 0 to 2^64-1"
}

/// One execution of a producer task, ordered by (generation, attempt).
///
/// Seals compete within a generation; a higher generation fences every lower one. The textual form
/// is `{generation}.{attempt}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptId {
    /// Raised by the job's owner only, to run a sealed producer again.
    pub generation: u32,
    /// Number of the execution within its generation.
    pub attempt: u32,
}

impl AttemptId {
    /// An attempt of a generation.
    #[must_use]
    pub const fn new(generation: u32, attempt: u32) -> Self {
        Self { generation, attempt }
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.generation, self.attempt)
    }
}

impl FromStr for AttemptId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let parse = |part: &str| parse_decimal(part).and_then(|number| u32::try_from(number).ok());
        text.split_once('.')
            .and_then(|(generation, attempt)| Some(Self::new(parse(generation)?, parse(attempt)?)))
            .ok_or(IdError::Number { what: "an attempt", expected: "{generation}.{attempt}, two decimal numbers from 0 to 2^32-1" })
    }
}

/// A dataset of one incarnation of a job.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DatasetKey {
    /// The job.
    pub job: JobId,
    /// Which existence of the job id.
    pub incarnation: JobIncarnation,
    /// The dataset within the job.
    pub dataset: DatasetId,
}

impl DatasetKey {
    /// The key of one partition of this dataset.
    #[must_use]
    pub fn partition(&self, partition: PartitionId) -> PartitionKey {
        PartitionKey { dataset: self.clone(), partition }
    }
}

impl fmt::Display for DatasetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}/{}", self.job, self.incarnation, self.dataset)
    }
}

/// A partition of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionKey {
    /// The dataset.
    pub dataset: DatasetKey,
    /// The partition within the dataset.
    pub partition: PartitionId,
}

impl PartitionKey {
    /// The key of one attempt at this partition.
    #[must_use]
    pub fn attempt(&self, attempt: AttemptId) -> AttemptKey {
        AttemptKey { partition: self.clone(), attempt }
    }
}

impl fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.dataset, self.partition)
    }
}

/// One attempt at a partition: the unit that is written, sealed and read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptKey {
    /// The partition.
    pub partition: PartitionKey,
    /// The execution that writes it.
    pub attempt: AttemptId,
}

impl AttemptKey {
    /// The job this attempt belongs to.
    #[must_use]
    pub fn job(&self) -> &JobId {
        &self.partition.dataset.job
    }
}

impl fmt::Display for AttemptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.partition, self.attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_that_could_leave_a_directory_are_refused() {
        for text in ["", ".", "..", "../x", "a/b", "a\\b", "a%2f", "a b", "a\0", "a\n", "ä", "🙂", &"x".repeat(129)] {
            assert!(JobId::new(text).is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn ids_of_every_allowed_shape_are_kept_as_they_are() {
        for text in ["a", "application_1_2", "local-1", "...", "-", "0", &"x".repeat(128)] {
            assert_eq!(JobId::new(text).map(|id| id.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn numbers_with_signs_blanks_or_overflow_are_refused() {
        for text in ["", "-1", "+1", " 1", "1 ", "0x1", "1.5", "4294967296"] {
            assert!(text.parse::<SubpartitionIndex>().is_err(), "{text:?} was accepted");
        }
        for text in ["", "0", "0.", ".0", "0.0.0", "-1.0", "0.4294967296", "0,0"] {
            assert!(text.parse::<AttemptId>().is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn attempts_are_ordered_by_generation_first() {
        assert!(AttemptId::new(1, 0) > AttemptId::new(0, 99));
        assert!(AttemptId::new(1, 1) > AttemptId::new(1, 0));
    }

    proptest! {
        #[test]
        fn printed_ids_parse_back(generation: u32, attempt: u32, partition: u64, life: u64) {
            let id = AttemptId::new(generation, attempt);
            prop_assert_eq!(id.to_string().parse::<AttemptId>(), Ok(id));
            let id = PartitionId::new(partition);
            prop_assert_eq!(id.to_string().parse::<PartitionId>(), Ok(id));
            let id = NodeLife::new(life);
            prop_assert_eq!(id.to_string().parse::<NodeLife>(), Ok(id));
        }

        #[test]
        fn no_text_makes_the_parsers_panic(text: String) {
            let _ = JobId::new(&text);
            let _ = text.parse::<AttemptId>();
            let _ = text.parse::<JobIncarnation>();
        }
    }
}

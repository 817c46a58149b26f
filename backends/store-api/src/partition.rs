//! Kinds of dataset, what a store must know of one, and the states of an attempt with their pure
//! transitions.
//!
//! ```text
//!            append
//!            ┌──┐
//!   open ──► Open ──prepare──► Prepared ──publish──► Sealed ──┐
//!             │  ◄──append──┐     │ lost the arbitration      │ release
//!             │             └ no  ▼                           ▼
//!             ├──abort──► Aborted ◄───────────────┐        Released
//!             └──fence──► Fenced  (from Open, Prepared and Sealed)
//!                           Lost  (from Sealed: the bytes are gone or damaged)
//! ```
//! Aborted, Fenced and Released are final: no call brings an attempt back from them.

use crate::ids::{AttemptId, ConsumerId};
use std::fmt;

/// What a pipelined dataset keeps of the bytes that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Retention {
    /// Keeps what is not yet acknowledged. A full buffer pushes back on the writer.
    UntilAcknowledged,
    /// Keeps what was read too, and drops the oldest bytes already read when memory is needed. A
    /// reader below the floor is told the floor.
    BestEffort,
    /// Keeps everything since the last completed checkpoint, in memory and then on disk.
    SinceCheckpoint,
}

/// How an intermediate result is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DatasetKind {
    /// Readable while it is produced; lives in memory (and spill files) of one node life.
    Pipelined(Retention),
    /// Readable after the seal; lives on the node's disk until released.
    Blocking,
    /// Readable after the seal; lives in the object store until released.
    Durable,
}

/// A [`DatasetKind`] without its options: picks the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StoreClass {
    /// Memory of one node life.
    Pipelined,
    /// The node's disk.
    Blocking,
    /// The object store.
    Durable,
}

impl DatasetKind {
    /// The class of store that keeps this kind.
    #[must_use]
    pub const fn class(self) -> StoreClass {
        match self {
            Self::Pipelined(_) => StoreClass::Pipelined,
            Self::Blocking => StoreClass::Blocking,
            Self::Durable => StoreClass::Durable,
        }
    }
}

impl fmt::Display for StoreClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pipelined => "pipelined",
            Self::Blocking => "blocking",
            Self::Durable => "durable",
        })
    }
}

/// Who decides which attempt of a generation counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Arbitration {
    /// The first valid seal within a generation wins; later ones get the winner's manifest.
    #[default]
    Store,
    /// The engine decides: every sealed attempt is readable by its name until released.
    Engine,
}

/// Largest number of subpartitions of a dataset.
pub const MAX_SUBPARTITIONS: u32 = 1 << 20;

/// What a store must know of a dataset. The service checks it before a store sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetSpec {
    /// How the result is kept.
    pub kind: DatasetKind,
    /// Number of partitions; `None` when it is not known beforehand.
    pub n_partitions: Option<u64>,
    /// Number of subpartitions of each partition, 1 to [`MAX_SUBPARTITIONS`].
    pub n_subpartitions: u32,
    /// Stored once, as subpartition 0, and served as every subpartition.
    pub is_broadcast: bool,
    /// Who decides which attempt counts.
    pub arbitration: Arbitration,
    /// Groups whose acknowledgements move the floors of a pipelined dataset. Each group reads
    /// every subpartition once. Never empty for a pipelined dataset.
    pub groups: Vec<ConsumerId>,
}

impl DatasetSpec {
    /// Number of subpartitions that are stored: 1 for a broadcast, otherwise all of them.
    #[must_use]
    pub const fn stored_subpartitions(&self) -> u32 {
        if self.is_broadcast { 1 } else { self.n_subpartitions }
    }
}

/// Where an attempt stands. See the drawing of the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttemptState {
    /// Takes appends.
    Open,
    /// Its content is final and durable as its class promises, but not visible: it waits for the
    /// arbitration.
    Prepared,
    /// Visible and immutable.
    Sealed,
    /// Ended without a result.
    Aborted,
    /// Superseded by a higher generation or, among pipelined attempts, by a higher attempt.
    Fenced,
    /// Given back by its owner or by the end of its lease.
    Released,
    /// Its bytes are gone or damaged.
    Lost,
}

/// What happens to an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttemptEvent {
    /// Bytes are added.
    Append,
    /// The content is made final.
    Prepare,
    /// The arbitration was won.
    Publish,
    /// The writer gives up, or the arbitration was lost.
    Abort,
    /// Something newer takes its place.
    Fence,
    /// The data is given back.
    Release,
    /// The data was found gone or damaged.
    Lose,
}

/// An event that an attempt in this state cannot take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an attempt that is {state:?} takes no {event:?}")]
pub struct TransitionError {
    /// Where the attempt stands.
    pub state: AttemptState,
    /// What was tried.
    pub event: AttemptEvent,
}

impl AttemptState {
    /// The state after `event`. Repeating an event that led here changes nothing. Errors:
    /// [`TransitionError`] when the event is not possible in this state.
    pub const fn after(self, event: AttemptEvent) -> Result<Self, TransitionError> {
        use AttemptEvent as E;
        match (self, event) {
            (Self::Open, E::Append) => Ok(Self::Open),
            (Self::Open | Self::Prepared, E::Prepare) => Ok(Self::Prepared),
            (Self::Prepared | Self::Sealed, E::Publish) => Ok(Self::Sealed),
            (Self::Open | Self::Prepared | Self::Aborted, E::Abort) => Ok(Self::Aborted),
            (Self::Open | Self::Prepared | Self::Sealed | Self::Lost | Self::Fenced, E::Fence) => Ok(Self::Fenced),
            (Self::Aborted | Self::Fenced | Self::Released, E::Release) => Ok(self),
            (Self::Open | Self::Prepared | Self::Sealed | Self::Lost, E::Release) => Ok(Self::Released),
            (Self::Sealed | Self::Lost, E::Lose) => Ok(Self::Lost),
            (state, event) => Err(TransitionError { state, event }),
        }
    }

    /// Whether no event leads out of this state.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Aborted | Self::Fenced | Self::Released)
    }
}

/// Whether an attempt may be written, given the highest generation that was opened.
#[must_use]
pub const fn is_fenced(attempt: AttemptId, highest_generation: u32) -> bool {
    attempt.generation < highest_generation
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [AttemptState; 7] = [
        AttemptState::Open,
        AttemptState::Prepared,
        AttemptState::Sealed,
        AttemptState::Aborted,
        AttemptState::Fenced,
        AttemptState::Released,
        AttemptState::Lost,
    ];
    const EVENTS: [AttemptEvent; 7] = [
        AttemptEvent::Append,
        AttemptEvent::Prepare,
        AttemptEvent::Publish,
        AttemptEvent::Abort,
        AttemptEvent::Fence,
        AttemptEvent::Release,
        AttemptEvent::Lose,
    ];

    #[test]
    fn final_states_are_never_left() {
        for state in STATES.into_iter().filter(|state| state.is_final()) {
            for event in EVENTS {
                if let Ok(after) = state.after(event) {
                    assert_eq!(after, state, "{state:?} was left by {event:?}");
                }
            }
        }
    }

    #[test]
    fn repeating_an_event_changes_nothing() {
        for state in STATES {
            for event in EVENTS {
                if let Ok(once) = state.after(event) {
                    assert_eq!(once.after(event), Ok(once), "{event:?} twice from {state:?}");
                }
            }
        }
    }

    #[test]
    fn only_an_open_attempt_takes_bytes_and_only_a_prepared_one_is_published() {
        for state in STATES {
            assert_eq!(state.after(AttemptEvent::Append).is_ok(), state == AttemptState::Open);
            let publishes = matches!(state, AttemptState::Prepared | AttemptState::Sealed);
            assert_eq!(state.after(AttemptEvent::Publish).is_ok(), publishes);
        }
    }
}

//! How an attempt ends for good.

use store_api::{AttemptEvent, AttemptId, AttemptState, StoreErrorKind};

/// How an attempt ended for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Aborted,
    Fenced { by: AttemptId },
    Released,
}

impl Ending {
    pub(crate) const fn kind(self) -> StoreErrorKind {
        match self {
            Self::Aborted => StoreErrorKind::Aborted,
            Self::Fenced { by } => StoreErrorKind::Fenced { by },
            Self::Released => StoreErrorKind::Released,
        }
    }

    pub(crate) const fn state(self) -> AttemptState {
        match self {
            Self::Aborted => AttemptState::Aborted,
            Self::Fenced { .. } => AttemptState::Fenced,
            Self::Released => AttemptState::Released,
        }
    }

    pub(crate) const fn event(self) -> AttemptEvent {
        match self {
            Self::Aborted => AttemptEvent::Abort,
            Self::Fenced { .. } => AttemptEvent::Fence,
            Self::Released => AttemptEvent::Release,
        }
    }
}

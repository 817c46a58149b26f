//! Errors of this store, made in one place.

use crate::ending::Ending;
use std::fmt::Display;
use store_api::{AttemptKey, BudgetError, Operation, StoreError, StoreErrorKind, SubpartitionIndex};

/// What a refusal is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) operation: Operation,
    pub(crate) attempt: &'a AttemptKey,
}

impl<'a> Subject<'a> {
    pub(crate) const fn new(operation: Operation, attempt: &'a AttemptKey) -> Self {
        Self { operation, attempt }
    }

    pub(crate) fn refuse(self, kind: StoreErrorKind) -> StoreError {
        StoreError::new(kind, self.operation, self.attempt)
    }

    pub(crate) fn refuse_at(self, kind: StoreErrorKind, subpartition: SubpartitionIndex) -> StoreError {
        StoreError::new(kind, self.operation, format_args!("{}/{subpartition}", self.attempt))
    }

    pub(crate) fn ended(self, ending: Ending) -> StoreError {
        self.refuse(ending.kind())
    }
}

/// The refusal of a budget in the words of the contract.
pub(crate) const fn budget_kind(error: BudgetError) -> StoreErrorKind {
    match error {
        BudgetError::TooLarge { requested, limit } => StoreErrorKind::TooLarge { requested, limit },
        BudgetError::Exhausted { retry_after } => StoreErrorKind::Overloaded { retry_after },
    }
}

/// The store does not take work any more.
pub(crate) fn closing(operation: Operation, subject: impl Display) -> StoreError {
    StoreError::new(StoreErrorKind::Closing, operation, subject)
}

//! Errors that say what to do.

use forebay_protocol::{ErrorCode, Problem, Retryable};
use std::time::Duration;

/// Why a call did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The service refused, with its reason.
    #[error("{} ({})", .0.detail, .0.code)]
    Refused(Box<Problem>),
    /// No answer could be had, however often it was tried within the policy.
    #[error("no answer after {attempts} attempts: {cause}")]
    Transport {
        /// How often it was tried.
        attempts: u32,
        /// What went wrong last.
        cause: String,
    },
    /// Bytes arrived that do not have their checksum, and reading them again did not help.
    #[error("damaged bytes: {0}")]
    Damaged(String),
    /// The service answered something that the contract does not know.
    #[error("an answer outside the contract: {0}")]
    Protocol(String),
    /// The call itself makes no sense; nothing was sent.
    #[error("{0}")]
    Invalid(String),
}

/// What the caller shall do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Try the same call again after a while.
    RetryLater(Duration),
    /// Ask where the partition is, then try there.
    ResolveAgain,
    /// Something newer took the place of this attempt, owner or node life: stop, or start anew
    /// under a new identity.
    Superseded,
    /// The bytes are gone: the producer has to run again.
    Recompute,
    /// They were released or let go by design: do not ask again.
    Gone,
    /// Not there yet: wait for the producer.
    WaitForProducer,
    /// The name never existed: look at the ids.
    CheckNames,
    /// The call will be refused every time: change it.
    GiveUp,
}

/// What every call of this crate answers.
pub type Result<T> = std::result::Result<T, ClientError>;

impl ClientError {
    /// The code of a refusal.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        self.problem().map(|problem| problem.code)
    }

    /// The problem document of a refusal.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused(problem) => Some(problem),
            Self::Transport { .. } | Self::Damaged(_) | Self::Protocol(_) | Self::Invalid(_) => None,
        }
    }

    /// Whether bytes that were made once cannot be had any more.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.code() == Some(ErrorCode::Lost)
    }

    /// Whether something newer took the place of the caller's attempt, owner or node life.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.code() == Some(ErrorCode::Fenced)
    }

    /// What to do about it.
    #[must_use]
    pub fn action(&self) -> Action {
        match self {
            Self::Refused(problem) => action_of(problem),
            Self::Transport { .. } => Action::ResolveAgain,
            Self::Damaged(_) => Action::Recompute,
            Self::Protocol(_) | Self::Invalid(_) => Action::GiveUp,
        }
    }

    pub(crate) fn protocol(what: impl std::fmt::Display) -> Self {
        Self::Protocol(what.to_string())
    }
}

fn action_of(problem: &Problem) -> Action {
    match problem.code {
        ErrorCode::Fenced | ErrorCode::OtherAttemptWon | ErrorCode::JobOwned => Action::Superseded,
        ErrorCode::Lost => Action::Recompute,
        ErrorCode::Released | ErrorCode::Expired | ErrorCode::BelowFloor | ErrorCode::Aborted => Action::Gone,
        ErrorCode::NotWritten | ErrorCode::NotSealed => Action::WaitForProducer,
        ErrorCode::UnknownJob | ErrorCode::UnknownDataset | ErrorCode::UnknownPartition | ErrorCode::UnknownAttempt => Action::CheckNames,
        _ => match problem.retryable {
            Retryable::SameRequest => Action::RetryLater(Duration::from_millis(problem.retry_after_ms.unwrap_or(1000))),
            Retryable::AfterResolving => Action::ResolveAgain,
            Retryable::Never => Action::GiveUp,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_an_action_that_fits_its_retryability() {
        for code in ErrorCode::ALL {
            let error = ClientError::Refused(Box::new(Problem::new(*code, "x")));
            let retries = matches!(error.action(), Action::RetryLater(_) | Action::ResolveAgain | Action::WaitForProducer);
            assert_eq!(retries, code.retryable() != Retryable::Never, "{code}");
        }
    }

    #[test]
    fn a_loss_says_recompute_and_a_release_says_gone() {
        let refused = |code| ClientError::Refused(Box::new(Problem::new(code, "x")));
        assert_eq!(refused(ErrorCode::Lost).action(), Action::Recompute);
        assert_eq!(refused(ErrorCode::Released).action(), Action::Gone);
        assert_eq!(refused(ErrorCode::UnknownJob).action(), Action::CheckNames);
    }
}

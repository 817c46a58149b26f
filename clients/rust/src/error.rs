//! The one error of this crate. Its variants say what the caller shall do; [`ClientError::action`]
//! says it in one word.

use forebay_protocol::{ErrorCode, Problem, Retryable};
use std::error::Error;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, ClientError>;

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Call again later, unchanged. The client has already done so as long as its policy allows.
    RetryLater,
    /// Ask for the location or the state again (availability, listing), then call again.
    ResolveAgain,
    /// Write the attempt again from its first byte, as a new attempt: what was appended is gone.
    RewriteAttempt,
    /// Stop: a newer owner, generation, attempt or stream does this work now.
    StandDown,
    /// Have the producer run again: what was made cannot be had any more.
    Reproduce,
    /// Nothing helps but another request, another configuration or other rights.
    GiveUp,
}

/// What took the caller's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FencedBy {
    /// The node was started anew; unsealed attempts of its former life are gone.
    NodeLife(String),
    /// The job has a new owner, with this epoch.
    Epoch(u64),
    /// A higher generation, or another attempt, `{generation}.{attempt}`.
    Attempt(String),
    /// A newer frame stream of the same attempt.
    Stream,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Not now. Retries within the policy are used up.
    #[error("not now, after {attempts} attempts: {}", problem.detail)]
    RetryLater {
        /// What the service said last.
        problem: Box<Problem>,
        /// How often the call was made.
        attempts: u32,
    },
    /// The partition is not readable yet: it is not written or not sealed.
    #[error("not readable yet: {}", .0.detail)]
    NotReady(Box<Problem>),
    /// This node is not, or no longer, the one to ask.
    #[error("resolve again: {detail}")]
    ResolveAgain {
        /// Why.
        detail: String,
        /// What the service said, if it said anything.
        problem: Option<Box<Problem>>,
    },
    /// Something newer took the caller's place.
    #[error("fenced by {by:?}: {}", problem.detail)]
    Fenced {
        /// What it was.
        by: FencedBy,
        /// What the service said.
        problem: Box<Problem>,
    },
    /// It was made and cannot be served any more.
    #[error("lost ({cause}): {}", problem.detail)]
    Lost {
        /// Why: `node`, `disk`, `object_store` or `corruption`.
        cause: String,
        /// What the service said.
        problem: Box<Problem>,
    },
    /// The job, dataset, partition or attempt never existed there.
    #[error("never existed: {}", .0.detail)]
    NeverExisted(Box<Problem>),
    /// It was released, expired or aborted.
    #[error("released: {}", .0.detail)]
    Released(Box<Problem>),
    /// The bytes were let go by design.
    #[error("below the floor {floor}: {}", problem.detail)]
    BelowFloor {
        /// First offset still held.
        floor: u64,
        /// What the service said.
        problem: Box<Problem>,
    },
    /// Another attempt than the one named is the content.
    #[error("attempt {attempt} won: {}", problem.detail)]
    OtherAttemptWon {
        /// The winner, `{generation}.{attempt}`.
        attempt: String,
        /// What the service said.
        problem: Box<Problem>,
    },
    /// Refused, and a repeat would be refused too.
    #[error("refused ({}): {}", .0.code, .0.detail)]
    Refused(Box<Problem>),
    /// No answer was had: connection, TLS or time. Retries within the policy are used up.
    #[error("no answer after {attempts} attempts: {detail}")]
    Transport {
        /// What failed last, without addresses or paths.
        detail: String,
        /// How often it was tried.
        attempts: u32,
        /// The cause, if there is one.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// Bytes arrived that do not have their checksum, each time they were read.
    #[error("damaged on its way, {attempts} times: {detail}")]
    Damaged {
        /// What was damaged.
        detail: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// An answer that is not of the documented form.
    #[error("not an answer of a Forebay node: {detail}")]
    Unexpected {
        /// What is wrong with it.
        detail: String,
        /// The cause, if there is one.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The arguments cannot be sent, or the client cannot be built from them.
    #[error("invalid argument: {detail}")]
    Invalid {
        /// What is wrong.
        detail: String,
        /// The cause, if there is one.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
}

impl ClientError {
    /// Sorts a problem of the service. `attempts` is how often the call was made.
    #[must_use]
    pub fn from_problem(problem: Problem, attempts: u32) -> Self {
        let problem = Box::new(problem);
        match problem.code {
            ErrorCode::NotWritten | ErrorCode::NotSealed => Self::NotReady(problem),
            ErrorCode::Fenced => Self::Fenced { by: fenced_by(&problem), problem },
            ErrorCode::Lost => Self::Lost { cause: problem.cause.clone().unwrap_or_else(|| "unknown".to_owned()), problem },
            ErrorCode::BelowFloor => Self::BelowFloor { floor: problem.floor.unwrap_or(0), problem },
            ErrorCode::Released | ErrorCode::Expired | ErrorCode::Aborted => Self::Released(problem),
            ErrorCode::UnknownJob | ErrorCode::UnknownDataset | ErrorCode::UnknownPartition | ErrorCode::UnknownAttempt => {
                Self::NeverExisted(problem)
            }
            ErrorCode::OtherAttemptWon => Self::OtherAttemptWon { attempt: problem.attempt.clone().unwrap_or_default(), problem },
            _ => match problem.retryable {
                Retryable::Never => Self::Refused(problem),
                Retryable::SameRequest => Self::RetryLater { problem, attempts },
                Retryable::AfterResolving => Self::ResolveAgain { detail: problem.detail.clone(), problem: Some(problem) },
            },
        }
    }

    pub(crate) fn unexpected(detail: impl Into<String>) -> Self {
        Self::Unexpected { detail: detail.into(), source: None }
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::Invalid { detail: detail.into(), source: None }
    }

    pub(crate) fn invalid_because(detail: impl Into<String>, source: impl Error + Send + Sync + 'static) -> Self {
        Self::Invalid { detail: detail.into(), source: Some(Box::new(source)) }
    }

    pub(crate) fn moved_again() -> Self {
        Self::ResolveAgain { detail: "the holder named by another node does not hold it".to_owned(), problem: None }
    }

    /// What the service said, if it said anything.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::RetryLater { problem, .. }
            | Self::Fenced { problem, .. }
            | Self::Lost { problem, .. }
            | Self::BelowFloor { problem, .. }
            | Self::OtherAttemptWon { problem, .. } => Some(problem),
            Self::NotReady(problem) | Self::NeverExisted(problem) | Self::Released(problem) | Self::Refused(problem) => Some(problem),
            Self::ResolveAgain { problem, .. } => problem.as_deref(),
            Self::Transport { .. } | Self::Damaged { .. } | Self::Unexpected { .. } | Self::Invalid { .. } => None,
        }
    }

    /// The machine-readable code, if the service said anything.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        self.problem().map(|problem| problem.code)
    }

    /// Whether the service said that the content was made and cannot be had any more. Silence of a
    /// node is not loss: [`ClientError::Transport`] answers `false`.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// What to do.
    ///
    /// ```
    /// use forebay_client::{Action, ClientError};
    /// use forebay_protocol::{ErrorCode, Problem};
    /// let error = ClientError::from_problem(Problem::new(ErrorCode::Lost, "the disk is gone"), 1);
    /// assert!(error.is_lost());
    /// assert_eq!(error.action(), Action::Reproduce);
    /// ```
    #[must_use]
    pub const fn action(&self) -> Action {
        match self {
            Self::RetryLater { .. } | Self::NotReady(_) => Action::RetryLater,
            Self::ResolveAgain { .. } | Self::Transport { .. } | Self::Damaged { .. } | Self::OtherAttemptWon { .. } => {
                Action::ResolveAgain
            }
            Self::Fenced { by: FencedBy::NodeLife(_), .. } => Action::RewriteAttempt,
            Self::Fenced { .. } => Action::StandDown,
            Self::Lost { .. } => Action::Reproduce,
            Self::NeverExisted(_)
            | Self::Released(_)
            | Self::BelowFloor { .. }
            | Self::Refused(_)
            | Self::Unexpected { .. }
            | Self::Invalid { .. } => Action::GiveUp,
        }
    }
}

fn fenced_by(problem: &Problem) -> FencedBy {
    if let Some(life) = &problem.life {
        FencedBy::NodeLife(life.clone())
    } else if let Some(epoch) = problem.epoch {
        FencedBy::Epoch(epoch)
    } else if let Some(attempt) = &problem.attempt {
        FencedBy::Attempt(attempt.clone())
    } else {
        FencedBy::Stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_an_action_that_agrees_with_its_retryable() {
        for code in ErrorCode::ALL {
            let error = ClientError::from_problem(Problem::new(*code, "x"), 1);
            assert_eq!(error.code(), Some(*code));
            match code.retryable() {
                Retryable::SameRequest => assert_eq!(error.action(), Action::RetryLater, "{code}"),
                Retryable::AfterResolving => assert_eq!(error.action(), Action::ResolveAgain, "{code}"),
                Retryable::Never => assert_ne!(error.action(), Action::RetryLater, "{code}"),
            }
        }
    }

    #[test]
    fn fenced_by_a_node_life_asks_for_a_rewrite_and_by_an_owner_to_stand_down() {
        let fenced = |fill: fn(&mut Problem)| {
            let mut problem = Problem::new(ErrorCode::Fenced, "x");
            fill(&mut problem);
            ClientError::from_problem(problem, 1).action()
        };
        assert_eq!(fenced(|problem| problem.life = Some("00000000000000a1".to_owned())), Action::RewriteAttempt);
        assert_eq!(fenced(|problem| problem.epoch = Some(2)), Action::StandDown);
        assert_eq!(fenced(|problem| problem.attempt = Some("1.0".to_owned())), Action::StandDown);
        assert_eq!(fenced(|_| ()), Action::StandDown);
    }

    #[test]
    fn silence_is_not_loss() {
        assert!(!ClientError::Transport { detail: String::new(), attempts: 3, source: None }.is_lost());
    }
}

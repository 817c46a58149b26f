//! How a command failed, and the exit code for it.

use std::fmt;

/// What kind of failure it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// Refused, or failed on the way.
    Failed,
    /// The command line or the configuration is wrong.
    Usage,
    /// What was asked for is not there.
    Absent,
}

impl FailureKind {
    /// The exit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Absent => 3,
        }
    }
}

/// A failure of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its kind.
    pub kind: FailureKind,
    message: String,
}

impl Failure {
    /// Refused or failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Failed, message: message.into() }
    }

    /// A wrong command line or configuration.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Usage, message: message.into() }
    }

    /// Not there.
    pub fn absent(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Absent, message: message.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// An error with its causes, for the operator who sits before it.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut at = error.source();
    // Ends with the chain; chains are made of few links.
    while let Some(cause) = at {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        at = cause.source();
    }
    text
}

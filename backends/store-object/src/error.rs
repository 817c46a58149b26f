//! Errors of the object store, told apart by what shall be done about them.
//!
//! The client library knows many errors and few of them say whether trying again helps. [`Fault`] is
//! the whole vocabulary that the rest of this crate works with; the text of the library's error is
//! kept for the log, with every configured secret taken out.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use store_api::{Operation, StoreError, StoreErrorKind};

/// What callers are told to wait when the object store does not answer.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Texts in the body of a 400 (or of a 200 that carries an error) that say "try again".
const PASSING: [&str; 6] = ["RequestTimeout", "SlowDown", "InternalError", "ServerBusy", "ServiceUnavailable", "OperationTimedOut"];

/// What went wrong, by what can be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The object is not there.
    Missing,
    /// A conditional write found something else than expected.
    Exists,
    /// It may work later.
    Passing,
    /// The medium is full.
    Full,
    /// The credentials are refused.
    Denied,
    /// The store does not know the operation.
    Unsupported,
    /// The same request will fail again.
    Permanent,
}

/// Texts that must never be printed.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Arc<[String]>);

impl Secrets {
    /// Secrets shorter than 4 characters are left out: hiding them would garble every text.
    pub(crate) fn new(secrets: impl IntoIterator<Item = String>) -> Self {
        Self(secrets.into_iter().filter(|secret| secret.len() >= 4).collect())
    }

    /// The text without any of the secrets.
    pub(crate) fn hide(&self, mut text: String) -> String {
        for secret in self.0.iter().filter(|secret| !secret.is_empty()) {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), "[secret]");
            }
        }
        text
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

/// An error of the object store.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{text}")]
pub(crate) struct BucketError {
    /// What can be done.
    pub(crate) fault: Fault,
    text: Arc<str>,
}

impl BucketError {
    /// Sorts an error of the client library.
    pub(crate) fn sort(error: &object_store::Error, secrets: &Secrets) -> Self {
        let text = secrets.hide(chain(error));
        Self { fault: fault(error, &text), text: text.into() }
    }

    /// An error that this crate found by itself.
    pub(crate) fn own(fault: Fault, text: impl Into<Arc<str>>) -> Self {
        Self { fault, text: text.into() }
    }

    /// Whether trying again can help.
    pub(crate) const fn is_passing(&self) -> bool {
        matches!(self.fault, Fault::Passing)
    }

    /// The error as callers of the store see it.
    pub(crate) fn explain(self, operation: Operation, subject: impl fmt::Display) -> StoreError {
        let kind = match self.fault {
            Fault::Missing => StoreErrorKind::NotFound,
            Fault::Exists => StoreErrorKind::Conflict,
            Fault::Passing => StoreErrorKind::Unavailable { retry_after: RETRY_AFTER },
            Fault::Full => StoreErrorKind::DiskFull,
            Fault::Denied => StoreErrorKind::Unsupported { reason: "the object store refuses the credentials or the permission" },
            Fault::Unsupported => StoreErrorKind::Unsupported { reason: "the object store does not offer an operation that is needed" },
            Fault::Permanent => StoreErrorKind::Internal,
        };
        StoreError::new(kind, operation, subject).with_source(self)
    }
}

fn chain(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

fn fault(error: &object_store::Error, text: &str) -> Fault {
    use object_store::Error as E;
    match error {
        E::NotFound { .. } => Fault::Missing,
        E::AlreadyExists { .. } | E::Precondition { .. } => Fault::Exists,
        E::NotSupported { .. } | E::NotImplemented { .. } => Fault::Unsupported,
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => Fault::Denied,
        E::InvalidPath { .. } | E::NotModified { .. } | E::UnknownConfigurationKey { .. } => Fault::Permanent,
        E::Generic { .. } => generic_fault(error, text),
        _ => Fault::Passing,
    }
}

fn generic_fault(error: &object_store::Error, text: &str) -> Fault {
    if is_full(error) {
        return Fault::Full;
    }
    // What the store in memory says of an upload that was finished or ended.
    if text.contains("MultipartUpload not found") {
        return Fault::Missing;
    }
    let is_passing = PASSING.iter().any(|passing| text.contains(passing));
    match status(text) {
        Some(501 | 405) => Fault::Unsupported,
        Some(401 | 403) => Fault::Denied,
        Some(404 | 410) => Fault::Missing,
        Some(408 | 425 | 429) => Fault::Passing,
        Some(300..=499) if !is_passing => Fault::Permanent,
        _ => Fault::Passing,
    }
}

/// The client library keeps the type that knows the status private; its text is all there is.
fn status(text: &str) -> Option<u16> {
    let (_, after) = text.split_once("status code: ")?;
    after.get(..3)?.parse().ok()
}

fn is_full(error: &object_store::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(cause) = cause.downcast_ref::<std::io::Error>() {
            return matches!(cause.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded);
        }
        source = cause.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: text.to_owned().into() }
    }

    fn sorted(text: &str) -> Fault {
        BucketError::sort(&generic(text), &Secrets::default()).fault
    }

    #[test]
    fn answers_that_pass_are_told_from_those_that_stay() {
        for status in ["408", "429", "500", "502", "503", "504"] {
            assert_eq!(sorted(&format!("Server returned non-2xx status code: {status} X: body")), Fault::Passing, "{status}");
        }
        let idle = "Server returned non-2xx status code: 400 Bad Request: <Code>RequestTimeout</Code>";
        assert_eq!(sorted(idle), Fault::Passing);
        assert_eq!(sorted("Server returned error response: <Code>SlowDown</Code>"), Fault::Passing);
        assert_eq!(sorted("connection reset by peer"), Fault::Passing);
        assert_eq!(sorted("Server returned non-2xx status code: 400 Bad Request: <Code>InvalidArgument</Code>"), Fault::Permanent);
        assert_eq!(sorted("Server returned non-2xx status code: 501 Not Implemented: "), Fault::Unsupported);
    }

    #[test]
    fn a_full_disk_is_told_from_other_faults() {
        let source = Box::new(std::io::Error::from(std::io::ErrorKind::StorageFull));
        let error = object_store::Error::Generic { store: "LocalFileSystem", source };
        assert_eq!(BucketError::sort(&error, &Secrets::default()).fault, Fault::Full);
    }

    #[test]
    fn secrets_are_taken_out_of_every_text() {
        let secrets = Secrets::new(["s3cr3t".to_owned(), "ab".to_owned()]);
        let error = BucketError::sort(&generic("GET https://x/?sig=s3cr3t failed, s3cr3t!"), &secrets);
        let shown = format!("{error} {error:?} {secrets:?} {:?}", error.clone().explain(Operation::Read, "x"));
        assert!(!shown.contains("s3cr3t"), "{shown}");
        assert!(shown.contains("[secret]"));
    }
}

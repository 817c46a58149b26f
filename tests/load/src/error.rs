//! What makes a run fail. A failed check is a failure like any other: no figure comes out of it.

/// Why a run gives no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// An answer was not what was asked for, or a tool did not do its part.
    #[error("{0}")]
    Check(String),
    /// The client gave up.
    #[error(transparent)]
    Client(#[from] forebay_client::ClientError),
    /// The object store's own client gave up.
    #[error("object store: {0}")]
    Object(#[from] object_store::Error),
    /// The system refused a process, a socket or a file.
    #[error("system: {0}")]
    System(#[from] std::io::Error),
    /// A document could not be read or written.
    #[error("document: {0}")]
    Document(#[from] serde_json::Error),
}

impl LoadError {
    /// A failed check.
    pub(crate) fn check(text: impl Into<String>) -> Self {
        Self::Check(text.into())
    }
}

/// The result of everything that can fail here.
pub(crate) type Result<T> = std::result::Result<T, LoadError>;

/// Fails the run unless a claim holds.
pub(crate) fn ensure(claim: bool, text: impl FnOnce() -> String) -> Result<()> {
    if claim { Ok(()) } else { Err(LoadError::Check(text())) }
}

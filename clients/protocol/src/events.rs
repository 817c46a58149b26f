//! The documents of a job's event stream (server-sent events).

use crate::partitions::Location;
use serde::{Deserialize, Serialize};

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A partition was sealed.
    Sealed,
    /// A partition was found lost.
    Lost,
    /// A partition, dataset or job was released.
    Released,
    /// The lease of the job ran out.
    Expired,
    /// A higher generation superseded a partition's content.
    Superseded,
    /// The cursor is too old or of another life of the node: ask for availability, then follow on.
    Reset,
}

impl EventKind {
    /// The name, as it stands in the `event:` line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sealed => "sealed",
            Self::Lost => "lost",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Superseded => "superseded",
            Self::Reset => "reset",
        }
    }
}

/// One event. Its `id:` line is the cursor `{life}-{sequence}` to resume after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventDocument {
    /// What happened.
    pub kind: EventKind,
    /// The job.
    pub job: String,
    /// The dataset, unless the whole job is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// The partition, unless the whole dataset or job is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u64>,
    /// The attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<String>,
    /// Where it is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<Location>,
    /// Why it is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

//! What the owner of a job decides about its recovery.

use std::time::Duration;

/// Which tasks a plan may restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Everything that was ever deployed.
    Full,
    /// What failed, and nothing else.
    Individual(Fallback),
    /// The least set that gives every reader every byte, once, of one version.
    Region,
}

/// What to do when the failed tasks alone do not suffice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Fallback {
    /// Plan as [`Strategy::Region`] and say so.
    #[default]
    Escalate,
    /// Plan nothing and list every obstacle.
    Refuse,
    /// Restart the failed tasks all the same. Bytes may be missing or doubled; the plan lists where.
    Lossy,
}

/// Whether a declaration that a vertex repeats itself byte for byte is believed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Determinism {
    /// Where the store can compare digests, so that a false declaration is found out.
    #[default]
    Verified,
    /// Always.
    Believed,
    /// Never.
    Ignored,
}

/// The policy of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Which tasks may be restarted.
    pub strategy: Strategy,
    /// How long bytes that cannot be reached count as there.
    pub suspect_grace: Duration,
    /// Whether declarations of determinism are believed.
    pub determinism: Determinism,
}

/// Grace of suspects unless a job says otherwise: the time after which a silent node counts as lost.
pub const DEFAULT_SUSPECT_GRACE: Duration = Duration::from_secs(50);

impl Default for Policy {
    fn default() -> Self {
        Self { strategy: Strategy::Region, suspect_grace: DEFAULT_SUSPECT_GRACE, determinism: Determinism::default() }
    }
}

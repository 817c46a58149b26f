//! The configuration: one TOML file, then the environment, then flags; later ones win.
//!
//! | part | what it is |
//! |---|---|
//! | `node`, `http`, `coordinator`, `auth`, `store`, `lease`, `limits` | the sections, each setting with its default and reason |
//! | `units`, `secret` | sizes and times with their units; texts that are never printed |
//! | `schema` | how sections are declared and read |
//! | `sources` | file, environment and flags, laid over one another |
//! | `budgets` | the parts of the memory budget |
//! | `validate` | what must fit together |
//! | `show` | the commented example, and the configuration in force |
//!
//! Every problem is reported at once, each with the name of its setting. It knows nothing of the
//! stores or the service: what is built from it reads it.

mod auth;
mod budgets;
mod coordinator;
mod http;
mod lease;
mod limits;
mod node;
pub(crate) mod schema;
mod secret;
mod show;
mod sources;
mod store;
#[cfg(test)]
mod tests;
mod units;
mod validate;

pub use auth::Auth;
pub use budgets::Budgets;
pub use coordinator::{Coordinator, Role};
pub use http::{DEFAULT_PORT, Http, Shutdown, Tls};
pub use lease::Lease;
pub use limits::{Limits, Log, LogFormat};
pub use node::Node;
pub use secret::{REDACTED, Secret};
pub use show::{example, show};
pub use sources::{Sources, load};
pub use store::{Azure, Disk, Gcs, Memory, Object, ObjectDirectory, ObjectKind, S3, Sync};
pub use units::{ByteSize, TimeSpan, UnitError};

use std::path::{Path, PathBuf};

schema::section! {
    /// Configuration of a Forebay node.
    ///
    /// Every setting may also be given in the environment, as FOREBAY_SECTION__KEY (two underscores
    /// between the names, FOREBAY_OBJECT__S3__BUCKET for a section inside a section), and stands
    /// over the file there; flags stand over both. Times carry their unit ("30s", "250ms", "5m"),
    /// sizes too ("64MiB", "1.5GB"); a plain number is a size in bytes.
    Config {
        => {
            /// Who this node is and what it may use.
            node: Node;
            /// The port.
            http: Http;
            /// TLS.
            tls: Tls;
            /// Tokens.
            auth: Auth;
            /// Pipelined partitions.
            memory: Memory;
            /// Blocking partitions.
            disk: Disk;
            /// Durable partitions.
            object: Object;
            /// Leases of jobs.
            lease: Lease;
            /// Who coordinates.
            coordinator: Coordinator;
            /// Limits of calls.
            limits: Limits;
            /// The end of the process.
            shutdown: Shutdown;
            /// The log.
            log: Log;
        }
    }
}

/// What is wrong with a configuration: everything that was found, one line each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the configuration cannot be used:\n  {}", problems.join("\n  "))]
pub struct ConfigError {
    /// The problems.
    pub problems: Vec<String>,
}

impl ConfigError {
    fn one(problem: impl Into<String>) -> Self {
        Self { problems: vec![problem.into()] }
    }
}

impl Config {
    /// What runs when there is no file: on loopback, with everything in one directory, and durable
    /// partitions in a directory in place of an object store.
    #[must_use]
    pub fn embedded() -> Self {
        let mut config = Self::default();
        config.object.kind = ObjectKind::Directory;
        config.object.directory.opt_in = true;
        config
    }

    /// Directories of the data files of blocking partitions.
    #[must_use]
    pub fn disk_directories(&self) -> Vec<PathBuf> {
        self.or_inside(&self.disk.directories, "blocking")
    }

    /// Directory of the index.
    #[must_use]
    pub fn index_directory(&self) -> PathBuf {
        self.disk.index_directory.clone().unwrap_or_else(|| self.node.directory.join("index"))
    }

    /// Directories of the spill files.
    #[must_use]
    pub fn spill_directories(&self) -> Vec<PathBuf> {
        self.or_inside(&self.memory.spill_directories, "spill")
    }

    /// The directory in place of an object store.
    #[must_use]
    pub fn object_directory(&self) -> PathBuf {
        self.object.directory.path.clone().unwrap_or_else(|| self.node.directory.join("objects"))
    }

    fn or_inside(&self, named: &[PathBuf], name: &str) -> Vec<PathBuf> {
        if named.is_empty() { vec![self.node.directory.join(name)] } else { named.to_vec() }
    }

    /// The admin token, from wherever it stands; `None` when tokens are off. Reads its file. Errors:
    /// the file cannot be read or holds no token.
    pub fn admin_token(&self) -> Result<Option<Secret>, ConfigError> {
        let token = secret_of(self.auth.admin_token.as_ref(), self.auth.admin_token_file.as_deref(), "auth.admin_token_file")?;
        match token {
            Some(token) if !validate::is_token(token.reveal()) => {
                Err(ConfigError::one("auth.admin_token: a token has 16 to 256 visible ASCII characters"))
            }
            token => Ok(token),
        }
    }
}

/// A secret that stands in the configuration or in a file. Errors: the file cannot be read or is
/// empty.
pub(crate) fn secret_of(inline: Option<&Secret>, file: Option<&Path>, setting: &str) -> Result<Option<Secret>, ConfigError> {
    let Some(path) = file else { return Ok(inline.cloned()) };
    let text = std::fs::read_to_string(path).map_err(|error| ConfigError::one(format!("{setting}: cannot be read: {error}")))?;
    match text.lines().next().map(str::trim).filter(|line| !line.is_empty()) {
        Some(line) => Ok(Some(Secret::new(line))),
        None => Err(ConfigError::one(format!("{setting}: the first line is empty"))),
    }
}

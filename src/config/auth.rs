//! `[auth]`: the admin token, and the way to say that none is wanted.

use super::schema::section;
use super::secret::Secret;
use std::path::PathBuf;

section! {
    /// Tokens. On when an admin token is set; every job then has a token of its own, answered when it
    /// is created. Only hashes of tokens are kept.
    Auth {
        /// The admin token: 16 to 256 visible ASCII characters. Better in a file or the environment.
        admin_token: Option<Secret> = None;
        /// File whose first line is the admin token.
        admin_token_file: Option<PathBuf> = None;
        /// Accepts an address that others can reach without tokens or without TLS. Whoever reaches
        /// the port can then read and release everything. Only behind something that protects it.
        insecure: bool = false;
    }
}

impl Auth {
    /// Whether tokens are on.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.admin_token.is_some() || self.admin_token_file.is_some()
    }
}

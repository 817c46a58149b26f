//! Texts that are never printed.

use std::fmt;

/// What stands in place of a secret wherever a configuration is shown.
pub const REDACTED: &str = "[secret]";

/// A text that no formatting shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one place that needs it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_formatting_shows_a_secret() {
        let secret = Secret::new("MARKER");
        assert_eq!(format!("{secret} {secret:?} {:#?}", Some(&secret)).matches("MARKER").count(), 0);
        assert_eq!(secret.reveal(), "MARKER");
    }
}

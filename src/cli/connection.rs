//! Where the node is and how it is spoken to, for every command that asks one.

use super::outcome::with_causes;
use super::{Failure, FailureKind};
use clap::Args;
use forebay_client::{Client, ClientError};
use std::path::PathBuf;

/// Where the node is.
#[derive(Clone, Args)]
pub(super) struct ConnectionArguments {
    /// Base URL of the node
    #[arg(long, value_name = "URL", env = "FOREBAY_URL", default_value = "http://127.0.0.1:7440", global = true)]
    url: String,
    /// Token of the job, or the admin token
    #[arg(long, value_name = "TOKEN", env = "FOREBAY_TOKEN", hide_env_values = true, conflicts_with = "token_file", global = true)]
    token: Option<String>,
    /// File whose first line is the token
    #[arg(long, value_name = "FILE", env = "FOREBAY_TOKEN_FILE", global = true)]
    token_file: Option<PathBuf>,
    /// PEM file with the authorities that may vouch for the node; those of the system without it
    #[arg(long, value_name = "FILE", env = "FOREBAY_CA_FILE", global = true)]
    ca_file: Option<PathBuf>,
    /// One JSON object per line instead of text for people
    #[arg(long, global = true)]
    pub(super) json: bool,
}

impl std::fmt::Debug for ConnectionArguments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionArguments").field("url", &self.url).finish_non_exhaustive()
    }
}

impl ConnectionArguments {
    /// A client of the node; connects to nothing yet. Errors: usage.
    pub(super) fn client(&self) -> Result<Client, Failure> {
        let read = |path: &PathBuf| std::fs::read(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())));
        let mut builder = Client::builder(self.url.clone());
        if let Some(path) = &self.token_file {
            let text = String::from_utf8(read(path)?).map_err(|_| Failure::usage("the token file is not text"))?;
            builder = builder.token(text.lines().next().unwrap_or_default().trim());
        } else if let Some(token) = &self.token {
            builder = builder.token(token.clone());
        }
        if let Some(path) = &self.ca_file {
            builder = builder.ca_pem(read(path)?);
        }
        builder.build().map_err(failure)
    }
}

/// A refusal of the node, or what kept it from being asked, as the failure of a command.
#[expect(clippy::needless_pass_by_value, reason = "stands in map_err")]
pub(super) fn failure(error: ClientError) -> Failure {
    let kind = kind_of(&error);
    let text = with_causes(&error);
    match kind {
        FailureKind::Absent => Failure::absent(text),
        FailureKind::Usage => Failure::usage(text),
        FailureKind::Failed => Failure::failed(text),
    }
}

fn kind_of(error: &ClientError) -> FailureKind {
    if matches!(error, ClientError::Invalid { .. }) {
        return FailureKind::Usage;
    }
    let is_absent = matches!(
        error,
        ClientError::NeverExisted(_) | ClientError::Released(_) | ClientError::Lost { .. } | ClientError::BelowFloor { .. }
    );
    if is_absent { FailureKind::Absent } else { FailureKind::Failed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_protocol::{ErrorCode, Problem};

    #[test]
    fn each_code_has_the_exit_code_of_its_meaning() {
        let code_of = |code| failure(ClientError::from_problem(Problem::new(code, "x"), 1)).kind.code();
        for gone in [ErrorCode::UnknownJob, ErrorCode::UnknownPartition, ErrorCode::Released, ErrorCode::Expired, ErrorCode::Lost] {
            assert_eq!(code_of(gone), 3, "{gone}");
        }
        for refused in [ErrorCode::Forbidden, ErrorCode::OverQuota, ErrorCode::Overloaded, ErrorCode::Internal, ErrorCode::NotSealed] {
            assert_eq!(code_of(refused), 1, "{refused}");
        }
    }

    #[test]
    fn the_token_is_in_no_printed_form() {
        let arguments =
            ConnectionArguments { url: "http://h".into(), token: Some("MARKER".into()), token_file: None, ca_file: None, json: false };
        assert!(!format!("{arguments:?}").contains("MARKER"));
    }
}

//! `forebay config`: prints, checks and shows configurations.

use super::Failure;
use super::serve::ConfigSources;
use crate::config;
use clap::{ArgGroup, Args};
use std::io::Write as _;
use std::path::PathBuf;

/// Arguments of `config`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("what").required(true).args(["example", "check", "show"])))]
pub(super) struct ConfigArguments {
    /// Prints a complete file with every setting at its default and its reason
    #[arg(long)]
    example: bool,
    /// Checks a file, together with the environment; prints every problem
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// Prints the configuration in force, secrets left out
    #[arg(long)]
    show: bool,
    #[command(flatten)]
    sources: ConfigSources,
}

pub(super) fn run(arguments: &ConfigArguments) -> Result<(), Failure> {
    if arguments.example {
        return print(&config::example());
    }
    let mut sources = arguments.sources.clone();
    if let Some(file) = &arguments.check {
        sources.config = Some(file.clone());
    }
    let loaded = sources.load()?;
    if arguments.show {
        return print(&config::show(&loaded));
    }
    // Whoever checks wants to hear of a token file that is missing now, not at the next start.
    loaded.admin_token().map_err(|error| Failure::usage(error.to_string()))?;
    print("the configuration is in order\n")
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| Failure::failed(format!("standard output: {error}")))
}

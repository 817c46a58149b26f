//! Claims about the command line.

use super::*;
use clap::CommandFactory as _;

fn parse(line: &str) -> Result<CommandLine, clap::Error> {
    CommandLine::try_parse_from(line.split_whitespace())
}

#[test]
fn the_command_line_is_consistent() {
    CommandLine::command().debug_assert();
}

#[test]
fn known_commands_are_taken() {
    for line in [
        "forebay serve",
        "forebay serve --config a.toml --listen 127.0.0.1:0 --data-dir /tmp/x --ready-file r.json --set lease.min=2s",
        "forebay config --example",
        "forebay config --check a.toml",
        "forebay config --show --config a.toml",
        "forebay put j/d/0/1 file --kind durable --subpartitions 4 --attempt 1.2",
        "forebay put j/d/0 --json --url http://h:1 --token-file t",
        "forebay get j/d/0/1 --from 5 --to 9",
        "forebay get j/d/0 out --follow",
        "forebay stat j/d/0",
        "forebay ls",
        "forebay ls j/d --json",
        "forebay rm j",
        "forebay get j/d/0 --to 9 --follow",
    ] {
        assert!(parse(line).is_ok(), "{line}");
    }
}

#[test]
fn wrong_lines_are_usage_errors() {
    for line in [
        "forebay",
        "forebay serf",
        "forebay serve --listen nowhere",
        "forebay serve --set nonsense",
        "forebay config",
        "forebay config --example --show",
        "forebay put",
        "forebay put j",
        "forebay put ../x/d/0",
        "forebay put j/d/0 --kind hot",
        "forebay put j/d/0 --attempt 1",
        "forebay rm",
        "forebay stat j --token a --token-file b",
    ] {
        assert!(parse(line).is_err_and(|error| error.use_stderr() || error.exit_code() == 2), "{line}");
    }
}

#[test]
fn exit_codes_are_those_in_the_help() {
    let help = CommandLine::command().render_long_help().to_string();
    for (kind, text) in [(FailureKind::Failed, "1 refused"), (FailureKind::Usage, "2 wrong"), (FailureKind::Absent, "3 not there")] {
        assert!(text.starts_with(&kind.code().to_string()) && help.contains(text), "{text}");
    }
}

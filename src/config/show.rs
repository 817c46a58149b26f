//! The commented example and the configuration in force, both made from the declarations.

use super::Config;
use super::schema::{Part, Section};
use std::fmt::Write as _;

/// A complete configuration file with every setting at its default, each with its comment.
#[must_use]
pub fn example() -> String {
    render(&Config::default(), true)
}

/// The configuration as a file, secrets replaced.
#[must_use]
pub fn show(config: &Config) -> String {
    render(config, false)
}

fn render(config: &Config, has_comments: bool) -> String {
    let mut parts = Vec::new();
    config.parts("", &mut parts);
    let mut text = String::new();
    for part in &parts {
        // Writing to a string cannot fail.
        let _ = write_part(&mut text, part, has_comments);
    }
    text
}

fn write_part(out: &mut String, part: &Part, has_comments: bool) -> std::fmt::Result {
    if !out.is_empty() {
        out.push('\n');
    }
    if has_comments {
        write_comment(out, part.docs)?;
    }
    if !part.path.is_empty() {
        writeln!(out, "[{}]", part.path)?;
    }
    for entry in &part.entries {
        if has_comments {
            write_comment(out, entry.docs)?;
        }
        match &entry.value {
            Some(value) => writeln!(out, "{} = {value}", entry.name)?,
            None if has_comments => writeln!(out, "#{} = {}", entry.name, entry.sample)?,
            None => {}
        }
    }
    Ok(())
}

fn write_comment(out: &mut String, docs: &[&str]) -> std::fmt::Result {
    for line in docs {
        writeln!(out, "#{}", line.trim_end())?;
    }
    Ok(())
}

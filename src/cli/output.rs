//! What commands print: JSON lines for programs, text and a progress bar for people.

use super::Failure;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::io::{self, IsTerminal as _, Write as _};

/// Prints one answer. With `is_json`, one line of JSON; otherwise one `name: value` line per member.
/// Errors: standard output is closed.
pub(super) fn print(value: &Value, is_json: bool) -> Result<(), Failure> {
    let mut text = String::new();
    if is_json {
        text.push_str(&value.to_string());
        text.push('\n');
    } else {
        flatten("", value, &mut text);
    }
    write_out(text.as_bytes())
}

/// Prints bytes to standard output. Errors: it is closed.
pub(super) fn write_out(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| Failure::failed(format!("standard output: {error}")))
}

/// Tells whoever sits before the terminal; nobody is left to tell when that is closed.
pub(super) fn tell(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

fn flatten(path: &str, value: &Value, out: &mut String) {
    let mut line = |text: String| {
        out.push_str(path);
        out.push_str(": ");
        out.push_str(&text);
        out.push('\n');
    };
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(&inner, member, out);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            for (number, item) in items.iter().enumerate() {
                flatten(&format!("{path}[{number}]"), item, out);
            }
        }
        Value::String(text) => line(text.clone()),
        Value::Null => {}
        other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_)) => line(other.to_string()),
    }
}

/// Bytes that have gone by: a bar on a terminal, nothing elsewhere.
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// A bar on standard error, if that is a terminal and text is wanted.
    pub(super) fn new(total_bytes: Option<u64>, is_json: bool) -> Self {
        if is_json || !io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let (bar, template) = match total_bytes {
            Some(total) => (ProgressBar::new(total), "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}"),
            None => (ProgressBar::new_spinner(), "{spinner} {bytes} {bytes_per_sec}"),
        };
        // The templates are constants: when one is wrong, the bar looks plain.
        Self(match ProgressStyle::with_template(template) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        })
    }

    /// More bytes went by.
    pub(super) fn add(&self, bytes: usize) {
        self.0.inc(bytes as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn people_get_one_line_per_member() {
        let mut text = String::new();
        flatten("", &json!({"job": "j", "held": {"memory": 1}, "lengths": [1, 2], "list": [{"a": true}], "none": null}), &mut text);
        for line in ["job: j\n", "held.memory: 1\n", "lengths: [1,2]\n", "list[0].a: true\n"] {
            assert!(text.contains(line), "{line:?} is not in {text:?}");
        }
        assert!(!text.contains("none"));
    }

    #[test]
    fn templates_are_well_formed() {
        for template in ["{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}", "{spinner} {bytes} {bytes_per_sec}"] {
            assert!(ProgressStyle::with_template(template).is_ok());
        }
    }
}

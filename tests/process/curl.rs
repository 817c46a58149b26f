//! The tour of the README: a session with curl and nothing else.

use super::support::{LIMIT, Spec};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;

/// Stands in the README before the block that quotes the tour.
const MARKER: &str = "<!-- tour -->";

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/process/tour.sh")
}

/// The lines that a reader types: all but those that make it a script.
fn typed_lines(script: &str) -> Vec<&str> {
    script.lines().map(str::trim_end).filter(|line| !line.is_empty() && !line.starts_with("#!") && *line != "set -euo pipefail").collect()
}

/// The lines of the first fenced block after the marker; `None` without a marker.
fn quoted_lines(document: &str) -> Option<Vec<&str>> {
    let (_, after) = document.split_once(MARKER)?;
    let block = after.lines().skip_while(|line| !line.starts_with("```")).skip(1).take_while(|line| !line.starts_with("```"));
    Some(block.map(str::trim_end).filter(|line| !line.is_empty()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tour_of_the_readme_works_with_curl_alone() {
    let root = tempfile::tempdir().expect("a directory");
    let node = Spec::new(&root.path().join("node")).start().await;
    let mut command = Command::new("bash");
    command.arg("-x").arg(script()).env("FOREBAY_URL", &node.api.url).env("no_proxy", "*");
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(LIMIT, command.output()).await.expect("it ends").expect("bash and curl are there");
    let (shown, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{shown}\n{errors}");
    let mut rest: &str = &shown;
    let expected = [
        "\"epoch\":1",
        "\"kind\":\"blocking\"",
        "\"end_offset\":18",
        "\"result\":\"won\"",
        "hello, consumer 3\n",
        "consumer",
        "\"code\":\"unknown_job\"",
        "\"code\":\"unknown_partition\"",
        "\"n_attempts\":1",
        "\"code\":\"released\"",
    ];
    for text in expected {
        let at = rest.find(text).unwrap_or_else(|| panic!("{text} is not in the rest of the tour: {rest}\nall of it: {shown}"));
        rest = &rest[at + text.len()..];
    }
}

#[test]
fn the_readme_quotes_the_tour_word_for_word() {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).expect("the README");
    let tour = std::fs::read_to_string(script()).expect("the tour");
    let typed = typed_lines(&tour);
    assert!((10..=15).contains(&typed.len()), "the tour has {} lines", typed.len());
    if let Some(quoted) = quoted_lines(&readme) {
        assert_eq!(quoted, typed, "the README quotes another tour than tests/process/tour.sh");
    }
}

#[test]
fn a_quote_that_differs_is_found() {
    let tour = "#!/usr/bin/env bash\nset -euo pipefail\n\ncurl a\ncurl b\n";
    let same = format!("# X\n{MARKER}\ntext\n```bash\ncurl a\n\ncurl b\n```\n```\nother\n```\n");
    assert_eq!(quoted_lines(&same), Some(typed_lines(tour)));
    let other = format!("{MARKER}\n```bash\ncurl a\n```\n");
    assert_ne!(quoted_lines(&other), Some(typed_lines(tour)));
    assert_eq!(quoted_lines("no marker\n```\ncurl a\n```\n"), None);
}

//! Holds the structure that ARCHITECTURE.md states: arrows between modules, absences, sizes of
//! files, names, links in the documents. Reads sources as text; runs nothing of them.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Most production lines of a file.
const MAX_PRODUCTION_LINES: usize = 600;
/// Most `unwrap` and `expect` calls per 1,000 production lines.
const MAX_UNWRAPS_PER_1000: usize = 3;

/// Module of `src/` → modules of `src/` that it may import. What is not listed imports nothing.
const ARROWS: &[(&str, &[&str])] = &[
    ("cli", &["config", "demo", "node", "shutdown", "telemetry"]),
    ("node", &["config", "coordinator", "http", "metrics", "node_identity", "server", "service", "shutdown", "store_stack"]),
    ("server", &["http", "shutdown"]),
    ("http", &["coordinator", "recovery", "service", "shutdown"]),
    ("coordinator", &["recovery"]),
    ("store_stack", &["config", "layer", "metrics"]),
    ("layer", &["metrics"]),
    ("telemetry", &["config"]),
    ("config", &[]),
    ("demo", &[]),
    ("metrics", &[]),
    ("node_identity", &[]),
    ("recovery", &[]),
    ("service", &[]),
    ("shutdown", &[]),
    ("test_time", &[]),
];

/// (what must not appear in production code, where it may appear all the same).
const ABSENCES: &[(&str, &[&str])] = &[
    ("axum::", &["src/http", "src/server"]),
    ("rocksdb::", &["backends/store-disk"]),
    ("object_store::", &["backends/store-object"]),
    ("tokio::spawn", &["backends/store-api/src/task.rs"]),
    ("Instant::now", &["backends/store-api/src/clock.rs"]),
    ("SystemTime::now", &["backends/store-api/src/clock.rs"]),
    ("static mut", &[]),
    ("unbounded_channel", &[]),
    ("todo!", &[]),
    ("unimplemented!", &[]),
];

/// Name parts that say nothing.
const EMPTY_NAMES: &[&str] = &["manager", "helper", "helpers", "util", "utils", "common", "misc"];

struct Source {
    path: String,
    production: String,
    /// Production code and the tests beside it; of the test kit, which is a test as a whole, nothing.
    with_tests: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn files_under(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let is_hidden = name.to_string_lossy().starts_with('.');
        if path.is_dir() && !is_hidden && name != "target" && name != "node_modules" {
            files_under(&path, ending, found);
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
}

fn is_test_path(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let in_test_folder = parts.iter().any(|part| matches!(*part, "tests" | "benches" | "examples" | "fuzz" | "store-testkit"));
    in_test_folder || path.ends_with("/tests.rs") || path.ends_with("_tests.rs")
}

/// Splits a file at its inline test module.
fn split_tests(text: &str) -> (&str, &str) {
    let mut from = 0;
    while let Some(at) = text[from..].find("#[cfg(test)]").map(|at| at + from) {
        let after = text[at..].lines().skip(1).find(|line| !line.trim_start().starts_with("#[")).unwrap_or_default();
        if after.trim_end().ends_with('{') && after.contains("mod ") {
            return text.split_at(at);
        }
        from = at + 1;
    }
    (text, "")
}

fn sources() -> Vec<Source> {
    let mut paths = Vec::new();
    files_under(&root(), "rs", &mut paths);
    assert!(paths.len() > 20, "the sources were not found");
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a source file is readable");
        let path = path.strip_prefix(root()).expect("it lies in the repository").to_string_lossy().into_owned();
        let production = if is_test_path(&path) { String::new() } else { split_tests(&text).0.to_owned() };
        let with_tests = if path.contains("store-testkit") { String::new() } else { text };
        Source { path, production, with_tests }
    };
    paths.into_iter().map(read).collect()
}

fn code_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"))
}

/// First path segments after `crate::` in a piece of code.
fn imported_modules(text: &str) -> BTreeSet<String> {
    let code: String = code_lines(text).collect::<Vec<_>>().join("\n");
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let names: Vec<String> = match rest.strip_prefix('{') {
            Some(group) => top_level_names(group),
            None => vec![rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()],
        };
        found.extend(names);
    }
    found
}

fn top_level_names(group: &str) -> Vec<String> {
    let (mut depth, mut names, mut current) = (0_usize, Vec::new(), String::new());
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(std::mem::take(&mut current)),
            _ if depth == 0 => current.push(c),
            _ => {}
        }
    }
    names.push(current);
    let first_word = |name: String| name.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    names.into_iter().map(first_word).filter(|name: &String| !name.is_empty()).collect()
}

fn module_of(path: &str, src: &str) -> Option<String> {
    let inside = path.strip_prefix(src)?;
    let name = inside.split('/').next()?.trim_end_matches(".rs");
    (!matches!(name, "lib" | "main" | "bin")).then(|| name.to_owned())
}

fn module_graph(src: &str, code: fn(&Source) -> &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources() {
        if let Some(module) = module_of(&source.path, src) {
            graph.entry(module).or_default().extend(imported_modules(code(&source)));
        }
    }
    let modules: BTreeSet<String> = graph.keys().cloned().collect();
    for (module, imports) in &mut graph {
        imports.retain(|import| modules.contains(import) && import != module);
    }
    graph
}

#[test]
fn arrows_between_modules_are_those_that_are_written_down() {
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    for (module, imports) in module_graph("src/", |source| &source.production) {
        let listed = allowed.get(module.as_str()).unwrap_or_else(|| panic!("module {module} is not in the table of arrows"));
        for import in imports {
            assert!(
                listed.contains(&import.as_str()),
                "{module} may not import {import}; a new arrow needs an ADR and a line in tests/tidy.rs"
            );
        }
    }
}

#[test]
fn no_crate_has_a_circle_of_modules() {
    let mut crates = vec!["src/".to_owned()];
    for parent in ["backends", "clients"] {
        for entry in fs::read_dir(root().join(parent)).expect("the folder is there").flatten() {
            crates.push(format!("{parent}/{}/src/", entry.file_name().to_string_lossy()));
        }
    }
    for src in crates {
        // Tests count: what imports them must not be what they import.
        let mut graph = module_graph(&src, |source| &source.with_tests);
        // Takes away modules without open imports until nothing is left; what stays is in a circle.
        while let Some(free) = graph.iter().find(|(_, imports)| imports.is_empty()).map(|(module, _)| module.clone()) {
            graph.remove(&free);
            graph.values_mut().for_each(|imports| {
                imports.remove(&free);
            });
        }
        assert!(graph.is_empty(), "{src}: these modules import each other in a circle: {graph:?}");
    }
}

#[test]
fn what_belongs_to_one_place_appears_nowhere_else() {
    for source in sources() {
        for (text, places) in ABSENCES {
            let is_at_home = places.iter().any(|place| source.path.starts_with(place));
            let hit = code_lines(&source.production).find(|line| line.contains(text));
            assert!(is_at_home || hit.is_none(), "{} holds `{text}`: {hit:?}", source.path);
        }
    }
}

#[test]
fn files_are_short_enough_to_proofread() {
    for source in sources() {
        let n_lines = source.production.lines().count();
        assert!(n_lines <= MAX_PRODUCTION_LINES, "{} has {n_lines} production lines, {MAX_PRODUCTION_LINES} are allowed", source.path);
    }
}

#[test]
fn unwraps_are_rare() {
    let all = sources();
    let n_production: usize = all.iter().map(|source| code_lines(&source.production).count()).sum();
    let count = |text: &str| text.matches(".unwrap()").count() + text.matches(".expect(").count();
    let n_unwraps: usize = all.iter().flat_map(|source| code_lines(&source.production)).map(count).sum();
    assert!(n_unwraps * 1000 <= MAX_UNWRAPS_PER_1000 * n_production, "{n_unwraps} unwrap/expect in {n_production} lines");
}

#[test]
fn names_say_something() {
    for source in sources() {
        let parts = source.path.trim_end_matches(".rs").split(['/', '_', '-']);
        for part in parts {
            assert!(!EMPTY_NAMES.contains(&part), "{}: `{part}` says nothing", source.path);
        }
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut documents = Vec::new();
    files_under(&root(), "md", &mut documents);
    assert!(!documents.is_empty());
    for document in documents {
        let text = fs::read_to_string(&document).expect("a document is readable");
        for (at, _) in text.match_indices("](") {
            let target: String = text[at + 2..].chars().take_while(|c| *c != ')' && *c != '#' && *c != '\n').collect();
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") || target.contains(' ') {
                continue;
            }
            let folder = document.parent().expect("a file lies in a folder");
            assert!(folder.join(&target).exists(), "{} links to {target}, which is not there", document.display());
        }
    }
}

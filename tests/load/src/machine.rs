//! Where it was measured, and from what.

use crate::site::version;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;
use tokio::process::Command;

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The value of the first line that starts with a name and a colon.
fn named<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.split(':').next().is_some_and(|found| found.trim() == name))?;
    line.split_once(':').map(|(_, value)| value.trim())
}

/// Type of the file system that holds a path: that of the longest mount point in front of it.
fn file_system(mounts: &str, path: &Path) -> Option<String> {
    let lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mounts = lines.filter_map(|fields| Some((*fields.get(1)?, *fields.get(2)?)));
    let holding = mounts.filter(|(mount, _)| path.starts_with(mount));
    holding.max_by_key(|(mount, _)| mount.len()).map(|(_, kind)| kind.to_owned())
}

/// Processor, memory, kernel and file system of this machine.
pub(crate) fn describe(scratch: &Path) -> Value {
    let (cpu, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let kib = named(&memory, "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok()).unwrap_or_default();
    json!({
        "cpu": named(&cpu, "model name").unwrap_or("unknown"),
        "cpus": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "memory_mib": kib / 1024,
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "file_system": file_system(&read("/proc/self/mounts"), scratch),
    })
}

/// Commit of a checkout, and whether files differ from it.
pub(crate) async fn commit(root: &Path) -> String {
    let ask = async |arguments: &[&str]| {
        let asked = Command::new("git").arg("-C").arg(root).args(arguments).stdin(Stdio::null()).output().await;
        asked.ok().filter(|output| output.status.success()).map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = ask(&["rev-parse", "HEAD"]).await else { return "unknown".to_owned() };
    // What the bench itself writes is no difference.
    let paths = ["status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench", ":!docs/performance.md", ":!docs/performance"];
    match ask(&paths).await {
        Some(changes) if changes.is_empty() => commit,
        _ => format!("{commit} with changes"),
    }
}

/// Versions of what Forebay is held against.
pub(crate) async fn references() -> Value {
    json!({
        "nginx": version("nginx", "-v").await,
        "fio": version("fio", "--version").await,
        "iperf3": version("iperf3", "--version").await,
        "s3": version("radosgw", "--version").await,
        "object_store": "as in Cargo.lock",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whole_and_the_longest_mount_holds_a_path() {
        let text = "MemTotalX: 1 kB\nMemTotal:   2048 kB\nmodel name\t: A: B\n";
        assert_eq!(named(text, "MemTotal"), Some("2048 kB"));
        assert_eq!(named(text, "model name"), Some("A: B"));
        let mounts = "d / ext4 rw 0 0\nt /tmp tmpfs rw 0 0\nx /tm xfs rw 0 0\n";
        assert_eq!(file_system(mounts, Path::new("/tmp/a")).as_deref(), Some("tmpfs"));
        assert_eq!(file_system(mounts, Path::new("/home")).as_deref(), Some("ext4"));
    }
}

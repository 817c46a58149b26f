//! Processor time and memory of processes, from `/proc`.

use crate::error::{LoadError, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const KIB_PER_MIB: f64 = 1024.0;

/// What a line of `/proc/PID/stat` says about a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    parent: u32,
    /// User and system time of the process and of children that were waited for, in clock ticks.
    ticks: u64,
}

/// The name stands in parentheses and may hold anything, so everything is counted from its end.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    // Fields 4 and 14 to 17 of proc(5), the state being field 3.
    let ticks = number(11)?.checked_add(number(12)?)?.checked_add(number(13)?)?.checked_add(number(14)?)?;
    Some(Stat { parent: u32::try_from(number(1)?).ok()?, ticks })
}

/// A size of `/proc/PID/status`, in MiB.
fn parse_status(text: &str, name: &str) -> Option<f64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: f64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / KIB_PER_MIB)
}

fn stats() -> Result<BTreeMap<u32, Stat>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // A process may end while it is looked at.
        if let Some(stat) = std::fs::read_to_string(entry.path().join("stat")).ok().and_then(|text| parse_stat(&text)) {
            found.insert(pid, stat);
        }
    }
    Ok(found)
}

/// The process and everything that descends from it.
pub(crate) fn tree(root: u32) -> Result<Vec<u32>> {
    let stats = stats()?;
    let mut members = BTreeSet::from([root]);
    loop {
        let before = members.len();
        let children = stats.iter().filter(|(_, stat)| members.contains(&stat.parent)).map(|(pid, _)| *pid).collect::<Vec<_>>();
        members.extend(children);
        if members.len() == before {
            return Ok(members.into_iter().collect());
        }
    }
}

/// Processor seconds that these processes have used so far; one that is gone counts nothing.
pub(crate) fn cpu_seconds(pids: &[u32]) -> f64 {
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    let ticks: u64 = pids
        .iter()
        .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok())
        .filter_map(|text| parse_stat(&text))
        .map(|stat| stat.ticks)
        .sum();
    ticks as f64 / ticks_per_second.max(1) as f64
}

fn memory_mib(pids: &[u32], name: &str) -> f64 {
    let read = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/status")).ok();
    pids.iter().filter_map(read).filter_map(|text| parse_status(&text, name)).sum()
}

/// Most memory that these processes ever had resident, added up, in MiB. Pages that they share are
/// counted for each.
pub(crate) fn peak_mib(pids: &[u32]) -> f64 {
    memory_mib(pids, "VmHWM")
}

/// Memory that these processes have resident now, in MiB.
pub(crate) fn resident_mib(pids: &[u32]) -> f64 {
    memory_mib(pids, "VmRSS")
}

/// The value of a line of `/proc/PID/io`.
fn parse_io(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?.trim().parse().ok()
}

/// Bytes that these processes have sent towards disks so far. Errors: they cannot be asked.
pub(crate) fn written_bytes(pids: &[u32]) -> Result<f64> {
    let read = |pid: &u32| -> Result<f64> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/io"))?;
        let bytes = parse_io(&text, "write_bytes").ok_or_else(|| LoadError::check("/proc/PID/io has no write_bytes"))?;
        Ok(bytes as f64)
    };
    pids.iter().map(read).sum()
}

/// This process.
pub(crate) fn own_pid() -> Vec<u32> {
    vec![std::process::id()]
}

/// The process that a file names.
pub(crate) fn pid_from(file: &Path) -> Result<u32> {
    let text = std::fs::read_to_string(file)?;
    text.trim().parse().map_err(|_| LoadError::check(format!("{} holds no process id", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "42 (a) (b c) S 7 42 42 0 -1 4194560 100 0 0 0 250 50 3 2 20 0 9 0 12345 1000 200";

    #[test]
    fn a_name_with_parentheses_moves_no_field() {
        assert_eq!(parse_stat(LINE), Some(Stat { parent: 7, ticks: 305 }));
        assert_eq!(parse_stat("42 (x) S 7"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn sizes_are_in_mib() {
        let text = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(parse_status(text, "VmHWM"), Some(2.0));
        assert_eq!(parse_status(text, "VmRSS"), Some(1.0));
        assert_eq!(parse_status(text, "VmSwap"), None);
        assert_eq!(parse_io("wchar: 1\nwrite_bytes: 4096\ncancelled_write_bytes: 2\n", "write_bytes"), Some(4096));
    }

    #[test]
    fn this_process_is_in_its_own_tree_and_uses_memory() {
        let tree = tree(std::process::id()).unwrap();
        assert!(tree.contains(&std::process::id()));
        assert!(peak_mib(&tree) > 0.0 && resident_mib(&tree) > 0.0 && cpu_seconds(&tree) >= 0.0);
    }
}

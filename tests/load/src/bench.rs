//! What every workload is handed, and how a measurement is taken.

use crate::content::Pool;
use crate::error::{LoadError, Result};
use crate::figure::{Reading, Side};
use crate::plan::Plan;
use crate::usage;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use store_api::SharedClock;
use store_api::clock::within;

/// Longest single measurement.
const MEASUREMENT_LIMIT: Duration = Duration::from_hours(1);
pub(crate) const MIB: f64 = 1024.0 * 1024.0;
const GIB: f64 = MIB * 1024.0;

/// What every workload is handed.
#[derive(Debug)]
pub(crate) struct Bench {
    /// Time.
    pub(crate) clock: SharedClock,
    /// Volumes.
    pub(crate) plan: Plan,
    /// The binary that is measured.
    pub(crate) binary: PathBuf,
    /// The checkout, for its scripts.
    pub(crate) root: PathBuf,
    /// Content.
    pub(crate) pool: Pool,
    scratch: PathBuf,
}

impl Bench {
    /// A bench that works below `scratch`, which must be on the volume that is measured.
    pub(crate) fn new(clock: SharedClock, plan: Plan, binary: PathBuf, root: PathBuf, scratch: PathBuf) -> Self {
        Self { clock, plan, binary, root, pool: Pool::new(), scratch }
    }

    /// An empty directory; what was there before is deleted.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.scratch.join(name);
        remove_tree(&path)?;
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Measures both sides in turn, once to warm up and `n_runs` times that count; who begins
    /// alternates. The closures are told the number of the run, 0 being the one that warms up.
    pub(crate) async fn duel(
        &self,
        n_runs: usize,
        mut ours: impl AsyncFnMut(usize) -> Result<Reading>,
        mut reference: impl AsyncFnMut(usize) -> Result<Reading>,
    ) -> Result<(Side, Side)> {
        let (mut our_side, mut their_side) = (Side::default(), Side::default());
        for run in 0..=n_runs {
            let (mine, theirs);
            if run.is_multiple_of(2) {
                mine = self.limited(ours(run)).await?;
                theirs = self.limited(reference(run)).await?;
            } else {
                theirs = self.limited(reference(run)).await?;
                mine = self.limited(ours(run)).await?;
            }
            if run > 0 {
                our_side.add(&mine);
                their_side.add(&theirs);
                self.say(&format!("    run {run}: ours {:.4}, reference {:.4}", mine.value, theirs.value));
            }
        }
        Ok((our_side, their_side))
    }

    /// Waits for work, for a bounded time.
    pub(crate) async fn limited<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let ended = within(self.clock.as_ref(), MEASUREMENT_LIMIT, work).await;
        ended.ok_or_else(|| LoadError::check(format!("a measurement did not end within {MEASUREMENT_LIMIT:?}")))?
    }

    /// Begins to measure these processes.
    pub(crate) fn meter(&self, processes: &[(&str, Vec<u32>)]) -> Meter {
        let processes: Vec<(String, Vec<u32>)> = processes.iter().map(|(name, pids)| ((*name).to_owned(), pids.clone())).collect();
        let cpu = processes.iter().map(|(_, pids)| usage::cpu_seconds(pids)).collect();
        Meter { clock: self.clock.clone(), started: self.clock.monotonic(), processes, cpu }
    }

    /// Tells whoever watches how far it is.
    pub(crate) fn say(&self, text: &str) {
        // Nobody is left to tell when standard error is closed.
        let _ = writeln!(std::io::stderr().lock(), "{text}");
    }
}

/// A measurement under way.
#[derive(Debug)]
pub(crate) struct Meter {
    clock: SharedClock,
    started: Duration,
    processes: Vec<(String, Vec<u32>)>,
    cpu: Vec<f64>,
}

impl Meter {
    /// Seconds so far.
    pub(crate) fn seconds(&self) -> f64 {
        self.clock.monotonic().saturating_sub(self.started).as_secs_f64()
    }

    /// Ends it: MiB per second, and what it cost.
    pub(crate) fn throughput(&self, bytes: u64) -> Reading {
        let seconds = self.seconds().max(1e-9);
        self.costs(bytes, bytes as f64 / MIB / seconds)
    }

    /// Ends it with a value of the caller's.
    pub(crate) fn costs(&self, bytes: u64, value: f64) -> Reading {
        let gib = (bytes as f64 / GIB).max(1e-9);
        let mut cpu_per_gib = BTreeMap::new();
        let mut peak_mib = BTreeMap::new();
        for ((name, pids), before) in self.processes.iter().zip(&self.cpu) {
            cpu_per_gib.insert(name.clone(), (usage::cpu_seconds(pids) - before).max(0.0) / gib);
            peak_mib.insert(name.clone(), usage::peak_mib(pids));
        }
        Reading { value, cpu_per_gib, peak_mib }
    }
}

/// Deletes a directory with everything in it, if it is there.
pub(crate) fn remove_tree(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Profile;
    use store_api::clock::SystemClock;

    #[tokio::test]
    async fn a_duel_warms_up_alternates_and_counts_the_rest() {
        let bench = Bench::new(SystemClock::shared(), Profile::Tiny.plan(), "x".into(), "y".into(), "z".into());
        let order = std::cell::RefCell::new(Vec::new());
        let ours = async |run: usize| {
            order.borrow_mut().push(("ours", run));
            Ok(Reading::of(10.0 + run as f64))
        };
        let reference = async |run: usize| {
            order.borrow_mut().push(("reference", run));
            Ok(Reading::of(1.0))
        };
        let (mine, theirs) = bench.duel(2, ours, reference).await.unwrap();
        assert_eq!(mine.runs, [11.0, 12.0]);
        assert_eq!(theirs.runs, [1.0, 1.0]);
        let wanted = [("ours", 0), ("reference", 0), ("reference", 1), ("ours", 1), ("ours", 2), ("reference", 2)];
        assert_eq!(*order.borrow(), wanted);
    }
}

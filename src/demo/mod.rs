//! The main job on real input: a two-stage shuffle by real processes, undisturbed and with faults.
//!
//! | module | what it holds |
//! |---|---|
//! | `workload` | the rows, how they are cut, the sums, and the same sums without any shuffle |
//! | `worker` | a producer or consumer process |
//! | `cluster` | starts, kills and restarts node and worker processes |
//! | `scenario` | one run: a kind, a fault, what was read and made again |
//! | `report` | the table |

mod cluster;
mod report;
mod scenario;
mod worker;
mod workload;

use clap::Args;
use report::{Outcome, Report};
use scenario::{Fault, Kind, Run};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use store_api::{SharedClock, SystemClock};

/// What makes the demo fail.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The service refused, or did not answer.
    #[error(transparent)]
    Client(#[from] forebay_client::ClientError),
    /// The work itself failed.
    #[error("{0}")]
    Work(String),
    /// The system refused a process or a file.
    #[error("system: {0}")]
    System(#[from] std::io::Error),
    /// A document of a worker or node does not parse.
    #[error("document: {0}")]
    Document(#[from] serde_json::Error),
    /// The table was printed, and not every row of it is as promised.
    #[error("{0} of the runs did not end as promised")]
    Differs(usize),
}

impl DemoError {
    fn new(message: impl Into<String>) -> Self {
        Self::Work(message.into())
    }
}

impl From<workload::WorkloadError> for DemoError {
    fn from(error: workload::WorkloadError) -> Self {
        Self::Work(error.to_string())
    }
}

/// Arguments of `demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoArguments {
    /// TPC-H scale factor: 0.2 is about 300,000 orders and 1.2 million lines
    #[arg(long, default_value_t = 0.2)]
    scale: f64,
    /// Producer processes
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    producers: u32,
    /// Consumer processes
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    consumers: u32,
    /// Only these kinds
    #[arg(long, value_enum, value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// Only undisturbed runs
    #[arg(long)]
    no_faults: bool,
    /// Of the faults, only the killed consumer
    #[arg(long, conflicts_with = "no_faults")]
    only_consumer_killed: bool,
    /// How much of their share, in percent, consumers have read when a fault hits them
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=99))]
    at_percent: u64,
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Directory for the nodes; each run of the demo makes a folder of its own in it, which stays when
    /// the demo fails. A temporary one, removed afterwards, when it is left out
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

/// Runs a worker process: what `demo` starts, not for people.
pub async fn run_worker(argument: &str) -> Result<(), DemoError> {
    worker::run(argument).await
}

/// Runs the demo and prints its table. Errors: anything that failed, and `Differs` when a result, a
/// recomputation or a refusal is not as promised.
pub async fn run(arguments: DemoArguments) -> Result<(), DemoError> {
    if !(arguments.scale > 0.0 && arguments.scale <= 100.0) {
        return Err(DemoError::new("the scale factor must be above 0 and at most 100"));
    }
    let clock = SystemClock::shared();
    let scratch = Scratch::make(arguments.directory.as_deref())?;
    note(&arguments, "computing the result without any shuffle");
    let started = clock.monotonic();
    let expected = workload::without_shuffle(arguments.scale)?;
    let report =
        Report::new(arguments.scale, arguments.producers, arguments.consumers, clock.monotonic().saturating_sub(started), &expected);
    run_all(&arguments, &scratch, report, expected, &clock).await?;
    scratch.remove()?;
    Ok(())
}

async fn run_all(
    arguments: &DemoArguments,
    scratch: &Scratch,
    mut report: Report,
    expected: workload::Sums,
    clock: &SharedClock,
) -> Result<(), DemoError> {
    let mut undisturbed: BTreeMap<Kind, Duration> = BTreeMap::new();
    for (number, (kind, fault)) in plan(arguments).into_iter().enumerate() {
        note(arguments, &format!("{}: {}", kind.name(), fault.name()));
        let run = Run {
            kind,
            fault,
            scale: arguments.scale,
            n_producers: arguments.producers,
            n_consumers: arguments.consumers,
            at_percent: arguments.at_percent,
            directory: scratch.path().join(format!("run-{number}")),
            clock: clock.clone(),
        };
        let measured = Box::pin(run.execute(report.bytes_per_consumer())).await?;
        if fault == Fault::None {
            undisturbed.insert(kind, measured.total);
            report.learn_bytes(measured.read_bytes, arguments.consumers);
        }
        let from_nothing = undisturbed.get(&kind).copied().unwrap_or_default();
        report.add(Outcome::new(kind, fault, &measured, from_nothing, measured.sums == expected));
        tokio::fs::remove_dir_all(scratch.path().join(format!("run-{number}"))).await?;
    }
    report.print(arguments.json)?;
    match report.n_differing() {
        0 => Ok(()),
        n => Err(DemoError::Differs(n)),
    }
}

/// Every run: for each kind the undisturbed one first, then the faults that its class is made for.
fn plan(arguments: &DemoArguments) -> Vec<(Kind, Fault)> {
    let kinds = if arguments.kinds.is_empty() { Kind::ALL.to_vec() } else { arguments.kinds.clone() };
    let is_wanted = |fault: Fault| !arguments.no_faults && (!arguments.only_consumer_killed || fault == Fault::ConsumerKilled);
    let faults = |kind: Kind| kind.faults().iter().copied().filter(|fault| is_wanted(*fault));
    kinds.into_iter().flat_map(|kind| std::iter::once((kind, Fault::None)).chain(faults(kind).map(move |fault| (kind, fault)))).collect()
}

/// Tells a person how far it is; a program gets the result alone.
fn note(arguments: &DemoArguments, what: &str) {
    use std::io::Write as _;
    if !arguments.json {
        // Nobody to tell is no reason to stop.
        let _ = writeln!(std::io::stderr().lock(), "demo: {what}");
    }
}

/// Where the nodes live.
enum Scratch {
    Temporary(tempfile::TempDir),
    Kept(PathBuf),
}

impl Scratch {
    /// A new folder, in `parent` when there is one: what an earlier demo left there, or what another one
    /// does there now, is not in the way.
    fn make(parent: Option<&std::path::Path>) -> std::io::Result<Self> {
        let Some(parent) = parent else { return tempfile::tempdir().map(Self::Temporary) };
        std::fs::create_dir_all(parent)?;
        let made = tempfile::Builder::new().prefix("demo-").tempdir_in(parent)?;
        Ok(Self::Kept(made.keep()))
    }

    /// Removes the folder, with everything in it.
    fn remove(self) -> std::io::Result<()> {
        match self {
            Self::Temporary(directory) => directory.close(),
            Self::Kept(directory) => std::fs::remove_dir_all(directory),
        }
    }

    fn path(&self) -> &std::path::Path {
        match self {
            Self::Temporary(directory) => directory.path(),
            Self::Kept(directory) => directory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demos_in_one_directory_do_not_meet_each_other_or_what_was_left_there() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path().join("not/there/yet");
        std::fs::create_dir_all(parent.join("run-0/node")).unwrap();
        let (one, two) = (Scratch::make(Some(&parent)).unwrap(), Scratch::make(Some(&parent)).unwrap());
        assert_ne!(one.path(), two.path());
        for scratch in [&one, &two] {
            assert_eq!(scratch.path().parent(), Some(parent.as_path()));
            assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "it is new");
        }
        let (kept, gone) = (one.path().to_owned(), two.path().to_owned());
        two.remove().unwrap();
        drop(one);
        assert!(kept.is_dir() && !gone.exists(), "what failed stays to be looked at");
        assert!(parent.join("run-0/node").is_dir(), "what is not the demo's is left alone");
    }

    #[test]
    fn a_temporary_folder_goes_with_the_demo() {
        let scratch = Scratch::make(None).unwrap();
        let path = scratch.path().to_owned();
        assert!(path.is_dir());
        drop(scratch);
        assert!(!path.exists());
    }

    fn arguments(kinds: Vec<Kind>, no_faults: bool) -> DemoArguments {
        DemoArguments {
            scale: 0.1,
            producers: 2,
            consumers: 2,
            kinds,
            no_faults,
            json: true,
            directory: None,
            only_consumer_killed: false,
            at_percent: 50,
        }
    }

    #[test]
    fn the_undisturbed_run_of_each_kind_comes_before_its_faults() {
        let planned = plan(&arguments(Vec::new(), false));
        for kind in Kind::ALL {
            let faults: Vec<Fault> = planned.iter().filter(|(planned, _)| *planned == kind).map(|(_, fault)| *fault).collect();
            assert_eq!(faults.first(), Some(&Fault::None), "{}", kind.name());
            assert_eq!(faults.len(), 1 + kind.faults().len(), "{}", kind.name());
        }
        let calm = plan(&arguments(vec![Kind::Blocking], true));
        assert_eq!(calm, [(Kind::Blocking, Fault::None)]);
    }
}

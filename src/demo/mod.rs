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
    /// Directory for the nodes; a temporary one, removed afterwards, when it is left out
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
    let scratch = match &arguments.directory {
        Some(directory) => {
            std::fs::create_dir_all(directory)?;
            Scratch::Kept(directory.clone())
        }
        None => Scratch::Temporary(tempfile::tempdir()?),
    };
    note(&arguments, "computing the result without any shuffle");
    let started = clock.monotonic();
    let expected = workload::without_shuffle(arguments.scale)?;
    let report =
        Report::new(arguments.scale, arguments.producers, arguments.consumers, clock.monotonic().saturating_sub(started), &expected);
    run_all(&arguments, &scratch, report, expected, &clock).await
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
    fn path(&self) -> &std::path::Path {
        match self {
            Self::Temporary(directory) => directory.path(),
            Self::Kept(directory) => directory,
        }
    }
}

//! Forebay's load generator: named workloads, each measured in one run beside what would be used
//! instead, on the same data. `make bench` runs all of them; the goals stand with the workloads.
//!
//! | module | what it holds |
//! |---|---|
//! | `workload` | the workloads W1 to W10 |
//! | `site` | the processes that are measured: a node, nginx, fio, iperf3, an S3 gateway |
//! | `peer` | writer, reader and bare relay as processes of their own |
//! | `bench` | how a measurement is taken: in turn, warm-up, meters |
//! | `wire` | the plain HTTP client that both servers are asked with |
//! | `content`, `crew` | bytes to write and compare; many clients at once |
//! | `usage`, `stamp` | processor time and memory of processes; moments they can compare |
//! | `figure`, `statistics` | medians, percentiles, ratios, goals |
//! | `report`, `page`, `plot` | `report.json`, `docs/performance.md`, its plots |
//! | `plan`, `machine` | volumes; where it was measured |
//!
//! A check that fails ends the run with an error: the report then holds the workloads before it only.

mod bench;
mod content;
mod crew;
mod error;
mod figure;
mod machine;
mod page;
mod peer;
mod plan;
mod plot;
mod report;
mod site;
mod stamp;
mod statistics;
mod usage;
mod wire;
mod workload;

use crate::bench::Bench;
use crate::error::{LoadError, Result};
use crate::plan::Profile;
use crate::report::{Row, Setting, document};
use crate::workload::Workload;
use clap::{Args, Parser, Subcommand};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use store_api::SystemClock;

/// Measures Forebay beside what would be used instead.
#[derive(Debug, Parser)]
#[command(name = "forebay-load", version)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures workloads and writes the report
    Run(RunArguments),
    /// A writer, a reader or a relay
    #[command(hide = true)]
    Peer {
        /// What to do, as JSON
        instruction: String,
    },
}

#[derive(Debug, Args)]
struct RunArguments {
    /// How much is moved
    #[arg(long, value_enum, default_value = "full")]
    profile: Profile,
    /// Only these workloads
    #[arg(long, value_enum, value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// The binary that is measured
    #[arg(long, value_name = "FILE", default_value = "target/release/forebay")]
    binary: PathBuf,
    /// The checkout
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    root: PathBuf,
    /// Directory of the volume that is measured; everything below a directory of its own in it is deleted
    #[arg(long, value_name = "DIRECTORY", default_value = "target")]
    scratch: PathBuf,
    /// Where report.json is written
    #[arg(long, value_name = "DIRECTORY", default_value = "bench")]
    out: PathBuf,
    /// The page whose generated part is renewed, with its plots beside it
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

fn main() -> ExitCode {
    let command = CommandLine::parse().command;
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    // Fails only when there is one already, and then that one serves.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let ended = runtime.block_on(async {
        match command {
            Command::Run(arguments) => Box::pin(run(&arguments)).await,
            Command::Peer { instruction } => peer::run(&instruction).await,
        }
    });
    // Threads that wait in the system must not keep the process.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &LoadError) -> ExitCode {
    let _ = writeln!(std::io::stderr().lock(), "forebay-load: {error}");
    ExitCode::FAILURE
}

async fn run(arguments: &RunArguments) -> Result<()> {
    let clock = SystemClock::shared();
    let binary = std::path::absolute(&arguments.binary)?;
    std::fs::create_dir_all(&arguments.scratch)?;
    let scratch = tempfile::Builder::new().prefix("load-").tempdir_in(std::path::absolute(&arguments.scratch)?)?;
    let root = std::path::absolute(&arguments.root)?;
    let setting = Setting {
        machine: machine::describe(scratch.path()),
        commit: machine::commit(&root).await,
        measured_at_ms: clock.unix_ms(),
        references: machine::references().await,
        profile: arguments.profile,
        binary: binary_kind(&binary),
    };
    let bench = Bench::new(clock.clone(), arguments.profile.plan(), binary, root, scratch.path().to_owned());
    let workloads = if arguments.workloads.is_empty() { Workload::ALL } else { &arguments.workloads };
    let mut rows = Vec::new();
    for workload in workloads {
        bench.say(&format!("{}: {}", workload.id(), workload.title()));
        let started = clock.monotonic();
        let row = workload.run(&bench).await.map_err(|error| LoadError::check(format!("{}: {error}", workload.id())))?;
        let taken = clock.monotonic().saturating_sub(started);
        bench.say(&format!("  took {:.1} s", taken.as_secs_f64()));
        rows.push(row);
        // What was measured is not lost when a later workload fails.
        write_report(&arguments.out, &setting, &rows)?;
    }
    if let Some(page) = &arguments.page {
        write_page(page, &setting, &rows)?;
    }
    print(&rows)
}

/// `release` or `debug`, by the directory that it lies in.
fn binary_kind(binary: &Path) -> String {
    let folder = binary.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    folder.unwrap_or_else(|| "unknown".to_owned())
}

fn write_report(out: &Path, setting: &Setting, rows: &[Row]) -> Result<()> {
    std::fs::create_dir_all(out)?;
    let mut text = serde_json::to_string_pretty(&document(setting, rows))?;
    text.push('\n');
    Ok(std::fs::write(out.join("report.json"), text)?)
}

fn write_page(path: &Path, setting: &Setting, rows: &[Row]) -> Result<()> {
    let folder = path.with_extension("");
    std::fs::create_dir_all(&folder)?;
    let mut plots = Vec::new();
    for (name, title, svg) in page::plots(rows) {
        std::fs::write(folder.join(format!("{name}.svg")), svg)?;
        plots.push((name, title));
    }
    let before = std::fs::read_to_string(path).unwrap_or_default();
    Ok(std::fs::write(path, page::renew(&before, setting, rows, &plots))?)
}

/// A table on standard output. A missed goal is no failure of the run: it stands in the report.
fn print(rows: &[Row]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for row in rows {
        for figure in &row.figures {
            let met = match figure.is_met() {
                Some(true) => "met",
                Some(false) => "MISSED",
                None => "beside",
            };
            let side = |side: &figure::Side| side.median().map_or_else(|| "-".to_owned(), plot::short);
            let values = (side(&figure.ours), side(&figure.reference));
            let name = format!("{} {}", row.id, figure.name);
            writeln!(
                out,
                "{name:<72} {:>9} against {:>9} {:<12} {:<24} {:<9} {met}",
                values.0,
                values.1,
                figure.unit,
                figure.verdict(),
                figure.goal.text()
            )?;
        }
    }
    out.flush()?;
    Ok(())
}

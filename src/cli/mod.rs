//! The commands of the binary.
//!
//! | command | what it does |
//! |---|---|
//! | `serve` | runs a node |
//! | `config` | prints, checks and shows configurations |
//! | `demo` | the main job: a real shuffle by real processes, with faults |
//! | `put`, `get` | write and read the content of a subpartition |
//! | `jobs`, `plan`, `why` | how jobs recover, and why |
//! | `stat`, `ls`, `rm` | look at jobs, datasets and partitions, list them, release them |
//!
//! # Exit codes
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | refused or failed |
//! | 2 | the command line or the configuration is wrong; nothing was begun |
//! | 3 | what was asked for is not there: never existed, released, expired, lost |

mod config;
mod connection;
mod content;
mod inspect;
mod outcome;
mod output;
mod recovery;
mod serve;
mod target;
#[cfg(test)]
mod tests;

pub use outcome::{Failure, FailureKind};

use clap::{Parser, Subcommand};
use std::io::Write as _;
use std::process::ExitCode;

/// Keeps the intermediate results of data engines, so that a restarted consumer re-reads instead of
/// making the engine compute again.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, after_help = EXIT_CODES)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 refused or failed; 2 wrong command line or configuration; 3 not there (never existed, released, \
                          expired, lost)";

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a node until SIGTERM or SIGINT
    Serve(serve::ServeArguments),
    /// Prints, checks and shows configurations
    Config(config::ConfigArguments),
    /// Runs a real shuffle on real input, undisturbed and with faults, and prints what each cost
    Demo(crate::demo::DemoArguments),
    /// A worker of the demo
    #[command(hide = true)]
    DemoWorker {
        /// What to do, as JSON
        instruction: String,
    },
    /// Writes a file or standard input as the content of a subpartition, and seals it
    Put(content::PutArguments),
    /// Reads the content of a subpartition, checked, into a file or standard output
    Get(content::GetArguments),
    /// Looks at a job, a dataset or a partition
    Stat(inspect::TargetArguments),
    /// Lists jobs, datasets of a job, or sealed partitions of a dataset
    Ls(inspect::ListArguments),
    /// Releases a job, a dataset or a partition
    Rm(inspect::TargetArguments),
    /// Lists the jobs that have a graph and where each stands
    Jobs(recovery::JobsArguments),
    /// Shows a job's newest plan, or what would restart if something failed
    Plan(recovery::PlanArguments),
    /// Shows why a task was restarted
    Why(recovery::WhyArguments),
}

/// Runs the command of this process's command line. Everything goes through the answer: nothing
/// ends the process in between, so that what is held is let go of.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = match CommandLine::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are errors to the parser and go to standard output; nobody is left to
            // tell when that is closed.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { FailureKind::Usage.code() } else { 0 });
        }
    };
    match run(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(std::io::stderr().lock(), "forebay: {failure}");
            ExitCode::from(failure.kind.code())
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Config(arguments) => config::run(&arguments),
        Command::Demo(arguments) => wait_for(crate::demo::run(arguments)),
        Command::DemoWorker { instruction } => wait_for(crate::demo::run_worker(&instruction)),
        Command::Put(arguments) => content::put(&arguments),
        Command::Get(arguments) => content::get(&arguments),
        Command::Stat(arguments) => inspect::stat(&arguments),
        Command::Ls(arguments) => inspect::ls(&arguments),
        Command::Rm(arguments) => inspect::rm(&arguments),
        Command::Jobs(arguments) => recovery::jobs(&arguments),
        Command::Plan(arguments) => recovery::plan(&arguments),
        Command::Why(arguments) => recovery::why(&arguments),
    }
}

/// Runs a part of the demo.
fn wait_for(work: impl Future<Output = Result<(), crate::demo::DemoError>>) -> Result<(), Failure> {
    runtime()?.block_on(work).map_err(|error| Failure::failed(error.to_string()))
}

/// A runtime for one command. Errors: the system gives no threads.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let built = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    built.map_err(|error| Failure::failed(format!("no runtime: {error}")))
}

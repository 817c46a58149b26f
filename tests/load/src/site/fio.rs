//! fio, once per measurement.

use super::output;
use crate::error::{LoadError, Result, ensure};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use store_api::SharedClock;
use tokio::process::Command;

const LIMIT: Duration = Duration::from_secs(1800);

/// When fio syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FioSync {
    /// Each job its one file, at its end.
    AtEnd,
    /// After every write but a job's last, which fio leaves unsynced.
    EachWrite,
}

/// New files to write, by jobs side by side; each job writes its own one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FioJob {
    /// Jobs side by side.
    pub(crate) n_jobs: u64,
    /// Files of each job.
    pub(crate) files_each: u64,
    /// Bytes of a file.
    pub(crate) file_bytes: u64,
    /// Bytes of a write.
    pub(crate) block_bytes: u64,
    /// When it is synced.
    pub(crate) sync: FioSync,
}

/// What fio measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FioOutcome {
    /// Bytes written.
    pub(crate) bytes: u64,
    /// Seconds from its first write to its last.
    pub(crate) seconds: f64,
    /// Processor seconds of all jobs.
    pub(crate) cpu_seconds: f64,
}

/// The sum over all jobs. Errors: a job that failed, or a document of another form.
fn parse(document: &[u8]) -> Result<FioOutcome> {
    // Notes of fio can stand in front of its document.
    let start = document.iter().position(|byte| *byte == b'{').unwrap_or(0);
    let document: Value = serde_json::from_slice(document.get(start..).unwrap_or_default())?;
    let jobs = document.get("jobs").and_then(Value::as_array).ok_or_else(|| LoadError::check("fio's document has no jobs"))?;
    let mut outcome = FioOutcome { bytes: 0, seconds: 0.0, cpu_seconds: 0.0 };
    for job in jobs {
        ensure(job.get("error").and_then(Value::as_i64) == Some(0), || format!("a job of fio failed: {:?}", job.get("error")))?;
        let number = |pointer: &str| job.pointer(pointer).and_then(Value::as_f64);
        let missing = || LoadError::check("fio's document misses a member");
        outcome.bytes += job.pointer("/write/io_bytes").and_then(Value::as_u64).ok_or_else(missing)?;
        // With the syncs at the end; the runtime of the writes alone is shorter.
        let milliseconds = number("/job_runtime").ok_or_else(missing)?.max(number("/write/runtime").ok_or_else(missing)?);
        let used = milliseconds * (number("/usr_cpu").ok_or_else(missing)? + number("/sys_cpu").ok_or_else(missing)?) / 100_000.0;
        outcome.cpu_seconds += used;
        outcome.seconds = outcome.seconds.max(milliseconds / 1000.0);
    }
    ensure(outcome.seconds > 0.0, || "fio took no time".to_owned())?;
    Ok(outcome)
}

impl FioJob {
    /// Writes new files into a directory. Errors: fio failed or wrote another number of bytes.
    pub(crate) async fn run(&self, directory: &Path, clock: &SharedClock) -> Result<FioOutcome> {
        let mut command = Command::new("fio");
        command.current_dir(directory);
        command.args(["--name=write", "--rw=write", "--ioengine=psync", "--output-format=json", "--thread", "--create_on_open=1"]);
        command.args(["--fallocate=none", "--file_service_type=sequential", "--openfiles=1"]);
        command.arg(match self.sync {
            FioSync::AtEnd => "--end_fsync=1",
            FioSync::EachWrite => "--fsync=1",
        });
        command.arg(format!("--directory={}", directory.display()));
        command.arg(format!("--numjobs={}", self.n_jobs));
        command.arg(format!("--nrfiles={}", self.files_each));
        command.arg(format!("--filesize={}", self.file_bytes));
        command.arg(format!("--bs={}", self.block_bytes));
        let said = output(&mut command, "fio", LIMIT, clock).await?;
        let outcome = parse(&said)?;
        let wanted = self.n_jobs * self.files_each * self.file_bytes;
        ensure(outcome.bytes == wanted, || format!("fio wrote {} bytes, {wanted} were wanted", outcome.bytes))?;
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job(error: i64) -> Value {
        json!({"error": error, "job_runtime": 2000, "usr_cpu": 5.0, "sys_cpu": 20.0, "write": {"io_bytes": 1024, "runtime": 1500}})
    }

    #[test]
    fn jobs_are_added_and_the_time_is_that_of_the_longest() {
        let text = format!("note: x\n{}", json!({"jobs": [job(0), job(0)]}));
        assert_eq!(parse(text.as_bytes()).unwrap(), FioOutcome { bytes: 2048, seconds: 2.0, cpu_seconds: 1.0 });
    }

    #[test]
    fn a_failed_job_or_a_strange_document_gives_no_figure() {
        assert!(parse(json!({"jobs": [job(28)]}).to_string().as_bytes()).is_err());
        assert!(parse(json!({"jobs": []}).to_string().as_bytes()).is_err());
        assert!(parse(b"{}").is_err() && parse(b"").is_err());
    }
}

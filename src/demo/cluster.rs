//! Real node and worker processes, started from this very binary.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use store_api::SharedClock;
use store_api::clock::within;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::DemoError;
use super::worker::{WorkerEvent, WorkerSpec};

/// Longest time from the start of a node to its readiness.
const NODE_START: Duration = Duration::from_secs(60);
/// Between two looks for a ready file.
const POLL: Duration = Duration::from_millis(10);
/// Longest time without a line from a worker.
const WORKER_SILENCE: Duration = Duration::from_secs(180);

/// What a node writes once it is ready.
#[derive(Debug, Deserialize)]
struct Ready {
    url: String,
}

/// Where a node keeps things and listens.
#[derive(Debug, Clone)]
pub(crate) struct NodePlan {
    /// Its data directory.
    pub(crate) data_dir: PathBuf,
    /// The directory that stands in for an object store.
    pub(crate) object_dir: PathBuf,
    /// Memory for bytes on their way in and for pipelined partitions, in bytes.
    pub(crate) memory_bytes: u64,
}

/// A node process. Killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Node {
    plan: NodePlan,
    child: Child,
    url: String,
}

impl Node {
    /// Starts a node on a free port and waits until it is ready.
    pub(crate) async fn start(plan: NodePlan, clock: &SharedClock) -> Result<Self, DemoError> {
        Self::start_at(plan, "127.0.0.1:0", clock).await
    }

    async fn start_at(plan: NodePlan, listen: &str, clock: &SharedClock) -> Result<Self, DemoError> {
        let scratch = plan.data_dir.parent().unwrap_or(&plan.data_dir).to_owned();
        let name = plan.data_dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let ready_file = scratch.join(format!("{name}.ready.json"));
        remove_if_there(&ready_file).await?;
        tokio::fs::create_dir_all(&scratch).await?;
        let log = std::fs::OpenOptions::new().create(true).append(true).open(scratch.join(format!("{name}.log")))?;
        let mut child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .args(["--listen", listen])
            .arg("--data-dir")
            .arg(&plan.data_dir)
            .args(["--set", &format!("object.directory.path={}", plan.object_dir.display())])
            .args(["--set", &format!("node.memory={}", plan.memory_bytes)])
            .arg("--ready-file")
            .arg(&ready_file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        let url = within(clock.as_ref(), NODE_START, wait_ready(&ready_file, &mut child, clock))
            .await
            .ok_or_else(|| DemoError::new(format!("node {name} was not ready after {NODE_START:?}")))??;
        Ok(Self { plan, child, url })
    }

    /// Its base URL.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// kill -9, and waits until the process is gone.
    pub(crate) async fn kill(&mut self) -> Result<(), DemoError> {
        self.child.kill().await.map_err(DemoError::from)
    }

    /// Starts it again on the same directories and the same port.
    pub(crate) async fn restart(self, clock: &SharedClock) -> Result<Self, DemoError> {
        let listen = self.url.trim_start_matches("http://").trim_end_matches('/').to_owned();
        Self::start_at(self.plan.clone(), &listen, clock).await
    }

    /// Deletes its data directory; the process must be gone.
    pub(crate) async fn delete_data(&self) -> Result<(), DemoError> {
        tokio::fs::remove_dir_all(&self.plan.data_dir).await.map_err(DemoError::from)
    }
}

async fn remove_if_there(path: &Path) -> Result<(), DemoError> {
    match tokio::fs::remove_file(path).await {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

async fn wait_ready(path: &Path, child: &mut Child, clock: &SharedClock) -> Result<String, DemoError> {
    loop {
        if let Ok(text) = tokio::fs::read(path).await
            && let Ok(ready) = serde_json::from_slice::<Ready>(&text)
        {
            return Ok(ready.url);
        }
        if let Some(status) = child.try_wait()? {
            return Err(DemoError::new(format!("a node ended before it was ready: {status}; its log is beside its directory")));
        }
        clock.sleep(POLL).await;
    }
}

/// A producer or consumer process. Killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts a worker.
    pub(crate) fn start(spec: &WorkerSpec) -> Result<Self, DemoError> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("demo-worker")
            .arg(serde_json::to_string(spec)?)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| DemoError::new("a worker has no output"))?;
        Ok(Self { child, lines: BufReader::new(stdout).lines() })
    }

    /// The next thing the worker says; `None` once it has ended. Errors: silence for too long.
    pub(crate) async fn next_event(&mut self, clock: &SharedClock) -> Result<Option<WorkerEvent>, DemoError> {
        let line = within(clock.as_ref(), WORKER_SILENCE, self.lines.next_line()).await;
        let line = line.ok_or_else(|| DemoError::new(format!("a worker said nothing for {WORKER_SILENCE:?}")))??;
        line.map(|line| serde_json::from_str(&line).map_err(DemoError::from)).transpose()
    }

    /// Reads on until an event of interest. Errors: the worker ended first.
    pub(crate) async fn wait_for(
        &mut self,
        clock: &SharedClock,
        is_wanted: impl Fn(&WorkerEvent) -> bool,
    ) -> Result<WorkerEvent, DemoError> {
        while let Some(event) = self.next_event(clock).await? {
            if is_wanted(&event) {
                return Ok(event);
            }
            if let WorkerEvent::Failed { message } = event {
                return Err(DemoError::new(format!("a worker failed: {message}")));
            }
        }
        Err(DemoError::new("a worker ended before it reached the point that was waited for"))
    }

    /// kill -9, and waits until the process is gone.
    pub(crate) async fn kill(&mut self) -> Result<(), DemoError> {
        self.child.kill().await.map_err(DemoError::from)
    }
}

/// One line for a program.
pub(crate) fn to_line<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}

//! A Forebay node.

use super::POLL;
use crate::bench::{Bench, remove_tree};
use crate::error::{LoadError, Result};
use forebay_client::{Client, JobHandle, JobRequest};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use store_api::SharedClock;
use store_api::clock::within;
use tokio::process::{Child, Command};

const START_LIMIT: Duration = Duration::from_secs(600);
const END_LIMIT: Duration = Duration::from_secs(120);
/// Longer than any run.
const LEASE_MS: u64 = 24 * 3_600_000;

#[derive(Debug, Deserialize)]
struct Ready {
    url: String,
    address: SocketAddr,
}

/// How a node is started.
#[derive(Debug, Clone)]
pub(crate) struct NodeSpec {
    binary: PathBuf,
    directory: PathBuf,
    settings: Vec<String>,
}

impl NodeSpec {
    /// A node with an empty directory and no object store.
    pub(crate) fn new(bench: &Bench, name: &str) -> Result<Self> {
        let directory = bench.directory(name)?;
        let settings = vec!["object.kind=none".to_owned()];
        Ok(Self { binary: bench.binary.clone(), directory, settings })
    }

    /// With a setting more.
    #[must_use]
    pub(crate) fn set(mut self, setting: impl Into<String>) -> Self {
        self.settings.push(setting.into());
        self
    }

    /// Starts it and waits until it is ready.
    pub(crate) async fn start(&self, clock: &SharedClock) -> Result<Node> {
        let ready_file = self.directory.join("ready.json");
        if ready_file.exists() {
            std::fs::remove_file(&ready_file)?;
        }
        let log_path = self.directory.join("node.log");
        let log = std::fs::File::options().create(true).append(true).open(&log_path)?;
        let started = clock.monotonic();
        let mut child = Command::new(&self.binary)
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(self.directory.join("data"))
            .arg("--ready-file")
            .arg(&ready_file)
            .args(self.settings.iter().flat_map(|setting| ["--set", setting]))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| LoadError::check(format!("{} cannot be started: {error}", self.binary.display())))?;
        let ready = within(clock.as_ref(), START_LIMIT, wait_ready(&ready_file, &mut child, clock)).await;
        let ready = ready.ok_or_else(|| LoadError::check(format!("the node was not ready after {START_LIMIT:?}")))?;
        let ready = ready.map_err(|error| LoadError::check(format!("{error}: {}", last_line(&log_path))))?;
        let until_ready = clock.monotonic().saturating_sub(started);
        Ok(Node { child, url: ready.url, address: ready.address, until_ready })
    }

    /// Deletes its directory; the node must have ended.
    pub(crate) fn delete(&self) -> Result<()> {
        remove_tree(&self.directory)
    }
}

fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().last().unwrap_or_default().to_owned()
}

async fn wait_ready(path: &Path, child: &mut Child, clock: &SharedClock) -> Result<Ready> {
    loop {
        if let Ok(text) = tokio::fs::read(path).await
            && let Ok(ready) = serde_json::from_slice::<Ready>(&text)
        {
            return Ok(ready);
        }
        if let Some(status) = child.try_wait()? {
            return Err(LoadError::check(format!("the node ended before it was ready: {status}")));
        }
        clock.sleep(POLL).await;
    }
}

/// A node that runs. Killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Node {
    child: Child,
    /// Base URL.
    pub(crate) url: String,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// From the start of the process until it was ready.
    pub(crate) until_ready: Duration,
}

impl Node {
    /// Its process, for the meter.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.child.id().into_iter().collect()
    }

    /// A client with connections of its own.
    pub(crate) fn client(&self) -> Result<Client> {
        Ok(Client::builder(&self.url).build()?)
    }

    /// Creates a job that outlives the run.
    pub(crate) async fn job(&self, name: &str) -> Result<JobHandle> {
        let request = JobRequest { owner_nonce: "load".to_owned(), lease_ms: Some(LEASE_MS), ..JobRequest::default() };
        Ok(self.client()?.put_job(name, request).await?)
    }

    /// kill -9, and waits until it is gone.
    pub(crate) async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// SIGTERM, and waits until it is gone.
    pub(crate) async fn stop(mut self, clock: &SharedClock) -> Result<()> {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        if let Some(pid) = pid {
            kill_process(pid, Signal::TERM).map_err(std::io::Error::from)?;
        }
        let ended = within(clock.as_ref(), END_LIMIT, self.child.wait()).await;
        ended.ok_or_else(|| LoadError::check("the node did not end"))??;
        Ok(())
    }
}

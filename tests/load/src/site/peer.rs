//! Writers, readers and relays: this very binary, as processes of their own.

use crate::error::{LoadError, Result};
use crate::peer::{Event, Flow, Instruction, Outcome, Path, Role};
use std::process::Stdio;
use std::time::Duration;
use store_api::SharedClock;
use store_api::clock::within;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// Longest wait for the next thing a process says.
const SILENCE: Duration = Duration::from_secs(900);

/// A process. Killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start(instruction: &Instruction) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("peer")
            .arg(serde_json::to_string(instruction)?)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| LoadError::check("a process without output"))?;
        Ok(Self { child, lines: BufReader::new(stdout).lines() })
    }

    /// A relay that listens, and the path through it.
    pub(crate) async fn relay(clock: &SharedClock) -> Result<(Self, Path)> {
        let mut relay = Self::start(&Instruction { role: Role::Relay, path: None, flow: None })?;
        match relay.event(clock).await? {
            Event::Listening { input, output } => Ok((relay, Path::Relay { input, output })),
            other => Err(LoadError::check(format!("a relay said {other:?}"))),
        }
    }

    /// Its process, for the meter.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.child.id().into_iter().collect()
    }

    async fn event(&mut self, clock: &SharedClock) -> Result<Event> {
        let line = within(clock.as_ref(), SILENCE, self.lines.next_line()).await;
        let line = line.ok_or_else(|| LoadError::check(format!("a process said nothing for {SILENCE:?}")))??;
        let line = line.ok_or_else(|| LoadError::check("a process ended without a word"))?;
        match serde_json::from_str(&line)? {
            Event::Failed { message } => Err(LoadError::check(format!("a process failed: {message}"))),
            event => Ok(event),
        }
    }

    async fn outcome(&mut self, clock: &SharedClock) -> Result<Outcome> {
        match self.event(clock).await? {
            Event::Done(outcome) => Ok(outcome),
            other => Err(LoadError::check(format!("a process said {other:?} and not that it is done"))),
        }
    }
}

/// What a flow through a path came to.
#[derive(Debug)]
pub(crate) struct Passage {
    /// From the first byte written to the last byte read.
    pub(crate) seconds: f64,
    /// Processor seconds of the writer.
    pub(crate) writer_cpu: f64,
    /// Processor seconds of the reader.
    pub(crate) reader_cpu: f64,
    /// Microseconds from append to delivery.
    pub(crate) latencies_us: Vec<f64>,
}

/// Starts a reader and a writer and waits for both.
pub(crate) async fn pass(path: &Path, flow: Flow, clock: &SharedClock) -> Result<Passage> {
    let instruction = |role| Instruction { role, path: Some(path.clone()), flow: Some(flow) };
    let mut reader = Peer::start(&instruction(Role::Read))?;
    match reader.event(clock).await? {
        Event::Connected => {}
        other => return Err(LoadError::check(format!("a reader said {other:?} and not that it is connected"))),
    }
    let mut writer = Peer::start(&instruction(Role::Write))?;
    let (wrote, read) = futures::future::try_join(writer.outcome(clock), reader.outcome(clock)).await?;
    if wrote.bytes != flow.bytes() || read.bytes != flow.bytes() {
        return Err(LoadError::check(format!("{} bytes were written and {} read, not {}", wrote.bytes, read.bytes, flow.bytes())));
    }
    Ok(Passage {
        seconds: read.ended_ns.saturating_sub(wrote.started_ns) as f64 / 1e9,
        writer_cpu: wrote.cpu_seconds,
        reader_cpu: read.cpu_seconds,
        latencies_us: read.latencies_us,
    })
}

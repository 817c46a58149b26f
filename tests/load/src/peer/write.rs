//! The writer. Into a node through the client, into a relay through a socket; all else is the same.

use super::{Event, Flow, Outcome, PIECE, Path, message, piece, say, stage};
use crate::content::Pool;
use crate::crew::all;
use crate::error::{LoadError, Result, ensure};
use crate::{stamp, usage};
use bytes::Bytes;
use forebay_client::{PartitionWriter, WriterOptions};
use std::time::Duration;
use store_api::{AttemptId, PartitionId, SubpartitionIndex, TaskGroup};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// Messages that may wait for the writer.
const BACKLOG: usize = 1 << 16;

/// One stream.
enum Sink {
    Node(Box<PartitionWriter>),
    Relay(TcpStream),
}

impl Sink {
    /// `message`: largest piece that must go out at once.
    async fn open(path: &Path, stream: u32, message: usize) -> Result<Self> {
        match path {
            Path::Node { url, job, dataset } => {
                let options = WriterOptions { block_bytes: message, ..WriterOptions::default() };
                // The attempt is open; a repeat says where it stands.
                let (stage, partition) = (stage(url, job, dataset)?, PartitionId::new(u64::from(stream)));
                let attempt = stage.open_attempt(partition, AttemptId::new(0, 0), Vec::new()).await?;
                Ok(Self::Node(Box::new(attempt.into_writer_with(options))))
            }
            Path::Relay { input, .. } => {
                let mut socket = TcpStream::connect(input).await?;
                socket.set_nodelay(true)?;
                socket.write_u32_le(stream).await?;
                Ok(Self::Relay(socket))
            }
        }
    }

    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        match self {
            Self::Node(writer) => Ok(writer.write(SubpartitionIndex::new(0), bytes).await?),
            Self::Relay(socket) => Ok(socket.write_all(&bytes).await?),
        }
    }

    async fn end(&mut self) -> Result<()> {
        match self {
            Self::Node(writer) => {
                let sealed = writer.seal().await?;
                ensure(sealed.is_won(), || "another attempt was sealed".to_owned())
            }
            Self::Relay(socket) => Ok(socket.shutdown().await?),
        }
    }
}

pub(super) async fn run(path: Path, flow: Flow) -> Result<()> {
    let started_ns = match flow {
        Flow::Bulk { streams, pieces_each } => bulk(&path, streams, pieces_each).await?,
        Flow::Paced { message, per_second, n } => paced(&path, message, per_second, n).await?,
    };
    let cpu_seconds = usage::cpu_seconds(&usage::own_pid());
    say(&Event::Done(Outcome { started_ns, ended_ns: stamp::now_ns(), bytes: flow.bytes(), cpu_seconds, latencies_us: Vec::new() }))
}

async fn bulk(path: &Path, streams: u32, pieces_each: u64) -> Result<u64> {
    let pool = Pool::new();
    let mut sinks = Vec::new();
    for stream in 0..streams {
        sinks.push((stream, Sink::open(path, stream, PIECE).await?));
    }
    let started_ns = stamp::now_ns();
    let write = |(stream, mut sink): (u32, Sink)| {
        let pool = pool.clone();
        async move {
            for number in 0..pieces_each {
                sink.write(piece(&pool, stream, number)?).await?;
            }
            sink.end().await
        }
    };
    all(sinks.into_iter().map(write).collect()).await?;
    Ok(started_ns)
}

/// Hands out the moments at which messages are due, from a thread that does nothing else.
fn pace(per_second: u32, n: u64, ticks: &mpsc::Sender<u64>) {
    let interval = 1_000_000_000 / u64::from(per_second.max(1));
    let mut due = stamp::now_ns() + interval;
    for _ in 0..n {
        let early = due.saturating_sub(stamp::now_ns());
        if early > 0 {
            std::thread::sleep(Duration::from_nanos(early));
        }
        // What waits for the writer from here on counts as latency.
        if ticks.blocking_send(stamp::now_ns()).is_err() {
            return;
        }
        due += interval;
    }
}

async fn paced(path: &Path, length: usize, per_second: u32, n: u64) -> Result<u64> {
    let pool = Pool::new();
    let mut sink = Sink::open(path, 0, length).await?;
    let (sender, mut ticks) = mpsc::channel(BACKLOG);
    let group = TaskGroup::new();
    let pacer = group.clone();
    group.spawn_to_end(async move {
        // The writer sees a pacer that ended early by the number of its ticks.
        let _ = pacer.run_blocking(move || pace(per_second, n, &sender)).await;
    });
    let started_ns = stamp::now_ns();
    let mut number = 0;
    while let Some(tick) = ticks.recv().await {
        sink.write(message(&pool, number, length, tick)?).await?;
        number += 1;
    }
    if number != n {
        return Err(LoadError::check(format!("{number} of {n} messages were due")));
    }
    sink.end().await?;
    Ok(started_ns)
}

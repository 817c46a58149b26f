//! The reader. From a node through the client, which acknowledges beside the reading; from a relay
//! through a socket. Every byte is compared.

use super::{Event, Flow, Outcome, PIECE, Path, STAMP, piece, say, stage};
use crate::content::Pool;
use crate::crew::all;
use crate::error::{Result, ensure};
use crate::{stamp, usage};
use bytes::{Buf as _, Bytes, BytesMut};
use forebay_client::{DatasetHandle, TailOptions, TailReader};
use forebay_protocol::reads::{AcknowledgeRequest, Position};
use store_api::{PartitionId, SubpartitionIndex, TaskGroup};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;

const BUFFER_BYTES: usize = 256 * 1024;
/// Bytes between two acknowledgements.
const ACKNOWLEDGE_BYTES: u64 = 2 * 1024 * 1024;

/// One stream.
enum Source {
    Node { tail: Box<TailReader>, read: watch::Sender<u64>, acknowledged: u64, _acknowledger: TaskGroup },
    Relay { socket: TcpStream, buffer: BytesMut },
}

impl Source {
    async fn open(path: &Path, stream: u32) -> Result<Self> {
        match path {
            Path::Node { url, job, dataset } => {
                let stage = stage(url, job, dataset)?;
                let partition = PartitionId::new(u64::from(stream));
                let tail = Box::new(stage.tail(partition, SubpartitionIndex::new(0), TailOptions::default()));
                let (read, positions) = watch::channel(0);
                let acknowledger = TaskGroup::new();
                acknowledger.spawn(acknowledge(stage, partition, positions));
                Ok(Self::Node { tail, read, acknowledged: 0, _acknowledger: acknowledger })
            }
            Path::Relay { output, .. } => {
                let mut socket = TcpStream::connect(output).await?;
                socket.set_nodelay(true)?;
                socket.write_u32_le(stream).await?;
                Ok(Self::Relay { socket, buffer: BytesMut::new() })
            }
        }
    }

    /// `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        match self {
            Self::Node { tail, read, acknowledged, .. } => {
                let Some(bytes) = tail.next().await else { return Ok(None) };
                let at = tail.next_offset().get();
                if at - *acknowledged >= ACKNOWLEDGE_BYTES {
                    *acknowledged = at;
                    read.send_replace(at);
                }
                Ok(Some(bytes?))
            }
            Self::Relay { socket, buffer } => {
                buffer.reserve(BUFFER_BYTES);
                let n = socket.read_buf(buffer).await?;
                Ok((n > 0).then(|| buffer.split().freeze()))
            }
        }
    }
}

/// Acknowledges the newest position, one call at a time. A failure shows as a writer that waits for
/// room until the measurement fails.
async fn acknowledge(stage: DatasetHandle, partition: PartitionId, mut positions: watch::Receiver<u64>) {
    while positions.changed().await.is_ok() {
        let offset = *positions.borrow_and_update();
        let position = Position { partition: partition.get(), subpartition: 0, offset, attempt: None };
        let request = AcknowledgeRequest { group: "default".to_owned(), consumer: None, positions: vec![position] };
        if stage.acknowledge(&request).await.is_err() {
            return;
        }
    }
}

pub(super) async fn run(path: Path, flow: Flow) -> Result<()> {
    let mut sources = Vec::new();
    for stream in 0..flow.streams() {
        sources.push((stream, Source::open(&path, stream).await?));
    }
    say(&Event::Connected)?;
    let read = |(stream, source): (u32, Source)| async move {
        match flow {
            Flow::Bulk { pieces_each, .. } => bulk(source, stream, pieces_each).await.map(|()| Vec::new()),
            Flow::Paced { message, n, .. } => paced(source, message, n).await,
        }
    };
    let latencies_us = all(sources.into_iter().map(read).collect()).await?.concat();
    let cpu_seconds = usage::cpu_seconds(&usage::own_pid());
    say(&Event::Done(Outcome { started_ns: 0, ended_ns: stamp::now_ns(), bytes: flow.bytes(), cpu_seconds, latencies_us }))
}

/// Compares a stream of pieces as it comes.
async fn bulk(mut source: Source, stream: u32, pieces_each: u64) -> Result<()> {
    let (pool, mut at) = (Pool::new(), 0_u64);
    let total = pieces_each * PIECE as u64;
    while at < total {
        let Some(mut bytes) = source.next().await? else { break };
        while !bytes.is_empty() {
            let number = at / PIECE as u64;
            let within = usize::try_from(at % PIECE as u64).unwrap_or_default();
            let run = bytes.split_to(bytes.len().min(PIECE - within));
            let wanted = piece(&pool, stream, number)?;
            let is_same = wanted.get(within..within + run.len()) == Some(&*run);
            ensure(is_same, || format!("stream {stream} has other bytes at {at} than were written"))?;
            at += run.len() as u64;
        }
    }
    ensure(at == total, || format!("stream {stream} ended at {at}, not at {total}"))
}

/// Microseconds of each message.
async fn paced(mut source: Source, length: usize, n: u64) -> Result<Vec<f64>> {
    let (pool, mut pending, mut latencies) = (Pool::new(), BytesMut::new(), Vec::new());
    let mut number = 0;
    while number < n {
        let Some(bytes) = source.next().await? else { break };
        let now = stamp::now_ns();
        pending.extend_from_slice(&bytes);
        while pending.len() >= length {
            let mut message = pending.split_to(length);
            let written = message.get_u64_le();
            let body = length.saturating_sub(STAMP);
            pool.check(number, body, 0..body, &message)?;
            latencies.push(now.saturating_sub(written) as f64 / 1000.0);
            number += 1;
        }
    }
    ensure(number == n && pending.is_empty(), || format!("{number} of {n} messages arrived"))?;
    Ok(latencies)
}

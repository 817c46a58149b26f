//! Processes of their own for W4: a writer, a reader, and the bare relay. One JSON instruction in, one
//! JSON line out.
//!
//! | module | what it holds |
//! |---|---|
//! | [`relay`] | the relay: two sockets per stream and a loop |
//! | [`mod@write`] | the writer, into a node or a relay |
//! | [`read`] | the reader, from a node or a relay; checks every byte |

mod read;
mod relay;
mod write;

use crate::content::Pool;
use crate::error::{LoadError, Result};
use bytes::{BufMut as _, Bytes, BytesMut};
use forebay_client::{Client, DatasetHandle};
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::net::SocketAddr;

/// Bytes of a piece of a bulk stream.
const PIECE: usize = 64 * 1024;
/// Bytes of the moment in front of a paced message.
const STAMP: usize = 8;

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Passes bytes on.
    Relay,
    /// Writes.
    Write,
    /// Reads.
    Read,
}

/// Through what.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Path {
    /// A pipelined dataset of a node, one partition per stream, its attempts open.
    Node {
        /// Base URL.
        url: String,
        /// The job.
        job: String,
        /// The dataset.
        dataset: String,
    },
    /// A relay.
    Relay {
        /// Where writers connect.
        input: SocketAddr,
        /// Where readers connect.
        output: SocketAddr,
    },
}

/// What is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Flow {
    /// As fast as it goes.
    Bulk {
        /// Streams side by side.
        streams: u32,
        /// Pieces of each.
        pieces_each: u64,
    },
    /// One stream of messages at a fixed rate.
    Paced {
        /// Bytes of a message, its moment included.
        message: usize,
        /// Messages per second.
        per_second: u32,
        /// How many.
        n: u64,
    },
}

impl Flow {
    /// Streams side by side.
    pub(crate) const fn streams(self) -> u32 {
        match self {
            Self::Bulk { streams, .. } => streams,
            Self::Paced { .. } => 1,
        }
    }

    /// Bytes of all streams.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::Bulk { streams, pieces_each } => u64::from(streams) * pieces_each * PIECE as u64,
            Self::Paced { message, n, .. } => message as u64 * n,
        }
    }
}

/// The whole instruction.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Instruction {
    /// What to do.
    pub(crate) role: Role,
    /// Through what; a relay makes its own.
    pub(crate) path: Option<Path>,
    /// What is moved; a relay takes anything.
    pub(crate) flow: Option<Flow>,
}

/// What a process says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Event {
    /// A relay listens.
    Listening {
        /// Where writers connect.
        input: SocketAddr,
        /// Where readers connect.
        output: SocketAddr,
    },
    /// A reader is connected.
    Connected,
    /// Done.
    Done(Outcome),
    /// It went wrong.
    Failed {
        /// How.
        message: String,
    },
}

/// What writers and readers report.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Moment before the first byte was written.
    pub(crate) started_ns: u64,
    /// Moment after the last byte was read or accepted.
    pub(crate) ended_ns: u64,
    /// Bytes moved.
    pub(crate) bytes: u64,
    /// Processor seconds of the process.
    pub(crate) cpu_seconds: f64,
    /// Microseconds from append to delivery, of a reader of messages.
    pub(crate) latencies_us: Vec<f64>,
}

fn say(event: &Event) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(event)?)?;
    out.flush()?;
    Ok(())
}

/// Runs a process to its end. Errors have been said by then.
pub(crate) async fn run(argument: &str) -> Result<()> {
    let ended = run_role(serde_json::from_str(argument)?).await;
    if let Err(error) = &ended {
        say(&Event::Failed { message: error.to_string() })?;
    }
    ended
}

async fn run_role(instruction: Instruction) -> Result<()> {
    let missing = || LoadError::check("the instruction is not complete");
    match (instruction.role, instruction.path, instruction.flow) {
        (Role::Relay, _, _) => relay::run().await,
        (Role::Write, path, flow) => write::run(path.ok_or_else(missing)?, flow.ok_or_else(missing)?).await,
        (Role::Read, path, flow) => read::run(path.ok_or_else(missing)?, flow.ok_or_else(missing)?).await,
    }
}

fn stage(url: &str, job: &str, dataset: &str) -> Result<DatasetHandle> {
    Ok(Client::builder(url).build()?.job(job)?.dataset(dataset)?)
}

/// Piece `number` of a bulk stream.
fn piece(pool: &Pool, stream: u32, number: u64) -> Result<Bytes> {
    pool.block((u64::from(stream) << 32).wrapping_add(number), PIECE)
}

/// Message `number` with its moment in front.
fn message(pool: &Pool, number: u64, length: usize, stamp: u64) -> Result<Bytes> {
    let mut bytes = BytesMut::with_capacity(length);
    bytes.put_u64_le(stamp);
    bytes.extend_from_slice(&pool.block(number, length.saturating_sub(STAMP))?);
    Ok(bytes.freeze())
}

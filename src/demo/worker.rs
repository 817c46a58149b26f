//! A producer or a consumer: one process each, told what to do by one JSON argument, telling how it
//! goes by JSON lines.

use super::DemoError;
use super::cluster::to_line;
use super::workload::{BlockDecoder, Join, Sums, Table, batches, encode, split};
use forebay_client::{Action, Client, ClientError, DatasetHandle, FetchPiece, FetchTarget, JobHandle, RetryPolicy, TailOptions};
use forebay_protocol::reads::{AcknowledgeRequest, Position};
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;
use store_api::{AttemptId, Clock, JobEpoch, Offset, PartitionId, SubpartitionIndex, SystemClock};

/// Between two looks for the file that ends a hold.
const POLL: Duration = Duration::from_millis(10);
/// Payload bytes of one batch request.
const FETCH_BYTES: u64 = 64 * 1024 * 1024;
/// Longest hold.
const MAX_HOLD: Duration = Duration::from_secs(120);
/// How often a consumer begins anew because a producer was superseded.
const MAX_FRESH_STARTS: u32 = 5;

/// What a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Makes its part of both tables and writes it.
    Produce,
    /// Reads its subpartition of every partition and sums.
    Consume,
}

/// The whole instruction of a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WorkerSpec {
    /// Nodes to ask, in order.
    pub(crate) urls: Vec<String>,
    /// The job.
    pub(crate) job: String,
    /// The owner's epoch.
    pub(crate) epoch: u64,
    /// What to do.
    pub(crate) role: Role,
    /// Whether the datasets are read while they are written.
    pub(crate) is_pipelined: bool,
    /// TPC-H scale factor.
    pub(crate) scale: f64,
    /// Number of producers.
    pub(crate) n_producers: u32,
    /// Number of consumers.
    pub(crate) n_consumers: u32,
    /// Which of them this is, from 0.
    pub(crate) index: u32,
    /// Generation that a producer writes in.
    pub(crate) generation: u32,
    /// Where to stop: rows of a producer, bytes of a consumer.
    pub(crate) hold_at: Option<u64>,
    /// The hold ends when this file is there.
    pub(crate) go_file: PathBuf,
}

/// What a worker says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum WorkerEvent {
    /// Stopped in the middle, as it was told.
    Holding {
        /// Rows made or read so far.
        rows: u64,
        /// Bytes written or read so far.
        bytes: u64,
    },
    /// A producer has sealed both partitions.
    Produced {
        /// Rows made.
        rows: u64,
        /// Bytes written.
        bytes: u64,
    },
    /// A consumer has read everything.
    Consumed {
        /// Rows read, each counted once.
        rows: u64,
        /// Bytes read, repeats included.
        bytes: u64,
        /// Bytes of them that this process had read before.
        repeated_bytes: u64,
        /// Its sums.
        sums: Sums,
    },
    /// The service refused the attempt because something newer took its place.
    Refused {
        /// The code.
        code: String,
        /// Rows made until then.
        rows: u64,
    },
    /// Anything else that went wrong.
    Failed {
        /// What.
        message: String,
    },
}

fn say(event: &WorkerEvent) -> Result<(), DemoError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", to_line(event))?;
    out.flush()?;
    Ok(())
}

/// Runs a worker to its end. Errors have been said by then.
pub(crate) async fn run(argument: &str) -> Result<(), DemoError> {
    let spec: WorkerSpec = serde_json::from_str(argument)?;
    let ended = match spec.role {
        Role::Produce => produce(&spec).await,
        Role::Consume => consume(&spec).await,
    };
    match ended {
        Ok(event) => say(&event),
        Err(error) => {
            say(&WorkerEvent::Failed { message: error.to_string() })?;
            Err(error)
        }
    }
}

/// The job, asked for at one of the nodes.
fn connect(spec: &WorkerSpec, node: usize) -> Result<JobHandle, DemoError> {
    let url = spec.urls.get(node % spec.urls.len().max(1)).ok_or_else(|| DemoError::new("no node to ask"))?;
    // With another node to turn to, a dead one is given up soon; alone, its restart is waited for.
    let (max_attempts, deadline) = if spec.urls.len() > 1 { (3, Duration::from_secs(5)) } else { (60, Duration::from_secs(60)) };
    let retry = RetryPolicy { max_attempts, deadline, max_backoff: Duration::from_secs(1), ..RetryPolicy::default() };
    let job = Client::builder(url).retry(retry).build()?.job(&spec.job)?;
    Ok(job.with_epoch(JobEpoch::new(spec.epoch)))
}

/// Waits for the go file, for a bounded time.
async fn hold(spec: &WorkerSpec, rows: u64, bytes: u64) -> Result<(), DemoError> {
    say(&WorkerEvent::Holding { rows, bytes })?;
    let clock = SystemClock::new();
    while !spec.go_file.exists() {
        if clock.monotonic() > MAX_HOLD {
            return Err(DemoError::new("nobody ended the hold"));
        }
        clock.sleep(POLL).await;
    }
    Ok(())
}

async fn produce(spec: &WorkerSpec) -> Result<WorkerEvent, DemoError> {
    let job = connect(spec, 0)?;
    let (mut rows, mut bytes) = (0, 0);
    match write_tables(spec, &job, &mut rows, &mut bytes).await {
        Ok(()) => Ok(WorkerEvent::Produced { rows, bytes }),
        Err(DemoError::Client(error)) if error.action() == Action::StandDown => {
            Ok(WorkerEvent::Refused { code: error.code().map_or_else(String::new, |code| code.to_string()), rows })
        }
        Err(error) => Err(error),
    }
}

async fn write_tables(spec: &WorkerSpec, job: &JobHandle, rows: &mut u64, bytes: &mut u64) -> Result<(), DemoError> {
    let (partition, attempt) = (PartitionId::new(u64::from(spec.index)), AttemptId::new(spec.generation, 0));
    let mut has_held = false;
    for table in Table::ALL {
        let mut writer = job.dataset(table.dataset())?.open_attempt(partition, attempt, Vec::new()).await?.into_writer();
        for batch in batches(table, spec.scale, spec.index, spec.n_producers) {
            let batch = batch.map_err(|error| DemoError::new(error.to_string()))?;
            for (consumer, part) in split(&batch, spec.n_consumers)? {
                let block = encode(&part)?;
                *bytes += block.len() as u64;
                writer.write(SubpartitionIndex::new(consumer), block).await?;
            }
            *rows += batch.num_rows() as u64;
            if !has_held && spec.hold_at.is_some_and(|at| *rows >= at) {
                has_held = true;
                writer.flush().await?;
                hold(spec, *rows, *bytes).await?;
            }
        }
        writer.seal().await?;
    }
    Ok(())
}

/// A consumer's state: begins anew when a producer that it followed was superseded.
#[derive(Default)]
struct Consumption {
    join: Join,
    bytes: u64,
    repeated_bytes: u64,
    has_held: bool,
}

impl Consumption {
    async fn take(&mut self, spec: &WorkerSpec, table: Table, decoder: &mut BlockDecoder, piece: &[u8]) -> Result<(), DemoError> {
        self.bytes += piece.len() as u64;
        decoder.push(piece);
        while let Some(blocks) = decoder.next_block()? {
            for block in blocks {
                self.join.add(table, &block)?;
            }
        }
        if !self.has_held && spec.hold_at.is_some_and(|at| self.bytes >= at) {
            self.has_held = true;
            hold(spec, self.join.n_rows(), self.bytes).await?;
        }
        Ok(())
    }

    fn begin_anew(&mut self) {
        self.join = Join::default();
        self.repeated_bytes = self.bytes;
    }
}

async fn consume(spec: &WorkerSpec) -> Result<WorkerEvent, DemoError> {
    let mut consumption = Consumption::default();
    for _ in 0..MAX_FRESH_STARTS {
        let ended = if spec.is_pipelined { follow(spec, &mut consumption).await } else { read_sealed(spec, &mut consumption).await };
        match ended {
            Ok(()) => {
                let rows = consumption.join.n_rows();
                let (bytes, repeated_bytes) = (consumption.bytes, consumption.repeated_bytes);
                return Ok(WorkerEvent::Consumed { rows, bytes, repeated_bytes, sums: consumption.join.into_sums() });
            }
            Err(DemoError::Client(error)) if is_superseded(&error) => consumption.begin_anew(),
            Err(error) => return Err(error),
        }
    }
    Err(DemoError::new(format!("a producer was superseded {MAX_FRESH_STARTS} times")))
}

/// Whether what was read so far belongs to an attempt that does not count any more.
fn is_superseded(error: &ClientError) -> bool {
    matches!(error, ClientError::Fenced { .. } | ClientError::OtherAttemptWon { .. } | ClientError::Released(_))
}

/// Reads the consumer's subpartition of every sealed partition, in one batch per table and node.
async fn read_sealed(spec: &WorkerSpec, consumption: &mut Consumption) -> Result<(), DemoError> {
    for table in Table::ALL {
        let mut open: Vec<(FetchTarget, BlockDecoder)> = (0..spec.n_producers)
            .map(|producer| FetchTarget::anywhere(PartitionId::new(u64::from(producer)), SubpartitionIndex::new(spec.index)))
            .map(|target| (target, BlockDecoder::default()))
            .collect();
        let mut node = 0;
        // Each round asks one node for what is still open; a node that is gone leaves it to the next.
        while !open.is_empty() {
            if node > spec.urls.len() {
                return Err(DemoError::new("no node serves what is left"));
            }
            let stage = connect(spec, node)?.dataset(table.dataset())?;
            open = fetch_round(spec, &stage, table, open, consumption).await?;
            node += 1;
        }
    }
    Ok(())
}

/// Asks one node for what is open. Answers what it could not give because it is gone, with the
/// offsets to go on from.
async fn fetch_round(
    spec: &WorkerSpec,
    stage: &DatasetHandle,
    table: Table,
    mut open: Vec<(FetchTarget, BlockDecoder)>,
    consumption: &mut Consumption,
) -> Result<Vec<(FetchTarget, BlockDecoder)>, DemoError> {
    let unknown = || DemoError::new("an item that was not asked for");
    let targets = open.iter().map(|(target, _)| target.clone()).collect();
    let mut is_open = vec![false; open.len()];
    let mut pieces = stage.fetch(targets, FETCH_BYTES);
    while let Some(piece) = pieces.next().await {
        match piece {
            FetchPiece::Bytes { item, offset, bytes } => {
                let (target, decoder) = open.get_mut(item.target).ok_or_else(unknown)?;
                target.item.from = offset.get() + bytes.len() as u64;
                consumption.take(spec, table, decoder, &bytes).await?;
            }
            FetchPiece::End { item, .. } => open.get(item.target).ok_or_else(unknown)?.1.finish()?,
            FetchPiece::Failed { item, offset, error } => {
                if error.action() != Action::ResolveAgain && error.action() != Action::RetryLater {
                    return Err(error.into());
                }
                open.get_mut(item.target).ok_or_else(unknown)?.0.item.from = offset.get();
                *is_open.get_mut(item.target).ok_or_else(unknown)? = true;
            }
        }
    }
    Ok(open.into_iter().zip(is_open).filter(|(_, is_open)| *is_open).map(|(item, _)| item).collect())
}

/// A producer that has not begun is waited for; the driver bounds how long.
async fn wait_for_producer() -> Result<(), DemoError> {
    let clock = SystemClock::new();
    clock.sleep(POLL).await;
    Ok(())
}

/// Follows the consumer's subpartition of every partition while it is written, and acknowledges once
/// the result is there.
async fn follow(spec: &WorkerSpec, consumption: &mut Consumption) -> Result<(), DemoError> {
    let (job, subpartition) = (connect(spec, 0)?, SubpartitionIndex::new(spec.index));
    let mut acknowledgements = Vec::new();
    for table in Table::ALL {
        let stage = job.dataset(table.dataset())?;
        let mut positions = Vec::new();
        for producer in 0..spec.n_producers {
            let mut decoder = BlockDecoder::default();
            let options = TailOptions { from: Offset::ZERO, ..TailOptions::default() };
            let mut tail = stage.tail(PartitionId::new(u64::from(producer)), subpartition, options);
            while let Some(bytes) = tail.next().await {
                match bytes {
                    Ok(bytes) => consumption.take(spec, table, &mut decoder, &bytes).await?,
                    Err(ClientError::NotReady(_)) if tail.next_offset() == Offset::ZERO => {
                        wait_for_producer().await?;
                        tail = stage.tail(PartitionId::new(u64::from(producer)), subpartition, options);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            decoder.finish()?;
            positions.push(Position {
                partition: u64::from(producer),
                subpartition: spec.index,
                offset: tail.next_offset().get(),
                attempt: tail.attempt().map(str::to_owned),
            });
        }
        acknowledgements.push((stage, AcknowledgeRequest { group: "default".to_owned(), consumer: None, positions }));
    }
    for (stage, request) in acknowledgements {
        stage.acknowledge(&request).await?;
    }
    Ok(())
}

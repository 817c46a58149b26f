//! A producer or a consumer: one process each, told what to do by one JSON argument, telling how it
//! goes by JSON lines.

use super::DemoError;
use super::cluster::to_line;
use super::workload::{BlockDecoder, Join, Sums, Table, batches, encode, split};
use forebay_client::protocol::ErrorCode;
use forebay_client::protocol::reads::{FetchItem, Position};
use forebay_client::{
    AttemptId, Client, ClientError, DatasetHandle, DatasetId, FetchOptions, Fetched, JobEpoch, JobHandle, JobId, Offset, PartitionId,
    SubpartitionIndex, WriterOptions,
};
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;
use store_api::{Clock, SystemClock};

/// Between two looks for the file that ends a hold.
const POLL: Duration = Duration::from_millis(10);
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

fn connect(spec: &WorkerSpec) -> Result<JobHandle, DemoError> {
    let (first, others) = spec.urls.split_first().ok_or_else(|| DemoError::new("no node to ask"))?;
    let builder = others.iter().fold(Client::builder(first), |builder, url| builder.also(url));
    let job = JobId::new(&spec.job).map_err(|error| DemoError::new(error.to_string()))?;
    Ok(builder.build()?.job_at(&job, JobEpoch::new(spec.epoch)))
}

fn dataset(job: &JobHandle, table: Table) -> Result<DatasetHandle, DemoError> {
    let id = DatasetId::new(table.dataset()).map_err(|error| DemoError::new(error.to_string()))?;
    Ok(job.dataset(&id))
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
    let job = connect(spec)?;
    let (mut rows, mut bytes) = (0, 0);
    match write_tables(spec, &job, &mut rows, &mut bytes).await {
        Ok(()) => Ok(WorkerEvent::Produced { rows, bytes }),
        Err(DemoError::Client(error)) if error.is_fenced() => {
            Ok(WorkerEvent::Refused { code: error.code().map_or_else(String::new, |code| code.to_string()), rows })
        }
        Err(error) => Err(error),
    }
}

async fn write_tables(spec: &WorkerSpec, job: &JobHandle, rows: &mut u64, bytes: &mut u64) -> Result<(), DemoError> {
    let (partition, attempt) = (PartitionId::new(u64::from(spec.index)), AttemptId::new(spec.generation, 0));
    let mut has_held = false;
    for table in Table::ALL {
        let mut writer = dataset(job, table)?.writer(partition, attempt, WriterOptions::default()).await?;
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
    let job = connect(spec)?;
    let mut consumption = Consumption::default();
    for _ in 0..MAX_FRESH_STARTS {
        let ended =
            if spec.is_pipelined { follow(spec, &job, &mut consumption).await } else { read_sealed(spec, &job, &mut consumption).await };
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

fn is_superseded(error: &ClientError) -> bool {
    matches!(error.code(), Some(ErrorCode::Fenced | ErrorCode::OtherAttemptWon | ErrorCode::Aborted))
}

/// Reads the consumer's subpartition of every sealed partition in one batch per table.
async fn read_sealed(spec: &WorkerSpec, job: &JobHandle, consumption: &mut Consumption) -> Result<(), DemoError> {
    for table in Table::ALL {
        let item = |producer| FetchItem {
            partition: u64::from(producer),
            subpartition: spec.index,
            n_subpartitions: 1,
            from: 0,
            to: None,
            attempt: None,
        };
        let mut decoders: Vec<BlockDecoder> = (0..spec.n_producers).map(|_| BlockDecoder::default()).collect();
        let mut fetch = dataset(job, table)?.fetch((0..spec.n_producers).map(item).collect(), FetchOptions::default());
        while let Some(fetched) = fetch.next().await? {
            match fetched {
                Fetched::Bytes { item, bytes, .. } => {
                    let decoder = decoders.get_mut(item).ok_or_else(|| DemoError::new("an item that was not asked for"))?;
                    consumption.take(spec, table, decoder, &bytes).await?;
                }
                Fetched::End { item, .. } => {
                    decoders.get(item).ok_or_else(|| DemoError::new("an item that was not asked for"))?.finish()?;
                }
                Fetched::Failed { error, .. } => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Follows the consumer's subpartition of every partition while it is written, and acknowledges once
/// the result is there.
async fn follow(spec: &WorkerSpec, job: &JobHandle, consumption: &mut Consumption) -> Result<(), DemoError> {
    let subpartition = SubpartitionIndex::new(spec.index);
    let (mut ends, mut life) = (Vec::new(), String::new());
    for table in Table::ALL {
        for producer in 0..spec.n_producers {
            let mut decoder = BlockDecoder::default();
            let mut tail = dataset(job, table)?.tail(PartitionId::new(u64::from(producer)), subpartition, Offset::ZERO, None);
            while let Some(bytes) = tail.next().await? {
                consumption.take(spec, table, &mut decoder, &bytes).await?;
            }
            decoder.finish()?;
            life = tail.node_life().map_or(life, str::to_owned);
            let position = Position {
                partition: u64::from(producer),
                subpartition: spec.index,
                offset: tail.offset().get(),
                attempt: tail.attempt().map(str::to_owned),
            };
            ends.push((table, position));
        }
    }
    for table in Table::ALL {
        let positions = ends.iter().filter(|(of, _)| *of == table).map(|(_, position)| position.clone()).collect();
        dataset(job, table)?.acknowledge(&life, "default", positions).await?;
    }
    Ok(())
}

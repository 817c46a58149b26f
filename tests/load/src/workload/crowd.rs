//! W7: 200 clients, half of them slow, for minutes; the node's peak memory against its configured
//! budget, and whether it stays flat. A quarter writes, seals, reads back and releases blocking
//! partitions; a quarter reads a sealed one over and over; a quarter does the same slowly; a quarter is
//! pairs of a writer and a slow follower of a pipelined partition.

use crate::bench::{Bench, MIB};
use crate::content::{Long, Pool};
use crate::crew::all;
use crate::error::{LoadError, Result, ensure};
use crate::figure::{Figure, Goal, Side};
use crate::site::node::{Node, NodeSpec};
use crate::usage;
use forebay_client::{DatasetHandle, DatasetRequest, JobHandle, Kind, ReadRange, RetentionName, TailOptions};
use forebay_protocol::reads::{AcknowledgeRequest, Position};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store_api::{AttemptId, Crc32c, PartitionId, SharedClock, SubpartitionIndex};

const BUDGET_MIB: f64 = 256.0;
const ALLOWANCE_MIB: f64 = 128.0;
/// How much higher the second half of the time may peak than the first.
const FLAT: f64 = 1.1;
const PIECE: usize = 256 * 1024;
const SEALED_BYTES: u64 = 32 * 1024 * 1024;
const PAUSE: Duration = Duration::from_millis(50);
const SAMPLE: Duration = Duration::from_millis(500);

/// What every client is handed.
#[derive(Clone)]
struct Crowd {
    clock: SharedClock,
    ends_at: Duration,
    pool: Pool,
    sealed: Arc<Long>,
    blocking: DatasetHandle,
    pipelined: DatasetHandle,
    moved: Arc<AtomicU64>,
}

impl Crowd {
    fn is_over(&self) -> bool {
        self.clock.monotonic() >= self.ends_at
    }

    fn moved(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Measures.
pub(crate) async fn run(bench: &Bench) -> Result<Vec<Figure>> {
    let (n_clients, seconds) = bench.plan.crowd;
    let spec = NodeSpec::new(bench, "w7-node")?.set(format!("node.memory={BUDGET_MIB}MiB")).set("http.max_document=8MiB");
    let node = spec.start(&bench.clock).await?;
    let at_start = usage::peak_mib(&node.pids());
    let job = node.job("w7").await?;
    let crowd = gather(bench, &job, seconds).await?;
    let quarter = n_clients / 4;
    let clients = all((0..quarter * 4 - quarter / 2).map(|client| run_client(crowd.clone(), client, quarter)).collect());
    let watch = async { Ok(watch(&crowd, &node).await) };
    let (_, samples) = bench.limited(futures::future::try_join(clients, watch)).await?;
    let peak = usage::peak_mib(&node.pids());
    node.stop(&bench.clock).await?;
    spec.delete()?;
    figures(n_clients, seconds, at_start, peak, &samples, crowd.moved.load(Ordering::Relaxed))
}

fn figures(n_clients: u32, seconds: u32, at_start: f64, peak: f64, samples: &[f64], moved: u64) -> Result<Vec<Figure>> {
    // The first tenth fills buffers and caches.
    let counted = samples.get(samples.len() / 10..).unwrap_or_default();
    let (first, second) = counted.split_at(counted.len() / 2);
    let highest = |samples: &[f64]| samples.iter().copied().fold(0.0, f64::max);
    ensure(!first.is_empty() && moved > 0, || "the crowd ended before it was seen".to_owned())?;
    let limit = BUDGET_MIB + ALLOWANCE_MIB;
    let name = format!("{n_clients} clients, half of them slow, {seconds} s: peak memory");
    let sides = (Side::of(vec![peak]), Side::fixed(limit, 1));
    let figure = Figure::new(name, "MiB", "the budget of 256 MiB and 128 MiB", sides, Goal::AtMost(1.0))
        .note("mib_before_the_first_request", at_start)
        .note("gib_moved", moved as f64 / MIB / 1024.0)
        .note("sample_seconds", SAMPLE.as_secs_f64())
        .note("samples_mib", json!(thinned(samples)));
    let sides = (Side::of(vec![highest(second)]), Side::of(vec![highest(first)]));
    let flat = Figure::new("the same: second half against the first", "MiB", "the peak of the first half", sides, Goal::AtMost(FLAT));
    Ok(vec![figure, flat])
}

/// At most 200 samples, for the plot.
fn thinned(samples: &[f64]) -> Vec<f64> {
    let step = samples.len().div_ceil(200).max(1);
    samples.chunks(step).map(|chunk| chunk.iter().copied().fold(0.0, f64::max)).collect()
}

async fn gather(bench: &Bench, job: &JobHandle, seconds: u32) -> Result<Crowd> {
    let blocking = job.put_dataset("blocking", DatasetRequest { kind: Some(Kind::Blocking), ..DatasetRequest::new(4) }).await?;
    let request =
        DatasetRequest { kind: Some(Kind::Pipelined), retention: Some(RetentionName::UntilAcknowledged), ..DatasetRequest::new(1) };
    let pipelined = job.put_dataset("pipelined", request).await?;
    let sealed = bench.pool.long(7, SEALED_BYTES, PIECE)?;
    let mut writer = blocking.open_attempt(PartitionId::new(0), AttemptId::new(0, 0), Vec::new()).await?.into_writer();
    for piece in &sealed.pieces {
        writer.write(SubpartitionIndex::new(0), piece.clone()).await?;
    }
    writer.seal().await?;
    let ends_at = bench.clock.monotonic() + Duration::from_secs(u64::from(seconds));
    let (clock, pool) = (bench.clock.clone(), bench.pool.clone());
    Ok(Crowd { clock, ends_at, pool, sealed: Arc::new(sealed), blocking, pipelined, moved: Arc::default() })
}

/// The node's memory over time, in MiB.
async fn watch(crowd: &Crowd, node: &Node) -> Vec<f64> {
    let mut samples = Vec::new();
    while !crowd.is_over() {
        samples.push(usage::resident_mib(&node.pids()));
        crowd.clock.sleep(SAMPLE).await;
    }
    samples
}

async fn run_client(crowd: Crowd, client: u32, quarter: u32) -> Result<()> {
    match client.checked_div(quarter) {
        Some(0) => turn_over(&crowd, client, quarter).await,
        Some(1) => read(&crowd, Duration::ZERO).await,
        Some(2) => read(&crowd, PAUSE).await,
        _ => follow_slowly(&crowd, client).await,
    }
}

/// Writes, seals, reads back, releases.
async fn turn_over(crowd: &Crowd, client: u32, quarter: u32) -> Result<()> {
    let mut number = 1 + u64::from(client);
    while !crowd.is_over() {
        let partition = PartitionId::new(number);
        let block = crowd.pool.block(number, PIECE)?;
        let mut writer = crowd.blocking.open_attempt(partition, AttemptId::new(0, 0), Vec::new()).await?.into_writer();
        for index in 0..4 {
            writer.write(SubpartitionIndex::new(index), block.clone()).await?;
            crowd.moved(block.len());
        }
        writer.seal().await?;
        let found = crowd.blocking.read(partition, SubpartitionIndex::new(2), ReadRange::all()).await?.collect(PIECE as u64).await?;
        ensure(found == block, || format!("partition {partition} has other bytes"))?;
        crowd.moved(found.len());
        crowd.blocking.release_partition(partition).await?;
        number += u64::from(quarter);
    }
    Ok(())
}

/// Reads the sealed partition over and over, with a pause after each piece.
async fn read(crowd: &Crowd, pause: Duration) -> Result<()> {
    while !crowd.is_over() {
        let mut reader = crowd.blocking.read(PartitionId::new(0), SubpartitionIndex::new(0), ReadRange::all()).await?;
        let mut crc = Crc32c::default();
        while let Some(bytes) = reader.next().await {
            let bytes = bytes?;
            crc = crc.append(&bytes);
            crowd.moved(bytes.len());
            if !pause.is_zero() {
                crowd.clock.sleep(pause).await;
                if crowd.is_over() {
                    return Ok(());
                }
            }
        }
        ensure(crc == crowd.sealed.crc, || "the sealed partition has other bytes".to_owned())?;
    }
    Ok(())
}

/// A writer that never pauses and its follower that does.
async fn follow_slowly(crowd: &Crowd, client: u32) -> Result<()> {
    let partition = PartitionId::new(u64::from(client));
    let attempt = crowd.pipelined.open_attempt(partition, AttemptId::new(0, 0), Vec::new()).await?;
    let mut writer = attempt.into_writer();
    let write = async {
        let mut number = 0;
        while !crowd.is_over() {
            writer.write(SubpartitionIndex::new(0), crowd.pool.block(number, PIECE)?).await?;
            crowd.moved(PIECE);
            number += 1;
        }
        writer.seal().await?;
        Ok::<_, LoadError>(())
    };
    futures::future::try_join(write, follow(crowd, partition)).await?;
    Ok(())
}

async fn follow(crowd: &Crowd, partition: PartitionId) -> Result<()> {
    let mut tail = crowd.pipelined.tail(partition, SubpartitionIndex::new(0), TailOptions::default());
    let (mut at, mut acknowledged) = (0_u64, 0_u64);
    while let Some(bytes) = tail.next().await {
        let mut bytes = bytes?;
        while !bytes.is_empty() {
            let within = usize::try_from(at % PIECE as u64).unwrap_or_default();
            let run = bytes.split_to(bytes.len().min(PIECE - within));
            crowd.pool.check(at / PIECE as u64, PIECE, within..within + run.len(), &run)?;
            at += run.len() as u64;
        }
        if at - acknowledged >= PIECE as u64 {
            let position = Position { partition: partition.get(), subpartition: 0, offset: at, attempt: None };
            let request = AcknowledgeRequest { group: "default".to_owned(), consumer: None, positions: vec![position] };
            crowd.pipelined.acknowledge(&request).await?;
            acknowledged = at;
        }
        // At the end it may hurry: the rest is only what was in flight.
        if !crowd.is_over() {
            crowd.clock.sleep(PAUSE).await;
        }
    }
    Ok(())
}

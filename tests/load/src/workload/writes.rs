//! W1: write and seal, blocking, synced in full. Reference: fio, as many new files of the same size on
//! the same volume, each written in order by a job of its own and synced once, at its end.

use crate::bench::{Bench, MIB, Meter};
use crate::crew::all;
use crate::error::{Result, ensure};
use crate::figure::{Figure, Goal, Reading};
use crate::site::fio::{FioJob, FioSync};
use crate::site::node::{Node, NodeSpec};
use crate::usage;
use forebay_client::{DatasetHandle, DatasetRequest, Kind};
use std::collections::BTreeMap;
use store_api::{AttemptId, PartitionId, SubpartitionIndex};

/// Consumers that each partition is for.
const N_SUBPARTITIONS: u32 = 16;
/// Bytes handed to the writer at a time, turn by turn for each consumer.
const PIECE: usize = 256 * 1024;
const FIO_BLOCK: u64 = 1024 * 1024;

/// Measures.
pub(crate) async fn run(bench: &Bench) -> Result<Vec<Figure>> {
    let (n, length) = bench.plan.write;
    let spec = NodeSpec::new(bench, "w1-node")?;
    let node = spec.start(&bench.clock).await?;
    let ours = async |run| ours(bench, &node, run).await;
    let sides = bench.duel(bench.plan.n_runs, ours, async |_| reference(bench).await).await?;
    node.stop(&bench.clock).await?;
    spec.delete()?;
    let name = format!("{n} partitions of {} MiB, written and sealed side by side", length as f64 / MIB);
    let against = "fio: as many new files written in order side by side, one fsync each, psync, 1 MiB writes";
    Ok(vec![Figure::new(name, "MiB/s", against, sides, Goal::AtLeast(0.9)).note("subpartitions", N_SUBPARTITIONS)])
}

async fn ours(bench: &Bench, node: &Node, run: usize) -> Result<Reading> {
    let (n, length) = bench.plan.write;
    let job = node.job(&format!("w1-{run}")).await?;
    let stage = job.put_dataset("stage", DatasetRequest { kind: Some(Kind::Blocking), ..DatasetRequest::new(N_SUBPARTITIONS) }).await?;
    let meter: Meter = bench.meter(&[("forebay", node.pids()), ("client", usage::own_pid())]);
    all((0..n).map(|partition| write(bench, stage.clone(), partition, length)).collect()).await?;
    let reading = meter.throughput(n * length);
    job.release().await?;
    Ok(reading)
}

fn write(bench: &Bench, stage: DatasetHandle, partition: u64, length: u64) -> impl Future<Output = Result<()>> + Send + use<> {
    let pool = bench.pool.clone();
    async move {
        let mut writer = stage.open_attempt(PartitionId::new(partition), AttemptId::new(0, 0), Vec::new()).await?.into_writer();
        let (mut left, mut number) = (length, 0_u32);
        while left > 0 {
            let size = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE);
            let piece = pool.block((partition << 32) + u64::from(number), size)?;
            writer.write(SubpartitionIndex::new(number % N_SUBPARTITIONS), piece).await?;
            left -= size as u64;
            number += 1;
        }
        let sealed = writer.seal().await?;
        let class = &sealed.manifest().class;
        ensure(sealed.is_won() && sealed.manifest().total_bytes == length, || {
            format!("partition {partition} was sealed with other bytes")
        })?;
        ensure(class.sync == "full", || format!("partition {partition} was sealed as {}", class.text()))
    }
}

async fn reference(bench: &Bench) -> Result<Reading> {
    let (n, length) = bench.plan.write;
    let directory = bench.directory("w1-fio")?;
    let job = FioJob { n_jobs: n, files_each: 1, file_bytes: length, block_bytes: FIO_BLOCK.min(length), sync: FioSync::AtEnd };
    let outcome = job.run(&directory, &bench.clock).await?;
    bench.directory("w1-fio")?;
    let gib = outcome.bytes as f64 / MIB / 1024.0;
    let cpu_per_gib = BTreeMap::from([("fio".to_owned(), outcome.cpu_seconds / gib)]);
    Ok(Reading { value: outcome.bytes as f64 / MIB / outcome.seconds, cpu_per_gib, peak_mib: BTreeMap::new() })
}

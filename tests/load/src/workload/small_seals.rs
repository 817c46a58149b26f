//! W9: partitions of 10 KiB, sealed as fast as 64 producers can, synced in full. Reference: fio, 64 jobs
//! that write files of 10 KiB and sync each (but the last of each job, which fio leaves unsynced).

use crate::bench::Bench;
use crate::crew::all;
use crate::error::{Result, ensure};
use crate::figure::{Figure, Goal, Reading};
use crate::site::fio::{FioJob, FioSync};
use crate::site::node::{Node, NodeSpec};
use crate::statistics::percentile;
use crate::usage;
use forebay_client::{DatasetHandle, DatasetRequest, Kind};
use std::cell::RefCell;
use store_api::{AttemptId, PartitionId, SharedClock, SubpartitionIndex};

const N_PRODUCERS: u64 = 64;
const LENGTH: usize = 10 * 1024;

/// Measures.
pub(crate) async fn run(bench: &Bench) -> Result<Vec<Figure>> {
    let each = u64::from(bench.plan.seals_each);
    let spec = NodeSpec::new(bench, "w9-node")?;
    let node = spec.start(&bench.clock).await?;
    let latencies = RefCell::new(Vec::new());
    let sides = bench
        .duel(bench.plan.n_runs, async |run| ours(bench, &node, run, each, &latencies).await, async |_| reference(bench, each).await)
        .await?;
    node.stop(&bench.clock).await?;
    spec.delete()?;
    let latencies = latencies.into_inner();
    let name = format!("{N_PRODUCERS} producers, {each} partitions of 10 KiB each");
    let against = "fio: 64 jobs, files of 10 KiB, each written and synced";
    let figure = Figure::new(name, "seals/s", against, sides, Goal::AtLeast(3.0))
        .note("p50_ms", percentile(&latencies, 50.0))
        .note("p99_ms", percentile(&latencies, 99.0))
        .note("p999_ms", percentile(&latencies, 99.9));
    Ok(vec![figure])
}

async fn ours(bench: &Bench, node: &Node, run: usize, each: u64, latencies: &RefCell<Vec<f64>>) -> Result<Reading> {
    let job = node.job(&format!("w9-{run}")).await?;
    let stage = job.put_dataset("stage", DatasetRequest { kind: Some(Kind::Blocking), ..DatasetRequest::new(1) }).await?;
    let meter = bench.meter(&[("forebay", node.pids()), ("client", usage::own_pid())]);
    let work = (0..N_PRODUCERS).map(|producer| seal_many(bench, stage.clone(), producer * each..(producer + 1) * each));
    let taken = all(work.collect()).await?.concat();
    let rate = (N_PRODUCERS * each) as f64 / meter.seconds();
    let reading = meter.costs(N_PRODUCERS * each * LENGTH as u64, rate);
    if run > 0 {
        latencies.borrow_mut().extend(taken);
    }
    job.release().await?;
    Ok(reading)
}

/// Milliseconds of each partition, from its opening to the answer of its seal.
fn seal_many(
    bench: &Bench,
    stage: DatasetHandle,
    partitions: std::ops::Range<u64>,
) -> impl Future<Output = Result<Vec<f64>>> + Send + use<> {
    let (pool, clock): (_, SharedClock) = (bench.pool.clone(), bench.clock.clone());
    async move {
        let mut taken = Vec::new();
        for partition in partitions {
            let started = clock.monotonic();
            let mut writer = stage.open_attempt(PartitionId::new(partition), AttemptId::new(0, 0), Vec::new()).await?.into_writer();
            writer.write(SubpartitionIndex::new(0), pool.block(partition, LENGTH)?).await?;
            let sealed = writer.seal().await?;
            let is_right = sealed.is_won() && sealed.manifest().total_bytes == LENGTH as u64 && sealed.manifest().class.sync == "full";
            ensure(is_right, || format!("partition {partition} was sealed as something else"))?;
            taken.push(clock.monotonic().saturating_sub(started).as_secs_f64() * 1000.0);
        }
        Ok(taken)
    }
}

async fn reference(bench: &Bench, each: u64) -> Result<Reading> {
    let directory = bench.directory("w9-fio")?;
    let length = LENGTH as u64;
    let job = FioJob { n_jobs: N_PRODUCERS, files_each: each, file_bytes: length, block_bytes: length, sync: FioSync::EachWrite };
    let outcome = job.run(&directory, &bench.clock).await?;
    bench.directory("w9-fio")?;
    Ok(Reading::of((N_PRODUCERS * each) as f64 / outcome.seconds))
}

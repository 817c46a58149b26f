//! W5: the time from the start of the process until it is ready, with many sealed partitions on disk,
//! after kill -9. There is nobody to hold it against: the limit is the reference, and at ten times the
//! partitions, ten times the time.

use crate::bench::Bench;
use crate::crew::{Tickets, all};
use crate::error::{LoadError, Result, ensure};
use crate::figure::{Figure, Goal, Side};
use crate::site::node::{Node, NodeSpec};
use crate::usage;
use forebay_client::{DatasetHandle, DatasetRequest, Kind, ReadRange};
use store_api::{AttemptId, PartitionId, SubpartitionIndex};

const N_PRODUCERS: usize = 64;
const LENGTH: usize = 100;
const LIMIT_SECONDS: f64 = 2.0;
/// The number of partitions that the limit is for.
const LIMIT_AT: u64 = 100_000;
const N_CHECKED: u64 = 20;

/// Measures.
pub(crate) async fn run(bench: &Bench) -> Result<Vec<Figure>> {
    let spec = NodeSpec::new(bench, "w5-node")?;
    let (mut sealed, mut measured) = (0, Vec::new());
    for n in bench.plan.restarts {
        bench.say(&format!("  {n} partitions"));
        build(bench, &spec, sealed..*n).await?;
        sealed = *n;
        measured.push((*n, restart(bench, &spec, *n).await?));
    }
    spec.delete()?;
    let limited = bench.plan.restarts.iter().copied().filter(|n| *n <= LIMIT_AT).max();
    let mut figures = Vec::new();
    for (n, (seconds, memory)) in &measured {
        let ours = Side::of(seconds.clone());
        let (reference, goal) = if Some(*n) == limited {
            (Side::fixed(LIMIT_SECONDS, seconds.len()), Goal::AtMost(1.0))
        } else {
            (Side::default(), Goal::Beside)
        };
        let figure = Figure::new(format!("{n} partitions, time to ready"), "s", "the limit", (ours, reference), goal);
        figures.push(figure.note("partitions", *n).note("memory_mib_when_ready", *memory));
    }
    for (few, many) in measured.iter().zip(measured.iter().skip(1)) {
        let factor = many.0 as f64 / few.0 as f64;
        let linear = Side::of(few.1.0.iter().map(|seconds| seconds * factor).collect());
        let name = format!("{} partitions, no worse than linear", many.0);
        let against = "the time at fewer partitions, times as many more";
        figures.push(Figure::new(name, "s", against, (Side::of(many.1.0.clone()), linear), Goal::AtMost(1.0)));
    }
    Ok(figures)
}

/// Seals more partitions. Nothing is synced here, so that it takes minutes and not hours; what the
/// restart finds is the same.
async fn build(bench: &Bench, spec: &NodeSpec, partitions: std::ops::Range<u64>) -> Result<()> {
    let node = spec.clone().set("disk.sync=none").start(&bench.clock).await?;
    let stage = declare(&node).await?;
    let tickets = Tickets::new(partitions.end - partitions.start);
    let seal = |_| {
        let (stage, tickets, pool, first) = (stage.clone(), tickets.clone(), bench.pool.clone(), partitions.start);
        async move {
            while let Some(ticket) = tickets.take() {
                let partition = PartitionId::new(first + ticket);
                let mut writer = stage.open_attempt(partition, AttemptId::new(0, 0), Vec::new()).await?.into_writer();
                writer.write(SubpartitionIndex::new(0), pool.block(partition.get(), LENGTH)?).await?;
                ensure(writer.seal().await?.is_won(), || format!("partition {partition} was not won"))?;
            }
            Ok(())
        }
    };
    bench.limited(all((0..N_PRODUCERS).map(seal).collect())).await?;
    node.stop(&bench.clock).await
}

async fn declare(node: &Node) -> Result<DatasetHandle> {
    let job = node.job("w5").await?;
    Ok(job.put_dataset("stage", DatasetRequest { kind: Some(Kind::Blocking), ..DatasetRequest::new(1) }).await?)
}

/// Kills and starts it again, some times. Answers the seconds of each start, and the memory after it.
async fn restart(bench: &Bench, spec: &NodeSpec, n: u64) -> Result<(Vec<f64>, f64)> {
    let (mut seconds, mut memory) = (Vec::new(), 0.0);
    let mut node = spec.start(&bench.clock).await?;
    for _ in 0..bench.plan.n_runs {
        node.kill().await?;
        node = spec.start(&bench.clock).await?;
        seconds.push(node.until_ready.as_secs_f64());
        memory = usage::resident_mib(&node.pids());
        check(bench, &node, n).await?;
    }
    bench.say(&format!("    until ready: {seconds:.3?} s, then {memory:.0} MiB"));
    node.stop(&bench.clock).await?;
    Ok((seconds, memory))
}

/// Everything is there, and some of it is read.
async fn check(bench: &Bench, node: &Node, n: u64) -> Result<()> {
    let stage = declare(node).await?;
    let n_sealed = stage.state().await?.n_sealed;
    ensure(n_sealed == n, || format!("{n_sealed} of {n} partitions are there after the restart"))?;
    for number in 0..N_CHECKED.min(n) {
        let partition = number * (n - 1) / N_CHECKED.min(n).saturating_sub(1).max(1);
        let reader = stage.read(PartitionId::new(partition.min(n - 1)), SubpartitionIndex::new(0), ReadRange::all()).await?;
        let bytes = reader.collect(1024).await?;
        bench
            .pool
            .check(partition.min(n - 1), LENGTH, 0..LENGTH, &bytes)
            .map_err(|error| LoadError::check(format!("after the restart: {error}")))?;
    }
    Ok(())
}

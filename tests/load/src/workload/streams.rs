//! W4: pipelined, from a writer process through the node to a reader process. Reference: the same two
//! processes around a bare TCP relay. Writer and reader differ only in how they hand over bytes.

use crate::bench::{Bench, MIB};
use crate::error::{LoadError, Result};
use crate::figure::{Figure, Goal, Reading};
use crate::peer::{Flow, Path};
use crate::site::iperf;
use crate::site::node::{Node, NodeSpec};
use crate::site::peer::{Passage, Peer, pass};
use crate::statistics::{median, percentile};
use forebay_client::{DatasetRequest, Kind, RetentionName};
use serde_json::{Value, json};
use std::cell::RefCell;
use store_api::{AttemptId, PartitionId};

const PIECE: u64 = 64 * 1024;
/// Messages per second and their bytes.
const MESSAGES: [(u32, usize); 2] = [(5_000, 1024), (1_000, 64 * 1024)];
/// Share of the messages, in percent, that come before everything is warm.
const WARM_UP_PERCENT: usize = 10;
const AGAINST: &str = "the same writer and reader around a bare TCP relay";

/// Measures.
pub(crate) async fn run(bench: &Bench) -> Result<Vec<Figure>> {
    let spec = NodeSpec::new(bench, "w4-node")?;
    let node = spec.start(&bench.clock).await?;
    let mut figures = Vec::new();
    for streams in [1_u32, 8] {
        bench.say(&format!("  {streams} streams"));
        figures.push(throughput(bench, &node, streams).await?);
    }
    for (per_second, message) in MESSAGES {
        bench.say(&format!("  {per_second} messages/s of {message} bytes"));
        figures.push(latency(bench, &node, per_second, message).await?);
    }
    node.stop(&bench.clock).await?;
    spec.delete()?;
    Ok(figures)
}

/// A path through the node, its attempts open.
async fn open(node: &Node, job: &str, streams: u32) -> Result<Path> {
    let handle = node.job(job).await?;
    let request =
        DatasetRequest { kind: Some(Kind::Pipelined), retention: Some(RetentionName::UntilAcknowledged), ..DatasetRequest::new(1) };
    let stage = handle.put_dataset("stage", request).await?;
    for stream in 0..streams {
        stage.open_attempt(PartitionId::new(u64::from(stream)), AttemptId::new(0, 0), Vec::new()).await?;
    }
    Ok(Path::Node { url: node.url.clone(), job: job.to_owned(), dataset: "stage".to_owned() })
}

async fn through_node(bench: &Bench, node: &Node, name: &str, flow: Flow) -> Result<(Passage, Reading)> {
    let path = open(node, name, flow.streams()).await?;
    let meter = bench.meter(&[("forebay", node.pids())]);
    let passage = pass(&path, flow, &bench.clock).await?;
    let reading = meter.costs(flow.bytes(), 0.0);
    node.job(name).await?.release().await?;
    Ok((passage, reading))
}

async fn through_relay(bench: &Bench, flow: Flow) -> Result<(Passage, Reading)> {
    let (relay, path) = Peer::relay(&bench.clock).await?;
    let meter = bench.meter(&[("relay", relay.pids())]);
    let passage = pass(&path, flow, &bench.clock).await?;
    Ok((passage, meter.costs(flow.bytes(), 0.0)))
}

fn with_clients(mut reading: Reading, passage: &Passage, flow: Flow) -> Reading {
    let gib = flow.bytes() as f64 / MIB / 1024.0;
    reading.cpu_per_gib.insert("writer".to_owned(), passage.writer_cpu / gib);
    reading.cpu_per_gib.insert("reader".to_owned(), passage.reader_cpu / gib);
    reading
}

async fn throughput(bench: &Bench, node: &Node, streams: u32) -> Result<Figure> {
    let flow = Flow::Bulk { streams, pieces_each: bench.plan.stream_bytes / PIECE / u64::from(streams) };
    let value = |(passage, reading): (Passage, Reading)| {
        let mut reading = with_clients(reading, &passage, flow);
        reading.value = flow.bytes() as f64 / MIB / passage.seconds.max(1e-9);
        reading
    };
    let sides = bench
        .duel(
            bench.plan.n_runs,
            async |run| Ok(value(through_node(bench, node, &format!("w4-bulk-{streams}-{run}"), flow).await?)),
            async |_| Ok(value(through_relay(bench, flow).await?)),
        )
        .await?;
    let streams_at_once = usize::try_from(streams).unwrap_or(1);
    let beside = iperf::throughput(streams_at_once, 2, &bench.clock).await?;
    let name = format!("{streams} streams, {:.0} MiB", flow.bytes() as f64 / MIB);
    Ok(Figure::new(name, "MiB/s", AGAINST, sides, Goal::AtLeast(0.8)).note("iperf3_without_relay_mib_per_s", beside))
}

/// Percentiles of one run, in microseconds.
fn percentiles(latencies: &[f64]) -> Value {
    let at = |percent| percentile(latencies, percent);
    json!({"p50": at(50.0), "p90": at(90.0), "p99": at(99.0), "p999": at(99.9), "max": at(100.0), "messages": latencies.len()})
}

/// The 99th percentile of what came after the warm-up, with the costs of the run.
fn tail((passage, reading): (Passage, Reading), flow: Flow, seen: &RefCell<Vec<Value>>) -> Result<Reading> {
    let mut reading = with_clients(reading, &passage, flow);
    let skipped = passage.latencies_us.len() * WARM_UP_PERCENT / 100;
    let counted = passage.latencies_us.get(skipped..).unwrap_or_default();
    reading.value = percentile(counted, 99.0).ok_or_else(|| LoadError::check("no message arrived"))?;
    seen.borrow_mut().push(percentiles(counted));
    Ok(reading)
}

async fn latency(bench: &Bench, node: &Node, per_second: u32, message: usize) -> Result<Figure> {
    let n = u64::from(per_second) * u64::from(bench.plan.latency_seconds);
    let flow = Flow::Paced { message, per_second, n };
    let (mine, theirs) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
    let sides = bench
        .duel(
            bench.plan.n_runs,
            async |run| tail(through_node(bench, node, &format!("w4-{message}-{run}"), flow).await?, flow, &mine),
            async |_| tail(through_relay(bench, flow).await?, flow, &theirs),
        )
        .await?;
    let middle = |seen: &[Value], name: &str| {
        let values: Vec<f64> = seen.iter().skip(1).filter_map(|one| one.get(name)?.as_f64()).collect();
        median(&values)
    };
    let summary = |seen: &[Value]| json!({"p50": middle(seen, "p50"), "p90": middle(seen, "p90"), "p99": middle(seen, "p99"), "p999": middle(seen, "p999"), "max": middle(seen, "max")});
    let name = format!("{per_second} messages/s of {message} bytes, p99 from append to delivery");
    Ok(Figure::new(name, "µs", AGAINST, sides, Goal::AtMost(2.0))
        .note("ours_percentiles_us", summary(&mine.into_inner()))
        .note("reference_percentiles_us", summary(&theirs.into_inner())))
}

//! How costs grow: with the number of partitions, and with the number of clients. There is nothing to
//! hold it against and no goal; the plots show whether a cost grows faster than its cause.

use crate::bench::Bench;
use crate::crew::{Tickets, all};
use crate::error::{LoadError, Result, ensure};
use crate::figure::{Figure, Goal, Side};
use crate::site::node::{Node, NodeSpec};
use crate::usage;
use crate::wire::Wire;
use forebay_client::{DatasetHandle, DatasetRequest, Kind, ReadRange};
use store_api::{AttemptId, PartitionId, SubpartitionIndex};

const LENGTH: usize = 10 * 1024;
const N_CLIENTS: usize = 16;

/// What some work cost.
#[derive(Debug, Clone, Copy)]
struct Cost {
    seconds: f64,
    requests: f64,
    written_bytes: f64,
    peak_mib: f64,
}

/// Measures.
pub(crate) async fn run(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for n in bench.plan.growth_partitions {
        bench.say(&format!("  {n} partitions"));
        let cost = measure(bench, *n, N_CLIENTS).await?;
        figures.push(figure(format!("{n} partitions, {N_CLIENTS} clients"), cost, *n).note("partitions", *n));
    }
    for clients in bench.plan.growth_clients {
        bench.say(&format!("  {clients} clients"));
        let n = bench.plan.growth_partitions_of_clients;
        let cost = measure(bench, n, *clients).await?;
        figures.push(figure(format!("{clients} clients, {n} partitions"), cost, n).note("clients", *clients));
    }
    Ok(figures)
}

fn figure(name: String, cost: Cost, n: u64) -> Figure {
    let stored = n as f64 * LENGTH as f64;
    Figure::new(name, "s", "nothing", (Side::of(vec![cost.seconds]), Side::default()), Goal::Beside)
        .note("requests_per_partition", cost.requests / n as f64)
        .note("bytes_written_per_byte_stored", cost.written_bytes / stored)
        .note("peak_mib", cost.peak_mib)
        .note("milliseconds_per_partition", cost.seconds * 1000.0 / n as f64)
}

/// Seals and reads back this many partitions with this many clients, on a node of its own.
async fn measure(bench: &Bench, n: u64, clients: usize) -> Result<Cost> {
    let spec = NodeSpec::new(bench, "growth-node")?;
    let node = spec.start(&bench.clock).await?;
    let job = node.job("growth").await?;
    let stage = job.put_dataset("stage", DatasetRequest { kind: Some(Kind::Blocking), ..DatasetRequest::new(1) }).await?;
    let (requests, written) = (n_answers(&node).await?, usage::written_bytes(&node.pids())?);
    let (meter, tickets) = (bench.meter(&[]), Tickets::new(n));
    bench.limited(all((0..clients).map(|_| turn(bench, stage.clone(), tickets.clone())).collect())).await?;
    let cost = Cost {
        seconds: meter.seconds(),
        requests: n_answers(&node).await? - requests,
        written_bytes: usage::written_bytes(&node.pids())? - written,
        peak_mib: usage::peak_mib(&node.pids()),
    };
    node.stop(&bench.clock).await?;
    spec.delete()?;
    bench.say(&format!("    {:.2} s, {:.2} bytes written per byte", cost.seconds, cost.written_bytes / (n as f64 * LENGTH as f64)));
    Ok(cost)
}

fn turn(bench: &Bench, stage: DatasetHandle, tickets: Tickets) -> impl Future<Output = Result<()>> + Send + use<> {
    let pool = bench.pool.clone();
    async move {
        while let Some(ticket) = tickets.take() {
            let partition = PartitionId::new(ticket);
            let block = pool.block(ticket, LENGTH)?;
            let mut writer = stage.open_attempt(partition, AttemptId::new(0, 0), Vec::new()).await?.into_writer();
            writer.write(SubpartitionIndex::new(0), block.clone()).await?;
            ensure(writer.seal().await?.is_won(), || format!("partition {ticket} was not won"))?;
            let found = stage.read(partition, SubpartitionIndex::new(0), ReadRange::all()).await?.collect(LENGTH as u64).await?;
            ensure(found == block, || format!("partition {ticket} has other bytes"))?;
        }
        Ok(())
    }
}

/// Requests that the node has answered, from its own metrics.
async fn n_answers(node: &Node) -> Result<f64> {
    let mut page = Vec::new();
    let reply = Wire::connect(node.address).await?.get("/metrics", |bytes| page.extend_from_slice(bytes)).await?;
    ensure(reply.status == 200, || format!("the metrics answered {reply:?}"))?;
    parse(&String::from_utf8_lossy(&page)).ok_or_else(|| LoadError::check("the metrics count no answers"))
}

fn parse(page: &str) -> Option<f64> {
    let counts = page.lines().filter(|line| line.starts_with("forebay_answers_total"));
    let counts: Vec<f64> = counts.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    (!counts.is_empty()).then(|| counts.iter().sum())
}

/// The costs as lines over what grows: the cause, and name and note of each line.
pub(crate) fn lines(figures: &[Figure], cause: &str) -> Vec<crate::plot::Series> {
    let notes = [
        ("seconds", None),
        ("peak MiB", Some("peak_mib")),
        ("requests each", Some("requests_per_partition")),
        ("written/stored", Some("bytes_written_per_byte_stored")),
    ];
    let at = |figure: &Figure, note: &str| figure.notes.get(note).and_then(serde_json::Value::as_f64);
    let line = |(name, note): (&str, Option<&str>)| {
        let value = |figure: &Figure| note.map_or_else(|| figure.ours.median(), |note| at(figure, note));
        let points = figures.iter().filter_map(|figure| Some((at(figure, cause)?, value(figure)?))).collect();
        crate::plot::Series { name: name.to_owned(), points }
    };
    notes.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_all_routes_are_added() {
        let page = "# TYPE forebay_answers counter\nforebay_answers_total{route=\"a b\"} 3\nforebay_answers_total{x=\"y\"} 4\nforebay_seals_total 9\n";
        assert_eq!(parse(page), Some(7.0));
        assert_eq!(parse("forebay_seals_total 9\n"), None);
    }
}

//! W6: durable partitions in a real S3 server. Reference: the object store's own client, straight to the
//! same server, as many transfers at a time, parts of the same size. Every run has a server of its own.
//! Large partitions are written and read; small ones are written, and the requests that they took are
//! counted by the server.

use crate::bench::{Bench, MIB};
use crate::content::{Long, Pool};
use crate::crew::{Tickets, all};
use crate::error::{LoadError, Result, ensure};
use crate::figure::{Figure, Goal, Side};
use crate::site::gateway::Gateway;
use crate::site::node::{Node, NodeSpec};
use crate::usage;
use forebay_client::{DatasetHandle, DatasetRequest, Kind, ReadRange};
use futures::StreamExt as _;
use object_store::aws::AmazonS3;
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, WriteMultipart};
use std::sync::Arc;
use store_api::{AttemptId, Crc32c, PartitionId, SubpartitionIndex};

/// Transfers at a time, on both sides.
const WIDTH: usize = 8;
const SMALL_WIDTH: usize = 64;
/// The node's own defaults: object.part_size and object.uploads_per_attempt.
const PART: usize = 8 * 1024 * 1024;
const PARTS_AT_ONCE: usize = 3;
const PIECE: usize = 256 * 1024;
const N_RUNS_MOST: usize = 3;
const AGAINST: &str = "object_store's client, straight to the same server, as many at a time";

/// Figures of one kind, by run.
#[derive(Debug, Default)]
struct Sides {
    ours: Side,
    reference: Side,
}

/// Everything that is measured.
#[derive(Debug, Default)]
struct Seen {
    write: Sides,
    read: Sides,
    small: Sides,
    /// Write requests per small partition.
    writes_each: Vec<f64>,
    lists: u64,
}

/// Measures.
pub(crate) async fn run(bench: &Bench) -> Result<Vec<Figure>> {
    let mut seen = Seen::default();
    for run in 0..=bench.plan.n_runs.min(N_RUNS_MOST) {
        let mut discarded = Seen::default();
        // The first run warms up: its figures go nowhere.
        bench.limited(one_run(bench, run, if run == 0 { &mut discarded } else { &mut seen })).await?;
        bench.say(&format!("    run {run} done"));
    }
    let (n, length, n_small, small) = bench.plan.durable;
    let large = format!("{n} partitions of {} MiB", length as f64 / MIB);
    let pair = |sides: Sides| (sides.ours, sides.reference);
    let limit = |ours: Vec<f64>, limit: f64| {
        let n_runs = ours.len();
        (Side::of(ours), Side::fixed(limit, n_runs))
    };
    let n_runs = seen.writes_each.len();
    // A limit of none at all has no ratio: one more than seen against one.
    let lists = (Side::fixed(1.0 + seen.lists as f64, n_runs), Side::fixed(1.0, n_runs));
    let small_name = format!("{n_small} partitions of {small} bytes");
    Ok(vec![
        Figure::new(format!("{large}, written and sealed"), "MiB/s", AGAINST, pair(seen.write), Goal::AtLeast(0.95)),
        Figure::new(format!("{large}, read"), "MiB/s", AGAINST, pair(seen.read), Goal::AtLeast(0.95)),
        Figure::new(format!("{small_name}, written and sealed"), "partitions/s", AGAINST, pair(seen.small), Goal::AtLeast(0.95)),
        Figure::new(format!("{small_name}: write requests each"), "requests", "the limit", limit(seen.writes_each, 2.0), Goal::AtMost(1.0)),
        Figure::new(format!("{small_name}: 1 + LIST requests"), "requests", "1: none at all", lists, Goal::AtMost(1.0)),
    ])
}

async fn one_run(bench: &Bench, run: usize, seen: &mut Seen) -> Result<()> {
    let gateway = Gateway::start(bench).await?;
    let spec = gateway.settings().into_iter().fold(NodeSpec::new(bench, "w6-node")?, NodeSpec::set);
    let node = spec.start(&bench.clock).await?;
    let (n, length, n_small, small) = bench.plan.durable;
    let contents = (0..n).map(|number| bench.pool.long(100 + number, length, PIECE)).collect::<Result<Vec<_>>>()?;
    let contents = Arc::new(contents);
    if run.is_multiple_of(2) {
        large_ours(bench, &node, &gateway, &contents, seen).await?;
        large_reference(bench, &gateway, &contents, seen).await?;
        small_ours(bench, &node, &gateway, n_small, small, seen).await?;
        small_reference(bench, &gateway, n_small, small, seen).await?;
    } else {
        large_reference(bench, &gateway, &contents, seen).await?;
        large_ours(bench, &node, &gateway, &contents, seen).await?;
        small_reference(bench, &gateway, n_small, small, seen).await?;
        small_ours(bench, &node, &gateway, n_small, small, seen).await?;
    }
    node.stop(&bench.clock).await?;
    spec.delete()
}

async fn stage(node: &Node, dataset: &str) -> Result<DatasetHandle> {
    let request = DatasetRequest { kind: Some(Kind::Durable), ..DatasetRequest::new(1) };
    Ok(node.job("w6").await?.put_dataset(dataset, request).await?)
}

async fn large_ours(bench: &Bench, node: &Node, gateway: &Gateway, contents: &Arc<Vec<Long>>, seen: &mut Seen) -> Result<()> {
    let stage = stage(node, "large").await?;
    let bytes = contents.iter().map(|content| content.total).sum();
    let processes = [("forebay", node.pids()), ("client", usage::own_pid()), ("s3", gateway.pids()?)];
    let (meter, tickets) = (bench.meter(&processes), Tickets::new(contents.len() as u64));
    let write = |_| write_large(stage.clone(), contents.clone(), tickets.clone());
    all((0..WIDTH).map(write).collect()).await?;
    seen.write.ours.add(&meter.throughput(bytes));
    let (meter, tickets) = (bench.meter(&processes), Tickets::new(contents.len() as u64));
    let read = |_| read_large(stage.clone(), contents.clone(), tickets.clone());
    all((0..WIDTH).map(read).collect()).await?;
    seen.read.ours.add(&meter.throughput(bytes));
    Ok(())
}

fn content(contents: &[Long], ticket: u64) -> Result<&Long> {
    let at = usize::try_from(ticket).unwrap_or(usize::MAX);
    contents.get(at).ok_or_else(|| LoadError::check("no such content"))
}

async fn write_large(stage: DatasetHandle, contents: Arc<Vec<Long>>, tickets: Tickets) -> Result<()> {
    while let Some(ticket) = tickets.take() {
        let content = content(&contents, ticket)?;
        let mut writer = stage.open_attempt(PartitionId::new(ticket), AttemptId::new(0, 0), Vec::new()).await?.into_writer();
        for piece in &content.pieces {
            writer.write(SubpartitionIndex::new(0), piece.clone()).await?;
        }
        let sealed = writer.seal().await?;
        let is_right = sealed.is_won() && sealed.manifest().total_bytes == content.total && sealed.manifest().class.class == "durable";
        ensure(is_right, || format!("partition {ticket} was sealed as {:?}", sealed.manifest().class))?;
    }
    Ok(())
}

async fn read_large(stage: DatasetHandle, contents: Arc<Vec<Long>>, tickets: Tickets) -> Result<()> {
    while let Some(ticket) = tickets.take() {
        let content = content(&contents, ticket)?;
        let mut reader = stage.read(PartitionId::new(ticket), SubpartitionIndex::new(0), ReadRange::all()).await?;
        let (mut crc, mut length) = (Crc32c::default(), 0);
        while let Some(bytes) = reader.next().await {
            let bytes = bytes?;
            crc = crc.append(&bytes);
            length += bytes.len() as u64;
        }
        ensure(crc == content.crc && length == content.total, || format!("partition {ticket} has other bytes"))?;
    }
    Ok(())
}

async fn large_reference(bench: &Bench, gateway: &Gateway, contents: &Arc<Vec<Long>>, seen: &mut Seen) -> Result<()> {
    let client = Arc::new(gateway.client()?);
    let bytes = contents.iter().map(|content| content.total).sum();
    let processes = [("client", usage::own_pid()), ("s3", gateway.pids()?)];
    let (meter, tickets) = (bench.meter(&processes), Tickets::new(contents.len() as u64));
    let write = |_| put_large(client.clone(), contents.clone(), tickets.clone());
    all((0..WIDTH).map(write).collect()).await?;
    seen.write.reference.add(&meter.throughput(bytes));
    let (meter, tickets) = (bench.meter(&processes), Tickets::new(contents.len() as u64));
    let read = |_| get_large(client.clone(), contents.clone(), tickets.clone());
    all((0..WIDTH).map(read).collect()).await?;
    seen.read.reference.add(&meter.throughput(bytes));
    Ok(())
}

async fn put_large(client: Arc<AmazonS3>, contents: Arc<Vec<Long>>, tickets: Tickets) -> Result<()> {
    while let Some(ticket) = tickets.take() {
        let upload = client.put_multipart(&Path::from(format!("direct/large/{ticket}"))).await?;
        let mut writer = WriteMultipart::new_with_chunk_size(upload, PART);
        for piece in &content(&contents, ticket)?.pieces {
            writer.wait_for_capacity(PARTS_AT_ONCE).await?;
            writer.put(piece.clone());
        }
        writer.finish().await?;
    }
    Ok(())
}

async fn get_large(client: Arc<AmazonS3>, contents: Arc<Vec<Long>>, tickets: Tickets) -> Result<()> {
    while let Some(ticket) = tickets.take() {
        let content = content(&contents, ticket)?;
        let mut stream = client.get(&Path::from(format!("direct/large/{ticket}"))).await?.into_stream();
        let (mut crc, mut length) = (Crc32c::default(), 0);
        while let Some(bytes) = stream.next().await {
            let bytes = bytes?;
            crc = crc.append(&bytes);
            length += bytes.len() as u64;
        }
        ensure(crc == content.crc && length == content.total, || format!("object {ticket} has other bytes"))?;
    }
    Ok(())
}

async fn small_ours(bench: &Bench, node: &Node, gateway: &Gateway, n: u64, length: usize, seen: &mut Seen) -> Result<()> {
    let stage = stage(node, "small").await?;
    let before = gateway.requests()?;
    let meter = bench.meter(&[("forebay", node.pids()), ("client", usage::own_pid()), ("s3", gateway.pids()?)]);
    let tickets = Tickets::new(n);
    let write = |_| write_small(stage.clone(), bench.pool.clone(), tickets.clone(), length);
    all((0..SMALL_WIDTH).map(write).collect()).await?;
    let rate = n as f64 / meter.seconds();
    seen.small.ours.add(&meter.costs(n * length as u64, rate));
    // Reading some of them must not list either.
    for partition in 0..n.min(20) {
        let reader = stage.read(PartitionId::new(partition), SubpartitionIndex::new(0), ReadRange::all()).await?;
        let bytes = reader.collect(length as u64).await?;
        bench.pool.check(partition, length, 0..length, &bytes)?;
    }
    let after = gateway.requests()?;
    ensure(after.total > before.total, || "the server's log counts no requests".to_owned())?;
    seen.writes_each.push((after.writes - before.writes) as f64 / n as f64);
    seen.lists += after.lists - before.lists;
    Ok(())
}

async fn write_small(stage: DatasetHandle, pool: Pool, tickets: Tickets, length: usize) -> Result<()> {
    while let Some(ticket) = tickets.take() {
        let mut writer = stage.open_attempt(PartitionId::new(ticket), AttemptId::new(0, 0), Vec::new()).await?.into_writer();
        writer.write(SubpartitionIndex::new(0), pool.block(ticket, length)?).await?;
        let sealed = writer.seal().await?;
        ensure(sealed.is_won() && sealed.manifest().total_bytes == length as u64, || format!("partition {ticket} was not sealed right"))?;
    }
    Ok(())
}

async fn small_reference(bench: &Bench, gateway: &Gateway, n: u64, length: usize, seen: &mut Seen) -> Result<()> {
    let client = Arc::new(gateway.client()?);
    let meter = bench.meter(&[("client", usage::own_pid()), ("s3", gateway.pids()?)]);
    let tickets = Tickets::new(n);
    let put = |_| put_small(client.clone(), bench.pool.clone(), tickets.clone(), length);
    all((0..SMALL_WIDTH).map(put).collect()).await?;
    let rate = n as f64 / meter.seconds();
    seen.small.reference.add(&meter.costs(n * length as u64, rate));
    Ok(())
}

async fn put_small(client: Arc<AmazonS3>, pool: Pool, tickets: Tickets, length: usize) -> Result<()> {
    while let Some(ticket) = tickets.take() {
        client.put(&Path::from(format!("direct/small/{ticket}")), pool.block(ticket, length)?.into()).await?;
    }
    Ok(())
}

//! W3 and W3b: a shuffle of many small blocks. Every producer writes one block for every consumer;
//! once all have written, every consumer reads its column.
//!
//! Ours: one partition per producer, written through the client and sealed with full syncs; a consumer
//! lists the partitions and fetches its column. Reference: one file per block, by WebDAV PUT, and one
//! GET per block over kept connections; nothing is synced there. Beside it: the same files written
//! without any server and read through nginx, as a shuffle on local files does. As many clients work
//! at a time on both sides, and every byte is compared.

use crate::bench::{Bench, MIB, Meter, remove_tree};
use crate::content::Pool;
use crate::crew::{Tickets, all};
use crate::error::{LoadError, Result, ensure};
use crate::figure::{Figure, Goal, Reading, Side};
use crate::plan::Shuffle;
use crate::site::nginx::Nginx;
use crate::site::node::{Node, NodeSpec};
use crate::usage;
use crate::wire::Wire;
use forebay_client::{DatasetHandle, DatasetRequest, FetchPiece, FetchTarget, JobHandle, Kind};
use forebay_protocol::partitions::ManifestDocument;
use futures::{StreamExt as _, TryStreamExt as _};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store_api::{AttemptId, PartitionId, SubpartitionIndex, TaskGroup};

/// Clients at a time, on both sides.
const WIDTH: usize = 8;
const FETCH_BYTES: u64 = 64 * 1024 * 1024;

/// The table of blocks.
#[derive(Debug, Clone)]
struct Table {
    pool: Pool,
    side: u32,
    block: usize,
}

impl Table {
    fn number(&self, producer: u32, consumer: u32) -> u64 {
        u64::from(producer) * u64::from(self.side) + u64::from(consumer)
    }

    fn bytes(&self) -> u64 {
        u64::from(self.side) * u64::from(self.side) * self.block as u64
    }
}

/// Seconds of the two halves.
#[derive(Debug, Default, Clone)]
struct Halves {
    write: Vec<f64>,
    read: Vec<f64>,
    plain_write: Vec<f64>,
}

/// Measures.
pub(crate) async fn run(bench: &Bench, shuffle: Shuffle) -> Result<Vec<Figure>> {
    let table = Table { pool: bench.pool.clone(), side: shuffle.side, block: shuffle.block };
    let spec = NodeSpec::new(bench, "w3-node")?;
    let node = spec.start(&bench.clock).await?;
    let nginx = Nginx::start(&bench.directory("w3-nginx")?, &bench.clock).await?;
    let (mine, theirs) = (RefCell::new(Halves::default()), RefCell::new(Halves::default()));
    let sides = bench
        .duel(
            shuffle.n_runs,
            async |run| ours(bench, &node, run, &table, &mine).await,
            async |run| through_files(bench, &nginx, run, &table, &theirs).await,
        )
        .await?;
    node.stop(&bench.clock).await?;
    spec.delete()?;
    let (mine, theirs) = (mine.into_inner(), theirs.into_inner());
    let seconds = theirs.plain_write.iter().zip(&theirs.read).skip(1).map(|(write, read)| write + read);
    let plain = Side::of(seconds.map(|seconds| table.bytes() as f64 / MIB / seconds.max(1e-9)).collect());
    let name = format!("{0} x {0} blocks of {1} bytes, end to end", shuffle.side, shuffle.block);
    let halves = |halves: &Halves| serde_json::json!({"write_seconds": halves.write, "read_seconds": halves.read});
    let ours = Side::of(sides.0.runs.clone());
    let against = "one file per block: WebDAV PUT and GET by nginx, connections kept, not synced";
    let figure = Figure::new(name.clone(), "MiB/s", against, sides, Goal::AtLeast(shuffle.goal))
        .note("ours_halves_with_warm_up", halves(&mine))
        .note("reference_halves_with_warm_up", halves(&theirs));
    let against = "one file per block: written without a server, not synced, GET by nginx";
    let beside =
        Figure::new(name, "MiB/s", against, (ours, plain), Goal::Beside).note("plain_write_seconds_with_warm_up", theirs.plain_write);
    Ok(vec![figure, beside])
}

/// Numbers below the side, taken by as many tasks as there are clients.
fn tickets(table: &Table) -> Tickets {
    Tickets::new(u64::from(table.side))
}

fn as_index(ticket: u64) -> u32 {
    u32::try_from(ticket).unwrap_or(u32::MAX)
}

async fn ours(bench: &Bench, node: &Node, run: usize, table: &Table, halves: &RefCell<Halves>) -> Result<Reading> {
    let job = node.job(&format!("w3-{run}")).await?;
    let request = DatasetRequest { kind: Some(Kind::Blocking), partitions: Some(u64::from(table.side)), ..DatasetRequest::new(table.side) };
    let stage = job.put_dataset("stage", request).await?;
    let meter = bench.meter(&[("forebay", node.pids()), ("client", usage::own_pid())]);
    let producers = tickets(table);
    all((0..WIDTH).map(|_| produce(stage.clone(), table.clone(), producers.clone())).collect()).await?;
    let written = meter.seconds();
    let sealed: Vec<ManifestDocument> = stage.partitions(false).try_collect().await?;
    ensure(sealed.len() as u64 == u64::from(table.side), || format!("{} partitions are listed", sealed.len()))?;
    let (sealed, consumers) = (Arc::new(sealed), tickets(table));
    all((0..WIDTH).map(|_| consume(stage.clone(), table.clone(), sealed.clone(), consumers.clone())).collect()).await?;
    finish(&meter, written, table, halves, &job).await
}

async fn finish(meter: &Meter, written: f64, table: &Table, halves: &RefCell<Halves>, job: &JobHandle) -> Result<Reading> {
    let read = meter.seconds() - written;
    let reading = meter.throughput(table.bytes());
    halves.borrow_mut().write.push(written);
    halves.borrow_mut().read.push(read);
    job.release().await?;
    Ok(reading)
}

async fn produce(stage: DatasetHandle, table: Table, producers: Tickets) -> Result<()> {
    while let Some(producer) = producers.take() {
        let mut writer = stage.open_attempt(PartitionId::new(producer), AttemptId::new(0, 0), Vec::new()).await?.into_writer();
        for consumer in 0..table.side {
            let block = table.pool.block(table.number(as_index(producer), consumer), table.block)?;
            writer.write(SubpartitionIndex::new(consumer), block).await?;
        }
        let sealed = writer.seal().await?;
        let wanted = u64::from(table.side) * table.block as u64;
        ensure(sealed.is_won() && sealed.manifest().total_bytes == wanted, || format!("partition {producer} was sealed with other bytes"))?;
    }
    Ok(())
}

async fn consume(stage: DatasetHandle, table: Table, sealed: Arc<Vec<ManifestDocument>>, consumers: Tickets) -> Result<()> {
    while let Some(consumer) = consumers.take() {
        let index = SubpartitionIndex::new(as_index(consumer));
        let targets = sealed.iter().map(|manifest| FetchTarget::sealed(manifest, index, 1)).collect();
        let (mut bytes_read, mut n_ended) = (0_u64, 0_u32);
        let mut pieces = stage.fetch(targets, FETCH_BYTES);
        while let Some(piece) = pieces.next().await {
            match piece {
                FetchPiece::Bytes { item, offset, bytes } => {
                    let start = usize::try_from(offset.get()).unwrap_or(usize::MAX);
                    let number = table.number(as_index(item.partition.get()), as_index(consumer));
                    table.pool.check(number, table.block, start..start.saturating_add(bytes.len()), &bytes)?;
                    bytes_read += bytes.len() as u64;
                }
                FetchPiece::End { .. } => n_ended += 1,
                FetchPiece::Failed { error, .. } => return Err(error.into()),
            }
        }
        let wanted = u64::from(table.side) * table.block as u64;
        ensure(n_ended == table.side && bytes_read == wanted, || format!("column {consumer}: {n_ended} ends, {bytes_read} bytes"))?;
    }
    Ok(())
}

async fn through_files(bench: &Bench, nginx: &Nginx, run: usize, table: &Table, halves: &RefCell<Halves>) -> Result<Reading> {
    let meter = bench.meter(&[("nginx", nginx.pids()?), ("client", usage::own_pid())]);
    let producers = tickets(table);
    all((0..WIDTH).map(|_| put_rows(nginx.address, run, table.clone(), producers.clone())).collect()).await?;
    let written = meter.seconds();
    let consumers = tickets(table);
    all((0..WIDTH).map(|_| get_columns(nginx.address, run, table.clone(), consumers.clone())).collect()).await?;
    let read = meter.seconds() - written;
    let reading = meter.throughput(table.bytes());
    remove_tree(&nginx.files.join(run.to_string()))?;
    let plain = plain_files(bench, &nginx.files.join("plain"), table).await?;
    let mut halves = halves.borrow_mut();
    halves.write.push(written);
    halves.read.push(read);
    halves.plain_write.push(plain);
    Ok(reading)
}

async fn put_rows(address: std::net::SocketAddr, run: usize, table: Table, producers: Tickets) -> Result<()> {
    let mut wire = Wire::connect(address).await?;
    while let Some(producer) = producers.take() {
        for consumer in 0..table.side {
            let block = table.pool.block(table.number(as_index(producer), consumer), table.block)?;
            let path = format!("/{run}/{producer}/{consumer}");
            let reply = wire.put(&path, &block).await?;
            ensure(reply.status == 201, || format!("PUT {path} answered {reply:?}"))?;
        }
    }
    Ok(())
}

async fn get_columns(address: std::net::SocketAddr, run: usize, table: Table, consumers: Tickets) -> Result<()> {
    let mut wire = Wire::connect(address).await?;
    let mut found = Vec::with_capacity(table.block);
    while let Some(consumer) = consumers.take() {
        for producer in 0..table.side {
            found.clear();
            let path = format!("/{run}/{producer}/{consumer}");
            let reply = wire.get(&path, |bytes| found.extend_from_slice(bytes)).await?;
            ensure(reply.status == 200, || format!("GET {path} answered {reply:?}"))?;
            table.pool.check(table.number(producer, as_index(consumer)), table.block, 0..table.block, &found)?;
        }
    }
    Ok(())
}

/// Writes one file per block without a server. Answers the seconds.
async fn plain_files(bench: &Bench, directory: &Path, table: &Table) -> Result<f64> {
    remove_tree(directory)?;
    let started = bench.clock.monotonic();
    let producers = tickets(table);
    let group = TaskGroup::new();
    let write = |_| {
        let (group, directory, table, producers) = (group.clone(), directory.to_owned(), table.clone(), producers.clone());
        async move {
            let written = group.run_blocking(move || write_rows(&directory, &table, &producers)).await;
            written.ok_or_else(|| LoadError::check("a writer of files panicked"))?
        }
    };
    all((0..WIDTH).map(write).collect()).await?;
    let seconds = bench.clock.monotonic().saturating_sub(started).as_secs_f64();
    remove_tree(directory)?;
    Ok(seconds)
}

fn write_rows(directory: &Path, table: &Table, producers: &Tickets) -> Result<()> {
    while let Some(producer) = producers.take() {
        let row: PathBuf = directory.join(producer.to_string());
        std::fs::create_dir_all(&row)?;
        for consumer in 0..table.side {
            let block = table.pool.block(table.number(as_index(producer), consumer), table.block)?;
            std::fs::write(row.join(consumer.to_string()), &block)?;
        }
    }
    Ok(())
}

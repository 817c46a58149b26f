//! W2: reads of sealed subpartitions that lie in the page cache, over one, some and many connections.
//!
//! Both servers serve the same bytes from the same volume to the same client, which computes the
//! checksum of every answer and compares it. nginx sends files as they are; the node verifies every
//! chunk before it sends it.

use crate::bench::{Bench, MIB};
use crate::content::Long;
use crate::crew::{Tickets, all};
use crate::error::{Result, ensure};
use crate::figure::{Figure, Goal, Reading};
use crate::site::nginx::Nginx;
use crate::site::node::{Node, NodeSpec};
use crate::usage;
use crate::wire::Wire;
use forebay_client::{DatasetRequest, Kind};
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use store_api::{AttemptId, Crc32c, PartitionId, SubpartitionIndex};

const CONNECTIONS: [usize; 3] = [1, 8, 64];
const PIECE: usize = 1024 * 1024;
const SEED: u64 = 2;

/// A resource and what it must be.
#[derive(Debug, Clone)]
struct Resource {
    path: String,
    length: u64,
    crc: Crc32c,
}

/// Measures.
pub(crate) async fn run(bench: &Bench) -> Result<Vec<Figure>> {
    let (n, length, volume) = bench.plan.read;
    let spec = NodeSpec::new(bench, "w2-node")?;
    let node = spec.start(&bench.clock).await?;
    let nginx = Nginx::start(&bench.directory("w2-nginx")?, &bench.clock).await?;
    let contents = (0..n).map(|number| bench.pool.long(SEED + u64::from(number), length, PIECE)).collect::<Result<Vec<_>>>()?;
    let ours = Arc::new(fill_node(&node, &contents).await?);
    let theirs = Arc::new(fill_files(&nginx, &contents)?);
    let n_requests = (volume / length).max(1);
    let mut figures = Vec::new();
    for connections in CONNECTIONS {
        bench.say(&format!("  {connections} connections"));
        let n_requests = n_requests.max(connections as u64);
        let measure = async |address: SocketAddr, name: &str, pids: Vec<u32>, resources: Arc<Vec<Resource>>| -> Result<Reading> {
            let meter = bench.meter(&[(name, pids), ("client", usage::own_pid())]);
            let bytes = read_all(address, connections, n_requests, resources).await?;
            Ok(meter.throughput(bytes))
        };
        let sides = bench
            .duel(
                bench.plan.n_runs,
                async |_| measure(node.address, "forebay", node.pids(), ours.clone()).await,
                async |_| measure(nginx.address, "nginx", nginx.pids()?, theirs.clone()).await,
            )
            .await?;
        let name = format!("{connections} connections, {} MiB each", length as f64 / MIB);
        let figure = Figure::new(name, "MiB/s", "nginx sendfile, same bytes, same client", sides, Goal::AtLeast(1.0));
        figures.push(figure.note("stretch_goal", 1.2).note("requests_per_run", n_requests));
    }
    node.stop(&bench.clock).await?;
    spec.delete()?;
    Ok(figures)
}

async fn fill_node(node: &Node, contents: &[Long]) -> Result<Vec<Resource>> {
    let job = node.job("w2").await?;
    let n = u32::try_from(contents.len()).unwrap_or(u32::MAX);
    let stage = job.put_dataset("stage", DatasetRequest { kind: Some(Kind::Blocking), ..DatasetRequest::new(n) }).await?;
    let mut writer = stage.open_attempt(PartitionId::new(0), AttemptId::new(0, 0), Vec::new()).await?.into_writer();
    let mut resources = Vec::new();
    for (index, content) in (0_u32..).zip(contents) {
        for piece in &content.pieces {
            writer.write(SubpartitionIndex::new(index), piece.clone()).await?;
        }
        let path = format!("/v1/jobs/w2/datasets/stage/partitions/0/subpartitions/{index}");
        resources.push(Resource { path, length: content.total, crc: content.crc });
    }
    let sealed = writer.seal().await?;
    let total: u64 = contents.iter().map(|content| content.total).sum();
    ensure(sealed.is_won() && sealed.manifest().total_bytes == total, || "the seal has another length than was written".to_owned())?;
    Ok(resources)
}

fn fill_files(nginx: &Nginx, contents: &[Long]) -> Result<Vec<Resource>> {
    let mut resources = Vec::new();
    for (index, content) in contents.iter().enumerate() {
        let mut file = std::fs::File::create(nginx.files.join(index.to_string()))?;
        for piece in &content.pieces {
            file.write_all(piece)?;
        }
        // Dirty pages must not be written while it is measured.
        file.sync_all()?;
        resources.push(Resource { path: format!("/{index}"), length: content.total, crc: content.crc });
    }
    Ok(resources)
}

/// Reads `n_requests` resources in turn over this many connections and checks each. Answers the bytes.
async fn read_all(address: SocketAddr, connections: usize, n_requests: u64, resources: Arc<Vec<Resource>>) -> Result<u64> {
    let tickets = Tickets::new(n_requests);
    let reader = || {
        let (tickets, resources) = (tickets.clone(), resources.clone());
        async move {
            let mut wire = Wire::connect(address).await?;
            let mut total = 0;
            while let Some(ticket) = tickets.take() {
                let at = usize::try_from(ticket).unwrap_or_default().checked_rem(resources.len()).unwrap_or_default();
                let Some(resource) = resources.get(at) else { break };
                let mut crc = Crc32c::default();
                let reply = wire.get(&resource.path, |bytes| crc = crc.append(bytes)).await?;
                let is_right = reply.status == 200 && reply.length == resource.length && crc == resource.crc;
                ensure(is_right, || format!("{} answered {reply:?} with checksum {crc}, not {resource:?}", resource.path))?;
                total += reply.length;
            }
            Ok(total)
        }
    };
    Ok(all((0..connections).map(|_| reader()).collect()).await?.iter().sum())
}

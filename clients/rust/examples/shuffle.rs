//! A shuffle: 8 producers write 8 subpartitions each, 8 consumers read theirs in one batch per node.
//!
//! `cargo run -p forebay-client --example shuffle -- http://127.0.0.1:7440 [token]`

use bytes::Bytes;
use forebay_client::{Client, ClientError, DatasetHandle, DatasetRequest, FetchPiece, FetchTarget, JobRequest, Kind};
use futures::{StreamExt, TryStreamExt};
use store_api::{AttemptId, PartitionId, SubpartitionIndex};

const N_PARTITIONS: u64 = 8;
const N_SUBPARTITIONS: u32 = 8;
const ROWS: u32 = 10_000;

#[tokio::main]
async fn main() -> Result<(), ClientError> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "http://127.0.0.1:7440".to_owned());
    run(url, arguments.next()).await
}

pub(crate) async fn run(url: String, token: Option<String>) -> Result<(), ClientError> {
    let mut builder = Client::builder(url);
    if let Some(token) = token {
        builder = builder.token(token);
    }
    let job =
        builder.build()?.put_job("example-shuffle", JobRequest { owner_nonce: "example".to_owned(), ..JobRequest::default() }).await?;
    let alive = job.keep_alive();
    let request = DatasetRequest { kind: Some(Kind::Blocking), partitions: Some(N_PARTITIONS), ..DatasetRequest::new(N_SUBPARTITIONS) };
    let stage = job.put_dataset("stage-1", request).await?;

    futures::future::try_join_all((0..N_PARTITIONS).map(|partition| produce(&stage, partition))).await?;
    let read = futures::future::try_join_all((0..N_SUBPARTITIONS).map(|subpartition| consume(&stage, subpartition))).await?;
    let (n_read, n_written) = (read.iter().sum::<u64>(), N_PARTITIONS * u64::from(ROWS) * 8);
    report(&format!("{n_read} of {n_written} bytes came through"));

    drop(alive);
    job.release().await?;
    Ok(())
}

async fn produce(stage: &DatasetHandle, partition: u64) -> Result<(), ClientError> {
    let mut writer = stage.open_attempt(PartitionId::new(partition), AttemptId::new(0, 0), vec![]).await?.into_writer();
    for row in 0..ROWS {
        let key = partition.wrapping_mul(7919).wrapping_add(u64::from(row));
        let bytes = Bytes::copy_from_slice(&key.to_le_bytes());
        writer.write(SubpartitionIndex::new(row % N_SUBPARTITIONS), bytes).await?;
    }
    writer.seal().await?;
    Ok(())
}

async fn consume(stage: &DatasetHandle, subpartition: u32) -> Result<u64, ClientError> {
    // The listing names attempt and holder of every partition: what is read is what was sealed.
    let sealed: Vec<_> = stage.partitions(false).try_collect().await?;
    let targets = sealed.iter().map(|manifest| FetchTarget::sealed(manifest, SubpartitionIndex::new(subpartition), 1)).collect();
    let mut pieces = stage.fetch(targets, 64 << 20);
    let mut n_bytes = 0;
    while let Some(piece) = pieces.next().await {
        match piece {
            FetchPiece::Bytes { bytes, .. } => n_bytes += bytes.len() as u64,
            FetchPiece::End { .. } => {}
            FetchPiece::Failed { error, .. } => return Err(error),
        }
    }
    Ok(n_bytes)
}

#[cfg_attr(not(test), expect(clippy::print_stdout, reason = "an example talks to whoever runs it"))]
fn report(line: &str) {
    println!("{line}");
}

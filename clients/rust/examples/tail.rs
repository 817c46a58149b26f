//! Reads a pipelined subpartition while it is being written, and acknowledges what was read.
//!
//! `cargo run -p forebay-client --example tail -- http://127.0.0.1:7440 [token]`

use bytes::Bytes;
use forebay_client::{Client, ClientError, DatasetHandle, DatasetRequest, JobRequest, Kind, PartitionWriter, TailOptions};
use forebay_protocol::reads::{AcknowledgeRequest, Position};
use store_api::{AttemptId, PartitionId, SubpartitionIndex};

const PARTITION: PartitionId = PartitionId::new(0);
const SUBPARTITION: SubpartitionIndex = SubpartitionIndex::new(0);

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
    let job = builder.build()?.put_job("example-tail", JobRequest { owner_nonce: "example".to_owned(), ..JobRequest::default() }).await?;
    let stage = job.put_dataset("stage-1", DatasetRequest { kind: Some(Kind::Pipelined), ..DatasetRequest::new(1) }).await?;
    let writer = stage.open_attempt(PARTITION, AttemptId::new(0, 0), vec![]).await?.into_writer();
    let ((), n_read) = futures::future::try_join(produce(writer), consume(&stage)).await?;
    report(&format!("{n_read} bytes were read while they were written"));
    job.release().await?;
    Ok(())
}

async fn produce(mut writer: PartitionWriter) -> Result<(), ClientError> {
    for step in 0_u8..100 {
        writer.write(SUBPARTITION, Bytes::from(vec![step; 10_000])).await?;
        writer.flush().await?;
    }
    writer.seal().await?;
    Ok(())
}

async fn consume(stage: &DatasetHandle) -> Result<u64, ClientError> {
    let mut tail = stage.tail(PARTITION, SUBPARTITION, TailOptions::default());
    let mut n_bytes = 0;
    while let Some(bytes) = tail.next().await {
        n_bytes += bytes?.len() as u64;
        let attempt = tail.attempt().map(str::to_owned);
        let position = Position { partition: PARTITION.get(), subpartition: SUBPARTITION.get(), offset: tail.next_offset().get(), attempt };
        stage.acknowledge(&AcknowledgeRequest { group: "default".to_owned(), consumer: None, positions: vec![position] }).await?;
    }
    Ok(n_bytes)
}

#[cfg_attr(not(test), expect(clippy::print_stdout, reason = "an example talks to whoever runs it"))]
fn report(line: &str) {
    println!("{line}");
}

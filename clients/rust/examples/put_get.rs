//! Writes one partition and reads one of its subpartitions back.
//!
//! `cargo run -p forebay-client --example put_get -- http://127.0.0.1:7440 [token]`

use bytes::Bytes;
use forebay_client::{Client, ClientError, DatasetRequest, JobRequest, Kind, ReadRange};
use store_api::{AttemptId, PartitionId, SubpartitionIndex};

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
    let client = builder.build()?;

    let job = client.put_job("example-put-get", JobRequest { owner_nonce: "example".to_owned(), ..JobRequest::default() }).await?;
    let stage = job.put_dataset("stage-1", DatasetRequest { kind: Some(Kind::Blocking), ..DatasetRequest::new(4) }).await?;

    let attempt = stage.open_attempt(PartitionId::new(0), AttemptId::new(0, 0), vec![]).await?;
    let mut writer = attempt.into_writer();
    for row in 0_u32..1000 {
        writer.write(SubpartitionIndex::new(row % 4), Bytes::from(format!("row {row}\n"))).await?;
    }
    let sealed = writer.seal().await?;
    report(&format!("sealed {} bytes as {}", sealed.manifest().total_bytes, sealed.manifest().class.text()));

    let reader = stage.read(PartitionId::new(0), SubpartitionIndex::new(2), ReadRange::all()).await?;
    let rows = reader.collect(1 << 20).await?;
    report(&format!("read {} bytes of subpartition 2", rows.len()));

    job.release().await?;
    Ok(())
}

#[cfg_attr(not(test), expect(clippy::print_stdout, reason = "an example talks to whoever runs it"))]
fn report(line: &str) {
    println!("{line}");
}

//! `forebay put` and `forebay get`: content of one subpartition, from and to files or pipes.

use super::connection::{ConnectionArguments, failure};
use super::output::{Progress, print, tell};
use super::target::ContentTarget;
use super::{Failure, runtime};
use bytes::{Bytes, BytesMut};
use clap::{Args, ValueEnum};
use forebay_client::{Client, ClientError, DatasetHandle, DatasetRequest, JobHandle, JobRequest, Kind, ReadRange, Sealed, TailOptions};
use forebay_protocol::ErrorCode;
use forebay_protocol::datasets::RetentionName;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use serde_json::json;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use store_api::{AttemptId, Offset};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Bytes that are read from a file or pipe at once.
const BLOCK_BYTES: usize = 1024 * 1024;

/// How a dataset is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KindArgument {
    /// In memory, readable while it is written
    Pipelined,
    /// On the node's disk, readable after the seal
    Blocking,
    /// In the object store, readable through any node
    Durable,
}

impl From<KindArgument> for Kind {
    fn from(kind: KindArgument) -> Self {
        match kind {
            KindArgument::Pipelined => Self::Pipelined,
            KindArgument::Blocking => Self::Blocking,
            KindArgument::Durable => Self::Durable,
        }
    }
}

/// Arguments of `put`.
#[derive(Debug, Args)]
pub(super) struct PutArguments {
    /// JOB/DATASET/PARTITION[/SUBPARTITION]; job and dataset are made if they are not there
    #[arg(value_name = "TARGET")]
    target: ContentTarget,
    /// The content; standard input without it
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Kind of the dataset, if it is made
    #[arg(long, value_enum, default_value = "blocking")]
    kind: KindArgument,
    /// Subpartitions of the dataset, if it is made; enough for the target without it
    #[arg(long, value_name = "N")]
    subpartitions: Option<u32>,
    /// The attempt; a higher generation takes the place of a sealed one
    #[arg(long, value_name = "GENERATION.ATTEMPT", default_value = "0.0")]
    attempt: AttemptId,
    /// Name of the job's owner, if the job is made
    #[arg(long, value_name = "NONCE", default_value = "forebay-cli")]
    owner: String,
    /// Keeps a pipelined dataset's bytes after they were read, as long as there is room
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Arguments of `get`.
#[derive(Debug, Args)]
pub(super) struct GetArguments {
    /// JOB/DATASET/PARTITION[/SUBPARTITION]
    #[arg(value_name = "TARGET")]
    target: ContentTarget,
    /// Where the content goes; standard output without it
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// First byte
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    from: u64,
    /// First byte not wanted; the end without it
    #[arg(long, value_name = "OFFSET")]
    to: Option<u64>,
    /// The attempt that must be the content
    #[arg(long, value_name = "GENERATION.ATTEMPT")]
    attempt: Option<AttemptId>,
    /// Follows a pipelined partition that is being written, to its seal
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

pub(super) fn put(arguments: &PutArguments) -> Result<(), Failure> {
    runtime()?.block_on(async {
        let client = arguments.connection.client()?;
        match &arguments.file {
            None => Box::pin(put_from(arguments, &client, own(io::stdin())?, None)).await,
            Some(path) => {
                let refuse = |error| Failure::failed(format!("{}: {error}", path.display()));
                let file = tokio::fs::File::open(path).await.map_err(refuse)?;
                let total = file.metadata().await.map_err(refuse)?.len();
                Box::pin(put_from(arguments, &client, file, Some(total))).await
            }
        }
    })
}

async fn put_from(arguments: &PutArguments, client: &Client, input: impl AsyncRead + Unpin, total: Option<u64>) -> Result<(), Failure> {
    let target = &arguments.target;
    let job = ensure_job(arguments, client).await?;
    let dataset = ensure_dataset(arguments, &job).await?;
    let mut writer = dataset.open_attempt(target.partition, arguments.attempt, Vec::new()).await.map_err(failure)?.into_writer();
    let mut input = input;
    let progress = Progress::new(total, arguments.connection.json);
    // Ends with the input.
    loop {
        let block = match read_block(&mut input).await {
            Ok(Some(block)) => block,
            Ok(None) => break,
            Err(error) => {
                // Half of the input must never look like all of it.
                let _ = writer.abort().await;
                return Err(Failure::failed(format!("the input cannot be read, the attempt was aborted: {error}")));
            }
        };
        progress.add(block.len());
        writer.write(target.subpartition, block).await.map_err(failure)?;
    }
    let sealed = writer.seal().await.map_err(failure)?;
    drop(progress);
    let mut answer = serde_json::to_value(sealed.manifest()).map_err(|error| Failure::failed(error.to_string()))?;
    if let Some(members) = answer.as_object_mut() {
        members.insert("event".to_owned(), json!("sealed"));
        members.insert("result".to_owned(), json!(if matches!(sealed, Sealed::Won(_)) { "won" } else { "other_won" }));
    }
    print(&answer, arguments.connection.json)
}

/// The job, made if it is not there. A job of another owner is written to with its token all the
/// same; only its owner may raise generations.
async fn ensure_job(arguments: &PutArguments, client: &Client) -> Result<JobHandle, Failure> {
    let name = arguments.target.job.as_str();
    let request = JobRequest { owner_nonce: arguments.owner.clone(), ..JobRequest::default() };
    match client.put_job(name, request).await {
        Ok(job) => {
            if let Some(token) = job.token() {
                let text = json!({"event": "job_token", "job": name, "token": token}).to_string();
                tell(if arguments.connection.json { &text } else { token });
            }
            Ok(job)
        }
        Err(ClientError::Refused(problem)) if matches!(problem.code, ErrorCode::JobOwned | ErrorCode::Forbidden) => {
            client.job(name).map_err(failure)
        }
        Err(error) => Err(failure(error)),
    }
}

/// The dataset as it is, or made.
async fn ensure_dataset(arguments: &PutArguments, job: &JobHandle) -> Result<DatasetHandle, Failure> {
    let name = arguments.target.dataset.as_str();
    let dataset = job.dataset(name).map_err(failure)?;
    match dataset.state().await {
        Ok(_) => Ok(dataset),
        Err(ClientError::NeverExisted(_)) => {
            let enough = arguments.target.subpartition.get().saturating_add(1);
            let mut request = DatasetRequest::new(arguments.subpartitions.unwrap_or(enough));
            request.kind = Some(arguments.kind.into());
            if arguments.kind == KindArgument::Pipelined && arguments.keep {
                request.retention = Some(RetentionName::BestEffort);
            }
            job.put_dataset(name, request).await.map_err(failure)
        }
        Err(error) => Err(failure(error)),
    }
}

/// Standard input or output as a file of the runtime's, without the buffer and lock of the process.
fn own(stream: impl AsFd) -> Result<tokio::fs::File, Failure> {
    let owned = stream.as_fd().try_clone_to_owned();
    let owned = owned.map_err(|error| Failure::failed(format!("standard input or output: {error}")))?;
    Ok(tokio::fs::File::from_std(std::fs::File::from(owned)))
}

/// The next block: full unless the input ends. `None` at its end.
async fn read_block(input: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Bytes>> {
    let mut block = BytesMut::with_capacity(BLOCK_BYTES);
    while block.len() < BLOCK_BYTES {
        let room = BLOCK_BYTES.saturating_sub(block.len()) as u64;
        if (&mut *input).take(room).read_buf(&mut block).await? == 0 {
            break;
        }
    }
    Ok((!block.is_empty()).then(|| block.freeze()))
}

pub(super) fn get(arguments: &GetArguments) -> Result<(), Failure> {
    runtime()?.block_on(async {
        let client = arguments.connection.client()?;
        match &arguments.file {
            None => Box::pin(get_to(arguments, &client, own(io::stdout())?)).await,
            Some(path) => {
                // Beside its place until it is whole: a cut read must not look like a whole one.
                let mut draft = path.clone().into_os_string();
                draft.push(".draft");
                let refuse = |error| Failure::failed(format!("{}: {error}", path.display()));
                let file = tokio::fs::File::create(&draft).await.map_err(refuse)?;
                let outcome = Box::pin(get_to(arguments, &client, file)).await;
                if outcome.is_err() {
                    let _ = tokio::fs::remove_file(&draft).await;
                    return outcome;
                }
                tokio::fs::rename(&draft, path).await.map_err(refuse)
            }
        }
    })
}

type Content = BoxStream<'static, Result<Bytes, ClientError>>;

/// The content wanted, every byte checked by the client, and its length if it is known.
async fn content(arguments: &GetArguments, client: &Client) -> Result<(Content, Option<u64>), Failure> {
    let target = &arguments.target;
    let dataset = client.job(target.job.as_str()).and_then(|job| job.dataset(target.dataset.as_str())).map_err(failure)?;
    let (from, to) = (Offset::new(arguments.from), arguments.to.map(Offset::new));
    if arguments.follow {
        let options = TailOptions { from, to, attempt: arguments.attempt, ..TailOptions::default() };
        return Ok((dataset.tail(target.partition, target.subpartition, options).into_stream(), None));
    }
    let range = ReadRange { start: from, end: to, attempt: arguments.attempt };
    let reader = dataset.read(target.partition, target.subpartition, range).await.map_err(failure)?;
    let length = reader.end().get().saturating_sub(arguments.from);
    Ok((reader.into_stream(), Some(length)))
}

async fn get_to(arguments: &GetArguments, client: &Client, output: impl AsyncWrite + Unpin) -> Result<(), Failure> {
    let (mut chunks, length) = content(arguments, client).await?;
    let refuse = |error: io::Error| Failure::failed(format!("the output: {error}"));
    let mut output = output;
    let progress = Progress::new(length, arguments.connection.json);
    let mut n_bytes = 0_u64;
    while let Some(chunk) = chunks.next().await {
        let bytes = chunk.map_err(failure)?;
        output.write_all(&bytes).await.map_err(refuse)?;
        progress.add(bytes.len());
        n_bytes = n_bytes.saturating_add(bytes.len() as u64);
    }
    output.flush().await.map_err(refuse)?;
    drop(progress);
    if arguments.connection.json {
        // Standard output may be the content.
        tell(&json!({"event": "read", "from": arguments.from, "bytes": n_bytes}).to_string());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn blocks_are_full_until_the_input_ends() {
        let content: Vec<u8> = (0..BLOCK_BYTES * 2 + 10).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let mut input = content.as_slice();
        let mut read = Vec::new();
        let mut lengths = Vec::new();
        while let Some(block) = read_block(&mut input).await.unwrap() {
            lengths.push(block.len());
            read.extend_from_slice(&block);
        }
        assert_eq!(lengths, [BLOCK_BYTES, BLOCK_BYTES, 10]);
        assert!(read == content);
    }
}

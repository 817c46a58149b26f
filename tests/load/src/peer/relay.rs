//! The bare relay: pairs writers and readers by the number of their stream, and copies.

use super::{Event, say};
use crate::error::{LoadError, Result};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use store_api::TaskGroup;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const BUFFER_BYTES: usize = 256 * 1024;

/// A socket of a stream.
async fn accept(listener: &TcpListener) -> Result<(u32, TcpStream)> {
    let (mut socket, _) = listener.accept().await?;
    socket.set_nodelay(true)?;
    let stream = socket.read_u32_le().await?;
    Ok((stream, socket))
}

/// Copies until the writer is done, then says so to the reader.
async fn copy(mut from: TcpStream, mut to: TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let n = from.read(&mut buffer).await?;
        if n == 0 {
            return to.shutdown().await;
        }
        to.write_all(buffer.get(..n).unwrap_or_default()).await?;
    }
}

/// Runs until it is killed.
pub(super) async fn run() -> Result<()> {
    let input = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let output = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    say(&Event::Listening { input: input.local_addr()?, output: output.local_addr()? })?;
    let group = TaskGroup::new();
    let (mut writers, mut readers) = (BTreeMap::new(), BTreeMap::new());
    loop {
        let stream = tokio::select! {
            accepted = accept(&input) => { let (stream, socket) = accepted?; writers.insert(stream, socket); stream }
            accepted = accept(&output) => { let (stream, socket) = accepted?; readers.insert(stream, socket); stream }
        };
        if !writers.contains_key(&stream) || !readers.contains_key(&stream) {
            continue;
        }
        let pair = (writers.remove(&stream), readers.remove(&stream));
        let (Some(from), Some(to)) = pair else { return Err(LoadError::check("a stream without its end")) };
        // A copy that fails is seen by the reader, which counts bytes.
        group.spawn(async move { drop(copy(from, to).await) });
    }
}

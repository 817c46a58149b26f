//! The bare relay: pairs writers and readers by the number of their stream, and copies.

use super::{Event, say};
use crate::error::{LoadError, Result};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use store_api::TaskGroup;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

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

/// Accepts on one side for ever.
async fn accept_all(listener: TcpListener, is_writer: bool, sockets: mpsc::Sender<Result<(bool, u32, TcpStream)>>) {
    loop {
        let accepted = accept(&listener).await.map(|(stream, socket)| (is_writer, stream, socket));
        let is_failure = accepted.is_err();
        if sockets.send(accepted).await.is_err() || is_failure {
            return;
        }
    }
}

/// Runs until it is killed.
pub(super) async fn run() -> Result<()> {
    let input = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let output = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    say(&Event::Listening { input: input.local_addr()?, output: output.local_addr()? })?;
    let group = TaskGroup::new();
    let (sender, mut sockets) = mpsc::channel(16);
    group.spawn(accept_all(input, true, sender.clone()));
    group.spawn(accept_all(output, false, sender));
    let (mut writers, mut readers) = (BTreeMap::new(), BTreeMap::new());
    while let Some(accepted) = sockets.recv().await {
        let (is_writer, stream, socket) = accepted?;
        if is_writer { &mut writers } else { &mut readers }.insert(stream, socket);
        match (writers.remove(&stream), readers.remove(&stream)) {
            // A copy that fails is seen by the reader, which counts bytes.
            (Some(from), Some(to)) => group.spawn(async move { drop(copy(from, to).await) }),
            (Some(from), None) => drop(writers.insert(stream, from)),
            (None, Some(to)) => drop(readers.insert(stream, to)),
            (None, None) => {}
        }
    }
    Err(LoadError::check("nobody listens any more"))
}

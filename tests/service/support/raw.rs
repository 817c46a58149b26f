//! Bytes on a socket, for requests that no client library would send.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A connection.
pub(crate) struct Raw {
    pub(crate) socket: TcpStream,
}

impl Raw {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self { socket: TcpStream::connect(address).await.expect("connected") }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.expect("sent");
    }

    /// Sends as much as is taken. Answers whether all of it was.
    pub(crate) async fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.socket.write_all(bytes).await.is_ok()
    }

    /// Reads until the peer closes or resets, at most `patience`. Answers what came, and whether
    /// the connection ended.
    pub(crate) async fn read_to_close(&mut self, patience: Duration) -> (String, bool) {
        let mut whole = Vec::new();
        let read = tokio::time::timeout(patience, self.socket.read_to_end(&mut whole)).await;
        (String::from_utf8_lossy(&whole).into_owned(), read.is_ok())
    }

    /// Reads until the head of an answer is there; the head and what came behind it.
    pub(crate) async fn read_head(&mut self) -> (String, Vec<u8>) {
        let (mut whole, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            if let Some(at) = whole.windows(4).position(|window| window == b"\r\n\r\n") {
                return (String::from_utf8_lossy(&whole[..at + 4]).into_owned(), whole[at + 4..].to_vec());
            }
            let read = tokio::time::timeout(Duration::from_secs(20), self.socket.read(&mut buffer)).await;
            let n = read.expect("an answer in time").expect("an answer");
            assert!(n > 0, "closed before an answer: {}", String::from_utf8_lossy(&whole));
            whole.extend_from_slice(&buffer[..n]);
        }
    }
}

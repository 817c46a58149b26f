//! A plain HTTP/1.1 client over one kept connection: the same for every server that is measured, and
//! cheap enough that the servers and not the client are.

use crate::error::{LoadError, Result, ensure};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const BUFFER_BYTES: usize = 256 * 1024;
const HEAD_END: &[u8] = b"\r\n\r\n";

/// The head of an answer, as far as it is used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    /// Bytes of the head itself.
    length: usize,
    status: u16,
    body: u64,
}

/// An answer whose body has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reply {
    /// The status.
    pub(crate) status: u16,
    /// Bytes of the body.
    pub(crate) length: u64,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    host: SocketAddr,
    buffer: Vec<u8>,
    /// Bytes of the buffer that have arrived and were not taken.
    held: std::ops::Range<usize>,
}

/// `None` while the head has not arrived whole. Errors: an answer without a length.
fn parse_head(bytes: &[u8]) -> Result<Option<Head>> {
    let Some(end) = bytes.windows(HEAD_END.len()).position(|window| window == HEAD_END) else { return Ok(None) };
    let text = bytes.get(..end).map(String::from_utf8_lossy).unwrap_or_default();
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|status| status.parse::<u16>().ok());
    let status = status.ok_or_else(|| LoadError::check("an answer without a status"))?;
    let named = lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let body = match named.and_then(|(_, value)| value.trim().parse::<u64>().ok()) {
        Some(length) => length,
        None if status == 204 => 0,
        None => return Err(LoadError::check(format!("an answer {status} without a length"))),
    };
    Ok(Some(Head { length: end + HEAD_END.len(), status, body }))
}

impl Wire {
    /// Connects.
    pub(crate) async fn connect(host: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(host).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, host, buffer: vec![0; BUFFER_BYTES], held: 0..0 })
    }

    /// Reads a resource; `take` sees its bytes in order.
    pub(crate) async fn get(&mut self, path: &str, take: impl FnMut(&[u8])) -> Result<Reply> {
        let head = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.host);
        self.stream.write_all(head.as_bytes()).await?;
        self.answer(take).await
    }

    /// Writes a resource.
    pub(crate) async fn put(&mut self, path: &str, body: &[u8]) -> Result<Reply> {
        let head = format!("PUT {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\r\n", self.host, body.len());
        let mut whole = head.into_bytes();
        whole.extend_from_slice(body);
        self.stream.write_all(&whole).await?;
        self.answer(|_| {}).await
    }

    async fn answer(&mut self, mut take: impl FnMut(&[u8])) -> Result<Reply> {
        let head = loop {
            let held = self.buffer.get(self.held.clone()).unwrap_or_default();
            if let Some(head) = parse_head(held)? {
                break head;
            }
            ensure(held.len() < BUFFER_BYTES, || "the head of an answer is too long".to_owned())?;
            self.fill().await?;
        };
        self.held.start += head.length;
        let mut left = head.body;
        while left > 0 {
            if self.held.is_empty() {
                self.fill().await?;
            }
            let wanted = self.held.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let end = self.held.start + wanted;
            take(self.buffer.get(self.held.start..end).unwrap_or_default());
            self.held.start = end;
            left -= wanted as u64;
        }
        Ok(Reply { status: head.status, length: head.body })
    }

    async fn fill(&mut self) -> Result<()> {
        if self.held.is_empty() {
            self.held = 0..0;
        } else if self.held.end == self.buffer.len() {
            self.buffer.copy_within(self.held.clone(), 0);
            self.held = 0..self.held.len();
        }
        let room = self.buffer.get_mut(self.held.end..).unwrap_or_default();
        let n = self.stream.read(room).await?;
        ensure(n > 0, || "the connection was closed in the middle of an answer".to_owned())?;
        self.held.end += n;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_with_any_case_and_only_when_they_are_whole() {
        let text = b"HTTP/1.1 200 OK\r\nServer: x\r\nCONTENT-length: 12\r\n\r\nabc";
        let head = parse_head(text).unwrap().unwrap();
        assert_eq!(head, Head { length: text.len() - 3, status: 200, body: 12 });
        assert_eq!(parse_head(&text[..text.len() - 6]).unwrap(), None);
        assert_eq!(parse_head(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().map(|head| head.body), Some(0));
        assert!(parse_head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(parse_head(b"nonsense\r\n\r\n").is_err());
    }

    #[tokio::test]
    async fn answers_that_arrive_in_pieces_are_whole() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let body: Vec<u8> = (0..700_000_u32).map(|number| number.to_le_bytes()[0]).collect();
        let served = body.clone();
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            for _ in 0..2 {
                let mut request = [0; 1024];
                assert!(stream.read(&mut request).await.unwrap() > 0);
                stream.write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", served.len()).as_bytes()).await.unwrap();
                for piece in served.chunks(99_991) {
                    stream.write_all(piece).await.unwrap();
                }
            }
        };
        let ask = async {
            let mut wire = Wire::connect(address).await.unwrap();
            for _ in 0..2 {
                let mut found = Vec::new();
                let reply = wire.get("/x", |bytes| found.extend_from_slice(bytes)).await.unwrap();
                assert_eq!(reply, Reply { status: 200, length: body.len() as u64 });
                assert!(found == body);
            }
            assert!(wire.get("/x", |_| {}).await.is_err());
        };
        tokio::join!(serve, ask);
    }
}

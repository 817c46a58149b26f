//! A connection between client and node that is cut, again and again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Passes connections on to a node and cuts some of them after a number of bytes in one direction.
pub(crate) struct Proxy {
    address: SocketAddr,
    n_cuts: Arc<AtomicU64>,
    serving: JoinHandle<()>,
}

/// How connections are cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cuts {
    /// Bytes from the client after which a connection is cut.
    pub(crate) sent: u64,
    /// Bytes to the client after which a connection is cut.
    pub(crate) received: u64,
    /// How many connections are cut at most; later ones live.
    pub(crate) most: u64,
}

impl Proxy {
    pub(crate) async fn start(node: SocketAddr, cuts: Cuts) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("bound");
        let (address, n_cuts) = (listener.local_addr().expect("an address"), Arc::new(AtomicU64::new(0)));
        let counted = n_cuts.clone();
        let serving = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let n_cuts = counted.clone();
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(node).await else { return };
                    pass(client, server, cuts, &n_cuts).await;
                });
            }
        });
        Self { address, n_cuts, serving }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Connections that were cut.
    pub(crate) fn n_cuts(&self) -> u64 {
        self.n_cuts.load(Ordering::Acquire)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn pass(mut client: TcpStream, mut server: TcpStream, cuts: Cuts, n_cuts: &AtomicU64) {
    let is_cut = {
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        let sent = copy(from_client, to_server, cuts.sent, n_cuts, cuts.most);
        let received = copy(from_server, to_client, cuts.received, n_cuts, cuts.most);
        tokio::select! {
            is_cut = sent => is_cut,
            is_cut = received => is_cut,
        }
    };
    if is_cut {
        // With a reset, as by a device in between that forgot the connection.
        let _ = client.set_zero_linger();
        let _ = server.set_zero_linger();
    }
}

/// Copies until the end or until the limit, if another cut is due. Answers whether it was cut.
async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, limit: u64, n_cuts: &AtomicU64, most: u64) -> bool {
    let (mut n_copied, mut buffer) = (0_u64, vec![0; 16 * 1024]);
    loop {
        let Ok(n @ 1..) = from.read(&mut buffer).await else { return false };
        if to.write_all(&buffer[..n]).await.is_err() {
            return false;
        }
        n_copied += n as u64;
        if n_copied >= limit && n_cuts.fetch_update(Ordering::AcqRel, Ordering::Acquire, |cuts| (cuts < most).then_some(cuts + 1)).is_ok() {
            return true;
        }
    }
}

//! `[http]`, `[tls]`, `[shutdown]`: the port and how long anything on it may take.

use super::schema::section;
use super::units::{ByteSize, TimeSpan};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// The port when none is configured: not assigned to any service that is widely run, outside the
/// ranges that systems draw ephemeral ports from, and not one of the crowded 80xx and 90xx.
pub const DEFAULT_PORT: u16 = 7440;

section! {
    /// The port: HTTP/1.1 and HTTP/2, the API and /metrics.
    Http {
        /// Address and port. Port 0 takes any free one. An address that others can reach is refused
        /// without tokens and TLS (see auth.insecure).
        listen: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT));
        /// Memory for bytes that peers have sent and no call has taken yet; 10 % of node.memory when it
        /// is left out. A connection may hold max_streams x stream_window of it, and 64KiB at the least.
        budget: Option<ByteSize> = None;
        /// Most connections at a time; further ones wait in the kernel. As many as the budget holds,
        /// from 16 to 4096, when it is left out. Stay well below the limit of open files.
        max_connections: Option<usize> = None;
        /// HTTP/2: requests of one connection at a time.
        max_streams: u32 = 32;
        /// HTTP/2: bytes that a peer may send ahead on one stream. The window of the connection is
        /// max_streams times as large, so that no stream that waits can stop the others.
        stream_window: ByteSize = ByteSize::kib(16);
        /// Most requests at a time, waiting reads and event streams included; more are refused.
        max_requests: usize = 8192;
        /// Longest TLS handshake: silent clients do not keep their place.
        handshake_timeout: TimeSpan = TimeSpan::secs(10);
        /// Longest wait for the head of a request, and so for how long a connection may be idle.
        head_timeout: TimeSpan = TimeSpan::secs(30);
        /// Longest time in which the body of a request makes no progress.
        body_stall: TimeSpan = TimeSpan::secs(30);
        /// Longest pause of a frame stream between two frames: a producer may think between them.
        frame_pause: TimeSpan = TimeSpan::secs(300);
        /// Longest time in which a reader takes nothing of what it is sent.
        read_stall: TimeSpan = TimeSpan::secs(30);
        /// Longest call that neither streams nor seals.
        call_timeout: TimeSpan = TimeSpan::secs(60);
        /// Longest time that the client of a seal waits; the seal goes on when it takes longer.
        seal_timeout: TimeSpan = TimeSpan::secs(600);
        /// Time between two signs of life on a quiet event stream: below idle timeouts of proxies.
        event_keep_alive: TimeSpan = TimeSpan::secs(15);
        /// Largest JSON document. 32MiB (a seal of 2^20 subpartitions has about 30), and on small nodes
        /// what the memory for documents (5 % of node.memory) holds, when it is left out.
        max_document: Option<ByteSize> = None;
        /// Whether /metrics needs the admin token. Off: scrapers rarely carry one, and no job is named
        /// in it.
        protect_metrics: bool = false;
    }
}

section! {
    /// TLS. On when both files are named.
    Tls {
        /// PEM file with the certificate chain, the server's own first.
        certificate: Option<PathBuf> = None;
        /// PEM file with the private key.
        key: Option<PathBuf> = None;
    }
}

section! {
    /// The end of the process. SIGTERM or SIGINT begins it, a second one ends at once.
    Shutdown {
        /// How long requests under way may take to finish. Below what supervisors wait for before
        /// they kill (30 s in Kubernetes, 90 s in systemd).
        grace: TimeSpan = TimeSpan::secs(20);
        /// How long stores and background work may take to end after that.
        close: TimeSpan = TimeSpan::secs(8);
    }
}

impl Tls {
    /// Whether TLS is on.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.certificate.is_some() && self.key.is_some()
    }
}

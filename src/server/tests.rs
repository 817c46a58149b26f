//! The listener against raw sockets.
#![expect(clippy::disallowed_methods, reason = "tests spawn what they wait for")]

use super::*;
use axum::routing::get;
use store_api::SystemClock;
use store_api::clock::within;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

struct Running {
    address: SocketAddr,
    shutdown: Shutdown,
    served: JoinHandle<bool>,
}

fn quick() -> ServerConfig {
    ServerConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        head_timeout: Duration::from_millis(400),
        handshake_timeout: Duration::from_millis(400),
        grace: Duration::from_secs(2),
        ..ServerConfig::default()
    }
}

async fn start(config: ServerConfig, router: Router) -> Running {
    let server = Server::bind(config, SystemClock::shared()).await.expect("bound");
    let (address, shutdown) = (server.address(), Shutdown::new());
    let served = tokio::spawn(server.serve(router, shutdown.clone()));
    Running { address, shutdown, served }
}

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" })).route(
        "/slow",
        get(|| async {
            store_api::Clock::sleep(&SystemClock::new(), Duration::from_millis(500)).await;
            "late"
        }),
    )
}

async fn connect(running: &Running) -> TcpStream {
    TcpStream::connect(running.address).await.expect("connected")
}

/// What the peer sends until it closes; fails when it does not within `patience`.
async fn read_to_close(socket: &mut TcpStream, patience: Duration) -> String {
    let mut text = Vec::new();
    let read = within(&SystemClock::new(), patience, socket.read_to_end(&mut text)).await;
    assert!(read.is_some(), "the connection is still open");
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn a_request_is_answered_and_the_connection_kept() {
    let running = start(quick(), hello()).await;
    let mut socket = connect(&running).await;
    for _ in 0..2 {
        socket.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
        let mut buffer = [0; 512];
        let n = socket.read(&mut buffer).await.expect("answered");
        assert!(String::from_utf8_lossy(&buffer[..n]).ends_with("hello"));
    }
}

#[tokio::test]
async fn connections_that_do_nothing_are_closed() {
    let running = start(quick(), hello()).await;
    let (mut silent, mut half, mut idle) = (connect(&running).await, connect(&running).await, connect(&running).await);
    half.write_all(b"GET / HT").await.expect("sent");
    idle.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    let patience = Duration::from_secs(5);
    assert_eq!(read_to_close(&mut silent, patience).await, "");
    read_to_close(&mut half, patience).await;
    assert!(read_to_close(&mut idle, patience).await.ends_with("hello"));
}

#[tokio::test]
async fn a_head_that_drips_is_not_waited_for() {
    let running = start(quick(), hello()).await;
    let mut socket = connect(&running).await;
    let drip = async {
        for byte in b"GET / HTTP/1.1\r\nHost: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx".iter().cycle() {
            if socket.write_all(&[*byte]).await.is_err() {
                return;
            }
            store_api::Clock::sleep(&SystemClock::new(), Duration::from_millis(50)).await;
        }
    };
    assert!(within(&SystemClock::new(), Duration::from_secs(5), drip).await.is_some());
}

#[tokio::test]
async fn clients_that_do_nothing_do_not_hold_up_the_end() {
    let config = ServerConfig { head_timeout: Duration::from_secs(60), grace: Duration::from_secs(20), ..quick() };
    let running = start(config, hello()).await;
    let (silent, mut half, mut idle) = (connect(&running).await, connect(&running).await, connect(&running).await);
    half.write_all(b"GET / HT").await.expect("sent");
    idle.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    let mut buffer = [0; 512];
    assert!(idle.read(&mut buffer).await.expect("answered") > 0);
    running.shutdown.begin();
    let ended = within(&SystemClock::new(), Duration::from_secs(5), running.served).await;
    assert!(ended.is_some_and(|ended| ended.unwrap_or(false)), "the end was held up");
    drop(silent);
}

#[tokio::test]
async fn a_request_under_way_is_finished_and_new_connections_are_refused() {
    let running = start(quick(), hello()).await;
    let mut socket = connect(&running).await;
    socket.write_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    store_api::Clock::sleep(&SystemClock::new(), Duration::from_millis(100)).await;
    running.shutdown.begin();
    assert!(read_to_close(&mut socket, Duration::from_secs(5)).await.ends_with("late"));
    assert!(running.served.await.unwrap_or(false));
    assert!(TcpStream::connect(running.address).await.is_err());
}

#[tokio::test]
async fn the_second_wish_ends_at_once() {
    let config = ServerConfig { grace: Duration::from_secs(60), ..quick() };
    let never = Router::new().route("/", get(|| async { std::future::pending::<()>().await }));
    let running = start(config, never).await;
    let mut socket = connect(&running).await;
    socket.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    store_api::Clock::sleep(&SystemClock::new(), Duration::from_millis(100)).await;
    running.shutdown.begin();
    running.shutdown.end_now();
    let ended = within(&SystemClock::new(), Duration::from_secs(5), running.served).await;
    assert!(ended.is_some_and(|ended| !ended.unwrap_or(true)), "a request was cut, so not all could finish");
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_for_their_turn() {
    let running = start(ServerConfig { max_connections: 1, ..quick() }, hello()).await;
    let first = connect(&running).await;
    let mut second = connect(&running).await;
    second.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.expect("sent");
    drop(first);
    assert!(read_to_close(&mut second, Duration::from_secs(5)).await.ends_with("hello"));
}

#[tokio::test]
async fn failing_accepts_pause_longer_each_time_up_to_a_limit() {
    let mut trouble = AcceptTrouble::default();
    let error = io::Error::other("no descriptors");
    let pauses: Vec<Duration> = (0..7).map(|_| trouble.note(&error, Duration::ZERO)).collect();
    assert_eq!(pauses.first(), Some(&ACCEPT_PAUSE));
    assert!(pauses.is_sorted());
    assert_eq!(pauses.last(), Some(&MAX_ACCEPT_PAUSE));
}

#[tokio::test]
async fn a_silent_client_of_tls_is_closed_and_holds_up_nobody() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let files = TlsFiles { certificate: directory.path().join("cert.pem"), key: directory.path().join("key.pem") };
    std::fs::write(&files.certificate, made.cert.pem()).expect("written");
    std::fs::write(&files.key, made.signing_key.serialize_pem()).expect("written");
    let running = start(ServerConfig { tls: Some(files), ..quick() }, hello()).await;
    let mut silent = connect(&running).await;
    let root = reqwest::Certificate::from_pem(made.cert.pem().as_bytes()).expect("a certificate");
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().tls_certs_only([root]).build().expect("a client");
    let url = format!("https://localhost:{}/", running.address.port());
    let answer = client.get(url).send().await.expect("answered");
    assert_eq!(answer.version(), http::Version::HTTP_2);
    assert_eq!(answer.text().await.expect("text"), "hello");
    assert_eq!(read_to_close(&mut silent, Duration::from_secs(5)).await, "");
}

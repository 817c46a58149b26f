//! A node as a child process, and the HTTP that tests speak to it. Shares no document type with the
//! service: what it reads is what a stranger would read.

use bytes::Bytes;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};
use store_api::frame::{Frame, FrameDecoder, FrameHeader, FrameKind, MAX_PAYLOAD};
use store_api::{Chunk, Crc32c};
use tokio::process::{Child, Command};

/// Longest wait for a node to be ready: a machine under load, a dev build, recovery.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(60);
/// Longest wait for anything else.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn is_long() -> bool {
    std::env::var_os("FOREBAY_LONG").is_some_and(|value| value == "1")
}

/// The seed of this run: drawn, or taken from `FOREBAY_SEED` to repeat a run. Printed.
pub(crate) fn seed(test: &str) -> u64 {
    let given = std::env::var("FOREBAY_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(rand::random);
    println!("{test}: FOREBAY_SEED={seed}");
    seed
}

/// Asks until there is an answer. Panics when there is none within `limit`.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, limit: Duration, mut ask: impl FnMut() -> F) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(begun.elapsed() < limit, "{what}: not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// How a node is started; the same each time, so that a restart is one.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) directory: PathBuf,
    settings: Vec<String>,
    config: Option<PathBuf>,
}

impl Spec {
    pub(crate) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), settings: Vec::new(), config: None }
    }

    pub(crate) fn set(mut self, setting: impl Into<String>) -> Self {
        self.settings.push(setting.into());
        self
    }

    /// Reads a configuration file.
    pub(crate) fn with_config(self, path: &Path) -> Self {
        Self { config: Some(path.to_owned()), ..self }
    }

    /// Keeps durable partitions in a directory.
    pub(crate) fn with_objects(self, path: &Path) -> Self {
        self.set("object.kind=directory").set("object.directory.opt_in=true").set(format!("object.directory.path={}", path.display()))
    }

    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.directory.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    }

    /// Starts the process and does not wait for it.
    pub(crate) fn spawn(&self) -> Child {
        let log = std::fs::File::options().create(true).append(true).open(self.beside(".log")).expect("a log file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&self.directory);
        command.arg("--ready-file").arg(self.beside(".ready"));
        for setting in &self.settings {
            command.args(["--set", setting]);
        }
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);
        command.spawn().expect("the binary starts")
    }

    /// Starts the process and waits until it is ready.
    pub(crate) async fn start(&self) -> Node {
        let ready = self.beside(".ready");
        let _ = std::fs::remove_file(&ready);
        let mut child = self.spawn();
        let document = eventually("the node is ready", START_LIMIT, || {
            let ended = child.try_wait().expect("the child can be asked");
            assert!(ended.is_none(), "the node ended with {ended:?}:\n{}", self.log());
            let text = std::fs::read(&ready).ok();
            async move { text.and_then(|text| serde_json::from_slice::<Value>(&text).ok()) }
        })
        .await;
        let member = |name: &str| document[name].as_str().expect("a member of the ready file").to_owned();
        let api = Api { http: client(), url: member("url"), life: member("life"), token: None };
        Node { child, api, address: member("address") }
    }

    pub(crate) fn log(&self) -> String {
        let log = std::fs::read_to_string(self.beside(".log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

/// A running node. Killed when it is dropped.
pub(crate) struct Node {
    child: Child,
    pub(crate) api: Api,
    pub(crate) address: String,
}

impl Node {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("the node runs")
    }

    /// kill -9, and waits until the process is gone.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.expect("killed");
    }

    pub(crate) fn terminate(&self) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.pid()).expect("a pid")).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("SIGTERM");
    }

    /// Waits for the end. Panics when it does not come within `limit`.
    pub(crate) async fn ended(mut self, limit: Duration) -> ExitStatus {
        tokio::time::timeout(limit, self.child.wait()).await.expect("the node ends in time").expect("a status")
    }
}

pub(crate) fn install_crypto() {
    static ONCE: Once = Once::new();
    // Fails only when a provider is there already, and then that one serves.
    ONCE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

/// A client with connections of its own.
pub(crate) fn client() -> reqwest::Client {
    install_crypto();
    reqwest::Client::builder().no_proxy().tcp_nodelay(true).timeout(Duration::from_secs(120)).build().expect("a client")
}

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) version: http::Version,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) const fn is_success(&self) -> bool {
        self.status >= 200 && self.status < 300
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The code of a problem; empty for a success.
    pub(crate) fn code(&self) -> String {
        if self.is_success() { String::new() } else { self.json()["code"].as_str().unwrap_or_default().to_owned() }
    }

    /// The document of a success.
    pub(crate) fn ok(self) -> Value {
        assert!(self.is_success(), "{}: {}", self.status, self.text());
        self.json()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("ASCII"))
    }
}

/// The connection failed, or was cut in the middle of the answer.
#[derive(Debug)]
#[expect(dead_code, reason = "shown when a test fails")]
pub(crate) struct Cut(String);

pub(crate) type Answered = Result<Answer, Cut>;

/// A node as a client sees it.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) http: reqwest::Client,
    pub(crate) url: String,
    pub(crate) life: String,
    pub(crate) token: Option<String>,
}

/// A partition of a dataset of a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) job: &'static str,
    pub(crate) dataset: &'static str,
    pub(crate) partition: u64,
}

impl Place {
    pub(crate) fn path(&self) -> String {
        let Self { job, dataset, partition } = self;
        format!("/v1/jobs/{job}/datasets/{dataset}/partitions/{partition}")
    }
}

impl Api {
    pub(crate) fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub(crate) async fn send(&self, request: RequestBuilder) -> Answered {
        let cut = |error: reqwest::Error| Cut(format!("{error:?}"));
        let response = request.send().await.map_err(cut)?;
        let (status, version, headers) = (response.status().as_u16(), response.version(), response.headers().clone());
        Ok(Answer { status, version, headers, body: response.bytes().await.map_err(cut)? })
    }

    pub(crate) async fn get(&self, path: &str) -> Answered {
        self.send(self.request(Method::GET, path)).await
    }

    pub(crate) async fn put(&self, path: &str, document: &Value) -> Answered {
        self.send(self.request(Method::PUT, path).json(document)).await
    }

    pub(crate) async fn post(&self, path: &str, document: &Value) -> Answered {
        self.send(self.request(Method::POST, path).json(document)).await
    }

    /// Creates a job with a long lease and answers its document.
    pub(crate) async fn create_job(&self, job: &str) -> Value {
        self.put(&format!("/v1/jobs/{job}"), &json!({"owner_nonce": "test", "lease_ms": 3_600_000})).await.expect("answered").ok()
    }

    pub(crate) async fn declare(&self, job: &str, dataset: &str, document: &Value) -> Value {
        self.put(&format!("/v1/jobs/{job}/datasets/{dataset}"), document).await.expect("answered").ok()
    }

    pub(crate) async fn open(&self, place: &Place, generation: u32, attempt: u32) -> Answered {
        self.post(&format!("{}/attempts", place.path()), &json!({"generation": generation, "attempt": attempt})).await
    }

    fn write(&self, method: Method, path: &str) -> RequestBuilder {
        self.request(method, path).header("Forebay-Node-Life", &self.life)
    }

    pub(crate) async fn append(&self, place: &Place, attempt: &str, subpartition: u32, offset: u64, bytes: Bytes) -> Answered {
        let path = format!("{}/attempts/{attempt}/subpartitions/{subpartition}?offset={offset}", place.path());
        self.send(self.write(Method::PUT, &path).header("Content-Type", "application/octet-stream").body(bytes)).await
    }

    pub(crate) async fn frames(&self, place: &Place, attempt: &str, frames: Bytes) -> Answered {
        let path = format!("{}/attempts/{attempt}/frames", place.path());
        self.send(self.write(Method::POST, &path).header("Content-Type", "application/vnd.forebay.frames").body(frames)).await
    }

    pub(crate) async fn seal(&self, place: &Place, attempt: &str) -> Answered {
        self.send(self.write(Method::POST, &format!("{}/attempts/{attempt}/seal", place.path()))).await
    }

    pub(crate) async fn read(&self, place: &Place, subpartition: u32) -> Answered {
        self.get(&format!("{}/subpartitions/{subpartition}", place.path())).await
    }

    pub(crate) async fn release(&self, path: &str, epoch: u64) -> Answered {
        self.send(self.request(Method::DELETE, path).header("Forebay-Job-Epoch", epoch)).await
    }

    /// One batch read, decoded.
    pub(crate) async fn fetch(&self, job: &str, dataset: &str, items: &Value) -> Result<Vec<Frame>, Cut> {
        let answer = self.post(&format!("/v1/jobs/{job}/datasets/{dataset}/fetch"), &json!({ "items": items })).await?;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let mut decoder = FrameDecoder::new(MAX_PAYLOAD);
        decoder.push(answer.body).expect("frames");
        let mut frames = Vec::new();
        while let Some(frame) = decoder.next_frame().expect("a frame") {
            frames.push(frame);
        }
        decoder.finish().map_err(|error| Cut(error.to_string()))?;
        Ok(frames)
    }
}

/// A frame stream of these blocks (subpartition, bytes), from sequence 0, with its end.
pub(crate) fn frame_stream<'a>(blocks: impl IntoIterator<Item = (u32, &'a Bytes)>) -> Bytes {
    let (mut out, mut sequence) = (Vec::new(), 0);
    for (subpartition, bytes) in blocks {
        let header = FrameHeader::data(subpartition, sequence, &Chunk::new(bytes.clone())).expect("it fits in a frame");
        out.extend_from_slice(&header.encode());
        out.extend_from_slice(bytes);
        sequence += 1;
    }
    out.extend_from_slice(&FrameHeader::bare(FrameKind::End, 0, sequence).encode());
    out.into()
}

/// Bytes that follow from a number: the same each time, different for each number.
pub(crate) fn content(number: u64, length: usize) -> Bytes {
    let mut state = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut out = Vec::with_capacity(length + 8);
    while out.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
    }
    out.truncate(length);
    out.into()
}

/// What `Repr-Digest` says for these bytes.
pub(crate) fn repr_digest(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let number = u64::from(Crc32c::of(bytes).get()) << 4;
    let digits = (0..6).rev().map(|at| ALPHABET[usize::try_from((number >> (6 * at)) & 63).expect("6 bits")] as char);
    format!("crc32c=:{}==:", digits.collect::<String>())
}

/// Waits for all of these tasks.
pub(crate) async fn join_all<T>(tasks: Vec<tokio::task::JoinHandle<T>>) -> Vec<T> {
    let mut results = Vec::with_capacity(tasks.len());
    for task in tasks {
        results.push(task.await.expect("no task panicked"));
    }
    results
}

/// Runs `run(number)` for every number below `n`, at most `width` at a time.
pub(crate) async fn for_each<F: Future<Output = ()> + Send + 'static>(
    n: u64,
    width: usize,
    run: impl Fn(u64) -> F + Send + Sync + 'static,
) {
    let (next, run) = (Arc::new(std::sync::atomic::AtomicU64::new(0)), Arc::new(run));
    let worker = || {
        let (next, run) = (next.clone(), run.clone());
        tokio::spawn(async move {
            loop {
                let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if number >= n {
                    return;
                }
                run(number).await;
            }
        })
    };
    join_all((0..width).map(|_| worker()).collect()).await;
}

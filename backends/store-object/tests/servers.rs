//! The store suite over real servers: an S3 server in every run, a Ceph gateway and Azurite in the
//! long form (`FOREBAY_LONG=1`).
#![expect(clippy::unwrap_used, clippy::panic, reason = "a panic is a failed test")]

use bytes::Bytes;
use forebay_store_object::{AzureConfig, Config, Environment, ObjectStore, Probed, S3Config, Secret, StoreConfig, Support};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use store_api::{Catalog, DatasetKind, Expect, NodeId, NodeLife, StoreErrorKind, SystemClock, TaskGroup};
use store_testkit::{Instance, Pace, StoreFactory, suite};

const MIB: u64 = 1 << 20;
const BUCKET: &str = "forebay-test";

fn is_long() -> bool {
    std::env::var_os("FOREBAY_LONG").is_some_and(|value| value == "1")
}

/// Where `tests/tools/setup.sh` has put a tool. Fails with what to run when it is not there.
fn tool(name: &str, target: &str) -> PathBuf {
    let cache = || {
        let home = || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache");
        std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("forebay/test-tools")
    };
    let path = std::env::var_os("FOREBAY_TEST_TOOLS").map_or_else(cache, PathBuf::from).join(name);
    assert!(path.exists(), "{} is not there: `make {target}` installs it", path.display());
    path
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tools").join(name)
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A server that ends with the test.
struct Server {
    port: u16,
    child: Option<Child>,
    stop: Option<Command>,
    folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(stop) = &mut self.stop {
            let _ = stop.status();
        }
    }
}

/// One plain HTTP request; the status of the answer.
fn ask(port: u16, head: &str) -> std::io::Result<u16> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "{head} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    text.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(|| std::io::Error::other("no status"))
}

fn wait_until_ready(server: &Server, what: &str) {
    for _ in 0..600 {
        if ask(server.port, "GET /").is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{what} does not answer on port {}", server.port);
}

fn started(mut command: Command, what: &str, port: u16) -> Server {
    let folder = tempfile::tempdir().unwrap();
    let quiet =
        command.env("PORT", port.to_string()).current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let program = what.to_owned();
    let child = if program == "moto" {
        quiet.args(["-H", "127.0.0.1", "-p", &port.to_string()]).spawn()
    } else {
        quiet.args(["--blobPort", &port.to_string()]).spawn()
    };
    let server = Server { port, child: Some(child.unwrap()), stop: None, folder };
    wait_until_ready(&server, what);
    server
}

fn moto() -> Server {
    let server = started(Command::new(tool("moto/bin/moto_server", "setup-tests")), "moto", free_port());
    assert_eq!(ask(server.port, &format!("PUT /{BUCKET}")).unwrap(), 200);
    server
}

fn azurite() -> Server {
    let mut command = Command::new("node");
    command.arg(tool("azurite/node_modules/.bin/azurite-blob", "test-long"));
    command.args(["--blobHost", "127.0.0.1", "--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]);
    // The client library finds its emulator at this port only.
    let server = started(command, "azurite", 10_000);
    let made =
        Command::new("python3").arg(script("azurite-container.py")).args([server.port.to_string().as_str(), BUCKET]).status().unwrap();
    assert!(made.success());
    server
}

async fn rgw() -> Server {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let state = folder.path().join("rgw");
    let started = Command::new(script("rgw.sh")).arg("start").arg(&state).arg(port.to_string()).status().unwrap();
    let mut stop = Command::new(script("rgw.sh"));
    stop.arg("stop").arg(&state);
    let server = Server { port, child: None, stop: Some(stop), folder };
    assert!(started.success(), "the gateway did not start: `make test-long` installs what it needs");
    make_bucket(&server).await;
    server
}

/// A signed request on the bucket itself makes it.
async fn make_bucket(server: &Server) {
    use object_store::signer::Signer;
    let client = object_store::aws::AmazonS3Builder::new()
        .with_endpoint(format!("http://127.0.0.1:{}", server.port))
        .with_allow_http(true)
        .with_bucket_name(BUCKET)
        .with_access_key_id("forebay")
        .with_secret_access_key("forebay-secret")
        .build()
        .unwrap();
    let root = object_store::path::Path::from("");
    let url = client.signed_url("PUT".parse().unwrap(), &root, Duration::from_secs(60)).await.unwrap();
    let status = ask(server.port, &format!("PUT {}?{}", url.path(), url.query().unwrap())).unwrap();
    assert_eq!(status, 200, "{}", server.folder.path().display());
}

fn s3(server: &Server, key: &str, secret: &str) -> StoreConfig {
    StoreConfig::S3(S3Config {
        bucket: BUCKET.to_owned(),
        endpoint: Some(format!("http://127.0.0.1:{}", server.port)),
        allow_http: true,
        access_key_id: Some(key.to_owned()),
        secret_access_key: Some(Secret::new(secret)),
        upload_checksum: true,
        ..S3Config::default()
    })
}

/// Stores under prefixes of their own in one bucket.
struct Servers {
    store: StoreConfig,
    drawn: AtomicU64,
}

impl Servers {
    fn new(store: StoreConfig) -> Self {
        Self { store, drawn: AtomicU64::new(1) }
    }

    fn config(&self, prefix: &str, memory_bytes: u64) -> Config {
        let part_bytes = 5 * MIB;
        Config { prefix: prefix.to_owned(), memory_bytes, part_bytes, inline_bytes: 64 << 10, ..Config::new(self.store.clone()) }
    }

    async fn open(&self, prefix: String, memory_bytes: u64) -> Instance {
        let environment = Environment {
            clock: SystemClock::shared(),
            tasks: TaskGroup::new(),
            node: NodeId::new("node-1").unwrap(),
            life: NodeLife::new(self.drawn.fetch_add(1, Ordering::Relaxed)),
        };
        let store = ObjectStore::open(self.config(&prefix, memory_bytes), environment).await.unwrap();
        Instance::new(store).on(prefix)
    }

    fn new_prefix(&self) -> String {
        format!("p{}", self.drawn.fetch_add(1, Ordering::Relaxed))
    }

    async fn probed(&self) -> (Arc<ObjectStore>, Probed) {
        let environment = Environment {
            clock: SystemClock::shared(),
            tasks: TaskGroup::new(),
            node: NodeId::new("node-1").unwrap(),
            life: NodeLife::new(self.drawn.fetch_add(1, Ordering::Relaxed)),
        };
        let store = ObjectStore::open(self.config(&self.new_prefix(), 64 * MIB), environment).await.unwrap();
        let probed = store.probed();
        (store, probed)
    }
}

#[async_trait::async_trait]
impl StoreFactory for Servers {
    fn kind(&self) -> DatasetKind {
        DatasetKind::Durable
    }

    async fn fresh(&self) -> Instance {
        self.open(self.new_prefix(), 64 * MIB).await
    }

    async fn fresh_small(&self) -> Instance {
        self.open(self.new_prefix(), self.small_budget_bytes()).await
    }

    fn small_budget_bytes(&self) -> u64 {
        6 * MIB
    }

    fn pace(&self) -> Pace {
        Pace::Slow
    }

    async fn reopen(&self, instance: Instance) -> Option<Instance> {
        let prefix: String = instance.into_medium()?;
        Some(self.open(prefix, 64 * MIB).await)
    }
}

/// Runs every case of the suite, a few side by side, and fails with the names of those that failed.
fn run_suite(store: StoreConfig, side_by_side: usize) {
    let factory: Arc<dyn StoreFactory> = Arc::new(Servers::new(store));
    let cases = suite::cases();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..side_by_side {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| suite::run_shared(factory.clone(), case)));
                    if ran.is_err() {
                        failed.lock().unwrap().push(case.name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} of {} cases failed: {failed:?}", failed.len(), cases.len());
}

/// A catalog on this server is conditional, whichever way it takes.
async fn assert_catalog_is_conditional(store: &ObjectStore) {
    let catalog = store.catalog();
    let value = |text: &'static str| Bytes::from_static(text.as_bytes());
    let first = catalog.put("jobs/a", value("1"), Expect::Absent).await.unwrap();
    let second = catalog.put("jobs/a", value("2"), Expect::Version(first.clone())).await.unwrap();
    let stale = catalog.put("jobs/a", value("3"), Expect::Version(first)).await.unwrap_err();
    assert_eq!(*stale.kind(), StoreErrorKind::Conflict);
    assert_eq!(*catalog.put("jobs/a", value("3"), Expect::Absent).await.unwrap_err().kind(), StoreErrorKind::Conflict);
    let entry = catalog.get("jobs/a").await.unwrap().unwrap();
    assert_eq!((entry.value, entry.version), (value("2"), second));
    let names: Vec<String> = catalog.scan("jobs/").await.unwrap().into_iter().map(|(key, _)| key).collect();
    assert_eq!(names, ["jobs/a"]);
    catalog.delete("jobs/a").await.unwrap();
    assert_eq!(catalog.get("jobs/a").await.unwrap(), None);
}

#[tokio::test]
async fn an_s3_server_is_found_to_be_conditional_and_keeps_a_catalog() {
    let server = moto();
    let servers = Servers::new(s3(&server, "id", "secret"));
    let (store, probed) = servers.probed().await;
    assert_eq!((probed.create, probed.update), (Support::Works, Support::Works));
    assert_catalog_is_conditional(&store).await;
}

#[test]
fn the_suite_holds_over_an_s3_server() {
    let server = moto();
    run_suite(s3(&server, "id", "secret"), 4);
}

#[test]
fn the_suite_holds_over_a_ceph_gateway() {
    if !is_long() {
        eprintln!("only with FOREBAY_LONG=1");
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(rgw());
    let store = s3(&server, "forebay", "forebay-secret");
    runtime.block_on(async {
        let (opened, probed) = Servers::new(store.clone()).probed().await;
        assert_eq!(probed.create, Support::Works);
        assert_catalog_is_conditional(&opened).await;
    });
    run_suite(store, 4);
}

#[test]
fn the_suite_holds_over_azurite() {
    if !is_long() {
        eprintln!("only with FOREBAY_LONG=1");
        return;
    }
    let server = azurite();
    let store = StoreConfig::Azure(AzureConfig {
        container: BUCKET.to_owned(),
        endpoint: Some(format!("http://127.0.0.1:{}/devstoreaccount1", server.port)),
        allow_http: true,
        emulator: true,
        ..AzureConfig::default()
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (opened, probed) = Servers::new(store.clone()).probed().await;
        assert_eq!((probed.create, probed.update), (Support::Works, Support::Works));
        assert_catalog_is_conditional(&opened).await;
    });
    run_suite(store, 4);
}

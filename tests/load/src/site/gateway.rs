//! A real S3 server: Ceph's object gateway over memory, by the script that the tests use.

use super::{free_address, output};
use crate::bench::Bench;
use crate::error::{LoadError, Result, ensure};
use crate::usage;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path as ObjectPath;
use object_store::signer::Signer as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::process::Command;

const START_LIMIT: Duration = Duration::from_secs(180);
const BUCKET: &str = "load";
const KEY: &str = "forebay";
const SECRET: &str = "forebay-secret";
/// More than one run puts into it.
const MEMORY_BYTES: u64 = 8 << 30;

/// Requests that the gateway answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    /// `PUT` and `POST`: objects, parts, beginnings and ends of uploads.
    pub(crate) writes: u64,
    /// `GET` of the bucket itself.
    pub(crate) lists: u64,
    /// All.
    pub(crate) total: u64,
}

/// The gateway. Stopped when it is dropped.
#[derive(Debug)]
pub(crate) struct Gateway {
    address: SocketAddr,
    script: PathBuf,
    state: tempfile::TempDir,
}

impl Gateway {
    /// Starts it with an empty bucket.
    pub(crate) async fn start(bench: &Bench) -> Result<Self> {
        // Sockets lie in it, whose names must be short.
        let state = tempfile::Builder::new().prefix("fb-s3-").tempdir()?;
        let gateway = Self { address: free_address()?, script: bench.root.join("tests/tools/rgw.sh"), state };
        let mut command = Command::new(&gateway.script);
        command.arg("start").arg(gateway.state.path()).arg(gateway.address.port().to_string());
        command.env("FOREBAY_RGW_BYTES", MEMORY_BYTES.to_string());
        // Its daemons keep the pipes of their parent open: what they say goes into files.
        let log = std::fs::File::create(gateway.state.path().join("start.log"))?;
        command.stdin(std::process::Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        let mut child = command.spawn()?;
        let ended = store_api::clock::within(bench.clock.as_ref(), START_LIMIT, child.wait()).await;
        let ended = ended.ok_or_else(|| LoadError::check("the gateway did not start in time"))??;
        let said = || std::fs::read_to_string(gateway.state.path().join("start.log")).unwrap_or_default();
        ensure(ended.success(), || format!("the gateway did not start; see tests/tools/setup.sh rgw: {}", said()))?;
        gateway.make_bucket(bench).await?;
        Ok(gateway)
    }

    /// The object store's own client.
    pub(crate) fn client(&self) -> Result<AmazonS3> {
        let builder = AmazonS3Builder::new().with_endpoint(self.endpoint()).with_allow_http(true).with_bucket_name(BUCKET);
        Ok(builder.with_access_key_id(KEY).with_secret_access_key(SECRET).build()?)
    }

    fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Settings of a node that keeps durable partitions here.
    pub(crate) fn settings(&self) -> Vec<String> {
        let endpoint = self.endpoint();
        let settings = [
            "object.kind=s3".to_owned(),
            format!("object.s3.bucket={BUCKET}"),
            format!("object.s3.endpoint={endpoint}"),
            "object.s3.allow_http=true".to_owned(),
            format!("object.s3.access_key_id={KEY}"),
            format!("object.s3.secret_access_key={SECRET}"),
        ];
        settings.into()
    }

    async fn make_bucket(&self, bench: &Bench) -> Result<()> {
        let method = "PUT".parse().map_err(|_| LoadError::check("PUT is a method"))?;
        let url = self.client()?.signed_url(method, &ObjectPath::from(""), Duration::from_secs(60)).await?;
        let mut command = Command::new("curl");
        command.args(["-sS", "--fail", "-X", "PUT", url.as_str()]);
        output(&mut command, "curl", START_LIMIT, &bench.clock).await?;
        Ok(())
    }

    /// Its daemons, for the meter.
    pub(crate) fn pids(&self) -> Result<Vec<u32>> {
        let run = self.state.path().join("run");
        ["gateway.pid", "osd.0.pid", "mon.a.pid"].iter().map(|name| usage::pid_from(&run.join(name))).collect()
    }

    /// What it has answered since it was started, from its own log.
    pub(crate) fn requests(&self) -> Result<Requests> {
        let log = std::fs::read(self.state.path().join("log/client.rgw.log"))?;
        Ok(count(&String::from_utf8_lossy(&log)))
    }
}

/// Lines like `… beast: 0x…: 127.0.0.1 - user [date] "PUT /bucket/key HTTP/1.1" 200 …`.
fn count(log: &str) -> Requests {
    let mut requests = Requests::default();
    for line in log.lines().filter(|line| line.contains(" beast: ")) {
        let mut words = line.split('"').nth(1).unwrap_or_default().split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let path = target.split('?').next().unwrap_or_default().trim_matches('/');
        requests.total += 1;
        requests.writes += u64::from(matches!(method, "PUT" | "POST"));
        requests.lists += u64::from(method == "GET" && path == BUCKET);
    }
    requests
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It is asked to end; what it kept was in memory and in the directory that goes now.
        let _ = std::process::Command::new(&self.script).arg("stop").arg(self.state.path()).status();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_what_they_do() {
        let line = |request: &str| format!("2026 1 beast: 0x7: 127.0.0.1 - forebay [01/Dec/2026] \"{request} HTTP/1.1\" 200 0 - x\n");
        let log = [
            line("PUT /load/forebay/a"),
            line("POST /load/forebay/b?uploads"),
            line("GET /load/forebay/a"),
            line("GET /load?list-type=2&prefix=x"),
            line("GET /load/?list-type=2"),
            "2026 1 ====== req done req=0x7 http_status=200\n".to_owned(),
        ];
        assert_eq!(count(&log.concat()), Requests { writes: 2, lists: 2, total: 5 });
    }
}

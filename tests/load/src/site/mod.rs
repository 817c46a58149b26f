//! What is measured and what it is held against: processes that are started here and end with it.
//!
//! | module | what it starts |
//! |---|---|
//! | [`node`] | a Forebay node, from the binary that is measured |
//! | [`nginx`] | nginx: files by sendfile, uploads by WebDAV |
//! | [`fio`] | fio, once per measurement |
//! | [`iperf`] | iperf3, once per measurement |
//! | [`gateway`] | a real S3 server: Ceph's object gateway over memory |
//! | [`peer`] | writers, readers and the bare relay: this very binary |

pub(crate) mod fio;
pub(crate) mod gateway;
pub(crate) mod iperf;
pub(crate) mod nginx;
pub(crate) mod node;
pub(crate) mod peer;

use crate::error::{LoadError, Result};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;
use store_api::SharedClock;
use store_api::clock::within;
use tokio::process::Command;

/// Between two looks at something that is starting.
const POLL: Duration = Duration::from_millis(2);

/// A loopback address that was free a moment ago.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Waits until somebody listens.
async fn wait_for_listener(address: SocketAddr, limit: Duration, clock: &SharedClock) -> Result<()> {
    let connect = async {
        while tokio::net::TcpStream::connect(address).await.is_err() {
            clock.sleep(POLL).await;
        }
    };
    within(clock.as_ref(), limit, connect).await.ok_or_else(|| LoadError::check(format!("nobody listens on {address} after {limit:?}")))
}

/// Runs a tool to its end and answers what it printed. Errors: it failed, with what it said.
pub(crate) async fn output(command: &mut Command, what: &str, limit: Duration, clock: &SharedClock) -> Result<Vec<u8>> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn();
    let child = child.map_err(|error| LoadError::check(format!("{what} cannot be started: {error}")))?;
    let ended = within(clock.as_ref(), limit, child.wait_with_output()).await;
    let ended = ended.ok_or_else(|| LoadError::check(format!("{what} did not end within {limit:?}")))??;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        return Err(LoadError::check(format!("{what} ended with {}: {}", ended.status, said.trim())));
    }
    Ok(ended.stdout)
}

/// First line of what a tool says about its version, on either output.
pub(crate) async fn version(program: &str, argument: &str) -> String {
    match Command::new(program).arg(argument).stdin(Stdio::null()).output().await {
        Ok(output) => {
            let said = [output.stdout, output.stderr].concat();
            String::from_utf8_lossy(&said).lines().next().unwrap_or_default().trim().to_owned()
        }
        Err(_) => "not installed".to_owned(),
    }
}

//! iperf3, once per measurement: what TCP over loopback gives without a relay.

use super::{free_address, output, wait_for_listener};
use crate::bench::MIB;
use crate::error::{LoadError, Result};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;
use store_api::SharedClock;
use tokio::process::Command;

const LIMIT: Duration = Duration::from_secs(120);

/// MiB per second at the receiver.
fn parse(document: &[u8]) -> Result<f64> {
    let document: Value = serde_json::from_slice(document)?;
    let bits = document.pointer("/end/sum_received/bits_per_second").and_then(Value::as_f64);
    bits.map(|bits| bits / 8.0 / MIB).ok_or_else(|| LoadError::check("iperf3's document has no result"))
}

/// Throughput of some streams for some seconds, in MiB per second.
pub(crate) async fn throughput(n_streams: usize, seconds: u32, clock: &SharedClock) -> Result<f64> {
    let address = free_address()?;
    let port = address.port().to_string();
    let server = Command::new("iperf3")
        .args(["-s", "-B", "127.0.0.1", "-p", &port])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let mut server = server.map_err(|error| LoadError::check(format!("iperf3 cannot be started: {error}; see deploy/setup.sh bench")))?;
    wait_for_listener(address, LIMIT, clock).await?;
    // The look at the port counts as a test that was broken off; the next one may have to wait for it.
    let mut last = LoadError::check("iperf3 was not asked");
    for _ in 0..20 {
        let mut command = Command::new("iperf3");
        command.args(["-c", "127.0.0.1", "-p", &port, "-J", "-P", &n_streams.to_string(), "-t", &seconds.to_string()]);
        match output(&mut command, "iperf3", LIMIT, clock).await {
            Ok(said) => match parse(&said) {
                Ok(rate) => {
                    server.kill().await?;
                    return Ok(rate);
                }
                Err(error) => last = error,
            },
            Err(error) => last = error,
        }
        clock.sleep(Duration::from_millis(100)).await;
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_receivers_bits_are_mib_per_second() {
        let document = json!({"end": {"sum_sent": {"bits_per_second": 1.0}, "sum_received": {"bits_per_second": 8.0 * MIB * 100.0}}});
        assert!((parse(document.to_string().as_bytes()).unwrap() - 100.0).abs() < 1e-9);
        assert!(parse(json!({"error": "busy"}).to_string().as_bytes()).is_err());
    }
}

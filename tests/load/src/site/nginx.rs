//! nginx: files by sendfile, uploads by WebDAV PUT.

use super::{free_address, wait_for_listener};
use crate::error::{LoadError, Result};
use crate::usage;
use rustix::process::{Pid, Signal, kill_process};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use store_api::SharedClock;
use tokio::process::{Child, Command};

const START_LIMIT: Duration = Duration::from_secs(20);

/// The configuration: as many workers as processors, sendfile, no access log, connections that are
/// kept for ever. Everything it writes is below its own directory.
fn configuration(directory: &Path, files: &Path, address: SocketAddr) -> String {
    let directory = directory.display();
    let user = if rustix::process::geteuid().is_root() { "user root;\n" } else { "" };
    format!(
        "{user}daemon off;
worker_processes auto;
pid {directory}/nginx.pid;
error_log {directory}/error.log warn;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  tcp_nodelay on;
  keepalive_requests 1000000000;
  keepalive_timeout 600s;
  client_max_body_size 0;
  client_body_temp_path {directory}/body;
  proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  default_type application/octet-stream;
  server {{
    listen {address} backlog=1024;
    root {files};
    location / {{
      dav_methods PUT;
      create_full_put_path on;
    }}
  }}
}}
",
        files = files.display()
    )
}

/// nginx. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Nginx {
    child: Child,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// The root of what it serves and takes.
    pub(crate) files: PathBuf,
}

impl Nginx {
    /// Starts it below an empty directory.
    pub(crate) async fn start(directory: &Path, clock: &SharedClock) -> Result<Self> {
        let files = directory.join("files");
        std::fs::create_dir_all(&files)?;
        let address = free_address()?;
        let file = directory.join("nginx.conf");
        std::fs::write(&file, configuration(directory, &files, address))?;
        let child = Command::new("nginx")
            .arg("-e")
            .arg(directory.join("start.log"))
            .arg("-p")
            .arg(directory)
            .arg("-c")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| LoadError::check(format!("nginx cannot be started: {error}; see deploy/setup.sh bench")))?;
        let nginx = Self { child, address, files };
        wait_for_listener(address, START_LIMIT, clock).await?;
        Ok(nginx)
    }

    /// Master and workers, for the meter.
    pub(crate) fn pids(&self) -> Result<Vec<u32>> {
        let master = self.child.id().ok_or_else(|| LoadError::check("nginx has ended"))?;
        usage::tree(master)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The master ends its workers when it is asked to, and leaves them behind when it is killed.
        if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_sends_files_and_writes_nowhere_else() {
        let address = "127.0.0.1:1234".parse().unwrap();
        let text = configuration(Path::new("/d"), Path::new("/d/files"), address);
        assert!(text.contains("sendfile on;") && text.contains("listen 127.0.0.1:1234") && text.contains("dav_methods PUT;"));
        assert_eq!(text.matches("_temp_path /d/").count(), 5);
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}

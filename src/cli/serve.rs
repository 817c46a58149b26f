//! `forebay serve`: runs a node.

use super::outcome::with_causes;
use super::{Failure, runtime};
use crate::config::{Config, Sources, load};
use crate::node::{self, NodeError, NodeOptions};
use crate::shutdown::Shutdown;
use crate::telemetry;
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use store_api::{SystemClock, TaskGroup};
use toml::Value;

/// Where the configuration comes from: file, environment, flags.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct ConfigSources {
    /// Configuration file; without one: loopback, everything in one directory
    #[arg(long, value_name = "FILE", env = "FOREBAY_CONFIG")]
    pub(super) config: Option<PathBuf>,
    /// Address and port; port 0 takes any free one (http.listen)
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Directory of the node (node.directory)
    #[arg(long = "data-dir", value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Base URL under which others reach the node (node.advertised_url)
    #[arg(long, value_name = "URL")]
    advertised_url: Option<String>,
    /// What this process is: both, node or coordinator (coordinator.role)
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
    /// Base URL of the coordinator, for role node (coordinator.url)
    #[arg(long, value_name = "URL")]
    coordinator: Option<String>,
    /// Any setting, as SECTION.KEY=VALUE with a TOML value; may be repeated
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE", value_parser = parse_setting)]
    settings: Vec<(String, Value)>,
}

/// `a.b=1` as a path and a value; what is no TOML value is a text.
fn parse_setting(text: &str) -> Result<(String, Value), String> {
    let (path, value) = text.split_once('=').ok_or("a setting is written as SECTION.KEY=VALUE")?;
    let value = value.trim();
    let parsed: Option<Value> = toml::from_str::<toml::Table>(&format!("x = {value}")).ok().and_then(|mut table| table.remove("x"));
    Ok((path.trim().to_owned(), parsed.unwrap_or_else(|| Value::String(value.to_owned()))))
}

impl ConfigSources {
    /// Loads the configuration. Errors: usage, with everything that is wrong.
    pub(super) fn load(&self) -> Result<Config, Failure> {
        load(&self.sources(std::env::vars_os())).map_err(|error| Failure::usage(error.to_string()))
    }

    pub(super) fn sources(&self, environment: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>) -> Sources {
        let text = |text: String| Value::String(text);
        let mut flags = self.settings.clone();
        flags.extend(self.listen.map(|listen| ("http.listen".to_owned(), text(listen.to_string()))));
        flags.extend(self.directory.as_ref().map(|path| ("node.directory".to_owned(), text(path.display().to_string()))));
        flags.extend(self.advertised_url.clone().map(|url| ("node.advertised_url".to_owned(), text(url))));
        flags.extend(self.role.clone().map(|role| ("coordinator.role".to_owned(), text(role))));
        flags.extend(self.coordinator.clone().map(|url| ("coordinator.url".to_owned(), text(url))));
        let environment = environment.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Sources { file: self.config.clone(), environment: environment.collect(), flags }
    }
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub(super) struct ServeArguments {
    #[command(flatten)]
    sources: ConfigSources,
    /// Written as JSON once the node is ready: url, address, node, life, pid
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
}

pub(super) fn run(arguments: ServeArguments) -> Result<(), Failure> {
    let config = arguments.sources.load()?;
    telemetry::init(&config.log).map_err(|error| Failure::usage(error.to_string()))?;
    let shutdown = Shutdown::new();
    let options = NodeOptions { config, ready_file: arguments.ready_file, clock: SystemClock::shared(), shutdown: shutdown.clone() };
    let runtime = runtime()?;
    let signals = TaskGroup::new();
    let ended = runtime.block_on(async {
        signals.spawn(async move {
            if let Err(error) = shutdown.follow_signals().await {
                tracing::error!(%error, "signals cannot be watched: asked to end");
                shutdown.end_now();
            }
        });
        Box::pin(node::run(options)).await
    });
    // Work that hangs in a medium must not keep the process: the supervisor starts the next life.
    runtime.shutdown_background();
    match ended {
        Ok(_) | Err(NodeError::EndedEarly) => Ok(()),
        Err(error @ NodeError::Config(_)) => Err(Failure::usage(error.to_string())),
        Err(error) => Err(Failure::failed(with_causes(&error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_toml_values_or_texts() {
        let value = |text: &str| parse_setting(text).unwrap().1;
        assert_eq!(value("disk.lanes=3"), Value::Integer(3));
        assert_eq!(value("memory.spill=false"), Value::Boolean(false));
        assert_eq!(value("disk.directories=[\"/a\"]"), Value::Array(vec![Value::String("/a".to_owned())]));
        assert_eq!(value("lease.min=2s"), Value::String("2s".to_owned()));
        assert_eq!(value("log.level = info"), Value::String("info".to_owned()));
        assert!(parse_setting("lease.min").is_err());
    }

    #[test]
    fn flags_win_over_the_environment() {
        let sources = ConfigSources {
            listen: Some("127.0.0.1:9".parse().unwrap()),
            directory: Some("/elsewhere".into()),
            settings: vec![parse_setting("lease.default=2m").unwrap()],
            ..ConfigSources::default()
        };
        let environment = [("FOREBAY_HTTP__LISTEN", "127.0.0.1:8"), ("FOREBAY_LEASE__MAX", "1h")];
        let loaded = load(&sources.sources(environment.into_iter().map(|(name, value)| (name.into(), value.into())))).unwrap();
        assert_eq!((loaded.http.listen.port(), loaded.node.directory.to_str()), (9, Some("/elsewhere")));
        assert_eq!((loaded.lease.default.as_ms(), loaded.lease.max.as_ms()), (120_000, 3_600_000));
    }
}

//! The log: for people on a terminal, one JSON object per line elsewhere, on standard error.

use crate::config::{Log, LogFormat};
use std::io::IsTerminal as _;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The level cannot be understood.
    #[error("log.level: {0}")]
    Level(String),
    /// The process has a subscriber already.
    #[error("the log of this process is set up already")]
    Taken,
}

/// Parses what is to be logged. Errors: `Level`.
pub fn filter(level: &str) -> Result<EnvFilter, TelemetryError> {
    EnvFilter::builder().parse(level).map_err(|error| TelemetryError::Level(error.to_string()))
}

/// Sets up the log of the process. Once per process. Errors: both of [`TelemetryError`].
pub fn init(config: &Log) -> Result<(), TelemetryError> {
    let is_json = match config.format {
        LogFormat::Auto => !std::io::stderr().is_terminal(),
        LogFormat::Human => false,
        LogFormat::Json => true,
    };
    let outcome = if is_json {
        tracing_subscriber::registry().with(filter(&config.level)?).with(json_layer(std::io::stderr)).try_init()
    } else {
        let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
        tracing_subscriber::registry().with(filter(&config.level)?).with(layer).try_init()
    };
    outcome.map_err(|_| TelemetryError::Taken)
}

fn json_layer<S, W>(writer: W) -> impl tracing_subscriber::Layer<S>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
    W: for<'w> MakeWriter<'w> + 'static,
{
    tracing_subscriber::fmt::layer().json().flatten_event(true).with_current_span(true).with_span_list(false).with_writer(writer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::io::Write;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn json_lines_carry_their_fields_at_the_top() {
        let page = Page::default();
        let writer = page.clone();
        let layer = json_layer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(filter("info").unwrap()).with(layer);
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(job_id = "j1", bytes = 7, "sealed");
            tracing::debug!("not shown");
        });
        let text = String::from_utf8(page.0.lock().clone()).unwrap();
        assert_eq!(text.lines().count(), 1);
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&line["message"], &line["job_id"], &line["bytes"]), (&"sealed".into(), &"j1".into(), &7.into()));
    }

    #[test]
    fn levels_that_mean_nothing_are_refused() {
        assert!(filter("info,forebay::service=debug").is_ok());
        assert!(matches!(filter("forebay=loud"), Err(TelemetryError::Level(_))));
    }
}

//! Every metric's name, help and labels, once.
//!
//! Labels have few values, known beforehand: classes, operations, outcomes, route templates. No
//! label ever holds the name of a job, so the page does not grow with what passes through.

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::time::Duration;

/// Media type of the page.
pub const PAGE_MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Label of what concerns one class of partitions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByClass {
    class: &'static str,
}

/// Labels of a call of a store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByCall {
    class: &'static str,
    operation: &'static str,
}

/// Labels of how a call of a store ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByRefusal {
    class: &'static str,
    operation: &'static str,
    code: &'static str,
}

/// Labels of a read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByPass {
    class: &'static str,
    pass: &'static str,
}

/// Labels of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByRoute {
    method: &'static str,
    route: String,
}

/// Labels of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByAnswer {
    method: &'static str,
    route: String,
    status: u16,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// From 0.25 ms to about 4 min.
fn latencies() -> Histogram {
    Histogram::new(exponential_buckets(0.000_25, 4.0, 11))
}

/// The metrics of a node. Handed to whoever counts; calls are short and never fail.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    store_calls: Histograms<ByCall>,
    store_refusals: Family<ByRefusal, Counter>,
    written_bytes: Family<ByClass, Counter>,
    read_bytes: Family<ByPass, Counter>,
    seals: Family<ByClass, Counter>,
    sealed_bytes: Family<ByClass, Counter>,
    open_readers: Family<ByClass, Gauge>,
    request_seconds: Histograms<ByRoute>,
    answers: Family<ByAnswer, Counter>,
    answer_bytes: Family<ByRoute, Counter>,
    requests_in_flight: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All metrics at 0.
    #[must_use]
    pub fn new() -> Self {
        let metrics = Self {
            registry: Mutex::new(Registry::with_prefix("forebay")),
            store_calls: Family::new_with_constructor(latencies as fn() -> Histogram),
            store_refusals: Family::default(),
            written_bytes: Family::default(),
            read_bytes: Family::default(),
            seals: Family::default(),
            sealed_bytes: Family::default(),
            open_readers: Family::default(),
            request_seconds: Family::new_with_constructor(latencies as fn() -> Histogram),
            answers: Family::default(),
            answer_bytes: Family::default(),
            requests_in_flight: Gauge::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&self) {
        let mut registry = self.registry.lock();
        let r = &mut *registry;
        r.register_with_unit("store_call", "Time of a call of a store, until its answer", Unit::Seconds, self.store_calls.clone());
        r.register("store_refusals", "Calls of a store that were refused or failed, by code", self.store_refusals.clone());
        r.register_with_unit("written", "Bytes appended that were new", Unit::Bytes, self.written_bytes.clone());
        r.register_with_unit(
            "read",
            "Bytes handed to readers: for the first time, or again (what a restart did not recompute)",
            Unit::Bytes,
            self.read_bytes.clone(),
        );
        r.register("seals", "Attempts that became the sealed content of their partition", self.seals.clone());
        r.register_with_unit("sealed", "Bytes sealed", Unit::Bytes, self.sealed_bytes.clone());
        r.register("open_readers", "Reads under way, those that wait for bytes included", self.open_readers.clone());
        r.register_with_unit(
            "request",
            "Time from the head of a request to the head of its answer",
            Unit::Seconds,
            self.request_seconds.clone(),
        );
        r.register("answers", "Answers by route and status", self.answers.clone());
        r.register_with_unit("answer_body", "Bytes of answers' bodies", Unit::Bytes, self.answer_bytes.clone());
        r.register("requests_in_flight", "Requests under way", self.requests_in_flight.clone());
    }

    /// Adds values that are asked for when the page is made.
    pub fn register_sources(&self, sources: Vec<Source>) {
        self.registry.lock().register_collector(Box::new(Sources(sources)));
    }

    /// A call of a store has ended; `refusal` is the code of its error.
    pub fn store_call(&self, class: &'static str, operation: &'static str, refusal: Option<&'static str>, elapsed: Duration) {
        self.store_calls.get_or_create(&ByCall { class, operation }).observe(elapsed.as_secs_f64());
        if let Some(code) = refusal {
            self.store_refusals.get_or_create(&ByRefusal { class, operation, code }).inc();
        }
    }

    /// Bytes that were new were appended.
    pub fn written(&self, class: &'static str, bytes: u64) {
        self.written_bytes.get_or_create(&ByClass { class }).inc_by(bytes);
    }

    /// Bytes were handed to a reader: `fresh` for the first time, `again` more than once.
    pub fn read(&self, class: &'static str, fresh: u64, again: u64) {
        for (pass, bytes) in [("first", fresh), ("again", again)] {
            if bytes > 0 {
                self.read_bytes.get_or_create(&ByPass { class, pass }).inc_by(bytes);
            }
        }
    }

    /// An attempt was sealed.
    pub fn sealed(&self, class: &'static str, bytes: u64) {
        self.seals.get_or_create(&ByClass { class }).inc();
        self.sealed_bytes.get_or_create(&ByClass { class }).inc_by(bytes);
    }

    /// A read has begun or ended.
    pub fn reader(&self, class: &'static str, has_begun: bool) {
        let readers = self.open_readers.get_or_create(&ByClass { class });
        if has_begun {
            readers.inc()
        } else {
            readers.dec()
        };
    }

    /// A request has been answered. `route` is the template of the route, never the path.
    pub fn answered(&self, method: &str, route: Option<&str>, status: u16, until_head: Duration, sent_bytes: u64) {
        let method = known_method(method);
        let route = route.unwrap_or("none").to_owned();
        let by_route = ByRoute { method, route: route.clone() };
        self.request_seconds.get_or_create(&by_route).observe(until_head.as_secs_f64());
        self.answer_bytes.get_or_create(&by_route).inc_by(sent_bytes);
        self.answers.get_or_create(&ByAnswer { method, route, status }).inc();
    }

    /// Requests under way.
    pub fn in_flight(&self, n: usize) {
        self.requests_in_flight.set(i64::try_from(n).unwrap_or(i64::MAX));
    }

    /// The page, in the OpenMetrics text format.
    #[must_use]
    pub fn page(&self) -> String {
        let mut page = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut page, &self.registry.lock());
        page
    }
}

/// Clients may send any word as a method; labels may not take any word.
fn known_method(method: &str) -> &'static str {
    let known = ["GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH"];
    known.into_iter().find(|name| *name == method).unwrap_or("other")
}

/// A value that is asked for when the page is made.
pub struct Source {
    /// The name, without prefix.
    pub name: &'static str,
    /// What it says.
    pub help: &'static str,
    /// Whether it only ever rises.
    pub is_counter: bool,
    /// Labels and value of each series. Short, no I/O.
    pub read: Box<dyn Fn() -> Vec<(SourceLabels, u64)> + Send + Sync>,
}

/// Labels of one series: names and values, few and bounded.
pub type SourceLabels = Vec<(&'static str, String)>;

impl Source {
    /// A gauge without labels.
    pub fn gauge(name: &'static str, help: &'static str, read: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self { name, help, is_counter: false, read: Box::new(move || vec![(Vec::new(), read())]) }
    }

    /// A counter without labels.
    pub fn counter(name: &'static str, help: &'static str, read: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self { name, help, is_counter: true, read: Box::new(move || vec![(Vec::new(), read())]) }
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("name", &self.name).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Sources(Vec<Source>);

impl Collector for Sources {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        for source in &self.0 {
            let kind = if source.is_counter { MetricType::Counter } else { MetricType::Gauge };
            let mut described = encoder.encode_descriptor(source.name, source.help, None, kind)?;
            for (labels, value) in (source.read)() {
                if labels.is_empty() {
                    encode_value(source.is_counter, value, &mut described)?;
                } else {
                    encode_value(source.is_counter, value, &mut described.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

fn encode_value(is_counter: bool, value: u64, encoder: &mut MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
    if is_counter { encoder.encode_counter::<NoLabelSet, _, u64>(&value, None) } else { encoder.encode_gauge(&value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn used() -> Metrics {
        let metrics = Metrics::new();
        metrics.store_call("blocking", "append", Some("disk_full"), Duration::from_millis(3));
        metrics.written("blocking", 10);
        metrics.read("blocking", 7, 3);
        metrics.sealed("blocking", 10);
        metrics.reader("blocking", true);
        metrics.answered("GET", Some("/v1/jobs/{job}"), 404, Duration::from_millis(1), 5);
        metrics.in_flight(4);
        metrics.register_sources(vec![Source::gauge("budget_used_bytes", "Used", || 9), Source::counter("jobs_created", "Jobs", || 2)]);
        metrics
    }

    #[test]
    fn the_page_says_what_was_counted() {
        let page = used().page();
        for line in [
            "forebay_written_bytes_total{class=\"blocking\"} 10",
            "forebay_read_bytes_total{class=\"blocking\",pass=\"first\"} 7",
            "forebay_read_bytes_total{class=\"blocking\",pass=\"again\"} 3",
            "forebay_store_refusals_total{class=\"blocking\",operation=\"append\",code=\"disk_full\"} 1",
            "forebay_answers_total{method=\"GET\",route=\"/v1/jobs/{job}\",status=\"404\"} 1",
            "forebay_requests_in_flight 4",
            "forebay_budget_used_bytes 9",
            "forebay_jobs_created_total 2",
        ] {
            assert!(page.contains(line), "{line} is not in\n{page}");
        }
        assert!(page.ends_with("# EOF\n"));
    }

    #[test]
    fn no_name_is_there_twice() {
        let page = used().page();
        let names: Vec<&str> = page.lines().filter(|line| line.starts_with("# TYPE")).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
    }

    #[test]
    fn strange_methods_and_unknown_routes_share_a_series() {
        let metrics = Metrics::new();
        for method in ["BREW", "X1", "X2"] {
            metrics.answered(method, None, 404, Duration::ZERO, 0);
        }
        let page = metrics.page();
        assert!(page.contains("forebay_answers_total{method=\"other\",route=\"none\",status=\"404\"} 3"), "{page}");
    }
}

//! Metrics of requests and of the service.

use crate::http::{Answered, HttpObserver};
use crate::metrics::{Metrics, PAGE_MEDIA_TYPE, Source};
use crate::service::{Counters, PartitionService};
use std::sync::Arc;
use store_api::StoreClass;

/// Tells the metrics about requests.
pub(super) struct Observer {
    metrics: Arc<Metrics>,
}

impl Observer {
    pub(super) const fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics }
    }
}

impl HttpObserver for Observer {
    fn answered(&self, request: &Answered) {
        let Answered { method, route, status, until_head, sent_bytes, .. } = request;
        self.metrics.answered(method.as_str(), route.as_deref(), *status, *until_head, *sent_bytes);
    }

    fn n_in_flight(&self, n: usize) {
        self.metrics.in_flight(n);
    }

    fn page(&self) -> (String, &'static str) {
        (self.metrics.page(), PAGE_MEDIA_TYPE)
    }
}

type Read = fn(&Counters) -> u64;

/// Name, help and where it stands, of everything that the service counts and the layers do not.
const COUNTERS: &[(&str, &str, Read)] = &[
    ("jobs_created", "Jobs created", |c| c.jobs_created.value()),
    ("jobs_taken_over", "Jobs taken over by a new owner", |c| c.jobs_taken_over.value()),
    ("jobs_released", "Jobs released by their owners", |c| c.jobs_released.value()),
    ("jobs_expired", "Jobs whose lease ran out", |c| c.jobs_expired.value()),
    ("attempts_opened", "Attempts opened", |c| c.attempts_opened.value()),
    ("attempts_aborted", "Attempts that ended without a result", |c| c.attempts_aborted.value()),
    ("generations_raised", "Producers that were run again", |c| c.generations_raised.value()),
    ("appended_bytes", "Bytes appended that were new, as the service counts them", |c| c.appended_bytes.value()),
    ("repeated_frames", "Frames that were skipped as repeats", |c| c.repeated_frames.value()),
    ("seals_won", "Seals that won", |c| c.seals_won.value()),
    ("seals_lost", "Seals answered with another attempt's manifest", |c| c.seals_lost.value()),
    ("reads", "Reads started, items of batches included", |c| c.reads.value()),
    ("partitions_lost", "Partitions found lost", |c| c.partitions_lost.value()),
    ("over_quota", "Appends refused because of a quota", |c| c.over_quota.value()),
    ("overloaded", "Appends refused because memory was not free in time", |c| c.overloaded.value()),
    ("reaper_rounds", "Looks for leases that ran out", |c| c.reaper_rounds.value()),
    ("orphan_sweeps", "Looks for what dead jobs left in the object store", |c| c.orphan_sweeps.value()),
    ("orphan_sweeps_failed", "Such looks that failed", |c| c.orphan_sweeps_failed.value()),
    ("orphan_objects", "Objects of dead jobs that were taken away", |c| c.orphan_objects.value()),
    ("orphan_bytes", "Their bytes", |c| c.orphan_bytes.value()),
    ("orphan_uploads", "Unfinished uploads of former lives that were ended", |c| c.orphan_uploads.value()),
    ("releases_put_off", "Releases that a store refused and that were put off", |c| c.releases_put_off.value()),
];

/// What is asked of the service when the page is made. The sources do not keep the service: it holds
/// the stores, they hold the metrics, and these the sources.
pub(super) fn service_sources(service: &Arc<PartitionService>) -> Vec<Source> {
    let of_counter = |(name, help, read): &(&'static str, &'static str, Read)| {
        let (service, read) = (Arc::downgrade(service), *read);
        Source::counter(name, help, move || service.upgrade().map_or(0, |service| read(service.counters())))
    };
    let mut sources: Vec<Source> = COUNTERS.iter().map(of_counter).collect();
    let ask = |read: fn(&PartitionService) -> usize| {
        let service = Arc::downgrade(service);
        move || service.upgrade().map_or(0, |service| read(&service) as u64)
    };
    sources.push(Source::gauge("jobs", "Jobs that have not ended", ask(PartitionService::n_jobs)));
    sources.push(Source::gauge(
        "open_attempts",
        "Attempts that can be written, or that a writer still holds",
        ask(PartitionService::n_open_attempts),
    ));
    let sealed = Arc::downgrade(service);
    sources.push(Source {
        name: "sealed_attempts",
        help: "Sealed attempts that are in force",
        is_counter: false,
        read: Box::new(move || {
            let Some(service) = sealed.upgrade() else { return Vec::new() };
            let classes = [StoreClass::Pipelined, StoreClass::Blocking, StoreClass::Durable];
            classes.map(|class| (vec![("class", class.to_string())], service.n_sealed(class))).into()
        }),
    });
    sources.push(Source::gauge(
        "writes_running",
        "Frame streams, raw appends and seals under way",
        ask(PartitionService::n_writes_running),
    ));
    sources
}

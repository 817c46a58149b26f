//! One call: its path, its answer, and its refusal in the words of a store.

use super::HttpStore;
use super::names::job_name;
use reqwest::header::HeaderMap;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::Value;
use std::time::Duration;
use store_api::{AttemptId, AttemptKey, DatasetSpec, LossCause, Offset, Operation, PartitionKey, StoreError, StoreErrorKind};

/// What a refusal is about, for what its code alone does not say.
#[derive(Debug, Clone)]
pub(crate) struct About {
    pub(crate) operation: Operation,
    pub(crate) name: String,
    pub(crate) n_subpartitions: Option<u32>,
    pub(crate) subpartition: Option<u32>,
}

impl About {
    pub(crate) fn new(operation: Operation, name: &impl ToString) -> Self {
        Self { operation, name: name.to_string(), n_subpartitions: None, subpartition: None }
    }

    pub(crate) fn of(mut self, spec: Option<&DatasetSpec>, subpartition: u32) -> Self {
        self.n_subpartitions = spec.map(DatasetSpec::stored_subpartitions);
        self.subpartition = Some(subpartition);
        self
    }

    pub(crate) fn refuse(&self, kind: StoreErrorKind) -> StoreError {
        StoreError::new(kind, self.operation, &self.name)
    }

    /// The refusal that a problem document means.
    pub(crate) fn refusal(&self, problem: &Value) -> StoreError {
        self.refuse(self.kind(problem)).with_source(problem.to_string())
    }

    fn kind(&self, problem: &Value) -> StoreErrorKind {
        use StoreErrorKind as K;
        let number = |name: &str| problem[name].as_u64().unwrap_or_default();
        let wait = Duration::from_millis(problem["retry_after_ms"].as_u64().unwrap_or(10));
        match problem["code"].as_str().unwrap_or_default() {
            "unknown_partition" => match self.n_subpartitions {
                Some(count) if self.subpartition.is_none_or(|asked| asked >= count) => K::NoSuchSubpartition { count },
                _ => K::NotFound,
            },
            "unknown_job" | "unknown_dataset" | "unknown_attempt" | "not_written" => K::NotFound,
            "not_sealed" => K::NotSealed,
            "already_sealed" => K::AlreadySealed,
            "offset_mismatch" => K::OffsetMismatch { expected: Offset::new(number("expected_offset")) },
            "content_mismatch" => K::ContentMismatch { expected: Offset::new(number("expected_offset")) },
            "digest_mismatch" => K::DigestMismatch {
                subpartition: u32::try_from(number("subpartition")).expect("32 bits"),
                held: store_api::Digest::EMPTY,
                stated: store_api::Digest::EMPTY,
            },
            // The service ends the losers of an arbitration.
            "other_attempt_won" | "aborted" => K::Aborted,
            "released" | "expired" => K::Released,
            "lost" => K::Lost { cause: cause(problem) },
            "below_floor" => K::BelowFloor { floor: Offset::new(number("floor")) },
            "range_not_satisfiable" => K::BeyondEnd { end: Offset::new(number("end_offset")) },
            "fenced" => fenced(problem),
            "too_large" => K::TooLarge { requested: u64::MAX, limit: number("limit_bytes") },
            "class_unavailable" => K::Unsupported { reason: "the service cannot keep this class" },
            "overloaded" | "over_quota" => K::Overloaded { retry_after: wait },
            "unavailable" | "starting" | "request_timeout" | "body_cut" => K::Unavailable { retry_after: wait },
            "draining" => K::Closing,
            "disk_full" => K::DiskFull,
            "retention_exhausted" => K::RetentionExhausted,
            _ => K::Internal,
        }
    }
}

fn cause(problem: &Value) -> LossCause {
    let causes = [LossCause::Node, LossCause::Disk, LossCause::ObjectStore, LossCause::Corruption];
    causes.into_iter().find(|cause| problem["cause"] == cause.as_str()).expect("a loss has a cause")
}

fn fenced(problem: &Value) -> StoreErrorKind {
    match problem["attempt"].as_str().and_then(|text| text.parse::<AttemptId>().ok()) {
        Some(by) => StoreErrorKind::Fenced { by },
        // A newer frame stream: the suite has one writer of frames per attempt, so it was its own.
        None => StoreErrorKind::Unavailable { retry_after: Duration::from_millis(10) },
    }
}

impl HttpStore {
    pub(crate) fn job_path(job: &str) -> String {
        format!("/v1/jobs/{job}")
    }

    pub(crate) fn dataset_path(&self, partition: &PartitionKey) -> String {
        let job = job_name(&partition.dataset.job, partition.dataset.incarnation);
        let dataset = self.names.place(partition).map_or_else(|| partition.dataset.dataset.to_string(), |place| place.dataset);
        format!("/v1/jobs/{job}/datasets/{dataset}")
    }

    pub(crate) fn partition_path(&self, partition: &PartitionKey) -> String {
        format!("{}/partitions/{}", self.dataset_path(partition), partition.partition)
    }

    pub(crate) fn attempt_path(&self, key: &AttemptKey) -> String {
        format!("{}/attempts/{}", self.partition_path(&key.partition), key.attempt)
    }

    /// A request with the life of the node and, for what only an owner may do, its epoch.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url)).header("forebay-node-life", &self.life);
        let job = path.strip_prefix("/v1/jobs/").and_then(|rest| rest.split('/').next());
        match job.and_then(|job| self.names.epoch(job)) {
            Some(epoch) => request.header("forebay-job-epoch", epoch),
            None => request,
        }
    }

    /// Sends; a connection that breaks is an outage, a problem its refusal. A kept connection may end
    /// while the next call goes out on it: what can be sent again is, as any client does.
    pub(crate) async fn send(&self, about: &About, request: RequestBuilder) -> Result<Response, StoreError> {
        let away = |error| about.refuse(StoreErrorKind::Unavailable { retry_after: Duration::from_millis(10) }).with_source(error);
        let mut again = request.try_clone();
        let mut sent = request.send().await;
        for _ in 0..3 {
            if !sent.as_ref().is_err_and(|error| error.is_request() && !error.is_timeout()) {
                break;
            }
            let Some(request) = again.take() else { break };
            again = request.try_clone();
            sent = request.send().await;
        }
        let response = sent.map_err(away)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let problem: Value = response.json().await.unwrap_or_else(|_| serde_json::json!({ "status": status.as_u16() }));
        Err(about.refusal(&problem))
    }

    /// The document of a success.
    pub(crate) async fn document(&self, about: &About, request: RequestBuilder) -> Result<Value, StoreError> {
        let response = self.send(about, request).await?;
        let cut = |error| about.refuse(StoreErrorKind::Unavailable { retry_after: Duration::from_millis(10) }).with_source(error);
        response.json().await.map_err(cut)
    }
}

/// A header of an answer.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

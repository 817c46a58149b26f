//! Opening, appending, sealing, ending.

use super::HttpStore;
use super::calls::About;
use super::documents::{self, pairs, table_lists};
use super::names::{Place, job_name};
use crate::support::frames;
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use store_api::{
    AppendAck, AppendRequest, Arbitration, AttemptId, AttemptKey, AttemptState, AttemptTails, DatasetKey, DatasetKind, DatasetSpec, Offset,
    OpenRequest, Operation, PartitionKey, Piece, PrepareRequest, ReleaseReport, ReleaseScope, Retention, SealManifest, SealOutcome,
    StoreError, StoreErrorKind,
};

const BYTES: &str = "application/octet-stream";
const FRAMES: &str = "application/vnd.forebay.frames";

fn kind_and_retention(kind: DatasetKind) -> (&'static str, Option<&'static str>) {
    match kind {
        DatasetKind::Pipelined(Retention::UntilAcknowledged) => ("pipelined", Some("until_acknowledged")),
        DatasetKind::Pipelined(Retention::BestEffort) => ("pipelined", Some("best_effort")),
        DatasetKind::Pipelined(Retention::SinceCheckpoint) => ("pipelined", Some("since_checkpoint")),
        DatasetKind::Blocking => ("blocking", None),
        DatasetKind::Durable => ("durable", None),
    }
}

fn dataset_request(spec: &DatasetSpec) -> Value {
    let (kind, retention) = kind_and_retention(spec.kind);
    let arbitration = match spec.arbitration {
        Arbitration::Store => "store",
        Arbitration::Engine => "engine",
    };
    let mut request =
        json!({ "kind": kind, "subpartitions": spec.n_subpartitions, "broadcast": spec.is_broadcast, "arbitration": arbitration });
    if let Some(retention) = retention {
        request["retention"] = json!(retention);
    }
    if !spec.groups.is_empty() {
        request["groups"] = spec.groups.iter().map(ToString::to_string).collect();
    }
    request
}

impl HttpStore {
    /// The dataset of this specification, made if it is not there yet.
    async fn make_dataset(&self, about: &About, key: &DatasetKey, spec: &Arc<DatasetSpec>) -> Result<Place, StoreError> {
        let _one_at_a_time = self.names.making.lock().await;
        if let Some(place) = self.names.find(key, spec) {
            return Ok(place);
        }
        let job = job_name(&key.job, key.incarnation);
        let path = Self::job_path(&job);
        if self.names.epoch(&job).is_none() {
            let request = self.request(Method::PUT, &path).json(&json!({ "owner_nonce": "suite" }));
            let made = self.document(about, request).await?;
            self.names.note_job(job, made["epoch"].as_u64().expect("an epoch"));
        }
        let dataset = match self.names.datasets(key).len() {
            0 => key.dataset.to_string(),
            n => format!("{}.{n}", key.dataset),
        };
        self.document(about, self.request(Method::PUT, &format!("{path}/datasets/{dataset}")).json(&dataset_request(spec))).await?;
        let place = Place { dataset, spec: spec.clone() };
        self.names.note_dataset(key, place.clone());
        Ok(place)
    }

    pub(super) async fn open_attempt(&self, request: OpenRequest) -> Result<AttemptTails, StoreError> {
        let key = &request.attempt;
        let about = About::new(Operation::Open, key);
        if self.names.n_attempts(&key.partition) == 0 {
            let place = self.make_dataset(&about, &key.partition.dataset, &request.spec).await?;
            self.names.note_attempt(key, &place);
        }
        let starts = request.starts.iter().map(|(index, offset)| json!({ "subpartition": index.get(), "offset": offset.get() }));
        let AttemptId { generation, attempt } = key.attempt;
        let document = json!({ "generation": generation, "attempt": attempt, "starts": starts.collect::<Vec<_>>() });
        let path = format!("{}/attempts", self.partition_path(&key.partition));
        let opened = self.document(&about, self.request(Method::POST, &path).json(&document)).await;
        match opened {
            Ok(opened) => {
                if let Some(place) = self.names.place(&key.partition) {
                    self.names.note_attempt(key, &place);
                }
                Ok(documents::tails(&opened))
            }
            // The service refuses to open what is sealed; where it stands can still be asked.
            Err(error) if *error.kind() == StoreErrorKind::AlreadySealed => self.attempt_tails(Operation::Open, key).await,
            Err(error) => Err(error),
        }
    }

    pub(super) async fn attempt_tails(&self, operation: Operation, key: &AttemptKey) -> Result<AttemptTails, StoreError> {
        let about = About::new(operation, key);
        let found = self.document(&about, self.request(Method::GET, &self.attempt_path(key))).await?;
        Ok(documents::tails(&found))
    }

    async fn attempt_document(&self, key: &AttemptKey) -> Result<Value, StoreError> {
        self.document(&About::new(Operation::Append, key), self.request(Method::GET, &self.attempt_path(key))).await
    }

    /// Appends with one raw request per piece; several pieces that all lie at their tails go through
    /// one frame stream.
    pub(super) async fn append_pieces(&self, request: AppendRequest) -> Result<AppendAck, StoreError> {
        let AppendRequest { attempt: key, pieces, permit } = request;
        drop(permit);
        if let [piece] = pieces.as_slice()
            && piece.start.is_some()
        {
            return self.append_raw(&key, piece, piece.start).await;
        }
        // What lies at the tail must know the tail: the attempt has one such writer at a time.
        let lane = self.names.lane(&key);
        let _one_at_a_time = lane.lock().await;
        let document = self.attempt_document(&key).await?;
        let mut tails: BTreeMap<u32, u64> = pairs(&document["tails"]).into_iter().map(|(at, tail)| (at.get(), tail.get())).collect();
        let n_stored = self.names.place(&key.partition).map_or(0, |place| place.spec.stored_subpartitions());
        if pieces.len() > 1 && follow_on(&pieces, &tails, n_stored) {
            return self.append_frames(&key, &pieces, &document, tails).await;
        }
        let mut ack = AppendAck { end: Offset::ZERO, new_bytes: 0 };
        for piece in &pieces {
            let tail = tails.entry(piece.subpartition.get()).or_default();
            let done = self.append_raw(&key, piece, Some(piece.start.unwrap_or(Offset::new(*tail)))).await?;
            *tail = done.end.get().max(*tail);
            ack = AppendAck { end: done.end, new_bytes: ack.new_bytes + done.new_bytes };
        }
        Ok(ack)
    }

    async fn append_raw(&self, key: &AttemptKey, piece: &Piece, start: Option<Offset>) -> Result<AppendAck, StoreError> {
        let place = self.names.place(&key.partition);
        let about = About::new(Operation::Append, key).of(place.as_ref().map(|place| place.spec.as_ref()), piece.subpartition.get());
        let offset = start.unwrap_or_default();
        let path = format!("{}/subpartitions/{}?offset={offset}", self.attempt_path(key), piece.subpartition);
        let request = self.request(Method::PUT, &path).header("content-type", BYTES).body(piece.chunk.bytes().clone());
        let done = self.document(&about, request).await?;
        let number = |name: &str| done[name].as_u64().expect("a number");
        Ok(AppendAck { end: Offset::new(number("end_offset")), new_bytes: number("new_bytes") })
    }

    async fn append_frames(
        &self,
        key: &AttemptKey,
        pieces: &[Piece],
        document: &Value,
        mut tails: BTreeMap<u32, u64>,
    ) -> Result<AppendAck, StoreError> {
        let mut sequence = document["next_sequence"].as_u64().expect("a sequence");
        let mut stream = Vec::new();
        let mut end = 0;
        for piece in pieces {
            stream.extend(frames::data(piece.subpartition.get(), sequence, piece.chunk.bytes()));
            sequence += 1;
            let tail = tails.entry(piece.subpartition.get()).or_default();
            *tail += piece.chunk.length();
            end = *tail;
        }
        stream.extend(frames::end(sequence));
        let path = format!("{}/frames", self.attempt_path(key));
        let request = self.request(Method::POST, &path).header("content-type", FRAMES).body(stream);
        let done = self.document(&About::new(Operation::Append, key), request).await?;
        assert_eq!(done["next_sequence"], sequence, "all frames are held");
        Ok(AppendAck { end: Offset::new(end), new_bytes: done["new_bytes"].as_u64().expect("a number") })
    }

    /// The service has one step: it prepares, arbitrates and publishes.
    pub(super) async fn seal(&self, operation: Operation, request: &PrepareRequest) -> Result<SealOutcome, StoreError> {
        let key = &request.attempt;
        let document = request.expected.as_ref().map_or_else(|| json!({}), |table| json!({ "subpartitions": table_lists(table) }));
        let call = self.request(Method::POST, &format!("{}/seal", self.attempt_path(key))).json(&document);
        let sealed = self.document(&About::new(operation, key), call).await?;
        let manifest = Arc::new(self.manifest_of(&key.partition, &sealed["manifest"]));
        Ok(if sealed["result"] == "won" { SealOutcome::Won(manifest) } else { SealOutcome::Lost(manifest) })
    }

    pub(super) fn manifest_of(&self, partition: &PartitionKey, document: &Value) -> SealManifest {
        let n_stored = self.names.place(partition).expect("a sealed partition has a place").spec.stored_subpartitions();
        documents::manifest(partition, n_stored, document)
    }

    pub(super) async fn publish_sealed(&self, key: &AttemptKey) -> Result<SealOutcome, StoreError> {
        let standing = self.attempt_tails(Operation::Publish, key).await;
        match standing {
            Ok(standing) if standing.state == AttemptState::Open => {
                Err(About::new(Operation::Publish, key).refuse(StoreErrorKind::NotSealed))
            }
            // An attempt that lost is aborted, and a repeat of its seal names the winner.
            Err(error) if *error.kind() != StoreErrorKind::Aborted => Err(error),
            _ => self.seal(Operation::Publish, &PrepareRequest { attempt: key.clone(), expected: None }).await,
        }
    }

    pub(super) async fn abort_attempt(&self, key: &AttemptKey) -> Result<(), StoreError> {
        let ended = self.send(&About::new(Operation::Abort, key), self.request(Method::DELETE, &self.attempt_path(key))).await;
        match ended {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.kind(), StoreErrorKind::NotFound | StoreErrorKind::Released) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn release_scope(&self, scope: ReleaseScope) -> Result<ReleaseReport, StoreError> {
        match scope {
            ReleaseScope::Job { job, incarnation } => self.release_path(&Self::job_path(&job_name(&job, incarnation))).await,
            ReleaseScope::Dataset(key) => {
                let mut whole = ReleaseReport::default();
                for place in self.names.datasets(&key) {
                    let job = job_name(&key.job, key.incarnation);
                    let one = self.release_path(&format!("/v1/jobs/{job}/datasets/{}", place.dataset)).await?;
                    whole = ReleaseReport { n_attempts: whole.n_attempts + one.n_attempts, bytes: whole.bytes + one.bytes };
                }
                Ok(whole)
            }
            ReleaseScope::Partition(partition) => self.release_path(&self.partition_path(&partition)).await,
            ReleaseScope::Attempt(key) => {
                assert!(self.names.n_attempts(&key.partition) <= 1, "{key}: the service releases partitions, and this one has others");
                self.release_path(&self.partition_path(&key.partition)).await
            }
            // The service fences when the newer generation is opened.
            ReleaseScope::GenerationsBelow { partition, by } => {
                let spec = self.names.place(&partition).expect("what is fenced was opened").spec;
                self.open_attempt(OpenRequest { attempt: partition.attempt(by), spec, starts: Vec::new() }).await?;
                Ok(ReleaseReport::default())
            }
        }
    }

    async fn release_path(&self, path: &str) -> Result<ReleaseReport, StoreError> {
        let about = About::new(Operation::Release, &path);
        match self.document(&about, self.request(Method::DELETE, path)).await {
            Ok(report) => Ok(ReleaseReport {
                n_attempts: report["n_attempts"].as_u64().expect("a number"),
                bytes: report["bytes"].as_u64().expect("a number"),
            }),
            Err(error) if matches!(error.kind(), StoreErrorKind::NotFound | StoreErrorKind::Released) => Ok(ReleaseReport::default()),
            Err(error) => Err(error),
        }
    }
}

/// Whether each piece starts where the ones before it end, so that frames, which have no offsets,
/// mean the same.
fn follow_on(pieces: &[Piece], tails: &BTreeMap<u32, u64>, n_stored: u32) -> bool {
    let mut tails = tails.clone();
    pieces.iter().all(|piece| {
        let tail = tails.entry(piece.subpartition.get()).or_default();
        let is_next = piece.start.is_none_or(|start| start.get() == *tail) && piece.subpartition.get() < n_stored;
        *tail += piece.chunk.length();
        is_next
    })
}

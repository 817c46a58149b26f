//! A partition store that is a service behind HTTP: what the store suite asks is asked over the
//! wire, with plain requests, and the answers are put back into the words of the store contract.
//!
//! What HTTP does not carry is declared ([`store_testkit::Reach::REMOTE`]): budgets, the reports of
//! a store's start, its end, and the two steps of a seal, which the service makes one.

mod calls;
mod documents;
mod names;
mod reads;
mod writes;

pub(crate) use names::Names;

use async_trait::async_trait;
use calls::About;
use futures::stream::BoxStream;
use reqwest::Method;
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;
use store_api::{
    AcknowledgeRequest, AppendAck, AppendRequest, AttemptKey, AttemptStat, AttemptState, AttemptTails, Capabilities, CheckpointRequest,
    DatasetKind, DatasetSpec, FetchEvent, FloorReport, HeldBytes, JobId, JobIncarnation, Offset, OpenRequest, Operation, PartitionKey,
    PartitionStore, Permit, PrepareRequest, ReadRequest, ReadStream, RecoveryReport, ReleaseReport, ReleaseScope, Retention, SealManifest,
    SealOutcome, StoreError, StoreErrorKind, SubpartitionBounds, SubpartitionIndex,
};
use tokio::runtime::Runtime;

/// Longest wait for an answer to a question that is not asynchronous.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where servers run: the cases have runtimes of their own, which may block.
pub(crate) fn servers() -> &'static Runtime {
    static SERVERS: OnceLock<Runtime> = OnceLock::new();
    SERVERS.get_or_init(|| tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime"))
}

/// Connections of the questions that are not asynchronous; they live where the servers live.
fn side_client() -> &'static reqwest::Client {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    CLIENT.get_or_init(reqwest::Client::new)
}

/// The store. Cloning is cheap.
#[derive(Debug, Clone)]
pub(crate) struct HttpStore {
    http: reqwest::Client,
    url: String,
    life: String,
    names: Arc<Names>,
    capabilities: Arc<Capabilities>,
}

impl HttpStore {
    /// Asks the node at `url` what it is and what class it can keep of `kind`.
    pub(crate) async fn connect(url: String, kind: DatasetKind, names: Arc<Names>) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().expect("a client");
        let node: Value = http.get(format!("{url}/v1/node")).send().await.expect("an answer").json().await.expect("a document");
        let classes = node["classes"].as_array().expect("a list").iter().map(documents::class);
        let class = classes.into_iter().find(|class| class.class == kind.class()).expect("a class that is kept");
        let is_pipelined = matches!(kind, DatasetKind::Pipelined(_));
        let retentions = [Retention::UntilAcknowledged, Retention::BestEffort, Retention::SinceCheckpoint];
        let capabilities = Capabilities {
            class,
            reads_open: is_pipelined,
            retentions: if is_pipelined { retentions.to_vec() } else { Vec::new() },
            // The service cuts bodies of any length into chunks.
            max_chunk_bytes: u64::MAX >> 1,
            max_subpartition_bytes: u64::MAX >> 1,
        };
        let life = node["location"]["life"].as_str().expect("a life").to_owned();
        Self { http, url, life, names, capabilities: Arc::new(capabilities) }
    }

    /// State of a partition and one subpartition of it, as consumers ask for it.
    async fn availability(&self, key: &AttemptKey, subpartition: Option<SubpartitionIndex>) -> Result<Value, StoreError> {
        let path = self.dataset_path(&key.partition);
        let (job, dataset) = path.split_once("/datasets/").expect("a path of a dataset");
        let mut item = json!({ "dataset": dataset, "partition": key.partition.partition.get() });
        if let Some(subpartition) = subpartition {
            item["subpartition"] = json!(subpartition.get());
        }
        let call = self.request(Method::POST, &format!("{job}/availability")).json(&json!({ "items": [item] }));
        let answer = self.document(&About::new(Operation::Stat, key), call).await?;
        Ok(answer["partitions"][0].clone())
    }

    fn about_group(&self, operation: Operation, key: &AttemptKey, subpartitions: impl Iterator<Item = SubpartitionIndex>) -> About {
        let place = self.names.place(&key.partition);
        let highest = subpartitions.map(SubpartitionIndex::get).max().unwrap_or_default();
        let mut about = About::new(operation, key);
        about.n_subpartitions = place.map(|place| place.spec.n_subpartitions);
        about.subpartition = Some(highest);
        about
    }

    /// A manifest from the listing of the dataset, which names every sealed attempt.
    async fn listed(&self, key: &AttemptKey) -> Result<Value, StoreError> {
        let about = About::new(Operation::Stat, key);
        let mut after = String::new();
        loop {
            let path = format!("{}/partitions?lists=true&limit=1000{after}", self.dataset_path(&key.partition));
            let page = self.document(&about, self.request(Method::GET, &path)).await?;
            let sealed = page["partitions"].as_array().expect("a list");
            let is_it = |one: &&Value| one["partition"] == key.partition.partition.get() && one["attempt"] == key.attempt.to_string();
            if let Some(found) = sealed.iter().find(is_it) {
                return Ok(found.clone());
            }
            let Some(next) = page["next_after"].as_str() else { return Err(about.refuse(StoreErrorKind::NotFound)) };
            after = format!("&after={next}");
        }
    }
}

#[async_trait]
impl PartitionStore for HttpStore {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn held(&self, job: &JobId, incarnation: JobIncarnation) -> HeldBytes {
        let url = format!("{}{}", self.url, Self::held_path(job, incarnation));
        let (sender, receiver) = mpsc::channel();
        servers().spawn(async move {
            let answer = side_client().get(url).send().await.expect("an answer");
            let document = if answer.status().is_success() { answer.json().await.expect("a document") } else { Value::Null };
            let _ = sender.send(document);
        });
        let document = receiver.recv_timeout(PATIENCE).expect("an answer in time");
        let part = |name: &str| document["held"][name].as_u64().unwrap_or_default();
        HeldBytes { memory: part("memory"), disk: part("disk"), object: part("object") }
    }

    async fn open(&self, request: OpenRequest) -> Result<AttemptTails, StoreError> {
        self.open_attempt(request).await
    }

    async fn reserve(&self, _: &AttemptKey, _: u64, _: Duration) -> Result<Permit, StoreError> {
        Ok(Permit::none())
    }

    async fn append(&self, request: AppendRequest) -> Result<AppendAck, StoreError> {
        if request.pieces.is_empty() {
            return Ok(AppendAck { end: Offset::ZERO, new_bytes: 0 });
        }
        self.append_pieces(request).await
    }

    async fn tails(&self, attempt: &AttemptKey) -> Result<AttemptTails, StoreError> {
        self.attempt_tails(Operation::Tails, attempt).await
    }

    async fn bounds(&self, attempt: &AttemptKey, subpartition: SubpartitionIndex) -> Result<SubpartitionBounds, StoreError> {
        let standing = self.attempt_tails(Operation::Tails, attempt).await?;
        let entry = self.availability(attempt, Some(subpartition)).await?;
        let tail = standing.tails.iter().find(|(index, _)| *index == subpartition).map_or(Offset::ZERO, |(_, tail)| *tail);
        Ok(SubpartitionBounds { state: standing.state, floor: Offset::new(entry["floor"].as_u64().unwrap_or_default()), tail })
    }

    async fn prepare(&self, request: PrepareRequest) -> Result<Arc<SealManifest>, StoreError> {
        let (SealOutcome::Won(manifest) | SealOutcome::Lost(manifest)) = self.seal(Operation::Prepare, &request).await?;
        Ok(manifest)
    }

    async fn publish(&self, attempt: &AttemptKey) -> Result<SealOutcome, StoreError> {
        self.publish_sealed(attempt).await
    }

    async fn abort(&self, attempt: &AttemptKey) -> Result<(), StoreError> {
        self.abort_attempt(attempt).await
    }

    async fn read(&self, request: ReadRequest) -> Result<ReadStream, StoreError> {
        self.start_read(request).await
    }

    fn fetch(&self, items: Vec<ReadRequest>) -> BoxStream<'static, FetchEvent> {
        self.fetch_all(items)
    }

    async fn stat(&self, attempt: &AttemptKey) -> Result<AttemptStat, StoreError> {
        let standing = self.attempt_tails(Operation::Stat, attempt).await?;
        let entry = self.availability(attempt, None).await?;
        let total_bytes = entry["total_bytes"].as_u64().unwrap_or_default();
        let (mut floors, mut sent) = (Vec::new(), Vec::new());
        for (subpartition, _) in &standing.tails {
            let entry = self.availability(attempt, Some(*subpartition)).await?;
            let offset = |name: &str| entry[name].as_u64().filter(|offset| *offset > 0).map(Offset::new);
            floors.extend(offset("floor").map(|floor| (*subpartition, floor)));
            sent.extend(offset("sent").map(|sent| (*subpartition, sent)));
        }
        Ok(AttemptStat { state: standing.state, total_bytes, floors, sent })
    }

    async fn manifest(&self, attempt: &AttemptKey) -> Result<Arc<SealManifest>, StoreError> {
        let standing = self.attempt_tails(Operation::Stat, attempt).await?;
        if standing.state != AttemptState::Sealed {
            return Err(About::new(Operation::Stat, attempt).refuse(StoreErrorKind::NotSealed));
        }
        Ok(Arc::new(self.manifest_of(&attempt.partition, &self.listed(attempt).await?)))
    }

    async fn locate(
        &self,
        partition: &PartitionKey,
        _: &DatasetSpec,
        from_generation: u32,
    ) -> Result<Option<Arc<SealManifest>>, StoreError> {
        let about = About::new(Operation::Stat, partition);
        let path = format!("{}?lists=true", self.partition_path(partition));
        let found = self.document(&about, self.request(Method::GET, &path)).await?;
        let manifest = found.get("manifest").map(|manifest| self.manifest_of(partition, manifest));
        Ok(manifest.filter(|manifest| manifest.attempt.attempt.generation >= from_generation).map(Arc::new))
    }

    async fn acknowledge(&self, request: AcknowledgeRequest) -> Result<FloorReport, StoreError> {
        let AcknowledgeRequest { attempt: key, group, offsets } = request;
        let about = self.about_group(Operation::Acknowledge, &key, offsets.iter().map(|(index, _)| *index));
        if let Some(place) = self.names.place(&key.partition) {
            // A bad request, without a word that a program could tell them apart by.
            if !matches!(place.spec.kind, DatasetKind::Pipelined(_)) {
                assert!(self.acknowledge_refused(&key, &group).await, "floors of a dataset without floors were moved");
                return Err(about.refuse(StoreErrorKind::Unsupported { reason: "there are no floors" }));
            }
            if !place.spec.groups.contains(&group) {
                assert!(self.acknowledge_refused(&key, &group).await, "a group that was not declared was taken");
                return Err(about.refuse(StoreErrorKind::NotFound));
            }
        }
        let position = |(index, offset): &(SubpartitionIndex, Offset)| {
            json!({
                "partition": key.partition.partition.get(), "subpartition": index.get(), "offset": offset.get(),
                "attempt": key.attempt.to_string(),
            })
        };
        let positions: Vec<Value> = offsets.iter().map(position).collect();
        let path = format!("{}/acknowledge", self.dataset_path(&key.partition));
        let call = self.request(Method::POST, &path).json(&json!({ "group": group.to_string(), "positions": positions }));
        let report = self.document(&about, call).await?;
        let floors = report["floors"].as_array().expect("a list").iter().map(|floor| {
            let number = |name: &str| floor[name].as_u64().expect("a number");
            (SubpartitionIndex::new(u32::try_from(number("subpartition")).expect("32 bits")), Offset::new(number("floor")))
        });
        Ok(FloorReport { floors: floors.collect(), freed_bytes: report["freed_bytes"].as_u64().expect("a number") })
    }

    async fn complete_checkpoint(&self, request: CheckpointRequest) -> Result<FloorReport, StoreError> {
        let CheckpointRequest { attempt: key, checkpoint, need } = request;
        let about = self.about_group(Operation::Checkpoint, &key, need.iter().map(|(_, index, _)| *index));
        let path = self.dataset_path(&key.partition);
        let (job, dataset) = path.split_once("/datasets/").expect("a path of a dataset");
        let needs = need.iter().map(|(group, index, offset)| {
            json!({
                "dataset": dataset, "partition": key.partition.partition.get(), "subpartition": index.get(),
                "group": group.to_string(), "offset": offset.get(),
            })
        });
        let document = json!({ "need": needs.collect::<Vec<_>>() });
        let call = self.request(Method::POST, &format!("{job}/checkpoints/{checkpoint}/complete")).json(&document);
        let report = self.document(&about, call).await?;
        Ok(FloorReport { floors: Vec::new(), freed_bytes: report["freed_bytes"].as_u64().expect("a number") })
    }

    async fn release(&self, scope: ReleaseScope) -> Result<ReleaseReport, StoreError> {
        self.release_scope(scope).await
    }

    async fn recover(&self) -> Result<RecoveryReport, StoreError> {
        Ok(RecoveryReport::default())
    }

    async fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

impl HttpStore {
    /// Whether the service refuses an acknowledgement of this group as a bad request.
    async fn acknowledge_refused(&self, key: &AttemptKey, group: &store_api::ConsumerId) -> bool {
        let path = format!("{}/acknowledge", self.dataset_path(&key.partition));
        let call = self.request(Method::POST, &path).json(&json!({ "group": group.to_string(), "positions": [] }));
        let answer = call.send().await.expect("an answer");
        let document: Value = answer.json().await.expect("a document");
        document["code"] == "bad_request"
    }
}

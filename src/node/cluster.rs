//! The node's side of the cluster: its coordinator, in this process or another one.

use super::NodeError;
use crate::config::Config;
use crate::coordinator::{Coordinator, Held, HeldKey, HeldState, JitterSource, JobAuthority, JobKey, NodePlace, NodeReport};
use crate::http::Locator;
use crate::service::{Holding, HoldingState, Location, PartitionService, RandomSource, SealArbiter, ServiceErrorKind};
use async_trait::async_trait;
use bytes::Bytes;
use forebay_client::{Client, ClientError, RetryPolicy};
use forebay_protocol::recovery::LocateRequest;
use forebay_protocol::{members, partitions};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use store_api::{
    AttemptId, Catalog, CatalogEntry, DatasetId, DatasetKey, Expect, JobId, LossCause, NodeId, NodeLife, Operation, PartitionId,
    PartitionKey, SharedClock, StoreError, StoreErrorKind, TaskGroup, Version,
};

/// Time between two looks whether something has changed here.
const POLL: Duration = Duration::from_millis(100);
/// What a coordinator that does not answer is given before it is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// The way to the coordinator.
#[derive(Clone)]
pub(super) enum Link {
    /// In this process.
    Here(Arc<OnceLock<Arc<Coordinator>>>),
    /// In another one.
    There(Client),
}

/// A client of the coordinator in another process. It tries once: callers know how long to go on.
/// Errors: the token cannot be read, or the address is none.
pub(super) fn client(config: &Config) -> Result<Client, NodeError> {
    let mut client = Client::builder(config.coordinator.url.clone().unwrap_or_default()).retry(RetryPolicy::never());
    if let Some(token) = config.admin_token()? {
        client = client.token(token.reveal());
    }
    Ok(client.stall_timeout(config.coordinator.heartbeat_interval.get()).build()?)
}

/// Who asks a coordinator in another process.
pub(super) fn locator(client: Client, node: NodeId) -> Arc<dyn Locator> {
    Arc::new(RemoteLocator { client, node })
}

/// What has to be given back.
type Orders = (bool, Vec<(PartitionKey, AttemptId)>);

impl Link {
    async fn report(&self, report: NodeReport) -> Result<Orders, String> {
        match self {
            Self::Here(slot) => {
                let coordinator = slot.get().ok_or("the coordinator is not ready")?;
                let orders = coordinator.node_report(report).await.map_err(|error| error.to_string())?;
                let release = orders.release.into_iter().map(|(key, held)| (partition_key(&key), held.attempt));
                Ok((orders.begin_anew, release.collect()))
            }
            Self::There(client) => {
                let answer = client.node_heartbeat(&heartbeat(&report)).await.map_err(|error| error.to_string())?;
                let release = answer.release.iter().filter_map(|held| Some((parse_key(held)?, held.attempt.parse().ok()?)));
                Ok((answer.begin_anew, release.collect()))
            }
        }
    }
}

fn partition_key(key: &HeldKey) -> PartitionKey {
    let dataset = DatasetKey { job: key.job.job.clone(), incarnation: key.job.incarnation, dataset: key.dataset.clone() };
    dataset.partition(key.partition)
}

fn parse_key(held: &members::HeldPartition) -> Option<PartitionKey> {
    let dataset = DatasetKey {
        job: JobId::new(&held.job).ok()?,
        incarnation: held.incarnation.parse().ok()?,
        dataset: DatasetId::new(&held.dataset).ok()?,
    };
    Some(dataset.partition(PartitionId::new(held.partition)))
}

fn heartbeat(report: &NodeReport) -> members::NodeHeartbeat {
    let held = |(key, held): &(HeldKey, Held)| members::HeldPartition {
        job: key.job.job.to_string(),
        incarnation: key.job.incarnation.to_string(),
        dataset: key.dataset.to_string(),
        partition: key.partition.get(),
        attempt: held.attempt.to_string(),
        state: match held.state {
            HeldState::Open => members::HeldState::Open,
            HeldState::Sealed => members::HeldState::Sealed,
            HeldState::Lost => members::HeldState::Lost,
            HeldState::Corrupt => members::HeldState::Corrupt,
            HeldState::Absent => members::HeldState::Absent,
        },
        bytes: held.bytes,
        shared: held.is_shared,
    };
    let NodePlace { node, life, url } = &report.place;
    members::NodeHeartbeat {
        location: partitions::Location { node: node.to_string(), life: life.to_string(), url: url.clone() },
        sequence: report.sequence,
        held: report.held.iter().map(held).collect(),
    }
}

fn held_of(holding: Holding) -> (HeldKey, Held) {
    let of = holding.partition.dataset;
    let key =
        HeldKey { job: JobKey { job: of.job, incarnation: of.incarnation }, dataset: of.dataset, partition: holding.partition.partition };
    let state = match holding.state {
        HoldingState::Open => HeldState::Open,
        HoldingState::Sealed => HeldState::Sealed,
        HoldingState::Lost(LossCause::Corruption) => HeldState::Corrupt,
        HoldingState::Lost(_) => HeldState::Lost,
    };
    (key, Held { attempt: holding.attempt, state, bytes: holding.bytes, is_shared: holding.is_shared })
}

/// Tells the coordinator that the node is alive and what it holds.
pub(super) struct Announcer {
    pub(super) link: Link,
    pub(super) service: Arc<PartitionService>,
    pub(super) clock: SharedClock,
    pub(super) interval: Duration,
}

/// What the coordinator was told last; `None` when it has to be told everything.
#[derive(Default)]
struct Announced {
    held: BTreeMap<HeldKey, Held>,
    sequence: Option<u64>,
}

impl Announced {
    /// The next report: everything, or what has changed.
    fn report(&self, place: NodePlace, held: &BTreeMap<HeldKey, Held>) -> NodeReport {
        let Some(last) = self.sequence else {
            return NodeReport { place, sequence: 0, held: held.iter().map(|(key, held)| (key.clone(), *held)).collect() };
        };
        let new = held.iter().filter(|(key, held)| self.held.get(*key) != Some(*held)).map(|(key, held)| (key.clone(), *held));
        let gone = self.held.iter().filter(|(key, _)| !held.contains_key(*key));
        let gone = gone.map(|(key, held)| (key.clone(), Held { state: HeldState::Absent, ..*held }));
        NodeReport { place, sequence: last.saturating_add(1), held: new.chain(gone).collect() }
    }
}

impl Announcer {
    /// Runs until the task group is cancelled.
    pub(super) fn start(self, tasks: &TaskGroup) {
        tasks.spawn(async move { self.run().await });
    }

    async fn run(self) {
        let (mut announced, mut mark, mut due) = (Announced::default(), None, self.clock.monotonic());
        loop {
            let now_mark = Some(self.service.change_mark());
            if now_mark != mark || self.clock.monotonic() >= due {
                let held: BTreeMap<HeldKey, Held> = self.service.holdings().into_iter().map(held_of).collect();
                let Location { node, life, url } = self.service.node().location;
                let report = announced.report(NodePlace { node, life, url: url.to_string() }, &held);
                let sequence = report.sequence;
                match self.link.report(report).await {
                    Ok((begin_anew, orders)) => {
                        announced = Announced { held, sequence: (!begin_anew).then_some(sequence) };
                        mark = (!begin_anew).then_some(now_mark).flatten();
                        due = self.clock.monotonic().saturating_add(self.interval);
                        self.give_back(orders).await;
                    }
                    Err(error) => {
                        tracing::warn!(error, "the coordinator does not take this node's report");
                        (announced, mark) = (Announced::default(), None);
                        self.clock.sleep(RETRY).await;
                    }
                }
            }
            self.clock.sleep(POLL).await;
        }
    }

    async fn give_back(&self, orders: Vec<(PartitionKey, AttemptId)>) {
        for (partition, attempt) in orders {
            match self.service.give_back_attempt(&partition, attempt).await {
                Ok(()) => tracing::debug!(%partition, %attempt, "given back, as the coordinator ordered"),
                Err(error) if matches!(error.kind(), ServiceErrorKind::UnknownJob | ServiceErrorKind::UnknownDataset) => {}
                Err(error) => tracing::warn!(%partition, %attempt, %error, "an attempt could not be given back yet"),
            }
        }
    }
}

/// The service as the one who knows which jobs exist.
pub(super) struct ServiceAuthority(pub(super) Arc<PartitionService>);

#[async_trait]
impl JobAuthority for ServiceAuthority {
    async fn is_over(&self, job: &JobKey) -> bool {
        match self.0.job(&job.job).await {
            Ok(view) => view.incarnation != job.incarnation,
            Err(error) => {
                matches!(error.kind(), ServiceErrorKind::UnknownJob | ServiceErrorKind::Released | ServiceErrorKind::Expired)
            }
        }
    }
}

/// Jitter from the node's randomness.
pub(super) struct RandomJitter(pub(super) Arc<dyn RandomSource>);

impl JitterSource for RandomJitter {
    fn draw(&self) -> f64 {
        let steps = u32::try_from(self.0.next_u64() >> 32).unwrap_or_default();
        f64::from(steps) / f64::from(u32::MAX) * 2.0 - 1.0
    }
}

/// Seals decided by a coordinator in another process. Without an answer nothing is decided.
pub(super) struct RemoteArbiter {
    pub(super) client: Client,
    pub(super) tasks: TaskGroup,
    pub(super) node: NodeId,
    pub(super) life: NodeLife,
}

fn proposal(partition: &PartitionKey, attempt: AttemptId, node: &NodeId, life: NodeLife, withdraw: bool) -> members::SealProposal {
    members::SealProposal {
        job: partition.dataset.job.to_string(),
        incarnation: partition.dataset.incarnation.to_string(),
        dataset: partition.dataset.dataset.to_string(),
        partition: partition.partition.get(),
        attempt: attempt.to_string(),
        node: node.to_string(),
        life: life.to_string(),
        withdraw,
    }
}

fn unavailable(what: &str, error: ClientError) -> StoreError {
    let kind = StoreErrorKind::Unavailable { retry_after: RETRY };
    StoreError::new(kind, Operation::Catalog, what).with_source(error)
}

#[async_trait]
impl SealArbiter for RemoteArbiter {
    async fn decide(&self, partition: &PartitionKey, attempt: AttemptId, node: &NodeId, life: NodeLife) -> Result<AttemptId, StoreError> {
        let asked = self.client.decide_seal(&proposal(partition, attempt, node, life, false)).await;
        let decision = asked.map_err(|error| unavailable("seal decision", error))?;
        decision.attempt.parse().map_err(|_| StoreError::new(StoreErrorKind::Internal, Operation::Catalog, "seal decision"))
    }

    fn withdraw(&self, partition: &PartitionKey, attempt: AttemptId) {
        let (client, proposal) = (self.client.clone(), proposal(partition, attempt, &self.node, self.life, true));
        self.tasks.spawn(async move {
            if let Err(error) = client.decide_seal(&proposal).await {
                tracing::warn!(%error, "a seal decision could not be taken back; a higher generation has to follow");
            }
        });
    }

    /// The coordinator forgets with the job.
    fn forget(&self, _: &DatasetKey) {}
}

/// The catalog that nodes without an object store share, kept by the coordinator.
pub(super) struct RemoteCatalog(pub(super) Client);

impl RemoteCatalog {
    async fn call(&self, request: members::CatalogRequest) -> Result<members::CatalogAnswer, StoreError> {
        self.0.shared_catalog(&request).await.map_err(|error| unavailable(&request.key, error))
    }
}

fn asked(action: members::CatalogAction, key: &str) -> members::CatalogRequest {
    members::CatalogRequest { action, key: key.to_owned(), value: None, if_version: None, if_absent: false }
}

fn entry(document: members::CatalogEntryDocument) -> (String, CatalogEntry) {
    let value = Bytes::from(document.value.unwrap_or_default());
    (document.key, CatalogEntry { value, version: Version(document.version.into()) })
}

#[async_trait]
impl Catalog for RemoteCatalog {
    async fn get(&self, key: &str) -> Result<Option<CatalogEntry>, StoreError> {
        let answer = self.call(asked(members::CatalogAction::Get, key)).await?;
        Ok(answer.entries.into_iter().next().map(|document| entry(document).1))
    }

    async fn put(&self, key: &str, value: Bytes, expect: Expect) -> Result<Version, StoreError> {
        let refuse = |kind| StoreError::new(kind, Operation::Catalog, key);
        let text = String::from_utf8(value.to_vec()).map_err(|error| refuse(StoreErrorKind::Internal).with_source(error))?;
        let (if_version, if_absent) = match expect {
            Expect::Any => (None, false),
            Expect::Absent => (None, true),
            Expect::Version(version) => (Some(version.0.to_string()), false),
        };
        let request = members::CatalogRequest { value: Some(text), if_version, if_absent, ..asked(members::CatalogAction::Put, key) };
        let answer = self.call(request).await?;
        let written = answer.entries.into_iter().next().filter(|_| !answer.conflict);
        written.map(|document| entry(document).1.version).ok_or_else(|| refuse(StoreErrorKind::Conflict))
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.call(asked(members::CatalogAction::Delete, key)).await.map(drop)
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<(String, CatalogEntry)>, StoreError> {
        Ok(self.call(asked(members::CatalogAction::Scan, prefix)).await?.entries.into_iter().map(entry).collect())
    }
}

/// Asks the coordinator which node holds what this one does not.
struct RemoteLocator {
    client: Client,
    node: NodeId,
}

#[async_trait]
impl Locator for RemoteLocator {
    async fn locate(&self, job: &JobId, dataset: &DatasetId, partition: PartitionId) -> Option<Location> {
        let request = LocateRequest { dataset: dataset.to_string(), partitions: Some(vec![partition.get()]) };
        let asked = self.client.job(job.as_str()).ok()?.locate(&request).await;
        let answer = asked.inspect_err(|error| tracing::debug!(%error, "the coordinator does not say where it is")).ok()?;
        let found = answer.partitions.into_iter().next()?.location;
        let location = Location { node: NodeId::new(&found.node).ok()?, life: found.life.parse().ok()?, url: found.url.into() };
        (location.node != self.node).then_some(location)
    }
}

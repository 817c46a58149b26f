//! One run of the job: a kind, a fault, and what had to be read or made again.

use super::DemoError;
use super::cluster::{Node, NodePlan, Worker};
use super::worker::{Role, WorkerEvent, WorkerSpec};
use super::workload::{Sums, Table, merge};
use forebay_client::{Client, DatasetRequest, JobRequest, Kind as WireKind, RetentionName};
use futures::future::try_join_all;
use std::path::PathBuf;
use std::time::Duration;
use store_api::SharedClock;

/// Memory of a node, in bytes: enough for the pipelined kinds, whose consumers acknowledge at the
/// end only.
const NODE_MEMORY: u64 = 2 * 1024 * 1024 * 1024;
/// The job of a run.
const JOB: &str = "demo";
/// The worker that a fault hits.
const VICTIM: u32 = 0;
/// Rows after which a superseded producer stops, in hundredths of its share.
const HOLD_PERCENT: u64 = 50;
/// Rows of orders and lines per unit of scale and of parts; the TPC-H specification, clause 4.2.5:
/// 1,500,000 orders, about four times as many lines.
const ROWS_PER_SCALE: f64 = 7_500_000.0;

/// How the job keeps its results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Pipelined, `until_acknowledged`.
    Pipelined,
    /// Pipelined, `since_checkpoint`.
    SinceCheckpoint,
    /// Blocking.
    Blocking,
    /// Durable, on a local directory that stands in for an object store.
    Durable,
}

/// What happens in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// A consumer is killed -9 in the middle of its read and started again.
    ConsumerKilled,
    /// The node is killed -9 in the middle of all reads and started again.
    NodeRestarted,
    /// The node is killed -9 and its directory deleted; another node serves.
    NodeLost,
    /// A producer is superseded while it writes, goes on writing, and must be refused.
    ProducerSuperseded,
}

impl Kind {
    /// Every kind.
    pub(crate) const ALL: [Self; 4] = [Self::Pipelined, Self::SinceCheckpoint, Self::Blocking, Self::Durable];

    /// The name in the table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pipelined => "pipelined until_acknowledged",
            Self::SinceCheckpoint => "pipelined since_checkpoint",
            Self::Blocking => "blocking",
            Self::Durable => "durable (local directory)",
        }
    }

    /// The faults that its class is made for.
    pub(crate) const fn faults(self) -> &'static [Fault] {
        match self {
            Self::Pipelined | Self::SinceCheckpoint => &[Fault::ConsumerKilled, Fault::ProducerSuperseded],
            Self::Blocking => &[Fault::ConsumerKilled, Fault::NodeRestarted, Fault::ProducerSuperseded],
            Self::Durable => &[Fault::ConsumerKilled, Fault::NodeRestarted, Fault::NodeLost, Fault::ProducerSuperseded],
        }
    }

    const fn is_pipelined(self) -> bool {
        matches!(self, Self::Pipelined | Self::SinceCheckpoint)
    }

    fn request(self, n_producers: u32, n_consumers: u32) -> DatasetRequest {
        let (kind, retention) = match self {
            Self::Pipelined => (WireKind::Pipelined, Some(RetentionName::UntilAcknowledged)),
            Self::SinceCheckpoint => (WireKind::Pipelined, Some(RetentionName::SinceCheckpoint)),
            Self::Blocking => (WireKind::Blocking, None),
            Self::Durable => (WireKind::Durable, None),
        };
        let content = Some("arrow ipc streams, each behind a u32 length".to_owned());
        DatasetRequest {
            kind: Some(kind),
            retention,
            partitions: Some(u64::from(n_producers)),
            content,
            ..DatasetRequest::new(n_consumers)
        }
    }
}

impl Fault {
    /// The name in the table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "undisturbed",
            Self::ConsumerKilled => "consumer killed -9, restarted",
            Self::NodeRestarted => "node killed -9, restarted",
            Self::NodeLost => "node and its disk lost, another serves",
            Self::ProducerSuperseded => "producer superseded, zombie writes on",
        }
    }

    /// Whether the class promises that no producer runs again. A superseded producer is run again by
    /// its owner: that is the fault itself.
    pub(crate) const fn promises_no_recompute(self) -> bool {
        !matches!(self, Self::ProducerSuperseded)
    }
}

/// What a run took.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// From the first producer's start to the last consumer's end.
    pub(crate) total: Duration,
    /// When the fault happened, by the run's clock.
    pub(crate) fault_at: Option<Duration>,
    /// From the fault to the last consumer's end.
    pub(crate) after_fault: Option<Duration>,
    /// Bytes read by consumers, repeats included.
    pub(crate) read_bytes: u64,
    /// Bytes that consumers had read before and read again.
    pub(crate) reread_bytes: u64,
    /// Rows made by producers that ran again.
    pub(crate) recomputed_rows: u64,
    /// Whether the zombie was refused as fenced; `None` when there was none.
    pub(crate) zombie_refused: Option<bool>,
    /// The result.
    pub(crate) sums: Sums,
}

/// A run.
pub(crate) struct Run {
    pub(crate) kind: Kind,
    pub(crate) fault: Fault,
    pub(crate) scale: f64,
    pub(crate) n_producers: u32,
    pub(crate) n_consumers: u32,
    pub(crate) directory: PathBuf,
    pub(crate) clock: SharedClock,
}

/// Nodes and job of a run.
struct Site {
    node: Option<Node>,
    /// Serves after the first one is lost; held so that it lives as long as the run.
    _second: Option<Node>,
    urls: Vec<String>,
    job: String,
    epoch: u64,
}

impl Run {
    /// Runs it. `bytes_per_consumer`: what an undisturbed consumer reads, to stop one in the middle.
    pub(crate) async fn execute(&self, bytes_per_consumer: u64) -> Result<Measured, DemoError> {
        let mut site = self.set_up().await?;
        let started = self.clock.monotonic();
        let mut measured = if self.kind.is_pipelined() {
            let (produced, consumed) =
                futures::future::try_join(self.run_producers(&site), self.run_consumers(&site, bytes_per_consumer)).await?;
            join(produced, consumed)
        } else {
            let produced = self.run_producers(&site).await?;
            let consumed = match self.fault {
                Fault::NodeRestarted | Fault::NodeLost => self.run_through_node_fault(&mut site, bytes_per_consumer).await?,
                Fault::None | Fault::ConsumerKilled | Fault::ProducerSuperseded => self.run_consumers(&site, bytes_per_consumer).await?,
            };
            join(produced, consumed)
        };
        let ended = self.clock.monotonic();
        measured.total = ended.saturating_sub(started);
        measured.after_fault = measured.fault_at.map(|at| ended.saturating_sub(at));
        Ok(measured)
    }

    async fn set_up(&self) -> Result<Site, DemoError> {
        let plan = |name: &str| NodePlan {
            data_dir: self.directory.join(name),
            object_dir: self.directory.join("objects"),
            memory_bytes: NODE_MEMORY,
        };
        let node = Node::start(plan("node-a"), &self.clock).await?;
        let second = if self.fault == Fault::NodeLost { Some(Node::start(plan("node-b"), &self.clock).await?) } else { None };
        let urls = std::iter::once(&node).chain(&second).map(|node| node.url().to_owned()).collect();
        let job = Client::builder(node.url()).build()?.put_job(JOB, JobRequest::default()).await?;
        for table in Table::ALL {
            job.put_dataset(table.dataset(), self.kind.request(self.n_producers, self.n_consumers)).await?;
        }
        let epoch = job.epoch().ok_or_else(|| DemoError::new("the job has no epoch"))?.get();
        Ok(Site { node: Some(node), _second: second, urls, job: JOB.to_owned(), epoch })
    }

    fn spec(&self, site: &Site, role: Role, index: u32) -> WorkerSpec {
        WorkerSpec {
            urls: site.urls.clone(),
            job: site.job.clone(),
            epoch: site.epoch,
            role,
            is_pipelined: self.kind.is_pipelined(),
            scale: self.scale,
            n_producers: self.n_producers,
            n_consumers: self.n_consumers,
            index,
            generation: 0,
            hold_at: None,
            go_file: self.directory.join("go"),
        }
    }

    async fn run_producers(&self, site: &Site) -> Result<Measured, DemoError> {
        let is_victim = |index| self.fault == Fault::ProducerSuperseded && index == VICTIM;
        let run = |index| async move {
            if is_victim(index) {
                return self.supersede(site, index).await;
            }
            let mut worker = Worker::start(&self.spec(site, Role::Produce, index))?;
            worker.wait_for(&self.clock, |event| matches!(event, WorkerEvent::Produced { .. })).await?;
            Ok(Measured::default())
        };
        let measured = try_join_all((0..self.n_producers).map(run)).await?;
        Ok(measured.into_iter().fold(Measured::default(), join))
    }

    /// Stops a producer in the middle, runs it again in a higher generation, and lets the first one
    /// go on.
    async fn supersede(&self, site: &Site, index: u32) -> Result<Measured, DemoError> {
        let spec = self.spec(site, Role::Produce, index);
        let mut zombie = Worker::start(&WorkerSpec { hold_at: Some(self.half_of_a_producer()), ..spec.clone() })?;
        zombie.wait_for(&self.clock, |event| matches!(event, WorkerEvent::Holding { .. })).await?;
        let fault_at = self.clock.monotonic();
        let mut successor = Worker::start(&WorkerSpec { generation: 1, ..spec.clone() })?;
        let produced = successor.wait_for(&self.clock, |event| matches!(event, WorkerEvent::Produced { .. })).await?;
        tokio::fs::write(&spec.go_file, b"go").await?;
        let is_end = |event: &WorkerEvent| matches!(event, WorkerEvent::Refused { .. } | WorkerEvent::Produced { .. });
        let refused = match zombie.wait_for(&self.clock, is_end).await? {
            WorkerEvent::Refused { code, .. } => code == "fenced",
            _ => false,
        };
        let recomputed_rows = if let WorkerEvent::Produced { rows, .. } = produced { rows } else { 0 };
        Ok(Measured { zombie_refused: Some(refused), recomputed_rows, fault_at: Some(fault_at), ..Measured::default() })
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a positive number of rows far below 2^53, checked with the arguments"
    )]
    fn half_of_a_producer(&self) -> u64 {
        let rows = ROWS_PER_SCALE * self.scale / f64::from(self.n_producers);
        (rows as u64).saturating_mul(HOLD_PERCENT) / 100
    }

    async fn run_consumers(&self, site: &Site, bytes_per_consumer: u64) -> Result<Measured, DemoError> {
        let is_victim = |index| self.fault == Fault::ConsumerKilled && index == VICTIM;
        let run = |index| async move {
            let spec = self.spec(site, Role::Consume, index);
            let mut measured = Measured::default();
            if is_victim(index) {
                let mut victim = Worker::start(&WorkerSpec { hold_at: Some(bytes_per_consumer / 2), ..spec.clone() })?;
                let held = victim.wait_for(&self.clock, |event| matches!(event, WorkerEvent::Holding { .. })).await?;
                measured.fault_at = Some(self.clock.monotonic());
                victim.kill().await?;
                if let WorkerEvent::Holding { bytes, .. } = held {
                    measured.read_bytes += bytes;
                    measured.reread_bytes += bytes;
                }
            }
            let consumed = self.finish_consumer(Worker::start(&spec)?).await?;
            Ok::<_, DemoError>(join(measured, consumed))
        };
        let measured = try_join_all((0..self.n_consumers).map(run)).await?;
        Ok(measured.into_iter().fold(Measured::default(), join))
    }

    async fn finish_consumer(&self, mut worker: Worker) -> Result<Measured, DemoError> {
        match worker.wait_for(&self.clock, |event| matches!(event, WorkerEvent::Consumed { .. })).await? {
            WorkerEvent::Consumed { bytes, repeated_bytes, sums, .. } => {
                Ok(Measured { read_bytes: bytes, reread_bytes: repeated_bytes, sums, ..Measured::default() })
            }
            _ => Err(DemoError::new("a consumer ended without a result")),
        }
    }

    /// Stops every consumer in the middle of its read, kills the node, and lets them go on while it
    /// comes back or another one takes over.
    async fn run_through_node_fault(&self, site: &mut Site, bytes_per_consumer: u64) -> Result<Measured, DemoError> {
        let spec = |index| WorkerSpec { hold_at: Some(bytes_per_consumer / 2), ..self.spec(site, Role::Consume, index) };
        let mut workers = (0..self.n_consumers).map(|index| Worker::start(&spec(index))).collect::<Result<Vec<_>, _>>()?;
        let clock = &self.clock;
        let holds = workers.iter_mut().map(|worker| worker.wait_for(clock, |event| matches!(event, WorkerEvent::Holding { .. })));
        try_join_all(holds).await?;
        let mut node = site.node.take().ok_or_else(|| DemoError::new("there is no node to kill"))?;
        let fault_at = clock.monotonic();
        node.kill().await?;
        if self.fault == Fault::NodeLost {
            node.delete_data().await?;
        }
        tokio::fs::write(self.directory.join("go"), b"go").await?;
        if self.fault == Fault::NodeRestarted {
            site.node = Some(node.restart(clock).await?);
        }
        let finished = try_join_all(workers.into_iter().map(|worker| self.finish_consumer(worker))).await?;
        Ok(finished.into_iter().fold(Measured { fault_at: Some(fault_at), ..Measured::default() }, join))
    }
}

fn join(mut one: Measured, other: Measured) -> Measured {
    one.fault_at = one.fault_at.or(other.fault_at);
    one.read_bytes += other.read_bytes;
    one.reread_bytes += other.reread_bytes;
    one.recomputed_rows += other.recomputed_rows;
    one.zombie_refused = one.zombie_refused.or(other.zombie_refused);
    merge(&mut one.sums, other.sums);
    one
}

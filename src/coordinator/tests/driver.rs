//! A driver, workers and nodes, as short as tests need them; and a catalog that can be made to fail.

use super::*;
use std::collections::BTreeMap;

/// A catalog in memory. Fails, or crashes (carries out, and answers nothing), when told to.
#[derive(Default)]
pub(super) struct MemoryCatalog {
    entries: Mutex<BTreeMap<String, (Bytes, u64)>>,
    /// Writes until the next fault, and whether the faulty write happens all the same.
    pub(super) fault: Mutex<Option<(u64, bool)>>,
    pub(super) n_writes: Mutex<u64>,
}

impl MemoryCatalog {
    fn write(
        &self,
        change: impl FnOnce(&mut BTreeMap<String, (Bytes, u64)>, u64) -> Result<Version, StoreError>,
    ) -> Result<Version, StoreError> {
        let mut n_writes = self.n_writes.lock();
        *n_writes += 1;
        let down = || StoreError::new(StoreErrorKind::Unavailable { retry_after: Duration::from_secs(1) }, Operation::Catalog, "test");
        let mut fault = self.fault.lock();
        match fault.as_mut() {
            Some((0, happens)) => {
                if std::mem::take(happens) {
                    change(&mut self.entries.lock(), *n_writes)?;
                }
                Err(down())
            }
            Some((left, _)) => {
                *left -= 1;
                change(&mut self.entries.lock(), *n_writes)
            }
            None => change(&mut self.entries.lock(), *n_writes),
        }
    }
}

#[async_trait]
impl Catalog for MemoryCatalog {
    async fn get(&self, key: &str) -> Result<Option<CatalogEntry>, StoreError> {
        let entries = self.entries.lock();
        Ok(entries.get(key).map(|(value, version)| CatalogEntry { value: value.clone(), version: Version(version.to_string().into()) }))
    }

    async fn put(&self, key: &str, value: Bytes, expect: Expect) -> Result<Version, StoreError> {
        self.write(|entries, version| {
            let held = entries.get(key);
            let fits = match &expect {
                Expect::Any => true,
                Expect::Absent => held.is_none_or(|(held, _)| *held == value),
                Expect::Version(wanted) => held.is_some_and(|(_, version)| version.to_string() == *wanted.0),
            };
            if !fits {
                return Err(StoreError::new(StoreErrorKind::Conflict, Operation::Catalog, key));
            }
            entries.insert(key.to_owned(), (value, version));
            Ok(Version(version.to_string().into()))
        })
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let gone = |entries: &mut BTreeMap<String, (Bytes, u64)>, version: u64| {
            entries.remove(key);
            Ok(Version(version.to_string().into()))
        };
        self.write(gone).map(drop)
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<(String, CatalogEntry)>, StoreError> {
        let entries = self.entries.lock();
        let found = entries.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        let entry = |(key, (value, version)): (&String, &(Bytes, u64))| {
            (key.clone(), CatalogEntry { value: value.clone(), version: Version(version.to_string().into()) })
        };
        Ok(found.map(entry).collect())
    }
}

struct Everyone;

#[async_trait]
impl JobAuthority for Everyone {
    async fn is_over(&self, _: &JobKey) -> bool {
        false
    }
}

struct NoJitter;

impl JitterSource for NoJitter {
    fn draw(&self) -> f64 {
        0.0
    }
}

/// A task, how it stands, and its attempts that count.
type StandingOfTask = (TaskAddress, TaskStanding, Vec<AttemptId>);

/// A coordinator and somebody who speaks to it.
pub(super) struct Driver {
    pub(super) catalog: Arc<MemoryCatalog>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) tasks: TaskGroup,
    pub(super) coordinator: Arc<Coordinator>,
    pub(super) job: JobKey,
    sequences: Mutex<BTreeMap<(u64, u64), u64>>,
}

pub(super) fn attempt(text: &str) -> AttemptId {
    text.parse().unwrap()
}

/// map → join over `kind`, all to all; join → sink, blocking, point by point; two tasks each.
pub(super) fn three_stages(kind: DatasetProperties) -> GraphSpec {
    let vertex = |name: &str| VertexSpec { name: name.to_owned(), parallelism: 2, is_deterministic: false };
    let dataset = |id: &str, producer: &str, properties, reader: &str, pattern| DatasetSpec {
        id: DatasetId::new(id).unwrap(),
        producer: producer.to_owned(),
        properties,
        groups: vec![GroupSpec { id: ConsumerId::new("default").unwrap(), vertex: reader.to_owned(), pattern }],
    };
    GraphSpec {
        vertices: ["map", "join", "sink"].into_iter().map(vertex).collect(),
        datasets: vec![
            dataset("shuffle", "map", kind, "join", Pattern::AllToAll),
            dataset("joined", "join", DatasetProperties::blocking(), "sink", Pattern::Pointwise),
        ],
        gangs: Vec::new(),
    }
}

pub(super) fn declaration(spec: GraphSpec, attempts: &str) -> DeclareGraph {
    let restart = [
        ("restart-strategy.type", "fixed-delay"),
        ("restart-strategy.fixed-delay.attempts", attempts),
        ("restart-strategy.fixed-delay.delay", "0 ms"),
    ];
    DeclareGraph {
        spec,
        strategy: Strategy::Region,
        suspect_grace: None,
        determinism: Determinism::Verified,
        restart: restart.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        epoch: JobEpoch::new(1),
    }
}

impl Driver {
    /// A coordinator that knows nothing.
    pub(super) async fn bare() -> Self {
        Self::on(Arc::default(), Arc::new(ManualClock::new(0))).await
    }

    pub(super) async fn on(catalog: Arc<MemoryCatalog>, clock: Arc<ManualClock>) -> Self {
        let tasks = TaskGroup::new();
        let parts = CoordinatorParts {
            catalog: catalog.clone(),
            authority: Arc::new(Everyone),
            clock: clock.clone(),
            tasks: tasks.clone(),
            jitter: Arc::new(NoJitter),
        };
        let coordinator = Coordinator::start(CoordinatorConfig::default(), parts).await.unwrap();
        let job = JobKey { job: JobId::new("q1").unwrap(), incarnation: JobIncarnation::new(7) };
        Self { catalog, clock, tasks, coordinator, job, sequences: Mutex::default() }
    }

    /// Three stages whose first edge is blocking.
    pub(super) async fn new() -> Self {
        let driver = Self::bare().await;
        driver.declare(three_stages(DatasetProperties::blocking()), "5").await;
        driver
    }

    pub(super) async fn declare(&self, spec: GraphSpec, attempts: &str) {
        self.coordinator.declare(self.job.clone(), declaration(spec, attempts)).await.unwrap();
    }

    /// kill -9 and a new start on the same journal.
    pub(super) async fn restart(self) -> Self {
        self.tasks.cancel();
        *self.catalog.fault.lock() = None;
        drop(self.coordinator);
        Self::on(self.catalog, self.clock).await
    }

    pub(super) async fn tell(&self, vertex: &str, index: u32, number: &str, news: AttemptNews) -> Told {
        self.try_tell(vertex, index, number, news).await.unwrap()
    }

    pub(super) async fn try_tell(&self, vertex: &str, index: u32, number: &str, news: AttemptNews) -> CoordinatorResult<Told> {
        let task = TaskAddress { vertex: vertex.to_owned(), index };
        let report = AttemptReport { task, attempt: attempt(number), news };
        self.coordinator.report(&self.job, None, None, vec![report]).await
    }

    pub(super) async fn run(&self, vertex: &str, index: u32, number: &str, worker: Option<&str>) -> ReportOutcome {
        let worker = worker.map(|worker| WorkerId::new(worker).unwrap());
        self.tell(vertex, index, number, AttemptNews::Running { worker }).await.outcomes[0]
    }

    pub(super) async fn finish(&self, vertex: &str, index: u32, number: &str) -> ReportOutcome {
        self.tell(vertex, index, number, AttemptNews::Finished { is_committed: false }).await.outcomes[0]
    }

    pub(super) async fn fail(&self, vertex: &str, index: u32, number: &str) -> Told {
        self.tell(vertex, index, number, AttemptNews::Failed { is_unrecoverable: false, input: None }).await
    }

    pub(super) async fn stopped(&self, vertex: &str, index: u32, number: &str) -> ReportOutcome {
        self.tell(vertex, index, number, AttemptNews::Cancelled).await.outcomes[0]
    }

    pub(super) fn held(&self, dataset: &str, partition: u64, number: &str, state: HeldState) -> (HeldKey, Held) {
        let key = HeldKey { job: self.job.clone(), dataset: DatasetId::new(dataset).unwrap(), partition: PartitionId::new(partition) };
        (key, Held { attempt: attempt(number), state, bytes: 100, is_shared: false })
    }

    /// A node says everything it holds.
    pub(super) async fn node_holds(&self, node: u64, life: u64, held: Vec<(HeldKey, Held)>) -> NodeOrders {
        self.sequences.lock().insert((node, life), 0);
        self.node_says(node, life, 0, held).await.unwrap()
    }

    /// A node says what has changed.
    pub(super) async fn node_adds(&self, node: u64, life: u64, held: Vec<(HeldKey, Held)>) -> NodeOrders {
        let sequence = {
            let mut sequences = self.sequences.lock();
            let last = sequences.get_mut(&(node, life)).unwrap();
            *last += 1;
            *last
        };
        self.node_says(node, life, sequence, held).await.unwrap()
    }

    pub(super) async fn node_says(&self, node: u64, life: u64, sequence: u64, held: Vec<(HeldKey, Held)>) -> CoordinatorResult<NodeOrders> {
        let place =
            NodePlace { node: NodeId::new(&format!("n{node}")).unwrap(), life: NodeLife::new(life), url: format!("http://n{node}") };
        self.coordinator.node_report(NodeReport { place, sequence, held }).await
    }

    /// Both maps have run on worker w1 and finished on node 1.
    pub(super) async fn with_maps_done(self) -> Self {
        self.coordinator.register_worker(&self.job, &WorkerId::new("w1").unwrap(), NodeLife::new(1)).await.unwrap();
        for index in 0..2 {
            self.run("map", index, "0.0", Some("w1")).await;
            self.finish("map", index, "0.0").await;
        }
        let sealed = (0..2).map(|partition| self.held("shuffle", partition, "0.0", HeldState::Sealed)).collect();
        self.node_holds(1, 1, sealed).await;
        self
    }

    /// The newest plan as text: verdict, tasks restarted with their attempts.
    pub(super) fn plan(&self) -> (PlanVerdict, Vec<String>) {
        let plans = self.coordinator.plans(&self.job).unwrap();
        let Some(last) = plans.last() else { return (PlanVerdict::Nothing, Vec::new()) };
        let named = |(task, number): &(u32, (u32, u32))| {
            format!("{} {}.{}", last.graph.label(crate::recovery::graph::TaskIndex::new(*task)), number.0, number.1)
        };
        (last.record.verdict.clone(), last.record.restart.iter().map(named).collect())
    }

    pub(super) fn stage(&self, number: u64) -> PlanStage {
        self.coordinator.plan(&self.job, number).unwrap().stage
    }

    pub(super) fn n_plans(&self) -> usize {
        self.coordinator.plans(&self.job).unwrap().len()
    }

    /// Lets time pass and the coordinator look.
    pub(super) async fn wait(&self, time: Duration) {
        self.clock.advance(time);
        self.coordinator.look_around().await;
    }

    /// What the job is, apart from what is said again anyway.
    pub(super) fn state(&self) -> (u64, Vec<StandingOfTask>, Vec<PlanRecord>) {
        let (version, tasks) = self.coordinator.tasks(&self.job).unwrap();
        let tasks = tasks.into_iter().map(|view| (view.task, view.standing, view.attempts)).collect();
        let plans = self.coordinator.plans(&self.job).unwrap().into_iter().map(|plan| (*plan.record).clone()).collect();
        (version, tasks, plans)
    }
}

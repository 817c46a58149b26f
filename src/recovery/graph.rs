//! The shape of a job: vertices, the datasets they write, the consumer groups that read them.
//!
//! Everything is compact: an edge between N producers and M consumers is one [`ConsumerGroup`],
//! and who is connected to whom is computed from its [`Pattern`]. A graph of N×M connections
//! takes O(N+M) memory.
//!
//! A [`GraphSpec`] is what somebody says a job looks like; [`JobGraph::parse`] turns it into a
//! graph that the rest of the planner can believe.

use super::graph_spec::{DatasetProperties, DatasetSpec, GangScope, GangSpec, GraphError, GraphSpec, Keeps, Pattern, Readable, VertexSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use store_api::ids::{ConsumerId, DatasetId, MAX_ID_LENGTH};

/// Most tasks of a job.
pub const MAX_TASKS: u32 = 1 << 22;

macro_rules! index_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);

        impl $name {
            /// Wraps a position.
            #[must_use]
            pub const fn new(position: u32) -> Self {
                Self(position)
            }

            /// The position as a number.
            #[must_use]
            pub const fn number(self) -> u32 {
                self.0
            }

            pub(super) const fn at(self) -> usize {
                self.0 as usize
            }
        }
    };
}

index_type! {
    /// A vertex, by its place in the graph.
    VertexIndex
}
index_type! {
    /// A task (one parallel instance of a vertex), counted over the whole graph.
    TaskIndex
}
index_type! {
    /// A dataset, by its place in the graph.
    DatasetIndex
}
index_type! {
    /// A consumer group of a dataset, counted over the whole graph.
    GroupIndex
}

/// The output of one producer task in one dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionRef {
    /// The dataset.
    pub dataset: DatasetIndex,
    /// Index of the producer task within its vertex.
    pub producer: u32,
}

/// A vertex of a graph that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vertex {
    /// Its name.
    pub name: String,
    /// Whether its tasks repeat themselves byte for byte.
    pub is_deterministic: bool,
    pub(super) first_task: u32,
    pub(super) parallelism: u32,
    pub(super) outputs: Vec<DatasetIndex>,
    pub(super) inputs: Vec<GroupIndex>,
    pub(super) gangs: Vec<usize>,
}

/// A dataset of a graph that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// Its id.
    pub id: DatasetId,
    /// Who writes it.
    pub producer: VertexIndex,
    /// Its kind.
    pub properties: DatasetProperties,
    pub(super) groups: Vec<GroupIndex>,
}

/// A group of readers of a graph that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerGroup {
    /// Its name.
    pub id: ConsumerId,
    /// What it reads.
    pub dataset: DatasetIndex,
    /// Who reads.
    pub consumer: VertexIndex,
    /// Who reads whom.
    pub pattern: Pattern,
    /// Which of the dataset's groups this is.
    pub(super) slot: usize,
    pub(super) n_producers: u32,
    pub(super) n_consumers: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gang {
    pub(super) vertices: Vec<VertexIndex>,
    pub(super) scope: GangScope,
}

/// A job graph that was checked: every name leads somewhere, every number fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobGraph {
    vertices: Vec<Vertex>,
    datasets: Vec<Dataset>,
    groups: Vec<ConsumerGroup>,
    gangs: Vec<Gang>,
    vertex_of_task: Vec<VertexIndex>,
}

impl JobGraph {
    /// Checks a declared graph. Errors: [`GraphError`], the first fault found.
    pub fn parse(spec: GraphSpec) -> Result<Self, GraphError> {
        let mut graph =
            Self { vertices: Vec::new(), datasets: Vec::new(), groups: Vec::new(), gangs: Vec::new(), vertex_of_task: Vec::new() };
        let mut names = BTreeMap::new();
        for vertex in spec.vertices {
            graph.add_vertex(vertex, &mut names)?;
        }
        let mut ids = BTreeSet::new();
        for dataset in spec.datasets {
            if !ids.insert(dataset.id.clone()) {
                return Err(GraphError::DatasetTwice(dataset.id));
            }
            graph.add_dataset(dataset, &names)?;
        }
        for gang in spec.gangs {
            graph.add_gang(gang, &names)?;
        }
        graph.refuse_seals_in_circles()?;
        Ok(graph)
    }

    fn add_vertex(&mut self, spec: VertexSpec, names: &mut BTreeMap<String, VertexIndex>) -> Result<(), GraphError> {
        if spec.name.is_empty() || spec.name.len() > MAX_ID_LENGTH {
            return Err(GraphError::VertexName { length: spec.name.len() });
        }
        if spec.parallelism == 0 {
            return Err(GraphError::NoTask(spec.name));
        }
        let first_task = self.n_tasks();
        let end = first_task.checked_add(spec.parallelism).filter(|end| *end <= MAX_TASKS).ok_or(GraphError::TooLarge)?;
        let index = VertexIndex(count(self.vertices.len())?);
        if names.insert(spec.name.clone(), index).is_some() {
            return Err(GraphError::VertexTwice(spec.name));
        }
        self.vertex_of_task.resize(end as usize, index);
        self.vertices.push(Vertex {
            name: spec.name,
            is_deterministic: spec.is_deterministic,
            first_task,
            parallelism: spec.parallelism,
            outputs: Vec::new(),
            inputs: Vec::new(),
            gangs: Vec::new(),
        });
        Ok(())
    }

    fn add_dataset(&mut self, spec: DatasetSpec, names: &BTreeMap<String, VertexIndex>) -> Result<(), GraphError> {
        if spec.properties.readable == Readable::AfterSeal && spec.properties.keeps != Keeps::Everything {
            return Err(GraphError::ForgetsSealed(spec.id));
        }
        let dataset = DatasetIndex(count(self.datasets.len())?);
        let producer = find(names, &spec.producer, || format!("dataset {}", spec.id))?;
        let n_producers = self.parallelism(producer);
        let mut groups = Vec::new();
        let mut seen = BTreeSet::new();
        for group in spec.groups {
            if !seen.insert(group.id.clone()) {
                return Err(GraphError::GroupTwice { dataset: spec.id, group: group.id });
            }
            let consumer = find(names, &group.vertex, || format!("group {} of dataset {}", group.id, spec.id))?;
            let index = GroupIndex(count(self.groups.len())?);
            let (slot, n_consumers) = (groups.len(), self.parallelism(consumer));
            groups.push(index);
            self.groups.push(ConsumerGroup { id: group.id, dataset, consumer, pattern: group.pattern, slot, n_producers, n_consumers });
            if let Some(vertex) = self.vertices.get_mut(consumer.at()) {
                vertex.inputs.push(index);
            }
        }
        if let Some(vertex) = self.vertices.get_mut(producer.at()) {
            vertex.outputs.push(dataset);
        }
        self.datasets.push(Dataset { id: spec.id, producer, properties: spec.properties, groups });
        Ok(())
    }

    fn add_gang(&mut self, spec: GangSpec, names: &BTreeMap<String, VertexIndex>) -> Result<(), GraphError> {
        let found: Result<Vec<_>, _> = spec.vertices.iter().map(|name| find(names, name, || "a gang".to_owned())).collect();
        let vertices = found?;
        let first = vertices.first().map_or(0, |vertex| self.parallelism(*vertex));
        if spec.scope == GangScope::SameIndex
            && let Some(odd) = vertices.iter().position(|vertex| self.parallelism(*vertex) != first)
        {
            return Err(GraphError::GangParallelism(spec.vertices.get(odd).cloned().unwrap_or_default()));
        }
        if !spec.restarts_together {
            return Ok(());
        }
        let place = self.gangs.len();
        for vertex in &vertices {
            if let Some(vertex) = self.vertices.get_mut(vertex.at()) {
                vertex.gangs.push(place);
            }
        }
        self.gangs.push(Gang { vertices, scope: spec.scope });
        Ok(())
    }

    /// Circles are fine as long as everybody in them may read while others write.
    fn refuse_seals_in_circles(&self) -> Result<(), GraphError> {
        let component = self.vertex_components();
        for dataset in &self.datasets {
            let home = component.get(dataset.producer.at());
            let is_inside = |group: &GroupIndex| self.group(*group).is_some_and(|group| component.get(group.consumer.at()) == home);
            if dataset.properties.readable == Readable::AfterSeal && dataset.groups.iter().any(is_inside) {
                return Err(GraphError::SealInCircle(dataset.id.clone()));
            }
        }
        Ok(())
    }

    /// Components of the vertices; a vertex has a higher number than those it feeds, apart from circles.
    pub(super) fn vertex_components(&self) -> Vec<u32> {
        let successors = |vertex: u32| {
            let outputs = self.vertices.get(vertex as usize).map(|vertex| vertex.outputs.as_slice()).unwrap_or_default();
            let groups = outputs.iter().filter_map(|dataset| self.dataset(*dataset)).flat_map(|dataset| dataset.groups.iter());
            groups.filter_map(|group| self.group(*group)).map(|group| group.consumer.0).collect()
        };
        super::components::strong_components(self.vertices.len(), successors)
    }

    /// Number of tasks.
    #[must_use]
    pub fn n_tasks(&self) -> u32 {
        self.vertices.last().map_or(0, |vertex| vertex.first_task + vertex.parallelism)
    }

    /// The vertices in the order of their indices.
    #[must_use]
    pub fn vertices(&self) -> &[Vertex] {
        &self.vertices
    }

    /// The datasets in the order of their indices.
    #[must_use]
    pub fn datasets(&self) -> &[Dataset] {
        &self.datasets
    }

    /// The consumer groups in the order of their indices.
    #[must_use]
    pub fn groups(&self) -> &[ConsumerGroup] {
        &self.groups
    }

    pub(super) fn gangs(&self) -> &[Gang] {
        &self.gangs
    }

    /// A dataset; `None` when there is no such index.
    #[must_use]
    pub fn dataset(&self, dataset: DatasetIndex) -> Option<&Dataset> {
        self.datasets.get(dataset.at())
    }

    /// A consumer group; `None` when there is no such index.
    #[must_use]
    pub fn group(&self, group: GroupIndex) -> Option<&ConsumerGroup> {
        self.groups.get(group.at())
    }

    /// The vertex of a task; `None` when there is no such task.
    #[must_use]
    pub fn vertex_of(&self, task: TaskIndex) -> Option<&Vertex> {
        self.vertices.get(self.vertex_of_task.get(task.at())?.at())
    }

    /// Number of tasks of a vertex; 0 when there is no such vertex.
    #[must_use]
    pub fn parallelism(&self, vertex: VertexIndex) -> u32 {
        self.vertices.get(vertex.at()).map_or(0, |vertex| vertex.parallelism)
    }

    /// The task of a vertex with an index; `None` when there is none.
    #[must_use]
    pub fn task(&self, vertex: VertexIndex, index: u32) -> Option<TaskIndex> {
        let vertex = self.vertices.get(vertex.at())?;
        (index < vertex.parallelism).then(|| TaskIndex(vertex.first_task + index))
    }

    /// Index of a task within its vertex; 0 when there is no such task.
    #[must_use]
    pub fn index_in_vertex(&self, task: TaskIndex) -> u32 {
        self.vertex_of(task).map_or(0, |vertex| task.0 - vertex.first_task)
    }

    /// A task by the name of its vertex and its index.
    #[must_use]
    pub fn task_named(&self, vertex: &str, index: u32) -> Option<TaskIndex> {
        let place = self.vertices.iter().position(|candidate| candidate.name == vertex)?;
        self.task(VertexIndex(u32::try_from(place).ok()?), index)
    }

    /// A task as a person writes it: vertex, `#`, index.
    #[must_use]
    pub fn label(&self, task: TaskIndex) -> String {
        let name = self.vertex_of(task).map_or("?", |vertex| vertex.name.as_str());
        format!("{name}#{}", self.index_in_vertex(task))
    }

    /// The task that writes a partition; `None` when there is no such partition.
    #[must_use]
    pub fn producer_of(&self, partition: PartitionRef) -> Option<TaskIndex> {
        self.task(self.dataset(partition.dataset)?.producer, partition.producer)
    }

    /// The partitions that a task writes, one of each dataset of its vertex.
    pub fn outputs_of(&self, task: TaskIndex) -> impl Iterator<Item = PartitionRef> + '_ {
        let producer = self.index_in_vertex(task);
        let outputs = self.vertex_of(task).map(|vertex| vertex.outputs.as_slice()).unwrap_or_default();
        outputs.iter().map(move |dataset| PartitionRef { dataset: *dataset, producer })
    }

    /// The groups in which a task reads.
    #[must_use]
    pub fn inputs_of(&self, task: TaskIndex) -> &[GroupIndex] {
        self.vertex_of(task).map(|vertex| vertex.inputs.as_slice()).unwrap_or_default()
    }
}

impl Vertex {
    /// All tasks of the vertex, by number.
    pub(super) fn tasks(&self) -> impl Iterator<Item = TaskIndex> + use<> {
        (self.first_task..self.first_task + self.parallelism).map(TaskIndex)
    }
}

impl ConsumerGroup {
    /// Indices of the consumers that read a producer.
    ///
    /// Pointwise: with at least as many producers as consumers (P ≥ C), consumer j reads producers
    /// ⌊jP/C⌋ to ⌊(j+1)P/C⌋−1; otherwise producer i feeds consumers ⌈iC/P⌉ to ⌈(i+1)C/P⌉−1. This is
    /// the division that Apache Flink makes, so that its job graphs keep their meaning.
    #[must_use]
    pub fn consumers_of(&self, producer: u32) -> Range<u32> {
        if producer >= self.n_producers {
            return 0..0;
        }
        match self.pattern {
            Pattern::AllToAll => 0..self.n_consumers,
            Pattern::Pointwise if self.n_producers >= self.n_consumers => {
                let only = divide_up(producer + 1, self.n_consumers, self.n_producers).saturating_sub(1);
                only..only + 1
            }
            Pattern::Pointwise => {
                divide_up(producer, self.n_consumers, self.n_producers)..divide_up(producer + 1, self.n_consumers, self.n_producers)
            }
        }
    }

    /// Indices of the producers that a consumer reads; the inverse of [`Self::consumers_of`].
    #[must_use]
    pub fn producers_of(&self, consumer: u32) -> Range<u32> {
        if consumer >= self.n_consumers {
            return 0..0;
        }
        match self.pattern {
            Pattern::AllToAll => 0..self.n_producers,
            Pattern::Pointwise if self.n_producers >= self.n_consumers => {
                divide_down(consumer, self.n_producers, self.n_consumers)..divide_down(consumer + 1, self.n_producers, self.n_consumers)
            }
            Pattern::Pointwise => {
                let only = divide_down(consumer, self.n_producers, self.n_consumers);
                only..only + 1
            }
        }
    }
}

/// ⌊factor·numerator/denominator⌋.
fn divide_down(factor: u32, numerator: u32, denominator: u32) -> u32 {
    let quotient = u64::from(factor) * u64::from(numerator) / u64::from(denominator.max(1));
    u32::try_from(quotient).unwrap_or(u32::MAX)
}

/// ⌈factor·numerator/denominator⌉.
fn divide_up(factor: u32, numerator: u32, denominator: u32) -> u32 {
    let quotient = (u64::from(factor) * u64::from(numerator)).div_ceil(u64::from(denominator.max(1)));
    u32::try_from(quotient).unwrap_or(u32::MAX)
}

fn count(length: usize) -> Result<u32, GraphError> {
    u32::try_from(length).ok().filter(|length| *length < MAX_TASKS).ok_or(GraphError::TooLarge)
}

fn find(names: &BTreeMap<String, VertexIndex>, name: &str, whose: impl Fn() -> String) -> Result<VertexIndex, GraphError> {
    names.get(name).copied().ok_or_else(|| GraphError::UnknownVertex { whose: whose(), vertex: name.to_owned() })
}

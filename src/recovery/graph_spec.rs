//! A job graph as declared: vertices, datasets and their kinds, groups of readers, gangs; and what can be
//! wrong with it.

use store_api::ids::{ConsumerId, DatasetId};

/// When a partition may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Readable {
    /// From its first byte on.
    WhileProduced,
    /// After its seal only.
    AfterSeal,
}

/// What stays readable of bytes that were read once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Keeps {
    /// Nothing that was acknowledged.
    Unacknowledged,
    /// What memory allows; a reader must pin what it counts on.
    BestEffort,
    /// Everything since the restore point; everything at all when there is none.
    SinceCheckpoint,
    /// Everything until it is released.
    Everything,
}

/// What takes the bytes away with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DiesWith {
    /// The life of the process that holds them.
    NodeLife,
    /// The disk of the node: they come back with the node.
    NodeDisk,
    /// No single node.
    Nothing,
}

/// A kind of dataset as three independent properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DatasetProperties {
    /// When it may be read.
    pub readable: Readable,
    /// What it keeps.
    pub keeps: Keeps,
    /// What it dies with.
    pub dies_with: DiesWith,
}

impl DatasetProperties {
    /// Held in memory, read while it is produced.
    #[must_use]
    pub const fn pipelined(keeps: Keeps) -> Self {
        Self { readable: Readable::WhileProduced, keeps, dies_with: DiesWith::NodeLife }
    }

    /// On the node's disk, read after the seal.
    #[must_use]
    pub const fn blocking() -> Self {
        Self { readable: Readable::AfterSeal, keeps: Keeps::Everything, dies_with: DiesWith::NodeDisk }
    }

    /// In the object store, read after the seal.
    #[must_use]
    pub const fn durable() -> Self {
        Self { readable: Readable::AfterSeal, keeps: Keeps::Everything, dies_with: DiesWith::Nothing }
    }
}

/// Which producers a consumer reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Every consumer reads every producer.
    AllToAll,
    /// Neighbours only, divided as evenly as the two parallelisms allow.
    Pointwise,
}

/// One vertex as declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VertexSpec {
    /// Unique name, 1 to 128 bytes.
    pub name: String,
    /// Number of tasks, at least 1.
    pub parallelism: u32,
    /// Whether the same input always gives the same output, byte for byte, in whatever order the
    /// inputs arrive. What is not declared is not assumed.
    pub is_deterministic: bool,
}

/// One group of readers of a dataset as declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSpec {
    /// Name of the group, unique within the dataset.
    pub id: ConsumerId,
    /// Name of the vertex whose tasks read.
    pub vertex: String,
    /// Who reads whom.
    pub pattern: Pattern,
}

/// One dataset as declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetSpec {
    /// Unique id.
    pub id: DatasetId,
    /// Name of the vertex that writes it.
    pub producer: String,
    /// Its kind.
    pub properties: DatasetProperties,
    /// Its readers; none for a result that nobody in the job reads.
    pub groups: Vec<GroupSpec>,
}

/// Which tasks of a gang belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GangScope {
    /// Tasks of the same index, one of each vertex.
    SameIndex,
    /// All tasks of all the vertices.
    AllTasks,
}

/// Vertices whose tasks are placed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangSpec {
    /// Names of the vertices.
    pub vertices: Vec<String>,
    /// Which of their tasks belong together.
    pub scope: GangScope,
    /// Whether a restart of one restarts the others. Otherwise the gang is a matter of placement
    /// and changes no plan.
    pub restarts_together: bool,
}

/// A job graph as declared, not yet believed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GraphSpec {
    /// The vertices.
    pub vertices: Vec<VertexSpec>,
    /// The datasets between them.
    pub datasets: Vec<DatasetSpec>,
    /// Tasks that are placed together.
    pub gangs: Vec<GangSpec>,
}

/// Why a declared graph is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// A vertex name is empty or too long.
    #[error("a vertex name has 1 to 128 bytes, this one has {length}")]
    VertexName {
        /// Its length in bytes.
        length: usize,
    },
    /// Two vertices have one name.
    #[error("vertex {0} is declared twice")]
    VertexTwice(String),
    /// A vertex has no task.
    #[error("vertex {0} has parallelism 0")]
    NoTask(String),
    /// The job has too many tasks, vertices, datasets or groups to be numbered.
    #[error("a job has at most 4194304 tasks, and as many datasets and groups")]
    TooLarge,
    /// A dataset, group or gang names a vertex that is not there.
    #[error("{whose} names vertex {vertex}, which is not declared")]
    UnknownVertex {
        /// What names it.
        whose: String,
        /// The name.
        vertex: String,
    },
    /// Two datasets have one id.
    #[error("dataset {0} is declared twice")]
    DatasetTwice(DatasetId),
    /// Two groups of a dataset have one name.
    #[error("dataset {dataset} declares group {group} twice")]
    GroupTwice {
        /// The dataset.
        dataset: DatasetId,
        /// The group.
        group: ConsumerId,
    },
    /// A dataset is readable only after its seal and forgets what was read: a second reader could
    /// never be served.
    #[error("dataset {0} is read after its seal and so must keep everything")]
    ForgetsSealed(DatasetId),
    /// A vertex waits, along a circle of edges, for a seal of its own.
    #[error("dataset {0} is read after its seal by a vertex that its producer waits for")]
    SealInCircle(DatasetId),
    /// Vertices of a gang by index differ in parallelism.
    #[error("a gang by index needs vertices of one parallelism; {0} differs")]
    GangParallelism(String),
}

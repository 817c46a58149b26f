//! What a coordinator refuses.

use crate::recovery::graph_spec::GraphError;
use crate::recovery::restart_budget::BudgetOptionError;
use store_api::{JobEpoch, NodeLife, StoreError};

/// Why a call is refused.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CoordinatorError {
    /// No graph was declared for the job.
    #[error("no graph was declared for the job")]
    UnknownGraph,
    /// The worker is not registered, or counts as gone.
    #[error("the worker is not registered, or counts as gone")]
    UnknownWorker,
    /// There is no such plan.
    #[error("there is no plan of this number")]
    UnknownPlan,
    /// Something that the graph does not have is named.
    #[error("{0}")]
    BadRequest(String),
    /// The graph is none.
    #[error("the graph: {0}")]
    Graph(#[from] GraphError),
    /// The restart strategy is none.
    #[error("the restart strategy: {0}")]
    Budget(#[from] BudgetOptionError),
    /// Another graph was declared, and tasks of it have been started.
    #[error("another graph was declared for the job, and tasks of it were started")]
    GraphConflict,
    /// The job has a newer owner.
    #[error("the job has a newer owner")]
    FencedByEpoch(JobEpoch),
    /// The member has a newer life.
    #[error("a newer life has taken its place")]
    FencedByLife(NodeLife),
    /// More than a limit.
    #[error("more than {0}")]
    TooLarge(u64),
    /// The journal does not answer; nothing has changed.
    #[error("the journal does not answer")]
    Journal(#[source] StoreErrorText),
    /// The coordinator ends.
    #[error("the coordinator ends")]
    Closing,
}

/// An error of the journal, as it is logged.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct StoreErrorText(String);

impl From<StoreError> for CoordinatorError {
    fn from(error: StoreError) -> Self {
        tracing::warn!(?error, "the journal refused");
        Self::Journal(StoreErrorText(error.to_string()))
    }
}

/// What a call answers.
pub type CoordinatorResult<T> = Result<T, CoordinatorError>;

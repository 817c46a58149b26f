//! A set of tasks of one job.

use super::graph::TaskIndex;

/// A set of tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSet {
    is_in: Vec<bool>,
    n_members: u32,
}

impl TaskSet {
    /// No task out of `n_tasks`.
    #[must_use]
    pub fn none(n_tasks: u32) -> Self {
        Self { is_in: vec![false; n_tasks as usize], n_members: 0 }
    }

    /// Whether a task is in.
    #[must_use]
    pub fn contains(&self, task: TaskIndex) -> bool {
        self.is_in.get(task.at()).copied().unwrap_or(false)
    }

    /// Adds a task; `true` when it was not in before.
    pub fn insert(&mut self, task: TaskIndex) -> bool {
        let Some(place) = self.is_in.get_mut(task.at()) else { return false };
        let is_new = !std::mem::replace(place, true);
        self.n_members += u32::from(is_new);
        is_new
    }

    /// Number of tasks.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.n_members
    }

    /// Whether no task is in.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.n_members == 0
    }

    /// The tasks in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = TaskIndex> + '_ {
        (0..).map(TaskIndex::new).zip(&self.is_in).filter(|(_, is_in)| **is_in).map(|(task, _)| task)
    }
}

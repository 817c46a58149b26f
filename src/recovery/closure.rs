//! The region closure: the least set of tasks that must restart.
//!
//! From the tasks that must run again anyway, rules add tasks until nothing more follows:
//!
//! * **need**: a reader needs bytes that its producer's partition no longer gives, so the producer
//!   runs again;
//! * **taint**: a producer runs again and may write something else, so a reader that has already
//!   seen what is written anew runs again;
//! * **gang**: tasks that may only restart together do.
//!
//! Every rule has the form "if these are in, that is in", so there is exactly one least set, it
//! does not depend on the order of work, and circles of edges do no harm.
//!
//! Work is linear in tasks, edges in their compact form, and progress entries: between all-to-all
//! groups each producer and each consumer is looked at a bounded number of times, not once for each
//! pair.

use super::graph::{GroupIndex, PartitionRef, TaskIndex};
use super::graph_spec::{GangScope, Pattern};
use super::snapshot::{AttemptRecord, Progress, TaskState};
use super::task_set::TaskSet;
use super::view::{Row, View, first_common, readers_by_vertex, row, within};
use std::collections::{BTreeMap, VecDeque};

/// Why a task restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Its last attempt failed.
    Failed,
    /// Every attempt of it was on a worker that is gone.
    WorkerLost,
    /// An earlier plan stopped it and it has not run since.
    Stopped,
    /// Its re-run wrote something else than the run before it.
    ReplayedDifferently,
    /// A reader needs bytes that the partition no longer gives.
    Need {
        /// What cannot be read.
        partition: PartitionRef,
        /// As a member of which group it is read.
        group: GroupIndex,
        /// The reader.
        consumer: TaskIndex,
    },
    /// It has seen bytes that are written anew, perhaps differently.
    Taint {
        /// What is written anew.
        partition: PartitionRef,
        /// As a member of which group it read.
        group: GroupIndex,
        /// Who writes it anew.
        producer: TaskIndex,
    },
    /// It restarts only together with another task.
    Gang {
        /// The other task.
        with: TaskIndex,
    },
    /// Everything restarts.
    Everything,
}

/// A set of tasks to restart, and why.
#[derive(Debug, Clone)]
pub(super) struct Closure {
    pub(super) restart: TaskSet,
    /// Those that may write something else than before.
    pub(super) differs: TaskSet,
    pub(super) because: BTreeMap<TaskIndex, Reason>,
}

/// What is known of an all-to-all group while the set grows. Lists are made when first needed and
/// only shrink.
#[derive(Default)]
struct Frontier {
    /// Some producer that restarts may write something else.
    is_input_different: bool,
    /// Producers, not in the set, that cannot serve a restarted consumer of common progress.
    unserving: Option<Vec<u32>>,
    /// Pairs (consumer, producer) with progress of their own, ascending.
    own: Option<Vec<(u32, u32)>>,
    /// Finished consumers not in the set.
    finished: Option<Vec<u32>>,
    /// Consumers deployed, not finished and not in the set.
    unfinished: Option<Vec<u32>>,
}

struct Growth<'a> {
    view: View<'a>,
    closure: Closure,
    entered: VecDeque<TaskIndex>,
    differing: VecDeque<TaskIndex>,
    frontiers: Vec<Frontier>,
    is_gang_in: Vec<bool>,
}

/// The tasks that must run again whatever the rules say, in ascending order.
pub(super) fn failed_tasks(view: View<'_>) -> Vec<(TaskIndex, Reason)> {
    let snapshot = view.snapshot;
    let is_lost = |attempt: &AttemptRecord| snapshot.is_on_lost_worker(attempt);
    let reason_of = |task: TaskIndex| {
        let record = snapshot.task(task)?;
        match record.state {
            TaskState::Failed => Some(Reason::Failed),
            TaskState::Cancelling | TaskState::Cancelled => Some(Reason::Stopped),
            TaskState::Scheduled | TaskState::Running if record.attempts.iter().all(is_lost) => Some(Reason::WorkerLost),
            TaskState::Created => None,
            TaskState::Scheduled | TaskState::Running | TaskState::Finished => {
                record.has_replayed_differently.then_some(Reason::ReplayedDifferently)
            }
        }
    };
    (0..snapshot.graph().n_tasks()).map(TaskIndex::new).filter_map(|task| Some((task, reason_of(task)?))).collect()
}

/// The failed tasks alone.
pub(super) fn failed_only(view: View<'_>) -> Closure {
    let mut growth = Growth::new(view);
    for (task, reason) in failed_tasks(view) {
        growth.enter(task, reason);
    }
    for task in growth.entered {
        if !view.repeats_itself(task) {
            growth.closure.differs.insert(task);
        }
    }
    growth.closure
}

/// Everything that was ever deployed.
pub(super) fn everything(view: View<'_>) -> Closure {
    let mut growth = Growth::new(view);
    for (task, reason) in failed_tasks(view) {
        growth.enter(task, reason);
    }
    for task in (0..view.snapshot.graph().n_tasks()).map(TaskIndex::new) {
        growth.enter(task, Reason::Everything);
    }
    growth.closure.differs = growth.closure.restart.clone();
    growth.closure
}

/// The least set that holds the failed tasks and obeys the rules.
pub(super) fn region(view: View<'_>) -> Closure {
    let mut growth = Growth::new(view);
    for (task, reason) in failed_tasks(view) {
        growth.enter(task, reason);
    }
    growth.enter_producers_of_known_losses();
    growth.grow();
    growth.closure
}

impl<'a> Growth<'a> {
    fn new(view: View<'a>) -> Self {
        let graph = view.snapshot.graph();
        let none = TaskSet::none(graph.n_tasks());
        Self {
            view,
            closure: Closure { restart: none.clone(), differs: none, because: BTreeMap::new() },
            entered: VecDeque::new(),
            differing: VecDeque::new(),
            frontiers: graph.groups().iter().map(|_| Frontier::default()).collect(),
            is_gang_in: vec![false; graph.gangs().len()],
        }
    }

    fn enter(&mut self, task: TaskIndex, reason: Reason) {
        if self.view.snapshot.state(task) != TaskState::Created && self.closure.restart.insert(task) {
            self.closure.because.insert(task, reason);
            self.entered.push_back(task);
        }
    }

    fn grow(&mut self) {
        loop {
            if let Some(task) = self.entered.pop_front() {
                self.spread_need(task);
                self.spread_gang(task);
                if !self.view.repeats_itself(task) || self.reads_something_different(task) {
                    self.differ(task);
                }
            } else if let Some(task) = self.differing.pop_front() {
                self.spread_taint(task);
            } else {
                return;
            }
        }
    }

    fn differ(&mut self, task: TaskIndex) {
        if self.closure.differs.insert(task) {
            self.differing.push_back(task);
        }
    }

    fn is_in(&self, group: &super::graph::ConsumerGroup, consumer: u32) -> bool {
        self.view.snapshot.graph().task(group.consumer, consumer).is_some_and(|task| self.closure.restart.contains(task))
    }

    // Known losses: what somebody who is left alone will miss.

    fn enter_producers_of_known_losses(&mut self) {
        let (view, nobody) = (self.view, TaskSet::none(0));
        let readers = readers_by_vertex(view.snapshot, &nobody);
        for row in view.rows() {
            let Some(of_vertex) = readers.get(row.group.consumer.at()) else { continue };
            let running = within(&of_vertex.running, row.readers());
            let created = within(&of_vertex.created, row.readers());
            let deprived = deprived_reader(view, row, running, created);
            let consumer = deprived.and_then(|index| view.snapshot.graph().task(row.group.consumer, index));
            if let (Some(consumer), Some(producer)) = (consumer, view.snapshot.graph().producer_of(row.partition)) {
                self.enter(producer, Reason::Need { partition: row.partition, group: row.group_index, consumer });
            }
        }
    }

    // Need: from a restarted consumer to the producers that cannot serve it.

    fn spread_need(&mut self, consumer: TaskIndex) {
        let graph = self.view.snapshot.graph();
        let index = graph.index_in_vertex(consumer);
        for group_index in graph.inputs_of(consumer) {
            let Some(group) = graph.group(*group_index) else { continue };
            match group.pattern {
                Pattern::AllToAll => self.need_all(*group_index, index, consumer),
                Pattern::Pointwise => {
                    for producer in group.producers_of(index) {
                        self.need_one(row(self.view.snapshot, *group_index, group, producer), index, consumer);
                    }
                }
            }
        }
    }

    fn need_one(&mut self, row: Row<'_>, index: u32, consumer: TaskIndex) {
        let Some(producer) = self.view.snapshot.graph().producer_of(row.partition) else { return };
        let progress = row.progress.map(|progress| progress.of(index));
        if !self.closure.restart.contains(producer) && !serves_restarted(self.view, row, progress) {
            self.enter(producer, Reason::Need { partition: row.partition, group: row.group_index, consumer });
        }
    }

    fn need_all(&mut self, group_index: GroupIndex, index: u32, consumer: TaskIndex) {
        let (snapshot, graph) = (self.view.snapshot, self.view.snapshot.graph());
        let Some(group) = graph.group(group_index) else { return };
        let all_rows = || (0..group.n_producers).map(|producer| row(snapshot, group_index, group, producer));
        let frontier = self.frontiers.get_mut(group_index.at()).map(std::mem::take).unwrap_or_default();
        let own = frontier.own.unwrap_or_else(|| {
            let pairs = all_rows().filter_map(|row| Some((row.partition.producer, row.progress?)));
            let mut own: Vec<_> =
                pairs.flat_map(|(producer, progress)| progress.others.iter().map(move |(consumer, _)| (*consumer, producer))).collect();
            own.sort_unstable();
            own
        });
        let mut unserving = frontier.unserving.unwrap_or_else(|| {
            let cannot = |row: &Row<'_>| !serves_restarted(self.view, *row, row.progress.map(|progress| &progress.common));
            all_rows().filter(cannot).map(|row| row.partition.producer).collect()
        });
        unserving.retain(|producer| {
            let has_own = own.binary_search(&(index, *producer)).is_ok();
            if !has_own {
                self.need_one(row(snapshot, group_index, group, *producer), index, consumer);
            }
            has_own
        });
        let start = own.partition_point(|(owner, _)| *owner < index);
        for (_, producer) in own.iter().skip(start).take_while(|(owner, _)| *owner == index) {
            self.need_one(row(snapshot, group_index, group, *producer), index, consumer);
        }
        if let Some(place) = self.frontiers.get_mut(group_index.at()) {
            *place = Frontier { own: Some(own), unserving: Some(unserving), ..frontier };
        }
    }

    // Gang: from a restarted task to those that restart only together with it.

    fn spread_gang(&mut self, task: TaskIndex) {
        let graph = self.view.snapshot.graph();
        let index = graph.index_in_vertex(task);
        let places = graph.vertex_of(task).map(|vertex| vertex.gangs.as_slice()).unwrap_or_default();
        for place in places {
            let Some(gang) = graph.gangs().get(*place) else { continue };
            match gang.scope {
                GangScope::SameIndex => {
                    let members: Vec<_> = gang.vertices.iter().filter_map(|vertex| graph.task(*vertex, index)).collect();
                    members.into_iter().for_each(|member| self.enter(member, Reason::Gang { with: task }));
                }
                GangScope::AllTasks if self.is_gang_in.get(*place).copied().unwrap_or(true) => {}
                GangScope::AllTasks => {
                    if let Some(is_in) = self.is_gang_in.get_mut(*place) {
                        *is_in = true;
                    }
                    let vertices = gang.vertices.iter().filter_map(|vertex| graph.vertices().get(vertex.at()));
                    vertices.flat_map(super::graph::Vertex::tasks).for_each(|member| self.enter(member, Reason::Gang { with: task }));
                }
            }
        }
    }

    // Taint: from a producer that may write something else to those who have seen what it wrote.

    fn reads_something_different(&self, consumer: TaskIndex) -> bool {
        let graph = self.view.snapshot.graph();
        let index = graph.index_in_vertex(consumer);
        graph.inputs_of(consumer).iter().any(|group_index| {
            let Some(group) = graph.group(*group_index) else { return false };
            match group.pattern {
                Pattern::AllToAll => self.frontiers.get(group_index.at()).is_some_and(|frontier| frontier.is_input_different),
                Pattern::Pointwise => group.producers_of(index).any(|producer| {
                    let partition = PartitionRef { dataset: group.dataset, producer };
                    graph.producer_of(partition).is_some_and(|producer| self.closure.differs.contains(producer))
                        && !self.view.is_promoted_whole(partition)
                }),
            }
        })
    }

    fn spread_taint(&mut self, producer: TaskIndex) {
        let view = self.view;
        for partition in view.snapshot.graph().outputs_of(producer) {
            if view.is_promoted_whole(partition) {
                continue;
            }
            for row in view.rows_of(partition) {
                match row.group.pattern {
                    Pattern::AllToAll => self.taint_all(row, producer),
                    Pattern::Pointwise => {
                        for index in row.readers() {
                            self.differ_if_in(row, index);
                            self.taint_one(row, index, producer);
                        }
                    }
                }
            }
        }
    }

    fn differ_if_in(&mut self, row: Row<'_>, index: u32) {
        if let Some(task) = self.view.snapshot.graph().task(row.group.consumer, index)
            && self.closure.restart.contains(task)
        {
            self.differ(task);
        }
    }

    fn taint_one(&mut self, row: Row<'_>, index: u32, producer: TaskIndex) {
        let Some(consumer) = self.view.snapshot.graph().task(row.group.consumer, index) else { return };
        let has_seen = row.progress.is_some_and(|progress| progress.of(index).has_seen_beyond_rewind());
        if self.view.snapshot.state(consumer) == TaskState::Finished || has_seen {
            self.enter(consumer, Reason::Taint { partition: row.partition, group: row.group_index, producer });
        }
    }

    fn taint_all(&mut self, row: Row<'_>, producer: TaskIndex) {
        let (snapshot, place) = (self.view.snapshot, row.group_index.at());
        let Some(frontier) = self.frontiers.get_mut(place) else { return };
        if !std::mem::replace(&mut frontier.is_input_different, true) {
            row.readers().for_each(|index| self.differ_if_in(row, index));
        }
        let frontier = self.frontiers.get_mut(place).map(std::mem::take).unwrap_or_default();
        let in_state = |is_wanted: fn(TaskState) -> bool| -> Vec<u32> {
            let state = |index: u32| snapshot.graph().task(row.group.consumer, index).map(|task| snapshot.state(task));
            row.readers().filter(|index| state(*index).is_some_and(is_wanted)).collect()
        };
        let finished = frontier.finished.unwrap_or_else(|| in_state(|state| state == TaskState::Finished));
        let mut unfinished = frontier.unfinished.unwrap_or_else(|| in_state(TaskState::is_live));
        // Every finished consumer has seen the end, whatever its progress says.
        finished.iter().for_each(|index| self.taint_one(row, *index, producer));
        if let Some(progress) = row.progress {
            if progress.common.has_seen_beyond_rewind() {
                unfinished.retain(|index| {
                    let has_own = progress.own(*index).is_some();
                    if !has_own {
                        self.taint_one(row, *index, producer);
                    }
                    has_own && !self.is_in(row.group, *index)
                });
            }
            progress.others.iter().for_each(|(index, _)| self.taint_one(row, *index, producer));
        }
        if let Some(place) = self.frontiers.get_mut(place) {
            *place = Frontier { finished: Some(Vec::new()), unfinished: Some(unfinished), ..frontier };
        }
    }
}

fn serves_restarted(view: View<'_>, row: Row<'_>, progress: Option<&Progress>) -> bool {
    view.serves(row.partition) && progress.is_none_or(|progress| progress.floor <= progress.need)
}

/// A reader, not restarted, that will miss bytes of a partition; `None` when nobody will.
fn deprived_reader(view: View<'_>, row: Row<'_>, running: &[u32], created: &[u32]) -> Option<u32> {
    let serves = view.serves(row.partition);
    let Some(progress) = row.progress else {
        return if serves { None } else { running.first().or(created.first()).copied() };
    };
    let lacks_running = |one: &Progress| one.running_position().is_some_and(|position| !serves || one.floor > position);
    let lacks_created = |one: &Progress| !serves || one.floor > one.need;
    if lacks_running(&progress.common)
        && let Some(index) = first_common(running, Some(progress))
    {
        return Some(index);
    }
    if lacks_created(&progress.common)
        && let Some(index) = first_common(created, Some(progress))
    {
        return Some(index);
    }
    let is_deprived = |(index, one): &&(u32, Progress)| {
        (running.binary_search(index).is_ok() && lacks_running(one)) || (created.binary_search(index).is_ok() && lacks_created(one))
    };
    progress.others.iter().find(is_deprived).map(|(index, _)| *index)
}

//! The order in which restarted tasks start.
//!
//! Tasks joined by an edge that is read while it is written start together: the writer may stand
//! still until the reader takes its bytes. A reader of an edge that is read after the seal starts in
//! a later wave than its writer. Where the two kinds of edge form a circle, everybody in the circle
//! starts together. An edge between all and all is one node, not N×M arrows.

use super::components::strong_components;
use super::graph::TaskIndex;
use super::graph_spec::{GangScope, Readable};
use super::plan::Wave;
use super::reads::Outcome;
use super::view::{Row, row};
use std::collections::BTreeMap;

/// The nodes are the restarted tasks, in ascending order, and after them one for each group.
struct Ordering<'a, 'o> {
    outcome: &'o Outcome<'a>,
    tasks: Vec<TaskIndex>,
    arrows: Vec<Vec<u32>>,
    /// Arrows that mean "after the seal".
    seals: Vec<(u32, u32)>,
}

pub(super) fn waves_of(outcome: &Outcome<'_>) -> Vec<Wave> {
    let graph = outcome.view.snapshot.graph();
    let tasks: Vec<TaskIndex> = outcome.closure.restart.iter().collect();
    let n_nodes = tasks.len() + graph.groups().len() + graph.gangs().len();
    let mut ordering = Ordering { outcome, tasks, arrows: vec![Vec::new(); n_nodes], seals: Vec::new() };
    ordering.add_groups();
    ordering.add_gangs();
    ordering.into_waves()
}

impl Ordering<'_, '_> {
    fn node_of(&self, task: TaskIndex) -> Option<u32> {
        self.tasks.binary_search(&task).ok().and_then(|place| u32::try_from(place).ok())
    }

    fn arrow(&mut self, from: u32, to: u32) {
        if let Some(arrows) = self.arrows.get_mut(from as usize) {
            arrows.push(to);
        }
    }

    fn both_ways(&mut self, one: u32, two: u32) {
        self.arrow(one, two);
        self.arrow(two, one);
    }

    fn seal_arrow(&mut self, from: u32, to: u32) {
        self.arrow(from, to);
        self.seals.push((from, to));
    }

    fn add_groups(&mut self) {
        let (snapshot, graph) = (self.outcome.view.snapshot, self.outcome.view.snapshot.graph());
        let first_free = self.tasks.len();
        for (place, group) in graph.groups().iter().enumerate() {
            let Ok(index) = u32::try_from(place) else { return };
            let Ok(hub) = u32::try_from(first_free + place) else { return };
            let rows = (0..group.n_producers).map(|producer| row(snapshot, super::graph::GroupIndex::new(index), group, producer));
            let rewritten: Vec<Row<'_>> = rows.filter(|row| self.outcome.is_rewritten(row.partition)).collect();
            let is_hub = group.pattern == super::graph_spec::Pattern::AllToAll;
            if is_hub && let Some(first) = rewritten.first() {
                self.add_hub(hub, *first, &rewritten);
            } else if !is_hub {
                rewritten.into_iter().for_each(|row| self.add_row(row));
            }
        }
    }

    fn reads_while_written(&self, row: Row<'_>) -> bool {
        self.outcome.view.properties(row.partition).readable == Readable::WhileProduced
    }

    fn consumers(&self, row: Row<'_>) -> Vec<u32> {
        let graph = self.outcome.view.snapshot.graph();
        let members = self.outcome.restarting(row).iter();
        members.filter_map(|index| self.node_of(graph.task(row.group.consumer, *index)?)).collect()
    }

    fn producer(&self, row: Row<'_>) -> Option<u32> {
        self.node_of(self.outcome.view.snapshot.graph().producer_of(row.partition)?)
    }

    fn add_hub(&mut self, hub: u32, first: Row<'_>, rewritten: &[Row<'_>]) {
        let consumers = self.consumers(first);
        if consumers.is_empty() {
            return;
        }
        let together = self.reads_while_written(first);
        for producer in rewritten.iter().filter_map(|row| self.producer(*row)).collect::<Vec<_>>() {
            if together { self.both_ways(producer, hub) } else { self.seal_arrow(producer, hub) }
        }
        for consumer in consumers {
            if together { self.both_ways(hub, consumer) } else { self.arrow(hub, consumer) }
        }
    }

    fn add_row(&mut self, row: Row<'_>) {
        let Some(producer) = self.producer(row) else { return };
        for consumer in self.consumers(row) {
            if self.reads_while_written(row) { self.both_ways(producer, consumer) } else { self.seal_arrow(producer, consumer) }
        }
    }

    fn add_gangs(&mut self) {
        let graph = self.outcome.view.snapshot.graph();
        let first_free = self.tasks.len() + graph.groups().len();
        for (place, gang) in graph.gangs().iter().enumerate() {
            let Ok(hub) = u32::try_from(first_free + place) else { return };
            let vertices = || gang.vertices.iter().filter_map(|vertex| graph.vertices().get(vertex.at()));
            match gang.scope {
                GangScope::AllTasks => {
                    let members: Vec<u32> =
                        vertices().flat_map(super::graph::Vertex::tasks).filter_map(|task| self.node_of(task)).collect();
                    members.into_iter().for_each(|member| self.both_ways(member, hub));
                }
                GangScope::SameIndex => {
                    let mut seats = vertices().map(super::graph::Vertex::tasks).collect::<Vec<_>>();
                    while let Some(members) = seats.iter_mut().map(Iterator::next).collect::<Option<Vec<_>>>().filter(|m| !m.is_empty()) {
                        let nodes: Vec<u32> = members.into_iter().filter_map(|task| self.node_of(task)).collect();
                        nodes.windows(2).for_each(|pair| {
                            if let [one, two] = pair {
                                self.both_ways(*one, *two);
                            }
                        });
                    }
                }
            }
        }
    }

    fn into_waves(self) -> Vec<Wave> {
        let component = strong_components(self.arrows.len(), |node| self.arrows.get(node as usize).cloned().unwrap_or_default());
        let of = |node: u32| component.get(node as usize).copied().unwrap_or(0);
        // Numbers fall along the arrows: from the highest to the lowest, everything that a component
        // waits for has been given its depth before it.
        let mut nodes: Vec<u32> = (0..self.arrows.len()).filter_map(|node| u32::try_from(node).ok()).collect();
        nodes.sort_by_key(|node| std::cmp::Reverse(of(*node)));
        let mut depth: BTreeMap<u32, u32> = BTreeMap::new();
        for node in nodes {
            let mine = depth.get(&of(node)).copied().unwrap_or(0);
            for next in self.arrows.get(node as usize).into_iter().flatten().filter(|next| of(**next) != of(node)) {
                let is_task = (*next as usize) < self.tasks.len();
                let below = depth.entry(of(*next)).or_insert(0);
                // A hub stands between two waves and takes none itself.
                *below = (*below).max(mine + u32::from(is_task));
            }
        }
        let inner: std::collections::BTreeSet<u32> = self
            .seals
            .iter()
            .filter(|(from, to)| of(*from) == of(*to))
            .filter_map(|(from, _)| depth.get(&of(*from)).copied().or(Some(0)))
            .collect();
        let mut waves: BTreeMap<u32, Vec<TaskIndex>> = BTreeMap::new();
        for (node, task) in (0..).zip(&self.tasks) {
            waves.entry(depth.get(&of(node)).copied().unwrap_or(0)).or_default().push(*task);
        }
        let rank = upstream_ranks(self.outcome);
        let sorted = |mut tasks: Vec<TaskIndex>| {
            tasks.sort_by_key(|task| (rank.get(task.at()).copied().unwrap_or(0), *task));
            tasks
        };
        waves.into_iter().map(|(depth, tasks)| Wave { tasks: sorted(tasks), has_inner_seal: inner.contains(&depth) }).collect()
    }
}

/// For each task how late its vertex comes: producers have lower ranks than consumers, apart from
/// circles.
fn upstream_ranks(outcome: &Outcome<'_>) -> Vec<u32> {
    let graph = outcome.view.snapshot.graph();
    let component = graph.vertex_components();
    let highest = component.iter().copied().max().unwrap_or(0);
    let ranked = graph.vertices().iter().zip(component);
    ranked.flat_map(|(vertex, component)| vertex.tasks().map(move |_| highest - component)).collect()
}

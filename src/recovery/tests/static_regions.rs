//! The rule that others use, as a yardstick: tasks joined by edges without retention form a region;
//! a failed region restarts, with the regions of the producers of what it cannot read and with every
//! region that reads from it. After the publicly described region failover of Apache Flink, written
//! anew for comparison.

use crate::recovery::graph::{JobGraph, PartitionRef, TaskIndex};
use crate::recovery::graph_spec::{Keeps, Readable};
use crate::recovery::snapshot::TaskState;
use std::collections::BTreeSet;

/// Every connection of the graph: partition, producer, consumer.
pub(super) fn connections(graph: &JobGraph) -> Vec<(PartitionRef, TaskIndex, TaskIndex)> {
    let mut all = Vec::new();
    for group in graph.groups() {
        let dataset = graph.dataset(group.dataset).unwrap();
        for producer in 0..graph.parallelism(dataset.producer) {
            for consumer in group.consumers_of(producer) {
                let (from, to) = (graph.task(dataset.producer, producer).unwrap(), graph.task(group.consumer, consumer).unwrap());
                all.push((PartitionRef { dataset: group.dataset, producer }, from, to));
            }
        }
    }
    all
}

/// The tasks, without those never deployed, that the rule restarts.
pub(super) fn restarts(
    graph: &JobGraph,
    failed: &BTreeSet<TaskIndex>,
    is_available: impl Fn(PartitionRef) -> bool,
    state: impl Fn(TaskIndex) -> TaskState,
) -> BTreeSet<TaskIndex> {
    let all = connections(graph);
    let n_tasks = graph.n_tasks() as usize;
    let mut region: Vec<usize> = (0..n_tasks).collect();
    let merge = |region: &mut Vec<usize>, one: usize, two: usize| {
        let (from, to) = (region[one], region[two]);
        region.iter_mut().filter(|place| **place == from).for_each(|place| *place = to);
    };
    let is_inside = |partition: PartitionRef| {
        let properties = graph.dataset(partition.dataset).unwrap().properties;
        properties.readable == Readable::WhileProduced && properties.keeps != Keeps::Everything
    };
    for (partition, producer, consumer) in &all {
        if is_inside(*partition) {
            merge(&mut region, producer.at(), consumer.at());
        }
    }
    // Regions that reach each other become one.
    let mut reaches = vec![vec![false; n_tasks]; n_tasks];
    for (_, producer, consumer) in &all {
        reaches[region[producer.at()]][region[consumer.at()]] = true;
    }
    for middle in 0..n_tasks {
        for from in 0..n_tasks {
            for to in 0..n_tasks {
                reaches[from][to] |= reaches[from][middle] && reaches[middle][to];
            }
        }
    }
    for pair in 0..n_tasks * n_tasks {
        let (one, two) = (pair / n_tasks, pair % n_tasks);
        if reaches[one][two] && reaches[two][one] {
            merge(&mut region, one, two);
        }
    }
    let mut involved: BTreeSet<usize> = BTreeSet::new();
    let mut work: Vec<usize> = failed.iter().map(|task| region[task.at()]).collect();
    while let Some(next) = work.pop() {
        if !involved.insert(next) {
            continue;
        }
        for (partition, producer, consumer) in &all {
            if region[consumer.at()] == next && !is_inside(*partition) && !is_available(*partition) {
                work.push(region[producer.at()]);
            }
            if region[producer.at()] == next {
                work.push(region[consumer.at()]);
            }
        }
    }
    let tasks = (0..graph.n_tasks()).map(TaskIndex::new);
    tasks.filter(|task| involved.contains(&region[task.at()]) && state(*task) != TaskState::Created).collect()
}

//! Small random jobs in random trouble, the same for the same seed.

use super::scene::{LIFE, N_NODES, NOW, Scene, attempt, draft_of, kind, offset};
use crate::recovery::graph::JobGraph;
use crate::recovery::graph_spec::{
    DatasetProperties, DatasetSpec, GangScope, GangSpec, GraphSpec, GroupSpec, Keeps, Pattern, Readable, VertexSpec,
};
use crate::recovery::policy::{Determinism, Policy};
use crate::recovery::snapshot::{
    Confirmed, GroupProgress, Location, NodeStanding, PartitionRecord, PartitionStatus, Progress, Sent, TaskRecord, TaskState,
};
use std::time::Duration;
use store_api::ids::{ConsumerId, DatasetId, NodeLife};

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
pub(super) struct Draw(u64);

impl Draw {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// 0 to `bound` − 1.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(super) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub(super) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        let place = usize::try_from(self.below(from.len() as u64)).unwrap();
        from[place].clone()
    }

    pub(super) fn shuffle<T>(&mut self, list: &mut [T]) {
        for place in (1..list.len()).rev() {
            let other = usize::try_from(self.below(place as u64 + 1)).unwrap();
            list.swap(place, other);
        }
    }
}

const KINDS: [&str; 6] = ["until_acknowledged", "best_effort", "since_checkpoint", "full_copy", "blocking", "durable"];

fn random_graph(draw: &mut Draw, with_gangs: bool) -> GraphSpec {
    let n_vertices = 2 + draw.below(3);
    let names: Vec<String> = (0..n_vertices).map(|place| format!("V{}", ["a", "b", "c", "d"][usize::try_from(place).unwrap()])).collect();
    let mut n_left = 9 - n_vertices;
    let vertices: Vec<VertexSpec> = names
        .iter()
        .map(|name| {
            let more = draw.below(3.min(n_left + 1));
            n_left -= more;
            VertexSpec { name: name.clone(), parallelism: u32::try_from(1 + more).unwrap(), is_deterministic: draw.percent(50) }
        })
        .collect();
    let mut datasets = Vec::new();
    for from in 0..names.len() {
        for to in from + 1..names.len() {
            if !draw.percent(if to == from + 1 { 85 } else { 35 }) {
                continue;
            }
            let mut groups = vec![random_group(draw, "g0", &names[to])];
            if draw.percent(20) {
                let other = from + 1 + usize::try_from(draw.below((names.len() - from - 1) as u64)).unwrap();
                groups.push(random_group(draw, "g1", &names[other]));
            }
            let properties = kind(draw.pick(&KINDS));
            datasets.push(DatasetSpec {
                id: DatasetId::new(&format!("d{from}{to}")).unwrap(),
                producer: names[from].clone(),
                properties,
                groups,
            });
        }
    }
    let mut gangs = Vec::new();
    if with_gangs && draw.percent(15) {
        let scope = if vertices[0].parallelism == vertices[1].parallelism {
            draw.pick(&[GangScope::SameIndex, GangScope::AllTasks])
        } else {
            GangScope::AllTasks
        };
        gangs.push(GangSpec { vertices: vec![names[0].clone(), names[1].clone()], scope, restarts_together: draw.percent(80) });
    }
    GraphSpec { vertices, datasets, gangs }
}

fn random_group(draw: &mut Draw, id: &str, vertex: &str) -> GroupSpec {
    GroupSpec { id: ConsumerId::new(id).unwrap(), vertex: vertex.to_owned(), pattern: draw.pick(&[Pattern::AllToAll, Pattern::Pointwise]) }
}

fn random_progress(draw: &mut Draw, properties: DatasetProperties, is_sealed: bool, reader: TaskState) -> Progress {
    let end = if properties.readable == Readable::AfterSeal && !is_sealed { 0 } else { draw.below(5) };
    let has_restore_point = properties.readable == Readable::WhileProduced && draw.percent(50);
    let rewind = if has_restore_point { draw.below(end + 1) } else { 0 };
    let need = if has_restore_point { draw.below(end + 1) } else { 0 };
    let (confirmed, sent) = match reader {
        TaskState::Finished => (Confirmed::End, Sent::End),
        TaskState::Created => (Confirmed::UpTo(offset(0)), Sent::UpTo(offset(0))),
        _ if is_sealed && draw.percent(20) => (if draw.percent(50) { Confirmed::End } else { Confirmed::UpTo(offset(end)) }, Sent::End),
        _ => {
            let confirmed = draw.below(end + 1);
            let sent = if draw.percent(10) { Sent::Unknown } else { Sent::UpTo(offset(confirmed + draw.below(end - confirmed + 1))) };
            (Confirmed::UpTo(offset(confirmed)), sent)
        }
    };
    let floor = match properties.keeps {
        Keeps::Everything => 0,
        _ if draw.percent(50) => 0,
        _ => draw.below(end + 1),
    };
    Progress { floor: offset(floor), end: offset(end), confirmed, sent, need: offset(need), rewind: offset(rewind) }
}

fn random_state(draw: &mut Draw, chance_of_failure: u64) -> TaskState {
    if draw.percent(chance_of_failure) {
        return draw.pick(&[TaskState::Failed, TaskState::Failed, TaskState::Cancelled, TaskState::Cancelling]);
    }
    draw.pick(&[TaskState::Created, TaskState::Scheduled, TaskState::Running, TaskState::Running, TaskState::Finished, TaskState::Finished])
}

/// A job with at most nine tasks, in a state that need not be one that a real job reaches.
pub(super) fn random_scene(seed: u64, with_gangs: bool) -> Scene {
    let draw = &mut Draw::new(seed);
    let graph = JobGraph::parse(random_graph(draw, with_gangs)).unwrap();
    let mut draft = draft_of(graph);
    if draw.percent(20) {
        let host = usize::try_from(draw.below(u64::from(N_NODES))).unwrap();
        draft.nodes[host].standing = NodeStanding::Lost;
        draft.workers[host].is_lost = draw.percent(60);
    }
    let chance_of_failure = draw.pick(&[5, 15, 30]);
    for record in &mut draft.tasks {
        let state = random_state(draw, chance_of_failure);
        *record = match state {
            TaskState::Created => TaskRecord::created(),
            TaskState::Failed | TaskState::Cancelled => TaskRecord { state, ..TaskRecord::created() },
            _ => TaskRecord::with_attempt(state, attempt(0), Some(u32::try_from(draw.below(u64::from(N_NODES))).unwrap())),
        };
        record.has_replayed_differently = state != TaskState::Created && draw.percent(3);
    }
    let graph = std::sync::Arc::clone(&draft.graph);
    for (dataset, partitions) in graph.datasets().iter().zip(&mut draft.partitions) {
        for (producer, place) in (0..).zip(partitions.iter_mut()) {
            let state = draft.tasks[graph.task(dataset.producer, producer).unwrap().at()].state;
            if state == TaskState::Created || draw.percent(3) {
                *place = None;
                continue;
            }
            let record = place.as_mut().unwrap();
            record.is_sealed = state == TaskState::Finished && draw.percent(95) || state == TaskState::Failed && draw.percent(20);
            record.is_promoted = record.is_sealed && dataset.properties.keeps == Keeps::Everything && draw.percent(5);
            record.has_digests = draw.percent(80);
            random_place(draw, record);
            let of_group = |group: &crate::recovery::graph::GroupIndex| {
                let group = graph.group(*group).unwrap();
                let readers: Vec<u32> = group.consumers_of(producer).collect();
                let state_of = |index: u32| draft.tasks[graph.task(group.consumer, index).unwrap().at()].state;
                let mut one = |index: u32| random_progress(draw, dataset.properties, record.is_sealed, state_of(index));
                // The common entry is that of the first reader; the others have their own, or share
                // it when they are in the same state.
                let common = one(readers[0]);
                let mut others = Vec::new();
                for index in readers.iter().skip(1) {
                    let own = one(*index);
                    let may_share = state_of(*index) == state_of(readers[0]);
                    if !(may_share && own.end.get() % 2 == 0) {
                        others.push((*index, own));
                    }
                }
                GroupProgress { common, others }
            };
            record.progress = dataset.groups.iter().map(of_group).collect();
        }
    }
    let determinism = draw.pick(&[Determinism::Believed, Determinism::Verified, Determinism::Ignored]);
    Scene { draft, policy: Policy { determinism, ..Policy::default() } }
}

fn random_place(draw: &mut Draw, record: &mut PartitionRecord) {
    let life = if draw.percent(95) { LIFE } else { NodeLife::new(6) };
    record.location = Location::Node { node: u32::try_from(draw.below(u64::from(N_NODES))).unwrap(), life };
    record.status = match draw.below(20) {
        0 => PartitionStatus::Lost,
        1 => PartitionStatus::Corrupt,
        2 => PartitionStatus::Suspect { since: NOW - Duration::from_secs(10) },
        3 => PartitionStatus::Suspect { since: NOW - Duration::from_secs(60) },
        4 => PartitionStatus::Released,
        _ => PartitionStatus::Available,
    };
}

/// One progress that promises no more than any of a group: highest floor and sent, lowest confirmed,
/// need and rewind.
pub(super) fn bounds_of(group: &GroupProgress) -> Progress {
    let lowest = |one: Confirmed, two: Confirmed| match (one, two) {
        (Confirmed::End, other) | (other, Confirmed::End) => other,
        (Confirmed::UpTo(one), Confirmed::UpTo(two)) => Confirmed::UpTo(one.min(two)),
    };
    let highest = |one: Sent, two: Sent| match (one, two) {
        (Sent::UpTo(one), Sent::UpTo(two)) => Sent::UpTo(one.max(two)),
        _ => Sent::Unknown,
    };
    let join = |one: Progress, two: &Progress| Progress {
        floor: one.floor.max(two.floor),
        end: one.end.max(two.end),
        confirmed: lowest(one.confirmed, two.confirmed),
        sent: highest(one.sent, two.sent),
        need: one.need.min(two.need),
        rewind: one.rewind.min(two.rewind),
    };
    group.others.iter().map(|(_, one)| one).fold(group.common, join)
}

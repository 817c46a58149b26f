//! The least set of restarts, found by trying all sets.
//!
//! What makes a set right is stated here over single bytes and over what each reader has seen, not
//! over the rules of the planner: every reader can get every byte it still has to read, and nobody
//! goes on with bytes of which another version is being made.

use super::random::{Draw, random_scene};
use super::scene::{NOW, Scene};
use super::static_regions::{connections, restarts};
use crate::recovery::graph::{PartitionRef, TaskIndex};
use crate::recovery::graph_spec::{DiesWith, GangScope, Pattern};
use crate::recovery::policy::Determinism;
use crate::recovery::report::{FailureCause, Report, Speaker, Trouble};
use crate::recovery::snapshot::{Confirmed, Location, NodeStanding, PartitionRecord, PartitionStatus, Progress, Sent, Snapshot, TaskState};
use std::collections::BTreeSet;

type Tasks = BTreeSet<TaskIndex>;

struct World<'a> {
    scene: &'a Scene,
    snapshot: Snapshot,
    /// Partition, its writer, its reader, and what lies between them.
    links: Vec<(PartitionRef, TaskIndex, TaskIndex, Option<Progress>)>,
}

impl<'a> World<'a> {
    fn new(scene: &'a Scene) -> Self {
        let (snapshot, graph) = (scene.snapshot(), scene.graph());
        let mut links = Vec::new();
        for group in graph.groups() {
            let dataset = graph.dataset(group.dataset).unwrap();
            for (partition, writer, reader) in connections(graph) {
                let is_of_group =
                    partition.dataset == group.dataset && graph.task(group.consumer, graph.index_in_vertex(reader)) == Some(reader);
                let is_connected = group.consumers_of(partition.producer).contains(&graph.index_in_vertex(reader));
                if is_of_group && is_connected {
                    let slot = dataset.groups.iter().position(|index| std::ptr::eq(graph.group(*index).unwrap(), group)).unwrap();
                    let record = snapshot.partition(partition);
                    let one = record.map(|record| *record.progress[slot].of(graph.index_in_vertex(reader)));
                    links.push((partition, writer, reader, one));
                }
            }
        }
        Self { scene, snapshot, links }
    }

    fn state(&self, task: TaskIndex) -> TaskState {
        self.snapshot.state(task)
    }

    fn tasks(&self) -> impl Iterator<Item = TaskIndex> {
        (0..self.scene.graph().n_tasks()).map(TaskIndex::new)
    }

    /// Tasks of which no attempt can go on.
    fn broken(&self) -> Tasks {
        let is_broken = |task: &TaskIndex| {
            let record = self.snapshot.task(*task).unwrap();
            let on_lost = |worker: Option<u32>| worker.is_some_and(|worker| self.scene.draft.workers[worker as usize].is_lost);
            let is_alive = record.attempts.iter().any(|attempt| !on_lost(attempt.worker));
            match record.state {
                TaskState::Created => false,
                TaskState::Failed | TaskState::Cancelled | TaskState::Cancelling => true,
                TaskState::Scheduled | TaskState::Running => !is_alive || record.has_replayed_differently,
                TaskState::Finished => record.has_replayed_differently,
            }
        };
        self.tasks().filter(is_broken).collect()
    }

    /// Whether the bytes of a partition can be had at all.
    fn is_there(&self, partition: PartitionRef, record: &PartitionRecord) -> bool {
        let since_is_fresh = |since| NOW - since < self.scene.policy.suspect_grace;
        let is_status_good = match record.status {
            PartitionStatus::Available => true,
            PartitionStatus::Suspect { since } => since_is_fresh(since),
            _ => false,
        };
        let Location::Node { node, life } = record.location else { return is_status_good };
        let node = &self.scene.draft.nodes[node as usize];
        is_status_good
            && match self.scene.graph().dataset(partition.dataset).unwrap().properties.dies_with {
                DiesWith::Nothing => true,
                // Lives begin at time 0 in these scenes: a disk of a former life had its time.
                DiesWith::NodeLife | DiesWith::NodeDisk => node.standing != NodeStanding::Lost && node.life == life,
            }
    }

    fn is_fixed(&self, partition: PartitionRef) -> bool {
        self.snapshot.partition(partition).is_some_and(|record| record.is_promoted && self.is_there(partition, record))
    }

    /// The restarted tasks that may write something else than before.
    fn novel(&self, set: &Tasks) -> Tasks {
        let is_trusted = |task: TaskIndex| {
            let graph = self.scene.graph();
            let is_declared =
                graph.vertex_of(task).unwrap().is_deterministic && !self.snapshot.task(task).unwrap().has_replayed_differently;
            let has_digests =
                graph.outputs_of(task).all(|partition| self.snapshot.partition(partition).is_none_or(|record| record.has_digests));
            is_declared
                && match self.scene.policy.determinism {
                    Determinism::Believed => true,
                    Determinism::Verified => has_digests,
                    Determinism::Ignored => false,
                }
        };
        // Vertices are in the order of the edges, so that one pass suffices.
        let mut novel = Tasks::new();
        for task in set {
            let is_fed_anew = self
                .links
                .iter()
                .any(|(partition, writer, reader, _)| reader == task && novel.contains(writer) && !self.is_fixed(*partition));
            if !is_trusted(*task) || is_fed_anew {
                novel.insert(*task);
            }
        }
        novel
    }

    fn is_right(&self, set: &Tasks) -> bool {
        let novel = self.novel(set);
        self.gangs_are_whole(set)
            && self.links.iter().all(|(partition, writer, reader, one)| {
                if !set.contains(writer) {
                    return self.gets_every_byte(*partition, *writer, *reader, one.as_ref(), set.contains(reader));
                }
                let goes_on = !set.contains(reader) && self.state(*reader) != TaskState::Created;
                !(goes_on && novel.contains(writer) && !self.is_fixed(*partition) && self.has_seen(*reader, one.as_ref()))
            })
    }

    /// Whether a reader finds every byte from where it begins to what is written, and whether the
    /// rest will be written by a producer that is left alone.
    fn gets_every_byte(
        &self,
        partition: PartitionRef,
        writer: TaskIndex,
        reader: TaskIndex,
        one: Option<&Progress>,
        restarts: bool,
    ) -> bool {
        let writes_on = matches!(self.state(writer), TaskState::Created | TaskState::Scheduled | TaskState::Running);
        let reads = restarts || matches!(self.state(reader), TaskState::Created | TaskState::Scheduled | TaskState::Running);
        let (Some(record), Some(one)) = (self.snapshot.partition(partition), one) else { return !reads || writes_on };
        let from = match one.confirmed {
            _ if restarts || self.state(reader) == TaskState::Created => one.need.get(),
            Confirmed::End => return true,
            Confirmed::UpTo(confirmed) => confirmed.get().max(one.need.get()),
        };
        let is_held = |byte: u64| byte >= one.floor.get();
        !reads || (self.is_there(partition, record) && (from..one.end.get()).all(is_held) && (record.is_sealed || writes_on))
    }

    fn has_seen(&self, reader: TaskIndex, one: Option<&Progress>) -> bool {
        let has_taken = one.is_some_and(|one| match one.sent {
            Sent::Unknown | Sent::End => true,
            Sent::UpTo(sent) => (one.rewind.get()..sent.get()).next().is_some(),
        });
        self.state(reader) == TaskState::Finished || has_taken
    }

    fn gangs_are_whole(&self, set: &Tasks) -> bool {
        let graph = self.scene.graph();
        graph.gangs().iter().all(|gang| {
            let members = |task: &TaskIndex| -> Vec<TaskIndex> {
                let index = graph.index_in_vertex(*task);
                let all = gang
                    .vertices
                    .iter()
                    .flat_map(|vertex| (0..graph.parallelism(*vertex)).map(|place| (place, graph.task(*vertex, place).unwrap())));
                all.filter(|(place, _)| gang.scope == GangScope::AllTasks || *place == index).map(|(_, task)| task).collect()
            };
            let is_member = |task: &&TaskIndex| members(task).contains(task);
            set.iter().filter(is_member).flat_map(members).all(|other| set.contains(&other) || self.state(other) == TaskState::Created)
        })
    }

    /// Every right set that holds the broken tasks.
    fn right_sets(&self) -> Vec<Tasks> {
        let broken = self.broken();
        let free: Vec<TaskIndex> = self.tasks().filter(|task| !broken.contains(task) && self.state(*task) != TaskState::Created).collect();
        let with = |choice: u32| {
            let chosen = free.iter().enumerate().filter(move |(place, _)| choice & (1 << place) != 0).map(|(_, task)| *task);
            broken.iter().copied().chain(chosen).collect::<Tasks>()
        };
        (0..1_u32 << free.len()).map(with).filter(|set| self.is_right(set)).collect()
    }
}

fn n_rounds() -> u64 {
    if std::env::var_os("FOREBAY_LONG").is_some() { 20_000 } else { 2_000 }
}

#[test]
fn the_region_is_the_least_right_set_on_random_jobs() {
    let mut sizes = [0_usize; 10];
    for seed in 0..n_rounds() {
        let scene = random_scene(seed, true);
        let world = World::new(&scene);
        let region: Tasks = scene.plan().tasks().collect();
        let right = world.right_sets();
        let least = right.iter().min_by_key(|set| set.len());
        assert_eq!(least, Some(&region), "seed {seed}");
        assert!(right.iter().all(|set| region.is_subset(set)), "seed {seed}: a right set does not hold the region");
        sizes[region.len()] += 1;
    }
    assert!(sizes[..6].iter().all(|n| *n > 20), "the jobs are too much alike: {sizes:?}");
}

#[test]
fn the_region_is_never_larger_than_static_regions_that_know_the_same_losses() {
    let (mut n_smaller, mut n_early) = (0, 0);
    for seed in 0..n_rounds() {
        let scene = random_scene(seed, false);
        let world = World::new(&scene);
        let region: Tasks = scene.plan().tasks().collect();
        let broken = world.broken();
        let can_be_read = |partition: PartitionRef| {
            let writer = scene.graph().producer_of(partition).unwrap();
            let writes_on = world.state(writer) == TaskState::Created || world.state(writer).is_live();
            world
                .snapshot
                .partition(partition)
                .map_or(writes_on, |record| world.is_there(partition, record) && (record.is_sealed || writes_on))
        };
        // Losses that a reader who is left alone will run into: static regions wait until it does.
        let waiting = world
            .links
            .iter()
            .filter(|(partition, writer, reader, one)| !world.gets_every_byte(*partition, *writer, *reader, one.as_ref(), false));
        let early: Tasks = waiting.map(|(_, writer, _, _)| *writer).filter(|task| world.state(*task) != TaskState::Created).collect();
        let theirs = restarts(scene.graph(), &broken, can_be_read, |task| world.state(task));
        let informed = restarts(scene.graph(), &broken.union(&early).copied().collect(), can_be_read, |task| world.state(task));
        assert!(region.is_subset(&informed), "seed {seed}: {region:?} against {informed:?}");
        if early.is_subset(&theirs) {
            assert!(region.is_subset(&theirs), "seed {seed}: nothing is known early, and still more restarts");
        } else {
            n_early += 1;
        }
        n_smaller += u64::from(region.len() < informed.len());
    }
    assert!(n_smaller > n_rounds() / 10, "only {n_smaller} of {} are smaller", n_rounds());
    assert!(n_early > 0, "no job has a loss known early");
}

fn random_reports(scene: &Scene, draw: &mut Draw) -> Vec<Report> {
    let snapshot = scene.snapshot();
    let mut reports = Vec::new();
    for task in (0..scene.graph().n_tasks()).map(TaskIndex::new) {
        let record = snapshot.task(task).unwrap();
        for one in &record.attempts {
            let of = Speaker { task, attempt: one.attempt, coordinator_epoch: draw.pick(&[4, 5, 5, 5]) };
            match draw.below(8) {
                0 => reports.push(Report::AttemptFailed { of, cause: FailureCause::Own }),
                1 => reports.push(Report::AttemptFinished { of }),
                2 => reports.push(Report::ReplayDiffers { of }),
                _ => {}
            }
        }
    }
    for (partition, record) in snapshot.partitions() {
        let trouble = draw.pick(&[Trouble::Transient, Trouble::Unreachable, Trouble::Gone, Trouble::Corrupt]);
        match draw.below(6) {
            0 => reports.push(Report::PartitionTrouble { partition, held: record.attempt, trouble }),
            1 => reports.push(Report::PartitionAnswers { partition, held: record.attempt, location: record.location }),
            _ => {}
        }
    }
    reports
}

#[test]
fn the_order_of_reports_makes_no_difference_to_the_plan() {
    let mut n_reports = 0;
    for seed in 0..n_rounds() {
        let scene = random_scene(seed, true);
        let draw = &mut Draw::new(seed ^ 0xF0);
        let mut reports = random_reports(&scene, draw);
        n_reports += reports.len();
        let once = scene.after(&reports);
        reports.extend(reports.clone());
        draw.shuffle(&mut reports);
        let again = scene.after(&reports);
        assert_eq!(once.draft, again.draft, "seed {seed}");
        assert_eq!(once.plan(), again.plan(), "seed {seed}");
    }
    assert!(n_reports > 1000);
}

#[test]
fn naming_the_vertices_in_another_order_gives_the_same_tasks() {
    for seed in 0..n_rounds() / 4 {
        let scene = random_scene(seed, false);
        let turned = turned_around(&scene);
        let names = |scene: &Scene| scene.plan().tasks().map(|task| scene.name(task)).collect::<BTreeSet<_>>();
        assert_eq!(names(&scene), names(&turned), "seed {seed}");
    }
}

/// The same job with its vertices and datasets declared in reverse.
fn turned_around(scene: &Scene) -> Scene {
    use crate::recovery::graph::JobGraph;
    use crate::recovery::graph_spec::{DatasetSpec, GraphSpec, GroupSpec, VertexSpec};
    let graph = scene.graph();
    let vertex_name = |index: crate::recovery::graph::VertexIndex| graph.vertices()[index.at()].name.clone();
    let vertices = graph.vertices().iter().rev();
    let vertices = vertices.map(|vertex| VertexSpec {
        name: vertex.name.clone(),
        parallelism: vertex.tasks().count().try_into().unwrap(),
        is_deterministic: vertex.is_deterministic,
    });
    let group_of = |index: &crate::recovery::graph::GroupIndex| {
        let group = graph.group(*index).unwrap();
        let pattern: Pattern = group.pattern;
        GroupSpec { id: group.id.clone(), vertex: vertex_name(group.consumer), pattern }
    };
    let datasets = graph.datasets().iter().rev().map(|dataset| DatasetSpec {
        id: dataset.id.clone(),
        producer: vertex_name(dataset.producer),
        properties: dataset.properties,
        groups: dataset.groups.iter().map(group_of).collect(),
    });
    let spec = GraphSpec { vertices: vertices.collect(), datasets: datasets.collect(), gangs: Vec::new() };
    let mut draft = super::scene::draft_of(JobGraph::parse(spec).unwrap());
    draft.nodes.clone_from(&scene.draft.nodes);
    draft.workers.clone_from(&scene.draft.workers);
    draft.tasks =
        graph.vertices().iter().rev().flat_map(|vertex| vertex.tasks().map(|task| scene.draft.tasks[task.at()].clone())).collect();
    draft.partitions = scene.draft.partitions.iter().rev().cloned().collect();
    Scene { draft, policy: scene.policy }
}

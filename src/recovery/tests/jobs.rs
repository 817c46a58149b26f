//! Jobs and snapshots that are not what they say.

use super::scene::{LIFE, Scene, graph_spec, progress};
use crate::recovery::graph::JobGraph;
use crate::recovery::graph_spec::{DatasetProperties, GangScope, GangSpec, GraphError, GraphSpec, Keeps, Readable};
use crate::recovery::snapshot::{AttemptRecord, Location, Snapshot, SnapshotError, TaskState};
use std::collections::BTreeSet;

fn refusal(change: impl Fn(&mut GraphSpec)) -> GraphError {
    let mut spec = graph_spec("A*2 B*3", &["A all blocking B"]);
    assert!(JobGraph::parse(spec.clone()).is_ok());
    change(&mut spec);
    JobGraph::parse(spec).unwrap_err()
}

fn gang(vertices: &[&str], scope: GangScope) -> GangSpec {
    GangSpec { vertices: vertices.iter().map(|name| (*name).to_owned()).collect(), scope, restarts_together: true }
}

#[test]
fn a_graph_that_cannot_be_is_refused_with_its_fault() {
    assert!(matches!(refusal(|spec| spec.vertices[0].name.clear()), GraphError::VertexName { length: 0 }));
    assert!(matches!(refusal(|spec| spec.vertices[1].name = "A".to_owned()), GraphError::VertexTwice(_)));
    assert!(matches!(refusal(|spec| spec.vertices[1].parallelism = 0), GraphError::NoTask(_)));
    assert!(matches!(refusal(|spec| spec.vertices[1].parallelism = u32::MAX), GraphError::TooLarge));
    assert!(matches!(refusal(|spec| spec.datasets[0].producer = "X".to_owned()), GraphError::UnknownVertex { .. }));
    assert!(matches!(refusal(|spec| spec.datasets[0].groups[0].vertex = "X".to_owned()), GraphError::UnknownVertex { .. }));
    assert!(matches!(refusal(|spec| spec.datasets.push(spec.datasets[0].clone())), GraphError::DatasetTwice(_)));
    let twice = |spec: &mut GraphSpec| {
        let group = spec.datasets[0].groups[0].clone();
        spec.datasets[0].groups.push(group);
    };
    assert!(matches!(refusal(twice), GraphError::GroupTwice { .. }));
    assert!(matches!(refusal(|spec| spec.gangs.push(gang(&["A", "X"], GangScope::AllTasks))), GraphError::UnknownVertex { .. }));
    assert!(matches!(refusal(|spec| spec.gangs.push(gang(&["A", "B"], GangScope::SameIndex))), GraphError::GangParallelism(_)));
}

/// Property 15: what is called re-readable must serve a second reader.
#[test]
fn a_dataset_read_after_its_seal_must_keep_everything() {
    let forgets = |spec: &mut GraphSpec| {
        spec.datasets[0].properties = DatasetProperties { keeps: Keeps::Unacknowledged, ..DatasetProperties::blocking() }
    };
    assert!(matches!(refusal(forgets), GraphError::ForgetsSealed(_)));
    assert_eq!(DatasetProperties::durable().readable, Readable::AfterSeal);
}

#[test]
fn a_circle_may_be_read_while_written_but_not_after_its_seal() {
    let circle = |kind: &str| JobGraph::parse(graph_spec("A*1 B*1", &["A all until_acknowledged B", &format!("B all {kind} A")]));
    assert!(circle("until_acknowledged").is_ok());
    assert!(matches!(circle("blocking"), Err(GraphError::SealInCircle(_))));
}

#[test]
fn neighbours_are_divided_evenly_and_both_ways_alike() {
    for producers in 1..12_u32 {
        for consumers in 1..12_u32 {
            let graph = JobGraph::parse(graph_spec(&format!("A*{producers} B*{consumers}"), &["A pointwise blocking B"])).unwrap();
            let group = &graph.groups()[0];
            let down: BTreeSet<_> = (0..producers).flat_map(|p| group.consumers_of(p).map(move |c| (p, c))).collect();
            let up: BTreeSet<_> = (0..consumers).flat_map(|c| group.producers_of(c).map(move |p| (p, c))).collect();
            assert_eq!(down, up, "{producers} to {consumers}");
            assert_eq!(down.len(), producers.max(consumers) as usize, "{producers} to {consumers}");
            assert!((0..producers).all(|p| !group.consumers_of(p).is_empty()) && (0..consumers).all(|c| !group.producers_of(c).is_empty()));
        }
    }
    let graph = JobGraph::parse(graph_spec("A*4 B*2", &["A pointwise blocking B"])).unwrap();
    assert_eq!(graph.groups()[0].producers_of(1), 2..4);
    assert_eq!(graph.groups()[0].producers_of(7), 0..0);
    assert_eq!(graph.groups()[0].consumers_of(7), 0..0);
}

#[test]
fn a_snapshot_that_does_not_fit_its_graph_is_refused_with_its_fault() {
    let scene = Scene::new("A*2 B*2", &["A pointwise blocking B"]);
    let refusal = |change: &dyn Fn(&mut crate::recovery::snapshot::SnapshotDraft)| {
        let mut draft = scene.draft.clone();
        change(&mut draft);
        Snapshot::parse(draft).unwrap_err()
    };
    assert!(matches!(refusal(&|draft| draft.tasks.truncate(3)), SnapshotError::Length { what: "tasks", expected: 4, found: 3 }));
    assert!(matches!(refusal(&|draft| draft.partitions.clear()), SnapshotError::Length { .. }));
    assert!(matches!(refusal(&|draft| draft.partitions[0].truncate(1)), SnapshotError::Length { .. }));
    assert!(matches!(refusal(&|draft| draft.partitions[0][0].as_mut().unwrap().progress.clear()), SnapshotError::Length { .. }));
    assert!(matches!(refusal(&|draft| draft.tasks[0].attempts.clear()), SnapshotError::Attempts { .. }));
    assert!(matches!(refusal(&|draft| draft.tasks[0].state = TaskState::Created), SnapshotError::Attempts { .. }));
    let far = AttemptRecord { attempt: super::scene::attempt(0), worker: Some(99) };
    assert!(matches!(refusal(&|draft| draft.tasks[0].attempts = vec![far]), SnapshotError::Unlisted { what: "worker", .. }));
    let nowhere = Location::Node { node: 99, life: LIFE };
    assert!(matches!(
        refusal(&|draft| draft.partitions[0][0].as_mut().unwrap().location = nowhere),
        SnapshotError::Unlisted { what: "node", .. }
    ));
    assert!(matches!(refusal(&|draft| draft.partitions[0][0].as_mut().unwrap().is_promoted = true), SnapshotError::Promoted { .. }));
    let one = progress(0, Some(0), 0, 0);
    for others in [vec![(1, one)], vec![(0, one), (0, one)]] {
        let found = refusal(&|draft| draft.partitions[0][0].as_mut().unwrap().progress[0].others.clone_from(&others));
        assert!(matches!(found, SnapshotError::Consumer { .. }), "{found}");
    }
}

//! Reads, batch reads, states, listings and events.

use super::bench::*;
use crate::service::*;
use futures::StreamExt;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store_api::*;

const TAIL: ReadKind = ReadKind::Tail { wait: Duration::ZERO };

fn want(partition: u64, subpartition: u32) -> FetchWant {
    FetchWant {
        partition: PartitionId::new(partition),
        subpartition: SubpartitionIndex::new(subpartition),
        start: Offset::ZERO,
        end: None,
        attempt: None,
    }
}

async fn fetch(node: &Node, wants: Vec<FetchWant>, budget: Option<u64>) -> Vec<FetchStep> {
    node.service.fetch(&id("j"), &dataset_id("d"), wants, budget).await.unwrap().collect().await
}

#[tokio::test]
async fn every_no_has_its_own_answer() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    let read_at = |job: &str, dataset: &str| {
        let address = PartitionAddress { job: id(job), dataset: dataset_id(dataset), partition: PartitionId::new(0) };
        let service = node.service.clone();
        let call =
            ReadCall { attempt: None, subpartition: SubpartitionIndex::new(0), start: Offset::ZERO, end: None, kind: ReadKind::Sealed };
        async move { service.read(&address, call).await }
    };
    assert_eq!(refused(read_at("nope", "d").await), ServiceErrorKind::UnknownJob);
    assert_eq!(refused(read_at("j", "nope").await), ServiceErrorKind::UnknownDataset);
    assert_eq!(refused(node.read(0).await), ServiceErrorKind::NotWritten);
    node.open(0, 0, 0).await.unwrap();
    assert_eq!(refused(node.read(0).await), ServiceErrorKind::NotSealed);
    assert_eq!(refused(node.read_as(0, Some(a(0, 5)), ReadKind::Sealed).await), ServiceErrorKind::UnknownAttempt);
    node.write(0, a(0, 0), b"12345").await.unwrap();
    node.seal(0, a(0, 0)).await.unwrap();
    let beyond =
        ReadCall { attempt: None, subpartition: SubpartitionIndex::new(0), start: Offset::new(6), end: None, kind: ReadKind::Sealed };
    assert_eq!(refused(node.service.read(&at(0), beyond.clone()).await), ServiceErrorKind::RangeNotSatisfiable { end: Offset::new(5) });
    let outside = ReadCall { subpartition: SubpartitionIndex::new(4), ..beyond };
    assert_eq!(refused(node.service.read(&at(0), outside).await), ServiceErrorKind::UnknownPartition);
    node.release(0).await.unwrap();
    assert_eq!(refused(node.read(0).await), ServiceErrorKind::Released);
    node.pass(node.config.default_lease).await;
    assert_eq!(refused(node.read(0).await), ServiceErrorKind::Expired);
}

#[tokio::test]
async fn a_loss_is_entered_once_told_once_and_made_good_in_a_higher_generation() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.produce(0, b"x").await;
    let mut events = node.service.events(&id("j"), None).await.unwrap();
    node.blocking.loses_reads.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        assert_eq!(refused(node.read(0).await), ServiceErrorKind::Lost { cause: LossCause::Disk });
    }
    node.blocking.loses_reads.store(false, Ordering::SeqCst);
    assert_eq!(refused(node.read(0).await), ServiceErrorKind::Lost { cause: LossCause::Disk });
    assert_eq!(node.state(0).await, PartitionState::Lost { cause: LossCause::Disk });
    let told = ready_events(&mut events).await;
    assert_eq!(told.iter().map(|event| event.kind).collect::<Vec<_>>(), [EventKind::Lost { cause: LossCause::Disk }]);
    assert_eq!(refused(node.open(0, 0, 1).await), ServiceErrorKind::Lost { cause: LossCause::Disk });
    node.open(0, 1, 0).await.unwrap();
    node.write(0, a(1, 0), b"again").await.unwrap();
    node.seal(0, a(1, 0)).await.unwrap();
    assert_eq!(node.read(0).await.unwrap(), b"again");
}

#[tokio::test]
async fn a_broadcast_is_read_through_any_subpartition() {
    let node = Node::start().await;
    node.put_job("j").await;
    let request = DatasetRequest { is_broadcast: true, ..spec(StoreClass::Blocking) };
    node.service.put_dataset(&id("j"), &dataset_id("d"), request).await.unwrap();
    node.produce(0, b"all").await;
    let steps = fetch(&node, (0..4).map(|subpartition| want(0, subpartition)).collect(), None).await;
    let n_data = steps.iter().filter(|step| matches!(step, FetchStep::Data { chunk, .. } if chunk.bytes() == "all")).count();
    assert_eq!(n_data, 4);
    assert_eq!(refused(node.write_to(1, a(0, 0), 1, b"x").await), ServiceErrorKind::UnknownAttempt);
}

#[tokio::test]
async fn an_open_pipelined_attempt_is_read_as_it_grows_and_its_sealed_end_can_be_told() {
    let node = Node::with_dataset(StoreClass::Pipelined).await;
    node.open(0, 0, 0).await.unwrap();
    node.write(0, a(0, 0), b"abc").await.unwrap();
    assert_eq!(refused(node.read(0).await), ServiceErrorKind::NotSealed);
    assert_eq!(node.read_as(0, None, TAIL).await.unwrap(), b"abc");
    let open = node.service.resolve(&at(0), SubpartitionIndex::new(0), None).await.unwrap();
    assert_eq!((open.digest, open.end), (None, Offset::new(3)));
    node.seal(0, a(0, 0)).await.unwrap();
    let sealed = node.service.resolve(&at(0), SubpartitionIndex::new(0), None).await.unwrap();
    assert_eq!(sealed.digest.map(|digest| digest.length), Some(3));
    assert_eq!(node.read_as(0, None, TAIL).await.unwrap(), b"abc");
}

#[tokio::test]
async fn a_batch_answers_every_item_once_and_one_that_fails_spoils_no_other() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.produce(0, b"zero").await;
    node.produce(1, b"one").await;
    node.open(2, 0, 0).await.unwrap();
    let wants = vec![want(0, 0), want(2, 0), want(1, 0), want(3, 0), want(99, 0), want(1, 9), want(1, 1)];
    let steps = fetch(&node, wants, None).await;
    let mut outcomes: Vec<(u32, Option<ServiceErrorKind>)> = steps
        .iter()
        .filter_map(|step| match step {
            FetchStep::End { item, .. } => Some((*item, None)),
            FetchStep::Failed { item, error, .. } => Some((*item, Some(error.kind().clone()))),
            FetchStep::Data { .. } | FetchStep::Moved { .. } | FetchStep::Paused { .. } => None,
        })
        .collect();
    outcomes.sort_by_key(|(item, _)| *item);
    let unknown = Some(ServiceErrorKind::UnknownPartition);
    let expected = vec![
        (0, None),
        (1, Some(ServiceErrorKind::NotSealed)),
        (2, None),
        (3, Some(ServiceErrorKind::NotWritten)),
        (4, unknown.clone()),
        (5, unknown),
        (6, None),
    ];
    assert_eq!(outcomes, expected);
}

#[tokio::test]
async fn a_batch_that_is_paused_goes_on_where_it_stopped_and_ends() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    for partition in 0..4 {
        node.produce(partition, &[partition as u8; 10]).await;
    }
    let mut wants: Vec<FetchWant> = (0..4).map(|partition| want(partition, 0)).collect();
    let (mut n_bytes, mut n_rounds) = (0, 0);
    while !wants.is_empty() {
        n_rounds += 1;
        assert!(n_rounds < 20, "it must come to an end");
        let steps = fetch(&node, wants.clone(), Some(1)).await;
        assert!(steps.iter().any(|step| matches!(step, FetchStep::Data { .. } | FetchStep::End { .. })), "each round gets on");
        let mut next = Vec::new();
        for step in steps {
            match step {
                FetchStep::Data { chunk, .. } => n_bytes += chunk.length(),
                FetchStep::Paused { item, at } => next.push(FetchWant { start: at, ..wants[item as usize].clone() }),
                FetchStep::End { .. } => {}
                FetchStep::Failed { .. } | FetchStep::Moved { .. } => panic!("{step:?}"),
            }
        }
        wants = next;
    }
    assert_eq!(n_bytes, 40);
}

#[tokio::test]
async fn empty_and_oversized_batches_are_answered() {
    let config = ServiceConfig { max_fetch_items: 2, max_availability_items: 2, ..ServiceConfig::default() };
    let node = Node::with(config).await;
    node.put_job("j").await;
    node.put_dataset("j", "d", StoreClass::Blocking).await;
    assert!(fetch(&node, Vec::new(), None).await.is_empty());
    let wants = vec![want(0, 0); 3];
    let too_many = node.service.fetch(&id("j"), &dataset_id("d"), wants, None).await.map(drop);
    assert_eq!(refused(too_many), ServiceErrorKind::TooLarge { limit: 2 });
    let run =
        |n_partitions| AvailabilityWant { dataset: dataset_id("d"), partition: PartitionId::new(0), n_partitions, subpartition: None };
    let too_many = node.service.availability(&id("j"), vec![run(u32::MAX), run(u32::MAX)]).await;
    assert_eq!(refused(too_many), ServiceErrorKind::TooLarge { limit: 2 });
    assert!(node.service.availability(&id("j"), Vec::new()).await.unwrap().is_empty());
}

#[tokio::test]
async fn availability_tells_states_apart() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.produce(0, b"sealed").await;
    node.open(1, 0, 0).await.unwrap();
    node.write(1, a(0, 0), b"op").await.unwrap();
    node.release(3).await.unwrap();
    let run = |dataset: &str, partition, n_partitions| AvailabilityWant {
        dataset: dataset_id(dataset),
        partition: PartitionId::new(partition),
        n_partitions,
        subpartition: Some(SubpartitionIndex::new(0)),
    };
    let views = node.service.availability(&id("j"), vec![run("d", 0, 4), run("d", 15, 2), run("nope", 0, 1)]).await.unwrap();
    let states: Vec<PartitionState> = views.iter().map(|view| view.state).collect();
    use PartitionState as S;
    assert_eq!(states, [S::Sealed, S::Open, S::NotWritten, S::Released, S::NotWritten, S::Unknown, S::Unknown]);
    assert_eq!((views[0].end, views[0].crc, views[0].attempt), (Some(Offset::new(6)), Some(Crc32c::of(b"sealed")), Some(a(0, 0))));
    assert_eq!((views[1].end, views[1].crc), (Some(Offset::new(2)), None));
}

#[tokio::test]
async fn pages_put_together_are_the_whole_listing() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    for partition in [0, 3, 7, 8, 15] {
        node.produce(partition, b"x").await;
    }
    for limit in 1..7 {
        let (mut after, mut seen) = (None, Vec::new());
        loop {
            let page = node.service.partitions(&id("j"), &dataset_id("d"), after, Some(limit)).await.unwrap();
            assert!(page.manifests.len() <= limit);
            seen.extend(page.manifests.iter().map(|view| view.manifest.attempt.partition.partition.get()));
            after = page.next_after;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, [0, 3, 7, 8, 15], "limit {limit}");
    }
}

#[tokio::test]
async fn events_resume_after_a_cursor_and_reset_when_it_is_too_old_or_of_another_life() {
    let node = Node::with(ServiceConfig { event_capacity: 3, ..ServiceConfig::default() }).await;
    node.put_job("j").await;
    node.put_dataset("j", "d", StoreClass::Blocking).await;
    let mut live = node.service.events(&id("j"), None).await.unwrap();
    node.produce(0, b"x").await;
    node.produce(1, b"x").await;
    let seen = ready_events(&mut live).await;
    assert_eq!(seen.iter().map(|event| event.partition.map(PartitionId::get)).collect::<Vec<_>>(), [Some(0), Some(1)]);
    let mut resumed = node.service.events(&id("j"), Some(seen[0].cursor)).await.unwrap();
    assert_eq!(ready_events(&mut resumed).await, seen[1..]);
    for partition in 2..7 {
        node.produce(partition, b"x").await;
    }
    for cursor in [seen[0].cursor, EventCursor { life: NodeLife::new(9), sequence: 1 }, EventCursor { sequence: 1000, ..seen[0].cursor }] {
        let mut stream = node.service.events(&id("j"), Some(cursor)).await.unwrap();
        let told = ready_events(&mut stream).await;
        assert_eq!(told.iter().map(|event| event.kind).collect::<Vec<_>>(), [EventKind::Reset]);
        assert_eq!(told[0].cursor.sequence, 7);
    }
    let told = ready_events(&mut live).await;
    assert_eq!(told.first().map(|event| event.kind), Some(EventKind::Reset), "one that fell behind is told so");
    node.service.release_job(&id("j"), Some(JobEpoch::new(1))).await.unwrap();
    let rest: Vec<Event> = live.collect().await;
    assert_eq!(rest.last().map(|event| event.kind), Some(EventKind::Released));
}

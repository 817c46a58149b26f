//! The Rust client against a real node: every way to write and to read, connections that are cut on
//! the way, several nodes, and the examples that its documentation shows.

use crate::support::proxy::{Cuts, Proxy};
use crate::support::{Node, NodeOptions, pattern};
use bytes::{Bytes, BytesMut};
use forebay_client::{
    Attempt, Client, ClientError, DatasetHandle, DatasetRequest, FetchPiece, FetchTarget, JobEvent, JobHandle, JobRequest, Kind, ReadRange,
    RetentionName, Sealed, TailOptions, WriterOptions,
};
use forebay_protocol::ErrorCode;
use forebay_protocol::events::EventKind;
use forebay_protocol::jobs::{CheckpointCompletion, NeedPosition};
use forebay_protocol::partitions::PartitionStateName;
use forebay_protocol::reads::{AcknowledgeRequest, AvailabilityItem, Position};
use futures::{StreamExt as _, TryStreamExt as _};
use std::collections::BTreeMap;
use std::time::Duration;
use store_api::{AttemptId, Offset, PartitionId, SubpartitionIndex};

#[expect(dead_code, reason = "an example is a program of its own; here its work is called")]
#[path = "../../clients/rust/examples/put_get.rs"]
mod put_get;
#[expect(dead_code, reason = "an example is a program of its own; here its work is called")]
#[path = "../../clients/rust/examples/shuffle.rs"]
mod shuffle;
#[expect(dead_code, reason = "an example is a program of its own; here its work is called")]
#[path = "../../clients/rust/examples/tail.rs"]
mod tail;

const KINDS: [(Kind, Option<RetentionName>); 5] = [
    (Kind::Pipelined, Some(RetentionName::UntilAcknowledged)),
    (Kind::Pipelined, Some(RetentionName::BestEffort)),
    (Kind::Pipelined, Some(RetentionName::SinceCheckpoint)),
    (Kind::Blocking, None),
    (Kind::Durable, None),
];
const PATIENCE: Duration = Duration::from_secs(20);
const LIMIT: u64 = 1 << 30;

const fn part(number: u64) -> PartitionId {
    PartitionId::new(number)
}

const fn sub(number: u32) -> SubpartitionIndex {
    SubpartitionIndex::new(number)
}

const FIRST: AttemptId = AttemptId::new(0, 0);

async fn job_at(url: String, name: &str) -> JobHandle {
    let client = Client::builder(url).seed(7).build().expect("a client");
    client.put_job(name, JobRequest { owner_nonce: "driver".to_owned(), ..JobRequest::default() }).await.expect("a job")
}

async fn stage_of(job: &JobHandle, name: &str, (kind, retention): (Kind, Option<RetentionName>)) -> DatasetHandle {
    let request = DatasetRequest { kind: Some(kind), retention, partitions: Some(16), ..DatasetRequest::new(4) };
    job.put_dataset(name, request).await.expect("a dataset")
}

async fn opened(stage: &DatasetHandle, partition: u64) -> Attempt {
    stage.open_attempt(part(partition), FIRST, vec![]).await.expect("an attempt")
}

/// Writes every subpartition of a partition through one frame stream and seals it.
async fn write_framed(stage: &DatasetHandle, partition: u64, contents: &[Bytes]) -> Sealed {
    let options = WriterOptions { block_bytes: 10_000, pending_bytes: 50_000, replay_bytes: 300_000 };
    let mut writer = opened(stage, partition).await.into_writer_with(options);
    let longest = contents.iter().map(Bytes::len).max().unwrap_or_default();
    for at in (0..longest).step_by(7_000) {
        for (index, content) in (0..).zip(contents) {
            let piece = content.slice(at.min(content.len())..(at + 7_000).min(content.len()));
            writer.write(sub(index), piece).await.expect("taken");
        }
    }
    writer.seal().await.expect("sealed")
}

fn contents(seed: u64, lengths: [usize; 4]) -> Vec<Bytes> {
    (seed..).zip(lengths).map(|(seed, length)| Bytes::from(pattern(seed, length))).collect()
}

async fn read_whole(stage: &DatasetHandle, partition: u64, subpartition: u32) -> Bytes {
    let reader = stage.read(part(partition), sub(subpartition), ReadRange::all()).await.expect("a reader");
    reader.collect(LIMIT).await.expect("the bytes")
}

/// Takes a batch to its end: bytes per target, and the errors. Fails when an item ends twice or skips.
async fn fetched(stage: &DatasetHandle, targets: Vec<FetchTarget>, budget_bytes: u64) -> BTreeMap<usize, Result<Bytes, ClientError>> {
    let starts: Vec<u64> = targets.iter().map(|target| target.item.from).collect();
    let mut pieces = stage.fetch(targets, budget_bytes);
    let (mut open, mut ended): (BTreeMap<usize, BytesMut>, BTreeMap<usize, _>) = (BTreeMap::new(), BTreeMap::new());
    while let Some(piece) = pieces.next().await {
        match piece {
            FetchPiece::Bytes { item, offset, bytes } => {
                assert!(!ended.contains_key(&item.target), "item {} goes on after its end", item.target);
                let held = open.entry(item.target).or_default();
                assert_eq!(offset.get(), starts[item.target] + held.len() as u64, "item {} skips", item.target);
                held.extend_from_slice(&bytes);
            }
            FetchPiece::End { item, .. } => {
                let bytes = open.remove(&item.target).unwrap_or_default().freeze();
                assert!(ended.insert(item.target, Ok(bytes)).is_none(), "item {} ends twice", item.target);
            }
            FetchPiece::Failed { item, error, .. } => {
                assert!(ended.insert(item.target, Err(error)).is_none(), "item {} ends twice", item.target);
            }
        }
    }
    ended
}

fn code_of(error: &ClientError) -> Option<ErrorCode> {
    error.problem().map(|problem| problem.code)
}

#[tokio::test]
async fn what_both_writers_write_is_read_back_of_every_kind() {
    let node = Node::start().await;
    let job = job_at(node.url(), "writers").await;
    for (number, kind) in KINDS.into_iter().enumerate() {
        let stage = stage_of(&job, &format!("d{number}"), kind).await;
        let wanted = contents(10, [300_000, 0, 70_001, 1]);
        let sealed = write_framed(&stage, 0, &wanted).await;
        assert!(sealed.is_won(), "{kind:?}");
        assert_eq!((sealed.manifest().total_bytes, sealed.manifest().attempt.as_str()), (370_002, "0.0"), "{kind:?}");
        let mut raw = opened(&stage, 1).await.into_raw_writer();
        for (index, content) in (0..).zip(&wanted) {
            let end = raw.append(sub(index), Offset::ZERO, content.clone()).await.expect("taken");
            assert_eq!(end.get(), content.len() as u64);
            raw.append(sub(index), Offset::ZERO, content.clone()).await.expect("a repeat changes nothing");
        }
        let end = raw.append_from(sub(3), Offset::new(1), &[7_u8; 3_000_000][..]).await.expect("taken from a reader");
        assert_eq!(end.get(), 3_000_001);
        let gap = raw.append(sub(1), Offset::new(5), Bytes::from_static(b"x")).await.expect_err("a gap");
        assert_eq!(code_of(&gap), Some(ErrorCode::OffsetMismatch), "{kind:?}: {gap:?}");
        assert!(raw.seal().await.expect("sealed").is_won(), "{kind:?}");
        for (index, content) in (0..).zip(&wanted) {
            assert_eq!(read_whole(&stage, 0, index).await, *content, "{kind:?}/{index}");
        }
        assert_eq!(read_whole(&stage, 1, 3).await.len(), 3_000_001, "{kind:?}");
        let range = ReadRange::from(Offset::new(100)).to(Offset::new(1_000)).attempt(FIRST);
        let middle = stage.read(part(0), sub(0), range).await.expect("a reader").collect(LIMIT).await.expect("the bytes");
        assert_eq!(middle, wanted[0].slice(100..1_000), "{kind:?}");
        let listed: Vec<_> = stage.partitions(true).try_collect().await.expect("a listing");
        assert_eq!(listed.iter().map(|one| one.total_bytes).collect::<Vec<_>>(), [370_002, 3_370_002], "{kind:?}");
        assert_eq!(stage.state().await.expect("a dataset").n_sealed, 2, "{kind:?}");
        stage.release_partition(part(0)).await.expect("released");
        let gone = stage.read(part(0), sub(0), ReadRange::all()).await.expect_err("it was released");
        assert!(matches!(gone, ClientError::Released(_)), "{kind:?}: {gone:?}");
    }
    assert_eq!(job.datasets().await.expect("a list").datasets.len(), KINDS.len());
    job.release().await.expect("released");
    assert!(matches!(job.state().await, Err(ClientError::Released(_))));
}

#[tokio::test]
async fn a_cut_connection_costs_neither_a_read_nor_a_byte() {
    let node = Node::start().await;
    let direct = job_at(node.url(), "cut").await;
    for (number, kind) in KINDS.into_iter().enumerate() {
        let stage = stage_of(&direct, &format!("d{number}"), kind).await;
        let wanted = contents(20, [3_000_000, 0, 0, 100]);
        write_framed(&stage, 0, &wanted).await;
        let proxy = Proxy::start(node.address, Cuts { sent: u64::MAX, received: 500_000, most: 5 }).await;
        let through = job_at(proxy.url(), "cut").await.dataset(&format!("d{number}")).expect("a dataset");
        assert_eq!(read_whole(&through, 0, 0).await, wanted[0], "{kind:?}");
        assert!(proxy.n_cuts() >= 2, "{kind:?}: {} cuts", proxy.n_cuts());
        let proxy = Proxy::start(node.address, Cuts { sent: u64::MAX, received: 500_000, most: 3 }).await;
        let through = job_at(proxy.url(), "cut").await.dataset(&format!("d{number}")).expect("a dataset");
        let options = TailOptions { from: Offset::new(5), wait: Duration::from_secs(1), ..TailOptions::default() };
        let mut tail = through.tail(part(0), sub(0), options);
        let mut followed = BytesMut::new();
        while let Some(bytes) = tail.next().await {
            followed.extend_from_slice(&bytes.expect("bytes"));
        }
        assert_eq!(followed, wanted[0].slice(5..), "{kind:?}");
        assert!(proxy.n_cuts() >= 2, "{kind:?}: the tail was not cut");
    }
}

#[tokio::test]
async fn a_writer_whose_connection_is_cut_writes_everything_once() {
    let node = Node::start().await;
    let direct = job_at(node.url(), "cut-writes").await;
    for (number, kind) in KINDS.into_iter().enumerate() {
        let stage = stage_of(&direct, &format!("d{number}"), kind).await;
        let proxy = Proxy::start(node.address, Cuts { sent: 200_000, received: u64::MAX, most: 6 }).await;
        let through = job_at(proxy.url(), "cut-writes").await.dataset(&format!("d{number}")).expect("a dataset");
        let wanted = contents(30, [900_000, 10, 400_000, 0]);
        assert!(write_framed(&through, 0, &wanted).await.is_won(), "{kind:?}");
        let mut raw = opened(&through, 1).await.into_raw_writer();
        raw.append(sub(2), Offset::ZERO, wanted[0].clone()).await.expect("taken");
        raw.seal().await.expect("sealed");
        assert!(proxy.n_cuts() >= 3, "{kind:?}: {} cuts", proxy.n_cuts());
        for (index, content) in (0..).zip(&wanted) {
            assert_eq!(read_whole(&stage, 0, index).await, *content, "{kind:?}/{index}");
        }
        assert_eq!(read_whole(&stage, 1, 2).await, wanted[0], "{kind:?}");
    }
}

#[tokio::test]
async fn a_batch_keeps_its_budget_and_one_lost_item_spoils_no_other() {
    let node = Node::start().await;
    let job = job_at(node.url(), "batch").await;
    for (number, kind) in KINDS.into_iter().enumerate() {
        let stage = stage_of(&job, &format!("d{number}"), kind).await;
        for partition in 0..6 {
            write_framed(&stage, partition, &contents(100 + partition, [80_000, 50, 0, 20_000])).await;
        }
        stage.release_partition(part(4)).await.expect("released");
        let mut targets: Vec<_> = (0..8).map(|partition| FetchTarget::anywhere(part(partition), sub(0))).collect();
        let mut middle = FetchTarget::anywhere(part(1), sub(3));
        (middle.item.from, middle.item.to) = (100, Some(200));
        targets.push(middle);
        let answers = fetched(&stage, targets, 100_000).await;
        assert_eq!(answers.len(), 9, "{kind:?}");
        for (target, answer) in answers {
            let partition = target as u64;
            match (target, answer) {
                (4, Err(error)) => assert_eq!(code_of(&error), Some(ErrorCode::Released), "{kind:?}"),
                (6 | 7, Err(error)) => assert_eq!(code_of(&error), Some(ErrorCode::NotWritten), "{kind:?}"),
                (8, Ok(bytes)) => assert_eq!(bytes, contents(101, [0, 0, 0, 20_000])[3].slice(100..200), "{kind:?}"),
                (0..=5, Ok(bytes)) => assert_eq!(bytes, contents(100 + partition, [80_000, 0, 0, 0])[0], "{kind:?}/{target}"),
                (_, other) => panic!("{kind:?}/{target}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn a_batch_finds_its_items_on_whatever_node_holds_them() {
    let objects = tempfile::tempdir().expect("a directory");
    let mut nodes = Vec::new();
    for node in ["node-1", "node-2"] {
        let options = NodeOptions { node, shared_objects: Some(objects.path().to_owned()), ..NodeOptions::default() };
        nodes.push(Node::start_with(options).await);
    }
    let first = stage_of(&job_at(nodes[0].url(), "two-nodes").await, "d", (Kind::Durable, None)).await;
    let second = stage_of(&job_at(nodes[1].url(), "two-nodes").await, "d", (Kind::Durable, None)).await;
    let mut manifests = Vec::new();
    for partition in 0..8 {
        let writer = if partition % 2 == 0 { &first } else { &second };
        manifests.push(write_framed(writer, partition, &contents(partition, [60_000, 9, 0, 0])).await.manifest().clone());
    }
    let lives: std::collections::BTreeSet<_> = manifests.iter().map(|manifest| manifest.location.url.clone()).collect();
    assert_eq!(lives, nodes.iter().map(Node::url).collect(), "both nodes hold something");
    let anywhere = (0..8).map(|partition| FetchTarget::anywhere(part(partition), sub(0))).collect();
    let named = manifests.iter().map(|manifest| FetchTarget::sealed(manifest, sub(0), 1)).collect();
    for (stage, targets) in [(&first, anywhere), (&second, named)] {
        let answers = fetched(stage, targets, 50_000).await;
        assert_eq!(answers.len(), 8);
        for (target, answer) in answers {
            assert_eq!(answer.expect("the bytes"), contents(target as u64, [60_000, 0, 0, 0])[0], "{target}");
        }
    }
}

#[tokio::test]
async fn availability_and_events_tell_what_became_of_partitions() {
    let node = Node::start().await;
    for (number, kind) in KINDS.into_iter().enumerate() {
        let job = job_at(node.url(), &format!("events-{number}")).await;
        let stage = stage_of(&job, "d", kind).await;
        // A cursor before the first event, so that nothing can happen before the stream is there.
        let life = Client::builder(node.url()).build().expect("a client").node().await.expect("a node").location.life;
        let mut events = job.events(Some(format!("{life}-0")));
        let next = async |events: &mut forebay_client::JobEvents| {
            let event = tokio::time::timeout(PATIENCE, events.next()).await.expect("an event in time").expect("no end");
            match event.expect("an event") {
                JobEvent::Happened { cursor, document } => (cursor, document.kind, document.partition),
                JobEvent::Reset { .. } => panic!("nothing was missed"),
            }
        };
        let ten_bytes = contents(1, [10, 0, 0, 0]);
        let (_, (cursor, sealed, partition)) = tokio::join!(write_framed(&stage, 3, &ten_bytes), next(&mut events));
        assert_eq!((sealed, partition), (EventKind::Sealed, Some(3)), "{kind:?}");
        drop(events);
        write_framed(&stage, 4, &contents(1, [10, 0, 0, 0])).await;
        stage.release_partition(part(3)).await.expect("released");
        let mut resumed = job.events(Some(cursor));
        let later = [next(&mut resumed).await, next(&mut resumed).await].map(|(_, kind, partition)| (kind, partition));
        assert_eq!(later, [(EventKind::Sealed, Some(4)), (EventKind::Released, Some(3))], "{kind:?}");
        let _open = opened(&stage, 5).await;
        let item = AvailabilityItem { dataset: "d".to_owned(), partition: 3, n_partitions: 4, subpartition: Some(0) };
        let found = job.availability(vec![item]).await.expect("an answer").partitions;
        let states: Vec<_> = found.iter().map(|entry| (entry.partition, entry.state)).collect();
        use PartitionStateName as S;
        assert_eq!(states, [(3, S::Released), (4, S::Sealed), (5, S::Open), (6, S::NotWritten)], "{kind:?}");
        assert_eq!((found[1].end, found[1].total_bytes, found[1].attempt.as_deref()), (Some(10), Some(10), Some("0.0")), "{kind:?}");
    }
}

fn position(stage_offset: u64, subpartition: u32) -> Position {
    Position { partition: 0, subpartition, offset: stage_offset, attempt: Some("0.0".to_owned()) }
}

#[tokio::test]
async fn what_was_read_is_acknowledged_and_let_go_as_the_retention_says() {
    let node = Node::start().await;
    let job = job_at(node.url(), "floors").await;
    for (number, kind) in KINDS.into_iter().enumerate() {
        let name = format!("d{number}");
        let stage = stage_of(&job, &name, kind).await;
        let wanted = contents(5, [50_000, 50_000, 0, 0]);
        write_framed(&stage, 0, &wanted).await;
        let request = AcknowledgeRequest { group: "default".to_owned(), consumer: None, positions: vec![position(30_000, 0)] };
        let acknowledged = stage.acknowledge(&request).await;
        let (_, Some(retention)) = kind else {
            assert_eq!(code_of(&acknowledged.expect_err("no floors")), Some(ErrorCode::BadRequest));
            continue;
        };
        acknowledged.expect("acknowledged");
        if retention == RetentionName::SinceCheckpoint {
            assert_eq!(read_whole(&stage, 0, 0).await, wanted[0], "nothing goes before a checkpoint");
            let need = |subpartition, offset| NeedPosition {
                dataset: name.clone(),
                partition: 0,
                subpartition,
                group: "default".to_owned(),
                offset,
            };
            let needs = vec![need(0, 30_000), need(1, 0), need(2, 0), need(3, 0)];
            let completion = CheckpointCompletion { need: needs, rewind: Vec::new() };
            let done = job.complete_checkpoint(1, &completion).await.expect("completed");
            // Memory goes by whole chunks, here of at most 10,000 bytes.
            assert!(done.checkpoint == 1 && (20_000..=30_000).contains(&done.freed_bytes), "{done:?}");
        }
        let below = stage.read(part(0), sub(0), ReadRange::from(Offset::new(29_999))).await;
        if retention == RetentionName::BestEffort {
            below.expect("what fits is kept");
            continue;
        }
        assert!(matches!(below, Err(ClientError::BelowFloor { floor: 30_000, .. })), "{retention:?}: {below:?}");
        let rest = stage.read(part(0), sub(0), ReadRange::from(Offset::new(30_000))).await.expect("a reader");
        assert_eq!(rest.collect(LIMIT).await.expect("the bytes"), wanted[0].slice(30_000..), "{retention:?}");
        assert_eq!(read_whole(&stage, 0, 1).await, wanted[1], "{retention:?}: the neighbour keeps everything");
    }
}

#[tokio::test]
async fn a_reader_follows_while_it_is_written_and_a_rival_is_told_who_won() {
    let node = Node::start().await;
    let job = job_at(node.url(), "follow").await;
    for (number, kind) in KINDS.into_iter().enumerate() {
        let stage = stage_of(&job, &format!("d{number}"), kind).await;
        let wanted = Bytes::from(pattern(9, 400_000));
        let (mut writer, reading) = (opened(&stage, 0).await.into_writer(), stage.clone());
        if kind.0 != Kind::Pipelined {
            let mut rival = stage.open_attempt(part(0), AttemptId::new(0, 1), vec![]).await.expect("a rival").into_raw_writer();
            writer.write(sub(0), wanted.clone()).await.expect("taken");
            assert!(writer.seal().await.expect("sealed").is_won());
            let Ok(Sealed::OtherWon(winner)) = rival.seal().await else { panic!("{kind:?}: two winners") };
            assert_eq!(winner.attempt, "0.0");
            continue;
        }
        let follow = tokio::spawn(async move {
            let options = TailOptions { wait: Duration::from_secs(1), ..TailOptions::default() };
            let mut tail = reading.tail(part(0), sub(0), options);
            let mut followed = BytesMut::new();
            while let Some(bytes) = tail.next().await {
                followed.extend_from_slice(&bytes.expect("bytes"));
            }
            followed.freeze()
        });
        for piece in wanted.chunks(30_000) {
            writer.write(sub(0), Bytes::copy_from_slice(piece)).await.expect("taken");
            writer.flush().await.expect("held");
        }
        writer.seal().await.expect("sealed");
        let followed = tokio::time::timeout(PATIENCE, follow).await.expect("in time").expect("no panic");
        assert_eq!(followed, wanted, "{kind:?}");
    }
}

#[tokio::test]
async fn a_node_that_was_started_anew_takes_no_bytes_of_an_old_attempt() {
    let node = Node::start().await;
    let job = job_at(node.url(), "lives").await;
    let stage = stage_of(&job, "d", (Kind::Blocking, None)).await;
    write_framed(&stage, 0, &contents(1, [1_000, 0, 0, 0])).await;
    let (half, options) = (opened(&stage, 1).await, node.restarted());
    let directory = node.stop().await;
    let node = Node::start_on(directory, options).await;
    let mut raw = half.into_raw_writer();
    let refused = raw.append(sub(0), Offset::ZERO, Bytes::from_static(b"x")).await.expect_err("another life");
    assert_eq!(refused.action(), forebay_client::Action::RewriteAttempt, "{refused:?}");
    let stage = job_at(node.url(), "lives").await.dataset("d").expect("a dataset");
    assert_eq!(read_whole(&stage, 0, 0).await.len(), 1_000);
    assert!(write_framed(&stage, 1, &contents(1, [10, 0, 0, 0])).await.is_won());
}

#[tokio::test]
async fn the_examples_run_against_a_node() {
    let node = Node::start().await;
    put_get::run(node.url(), None).await.expect("put_get");
    shuffle::run(node.url(), None).await.expect("shuffle");
    tail::run(node.url(), None).await.expect("tail");
    let token = "0123456789abcdef";
    let node = Node::start_with(NodeOptions { admin_token: Some(token), ..NodeOptions::default() }).await;
    put_get::run(node.url(), Some(token.to_owned())).await.expect("put_get with a token");
    let refused = put_get::run(node.url(), None).await.expect_err("without a token");
    assert_eq!(code_of(&refused), Some(ErrorCode::Unauthenticated));
}

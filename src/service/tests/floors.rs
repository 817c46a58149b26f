//! Acknowledgements and checkpoints.

use super::bench::*;
use crate::service::*;
use store_api::*;

fn position(partition: u64, subpartition: u32, offset: u64) -> ConsumerPosition {
    ConsumerPosition {
        partition: PartitionId::new(partition),
        subpartition: SubpartitionIndex::new(subpartition),
        offset: Offset::new(offset),
        attempt: None,
    }
}

async fn acknowledge(node: &Node, positions: Vec<ConsumerPosition>) -> ServiceResult<AcknowledgeReply> {
    node.service.acknowledge(&id("j"), &dataset_id("d"), None, positions).await
}

#[tokio::test]
async fn an_acknowledgement_moves_the_floor_and_frees_memory_once() {
    let node = Node::with_dataset(StoreClass::Pipelined).await;
    node.open(0, 0, 0).await.unwrap();
    node.write(0, a(0, 0), b"0123456789").await.unwrap();
    let reply = acknowledge(&node, vec![position(0, 0, 4), position(0, 0, 2)]).await.unwrap();
    assert_eq!(reply.floors, [(PartitionId::new(0), SubpartitionIndex::new(0), Offset::new(4))]);
    assert_eq!(reply.freed_bytes, 4);
    assert_eq!(acknowledge(&node, vec![position(0, 0, 3)]).await.unwrap().freed_bytes, 0);
    let readable = node.service.resolve(&at(0), SubpartitionIndex::new(0), None).await.unwrap();
    assert_eq!((readable.floor, readable.end), (Offset::new(4), Offset::new(10)));
    let below = node.read_as(0, None, ReadKind::Tail { wait: std::time::Duration::ZERO }).await;
    assert_eq!(refused(below), ServiceErrorKind::BelowFloor { floor: Offset::new(4) });
    assert_eq!(refused(acknowledge(&node, vec![position(0, 0, 11)]).await), ServiceErrorKind::RangeNotSatisfiable { end: Offset::new(10) });
}

#[tokio::test]
async fn acknowledgements_that_mean_nothing_are_refused() {
    let node = Node::with_dataset(StoreClass::Pipelined).await;
    node.put_dataset("j", "b", StoreClass::Blocking).await;
    node.open(0, 0, 0).await.unwrap();
    let other = node.service.acknowledge(&id("j"), &dataset_id("d"), Some(ConsumerId::new("who").unwrap()), vec![position(0, 0, 0)]).await;
    assert!(matches!(refused(other), ServiceErrorKind::BadRequest { .. }));
    let blocking = node.service.acknowledge(&id("j"), &dataset_id("b"), None, vec![position(0, 0, 0)]).await;
    assert!(matches!(refused(blocking), ServiceErrorKind::BadRequest { .. }));
    assert_eq!(refused(acknowledge(&node, vec![position(0, 4, 0)]).await), ServiceErrorKind::UnknownPartition);
    assert_eq!(refused(acknowledge(&node, vec![position(16, 0, 0)]).await), ServiceErrorKind::UnknownPartition);
    assert_eq!(refused(acknowledge(&node, vec![position(1, 0, 0)]).await), ServiceErrorKind::NotWritten);
}

#[tokio::test]
async fn a_checkpoint_moves_floors_of_its_retention_and_needs_the_epoch() {
    let node = Node::with_dataset(StoreClass::Pipelined).await;
    let request = DatasetRequest { retention: Some(Retention::SinceCheckpoint), ..spec(StoreClass::Pipelined) };
    node.service.put_dataset(&id("j"), &dataset_id("c"), request).await.unwrap();
    let address = PartitionAddress { dataset: dataset_id("c"), ..at(0) };
    node.service.open_attempt(&address, OpenAttempt::default()).await.unwrap();
    let attempt = AttemptAddress { partition: address.clone(), attempt: a(0, 0) };
    let mut sink = node.service.begin_frames(&attempt, node.life()).await.unwrap();
    push(&mut sink, (0..4).map(|sequence| frame(sequence, sequence as u32, b"0123")).collect()).await.unwrap();
    let need = |dataset: &str, subpartition: u32, offset: u64| NeedPosition {
        dataset: dataset_id(dataset),
        partition: PartitionId::new(0),
        subpartition: SubpartitionIndex::new(subpartition),
        group: ConsumerId::new("default").unwrap(),
        offset: Offset::new(offset),
    };
    let complete = |epoch, number, need| node.service.complete_checkpoint(&JOB, epoch, number, need);
    let epoch = Some(JobEpoch::new(1));
    assert_eq!(refused(complete(None, 1, Vec::new()).await), ServiceErrorKind::EpochRequired);
    assert!(matches!(refused(complete(epoch, 1, vec![need("d", 0, 1)]).await), ServiceErrorKind::BadRequest { .. }));
    let all = |offset| (0..4).map(|subpartition| need("c", subpartition, offset)).collect::<Vec<_>>();
    assert_eq!(complete(epoch, 1, all(3)).await.unwrap(), 12);
    assert_eq!(complete(epoch, 1, all(3)).await.unwrap(), 0);
    let readable = node.service.resolve(&address, SubpartitionIndex::new(2), None).await.unwrap();
    assert_eq!(readable.floor, Offset::new(3));
}

static JOB: std::sync::LazyLock<JobId> = std::sync::LazyLock::new(|| id("j"));

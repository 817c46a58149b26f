use super::*;
use crate::layout::Layout;
use bytes::Bytes;
use proptest::prelude::*;
use store_api::{ByteBudget, Chunk, DatasetId, DatasetKey, JobId, JobIncarnation, NodeId, NodeLife, PartitionId, SystemClock};

const CUTTING: Cutting = Cutting { block_bytes: 64, part_bytes: 100, max_part_bytes: 400, has_parts: true };

fn key() -> AttemptKey {
    let dataset = DatasetKey { job: JobId::new("j").unwrap(), incarnation: JobIncarnation::new(1), dataset: DatasetId::new("d").unwrap() };
    dataset.partition(PartitionId::new(0)).attempt(AttemptId::new(0, 0))
}

fn attempt() -> Attempt {
    Attempt::open(key(), Path::from("seal"), 4)
}

fn piece(start: Option<u64>, bytes: Bytes) -> Piece {
    Piece { subpartition: SubpartitionIndex::new(0), start: start.map(Offset::new), chunk: Chunk::new(bytes) }
}

fn take(core: &mut Core, start: u64, bytes: &[u8]) -> Result<u64, StoreErrorKind> {
    let budget = ByteBudget::new(1 << 20, SystemClock::shared());
    let mut permit = budget.try_reserve(bytes.len() as u64).unwrap();
    core.take(4, &piece(Some(start), Bytes::copy_from_slice(bytes)), &mut permit).map(|(_, new_bytes)| new_bytes)
}

fn cut(core: &mut Core, number: u64, is_last: bool) {
    core.cut(&CUTTING, is_last, || {
        let name = ContentName { attempt: key(), node: NodeId::new("n").unwrap(), life: NodeLife::new(1), number };
        let path = Layout::new("x").content(&name);
        (name, path)
    });
}

fn accept_all(core: &mut Core) {
    while let Some(task) = core.next_task() {
        let id = task.part.as_ref().map(|(_, index)| PartId { content_id: index.to_string() });
        assert!(core.accepted(&task, id));
    }
}

#[test]
fn parts_grow_so_that_ten_thousand_hold_a_large_partition_and_then_another_object_begins() {
    let attempt = attempt();
    let mut core = attempt.lock();
    let mut total = 0_u64;
    for number in 0..MAX_PARTS as u64 + 5 {
        let target = core.writing.part_target(&CUTTING);
        let bytes = vec![7; usize::try_from(target).unwrap()];
        take(&mut core, total, &bytes).unwrap();
        total += target;
        cut(&mut core, number, false);
        accept_all(&mut core);
    }
    let objects = &core.writing.objects;
    assert_eq!(objects.len(), 2, "a full upload is followed by another object");
    assert_eq!(objects[0].parts.len(), MAX_PARTS);
    assert!(objects[0].size > 100 * 1000 + 200 * 1000 + 400 * 7900, "{}", objects[0].size);
    assert_eq!(objects.iter().map(|object| object.size).sum::<u64>(), total);
}

#[test]
fn no_part_but_the_last_of_an_upload_is_small() {
    let attempt = attempt();
    let mut core = attempt.lock();
    take(&mut core, 0, &[1; 150]).unwrap();
    cut(&mut core, 0, false);
    // Memory is short: what is too small for a part becomes an object of its own.
    take(&mut core, 150, &[2; 10]).unwrap();
    cut(&mut core, 1, false);
    // The end, and, after a failure, some more: the small last part is followed by nothing.
    take(&mut core, 160, &[3; 10]).unwrap();
    cut(&mut core, 2, true);
    take(&mut core, 170, &[4; 120]).unwrap();
    cut(&mut core, 3, false);
    let shape: Vec<(u64, usize)> = core.writing.objects.iter().map(|object| (object.size, object.parts.len())).collect();
    assert_eq!(shape, [(160, 2), (10, 0), (120, 1)]);
}

#[test]
fn what_fails_is_sent_again_first_and_only_after_the_failure_was_cleared() {
    let attempt = attempt();
    let mut core = attempt.lock();
    take(&mut core, 0, &[1; 150]).unwrap();
    cut(&mut core, 0, false);
    take(&mut core, 150, &[2; 150]).unwrap();
    cut(&mut core, 0, false);
    let task = core.next_task().unwrap();
    core.refused(&task, BucketError::own(crate::error::Fault::Passing, "no"));
    assert!(core.next_task().is_none() && core.stop_pumping());
    core.writing.failure = None;
    let again = core.next_task().unwrap();
    assert_eq!((again.batch, again.part.as_ref().map(|(_, index)| *index)), (task.batch, Some(0)));
    core.refused(&again, BucketError::own(crate::error::Fault::Passing, "no"));
    core.writing.failure = None;
    accept_all(&mut core);
    assert!(core.is_sent());
    let ids: Vec<String> = core.writing.objects[0].parts.iter().flatten().map(|part| part.content_id.clone()).collect();
    assert_eq!(ids, ["0", "1"], "parts are listed by position");
}

#[test]
fn what_arrives_after_the_end_is_not_wanted() {
    let attempt = attempt();
    let mut core = attempt.lock();
    take(&mut core, 0, &[1; 150]).unwrap();
    cut(&mut core, 0, false);
    let task = core.next_task().unwrap();
    let ended = core.end(AttemptState::Released, None).unwrap();
    assert_eq!((ended.bytes, ended.objects.len()), (150, 1));
    assert!(!core.accepted(&task, None));
    assert!(core.end(AttemptState::Aborted, None).is_none(), "an end is final");
    assert_eq!((core.refusal(), core.held()), (Some(StoreErrorKind::Released), (0, 0)));
}

proptest! {
    /// Repeats of any cut, over bytes that are buffered, on their way, and accepted: what is equal
    /// is never taken twice, what differs is never taken for equal.
    #[test]
    fn repeats_are_told_from_other_bytes(
        lengths in proptest::collection::vec(1_usize..80, 1..12), sent in 0_usize..12, accepted in 0_usize..12,
        start in 0_u64..600, length in 1_usize..200, flip in proptest::option::of(0_usize..200),
    ) {
        let attempt = attempt();
        let mut core = attempt.lock();
        let (mut held, mut ends) = (Vec::new(), vec![0_u64]);
        for (at, part) in lengths.iter().enumerate() {
            let bytes: Vec<u8> = (0..*part).map(|position| u8::try_from((position * 11 + at * 3) % 250).unwrap()).collect();
            prop_assert_eq!(take(&mut core, held.len() as u64, &bytes), Ok(*part as u64));
            held.extend(bytes);
            ends.push(held.len() as u64);
            if at < sent {
                cut(&mut core, at as u64, false);
                if at < accepted {
                    accept_all(&mut core);
                }
            }
        }
        let tail = held.len() as u64;
        let start = start.min(tail);
        let from = usize::try_from(start).unwrap();
        let mut repeat: Vec<u8> = held[from..].iter().copied().chain(std::iter::repeat(9)).take(length).collect();
        let overlap = (held.len() - from).min(length);
        let flipped = flip.map(|at| at % length).filter(|at| *at < overlap);
        if let Some(at) = flipped {
            repeat[at] ^= 1;
        }
        let answer = take(&mut core, start, &repeat);
        match answer {
            Ok(new_bytes) => {
                prop_assert_eq!(flipped, None, "other bytes were taken for a repeat");
                prop_assert_eq!(new_bytes, (length - overlap) as u64);
            }
            Err(StoreErrorKind::ContentMismatch { expected }) => {
                prop_assert_eq!(expected, Offset::new(tail));
                prop_assert!(flipped.is_some(), "a repeat was taken for other bytes");
            }
            Err(StoreErrorKind::BelowFloor { floor }) => {
                // Nothing is refused that is still in memory, nor what starts and ends where pieces did.
                prop_assert!(accepted > 0 && sent > 0 && start < floor.get() && floor.get() <= tail, "{floor:?}");
                let end = start + overlap as u64;
                prop_assert!(!(ends.contains(&start) && ends.contains(&end)), "a repeat of whole pieces was refused");
                // From the floor on it is judged.
                let from_floor = usize::try_from(floor.get()).unwrap();
                prop_assert_eq!(take(&mut core, floor.get(), &held[from_floor..]), Ok(0));
            }
            Err(kind) => return Err(TestCaseError::fail(format!("{kind:?}"))),
        }
    }
}

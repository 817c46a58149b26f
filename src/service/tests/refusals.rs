//! Every "no" of the service can be reached, and is told apart from every other.

use super::bench::*;
use crate::service::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store_api::*;

/// The name of a refusal. No catch-all: a new kind does not compile until it has a name here, and the
/// test below then wants to see it.
const fn name(kind: &ServiceErrorKind) -> &'static str {
    use ServiceErrorKind as K;
    match kind {
        K::BadRequest { .. } => "bad_request",
        K::Unauthenticated => "unauthenticated",
        K::Forbidden => "forbidden",
        K::UnknownJob => "unknown_job",
        K::UnknownDataset => "unknown_dataset",
        K::UnknownPartition => "unknown_partition",
        K::UnknownAttempt => "unknown_attempt",
        K::NotWritten => "not_written",
        K::NotSealed => "not_sealed",
        K::AlreadySealed => "already_sealed",
        K::OffsetMismatch { .. } => "offset_mismatch",
        K::ContentMismatch { .. } => "content_mismatch",
        K::SequenceMismatch { .. } => "sequence_mismatch",
        K::DigestMismatch { .. } => "digest_mismatch",
        K::SpecConflict { .. } => "spec_conflict",
        K::JobOwned { .. } => "job_owned",
        K::OtherAttemptWon { .. } => "other_attempt_won",
        K::Aborted => "aborted",
        K::Released => "released",
        K::Expired => "expired",
        K::Lost { .. } => "lost",
        K::BelowFloor { .. } => "below_floor",
        K::Fenced { .. } => "fenced",
        K::TooLarge { .. } => "too_large",
        K::RangeNotSatisfiable { .. } => "range_not_satisfiable",
        K::ClassUnavailable { .. } => "class_unavailable",
        K::EpochRequired => "epoch_required",
        K::LifeRequired => "life_required",
        K::OverQuota { .. } => "over_quota",
        K::Internal => "internal",
        K::Overloaded { .. } => "overloaded",
        K::Draining => "draining",
        K::Closing => "closing",
        K::Unavailable { .. } => "unavailable",
        K::DiskFull => "disk_full",
        K::RetentionExhausted => "retention_exhausted",
        K::Moved { .. } => "moved",
    }
}

/// Refusals that only a store or the wire layer brings about; each is a store's word that is passed on.
const OF_STORES: [&str; 5] = ["internal", "closing", "disk_full", "retention_exhausted", "moved"];
/// All others: each is reached below.
const REACHED: usize = 32;

#[derive(Default)]
struct Seen(BTreeSet<&'static str>);

impl Seen {
    #[track_caller]
    fn note<T>(&mut self, expected: &'static str, outcome: ServiceResult<T>) {
        let kind = refused(outcome);
        assert_eq!(name(&kind), expected, "{kind:?}");
        assert!(!kind.to_string().is_empty());
        self.0.insert(expected);
    }
}

async fn refuse_writes(seen: &mut Seen) {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    seen.note("unknown_partition", node.open(16, 0, 0).await);
    seen.note("unknown_attempt", node.write(0, a(0, 0), b"x").await);
    node.open(0, 0, 0).await.unwrap();
    let subpartition = SubpartitionIndex::new(0);
    seen.note("life_required", node.service.begin_append(&of(0, a(0, 0)), None, subpartition, None, None).await.map(drop));
    node.write(0, a(0, 0), b"12345").await.unwrap();
    for (offset, bytes, expected) in [(9, b"x", "offset_mismatch"), (0, b"z", "content_mismatch")] {
        let begun = node.service.begin_append(&of(0, a(0, 0)), node.life(), subpartition, Some(Offset::new(offset)), Some(1)).await;
        // A gap is refused before any byte is taken, other bytes once they are seen.
        let mut sink = match begun {
            Ok(sink) => sink,
            Err(error) => {
                seen.note(expected, Err::<(), _>(error));
                continue;
            }
        };
        let permit = sink.reserve(1).await.unwrap();
        let pushed = sink.push(bytes::Bytes::copy_from_slice(bytes), permit).await;
        seen.note(
            expected,
            match pushed {
                Ok(()) => sink.finish().await.map(drop),
                Err(error) => Err(error),
            },
        );
    }
    let mut frames = node.service.begin_frames(&of(0, a(0, 0)), node.life()).await.unwrap();
    seen.note("sequence_mismatch", push(&mut frames, vec![frame(7, 0, b"x")]).await);
    let stated = StatedContent { indices: Some(vec![0]), lengths: vec![4], crcs: None };
    seen.note("digest_mismatch", node.service.seal(&of(0, a(0, 0)), node.life(), Some(stated)).await);
    seen.note("not_sealed", node.read(0).await);
    node.seal(0, a(0, 0)).await.unwrap();
    seen.note("already_sealed", node.write(0, a(0, 0), b"x").await);
    seen.note("other_attempt_won", node.open(0, 0, 3).await);
    seen.note("epoch_required", node.service.open_attempt(&at(0), OpenAttempt { generation: 1, ..OpenAttempt::default() }).await);
    node.open(0, 1, 0).await.unwrap();
    seen.note("fenced", node.write(0, a(0, 0), b"x").await);
    node.service.abort_attempt(&of(0, a(1, 0)), node.life()).await.unwrap();
    seen.note("aborted", node.write(0, a(1, 0), b"x").await);
}

async fn refuse_reads(seen: &mut Seen) {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    seen.note("unknown_job", node.service.job(&id("nobody")).await);
    seen.note("unknown_dataset", node.service.dataset(&id("j"), &dataset_id("none")).await);
    seen.note("not_written", node.read(0).await);
    node.produce(0, b"12345").await;
    let beyond =
        ReadCall { attempt: None, subpartition: SubpartitionIndex::new(0), start: Offset::new(6), end: None, kind: ReadKind::Sealed };
    seen.note("range_not_satisfiable", node.service.read(&at(0), beyond).await.map(drop));
    let want = FetchWant {
        partition: PartitionId::new(0),
        subpartition: SubpartitionIndex::new(0),
        start: Offset::ZERO,
        end: None,
        attempt: None,
    };
    let wants = vec![want; node.config.max_fetch_items + 1];
    seen.note("too_large", node.service.fetch(&id("j"), &dataset_id("d"), wants, None).await.map(drop));
    node.blocking.loses_reads.store(true, Ordering::SeqCst);
    seen.note("lost", node.read(0).await);
    node.release(1).await.unwrap();
    seen.note("released", node.read(1).await);
    let pipelined = Node::with_dataset(StoreClass::Pipelined).await;
    pipelined.open(0, 0, 0).await.unwrap();
    pipelined.write(0, a(0, 0), b"12345").await.unwrap();
    let position =
        ConsumerPosition { partition: PartitionId::new(0), subpartition: SubpartitionIndex::new(0), offset: Offset::new(3), attempt: None };
    pipelined.service.acknowledge(&id("j"), &dataset_id("d"), None, vec![position]).await.unwrap();
    seen.note("below_floor", pipelined.read_as(0, None, ReadKind::Tail { wait: Duration::ZERO }).await);
}

async fn refuse_control(seen: &mut Seen) {
    let node = Node::start().await;
    node.put_job("j").await;
    let other = JobRequest { owner_nonce: "other".to_owned(), ..JobRequest::default() };
    seen.note("job_owned", node.service.put_job(&id("j"), other).await);
    let empty = DatasetRequest { n_subpartitions: 0, ..spec(StoreClass::Blocking) };
    seen.note("bad_request", node.service.put_dataset(&id("j"), &dataset_id("d"), empty).await);
    node.put_dataset("j", "d", StoreClass::Blocking).await;
    let differing = DatasetRequest { n_subpartitions: 9, ..spec(StoreClass::Blocking) };
    seen.note("spec_conflict", node.service.put_dataset(&id("j"), &dataset_id("d"), differing).await);
    node.catalog.fails_writes.store(true, Ordering::SeqCst);
    seen.note("unavailable", node.service.put_job(&id("new"), JobRequest::default()).await);
    node.catalog.fails_writes.store(false, Ordering::SeqCst);
    node.pass(node.config.default_lease).await;
    seen.note("expired", node.read(0).await);
    node.service.begin_drain();
    seen.note("draining", node.service.put_job(&id("late"), JobRequest::default()).await);
}

async fn refuse_access_and_class(seen: &mut Seen) {
    let config = ServiceConfig { admin_token_hash: Some(hash_token("the-admin-token-of-this-test")), ..ServiceConfig::default() };
    let node = Node::with(config).await;
    let token = node.put_job("j").await.token.unwrap();
    node.put_job("other").await;
    seen.note("unauthenticated", node.service.authorize(Need::Job(&id("j")), None).await);
    seen.note("forbidden", node.service.authorize(Need::Job(&id("other")), Some(&token)).await);
    let parts = ServiceParts {
        stores: Stores::default(),
        local_catalog: Arc::new(TestCatalog::default()),
        shared_catalog: None,
        medium: None,
        arbiter: Arc::new(LocalArbiter::new()),
        clock: node.clock.clone(),
        tasks: TaskGroup::new(),
        node: NodeId::new("bare").unwrap(),
        life: NodeLife::new(1),
        url: String::new(),
        random: Arc::new(Fixed),
    };
    let bare = PartitionService::start(ServiceConfig::default(), parts).await.unwrap();
    bare.put_job(&id("j"), JobRequest::default()).await.unwrap();
    seen.note("class_unavailable", bare.put_dataset(&id("j"), &dataset_id("d"), spec(StoreClass::Durable)).await);
}

struct Fixed;

impl RandomSource for Fixed {
    fn next_u64(&self) -> u64 {
        7
    }
}

async fn refuse_for_want_of_room(seen: &mut Seen) {
    let node = Node::start().await;
    node.service.put_job(&id("j"), JobRequest { quota_bytes: Some(4), ..JobRequest::default() }).await.unwrap();
    node.put_dataset("j", "d", StoreClass::Blocking).await;
    node.open(0, 0, 0).await.unwrap();
    seen.note("over_quota", node.write(0, a(0, 0), b"12345").await);
    let busy = Node::with_dataset(StoreClass::Blocking).await;
    busy.open(0, 0, 0).await.unwrap();
    let sink = busy.service.begin_frames(&of(0, a(0, 0)), busy.life()).await.unwrap();
    let _all = sink.reserve(BUDGET).await.unwrap();
    seen.note("overloaded", crate::test_time::hasten(&busy.clock, sink.reserve(1)).await.map(drop));
}

#[tokio::test]
async fn every_refusal_of_the_service_can_be_reached_and_has_a_name_of_its_own() {
    let mut seen = Seen::default();
    refuse_writes(&mut seen).await;
    refuse_reads(&mut seen).await;
    refuse_control(&mut seen).await;
    refuse_access_and_class(&mut seen).await;
    refuse_for_want_of_room(&mut seen).await;
    assert_eq!(seen.0.len(), REACHED, "{:?}", seen.0);
    assert!(OF_STORES.iter().all(|name| !seen.0.contains(name)));
}

/// A store's refusals keep their meaning on their way through the service.
#[test]
fn what_a_store_refuses_is_passed_on_in_the_services_words() {
    let retry_after = Duration::from_millis(1234);
    let digest = Digest { length: 1, crc: Crc32c::default() };
    let by = a(3, 4);
    let cases: Vec<(StoreErrorKind, &str)> = vec![
        (StoreErrorKind::NotFound, "unknown_attempt"),
        (StoreErrorKind::NotSealed, "not_sealed"),
        (StoreErrorKind::AlreadySealed, "already_sealed"),
        (StoreErrorKind::OffsetMismatch { expected: Offset::new(1) }, "offset_mismatch"),
        (StoreErrorKind::ContentMismatch { expected: Offset::new(1) }, "content_mismatch"),
        (StoreErrorKind::BelowFloor { floor: Offset::new(1) }, "below_floor"),
        (StoreErrorKind::BeyondEnd { end: Offset::new(1) }, "range_not_satisfiable"),
        (StoreErrorKind::NoSuchSubpartition { count: 1 }, "unknown_partition"),
        (StoreErrorKind::DigestMismatch { subpartition: 0, held: digest, stated: digest }, "digest_mismatch"),
        (StoreErrorKind::Fenced { by }, "fenced"),
        (StoreErrorKind::Aborted, "aborted"),
        (StoreErrorKind::Released, "released"),
        (StoreErrorKind::Lost { cause: LossCause::Corruption }, "lost"),
        (StoreErrorKind::Overloaded { retry_after }, "overloaded"),
        (StoreErrorKind::RetentionExhausted, "retention_exhausted"),
        (StoreErrorKind::TooLarge { requested: 2, limit: 1 }, "too_large"),
        (StoreErrorKind::DiskFull, "disk_full"),
        (StoreErrorKind::Unsupported { reason: "x" }, "class_unavailable"),
        (StoreErrorKind::Unavailable { retry_after }, "unavailable"),
        (StoreErrorKind::Conflict, "unavailable"),
        (StoreErrorKind::Closing, "closing"),
        (StoreErrorKind::Format { reason: "x".to_owned() }, "internal"),
        (StoreErrorKind::Internal, "internal"),
    ];
    for (kind, expected) in cases {
        let error = ServiceError::from(StoreError::new(kind.clone(), Operation::Read, "j@1/d/0/0.0").with_source("/private/path"));
        assert_eq!(name(error.kind()), expected, "{kind:?}");
        assert!(!error.to_string().contains("private"), "the cause is for the log alone");
        if let ServiceErrorKind::Overloaded { retry_after: passed } | ServiceErrorKind::Unavailable { retry_after: passed } = error.kind() {
            assert!(*passed == retry_after || kind == StoreErrorKind::Conflict, "the time to come back is passed on");
        }
    }
}

#[tokio::test]
async fn a_writer_that_finds_no_room_is_told_when_to_come_back_and_then_finds_it() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.open(0, 0, 0).await.unwrap();
    let sink = node.service.begin_frames(&of(0, a(0, 0)), node.life()).await.unwrap();
    let all = sink.reserve(BUDGET).await.unwrap();
    let before = node.clock.monotonic();
    let refusal = refused(crate::test_time::hasten(&node.clock, sink.reserve(1000)).await);
    let waited = node.clock.monotonic().saturating_sub(before);
    assert!(waited >= node.config.append_patience, "it was refused after {waited:?}");
    let ServiceErrorKind::Overloaded { retry_after } = refusal else { panic!("{refusal:?}") };
    assert!((Duration::from_millis(50)..=Duration::from_secs(30)).contains(&retry_after), "{retry_after:?}");
    assert_eq!(node.service.counters().overloaded.value(), 1);
    drop(all);
    assert!(sink.reserve(1000).await.is_ok());
}

/// Which writes go through, by what they name: the life of the node, and the attempt.
#[tokio::test]
async fn the_fencing_table_holds_for_every_kind_of_write() {
    let node = Node::with_dataset(StoreClass::Blocking).await;
    node.open(0, 0, 0).await.unwrap();
    node.open(0, 1, 2).await.unwrap();
    node.open(0, 1, 3).await.unwrap();
    node.service.abort_attempt(&of(0, a(1, 3)), node.life()).await.unwrap();
    // Named is the highest attempt that was opened, also when it has been aborted since.
    let by_attempt = ServiceErrorKind::Fenced { by: FencedBy::Attempt(a(1, 3)) };
    let by_life = ServiceErrorKind::Fenced { by: FencedBy::Life(NodeLife::new(1)) };
    let (right, former) = (node.life(), Some(NodeLife::new(0xDEAD)));
    let table = [
        (None, a(1, 2), Some(ServiceErrorKind::LifeRequired)),
        (former, a(1, 2), Some(by_life.clone())),
        (former, a(0, 0), Some(by_life)),
        (right, a(0, 0), Some(by_attempt.clone())),
        (right, a(0, 9), Some(by_attempt)),
        (right, a(1, 3), Some(ServiceErrorKind::Aborted)),
        (right, a(1, 7), Some(ServiceErrorKind::UnknownAttempt)),
        (right, a(2, 0), Some(ServiceErrorKind::UnknownAttempt)),
        (right, a(1, 2), None),
    ];
    for (life, attempt, expected) in table {
        let (service, address) = (&node.service, of(0, attempt));
        let appended = service.begin_append(&address, life, SubpartitionIndex::new(0), None, Some(1)).await.map(drop);
        let framed = service.begin_frames(&address, life).await.map(drop);
        let stated = StatedContent { indices: Some(vec![0]), lengths: vec![99], crcs: None };
        let sealed = service.seal(&address, life, Some(stated)).await.map(drop);
        match expected {
            Some(expected) => {
                assert_eq!(refused(appended), expected, "append to {attempt} with {life:?}");
                assert_eq!(refused(framed), expected, "frames to {attempt} with {life:?}");
                assert_eq!(refused(sealed), expected, "seal of {attempt} with {life:?}");
            }
            None => {
                assert!(appended.is_ok() && framed.is_ok(), "{attempt}");
                assert!(matches!(refused(sealed), ServiceErrorKind::DigestMismatch { .. }), "it came as far as the content");
            }
        }
    }
}

/// A quota is a bound on what is held and on its way, to the byte, whatever the class.
#[tokio::test]
async fn a_quota_is_exact_to_the_byte_and_never_waited_for() {
    for class in [StoreClass::Pipelined, StoreClass::Blocking, StoreClass::Durable] {
        let node = Node::start().await;
        node.service.put_job(&id("j"), JobRequest { quota_bytes: Some(100), ..JobRequest::default() }).await.unwrap();
        node.put_dataset("j", "d", class).await;
        node.open(0, 0, 0).await.unwrap();
        node.write(0, a(0, 0), &[1; 60]).await.unwrap();
        assert!(matches!(refused(node.write(0, a(0, 0), &[2; 41]).await), ServiceErrorKind::OverQuota { quota_bytes: 100, .. }), "{class}");
        node.write(0, a(0, 0), &[3; 40]).await.unwrap();
        assert!(matches!(refused(node.write(0, a(0, 0), &[4; 1]).await), ServiceErrorKind::OverQuota { .. }), "{class}");
        assert_eq!(node.service.job(&id("j")).await.unwrap().held.total(), 100, "{class}");
        node.seal(0, a(0, 0)).await.unwrap();
        assert_eq!(node.read(0).await.unwrap().len(), 100, "{class}: what was refused left no byte");
        assert_eq!(node.clock.monotonic(), Duration::ZERO, "a quota is refused at once");
    }
}

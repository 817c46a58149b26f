//! Calls whose outcome nobody knows: replies that are lost, puts that arrive late, answers that are
//! cut without a word; alone, and drawn at random over two nodes.

use crate::support::{
    Call, Fault, FaultBucket, append, assert_holds, attempt, config, fresh, open, open_as, pattern, prepare, read, seal, spec, write,
};
use crate::{count, eventually, eventually_named, job_scope};
use forebay_store_object::{Config, ObjectStore};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use store_api::{
    Arbitration, AttemptId, AttemptKey, AttemptState, DatasetSpec, JobIncarnation, LossCause, OpenRequest, PartitionStore, ReleaseScope,
    SealOutcome, StoreErrorKind,
};

/// A prepared attempt of 25,000 bytes whose publication was answered with an error.
async fn published_into_the_dark(bucket: &FaultBucket, store: &ObjectStore, key: &AttemptKey, create: Fault) {
    write(store, key, 0, 25_000).await;
    prepare(store, key).await.unwrap();
    bucket.fail(Call::Create, ".seal", create, usize::MAX);
    bucket.fail(Call::Get, ".seal", Fault::Status(503), usize::MAX);
    let error = store.publish(key).await.unwrap_err();
    assert!(matches!(error.kind(), StoreErrorKind::Unavailable { .. }), "{error:?}");
    assert_eq!(store.stat(key).await.unwrap().state, AttemptState::Prepared);
}

#[tokio::test]
async fn an_abort_takes_nothing_away_that_turns_out_to_be_sealed() {
    let (bucket, one) = fresh().await;
    let two = open_as(&bucket, config(), "n2", 2).await.unwrap();
    let (key, rival) = (attempt(0, 0, 0), attempt(0, 0, 1));
    published_into_the_dark(&bucket, &one, &key, Fault::ReplyLost).await;
    let error = one.abort(&key).await.unwrap_err();
    assert!(matches!(error.kind(), StoreErrorKind::Unavailable { .. }), "not knowing is no permission: {error:?}");
    assert_eq!(one.stat(&key).await.unwrap().state, AttemptState::Prepared, "nothing has changed");
    bucket.heal();
    assert_eq!(*one.abort(&key).await.unwrap_err().kind(), StoreErrorKind::AlreadySealed);
    assert_eq!(one.stat(&key).await.unwrap().state, AttemptState::Sealed);
    write(&two, &rival, 0, 25_000).await;
    let SealOutcome::Lost(winner) = seal(&two, &rival).await else { panic!("the first seal stands") };
    assert_eq!(winner.attempt, key);
    for store in [&one, &two] {
        assert_holds(store, &key, 0, 25_000).await;
    }
    assert!(matches!(one.publish(&key).await.unwrap(), SealOutcome::Won(_)));
}

#[tokio::test]
async fn a_manifest_that_arrives_after_the_abort_still_speaks_of_content_that_is_there() {
    let (bucket, one) = fresh().await;
    let two = open_as(&bucket, config(), "n2", 2).await.unwrap();
    let (key, rival) = (attempt(0, 0, 0), attempt(0, 0, 1));
    published_into_the_dark(&bucket, &one, &key, Fault::Late).await;
    bucket.heal();
    one.abort(&key).await.unwrap();
    assert_eq!(*one.publish(&key).await.unwrap_err().kind(), StoreErrorKind::Aborted);
    assert_eq!(one.held(key.job(), JobIncarnation::new(1)).total(), 0);
    assert!(bucket.deliver().await >= 1, "it was on its way");
    write(&two, &rival, 0, 25_000).await;
    let SealOutcome::Lost(winner) = seal(&two, &rival).await else { panic!("the late one was first") };
    assert_eq!(winner.attempt, key);
    assert_holds(&two, &key, 0, 25_000).await;
    two.release(job_scope()).await.unwrap();
    assert!(bucket.names(".bytes").await.is_empty(), "it goes with its job");
}

#[tokio::test]
async fn an_abort_behind_a_rival_takes_its_own_content_and_not_the_rivals() {
    let (bucket, one) = fresh().await;
    let two = open_as(&bucket, config(), "n2", 2).await.unwrap();
    let (key, rival) = (attempt(0, 0, 0), attempt(0, 0, 1));
    write(&two, &rival, 0, 25_000).await;
    prepare(&two, &rival).await.unwrap();
    published_into_the_dark(&bucket, &one, &key, Fault::Late).await;
    bucket.heal();
    assert!(matches!(two.publish(&rival).await.unwrap(), SealOutcome::Won(_)));
    one.abort(&key).await.unwrap();
    assert_eq!(bucket.deliver().await, 0, "the name is taken");
    assert_eq!(bucket.names(".bytes").await.len(), 1, "its own content is gone at once");
    for store in [&one, &two] {
        assert_holds(store, &rival, 0, 25_000).await;
    }
}

#[tokio::test]
async fn a_manifest_that_arrives_after_a_release_is_no_trap_for_others() {
    let by = AttemptId::new(1, 0);
    let partition = || attempt(0, 0, 0).partition;
    let scopes = [
        (ReleaseScope::Partition(partition()), true),
        (ReleaseScope::GenerationsBelow { partition: partition(), by }, true),
        (ReleaseScope::Attempt(attempt(0, 0, 0)), false),
    ];
    for (scope, is_tombstoned) in scopes {
        let (bucket, one) = fresh().await;
        let two = open_as(&bucket, config(), "n2", 2).await.unwrap();
        let (key, rival) = (attempt(0, 0, 0), attempt(0, 0, 1));
        write(&two, &rival, 0, 25_000).await;
        prepare(&two, &rival).await.unwrap();
        published_into_the_dark(&bucket, &one, &key, Fault::Late).await;
        bucket.heal();
        one.release(scope.clone()).await.unwrap();
        assert_eq!(bucket.deliver().await == 0, is_tombstoned, "{scope:?}");
        match two.publish(&rival).await {
            // The generation is closed, and its content gone.
            Err(error) => {
                assert!(is_tombstoned, "{scope:?}: {error:?}");
                assert!(bucket.names(".bytes").await.is_empty(), "{scope:?}");
            }
            Ok(SealOutcome::Lost(winner)) => {
                assert!(!is_tombstoned && winner.attempt == key, "{scope:?}");
                assert_holds(&two, &key, 0, 25_000).await;
            }
            Ok(SealOutcome::Won(_)) => panic!("{scope:?}: something stands there"),
        }
        let mine = read(&one, &key, 0).await.unwrap_err();
        assert!(matches!(mine.kind(), StoreErrorKind::Released | StoreErrorKind::Fenced { .. }), "{scope:?}: {mine:?}");
    }
}

#[tokio::test]
async fn where_the_engine_arbitrates_a_released_attempt_cannot_come_late() {
    let (bucket, store) = fresh().await;
    let key = attempt(0, 0, 0);
    let engine = Arc::new(DatasetSpec { arbitration: Arbitration::Engine, ..(*spec()).clone() });
    store.open(OpenRequest { attempt: key.clone(), spec: engine, starts: Vec::new() }).await.unwrap();
    published_into_the_dark(&bucket, &store, &key, Fault::Late).await;
    bucket.heal();
    store.release(ReleaseScope::Attempt(key.clone())).await.unwrap();
    assert_eq!(bucket.deliver().await, 0, "a tombstone stands there");
    assert!(bucket.names(".bytes").await.is_empty());
    let next = open_as(&bucket, config(), "n1", 2).await.unwrap();
    assert_eq!(*read(&next, &key, 0).await.unwrap_err().kind(), StoreErrorKind::Released);
}

#[tokio::test]
async fn an_upload_whose_end_cannot_be_looked_at_is_not_lost() {
    let (bucket, store) = fresh().await;
    let key = attempt(0, 0, 0);
    write(&store, &key, 0, 25_000).await;
    // The object was made, the reply is lost, and nobody says whether it is there.
    bucket.fail(Call::Complete, ".bytes", Fault::ReplyLost, 1);
    bucket.fail(Call::Get, ".bytes", Fault::Status(503), usize::MAX);
    let error = prepare(&store, &key).await.unwrap_err();
    assert!(matches!(error.kind(), StoreErrorKind::Unavailable { .. }), "{error:?}");
    assert_eq!(store.stat(&key).await.unwrap().state, AttemptState::Open);
    bucket.heal();
    assert!(matches!(seal(&store, &key).await, SealOutcome::Won(_)));
    assert_holds(&store, &key, 0, 25_000).await;
}

#[tokio::test]
async fn a_body_that_ends_early_without_a_word_is_never_the_whole() {
    let (bucket, store) = fresh().await;
    let (large, small) = (attempt(0, 0, 0), attempt(1, 0, 0));
    write(&store, &large, 2, 50_000).await;
    write(&store, &small, 2, 700).await;
    seal(&store, &large).await;
    seal(&store, &small).await;
    for cut in [0, 1, 999, 1000, 3999] {
        for name in [".bytes", ".seal"] {
            bucket.fail(Call::Get, name, Fault::EndAt(cut), 1);
            assert_holds(&store, &large, 2, 50_000).await;
            assert_holds(&store, &small, 2, 700).await;
            bucket.heal();
        }
    }
    for name in [".bytes", ".seal"] {
        bucket.fail(Call::Get, name, Fault::EndAt(0), usize::MAX);
        for key in [&large, &small] {
            match read(&store, key, 2).await {
                Err(error) => assert!(matches!(error.kind(), StoreErrorKind::Unavailable { .. }), "{name}: {error:?}"),
                Ok(bytes) => assert!(name == ".bytes" && *key == small && bytes.len() == 700, "{} bytes of {key} for {name}", bytes.len()),
            }
        }
        bucket.heal();
    }
    assert_holds(&store, &large, 2, 50_000).await;
}

#[tokio::test]
async fn a_store_that_answers_another_range_than_asked_for_is_not_believed() {
    let (bucket, store) = fresh().await;
    let key = attempt(0, 0, 0);
    write(&store, &key, 1, 30_000).await;
    seal(&store, &key).await;
    bucket.fail(Call::Get, ".bytes", Fault::IgnoresRange, usize::MAX);
    // The first range starts at 0, and what is too much of its answer is left.
    let error = read(&store, &key, 1).await.unwrap_err();
    assert_eq!(*error.kind(), StoreErrorKind::Internal, "{error:?}");
    bucket.heal();
    assert_holds(&store, &key, 1, 30_000).await;
    assert_eq!(store.stat(&key).await.unwrap().state, AttemptState::Sealed, "a lie is no loss");
}

#[tokio::test]
async fn while_the_store_is_silent_nothing_is_decided_and_few_calls_are_made() {
    let (bucket, store) = fresh().await;
    let (done, open_one) = (attempt(0, 0, 0), attempt(1, 0, 0));
    write(&store, &done, 0, 5000).await;
    seal(&store, &done).await;
    write(&store, &open_one, 0, 5000).await;
    bucket.take_counts();
    let tries = config().tries as usize;
    for code in [429, 500, 503] {
        for call in [Call::Put, Call::Create, Call::Get, Call::Delete, Call::List, Call::Begin, Call::Part] {
            bucket.fail(call, "", Fault::Status(code), usize::MAX);
        }
        let passing = |kind: &StoreErrorKind| assert!(matches!(kind, StoreErrorKind::Unavailable { .. }), "{code}: {kind:?}");
        passing(read(&store, &done, 0).await.unwrap_err().kind());
        passing(store.locate(&done.partition, &spec(), 0).await.unwrap_err().kind());
        passing(prepare(&store, &open_one).await.unwrap_err().kind());
        passing(store.release(ReleaseScope::Partition(attempt(9, 0, 0).partition)).await.unwrap_err().kind());
        passing(store.recover().await.unwrap_err().kind());
        let counts = bucket.take_counts();
        let most = BTreeMap::from([(Call::Put, tries), (Call::Get, 5 * (tries + 2)), (Call::List, 1)]);
        for (call, made) in &counts {
            assert!(made <= most.get(call).unwrap_or(&tries), "{call:?} {made} times: {counts:?}");
        }
        bucket.heal();
    }
    assert_holds(&store, &done, 0, 5000).await;
    seal(&store, &open_one).await;
    assert_holds(&store, &open_one, 0, 5000).await;
    assert_eq!(count(&bucket.take_counts(), Call::Delete), 0, "nothing was deleted on the account of a silence");
}

#[tokio::test]
async fn a_start_that_cannot_see_everything_takes_nothing_for_lost() {
    let (bucket, store) = fresh().await;
    for number in 0..12 {
        let key = attempt(number, 0, 0);
        write(&store, &key, 0, if number.is_multiple_of(2) { 500 } else { 5000 }).await;
        seal(&store, &key).await;
    }
    let names = bucket.names("partitions/").await;
    let lists = Config { lists_at_start: true, ..config() };
    for (life, call, name, fault) in [
        (2, Call::List, "partitions", Fault::CutAt(5)),
        (3, Call::List, "partitions", Fault::Status(500)),
        (4, Call::Get, "/7/0.seal", Fault::Status(503)),
        (5, Call::Get, ".seal", Fault::CutAt(40)),
        (6, Call::Get, ".seal", Fault::EndAt(40)),
        (7, Call::List, "uploads", Fault::Status(503)),
    ] {
        let next = open_as(&bucket, lists.clone(), "n1", life).await.unwrap();
        bucket.fail(call, name, fault, usize::MAX);
        let error = next.recover().await.unwrap_err();
        assert!(matches!(error.kind(), StoreErrorKind::Unavailable { .. }), "{call:?} {fault:?}: {error:?}");
        bucket.heal();
        assert_eq!(bucket.names("partitions/").await, names, "{call:?} {fault:?}: something was deleted");
        let report = next.recover().await.unwrap();
        assert_eq!((report.sealed.len(), report.lost.len(), report.n_quarantined), (12, 0, 0), "{call:?} {fault:?}");
        assert_holds(&next, &attempt(7, 0, 0), 0, 5000).await;
    }
    // An object that vanishes between the listing and its reading was released by somebody.
    let next = open_as(&bucket, lists, "n1", 8).await.unwrap();
    bucket.fail(Call::Get, "/7/0.seal", Fault::Status(404), usize::MAX);
    assert_eq!(next.recover().await.unwrap().sealed.len(), 11);
}

#[tokio::test]
async fn a_zombie_of_a_former_life_disturbs_nothing_of_the_next() {
    let (bucket, zombie) = fresh().await;
    let (old, ready) = (attempt(0, 0, 0), attempt(1, 0, 0));
    write(&zombie, &old, 0, 15_000).await;
    eventually(|| bucket.n_uploads() == 1).await;
    eventually_named(&bucket, "uploads/", 1).await;
    write(&zombie, &ready, 0, 25_000).await;
    prepare(&zombie, &ready).await.unwrap();
    // The same node starts again while its former life goes on.
    let next = open_as(&bucket, config(), "n1", 2).await.unwrap();
    next.recover().await.unwrap();
    eventually(|| bucket.n_uploads() == 0).await;
    let fence = |partition: u64| ReleaseScope::GenerationsBelow { partition: attempt(partition, 0, 0).partition, by: AttemptId::new(1, 0) };
    next.release(fence(0)).await.unwrap();
    next.release(fence(1)).await.unwrap();
    for number in [0, 1] {
        write(&next, &attempt(number, 1, 0), 0, 25_000).await;
        assert!(matches!(seal(&next, &attempt(number, 1, 0)).await, SealOutcome::Won(_)));
    }
    let by = AttemptId::new(1, 0);
    assert_eq!(*zombie.publish(&ready).await.unwrap_err().kind(), StoreErrorKind::Fenced { by });
    let lost = prepare(&zombie, &old).await.unwrap_err();
    assert!(matches!(lost.kind(), StoreErrorKind::Lost { cause: LossCause::ObjectStore }), "its upload was ended: {lost:?}");
    for number in [0, 1] {
        assert_holds(&next, &attempt(number, 1, 0), 0, 25_000).await;
        let found = next.locate(&attempt(number, 0, 0).partition, &spec(), 0).await.unwrap();
        assert_eq!(found.map(|manifest| manifest.attempt.attempt), Some(by));
    }
    eventually_named(&bucket, ".bytes", 2).await;
    assert_eq!(bucket.n_uploads(), 0);
}

/// A file system in memory; `None` where none can be mounted.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        let root = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(root.path()).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| Self(root))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[tokio::test]
async fn a_directory_without_room_refuses_the_seal_and_takes_it_once_there_is_room() {
    let Some(disk) = SmallDisk::mount("1m") else {
        println!("skipped: no small file system can be mounted here");
        return;
    };
    let directory =
        forebay_store_object::StoreConfig::Directory(forebay_store_object::DirectoryConfig { path: disk.0.path().join("store") });
    let small = Config { store: directory, ..config() };
    let store = ObjectStore::open(small, crate::support::environment("n1", 1)).await.unwrap();
    let (first, second) = (attempt(0, 0, 0), attempt(1, 0, 0));
    write(&store, &first, 0, 100_000).await;
    assert!(matches!(seal(&store, &first).await, SealOutcome::Won(_)));
    let filler = disk.0.path().join("filler");
    let _ = std::fs::write(&filler, vec![0; 1 << 20]);
    write(&store, &second, 0, 100_000).await;
    let refused = prepare(&store, &second).await.unwrap_err();
    assert_eq!(*refused.kind(), StoreErrorKind::DiskFull, "{refused:?}");
    assert_holds(&store, &first, 0, 100_000).await;
    assert_eq!(*read(&store, &second, 0).await.unwrap_err().kind(), StoreErrorKind::NotSealed);
    std::fs::remove_file(&filler).unwrap();
    assert!(matches!(seal(&store, &second).await, SealOutcome::Won(_)));
    assert_holds(&store, &second, 0, 100_000).await;
    // A full directory can still be emptied.
    let _ = std::fs::write(&filler, vec![0; 1 << 20]);
    std::fs::remove_file(&filler).unwrap();
    store.release(job_scope()).await.unwrap();
    let gone = read(&store, &second, 0).await.unwrap_err();
    assert!(matches!(gone.kind(), StoreErrorKind::Released | StoreErrorKind::NotFound), "{gone:?}");
}

struct Dice(StdRng);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end)
    }

    /// Sets some faults that will hit the next calls.
    fn throw(&mut self, bucket: &FaultBucket) {
        let calls = [Call::Put, Call::Create, Call::Get, Call::Delete, Call::Begin, Call::Part, Call::Complete, Call::Abort];
        let names = [".seal", ".bytes", "uploads", ""];
        for _ in 0..self.below(4) {
            let fault = match self.below(8) {
                0 => Fault::Status(503),
                1 => Fault::Status(429),
                2..5 => Fault::ReplyLost,
                5 => Fault::CutAt(self.below(2000)),
                6 => Fault::EndAt(self.below(2000)),
                _ => Fault::Late,
            };
            let (call, name, times) = (calls[self.below(calls.len())], names[self.below(names.len())], 1 + self.below(3));
            bucket.fail(call, name, fault, times);
        }
    }
}

/// What a client was told.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    Won,
    LostTo(AttemptKey),
    Aborted,
}

/// One client: writes, seals with some tries, and aborts when it has had enough.
async fn run_client(dice: &mut Dice, bucket: &FaultBucket, store: &ObjectStore, key: &AttemptKey, length: usize) -> Told {
    bucket.heal();
    open(store, key).await.unwrap();
    let mut at = 0;
    for _ in 0..40 {
        dice.throw(bucket);
        let step = (length - at).min(5000);
        match append(store, key, 0, at as u64, pattern(key, 0, at as u64, step)).await {
            Ok(ack) => at = usize::try_from(ack.end.get()).unwrap(),
            Err(error) => assert_eq!(error.kind().retry(), store_api::Retry::Same, "{error:?}"),
        }
        if at == length {
            break;
        }
    }
    for _ in 0..4 {
        dice.throw(bucket);
        match prepare(store, key).await {
            Ok(_) => {}
            Err(error) if error.kind().retry() == store_api::Retry::Same => continue,
            Err(error) => panic!("nothing was ever lost here: {error:?}"),
        }
        dice.throw(bucket);
        match store.publish(key).await {
            Ok(SealOutcome::Won(manifest)) => {
                assert_eq!(manifest.attempt, *key);
                return Told::Won;
            }
            Ok(SealOutcome::Lost(manifest)) => return Told::LostTo(manifest.attempt.clone()),
            Err(error) => assert_eq!(error.kind().retry(), store_api::Retry::Same, "{error:?}"),
        }
    }
    for _ in 0..20 {
        dice.throw(bucket);
        match store.abort(key).await {
            Ok(()) => return Told::Aborted,
            Err(error) if *error.kind() == StoreErrorKind::AlreadySealed => return Told::Won,
            Err(error) => assert_eq!(error.kind().retry(), store_api::Retry::Same, "{error:?}"),
        }
    }
    bucket.heal();
    match store.abort(key).await {
        Ok(()) => Told::Aborted,
        Err(error) => {
            assert_eq!(*error.kind(), StoreErrorKind::AlreadySealed);
            Told::Won
        }
    }
}

/// Three attempts of a generation on two nodes, over a store that loses replies, delays puts, cuts
/// bodies and refuses: at most one is sealed, everyone was told the same one, and its bytes are all
/// there for every node, also after puts that were long on their way have arrived.
#[tokio::test]
async fn of_racing_attempts_one_stands_whole_whatever_replies_are_lost() {
    let first = store_testkit::suite::seed("racing attempts");
    let n_runs = if store_testkit::suite::is_long() { 600 } else { 40 };
    let mut told_won = 0;
    for run in 0..n_runs {
        let mut dice = Dice(StdRng::seed_from_u64(first.wrapping_add(run)));
        let (bucket, one) = fresh().await;
        let two = open_as(&bucket, config(), "n2", 2).await.unwrap();
        let mut told = BTreeMap::new();
        for number in 0..3_u32 {
            let key = attempt(run, 0, number);
            let length = [700, 5000, 25_000][dice.below(3)];
            let store = if dice.below(2) == 0 { &one } else { &two };
            told.insert((key.clone(), length), run_client(&mut dice, &bucket, store, &key, length).await);
            if dice.below(3) == 0 {
                bucket.heal();
                bucket.deliver().await;
            }
        }
        bucket.heal();
        bucket.deliver().await;
        let fresh_eyes = open_as(&bucket, config(), "n3", 3).await.unwrap();
        let partition = attempt(run, 0, 0).partition;
        let winner = fresh_eyes.locate(&partition, &spec(), 0).await.unwrap().map(|manifest| manifest.attempt.clone());
        for ((key, length), told) in &told {
            match told {
                Told::Won => {
                    assert_eq!(winner.as_ref(), Some(key), "run {run}: {told:?}");
                    told_won += 1;
                }
                Told::LostTo(other) => assert_eq!(winner.as_ref(), Some(other), "run {run}: {told:?}"),
                Told::Aborted => {}
            }
            if winner.as_ref() == Some(key) {
                assert_holds(&fresh_eyes, key, 0, *length).await;
                for store in [&one, &two] {
                    match read(store, key, 0).await {
                        Ok(bytes) => assert!(bytes == pattern(key, 0, 0, *length), "run {run}"),
                        // The node that gave it up does not serve it, though it came to stand later.
                        Err(error) => assert!(*told == Told::Aborted && *error.kind() == StoreErrorKind::Aborted, "run {run}: {error:?}"),
                    }
                }
            }
        }
        for store in [&one, &two] {
            store.release(job_scope()).await.unwrap();
            assert_eq!(store.held(attempt(0, 0, 0).job(), JobIncarnation::new(1)).total(), 0, "run {run}");
        }
        assert!(bucket.names(".bytes").await.is_empty(), "run {run}: {:?}", bucket.names(".bytes").await);
    }
    assert!(told_won > n_runs / 2, "{told_won} of {n_runs} runs had a winner");
}

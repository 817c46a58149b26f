use crate::fake::{Fake, Reply, Request, Service};
use crate::store::{Dice, Store, problem};
use crate::{client, hasty, n_seeds, soon, stage};
use bytes::Bytes;
use forebay_client::{Action, ClientError, FencedBy, WriterOptions};
use forebay_protocol::ErrorCode;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use store_api::{AttemptId, Offset, PartitionId, SubpartitionIndex};

struct SharedStore(Arc<Store>);

impl Service for SharedStore {
    fn upload_limit(&self, head: &Request) -> Option<usize> {
        self.0.upload_limit(head)
    }
    fn answer(&self, request: &Request) -> Reply {
        self.0.answer(request)
    }
}

async fn start(store: Store) -> (Fake, Arc<Store>) {
    let store = Arc::new(store);
    (Fake::start(SharedStore(store.clone())).await, store)
}

const PARTITION: PartitionId = PartitionId::new(0);
const ATTEMPT: AttemptId = AttemptId::new(0, 0);

fn tiny() -> WriterOptions {
    WriterOptions { block_bytes: 300, pending_bytes: 700, replay_bytes: 4000 }
}

async fn write_framed(seed: u64) {
    let (fake, store) = start(Store::new(seed, 3)).await;
    let dice = Dice::new(seed ^ 0xABCD);
    let attempt = stage(&client(&fake.url)).open_attempt(PARTITION, ATTEMPT, vec![]).await.unwrap();
    let mut writer = attempt.into_writer_with(tiny());
    let mut wanted: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    for step in 0..120_u8 {
        let index = u32::try_from(dice.below(4)).unwrap();
        let bytes = vec![step; 1 + dice.below(400)];
        wanted.entry(index).or_default().extend(&bytes);
        writer.write(SubpartitionIndex::new(index), Bytes::from(bytes)).await.unwrap();
    }
    let sealed = writer.seal().await.unwrap();
    assert!(sealed.is_won());
    let held = store.held.lock().unwrap();
    assert!(held.bytes == wanted, "seed {seed}: other bytes are held than were written");
    assert!(held.n_seals >= 1);
}

#[tokio::test]
async fn framed_writes_survive_cuts_refusals_and_lost_replies() {
    for seed in 0..n_seeds() {
        println!("seed {seed}");
        soon(write_framed(seed)).await;
    }
}

#[tokio::test]
async fn raw_appends_survive_refusals_and_lost_replies() {
    for seed in 0..n_seeds() {
        println!("seed {seed}");
        let (fake, store) = start(Store::new(seed, 4)).await;
        let mut writer = stage(&client(&fake.url)).open_attempt(PARTITION, ATTEMPT, vec![]).await.unwrap().into_raw_writer();
        let bytes: Vec<u8> = (0..5000_u32).map(|at| (at % 251) as u8).collect();
        let end = soon(writer.append(SubpartitionIndex::new(2), Offset::ZERO, Bytes::from(bytes.clone()))).await.unwrap();
        let end = soon(writer.append_from(SubpartitionIndex::new(2), end, &bytes[..])).await.unwrap();
        assert_eq!(end, Offset::new(10_000));
        soon(writer.seal()).await.unwrap();
        let twice = [bytes.clone(), bytes].concat();
        assert!(store.held.lock().unwrap().bytes[&2] == twice, "seed {seed}");
    }
}

#[tokio::test]
async fn a_writer_that_is_dropped_seals_nothing_and_ends_no_stream() {
    let (fake, store) = start(Store::new(0, 0)).await;
    let mut writer = stage(&client(&fake.url)).open_attempt(PARTITION, ATTEMPT, vec![]).await.unwrap().into_writer_with(tiny());
    writer.write(SubpartitionIndex::new(0), Bytes::from(vec![1; 400])).await.unwrap();
    let begun = async {
        while store.n_streams.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(begun).await;
    drop(writer);
    let cut = async {
        while fake.n_seen("POST", "/frames") == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(cut).await;
    assert!(fake.seen.lock().unwrap().iter().filter(|request| request.path.ends_with("/frames")).all(|request| !request.is_whole));
    assert_eq!((fake.n_seen("POST", "/seal"), store.held.lock().unwrap().n_seals), (0, 0));
}

#[tokio::test]
async fn an_attempt_that_went_with_the_nodes_life_must_be_rewritten() {
    let mut store = Store::new(3, 10);
    store.is_restarted = true;
    let (fake, _) = start(store).await;
    let mut writer = stage(&client(&fake.url)).open_attempt(PARTITION, ATTEMPT, vec![]).await.unwrap().into_writer_with(tiny());
    writer.write(SubpartitionIndex::new(0), Bytes::from(vec![1; 10])).await.unwrap();
    let error = soon(writer.seal()).await.unwrap_err();
    assert!(matches!(error, ClientError::Fenced { by: FencedBy::NodeLife(_), .. }), "{error:?}");
    assert_eq!(error.action(), Action::RewriteAttempt);
    assert!(writer.write(SubpartitionIndex::new(0), Bytes::from_static(b"x")).await.is_err());
}

#[tokio::test]
async fn retries_end_and_wait_as_long_as_the_service_asks() {
    let refused = |_: &Request| {
        let mut refused = problem(ErrorCode::Overloaded);
        refused.retry_after_ms = Some(60);
        Reply::problem(&refused)
    };
    let fake = Fake::start(refused).await;
    let started = Instant::now();
    let error = soon(hasty(&fake.url).node()).await.unwrap_err();
    assert!(matches!(error, ClientError::RetryLater { attempts: 3, .. }), "{error:?}");
    assert!(started.elapsed() >= Duration::from_millis(120));
    assert_eq!(fake.n_seen("GET", "/v1/node"), 3);
}

#[tokio::test]
async fn what_is_refused_for_good_is_asked_once() {
    let fake = Fake::start(|_: &Request| Reply::problem(&problem(ErrorCode::SpecConflict))).await;
    let error = client(&fake.url).node().await.unwrap_err();
    assert!(matches!(error, ClientError::Refused(_)));
    assert_eq!(fake.n_seen("GET", "/v1/node"), 1);
}

//! What writers were told about each partition, over all lives of a node, and how that is held against
//! what the node says later: what was acknowledged holds, what was not is whole or not there.

use super::support::{Answer, Answered, Api, Place, content, frame_stream, repr_digest};
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::task::JoinHandle;

const JOB: &str = "ledger";
const SUBPARTITIONS: u32 = 3;
const N_WRITERS: u64 = 6;

/// What the writers know of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// A request that would seal it may be under way: sealed or not, but never half.
    Begun,
    /// The seal was answered.
    Sealed,
    /// A release may be under way: whole or gone.
    Releasing,
    /// The release was answered.
    Released,
}

/// Everything the writers know, over all lives of the node.
pub(crate) struct Ledger {
    seed: u64,
    /// Codes with which the node may turn writers away.
    allowed_refusals: &'static [&'static str],
    known: Mutex<BTreeMap<Place, Known>>,
    next_partition: AtomicU64,
    n_sealed: AtomicU64,
}

impl Ledger {
    pub(crate) fn new(seed: u64, allowed_refusals: &'static [&'static str]) -> Self {
        let (next_partition, n_sealed) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { seed, allowed_refusals, known: Mutex::new(BTreeMap::new()), next_partition, n_sealed }
    }

    /// The number of the partition that is begun next.
    pub(crate) fn next_partition(&self) -> u64 {
        self.next_partition.load(Ordering::Relaxed)
    }

    pub(crate) fn n_sealed(&self) -> u64 {
        self.n_sealed.load(Ordering::Relaxed)
    }

    /// `None` when the request was not answered, or refused as it may be.
    fn accepted(&self, answered: Answered) -> Option<Answer> {
        let answer = answered.ok()?;
        let is_allowed = self.allowed_refusals.contains(&answer.code().as_str());
        assert!(answer.is_success() || is_allowed, "{}: {}", answer.status, answer.text());
        answer.is_success().then_some(answer)
    }

    fn note(&self, place: &Place, known: Known) {
        self.known.lock().expect("not poisoned").insert(place.clone(), known);
        self.n_sealed.fetch_add(u64::from(known == Known::Sealed), Ordering::Relaxed);
    }

    fn snapshot(&self) -> BTreeMap<Place, Known> {
        self.known.lock().expect("not poisoned").clone()
    }

    /// The bytes of a subpartition: nothing, a few, or more than one chunk.
    fn bytes(&self, place: &Place, subpartition: u32) -> Bytes {
        let number = self.seed ^ (place.partition << 8) ^ u64::from(subpartition);
        let length = match StdRng::seed_from_u64(number).random_range(0..8) {
            0 => 0,
            1..=5 => number % 5000,
            6 => 300_000 + number % 1000,
            _ => 1_500_000 + number % 1000,
        };
        content(number, usize::try_from(length).expect("small"))
    }
}

fn dataset_of(partition: u64) -> &'static str {
    if partition % 3 == 2 { "durable" } else { "blocking" }
}

/// Declares what the writers write into.
pub(crate) async fn declare(api: &Api) {
    api.create_job(JOB).await;
    for kind in ["blocking", "durable"] {
        api.declare(JOB, kind, &json!({"kind": kind, "subpartitions": SUBPARTITIONS})).await;
    }
}

/// Starts writers that end with the node.
pub(crate) fn start_writers(api: &Api, ledger: &Arc<Ledger>) -> Vec<JoinHandle<()>> {
    (0..N_WRITERS).map(|_| tokio::spawn(write_until_cut(api.clone(), ledger.clone()))).collect()
}

/// Writes, seals and now and then releases until a request is not answered.
async fn write_until_cut(api: Api, ledger: Arc<Ledger>) {
    loop {
        let partition = ledger.next_partition.fetch_add(1, Ordering::Relaxed);
        let place = Place { job: JOB, dataset: dataset_of(partition), partition };
        if write_one(&api, &ledger, &place).await.is_none() {
            return;
        }
    }
}

/// `None` when the node is gone, or ends and says so. A node that answers must not refuse otherwise.
async fn write_one(api: &Api, ledger: &Ledger, place: &Place) -> Option<()> {
    ledger.note(place, Known::Begun);
    ledger.accepted(api.open(place, 0, 0).await)?;
    let blocks: Vec<(u32, Bytes)> = (0..SUBPARTITIONS).map(|subpartition| (subpartition, ledger.bytes(place, subpartition))).collect();
    if place.partition.is_multiple_of(2) {
        let frames = frame_stream(blocks.iter().map(|(subpartition, bytes)| (*subpartition, bytes)));
        ledger.accepted(api.frames(place, "0.0", frames).await)?;
    } else {
        for (subpartition, bytes) in blocks.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            ledger.accepted(api.append(place, "0.0", *subpartition, 0, bytes.clone()).await)?;
        }
    }
    ledger.accepted(api.seal(place, "0.0").await)?;
    ledger.note(place, Known::Sealed);
    if place.partition % 5 == 4 {
        ledger.note(place, Known::Releasing);
        ledger.accepted(api.release(&place.path(), 1).await)?;
        ledger.note(place, Known::Released);
    }
    Some(())
}

/// Whether the partition reads back whole. Panics when a part of it is wrong, or when one part is
/// there and another is not.
async fn reads_back(api: &Api, ledger: &Ledger, place: &Place) -> Result<(), String> {
    let mut refusals = Vec::new();
    for subpartition in 0..SUBPARTITIONS {
        let answer = api.read(place, subpartition).await.expect("answered");
        if answer.status != 200 {
            refusals.push(answer.code());
            continue;
        }
        let wanted = ledger.bytes(place, subpartition);
        assert!(answer.body == wanted, "{place:?}/{subpartition}: {} bytes are not the {} written", answer.body.len(), wanted.len());
        assert_eq!(answer.header("repr-digest"), repr_digest(&wanted), "{place:?}/{subpartition}");
    }
    match refusals.len() {
        0 => Ok(()),
        n => {
            assert_eq!(n, SUBPARTITIONS as usize, "{place:?} is half-visible: {refusals:?}");
            assert!(refusals.iter().all(|code| *code == refusals[0]), "{place:?}: {refusals:?}");
            Err(refusals.remove(0))
        }
    }
}

async fn check_one(api: &Api, ledger: &Ledger, place: &Place, known: Known) -> String {
    let read = reads_back(api, ledger, place).await;
    let document = api.get(&format!("{}?lists=true", place.path())).await.expect("answered").ok();
    let state = document["state"].as_str().expect("a state").to_owned();
    assert_eq!(read.is_ok(), state == "sealed", "{place:?} is {state} and reads as {read:?}");
    if read.is_ok() {
        check_manifest(ledger, place, &document["manifest"]);
    }
    match known {
        Known::Sealed => assert_eq!(read, Ok(()), "{place:?} was acknowledged"),
        Known::Released => assert_eq!((read, state.as_str()), (Err("released".to_owned()), "released"), "{place:?} was released"),
        Known::Releasing => assert!(read.is_ok() || state == "released", "{place:?} is {state}"),
        Known::Begun => assert!(matches!(state.as_str(), "sealed" | "not_written" | "unknown" | "aborted"), "{place:?} is {state}"),
    }
    format!("{known:?} is {state}")
}

fn check_manifest(ledger: &Ledger, place: &Place, manifest: &Value) {
    let lists = &manifest["subpartitions"];
    let numbers = |name: &str| lists[name].as_array().map(|list| list.iter().filter_map(Value::as_u64).collect::<Vec<u64>>());
    let indices = numbers("indices").unwrap_or_else(|| (0..u64::from(SUBPARTITIONS)).collect());
    let (lengths, crcs) = (numbers("lengths").expect("lengths"), numbers("crcs").expect("crcs"));
    let mut total = 0;
    for ((index, length), crc) in indices.iter().zip(&lengths).zip(&crcs) {
        let wanted = ledger.bytes(place, u32::try_from(*index).expect("an index"));
        assert_eq!((*length, *crc), (wanted.len() as u64, u64::from(store_api::Crc32c::of(&wanted).get())), "{place:?}/{index}");
        total += length;
    }
    let wanted: usize = (0..SUBPARTITIONS).map(|subpartition| ledger.bytes(place, subpartition).len()).sum();
    assert_eq!((total, manifest["total_bytes"].as_u64()), (wanted as u64, Some(wanted as u64)), "{place:?}");
}

/// Every partition that the listing names is one that may be sealed, and none that must be is missing.
async fn check_listing(api: &Api, known: &BTreeMap<Place, Known>, dataset: &'static str) {
    let mut listed = Vec::new();
    let mut after = String::new();
    loop {
        let page = api.get(&format!("/v1/jobs/{JOB}/datasets/{dataset}/partitions?limit=100{after}")).await.expect("answered").ok();
        listed.extend(page["partitions"].as_array().expect("a list").iter().filter_map(|manifest| manifest["partition"].as_u64()));
        let Some(next) = page["next_after"].as_str() else { break };
        after = format!("&after={next}");
    }
    for (place, known) in known.iter().filter(|(place, _)| place.dataset == dataset) {
        let is_listed = listed.contains(&place.partition);
        assert!(is_listed || *known != Known::Sealed, "{place:?} is not listed");
        assert!(!is_listed || *known != Known::Released, "{place:?} is listed after its release");
    }
}

/// Holds every partition against what is known of it. Answers how many became what.
pub(crate) async fn check_all(api: &Api, ledger: &Ledger) -> BTreeMap<String, u64> {
    check_since(api, ledger, 0).await
}

/// Holds all partitions from number `first` on, and a tenth of the older ones, against what is known of
/// them, and all of them against the listings. Answers how many became what.
pub(crate) async fn check_since(api: &Api, ledger: &Ledger, first: u64) -> BTreeMap<String, u64> {
    let known = ledger.snapshot();
    let mut counts = BTreeMap::new();
    for (place, known) in known.iter().filter(|(place, _)| place.partition >= first || place.partition % 10 == first % 10) {
        *counts.entry(check_one(api, ledger, place, *known).await).or_insert(0) += 1;
    }
    check_listing(api, &known, "blocking").await;
    check_listing(api, &known, "durable").await;
    counts
}

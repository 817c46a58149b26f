use crate::fake::{End, Fake, Reply, Request};
use crate::store::{Dice, location, manifest, problem};
use crate::{client, hasty, n_seeds, soon, stage};
use bytes::Bytes;
use forebay_client::{Action, Client, ClientError, FetchPiece, FetchTarget};
use forebay_protocol::ErrorCode;
use forebay_protocol::reads::FetchRequest;
use futures::StreamExt;
use std::collections::BTreeMap;
use std::sync::Mutex;
use store_api::frame::{FrameHeader, FrameKind, HEADER_LENGTH};
use store_api::{Chunk, SubpartitionIndex};

const LENGTH: usize = 1000;
const FRAME: usize = 300;

fn content(partition: u64, subpartition: u32) -> Vec<u8> {
    (0..LENGTH).map(|at| (at as u64 ^ partition.wrapping_mul(31) ^ u64::from(subpartition)) as u8).collect()
}

fn bare(out: &mut Vec<u8>, kind: FrameKind, target: u32, position: u64, payload: Vec<u8>) {
    let chunk = Chunk::new(Bytes::from(payload));
    out.extend_from_slice(&FrameHeader { kind, ..FrameHeader::data(target, position, &chunk).unwrap() }.encode());
    out.extend_from_slice(chunk.bytes());
}

/// What a node answers to a fetch. `special` may answer for an item itself.
fn answer(request: &Request, special: impl Fn(&mut Vec<u8>, u32, u64, u32) -> bool) -> Vec<u8> {
    let asked: FetchRequest = serde_json::from_slice(&request.body).unwrap();
    let (mut out, mut left, mut target) = (Vec::new(), asked.budget_bytes.unwrap() as usize, 0);
    for item in asked.items {
        for subpartition in item.subpartition..item.subpartition + item.n_subpartitions {
            let bytes = content(item.partition, subpartition);
            let mut at = item.from as usize;
            if !special(&mut out, target, item.partition, subpartition) {
                while at < LENGTH && left > 0 {
                    let end = (at + FRAME).min(LENGTH);
                    bare(&mut out, FrameKind::Data, target, at as u64, bytes[at..end].to_vec());
                    left = left.saturating_sub(end - at);
                    at = end;
                }
                bare(&mut out, if at < LENGTH { FrameKind::ItemPaused } else { FrameKind::ItemEnd }, target, at as u64, Vec::new());
            }
            target += 1;
        }
    }
    bare(&mut out, FrameKind::End, 0, u64::from(target), Vec::new());
    out
}

fn targets(url: &str, partitions: std::ops::Range<u64>) -> Vec<FetchTarget> {
    partitions.map(|partition| FetchTarget::sealed(&manifest(partition, 0, url), SubpartitionIndex::new(2), 3)).collect()
}

type Found = BTreeMap<(u64, u32), (Vec<u8>, Option<Result<(), ClientError>>)>;

async fn fetch(client: &Client, targets: Vec<FetchTarget>, budget: u64) -> Found {
    let (mut pieces, mut found) = (stage(client).fetch(targets, budget), Found::new());
    while let Some(piece) = soon(pieces.next()).await {
        let (item, offset) = match &piece {
            FetchPiece::Bytes { item, offset, .. } | FetchPiece::End { item, offset } | FetchPiece::Failed { item, offset, .. } => {
                (*item, *offset)
            }
        };
        let (bytes, end) = found.entry((item.partition.get(), item.subpartition.get())).or_default();
        assert!(end.is_none(), "nothing follows the end of an item");
        assert_eq!(offset.get(), bytes.len() as u64, "pieces of an item follow each other");
        match piece {
            FetchPiece::Bytes { bytes: piece, .. } => bytes.extend_from_slice(&piece),
            FetchPiece::End { .. } => *end = Some(Ok(())),
            FetchPiece::Failed { error, .. } => *end = Some(Err(error)),
        }
    }
    found
}

fn assert_whole(found: &Found, partitions: std::ops::Range<u64>) {
    for partition in partitions {
        for subpartition in 2..5 {
            let (bytes, end) = &found[&(partition, subpartition)];
            assert!(matches!(end, Some(Ok(()))), "{partition}/{subpartition}: {end:?}");
            assert!(*bytes == content(partition, subpartition), "{partition}/{subpartition}");
        }
    }
}

#[tokio::test]
async fn a_batch_over_two_nodes_survives_cuts_damage_and_refusals() {
    for seed in 0..n_seeds() {
        println!("seed {seed}");
        let node = async |seed: u64| {
            let dice = Dice::new(seed);
            Fake::start(move |request: &Request| {
                let mut body = answer(request, |_, _, _, _| false);
                let at = dice.below(body.len());
                match dice.below(6) {
                    0 => Reply::new(200, body).ending(End::CutAt(at)),
                    1 => Reply::problem(&problem(ErrorCode::Overloaded)),
                    2 => {
                        body[at] ^= 4;
                        Reply::new(200, body)
                    }
                    3 => {
                        body.truncate(at);
                        Reply::new(200, body)
                    }
                    _ => Reply::new(200, body),
                }
            })
            .await
        };
        let (one, two) = (node(seed).await, node(seed + 1000).await);
        let wanted = [targets(&one.url, 0..4), targets(&two.url, 4..8)].concat();
        assert_whole(&fetch(&client(&one.url), wanted, 2000).await, 0..8);
    }
}

#[tokio::test]
async fn a_node_is_asked_as_often_as_the_budget_says() {
    let fake = Fake::start(|request: &Request| Reply::new(200, answer(request, |_, _, _, _| false))).await;
    assert_whole(&fetch(&client(&fake.url), targets(&fake.url, 0..4), 4000).await, 0..4);
    assert_eq!(fake.n_seen("POST", "/fetch"), 3);
    let asked: FetchRequest = serde_json::from_slice(&fake.seen.lock().unwrap()[0].body).unwrap();
    assert_eq!(asked.items.len(), 4, "runs stay runs");
}

#[tokio::test]
async fn damage_that_stays_fails_its_own_item_only() {
    let fake = Fake::start(|request: &Request| {
        Reply::new(
            200,
            answer(request, |out, target, partition, subpartition| {
                let is_damaged = (partition, subpartition) == (1, 3);
                if is_damaged {
                    let start = out.len();
                    bare(out, FrameKind::Data, target, 0, vec![7; 50]);
                    out[start + HEADER_LENGTH] ^= 1;
                }
                is_damaged
            }),
        )
    })
    .await;
    let mut found = fetch(&hasty(&fake.url), targets(&fake.url, 0..3), 100_000).await;
    let (bytes, end) = found.insert((1, 3), (content(1, 3), Some(Ok(())))).unwrap();
    assert!(matches!(end, Some(Err(ClientError::Damaged { .. }))), "{end:?}");
    assert!(bytes.is_empty());
    assert_whole(&found, 0..3);
}

#[tokio::test]
async fn a_lost_item_does_not_spoil_the_rest_and_an_overloaded_one_is_asked_again() {
    let n_refused = Mutex::new(0);
    let fake = Fake::start(move |request: &Request| {
        Reply::new(
            200,
            answer(request, |out, target, partition, subpartition| {
                let mut n_refused = n_refused.lock().unwrap();
                let code = match (partition, subpartition) {
                    (0, 2) => ErrorCode::Lost,
                    (0, 3) if *n_refused < 2 => {
                        *n_refused += 1;
                        ErrorCode::Overloaded
                    }
                    _ => return false,
                };
                bare(out, FrameKind::ItemError, target, 0, serde_json::to_vec(&problem(code)).unwrap());
                true
            }),
        )
    })
    .await;
    let mut found = fetch(&client(&fake.url), targets(&fake.url, 0..2), 100_000).await;
    let (_, end) = found.insert((0, 2), (content(0, 2), Some(Ok(())))).unwrap();
    assert!(matches!(&end, Some(Err(error)) if error.is_lost()), "{end:?}");
    assert_whole(&found, 0..2);
    assert_eq!(fake.n_seen("POST", "/fetch"), 3);
}

#[tokio::test]
async fn a_moved_item_is_followed_once() {
    let holder = Fake::start(|request: &Request| Reply::new(200, answer(request, |_, _, _, _| false))).await;
    let moving = |place: String| {
        move |request: &Request| {
            let moved = |out: &mut Vec<u8>, target, partition, _| {
                if partition == 0 {
                    bare(out, FrameKind::ItemMoved, target, 0, serde_json::to_vec(&location(&place)).unwrap());
                }
                partition == 0
            };
            Reply::new(200, answer(request, moved))
        }
    };
    let first = Fake::start(moving(holder.url.clone())).await;
    assert_whole(&fetch(&client(&first.url), targets(&first.url, 0..2), 100_000).await, 0..2);
    assert_eq!(holder.n_seen("POST", "/fetch"), 1);
    let circle = Fake::start(moving(first.url.clone())).await;
    let found = fetch(&client(&circle.url), targets(&circle.url, 0..2), 100_000).await;
    let end = &found[&(0, 2)].1;
    assert!(matches!(end, Some(Err(error)) if error.action() == Action::ResolveAgain), "{end:?}");
    assert_whole(&found, 1..2);
}

#[tokio::test]
async fn a_node_that_is_away_fails_its_items_and_no_others() {
    let fake = Fake::start(|request: &Request| Reply::new(200, answer(request, |_, _, _, _| false))).await;
    let gone = Fake::start(|_: &Request| Reply::new(200, "").ending(End::CutAt(0))).await;
    let wanted = [targets(&fake.url, 0..2), targets(&gone.url, 5..6)].concat();
    let found = fetch(&hasty(&fake.url), wanted, 100_000).await;
    assert_whole(&found, 0..2);
    let ends: Vec<_> = (2..5).map(|subpartition| &found[&(5, subpartition)].1).collect();
    assert!(
        ends.iter().all(|end| matches!(end, Some(Err(error)) if error.action() == Action::ResolveAgain && !error.is_lost())),
        "{ends:?}"
    );
}

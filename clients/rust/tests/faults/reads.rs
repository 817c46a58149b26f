use crate::fake::{End, Fake, Reply, Request};
use crate::store::{Dice, problem};
use crate::{client, hasty, n_seeds, soon, stage};
use bytes::Bytes;
use forebay_client::{Action, ClientError, ReadRange};
use forebay_protocol::ErrorCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use store_api::{Crc32c, Offset, PartitionId, SubpartitionIndex};

fn content(length: u32) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

fn digest(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u64::from(Crc32c::of(bytes).get()) << 4;
    let text: String = (0..6).map(|at| char::from(ALPHABET[usize::try_from((bits >> (30 - 6 * at)) & 63).unwrap()])).collect();
    format!("crc32c=:{text}==:")
}

/// What a node answers to a read of `bytes`.
fn answer(request: &Request, bytes: &[u8], etag: &str) -> Reply {
    let is_same = request.headers.get("if-range").is_none_or(|wanted| wanted == etag);
    let range = request.headers.get("range").filter(|_| is_same).map(|range| {
        let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        (first.parse::<usize>().unwrap(), last.parse::<usize>().map_or(bytes.len(), |last| (last + 1).min(bytes.len())))
    });
    let reply = match range {
        Some((start, end)) => {
            Reply::new(206, &bytes[start..end]).with("content-range", format!("bytes {start}-{}/{}", end - 1, bytes.len()))
        }
        None => Reply::new(200, bytes),
    };
    reply.with("etag", etag).with("repr-digest", digest(bytes)).with("forebay-attempt", "0.0")
}

async fn read(url: &str, range: ReadRange) -> forebay_client::Result<Bytes> {
    soon(async { stage(&client(url)).read(PartitionId::new(0), SubpartitionIndex::new(0), range).await?.collect(1 << 20).await }).await
}

#[tokio::test]
async fn a_read_resumes_where_it_was_cut_wherever_that_was() {
    for seed in 0..n_seeds() {
        let dice = Dice::new(seed);
        let bytes = content(20_000);
        let fake = Fake::start({
            let bytes = bytes.clone();
            move |request: &Request| {
                let reply = answer(request, &bytes, "\"a\"");
                let cut = dice.below(8000);
                if cut < reply.body.len() { reply.ending(End::CutAt(cut)) } else { reply }
            }
        })
        .await;
        assert!(read(&fake.url, ReadRange::all()).await.unwrap() == bytes, "seed {seed}");
        let range = ReadRange::from(Offset::new(100)).to(Offset::new(15_000));
        assert!(read(&fake.url, range).await.unwrap() == bytes[100..15_000], "seed {seed}");
        assert!(fake.seen.lock().unwrap().iter().any(|request| request.headers.contains_key("if-range")), "seed {seed}");
    }
}

#[tokio::test]
async fn a_read_never_mixes_two_contents() {
    let n_calls = AtomicUsize::new(0);
    let fake = Fake::start(move |request: &Request| match n_calls.fetch_add(1, Ordering::Relaxed) {
        0 => answer(request, &content(5000), "\"a\"").ending(End::CutAt(1000)),
        _ => answer(request, &content(6000), "\"b\""),
    })
    .await;
    let error = read(&fake.url, ReadRange::all()).await.unwrap_err();
    assert_eq!(error.action(), Action::ResolveAgain, "{error:?}");
}

#[tokio::test]
async fn damage_of_the_whole_is_found_and_read_again() {
    let n_calls = AtomicUsize::new(0);
    let fake = Fake::start(move |request: &Request| {
        let mut reply = answer(request, &content(5000), "\"a\"");
        if n_calls.fetch_add(1, Ordering::Relaxed) == 0 {
            reply.body[77] ^= 1;
        }
        reply
    })
    .await;
    assert!(read(&fake.url, ReadRange::all()).await.unwrap() == content(5000));
}

#[tokio::test]
async fn damage_that_stays_is_a_typed_error_and_no_bytes() {
    let fake = Fake::start(|request: &Request| {
        let mut reply = answer(request, &content(500), "\"a\"");
        reply.body[77] ^= 1;
        reply
    })
    .await;
    let reader = stage(&hasty(&fake.url)).read(PartitionId::new(0), SubpartitionIndex::new(0), ReadRange::all()).await.unwrap();
    let error = soon(reader.collect(1000)).await.unwrap_err();
    assert!(matches!(error, ClientError::Damaged { attempts: 3, .. }), "{error:?}");
}

#[tokio::test]
async fn a_redirect_is_followed_once() {
    let holder = Fake::start(|request: &Request| answer(request, &content(500), "\"a\"")).await;
    let place = format!("{}/v1/there?hop=1", holder.url);
    let first = Fake::start(move |_: &Request| Reply::new(307, "").with("location", &place)).await;
    assert!(read(&first.url, ReadRange::all()).await.unwrap() == content(500));
    assert_eq!(holder.n_seen("GET", "/v1/there"), 1);
    let place = format!("{}/v1/again", first.url);
    let circle = Fake::start(move |_: &Request| Reply::new(307, "").with("location", &place)).await;
    let error = read(&circle.url, ReadRange::all()).await.unwrap_err();
    assert!(matches!(error, ClientError::ResolveAgain { .. }), "{error:?}");
}

#[tokio::test]
async fn a_body_that_stands_still_is_given_up_in_time() {
    let fake = Fake::start(|request: &Request| answer(request, &content(500), "\"a\"").ending(End::StallAt(0))).await;
    let started = Instant::now();
    let mut reader = stage(&hasty(&fake.url)).read(PartitionId::new(0), SubpartitionIndex::new(0), ReadRange::all()).await.unwrap();
    let error = soon(reader.next()).await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Transport { attempts: 3, .. }), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(reader.next().await.is_none());
}

#[tokio::test]
async fn loss_and_release_come_as_themselves() {
    for (code, action) in
        [(ErrorCode::Lost, Action::Reproduce), (ErrorCode::Released, Action::GiveUp), (ErrorCode::NotSealed, Action::RetryLater)]
    {
        let fake = Fake::start(move |_: &Request| Reply::problem(&problem(code))).await;
        let error = read(&fake.url, ReadRange::all()).await.unwrap_err();
        assert_eq!((error.action(), error.code()), (action, Some(code)));
        assert_eq!(fake.seen.lock().unwrap().len(), 1);
    }
}

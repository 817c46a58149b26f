use crate::fake::{End, Fake, Reply, Request};
use crate::store::{LIFE, problem};
use crate::{client, soon, stage};
use forebay_client::{ClientError, JobEvent, TailOptions};
use forebay_protocol::ErrorCode;
use forebay_protocol::jobs::LeaseDocument;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store_api::{JobEpoch, Offset, PartitionId, SubpartitionIndex};

fn tail_reply(bytes: &[u8], from: usize, end: usize, reason: &str) -> Reply {
    let mut reply = Reply::new(200, &bytes[from..end]).with("forebay-start-offset", from).with("forebay-attempt", "0.0");
    reply.trailers = Some(vec![("forebay-next-offset".to_owned(), end.to_string()), ("forebay-end-reason".to_owned(), reason.to_owned())]);
    reply
}

#[tokio::test]
async fn a_tail_goes_on_after_waits_and_cuts_and_ends_at_the_seal_only() {
    let bytes: Vec<u8> = (0..200_u8).collect();
    let n_calls = AtomicUsize::new(0);
    let fake = Fake::start({
        let bytes = bytes.clone();
        move |request: &Request| {
            let from: usize = request.query["from"].parse().unwrap();
            match n_calls.fetch_add(1, Ordering::Relaxed) {
                0 => tail_reply(&bytes, from, 50, "waited"),
                1 => tail_reply(&bytes, from, 50, "waited"),
                2 => tail_reply(&bytes, from, 150, "waited").ending(End::CutAt(30)),
                3 => Reply::problem(&problem(ErrorCode::Overloaded)),
                _ => tail_reply(&bytes, from, 200, "sealed"),
            }
        }
    })
    .await;
    let mut tail = stage(&client(&fake.url)).tail(PartitionId::new(0), SubpartitionIndex::new(0), TailOptions::default());
    let mut found = Vec::new();
    while let Some(piece) = soon(tail.next()).await {
        found.extend_from_slice(&piece.unwrap());
    }
    assert!(found == bytes);
    assert_eq!((tail.next_offset(), tail.attempt()), (Offset::new(200), Some("0.0")));
    let seen = fake.seen.lock().unwrap();
    assert_eq!(seen.len(), 5);
    assert!(seen.iter().skip(1).all(|request| request.query["attempt"] == "0.0"), "the attempt stays the same");
}

#[tokio::test]
async fn a_tail_below_the_floor_says_where_the_floor_is() {
    let fake = Fake::start(|_: &Request| {
        let mut below = problem(ErrorCode::BelowFloor);
        below.floor = Some(77);
        Reply::problem(&below)
    })
    .await;
    let mut tail = stage(&client(&fake.url)).tail(PartitionId::new(0), SubpartitionIndex::new(0), TailOptions::default());
    assert!(matches!(soon(tail.next()).await, Some(Err(ClientError::BelowFloor { floor: 77, .. }))));
    assert!(tail.next().await.is_none());
}

fn event(sequence: u32) -> String {
    format!("id: {LIFE}-{sequence}\nevent: sealed\ndata: {{\"kind\":\"sealed\",\"job\":\"j\",\"partition\":{sequence}}}\n\n")
}

#[tokio::test]
async fn events_resume_after_the_last_one_that_arrived_whole() {
    let n_calls = AtomicUsize::new(0);
    let fake = Fake::start(move |_: &Request| match n_calls.fetch_add(1, Ordering::Relaxed) {
        0 => Reply::new(200, format!("{}{}id: {LIFE}-3\ndata: {{", event(1), event(2))),
        1 => Reply::new(200, format!(": still here\n\n{}", event(3))).ending(End::StallAt(1000)),
        _ => Reply::new(500, ""),
    })
    .await;
    let mut events = client(&fake.url).job("j").unwrap().events(None);
    for wanted in 1..=3 {
        let found = soon(events.next()).await.unwrap().unwrap();
        let JobEvent::Happened { cursor, document } = found else { panic!("{found:?}") };
        assert_eq!((cursor, document.partition), (format!("{LIFE}-{wanted}"), Some(wanted)));
    }
    let seen = fake.seen.lock().unwrap();
    assert_eq!(seen[1].headers["last-event-id"], format!("{LIFE}-2"));
    assert!(!seen[0].headers.contains_key("last-event-id"));
}

#[tokio::test]
async fn a_cut_before_the_first_event_is_a_reset_not_a_silence() {
    let n_calls = AtomicUsize::new(0);
    let fake = Fake::start(move |_: &Request| match n_calls.fetch_add(1, Ordering::Relaxed) {
        0 => Reply::new(200, ": hello\n\n"),
        _ => Reply::new(200, event(9)),
    })
    .await;
    let mut events = client(&fake.url).job("j").unwrap().events(None);
    assert_eq!(soon(events.next()).await.unwrap().unwrap(), JobEvent::Reset { cursor: None });
    assert!(matches!(soon(events.next()).await, Some(Ok(JobEvent::Happened { .. }))));
}

#[tokio::test]
async fn a_lease_is_renewed_until_the_owner_is_fenced() {
    let n_calls = AtomicUsize::new(0);
    let fake = Fake::start(move |request: &Request| {
        assert_eq!(request.headers["forebay-job-epoch"], "4");
        match n_calls.fetch_add(1, Ordering::Relaxed) {
            0..3 => Reply::json(&LeaseDocument { lease_ms: 60, lease_remaining_ms: 60 }),
            _ => {
                let mut fenced = problem(ErrorCode::Fenced);
                fenced.epoch = Some(5);
                Reply::problem(&fenced)
            }
        }
    })
    .await;
    let mut alive = client(&fake.url).job("j").unwrap().with_epoch(JobEpoch::new(4)).keep_alive();
    assert!(alive.failure().is_none());
    let failure = soon(alive.failed()).await.unwrap();
    assert!(matches!(&*failure, ClientError::Fenced { .. }), "{failure:?}");
    assert_eq!(fake.n_seen("POST", "/lease"), 4);
}

#[tokio::test]
async fn a_lease_is_not_renewed_after_its_guard_is_dropped() {
    let fake = Fake::start(|_: &Request| Reply::json(&LeaseDocument { lease_ms: 60, lease_remaining_ms: 60 })).await;
    let alive = client(&fake.url).job("j").unwrap().with_epoch(JobEpoch::new(4)).keep_alive();
    while fake.n_seen("POST", "/lease") < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(alive);
    tokio::time::sleep(Duration::from_millis(20)).await;
    let n_seen = fake.n_seen("POST", "/lease");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(fake.n_seen("POST", "/lease"), n_seen);
}

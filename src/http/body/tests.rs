//! Bodies in memory, under a clock that jumps.

use super::*;
use crate::test_time::hasten;
use futures::stream;
use http_body_util::{BodyExt as _, StreamBody};
use store_api::Clock as _;
use store_api::clock::ManualClock;

const STALL: Duration = Duration::from_secs(10);

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(0))
}

fn request(clock: &Arc<ManualClock>, pieces: Vec<Result<&'static [u8], BodyError>>, gap: Duration, length: Option<u64>) -> RequestBody {
    let sleeper = clock.clone();
    let frames = stream::iter(pieces).then(move |piece| {
        let sleeper = sleeper.clone();
        async move {
            sleeper.sleep(gap).await;
            piece.map(|bytes| Frame::data(Bytes::from_static(bytes)))
        }
    });
    RequestBody::new(Body::new(StreamBody::new(frames.boxed())), length, clock.clone(), STALL)
}

async fn read_all(mut body: RequestBody) -> Result<usize, ErrorCode> {
    let mut n_read = 0;
    while let Some(bytes) = body.next().await.map_err(|refusal| refusal.problem().code)? {
        n_read += bytes.len();
    }
    Ok(n_read)
}

fn streaming(clock: &Arc<ManualClock>) -> Streaming {
    Streaming { tasks: TaskGroup::new(), clock: clock.clone(), stall: STALL }
}

#[tokio::test]
async fn a_body_that_ends_before_its_length_is_cut() {
    let whole = request(&clock(), vec![Ok(b"abc"), Ok(b"de")], Duration::ZERO, Some(5));
    assert_eq!(read_all(whole).await, Ok(5));
    let short = request(&clock(), vec![Ok(b"abc"), Ok(b"de")], Duration::ZERO, Some(6));
    assert_eq!(read_all(short).await, Err(ErrorCode::BodyCut));
}

#[tokio::test]
async fn a_body_that_ends_in_an_error_is_cut() {
    let body = request(&clock(), vec![Ok(b"abc"), Err("reset".into())], Duration::ZERO, None);
    assert_eq!(read_all(body).await, Err(ErrorCode::BodyCut));
}

#[tokio::test]
async fn a_body_that_drips_is_timed_out() {
    let clock = clock();
    let body = request(&clock, (0..100).map(|_| Ok(b"x".as_slice())).collect(), Duration::from_secs(4), None);
    assert_eq!(hasten(&clock, read_all(body)).await, Err(ErrorCode::RequestTimeout));
}

#[tokio::test]
async fn a_slow_body_that_makes_progress_is_read() {
    const BLOCK: [u8; 1024] = [7; 1024];
    let clock = clock();
    let body = request(&clock, (0..100).map(|_| Ok(BLOCK.as_slice())).collect(), Duration::from_secs(9), None);
    assert_eq!(hasten(&clock, read_all(body)).await, Ok(102_400));
}

#[tokio::test]
async fn a_sender_may_pause_where_the_receiver_says_so() {
    let clock = clock();
    let mut body = request(&clock, vec![Ok(b"x"), Ok(b"y")], Duration::from_secs(50), None);
    for _ in 0..2 {
        let piece = hasten(&clock, body.next_after_pause(Duration::from_secs(60))).await;
        assert!(piece.is_ok_and(|piece| piece.is_some()));
    }
}

#[tokio::test]
async fn an_answer_that_fails_is_never_complete() {
    let frames = stream::iter(vec![Ok(Bytes::from_static(b"abc")), Err("damaged".into())]).boxed();
    assert!(streaming(&clock()).bytes(frames, None).collect().await.is_err());
    let short = stream::iter(vec![Ok(Bytes::from_static(b"abc"))]).boxed();
    assert!(streaming(&clock()).bytes(short, Some(4)).collect().await.is_err());
}

#[tokio::test]
async fn large_chunks_are_handed_on_in_pieces_that_share_their_bytes() {
    let chunk = Bytes::from(vec![1_u8; PIECE_BYTES * 2 + 1]);
    let frames = stream::iter(vec![Ok(chunk.clone())]).boxed();
    let mut body = streaming(&clock()).bytes(frames, Some(chunk.len() as u64));
    let mut sizes = Vec::new();
    while let Some(frame) = body.frame().await {
        sizes.push(frame.ok().and_then(|frame| frame.into_data().ok()).map_or(0, |bytes| bytes.len()));
    }
    assert_eq!(sizes, [PIECE_BYTES, PIECE_BYTES, 1]);
}

#[tokio::test]
async fn what_a_stalled_reader_holds_is_given_back() {
    let (clock, held) = (clock(), Arc::new(()));
    let holder = held.clone();
    let frames = stream::iter(0..10).map(move |_| {
        let _held = &holder;
        Ok(Bytes::from_static(b"abc"))
    });
    let mut body = streaming(&clock).bytes(frames.boxed(), None);
    assert!(body.frame().await.is_some_and(|frame| frame.is_ok()));
    assert_eq!(Arc::strong_count(&held), 2);
    hasten(&clock, clock.sleep(STALL * 2)).await;
    assert_eq!(Arc::strong_count(&held), 1, "the stream is still held");
    assert!(body.frame().await.is_some_and(|frame| frame.is_err()));
}

#[tokio::test]
async fn an_answer_that_waits_for_bytes_is_not_taken_for_a_stalled_reader() {
    let clock = clock();
    let sleeper = clock.clone();
    let frames = stream::iter(0..2).then(move |_| {
        let sleeper = sleeper.clone();
        async move {
            sleeper.sleep(STALL * 5).await;
            Ok(Bytes::from_static(b"abc"))
        }
    });
    let whole = hasten(&clock, streaming(&clock).bytes(frames.boxed(), None).collect()).await;
    assert_eq!(whole.map(|whole| whole.to_bytes().len()).ok(), Some(6));
}

//! Bytes in, the same bytes out.

use crate::support::{KINDS, Node, Scenario, frames, pattern};
use serde_json::json;

#[tokio::test]
async fn what_was_appended_is_read_back_byte_for_byte() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.open(0, "0.0").await.success();
        let mut held = Vec::new();
        for (round, size) in [1, 65_535, 65_536, 65_537, 1_048_575, 1_048_577, 3_000_000].into_iter().enumerate() {
            let bytes = pattern(round as u64, size);
            let answer = s.append(0, "0.0", 2, held.len() as u64, &bytes).await.success();
            held.extend_from_slice(&bytes);
            assert_eq!((&answer["end_offset"], &answer["new_bytes"]), (&json!(held.len()), &json!(size)), "{kind:?}");
        }
        let sealed = s.seal(0, "0.0").await.success();
        assert_eq!(sealed["manifest"]["total_bytes"], held.len());
        let read = s.read(0, 2).await;
        assert_eq!(read.bytes, held, "{kind:?}");
        assert_eq!(read.header("content-length"), held.len().to_string());
        let digest = format!("\"crc32c-{:08x}-{}-0.0\"", frames::crc32c(&held), held.len());
        assert_eq!(read.header("etag"), digest);
        assert!(s.read(0, 0).await.bytes.is_empty(), "nothing was written there");
    }
}

#[tokio::test]
async fn frames_of_many_subpartitions_come_back_in_order() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.open(0, "0.0").await.success();
        let (mut stream, mut held) = (Vec::new(), vec![Vec::new(); 4]);
        for sequence in 0..100_u64 {
            let to = (sequence * 7 % 4) as usize;
            let bytes = pattern(sequence, (sequence * 997 % 20_000) as usize);
            stream.extend_from_slice(&frames::data(u32::try_from(to).expect("small"), sequence, &bytes));
            held[to].extend_from_slice(&bytes);
        }
        stream.extend_from_slice(&frames::end(100));
        let answer = s.frames(0, "0.0", stream).await.success();
        let total: usize = held.iter().map(Vec::len).sum();
        assert_eq!((&answer["next_sequence"], &answer["new_bytes"]), (&json!(100), &json!(total)), "{kind:?}");
        s.seal(0, "0.0").await.success();
        for (subpartition, bytes) in (0..).zip(&held) {
            assert_eq!(&s.read(0, subpartition).await.bytes, bytes, "{kind:?}/{subpartition}");
        }
        let all = s.fetch(json!({ "items": [{ "partition": 0, "subpartition": 0, "n_subpartitions": 4 }] })).await;
        for (item, bytes) in (0..).zip(&held) {
            assert_eq!(&frames::item_bytes(&all, item, 0), bytes, "{kind:?}/{item}");
        }
        assert_eq!(all.last().map(|frame| frame.position), Some(4));
    }
}

#[tokio::test]
async fn a_range_is_exactly_the_asked_bytes() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        let bytes = pattern(9, 200_000);
        s.write_sealed(0, &[&bytes, b"x"]).await;
        for (range, from, to) in [
            ("0-0", 0, 1),
            ("65535-65536", 65_535, 65_537),
            ("199999-", 199_999, 200_000),
            ("-10", 199_990, 200_000),
            ("5-18446744073709551615", 5, 200_000),
        ] {
            let client = s.client.clone().with("range", &format!("bytes={range}"));
            let answer = client.get(&s.read_path(0, 0)).await;
            assert_eq!(answer.status, 206, "{kind:?} {range}");
            assert_eq!(answer.bytes, bytes[from..to], "{kind:?} {range}");
            assert_eq!(answer.header("content-range"), format!("bytes {from}-{}/200000", to - 1));
        }
        for range in ["200000-", "18446744073709551615-", "-0"] {
            let answer = s.client.clone().with("range", &format!("bytes={range}")).get(&s.read_path(0, 0)).await;
            assert_eq!(answer.refused("range_not_satisfiable")["end_offset"], 200_000, "{range}");
            assert_eq!(answer.header("content-range"), "bytes */200000");
        }
        for ignored in ["bytes=5-2", "items=0-1", "bytes=0-1,3-4", "bytes=x"] {
            let answer = s.client.clone().with("range", ignored).get(&s.read_path(0, 0)).await;
            assert_eq!((answer.status, answer.bytes.len()), (200, 200_000), "{ignored}");
        }
    }
}

#[tokio::test]
async fn conditions_save_the_bytes_that_the_client_has() {
    let node = Node::start().await;
    let s = Scenario::new(&node, KINDS[3]).await;
    s.write_sealed(0, &[b"0123456789"]).await;
    let path = s.read_path(0, 0);
    let head = s.client.send("HEAD", &path, s.client.request("HEAD", &path)).await;
    assert_eq!((head.status, head.header("content-length")), (200, "10"));
    let tag = head.header("etag").to_owned();
    assert_eq!(s.client.clone().with("if-none-match", &tag).get(&path).await.status, 304);
    let range = s.client.clone().with("range", "bytes=0-1");
    assert_eq!(range.clone().with("if-range", &tag).get(&path).await.status, 206);
    assert_eq!(range.with("if-range", "\"other\"").get(&path).await.status, 200);
    assert!(head.header("repr-digest").starts_with("crc32c=:"));
    assert_eq!(head.header("accept-ranges"), "bytes");
}

#[tokio::test]
async fn an_empty_partition_is_a_yes() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.write_sealed(0, &[]).await;
        let read = s.read(0, 0).await;
        assert_eq!((read.status, read.bytes.len(), read.header("content-length")), (200, 0, "0"), "{kind:?}");
        s.client.clone().with("range", "bytes=0-0").get(&s.read_path(0, 0)).await.refused("range_not_satisfiable");
        let tail = s.client.get(&format!("{}?from=0", s.read_path(0, 0))).await;
        assert_eq!((tail.status, tail.bytes.len()), (200, 0));
        assert_eq!((tail.header("forebay-next-offset"), tail.header("forebay-end-reason")), ("0", "sealed"), "{kind:?}");
        let all = s.fetch(json!({ "items": [{ "partition": 0, "subpartition": 0, "n_subpartitions": 4 }] })).await;
        assert_eq!(all.iter().filter(|frame| frame.kind == frames::ITEM_END).count(), 4, "{kind:?}");
    }
}

#[tokio::test]
async fn a_repeat_adds_nothing_and_a_gap_or_other_bytes_are_refused() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.open(0, "0.0").await.success();
        s.append(0, "0.0", 0, 0, b"abcdef").await.success();
        assert_eq!(s.append(0, "0.0", 0, 0, b"abcdef").await.success()["new_bytes"], 0);
        assert_eq!(s.append(0, "0.0", 0, 3, b"defghi").await.success()["new_bytes"], 3, "{kind:?}");
        assert_eq!(s.append(0, "0.0", 0, 12, b"x").await.refused("offset_mismatch")["expected_offset"], 9);
        assert_eq!(s.append(0, "0.0", 0, 3, b"xxx").await.refused("content_mismatch")["expected_offset"], 9);
        // A gap however far: the answer names where to go on.
        assert_eq!(s.append(0, "0.0", 0, u64::MAX, b"x").await.refused("offset_mismatch")["expected_offset"], 9);
        s.seal(0, "0.0").await.success();
        assert_eq!(s.read(0, 0).await.bytes, b"abcdefghi", "{kind:?}");
    }
}

#[tokio::test]
async fn a_gap_in_the_sequence_is_refused_until_it_is_filled() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.open(0, "0.0").await.success();
        let stream = |from: u64, to: u64| {
            let frames = (from..to).flat_map(|sequence| frames::data(0, sequence, &sequence.to_le_bytes()[..1]));
            frames.chain(frames::end(to)).collect::<Vec<u8>>()
        };
        s.frames(0, "0.0", stream(0, 5)).await.success();
        let refused = s.frames(0, "0.0", stream(6, 8)).await;
        assert_eq!(refused.refused("sequence_mismatch")["expected_sequence"], 5, "{kind:?}");
        assert_eq!(s.frames(0, "0.0", stream(3, 8)).await.success()["new_bytes"], 3, "{kind:?}");
        s.seal(0, "0.0").await.success();
        assert_eq!(s.read(0, 0).await.bytes, [0, 1, 2, 3, 4, 5, 6, 7], "{kind:?}");
    }
}

#[tokio::test]
async fn a_frame_stream_cut_anywhere_is_never_acknowledged_and_goes_on_where_it_stopped() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.open(0, "0.0").await.success();
        let payloads: Vec<Vec<u8>> = (0..4).map(|at| pattern(at, 10)).collect();
        let whole: Vec<u8> = (0..).zip(&payloads).flat_map(|(at, bytes)| frames::data(1, at, bytes)).chain(frames::end(4)).collect();
        for cut in (0..whole.len()).step_by(9) {
            let answer = s.frames(0, "0.0", whole[..cut].to_vec()).await;
            let expected = s.client.get(&s.attempt(0, "0.0")).await.success()["next_sequence"].clone();
            assert_eq!(answer.refused("body_cut")["expected_sequence"], expected, "{kind:?} cut at {cut}");
        }
        let mut damaged = whole.clone();
        damaged[30] ^= 1;
        s.frames(0, "0.0", damaged).await.refused("bad_frame");
        let trailing = [whole.clone(), vec![0]].concat();
        s.frames(0, "0.0", trailing).await.refused("bad_frame");
        s.frames(0, "0.0", whole).await.success();
        s.seal(0, "0.0").await.success();
        assert_eq!(s.read(0, 1).await.bytes, payloads.concat(), "{kind:?}");
    }
}

#[tokio::test]
async fn a_body_that_does_not_have_its_digest_leaves_nothing() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.open(0, "0.0").await.success();
        let path = format!("{}?offset=0", s.append_path(0, "0.0", 0));
        let send = async |digest: &'static str| {
            let request = s.client.request("PUT", &path).header("content-type", "application/octet-stream");
            s.client.send("PUT", &path, request.header("content-digest", digest).body("123456789")).await
        };
        send("crc32c=:AAAAAA==:").await.refused("content_digest_mismatch");
        assert_eq!(s.client.get(&s.attempt(0, "0.0")).await.success()["tails"], json!([]), "{kind:?}");
        assert_eq!(send("crc32c=:4waSgw==:").await.success()["new_bytes"], 9);
    }
}

#[tokio::test]
async fn an_open_pipelined_partition_is_read_while_it_is_written() {
    let node = Node::start().await;
    for kind in [KINDS[0], KINDS[1], KINDS[2]] {
        let s = Scenario::new(&node, kind).await;
        s.open(0, "0.0").await.success();
        s.append(0, "0.0", 0, 0, b"abc").await.success();
        let path = format!("{}?from=1", s.read_path(0, 0));
        assert_eq!(s.client.get(&path).await.bytes, b"bc", "{kind:?}: without a wait the body ends at the tail");
        let waiting = s.client.clone().with("prefer", "wait=20").with("te", "trailers");
        let read = tokio::spawn(async move { waiting.get(&path).await });
        s.append(0, "0.0", 0, 3, b"def").await.success();
        s.seal(0, "0.0").await.success();
        assert_eq!(read.await.expect("read").bytes, b"bcdef", "{kind:?}");
        let at_end = s.client.get(&format!("{}?from=6", s.read_path(0, 0))).await;
        assert_eq!((at_end.bytes.len(), at_end.header("forebay-end-reason")), (0, "sealed"));
        s.client.get(&format!("{}?from=7", s.read_path(0, 0))).await.refused("range_not_satisfiable");
        assert_eq!(s.client.get(&format!("{}?from=1&to=3", s.read_path(0, 0))).await.bytes, b"bc");
        for (from, status) in [(0, 200), (6, 200), (7, 416)] {
            let path = format!("{}?from={from}", s.read_path(0, 0));
            let head = s.client.send("HEAD", &path, s.client.request("HEAD", &path)).await;
            assert_eq!(head.status, status, "{kind:?}: what GET would say");
        }
    }
}

#[tokio::test]
async fn an_attempt_that_starts_beyond_zero_is_read_by_its_absolute_offsets() {
    let node = Node::start().await;
    for kind in [KINDS[0], KINDS[1], KINDS[2]] {
        let s = Scenario::new(&node, kind).await;
        let starts = json!({ "starts": [{ "subpartition": 0, "offset": 500 }] });
        s.client.post(&format!("{}/attempts", s.partition(0)), starts).await.success();
        s.append(0, "0.0", 0, 500, b"0123456789").await.success();
        s.seal(0, "0.0").await.success();
        let asked = json!({ "items": [{ "dataset": "d", "partition": 0, "subpartition": 0 }] });
        let found = s.client.post(&format!("{}/availability", s.job_path()), asked).await.success();
        let entry = &found["partitions"][0];
        assert_eq!((&entry["floor"], &entry["end"], &entry["total_bytes"]), (&json!(500), &json!(510), &json!(10)), "{kind:?}");
        let path = s.read_path(0, 0);
        assert_eq!(s.client.get(&format!("{path}?from=500")).await.bytes, b"0123456789", "{kind:?}");
        let end = s.client.get(&format!("{path}?from=510")).await;
        assert_eq!((end.header("forebay-next-offset"), end.header("forebay-end-reason")), ("510", "sealed"), "{kind:?}");
        let range = s.client.get(&format!("{path}?from=505&to=505")).await;
        assert_eq!((range.header("forebay-next-offset"), range.header("forebay-end-reason")), ("505", "range"), "{kind:?}");
        let part = s.client.clone().with("range", "bytes=502-504").get(&path).await;
        assert_eq!((part.status, part.header("content-range"), part.bytes.as_slice()), (206, "bytes 502-504/510", &b"234"[..]), "{kind:?}");
        assert_eq!(s.client.get(&path).await.refused("below_floor")["floor"], 500, "{kind:?}");
        s.client.get(&format!("{path}?from=511")).await.refused("range_not_satisfiable");
    }
}

#[tokio::test]
async fn a_head_that_follows_says_what_the_read_would_say() {
    let node = Node::start().await;
    for kind in [KINDS[3], KINDS[4]] {
        let s = Scenario::new(&node, kind).await;
        s.open(0, "0.0").await.success();
        let path = format!("{}?from=0", s.read_path(0, 0));
        let head = async || s.client.send("HEAD", &path, s.client.request("HEAD", &path)).await.status;
        s.client.get(&path).await.refused("not_sealed");
        assert_eq!(head().await, 409, "{kind:?}");
        s.seal(0, "0.0").await.success();
        assert_eq!((s.client.get(&path).await.status, head().await), (200, 200), "{kind:?}");
    }
}

#[tokio::test]
async fn trailers_tell_where_and_why_a_body_ended() {
    use http_body_util::BodyExt as _;
    let node = Node::start().await;
    let s = Scenario::new(&node, KINDS[0]).await;
    s.open(0, "0.0").await.success();
    s.append(0, "0.0", 0, 0, b"abc").await.success();
    for client in [s.client.clone().with("te", "trailers"), s.client.clone().over_http2()] {
        let request = client.request("GET", &format!("{}?from=0", s.read_path(0, 0)));
        let response: http::Response<reqwest::Body> = request.send().await.expect("an answer").into();
        let body = response.into_body().collect().await.expect("a whole body");
        let trailers = body.trailers().cloned().unwrap_or_default();
        assert_eq!(trailers.get("forebay-next-offset").and_then(|value| value.to_str().ok()), Some("3"));
        assert_eq!(trailers.get("forebay-end-reason").and_then(|value| value.to_str().ok()), Some("waited"));
        assert_eq!(body.to_bytes().as_ref(), b"abc");
    }
}

#[tokio::test]
async fn acknowledged_bytes_are_gone_and_a_read_of_them_names_the_floor() {
    let node = Node::start().await;
    let s = Scenario::new(&node, KINDS[0]).await;
    s.open(0, "0.0").await.success();
    s.append(0, "0.0", 0, 0, b"abcdef").await.success();
    let positions = json!({ "positions": [{ "partition": 0, "subpartition": 0, "offset": 4 }] });
    let answer = s.client.post(&format!("{}/acknowledge", s.dataset()), positions).await.success();
    assert_eq!(answer["floors"], json!([{ "partition": 0, "subpartition": 0, "floor": 4 }]));
    let below = s.client.get(&format!("{}?from=3", s.read_path(0, 0))).await;
    assert_eq!(below.refused("below_floor")["floor"], 4);
    assert_eq!(s.client.get(&format!("{}?from=4", s.read_path(0, 0))).await.bytes, b"ef");
    let beyond = json!({ "positions": [{ "partition": 0, "subpartition": 0, "offset": 7 }] });
    s.client.post(&format!("{}/acknowledge", s.dataset()), beyond).await.refused("range_not_satisfiable");
}

#[tokio::test]
async fn a_completed_checkpoint_moves_the_floors() {
    let node = Node::start().await;
    let s = Scenario::new(&node, KINDS[2]).await;
    s.open(0, "0.0").await.success();
    s.append(0, "0.0", 0, 0, b"abcdef").await.success();
    let need: Vec<_> =
        (0..4).map(|at| json!({ "dataset": "d", "partition": 0, "subpartition": at, "offset": if at == 0 { 2 } else { 0 } })).collect();
    let path = format!("{}/checkpoints/1/complete", s.job_path());
    let answer = s.client.post(&path, json!({ "need": need })).await.success();
    assert_eq!(answer["checkpoint"], 1);
    s.client.get(&format!("{}?from=1", s.read_path(0, 0))).await.refused("below_floor");
    assert_eq!(s.client.get(&format!("{}?from=2", s.read_path(0, 0))).await.bytes, b"cdef");
}

#[tokio::test]
async fn a_batch_stops_at_its_budget_and_goes_on_from_where_it_paused() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        let contents: Vec<Vec<u8>> = (0..4).map(|at| pattern(at, 100_000)).collect();
        let slices: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
        s.write_sealed(0, &slices).await;
        let mut held = vec![Vec::new(); 4];
        let mut n_requests = 0;
        while held.iter().zip(&contents).any(|(held, all)| held.len() < all.len()) {
            let missing: Vec<u32> = (0..4).filter(|at| held[*at as usize].len() < 100_000).collect();
            let items: Vec<_> =
                missing.iter().map(|at| json!({ "partition": 0, "subpartition": at, "from": held[*at as usize].len() })).collect();
            let answer = s.fetch(json!({ "items": items, "budget_bytes": 150_000 })).await;
            let ends = answer.iter().filter(|frame| [frames::ITEM_END, frames::ITEM_PAUSED].contains(&frame.kind)).count();
            assert_eq!(ends, missing.len(), "{kind:?}: every item has one end");
            for (item, at) in (0..).zip(&missing) {
                let from = held[*at as usize].len() as u64;
                let bytes = frames::item_bytes(&answer, item, from);
                held[*at as usize].extend_from_slice(&bytes);
            }
            n_requests += 1;
            assert!(n_requests < 20, "{kind:?}: no progress");
        }
        assert_eq!(held, contents, "{kind:?}");
        assert!(n_requests > 1, "{kind:?}: the budget was not kept");
    }
}

#[tokio::test]
async fn one_item_that_is_gone_does_not_spoil_the_others() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.write_sealed(0, &[b"zero"]).await;
        s.write_sealed(1, &[b"one"]).await;
        s.client.delete(&s.partition(0)).await.success();
        let items =
            json!([{ "partition": 0, "subpartition": 0 }, { "partition": 1, "subpartition": 0 }, { "partition": 2, "subpartition": 0 }]);
        let answer = s.fetch(json!({ "items": items })).await;
        let codes: Vec<(u32, String)> = answer
            .iter()
            .filter(|frame| frame.kind == frames::ITEM_ERROR)
            .map(|frame| {
                (frame.target, serde_json::from_slice::<serde_json::Value>(&frame.payload).expect("a problem")["code"].to_string())
            })
            .collect();
        assert!(
            codes.contains(&(0, "\"released\"".to_owned())) && codes.contains(&(2, "\"not_written\"".to_owned())),
            "{kind:?}: {codes:?}"
        );
        assert_eq!(frames::item_bytes(&answer, 1, 0), b"one", "{kind:?}");
    }
}

#[tokio::test]
async fn a_broadcast_is_served_as_every_subpartition() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::with_client(node.client(), kind, json!({ "subpartitions": 3, "broadcast": true })).await;
        s.write_sealed(0, &[b"to all"]).await;
        for subpartition in 0..3 {
            assert_eq!(s.read(0, subpartition).await.bytes, b"to all", "{kind:?}");
        }
        s.read(0, 3).await.refused("unknown_partition");
    }
}

#[tokio::test]
async fn everything_works_over_http2_too() {
    let node = Node::start().await;
    for kind in KINDS {
        let mut s = Scenario::new(&node, kind).await;
        s.client = s.client.clone().over_http2();
        let bytes = pattern(3, 5_000_000);
        s.write_sealed(0, &[&bytes]).await;
        assert_eq!(s.read(0, 0).await.bytes, bytes, "{kind:?}");
        let all = s.fetch(json!({ "items": [{ "partition": 0, "subpartition": 0 }] })).await;
        assert_eq!(frames::item_bytes(&all, 0, 0), bytes, "{kind:?}");
    }
}

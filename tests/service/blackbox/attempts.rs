//! Which attempt counts, and what the others are told.

use crate::support::{KINDS, Node, Scenario, eventually, frames, pattern};
use futures::StreamExt as _;
use serde_json::json;
use tokio::sync::mpsc;

#[tokio::test]
async fn sealing_twice_answers_the_same_manifest_and_takes_no_more_bytes() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.open(0, "0.0").await.success();
        s.append(0, "0.0", 0, 0, b"abc").await.success();
        let (one, two) = (s.seal(0, "0.0").await.success(), s.seal(0, "0.0").await.success());
        assert_eq!(one, two, "{kind:?}");
        s.append(0, "0.0", 0, 3, b"d").await.refused("already_sealed");
        let stream = [frames::data(0, 0, b"d"), frames::end(1)].concat();
        s.frames(0, "0.0", stream).await.refused("already_sealed");
        s.client.delete(&s.attempt(0, "0.0")).await.refused("already_sealed");
        assert_eq!(s.read(0, 0).await.bytes, b"abc", "{kind:?}");
    }
}

#[tokio::test]
async fn of_two_attempts_the_first_seal_wins_and_the_other_is_told_who() {
    let node = Node::start().await;
    for kind in [KINDS[3], KINDS[4]] {
        let s = Scenario::new(&node, kind).await;
        for (attempt, bytes) in [("0.0", b"zero"), ("0.1", b"one!")] {
            s.open(0, attempt).await.success();
            s.append(0, attempt, 0, 0, bytes).await.success();
        }
        assert_eq!(s.seal(0, "0.1").await.success()["result"], "won");
        let other = s.seal(0, "0.0").await.success();
        assert_eq!((&other["result"], &other["manifest"]["attempt"]), (&json!("other_won"), &json!("0.1")), "{kind:?}");
        assert_eq!(s.read(0, 0).await.bytes, b"one!");
        let told = s.client.get(&format!("{}?attempt=0.0", s.read_path(0, 0))).await;
        assert_eq!(told.refused("other_attempt_won")["attempt"], "0.1", "{kind:?}");
        assert_eq!(s.client.get(&format!("{}?attempt=0.1", s.read_path(0, 0))).await.bytes, b"one!");
    }
}

#[tokio::test]
async fn seals_at_the_same_time_have_one_winner() {
    let node = Node::start().await;
    for kind in [KINDS[3], KINDS[4]] {
        let s = Scenario::with_client(node.client(), kind, json!({ "subpartitions": 1 })).await;
        for partition in 0..5 {
            for attempt in ["0.0", "0.1", "0.2"] {
                s.open(partition, attempt).await.success();
                s.append(partition, attempt, 0, 0, attempt.as_bytes()).await.success();
            }
            let seals = ["0.0", "0.1", "0.2"].map(|attempt| s.seal(partition, attempt));
            let answers = futures::future::join_all(seals).await;
            let won: Vec<_> =
                answers.iter().map(super::super::support::Answer::success).filter(|answer| answer["result"] == "won").collect();
            assert_eq!(won.len(), 1, "{kind:?}");
            let winner = won[0]["manifest"]["attempt"].as_str().expect("an attempt");
            assert_eq!(s.read(partition, 0).await.bytes, winner.as_bytes(), "{kind:?}");
        }
    }
}

#[tokio::test]
async fn every_sealed_attempt_is_readable_by_name_where_the_engine_decides() {
    let node = Node::start().await;
    for kind in [KINDS[3], KINDS[4]] {
        let s = Scenario::with_client(node.client(), kind, json!({ "subpartitions": 1, "arbitration": "engine" })).await;
        for attempt in ["0.0", "0.1"] {
            s.open(0, attempt).await.success();
            s.append(0, attempt, 0, 0, attempt.as_bytes()).await.success();
            assert_eq!(s.seal(0, attempt).await.success()["result"], "won");
        }
        for attempt in ["0.0", "0.1"] {
            let read = s.client.get(&format!("{}?attempt={attempt}", s.read_path(0, 0))).await;
            assert_eq!(read.bytes, attempt.as_bytes(), "{kind:?}");
            assert_eq!(read.header("forebay-attempt"), attempt);
        }
    }
}

#[tokio::test]
async fn a_higher_generation_needs_the_owner_and_fences_the_lower() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.write_sealed(0, &[b"old"]).await;
        s.open(1, "0.0").await.success();
        for partition in [0, 1] {
            let mut stranger = s.clone();
            stranger.client = s.client.clone().without("forebay-job-epoch");
            stranger.open(partition, "1.0").await.refused("epoch_required");
            s.open(partition, "1.0").await.success();
        }
        let refused = s.append(1, "0.0", 0, 0, b"late").await;
        assert_eq!(refused.refused("fenced")["attempt"], "1.0", "{kind:?}");
        s.seal(1, "0.0").await.refused("fenced");
        assert_ne!(s.read(0, 0).await.status, 200, "{kind:?}: the old generation is fenced");
        s.append(0, "1.0", 0, 0, b"new").await.success();
        s.seal(0, "1.0").await.success();
        assert_eq!(s.read(0, 0).await.bytes, b"new", "{kind:?}");
    }
}

#[tokio::test]
async fn a_write_names_the_life_of_the_node() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        let life = s.client.get("/v1/node").await.success()["location"]["life"].clone();
        s.open(0, "0.0").await.success();
        let (mut silent, mut former) = (s.clone(), s.clone());
        silent.client = s.client.clone().without("forebay-node-life");
        former.client = s.client.clone().with("forebay-node-life", "00000000000000ff");
        let positions = json!({ "positions": [] });
        for (who, code) in [(&silent, "life_required"), (&former, "fenced")] {
            let stream = frames::end(0);
            let acknowledge = format!("{}/acknowledge", s.dataset());
            let answers = [
                who.append(0, "0.0", 0, 0, b"x").await,
                who.frames(0, "0.0", stream).await,
                who.seal(0, "0.0").await,
                who.client.delete(&s.attempt(0, "0.0")).await,
                who.client.post(&acknowledge, positions.clone()).await,
            ];
            for answer in answers {
                let problem = answer.refused(code);
                assert!(code != "fenced" || problem["life"] == life);
            }
        }
        former.open(1, "0.0").await.refused("fenced");
        s.client.get(&format!("{}?life=00000000000000ff", s.read_path(0, 0))).await.refused("fenced");
        assert_eq!(s.client.get(&s.attempt(0, "0.0")).await.success()["tails"], json!([]), "{kind:?}");
    }
}

#[tokio::test]
async fn an_aborted_attempt_stays_aborted() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.open(0, "0.0").await.success();
        s.append(0, "0.0", 0, 0, b"abc").await.success();
        for _ in 0..2 {
            assert_eq!(s.client.delete(&s.attempt(0, "0.0")).await.status, 204, "{kind:?}");
        }
        s.append(0, "0.0", 0, 3, b"d").await.refused("aborted");
        s.seal(0, "0.0").await.refused("aborted");
        s.open(0, "0.1").await.success();
        s.append(0, "0.1", 0, 0, b"next").await.success();
        s.seal(0, "0.1").await.success();
        assert_eq!(s.read(0, 0).await.bytes, b"next", "{kind:?}");
    }
}

#[tokio::test]
async fn a_seal_that_states_something_else_is_refused_and_can_be_repeated_rightly() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.open(0, "0.0").await.success();
        let bytes = pattern(1, 1000);
        s.append(0, "0.0", 3, 0, &bytes).await.success();
        let path = format!("{}/seal", s.attempt(0, "0.0"));
        let crc = frames::crc32c(&bytes);
        for wrong in [
            json!({ "indices": [3], "lengths": [999], "crcs": [crc] }),
            json!({ "indices": [3], "lengths": [1000], "crcs": [crc ^ 1] }),
            json!({ "indices": [2], "lengths": [1000], "crcs": [crc] }),
            json!({ "lengths": [0, 0, 0, 0] }),
        ] {
            s.client.post(&path, json!({ "subpartitions": wrong })).await.refused("digest_mismatch");
        }
        let dense = json!({ "lengths": [0, 0, 0, 1000], "crcs": [0, 0, 0, crc] });
        s.client.post(&path, json!({ "subpartitions": dense })).await.success();
        assert_eq!(s.read(0, 3).await.bytes, bytes, "{kind:?}");
    }
}

#[tokio::test]
async fn a_newer_frame_stream_fences_the_older() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.open(0, "0.0").await.success();
        let (sender, receiver) = mpsc::channel::<Vec<u8>>(4);
        let pieces = futures::stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
        let body = reqwest::Body::wrap_stream(pieces.map(Ok::<_, std::io::Error>).boxed());
        let (old, path) = (s.client.clone(), format!("{}/frames", s.attempt(0, "0.0")));
        let older = tokio::spawn(async move { old.body("POST", &path, "application/vnd.forebay.frames", body).await });
        sender.send(frames::data(0, 0, b"a")).await.expect("taken");
        eventually("the first frame is there", async || s.client.get(&s.attempt(0, "0.0")).await.json()["next_sequence"] == 1).await;
        s.frames(0, "0.0", [frames::data(0, 1, b"b"), frames::end(2)].concat()).await.success();
        let _ = sender.send([frames::data(0, 2, b"x"), frames::end(3)].concat()).await;
        drop(sender);
        older.await.expect("no panic").refused("fenced");
        s.seal(0, "0.0").await.success();
        assert_eq!(s.read(0, 0).await.bytes, b"ab", "{kind:?}");
    }
}

#[tokio::test]
async fn nothing_comes_back_after_a_release() {
    let node = Node::start().await;
    for kind in KINDS {
        let s = Scenario::new(&node, kind).await;
        s.open(0, "0.0").await.success();
        s.append(0, "0.0", 0, 0, b"abc").await.success();
        s.client.delete(&s.job_path()).await.success();
        for answer in [s.append(0, "0.0", 0, 3, b"d").await, s.seal(0, "0.0").await, s.open(0, "0.1").await, s.read(0, 0).await] {
            answer.refused("released");
        }
        let lease = s.client.post(&format!("{}/lease", s.job_path()), json!({})).await;
        lease.refused("released");
    }
}

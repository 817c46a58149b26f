//! A small store behind the fake server: one dataset, attempts in memory, faults by seed.

use crate::fake::{End, Reply, Request, Service};
use bytes::Bytes;
use forebay_protocol::partitions::{
    AppendDocument, AttemptDocument, ClassDocument, FramesDocument, Location, ManifestDocument, OpenAttemptRequest, SealDocument,
    SealRequest, SealResult, SubpartitionOffset,
};
use forebay_protocol::{ErrorCode, Problem};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use store_api::Crc32c;
use store_api::frame::{FrameDecoder, FrameKind, MAX_PAYLOAD};

pub(crate) const LIFE: &str = "00000000000000a1";

pub(crate) struct Dice(AtomicU64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    pub(crate) fn below(&self, bound: usize) -> usize {
        let mut x = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((x ^ (x >> 31)) % bound as u64).unwrap()
    }
}

#[derive(Default)]
pub(crate) struct Held {
    pub(crate) next_sequence: u64,
    pub(crate) bytes: BTreeMap<u32, Vec<u8>>,
    pub(crate) n_seals: usize,
}

/// `n_in_ten` of ten writes, reads of attempts and seals break in one of several ways.
pub(crate) struct Store {
    pub(crate) held: Mutex<Held>,
    dice: Dice,
    n_in_ten: usize,
    /// The attempt is forgotten, as by a restart.
    pub(crate) is_restarted: bool,
    /// Frame streams whose head has arrived.
    pub(crate) n_streams: AtomicU64,
}

pub(crate) fn location(url: &str) -> Location {
    Location { node: "n".to_owned(), life: LIFE.to_owned(), url: url.to_owned() }
}

pub(crate) fn manifest(partition: u64, total_bytes: u64, url: &str) -> ManifestDocument {
    let word = || "blocking".to_owned();
    let class = ClassDocument { class: word(), durability: word(), sync: word(), scope: word() };
    ManifestDocument {
        partition,
        attempt: "0.0".to_owned(),
        total_bytes,
        fingerprint: "00000000".to_owned(),
        checksum: "crc32c".to_owned(),
        class,
        location: location(url),
        sealed_at_ms: 0,
        subpartitions: None,
    }
}

pub(crate) fn problem(code: ErrorCode) -> Problem {
    Problem { retry_after_ms: Some(1), ..Problem::new(code, "told to") }
}

impl Store {
    pub(crate) fn new(seed: u64, n_in_ten: usize) -> Self {
        Self { held: Mutex::default(), dice: Dice::new(seed), n_in_ten, is_restarted: false, n_streams: AtomicU64::new(0) }
    }

    fn is_faulty(&self) -> bool {
        self.dice.below(10) < self.n_in_ten
    }

    fn state(&self, held: &Held) -> Reply {
        let tails = held.bytes.iter().map(|(index, bytes)| SubpartitionOffset { subpartition: *index, offset: bytes.len() as u64 });
        Reply::json(&AttemptDocument {
            attempt: "0.0".to_owned(),
            state: "open".to_owned(),
            location: location("http://127.0.0.1:1"),
            next_sequence: held.next_sequence,
            tails: tails.collect(),
            max_frame_bytes: 4096,
            atomic_append_bytes: 512,
        })
    }

    fn frames(held: &mut Held, body: &[u8]) -> Reply {
        let mut decoder = FrameDecoder::new(MAX_PAYLOAD);
        decoder.push(Bytes::copy_from_slice(body)).unwrap();
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) if frame.header.kind == FrameKind::End => {
                    assert_eq!(frame.header.position, held.next_sequence, "the end frame names the sequence after the last");
                    return Reply::json(&FramesDocument { next_sequence: held.next_sequence, new_bytes: 0 });
                }
                Ok(Some(frame)) if frame.header.position > held.next_sequence => {
                    return Reply::problem(&problem(ErrorCode::SequenceMismatch));
                }
                Ok(Some(frame)) if frame.header.position < held.next_sequence => {}
                Ok(Some(frame)) => {
                    held.bytes.entry(frame.header.target).or_default().extend_from_slice(frame.chunk.bytes());
                    held.next_sequence += 1;
                }
                Ok(None) | Err(_) => return Reply::problem(&problem(ErrorCode::BadFrame)),
            }
        }
    }

    fn append(held: &mut Held, request: &Request) -> Reply {
        let index: u32 = request.path.rsplit('/').next().unwrap().parse().unwrap();
        let offset: usize = request.query["offset"].parse().unwrap();
        let bytes = held.bytes.entry(index).or_default();
        if offset > bytes.len() {
            return Reply::problem(&problem(ErrorCode::OffsetMismatch));
        }
        let n_known = (bytes.len() - offset).min(request.body.len());
        assert_eq!(bytes[offset..offset + n_known], request.body[..n_known], "a repeat has the same bytes");
        bytes.extend_from_slice(&request.body[n_known..]);
        Reply::json(&AppendDocument { end_offset: bytes.len() as u64, new_bytes: 0 })
    }

    fn seal(held: &mut Held, body: &[u8]) -> Reply {
        let stated = serde_json::from_slice::<SealRequest>(body).unwrap().subpartitions.unwrap();
        let wanted: Vec<_> = held.bytes.iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
        assert_eq!(stated.indices.unwrap(), wanted.iter().map(|(index, _)| **index).collect::<Vec<_>>());
        assert_eq!(stated.lengths, wanted.iter().map(|(_, bytes)| bytes.len() as u64).collect::<Vec<_>>());
        assert_eq!(stated.crcs.unwrap(), wanted.iter().map(|(_, bytes)| Crc32c::of(bytes).get()).collect::<Vec<_>>());
        held.n_seals += 1;
        let total = held.bytes.values().map(|bytes| bytes.len() as u64).sum();
        Reply::json(&SealDocument { result: SealResult::Won, manifest: manifest(0, total, "http://127.0.0.1:1") })
    }
}

impl Service for Store {
    fn upload_limit(&self, head: &Request) -> Option<usize> {
        let is_frames = head.path.ends_with("/frames");
        self.n_streams.fetch_add(u64::from(is_frames), Ordering::Relaxed);
        (is_frames && self.is_faulty()).then(|| self.dice.below(3000))
    }

    fn answer(&self, request: &Request) -> Reply {
        let mut held = self.held.lock().unwrap();
        let is_open = request.method == "POST" && request.path.ends_with("/attempts");
        if is_open {
            let _: OpenAttemptRequest = serde_json::from_slice(&request.body).unwrap();
            return self.state(&held);
        }
        assert!(request.method == "GET" || request.headers["forebay-node-life"] == LIFE, "writes name the node life");
        let is_state = request.method == "GET" && request.path.ends_with("/attempts/0.0");
        if is_state && self.is_restarted {
            return Reply::problem(&problem(ErrorCode::UnknownAttempt));
        }
        if request.is_whole && self.is_faulty() && self.dice.below(2) == 0 {
            return Reply::problem(&problem([ErrorCode::Overloaded, ErrorCode::OverQuota, ErrorCode::Internal][self.dice.below(3)]));
        }
        let reply = match request.method.as_str() {
            "GET" => self.state(&held),
            "PUT" => Self::append(&mut held, request),
            _ if request.path.ends_with("/frames") => Self::frames(&mut held, &request.body),
            _ => Self::seal(&mut held, &request.body),
        };
        // The work is done and its answer is lost, in part or as a whole.
        if self.is_faulty() { reply.ending(End::CutAt(self.dice.below(20))) } else { reply }
    }
}

//! Reading: ranges of sealed content, bytes as they come, batches.

use super::HttpStore;
use super::calls::{About, header};
use super::names::job_name;
use crate::support::frames;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{BoxStream, unfold};
use http_body_util::BodyExt as _;
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use store_api::{
    Chunk, Crc32c, Digest, FetchEvent, Offset, Operation, ReadMode, ReadRequest, ReadStream, SharedClock, StoreError, StoreErrorKind,
    SystemClock,
};

/// Payload of one batch, small enough that the batches of the suite are paused.
const BATCH_BYTES: u64 = 64 * 1024;
/// Longest wait that one request asks for, in seconds.
const LONGEST_WAIT: u64 = 20;

impl HttpStore {
    fn about_read(&self, request: &ReadRequest) -> About {
        let place = self.names.place(&request.attempt.partition);
        About::new(Operation::Read, &request.attempt).of(place.as_ref().map(|place| place.spec.as_ref()), request.subpartition.get())
    }

    fn read_path(&self, request: &ReadRequest) -> String {
        let partition = self.partition_path(&request.attempt.partition);
        format!("{partition}/subpartitions/{}?attempt={}", request.subpartition, request.attempt.attempt)
    }

    pub(super) async fn start_read(&self, request: ReadRequest) -> Result<ReadStream, StoreError> {
        match request.mode {
            ReadMode::Sealed => self.read_sealed(request).await,
            ReadMode::Tail { wait } => self.read_tail(request, wait).await,
        }
    }

    /// What the head of a read says: length and checksum.
    async fn digest_of(&self, request: &ReadRequest) -> Result<Digest, StoreError> {
        let (about, path) = (self.about_read(request), self.read_path(request));
        match self.send(&about, self.request(Method::HEAD, &path)).await {
            Ok(head) => Ok(digest_of(header(head.headers(), "etag"))),
            // A head has no document that says what is wrong.
            Err(_) => match self.send(&about, self.request(Method::GET, &path)).await {
                Ok(_) => Err(about.refuse(StoreErrorKind::Unavailable { retry_after: Duration::from_millis(10) })),
                Err(error) => Err(error),
            },
        }
    }

    async fn read_sealed(&self, request: ReadRequest) -> Result<ReadStream, StoreError> {
        let digest = self.digest_of(&request).await?;
        let about = self.about_read(&request);
        let (start, total) = (request.start.get(), digest.length);
        if start > total {
            return Err(about.refuse(StoreErrorKind::BeyondEnd { end: Offset::new(total) }));
        }
        let end = request.end.map_or(total, |end| end.get().min(total)).max(start);
        let made = |chunks| ReadStream { start: request.start, end: Some(Offset::new(end)), digest: Some(digest), chunks };
        if start == end {
            return Ok(made(futures::stream::empty().boxed()));
        }
        let call = self.request(Method::GET, &self.read_path(&request)).header("range", format!("bytes={start}-{}", end - 1));
        let answer = self.send(&about, call).await?;
        assert_eq!(answer.status(), 206, "a range is answered as one");
        assert_eq!(header(answer.headers(), "content-range"), format!("bytes {start}-{}/{total}", end - 1));
        let sealed = Sealed { store: self.clone(), body: answer.bytes_stream().boxed(), at: start, end, request: request.clone() };
        let chunks = unfold(Some(sealed), |sealed| async move { sealed?.step().await });
        Ok(made(chunks.boxed()))
    }

    async fn read_tail(&self, request: ReadRequest, wait: Duration) -> Result<ReadStream, StoreError> {
        let mut tail = Following {
            store: self.clone(),
            at: request.start.get(),
            request,
            wait,
            idle_since: Duration::ZERO,
            clock: SystemClock::shared(),
            body: None,
        };
        tail.idle_since = tail.now();
        // Without a wait, so that what is wrong is said before the first byte comes.
        tail.ask(0).await?;
        let start = tail.request.start;
        let chunks = unfold(Some(tail), |tail| async move { tail?.step().await });
        Ok(ReadStream { start, end: None, digest: None, chunks: chunks.boxed() })
    }

    pub(super) fn fetch_all(&self, items: Vec<ReadRequest>) -> BoxStream<'static, FetchEvent> {
        let mut batches: BTreeMap<String, Vec<Item>> = BTreeMap::new();
        for (number, request) in items.into_iter().enumerate() {
            let at = request.start.get();
            batches.entry(self.dataset_path(&request.attempt.partition)).or_default().push(Item { number, request, at });
        }
        let store = self.clone();
        let rounds = futures::stream::iter(batches).flat_map(move |(path, items)| {
            let store = store.clone();
            let rounds = unfold(items, move |items| {
                let (store, path) = (store.clone(), path.clone());
                async move { if items.is_empty() { None } else { Some(store.fetch_round(&path, items).await) } }
            });
            rounds.flat_map(futures::stream::iter)
        });
        rounds.boxed()
    }

    /// One batch read; answers its events and the items that were paused.
    async fn fetch_round(&self, path: &str, items: Vec<Item>) -> (Vec<FetchEvent>, Vec<Item>) {
        let wanted: Vec<Value> = items.iter().map(Item::document).collect();
        let document = json!({ "items": wanted, "budget_bytes": BATCH_BYTES });
        let call = self.request(Method::POST, &format!("{path}/fetch")).json(&document);
        let about = About::new(Operation::Read, &path);
        let bytes = match self.send(&about, call).await {
            Ok(answer) => answer.bytes().await.map_err(|_| about.refuse(StoreErrorKind::Unavailable { retry_after: Duration::ZERO })),
            Err(error) => Err(error),
        };
        let frames = match bytes {
            Ok(bytes) => frames::decode(&bytes),
            Err(error) => {
                let failed = |item: Item| FetchEvent::Failed {
                    item: item.number,
                    at: Offset::new(item.at),
                    error: about.refuse(error.kind().clone()),
                };
                return (items.into_iter().map(failed).collect(), Vec::new());
            }
        };
        self.sort_frames(items, frames)
    }

    fn sort_frames(&self, mut items: Vec<Item>, frames: Vec<frames::Frame>) -> (Vec<FetchEvent>, Vec<Item>) {
        let (mut events, mut paused) = (Vec::new(), Vec::new());
        for frame in frames {
            if frame.kind == frames::END {
                continue;
            }
            let item = &mut items[frame.target as usize];
            let (number, at) = (item.number, Offset::new(frame.position));
            match frame.kind {
                frames::DATA => {
                    assert_eq!(frame.position, item.at, "item {number} goes on where it was");
                    item.at += frame.payload.len() as u64;
                    events.push(FetchEvent::Data { item: number, start: at, chunk: Chunk::new(frame.payload.into()) });
                }
                frames::ITEM_END => events.push(FetchEvent::End { item: number, end: at }),
                frames::ITEM_PAUSED => {
                    assert_eq!(frame.position, item.at, "item {number} is paused where it was");
                    paused.push(item.clone());
                }
                frames::ITEM_ERROR => {
                    let problem: Value = serde_json::from_slice(&frame.payload).expect("a problem document");
                    events.push(FetchEvent::Failed { item: number, at, error: self.about_read(&item.request).refusal(&problem) });
                }
                other => panic!("a frame of kind {other}"),
            }
        }
        (events, paused)
    }

    /// Whether there is such a job, for what counts per job.
    pub(super) fn held_path(job: &store_api::JobId, incarnation: store_api::JobIncarnation) -> String {
        Self::job_path(&job_name(job, incarnation))
    }
}

/// `"crc32c-{checksum}-{length}-{attempt}"`.
fn digest_of(etag: &str) -> Digest {
    let mut parts = etag.trim_matches('"').split('-').skip(1);
    let crc = parts.next().and_then(|text| u32::from_str_radix(text, 16).ok()).expect("a checksum");
    let length = parts.next().and_then(|text| text.parse().ok()).expect("a length");
    Digest { length, crc: Crc32c::new(crc) }
}

/// An item of a batch and how far it has come.
#[derive(Debug, Clone)]
struct Item {
    number: usize,
    request: ReadRequest,
    at: u64,
}

impl Item {
    fn document(&self) -> Value {
        let key = &self.request.attempt;
        let mut item = json!({
            "partition": key.partition.partition.get(),
            "subpartition": self.request.subpartition.get(),
            "from": self.at,
            "attempt": key.attempt.to_string(),
        });
        if let Some(end) = self.request.end {
            item["to"] = json!(end.get());
        }
        item
    }
}

type Step<T> = Option<(Result<Bytes, StoreError>, Option<T>)>;

/// The body of a sealed read.
struct Sealed {
    store: HttpStore,
    body: BoxStream<'static, reqwest::Result<Bytes>>,
    at: u64,
    end: u64,
    request: ReadRequest,
}

impl Sealed {
    async fn step(mut self) -> Step<Self> {
        match self.body.next().await {
            Some(Ok(bytes)) => {
                self.at += bytes.len() as u64;
                Some((Ok(bytes), Some(self)))
            }
            None if self.at == self.end => None,
            // The body was cut: why is what the next request is told.
            None | Some(Err(_)) => {
                let about = self.store.about_read(&self.request);
                let again = self.store.request(Method::GET, &self.store.read_path(&self.request));
                let again = self.store.send(&about, again.header("range", format!("bytes={}-{}", self.at, self.end - 1))).await;
                let lost = || about.refuse(StoreErrorKind::Unavailable { retry_after: Duration::from_millis(10) });
                Some((Err(again.err().unwrap_or_else(lost)), None))
            }
        }
    }
}

/// A read that follows what is written, over as many requests as it takes.
struct Following {
    store: HttpStore,
    request: ReadRequest,
    at: u64,
    wait: Duration,
    idle_since: Duration,
    clock: SharedClock,
    body: Option<http::Response<reqwest::Body>>,
}

impl Following {
    fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    async fn ask(&mut self, seconds: u64) -> Result<(), StoreError> {
        let to = self.request.end.map_or_else(String::new, |end| format!("&to={}", end.get().max(self.at)));
        let path = format!("{}&from={}{to}", self.store.read_path(&self.request), self.at);
        let call = self.store.request(Method::GET, &path).header("prefer", format!("wait={seconds}")).header("te", "trailers");
        let answer = self.store.send(&self.store.about_read(&self.request), call).await?;
        assert_eq!(header(answer.headers(), "forebay-start-offset"), self.at.to_string());
        self.body = Some(answer.into());
        Ok(())
    }

    async fn step(mut self) -> Step<Self> {
        loop {
            if self.body.is_none() {
                let left = self.wait.saturating_sub(self.now().saturating_sub(self.idle_since));
                let seconds = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).div_ceil(1000).min(LONGEST_WAIT);
                if let Err(error) = self.ask(seconds).await {
                    return Some((Err(error), None));
                }
            }
            let answer = self.body.as_mut().expect("asked for");
            let reason = match answer.body_mut().frame().await {
                // Cut: why is what the next request is told.
                Some(Err(_)) => None,
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) if bytes.is_empty() => continue,
                    Ok(bytes) => {
                        self.at += bytes.len() as u64;
                        self.idle_since = self.now();
                        return Some((Ok(bytes), Some(self)));
                    }
                    Err(frame) => {
                        let trailers = frame.into_trailers().expect("data or trailers");
                        assert_eq!(header(&trailers, "forebay-next-offset"), self.at.to_string());
                        Some(header(&trailers, "forebay-end-reason").to_owned())
                    }
                },
                None => Some(header(answer.headers(), "forebay-end-reason").to_owned()),
            };
            self.body = None;
            match reason.as_deref() {
                Some("sealed" | "range") => return None,
                Some("waited") if self.now().saturating_sub(self.idle_since) >= self.wait => return None,
                Some("waited") | None => {}
                Some(other) => panic!("the body ended for the reason {other:?}"),
            }
        }
    }
}

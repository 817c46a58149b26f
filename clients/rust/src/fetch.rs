//! Batch reads: many ranges, few requests, from whichever nodes hold them.

use crate::error::{ClientError, Result};
use crate::retry::Retries;
use crate::transport::{Call, Failure, SharedTransport, chain, problem};
use bytes::Bytes;
use forebay_protocol::partitions::Location;
use forebay_protocol::reads::{FetchItem, FetchRequest};
use forebay_protocol::{ErrorCode, Problem};
use http::Method;
use reqwest::{Body, Response};
use std::collections::BTreeMap;
use store_api::clock::within;
use store_api::frame::{Frame, FrameDecoder, FrameKind, MAX_PAYLOAD};

/// Most moves of one item from node to node.
const MAX_MOVES: u32 = 3;

/// Bounds of a batch read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchOptions {
    /// Payload bytes of one request.
    pub budget_bytes: u64,
}

impl Default for FetchOptions {
    /// 64 MiB a request.
    fn default() -> Self {
        Self { budget_bytes: 64 * 1024 * 1024 }
    }
}

/// One step of a batch read. `item` counts the subpartitions named, in the order of the request.
#[derive(Debug)]
pub enum Fetched {
    /// Bytes of an item; those of one item come in order.
    Bytes {
        /// The item.
        item: usize,
        /// Offset of the first byte.
        offset: u64,
        /// The bytes, checked.
        bytes: Bytes,
    },
    /// All of an item has been given.
    End {
        /// The item.
        item: usize,
        /// First offset after the last byte.
        end: u64,
    },
    /// An item cannot be had (further); the others go on.
    Failed {
        /// The item.
        item: usize,
        /// Why.
        error: ClientError,
    },
}

#[derive(Debug)]
struct Wanted {
    item: FetchItem,
    next: u64,
    n_moves: u32,
}

/// A batch read under way. Pull with [`Fetch::next`]; dropping it ends the read.
#[derive(Debug)]
pub struct Fetch {
    transport: SharedTransport,
    path: String,
    options: FetchOptions,
    /// Items still open, by the node to ask (`None`: the client's own), by number.
    open: BTreeMap<Option<String>, BTreeMap<usize, Wanted>>,
    request: Option<Request>,
    retries: Retries,
}

/// A request under way: the answer, and which item its numbers mean.
#[derive(Debug)]
struct Request {
    node: Option<String>,
    numbers: Vec<usize>,
    response: Response,
    decoder: FrameDecoder,
}

/// What a frame or the end of an answer leads to.
enum Step {
    Give(Fetched),
    Again,
    Cut(String),
}

impl Fetch {
    pub(crate) fn new(transport: SharedTransport, path: String, items: Vec<FetchItem>, options: FetchOptions) -> Self {
        let expand = |item: FetchItem| {
            let first = item.subpartition;
            (0..item.n_subpartitions).map(move |step| FetchItem {
                subpartition: first.saturating_add(step),
                n_subpartitions: 1,
                ..item.clone()
            })
        };
        let wanted = |item: FetchItem| Wanted { next: item.from, item, n_moves: 0 };
        let numbered: BTreeMap<usize, Wanted> = items.into_iter().flat_map(expand).map(wanted).enumerate().collect();
        let open = if numbered.is_empty() { BTreeMap::new() } else { BTreeMap::from([(None, numbered)]) };
        let retries = Retries::new(transport.retry, transport.now());
        Self { transport, path, options, open, request: None, retries }
    }

    /// The next step; `None` once every item has ended or failed. A cut answer is taken up where it
    /// was cut. Errors: no node answers, or the whole request is refused. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Fetched>> {
        loop {
            if self.request.is_none() {
                if self.open.is_empty() {
                    return Ok(None);
                }
                self.connect().await?;
            }
            let step = match self.request.as_mut() {
                Some(request) => match request.decoder.next_frame() {
                    Ok(Some(frame)) => self.take(frame)?,
                    Ok(None) => self.receive().await,
                    Err(error) => Step::Cut(error.to_string()),
                },
                None => Step::Again,
            };
            match step {
                Step::Give(fetched) => return Ok(Some(fetched)),
                Step::Again => {}
                Step::Cut(cause) => {
                    self.request = None;
                    self.transport.wait_or_fail(&mut self.retries, Failure::Transport(cause)).await?;
                }
            }
        }
    }

    async fn receive(&mut self) -> Step {
        let Some(request) = self.request.as_mut() else { return Step::Again };
        match within(self.transport.clock.as_ref(), self.transport.stall, request.response.chunk()).await {
            Some(Ok(Some(bytes))) => match request.decoder.push(bytes) {
                Ok(()) => Step::Again,
                Err(error) => Step::Cut(error.to_string()),
            },
            Some(Ok(None)) => match request.decoder.finish() {
                Ok(()) => {
                    self.request = None;
                    Step::Again
                }
                Err(error) => Step::Cut(error.to_string()),
            },
            Some(Err(error)) => Step::Cut(chain(&error)),
            None => Step::Cut("no byte came".to_owned()),
        }
    }

    async fn connect(&mut self) -> Result<()> {
        let Some((node, wanted)) = self.open.first_key_value() else { return Ok(()) };
        let items = wanted.values().map(|wanted| FetchItem { from: wanted.next, ..wanted.item.clone() }).collect();
        let document = FetchRequest { items, budget_bytes: Some(self.options.budget_bytes) };
        let (node, numbers) = (node.clone(), wanted.keys().copied().collect());
        let call = Call::new(Method::POST, self.path.clone()).json(&document)?.at(node.clone());
        let failure = match self.transport.send(&call, Body::from(call.body.clone())).await {
            Ok(response) if response.status().is_success() => {
                self.request = Some(Request { node, numbers, response, decoder: FrameDecoder::new(MAX_PAYLOAD) });
                return Ok(());
            }
            Ok(response) => Failure::Refused(problem(response).await?),
            Err(cause) => Failure::Transport(cause),
        };
        if matches!(failure, Failure::Transport(_))
            && let Some(moved) = node
        {
            // The node that was pointed to is gone: ask at home again.
            let stranded = self.open.remove(&Some(moved)).unwrap_or_default();
            self.open.entry(None).or_default().extend(stranded);
        }
        self.transport.wait_or_fail(&mut self.retries, failure).await
    }

    fn take(&mut self, frame: Frame) -> Result<Step> {
        let header = frame.header;
        if header.kind == FrameKind::End {
            return Ok(Step::Again);
        }
        let Some(request) = &self.request else { return Ok(Step::Again) };
        let node = request.node.clone();
        let target = usize::try_from(header.target).unwrap_or(usize::MAX);
        let item = *request.numbers.get(target).ok_or_else(|| ClientError::Protocol(format!("item {target} was not asked for")))?;
        let Some(group) = self.open.get_mut(&node) else { return Err(ClientError::protocol("an item of a closed group")) };
        let Some(wanted) = group.get_mut(&item) else { return Err(ClientError::Protocol(format!("item {item} was answered twice"))) };
        match header.kind {
            FrameKind::Data => {
                if header.position != wanted.next {
                    return Err(ClientError::Protocol(format!("offset {} was due, {} came", wanted.next, header.position)));
                }
                wanted.next = header.position.saturating_add(frame.chunk.length());
                self.retries.made_progress(self.transport.now());
                Ok(Step::Give(Fetched::Bytes { item, offset: header.position, bytes: frame.chunk.into_bytes() }))
            }
            FrameKind::ItemEnd if header.position != wanted.next => {
                Err(ClientError::Protocol(format!("item {item} ended at {}, {} was read", header.position, wanted.next)))
            }
            FrameKind::ItemEnd => {
                self.close(&node, item);
                self.retries.made_progress(self.transport.now());
                Ok(Step::Give(Fetched::End { item, end: header.position }))
            }
            FrameKind::ItemPaused | FrameKind::End => Ok(Step::Again),
            FrameKind::ItemError => {
                let problem: Problem = serde_json::from_slice(frame.chunk.bytes()).map_err(ClientError::protocol)?;
                self.close(&node, item);
                Ok(Step::Give(Fetched::Failed { item, error: ClientError::Refused(Box::new(problem)) }))
            }
            FrameKind::ItemMoved => {
                let location: Location = serde_json::from_slice(frame.chunk.bytes()).map_err(ClientError::protocol)?;
                Ok(self.relocate(&node, item, location))
            }
        }
    }

    fn close(&mut self, node: &Option<String>, item: usize) -> Option<Wanted> {
        let group = self.open.get_mut(node)?;
        let wanted = group.remove(&item);
        if group.is_empty() {
            self.open.remove(node);
        }
        wanted
    }

    fn relocate(&mut self, node: &Option<String>, item: usize, location: Location) -> Step {
        let Some(mut wanted) = self.close(node, item) else { return Step::Again };
        wanted.n_moves += 1;
        if wanted.n_moves > MAX_MOVES {
            let problem = Problem::new(ErrorCode::Unavailable, format!("item {item} was moved {MAX_MOVES} times"));
            return Step::Give(Fetched::Failed { item, error: ClientError::Refused(Box::new(problem)) });
        }
        self.open.entry(Some(location.url)).or_default().insert(item, wanted);
        Step::Again
    }
}

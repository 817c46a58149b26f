//! A job's events: server-sent events with resume.

use crate::error::{ClientError, Result};
use crate::retry::Retries;
use crate::transport::{Call, Failure, SharedTransport, chain, problem};
use bytes::BytesMut;
use forebay_protocol::events::EventDocument;
use forebay_protocol::paths;
use http::Method;
use reqwest::{Body, Response};
use std::collections::VecDeque;
use store_api::JobId;
use store_api::clock::within;

/// Longest line of an event stream, in bytes.
const MAX_LINE: usize = 64 * 1024;

/// Takes events out of a byte stream that arrives in pieces of any size (the format is that of the
/// HTML standard, section 9.2).
#[derive(Debug, Default)]
pub(crate) struct EventParser {
    buffer: BytesMut,
    id: Option<String>,
    lines: Vec<String>,
}

impl EventParser {
    /// Adds bytes and gives the events that are complete: cursor and payload. Errors: a line that is
    /// too long.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> std::result::Result<Vec<(Option<String>, String)>, String> {
        self.buffer.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(at) = self.buffer.iter().position(|byte| *byte == b'\n') {
            let line = self.buffer.split_to(at + 1);
            let line = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned();
            events.extend(self.line(&line));
        }
        if self.buffer.len() > MAX_LINE { Err("a line of the event stream is too long".to_owned()) } else { Ok(events) }
    }

    fn line(&mut self, line: &str) -> Option<(Option<String>, String)> {
        if line.is_empty() {
            let lines = std::mem::take(&mut self.lines);
            return (!lines.is_empty()).then(|| (self.id.clone(), lines.join("\n")));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => self.lines.push(value.to_owned()),
            "id" => self.id = Some(value.to_owned()),
            _ => {}
        }
        None
    }
}

/// Follows the events of a job. Dropping it ends the stream.
#[derive(Debug)]
pub struct EventStream {
    transport: SharedTransport,
    path: String,
    cursor: Option<String>,
    ready: VecDeque<(Option<String>, String)>,
    open: Option<(Response, EventParser)>,
    retries: Retries,
}

impl EventStream {
    pub(crate) fn new(transport: SharedTransport, job: &JobId, after: Option<String>) -> Self {
        let retries = Retries::new(transport.retry, transport.now());
        Self { transport, path: format!("{}/events", paths::job(job)), cursor: after, ready: VecDeque::new(), open: None, retries }
    }

    /// The cursor after the last event given: start a later stream with it.
    #[must_use]
    pub fn cursor(&self) -> Option<&str> {
        self.cursor.as_deref()
    }

    /// The next event, as soon as there is one. A cut stream is taken up after the last event. On a
    /// `reset` ask for availability: events in between are not known. Cancel-safe.
    pub async fn next(&mut self) -> Result<EventDocument> {
        loop {
            if let Some((id, text)) = self.ready.pop_front() {
                self.cursor = id.or_else(|| self.cursor.take());
                return serde_json::from_str(&text).map_err(ClientError::protocol);
            }
            let failure = match self.open.as_mut() {
                None => self.connect().await?,
                Some((response, parser)) => match within(self.transport.clock.as_ref(), self.transport.stall, response.chunk()).await {
                    Some(Ok(Some(bytes))) => match parser.push(&bytes) {
                        Ok(events) => {
                            self.ready.extend(events);
                            self.retries.made_progress(self.transport.now());
                            None
                        }
                        Err(cause) => Some(Failure::Transport(cause)),
                    },
                    Some(Ok(None)) => Some(Failure::Transport("the event stream ended".to_owned())),
                    Some(Err(error)) => Some(Failure::Transport(chain(&error))),
                    None => Some(Failure::Transport("no byte came".to_owned())),
                },
            };
            if let Some(failure) = failure {
                self.open = None;
                self.transport.wait_or_fail(&mut self.retries, failure).await?;
            }
        }
    }

    async fn connect(&mut self) -> Result<Option<Failure>> {
        let mut call = Call::new(Method::GET, self.path.clone()).header("accept", "text/event-stream");
        if let Some(cursor) = &self.cursor {
            call = call.header("last-event-id", cursor);
        }
        match self.transport.send(&call, Body::default()).await {
            Ok(response) if response.status().is_success() => {
                self.open = Some((response, EventParser::default()));
                Ok(None)
            }
            Ok(response) => Ok(Some(Failure::Refused(problem(response).await?))),
            Err(cause) => Ok(Some(Failure::Transport(cause))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STREAM: &str = ": hello\n\nid: a-1\nevent: sealed\ndata: {\"x\":\ndata: 1}\n\nid: a-2\r\ndata: two\r\n\r\n:\n\n";

    #[test]
    fn events_have_cursor_and_payload_and_comments_are_skipped() {
        let events = EventParser::default().push(STREAM.as_bytes());
        let expected = vec![(Some("a-1".to_owned()), "{\"x\":\n1}".to_owned()), (Some("a-2".to_owned()), "two".to_owned())];
        assert_eq!(events, Ok(expected));
    }

    proptest! {
        #[test]
        fn the_cut_of_the_stream_does_not_matter(piece in 1usize..20) {
            let mut parser = EventParser::default();
            let mut events = Vec::new();
            for part in STREAM.as_bytes().chunks(piece) {
                events.extend(parser.push(part).unwrap_or_default());
            }
            prop_assert_eq!(Ok(events), EventParser::default().push(STREAM.as_bytes()));
        }

        #[test]
        fn junk_never_panics(bytes: Vec<u8>) {
            let _ = EventParser::default().push(&bytes);
        }
    }
}

//! The events of a job, as server-sent events.

use crate::http::error::{Answer, Refusal};
use crate::http::extract::{Ids, Query, Ready, text_header};
use crate::http::{Api, map};
use crate::service::{Event, EventCursor};
use crate::shutdown::Shutdown;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use forebay_protocol::events::EventDocument;
use futures::stream::{BoxStream, Stream, StreamExt as _, unfold};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderName};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use store_api::SharedClock;
use store_api::clock::within;
use store_api::ids::parse_decimal;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Where the stream goes on.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct EventsQuery {
    after: Option<String>,
}

pub(in crate::http) async fn follow(
    State(api): State<Arc<Api>>,
    Ready(service): Ready,
    ids: Ids,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    let named = text_header(&headers, &LAST_EVENT_ID)?.filter(|id| !id.is_empty()).or(query.after.as_deref());
    let after = named.map(cursor).transpose()?;
    let events = service.events(&ids.job()?, after).await?;
    let lines = lines(events, api.clock.clone(), api.config.event_keep_alive, api.shutdown.clone());
    let names = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((names, api.streaming().bytes(lines.map(Ok).boxed(), None)).into_response())
}

/// `{life}-{sequence}`.
fn cursor(text: &str) -> Answer<EventCursor> {
    let parsed = text
        .split_once('-')
        .and_then(|(life, sequence)| Some(EventCursor { life: life.parse().ok()?, sequence: parse_decimal(sequence)? }));
    parsed.ok_or_else(|| Refusal::bad_request("a cursor is {life}-{sequence}"))
}

fn line(event: &Event) -> Bytes {
    let document: EventDocument = map::event(event);
    let json = serde_json::to_string(&document).unwrap_or_default();
    let EventCursor { life, sequence } = event.cursor;
    Bytes::from(format!("id: {life}-{sequence}\nevent: {}\ndata: {json}\n\n", document.kind.as_str()))
}

/// The events as lines.
fn lines(
    events: BoxStream<'static, Event>,
    clock: SharedClock,
    keep_alive: Duration,
    shutdown: Shutdown,
) -> impl Stream<Item = Bytes> + Send {
    sse(events.map(|event| line(&event)).boxed(), clock, keep_alive, shutdown)
}

/// Lines of events, with a comment whenever nothing happened for `keep_alive`, and one at the
/// start, so that a client sees at once that it is connected. Ends when the server ends.
pub(in crate::http) fn sse(
    events: BoxStream<'static, Bytes>,
    clock: SharedClock,
    keep_alive: Duration,
    shutdown: Shutdown,
) -> impl Stream<Item = Bytes> + Send {
    let rest = unfold((events, clock, shutdown), move |(mut events, clock, shutdown)| async move {
        let next = tokio::select! {
            biased;
            next = within(clock.as_ref(), keep_alive, events.next()) => next,
            () = shutdown.begun() => return None,
        };
        let bytes = match next {
            Some(Some(event)) => event,
            Some(None) => return None,
            None => Bytes::from_static(b":\n\n"),
        };
        Some((bytes, (events, clock, shutdown)))
    });
    futures::stream::iter([Bytes::from_static(b":\n\n")]).chain(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::EventKind;
    use crate::test_time::hasten;
    use futures::stream;
    use store_api::clock::ManualClock;
    use store_api::{JobId, NodeLife};

    fn event(sequence: u64) -> Event {
        Event {
            cursor: EventCursor { life: NodeLife::new(0xa1), sequence },
            kind: EventKind::Released,
            job: JobId::new("q1").expect("an id"),
            dataset: None,
            partition: None,
            attempt: None,
            location: None,
        }
    }

    #[test]
    fn a_cursor_reads_back_what_the_id_line_said() {
        assert_eq!(cursor("00000000000000a1-7").ok(), Some(event(7).cursor));
        for text in ["", "-", "7", "a1-7", "00000000000000a1-", "00000000000000a1-+7", "00000000000000A1-7"] {
            assert!(cursor(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_event_is_three_lines() {
        let text = String::from_utf8(line(&event(7)).to_vec()).expect("text");
        assert_eq!(text, "id: 00000000000000a1-7\nevent: released\ndata: {\"kind\":\"released\",\"job\":\"q1\"}\n\n");
    }

    #[tokio::test]
    async fn comments_are_sent_while_nothing_happens_and_the_end_of_the_server_ends_it() {
        let (clock, shutdown) = (Arc::new(ManualClock::new(0)), Shutdown::new());
        let events = stream::iter([event(1)]).chain(stream::pending()).boxed();
        let mut lines = std::pin::pin!(lines(events, clock.clone(), Duration::from_secs(15), shutdown.clone()));
        for expected in [":", "id", ":", ":"] {
            let got = hasten(&clock, lines.next()).await.unwrap_or_default();
            assert!(got.starts_with(expected.as_bytes()), "{got:?}");
        }
        shutdown.begin();
        assert_eq!(lines.next().await, None);
    }
}

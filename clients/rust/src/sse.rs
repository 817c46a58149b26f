//! Parser of server-sent events (the event stream format of the HTML standard).

use bytes::{Buf as _, Bytes, BytesMut};

const MAX_BYTES: usize = 1024 * 1024;

/// One dispatched event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SseEvent {
    pub(crate) id: Option<String>,
    pub(crate) event: String,
    pub(crate) data: String,
}

/// A line or an event that is larger than any that a node sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLarge;

#[derive(Debug, Default)]
pub(crate) struct SseParser {
    buffer: BytesMut,
    event: SseEvent,
    has_data: bool,
    is_after_cr: bool,
    is_begun: bool,
}

impl SseParser {
    pub(crate) fn push(&mut self, piece: &Bytes) -> Result<(), TooLarge> {
        self.buffer.extend_from_slice(piece);
        // What is left in the buffer after a full parse is one unfinished line.
        if self.buffer.len() > MAX_BYTES.saturating_add(piece.len()) { Err(TooLarge) } else { Ok(()) }
    }

    /// The next event, if it has arrived whole.
    pub(crate) fn next_event(&mut self) -> Result<Option<SseEvent>, TooLarge> {
        while let Some(line) = self.next_line() {
            if line.is_empty() {
                let event = std::mem::take(&mut self.event);
                if std::mem::take(&mut self.has_data) {
                    return Ok(Some(event));
                }
                continue;
            }
            self.field(&line);
            if self.event.data.len() > MAX_BYTES {
                return Err(TooLarge);
            }
        }
        Ok(None)
    }

    fn next_line(&mut self) -> Option<String> {
        if self.is_after_cr && !self.buffer.is_empty() {
            self.is_after_cr = false;
            if self.buffer.first() == Some(&b'\n') {
                self.buffer.advance(1);
            }
        }
        let at = self.buffer.iter().position(|byte| matches!(byte, b'\n' | b'\r'))?;
        let line = self.buffer.split_to(at);
        self.is_after_cr = self.buffer.first() == Some(&b'\r');
        self.buffer.advance(1);
        let line = String::from_utf8_lossy(&line).into_owned();
        let is_first = !std::mem::replace(&mut self.is_begun, true);
        Some(if is_first { line.trim_start_matches('\u{feff}').to_owned() } else { line })
    }

    fn field(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            "event" => value.clone_into(&mut self.event.event),
            "id" if !value.contains('\0') => self.event.id = Some(value.to_owned()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &[u8], piece: usize) -> Vec<SseEvent> {
        let (mut parser, mut events) = (SseParser::default(), Vec::new());
        for part in text.chunks(piece.max(1)) {
            parser.push(&Bytes::copy_from_slice(part)).unwrap();
            while let Some(event) = parser.next_event().unwrap() {
                events.push(event);
            }
        }
        events
    }

    #[test]
    fn comments_and_events_without_data_say_nothing() {
        let events = parse(b"\xEF\xBB\xBF: hello\n\nid: 7\n\nevent: sealed\nid: a-8\ndata: {}\n\n", 3);
        assert_eq!(events, vec![SseEvent { id: Some("a-8".to_owned()), event: "sealed".to_owned(), data: "{}".to_owned() }]);
    }

    #[test]
    fn an_event_that_was_cut_is_not_dispatched() {
        assert!(parse(b"id: 1\ndata: {}\n", 100).is_empty());
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut parser = SseParser::default();
        let piece = Bytes::from(vec![b'x'; 600 * 1024]);
        assert!(parser.push(&piece).is_ok());
        assert!(parser.push(&piece).is_ok());
        assert_eq!(parser.push(&piece), Err(TooLarge));
    }

    proptest! {
        #[test]
        fn events_survive_any_cut_and_any_line_end(
            events in proptest::collection::vec(("[a-z]{1,8}", "[0-9a-f]{1,16}-[0-9]{1,5}", "[ -~]{0,40}(\n[ -~]{0,40}){0,3}"), 0..10),
            end in prop_oneof![Just("\n"), Just("\r"), Just("\r\n")],
            piece in 1_usize..40,
        ) {
            let mut text = String::new();
            for (event, id, data) in &events {
                text.push_str(&format!(": note{end}event: {event}{end}id:{id}{end}"));
                for line in data.split('\n') {
                    text.push_str(&format!("data: {line}{end}"));
                }
                text.push_str(end);
            }
            // A lone CR at the very end may still become CR LF: the next byte tells.
            text.push(':');
            let wanted: Vec<_> = events.into_iter().map(|(event, id, data)| SseEvent { id: Some(id), event, data }).collect();
            prop_assert_eq!(parse(text.as_bytes(), piece), wanted);
        }

        #[test]
        fn junk_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), piece in 1_usize..50) {
            let _ = parse(&bytes, piece);
        }
    }
}

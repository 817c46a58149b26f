//! What concurrent actors saw, recorded and checked afterwards.
//!
//! Writers append [`Record`]s of a fixed length that name their attempt, writer and number; so
//! content can be taken apart again, and a lost, doubled, torn or foreign record is found. Times
//! are counts of one shared counter: an event with a lower one happened before.

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use store_api::{AttemptKey, Crc32c};

/// Length of a record, in bytes.
pub const RECORD_LENGTH: usize = 40;

/// What a writer appends: who, what number, for which attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Record {
    /// Stands for the attempt; see [`Record::tag_of`].
    pub tag: u64,
    /// The subpartition it was meant for.
    pub subpartition: u32,
    /// The writer.
    pub writer: u32,
    /// Number of the record within its writer and subpartition, ascending.
    pub number: u64,
}

impl Record {
    /// The tag of an attempt.
    #[must_use]
    pub fn tag_of(attempt: &AttemptKey) -> u64 {
        let name = attempt.to_string();
        (u64::from(Crc32c::of(name.as_bytes()).get()) << 32) | u64::from(attempt.attempt.attempt)
    }

    /// The record as bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(RECORD_LENGTH);
        out.put_u64_le(self.tag);
        out.put_u32_le(self.subpartition);
        out.put_u32_le(self.writer);
        out.put_u64_le(self.number);
        out.put_u64_le(!self.number);
        out.put_u32_le(0x5eed_5eed);
        out.put_u32_le(Crc32c::of(&out).get());
        out.freeze()
    }

    /// Takes content apart. `None` when it is torn or holds anything else.
    #[must_use]
    pub fn decode_all(content: &[u8]) -> Option<Vec<Self>> {
        let (whole, rest) = content.as_chunks::<RECORD_LENGTH>();
        if !rest.is_empty() {
            return None;
        }
        whole.iter().map(Self::decode).collect()
    }

    fn decode(bytes: &[u8; RECORD_LENGTH]) -> Option<Self> {
        let word = |at: usize| bytes[at..].first_chunk::<8>().map(|raw| u64::from_le_bytes(*raw));
        let half = |at: usize| bytes[at..].first_chunk::<4>().map(|raw| u32::from_le_bytes(*raw));
        let found = Self { tag: word(0)?, subpartition: half(8)?, writer: half(12)?, number: word(16)? };
        (found.encode().as_ref() == bytes).then_some(found)
    }
}

#[derive(Debug, Clone)]
enum Event {
    Acked { attempt: AttemptKey, record: Record },
    Won { attempt: AttemptKey },
    Content { attempt: AttemptKey, subpartition: u32, bytes: Bytes },
    Read { attempt: AttemptKey, subpartition: u32, began: u64, bytes: Bytes, is_whole: bool },
    Released { attempt: AttemptKey, at: u64 },
}

/// What is wrong with a history.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Violation {
    /// A record was acknowledged and is not in the sealed content.
    AckedButMissing(AttemptKey, Record),
    /// A record is in the content twice.
    Twice(AttemptKey, Record),
    /// Content or the answer to a read is not made of whole records.
    Torn(AttemptKey),
    /// A record of another attempt or subpartition came with the content.
    Foreign(AttemptKey, Record),
    /// Records of one writer changed their order.
    OutOfOrder(AttemptKey, Record),
    /// Two attempts of one generation both won.
    TwoWinners(AttemptKey, AttemptKey),
    /// A read that began after a release had returned was served.
    ReadAfterRelease(AttemptKey),
    /// A read of sealed content gave other bytes than the content.
    OtherBytes(AttemptKey),
}

/// A recorder that actors share.
#[derive(Default)]
pub struct History {
    counter: AtomicU64,
    events: Mutex<Vec<Event>>,
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").field("n_events", &self.events.lock().len()).finish_non_exhaustive()
    }
}

impl History {
    /// Nothing has happened.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The moment now; taken by an actor before it makes a call.
    pub fn now(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::SeqCst)
    }

    fn push(&self, event: Event) {
        self.events.lock().push(event);
    }

    /// An append of this record was acknowledged.
    pub fn acked(&self, attempt: &AttemptKey, record: Record) {
        self.push(Event::Acked { attempt: attempt.clone(), record });
    }

    /// A publication answered that this attempt won.
    pub fn won(&self, attempt: &AttemptKey) {
        self.push(Event::Won { attempt: attempt.clone() });
    }

    /// The sealed content of a subpartition, read when nothing disturbed it.
    pub fn content(&self, attempt: &AttemptKey, subpartition: u32, bytes: Bytes) {
        self.push(Event::Content { attempt: attempt.clone(), subpartition, bytes });
    }

    /// A read from offset 0 that began at `began` gave these bytes; `is_whole` when it ended
    /// without an error.
    pub fn read(&self, attempt: &AttemptKey, subpartition: u32, began: u64, bytes: Bytes, is_whole: bool) {
        self.push(Event::Read { attempt: attempt.clone(), subpartition, began, bytes, is_whole });
    }

    /// A release of this attempt has returned.
    pub fn released(&self, attempt: &AttemptKey) {
        let at = self.now();
        self.push(Event::Released { attempt: attempt.clone(), at });
    }

    /// Checks everything that was recorded. `is_arbitrated`: at most one attempt of a generation
    /// may have won. Errors: every violation, in ascending order.
    pub fn check(&self, is_arbitrated: bool) -> Result<(), Vec<Violation>> {
        let events = self.events.lock().clone();
        let mut found = BTreeSet::new();
        check_contents(&events, &mut found);
        check_reads(&events, &mut found);
        if is_arbitrated {
            check_winners(&events, &mut found);
        }
        if found.is_empty() { Ok(()) } else { Err(found.into_iter().collect()) }
    }
}

fn check_contents(events: &[Event], found: &mut BTreeSet<Violation>) {
    let mut contents: BTreeMap<(&AttemptKey, u32), BTreeSet<Record>> = BTreeMap::new();
    for event in events {
        if let Event::Content { attempt, subpartition, bytes } = event {
            contents.insert((attempt, *subpartition), check_records(attempt, *subpartition, bytes, found));
        }
    }
    for event in events {
        if let Event::Acked { attempt, record } = event
            && let Some(content) = contents.get(&(attempt, record.subpartition))
            && !content.contains(record)
        {
            found.insert(Violation::AckedButMissing(attempt.clone(), *record));
        }
    }
}

/// Checks that bytes are records of one attempt and subpartition, each once and in order.
fn check_records(attempt: &AttemptKey, subpartition: u32, bytes: &[u8], found: &mut BTreeSet<Violation>) -> BTreeSet<Record> {
    let mut seen = BTreeSet::new();
    let mut last: BTreeMap<u32, u64> = BTreeMap::new();
    let Some(records) = Record::decode_all(bytes) else {
        found.insert(Violation::Torn(attempt.clone()));
        return seen;
    };
    for record in records {
        if record.tag != Record::tag_of(attempt) || record.subpartition != subpartition {
            found.insert(Violation::Foreign(attempt.clone(), record));
        }
        if !seen.insert(record) {
            found.insert(Violation::Twice(attempt.clone(), record));
        } else if last.insert(record.writer, record.number).is_some_and(|before| before > record.number) {
            found.insert(Violation::OutOfOrder(attempt.clone(), record));
        }
    }
    seen
}

fn check_reads(events: &[Event], found: &mut BTreeSet<Violation>) {
    for event in events {
        let Event::Read { attempt, subpartition, began, bytes, is_whole } = event else { continue };
        let is_late = |other: &Event| matches!(other, Event::Released { attempt: gone, at } if gone == attempt && at < began);
        if events.iter().any(is_late) {
            found.insert(Violation::ReadAfterRelease(attempt.clone()));
        }
        let whole_records = bytes.len() / RECORD_LENGTH * RECORD_LENGTH;
        let checked = if *is_whole { bytes.as_ref() } else { &bytes[..whole_records] };
        check_records(attempt, *subpartition, checked, found);
        for other in events {
            if let Event::Content { attempt: sealed, subpartition: index, bytes: content } = other
                && sealed == attempt
                && index == subpartition
                && !content.starts_with(bytes)
            {
                found.insert(Violation::OtherBytes(attempt.clone()));
            }
        }
    }
}

fn check_winners(events: &[Event], found: &mut BTreeSet<Violation>) {
    let mut winners = BTreeMap::new();
    for event in events {
        let Event::Won { attempt } = event else { continue };
        let first: &mut &AttemptKey = winners.entry((&attempt.partition, attempt.attempt.generation)).or_insert(attempt);
        if *first != attempt {
            found.insert(Violation::TwoWinners((*first).clone(), attempt.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::attempt;

    fn record(of: &AttemptKey, number: u64) -> Record {
        Record { tag: Record::tag_of(of), subpartition: 0, writer: 1, number }
    }

    fn content(records: &[Record]) -> Bytes {
        records.iter().flat_map(|record| record.encode()).collect()
    }

    fn checked(history: &History) -> Vec<Violation> {
        history.check(true).err().unwrap_or_default()
    }

    #[test]
    fn a_right_history_passes() {
        let (history, one) = (History::new(), attempt(0, 0, 0));
        let began = history.now();
        history.acked(&one, record(&one, 0));
        history.won(&one);
        history.won(&one);
        let bytes = content(&[record(&one, 0), record(&one, 1)]);
        history.content(&one, 0, bytes.clone());
        history.read(&one, 0, began, bytes.slice(..50), false);
        history.read(&one, 0, began, bytes, true);
        history.released(&one);
        assert_eq!(checked(&history), []);
    }

    #[test]
    fn each_violation_is_found() {
        let (one, two) = (attempt(0, 0, 0), attempt(0, 0, 1));
        let seals = |records: &[Record]| {
            let history = History::new();
            history.content(&one, 0, content(records));
            history
        };
        let history = seals(&[record(&one, 0)]);
        history.acked(&one, record(&one, 1));
        assert_eq!(checked(&history), [Violation::AckedButMissing(one.clone(), record(&one, 1))]);
        let twice = seals(&[record(&one, 0), record(&one, 0)]);
        assert_eq!(checked(&twice), [Violation::Twice(one.clone(), record(&one, 0))]);
        let foreign = seals(&[record(&two, 0)]);
        assert_eq!(checked(&foreign), [Violation::Foreign(one.clone(), record(&two, 0))]);
        let turned = seals(&[record(&one, 1), record(&one, 0)]);
        assert_eq!(checked(&turned), [Violation::OutOfOrder(one.clone(), record(&one, 0))]);
        let torn = History::new();
        torn.content(&one, 0, content(&[record(&one, 0)]).slice(1..));
        assert_eq!(checked(&torn), [Violation::Torn(one.clone())]);
        let winners = History::new();
        winners.won(&one);
        winners.won(&two);
        assert_eq!(checked(&winners), [Violation::TwoWinners(one.clone(), two)]);
        let late = History::new();
        late.released(&one);
        late.read(&one, 0, late.now(), Bytes::new(), true);
        assert_eq!(checked(&late), [Violation::ReadAfterRelease(one.clone())]);
        let other = seals(&[record(&one, 0)]);
        other.read(&one, 0, 0, content(&[record(&one, 5)]), true);
        assert_eq!(checked(&other), [Violation::OtherBytes(one)]);
    }
}

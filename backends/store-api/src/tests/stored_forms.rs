//! Forms that lie on media or cross the wire: sizes, fixed bytes, and what is refused.

use crate::chunk::ChecksumMismatch;
use crate::frame::{Frame, FrameDecoder, FrameError, FrameHeader, FrameKind, HEADER_LENGTH, MAX_PAYLOAD};
use crate::table::TableError;
use crate::{Chunk, Crc32c, Digest, SubpartitionIndex, SubpartitionTable};
use bytes::{BufMut, Bytes};
use proptest::prelude::*;
use std::collections::BTreeMap;

const KINDS: [(u8, FrameKind); 6] = [
    (1, FrameKind::Data),
    (2, FrameKind::End),
    (3, FrameKind::ItemEnd),
    (4, FrameKind::ItemError),
    (5, FrameKind::ItemMoved),
    (6, FrameKind::ItemPaused),
];

fn encoded(table: &SubpartitionTable) -> Vec<u8> {
    let mut out = Vec::new();
    table.encode(&mut out);
    out
}

fn decoded(mut bytes: &[u8]) -> Result<SubpartitionTable, TableError> {
    SubpartitionTable::decode(&mut bytes)
}

/// A table's stored form, put together by hand.
fn by_hand(version: u8, count: u32, n_entries: u32, entries: &[(u32, u64, u32)]) -> Vec<u8> {
    let mut out = vec![version];
    out.put_u32_le(count);
    out.put_u32_le(n_entries);
    for (index, length, crc) in entries {
        out.put_u32_le(*index);
        out.put_u64_le(*length);
        out.put_u32_le(*crc);
    }
    out
}

#[test]
fn the_numbers_of_frame_kinds_are_fixed_and_all_others_refused() {
    for byte in 0..=u8::MAX {
        let mut header = FrameHeader::bare(FrameKind::Data, 1, 2).encode();
        header[2] = byte;
        let crc = Crc32c::of(&header[..24]);
        header[24..].copy_from_slice(&crc.get().to_le_bytes());
        let known = KINDS.iter().find(|(number, _)| *number == byte).map(|(_, kind)| *kind);
        let found = FrameHeader::decode(&header, MAX_PAYLOAD);
        assert_eq!(found.map(|header| header.kind), known.ok_or(FrameError::Kind { kind: byte }));
    }
    for (number, kind) in KINDS {
        assert_eq!(FrameHeader::bare(kind, 0, 0).encode()[2], number);
    }
}

#[test]
fn every_flag_and_every_other_start_is_refused() {
    for bit in 0..8 {
        let mut header = FrameHeader::bare(FrameKind::End, 0, 0).encode();
        header[3] = 1 << bit;
        let crc = Crc32c::of(&header[..24]);
        header[24..].copy_from_slice(&crc.get().to_le_bytes());
        assert_eq!(FrameHeader::decode(&header, 0), Err(FrameError::Flags { flags: 1 << bit }));
    }
    let mut text = *b"GET / HTTP/1.1\r\nHost: ab\r\n\r\n";
    assert_eq!(text.len(), HEADER_LENGTH, "a frame header is 28 bytes");
    assert_eq!(FrameHeader::decode(&text, 0), Err(FrameError::Magic { found: u16::from_le_bytes(*b"GE") }));
    text.fill(0);
    assert_eq!(FrameHeader::decode(&text, 0), Err(FrameError::Magic { found: 0 }), "zeros are no frame");
}

#[test]
fn payloads_of_all_lengths_up_to_the_limit_are_taken_and_longer_ones_refused_before_they_come() {
    for (limit, length) in [(0, 0), (1, 1), (1000, 999), (1000, 1000), (MAX_PAYLOAD, MAX_PAYLOAD)] {
        let chunk = Chunk::new(Bytes::from(vec![9; usize::try_from(length).unwrap()]));
        let mut decoder = FrameDecoder::new(limit);
        decoder.push(Bytes::copy_from_slice(&FrameHeader::data(1, 2, &chunk).unwrap().encode())).unwrap();
        assert_eq!(decoder.peek_header().unwrap().map(|header| header.length), Some(length));
        decoder.push(chunk.bytes().clone()).unwrap();
        assert_eq!(decoder.next_frame().unwrap().map(|frame| frame.chunk), Some(chunk));
    }
    for (limit, length) in [(0, 1), (1000, 1001), (MAX_PAYLOAD, MAX_PAYLOAD + 1), (MAX_PAYLOAD, u32::MAX)] {
        let header = FrameHeader { length, ..FrameHeader::bare(FrameKind::Data, 0, 0) };
        let mut decoder = FrameDecoder::new(limit);
        decoder.push(Bytes::copy_from_slice(&header.encode())).unwrap();
        assert_eq!(decoder.next_frame(), Err(FrameError::TooLong { length, limit }));
    }
}

#[test]
fn a_header_is_seen_before_its_payload_and_only_taken_with_it() {
    let chunk = Chunk::new(Bytes::from_static(b"payload"));
    let header = FrameHeader::data(5, 6, &chunk).unwrap();
    let mut decoder = FrameDecoder::new(100);
    let mut whole = header.encode().to_vec();
    whole.extend_from_slice(chunk.bytes());
    for (at, byte) in whole.iter().enumerate() {
        assert_eq!(decoder.peek_header().unwrap(), (at >= HEADER_LENGTH).then_some(header), "after {at} bytes");
        assert_eq!(decoder.next_frame().unwrap(), None, "after {at} bytes");
        decoder.push(Bytes::copy_from_slice(&[*byte])).unwrap();
    }
    assert_eq!(decoder.peek_header().unwrap(), Some(header));
    assert_eq!(decoder.next_frame().unwrap(), Some(Frame { header, chunk }));
    assert_eq!((decoder.peek_header().unwrap(), decoder.is_ended()), (None, false));
    assert!(matches!(decoder.finish(), Err(FrameError::Cut { missing: 28 })), "a polite close is not an end");
}

#[test]
fn nothing_can_follow_the_end_not_even_another_end() {
    let end = FrameHeader::bare(FrameKind::End, 0, 0).encode();
    let mut decoder = FrameDecoder::new(10);
    decoder.push(Bytes::copy_from_slice(&end)).unwrap();
    assert!(decoder.next_frame().unwrap().is_some() && decoder.is_ended());
    decoder.push(Bytes::new()).unwrap();
    assert_eq!(decoder.push(Bytes::copy_from_slice(&end)), Err(FrameError::Trailing { extra: 28 }));
    assert_eq!((decoder.next_frame(), decoder.finish()), (Ok(None), Ok(())));
}

#[test]
fn a_table_takes_9_bytes_and_16_for_each_subpartition_that_holds_any() {
    for (count, every) in [(1, 1), (1023, 1), (1024, 7), (1025, 2), (4096, 4096), (65_535, 3), (65_536, 1), (1 << 20, 1 << 10)] {
        let entries = (0..count).map(|index| {
            let length = if index % every == 0 { u64::from(index) + 1 } else { 0 };
            (SubpartitionIndex::new(index), Digest { length, crc: Crc32c::new(index) })
        });
        let table = SubpartitionTable::new(count, entries).unwrap();
        let stored = encoded(&table);
        let n_full = u64::from(count).div_ceil(u64::from(every));
        assert_eq!(stored.len() as u64, 9 + 16 * n_full, "{count} by {every}");
        assert_eq!(decoded(&stored), Ok(table.clone()));
        for index in [0, 1, every - 1, count / 2, count - 1].into_iter().filter(|index| *index < count) {
            let digest = table.digest(SubpartitionIndex::new(index)).unwrap();
            let wanted = if index % every == 0 { Digest { length: u64::from(index) + 1, crc: Crc32c::new(index) } } else { Digest::EMPTY };
            assert_eq!(digest, wanted, "{index} of {count}");
        }
        assert_eq!(table.digest(SubpartitionIndex::new(count)), None);
    }
}

#[test]
fn tables_that_do_not_add_up_are_refused_each_by_its_reason() {
    let good = [(1, 5, 7), (3, 1, 8)];
    assert!(decoded(&by_hand(1, 4, 2, &good)).is_ok());
    let refused = |bytes: Vec<u8>| decoded(&bytes).unwrap_err();
    assert_eq!(refused(by_hand(2, 4, 2, &good)), TableError::Version { found: 2 });
    assert_eq!(refused(by_hand(0, 4, 2, &good)), TableError::Version { found: 0 });
    assert_eq!(refused(by_hand(1, 3, 2, &good)), TableError::Outside { index: 3, count: 3 });
    assert_eq!(refused(by_hand(1, 4, 2, &[(3, 1, 8), (1, 5, 7)])), TableError::Damaged, "out of order");
    assert_eq!(refused(by_hand(1, 4, 2, &[(1, 1, 8), (1, 5, 7)])), TableError::Twice { index: 1 });
    assert_eq!(refused(by_hand(1, 4, 2, &[(1, 0, 0), (3, 1, 8)])), TableError::Damaged, "an empty one is not stored");
    assert_eq!(refused(by_hand(1, 4, 2, &[(1, u64::MAX, 0), (3, 1, 8)])), TableError::Overflow);
    assert_eq!(refused(by_hand(1, 4, 3, &good)), TableError::Damaged, "fewer entries than stated");
    assert_eq!(refused(by_hand(1, 4, u32::MAX, &good)), TableError::Damaged, "and no memory for what is stated");
    assert_eq!(refused(Vec::new()), TableError::Damaged);
    let huge = SubpartitionTable::new(2, [(SubpartitionIndex::new(0), Digest { length: u64::MAX, crc: Crc32c::new(0) })]).unwrap();
    assert_eq!((huge.total_bytes(), decoded(&encoded(&huge))), (u64::MAX, Ok(huge.clone())));
}

#[test]
fn a_table_is_read_from_the_front_and_what_follows_is_left() {
    let mut bytes = by_hand(1, 4, 1, &[(2, 5, 7)]);
    bytes.extend_from_slice(b"rest");
    let mut cursor: &[u8] = &bytes;
    SubpartitionTable::decode(&mut cursor).unwrap();
    assert_eq!(cursor, b"rest");
}

#[test]
fn digests_of_gigabytes_are_put_together_without_a_byte() {
    // By doubling: the digest of 2^n zeros from that of 2^(n-1).
    let mut doubled = Digest::of(&[0]);
    for power in 1..=24_u32 {
        doubled = doubled.followed_by(doubled).unwrap();
        assert_eq!(doubled.length, 1 << power);
        if power % 6 == 0 {
            assert_eq!(doubled, Digest::of(&vec![0; 1 << power]), "2^{power} zeros");
        }
    }
    for _ in 25..=63 {
        doubled = doubled.followed_by(doubled).unwrap();
    }
    assert_eq!((doubled.length, doubled.followed_by(doubled)), (1 << 63, None), "2^64 bytes have no length");
    let rest = Digest { length: (1 << 63) - 1, crc: Crc32c::new(3) };
    assert_eq!(doubled.followed_by(rest).map(|digest| digest.length), Some(u64::MAX));
}

#[test]
fn a_refused_chunk_says_what_was_stated_and_what_it_has() {
    let (stated, actual) = (Crc32c::of(b"one"), Crc32c::of(b"two"));
    let refused = Chunk::verified(Bytes::from_static(b"two"), stated).unwrap_err();
    assert_eq!(refused, ChecksumMismatch { stated, actual, length: 3 });
    assert!(refused.to_string().contains(&stated.to_string()), "{refused}");
    assert_eq!(Digest::of(b"123456789").to_string(), "crc32c:e3069283:9", "the printed form is part of the wire");
}

/// A stream of frames as it is sent, and where in it each frame ends.
fn sent(frames: &[(u8, u32, u64, Vec<u8>)]) -> (Vec<u8>, Vec<(usize, Frame)>) {
    let (mut out, mut ends) = (Vec::new(), Vec::new());
    for (kind, target, position, payload) in frames {
        let chunk = Chunk::new(Bytes::from(payload.clone()));
        let header = FrameHeader { kind: KINDS[usize::from(*kind)].1, ..FrameHeader::data(*target, *position, &chunk).unwrap() };
        out.extend_from_slice(&header.encode());
        out.extend_from_slice(payload);
        ends.push((out.len(), Frame { header, chunk }));
    }
    (out, ends)
}

/// Everything that a receiver takes from `bytes` before it refuses.
fn received(bytes: &[u8], cuts: &[usize]) -> (Vec<Frame>, Result<(), FrameError>) {
    let mut decoder = FrameDecoder::new(MAX_PAYLOAD);
    let mut frames = Vec::new();
    let mut rest = bytes;
    let mut cuts = cuts.iter().copied().cycle();
    while !rest.is_empty() {
        let (piece, later) = rest.split_at(cuts.next().unwrap_or(1).clamp(1, rest.len()));
        rest = later;
        if let Err(error) = decoder.push(Bytes::copy_from_slice(piece)) {
            return (frames, Err(error));
        }
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Err(error)),
            }
        }
    }
    let finished = decoder.finish();
    (frames, finished)
}

fn frame() -> impl Strategy<Value = (u8, u32, u64, Vec<u8>)> {
    let kind = proptest::sample::select(vec![0_u8, 2, 3, 4, 5]);
    (kind, any::<u32>(), any::<u64>(), proptest::collection::vec(any::<u8>(), 0..90))
}

proptest! {
    /// However a stream is cut into pieces, and wherever a byte of it is changed: what is taken is
    /// a prefix of what was sent, whole frame by whole frame, and the change is found.
    #[test]
    fn a_receiver_takes_only_what_was_sent(
        frames in proptest::collection::vec(frame(), 0..10), cuts in proptest::collection::vec(1_usize..120, 1..8),
        hit in proptest::option::of((any::<prop::sample::Index>(), 1_u8..=255)),
    ) {
        let mut frames = frames;
        frames.push((1, 0, 77, Vec::new()));
        let (mut bytes, ends) = sent(&frames);
        let changed = hit.map(|(at, mask)| {
            let at = at.index(bytes.len());
            bytes[at] ^= mask;
            at
        });
        let (taken, outcome) = received(&bytes, &cuts);
        let n_before = ends.iter().filter(|(end, _)| changed.is_none_or(|at| *end <= at)).count();
        prop_assert_eq!(taken.len(), n_before);
        for (found, (_, wanted)) in taken.iter().zip(&ends) {
            prop_assert_eq!(found, wanted);
        }
        prop_assert_eq!(outcome.is_err(), changed.is_some());
    }

    #[test]
    fn tables_say_what_a_plain_map_says(
        count in 1_u32..5000, entries in proptest::collection::btree_map(0_u32..5000, (0_u64..1 << 40, any::<u32>()), 0..60),
        flip in (any::<prop::sample::Index>(), 0_u8..8),
    ) {
        let given = entries.iter().rev().map(|(index, (length, crc))| {
            (SubpartitionIndex::new(*index), Digest { length: *length, crc: Crc32c::new(*crc) })
        });
        let held: BTreeMap<u32, Digest> =
            given.clone().map(|(index, digest)| (index.get(), digest)).filter(|(_, digest)| digest.length > 0).collect();
        let table = SubpartitionTable::new(count, given);
        if let Some((last, _)) = held.last_key_value().filter(|(last, _)| **last >= count) {
            prop_assert_eq!(table, Err(TableError::Outside { index: *last, count }));
            return Ok(());
        }
        let table = table.unwrap();
        prop_assert_eq!(table.total_bytes(), held.values().map(|digest| digest.length).sum::<u64>());
        let listed: BTreeMap<u32, Digest> = table.non_empty().map(|(index, digest)| (index.get(), digest)).collect();
        prop_assert_eq!(&listed, &held);
        let stored = encoded(&table);
        prop_assert_eq!(decoded(&stored), Ok(table.clone()));
        prop_assert_eq!(table.fingerprint(), Crc32c::of(&stored));
        // A table has no checksum of its own, but no changed bit passes for the same table.
        let mut damaged = stored.clone();
        damaged[flip.0.index(stored.len())] ^= 1 << flip.1;
        prop_assert_ne!(decoded(&damaged), Ok(table));
    }
}

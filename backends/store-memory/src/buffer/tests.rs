use super::*;
use proptest::prelude::*;

fn chunk(bytes: &[u8]) -> Chunk {
    Chunk::new(Bytes::copy_from_slice(bytes))
}

fn push(buffer: &mut Buffer<Bytes>, bytes: &[u8], order: u64) {
    let chunk = chunk(bytes);
    buffer.push(chunk.bytes().clone(), chunk.crc(), order);
}

/// Writes the oldest chunks "to disk": a place is the bytes themselves.
fn spill(buffer: &mut Buffer<Bytes>, max_bytes: u64) {
    let written = extents(buffer.spillable(max_bytes));
    let _ = buffer.settle(written);
}

fn extents(taken: Vec<Held>) -> Vec<Extent<Bytes>> {
    taken.into_iter().map(|held| Extent { start: held.start, length: held.length(), crc: held.crc, place: held.bytes }).collect()
}

/// All bytes from `position` on, over the border.
fn read(buffer: &Buffer<Bytes>, position: u64) -> Option<Vec<u8>> {
    let (mut at, mut all) = (position, Vec::new());
    loop {
        let (bytes, skip) = match buffer.look(Offset::new(at)) {
            Look::Below { .. } => return None,
            Look::AtTail => return Some(all),
            Look::Memory { held, skip } => (held.bytes, skip),
            Look::Disk { extent, skip } => (extent.place, skip),
        };
        assert!(skip < bytes.len(), "a look brings at least a byte");
        all.extend_from_slice(&bytes[skip..]);
        at += (bytes.len() - skip) as u64;
    }
}

#[test]
fn a_repeat_over_the_border_is_compared_on_both_sides() {
    let mut buffer = Buffer::new(Offset::ZERO, None);
    for (order, bytes) in [b"abcd", b"efgh", b"ijkl"].into_iter().enumerate() {
        push(&mut buffer, bytes, order as u64);
    }
    spill(&mut buffer, 5);
    assert_eq!(buffer.amounts(), Amounts { memory: 8, disk: 4, droppable: 0 });
    let Ok(Fit::Compare { extents, until }) = buffer.fit(Some(Offset::new(2)), &chunk(b"cdefgh"), Offset::ZERO, 100) else {
        panic!("bytes on disk cannot be compared without a read")
    };
    assert_eq!((extents.len(), until), (1, Offset::new(4)));
    assert!(matches!(buffer.fit(Some(Offset::new(2)), &chunk(b"cdefgh"), until, 100), Ok(Fit::Repeat)));
    let other = buffer.fit(Some(Offset::new(2)), &chunk(b"cdefgX"), until, 100);
    assert!(matches!(other, Err(Misfit::OtherBytes { tail }) if tail == Offset::new(12)));
    assert!(matches!(buffer.fit(Some(Offset::new(10)), &chunk(b"klmn"), Offset::ZERO, 100), Ok(Fit::New { skip: 2 })));
}

#[test]
fn offsets_at_the_top_are_refused_and_do_not_wrap() {
    let mut buffer: Buffer<Bytes> = Buffer::new(Offset::new(u64::MAX - 3), None);
    assert!(matches!(buffer.fit(None, &chunk(b"abcd"), Offset::ZERO, u64::MAX), Err(Misfit::TooLong { .. })));
    assert!(matches!(buffer.fit(None, &chunk(b"abc"), Offset::ZERO, u64::MAX), Ok(Fit::New { skip: 0 })));
    push(&mut buffer, b"abc", 0);
    assert_eq!(buffer.tail(), Offset::new(u64::MAX));
    assert_eq!(read(&buffer, u64::MAX - 3).unwrap(), b"abc");
}

#[test]
fn a_floor_that_passes_chunks_while_they_are_written_lets_go_of_them_once() {
    let mut buffer = Buffer::new(Offset::ZERO, None);
    for order in 0..4 {
        push(&mut buffer, b"abcd", order);
    }
    let written = extents(buffer.spillable(16));
    assert_eq!(written.len(), 4);
    assert_eq!(buffer.advance_floor(Offset::new(9)).bytes(), 8);
    let handed_back = buffer.settle(written);
    assert_eq!(handed_back.extents.len(), 2, "what is below the floor is not taken in");
    assert_eq!(buffer.amounts(), Amounts { memory: 0, disk: 8, droppable: 0 });
    assert_eq!(read(&buffer, 9).unwrap(), b"bcdabcd");
    assert!(read(&buffer, 8).is_none());
    assert_eq!(buffer.clear().bytes(), 8);
    assert_eq!(buffer.amounts(), Amounts::default());
}

#[test]
fn an_attempt_that_was_cleared_while_it_was_written_takes_nothing_in() {
    let mut buffer = Buffer::new(Offset::ZERO, None);
    push(&mut buffer, b"abcd", 0);
    let written = extents(buffer.spillable(16));
    let _ = buffer.clear();
    assert_eq!(buffer.settle(written).extents.len(), 1);
    assert_eq!(buffer.amounts(), Amounts::default());
}

#[test]
fn only_what_all_have_read_or_acknowledged_can_be_dropped_and_the_oldest_first() {
    let mut buffer: Buffer<Bytes> = Buffer::new(Offset::ZERO, Some(2));
    for order in 0..3 {
        push(&mut buffer, b"abcd", order);
    }
    buffer.mark_sent(Offset::new(8));
    buffer.mark_sent(Offset::new(8));
    assert_eq!(buffer.amounts().droppable, 4);
    assert_eq!(buffer.oldest_droppable(), None, "an older chunk was not read");
    assert_eq!(buffer.drop_oldest().bytes(), 0);
    buffer.mark_sent(Offset::new(3));
    buffer.mark_sent(Offset::new(4));
    assert_eq!(buffer.oldest_droppable(), None, "one of two has read it");
    buffer.mark_acknowledged(Offset::new(5));
    assert_eq!(buffer.oldest_droppable(), Some(0));
    assert_eq!((buffer.drop_oldest().bytes(), buffer.floor()), (4, Offset::new(4)));
    assert_eq!((buffer.drop_oldest().bytes(), buffer.floor()), (4, Offset::new(8)));
    assert_eq!((buffer.drop_oldest().bytes(), buffer.amounts().droppable), (0, 0));
    assert_eq!(buffer.sent(), Some(Offset::new(8)));
}

#[derive(Debug, Clone)]
enum Op {
    Append { back: u64, length: u64, is_other: bool },
    Gap,
    Floor { ahead: u64 },
    Spill { max_bytes: u64 },
    Read { from: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0u64..6, 0u64..12, proptest::bool::weighted(0.1)).prop_map(|(back, length, is_other)| Op::Append { back, length, is_other }),
        1 => Just(Op::Gap),
        1 => (0u64..9).prop_map(|ahead| Op::Floor { ahead }),
        2 => (1u64..20).prop_map(|max_bytes| Op::Spill { max_bytes }),
        3 => (0u64..60).prop_map(|from| Op::Read { from }),
    ]
}

/// What the buffer must hold, as plainly as can be: every byte ever written.
struct Plain {
    start: u64,
    floor: u64,
    bytes: Vec<u8>,
}

impl Plain {
    fn tail(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn from(&self, position: u64) -> &[u8] {
        &self.bytes[usize::try_from(position - self.start).unwrap()..]
    }
}

/// Appends as the store does: compares what is on disk, then asks again.
fn append(buffer: &mut Buffer<Bytes>, at: u64, chunk: &Chunk, order: u64) -> Result<u64, Misfit> {
    let mut compared = Offset::ZERO;
    loop {
        match buffer.fit(Some(Offset::new(at)), chunk, compared, 1 << 40)? {
            Fit::Repeat => return Ok(0),
            Fit::New { skip } => {
                push(buffer, &chunk.bytes()[skip..], order);
                return Ok((chunk.bytes().len() - skip) as u64);
            }
            Fit::Compare { extents, until } => {
                assert!(until > compared, "every round comes further");
                for position in at..until.get() {
                    let extent = extents.iter().find(|extent| extent.start.get() <= position && position < extent.end().get());
                    let extent = extent.expect("every byte to compare lies in one of the extents");
                    let stored = extent.place[usize::try_from(position - extent.start.get()).unwrap()];
                    if stored != chunk.bytes()[usize::try_from(position - at).unwrap()] {
                        return Err(Misfit::OtherBytes { tail: buffer.tail() });
                    }
                }
                compared = until;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_buffer_holds_what_a_plain_vector_holds(start in 0u64..30, ops in proptest::collection::vec(op(), 1..60)) {
        let mut buffer = Buffer::new(Offset::new(start), None);
        let mut plain = Plain { start, floor: start, bytes: Vec::new() };
        for (order, op) in ops.into_iter().enumerate() {
            match op {
                Op::Append { back, length, is_other } => {
                    let at = plain.tail().saturating_sub(back);
                    let mut bytes: Vec<u8> = (at..at + length).map(|at| u8::try_from((at * 7) % 251).unwrap()).collect();
                    if is_other && let Some(first) = bytes.first_mut() {
                        *first ^= 1;
                    }
                    let result = append(&mut buffer, at, &chunk(&bytes), order as u64);
                    let overlap = usize::try_from((plain.tail() - at).min(length)).unwrap();
                    let expected = if at < plain.floor {
                        Err(Misfit::Gone { floor: Offset::new(plain.floor) })
                    } else if bytes.is_empty() {
                        Ok(0)
                    } else if plain.from(at)[..overlap] != bytes[..overlap] {
                        Err(Misfit::OtherBytes { tail: Offset::new(plain.tail()) })
                    } else {
                        plain.bytes.extend_from_slice(&bytes[overlap..]);
                        Ok((bytes.len() - overlap) as u64)
                    };
                    prop_assert_eq!(result, expected);
                }
                Op::Gap => {
                    let gap = append(&mut buffer, plain.tail() + 1, &chunk(b"x"), 0);
                    prop_assert_eq!(gap, Err(Misfit::Gap { tail: Offset::new(plain.tail()) }));
                }
                Op::Floor { ahead } => {
                    let _ = buffer.advance_floor(Offset::new(plain.floor + ahead));
                    plain.floor = plain.tail().min(plain.floor + ahead);
                }
                Op::Spill { max_bytes } => spill(&mut buffer, max_bytes),
                Op::Read { from } => {
                    let expected = (from >= plain.floor).then(|| if from > plain.tail() { Vec::new() } else { plain.from(from).to_vec() });
                    prop_assert_eq!(read(&buffer, from), expected);
                }
            }
            prop_assert_eq!((buffer.floor().get(), buffer.tail().get()), (plain.floor, plain.tail()));
            prop_assert_eq!(buffer.digest(), Digest::of(&plain.bytes), "a digest covers what is gone too");
            let in_memory: u64 = buffer.chunks.iter().map(Held::length).sum();
            let on_disk: u64 = buffer.extents.iter().map(|extent| extent.length).sum();
            prop_assert_eq!(buffer.amounts(), Amounts { memory: in_memory, disk: on_disk, droppable: 0 });
            let held = plain.tail() - plain.floor;
            prop_assert!(in_memory + on_disk >= held && in_memory + on_disk < held + 12, "no more than one chunk below the floor");
        }
        let _ = buffer.clear();
        prop_assert_eq!(buffer.amounts(), Amounts::default());
    }
}

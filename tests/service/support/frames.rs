//! Frame streams, written and read by the description in `openapi.yaml`.

/// A frame as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) target: u32,
    pub(crate) position: u64,
    pub(crate) payload: Vec<u8>,
}

pub(crate) const DATA: u8 = 1;
pub(crate) const END: u8 = 2;
pub(crate) const ITEM_END: u8 = 3;
pub(crate) const ITEM_ERROR: u8 = 4;
pub(crate) const ITEM_PAUSED: u8 = 6;

pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    store_api::Crc32c::of(bytes).get()
}

pub(crate) fn encode(kind: u8, target: u32, position: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(28 + payload.len());
    out.extend_from_slice(&0xFB17_u16.to_le_bytes());
    out.extend_from_slice(&[kind, 0]);
    out.extend_from_slice(&target.to_le_bytes());
    out.extend_from_slice(&position.to_le_bytes());
    out.extend_from_slice(&u32::try_from(payload.len()).expect("small").to_le_bytes());
    out.extend_from_slice(&crc32c(payload).to_le_bytes());
    let check = crc32c(&out);
    out.extend_from_slice(&check.to_le_bytes());
    out.extend_from_slice(payload);
    out
}

pub(crate) fn data(subpartition: u32, sequence: u64, payload: &[u8]) -> Vec<u8> {
    encode(DATA, subpartition, sequence, payload)
}

pub(crate) fn end(sequence: u64) -> Vec<u8> {
    encode(END, 0, sequence, &[])
}

/// Takes a whole stream apart; fails where it is damaged or cut.
#[track_caller]
pub(crate) fn decode(bytes: &[u8]) -> Vec<Frame> {
    let (mut rest, mut frames) = (bytes, Vec::new());
    while !rest.is_empty() {
        assert!(rest.len() >= 28, "cut in a header");
        let (header, behind) = rest.split_at(28);
        assert_eq!(&header[..2], &[0x17, 0xFB], "magic");
        let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        assert_eq!(number(24), crc32c(&header[..24]), "checksum of the header");
        let length = number(16) as usize;
        assert!(behind.len() >= length, "cut in a payload");
        let (payload, behind) = behind.split_at(length);
        assert_eq!(number(20), crc32c(payload), "checksum of the payload");
        let position = u64::from_le_bytes(header[8..16].try_into().expect("eight bytes"));
        frames.push(Frame { kind: header[2], target: number(4), position, payload: payload.to_vec() });
        rest = behind;
    }
    assert_eq!(frames.last().map(|frame| frame.kind), Some(END), "the stream has no end");
    frames
}

/// The bytes of an item, put together; fails where there is a gap.
#[track_caller]
pub(crate) fn item_bytes(frames: &[Frame], item: u32, from: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames.iter().filter(|frame| frame.kind == DATA && frame.target == item) {
        assert_eq!(frame.position, from + bytes.len() as u64, "a gap in item {item}");
        bytes.extend_from_slice(&frame.payload);
    }
    bytes
}

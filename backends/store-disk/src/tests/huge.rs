//! Content of gigabytes, in a file with holes: positions beyond 31 and 32 bits.

use super::fixture::*;
use crate::index::{Change, Family};
use crate::layout::{BLOCK_BYTES, FileId, FileSpan, Layout, Region};
use crate::row::{class_achieved, encode};
use crate::{DiskStore, keys};
use bytes::Bytes;
use futures::StreamExt;
use std::os::unix::fs::FileExt;
use store_api::*;

const LARGE: u64 = (5 << 30) + 12_345;
const SMALL: u64 = 1000;
/// Offsets next to which something is written, within the large subpartition.
const MARKS: [u64; 6] = [0, (1 << 31) - 1, (1 << 32) - 1, (1 << 32) + 65_536, 5 << 30, LARGE - 1];

/// What stands at a mark; the rest is zeros.
fn mark(number: usize) -> u8 {
    u8::try_from(number + 1).unwrap()
}

/// Writes a sealed attempt of two subpartitions, as if 5 GiB had been appended to the first.
async fn sealed_with_holes(store: &DiskStore, attempt: &AttemptKey) {
    let id = FileId { life: 3, number: 9 };
    let path = store.core.media.path((0, id));
    let file = std::fs::File::create_new(&path).unwrap();
    file.write_all_at(crate::layout::FILE_MAGIC, 0).unwrap();
    file.set_len(16 + LARGE + SMALL).unwrap();
    for (number, at) in MARKS.into_iter().enumerate() {
        file.write_all_at(&[mark(number)], 16 + at).unwrap();
    }
    file.write_all_at(&pattern(9, 0, SMALL), 16 + LARGE).unwrap();
    let block = usize::try_from(BLOCK_BYTES).unwrap();
    let mut crcs = vec![Crc32c::of(&vec![0; block]).get(); usize::try_from(LARGE / BLOCK_BYTES).unwrap()];
    let mut last = vec![0; usize::try_from(LARGE % BLOCK_BYTES).unwrap()];
    for (number, at) in MARKS.into_iter().enumerate() {
        let (index, within) = (usize::try_from(at / BLOCK_BYTES).unwrap(), usize::try_from(at % BLOCK_BYTES).unwrap());
        if index == crcs.len() {
            last[within] = mark(number);
        } else {
            let mut bytes = vec![0; block];
            bytes[within] = mark(number);
            crcs[index] = Crc32c::of(&bytes).get();
        }
    }
    crcs.push(Crc32c::of(&last).get());
    let first_crc = u32::try_from(crcs.len()).unwrap();
    crcs.push(Crc32c::of(&pattern(9, 0, SMALL)).get());
    let region = |subpartition, length, offset, first_crc| Region { subpartition, start: 0, length, file: 0, offset, first_crc };
    let layout = Layout {
        files: vec![FileSpan { directory: store.core.media.directory_ids[0], file: id, length: 16 + LARGE + SMALL }],
        regions: vec![region(0, LARGE, 16, 0), region(1, SMALL, 16 + LARGE, first_crc)],
        crcs,
    };
    let digests = [(0, Digest { length: LARGE, crc: Crc32c::new(1) }), (1, Digest::of(&pattern(9, 0, SMALL)))];
    let table = SubpartitionTable::new(2, digests.map(|(index, digest)| (SubpartitionIndex::new(index), digest))).unwrap();
    let manifest = SealManifest {
        attempt: attempt.clone(),
        table,
        class: class_achieved(SyncLevel::Full),
        node: NodeId::new("node").unwrap(),
        life: NodeLife::new(3),
        sealed_at_ms: 1,
    };
    let put = Change::Put(Family::Seals, keys::of_attempt(attempt), encode(&manifest, &layout));
    store.core.change(vec![put]).await.unwrap();
}

fn expected(start: u64, end: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(end - start).unwrap()];
    for (number, at) in MARKS.into_iter().enumerate().filter(|(_, at)| (start..end).contains(at)) {
        bytes[usize::try_from(at - start).unwrap()] = mark(number);
    }
    bytes
}

#[tokio::test]
async fn ranges_around_two_four_and_five_gigabytes_are_right() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let attempt = key(0, 0, 0);
    sealed_with_holes(&store, &attempt).await;
    let (store, report) = fixture.reopen(store).await;
    assert_eq!((report.sealed.len(), report.lost.len()), (1, 0));
    assert_eq!(held(&store).disk, LARGE + SMALL, "figures do not wrap");
    assert_eq!(store.stat(&attempt).await.unwrap().total_bytes, LARGE + SMALL);
    let windows = MARKS.map(|at| (at.saturating_sub(70_000), (at + 70_000).min(LARGE)));
    for (start, end) in windows {
        let bytes = read(&store, &attempt, 0, start, Some(end)).await.unwrap();
        assert!(bytes == expected(start, end), "[{start}, {end})");
        let one = read(&store, &attempt, 0, end - 1, Some(end)).await.unwrap();
        assert_eq!(one, expected(end - 1, end));
    }
    assert_eq!(read(&store, &attempt, 0, LARGE - 3, None).await.unwrap(), expected(LARGE - 3, LARGE));
    assert!(read(&store, &attempt, 0, LARGE, None).await.unwrap().is_empty());
    assert_eq!(
        *read(&store, &attempt, 0, LARGE + 1, None).await.unwrap_err().kind(),
        StoreErrorKind::BeyondEnd { end: Offset::new(LARGE) }
    );
    assert_eq!(read(&store, &attempt, 1, 0, None).await.unwrap(), pattern(9, 0, SMALL), "what follows the large one");
    let items: Vec<ReadRequest> = windows
        .iter()
        .map(|(start, end)| request(&attempt, 0, *start, Some(*end)))
        .chain([request(&attempt, 1, 3, Some(900)), request(&attempt, 0, 1 << 32, Some((1 << 32) + 3_000_000))])
        .collect();
    let mut answers = vec![Vec::new(); items.len()];
    let mut events = store.fetch(items.clone());
    while let Some(event) = events.next().await {
        match event {
            FetchEvent::Data { item, start, chunk } => {
                assert_eq!(start.get(), items[item].start.get() + answers[item].len() as u64);
                answers[item].extend_from_slice(chunk.bytes());
            }
            FetchEvent::End { item, end } => assert_eq!(Some(end), items[item].end),
            FetchEvent::Failed { error, .. } => panic!("{error:?}"),
        }
    }
    for (item, answer) in items.iter().zip(answers) {
        let (start, end) = (item.start.get(), item.end.unwrap().get());
        let wanted = if item.subpartition.get() == 1 { pattern(9, start, end - start) } else { Bytes::from(expected(start, end)) };
        assert!(wanted == answer, "[{start}, {end})");
    }
    let report = store.release(ReleaseScope::Attempt(attempt)).await.unwrap();
    assert_eq!((report.bytes, held(&store).total(), fixture.parts().len()), (LARGE + SMALL, 0, 0));
}

#[tokio::test]
async fn damage_far_out_is_found_and_only_there() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let attempt = key(0, 0, 0);
    sealed_with_holes(&store, &attempt).await;
    let (store, _) = fixture.reopen(store).await;
    let far = (1 << 32) + 5;
    let file = std::fs::OpenOptions::new().write(true).open(&fixture.parts()[0]).unwrap();
    file.write_all_at(&[0x80], 16 + far).unwrap();
    let lost = StoreErrorKind::Lost { cause: LossCause::Corruption };
    assert_eq!(*read(&store, &attempt, 0, far, Some(far + 1)).await.unwrap_err().kind(), lost);
    let block = far / BLOCK_BYTES * BLOCK_BYTES;
    for (start, end) in [(5, 6), (block - 10, block), (block + BLOCK_BYTES, block + BLOCK_BYTES + 10)] {
        assert_eq!(read(&store, &attempt, 0, start, Some(end)).await.unwrap(), expected(start, end));
    }
}

use super::*;
use proptest::prelude::*;
use store_api::{Digest, Durability, Scope, StoreClass, SubpartitionIndex, SyncLevel};

const CLASS: ClassAchieved =
    ClassAchieved { class: StoreClass::Durable, durability: Durability::Shared, sync: SyncLevel::Full, scope: Scope::ObjectStore };

fn manifest(lengths: &[u64]) -> SealManifest {
    let dataset =
        DatasetKey { job: JobId::new("job").unwrap(), incarnation: JobIncarnation::new(1), dataset: DatasetId::new("d").unwrap() };
    let entries = lengths.iter().enumerate().map(|(index, length)| {
        (SubpartitionIndex::new(u32::try_from(index).unwrap()), Digest { length: *length, crc: Crc32c::new(u32::try_from(index).unwrap()) })
    });
    SealManifest {
        attempt: dataset.partition(PartitionId::new(3)).attempt(AttemptId::new(2, 1)),
        table: SubpartitionTable::new(u32::try_from(lengths.len()).unwrap().max(1), entries).unwrap(),
        class: CLASS,
        node: NodeId::new("n1").unwrap(),
        life: NodeLife::new(9),
        sealed_at_ms: 77,
    }
}

/// Every subpartition's length cut over two objects, the first of two regions.
fn in_objects(lengths: &[u64], block_bytes: u32) -> Sealed {
    let mut ends = [0_u64; 2];
    let mut regions = Vec::new();
    for (step, object) in [0_u32, 0, 1].into_iter().enumerate() {
        let mut region = Region { object, ..Region::default() };
        for (index, length) in lengths.iter().enumerate() {
            let share = if step < 2 { length / 3 } else { length - 2 * (length / 3) };
            if share == 0 {
                continue;
            }
            let end = &mut ends[object as usize];
            let first_crc = u32::try_from(region.crcs.len()).unwrap();
            region.extents.push(Extent { subpartition: u32::try_from(index).unwrap(), start: *end, length: share, first_crc });
            *end += share;
            let n_blocks = share.div_ceil(u64::from(block_bytes));
            region.crcs.extend((0..n_blocks).map(|block| Crc32c::new(u32::try_from(block).unwrap())));
        }
        regions.push(region);
    }
    let objects = vec![(5, ends[0]), (6, ends[1])];
    Sealed { manifest: Arc::new(manifest(lengths)), content: Content::Objects(ObjectContent { block_bytes, objects, regions }) }
}

fn inline(bytes: &[u8]) -> Sealed {
    Sealed { manifest: Arc::new(manifest(&[bytes.len() as u64])), content: Content::Inline(Bytes::copy_from_slice(bytes)) }
}

fn round_trip(record: &Record) -> Result<Record, CodecError> {
    Record::decode(&Bytes::from(record.encode()), CLASS)
}

#[test]
fn the_stored_form_of_tombstones_and_manifests_never_changes() {
    let released = Record::Released { attempt: None }.encode();
    assert_eq!(released[..released.len() - 4], *b"FBYM\x01\x02");
    let one = Record::Released { attempt: Some(AttemptId::new(3, 4)) }.encode();
    assert_eq!(one[..one.len() - 4], *b"FBYM\x01\x02\x03\0\0\0\x04\0\0\0");
    let fenced = Record::Fenced { by: AttemptId::new(3, 4) }.encode();
    assert_eq!(fenced[..14], *b"FBYM\x01\x03\x03\0\0\0\x04\0\0\0");
    assert_eq!(fenced.len() as u64, LONGEST_TOMBSTONE);
    let sealed = Record::Sealed(inline(b"abc")).encode();
    let golden =
        b"FBYM\x01\x01\x03\0job\x01\0\0\0\0\0\0\0\x01\0d\x03\0\0\0\0\0\0\0\x02\0\0\0\x01\0\0\0\x02\0n1\x09\0\0\0\0\0\0\0\x4d\0\0\0\0\0\0\0\
        \x01\x01\0\0\0\x01\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\0\x03\0\0\0abc";
    assert_eq!(sealed[..sealed.len() - 4], golden[..]);
    assert!(sealed.len() as u64 > LONGEST_TOMBSTONE);
}

#[test]
fn any_flipped_bit_is_found() {
    for record in [Record::Sealed(in_objects(&[10, 0, 7], 4)), Record::Sealed(inline(b"abc")), Record::Released { attempt: None }] {
        let whole = record.encode();
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Record::decode(&Bytes::from(damaged), CLASS).is_err(), "bit {bit}");
        }
    }
}

#[test]
fn a_cut_or_a_longer_manifest_is_found() {
    let whole = Record::Sealed(in_objects(&[10, 0, 7], 4)).encode();
    for cut in 0..whole.len() {
        assert!(Record::decode(&Bytes::copy_from_slice(&whole[..cut]), CLASS).is_err(), "cut at {cut}");
    }
    let mut longer = whole;
    longer.push(0);
    assert_eq!(Record::decode(&Bytes::from(longer), CLASS), Err(CodecError::Damaged));
}

#[test]
fn an_unknown_version_or_kind_is_named_and_not_called_damage() {
    let mut newer = Record::Released { attempt: None }.encode();
    newer[4] = 2;
    assert_eq!(Record::decode(&Bytes::from(newer), CLASS), Err(CodecError::Unknown { version: 2, kind: RELEASED }));
    let mut odd = Record::Released { attempt: None }.encode();
    odd.truncate(6);
    odd[5] = 9;
    let crc = Crc32c::of(&odd);
    odd.put_u32_le(crc.get());
    assert_eq!(Record::decode(&Bytes::from(odd), CLASS), Err(CodecError::Unknown { version: 1, kind: 9 }));
}

proptest! {
    #[test]
    fn records_read_back(lengths in proptest::collection::vec(0_u64..100, 0..20), block in 1_u32..50, bytes: Vec<u8>, generation: u32, attempt: u32) {
        let records = [
            Record::Sealed(in_objects(&lengths, block)), Record::Sealed(inline(&bytes)), Record::Released { attempt: None },
            Record::Released { attempt: Some(AttemptId::new(generation, attempt)) },
            Record::Fenced { by: AttemptId::new(generation, attempt) },
        ];
        for record in records {
            prop_assert_eq!(round_trip(&record), Ok(record));
        }
    }

    #[test]
    fn junk_never_panics_nor_reserves_memory(bytes in proptest::collection::vec(any::<u8>(), 0..400), kind in 1_u8..4) {
        let mut junk = b"FBYM\x01".to_vec();
        junk.push(kind);
        junk.extend(bytes);
        let crc = Crc32c::of(&junk);
        junk.put_u32_le(crc.get());
        let _ = Record::decode(&Bytes::from(junk), CLASS);
    }
}

#[test]
fn the_bytes_of_a_manifest_with_objects_never_change() {
    let record = Record::Sealed(in_objects(&[10, 0, 7], 4));
    let stored = record.encode();
    let body: String = stored[6..stored.len() - 4].iter().map(|byte| format!("{byte:02x}")).collect();
    let golden = concat!(
        "03006a6f62",                       // job
        "0100000000000000",                 // incarnation
        "010064",                           // dataset
        "0300000000000000",                 // partition
        "0200000001000000",                 // generation, attempt
        "02006e31",                         // node
        "0900000000000000",                 // life
        "4d00000000000000",                 // sealed at
        "010300000002000000",               // table of 3, 2 of them with bytes
        "000000000a0000000000000000000000", // 0: 10 bytes
        "02000000070000000000000002000000", // 2: 7 bytes
        "0104000000",                       // in objects, blocks of 4
        "02000000",                         // two objects: number, size
        "05000000000000000a00000000000000",
        "06000000000000000700000000000000",
        "03000000",         // three regions
        "0000000002000000", // of the first object, two extents
        "000000000300000000000000",
        "020000000200000000000000",
        "0000000000000000", // a block of each
        "0000000002000000",
        "000000000300000000000000",
        "020000000200000000000000",
        "0000000000000000",
        "0100000002000000", // of the second object
        "000000000400000000000000",
        "020000000300000000000000",
        "0000000000000000",
    );
    assert_eq!(body, golden);
    assert_eq!(round_trip(&record), Ok(record));
}

/// What a record that was changed after all decodes to; `encode` does not check.
fn changed(change: impl FnOnce(&mut Sealed, &mut ObjectContent)) -> Result<Record, CodecError> {
    let mut sealed = in_objects(&[10, 0, 7], 4);
    let Content::Objects(mut content) = sealed.content.clone() else { unreachable!("it was made so") };
    change(&mut sealed, &mut content);
    sealed.content = Content::Objects(content);
    round_trip(&Record::Sealed(sealed))
}

#[test]
fn manifests_that_do_not_add_up_are_refused_though_their_checksum_holds() {
    assert!(changed(|_, _| {}).is_ok());
    type Change = (&'static str, fn(&mut Sealed, &mut ObjectContent));
    let changes: [Change; 14] = [
        ("blocks of nothing", |_, content| content.block_bytes = 0),
        ("smaller blocks than there are checksums for", |_, content| content.block_bytes = 1),
        ("an object that is longer than its regions", |_, content| content.objects[0].1 += 1),
        ("an object that is shorter than its regions", |_, content| content.objects[1].1 -= 1),
        ("objects that are swapped", |_, content| content.objects.swap(0, 1)),
        ("an object that nobody writes to", |_, content| content.objects.push((9, 5))),
        ("a region of an object that is not named", |_, content| content.regions[2].object = 2),
        ("a region too few", |_, content| drop(content.regions.pop())),
        ("an extent of nothing", |_, content| content.regions[0].extents[0].length = 0),
        ("an extent that wraps around", |_, content| content.regions[0].extents[1].length = u64::MAX),
        ("extents out of order", |_, content| content.regions[0].extents.swap(0, 1)),
        ("a subpartition twice in a region", |_, content| content.regions[0].extents[1].subpartition = 0),
        ("a checksum too few", |_, content| content.regions[2].crcs.truncate(1)),
        ("other lengths than the table has", |sealed, _| sealed.manifest = Arc::new(manifest(&[10, 1, 7]))),
    ];
    for (what, change) in changes {
        assert_eq!(changed(change), Err(CodecError::Damaged), "{what}");
    }
}

/// A stored manifest with some bytes in place of others, and the checksum that fits.
fn patched(at: usize, bytes: &[u8]) -> Result<Record, CodecError> {
    let mut stored = Record::Sealed(inline(b"abc")).encode();
    stored[at..at + bytes.len()].copy_from_slice(bytes);
    stored.truncate(stored.len() - 4);
    let crc = Crc32c::of(&stored);
    stored.put_u32_le(crc.get());
    Record::decode(&Bytes::from(stored), CLASS)
}

#[test]
fn names_counts_and_kinds_out_of_their_range_are_refused() {
    let damaged = Err(CodecError::Damaged);
    assert!(patched(8, b"job").is_ok());
    assert_eq!(patched(8, b"j/b"), damaged, "a job that is no id");
    assert_eq!(patched(8, b"j\xffb"), damaged, "a job that is no text");
    assert_eq!(patched(6, &[0, 0]), damaged, "an empty job");
    assert_eq!(patched(6, &[0xff, 0xff]), damaged, "a job longer than the manifest");
    let whole = Record::Sealed(inline(b"abc")).encode();
    let content = whole.len() - 4 - 3 - 4 - 1;
    assert_eq!(patched(content, &[2]), damaged, "content that is neither here nor in objects");
    assert_eq!(patched(content, &[1]), damaged, "bytes that are no objects");
    for length in [0_u32, 2, 4, u32::MAX] {
        assert_eq!(patched(content + 1, &length.to_le_bytes()), damaged, "{length} bytes of content");
    }
    for kind in [0, 4, 0xff] {
        assert_eq!(patched(5, &[kind]), Err(CodecError::Unknown { version: 1, kind }));
    }
    assert_eq!(patched(5, &[RELEASED]), damaged, "a tombstone has nothing more");
    for other in [&b""[..], b"F", b"FBY", b"fbym\x01\x01", b"\0\0\0\0\0\0\0\0\0\0"] {
        assert_eq!(Record::decode(&Bytes::copy_from_slice(other), CLASS), Err(CodecError::Magic));
    }
    for short in [&b"FBYM"[..], b"FBYM\x01", b"FBYM\x01\x02", b"FBYM\x01\x02\0\0\0"] {
        assert_eq!(Record::decode(&Bytes::copy_from_slice(short), CLASS), damaged);
    }
}

#[test]
fn a_tombstone_is_always_told_from_a_manifest_by_its_size() {
    // The start reads what is larger than any tombstone, and nothing else.
    let last = AttemptId::new(u32::MAX, u32::MAX);
    let tombstones = [
        Record::Released { attempt: None },
        Record::Released { attempt: Some(last) },
        Record::Fenced { by: AttemptId::new(u32::MAX, u32::MAX) },
    ];
    assert!(tombstones.iter().all(|record| record.encode().len() as u64 <= LONGEST_TOMBSTONE));
    let mut smallest = inline(b"");
    let dataset = DatasetKey { job: JobId::new("j").unwrap(), incarnation: JobIncarnation::new(0), dataset: DatasetId::new("d").unwrap() };
    let named = Arc::make_mut(&mut smallest.manifest);
    named.attempt = dataset.partition(PartitionId::new(0)).attempt(AttemptId::new(0, 0));
    named.node = NodeId::new("n").unwrap();
    assert!(smallest.encode().len() as u64 > LONGEST_TOMBSTONE);
}

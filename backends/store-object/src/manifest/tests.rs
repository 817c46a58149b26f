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
    Sealed { manifest: manifest(lengths), content: Content::Objects(ObjectContent { block_bytes, objects, regions }) }
}

fn inline(bytes: &[u8]) -> Sealed {
    Sealed { manifest: manifest(&[bytes.len() as u64]), content: Content::Inline(Bytes::copy_from_slice(bytes)) }
}

fn round_trip(record: &Record) -> Result<Record, CodecError> {
    Record::decode(&Bytes::from(record.encode()), CLASS)
}

#[test]
fn the_stored_form_of_tombstones_and_manifests_never_changes() {
    let released = Record::Released.encode();
    assert_eq!(released[..6], *b"FBYM\x01\x02");
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
    for record in [Record::Sealed(in_objects(&[10, 0, 7], 4)), Record::Sealed(inline(b"abc")), Record::Released] {
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
    let mut newer = Record::Released.encode();
    newer[4] = 2;
    assert_eq!(Record::decode(&Bytes::from(newer), CLASS), Err(CodecError::Unknown { version: 2, kind: RELEASED }));
    let mut odd = Record::Released.encode();
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
            Record::Sealed(in_objects(&lengths, block)), Record::Sealed(inline(&bytes)), Record::Released,
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

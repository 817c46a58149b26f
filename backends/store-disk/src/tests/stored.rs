//! Everything that lies on the disk: fixed bytes, sizes, and what is refused.

use super::fixture::*;
use crate::index::{Change, Family};
use crate::layout::{BLOCK_BYTES, FileId, FileSpan, Layout, Region};
use crate::row::{RowError, class_achieved, decode, encode};
use crate::{DiskCatalog, DiskStore, keys};
use bytes::{BufMut, Bytes};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use store_api::*;

fn manifest(lengths: &[u64]) -> SealManifest {
    let digest = |length| Digest { length, crc: Crc32c::new(0x0403_0201) };
    let entries = (0..).map(SubpartitionIndex::new).zip(lengths.iter().copied().map(digest));
    SealManifest {
        attempt: key(7, 1, 2),
        table: SubpartitionTable::new(u32::try_from(lengths.len()).unwrap(), entries).unwrap(),
        class: class_achieved(SyncLevel::Data),
        node: NodeId::new("node-1").unwrap(),
        life: NodeLife::new(0x0102_0304_0506_0708),
        sealed_at_ms: 9,
    }
}

fn region(subpartition: u32, start: u64, length: u64, file: u16, offset: u64, first_crc: u32) -> Region {
    Region { subpartition, start, length, file, offset, first_crc }
}

/// Two subpartitions, the first in two regions over two files.
fn two_files() -> (SealManifest, Layout) {
    let files = [(1, 0x10, 100_016), (2, 0x11, 70_016)].map(|(directory, number, length)| FileSpan {
        directory,
        file: FileId { life: 5, number },
        length,
    });
    let regions = vec![region(0, 0, 70_000, 0, 16, 0), region(0, 70_000, 70_000, 1, 16, 2), region(2, 0, 30_000, 0, 70_016, 4)];
    (manifest(&[140_000, 0, 30_000]), Layout { files: files.to_vec(), regions, crcs: vec![1, 2, 3, 4, 5] })
}

#[test]
fn a_row_takes_what_its_drawing_says() {
    let (manifest, layout) = two_files();
    let stored = encode(&manifest, &layout);
    let table = 9 + 16 * manifest.table.non_empty().len();
    let wanted = 1 + 1 + 8 + 8 + (1 + 6) + table + (2 + 32 * 2) + (4 + 34 * 3) + (4 + 4 * 5) + 4;
    assert_eq!(stored.len(), wanted);
    assert_eq!(decode(key(7, 1, 2), &stored), Ok((manifest, layout)));
}

#[test]
fn the_bytes_of_a_row_over_two_files_never_change() {
    let (manifest, layout) = two_files();
    let golden = concat!(
        "0101",                             // version, sync level
        "0807060504030201",                 // life
        "0900000000000000",                 // sealed at
        "066e6f64652d31",                   // node
        "010300000002000000",               // table: 3 subpartitions, 2 of them with bytes
        "00000000e02202000000000001020304", // 0: 140,000 bytes
        "02000000307500000000000001020304", // 2: 30,000 bytes
        "0200",                             // two files
        "01000000000000000500000000000000",
        "1000000000000000b086010000000000",
        "02000000000000000500000000000000",
        "11000000000000008011010000000000",
        "03000000", // three regions
        "0000000000000000000000007011010000000000",
        "0000100000000000000000000000",
        "0000000070110100000000007011010000000000",
        "0100100000000000000002000000",
        "0200000000000000000000003075000000000000",
        "0000801101000000000004000000",
        "050000000100000002000000030000000400000005000000",
    );
    let stored = encode(&manifest, &layout);
    let hex: String = stored.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex[..hex.len() - 8], *golden);
}

#[test]
fn rows_that_do_not_add_up_are_refused_though_their_checksum_holds() {
    type Change = (&'static str, fn(&mut Layout));
    let changes: [Change; 17] = [
        ("a gap between regions", |layout| layout.regions[1].start += 1),
        ("an overlap of regions", |layout| layout.regions[1].start -= 1),
        ("a first region that does not start at 0", |layout| layout.regions[0].start = 1),
        ("fewer bytes than the table says", |layout| layout.regions[1].length -= 1),
        ("more bytes than the table says", |layout| layout.regions[2].length += 1),
        ("a region of nothing", |layout| layout.regions.insert(2, region(0, 140_000, 0, 0, 16, 0))),
        ("a region behind the end of its file", |layout| layout.regions[2].offset += 1),
        ("a region that wraps around", |layout| layout.regions[2].offset = u64::MAX - 5),
        ("a region of a file that is not named", |layout| layout.regions[2].file = 2),
        ("regions out of order", |layout| layout.regions.swap(0, 1)),
        ("subpartitions out of order", |layout| layout.regions.swap(1, 2)),
        ("a region of a subpartition without bytes", |layout| layout.regions[2].subpartition = 1),
        ("a region of a subpartition that is not there", |layout| layout.regions[2].subpartition = 3),
        ("a region too many", |layout| layout.regions.push(region(2, 30_000, 5, 0, 16, 4))),
        ("a region too few", |layout| layout.regions.truncate(2)),
        ("a checksum too few", |layout| layout.crcs.truncate(4)),
        ("checksums that wrap around", |layout| layout.regions[2].first_crc = u32::MAX),
    ];
    for (what, change) in changes {
        let (manifest, mut layout) = two_files();
        change(&mut layout);
        assert_eq!(decode(key(7, 1, 2), &encode(&manifest, &layout)), Err(RowError::Damaged), "{what}");
    }
}

/// The stored row with `bytes` in place of those at `at`, and the checksum that fits.
fn patched(at: usize, bytes: &[u8]) -> Vec<u8> {
    let (manifest, layout) = two_files();
    let mut stored = encode(&manifest, &layout);
    stored[at..at + bytes.len()].copy_from_slice(bytes);
    stored.truncate(stored.len() - 4);
    let crc = Crc32c::of(&stored);
    stored.put_u32_le(crc.get());
    stored
}

#[test]
fn numbers_and_names_out_of_their_range_are_refused() {
    let damaged = Err(RowError::Damaged);
    for version in [0, 2, 0xff] {
        assert_eq!(decode(key(0, 0, 0), &patched(0, &[version])), Err(RowError::Version { found: version }));
    }
    assert_eq!(decode(key(0, 0, 0), &patched(1, &[3])), damaged, "a sync level");
    assert_eq!(decode(key(0, 0, 0), &patched(18, &[0])), damaged, "an empty node");
    assert_eq!(decode(key(0, 0, 0), &patched(18, &[0xff])), damaged, "a node longer than the row");
    assert_eq!(decode(key(0, 0, 0), &patched(19, b"../../")), damaged, "a node that is no id");
    assert_eq!(decode(key(0, 0, 0), &patched(19, &[0xff])), damaged, "a node that is no text");
    assert_eq!(decode(key(0, 0, 0), &patched(25, &[2])), damaged, "a table of another version");
    let files = 25 + 9 + 32;
    for count in [0_u16, 1, 3, u16::MAX] {
        assert_eq!(decode(key(0, 0, 0), &patched(files, &count.to_le_bytes())), damaged, "{count} files");
    }
    let regions = files + 2 + 64;
    for count in [0_u32, 2, 4, u32::MAX] {
        assert_eq!(decode(key(0, 0, 0), &patched(regions, &count.to_le_bytes())), damaged, "{count} regions");
    }
    let crcs = regions + 4 + 3 * 34;
    for count in [0_u32, 4, 6, u32::MAX] {
        assert_eq!(decode(key(0, 0, 0), &patched(crcs, &count.to_le_bytes())), damaged, "{count} checksums");
    }
    for row in [&b""[..], b"\x01", b"\0\0\0\0", &[0xff; 64]] {
        assert_eq!(decode(key(0, 0, 0), row), damaged);
    }
}

#[test]
fn the_largest_key_and_the_smallest_have_these_bytes() {
    let of = |job: &str, dataset: &str, number: u64, id: u32| {
        let dataset = DatasetKey {
            job: JobId::new(job).unwrap(),
            incarnation: JobIncarnation::new(number),
            dataset: DatasetId::new(dataset).unwrap(),
        };
        dataset.partition(PartitionId::new(number)).attempt(AttemptId::new(id, id))
    };
    let longest = "z".repeat(ids::MAX_ID_LENGTH);
    let large = keys::of_attempt(&of(&longest, &longest, u64::MAX, u32::MAX));
    assert_eq!(large.len(), 2 * (ids::MAX_ID_LENGTH + 1) + 8 + 8 + 4 + 4);
    assert_eq!(keys::decode(&large), Some(of(&longest, &longest, u64::MAX, u32::MAX)));
    assert!(large.ends_with(&[0xff; 16]));
    let small = keys::of_attempt(&of("-", "-", 0, 0));
    assert_eq!(small, [&b"-\0"[..], &[0; 8], b"-\0", &[0; 16]].concat());
    assert!(small < large && keys::after(&large) > large);
}

#[test]
fn bytes_that_are_no_key_are_taken_for_none() {
    let whole = keys::of_attempt(&key(3, 4, 5));
    for cut in 0..whole.len() {
        assert_eq!(keys::decode(&whole[..cut]), None, "cut at {cut}");
    }
    let mut longer = whole.clone();
    longer.push(0);
    assert_eq!(keys::decode(&longer), None);
    for (at, byte) in [(0, b'/'), (0, b' '), (0, 0xff), (0, 0)] {
        let mut other = whole.clone();
        other[at] = byte;
        assert_eq!(keys::decode(&other), None, "{byte:#x}");
    }
    let dots = [&b"..\0"[..], &whole[4..]].concat();
    assert_eq!(keys::decode(&dots), None, "a job that is no id");
}

proptest! {
    /// A range of keys holds exactly what is inside its scope.
    #[test]
    fn ranges_of_keys_are_scopes(
        job in "[a-c.-]{1,3}x", other in "[a-c.-]{1,3}x", dataset in "[a-c_]{1,2}", other_dataset in "[a-c_]{1,2}",
        numbers in proptest::array::uniform4(prop_oneof![0_u64..3, any::<u64>()]), ids in proptest::array::uniform4(prop_oneof![0_u32..4, any::<u32>()]),
    ) {
        let of = |job: &str, incarnation: u64, dataset: &str, partition: u64, generation: u32, attempt: u32| {
            let dataset = DatasetKey {
                job: JobId::new(job).unwrap(), incarnation: JobIncarnation::new(incarnation), dataset: DatasetId::new(dataset).unwrap(),
            };
            dataset.partition(PartitionId::new(partition)).attempt(AttemptId::new(generation, attempt))
        };
        let one = of(&job, numbers[0], &dataset, numbers[1], ids[0], ids[1]);
        let two = of(&other, numbers[2], &other_dataset, numbers[3], ids[2], ids[3]);
        let (scope, stored) = (&one.partition, keys::of_attempt(&two));
        let is_in = |prefix: Vec<u8>| prefix <= stored && stored < keys::after(&prefix);
        let same_job = one.job() == two.job() && scope.dataset.incarnation == two.partition.dataset.incarnation;
        prop_assert_eq!(is_in(keys::of_job(one.job(), scope.dataset.incarnation)), same_job);
        prop_assert_eq!(is_in(keys::of_dataset(&scope.dataset)), scope.dataset == two.partition.dataset);
        prop_assert_eq!(is_in(keys::of_partition(scope)), *scope == two.partition);
        let lower = keys::of_partition(scope) <= stored && stored < keys::of_generation(scope, one.attempt.generation);
        prop_assert_eq!(lower, *scope == two.partition && two.attempt.generation < one.attempt.generation);
    }

    #[test]
    fn names_of_data_files_come_back_and_no_other_text_is_one(life: u64, number: u64, text in "[0-9a-fA-F.+part -]{0,40}") {
        let id = FileId { life, number };
        let name = id.to_string();
        prop_assert_eq!(name.len(), 16 + 1 + 16 + 5);
        prop_assert_eq!(FileId::parse(&name), Some(id));
        prop_assert_eq!(FileId::parse(&text).map(|id| id.to_string()), (FileId::parse(&text).is_some()).then_some(text));
        for other in [format!("{name}x"), format!("x{name}"), name.to_uppercase(), name.replacen('-', "+", 1), format!("+{}", &name[1..])] {
            prop_assert_eq!(FileId::parse(&other), None, "{}", other);
        }
    }

    #[test]
    fn rows_of_any_layout_come_back(
        parts in proptest::collection::vec(proptest::collection::vec(1_u64..200_000, 0..4), 1..8), sync in 0_usize..3, stamp: u64,
    ) {
        let mut layout = Layout::default();
        let mut end = 16;
        for (subpartition, lengths) in (0..).zip(&parts) {
            let mut start = 0;
            for length in lengths {
                let first = u32::try_from(layout.crcs.len()).unwrap();
                layout.regions.push(region(subpartition, start, *length, 0, end, first));
                layout.crcs.extend((0..length.div_ceil(BLOCK_BYTES)).map(|block| first ^ u32::try_from(block).unwrap()));
                start += length;
                end += length;
            }
        }
        layout.files.push(FileSpan { directory: stamp, file: FileId { life: stamp, number: 1 }, length: end });
        let lengths: Vec<u64> = parts.iter().map(|lengths| lengths.iter().sum()).collect();
        let level = [SyncLevel::Full, SyncLevel::Data, SyncLevel::None][sync];
        let manifest = SealManifest { class: class_achieved(level), sealed_at_ms: stamp, ..manifest(&lengths) };
        prop_assert_eq!(decode(key(7, 1, 2), &encode(&manifest, &layout)), Ok((manifest, layout)));
    }
}

async fn raw_entry(store: &DiskStore, name: &str) -> Vec<u8> {
    store.core.index.row(Family::Catalog, name.as_bytes()).unwrap().unwrap()
}

#[tokio::test]
async fn a_catalog_entry_is_a_version_byte_two_numbers_and_the_value() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let catalog = store.catalog();
    let version = catalog.put("jobs/a", Bytes::from_static(b"value"), Expect::Any).await.unwrap();
    let stored = raw_entry(&store, "jobs/a").await;
    let life = store.core.environment.life.get();
    let (number, rest) = stored[9..].split_first_chunk::<8>().unwrap();
    assert_eq!((stored[0], &stored[1..9], rest), (1, &life.to_le_bytes()[..], &b"value"[..]));
    assert_eq!(version.0.as_ref(), format!("{life:016x}-{}", u64::from_le_bytes(*number)));
    catalog.put("jobs/empty", Bytes::new(), Expect::Any).await.unwrap();
    assert_eq!(raw_entry(&store, "jobs/empty").await.len(), 17);
    assert_eq!(catalog.get("jobs/empty").await.unwrap().unwrap().value, Bytes::new());
}

#[tokio::test]
async fn a_catalog_entry_that_cannot_be_read_is_an_error_and_never_absent() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let catalog = store.catalog();
    catalog.put("a/good", Bytes::from_static(b"value"), Expect::Any).await.unwrap();
    let good = raw_entry(&store, "a/good").await;
    let mut others: Vec<Vec<u8>> = (0..17).map(|cut| good[..cut].to_vec()).collect();
    others.extend([0, 2, 0xff].map(|version| [&[version][..], &good[1..]].concat()));
    for other in others {
        store.core.change(vec![Change::Put(Family::Catalog, b"a/bad".to_vec(), other.clone())]).await.unwrap();
        for kind in [
            catalog.get("a/bad").await.unwrap_err().kind().clone(),
            catalog.scan("a/").await.unwrap_err().kind().clone(),
            catalog.put("a/bad", Bytes::from_static(b"x"), Expect::Absent).await.unwrap_err().kind().clone(),
        ] {
            assert!(matches!(kind, StoreErrorKind::Format { .. }), "{other:?}: {kind:?}");
        }
        assert_eq!(catalog.get("a/good").await.unwrap().unwrap().value, Bytes::from_static(b"value"));
    }
    catalog.delete("a/bad").await.unwrap();
    assert_eq!(catalog.scan("a/").await.unwrap().len(), 1);
}

/// A catalog that is opened again in between says what a plain map says.
#[tokio::test]
async fn a_catalog_says_what_a_plain_map_says_over_restarts() {
    use rand::{RngExt, SeedableRng};
    let seed = seed();
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let fixture = Fixture::new();
    let mut store = fixture.open();
    let names = ["a", "a.b", "a/", "a/b", "a/b/c", "a0", "b", "B", "-"];
    let mut held: BTreeMap<String, (Bytes, Version)> = BTreeMap::new();
    let mut old: Vec<Version> = Vec::new();
    for round in 0..if is_long() { 4000 } else { 400 } {
        let catalog: DiskCatalog = store.catalog();
        let name = names[random.random_range(0..names.len())];
        let value = Bytes::from(vec![b'v'; random.random_range(0..4)]);
        let current = held.get(name).cloned();
        match random.random_range(0..10) {
            0 => {
                catalog.delete(name).await.unwrap();
                held.remove(name);
            }
            1 => {
                let prefix = &name[..random.random_range(0..=name.len())];
                let found = catalog.scan(prefix).await.unwrap();
                let found: Vec<_> = found.into_iter().map(|(key, entry)| (key, (entry.value, entry.version))).collect();
                let wanted: Vec<_> = held.clone().into_iter().filter(|(key, _)| key.starts_with(prefix)).collect();
                assert_eq!(found, wanted, "prefix {prefix:?}");
            }
            2 if round % 3 == 0 => (store, _) = fixture.reopen(store).await,
            3..6 => {
                let found = catalog.get(name).await.unwrap().map(|entry| (entry.value, entry.version));
                assert_eq!(found, current);
            }
            _ => {
                let expect = match random.random_range(0..4) {
                    0 => Expect::Any,
                    1 => Expect::Absent,
                    2 => current.clone().map_or(Expect::Absent, |(_, version)| Expect::Version(version)),
                    _ => old.get(random.random_range(0..old.len().max(1))).cloned().map_or(Expect::Any, Expect::Version),
                };
                let is_met = match &expect {
                    Expect::Any => true,
                    Expect::Absent => current.is_none(),
                    Expect::Version(version) => current.as_ref().is_some_and(|(_, held)| held == version),
                };
                match catalog.put(name, value.clone(), expect).await {
                    Ok(version) if is_met => {
                        assert!(!old.contains(&version), "no two writes have the same version");
                        old.push(version.clone());
                        held.insert(name.to_owned(), (value, version));
                    }
                    Ok(version) => assert_eq!(Some((value, version)), current, "a repeat finds its own value"),
                    Err(error) => {
                        assert_eq!(*error.kind(), StoreErrorKind::Conflict);
                        assert!(!is_met && current.is_none_or(|(held, _)| held != value));
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn the_text_of_the_markers_never_changes() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let life = store.core.environment.life.get();
    let marker = |name: &str| std::fs::read_to_string(fixture.root.path().join(name)).unwrap();
    let text = format!("forebay 1\nstore {life:016x}\nid {life:016x}\n");
    assert_eq!((marker("index/FOREBAY.INDEX"), marker("data/FOREBAY.DATA")), (text.clone(), text));
    // A data directory that is added later belongs to the same store and has an id of its own.
    store.close().await.unwrap();
    drop(store);
    let mut larger = fixture;
    larger.config.data_dirs.push(larger.root.path().join("more"));
    let store = larger.open();
    let added = std::fs::read_to_string(larger.root.path().join("more/FOREBAY.DATA")).unwrap();
    let id = store.core.environment.life.get() + 1;
    assert_eq!(added, format!("forebay 1\nstore {life:016x}\nid {id:016x}\n"));
}

#[tokio::test]
async fn a_marker_that_is_damaged_in_any_way_is_refused_and_left_as_it_is() {
    let fixture = Fixture::new();
    let store = fixture.open();
    sealed(&store, &key(0, 0, 0), 1, 1000).await;
    store.close().await.unwrap();
    drop(store);
    let damages: [&[u8]; 9] = [
        b"",
        b"forebay 1",
        b"forebay 1\nstore 1\n",
        b"forebay 1\nid 1\nstore 1\n",
        b"forebay 1\nstore x\nid 1\n",
        b"forebay 1\nstore 10000000000000000\nid 1\n",
        b"forebay 10\nstore 1\nid 1\n",
        b"Forebay 1\nstore 1\nid 1\n",
        b"\xff\xfe\x00\x01 not even text",
    ];
    for name in ["index/FOREBAY.INDEX", "data/FOREBAY.DATA"] {
        let path = fixture.root.path().join(name);
        let good = std::fs::read(&path).unwrap();
        for damage in damages {
            std::fs::write(&path, damage).unwrap();
            let refused = fixture.try_open().unwrap_err();
            let StoreErrorKind::Format { reason } = refused.kind() else {
                panic!("{name} as {:?}: {refused:?}", String::from_utf8_lossy(damage))
            };
            assert!(reason.contains(path.file_name().unwrap().to_str().unwrap()), "{reason}");
            assert_eq!(std::fs::read(&path).unwrap(), damage);
        }
        std::fs::write(&path, good).unwrap();
    }
    let store: Arc<DiskStore> = fixture.open();
    assert_eq!(read(&store, &key(0, 0, 0), 0, 0, None).await.unwrap(), pattern(0, 0, 1000));
}

use super::*;
use crate::config::{Config, StoreConfig};
use crate::store::{Environment, ObjectStore};
use object_store::memory::InMemory;
use proptest::prelude::*;
use store_api::{NodeId, NodeLife, Scope, SystemClock, TaskGroup};

fn environment(life: u64) -> Environment {
    Environment { clock: SystemClock::shared(), tasks: TaskGroup::new(), node: NodeId::new("n").unwrap(), life: NodeLife::new(life) }
}

/// A catalog with conditional updates (memory), and one without (a directory).
async fn both() -> (tempfile::TempDir, [ObjectCatalog; 2]) {
    let memory = ObjectStore::open(Config::new(StoreConfig::Memory), environment(1)).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let local = object_store::local::LocalFileSystem::new_with_prefix(folder.path()).unwrap();
    let config = Config::new(StoreConfig::Memory);
    let directory = ObjectStore::open_with(Arc::new(local), None, Scope::FileSystem, config, environment(2)).await.unwrap();
    assert_eq!((memory.probed().update, directory.probed().update), (Support::Works, Support::Refused));
    (folder, [memory.catalog(), directory.catalog()])
}

fn value(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

#[tokio::test]
async fn conditions_hold_and_repeats_of_our_own_value_succeed() {
    let (_folder, catalogs) = both().await;
    for catalog in catalogs {
        assert_eq!(catalog.get("a/b").await.unwrap(), None);
        let first = catalog.put("a/b", value("1"), Expect::Absent).await.unwrap();
        assert_eq!(catalog.put("a/b", value("1"), Expect::Absent).await.unwrap(), first, "a repeat after a lost reply");
        assert_eq!(*catalog.put("a/b", value("x"), Expect::Absent).await.unwrap_err().kind(), StoreErrorKind::Conflict);
        let second = catalog.put("a/b", value("2"), Expect::Version(first.clone())).await.unwrap();
        assert_eq!(catalog.put("a/b", value("2"), Expect::Version(first.clone())).await.unwrap(), second);
        assert_eq!(*catalog.put("a/b", value("x"), Expect::Version(first)).await.unwrap_err().kind(), StoreErrorKind::Conflict);
        assert_eq!(catalog.get("a/b").await.unwrap(), Some(CatalogEntry { value: value("2"), version: second.clone() }));
        catalog.put("a/b", value("3"), Expect::Any).await.unwrap();
        assert_eq!(catalog.get("a/b").await.unwrap().map(|entry| entry.value), Some(value("3")));
        for _ in 0..2 {
            catalog.delete("a/b").await.unwrap();
            assert_eq!(catalog.get("a/b").await.unwrap(), None);
        }
        assert_eq!(*catalog.put("a/b", value("x"), Expect::Version(second)).await.unwrap_err().kind(), StoreErrorKind::Conflict);
        catalog.put("a/b", value("4"), Expect::Absent).await.unwrap();
    }
}

#[tokio::test]
async fn one_of_many_writers_of_a_version_wins() {
    let (_folder, catalogs) = both().await;
    for catalog in catalogs {
        let mut version = catalog.put("k", Bytes::from("start"), Expect::Absent).await.unwrap();
        for round in 0..5 {
            let puts = (0..8).map(|writer| catalog.put("k", Bytes::from(format!("{round} {writer}")), Expect::Version(version.clone())));
            let won: Vec<Version> = futures::future::join_all(puts).await.into_iter().flatten().collect();
            assert_eq!(won.len(), 1, "round {round}");
            version = catalog.get("k").await.unwrap().unwrap().version;
            assert_eq!(won[0], version);
        }
    }
}

#[tokio::test]
async fn a_scan_is_in_key_order_and_ends_at_its_prefix() {
    let (_folder, catalogs) = both().await;
    let long = format!("jobs/{}", "x".repeat(800));
    for catalog in catalogs {
        let keys = ["jobs", "jobs/a", "jobs/a/b", "jobs/a-b", "jobs/a.b/c", "jobs/.", "jobs/..", "jobsx", "a", long.as_str()];
        for key in keys {
            catalog.put(key, Bytes::copy_from_slice(key.as_bytes()), Expect::Absent).await.unwrap();
        }
        catalog.put("jobs/gone", value("x"), Expect::Any).await.unwrap();
        catalog.delete("jobs/gone").await.unwrap();
        for prefix in ["", "jobs", "jobs/", "jobs/a", "jobs/a/", "jobs/a.b/", "z", long.as_str()] {
            let found: Vec<String> = catalog.scan(prefix).await.unwrap().into_iter().map(|(key, _)| key).collect();
            let mut wanted: Vec<String> = keys.iter().filter(|key| key.starts_with(prefix)).map(|key| (*key).to_owned()).collect();
            wanted.sort();
            assert_eq!(found, wanted, "{prefix:?}");
        }
        for key in keys {
            assert_eq!(catalog.get(key).await.unwrap().map(|entry| entry.value), Some(Bytes::copy_from_slice(key.as_bytes())));
        }
    }
}

#[tokio::test]
async fn keys_and_values_over_their_limits_are_refused() {
    let (_folder, catalogs) = both().await;
    for catalog in catalogs {
        for key in ["", "a b", "a=b", "ä", "a%2f"] {
            assert!(catalog.put(key, value("x"), Expect::Any).await.is_err(), "{key:?}");
        }
        let long = "k".repeat(MAX_KEY_LENGTH + 1);
        assert!(matches!(catalog.get(&long).await.unwrap_err().kind(), StoreErrorKind::TooLarge { .. }));
        let large = Bytes::from(vec![0; MAX_VALUE_LENGTH + 1]);
        assert!(matches!(catalog.put("k", large, Expect::Any).await.unwrap_err().kind(), StoreErrorKind::TooLarge { .. }));
        let largest = Bytes::from(vec![7; MAX_VALUE_LENGTH]);
        catalog.put(&"k".repeat(MAX_KEY_LENGTH), largest.clone(), Expect::Any).await.unwrap();
        assert_eq!(catalog.get(&"k".repeat(MAX_KEY_LENGTH)).await.unwrap().map(|entry| entry.value), Some(largest));
    }
}

#[tokio::test]
async fn a_writer_that_was_slow_does_not_bring_an_old_revision_back() {
    let (_folder, [_, catalog]) = both().await;
    let first = catalog.put("k", value("1"), Expect::Absent).await.unwrap();
    for text in ["2", "3", "4"] {
        catalog.put("k", value(text), Expect::Any).await.unwrap();
    }
    // The slow writer saw revision 1 and only now creates revision 2, which was taken away since.
    assert!(!catalog.add_revision("k", 2, encode_entry(VALUE, b"late")).await.unwrap());
    assert_eq!(catalog.get("k").await.unwrap().map(|entry| entry.value), Some(value("4")));
    assert_eq!(*catalog.put("k", value("late"), Expect::Version(first)).await.unwrap_err().kind(), StoreErrorKind::Conflict);
}

#[tokio::test]
async fn another_store_on_the_same_bucket_sees_the_entries() {
    let memory = Arc::new(InMemory::new());
    let open = |life| {
        let memory = memory.clone();
        async move {
            ObjectStore::open_with(memory, None, Scope::ObjectStore, Config::new(StoreConfig::Memory), environment(life)).await.unwrap()
        }
    };
    let (one, two) = (open(1).await.catalog(), open(2).await.catalog());
    let version = one.put("jobs/j", value("1"), Expect::Absent).await.unwrap();
    assert_eq!(two.get("jobs/j").await.unwrap(), Some(CatalogEntry { value: value("1"), version }));
}

#[test]
fn a_damaged_entry_is_an_error() {
    let stored = encode_entry(VALUE, b"abc");
    assert_eq!(stored[..5], *b"\x01\x01abc");
    for at in 0..stored.len() {
        let mut damaged = stored.to_vec();
        damaged[at] ^= 1;
        assert!(decode_entry(Bytes::from(damaged)).is_err(), "byte {at}");
        assert!(decode_entry(stored.slice(..at)).is_err(), "cut at {at}");
    }
    assert_eq!(decode_entry(stored), Ok(Some(Bytes::from_static(b"abc"))));
    assert_eq!(decode_entry(encode_entry(REMOVED, b"")), Ok(None));
}

proptest! {
    #[test]
    fn names_read_back_as_their_keys_and_are_nobody_elses_parent(one in "[a-c./]{1,600}", two in "[a-c./]{1,600}") {
        let (name, other) = (encode_key(&one), encode_key(&two));
        prop_assert_eq!(decode_key(&name), Some(one.clone()));
        prop_assert!(name.split('/').all(|part| part.len() <= 182));
        prop_assert!(Path::parse(&name).is_ok());
        prop_assert_eq!(name == other, one == two);
        let parent = format!("{name}/");
        prop_assert!(!other.starts_with(&parent));
    }
}

#[test]
fn the_bytes_of_an_entry_never_change() {
    let stored = encode_entry(VALUE, b"value");
    assert_eq!(stored[..7], *b"\x01\x01value");
    assert_eq!(stored[7..], Crc32c::of(b"\x01\x01value").get().to_le_bytes());
    let removed = encode_entry(REMOVED, b"");
    assert_eq!((removed.len(), &removed[..2]), (6, &b"\x01\x02"[..]));
    assert_eq!(encode_entry(VALUE, b"").len(), 6, "an entry is 6 bytes longer than its value");
}

#[test]
fn what_is_no_entry_is_an_error_and_neither_a_value_nor_a_removal() {
    for stored in [Bytes::new(), Bytes::from_static(b"\x01"), Bytes::from_static(b"\x01\x01\0\0\0"), Bytes::from_static(&[0; 6])] {
        assert!(decode_entry(stored.clone()).is_err(), "{stored:?}");
    }
    for kind in [0, 3, 0xff] {
        assert!(decode_entry(encode_entry(kind, b"v")).is_err(), "kind {kind}");
    }
    let newer = {
        let mut out = encode_entry(VALUE, b"v").to_vec();
        out.truncate(3);
        out[0] = 2;
        let crc = Crc32c::of(&out);
        out.put_u32_le(crc.get());
        Bytes::from(out)
    };
    assert_eq!(decode_entry(newer), Err("an entry has another version"));
}

proptest! {
    #[test]
    fn entries_read_back_and_changed_ones_do_not(value: Vec<u8>, at: prop::sample::Index, bit in 0_u8..8) {
        for (kind, wanted) in [(VALUE, Some(Bytes::from(value.clone()))), (REMOVED, None)] {
            let content: &[u8] = if kind == VALUE { &value } else { b"" };
            let stored = encode_entry(kind, content);
            prop_assert_eq!(decode_entry(stored.clone()), Ok(wanted));
            let mut damaged = stored.to_vec();
            damaged[at.index(stored.len())] ^= 1 << bit;
            prop_assert!(decode_entry(damaged.into()).is_err());
            prop_assert!(decode_entry(stored.slice(..at.index(stored.len()))).is_err(), "a cut entry");
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes: Vec<u8>) {
        let _ = decode_entry(bytes.into());
    }

    /// The version that a caller holds brings back the very tag and number that the store gave.
    #[test]
    fn versions_go_there_and_back(tag in proptest::option::of("[!-~]{1,40}"), number in proptest::option::of("[!-~]{1,20}")) {
        let given = UpdateVersion { e_tag: tag, version: number };
        let back = update_of(&version_of(&given));
        prop_assert_eq!((back.e_tag, back.version), (given.e_tag, given.version));
    }
}

/// Random calls on one key of both kinds of catalog say what a plain variable says.
#[tokio::test]
async fn a_catalog_says_what_a_plain_map_says() {
    use rand::{RngExt, SeedableRng};
    let seed = store_testkit::suite::seed("object catalog");
    let (_folder, catalogs) = both().await;
    for (number, catalog) in (0..).zip(catalogs) {
        let mut random = rand::rngs::StdRng::seed_from_u64(seed.wrapping_add(number));
        let names = ["a", "a/b", "a/b/c", "a.b", "b"];
        let mut held: BTreeMap<String, (Bytes, Version)> = BTreeMap::new();
        let mut old: Vec<Version> = Vec::new();
        for _ in 0..300 {
            let name = names[random.random_range(0..names.len())];
            let value = Bytes::from(vec![b'v'; random.random_range(0..3)]);
            let current = held.get(name).cloned();
            match random.random_range(0..8) {
                0 => {
                    catalog.delete(name).await.unwrap();
                    held.remove(name);
                }
                1 => {
                    let prefix = &name[..random.random_range(0..=name.len())];
                    let found = catalog.scan(prefix).await.unwrap();
                    let found: Vec<(String, Bytes)> = found.into_iter().map(|(key, entry)| (key, entry.value)).collect();
                    let wanted: Vec<(String, Bytes)> = held
                        .iter()
                        .filter(|(key, _)| key.starts_with(prefix))
                        .map(|(key, (value, _))| (key.clone(), value.clone()))
                        .collect();
                    assert_eq!(found, wanted, "prefix {prefix:?}");
                }
                2 | 3 => {
                    let found = catalog.get(name).await.unwrap();
                    assert_eq!(found.map(|entry| entry.value), current.map(|(value, _)| value));
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
                        Ok(version) => {
                            let is_own = current.is_some_and(|(held, _)| held == value);
                            assert!(is_met || is_own, "a condition that does not hold was taken");
                            old.push(version.clone());
                            held.insert(name.to_owned(), (value, version));
                        }
                        Err(error) => {
                            assert_eq!(*error.kind(), StoreErrorKind::Conflict);
                            assert!(!is_met && current.is_none_or(|(held, _)| held != value));
                        }
                    }
                }
            }
        }
    }
}

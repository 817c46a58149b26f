//! Seals, releases and reads against each other; the catalog.

use super::fixture::*;
use bytes::Bytes;
use futures::StreamExt;
use std::sync::Arc;
use store_api::*;

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::disallowed_methods, reason = "tests spawn what they wait for")]
async fn a_seal_that_races_a_release_never_comes_back() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let mut tasks = Vec::new();
    for number in 0..60 {
        let attempt = key(number, 0, 0);
        open(&store, &attempt, 1).await;
        put(&store, &attempt, 0, 0, pattern(0, 0, 3000)).await.unwrap();
        let (one, two) = (store.clone(), store.clone());
        let releases = attempt.clone();
        tasks.push(tokio::spawn(async move {
            let _ = one.prepare(PrepareRequest { attempt: attempt.clone(), expected: None }).await;
            let _ = one.publish(&attempt).await;
        }));
        tasks.push(tokio::spawn(async move {
            for _ in 0..number % 7 {
                tokio::task::yield_now().await;
            }
            two.release(ReleaseScope::Attempt(releases)).await.unwrap();
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(held(&store).total(), 0);
    let (store, report) = fixture.reopen(store).await;
    assert!(report.sealed.is_empty(), "{} came back", report.sealed.len());
    assert_eq!((held(&store).total(), fixture.parts().len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::disallowed_methods, reason = "tests spawn what they wait for")]
async fn every_acknowledged_append_is_in_the_seal() {
    let fixture = Fixture::new();
    let store = fixture.open();
    for round in 0..20 {
        let attempt = key(round, 0, 0);
        open(&store, &attempt, 8).await;
        let writers: Vec<_> = (0..8_u32)
            .map(|index| {
                let (store, attempt) = (store.clone(), attempt.clone());
                tokio::spawn(async move {
                    let mut at = 0;
                    loop {
                        match put(&store, &attempt, index, at, pattern(u64::from(index), at, 500)).await {
                            Ok(_) => {
                                at += 500;
                                tokio::task::yield_now().await;
                            }
                            Err(error) => {
                                assert_eq!(*error.kind(), StoreErrorKind::AlreadySealed);
                                return at;
                            }
                        }
                    }
                })
            })
            .collect();
        for _ in 0..round * 3 {
            tokio::task::yield_now().await;
        }
        let manifest = seal(&store, &attempt).await;
        for (index, writer) in (0..).zip(writers) {
            let acknowledged = writer.await.unwrap();
            assert_eq!(manifest.table.digest(SubpartitionIndex::new(index)).unwrap().length, acknowledged);
            let bytes = read(&store, &attempt, index, 0, None).await.unwrap();
            assert_eq!(bytes, pattern(u64::from(index), 0, acknowledged));
        }
    }
}

#[tokio::test]
async fn a_reader_that_meets_a_release_gets_right_bytes_or_is_told() {
    let mut fixture = Fixture::new();
    fixture.config.read_bytes = 64 * 1024;
    let store = fixture.open();
    let attempt = key(0, 0, 0);
    sealed(&store, &attempt, 1, 1_000_000).await;
    let mut stream = store.read(request(&attempt, 0, 0, None)).await.unwrap();
    let first = stream.chunks.next().await.unwrap().unwrap();
    let report = store.release(ReleaseScope::Partition(attempt.partition.clone())).await.unwrap();
    assert_eq!(report, ReleaseReport { n_attempts: 1, bytes: 1_000_000 });
    let mut all = first.to_vec();
    while let Some(chunk) = stream.chunks.next().await {
        match chunk {
            Ok(bytes) => all.extend_from_slice(&bytes),
            Err(error) => assert_eq!(*error.kind(), StoreErrorKind::Released),
        }
    }
    assert_eq!(all, pattern(0, 0, all.len() as u64));
    assert_eq!(*read(&store, &attempt, 0, 0, None).await.unwrap_err().kind(), StoreErrorKind::Released);
    assert_eq!(store.core.media.open_files.n_open(), 0, "no removed file is kept open");
}

#[tokio::test]
async fn used_space_follows_what_is_held_over_many_cycles() {
    let fixture = Fixture::new();
    let mut store = fixture.open();
    for cycle in 0..6_u32 {
        for number in 0..4 {
            sealed(&store, &key(number, cycle, 0), 2, 50_000).await;
        }
        let open_one = key(99, cycle, 0);
        open(&store, &open_one, 1).await;
        put(&store, &open_one, 0, 0, pattern(0, 0, 50_000)).await.unwrap();
        let prepared = store.prepare(PrepareRequest { attempt: open_one.clone(), expected: None }).await.unwrap();
        assert_eq!(prepared.table.total_bytes(), 50_000);
        assert_eq!(fixture.part_bytes(), held(&store).disk + 16 * fixture.parts().len() as u64);
        match cycle % 3 {
            0 => store.abort(&open_one).await.unwrap(),
            1 => drop(store.release(ReleaseScope::Attempt(open_one)).await.unwrap()),
            _ => {}
        }
        (store, _) = fixture.reopen(store).await;
        assert_eq!(held(&store).disk, 4 * 100_000);
        assert_eq!(fixture.part_bytes(), held(&store).disk + 16 * fixture.parts().len() as u64);
        for number in 0..4 {
            store.release(ReleaseScope::Partition(key(number, 0, 0).partition)).await.unwrap();
        }
        assert_eq!((held(&store).total(), fixture.part_bytes()), (0, 0));
    }
}

#[tokio::test]
async fn neighbours_of_a_batch_are_read_together_and_answered_apart() {
    let fixture = Fixture::new();
    let store = fixture.open();
    for number in 0..3 {
        sealed(&store, &key(number, 0, 0), 40, 2000).await;
    }
    let items: Vec<_> =
        (0..120_u32).rev().map(|n| request(&key(u64::from(n / 40), 0, 0), n % 40, u64::from(n), Some(u64::from(n) + 50))).collect();
    let mut events = store.fetch(items.clone());
    let (mut open_item, mut n_ended) = (None, 0);
    while let Some(event) = events.next().await {
        match event {
            FetchEvent::Data { item, start, chunk } => {
                assert_eq!(open_item.get_or_insert(item), &item, "items must not interleave");
                let wanted = &items[item];
                assert_eq!(*chunk.bytes(), pattern(u64::from(wanted.subpartition.get()), start.get(), 50));
                assert_eq!(start, wanted.start);
            }
            FetchEvent::End { item, end } => {
                assert_eq!(Some(end), items[item].end);
                assert_eq!(open_item.take(), Some(item));
                n_ended += 1;
            }
            FetchEvent::Failed { error, .. } => panic!("{error:?}"),
        }
    }
    assert_eq!(n_ended, 120);
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::disallowed_methods, reason = "tests spawn what they wait for")]
async fn of_many_conditional_puts_one_wins() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let catalog = store.catalog();
    let puts: Vec<_> = (0..30)
        .map(|number: u32| {
            let catalog = catalog.clone();
            tokio::spawn(async move { catalog.put("jobs/a", Bytes::from(number.to_string()), Expect::Absent).await })
        })
        .collect();
    let mut versions = Vec::new();
    for put in puts {
        match put.await.unwrap() {
            Ok(version) => versions.push(version),
            Err(error) => assert_eq!(*error.kind(), StoreErrorKind::Conflict),
        }
    }
    assert_eq!(versions.len(), 1);
    let entry = catalog.get("jobs/a").await.unwrap().unwrap();
    assert_eq!(entry.version, versions[0]);
    let next = catalog.put("jobs/a", Bytes::from_static(b"next"), Expect::Version(entry.version.clone())).await.unwrap();
    let repeated = catalog.put("jobs/a", Bytes::from_static(b"next"), Expect::Version(entry.version.clone())).await.unwrap();
    assert_eq!(repeated, next, "a repeat after a lost reply finds its own value");
    let stale = catalog.put("jobs/a", Bytes::from_static(b"other"), Expect::Version(entry.version)).await.unwrap_err();
    assert_eq!(*stale.kind(), StoreErrorKind::Conflict);
}

#[tokio::test]
async fn the_catalog_survives_a_reopen_and_scans_by_prefix() {
    let mut fixture = Fixture::new();
    fixture.config.sync = SyncLevel::None;
    let store = fixture.open();
    let catalog: Arc<dyn Catalog> = Arc::new(store.catalog());
    for name in ["jobs/a", "jobs/a/x", "jobs/b", "job", "jobs.c", "zz"] {
        catalog.put(name, Bytes::from(name), Expect::Any).await.unwrap();
    }
    catalog.delete("jobs/b").await.unwrap();
    catalog.delete("jobs/none").await.unwrap();
    assert_eq!(catalog.put("a b", Bytes::new(), Expect::Any).await.unwrap_err().kind().retry(), Retry::Never);
    let large = Bytes::from(vec![0; catalog::MAX_VALUE_LENGTH + 1]);
    assert!(matches!(catalog.put("a", large, Expect::Any).await.unwrap_err().kind(), StoreErrorKind::TooLarge { .. }));
    drop(catalog);
    let (store, _) = fixture.reopen(store).await;
    let catalog = store.catalog();
    let names = |found: Vec<(String, CatalogEntry)>| found.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(catalog.scan("jobs/").await.unwrap()), ["jobs/a", "jobs/a/x"]);
    assert_eq!(names(catalog.scan("").await.unwrap()), ["job", "jobs.c", "jobs/a", "jobs/a/x", "zz"]);
    assert_eq!(catalog.get("zz").await.unwrap().unwrap().value, Bytes::from_static(b"zz"));
    assert_eq!(catalog.get("none").await.unwrap(), None);
}

//! Random interleavings of appends, write-outs, failing syncs, seals, restarts and releases; every
//! read compared with what a plain vector holds.

use super::fixture::*;
use crate::DiskStore;
use bytes::Bytes;
use futures::StreamExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store_api::*;

const N_LANES: u32 = 3;

/// What an attempt must hold.
#[derive(Debug, Clone, Default)]
struct Plain {
    lanes: Vec<Vec<u8>>,
    is_sealed: bool,
}

impl Plain {
    fn new() -> Self {
        Self { lanes: vec![Vec::new(); N_LANES as usize], is_sealed: false }
    }

    fn bytes(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.len() as u64).sum()
    }
}

struct World {
    fixture: Fixture,
    store: Arc<DiskStore>,
    held: BTreeMap<AttemptKey, Plain>,
    random: StdRng,
    n_opened: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut fixture = Fixture::new();
        fixture.config.data_dirs.push(fixture.root.path().join("other"));
        // Small reads, so that streams and groups have many borders.
        (fixture.config.read_bytes, fixture.config.fetch_bytes) = (70_000, 150_000);
        let store = fixture.open();
        Self { fixture, store, held: BTreeMap::new(), random: StdRng::seed_from_u64(seed), n_opened: 0 }
    }

    fn below(&mut self, end: usize) -> usize {
        self.random.random_range(0..end.max(1))
    }

    fn pick(&mut self, wants_sealed: bool) -> Option<AttemptKey> {
        let keys: Vec<AttemptKey> = self.held.iter().filter(|(_, one)| one.is_sealed == wants_sealed).map(|(key, _)| key.clone()).collect();
        let at = self.below(keys.len());
        keys.get(at).cloned()
    }

    /// Lengths next to which buffers, blocks and gathered chunks end.
    fn length(&mut self) -> usize {
        let edges = [0, 1, 2, 4095, 4096, 4097, 65_519, 65_520, 65_535, 65_536, 65_537, 131_072, 200_000];
        if self.below(2) == 0 { self.below(3000) } else { edges[self.below(edges.len())] }
    }

    /// Puts, waiting for a directory: after failing syncs all of them may be out for a second.
    async fn put(&self, attempt: &AttemptKey, lane: usize, start: usize, bytes: Bytes) -> Result<AppendAck, StoreError> {
        let clock = SystemClock::new();
        loop {
            match put(&self.store, attempt, u32::try_from(lane).unwrap(), start as u64, bytes.clone()).await {
                Err(error) if matches!(error.kind(), StoreErrorKind::Unavailable { .. }) => {
                    assert!(clock.monotonic() < PATIENCE, "{error:?}");
                    clock.sleep(std::time::Duration::from_millis(20)).await;
                }
                answer => return answer,
            }
        }
    }

    async fn open(&mut self) {
        self.n_opened += 1;
        let attempt = key(self.n_opened, 0, 0);
        open(&self.store, &attempt, N_LANES).await;
        self.held.insert(attempt, Plain::new());
    }

    async fn append(&mut self) {
        let Some(attempt) = self.pick(false) else { return self.open().await };
        let (lane, length, salt) = (self.below(N_LANES as usize), self.length(), self.below(1 << 20) as u64);
        let start = self.held[&attempt].lanes[lane].len();
        let bytes = pattern(salt, start as u64, length as u64);
        let ack = self.put(&attempt, lane, start, bytes.clone()).await.unwrap();
        assert_eq!((ack.end.get(), ack.new_bytes), ((start + length) as u64, length as u64));
        self.held.get_mut(&attempt).unwrap().lanes[lane].extend_from_slice(&bytes);
    }

    /// Sends bytes again, from anywhere, maybe beyond the tail, maybe with one of them changed.
    async fn repeat(&mut self) {
        let Some(attempt) = self.pick(false) else { return };
        let lane = self.below(N_LANES as usize);
        let tail = self.held[&attempt].lanes[lane].len();
        let start = self.below(tail + 1);
        let length = self.length().min(tail - start + 10);
        let flipped = (self.below(3) == 0).then(|| self.below(length));
        let old = self.held[&attempt].lanes[lane][start..].iter().copied();
        let mut bytes: Vec<u8> = old.chain((0..250_u8).cycle()).take(length).collect();
        let overlap = length.min(tail - start);
        let changed = flipped.filter(|at| *at < overlap);
        if let Some(at) = changed {
            bytes[at] ^= 0x10;
        }
        let answer = self.put(&attempt, lane, start, Bytes::from(bytes.clone())).await;
        match (answer, changed) {
            (Ok(ack), None) => {
                assert_eq!(ack.new_bytes, (length - overlap) as u64);
                self.held.get_mut(&attempt).unwrap().lanes[lane].extend_from_slice(&bytes[overlap..]);
            }
            (Err(error), Some(at)) => {
                assert_eq!(
                    *error.kind(),
                    StoreErrorKind::ContentMismatch { expected: Offset::new(tail as u64) },
                    "{at} of {start}+{length}"
                );
            }
            (answer, changed) => panic!("{start}+{length} at tail {tail}, changed {changed:?}: {answer:?}"),
        }
    }

    async fn write_out(&mut self) {
        let Some(attempt) = self.pick(false) else { return };
        let found = self.store.core.registry.find(&attempt).unwrap();
        if let Err(error) = self.store.core.spill(&found).await {
            // Every directory may be out after failing syncs; the bytes stay in memory.
            assert!(matches!(error.kind(), StoreErrorKind::Unavailable { .. }), "{error:?}");
        }
    }

    /// Seals; sometimes a sync fails on the way. Bytes that were in memory only survive that, bytes
    /// that had been written out before do not, and the store says which.
    async fn seal(&mut self) {
        let Some(attempt) = self.pick(false) else { return };
        let plain = self.held[&attempt].clone();
        let entries = (0..).map(SubpartitionIndex::new).zip(plain.lanes.iter().map(|lane| Digest::of(lane)));
        let expected = Some(Arc::new(SubpartitionTable::new(N_LANES, entries).unwrap()));
        let was_on_disk = self.store.core.registry.find(&attempt).unwrap().inner.lock().files.iter().any(|file| file.span.length > 0);
        let fails = self.below(4) == 0 && plain.bytes() > 0;
        self.store.core.media.fails_sync.store(fails, Ordering::SeqCst);
        let prepare = PrepareRequest { attempt: attempt.clone(), expected };
        let mut outcome = self.store.prepare(prepare.clone()).await;
        self.store.core.media.fails_sync.store(false, Ordering::SeqCst);
        if fails {
            let error = outcome.unwrap_err();
            if *error.kind() == (StoreErrorKind::Lost { cause: LossCause::Disk }) {
                assert!(was_on_disk, "everything was in memory still");
                self.held.remove(&attempt);
                return;
            }
            assert!(matches!(error.kind(), StoreErrorKind::Unavailable { .. }), "{error:?}");
            assert!(!was_on_disk, "a second sync would not tell whether the bytes are there");
            // The directory is looked at again after a second; there are two.
            let clock = SystemClock::new();
            loop {
                outcome = self.store.prepare(prepare.clone()).await;
                if outcome.is_ok() {
                    break;
                }
                assert!(clock.monotonic() < PATIENCE);
                clock.sleep(std::time::Duration::from_millis(20)).await;
            }
        }
        let manifest = outcome.unwrap();
        assert!(matches!(self.store.publish(&attempt).await.unwrap(), SealOutcome::Won(won) if won == manifest));
        self.held.get_mut(&attempt).unwrap().is_sealed = true;
    }

    fn range(&mut self, length: usize) -> (usize, usize) {
        let mut edge = || match self.random.random_range(0..4) {
            0 => self.random.random_range(0..=length),
            1 => (self.random.random_range(0..4_usize) * 65_536).min(length),
            2 => (self.random.random_range(0..4_usize) * 65_536 + 1).min(length),
            _ => length - self.random.random_range(0..=length.min(3)),
        };
        let (one, two) = (edge(), edge());
        (one.min(two), one.max(two))
    }

    async fn read(&mut self) {
        let Some(attempt) = self.pick(true) else { return };
        let lane = self.below(N_LANES as usize);
        let (start, end) = self.range(self.held[&attempt].lanes[lane].len());
        let bytes = read(&self.store, &attempt, u32::try_from(lane).unwrap(), start as u64, Some(end as u64)).await.unwrap();
        assert!(bytes == self.held[&attempt].lanes[lane][start..end], "[{start}, {end}) of {attempt}");
    }

    async fn read_many(&mut self) {
        let mut items = Vec::new();
        let mut wanted: Vec<Vec<u8>> = Vec::new();
        for _ in 0..1 + self.below(20) {
            let Some(attempt) = self.pick(true) else { return };
            let lane = self.below(N_LANES as usize);
            let (start, end) = self.range(self.held[&attempt].lanes[lane].len());
            items.push(request(&attempt, u32::try_from(lane).unwrap(), start as u64, Some(end as u64)));
            wanted.push(self.held[&attempt].lanes[lane][start..end].to_vec());
        }
        let mut found = vec![Vec::new(); items.len()];
        let mut is_ended = vec![false; items.len()];
        let mut events = self.store.fetch(items.clone());
        while let Some(event) = events.next().await {
            match event {
                FetchEvent::Data { item, start, chunk } => {
                    assert!(!is_ended[item]);
                    assert_eq!(start.get(), items[item].start.get() + found[item].len() as u64);
                    found[item].extend_from_slice(chunk.bytes());
                }
                FetchEvent::End { item, .. } => assert!(!std::mem::replace(&mut is_ended[item], true)),
                FetchEvent::Failed { item, error, .. } => panic!("item {item}: {error:?}"),
            }
        }
        assert!(is_ended.iter().all(|ended| *ended) && found == wanted);
    }

    async fn release(&mut self) {
        let wants_sealed = self.below(2) == 0;
        let Some(attempt) = self.pick(wants_sealed) else { return };
        let plain = self.held.remove(&attempt).unwrap();
        if wants_sealed || self.below(2) == 0 {
            let report = self.store.release(ReleaseScope::Attempt(attempt)).await.unwrap();
            assert_eq!((report.n_attempts, report.bytes), (1, plain.bytes()));
        } else {
            self.store.abort(&attempt).await.unwrap();
        }
    }

    async fn restart(&mut self) {
        self.held.retain(|_, one| one.is_sealed);
        if self.below(2) == 0 {
            self.store.close().await.unwrap();
        }
        let placeholder = Fixture::new();
        let old = std::mem::replace(&mut self.store, placeholder.open());
        drop(old);
        let clock = SystemClock::new();
        self.store = loop {
            match self.fixture.try_open() {
                Ok(store) => break store,
                // What was under way lets go of the locks when it ends.
                Err(error) => assert!(clock.monotonic() < PATIENCE, "{error:?}"),
            }
            clock.sleep(std::time::Duration::from_millis(5)).await;
        };
        let report = self.store.recover().await.unwrap();
        assert_eq!((report.sealed.len(), report.lost.len(), report.n_quarantined), (self.held.len(), 0, 0));
        for manifest in &report.sealed {
            let plain = &self.held[&manifest.attempt];
            for (lane, content) in (0..).zip(&plain.lanes) {
                assert_eq!(manifest.table.digest(SubpartitionIndex::new(lane)), Some(Digest::of(content)));
            }
        }
    }

    /// Figures and files are those of what is held, to the byte.
    fn check(&self) {
        let held_bytes: u64 = self.held.values().map(Plain::bytes).sum();
        assert_eq!(held(&self.store).total(), held_bytes);
        let sealed: u64 = self.held.values().filter(|one| one.is_sealed).map(Plain::bytes).sum();
        assert!(held(&self.store).disk >= sealed);
        let n_files = self.fixture.parts().len() as u64;
        assert_eq!(self.fixture.part_bytes(), held(&self.store).disk + 16 * n_files, "no byte more on the disk than is held");
        assert_eq!(self.store.core.budget.used_bytes(), held(&self.store).memory);
    }
}

#[tokio::test]
async fn every_read_is_what_a_plain_vector_holds_whatever_came_before() {
    let first = seed();
    for run in 0..if is_long() { 60 } else { 4 } {
        let mut world = World::new(first.wrapping_add(run));
        for _ in 0..250 {
            match world.below(100) {
                0..6 => world.open().await,
                6..40 => world.append().await,
                40..48 => world.repeat().await,
                48..58 => world.write_out().await,
                58..68 => world.seal().await,
                68..82 => world.read().await,
                82..92 => world.read_many().await,
                92..97 => world.release().await,
                _ => world.restart().await,
            }
            world.check();
        }
    }
}

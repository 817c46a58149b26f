//! Manifests of sealed attempts in memory: bounded in bytes, and in the time for which one is used
//! without asking the object store again.
//!
//! The second bound is how long a release or fence made through another node can go unseen here.

use crate::manifest::Sealed;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use store_api::AttemptKey;

#[derive(Debug)]
struct Entry {
    sealed: Arc<Sealed>,
    fetched_at: Duration,
    weight: u64,
    used: u64,
}

#[derive(Debug, Default)]
struct Entries {
    by_key: HashMap<AttemptKey, Entry>,
    by_use: BTreeMap<u64, AttemptKey>,
    weight: u64,
    uses: u64,
}

impl Entries {
    fn remove(&mut self, key: &AttemptKey) {
        if let Some(entry) = self.by_key.remove(key) {
            self.by_use.remove(&entry.used);
            self.weight = self.weight.saturating_sub(entry.weight);
        }
    }

    fn next_use(&mut self) -> u64 {
        self.uses = self.uses.saturating_add(1);
        self.uses
    }
}

/// The cache. The entry used longest ago goes first.
#[derive(Debug)]
pub(crate) struct ManifestCache {
    limit: u64,
    max_age: Duration,
    entries: Mutex<Entries>,
}

impl ManifestCache {
    /// A cache of about `limit` bytes.
    pub(crate) fn new(limit: u64, max_age: Duration) -> Self {
        Self { limit, max_age, entries: Mutex::default() }
    }

    /// A manifest that was fetched at most the allowed time before `now`.
    pub(crate) fn fresh(&self, key: &AttemptKey, now: Duration) -> Option<Arc<Sealed>> {
        let mut entries = self.entries.lock();
        let used = entries.next_use();
        let entry = entries.by_key.get_mut(key)?;
        if now.saturating_sub(entry.fetched_at) > self.max_age {
            return None;
        }
        let before = std::mem::replace(&mut entry.used, used);
        let sealed = entry.sealed.clone();
        entries.by_use.remove(&before);
        entries.by_use.insert(used, key.clone());
        Some(sealed)
    }

    /// Keeps a manifest that was fetched, or written, at `now`.
    pub(crate) fn keep(&self, sealed: Arc<Sealed>, now: Duration) {
        let key = sealed.manifest.attempt.clone();
        let weight = sealed.weight();
        let mut entries = self.entries.lock();
        entries.remove(&key);
        if weight > self.limit {
            return;
        }
        let used = entries.next_use();
        entries.by_use.insert(used, key.clone());
        entries.by_key.insert(key, Entry { sealed, fetched_at: now, weight, used });
        entries.weight = entries.weight.saturating_add(weight);
        while entries.weight > self.limit {
            let Some((_, oldest)) = entries.by_use.pop_first() else { return };
            entries.remove(&oldest);
        }
    }

    /// Forgets a manifest.
    pub(crate) fn forget(&self, key: &AttemptKey) {
        self.entries.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Content;
    use bytes::Bytes;
    use store_api::{
        AttemptId, ClassAchieved, DatasetId, DatasetKey, Durability, JobId, JobIncarnation, NodeId, NodeLife, PartitionId, Scope,
        SealManifest, StoreClass, SubpartitionTable, SyncLevel,
    };

    fn sealed(partition: u64, bytes: usize) -> Arc<Sealed> {
        let dataset =
            DatasetKey { job: JobId::new("j").unwrap(), incarnation: JobIncarnation::new(1), dataset: DatasetId::new("d").unwrap() };
        let class =
            ClassAchieved { class: StoreClass::Durable, durability: Durability::Shared, sync: SyncLevel::Full, scope: Scope::ObjectStore };
        let manifest = SealManifest {
            attempt: dataset.partition(PartitionId::new(partition)).attempt(AttemptId::new(0, 0)),
            table: SubpartitionTable::default(),
            class,
            node: NodeId::new("n").unwrap(),
            life: NodeLife::new(1),
            sealed_at_ms: 0,
        };
        Arc::new(Sealed { manifest: Arc::new(manifest), content: Content::Inline(Bytes::from(vec![0; bytes])) })
    }

    #[test]
    fn the_manifest_used_longest_ago_goes_first() {
        let cache = ManifestCache::new(5000, Duration::from_secs(1));
        let all = [sealed(0, 1000), sealed(1, 1000), sealed(2, 1000), sealed(3, 1000)];
        let key = |at: usize| all[at].manifest.attempt.clone();
        for one in &all[..3] {
            cache.keep(one.clone(), Duration::ZERO);
        }
        assert!(cache.fresh(&key(0), Duration::ZERO).is_some());
        cache.keep(all[3].clone(), Duration::ZERO);
        let there: Vec<bool> = (0..4).map(|at| cache.fresh(&key(at), Duration::ZERO).is_some()).collect();
        assert_eq!(there, [true, false, true, true]);
    }

    #[test]
    fn an_old_manifest_is_asked_for_again_and_a_too_large_one_not_kept() {
        let cache = ManifestCache::new(5000, Duration::from_secs(1));
        let one = sealed(0, 10);
        cache.keep(one.clone(), Duration::from_secs(5));
        assert!(cache.fresh(&one.manifest.attempt, Duration::from_secs(6)).is_some());
        assert!(cache.fresh(&one.manifest.attempt, Duration::from_millis(6001)).is_none());
        cache.keep(sealed(0, 9000), Duration::from_secs(6));
        assert!(cache.fresh(&one.manifest.attempt, Duration::from_secs(6)).is_none(), "the old one must not stay in its place");
    }
}

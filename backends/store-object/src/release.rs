//! Gives storage back, at every scope.
//!
//! | scope | what is left behind | listing |
//! |---|---|---|
//! | attempt | its seal becomes a tombstone, if it was the seal | none |
//! | partition | the seal of every generation becomes a tombstone | none |
//! | generations below | each seal becomes a tombstone that names what superseded it | none |
//! | dataset, job | one marker | of its prefix: other nodes may have written there |
//!
//! A tombstone is put unconditionally and before the content is deleted, so that a create that comes
//! late finds it, and a reader that finds its content gone finds out why. Tombstones go with their
//! dataset or job; markers with [`crate::ObjectStore::sweep`].

use crate::attempt::{Attempt, ContentObject};
use crate::error::BucketError;
use crate::inner::Inner;
use crate::layout::Name;
use crate::lookup::{Found, unknown};
use crate::manifest::{LONGEST_TOMBSTONE, Record, Sealed};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use store_api::{AttemptId, AttemptKey, AttemptState, Operation, PartitionKey, ReleaseReport, ReleaseScope, StoreError};

/// Requests of one release side by side.
const SIDE_BY_SIDE: usize = 8;
/// Most generations that a fence passes through.
const MAX_HOPS: usize = 1024;

/// What is to be done in the object store.
#[derive(Debug, Default)]
struct Erasure {
    report: ReleaseReport,
    tombstones: BTreeMap<Path, Bytes>,
    objects: Vec<ContentObject>,
    content: Vec<Path>,
    attempts: Vec<Arc<Attempt>>,
}

impl Erasure {
    /// Ends an attempt and collects what it leaves behind, also when an earlier try failed.
    fn end(&mut self, attempt: &Arc<Attempt>, state: AttemptState, by: Option<AttemptId>) {
        let mut core = attempt.lock();
        if let Some(ended) = core.end(state, by) {
            self.report.n_attempts = self.report.n_attempts.saturating_add(1);
            self.report.bytes = self.report.bytes.saturating_add(ended.bytes);
            self.objects.extend(ended.objects);
        }
        if !core.is_erased {
            self.content.extend(core.content());
        }
        drop(core);
        attempt.notify();
        self.attempts.push(attempt.clone());
    }

    /// Counts content that another node, or another life of this one, has sealed.
    fn take(&mut self, inner: &Inner, sealed: &Sealed) {
        self.report.n_attempts = self.report.n_attempts.saturating_add(1);
        self.report.bytes = self.report.bytes.saturating_add(sealed.manifest.table.total_bytes());
        self.content.extend(inner.content_paths(sealed));
    }
}

impl Inner {
    /// See [`store_api::PartitionStore::release`].
    pub(crate) async fn release(&self, scope: ReleaseScope) -> Result<ReleaseReport, StoreError> {
        let subject = format!("{scope:?}");
        let released = match scope {
            ReleaseScope::Job { job, incarnation } => {
                let attempts = self.registry.release_job(&job, incarnation);
                let (prefix, marker) = (self.layout.job(&job, incarnation), self.layout.job_marker(&job, incarnation));
                let released = self.release_prefix(attempts, &prefix, &marker).await;
                if released.is_ok() {
                    self.registry.forget(&job, incarnation);
                }
                released
            }
            ReleaseScope::Dataset(key) => {
                let attempts = self.registry.release_dataset(&key);
                self.release_prefix(attempts, &self.layout.dataset(&key), &self.layout.dataset_marker(&key)).await
            }
            ReleaseScope::Partition(key) => self.release_partition(&key).await,
            ReleaseScope::Attempt(key) => self.release_attempt(&key).await,
            ReleaseScope::GenerationsBelow { partition, by } => self.release_generations(&partition, by).await,
        };
        released.map_err(|error| unknown(error, Operation::Release, subject))
    }

    async fn carry_out(&self, erasure: Erasure) -> Result<ReleaseReport, BucketError> {
        let Erasure { report, tombstones, objects, content, attempts } = erasure;
        for attempt in &attempts {
            self.cache.forget(&attempt.key);
        }
        let puts =
            futures::stream::iter(tombstones).map(|(path, bytes)| async move { self.bucket.put(&path, bytes.into()).await.map(drop) });
        puts.buffer_unordered(SIDE_BY_SIDE).try_collect::<()>().await?;
        self.erase(&objects, content).await?;
        for attempt in &attempts {
            attempt.lock().is_erased = true;
        }
        Ok(report)
    }

    async fn release_prefix(&self, attempts: Vec<Arc<Attempt>>, prefix: &Path, marker: &Path) -> Result<ReleaseReport, BucketError> {
        let mut erasure = Erasure::default();
        let mut known: HashSet<Path> = HashSet::new();
        let is_repeat = attempts.iter().all(|attempt| attempt.lock().is_erased);
        for attempt in &attempts {
            erasure.end(attempt, AttemptState::Released, None);
            known.insert(attempt.seal_path.clone());
            known.extend(attempt.lock().content());
        }
        let found = self.bucket.list(prefix).await?;
        let others: Vec<_> = found.into_iter().filter(|meta| meta.location != *marker).collect();
        for meta in &others {
            let name = self.layout.parse(&meta.location).filter(|_| !known.contains(&meta.location));
            let is_seal = matches!(name, Some(Name::Seal { .. })) && meta.size > LONGEST_TOMBSTONE;
            if is_seal {
                erasure.report.n_attempts = erasure.report.n_attempts.saturating_add(1);
            }
            if is_seal || matches!(name, Some(Name::Content(_))) {
                erasure.report.bytes = erasure.report.bytes.saturating_add(meta.size);
            }
        }
        if !others.is_empty() || !is_repeat {
            self.bucket.put(marker, Bytes::from_static(b"1").into()).await?;
        }
        erasure.content.extend(others.into_iter().map(|meta| meta.location));
        self.carry_out(erasure).await
    }

    fn tombstone_generations(&self, erasure: &mut Erasure, key: &PartitionKey, generations: &BTreeSet<u32>, record: &Record) {
        let bytes = Bytes::from(record.encode());
        for generation in generations {
            erasure.tombstones.insert(self.layout.generation_seal(key, *generation), bytes.clone());
        }
        for attempt in &erasure.attempts {
            let core = attempt.lock();
            if core.may_be_published && !core.is_erased && generations.contains(&attempt.key.attempt.generation) {
                erasure.tombstones.insert(attempt.seal_path.clone(), bytes.clone());
            }
        }
    }

    async fn release_partition(&self, key: &PartitionKey) -> Result<ReleaseReport, BucketError> {
        let attempts = self.registry.release_partition(key);
        let mut erasure = Erasure::default();
        let mut generations: BTreeSet<u32> =
            attempts.iter().filter(|attempt| !attempt.lock().is_erased).map(|attempt| attempt.key.attempt.generation).collect();
        for attempt in &attempts {
            erasure.end(attempt, AttemptState::Released, None);
        }
        if attempts.is_empty() {
            generations = self.walk(key, u32::MAX, &mut erasure).await?;
        }
        self.tombstone_generations(&mut erasure, key, &generations, &Record::Released { attempt: None });
        self.carry_out(erasure).await
    }

    async fn release_generations(&self, key: &PartitionKey, by: AttemptId) -> Result<ReleaseReport, BucketError> {
        let (attempts, is_new) = self.registry.raise_fence(key, by);
        let mut erasure = Erasure::default();
        let mut generations: BTreeSet<u32> =
            attempts.iter().filter(|attempt| !attempt.lock().is_erased).map(|attempt| attempt.key.attempt.generation).collect();
        let is_retried = !generations.is_empty();
        for attempt in &attempts {
            erasure.end(attempt, AttemptState::Fenced, Some(by));
        }
        if let Some(last) = by.generation.checked_sub(1)
            && (is_new || is_retried)
        {
            let mut others = Erasure::default();
            let walked = self.walk(key, by.generation, &mut others).await?;
            let known: HashSet<Path> = erasure.content.iter().cloned().collect();
            let foreign: Vec<u32> = walked.into_iter().filter(|generation| !generations.contains(generation)).collect();
            if !foreign.is_empty() {
                erasure.report.n_attempts = erasure.report.n_attempts.saturating_add(others.report.n_attempts);
                erasure.report.bytes = erasure.report.bytes.saturating_add(others.report.bytes);
                erasure.content.extend(others.content.into_iter().filter(|path| !known.contains(path)));
            }
            generations.extend(foreign);
            generations.extend([0, last]);
        }
        self.tombstone_generations(&mut erasure, key, &generations, &Record::Fenced { by });
        self.carry_out(erasure).await
    }

    /// Follows the generations from the first, over fences, below `limit`. Takes content that is
    /// sealed there and answers its generation.
    async fn walk(&self, key: &PartitionKey, limit: u32, erasure: &mut Erasure) -> Result<BTreeSet<u32>, BucketError> {
        let mut sealed_at = BTreeSet::new();
        let mut generation = 0;
        for _ in 0..MAX_HOPS {
            if generation >= limit {
                break;
            }
            match self.fetch_record(&self.layout.generation_seal(key, generation)).await? {
                Found::Record(Record::Sealed(sealed)) => {
                    erasure.take(self, &sealed);
                    sealed_at.insert(generation);
                    break;
                }
                Found::Record(Record::Fenced { by }) if by.generation > generation => generation = by.generation,
                Found::Unreadable(_) => {
                    sealed_at.insert(generation);
                    break;
                }
                Found::Nothing | Found::Record(Record::Released { .. } | Record::Fenced { .. }) => break,
            }
        }
        Ok(sealed_at)
    }

    async fn release_attempt(&self, key: &AttemptKey) -> Result<ReleaseReport, BucketError> {
        let mut erasure = Erasure::default();
        let tombstone = Bytes::from(Record::Released { attempt: Some(key.attempt) }.encode());
        match self.registry.find(key) {
            Some(attempt) => {
                let (was_sealed, may_be_published, is_erased) = {
                    let core = attempt.lock();
                    (core.sealed().is_some(), core.may_be_published, core.is_erased)
                };
                erasure.end(&attempt, AttemptState::Released, None);
                let stands = match (was_sealed, may_be_published && !is_erased) {
                    (true, _) => Standing::Ours,
                    (false, false) => Standing::Another,
                    (false, true) => self.standing(&attempt.seal_path, key).await?,
                };
                // Where nobody else competes for the name, a tombstone keeps a late manifest out.
                let is_alone = attempt.seal_path == self.layout.attempt_seal(key);
                match stands {
                    Standing::Nothing if is_alone => drop(erasure.tombstones.insert(attempt.seal_path.clone(), tombstone)),
                    Standing::Ours => drop(erasure.tombstones.insert(attempt.seal_path.clone(), tombstone)),
                    Standing::Another => {}
                    Standing::Nothing => {
                        // A manifest that is still on its way would speak of content that is gone, and
                        // other attempts of the generation would lose to it.
                        tracing::warn!(attempt = %key, "content of a released attempt is left for the sweep of its job: it may turn out sealed");
                        erasure.objects.clear();
                        erasure.content.clear();
                    }
                }
            }
            None => {
                for path in [self.layout.generation_seal(&key.partition, key.attempt.generation), self.layout.attempt_seal(key)] {
                    let found = self.fetch_record(&path).await?;
                    let Found::Record(Record::Sealed(sealed)) = found else { continue };
                    if sealed.manifest.attempt != *key {
                        continue;
                    }
                    erasure.take(self, &sealed);
                    erasure.tombstones.insert(path.clone(), tombstone.clone());
                    // Known from now on, so that late calls are told.
                    if let Ok(attempt) = self.take_in(&sealed, path) {
                        attempt.lock().end(AttemptState::Released, None);
                        erasure.attempts.push(attempt);
                    }
                }
            }
        }
        self.carry_out(erasure).await
    }

    async fn standing(&self, path: &Path, key: &AttemptKey) -> Result<Standing, BucketError> {
        Ok(match self.fetch_record(path).await? {
            Found::Record(Record::Sealed(sealed)) if sealed.manifest.attempt == *key => Standing::Ours,
            Found::Record(_) | Found::Unreadable(_) => Standing::Another,
            Found::Nothing => Standing::Nothing,
        })
    }
}

/// What stands under the name of a seal whose publication was answered with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// The attempt's own manifest.
    Ours,
    /// Something else, so that the attempt's own can never come to stand there.
    Another,
    /// Nothing yet.
    Nothing,
}

//! Finds sealed content: in memory, in the cache, or in the object store, never by listing.

use crate::attempt::Attempt;
use crate::error::{BucketError, Fault, RETRY_AFTER};
use crate::inner::Inner;
use crate::manifest::{CodecError, Record, Sealed};
use object_store::path::Path;
use std::sync::Arc;
use store_api::{
    Arbitration, AttemptKey, AttemptState, DatasetSpec, LossCause, Operation, PartitionKey, SealManifest, StoreError, StoreErrorKind,
};

/// Most generations that one search passes through.
const MAX_HOPS: usize = 1024;

/// What stands under the name of a seal.
#[derive(Debug)]
pub(crate) enum Found {
    /// Nothing.
    Nothing,
    /// A readable record.
    Record(Record),
    /// Something that is no manifest.
    Unreadable(CodecError),
}

impl Inner {
    /// Reads what stands under the name of a seal. Something damaged is read once more.
    pub(crate) async fn fetch_record(&self, path: &Path) -> Result<Found, BucketError> {
        let mut last = CodecError::Damaged;
        for _ in 0..2 {
            let Some((bytes, _)) = self.bucket.fetch(path).await? else { return Ok(Found::Nothing) };
            match Record::decode(&bytes, self.capabilities.class) {
                Ok(record) => return Ok(Found::Record(record)),
                Err(error) => last = error,
            }
        }
        Ok(Found::Unreadable(last))
    }

    /// The sealed content of an attempt.
    pub(crate) async fn find(&self, key: &AttemptKey, operation: Operation) -> Result<Arc<Sealed>, StoreError> {
        let fail = |kind| StoreError::new(kind, operation, key);
        match self.registry.find(key) {
            Some(attempt) => {
                let core = attempt.lock();
                let open = (core.state() != AttemptState::Sealed).then_some(StoreErrorKind::NotSealed);
                if let Some(kind) = core.refusal().or(open) {
                    return Err(fail(kind));
                }
            }
            None => {
                if let Some(kind) = self.registry.unknown(key) {
                    return Err(fail(kind));
                }
            }
        }
        match self.cache.fresh(key, self.clock.monotonic()) {
            Some(sealed) => Ok(sealed),
            None => self.refresh(key, operation).await.map(|(sealed, _)| sealed),
        }
    }

    /// The sealed content of an attempt as the object store has it now, and where its seal stands.
    pub(crate) async fn refresh(&self, key: &AttemptKey, operation: Operation) -> Result<(Arc<Sealed>, Path), StoreError> {
        let fail = |kind| StoreError::new(kind, operation, key);
        let known = self.registry.find(key);
        let paths = match &known {
            Some(attempt) => vec![attempt.seal_path.clone()],
            None => vec![self.layout.generation_seal(&key.partition, key.attempt.generation), self.layout.attempt_seal(key)],
        };
        for path in paths {
            let found = self.fetch_record(&path).await.map_err(|error| unknown(error, operation, key))?;
            let (state, by) = match found {
                Found::Record(Record::Sealed(sealed)) if sealed.manifest.attempt == *key => {
                    let sealed = Arc::new(sealed);
                    self.cache.keep(sealed.clone(), self.clock.monotonic());
                    return Ok((sealed, path));
                }
                Found::Record(Record::Sealed(_)) | Found::Nothing => continue,
                // Another attempt of the generation was sealed and released. This one is not known, and
                // can only not be opened any more.
                Found::Record(Record::Released { attempt: Some(attempt) })
                    if known.is_none() && attempt != key.attempt && operation != Operation::Open =>
                {
                    continue;
                }
                Found::Record(Record::Released { .. }) => (AttemptState::Released, None),
                Found::Record(Record::Fenced { by }) => (AttemptState::Fenced, Some(by)),
                Found::Unreadable(error) => return Err(fail(unreadable(&error)).with_source(error)),
            };
            if let Some(attempt) = &known {
                end_elsewhere(attempt, state, by);
            }
            self.cache.forget(key);
            return Err(fail(by.map_or(StoreErrorKind::Released, |by| StoreErrorKind::Fenced { by })));
        }
        self.cache.forget(key);
        Err(self.missing(key, known.as_deref(), operation).await)
    }

    /// Neither manifest nor tombstone: released with its job or dataset, or gone, or never there.
    async fn missing(&self, key: &AttemptKey, known: Option<&Attempt>, operation: Operation) -> StoreError {
        let fail = |kind| StoreError::new(kind, operation, key);
        let dataset = &key.partition.dataset;
        for marker in [self.layout.job_marker(&dataset.job, dataset.incarnation), self.layout.dataset_marker(dataset)] {
            match self.bucket.size(&marker).await {
                Ok(None) => {}
                Ok(Some(_)) => {
                    if let Some(attempt) = known {
                        end_elsewhere(attempt, AttemptState::Released, None);
                    }
                    return fail(StoreErrorKind::Released);
                }
                Err(error) => return unknown(error, operation, key),
            }
        }
        let is_sealed = known.is_some_and(|attempt| attempt.lock().sealed().is_some());
        fail(if is_sealed { StoreErrorKind::Lost { cause: LossCause::ObjectStore } } else { StoreErrorKind::NotFound })
    }

    /// An attempt that this process knows, or that is found sealed in the object store and known
    /// from then on. For calls that are not on the path of every chunk.
    pub(crate) async fn adopt(&self, key: &AttemptKey, operation: Operation) -> Result<Arc<Attempt>, StoreError> {
        if let Some(attempt) = self.registry.find(key) {
            return Ok(attempt);
        }
        let refusal = if operation == Operation::Open { self.registry.refusal(key) } else { self.registry.unknown(key) };
        if let Some(kind) = refusal {
            return Err(StoreError::new(kind, operation, key));
        }
        let (sealed, path) = self.refresh(key, operation).await?;
        self.take_in(&sealed, path).map_err(|kind| StoreError::new(kind, operation, key))
    }

    /// Makes sealed content whose seal stands at `path` known to this process.
    pub(crate) fn take_in(&self, sealed: &Sealed, path: Path) -> Result<Arc<Attempt>, StoreErrorKind> {
        self.registry.add(Attempt::found(sealed, path, self.content_paths(sealed)))
    }

    /// See [`store_api::PartitionStore::locate`].
    pub(crate) async fn locate(
        &self,
        key: &PartitionKey,
        spec: &DatasetSpec,
        from_generation: u32,
    ) -> Result<Option<Arc<SealManifest>>, StoreError> {
        let fail = |kind| StoreError::new(kind, Operation::Stat, key);
        let fence = self.registry.fence(key).map_or(0, |by| by.generation);
        let from = from_generation.max(fence);
        if let Some(kind) = self.registry.refusal(&key.attempt(store_api::AttemptId::new(from, 0))) {
            return Err(fail(kind));
        }
        let known = self.registry.of_partition(key);
        let newest = known.iter().filter(|attempt| attempt.key.attempt.generation >= from && attempt.lock().sealed().is_some());
        let newest = newest.max_by_key(|attempt| attempt.key.attempt).cloned();
        if spec.arbitration == Arbitration::Engine {
            // No attempt of the generation is the one: the engine names them.
            return Ok(newest.and_then(|attempt| attempt.lock().sealed()));
        }
        let mut generation = newest.map_or(from, |attempt| attempt.key.attempt.generation);
        for _ in 0..MAX_HOPS {
            let path = self.layout.generation_seal(key, generation);
            match self.fetch_record(&path).await.map_err(|error| unknown(error, Operation::Stat, key))? {
                Found::Nothing => return Ok(None),
                Found::Record(Record::Sealed(sealed)) => {
                    let sealed = Arc::new(sealed);
                    self.cache.keep(sealed.clone(), self.clock.monotonic());
                    return Ok(Some(sealed.manifest.clone()));
                }
                Found::Record(Record::Released { .. }) => return Err(fail(StoreErrorKind::Released)),
                Found::Record(Record::Fenced { by }) if by.generation > generation => generation = by.generation,
                Found::Record(Record::Fenced { by }) => return Err(fail(StoreErrorKind::Fenced { by })),
                Found::Unreadable(error) => {
                    return Err(fail(StoreErrorKind::Format { reason: error.to_string() }).with_source(error));
                }
            }
        }
        Err(fail(StoreErrorKind::Format { reason: "fences that lead nowhere".to_owned() }))
    }
}

/// Notes that another node ended an attempt; what it held in the object store was erased there.
fn end_elsewhere(attempt: &Attempt, state: AttemptState, by: Option<store_api::AttemptId>) {
    let mut core = attempt.lock();
    if core.end(state, by).is_some() {
        core.is_erased = true;
    }
    drop(core);
    attempt.notify();
}

/// What stands under one of our names and is no manifest is a damaged one; one of a newer version is
/// not ours to judge.
fn unreadable(error: &CodecError) -> StoreErrorKind {
    match error {
        CodecError::Unknown { .. } => StoreErrorKind::Format { reason: error.to_string() },
        CodecError::Damaged | CodecError::Magic => StoreErrorKind::Lost { cause: LossCause::Corruption },
    }
}

/// Not knowing is not "not there".
pub(crate) fn unknown(error: BucketError, operation: Operation, subject: impl std::fmt::Display) -> StoreError {
    if matches!(error.fault, Fault::Missing | Fault::Exists) {
        return StoreError::new(StoreErrorKind::Unavailable { retry_after: RETRY_AFTER }, operation, subject).with_source(error);
    }
    error.explain(operation, subject)
}

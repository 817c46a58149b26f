//! Prepare and publish: how an attempt becomes content.
//!
//! ```text
//! prepare: check the table → send the rest → make objects of the uploads → describe it    (durable)
//! publish: create the manifest under the name of the generation (or of the attempt)       (visible)
//! ```
//! The create is the arbiter: of all attempts of a generation, on all nodes, one is first. Whoever
//! finds a manifest there compares it with his own: the same writer with the same content is a lost
//! reply; anything else is the winner.

use crate::attempt::{Attempt, inline_content};
use crate::config::ConditionalPut;
use crate::error::{BucketError, Fault, RETRY_AFTER};
use crate::inner::Inner;
use crate::manifest::{Content, Record, Sealed};
use crate::probe::Support;
use bytes::Bytes;
use std::sync::Arc;
use store_api::{
    AttemptState, Digest, LossCause, Operation, SealManifest, SealOutcome, StoreError, StoreErrorKind, SubpartitionIndex, SubpartitionTable,
};

/// Lets appends go on when a prepare ends without success, also when it is dropped half-way.
struct Sealing<'a>(&'a Attempt);

impl Drop for Sealing<'_> {
    fn drop(&mut self) {
        let mut core = self.0.lock();
        if core.state() == AttemptState::Open {
            core.set_sealing(false);
        }
    }
}

/// The first subpartition whose digest differs.
fn first_difference(held: &SubpartitionTable, stated: &SubpartitionTable) -> Option<StoreErrorKind> {
    let difference = |index: SubpartitionIndex| {
        let of = |table: &SubpartitionTable| table.digest(index).unwrap_or(Digest::EMPTY);
        let kind = StoreErrorKind::DigestMismatch { subpartition: index.get(), held: of(held), stated: of(stated) };
        (of(held) != of(stated)).then_some((index, kind))
    };
    let indices = held.non_empty().chain(stated.non_empty()).map(|(index, _)| index);
    let first = indices.filter_map(difference).min_by_key(|(index, _)| *index).map(|(_, kind)| kind);
    if first.is_none() && held.count() != stated.count() {
        let subpartition = held.count().min(stated.count());
        return Some(StoreErrorKind::DigestMismatch { subpartition, held: Digest::EMPTY, stated: Digest::EMPTY });
    }
    first
}

fn check(held: &SubpartitionTable, stated: Option<&SubpartitionTable>) -> Result<(), StoreErrorKind> {
    match stated.and_then(|stated| first_difference(held, stated)) {
        Some(kind) => Err(kind),
        None => Ok(()),
    }
}

impl Inner {
    fn sealed(&self, attempt: &Attempt, table: SubpartitionTable, content: Content) -> Arc<Sealed> {
        let manifest = SealManifest {
            attempt: attempt.key.clone(),
            table,
            class: self.capabilities.class,
            node: self.node.clone(),
            life: self.life,
            sealed_at_ms: self.clock.unix_ms(),
        };
        Arc::new(Sealed { manifest: Arc::new(manifest), content })
    }

    /// See [`store_api::PartitionStore::prepare`].
    pub(crate) async fn prepare(
        self: &Arc<Self>,
        attempt: &Arc<Attempt>,
        stated: Option<&SubpartitionTable>,
    ) -> Result<Arc<SealManifest>, StoreError> {
        let fail = |kind| StoreError::new(kind, Operation::Prepare, &attempt.key);
        let _work = attempt.work.lock().await;
        if let Some(manifest) = self.begin_prepare(attempt, stated).map_err(fail)? {
            return Ok(manifest);
        }
        let _sealing = Sealing(attempt);
        self.send(attempt);
        self.sent(attempt).await?;
        if let Err(error) = self.complete_uploads(attempt).await {
            return Err(if error.fault == Fault::Missing {
                self.lose(attempt, error).await
            } else {
                error.explain(Operation::Prepare, &attempt.key)
            });
        }
        let mut core = attempt.lock();
        if let Some(kind) = core.refusal() {
            return Err(fail(kind));
        }
        let described = core.table(attempt.n_stored).zip(core.object_content(self.cutting.block_bytes));
        let (table, content) = described.ok_or_else(|| fail(StoreErrorKind::Internal))?;
        let sealed = self.sealed(attempt, table, Content::Objects(content));
        core.prepare(sealed.clone(), None);
        Ok(sealed.manifest.clone())
    }

    /// Checks, stops appends, and cuts what is left; answers the manifest when nothing needs to be
    /// sent.
    fn begin_prepare(&self, attempt: &Attempt, stated: Option<&SubpartitionTable>) -> Result<Option<Arc<SealManifest>>, StoreErrorKind> {
        let mut core = attempt.lock();
        if let Some(kind) = core.refusal() {
            return Err(kind);
        }
        let known = core.sealed().or_else(|| core.prepared().map(|sealed| sealed.manifest.clone()));
        if let Some(manifest) = known {
            check(&manifest.table, stated)?;
            return Ok(Some(manifest));
        }
        let table = core.table(attempt.n_stored).ok_or(StoreErrorKind::Internal)?;
        check(&table, stated)?;
        if core.fits_inline(self.config.inline_bytes) {
            let batch = core.cut_inline(&self.cutting);
            let sealed = self.sealed(attempt, table, inline_content(&batch));
            core.prepare(sealed.clone(), Some(batch));
            return Ok(Some(sealed.manifest.clone()));
        }
        core.set_sealing(true);
        core.cut(&self.cutting, true, || self.new_content(&attempt.key));
        Ok(None)
    }

    /// Waits until every batch is in the store. Ends: each batch is tried a bounded number of times.
    async fn sent(&self, attempt: &Attempt) -> Result<(), StoreError> {
        let mut steps = attempt.watch();
        loop {
            steps.mark_unchanged();
            let failure = {
                let core = attempt.lock();
                if let Some(kind) = core.refusal() {
                    return Err(StoreError::new(kind, Operation::Prepare, &attempt.key));
                }
                if core.is_sent() {
                    return Ok(());
                }
                core.writing.failure.clone().filter(|_| !core.writing.is_pumping)
            };
            match failure {
                Some(error) if error.fault == Fault::Missing && attempt.lock().has_begun_parts() => {
                    return Err(self.lose(attempt, error).await);
                }
                Some(error) => return Err(unavailable(error, attempt)),
                // Fails only when the attempt is gone, and it is borrowed here.
                None => drop(steps.changed().await),
            }
        }
    }

    /// The bytes of an unsealed attempt are gone for good.
    async fn lose(&self, attempt: &Attempt, error: BucketError) -> StoreError {
        let ended = attempt.lock().lose();
        attempt.notify();
        tracing::error!(attempt = %attempt.key, %error, "the object store lost an unfinished upload, and with it the attempt");
        if let Some(ended) = ended
            && let Err(left) = self.erase(&ended.objects, Vec::new()).await
        {
            tracing::warn!(attempt = %attempt.key, error = %left, "content of a lost attempt is left for the sweep of its job");
        }
        StoreError::new(StoreErrorKind::Lost { cause: LossCause::ObjectStore }, Operation::Prepare, &attempt.key).with_source(error)
    }

    /// See [`store_api::PartitionStore::publish`].
    pub(crate) async fn publish(&self, attempt: &Arc<Attempt>) -> Result<SealOutcome, StoreError> {
        let fail = |kind| StoreError::new(kind, Operation::Publish, &attempt.key);
        let _work = attempt.work.lock().await;
        let sealed = {
            let mut core = attempt.lock();
            if let Some(kind) = core.refusal() {
                return Err(fail(kind));
            }
            if let Some(manifest) = core.sealed() {
                return Ok(SealOutcome::Won(manifest));
            }
            core.may_be_published |= core.prepared().is_some();
            core.prepared().ok_or_else(|| fail(StoreErrorKind::NotSealed))?
        };
        match self.put_manifest(attempt, &sealed).await {
            Ok(None) => self.won(attempt, &sealed).await,
            Ok(Some(found)) => self.settle(attempt, &sealed, found).await,
            Err(error) => Err(unavailable_in(error, Operation::Publish, attempt)),
        }
    }

    /// See [`store_api::PartitionStore::abort`]. A publication that was answered with an error may
    /// have happened: then this is the sealed content, which nobody may take away.
    pub(crate) async fn abort(&self, attempt: &Arc<Attempt>) -> Result<(), StoreError> {
        let _work = attempt.work.lock().await;
        let unsettled = {
            let core = attempt.lock();
            if core.state() == AttemptState::Prepared && core.may_be_published { core.prepared() } else { None }
        };
        let mut may_come_late = false;
        if let Some(ours) = unsettled {
            let found = self.bucket.fetch(&attempt.seal_path).await;
            match found.map_err(|error| unavailable_in(error, Operation::Abort, attempt))? {
                Some((bytes, _)) => drop(self.settle(attempt, &ours, bytes).await),
                None => may_come_late = true,
            }
        }
        let ended = {
            let mut core = attempt.lock();
            if core.state() == AttemptState::Sealed {
                return Err(StoreError::new(StoreErrorKind::AlreadySealed, Operation::Abort, &attempt.key));
            }
            core.end(AttemptState::Aborted, None)
        };
        attempt.notify();
        if may_come_late {
            // A manifest that is still on its way would speak of content that is gone.
            tracing::warn!(attempt = %attempt.key, "content of an aborted attempt is left for the sweep of its job: it may turn out sealed");
            return Ok(());
        }
        if let Some(ended) = ended
            && let Err(error) = self.erase(&ended.objects, Vec::new()).await
        {
            tracing::warn!(attempt = %attempt.key, %error, "content of an aborted attempt is left for the sweep of its job");
        }
        Ok(())
    }

    /// Writes the manifest if none is there; answers what is there otherwise.
    async fn put_manifest(&self, attempt: &Attempt, sealed: &Sealed) -> Result<Option<Bytes>, BucketError> {
        let payload = Bytes::from(sealed.encode());
        if self.probed.create == Support::Works {
            match self.bucket.put_create(&attempt.seal_path, payload.into()).await {
                Ok(_) => return Ok(None),
                Err(error) if error.fault == Fault::Exists => {}
                Err(error) => return Err(error),
            }
            let found = self.bucket.fetch(&attempt.seal_path).await?;
            let (bytes, _) = found.ok_or_else(|| BucketError::own(Fault::Passing, "a manifest was there and is not any more"))?;
            return Ok(Some(bytes));
        }
        debug_assert_eq!(self.config.conditional_put, ConditionalPut::Arbitrated, "opening refuses this store otherwise");
        // A coordinator has decided for this attempt: nobody else publishes in this generation.
        if let Some((bytes, _)) = self.bucket.fetch(&attempt.seal_path).await? {
            return Ok(Some(bytes));
        }
        self.bucket.put(&attempt.seal_path, payload.into()).await.map(|_| None)
    }

    async fn won(&self, attempt: &Attempt, sealed: &Arc<Sealed>) -> Result<SealOutcome, StoreError> {
        let manifest = sealed.manifest.clone();
        let refusal = {
            let mut core = attempt.lock();
            let refusal = core.refusal();
            if refusal.is_none() {
                core.seal(manifest.clone(), self.content_paths(sealed));
            }
            refusal
        };
        let Some(kind) = refusal else {
            self.cache.keep(sealed.clone(), self.clock.monotonic());
            return Ok(SealOutcome::Won(manifest));
        };
        // It was released or fenced while the manifest was on its way: that has the last word.
        let released = Record::Released { attempt: Some(attempt.key.attempt) };
        let record = if let StoreErrorKind::Fenced { by } = kind { Record::Fenced { by } } else { released };
        let put = self.bucket.put(&attempt.seal_path, record.encode().into()).await;
        let erased = self.bucket.delete(&self.content_paths(sealed)).await;
        if let Err(error) = put.map(drop).and(erased) {
            tracing::warn!(attempt = %attempt.key, %error, "a seal that came too late is left for the sweep of its job");
        }
        Err(StoreError::new(kind, Operation::Publish, &attempt.key))
    }

    /// Something stands under the name of the seal: our own after a lost reply, a winner, or a
    /// tombstone.
    async fn settle(&self, attempt: &Attempt, ours: &Arc<Sealed>, found: Bytes) -> Result<SealOutcome, StoreError> {
        let record = Record::decode(&found, self.capabilities.class).map_err(|error| {
            let kind = StoreErrorKind::Format { reason: "the manifest of this generation".to_owned() };
            StoreError::new(kind, Operation::Publish, &attempt.key).with_source(error)
        })?;
        let theirs = match record {
            Record::Sealed(theirs) if theirs == **ours => return self.won(attempt, ours).await,
            Record::Sealed(theirs) => Arc::new(theirs),
            Record::Released { .. } => return Err(self.superseded(attempt, AttemptState::Released, None).await),
            Record::Fenced { by } => return Err(self.superseded(attempt, AttemptState::Fenced, Some(by)).await),
        };
        let manifest = theirs.manifest.clone();
        self.cache.keep(theirs.clone(), self.clock.monotonic());
        let is_same = manifest.attempt == attempt.key && manifest.table == ours.manifest.table;
        let ours_in_store = self.content_paths(ours);
        if is_same {
            // The same attempt was sealed by another life or node, with the same bytes.
            let mut core = attempt.lock();
            if core.refusal().is_none() {
                core.seal(manifest.clone(), self.content_paths(&theirs));
            }
        } else {
            attempt.lock().end(AttemptState::Aborted, None);
        }
        attempt.notify();
        if let Err(error) = self.bucket.delete(&ours_in_store).await {
            tracing::warn!(attempt = %attempt.key, %error, "content of a loser is left for the sweep of its job");
        }
        Ok(if is_same { SealOutcome::Won(manifest) } else { SealOutcome::Lost(manifest) })
    }

    async fn superseded(&self, attempt: &Attempt, state: AttemptState, by: Option<store_api::AttemptId>) -> StoreError {
        let (ended, content, kind) = {
            let mut core = attempt.lock();
            let ended = core.end(state, by);
            (ended, core.content(), core.refusal().unwrap_or(StoreErrorKind::Released))
        };
        attempt.notify();
        let objects = ended.map(|ended| ended.objects).unwrap_or_default();
        if let Err(error) = self.erase(&objects, content).await {
            tracing::warn!(attempt = %attempt.key, %error, "content of an ended attempt is left for the sweep of its job");
        }
        StoreError::new(kind, Operation::Publish, &attempt.key)
    }
}

/// While bytes are on their way, "not found" is the bucket and not the attempt.
fn unavailable(error: BucketError, attempt: &Attempt) -> StoreError {
    unavailable_in(error, Operation::Prepare, attempt)
}

fn unavailable_in(error: BucketError, operation: Operation, attempt: &Attempt) -> StoreError {
    if matches!(error.fault, Fault::Missing | Fault::Exists) {
        return StoreError::new(StoreErrorKind::Unavailable { retry_after: RETRY_AFTER }, operation, &attempt.key).with_source(error);
    }
    error.explain(operation, &attempt.key)
}

//! Making content final: prepare, publish, and what is asked about sealed attempts.

use crate::attempt::{Attempt, Life};
use crate::core::Core;
use crate::error::Subject;
use std::sync::Arc;
use store_api::{
    AttemptEvent, AttemptKey, AttemptState, Digest, Operation, PartitionKey, PrepareRequest, SealManifest, SealOutcome, StoreError,
    StoreErrorKind, SubpartitionIndex, SubpartitionTable,
};

impl Core {
    /// See [`store_api::PartitionStore::prepare`].
    pub(crate) fn prepare_seal(&self, request: &PrepareRequest) -> Result<Arc<SealManifest>, StoreError> {
        let subject = Subject::new(Operation::Prepare, &request.attempt);
        self.check_running(Operation::Prepare, &request.attempt)?;
        let attempt = self.registry.live(subject)?;
        attempt.turn(|life| {
            life.check_alive(subject)?;
            life.check_whole(subject)?;
            let manifest = match &life.manifest {
                Some(manifest) => manifest.clone(),
                None => Arc::new(self.manifest_of(&attempt, subject)?),
            };
            if let Some(stated) = &request.expected {
                check_stated(&manifest.table, stated, subject)?;
            }
            life.state = match life.state {
                AttemptState::Sealed => AttemptState::Sealed,
                state => state.after(AttemptEvent::Prepare).map_err(|_| subject.refuse(StoreErrorKind::Internal))?,
            };
            life.manifest = Some(manifest.clone());
            Ok(manifest)
        })
    }

    /// What the attempt holds now; the caller holds its state alone, so no append is half-way.
    fn manifest_of(&self, attempt: &Attempt, subject: Subject<'_>) -> Result<SealManifest, StoreError> {
        let digests = attempt.present().into_iter().map(|(index, subpartition)| {
            let digest = subpartition.ask(|buffer, _| buffer.digest());
            (SubpartitionIndex::new(index), digest)
        });
        let table = SubpartitionTable::new(attempt.spec.stored_subpartitions(), digests);
        let table = table.map_err(|error| subject.refuse(StoreErrorKind::Internal).with_source(error))?;
        Ok(SealManifest {
            attempt: attempt.key.clone(),
            table,
            class: self.capabilities.class,
            node: self.node.clone(),
            life: self.node_life,
            sealed_at_ms: self.clock.unix_ms(),
        })
    }

    /// See [`store_api::PartitionStore::publish`].
    pub(crate) fn publish_seal(&self, key: &AttemptKey) -> Result<SealOutcome, StoreError> {
        let subject = Subject::new(Operation::Publish, key);
        self.check_running(Operation::Publish, key)?;
        let attempt = self.registry.live(subject)?;
        attempt.turn(|life| {
            life.check_alive(subject)?;
            life.check_whole(subject)?;
            let not_prepared = || subject.refuse(StoreErrorKind::NotSealed);
            life.state = life.state.after(AttemptEvent::Publish).map_err(|_| not_prepared())?;
            life.manifest.clone().map(SealOutcome::Won).ok_or_else(not_prepared)
        })
    }

    /// See [`store_api::PartitionStore::manifest`].
    pub(crate) fn sealed_manifest(&self, key: &AttemptKey) -> Result<Arc<SealManifest>, StoreError> {
        let subject = Subject::new(Operation::Stat, key);
        self.check_running(Operation::Stat, key)?;
        let attempt = self.registry.live(subject)?;
        let life = attempt.life();
        life.check_alive(subject)?;
        life.check_whole(subject)?;
        sealed(&life).ok_or_else(|| subject.refuse(StoreErrorKind::NotSealed))
    }

    /// See [`store_api::PartitionStore::locate`]. With an engine as arbiter several attempts may be
    /// sealed; the newest is answered.
    pub(crate) fn find_sealed(&self, partition: &PartitionKey, from_generation: u32) -> Result<Option<Arc<SealManifest>>, StoreError> {
        self.check_running(Operation::Stat, partition)?;
        let attempts = self.registry.of_partition(partition);
        let at_or_above = attempts.iter().rev().take_while(|attempt| attempt.key.attempt.generation >= from_generation);
        Ok(at_or_above.into_iter().find_map(|attempt| sealed(&attempt.life())))
    }
}

fn sealed(life: &Life) -> Option<Arc<SealManifest>> {
    if life.state == AttemptState::Sealed { life.manifest.clone() } else { None }
}

/// Compares what the writer states with what is held, and names the first subpartition that
/// differs.
fn check_stated(held: &SubpartitionTable, stated: &SubpartitionTable, subject: Subject<'_>) -> Result<(), StoreError> {
    let of = |table: &SubpartitionTable, index| table.digest(index).unwrap_or(Digest::EMPTY);
    let indices = held.non_empty().chain(stated.non_empty()).map(|(index, _)| index);
    let first = indices.filter(|index| of(held, *index) != of(stated, *index)).min();
    if let Some(index) = first {
        let kind = StoreErrorKind::DigestMismatch { subpartition: index.get(), held: of(held, index), stated: of(stated, index) };
        return Err(subject.refuse_at(kind, index));
    }
    if stated.count() == held.count() { Ok(()) } else { Err(subject.refuse(StoreErrorKind::NoSuchSubpartition { count: held.count() })) }
}

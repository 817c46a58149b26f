//! Seals: prepare → decide → publish → record → answer.
//!
//! ```text
//!   prepare    the store checks what was stated and makes the content final and durable, not visible
//!   decide     the arbiter picks one attempt per (partition, generation); a shared medium does so itself
//!   publish    the store makes the content visible
//!   record     the registry names the winner, the event goes out, other attempts are aborted
//! ```
//! A seal that has begun runs to its end in the task group, whether its client stays or not. Repeats
//! that come meanwhile wait for it; repeats that come later get the same answer.

use super::calls::{AttemptAddress, EventKind, ManifestView, SealReply, StatedContent};
use super::error::{DEFAULT_RETRY, ServiceError, ServiceErrorKind, ServiceResult};
use super::events::Subject;
use super::registry::{Dataset, LiveAttempt};
use super::{PartitionService, WriteGuard};
use std::sync::Arc;
use std::time::Duration;
use store_api::{
    AttemptId, AttemptKey, AttemptState, Crc32c, Digest, NodeLife, Offset, PartitionId, PrepareRequest, ReleaseScope, SealManifest,
    SealOutcome, SharedStore, StoreErrorKind, SubpartitionIndex, SubpartitionTable,
};
use tokio::sync::watch;

/// First wait before the arbiter is asked again.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// Longest wait before the arbiter is asked again.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

type Outcome = Arc<Result<SealReply, ServiceErrorKind>>;

/// The seal of an attempt that runs now.
#[derive(Default)]
pub(super) struct SealSlot {
    running: Option<Running>,
}

#[derive(Clone)]
struct Running {
    stated: Arc<Option<StatedContent>>,
    outcome: watch::Receiver<Option<Outcome>>,
}

/// What the writer stated, against the dataset: complete digests, or lengths alone.
enum Stated {
    Nothing,
    Lengths(Vec<(SubpartitionIndex, u64)>),
    Digests(Arc<SubpartitionTable>),
}

impl Stated {
    /// Errors: `BadRequest`, `UnknownPartition`.
    fn new(stated: Option<&StatedContent>, dataset: &Dataset) -> ServiceResult<Self> {
        let Some(stated) = stated else { return Ok(Self::Nothing) };
        let count = dataset.spec.stored_subpartitions();
        let refuse = |reason: &str| Err(ServiceError::bad_request(reason));
        let n_stated = stated.indices.as_ref().map_or(count as usize, Vec::len);
        if stated.lengths.len() != n_stated || stated.crcs.as_ref().is_some_and(|crcs| crcs.len() != n_stated) {
            return refuse("the lists of a seal have one entry per subpartition that they speak of");
        }
        let indices: Vec<SubpartitionIndex> = match &stated.indices {
            Some(indices) => indices.iter().copied().map(SubpartitionIndex::new).collect(),
            None => (0..count).map(SubpartitionIndex::new).collect(),
        };
        if indices.array_windows::<2>().any(|[one, two]| one >= two) {
            return refuse("the indices of a seal ascend");
        }
        if indices.last().is_some_and(|last| last.get() >= count) {
            return Err(ServiceErrorKind::UnknownPartition.into());
        }
        let lengths = indices.into_iter().zip(stated.lengths.iter().copied());
        let Some(crcs) = &stated.crcs else { return Ok(Self::Lengths(lengths.collect())) };
        if lengths.clone().zip(crcs).any(|((_, length), crc)| length == 0 && *crc != Crc32c::default()) {
            return refuse("the checksum of no bytes is 0");
        }
        let entries = lengths.zip(crcs).map(|((index, length), crc)| (index, Digest { length, crc: *crc }));
        let table = SubpartitionTable::new(count, entries).map_err(|error| ServiceError::bad_request(error.to_string()))?;
        Ok(Self::Digests(Arc::new(table)))
    }

    /// Errors: `DigestMismatch` with the first subpartition that differs.
    fn check(&self, table: &SubpartitionTable) -> ServiceResult<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Digests(stated) if **stated == *table => Ok(()),
            Self::Digests(stated) => {
                let differs = |index: &SubpartitionIndex| stated.digest(*index) != table.digest(*index);
                let named = stated.non_empty().chain(table.non_empty()).map(|(index, _)| index);
                let first = named.filter(differs).min().unwrap_or(SubpartitionIndex::new(0));
                let text = |digest: Option<Digest>| digest.map_or_else(|| "nothing".to_owned(), |digest| digest.to_string());
                let (held, stated) = (text(table.digest(first)), text(stated.digest(first)));
                Err(mismatch(first, format!("subpartition {first} holds {held}, {stated} was stated")))
            }
            Self::Lengths(lengths) => check_lengths(lengths, table.non_empty().map(|(index, digest)| (index, digest.length))),
        }
    }
}

fn mismatch(first: SubpartitionIndex, detail: String) -> ServiceError {
    ServiceErrorKind::DigestMismatch { subpartition: first.get(), detail }.into()
}

/// Compares stated lengths with those held; both in ascending order, those held without zeros.
fn check_lengths(stated: &[(SubpartitionIndex, u64)], held: impl Iterator<Item = (SubpartitionIndex, u64)>) -> ServiceResult<()> {
    let mut stated = stated.iter().copied().filter(|(_, length)| *length > 0);
    let mut held = held.filter(|(_, length)| *length > 0);
    loop {
        let (one, two) = (stated.next(), held.next());
        if one == two {
            if one.is_none() {
                return Ok(());
            }
            continue;
        }
        let empty = |index, length| (index, format!("subpartition {index} is empty, {length} bytes were stated"));
        let (first, detail) = match (one, two) {
            (Some((index, length)), Some((held_index, _))) if index < held_index => empty(index, length),
            (Some((index, length)), Some((held_index, held))) if index == held_index => {
                (index, format!("subpartition {index} holds {held} bytes, {length} were stated"))
            }
            (Some((index, length)), None) => empty(index, length),
            (_, Some((index, held))) => (index, format!("subpartition {index} holds {held} bytes, none were stated")),
            (None, None) => return Ok(()),
        };
        return Err(mismatch(first, detail));
    }
}

/// What the registry says of an attempt that is to be sealed.
enum Standing {
    Live(Arc<LiveAttempt>),
    Sealed,
    Lost(AttemptId),
}

impl PartitionService {
    /// For [`Self::seal`]. Errors: those of [`Self::admit_dataset`], `UnknownPartition`,
    /// `LifeRequired`, `Fenced`, `UnknownAttempt`, `Aborted`, `Lost`.
    pub async fn admit_seal(&self, at: &AttemptAddress, life: Option<NodeLife>) -> ServiceResult<()> {
        self.check_life(life)?;
        let (_, dataset) = self.find_partition(&at.partition).await?;
        standing(&dataset, at.partition.partition, at.attempt).map(|_| ())
    }

    /// Seals an attempt.
    ///
    /// On success the content is final, durable as its class promises, and readable. The first valid
    /// seal of a generation wins; a later one, with arbitration by the store, is answered `OtherWon`
    /// with the winner's manifest, and its own bytes are given back. Of a subpartition that starts
    /// above 0, length and checksum are those of the bytes from its start to its end. With arbitration by the engine
    /// every seal wins. `stated` is checked against what is held before anything is final; without
    /// checksums only lengths are. Idempotent: a repeat, also after a restart, gets the same
    /// manifest; one that states other content gets `DigestMismatch`. The caller may leave: a seal
    /// that has begun runs to its end. Errors: `LifeRequired`, `Fenced`, `DigestMismatch`,
    /// `BadRequest`, `UnknownAttempt`, `Aborted`, `Released`, `Expired`, `Lost`, `DiskFull`,
    /// `Unavailable` (store or arbiter; what was prepared is kept, repeat it).
    pub async fn seal(
        self: &Arc<Self>,
        at: &AttemptAddress,
        life: Option<NodeLife>,
        stated: Option<StatedContent>,
    ) -> ServiceResult<SealReply> {
        self.check_life(life)?;
        let (job, dataset) = self.find_partition(&at.partition).await?;
        let checked = Stated::new(stated.as_ref(), &dataset)?;
        let stated = Arc::new(stated);
        let partition = at.partition.partition;
        loop {
            let (running, is_mine) = match standing(&dataset, partition, at.attempt)? {
                Standing::Sealed => {
                    let manifest = self.manifest_at(&job, &dataset, partition, at.attempt).await?;
                    checked.check(&manifest.table)?;
                    return Ok(SealReply::Won(self.manifest_view(manifest)));
                }
                Standing::Lost(winner) => {
                    let manifest = self.manifest_at(&job, &dataset, partition, winner).await?;
                    return Ok(SealReply::OtherWon(self.manifest_view(manifest)));
                }
                Standing::Live(live) => self.join_or_begin(&live, &stated),
            };
            let Some(outcome) = wait_for(running).await else {
                return Err(ServiceErrorKind::Closing.into());
            };
            match &*outcome {
                Ok(SealReply::Won(view)) => {
                    checked.check(&view.manifest.table)?;
                    return Ok(SealReply::Won(view.clone()));
                }
                Ok(reply @ SealReply::OtherWon(_)) => return Ok(reply.clone()),
                // It lost while it was prepared: the next look finds the winner.
                Err(ServiceErrorKind::OtherAttemptWon { .. }) => {}
                Err(kind) if is_mine => return Err(kind.clone().into()),
                // Another call's seal failed, perhaps because of what it stated: look again.
                Err(_) => {}
            }
        }
    }

    /// Joins the seal that runs, or begins one. Answers whether it is of what this call stated.
    fn join_or_begin(self: &Arc<Self>, live: &Arc<LiveAttempt>, stated: &Arc<Option<StatedContent>>) -> (Running, bool) {
        let mut slot = live.seal.lock();
        if let Some(running) = &slot.running {
            return (running.clone(), running.stated == *stated);
        }
        let (sender, outcome) = watch::channel(None);
        let running = Running { stated: stated.clone(), outcome };
        slot.running = Some(running.clone());
        drop(slot);
        let (service, live, stated) = (self.clone(), live.clone(), stated.clone());
        let guard = WriteGuard::new(&self.n_writes);
        self.tasks.spawn_to_end(async move {
            let outcome = match Stated::new(stated.as_ref().as_ref(), &live.dataset) {
                Ok(stated) => service.run_seal(&live, &stated).await,
                Err(error) => Err(error),
            };
            if let Err(error) = &outcome {
                tracing::info!(attempt = %live.key, ?error, "seal was refused");
            }
            live.seal.lock().running = None;
            sender.send_replace(Some(Arc::new(outcome.map_err(|error| error.kind().clone()))));
            drop(guard);
        });
        (running, true)
    }

    async fn run_seal(self: &Arc<Self>, live: &Arc<LiveAttempt>, stated: &Stated) -> ServiceResult<SealReply> {
        let store = live.dataset.store()?;
        let manifest = self.prepare(live, store, stated).await?;
        if live.dataset.has_one_winner() && !is_arbitrated_by_medium(store) {
            let winner = self.decide(live).await?;
            if winner != live.key.attempt {
                return self.lose(live, store, winner).await;
            }
        }
        match store.publish(&live.key).await {
            Ok(SealOutcome::Won(manifest)) => self.win(live, store, manifest).await,
            Ok(SealOutcome::Lost(winner)) => {
                self.note_found(&live.job, &live.dataset, &winner);
                self.end_as_loser(live);
                self.counters.seals_lost.add(1);
                Ok(SealReply::OtherWon(self.manifest_view(winner)))
            }
            Err(error) => {
                let is_over = matches!(error.kind(), StoreErrorKind::Aborted | StoreErrorKind::Lost { .. } | StoreErrorKind::NotFound);
                if is_over {
                    self.arbiter.withdraw(&manifest.attempt.partition, live.key.attempt);
                }
                Err(self.refine(live, error.into()))
            }
        }
    }

    async fn prepare(&self, live: &LiveAttempt, store: &SharedStore, stated: &Stated) -> ServiceResult<Arc<SealManifest>> {
        let expected = match stated {
            Stated::Digests(table) => Some(table.clone()),
            Stated::Lengths(lengths) => {
                let held = store.tails(&live.key).await.map_err(|error| self.refine(live, error.into()))?;
                let length = |(index, tail): (SubpartitionIndex, Offset)| (index, tail.since(super::read::offset_of(&live.starts, index)));
                check_lengths(lengths, held.tails.into_iter().map(length))?;
                None
            }
            Stated::Nothing => None,
        };
        let request = PrepareRequest { attempt: live.key.clone(), expected };
        let manifest = match store.prepare(request).await {
            Ok(manifest) => manifest,
            Err(error) => {
                if matches!(error.kind(), StoreErrorKind::Lost { .. }) {
                    // Never visible, so nothing of the partition is lost: another attempt may follow.
                    self.end_as_loser(live);
                }
                return Err(self.refine(live, error.into()));
            }
        };
        // Bytes that came between the look and the seal are inside; they were not stated.
        stated.check(&manifest.table)?;
        Ok(manifest)
    }

    /// Asks the arbiter until it answers. Errors: `Unavailable` when the patience has run out.
    async fn decide(&self, live: &LiveAttempt) -> ServiceResult<AttemptId> {
        let location = &self.node.location;
        let deadline = self.clock.monotonic().saturating_add(self.config.seal_patience);
        let mut wait = FIRST_WAIT;
        loop {
            let decided = self.arbiter.decide(&live.key.partition, live.key.attempt, &location.node, location.life).await;
            match decided {
                Ok(winner) => return Ok(winner),
                Err(error) if self.clock.monotonic() >= deadline || self.tasks.is_cancelled() => {
                    return Err(ServiceError::new(ServiceErrorKind::Unavailable { retry_after: DEFAULT_RETRY }).with_source(error));
                }
                Err(_) => self.clock.sleep(wait).await,
            }
            wait = wait.saturating_mul(2).min(LONGEST_WAIT);
        }
    }

    /// The content is visible: enters it, tells of it, and ends the other attempts.
    async fn win(self: &Arc<Self>, live: &Arc<LiveAttempt>, store: &SharedStore, manifest: Arc<SealManifest>) -> ServiceResult<SealReply> {
        let (dataset, id) = (&live.dataset, live.key.attempt);
        let alive = live.job.check_live().and_then(|()| dataset.check_live());
        let losers = match alive.and_then(|()| enter_winner(live, manifest.table.total_bytes())) {
            Ok(losers) => losers,
            Err(error) => {
                // Released, expired, fenced or aborted while it was being sealed: take it back.
                self.release_or_put_off(dataset.spec.kind.class(), ReleaseScope::Attempt(live.key.clone())).await;
                return Err(error);
            }
        };
        self.counters.seals_won.add(1);
        self.counters.sealed_bytes.add(manifest.table.total_bytes());
        let subject = Subject {
            dataset: Some(dataset.key.dataset.clone()),
            partition: Some(live.key.partition.partition),
            attempt: Some(id),
            location: Some(self.node.location.clone()),
        };
        live.job.events.push(EventKind::Sealed, subject);
        for loser in losers {
            self.abort_in_background(store, loser);
        }
        Ok(SealReply::Won(self.manifest_view(manifest)))
    }

    fn abort_in_background(&self, store: &SharedStore, loser: AttemptKey) {
        self.counters.attempts_aborted.add(1);
        let store = store.clone();
        self.tasks.spawn_to_end(async move {
            match store.abort(&loser).await {
                Err(error) if !matches!(error.kind(), StoreErrorKind::AlreadySealed | StoreErrorKind::Closing) => {
                    tracing::warn!(attempt = %loser, %error, "attempt that lost could not be aborted; its job's end gives it back");
                }
                Err(_) | Ok(()) => {}
            }
        });
    }

    /// The arbiter picked another attempt: ends this one and answers that one's manifest.
    async fn lose(&self, live: &Arc<LiveAttempt>, store: &SharedStore, winner: AttemptId) -> ServiceResult<SealReply> {
        let manifest = self.winner_manifest(live, store, winner).await?;
        store.abort(&live.key).await.map_err(|error| self.refine(live, error.into()))?;
        self.end_as_loser(live);
        self.counters.seals_lost.add(1);
        Ok(SealReply::OtherWon(self.manifest_view(manifest)))
    }

    fn end_as_loser(&self, live: &LiveAttempt) {
        super::attempt::end_attempt(&live.dataset, live.key.partition.partition, live.key.attempt, AttemptState::Aborted);
    }

    /// The manifest of the attempt that was picked, which may be about to be published. Errors:
    /// `Unavailable` when it does not become visible in time; the loser stays prepared.
    async fn winner_manifest(&self, live: &LiveAttempt, store: &SharedStore, winner: AttemptId) -> ServiceResult<Arc<SealManifest>> {
        let key = live.key.partition.attempt(winner);
        let deadline = self.clock.monotonic().saturating_add(self.config.seal_patience);
        loop {
            let running = {
                let partitions = live.dataset.partitions.read();
                let known = partitions.get(&live.key.partition.partition.get());
                let other = known.and_then(|known| known.attempt(winner.attempt)).and_then(|attempt| attempt.live.clone());
                other.and_then(|other| other.seal.lock().running.clone())
            };
            match store.manifest(&key).await {
                Ok(manifest) => return Ok(manifest),
                Err(error) if self.clock.monotonic() >= deadline || (running.is_none() && !is_pending(error.kind())) => {
                    let kind = ServiceErrorKind::Unavailable { retry_after: DEFAULT_RETRY };
                    return Err(ServiceError::new(kind).with_source(error));
                }
                Err(_) => {}
            }
            let left = deadline.saturating_sub(self.clock.monotonic());
            match running {
                Some(running) => {
                    store_api::clock::within(self.clock.as_ref(), left, wait_for(running)).await;
                }
                None => self.clock.sleep(FIRST_WAIT.min(left)).await,
            }
        }
    }

    pub(super) fn manifest_view(&self, manifest: Arc<SealManifest>) -> ManifestView {
        ManifestView { manifest, location: self.node.location.clone() }
    }
}

/// Whether a manifest may still come.
const fn is_pending(kind: &StoreErrorKind) -> bool {
    matches!(kind, StoreErrorKind::NotSealed | StoreErrorKind::Unavailable { .. })
}

/// Stores whose medium several nodes share decide at publication.
fn is_arbitrated_by_medium(store: &SharedStore) -> bool {
    store.capabilities().class.class == store_api::StoreClass::Durable
}

async fn wait_for(mut running: Running) -> Option<Outcome> {
    running.outcome.wait_for(Option::is_some).await.ok()?.clone()
}

fn standing(dataset: &Dataset, partition: PartitionId, id: AttemptId) -> ServiceResult<Standing> {
    super::attempt::peek(dataset, partition, |known| {
        match known.refusal(dataset, id) {
            Some(error) if matches!(error.kind(), ServiceErrorKind::OtherAttemptWon { .. }) => {}
            Some(error) => return Err(error),
            None => {}
        }
        let unknown = || ServiceError::new(ServiceErrorKind::UnknownAttempt);
        let attempt = known.attempt(id.attempt).filter(|_| id.generation == known.generation).ok_or_else(unknown)?;
        if attempt.state == AttemptState::Sealed {
            return Ok(Standing::Sealed);
        }
        if dataset.has_one_winner()
            && let Some(winner) = known.sealed()
        {
            return Ok(Standing::Lost(known.id(winner)));
        }
        attempt.live.clone().map(Standing::Live).ok_or_else(unknown)
    })
}

/// Enters a sealed attempt; answers those that it ends. Errors: what has happened to it meanwhile.
fn enter_winner(live: &LiveAttempt, bytes: u64) -> ServiceResult<Vec<AttemptKey>> {
    let (dataset, id) = (&live.dataset, live.key.attempt);
    let mut partitions = dataset.partitions.write();
    let known = partitions.get_mut(&live.key.partition.partition.get()).ok_or(ServiceErrorKind::UnknownAttempt)?;
    if let Some(refusal) = known.refusal(dataset, id) {
        return Err(refusal);
    }
    let has_one_winner = dataset.has_one_winner();
    let attempt = known.attempt_mut(id.attempt).ok_or(ServiceErrorKind::UnknownAttempt)?;
    if attempt.state != AttemptState::Sealed {
        attempt.state = AttemptState::Sealed;
        attempt.bytes = bytes;
        attempt.live = None;
        dataset.count_sealed(bytes);
    }
    let mut losers = Vec::new();
    if has_one_winner {
        let generation = known.generation;
        for other in known.attempts.iter_mut().filter(|other| matches!(other.state, AttemptState::Open | AttemptState::Prepared)) {
            other.state = AttemptState::Aborted;
            other.live = None;
            losers.push(live.key.partition.attempt(AttemptId::new(generation, other.number)));
        }
    }
    known.attempts.shrink_to_fit();
    Ok(losers)
}

#[cfg(test)]
mod unit {
    use super::*;

    fn lengths(pairs: &[(u32, u64)]) -> Vec<(SubpartitionIndex, u64)> {
        pairs.iter().map(|(index, length)| (SubpartitionIndex::new(*index), *length)).collect()
    }

    #[test]
    fn lengths_are_compared_without_regard_to_empty_subpartitions() {
        let stated = lengths(&[(0, 0), (1, 5), (2, 0), (3, 7)]);
        assert!(check_lengths(&stated, lengths(&[(1, 5), (3, 7)]).into_iter()).is_ok());
        let wrong = [(&[(1, 5)][..], 3), (&[(1, 4), (3, 7)], 1), (&[(0, 1), (1, 5), (3, 7)], 0), (&[(1, 5), (3, 7), (4, 1)], 4), (&[], 1)];
        for (held, first) in wrong {
            let refused = check_lengths(&stated, lengths(held).into_iter()).unwrap_err();
            assert!(matches!(refused.kind(), ServiceErrorKind::DigestMismatch { subpartition, .. } if *subpartition == first), "{held:?}");
        }
    }
}

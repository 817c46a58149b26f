//! The suite notices wrong stores. Each mutant is the model with one defect, as they happen in the
//! field; the cases named beside it must fail. That they pass without it, `model_passes.rs` shows.
#![expect(clippy::expect_used, reason = "a name that is not in the list of cases is a failed test")]

use async_trait::async_trait;
use forebay_store_testkit::model_store::{ModelProfile, ModelStore};
use forebay_store_testkit::suite::{cases, run_shared};
use forebay_store_testkit::{Instance, StoreFactory};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use store_api::{
    AcknowledgeRequest, AppendAck, AppendRequest, AttemptKey, AttemptStat, AttemptTails, Capabilities, CheckpointRequest, Chunk,
    DatasetKind, DatasetSpec, FetchEvent, FloorReport, HeldBytes, JobId, JobIncarnation, Offset, OpenRequest, PartitionKey, PartitionStore,
    Permit, PrepareRequest, ReadMode, ReadRequest, ReadStream, RecoveryReport, ReleaseReport, ReleaseScope, Retention, SealManifest,
    SealOutcome, StoreError, StoreErrorKind, SubpartitionBounds, SubpartitionIndex, SystemClock,
};

/// What is wrong with a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defect {
    AcceptsGaps,
    AppendsRepeats,
    TakesOtherBytes,
    LosesAppends,
    LosesAppendsDuringTheSeal,
    CutsLargeChunks,
    MixesSubpartitions,
    ServesReleased,
    ForgetsToFence,
    ReadsShort,
    ReadsOneTooMany,
    WrapsTheHighestOffset,
    BelievesTheWriter,
    ShowsPrepared,
    TwoWinners,
    MixesAttempts,
    KeepsAborted,
    KeepsMemoryOfRefusals,
    WaitsForWhatNeverComes,
    KeepsMemoryOfCallersThatLeft,
    RevivesReleased,
    ForgetsAtTheSecondReopen,
    StopsABatchAtTheFirstFailure,
    MissesWakeUps,
    EndsCutReadsPolitely,
    FloorOfTheFastestGroup,
    SkipsOverTheFloor,
    TakesHalfAnAcknowledgement,
    AnotherManifestEachTime,
    HoldsAFewBytes,
}

/// A model store with a defect.
struct Mutant {
    inner: Arc<ModelStore>,
    defect: Defect,
    n_appends: Mutex<u64>,
    manifests: Mutex<BTreeMap<AttemptKey, u64>>,
    kept: Mutex<Vec<Permit>>,
}

impl Mutant {
    fn of(inner: Arc<ModelStore>, defect: Defect) -> Arc<Self> {
        Arc::new(Self { inner, defect, n_appends: Mutex::default(), manifests: Mutex::default(), kept: Mutex::default() })
    }

    fn is(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    async fn tail_of(&self, attempt: &AttemptKey, index: SubpartitionIndex) -> Offset {
        let tails = self.inner.tails(attempt).await.map(|found| found.tails).unwrap_or_default();
        tails.into_iter().find(|(at, _)| *at == index).map_or(Offset::ZERO, |(_, tail)| tail)
    }

    async fn spoil_pieces(&self, request: &mut AppendRequest) {
        let attempt = request.attempt.clone();
        for piece in &mut request.pieces {
            let tail = self.tail_of(&attempt, piece.subpartition).await;
            let start = piece.start.unwrap_or(tail);
            let is_gap = start > tail && start.get() < u64::MAX;
            let is_repeat = start < tail && start.checked_add(piece.chunk.length()).is_some_and(|end| end <= tail);
            if (self.is(Defect::AcceptsGaps) && is_gap) || (self.is(Defect::AppendsRepeats) && is_repeat) {
                piece.start = None;
            }
            if self.is(Defect::CutsLargeChunks) && piece.chunk.length() > 1 << 20 {
                piece.chunk = Chunk::new(piece.chunk.bytes().slice(..1 << 20));
            }
            if self.is(Defect::MixesSubpartitions) {
                piece.subpartition = SubpartitionIndex::new(piece.subpartition.get() % 1024);
            }
        }
    }

    fn spoil_read(&self, request: &mut ReadRequest) {
        if self.is(Defect::WrapsTheHighestOffset) && request.start.get() == u64::MAX {
            request.start = Offset::ZERO;
        }
        if self.is(Defect::ReadsOneTooMany) {
            request.end = request.end.and_then(|end| end.checked_add(1));
        }
        if self.is(Defect::MixesAttempts) && request.attempt.attempt.attempt == 1 {
            request.attempt.attempt.attempt = 0;
        }
    }

    async fn read_as_told(&self, request: ReadRequest) -> Result<ReadStream, StoreError> {
        if let (true, ReadMode::Tail { wait }) = (self.is(Defect::MissesWakeUps), request.mode) {
            return self.read_half_asleep(request, wait).await;
        }
        let stream = self.inner.read(request.clone()).await;
        match stream {
            Err(error) if self.is(Defect::SkipsOverTheFloor) => {
                let StoreErrorKind::BelowFloor { floor } = error.kind() else { return Err(error) };
                self.inner.read(ReadRequest { start: *floor, ..request }).await
            }
            Ok(stream) if self.is(Defect::ReadsShort) && stream.end.is_some_and(|end| end.since(stream.start) > 65_536) => {
                let chunks = stream.chunks.take(1).boxed();
                Ok(ReadStream { chunks, ..stream })
            }
            Ok(stream) if self.is(Defect::EndsCutReadsPolitely) => {
                let chunks = stream.chunks.take_while(|next| std::future::ready(next.is_ok())).boxed();
                Ok(ReadStream { chunks, ..stream })
            }
            other => other,
        }
    }

    /// Looks once; if nothing is there, looks again only when the whole wait is over.
    async fn read_half_asleep(&self, request: ReadRequest, wait: Duration) -> Result<ReadStream, StoreError> {
        let once = ReadMode::Tail { wait: Duration::ZERO };
        let first = self.inner.read(ReadRequest { mode: once, ..request.clone() }).await?;
        let (start, end) = (first.start, first.end);
        let taken: Vec<_> = first.chunks.collect().await;
        let length: u64 = taken.iter().flatten().map(|bytes| bytes.len() as u64).sum();
        let rest = ReadRequest { start: Offset::new(request.start.get() + length), ..request };
        let inner = self.inner.clone();
        let later = stream::once(async move {
            SystemClock::shared().sleep(wait).await;
            inner.read(rest).await.map_or_else(|error| stream::iter([Err(error)]).boxed(), |stream| stream.chunks)
        });
        Ok(ReadStream { start, end, digest: None, chunks: stream::iter(taken).chain(later.flatten()).boxed() })
    }

    fn spoil_manifest(&self, manifest: Arc<SealManifest>) -> Arc<SealManifest> {
        if !self.is(Defect::AnotherManifestEachTime) {
            return manifest;
        }
        let mut manifests = self.manifests.lock();
        let count = manifests.entry(manifest.attempt.clone()).or_default();
        *count += 1;
        Arc::new(SealManifest { sealed_at_ms: *count, ..SealManifest::clone(&manifest) })
    }
}

#[async_trait]
impl PartitionStore for Mutant {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn held(&self, job: &JobId, incarnation: JobIncarnation) -> HeldBytes {
        let held = self.inner.held(job, incarnation);
        if self.is(Defect::HoldsAFewBytes) { HeldBytes { disk: 7, ..held } } else { held }
    }

    async fn open(&self, request: OpenRequest) -> Result<AttemptTails, StoreError> {
        self.inner.open(request).await
    }

    async fn reserve(&self, attempt: &AttemptKey, bytes: u64, patience: Duration) -> Result<Permit, StoreError> {
        let granted = self.inner.reserve(attempt, bytes, patience).await;
        if self.is(Defect::WaitsForWhatNeverComes)
            && let Err(error) = &granted
            && matches!(error.kind(), StoreErrorKind::TooLarge { .. })
            && bytes < u64::MAX
        {
            SystemClock::shared().sleep(patience).await;
        }
        if self.is(Defect::KeepsMemoryOfCallersThatLeft) && granted.is_ok() {
            let leaving = scopeguard(granted.map_err(|_| ()).ok(), |permit| self.kept.lock().push(permit));
            tokio::task::yield_now().await;
            return leaving.defuse().ok_or_else(|| StoreError::new(StoreErrorKind::Internal, store_api::Operation::Reserve, attempt));
        }
        granted
    }

    async fn append(&self, mut request: AppendRequest) -> Result<AppendAck, StoreError> {
        self.spoil_pieces(&mut request).await;
        let attempt = request.attempt.clone();
        let last = request.pieces.last().map(|piece| (piece.start, piece.chunk.length(), piece.subpartition));
        *self.n_appends.lock() += 1;
        if self.is(Defect::LosesAppends) && self.n_appends.lock().is_multiple_of(7) {
            let pretended = last.and_then(|(start, length, _)| start?.checked_add(length)).unwrap_or_default();
            return Ok(AppendAck { end: pretended, new_bytes: last.map_or(0, |(_, length, _)| length) });
        }
        if self.is(Defect::KeepsMemoryOfRefusals) {
            return self.append_and_keep(request).await;
        }
        let answer = self.inner.append(request).await;
        match answer {
            Err(error) if self.is(Defect::TakesOtherBytes) && matches!(error.kind(), StoreErrorKind::ContentMismatch { .. }) => {
                let end = self.tail_of(&attempt, last.map_or(SubpartitionIndex::new(0), |(_, _, index)| index)).await;
                Ok(AppendAck { end, new_bytes: 0 })
            }
            Err(error) if self.is(Defect::LosesAppendsDuringTheSeal) && matches!(error.kind(), StoreErrorKind::AlreadySealed) => {
                let n_appends = *self.n_appends.lock();
                if n_appends.is_multiple_of(2) { Ok(AppendAck { end: Offset::ZERO, new_bytes: 0 }) } else { Err(error) }
            }
            other => other,
        }
    }

    async fn tails(&self, attempt: &AttemptKey) -> Result<AttemptTails, StoreError> {
        self.inner.tails(attempt).await
    }

    async fn bounds(&self, attempt: &AttemptKey, subpartition: SubpartitionIndex) -> Result<SubpartitionBounds, StoreError> {
        self.inner.bounds(attempt, subpartition).await
    }

    async fn prepare(&self, mut request: PrepareRequest) -> Result<Arc<SealManifest>, StoreError> {
        if self.is(Defect::BelievesTheWriter) {
            request.expected = None;
        }
        let attempt = request.attempt.clone();
        let manifest = self.inner.prepare(request).await?;
        if self.is(Defect::ShowsPrepared) {
            self.inner.publish(&attempt).await?;
        }
        Ok(self.spoil_manifest(manifest))
    }

    async fn publish(&self, attempt: &AttemptKey) -> Result<SealOutcome, StoreError> {
        Ok(match self.inner.publish(attempt).await? {
            SealOutcome::Lost(manifest) if self.is(Defect::TwoWinners) => SealOutcome::Won(manifest),
            SealOutcome::Won(manifest) => SealOutcome::Won(self.spoil_manifest(manifest)),
            lost @ SealOutcome::Lost(_) => lost,
        })
    }

    async fn abort(&self, attempt: &AttemptKey) -> Result<(), StoreError> {
        if self.is(Defect::KeepsAborted) {
            return Ok(());
        }
        self.inner.abort(attempt).await
    }

    async fn read(&self, mut request: ReadRequest) -> Result<ReadStream, StoreError> {
        self.spoil_read(&mut request);
        self.read_as_told(request).await
    }

    fn fetch(&self, items: Vec<ReadRequest>) -> BoxStream<'static, FetchEvent> {
        let events = self.inner.fetch(items);
        if !self.is(Defect::StopsABatchAtTheFirstFailure) {
            return events;
        }
        let until_failure = events.scan(false, |is_over, event| {
            let next = (!*is_over).then_some(event);
            *is_over |= matches!(next, Some(FetchEvent::Failed { .. }));
            std::future::ready(next)
        });
        until_failure.boxed()
    }

    async fn stat(&self, attempt: &AttemptKey) -> Result<AttemptStat, StoreError> {
        self.inner.stat(attempt).await
    }

    async fn manifest(&self, attempt: &AttemptKey) -> Result<Arc<SealManifest>, StoreError> {
        self.inner.manifest(attempt).await
    }

    async fn locate(
        &self,
        partition: &PartitionKey,
        spec: &DatasetSpec,
        from_generation: u32,
    ) -> Result<Option<Arc<SealManifest>>, StoreError> {
        self.inner.locate(partition, spec, from_generation).await
    }

    async fn acknowledge(&self, request: AcknowledgeRequest) -> Result<FloorReport, StoreError> {
        if self.is(Defect::FloorOfTheFastestGroup) {
            let other = forebay_store_testkit::scenario::group(if request.group.as_str() == "g" { "h" } else { "g" });
            let _ = self.inner.acknowledge(AcknowledgeRequest { group: other, ..request.clone() }).await;
        }
        if self.is(Defect::TakesHalfAnAcknowledgement) {
            for one in &request.offsets {
                self.inner.acknowledge(AcknowledgeRequest { offsets: vec![*one], ..request.clone() }).await?;
            }
        }
        self.inner.acknowledge(request).await
    }

    async fn complete_checkpoint(&self, request: CheckpointRequest) -> Result<FloorReport, StoreError> {
        self.inner.complete_checkpoint(request).await
    }

    async fn release(&self, scope: ReleaseScope) -> Result<ReleaseReport, StoreError> {
        let is_fence = matches!(scope, ReleaseScope::GenerationsBelow { .. });
        if (self.is(Defect::ServesReleased) && !is_fence) || (self.is(Defect::ForgetsToFence) && is_fence) {
            return Ok(ReleaseReport { n_attempts: 1, bytes: 1000 });
        }
        self.inner.release(scope).await
    }

    async fn recover(&self) -> Result<RecoveryReport, StoreError> {
        self.inner.recover().await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}

impl Mutant {
    /// Appends, and keeps the memory of what was refused.
    async fn append_and_keep(&self, mut request: AppendRequest) -> Result<AppendAck, StoreError> {
        let permit = std::mem::take(&mut request.permit);
        let answer = self.inner.append(request).await;
        if answer.is_err() {
            self.kept.lock().push(permit);
        }
        answer
    }
}

/// Calls `left` with the value when it is dropped and not taken back.
struct Guard<T, F: FnMut(T)> {
    value: Option<T>,
    left: F,
}

fn scopeguard<T, F: FnMut(T)>(value: Option<T>, left: F) -> Guard<T, F> {
    Guard { value, left }
}

impl<T, F: FnMut(T)> Guard<T, F> {
    fn defuse(mut self) -> Option<T> {
        self.value.take()
    }
}

impl<T, F: FnMut(T)> Drop for Guard<T, F> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            (self.left)(value);
        }
    }
}

/// What a mutant is reopened from: its model, how often that was done, and a copy of the beginning.
struct Medium {
    model: Arc<ModelStore>,
    n_reopens: u32,
}

struct Mutants {
    profile: ModelProfile,
    kind: DatasetKind,
    defect: Defect,
}

impl Mutants {
    fn instance(&self, model: Arc<ModelStore>, n_reopens: u32) -> Instance {
        let medium = Medium { model: model.clone(), n_reopens };
        Instance::new(Mutant::of(model, self.defect)).on(medium)
    }

    fn with_budget(&self, budget_bytes: u64) -> Instance {
        self.instance(ModelStore::new(self.profile.clone(), budget_bytes, SystemClock::shared()), 0)
    }
}

#[async_trait]
impl StoreFactory for Mutants {
    fn kind(&self) -> DatasetKind {
        self.kind
    }

    async fn fresh(&self) -> Instance {
        self.with_budget(1 << 30)
    }

    async fn fresh_small(&self) -> Instance {
        self.with_budget(self.small_budget_bytes())
    }

    fn patience(&self) -> Duration {
        // A defect that shows as a wait shows within a short one.
        Duration::from_millis(700)
    }

    async fn reopen(&self, instance: Instance) -> Option<Instance> {
        let medium = instance.into_medium::<Medium>()?;
        let forgets = self.defect == Defect::ForgetsAtTheSecondReopen && medium.n_reopens > 0;
        if forgets {
            return Some(self.fresh().await);
        }
        let model = if self.defect == Defect::RevivesReleased { revived(&medium.model).await } else { medium.model.reopened() };
        Some(self.instance(model, medium.n_reopens + 1))
    }
}

/// A reopen that brings back one attempt that was released.
async fn revived(model: &Arc<ModelStore>) -> Arc<ModelStore> {
    let again = model.reopened();
    let attempt = forebay_store_testkit::scenario::attempt(0, 0, 0);
    let spec = forebay_store_testkit::scenario::spec(DatasetKind::Blocking, 2);
    let one = forebay_store_testkit::scenario::Attempt::new(&(again.clone() as _), attempt, spec);
    if one.open().await.is_ok() {
        one.seal().await;
    }
    again
}

fn blocking(defect: Defect) -> Mutants {
    Mutants { profile: ModelProfile::surviving(), kind: DatasetKind::Blocking, defect }
}

fn durable(defect: Defect) -> Mutants {
    Mutants { profile: ModelProfile::arbitrating(), kind: DatasetKind::Durable, defect }
}

fn pipelined(defect: Defect) -> Mutants {
    Mutants { profile: ModelProfile::pipelined(), kind: DatasetKind::Pipelined(Retention::UntilAcknowledged), defect }
}

/// Whether the case passes; panics when it does not apply or is not in the list.
fn passes(factory: Mutants, name: &str) -> bool {
    let case = cases().into_iter().find(|case| case.name == name).expect("the case is in the list");
    let factory: Arc<dyn StoreFactory> = Arc::new(factory);
    match catch_unwind(AssertUnwindSafe(|| run_shared(factory, &case))) {
        Ok(applies) => {
            assert!(applies, "{name} does not apply");
            true
        }
        Err(_) => false,
    }
}

macro_rules! caught {
    ($($test:ident: $factory:ident $defect:ident by $($case:literal),+;)*) => {
        $(#[test]
        fn $test() {
            for name in [$($case),+] {
                assert!(!passes($factory(Defect::$defect), name), "{name} has not noticed the defect");
            }
        })*
    };
}

caught! {
    a_store_that_accepts_gaps: blocking AcceptsGaps by
        "append::a_gap_is_refused_with_the_expected_offset", "append::what_follows_a_missing_chunk_stays_out", "random::random_sequences_match_the_model";
    a_store_that_appends_repeats: blocking AppendsRepeats by
        "append::a_repeat_changes_nothing", "concurrency::parallel_repeats_are_taken_once", "random::random_sequences_match_the_model",
        "random::repeating_after_faults_keeps_everything_once";
    a_store_that_takes_other_bytes: blocking TakesOtherBytes by
        "append::a_differing_repeat_is_refused", "concurrency::parallel_repeats_are_taken_once", "random::random_sequences_match_the_model";
    a_store_that_loses_appends: blocking LosesAppends by
        "concurrency::writers_of_one_subpartition_are_serialised", "append::five_thousand_tiny_appends_come_back";
    a_store_that_loses_appends_during_the_seal: blocking LosesAppendsDuringTheSeal by "concurrency::a_seal_keeps_every_acknowledged_append";
    a_store_that_cuts_large_chunks: blocking CutsLargeChunks by "append::chunk_sizes_around_boundaries_come_back_whole";
    a_store_that_counts_subpartitions_in_ten_bits: blocking MixesSubpartitions by "limits::subpartition_counts_around_powers_of_two";
    a_store_that_serves_what_was_released: blocking ServesReleased by
        "release::each_scope_releases_its_inside_only", "release::a_read_under_way_ends_rightly_at_a_release";
    a_store_that_forgets_to_fence: blocking ForgetsToFence by
        "attempt::a_newer_generation_fences_lower_ones", "random::random_sequences_match_the_model";
    a_pipelined_store_that_forgets_to_fence: pipelined ForgetsToFence by "pipelined::a_pipelined_attempt_is_fenced";
    a_store_that_reads_short: blocking ReadsShort by "read::ranges_give_exactly_their_bytes", "recovery::sealed_content_survives_three_reopens";
    a_store_that_reads_one_byte_too_many: blocking ReadsOneTooMany by "read::ranges_give_exactly_their_bytes", "read::ranges_of_tiny_content_are_right";
    a_store_that_wraps_the_highest_offset: blocking WrapsTheHighestOffset by
        "read::ranges_give_exactly_their_bytes";
    a_store_that_believes_the_writer: blocking BelievesTheWriter by
        "seal::a_wrong_table_is_refused_and_leaves_the_attempt_open", "seal::prepare_is_idempotent", "random::random_sequences_match_the_model";
    a_store_that_shows_prepared_attempts: blocking ShowsPrepared by
        "seal::a_prepared_attempt_is_not_visible", "lifecycle::locate_finds_sealed_content_only";
    a_store_with_two_winners: durable TwoWinners by
        "attempt::the_second_seal_gets_the_winner", "concurrency::one_of_two_racing_attempts_wins";
    a_store_that_mixes_attempts: blocking MixesAttempts by
        "attempt::two_attempts_of_a_generation_stay_apart", "attempt::the_engine_may_read_every_sealed_attempt";
    a_store_that_keeps_aborted_attempts: blocking KeepsAborted by
        "attempt::an_aborted_attempt_is_at_its_end", "attempt::aborting_gives_storage_back", "concurrency::callers_that_leave_can_come_back";
    a_store_that_keeps_the_memory_of_refusals: blocking KeepsMemoryOfRefusals by "limits::refused_appends_give_their_memory_back";
    a_store_that_waits_for_what_never_comes: blocking WaitsForWhatNeverComes by "limits::a_reservation_over_the_budget_is_refused_at_once";
    a_store_that_keeps_the_memory_of_callers_that_left: blocking KeepsMemoryOfCallersThatLeft by
        "concurrency::callers_that_leave_give_their_memory_back";
    a_store_that_revives_what_was_released: blocking RevivesReleased by "recovery::nothing_released_comes_back";
    a_store_that_forgets_at_the_second_reopen: blocking ForgetsAtTheSecondReopen by
        "recovery::sealed_content_survives_three_reopens", "recovery::a_reopened_store_goes_on";
    a_store_that_stops_a_batch_at_its_first_failure: blocking StopsABatchAtTheFirstFailure by "read::a_failing_item_disturbs_no_other";
    a_store_that_misses_wake_ups: pipelined MissesWakeUps by
        "pipelined::a_waiting_reader_is_woken", "pipelined::an_open_attempt_is_read_while_it_is_written";
    a_store_that_ends_cut_reads_politely: pipelined EndsCutReadsPolitely by
        "pipelined::waiting_readers_are_told_the_end_of_their_attempt";
    a_store_whose_floor_follows_the_fastest_group: pipelined FloorOfTheFastestGroup by
        "pipelined::the_floor_is_the_minimum_over_groups";
    a_store_that_skips_over_the_floor: pipelined SkipsOverTheFloor by "pipelined::the_floor_is_the_minimum_over_groups";
    a_store_that_takes_half_an_acknowledgement: pipelined TakesHalfAnAcknowledgement by
        "pipelined::a_wrong_acknowledgement_takes_nothing";
    a_store_with_another_manifest_each_time: blocking AnotherManifestEachTime by
        "seal::prepare_is_idempotent", "seal::publish_is_idempotent", "concurrency::racing_seals_of_one_attempt_agree";
    a_store_that_holds_a_few_bytes_for_ever: blocking HoldsAFewBytes by "lifecycle::held_counts_and_returns_to_zero";
}

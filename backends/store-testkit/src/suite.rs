//! The list of cases, the macro that makes a test of each, and what runs one.
//!
//! The list stands once, in `each_case`; the tests of a backend and [`cases`] are both made from
//! it, so that no case can be forgotten for one store.

use crate::scenario::with_patience;
use crate::{Instance, Pace, Reach, StoreFactory};
use futures::future::BoxFuture;
use rand::TryRng;
use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store_api::clock::within;
use store_api::{Capabilities, DatasetKind, Retention, SharedClock, StoreClass, SystemClock};

/// Longest time that one case may take; a case that hangs fails with its name.
const CASE_DEADLINE: Duration = Duration::from_secs(120);
/// The same with `FOREBAY_LONG`.
const LONG_DEADLINE: Duration = Duration::from_secs(1200);

/// What a case needs of a store to mean something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Need {
    /// Open attempts can be read.
    ReadsOpen,
    /// Attempts can be read only after their seal.
    ReadsSealedOnly,
    /// Sealed attempts survive a reopen.
    SurvivesReopen,
    /// Attempts of one generation live side by side: every class but pipelined.
    Rivals,
    /// The medium decides which of two attempts wins.
    Arbitrates,
    /// The service decides which of two attempts wins.
    NeverLoses,
    /// There are no floors.
    NoFloors,
    /// The retention can be kept.
    UntilAcknowledged,
    /// The retention can be kept.
    BestEffort,
    /// The retention can be kept.
    SinceCheckpoint,
    /// `reserve` takes from a bounded budget.
    Reserves,
    /// `held` counts.
    CountsHeld,
    /// `recover` reports.
    ReportsRecovery,
    /// `close` closes.
    Closes,
    /// Preparing and publishing are two steps.
    Prepares,
    /// Other classes are refused.
    OneClass,
    /// Attempts are released one by one.
    ReleasesAttempts,
    /// Content may be larger than memory: every class but pipelined.
    OutgrowsMemory,
}

impl Need {
    fn is_met(self, factory: &dyn StoreFactory, capabilities: &Capabilities) -> bool {
        let keeps = |retention| capabilities.retentions.contains(&retention);
        let reach = factory.reach();
        match self {
            Self::ReadsOpen => capabilities.reads_open,
            Self::ReadsSealedOnly => !capabilities.reads_open,
            Self::SurvivesReopen => capabilities.survives_reopen(),
            Self::Rivals | Self::OutgrowsMemory => factory.kind().class() != StoreClass::Pipelined,
            Self::Arbitrates => factory.arbitrates(),
            Self::NeverLoses => !factory.arbitrates(),
            Self::NoFloors => !capabilities.moves_floors(),
            Self::UntilAcknowledged => keeps(Retention::UntilAcknowledged),
            Self::BestEffort => keeps(Retention::BestEffort),
            Self::SinceCheckpoint => keeps(Retention::SinceCheckpoint),
            Self::Reserves => reach.reserves,
            Self::CountsHeld => reach.counts_held,
            Self::ReportsRecovery => reach.reports_recovery,
            Self::Closes => reach.closes,
            Self::Prepares => reach.prepares,
            Self::OneClass => reach.keeps_one_class,
            Self::ReleasesAttempts => reach.releases_attempts,
        }
    }
}

/// One case: a claim about a store, and what checks it.
#[derive(Clone, Copy)]
pub struct Case {
    /// `module::claim`.
    pub name: &'static str,
    /// All of these must be met.
    pub needs: &'static [Need],
    /// Panics when the claim is false.
    pub body: fn(Stage) -> BoxFuture<'static, ()>,
}

impl Case {
    /// The first need that a store with these capabilities does not meet; `None` when the case
    /// applies.
    #[must_use]
    pub fn missing(&self, factory: &dyn StoreFactory, capabilities: &Capabilities) -> Option<Need> {
        self.needs.iter().copied().find(|need| !need.is_met(factory, capabilities))
    }
}

/// What a case gets: stores of one factory, and the scale of its rounds.
#[derive(Clone)]
pub struct Stage {
    factory: Arc<dyn StoreFactory>,
    n_stores: Arc<AtomicUsize>,
    clock: SharedClock,
}

impl Stage {
    /// A stage on which stores of `factory` appear.
    #[must_use]
    pub fn new(factory: Arc<dyn StoreFactory>) -> Self {
        Self { factory, n_stores: Arc::default(), clock: SystemClock::shared() }
    }

    /// A new store, recovered and empty.
    pub async fn fresh(&self) -> Instance {
        self.started(self.factory.fresh().await).await
    }

    /// A new store with little memory, recovered and empty.
    pub async fn fresh_small(&self) -> Instance {
        self.started(self.factory.fresh_small().await).await
    }

    async fn started(&self, instance: Instance) -> Instance {
        self.n_stores.fetch_add(1, Ordering::Relaxed);
        let report = instance.store.recover().await.expect("an empty medium is recovered");
        assert!(report.sealed.is_empty() && report.lost.is_empty(), "an empty medium holds nothing, this one {report:?}");
        instance
    }

    /// The store again on its medium, not recovered yet.
    pub async fn reopen(&self, instance: Instance) -> Instance {
        self.factory.reopen(instance).await.expect("a store that survives a reopen can be opened again")
    }

    /// The kind of dataset that the cases write.
    #[must_use]
    pub fn kind(&self) -> DatasetKind {
        self.factory.kind()
    }

    /// Whether `publish` may answer `Lost`.
    #[must_use]
    pub fn arbitrates(&self) -> bool {
        self.factory.arbitrates()
    }

    /// What of the trait the store answers for itself.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.factory.reach()
    }

    /// The budget of [`Stage::fresh_small`].
    #[must_use]
    pub fn small_budget_bytes(&self) -> u64 {
        self.factory.small_budget_bytes()
    }

    /// Number of rounds for a case that makes `quick` of them on a quick store: a tenth (at least
    /// 3) on a slow one, ten times as many with `FOREBAY_LONG`.
    #[must_use]
    pub fn rounds(&self, quick: usize) -> usize {
        let scaled = if self.factory.pace() == Pace::Slow { (quick / 10).max(3).min(quick) } else { quick };
        if is_long() { scaled * 10 } else { scaled }
    }

    /// The clock of the case.
    #[must_use]
    pub fn clock(&self) -> SharedClock {
        self.clock.clone()
    }
}

/// Whether `FOREBAY_LONG` asks for many rounds.
#[must_use]
pub fn is_long() -> bool {
    env::var_os("FOREBAY_LONG").is_some_and(|value| value != "0")
}

/// The seed of a random run: `FOREBAY_SEED` or a new one. Printed, so that a failure can be
/// repeated.
#[must_use]
pub fn seed(of: &str) -> u64 {
    let given = env::var("FOREBAY_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| rand::rngs::SysRng.try_next_u64().expect("the system has random numbers"));
    eprintln!("{of}: FOREBAY_SEED={seed}");
    seed
}

/// Runs one case against the stores of one factory. Panics when the case fails, hangs, or applies
/// and asks for no store.
pub fn run(factory: impl StoreFactory, case: &Case) {
    run_shared(Arc::new(factory), case);
}

/// [`run`] for a factory that is shared between cases. Returns whether the case applies.
pub fn run_shared(factory: Arc<dyn StoreFactory>, case: &Case) -> bool {
    let runtime = runtime();
    let ran = runtime.block_on(async {
        let stage = Stage::new(factory.clone());
        let capabilities = factory.fresh().await.store.capabilities().clone();
        if let Some(need) = case.missing(factory.as_ref(), &capabilities) {
            eprintln!("not applicable: {} needs {need:?}", case.name);
            return false;
        }
        let deadline = if is_long() { LONG_DEADLINE } else { CASE_DEADLINE };
        let clock = stage.clock();
        let ended = within(clock.as_ref(), deadline, with_patience(factory.patience(), (case.body)(stage.clone()))).await;
        assert!(ended.is_some(), "{} has not ended after {deadline:?}", case.name);
        assert!(stage.n_stores.load(Ordering::Relaxed) > 0, "{} asked for no store, so it says nothing", case.name);
        true
    });
    runtime.shutdown_timeout(Duration::from_secs(10));
    ran
}

/// Prints the cases that do not apply to the stores of `factory`, and returns their names.
pub fn not_applicable(factory: impl StoreFactory) -> Vec<&'static str> {
    let runtime = runtime();
    let names = runtime.block_on(async {
        let capabilities = factory.fresh().await.store.capabilities().clone();
        let missing = |case: &Case| case.missing(&factory, &capabilities).map(|need| (case.name, need));
        let all = cases();
        let left_out: Vec<_> = all.iter().filter_map(missing).collect();
        eprintln!("{} of {} cases apply", all.len() - left_out.len(), all.len());
        for (name, need) in &left_out {
            eprintln!("not applicable: {name} needs {need:?}");
        }
        assert!(left_out.len() < all.len(), "no case applies");
        left_out.into_iter().map(|(name, _)| name).collect()
    });
    runtime.shutdown_timeout(Duration::from_secs(10));
    names
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime can be made")
}

/// Makes `mod $name` with one test per case for the stores of `$factory`, an expression that makes
/// a [`StoreFactory`] and is evaluated once per test.
#[macro_export]
macro_rules! conformance_suite {
    ($name:ident, $factory:expr) => {
        #[cfg(test)]
        mod $name {
            fn factory() -> impl $crate::StoreFactory {
                use super::*;
                $factory
            }

            #[test]
            fn not_applicable() {
                $crate::suite::not_applicable(factory());
            }

            $crate::each_case! { emit_tests [] }
        }
    };
}

/// Makes the tests of [`conformance_suite`].
#[doc(hidden)]
#[macro_export]
macro_rules! emit_tests {
    ([] $($module:ident { $($case:ident [$($need:ident),*])* })*) => {
        $(mod $module {
            $(#[test]
            fn $case() {
                $crate::suite::run(super::factory(), &$crate::case_of!($module $case [$($need),*]));
            })*
        })*
    };
}

/// Makes the value of one case.
#[doc(hidden)]
#[macro_export]
macro_rules! case_of {
    ($module:ident $case:ident [$($need:ident),*]) => {
        $crate::suite::Case {
            name: concat!(stringify!($module), "::", stringify!($case)),
            needs: &[$($crate::suite::Need::$need),*],
            body: |stage| ::std::boxed::Box::pin($crate::conformance::$module::$case(stage)),
        }
    };
}

/// Makes the list of [`cases`].
#[doc(hidden)]
#[macro_export]
macro_rules! emit_cases {
    ([] $($module:ident { $($case:ident [$($need:ident),*])* })*) => {
        vec![$($($crate::case_of!($module $case [$($need),*])),*),*]
    };
}

/// Every case.
#[must_use]
pub fn cases() -> Vec<Case> {
    crate::each_case! { emit_cases [] }
}

/// The list of cases: subject, claim, needs.
#[doc(hidden)]
#[macro_export]
macro_rules! each_case {
    ($emit:ident $arguments:tt) => {
        $crate::$emit! { $arguments
            lifecycle {
                capabilities_fit_together []
                open_is_idempotent []
                an_unknown_attempt_is_not_found []
                swapped_ids_find_nothing []
                stat_tells_state_and_bytes []
                held_counts_and_returns_to_zero [CountsHeld]
                a_kind_of_another_class_is_unsupported [OneClass]
                locate_finds_sealed_content_only []
                acknowledging_is_unsupported_without_floors [NoFloors]
                a_closed_store_refuses_new_work [Closes]
                recover_reports_once []
            }
            append {
                appends_are_read_back_in_order []
                a_gap_is_refused_with_the_expected_offset []
                what_follows_a_missing_chunk_stays_out []
                a_repeat_changes_nothing []
                an_overlapping_repeat_adds_its_new_part []
                a_differing_repeat_is_refused []
                pieces_before_a_refused_one_stay []
                an_empty_chunk_changes_nothing []
                an_empty_chunk_is_checked_like_any_other []
                chunk_sizes_around_boundaries_come_back_whole []
                five_thousand_tiny_appends_come_back []
                a_subpartition_outside_is_refused []
                a_chunk_over_the_limit_is_refused []
                a_broadcast_is_stored_once []
                interleaved_subpartitions_stay_apart []
            }
            seal {
                the_manifest_tells_what_is_held []
                a_wrong_table_is_refused_and_leaves_the_attempt_open []
                prepare_is_idempotent []
                publish_is_idempotent []
                publishing_unprepared_is_refused []
                a_prepared_attempt_takes_no_bytes []
                a_prepared_attempt_is_not_visible [Prepares]
                an_empty_attempt_is_sealed_and_reads_as_empty []
                a_sparse_table_is_kept []
            }
            read {
                an_open_attempt_is_not_readable_before_its_seal []
                tailing_an_open_attempt_is_refused [ReadsSealedOnly]
                ranges_give_exactly_their_bytes []
                ranges_of_tiny_content_are_right []
                an_end_before_the_start_reads_nothing []
                readers_side_by_side_see_the_same_bytes []
                a_batch_answers_every_item_once []
                a_failing_item_disturbs_no_other []
                a_batch_may_be_dropped_half_way []
            }
            attempt {
                an_aborted_attempt_is_at_its_end []
                aborting_gives_storage_back [CountsHeld]
                a_sealed_attempt_cannot_be_aborted []
                two_attempts_of_a_generation_stay_apart [Rivals]
                the_second_seal_gets_the_winner [Arbitrates, Prepares]
                a_store_that_does_not_arbitrate_never_answers_lost [Rivals, NeverLoses]
                the_engine_may_read_every_sealed_attempt [Rivals, ReleasesAttempts]
                a_newer_generation_fences_lower_ones [Rivals]
                fencing_gives_storage_back [Rivals, CountsHeld]
                a_fence_never_mixes_into_a_read []
            }
            release {
                each_scope_releases_its_inside_only []
                attempts_in_every_state_are_released [CountsHeld]
                a_neighbour_goes_on_while_another_is_released []
                a_job_is_created_again_under_a_new_incarnation []
                a_read_under_way_ends_rightly_at_a_release [CountsHeld]
                a_reader_that_stands_still_does_not_block_a_release [CountsHeld]
                storage_is_used_again_after_releases [CountsHeld]
            }
            recovery {
                sealed_content_survives_three_reopens [SurvivesReopen, ReportsRecovery, CountsHeld]
                unsealed_attempts_are_dropped_and_counted [SurvivesReopen, ReportsRecovery]
                nothing_released_comes_back [SurvivesReopen, ReportsRecovery, CountsHeld]
                a_seal_is_repeated_after_a_reopen [SurvivesReopen]
                a_reopened_store_goes_on [SurvivesReopen]
                an_empty_partition_survives_a_reopen [SurvivesReopen]
            }
            concurrency {
                a_seal_keeps_every_acknowledged_append []
                writers_of_one_subpartition_are_serialised []
                parallel_repeats_are_taken_once []
                parallel_opens_open_once []
                racing_seals_of_one_attempt_agree []
                one_of_two_racing_attempts_wins [Arbitrates, CountsHeld]
                a_release_that_races_leaves_nothing [CountsHeld]
                callers_that_leave_can_come_back [CountsHeld]
                callers_that_leave_give_their_memory_back [Reserves, CountsHeld]
                an_abort_that_races_leaves_nothing [CountsHeld]
                many_partitions_side_by_side []
            }
            random {
                random_sequences_match_the_model [Prepares, ReleasesAttempts]
                repeating_after_faults_keeps_everything_once []
            }
            limits {
                subpartition_counts_around_powers_of_two []
                partition_numbers_use_all_their_bits []
                content_larger_than_memory_is_kept [OutgrowsMemory]
                a_reservation_over_the_budget_is_refused_at_once [Reserves]
                an_exhausted_budget_says_when_to_try_again [Reserves]
                waiters_are_served_and_leave_nothing_behind [Reserves]
                refused_appends_give_their_memory_back [Reserves, CountsHeld]
                the_whole_budget_comes_back [Reserves]
                no_memory_for_attempts_that_have_ended [Reserves]
                acknowledging_makes_room [UntilAcknowledged, Reserves]
            }
            pipelined {
                an_open_attempt_is_read_while_it_is_written [ReadsOpen]
                a_waiting_reader_is_woken [ReadsOpen]
                a_tailing_read_ends_after_its_wait [ReadsOpen]
                a_tailing_read_keeps_its_bounds [ReadsOpen]
                waiting_readers_are_told_the_end_of_their_attempt [ReadsOpen, CountsHeld]
                a_pipelined_attempt_is_fenced [ReadsOpen]
                readers_that_leave_disturb_no_other [ReadsOpen, CountsHeld]
                stat_tells_what_was_sent [ReadsOpen]
                the_floor_is_the_minimum_over_groups [UntilAcknowledged]
                a_floor_inside_a_chunk_keeps_what_is_needed [UntilAcknowledged]
                a_wrong_acknowledgement_takes_nothing [UntilAcknowledged]
                a_broadcast_waits_for_every_consumer [UntilAcknowledged]
                a_reader_that_is_overtaken_is_told [UntilAcknowledged]
                an_attempt_may_start_beyond_zero [ReadsOpen]
                a_checkpoint_moves_the_floor [SinceCheckpoint]
                since_a_checkpoint_more_than_memory_is_kept [SinceCheckpoint, CountsHeld]
                best_effort_drops_only_what_was_read [BestEffort, Reserves]
                best_effort_serves_again_what_fits [BestEffort]
            }
        }
    };
}

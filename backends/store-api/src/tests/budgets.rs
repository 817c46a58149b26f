//! Budgets and permits: random sequences against a plain ledger, order of waiters, races.

use crate::clock::ManualClock;
use crate::{BudgetError, ByteBudget, Permit};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

/// One budget of all, two jobs in it, and a part of the first job.
const LIMITS: [u64; 4] = [1000, 700, 600, 300];
const PARENT: [Option<usize>; 4] = [None, Some(0), Some(0), Some(1)];

fn family() -> ([ByteBudget; 4], Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(0));
    let all = ByteBudget::new(LIMITS[0], clock.clone());
    let (one, two) = (all.child(LIMITS[1]), all.child(LIMITS[2]));
    let part = one.child(LIMITS[3]);
    ([all, one, two, part], clock)
}

/// A budget and everything above it.
fn upwards(budget: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(budget), |at| PARENT[*at])
}

/// What a budget must say, from what is held.
#[derive(Debug, Default)]
struct Ledger {
    /// Budget and bytes of each permit that lives.
    held: Vec<(usize, u64)>,
}

impl Ledger {
    fn used(&self, budget: usize) -> u64 {
        self.held.iter().filter(|(of, _)| upwards(*of).any(|above| above == budget)).map(|(_, bytes)| bytes).sum()
    }

    fn free(&self, budget: usize) -> u64 {
        upwards(budget).map(|above| LIMITS[above] - self.used(above)).min().unwrap()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Reserve { budget: usize, bytes: u64 },
    Split { which: prop::sample::Index, bytes: u64 },
    Merge { which: prop::sample::Index },
    GiveBack { which: prop::sample::Index },
    Pass { millis: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0_usize..4, 0_u64..400).prop_map(|(budget, bytes)| Step::Reserve { budget, bytes }),
        1 => (0_usize..4, 290_u64..1100).prop_map(|(budget, bytes)| Step::Reserve { budget, bytes }),
        2 => (any::<prop::sample::Index>(), 0_u64..300).prop_map(|(which, bytes)| Step::Split { which, bytes }),
        2 => any::<prop::sample::Index>().prop_map(|which| Step::Merge { which }),
        3 => any::<prop::sample::Index>().prop_map(|which| Step::GiveBack { which }),
        1 => (0_u64..3000).prop_map(|millis| Step::Pass { millis }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Grants, refusals and figures of four nested budgets are those of a ledger that adds up what
    /// lives; nothing is left at the end.
    #[test]
    fn nested_budgets_say_what_a_ledger_says(steps in proptest::collection::vec(step(), 1..120)) {
        let (budgets, clock) = family();
        let mut ledger = Ledger::default();
        let mut permits: Vec<Permit> = Vec::new();
        for step in steps {
            match step {
                Step::Reserve { budget, bytes } => match budgets[budget].try_reserve(bytes) {
                    Ok(permit) => {
                        prop_assert!(bytes <= ledger.free(budget), "{bytes} granted, {} were free", ledger.free(budget));
                        prop_assert_eq!(permit.bytes(), bytes);
                        permits.push(permit);
                        ledger.held.push((budget, bytes));
                    }
                    Err(BudgetError::TooLarge { requested, limit }) => {
                        prop_assert_eq!((requested, limit), (bytes, LIMITS[budget]));
                        prop_assert!(bytes > limit);
                    }
                    Err(BudgetError::Exhausted { retry_after }) => {
                        prop_assert!(bytes > ledger.free(budget) && bytes <= LIMITS[budget]);
                        prop_assert!((50..=30_000).contains(&retry_after.as_millis()), "{retry_after:?}");
                    }
                },
                Step::Split { which, bytes } if !permits.is_empty() => {
                    let at = which.index(permits.len());
                    let whole = permits[at].bytes();
                    match permits[at].split(bytes) {
                        Some(part) => {
                            prop_assert_eq!((part.bytes(), permits[at].bytes()), (bytes, whole - bytes));
                            ledger.held[at].1 -= bytes;
                            let of = ledger.held[at].0;
                            ledger.held.push((of, bytes));
                            permits.push(part);
                        }
                        None => {
                            prop_assert!(bytes > whole);
                            prop_assert_eq!(permits[at].bytes(), whole, "a refused split changes nothing");
                        }
                    }
                }
                // Permits of one budget are put together; those of several are the next test's.
                Step::Merge { which } if permits.len() > 1 => {
                    let into = which.index(permits.len() - 1);
                    if ledger.held.last().map(|(of, _)| *of) == Some(ledger.held[into].0) {
                        let (last, (_, bytes)) = (permits.pop().unwrap(), ledger.held.pop().unwrap());
                        permits[into].merge(last);
                        ledger.held[into].1 += bytes;
                    }
                }
                Step::GiveBack { which } if !permits.is_empty() => {
                    let at = which.index(permits.len());
                    drop(permits.swap_remove(at));
                    ledger.held.swap_remove(at);
                }
                Step::Pass { millis } => clock.advance(Duration::from_millis(millis)),
                Step::Split { .. } | Step::Merge { .. } | Step::GiveBack { .. } => {}
            }
            for (at, budget) in budgets.iter().enumerate() {
                prop_assert_eq!(budget.used_bytes(), ledger.used(at), "budget {}", at);
                prop_assert_eq!(budget.free_bytes(), ledger.free(at), "budget {}", at);
            }
        }
        permits.clear();
        for budget in &budgets {
            prop_assert_eq!(budget.used_bytes(), 0);
        }
    }

    /// A permit of several budgets gives each of them back what it took from it, whatever way it
    /// was put together and cut up.
    #[test]
    fn mixed_permits_give_every_budget_its_own_back(
        taken in proptest::collection::vec((0_usize..4, 1_u64..60), 1..8),
        cuts in proptest::collection::vec((any::<prop::sample::Index>(), 0_u64..120), 0..12),
        kept in any::<prop::sample::Index>(),
    ) {
        let (budgets, _clock) = family();
        let mut mixed = Permit::none();
        for (budget, bytes) in &taken {
            mixed.merge(budgets[*budget].try_reserve(*bytes).unwrap());
        }
        let total: u64 = taken.iter().map(|(_, bytes)| bytes).sum();
        let used = budgets.each_ref().map(ByteBudget::used_bytes);
        prop_assert_eq!((mixed.bytes(), used[0]), (total, total));
        let mut parts = vec![mixed];
        for (which, bytes) in cuts {
            let at = which.index(parts.len());
            if let Some(part) = parts[at].split(bytes) {
                parts.push(part);
            }
            prop_assert_eq!(parts.iter().map(Permit::bytes).sum::<u64>(), total);
            prop_assert_eq!(budgets.each_ref().map(ByteBudget::used_bytes), used, "a cut gives nothing back");
        }
        let last = parts.swap_remove(kept.index(parts.len()));
        parts.clear();
        prop_assert_eq!(budgets[0].used_bytes(), last.bytes());
        drop(last);
        prop_assert_eq!(budgets.each_ref().map(ByteBudget::used_bytes), [0; 4]);
    }

    /// What a refused caller is told stays between 50 ms and 30 s, and falls when bytes come back
    /// faster.
    #[test]
    fn the_advice_to_wait_is_bounded_and_follows_the_rate(
        slow in 1_u64..50, factor in 2_u64..20, wanted in 200_u64..1000, windows in 1_usize..5,
    ) {
        let advice = |per_window: u64| {
            let (budgets, clock) = family();
            for _ in 0..windows {
                drop(budgets[0].try_reserve(per_window));
                clock.advance(Duration::from_secs(1));
            }
            let full = budgets[0].try_reserve(LIMITS[0]).unwrap();
            let advice = budgets[0].retry_after(wanted);
            drop(full);
            advice
        };
        let (slowly, quickly) = (advice(slow), advice(slow * factor));
        for advice in [slowly, quickly] {
            prop_assert!((50..=30_000).contains(&advice.as_millis()), "{advice:?}");
        }
        prop_assert!(quickly <= slowly, "{quickly:?} at {} bytes/s, {slowly:?} at {slow}", slow * factor);
        prop_assert_eq!(slowly, Duration::from_millis(wanted * 1000 / slow).clamp(Duration::from_millis(50), Duration::from_secs(30)));
    }
}

#[test]
fn no_request_passes_the_counter_and_limits_of_all_sizes_can_be_used_up() {
    let clock = Arc::new(ManualClock::new(0));
    for limit in [0, 1, u64::from(u32::MAX) - 1, u64::from(u32::MAX), u64::from(u32::MAX) + 1, 1 << 40, u64::MAX] {
        let budget = ByteBudget::new(limit, clock.clone());
        let most = limit.min(u64::from(u32::MAX)).min(budget.limit_bytes());
        let whole = budget.try_reserve(most).unwrap();
        assert_eq!((whole.bytes(), budget.used_bytes()), (most, most), "limit {limit}");
        let refused = budget.try_reserve(most + 1).map(|permit| permit.bytes());
        assert_eq!(refused, Err(BudgetError::TooLarge { requested: most + 1, limit: most }), "limit {limit}");
        assert!(matches!(budget.try_reserve(u64::MAX), Err(BudgetError::TooLarge { .. })));
        drop(whole);
        assert_eq!(budget.used_bytes(), 0, "limit {limit}");
    }
}

#[test]
fn a_child_is_never_larger_than_what_it_lies_in() {
    let (budgets, _clock) = family();
    assert_eq!(budgets[3].child(u64::MAX).limit_bytes(), LIMITS[3]);
    assert_eq!(budgets[0].child(0).limit_bytes(), 0);
    let refused = budgets[3].try_reserve(LIMITS[3] + 1).map(|permit| permit.bytes());
    assert_eq!(refused, Err(BudgetError::TooLarge { requested: 301, limit: 300 }), "though the parents have room");
}

/// Asks for `bytes` in a task of its own, and says in which order the grants came.
#[expect(clippy::disallowed_methods, reason = "tests spawn what they wait for")]
fn waiter(
    budget: &ByteBudget,
    bytes: u64,
    name: usize,
    granted: &tokio::sync::mpsc::Sender<(usize, Permit)>,
) -> tokio::task::JoinHandle<bool> {
    let (budget, granted) = (budget.clone(), granted.clone());
    tokio::spawn(async move {
        match budget.reserve(bytes, Duration::from_secs(3600)).await {
            Ok(permit) => granted.send((name, permit)).await.is_ok(),
            Err(_) => false,
        }
    })
}

async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn waiters_are_served_in_the_order_in_which_they_came_and_none_overtakes() {
    let (budgets, _clock) = family();
    let (send, mut granted) = tokio::sync::mpsc::channel(64);
    let mut full = budgets[0].try_reserve(1000).unwrap();
    let wanted = [900, 1, 300, 5, 700, 2, 1000, 3];
    for (name, bytes) in wanted.into_iter().enumerate() {
        drop(waiter(&budgets[0], bytes, name, &send));
        settle().await;
    }
    // Enough for every small one, and not for the first: nobody may overtake it.
    drop(full.split(899));
    settle().await;
    assert!(granted.try_recv().is_err(), "a small request overtook a large one");
    assert!(budgets[0].try_reserve(1).is_err(), "neither does one that does not wait");
    drop(full);
    let mut order = Vec::new();
    while order.len() < wanted.len() {
        settle().await;
        let mut lot = Vec::new();
        while let Ok((name, permit)) = granted.try_recv() {
            assert_eq!(permit.bytes(), wanted[name]);
            order.push(name);
            lot.push(permit);
        }
        assert!(!lot.is_empty(), "what was given back goes to the next: {order:?}");
    }
    assert_eq!(order, (0..wanted.len()).collect::<Vec<_>>());
    settle().await;
    assert_eq!(budgets[0].used_bytes(), 0);
}

#[tokio::test]
async fn waiters_that_leave_at_any_place_of_the_queue_leave_nothing_and_hold_nobody_up() {
    let (budgets, _clock) = family();
    for leaving in 0..6_usize {
        let (send, mut granted) = tokio::sync::mpsc::channel(64);
        // The job has room, all of them together have none: a waiter holds its job's share.
        let full = budgets[0].try_reserve(1000).unwrap();
        let mut waiters = Vec::new();
        for name in 0..6 {
            waiters.push(waiter(&budgets[1 + name % 2], 100, name, &send));
            settle().await;
        }
        waiters[leaving].abort();
        settle().await;
        let waiting_of_one = (0..6).filter(|name| name % 2 == 0 && *name != leaving).count() as u64;
        assert_eq!(budgets[1].used_bytes(), waiting_of_one * 100, "who left gave back what it held of its job");
        drop(full);
        settle().await;
        let mut served = Vec::new();
        let mut permits = Vec::new();
        while let Ok((name, permit)) = granted.try_recv() {
            served.push(name);
            permits.push(permit);
        }
        let others: Vec<usize> = (0..6).filter(|name| *name != leaving).collect();
        assert_eq!(served, others);
        drop(permits);
        assert_eq!(budgets.each_ref().map(ByteBudget::used_bytes), [0; 4]);
    }
}

#[tokio::test]
async fn patience_ends_on_time_and_a_request_that_can_never_be_met_does_not_wait() {
    let (budgets, clock) = family();
    let full = budgets[0].try_reserve(1000).unwrap();
    for patience in [0, 1, 60_000] {
        let patience = Duration::from_millis(patience);
        let waiting = budgets[1].reserve(10, patience);
        tokio::pin!(waiting);
        if !patience.is_zero() {
            assert!(futures::poll!(&mut waiting).is_pending());
            clock.advance(patience);
        }
        assert!(matches!(waiting.await, Err(BudgetError::Exhausted { .. })), "{patience:?}");
        assert_eq!(budgets[1].used_bytes(), 0);
    }
    let never = budgets[3].reserve(301, Duration::MAX);
    tokio::pin!(never);
    assert!(matches!(futures::poll!(&mut never), std::task::Poll::Ready(Err(BudgetError::TooLarge { requested: 301, limit: 300 }))));
    drop(full);
}

#[test]
fn threads_that_take_cut_and_give_back_at_once_leave_every_budget_empty() {
    let (budgets, _clock) = family();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let budgets = &budgets;
            scope.spawn(move || {
                let mut kept: Vec<Permit> = Vec::new();
                for round in 0..5000_u64 {
                    let mixed = (round * 7 + thread * 13) % 101;
                    let budget = &budgets[usize::try_from(mixed % 4).unwrap()];
                    if let Ok(mut permit) = budget.try_reserve(mixed) {
                        kept.extend(permit.split(mixed / 2));
                        match kept.first_mut() {
                            Some(first) if mixed % 3 == 0 => first.merge(permit),
                            _ => drop(permit),
                        }
                    }
                    if kept.len() > 5 {
                        kept.clear();
                    }
                    for (at, budget) in budgets.iter().enumerate() {
                        assert!(budget.used_bytes() <= LIMITS[at]);
                    }
                }
            });
        }
    });
    assert_eq!(budgets.each_ref().map(ByteBudget::used_bytes), [0; 4]);
    for (budget, limit) in budgets.iter().zip(LIMITS) {
        assert_eq!(budget.try_reserve(limit).unwrap().bytes(), limit, "all of it can be had again");
    }
}

use super::*;
use crate::attempt::Accounts;
use crate::sample::{attempt_key, dataset, job, spec};
use store_api::{ByteBudget, PartitionId, Retention, SystemClock};

struct Fixture {
    registry: Registry,
    accounts: Accounts,
}

impl Fixture {
    fn new(n_tombstones: usize) -> Self {
        let accounts = Accounts::new(ByteBudget::new(1000, SystemClock::shared()), 1000);
        Self { registry: Registry::new(n_tombstones), accounts }
    }

    fn open(&self, key: &AttemptKey) -> Option<Known> {
        let make = |account| Arc::new(Attempt::new(key.clone(), Arc::new(spec(Retention::BestEffort, 1)), Retention::BestEffort, account));
        self.registry.find_or_insert(key, || self.accounts.enrol(key, make))
    }

    fn ending(&self, key: &AttemptKey) -> Option<Ending> {
        match self.registry.find(key) {
            Some(Known::Ended(ending)) => Some(ending),
            _ => None,
        }
    }

    fn n_tombstones(&self) -> usize {
        self.registry.shards.iter().map(|shard| shard.read().tombstones.len()).sum()
    }

    fn n_partitions(&self) -> usize {
        self.registry.shards.iter().map(|shard| shard.read().partitions.len()).sum()
    }
}

fn at(name: &str, partition: u64, generation: u32, attempt: u32) -> AttemptKey {
    dataset(name).partition(PartitionId::new(partition)).attempt(AttemptId::new(generation, attempt))
}

#[test]
fn an_attempt_that_ended_stays_ended_whatever_comes_later() {
    let fixture = Fixture::new(100);
    let key = attempt_key(0);
    fixture.open(&key);
    let subject = Subject::new(Operation::Abort, &key);
    assert!(fixture.registry.abort(subject).unwrap().is_some());
    assert!(fixture.registry.abort(subject).unwrap().is_none(), "a repeat finds nothing to end");
    assert!(fixture.registry.release(&ReleaseScope::Attempt(key.clone())).is_empty());
    assert_eq!(fixture.ending(&key), Some(Ending::Aborted), "the first ending stays");
    assert!(matches!(fixture.open(&key), Some(Known::Ended(Ending::Aborted))));
}

#[test]
fn a_fence_ends_lower_generations_and_those_that_come_late() {
    let fixture = Fixture::new(100);
    let by = AttemptId::new(2, 7);
    fixture.open(&at("d", 0, 1, 0));
    fixture.open(&at("d", 0, 2, 0));
    fixture.open(&at("d", 1, 0, 0));
    let partition = at("d", 0, 0, 0).partition;
    assert_eq!(fixture.registry.release(&ReleaseScope::GenerationsBelow { partition, by }).len(), 1);
    assert_eq!(fixture.ending(&at("d", 0, 1, 0)), Some(Ending::Fenced { by }));
    assert!(matches!(fixture.open(&at("d", 0, 0, 9)), Some(Known::Ended(Ending::Fenced { .. }))), "it was never open");
    assert!(matches!(fixture.registry.find(&at("d", 0, 2, 0)), Some(Known::Live(_))));
    assert!(matches!(fixture.registry.find(&at("d", 1, 0, 0)), Some(Known::Live(_))), "another partition");
}

#[test]
fn a_released_dataset_ends_what_it_has_and_nothing_else() {
    let fixture = Fixture::new(10_000);
    for partition in 0..100 {
        fixture.open(&at("d", partition, 3, 0));
        fixture.open(&at("e", partition, 3, 0));
    }
    fixture.registry.abort(Subject::new(Operation::Abort, &at("d", 5, 3, 0))).unwrap();
    assert_eq!(fixture.registry.release(&ReleaseScope::Dataset(dataset("d"))).len(), 99);
    assert_eq!((fixture.n_tombstones(), fixture.n_partitions()), (100, 200));
    assert_eq!(fixture.ending(&at("d", 5, 3, 0)), Some(Ending::Aborted));
    assert!(matches!(fixture.open(&at("d", 7, 3, 0)), Some(Known::Ended(Ending::Released))));
    assert!(matches!(fixture.open(&at("d", 7, 4, 0)), Some(Known::Live(_))), "a producer that is run again");
    assert!(matches!(fixture.registry.find(&at("e", 7, 3, 0)), Some(Known::Live(_))));
}

#[test]
fn a_released_job_forgets_what_was_under_it_and_takes_no_attempt_any_more() {
    let fixture = Fixture::new(1000);
    fixture.open(&at("d", 0, 0, 0));
    fixture.open(&at("e", 0, 0, 0));
    fixture.registry.release(&ReleaseScope::Dataset(dataset("d")));
    let scope = ReleaseScope::Job { job: job(), incarnation: JobIncarnation::new(1) };
    assert_eq!(fixture.registry.release(&scope).len(), 1);
    assert_eq!((fixture.n_tombstones(), fixture.n_partitions()), (0, 0));
    for key in [at("d", 0, 0, 0), at("e", 0, 0, 0), at("f", 9, 9, 9)] {
        assert!(matches!(fixture.open(&key), Some(Known::Ended(Ending::Released))), "{key}");
    }
    assert!(fixture.registry.release(&scope).is_empty());
}

#[test]
fn tombstones_are_bounded_and_the_oldest_are_forgotten() {
    let fixture = Fixture::new(1024);
    for partition in 0..20_000 {
        let key = at("d", partition, 1, 0);
        fixture.open(&key);
        let scope = match partition % 3 {
            0 => ReleaseScope::Attempt(key.clone()),
            1 => ReleaseScope::Partition(key.partition.clone()),
            _ => ReleaseScope::GenerationsBelow { partition: key.partition.clone(), by: AttemptId::new(2, 0) },
        };
        assert_eq!(fixture.registry.release(&scope).len(), 1);
        fixture.accounts.dismiss(&key);
    }
    assert!(fixture.n_tombstones() <= 1024 + N_SHARDS, "{}", fixture.n_tombstones());
    assert!(fixture.n_partitions() <= 1024 + N_SHARDS, "{}", fixture.n_partitions());
    assert!(fixture.ending(&at("d", 19_999, 1, 0)).is_some());
    assert!(fixture.registry.find(&at("d", 0, 1, 0)).is_none());
    for number in 0..5000 {
        fixture.registry.release(&ReleaseScope::Job { job: job(), incarnation: JobIncarnation::new(number + 2) });
    }
    let jobs = fixture.registry.jobs.lock();
    assert_eq!((jobs.released.len(), jobs.order.len()), (1024, 1024));
}

fn fence(fixture: &Fixture, partition: u64, generation: u32) {
    let partition = at("d", partition, 0, 0).partition;
    fixture.registry.release(&ReleaseScope::GenerationsBelow { partition, by: AttemptId::new(generation, 0) });
}

#[test]
fn a_fence_that_was_raised_again_is_as_young_as_its_last_raise() {
    // Each shard remembers 16.
    let fixture = Fixture::new(16 * N_SHARDS);
    let shard_of = |partition: u64| fixture.registry.spread.hash_one(at("d", partition, 0, 0).partition) % N_SHARDS as u64;
    let neighbours: Vec<u64> = (1..).filter(|partition| shard_of(*partition) == shard_of(0)).take(15 + 14).collect();
    fence(&fixture, 0, 1);
    for partition in &neighbours[..15] {
        fence(&fixture, *partition, 1);
    }
    fence(&fixture, 0, 5);
    for partition in &neighbours[15..] {
        fence(&fixture, *partition, 1);
    }
    let late = at("d", 0, 4, 0);
    assert_eq!(fixture.ending(&late), Some(Ending::Fenced { by: AttemptId::new(5, 0) }), "14 others came after it, 16 are remembered");
    assert!(matches!(fixture.open(&late), Some(Known::Ended(_))), "a zombie does not come back");
    assert!(fixture.n_tombstones() <= 16 * N_SHARDS);
}

#[test]
fn a_partition_that_is_fenced_again_and_again_takes_the_place_of_nobody_for_ever() {
    let fixture = Fixture::new(16 * N_SHARDS);
    for generation in 1..10_000 {
        fence(&fixture, 0, generation);
        // A lower one that comes late changes nothing.
        fence(&fixture, 0, generation / 2);
    }
    assert_eq!(fixture.ending(&at("d", 0, 9998, 3)), Some(Ending::Fenced { by: AttemptId::new(9999, 0) }));
    assert!(fixture.n_tombstones() <= 16, "{}", fixture.n_tombstones());
    assert_eq!(fixture.n_partitions(), 1);
}

mod random {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Debug, Clone)]
    enum Step {
        Open(u64, u32, u32),
        Abort(u64, u32, u32),
        Release(u64, u32, u32),
        ReleasePartition(u64),
        Fence(u64, u32),
        ReleaseDataset,
    }

    fn step() -> impl Strategy<Value = Step> {
        let id = || (0_u64..4, 0_u32..4, 0_u32..3);
        prop_oneof![
            8 => id().prop_map(|(partition, generation, attempt)| Step::Open(partition, generation, attempt)),
            2 => id().prop_map(|(partition, generation, attempt)| Step::Abort(partition, generation, attempt)),
            2 => id().prop_map(|(partition, generation, attempt)| Step::Release(partition, generation, attempt)),
            1 => (0_u64..4).prop_map(Step::ReleasePartition),
            2 => (0_u64..4, 1_u32..5).prop_map(|(partition, generation)| Step::Fence(partition, generation)),
            1 => Just(Step::ReleaseDataset),
        ]
    }

    proptest! {
        /// Whatever comes in which order: an attempt that ended keeps its first ending, none is
        /// live below a fence, and each is handed out to be buried exactly once.
        #[test]
        fn the_registry_says_what_a_plain_map_says(steps in proptest::collection::vec(step(), 1..60)) {
            let fixture = Fixture::new(10_000);
            let mut known: BTreeMap<(u64, u32, u32), Option<Ending>> = BTreeMap::new();
            let mut fences: BTreeMap<u64, u32> = BTreeMap::new();
            let key = |(partition, generation, attempt): (u64, u32, u32)| at("d", partition, generation, attempt);
            for step in steps {
                let mut end = |picks: &dyn Fn(&(u64, u32, u32)) -> bool, ending: Ending| {
                    let live = known.iter_mut().filter(|(id, state)| picks(id) && state.is_none());
                    live.map(|(_, state)| *state = Some(ending)).count()
                };
                match step {
                    Step::Open(partition, generation, attempt) => {
                        let id = (partition, generation, attempt);
                        let fenced = fences.get(&partition).copied().filter(|by| generation < *by);
                        let found = fixture.open(&key(id));
                        match known.get(&id).copied().unwrap_or(fenced.map(|by| Ending::Fenced { by: AttemptId::new(by, 0) })) {
                            Some(ending) => prop_assert!(matches!(found, Some(Known::Ended(found)) if found == ending), "{:?}", found),
                            None => {
                                prop_assert!(matches!(found, Some(Known::Live(_))));
                                known.insert(id, None);
                            }
                        }
                    }
                    Step::Abort(partition, generation, attempt) => {
                        let id = (partition, generation, attempt);
                        let ended = fixture.registry.abort(Subject::new(Operation::Abort, &key(id))).unwrap();
                        prop_assert_eq!(usize::from(ended.is_some()), end(&|other| *other == id, Ending::Aborted));
                    }
                    Step::Release(partition, generation, attempt) => {
                        let id = (partition, generation, attempt);
                        let ended = fixture.registry.release(&ReleaseScope::Attempt(key(id)));
                        prop_assert_eq!(ended.len(), end(&|other| *other == id, Ending::Released));
                    }
                    Step::ReleasePartition(partition) => {
                        let ended = fixture.registry.release(&ReleaseScope::Partition(key((partition, 0, 0)).partition));
                        prop_assert_eq!(ended.len(), end(&|other| other.0 == partition, Ending::Released));
                    }
                    Step::Fence(partition, generation) => {
                        let by = AttemptId::new(generation, 0);
                        let scope = ReleaseScope::GenerationsBelow { partition: key((partition, 0, 0)).partition, by };
                        let ended = fixture.registry.release(&scope);
                        let fenced = end(&|other| other.0 == partition && other.1 < generation, Ending::Fenced { by });
                        prop_assert_eq!(ended.len(), fenced);
                        let highest = fences.entry(partition).or_default();
                        *highest = generation.max(*highest);
                    }
                    Step::ReleaseDataset => {
                        let ended = fixture.registry.release(&ReleaseScope::Dataset(dataset("d")));
                        prop_assert_eq!(ended.len(), end(&|_| true, Ending::Released));
                    }
                }
                for (id, state) in &known {
                    prop_assert_eq!(fixture.ending(&key(*id)), *state, "{:?}", id);
                }
            }
            let live = known.values().filter(|state| state.is_none()).count();
            prop_assert_eq!(fixture.registry.all().len(), live);
        }
    }
}

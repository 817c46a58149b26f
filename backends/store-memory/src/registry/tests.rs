use super::*;
use crate::attempt::Accounts;
use crate::tests::{attempt_key, dataset, job, spec};
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

//! What a new life of a node knows is what the life before knew, for everything that was promised.

use super::bench::*;
use crate::service::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use store_api::*;

/// A step of a job's life.
#[derive(Debug, Clone)]
enum Step {
    Open { partition: u64, generation: u32, attempt: u32 },
    Write { partition: u64, generation: u32, attempt: u32, bytes: Vec<u8> },
    Seal { partition: u64, generation: u32, attempt: u32 },
    Abort { partition: u64, generation: u32, attempt: u32 },
    ReleasePartition { partition: u64 },
    ReleaseDataset,
    TakeOver,
}

const PARTITIONS: u64 = 3;

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..PARTITIONS, 0_u32..3, 0_u32..2);
    prop_oneof![
        4 => place().prop_map(|(partition, generation, attempt)| Step::Open { partition, generation, attempt }),
        4 => (place(), proptest::collection::vec(any::<u8>(), 1..20))
            .prop_map(|((partition, generation, attempt), bytes)| Step::Write { partition, generation, attempt, bytes }),
        4 => place().prop_map(|(partition, generation, attempt)| Step::Seal { partition, generation, attempt }),
        1 => place().prop_map(|(partition, generation, attempt)| Step::Abort { partition, generation, attempt }),
        1 => (0..PARTITIONS).prop_map(|partition| Step::ReleasePartition { partition }),
        1 => Just(Step::ReleaseDataset).prop_filter("rarely", |_| true),
        1 => Just(Step::TakeOver),
    ]
}

/// Runs a step; refusals are part of it.
async fn run(node: &Node, step: Step, epoch: &mut u64) {
    let present = Some(JobEpoch::new(*epoch));
    match step {
        Step::Open { partition, generation, attempt } => {
            let request = OpenAttempt { generation, attempt, epoch: present, ..OpenAttempt::default() };
            let _ = node.service.open_attempt(&at(partition), request).await;
        }
        Step::Write { partition, generation, attempt, bytes } => drop(node.write(partition, a(generation, attempt), &bytes).await),
        Step::Seal { partition, generation, attempt } => drop(node.seal(partition, a(generation, attempt)).await),
        Step::Abort { partition, generation, attempt } => {
            let _ = node.service.abort_attempt(&of(partition, a(generation, attempt)), node.life()).await;
        }
        Step::ReleasePartition { partition } => drop(node.service.release_partition(&at(partition), present).await),
        Step::ReleaseDataset => drop(node.service.release_dataset(&id("j"), &dataset_id("d"), present).await),
        Step::TakeOver => {
            let request = JobRequest { owner_nonce: format!("owner-{epoch}"), take_over: true, ..JobRequest::default() };
            *epoch = node.service.put_job(&id("j"), request).await.unwrap().epoch.get();
        }
    }
}

/// What is promised of a partition to outlive the process.
#[derive(Debug, PartialEq)]
enum Kept {
    Sealed {
        generation: u32,
        attempts: Vec<AttemptId>,
        bytes: Vec<u8>,
    },
    Released,
    /// Nothing sealed, nothing released: what was open is gone, the generation stays.
    Nothing {
        generation: u32,
    },
}

async fn kept(node: &Node) -> BTreeMap<u64, Result<Kept, ServiceErrorKind>> {
    let mut all = BTreeMap::new();
    for partition in 0..PARTITIONS {
        let view = node.service.partition(&at(partition)).await;
        let kept = match view {
            Err(error) => Err(error.kind().clone()),
            Ok(view) => Ok(match view.state {
                PartitionState::Sealed => {
                    let bytes = node.read(partition).await.unwrap();
                    Kept::Sealed { generation: view.generation, attempts: view.attempts, bytes }
                }
                PartitionState::Released => Kept::Released,
                PartitionState::NotWritten | PartitionState::Open | PartitionState::Aborted | PartitionState::Superseded => {
                    Kept::Nothing { generation: view.generation }
                }
                other => panic!("{other:?} cannot come of these steps"),
            }),
        };
        all.insert(partition, kept);
    }
    all
}

async fn summary(node: &Node) -> (JobEpoch, JobIncarnation, Option<(u64, u64)>) {
    let job = node.service.job(&id("j")).await.unwrap();
    let dataset = node.service.dataset(&id("j"), &dataset_id("d")).await.ok();
    (job.epoch, job.incarnation, dataset.map(|view| (view.n_sealed, view.sealed_bytes)))
}

async fn check(class: StoreClass, steps: Vec<Step>) {
    let node = Node::start().await;
    node.put_job("j").await;
    node.put_dataset("j", "d", class).await;
    let mut epoch = 1;
    for step in steps {
        run(&node, step, &mut epoch).await;
    }
    let before = (kept(&node).await, summary(&node).await);
    let mut node = node;
    for life in 2..4 {
        node = node.restart().await;
        assert_eq!((kept(&node).await, summary(&node).await), before, "life {life}");
        let view = node.service.job(&id("j")).await.unwrap();
        let sealed_bytes = before.1.2.map_or(0, |(_, bytes)| bytes);
        assert_eq!(view.held.total(), sealed_bytes, "what is not in force is not held");
    }
    // What was promised can be gone on with, by the present owner alone.
    assert!(node.service.renew_lease(&id("j"), Some(JobEpoch::new(epoch)), None).await.is_ok());
    node.service.release_job(&id("j"), Some(JobEpoch::new(epoch))).await.unwrap();
    let node = node.restart().await;
    assert_eq!(refused(node.service.job(&id("j")).await), ServiceErrorKind::Released);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_restart_rebuilds_what_was_promised_of_blocking_partitions(steps in proptest::collection::vec(step(), 0..40)) {
        runtime().block_on(check(StoreClass::Blocking, steps));
    }
}

proptest! {
    /// However leases are set and renewed, a job lives exactly until its last grant has run out.
    #[test]
    fn a_job_lives_until_its_last_granted_lease_has_run_out_and_no_longer(
        first_s in 0_u64..2_000_000, renewals in proptest::collection::vec((0_u64..1000, proptest::option::of(0_u64..2_000_000)), 0..6),
    ) {
        let seconds = std::time::Duration::from_secs;
        runtime().block_on(async {
            let node = Node::start().await;
            let request = JobRequest { lease: Some(seconds(first_s)), ..JobRequest::default() };
            let granted = node.service.put_job(&id("j"), request).await.unwrap().lease;
            assert!(granted >= node.config.min_lease && granted <= node.config.max_lease);
            let mut ends_at = node.clock.monotonic() + granted;
            for (pause_ms, wanted) in renewals {
                let now = node.clock.monotonic() + std::time::Duration::from_millis(pause_ms);
                if now >= ends_at {
                    break;
                }
                node.pass(std::time::Duration::from_millis(pause_ms)).await;
                let renewed = node.service.renew_lease(&id("j"), Some(JobEpoch::new(1)), wanted.map(seconds)).await.unwrap();
                assert!(renewed.lease >= node.config.min_lease && renewed.lease <= node.config.max_lease);
                ends_at = now + renewed.lease;
            }
            let left = ends_at - node.clock.monotonic();
            node.pass(left - std::time::Duration::from_millis(1)).await;
            assert!(node.service.job(&id("j")).await.is_ok());
            node.pass(std::time::Duration::from_millis(1)).await;
            assert_eq!(refused(node.service.job(&id("j")).await), ServiceErrorKind::Expired);
        });
    }
}

//! Calls that come at the same moment. `FOREBAY_LONG=1` runs ten times the rounds.
#![expect(clippy::disallowed_methods, reason = "tests spawn what they wait for")]

use super::bench::*;
use crate::service::*;
use std::sync::Arc;
use std::time::Duration;
use store_api::*;

fn rounds(short: u32) -> u32 {
    if std::env::var_os("FOREBAY_LONG").is_some() { short * 10 } else { short }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_seals_at_once_exactly_one_is_the_content() {
    for class in [StoreClass::Blocking, StoreClass::Durable, StoreClass::Pipelined] {
        let node = Arc::new(Node::with_dataset(class).await);
        let request = DatasetRequest { n_partitions: None, ..spec(class) };
        node.service.put_dataset(&id("j"), &dataset_id("many"), request).await.unwrap();
        for round in 0..u64::from(rounds(if class == StoreClass::Blocking { 500 } else { 50 })) {
            let partition = PartitionAddress { dataset: dataset_id("many"), partition: PartitionId::new(round), ..at(0) };
            let open = |attempt| OpenAttempt { attempt, ..OpenAttempt::default() };
            let n_attempts = if class == StoreClass::Pipelined { 1 } else { 2 };
            let mut seals = Vec::new();
            for attempt in 0..n_attempts {
                node.service.open_attempt(&partition, open(attempt)).await.unwrap();
            }
            for attempt in [0, n_attempts - 1, 0] {
                let (node, partition) = (node.clone(), partition.clone());
                let address = AttemptAddress { partition, attempt: a(0, attempt) };
                seals.push(tokio::spawn(async move { node.service.seal(&address, node.life(), None).await }));
            }
            let (mut winners, mut named) = (Vec::new(), Vec::new());
            for seal in seals {
                match seal.await.unwrap().unwrap() {
                    SealReply::Won(view) => winners.push(view.manifest.attempt.attempt),
                    SealReply::OtherWon(view) => named.push(view.manifest.attempt.attempt),
                }
            }
            winners.dedup();
            assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
            assert!(named.iter().all(|winner| *winner == winners[0]), "round {round}");
            let view = node.service.partition(&partition).await.unwrap();
            assert_eq!(view.manifest.map(|view| view.manifest.attempt.attempt), Some(winners[0]));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_that_were_acknowledged_are_in_the_seal_and_others_are_told() {
    for round in 0..rounds(30) {
        let node = Arc::new(Node::with_dataset(StoreClass::Blocking).await);
        node.open(0, 0, 0).await.unwrap();
        let writers: Vec<_> = (0..8_u8)
            .map(|writer| {
                let node = node.clone();
                tokio::spawn(async move {
                    let mut acknowledged = 0_usize;
                    loop {
                        match node.write(0, a(0, 0), &[writer; 16]).await {
                            Ok(_) => acknowledged += 1,
                            Err(error) if *error.kind() == ServiceErrorKind::AlreadySealed => return acknowledged,
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                })
            })
            .collect();
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        node.seal(0, a(0, 0)).await.unwrap();
        let bytes = node.read(0).await.unwrap();
        for (writer, acknowledged) in writers.into_iter().enumerate() {
            let count = bytes.iter().filter(|byte| usize::from(**byte) == writer).count();
            assert_eq!(count, 16 * acknowledged.await.unwrap(), "round {round}, writer {writer}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_succeeds_keeps_everything_and_one_that_does_not_says_expired() {
    let (mut n_kept, mut n_ended) = (0, 0);
    for round in 0..rounds(400) {
        let node = Arc::new(Node::with(ServiceConfig::default()).await);
        let request = JobRequest { lease: Some(Duration::from_secs(1)), ..JobRequest::default() };
        node.service.put_job(&id("j"), request).await.unwrap();
        node.put_dataset("j", "d", StoreClass::Blocking).await;
        node.produce(0, b"x").await;
        node.clock.advance(Duration::from_secs(1));
        let reaping = {
            let node = node.clone();
            tokio::spawn(async move { node.service.reap().await })
        };
        if round % 2 == 0 {
            tokio::task::yield_now().await;
        }
        let renewed = node.service.renew_lease(&id("j"), Some(JobEpoch::new(1)), None).await;
        reaping.await.unwrap();
        match renewed {
            Ok(_) => {
                assert_eq!(node.read(0).await.unwrap(), b"x", "round {round}");
                n_kept += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), &ServiceErrorKind::Expired, "round {round}");
                assert_eq!(refused(node.read(0).await), ServiceErrorKind::Expired);
                n_ended += 1;
            }
        }
    }
    assert!(n_kept + n_ended > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_conflicting_declarations_at_once_one_is_in_force_and_the_others_hear_of_it() {
    for _ in 0..rounds(20) {
        let node = Arc::new(Node::start().await);
        node.put_job("j").await;
        let puts: Vec<_> = (0..20)
            .map(|number| {
                let node = node.clone();
                let class = if number % 2 == 0 { StoreClass::Blocking } else { StoreClass::Durable };
                tokio::spawn(async move { (class, node.service.put_dataset(&id("j"), &dataset_id("d"), spec(class)).await) })
            })
            .collect();
        let mut won = Vec::new();
        for put in puts {
            let (class, outcome) = put.await.unwrap();
            match outcome {
                Ok(_) => won.push(class),
                Err(error) => assert_eq!(error.kind(), &ServiceErrorKind::SpecConflict { member: "kind" }),
            }
        }
        assert_eq!(won.len(), 10);
        won.dedup();
        let view = node.service.dataset(&id("j"), &dataset_id("d")).await.unwrap();
        assert_eq!(won, [view.spec.kind.class()]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_creations_at_once_one_is_new_and_all_name_the_same_existence() {
    for _ in 0..rounds(20) {
        let node = Arc::new(Node::start().await);
        let puts: Vec<_> = (0..20)
            .map(|_| {
                let node = node.clone();
                tokio::spawn(async move { node.put_job("j").await })
            })
            .collect();
        let mut views = Vec::new();
        for put in puts {
            views.push(put.await.unwrap());
        }
        assert_eq!(views.iter().filter(|view| view.is_new).count(), 1);
        assert!(views.iter().all(|view| view.incarnation == views[0].incarnation));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generations_raised_at_once_leave_the_highest_in_force() {
    for round in 0..rounds(20) {
        let node = Arc::new(Node::with_dataset(StoreClass::Blocking).await);
        node.produce(0, b"x").await;
        let opens: Vec<_> = (0..50_u32)
            .map(|number| {
                let node = node.clone();
                tokio::spawn(async move { node.open(0, 1 + number % 5, number).await })
            })
            .collect();
        for open in opens {
            if let Err(error) = open.await.unwrap() {
                let is_told = matches!(error.kind(), ServiceErrorKind::Fenced { by: FencedBy::Attempt(_) });
                assert!(is_told, "round {round}: {error:?}");
            }
        }
        let view = node.service.partition(&at(0)).await.unwrap();
        assert_eq!((view.generation, view.state), (5, PartitionState::Open));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_at_any_moment_leaves_nothing_held() {
    for round in 0..rounds(100) {
        let node = Arc::new(Node::with_dataset(StoreClass::Blocking).await);
        let incarnation = node.service.job(&id("j")).await.unwrap().incarnation;
        let writer = {
            let node = node.clone();
            tokio::spawn(async move {
                for partition in 0..16 {
                    node.open(partition, 0, 0).await?;
                    node.write(partition, a(0, 0), b"bytes").await?;
                    node.seal(partition, a(0, 0)).await?;
                }
                Ok::<(), ServiceError>(())
            })
        };
        for _ in 0..round % 20 {
            tokio::task::yield_now().await;
        }
        node.service.release_job(&id("j"), Some(JobEpoch::new(1))).await.unwrap();
        if let Err(error) = writer.await.unwrap() {
            assert_eq!(error.kind(), &ServiceErrorKind::Released, "round {round}");
        }
        while node.service.n_writes_running() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(node.blocking.held(&id("j"), incarnation).total(), 0, "round {round}");
    }
}

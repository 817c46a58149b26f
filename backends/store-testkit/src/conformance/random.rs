//! Random histories against the model, and faults in the way.

use crate::fault_store::{FaultPlan, FaultStore};
use crate::history::{History, RECORD_LENGTH, Record};
use crate::scenario::{Attempt, attempt, beside, patience, piece, soon, spec};
use crate::suite::{Stage, seed};
use crate::{assert_refused, machine};
use std::sync::Arc;
use std::time::Duration;
use store_api::{AppendRequest, Retry, SealOutcome, SharedStore, StoreError, StoreErrorKind};

/// Any sequence of calls is answered as the model answers it.
pub async fn random_sequences_match_the_model(stage: Stage) {
    let seed = seed("random_sequences_match_the_model");
    let n_runs = stage.rounds(60);
    machine::compare(stage, seed, n_runs).await;
}

/// Repeats a call for as long as the error says that this may help.
async fn retried<T, F: Future<Output = Result<T, StoreError>>>(what: &str, mut call: impl FnMut() -> F) -> T {
    for _ in 0..1000 {
        match call().await {
            Ok(value) => return value,
            Err(error) => assert_eq!(error.kind().retry(), Retry::Same, "{what}: {error:?}"),
        }
    }
    panic!("{what} has not worked in 1000 tries")
}

async fn write_with_retries(one: Attempt, history: Arc<History>, writer: u32, n_records: u64) {
    let tag = Record::tag_of(&one.key);
    for number in 0..n_records {
        let record = Record { tag, subpartition: writer, writer, number };
        let start = number * RECORD_LENGTH as u64;
        retried("an append", || async {
            let permit = one.store.reserve(&one.key, RECORD_LENGTH as u64, patience() * 2).await?;
            let pieces = vec![piece(writer, Some(start), record.encode())];
            one.store.append(AppendRequest { attempt: one.key.clone(), pieces, permit }).await
        })
        .await;
        history.acked(&one.key, record);
    }
}

/// A client that repeats what failed, was cut or lost its reply gets each byte in exactly once.
pub async fn repeating_after_faults_keeps_everything_once(stage: Stage) {
    let random = seed("repeating_after_faults_keeps_everything_once");
    let instance = stage.fresh().await;
    let plan =
        FaultPlan { seed: random, n_refused: 8, n_reply_lost: 8, n_cancelled: 8, n_delayed: 8, longest_delay: Duration::from_millis(2) };
    let faulty: SharedStore = Arc::new(FaultStore::new(instance.store.clone(), plan, stage.clock()));
    for round in 0..stage.rounds(10) as u64 {
        let history = Arc::new(History::new());
        let one = Attempt::new(&faulty, attempt(round, 0, 0), spec(stage.kind(), 4));
        retried("opening", || one.open()).await;
        let writers: Vec<_> = (0..4).map(|writer| beside(write_with_retries(one.clone(), history.clone(), writer, 40))).collect();
        for writer in writers {
            soon("a writer", writer).await.expect("the writer");
        }
        retried("preparing", || one.prepare()).await;
        let outcome = retried("publishing", || one.publish()).await;
        assert!(matches!(outcome, SealOutcome::Won(_)), "a repeat recognises its own seal");
        history.won(&one.key);
        for index in 0..4 {
            let bytes = retried("reading", || one.read(index, 0, None)).await;
            assert_eq!(bytes.len(), 40 * RECORD_LENGTH);
            history.content(&one.key, index, bytes);
        }
        assert_eq!(history.check(true), Ok(()), "round {round}");
        let true_one = Attempt::new(&instance.store, one.key.clone(), spec(stage.kind(), 4));
        assert_refused!(true_one.put(0, None, bytes::Bytes::from_static(b"late")).await, StoreErrorKind::AlreadySealed);
    }
}

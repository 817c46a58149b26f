//! Who decides which attempt of a generation is the content of a partition.
//!
//! A single node decides by itself, in memory: a decision that was not published before a crash is
//! void, because unsealed attempts do not survive one. A published seal is found again by recovery
//! and wins from then on. Stores whose medium is shared arbitrate by themselves.

use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::HashMap;
use store_api::{AttemptId, DatasetKey, NodeId, NodeLife, PartitionKey, StoreError};

/// Decides between attempts of one generation.
#[async_trait]
pub trait SealArbiter: Send + Sync + 'static {
    /// Compare-and-set: the first proposal for (partition, generation) wins; answers the winner.
    /// Idempotent. Cancelled half-way: decided or not; repeat it. Errors: `Unavailable` (the
    /// prepared seal is kept and proposed again).
    async fn decide(&self, partition: &PartitionKey, attempt: AttemptId, node: &NodeId, life: NodeLife) -> Result<AttemptId, StoreError>;

    /// Takes back a decision for an attempt whose publication failed for good. Does nothing when
    /// another attempt won.
    fn withdraw(&self, partition: &PartitionKey, attempt: AttemptId);

    /// Forgets what was decided about a dataset; called when it or its job is released.
    fn forget(&self, dataset: &DatasetKey);
}

type Decisions = HashMap<(u64, u32), u32>;

/// The arbiter of a single node.
#[derive(Debug, Default)]
pub struct LocalArbiter {
    decided: Mutex<HashMap<DatasetKey, Decisions>>,
}

impl LocalArbiter {
    /// An arbiter that has decided nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

#[async_trait]
impl SealArbiter for LocalArbiter {
    async fn decide(&self, partition: &PartitionKey, attempt: AttemptId, _: &NodeId, _: NodeLife) -> Result<AttemptId, StoreError> {
        let mut decided = self.decided.lock();
        let of_dataset = decided.entry(partition.dataset.clone()).or_default();
        let winner = *of_dataset.entry((partition.partition.get(), attempt.generation)).or_insert(attempt.attempt);
        Ok(AttemptId::new(attempt.generation, winner))
    }

    fn withdraw(&self, partition: &PartitionKey, attempt: AttemptId) {
        let mut decided = self.decided.lock();
        let Some(of_dataset) = decided.get_mut(&partition.dataset) else { return };
        let place = (partition.partition.get(), attempt.generation);
        if of_dataset.get(&place) == Some(&attempt.attempt) {
            of_dataset.remove(&place);
        }
    }

    fn forget(&self, dataset: &DatasetKey) {
        self.decided.lock().remove(dataset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store_api::{DatasetId, JobId, JobIncarnation, PartitionId};

    fn partition(number: u64) -> PartitionKey {
        let dataset =
            DatasetKey { job: JobId::new("j").unwrap(), incarnation: JobIncarnation::new(1), dataset: DatasetId::new("d").unwrap() };
        dataset.partition(PartitionId::new(number))
    }

    #[tokio::test]
    async fn the_first_of_a_generation_wins_and_a_repeat_changes_nothing() {
        let (arbiter, node, life) = (LocalArbiter::new(), NodeId::new("n").unwrap(), NodeLife::new(1));
        let (one, two, later) = (AttemptId::new(0, 1), AttemptId::new(0, 2), AttemptId::new(1, 0));
        for (proposed, winner) in [(one, one), (two, one), (one, one), (later, later)] {
            assert_eq!(arbiter.decide(&partition(0), proposed, &node, life).await.unwrap(), winner);
        }
        assert_eq!(arbiter.decide(&partition(1), two, &node, life).await.unwrap(), two);
        arbiter.withdraw(&partition(0), two);
        assert_eq!(arbiter.decide(&partition(0), two, &node, life).await.unwrap(), one);
        arbiter.withdraw(&partition(0), one);
        assert_eq!(arbiter.decide(&partition(0), two, &node, life).await.unwrap(), two);
        arbiter.forget(&partition(0).dataset);
        assert_eq!(arbiter.decide(&partition(1), one, &node, life).await.unwrap(), one);
    }
}

//! Which seal counts, decided once for all nodes: a conditional put in the journal's catalog.

use super::Coordinator;
use super::calls::SealProposal;
use super::error::CoordinatorResult;
use super::journal::SealKey;
use store_api::AttemptId;

impl SealProposal {
    fn key(&self) -> SealKey {
        SealKey {
            job: self.key.job.clone(),
            dataset: self.key.dataset.clone(),
            partition: self.key.partition,
            generation: self.attempt.generation,
        }
    }

    fn by(&self) -> String {
        format!("{} {}", self.node, self.life)
    }
}

impl Coordinator {
    /// The attempt that is the content of a generation of a partition: the first that was proposed.
    /// Durable when it returns, idempotent. Errors: `Journal`; nothing is known then, repeat it.
    pub async fn decide_seal(&self, proposal: &SealProposal) -> CoordinatorResult<AttemptId> {
        let winner = self.journal.decide_seal(&proposal.key(), proposal.attempt.attempt, &proposal.by()).await?;
        Ok(AttemptId::new(proposal.attempt.generation, winner))
    }

    /// Takes a decision for this attempt of this node back: its publication failed for good.
    /// Idempotent. Errors: `Journal`; repeat it.
    pub async fn withdraw_seal(&self, proposal: &SealProposal) -> CoordinatorResult<()> {
        Ok(self.journal.withdraw_seal(&proposal.key(), proposal.attempt.attempt, &proposal.by()).await?)
    }
}

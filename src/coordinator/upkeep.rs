//! What runs out by itself: the silence of members, graces, delays; and jobs that have ended.

use super::error::CoordinatorResult;
use super::{Coordinator, JobKey, JobSlot};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

impl Coordinator {
    /// Runs the upkeep until the task group is cancelled or the coordinator is dropped.
    pub(super) fn start_upkeep(self: &Arc<Self>) {
        let coordinator: Weak<Self> = Arc::downgrade(self);
        let (clock, interval) = (self.clock.clone(), self.config.check_interval.max(Duration::from_millis(1)));
        let mut asked_at = clock.monotonic();
        self.tasks.spawn(async move {
            loop {
                clock.sleep(interval).await;
                let Some(coordinator) = coordinator.upgrade() else { return };
                coordinator.look_around().await;
                if clock.monotonic().saturating_sub(asked_at) >= coordinator.config.authority_interval {
                    coordinator.forget_ended().await;
                    asked_at = clock.monotonic();
                }
            }
        });
    }

    /// One look: members that fell silent, plans that are due, plans that became ready.
    pub async fn look_around(&self) {
        let now = self.now();
        let silent = self.nodes.lock().expire(now, self.config.suspect_after(), self.config.heartbeat_timeout);
        let mut changed = BTreeMap::new();
        for node in silent {
            tracing::warn!(%node, "a node is silent");
            self.look_at_node(&node, &mut changed);
        }
        for slot in self.slots() {
            let wants_plan = {
                let mut state = slot.state.lock();
                state.expire_workers(now, self.config.heartbeat_timeout);
                state.wants_plan(now)
            };
            if wants_plan {
                if let Err(error) = self.plan_in_turn(slot).await {
                    tracing::warn!(%error, "planning is put off");
                }
                continue;
            }
            let nodes = self.nodes_now();
            let mut state = slot.state.lock();
            state.tell_ready(now, &nodes);
            state.tell_standing();
        }
    }

    /// Forgets jobs that are over for certain.
    pub async fn forget_ended(&self) {
        for slot in self.slots() {
            if self.authority.is_over(&slot.key).await
                && let Err(error) = self.end_job(&slot.key).await
            {
                tracing::warn!(job = %slot.key.job, %error, "an ended job could not be forgotten yet");
            }
        }
    }

    /// A job has ended: everything about it is forgotten and its event streams end. Idempotent.
    /// Errors: `Journal`; repeat it.
    pub async fn end_job(&self, job: &JobKey) -> CoordinatorResult<()> {
        let job = job.clone();
        self.run_to_end(|this| async move {
            let _creation = this.creation.lock().await;
            match this.slot(&job) {
                Ok(slot) => this.forget_slot(&slot).await,
                Err(_) => Ok(()),
            }
        })
        .await
    }

    /// `creation` must be held.
    pub(super) async fn forget_slot(&self, slot: &Arc<JobSlot>) -> CoordinatorResult<()> {
        let _gate = slot.gate.lock().await;
        self.journal.forget(&slot.key).await?;
        let mut jobs = self.jobs.write();
        if jobs.get(&slot.key.job).is_some_and(|known| known.key == slot.key) {
            jobs.remove(&slot.key.job);
        }
        drop(jobs);
        slot.state.lock().events().close();
        Ok(())
    }

    /// The jobs that have a graph, by id.
    #[must_use]
    pub fn job_keys(&self) -> Vec<JobKey> {
        let mut keys: Vec<JobKey> = self.slots().iter().map(|slot| slot.key.clone()).collect();
        keys.sort();
        keys
    }
}

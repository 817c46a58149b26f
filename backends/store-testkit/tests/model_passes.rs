//! The suite passes on the model, in each of the profiles that it stands for; together they meet
//! every need, so that no case is left out for all of them.

use async_trait::async_trait;
use forebay_store_testkit::model_store::{ModelProfile, ModelStore};
use forebay_store_testkit::suite::{cases, not_applicable};
use forebay_store_testkit::{Instance, StoreFactory, conformance_suite};
use std::sync::Arc;
use store_api::{DatasetKind, Retention, SystemClock};

struct Profiled {
    profile: ModelProfile,
    kind: DatasetKind,
}

impl Profiled {
    fn with_budget(&self, budget_bytes: u64) -> Instance {
        let store = ModelStore::new(self.profile.clone(), budget_bytes, SystemClock::shared());
        Instance::new(store.clone()).on(store)
    }
}

#[async_trait]
impl StoreFactory for Profiled {
    fn kind(&self) -> DatasetKind {
        self.kind
    }

    async fn fresh(&self) -> Instance {
        self.with_budget(1 << 30)
    }

    async fn fresh_small(&self) -> Instance {
        self.with_budget(self.small_budget_bytes())
    }

    async fn reopen(&self, instance: Instance) -> Option<Instance> {
        let store = instance.into_medium::<Arc<ModelStore>>()?.reopened();
        Some(Instance::new(store.clone()).on(store))
    }
}

fn sealed_only() -> Profiled {
    Profiled { profile: ModelProfile::sealed_only(), kind: DatasetKind::Blocking }
}

fn surviving() -> Profiled {
    Profiled { profile: ModelProfile::surviving(), kind: DatasetKind::Blocking }
}

fn arbitrating() -> Profiled {
    Profiled { profile: ModelProfile::arbitrating(), kind: DatasetKind::Durable }
}

fn pipelined(retention: Retention) -> Profiled {
    Profiled { profile: ModelProfile::pipelined(), kind: DatasetKind::Pipelined(retention) }
}

conformance_suite!(sealed_only_model, sealed_only());
conformance_suite!(surviving_model, surviving());
conformance_suite!(arbitrating_model, arbitrating());
conformance_suite!(until_acknowledged_model, pipelined(Retention::UntilAcknowledged));
conformance_suite!(best_effort_model, pipelined(Retention::BestEffort));
conformance_suite!(since_checkpoint_model, pipelined(Retention::SinceCheckpoint));

#[test]
fn every_case_applies_to_some_profile() {
    let left_out = [sealed_only(), surviving(), arbitrating(), pipelined(Retention::UntilAcknowledged)].map(not_applicable);
    for case in cases() {
        assert!(left_out.iter().any(|names| !names.contains(&case.name)), "{} applies to nothing", case.name);
    }
}

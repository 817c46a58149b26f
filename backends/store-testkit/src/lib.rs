//! One conformance suite, reference model and fault tools for every partition store.
//!
//! | module | what it holds |
//! |---|---|
//! | [`suite`] | the one list of cases, the macro that makes a test of each, what a case needs |
//! | [`conformance`] | the cases, by subject |
//! | [`scenario`] | keys, specs, patterns and the calls that cases make |
//! | [`model`] | a plain sequential model of attempts, offsets, states and floors |
//! | [`model_store`] | the model behind the trait: the store that the suite itself is checked with |
//! | [`machine`] | random operations against model and store, answers compared |
//! | [`fault_store`] | a decorator that fails, delays and cancels by a seed |
//! | [`history`] | what concurrent actors saw, recorded and checked |
//!
//! # The promise
//! A store that passes keeps what the docs of [`store_api::PartitionStore`] say: each case tests one
//! sentence of them. Differences between stores are declared ([`store_api::Capabilities`],
//! [`StoreFactory`]), never guessed from a store's name. A case whose needs are not declared is
//! listed as not applicable and does nothing; a case that applies and never asks for a store fails.
//!
//! # Use
//! In `tests/conformance.rs` of a backend, with this crate as a dev-dependency:
//! ```
//! use forebay_store_testkit::{Instance, StoreFactory, conformance_suite};
//! use forebay_store_testkit::model_store::{ModelProfile, ModelStore};
//! use store_api::{DatasetKind, SystemClock};
//!
//! struct Memory;
//!
//! #[async_trait::async_trait]
//! impl StoreFactory for Memory {
//!     fn kind(&self) -> DatasetKind {
//!         DatasetKind::Blocking
//!     }
//!     async fn fresh(&self) -> Instance {
//!         let store = ModelStore::new(ModelProfile::sealed_only(), 1 << 30, SystemClock::shared());
//!         Instance::new(store) // `.on(tempdir)` keeps a medium alive with its store
//!     }
//!     async fn fresh_small(&self) -> Instance {
//!         let store = ModelStore::new(ModelProfile::sealed_only(), self.small_budget_bytes(), SystemClock::shared());
//!         Instance::new(store)
//!     }
//! }
//!
//! conformance_suite!(memory, Memory);
//! ```
//! The macro makes `mod memory` with one `#[test]` per case, each on its own runtime and with a
//! deadline, and the test `memory::not_applicable`, which prints the cases left out.
//! `FOREBAY_LONG=1` runs ten times the rounds; `FOREBAY_SEED=n` repeats a random run.
//!
//! This crate knows no backend. It is a dev-dependency only: it panics where a store is wrong.
#![expect(clippy::panic, reason = "a case that fails panics, that is what it is for")]
#![expect(clippy::expect_used, reason = "fixed names and counts of the cases; a panic is a failed case")]
#![expect(clippy::indexing_slicing, reason = "cases cut the patterns that they made themselves")]
#![expect(clippy::print_stderr, reason = "seeds and cases that do not apply are shown with the test's output")]

pub mod conformance;
pub mod fault_store;
pub mod history;
pub mod machine;
pub mod model;
pub mod model_store;
pub mod scenario;
pub mod suite;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;
use store_api::{DatasetKind, PartitionStore, SharedStore, StoreClass};

/// A store under test and, if it has one, its medium.
pub struct Instance {
    /// The store. Not recovered yet: the suite calls [`PartitionStore::recover`] itself.
    pub store: SharedStore,
    medium: Option<Box<dyn Any + Send + Sync>>,
}

impl Instance {
    /// A store without a medium that outlives it.
    pub fn new(store: Arc<impl PartitionStore>) -> Self {
        Self { store, medium: None }
    }

    /// Keeps `medium` (a temporary directory, a shared in-memory object store, a server) as long as
    /// the store.
    #[must_use]
    pub fn on<M: Any + Send + Sync>(mut self, medium: M) -> Self {
        self.medium = Some(Box::new(medium));
        self
    }

    /// Drops the store and gives the medium back; `None` when there is none of this type. For
    /// [`StoreFactory::reopen`].
    #[must_use]
    pub fn into_medium<M: Any + Send + Sync>(self) -> Option<M> {
        drop(self.store);
        self.medium.and_then(|medium| medium.downcast::<M>().ok()).map(|medium| *medium)
    }

    /// Takes both apart; for a factory that must close or wait for the store before it opens the
    /// medium again.
    #[must_use]
    pub fn into_parts<M: Any + Send + Sync>(self) -> Option<(SharedStore, M)> {
        let medium = self.medium?.downcast::<M>().ok()?;
        Some((self.store, *medium))
    }
}

/// How much a store can do in a second; scales the number of rounds of heavy cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// In this process or on a local disk.
    Quick,
    /// Behind a server: a tenth of the rounds.
    Slow,
}

/// What of the trait a store answers for itself. A store in this process answers for all of it;
/// one that stands behind HTTP does not see budgets, say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// `reserve` takes from a bounded budget.
    pub reserves: bool,
    /// `held` counts what a job holds.
    pub counts_held: bool,
    /// `recover` reports what the medium holds.
    pub reports_recovery: bool,
    /// `close` ends this store and nothing else.
    pub closes: bool,
    /// `prepare` and `publish` are two steps, and between them the content is not visible.
    pub prepares: bool,
    /// It keeps one class and refuses the others.
    pub keeps_one_class: bool,
    /// One of several attempts can be released by itself, and so can all below a generation.
    pub releases_attempts: bool,
}

impl Reach {
    /// All of it.
    pub const FULL: Self = Self {
        reserves: true,
        counts_held: true,
        reports_recovery: true,
        closes: true,
        prepares: true,
        keeps_one_class: true,
        releases_attempts: true,
    };
    /// What is left of it behind a wire that carries neither budgets nor the store's own life, and
    /// behind a service that keeps every class, arbitrates at the seal and fences at the opening.
    pub const REMOTE: Self = Self {
        reserves: false,
        counts_held: false,
        reports_recovery: false,
        closes: false,
        prepares: false,
        keeps_one_class: false,
        releases_attempts: false,
    };
}

/// Makes stores for the suite. One implementation per backend.
#[async_trait::async_trait]
pub trait StoreFactory: Send + Sync + 'static {
    /// The kind of dataset that the cases write. For a pipelined store its strictest retention;
    /// cases about one retention pick it from the capabilities.
    fn kind(&self) -> DatasetKind;

    /// A store on an empty medium of its own, with at least 64 MiB to reserve. Called many times,
    /// at the same time too.
    async fn fresh(&self) -> Instance;

    /// A store on an empty medium that has [`StoreFactory::small_budget_bytes`] or somewhat less to
    /// reserve.
    async fn fresh_small(&self) -> Instance;

    /// Budget of [`StoreFactory::fresh_small`], in bytes. The cases write three times as much.
    fn small_budget_bytes(&self) -> u64 {
        1 << 20
    }

    /// Opens the medium of `instance` again; the suite holds no other handle to the store. In about
    /// half of the calls the store has been closed before; in the others this stands for a kill,
    /// as far as it can in one process. `None` for stores whose medium ends with them.
    async fn reopen(&self, instance: Instance) -> Option<Instance> {
        drop(instance);
        None
    }

    /// Whether `publish` may answer `Lost` because the medium arbitrates.
    fn arbitrates(&self) -> bool {
        self.kind().class() == StoreClass::Durable
    }

    /// How many rounds heavy cases make.
    fn pace(&self) -> Pace {
        Pace::Quick
    }

    /// How long the cases wait for what must come soon: a wake-up, the end of a seal, memory that is
    /// given back.
    fn patience(&self) -> Duration {
        scenario::SOON
    }

    /// What of the trait the store answers for itself.
    fn reach(&self) -> Reach {
        Reach::FULL
    }
}

//! What all parts of the store share.

use crate::attempt::{Attempt, Cutting};
use crate::bucket::Bucket;
use crate::cache::ManifestCache;
use crate::config::Config;
use crate::layout::{ContentName, Layout};
use crate::manifest::{Content, Sealed};
use crate::probe::Probed;
use crate::registry::Registry;
use object_store::path::Path;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use store_api::{
    Arbitration, AttemptKey, ByteBudget, Capabilities, DatasetSpec, NodeId, NodeLife, Operation, ReadBudget, SharedClock, StoreError,
    StoreErrorKind, TaskGroup,
};
use tokio::sync::watch;

/// Shared by the store, its background work and its streams.
pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) bucket: Bucket,
    pub(crate) layout: Layout,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: TaskGroup,
    pub(crate) node: NodeId,
    pub(crate) life: NodeLife,
    pub(crate) capabilities: Capabilities,
    pub(crate) probed: Probed,
    pub(crate) cutting: Cutting,
    /// Memory for bytes that the object store has not accepted.
    pub(crate) budget: ByteBudget,
    /// Memory for bytes on their way to readers.
    pub(crate) reads: ReadBudget,
    pub(crate) registry: Registry,
    pub(crate) cache: ManifestCache,
    pub(crate) numbers: AtomicU64,
    /// Number of background tasks that run.
    pub(crate) background: watch::Sender<usize>,
    pub(crate) is_closing: AtomicBool,
    pub(crate) is_recovered: AtomicBool,
}

/// Counts a background task until it is dropped.
struct Counted(watch::Sender<usize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running = running.saturating_sub(1));
    }
}

impl Inner {
    /// Runs background work to its end.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.background.send_modify(|running| *running = running.saturating_add(1));
        let counted = Counted(self.background.clone());
        self.tasks.spawn_to_end(async move {
            work.await;
            drop(counted);
        });
    }

    /// Returns once no background work runs.
    pub(crate) async fn settled(&self) {
        let mut running = self.background.subscribe();
        // Fails only when the sender is gone, and it is borrowed here.
        drop(running.wait_for(|running| *running == 0).await);
    }

    /// Refuses when the store is closing.
    pub(crate) fn check_open(&self, operation: Operation, subject: impl fmt::Display) -> Result<(), StoreError> {
        if self.is_closing.load(Ordering::Acquire) { Err(StoreError::new(StoreErrorKind::Closing, operation, subject)) } else { Ok(()) }
    }

    /// A number that no other object of this life has.
    pub(crate) fn draw_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// A name for a new piece of content.
    pub(crate) fn new_content(&self, attempt: &AttemptKey) -> (ContentName, Path) {
        let name = ContentName { attempt: attempt.clone(), node: self.node.clone(), life: self.life, number: self.draw_number() };
        let path = self.layout.content(&name);
        (name, path)
    }

    /// Where the seal of an attempt stands.
    pub(crate) fn seal_path(&self, key: &AttemptKey, spec: &DatasetSpec) -> Path {
        match spec.arbitration {
            Arbitration::Store => self.layout.generation_seal(&key.partition, key.attempt.generation),
            Arbitration::Engine => self.layout.attempt_seal(key),
        }
    }

    /// Names of the content that a manifest refers to.
    pub(crate) fn content_paths(&self, sealed: &Sealed) -> Vec<Path> {
        let Content::Objects(content) = &sealed.content else { return Vec::new() };
        let manifest = &sealed.manifest;
        let name = |number| ContentName { attempt: manifest.attempt.clone(), node: manifest.node.clone(), life: manifest.life, number };
        content.objects.iter().map(|(number, _)| self.layout.content(&name(*number))).collect()
    }

    /// Cuts what is buffered, as much as there is.
    pub(crate) fn cut(&self, attempt: &Attempt, is_last: bool) {
        attempt.lock().cut(&self.cutting, is_last, || self.new_content(&attempt.key));
    }
}

//! The memory budget and its parts, and what follows from them: settings that are left out suit the
//! memory that is there.

use crate::config::units::ByteSize;
use crate::config::{Config, ObjectKind};

/// Largest document when there is memory enough.
const MAX_DOCUMENT: ByteSize = ByteSize::mib(32);
/// Largest frame when there is memory enough.
const MAX_FRAME: ByteSize = ByteSize::mib(4);
/// Largest append that is stored wholly or not at all, when there is memory enough.
const ATOMIC_APPEND: ByteSize = ByteSize::mib(8);
/// Block cache of the index when there is memory enough.
const INDEX_CACHE: ByteSize = ByteSize::mib(16);
/// Cache of manifests when there is memory enough.
const MANIFEST_CACHE: ByteSize = ByteSize::mib(64);
/// What a connection may hold at the least: the buffer of an HTTP/1.1 connection, and the smallest
/// window of an HTTP/2 one (RFC 9113, 6.9.2).
pub(in crate::config) const MIN_CONNECTION: ByteSize = ByteSize::kib(64);
/// Connections when their number is left out: at least and at most.
const CONNECTIONS: (u64, u64) = (16, 4096);

/// The parts of the memory budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets {
    /// Bytes of pipelined partitions. 40 %: they live in memory, the others only pass through.
    pub pipelined: ByteSize,
    /// Bytes of blocking partitions on their way to disk. 15 %: a disk drains fast.
    pub blocking: ByteSize,
    /// Bytes of durable partitions on their way to the object store. 10 %: slower to drain, but
    /// parts are large and few are under way.
    pub durable: ByteSize,
    /// Bytes on their way to readers, from every medium. 10 %.
    pub reads: ByteSize,
    /// Bytes that connections have sent and no call has taken. 10 %.
    pub connections: ByteSize,
    /// JSON documents that are being read. 5 %.
    pub documents: ByteSize,
}

impl Budgets {
    /// The parts of a configuration: those that are set, and shares of the whole for the others. A
    /// store that is off gets nothing.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let share = |set: Option<ByteSize>, percent: u64| set.unwrap_or_else(|| config.node.memory.percent(percent));
        let only_if = |is_on: bool, size: ByteSize| if is_on { size } else { ByteSize::new(0) };
        let has_objects = config.object.kind != ObjectKind::None;
        Self {
            pipelined: only_if(config.memory.enabled, share(config.memory.budget, 40)),
            blocking: only_if(config.disk.enabled, share(config.disk.budget, 15)),
            durable: only_if(has_objects, share(config.object.budget, 10)),
            reads: share(config.limits.read_budget, 10),
            connections: share(config.http.budget, 10),
            documents: config.node.memory.percent(5),
        }
    }

    /// Every part with its name, as metrics and messages call it.
    #[must_use]
    pub const fn parts(&self) -> [(&'static str, ByteSize); 6] {
        [
            ("pipelined", self.pipelined),
            ("blocking", self.blocking),
            ("durable", self.durable),
            ("reads", self.reads),
            ("connections", self.connections),
            ("documents", self.documents),
        ]
    }

    /// All parts together.
    #[must_use]
    pub fn total(&self) -> ByteSize {
        ByteSize::new(self.parts().iter().fold(0_u64, |sum, (_, part)| sum.saturating_add(part.bytes())))
    }

    /// The smallest budget of a store that is on.
    fn smallest_store(&self) -> ByteSize {
        let stores = [self.pipelined, self.blocking, self.durable];
        stores.into_iter().filter(|part| part.bytes() > 0).min().unwrap_or(ByteSize::new(u64::MAX))
    }
}

impl Config {
    /// Largest JSON document: `http.max_document`, or what suits the memory.
    #[must_use]
    pub fn max_document(&self) -> ByteSize {
        self.http.max_document.unwrap_or_else(|| MAX_DOCUMENT.min(Budgets::of(self).documents))
    }

    /// Largest payload of a frame: `limits.max_frame`, or what suits the memory.
    #[must_use]
    pub fn max_frame(&self) -> ByteSize {
        self.limits.max_frame.unwrap_or_else(|| MAX_FRAME.min(Budgets::of(self).smallest_store().percent(50)))
    }

    /// Largest append that is stored wholly or not at all: `limits.atomic_append`, or what suits the
    /// memory, and never less than a chunk.
    #[must_use]
    pub fn atomic_append(&self) -> ByteSize {
        let fitting = || ATOMIC_APPEND.min(Budgets::of(self).smallest_store().percent(50));
        self.limits.atomic_append.unwrap_or_else(|| fitting().max(self.limits.chunk))
    }

    /// Block cache of the index: `disk.index_cache`, or what suits the memory.
    #[must_use]
    pub fn index_cache(&self) -> ByteSize {
        self.disk.index_cache.unwrap_or_else(|| INDEX_CACHE.min(self.node.memory.percent(3)))
    }

    /// Cache of the manifests of durable partitions: what suits the memory.
    #[must_use]
    pub fn manifest_cache(&self) -> ByteSize {
        MANIFEST_CACHE.min(self.node.memory.percent(3))
    }

    /// Most that one connection may have sent ahead: the windows of its streams, and never less than
    /// the buffer of a connection without streams.
    #[must_use]
    pub fn connection_window(&self) -> ByteSize {
        let windows = self.http.stream_window.bytes().saturating_mul(u64::from(self.http.max_streams));
        ByteSize::new(windows).max(MIN_CONNECTION)
    }

    /// Most connections: `http.max_connections`, or as many as their part of the memory holds.
    #[must_use]
    pub fn max_connections(&self) -> usize {
        self.http.max_connections.unwrap_or_else(|| {
            let fitting = Budgets::of(self).connections.bytes() / self.connection_window().bytes();
            usize::try_from(fitting.clamp(CONNECTIONS.0, CONNECTIONS.1)).unwrap_or(usize::MAX)
        })
    }
}

#[cfg(test)]
mod tests;

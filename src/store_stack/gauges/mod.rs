//! What the stores hold, asked for when the metrics page is made: budgets by part, spill files, data
//! directories by number. Paths and jobs are no labels.

use crate::config::{Budgets, Config};
use crate::metrics::{Source, SourceLabels};
use std::sync::{Arc, Weak};
use store_api::ReadBudget;
use store_disk::DiskStore;
use store_memory::MemoryStore;
use store_object::ObjectStore;

fn part(name: &str) -> SourceLabels {
    vec![("part", name.to_owned())]
}

/// Every gauge of the stores. Sources do not keep the stores: these keep the metrics that hold the
/// sources.
pub(super) fn sources(
    config: &Config,
    reads: &ReadBudget,
    memory: Option<&Arc<MemoryStore>>,
    disk: &Arc<DiskStore>,
    object: Option<&Arc<ObjectStore>>,
) -> Vec<Source> {
    let limits: Vec<_> = Budgets::of(config).parts().into_iter().map(|(name, size)| (part(name), size.bytes())).collect();
    let is_on = config.disk.enabled;
    let (of_used, of_free, of_held) = (Arc::downgrade(disk), Arc::downgrade(disk), Arc::downgrade(disk));
    let (memory_weak, object_weak) = (memory.map(Arc::downgrade), object.map(Arc::downgrade));
    let reads = reads.clone();
    let mut sources = vec![
        by_label("budget_limit_bytes", "Memory that each part may use", move || limits.clone()),
        by_label("budget_used_bytes", "Memory that each part uses now", move || {
            let disk = of_used.upgrade().filter(|_| is_on);
            let used = [
                ("pipelined", upgraded(memory_weak.as_ref()).map(|store| store.reserved_bytes())),
                ("blocking", disk.map(|store| store.unwritten_bytes())),
                ("durable", upgraded(object_weak.as_ref()).map(|store| store.unsent_bytes())),
                ("reads", Some(reads.used_bytes())),
            ];
            used.into_iter().filter_map(|(name, bytes)| bytes.map(|bytes| (part(name), bytes))).collect()
        }),
        by_label("disk_free_bytes", "Room beyond the reserve, by number of the data directory", move || {
            let directories = of_free.upgrade().map(|disk| disk.directories()).unwrap_or_default();
            numbered(directories.into_iter().map(|status| status.free_bytes))
        }),
        by_label("disk_held_bytes", "Bytes in data files, by number of the data directory", move || {
            numbered(of_held.upgrade().map(|disk| disk.file_bytes()).unwrap_or_default().into_iter())
        }),
    ];
    if let Some(memory) = memory {
        let (of_spill, of_waiting) = (Arc::downgrade(memory), Arc::downgrade(memory));
        sources.push(Source::gauge("spilled_bytes", "Bytes of pipelined partitions in spill files", move || {
            of_spill.upgrade().map_or(0, |store| store.spilled_bytes())
        }));
        sources.push(Source::gauge("pipelined_waiting", "Appends that wait for memory", move || {
            of_waiting.upgrade().map_or(0, |store| store.n_waiting())
        }));
    }
    sources
}

fn by_label(name: &'static str, help: &'static str, read: impl Fn() -> Vec<(SourceLabels, u64)> + Send + Sync + 'static) -> Source {
    Source { name, help, is_counter: false, read: Box::new(read) }
}

fn upgraded<T>(store: Option<&Weak<T>>) -> Option<Arc<T>> {
    store.and_then(Weak::upgrade)
}

fn numbered(values: impl Iterator<Item = u64>) -> Vec<(SourceLabels, u64)> {
    values.enumerate().map(|(number, bytes)| (vec![("directory", number.to_string())], bytes)).collect()
}

#[cfg(test)]
mod tests;

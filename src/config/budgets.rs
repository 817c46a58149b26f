//! The memory budget and its parts.

use super::Config;
use super::units::ByteSize;

/// The parts of the memory budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets {
    /// Bytes of pipelined partitions. 50 %: they live in memory, the others only pass through.
    pub pipelined: ByteSize,
    /// Bytes of blocking partitions on their way to disk. 20 %: a disk drains fast.
    pub blocking: ByteSize,
    /// Bytes of durable partitions on their way to the object store. 15 %: slower to drain, but
    /// parts are large and few are under way.
    pub durable: ByteSize,
    /// Bytes from the object store on their way to readers. 5 %.
    pub durable_reads: ByteSize,
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
        let has_objects = config.object.kind != super::ObjectKind::None;
        Self {
            pipelined: only_if(config.memory.enabled, share(config.memory.budget, 50)),
            blocking: only_if(config.disk.enabled, share(config.disk.budget, 20)),
            durable: only_if(has_objects, share(config.object.budget, 15)),
            durable_reads: only_if(has_objects, share(config.object.read_budget, 5)),
            documents: config.node.memory.percent(5),
        }
    }

    /// All parts together.
    #[must_use]
    pub fn total(&self) -> ByteSize {
        let parts = [self.pipelined, self.blocking, self.durable, self.durable_reads, self.documents];
        ByteSize::new(parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_leave_air_and_what_is_off_gets_nothing() {
        let mut config = Config::embedded();
        config.node.memory = ByteSize::mib(1000);
        let budgets = Budgets::of(&config);
        assert_eq!(budgets.pipelined, ByteSize::mib(500));
        assert_eq!(budgets.total(), ByteSize::mib(950));
        config.disk.enabled = false;
        config.object.kind = super::super::ObjectKind::None;
        config.memory.budget = Some(ByteSize::mib(7));
        let budgets = Budgets::of(&config);
        assert_eq!((budgets.blocking, budgets.durable, budgets.pipelined), (ByteSize::new(0), ByteSize::new(0), ByteSize::mib(7)));
    }
}

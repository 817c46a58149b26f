//! Positions of all consumers of one subpartition, and the lowest of them.
//!
//! Counts how many consumers stand at each offset, so that an acknowledgement costs the logarithm of
//! the number of different positions, not the number of consumers: a broadcast may have millions.

use std::collections::{BTreeMap, HashMap};
use store_api::Offset;

/// A consumer of a stored subpartition: number of its group, and logical subpartition.
pub(crate) type Consumer = (usize, u32);

/// Where the consumers of one stored subpartition stand.
#[derive(Debug)]
pub(crate) struct Positions {
    start: Offset,
    moved: HashMap<Consumer, Offset>,
    n_at: BTreeMap<Offset, u64>,
}

impl Positions {
    /// `n_consumers` of them, all at `start`.
    pub(crate) fn new(start: Offset, n_consumers: u64) -> Self {
        Self { start, moved: HashMap::new(), n_at: BTreeMap::from([(start, n_consumers.max(1))]) }
    }

    /// Moves a consumer on to `to`; a position that is not higher changes nothing.
    pub(crate) fn advance(&mut self, consumer: Consumer, to: Offset) {
        let from = self.moved.get(&consumer).copied().unwrap_or(self.start);
        if to <= from {
            return;
        }
        if let Some(count) = self.n_at.get_mut(&from) {
            *count -= 1;
            if *count == 0 {
                self.n_at.remove(&from);
            }
        }
        *self.n_at.entry(to).or_insert(0) += 1;
        self.moved.insert(consumer, to);
    }

    /// The lowest position.
    pub(crate) fn lowest(&self) -> Offset {
        self.n_at.first_key_value().map_or(self.start, |(offset, _)| *offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_lowest_is_the_minimum_of_all_positions(steps in proptest::collection::vec((0usize..3, 0u32..4, 0u64..50), 0..80), start in 0u64..10) {
            let mut positions = Positions::new(Offset::new(start), 12);
            let mut plain = HashMap::new();
            for (group, index, to) in steps {
                positions.advance((group, index), Offset::new(to));
                let at = plain.entry((group, index)).or_insert(start);
                *at = to.max(*at);
                let lowest = if plain.len() < 12 { start } else { plain.values().copied().min().unwrap_or(start) };
                prop_assert_eq!(positions.lowest(), Offset::new(lowest));
                prop_assert_eq!(positions.n_at.values().sum::<u64>(), 12, "consumers are neither lost nor made");
            }
        }
    }
}

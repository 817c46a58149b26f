//! Numbers that nobody can guess, drawn without ever failing: SHA-256 over a seed of the system and
//! a counter.

use crate::service::RandomSource;
use sha2::{Digest as _, Sha256};
use std::sync::atomic::{AtomicU64, Ordering};

/// A source that was seeded once by the system.
pub(super) struct SeededRandom {
    seed: [u8; 32],
    n_drawn: AtomicU64,
}

impl SeededRandom {
    /// A source with 256 bits from the system. Errors: the system gives none.
    pub(super) fn from_system() -> Result<Self, getrandom::Error> {
        let mut seed = [0_u8; 32];
        getrandom::fill(&mut seed)?;
        Ok(Self { seed, n_drawn: AtomicU64::new(0) })
    }
}

impl RandomSource for SeededRandom {
    fn next_u64(&self) -> u64 {
        let number = self.n_drawn.fetch_add(1, Ordering::Relaxed);
        let digest: [u8; 32] = Sha256::new().chain_update(self.seed).chain_update(number.to_le_bytes()).finalize().into();
        let (head, _) = digest.split_at(8);
        head.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_do_not_repeat_and_two_sources_differ() {
        let (one, two) = (SeededRandom::from_system().unwrap(), SeededRandom::from_system().unwrap());
        let drawn: HashSet<u64> = (0..1000).flat_map(|_| [one.next_u64(), two.next_u64()]).collect();
        assert_eq!(drawn.len(), 2000);
        let n_ones: u32 = drawn.iter().map(|number| number.count_ones()).sum();
        assert!((60_000..68_000).contains(&n_ones), "{n_ones} of 128,000 bits");
    }
}

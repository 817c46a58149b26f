//! kill -9 at random moments while partitions are written, sealed and released: what was acknowledged
//! holds after every restart, what was not is whole or not there.

use super::ledger::{Ledger, check_all, check_since, declare, start_writers};
use super::support::{LIMIT, Spec, eventually, is_long, join_all, seed};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Longest time between the first seal of a life and its kill.
const LONGEST_LIFE_MS: u64 = 400;

fn spec(root: &Path) -> Spec {
    Spec::new(&root.join("node")).with_objects(&root.join("objects"))
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_at_any_moment_loses_nothing_acknowledged_and_shows_nothing_half() {
    let seed = seed("crash");
    let mut rng = StdRng::seed_from_u64(seed);
    let n_moments = if is_long() { 50 } else { 8 };
    let root = tempfile::tempdir().expect("a directory");
    let (spec, ledger) = (spec(root.path()), Arc::new(Ledger::new(seed, &[])));
    let first = spec.start().await;
    declare(&first.api).await;
    first.kill().await;
    for moment in 0..n_moments {
        let node = spec.start().await;
        let (sealed_before, first) = (ledger.n_sealed(), ledger.next_partition());
        let writers = start_writers(&node.api, &ledger);
        eventually("a seal is acknowledged", LIMIT, async || (ledger.n_sealed() > sealed_before).then_some(())).await;
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..LONGEST_LIFE_MS))).await;
        node.kill().await;
        join_all(writers).await;
        let node = spec.start().await;
        println!("moment {moment}: {:?}", check_since(&node.api, &ledger, first).await);
        node.kill().await;
    }
    let node = spec.start().await;
    let checked = check_all(&node.api, &ledger).await;
    println!("after all: {checked:?}");
    node.kill().await;
    // F5: a restart that writes nothing, and one that is cut short, take nothing away.
    for cut_at_ms in [10, 50, 200] {
        let mut child = spec.spawn();
        tokio::time::sleep(Duration::from_millis(cut_at_ms)).await;
        child.kill().await.expect("killed");
        let node = spec.start().await;
        assert_eq!(check_all(&node.api, &ledger).await, checked, "after a start that was cut at {cut_at_ms} ms");
        node.kill().await;
    }
    assert!(ledger.n_sealed() >= 2 * n_moments, "too little was sealed to say anything");
}

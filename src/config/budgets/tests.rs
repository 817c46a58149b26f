//! Claims about the parts of the memory budget and what follows from them.

use super::*;
use crate::config::validate;
use proptest::prelude::*;

fn with_memory(memory: ByteSize) -> Config {
    let mut config = Config::embedded();
    config.node.memory = memory;
    config
}

#[test]
fn the_shares_leave_air_and_what_is_off_gets_nothing() {
    let mut config = with_memory(ByteSize::mib(1000));
    let budgets = Budgets::of(&config);
    assert_eq!(budgets.pipelined, ByteSize::mib(400));
    assert_eq!(budgets.total(), ByteSize::mib(900));
    config.disk.enabled = false;
    config.object.kind = ObjectKind::None;
    config.memory.budget = Some(ByteSize::mib(7));
    let budgets = Budgets::of(&config);
    assert_eq!((budgets.blocking, budgets.durable, budgets.pipelined), (ByteSize::new(0), ByteSize::new(0), ByteSize::mib(7)));
}

#[test]
fn parts_and_caches_fit_into_the_memory_by_default() {
    for mib in [128, 256, 1024, 64 * 1024] {
        let config = with_memory(ByteSize::mib(mib));
        let caches = config.index_cache().bytes() + config.manifest_cache().bytes();
        assert!(Budgets::of(&config).total().bytes() + caches <= config.node.memory.bytes(), "{mib} MiB");
    }
}

#[test]
fn every_default_suits_a_node_of_128_mib_and_of_any_size_above() {
    for mib in [128, 129, 200, 256, 512, 1024, 4096, 1 << 20] {
        assert_eq!(validate::problems(&with_memory(ByteSize::mib(mib))), Vec::<String>::new(), "{mib} MiB");
    }
}

#[test]
fn a_small_node_gets_small_limits_and_a_large_one_the_stated_ones() {
    let small = with_memory(ByteSize::mib(128));
    assert_eq!(small.max_document(), ByteSize::mib(128).percent(5));
    assert_eq!(small.atomic_append(), ByteSize::mib(128).percent(10).percent(50));
    let large = with_memory(ByteSize::gib(64));
    assert_eq!((large.max_document(), large.max_frame(), large.atomic_append()), (MAX_DOCUMENT, MAX_FRAME, ATOMIC_APPEND));
    assert_eq!((large.index_cache(), large.manifest_cache()), (INDEX_CACHE, MANIFEST_CACHE));
    assert_eq!(large.max_connections(), 4096);
}

#[test]
fn what_is_set_is_taken_as_it_is() {
    let mut config = with_memory(ByteSize::mib(128));
    config.http.max_document = Some(ByteSize::mib(3));
    config.limits.max_frame = Some(ByteSize::kib(5));
    config.limits.atomic_append = Some(ByteSize::mib(2));
    config.disk.index_cache = Some(ByteSize::mib(9));
    config.http.max_connections = Some(7);
    assert_eq!((config.max_document(), config.max_frame()), (ByteSize::mib(3), ByteSize::kib(5)));
    assert_eq!((config.atomic_append(), config.index_cache(), config.max_connections()), (ByteSize::mib(2), ByteSize::mib(9), 7));
}

proptest! {
    /// What clients may have sent ahead over all connections lies inside its part of the memory,
    /// whatever accepted configuration says.
    #[test]
    fn connections_times_windows_stay_inside_their_part(
        mib in 1_u64..100_000, streams in 0_u32..2000, window in 0_u64..(1 << 22), connections in proptest::option::of(0_usize..100_000),
        budget in proptest::option::of(0_u64..(1 << 34)),
    ) {
        let mut config = with_memory(ByteSize::mib(mib));
        config.http.max_streams = streams;
        config.http.stream_window = ByteSize::new(window);
        config.http.max_connections = connections;
        config.http.budget = budget.map(ByteSize::new);
        if validate::problems(&config).is_empty() {
            let ahead = config.max_connections() as u64 * config.connection_window().bytes();
            prop_assert!(ahead <= Budgets::of(&config).connections.bytes());
            prop_assert!(Budgets::of(&config).total() <= config.node.memory);
        }
    }
}

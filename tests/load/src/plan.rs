//! How much each workload moves: the full measurement, the quick one, and one that only tries the
//! machinery.

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;

/// How much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Profile {
    /// The volumes of the goals.
    Full,
    /// All in at most three minutes.
    Quick,
    /// Tries the machinery; its figures mean nothing.
    Tiny,
}

impl Profile {
    /// The name in the report.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Quick => "quick",
            Self::Tiny => "tiny",
        }
    }

    /// The volumes.
    pub(crate) const fn plan(self) -> Plan {
        match self {
            Self::Full => Plan::full(),
            Self::Quick => Plan::quick(),
            Self::Tiny => Plan::tiny(),
        }
    }
}

/// A square shuffle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Shuffle {
    /// Producers, and as many consumers.
    pub(crate) side: u32,
    /// Bytes of a block.
    pub(crate) block: usize,
    /// Runs that count.
    pub(crate) n_runs: usize,
    /// How many times faster than the reference it shall be.
    pub(crate) goal: f64,
}

/// The volumes of all workloads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Runs that count, after one that warms up, where nothing else is said.
    pub(crate) n_runs: usize,
    /// W1: partitions and their bytes.
    pub(crate) write: (u64, u64),
    /// W2: subpartitions, their bytes, and bytes read per measurement.
    pub(crate) read: (u32, u64, u64),
    /// W3.
    pub(crate) small_blocks: Shuffle,
    /// W3b.
    pub(crate) large_blocks: Shuffle,
    /// W4: bytes per throughput measurement.
    pub(crate) stream_bytes: u64,
    /// W4: seconds per latency measurement.
    pub(crate) latency_seconds: u32,
    /// W5: numbers of partitions.
    pub(crate) restarts: &'static [u64],
    /// W6: large partitions and their bytes, small partitions and theirs.
    pub(crate) durable: (u64, u64, u64, usize),
    /// W7: clients and seconds.
    pub(crate) crowd: (u32, u32),
    /// W8: scale of the demo.
    pub(crate) demo_scale: &'static str,
    /// W9: seals per producer.
    pub(crate) seals_each: u32,
    /// W10: bytes of records.
    pub(crate) decode_bytes: u64,
    /// Growth: numbers of partitions.
    pub(crate) growth_partitions: &'static [u64],
    /// Growth: numbers of clients.
    pub(crate) growth_clients: &'static [usize],
    /// Growth: partitions that each number of clients shares.
    pub(crate) growth_partitions_of_clients: u64,
}

impl Plan {
    const fn full() -> Self {
        Self {
            n_runs: 5,
            write: (64, 64 * MIB),
            read: (16, 64 * MIB, 4 * GIB),
            small_blocks: Shuffle { side: 1000, block: 1024, n_runs: 3, goal: 10.0 },
            large_blocks: Shuffle { side: 200, block: 64 * 1024, n_runs: 3, goal: 3.0 },
            stream_bytes: 4 * GIB,
            latency_seconds: 20,
            restarts: &[10_000, 100_000, 1_000_000],
            durable: (64, 32 * MIB, 10_000, 10 * 1024),
            crowd: (200, 600),
            demo_scale: "2",
            seals_each: 200,
            decode_bytes: 256 * MIB,
            growth_partitions: &[10, 100, 1_000, 10_000, 100_000],
            growth_clients: &[1, 8, 64, 200],
            growth_partitions_of_clients: 10_000,
        }
    }

    const fn quick() -> Self {
        Self {
            n_runs: 2,
            write: (16, 16 * MIB),
            read: (4, 64 * MIB, 512 * MIB),
            small_blocks: Shuffle { side: 100, block: 1024, n_runs: 1, goal: 10.0 },
            large_blocks: Shuffle { side: 40, block: 64 * 1024, n_runs: 1, goal: 3.0 },
            stream_bytes: 256 * MIB,
            latency_seconds: 2,
            restarts: &[1_000, 10_000],
            durable: (16, 8 * MIB, 300, 10 * 1024),
            crowd: (200, 15),
            demo_scale: "0.1",
            seals_each: 20,
            decode_bytes: 32 * MIB,
            growth_partitions: &[10, 100, 1_000],
            growth_clients: &[1, 8, 64],
            growth_partitions_of_clients: 500,
        }
    }

    const fn tiny() -> Self {
        Self {
            n_runs: 1,
            write: (4, MIB),
            read: (2, 2 * MIB, 16 * MIB),
            small_blocks: Shuffle { side: 12, block: 1024, n_runs: 1, goal: 10.0 },
            large_blocks: Shuffle { side: 4, block: 64 * 1024, n_runs: 1, goal: 3.0 },
            stream_bytes: 16 * MIB,
            latency_seconds: 1,
            restarts: &[100, 1_000],
            durable: (4, 2 * MIB, 20, 10 * 1024),
            crowd: (20, 4),
            demo_scale: "0.01",
            seals_each: 3,
            decode_bytes: 4 * MIB,
            growth_partitions: &[10, 100],
            growth_clients: &[1, 4],
            growth_partitions_of_clients: 50,
        }
    }
}

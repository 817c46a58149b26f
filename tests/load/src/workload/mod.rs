//! The workloads, by name.
//!
//! | module | workload |
//! |---|---|
//! | [`writes`] | W1: write and seal |
//! | [`reads`] | W2: warm reads |
//! | [`columns`] | W3, W3b: shuffles of small blocks |
//! | [`streams`] | W4: pipelined |
//! | [`restarts`] | W5: time to ready |
//! | [`durable`] | W6: through an object store |
//! | [`crowd`] | W7: memory under many clients |
//! | [`recovery`] | W8: a consumer is killed |
//! | [`small_seals`] | W9: small seals |
//! | [`decode`] | W10: decoding and placing in process |
//! | [`growth`] | costs by partitions and by clients, without a goal |

mod columns;
mod crowd;
mod decode;
mod durable;
pub(crate) mod growth;
mod reads;
mod recovery;
mod restarts;
mod small_seals;
mod streams;
mod writes;

use crate::bench::Bench;
use crate::error::Result;
use crate::report::Row;

macro_rules! workloads {
    ($($(#[doc = $doc:literal])* $name:ident = $id:literal, $title:literal, |$bench:ident| $run:expr;)*) => {
        /// A workload.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
        pub(crate) enum Workload {
            $($(#[doc = $doc])* #[value(name = $id)] $name,)*
        }

        impl Workload {
            /// All of them, in the order of the report.
            pub(crate) const ALL: &[Self] = &[$(Self::$name),*];

            /// The name in the report.
            pub(crate) const fn id(self) -> &'static str {
                match self { $(Self::$name => $id),* }
            }

            /// What it does.
            pub(crate) const fn title(self) -> &'static str {
                match self { $(Self::$name => $title),* }
            }

            /// Measures it.
            pub(crate) async fn run(self, bench: &Bench) -> Result<Row> {
                let figures = match self { $(Self::$name => { let $bench = bench; Box::pin($run).await? })* };
                Ok(Row { id: self.id(), title: self.title(), figures })
            }
        }
    };
}

workloads! {
    /// Write and seal.
    W1 = "W1", "write and seal, blocking, sync full", |bench| writes::run(bench);
    /// Reads of sealed subpartitions, the page cache warm.
    W2 = "W2", "read sealed subpartitions, page cache warm", |bench| reads::run(bench);
    /// A shuffle of small blocks.
    W3 = "W3", "shuffle of 1 KiB blocks: write all, then read by column", |bench| columns::run(bench, bench.plan.small_blocks);
    /// A shuffle of larger blocks.
    W3b = "W3b", "shuffle of 64 KiB blocks: write all, then read by column", |bench| columns::run(bench, bench.plan.large_blocks);
    /// Pipelined streams.
    W4 = "W4", "pipelined: writer, node, reader", |bench| streams::run(bench);
    /// Restart with many partitions.
    W5 = "W5", "restart after kill -9 with many sealed partitions", |bench| restarts::run(bench);
    /// Durable partitions.
    W6 = "W6", "durable: write and read through an S3 server", |bench| durable::run(bench);
    /// Memory under many clients.
    W7 = "W7", "many clients, half of them slow: memory", |bench| crowd::run(bench);
    /// A consumer is killed.
    W8 = "W8", "a job whose consumer is killed", |bench| recovery::run(bench);
    /// Small seals.
    W9 = "W9", "small partitions sealed per second, sync full", |bench| small_seals::run(bench);
    /// Decoding and placing.
    W10 = "W10", "in process: decode framed appends and place them", |bench| decode::run(bench);
    /// Costs by partitions and by clients.
    Growth = "growth", "costs by partitions and by clients", |bench| growth::run(bench);
}

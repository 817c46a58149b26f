//! What the tests of this crate share and what needs no store: keys, specifications, bytes, seeds.

use crate::config::{Config, SpillConfig};
use bytes::Bytes;
use futures::StreamExt;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::time::Duration;
use store_api::{
    Arbitration, AttemptId, AttemptKey, ConsumerId, DatasetId, DatasetKey, DatasetKind, DatasetSpec, JobId, JobIncarnation, PartitionId,
    ReadStream, Retention, StoreError, StoreErrorKind, SubpartitionIndex,
};

/// Longer than anything takes that does not hang.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) fn index(number: u32) -> SubpartitionIndex {
    SubpartitionIndex::new(number)
}

pub(crate) fn job() -> JobId {
    JobId::new("job").unwrap()
}

pub(crate) fn dataset(name: &str) -> DatasetKey {
    DatasetKey { job: job(), incarnation: JobIncarnation::new(1), dataset: DatasetId::new(name).unwrap() }
}

pub(crate) fn attempt_key(partition: u64) -> AttemptKey {
    dataset("d").partition(PartitionId::new(partition)).attempt(AttemptId::new(0, 0))
}

pub(crate) fn group(name: &str) -> ConsumerId {
    ConsumerId::new(name).unwrap()
}

pub(crate) fn spec(retention: Retention, n_subpartitions: u32) -> DatasetSpec {
    DatasetSpec {
        kind: DatasetKind::Pipelined(retention),
        n_partitions: None,
        n_subpartitions,
        is_broadcast: false,
        arbitration: Arbitration::Store,
        groups: vec![group("g")],
    }
}

/// Bytes that differ by subpartition and position.
pub(crate) fn pattern(subpartition: u32, start: u64, length: u64) -> Bytes {
    (start..start + length).map(|at| u8::try_from((at ^ (at >> 8) ^ (u64::from(subpartition) * 37)) & 0xff).unwrap()).collect()
}

pub(crate) fn small_spill(root: &Path) -> SpillConfig {
    SpillConfig {
        batch_bytes: 2000,
        file_bytes: 8000,
        reserve_bytes: 0,
        pause_after_failure: Duration::from_millis(20),
        ..SpillConfig::new(vec![root.join("spill")])
    }
}

pub(crate) fn config(memory_bytes: u64) -> Config {
    Config { memory_bytes, job_memory_bytes: memory_bytes, ..Config::default() }
}

pub(crate) async fn collect(mut stream: ReadStream) -> Result<Bytes, StoreError> {
    let mut all = Vec::new();
    while let Some(bytes) = stream.chunks.next().await {
        all.extend_from_slice(&bytes?);
    }
    Ok(all.into())
}

pub(crate) fn kind<T>(result: Result<T, StoreError>) -> StoreErrorKind {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(error) => error.kind().clone(),
    }
}

/// Waits until `is_so`, and fails when that does not come.
#[expect(clippy::disallowed_methods, reason = "a test waits on a condition in small steps")]
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..4000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: it did not come");
}

/// Whether many rounds are wanted.
pub(crate) fn rounds(short: usize) -> usize {
    if std::env::var_os("FOREBAY_LONG").is_some() { short * 10 } else { short }
}

/// The seed of a random run, printed so that a failure can be repeated with `FOREBAY_SEED`.
pub(crate) fn seed() -> u64 {
    let given = std::env::var("FOREBAY_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one("seed"));
    println!("FOREBAY_SEED={seed}");
    seed
}

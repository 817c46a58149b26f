//! The journal: entries of jobs, in order, in a catalog.
//!
//! An entry is one or more catalog values. The part with number 0 is written last and says how many
//! there are, so that an entry is there wholly or not at all.

use super::calls::JobKey;
use super::entry::{Entry, damaged, decode};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use store_api::catalog::MAX_VALUE_LENGTH;
use store_api::{Catalog, DatasetId, Expect, JobId, JobIncarnation, Operation, PartitionId, StoreError, StoreErrorKind};

const EPOCH: &str = "coordinator/epoch";
const LOG: &str = "coordinator/log/";
const SEALS: &str = "coordinator/seal/";
/// Bytes at the head of an entry: the number of its parts, in decimal digits.
const HEAD: usize = 8;
/// Most parts of an entry: 256 MiB.
const MAX_PARTS: usize = 256;
/// Tries of a conditional put that keeps losing.
const MAX_PUT_ROUNDS: u32 = 8;

/// The journal of a coordinator.
pub(super) struct Journal {
    catalog: Arc<dyn Catalog>,
    part_bytes: usize,
}

/// Entries of one job, in their order.
pub(super) type Log = BTreeMap<u64, Entry>;

impl Journal {
    pub(super) fn new(catalog: Arc<dyn Catalog>) -> Self {
        Self { catalog, part_bytes: MAX_VALUE_LENGTH - HEAD }
    }

    #[cfg(test)]
    pub(super) fn with_part_bytes(catalog: Arc<dyn Catalog>, part_bytes: usize) -> Self {
        Self { catalog, part_bytes }
    }

    /// The epoch of a coordinator that starts: above every one before it, durable. Errors: those of
    /// the catalog; `Conflict` when another one starts at the same time.
    pub(super) async fn raise_epoch(&self) -> Result<u64, StoreError> {
        let held = self.catalog.get(EPOCH).await?;
        let (last, expect) = match &held {
            None => (0, Expect::Absent),
            Some(entry) => {
                let text = std::str::from_utf8(&entry.value).ok().and_then(|text| text.parse::<u64>().ok());
                (text.ok_or_else(|| damaged(EPOCH))?, Expect::Version(entry.version.clone()))
            }
        };
        let epoch = last.saturating_add(1);
        self.catalog.put(EPOCH, Bytes::from(epoch.to_string()), expect).await?;
        Ok(epoch)
    }

    /// Adds an entry. Durable when it returns; repeating it with the same content is harmless.
    /// Errors: `Conflict` when another entry has this number, `TooLarge`, those of the catalog.
    pub(super) async fn append(&self, job: &JobKey, number: u64, entry: &Entry) -> Result<(), StoreError> {
        let key = |part: usize| format!("{}{number:016x}-{part:04x}", log_prefix(job));
        let refuse = |kind| StoreError::new(kind, Operation::Catalog, key(0));
        let whole = serde_json::to_vec(entry).map_err(|error| refuse(StoreErrorKind::Internal).with_source(error))?;
        let parts: Vec<&[u8]> = whole.chunks(self.part_bytes.max(1)).collect();
        if parts.len() > MAX_PARTS {
            return Err(refuse(StoreErrorKind::TooLarge { requested: whole.len() as u64, limit: (MAX_PARTS * self.part_bytes) as u64 }));
        }
        // Parts after the first may be written over, but never those of an entry that counts.
        if parts.len() > 1 && self.catalog.get(&key(0)).await?.is_some() {
            let is_same = self.read(job, number).await?.is_some_and(|written| written == *entry);
            return if is_same { Ok(()) } else { Err(refuse(StoreErrorKind::Conflict)) };
        }
        for (part, bytes) in parts.iter().enumerate().skip(1) {
            // What an append that was cut left behind may be overwritten: part 0 makes it count.
            self.catalog.put(&key(part), Bytes::copy_from_slice(bytes), Expect::Any).await?;
        }
        let mut first = format!("{:08}", parts.len()).into_bytes();
        first.extend_from_slice(parts.first().copied().unwrap_or_default());
        self.catalog.put(&key(0), first.into(), Expect::Absent).await?;
        Ok(())
    }

    /// The entry of a job with a number, if there is one. For an append that ended without an answer.
    /// Errors: those of the catalog, `Format`.
    pub(super) async fn read(&self, job: &JobKey, number: u64) -> Result<Option<Entry>, StoreError> {
        let prefix = format!("{}{number:016x}-", log_prefix(job));
        let found = self.catalog.scan(&prefix).await?;
        let parts = found.into_iter().filter_map(|(key, entry)| Some((parse_key(&key)?.2, entry.value))).collect();
        join(&parts).map(|whole| decode(&prefix, &whole)).transpose()
    }

    /// Every job and its entries. An entry without its first part does not count; a gap ends a log.
    /// Errors: those of the catalog, `Format` for an entry that cannot be read.
    pub(super) async fn load(&self) -> Result<BTreeMap<JobKey, Log>, StoreError> {
        let mut parts: BTreeMap<(JobKey, u64), BTreeMap<usize, Bytes>> = BTreeMap::new();
        for (key, entry) in self.catalog.scan(LOG).await? {
            let (job, number, part) = parse_key(&key).ok_or_else(|| damaged(&key))?;
            parts.entry((job, number)).or_default().insert(part, entry.value);
        }
        let mut logs: BTreeMap<JobKey, Log> = BTreeMap::new();
        for ((job, number), parts) in parts {
            if let Some(whole) = join(&parts) {
                let log = logs.entry(job.clone()).or_default();
                if number == log.len() as u64 {
                    log.insert(number, decode(&format!("{}{number:016x}", log_prefix(&job)), &whole)?);
                }
            }
        }
        Ok(logs)
    }

    /// Forgets a job that has ended, the newest entry first, so that what a crash leaves is a shorter
    /// log. Idempotent. Errors: those of the catalog; repeat it.
    pub(super) async fn forget(&self, job: &JobKey) -> Result<(), StoreError> {
        let mut keys: Vec<String> = self.catalog.scan(&log_prefix(job)).await?.into_iter().map(|(key, _)| key).collect();
        keys.extend(self.catalog.scan(&seal_prefix(job)).await?.into_iter().map(|(key, _)| key));
        for key in keys.iter().rev() {
            self.catalog.delete(key).await?;
        }
        Ok(())
    }

    /// Compare-and-set of which attempt is the content of a generation of a partition. The first
    /// one wins; answers the winner. Idempotent. Errors: those of the catalog.
    pub(super) async fn decide_seal(&self, seal: &SealKey, proposed: u32, by: &str) -> Result<u32, StoreError> {
        let key = seal.key();
        let value = Bytes::from(format!("{proposed} {by}"));
        for _ in 0..MAX_PUT_ROUNDS {
            match self.catalog.put(&key, value.clone(), Expect::Absent).await {
                Ok(_) => return Ok(proposed),
                Err(error) if matches!(error.kind(), StoreErrorKind::Conflict) => {}
                Err(error) => return Err(error),
            }
            if let Some(held) = self.catalog.get(&key).await? {
                return winner(&held.value).ok_or_else(|| damaged(&key));
            }
        }
        Err(StoreError::new(StoreErrorKind::Conflict, Operation::Catalog, key))
    }

    /// Takes a decision back if it was this one. Idempotent. Errors: those of the catalog.
    pub(super) async fn withdraw_seal(&self, seal: &SealKey, attempt: u32, by: &str) -> Result<(), StoreError> {
        let key = seal.key();
        match self.catalog.get(&key).await? {
            Some(held) if held.value == format!("{attempt} {by}").as_bytes() => self.catalog.delete(&key).await,
            Some(_) | None => Ok(()),
        }
    }
}

/// A generation of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SealKey {
    pub(super) job: JobKey,
    pub(super) dataset: DatasetId,
    pub(super) partition: PartitionId,
    pub(super) generation: u32,
}

impl SealKey {
    fn key(&self) -> String {
        format!("{}{}/{}/{}", seal_prefix(&self.job), self.dataset, self.partition, self.generation)
    }
}

fn winner(value: &[u8]) -> Option<u32> {
    std::str::from_utf8(value).ok()?.split(' ').next()?.parse().ok()
}

fn log_prefix(job: &JobKey) -> String {
    format!("{LOG}{}/{}/", job.job, job.incarnation)
}

fn seal_prefix(job: &JobKey) -> String {
    format!("{SEALS}{}/{}/", job.job, job.incarnation)
}

fn parse_key(key: &str) -> Option<(JobKey, u64, usize)> {
    let mut names = key.strip_prefix(LOG)?.split('/');
    let job = JobId::new(names.next()?).ok()?;
    let incarnation: JobIncarnation = names.next()?.parse().ok()?;
    let (number, part) = names.next()?.split_once('-')?;
    let number = u64::from_str_radix(number, 16).ok()?;
    let part = usize::from_str_radix(part, 16).ok()?;
    names.next().is_none().then_some((JobKey { job, incarnation }, number, part))
}

/// The entry that parts make; `None` without its first part.
fn join(parts: &BTreeMap<usize, Bytes>) -> Option<Vec<u8>> {
    let first = parts.get(&0)?;
    let (head, begin) = first.split_at_checked(HEAD)?;
    let n_parts: usize = std::str::from_utf8(head).ok()?.parse().ok()?;
    let mut whole = begin.to_vec();
    for part in 1..n_parts {
        whole.extend_from_slice(parts.get(&part)?);
    }
    Some(whole)
}

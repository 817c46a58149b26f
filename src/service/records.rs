//! What is put into the catalog: keys, records, and their one codec.
//!
//! | key | record | says |
//! |---|---|---|
//! | `job/{job}` | [`JobRecord`] | the job exists, who owns it |
//! | `ended/{job}/{incarnation}` | [`EndedRecord`] | this existence of the job is over, whatever `job/` says |
//! | `dataset/{job}/{incarnation}/{dataset}` | [`DatasetRecord`] | what was declared; whether it is released |
//! | `partition/{job}/{incarnation}/{dataset}/{partition}` | [`PartitionRecord`] | generation, whether it is released; absent: neither |
//!
//! A record is JSON with a version. A newer build reads the version before its own; an unknown
//! version is an error, never "absent". These types never leave the node: wire documents are others.

use super::registry::{Control, Ending};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::time::Duration;
use store_api::{
    Arbitration, AttemptId, ConsumerId, DatasetId, DatasetKey, DatasetKind, DatasetSpec, JobEpoch, JobId, JobIncarnation, NodeId, NodeLife,
    Operation, PartitionId, Retention, StoreClass, StoreError, StoreErrorKind,
};

/// Version of every record written by this build.
pub(super) const RECORD_VERSION: u32 = 1;

pub(super) const JOBS: &str = "job/";
pub(super) const ENDED: &str = "ended/";
pub(super) const DATASETS: &str = "dataset/";
pub(super) const PARTITIONS: &str = "partition/";

pub(super) fn job_key(job: &JobId) -> String {
    format!("{JOBS}{job}")
}

pub(super) fn ended_key(job: &JobId, incarnation: JobIncarnation) -> String {
    format!("{ENDED}{job}/{incarnation}")
}

pub(super) fn dataset_key(dataset: &DatasetKey) -> String {
    format!("{DATASETS}{}/{}/{}", dataset.job, dataset.incarnation, dataset.dataset)
}

pub(super) fn partition_key(dataset: &DatasetKey, partition: PartitionId) -> String {
    // Fixed width, so that the order of keys is the order of partitions.
    format!("{PARTITIONS}{}/{}/{}/{:020}", dataset.job, dataset.incarnation, dataset.dataset, partition.get())
}

/// Prefixes of everything that belongs to one existence of a job, its end excepted.
pub(super) fn prefixes_of(job: &JobId, incarnation: JobIncarnation) -> [String; 2] {
    [format!("{DATASETS}{job}/{incarnation}/"), format!("{PARTITIONS}{job}/{incarnation}/")]
}

/// Parses the part of a key after its first slash: `{job}/{incarnation}[/{dataset}[/{partition}]]`.
pub(super) fn parse_key(key: &str) -> Option<(JobId, JobIncarnation, Option<DatasetId>, Option<PartitionId>)> {
    let mut parts = key.split('/').skip(1);
    let job = JobId::new(parts.next()?).ok()?;
    let incarnation = parts.next()?.parse().ok()?;
    let dataset = parts.next().map(DatasetId::new).transpose().ok()?;
    let partition = parts.next().map(str::parse).transpose().ok()?;
    Some((job, incarnation, dataset, partition))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ClassName {
    Pipelined,
    Blocking,
    Durable,
}

impl From<StoreClass> for ClassName {
    fn from(class: StoreClass) -> Self {
        match class {
            StoreClass::Pipelined => Self::Pipelined,
            StoreClass::Blocking => Self::Blocking,
            StoreClass::Durable => Self::Durable,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RetentionName {
    UntilAcknowledged,
    BestEffort,
    SinceCheckpoint,
}

impl From<Retention> for RetentionName {
    fn from(retention: Retention) -> Self {
        match retention {
            Retention::UntilAcknowledged => Self::UntilAcknowledged,
            Retention::BestEffort => Self::BestEffort,
            Retention::SinceCheckpoint => Self::SinceCheckpoint,
        }
    }
}

impl From<RetentionName> for Retention {
    fn from(name: RetentionName) -> Self {
        match name {
            RetentionName::UntilAcknowledged => Self::UntilAcknowledged,
            RetentionName::BestEffort => Self::BestEffort,
            RetentionName::SinceCheckpoint => Self::SinceCheckpoint,
        }
    }
}

fn hex(hash: &[u8; 32]) -> String {
    let mut text = String::with_capacity(64);
    for byte in hash {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(hash)
}

/// A job: who owns it and by which rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobRecord {
    version: u32,
    incarnation: String,
    pub(super) epoch: u64,
    pub(super) nonce: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_sha256: Option<String>,
    default_class: ClassName,
    default_retention: RetentionName,
    lease_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) quota_bytes: Option<u64>,
    home: String,
}

/// What a [`JobRecord`] says, in the service's own types.
#[derive(Debug, Clone)]
pub(super) struct JobFacts {
    pub(super) incarnation: JobIncarnation,
    pub(super) epoch: JobEpoch,
    pub(super) token_hash: Option<[u8; 32]>,
    pub(super) default_class: StoreClass,
    pub(super) default_retention: Retention,
    pub(super) lease: Duration,
    pub(super) home: NodeId,
}

impl JobRecord {
    pub(super) fn new(incarnation: JobIncarnation, control: &Control) -> Self {
        Self {
            version: RECORD_VERSION,
            incarnation: incarnation.to_string(),
            epoch: control.epoch.get(),
            nonce: control.nonce.clone(),
            token_sha256: control.token_hash.as_ref().map(hex),
            default_class: control.default_class.into(),
            default_retention: control.default_retention.into(),
            lease_ms: u64::try_from(control.lease.length.as_millis()).unwrap_or(u64::MAX),
            quota_bytes: control.quota_bytes,
            home: control.home.to_string(),
        }
    }

    /// `None` when a member does not parse.
    pub(super) fn facts(&self) -> Option<JobFacts> {
        Some(JobFacts {
            incarnation: self.incarnation.parse().ok()?,
            epoch: JobEpoch::new(self.epoch),
            token_hash: match &self.token_sha256 {
                Some(text) => Some(unhex(text)?),
                None => None,
            },
            default_class: match self.default_class {
                ClassName::Pipelined => StoreClass::Pipelined,
                ClassName::Blocking => StoreClass::Blocking,
                ClassName::Durable => StoreClass::Durable,
            },
            default_retention: self.default_retention.into(),
            lease: Duration::from_millis(self.lease_ms),
            home: NodeId::new(&self.home).ok()?,
        })
    }
}

/// The end of one existence of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EndedRecord {
    version: u32,
    is_expired: bool,
    pub(super) at_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_sha256: Option<String>,
    /// Whether durable data is given back too: the job's home decides that, other nodes only forget.
    pub(super) ends_durable: bool,
    /// Whether the job is over everywhere, or this node has only stopped keeping its part.
    pub(super) is_final: bool,
    /// Whether every store has given everything back.
    pub(super) is_settled: bool,
}

impl EndedRecord {
    pub(super) fn new(ending: Ending, at_ms: u64, token_hash: Option<&[u8; 32]>, ends_durable: bool, is_final: bool) -> Self {
        let is_expired = ending == Ending::Expired;
        Self { version: RECORD_VERSION, is_expired, at_ms, token_sha256: token_hash.map(hex), ends_durable, is_final, is_settled: false }
    }

    pub(super) const fn ending(&self) -> Ending {
        if self.is_expired { Ending::Expired } else { Ending::Released }
    }

    pub(super) fn token_hash(&self) -> Option<[u8; 32]> {
        self.token_sha256.as_deref().and_then(unhex)
    }
}

/// A dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DatasetRecord {
    version: u32,
    class: ClassName,
    #[serde(skip_serializing_if = "Option::is_none")]
    retention: Option<RetentionName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    n_partitions: Option<u64>,
    n_subpartitions: u32,
    is_broadcast: bool,
    is_decided_by_engine: bool,
    groups: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<String>,
    /// Life of the node in which it was declared.
    life: String,
    pub(super) is_released: bool,
}

impl DatasetRecord {
    pub(super) fn new(spec: &DatasetSpec, content: Option<&str>, life: NodeLife) -> Self {
        let retention = match spec.kind {
            DatasetKind::Pipelined(retention) => Some(retention.into()),
            DatasetKind::Blocking | DatasetKind::Durable => None,
        };
        Self {
            version: RECORD_VERSION,
            class: spec.kind.class().into(),
            retention,
            n_partitions: spec.n_partitions,
            n_subpartitions: spec.n_subpartitions,
            is_broadcast: spec.is_broadcast,
            is_decided_by_engine: spec.arbitration == Arbitration::Engine,
            groups: spec.groups.iter().map(ToString::to_string).collect(),
            content: content.map(ToOwned::to_owned),
            life: life.to_string(),
            is_released: false,
        }
    }

    /// `None` when a member does not parse.
    pub(super) fn spec(&self) -> Option<DatasetSpec> {
        Some(DatasetSpec {
            kind: match self.class {
                ClassName::Pipelined => DatasetKind::Pipelined(self.retention?.into()),
                ClassName::Blocking => DatasetKind::Blocking,
                ClassName::Durable => DatasetKind::Durable,
            },
            n_partitions: self.n_partitions,
            n_subpartitions: self.n_subpartitions,
            is_broadcast: self.is_broadcast,
            arbitration: if self.is_decided_by_engine { Arbitration::Engine } else { Arbitration::Store },
            groups: self.groups.iter().map(|group| ConsumerId::new(group).ok()).collect::<Option<_>>()?,
        })
    }

    pub(super) fn life(&self) -> Option<NodeLife> {
        self.life.parse().ok()
    }
}

/// What must be known of a partition besides its sealed content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PartitionRecord {
    version: u32,
    pub(super) generation: u32,
    /// The attempt with which the generation was opened.
    pub(super) by: u32,
    pub(super) is_released: bool,
}

impl PartitionRecord {
    pub(super) const fn raised(by: AttemptId) -> Self {
        Self { version: RECORD_VERSION, generation: by.generation, by: by.attempt, is_released: false }
    }

    pub(super) const fn released(at: AttemptId) -> Self {
        Self { version: RECORD_VERSION, generation: at.generation, by: at.attempt, is_released: true }
    }
}

/// The version of any record.
#[derive(Deserialize)]
struct Head {
    version: u32,
}

pub(super) fn encode(record: &impl Serialize) -> Result<bytes::Bytes, StoreError> {
    serde_json::to_vec(record)
        .map(Into::into)
        .map_err(|error| StoreError::new(StoreErrorKind::Internal, Operation::Catalog, "a record").with_source(error))
}

/// Reads a record. Errors: `Format` for another version or shape.
pub(super) fn decode<T: DeserializeOwned>(key: &str, bytes: &[u8]) -> Result<T, StoreError> {
    let refuse = |reason: String| StoreError::new(StoreErrorKind::Format { reason }, Operation::Catalog, key);
    let head: Head = serde_json::from_slice(bytes).map_err(|error| refuse("no record".to_owned()).with_source(error))?;
    if head.version != RECORD_VERSION {
        return Err(refuse(format!("version {} where {RECORD_VERSION} is known", head.version)));
    }
    serde_json::from_slice(bytes).map_err(|error| refuse("a damaged record".to_owned()).with_source(error))
}

/// The error for a record whose members do not parse.
pub(super) fn damaged(key: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Format { reason: "a member does not parse".to_owned() }, Operation::Catalog, key)
}

#[cfg(test)]
mod tests {
    use super::super::lease::Lease;
    use super::*;
    use proptest::prelude::*;

    fn control() -> Control {
        Control {
            epoch: JobEpoch::new(3),
            nonce: "driver".to_owned(),
            token_hash: Some([0xab; 32]),
            default_class: StoreClass::Blocking,
            default_retention: Retention::BestEffort,
            lease: Lease::granted(Duration::ZERO, Duration::from_secs(9)),
            quota_bytes: Some(7),
            home: NodeId::new("n1").unwrap(),
            ending: None,
            checked_at: Duration::ZERO,
        }
    }

    #[test]
    fn the_stored_form_of_a_job_is_fixed() {
        let record = JobRecord::new(JobIncarnation::new(0x1f), &control());
        let text = String::from_utf8(encode(&record).unwrap().to_vec()).unwrap();
        let token = "ab".repeat(32);
        assert_eq!(
            text,
            format!(
                "{{\"version\":1,\"incarnation\":\"000000000000001f\",\"epoch\":3,\"nonce\":\"driver\",\"token_sha256\":\"{token}\",\
                 \"default_class\":\"blocking\",\"default_retention\":\"best_effort\",\"lease_ms\":9000,\"quota_bytes\":7,\"home\":\"n1\"}}"
            )
        );
        let read: JobRecord = decode("job/j", text.as_bytes()).unwrap();
        let facts = read.facts().unwrap();
        assert_eq!(facts.token_hash, Some([0xab; 32]));
        assert_eq!((facts.epoch, facts.lease), (JobEpoch::new(3), Duration::from_secs(9)));
    }

    #[test]
    fn a_record_of_another_version_or_shape_is_an_error_and_not_absent() {
        for bytes in [&b"{\"version\":2}"[..], b"{\"version\":1}", b"", b"null", b"{}"] {
            let read = decode::<PartitionRecord>("partition/x", bytes);
            assert!(matches!(read.unwrap_err().kind(), StoreErrorKind::Format { .. }));
        }
    }

    #[test]
    fn keys_of_a_job_are_no_prefix_of_those_of_another() {
        let [datasets, partitions] = prefixes_of(&JobId::new("j").unwrap(), JobIncarnation::new(1));
        for other in ["j1", "j-", "j.1"] {
            let key =
                DatasetKey { job: JobId::new(other).unwrap(), incarnation: JobIncarnation::new(1), dataset: DatasetId::new("d").unwrap() };
            assert!(!dataset_key(&key).starts_with(&datasets));
            assert!(!partition_key(&key, PartitionId::new(0)).starts_with(&partitions));
        }
    }

    proptest! {
        #[test]
        fn datasets_read_back_as_they_were_declared(
            n_partitions: Option<u64>, n_subpartitions: u32, is_broadcast: bool, is_engine: bool, kind in 0..5, content: Option<String>,
        ) {
            let kind = match kind {
                0 => DatasetKind::Pipelined(Retention::UntilAcknowledged),
                1 => DatasetKind::Pipelined(Retention::BestEffort),
                2 => DatasetKind::Pipelined(Retention::SinceCheckpoint),
                3 => DatasetKind::Blocking,
                _ => DatasetKind::Durable,
            };
            let arbitration = if is_engine { Arbitration::Engine } else { Arbitration::Store };
            let groups = vec![ConsumerId::new("g").unwrap()];
            let spec = DatasetSpec { kind, n_partitions, n_subpartitions, is_broadcast, arbitration, groups };
            let bytes = encode(&DatasetRecord::new(&spec, content.as_deref(), NodeLife::new(5))).unwrap();
            let read: DatasetRecord = decode("dataset/x", &bytes).unwrap();
            prop_assert_eq!(read.spec(), Some(spec));
            prop_assert_eq!(read.life(), Some(NodeLife::new(5)));
            prop_assert_eq!(read.content, content);
        }

        #[test]
        fn keys_parse_back(partition: u64, incarnation: u64) {
            let key = DatasetKey {
                job: JobId::new("j.1_-").unwrap(), incarnation: JobIncarnation::new(incarnation), dataset: DatasetId::new("d").unwrap(),
            };
            let parsed = parse_key(&partition_key(&key, PartitionId::new(partition))).unwrap();
            prop_assert_eq!(parsed, (key.job.clone(), key.incarnation, Some(key.dataset.clone()), Some(PartitionId::new(partition))));
        }

        #[test]
        fn junk_never_panics(bytes: Vec<u8>, text: String) {
            let _ = decode::<JobRecord>("x", &bytes);
            let _ = parse_key(&text);
        }
    }
}

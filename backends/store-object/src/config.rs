//! What can be set: which object store, and how much memory and patience the work on it may take.

use serde::Deserialize;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
/// Smallest part of a multipart upload that the cloud stores take, in bytes.
pub const MIN_CLOUD_PART_BYTES: u64 = 5 * MIB;

/// A text that is never printed.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one place that needs it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// An S3 bucket, or one of a store that speaks S3.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct S3Config {
    /// Name of the bucket.
    pub bucket: String,
    /// Region; `us-east-1` when empty.
    pub region: String,
    /// Address of the server, `None` for AWS itself.
    pub endpoint: Option<String>,
    /// Whether an `http://` endpoint is accepted.
    pub allow_http: bool,
    /// Whether the bucket is part of the host name instead of the path.
    pub virtual_hosted: bool,
    /// Access key; the surroundings (instance role, web identity) are asked when it is not set.
    pub access_key_id: Option<String>,
    /// Secret of the access key.
    pub secret_access_key: Option<Secret>,
    /// Session token of temporary keys.
    pub session_token: Option<Secret>,
    /// Whether uploads carry a SHA-256 that the store checks.
    pub upload_checksum: bool,
}

/// A bucket of Google Cloud Storage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GcsConfig {
    /// Name of the bucket.
    pub bucket: String,
    /// Address of the server, `None` for Google itself.
    pub endpoint: Option<String>,
    /// Whether an `http://` endpoint is accepted.
    pub allow_http: bool,
    /// Path of the service account's key file; the surroundings are asked when it is not set.
    pub service_account_path: Option<String>,
    /// The service account's key itself, as JSON.
    pub service_account_key: Option<Secret>,
    /// Whether requests are sent without credentials, for servers that want none.
    pub skip_signature: bool,
}

/// A container of Azure Blob Storage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AzureConfig {
    /// Storage account.
    pub account: String,
    /// Name of the container.
    pub container: String,
    /// Address of the server, `None` for Azure itself.
    pub endpoint: Option<String>,
    /// Whether an `http://` endpoint is accepted.
    pub allow_http: bool,
    /// Whether the server is the emulator with its well-known account, at its usual address; the
    /// endpoint is not used then.
    pub emulator: bool,
    /// Access key; the surroundings (managed identity) are asked when it is not set.
    pub access_key: Option<Secret>,
    /// Query string of a shared access signature.
    pub sas: Option<Secret>,
}

/// A directory that stands in for an object store. Every write is synced. What is sealed is as
/// durable as the file system, and the class achieved says so.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectoryConfig {
    /// The directory; made when it is not there.
    pub path: PathBuf,
}

/// Which object store.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StoreConfig {
    /// S3.
    S3(S3Config),
    /// Google Cloud Storage.
    Gcs(GcsConfig),
    /// Azure Blob Storage.
    Azure(AzureConfig),
    /// A local directory: an explicit choice, see [`DirectoryConfig`].
    Directory(DirectoryConfig),
    /// The memory of this process, for tests: nothing survives it.
    Memory,
}

/// What is done with a store whose conditional put does not work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConditionalPut {
    /// It is refused at opening. The default.
    #[default]
    Require,
    /// It is taken, because the caller states that a coordinator arbitrates every seal before it is
    /// published, and that its journal is not in this store.
    Arbitrated,
}

/// Everything that can be set. The defaults suit a cloud store.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Which object store.
    pub store: StoreConfig,
    /// Put in front of every key. Several clusters may share a bucket under different prefixes.
    pub prefix: String,
    /// What is done when conditional puts do not work.
    pub conditional_put: ConditionalPut,
    /// Memory for bytes that the object store has not accepted yet.
    pub memory_bytes: u64,
    /// Memory for bytes on their way to readers, when none is shared with other stores.
    pub read_memory_bytes: u64,
    /// The same, shared with other stores.
    #[serde(skip)]
    pub reads: Option<store_api::ReadBudget>,
    /// Size of the first parts of a multipart upload, and of what is written in one put.
    pub part_bytes: u64,
    /// Size that parts grow to: they double every 1,000 parts.
    pub max_part_bytes: u64,
    /// Parts of one attempt that are uploaded side by side.
    pub uploads_per_attempt: usize,
    /// Largest partition that lives inside its manifest.
    pub inline_bytes: u64,
    /// Bytes under one stored checksum, and so the least that a read fetches.
    pub block_bytes: u64,
    /// Most bytes of one ranged read.
    pub read_bytes: u64,
    /// Memory for manifests of sealed attempts.
    pub manifest_cache_bytes: u64,
    /// For how long a manifest is used without asking the object store again: the longest time
    /// until a release made through another node is seen here.
    pub manifest_age_ms: u64,
    /// Whether the start lists what this node has sealed, so that it is known (and counted as held)
    /// without being asked for. Reads find sealed content without it.
    pub lists_at_start: bool,
    /// Longest time for one answer of the object store, besides the time for its bytes.
    pub answer_limit_ms: u64,
    /// Slowest transfer that is waited for, in bytes per second.
    pub slowest_transfer: u64,
    /// How often a request that failed in passing is made, over and above the client's own retries.
    pub tries: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            store: StoreConfig::Memory,
            prefix: "forebay".to_owned(),
            conditional_put: ConditionalPut::Require,
            memory_bytes: 256 * MIB,
            read_memory_bytes: 128 * MIB,
            reads: None,
            part_bytes: 8 * MIB,
            max_part_bytes: 64 * MIB,
            uploads_per_attempt: 3,
            inline_bytes: 256 * KIB,
            block_bytes: 256 * KIB,
            read_bytes: 4 * MIB,
            manifest_cache_bytes: 64 * MIB,
            manifest_age_ms: 5_000,
            lists_at_start: true,
            answer_limit_ms: 30_000,
            slowest_transfer: 64 * KIB,
            tries: 3,
        }
    }
}

/// Why settings cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct ConfigError {
    /// Which setting.
    pub setting: &'static str,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl Config {
    /// Settings for a store, all else by default.
    #[must_use]
    pub fn new(store: StoreConfig) -> Self {
        Self { store, ..Self::default() }
    }

    /// Checks that the settings fit together. Errors: the first that does not.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |setting, problem| Err(ConfigError { setting, problem });
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'/');
        let has_dots = self.prefix.split('/').any(|part| part == "." || part == "..");
        if !self.prefix.bytes().all(is_allowed) || has_dots || self.prefix.len() > 200 {
            return refuse("prefix", "is made of at most 200 of A-Z a-z 0-9 . _ - /, without '.' and '..' between slashes");
        }
        let is_cloud = matches!(self.store, StoreConfig::S3(_) | StoreConfig::Gcs(_) | StoreConfig::Azure(_));
        if is_cloud && self.part_bytes < MIN_CLOUD_PART_BYTES {
            return refuse("part_bytes", "must be at least 5 MiB");
        }
        if self.part_bytes == 0 || self.max_part_bytes < self.part_bytes {
            return refuse("max_part_bytes", "must be at least part_bytes, and that at least 1");
        }
        if self.memory_bytes < self.part_bytes {
            return refuse("memory_bytes", "must be at least part_bytes");
        }
        if self.block_bytes == 0 || self.read_bytes < self.block_bytes || self.block_bytes > u64::from(u32::MAX) {
            return refuse("block_bytes", "must be from 1 to read_bytes and below 4 GiB");
        }
        if self.read_memory_bytes < self.read_bytes {
            return refuse("read_memory_bytes", "must be at least read_bytes");
        }
        if self.inline_bytes > self.part_bytes {
            return refuse("inline_bytes", "must be at most part_bytes");
        }
        if self.uploads_per_attempt == 0 || self.tries == 0 || self.slowest_transfer == 0 || self.answer_limit_ms == 0 {
            return refuse("uploads_per_attempt, tries, slowest_transfer, answer_limit_ms", "must be at least 1");
        }
        Ok(())
    }

    /// Longest time for one answer, as a duration.
    #[must_use]
    pub const fn answer_limit(&self) -> Duration {
        Duration::from_millis(self.answer_limit_ms)
    }

    /// For how long a manifest is used unasked, as a duration.
    #[must_use]
    pub const fn manifest_age(&self) -> Duration {
        Duration::from_millis(self.manifest_age_ms)
    }

    pub(crate) fn secrets(&self) -> Vec<String> {
        let set: Vec<&Option<Secret>> = match &self.store {
            StoreConfig::S3(s3) => vec![&s3.secret_access_key, &s3.session_token],
            StoreConfig::Gcs(gcs) => vec![&gcs.service_account_key],
            StoreConfig::Azure(azure) => vec![&azure.access_key, &azure.sas],
            StoreConfig::Directory(_) | StoreConfig::Memory => Vec::new(),
        };
        let whole = set.into_iter().flatten().map(|secret| secret.reveal().to_owned());
        // A shared access signature also appears cut into its query pairs.
        whole
            .flat_map(|secret| {
                secret
                    .split('&')
                    .filter_map(|pair| pair.strip_prefix("sig=").map(str::to_owned))
                    .chain([secret.clone()])
                    .collect::<Vec<_>>()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_in_no_printed_form() {
        let s3 = S3Config {
            secret_access_key: Some(Secret::new("MARKER1")),
            session_token: Some(Secret::new("MARKER2")),
            ..S3Config::default()
        };
        let azure =
            AzureConfig { access_key: Some(Secret::new("MARKER3")), sas: Some(Secret::new("sv=1&sig=MARKER4")), ..AzureConfig::default() };
        let gcs = GcsConfig { service_account_key: Some(Secret::new("MARKER5")), ..GcsConfig::default() };
        for store in [StoreConfig::S3(s3), StoreConfig::Azure(azure), StoreConfig::Gcs(gcs)] {
            let config = Config::new(store);
            assert!(!format!("{config:?} {config:#?}").contains("MARKER"));
            assert!(config.secrets().iter().all(|secret| secret.contains("MARKER")));
        }
        assert!(!Secret::new("MARKER").to_string().contains("MARKER"));
    }

    #[test]
    fn the_defaults_fit_together() {
        let cloud = Config::new(StoreConfig::S3(S3Config::default()));
        assert_eq!(cloud.validate(), Ok(()));
    }

    #[test]
    fn settings_that_do_not_fit_are_refused_by_name() {
        let broken = [
            Config { prefix: "a/../b".to_owned(), ..Config::default() },
            Config { part_bytes: 1, ..Config::new(StoreConfig::Gcs(GcsConfig::default())) },
            Config { max_part_bytes: 1, ..Config::default() },
            Config { memory_bytes: 1, ..Config::default() },
            Config { block_bytes: 0, ..Config::default() },
            Config { read_memory_bytes: 1, ..Config::default() },
            Config { inline_bytes: 9 * MIB, ..Config::default() },
            Config { tries: 0, ..Config::default() },
        ];
        for config in broken {
            assert!(config.validate().is_err(), "{config:?} was taken");
        }
    }

    #[test]
    fn settings_are_read_from_a_document_and_unknown_ones_refused() {
        let text = r#"{"store":{"type":"s3","bucket":"b","endpoint":"http://127.0.0.1:1","allow_http":true,"secret_access_key":"k"},"prefix":"p"}"#;
        let config: Config = serde_json::from_str(text).unwrap();
        assert_eq!(config.validate(), Ok(()));
        assert!(matches!(&config.store, StoreConfig::S3(s3) if s3.bucket == "b" && s3.allow_http));
        assert!(serde_json::from_str::<Config>(r#"{"prefx":"p"}"#).is_err());
    }
}

//! Makes the client of the configured object store.
//!
//! Times are bounded by progress, not by size: the client's own limit on a whole request is off,
//! and [`crate::bucket::Bucket`] gives each request a limit that grows with its bytes.

use crate::bucket::Connection;
use crate::config::{AzureConfig, Config, GcsConfig, S3Config, StoreConfig};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::{BackoffConfig, ClientOptions, RetryConfig};
use std::sync::Arc;
use std::time::Duration;
use store_api::Scope;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const IDLE_LIMIT: Duration = Duration::from_secs(20);

/// Makes the client. Errors: settings that the client library refuses, or a directory that cannot
/// be made.
pub(crate) fn connect(config: &Config) -> Result<Connection, object_store::Error> {
    // Fails only when the process has chosen a provider already, which is just as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let retry = retry(config);
    match &config.store {
        StoreConfig::S3(s3) => connect_s3(s3, retry),
        StoreConfig::Gcs(gcs) => connect_gcs(gcs, retry),
        StoreConfig::Azure(azure) => connect_azure(azure, retry),
        StoreConfig::Directory(directory) => {
            let generic = |error: std::io::Error| object_store::Error::Generic { store: "directory", source: Box::new(error) };
            std::fs::create_dir_all(&directory.path).map_err(generic)?;
            let local = LocalFileSystem::new_with_prefix(&directory.path)?.with_fsync(true).with_automatic_cleanup(true);
            Ok(Connection { raw: Arc::new(local), parts: None, single: None, scope: Scope::FileSystem })
        }
        StoreConfig::Memory => {
            let memory = Arc::new(InMemory::new());
            Ok(Connection { raw: memory.clone(), parts: Some(memory), single: None, scope: Scope::ObjectStore })
        }
    }
}

fn retry(config: &Config) -> RetryConfig {
    let backoff = BackoffConfig { init_backoff: Duration::from_millis(100), max_backoff: Duration::from_secs(5), base: 2.0 };
    RetryConfig { backoff, max_retries: 4, retry_timeout: config.answer_limit() }
}

fn client_options(allow_http: bool) -> ClientOptions {
    ClientOptions::new()
        .with_allow_http(allow_http)
        .with_timeout_disabled()
        .with_connect_timeout(CONNECT_LIMIT)
        .with_pool_idle_timeout(IDLE_LIMIT)
}

fn connect_s3(s3: &S3Config, retry: RetryConfig) -> Result<Connection, object_store::Error> {
    let region = if s3.region.is_empty() { "us-east-1" } else { s3.region.as_str() };
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&s3.bucket)
        .with_region(region)
        .with_virtual_hosted_style_request(s3.virtual_hosted)
        .with_client_options(client_options(s3.allow_http))
        .with_allow_http(s3.allow_http)
        .with_retry(retry);
    let optional = [
        (AmazonS3ConfigKey::Endpoint, s3.endpoint.as_deref()),
        (AmazonS3ConfigKey::AccessKeyId, s3.access_key_id.as_deref()),
        (AmazonS3ConfigKey::SecretAccessKey, s3.secret_access_key.as_ref().map(|secret| secret.reveal())),
        (AmazonS3ConfigKey::Token, s3.session_token.as_ref().map(|secret| secret.reveal())),
    ];
    for (key, value) in optional {
        if let Some(value) = value {
            builder = builder.with_config(key, value);
        }
    }
    if s3.upload_checksum {
        builder = builder.with_checksum_algorithm(Checksum::SHA256);
    }
    let single = builder.clone().with_disable_bulk_delete(true).build()?;
    let store = Arc::new(builder.build()?);
    Ok(Connection { raw: store.clone(), parts: Some(store), single: Some(Arc::new(single)), scope: Scope::ObjectStore })
}

fn connect_gcs(gcs: &GcsConfig, retry: RetryConfig) -> Result<Connection, object_store::Error> {
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(&gcs.bucket)
        .with_client_options(client_options(gcs.allow_http))
        .with_skip_signature(gcs.skip_signature)
        .with_retry(retry);
    let optional = [
        (GoogleConfigKey::BaseUrl, gcs.endpoint.as_deref()),
        (GoogleConfigKey::ServiceAccount, gcs.service_account_path.as_deref()),
        (GoogleConfigKey::ServiceAccountKey, gcs.service_account_key.as_ref().map(|secret| secret.reveal())),
    ];
    for (key, value) in optional {
        if let Some(value) = value {
            builder = builder.with_config(key, value);
        }
    }
    let store = Arc::new(builder.build()?);
    Ok(Connection { raw: store.clone(), parts: Some(store), single: None, scope: Scope::ObjectStore })
}

fn connect_azure(azure: &AzureConfig, retry: RetryConfig) -> Result<Connection, object_store::Error> {
    let mut builder = MicrosoftAzureBuilder::new()
        .with_container_name(&azure.container)
        .with_client_options(client_options(azure.allow_http))
        .with_allow_http(azure.allow_http)
        .with_use_emulator(azure.emulator)
        .with_retry(retry);
    if !azure.emulator {
        builder = builder.with_account(&azure.account);
    }
    if let Some(endpoint) = &azure.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    if let Some(key) = &azure.access_key {
        builder = builder.with_access_key(key.reveal());
    }
    if let Some(sas) = &azure.sas {
        builder = builder.with_config(AzureConfigKey::SasKey, sas.reveal());
    }
    let store = Arc::new(builder.build()?);
    Ok(Connection { raw: store.clone(), parts: Some(store), single: None, scope: Scope::ObjectStore })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DirectoryConfig, Secret};

    #[test]
    fn every_kind_of_store_is_built_and_shows_no_secret() {
        let s3 = S3Config {
            bucket: "b".to_owned(),
            endpoint: Some("http://127.0.0.1:9".to_owned()),
            allow_http: true,
            access_key_id: Some("id".to_owned()),
            secret_access_key: Some(Secret::new("MARKER")),
            upload_checksum: true,
            ..S3Config::default()
        };
        let azure = AzureConfig {
            account: "a".to_owned(),
            container: "c".to_owned(),
            access_key: Some(Secret::new("TUFSS0VS")),
            ..AzureConfig::default()
        };
        let gcs = GcsConfig { bucket: "b".to_owned(), skip_signature: true, ..GcsConfig::default() };
        let folder = tempfile::tempdir().unwrap();
        let directory = DirectoryConfig { path: folder.path().join("made/here") };
        let stores = [
            (StoreConfig::S3(s3), Scope::ObjectStore),
            (StoreConfig::Azure(azure), Scope::ObjectStore),
            (StoreConfig::Gcs(gcs), Scope::ObjectStore),
            (StoreConfig::Directory(directory), Scope::FileSystem),
            (StoreConfig::Memory, Scope::ObjectStore),
        ];
        for (store, scope) in stores {
            let config = Config::new(store);
            let connection = connect(&config).map_err(|error| error.to_string()).unwrap();
            assert_eq!(connection.scope, scope);
            let shown = format!("{} {:?}", connection.raw, config);
            assert!(!shown.contains("MARKER") && !shown.contains("TUFSS0VS"), "{shown}");
        }
    }
}

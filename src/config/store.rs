//! `[memory]`, `[disk]`, `[object]`: the three stores.

use super::schema::{choice, section};
use super::secret::Secret;
use super::units::{ByteSize, TimeSpan};
use std::path::PathBuf;

section! {
    /// Pipelined partitions: in memory, readable while they are written.
    Memory {
        /// Whether this node keeps pipelined partitions; refused when not.
        enabled: bool = true;
        /// Memory for all jobs; 40 % of node.memory when it is left out.
        budget: Option<ByteSize> = None;
        /// Memory for one job; all of it when it is left out: a single job may use an idle node.
        job_budget: Option<ByteSize> = None;
        /// How long memory may be full without a consumer moving before a writer is told that the
        /// retention cannot be kept: longer than a consumer's restart, shorter than a hang.
        retention_deadline: TimeSpan = TimeSpan::secs(300);
        /// Whether since_checkpoint datasets go on in spill files when memory is full; refused when not.
        spill: bool = true;
        /// Directories of the spill files, of this node alone: what is found in them at start is
        /// removed. <node.directory>/spill when it is left out.
        spill_directories: Vec<PathBuf> = Vec::new();
        /// Whether spilled bytes are synced before their memory is let go: a failing disk is then found
        /// out while they are still in memory.
        spill_sync: bool = true;
    }
}

choice! {
    /// When bytes are forced to the disk.
    Sync = "\"full\"" {
        /// Data and index: survives a power cut.
        Full = "full",
        /// Data only: a power cut may forget the newest seals, never damage one.
        Data = "data",
        /// Nothing: survives kill -9, not a power cut.
        None = "none",
    }
}

section! {
    /// Blocking partitions: on local disk, readable after the seal.
    Disk {
        /// Whether this node keeps blocking partitions; refused when not.
        enabled: bool = true;
        /// Directories of the data files, best one per disk. <node.directory>/blocking when it is left
        /// out.
        directories: Vec<PathBuf> = Vec::new();
        /// Directory of the index and of the node's catalog. <node.directory>/index when it is left out.
        index_directory: Option<PathBuf> = None;
        /// What an acknowledged seal survives: full (data and index synced: a power cut), data (a power
        /// cut may forget the newest seals), none (kill -9 only).
        sync: Sync = Sync::Full;
        /// Memory for bytes on their way to disk; 15 % of node.memory when it is left out.
        budget: Option<ByteSize> = None;
        /// The same for one job; all of it when it is left out.
        job_budget: Option<ByteSize> = None;
        /// Room on each file system that data files leave free, so that a full disk can still release.
        reserve: ByteSize = ByteSize::mib(64);
        /// The same in thousandths of the file system; the larger of the two counts.
        reserve_per_mille: u16 = 10;
        /// Blocking calls that one data directory may hold at once: a disk that hangs holds no more.
        lanes: usize = 8;
        /// Longest wait for one of them.
        lane_patience: TimeSpan = TimeSpan::secs(30);
        /// Files kept open for reading.
        open_files: usize = 256;
        /// Block cache of the index. 16MiB, or 3 % of node.memory if that is less, when it is left out.
        index_cache: Option<ByteSize> = None;
    }
}

choice! {
    /// Which object store.
    ObjectKind = "\"none\"" {
        /// No durable partitions.
        None = "none",
        /// S3, or a store that speaks it.
        S3 = "s3",
        /// Google Cloud Storage.
        Gcs = "gcs",
        /// Azure Blob Storage.
        Azure = "azure",
        /// A directory in place of an object store.
        Directory = "directory",
    }
}

section! {
    /// Durable partitions: in an object store, readable after the seal through any node.
    Object {
        /// Which store: none, s3, gcs, azure or directory. With none, durable datasets are refused.
        /// Settings of the others stand below.
        kind: ObjectKind = ObjectKind::None;
        /// Put in front of every key. Nodes that belong together share it; others must not.
        prefix: String = "forebay".to_owned();
        /// Memory for bytes that the object store has not accepted yet; 10 % of node.memory when it is
        /// left out.
        budget: Option<ByteSize> = None;
        /// Size of the first parts of an upload; parts grow with the partition. At least 5MiB in clouds.
        part_size: ByteSize = ByteSize::mib(8);
        /// Parts of one attempt that are uploaded side by side.
        uploads_per_attempt: usize = 3;
        /// For how long a manifest is used without asking again: the longest time until a release made
        /// through another node is seen here.
        manifest_age: TimeSpan = TimeSpan::secs(5);
        /// Longest time for one answer of the object store, besides the time for its bytes.
        answer_limit: TimeSpan = TimeSpan::secs(30);
        /// Whether the start lists what is there. Reads find sealed content without it; what is held is
        /// then counted as it is seen.
        list_at_start: bool = true;
        => {
            /// S3.
            s3: S3;
            /// Google Cloud Storage.
            gcs: Gcs;
            /// Azure Blob Storage.
            azure: Azure;
            /// A directory in place of an object store.
            directory: ObjectDirectory;
        }
    }
}

section! {
    /// S3, or a store that speaks it. Used when object.kind is "s3".
    S3 {
        /// Name of the bucket.
        bucket: String = String::new();
        /// Region.
        region: String = "us-east-1".to_owned();
        /// Address of the server; AWS itself when it is left out.
        endpoint: Option<String> = None;
        /// Whether an http:// endpoint is accepted.
        allow_http: bool = false;
        /// Whether the bucket is part of the host name instead of the path.
        virtual_hosted: bool = false;
        /// Access key; the surroundings (instance role, web identity) are asked when it is left out.
        access_key_id: Option<String> = None;
        /// Secret of the access key. Better in a file or the environment.
        secret_access_key: Option<Secret> = None;
        /// File whose first line is the secret of the access key.
        secret_access_key_file: Option<PathBuf> = None;
        /// Session token of temporary keys.
        session_token: Option<Secret> = None;
        /// Whether uploads carry a SHA-256 that the store checks.
        upload_checksum: bool = false;
    }
}

section! {
    /// Google Cloud Storage. Used when object.kind is "gcs".
    Gcs {
        /// Name of the bucket.
        bucket: String = String::new();
        /// Address of the server; Google itself when it is left out.
        endpoint: Option<String> = None;
        /// Whether an http:// endpoint is accepted.
        allow_http: bool = false;
        /// Key file of a service account; the surroundings are asked when it is left out.
        service_account_file: Option<PathBuf> = None;
        /// Whether requests are sent without credentials, for servers that want none.
        skip_signature: bool = false;
    }
}

section! {
    /// Azure Blob Storage. Used when object.kind is "azure".
    Azure {
        /// Storage account.
        account: String = String::new();
        /// Name of the container.
        container: String = String::new();
        /// Address of the server; Azure itself when it is left out.
        endpoint: Option<String> = None;
        /// Whether an http:// endpoint is accepted.
        allow_http: bool = false;
        /// Whether the server is the emulator with its well-known account.
        emulator: bool = false;
        /// Access key; the surroundings (managed identity) are asked when it is left out.
        access_key: Option<Secret> = None;
        /// File whose first line is the access key.
        access_key_file: Option<PathBuf> = None;
        /// Query string of a shared access signature.
        sas: Option<Secret> = None;
    }
}

section! {
    /// A directory in place of an object store. Used when object.kind is "directory". As durable as its
    /// file system and no more: every answer says "scope: this_file_system".
    ObjectDirectory {
        /// The directory. <node.directory>/objects when it is left out.
        path: Option<PathBuf> = None;
        /// Says that this is meant. Refused without it, because "durable" means more elsewhere.
        opt_in: bool = false;
    }
}

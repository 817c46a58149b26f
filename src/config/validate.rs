//! What must fit together.

use super::{Budgets, ByteSize, Config, ObjectKind, Role, TimeSpan};
use std::path::{Component, Path, PathBuf};

/// Largest chunk of every store; a frame is one chunk.
const MAX_CHUNK: ByteSize = ByteSize::mib(16);
/// Smallest window of an HTTP/2 stream: smaller ones cost more frames than bytes.
const MIN_STREAM_WINDOW: ByteSize = ByteSize::kib(4);
/// Largest window that HTTP/2 knows (RFC 9113, 6.9.1).
const MAX_WINDOW: ByteSize = ByteSize::new((1 << 31) - 1);
/// Smallest part of an upload that the cloud stores take.
const MIN_CLOUD_PART: ByteSize = ByteSize::mib(5);

/// Everything that is wrong, one line each.
pub(super) fn problems(config: &Config) -> Vec<String> {
    let mut found = Vec::new();
    check_node(config, &mut found);
    check_access(config, &mut found);
    check_times(config, &mut found);
    check_numbers(config, &mut found);
    check_sizes(config, &mut found);
    check_directories(config, &mut found);
    check_object(config, &mut found);
    check_coordinator(config, &mut found);
    found
}

fn check_coordinator(config: &Config, found: &mut Vec<String>) {
    let coordinator = &config.coordinator;
    if (coordinator.role == Role::Node) != coordinator.url.is_some() {
        found.push("coordinator.url: role \"node\" needs it, and no other role takes it".to_owned());
    }
    if let Some(url) = &coordinator.url
        && !(url.starts_with("http://") || url.starts_with("https://"))
    {
        found.push(format!("coordinator.url: {url:?} is not a base URL, as in \"http://coordinator:7440\""));
    }
    let (interval, timeout) = (coordinator.heartbeat_interval.get(), coordinator.heartbeat_timeout.get());
    if interval.is_zero() || timeout < interval.saturating_mul(2) {
        found.push("coordinator.heartbeat_timeout: at least twice the heartbeat_interval, and that above 0".to_owned());
    }
}

/// Whether a text can be a token.
pub(super) fn is_token(text: &str) -> bool {
    (16..=256).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn check_node(config: &Config, found: &mut Vec<String>) {
    if let Some(id) = &config.node.id
        && let Err(error) = store_api::NodeId::new(id)
    {
        found.push(format!("node.id: {error}"));
    }
    if let Some(url) = &config.node.advertised_url {
        let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        if host.is_none_or(|host| host.trim_end_matches('/').is_empty() || host.contains([' ', '?', '#', '@'])) {
            found.push(format!("node.advertised_url: {url:?} is not a base URL, as in \"https://node1.example:7440\""));
        }
    }
    if !config.memory.enabled && !config.disk.enabled && config.object.kind == ObjectKind::None {
        found.push("memory.enabled, disk.enabled, object.kind: a node keeps at least one kind of partition".to_owned());
    }
}

fn check_access(config: &Config, found: &mut Vec<String>) {
    let auth = &config.auth;
    if auth.admin_token.is_some() && auth.admin_token_file.is_some() {
        found.push("auth.admin_token and auth.admin_token_file: only one of them".to_owned());
    }
    if auth.admin_token.as_ref().is_some_and(|token| !is_token(token.reveal())) {
        found.push("auth.admin_token: a token has 16 to 256 visible ASCII characters".to_owned());
    }
    if config.tls.certificate.is_some() != config.tls.key.is_some() {
        found.push("tls.certificate and tls.key: both or none".to_owned());
    }
    let listen = config.http.listen;
    let is_protected = auth.is_on() && config.tls.is_on();
    if !(listen.ip().is_loopback() || auth.insecure || is_protected) {
        found.push(format!(
            "http.listen: {listen} can be reached by others and needs an admin token and TLS (auth.admin_token_file, tls.certificate, \
             tls.key); auth.insecure = true accepts it without"
        ));
    }
}

fn check_times(config: &Config, found: &mut Vec<String>) {
    let (http, lease, limits) = (&config.http, &config.lease, &config.limits);
    let positive: &[(&str, TimeSpan)] = &[
        ("http.handshake_timeout", http.handshake_timeout),
        ("http.head_timeout", http.head_timeout),
        ("http.body_stall", http.body_stall),
        ("http.frame_pause", http.frame_pause),
        ("http.read_stall", http.read_stall),
        ("http.call_timeout", http.call_timeout),
        ("http.seal_timeout", http.seal_timeout),
        ("http.event_keep_alive", http.event_keep_alive),
        ("memory.retention_deadline", config.memory.retention_deadline),
        ("disk.lane_patience", config.disk.lane_patience),
        ("object.answer_limit", config.object.answer_limit),
        ("lease.min", lease.min),
        ("lease.check_interval", lease.check_interval),
        ("lease.orphan_interval", lease.orphan_interval),
        ("limits.append_patience", limits.append_patience),
        ("limits.read_patience", limits.read_patience),
        ("limits.store_call", limits.store_call),
        ("limits.store_stall", limits.store_stall),
        ("shutdown.close", config.shutdown.close),
    ];
    for (name, _) in positive.iter().filter(|(_, span)| span.as_ms() == 0) {
        found.push(format!("{name}: must be longer than 0"));
    }
    let ordered = [
        ("lease.min", lease.min, "lease.default", lease.default),
        ("lease.default", lease.default, "lease.max", lease.max),
        ("lease.default", lease.default, "lease.orphan_grace", lease.orphan_grace),
        // A reader that is told to come again was not cut before.
        ("limits.read_patience", limits.read_patience, "limits.store_stall", limits.store_stall),
    ];
    for (low_name, low, high_name, high) in ordered {
        if low > high {
            found.push(format!("{low_name} ({low}) must not be longer than {high_name} ({high})"));
        }
    }
}

fn check_numbers(config: &Config, found: &mut Vec<String>) {
    let positive = [
        ("http.max_connections", config.max_connections()),
        ("http.max_streams", usize::try_from(config.http.max_streams).unwrap_or(usize::MAX)),
        ("http.max_requests", config.http.max_requests),
        ("disk.lanes", config.disk.lanes),
        ("disk.open_files", config.disk.open_files),
        ("object.uploads_per_attempt", config.object.uploads_per_attempt),
        ("limits.max_fetch_items", config.limits.max_fetch_items),
        ("limits.max_jobs", config.limits.max_jobs),
        ("limits.max_datasets", config.limits.max_datasets),
        ("limits.event_capacity", config.limits.event_capacity),
    ];
    for (name, _) in positive.iter().filter(|(_, number)| *number == 0) {
        found.push(format!("{name}: must be at least 1"));
    }
    if config.disk.reserve_per_mille > 500 {
        found.push("disk.reserve_per_mille: more than half of the disk would stay unused".to_owned());
    }
}

fn check_sizes(config: &Config, found: &mut Vec<String>) {
    let (budgets, limits) = (Budgets::of(config), &config.limits);
    let mut at_least = |name: &str, size: ByteSize, low_name: &str, low: ByteSize| {
        if size < low {
            found.push(format!("{name} ({size}) must be at least {low_name} ({low})"));
        }
    };
    at_least("node.memory", config.node.memory, "its parts together", budgets.total());
    at_least("limits.chunk", limits.chunk, "one byte", ByteSize::new(1));
    at_least("limits.max_frame", config.max_frame(), "one byte", ByteSize::new(1));
    at_least("limits.atomic_append", config.atomic_append(), "limits.chunk", limits.chunk);
    at_least("limits.max_fetch", limits.max_fetch, "limits.chunk", limits.chunk);
    at_least("the largest chunk of the stores", MAX_CHUNK, "limits.max_frame", config.max_frame());
    at_least("the largest chunk of the stores", MAX_CHUNK, "limits.chunk", limits.chunk);
    at_least("http.max_document", config.max_document(), "one KiB", ByteSize::kib(1));
    at_least("the memory for documents (5 % of node.memory)", budgets.documents, "http.max_document", config.max_document());
    let largest_piece = config.max_frame().max(limits.chunk);
    at_least("limits.read_budget", budgets.reads, "limits.max_frame and limits.chunk", largest_piece);
    let largest_call = config.max_frame().max(config.atomic_append());
    if config.memory.enabled {
        at_least("memory.budget", budgets.pipelined, "limits.max_frame and limits.atomic_append", largest_call);
        at_least("memory.job_budget", config.memory.job_budget.unwrap_or(budgets.pipelined), "the largest append", largest_call);
    }
    if config.disk.enabled {
        at_least("disk.budget", budgets.blocking, "limits.max_frame and limits.atomic_append", largest_call);
        at_least("disk.job_budget", config.disk.job_budget.unwrap_or(budgets.blocking), "the largest append", largest_call);
    }
    if config.object.kind != ObjectKind::None {
        at_least("object.budget", budgets.durable, "limits.max_frame and limits.atomic_append", largest_call);
        at_least("object.budget", budgets.durable, "object.part_size", config.object.part_size);
        at_least("object.part_size", config.object.part_size, "what clouds take", MIN_CLOUD_PART);
        at_least("64MiB, the largest part,", ByteSize::mib(64), "object.part_size", config.object.part_size);
    }
    check_windows(config, budgets, found);
}

/// What peers may send ahead, over all connections, lies inside its part of the memory.
fn check_windows(config: &Config, budgets: Budgets, found: &mut Vec<String>) {
    let (n_connections, window) = (config.max_connections(), config.connection_window());
    if config.http.stream_window < MIN_STREAM_WINDOW {
        found.push(format!("http.stream_window ({}) must be at least one page ({MIN_STREAM_WINDOW})", config.http.stream_window));
    }
    if window > MAX_WINDOW {
        found.push(format!("http.max_streams and http.stream_window: a connection has a window of at most {MAX_WINDOW}, not {window}"));
    }
    let ahead = ByteSize::new(window.bytes().saturating_mul(n_connections as u64));
    if ahead > budgets.connections {
        found.push(format!(
            "http.max_connections ({n_connections}) times max_streams x stream_window ({window} for each connection) is {ahead}, more than \
             http.budget ({})",
            budgets.connections
        ));
    }
}

/// Directories that must be apart: none is another, and none lies inside another. The node's own
/// directory is the one that others may lie in.
fn check_directories(config: &Config, found: &mut Vec<String>) {
    let mut named: Vec<(&str, PathBuf)> = Vec::new();
    if config.disk.enabled {
        named.extend(config.disk_directories().into_iter().map(|path| ("disk.directories", path)));
        named.push(("disk.index_directory", config.index_directory()));
    }
    if config.memory.enabled && config.memory.spill {
        named.extend(config.spill_directories().into_iter().map(|path| ("memory.spill_directories", path)));
    }
    if config.object.kind == ObjectKind::Directory {
        named.push(("object.directory.path", config.object_directory()));
    }
    let plain: Vec<(&str, PathBuf)> = named.iter().map(|(name, path)| (*name, plain(path))).collect();
    let node = plain_of_node(config);
    for (at, (name, path)) in plain.iter().enumerate() {
        if *path == node {
            found.push(format!("{name}: {} is the node's own directory; name one inside it", path.display()));
        }
        for (other_name, other) in plain.iter().skip(at + 1) {
            if path.starts_with(other) || other.starts_with(path) {
                found.push(format!("{name} and {other_name}: {} and {} must be apart", path.display(), other.display()));
            }
        }
    }
}

fn plain_of_node(config: &Config) -> PathBuf {
    plain(&config.node.directory)
}

/// The path without `.` and `..`, as far as that is possible without asking the file system.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir if matches!(out.components().next_back(), Some(Component::Normal(_))) => {
                out.pop();
            }
            other @ (Component::ParentDir | Component::Normal(_) | Component::RootDir | Component::Prefix(_)) => out.push(other),
        }
    }
    out
}

fn check_object(config: &Config, found: &mut Vec<String>) {
    let object = &config.object;
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'/');
    let has_dots = object.prefix.split('/').any(|part| part == "." || part == "..");
    if !object.prefix.bytes().all(is_allowed) || has_dots || object.prefix.len() > 200 {
        found.push("object.prefix: at most 200 of A-Z a-z 0-9 . _ - /, without '.' and '..' between slashes".to_owned());
    }
    match object.kind {
        ObjectKind::None => {}
        ObjectKind::S3 => check_s3(config, found),
        ObjectKind::Gcs => {
            required("object.gcs.bucket", &object.gcs.bucket, found);
            check_endpoint("object.gcs", object.gcs.endpoint.as_deref(), object.gcs.allow_http, found);
        }
        ObjectKind::Azure => {
            let azure = &object.azure;
            required("object.azure.container", &azure.container, found);
            if !azure.emulator {
                required("object.azure.account", &azure.account, found);
            }
            check_endpoint("object.azure", azure.endpoint.as_deref(), azure.allow_http, found);
            if azure.access_key.is_some() && azure.access_key_file.is_some() {
                found.push("object.azure.access_key and object.azure.access_key_file: only one of them".to_owned());
            }
        }
        ObjectKind::Directory if !object.directory.opt_in => found.push(
            "object.directory.opt_in: a directory is as durable as its file system and no more; say opt_in = true if that is meant"
                .to_owned(),
        ),
        ObjectKind::Directory => {}
    }
}

fn check_s3(config: &Config, found: &mut Vec<String>) {
    let s3 = &config.object.s3;
    required("object.s3.bucket", &s3.bucket, found);
    check_endpoint("object.s3", s3.endpoint.as_deref(), s3.allow_http, found);
    let has_secret = s3.secret_access_key.is_some() || s3.secret_access_key_file.is_some();
    if s3.secret_access_key.is_some() && s3.secret_access_key_file.is_some() {
        found.push("object.s3.secret_access_key and object.s3.secret_access_key_file: only one of them".to_owned());
    }
    if s3.access_key_id.is_some() != has_secret {
        found.push("object.s3.access_key_id and object.s3.secret_access_key: both or none".to_owned());
    }
}

fn required(name: &str, text: &str, found: &mut Vec<String>) {
    if text.is_empty() {
        found.push(format!("{name}: is needed"));
    }
}

fn check_endpoint(section: &str, endpoint: Option<&str>, allows_http: bool, found: &mut Vec<String>) {
    let Some(endpoint) = endpoint else { return };
    if endpoint.starts_with("http://") && !allows_http {
        found.push(format!("{section}.endpoint: http:// sends keys in the open; {section}.allow_http = true accepts it"));
    } else if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
        found.push(format!("{section}.endpoint: {endpoint:?} begins with neither https:// nor http://"));
    }
}

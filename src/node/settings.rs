//! The configuration in the words of service and port.

use crate::config::{Budgets, Config, Role};
use crate::coordinator::CoordinatorConfig;
use crate::http::HttpConfig;
use crate::server::{ServerConfig, TlsFiles};
use crate::service::ServiceConfig;
use std::net::SocketAddr;

pub(super) fn server(config: &Config) -> ServerConfig {
    let (http, tls) = (&config.http, &config.tls);
    let files = tls.certificate.clone().zip(tls.key.clone());
    ServerConfig {
        listen: http.listen,
        tls: files.map(|(certificate, key)| TlsFiles { certificate, key }),
        max_connections: config.max_connections(),
        h2_max_streams: http.max_streams,
        // Validated: below 2 GiB.
        h2_stream_window_bytes: u32::try_from(http.stream_window.bytes()).unwrap_or(u32::MAX),
        handshake_timeout: http.handshake_timeout.get(),
        head_timeout: http.head_timeout.get(),
        write_stall: http.read_stall.get(),
        grace: config.shutdown.grace.get(),
        ..ServerConfig::default()
    }
}

pub(super) fn http(config: &Config) -> HttpConfig {
    let http = &config.http;
    HttpConfig {
        max_document_bytes: config.max_document().bytes(),
        document_budget_bytes: Budgets::of(config).documents.bytes(),
        max_requests: http.max_requests,
        body_stall: http.body_stall.get(),
        frame_pause: http.frame_pause.get(),
        read_stall: http.read_stall.get(),
        call_timeout: http.call_timeout.get(),
        seal_timeout: http.seal_timeout.get(),
        event_keep_alive: http.event_keep_alive.get(),
        protect_metrics: http.protect_metrics,
    }
}

pub(super) fn coordinator(config: &Config) -> CoordinatorConfig {
    let (interval, timeout) = (config.coordinator.heartbeat_interval.get(), config.coordinator.heartbeat_timeout.get());
    let default = CoordinatorConfig::default();
    CoordinatorConfig {
        heartbeat_interval: interval,
        heartbeat_timeout: timeout,
        check_interval: default.check_interval.min(interval),
        event_capacity: config.limits.event_capacity,
        serves_nodes: config.coordinator.role == Role::Coordinator,
        ..default
    }
}

pub(super) fn service(config: &Config, admin_token_hash: Option<[u8; 32]>) -> ServiceConfig {
    let (lease, limits) = (&config.lease, &config.limits);
    ServiceConfig {
        default_lease: lease.default.get(),
        min_lease: lease.min.get(),
        max_lease: lease.max.get(),
        reap_interval: lease.check_interval.get(),
        tombstone_time: lease.memory_of_ended.get(),
        orphan_interval: lease.orphan_interval.get(),
        orphan_grace: lease.orphan_grace.get(),
        append_patience: limits.append_patience.get(),
        max_frame_bytes: config.max_frame().bytes(),
        atomic_append_bytes: config.atomic_append().bytes(),
        chunk_bytes: limits.chunk.bytes(),
        max_tail_wait: limits.max_tail_wait.get(),
        max_fetch_items: limits.max_fetch_items,
        max_fetch_bytes: limits.max_fetch.bytes(),
        event_capacity: limits.event_capacity,
        max_jobs: limits.max_jobs,
        max_datasets: limits.max_datasets,
        admin_token_hash,
        ..ServiceConfig::default()
    }
}

/// Base URL of the node: as configured, or where it is bound. An address that means "all" is no
/// place to be reached at, so loopback stands in for it.
pub(super) fn url(config: &Config, bound: SocketAddr) -> String {
    if let Some(url) = &config.node.advertised_url {
        return url.trim_end_matches('/').to_owned();
    }
    let scheme = if config.tls.is_on() { "https" } else { "http" };
    let mut address = bound;
    if bound.ip().is_unspecified() {
        address.set_ip(if bound.is_ipv4() { std::net::Ipv4Addr::LOCALHOST.into() } else { std::net::Ipv6Addr::LOCALHOST.into() });
    }
    format!("{scheme}://{address}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ByteSize, TimeSpan};
    use std::time::Duration;

    /// M4: each time, set to a number of seconds of its own, arrives as that many seconds.
    #[test]
    fn times_and_sizes_arrive_where_they_belong() {
        let mut config = Config::default();
        let (http_in, lease_in, limits_in) = (&mut config.http, &mut config.lease, &mut config.limits);
        let times = [
            &mut http_in.handshake_timeout,
            &mut http_in.head_timeout,
            &mut http_in.body_stall,
            &mut http_in.frame_pause,
            &mut http_in.read_stall,
            &mut http_in.call_timeout,
            &mut http_in.seal_timeout,
            &mut http_in.event_keep_alive,
            &mut config.shutdown.grace,
            &mut lease_in.default,
            &mut lease_in.min,
            &mut lease_in.max,
            &mut lease_in.check_interval,
            &mut lease_in.memory_of_ended,
            &mut lease_in.orphan_interval,
            &mut lease_in.orphan_grace,
            &mut limits_in.append_patience,
            &mut limits_in.max_tail_wait,
        ];
        for (seconds, time) in (1..).zip(times) {
            *time = TimeSpan::secs(seconds);
        }
        let (server, http, service) = (server(&config), http(&config), service(&config, None));
        let arrived = [
            server.handshake_timeout,
            server.head_timeout,
            http.body_stall,
            http.frame_pause,
            http.read_stall,
            http.call_timeout,
            http.seal_timeout,
            http.event_keep_alive,
            server.grace,
            service.default_lease,
            service.min_lease,
            service.max_lease,
            service.reap_interval,
            service.tombstone_time,
            service.orphan_interval,
            service.orphan_grace,
            service.append_patience,
            service.max_tail_wait,
        ];
        for (seconds, time) in (1..).zip(arrived) {
            assert_eq!(time, Duration::from_secs(seconds));
        }
        config.limits.max_frame = Some(ByteSize::mib(1));
        config.limits.atomic_append = Some(ByteSize::mib(2));
        config.limits.chunk = ByteSize::kib(3);
        config.limits.max_fetch = ByteSize::mib(4);
        let service = super::service(&config, None);
        assert_eq!((service.max_frame_bytes, service.atomic_append_bytes), (1 << 20, 2 << 20));
        assert_eq!((service.chunk_bytes, service.max_fetch_bytes), (3 << 10, 4 << 20));
    }

    #[test]
    fn the_url_is_one_that_can_be_reached() {
        let mut config = Config::default();
        let bound = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(url(&config, bound("127.0.0.1:5")), "http://127.0.0.1:5");
        assert_eq!(url(&config, bound("0.0.0.0:5")), "http://127.0.0.1:5");
        assert_eq!(url(&config, bound("[::]:5")), "http://[::1]:5");
        config.tls.certificate = Some("c".into());
        config.tls.key = Some("k".into());
        assert_eq!(url(&config, bound("127.0.0.1:5")), "https://127.0.0.1:5");
        config.node.advertised_url = Some("https://n1.example:7440/".to_owned());
        assert_eq!(url(&config, bound("127.0.0.1:5")), "https://n1.example:7440");
    }
}

//! The listener of a configured port (LDS). Its routes come on the same stream.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use super::messages::{address, ads, any, duration, encode, extension};
use crate::proto::envoy::config::http_connection_manager::{Rds, RouteSpecifier, UpgradeConfig};
use crate::proto::envoy::config::{Empty, FilterChain, HttpConnectionManager, Listener};

/// Envoy resets a stream on which nothing was sent for so long.
const STREAM_IDLE_TIMEOUT: Duration = Duration::from_hours(1);

/// The listener `name`, for HTTP/1.1 and HTTP/2 in plain text, with the routes of `route_configuration`.
///
/// The address of a client is that of its connection, and `X-Forwarded-For` gets it. Upgrades to `websocket` pass.
pub fn listener(name: &str, at: SocketAddr, route_configuration: &str) -> Bytes {
    let rds = Rds { config_source: Some(ads()), route_config_name: route_configuration.to_owned() };
    let router = any("filters.http.router.v3.Router", &Empty {});
    let manager = HttpConnectionManager {
        stat_prefix: name.to_owned(),
        http_filters: vec![extension("envoy.filters.http.router", router)],
        use_remote_address: Some(true),
        upgrade_configs: vec![UpgradeConfig { upgrade_type: "websocket".to_owned() }],
        stream_idle_timeout: Some(duration(STREAM_IDLE_TIMEOUT)),
        route_specifier: Some(RouteSpecifier::Rds(rds)),
    };
    let manager = any("filters.network.http_connection_manager.v3.HttpConnectionManager", &manager);
    let filter = extension("envoy.filters.network.http_connection_manager", manager);
    encode(&Listener {
        name: name.to_owned(),
        address: Some(address(at)),
        filter_chains: vec![FilterChain { filters: vec![filter] }],
    })
}

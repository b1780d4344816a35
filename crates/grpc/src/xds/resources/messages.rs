//! Parts that several resources have: addresses, durations, extensions, and where the other resources come from.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use prost_types::Any;

use crate::proto::envoy::config::address::Address as AddressKind;
use crate::proto::envoy::config::config_source::ConfigSourceSpecifier;
use crate::proto::envoy::config::extension::ConfigType;
use crate::proto::envoy::config::socket_address::PortSpecifier;
use crate::proto::envoy::config::{Address, ApiVersion, ConfigSource, Empty, Extension, SocketAddress};

pub(super) fn encode(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

/// A message with its type. Its package is below `envoy.extensions`.
pub(super) fn any(message_type: &str, message: &impl Message) -> Any {
    let type_url = format!("type.googleapis.com/envoy.extensions.{message_type}");
    Any { type_url, value: message.encode_to_vec() }
}

pub(super) fn extension(name: &str, config: Any) -> Extension {
    Extension { name: name.to_owned(), config_type: Some(ConfigType::TypedConfig(config)) }
}

/// An address to dial or to listen on. On `::`, Envoy also listens for IPv4, as Rouse does.
pub(super) fn address(at: SocketAddr) -> Address {
    let socket = SocketAddress {
        address: at.ip().to_string(),
        ipv4_compat: matches!(at.ip(), IpAddr::V6(ip) if ip.is_unspecified()),
        port_specifier: Some(PortSpecifier::PortValue(at.port().into())),
    };
    Address { address: Some(AddressKind::SocketAddress(socket)) }
}

/// A time of more than 292 years is cut to them: Envoy counts it in milliseconds, and refuses longer ones.
pub(super) fn duration(time: Duration) -> prost_types::Duration {
    const MOST: i64 = 9_223_372_035;
    let seconds = i64::try_from(time.as_secs()).unwrap_or(MOST).min(MOST);
    prost_types::Duration { seconds, nanos: i32::try_from(time.subsec_nanos()).unwrap_or_default() }
}

/// The stream that the resource came on.
pub(super) fn ads() -> ConfigSource {
    source(ConfigSourceSpecifier::Ads(Empty {}))
}

/// The server that the resource came from.
pub(super) fn same_server() -> ConfigSource {
    source(ConfigSourceSpecifier::Self_(Empty {}))
}

fn source(specifier: ConfigSourceSpecifier) -> ConfigSource {
    ConfigSource {
        initial_fetch_timeout: None,
        resource_api_version: ApiVersion::V3.into(),
        config_source_specifier: Some(specifier),
    }
}

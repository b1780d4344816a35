//! The cluster of a service port (CDS): how Envoy balances over its endpoints, and how it speaks to pods.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost_types::{Any, Struct};

use super::endpoints::pod_transport;
use super::messages::{ads, any, duration, encode, same_server};
use crate::proto::envoy::config::circuit_breakers::Thresholds;
use crate::proto::envoy::config::cluster::{
    ClusterDiscoveryType, CommonLbConfig, DiscoveryType, EdsClusterConfig, LbPolicy, TransportSocketMatch,
};
use crate::proto::envoy::config::common_tls_context::ValidationContextType;
use crate::proto::envoy::config::data_source::Specifier;
use crate::proto::envoy::config::string_matcher::MatchPattern;
use crate::proto::envoy::config::subject_alt_name_matcher::SanType;
use crate::proto::envoy::config::tls_parameters::TlsProtocol;
use crate::proto::envoy::config::transport_socket::ConfigType;
use crate::proto::envoy::config::upstream_http_protocol_options::explicit_http_config::ProtocolConfig;
use crate::proto::envoy::config::upstream_http_protocol_options::{
    ExplicitHttpConfig, UpstreamProtocolOptions,
};
use crate::proto::envoy::config::{
    CertificateValidationContext, CircuitBreakers, Cluster, CommonTlsContext, DataSource, Empty,
    Http2ProtocolOptions, HttpProtocolOptions, Percent, StringMatcher, SubjectAltNameMatcher, TlsParameters,
    TransportSocket, UpstreamHttpProtocolOptions, UpstreamTlsContext,
};

/// Envoy closes a connection that was idle for so long. Pods close idle connections too, and the request that meets such a close fails:
/// Envoy is to be first, and many servers wait 5 s.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);
/// A dial that takes longer fails its request: without retries, it is to outlast a lost packet or two.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The trusted roots in the images of Envoy. Envoy has no name for "those of the system".
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The cluster of a service port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSpec {
    /// The name of the cluster, and of its endpoints.
    pub name: Arc<str>,
    /// The protocol of its pods. Gateways speak both on one port.
    pub protocol: PodProtocol,
    /// TLS to its pods. Gateways get plain text.
    pub tls: Option<PodTls>,
    /// The most requests, connections, and requests that wait for a connection.
    pub most_requests: u32,
}

/// The version of HTTP that pods speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodProtocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2: by prior knowledge, or by ALPN over TLS.
    Http2,
}

/// TLS to pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodTls {
    /// The name that is sent (SNI), and that the certificate is valid for. An IP address is not sent.
    pub server_name: String,
    /// Other names that the certificate may be valid for instead.
    pub accepted: Vec<String>,
    /// The trusted roots.
    pub roots: PodRoots,
}

/// Which certificates of pods are trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodRoots {
    /// Those below the roots of Envoy's machine, in `/etc/ssl/certs/ca-certificates.crt`.
    System,
    /// Those below these roots.
    Pem(Bytes),
    /// All, whatever name they have.
    Unverified,
}

/// The cluster. It is balanced by requests in flight, and its endpoints come on the same stream.
///
/// Envoy refuses to let ALPN choose the protocol (`auto_config`) if some endpoints take plain text, as gateways do. Pods over TLS must
/// therefore speak the protocol that is given, and it is the only one that ALPN offers.
pub fn cluster(spec: &ClusterSpec) -> Bytes {
    let most = Some(spec.most_requests);
    let thresholds = Thresholds { max_connections: most, max_pending_requests: most, max_requests: most };
    let pod_sockets = spec.tls.iter().map(|tls| TransportSocketMatch {
        name: "pod".to_owned(),
        r#match: Some(Struct { fields: pod_transport() }),
        transport_socket: Some(tls_socket(tls, spec.protocol)),
    });
    encode(&Cluster {
        name: spec.name.to_string(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())),
        eds_cluster_config: Some(EdsClusterConfig { eds_config: Some(ads()), service_name: String::new() }),
        connect_timeout: Some(duration(CONNECT_TIMEOUT)),
        lb_policy: LbPolicy::LeastRequest.into(),
        circuit_breakers: Some(CircuitBreakers { thresholds: vec![thresholds] }),
        // Above 0, Envoy sends requests to draining endpoints if few others are left.
        common_lb_config: Some(CommonLbConfig { healthy_panic_threshold: Some(Percent { value: 0.0 }) }),
        // With active health checks that a user adds, a removed endpoint would stay until it fails one.
        ignore_health_on_host_removal: true,
        typed_extension_protocol_options: [protocol_options(spec.protocol)].into(),
        lrs_server: Some(same_server()),
        transport_socket_matches: pod_sockets.collect(),
    })
}

fn protocol_options(protocol: PodProtocol) -> (String, Any) {
    let protocol = match protocol {
        PodProtocol::Http1 => ProtocolConfig::HttpProtocolOptions(Empty {}),
        PodProtocol::Http2 => ProtocolConfig::Http2ProtocolOptions(Http2ProtocolOptions::default()),
    };
    let explicit = ExplicitHttpConfig { protocol_config: Some(protocol) };
    let options = UpstreamHttpProtocolOptions {
        common_http_protocol_options: Some(HttpProtocolOptions {
            idle_timeout: Some(duration(IDLE_TIMEOUT)),
        }),
        upstream_protocol_options: Some(UpstreamProtocolOptions::ExplicitHttpConfig(explicit)),
    };
    let name = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    (name.to_owned(), any("upstreams.http.v3.HttpProtocolOptions", &options))
}

fn tls_socket(tls: &PodTls, protocol: PodProtocol) -> TransportSocket {
    let alpn = match protocol {
        PodProtocol::Http1 => "http/1.1",
        PodProtocol::Http2 => "h2",
    };
    // Without them, Envoy's clients speak TLS 1.2 at most.
    let params = TlsParameters {
        tls_minimum_protocol_version: TlsProtocol::TlSv12.into(),
        tls_maximum_protocol_version: TlsProtocol::TlSv13.into(),
    };
    let common = CommonTlsContext {
        tls_params: Some(params),
        alpn_protocols: vec![alpn.to_owned()],
        validation_context_type: validation(tls).map(ValidationContextType::ValidationContext),
    };
    let is_name = tls.server_name.parse::<IpAddr>().is_err();
    let context = UpstreamTlsContext {
        common_tls_context: Some(common),
        sni: if is_name { tls.server_name.clone() } else { String::new() },
    };
    let config = any("transport_sockets.tls.v3.UpstreamTlsContext", &context);
    TransportSocket {
        name: "envoy.transport_sockets.tls".to_owned(),
        config_type: Some(ConfigType::TypedConfig(config)),
    }
}

fn validation(tls: &PodTls) -> Option<CertificateValidationContext> {
    let roots = match &tls.roots {
        PodRoots::System => Specifier::Filename(SYSTEM_ROOTS.to_owned()),
        PodRoots::Pem(pem) => Specifier::InlineBytes(pem.clone()),
        PodRoots::Unverified => return None,
    };
    let names = [&tls.server_name].into_iter().chain(&tls.accepted);
    Some(CertificateValidationContext {
        trusted_ca: Some(DataSource { specifier: Some(roots) }),
        match_typed_subject_alt_names: names.map(|name| accepted_name(name)).collect(),
    })
}

fn accepted_name(name: &str) -> SubjectAltNameMatcher {
    let is_address = name.parse::<IpAddr>().is_ok();
    let kind = if is_address { SanType::IpAddress } else { SanType::Dns };
    let exact = MatchPattern::Exact(name.to_owned());
    SubjectAltNameMatcher {
        san_type: kind.into(),
        matcher: Some(StringMatcher { match_pattern: Some(exact) }),
    }
}

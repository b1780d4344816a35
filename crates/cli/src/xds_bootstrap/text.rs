//! The text of the bootstrap, in YAML with comments. Values that are not numbers are quoted as in JSON, which YAML reads too.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::Value;

use super::args::{BootstrapArgs, StaticListener, XdsServerAddress, XdsServerHost};

/// The whole bootstrap.
pub(super) fn bootstrap(args: &BootstrapArgs) -> String {
    let node_id = quoted(&args.node_id);
    let admin = socket(args.envoy_admin);
    let listeners = match args.listen {
        StaticListener::At(address) => listener(address),
        StaticListener::None => String::new(),
    };
    format!(
        "{HEAD}node:\n  id: {node_id}\n  cluster: rouse\n\
         admin:\n  address:\n    socket_address: {admin}\n\
         static_resources:\n{listeners}  clusters:\n{}{DYNAMIC}",
        server_cluster(args)
    )
}

const HEAD: &str = "\
# Envoy gets clusters, endpoints, routes and listeners from Rouse, and reports the load of the clusters to it.
# Printed by `rouse xds bootstrap`; start it with: envoy -c FILE
";

/// What Envoy asks for, and where it reports. No retries: Rouse's gateways repeat what can be repeated safely.
const DYNAMIC: &str = "\
dynamic_resources:
  ads_config:
    api_type: DELTA_GRPC
    transport_api_version: V3
    set_node_on_first_message_only: true
    grpc_services:
    - envoy_grpc:
        cluster_name: rouse_xds
  cds_config:
    resource_api_version: V3
    ads: {}
  lds_config:
    resource_api_version: V3
    ads: {}
# Without these reports, Rouse does not know the load that passes Envoy, and scales nothing down.
cluster_manager:
  load_stats_config:
    api_type: GRPC
    transport_api_version: V3
    grpc_services:
    - envoy_grpc:
        cluster_name: rouse_xds
";

fn listener(address: SocketAddr) -> String {
    format!(
        "  listeners:\n  - name: rouse_static\n    address:\n      socket_address: {}\n{FILTERS}",
        socket(address)
    )
}

/// The routes are the ones that Rouse publishes under the name `rouse`. A WebSocket or a long answer may be silent for an hour.
const FILTERS: &str = "    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: rouse
          rds:
            route_config_name: rouse
            config_source:
              resource_api_version: V3
              ads: {}
          use_remote_address: true
          stream_idle_timeout: 3600s
          upgrade_configs:
          - upgrade_type: websocket
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
";

/// The cluster of the servers. Its pings notice a server that is gone without a word.
fn server_cluster(args: &BootstrapArgs) -> String {
    let resolved = args.server.iter().any(|server| matches!(server.host, XdsServerHost::Name(_)));
    let discovery = if resolved { "STRICT_DNS\n    dns_lookup_family: ALL" } else { "STATIC" };
    let endpoints: String = args.server.iter().map(endpoint).collect();
    let transport = args.ca.as_deref().map(|ca| transport(args, ca)).unwrap_or_default();
    format!(
        "  - name: rouse_xds
    type: {discovery}
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config:
          http2_protocol_options:
            connection_keepalive:
              interval: 10s
              timeout: 5s
    upstream_connection_options:
      tcp_keepalive: {{}}
{transport}    load_assignment:
      cluster_name: rouse_xds
      endpoints:
      - lb_endpoints:
{endpoints}"
    )
}

fn endpoint(server: &XdsServerAddress) -> String {
    let address = match &server.host {
        XdsServerHost::Name(name) => host_and_port(name, server.port),
        XdsServerHost::Ip(ip) => host_and_port(ip, server.port),
    };
    format!("        - endpoint:\n            address:\n              socket_address: {address}\n")
}

/// TLS to the servers: the certificate must be for the name or the address that Envoy dials.
fn transport(args: &BootstrapArgs, ca: &Path) -> String {
    let name = args.server.iter().find_map(|server| match &server.host {
        XdsServerHost::Name(name) => Some(name),
        XdsServerHost::Ip(_) => None,
    });
    let sni = name.map(|name| format!("        sni: {}\n", quoted(name))).unwrap_or_default();
    let mut names: Vec<String> = args.server.iter().map(accepted_name).collect();
    names.sort();
    names.dedup();
    let own = args.cert.as_deref().zip(args.key.as_deref()).map(|(cert, key)| {
        format!(
            "          tls_certificates:\n          - certificate_chain: {{filename: {}}}\n            private_key: {{filename: \
             {}}}\n",
            path(cert),
            path(key)
        )
    });
    format!(
        "    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
{sni}        common_tls_context:
          alpn_protocols: [h2]
          validation_context:
            trusted_ca: {{filename: {}}}
            match_typed_subject_alt_names:
{}{}",
        path(ca),
        names.concat(),
        own.unwrap_or_default()
    )
}

/// A name that the certificate of a server may be for.
fn accepted_name(server: &XdsServerAddress) -> String {
    let (kind, name) = match &server.host {
        XdsServerHost::Name(name) => ("DNS", quoted(name)),
        XdsServerHost::Ip(ip) => ("IP_ADDRESS", quoted(ip)),
    };
    format!("            - san_type: {kind}\n              matcher: {{exact: {name}}}\n")
}

fn socket(address: SocketAddr) -> String {
    host_and_port(address.ip(), address.port())
}

fn host_and_port(host: impl Display, port: impl Display) -> String {
    format!("{{address: {}, port_value: {port}}}", quoted(host))
}

fn path(path: &Path) -> String {
    quoted(path.display())
}

/// A text in double quotes, with escapes that YAML has too.
fn quoted(text: impl Display) -> String {
    Value::from(text.to_string()).to_string()
}

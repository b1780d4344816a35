//! Bootstraps: what Envoy knows before it asks a control plane.

use std::net::SocketAddr;

use serde_json::{Value, json};

/// An Envoy called `node` that gets clusters and listeners from the control plane at `control_plane`, by delta ADS in plain text. The
/// control plane is also the cluster `xds`.
pub fn bootstrap(node: &str, control_plane: SocketAddr) -> Value {
    let ads = json!({ "ads": {}, "resource_api_version": "V3" });
    json!({
        "node": { "id": node, "cluster": "test" },
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC",
                "transport_api_version": "V3",
                "grpc_services": [{ "envoy_grpc": { "cluster_name": "xds" } }],
            },
            "cds_config": ads,
            "lds_config": ads,
        },
        "static_resources": { "clusters": [static_cluster("xds", control_plane)] },
    })
}

/// A cluster with one endpoint that speaks HTTP/2.
pub fn static_cluster(name: &str, endpoint: SocketAddr) -> Value {
    let socket = json!({ "address": endpoint.ip().to_string(), "port_value": endpoint.port() });
    let endpoint = json!({ "endpoint": { "address": { "socket_address": socket } } });
    let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    json!({
        "name": name,
        "type": "STATIC",
        "load_assignment": { "cluster_name": name, "endpoints": [{ "lb_endpoints": [endpoint] }] },
        "typed_extension_protocol_options": {
            options: {
                "@type": format!("type.googleapis.com/{options}"),
                "explicit_http_config": { "http2_protocol_options": {} },
            },
        },
    })
}

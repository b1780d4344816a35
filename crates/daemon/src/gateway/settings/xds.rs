//! The settings of the listener for Envoys, which is off by default: `rouse xds` serves them without being in the way of requests.

use std::net::SocketAddr;

use rouse_config::settings::{Address, Group, Setting};

use crate::xds_listener::settings::{
    ENVOY_LISTEN, GATEWAYS, POD_NAMESPACE, XDS_CLIENT_CA, XDS_CLIENT_SAN, XDS_INSECURE, XDS_TLS_CERT,
    XDS_TLS_KEY,
};

pub(super) static XDS: Group = Group {
    title: "Envoy",
    settings: &[
        &XDS_LISTEN,
        &XDS_TLS_CERT,
        &XDS_TLS_KEY,
        &XDS_CLIENT_CA,
        &XDS_CLIENT_SAN,
        &XDS_INSECURE,
        &ENVOY_LISTEN,
        &GATEWAYS,
        &POD_NAMESPACE,
    ],
};

/// `--xds-listen`.
pub static XDS_LISTEN: Setting<Option<SocketAddr>> = Setting::optional(
    "xds-listen",
    &Address,
    "none",
    "The address to listen on for Envoys, as `rouse xds` does",
);

//! The table of all settings of `rouse xds`. What decides which pods and routes there are is set as for the gateways, by the same
//! settings: an Envoy and a gateway must agree.

use std::net::SocketAddr;

use rouse_config::settings::{Address, Group, PrivateAddress, Setting, SettingsTable, Values};
use rouse_kube::cluster::ClusterSettings;
use rouse_net::clock::TokioClock;

use crate::gateway::settings::{
    self as of_gateway, ALLOW_MANUAL_ENDPOINTS, ASSIGNED_HOSTS, CLUSTER_DOMAIN, DIRECT_POD_ROUTING,
    HOST_OVERLAP, MANUAL_ENDPOINTS_OF, MAX_HOLDS, REPORT_CA, REPORT_TO, REPORT_TOKEN, REQUEST_TIMEOUT,
    UPSTREAM_CA, UPSTREAM_TLS, WATCH_NAMESPACE,
};
use crate::logging::{LOG_FORMAT, LOG_LEVEL};
use crate::settings::{CONTEXT, KUBECONFIG, everywhere, loopback};
pub use crate::xds_listener::settings::{
    ENVOY_LISTEN, GATEWAYS, POD_NAMESPACE, XDS_CLIENT_CA, XDS_CLIENT_SAN, XDS_INSECURE, XDS_TLS_CERT,
    XDS_TLS_KEY,
};

/// The port of xDS, unless a setting says otherwise.
pub const DEFAULT_XDS_PORT: u16 = 18000;

/// The table of `rouse xds`.
pub static TABLE: SettingsTable = SettingsTable {
    groups: &[&LISTENING, &REPORTS, &ROUTING, &OBSERVABILITY, &KUBERNETES],
    foreign: &[],
    without_effect: |_| None,
    other_variables: &[],
};

static LISTENING: Group = Group {
    title: "Envoys",
    settings: &[
        &XDS_LISTEN,
        &XDS_TLS_CERT,
        &XDS_TLS_KEY,
        &XDS_CLIENT_CA,
        &XDS_CLIENT_SAN,
        &XDS_INSECURE,
        &ENVOY_LISTEN,
        &GATEWAYS,
    ],
};

static REPORTS: Group = Group { title: "Load reports", settings: &[&REPORT_TO, &REPORT_CA, &REPORT_TOKEN] };

/// The title of the settings that must have the values of the gateways.
pub const SHARED: &str = "As for the gateways";

static ROUTING: Group = Group {
    title: SHARED,
    settings: &[
        &DIRECT_POD_ROUTING,
        &ALLOW_MANUAL_ENDPOINTS,
        &MANUAL_ENDPOINTS_OF,
        &REQUEST_TIMEOUT,
        &MAX_HOLDS,
        &UPSTREAM_TLS,
        &UPSTREAM_CA,
        &WATCH_NAMESPACE,
        &ASSIGNED_HOSTS,
        &HOST_OVERLAP,
        &CLUSTER_DOMAIN,
    ],
};

static OBSERVABILITY: Group = Group { title: "Observability", settings: &[&ADMIN, &LOG_FORMAT, &LOG_LEVEL] };

static KUBERNETES: Group = Group { title: "Kubernetes", settings: &[&POD_NAMESPACE, &KUBECONFIG, &CONTEXT] };

/// `--xds-listen`.
pub static XDS_LISTEN: Setting<SocketAddr> = Setting::new(
    "xds-listen",
    &Address,
    || everywhere(DEFAULT_XDS_PORT),
    "The address to listen on for Envoys: delta ADS, and EDS alone, over TLS with client certificates",
);

/// `--admin`.
pub static ADMIN: Setting<SocketAddr> = Setting::new(
    "admin",
    &PrivateAddress,
    || loopback(9090),
    "The address of the admin API and the metrics: loopback, or in a pod the pod's own address",
);

/// The settings of the Kubernetes engine: those of a gateway that reads only.
pub(super) fn cluster(values: &Values, clock: TokioClock) -> ClusterSettings {
    let mut settings = of_gateway::cluster_settings(values, Vec::new(), clock);
    settings.wakes = false;
    settings.routes.write_status = false;
    settings
}

//! The table of all settings of `rouse gateway`, and the settings of its components that follow from them.

mod limits;
mod register;
mod report;
mod routing;
mod tls;
mod xds;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rouse_config::settings::{
    Address, Choice, FilePath, Group, Label, PrivateAddress, Setting, SettingKind, SettingsTable, Text,
    Values,
};
use rouse_kube::cluster::ClusterSettings;
use rouse_kube::routes::claims::{HostOverlap, HostRules};
use rouse_kube::routes::hosts::AssignedHosts;
use rouse_net::clock::TokioClock;
use rouse_net::random::system_seed;
use rouse_proxy::listen::ProxySettings;
use rouse_proxy::message::Placement;
use rouse_proxy::routing::HostPattern;
use rouse_proxy::telemetry::access_log::{AccessLog, Format};
use rouse_proxy::upstream::ColdStartHeaders;

pub use self::limits::*;
pub use self::register::*;
pub use self::report::*;
pub use self::routing::*;
pub use self::tls::*;
pub use self::xds::*;
use super::{keda, upstream};
use crate::logging::{LOG_FORMAT, LOG_LEVEL};
use crate::process::time_of_day;
use crate::settings::{
    CONTEXT, KUBECONFIG, TRUSTED_PROXIES, drain_timeout, everywhere, loopback, shutdown_delay,
};

/// The table of `rouse gateway`.
pub static TABLE: SettingsTable = SettingsTable {
    groups: &[
        &LISTENING,
        &TLS,
        &REGISTRATION,
        &REPORTS,
        &XDS,
        &ROUTING,
        &TIMEOUTS,
        &HOLDS,
        &LIMITS,
        &LEAVING,
        &OBSERVABILITY,
        &KUBERNETES,
    ],
    foreign: &[keda::PREFIX, keda::OTEL, keda::PROFILING],
    without_effect: keda::without_effect,
    other_variables: &[CONFIG],
};

/// The variable for `--config`.
pub(super) const CONFIG: &str = "ROUSE_CONFIG";

const FILE: FilePath = FilePath { placeholder: "FILE" };
const PATH: FilePath = FilePath { placeholder: "PATH" };
const HOST_OVERLAPS: &[(&str, HostOverlap)] = &[("deny", HostOverlap::Deny), ("allow", HostOverlap::Allow)];
const ACCESS_LOGS: &[(&str, Option<Format>)] =
    &[("off", None), ("json", Some(Format::Json)), ("combined", Some(Format::Combined))];

static LISTENING: Group = Group { title: "Listening", settings: &[&LISTEN, &ADMIN] };

static LEAVING: Group = Group { title: "Shutdown", settings: &[&SHUTDOWN_DELAY, &DRAIN_TIMEOUT] };

static OBSERVABILITY: Group =
    Group { title: "Observability", settings: &[&ACCESS_LOG, &LOG_FORMAT, &LOG_LEVEL] };

static KUBERNETES: Group = Group {
    title: "Kubernetes",
    settings: &[&WATCH_NAMESPACE, &ASSIGNED_HOSTS, &HOST_OVERLAP, &KUBECONFIG, &CONTEXT, &CLUSTER_DOMAIN],
};

/// `--listen`.
pub static LISTEN: Setting<Vec<SocketAddr>> = Setting::new(
    "listen",
    &Address,
    || vec![everywhere(8080)],
    "The address to listen on for requests; may be repeated",
)
.aliases(&keda::PROXY_PORT);

/// `--admin`.
pub static ADMIN: Setting<SocketAddr> = Setting::new(
    "admin",
    &PrivateAddress,
    || loopback(9090),
    "The address of the admin API, the metrics and /queue: loopback, or in a pod the pod's own address",
)
.aliases(&keda::ADMIN_PORT);

/// `--shutdown-delay`.
pub static SHUTDOWN_DELAY: Setting<Duration> =
    shutdown_delay(|| Duration::from_secs(5)).aliases(&keda::SHUTDOWN_DELAY);

/// `--drain-timeout`.
pub static DRAIN_TIMEOUT: Setting<Duration> =
    drain_timeout(|| Duration::from_secs(30)).aliases(&keda::DRAIN_TIMEOUT);

/// `--access-log`.
pub static ACCESS_LOG: Setting<Option<Format>> = Setting::new(
    "access-log",
    &Choice(ACCESS_LOGS),
    || None,
    "Whether to log each request as a line on standard output: off, json or combined",
)
.aliases(&keda::LOG_REQUESTS);

/// `--watch-namespace`.
pub static WATCH_NAMESPACE: Setting<Option<String>> = Setting::optional(
    "watch-namespace",
    &Label,
    "all namespaces",
    "The only namespace whose routes and Services are used",
)
.aliases(&keda::WATCH_NAMESPACE);

/// `--assigned-hosts`.
pub static ASSIGNED_HOSTS: Setting<Vec<AssignedHost>> = Setting::list(
    "assigned-hosts",
    &Assignment,
    "each host belongs to the namespace that claimed it first",
    "Which namespace a host belongs to, regardless of what routes claim: shop.example.com=shop, *.example.com=web for all hosts \
         below it, *=web for all others; the most specific applies",
);

/// `--host-overlap`.
pub static HOST_OVERLAP: Setting<HostOverlap> = Setting::new(
    "host-overlap",
    &Choice(HOST_OVERLAPS),
    || HostOverlap::Deny,
    "Whether an exact host may be below a wildcard of another namespace: deny, so that the first claim keeps the other out, \
     or allow, so that the exact host takes precedence",
);

/// `--cluster-domain`.
pub static CLUSTER_DOMAIN: Setting<String> = Setting::new(
    "cluster-domain",
    &Text,
    || "cluster.local".to_owned(),
    "The domain at the end of Services' DNS names, which pods' certificates may contain",
);

/// A host that the operator assigns to a namespace, regardless of what routes claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignedHost {
    /// The host or wildcard.
    pub host: HostPattern,
    /// The namespace.
    pub namespace: String,
}

/// `HOST=NAMESPACE`.
#[derive(Debug, Clone, Copy)]
pub struct Assignment;

impl SettingKind for Assignment {
    type Value = AssignedHost;

    fn placeholder(&self) -> &'static str {
        "HOST=NAMESPACE"
    }

    fn allowed(&self) -> String {
        "a host, an equals sign and a namespace, like shop.example.com=shop, *.example.com=web or *=web"
            .to_owned()
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<AssignedHost, String> {
        let assigned = text.split_once('=').and_then(|(host, namespace)| {
            let host = host.parse().ok()?;
            Label::is_allowed(namespace).then(|| AssignedHost { host, namespace: namespace.to_owned() })
        });
        assigned.ok_or_else(|| self.allowed())
    }

    fn show(&self, AssignedHost { host, namespace }: &AssignedHost) -> String {
        format!("{host}={namespace}")
    }
}

/// The hosts that the operator assigns to namespaces.
pub fn assigned_hosts(values: &Values) -> AssignedHosts {
    let all = values.get(&ASSIGNED_HOSTS).into_iter();
    all.map(|assigned| (assigned.host.to_string(), assigned.namespace)).collect()
}

/// The settings of the Kubernetes engine.
pub fn cluster_settings(
    values: &Values,
    own_addresses: Vec<SocketAddr>,
    clock: TokioClock,
) -> ClusterSettings {
    let mut settings = ClusterSettings::new(Arc::new(clock), time_of_day, system_seed());
    settings.namespace = values.get(&WATCH_NAMESPACE);
    settings.manual_endpoints = values.get(&ALLOW_MANUAL_ENDPOINTS);
    settings.manual_endpoints_of = values.get(&MANUAL_ENDPOINTS_OF).into_iter().collect();
    settings.own_addresses = own_addresses;
    settings.host_network_pushes = values.get(&REGISTER_HOST_NETWORK);
    settings.push_lease = registry_settings(values).policy.lease;
    settings.routes.hosts =
        HostRules { assigned: assigned_hosts(values), overlap: values.get(&HOST_OVERLAP) };
    settings.routes.direct = values.get(&DIRECT_POD_ROUTING);
    // In a pod this is the pod's name.
    settings.routes.identity = rustix::system::uname().nodename().to_string_lossy().into_owned();
    settings.routes.check_tls = upstream::check;
    settings
}

/// The settings of the proxy.
pub fn proxy_settings(
    values: &Values,
    clock: TokioClock,
    access: Option<Arc<dyn AccessLog>>,
) -> ProxySettings {
    let cold_start = values.get(&COLD_START_HEADER);
    ProxySettings {
        id: format!("{:016x}", system_seed()),
        placement: Placement::Gateway,
        trusted: values.get(&TRUSTED_PROXIES).networks,
        bounds: holds(values),
        clock,
        limits: connection_limits(values),
        cold_start: ColdStartHeaders { rouse: cold_start, keda: cold_start && values.get(&KEDA_COMPAT) },
        access,
    }
}

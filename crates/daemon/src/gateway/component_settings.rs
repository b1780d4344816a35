//! Converts the settings of `rouse gateway` into those of its components: Kubernetes engine, registry and proxy.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rouse_config::settings::Values;
use rouse_core::budget::{Rate, WakeRates};
use rouse_core::hold::HoldLimits;
use rouse_core::merge::MergePolicy;
use rouse_core::registry;
use rouse_kube::cluster::ClusterSettings;
use rouse_kube::routes::claims::HostRules;
use rouse_kube::routes::hosts::AssignedHosts;
use rouse_net::clock::TokioClock;
use rouse_net::random::system_seed;
use rouse_proxy::budget::{ConnectionLimits, HeadLimits};
use rouse_proxy::listen::ProxySettings;
use rouse_proxy::telemetry::access_log::AccessLog;
use rouse_proxy::upstream::{ColdStartHeaders, Timeouts};

use super::{settings as set, upstream};
use crate::process::capacity::ConnectionCapacity;
use crate::process::time_of_day;
use crate::settings as shared;

/// The hosts that the operator assigns to namespaces.
pub fn assigned_hosts(values: &Values) -> AssignedHosts {
    let all = values.get(&set::ASSIGNED_HOSTS).into_iter();
    all.map(|assigned| (assigned.host.to_string(), assigned.namespace)).collect()
}

/// The settings of the Kubernetes engine.
pub fn cluster_settings(
    values: &Values,
    own_addresses: Vec<SocketAddr>,
    clock: TokioClock,
) -> ClusterSettings {
    ClusterSettings {
        namespace: values.get(&set::WATCH_NAMESPACE),
        manual_endpoints: values.get(&set::ALLOW_MANUAL_ENDPOINTS),
        own_addresses,
        manual_endpoints_of: values.get(&set::MANUAL_ENDPOINTS_OF).into_iter().collect(),
        hosts: HostRules { assigned: assigned_hosts(values), overlap: values.get(&set::HOST_OVERLAP) },
        direct: values.get(&set::DIRECT_POD_ROUTING),
        // In a pod this is the pod's name.
        identity: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        check_tls: upstream::check,
        ..ClusterSettings::new(Arc::new(clock), time_of_day, system_seed())
    }
}

/// The settings of the registry: the limits of held requests and of wakes.
pub fn registry_settings(values: &Values) -> registry::RegistrySettings {
    let wakes = WakeRates {
        namespace: Rate {
            per_second: values.get(&set::NAMESPACE_WAKES_PER_SECOND),
            burst: values.get(&set::NAMESPACE_WAKE_BURST),
        },
        total: Rate { per_second: values.get(&set::WAKES_PER_SECOND), burst: values.get(&set::WAKE_BURST) },
    };
    // The Kubernetes engine leaves out manual endpoints that are not allowed, service by service.
    let policy = MergePolicy { manual_endpoints: true, ..MergePolicy::default() };
    registry::RegistrySettings {
        holds: holds(values),
        wakes,
        policy,
        ..registry::RegistrySettings::default()
    }
}

/// The limits of held requests.
pub fn holds(values: &Values) -> HoldLimits {
    HoldLimits {
        per_service: values.get(&set::MAX_HOLDS),
        total: values.get(&set::MAX_HOLDS_TOTAL),
        bytes: values.get(&set::HOLD_MEMORY).unwrap_or_else(|| ConnectionCapacity::now().holds),
        max_wait: values.get(&set::MAX_HOLD),
    }
}

/// The timeouts of requests whose route sets none.
pub fn timeouts(values: &Values) -> Timeouts {
    // Zero means no limit.
    let limit = |timeout: Duration| (!timeout.is_zero()).then_some(timeout);
    Timeouts {
        readiness: limit(values.get(&set::READINESS_TIMEOUT)),
        request: limit(values.get(&set::REQUEST_TIMEOUT)),
        response_header: limit(values.get(&set::RESPONSE_HEADER_TIMEOUT)),
        connect: values.get(&set::CONNECT_TIMEOUT),
    }
}

/// The settings of the proxy.
pub fn proxy_settings(
    values: &Values,
    clock: TokioClock,
    access: Option<Arc<dyn AccessLog>>,
) -> ProxySettings {
    let capacity = ConnectionCapacity::now();
    // Cap the setting at the limit of open files: a connection beyond it cannot be served.
    let connections =
        values.get(&shared::MAX_CONNECTIONS).unwrap_or(capacity.connections).min(capacity.by_files);
    let pod_connections = capacity.pod_connections_for(connections);
    let cold_start = values.get(&set::COLD_START_HEADER);
    ProxySettings {
        id: format!("{:016x}", system_seed()),
        trusted: values.get(&shared::TRUSTED_PROXIES).networks,
        bounds: holds(values),
        clock,
        limits: ConnectionLimits {
            connections,
            idle: values.get(&shared::IDLE_TIMEOUT),
            head: values.get(&shared::HEADER_TIMEOUT),
            heads: HeadLimits {
                head: values.get(&set::MAX_HEADER_SIZE),
                headers: values.get(&set::MAX_HEADERS),
                line: values.get(&set::MAX_REQUEST_LINE),
                ..HeadLimits::default()
            },
            streams: values.get(&set::MAX_STREAMS),
            stream_idle: values.get(&set::STREAM_IDLE_TIMEOUT),
            kept_per_pod: values.get(&set::MAX_IDLE_CONNECTIONS_PER_POD),
            // Idle connections must leave room for those in use.
            kept: values.get(&set::MAX_IDLE_CONNECTIONS).min(pod_connections / 2),
            pod_connections,
            pod_connections_per_client: values.get(&set::MAX_POD_CONNECTIONS_PER_CLIENT),
            buffers: values.get(&set::BUFFER_MEMORY).unwrap_or(capacity.buffers),
            buffers_per_connection: values.get(&set::BUFFER_MEMORY_PER_CONNECTION),
            ..ConnectionLimits::default()
        },
        cold_start: ColdStartHeaders { rouse: cold_start, keda: cold_start && values.get(&set::KEDA_COMPAT) },
        access,
    }
}

//! The settings that limit held requests, wakes, connections, request heads and memory, and the limits that follow from them.

use std::time::Duration;

use rouse_config::settings::{Group, Setting, Size, Values, Whole};
use rouse_core::budget::{Rate, WakeRates};
use rouse_core::hold::HoldLimits;
use rouse_core::merge::MergePolicy;
use rouse_core::registry::RegistrySettings;
use rouse_proxy::budget::{ConnectionLimits, HeadLimits};

use crate::gateway::keda;
use crate::process::capacity::{ConnectionCapacity, Registrations};
use crate::settings::{
    COUNT, HEADER_TIMEOUT, IDLE_TIMEOUT, MAX_CONNECTIONS, POSITIVE_DURATION, STREAM_IDLE_TIMEOUT, WORKERS,
};

pub(super) static HOLDS: Group = Group {
    title: "Holds and wakes",
    settings: &[
        &MAX_HOLD,
        &MAX_HOLDS,
        &MAX_HOLDS_TOTAL,
        &HOLD_MEMORY,
        &WAKES_PER_SECOND,
        &WAKE_BURST,
        &NAMESPACE_WAKES_PER_SECOND,
        &NAMESPACE_WAKE_BURST,
    ],
};

pub(super) static LIMITS: Group = Group {
    title: "Limits",
    settings: &[
        &MAX_CONNECTIONS,
        &MAX_STREAMS,
        &HEADER_TIMEOUT,
        &IDLE_TIMEOUT,
        &STREAM_IDLE_TIMEOUT,
        &MAX_HEADER_SIZE,
        &MAX_HEADERS,
        &MAX_REQUEST_LINE,
        &MAX_IDLE_CONNECTIONS_PER_POD,
        &MAX_IDLE_CONNECTIONS,
        &MAX_POD_CONNECTIONS_PER_CLIENT,
        &BUFFER_MEMORY,
        &BUFFER_MEMORY_PER_CONNECTION,
        &WORKERS,
    ],
};

/// `--max-hold`.
pub static MAX_HOLD: Setting<Duration> = Setting::new(
    "max-hold",
    &POSITIVE_DURATION,
    || Duration::from_mins(5),
    "How long any request may wait for a pod, regardless of the timeouts",
);

/// `--max-holds`.
pub static MAX_HOLDS: Setting<usize> = Setting::new(
    "max-holds",
    &COUNT,
    || 10_000,
    "How many requests may wait for one service, at most a quarter of --max-holds-total; further requests \
     get 503",
)
.aliases(&keda::MAX_HOLDS);

/// `--max-holds-total`.
pub static MAX_HOLDS_TOTAL: Setting<usize> = Setting::new(
    "max-holds-total",
    &COUNT,
    || 40_000,
    "How many requests may wait for all services together",
);

/// `--hold-memory`.
pub static HOLD_MEMORY: Setting<Option<usize>> = Setting::optional(
    "hold-memory",
    &Size { least: 1 << 20, most: 1 << 40 },
    "a quarter of the memory limit, at most 256MiB",
    "How much memory all waiting requests together may take up",
)
.on_this_machine(|| ConnectionCapacity::now().holds);

/// `--wakes-per-second`.
pub static WAKES_PER_SECOND: Setting<u32> = Setting::new(
    "wakes-per-second",
    &Whole { least: 1, most: 1_000_000 },
    || 50,
    "How many services may be woken per second on average",
);

/// `--wake-burst`.
pub static WAKE_BURST: Setting<u32> = Setting::new(
    "wake-burst",
    &Whole { least: 1, most: 1_000_000 },
    || 200,
    "How many services may be woken at once",
);

/// `--namespace-wakes-per-second`.
pub static NAMESPACE_WAKES_PER_SECOND: Setting<u32> = Setting::new(
    "namespace-wakes-per-second",
    &Whole { least: 1, most: 1_000_000 },
    || 10,
    "How many services of one namespace may be woken per second on average",
);

/// `--namespace-wake-burst`.
pub static NAMESPACE_WAKE_BURST: Setting<u32> = Setting::new(
    "namespace-wake-burst",
    &Whole { least: 1, most: 1_000_000 },
    || 50,
    "How many services of one namespace may be woken at once",
);

/// `--max-streams`.
pub static MAX_STREAMS: Setting<u32> = Setting::new(
    "max-streams",
    &Whole { least: 1, most: 10_000 },
    || 256,
    "How many requests may be under way on one HTTP/2 connection",
);

/// `--max-header-size`.
pub static MAX_HEADER_SIZE: Setting<usize> = Setting::new(
    "max-header-size",
    &Size { least: 8 << 10, most: 1 << 20 },
    || 64 << 10,
    "How large the request line and headers of a request may be together",
);

/// `--max-headers`.
pub static MAX_HEADERS: Setting<usize> = Setting::new(
    "max-headers",
    &Whole { least: 1, most: 10_000 },
    || 100,
    "How many headers a request may have",
);

/// `--max-request-line`.
pub static MAX_REQUEST_LINE: Setting<usize> = Setting::new(
    "max-request-line",
    &Size { least: 256, most: 1 << 20 },
    || 16 << 10,
    "How long the request line may be; at most --max-header-size",
);

/// `--max-idle-connections-per-pod`.
pub static MAX_IDLE_CONNECTIONS_PER_POD: Setting<usize> = Setting::new(
    "max-idle-connections-per-pod",
    &COUNT,
    || 512,
    "How many connections to one pod are kept for later requests, on each worker",
)
.aliases(&keda::MAX_IDLE_PER_HOST);

/// `--max-idle-connections`.
pub static MAX_IDLE_CONNECTIONS: Setting<usize> = Setting::new(
    "max-idle-connections",
    &COUNT,
    || 8192,
    "How many connections to all pods are kept for later requests, on all workers together",
)
.aliases(&keda::MAX_IDLE);

/// `--max-pod-connections-per-client`.
pub static MAX_POD_CONNECTIONS_PER_CLIENT: Setting<usize> = Setting::new(
    "max-pod-connections-per-client",
    &COUNT,
    || 100,
    "How many HTTP/1 connections to pods one client connection may use at a time, at most a quarter of the free ones; \
     further requests wait until its earlier ones finish",
);

/// `--buffer-memory`.
pub static BUFFER_MEMORY: Setting<Option<usize>> = Setting::optional(
    "buffer-memory",
    &Size { least: 1 << 20, most: 1 << 40 },
    "a quarter of the memory limit, at most 64MiB",
    "How much memory may buffer bodies that their receivers do not read yet; beyond it, the client \
     connections stalled longest are closed",
)
.on_this_machine(|| ConnectionCapacity::now().buffers);

/// `--buffer-memory-per-connection`.
pub static BUFFER_MEMORY_PER_CONNECTION: Setting<usize> = Setting::new(
    "buffer-memory-per-connection",
    &Size { least: 64 << 10, most: 1 << 30 },
    || 1 << 20,
    "How much memory may buffer the bodies of one client connection; beyond it, reading from pods pauses \
     until the client reads",
);

/// The settings of the registry: the limits of held requests and of wakes.
pub fn registry_settings(values: &Values) -> RegistrySettings {
    let wakes = WakeRates {
        namespace: Rate {
            per_second: values.get(&NAMESPACE_WAKES_PER_SECOND),
            burst: values.get(&NAMESPACE_WAKE_BURST),
        },
        total: Rate { per_second: values.get(&WAKES_PER_SECOND), burst: values.get(&WAKE_BURST) },
    };
    // The Kubernetes engine leaves out manual endpoints that are not allowed, service by service.
    let policy = MergePolicy { manual_endpoints: true, ..MergePolicy::default() };
    RegistrySettings { holds: holds(values), wakes, policy, ..RegistrySettings::default() }
}

/// The limits of held requests.
pub fn holds(values: &Values) -> HoldLimits {
    HoldLimits {
        per_service: values.get(&MAX_HOLDS),
        total: values.get(&MAX_HOLDS_TOTAL),
        bytes: values.get(&HOLD_MEMORY).unwrap_or_else(|| ConnectionCapacity::now().holds),
        max_wait: values.get(&MAX_HOLD),
    }
}

/// The capacity of the gateway, with room for registrations if pods may register.
pub(in crate::gateway) fn capacity(values: &Values) -> ConnectionCapacity {
    let registrations = values.get(&super::REGISTER_LISTEN);
    ConnectionCapacity::with(registrations.map_or(Registrations::None, |_| Registrations::Accepted))
}

/// The limits of client and pod connections.
pub(super) fn connection_limits(values: &Values) -> ConnectionLimits {
    let capacity = capacity(values);
    // Cap the setting at the limit of open files: a connection beyond it cannot be served.
    let connections = values.get(&MAX_CONNECTIONS).unwrap_or(capacity.connections).min(capacity.by_files);
    let pod_connections = capacity.pod_connections_for(connections);
    ConnectionLimits {
        connections,
        idle: values.get(&IDLE_TIMEOUT),
        head: values.get(&HEADER_TIMEOUT),
        heads: HeadLimits {
            head: values.get(&MAX_HEADER_SIZE),
            headers: values.get(&MAX_HEADERS),
            line: values.get(&MAX_REQUEST_LINE),
            ..HeadLimits::default()
        },
        streams: values.get(&MAX_STREAMS),
        stream_idle: values.get(&STREAM_IDLE_TIMEOUT),
        kept_per_pod: values.get(&MAX_IDLE_CONNECTIONS_PER_POD),
        // Idle connections must leave room for those in use.
        kept: values.get(&MAX_IDLE_CONNECTIONS).min(pod_connections / 2),
        pod_connections,
        pod_connections_per_client: values.get(&MAX_POD_CONNECTIONS_PER_CLIENT),
        buffers: values.get(&BUFFER_MEMORY).unwrap_or(capacity.buffers),
        buffers_per_connection: values.get(&BUFFER_MEMORY_PER_CONNECTION),
        ..ConnectionLimits::default()
    }
}

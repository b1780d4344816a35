//! The settings of routing, probing and request timeouts.

use std::time::Duration;

use rouse_config::settings::{Choice, Group, Label, Setting, Switch, Values};
use rouse_core::routing_mode::RoutingMode;
use rouse_proxy::upstream::Timeouts;

use crate::gateway::keda;
use crate::settings::{ANY_DURATION, POSITIVE_DURATION, TRUSTED_PROXIES};

pub(super) static ROUTING: Group = Group {
    title: "Routing",
    settings: &[
        &DIRECT_POD_ROUTING,
        &ALLOW_MANUAL_ENDPOINTS,
        &MANUAL_ENDPOINTS_OF,
        &PROBE,
        &TRUSTED_PROXIES,
        &COLD_START_HEADER,
        &KEDA_COMPAT,
    ],
};

pub(super) static TIMEOUTS: Group = Group {
    title: "Timeouts",
    settings: &[&CONNECT_TIMEOUT, &READINESS_TIMEOUT, &RESPONSE_HEADER_TIMEOUT, &REQUEST_TIMEOUT],
};

/// `--direct-pod-routing`.
pub static DIRECT_POD_ROUTING: Setting<RoutingMode> = Setting::new(
    "direct-pod-routing",
    &Choice(RoutingMode::WORDS),
    || RoutingMode::Always,
    "When requests go straight to a pod instead of the Service's ClusterIP: disabled, cold-start-only or \
     always",
)
.aliases(&keda::DIRECT_POD_ROUTING);

/// `--allow-manual-endpoints`.
pub static ALLOW_MANUAL_ENDPOINTS: Setting<bool> = Setting::new(
    "allow-manual-endpoints",
    &Switch,
    || false,
    "Whether to send requests to endpoints that are not pods of their namespace, or whose Service has no selector: anyone \
     who may write EndpointSlices can then direct requests to any address",
);

/// `--manual-endpoints-of`.
pub static MANUAL_ENDPOINTS_OF: Setting<Vec<String>> = Setting::list(
    "manual-endpoints-of",
    &Label,
    "no namespace",
    "The namespaces whose Services may allow the endpoints of --allow-manual-endpoints with the annotation \
     rouse.dev/manual-endpoints; may be repeated",
);

/// `--probe`.
pub static PROBE: Setting<bool> = Setting::new(
    "probe",
    &Switch,
    || false,
    "Whether to probe starting pods with their readinessProbes, instead of waiting for the kubelet",
);

/// `--cold-start-header`.
pub static COLD_START_HEADER: Setting<bool> = Setting::new(
    "cold-start-header",
    &Switch,
    || true,
    "Whether responses have the header X-Rouse-Cold-Start: true if their request waited for a pod, else false",
)
.aliases(&keda::COLD_START_HEADER);

/// `--keda-compat`.
pub static KEDA_COMPAT: Setting<bool> = Setting::new(
    "keda-compat",
    &Switch,
    || false,
    "Whether to add KEDA's names of headers and metrics to ours, to use SERVICE.NAMESPACE instead of \
     SERVICE.NAMESPACE.svc as the TLS server name of pods, and to trust the certificates of --tls-cert as \
     roots for pods; any KEDA_HTTP_* variable that KEDA knows turns it on",
)
.implied_by(keda::any_variable);

/// `--connect-timeout`.
pub static CONNECT_TIMEOUT: Setting<Duration> = Setting::new(
    "connect-timeout",
    &POSITIVE_DURATION,
    || Duration::from_millis(500),
    "How long one attempt to connect to a pod may take",
)
.aliases(&keda::CONNECT_TIMEOUT);

/// `--readiness-timeout`.
pub static READINESS_TIMEOUT: Setting<Duration> = Setting::new(
    "readiness-timeout",
    &ANY_DURATION,
    || Duration::ZERO,
    "How long a request may wait for a ready pod; 0 means as long as the request may take (30s with a \
     fallback); never longer than --max-hold",
)
.aliases(&keda::READINESS_TIMEOUT);

/// `--response-header-timeout`.
pub static RESPONSE_HEADER_TIMEOUT: Setting<Duration> = Setting::new(
    "response-header-timeout",
    &ANY_DURATION,
    || Duration::from_mins(5),
    "How long a pod may take to begin its response; 0 means no limit",
)
.aliases(&keda::RESPONSE_HEADER_TIMEOUT);

/// `--request-timeout`.
pub static REQUEST_TIMEOUT: Setting<Duration> = Setting::new(
    "request-timeout",
    &ANY_DURATION,
    || Duration::ZERO,
    "How long a whole request may take; 0 means no limit",
)
.aliases(&keda::REQUEST_TIMEOUT);

/// The timeouts of requests whose route sets none.
pub fn timeouts(values: &Values) -> Timeouts {
    // Zero means no limit.
    let limit = |timeout: Duration| (!timeout.is_zero()).then_some(timeout);
    Timeouts {
        readiness: limit(values.get(&READINESS_TIMEOUT)),
        request: limit(values.get(&REQUEST_TIMEOUT)),
        response_header: limit(values.get(&RESPONSE_HEADER_TIMEOUT)),
        connect: values.get(&CONNECT_TIMEOUT),
    }
}

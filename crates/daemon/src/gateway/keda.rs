//! Maps the variables of KEDA HTTP add-on's interceptor to our settings, and lists those without effect, so that its Deployment
//! runs with our image and no other change.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;

use rouse_config::duration::go_millis;
use rouse_config::settings::{Alias, Environment, Translated};

use super::settings::TABLE;

const fn alias(name: &'static str, translate: Translate) -> Alias {
    Alias { name, successor: None, translate }
}

const fn deprecated(name: &'static str, successor: &'static str, translate: Translate) -> Alias {
    Alias { name, successor: Some(successor), translate }
}

type Translate = fn(&str, &Environment) -> Translated;

/// The prefix of KEDA's variables. Some deprecated names begin with `KEDA_` only.
pub(super) const PREFIX: &str = "KEDA_HTTP_";
/// The pod's own address, as the downward API gives it.
pub(super) const POD_IP: &str = "POD_IP";

const TLS_ENABLED: &str = "KEDA_HTTP_PROXY_TLS_ENABLED";
const TLS_PORT: &str = "KEDA_HTTP_PROXY_TLS_PORT";
const CERT_PATH: &str = "KEDA_HTTP_PROXY_TLS_CERT_PATH";
const KEY_PATH: &str = "KEDA_HTTP_PROXY_TLS_KEY_PATH";

const PORT: &str = "a port from 1 to 65535";
const DURATION: &str = "a duration as Go writes it, like 500ms, 30s, 1m30s or 0";
const BOOL: &str = "true or false";
const NUMBER: &str = "a whole number";

pub(super) static PROXY_PORT: [Alias; 1] = [alias("KEDA_HTTP_PROXY_PORT", |value, _| everywhere(value))];
pub(super) static ADMIN_PORT: [Alias; 1] = [alias("KEDA_HTTP_ADMIN_PORT", admin)];
pub(super) static WATCH_NAMESPACE: [Alias; 1] = [alias("KEDA_HTTP_WATCH_NAMESPACE", |value, _| same(value))];
pub(super) static TLS_LISTEN: [Alias; 2] = [
    alias(TLS_ENABLED, |value, all| {
        // The alias of the port reports a bad port.
        let port = all.get(TLS_PORT).filter(|port| port_of(port).is_some()).unwrap_or("8443");
        switch(value, |on| if on { everywhere(port) } else { Translated::NotSet })
    }),
    alias(TLS_PORT, |value, all| match port_of(value) {
        None => Translated::Invalid(PORT.to_owned()),
        Some(_) if tls_enabled(all) => Translated::NotSet,
        Some(_) => without_tls(),
    }),
];
pub(super) static TLS_CERT: [Alias; 2] = [
    alias(CERT_PATH, of_tls),
    alias(TLS_ENABLED, |value, _| {
        switch(value, |on| if on { same("/certs/tls.crt") } else { Translated::NotSet })
    }),
];
pub(super) static TLS_KEY: [Alias; 2] = [
    alias(KEY_PATH, of_tls),
    alias(TLS_ENABLED, |value, _| {
        switch(value, |on| if on { same("/certs/tls.key") } else { Translated::NotSet })
    }),
];
pub(super) static TLS_CERT_DIR: [Alias; 1] = [alias("KEDA_HTTP_PROXY_TLS_CERT_STORE_PATHS", of_tls)];
pub(super) static TLS_MIN_VERSION: [Alias; 2] = [
    deprecated("KEDA_HTTP_PROXY_TLS_MIN_VERSION", "KEDA_HTTP_TLS_MIN_VERSION", |value, _| same(value)),
    alias("KEDA_HTTP_TLS_MIN_VERSION", |value, _| same(value)),
];
pub(super) static TLS_MAX_VERSION: [Alias; 2] = [
    deprecated("KEDA_HTTP_PROXY_TLS_MAX_VERSION", "KEDA_HTTP_TLS_MAX_VERSION", |value, _| same(value)),
    alias("KEDA_HTTP_TLS_MAX_VERSION", |value, _| same(value)),
];
/// KEDA's TLS listener speaks TLS to pods, its other listener does not.
pub(super) static UPSTREAM_TLS: [Alias; 1] = [alias(TLS_ENABLED, |value, _| {
    switch(value, |on| if on { same("as-received") } else { Translated::NotSet })
})];
pub(super) static SKIP_VERIFY: [Alias; 2] = [
    deprecated("KEDA_HTTP_PROXY_TLS_SKIP_VERIFY", "KEDA_HTTP_TLS_SKIP_VERIFY", |value, _| boolean(value)),
    alias("KEDA_HTTP_TLS_SKIP_VERIFY", |value, _| boolean(value)),
];
pub(super) static COLD_START_HEADER: [Alias; 1] =
    [alias("KEDA_HTTP_ENABLE_COLD_START_HEADER", |value, _| boolean(value))];
pub(super) static LOG_REQUESTS: [Alias; 1] = [alias("KEDA_HTTP_LOG_REQUESTS", |value, _| {
    switch(value, |on| same(if on { "combined" } else { "off" }))
})];
const DRAIN: &str = "KEDA_HTTP_DRAIN_TIMEOUT";
pub(super) static DRAIN_TIMEOUT: [Alias; 1] = [alias(DRAIN, |value, _| match span(value) {
    // For KEDA, zero means no limit: the kubelet kills the process at the end of the grace period.
    Translated::Value(zero) if zero == "0ms" => same("720h"),
    other => other,
})];
pub(super) static SHUTDOWN_DELAY: [Alias; 1] = [alias("KEDA_HTTP_SHUTDOWN_DELAY", |value, _| span(value))];
pub(super) static DIRECT_POD_ROUTING: [Alias; 1] =
    [alias("KEDA_HTTP_DIRECT_POD_ROUTING", |value, _| match value {
        "disabled" | "cold-start-only" | "always" => same(value),
        _ => match go_bool(value) {
            Some(on) => same(if on { "always" } else { "disabled" }),
            None => Translated::Invalid("disabled, cold-start-only, always, true or false".to_owned()),
        },
    })];
pub(super) static REQUEST_TIMEOUT: [Alias; 1] = [alias("KEDA_HTTP_REQUEST_TIMEOUT", |value, _| span(value))];
pub(super) static RESPONSE_HEADER_TIMEOUT: [Alias; 2] = [
    deprecated("KEDA_RESPONSE_HEADER_TIMEOUT", "KEDA_HTTP_RESPONSE_HEADER_TIMEOUT", |value, _| {
        unless_zero(value)
    }),
    alias("KEDA_HTTP_RESPONSE_HEADER_TIMEOUT", |value, _| span(value)),
];
pub(super) static READINESS_TIMEOUT: [Alias; 2] = [
    deprecated("KEDA_CONDITION_WAIT_TIMEOUT", "KEDA_HTTP_READINESS_TIMEOUT", |value, _| unless_zero(value)),
    alias("KEDA_HTTP_READINESS_TIMEOUT", |value, _| span(value)),
];
pub(super) static CONNECT_TIMEOUT: [Alias; 1] =
    [alias("KEDA_HTTP_CONNECT_TIMEOUT", |value, _| match unless_zero(value) {
        Translated::NotSet => {
            Translated::Unsupported("attempts to connect always have a timeout here".to_owned())
        }
        other => other,
    })];
pub(super) static MAX_IDLE: [Alias; 1] =
    [alias("KEDA_HTTP_MAX_IDLE_CONNS", |value, _| match number(value) {
        // For KEDA, zero means no limit; here the largest allowed value comes closest.
        Some(0) => same("1000000"),
        Some(number) => same(&number.to_string()),
        None => Translated::Invalid(NUMBER.to_owned()),
    })];
pub(super) static MAX_IDLE_PER_HOST: [Alias; 1] =
    [alias("KEDA_HTTP_MAX_IDLE_CONNS_PER_HOST", |value, _| match number(value) {
        // Go's own default.
        Some(0) => same("2"),
        Some(number) => same(&number.to_string()),
        None => Translated::Invalid(NUMBER.to_owned()),
    })];
pub(super) static MAX_HOLDS: [Alias; 1] =
    [alias("KEDA_HTTP_COLD_START_MAX_PENDING_REQUESTS", |value, _| match number(value) {
        Some(0) => {
            Translated::Unsupported("the number of waiting requests always has a limit here".to_owned())
        }
        Some(number) => same(&number.to_string()),
        None => Translated::Invalid(NUMBER.to_owned()),
    })];

/// Variables of KEDA that have no effect here, and why.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("CURRENT_NAMESPACE", "not needed here"),
    ("DEPLOYMENT_CACHE_POLLING_INTERVAL_MS", "changes are watched here, not polled"),
    ("ENDPOINTS_CACHE_POLLING_INTERVAL_MS", "changes are watched here, not polled"),
    ("SCALER_CONFIG_MAP_INFORMER_RSYNC_PERIOD", "changes are watched here, not polled"),
    ("ROUTING_TABLE_REFRESH_INTERVAL", "changes are watched here, not polled"),
    ("ROUTING_TABLE_MAX_STALENESS", "/readyz stays ready without the API server here"),
    ("FORCE_HTTP2", "the Service's appProtocol sets HTTP/2 to pods"),
    ("KEEP_ALIVE", "there is no such setting here"),
    ("IDLE_CONN_TIMEOUT", "idle connections to pods are closed after 3 to 4 seconds here"),
    ("TLS_HANDSHAKE_TIMEOUT", "connect-timeout includes the handshake"),
    ("EXPECT_CONTINUE_TIMEOUT", "there is no such setting here"),
    ("TLS_CIPHER_SUITES", "the cipher suites are fixed here"),
    ("PROXY_TLS_CIPHER_SUITES", "the cipher suites are fixed here"),
    ("TLS_CURVE_PREFERENCES", "the curves are fixed here"),
    ("PROXY_TLS_CURVE_PREFERENCES", "the curves are fixed here"),
    ("OTEL_PROM_EXPORTER_ENABLED", "metrics for Prometheus are always at /metrics of the admin address"),
    ("OTEL_PROM_EXPORTER_PORT", "metrics for Prometheus are at /metrics of the admin address"),
    (PROFILING, "there is no profiling here"),
];

/// The prefix of OpenTelemetry's variables; older versions of the interceptor put KEDA's prefix in front of it.
pub(super) const OTEL: &str = "OTEL_";
/// The address of the interceptor's profiling server.
pub(super) const PROFILING: &str = "PROFILING_BIND_ADDRESS";

/// Why a variable of KEDA that is not an alias has no effect; `None` if `name` is not a variable of KEDA.
pub(super) fn without_effect(name: &str) -> Option<&'static str> {
    let rest = name.strip_prefix(PREFIX).unwrap_or(name);
    match WITHOUT_EFFECT.iter().find(|(known, _)| *known == rest) {
        Some((_, why)) => Some(why),
        None if rest.starts_with(OTEL) => Some(
            "nothing is exported to OpenTelemetry here; metrics for Prometheus are at /metrics of the admin address",
        ),
        None => None,
    }
}

/// The first variable that only KEDA has: a Deployment that sets one was written for its interceptor.
pub(super) fn any_variable(env: &Environment) -> Option<&str> {
    env.names(PREFIX).find(|name| TABLE.is_alias(name) || without_effect(name).is_some())
}

/// True if `name` is KEDA's drain timeout and `value` means no limit.
pub fn drain_has_no_end(name: &str, value: &str) -> bool {
    name == DRAIN && go_millis(value) == Some(0)
}

fn same(value: &str) -> Translated {
    Translated::Value(value.to_owned())
}

fn port_of(value: &str) -> Option<u16> {
    value.parse().ok().map(NonZeroU16::get)
}

fn number(value: &str) -> Option<u64> {
    value.parse().ok()
}

/// A port on all addresses of the pod.
fn everywhere(value: &str) -> Translated {
    match port_of(value) {
        Some(port) => same(&format!("0.0.0.0:{port}")),
        None => Translated::Invalid(PORT.to_owned()),
    }
}

/// KEDA's admin server listens on all addresses; ours only on the pod's own address, or else on loopback.
fn admin(value: &str, all: &Environment) -> Translated {
    let Some(port) = port_of(value) else { return Translated::Invalid(PORT.to_owned()) };
    match all.get(POD_IP).map(str::parse::<IpAddr>) {
        Some(Ok(own)) => same(&SocketAddr::new(own, port).to_string()),
        _ => Translated::ValueWithWarning(
            SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string(),
            format!(
                "only on loopback, where neither KEDA's scaler nor the kubelet's probes reach it: set {POD_IP} to \
                 the pod's own address (fieldRef: status.podIP), or --admin"
            ),
        ),
    }
}

fn tls_enabled(all: &Environment) -> bool {
    all.get(TLS_ENABLED).and_then(go_bool).unwrap_or(false)
}

/// The value as it is, if KEDA's variables turn TLS on.
fn of_tls(value: &str, all: &Environment) -> Translated {
    if tls_enabled(all) { same(value) } else { without_tls() }
}

fn without_tls() -> Translated {
    Translated::Unsupported(format!("it has no effect without {TLS_ENABLED}=true"))
}

fn switch(value: &str, meaning: impl FnOnce(bool) -> Translated) -> Translated {
    go_bool(value).map_or_else(|| Translated::Invalid(BOOL.to_owned()), meaning)
}

fn boolean(value: &str) -> Translated {
    switch(value, |on| same(if on { "true" } else { "false" }))
}

fn span(value: &str) -> Translated {
    go_millis(value)
        .map_or_else(|| Translated::Invalid(DURATION.to_owned()), |millis| same(&format!("{millis}ms")))
}

/// A duration for which KEDA ignores zero.
fn unless_zero(value: &str) -> Translated {
    match span(value) {
        Translated::Value(zero) if zero == "0ms" => Translated::NotSet,
        other => other,
    }
}

/// `true` or `false` as Go programs read them.
fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truth_value_is_read_as_go_reads_it() {
        for (text, expected) in
            [("true", Some(true)), ("1", Some(true)), ("F", Some(false)), ("False", Some(false))]
        {
            assert_eq!(go_bool(text), expected, "{text}");
        }
        for bad in ["", "yes", "on", "tRUE", "2"] {
            assert_eq!(go_bool(bad), None, "{bad}");
        }
    }
}

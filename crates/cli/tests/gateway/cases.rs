//! The test cases of every setting: valid and invalid values.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rouse_config::settings::Values;
use rouse_core::routing_mode::RoutingMode;
use rouse_daemon::gateway::settings::*;
use rouse_daemon::logging::{LOG_FORMAT, LOG_LEVEL, LogFilter, LogFormat};
use rouse_daemon::settings::{
    CONTEXT, HEADER_TIMEOUT, IDLE_TIMEOUT, KUBECONFIG, MAX_CONNECTIONS, STREAM_IDLE_TIMEOUT, TRUSTED_PROXIES,
    WORKERS,
};
use rouse_daemon::xds::settings::{
    ENVOY_LISTEN, GATEWAYS, POD_NAMESPACE, XDS_CLIENT_CA, XDS_CLIENT_SAN, XDS_INSECURE, XDS_TLS_CERT,
    XDS_TLS_KEY,
};
use rouse_kube::routes::claims::HostOverlap;
use rouse_net::auth::PushMode;
use rouse_net::tls::TlsVersion;
use rouse_proxy::telemetry::access_log::Format;

/// The test case of one setting.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// A good value that is not the default, as it is shown, too.
    pub(crate) good: &'static str,
    /// Another good one.
    pub(crate) other: &'static str,
    /// Whether the typed settings have the good value. They must not have it by default.
    pub(crate) holds: fn(&Values) -> bool,
    /// Bad values.
    pub(crate) bad: &'static [&'static str],
    /// A part of the error's text on what is allowed.
    pub(crate) allowed: &'static str,
    /// Variables that the good value requires.
    pub(crate) with: &'static [(&'static str, &'static str)],
}

const fn case(
    name: &'static str,
    good: &'static str,
    other: &'static str,
    holds: fn(&Values) -> bool,
    bad: &'static [&'static str],
    allowed: &'static str,
) -> Case {
    Case { name, good, other, holds, bad, allowed, with: &[] }
}

impl Case {
    const fn with(mut self, with: &'static [(&'static str, &'static str)]) -> Self {
        self.with = with;
        self
    }
}

fn is(addresses: &[SocketAddr], expected: &[&str]) -> bool {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>() == expected
}

const ADDRESS: &[&str] = &["8080", "localhost:80", "0.0.0.0", "1.2.3.4:99999", "1.2.3.4:80,"];
const SPAN: &[&str] = &["0", "0s", "5", "-1s", "1m30s", "soon", "721h"];
const SPAN_OR_ZERO: &[&str] = &["5", "-1s", "1m30s", "soon", "721h"];
const COUNT: &[&str] = &["0", "-1", "+1", "1.5", "many", "99999999999999999999"];
const SIZE: &[&str] = &["0", "65536", "1KB", "KiB", "-1KiB", "99999999999GiB", "1B"];
const SWITCH: &[&str] = &["yes", "1", "True", "off"];
const FILES: &[&str] = &["a,,b", "a\0b"];
const DURATIONS: &str = "like 500ms, 30s, 5m or 1h";
const WHOLE: &str = "a whole number from 1 to";
const SIZES: &str = "like 64KiB or 256MiB";
const BOOL: &str = "true or false";
const PATH: &str = "a path that is not empty";

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(crate) const CASES: &[Case] = &[
    case(
        "listen",
        "127.0.0.1:81,[::1]:82",
        "127.0.0.1:0",
        |it| is(&it.get(&LISTEN), &["127.0.0.1:81", "[::1]:82"]),
        ADDRESS,
        "an IP address and a port",
    ),
    case(
        "admin",
        "10.1.2.3:9091",
        "[::1]:9092",
        |it| is(&[it.get(&ADMIN)], &["10.1.2.3:9091"]),
        &["9090", "0.0.0.0:9090", "[::]:9090", "[::ffff:0.0.0.0]:9090", "127.0.0.1"],
        "the admin API has no authentication",
    ),
    case(
        "tls-listen",
        "127.0.0.1:8443",
        "[::1]:8443",
        |it| is(&it.get(&TLS_LISTEN), &["127.0.0.1:8443"]),
        ADDRESS,
        "an IP address and a port",
    )
    .with(&[("ROUSE_TLS_CERT_DIR", "/certs")]),
    case(
        "tls-cert",
        "/shop.crt",
        "/other.crt",
        |it| it.get(&TLS_CERT) == [Path::new("/shop.crt")],
        FILES,
        PATH,
    )
    .with(&[("ROUSE_TLS_KEY", "/shop.key")]),
    case(
        "tls-key",
        "/shop.key",
        "/other.key",
        |it| it.get(&TLS_KEY) == [Path::new("/shop.key")],
        FILES,
        PATH,
    )
    .with(&[("ROUSE_TLS_CERT", "/shop.crt")]),
    case(
        "tls-cert-dir",
        "/a,/b",
        "/c",
        |it| it.get(&TLS_CERT_DIR) == [Path::new("/a"), Path::new("/b")],
        FILES,
        PATH,
    ),
    case(
        "tls-min-version",
        "1.3",
        "1.2",
        |it| it.get(&TLS_MIN_VERSION) == TlsVersion::Tls13,
        &["1.1", "13", "TLS1.2"],
        "1.2 or 1.3",
    ),
    case(
        "tls-max-version",
        "1.2",
        "1.3",
        |it| it.get(&TLS_MAX_VERSION) == TlsVersion::Tls12,
        &["1.4", "13", "TLS1.2"],
        "1.2 or 1.3",
    ),
    case(
        "tls-client-ca",
        "/ca.pem",
        "/other.pem",
        |it| it.get(&TLS_CLIENT_CA).as_deref() == Some(Path::new("/ca.pem")),
        &["a\0b"],
        PATH,
    )
    .with(&[("ROUSE_TLS_CLIENT_AUTH", "required")]),
    case(
        "tls-client-auth",
        "optional",
        "required",
        |it| it.get(&TLS_CLIENT_AUTH) == ClientAuthMode::Optional,
        &["true", "must"],
        "none, optional or required",
    )
    .with(&[("ROUSE_TLS_CLIENT_CA", "/ca.pem")]),
    case(
        "upstream-tls",
        "on",
        "as-received",
        |it| it.get(&UPSTREAM_TLS) == UpstreamTls::On,
        &["true", "false"],
        "off, on or as-received",
    ),
    case(
        "upstream-ca",
        "/ca.pem",
        "/other.pem",
        |it| it.get(&UPSTREAM_CA).as_deref() == Some(Path::new("/ca.pem")),
        &["a\0b"],
        PATH,
    ),
    case("upstream-skip-verify", "true", "false", |it| it.get(&UPSTREAM_SKIP_VERIFY), SWITCH, BOOL),
    case(
        "register-listen",
        "127.0.0.1:8443",
        "[::1]:8443",
        |it| it.get(&REGISTER_LISTEN).is_some_and(|address| address.port() == 8443),
        ADDRESS,
        "an IP address and a port",
    )
    .with(&[("ROUSE_REGISTER_AUTH", "hmac"), ("ROUSE_REGISTER_KEYS", "/keys")]),
    case(
        "push",
        "observe",
        "off",
        |it| it.get(&PUSH) == PushMode::Observe,
        &["true", "On", "yes"],
        "off, observe or on",
    ),
    case(
        "register-auth",
        "token,mtls",
        "hmac",
        |it| it.get(&REGISTER_AUTH) == [CredentialKind::Token, CredentialKind::Mtls],
        &["none", "Token", "jwt"],
        "token, hmac or mtls",
    ),
    case(
        "register-tls-cert",
        "/register.crt",
        "/other.crt",
        |it| it.get(&REGISTER_TLS_CERT).as_deref() == Some(Path::new("/register.crt")),
        &["a\0b"],
        PATH,
    ),
    case(
        "register-tls-key",
        "/register.key",
        "/other.key",
        |it| it.get(&REGISTER_TLS_KEY).as_deref() == Some(Path::new("/register.key")),
        &["a\0b"],
        PATH,
    ),
    case(
        "register-token-check",
        "tokenreview",
        "jwks",
        |it| it.get(&REGISTER_TOKEN_CHECK) == TokenCheckMode::TokenReview,
        &["true", "JWKS"],
        "jwks or tokenreview",
    ),
    case(
        "register-issuer",
        "https://issuer.example.com",
        "https://other.example.com",
        |it| it.get(&REGISTER_ISSUER).as_deref() == Some("https://issuer.example.com"),
        &["a\0b"],
        "text that is not empty",
    ),
    case(
        "register-keys",
        "/keys",
        "/other",
        |it| it.get(&REGISTER_KEYS).as_deref() == Some(Path::new("/keys")),
        &["a\0b"],
        PATH,
    ),
    case(
        "register-client-ca",
        "/ca.pem",
        "/other.pem",
        |it| it.get(&REGISTER_CLIENT_CA).as_deref() == Some(Path::new("/ca.pem")),
        &["a\0b"],
        PATH,
    ),
    case(
        "register-trust-domain",
        "example.org",
        "corp.local",
        |it| it.get(&REGISTER_TRUST_DOMAIN) == "example.org",
        &["a\0b"],
        "text that is not empty",
    ),
    case("register-host-network", "true", "false", |it| it.get(&REGISTER_HOST_NETWORK), SWITCH, BOOL),
    case(
        "register-service",
        "rouse-system/rouse-register",
        "other/rouse-register",
        |it| {
            it.get(&REGISTER_SERVICE).is_some_and(|service| {
                service.name() == "rouse-register" && service.namespace() == "rouse-system"
            })
        },
        &["rouse-register", "a/b/c", "/x", "x/"],
        "the namespace and the name of a Service",
    ),
    case(
        "report-to",
        "https://rouse-controller.rouse-system.svc.cluster.local:9444",
        "https://127.0.0.1:9444",
        |it| it.get(&REPORT_TO).is_some_and(|url| url.to_string().starts_with("https://rouse-controller.")),
        &["http://127.0.0.1:9444", "rouse-controller:9444", "https://rouse-controller"],
        "https://HOST:PORT",
    ),
    case(
        "report-ca",
        "/ca.crt",
        "/other",
        |it| it.get(&REPORT_CA).as_deref() == Some(Path::new("/ca.crt")),
        &["a\0b"],
        PATH,
    ),
    case(
        "report-token",
        "/token",
        "/other",
        |it| it.get(&REPORT_TOKEN) == Path::new("/token"),
        &["a\0b"],
        PATH,
    ),
    case(
        "xds-listen",
        "127.0.0.1:18000",
        "[::1]:18001",
        |it| it.get(&XDS_LISTEN) == Some(SocketAddr::from(([127, 0, 0, 1], 18000))),
        &["18000", "localhost:18000"],
        "an IP address and a port",
    ),
    case(
        "xds-tls-cert",
        "/xds.crt",
        "/other",
        |it| it.get(&XDS_TLS_CERT).as_deref() == Some(Path::new("/xds.crt")),
        &["a\0b"],
        PATH,
    ),
    case(
        "xds-tls-key",
        "/xds.key",
        "/other",
        |it| it.get(&XDS_TLS_KEY).as_deref() == Some(Path::new("/xds.key")),
        &["a\0b"],
        PATH,
    ),
    case(
        "xds-client-ca",
        "/envoys.crt",
        "/other",
        |it| it.get(&XDS_CLIENT_CA).as_deref() == Some(Path::new("/envoys.crt")),
        &["a\0b"],
        PATH,
    ),
    case(
        "xds-client-san",
        "envoy.edge.svc",
        "spiffe://cluster.local/ns/edge/sa/envoy",
        |it| it.get(&XDS_CLIENT_SAN) == ["envoy.edge.svc"],
        &["a\0b"],
        "text that is not empty",
    ),
    case("xds-insecure", "true", "false", |it| it.get(&XDS_INSECURE), SWITCH, BOOL),
    case(
        "envoy-listen",
        "0.0.0.0:8081",
        "[::]:8082",
        |it| it.get(&ENVOY_LISTEN) == [SocketAddr::from(([0, 0, 0, 0], 8081))],
        &["8081", "localhost:8081"],
        "an IP address and a port",
    ),
    case(
        "gateways",
        "edge-gateway",
        "other",
        |it| it.get(&GATEWAYS) == "edge-gateway",
        &["a/b", "A"],
        "a namespace's name",
    ),
    case(
        "pod-namespace",
        "edge",
        "other",
        |it| it.get(&POD_NAMESPACE) == "edge",
        &["a/b", "A"],
        "a namespace's name",
    ),
    case(
        "direct-pod-routing",
        "cold-start-only",
        "disabled",
        |it| it.get(&DIRECT_POD_ROUTING) == RoutingMode::ColdStartOnly,
        &["true", "false", "never"],
        "disabled, cold-start-only or always",
    ),
    case("allow-manual-endpoints", "true", "false", |it| it.get(&ALLOW_MANUAL_ENDPOINTS), SWITCH, BOOL),
    case(
        "manual-endpoints-of",
        "shop,web",
        "other",
        |it| it.get(&MANUAL_ENDPOINTS_OF).iter().eq(["shop", "web"]),
        &["Shop", "a.b", "*"],
        "a namespace's name",
    ),
    case("probe", "true", "false", |it| it.get(&PROBE), SWITCH, BOOL),
    case(
        "trusted-proxies",
        "10.1.0.0/16,192.0.2.1",
        "none",
        |it| Ok(&it.get(&TRUSTED_PROXIES).networks) == "10.1.0.0/16,192.0.2.1".parse().as_ref(),
        &["all", "10.0.0.0/33", "10.0.0.0/8,"],
        "networks like 10.0.0.0/8, separated by commas, or none",
    ),
    case("cold-start-header", "false", "true", |it| !it.get(&COLD_START_HEADER), SWITCH, BOOL),
    case("keda-compat", "true", "false", |it| it.get(&KEDA_COMPAT), SWITCH, BOOL),
    case(
        "connect-timeout",
        "250ms",
        "1s",
        |it| timeouts(it).connect == Duration::from_millis(250),
        SPAN,
        DURATIONS,
    ),
    case(
        "readiness-timeout",
        "20s",
        "0s",
        |it| timeouts(it).readiness == Some(secs(20)),
        SPAN_OR_ZERO,
        DURATIONS,
    ),
    case(
        "response-header-timeout",
        "0s",
        "1m",
        |it| timeouts(it).response_header.is_none(),
        SPAN_OR_ZERO,
        DURATIONS,
    ),
    case(
        "request-timeout",
        "1h",
        "0s",
        |it| timeouts(it).request == Some(secs(3600)),
        SPAN_OR_ZERO,
        DURATIONS,
    ),
    case("max-hold", "2m", "3m", |it| holds(it).max_wait == secs(120), SPAN, DURATIONS),
    case("max-holds", "7", "8", |it| holds(it).per_service == 7, COUNT, WHOLE),
    case("max-holds-total", "80000", "90000", |it| holds(it).total == 80_000, COUNT, WHOLE),
    case("hold-memory", "64MiB", "1GiB", |it| holds(it).bytes == 64 << 20, SIZE, SIZES),
    case("wakes-per-second", "7", "8", |it| registry_settings(it).wakes.total.per_second == 7, COUNT, WHOLE),
    case("wake-burst", "7", "8", |it| registry_settings(it).wakes.total.burst == 7, COUNT, WHOLE),
    case(
        "namespace-wakes-per-second",
        "7",
        "8",
        |it| registry_settings(it).wakes.namespace.per_second == 7,
        COUNT,
        WHOLE,
    ),
    case(
        "namespace-wake-burst",
        "7",
        "8",
        |it| registry_settings(it).wakes.namespace.burst == 7,
        COUNT,
        WHOLE,
    ),
    case("max-connections", "7", "8", |it| it.get(&MAX_CONNECTIONS) == Some(7), COUNT, WHOLE),
    case("max-streams", "7", "8", |it| it.get(&MAX_STREAMS) == 7, COUNT, WHOLE),
    case("header-timeout", "7s", "8s", |it| it.get(&HEADER_TIMEOUT) == secs(7), SPAN, DURATIONS),
    case("idle-timeout", "7s", "8s", |it| it.get(&IDLE_TIMEOUT) == secs(7), SPAN, DURATIONS),
    case("stream-idle-timeout", "7s", "8s", |it| it.get(&STREAM_IDLE_TIMEOUT) == secs(7), SPAN, DURATIONS),
    case("max-header-size", "32KiB", "128KiB", |it| it.get(&MAX_HEADER_SIZE) == 32 << 10, SIZE, SIZES),
    case("max-headers", "7", "8", |it| it.get(&MAX_HEADERS) == 7, COUNT, WHOLE),
    case("max-request-line", "8KiB", "1000B", |it| it.get(&MAX_REQUEST_LINE) == 8 << 10, SIZE, SIZES),
    case(
        "max-idle-connections-per-pod",
        "7",
        "8",
        |it| it.get(&MAX_IDLE_CONNECTIONS_PER_POD) == 7,
        COUNT,
        WHOLE,
    ),
    case("max-idle-connections", "7", "8", |it| it.get(&MAX_IDLE_CONNECTIONS) == 7, COUNT, WHOLE),
    case(
        "max-pod-connections-per-client",
        "7",
        "8",
        |it| it.get(&MAX_POD_CONNECTIONS_PER_CLIENT) == 7,
        COUNT,
        WHOLE,
    ),
    case("buffer-memory", "64MiB", "1GiB", |it| it.get(&BUFFER_MEMORY) == Some(64 << 20), SIZE, SIZES),
    case(
        "buffer-memory-per-connection",
        "128KiB",
        "2MiB",
        |it| it.get(&BUFFER_MEMORY_PER_CONNECTION) == 128 << 10,
        SIZE,
        SIZES,
    ),
    case("workers", "7", "8", |it| it.get(&WORKERS) == Some(7), COUNT, WHOLE),
    case("shutdown-delay", "0s", "7s", |it| it.get(&SHUTDOWN_DELAY) == secs(0), SPAN_OR_ZERO, DURATIONS),
    case("drain-timeout", "7s", "0s", |it| it.get(&DRAIN_TIMEOUT) == secs(7), SPAN_OR_ZERO, DURATIONS),
    case(
        "access-log",
        "json",
        "combined",
        |it| it.get(&ACCESS_LOG) == Some(Format::Json),
        &["true", "on", "JSON"],
        "off, json or combined",
    ),
    case(
        "log-format",
        "json",
        "text",
        |it| it.get(&LOG_FORMAT) == LogFormat::Json,
        &["JSON", "logfmt"],
        "text or json",
    ),
    case(
        "log-level",
        "info,rouse_kube=debug",
        "warn",
        |it| it.get(&LOG_LEVEL) != LogFilter::default(),
        &["verbose", "INFO", "rouse_kube", "rouse_kube=loud"],
        "off, error, warn, info, debug or trace",
    ),
    case(
        "watch-namespace",
        "shop",
        "shop-2",
        |it| it.get(&WATCH_NAMESPACE).as_deref() == Some("shop"),
        &["Shop", "-shop", "shop-", "a,b", "a.b"],
        "a namespace's name",
    ),
    case(
        "assigned-hosts",
        "shop.example.com=shop,*.example.com=web",
        "*=web",
        |it| {
            let assigned = assigned_hosts(it);
            let all: Vec<_> = assigned.iter().collect();
            all.iter().map(|(host, namespace)| format!("{host}={namespace}")).collect::<Vec<_>>()
                == ["*.example.com=web", "shop.example.com=shop"]
        },
        &["shop.example.com", "shop.example.com=Shop", "a b=shop", "=shop", "shop.example.com="],
        "a host, an equals sign and a namespace",
    ),
    case(
        "host-overlap",
        "allow",
        "deny",
        |it| it.get(&HOST_OVERLAP) == HostOverlap::Allow,
        &["true", "Allow"],
        "deny or allow",
    ),
    case(
        "kubeconfig",
        "/kube/config",
        "/other",
        |it| it.get(&KUBECONFIG).as_deref() == Some(Path::new("/kube/config")),
        &["a\0b"],
        PATH,
    ),
    case(
        "context",
        "staging",
        "other",
        |it| it.get(&CONTEXT).as_deref() == Some("staging"),
        &["a\0b"],
        "text that is not empty",
    ),
    case(
        "cluster-domain",
        "k8s.example.org",
        "corp.local",
        |it| it.get(&CLUSTER_DOMAIN) == "k8s.example.org",
        &["a\0b"],
        "text that is not empty",
    ),
];

//! The settings, in the order in which they are shown.

use super::Fallback::{Is, Nothing};
use super::{Fallback, Heading, Setting, Ways};
use crate::config::Span;
use crate::gateway::keda;
use crate::gateway::settings::{
    AccessLog, ClientAuthMode, DirectPodRouting, HostOverlap, TlsVersion, UpstreamTls,
};
use crate::gateway::value::Kind;

/// Longer is a mistake, and far from where clocks overflow.
const LONGEST: Span = Span::secs(30 * 24 * 3600);
/// A length of time in which nothing can happen may not be zero.
const SOME_TIME: Kind = Kind::Span(Span::millis(1)..=LONGEST);
/// Zero has a meaning.
const ANY_TIME: Kind = Kind::Span(Span::secs(0)..=LONGEST);
const MANY: Kind = Kind::Count(1..=1_000_000);

const fn setting(
    name: &'static str,
    heading: Heading,
    kind: Kind,
    default: Fallback,
    help: &'static str,
) -> Setting {
    Setting { name, heading, kind, default, help, ways: Ways::All, aliases: &[] }
}

const fn listening(name: &'static str, kind: Kind, default: Fallback, help: &'static str) -> Setting {
    setting(name, Heading::Listening, kind, default, help)
}

const fn tls(name: &'static str, kind: Kind, default: Fallback, help: &'static str) -> Setting {
    setting(name, Heading::Tls, kind, default, help)
}

const fn routing(name: &'static str, kind: Kind, default: Fallback, help: &'static str) -> Setting {
    setting(name, Heading::Routing, kind, default, help)
}

const fn timeout(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Setting {
    setting(name, Heading::Timeouts, kind, Is(default), help)
}

const fn hold(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Setting {
    setting(name, Heading::Holds, kind, Is(default), help)
}

const fn limit(name: &'static str, kind: Kind, default: Fallback, help: &'static str) -> Setting {
    setting(name, Heading::Limits, kind, default, help)
}

const fn kubernetes(name: &'static str, kind: Kind, default: Fallback, help: &'static str) -> Setting {
    setting(name, Heading::Kubernetes, kind, default, help)
}

/// All settings.
pub static SETTINGS: &[Setting] = &[
    listening("listen", Kind::Addresses, Is("0.0.0.0:8080"), "Where requests come in; may be repeated")
        .keda(&keda::PROXY_PORT),
    listening(
        "admin",
        Kind::OwnAddress,
        Is("127.0.0.1:9090"),
        "Where the admin API, the metrics and /queue are: loopback, or in a pod the pod's own address",
    )
    .keda(&keda::ADMIN_PORT),
    tls("tls-listen", Kind::Addresses, Nothing("none"), "Where requests come in over TLS; may be repeated")
        .keda(&keda::TLS_LISTEN),
    tls(
        "tls-cert",
        Kind::Files,
        Nothing("none"),
        "A PEM file with a certificate and its chain, chosen by the client's server name; may be repeated, the first \
         is for everybody else",
    )
    .ways(Ways::Part { list: "tls-certs", part: "cert" })
    .keda(&keda::TLS_CERT),
    tls("tls-key", Kind::Files, Nothing("none"), "The PEM file with the key of each --tls-cert, in the same order")
        .ways(Ways::Part { list: "tls-certs", part: "key" })
        .keda(&keda::TLS_KEY),
    tls(
        "tls-cert-dir",
        Kind::Files,
        Nothing("none"),
        "A folder with pairs like tls.crt and tls.key, or shop.crt and shop.key; may be repeated",
    )
    .keda(&keda::TLS_CERT_DIR),
    tls("tls-min-version", Kind::Word(TlsVersion::WORDS), Is("1.2"), "The lowest TLS version that is spoken, 1.2 or 1.3")
        .keda(&keda::TLS_MIN_VERSION),
    tls("tls-max-version", Kind::Word(TlsVersion::WORDS), Is("1.3"), "The highest TLS version that is spoken, 1.2 or 1.3")
        .keda(&keda::TLS_MAX_VERSION),
    tls("tls-client-ca", Kind::File, Nothing("none"), "A PEM file with the roots of the clients' certificates"),
    tls(
        "tls-client-auth",
        Kind::Word(ClientAuthMode::WORDS),
        Is("none"),
        "Whether clients show a certificate: none, optional or required; needs --tls-client-ca",
    ),
    tls(
        "upstream-tls",
        Kind::Word(UpstreamTls::WORDS),
        Is("off"),
        "Whether pods are spoken to over TLS if neither annotation nor appProtocol says so: off, on, or as-received \
         for requests that came over TLS",
    )
    .keda(&keda::UPSTREAM_TLS),
    tls(
        "upstream-ca",
        Kind::File,
        Nothing("the system's roots alone"),
        "A PEM file with roots of pods' certificates, beside the system's; a Service's own CA counts instead of both",
    ),
    tls(
        "upstream-skip-verify",
        Kind::Switch,
        Is("false"),
        "Whether the certificates of pods are not verified: anybody in between can read and change all requests",
    )
    .ways(Ways::KedaOnly)
    .keda(&keda::SKIP_VERIFY),
    routing(
        "direct-pod-routing",
        Kind::Word(DirectPodRouting::WORDS),
        Is("always"),
        "When requests go straight to a pod instead of the Service's ClusterIP: disabled, cold-start-only or always",
    )
    .keda(&keda::DIRECT_POD_ROUTING),
    routing(
        "allow-manual-endpoints",
        Kind::Switch,
        Is("false"),
        "Whether endpoints get requests that are no pods of their namespace, or of Services without a selector: whoever \
         may write EndpointSlices can then send requests anywhere",
    ),
    routing(
        "manual-endpoints-of",
        Kind::Namespaces,
        Nothing("no namespace"),
        "The namespaces whose Services may allow such endpoints with the annotation rouse.dev/manual-endpoints; may be \
         repeated",
    ),
    routing(
        "probe",
        Kind::Switch,
        Is("false"),
        "Whether starting pods are probed as their readinessProbes say, instead of waiting for the kubelet",
    ),
    routing(
        "trusted-proxies",
        Kind::Networks,
        Is("127.0.0.0/8,::1/128,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,fc00::/7"),
        "Whose X-Forwarded-* headers are believed: networks separated by commas, or none",
    ),
    routing(
        "cold-start-header",
        Kind::Switch,
        Is("true"),
        "Whether responses say with X-Rouse-Cold-Start that their request waited for a pod",
    )
    .keda(&keda::COLD_START_HEADER),
    routing(
        "keda-compat",
        Kind::Switch,
        Is("false"),
        "Whether KEDA's names of headers and metrics are there beside ours, pods are asked over TLS for SERVICE.NAMESPACE \
         instead of SERVICE.NAMESPACE.svc, and certificates of --tls-cert are trusted as roots of pods' too; any \
         KEDA_HTTP_* variable that KEDA knows turns it on",
    ),
    timeout("connect-timeout", SOME_TIME, "500ms", "How long one attempt to connect to a pod may take")
        .keda(&keda::CONNECT_TIMEOUT),
    timeout(
        "readiness-timeout",
        ANY_TIME,
        "0s",
        "How long a request may wait for a ready pod; 0 is as long as the request may take (30s with a fallback), and \
         never longer than --max-hold",
    )
    .keda(&keda::READINESS_TIMEOUT),
    timeout(
        "response-header-timeout",
        ANY_TIME,
        "5m",
        "How long a pod may take to begin its response; 0 is without limit",
    )
    .keda(&keda::RESPONSE_HEADER_TIMEOUT),
    timeout("request-timeout", ANY_TIME, "0s", "How long a whole request may take; 0 is without limit")
        .keda(&keda::REQUEST_TIMEOUT),
    hold("max-hold", SOME_TIME, "5m", "How long any request may wait for a pod, whatever the timeouts say"),
    hold(
        "max-holds",
        MANY,
        "10000",
        "How many requests may wait for one service, at most a quarter of --max-holds-total; more are turned away \
         with 503",
    )
    .keda(&keda::MAX_HOLDS),
    hold("max-holds-total", MANY, "40000", "How many requests may wait for all services together"),
    setting(
        "hold-memory",
        Heading::Holds,
        Kind::Size((1 << 20)..=(1 << 40)),
        Nothing("a quarter of the memory limit, at most 256MiB"),
        "How much memory all waiting requests together may take up",
    ),
    hold("wakes-per-second", MANY, "50", "How many services may be woken in a second, in the long run"),
    hold("wake-burst", MANY, "200", "How many services may be woken at once"),
    hold(
        "namespace-wakes-per-second",
        MANY,
        "10",
        "How many services of one namespace may be woken in a second, in the long run",
    ),
    hold("namespace-wake-burst", MANY, "50", "How many services of one namespace may be woken at once"),
    limit(
        "max-connections",
        Kind::Count(1..=10_000_000),
        Nothing("by files and memory"),
        "How many client connections there may be, never more than about half of the files that may be open; by default also no \
         more than half of the memory limit allows at 32KiB each. Beyond it, the longest quiet one makes room, then the longest \
         stalled one",
    ),
    limit(
        "max-streams",
        Kind::Count(1..=10_000),
        Is("256"),
        "How many requests may be under way on one HTTP/2 connection",
    ),
    limit("header-timeout", SOME_TIME, Is("10s"), "How long the head of a request may take"),
    limit("idle-timeout", SOME_TIME, Is("75s"), "How long a client connection may be without a request, and the body of an HTTP/1 request without a byte"),
    limit(
        "stream-idle-timeout",
        SOME_TIME,
        Is("1h"),
        "How long a stream or an upgraded connection may be silent",
    ),
    limit(
        "max-header-size",
        // hyper's buffer cannot be smaller.
        Kind::Size((8 << 10)..=(1 << 20)),
        Is("64KiB"),
        "How large the head of a request may be",
    ),
    limit("max-headers", Kind::Count(1..=10_000), Is("100"), "How many headers a request may have"),
    limit(
        "max-request-line",
        Kind::Size(256..=(1 << 20)),
        Is("16KiB"),
        "How long the first line of a request may be; not over --max-header-size",
    ),
    limit(
        "max-idle-connections-per-pod",
        MANY,
        Is("512"),
        "How many connections to one pod are kept for later requests, on each worker",
    )
    .keda(&keda::MAX_IDLE_PER_HOST),
    limit(
        "max-idle-connections",
        MANY,
        Is("8192"),
        "How many connections to all pods are kept for later requests, on all workers together",
    )
    .keda(&keda::MAX_IDLE),
    limit(
        "max-pod-connections-per-client",
        MANY,
        Is("100"),
        "How many HTTP/1 connections to pods one client connection may use at a time, and never more than a quarter of those that \
         are free; further requests wait for its own earlier ones",
    ),
    limit(
        "buffer-memory",
        Kind::Size((1 << 20)..=(1 << 40)),
        Nothing("a quarter of the memory limit, at most 64MiB"),
        "How much memory bodies may take up that their receivers do not take; beyond it, the client connections that have \
         stalled for the longest are closed",
    ),
    limit(
        "buffer-memory-per-connection",
        Kind::Size((64 << 10)..=(1 << 30)),
        Is("1MiB"),
        "The same for one client connection; beyond it, pods have to wait until the client reads",
    ),
    limit("workers", Kind::Count(1..=1024), Nothing("one per core"), "How many threads serve requests"),
    setting(
        "shutdown-delay",
        Heading::Leaving,
        ANY_TIME,
        Is("5s"),
        "How long to go on accepting after a signal to stop, while /readyz says no and HTTP/1 answers say Connection: close",
    )
    .keda(&keda::SHUTDOWN_DELAY),
    setting(
        "drain-timeout",
        Heading::Leaving,
        ANY_TIME,
        Is("30s"),
        "How long requests under way may take to finish after that",
    )
    .keda(&keda::DRAIN_TIMEOUT),
    setting(
        "access-log",
        Heading::Observability,
        Kind::Word(AccessLog::WORDS),
        Is("off"),
        "Whether each request is a line on standard output: off, json or combined",
    )
    .keda(&keda::LOG_REQUESTS),
    kubernetes(
        "watch-namespace",
        Kind::Namespace,
        Nothing("all namespaces"),
        "The only namespace whose routes and services are looked at",
    )
    .keda(&keda::WATCH_NAMESPACE),
    kubernetes(
        "assigned-hosts",
        Kind::Assignments,
        Nothing("each host belongs to the namespace that claimed it first"),
        "Which namespace a host belongs to, whatever routes claim: shop.example.com=shop, *.example.com=web for all hosts \
         below it, *=web for all others; the most exact counts",
    ),
    kubernetes(
        "host-overlap",
        Kind::Word(HostOverlap::WORDS),
        Is("deny"),
        "Whether an exact host goes before a wildcard of another namespace: deny, so that whichever was claimed first \
         keeps the other out, or allow",
    ),
    kubernetes(
        "kubeconfig",
        Kind::File,
        Nothing("the pod's ServiceAccount, else $KUBECONFIG or ~/.kube/config"),
        "How to reach the cluster",
    ),
    kubernetes("context", Kind::Text, Nothing("the current one"), "Which context of the kubeconfig to use"),
    kubernetes(
        "cluster-domain",
        Kind::Text,
        Is("cluster.local"),
        "What the DNS names of Services end with: pods' certificates may be for these",
    ),
];

//! KEDA's variables, each with a valid and an invalid value.

use rouse_daemon::gateway::settings::{KEDA_COMPAT, TABLE, UPSTREAM_SKIP_VERIFY};

use super::{listed, told};

/// A variable; its setting; a valid value and the resulting setting; invalid values and a part of the error's text on what
/// is allowed; other variables that it needs.
struct Case {
    name: &'static str,
    setting: &'static str,
    good: &'static [(&'static str, &'static str)],
    bad: &'static [&'static str],
    allowed: &'static str,
    with: &'static [(&'static str, &'static str)],
}

const fn case(
    name: &'static str,
    setting: &'static str,
    good: &'static [(&'static str, &'static str)],
    bad: &'static [&'static str],
    allowed: &'static str,
) -> Case {
    Case { name, setting, good, bad, allowed, with: &[] }
}

impl Case {
    const fn with(mut self, with: &'static [(&'static str, &'static str)]) -> Self {
        self.with = with;
        self
    }
}

const ENABLED: &str = "KEDA_HTTP_PROXY_TLS_ENABLED";
const ON: &[(&str, &str)] = &[(ENABLED, "true")];
const PORTS: &[&str] = &["0", "-1", "65536", "http", ":8080"];
const PORT: &str = "a port from 1 to 65535";
const BOOLS: &[&str] = &["yes", "2", "on"];
const TRUTHS: &[(&str, &str)] = &[("true", "true"), ("1", "true"), ("False", "false")];
const BOOL: &str = "true or false";
const DURATIONS: &[&str] = &["5", "-1s", "soon", "1d", "721h"];
const NUMBERS: &[&str] = &["-1", "many", "1.5", "99999999"];
const VERSIONS: &[&str] = &["1.1", "TLS13"];
const PATHS: &[&str] = &["a,,b", "a\0b"];
const PATH: &str = "a path that is not empty";

const CASES: &[Case] = &[
    case("KEDA_HTTP_PROXY_PORT", "listen", &[("8081", "0.0.0.0:8081")], PORTS, PORT),
    case("KEDA_HTTP_ADMIN_PORT", "admin", &[("9091", "10.1.2.3:9091")], PORTS, PORT)
        .with(&[("POD_IP", "10.1.2.3")]),
    case(ENABLED, "tls-listen", &[("true", "0.0.0.0:8443"), ("false", "")], BOOLS, BOOL),
    case("KEDA_HTTP_PROXY_TLS_PORT", "tls-listen", &[("8444", "0.0.0.0:8444")], PORTS, PORT).with(ON),
    case("KEDA_HTTP_PROXY_TLS_CERT_PATH", "tls-cert", &[("/a.crt", "/a.crt")], PATHS, PATH).with(ON),
    case(ENABLED, "tls-cert", &[("true", "/certs/tls.crt"), ("false", "")], BOOLS, BOOL),
    case("KEDA_HTTP_PROXY_TLS_KEY_PATH", "tls-key", &[("/a.key", "/a.key")], PATHS, PATH).with(ON),
    case(ENABLED, "tls-key", &[("true", "/certs/tls.key"), ("false", "")], BOOLS, BOOL),
    case("KEDA_HTTP_PROXY_TLS_CERT_STORE_PATHS", "tls-cert-dir", &[("/a,/b", "/a,/b")], PATHS, PATH).with(ON),
    case("KEDA_HTTP_PROXY_TLS_MIN_VERSION", "tls-min-version", &[("1.3", "1.3")], VERSIONS, "1.2 or 1.3"),
    case("KEDA_HTTP_TLS_MIN_VERSION", "tls-min-version", &[("1.3", "1.3")], VERSIONS, "1.2 or 1.3"),
    case("KEDA_HTTP_PROXY_TLS_MAX_VERSION", "tls-max-version", &[("1.2", "1.2")], VERSIONS, "1.2 or 1.3"),
    case("KEDA_HTTP_TLS_MAX_VERSION", "tls-max-version", &[("1.2", "1.2")], VERSIONS, "1.2 or 1.3"),
    case(ENABLED, "upstream-tls", &[("true", "as-received"), ("false", "off")], BOOLS, BOOL),
    case("KEDA_HTTP_PROXY_TLS_SKIP_VERIFY", "upstream-skip-verify", TRUTHS, BOOLS, BOOL),
    case("KEDA_HTTP_TLS_SKIP_VERIFY", "upstream-skip-verify", TRUTHS, BOOLS, BOOL),
    case(
        "KEDA_HTTP_DIRECT_POD_ROUTING",
        "direct-pod-routing",
        &[
            ("disabled", "disabled"),
            ("cold-start-only", "cold-start-only"),
            ("always", "always"),
            ("true", "always"),
            ("false", "disabled"),
        ],
        &["never", "yes"],
        "disabled, cold-start-only, always, true or false",
    ),
    case("KEDA_HTTP_ENABLE_COLD_START_HEADER", "cold-start-header", TRUTHS, BOOLS, BOOL),
    case(
        "KEDA_HTTP_CONNECT_TIMEOUT",
        "connect-timeout",
        &[("5s", "5s"), ("1m30s", "90s")],
        DURATIONS,
        "duration",
    ),
    case(
        "KEDA_CONDITION_WAIT_TIMEOUT",
        "readiness-timeout",
        &[("20s", "20s"), ("0", "0s")],
        DURATIONS,
        "duration",
    ),
    case(
        "KEDA_HTTP_READINESS_TIMEOUT",
        "readiness-timeout",
        &[("1.5h", "90m"), ("0s", "0s")],
        DURATIONS,
        "duration",
    ),
    case(
        "KEDA_RESPONSE_HEADER_TIMEOUT",
        "response-header-timeout",
        &[("20s", "20s"), ("0", "5m")],
        DURATIONS,
        "duration",
    ),
    case(
        "KEDA_HTTP_RESPONSE_HEADER_TIMEOUT",
        "response-header-timeout",
        &[("300s", "5m"), ("0", "0s")],
        DURATIONS,
        "duration",
    ),
    case("KEDA_HTTP_REQUEST_TIMEOUT", "request-timeout", &[("3m", "3m"), ("0", "0s")], DURATIONS, "duration"),
    case(
        "KEDA_HTTP_COLD_START_MAX_PENDING_REQUESTS",
        "max-holds",
        &[("500", "500")],
        NUMBERS,
        "a whole number",
    ),
    case(
        "KEDA_HTTP_MAX_IDLE_CONNS_PER_HOST",
        "max-idle-connections-per-pod",
        &[("200", "200"), ("0", "2")],
        NUMBERS,
        "a whole number",
    ),
    case(
        "KEDA_HTTP_MAX_IDLE_CONNS",
        "max-idle-connections",
        &[("1000", "1000"), ("0", "1000000")],
        NUMBERS,
        "a whole number",
    ),
    case("KEDA_HTTP_SHUTDOWN_DELAY", "shutdown-delay", &[("10s", "10s"), ("0", "0s")], DURATIONS, "duration"),
    case("KEDA_HTTP_DRAIN_TIMEOUT", "drain-timeout", &[("2m", "2m"), ("0", "720h")], DURATIONS, "duration"),
    case("KEDA_HTTP_LOG_REQUESTS", "access-log", &[("true", "combined"), ("false", "off")], BOOLS, BOOL),
    case(
        "RUST_LOG",
        "log-level",
        &[("debug", "debug"), ("INFO,hyper", "info,hyper=trace"), ("off,rouse=warn", "off,rouse=warn")],
        &["rouse=loud"],
        "off, error, warn, info, debug or trace",
    ),
    case(
        "KEDA_HTTP_WATCH_NAMESPACE",
        "watch-namespace",
        &[("shop", "shop")],
        &["Shop", "a,b"],
        "a namespace's name",
    ),
];

#[test]
fn every_alias_has_a_good_and_a_bad_value_here() {
    let tried: Vec<(&str, &str)> = CASES.iter().map(|case| (case.setting, case.name)).collect();
    let known = TABLE
        .settings()
        .flat_map(|setting| setting.aliases().iter().map(|alias| (setting.name(), alias.name)));
    assert_eq!(tried, known.collect::<Vec<_>>());
    assert!(CASES.iter().all(|case| !case.good.is_empty() && !case.bad.is_empty()));
}

#[test]
fn the_aliases_are_those_of_the_specification() {
    let of_proxy_tls = [
        "ENABLED",
        "PORT",
        "CERT_PATH",
        "KEY_PATH",
        "CERT_STORE_PATHS",
        "SKIP_VERIFY",
        "MIN_VERSION",
        "MAX_VERSION",
    ];
    let others = [
        "PROXY_PORT",
        "ADMIN_PORT",
        "WATCH_NAMESPACE",
        "TLS_MIN_VERSION",
        "TLS_MAX_VERSION",
        "TLS_SKIP_VERIFY",
        "ENABLE_COLD_START_HEADER",
        "LOG_REQUESTS",
        "DRAIN_TIMEOUT",
        "SHUTDOWN_DELAY",
        "DIRECT_POD_ROUTING",
        "REQUEST_TIMEOUT",
        "RESPONSE_HEADER_TIMEOUT",
        "READINESS_TIMEOUT",
        "CONNECT_TIMEOUT",
        "MAX_IDLE_CONNS",
        "MAX_IDLE_CONNS_PER_HOST",
        "COLD_START_MAX_PENDING_REQUESTS",
    ];
    let deprecated = ["KEDA_CONDITION_WAIT_TIMEOUT", "KEDA_RESPONSE_HEADER_TIMEOUT"];
    let mut expected: Vec<String> =
        of_proxy_tls.iter().map(|it| format!("KEDA_HTTP_PROXY_TLS_{it}")).collect();
    expected.extend(others.iter().map(|it| format!("KEDA_HTTP_{it}")));
    expected.extend(deprecated.map(str::to_owned));
    // Common to Rust programs.
    expected.push("RUST_LOG".to_owned());
    expected.sort();
    let mut known: Vec<&str> = TABLE
        .settings()
        .flat_map(rouse_config::settings::AnySetting::aliases)
        .map(|alias| alias.name)
        .collect();
    known.sort_unstable();
    known.dedup();
    assert_eq!(known, expected);
}

#[test]
fn every_good_value_means_what_it_means_to_keda() {
    for case in CASES {
        for (value, expected) in case.good {
            let settings = told().variables(case.with).variable(case.name, value).settings();
            assert_eq!(listed(&settings, case.setting).0, *expected, "{}={value}", case.name);
        }
    }
}

#[test]
fn every_bad_value_is_refused_with_its_variable_and_what_is_allowed() {
    for case in CASES {
        for bad in case.bad {
            let problems = told().variables(case.with).variable(case.name, bad).problems();
            let [problem] = &problems[..] else { panic!("{}={bad:?}: {problems:?}", case.name) };
            assert!(problem.starts_with(&format!("{}: ", case.name)), "{problem}");
            assert!(problem.contains(bad) || problem.contains(&format!("{bad:?}")), "{problem}");
            assert!(problem.contains(case.allowed), "{problem}");
        }
    }
}

#[test]
fn an_alias_counts_after_our_own_variable_and_before_the_file() {
    let keda = || told().variable("KEDA_HTTP_DRAIN_TIMEOUT", "1m").file("drain-timeout: 2m");
    let of = |told: super::Told| listed(&told.settings(), "drain-timeout");
    assert_eq!(of(keda()), ("1m".to_owned(), "KEDA_HTTP_DRAIN_TIMEOUT".to_owned()));
    assert_eq!(of(keda().variable("ROUSE_DRAIN_TIMEOUT", "3m")).1, "ROUSE_DRAIN_TIMEOUT");
    assert_eq!(of(keda().variable("ROUSE_DRAIN_TIMEOUT", "")).1, "KEDA_HTTP_DRAIN_TIMEOUT");
    assert_eq!(of(keda().flag("--drain-timeout", "4m")).1, "--drain-timeout");
    assert_eq!(of(told().variable("KEDA_HTTP_DRAIN_TIMEOUT", "")).1, "default");
}

#[test]
fn a_deprecated_alias_counts_before_its_successor_and_warns() {
    for (old, new, name) in [
        ("KEDA_CONDITION_WAIT_TIMEOUT", "KEDA_HTTP_READINESS_TIMEOUT", "readiness-timeout"),
        ("KEDA_RESPONSE_HEADER_TIMEOUT", "KEDA_HTTP_RESPONSE_HEADER_TIMEOUT", "response-header-timeout"),
    ] {
        let (settings, warnings) = told().variable(old, "31s").variable(new, "25s").good();
        assert_eq!(listed(&settings, name), ("31s".to_owned(), old.to_owned()));
        assert_eq!(warnings, [format!("{old}: this variable is deprecated: use {new}")]);
        let (settings, _) = told().variable(old, "0").variable(new, "25s").good();
        assert_eq!(listed(&settings, name), ("25s".to_owned(), new.to_owned()));
    }
}

#[test]
fn only_variables_that_keda_knows_turn_compatibility_on() {
    for name in
        ["KEDA_HTTP_PROXY_PORT", "KEDA_HTTP_CURRENT_NAMESPACE", "KEDA_HTTP_OTEL_PROM_EXPORTER_ENABLED"]
    {
        let settings = told().variable(name, "8080").variable("KEDA_HTTP_AAA", "1").settings();
        assert_eq!(listed(&settings, "keda-compat"), ("true".to_owned(), name.to_owned()));
        let settings = told().variable(name, "8080").variable("ROUSE_KEDA_COMPAT", "false").settings();
        assert!(!settings.get(&KEDA_COMPAT));
    }
    for (name, value) in [
        ("KEDA_HTTP_FOO", "1"),
        ("KEDA_HTTP_PROXY_PORT", ""),
        ("KEDA_CONDITION_WAIT_TIMEOUT", "1s"),
        ("KEDA_HTTP_X_SERVICE_HOST", "1"),
    ] {
        assert!(!told().variable(name, value).settings().get(&KEDA_COMPAT), "{name}");
    }
}

#[test]
fn what_cannot_be_honoured_is_said_and_the_default_counts() {
    for (name, value, setting, default) in [
        ("KEDA_HTTP_CONNECT_TIMEOUT", "0", "connect-timeout", "500ms"),
        ("KEDA_HTTP_COLD_START_MAX_PENDING_REQUESTS", "0", "max-holds", "10000"),
        ("KEDA_HTTP_PROXY_TLS_PORT", "8444", "tls-listen", ""),
        ("KEDA_HTTP_PROXY_TLS_CERT_PATH", "/a.crt", "tls-cert", ""),
        ("KEDA_HTTP_PROXY_TLS_KEY_PATH", "/a.key", "tls-key", ""),
        ("KEDA_HTTP_PROXY_TLS_CERT_STORE_PATHS", "/a", "tls-cert-dir", ""),
    ] {
        let (settings, warnings) = told().variable(name, value).good();
        assert_eq!(listed(&settings, setting), (default.to_owned(), "default".to_owned()));
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(warning.starts_with(&format!("{name}: {value} is ignored: ")), "{warning}");
    }
}

#[test]
fn a_variable_without_effect_is_named() {
    let (_, warnings) = told()
        .variables(&[("KEDA_HTTP_FORCE_HTTP2", "true"), ("KEDA_HTTP_NEW", "1"), ("ROUSE_MAX_HOLDZ", "1")])
        .good();
    assert_eq!(
        warnings,
        [
            "KEDA_HTTP_FORCE_HTTP2: this variable has no effect: the Service's appProtocol sets HTTP/2 to pods",
            "KEDA_HTTP_NEW: this variable has no effect: unknown variable",
            "ROUSE_MAX_HOLDZ: unknown variable: did you mean ROUSE_MAX_HOLD?",
        ]
    );
}

#[test]
fn what_kedas_interceptor_exports_by_and_is_profiled_at_is_without_effect() {
    let names = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_PROM_EXPORTER_PORT", "PROFILING_BIND_ADDRESS"];
    let variables = names.map(|name| (name, "x"));
    let links = [("OTEL_COLLECTOR_SERVICE_HOST", "10.96.0.7"), ("OTEL_PORT", "tcp://10.96.0.7:4317")];
    let (settings, warnings) = told().variables(&variables).variables(&links).good();
    assert_eq!(
        warnings.len(),
        names.len(),
        "variables of a Service called otel are no settings: {warnings:?}"
    );
    for (name, warning) in names.iter().zip(&warnings) {
        assert!(warning.starts_with(&format!("{name}: this variable has no effect: ")), "{warning}");
    }
    assert!(warnings[0].contains("OpenTelemetry") && warnings[1].contains("/metrics"), "{warnings:?}");
    assert!(!settings.get(&KEDA_COMPAT), "these names are not KEDA's own");
    let (_, older) = told().variable("KEDA_HTTP_OTEL_HTTP_EXPORTER_ENABLED", "true").good();
    assert!(matches!(&older[..], [one] if one.contains("OpenTelemetry")), "{older:?}");
}

#[test]
fn without_the_pods_address_kedas_admin_port_is_on_loopback_with_a_warning() {
    let (settings, warnings) = told().variable("KEDA_HTTP_ADMIN_PORT", "9090").good();
    assert_eq!(listed(&settings, "admin"), ("127.0.0.1:9090".to_owned(), "KEDA_HTTP_ADMIN_PORT".to_owned()));
    assert!(matches!(&warnings[..], [one] if one.contains("POD_IP")), "{warnings:?}");
    let (settings, warnings) =
        told().variables(&[("KEDA_HTTP_ADMIN_PORT", "9090"), ("POD_IP", "fd00::7")]).good();
    assert_eq!((listed(&settings, "admin").0.as_str(), &warnings[..]), ("[fd00::7]:9090", &[][..]));
    let problems = told().variables(&[("KEDA_HTTP_ADMIN_PORT", "9090"), ("POD_IP", "0.0.0.0")]).problems();
    assert!(matches!(&problems[..], [one] if one.starts_with("KEDA_HTTP_ADMIN_PORT: ")), "{problems:?}");
}

#[test]
fn unverified_pods_are_warned_of_at_every_start() {
    for name in ["KEDA_HTTP_TLS_SKIP_VERIFY", "KEDA_HTTP_PROXY_TLS_SKIP_VERIFY"] {
        let (settings, warnings) = told().variable(name, "true").good();
        assert!(settings.get(&UPSTREAM_SKIP_VERIFY));
        assert!(
            warnings.iter().any(|it| it.starts_with(name) && it.contains("not verified")),
            "{warnings:?}"
        );
    }
    let problems = told().file("upstream-skip-verify: true").problems();
    assert!(matches!(&problems[..], [one] if one.contains("unknown key")), "{problems:?}");
    let (settings, warnings) = told().variable("ROUSE_UPSTREAM_SKIP_VERIFY", "true").good();
    assert!(!settings.get(&UPSTREAM_SKIP_VERIFY) && !warnings.is_empty());
}

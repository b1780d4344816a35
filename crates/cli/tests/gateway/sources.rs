//! Flags, variables and the file together: all errors are reported at once, each with its place.

use std::path::Path;

use rouse_config::settings::{AnySetting, Environment, Origin};
use rouse_core::budget::WakeRates;
use rouse_core::hold::HoldLimits;
use rouse_daemon::gateway::{read_settings, settings as set};
use rouse_daemon::settings as shared;
use rouse_proxy::budget::{ConnectionLimits, HeadLimits};
use rouse_proxy::request::TrustedProxies;
use rouse_proxy::upstream::Timeouts;

use super::{FILE, listed, told};

#[test]
fn the_defaults_are_those_of_the_parts() {
    let (settings, warnings) = told().good();
    assert_eq!(warnings, [""; 0]);
    let default = HoldLimits::default();
    assert!(set::holds(&settings).bytes <= default.bytes, "it follows the memory of this machine");
    assert_eq!(HoldLimits { bytes: default.bytes, ..set::holds(&settings) }, default);
    assert_eq!(set::registry_settings(&settings).wakes, WakeRates::default());
    assert_eq!(set::timeouts(&settings), Timeouts::default());
    assert_eq!(settings.get(&shared::TRUSTED_PROXIES).networks, TrustedProxies::private());
    let (front, guard) = (ConnectionLimits::default(), HeadLimits::default());
    assert_eq!(
        (settings.get(&shared::IDLE_TIMEOUT), settings.get(&shared::HEADER_TIMEOUT)),
        (front.idle, front.head)
    );
    assert_eq!(
        (
            settings.get(&set::MAX_HEADER_SIZE),
            settings.get(&set::MAX_HEADERS),
            settings.get(&set::MAX_REQUEST_LINE)
        ),
        (guard.head, guard.headers, guard.line)
    );
    assert_eq!(
        (settings.get(&set::MAX_STREAMS), settings.get(&rouse_daemon::settings::STREAM_IDLE_TIMEOUT)),
        (front.streams, front.stream_idle)
    );
    assert_eq!(
        (settings.get(&set::MAX_IDLE_CONNECTIONS_PER_POD), settings.get(&set::MAX_IDLE_CONNECTIONS)),
        (front.kept_per_pod, front.kept)
    );
    assert!(settings.all().iter().all(|it| it.origin == Origin::Default));
}

#[test]
fn services_called_rouse_or_rouse_register_neither_stop_the_gateway_nor_make_it_warn() {
    let mut told = told();
    for service in ["ROUSE", "ROUSE_REGISTER", "ROUSE_REGISTER_SERVICE"] {
        for (name, value) in [
            ("SERVICE_HOST", "10.96.0.7"),
            ("SERVICE_PORT", "9443"),
            ("SERVICE_PORT_HTTPS", "9443"),
            ("PORT", "tcp://10.96.0.7:9443"),
            ("PORT_9443_TCP", "tcp://10.96.0.7:9443"),
            ("PORT_9443_TCP_PROTO", "tcp"),
            ("PORT_9443_TCP_PORT", "9443"),
            ("PORT_9443_TCP_ADDR", "10.96.0.7"),
        ] {
            told = told.variable(&format!("{service}_{name}"), value);
        }
    }
    let (settings, warnings) = told.good();
    assert_eq!(warnings, [""; 0]);
    assert!(settings.all().iter().all(|it| it.origin == Origin::Default));
}

#[test]
fn what_is_wrong_in_any_source_is_told_at_once() {
    let problems = told()
        .flag("--max-hold", "5")
        .flag("--probe", "maybe")
        .variable("ROUSE_MAX_HOLDS", "0")
        .variable("KEDA_HTTP_DIRECT_POD_ROUTING", "sometimes")
        .file("admin: 0.0.0.0:9090\nlisten:\n  - 8080\n  - 127.0.0.1:1\n  - x\ntyp: 1\n")
        .problems();
    assert_eq!(
        problems,
        [
            "--max-hold: 5 is not allowed: a duration from 1ms to 720h, like 500ms, 30s, 5m or 1h; did you mean 5s?",
            "--probe: maybe is not allowed: true or false",
            "KEDA_HTTP_DIRECT_POD_ROUTING: sometimes is not allowed: disabled, cold-start-only, always, true or false",
            "ROUSE_MAX_HOLDS: 0 is not allowed: a whole number from 1 to 1000000",
            "etc/gateway.yaml:1:8: admin: 0.0.0.0:9090 is not allowed: a loopback address or the pod's own, and a port, \
             like 127.0.0.1:9090: the admin API has no authentication",
            "etc/gateway.yaml:3:5: listen[0]: 8080 is not allowed: an IP address and a port, like 0.0.0.0:8080 or \
             [::]:8080; did you mean 0.0.0.0:8080?",
            "etc/gateway.yaml:5:5: listen[2]: x is not allowed: an IP address and a port, like 0.0.0.0:8080 or [::]:8080",
            &unknown("etc/gateway.yaml:6:1: typ"),
        ]
    );
}

#[test]
fn what_is_suggested_is_taken() {
    for (flag, value, meant) in [
        ("--max-hold", "5", Some("5s")),
        ("--max-hold", "0", None),
        ("--max-hold", "2592001", None),
        ("--max-header-size", "65536", Some("65536B")),
        ("--max-header-size", "5", None),
        ("--listen", ":8081", Some("0.0.0.0:8081")),
    ] {
        let problems = told().flag(flag, value).problems();
        let [problem] = &problems[..] else { panic!("{problems:?}") };
        let suggested = problem.split_once("; did you mean ").map(|(_, rest)| rest.trim_end_matches('?'));
        assert_eq!(suggested, meant, "{problem}");
        if let Some(meant) = meant {
            told().flag(flag, meant).settings();
        }
    }
}

/// The error for a key that resembles no known one.
fn unknown(place: &str) -> String {
    let mut keys: Vec<&str> = set::TABLE.settings().filter_map(AnySetting::key).collect();
    keys.dedup();
    format!("{place}: unknown key: expected one of {}", keys.join(", "))
}

#[test]
fn a_file_that_cannot_be_read_is_told_with_the_rest() {
    let lost = told().flag("--config", "lost.yaml").flag("--workers", "0");
    assert_eq!(
        lost.problems(),
        [
            "--config: cannot read lost.yaml: there is none",
            "--workers: 0 is not allowed: a whole number from 1 to 1024"
        ]
    );
    let lost = told().variable("ROUSE_CONFIG", "lost.yaml");
    assert_eq!(lost.problems(), ["ROUSE_CONFIG: cannot read lost.yaml: there is none"]);
}

#[test]
fn a_variable_may_name_the_file() {
    let mut told = told().file("workers: 3").variable("ROUSE_CONFIG", FILE);
    let args = told.args();
    assert!(args.config.is_some());
    let text = told.file.take().unwrap();
    let read = read_settings(&told.args(), &Environment::new(told.variables), |path| {
        assert_eq!(path, Path::new(FILE));
        Ok(text.clone())
    });
    assert_eq!(read.unwrap().0.get(&shared::WORKERS), Some(3));
}

#[test]
fn a_file_that_is_no_yaml_is_told_with_its_line() {
    let problems = told().file("listen: [\n").flag("--workers", "0").problems();
    let [flag, file] = &problems[..] else { panic!("{problems:?}") };
    assert!(flag.starts_with("--workers") && file.starts_with("etc/gateway.yaml:2:1: "), "{problems:?}");
    for (text, part) in [("- a", "an object with listen, admin"), ("a: 1\n---\nb: 2", "second document")] {
        let problems = told().file(text).problems();
        assert!(problems.iter().any(|it| it.contains(part)), "{text}: {problems:?}");
    }
    assert!(told().file("").read().is_ok() && told().file("# nothing\n").read().is_ok());
}

#[test]
fn a_key_that_is_almost_one_is_recognised() {
    for (text, meant) in [("maxHold: 1s", "max-hold"), ("tls-cert: x", "tls-certs"), ("listne: x", "listen")]
    {
        let problems = told().file(text).problems();
        let hint = format!("unknown key: did you mean {meant}?");
        assert!(matches!(&problems[..], [one] if one.ends_with(&hint)), "{problems:?}");
    }
    let problems = told().file("workers: 1\nworkers: 2").problems();
    assert!(matches!(&problems[..], [one] if one.contains("appears twice")), "{problems:?}");
}

#[test]
fn paths_of_the_file_are_relative_to_it() {
    let file = "tls-certs: [{cert: a.crt, key: /b.key}]\ntls-listen: 127.0.0.1:1\ntls-cert-dir: certs\nkubeconfig: kube";
    let settings = told().file(file).settings();
    assert_eq!(settings.get(&set::TLS_CERT), [Path::new("etc/a.crt")]);
    assert_eq!(settings.get(&set::TLS_KEY), [Path::new("/b.key")]);
    assert_eq!(settings.get(&set::TLS_CERT_DIR), [Path::new("etc/certs")]);
    assert_eq!(settings.get(&shared::KUBECONFIG).as_deref(), Some(Path::new("etc/kube")));
    let settings = told().flag("--kubeconfig", "kube").settings();
    assert_eq!(settings.get(&shared::KUBECONFIG).as_deref(), Some(Path::new("kube")));
}

#[test]
fn lists_are_lists_in_the_file_and_have_commas_elsewhere() {
    let expected = ["127.0.0.1:1", "127.0.0.1:2"].map(|it| it.parse().unwrap());
    let both = [
        told().file("listen: [127.0.0.1:1, 127.0.0.1:2]"),
        told().file("listen: 127.0.0.1:1, 127.0.0.1:2"),
        told().variable("ROUSE_LISTEN", "127.0.0.1:1, 127.0.0.1:2"),
        told().flag("--listen", "127.0.0.1:1").flag("--listen", "127.0.0.1:2"),
        told().flag("--listen", "127.0.0.1:1,127.0.0.1:2"),
    ];
    for told in both {
        assert_eq!(told.settings().get(&set::LISTEN), expected, "{told:?}");
    }
    let settings = told().file("trusted-proxies: [10.0.0.0/8, 192.0.2.1]").settings();
    assert_eq!(listed(&settings, "trusted-proxies").0, "10.0.0.0/8,192.0.2.1");
    for bad in [
        "trusted-proxies: [10.0.0.0/8, none]",
        "trusted-proxies: [x]",
        "workers: [1]",
        "listen: []",
        "listen: {}",
    ] {
        assert_eq!(told().file(bad).problems().len(), 1, "{bad}");
    }
}

#[test]
fn a_broken_pair_in_the_file_is_told_once() {
    let problems = told().file("tls-certs:\n- {cert: a.crt}\n- {cert: b.crt, kye: b.key}").problems();
    assert_eq!(
        problems,
        [
            "etc/gateway.yaml:2:3: tls-certs[0].key: missing: a path that is not empty",
            "etc/gateway.yaml:3:3: tls-certs[1].key: missing: a path that is not empty",
            "etc/gateway.yaml:3:17: tls-certs[1].kye: unknown key: expected one of cert, key",
        ]
    );
}

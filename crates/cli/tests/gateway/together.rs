//! Settings that are valid alone, but not in combination.

use std::path::Path;

use rouse_daemon::gateway::settings::{TLS_CERT, TLS_KEY};

use super::{Told, told};

fn flags(all: &[(&str, &str)]) -> Told {
    all.iter().fold(told(), |told, (flag, value)| told.flag(flag, value))
}

/// Asserts that these flags give one error, which begins with the flag `source` and contains `part`.
#[track_caller]
fn check(all: &[(&str, &str)], source: &str, part: &str) {
    let problems = flags(all).problems();
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert!(problem.starts_with(&format!("{source}: ")) && problem.contains(part), "{problem}");
}

#[test]
fn what_does_not_go_together_is_refused() {
    let door = ("--tls-listen", "127.0.0.1:1");
    check(
        &[("--tls-min-version", "1.3"), ("--tls-max-version", "1.2")],
        "--tls-min-version",
        "above tls-max-version",
    );
    check(
        &[("--tls-cert", "a"), ("--tls-cert", "b"), ("--tls-key", "a"), door],
        "--tls-cert",
        "tls-cert has 2 and tls-key has 1 values",
    );
    check(&[("--tls-key", "a"), door], "--tls-key", "tls-cert has 0 and tls-key has 1 values");
    check(&[door], "--tls-listen", "TLS needs a certificate");
    check(&[("--tls-client-auth", "required")], "--tls-client-auth", "give --tls-client-ca");
    check(&[("--max-header-size", "8KiB")], "--max-header-size", "max-request-line (16384 bytes) is above");
    check(
        &[("--assigned-hosts", "*=all,Shop.test=shop"), ("--assigned-hosts", "shop.test=web")],
        "--assigned-hosts",
        "shop.test is assigned to shop and to web",
    );
    check(&[("--admin", "127.0.0.1:8080")], "--admin", "admin 127.0.0.1:8080 and listen 0.0.0.0:8080");
    check(&[("--listen", "127.0.0.1:1,127.0.0.1:1")], "--listen", "overlap");
    check(&[("--tls-listen", "127.0.0.1:8080"), ("--tls-cert-dir", "x")], "--tls-listen", "overlap");
}

#[test]
fn a_registration_listener_that_cannot_check_pods_is_refused() {
    let listen = ("--register-listen", "127.0.0.1:1");
    let (cert, key) = (("--register-tls-cert", "a"), ("--register-tls-key", "b"));
    check(&[listen], "--register-listen", "tokens and client certificates need TLS");
    check(&[listen, cert], "--register-tls-cert", "give both --register-tls-cert and --register-tls-key");
    check(&[listen, ("--register-auth", "hmac")], "--register-auth", "give --register-keys");
    check(&[listen, cert, key, ("--register-auth", "mtls")], "--register-auth", "give --register-client-ca");
    check(&[("--listen", "127.0.0.1:1"), listen, cert, key], "--register-listen", "overlap");
    for good in [
        &[listen, cert, key][..],
        &[listen, ("--register-auth", "hmac"), ("--register-keys", "c")],
        &[listen, cert, key, ("--register-auth", "token,mtls"), ("--register-client-ca", "c")],
    ] {
        assert_eq!(flags(good).good().1, [""; 0], "{good:?}");
    }
}

#[test]
fn what_goes_together_is_taken() {
    let certs =
        [("--tls-cert", "a"), ("--tls-cert", "b"), ("--tls-key", "c,d"), ("--tls-listen", "127.0.0.1:1")];
    let settings = flags(&certs).settings();
    assert_eq!(settings.get(&TLS_CERT), [Path::new("a"), Path::new("b")]);
    assert_eq!(settings.get(&TLS_KEY), [Path::new("c"), Path::new("d")]);
    for good in [
        &[("--listen", "127.0.0.1:0,127.0.0.1:0")][..],
        &[("--listen", "127.0.0.1:1,127.0.0.2:1")],
        &[("--tls-min-version", "1.3"), ("--tls-max-version", "1.3")],
        &[("--max-header-size", "16KiB")],
        &[("--assigned-hosts", "shop.test=shop,*.test=web,shop.test=shop")],
        // They are roots of pods' certificates.
        &[("--keda-compat", "true"), ("--tls-cert", "a"), ("--tls-key", "b")],
    ] {
        assert_eq!(flags(good).good().1, [""; 0], "{good:?}");
    }
}

#[test]
fn what_has_no_effect_is_warned_of() {
    for (all, part) in [
        (&[("--tls-cert-dir", "x")][..], "--tls-cert-dir: certificates have no effect without --tls-listen"),
        (
            &[("--keda-compat", "true"), ("--tls-cert-dir", "x")],
            "--tls-cert-dir: certificates have no effect without --tls-listen",
        ),
        (&[("--tls-cert", "x"), ("--tls-key", "y")], "--tls-cert: certificates have no effect"),
        (&[("--tls-client-ca", "x")], "--tls-client-ca: it has no effect without --tls-client-auth"),
        (
            &[("--max-holds", "20000")],
            "--max-holds: max-holds 20000 is above a quarter of max-holds-total 40000",
        ),
        (&[("--max-holds-total", "100")], "25 applies"),
        (&[("--register-keys", "x")], "--register-keys: it has no effect without --register-listen"),
        (
            &[
                ("--register-listen", "127.0.0.1:1"),
                ("--register-tls-cert", "a"),
                ("--register-tls-key", "b"),
                ("--register-service", "edge/rouse-register"),
                ("--watch-namespace", "shop"),
            ],
            "--register-service: answers to pods do not list the gateways, because only the namespace shop is watched",
        ),
    ] {
        let (_, warnings) = flags(all).good();
        assert!(matches!(&warnings[..], [one] if one.contains(part)), "{all:?}: {warnings:?}");
    }
}

#[test]
fn nothing_is_said_about_how_a_bad_value_goes_with_others() {
    for (bad, rest) in [
        (("--tls-max-version", "1.1"), ("--tls-min-version", "1.3")),
        (("--tls-key", "a,,b"), ("--tls-cert", "a")),
        (("--tls-client-ca", ""), ("--tls-client-auth", "required")),
        (("--max-request-line", "x"), ("--max-header-size", "8KiB")),
        (("--listen", "x"), ("--admin", "127.0.0.1:8080")),
        (("--tls-cert-dir", ""), ("--tls-listen", "127.0.0.1:1")),
    ] {
        assert_eq!(flags(&[bad, rest]).problems().len(), 1, "{bad:?}");
    }
}

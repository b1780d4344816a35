//! The TLS annotations of a Service: valid and invalid values.

use std::collections::BTreeMap;
use std::sync::Arc;

use rouse_kube::objects::service_summary::{DataLookup, DataRef, PemBytes, TlsAnnotations, TlsFacts};

fn annotations_of(annotations: &[(&str, &str)]) -> TlsAnnotations {
    let pair = |(name, text): &(&str, &str)| (format!("rouse.dev/upstream-{name}"), (*text).to_owned());
    let annotations: BTreeMap<String, String> = annotations.iter().map(pair).collect();
    TlsAnnotations::read("shop", &annotations)
}

/// The result if every object has every entry, with the entry's name as its content.
fn settled(annotations: &[(&str, &str)]) -> TlsFacts {
    let entry = |wanted: &DataRef, key: &str| PemBytes::from(format!("{wanted} {key}").into_bytes());
    let all =
        |wanted: &DataRef| -> DataLookup { Ok(wanted.keys.iter().map(|key| entry(wanted, key)).collect()) };
    annotations_of(annotations).resolve(|wanted| Some(all(wanted))).unwrap()
}

#[test]
fn every_good_value_is_read() {
    assert_eq!(settled(&[]), TlsFacts::default());
    assert_eq!((settled(&[("tls", "true")]).on, settled(&[("tls", "false")]).on), (Some(true), Some(false)));
    for (text, expected) in [
        ("cart", "cart"),
        ("Cart.Example.COM.", "cart.example.com"),
        ("10.0.0.1", "10.0.0.1"),
        ("FD00::1", "fd00::1"),
    ] {
        assert_eq!(settled(&[("server-name", text)]).server_name.as_deref(), Some(expected));
    }
    for (text, expected) in [
        ("configmap/roots", "ConfigMap shop/roots ca.crt"),
        ("configmap/roots/bundle.pem", "ConfigMap shop/roots bundle.pem"),
        ("secret/roots", "Secret shop/roots ca.crt"),
        ("secret/ro.ots/Tls_1", "Secret shop/ro.ots Tls_1"),
    ] {
        let facts = settled(&[("ca", text)]);
        assert_eq!((facts.ca.as_deref(), &facts.fault), (Some(expected.as_bytes()), &None), "{text}");
    }
    let (certificate, key) = settled(&[("client-cert", "gateway")]).client.unwrap();
    assert_eq!(
        (&*certificate, &*key),
        (&b"Secret shop/gateway tls.crt"[..], &b"Secret shop/gateway tls.key"[..])
    );
}

#[test]
fn every_bad_value_is_a_fault_that_names_what_is_allowed() {
    for (name, texts, allowed) in [
        ("tls", &["", "yes", "True", "1"][..], "expected true or false"),
        ("server-name", &["", "a b", "*.x", "a:443", "a..b", "-/"], "expected a DNS name or an IP address"),
        (
            "ca",
            &[
                "",
                "roots",
                "secret/",
                "secret//x",
                "secret/a/",
                "Secret/a",
                "secret/../b",
                "secret/a/b/c",
                "pod/a",
                "secret/A",
            ],
            "expected configmap/NAME, configmap/NAME/KEY, secret/NAME or secret/NAME/KEY",
        ),
        (
            "client-cert",
            &["", "secret/a", "../a", "A", "a,b"],
            "expected the name of a Secret with tls.crt and tls.key",
        ),
    ] {
        for text in texts {
            let facts = settled(&[(name, text)]);
            let fault = facts.fault.as_deref().unwrap_or_default();
            assert_eq!(fault, format!("annotation rouse.dev/upstream-{name} is {text:?}: {allowed}"));
            assert!(facts.ca.is_none() && facts.client.is_none() && facts.server_name.is_none());
        }
    }
    let both = settled(&[("tls", "maybe"), ("ca", "x"), ("client-cert", "gateway")]);
    assert!(both.fault.unwrap().contains("expected true or false; annotation rouse.dev/upstream-ca is"));
    assert_eq!(both.on, Some(true), "a switch that cannot be read is never off");
}

#[test]
fn without_tls_nothing_is_read_and_nothing_is_wrong() {
    let off = annotations_of(&[
        ("tls", "false"),
        ("ca", "secret/roots"),
        ("client-cert", "A"),
        ("server-name", ""),
    ]);
    assert_eq!(off.wanted().count(), 0);
    let facts = off.resolve(|_| None).unwrap();
    assert_eq!(facts, TlsFacts { on: Some(false), ..TlsFacts::default() });
}

#[test]
fn what_is_not_known_yet_settles_nothing() {
    let half = annotations_of(&[("ca", "secret/roots"), ("client-cert", "gateway"), ("server-name", "x")]);
    assert_eq!(
        half.wanted().map(ToString::to_string).collect::<Vec<_>>(),
        ["Secret shop/roots", "Secret shop/gateway"]
    );
    let roots: DataLookup = Ok(vec![Arc::from(&b"x"[..])]);
    assert_eq!(half.resolve(|wanted| (&*wanted.name == "roots").then(|| roots.clone())), None);
    let refused = half.resolve(|wanted| Some(Err(format!("no {wanted}").into()))).unwrap();
    assert_eq!(refused.fault.as_deref(), Some("no Secret shop/roots; no Secret shop/gateway"));
    let meanwhile = half.unresolved();
    assert_eq!(
        meanwhile.fault.as_deref(),
        Some("Secret shop/roots or Secret shop/gateway has not been read yet")
    );
    assert_eq!(meanwhile.server_name.as_deref(), Some("x"));
}

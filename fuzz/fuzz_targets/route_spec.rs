//! Fuzzes both kinds of route objects and the annotations of Services with arbitrary JSON: a consistent route, or faults.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rouse_kube::objects::Meta;
use rouse_kube::objects::route::{RouteKind, RouteObject, RouteSpec, RuleSpec, read};
use rouse_kube::objects::service_summary::TlsAnnotations;

fuzz_target!(|bytes: &[u8]| {
    let Ok(object) = serde_json::from_slice::<RouteObject>(bytes) else { return };
    for kind in [RouteKind::InterceptorRoute, RouteKind::HttpScaledObject] {
        match read(kind, &object) {
            Ok(spec) => check(&spec, &object.metadata),
            Err(faults) => {
                assert!(!faults.is_empty() && faults.iter().all(|fault| !fault.is_empty()));
                assert_eq!(read(kind, &object), Err(faults));
            }
        }
    }
    tls(&object.metadata);
});

fn check(spec: &RouteSpec, meta: &Meta) {
    assert_eq!((&*spec.key.namespace, &*spec.key.name), (meta.namespace(), meta.name.as_str()));
    let targets = [Some(&spec.target), spec.cold_start.fallback.as_ref()].into_iter().flatten();
    for target in targets {
        // A route cannot refer to another namespace.
        assert_eq!(target.service.namespace(), meta.namespace());
    }
    let statics = spec.static_routes.iter().flat_map(|stat| &stat.rules);
    for RuleSpec { hosts, paths, .. } in spec.rules.iter().chain(statics) {
        assert!(
            hosts.iter().all(|host| !host.is_empty() && !host.bytes().any(|byte| byte.is_ascii_uppercase()))
        );
        assert!(paths.iter().all(|path| path.starts_with('/')));
    }
    assert!(spec.scaling.max.is_none_or(|max| max > 0 && spec.scaling.min <= max));
    let quiet = &spec.no_wake;
    for list in [&quiet.paths, &quiet.methods, &quiet.agents] {
        // An empty entry would match every request.
        assert!(list.len() <= 32 && list.iter().all(|one| !one.is_empty()));
    }
    let off = meta.annotations.get("rouse.dev/upstream-verify").is_some_and(|text| text == "false");
    assert_eq!(spec.verify_upstream, !off);
}

fn tls(meta: &Meta) {
    let annotations = TlsAnnotations::read(meta.namespace(), &meta.annotations);
    for wanted in annotations.wanted() {
        // The name becomes part of a request to the API server.
        let plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
        assert!(!wanted.name.is_empty() && wanted.name.bytes().all(plain) && !wanted.name.contains(".."));
        assert_eq!(&*wanted.namespace, meta.namespace());
    }
    let facts = annotations.resolve(|_| Some(Err("nothing".into()))).expect("everything was looked at");
    let said = meta.annotations.get("rouse.dev/upstream-tls").map(String::as_str);
    // Off only if the annotation says so explicitly.
    assert_eq!(facts.on == Some(false), said == Some("false"));
    assert_eq!(facts.on.is_none(), said.is_none());
    assert!(facts.fault.is_some() || annotations.wanted().next().is_none());
}

//! Route matching by host, path and headers, for `InterceptorRoute` and `HTTPScaledObject`.

use std::collections::BTreeMap;

use http::StatusCode;
use rouse_e2e::client::session;
use rouse_e2e::wait::patiently;
use serde_json::{Value, json};

use crate::app::App;
use crate::harness::{Case, trial};
use crate::test_namespace::TestNamespace;

pub(crate) const TRIALS: &[Case] = &[trial!(requests_take_the_route_that_fits_best)];

/// A request (host, path, headers), and the route that it should take.
type Asked<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], Option<&'a str>);

/// The routes, in the order of creation: a name and the rules. `NS` stands for the namespace.
fn routes() -> Vec<(&'static str, Value)> {
    vec![
        ("two-hosts", json!([{ "hosts": ["one.NS.test", "Two.NS.test"] }])),
        ("wildcard", json!([{ "hosts": ["*.wild.NS.test"] }])),
        ("longer-wildcard", json!([{ "hosts": ["*.deep.wild.NS.test"] }])),
        ("exact", json!([{ "hosts": ["known.wild.NS.test"] }])),
        ("path-alone", json!([{ "paths": [{ "value": "/NS" }] }])),
        ("any-path", json!([{ "hosts": ["paths.NS.test"] }])),
        ("path", json!([{ "hosts": ["paths.NS.test"], "paths": [{ "value": "/api" }] }])),
        (
            "longer-path",
            json!([{ "hosts": ["paths.NS.test"], "paths": [{ "value": "/api/v2" }, { "value": "/new/" }] }]),
        ),
        (
            "path-and-header",
            json!([{
                "hosts": ["paths.NS.test"],
                "paths": [{ "value": "/api/v2/beta" }],
                "headers": [{ "name": "X-Beta" }],
            }]),
        ),
        ("header-exact", headers(&json!([{ "name": "X-Tier", "value": "gold" }]))),
        ("header-present", headers(&json!([{ "name": "x-tier" }]))),
        ("two-headers", headers(&json!([{ "name": "x-tier", "value": "gold" }, { "name": "x-canary" }]))),
        (
            "several-rules",
            json!([
                { "hosts": ["several.NS.test"], "paths": [{ "value": "/a" }] },
                { "hosts": ["another.NS.test"], "headers": [{ "name": "x-b", "value": "1" }] },
            ]),
        ),
    ]
}

fn headers(headers: &Value) -> Value {
    json!([{ "hosts": ["headers.NS.test"], "headers": headers }])
}

/// The name of the `HTTPScaledObject` beside them.
const SCALED: &str = "scaled";

const CASES: &[Asked<'static>] = &[
    ("one.NS.test", "/", &[], Some("two-hosts")),
    ("two.NS.test", "/", &[], Some("two-hosts")),
    ("ONE.NS.test:8080", "/any/path", &[], Some("two-hosts")),
    ("three.NS.test", "/", &[], None),
    ("any.wild.NS.test", "/", &[], Some("wildcard")),
    ("any.other.wild.NS.test", "/", &[], Some("wildcard")),
    ("any.deep.wild.NS.test", "/", &[], Some("longer-wildcard")),
    ("known.wild.NS.test", "/", &[], Some("exact")),
    ("wild.NS.test", "/", &[], None),
    ("nobody.NS.test", "/NS/below", &[], Some("path-alone")),
    ("nobody.NS.test", "/NSS", &[], None),
    ("paths.NS.test", "/", &[], Some("any-path")),
    ("paths.NS.test", "/apis", &[], Some("any-path")),
    ("paths.NS.test", "/api", &[], Some("path")),
    ("paths.NS.test", "/api/v1", &[], Some("path")),
    ("paths.NS.test", "/api/v2", &[], Some("longer-path")),
    ("paths.NS.test", "/api/v22", &[], Some("path")),
    ("paths.NS.test", "/new/thing", &[], Some("longer-path")),
    ("paths.NS.test", "/api/v2/beta", &[("x-beta", "whatever")], Some("path-and-header")),
    // The headers of the longest path do not match, so the next route is tried.
    ("paths.NS.test", "/api/v2/beta", &[], Some("longer-path")),
    ("headers.NS.test", "/", &[("x-tier", "gold")], Some("header-exact")),
    ("headers.NS.test", "/", &[("x-tier", "Gold")], Some("header-present")),
    ("headers.NS.test", "/", &[("x-tier", "")], Some("header-present")),
    ("headers.NS.test", "/", &[("x-tier", "gold"), ("x-canary", "1")], Some("two-headers")),
    ("headers.NS.test", "/", &[("x-canary", "1")], None),
    ("several.NS.test", "/a/1", &[], Some("several-rules")),
    ("several.NS.test", "/b", &[], None),
    ("another.NS.test", "/b", &[("x-b", "1")], Some("several-rules")),
    ("another.NS.test", "/a", &[], None),
    ("scaled.NS.test", "/shop", &[("x-key", "yes")], Some(SCALED)),
    ("scaled.NS.test", "/cart/7", &[("x-key", "yes")], Some(SCALED)),
    ("more.NS.test", "/shop", &[("x-key", "yes")], Some(SCALED)),
    ("scaled.NS.test", "/shop", &[("x-key", "no")], None),
    ("scaled.NS.test", "/", &[("x-key", "yes")], None),
];

/// One pod behind one Service: each route leads to a port of its own, which the pod logs with each request.
async fn requests_take_the_route_that_fits_best(space: TestNamespace) {
    let here = |text: &str| text.replace("NS", space.name());
    let routes = routes();
    let names: Vec<&str> = routes.iter().map(|(name, _)| *name).chain([SCALED]).collect();
    let ports: Vec<(String, u16)> =
        (8080..).take(names.len()).map(|port| (format!("p{port}"), port)).collect();
    let borrowed: Vec<(&str, u16)> = ports.iter().map(|(name, port)| (name.as_str(), *port)).collect();
    let of_service: Vec<Value> = borrowed
        .iter()
        .map(|(name, port)| json!({ "name": name, "port": port - 8000, "targetPort": port }))
        .collect();
    let app = App::new("app").replicas(1).container_ports(&borrowed).service_ports(&of_service);
    space.run(&app).await;
    for ((name, rules), (port_name, port)) in routes.iter().zip(&ports) {
        let rules: Value = serde_json::from_str(&here(&rules.to_string())).unwrap();
        let route = space.route("app").named(name).spec(&json!({ "rules": rules }));
        // Both ways to name a port.
        let route = if port % 2 == 0 { route.port(port - 8000) } else { route.port_name(port_name) };
        space.apply(route.object()).await;
    }
    let scaled = space.route("app").named(SCALED).hosts(&[&here("scaled.NS.test"), &here("more.NS.test")]);
    let scaled = scaled.port_name(&ports.last().expect("ports").0).spec(&json!({
        "pathPrefixes": ["/shop", "/cart"],
        "headers": [{ "name": "X-Key", "value": "yes" }],
    }));
    space.apply(scaled.scaled_object()).await;
    let [pod] = &space.ready_pods("app", 1).await[..] else { panic!("one pod") };
    let gateway = space.gateway().await;

    for (at, (host, path, headers, route)) in CASES.iter().enumerate() {
        let answer =
            session::get_with(&gateway.target(&here(host)), &format!("{}?case={at}", here(path)), headers)
                .await;
        // The app also answers 404 for an unknown path, but without this header.
        let refused = answer.header("x-rouse-error");
        let expected = if route.is_some() { "" } else { "no_route" };
        assert_eq!(refused, expected, "{host}{path} {headers:?}: {} {}", answer.status, answer.text());
        assert!(route.is_some() || answer.status == StatusCode::NOT_FOUND, "{host}{path}: {}", answer.status);
    }

    let count = CASES.iter().filter(|(.., route)| route.is_some()).count();
    let log = patiently("all requests in the pod's log", async || {
        Some(space.requests_seen_by(&pod.name).await).filter(|log| log.len() >= count)
    })
    .await;
    assert_eq!(log.len(), count, "each once: {log:#?}");
    let port_of: BTreeMap<String, u16> =
        log.iter().map(|line| (text(&line["uri"]), local_port(line))).collect();
    for (at, (host, path, headers, route)) in CASES.iter().enumerate() {
        let Some(route) = route else { continue };
        let uri = format!("{}?case={at}", here(path));
        let taken = names[usize::from(port_of[&uri] - 8080)];
        assert_eq!(taken, *route, "{host}{path} {headers:?}");
    }
    gateway.stop().await;
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn local_port(line: &Value) -> u16 {
    let port = line["local"].as_str().and_then(|local| local.rsplit_once(':')?.1.parse().ok());
    port.unwrap_or_else(|| panic!("no port in {line}"))
}

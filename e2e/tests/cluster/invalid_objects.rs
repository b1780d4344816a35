//! Invalid objects: the API server refuses them or their status gives the reason, and a route's last good version serves.

use http::StatusCode;
use kube::api::{Patch, PatchParams};
use rouse_e2e::client::session;
use rouse_e2e::wait::patiently;
use serde_json::{Value, json};

use crate::app::App;
use crate::cluster::{self, MANAGER};
use crate::harness::{Case, trial};
use crate::identity;
use crate::test_namespace::{Kind, ROUTE, SERVICE, TestNamespace};

pub(crate) const TRIALS: &[Case] = &[
    trial!(what_cannot_be_meant_is_refused),
    trial!(the_last_good_version_of_a_route_serves),
    trial!(what_a_route_lacks_is_told_until_it_is_there),
];

const SCALED: Kind = ("http.keda.sh/v1alpha1", "HTTPScaledObject");
const CONFIG_MAP: Kind = ("v1", "ConfigMap");

/// Merged into a spec: every request gets this text, without a pod.
fn always(body: &str) -> Value {
    json!({ "staticRoutes": [{ "response": { "body": body }, "responseMode": "Always" }] })
}

/// Refused by the API server where the CRDs of `deploy/crds` are installed, otherwise reported by a condition.
async fn what_cannot_be_meant_is_refused(space: TestNamespace) {
    space.apply(App::new("shop").service()).await;
    let gateway = space.gateway().await;
    let host = space.host("shop");
    let table = [
        ("two-ports", json!({ "target": { "portName": "http" } }), "port"),
        ("no-service", json!({ "target": { "service": "" } }), "service"),
        ("port-of-a-host", json!({ "rules": [{ "hosts": ["shop.test:80"] }] }), "hosts"),
        ("bare-path", json!({ "rules": [{ "hosts": [host], "paths": [{ "value": "api" }] }] }), "path"),
        ("odd-header", json!({ "rules": [{ "hosts": [host], "headers": [{ "name": "a b" }] }] }), "header"),
        ("odd-timeout", json!({ "timeouts": { "readiness": "soon" } }), "readiness"),
        (
            "fine-grained",
            json!({ "scalingMetric": { "requestRate": { "targetValue": 1, "granularity": "100ms" } } }),
            "granularity",
        ),
        // Rules that no CRD expresses.
        (
            "short-window",
            json!({ "scalingMetric": { "requestRate": { "targetValue": 1, "window": "1s", "granularity": "2s" } } }),
            "window",
        ),
        (
            "two-bodies",
            json!({ "staticRoutes": [{ "response": { "body": "a", "bodyFromConfigMap": { "name": "b" } } }] }),
            "bodyFromConfigMap",
        ),
    ];
    for (name, wrong, word) in &table {
        let route = space.route("shop").named(name).spec(wrong).object();
        let api = cluster::api_of(space.client(), Some(space.name()), &route);
        let applied = api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&route)).await;
        let words = match applied {
            Err(kube::Error::Api(status)) => status.message,
            Err(error) => panic!("{name}: {error}"),
            Ok(_) => {
                let accepted = space.condition(name, "Accepted", "False").await;
                assert_eq!(accepted["reason"], "Invalid");
                let ready = space.condition(name, "Ready", "False").await;
                assert_eq!(ready["reason"], "Invalid", "there was no good version before");
                accepted["message"].as_str().unwrap().to_owned()
            }
        };
        assert!(words.contains(word), "{name}: {word} in {words:?}");
    }
    let answer = session::get(&gateway.target(&host), "/").await;
    // Their host is claimed nevertheless: no other namespace gets it.
    assert_eq!(answer.header("x-rouse-error"), "no_service", "none of them serves: {}", answer.text());
    gateway.stop().await;
}

async fn the_last_good_version_of_a_route_serves(space: TestNamespace) {
    space.apply(App::new("shop").service()).await;
    let route = || space.route("shop");
    space.apply(route().spec(&always("first")).object()).await;
    space
        .apply(
            space
                .route("scaled")
                .service("shop")
                .spec(&json!({ "timeouts": { "request": "1s" } }))
                .scaled_object(),
        )
        .await;
    let gateway = space.gateway().await;
    let target = gateway.target(&space.host("shop"));
    space.condition("shop", "Accepted", "True").await;
    let serves = async || session::get(&target, "/").await.text();
    assert_eq!(serves().await, "first");

    let bad = route().annotate("direct-pod-routing", "sometimes").annotate("min", "many");
    space.apply(bad.spec(&always("second")).object()).await;
    // A change of annotations does not change the generation; the condition must be updated nevertheless.
    let accepted = space.condition("shop", "Accepted", "False").await;
    let words = accepted["message"].as_str().unwrap();
    for word in [
        "rouse.dev/direct-pod-routing",
        "sometimes",
        "cold-start-only",
        "rouse.dev/min",
        "many",
        "last good version",
    ] {
        assert!(words.contains(word), "{word} in {words:?}");
    }
    assert_eq!(space.condition("shop", "Ready", "True").await["message"], "the last good version serves");
    assert_eq!(serves().await, "first");

    space.apply(route().spec(&always("third")).object()).await;
    space.condition("shop", "Accepted", "True").await;
    patiently("the newest version to serve", async || (serves().await == "third").then_some(())).await;

    // An `HTTPScaledObject` has only one condition.
    let annotation = |value: Value| json!({ "metadata": { "annotations": { "rouse.dev/probe": value } } });
    let told = |object: &Value| {
        let ours = |is: &&Value| is["message"].as_str().is_some_and(|message| message.starts_with("Rouse: "));
        let condition = object["status"]["conditions"].as_array()?.iter().find(ours)?;
        assert_eq!((&condition["type"], &condition["status"]), (&json!("Ready"), &json!("True")));
        condition["message"].as_str().map(str::to_owned)
    };
    let bad = |object: &Value| told(object).is_some_and(|words| words.contains("rouse.dev/probe"));
    space.patch(SCALED, "scaled", annotation(json!("perhaps"))).await;
    space.until(SCALED, "scaled", "to report the fault", bad).await;
    let late = session::get(&gateway.target(&space.host("scaled")), "/").await;
    assert_eq!(late.status, StatusCode::GATEWAY_TIMEOUT, "the good version keeps serving: {}", late.text());
    space.patch(SCALED, "scaled", annotation(Value::Null)).await;
    space.until(SCALED, "scaled", "to report no fault", |object| !bad(object)).await;
    gateway.stop().await;
}

async fn what_a_route_lacks_is_told_until_it_is_there(space: TestNamespace) {
    identity::grant_named(&space, "configmaps", &["pages"]).await;
    let cold = json!({ "coldStart": {
        "placeholder": { "response": { "statusCode": 202, "bodyFromConfigMap": { "name": "pages" } } },
        "fallback": { "service": { "name": "spare", "port": 80 } },
    } });
    space.apply(space.route("shop").spec(&cold).object()).await;
    let gateway = space.gateway().await;
    let target = gateway.target(&space.host("shop"));
    for (kind, word) in [("NoService", "shop"), ("BadFallback", "spare"), ("MissingBody", "pages")] {
        let condition = space.condition("shop", kind, "True").await;
        assert!(condition["message"].as_str().unwrap().contains(word), "{condition}");
    }
    assert_eq!(space.condition("shop", "Ready", "False").await["reason"], "NoService");
    assert_eq!(session::get(&target, "/").await.header("x-rouse-error"), "no_service");

    let gone = async |kind: &'static str| {
        let lacks = |route: &Value| {
            let conditions = route["status"]["conditions"].as_array();
            conditions.is_some_and(|all| !all.is_empty() && all.iter().all(|is| is["type"] != kind))
        };
        space.until(ROUTE, "shop", &format!("not to be {kind} any more"), lacks).await;
    };
    space.apply(App::new("shop").service()).await;
    gone("NoService").await;
    space.apply(App::new("spare").service()).await;
    gone("BadFallback").await;
    assert_eq!(space.condition("shop", "Ready", "False").await["reason"], "MissingBody");
    let page = json!({ "apiVersion": CONFIG_MAP.0, "kind": CONFIG_MAP.1, "metadata": { "name": "pages" }, "data": { "page": "soon" } });
    space.apply(page).await;
    gone("MissingBody").await;
    space.condition("shop", "Ready", "True").await;
    let nobody = space.condition("shop", "NoScaleTarget", "True").await;
    assert!(!nobody["message"].as_str().unwrap().is_empty());
    let answer = session::get(&target, "/").await;
    assert_eq!((answer.status.as_u16(), &*answer.text()), (202, "soon"));

    // The conditions return when the objects are deleted.
    space.delete(SERVICE, "spare").await;
    space.condition("shop", "BadFallback", "True").await;
    space.delete(CONFIG_MAP, "pages").await;
    space.condition("shop", "MissingBody", "True").await;
    let answer = session::get(&target, "/").await;
    assert_eq!((answer.status.as_u16(), &*answer.text()), (202, ""));
    gateway.stop().await;
}

//! The three timeouts of a route: each answers 504 with its own error code.

use http::{Method, StatusCode};
use rouse_e2e::body;
use rouse_e2e::client::session::{self, Http};
use serde_json::{Value, json};

use crate::app::App;
use crate::harness::{Case, trial};
use crate::test_namespace::TestNamespace;

pub(crate) const TRIALS: &[Case] = &[
    trial!(each_timeout_has_an_error_of_its_own),
    trial!(a_response_that_has_begun_is_cut_at_the_end_of_its_time),
];

/// A Service that has neither pods nor a workload.
fn empty() -> Value {
    let mut service = App::new("empty").service();
    service["spec"]["selector"] = json!({ "app": "nobody" });
    service
}

async fn each_timeout_has_an_error_of_its_own(space: TestNamespace) {
    space.run(&App::new("shop").replicas(1)).await;
    space.apply(empty()).await;
    // The other timeouts are set, but longer.
    let table = [
        (
            "readiness",
            "empty",
            json!({ "readiness": "1s", "request": "5m", "responseHeader": "5m" }),
            "readiness_timeout",
        ),
        (
            "response-header",
            "shop",
            json!({ "readiness": "5m", "request": "5m", "responseHeader": "1s" }),
            "response_timeout",
        ),
        (
            "request",
            "shop",
            json!({ "readiness": "5m", "request": "1s", "responseHeader": "5m" }),
            "request_timeout",
        ),
        // Without a readiness timeout and a ready pod, the request timeout limits the hold.
        ("request-held", "empty", json!({ "request": "1s", "responseHeader": "5m" }), "readiness_timeout"),
    ];
    for (name, service, timeouts, _) in &table {
        // With a scale target; without one, the wait would end at once.
        let route = space.route(name).service(service).annotate("scale-target", "apps/v1/Deployment/shop");
        space.apply(route.spec(&json!({ "timeouts": timeouts })).object()).await;
        let mut timeouts = timeouts.clone();
        if let Some(readiness) = timeouts.as_object_mut().unwrap().remove("readiness") {
            timeouts["conditionWait"] = readiness;
        }
        let scaled = format!("scaled-{name}");
        let spec = json!({ "timeouts": timeouts, "scaleTargetRef": { "name": "shop" } });
        space.apply(space.route(&scaled).service(service).spec(&spec).scaled_object()).await;
    }
    space.ready_pods("shop", 1).await;
    let gateway = space.gateway().await;
    for (name, _, _, code) in &table {
        for host in [space.host(name), space.host(&format!("scaled-{name}"))] {
            let target = gateway.target(&host);
            let late = session::get(&target, "/hang").await;
            let said = (late.status, late.header("x-rouse-error"));
            assert_eq!(said, (StatusCode::GATEWAY_TIMEOUT, *code), "{host}: {}", late.text());
            if *code != "readiness_timeout" {
                let in_time = session::get(&target, "/headers").await;
                assert_eq!(in_time.status, StatusCode::OK, "{host}: {}", in_time.text());
            }
        }
    }
    let metrics = gateway.admin.metrics().await;
    let counted = |code| metrics.count("rouse_requests_total", &[("code", code)]);
    assert_eq!((counted("504"), counted("200")), (8, 4));
    gateway.stop().await;
}

async fn a_response_that_has_begun_is_cut_at_the_end_of_its_time(space: TestNamespace) {
    space.run(&App::new("shop").replicas(1)).await;
    space.apply(space.route("shop").spec(&json!({ "timeouts": { "request": "3s" } })).object()).await;
    space.ready_pods("shop", 1).await;
    let gateway = space.gateway().await;
    let mut client = Http::one(&gateway.target(&space.host("shop"))).await;
    let request = client.request(Method::GET, "/sse/2/next").body(body::empty()).unwrap();
    let response = client.send(request).await;
    assert_eq!(response.status(), StatusCode::OK);
    let cut = session::whole(response).await;
    assert!(cut.is_err(), "the gateway added text to the response, or ended it as if complete: {cut:?}");
    gateway.stop().await;
}

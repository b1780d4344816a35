//! Cold starts, after KEDA's own tests: with a body, scale to zero during a request, a named scale target, and requests
//! that wake no app.

use std::net::SocketAddr;

use http::{Method, StatusCode};
use rouse_e2e::body;
use rouse_e2e::client::session::{self, Http};
use rouse_e2e::wait::patiently;
use serde_json::json;

use crate::app::App;
use crate::harness::{Case, trial};
use crate::test_namespace::{POD, TestNamespace};

pub(crate) const TRIALS: &[Case] = &[
    trial!(a_body_waits_with_its_request),
    trial!(an_app_taken_to_zero_finishes_what_it_has_and_is_woken_anew),
    trial!(an_http_scaled_object_says_which_workload_is_woken),
    trial!(quiet_requests_wake_nobody),
];

async fn a_body_waits_with_its_request(space: TestNamespace) {
    const LEN: u64 = 300_000;
    space.serve(&App::new("shop")).await;
    let gateway = space.gateway().await;
    let mut client = Http::one(&gateway.target(&space.host("shop"))).await;
    let cold = client.post("/sink", body::patterned(LEN, |_| {})).await;
    assert_eq!((cold.status, cold.header("x-rouse-cold-start")), (StatusCode::OK, "true"), "{}", cold.text());
    let got = cold.json();
    assert_eq!((&got["count"], &got["intact"]), (&json!(LEN), &json!(true)), "every byte, in order");
    let warm = client.post("/echo", body::full("and a short one")).await;
    assert_eq!((warm.status, &*warm.text()), (StatusCode::OK, "and a short one"));
    assert_eq!(warm.header("x-rouse-cold-start"), "false");
    gateway.stop().await;
}

async fn an_app_taken_to_zero_finishes_what_it_has_and_is_woken_anew(space: TestNamespace) {
    // Long enough for the pod to be terminated meanwhile.
    const TAKES: &str = "/slow/15000";
    space.serve(&App::new("shop").replicas(1).grace(60)).await;
    let [old] = &space.ready_pods("shop", 1).await[..] else { panic!("one pod") };
    let gateway = space.gateway().await;
    let target = gateway.target(&space.host("shop"));
    let mut under_way = session::get_many(&target, TAKES, 1);
    let service = format!("{}/shop", space.name());
    patiently("the request to be at the pod", async || {
        (gateway.admin.service_named(&service).await.in_flight == 1).then_some(())
    })
    .await;

    space.scale("shop", 0).await;
    space
        .until(POD, &old.name, "to be terminating", |pod| !pod["metadata"]["deletionTimestamp"].is_null())
        .await;
    // The old pod has stopped listening, or is about to. It serves the next request, or that request wakes a new pod.
    let next = session::get(&target, "/headers").await;
    assert_eq!(next.status, StatusCode::OK, "{}", next.text());
    let finished = under_way.join_next().await.expect("a request").expect("an answer");
    assert_eq!((finished.status, &*finished.text()), (StatusCode::OK, "slow\n"));

    patiently("the old pod to be gone", async || space.get(POD, &old.name).await.is_none().then_some(()))
        .await;
    let last = session::get(&target, "/headers").await;
    assert_eq!(last.status, StatusCode::OK, "{}", last.text());
    assert_eq!(space.replicas("shop").await, 1, "the app was woken again");
    let [new] = &space.ready_pods("shop", 1).await[..] else { panic!("one pod") };
    assert_ne!(new.name, old.name);
    assert_eq!(last.json()["pod"], new.name);
    gateway.stop().await;
}

async fn an_http_scaled_object_says_which_workload_is_woken(space: TestNamespace) {
    // Two workloads match the Service's selector: only the annotation selects one.
    let tier = json!({ "spec": { "template": { "metadata": { "labels": { "tier": "web" } } } } });
    let front =
        json!({ "metadata": { "name": "front" }, "spec": { "selector": { "app": null, "tier": "web" } } });
    let (shop, decoy) = (App::new("shop"), App::new("decoy"));
    space.apply(decoy.deployment_with(tier.clone()).deployment()).await;
    let shop = shop.deployment_with(tier).service_with(front);
    space.run(&shop).await;
    let route = space.route("shop").service("front").spec(&json!({
        "scaleTargetRef": { "name": "shop", "kind": "Deployment", "apiVersion": "apps/v1" },
    }));
    space.apply(route.scaled_object()).await;
    let gateway = space.gateway().await;
    let answer = session::get(&gateway.target(&space.host("shop")), "/headers").await;
    assert_eq!((answer.status, answer.header("x-rouse-cold-start")), (StatusCode::OK, "true"));
    assert_eq!((space.replicas("shop").await, space.replicas("decoy").await), (1, 0));
    gateway.stop().await;
}

async fn quiet_requests_wake_nobody(space: TestNamespace) {
    space.run(&App::new("shop")).await;
    let route = space
        .route("shop")
        .annotate("no-wake-paths", "/healthz,/robots.txt")
        .annotate("no-wake-methods", "OPTIONS")
        .annotate("no-wake-user-agents", "Googlebot");
    space.apply(route.object()).await;
    let gateway = space.gateway().await;
    let target = gateway.target(&space.host("shop"));
    let robot = [("user-agent", "Mozilla/5.0 (compatible; googlebot/2.1)")];
    let quiet = [
        (Method::GET, "/healthz", &[][..]),
        (Method::GET, "/robots.txt", &[]),
        (Method::OPTIONS, "/", &[]),
        (Method::GET, "/", &robot),
    ];
    let ask = async |(method, path, headers): &(Method, &str, &[(&str, &str)])| {
        let mut client = Http::one(&target).await;
        let mut request = client.request(method.clone(), path);
        for (name, value) in *headers {
            request = request.header(*name, *value);
        }
        client.whole(request.body(body::empty()).unwrap()).await
    };
    for quiet in &quiet {
        let answer = ask(quiet).await;
        assert_eq!(answer.header("x-rouse-error"), "not_woken", "{quiet:?}: {}", answer.text());
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{quiet:?}");
    }
    let wakes = async || gateway.admin.metrics().await.count("rouse_wakes_total", &[]);
    assert_eq!((wakes().await, space.replicas("shop").await), (0, 0));

    assert_eq!(session::get(&target, "/").await.status, StatusCode::OK, "any other request wakes the app");
    assert_eq!((wakes().await, space.replicas("shop").await), (1, 1));
    let [pod] = &space.ready_pods("shop", 1).await[..] else { panic!("one pod") };
    let [healthz, .., robot] = &quiet;
    assert_eq!(ask(healthz).await.text(), "ok\n", "now the pod answers them");
    let uid =
        session::get(&rouse_e2e::target::Target::plain(SocketAddr::from((pod.ip, 8080))), "/").await.text();
    assert_eq!(ask(robot).await.text(), uid);
    gateway.stop().await;
}

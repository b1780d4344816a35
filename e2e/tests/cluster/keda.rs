//! A drop-in for KEDA HTTP add-on's interceptor: the gateway started with KEDA's environment variables only.

use std::net::TcpListener;

use http::{Method, StatusCode};
use rouse_e2e::body;
use rouse_e2e::client::session::{self, Http};
use rouse_e2e::gateway::Launch;
use rouse_e2e::wait::patiently;
use serde_json::json;

use crate::app::App;
use crate::harness::{Case, trial};
use crate::test_namespace::{TestNamespace, programs};

pub(crate) const TRIALS: &[Case] = &[trial!(kedas_variables_alone_are_enough)];

/// Ports that were free just now: KEDA's variables cannot ask for any.
fn free_ports() -> [u16; 2] {
    let listeners = [TcpListener::bind("0.0.0.0:0").unwrap(), TcpListener::bind("0.0.0.0:0").unwrap()];
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// A gateway configured by environment variables only, with `KUBECONFIG` for the kubeconfig.
async fn with_variables(space: &TestNamespace) -> Launch {
    let launch = space.launch().await;
    let flags = ["--kubeconfig", "--listen", "--admin", "--shutdown-delay", "--watch-namespace"];
    let bare = flags.into_iter().fold(launch, Launch::without);
    bare.env("KUBECONFIG", space.files().join("gateway.kubeconfig").display())
        .env("KEDA_HTTP_WATCH_NAMESPACE", space.name())
        .env("KEDA_HTTP_SHUTDOWN_DELAY", "0s")
        .env("KEDA_HTTP_READINESS_TIMEOUT", "1500ms")
        .env("KEDA_HTTP_RESPONSE_HEADER_TIMEOUT", "1s")
        .env("KEDA_HTTP_REQUEST_TIMEOUT", "3s")
        .env("KEDA_HTTP_LOG_REQUESTS", "true")
}

async fn kedas_variables_alone_are_enough(space: TestNamespace) {
    let long = json!({ "timeouts": { "readiness": "5m", "request": "5m", "responseHeader": "5m" } });
    space.run(&App::new("shop")).await;
    space.apply(space.route("shop").spec(&long).object()).await;
    space.apply(space.route("plain").service("shop").object()).await;
    let mut empty = App::new("empty").service();
    empty["spec"]["selector"] = json!({ "app": "nobody" });
    space.apply(empty).await;
    let wait = json!({ "timeouts": { "request": "5m" } });
    // With a scale target; without one, the wait would end at once.
    let empty = space.route("empty").annotate("scale-target", "apps/v1/Deployment/shop");
    space.apply(empty.spec(&wait).object()).await;
    let [proxy, admin] = free_ports();
    let launch =
        with_variables(&space).await.env("KEDA_HTTP_PROXY_PORT", proxy).env("KEDA_HTTP_ADMIN_PORT", admin);
    let gateway = launch.clone().start(&programs()).await;
    assert_eq!((gateway.address.port(), gateway.admin.address().port()), (proxy, admin));
    let target = gateway.target(&space.host("shop"));
    for cold in ["true", "false"] {
        let answer = session::get(&target, "/headers").await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        for header in ["x-keda-http-cold-start", "x-rouse-cold-start"] {
            assert_eq!(answer.header(header), cold, "{header}");
        }
    }

    for (name, code) in [("empty", "readiness_timeout"), ("plain", "response_timeout")] {
        let late = session::get(&gateway.target(&space.host(name)), "/hang").await;
        assert_eq!(
            (late.status.as_u16(), late.header("x-rouse-error")),
            (504, code),
            "{name}: {}",
            late.text()
        );
    }
    // The response begins in time, but the request timeout expires before its end.
    let mut client = Http::one(&gateway.target(&space.host("plain"))).await;
    let request = client.request(Method::GET, "/sse/2/next").body(body::empty()).unwrap();
    let response = client.send(request).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(session::whole(response).await.is_err(), "cut after KEDA_HTTP_REQUEST_TIMEOUT");

    let metrics = gateway.admin.metrics().await;
    let of_shop =
        [("route_name", "shop"), ("route_namespace", space.name()), ("code", "200"), ("method", "GET")];
    let sum = |name| metrics.count(name, &of_shop);
    let counted = (sum("interceptor_request_count_total"), sum("interceptor_request_duration_seconds_count"));
    assert_eq!(counted, (2, 2));
    assert!(metrics.has("interceptor_request_concurrency") && metrics.has("rouse_requests_total"));
    let queue = gateway.admin.get("/queue").await.json();
    let shop = &queue[format!("{}/shop", space.name())];
    assert!(shop["Concurrency"].is_number() && shop["RequestCount"].as_u64() >= Some(2), "{queue}");
    let logged = |line: &str| line.contains("GET /headers HTTP/1.1").then_some(());
    gateway.output.find("a line for a request", logged).await;
    gateway.stop().await;

    // Two more settings: without the cold start header, and with a deprecated variable.
    let [proxy, admin] = free_ports();
    let launch = launch.env("KEDA_HTTP_PROXY_PORT", proxy).env("KEDA_HTTP_ADMIN_PORT", admin);
    let launch =
        launch.env("KEDA_HTTP_ENABLE_COLD_START_HEADER", "false").env("KEDA_CONDITION_WAIT_TIMEOUT", "2s");
    let gateway = launch.start(&programs()).await;
    let answer = patiently("an answer", async || {
        let answer = session::get(&gateway.target(&space.host("shop")), "/headers").await;
        Some(answer).filter(|answer| answer.status == StatusCode::OK)
    })
    .await;
    for header in ["x-keda-http-cold-start", "x-rouse-cold-start"] {
        assert_eq!(answer.header(header), "", "{header}");
    }
    let warned = |line: &str| {
        (line.contains("KEDA_CONDITION_WAIT_TIMEOUT") && line.contains("deprecated")).then_some(())
    };
    gateway.output.find("a warning", warned).await;
    gateway.stop().await;
}

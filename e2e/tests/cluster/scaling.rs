//! Scaling by the controller: from the load that gateways report, up, down and to zero, and never against a request.

use http::StatusCode;
use rouse_e2e::client::load::Load;
use rouse_e2e::client::session;
use rouse_e2e::controller::{Controller, ControllerLaunch};
use rouse_e2e::gateway::{Gateway, Launch};
use rouse_e2e::target::Target;
use rouse_e2e::wait::patiently;
use serde_json::{Value, json};

use crate::app::App;
use crate::authority::Authority;
use crate::harness::{Case, trial};
use crate::identity;
use crate::push::{is_ready, slice};
use crate::route::Route;
use crate::test_namespace::{POD, Pod, TestNamespace, programs};

pub(crate) const TRIALS: &[Case] = &[
    trial!(load_scales_an_app_up_and_its_end_scales_it_to_zero),
    trial!(a_request_in_flight_keeps_its_pod),
    trial!(a_route_that_does_not_ask_for_it_is_not_scaled),
    trial!(a_gateway_that_is_silent_keeps_the_pods),
    trial!(a_restarted_controller_scales_nothing_down_for_a_window),
];

/// The name in the certificate of the report listener.
const NAME: &str = "localhost";
const GATEWAYS: &str = "rouse-gateway";

/// A controller, and what gateways need to report to it.
pub(crate) struct Scaling {
    space: TestNamespace,
    controller: Controller,
    launch: ControllerLaunch,
    /// Given to the controllers that follow.
    address: String,
}

impl Scaling {
    /// A controller that scales the routes that ask for it, with no gateways yet.
    pub(crate) async fn start(space: &TestNamespace) -> Self {
        let authority = Authority::named("reports");
        authority.leaf(&[NAME]).write(space.files());
        std::fs::write(space.files().join("ca.crt"), authority.pem()).expect("a CA");
        // The Service whose endpoints must report.
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": GATEWAYS },
            "spec": { "clusterIP": "None", "selector": { "app": GATEWAYS }, "ports": [{ "name": "http", "port": 8080 }] },
        });
        space.apply(service).await;
        let launch = ControllerLaunch::new(space.kubeconfig())
            .flag("--pod-namespace", space.name())
            .flag("--watch-namespace", space.name());
        let (cert, key) = (space.files().join("tls.crt"), space.files().join("tls.key"));
        let controller = launch.clone().reports("127.0.0.1:0", &cert, &key).start(&programs()).await;
        let address = controller.reports.expect("an address for reports").to_string();
        controller.leads().await;
        Self { space: space.clone(), controller, launch: launch.reports(&address, &cert, &key), address }
    }

    /// A pod that stands for the gateway, which is a process of this machine: its name, its endpoint and its token.
    async fn gateway_pod(&self, name: &str) -> Pod {
        let mut pod = App::new(GATEWAYS).deployment()["spec"]["template"].take();
        let more = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": { "serviceAccountName": GATEWAYS },
        });
        crate::app::merge(&mut pod, &more);
        self.space.apply(pod).await;
        is_ready(&self.space, name).await
    }

    /// How a gateway is started that reports as this pod.
    async fn reporting(&self, pod: &Pod) -> Launch {
        let bound = json!({ "kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid });
        let spec =
            json!({ "audiences": ["rouse-report"], "expirationSeconds": 3600, "boundObjectRef": bound });
        let token = identity::token_of(&self.space, GATEWAYS, spec).await;
        let file = self.space.files().join(format!("{}.token", pod.name));
        std::fs::write(&file, token).expect("a token");
        let port = self.address.rsplit(':').next().unwrap_or_default();
        let launch = self.space.launch().await;
        launch
            .flag("--report-to", format!("https://{NAME}:{port}"))
            .flag("--report-ca", self.space.files().join("ca.crt").display())
            .flag("--report-token", file.display())
    }

    /// A gateway that reports.
    pub(crate) async fn gateway(&self, name: &str) -> Gateway {
        // The account of gateways.
        self.space.launch().await;
        let pod = self.gateway_pod(name).await;
        let gateway = self.reporting(&pod).await.start(&programs()).await;
        self.heard(1).await;
        gateway
    }

    /// The same on a control plane without nodes: the pod is an object, and its endpoint is written by hand.
    pub(crate) async fn gateway_without_nodes(&self, name: &str) -> Gateway {
        self.space.launch().await;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": { "serviceAccountName": GATEWAYS, "containers": [{ "name": "gateway", "image": "localhost/none:1" }] },
        });
        self.space.apply(pod).await;
        let status = json!({ "phase": "Running", "podIP": "10.98.0.1", "podIPs": [{ "ip": "10.98.0.1" }] });
        self.space.patch_status(POD, name, json!({ "status": status })).await;
        let pod = self.space.addressed_pod(name).await;
        self.space.apply(slice(GATEWAYS, &[(&pod, true)])).await;
        let gateway = self.reporting(&pod).await.start(&programs()).await;
        self.heard(1).await;
        gateway
    }

    /// Where KEDA asks.
    pub(crate) fn scaler(&self) -> String {
        self.controller.scaler.to_string()
    }

    pub(crate) async fn stop(self) {
        self.controller.stop().await;
    }

    /// Waits until the load of so many gateways is known.
    pub(crate) async fn heard(&self, count: u64) {
        patiently("the reports of gateways", async || {
            let metrics = self.controller.admin.metrics().await;
            (metrics.count("rouse_autoscaler_reporters", &[("state", "heard")]) == count).then_some(())
        })
        .await;
    }

    /// Waits until an app has so many replicas.
    pub(crate) async fn replicas(&self, app: &str, count: u64) {
        patiently(&format!("{count} replicas of {app}"), async || {
            (self.space.replicas(app).await == count).then_some(())
        })
        .await;
    }

    /// What the controller says of an app.
    pub(crate) async fn target(&self, app: &str) -> Value {
        let view = self.controller.scaling().await;
        let targets = view["targets"].as_array().expect("targets");
        targets.iter().find(|target| target["name"] == app).cloned().unwrap_or_default()
    }

    /// Waits until the last decision about an app has this reason.
    pub(crate) async fn reason(&self, app: &str, reason: &str) {
        patiently(&format!("the decision about {app} to be {reason}"), async || {
            (self.target(app).await["decision"]["reason"] == reason).then_some(())
        })
        .await;
    }
}

/// A route that asks to be scaled, by its rate: 3 requests a second for each pod. Its windows are as short as they may be.
fn route(space: &TestNamespace, app: &str) -> Route {
    let rate = json!({ "concurrency": null, "requestRate": { "targetValue": 3, "window": "6s" } });
    let spec = json!({ "scalingMetric": rate });
    space.route(app).spec(&spec).annotate("idle-after", "2s").annotate("max", "4").annotate("autoscale", "on")
}

async fn load_scales_an_app_up_and_its_end_scales_it_to_zero(space: TestNamespace) {
    let scaling = Scaling::start(&space).await;
    space.run(&App::new("shop")).await;
    space.apply(route(&space, "shop").object()).await;
    let gateway = scaling.gateway("gateway-0").await;
    let target = gateway.target(&space.host("shop"));
    // 0 to 1: the gateway's own.
    assert_eq!(session::get(&target, "/headers").await.status, StatusCode::OK);
    assert_eq!(space.replicas("shop").await, 1);
    // 1 to N, and not above the maximum.
    let load = Load::on(&target, 30);
    scaling.replicas("shop", 4).await;
    load.stop().await.assert_perfect();
    scaling.replicas("shop", 0).await;
    space.no_pods("shop").await;
    scaling.reason("shop", "at_zero").await;
    // And again.
    assert_eq!(session::get(&target, "/headers").await.header("x-rouse-cold-start"), "true");
    gateway.stop().await;
    scaling.stop().await;
}

async fn a_request_in_flight_keeps_its_pod(space: TestNamespace) {
    let scaling = Scaling::start(&space).await;
    let long = json!({ "timeouts": { "responseHeader": "5m", "request": "5m" } });
    for app in ["shop", "idle"] {
        space.run(&App::new(app)).await;
        space.apply(route(&space, app).spec(&long).object()).await;
    }
    let gateway = scaling.gateway("gateway-0").await;
    let target = gateway.target(&space.host("shop"));
    let mut waiting = session::get_many(&target, "/wait", 1);
    let [pod] = &space.ready_pods("shop", 1).await[..] else { panic!("one pod") };
    // An app whose request is over goes to zero: so there was time enough for the other.
    assert_eq!(session::get(&gateway.target(&space.host("idle")), "/headers").await.status, StatusCode::OK);
    scaling.replicas("idle", 0).await;
    assert_eq!(space.replicas("shop").await, 1, "{}", scaling.target("shop").await);
    Target::plain((pod.ip, 8080).into()).next().await;
    assert_eq!(waiting.join_next().await.expect("an answer").expect("an answer").status, StatusCode::OK);
    scaling.replicas("shop", 0).await;
    gateway.stop().await;
    scaling.stop().await;
}

async fn a_route_that_does_not_ask_for_it_is_not_scaled(space: TestNamespace) {
    let scaling = Scaling::start(&space).await;
    let gateway = scaling.gateway("gateway-0").await;
    space.run(&App::new("shop").replicas(2)).await;
    space.apply(space.route("shop").object()).await;
    space.run(&App::new("asks").replicas(2)).await;
    space.apply(route(&space, "asks").object()).await;
    // The other one shows when there was time enough.
    scaling.replicas("asks", 0).await;
    assert_eq!(space.replicas("shop").await, 2);
    assert_eq!(scaling.target("shop").await["state"], "not_enabled");
    gateway.stop().await;
    scaling.stop().await;
}

async fn a_gateway_that_is_silent_keeps_the_pods(space: TestNamespace) {
    let scaling = Scaling::start(&space).await;
    let gateway = scaling.gateway("gateway-0").await;
    // Serves, as its endpoint says, but does not report.
    let silent = scaling.gateway_pod("gateway-1").await;
    space.run(&App::new("shop").replicas(1)).await;
    space.apply(route(&space, "shop").object()).await;
    scaling.reason("shop", "reporter_silent").await;
    assert_eq!(space.replicas("shop").await, 1);
    // It is gone: it is forgotten.
    space.delete_now(POD, &silent.name).await;
    scaling.replicas("shop", 0).await;
    gateway.stop().await;
    scaling.stop().await;
}

async fn a_restarted_controller_scales_nothing_down_for_a_window(space: TestNamespace) {
    let mut scaling = Scaling::start(&space).await;
    space.run(&App::new("shop").replicas(1)).await;
    space.apply(route(&space, "shop").object()).await;
    let gateway = scaling.gateway("gateway-0").await;
    scaling.controller.signal(rustix::process::Signal::KILL);
    scaling.controller.ended().await;
    // The wake does not need a controller.
    space.scale("shop", 0).await;
    space.no_pods("shop").await;
    assert_eq!(session::get(&gateway.target(&space.host("shop")), "/headers").await.status, StatusCode::OK);
    scaling.controller = scaling.launch.clone().start(&programs()).await;
    scaling.controller.leads().await;
    scaling.heard(1).await;
    scaling.reason("shop", "warming_up").await;
    scaling.replicas("shop", 0).await;
    gateway.stop().await;
    scaling.stop().await;
}

//! What trials of scaling share: controllers, gateways that report to them, and routes that ask to be scaled.

use std::fs::Permissions;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;

use rouse_e2e::Programs;
use rouse_e2e::controller::{Controller, ControllerLaunch};
use rouse_e2e::gateway::{Gateway, Launch};
use rouse_e2e::wait::patiently;
use serde_json::{Value, json};

use crate::app::App;
use crate::authority::Authority;
use crate::identity;
use crate::push::{is_ready, slice};
use crate::route::Route;
use crate::test_namespace::{POD, Pod, TestNamespace, programs};

/// The name in the certificate of the report listener.
const NAME: &str = "localhost";
const GATEWAYS: &str = "rouse-gateway";

/// A controller, and what gateways need to report to it.
pub(crate) struct Scaling {
    space: TestNamespace,
    pub(crate) controller: Controller,
    launch: ControllerLaunch,
    /// Where the controllers take reports: each on its own loopback address, all on this port.
    pub(crate) port: u16,
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
        let address = controller.reports.expect("an address for reports");
        controller.leads().await;
        let launch = launch.flag("--report-tls-cert", cert.display()).flag("--report-tls-key", key.display());
        Self { space: space.clone(), controller, launch, port: address.port() }
    }

    /// One more controller, or one in place of another, at this address.
    pub(crate) async fn controller_at(&self, address: IpAddr) -> Controller {
        let address = SocketAddr::new(address, self.port);
        self.launch.clone().flag("--report-listen", address).start(&programs()).await
    }

    /// A pod that stands for the gateway, which is a process of this machine: its name, its endpoint and its token.
    pub(crate) async fn gateway_pod(&self, name: &str) -> Pod {
        let mut pod = App::new(GATEWAYS).deployment()["spec"]["template"].take();
        let more = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": { "serviceAccountName": GATEWAYS },
        });
        crate::app::merge(&mut pod, &more);
        self.space.apply(pod).await;
        is_ready(&self.space, name).await
    }

    /// How a gateway is started that reports as this pod, to the controllers at `port`.
    async fn reporting(&self, pod: &Pod, port: u16) -> Launch {
        let bound = json!({ "kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid });
        let spec =
            json!({ "audiences": ["rouse-report"], "expirationSeconds": 3600, "boundObjectRef": bound });
        let token = identity::token_of(&self.space, GATEWAYS, spec).await;
        let file = self.space.files().join(format!("{}.token", pod.name));
        std::fs::write(&file, token).expect("a token");
        let launch = self.space.launch().await;
        launch
            .flag("--report-to", format!("https://{NAME}:{port}"))
            .flag("--report-ca", self.space.files().join("ca.crt").display())
            .flag("--report-token", file.display())
    }

    /// A gateway that reports.
    pub(crate) async fn gateway(&self, name: &str) -> Gateway {
        let gateway = self.gateway_by(name, self.port).await;
        self.heard(1).await;
        gateway
    }

    /// A gateway that reports to controllers at all these addresses. Its own view of the hosts file has them, so that one name leads
    /// to all, as a headless Service does. Needs root.
    pub(crate) async fn gateway_of(&self, name: &str, controllers: &[IpAddr]) -> Gateway {
        self.space.launch().await;
        let pod = self.gateway_pod(name).await;
        let (hosts, program) =
            (self.space.files().join("hosts"), self.space.files().join("rouse-with-hosts"));
        let lines = controllers.iter().map(|address| format!("{address} {NAME}\n"));
        std::fs::write(&hosts, lines.collect::<String>()).expect("a hosts file");
        let script = format!(
            "#!/bin/sh\nexec unshare --mount sh -c 'mount --bind \"$0\" /etc/hosts && exec \"$@\"' '{}' '{}' \"$@\"\n",
            hosts.display(),
            programs().rouse.display()
        );
        std::fs::write(&program, script).expect("a script");
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("a program");
        self.reporting(&pod, self.port).await.start(&Programs { rouse: program, ..programs() }).await
    }

    /// A gateway that reports to this port: that of the controllers, or of a relay to them.
    pub(crate) async fn gateway_by(&self, name: &str, port: u16) -> Gateway {
        // The account of gateways.
        self.space.launch().await;
        let pod = self.gateway_pod(name).await;
        self.reporting(&pod, port).await.start(&programs()).await
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
        let gateway = self.reporting(&pod, self.port).await.start(&programs()).await;
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
        hears(&self.controller, count).await;
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
        target(&self.controller, app).await
    }

    /// Waits until the last decision about an app has this reason.
    pub(crate) async fn reason(&self, app: &str, is: &str) {
        reason(&self.controller, app, is).await;
    }
}

async fn target(controller: &Controller, app: &str) -> Value {
    let view = controller.scaling().await;
    let targets = view["targets"].as_array().expect("targets");
    targets.iter().find(|target| target["name"] == app).cloned().unwrap_or_default()
}

/// Waits until the last decision of this controller about an app has this reason.
pub(crate) async fn reason(controller: &Controller, app: &str, reason: &str) {
    patiently(&format!("the decision about {app} to be {reason}"), async || {
        (target(controller, app).await["decision"]["reason"] == reason).then_some(())
    })
    .await;
}

/// Waits until a controller knows the load of so many gateways.
pub(crate) async fn hears(controller: &Controller, count: u64) {
    patiently("the reports of gateways", async || {
        let metrics = controller.admin.metrics().await;
        (metrics.count("rouse_autoscaler_reporters", &[("state", "heard")]) == count).then_some(())
    })
    .await;
}

/// A route that asks to be scaled, by its rate: 3 requests a second for each pod. Its windows are as short as they may be.
pub(crate) fn route(space: &TestNamespace, app: &str) -> Route {
    let rate = json!({ "concurrency": null, "requestRate": { "targetValue": 3, "window": "6s" } });
    let spec = json!({ "scalingMetric": rate });
    space.route(app).spec(&spec).annotate("idle-after", "2s").annotate("max", "4").annotate("autoscale", "on")
}

/// The length of a scene, in seconds: that of the variable, or a short one.
pub(crate) fn seconds(variable: &str, short: u64) -> u64 {
    std::env::var(variable).map_or(short, |text| text.parse().expect("a number of seconds"))
}

//! KEDA's own operator scales an app by our controller's external scaler, on a control plane of its own.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;

use rouse_e2e::client::session;
use rouse_e2e::output::Output;
use rouse_e2e::wait::patiently;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::app::App;
use crate::authority::Authority;
use crate::cluster;
use crate::harness::{Case, trial};
use crate::scaling::Scaling;
use crate::test_namespace::TestNamespace;

pub(crate) const TRIALS: &[Case] =
    &[trial!(kedas_operator_takes_an_app_from_zero_to_one_and_back).on_its_own_cluster().unless(missing)];

/// The folder of what `e2e/cluster/keda/build` makes.
fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let look = || {
        let script = r#"source "$0/keda.bash"; [ -x "$keda_bin/keda-operator" ] && printf %s "$keda_cache""#;
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/keda");
        let ran = std::process::Command::new("bash").arg("-c").arg(script).arg(scripts).output().ok()?;
        ran.status.success().then(|| String::from_utf8_lossy(&ran.stdout).into_owned().into())
    };
    FOLDER.get_or_init(look).as_deref()
}

fn missing() -> Option<String> {
    folder().is_none().then(|| "KEDA's operator, which e2e/cluster/keda/build makes".to_owned())
}

/// KEDA's operator, for one namespace.
struct Operator {
    output: Output,
    _child: Child,
}

impl Operator {
    async fn start(space: &TestNamespace) -> Self {
        let folder = folder().expect("it was looked for");
        for kind in ["scaledobjects", "scaledjobs", "triggerauthentications", "clustertriggerauthentications"]
        {
            let file = folder.join(format!("crd/keda.sh_{kind}.yaml"));
            let text = std::fs::read_to_string(&file).expect("a CRD of KEDA");
            for crd in cluster::objects(kind, &text) {
                cluster::apply(space.client(), None, &crd).await;
            }
        }
        let certificates = space.files().join("keda");
        std::fs::create_dir(&certificates).expect("a folder");
        // It does not start without certificates for its metrics API server, which does not run here.
        let authority = Authority::named("keda");
        authority.leaf(&["keda-operator"]).write(&certificates);
        std::fs::write(certificates.join("ca.crt"), authority.pem()).expect("a CA");
        let mut command = Command::new(folder.join("bin/keda-operator"));
        command
            .args(["--enable-prometheus-metrics=false", "--zap-log-level=info", "--zap-encoder=console"])
            .args(["--health-probe-bind-address=127.0.0.1:0", "--metrics-service-bind-address=127.0.0.1:0"])
            .arg(format!("--cert-dir={}", certificates.display()))
            .env("KUBECONFIG", space.kubeconfig())
            .env("NO_PROXY", "*")
            .env("POD_NAMESPACE", space.name())
            .env("KEDA_CLUSTER_OBJECT_NAMESPACE", space.name())
            .env("WATCH_NAMESPACE", space.name())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("KEDA's operator");
        Self { output: Output::of(&mut child), _child: child }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.output.show_if_panicking("KEDA's operator");
    }
}

fn scaled_object(scaler: &str) -> Value {
    json!({
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": { "name": "shop" },
        "spec": {
            "scaleTargetRef": { "name": "shop" },
            "minReplicaCount": 0,
            "maxReplicaCount": 3,
            "pollingInterval": 5,
            "cooldownPeriod": 2,
            "triggers": [{
                "type": "external-push",
                "metadata": { "scalerAddress": scaler, "interceptorRoute": "shop" },
            }],
        },
    })
}

async fn kedas_operator_takes_an_app_from_zero_to_one_and_back(space: TestNamespace) {
    let operator = Operator::start(&space).await;
    let scaling = Scaling::start(&space).await;
    let gateway = scaling.gateway_without_nodes("gateway-0").await;
    // This gateway may not wake, so only KEDA scales.
    crate::identity::forbid_scaling(&space).await;
    space.run(&App::new("shop")).await;
    let rate = json!({ "concurrency": null, "requestRate": { "targetValue": 3, "window": "6s" } });
    let waits = json!({ "scalingMetric": rate, "timeouts": { "readiness": "5m", "request": "5m" } });
    space.apply(space.route("shop").spec(&waits).annotate("autoscale", "on").object()).await;
    space.apply(scaled_object(&scaling.scaler())).await;
    let ready = |object: &Value| {
        let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().any(|is| is["type"] == "Ready" && is["status"] == "True")
    };
    space.until(("keda.sh/v1alpha1", "ScaledObject"), "shop", "to be ready", ready).await;
    assert_eq!(space.replicas("shop").await, 0, "there was no request");

    let waiting = session::get_many(&gateway.target(&space.host("shop")), "/", 1);
    scaling.replicas("shop", 1).await;
    let target = scaling.target("shop").await;
    assert_eq!(target["state"], "owned", "Rouse leaves it alone: {target}");
    let woken = gateway.admin.metrics().await.count("rouse_wakes_total", &[("result", "sent")]);
    assert_eq!(woken, 0, "the gateway could not");
    drop(waiting);
    scaling.replicas("shop", 0).await;
    patiently("a line of the operator", async || {
        let lines = operator.output.lines();
        lines.iter().any(|line| line.contains("Successfully")).then_some(())
    })
    .await;
    gateway.stop().await;
    scaling.stop().await;
}

//! Simulates gateways that report load: creates their pods and tokens, and runs the client of reports of each, fed by meters that count a
//! request of each service each second.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::{Patch, PatchParams};
use prometheus_client::registry::Registry as Metrics;
use rouse_core::endpoint::ServiceId;
use rouse_core::engine::Engine;
use rouse_core::load_meter::LoadMeter;
use rouse_core::registry::{Registry, RegistrySettings};
use rouse_grpc::report::ReporterRole;
use rouse_grpc::report::client::{
    ReportClient, ReportClientMetrics, ReportClientParts, ReportClientSettings,
};
use rouse_net::clock::TokioClock;
use rouse_net::random::system_seed;
use rouse_net::tls::{Pem, Roots};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::objects::{api, apply};
use super::scaling::{NAMESPACE, name};
use crate::Result;

/// The Service of the gateways, and their account.
const GATEWAY: &str = "rouse-gateway";
/// How often a busy service has a request at each gateway.
const EACH: Duration = Duration::from_secs(1);

/// What a gateway reports with.
pub(super) struct ReporterFiles {
    /// The file of its token.
    pub(super) token: PathBuf,
}

/// Writes the Service of the gateways with an endpoint for each, and gives each a token.
pub(super) async fn write(client: &Client, count: u32, folder: &Path) -> Result<Vec<ReporterFiles>> {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": GATEWAY}});
    apply(client, NAMESPACE, &account).await?;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": GATEWAY},
        "spec": {"clusterIP": "None", "ports": [{"name": "http", "port": 8080}]},
    });
    apply(client, NAMESPACE, &service).await?;
    let (mut endpoints, mut files) = (Vec::new(), Vec::new());
    for number in 0..count {
        let (pod, address) = (format!("{GATEWAY}-{number}"), format!("10.98.0.{}", number + 1));
        let uid = gateway_pod(client, &pod, &address).await?;
        let token = folder.join(format!("{pod}.token"));
        fs::write(&token, token_of(client, &pod, &uid).await?)?;
        files.push(ReporterFiles { token });
        endpoints.push(json!({
            "addresses": [address], "conditions": {"ready": true},
            "targetRef": {"kind": "Pod", "namespace": NAMESPACE, "name": pod, "uid": uid},
        }));
    }
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": GATEWAY, "labels": {"kubernetes.io/service-name": GATEWAY}},
        "endpoints": endpoints, "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    });
    apply(client, NAMESPACE, &slice).await?;
    Ok(files)
}

/// Writes a running pod without a node. Returns its UID.
async fn gateway_pod(client: &Client, name: &str, address: &str) -> Result<String> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "schedulerName": "rouse-bench", "serviceAccountName": GATEWAY,
            "containers": [{"name": "gateway", "image": "registry.example/rouse:1.2.3"}],
        },
    });
    let written = apply(client, NAMESPACE, &pod).await?;
    let status = json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}});
    let pods = api(client, NAMESPACE, "v1", "Pod");
    pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(written.metadata.uid.ok_or("a pod without UID")?)
}

async fn token_of(client: &Client, pod: &str, uid: &str) -> Result<String> {
    let asked = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {
            "audiences": ["rouse-report"], "expirationSeconds": 3600,
            "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid},
        },
    });
    let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{GATEWAY}/token");
    let request = http::Request::post(path).header(http::header::CONTENT_TYPE, "application/json");
    let answer: Value = client.request(request.body(asked.to_string().into_bytes())?).await?;
    Ok(answer["status"]["token"].as_str().ok_or("an answer without token")?.to_owned())
}

/// An engine that is never called: no request is held.
struct NoEngine;

impl Engine for NoEngine {
    fn wake(&self, _: &ServiceId) {}
}

/// Reports the load of the first `busy` services from each gateway, until the set is dropped.
pub(super) fn report(gateways: &[ReporterFiles], url: &str, ca: &Path, busy: u32) -> Result<JoinSet<()>> {
    let mut tasks = JoinSet::new();
    for gateway in gateways {
        let clock = TokioClock::new();
        let registry = Registry::new(RegistrySettings::default(), Arc::new(clock), Arc::new(NoEngine));
        let settings = ReportClientSettings {
            controllers: url.parse()?,
            roots: Roots::Pem(vec![Pem::File(ca.to_owned())]),
            token_file: gateway.token.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            role: ReporterRole::Gateway,
        };
        let parts = ReportClientParts {
            feed: Arc::clone(registry.loads()),
            exists: Arc::new(|_| true),
            commands: None,
            clock,
            random_seed: system_seed(),
            metrics: ReportClientMetrics::new(&mut Metrics::default()),
        };
        let client = ReportClient::new(settings, parts)?;
        tasks.spawn(client.run(CancellationToken::new()));
        tasks.spawn(count(registry, busy));
    }
    Ok(tasks)
}

/// Counts a request of each service and its route each second, as a gateway does.
async fn count(registry: Arc<Registry>, busy: u32) {
    let meters: Vec<Arc<LoadMeter>> = (0..busy)
        .flat_map(|number| {
            let service: Option<ServiceId> = format!("{NAMESPACE}/{}", name(number)).parse().ok();
            let route = registry.route_meter(format!("{NAMESPACE}/{}", name(number)).into());
            service.map(|id| Arc::clone(registry.service(&id).meter())).into_iter().chain([route])
        })
        .collect();
    let mut ticks = tokio::time::interval(EACH);
    loop {
        ticks.tick().await;
        for meter in &meters {
            meter.count();
        }
    }
}

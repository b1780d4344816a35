//! Writes the objects of a large cluster to an API server: Services with selectors, Pods with addresses, their slices, and
//! routes. No container runs.

use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::{StreamExt, TryStreamExt, stream};
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::objects::{self, api, apply};
use crate::Result;

/// Services that are written concurrently, each with its Pods, slice and route.
const AT_ONCE: usize = 32;
/// Progress is printed after this many services.
const TOLD: u32 = 250;
/// One node has the Pods of this many services.
const SERVICES_ON_A_NODE: u32 = 20;
/// The start time of all Pods.
const BEGAN: &str = "2000-01-01T00:00:00Z";

/// A cluster that has been written.
#[derive(Debug)]
pub(super) struct Large {
    namespace: &'static str,
    /// The UIDs of the Pods of each Service.
    pods: Vec<Vec<String>>,
}

impl Large {
    /// Writes it, and prints the progress.
    pub(super) async fn write(
        client: &Client,
        namespace: &'static str,
        services: u32,
        endpoints: u32,
    ) -> Result<Self> {
        objects::namespace(client, namespace).await?;
        let written = &AtomicU32::new(0);
        let all = stream::iter(0..services).map(|number| async move {
            let uids = one(client, namespace, number, endpoints).await?;
            let done = written.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(TOLD) {
                eprintln!("  {done} services, {} pods", done * endpoints);
            }
            Ok::<_, crate::Error>(uids)
        });
        let pods = all.buffered(AT_ONCE).try_collect().await?;
        Ok(Self { namespace, pods })
    }

    /// The endpoints of a Service.
    pub(super) fn endpoints(&self, number: u32) -> Vec<Value> {
        let uids = usize::try_from(number).ok().and_then(|number| self.pods.get(number));
        uids.map(|uids| endpoints(self.namespace, number, uids)).unwrap_or_default()
    }
}

/// Writes one Service with its Pods, their slice, and its route. Returns the Pods' UIDs.
async fn one(client: &Client, namespace: &str, number: u32, endpoints: u32) -> Result<Vec<String>> {
    let service = apply(client, namespace, &service(number)).await?;
    let mut uids = Vec::new();
    let pods = api(client, namespace, "v1", "Pod");
    for place in 0..endpoints {
        let written =
            pods.create(&PostParams::default(), &serde_json::from_value(pod(number, place))?).await?;
        let status = Patch::Merge(status(&address(number, place, endpoints)));
        pods.patch_status(&pod_name(number, place), &PatchParams::default(), &status).await?;
        uids.push(written.metadata.uid.ok_or("a Pod without UID")?);
    }
    let owner = service.metadata.uid.ok_or("a Service without UID")?;
    apply(client, namespace, &slice(namespace, number, &owner, &uids)).await?;
    apply(client, namespace, &route(number)).await?;
    Ok(uids)
}

/// The name of a Service and its objects.
pub(super) fn name(number: u32) -> String {
    format!("s{number}")
}

/// The name of its slice.
pub(super) fn slice_name(number: u32) -> String {
    format!("s{number}-x")
}

/// A Pod's name, in the form that a Deployment uses.
fn pod_name(number: u32, place: u32) -> String {
    format!("s{number}-6d4cf56db6-{place:05}")
}

fn node(number: u32) -> String {
    format!("node-{}", number / SERVICES_ON_A_NODE)
}

fn address(number: u32, place: u32, endpoints: u32) -> String {
    let [_, a, b, c] = (number * endpoints + place + 1).to_be_bytes();
    format!("10.{a}.{b}.{c}")
}

fn labels(number: u32) -> Value {
    json!({
        "app.kubernetes.io/name": name(number),
        "app.kubernetes.io/part-of": "shop",
        "app.kubernetes.io/version": "1.2.3",
    })
}

fn service(number: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name(number), "labels": labels(number)},
        "spec": {
            "selector": {"app.kubernetes.io/name": name(number)},
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    })
}

/// A Pod without a node, although the slices name one: deleting a Pod on a node needs a kubelet.
fn pod(number: u32, place: u32) -> Value {
    let mut labels = labels(number);
    labels["pod-template-hash"] = json!("6d4cf56db6");
    let probe = |path: &str, seconds: u32| json!({"httpGet": {"path": path, "port": "http"}, "periodSeconds": seconds});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": pod_name(number, place),
            "labels": labels,
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "9090"},
        },
        "spec": {
            // No scheduler has this name: the default one would write to each Pod that there is no node.
            "schedulerName": "rouse-bench",
            "containers": [{
                "name": "app",
                "image": format!("registry.example/shop/s{number}:1.2.3"),
                "args": ["serve", "--listen=:8080", "--metrics=:9090"],
                "ports": [{"name": "http", "containerPort": 8080}, {"name": "metrics", "containerPort": 9090}],
                "env": [
                    {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "DATABASE", "value": format!("postgres://database.shop.svc/s{number}")},
                    {"name": "LOG_LEVEL", "value": "info"},
                ],
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
                "startupProbe": probe("/started", 1),
                "readinessProbe": probe("/ready", 5),
                "livenessProbe": probe("/live", 10),
                "securityContext": {"allowPrivilegeEscalation": false, "runAsNonRoot": true},
            }],
        },
    })
}

/// The status that a kubelet writes for a ready Pod.
fn status(address: &str) -> Value {
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": BEGAN});
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
    json!({"status": {
        "phase": "Running",
        "startTime": BEGAN,
        "hostIP": "192.0.2.1",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": conditions,
        "containerStatuses": [{
            "name": "app",
            "image": "registry.example/shop/app:1.2.3",
            "imageID": format!("registry.example/shop/app@sha256:{}", "5".repeat(64)),
            "containerID": format!("containerd://{}", "a".repeat(64)),
            "ready": true,
            "started": true,
            "restartCount": 0,
            "state": {"running": {"startedAt": BEGAN}},
        }],
    }})
}

fn endpoints(namespace: &str, number: u32, uids: &[String]) -> Vec<Value> {
    let all = u32::try_from(uids.len()).unwrap_or_default();
    let endpoint = |(place, uid): (u32, &String)| {
        json!({
            "addresses": [address(number, place, all)],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": node(number),
            "zone": "a",
            "targetRef": {"kind": "Pod", "namespace": namespace, "name": pod_name(number, place), "uid": uid},
        })
    };
    (0..).zip(uids).map(endpoint).collect()
}

fn slice(namespace: &str, number: u32, owner: &str, uids: &[String]) -> Value {
    let name = name(number);
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": slice_name(number),
            "labels": {
                "kubernetes.io/service-name": name,
                "endpointslice.kubernetes.io/managed-by": "rouse-bench",
            },
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": name, "uid": owner,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "endpoints": endpoints(namespace, number, uids),
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

fn route(number: u32) -> Value {
    json!({
        "apiVersion": "http.keda.sh/v1beta1", "kind": "InterceptorRoute", "metadata": {"name": name(number)},
        "spec": {
            "target": {"service": name(number), "port": 80},
            "rules": [{"hosts": [format!("s{number}.test")]}],
            "scalingMetric": {"concurrency": {"targetValue": 100}},
        },
    })
}

//! Pods that register themselves: what they may claim, what ends a claim, and pods that the watch has not seen yet.

mod changes;
mod claims;
mod lookups;
mod tokens;

use std::net::IpAddr;

use rouse_core::endpoint::{PodRef, PodUid, PortName, ServiceId, SlicePort};
use rouse_core::merge::{BootId, Push, PushEvent, PushOrder};
use rouse_net::auth::{Claim, ClaimError, ClaimGrant};
use rouse_testkit::api_server::ApiServer;
use serde_json::{Value, json};

use crate::rig::{Rig, id};

/// Pod `name` of Service `cart` at 10.0.0.n. Its UID is its name, and its port `web` is 8080.
fn pod(name: &str, n: u8) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "labels": {"app": "cart", "more": "x"}},
           "spec": {"containers": [{"ports": [{"name": "web", "containerPort": 8080}]}]},
           "status": {"phase": "Running", "podIPs": [{"ip": format!("10.0.0.{n}")}]}})
}

/// Service `name` with the ports `http` 80, which leads to the container port `web`, and `admin` 9000.
fn service(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop"},
           "spec": {"clusterIP": "10.96.0.1", "selector": {"app": name},
                    "ports": [{"name": "http", "port": 80, "targetPort": "web"}, {"name": "admin", "port": 9000},
                              {"name": "dns", "port": 53, "protocol": "UDP"}]}})
}

/// Service `cart` with pod `cart-1` at 10.0.0.1, without a slice.
fn shop() -> ApiServer {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    api.put("pods", pod("cart-1", 1));
    api
}

/// A gateway that has seen `api`, and watches pods and Services.
async fn following(api: &ApiServer) -> Rig {
    let rig = Rig::synced(api).await;
    rig.until_watched("pods").await;
    rig.until_watched("services").await;
    rig
}

/// What pod `cart-n` at 10.0.0.n truly is.
fn claim(n: u8) -> Claim {
    Claim {
        service: id("cart"),
        pod: format!("cart-{n}"),
        uid: PodUid::new(&format!("cart-{n}")),
        ips: vec![ip(n)],
        ports: [(PortName::new("http"), 8080), (PortName::new("admin"), 9000)].into(),
        service_account: None,
    }
}

fn ip(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

/// Checks a claim.
async fn check(rig: &Rig, claim: &Claim) -> Result<ClaimGrant, ClaimError> {
    rig.cluster.push_ownership().check(claim).await
}

async fn granted(rig: &Rig, claim: &Claim) -> ClaimGrant {
    let grant = check(rig, claim).await.unwrap();
    assert!(is_granted(rig, claim));
    grant
}

/// The text with which a claim is denied.
async fn denied(rig: &Rig, claim: &Claim) -> String {
    match check(rig, claim).await {
        Err(ClaimError::Denied(text)) => text,
        other => panic!("{claim:?}: {other:?}"),
    }
}

/// The text with which a claim is put off.
async fn put_off(rig: &Rig, claim: &Claim) -> String {
    match check(rig, claim).await {
        Err(ClaimError::Unavailable(text) | ClaimError::TooEarly(text)) => text,
        other => panic!("{claim:?}: {other:?}"),
    }
}

fn is_granted(rig: &Rig, claim: &Claim) -> bool {
    rig.cluster.push_ownership().granted(claim).is_some()
}

/// Applies a push of the pod, as the registration server does after the check.
fn push(rig: &Rig, claim: &Claim, event: PushEvent, sequence: u64) {
    let ports = claim.ports.iter().map(|(name, number)| SlicePort { name: name.clone(), number: *number });
    let push = Push {
        pod: PodRef { uid: claim.uid.clone(), name: format!("shop/{}", claim.pod).as_str().into() },
        order: PushOrder { boot: BootId { started: 1, id: 1 }, sequence },
        ips: claim.ips.clone(),
        owns_addresses: true,
        ports: ports.collect(),
        event,
    };
    rig.registry.get(&claim.service).unwrap().push(push).unwrap();
}

/// Registers the pod as ready.
async fn register(rig: &Rig, claim: &Claim) {
    granted(rig, claim).await;
    push(rig, claim, PushEvent::Ready, 1);
    let address = format!("{}:8080", claim.ips[0]);
    assert!(rig.endpoints("cart").iter().any(|(_, at)| *at == address), "{:?}", rig.endpoints("cart"));
}

/// Changes the object of this name.
fn edit(api: &ApiServer, collection: &str, name: &str, change: impl FnOnce(&mut Value)) {
    let mut object = api.get(collection, "shop", name).unwrap();
    change(&mut object);
    api.put(collection, object);
}

/// How many look-ups of a pod by its name the API server got.
fn lookups(api: &ApiServer) -> usize {
    api.requests(|request| request.path.ends_with("/pods") && request.query.contains("metadata.name")).len()
}

fn other_namespace(service: &str) -> ServiceId {
    ServiceId::new("till", service).unwrap()
}

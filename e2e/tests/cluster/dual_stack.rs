//! IPv6 and dual stack, on a control plane of its own with both ranges, whose controllers write the slices. The pods are
//! processes on this machine, at addresses that the trial adds to its loopback device.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use http::StatusCode;
use kube::api::{Patch, PatchParams};
use rouse_e2e::client::session;
use rouse_e2e::command::run;
use rouse_e2e::config::App as PodOf;
use rouse_e2e::gateway::Gateway;
use rouse_e2e::pod::Pod;
use rouse_e2e::wait::patiently;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::cluster::{self, image};
use crate::harness::{Case, trial};
use crate::own_cluster::{api_server_serves, node};
use crate::test_namespace::{TestNamespace, programs};

pub(crate) const TRIALS: &[Case] =
    &[trial!(pods_are_dialled_over_either_family_and_counted_once).on_its_own_cluster().unless(no_addresses)];

/// Why this machine cannot be given an address of each family, if it cannot.
fn no_addresses() -> Option<String> {
    let problem = Address::of_both().err()?;
    Some(format!("root and IPv6, to give this machine two addresses: {problem}"))
}

/// The node of every pod, which exists only as an object.
const NODE: &str = "made-up";
/// IPv4 first, as the cluster was made.
const RANGES: &str = "--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112";

/// A non-loopback address of this machine, since `EndpointSlice`s do not allow loopback addresses.
struct Address(IpAddr);

impl Address {
    /// One of each family, derived from the pid so that runs do not collide. They expire if this process is killed.
    fn of_both() -> Result<[Self; 2], String> {
        let [.., a, b, c, d] = process::id().to_be_bytes();
        let four = Ipv4Addr::new(198, 18, c, d);
        let six =
            Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Ok([Self::take(four.into())?, Self::take(six.into())?])
    }

    fn take(address: IpAddr) -> Result<Self, String> {
        let mut ip = process::Command::new("ip");
        ip.args([
            "address",
            "add",
            &host_only(address),
            "dev",
            "lo",
            "valid_lft",
            "1800",
            "preferred_lft",
            "1800",
        ]);
        let output = ip.output().map_err(|error| format!("ip: {error}"))?;
        if output.status.success() {
            Ok(Self(address))
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        let mut ip = process::Command::new("ip");
        ip.args(["address", "delete", &host_only(self.0), "dev", "lo"]);
        if !ip.status().is_ok_and(|status| status.success()) {
            eprintln!("{} is still on lo", self.0);
        }
    }
}

fn host_only(address: IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}

/// Starts the API server again with ranges of both families.
pub(crate) async fn with_both_ranges(space: &TestNamespace) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/restart");
    let mut restart = Command::new(script);
    restart.arg("kube-apiserver").env("ROUSE_CLUSTER", node(space).folder());
    restart.env("ROUSE_FLAGS_kube_apiserver", RANGES);
    let ran = run(restart).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let _told = Told(node(space).folder().join("logs/kube-apiserver.log"));
    // A request that arrives while it starts may never be answered.
    patiently("the API server to serve again", async || {
        tokio::time::timeout(Duration::from_secs(10), api_server_serves(space)).await.ok()
    })
    .await;
}

/// Prints a log if the trial panics: the log is deleted with the cluster.
struct Told(PathBuf);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(&self.0).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(20).collect();
            eprintln!("{}, the last first:\n{}", self.0.display(), last.join("\n"));
        }
    }
}

/// A pod with these addresses: its process, which listens at `host`, and its object, with the status that a kubelet writes.
async fn pod(space: &TestNamespace, name: &str, host: IpAddr, addresses: &[IpAddr]) -> (Pod, Value) {
    let process = Pod::start_at(host, &programs(), &PodOf::http().env("POD_NAME", name)).await;
    let port = process.target.address.port();
    let object = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "nodeName": NODE,
            // Only pods of the node's network may share an address.
            "hostNetwork": true,
            "containers": [{
                "name": "app", "image": image(), "ports": [{ "name": "http", "containerPort": port }],
            }],
        },
    });
    let applied = space.apply(object.clone()).await;
    let ips: Vec<Value> = addresses.iter().map(|ip| json!({ "ip": ip })).collect();
    let status = json!({ "status": {
        "phase": "Running",
        "podIP": addresses[0],
        "podIPs": ips,
        "conditions": [{ "type": "Ready", "status": "True" }],
    } });
    let api = cluster::api_of(space.client(), Some(space.name()), &object);
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.expect("a status");
    (process, applied)
}

/// A Service of the pods of `app`, and a route to it.
async fn service(space: &TestNamespace, name: &str, app: &str, families: &[&str]) {
    let policy = if families.len() == 2 { "RequireDualStack" } else { "SingleStack" };
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name },
        "spec": {
            "selector": { "app": app },
            "ports": [{ "name": "http", "port": 80, "targetPort": "http" }],
            "ipFamilies": families,
            "ipFamilyPolicy": policy,
        },
    });
    // Right after its restart, the API server may not have the new range yet.
    let api = cluster::api_of(space.client(), Some(space.name()), &service);
    patiently(&format!("Service {name} to be taken"), async || {
        let params = PatchParams::apply(cluster::MANAGER).force();
        api.patch(name, &params, &Patch::Apply(&service)).await.ok().map(drop)
    })
    .await;
    space.apply(space.route(name).object()).await;
    patiently(&format!("slices of {name}"), async || {
        let slices = space.slices(name).await;
        let mut of: Vec<_> = slices
            .iter()
            .filter(|slice| slice["endpoints"][0]["conditions"]["ready"] == true)
            .filter_map(|slice| slice["addressType"].as_str())
            .collect();
        of.sort_unstable();
        let mut wanted = families.to_vec();
        wanted.sort_unstable();
        (of == wanted).then_some(())
    })
    .await;
}

/// Sends a request to a Service whose one pod is `pod`. Returns the pod address that the gateway dialled.
async fn dialled(space: &TestNamespace, gateway: &Gateway, service: &str, pod: &Value) -> IpAddr {
    let known = gateway.admin.service_named(&format!("{}/{service}", space.name())).await;
    let [one] = &known.endpoints[..] else { panic!("one pod, not {known:?}") };
    assert_eq!(one.uid, pod["metadata"]["uid"].as_str().unwrap(), "{known:?}");
    let answer = session::get(&gateway.target(&space.host(service)), "/headers").await;
    assert_eq!(answer.status, StatusCode::OK, "{service}: {}", answer.text());
    let seen = answer.json();
    assert_eq!(seen["pod"], pod["metadata"]["name"]);
    let local: SocketAddr = seen["local"].as_str().unwrap().parse().expect("an address");
    local.ip().to_canonical()
}

async fn pods_are_dialled_over_either_family_and_counted_once(space: TestNamespace) {
    let both = Address::of_both().expect("as before the run");
    let addresses @ [four, six] = [both[0].0, both[1].0];
    with_both_ranges(&space).await;
    cluster::apply(
        space.client(),
        None,
        &json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } }),
    )
    .await;

    let whole = pod(&space, "whole", Ipv6Addr::UNSPECIFIED.into(), &addresses).await;
    service(&space, "only-six", "whole", &["IPv6"]).await;
    service(&space, "dual", "whole", &["IPv4", "IPv6"]).await;
    // Each of these pods listens on one of its two addresses only: the gateway must try both.
    let at_six = pod(&space, "at-six", six, &addresses).await;
    service(&space, "half-six", "at-six", &["IPv4", "IPv6"]).await;
    let at_four = pod(&space, "at-four", four, &addresses).await;
    service(&space, "half-four", "at-four", &["IPv6", "IPv4"]).await;

    let gateway = space.gateway().await;
    assert_eq!(dialled(&space, &gateway, "only-six", &whole.1).await, six);
    assert!(addresses.contains(&dialled(&space, &gateway, "dual", &whole.1).await));
    assert_eq!(dialled(&space, &gateway, "half-six", &at_six.1).await, six);
    assert_eq!(dialled(&space, &gateway, "half-four", &at_four.1).await, four);
    let metrics = gateway.admin.metrics().await;
    let counted = |result| metrics.count("rouse_direct_routing_total", &[("result", result)]);
    assert_eq!((counted("pod"), counted("cluster_ip")), (4, 0));
    gateway.stop().await;
}

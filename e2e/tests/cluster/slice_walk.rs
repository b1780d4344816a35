//! The controller of `EndpointSlice`s beside Kubernetes' own: a random walk of the same pods in two namespaces, whose Services
//! differ only in who writes their slices. After every step, both have exactly the endpoints that a naive model expects.
//!
//! The control plane is alone: the trial writes what a kubelet would. `ROUSE_SLICE_WALK` is the number of events (500), and
//! `ROUSE_SLICE_SEED` repeats a walk.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::TryStreamExt;
use kube::api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use rouse_core::random::Random;
use rouse_core::slices::Options;
use rouse_e2e::wait::{LONG_PATIENCE, eventually};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cluster;
use crate::dual_stack::with_both_ranges;
use crate::harness::{Case, trial};
use crate::slice_controller::{Controller, slices_of};
use crate::test_namespace::{POD, SERVICE, TestNamespace};

pub(crate) const TRIALS: &[Case] =
    &[trial!(the_same_walk_of_pods_gives_the_same_endpoints_as_kubernetes_own_controller)
        .on_its_own_cluster()];

/// The Services of each namespace. The second one is headless.
const SERVICES: [&str; 2] = ["walk", "head"];
/// The nodes, which exist only as objects, with their zones at the beginning.
const NODES: [(&str, Option<&str>); 3] = [("w0", Some("a")), ("w1", Some("b")), ("w2", None)];
/// The managers of the slices on both sides.
const MANAGERS: [&str; 2] = ["endpointslice-controller.k8s.io", "rouse.dev"];
/// The kinds of events, each with its weight.
const KINDS: [(&str, usize); 15] = [
    ("create", 8),
    ("address", 8),
    ("ready", 8),
    ("not ready", 4),
    ("restart", 2),
    ("delete with grace", 4),
    ("gone", 4),
    ("fail", 1),
    ("succeed", 1),
    ("relabel", 3),
    ("port change", 2),
    ("publishNotReadyAddresses", 1),
    ("dual stack", 1),
    ("labels", 1),
    ("zone", 1),
];
/// The most pods at a time.
const PODS: usize = 14;

#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is one thing that an event changes")]
struct Pod {
    /// Which of the ports below its containers have.
    ports: usize,
    /// The Service whose subdomain it has.
    subdomain: Option<usize>,
    node: usize,
    selected: bool,
    addresses: Vec<String>,
    ready: bool,
    leaving: bool,
    ended: bool,
    uids: [String; 2],
}

#[derive(Debug, Clone, Copy)]
struct Service {
    ports: usize,
    publishes_not_ready: bool,
    dual: bool,
    label: usize,
}

/// Container ports by name and protocol: `(name, protocol, number)`; the last ones are those of a sidecar.
const CONTAINER_PORTS: [&[(&str, &str, u16)]; 4] =
    [&[("web", "TCP", 8080)], &[("web", "TCP", 9090), ("dns", "UDP", 53)], &[], &[("web", "TCP", 7070)]];
const SIDECAR: usize = 3;

/// Service ports: name, port, protocol, target (a number, or a name if it is 0), `appProtocol`.
type ServicePort = (&'static str, u16, &'static str, u16, &'static str, Option<&'static str>);
const SERVICE_PORTS: [&[ServicePort]; 4] = [
    &[("http", 80, "TCP", 8080, "", None)],
    &[("http", 80, "TCP", 0, "web", None)],
    &[("http", 80, "TCP", 0, "web", None), ("metrics", 81, "TCP", 9100, "", Some("kubernetes.io/h2c"))],
    &[("dns", 53, "UDP", 0, "dns", None), ("http", 80, "TCP", 8081, "", None)],
];

/// Whether Kubernetes' own controller looks at a Service after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Noticed {
    Yes,
    /// Only when the Service itself changes: the walk touches it.
    OnlyLater,
}

struct Walk {
    random: Random,
    spaces: [TestNamespace; 2],
    services: [Service; 2],
    zones: [Option<String>; 3],
    pods: BTreeMap<usize, Pod>,
    made: usize,
    touched: usize,
}

async fn the_same_walk_of_pods_gives_the_same_endpoints_as_kubernetes_own_controller(space: TestNamespace) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seed = number("ROUSE_SLICE_SEED").unwrap_or_else(rouse_net::random::system_seed);
    let events = number("ROUSE_SLICE_WALK").unwrap_or(500);
    eprintln!("walk of {events} events: ROUSE_SLICE_SEED={seed}");
    with_both_ranges(&space).await;
    let other = TestNamespace::create_in(space.kubeconfig()).await;
    let controller = Controller::start(&space, None, Options::default()).await;
    let mut walk = Walk::begin(seed, [other, space]).await;
    let mut tasks = JoinSet::new();
    let writes = [0, 1].map(|side| count_writes(&walk.spaces[side], MANAGERS[side], &mut tasks));
    walk.settle().await;
    let began = Instant::now();
    let (mut done, mut kinds) = (0, BTreeMap::<&str, u32>::new());
    while done < events {
        for _ in 0..=walk.random.below(3) {
            let (kind, noticed) = walk.step().await;
            *kinds.entry(kind).or_default() += 1;
            done += 1;
            if noticed == Noticed::OnlyLater {
                walk.touch().await;
            }
        }
        walk.settle().await;
    }
    assert!(tasks.try_join_next().is_none(), "both counts go on");
    let [theirs, ours] = writes.map(|count| count.load(Ordering::SeqCst));
    eprintln!("{done} events in {:.0} s: {kinds:?}", began.elapsed().as_secs_f64());
    eprintln!("writes: Kubernetes' own controller {theirs}, ours {ours}");
    assert!(kinds.len() == KINDS.len() || events < 500, "{kinds:?}");
    assert!(ours * 10 <= theirs * 11, "{ours} writes, and Kubernetes' own controller needs {theirs}");
    controller.stop().await;
}

/// Counts the writes of slices by one manager in a namespace, from now on.
fn count_writes(space: &TestNamespace, manager: &str, tasks: &mut JoinSet<()>) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let object = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice" });
    let api = cluster::api_of(space.client(), Some(space.name()), &object);
    let labels = format!("endpointslice.kubernetes.io/managed-by={manager}");
    let counted = Arc::clone(&count);
    tasks.spawn(async move {
        let listed = api.list(&ListParams::default().labels(&labels)).await.expect("a list");
        let mut version = listed.metadata.resource_version.expect("a version");
        loop {
            let stream = api.watch(&WatchParams::default().labels(&labels), &version).await.expect("a watch");
            let mut stream = std::pin::pin!(stream);
            while let Some(event) = stream.try_next().await.expect("an event") {
                let (WatchEvent::Added(slice) | WatchEvent::Modified(slice) | WatchEvent::Deleted(slice)) =
                    event
                else {
                    continue;
                };
                version = slice.metadata.resource_version.expect("a version");
                counted.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    count
}

impl Walk {
    async fn begin(seed: u64, spaces: [TestNamespace; 2]) -> Self {
        let service = Service { ports: 0, publishes_not_ready: false, dual: false, label: 0 };
        let zones = NODES.map(|(_, zone)| zone.map(str::to_owned));
        let random = Random::new(seed);
        let walk = Self {
            random,
            spaces,
            services: [service; 2],
            zones,
            pods: BTreeMap::new(),
            made: 0,
            touched: 0,
        };
        for node in 0..NODES.len() {
            walk.put_node(node).await;
        }
        for service in 0..SERVICES.len() {
            walk.put_service(service).await;
        }
        walk
    }

    /// One event on both sides. Returns its kind.
    async fn step(&mut self) -> (&'static str, Noticed) {
        loop {
            let mut place = self.random.below(KINDS.iter().map(|(_, weight)| weight).sum());
            let kind = KINDS.iter().find(|(_, weight)| {
                let found = place < *weight;
                place = place.saturating_sub(*weight);
                found
            });
            let (kind, _) = *kind.expect("a kind");
            if let Some(noticed) = self.try_step(kind).await {
                return (kind, noticed);
            }
        }
    }

    /// A random pod that `is` accepts.
    fn any(&mut self, is: impl Fn(&Pod) -> bool) -> Option<usize> {
        let all: Vec<usize> = self.pods.iter().filter(|(_, pod)| is(pod)).map(|(n, _)| *n).collect();
        if all.is_empty() { None } else { Some(all[self.random.below(all.len())]) }
    }

    /// `None`: the event is not possible now.
    async fn try_step(&mut self, kind: &str) -> Option<Noticed> {
        let lives = |pod: &Pod| !pod.ended && !pod.addresses.is_empty();
        match kind {
            "create" => {
                if self.pods.len() >= PODS {
                    return None;
                }
                self.create().await;
            }
            "address" => {
                let n = self.any(|pod| !pod.ended && !pod.leaving)?;
                let [high, low] = u16::try_from(self.made).expect("a short walk").to_be_bytes();
                let four = Ipv4Addr::new(10, 1, high, low).to_string();
                let six = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, high.into(), low.into()).to_string();
                self.made += 1;
                let addresses = [vec![four.clone()], vec![four, six.clone()], vec![six]];
                let addresses = addresses[self.random.below(3)].clone();
                self.pods.get_mut(&n)?.addresses = addresses;
                self.put_status(n).await;
            }
            "ready" | "not ready" => {
                let n = self.any(|pod| lives(pod) && pod.ready != (kind == "ready"))?;
                self.pods.get_mut(&n)?.ready = kind == "ready";
                self.put_status(n).await;
            }
            "delete with grace" => {
                let n = self.any(|pod| !pod.leaving && !pod.ended)?;
                self.pods.get_mut(&n)?.leaving = true;
                for space in &self.spaces {
                    // The grace period of the pod.
                    space.delete(POD, &name(n)).await;
                }
            }
            "gone" => {
                let n = self.any(|pod| pod.leaving || pod.ended)?;
                self.pods.remove(&n);
                for space in &self.spaces {
                    space.delete_now(POD, &name(n)).await;
                }
            }
            "restart" => {
                let n = self.any(|pod| lives(pod) && pod.ready)?;
                for ready in [false, true] {
                    self.pods.get_mut(&n)?.ready = ready;
                    self.put_status(n).await;
                }
            }
            "fail" | "succeed" => {
                let n = self.any(|pod| lives(pod))?;
                let pod = self.pods.get_mut(&n)?;
                (pod.ended, pod.ready) = (true, false);
                self.put_phase(n, if kind == "fail" { "Failed" } else { "Succeeded" }).await;
                // It does not look at phases: without a change of readiness, it notices nothing.
                return Some(Noticed::OnlyLater);
            }
            "relabel" => {
                let n = self.any(|pod| !pod.leaving)?;
                let pod = self.pods.get_mut(&n)?;
                pod.selected = !pod.selected;
                let labels = json!({ "metadata": { "labels": { "app": label(pod.selected) } } });
                for space in &self.spaces {
                    space.patch(POD, &name(n), labels.clone()).await;
                }
            }
            "zone" => {
                let node = self.random.below(NODES.len());
                self.zones[node] = [None, Some("a"), Some("c")][self.random.below(3)].map(str::to_owned);
                self.put_node(node).await;
                // It does not look at nodes by themselves.
                return Some(Noticed::OnlyLater);
            }
            change => self.change_service(change).await,
        }
        Some(Noticed::Yes)
    }

    async fn change_service(&mut self, change: &str) {
        let n = self.random.below(SERVICES.len());
        let (ports, label) = (self.random.below(SERVICE_PORTS.len()), self.random.below(3));
        let service = &mut self.services[n];
        match change {
            "port change" => service.ports = ports,
            "publishNotReadyAddresses" => service.publishes_not_ready = !service.publishes_not_ready,
            "dual stack" => service.dual = !service.dual,
            "labels" => service.label = label,
            other => panic!("no event {other}"),
        }
        self.put_service(n).await;
    }

    async fn create(&mut self) {
        let n = self.made;
        self.made += 1;
        let (ports, node) = (self.random.below(CONTAINER_PORTS.len()), self.random.below(NODES.len()));
        let subdomain = [None, Some(0), Some(1)][self.random.below(3)];
        let selected = self.random.below(5) > 0;
        let listed = CONTAINER_PORTS[ports].iter().map(
            |(name, protocol, number)| json!({ "name": name, "protocol": protocol, "containerPort": number }),
        );
        let all: Vec<Value> = listed.collect();
        let (own, sidecar) = if ports == SIDECAR { (Vec::new(), all) } else { (all, Vec::new()) };
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name(n), "labels": { "app": label(selected) } },
            "spec": {
                "nodeName": NODES[node].0,
                "hostname": subdomain.map(|_| format!("host-{n}")),
                "subdomain": subdomain.map(|service| SERVICES[service]),
                "initContainers": [{
                    "name": "sidecar", "image": "none:1", "restartPolicy": "Always", "ports": sidecar,
                }],
                "containers": [{ "name": "app", "image": "none:1", "ports": own }],
            },
        });
        let mut uids = Vec::new();
        for space in &self.spaces {
            uids.push(
                space.apply(object.clone()).await["metadata"]["uid"].as_str().expect("a UID").to_owned(),
            );
        }
        let uids = uids.try_into().expect("two");
        let (addresses, ready, leaving, ended) = (Vec::new(), false, false, false);
        self.pods.insert(n, Pod { ports, subdomain, node, selected, addresses, ready, leaving, ended, uids });
    }

    async fn put_status(&self, n: usize) {
        self.put_phase(n, "Running").await;
    }

    /// Writes the status of a pod as a kubelet does.
    async fn put_phase(&self, n: usize, phase: &str) {
        let pod = &self.pods[&n];
        let ips: Vec<Value> = pod.addresses.iter().map(|ip| json!({ "ip": ip })).collect();
        let ready = if pod.ready { "True" } else { "False" };
        let status = json!({ "status": {
            "phase": phase, "podIP": pod.addresses.first(), "podIPs": ips,
            "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z" }],
        } });
        for space in &self.spaces {
            let api = cluster::api_of(
                space.client(),
                Some(space.name()),
                &json!({ "apiVersion": "v1", "kind": "Pod" }),
            );
            let patched = api.patch_status(&name(n), &PatchParams::default(), &Patch::Merge(&status)).await;
            patched.unwrap_or_else(|error| panic!("status of {}: {error}", name(n)));
        }
    }

    async fn put_node(&self, node: usize) {
        let zone = self.zones[node].as_ref();
        let labels: BTreeMap<&str, &String> =
            zone.map(|zone| ("topology.kubernetes.io/zone", zone)).into_iter().collect();
        let object = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODES[node].0, "labels": labels },
        });
        cluster::apply(self.spaces[0].client(), None, &object).await;
    }

    async fn put_service(&self, n: usize) {
        let service = self.services[n];
        let ports = SERVICE_PORTS[service.ports].iter().map(|(name, port, protocol, number, target, app)| {
            let target = if *number == 0 { json!(target) } else { json!(number) };
            json!({ "name": name, "port": port, "protocol": protocol, "targetPort": target, "appProtocol": app })
        });
        let (families, policy): (&[&str], _) =
            if service.dual { (&["IPv4", "IPv6"], "RequireDualStack") } else { (&["IPv4"], "SingleStack") };
        let mut object = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": SERVICES[n], "labels": { "variant": format!("v{}", service.label) } },
            "spec": {
                "ports": ports.collect::<Vec<_>>(),
                "publishNotReadyAddresses": service.publishes_not_ready,
                "ipFamilies": families, "ipFamilyPolicy": policy,
            },
        });
        if n == 1 {
            object["spec"]["clusterIP"] = json!("None");
        }
        for (space, ours) in self.spaces.iter().zip([false, true]) {
            let mut object = object.clone();
            if ours {
                object["metadata"]["annotations"] =
                    json!({ "rouse.dev/selector": format!("app={}", label(true)) });
            } else {
                object["spec"]["selector"] = json!({ "app": label(true) });
            }
            space.apply(object).await;
        }
    }

    /// Has Kubernetes' own controller look at its Services.
    async fn touch(&mut self) {
        self.touched += 1;
        let note = json!({ "metadata": { "annotations": { "walk": self.touched.to_string() } } });
        for service in SERVICES {
            self.spaces[0].patch(SERVICE, service, note.clone()).await;
        }
    }

    /// Waits until both sides have the endpoints that the model expects.
    async fn settle(&self) {
        for (n, service) in SERVICES.iter().enumerate() {
            let expected = [0, 1].map(|side| self.expected(n, side));
            let mut last = [BTreeSet::new(), BTreeSet::new()];
            let agree = eventually("both sides to agree with the model", async || {
                for side in [0, 1] {
                    last[side] = endpoints(&slices_of(&self.spaces[side], service, MANAGERS[side]).await);
                }
                (last == expected).then_some(())
            });
            // The deadline of `eventually` is longer: this one shows what differs.
            let agreed = tokio::time::timeout(LONG_PATIENCE / 4, agree).await;
            for side in [0, 1] {
                let [lacks, has] =
                    [expected[side].difference(&last[side]), last[side].difference(&expected[side])]
                        .map(|set| set.cloned().collect::<Vec<_>>());
                assert!(agreed.is_ok(), "{service} of {}: lacks {lacks:#?}, has {has:#?}", MANAGERS[side]);
            }
        }
    }

    /// The endpoints of a Service by the rules of slices.md, as naively as possible.
    fn expected(&self, n: usize, side: usize) -> BTreeSet<String> {
        let service = self.services[n];
        let families: &[bool] = if service.dual { &[false, true] } else { &[false] };
        let mut all = BTreeSet::new();
        for (number, pod) in self.pods.iter().filter(|(_, pod)| pod.selected && !pod.ended) {
            for address in pod.addresses.iter().filter(|ip| families.contains(&ip.contains(':'))) {
                let ready = service.publishes_not_ready || pod.ready && !pod.leaving;
                let ports = SERVICE_PORTS[service.ports].iter().filter_map(
                    |(name, _, protocol, fixed, target, app)| {
                        let mut named = CONTAINER_PORTS[pod.ports].iter();
                        let named = named
                            .find(|(name, of, _)| name == target && of == protocol)
                            .map(|(.., port)| *port);
                        let port = if *fixed == 0 { named? } else { *fixed };
                        Some(json!([name, protocol, port, app]))
                    },
                );
                let mut ports: Vec<String> = ports.map(|port| port.to_string()).collect();
                ports.sort();
                all.insert(
                    json!([
                        if address.contains(':') { "IPv6" } else { "IPv4" },
                        [address],
                        [ready, pod.ready, pod.leaving],
                        pod.subdomain.filter(|service| *service == n).map(|_| format!("host-{number}")),
                        NODES[pod.node].0,
                        self.zones[pod.node],
                        [name(*number), pod.uids[side].clone()],
                        ports,
                    ])
                    .to_string(),
                );
            }
        }
        all
    }
}

fn name(n: usize) -> String {
    format!("p-{n}")
}

fn label(selected: bool) -> &'static str {
    if selected { "walk" } else { "elsewhere" }
}

/// The endpoints in these slices, each once, with everything that is compared.
fn endpoints(slices: &[Value]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for slice in slices {
        let ports = slice["ports"].as_array().into_iter().flatten();
        let mut ports: Vec<String> = ports
            .map(|port| {
                json!([port["name"], port["protocol"], port["port"], port["appProtocol"]]).to_string()
            })
            .collect();
        ports.sort();
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            let conditions = ["ready", "serving", "terminating"].map(|name| &endpoint["conditions"][name]);
            let pod = &endpoint["targetRef"];
            let text = json!([
                slice["addressType"],
                endpoint["addresses"],
                conditions,
                endpoint["hostname"],
                endpoint["nodeName"],
                endpoint["zone"],
                [&pod["name"], &pod["uid"]],
                ports,
            ]);
            let text = text.to_string();
            // An endpoint that is there twice is a difference, too.
            let text = if all.contains(&text) { format!("twice: {text}") } else { text };
            all.insert(text);
        }
    }
    all
}

//! Which endpoints Envoy has, with which health, and which of them get requests.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use prost::Message as _;
use rouse_core::endpoint::{Conditions, Endpoint, PortName, Slice, SliceEndpoint, SlicePort, Source, State};
use rouse_core::envoy::{EnvoyEndpoint, EnvoyHealth, EnvoyTarget, GatewayUse, endpoints};
use rouse_core::merge::{EndpointMerge, MergePolicy};
use rouse_core::snapshot::{PortView, Snapshot};
use rouse_core::time::Moment;
use rouse_grpc::xds::resource_type::ResourceType;
use rouse_grpc::xds::resources::{PodProtocol, cluster};
use rouse_testkit::fakes::{self, DRAINING, READY, STARTING, http};
use rouse_testkit::vectors;
use tokio::net::TcpSocket;

use crate::client::{ask, who_answers};
use crate::pods::{Pod, Speaks};
use crate::proto::{Cluster, Percent};
use crate::scene::{Scene, pod, spec};

/// With Rouse's panic threshold of 0, and with Envoy's default of 50 %.
const CLUSTERS: [&str; 2] = ["shop/web", "shop/panic"];

impl Scene {
    async fn with_both_thresholds() -> (Self, SocketAddr) {
        let scene = Self::start().await;
        let [ours, panics] = CLUSTERS;
        scene.cluster(ours, PodProtocol::Http1);
        let mut changed = Cluster::decode(cluster(&spec(panics, PodProtocol::Http1, None))).unwrap();
        let balance = changed.common_lb_config.as_mut().unwrap();
        assert_eq!(balance.healthy_panic_threshold, Some(Percent { value: 0.0 }));
        balance.healthy_panic_threshold = Some(Percent { value: 50.0 });
        scene.set(ResourceType::Cluster, panics, changed.encode_to_vec().into());
        let listener = scene.listen_for(&CLUSTERS).await;
        (scene, listener)
    }
}

/// Pods by the address that the row gives them.
#[derive(Default)]
struct Pods(BTreeMap<IpAddr, Pod>);

impl Pods {
    async fn at(&mut self, ip: IpAddr) -> SocketAddr {
        let IpAddr::V4(given) = ip else { panic!("{ip}") };
        match self.0.entry(ip) {
            Entry::Occupied(known) => known.get().address,
            Entry::Vacant(place) => {
                let [first, _, third, fourth] = given.octets();
                let pod = Pod::start(Ipv4Addr::new(127, first, third, fourth), Speaks::Http1).await;
                place.insert(pod).address
            }
        }
    }

    /// The same endpoints, at the addresses of the pods.
    async fn map(&mut self, all: Vec<EnvoyEndpoint>) -> Vec<EnvoyEndpoint> {
        let mut mapped = Vec::new();
        for EnvoyEndpoint { target, health } in all {
            let address = self.at(target.address().unwrap().ip()).await;
            let target = match target {
                EnvoyTarget::Gateway(_) => EnvoyTarget::Gateway(address),
                EnvoyTarget::Pod(_) => EnvoyTarget::Pod([address].into()),
            };
            mapped.push(EnvoyEndpoint { target, health });
        }
        mapped
    }
}

pub(crate) async fn vectors() {
    let (scene, listener) = Scene::with_both_thresholds().await;
    let mut pods = Pods::default();
    for row in vectors::endpoint_conditions().unwrap() {
        let context = format!("{} {}", row.id, row.name);
        let made = endpoints(&snapshot(&row), &http(), GatewayUse::default(), &[]);
        let all = pods.map(made).await;
        let mut expected = Vec::new();
        for one in &row.expected.envoy {
            let address = pods.at(one.address.parse().unwrap()).await;
            let health =
                if one.health_status == "HEALTHY" { EnvoyHealth::Healthy } else { EnvoyHealth::Draining };
            assert_eq!(health.as_str(), one.health_status, "{context}");
            expected.push(pod(address, health));
        }
        assert_eq!(all, expected, "{context}");
        let mut new_traffic = BTreeSet::new();
        for ip in &row.expected.new_traffic {
            new_traffic.insert(pods.at(ip.parse().unwrap()).await);
        }
        for cluster in CLUSTERS {
            // It waits for exactly these addresses, with exactly this health.
            scene.endpoints(cluster, &all, false).await;
            let answered = who_answers(listener, &cluster.replace('/', ".")).await;
            assert_eq!(answered, new_traffic, "{cluster}: {context}");
        }
    }
}

/// The endpoints of a row, as the merge of its slice sees them.
fn snapshot(row: &vectors::EndpointConditions) -> Snapshot {
    let endpoint = |(number, endpoint): (u32, &vectors::ConditionsEndpoint)| {
        let vectors::ConditionsEndpoint { ready, serving, terminating, .. } = *endpoint;
        SliceEndpoint {
            ip: endpoint.addresses.first().unwrap().parse().unwrap(),
            conditions: Conditions { ready, serving, terminating },
            pod: Some(fakes::pod(number)),
        }
    };
    let slice = Slice {
        ports: vec![SlicePort { name: http(), number: 80 }],
        endpoints: (1..).zip(&row.endpoints).map(endpoint).collect(),
    };
    let mut merge = EndpointMerge::new(MergePolicy::default());
    merge.put_slice("web-1", slice, Moment::from_nanos(0));
    Snapshot { ports: merge.view(), ..Snapshot::default() }
}

/// The states of pods `10.0.0.1` and up, what gateways do, and which addresses get requests; `10.9.0.1` and `.2` are gateways.
type GatewayRow = (&'static [State], GatewayUse, &'static [&'static str]);

const CAN_WAKE: GatewayUse = GatewayUse { always: false, without_pods: true, parked: false };
const PARKED: GatewayUse = GatewayUse { parked: true, ..CAN_WAKE };
const ALWAYS: GatewayUse = GatewayUse { always: true, ..CAN_WAKE };
const BOTH_GATEWAYS: &[&str] = &["10.9.0.1", "10.9.0.2"];

const GATEWAY_ROWS: [GatewayRow; 10] = [
    (&[], CAN_WAKE, BOTH_GATEWAYS),
    (&[State::Starting], CAN_WAKE, BOTH_GATEWAYS),
    (&[State::Ready], CAN_WAKE, &["10.0.0.1"]),
    (&[State::Draining, State::Ready], CAN_WAKE, &["10.0.0.2"]),
    (&[State::Draining, State::Draining], CAN_WAKE, BOTH_GATEWAYS),
    // More pods drain than there are gateways: more than half of all, so a panic threshold matters.
    (&[State::Draining; 9], CAN_WAKE, BOTH_GATEWAYS),
    (&[State::Ready, State::Ready], PARKED, BOTH_GATEWAYS),
    (&[State::Ready, State::Ready], CAN_WAKE, &["10.0.0.1", "10.0.0.2"]),
    (&[State::Ready, State::Draining], ALWAYS, BOTH_GATEWAYS),
    (&[], GatewayUse { without_pods: false, ..CAN_WAKE }, &[]),
];

pub(crate) async fn gateways() {
    let (scene, listener) = Scene::with_both_thresholds().await;
    let mut pods = Pods::default();
    let gateways: Vec<SocketAddr> =
        BOTH_GATEWAYS.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 8080)).collect();
    for row in &GATEWAY_ROWS {
        let (states, gateway_use, new_traffic) = row;
        let all = endpoints(&of_states(states), &http(), *gateway_use, &gateways);
        let all = pods.map(all).await;
        let mut expected = BTreeSet::new();
        for ip in *new_traffic {
            expected.insert(pods.at(ip.parse().unwrap()).await);
        }
        for cluster in CLUSTERS {
            scene.endpoints(cluster, &all, false).await;
            let answered = who_answers(listener, &cluster.replace('/', ".")).await;
            assert_eq!(answered, expected, "{cluster}: {row:?}");
        }
    }
}

fn of_states(states: &[State]) -> Snapshot {
    let endpoint = |(number, state): (u32, &State)| {
        let conditions = match state {
            State::Ready => READY,
            State::Draining => DRAINING,
            State::Starting => STARTING,
            State::Gone => Conditions::new(false, false, true),
        };
        Arc::new(Endpoint {
            pod: Some(fakes::pod(number)),
            addresses: [SocketAddr::new(fakes::ip(number), 80)].into(),
            state: conditions.state(),
            source: Source::Slice,
            conditions,
            load: Arc::default(),
            health: Arc::default(),
        })
    };
    let endpoints = (1..).zip(states).map(endpoint).collect();
    let port: PortName = http();
    Snapshot { ports: vec![PortView::new(port, endpoints)], ..Snapshot::default() }
}

pub(crate) async fn dual_stack() {
    let scene = Scene::start().await;
    scene.cluster("shop/web", PodProtocol::Http1);
    let listener = scene.listen_for(&["shop/web"]).await;
    // A socket that has the port and does not listen.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind(([127, 0, 1, 1], 0).into()).unwrap();
    let open = Pod::start(Ipv6Addr::LOCALHOST, Speaks::Http1).await;
    let target = EnvoyTarget::Pod([closed.local_addr().unwrap(), open.address].into());
    scene.endpoints("shop/web", &[EnvoyEndpoint { target, health: EnvoyHealth::Healthy }], false).await;
    assert_eq!(ask(listener, "shop.web", "/").await, (200, open.address.to_string()));
}

//! Publishes the pods of an app in the registry, as `EndpointSlice`s made by the rules of `core`.

use std::sync::Arc;

use rouse_core::endpoint::{PodRef, PortName, ServiceId, Slice, SliceEndpoint, SlicePort};
use rouse_core::service::Service;
use rouse_core::slices::{
    self, ContainerPort, EndpointSlice, Family, Labels, Node, Nodes, Options, PodPhase, Protocol,
    ServicePort, TargetPort,
};

use super::pod::{Pod, Stage};
use super::spec::PORT_NAME;

/// The name of the only node.
const NODE: &str = "local";
/// `appProtocol` of HTTP/2 without TLS.
const H2C: &str = "kubernetes.io/h2c";

/// The slices of one app.
#[derive(Debug)]
pub(super) struct Publisher {
    nodes: Nodes,
    standing: Vec<EndpointSlice>,
    /// How many slices were created, for unique names.
    named: u64,
}

impl Publisher {
    pub(super) fn new() -> Self {
        let nodes = Nodes::from([(Arc::from(NODE), Node::default())]);
        Self { nodes, standing: Vec::new(), named: 0 }
    }

    /// Publishes the current pods. Does nothing if no slice changes.
    pub(super) fn publish(&mut self, service: &Service, h2c: bool, pods: &[Pod]) {
        let object = object(service.id(), h2c);
        let running = pods.iter().filter(|pod| pod.processes.is_some());
        let pods: Vec<slices::Pod> = running.map(|pod| kube_pod(service.id(), pod)).collect();
        let plan = slices::reconcile(&object, &pods, &self.nodes, &self.standing, &Options::default());
        if plan.writes() == 0 {
            return;
        }
        self.standing = plan.into_slices(|| {
            self.named += 1;
            object.slice_name(&self.named.to_string())
        });
        service.replace_slices(self.standing.iter().map(|slice| (&*slice.name, routing(slice))));
    }
}

/// The app as a Service.
fn object(id: &ServiceId, h2c: bool) -> slices::ServiceFacts {
    let port = ServicePort {
        name: PortName::new(PORT_NAME),
        protocol: Protocol::Tcp,
        // A named port, because each pod has another port number.
        target: TargetPort::Name(PORT_NAME.into()),
        app_protocol: h2c.then(|| H2C.into()),
    };
    slices::ServiceFacts {
        id: id.clone(),
        uid: id.to_string().into(),
        labels: Labels::new(),
        ports: vec![port],
        ip_families: vec![Family::Ipv4],
        cluster_ip: None,
        publish_not_ready: false,
        deleting: false,
    }
}

/// The pod as a Kubernetes pod. Not ready until it drains: the probe decides about its readiness.
fn kube_pod(service: &ServiceId, pod: &Pod) -> slices::Pod {
    slices::Pod {
        namespace: service.namespace().into(),
        name: Arc::clone(&pod.name),
        uid: pod.uid.clone(),
        labels: Labels::new(),
        phase: PodPhase::Running,
        ready: matches!(pod.stage, Stage::Draining { .. }),
        deleting: !pod.stays(),
        ips: vec![pod.address.ip()],
        node: Some(NODE.into()),
        hostname: None,
        subdomain: None,
        ports: vec![ContainerPort {
            name: PORT_NAME.into(),
            number: pod.address.port(),
            protocol: Protocol::Tcp,
        }],
        init_containers: Vec::new(),
    }
}

/// A slice reduced to what routing needs.
fn routing(slice: &EndpointSlice) -> Slice {
    let port =
        |port: &slices::EndpointPort| Some(SlicePort { name: port.name.clone(), number: port.number? });
    let endpoint = |endpoint: &slices::ListedEndpoint| {
        let pod = endpoint.target.as_ref().map(|target| PodRef {
            uid: target.uid.clone(),
            name: format!("{}/{}", target.namespace, target.name).into(),
        });
        Some(SliceEndpoint { ip: *endpoint.addresses.first()?, conditions: endpoint.conditions, pod })
    };
    Slice {
        ports: slice.content.ports.iter().filter_map(port).collect(),
        endpoints: slice.content.endpoints.iter().filter_map(endpoint).collect(),
    }
}

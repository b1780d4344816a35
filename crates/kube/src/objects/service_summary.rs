//! A Service, reduced to what routes, endpoints and pushes need: its ports, its addresses, its selector, its annotations.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use rouse_core::endpoint::{BadServiceId, PortName, ServiceId};
use rouse_core::slices::{Labels, TargetPort};
use rouse_net::auth::PushMode;

use super::slices::{SELECTOR_ANNOTATION, parse_selector};
pub(crate) use super::upstream_tls::invalid_annotation;
pub use super::upstream_tls::{
    DataKind, DataLookup, DataRef, PemBytes, TlsAnnotations, TlsFacts, UPSTREAM_CA, UPSTREAM_CLIENT_CERT,
    UPSTREAM_SERVER_NAME, UPSTREAM_TLS,
};
use super::{Protocol, Service};

/// The prefix of all annotations of Rouse.
pub const ANNOTATIONS: &str = "rouse.dev/";
/// On a Service: `allow` lets endpoints without a pod have traffic.
pub const MANUAL_ENDPOINTS: &str = "rouse.dev/manual-endpoints";

/// On a Service: whether its pods may register themselves: `off`, `observe` or `on`.
pub const PUSH: &str = "rouse.dev/push";

/// A Service, reduced to what routes need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceSummary {
    /// Its name.
    pub id: ServiceId,
    /// How it may be reached.
    pub kind: ServiceKind,
    /// Its TCP ports.
    pub ports: Vec<PortFacts>,
    /// The labels of its pods; empty: Kubernetes does not write its slices.
    pub selector: Labels,
    /// The annotation that names the pods of a Service without a selector. `None` also if it is invalid.
    pub annotated_selector: Option<Labels>,
    /// What its owner decided about pushes of its pods; `None`: the default of the gateway. An invalid annotation is `Off`:
    /// the owner wanted to restrict them.
    pub push: Option<PushMode>,
    /// Its invalid annotations about pods and pushes, each with what is allowed.
    pub invalid: Vec<String>,
    /// Whether its annotation asks for traffic to endpoints without a pod.
    pub manual_endpoints: bool,
    /// Its fields that have no effect while requests go straight to pods.
    pub ignored: Vec<&'static str>,
    /// Its annotations for TLS.
    pub tls: TlsAnnotations,
    /// Its annotations with the prefix of Rouse.
    pub annotations: BTreeMap<String, String>,
}

/// How a Service may be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceKind {
    /// At these addresses, one per family.
    ClusterIp(Arc<[IpAddr]>),
    /// At its pods only.
    Headless,
    /// It is a name for another host. Rouse refuses it.
    ExternalName,
}

/// A TCP port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortFacts {
    /// Its name in slices.
    pub name: PortName,
    /// The number that clients of the Service dial.
    pub number: u16,
    /// The port of its pods.
    pub target: TargetPort,
    /// The protocol of its pods.
    pub protocol: AppProtocol,
}

/// The protocol of pods, from `appProtocol`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AppProtocol {
    /// HTTP/1.1, the default.
    Http,
    /// HTTP/2 without TLS.
    H2c,
    /// HTTP over TLS.
    Https,
}

/// A Service's port as a route names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PortRef {
    /// By number.
    Number(u16),
    /// By name.
    Name(Arc<str>),
}

impl fmt::Display for PortRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortRef::Number(number) => write!(f, "{number}"),
            PortRef::Name(name) => write!(f, "{name:?}"),
        }
    }
}

/// A port of a Service, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedPort {
    /// The service.
    pub service: ServiceId,
    /// The port, as the registry knows it.
    pub port: PortName,
    /// The number that clients of the Service dial at its `cluster_ips`.
    pub number: u16,
    /// The protocol of its pods.
    pub protocol: AppProtocol,
    /// Empty for a headless Service.
    pub cluster_ips: Arc<[IpAddr]>,
    /// The TLS settings for its pods. The same `Arc` as before as long as nothing of it changes.
    pub tls: Arc<TlsFacts>,
}

/// Why a route's Service or port cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortFault {
    /// The Service does not exist: 503 `no_service`.
    #[error("there is no Service {0}")]
    NoService(ServiceId),
    /// The route is invalid and has no earlier valid version: 503 `no_service`.
    #[error("route {0} is invalid and has no earlier valid version")]
    Faulty(String),
    /// The Service is a DNS alias: 503 `no_service`.
    #[error("Service {0} is of type ExternalName, which Rouse does not route to")]
    ExternalName(ServiceId),
    /// The Service does not have the port: 502 `bad_port`.
    #[error("Service {service} has no TCP port {port}; it has {has}")]
    BadPort {
        /// The Service.
        service: ServiceId,
        /// The port that the route names.
        port: PortRef,
        /// The TCP ports that the Service has.
        has: String,
    },
}

impl ServiceSummary {
    /// What routes need of `service`.
    pub fn new(service: Service) -> Result<Self, BadServiceId> {
        let id = service.metadata.service_id()?;
        let kind = if service.is_external_name() {
            ServiceKind::ExternalName
        } else if service.is_headless() {
            ServiceKind::Headless
        } else {
            let spec = &service.spec;
            let all =
                if spec.cluster_ips.is_empty() { spec.cluster_ip.as_slice() } else { &spec.cluster_ips };
            ServiceKind::ClusterIp(all.iter().filter_map(|ip| ip.parse().ok()).collect())
        };
        let ports = service.spec.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
        let ports = ports.map(|port| PortFacts {
            name: PortName::new(&port.name),
            number: port.port.get(),
            target: port.target(),
            protocol: AppProtocol::read(port.app_protocol.as_deref()),
        });
        let ports = ports.collect();
        let ignored = ignored(&service);
        let annotations = service.metadata.annotations;
        let annotations: BTreeMap<_, _> =
            annotations.into_iter().filter(|(key, _)| key.starts_with(ANNOTATIONS)).collect();
        let mut invalid = Vec::new();
        Ok(Self {
            annotated_selector: annotated_selector(&annotations, &mut invalid),
            push: push_mode(&annotations, &mut invalid),
            invalid,
            manual_endpoints: annotations.get(MANUAL_ENDPOINTS).is_some_and(|value| value == "allow"),
            selector: service.spec.selector,
            tls: TlsAnnotations::read(id.namespace(), &annotations),
            id,
            kind,
            ports,
            ignored,
            annotations,
        })
    }

    /// Resolves the port that a route names. `tls` has the TLS settings of the Service.
    pub fn resolve(&self, port: &PortRef, tls: Arc<TlsFacts>) -> Result<ResolvedPort, PortFault> {
        let cluster_ips = match &self.kind {
            ServiceKind::ExternalName => return Err(PortFault::ExternalName(self.id.clone())),
            ServiceKind::Headless => Arc::default(),
            ServiceKind::ClusterIp(ips) => Arc::clone(ips),
        };
        let mut ports = self.ports.iter();
        let found = ports.find(|facts| match port {
            PortRef::Number(number) => facts.number == *number,
            PortRef::Name(name) => facts.name.as_str() == &**name,
        });
        let found = found.ok_or_else(|| self.bad_port(port))?;
        Ok(ResolvedPort {
            service: self.id.clone(),
            port: found.name.clone(),
            number: found.number,
            protocol: found.protocol,
            cluster_ips,
            tls,
        })
    }

    fn bad_port(&self, port: &PortRef) -> PortFault {
        let has = self.ports.iter().map(|port| match port.name.as_str() {
            "" => port.number.to_string(),
            name => format!("{} ({name})", port.number),
        });
        let has: Vec<String> = has.collect();
        let has = if has.is_empty() { "none".to_owned() } else { has.join(", ") };
        PortFault::BadPort { service: self.id.clone(), port: port.clone(), has }
    }

    /// The labels of its pods, from its selector or its annotation; `None` if it names no pods.
    pub fn pod_selector(&self) -> Option<&Labels> {
        if self.selector.is_empty() { self.annotated_selector.as_ref() } else { Some(&self.selector) }
    }

    /// Whether Kubernetes or Rouse writes its slices from pods.
    pub fn has_selector(&self) -> bool {
        !self.selector.is_empty() || self.annotations.contains_key(SELECTOR_ANNOTATION)
    }

    /// The selector of its annotation, if it has no selector of its own: Rouse writes its slices then.
    pub fn selector_of_own_slices(&self) -> Option<&Labels> {
        self.annotated_selector.as_ref().filter(|_| self.selector.is_empty())
    }
}

impl AppProtocol {
    fn read(text: Option<&str>) -> Self {
        match text {
            Some("kubernetes.io/h2c") => AppProtocol::H2c,
            Some(text) if text.eq_ignore_ascii_case("https") => AppProtocol::Https,
            _ => AppProtocol::Http,
        }
    }
}

fn annotated_selector(annotations: &Labels, invalid: &mut Vec<String>) -> Option<Labels> {
    let text = annotations.get(SELECTOR_ANNOTATION)?;
    let parsed = parse_selector(text).ok();
    if parsed.is_none() {
        invalid.push(invalid_annotation(
            SELECTOR_ANNOTATION,
            text,
            "key=value, or several separated by commas",
        ));
    }
    parsed
}

fn push_mode(annotations: &Labels, invalid: &mut Vec<String>) -> Option<PushMode> {
    let text = annotations.get(PUSH)?;
    let mode = PushMode::parse(text);
    if mode.is_none() {
        invalid
            .push(format!("{}; pods do not register", invalid_annotation(PUSH, text, "off, observe or on")));
    }
    Some(mode.unwrap_or(PushMode::Off))
}

fn ignored(service: &Service) -> Vec<&'static str> {
    let spec = &service.spec;
    let said = |text: &Option<String>, default: &str| {
        text.as_deref().is_some_and(|text| !text.is_empty() && text != default)
    };
    let all = [
        (said(&spec.session_affinity, "None"), "sessionAffinity"),
        (said(&spec.internal_traffic_policy, "Cluster"), "internalTrafficPolicy"),
        (said(&spec.traffic_distribution, ""), "trafficDistribution"),
    ];
    all.into_iter().filter(|(said, _)| *said).map(|(_, field)| field).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(spec: &str) -> ServiceSummary {
        let json = format!(
            r#"{{"metadata": {{"name": "cart", "namespace": "shop", "annotations": {{"a": "b"}}}}, "spec": {spec}}}"#
        );
        ServiceSummary::new(serde_json::from_str(&json).unwrap()).unwrap()
    }

    #[test]
    fn a_port_is_found_by_number_and_by_name() {
        let single = facts(r#"{"ports": [{"port": 80, "targetPort": 8080}], "clusterIP": "10.0.0.1"}"#);
        let named = facts(r#"{"ports": [{"name": "web", "port": 80}], "clusterIP": "10.0.0.1"}"#);
        let several = facts(
            r#"{"clusterIPs": ["10.0.0.1", "fd00::1"], "clusterIP": "10.0.0.1", "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "web", "port": 80},
                {"name": "grpc", "port": 90, "appProtocol": "kubernetes.io/h2c"},
                {"name": "tls", "port": 443, "appProtocol": "HTTPS"}]}"#,
        );
        for (facts, port, expected) in [
            (&single, PortRef::Number(80), Some("")),
            (&single, PortRef::Number(8080), None),
            (&single, PortRef::Name("".into()), Some("")),
            (&single, PortRef::Name("web".into()), None),
            (&named, PortRef::Number(80), Some("web")),
            (&named, PortRef::Name("web".into()), Some("web")),
            (&several, PortRef::Number(90), Some("grpc")),
            (&several, PortRef::Name("tls".into()), Some("tls")),
            (&several, PortRef::Number(53), None),
            (&several, PortRef::Name("dns".into()), None),
        ] {
            let found = facts.resolve(&port, Arc::default()).map(|found| found.port.to_string());
            assert_eq!(found.as_deref().ok(), expected, "{port}: {found:?}");
        }
        let grpc = several.resolve(&PortRef::Number(90), Arc::default()).unwrap();
        assert_eq!((grpc.protocol, grpc.cluster_ips.len()), (AppProtocol::H2c, 2));
        assert_eq!(
            several.resolve(&PortRef::Number(443), Arc::default()).unwrap().protocol,
            AppProtocol::Https
        );
        let fault = several.resolve(&PortRef::Number(1), Arc::default()).unwrap_err().to_string();
        assert_eq!(fault, "Service shop/cart has no TCP port 1; it has 80 (web), 90 (grpc), 443 (tls)");
    }

    #[test]
    fn headless_and_external_name_services_are_recognised() {
        let port = PortRef::Number(80);
        let headless = facts(r#"{"clusterIP": "None", "ports": [{"port": 80}]}"#);
        assert!(headless.resolve(&port, Arc::default()).unwrap().cluster_ips.is_empty());
        let external = facts(r#"{"type": "ExternalName", "ports": [{"port": 80}]}"#);
        assert!(matches!(external.resolve(&port, Arc::default()), Err(PortFault::ExternalName(_))));
    }

    #[test]
    fn what_is_not_honoured_is_said() {
        let plain = facts(r#"{"sessionAffinity": "None", "internalTrafficPolicy": "Cluster"}"#);
        assert_eq!(plain.ignored, Vec::<&str>::new());
        let invalid = r#"{"sessionAffinity": "ClientIP", "internalTrafficPolicy": "Local",
                      "trafficDistribution": "PreferClose"}"#;
        assert_eq!(
            facts(invalid).ignored,
            ["sessionAffinity", "internalTrafficPolicy", "trafficDistribution"]
        );
        assert!(plain.annotations.is_empty(), "only ours are kept");
    }
}

//! Probes of a container, and which of them the gateway can send itself.

use rouse_core::probe::{ProbeCheck, ProbeSpec, ReadinessProbe};
use serde::Deserialize;

use super::{Container, Pod, PortNumber, Protocol, TargetPort, null_is_default};

/// A probe of a [`Container`]. One of the kinds is set; if none is, it is one that the gateway cannot send, like `exec`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a probe")]
pub struct Probe {
    /// An HTTP GET.
    #[serde(default)]
    pub http_get: Option<HttpAction>,
    /// A TCP connect.
    #[serde(default)]
    pub tcp_socket: Option<TcpAction>,
    /// A call of the gRPC health service.
    #[serde(default)]
    pub grpc: Option<GrpcAction>,
}

/// `httpGet` of a [`Probe`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object with the fields of httpGet")]
pub struct HttpAction {
    /// Absent: `/`.
    #[serde(default)]
    pub path: Option<String>,
    /// By number, or by the name that the container declares.
    pub port: TargetPort,
    /// Absent: the pod's own address.
    #[serde(default)]
    pub host: Option<String>,
    /// `HTTPS`: over TLS.
    #[serde(default)]
    pub scheme: Option<String>,
    /// The headers of the request.
    #[serde(default, deserialize_with = "null_is_default")]
    pub http_headers: Vec<HttpHeader>,
}

/// A header of an [`HttpAction`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(expecting = "an object with name and value")]
pub struct HttpHeader {
    /// Its name.
    pub name: String,
    /// Its value.
    #[serde(default, deserialize_with = "null_is_default")]
    pub value: String,
}

/// `tcpSocket` of a [`Probe`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(expecting = "an object with the fields of tcpSocket")]
pub struct TcpAction {
    /// By number, or by the name that the container declares.
    pub port: TargetPort,
    /// Absent: the pod's own address.
    #[serde(default)]
    pub host: Option<String>,
}

/// `grpc` of a [`Probe`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(expecting = "an object with the fields of grpc")]
pub struct GrpcAction {
    /// By number only.
    pub port: PortNumber,
    /// The service name in the health request.
    #[serde(default, deserialize_with = "null_is_default")]
    pub service: String,
}

impl Pod {
    /// The probes that decide its readiness. A container with a startup probe is not ready before that probe has passed,
    /// so startup probes are included.
    pub fn probe_spec(&self) -> ProbeSpec {
        let containers = self.lasting_containers().flat_map(|container| {
            let probes = [&container.readiness_probe, &container.startup_probe];
            probes.map(|probe| probe.as_ref().map(|probe| readiness(probe, container)))
        });
        ProbeSpec { containers: containers.collect(), readiness_gates: self.spec.readiness_gates.len() }
    }
}

fn readiness(probe: &Probe, container: &Container) -> ReadinessProbe {
    let named = |host: &Option<String>| host.as_deref().is_some_and(|host| !host.is_empty());
    let (check, foreign_host) = match probe {
        Probe { http_get: Some(http), .. } => (http_check(http, container), named(&http.host)),
        Probe { tcp_socket: Some(tcp), .. } => {
            (number(&tcp.port, container).map(|port| ProbeCheck::Tcp { port }), named(&tcp.host))
        }
        Probe { grpc: Some(grpc), .. } => {
            (Some(ProbeCheck::Grpc { port: grpc.port.get(), service: grpc.service.clone() }), false)
        }
        _ => (None, false),
    };
    ReadinessProbe { check: check.unwrap_or(ProbeCheck::Unsupported), foreign_host }
}

fn http_check(http: &HttpAction, container: &Container) -> Option<ProbeCheck> {
    let path = http.path.as_deref().unwrap_or_default();
    Some(ProbeCheck::Http {
        port: number(&http.port, container)?,
        path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
        tls: http.scheme.as_deref() == Some("HTTPS"),
        headers: http.http_headers.iter().map(|header| (header.name.clone(), header.value.clone())).collect(),
    })
}

/// The number of a port. A name refers to a port of the container itself: kubelet looks nowhere else.
fn number(port: &TargetPort, container: &Container) -> Option<u16> {
    match port {
        TargetPort::Number(number) => Some(number.get()),
        TargetPort::Name(name) => {
            let tcp = container.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
            let mut named = tcp.filter(|port| port.name.as_deref() == Some(name.as_str()));
            named.next().map(|port| port.container_port.get())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(spec: &str) -> ProbeSpec {
        let json = format!(r#"{{"metadata": {{"name": "cart-1"}}, "spec": {spec}}}"#);
        serde_json::from_str::<Pod>(&json).unwrap().probe_spec()
    }

    #[test]
    fn each_kind_of_probe_is_understood() {
        let spec = checks(
            r#"{"containers": [
                {"ports": [{"name": "web", "containerPort": 8080}],
                 "readinessProbe": {"httpGet": {"port": "web", "path": "live?x=1", "scheme": "HTTPS",
                                                "httpHeaders": [{"name": "A", "value": "b"}]}}},
                {"readinessProbe": {"tcpSocket": {"port": 5432}}},
                {"readinessProbe": {"grpc": {"port": 9000, "service": null}}, "startupProbe": {"exec": {}}},
                {}],
               "initContainers": [{"readinessProbe": {"tcpSocket": {"port": 1}}},
                                  {"restartPolicy": "Always", "readinessProbe": {"tcpSocket": {"port": 2}}}]}"#,
        );
        let checks: Vec<ProbeCheck> =
            spec.containers.into_iter().flatten().map(|probe| probe.check).collect();
        let headers = vec![("A".to_owned(), "b".to_owned())];
        assert_eq!(
            checks,
            [
                ProbeCheck::Http { port: 8080, path: "/live?x=1".into(), tls: true, headers },
                ProbeCheck::Tcp { port: 5432 },
                ProbeCheck::Grpc { port: 9000, service: String::new() },
                ProbeCheck::Unsupported,
                ProbeCheck::Tcp { port: 2 },
            ]
        );
    }

    #[test]
    fn what_cannot_be_asked_at_the_pods_own_address_is_marked() {
        let only = |spec: &str| {
            let all: Vec<ReadinessProbe> = checks(spec).containers.into_iter().flatten().collect();
            all.into_iter().next().unwrap()
        };
        let unknown = only(r#"{"containers": [{"readinessProbe": {"httpGet": {"port": "nobody"}}}]}"#);
        assert_eq!(unknown.check, ProbeCheck::Unsupported, "a name that the container does not declare");
        let foreign = r#"{"containers": [{"readinessProbe": {"tcpSocket": {"port": 1, "host": "db"}}}]}"#;
        assert!(only(foreign).foreign_host);
        let gates =
            r#"{"containers": [], "readinessGates": [{"conditionType": "a"}, {"conditionType": "b"}]}"#;
        assert_eq!(checks(gates).readiness_gates, 2);
    }
}

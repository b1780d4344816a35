//! Plans the sidecar of a workload: the app's container, port, protocol and probe. Rejects workloads that a sidecar would break.

use std::collections::BTreeSet;

use rouse_config::document::{DocumentNode, Value};
use rouse_daemon::sidecar::settings::AppCheck;

use super::args::InjectArgs;
use super::document_tree::{at, elements, is_named, text};
use super::patch::{SIDECAR, VOLUME};
use super::selection::{name, refused};
use crate::CommandError;

/// The part of a workload that is the spec of its pods.
pub(super) const POD: [&str; 3] = ["spec", "template", "spec"];
/// The grace period of a pod that does not say one, in seconds.
const GRACE: i64 = 30;

/// How the sidecar stands before an app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SidecarPlan {
    /// The name of the app's container.
    pub(super) container: String,
    /// The port of the app.
    pub(super) app: u16,
    /// Whether the app speaks HTTP/2 without TLS.
    pub(super) h2c: bool,
    /// How the sidecar probes the app.
    pub(super) probe: AppCheck,
    /// Whether the sidecar takes over the app's readinessProbe.
    pub(super) takes_probe: bool,
    /// The other containers with a readinessProbe, which the sidecar does not run.
    pub(super) other_probes: Vec<String>,
    /// Whether the app has a preStop hook of its own.
    pub(super) has_pre_stop: bool,
    /// The Service that the pods register for.
    pub(super) service: String,
    /// All TCP ports of the Service: the name, the number on the pod, and whether it is the sidecar's.
    pub(super) ports: Vec<PlannedPort>,
    /// The pod's grace period, in seconds.
    pub(super) grace: u64,
}

/// A TCP port of the Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlannedPort {
    /// Its name; empty if it has none.
    pub(super) name: String,
    /// Its number on the pod.
    pub(super) number: u16,
    /// Whether its requests go through the sidecar.
    pub(super) via_sidecar: bool,
}

/// A port of the Service as the file has it.
struct ServicePort<'n> {
    node: &'n DocumentNode,
    name: &'n str,
    number: Option<u16>,
}

/// Makes the plan, from objects without the sidecar.
pub(super) fn plan(
    workload: &DocumentNode,
    service: &DocumentNode,
    args: &InjectArgs,
) -> Result<SidecarPlan, CommandError> {
    check_conflicts(workload, args)?;
    let ports = service_ports(workload, service);
    let app = app_port(&ports, service, args)?;
    let main = ports.iter().filter(|port| port.number == Some(app));
    let protocols: BTreeSet<&str> = main.map(|port| protocol(port)).collect();
    reject_tls(service, &protocols)?;
    let container = container(workload, app)?;
    let (probe, takes_probe) = probe(workload, container, app, args)?;
    let other_probes = other_probes(workload, container, args)?;
    let planned = ports.iter().filter_map(|port| {
        let number = port.number?;
        Some(PlannedPort { name: port.name.to_owned(), number, via_sidecar: number == app })
    });
    let grace =
        match at(workload, &[&POD[..], &["terminationGracePeriodSeconds"]].concat()).map(|it| &it.value) {
            Some(Value::Integer(seconds)) => *seconds,
            _ => GRACE,
        };
    Ok(SidecarPlan {
        container: text(container, &["name"]).unwrap_or_default().to_owned(),
        app,
        h2c: protocols.contains("kubernetes.io/h2c"),
        probe,
        takes_probe,
        other_probes,
        has_pre_stop: at(container, &["lifecycle", "preStop"]).is_some_and(|it| it.value != Value::Null),
        service: name(service).to_owned(),
        ports: planned.collect(),
        grace: u64::try_from(grace).unwrap_or_default(),
    })
}

/// Refuses pods that use the names or the ports of the sidecar, or the network of their node.
fn check_conflicts(workload: &DocumentNode, args: &InjectArgs) -> Result<(), CommandError> {
    let pod = |key: &str| elements(workload, &[&POD[..], &[key]].concat());
    if at(workload, &[&POD[..], &["hostNetwork"]].concat()).is_some_and(|it| it.value == Value::Bool(true)) {
        return Err(refused(
            workload,
            "its pods use the network of their node (hostNetwork), where the ports of two sidecars would collide",
        ));
    }
    if !pod("readinessGates").is_empty() {
        return Err(refused(
            workload,
            "its pods have readinessGates, and the sidecar sees only the app: a pod would get requests before its gates are true. Remove \
             the gates, or leave this workload without the sidecar",
        ));
    }
    for (list, taken) in [("containers", SIDECAR), ("initContainers", SIDECAR), ("volumes", VOLUME)] {
        if pod(list).iter().any(|it| is_named(it, taken)) {
            return Err(refused(
                workload,
                format!("{list} already has {taken}, which rouse inject did not add: rename or remove it"),
            ));
        }
    }
    if args.sidecar_port == args.admin_port {
        return Err(CommandError::Input(format!(
            "--sidecar-port and --admin-port are both {}: choose two ports",
            args.admin_port
        )));
    }
    let ours = [("--sidecar-port", args.sidecar_port), ("--admin-port", args.admin_port)];
    for (flag, port) in ours {
        if container_ports(workload).any(|(_, number)| number == port.get()) {
            return Err(refused(
                workload,
                format!("a container has the port {port}: choose another one with {flag}"),
            ));
        }
    }
    Ok(())
}

/// The TCP ports that the containers of the pods declare, by name.
fn container_ports(workload: &DocumentNode) -> impl Iterator<Item = (Option<&str>, u16)> {
    all_containers(workload).flat_map(declared)
}

fn all_containers(workload: &DocumentNode) -> impl Iterator<Item = &DocumentNode> {
    let containers =
        ["containers", "initContainers"].map(|key| elements(workload, &[&POD[..], &[key]].concat()));
    containers.into_iter().flatten()
}

fn declared(container: &DocumentNode) -> impl Iterator<Item = (Option<&str>, u16)> {
    let tcp = |port: &&DocumentNode| is_tcp(port);
    elements(container, &["ports"])
        .iter()
        .filter(tcp)
        .filter_map(|port| Some((text(port, &["name"]), number(port.get("containerPort")?)?)))
}

fn is_tcp(port: &DocumentNode) -> bool {
    matches!(text(port, &["protocol"]), None | Some("TCP"))
}

fn number(node: &DocumentNode) -> Option<u16> {
    match node.value {
        Value::Integer(number) => u16::try_from(number).ok(),
        _ => None,
    }
}

/// The TCP ports of the Service. The number is `None` for a target port that no container declares by that name.
fn service_ports<'n>(workload: &DocumentNode, service: &'n DocumentNode) -> Vec<ServicePort<'n>> {
    let resolve = |port: &DocumentNode| match port.get("targetPort").or_else(|| port.get("port"))? {
        DocumentNode { value: Value::Text(wanted), .. } => {
            container_ports(workload).find(|(name, _)| *name == Some(wanted)).map(|(_, number)| number)
        }
        target => number(target),
    };
    let tcp = elements(service, &["spec", "ports"]).iter().filter(|port| is_tcp(port));
    tcp.map(|node| ServicePort {
        node,
        name: text(node, &["name"]).unwrap_or_default(),
        number: resolve(node),
    })
    .collect()
}

fn protocol<'n>(port: &ServicePort<'n>) -> &'n str {
    text(port.node, &["appProtocol"]).unwrap_or_default()
}

/// The port of the app that gets the sidecar.
fn app_port(
    ports: &[ServicePort<'_>],
    service: &DocumentNode,
    args: &InjectArgs,
) -> Result<u16, CommandError> {
    let is_wanted = |port: &&ServicePort<'_>| match &args.port {
        Some(wanted) => {
            let by_number = port.node.get("port").and_then(number).map(|number| number.to_string());
            port.name == *wanted || by_number.as_ref() == Some(wanted)
        }
        None => true,
    };
    let wanted: Vec<&ServicePort<'_>> = ports.iter().filter(is_wanted).collect();
    if let (Some(port), []) = (&args.port, &*wanted) {
        return Err(refused(service, format!("--port {port}: it has no TCP port of this name or number")));
    }
    let numbers =
        |ports: &[&ServicePort<'_>]| ports.iter().filter_map(|port| port.number).collect::<BTreeSet<u16>>();
    let all = numbers(&wanted);
    let http: Vec<&ServicePort<'_>> = wanted.iter().copied().filter(|port| looks_like_http(port)).collect();
    let http = numbers(&http);
    match (all.first(), http.first()) {
        (None, _) => Err(refused(
            service,
            "none of its target ports is a TCP port of the workload: a named target port must be in the ports of a container",
        )),
        (Some(only), _) if all.len() == 1 => Ok(*only),
        (_, Some(only)) if http.len() == 1 => Ok(*only),
        _ => {
            let names: Vec<String> = wanted.iter().map(|port| port.name.to_owned()).collect();
            Err(refused(
                service,
                format!(
                    "it has several ports ({}), and the sidecar serves one port of the app: choose it with --port NAME",
                    names.join(", ")
                ),
            ))
        }
    }
}

/// Whether the name or the protocol of a port says that it is HTTP.
fn looks_like_http(port: &ServicePort<'_>) -> bool {
    let word = port.name.split('-').next().unwrap_or_default();
    matches!(word, "http" | "http2" | "h2c" | "grpc" | "web")
        || matches!(protocol(port), "http" | "grpc" | "kubernetes.io/h2c" | "kubernetes.io/ws")
}

/// Refuses an app that speaks TLS: the sidecar does not.
fn reject_tls(service: &DocumentNode, protocols: &BTreeSet<&str>) -> Result<(), CommandError> {
    let annotation = text(service, &["metadata", "annotations", "rouse.dev/upstream-tls"]);
    if annotation == Some("true") || (protocols.contains("https") && annotation != Some("false")) {
        return Err(refused(
            service,
            "its pods speak TLS (appProtocol https, or rouse.dev/upstream-tls), and the sidecar speaks plain HTTP on both sides",
        ));
    }
    Ok(())
}

/// The container of the app: the one that declares the port, or else the only one.
fn container(workload: &DocumentNode, app: u16) -> Result<&DocumentNode, CommandError> {
    let containers = elements(workload, &[&POD[..], &["containers"]].concat());
    let found = containers.iter().find(|it| declared(it).any(|(_, number)| number == app));
    match (found, containers) {
        (Some(found), _) => Ok(found),
        (None, [only]) => Ok(only),
        (None, []) => Err(refused(workload, "it has no containers")),
        (None, _) => Err(refused(
            workload,
            format!(
                "it has several containers, and none declares the port {app}: add it to the ports of the app's container"
            ),
        )),
    }
}

/// How the sidecar probes the app, and whether that takes the place of the app's readinessProbe.
fn probe(
    workload: &DocumentNode,
    container: &DocumentNode,
    app: u16,
    args: &InjectArgs,
) -> Result<(AppCheck, bool), CommandError> {
    let own = container.get("readinessProbe").filter(|it| it.value != Value::Null);
    let taken = own.map(|own| translated(own, container, app));
    match (&args.probe, taken) {
        // The app's own probe decides too, unless the sidecar runs the same probe.
        (Some(wanted), taken) => {
            Ok((wanted.clone(), taken.is_some_and(|taken| taken.as_ref() == Ok(wanted))))
        }
        (None, None) => Ok((AppCheck::Tcp, false)),
        (None, Some(Ok(probe))) => Ok((probe, true)),
        (None, Some(Err(why))) => Err(refused(
            workload,
            format!(
                "the sidecar cannot take over the readinessProbe of container {}: {why}. A pod would get requests before that \
                 probe succeeds. Set the sidecar's probe with --probe tcp, http:PATH or grpc:SERVICE",
                text(container, &["name"]).unwrap_or_default()
            ),
        )),
    }
}

/// The containers besides the app's that have a readinessProbe. Refuses them, unless the operator chose the sidecar's probe.
fn other_probes(
    workload: &DocumentNode,
    app: &DocumentNode,
    args: &InjectArgs,
) -> Result<Vec<String>, CommandError> {
    let name = |container: &DocumentNode| text(container, &["name"]).unwrap_or_default().to_owned();
    let has_probe =
        |container: &&DocumentNode| container.get("readinessProbe").is_some_and(|it| it.value != Value::Null);
    let others = all_containers(workload).filter(has_probe).map(name).filter(|other| *other != name(app));
    let others: Vec<String> = others.collect();
    if others.is_empty() || args.probe.is_some() {
        return Ok(others);
    }
    Err(refused(
        workload,
        format!(
            "the sidecar does not run the readinessProbe of {}: a pod would get requests before that probe succeeds. Set the \
             sidecar's probe with --probe tcp, http:PATH or grpc:SERVICE, to one that succeeds only when the whole pod is ready",
            others.join(", ")
        ),
    ))
}

/// The probe of the sidecar that checks the same as this readinessProbe.
fn translated(probe: &DocumentNode, container: &DocumentNode, app: u16) -> Result<AppCheck, String> {
    let (port, probe) = handler(probe)?;
    let port = match port {
        Some(DocumentNode { value: Value::Text(wanted), .. }) => {
            declared(container).find(|(name, _)| *name == Some(wanted)).map(|(_, number)| number)
        }
        Some(port) => number(port),
        None => None,
    };
    if port == Some(app) { Ok(probe) } else { Err(format!("it checks a port other than {app}")) }
}

/// What a readinessProbe checks, if the sidecar can check it: the port, and the probe of the sidecar.
pub(super) fn handler(probe: &DocumentNode) -> Result<(Option<&DocumentNode>, AppCheck), String> {
    let is_set = |node: &DocumentNode, key: &str| node.get(key).is_some_and(|it| it.value != Value::Null);
    let plain = |handler: &DocumentNode| {
        if is_set(handler, "host") { Err("it has host".to_owned()) } else { Ok(()) }
    };
    if is_set(probe, "exec") {
        return Err("it runs a command (exec)".to_owned());
    }
    if let Some(get) = probe.get("httpGet") {
        plain(get)?;
        if !elements(get, &["httpHeaders"]).is_empty() {
            return Err("it has httpHeaders".to_owned());
        }
        if !matches!(text(get, &["scheme"]), None | Some("HTTP")) {
            return Err("it uses HTTPS".to_owned());
        }
        let path = text(get, &["path"]).filter(|path| !path.is_empty()).unwrap_or("/");
        let slash = if path.starts_with('/') { "" } else { "/" };
        return Ok((get.get("port"), AppCheck::Http(format!("{slash}{path}"))));
    }
    if let Some(socket) = probe.get("tcpSocket") {
        plain(socket)?;
        return Ok((socket.get("port"), AppCheck::Tcp));
    }
    if let Some(grpc) = probe.get("grpc") {
        let service = text(grpc, &["service"]).unwrap_or_default();
        return Ok((grpc.get("port"), AppCheck::Grpc(service.to_owned())));
    }
    Err("it has no httpGet, tcpSocket or grpc".to_owned())
}

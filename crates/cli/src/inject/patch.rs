//! Changes the objects as planned: the sidecar's container and volume, the hooks, and the target port of the Service.

use rouse_config::document::{DocumentNode, Value};
use rouse_daemon::sidecar::settings::DRAIN_SECRET_HEADER;
use rouse_kube::objects::injected::{CA_KEY, REGISTER_VOLUME, SIDECAR_CONTAINER, SIDECAR_PORT};
use rouse_net::auth::REGISTER_AUDIENCE;
use serde_json::{Value as Json, json};

use super::args::InjectArgs;
use super::document_tree::{PathStep, elements, is_named, text};
use super::editor::Editor;
use super::plan::{POD, SidecarPlan};
use crate::names::IpFamily;

/// The name of the sidecar's container.
pub(super) const SIDECAR: &str = SIDECAR_CONTAINER;
/// The name of the volume with the token and the CA.
pub(super) const VOLUME: &str = REGISTER_VOLUME;
/// Where it is mounted.
const MOUNT: &str = "/var/run/secrets/rouse";
/// The variable with the secret of the hooks.
pub(super) const DRAIN_VARIABLE: &str = "ROUSE_DRAIN_SECRET";

/// The secret of the hooks of a workload that has the sidecar.
pub(super) fn drain_secret(workload: &DocumentNode) -> Option<String> {
    let lists = ["containers", "initContainers"];
    let mut all = lists.into_iter().flat_map(|list| elements(workload, &[&POD[..], &[list]].concat()));
    let sidecar = all.find(|container| is_named(container, SIDECAR))?;
    let variable = elements(sidecar, &["env"]).iter().find(|variable| is_named(variable, DRAIN_VARIABLE))?;
    text(variable, &["value"]).map(str::to_owned)
}

/// Adds the sidecar to a workload.
pub(super) fn workload(
    object: &mut DocumentNode,
    plan: &SidecarPlan,
    secret: &str,
    args: &InjectArgs,
) -> Result<(), serde_json::Error> {
    let own_probe = own_probe(object, plan);
    let mut editor = Editor::new(object);
    let pod: Vec<PathStep> = POD.map(PathStep::from).to_vec();
    let app = [&*pod, &["containers".into(), PathStep::Named(plan.container.clone())]].concat();
    if plan.takes_probe {
        editor.unset(&app, "readinessProbe");
    }
    if !plan.has_pre_stop {
        editor.create(&app, "lifecycle", Value::Map(Box::default()));
        let lifecycle = [&*app, &["lifecycle".into()]].concat();
        editor.set(&lifecycle, "preStop", &hook("/wait-for-drain", secret, args));
    }
    let list = if args.native { "initContainers" } else { "containers" };
    editor.add(&pod, list, &container(plan, &own_probe, secret, args));
    editor.add(&pod, "volumes", &volume(args));
    editor.finish()
}

/// Points the Service's ports at the sidecar.
pub(super) fn service(
    object: &mut DocumentNode,
    plan: &SidecarPlan,
    args: &InjectArgs,
) -> Result<(), serde_json::Error> {
    let alone = elements(object, &["spec", "ports"]).len() == 1;
    let mut editor = Editor::new(object);
    for port in plan.ports.iter().filter(|port| port.via_sidecar) {
        let step = if alone { PathStep::Only } else { PathStep::Named(port.name.clone()) };
        let path = ["spec".into(), "ports".into(), step];
        editor.set(&path, "targetPort", &args.sidecar_port.get().into());
    }
    editor.finish()
}

/// The times of the kubelet's probe of the sidecar: those of the app's probe, if the sidecar takes it over.
fn own_probe(object: &DocumentNode, plan: &SidecarPlan) -> Json {
    let mut times = json!({ "periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 2 });
    let containers = elements(object, &[&POD[..], &["containers"]].concat());
    let app = containers.iter().find(|container| is_named(container, &plan.container));
    let probe = app.filter(|_| plan.takes_probe).and_then(|app| app.get("readinessProbe"));
    if let (Some(probe), Some(times)) = (probe, times.as_object_mut()) {
        for key in ["periodSeconds", "timeoutSeconds", "failureThreshold", "successThreshold"] {
            match probe.get(key).map(|node| &node.value) {
                Some(Value::Integer(number)) => times.insert(key.to_owned(), (*number).into()),
                _ => times.remove(key),
            };
        }
    }
    times
}

/// A hook of the kubelet. It comes from the node, so the sidecar asks for the secret.
fn hook(path: &str, secret: &str, args: &InjectArgs) -> Json {
    json!({ "httpGet": {
        "path": path,
        "port": args.admin_port.get(),
        "httpHeaders": [{ "name": DRAIN_SECRET_HEADER, "value": secret }],
    } })
}

fn container(plan: &SidecarPlan, probe_times: &Json, secret: &str, args: &InjectArgs) -> Json {
    let mut probe = json!({ "httpGet": { "path": "/healthz", "port": args.admin_port.get() } });
    if let (Some(probe), Some(times)) = (probe.as_object_mut(), probe_times.as_object()) {
        probe.extend(times.clone());
    }
    let mut container = json!({
        "name": SIDECAR,
        "image": args.image,
        "imagePullPolicy": "IfNotPresent",
        "args": arguments(plan, args),
        "env": variables(secret),
        "ports": [
            { "name": SIDECAR_PORT, "containerPort": args.sidecar_port.get() },
            { "name": "rouse-admin", "containerPort": args.admin_port.get() },
        ],
        "readinessProbe": probe,
        "lifecycle": { "preStop": hook("/drain", secret, args) },
        "resources": { "requests": { "cpu": "25m", "memory": "32Mi" }, "limits": { "memory": "256Mi" } },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "capabilities": { "drop": ["ALL"] },
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "volumeMounts": [{ "name": VOLUME, "mountPath": MOUNT, "readOnly": true }],
    });
    if let (true, Some(container)) = (args.native, container.as_object_mut()) {
        container.insert("restartPolicy".to_owned(), "Always".into());
    }
    container
}

/// The address of the pod's loopback, as URLs have it.
pub(super) fn loopback(args: &InjectArgs) -> &'static str {
    match args.ip_family {
        IpFamily::Ipv4 => "127.0.0.1",
        IpFamily::Ipv6 => "[::1]",
    }
}

/// The flags of `rouse sidecar`. Flags and not variables: Kubernetes sets variables like `ROUSE_PORT` for a Service of the
/// name `rouse`, and flags come first.
fn arguments(plan: &SidecarPlan, args: &InjectArgs) -> Vec<String> {
    let everywhere = match args.ip_family {
        IpFamily::Ipv4 => "0.0.0.0",
        IpFamily::Ipv6 => "[::]",
    };
    let local = loopback(args);
    let mut flags = vec![
        ("listen", format!("{everywhere}:{}", args.sidecar_port)),
        ("admin", format!("{everywhere}:{}", args.admin_port)),
        ("app", format!("{local}:{}", plan.app)),
        ("app-protocol", if plan.h2c { "h2c" } else { "http1" }.to_owned()),
        ("probe", plan.probe.to_string()),
        ("grace-period", format!("{}s", plan.grace.max(1))),
        ("service", plan.service.clone()),
    ];
    flags.extend(args.limit().map(|limit| ("concurrency", limit.to_string())));
    flags.extend(plan.ports.iter().map(|port| {
        let number = if port.via_sidecar { args.sidecar_port.get() } else { port.number };
        ("port", format!("{}={number}", port.name))
    }));
    flags.push(match &args.register {
        Some(url) => ("register", url.clone()),
        None => ("register-namespace", args.gateway_namespace.clone()),
    });
    flags.push(("register-token", format!("{MOUNT}/token")));
    flags.push(("register-ca", format!("{MOUNT}/ca.crt")));
    let flags = flags.into_iter().map(|(flag, value)| format!("--{flag}={value}"));
    std::iter::once("sidecar".to_owned()).chain(flags).collect()
}

/// What the pod tells the sidecar about itself, and the secret of the hooks.
fn variables(secret: &str) -> Json {
    let field =
        |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    json!([
        field("ROUSE_POD_NAME", "metadata.name"),
        field("ROUSE_POD_NAMESPACE", "metadata.namespace"),
        field("ROUSE_POD_UID", "metadata.uid"),
        field("ROUSE_POD_IPS", "status.podIPs"),
        { "name": DRAIN_VARIABLE, "value": secret },
    ])
}

/// The token of the pod and the CA of the gateways.
fn volume(args: &InjectArgs) -> Json {
    json!({ "name": VOLUME, "projected": { "sources": [
        { "serviceAccountToken": { "audience": REGISTER_AUDIENCE, "expirationSeconds": args.token_seconds(), "path": "token" } },
        { "configMap": { "name": args.ca_configmap, "items": [{ "key": CA_KEY, "path": "ca.crt" }] } },
    ] } })
}

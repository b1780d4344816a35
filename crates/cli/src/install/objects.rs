//! Assembles the objects to print: those of `deploy/` with the operator's values, and optional ones.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::args::{InstallArgs, Replicas};
use super::environment::{CERTS, HTTPS, variables};
use super::{controller, grace_period, keys, manifests, registration, xds};
use crate::CommandError;
use rouse_config::settings::Values;

/// The name of the gateway's objects.
pub(super) const NAME: &str = "rouse-gateway";
/// The container of a Deployment.
const CONTAINER: &str = "/spec/template/spec/containers/0";
/// The API group of roles.
const RBAC: &str = "rbac.authorization.k8s.io";

/// All objects, in the order in which they can be applied.
pub(super) fn all(
    args: &InstallArgs,
    settings: &Values,
    now: SystemTime,
) -> Result<Vec<Value>, CommandError> {
    let mut objects = Vec::new();
    if !args.no_namespace {
        for mut namespace in manifests::read(manifests::NAMESPACE)? {
            put(&mut namespace, "/metadata/name", args.namespace.as_str());
            objects.push(namespace);
        }
    }
    if args.crds.wanted() {
        for text in manifests::CRDS {
            objects.append(&mut manifests::read(text)?);
        }
    }
    objects.extend(keys::objects(args, now)?);
    for text in manifests::GATEWAY {
        for mut object in manifests::read(text)? {
            place(&mut object, NAME, args);
            fit(&mut object, args, settings);
            objects.push(object);
        }
    }
    let named = [("configmaps", &args.configmaps_of), ("secrets", &args.secrets_of)];
    for (resource, namespaces) in named {
        objects.extend(
            namespaces.iter().flat_map(|namespace| leave_to_read(NAME, "gateway", resource, namespace, args)),
        );
    }
    objects.extend(registration::objects(args, settings));
    objects.extend(controller::objects(args)?);
    objects.extend(xds::objects(args, settings)?);
    Ok(objects)
}

/// Sets the value at `pointer`, which exists in the manifests.
pub(super) fn put(object: &mut Value, pointer: &str, value: impl Into<Value>) {
    if let Some(place) = object.pointer_mut(pointer) {
        *place = value.into();
    }
}

pub(super) fn push(object: &mut Value, pointer: &str, value: Value) {
    if let Some(list) = object.pointer_mut(pointer).and_then(Value::as_array_mut) {
        list.push(value);
    }
}

/// Puts an object of the component `name` into its namespace, and its permissions to where they must hold.
pub(super) fn place(object: &mut Value, name: &str, args: &InstallArgs) {
    put(object, "/metadata/namespace", args.namespace.as_str());
    match kind(object) {
        "ClusterRole" => rights(object, name, "Role", args),
        "ClusterRoleBinding" => {
            rights(object, name, "RoleBinding", args);
            put(object, "/roleRef/name", cluster_wide(name, args));
            put(object, "/subjects/0/namespace", args.namespace.as_str());
            if args.watch_namespace.is_some() {
                put(object, "/roleRef/kind", "Role");
            }
        }
        "RoleBinding" => put(object, "/subjects/0/namespace", args.namespace.as_str()),
        _ => {}
    }
}

/// The kind of an object.
pub(super) fn kind(object: &Value) -> &str {
    object.get("kind").and_then(Value::as_str).unwrap_or_default()
}

fn fit(object: &mut Value, args: &InstallArgs, settings: &Values) {
    match kind(object) {
        "Deployment" => deployment(object, args, settings),
        "Service" if args.tls_secret.is_some() && object.pointer("/metadata/name") == Some(&json!(NAME)) => {
            push(object, "/spec/ports", json!({ "name": "https", "port": 443, "targetPort": "https" }));
        }
        _ => {}
    }
}

/// The name of a cluster-wide object: two installations in two namespaces must not share one.
fn cluster_wide(name: &str, args: &InstallArgs) -> String {
    format!("{name}.{}", args.namespace)
}

/// Names a role or its binding, and moves it to the watched namespace if there is one.
fn rights(object: &mut Value, name: &str, narrow: &str, args: &InstallArgs) {
    put(object, "/metadata/name", cluster_wide(name, args));
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    if let (Some(namespace), Some(metadata)) = (&args.watch_namespace, metadata) {
        metadata.insert("namespace".to_owned(), namespace.as_str().into());
        put(object, "/kind", narrow);
    }
}

fn deployment(object: &mut Value, args: &InstallArgs, settings: &Values) {
    match args.replicas {
        Replicas::Count(count) => put(object, "/spec/replicas", count),
        Replicas::Unmanaged => {
            let spec = object.get_mut("spec").and_then(Value::as_object_mut);
            spec.and_then(|spec| spec.remove("replicas"));
        }
    }
    let seconds = grace_period::seconds(args, settings);
    put(object, "/spec/template/spec/terminationGracePeriodSeconds", seconds);
    container(object, args, variables(args));
    let opened = [
        ("https", HTTPS, "certs", CERTS, &args.tls_secret),
        ("register", registration::PORT, registration::VOLUME, registration::CERTS, &args.register_secret),
    ];
    for (port, number, volume, folder, secret) in opened {
        let Some(secret) = secret else { continue };
        open(object, port, number);
        mount(object, volume, folder, &json!({ "secret": { "secretName": secret } }));
    }
    controller::add_report_files(object, args);
}

/// Sets the image and the variables of the container.
pub(super) fn container(object: &mut Value, args: &InstallArgs, variables: Vec<(String, String)>) {
    put(object, &format!("{CONTAINER}/image"), args.image.as_str());
    let env = format!("{CONTAINER}/env");
    if let Some(env) = object.pointer_mut(&env).and_then(Value::as_array_mut) {
        // Keep what Kubernetes fills in, like the pod's address, and replace all other variables.
        env.retain(|variable| variable.get("valueFrom").is_some());
        env.extend(variables.into_iter().map(|(name, value)| json!({ "name": name, "value": value })));
    }
}

/// Names a port of the container.
pub(super) fn open(object: &mut Value, name: &str, port: u16) {
    push(object, &format!("{CONTAINER}/ports"), json!({ "name": name, "containerPort": port }));
}

/// Mounts a volume with this `source` into the container, for reading.
pub(super) fn mount(object: &mut Value, volume: &str, folder: &str, source: &Value) {
    let mount = json!({ "name": volume, "mountPath": folder, "readOnly": true });
    add(object, CONTAINER, "volumeMounts", mount);
    let mut volume = json!({ "name": volume });
    if let (Some(members), Some(source)) = (volume.as_object_mut(), source.as_object()) {
        members.extend(source.clone());
    }
    add(object, "/spec/template/spec", "volumes", volume);
}

/// Adds `value` to the list `key` of the object at `pointer`. Creates the list if there is none.
fn add(object: &mut Value, pointer: &str, key: &str, value: Value) {
    if let Some(parent) = object.pointer_mut(pointer).and_then(Value::as_object_mut) {
        parent.entry(key).or_insert_with(|| json!([]));
    }
    push(object, &format!("{pointer}/{key}"), value);
}

/// The labels of an object of this component.
pub(super) fn labels(component: &str) -> Value {
    json!({
        "app.kubernetes.io/name": "rouse",
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "rouse",
    })
}

/// A Role and its binding that allow `account` to read the `resource`s of one namespace.
pub(super) fn leave_to_read(
    account: &str,
    component: &str,
    resource: &str,
    namespace: &str,
    args: &InstallArgs,
) -> [Value; 2] {
    let name = format!("{account}-{resource}.{}", args.namespace);
    let metadata = json!({
        "name": name,
        "namespace": namespace,
        "labels": labels(component),
    });
    let rules = json!([{ "apiGroups": [""], "resources": [resource], "verbs": ["list", "watch"] }]);
    role_with_binding("Role", &metadata, &rules, (account, &args.namespace))
}

/// A role of the kind `Role` or `ClusterRole`, and the binding of the same name that grants it to the account.
pub(super) fn role_with_binding(
    kind: &str,
    metadata: &Value,
    rules: &Value,
    (account, namespace): (&str, &str),
) -> [Value; 2] {
    let role = json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": kind,
        "metadata": metadata,
        "rules": rules,
    });
    let binding = json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": format!("{kind}Binding"),
        "metadata": metadata,
        "roleRef": { "apiGroup": RBAC, "kind": kind, "name": metadata["name"] },
        "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": namespace }],
    });
    [role, binding]
}

//! Adds the registration listener to the manifests: its variables, its headless Service, and the permission to review tokens.

use rouse_config::settings::Values;
use rouse_daemon::gateway::settings::{REGISTER_TOKEN_CHECK, TokenCheckMode};
use rouse_kube::client::permissions::{PERMISSIONS, Scope};
use serde_json::{Value, json};

use super::args::InstallArgs;
use super::objects::{NAME, labels, role_with_binding};

/// The Secret with the certificate that `--generate-keys` makes.
pub(super) const SECRET: &str = "rouse-register-tls";
/// The port of registrations: where the sidecars expect it.
pub(super) const PORT: u16 = 9443;
/// The headless Service of the port: what the sidecars resolve, and what the certificate is for.
pub(super) const SERVICE: &str = "rouse-register";
/// Where the certificate is mounted.
pub(super) const CERTS: &str = "/register-certs";
/// The name of its volume.
pub(super) const VOLUME: &str = "register-certs";

/// The variables of the registration listener.
pub(super) fn variables(args: &InstallArgs, everywhere: &str) -> Vec<(&'static str, String)> {
    if args.register_secret.is_none() {
        return Vec::new();
    }
    let mut all = vec![
        ("ROUSE_REGISTER_LISTEN", format!("{everywhere}:{PORT}")),
        ("ROUSE_REGISTER_TLS_CERT", format!("{CERTS}/tls.crt")),
        ("ROUSE_REGISTER_TLS_KEY", format!("{CERTS}/tls.key")),
        ("ROUSE_REGISTER_SERVICE", format!("{}/{SERVICE}", args.namespace)),
    ];
    all.extend(args.push.clone().map(|mode| ("ROUSE_PUSH", mode)));
    all.extend(args.register_token_check.clone().map(|check| ("ROUSE_REGISTER_TOKEN_CHECK", check)));
    all
}

/// The Service, and the role for reviews of tokens if the gateway asks the API server.
pub(super) fn objects(args: &InstallArgs, settings: &Values) -> Vec<Value> {
    if args.register_secret.is_none() {
        return Vec::new();
    }
    let mut objects = vec![service(args)];
    if settings.get(&REGISTER_TOKEN_CHECK) == TokenCheckMode::TokenReview {
        objects.extend(leave_to_review(args));
    }
    objects
}

/// Headless: a pod registers with every gateway, by its address. A gateway that is not ready cannot check a pod.
fn service(args: &InstallArgs) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": SERVICE, "namespace": args.namespace, "labels": labels("gateway-register") },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": false,
            "selector": { "app.kubernetes.io/name": "rouse", "app.kubernetes.io/component": "gateway" },
            "ports": [{ "name": "register", "port": PORT, "targetPort": "register" }],
        },
    })
}

/// A `ClusterRole` of its own, because a review has no namespace.
fn leave_to_review(args: &InstallArgs) -> [Value; 2] {
    let name = format!("{NAME}-tokenreviews.{}", args.namespace);
    let metadata = json!({ "name": name, "labels": labels("gateway") });
    let rules: Vec<Value> = PERMISSIONS
        .iter()
        .filter(|permission| permission.scope == Scope::OnDemand)
        .map(|it| json!({ "apiGroups": [it.group], "resources": [it.resource], "verbs": it.verbs }))
        .collect();
    role_with_binding("ClusterRole", &metadata, &json!(rules), (NAME, &args.namespace))
}

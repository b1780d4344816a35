//! Adds the controller to the manifests, with its certificate, and what gateways need to report their load to it.

use rouse_kube::client::permissions::{Permission, SLICE_PERMISSIONS, Scope};
use rouse_kube::objects::injected::CA_KEY;
use rouse_net::auth::REPORT_AUDIENCE;
use serde_json::{Value, json};

use super::args::InstallArgs;
use super::environment::{ADMIN, POD_IP};
use super::manifests;
use super::objects::{container, kind, labels, mount, open, place, push, role_with_binding};
use super::xds;
use crate::CommandError;
use crate::names::IpFamily;

/// The name of its objects, and of the headless Service that gateways report to, which its certificate is for.
pub(super) const NAME: &str = "rouse-controller";
/// The Secret with the certificate that `--generate-keys` makes.
pub(super) const SECRET: &str = "rouse-controller-tls";
/// The port of load reports.
const REPORTS: u16 = 9444;
/// The port of the external scaler, for KEDA.
const SCALER: u16 = 9445;
/// Where the controller's certificate is mounted.
const CERTS: &str = "/report-certs";
/// Where a gateway finds its token for reports, which is the default of `--report-token`, and the CA of the controllers.
pub(super) const REPORT_FILES: &str = "/var/run/secrets/rouse-report";
/// How long a gateway's token is valid, in seconds. The kubelet renews it in time.
const TOKEN_SECONDS: u32 = 3600;

/// The URL that gateways report to; `None` without a certificate.
pub(super) fn url(args: &InstallArgs) -> Option<String> {
    args.controller.controller_secret.as_ref()?;
    Some(format!("https://{NAME}.{}.svc.cluster.local:{REPORTS}", args.namespace))
}

/// The variables about reports of a gateway, or of `rouse xds`.
pub(super) fn gateway_variables(args: &InstallArgs) -> Vec<(&'static str, String)> {
    let Some(url) = url(args) else { return Vec::new() };
    vec![("ROUSE_REPORT_TO", url), ("ROUSE_REPORT_CA", format!("{REPORT_FILES}/{CA_KEY}"))]
}

/// Mounts the token and the CA into a reporter. Of the Secret, reporters get the CA only, not the key.
pub(super) fn add_report_files(reporter: &mut Value, args: &InstallArgs) {
    let Some(secret) = &args.controller.controller_secret else { return };
    let token = json!({ "audience": REPORT_AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token" });
    let source = json!({ "projected": { "sources": [
        { "serviceAccountToken": token },
        { "secret": { "name": secret, "items": [{ "key": CA_KEY, "path": CA_KEY }] } },
    ] } });
    mount(reporter, "report", REPORT_FILES, &source);
}

/// The objects of the controller; none with `--no-controller`.
pub(super) fn objects(args: &InstallArgs) -> Result<Vec<Value>, CommandError> {
    let mut objects = Vec::new();
    if args.controller.no_controller {
        return Ok(objects);
    }
    for text in manifests::CONTROLLER {
        for mut object in manifests::read(text)? {
            place(&mut object, NAME, args);
            fit(&mut object, args);
            objects.push(object);
        }
    }
    objects.extend(slice_rights(args));
    Ok(objects)
}

/// What the controller may do for `EndpointSlices`, if they are turned on: in the watched namespace, and for nodes, which have none.
fn slice_rights(args: &InstallArgs) -> Vec<Value> {
    if !args.controller.endpointslices {
        return Vec::new();
    }
    let permitted =
        |it: &Permission| json!({ "apiGroups": [it.group], "resources": [it.resource], "verbs": it.verbs });
    let name = format!("{NAME}-endpointslices.{}", args.namespace);
    let account = (NAME, args.namespace.as_str());
    let role = |kind, namespace: Option<&str>, rules: Vec<Value>| {
        let mut metadata = json!({ "name": name, "labels": labels("controller") });
        if let Some(namespace) = namespace {
            metadata["namespace"] = namespace.into();
        }
        role_with_binding(kind, &metadata, &json!(rules), account)
    };
    let Some(watched) = args.watch_namespace.as_deref() else {
        return role("ClusterRole", None, SLICE_PERMISSIONS.iter().map(permitted).collect()).into();
    };
    let (of_cluster, of_namespace): (Vec<_>, Vec<_>) =
        SLICE_PERMISSIONS.iter().partition(|it| it.scope == Scope::OnDemand);
    let narrow = role("Role", Some(watched), of_namespace.into_iter().map(permitted).collect());
    let wide = role("ClusterRole", None, of_cluster.into_iter().map(permitted).collect());
    narrow.into_iter().chain(wide).collect()
}

fn fit(object: &mut Value, args: &InstallArgs) {
    let secret = args.controller.controller_secret.as_ref();
    let is_headless = object.pointer("/metadata/name") == Some(&json!(NAME));
    match (kind(object), secret) {
        ("Deployment", secret) => {
            container(object, args, variables(args));
            if let Some(secret) = secret {
                open(object, "reports", REPORTS);
                mount(object, "report-certs", CERTS, &json!({ "secret": { "secretName": secret } }));
            }
        }
        ("Service", Some(_)) if is_headless => {
            push(
                object,
                "/spec/ports",
                json!({ "name": "reports", "port": REPORTS, "targetPort": "reports" }),
            );
        }
        _ => {}
    }
}

/// The variables of the controller, except those that Kubernetes fills in.
fn variables(args: &InstallArgs) -> Vec<(String, String)> {
    let (pod, everywhere) = match args.ip_family {
        IpFamily::Ipv4 => (POD_IP.to_owned(), "0.0.0.0"),
        IpFamily::Ipv6 => (format!("[{POD_IP}]"), "[::]"),
    };
    let mut all = vec![
        ("ROUSE_ADMIN", format!("{pod}:{ADMIN}")),
        ("ROUSE_SCALER_LISTEN", format!("{everywhere}:{SCALER}")),
        (
            "ROUSE_AUTOSCALE_DEFAULT",
            args.controller.autoscale_default.clone().unwrap_or_else(|| "off".to_owned()),
        ),
    ];
    if let Some(namespace) = &args.watch_namespace {
        all.push(("ROUSE_WATCH_NAMESPACE", namespace.clone()));
    }
    if args.controller.endpointslices {
        all.push(("ROUSE_ENDPOINTSLICES", "true".to_owned()));
    }
    if args.controller.controller_secret.is_some() {
        all.push(("ROUSE_REPORT_LISTEN", format!("{everywhere}:{REPORTS}")));
        all.push(("ROUSE_REPORT_TLS_CERT", format!("{CERTS}/tls.crt")));
        all.push(("ROUSE_REPORT_TLS_KEY", format!("{CERTS}/tls.key")));
        all.extend(xds::report_accounts(args).map(|accounts| ("ROUSE_REPORT_ACCOUNTS", accounts)));
    }
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// What a controller without a certificate does not do.
pub(super) fn note(args: &InstallArgs) -> Option<String> {
    let blind = !args.controller.no_controller && args.controller.controller_secret.is_none();
    blind.then(|| {
        "the controller has no certificate, so gateways cannot report their load to it: it scales nothing down, and KEDA gets no \
         answer from it. --generate-keys makes one, --controller-secret names one, and --no-controller leaves the controller out \
         (docs/controller.md)"
            .to_owned()
    })
}

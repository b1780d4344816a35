//! Adds `rouse xds` to the manifests: its certificate, the settings that it shares with the gateways, and what it needs to report load.

use rouse_config::settings::{Origin, Values};
use rouse_daemon::xds::settings::{DEFAULT_XDS_PORT, SHARED, TABLE};
use serde_json::Value;

use super::args::InstallArgs;
use super::controller;
use super::environment::{ADMIN, POD_IP};
use super::manifests;
use super::objects::{container, kind, leave_to_read, place};
use crate::CommandError;
use crate::names::IpFamily;

/// The name of its objects, and of the headless Service that Envoys connect to, which its certificate is for.
pub(super) const NAME: &str = "rouse-xds";
/// The Secret with the certificate that `--generate-keys` makes.
pub(super) const SECRET: &str = "rouse-xds-tls";
/// The Secret with the client certificate of Envoys that `--generate-keys` makes, and the name that the certificate is for.
pub(super) const CLIENT: &str = "rouse-xds-client";
/// Where the certificate is mounted.
const CERTS: &str = "/xds-certs";
const VOLUMES: &str = "/spec/template/spec/volumes/0/secret/secretName";

/// The Secret of the client certificate; none without `--xds`.
pub(super) fn client_secret(args: &InstallArgs) -> Option<String> {
    args.xds.xds.then(|| CLIENT.to_owned())
}

/// The objects of `rouse xds`; none without `--xds`.
pub(super) fn objects(args: &InstallArgs, gateway: &Values) -> Result<Vec<Value>, CommandError> {
    let Some(secret) = &args.xds.xds_secret else { return Ok(Vec::new()) };
    let mut objects = Vec::new();
    for mut object in manifests::read(manifests::XDS)? {
        place(&mut object, NAME, args);
        if kind(&object) == "Deployment" {
            container(&mut object, args, variables(args, gateway));
            if let Some(name) = object.pointer_mut(VOLUMES) {
                *name = secret.as_str().into();
            }
            controller::add_report_files(&mut object, args);
        }
        objects.push(object);
    }
    for (resource, namespaces) in [("configmaps", &args.configmaps_of), ("secrets", &args.secrets_of)] {
        let roles =
            namespaces.iter().flat_map(|namespace| leave_to_read(NAME, "xds", resource, namespace, args));
        objects.extend(roles);
    }
    Ok(objects)
}

/// Its variables, except those that Kubernetes fills in.
fn variables(args: &InstallArgs, gateway: &Values) -> Vec<(String, String)> {
    let (pod, everywhere) = match args.ip_family {
        IpFamily::Ipv4 => (POD_IP.to_owned(), "0.0.0.0"),
        IpFamily::Ipv6 => (format!("[{POD_IP}]"), "[::]"),
    };
    let own = [
        ("ROUSE_ADMIN", format!("{pod}:{ADMIN}")),
        ("ROUSE_XDS_LISTEN", format!("{everywhere}:{DEFAULT_XDS_PORT}")),
        ("ROUSE_XDS_TLS_CERT", format!("{CERTS}/tls.crt")),
        ("ROUSE_XDS_TLS_KEY", format!("{CERTS}/tls.key")),
        ("ROUSE_XDS_CLIENT_CA", format!("{CERTS}/ca.crt")),
    ];
    let reports = controller::gateway_variables(args);
    let all = own.into_iter().chain(reports).map(|(name, value)| (name.to_owned(), value));
    all.chain(shared(gateway)).collect()
}

/// What the operator has set for the gateways and what decides about routes and pods: an Envoy and a gateway must agree.
fn shared(gateway: &Values) -> impl Iterator<Item = (String, String)> {
    let is_shared = |name: &str| {
        let group = TABLE.groups.iter().find(|group| group.title == SHARED);
        group.is_some_and(|group| group.settings.iter().any(|setting| setting.name() == name))
    };
    gateway.all().iter().filter(move |found| found.origin != Origin::Default).filter_map(move |found| {
        let variable = found.setting.variable().filter(|_| is_shared(found.setting.name()))?;
        Some((variable, found.value.text.clone()?))
    })
}

/// The account of `rouse xds`, beside that of the gateways, as `--report-accounts` names them; `None`: the default is right.
pub(super) fn report_accounts(args: &InstallArgs) -> Option<String> {
    let namespace = &args.namespace;
    args.xds.xds.then(|| format!("{namespace}/rouse-gateway,{namespace}/{NAME}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_has_the_volume_that_is_replaced() {
        let all = manifests::read(manifests::XDS).unwrap();
        let deployment = all.iter().find(|object| kind(object) == "Deployment").unwrap();
        assert_eq!(deployment.pointer(VOLUMES), Some(&SECRET.into()));
    }
}

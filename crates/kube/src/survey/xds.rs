//! Inspects the installed control plane of Envoys: its Deployment, its Service and certificate, its reports, and its permissions.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;

use super::access::{self, PermissionCheck};
use super::certificates::{self, SecretSurvey};
use super::container::Containers;
use super::gateway::{self, DeployedRole, stuck, whole};
use super::{Account, SurveyClient, SurveyError, SurveyScope};
use crate::client::ObjectKind;
use crate::client::permissions::PermissionRole;

/// The name of its Deployment, and of the headless Service that Envoys connect to.
pub const XDS: &str = "rouse-xds";

/// The control plane of Envoys as it is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledXds {
    /// Its namespace.
    pub namespace: String,
    /// Its `ServiceAccount`.
    pub account: Account,
    /// How many pods it is to have.
    pub wanted: u32,
    /// How many of them are available.
    pub available: u32,
    /// The problem that its Deployment controller reports.
    pub stuck: Option<String>,
    /// Whether Envoys must have a client certificate.
    pub asks_clients: bool,
    /// The Secret with the certificate; `None` if the certificate is not of a mounted Secret.
    pub secret: Option<SecretSurvey>,
    /// The headless Service; `None` if there is none.
    pub service: Result<Option<XdsService>, SurveyError>,
    /// Where it reports the load of Envoys.
    pub reports_to: Option<String>,
    /// Each permission, with the verbs that are denied.
    pub grants: Result<Vec<PermissionCheck>, SurveyError>,
}

/// The headless Service of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XdsService {
    /// Whether it is headless, so that Envoys find every replica.
    pub headless: bool,
    /// Whether it selects the pods of the control plane.
    pub selects: bool,
}

/// Inspects it; `None`: it is not installed there.
pub(super) async fn look(
    client: &SurveyClient<'_>,
    wanted: &SurveyScope,
    watched: Option<&str>,
) -> Result<Option<InstalledXds>, SurveyError> {
    let namespace = &*wanted.gateway;
    let Some(deployed) = gateway::deployed(client, namespace, XDS).await? else { return Ok(None) };
    let DeployedRole { spec, status, labels, pod, account } = deployed;
    let containers = Containers::new(&pod);
    let watched = containers.watches().or_else(|| watched.map(str::to_owned));
    let questions = access::questions(PermissionRole::Xds, watched.as_deref(), namespace, &[]);
    let grants = access::check_permissions(client, Some(&account), watched.as_deref(), questions).await;
    let names = ["svc.cluster.local", "svc"].map(|zone| format!("{XDS}.{namespace}.{zone}"));
    let certificate = containers.setting("--xds-tls-cert", &["ROUSE_XDS_TLS_CERT"]);
    let secrets = certificate.map(|path| containers.secrets_at(path)).unwrap_or_default();
    let secret = match secrets.first() {
        Some(name) => Some(certificates::secret(client, namespace, name, &names).await.0),
        None => None,
    };
    let setting = |flag, variable| containers.setting(flag, &[variable]);
    Ok(Some(InstalledXds {
        namespace: namespace.to_owned(),
        wanted: whole(spec.replicas.or(Some(1))),
        available: whole(status.available_replicas),
        stuck: stuck(status.conditions.unwrap_or_default()),
        asks_clients: setting("--xds-client-ca", "ROUSE_XDS_CLIENT_CA").is_some(),
        secret,
        service: service(client, namespace, &labels).await,
        reports_to: setting("--report-to", "ROUSE_REPORT_TO").map(str::to_owned),
        account,
        grants,
    }))
}

async fn service(
    client: &SurveyClient<'_>,
    namespace: &str,
    labels: &BTreeMap<String, String>,
) -> Result<Option<XdsService>, SurveyError> {
    let at = format!("{}/{XDS}", ObjectKind::SERVICE.path(Some(namespace)));
    let found = client.get::<Service>(&at).await?.map(|service| service.spec.unwrap_or_default());
    Ok(found.map(|spec| {
        let selector = spec.selector.unwrap_or_default();
        XdsService {
            headless: spec.cluster_ip.as_deref() == Some("None"),
            selects: !selector.is_empty()
                && selector.iter().all(|(key, value)| labels.get(key) == Some(value)),
        }
    }))
}

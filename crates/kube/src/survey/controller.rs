//! Inspects the installed controller: its Deployment, its Service and certificate for reports, its Lease, and its permissions.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rouse_core::lease::VACANT;

use super::access::{self, PermissionCheck};
use super::certificates::{self, SecretSurvey};
use super::container::Containers;
use super::gateway::{self, DeployedRole, stuck, whole};
use super::{Account, SurveyClient, SurveyError, SurveyScope};
use crate::client::ObjectKind;
use crate::client::permissions::PermissionRole;
use crate::lease::CONTROLLER_LEASE;

/// The name of its Deployment, and of the headless Service that gateways report to.
pub const CONTROLLER: &str = "rouse-controller";
/// The port of reports, which gateways dial at the addresses of the headless Service.
const REPORTS: u16 = 9444;
/// A Lease that was not renewed for so many times its duration has no holder any more: other replicas would have taken it.
const LEASES: u32 = 3;

/// The controller as it is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledController {
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
    /// Whether routes without the annotation are scaled.
    pub scales_by_default: bool,
    /// The accounts that may report besides the default, as `NAMESPACE/NAME`.
    pub report_accounts: Vec<String>,
    /// The listener for reports; `None`: gateways cannot report their load.
    pub reports: Option<ReportSurvey>,
    /// Who leads.
    pub leader: Result<Leader, SurveyError>,
    /// Each permission, with the verbs that are denied.
    pub grants: Result<Vec<PermissionCheck>, SurveyError>,
}

/// What reports of gateways need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportSurvey {
    /// The headless Service; `None` if there is none.
    pub service: Result<Option<ReportService>, SurveyError>,
    /// The Secret with the certificate; `None` if the certificate is not of a mounted Secret.
    pub secret: Option<SecretSurvey>,
}

/// The headless Service of the controllers.
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one object")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportService {
    /// Whether it is headless, so that gateways find every replica.
    pub headless: bool,
    /// Whether it lists replicas that are not ready: they get ready by the reports.
    pub unready: bool,
    /// Whether its port 9444 leads to the listener.
    pub port: bool,
    /// Whether it selects the pods of the controller.
    pub selects: bool,
}

/// The holder of the controllers' Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leader {
    /// This one.
    Holds(String),
    /// This one did, and stopped renewing the Lease so long ago.
    Stopped {
        /// Its name.
        holder: String,
        /// The time since it last renewed the Lease.
        since: Duration,
    },
    /// There is no Lease, or it was released.
    Vacant,
}

/// Inspects the controller; `None`: it is not installed there.
pub(super) async fn look(
    client: &SurveyClient<'_>,
    wanted: &SurveyScope,
    watched: Option<&str>,
) -> Result<Option<InstalledController>, SurveyError> {
    let namespace = &*wanted.gateway;
    let Some(deployed) = gateway::deployed(client, namespace, CONTROLLER).await? else { return Ok(None) };
    let DeployedRole { spec, status, labels, pod, account } = deployed;
    let containers = Containers::new(&pod);
    let watched = containers.watches().or_else(|| watched.map(str::to_owned));
    let questions = access::questions(PermissionRole::Controller, watched.as_deref(), namespace, &[]);
    let grants = access::check_permissions(client, Some(&account), watched.as_deref(), questions).await;
    let default = containers.setting("--autoscale-default", &["ROUSE_AUTOSCALE_DEFAULT"]);
    let accounts = containers.setting("--report-accounts", &["ROUSE_REPORT_ACCOUNTS"]);
    Ok(Some(InstalledController {
        namespace: namespace.to_owned(),
        wanted: whole(spec.replicas.or(Some(1))),
        available: whole(status.available_replicas),
        stuck: stuck(status.conditions.unwrap_or_default()),
        scales_by_default: default == Some("on"),
        report_accounts: accounts
            .map(|all| all.split(',').map(|it| it.trim().to_owned()).collect())
            .unwrap_or_default(),
        reports: reports(client, namespace, &containers, &labels).await,
        leader: leader(client, namespace, wanted.now).await,
        account,
        grants,
    }))
}

/// What reports need; `None`: there is no listener for them.
async fn reports(
    client: &SurveyClient<'_>,
    namespace: &str,
    containers: &Containers<'_>,
    labels: &BTreeMap<String, String>,
) -> Option<ReportSurvey> {
    containers.setting("--report-listen", &["ROUSE_REPORT_LISTEN"])?;
    let names = ["svc.cluster.local", "svc"].map(|zone| format!("{CONTROLLER}.{namespace}.{zone}"));
    let certificate = containers.setting("--report-tls-cert", &["ROUSE_REPORT_TLS_CERT"]);
    let secrets = certificate.map(|path| containers.secrets_at(path)).unwrap_or_default();
    let secret = match secrets.first() {
        Some(name) => Some(certificates::secret(client, namespace, name, &names).await.0),
        None => None,
    };
    Some(ReportSurvey { service: service(client, namespace, labels).await, secret })
}

async fn service(
    client: &SurveyClient<'_>,
    namespace: &str,
    labels: &BTreeMap<String, String>,
) -> Result<Option<ReportService>, SurveyError> {
    let at = format!("{}/{CONTROLLER}", ObjectKind::SERVICE.path(Some(namespace)));
    let found = client.get::<Service>(&at).await?.map(|service| service.spec.unwrap_or_default());
    Ok(found.map(|spec| {
        let mut ports = spec.ports.iter().flatten();
        let port = ports.any(|port| {
            port.port == i32::from(REPORTS)
                && match &port.target_port {
                    Some(IntOrString::Int(target)) => *target == i32::from(REPORTS),
                    Some(IntOrString::String(_)) | None => true,
                }
        });
        let selector = spec.selector.unwrap_or_default();
        ReportService {
            headless: spec.cluster_ip.as_deref() == Some("None"),
            unready: spec.publish_not_ready_addresses == Some(true),
            port,
            selects: !selector.is_empty()
                && selector.iter().all(|(key, value)| labels.get(key) == Some(value)),
        }
    }))
}

async fn leader(client: &SurveyClient<'_>, namespace: &str, now: SystemTime) -> Result<Leader, SurveyError> {
    let at = format!("{}/{CONTROLLER_LEASE}", ObjectKind::LEASE.path(Some(namespace)));
    let Some(lease) = client.get::<Lease>(&at).await? else { return Ok(Leader::Vacant) };
    let spec = lease.spec.unwrap_or_default();
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty() && holder != VACANT);
    let Some(holder) = holder else { return Ok(Leader::Vacant) };
    let renewed = spec.renew_time.map(|time| SystemTime::from(time.0));
    let since = renewed.and_then(|renewed| now.duration_since(renewed).ok()).unwrap_or_default();
    let lease = Duration::from_secs(whole(spec.lease_duration_seconds).into());
    let stopped = since > lease.saturating_mul(LEASES);
    Ok(if stopped { Leader::Stopped { holder, since } } else { Leader::Holds(holder) })
}

//! Inspects the installed gateway: its Deployment, its pods, its Services, and its certificates.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentSpec, DeploymentStatus};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodSpec, Service};
use rouse_core::slices::SERVICE_NAME;

use super::certificates::{self, SecretSurvey};
use super::container::Containers;
use super::registration::{self, Registrar, RegistrationSettings, RegistrationSurvey};
use super::{Account, SurveyClient, SurveyError, SurveyScope};
use crate::client::{ObjectKind, path};
use crate::objects::EndpointSlice;

/// The name of its Deployment.
pub const GATEWAY: &str = "rouse-gateway";

/// The gateway as it is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledGateway {
    /// Its namespace.
    pub namespace: String,
    /// Its `ServiceAccount`.
    pub account: Account,
    /// The one namespace that it watches; `None`: all, unless its configuration file says otherwise.
    pub watches: Option<String>,
    /// How many pods it is to have.
    pub wanted: u32,
    /// How many of them are available.
    pub available: u32,
    /// The problem that its Deployment controller reports.
    pub stuck: Option<String>,
    /// Its pods.
    pub pods: Result<Vec<GatewayPod>, SurveyError>,
    /// The Services that lead to them.
    pub services: Result<Vec<GatewayService>, SurveyError>,
    /// Whether settings may also come from a file, which is not inspected.
    pub has_file: bool,
    /// The Secrets with the certificates of its TLS listeners.
    pub certificates: Vec<SecretSurvey>,
    /// What push needs; `None`: the gateway accepts no registrations.
    pub registration: Option<RegistrationSurvey>,
    /// Where it reports its load; `None`: nowhere.
    pub reports_to: Option<String>,
}

/// A pod of the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayPod {
    /// Its name.
    pub name: String,
    /// Why it is not ready; `None`: it is.
    pub trouble: Option<String>,
}

/// A Service of the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayService {
    /// Its name.
    pub name: String,
    /// How many endpoints of it are ready.
    pub ready: usize,
}

/// A Deployment of ours, taken apart.
pub(super) struct DeployedRole {
    pub(super) spec: DeploymentSpec,
    pub(super) status: DeploymentStatus,
    /// The labels of its pods.
    pub(super) labels: BTreeMap<String, String>,
    pub(super) pod: PodSpec,
    /// The account of its pods.
    pub(super) account: Account,
}

/// The Deployment of this name; `None`: there is none.
pub(super) async fn deployed(
    client: &SurveyClient<'_>,
    namespace: &str,
    name: &str,
) -> Result<Option<DeployedRole>, SurveyError> {
    let at = format!("{}/{name}", path("apps", "v1", "deployments", Some(namespace)));
    let Some(deployment) = client.get::<Deployment>(&at).await? else { return Ok(None) };
    let mut spec = deployment.spec.unwrap_or_default();
    let template = std::mem::take(&mut spec.template);
    let pod = template.spec.unwrap_or_default();
    let account = pod.service_account_name.clone().filter(|name| !name.is_empty());
    let account =
        Account { namespace: namespace.to_owned(), name: account.unwrap_or_else(|| "default".to_owned()) };
    let labels = template.metadata.and_then(|meta| meta.labels).unwrap_or_default();
    Ok(Some(DeployedRole { spec, status: deployment.status.unwrap_or_default(), labels, pod, account }))
}

/// Inspects the gateway; `None`: it is not installed there.
pub(super) async fn look(
    client: &SurveyClient<'_>,
    wanted: &SurveyScope,
) -> Result<Option<InstalledGateway>, SurveyError> {
    let namespace = &*wanted.gateway;
    let Some(deployed) = deployed(client, namespace, GATEWAY).await? else { return Ok(None) };
    let DeployedRole { spec, status, labels, pod, account } = deployed;
    let containers = Containers::new(&pod);
    let watches = containers.watches();
    let selector = spec.selector.match_labels.unwrap_or_default();
    let stuck = stuck(status.conditions.unwrap_or_default());
    let inspected = wanted.namespace.as_deref().or(watches.as_deref());
    let gateway = Registrar { namespace, account: &account, labels: &labels, watches: inspected };
    let registration = match RegistrationSettings::new(&containers) {
        Some(settings) => Some(registration::look(client, &gateway, settings, wanted.now).await),
        None => None,
    };
    Ok(Some(InstalledGateway {
        namespace: namespace.to_owned(),
        has_file: containers.has_file(),
        certificates: served(client, namespace, &containers).await,
        registration,
        reports_to: containers.setting("--report-to", &["ROUSE_REPORT_TO"]).map(str::to_owned),
        account,
        watches,
        wanted: whole(spec.replicas.or(Some(1))),
        available: whole(status.available_replicas),
        stuck,
        pods: pods(client, namespace, &selector).await,
        services: services(client, namespace, &labels).await,
    }))
}

/// The certificates of the listeners of requests, as far as they are mounted Secrets.
async fn served(
    client: &SurveyClient<'_>,
    namespace: &str,
    containers: &Containers<'_>,
) -> Vec<SecretSurvey> {
    let settings: [(&str, &[&str]); 2] = [
        ("--tls-cert-dir", &["ROUSE_TLS_CERT_DIR", "KEDA_HTTP_PROXY_TLS_CERT_STORE_PATHS"]),
        ("--tls-cert", &["ROUSE_TLS_CERT", "KEDA_HTTP_PROXY_TLS_CERT_PATH"]),
    ];
    let paths = settings.into_iter().filter_map(|(flag, variables)| containers.setting(flag, variables));
    let names: BTreeSet<String> = paths
        .flat_map(|paths| paths.split(','))
        .flat_map(|path| containers.secrets_at(path.trim()))
        .collect();
    let mut all = Vec::new();
    for name in names {
        all.push(certificates::secret(client, namespace, &name, &[]).await.0);
    }
    all
}

/// The problem that the Deployment controller reports.
pub(super) fn stuck(conditions: Vec<DeploymentCondition>) -> Option<String> {
    conditions.into_iter().find_map(|condition| {
        let wrong = matches!(
            (&*condition.type_, &*condition.status),
            ("ReplicaFailure", "True") | ("Progressing", "False")
        );
        wrong.then(|| condition.message.or(condition.reason).unwrap_or(condition.type_))
    })
}

pub(super) fn whole(number: Option<i32>) -> u32 {
    number.and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
}

fn selects(labels: &BTreeMap<String, String>) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

async fn pods(
    client: &SurveyClient<'_>,
    namespace: &str,
    selector: &BTreeMap<String, String>,
) -> Result<Vec<GatewayPod>, SurveyError> {
    let all: Vec<Pod> = client.list(ObjectKind::POD.path(Some(namespace)), Some(selects(selector))).await?;
    let there = all.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(there.map(pod_seen).collect())
}

fn pod_seen(pod: Pod) -> GatewayPod {
    let name = pod.metadata.name.unwrap_or_default();
    let status = pod.status.unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let find = |kind: &str| conditions.iter().find(|condition| condition.type_ == kind);
    if find("Ready").is_some_and(|ready| ready.status == "True") {
        return GatewayPod { name, trouble: None };
    }
    // What keeps the container from running says more than that its pod is not ready.
    let containers = status.container_statuses.unwrap_or_default();
    let waits = containers.iter().find_map(waits);
    let unscheduled = find("PodScheduled").filter(|scheduled| scheduled.status == "False");
    let said = unscheduled.and_then(|scheduled| scheduled.message.clone());
    let unready = || find("Ready").and_then(|ready| ready.message.clone());
    let phase = || format!("it is {}", status.phase.as_deref().unwrap_or("Pending"));
    GatewayPod { name, trouble: Some(waits.or(said).or_else(unready).unwrap_or_else(phase)) }
}

/// Why a container does not run.
fn waits(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.clone()?;
    Some(match &waiting.message {
        Some(message) => format!("{reason}: {message}"),
        None => reason,
    })
}

/// The Services that select pods with these `labels`, and how many endpoints of each are ready.
async fn services(
    client: &SurveyClient<'_>,
    namespace: &str,
    labels: &BTreeMap<String, String>,
) -> Result<Vec<GatewayService>, SurveyError> {
    let all: Vec<Service> = client.list(ObjectKind::SERVICE.path(Some(namespace)), None).await?;
    let mut seen = Vec::new();
    for service in all {
        let selector = service.spec.and_then(|spec| spec.selector).unwrap_or_default();
        let ours = !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value));
        let Some(name) = service.metadata.name.filter(|_| ours) else { continue };
        let label = format!("{SERVICE_NAME}={name}");
        let slices: Vec<EndpointSlice> =
            client.list(ObjectKind::SLICE.path(Some(namespace)), Some(label)).await?;
        let endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
        // Absent means ready.
        let ready = endpoints.filter(|endpoint| endpoint.conditions.ready.unwrap_or(true)).count();
        seen.push(GatewayService { name, ready });
    }
    Ok(seen)
}

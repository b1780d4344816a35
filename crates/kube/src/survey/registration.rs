//! Inspects what push needs: the registration Service, its certificate, the CAs that sidecars trust, and injected workloads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use k8s_openapi::api::core::v1::{PodTemplateSpec, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rouse_net::tls::InspectedCertificate;
use serde::Deserialize;

use super::access::{PermissionCheck, check_permissions, on_demand};
use super::certificates::{self, BundleSurvey, SecretSurvey};
use super::container::Containers;
use super::{Account, SurveyClient, SurveyError};
use crate::client::{ObjectKind, path};
use crate::objects::injected::{INJECTED_ANNOTATION, REGISTER_VOLUME, SIDECAR_CONTAINER, SIDECAR_PORT};
use crate::objects::workload::is_object_name;

/// The name of the Service, unless the gateway's settings name another one.
const SERVICE: &str = "rouse-register";
/// The port where sidecars expect it.
const PORT: u16 = 9443;
/// The kinds that may have the sidecar, and their plurals.
const WORKLOADS: [(&str, &str); 3] =
    [("Deployment", "deployments"), ("StatefulSet", "statefulsets"), ("DaemonSet", "daemonsets")];
/// The most `ConfigMap`s that are read.
const BUNDLES: usize = 50;

/// What the gateway's container says about registrations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RegistrationSettings {
    port: Option<u16>,
    service: String,
    reviews: bool,
    /// The Secrets that are mounted where the certificate is read.
    secrets: BTreeSet<String>,
    mode: Option<String>,
}

impl RegistrationSettings {
    /// `None`: there is no listener for registrations.
    pub(super) fn new(containers: &Containers<'_>) -> Option<Self> {
        let listen = containers.setting("--register-listen", &["ROUSE_REGISTER_LISTEN"])?;
        let service = containers.setting("--register-service", &["ROUSE_REGISTER_SERVICE"]);
        let service = service.and_then(|id| id.rsplit('/').next()).filter(|name| is_object_name(name));
        let check = containers.setting("--register-token-check", &["ROUSE_REGISTER_TOKEN_CHECK"]);
        let certificate = containers.setting("--register-tls-cert", &["ROUSE_REGISTER_TLS_CERT"]);
        Some(Self {
            port: listen.rsplit(':').next().and_then(|port| port.parse().ok()),
            service: service.unwrap_or(SERVICE).to_owned(),
            reviews: check == Some("tokenreview"),
            secrets: certificate.map(|path| containers.secrets_at(path)).unwrap_or_default(),
            mode: containers.setting("--push", &["ROUSE_PUSH"]).map(str::to_owned),
        })
    }
}

/// What push needs, as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistrationSurvey {
    /// The mode that the Deployment sets; `None`: the default, `on`.
    pub mode: Option<String>,
    /// The name of the registration Service, in the namespace of the gateway.
    pub service_name: String,
    /// The Service; `None` if there is none.
    pub service: Result<Option<RegistrationService>, SurveyError>,
    /// The Secret with the certificate; `None` if the certificate is not of a mounted Secret.
    pub secret: Option<SecretSurvey>,
    /// The permission to create reviews of tokens, if the gateway needs it.
    pub reviews: Option<Result<Vec<PermissionCheck>, SurveyError>>,
    /// The `ConfigMap`s with the CA that injected workloads mount.
    pub bundles: Vec<BundleSurvey>,
    /// The injected workloads.
    pub workloads: Result<Vec<InjectedWorkload>, SurveyError>,
}

/// The registration Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegistrationService {
    /// Whether it is headless, so that sidecars find every gateway.
    pub headless: bool,
    /// Whether port 9443 leads to the listener.
    pub port: bool,
    /// Whether it selects the pods of the gateway.
    pub selects: bool,
}

/// A workload that `rouse inject` has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectedWorkload {
    /// Its kind.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether requests reach its sidecar.
    pub sidecar: SidecarReach,
}

/// Whether requests of the Service reach the sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SidecarReach {
    /// A port of the Service leads to it, or the Services could not be read.
    Reached,
    /// The workload has the annotation, but no sidecar.
    NoSidecar,
    /// There is no Service of this name.
    NoService(String),
    /// No port of this Service leads to this port of the sidecar.
    Bypassed {
        /// The Service.
        service: String,
        /// The sidecar's port.
        port: i32,
    },
}

#[derive(Deserialize)]
struct Workload {
    metadata: ObjectMeta,
    spec: WorkloadSpec,
}

#[derive(Deserialize)]
struct WorkloadSpec {
    template: PodTemplateSpec,
}

/// The gateway whose registrations are inspected.
pub(super) struct Registrar<'a> {
    pub(super) namespace: &'a str,
    pub(super) account: &'a Account,
    /// The labels of its pods.
    pub(super) labels: &'a BTreeMap<String, String>,
    /// The one namespace that it watches.
    pub(super) watches: Option<&'a str>,
}

/// Inspects everything that push needs.
pub(super) async fn look(
    client: &SurveyClient<'_>,
    gateway: &Registrar<'_>,
    settings: RegistrationSettings,
    now: SystemTime,
) -> RegistrationSurvey {
    let (namespace, name) = (gateway.namespace, &settings.service);
    let names = [format!("{name}.{namespace}.svc.cluster.local"), format!("{name}.{namespace}.svc")];
    let (mut secret, mut certificate) = (None, None);
    if let Some(first) = settings.secrets.first() {
        let (found, inspected) = certificates::secret(client, namespace, first, &names).await;
        (secret, certificate) = (Some(found), inspected);
    }
    let reviews = if settings.reviews {
        Some(check_permissions(client, Some(gateway.account), None, on_demand()).await)
    } else {
        None
    };
    let injected = injected(client, gateway.watches).await;
    let bundles = bundles(client, injected.as_deref().unwrap_or_default(), certificate.as_ref(), now).await;
    let workloads = match injected {
        Ok(injected) => Ok(reached(client, injected).await),
        Err(unseen) => Err(unseen),
    };
    let service = service(client, gateway, &settings).await;
    RegistrationSurvey {
        mode: settings.mode,
        service_name: settings.service,
        service,
        secret,
        reviews,
        bundles,
        workloads,
    }
}

async fn service(
    client: &SurveyClient<'_>,
    gateway: &Registrar<'_>,
    settings: &RegistrationSettings,
) -> Result<Option<RegistrationService>, SurveyError> {
    let at = format!("{}/{}", ObjectKind::SERVICE.path(Some(gateway.namespace)), settings.service);
    let found = client.get::<Service>(&at).await?.map(|service| service.spec.unwrap_or_default());
    Ok(found.map(|spec| {
        // A headless Service has no port of its own: sidecars dial this one of the pods.
        let leads = |port: &ServicePort| {
            port.port == i32::from(PORT)
                && match &port.target_port {
                    Some(IntOrString::Int(target)) => Some(*target) == settings.port.map(i32::from),
                    Some(IntOrString::String(_)) => true,
                    None => settings.port == Some(PORT),
                }
        };
        let selector = spec.selector.unwrap_or_default();
        RegistrationService {
            headless: spec.cluster_ip.as_deref() == Some("None"),
            port: spec.ports.iter().flatten().any(leads) && settings.port.is_none_or(|port| port == PORT),
            selects: selects(&selector, gateway.labels),
        }
    }))
}

fn selects(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// The workloads with the annotation.
async fn injected(
    client: &SurveyClient<'_>,
    namespace: Option<&str>,
) -> Result<Vec<(&'static str, Workload)>, SurveyError> {
    let mut all = Vec::new();
    for (kind, plural) in WORKLOADS {
        let listed: Vec<Workload> = client.list(path("apps", "v1", plural, namespace), None).await?;
        let has = |workload: &Workload| {
            workload.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(INJECTED_ANNOTATION))
        };
        all.extend(listed.into_iter().filter(has).map(|workload| (kind, workload)));
    }
    Ok(all)
}

/// The `ConfigMap`s with CAs that the workloads mount, each once.
async fn bundles(
    client: &SurveyClient<'_>,
    workloads: &[(&'static str, Workload)],
    certificate: Option<&InspectedCertificate>,
    now: SystemTime,
) -> Vec<BundleSurvey> {
    let named = |workload: &Workload| {
        let volumes = workload.spec.template.spec.as_ref()?.volumes.as_ref()?;
        let volume = volumes.iter().find(|volume| volume.name == REGISTER_VOLUME)?;
        let mut sources = volume.projected.as_ref()?.sources.iter().flatten();
        let name = sources.find_map(|source| Some(source.config_map.as_ref()?.name.clone()))?;
        Some((workload.metadata.namespace.clone()?, name)).filter(|(_, name)| is_object_name(name))
    };
    let all: BTreeSet<(String, String)> =
        workloads.iter().filter_map(|(_, workload)| named(workload)).collect();
    let mut seen = Vec::new();
    for (namespace, name) in all.iter().take(BUNDLES) {
        seen.push(certificates::bundle(client, (namespace, name), certificate, now).await);
    }
    seen
}

/// Whether the Service of each workload leads to its sidecar.
async fn reached(
    client: &SurveyClient<'_>,
    workloads: Vec<(&'static str, Workload)>,
) -> Vec<InjectedWorkload> {
    let namespaces: BTreeSet<String> =
        workloads.iter().filter_map(|(_, workload)| workload.metadata.namespace.clone()).collect();
    let mut services: BTreeMap<String, Option<Vec<Service>>> = BTreeMap::new();
    for namespace in namespaces {
        let listed = client.list(ObjectKind::SERVICE.path(Some(&namespace)), None).await.ok();
        services.insert(namespace, listed);
    }
    let survey = |(kind, workload): (&'static str, Workload)| {
        let Workload { metadata, spec } = workload;
        let namespace = metadata.namespace.unwrap_or_default();
        let there = services.get(&namespace).and_then(Option::as_deref);
        let sidecar = reach(&spec.template, there);
        InjectedWorkload { kind, namespace, name: metadata.name.unwrap_or_default(), sidecar }
    };
    workloads.into_iter().map(survey).collect()
}

/// Whether requests reach the sidecar of these pods. `services`: those of the namespace, if they could be read.
fn reach(template: &PodTemplateSpec, services: Option<&[Service]>) -> SidecarReach {
    let spec = template.spec.as_ref();
    let containers =
        spec.into_iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let Some(sidecar) = containers.into_iter().find(|container| container.name == SIDECAR_CONTAINER) else {
        return SidecarReach::NoSidecar;
    };
    let Some(services) = services else { return SidecarReach::Reached };
    let mut ports = sidecar.ports.iter().flatten();
    let port = ports.find(|port| port.name.as_deref() == Some(SIDECAR_PORT)).map(|port| port.container_port);
    let said = sidecar.args.iter().flatten().find_map(|word| word.strip_prefix("--service="));
    let (Some(port), Some(name)) = (port, said.and_then(|id| id.rsplit('/').next())) else {
        return SidecarReach::Reached;
    };
    let mut named = services.iter().filter(|service| service.metadata.name.as_deref() == Some(name));
    let Some(service) = named.next() else { return SidecarReach::NoService(name.to_owned()) };
    let leads = |target: &Option<IntOrString>| match target {
        Some(IntOrString::Int(target)) => *target == port,
        Some(IntOrString::String(target)) => target == SIDECAR_PORT,
        None => false,
    };
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    if ports
        .into_iter()
        .flatten()
        .any(|it| leads(&it.target_port) || it.target_port.is_none() && it.port == port)
    {
        return SidecarReach::Reached;
    }
    SidecarReach::Bypassed { service: name.to_owned(), port }
}

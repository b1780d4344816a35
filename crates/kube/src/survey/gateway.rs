//! Inspects the installed gateway: its Deployment, its pods and its Services.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, Service};
use rouse_core::slices::SERVICE_NAME;

use super::{Account, SurveyClient, SurveyError};
use crate::client::{ObjectKind, path};
use crate::objects::EndpointSlice;
use crate::objects::workload::is_object_name;

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

/// Inspects the gateway in `namespace`; `None`: it is not installed there.
pub(super) async fn look(
    client: &SurveyClient<'_>,
    namespace: &str,
) -> Result<Option<InstalledGateway>, SurveyError> {
    let at = format!("{}/{GATEWAY}", path("apps", "v1", "deployments", Some(namespace)));
    let Some(deployment) = client.get::<Deployment>(&at).await? else { return Ok(None) };
    let spec = deployment.spec.unwrap_or_default();
    let status = deployment.status.unwrap_or_default();
    let labels = spec.template.metadata.and_then(|meta| meta.labels).unwrap_or_default();
    let pod = spec.template.spec.unwrap_or_default();
    let watches = pod.containers.iter().find_map(watches);
    let account = pod.service_account_name;
    let account = account.filter(|name| !name.is_empty()).unwrap_or_else(|| "default".to_owned());
    let selector = spec.selector.match_labels.unwrap_or_default();
    let stuck = status.conditions.unwrap_or_default().into_iter().find_map(|condition| {
        let wrong = matches!(
            (&*condition.type_, &*condition.status),
            ("ReplicaFailure", "True") | ("Progressing", "False")
        );
        wrong.then(|| condition.message.or(condition.reason).unwrap_or(condition.type_))
    });
    Ok(Some(InstalledGateway {
        namespace: namespace.to_owned(),
        account: Account { namespace: namespace.to_owned(), name: account },
        watches,
        wanted: whole(spec.replicas.or(Some(1))),
        available: whole(status.available_replicas),
        stuck,
        pods: pods(client, namespace, &selector).await,
        services: services(client, namespace, &labels).await,
    }))
}

/// The namespace that a container watches, as `rouse gateway` reads it: by flag, then by variable.
fn watches(container: &Container) -> Option<String> {
    let words: Vec<&str> =
        container.command.iter().chain(&container.args).flatten().map(String::as_str).collect();
    let joined = words.iter().find_map(|word| word.strip_prefix("--watch-namespace="));
    let parted = words.iter().position(|word| *word == "--watch-namespace");
    let flag = joined.or_else(|| words.get(parted? + 1).copied());
    let variable = |name: &str| {
        let mut all = container.env.iter().flatten();
        all.find(|variable| variable.name == name)?.value.as_deref().filter(|value| !value.is_empty())
    };
    let said = flag.or_else(|| variable("ROUSE_WATCH_NAMESPACE"));
    said.or_else(|| variable("KEDA_HTTP_WATCH_NAMESPACE"))
        .map(str::to_owned)
        .filter(|name| is_object_name(name))
}

fn whole(number: Option<i32>) -> u32 {
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_namespace_that_is_watched_is_read_as_the_gateway_reads_it() {
        let env = |name: &str, value: &str| json!([{"name": name, "value": value}]);
        let both = json!([{"name": "KEDA_HTTP_WATCH_NAMESPACE", "value": "keda"}, {"name": "ROUSE_WATCH_NAMESPACE", "value": "own"}]);
        let cases = [
            (json!(["gateway"]), json!([]), None),
            (json!(["gateway", "--watch-namespace", "shop"]), both.clone(), Some("shop")),
            (json!(["gateway", "--watch-namespace=shop"]), json!([]), Some("shop")),
            (json!(["gateway"]), env("ROUSE_WATCH_NAMESPACE", "shop"), Some("shop")),
            (json!(["gateway"]), env("ROUSE_WATCH_NAMESPACE", ""), None),
            (json!(["gateway"]), env("KEDA_HTTP_WATCH_NAMESPACE", "shop"), Some("shop")),
            (json!(["gateway"]), both, Some("own")),
            (json!(["gateway", "--watch-namespace"]), json!([]), None),
            (json!(["gateway", "--watch-namespace", "../pods"]), json!([]), None),
            (Value::Null, Value::Null, None),
        ];
        for (args, env, expected) in cases {
            let container = json!({"name": "gateway", "args": args, "env": env});
            let container: Container = serde_json::from_value(container).unwrap();
            assert_eq!(watches(&container).as_deref(), expected, "{args} {env}");
        }
    }
}

//! The `scale` subresource of workloads: reads it, writes it based on the version that was read, and wakes from 0 and only from
//! 0.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kube::Client;
use kube::api::{GetParams, Patch, PatchParams};
use kube::core::Request;
use rouse_core::start_failure::{StartFailure, StartFailureCause};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::{self, describe, has_code};
use crate::objects::workload::Workload;

/// How long one request may take: a hold waits for it.
pub(super) const ANSWER: Duration = Duration::from_secs(10);
/// How many times to read and write the scale while other writers change it.
const LOOKS: usize = 5;

/// The outcome of a wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WakeOutcome {
    /// It was scaled to this number of pods.
    Scaled(u32),
    /// It was not at 0: another writer scaled it.
    AlreadyScaled(u32),
}

/// A workload, as its scale was read or written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedScale {
    /// Requested pods.
    pub(crate) replicas: u32,
    /// Pods that exist.
    pub(crate) pods: u32,
    /// The version of the workload.
    pub(crate) version: String,
}

/// Why a scale was not written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ScaleWriteError {
    /// The workload has changed since it was read.
    Conflict,
    /// The writer may not write any more.
    NotAllowed,
    /// The API server refused it, or cannot be reached.
    Failed(StartFailure),
}

#[derive(Deserialize)]
struct Scale {
    metadata: ScaleMeta,
    #[serde(default)]
    spec: ScaleSpec,
    #[serde(default)]
    status: ScaleStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScaleMeta {
    #[serde(default)]
    resource_version: String,
}

#[derive(Deserialize, Default)]
struct ScaleSpec {
    /// Absent: 0, as Go leaves it out.
    #[serde(default)]
    replicas: u32,
}

#[derive(Deserialize, Default)]
struct ScaleStatus {
    #[serde(default)]
    replicas: u32,
}

impl From<Scale> for ObservedScale {
    fn from(scale: Scale) -> Self {
        Self {
            replicas: scale.spec.replicas,
            pods: scale.status.replicas,
            version: scale.metadata.resource_version,
        }
    }
}

#[derive(Deserialize)]
struct ApiResources {
    #[serde(default)]
    resources: Vec<ApiResource>,
}

#[derive(Deserialize)]
struct ApiResource {
    name: String,
    kind: String,
}

/// Reads and writes the `scale` subresource of workloads.
pub(crate) struct ScaleClient {
    client: Client,
    /// The plural names of kinds, as the API server has them.
    plurals: Mutex<HashMap<Workload, String>>,
}

impl ScaleClient {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, plurals: Mutex::default() }
    }

    /// Scales `workload` from 0 to `replicas`. If it is not at 0, nothing is written. `paused` returns why it must stay at
    /// 0; it is awaited only if the workload is at 0.
    pub(crate) async fn wake(
        &self,
        namespace: &str,
        workload: &Workload,
        replicas: u32,
        paused: impl Future<Output = Option<String>>,
    ) -> Result<WakeOutcome, StartFailure> {
        let plural = self.plural(workload).await?;
        let mut paused = Some(paused);
        for _ in 0..LOOKS {
            let scale = self.read_at(namespace, workload, &plural).await?;
            if scale.replicas > 0 {
                return Ok(WakeOutcome::AlreadyScaled(scale.replicas));
            }
            if let Some(paused) = paused.take()
                && let Some(words) = paused.await
            {
                return Err(StartFailure::new(StartFailureCause::Paused, &words));
            }
            // With the version that was read: of several gateways only one write succeeds, the others read again.
            match self.write_at(namespace, workload, &plural, replicas, &scale.version, || true).await {
                Ok(_) => return Ok(WakeOutcome::Scaled(replicas)),
                Err(ScaleWriteError::Failed(failure)) => return Err(failure),
                Err(ScaleWriteError::Conflict | ScaleWriteError::NotAllowed) => {}
            }
        }
        let text =
            format!("{workload} in {namespace} was not scaled: other writers changed it at each attempt");
        Err(StartFailure::new(StartFailureCause::ClusterUnavailable, &text))
    }

    /// Reads the scale of `workload`.
    pub(crate) async fn read(
        &self,
        namespace: &str,
        workload: &Workload,
    ) -> Result<ObservedScale, StartFailure> {
        let plural = self.plural(workload).await?;
        self.read_at(namespace, workload, &plural).await
    }

    /// Sets the number of pods of `workload`, if it is still at `version`. `may_write` is asked immediately before the request
    /// is sent.
    pub(crate) async fn write(
        &self,
        namespace: &str,
        workload: &Workload,
        replicas: u32,
        version: &str,
        may_write: impl FnOnce() -> bool,
    ) -> Result<ObservedScale, ScaleWriteError> {
        let plural = self.plural(workload).await.map_err(ScaleWriteError::Failed)?;
        self.write_at(namespace, workload, &plural, replicas, version, may_write).await
    }

    /// The workload itself, as JSON.
    pub(crate) async fn object(&self, namespace: &str, workload: &Workload) -> Option<Value> {
        let plural = self.plural(workload).await.ok()?;
        let request = at(namespace, workload, &plural).get(&workload.name, &GetParams::default()).ok()?;
        client::within(ANSWER, self.client.request(request)).await.ok()
    }

    async fn read_at(
        &self,
        namespace: &str,
        workload: &Workload,
        plural: &str,
    ) -> Result<ObservedScale, StartFailure> {
        let look = at(namespace, workload, plural).get_subresource("scale", &workload.name);
        let scale: Result<Scale, kube::Error> = match look.map_err(kube::Error::BuildRequest) {
            Ok(look) => client::within(ANSWER, self.client.request(look)).await,
            Err(error) => Err(error),
        };
        scale.map(Into::into).map_err(|error| explain(&error, namespace, workload, "look at", plural))
    }

    async fn write_at(
        &self,
        namespace: &str,
        workload: &Workload,
        plural: &str,
        replicas: u32,
        version: &str,
        may_write: impl FnOnce() -> bool,
    ) -> Result<ObservedScale, ScaleWriteError> {
        let change = json!({
            "metadata": { "resourceVersion": version },
            "spec": { "replicas": replicas },
        });
        let (params, change) = (PatchParams::default(), Patch::Merge(change));
        let asked =
            at(namespace, workload, plural).patch_subresource("scale", &workload.name, &params, &change);
        let changed: Result<Scale, kube::Error> = match asked {
            Ok(_) if !may_write() => return Err(ScaleWriteError::NotAllowed),
            Ok(asked) => client::within(ANSWER, self.client.request(asked)).await,
            Err(error) => Err(kube::Error::BuildRequest(error)),
        };
        match changed {
            Ok(scale) => Ok(scale.into()),
            Err(error) if has_code(&error, 409) => Err(ScaleWriteError::Conflict),
            Err(error) => Err(ScaleWriteError::Failed(explain(&error, namespace, workload, "scale", plural))),
        }
    }

    /// Why a workload that was scaled has no pods, if its controller says so: a quota, an admission webhook.
    pub(crate) async fn blocked(&self, namespace: &str, workload: &Workload) -> Option<StartFailure> {
        let object = self.object(namespace, workload).await?;
        // The workload has pods. A further pod that could not be created is no reason to refuse requests.
        if object.pointer("/status/replicas").and_then(Value::as_u64).unwrap_or(0) > 0 {
            return None;
        }
        let mut conditions = object.pointer("/status/conditions")?.as_array()?.iter();
        let text =
            |condition: &Value, field: &str| condition.get(field).and_then(Value::as_str).map(str::to_owned);
        let failure = conditions.find(|condition| {
            text(condition, "type").as_deref() == Some("ReplicaFailure")
                && text(condition, "status").as_deref() == Some("True")
        });
        let text = format!("{workload} in {namespace} gets no pods: {}", text(failure?, "message")?);
        Some(StartFailure::new(StartFailureCause::PodsRefused, &text))
    }

    async fn plural(&self, workload: &Workload) -> Result<String, StartFailure> {
        let common = match (&*workload.group, &*workload.kind) {
            ("apps", "Deployment") => Some("deployments"),
            ("apps", "StatefulSet") => Some("statefulsets"),
            ("apps", "ReplicaSet") => Some("replicasets"),
            _ => None,
        };
        if let Some(common) = common {
            return Ok(common.to_owned());
        }
        let kind = Workload { name: "".into(), ..workload.clone() };
        if let Some(known) = self.plurals.lock().unwrap_or_else(PoisonError::into_inner).get(&kind) {
            return Ok(known.clone());
        }
        let path = match &*workload.group {
            "" => format!("/api/{}", workload.version),
            group => format!("/apis/{group}/{}", workload.version),
        };
        let request = http::Request::get(path).body(Vec::new());
        let request = request
            .map_err(|error| StartFailure::new(StartFailureCause::ScaleRefused, &error.to_string()))?;
        let all: Result<ApiResources, kube::Error> =
            client::within(ANSWER, self.client.request(request)).await;
        let all = all.map_err(|error| StartFailure::new(cause(&error), &describe(&error)))?;
        let mut fitting = all.resources.into_iter().filter(|resource| *resource.kind == *workload.kind);
        let found = fitting.find(|resource| !resource.name.contains('/'));
        let unknown = || {
            let text = format!("the cluster has no kind {} in {}", workload.kind, workload.group);
            StartFailure::new(StartFailureCause::ScaleTargetMissing, &text)
        };
        let plural = found.ok_or_else(unknown)?.name;
        let mut plurals = self.plurals.lock().unwrap_or_else(PoisonError::into_inner);
        // Clusters have few kinds of workloads; a bound keeps made-up kinds from filling the map.
        if plurals.len() < 100 {
            plurals.insert(kind, plural.clone());
        }
        Ok(plural)
    }
}

/// Requests for the workloads of a kind in a namespace.
fn at(namespace: &str, workload: &Workload, plural: &str) -> Request {
    Request::new(client::path(&workload.group, &workload.version, plural, Some(namespace)))
}

/// The cause of a start failure: the API server refused, or could not be reached.
pub(super) fn cause(error: &kube::Error) -> StartFailureCause {
    match error {
        kube::Error::Api(status) => match status.code {
            404 => StartFailureCause::ScaleTargetMissing,
            // An expired token is read again soon; conflicts, too many requests and errors of the server itself may pass.
            // All other refusals are permanent.
            401 | 409 | 429 | 500.. => StartFailureCause::ClusterUnavailable,
            _ => StartFailureCause::ScaleRefused,
        },
        _ => StartFailureCause::ClusterUnavailable,
    }
}

/// The failure of a request to the API server, with the next step where it is known.
fn explain(
    error: &kube::Error,
    namespace: &str,
    workload: &Workload,
    what: &str,
    plural: &str,
) -> StartFailure {
    let said = describe(error);
    let at = format!("{workload} in {namespace}");
    let text = match error {
        kube::Error::Api(status) => match status.code {
            404 => format!("{at} does not exist, or has no scale: {said}"),
            403 if said.contains("quota") => format!("a quota keeps {at} from being scaled: {said}"),
            403 => format!("not allowed to {what} {at} (needs get and patch of {plural}/scale): {said}"),
            code => format!("cannot {what} {at}: {said} ({code})"),
        },
        _ => format!("cannot {what} {at}: {said}"),
    };
    StartFailure::new(cause(error), &text)
}

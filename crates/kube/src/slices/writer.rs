//! Writes slices to the API server, within a rate, and only while this process may write.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{Request, Status};
use rouse_core::budget::{Rate, TokenBucket};
use rouse_core::slices::{EndpointSlice, ServiceFacts, SliceContent};
use rouse_core::time::Clock;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::MayWrite;
use super::updates::version;
use crate::client::{self, ObjectKind, describe};
use crate::objects::Meta;
use crate::objects::slices::written;

/// How long one write may take.
const ANSWER: Duration = Duration::from_secs(30);
/// The field manager of the slices.
const MANAGER: &str = "rouse-endpointslices";
/// The annotation with the time of the change that caused the last write. Kube-proxy measures its own delay from it.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// A slice that was written: its name and its version.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) name: Arc<str>,
    pub(super) version: u64,
}

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// This process may not write any more: another one does.
    #[error("this process does not lead any more")]
    NotLeading,
    /// The slice has changed since it was read, or is gone.
    #[error("{0}")]
    Conflict(String),
    /// The API server refused it.
    #[error("{why}")]
    Refused {
        why: String,
        /// The pause that the API server asks for.
        pause: Duration,
    },
    /// It is not known whether the API server has applied it.
    #[error("{0}")]
    Unknown(String),
    /// The namespace is being deleted.
    #[error("the namespace is being deleted")]
    NamespaceEnding,
}

/// Sends the writes of all syncs.
pub(super) struct SliceWriter {
    client: Client,
    bucket: Mutex<TokenBucket>,
    /// The time in which the bucket gets one token.
    interval: Duration,
    clock: Arc<dyn Clock>,
    may_write: MayWrite,
}

impl SliceWriter {
    pub(super) fn new(client: Client, rate: Rate, clock: Arc<dyn Clock>, may_write: MayWrite) -> Self {
        let bucket = Mutex::new(TokenBucket::new(rate, clock.now()));
        let interval = Duration::from_secs(1) / rate.per_second.max(1);
        Self { client, bucket, interval, clock, may_write }
    }

    /// Waits until a write would be within the rate. A sync that is planned before would be outdated when it is written.
    pub(super) async fn ready(&self) {
        while !self.with_bucket(TokenBucket::has) {
            sleep_until(Instant::now() + self.interval).await;
        }
    }

    /// Waits for the turn of one write.
    async fn turn(&self) -> Result<(), WriteError> {
        while !self.with_bucket(TokenBucket::try_take) {
            sleep_until(Instant::now() + self.interval).await;
        }
        if (self.may_write)() { Ok(()) } else { Err(WriteError::NotLeading) }
    }

    fn with_bucket<T>(&self, ask: fn(&mut TokenBucket, rouse_core::time::Moment) -> T) -> T {
        ask(&mut self.bucket.lock().unwrap_or_else(PoisonError::into_inner), self.clock.now())
    }

    /// Creates a slice of `service`.
    pub(super) async fn create(
        &self,
        service: &ServiceFacts,
        content: SliceContent,
        trigger_time: Option<&str>,
    ) -> Result<Written, WriteError> {
        self.turn().await?;
        let annotations = trigger_time.map(|time| (TRIGGER_TIME.to_owned(), time.to_owned()));
        let slice = EndpointSlice {
            name: Arc::default(),
            resource_version: Arc::default(),
            annotations: annotations.into_iter().collect(),
            content,
        };
        let mut body = serde_json::to_value(written(&slice, service)).unwrap_or_default();
        body["apiVersion"] = ObjectKind::SLICE.api_version().into();
        body["kind"] = ObjectKind::SLICE.name.into();
        // The API server makes a name of `generateName`.
        body["metadata"].as_object_mut().map(|meta| meta.remove("name"));
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let request = slices_in(service.id.namespace()).create(&params, body.to_string().into_bytes());
        self.send(request).await
    }

    /// Changes `old` into `new`. What other clients wrote into the metadata of the slice stays.
    pub(super) async fn update(
        &self,
        service: &ServiceFacts,
        old: &EndpointSlice,
        new: &EndpointSlice,
        trigger_time: Option<&str>,
    ) -> Result<Written, WriteError> {
        self.turn().await?;
        let slice = serde_json::to_value(written(new, service)).unwrap_or_default();
        let gone = old.content.labels.keys().filter(|key| !new.content.labels.contains_key(*key));
        let kept = new.content.labels.iter().map(|(key, value)| (key, json!(value)));
        let labels: BTreeMap<&String, Value> = gone.map(|key| (key, Value::Null)).chain(kept).collect();
        let patch = json!({
            "metadata": {
                // Refuses the write if the slice has changed since.
                "resourceVersion": *new.resource_version,
                "labels": labels,
                "annotations": { TRIGGER_TIME: trigger_time },
            },
            "endpoints": slice["endpoints"],
            "ports": slice["ports"],
        });
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let request = slices_in(service.id.namespace()).patch(&new.name, &params, &Patch::Merge(&patch));
        self.send(request).await
    }

    /// Deletes a slice in the version that was read.
    pub(super) async fn delete(&self, namespace: &str, slice: &EndpointSlice) -> Result<(), WriteError> {
        self.turn().await?;
        let version = Some(slice.resource_version.to_string());
        let preconditions = Preconditions { resource_version: version, uid: None };
        let params = DeleteParams::default().preconditions(preconditions);
        let request = slices_in(namespace).delete(&slice.name, &params).map_err(kube::Error::BuildRequest);
        let sent = async { client::within(ANSWER, self.client.request::<Value>(request?)).await };
        match sent.await {
            Err(error) if client::has_code(&error, 404) => Ok(()),
            sent => sent.map(drop).map_err(|error| classify(&error)),
        }
    }

    async fn send(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Written, WriteError> {
        #[derive(Deserialize)]
        struct Answer {
            metadata: Meta,
        }
        let request = request.map_err(kube::Error::BuildRequest);
        let sent = async { client::within(ANSWER, self.client.request::<Answer>(request?)).await };
        let Answer { metadata } = sent.await.map_err(|error| classify(&error))?;
        let version = version(&metadata);
        let version =
            version.ok_or_else(|| WriteError::Unknown("the answer has no resourceVersion".to_owned()))?;
        Ok(Written { name: metadata.name.into(), version })
    }
}

/// A request for the slices of a namespace.
fn slices_in(namespace: &str) -> Request {
    Request::new(ObjectKind::SLICE.path(Some(namespace)))
}

/// What an error says about a write.
fn classify(error: &kube::Error) -> WriteError {
    let why = describe(error);
    match error {
        kube::Error::Api(status) if ends_namespace(status) => WriteError::NamespaceEnding,
        kube::Error::Api(status) if matches!(status.code, 404 | 409) => WriteError::Conflict(why),
        kube::Error::Api(status) if status.code < 500 => {
            let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
            // A mistaken answer must not stop the writes of a service for days.
            let pause = Duration::from_secs(seconds.into()).min(Duration::from_mins(1));
            WriteError::Refused { why, pause }
        }
        kube::Error::BuildRequest(_) => WriteError::Refused { why, pause: Duration::ZERO },
        // The request may have reached the API server, or one of several.
        _ => WriteError::Unknown(why),
    }
}

fn ends_namespace(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}

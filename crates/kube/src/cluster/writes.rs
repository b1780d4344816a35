//! What is written to the API server besides wakes: the conditions of routes, and events on them.

use std::sync::Arc;
use std::time::Duration;

use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Request;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Cluster, Happening, lock};
use crate::api::{self, Kind, refused_with, words};
use crate::events::{Bound, Event};
use crate::route::spec::RouteKind;
use crate::route::status::{MANAGER, Write};

/// How long one write may take.
const ANSWER: Duration = Duration::from_secs(10);

impl Cluster {
    /// Writes conditions, one after the other, until `cancel`.
    pub(super) async fn write_statuses(self: Arc<Self>, cancel: CancellationToken) {
        let Some(mut due) = lock(&self.writes.1).take() else { return cancel.cancelled().await };
        loop {
            let write = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                write = due.recv() => write,
            };
            let Some(write) = write else { return };
            let outcome = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                outcome = self.write_status(&write) => outcome,
            };
            if let Err(error) = outcome {
                self.not_written(&write, &error);
            }
        }
    }

    fn not_written(&self, write: &Write, error: &kube::Error) {
        match error {
            // The object is gone, and so is the need for a status.
            error if refused_with(error, 404) => return,
            error if refused_with(error, 409) => lock(&self.statuses).overtaken(write),
            error => {
                let text = format!("status of {}: {}", write.key, words(error));
                self.tell(Happening::WriteFailed(text));
                // The object's definition does not allow what we say, today as in 30 s: until we say something else.
                if refused_with(error, 422) {
                    return lock(&self.statuses).refused(&write.key);
                }
                // Tried again in a while, not at once: a permission that is missing stays missing.
                lock(&self.unwritten).insert(write.key.clone());
            }
        }
        self.dirty.notify_one();
    }

    async fn write_status(&self, write: &Write) -> Result<(), kube::Error> {
        let kind = match write.key.kind {
            RouteKind::InterceptorRoute => Kind::ROUTE,
            RouteKind::HttpScaledObject => Kind::SCALED_HTTP,
        };
        // Not applied: where somebody else changed a part of what we applied, it could not be taken back.
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let request = Request::new(kind.path(Some(&write.key.namespace)));
        let request =
            request.patch_subresource("status", &write.key.name, &params, &Patch::Merge(&write.patch));
        let request = request.map_err(kube::Error::BuildRequest)?;
        api::within(ANSWER, self.client.request::<Value>(request)).await.map(drop)
    }

    /// Writes events until `cancel`. One that cannot be written is dropped: it is a courtesy.
    pub(super) async fn write_events(self: Arc<Self>, cancel: CancellationToken) {
        let Some(mut due) = lock(&self.events.1).take() else { return cancel.cancelled().await };
        let mut bound = Bound::new(self.settings.clock.now());
        loop {
            let event = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                event = due.recv() => event,
            };
            let Some(event) = event else { return };
            if !bound.may(&event.route, event.reason, self.settings.clock.now()) {
                continue;
            }
            let outcome = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                outcome = self.write_event(&event) => outcome,
            };
            if let Err(error) = outcome {
                self.tell(Happening::WriteFailed(format!("event on {}: {}", event.route, words(&error))));
            }
        }
    }

    async fn write_event(&self, event: &Event) -> Result<(), kube::Error> {
        let body = event.object(&self.settings.identity, &self.now_text()).to_string();
        let request = Request::new(Kind::EVENT.path(Some(&event.route.namespace)));
        let request = request.create(&PostParams::default(), body.into_bytes());
        let request = request.map_err(kube::Error::BuildRequest)?;
        api::within(ANSWER, self.client.request::<Value>(request)).await.map(drop)
    }
}

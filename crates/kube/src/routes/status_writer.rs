//! Writes the conditions of routes to the API server, and tries again what could not be written.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Client;
use kube::api::{Patch, PatchParams};
use kube::core::Request;
use serde_json::Value;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::status::{Condition, CurrentStatus, StatusAuthor, StatusTracker, Write};
use crate::client::{self, ObjectKind, describe, has_code};
use crate::events::{ClusterEvent, EventSender};
use crate::objects::route::RouteKey;

/// The most statuses that wait to be written. Further ones are written later.
const QUEUE: usize = 1024;
/// How long one write may take.
pub(super) const ANSWER: Duration = Duration::from_secs(10);

/// The statuses of all routes, and the queue of those to be written.
pub(crate) struct StatusWriter {
    statuses: Mutex<StatusTracker>,
    /// Routes whose status could not be written: tried again later.
    unwritten: Mutex<BTreeSet<RouteKey>>,
    due: mpsc::Sender<(ObjectKind, Write)>,
    /// Taken by the task that writes.
    queue: Mutex<Option<mpsc::Receiver<(ObjectKind, Write)>>>,
}

impl StatusWriter {
    pub(crate) fn new(author: StatusAuthor) -> Self {
        let (due, queue) = mpsc::channel(QUEUE);
        let statuses = Mutex::new(StatusTracker::new(author));
        Self { statuses, unwritten: Mutex::default(), due, queue: Mutex::new(Some(queue)) }
    }

    /// Whether there are statuses to be tried again.
    pub(crate) fn has_unwritten(&self) -> bool {
        !lock(&self.unwritten).is_empty()
    }

    /// Makes all statuses that could not be written due again.
    pub(crate) fn retry(&self) {
        let mut statuses = lock(&self.statuses);
        for key in std::mem::take(&mut *lock(&self.unwritten)) {
            statuses.failed(&key);
        }
    }

    /// Forgets routes that are gone.
    pub(crate) fn retain(&self, exists: impl FnMut(&RouteKey) -> bool) {
        lock(&self.statuses).retain(exists);
    }

    /// Has the conditions of an object written if they are new. `kind` is its kind at the API server.
    pub(crate) fn put(
        &self,
        key: &RouteKey,
        kind: ObjectKind,
        object: CurrentStatus<'_>,
        desired: Vec<Condition>,
        now: &str,
    ) {
        let mut statuses = lock(&self.statuses);
        let again = match statuses.due(key, object, desired, now) {
            Some(write) => self.due.try_send((kind, write)).is_err(),
            // Without the record on the object, a restart would forget the claims.
            None => statuses.lacks_record(key, object),
        };
        if again {
            lock(&self.unwritten).insert(key.clone());
        }
    }

    /// Writes statuses, one after the other, until `cancel`. `may_write` is asked before each; `changed` is notified when one is
    /// due again.
    pub(crate) async fn run(
        &self,
        client: &Client,
        events: &EventSender,
        changed: &Notify,
        may_write: impl Fn() -> bool,
        cancel: CancellationToken,
    ) {
        let Some(mut queue) = lock(&self.queue).take() else { return cancel.cancelled().await };
        loop {
            let next = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                next = queue.recv() => next,
            };
            let Some((kind, write)) = next else { return };
            if !may_write() {
                lock(&self.statuses).failed(&write.key);
                continue;
            }
            let author = lock(&self.statuses).author();
            let outcome = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                outcome = patch(client, kind, author, &write) => outcome,
            };
            if let Err(error) = outcome
                && self.not_written(&write, &error, events)
            {
                changed.notify_one();
            }
        }
    }

    /// Returns whether the status is to be written again.
    fn not_written(&self, write: &Write, error: &kube::Error, events: &EventSender) -> bool {
        match error {
            // The object is gone, and needs no status.
            error if has_code(error, 404) => return false,
            error if has_code(error, 409) => lock(&self.statuses).overtaken(write),
            error => {
                let text = format!("status of {}: {}", write.key, describe(error));
                events.send(ClusterEvent::WriteFailed(text));
                // The definition of the object does not allow this status, now or later: only another one may succeed.
                if has_code(error, 422) {
                    lock(&self.statuses).refused(&write.key);
                    return false;
                }
                // Tried again in a while, not at once: a permission that is missing stays missing.
                lock(&self.unwritten).insert(write.key.clone());
            }
        }
        true
    }
}

async fn patch(
    client: &Client,
    kind: ObjectKind,
    author: StatusAuthor,
    write: &Write,
) -> Result<(), kube::Error> {
    // A merge patch, not server-side apply: a field that another writer changed could not be taken back.
    let params = PatchParams { field_manager: Some(author.manager().to_owned()), ..PatchParams::default() };
    let request = Request::new(kind.path(Some(&write.key.namespace)));
    let request = request.patch_subresource("status", &write.key.name, &params, &Patch::Merge(&write.patch));
    let request = request.map_err(kube::Error::BuildRequest)?;
    client::within(ANSWER, client.request::<Value>(request)).await.map(drop)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

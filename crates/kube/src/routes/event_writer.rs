//! Writes Kubernetes Events on routes. An event that cannot be written is dropped: the status has the same information.

use std::sync::{Mutex, PoisonError};

use kube::Client;
use kube::api::PostParams;
use kube::core::Request;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::events::{EventAuthor, EventLimits, RouteEvent};
use super::status_writer::ANSWER;
use crate::client::{self, ObjectKind, describe};
use crate::events::{ClusterEvent, EventSender};

/// The most events that wait to be written. Further ones are dropped.
const QUEUE: usize = 1024;

/// The queue of events to be written.
pub(crate) struct EventWriter {
    due: mpsc::Sender<RouteEvent>,
    /// Taken by the task that writes.
    queue: Mutex<Option<mpsc::Receiver<RouteEvent>>>,
}

impl EventWriter {
    pub(crate) fn new() -> Self {
        let (due, queue) = mpsc::channel(QUEUE);
        Self { due, queue: Mutex::new(Some(queue)) }
    }

    pub(crate) fn put(&self, event: RouteEvent) {
        // An error means that the queue is full.
        drop(self.due.try_send(event));
    }

    /// Writes events until `cancel`.
    pub(crate) async fn run(
        &self,
        client: &Client,
        author: &EventAuthor,
        events: &EventSender,
        cancel: CancellationToken,
    ) {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut queue) = queue else { return cancel.cancelled().await };
        let mut bound = EventLimits::new(author.clock.now());
        loop {
            let event = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                event = queue.recv() => event,
            };
            let Some(event) = event else { return };
            if !bound.may(&event.route, event.reason, author.clock.now()) {
                continue;
            }
            let outcome = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                outcome = create(client, &event, author) => outcome,
            };
            if let Err(error) = outcome {
                let text = format!("event on {}: {}", event.route, describe(&error));
                events.send(ClusterEvent::WriteFailed(text));
            }
        }
    }
}

async fn create(client: &Client, event: &RouteEvent, author: &EventAuthor) -> Result<(), kube::Error> {
    let body = event.object(author).to_string();
    let request = Request::new(ObjectKind::EVENT.path(Some(&event.route.namespace)));
    let request = request.create(&PostParams::default(), body.into_bytes());
    let request = request.map_err(kube::Error::BuildRequest)?;
    client::within(ANSWER, client.request::<Value>(request)).await.map(drop)
}

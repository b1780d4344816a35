//! The connected reporters, by pod. A newer stream of a pod replaces the older one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rouse_core::endpoint::PodUid;
use rouse_core::scale::Reporter;
use rouse_core::time::Moment;
use rouse_net::auth::PodIdentity;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::super::stream_protocol::ReporterHello;
use super::stream_end::StreamEnd;
use super::{ReportMetrics, ReportSink};
use crate::proto::report::ControllerMessage;

/// A reporter that is connected.
#[derive(Debug, Clone)]
pub struct ConnectedReporter {
    /// Its name: the UID of its pod.
    pub reporter: Reporter,
    /// Its pod, as its token proves it.
    pub pod: PodIdentity,
    /// What it says of itself.
    pub greeting: ReporterHello,
    /// Since when.
    pub since: Moment,
}

/// The stream of a connected reporter.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) facts: ConnectedReporter,
    commands: mpsc::Sender<ControllerMessage>,
    /// Ends the stream.
    ended: CancellationToken,
    /// Whether the stream is the newest of its pod. Locked while the sink is called, so that nothing of an older stream reaches
    /// the sink after something of a newer one.
    current: Mutex<CurrentStream>,
}

/// Whether a stream is the newest of its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CurrentStream {
    Newest,
    Replaced,
    Left,
}

/// All of them.
pub(super) struct Reporters {
    limit: usize,
    sink: Arc<dyn ReportSink>,
    metrics: ReportMetrics,
    by_pod: Mutex<HashMap<PodUid, Arc<Connected>>>,
}

impl Connected {
    /// The newest stream of its pod.
    pub(super) fn new(
        facts: ConnectedReporter,
        commands: mpsc::Sender<ControllerMessage>,
        ended: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self { facts, commands, ended, current: Mutex::new(CurrentStream::Newest) })
    }

    fn current(&self) -> MutexGuard<'_, CurrentStream> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the sink, unless a newer stream has replaced this one.
    pub(super) fn deliver(&self, tell: impl FnOnce(&Reporter)) -> Result<(), StreamEnd> {
        let current = self.current();
        if *current != CurrentStream::Newest {
            return Err(StreamEnd::Replaced);
        }
        tell(&self.facts.reporter);
        Ok(())
    }

    /// A newer stream takes its place.
    fn replaced(&self) {
        let mut current = self.current();
        if *current == CurrentStream::Newest {
            *current = CurrentStream::Replaced;
        }
        drop(current);
        self.ended.cancel();
    }

    /// Whether a newer stream has taken its place.
    pub(super) fn is_replaced(&self) -> bool {
        *self.current() == CurrentStream::Replaced
    }
}

impl Reporters {
    pub(super) fn new(limit: usize, sink: Arc<dyn ReportSink>, metrics: ReportMetrics) -> Self {
        Self { limit, sink, metrics, by_pod: Mutex::default() }
    }

    fn by_pod(&self) -> MutexGuard<'_, HashMap<PodUid, Arc<Connected>>> {
        self.by_pod.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a stream, and queues its first message. It replaces the one of the same pod, of which the sink hears nothing any
    /// more.
    pub(super) fn enter(
        &self,
        connected: &Arc<Connected>,
        first: ControllerMessage,
    ) -> Result<(), StreamEnd> {
        let uid = &connected.facts.pod.uid;
        let mut by_pod = self.by_pod();
        if by_pod.len() >= self.limit && !by_pod.contains_key(uid) {
            return Err(StreamEnd::TooManyReporters(self.limit));
        }
        // Under the lock, so that no command comes before it. The queue is empty.
        connected.commands.try_send(first).map_err(|_| StreamEnd::Broken)?;
        let before = by_pod.insert(uid.clone(), Arc::clone(connected));
        self.metrics.reporters(by_pod.len());
        drop(by_pod);
        if let Some(before) = before {
            before.replaced();
        }
        Ok(())
    }

    /// Removes a stream that has ended, and tells the sink, unless a newer one has replaced it.
    pub(super) fn leave(&self, connected: &Arc<Connected>) {
        let mut current = connected.current();
        if *current == CurrentStream::Newest {
            *current = CurrentStream::Left;
            self.sink.left(&connected.facts.reporter);
        }
        // Before the other lock: `enter` takes them in the other order.
        drop(current);
        let mut by_pod = self.by_pod();
        let uid = &connected.facts.pod.uid;
        if by_pod.get(uid).is_some_and(|present| Arc::ptr_eq(present, connected)) {
            by_pod.remove(uid);
        }
        self.metrics.reporters(by_pod.len());
    }

    /// Who is connected.
    pub(super) fn list(&self) -> Vec<ConnectedReporter> {
        self.by_pod().values().map(|connected| connected.facts.clone()).collect()
    }

    /// Queues a message for all. Returns to whom. The stream of one that does not read its messages ends.
    pub(super) fn send(&self, message: &ControllerMessage) -> Vec<Reporter> {
        let all: Vec<Arc<Connected>> = self.by_pod().values().map(Arc::clone).collect();
        let took = |connected: &Arc<Connected>| {
            let sent = connected.commands.try_send(message.clone()).is_ok();
            if !sent {
                connected.ended.cancel();
            }
            sent
        };
        let sent = all.into_iter().filter(took);
        sent.map(|connected| connected.facts.reporter.clone()).collect()
    }
}

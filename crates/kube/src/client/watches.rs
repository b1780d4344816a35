//! All watches of a cluster: one for each kind that is always watched, watches of single objects, and the state of each.

use std::sync::Arc;

use kube::Client;
use rouse_core::random::SharedRandom;
use rouse_core::time::Clock;
use tokio::sync::{Notify, watch};

use super::ObjectKind;
use super::watch::{Watch, WatchHealth, WatchReport, WatchState};

/// The kinds that are always watched, and whether requests wait until all objects of the kind were seen once. Pods are
/// not required: the gateway works without the permission to see them.
const WATCHED: [(ObjectKind, bool); 5] = [
    (ObjectKind::SLICE, true),
    (ObjectKind::SERVICE, true),
    (ObjectKind::ROUTE, true),
    (ObjectKind::HTTP_SCALED_OBJECT, true),
    (ObjectKind::POD, false),
];

/// Makes the watches of a cluster and reports their state.
pub(crate) struct Watches {
    client: Client,
    /// The one namespace that is watched; `None`: all.
    namespace: Option<Arc<str>>,
    clock: Arc<dyn Clock>,
    random: Arc<SharedRandom>,
    watched: Vec<Watched>,
    /// Notified when the state of a watch changes.
    changes: watch::Sender<()>,
}

struct Watched {
    kind: ObjectKind,
    required: bool,
    health: Arc<WatchHealth>,
}

impl Watches {
    pub(crate) fn new(client: Client, namespace: Option<&str>, clock: Arc<dyn Clock>, seed: u64) -> Self {
        let changes = watch::Sender::new(());
        let watched = WATCHED.map(|(kind, required)| {
            let health = Arc::new(WatchHealth::new(kind.name, changes.clone()));
            Watched { kind, required, health }
        });
        Self {
            client,
            namespace: namespace.map(Into::into),
            clock,
            random: Arc::new(SharedRandom::new(seed)),
            watched: watched.into(),
            changes,
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The watch of a kind that is always watched. `relist` makes it list all objects again.
    pub(crate) fn of(&self, kind: ObjectKind, relist: &Arc<Notify>) -> Watch {
        let known = self.watched.iter().find(|watched| watched.kind == kind);
        let health = known.map_or_else(|| health(kind), |watched| Arc::clone(&watched.health));
        self.make(kind, self.namespace.clone(), None, health, Arc::clone(relist))
    }

    /// The watch of one object.
    pub(crate) fn named(&self, kind: ObjectKind, namespace: &Arc<str>, name: &Arc<str>) -> Watch {
        let (namespace, name) = (Some(Arc::clone(namespace)), Some(Arc::clone(name)));
        self.make(kind, namespace, name, health(kind), Arc::default())
    }

    fn make(
        &self,
        kind: ObjectKind,
        namespace: Option<Arc<str>>,
        name: Option<Arc<str>>,
        health: Arc<WatchHealth>,
        again: Arc<Notify>,
    ) -> Watch {
        let (client, clock, random) =
            (self.client.clone(), Arc::clone(&self.clock), Arc::clone(&self.random));
        Watch { client, kind, namespace, name, health, clock, random, again }
    }

    /// The state of each watch.
    pub(crate) fn reports(&self) -> Vec<WatchReport> {
        self.watched.iter().map(|watched| watched.health.report()).collect()
    }

    /// The state of the watch of `kind`.
    pub(crate) fn report(&self, kind: ObjectKind) -> Option<WatchReport> {
        let watched = self.watched.iter().find(|watched| watched.kind == kind)?;
        Some(watched.health.report())
    }

    /// Notified when the state of a watch changes.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// The kinds that requests wait for, each with the reason why it was not seen yet.
    pub(crate) fn missing(&self) -> Vec<String> {
        let required = self.watched.iter().filter(|watched| watched.required);
        let reports = required.map(|watched| (watched.kind, watched.health.report()));
        let words = reports.filter(|(_, report)| !report.synced).map(|(kind, report)| {
            let why = match report.state {
                WatchState::Broken { why, .. } => why,
                _ => "the API server has not answered yet".to_owned(),
            };
            format!("{} ({}): {why}", kind.name, kind.resource())
        });
        words.collect()
    }

    /// Waits until all objects were seen once, except for kinds that are not required and cannot be watched. If routes
    /// were compiled earlier, requests for routes that are not known yet would get 404.
    pub(crate) async fn all_seen(&self) {
        let mut changes = self.changes.subscribe();
        let seen = |watched: &Watched| {
            let report = watched.health.report();
            report.synced || !watched.required && matches!(report.state, WatchState::Broken { .. })
        };
        while !self.watched.iter().all(seen) {
            // The sender is a field of `self`, so the channel is never closed.
            drop(changes.changed().await);
        }
    }
}

/// The health of a watch whose state is not reported.
fn health(kind: ObjectKind) -> Arc<WatchHealth> {
    Arc::new(WatchHealth::new(kind.name, watch::Sender::new(())))
}

//! All watches of a cluster: one for each kind that is always watched, watches of single objects, and the state of each.

use std::sync::Arc;

use kube::Client;
use rouse_core::random::SharedRandom;
use rouse_core::time::Clock;
use tokio::sync::{Notify, watch};

use super::ObjectKind;
use super::watch::{Watch, WatchHealth, WatchReport, WatchState};

/// A kind that is always watched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WatchedKind {
    pub(crate) kind: ObjectKind,
    /// Whether all objects of the kind must be seen once before anything is decided by them.
    pub(crate) required: bool,
}

impl WatchedKind {
    pub(crate) const fn required(kind: ObjectKind) -> Self {
        Self { kind, required: true }
    }

    pub(crate) const fn optional(kind: ObjectKind) -> Self {
        Self { kind, required: false }
    }
}

/// Makes the watches of a component and reports their state.
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

/// Which objects of a kind are watched, if not all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ObjectSelector {
    /// The one of this name.
    Name(Arc<str>),
    /// Those that have this label with this value.
    Label(&'static str, Arc<str>),
}

impl Watches {
    pub(crate) fn new(
        client: Client,
        namespace: Option<&str>,
        kinds: &[WatchedKind],
        clock: Arc<dyn Clock>,
        seed: u64,
    ) -> Self {
        let changes = watch::Sender::new(());
        let watched = kinds.iter().map(|&WatchedKind { kind, required }| {
            let health = Arc::new(WatchHealth::new(kind.name, changes.clone()));
            Watched { kind, required, health }
        });
        Self {
            client,
            namespace: namespace.map(Into::into),
            clock,
            random: Arc::new(SharedRandom::new(seed)),
            watched: watched.collect(),
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
        // Nodes have no namespace.
        let namespace = self.namespace.clone().filter(|_| kind != ObjectKind::NODE);
        self.make(kind, namespace, None, self.health(kind), Arc::clone(relist))
    }

    /// The watch of one object.
    pub(crate) fn named(&self, kind: ObjectKind, namespace: &Arc<str>, name: &Arc<str>) -> Watch {
        let selector = Some(ObjectSelector::Name(Arc::clone(name)));
        self.make(kind, Some(Arc::clone(namespace)), selector, health(kind), Arc::default())
    }

    /// The watch of the objects that have a label with this value, in one namespace or in all that are watched. `relist` makes
    /// it list all of them again.
    pub(crate) fn labelled(
        &self,
        kind: ObjectKind,
        namespace: Option<&str>,
        (label, value): (&'static str, &str),
        relist: &Arc<Notify>,
    ) -> Watch {
        let namespace = namespace.map(Into::into).or_else(|| self.namespace.clone());
        let selector = Some(ObjectSelector::Label(label, value.into()));
        self.make(kind, namespace, selector, self.health(kind), Arc::clone(relist))
    }

    fn make(
        &self,
        kind: ObjectKind,
        namespace: Option<Arc<str>>,
        selector: Option<ObjectSelector>,
        health: Arc<WatchHealth>,
        again: Arc<Notify>,
    ) -> Watch {
        let (client, clock, random) =
            (self.client.clone(), Arc::clone(&self.clock), Arc::clone(&self.random));
        Watch { client, kind, namespace, selector, health, clock, random, again }
    }

    fn health(&self, kind: ObjectKind) -> Arc<WatchHealth> {
        let known = self.watched.iter().find(|watched| watched.kind == kind);
        known.map_or_else(|| health(kind), |watched| Arc::clone(&watched.health))
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

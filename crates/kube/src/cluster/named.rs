//! Watches of single objects, by name: what routes and their Services name comes and goes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::{Cluster, Happening};
use crate::api::Kind;
use crate::service::{Holder, Wanted};
use crate::watch::{Health, Sink};

/// The objects that are followed.
#[derive(Default)]
pub(super) struct Followed {
    all: HashMap<Wanted, Follower>,
}

/// The watch of one object, and how to end it.
struct Follower {
    token: CancellationToken,
    task: Id,
    panicked: bool,
}

impl Followed {
    pub(super) fn keys(&self) -> impl Iterator<Item = &Wanted> {
        self.all.keys()
    }

    pub(super) fn contains(&self, wanted: &Wanted) -> bool {
        self.all.contains_key(wanted)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Ends the watches of all others.
    pub(super) fn retain(&mut self, wanted: &BTreeSet<Wanted>) {
        self.all.retain(|one, follower| {
            let keep = wanted.contains(one);
            if !keep {
                follower.token.cancel();
            }
            keep
        });
    }

    /// Begins to follow an object until `token`.
    pub(super) fn begin<S: Sink + 'static>(
        &mut self,
        cluster: &Cluster,
        wanted: Wanted,
        sink: S,
        token: CancellationToken,
        tasks: &mut JoinSet<()>,
    ) {
        let kind = match wanted.kind {
            Holder::ConfigMap => Kind::CONFIG_MAP,
            Holder::Secret => Kind::SECRET,
        };
        let health = Arc::new(Health::new(kind.name, watch::Sender::new(())));
        let object = (Arc::clone(&wanted.namespace), Arc::clone(&wanted.name));
        let watch = cluster.watch(kind, Some(object), health, Arc::default());
        let task = tasks.spawn(watch.run(sink, token.clone())).id();
        self.all.insert(wanted, Follower { token, task, panicked: false });
    }

    /// A watch has ended by a panic. It counts as followed until [`Followed::forget_panicked`]: what made it panic may
    /// still be there, and would at once do so again.
    pub(super) fn ended(&mut self, cluster: &Cluster, error: &JoinError) {
        let Some((wanted, follower)) = self.all.iter_mut().find(|(_, one)| one.task == error.id()) else {
            return;
        };
        follower.panicked = true;
        follower.token.cancel();
        // Without the words of the panic: there may be a secret in them.
        let words = format!("the watch of {wanted} has ended by a panic; it is begun anew in a while");
        cluster.tell(Happening::LeftOut(words));
    }

    pub(super) fn has_panicked(&self) -> bool {
        self.all.values().any(|one| one.panicked)
    }

    /// Those whose watches have panicked are not followed any more.
    pub(super) fn forget_panicked(&mut self) {
        self.all.retain(|_, one| !one.panicked);
    }
}

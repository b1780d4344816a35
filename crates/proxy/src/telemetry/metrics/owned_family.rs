//! Metric families whose series are removed with their owner: routes and services come and go, and their series would pile up.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Metric, Registry};

/// A metric family in which each series belongs to an owner, such as a route. Clones share the series.
#[derive(Debug)]
pub struct OwnedFamily<L, M> {
    family: Family<L, M>,
    /// The labels of each owner. Series are made and removed under this lock, so that each one in the family is listed here.
    owners: Arc<Mutex<Owners<L>>>,
}

type Owners<L> = HashMap<Box<str>, Vec<L>>;

impl<L, M> Clone for OwnedFamily<L, M> {
    fn clone(&self) -> Self {
        Self { family: self.family.clone(), owners: Arc::clone(&self.owners) }
    }
}

impl<L: Clone + Eq + Hash, M: Clone> OwnedFamily<L, M> {
    /// A family without series in `registry`; `make` makes a series.
    pub fn register(registry: &mut Registry, name: &str, help: &str, make: fn() -> M) -> Self
    where
        Family<L, M>: Metric,
    {
        let family = Family::new_with_constructor(make);
        registry.register(name, help, family.clone());
        Self { family, owners: Arc::default() }
    }

    /// The series of `owner` with these labels. A copy that outlives the owner can still be written, but is not exported.
    pub fn series(&self, owner: &str, labels: &L) -> M {
        if let Some(series) = self.family.get(labels) {
            return series.clone();
        }
        let mut owners = self.owners();
        let series = self.family.get_or_create_owned(labels);
        let own = match owners.get_mut(owner) {
            Some(own) => own,
            None => owners.entry(owner.into()).or_default(),
        };
        if !own.contains(labels) {
            own.push(labels.clone());
        }
        series
    }

    /// Removes the series of all owners that are not `known`. Series that requests under way make afterwards are removed by the
    /// next call.
    pub fn keep(&self, known: impl Fn(&str) -> bool) {
        self.owners().retain(|owner, own| {
            let stays = known(owner);
            if !stays {
                for labels in own.iter() {
                    self.family.remove(labels);
                }
            }
            stays
        });
    }

    fn owners(&self) -> MutexGuard<'_, Owners<L>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A metric that is its own clone, such as a counter or a family without owners, in `registry`.
pub fn register<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

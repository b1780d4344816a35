//! Metrics that go with whom they are about: routes and services come and go all day, and their labels would pile up.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::family::Family;

/// A family of metrics, each page of which is about somebody. Clones share the pages.
#[derive(Debug)]
pub struct Pages<L, M> {
    family: Family<L, M>,
    /// The pages of each. Whoever makes or removes pages holds the lock meanwhile, so that none is there that nobody
    /// would remove.
    owners: Arc<Mutex<Owners<L>>>,
}

type Owners<L> = HashMap<Box<str>, Vec<L>>;

impl<L, M> Clone for Pages<L, M> {
    fn clone(&self) -> Self {
        Self { family: self.family.clone(), owners: Arc::clone(&self.owners) }
    }
}

impl<L: Clone + Eq + Hash, M: Clone> Pages<L, M> {
    /// None yet; `make` begins one.
    pub fn new(make: fn() -> M) -> Self {
        Self { family: Family::new_with_constructor(make), owners: Arc::default() }
    }

    /// What is shown of them.
    pub fn family(&self) -> Family<L, M> {
        self.family.clone()
    }

    /// The page of `owner` with these labels. Whoever keeps it may write on it when `owner` has been forgotten, but nobody reads it.
    pub fn page(&self, owner: &str, labels: &L) -> M {
        if let Some(page) = self.family.get(labels) {
            return page.clone();
        }
        let mut owners = self.owners();
        let page = self.family.get_or_create_owned(labels);
        let own = match owners.get_mut(owner) {
            Some(own) => own,
            None => owners.entry(owner.into()).or_default(),
        };
        if !own.contains(labels) {
            own.push(labels.clone());
        }
        page
    }

    /// Forgets all but those that are `known`. What requests under way write of the others afterwards goes the next time.
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

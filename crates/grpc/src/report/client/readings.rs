//! The newest reading of every meter, and which of them a controller does not have yet.
//!
//! Each change gets the next revision. A controller that has all up to one revision needs the entries with a later one, each
//! in its newest version: a slow controller gets fewer readings, not a longer queue.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::vec;

use rouse_core::endpoint::ServiceId;
use rouse_core::load_meter::{LoadKey, LoadSample};
use rouse_core::scale::{EnvoyId, EnvoyState};
use rouse_core::time::Moment;

use super::super::wire::{Chunk, StatePart};
use crate::proto::report::Loads;

/// What a reading or an answer belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Entry {
    Load(LoadKey),
    Parked(ServiceId),
    Envoy(EnvoyId),
}

/// The state of one reporter.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    loads: HashMap<LoadKey, Revised<LoadSample>>,
    /// `None`: not any more. Kept, so that every controller gets to know it.
    parked: HashMap<ServiceId, Revised<Option<u64>>>,
    /// `None`: not known any more. Kept for a while, as above.
    envoys: HashMap<EnvoyId, Revised<Option<EnvoyState>>>,
    by_revision: BTreeMap<u64, Entry>,
    revision: u64,
    /// What had load at the last reading.
    present: HashSet<LoadKey>,
}

#[derive(Debug)]
struct Revised<T> {
    value: T,
    revision: u64,
}

/// What one controller has.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// The rest of the complete state.
    complete: Option<vec::IntoIter<Entry>>,
    /// The controller has all changes up to this one.
    revision: u64,
}

impl Readings {
    fn revise(
        by_revision: &mut BTreeMap<u64, Entry>,
        revision: &mut u64,
        before: Option<u64>,
        entry: Entry,
    ) -> u64 {
        if let Some(before) = before {
            by_revision.remove(&before);
        }
        *revision += 1;
        by_revision.insert(*revision, entry);
        *revision
    }

    fn set_load(&mut self, sample: LoadSample) {
        let before = self.loads.get(&sample.key).map(|load| load.revision);
        let entry = Entry::Load(sample.key.clone());
        let revision = Self::revise(&mut self.by_revision, &mut self.revision, before, entry);
        self.loads.insert(sample.key.clone(), Revised { value: sample, revision });
    }

    /// Takes all listed meters, as the feed reads them. Returns whether something changed.
    pub(crate) fn read(&mut self, samples: Vec<LoadSample>) -> bool {
        let before = self.revision;
        let mut missing = std::mem::take(&mut self.present);
        for sample in samples {
            missing.remove(&sample.key);
            if sample.present > 0 {
                self.present.insert(sample.key.clone());
            }
            let known = self.loads.get(&sample.key).map(|load| &load.value);
            // A meter without load says the same as before.
            let is_same = known.is_some_and(|known| {
                let all = |it: &LoadSample| (it.requests, it.busy, it.present, it.held);
                sample.present == 0 && all(known) == all(&sample)
            });
            if !is_same {
                self.set_load(sample);
            }
        }
        // The feed lists every meter that has load. One that it does not list any more is retired: its service or route is gone.
        for key in missing {
            if let Some(Revised { value, .. }) = self.loads.get(&key) {
                let ended = LoadSample { present: 0, held: 0, ..value.clone() };
                self.set_load(ended);
            }
        }
        self.revision != before
    }

    /// A service is prepared for zero, or not any more. Returns whether that is new.
    pub(crate) fn park(&mut self, service: &ServiceId, id: Option<u64>) -> bool {
        let known = self.parked.get(service);
        if known.map_or(id.is_none(), |known| known.value == id) {
            return false;
        }
        let (before, entry) = (known.map(|known| known.revision), Entry::Parked(service.clone()));
        let revision = Self::revise(&mut self.by_revision, &mut self.revision, before, entry);
        self.parked.insert(service.clone(), Revised { value: id, revision });
        true
    }

    /// These are the Envoys. Returns whether that is new.
    pub(crate) fn set_envoys(&mut self, all: &BTreeMap<EnvoyId, EnvoyState>) -> bool {
        let gone = self.envoys.iter().filter(|(id, known)| known.value.is_some() && !all.contains_key(id));
        let gone = gone.map(|(id, _)| (id.clone(), None)).collect::<Vec<_>>();
        let changed = all
            .iter()
            .filter(|(id, state)| self.envoys.get(id).and_then(|known| known.value.as_ref()) != Some(state));
        let changed = changed.map(|(id, state)| (id.clone(), Some(state.clone()))).collect::<Vec<_>>();
        let before = self.revision;
        for (id, value) in gone.into_iter().chain(changed) {
            let (known, entry) = (self.envoys.get(&id).map(|known| known.revision), Entry::Envoy(id.clone()));
            let revision = Self::revise(&mut self.by_revision, &mut self.revision, known, entry);
            self.envoys.insert(id, Revised { value, revision });
        }
        self.revision != before
    }

    /// Forgets what does not exist any more: otherwise the names of deleted services and routes would fill the memory. What has
    /// load stays.
    pub(crate) fn retain(&mut self, exists: impl Fn(&LoadKey) -> bool) {
        let Self { loads, parked, envoys, by_revision, .. } = self;
        envoys.retain(|_, envoy| {
            let stays = envoy.value.is_some();
            if !stays {
                by_revision.remove(&envoy.revision);
            }
            stays
        });
        loads.retain(|key, load| {
            let stays = load.value.present > 0 || exists(key);
            if !stays {
                by_revision.remove(&load.revision);
            }
            stays
        });
        parked.retain(|service, parked| {
            let stays = parked.value.is_some() || exists(&LoadKey::Service(service.clone()));
            if !stays {
                by_revision.remove(&parked.revision);
            }
            stays
        });
    }

    /// How many meters are known.
    pub(crate) fn len(&self) -> usize {
        self.loads.len()
    }

    /// What a service is prepared for.
    #[cfg(test)]
    pub(crate) fn parked_id(&self, service: &ServiceId) -> Option<u64> {
        self.parked.get(service)?.value
    }

    /// Where a controller begins that has nothing.
    pub(crate) fn cursor(&self) -> Cursor {
        let loads = self.loads.keys().cloned().map(Entry::Load);
        let parked = self.parked.iter().filter(|(_, parked)| parked.value.is_some());
        let parked = parked.map(|(service, _)| Entry::Parked(service.clone()));
        let envoys = self.envoys.iter().filter(|(_, envoy)| envoy.value.is_some());
        let envoys = envoys.map(|(id, _)| Entry::Envoy(id.clone()));
        let entries: Vec<Entry> = loads.chain(parked).chain(envoys).collect();
        Cursor { complete: Some(entries.into_iter()), revision: self.revision }
    }

    /// The next message for a controller. Without entries, it is a heartbeat.
    pub(crate) fn next_message(&self, cursor: &mut Cursor, now: Moment) -> Loads {
        let mut chunk = Chunk::new(now);
        let Some(rest) = &mut cursor.complete else {
            for (revision, entry) in self.by_revision.range(cursor.revision + 1..) {
                if chunk.is_full() {
                    return chunk.into_loads(StatePart::Changes);
                }
                self.add(&mut chunk, entry);
                cursor.revision = *revision;
            }
            return chunk.into_loads(StatePart::Changes);
        };
        while !chunk.is_full() {
            let Some(entry) = rest.next() else {
                cursor.complete = None;
                return chunk.into_loads(StatePart::Last);
            };
            self.add(&mut chunk, &entry);
        }
        chunk.into_loads(StatePart::More)
    }

    /// Whether a controller lacks something.
    pub(crate) fn has_news(&self, cursor: &Cursor) -> bool {
        cursor.complete.is_some() || self.by_revision.range(cursor.revision + 1..).next().is_some()
    }

    fn add(&self, chunk: &mut Chunk, entry: &Entry) {
        match entry {
            Entry::Load(key) => {
                if let Some(load) = self.loads.get(key) {
                    chunk.add_load(&load.value);
                }
            }
            Entry::Parked(service) => {
                if let Some(parked) = self.parked.get(service) {
                    chunk.add_parked(service, parked.value);
                }
            }
            Entry::Envoy(id) => {
                if let Some(envoy) = self.envoys.get(id) {
                    chunk.add_envoy(id, envoy.value.as_ref());
                }
            }
        }
    }
}

//! The queue of services to sync: each at its time, none twice at once, failed ones after a pause.
//!
//! It reads no clock and draws no random number, so that its rules can be tested against a model.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use rouse_core::random::between;
use rouse_core::time::Moment;

/// The longest pause after the first failure, and after many. Half of each pause is jitter.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// How a sync ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SyncEnd {
    /// The slices are as they should be, as far as the cache shows.
    Synced,
    /// It could not begin. It is tried again at this time, or as soon as the service is added for an earlier time.
    Postponed(Moment),
    /// It failed. It is tried again after a pause, and not before, also if the service changes: otherwise a busy service would repeat
    /// a failing request with every change of a pod.
    Failed {
        /// What the API server asks for at least.
        least: Duration,
        /// Chooses the jitter.
        random: u64,
    },
    /// Something that it needs is missing. It is tried again after a pause, or as soon as the service is added for an
    /// earlier time.
    Incomplete {
        /// Chooses the jitter.
        random: u64,
    },
}

/// Services that wait for a sync or are being synced. Holds at most every service that has ever been added and not synced.
#[derive(Debug, Default)]
pub(super) struct SyncQueue {
    entries: HashMap<ServiceId, Entry>,
    /// The waiting services in the order of their time, then of their arrival.
    order: BTreeSet<(Moment, u64, ServiceId)>,
    arrivals: u64,
}

#[derive(Debug)]
struct Entry {
    state: State,
    /// When the oldest change was reported that is not synced yet.
    changed: Moment,
    failures: u32,
    /// The end of the pause after a failure.
    not_before: Moment,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Waiting {
        due: Moment,
        arrival: u64,
    },
    /// It is being synced. A change since then makes it due again, with the time of that change.
    Running {
        again: Option<(Moment, Moment)>,
    },
}

impl SyncQueue {
    /// Asks for a sync of `service` at `due`, or earlier if it is due earlier.
    pub(super) fn add(&mut self, service: &ServiceId, due: Moment, now: Moment) {
        let Some(entry) = self.entries.get_mut(service) else {
            let state = State::Running { again: None };
            let entry = Entry { state, changed: now, failures: 0, not_before: Moment::ZERO };
            self.entries.insert(service.clone(), entry);
            return self.wait(service, due);
        };
        match &mut entry.state {
            State::Running { again } => {
                let (earliest, changed) = again.unwrap_or((due, now));
                *again = Some((earliest.min(due), changed));
            }
            State::Waiting { due: earlier, arrival } => {
                let due = due.max(entry.not_before);
                if due < *earlier {
                    self.order.remove(&(*earlier, *arrival, service.clone()));
                    self.wait(service, due);
                }
            }
        }
    }

    /// Takes the service that is due first, if one is due. The caller must call [`SyncQueue::done`] for it.
    pub(super) fn pop(&mut self, now: Moment) -> Option<ServiceId> {
        let (due, arrival, service) = self.order.first().filter(|(due, ..)| *due <= now)?.clone();
        self.order.remove(&(due, arrival, service.clone()));
        if let Some(entry) = self.entries.get_mut(&service) {
            entry.state = State::Running { again: None };
        }
        Some(service)
    }

    /// The sync of a service that [`SyncQueue::pop`] returned is over.
    pub(super) fn done(&mut self, service: &ServiceId, end: SyncEnd, now: Moment) {
        let Some(entry) = self.entries.get_mut(service) else { return };
        let State::Running { again } = entry.state else { return };
        let due = match end {
            SyncEnd::Synced => {
                let Some((due, changed)) = again else {
                    self.entries.remove(service);
                    return;
                };
                (entry.failures, entry.changed) = (0, changed);
                due
            }
            SyncEnd::Postponed(due) => again.map_or(due, |(again, _)| due.min(again)),
            SyncEnd::Failed { least, random } => {
                entry.failures += 1;
                entry.not_before = now + pause(entry.failures, random).max(least);
                entry.not_before
            }
            SyncEnd::Incomplete { random } => {
                entry.failures += 1;
                let due = now + pause(entry.failures, random);
                again.map_or(due, |(again, _)| due.min(again))
            }
        };
        self.wait(service, due);
    }

    /// When the next service is due.
    pub(super) fn next_due(&self) -> Option<Moment> {
        self.order.first().map(|(due, ..)| *due)
    }

    /// How many services wait or are being synced.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How long the oldest change has not been synced.
    pub(super) fn oldest(&self, now: Moment) -> Duration {
        let changed = self.entries.values().map(|entry| entry.changed).min();
        changed.map_or(Duration::ZERO, |changed| now.since(changed))
    }

    fn wait(&mut self, service: &ServiceId, due: Moment) {
        let Some(entry) = self.entries.get_mut(service) else { return };
        let due = due.max(entry.not_before);
        self.arrivals += 1;
        let arrival = self.arrivals;
        entry.state = State::Waiting { due, arrival };
        self.order.insert((due, arrival, service.clone()));
    }
}

/// The pause after this many failures in a row.
fn pause(failures: u32, random: u64) -> Duration {
    let (first, longest) = PAUSES;
    let doublings = failures.saturating_sub(1).min(10);
    let longest = first.saturating_mul(1 << doublings).min(longest);
    between(longest / 2, longest, random)
}

#[cfg(test)]
mod tests;

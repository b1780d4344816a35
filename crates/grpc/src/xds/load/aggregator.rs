//! The load that Envoys report, summed by service, and which Envoys are silent. A state machine: time and messages are passed in.
//!
//! A reporter is one stream of one Envoy. A stream that ends takes its present requests away, but the Envoy is remembered: it keeps its
//! configuration and goes on sending requests. It is forgotten when a newer stream of the same identity reports, or after
//! [`ENVOY_MEMORY`].

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use rouse_core::scale::{ENVOY_MEMORY, EnvoyId, EnvoyLoad, EnvoyServices, EnvoyState, MAX_ENVOYS};
use rouse_core::time::Moment;

use super::{ConnectedEnvoy, REPORT_INTERVAL};

/// A stream without a message for this long is silent.
const STALE: Duration = Duration::from_secs(5);
/// A new stream may be opened before the last message of the old one is read.
const OVERLAP: Duration = REPORT_INTERVAL;
/// The most streams that are remembered after they ended. Beyond, all services have a silent Envoy.
const MAX_REMEMBERED: usize = 8192;
/// The most requests of one service in one message that count.
const MAX_BEGAN: u64 = 1_000_000_000;

/// Identifies a stream in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct StreamId(u64);

/// What a message says of one cluster, over all localities without gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ClusterLoad {
    /// Requests that began since the last message.
    pub(super) issued: u64,
    /// Requests that ended since the last message: what an old Envoy says instead.
    pub(super) ended: u64,
    /// Requests that are present.
    pub(super) present: u64,
}

/// The load of a service has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServiceChange {
    pub(super) service: ServiceId,
    /// Requests that began.
    pub(super) began: u64,
    /// Requests that are present, at all Envoys.
    pub(super) present: u64,
}

#[derive(Debug)]
struct StreamLoad {
    envoy: EnvoyId,
    opened: Moment,
    /// Its last report; `None`: it has only said hello.
    heard: Option<Moment>,
    services: EnvoyServices,
    /// Services with requests that are present.
    present: HashMap<ServiceId, u64>,
    /// It says how many requests began.
    says_issued: bool,
    /// It has taken the place of a stream that ended.
    is_successor: bool,
}

/// A stream that ended, or an Envoy that left without having reported.
#[derive(Debug)]
struct Ended {
    since: Moment,
    until: Moment,
    services: EnvoyServices,
}

/// The accounts of all Envoys.
#[derive(Debug, Default)]
pub(super) struct EnvoyLoadAggregator {
    next: u64,
    streams: HashMap<StreamId, StreamLoad>,
    /// Present requests by service, over all streams.
    sums: HashMap<ServiceId, u64>,
    ended: BTreeMap<EnvoyId, Vec<Ended>>,
    /// More streams ended than are remembered: until when that matters.
    overflowed: Option<Moment>,
    /// Envoys that have their endpoints from here, each with its services.
    connected: BTreeMap<EnvoyId, EnvoyServices>,
    /// Those of them that do not report, and since when.
    unreported: BTreeMap<EnvoyId, Moment>,
}

impl EnvoyLoadAggregator {
    /// An Envoy has opened a stream.
    pub(super) fn open(&mut self, now: Moment, envoy: EnvoyId) -> StreamId {
        let id = StreamId(self.next);
        self.next += 1;
        let stream = StreamLoad {
            envoy,
            opened: now,
            heard: None,
            services: EnvoyServices::default(),
            present: HashMap::new(),
            says_issued: false,
            is_successor: false,
        };
        self.streams.insert(id, stream);
        id
    }

    /// How many streams are open.
    pub(super) fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Takes a report: the load of all clusters of an Envoy, by service. A service that is missing has none.
    pub(super) fn report(
        &mut self,
        now: Moment,
        id: StreamId,
        services: impl IntoIterator<Item = (ServiceId, ClusterLoad)>,
    ) -> Vec<ServiceChange> {
        let Some(stream) = self.streams.get_mut(&id) else { return Vec::new() };
        let mut all = HashMap::<ServiceId, ClusterLoad>::new();
        for (service, load) in services {
            stream.services.add(&service);
            let sum = all.entry(service).or_default();
            sum.issued = sum.issued.saturating_add(load.issued);
            sum.ended = sum.ended.saturating_add(load.ended);
            sum.present = sum.present.saturating_add(load.present);
        }
        let is_first = stream.heard.replace(now).is_none();
        // An Envoy that says it also reports requests that began before and end now: they count once.
        stream.says_issued |= all.values().any(|load| load.issued > 0);
        let present = all.iter().filter(|(_, load)| load.present > 0);
        let present = present.map(|(service, load)| (service.clone(), load.present)).collect();
        let before = std::mem::replace(&mut stream.present, present);
        let mut changes = Vec::new();
        for (service, load) in &all {
            let began = if stream.says_issued { load.issued } else { load.ended };
            let was = before.get(service).copied().unwrap_or_default();
            if began > 0 || load.present > 0 || was > 0 {
                let present = change_sum(&mut self.sums, service, was, load.present);
                changes.push(ServiceChange {
                    service: service.clone(),
                    began: began.min(MAX_BEGAN),
                    present,
                });
            }
        }
        for (service, was) in before.into_iter().filter(|(service, _)| !all.contains_key(service)) {
            let present = change_sum(&mut self.sums, &service, was, 0);
            changes.push(ServiceChange { service, began: 0, present });
        }
        if is_first {
            self.succeed(id);
        }
        changes
    }

    /// The first report of a stream: it takes the place of one that ended before it was opened.
    fn succeed(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        self.unreported.remove(&stream.envoy);
        let Some(ended) = self.ended.get_mut(&stream.envoy) else { return };
        if let Some(first) = ended.iter().position(|ended| ended.since <= stream.opened + OVERLAP) {
            ended.remove(first);
            stream.is_successor = true;
        }
        if ended.is_empty() {
            self.ended.remove(&stream.envoy);
        }
    }

    /// A stream has ended.
    pub(super) fn close(&mut self, now: Moment, id: StreamId) -> Vec<ServiceChange> {
        let Some(stream) = self.streams.remove(&id) else { return Vec::new() };
        let mut changes = Vec::new();
        for (service, was) in stream.present {
            let present = change_sum(&mut self.sums, &service, was, 0);
            changes.push(ServiceChange { service, began: 0, present });
        }
        // One that has never reported is not known to send requests, unless it has endpoints: see `unreported`.
        let Some(heard) = stream.heard else { return changes };
        let successor = self.streams.values_mut().find(|other| {
            other.envoy == stream.envoy
                && other.heard.is_some()
                && !other.is_successor
                && heard <= other.opened + OVERLAP
                && stream.opened < other.opened
        });
        match successor {
            Some(successor) => successor.is_successor = true,
            None => self.remember(now, stream.envoy, heard, stream.services),
        }
        changes
    }

    fn remember(&mut self, now: Moment, envoy: EnvoyId, since: Moment, services: EnvoyServices) {
        let mut services = services;
        if let Some(connected) = self.connected.get(&envoy) {
            services.extend(connected);
        }
        if self.ended.values().map(Vec::len).sum::<usize>() >= MAX_REMEMBERED {
            self.overflowed = Some(now + ENVOY_MEMORY);
            return;
        }
        self.ended.entry(envoy).or_default().push(Ended { since, until: now + ENVOY_MEMORY, services });
    }

    /// These Envoys have their endpoints from here.
    pub(super) fn set_connected(&mut self, now: Moment, envoys: &[ConnectedEnvoy]) {
        let mut connected = BTreeMap::<EnvoyId, EnvoyServices>::new();
        for ConnectedEnvoy { id, services } in envoys {
            connected.entry(id.clone()).or_default().extend(services);
        }
        let before = std::mem::replace(&mut self.connected, connected);
        let gone = before.into_iter().filter(|(id, _)| !self.connected.contains_key(id));
        for (id, services) in gone.collect::<Vec<_>>() {
            let reported = self.streams.values().any(|stream| stream.envoy == id && stream.heard.is_some());
            let concerns = services != EnvoyServices::default();
            self.unreported.remove(&id);
            // The end of its report stream, if that came first, is remembered already.
            if !reported && concerns && !self.ended.contains_key(&id) {
                self.remember(now, id, now, services);
            }
        }
    }

    /// All Envoys, each with whether its load is known.
    pub(super) fn states(&mut self, now: Moment) -> BTreeMap<EnvoyId, EnvoyState> {
        self.ended.retain(|_, ended| {
            ended.retain(|ended| now < ended.until);
            !ended.is_empty()
        });
        let mut all = BTreeMap::<EnvoyId, EnvoyState>::new();
        for stream in self.streams.values() {
            let last = stream.heard.unwrap_or(stream.opened);
            let known = stream.heard.is_some() && now < last + STALE;
            merge(&mut all, &stream.envoy, (!known).then_some(last), &stream.services);
        }
        for (id, ended) in self.ended.iter().flat_map(|(id, all)| all.iter().map(move |ended| (id, ended))) {
            merge(&mut all, id, Some(ended.since), &ended.services);
        }
        for (id, services) in &self.connected {
            let reports = self.streams.values().any(|stream| stream.envoy == *id && stream.heard.is_some());
            let since = if reports {
                self.unreported.remove(id);
                None
            } else if *services == EnvoyServices::default() {
                // It sends no requests to our services as far as is known.
                continue;
            } else {
                Some(*self.unreported.entry(id.clone()).or_insert(now))
            };
            merge(&mut all, id, since, services);
        }
        self.overflowed = self.overflowed.filter(|until| now < *until);
        if let Some(until) = self.overflowed {
            surplus(&mut all, until - ENVOY_MEMORY);
        } else if all.len() > MAX_ENVOYS {
            surplus(&mut all, now);
        }
        all
    }

    /// The present requests of a service, at all Envoys.
    #[cfg(test)]
    pub(super) fn present(&self, service: &ServiceId) -> u64 {
        self.sums.get(service).copied().unwrap_or_default()
    }
}

/// Replaces the share of one stream in the sum of a service. Returns the sum.
fn change_sum(sums: &mut HashMap<ServiceId, u64>, service: &ServiceId, was: u64, is: u64) -> u64 {
    if was == is {
        return sums.get(service).copied().unwrap_or_default();
    }
    let sum = sums.entry(service.clone()).or_default();
    *sum = sum.saturating_sub(was).saturating_add(is);
    let sum = *sum;
    if sum == 0 {
        sums.remove(service);
    }
    sum
}

/// Adds what is known of one stream. One that is silent makes its Envoy silent.
fn merge(
    all: &mut BTreeMap<EnvoyId, EnvoyState>,
    id: &EnvoyId,
    silent: Option<Moment>,
    services: &EnvoyServices,
) {
    let none = EnvoyState { load: EnvoyLoad::Reported, services: EnvoyServices::default() };
    let state = all.entry(id.clone()).or_insert(none);
    state.services.extend(services);
    state.load = match (state.load, silent) {
        (load, None) => load,
        (EnvoyLoad::Reported, Some(since)) => EnvoyLoad::Silent { since },
        (EnvoyLoad::Silent { since: one }, Some(other)) => EnvoyLoad::Silent { since: one.min(other) },
    };
}

/// There are more Envoys than are told apart: one that is silent stands for the others, for all services.
fn surplus(all: &mut BTreeMap<EnvoyId, EnvoyState>, since: Moment) {
    while all.len() >= MAX_ENVOYS {
        all.pop_last();
    }
    let state = EnvoyState { load: EnvoyLoad::Silent { since }, services: EnvoyServices::All };
    all.insert(EnvoyId::new("", "one of too many Envoys"), state);
}

#[cfg(test)]
mod tests;

//! The autoscalers of all targets of one controller, fed with the load of the services that lead to them.
//!
//! A target is decided about when its load, its pods or its policy change, and when time alone can change the decision. A
//! target without load costs nothing: its autoscaler hears from its reporters only when it decides.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use super::Autoscaler;
use super::decision::{Decision, ObservedTarget, ScaleReason};
use super::envoys::SilentEnvoys;
use super::idle::BadState;
use super::load_table::{LoadChanges, LoadTable, LoadUpdate};
use super::policy::ScalePolicy;
use super::report::{CurrentLoad, LoadReport, Reporter};
use crate::endpoint::ServiceId;
use crate::load_meter::LoadKey;
use crate::time::{Moment, WallClock, WallTime};

/// The autoscalers of all targets, by name `K`. `T` is the token of an observation.
pub struct Fleet<K, T> {
    loads: LoadTable,
    targets: BTreeMap<K, FleetTarget<T>>,
    /// The targets that each service leads to.
    by_service: HashMap<ServiceId, BTreeSet<K>>,
    due: BTreeSet<(Moment, K)>,
    silent: SilentEnvoys,
    /// Targets that keep pods because not all load is known.
    blocked: BTreeSet<K>,
    clock: WallClock,
}

struct FleetTarget<T> {
    scaler: Autoscaler,
    services: BTreeSet<ServiceId>,
    observed: Option<ObservedTarget<T>>,
    /// When the autoscaler last heard of each reporter.
    told: HashMap<Reporter, Moment>,
    due: Option<Moment>,
}

impl<K: Ord + Clone, T: Clone> Fleet<K, T> {
    /// A fleet without targets and reporters.
    pub fn new(now: Moment) -> Self {
        Self {
            loads: LoadTable::new(now),
            targets: BTreeMap::new(),
            by_service: HashMap::new(),
            due: BTreeSet::new(),
            silent: SilentEnvoys::default(),
            blocked: BTreeSet::new(),
            clock: WallClock::default(),
        }
    }

    /// The load of all services and routes.
    pub fn loads(&self) -> &LoadTable {
        &self.loads
    }

    /// Adds a target, or changes its policy and the services that lead to it. What is known of its load stays.
    pub fn set_target(&mut self, now: Moment, key: &K, policy: &ScalePolicy, services: BTreeSet<ServiceId>) {
        let target = self.targets.entry(key.clone()).or_insert_with(|| {
            let mut scaler = Autoscaler::new(policy.clone(), now);
            scaler.list(now, self.loads.listed().cloned()).ok();
            if let Some(wall) = self.clock.at(now) {
                scaler.set_wall_clock(now, wall);
            }
            FleetTarget { scaler, services: BTreeSet::new(), observed: None, told: HashMap::new(), due: None }
        });
        target.scaler.set_policy(policy.clone());
        for gone in target.services.difference(&services) {
            unlink(&mut self.by_service, gone, key);
        }
        for service in &services {
            self.by_service.entry(service.clone()).or_default().insert(key.clone());
        }
        target.scaler.set_silent_envoy(self.silent.of(&services).cloned());
        target.services = services;
        self.decide_at(key, Some(now));
    }

    /// Removes a target.
    pub fn remove_target(&mut self, key: &K) {
        self.decide_at(key, None);
        self.blocked.remove(key);
        for service in self.targets.remove(key).into_iter().flat_map(|target| target.services) {
            unlink(&mut self.by_service, &service, key);
        }
    }

    /// The names of all targets.
    pub fn targets(&self) -> impl Iterator<Item = &K> {
        self.targets.keys()
    }

    /// The autoscaler of a target.
    pub fn scaler(&self, key: &K) -> Option<&Autoscaler> {
        self.targets.get(key).map(|target| &target.scaler)
    }

    /// Takes back what the idle policy of a target has learned, as [`Autoscaler::learned`] returned it.
    pub fn restore_learned(&mut self, now: Moment, key: &K, bytes: &[u8]) -> Result<(), BadState> {
        let Some(target) = self.targets.get_mut(key) else { return Ok(()) };
        target.scaler.restore_learned(bytes)?;
        self.decide_at(key, Some(now));
        Ok(())
    }

    /// Wall time is `wall` at `now`. Without this, schedules have no effect. Call it before [`Fleet::decide`], as often as the
    /// clock may be set; it costs nothing while the clock runs as before.
    pub fn set_wall_clock(&mut self, now: Moment, wall: WallTime) {
        if !self.clock.set(now, wall) {
            return;
        }
        for (key, target) in &mut self.targets {
            if target.scaler.set_wall_clock(now, wall) {
                reschedule(&mut self.due, key, &mut target.due, Some(now));
            }
        }
    }

    /// The pods of a target as they are now. Without this, nothing is decided about it.
    pub fn observe(&mut self, now: Moment, key: &K, observed: ObservedTarget<T>) {
        if let Some(target) = self.targets.get_mut(key) {
            target.observed = Some(observed);
            self.decide_at(key, Some(now));
        }
    }

    /// The pods of a target are not known any more.
    pub fn lose_sight(&mut self, key: &K) {
        if let Some(target) = self.targets.get_mut(key) {
            target.observed = None;
        }
    }

    /// Replaces the list of reporters that serve, and so must report.
    pub fn list(&mut self, now: Moment, serving: &[Reporter]) {
        self.loads.list(now, serving.iter().cloned());
        for (key, target) in &mut self.targets {
            // More reporters than an autoscaler can have: it knows, and blocks.
            target.scaler.list(now, serving.iter().cloned()).ok();
            target.told.retain(|reporter, _| serving.contains(reporter));
            reschedule(&mut self.due, key, &mut target.due, Some(now));
        }
    }

    /// The Envoys whose load is unknown: the services to which they may send requests are not scaled down.
    pub fn set_silent_envoys(&mut self, now: Moment, silent: SilentEnvoys) {
        if self.silent == silent {
            return;
        }
        for (key, target) in &mut self.targets {
            let envoy = silent.of(&target.services);
            if envoy != self.silent.of(&target.services) {
                target.scaler.set_silent_envoy(envoy.cloned());
                reschedule(&mut self.due, key, &mut target.due, Some(now));
            }
        }
        self.silent = silent;
    }

    /// The Envoys whose load is unknown.
    pub fn silent_envoys(&self) -> &SilentEnvoys {
        &self.silent
    }

    /// Takes what a reporter sent. Returns the services and routes whose load is new.
    pub fn heard(&mut self, now: Moment, from: &Reporter, update: LoadUpdate) -> LoadChanges {
        if !self.loads.is_fresh(now, from) {
            for key in std::mem::take(&mut self.blocked) {
                self.decide_at(&key, Some(now));
            }
        }
        let all = self.loads.heard(now, from, update);
        for change in &all.changes {
            if let LoadKey::Service(service) = &change.key {
                for key in self.by_service.get(service).cloned().unwrap_or_default() {
                    self.tell(now, &key, from, &change.report);
                    if let Some(target) = self.targets.get_mut(&key).filter(|_| change.unknown_past) {
                        target.scaler.assume_load(now);
                    }
                    self.decide_at(&key, Some(now));
                }
            }
        }
        all
    }

    /// Decides about all targets that are due.
    pub fn decide(&mut self, now: Moment) -> Vec<(K, Decision<T>)> {
        let mut decisions = Vec::new();
        while let Some((_, key)) = self.due.first().filter(|(due, _)| *due <= now).cloned() {
            self.decide_at(&key, None);
            decisions.extend(self.decide_one(now, &key).map(|decision| (key, decision)));
        }
        decisions
    }

    /// When the next target is due.
    pub fn next_due(&self) -> Option<Moment> {
        self.due.first().map(|(due, _)| *due)
    }

    fn decide_one(&mut self, now: Moment, key: &K) -> Option<Decision<T>> {
        let observed = self.targets.get(key)?.observed.clone()?;
        // A reporter that is heard has no news of this target: nothing has changed there.
        let fresh: Vec<(Reporter, Moment)> =
            self.loads.fresh(now).map(|(reporter, heard)| (reporter.clone(), heard)).collect();
        for (reporter, heard) in fresh {
            let told = self.targets.get(key)?.told.get(&reporter).copied();
            if told != Some(heard) {
                let span = told.map(|told| heard.since(told)).unwrap_or_default();
                self.tell(heard, key, &reporter, &LoadReport { span, ..LoadReport::default() });
            }
        }
        let target = self.targets.get_mut(key)?;
        let decision = target.scaler.decide(now, observed);
        let due = target.scaler.next_due_while_reported(now);
        match decision.reason {
            ScaleReason::ReporterStale { .. } | ScaleReason::NoReporters | ScaleReason::TooManyReporters => {
                self.blocked.insert(key.clone());
            }
            _ => {
                self.blocked.remove(key);
            }
        }
        self.decide_at(key, due);
        Some(decision)
    }

    /// Passes a report on to the autoscaler of a target, with the present load of all services that lead to it.
    fn tell(&mut self, now: Moment, key: &K, from: &Reporter, report: &LoadReport) {
        let Some(target) = self.targets.get_mut(key) else { return };
        let services = target.services.iter().cloned().map(LoadKey::Service);
        let present = services.map(|service| self.loads.present_at(from, &service));
        let present = present.fold(CurrentLoad::default(), CurrentLoad::plus);
        // Beyond the limit of reporters, the autoscaler scales nothing down.
        target.scaler.report(now, from, &LoadReport { present, ..*report }).ok();
        target.told.insert(from.clone(), now);
    }

    fn decide_at(&mut self, key: &K, due: Option<Moment>) {
        if let Some(target) = self.targets.get_mut(key) {
            reschedule(&mut self.due, key, &mut target.due, due);
        }
    }
}

fn reschedule<K: Ord + Clone>(
    queue: &mut BTreeSet<(Moment, K)>,
    key: &K,
    present: &mut Option<Moment>,
    due: Option<Moment>,
) {
    if let Some(before) = std::mem::replace(present, due) {
        queue.remove(&(before, key.clone()));
    }
    queue.extend(due.map(|due| (due, key.clone())));
}

fn unlink<K: Ord>(by_service: &mut HashMap<ServiceId, BTreeSet<K>>, service: &ServiceId, key: &K) {
    if let Some(keys) = by_service.get_mut(service) {
        keys.remove(key);
        if keys.is_empty() {
            by_service.remove(service);
        }
    }
}

impl<K, T> fmt::Debug for Fleet<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("targets", &self.targets.len()).finish_non_exhaustive()
    }
}

//! Before zero: every Envoy must send new requests to the gateways, or requests would go to pods that end. A state machine; time, what
//! xds replicas say and who is connected are passed in.
//!
//! A [`ZeroPreparation`] begins when a target is to go to zero. [`ParkedServices`] knows which xds replicas there are and what each has
//! parked. Zero may be written while the preparation is [`ZeroProgress::Prepared`], which is asked again directly before the write: a
//! replica that has joined meanwhile has Envoys that still send requests to pods.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::report::Reporter;
use crate::endpoint::ServiceId;
use crate::time::Moment;

/// How long xds replicas may take until all are prepared. Then it is given up, and begins again later.
pub const PREPARE_DEADLINE: Duration = Duration::from_secs(30);
/// How long all must have been prepared: a request that an Envoy sent to a pod just before is in its next load report, which is in the next
/// report of its xds replica.
pub const PREPARE_SETTLE: Duration = Duration::from_secs(2);
/// How long an xds replica keeps a service parked after it was asked to. If the controller neither writes zero nor takes it back, the
/// service is served by its pods directly again.
pub const PARKED_FOR: Duration = Duration::from_mins(1);

/// What each connected xds replica has parked.
#[derive(Debug, Clone, Default)]
pub struct ParkedServices {
    replicas: BTreeMap<Reporter, BTreeMap<ServiceId, u64>>,
}

impl ParkedServices {
    /// An xds replica is connected. It has parked nothing as far as is known.
    pub fn joined(&mut self, replica: &Reporter) {
        self.replicas.insert(replica.clone(), BTreeMap::new());
    }

    /// It is not connected any more.
    pub fn left(&mut self, replica: &Reporter) {
        self.replicas.remove(replica);
    }

    /// These are all services that it has parked, each with the id of the request.
    pub fn set(&mut self, replica: &Reporter, services: &BTreeMap<ServiceId, u64>) {
        if let Some(known) = self.replicas.get_mut(replica) {
            services.clone_into(known);
        }
    }

    /// The connected xds replicas.
    pub fn replicas(&self) -> impl Iterator<Item = &Reporter> {
        self.replicas.keys()
    }

    /// Whether no xds replica is connected: nothing has to be prepared.
    pub fn is_empty(&self) -> bool {
        self.replicas.is_empty()
    }

    /// Whether every replica has parked the service, by the request with this id.
    pub fn has_parked(&self, service: &ServiceId, id: u64) -> bool {
        self.replicas.values().all(|parked| parked.get(service) == Some(&id))
    }

    /// Whether every replica has parked the service, by any request.
    pub fn is_parked(&self, service: &ServiceId) -> bool {
        self.replicas.values().all(|parked| parked.contains_key(service))
    }
}

/// How far a preparation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZeroProgress {
    /// Not all replicas have answered, or not for long enough. Ask again at this time at the latest.
    Waits {
        /// When time alone changes it.
        until: Moment,
    },
    /// Zero may be written now.
    Prepared,
    /// It took too long: take it back, and begin again later.
    TimedOut,
}

/// The preparation of one target.
#[derive(Debug, Clone)]
pub struct ZeroPreparation {
    id: u64,
    services: BTreeSet<ServiceId>,
    deadline: Moment,
    asked: BTreeSet<Reporter>,
    complete: Option<Moment>,
}

impl ZeroPreparation {
    /// Begins. `id` is of no other preparation, and not 0.
    pub fn new(now: Moment, id: u64, services: BTreeSet<ServiceId>) -> Self {
        Self { id, services, deadline: now + PREPARE_DEADLINE, asked: BTreeSet::new(), complete: None }
    }

    /// The id of its requests and of the answers to them.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The services of the target.
    pub fn services(&self) -> &BTreeSet<ServiceId> {
        &self.services
    }

    /// Whether replicas must be asked: at the begin, and when one has joined. All are asked then, which changes nothing for those that
    /// were asked before.
    pub fn must_ask(&mut self, parked: &ParkedServices) -> bool {
        let connected: BTreeSet<Reporter> = parked.replicas().cloned().collect();
        let new = !connected.is_subset(&self.asked);
        // One that left and comes back is asked again.
        self.asked = connected;
        new
    }

    /// How far it is now.
    pub fn progress(&mut self, now: Moment, parked: &ParkedServices) -> ZeroProgress {
        let is_complete = self.services.iter().all(|service| parked.has_parked(service, self.id));
        if !is_complete {
            self.complete = None;
            return if now < self.deadline {
                ZeroProgress::Waits { until: self.deadline }
            } else {
                ZeroProgress::TimedOut
            };
        }
        let since = *self.complete.get_or_insert(now);
        // Without replicas, there is no report to wait for.
        if parked.is_empty() || now >= since + PREPARE_SETTLE {
            return ZeroProgress::Prepared;
        }
        ZeroProgress::Waits { until: since + PREPARE_SETTLE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scene {
        parked: ParkedServices,
        preparation: ZeroPreparation,
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_secs(seconds)
    }

    fn services() -> BTreeSet<ServiceId> {
        ["cart", "till"].into_iter().map(|name| ServiceId::new("shop", name).unwrap()).collect()
    }

    impl Scene {
        fn new(replicas: &[&str]) -> Self {
            let mut parked = ParkedServices::default();
            for name in replicas {
                parked.joined(&Reporter::new(name));
            }
            let mut preparation = ZeroPreparation::new(at(100), 7, services());
            assert_eq!(preparation.must_ask(&parked), !replicas.is_empty());
            assert!(!preparation.must_ask(&parked));
            Self { parked, preparation }
        }

        fn answers(&mut self, replica: &str, id: u64) {
            let all = services().into_iter().map(|service| (service, id)).collect();
            self.parked.set(&Reporter::new(replica), &all);
        }

        fn progress(&mut self, second: u64) -> ZeroProgress {
            self.preparation.progress(at(second), &self.parked)
        }
    }

    const DEADLINE: ZeroProgress = ZeroProgress::Waits { until: Moment::from_secs(130) };

    #[test]
    fn without_xds_replicas_there_is_nothing_to_prepare() {
        assert_eq!(Scene::new(&[]).progress(100), ZeroProgress::Prepared);
    }

    #[test]
    fn nothing_is_prepared_while_one_replica_has_not_answered_and_it_ends_after_30_seconds() {
        let mut scene = Scene::new(&["x", "y"]);
        assert_eq!(scene.progress(100), DEADLINE);
        scene.answers("x", 7);
        assert_eq!(scene.progress(101), DEADLINE);
        scene.answers("y", 6);
        assert_eq!(scene.progress(129), DEADLINE, "the answer to another request is none");
        assert_eq!(scene.progress(130), ZeroProgress::TimedOut);
    }

    #[test]
    fn all_services_must_be_parked() {
        let mut scene = Scene::new(&["x"]);
        let one = services().into_iter().take(1).map(|service| (service, 7)).collect();
        scene.parked.set(&Reporter::new("x"), &one);
        assert_eq!(scene.progress(101), DEADLINE);
    }

    #[test]
    fn after_the_last_answer_the_next_reports_are_awaited() {
        let mut scene = Scene::new(&["x", "y"]);
        scene.answers("x", 7);
        scene.answers("y", 7);
        assert_eq!(scene.progress(101), ZeroProgress::Waits { until: at(103) });
        assert_eq!(scene.progress(102), ZeroProgress::Waits { until: at(103) });
        assert_eq!(scene.progress(103), ZeroProgress::Prepared);
        scene.parked.set(&Reporter::new("x"), &BTreeMap::new());
        assert_eq!(scene.progress(104), DEADLINE, "it is not parked any more");
    }

    #[test]
    fn a_replica_that_leaves_is_not_waited_for() {
        let mut scene = Scene::new(&["x", "y"]);
        scene.answers("x", 7);
        assert_eq!(scene.progress(101), DEADLINE);
        scene.parked.left(&Reporter::new("y"));
        assert_eq!(scene.progress(102), ZeroProgress::Waits { until: at(104) });
        assert_eq!(scene.progress(104), ZeroProgress::Prepared);
    }

    #[test]
    fn a_replica_that_joins_is_asked_too_and_must_answer() {
        let mut scene = Scene::new(&["x"]);
        scene.answers("x", 7);
        scene.progress(101);
        assert_eq!(scene.progress(103), ZeroProgress::Prepared);
        scene.parked.joined(&Reporter::new("y"));
        assert_eq!(scene.progress(104), DEADLINE);
        assert!(scene.preparation.must_ask(&scene.parked));
        scene.answers("y", 7);
        assert_eq!(scene.progress(105), ZeroProgress::Waits { until: at(107) });
    }

    #[test]
    fn a_replica_that_reconnects_has_parked_nothing_until_it_says_so() {
        let mut scene = Scene::new(&["x"]);
        scene.answers("x", 7);
        scene.progress(101);
        assert_eq!(scene.progress(103), ZeroProgress::Prepared);
        scene.parked.left(&Reporter::new("x"));
        assert!(!scene.preparation.must_ask(&scene.parked));
        scene.parked.joined(&Reporter::new("x"));
        assert_eq!(scene.progress(104), DEADLINE);
        assert!(scene.preparation.must_ask(&scene.parked));
    }
}

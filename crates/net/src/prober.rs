//! Probes the pods of a service that are starting, or ready only by our own probes, and reports the results to the registry.
//!
//! [`Prober::run`] follows the snapshots of one service and runs one probe task for each pod that slices call not ready or
//! that a probe of ours has promoted. The task ends when the pod is neither.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rouse_core::endpoint::{Endpoint, PodUid, Source, State};
use rouse_core::probe::ProbePlan;
use rouse_core::service::Service;
use rouse_core::snapshot::{PortView, Snapshot};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::probe::{ProbeFailure, probe};
use crate::probe_limiter::ProbeLimits;
use crate::probe_schedule::ProbeSchedule;

/// How a pod is probed.
#[derive(Debug, Clone)]
pub struct ProbeTarget {
    /// The checks.
    pub plan: Arc<ProbePlan>,
    /// The node of the pod: probes per node are limited.
    pub node: Arc<str>,
    /// The probe interval once a probe has promoted the pod.
    pub steady: Duration,
}

/// Returns how to probe the pod with this UID, these addresses and this (first) port; `None` if it must not be probed, or
/// its spec is not known yet. Called before every probe, so it must be fast, and its result may change.
pub type ProbeLookup = Box<dyn Fn(&PodUid, &[IpAddr], u16) -> Option<ProbeTarget> + Send + Sync>;

/// Returns a fresh random number.
pub type RandomNumbers = Box<dyn Fn() -> u64 + Send + Sync>;

/// Settings and limits for probing pods. Services can share one prober; [`Prober::run`] is called once per service.
pub struct Prober {
    /// Which checks to run against which pod.
    pub plans: ProbeLookup,
    /// The pauses between two probes of a pod.
    pub schedule: ProbeSchedule,
    /// The limits on concurrent probes.
    pub limits: Arc<ProbeLimits>,
    /// How long one probe of one address may take; kubelet's default is a second.
    pub timeout: Duration,
    /// Random numbers for jitter.
    pub random: RandomNumbers,
}

impl Prober {
    /// Probes the pods of `service` until `cancel`, or until the service is removed.
    pub async fn run(self: Arc<Self>, service: Arc<Service>, cancel: CancellationToken) {
        let mut snapshots = service.subscribe();
        let home = Arc::downgrade(&service);
        // Drop it: otherwise the prober would keep the service alive.
        drop(service);
        let (mut watches, mut tasks) = (HashMap::new(), JoinSet::new());
        while home.strong_count() > 0 {
            tokio::select! {
                biased;
                () = cancel.cancelled() => break,
                snapshot = snapshots.changed() => {
                    if snapshot.gone {
                        break;
                    }
                    self.follow(&snapshot, &home, &mut watches, &mut tasks);
                }
                Some(_) = tasks.join_next() => {}
            }
        }
        tasks.shutdown().await;
    }

    /// Ends the tasks of pods that need no probes any more, and starts or updates those of pods that do.
    fn follow(
        self: &Arc<Self>,
        snapshot: &Snapshot,
        home: &Weak<Service>,
        watches: &mut HashMap<PodUid, Watch>,
        tasks: &mut JoinSet<()>,
    ) {
        let mut sights = HashMap::new();
        for endpoint in snapshot.ports.iter().flat_map(PortView::endpoints) {
            if let (Some(pod), Some(view)) = (&endpoint.pod, PodView::of(endpoint)) {
                sights.entry(pod.uid.clone()).or_insert(view);
            }
        }
        watches.retain(|uid, _| sights.contains_key(uid));
        for (uid, view) in sights {
            // A closed channel means that the task panicked: start a new one.
            if let Some(watch) = watches.get(&uid).filter(|watch| !watch.view.is_closed()) {
                watch.view.send_if_modified(|before| {
                    let changed = *before != view;
                    *before = view;
                    changed
                });
            } else {
                let (sender, receiver) = watch::channel(view);
                let task = tasks.spawn(Arc::clone(self).watch(Weak::clone(home), uid.clone(), receiver));
                watches.insert(uid, Watch { view: sender, task });
            }
        }
    }

    /// Probes one pod until the task is aborted or the service is gone.
    async fn watch(self: Arc<Self>, home: Weak<Service>, uid: PodUid, mut sights: watch::Receiver<PodView>) {
        let mut since = Instant::now();
        let mut vouched = false;
        loop {
            let view = sights.borrow_and_update().clone();
            let asked = self.ask(&uid, &view).await;
            let steady = asked.as_ref().map_or(ProbeSchedule::SLOWEST, |(probed, _)| probed.steady);
            let Some(service) = home.upgrade() else { return };
            match asked {
                Some((probed, Ok(()))) => {
                    service.probe_passed(&uid, &probed.plan);
                    vouched = true;
                }
                // Only if there is a promotion to end: the call takes the writers' lock of the service.
                Some((_, Err(failure))) if failure.blames_pod() && (vouched || view.promoted) => {
                    service.probe_failed(&uid);
                    vouched = false;
                }
                _ => {}
            }
            // Drop it before the pause: otherwise the prober would keep the service alive.
            drop(service);
            match self.rest(view, steady, since, &mut sights).await {
                Rested::Due => {}
                Rested::Changed => since = Instant::now(),
                Rested::Unwanted => return,
            }
        }
    }

    /// Waits until the next probe is due, or until a change of the pod requires one at once.
    async fn rest(
        &self,
        view: PodView,
        steady: Duration,
        since: Instant,
        sights: &mut watch::Receiver<PodView>,
    ) -> Rested {
        let mut promoted = view.promoted;
        loop {
            let random = (self.random)();
            let pause = if promoted {
                ProbeSchedule::steady(steady, random)
            } else {
                self.schedule.next(since.elapsed(), random)
            };
            tokio::select! {
                () = sleep_until(Instant::now() + pause) => return Rested::Due,
                changed = sights.changed() => {
                    let now = sights.borrow_and_update().promoted;
                    match (changed, promoted, now) {
                        (Err(_), ..) => return Rested::Unwanted,
                        // Our probe has promoted the pod: use the steady interval from here on.
                        (Ok(()), false, true) => promoted = true,
                        (Ok(()), ..) => return Rested::Changed,
                    }
                }
            }
        }
    }

    /// Sends one probe to the pod's first address, and to the other one if nothing listens at the first.
    async fn ask(&self, uid: &PodUid, view: &PodView) -> Option<(ProbeTarget, Result<(), ProbeFailure>)> {
        let probed = (self.plans)(uid, &view.ips, view.port)?;
        let mut answer = None;
        for &ip in &view.ips {
            let _turn = self.limits.turn(&probed.node).await;
            let this = probe(ip, &probed.plan, Instant::now() + self.timeout).await;
            let unreached = this.as_ref().is_err_and(ProbeFailure::unreached);
            answer = Some(this);
            if !unreached {
                break;
            }
        }
        Some((probed, answer?))
    }
}

impl fmt::Debug for Prober {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Prober");
        f.field("schedule", &self.schedule).field("limits", &self.limits).field("timeout", &self.timeout);
        f.finish_non_exhaustive()
    }
}

/// What a probe task needs to know about its pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PodView {
    ips: Box<[IpAddr]>,
    port: u16,
    /// It is ready because of our own probe only.
    promoted: bool,
}

impl PodView {
    /// `None` if a probe of this endpoint would change nothing.
    fn of(endpoint: &Endpoint) -> Option<Self> {
        let promoted = match (endpoint.state, endpoint.source) {
            (State::Ready, Source::Probe) => true,
            (State::Starting, Source::Slice | Source::Probe) => false,
            // A `not-ready` push outranks probes.
            _ => return None,
        };
        let port = endpoint.addresses.first()?.port();
        Some(Self { ips: endpoint.addresses.iter().map(SocketAddr::ip).collect(), port, promoted })
    }
}

/// The probe task of one pod. Dropping it aborts the task.
struct Watch {
    view: watch::Sender<PodView>,
    task: AbortHandle,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Why a pause ended.
enum Rested {
    /// The next probe is due.
    Due,
    /// The pod changed.
    Changed,
    /// The pod needs no probes any more.
    Unwanted,
}

#[cfg(test)]
mod tests {
    use rouse_core::endpoint::Conditions;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_ready_pod_is_asked_again_after_its_interval_and_a_starting_one_soon() {
        let prober = Prober {
            plans: Box::new(|_, _, _| None),
            schedule: ProbeSchedule::local(),
            limits: Arc::new(ProbeLimits::new(1, 1)),
            timeout: Duration::from_secs(1),
            random: Box::new(|| u64::MAX),
        };
        let interval = Duration::from_secs(10);
        for (promoted, pause) in [(true, interval), (false, Duration::from_millis(5))] {
            let view = PodView { ips: Box::default(), port: 80, promoted };
            let (_kept, mut sights) = watch::channel(view.clone());
            let since = Instant::now();
            assert!(matches!(prober.rest(view, interval, since, &mut sights).await, Rested::Due));
            assert!(since.elapsed().abs_diff(pause) <= Duration::from_millis(2), "{:?}", since.elapsed());
        }
    }

    #[test]
    fn only_a_pod_that_a_probe_can_help_is_looked_at() {
        for state in State::ALL {
            for source in [Source::Slice, Source::Push, Source::Probe] {
                let endpoint = Endpoint {
                    pod: None,
                    addresses: ["10.0.0.1:80", "[fd00::1]:80"].map(|text| text.parse().unwrap()).into(),
                    state,
                    source,
                    conditions: Conditions::default(),
                    load: Arc::default(),
                    health: Arc::default(),
                };
                let promoted = match (state, source) {
                    (State::Starting, Source::Slice | Source::Probe) => Some(false),
                    (State::Ready, Source::Probe) => Some(true),
                    _ => None,
                };
                let view = PodView::of(&endpoint);
                assert_eq!(view.as_ref().map(|view| view.promoted), promoted, "{state} by {source}");
                assert!(view.is_none_or(|view| view.ips.len() == 2 && view.port == 80));
            }
        }
    }
}

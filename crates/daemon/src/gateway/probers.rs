//! Starts and stops a prober for each service whose routes, or else the gateway's setting, enable probing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use rouse_core::registry::Registry;
use rouse_core::service::Service;
use rouse_kube::endpoints::pod_index::PodIndex;
use rouse_kube::objects::route::Probing;
use rouse_kube::routes::plan::RoutePlan;
use rouse_net::probe_limiter::ProbeLimits;
use rouse_net::probe_schedule::ProbeSchedule;
use rouse_net::prober::{ProbeTarget, Prober};
use rouse_net::random::system_seed;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

/// The limits of concurrent probes: in all, and to the pods of one node.
const LIMITS: (usize, usize) = (1000, 32);
/// The timeout of a probe: the kubelet's default.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The probers of all services that have one.
#[derive(Debug)]
pub(super) struct Probers {
    registry: Arc<Registry>,
    default: Probing,
    /// For services where a TCP connect proves readiness (`any`), and where it does not (`no_tcp`).
    any: Arc<Prober>,
    no_tcp: Arc<Prober>,
    running: HashMap<ServiceId, Running>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Running {
    service: Arc<Service>,
    how: Probing,
    cancel: CancellationToken,
    task: AbortHandle,
}

impl Probers {
    pub(super) fn new(registry: Arc<Registry>, pods: &Arc<PodIndex>, probe: bool) -> Self {
        let limits = Arc::new(ProbeLimits::new(LIMITS.0, LIMITS.1));
        let prober = |allow_tcp| {
            let pods = Arc::clone(pods);
            Arc::new(Prober {
                plans: Box::new(move |uid, ips, port| {
                    let (plan, node) = pods.plan(uid, ips, port, allow_tcp)?;
                    Some(ProbeTarget { plan, node, steady: ProbeSchedule::SLOWEST })
                }),
                schedule: ProbeSchedule::cluster(),
                limits: Arc::clone(&limits),
                timeout: TIMEOUT,
                random: Box::new(system_seed),
            })
        };
        Self {
            registry,
            default: if probe { Probing::Enabled } else { Probing::Disabled },
            any: prober(true),
            no_tcp: prober(false),
            running: HashMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Starts and stops probers to match `plans`. Of several routes to one service, the most restrictive one applies.
    pub(super) fn follow(&mut self, plans: &[Arc<RoutePlan>]) {
        while self.tasks.try_join_next().is_some() {}
        let mut wanted: HashMap<&ServiceId, Probing> = HashMap::new();
        for plan in plans {
            let how = plan.spec.probing.unwrap_or(self.default);
            if let Ok(target) = &plan.target {
                let known = wanted.entry(&target.service).or_insert(how);
                *known = careful(*known, how);
            }
        }
        wanted.retain(|_, how| *how != Probing::Disabled);
        let registry = &self.registry;
        self.running.retain(|id, running| {
            let same = registry.get(id).is_some_and(|service| Arc::ptr_eq(&service, &running.service));
            // Restart a prober that ended by itself: it must have panicked.
            let stays = same && wanted.get(id) == Some(&running.how) && !running.task.is_finished();
            if !stays {
                running.cancel.cancel();
            }
            stays
        });
        for (id, how) in wanted {
            let Some(service) = registry.get(id).filter(|_| !self.running.contains_key(id)) else { continue };
            let cancel = CancellationToken::new();
            let prober = if how == Probing::NoTcp { &self.no_tcp } else { &self.any };
            let task = self.tasks.spawn(Arc::clone(prober).run(Arc::clone(&service), cancel.clone()));
            self.running.insert(id.clone(), Running { service, how, cancel, task });
        }
    }
}

fn careful(one: Probing, other: Probing) -> Probing {
    let rank = |how| match how {
        Probing::Disabled => 0,
        Probing::NoTcp => 1,
        Probing::Enabled => 2,
    };
    if rank(one) <= rank(other) { one } else { other }
}

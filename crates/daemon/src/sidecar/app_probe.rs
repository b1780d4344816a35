//! Probes the app from the start, and reports each change of its readiness.

use std::net::SocketAddr;
use std::time::Duration;

use rouse_core::probe::{ProbeCheck, ProbePlan, ProbeSpec, ReadinessProbe};
use rouse_core::random::between;
use rouse_net::probe::{ProbeFailure, probe};
use rouse_net::probe_schedule::ProbeSchedule;
use rouse_net::random::system_seed;
use tokio::time::{Instant, sleep_until};

/// The pause between two probes while nothing listens: a refused connection costs the app nothing.
const EAGER: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(25));
/// How many probes in a row must fail before a ready app that accepts connections is not ready: kubelet's default.
const FAILURES: u32 = 3;

/// How the app is probed.
#[derive(Debug)]
pub(super) struct AppProbe {
    app: SocketAddr,
    plan: ProbePlan,
    interval: Duration,
    timeout: Duration,
}

impl AppProbe {
    /// Probes the app at `app` with `check`: every `interval` while it is ready.
    pub(super) fn new(
        app: SocketAddr,
        check: ProbeCheck,
        interval: Duration,
        timeout: Duration,
    ) -> Option<Self> {
        let containers = vec![Some(ReadinessProbe { check, foreign_host: false })];
        let plan = ProbePlan::new(&ProbeSpec { containers, readiness_gates: 0 }, app.port(), true).ok()?;
        Some(Self { app, plan, interval, timeout })
    }

    /// Probes for ever. Calls `changed` when the app becomes ready or ceases to be.
    pub(super) async fn run(self, changed: impl Fn(bool)) {
        let (mut ready, mut failures, mut since) = (false, 0, Instant::now());
        loop {
            let probed = probe(self.app.ip(), &self.plan, Instant::now() + self.timeout).await;
            let now = match &probed {
                Ok(()) => true,
                // Our own side failed: this says nothing about the app.
                Err(failure) if !failure.blames_pod() => ready,
                Err(failure) if failure.unreached() => false,
                Err(_) => ready && failures + 1 < FAILURES,
            };
            failures = if probed.is_ok() { 0 } else { failures + 1 };
            if now != std::mem::replace(&mut ready, now) {
                since = Instant::now();
                changed(ready);
                if let Err(failure) = &probed {
                    tracing::warn!(reason = %failure, "the app is not ready any more");
                }
            }
            sleep_until(Instant::now() + self.pause(&probed, ready, since)).await;
        }
    }

    fn pause(&self, probed: &Result<(), ProbeFailure>, ready: bool, since: Instant) -> Duration {
        let unreached = probed.as_ref().is_err_and(ProbeFailure::unreached);
        if ready {
            ProbeSchedule::steady(self.interval, system_seed())
        } else if unreached {
            between(EAGER.0, EAGER.1, system_seed())
        } else {
            // It listens and is not ready: probes cost it something.
            ProbeSchedule::local().next(since.elapsed(), system_seed()).max(EAGER.0)
        }
    }
}

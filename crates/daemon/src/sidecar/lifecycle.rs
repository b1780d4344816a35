//! The life of the pod as the sidecar sees it: the app's readiness, then the drain. One task owns it, so that `draining` is the
//! last state that gateways hear of.

use std::sync::Arc;
use std::time::Duration;

use rouse_core::merge::PushEvent;
use rouse_core::registry::Registry;
use rouse_core::service::Service;
use rouse_proxy::listen::Gateway;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::push::Reporter;

/// New requests are refused for the last `1 / REFUSING_PART` of the grace period, and for at most [`MOST_REFUSING`].
const REFUSING_PART: u32 = 10;
const MOST_REFUSING: Duration = Duration::from_secs(3);
/// Requests under way are cut off `1 / MARGIN_PART` of the grace period before its end, when the process would be killed.
const MARGIN_PART: u32 = 40;

/// The drain of the sidecar, as hooks and signals see it.
#[derive(Debug, Default)]
pub(super) struct Drain {
    begun: CancellationToken,
    done: CancellationToken,
    over: CancellationToken,
}

impl Drain {
    /// Begins the drain, unless it has begun.
    pub(super) fn begin(&self) {
        self.begun.cancel();
    }

    /// Whether the drain has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_cancelled()
    }

    /// Waits until requests under way are answered and no new one comes, or until the grace period is almost over.
    pub(super) async fn done(&self) {
        self.done.cancelled().await;
    }

    /// Waits until the grace period of the drain is over. A pod that terminates is killed then. A pod that is
    /// not being terminated would refuse every request from then on, so the process must end.
    pub(super) async fn over(&self) {
        self.over.cancelled().await;
    }
}

/// How long a drain may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct DrainLimits {
    /// How long the pod may take to stop.
    pub(super) grace: Duration,
    /// How long no new request must have come.
    pub(super) quiet: Duration,
}

impl DrainLimits {
    /// How long after its begin a drain refuses new requests.
    fn refuse_after(&self) -> Duration {
        self.grace.saturating_sub((self.grace / REFUSING_PART).min(MOST_REFUSING))
    }

    /// How long a drain takes at most.
    pub(super) fn longest(&self) -> Duration {
        self.grace.saturating_sub(self.grace / MARGIN_PART)
    }
}

/// What the life of the pod changes.
#[derive(Debug)]
pub(super) struct Lifecycle {
    pub(super) drain: Arc<Drain>,
    pub(super) limits: DrainLimits,
    /// Whether the app is ready.
    pub(super) readiness: watch::Receiver<bool>,
    pub(super) reporter: Reporter,
    pub(super) gateway: Arc<Gateway>,
    pub(super) registry: Arc<Registry>,
    pub(super) service: Arc<Service>,
}

impl Lifecycle {
    /// Tells the gateways each change, until the drain; then drains. Never ends.
    pub(super) async fn run(mut self) {
        self.follow_readiness().await;
        let begun = Instant::now();
        tracing::info!(in_flight = self.gateway.under_way().count(), "draining");
        self.reporter.report(PushEvent::Draining);
        // HTTP/1 responses close their connections from now on.
        self.gateway.leave();
        let refuse = begun + self.limits.refuse_after();
        let done = timeout_at(refuse, self.quiet()).await.is_ok();
        if done {
            self.drain.done.cancel();
            // The process goes on until SIGTERM, and serves requests that still come.
            sleep_until(refuse).await;
        }
        self.gateway.refuse();
        // Requests that wait for the app are refused as well.
        self.registry.shut_down();
        timeout_at(begun + self.limits.longest(), self.gateway.under_way().idle()).await.ok();
        self.drain.done.cancel();
        sleep_until(begun + self.limits.grace).await;
        self.drain.over.cancel();
        std::future::pending::<()>().await;
    }

    async fn follow_readiness(&mut self) {
        loop {
            tokio::select! {
                biased;
                () = self.drain.begun.cancelled() => return,
                changed = self.readiness.changed() => {
                    if changed.is_err() {
                        // The probe has ended, which ends the process.
                        return self.drain.begun.cancelled().await;
                    }
                    let ready = *self.readiness.borrow_and_update();
                    tracing::info!(ready, "the readiness of the app changed");
                    self.reporter.report(if ready { PushEvent::Ready } else { PushEvent::NotReady });
                }
            }
        }
    }

    /// Waits until nothing is under way and no request has come for the quiet time.
    async fn quiet(&self) {
        loop {
            self.gateway.under_way().idle().await;
            let seen = self.service.asked();
            sleep_until(Instant::now() + self.limits.quiet).await;
            if self.service.asked() == seen && self.gateway.under_way().count() == 0 {
                return;
            }
        }
    }
}

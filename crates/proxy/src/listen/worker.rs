//! One worker thread: builds its modules, and frees memory and file descriptors when they run short.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::gateway::Gateway;
use crate::budget::{BodyBuffers, DescriptorShortage};
use crate::downstream::{ConnectionLimiter, Downstream};
use crate::request::{RequestHandler, ViaMark};
use crate::runtime::Runtime;
use crate::telemetry::Recorder;
use crate::upstream::{IdleBudget, ServicePools, UpstreamContext};

/// How often idle connections to pods are checked.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// How often stalled connections are checked while bytes wait in buffers.
const RELIEF_INTERVAL: Duration = Duration::from_millis(250);

/// The modules of one worker thread.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) gateway: Arc<Gateway>,
    pub(super) runtime: Rc<Runtime>,
    pub(super) limiter: Rc<ConnectionLimiter>,
    pub(super) downstream: Rc<Downstream>,
    upstream: Rc<UpstreamContext>,
    buffers: Rc<BodyBuffers>,
    shortage: Rc<DescriptorShortage>,
}

impl Worker {
    /// Builds one of `workers` workers.
    pub(super) fn new(
        gateway: Arc<Gateway>,
        workers: usize,
        drain: CancellationToken,
        close: CancellationToken,
    ) -> Rc<Self> {
        let settings = &gateway.settings;
        let (clock, limits) = (settings.clock, settings.limits);
        let runtime = Runtime::new(clock, drain, close);
        let buffers = BodyBuffers::new(&gateway.byte_budget, limits.buffers_per_connection);
        let shortage = DescriptorShortage::new(&gateway.shortage);
        let limiter = ConnectionLimiter::new(clock, limits, workers);
        let upstream = Rc::new(UpstreamContext {
            runtime: Rc::clone(&runtime),
            limits,
            max_wait: settings.bounds.max_wait,
            cold_start: settings.cold_start,
            placement: settings.placement,
            metrics: gateway.metrics.clone(),
            buffers: Rc::clone(&buffers),
            pod_connections: Arc::clone(&gateway.pod_connections),
            shortage: Rc::clone(&shortage),
            idle: IdleBudget::new(&limits, workers),
            pools: ServicePools::default(),
        });
        let access_log = settings.access.clone();
        let handler = Rc::new(RequestHandler {
            runtime: Rc::clone(&runtime),
            router: Arc::clone(&gateway.router),
            recorder: Recorder::new(clock, gateway.metrics.clone(), access_log, gateway.under_way()),
            upstream: Rc::clone(&upstream),
            heads: limits.heads,
            bounds: settings.bounds,
            via: ViaMark::new(&settings.id),
            trusted: settings.trusted.clone(),
            placement: settings.placement,
            leaving: Arc::clone(&gateway.leaving),
            refusing: Arc::clone(&gateway.refusing),
        });
        let downstream = Rc::new(Downstream {
            runtime: Rc::clone(&runtime),
            limits,
            limiter: Rc::clone(&limiter),
            handler,
            metrics: gateway.metrics.clone(),
        });
        Rc::new(Self { gateway, runtime, limiter, downstream, upstream, buffers, shortage })
    }

    /// Closes the connection that is needed least, since there are too few file descriptors: idle connections to pods, then a
    /// client connection. If this worker has none, the others look.
    pub(super) fn free_descriptor(&self) {
        if !self.close_least_needed() {
            self.shortage.ask_all_workers();
        }
    }

    fn close_least_needed(&self) -> bool {
        if self.upstream.close_idle() {
            return true;
        }
        let closed = self.limiter.free_descriptor();
        if closed {
            self.gateway.metrics.cut("descriptors");
        }
        closed
    }

    /// Frees a descriptor for each socket that could not be opened. Never ends.
    pub(super) async fn free_descriptors(&self) {
        loop {
            for _ in 0..self.shortage.reports().await {
                self.free_descriptor();
            }
        }
    }

    /// Keeps what waits in hyper's buffers within the gateway's budget: while there is too much, closes the connections
    /// that have stalled for the longest. Never ends.
    pub(super) async fn relieve(&self) {
        let mut was_used = false;
        loop {
            let clock = self.runtime.clock;
            clock.sleep_until(self.runtime.now() + RELIEF_INTERVAL).await;
            if self.shortage.is_asked() && self.close_least_needed() {
                self.shortage.answered();
            }
            for _ in 0..self.limiter.relieve_heads() {
                self.gateway.metrics.cut("memory");
            }
            let is_used = self.buffers.own() > 0;
            // Once more after the last: a connection that was checked must not count as stalled from then on.
            if !std::mem::replace(&mut was_used, is_used) && !is_used {
                continue;
            }
            self.limiter.check_progress();
            self.cut_excess();
            self.buffers.wake();
        }
    }

    /// Closes connections until this worker uses no more than its part of the budget.
    fn cut_excess(&self) {
        let excess = self.buffers.excess();
        let mut freed = 0;
        while freed < excess
            && let Some(one) = self.limiter.cut_longest_unread()
        {
            freed += one;
            self.gateway.metrics.cut("memory");
        }
        // Far over the budget, close connections that have stalled for a moment as well, and then those that make progress.
        // A few at a time: what they free may suffice.
        let mut left = if self.buffers.is_overrun() { self.limiter.len().div_ceil(8) } else { 0 };
        while freed < excess
            && left > 0
            && let Some(one) = self.limiter.cut_at_once()
        {
            freed += one;
            left -= 1;
            self.gateway.metrics.cut("memory");
        }
    }

    /// Closes connections to pods that have been idle for too long. Never ends.
    pub(super) async fn sweep(&self) {
        let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
        loop {
            ticks.tick().await;
            self.upstream.sweep();
        }
    }
}

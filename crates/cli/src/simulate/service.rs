//! The model of one service: requests that arrive, wait and run, pods that start and stop, and what both cost.

use std::collections::VecDeque;
use std::time::Duration;

use rouse_core::time::Moment;

use super::call_trace::Arrival;
use super::totals::Totals;

/// What a service is like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ServiceModel {
    /// From the decision to start a pod until it is ready.
    pub(super) start_time: Duration,
    /// How long a request takes.
    pub(super) request_time: Duration,
    /// How many requests one pod should have.
    pub(super) target: u32,
}

/// One service at a time of the simulation.
#[derive(Debug)]
pub(super) struct SimulatedService {
    model: ServiceModel,
    now: Moment,
    ready: u32,
    /// When pods that start will be ready, in order.
    starting: VecDeque<Moment>,
    /// When requests that run end, in order: all take the same time.
    running: VecDeque<Arrival>,
    /// Requests that wait for a pod, and since when.
    waiting: Vec<Arrival>,
    in_flight: u64,
    held: u64,
    requests: u64,
    /// The time of all requests so far, in nanoseconds.
    busy: u128,
    totals: Totals,
}

impl SimulatedService {
    /// At zero, without requests.
    pub(super) fn new(model: ServiceModel) -> Self {
        Self {
            model,
            now: Moment::ZERO,
            ready: 0,
            starting: VecDeque::new(),
            running: VecDeque::new(),
            waiting: Vec::new(),
            in_flight: 0,
            held: 0,
            requests: 0,
            busy: 0,
            totals: Totals::default(),
        }
    }

    /// Lets time pass until `to`.
    pub(super) fn advance(&mut self, to: Moment) {
        loop {
            // Also what is due now: a pod may take no time to start.
            while let Some(request) = self.running.pop_front_if(|request| request.at <= self.now) {
                self.in_flight -= u64::from(request.calls);
            }
            while self.starting.pop_front_if(|ready| *ready <= self.now).is_some() {
                self.ready += 1;
                self.release();
            }
            if self.now >= to {
                return;
            }
            let ends = self.running.front().map(|request| request.at);
            let starts = self.starting.front().copied();
            self.spend([ends, starts].into_iter().flatten().fold(to, Moment::min));
        }
    }

    fn spend(&mut self, until: Moment) {
        let nanos = until.since(self.now).as_nanos();
        let pods = u128::from(self.pods());
        let present = u128::from(self.present());
        let needed = present.div_ceil(self.model.target.max(1).into()).min(pods);
        self.totals.pod_nanos += pods * nanos;
        self.totals.idle_pod_nanos += (pods - needed) * nanos;
        self.busy += present * nanos;
        self.now = until;
    }

    /// A pod is ready: the waiting requests run.
    fn release(&mut self) {
        for request in std::mem::take(&mut self.waiting) {
            self.totals.waited_nanos += self.now.since(request.at).as_nanos() * u128::from(request.calls);
            self.held -= u64::from(request.calls);
            self.run(request.calls);
        }
    }

    fn run(&mut self, calls: u32) {
        self.in_flight += u64::from(calls);
        self.running.push_back(Arrival { at: self.now + self.model.request_time, calls });
    }

    /// Requests arrive now.
    pub(super) fn arrive(&mut self, calls: u32) {
        self.requests += u64::from(calls);
        if self.ready > 0 {
            return self.run(calls);
        }
        self.totals.cold_starts += u64::from(self.waiting.is_empty());
        self.held += u64::from(calls);
        self.waiting.push(Arrival { at: self.now, calls });
    }

    /// Starts or stops pods: those that are not ready yet first.
    pub(super) fn scale(&mut self, desired: u32) {
        let pods = self.pods();
        for _ in pods..desired {
            self.starting.push_back(self.now + self.model.start_time);
        }
        for _ in desired..pods {
            if self.starting.pop_back().is_none() {
                self.ready -= 1;
            }
        }
    }

    /// The end of the simulation: returns what it cost since the last call. Requests that still wait have waited until now.
    pub(super) fn settle(&mut self) -> Totals {
        for request in &mut self.waiting {
            self.totals.waited_nanos += self.now.since(request.at).as_nanos() * u128::from(request.calls);
            request.at = self.now;
        }
        std::mem::take(&mut self.totals)
    }

    /// The time.
    pub(super) fn now(&self) -> Moment {
        self.now
    }

    /// Pods, ready or not.
    pub(super) fn pods(&self) -> u32 {
        self.ready + u32::try_from(self.starting.len()).unwrap_or(u32::MAX)
    }

    /// Pods that are ready.
    pub(super) fn ready(&self) -> u32 {
        self.ready
    }

    /// When the next pod will be ready.
    pub(super) fn next_ready(&self) -> Option<Moment> {
        self.starting.front().copied()
    }

    /// Requests that run or wait.
    pub(super) fn present(&self) -> u64 {
        self.in_flight + self.held
    }

    /// Requests that wait.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Requests so far.
    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    /// The time of all requests so far: its growth per second is the concurrency.
    pub(super) fn busy(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.busy).unwrap_or(u64::MAX))
    }
}

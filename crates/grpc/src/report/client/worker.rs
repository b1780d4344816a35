//! The task of the client: reads the meters, looks the controllers up, and keeps a connection to each.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::load_meter::LoadFeed;
use rouse_core::random::Random;
use rouse_core::scale::REPORT_PERIOD;
use rouse_core::time::{Clock as _, Moment};
use rouse_net::clock::TokioClock;
use rouse_net::peers::{Discovery, LookupError, MAX_PEERS, PeerSet};
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::timeout;

use super::connection::{ConnectionEnd, ConnectionParts};
use super::controllers::Controllers;
use super::{MeterExists, ReportClientMetrics};

/// The shortest time between two readings: edges that come together are one message.
const COALESCE: Duration = Duration::from_millis(10);
/// How long the last readings may take to be sent.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(500);
/// How often deleted services and routes are forgotten.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);
/// How many welcomes wait for the worker: one of each connection at most.
pub(super) const MAX_WELCOMES: usize = MAX_PEERS;

/// What the client does, and what it knows of the controllers.
pub(super) struct Worker {
    pub(super) parts: Arc<ConnectionParts>,
    pub(super) feed: Arc<LoadFeed>,
    pub(super) exists: MeterExists,
    pub(super) discovery: Discovery,
    pub(super) clock: TokioClock,
    pub(super) random: Random,
    pub(super) metrics: ReportClientMetrics,
    pub(super) welcomes: mpsc::Receiver<SocketAddr>,
    pub(super) peers: PeerSet,
    pub(super) controllers: Controllers,
    /// At most one task per controller.
    pub(super) connections: JoinSet<ConnectionEnd>,
    pub(super) addresses: HashMap<Id, SocketAddr>,
}

/// When the meters are read.
struct Readings {
    last: Moment,
    /// The next one: at the second, or earlier after an edge.
    next: Moment,
    tick: Moment,
    sweep: Moment,
}

/// An event that the worker waits for.
enum Event {
    /// Something is due.
    Due,
    /// Load has begun somewhere.
    Edge,
    Welcomed(SocketAddr),
    Ended(Box<Result<(Id, ConnectionEnd), JoinError>>),
    LookedUp(Result<Vec<SocketAddr>, LookupError>),
}

impl Worker {
    /// Works until it is cancelled.
    pub(super) async fn work(&mut self) {
        let new = self.peers.set_resolved(self.discovery.address());
        self.name(&new);
        let now = self.clock.now();
        let mut readings = Readings { last: now, next: now, tick: now, sweep: now + SWEEP_INTERVAL };
        loop {
            let now = self.clock.now();
            self.read_meters(&mut readings, now);
            for controller in self.controllers.start(now) {
                let task = self.connections.spawn(Arc::clone(&self.parts).run(controller));
                self.addresses.insert(task.id(), controller);
            }
            let urgent = self.controllers.needs_fast_lookup();
            let random = self.random.next_u64();
            self.discovery.start_if_due(urgent, now, random);
            match self.next_event(&readings, urgent).await {
                Event::Due => {}
                Event::Edge => {
                    let soon = self.clock.now().max(readings.last + COALESCE);
                    readings.next = readings.next.min(soon);
                }
                Event::Welcomed(controller) => self.welcomed(controller),
                Event::Ended(ended) => self.ended(*ended),
                Event::LookedUp(result) => self.looked_up(result),
            }
        }
    }

    /// Sends what has changed since the last readings, and ends the streams: a controller sees a gateway that leaves, and not a
    /// connection that breaks.
    pub(super) async fn leave(mut self) {
        self.parts.outbox.edge(self.feed.read());
        self.parts.leave.cancel();
        let connections = async { while self.connections.join_next().await.is_some() {} };
        drop(timeout(LEAVE_TIMEOUT, connections).await);
    }

    /// Waits for the next event.
    async fn next_event(&mut self, readings: &Readings, urgent: bool) -> Event {
        let due = [Some(readings.next), self.controllers.next_due(), self.discovery.due(urgent)];
        let next = due.into_iter().flatten().min().unwrap_or(readings.next);
        tokio::select! {
            () = self.clock.sleep_until(next) => Event::Due,
            () = self.feed.edge() => Event::Edge,
            // `parts` has a sender, so the queue is open.
            Some(controller) = self.welcomes.recv() => Event::Welcomed(controller),
            Some(ended) = self.connections.join_next_with_id() => Event::Ended(Box::new(ended)),
            found = self.discovery.finished() => Event::LookedUp(found),
        }
    }

    /// Reads the meters, if that is due.
    fn read_meters(&self, readings: &mut Readings, now: Moment) {
        if now < readings.next {
            return;
        }
        let samples = self.feed.read();
        if now < readings.tick {
            self.parts.outbox.edge(samples);
        } else {
            self.parts.outbox.tick(samples);
            // Not from the last tick: after a long pause there would be several at once.
            readings.tick = now + REPORT_PERIOD;
            self.metrics.meters(self.parts.outbox.len());
        }
        if now >= readings.sweep {
            self.parts.outbox.retain(|key| (self.exists)(key));
            readings.sweep = now + SWEEP_INTERVAL;
        }
        (readings.last, readings.next) = (now, readings.tick);
    }

    fn name(&mut self, new: &[SocketAddr]) {
        self.controllers.name(&self.peers.members(self.clock.now()), new);
    }

    fn welcomed(&mut self, controller: SocketAddr) {
        let Some(recovered) = self.controllers.welcomed(controller, self.clock.now()) else { return };
        self.metrics.connected(self.controllers.connected());
        if recovered {
            tracing::info!(%controller, "the controller takes load reports again");
        } else {
            tracing::info!(%controller, "the controller takes load reports");
        }
    }

    fn ended(&mut self, ended: Result<(Id, ConnectionEnd), JoinError>) {
        let (id, end) = ended.unwrap_or_else(|error| (error.id(), ConnectionEnd::Stopped));
        let Some(controller) = self.addresses.remove(&id) else { return };
        let (now, random) = (self.clock.now(), self.random.next_u64());
        let failed = !matches!(end, ConnectionEnd::NewToken);
        let pause = self.controllers.ended(controller, failed, now, random);
        self.metrics.connected(self.controllers.connected());
        self.metrics.ended(&end);
        let retry_ms = pause.map(|pause| u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        match &end {
            ConnectionEnd::NewToken | ConnectionEnd::Ended => {
                tracing::info!(%controller, reason = %end, retry_ms, "the stream of load reports begins again");
            }
            end => tracing::warn!(%controller, reason = %end, retry_ms, "cannot report load to a controller"),
        }
    }

    fn looked_up(&mut self, result: Result<Vec<SocketAddr>, LookupError>) {
        match result {
            Ok(controllers) => {
                let new = self.peers.set_resolved(controllers);
                self.name(&new);
            }
            Err(reason) => {
                tracing::error!(name = self.discovery.name(), %reason, "cannot look up the controllers");
            }
        }
    }
}

//! The task of the client: looks the gateways up, sends what is due, and takes the results.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rouse_core::merge::{PushEvent, PushOrder};
use rouse_core::random::Random;
use rouse_core::time::{Clock as _, Moment};
use rouse_net::clock::TokioClock;
use rouse_net::peers::{Discovery, LookupError, PeerSet};
use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};

use super::failure_log::FailureLog;
use super::gateway_tracker::{Attempt, GatewayTracker, Outcome};
use super::http_client::{Connection, HttpClient, RequestResult, SendError};
use super::pod_state::{Advance, AnswerTrust, PodState};
use super::{Progress, PushClient, unix_milliseconds};
use crate::wire::{AnswerStatus, MAX_GATEWAYS, RegistrationAnswer};

/// What the client does, and what it knows of the gateways.
pub(super) struct Worker {
    state: Arc<watch::Sender<PodState>>,
    changes: watch::Receiver<PodState>,
    progress: watch::Sender<Option<Progress>>,
    exchange: Arc<HttpClient>,
    discovery: Discovery,
    clock: TokioClock,
    random: Random,
    log: FailureLog,
    peers: PeerSet,
    tracker: GatewayTracker,
    /// At most one connection per gateway.
    idle: HashMap<SocketAddr, Connection>,
    /// At most one task per gateway.
    requests: JoinSet<RequestResult>,
    sent: HashMap<Id, Sent>,
}

/// A request under way.
struct Sent {
    attempt: Attempt,
    at: Moment,
}

/// An event that the worker waits for.
enum Event {
    /// The state changed, or something is due.
    Due,
    Answered(Box<Result<(Id, RequestResult), JoinError>>),
    LookedUp(Result<Vec<SocketAddr>, LookupError>),
    Closed(SocketAddr),
}

impl Worker {
    pub(super) fn new(client: PushClient) -> Self {
        let PushClient { state, progress, exchange, gateways, resolver, clock, random, tls: _ } = client;
        let (mut peers, discovery) = (PeerSet::default(), Discovery::new(gateways.peers(), resolver));
        peers.set_resolved(discovery.address());
        Self {
            changes: state.subscribe(),
            state,
            progress,
            exchange: Arc::new(exchange),
            discovery,
            clock,
            random,
            log: FailureLog::new(clock.now()),
            peers,
            tracker: GatewayTracker::default(),
            idle: HashMap::new(),
            requests: JoinSet::new(),
            sent: HashMap::new(),
        }
    }

    /// Works until it is dropped.
    pub(super) async fn work(mut self) {
        loop {
            let now = self.clock.now();
            let members = self.peers.members(now);
            self.tracker.set_members(&members);
            self.idle.retain(|gateway, _| members.contains(gateway));
            // Marks the state as seen: a change after this ends the wait below.
            let newest = self.changes.borrow_and_update().newest();
            if let Some((order, event)) = newest {
                self.send_due(order, event, now);
            }
            let order = newest.map(|(order, _)| order);
            let random = self.random.next_u64();
            self.discovery.start_if_due(self.tracker.needs_fast_lookup(order), now, random);
            self.report_progress(order);
            match self.next_event(order).await {
                Event::Due => {}
                Event::Answered(ended) => self.ended(*ended),
                Event::LookedUp(result) => self.looked_up(result),
                Event::Closed(gateway) => {
                    self.idle.remove(&gateway);
                    let random = self.random.next_u64();
                    self.tracker.connection_closed(gateway, self.clock.now(), random);
                }
            }
        }
    }

    /// Waits for the next event.
    async fn next_event(&mut self, newest: Option<PushOrder>) -> Event {
        let request = newest.and_then(|order| self.tracker.next_due(order));
        let lookup = self.discovery.due(self.tracker.needs_fast_lookup(newest));
        let next = [request, lookup, self.peers.next_expiry()].into_iter().flatten().min();
        let timer = async {
            match next {
                Some(next) => self.clock.sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        let idle = &mut self.idle;
        let closed = poll_fn(|context| {
            let mut all = idle.iter_mut();
            let closed =
                all.find_map(|(gateway, idle)| idle.poll_closed(context).is_ready().then_some(*gateway));
            closed.map_or(Poll::Pending, Poll::Ready)
        });
        tokio::select! {
            // The client holds a sender, so this does not fail.
            _ = self.changes.changed() => Event::Due,
            Some(ended) = self.requests.join_next_with_id() => Event::Answered(Box::new(ended)),
            result = self.discovery.finished() => Event::LookedUp(result),
            gateway = closed => Event::Closed(gateway),
            () = timer => Event::Due,
        }
    }

    fn send_due(&mut self, order: PushOrder, event: PushEvent, now: Moment) {
        for attempt in self.tracker.start(order, now) {
            let idle = self.idle.remove(&attempt.gateway);
            let request = Arc::clone(&self.exchange).send(attempt.gateway, idle, order, event);
            let task = self.requests.spawn(request);
            self.sent.insert(task.id(), Sent { attempt, at: now });
        }
    }

    fn looked_up(&mut self, result: Result<Vec<SocketAddr>, LookupError>) {
        match result {
            Ok(gateways) => {
                let named = self.peers.set_resolved(gateways);
                self.tracker.reset_breakers(&named);
            }
            Err(reason) => self.log.lookup_failed(self.discovery.name(), &reason, self.clock.now()),
        }
    }

    fn ended(&mut self, ended: Result<(Id, RequestResult), JoinError>) {
        let (id, exchanged) = match ended {
            Ok((id, exchanged)) => (id, exchanged),
            Err(error) => {
                let result = Err(SendError::Ended);
                (error.id(), RequestResult { result, reused: false, connection: None })
            }
        };
        let Some(Sent { attempt, at }) = self.sent.remove(&id) else { return };
        let (now, gateway) = (self.clock.now(), attempt.gateway);
        if let Some(connection) = exchanged.connection {
            self.idle.insert(gateway, connection);
        }
        let result =
            exchanged.result.and_then(|answer| self.answered(attempt, &answer, exchanged.reused, now));
        let outcome = match &result {
            Ok(outcome) => *outcome,
            Err(error) => Outcome::Failed { retry_after: error.retry_after() },
        };
        let recovered = self.tracker.ended(attempt, outcome, at, now, self.random.next_u64());
        match &result {
            Err(error) => {
                let pause = self.tracker.time_until_due(gateway, attempt.order, now);
                self.log.failed(gateway, error, pause, now);
            }
            Ok(_) if recovered => tracing::info!(%gateway, "the gateway acknowledges registrations again"),
            Ok(_) => {}
        }
    }

    fn answered(
        &mut self,
        attempt: Attempt,
        answer: &RegistrationAnswer,
        reused: bool,
        now: Moment,
    ) -> Result<Outcome, SendError> {
        // Without verified TLS, an answer may come from anywhere.
        let verified = self.exchange.tls.as_ref().is_some_and(|tls| !tls.is_unverified());
        if verified && !answer.gateways.is_empty() {
            let listed = answer.gateways.iter().copied().take(MAX_GATEWAYS);
            let named = self.peers.set_listed(attempt.gateway, listed, now);
            self.tracker.reset_breakers(&named);
        }
        let known = Outcome::Acknowledged { lease: Duration::from_secs(answer.lease_seconds), reused };
        let (AnswerStatus::Stale, Ok(boot)) = (answer.status, answer.boot.parse()) else { return Ok(known) };
        let newest = PushOrder { boot, sequence: answer.sequence };
        let trust = if verified {
            AnswerTrust::Verified
        } else {
            AnswerTrust::Unverified { now: unix_milliseconds((self.exchange.time_of_day)()) }
        };
        let mut advance = Advance::NotNeeded;
        self.state.send_if_modified(|state| {
            advance = state.advance_past(newest, trust);
            advance == Advance::Advanced
        });
        match advance {
            Advance::Advanced => Ok(Outcome::Superseded),
            Advance::NotNeeded => Ok(known),
            Advance::Rejected => Err(SendError::ImplausibleVersion),
        }
    }

    fn report_progress(&self, newest: Option<PushOrder>) {
        let delivered = newest.and_then(|order| {
            let delivery = self.tracker.delivery(order)?;
            Some(Progress { order, delivery })
        });
        if delivered.is_some() {
            self.progress.send_if_modified(|progress| {
                let changed = *progress != delivered;
                *progress = delivered;
                changed
            });
        }
    }
}

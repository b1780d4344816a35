//! Leader election on a `Lease` of the API server: of all replicas of the controller, one writes.
//!
//! The rules are in [`rouse_core::lease`]. [`LeaderElection`] reads and writes the object, and [`Leadership`] tells everything
//! that writes whether it may. A watch only shortens the wait of the other replicas: what it says is read again.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use kube::Client;
use kube::api::{GetParams, Patch, PatchParams, PostParams};
use kube::core::Request;
use rouse_core::lease::{Election, LeaseClaim, LeaseStep, LeaseTiming, SeenLease};
use rouse_core::time::{Clock, Moment};
use serde::de::IgnoredAny;
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::client::watch::Sink;
use crate::client::{self, ObjectKind, Watches, at, describe, has_code};
use crate::events::{ClusterEvent, EventSender};
use crate::objects::lease::{LeaseObject, claim_body};

/// The name of the controller's `Lease`.
pub const CONTROLLER_LEASE: &str = "rouse-controller";
/// How long one request may take. Shorter than the time between a renewal and the end of the hold.
const ANSWER: Duration = Duration::from_secs(4);

/// What a candidate needs to know.
#[derive(Clone)]
pub struct LeaseSettings {
    /// The namespace of the `Lease`: the controller's own.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The name of this process. No other process has it or had it: the name of the pod, and something random.
    pub identity: String,
    /// How long the parts of an election take.
    pub timing: LeaseTiming,
    /// A clock that goes on while the process is stopped.
    pub clock: Arc<dyn Clock>,
    /// The time of day, which is written into the `Lease` for people.
    pub time_of_day: fn() -> SystemTime,
    /// The seed for jitter.
    pub seed: u64,
}

/// Who leads.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaderState {
    /// Whether this process does.
    pub leads: bool,
    /// How often this process was elected.
    pub term: u64,
    /// The holder of the `Lease`, as last read.
    pub holder: Option<Arc<str>>,
}

/// Whether this process leads. Clones tell the same.
#[derive(Clone)]
pub struct Leadership(Arc<SharedLeadership>);

struct SharedLeadership {
    clock: Arc<dyn Clock>,
    /// The nanoseconds of the moment at which the hold ends; 0: it holds nothing.
    until: AtomicU64,
    state: watch::Sender<LeaderState>,
}

impl Leadership {
    /// Never leads: for a controller that only watches.
    pub fn never(clock: Arc<dyn Clock>) -> Self {
        let (until, state) = (AtomicU64::new(0), watch::Sender::new(LeaderState::default()));
        Self(Arc::new(SharedLeadership { clock, until, state }))
    }

    /// Whether this process may write now. To be asked immediately before each write: the process may have been stopped
    /// since it was elected.
    pub fn may_write(&self) -> bool {
        self.0.clock.now() < Moment::from_nanos(self.0.until.load(Ordering::Acquire))
    }

    /// Who leads, whenever it changes. A process that is stopped notices late that it does not lead any more:
    /// [`Leadership::may_write`] decides.
    pub fn state(&self) -> watch::Receiver<LeaderState> {
        self.0.state.subscribe()
    }

    fn publish(&self, election: &Election) {
        let until = election.leads_until().unwrap_or(Moment::ZERO);
        self.0.until.store(until.as_nanos(), Ordering::Release);
        let (leads, holder) = (self.may_write(), election.holder().cloned());
        self.0.state.send_if_modified(|state| {
            let term = state.term + u64::from(leads && !state.leads);
            let next = LeaderState { leads, term, holder };
            let changed = *state != next;
            *state = next;
            changed
        });
    }
}

/// A candidate.
pub struct LeaderElection {
    client: Client,
    settings: LeaseSettings,
    leadership: Leadership,
    events: EventSender,
}

/// What became of a write.
enum Outcome {
    Wrote(SeenLease),
    Refused,
    Gone,
}

impl LeaderElection {
    /// A candidate that has not asked for anything yet.
    pub fn new(client: Client, settings: LeaseSettings) -> Self {
        let leadership = Leadership::never(Arc::clone(&settings.clock));
        Self { client, settings, leadership, events: EventSender::new() }
    }

    /// Whether this process leads.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Events for the operator's log, from now on.
    pub fn events(&self) -> broadcast::Receiver<ClusterEvent> {
        self.events.subscribe()
    }

    /// Takes part in the election until `cancel`, and then releases the `Lease`, so that another candidate takes over at once.
    /// Cancel it only after everything that writes has ended.
    pub async fn run(self, cancel: CancellationToken) {
        let mut election = Election::new(&self.settings.identity, self.settings.timing);
        let (changed, mut watch) = (Arc::new(Notify::new()), JoinSet::new());
        watch.spawn(self.watch(&changed, cancel.child_token()));
        let mut failure: Option<String> = None;
        while !cancel.is_cancelled() {
            let now = self.settings.clock.now();
            self.tell(&election);
            let outcome = match election.step(now) {
                LeaseStep::Wait(due) => {
                    self.wait(&mut election, due, &changed, &cancel).await;
                    continue;
                }
                LeaseStep::Read => self.read(&mut election).await,
                LeaseStep::Write(claim) => self.write(&mut election, &claim).await,
            };
            let error = outcome.err().map(|error| describe(&error));
            if let Some(error) = &error {
                election.failed(self.settings.clock.now());
                if failure.as_ref() != Some(error) {
                    let text = format!("leader election by Lease {}: {error}", self.place());
                    self.events.send(ClusterEvent::WriteFailed(text));
                }
            }
            failure = error;
        }
        self.release(&mut election).await;
    }

    fn place(&self) -> String {
        format!("{}/{}", self.settings.namespace, self.settings.name)
    }

    async fn wait(
        &self,
        election: &mut Election,
        due: Option<Moment>,
        changed: &Notify,
        cancel: &CancellationToken,
    ) {
        let now = self.settings.clock.now();
        // Also at the end of the hold: everything that waits for a change must see that it ended.
        let ends = election.leads_until().filter(|ends| now < *ends);
        let due = due.into_iter().chain(ends).min();
        tokio::select! {
            biased;
            () = cancel.cancelled() => {}
            () = changed.notified() => election.changed(self.settings.clock.now()),
            () = at(due.map(|due| Instant::now() + due.since(now))) => {}
        }
    }

    fn request(&self) -> Request {
        Request::new(ObjectKind::LEASE.path(Some(&self.settings.namespace)))
    }

    async fn read(&self, election: &mut Election) -> Result<(), kube::Error> {
        let request = self.request().get(&self.settings.name, &GetParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        let seen = match client::within(ANSWER, self.client.request::<LeaseObject>(request)).await {
            Ok(object) => Some(object.seen()),
            Err(error) if has_code(&error, 404) => None,
            Err(error) => return Err(error),
        };
        election.observed(self.settings.clock.now(), seen);
        self.tell(election);
        Ok(())
    }

    async fn write(&self, election: &mut Election, claim: &LeaseClaim) -> Result<(), kube::Error> {
        let outcome = self.send(claim).await?;
        let now = self.settings.clock.now();
        match outcome {
            Outcome::Wrote(seen) => election.wrote(now, claim, seen),
            Outcome::Refused => election.refused(now),
            Outcome::Gone => election.gone(now),
        }
        self.tell(election);
        Ok(())
    }

    /// Publishes the state, and reports it if this process begins or ceases to lead.
    fn tell(&self, election: &Election) {
        let before = self.leadership.0.state.borrow().leads;
        self.leadership.publish(election);
        let state = self.leadership.0.state.borrow().clone();
        if state.leads != before {
            self.events.send(ClusterEvent::Leader(state.leads));
        }
    }

    async fn send(&self, claim: &LeaseClaim) -> Result<Outcome, kube::Error> {
        let LeaseSettings { name, identity, timing, time_of_day, .. } = &self.settings;
        let body = claim_body(name, identity, timing.lease, claim, time_of_day());
        let request = match &claim.based_on {
            None => self.request().create(&PostParams::default(), body.to_string().into_bytes()),
            Some(_) => self.request().patch(name, &PatchParams::default(), &Patch::Merge(body)),
        };
        let request = request.map_err(kube::Error::BuildRequest)?;
        match client::within(ANSWER, self.client.request::<LeaseObject>(request)).await {
            Ok(object) => Ok(Outcome::Wrote(object.seen())),
            Err(error) if has_code(&error, 409) => Ok(Outcome::Refused),
            Err(error) if has_code(&error, 404) && claim.based_on.is_some() => Ok(Outcome::Gone),
            Err(error) => Err(error),
        }
    }

    async fn release(&self, election: &mut Election) {
        let claim = election.release(self.settings.clock.now());
        // Before the write: nothing may be written after the release.
        self.tell(election);
        let Some(claim) = claim else { return };
        if let Err(error) = self.send(&claim).await {
            let text = format!("Lease {} is not released, so the next leader waits: ", self.place());
            self.events.send(ClusterEvent::WriteFailed(text + &describe(&error)));
        }
    }

    /// Notifies `changed` whenever the object may have changed, until `cancel`.
    fn watch(
        &self,
        changed: &Arc<Notify>,
        cancel: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static {
        let LeaseSettings { namespace, name, clock, seed, .. } = &self.settings;
        let watches = Watches::new(self.client.clone(), None, &[], Arc::clone(clock), *seed);
        let watch = watches.named(ObjectKind::LEASE, &namespace.as_str().into(), &name.as_str().into());
        watch.run(LeaseSink(Arc::clone(changed)), cancel)
    }
}

/// Notices that the `Lease` has changed, and nothing of what it says.
struct LeaseSink(Arc<Notify>);

impl Sink for LeaseSink {
    type Object = IgnoredAny;

    fn replace(&mut self, _: Vec<IgnoredAny>) {
        self.0.notify_one();
    }

    fn put(&mut self, _: IgnoredAny) {
        self.0.notify_one();
    }

    fn remove(&mut self, _: IgnoredAny) {
        self.0.notify_one();
    }

    fn unreadable(&mut self, _: String) {}
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leadership").field(&*self.0.state.borrow()).finish()
    }
}

impl fmt::Debug for LeaderElection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderElection").field("identity", &self.settings.identity).finish_non_exhaustive()
    }
}

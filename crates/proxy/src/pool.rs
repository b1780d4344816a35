//! Connections to pods, owned by their endpoints: when an endpoint drains or goes, its idle connections close.
//!
//! One pool per endpoint, worker and way of connecting. No connection is shared between threads.

mod dial;
mod link;
mod permit;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::uri::Scheme;
use rouse_core::endpoint::{Endpoint, ServiceId, State};
use rouse_core::pick::EndpointId;
use rouse_core::service::Service;
use rouse_core::snapshot::{PortView, Snapshot};
use rouse_net::tls::Alpn;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use self::dial::{HANDSHAKE, WayId};
pub(crate) use self::dial::{Refusal, Way, connect, is_local};
pub(crate) use self::link::Link;
use self::link::{Line, Shared, Stream};
pub(crate) use self::permit::{PodConnections, Turn};
use crate::cluster_ip::ClusterIp;
use crate::gateway::Limits;
use crate::worker::Worker;

/// So many sweeps old, an idle connection is closed. Servers close theirs after 5 s and more, and a request that
/// meets that closing is lost.
const OLDEST: u32 = 3;
/// Streams at a time on one HTTP/2 connection; the next request gets another one.
const STREAMS: u16 = 100;
/// How much a pod may send on one HTTP/2 stream before the client takes it. It comes before any budget can be asked: 5,000 downloads that
/// begin at once bring as much each.
const STREAM_WINDOW: u32 = 32 * 1024;

/// The pools of one service on one worker.
#[derive(Debug)]
pub(crate) struct Pools {
    service: ServiceId,
    of: Weak<Service>,
    by_endpoint: RefCell<HashMap<(EndpointId, WayId), Rc<Pool>>>,
    /// Who is at the other end of these is not ours to know.
    of_cluster_ips: RefCell<HashMap<(SocketAddr, WayId), Rc<Pool>>>,
    /// The endpoints that the latter were made for.
    generation: Cell<u64>,
}

/// The connections to one endpoint.
#[derive(Debug)]
pub(crate) struct Pool {
    way: Way,
    /// The endpoint takes new requests as a matter of course: connections are worth keeping.
    open: Cell<bool>,
    /// HTTP/1 connections that nobody uses.
    idle: RefCell<Vec<Idle>>,
    /// Every HTTP/2 connection that may take another stream, in use or not.
    shared: RefCell<Vec<Rc<Shared>>>,
    /// What the last handshake agreed on.
    spoken: Cell<Option<Alpn>>,
    /// One who connects over HTTP/2 connects for all who wait.
    connecting: Semaphore,
}

#[derive(Debug)]
struct Idle {
    line: Line,
    age: u32,
    _kept: Kept,
}

/// How many connections one worker may keep for nobody.
#[derive(Debug)]
pub(crate) struct Room {
    per_pod: usize,
    left: Cell<usize>,
}

impl Room {
    /// For one of `workers`.
    pub(crate) fn new(limits: &Limits, workers: usize) -> Rc<Self> {
        Rc::new(Self { per_pod: limits.kept_per_pod, left: Cell::new(limits.kept.div_ceil(workers.max(1))) })
    }

    fn take(self: &Rc<Self>) -> Option<Kept> {
        self.left.set(self.left.get().checked_sub(1)?);
        Some(Kept(Rc::clone(self)))
    }
}

/// One of them. Dropping it makes room.
#[derive(Debug)]
struct Kept(Rc<Room>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.left.set(self.0.left.get() + 1);
    }
}

impl Pools {
    pub(crate) fn new(service: &Arc<Service>) -> Self {
        Self {
            service: service.id().clone(),
            of: Arc::downgrade(service),
            by_endpoint: RefCell::default(),
            of_cluster_ips: RefCell::default(),
            generation: Cell::new(service.snapshot().generation),
        }
    }

    pub(crate) fn service(&self) -> &ServiceId {
        &self.service
    }

    /// Whether they are those of this very service, not of a namesake.
    pub(crate) fn are_of(&self, service: &Arc<Service>) -> bool {
        Weak::as_ptr(&self.of) == Arc::as_ptr(service)
    }

    /// The connections to `endpoint` that are made in this `way`.
    pub(crate) fn pool(&self, endpoint: &Endpoint, way: &Way) -> Rc<Pool> {
        let mut pools = self.by_endpoint.borrow_mut();
        let pool = pools.entry((endpoint.id(), way.id())).or_insert_with(|| {
            // By the newest snapshot, not by the one that the slot is from: nobody would close it later.
            let service = self.of.upgrade();
            let open = service.is_some_and(|service| is_ready(&service.snapshot(), endpoint));
            Pool::new(way, open)
        });
        Rc::clone(pool)
    }

    /// The connections to the `ClusterIP` that are made in this `way`.
    pub(crate) fn of_cluster_ip(&self, ip: &ClusterIp, way: &Way) -> Rc<Pool> {
        let Some(&address) = ip.addresses().first() else { return Pool::new(way, false) };
        let mut pools = self.of_cluster_ips.borrow_mut();
        Rc::clone(pools.entry((address, way.id())).or_insert_with(|| Pool::new(way, true)))
    }

    #[expect(
        clippy::mutable_key_type,
        reason = "an endpoint is hashed by who it is, not by what is written in it"
    )]
    /// Closes the pools of all that do not take new requests any more.
    pub(crate) fn follow(&self, snapshot: &Snapshot) {
        if self.generation.replace(snapshot.generation) != snapshot.generation {
            // One of the pods may be leaving, and we do not know whose connections are its. Those in use are not
            // kept either: their pool is done with.
            for (_, pool) in self.of_cluster_ips.borrow_mut().drain() {
                pool.set_open(false);
            }
        }
        let mut pools = self.by_endpoint.borrow_mut();
        if pools.is_empty() {
            return;
        }
        let known: HashMap<EndpointId, State> = snapshot
            .ports
            .iter()
            .flat_map(PortView::endpoints)
            .map(|endpoint| (endpoint.id(), endpoint.state))
            .collect();
        pools.retain(|(id, _), pool| {
            let state = known.get(id).copied();
            pool.set_open(state == Some(State::Ready));
            // Its requests keep it as long as they need it.
            state.is_some()
        });
    }

    /// Closes all idle connections. Answers whether there were any.
    pub(crate) fn close_idle(&self) -> bool {
        let mut any = false;
        let (pools, of_ips) = (self.by_endpoint.borrow(), self.of_cluster_ips.borrow());
        for pool in pools.values().chain(of_ips.values()) {
            any |= !pool.idle.borrow().is_empty();
            pool.idle.borrow_mut().clear();
        }
        any
    }

    /// Closes what has been idle for too long, and forgets pools that nobody uses: their terms may be old.
    pub(crate) fn sweep(&self) {
        let is_used = |pool: &Rc<Pool>| {
            pool.sweep();
            Rc::strong_count(pool) > 1 || !pool.is_empty()
        };
        self.by_endpoint.borrow_mut().retain(|_, pool| is_used(pool));
        self.of_cluster_ips.borrow_mut().retain(|_, pool| is_used(pool));
    }
}

fn is_ready(snapshot: &Snapshot, endpoint: &Endpoint) -> bool {
    let mut endpoints = snapshot.ports.iter().flat_map(PortView::endpoints);
    let same = |one: &&Arc<Endpoint>| Arc::ptr_eq(&one.health, &endpoint.health);
    endpoints.find(same).is_some_and(|one| one.state == State::Ready)
}

impl Pool {
    fn new(way: &Way, open: bool) -> Rc<Self> {
        Rc::new(Self {
            way: way.clone(),
            open: Cell::new(open),
            idle: RefCell::default(),
            shared: RefCell::default(),
            spoken: Cell::default(),
            connecting: Semaphore::new(1),
        })
    }

    fn set_open(&self, open: bool) {
        self.open.set(open);
        if !open {
            self.idle.borrow_mut().clear();
            // Those in use go on until their last stream ends.
            self.shared.borrow_mut().clear();
        }
    }

    fn is_open(&self) -> bool {
        self.open.get()
    }

    fn is_empty(&self) -> bool {
        self.idle.borrow().is_empty() && self.shared.borrow().is_empty()
    }

    fn sweep(&self) {
        self.idle.borrow_mut().retain_mut(|idle| {
            idle.age += 1;
            idle.age <= OLDEST && idle.line.is_usable()
        });
        self.shared.borrow_mut().retain(|shared| {
            let age = if shared.streams.get() > 0 { 0 } else { shared.age.get() + 1 };
            shared.age.set(age);
            age <= OLDEST && !shared.is_closed()
        });
    }

    /// Whether a request takes a connection for itself, as far as that is known before there is one.
    pub(crate) fn takes_line(&self, upgrade: bool) -> bool {
        match self.way {
            Way::Http1 => true,
            Way::H2c => false,
            Way::Tls(_) => upgrade || self.spoken.get() == Some(Alpn::Http1),
        }
    }

    /// A connection that stands already. `upgrade`: one that can be switched to another protocol.
    pub(crate) fn take(self: &Rc<Self>, upgrade: bool) -> Option<Link> {
        match self.way {
            Way::Http1 => self.take_line(),
            Way::Tls(_) if upgrade => self.take_line(),
            // A line that was made for an upgrade says nothing of what the pod prefers: gRPC fails on it.
            Way::Tls(_) if self.spoken.get() == Some(Alpn::Http1) => self.take_line(),
            Way::H2c | Way::Tls(_) => self.take_stream(),
        }
    }

    fn take_line(self: &Rc<Self>) -> Option<Link> {
        let mut idle = self.idle.borrow_mut();
        // The youngest first: the others may grow old and be closed.
        let line = std::iter::from_fn(|| idle.pop()).map(|idle| idle.line).find(Line::is_usable)?;
        Some(Link::Http1 { line, pool: Rc::clone(self), reused: true, turn: None })
    }

    fn take_stream(&self) -> Option<Link> {
        let shared = self.shared.borrow();
        let shared = shared.iter().find(|shared| shared.has_room())?;
        Some(Link::Http2 { stream: Stream::on(shared), reused: true, turn: None })
    }

    /// A new connection to one of `addresses`, within `limit` each.
    pub(crate) async fn connect(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        addresses: &[SocketAddr],
        limit: Duration,
        upgrade: bool,
    ) -> Result<Link, Refusal> {
        let patience = match &self.way {
            Way::Http1 => return self.dial(worker, addresses, limit, upgrade).await,
            Way::Tls(_) if upgrade => return self.dial(worker, addresses, limit, upgrade).await,
            Way::H2c => limit,
            Way::Tls(_) => limit + HANDSHAKE,
        };
        // A herd needs one connection over HTTP/2, not one each. What TLS will agree on is not known at first.
        let turn = timeout(patience, self.connecting.acquire()).await.map_err(|_| Refusal::Pod)?;
        if let Some(link) = self.take(upgrade) {
            return Ok(link);
        }
        let turn = turn.ok().filter(|_| self.spoken.get() != Some(Alpn::Http1));
        let link = self.dial(worker, addresses, limit, upgrade).await;
        drop(turn);
        link
    }

    async fn dial(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        addresses: &[SocketAddr],
        limit: Duration,
        upgrade: bool,
    ) -> Result<Link, Refusal> {
        let Some(permit) = worker.gateway.pod_connections.open() else {
            worker.free_descriptor();
            return Err(Refusal::Local);
        };
        let dialled = self.way.dial(addresses, limit, upgrade).await;
        if matches!(dialled, Err(Refusal::Local)) {
            worker.free_descriptor();
        }
        let (stream, spoken) = dialled?;
        let stream = stream.counted(permit);
        if !upgrade {
            self.spoken.set(Some(spoken));
        }
        match spoken {
            Alpn::Http1 => {
                let line = Line::on(worker, stream).await?;
                Ok(Link::Http1 { line, pool: Rc::clone(self), reused: false, turn: None })
            }
            Alpn::H2 => {
                let scheme = if matches!(self.way, Way::Tls(_)) { Scheme::HTTPS } else { Scheme::HTTP };
                let shared = Shared::on(worker, stream, scheme).await?;
                if self.open.get() {
                    self.shared.borrow_mut().push(Rc::clone(&shared));
                }
                Ok(Link::Http2 { stream: Stream::on(&shared), reused: false, turn: None })
            }
        }
    }

    fn put(&self, line: Line, room: &Rc<Room>) {
        let mut idle = self.idle.borrow_mut();
        if self.open.get()
            && idle.len() < room.per_pod
            && let Some(kept) = room.take()
        {
            idle.push(Idle { line, age: 0, _kept: kept });
        }
    }
}

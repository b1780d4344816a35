//! Connections to pods, owned by their endpoints: when an endpoint drains or goes, its idle connections close.
//!
//! One pool per endpoint, worker and transport. No connection is shared between threads.

mod dial;
mod pooled_connection;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::uri::Scheme;
use rouse_core::endpoint::EndpointId;
use rouse_core::endpoint::{Endpoint, ServiceId, State};
use rouse_core::service::Service;
use rouse_core::snapshot::{PortView, Snapshot};
use rouse_net::tls::Alpn;
use tokio::sync::Semaphore;
use tokio::time::timeout;

pub(crate) use self::dial::{DialError, is_local};
use self::dial::{HANDSHAKE, TransportId};
pub(super) use self::dial::{Transport, connect};
pub(super) use self::pooled_connection::PooledConnection;
use self::pooled_connection::{Http1Connection, Http2Connection, Http2Stream};
use super::cluster_ip::ClusterIp;
use super::context::UpstreamContext;
use crate::budget::ConnectionLimits;

/// An idle connection is closed after this many sweeps. Servers close theirs after 5 s or more, and a request that is sent
/// at that moment is lost.
const MAX_AGE: u32 = 3;
/// Streams at a time on one HTTP/2 connection; the next request gets another one.
const STREAMS: u16 = 100;
/// How much a pod may send on one HTTP/2 stream before the client takes it. It arrives before any budget can be checked: 5,000
/// downloads that begin at once bring as much each.
const STREAM_WINDOW: u32 = 32 * 1024;

/// The pools of one service on one worker.
#[derive(Debug)]
pub(crate) struct Pools {
    service: ServiceId,
    of: Weak<Service>,
    by_endpoint: RefCell<HashMap<(EndpointId, TransportId), Rc<Pool>>>,
    /// Connections to `ClusterIP`s: the gateway does not know which pod is at the other end.
    of_cluster_ips: RefCell<HashMap<(SocketAddr, TransportId), Rc<Pool>>>,
    /// The generation of the endpoints when these were made.
    generation: Cell<u64>,
}

/// The connections to one endpoint.
#[derive(Debug)]
pub(crate) struct Pool {
    transport: Transport,
    /// Whether the endpoint is ready, so that idle connections are kept.
    open: Cell<bool>,
    /// Idle HTTP/1 connections.
    idle: RefCell<Vec<Idle>>,
    /// All HTTP/2 connections, in use or not.
    http2: RefCell<Vec<Rc<Http2Connection>>>,
    /// The protocol that the last TLS handshake agreed on.
    protocol: Cell<Option<Alpn>>,
    /// One request makes an HTTP/2 connection for all that wait.
    connecting: Semaphore,
}

#[derive(Debug)]
struct Idle {
    connection: Http1Connection,
    age: u32,
    _kept: Kept,
}

/// Limits the idle connections of one worker.
#[derive(Debug)]
pub(crate) struct IdleBudget {
    per_pod: usize,
    left: Cell<usize>,
}

impl IdleBudget {
    /// The budget of one of `workers`.
    pub(crate) fn new(limits: &ConnectionLimits, workers: usize) -> Rc<Self> {
        Rc::new(Self { per_pod: limits.kept_per_pod, left: Cell::new(limits.kept.div_ceil(workers.max(1))) })
    }

    fn take(self: &Rc<Self>) -> Option<Kept> {
        self.left.set(self.left.get().checked_sub(1)?);
        Some(Kept(Rc::clone(self)))
    }
}

/// One idle connection in the count. Dropping it makes room.
#[derive(Debug)]
struct Kept(Rc<IdleBudget>);

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

    /// Whether they belong to this service, and not to a removed one of the same name.
    pub(crate) fn are_of(&self, service: &Arc<Service>) -> bool {
        Weak::as_ptr(&self.of) == Arc::as_ptr(service)
    }

    /// The connections to `endpoint` over `transport`.
    pub(crate) fn pool(&self, endpoint: &Endpoint, transport: &Transport) -> Rc<Pool> {
        let mut pools = self.by_endpoint.borrow_mut();
        let pool = pools.entry((endpoint.id(), transport.id())).or_insert_with(|| {
            // By the newest snapshot, not by that of the slot: a pool that was opened late would never be closed.
            let service = self.of.upgrade();
            let open = service.is_some_and(|service| is_ready(&service.snapshot(), endpoint));
            Pool::new(transport, open)
        });
        Rc::clone(pool)
    }

    /// The connections to the `ClusterIP` over `transport`.
    pub(crate) fn of_cluster_ip(&self, ip: &ClusterIp, transport: &Transport) -> Rc<Pool> {
        let Some(&address) = ip.addresses().first() else { return Pool::new(transport, false) };
        let mut pools = self.of_cluster_ips.borrow_mut();
        Rc::clone(pools.entry((address, transport.id())).or_insert_with(|| Pool::new(transport, true)))
    }

    #[expect(
        clippy::mutable_key_type,
        reason = "an endpoint is hashed by its identity, which does not change"
    )]
    /// Closes the pools of endpoints that do not take new requests any more.
    pub(crate) fn follow(&self, snapshot: &Snapshot) {
        if self.generation.replace(snapshot.generation) != snapshot.generation {
            // One of the pods may be leaving, and any of these connections may lead to it. Connections in use are not kept
            // either: their pool is closed.
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

    /// Closes all idle connections. Returns whether there were any.
    pub(crate) fn close_idle(&self) -> bool {
        let mut any = false;
        let (pools, of_ips) = (self.by_endpoint.borrow(), self.of_cluster_ips.borrow());
        for pool in pools.values().chain(of_ips.values()) {
            any |= !pool.idle.borrow().is_empty();
            pool.idle.borrow_mut().clear();
        }
        any
    }

    /// Closes connections that have been idle for too long, and removes unused pools: their TLS terms may be old.
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
    fn new(transport: &Transport, open: bool) -> Rc<Self> {
        Rc::new(Self {
            transport: transport.clone(),
            open: Cell::new(open),
            idle: RefCell::default(),
            http2: RefCell::default(),
            protocol: Cell::default(),
            connecting: Semaphore::new(1),
        })
    }

    fn set_open(&self, open: bool) {
        self.open.set(open);
        if !open {
            self.idle.borrow_mut().clear();
            // Those in use go on until their last stream ends.
            self.http2.borrow_mut().clear();
        }
    }

    fn is_open(&self) -> bool {
        self.open.get()
    }

    fn is_empty(&self) -> bool {
        self.idle.borrow().is_empty() && self.http2.borrow().is_empty()
    }

    fn sweep(&self) {
        self.idle.borrow_mut().retain_mut(|idle| {
            idle.age += 1;
            idle.age <= MAX_AGE && idle.connection.is_usable()
        });
        self.http2.borrow_mut().retain(|http2| {
            let age = if http2.streams.get() > 0 { 0 } else { http2.age.get() + 1 };
            http2.age.set(age);
            age <= MAX_AGE && !http2.is_closed()
        });
    }

    /// Whether a request needs a connection for itself, as far as that is known before there is one.
    pub(crate) fn is_exclusive(&self, upgrade: bool) -> bool {
        match self.transport {
            Transport::Http1 => true,
            Transport::H2c => false,
            Transport::Tls(_) => upgrade || self.protocol.get() == Some(Alpn::Http1),
        }
    }

    /// An open connection. `upgrade`: one that can switch to another protocol.
    pub(crate) fn take(self: &Rc<Self>, upgrade: bool) -> Option<PooledConnection> {
        match self.transport {
            Transport::Http1 => self.take_http1(),
            Transport::Tls(_) if upgrade => self.take_http1(),
            // A connection that was made for an upgrade does not show what the pod prefers: gRPC fails over HTTP/1.
            Transport::Tls(_) if self.protocol.get() == Some(Alpn::Http1) => self.take_http1(),
            Transport::H2c | Transport::Tls(_) => self.take_http2(),
        }
    }

    fn take_http1(self: &Rc<Self>) -> Option<PooledConnection> {
        let mut idle = self.idle.borrow_mut();
        // The newest first: the others may grow old and be closed.
        let connection =
            std::iter::from_fn(|| idle.pop()).map(|idle| idle.connection).find(Http1Connection::is_usable)?;
        Some(PooledConnection::Http1 { connection, pool: Rc::clone(self), reused: true, turn: None })
    }

    fn take_http2(&self) -> Option<PooledConnection> {
        let http2 = self.http2.borrow();
        let http2 = http2.iter().find(|http2| http2.has_room())?;
        Some(PooledConnection::Http2 { stream: Http2Stream::on(http2), reused: true, turn: None })
    }

    /// A new connection to one of `addresses`, within `limit` each.
    pub(crate) async fn connect(
        self: &Rc<Self>,
        upstream: &UpstreamContext,
        addresses: &[SocketAddr],
        limit: Duration,
        upgrade: bool,
    ) -> Result<PooledConnection, DialError> {
        let patience = match &self.transport {
            Transport::Http1 => return self.dial(upstream, addresses, limit, upgrade).await,
            Transport::Tls(_) if upgrade => return self.dial(upstream, addresses, limit, upgrade).await,
            Transport::H2c => limit,
            Transport::Tls(_) => limit + HANDSHAKE,
        };
        // Over HTTP/2, many requests at once need one connection, not one each. Before the first TLS handshake, the protocol
        // is not known.
        let turn = timeout(patience, self.connecting.acquire()).await.map_err(|_| DialError::Pod)?;
        if let Some(link) = self.take(upgrade) {
            return Ok(link);
        }
        let turn = turn.ok().filter(|_| self.protocol.get() != Some(Alpn::Http1));
        let link = self.dial(upstream, addresses, limit, upgrade).await;
        drop(turn);
        link
    }

    async fn dial(
        self: &Rc<Self>,
        upstream: &UpstreamContext,
        addresses: &[SocketAddr],
        limit: Duration,
        upgrade: bool,
    ) -> Result<PooledConnection, DialError> {
        let Some(permit) = upstream.pod_connections.open() else {
            upstream.shortage.report();
            return Err(DialError::Local);
        };
        let dialled = self.transport.dial(addresses, limit, upgrade).await;
        if matches!(dialled, Err(DialError::Local)) {
            upstream.shortage.report();
        }
        let (stream, protocol) = dialled?;
        let stream = stream.counted(permit);
        if !upgrade {
            self.protocol.set(Some(protocol));
        }
        match protocol {
            Alpn::Http1 => {
                let connection = Http1Connection::on(upstream, stream).await?;
                Ok(PooledConnection::Http1 { connection, pool: Rc::clone(self), reused: false, turn: None })
            }
            Alpn::H2 => {
                let scheme =
                    if matches!(self.transport, Transport::Tls(_)) { Scheme::HTTPS } else { Scheme::HTTP };
                let http2 = Http2Connection::on(upstream, stream, scheme).await?;
                if self.open.get() {
                    self.http2.borrow_mut().push(Rc::clone(&http2));
                }
                Ok(PooledConnection::Http2 { stream: Http2Stream::on(&http2), reused: false, turn: None })
            }
        }
    }

    fn put(&self, connection: Http1Connection, room: &Rc<IdleBudget>) {
        let mut idle = self.idle.borrow_mut();
        if self.open.get()
            && idle.len() < room.per_pod
            && let Some(kept) = room.take()
        {
            idle.push(Idle { connection, age: 0, _kept: kept });
        }
    }
}

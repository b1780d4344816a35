//! The load that Envoys send past the gateways: takes their reports (LRS), counts it on the meters of services, and knows which Envoys
//! are silent.
//!
//! `lrs.rs` reads the stream of one Envoy, `aggregator.rs` sums up and remembers, without I/O. What it says of Envoys goes to
//! controllers by `EnvoyReports` of the report client, the load by the meters of the registry, as that of gateways.
//!
//! A request that an Envoy sends to a gateway is counted there. So that it does not count twice, the endpoint lists have the gateways in
//! a locality of their own, of the region [`GATEWAY_REGION`], whose load is left out here.
//!
//! An Envoy that has endpoints from here and opens no stream of load reports is silent as long as it is connected. This concerns clients
//! that use EDS alone, with clusters of their own and without a `load_stats_config`: their services are not scaled down.

mod aggregator;
mod lrs;
mod metrics;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use rouse_core::load_meter::LoadMeter;
use rouse_core::registry::Registry;
use rouse_core::scale::{EnvoyId, EnvoyLoad, EnvoyServices, EnvoyState};
use rouse_core::time::Clock;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::connections::{Connections, GrpcLimits, GrpcTransport};
use crate::proto::envoy::service::load_stats::v3::load_reporting_service_server::LoadReportingServiceServer;
use aggregator::{EnvoyLoadAggregator, ServiceChange, StreamId};
use lrs::Calls;
pub use metrics::EnvoyLoadMetrics;

/// How often Envoys report.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// The region of gateways in endpoint lists.
pub const GATEWAY_REGION: &str = "rouse-gateway";
/// The most requests of one service that are present at all Envoys and count. Meters count to four million.
const MAX_PRESENT: u32 = 1 << 20;
/// The most streams at a time.
const MAX_STREAMS: usize = 4096;
/// The longest report, in bytes: that of an Envoy with ten thousand clusters has about two million.
const MAX_MESSAGE: usize = 8 * 1024 * 1024;

/// The limits of connections that only carry load reports, as in tests.
const LIMITS: GrpcLimits = GrpcLimits {
    connections: MAX_STREAMS,
    per_source: MAX_STREAMS,
    handshakes: 64,
    calls: 16,
    idle: Duration::from_mins(1),
    call_window: 1024 * 1024,
    connection_window: 2 * 1024 * 1024,
};

/// The name that the certificate of a client proves: what serves the connection puts it into the extensions of each request. A client
/// without one is told apart by its node id alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientName(pub Arc<str>);

/// An Envoy that has its endpoints from this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectedEnvoy {
    /// Who it is.
    pub id: EnvoyId,
    /// The services of the clusters and endpoints that it has subscribed to.
    pub services: EnvoyServices,
}

/// Knows the meters of services.
pub trait ServiceMeters: Send + Sync + 'static {
    /// The meter of a service. `None`: there is no such service.
    fn meter(&self, service: &ServiceId) -> Option<Arc<LoadMeter>>;
}

impl ServiceMeters for Registry {
    fn meter(&self, service: &ServiceId) -> Option<Arc<LoadMeter>> {
        self.get(service).map(|service| Arc::clone(service.meter()))
    }
}

/// What the server uses.
pub struct EnvoyLoadParts {
    /// The meters of services.
    pub meters: Arc<dyn ServiceMeters>,
    /// The clock of the meters.
    pub clock: Arc<dyn Clock>,
    /// Counts what happens.
    pub metrics: EnvoyLoadMetrics,
}

/// Takes the load reports of Envoys. Clones are the same server.
#[derive(Clone)]
pub struct EnvoyLoadServer {
    parts: Arc<EnvoyLoadParts>,
    state: Arc<Mutex<LoadState>>,
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct LoadState {
    aggregator: EnvoyLoadAggregator,
    /// What was counted on the meter of each service that has load.
    counted: HashMap<ServiceId, Counted>,
}

#[derive(Debug)]
struct Counted {
    meter: Arc<LoadMeter>,
    present: u32,
}

impl EnvoyLoadServer {
    /// A server without streams. `stop` ends them: the load of their Envoys then stays as it is, because they go on.
    pub fn new(parts: EnvoyLoadParts, stop: CancellationToken) -> Self {
        Self { parts: Arc::new(parts), state: Arc::default(), stop }
    }

    /// Keeps what is known of Envoys up to date until the stop, and has it published each time: each second, and when Envoys connect and
    /// leave. `connected` has those with endpoints from this process.
    pub async fn run(
        &self,
        mut connected: watch::Receiver<Arc<[ConnectedEnvoy]>>,
        publish: impl Fn(&BTreeMap<EnvoyId, EnvoyState>),
    ) {
        let mut seconds = interval(REPORT_INTERVAL);
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut open = true;
        loop {
            let envoys = Arc::clone(&connected.borrow_and_update());
            let now = self.parts.clock.now();
            let states = {
                let mut state = self.state();
                state.aggregator.set_connected(now, &envoys);
                state.aggregator.states(now)
            };
            let silent = states.values().filter(|state| state.load != EnvoyLoad::Reported).count();
            self.parts.metrics.envoys(states.len() - silent, silent);
            publish(&states);
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = seconds.tick() => {}
                changed = connected.changed(), if open => open = changed.is_ok(),
            }
        }
    }

    /// Serves one connection that the caller has accepted, for load reports alone.
    pub async fn serve_connection<IO>(&self, stream: IO, peer: SocketAddr, transport: GrpcTransport)
    where
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let clock = Arc::clone(&self.parts.clock);
        let connections = Connections::new(self.service(), LIMITS, clock, self.stop.clone());
        connections.serve_one(stream, peer, transport).await;
    }

    /// What answers the calls of Envoys.
    pub(super) fn calls(&self) -> Calls {
        Calls(self.clone())
    }

    /// The gRPC service.
    pub(crate) fn service(&self) -> LoadReportingServiceServer<Calls> {
        LoadReportingServiceServer::new(self.calls()).max_decoding_message_size(MAX_MESSAGE)
    }

    fn state(&self) -> MutexGuard<'_, LoadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An Envoy has opened a stream. `None`: there are too many.
    fn open(&self, envoy: EnvoyId) -> Option<StreamId> {
        let now = self.parts.clock.now();
        let mut state = self.state();
        (state.aggregator.open_streams() < MAX_STREAMS).then(|| state.aggregator.open(now, envoy))
    }

    /// The stream of an Envoy has ended. If this process stops, the Envoy goes on, and another replica will hear it.
    fn close(&self, id: StreamId) {
        if self.stop.is_cancelled() {
            return;
        }
        let now = self.parts.clock.now();
        let mut state = self.state();
        let changes = state.aggregator.close(now, id);
        state.count(changes, &*self.parts.meters);
    }
}

impl LoadState {
    /// Counts changes on the meters of their services.
    fn count(&mut self, changes: Vec<ServiceChange>, meters: &dyn ServiceMeters) {
        for ServiceChange { service, began, present } in changes {
            let present = u32::try_from(present).unwrap_or(MAX_PRESENT).min(MAX_PRESENT);
            let meter = meters.meter(&service);
            let before = self.counted.remove(&service);
            // A service that was deleted and made again has another meter.
            let same = before
                .as_ref()
                .zip(meter.as_ref())
                .is_some_and(|(one, other)| Arc::ptr_eq(&one.meter, other));
            let before = match before {
                Some(before) if same => before.present,
                Some(Counted { meter, present }) => {
                    meter.count_reported(0, present, 0);
                    0
                }
                None => 0,
            };
            let Some(meter) = meter else { continue };
            meter.count_reported(began, before, present);
            if present > 0 {
                self.counted.insert(service, Counted { meter, present });
            }
        }
    }
}

impl fmt::Debug for EnvoyLoadServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvoyLoadServer").finish_non_exhaustive()
    }
}

impl fmt::Debug for EnvoyLoadParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvoyLoadParts").finish_non_exhaustive()
    }
}

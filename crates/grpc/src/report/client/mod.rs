//! The reporter's side of the report channel: sends the load of this process to every controller replica.
//!
//! `worker.rs` runs everything, `readings.rs` has the newest reading of each meter, `connection.rs` reports to one controller, and
//! `controllers.rs` decides when the next attempt is due. Look-ups, backoff and the circuit breaker are in `rouse_net::peers`.

mod connection;
mod controller_url;
mod controllers;
mod metrics;
mod outbox;
mod parking;
pub(super) mod readings;
mod worker;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use http::Uri;
use rouse_core::endpoint::ServiceId;
use rouse_core::load_meter::{LoadFeed, LoadKey};
use rouse_core::random::Random;
use rouse_net::clock::TokioClock;
use rouse_net::peers::{Dialer, Discovery, PeerSet, Resolver, SystemResolver, TcpDialer};
use rouse_net::tls::{ClientConfigs, ClientTls, LoadError, Roots, Warning};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::wire::ReporterRole;
use crate::proto::report::{Hello, Role};
use connection::ConnectionParts;
use controllers::Controllers;
use outbox::Outbox;
use worker::{MAX_WELCOMES, Worker};

pub use controller_url::{BadControllerUrl, ControllerUrl, DEFAULT_REPORT_PORT};
pub use metrics::ReportClientMetrics;
pub use outbox::{EnvoyReports, PreparedServices};
pub use parking::{ParkingCommands, ParkingWorker, ZeroPreparer, parking};

/// Whether a service or route still exists. Asked each minute for those without load.
pub type MeterExists = Arc<dyn Fn(&LoadKey) -> bool + Send + Sync>;

/// What a controller asks a reporter to do. The calls must be quick.
pub trait ZeroCommands: Send + Sync {
    /// Route new requests of the service to the gateways. When that is done everywhere, call [`PreparedServices::set`] with this id.
    fn prepare_zero(&self, service: &ServiceId, id: u64);

    /// Take that back, if it is still the one with this id.
    fn cancel_zero(&self, service: &ServiceId, id: u64);
}

/// The settings of a client.
#[derive(Debug, Clone)]
pub struct ReportClientSettings {
    /// Where the controllers are.
    pub controllers: ControllerUrl,
    /// The certificate authorities of their certificates.
    pub roots: Roots,
    /// The projected token of the `ServiceAccount`, for the audience [`rouse_net::auth::REPORT_AUDIENCE`].
    pub token_file: PathBuf,
    /// The version of this process, for people.
    pub version: String,
    /// What this process is.
    pub role: ReporterRole,
}

/// What the client uses.
pub struct ReportClientParts {
    /// The meters that have load. The client is its only reader.
    pub feed: Arc<LoadFeed>,
    /// Which services and routes exist.
    pub exists: MeterExists,
    /// What controllers ask for. `None`: a gateway, which ignores it.
    pub commands: Option<Arc<dyn ZeroCommands>>,
    /// The clock of the meters.
    pub clock: TokioClock,
    /// A random number (`rouse_net::random::system_seed`).
    pub random_seed: u64,
    /// Counts what happens.
    pub metrics: ReportClientMetrics,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ReportClientError {
    /// The files of the TLS settings cannot be used.
    #[error("{0}")]
    Tls(#[from] LoadError),
    /// The URL cannot be used for requests.
    #[error("the URL of the controllers, {0}, cannot be used for requests")]
    Url(ControllerUrl),
}

/// Reports load. It sends nothing before [`ReportClient::run`].
pub struct ReportClient {
    controllers: ControllerUrl,
    parts: ConnectionParts,
    welcomes: mpsc::Receiver<SocketAddr>,
    /// Reloads the files of the TLS settings.
    configs: Arc<ClientConfigs>,
    resolver: Arc<dyn Resolver>,
    feed: Arc<LoadFeed>,
    exists: MeterExists,
    random: Random,
    metrics: ReportClientMetrics,
}

impl ReportClient {
    /// A client for `settings`.
    pub fn new(settings: ReportClientSettings, parts: ReportClientParts) -> Result<Self, ReportClientError> {
        let ReportClientSettings { controllers, roots, token_file, version, role } = settings;
        let ReportClientParts { feed, exists, commands, clock, random_seed, metrics } = parts;
        let configs = Arc::new(ClientConfigs::new(NonZeroUsize::MIN));
        let (tls, origin) = client_tls(&controllers, roots, &configs)?;
        let mut random = Random::new(random_seed);
        let role = match role {
            ReporterRole::Gateway => Role::Gateway,
            ReporterRole::Xds => Role::Xds,
        };
        let hello = Hello { version, boot: random.next_u64(), role: role.into() };
        let (welcome, welcomes) = mpsc::channel(MAX_WELCOMES);
        let parts = ConnectionParts {
            outbox: Arc::<Outbox>::default(),
            dialer: Arc::new(TcpDialer::default()),
            tls,
            token_file,
            origin,
            hello,
            commands,
            clock,
            welcome,
            leave: CancellationToken::new(),
        };
        let resolver = Arc::new(SystemResolver);
        Ok(Self { controllers, parts, welcomes, configs, resolver, feed, exists, random, metrics })
    }

    /// Looks names up with `resolver`, and connects with `dialer`.
    #[must_use]
    pub fn with_network(mut self, resolver: Arc<dyn Resolver>, dialer: Arc<dyn Dialer>) -> Self {
        self.resolver = resolver;
        self.parts.dialer = dialer;
        self
    }

    /// Tells controllers what is prepared for zero.
    pub fn parking(&self) -> PreparedServices {
        PreparedServices(Arc::clone(&self.parts.outbox))
    }

    /// Tells controllers of Envoys.
    pub fn envoys(&self) -> EnvoyReports {
        EnvoyReports(Arc::clone(&self.parts.outbox))
    }

    /// Reports until `end`, and then the last requests.
    pub async fn run(self, end: CancellationToken) {
        let reload = Arc::clone(&self.configs).watch(end.clone(), |news| match news {
            Ok(warnings) => warnings.iter().for_each(warn),
            Err(error) => {
                tracing::error!(%error, "cannot reload the certificate authorities of controllers; the old ones stay in use");
            }
        });
        let discovery = Discovery::new(self.controllers.peers(), self.resolver);
        let mut worker = Worker {
            clock: self.parts.clock,
            parts: Arc::new(self.parts),
            feed: self.feed,
            exists: self.exists,
            discovery,
            random: self.random,
            metrics: self.metrics,
            welcomes: self.welcomes,
            peers: PeerSet::default(),
            controllers: Controllers::default(),
            connections: JoinSet::new(),
            addresses: HashMap::new(),
        };
        let work = async {
            end.run_until_cancelled(worker.work()).await;
            worker.leave().await;
        };
        tokio::join!(reload, work);
    }
}

/// The TLS client, and the scheme and authority of requests.
fn client_tls(
    controllers: &ControllerUrl,
    roots: Roots,
    configs: &ClientConfigs,
) -> Result<(Arc<ClientTls>, Uri), ReportClientError> {
    let url = || ReportClientError::Url(controllers.clone());
    let settings = controllers.tls(roots).ok_or_else(url)?;
    let tls = configs.get(&settings, |warning| warn(&warning))?;
    let origin = controllers.to_string().parse().map_err(|_| url())?;
    Ok((tls, origin))
}

fn warn(warning: &Warning) {
    tracing::warn!(%warning, "a TLS file for load reports has a problem");
}

impl fmt::Debug for ReportClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReportClient").field("controllers", &self.controllers).finish_non_exhaustive()
    }
}

impl fmt::Debug for ReportClientParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReportClientParts").finish_non_exhaustive()
    }
}

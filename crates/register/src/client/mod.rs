//! The sidecar's side of registrations: tells every gateway the newest state of its pod, until all have acknowledged it.
//!
//! `worker.rs` runs everything, `gateway_tracker.rs` has the rules of what is sent when, `http_client.rs` sends one registration,
//! and `pod_state.rs` has the order of states. Which gateways there are, backoff and the circuit breaker are in `rouse_net::peers`.
//!
//! [`client`] makes two parts: a [`PushReporter`], which takes events and never waits, and a [`PushClient`], which delivers
//! them.

mod credential;
mod failure_log;
mod gateway_tracker;
mod gateway_url;
mod http_client;
mod pod_state;
mod worker;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use http::HeaderValue;
use rouse_core::endpoint::{PodUid, PortName, ServiceId};
use rouse_core::merge::{BootId, PushEvent, PushOrder};
use rouse_core::random::Random;
use rouse_net::auth::SharedKey;
use rouse_net::clock::TokioClock;
use rouse_net::peers::{Dialer, Resolver, SystemResolver, TcpDialer};
use rouse_net::tls::{ClientConfigs, ClientSettings, LoadError, Warning};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use http_client::HttpClient;
use pod_state::PodState;
use worker::Worker;

pub use gateway_url::{BadGatewayUrl, DEFAULT_PORT, GatewayUrl};

/// The settings of a client.
#[derive(Debug, Clone)]
pub struct PushClientSettings {
    /// Where the gateways are.
    pub gateways: GatewayUrl,
    /// What proves who the pod is.
    pub credential: PushCredential,
    /// The TLS settings of an `https` URL: [`GatewayUrl::tls`].
    pub tls: Option<ClientSettings>,
    /// What is said about the pod.
    pub pod: PodClaims,
}

/// What proves who the pod is. Its `Debug` output contains no secret.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "a process has one")]
pub enum PushCredential {
    /// The `ServiceAccount` token in a file, which is read for each request. Needs TLS.
    Token(PathBuf),
    /// A key that is shared with the gateways.
    SharedKey(SharedKey),
    /// The key in a file, or the last one in a folder ([`SharedKey::read`]), which is read for each request.
    KeyFile(PathBuf),
    /// The client certificate of the TLS settings.
    Certificate,
}

/// What a sidecar says about its pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodClaims {
    /// The service.
    pub service: ServiceId,
    /// The name of the pod.
    pub pod: String,
    /// Its UID.
    pub uid: PodUid,
    /// Its addresses.
    pub ips: Vec<IpAddr>,
    /// The ports of the service on this pod, by name.
    pub ports: BTreeMap<PortName, u16>,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum PushClientError {
    /// A secret would be sent without encryption.
    #[error(
        "a {0} is only sent over TLS: expected a gateway URL with https:// and TLS settings that verify it"
    )]
    NeedsTls(&'static str),
    /// The settings have no client certificate.
    #[error("a client certificate is needed, and none is configured")]
    NoCertificate,
    /// The files of the TLS settings cannot be used.
    #[error("{0}")]
    Tls(#[from] LoadError),
}

/// Takes the events of a pod. Clones report on the same pod.
#[derive(Debug, Clone)]
pub struct PushReporter {
    state: Arc<watch::Sender<PodState>>,
    progress: watch::Receiver<Option<Progress>>,
}

/// Delivers what a [`PushReporter`] reports.
pub struct PushClient {
    state: Arc<watch::Sender<PodState>>,
    progress: watch::Sender<Option<Progress>>,
    exchange: HttpClient,
    /// Reloads the files of the TLS settings.
    tls: Option<Arc<ClientConfigs>>,
    gateways: GatewayUrl,
    resolver: Arc<dyn Resolver>,
    clock: TokioClock,
    random: Random,
}

/// The newest state that was delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Progress {
    order: PushOrder,
    delivery: Delivery,
}

/// What became of a reported event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delivery {
    /// How many gateways acknowledged it.
    pub acknowledged: usize,
    /// How many known gateways did not: the last request to them failed. They get it later.
    pub failed: usize,
}

/// The [`PushClient`] has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the push client has stopped")]
pub struct PushClientEnded;

/// A client for `settings`, which sends nothing before [`PushClient::run`]. `random_seed` is a random number
/// (`rouse_net::random::system_seed`). `time_of_day` is read for the start time of the boot and for signatures.
pub fn client(
    settings: PushClientSettings,
    clock: TokioClock,
    random_seed: u64,
    time_of_day: fn() -> SystemTime,
) -> Result<(PushReporter, PushClient), PushClientError> {
    let PushClientSettings { gateways, credential, tls, pod } = settings;
    let kind = credential.kind();
    let tls = tls.filter(|_| gateways.is_tls());
    let verified = tls.as_ref().is_some_and(|tls| tls.verify);
    match (&credential, &tls) {
        (PushCredential::SharedKey(_) | PushCredential::KeyFile(_), tls)
            if tls.is_some() || !gateways.is_tls() => {}
        (PushCredential::Certificate, Some(tls)) if verified && tls.identity.is_none() => {
            return Err(PushClientError::NoCertificate);
        }
        _ if verified => {}
        _ => return Err(PushClientError::NeedsTls(kind)),
    }
    let configs = tls.as_ref().map(|_| Arc::new(ClientConfigs::new(NonZeroUsize::MIN)));
    let tls = match (&tls, &configs) {
        (Some(tls), Some(configs)) => Some(configs.get(tls, |warning| warn(&warning))?),
        _ => None,
    };
    let mut random = Random::new(random_seed);
    let state = PodState::new(BootId { started: unix_milliseconds(time_of_day()), id: random.next_u64() });
    let (state, (progress, watched)) = (Arc::new(watch::Sender::new(state)), watch::channel(None));
    let exchange = HttpClient {
        dialer: Arc::new(TcpDialer::new(&pod.ips)),
        tls,
        credential,
        pod,
        // The characters of a URL's host and port are those of a header.
        authority: HeaderValue::try_from(gateways.peers().authority())
            .unwrap_or_else(|_| HeaderValue::from_static("gateway")),
        time_of_day,
    };
    let reporter = PushReporter { state: Arc::clone(&state), progress: watched };
    let resolver = Arc::new(SystemResolver);
    Ok((reporter, PushClient { state, progress, exchange, tls: configs, gateways, resolver, clock, random }))
}

impl PushReporter {
    /// Reports an event: it replaces the one before. Never waits. After [`PushEvent::Draining`], which is final, nothing more
    /// is reported.
    pub fn report(&self, event: PushEvent) {
        self.state.send_if_modified(|state| state.report(event));
    }

    /// Waits until the newest event is acknowledged by at least one gateway, and each of the others has acknowledged it or
    /// failed. The caller sets a deadline: before the first report, and without any gateway in reach, this does not end.
    pub async fn acknowledged(&self) -> Result<Delivery, PushClientEnded> {
        let newest = self.state.borrow().newest().map(|(order, _)| order);
        let delivered = |progress: &Option<Progress>| {
            // The order may become newer after a stale answer.
            progress.is_some_and(|progress| newest.is_some_and(|newest| progress.order >= newest))
        };
        let mut progress = self.progress.clone();
        let progress = progress.wait_for(delivered).await.map_err(|_| PushClientEnded)?;
        progress.map(|progress| progress.delivery).ok_or(PushClientEnded)
    }
}

impl PushClient {
    /// Looks names up with `resolver`, and connects with `dialer`.
    #[must_use]
    pub fn with_network(mut self, resolver: Arc<dyn Resolver>, dialer: Arc<dyn Dialer>) -> Self {
        self.resolver = resolver;
        self.exchange.dialer = dialer;
        self
    }

    /// Delivers events until `end`.
    pub async fn run(self, end: CancellationToken) {
        let reload = self.tls.clone().map(|tls| {
            tls.watch(end.clone(), |news| match news {
                Ok(warnings) => warnings.iter().for_each(warn),
                Err(error) => {
                    tracing::error!(%error, "cannot reload the TLS files; the old ones stay in use");
                }
            })
        });
        let reload = async {
            if let Some(reload) = reload {
                reload.await;
            }
        };
        tokio::join!(reload, end.run_until_cancelled(Worker::new(self).work()));
    }
}

fn unix_milliseconds(time: SystemTime) -> u64 {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or_default()
}

fn warn(warning: &Warning) {
    tracing::warn!(%warning, "a TLS file for registrations has a problem");
}

impl fmt::Debug for PushClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushClient").field("gateways", &self.gateways).finish_non_exhaustive()
    }
}

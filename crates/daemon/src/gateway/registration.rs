//! The registration listener of the gateway: opens its files, builds it from the settings, and starts its tasks.

use std::net::SocketAddr;
use std::sync::Arc;

use rouse_config::settings::{AnySetting, Problem, Values};
use rouse_core::endpoint::State;
use rouse_core::registry::Registry;
use rouse_core::snapshot::PortView;
use rouse_core::time::Clock;
use rouse_kube::cluster::Cluster;
use rouse_net::auth::{
    Authenticators, CertificateAuthenticator, SharedKeys, TokenAuthenticator, TokenCheck, TokenSettings,
};
use rouse_net::listen::Listener;
use rouse_net::tls::{CertEntry, ClientAuth, Identity, LoadError, Pem, ServerSettings, ServerTls, Warning};
use rouse_register::server::{
    GatewayList, ListenerLimits, ListenerTransport, RegistrationMetrics, RegistrationParts,
    RegistrationRates, RegistrationServer, RegistrationSettings,
};
use tokio::net::TcpListener;

use super::registration_thread;
use super::settings::{self as set, CredentialKind};
use crate::data_plane::Serving;
use crate::failure::{CommandError, failed};
use crate::process::time_of_day;
use crate::settings::about_file;
use crate::token_check::token_check;

/// The opened files of the registration listener.
#[derive(Debug, Default)]
pub(super) struct RegistrationFiles {
    tls: Option<Arc<ServerTls>>,
    keys: Option<Arc<SharedKeys>>,
    /// Warnings about certificates.
    pub(super) warnings: Vec<Warning>,
}

impl RegistrationFiles {
    /// The certificate of the listener, unless it has none.
    pub(super) fn server(&self) -> Option<&Arc<ServerTls>> {
        self.tls.as_ref()
    }
}

/// Opens all files, and adds a problem for each that cannot be opened.
pub(super) fn open(values: &Values, problems: &mut Vec<Problem>) -> RegistrationFiles {
    let mut files = RegistrationFiles::default();
    if values.get(&set::REGISTER_LISTEN).is_none() {
        return files;
    }
    let mut problem = |setting: &'static dyn AnySetting, what: String| {
        let (origin, what) = about_file(values, setting, &what);
        problems.push(Problem { origin, what });
    };
    if let Some(settings) = server_settings(values) {
        match ServerTls::new(settings) {
            Ok((tls, warnings)) => (files.tls, files.warnings) = (Some(Arc::new(tls)), warnings),
            Err(error) => problem(named_by(&error, values), error.to_string()),
        }
    }
    if let Some(folder) = values.get(&set::REGISTER_KEYS).filter(|_| accepts(values, CredentialKind::Hmac)) {
        match SharedKeys::load(&folder, time_of_day) {
            Ok(keys) => files.keys = Some(Arc::new(keys)),
            Err(error) => problem(&set::REGISTER_KEYS, error.to_string()),
        }
    }
    files
}

fn accepts(values: &Values, kind: CredentialKind) -> bool {
    values.get(&set::REGISTER_AUTH).contains(&kind)
}

fn server_settings(values: &Values) -> Option<ServerSettings> {
    let (chain, key) = (values.get(&set::REGISTER_TLS_CERT)?, values.get(&set::REGISTER_TLS_KEY)?);
    let identity = Identity { chain: Pem::File(chain), key: Pem::File(key) };
    let client_ca = values.get(&set::REGISTER_CLIENT_CA).filter(|_| accepts(values, CredentialKind::Mtls));
    Some(ServerSettings {
        // Optional: with several modes, a pod with a token needs no certificate.
        client_auth: client_ca.map_or(ClientAuth::None, |ca| ClientAuth::Optional(Pem::File(ca))),
        alpn: vec![rouse_net::tls::Alpn::Http1],
        ..ServerSettings::new(vec![CertEntry { identity, names: Vec::new() }])
    })
}

/// The setting that names the file of `error`.
fn named_by(error: &LoadError, values: &Values) -> &'static dyn AnySetting {
    let is =
        |path: Option<std::path::PathBuf>| path.is_some_and(|path| path.display().to_string() == error.file);
    if is(values.get(&set::REGISTER_TLS_KEY)) {
        &set::REGISTER_TLS_KEY
    } else if is(values.get(&set::REGISTER_CLIENT_CA)) {
        &set::REGISTER_CLIENT_CA
    } else {
        &set::REGISTER_TLS_CERT
    }
}

/// Starts the registration listener.
pub(super) fn start(
    values: &Values,
    (listener, files, metrics): (Listener, RegistrationFiles, RegistrationMetrics),
    serving: &mut Serving,
    cluster: &Arc<Cluster>,
) -> Result<(), CommandError> {
    let listener = listener.into_std();
    let end = serving.end.clone();
    if let Some(tls) = files.tls.clone() {
        let watch = tls.watch(end.clone(), |loaded| {
            report(
                loaded.map(drop),
                "cannot read the certificates for registrations; the old ones stay in use",
            );
        });
        serving.tasks.spawn("the watch over certificates for registrations", watch);
    }
    if let Some(keys) = files.keys.clone() {
        let watch = keys.watch(end.clone(), |loaded| {
            report(loaded.map(drop), "cannot read the keys for registrations; the old ones stay in use");
        });
        serving.tasks.spawn("the watch over keys for registrations", watch);
    }
    let transport = files.tls.clone().map_or(ListenerTransport::Plain, ListenerTransport::Tls);
    let settings = RegistrationSettings {
        mode: values.get(&set::PUSH),
        lease: set::registry_settings(values).policy.lease,
        rates: RegistrationRates::default(),
    };
    let parts = RegistrationParts {
        authenticators: other_authenticators(values, files.keys),
        ownership: cluster.push_ownership(),
        registry: Arc::clone(&serving.registry),
        clock: Arc::new(serving.clock) as Arc<dyn Clock>,
        time_of_day,
        gateways: gateways(values, &serving.registry),
        metrics,
    };
    let limits = listener_limits(set::capacity(values).registrations);
    let (values, cluster) = (values.clone(), Arc::clone(cluster));
    let thread = registration_thread::spawn(async move {
        let listener = match TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%error, "cannot listen on the address for registrations");
                return;
            }
        };
        let mut parts = parts;
        if accepts(&values, CredentialKind::Token) {
            let check = tokio::select! {
                check = check_of(&values, &cluster) => check,
                () = end.cancelled() => return,
            };
            let tokens = TokenAuthenticator::new(check, TokenSettings::default(), time_of_day);
            parts.authenticators = parts.authenticators.with_tokens(tokens);
        }
        RegistrationServer::new(settings, parts).serve(listener, transport, limits, end).await;
    });
    let thread = thread.map_err(failed("cannot start the thread that serves registrations"))?;
    serving.tasks.spawn("the listener for registrations", thread);
    Ok(())
}

/// The limits for so many connections.
fn listener_limits(connections: usize) -> ListenerLimits {
    let most = ListenerLimits::default();
    let handshakes = most.handshakes.min((connections / 4).max(2));
    ListenerLimits { connections, handshakes }
}

/// Shared keys and client certificates, as far as they are accepted.
fn other_authenticators(values: &Values, keys: Option<Arc<SharedKeys>>) -> Authenticators {
    let mut authenticators = Authenticators::default();
    if let Some(keys) = keys {
        authenticators = authenticators.with_shared_keys(keys);
    }
    if accepts(values, CredentialKind::Mtls) {
        let certificates = CertificateAuthenticator::new(&values.get(&set::REGISTER_TRUST_DOMAIN));
        authenticators = authenticators.with_certificates(certificates);
    }
    authenticators
}

fn report<E: std::fmt::Display>(loaded: Result<(), E>, consequence: &str) {
    if let Err(error) = loaded {
        tracing::error!(%error, "{consequence}");
    }
}

/// How tokens are checked.
async fn check_of(values: &Values, cluster: &Arc<Cluster>) -> TokenCheck {
    let (mode, issuer) = (values.get(&set::REGISTER_TOKEN_CHECK), values.get(&set::REGISTER_ISSUER));
    let refused = "pods cannot register: the issuer of the cluster's tokens is not known; set --register-issuer, or use \
                   --register-token-check tokenreview";
    token_check(mode, issuer, (cluster.token_reviews(), cluster.issuer_keys()), refused).await
}

/// The gateways in service: the ready endpoints of the registration Service, as this gateway knows them.
fn gateways(values: &Values, registry: &Arc<Registry>) -> GatewayList {
    let (service, registry) = (values.get(&set::REGISTER_SERVICE), Arc::clone(registry));
    Arc::new(move || {
        let Some(service) = service.as_ref().and_then(|id| registry.get(id)) else { return Vec::new() };
        let snapshot = Arc::clone(&service.snapshot());
        let endpoints = snapshot.ports.iter().flat_map(PortView::endpoints);
        let ready = endpoints.filter(|endpoint| endpoint.state == State::Ready);
        ready.filter_map(|endpoint| endpoint.addresses.first().copied()).collect::<Vec<SocketAddr>>()
    })
}

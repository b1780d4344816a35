//! The server side of TLS: selects certificates by SNI, requires client certificates by policy, and reloads both in place.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rouse_core::host::Host;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{Acceptor, ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::{CertificateDer, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::LazyConfigAcceptor;
use tokio_util::sync::CancellationToken;

use super::files;
use super::hosts::{Hosts, SniPattern};
use super::validity::expiry;
use super::{
    Alpn, CertificateWarningKind, Identity, LoadError, LoadProblem, Pem, TlsError, Versions, Warning,
    provider,
};
use crate::file_watch::{self, Seen};

/// A TLS connection from a client.
pub type ServerStream<IO> = tokio_rustls::server::TlsStream<IO>;

/// The certificate (DER) that the client presented and that was verified in the handshake.
pub fn peer_certificate<IO>(stream: &ServerStream<IO>) -> Option<&[u8]> {
    stream.get_ref().1.peer_certificates()?.first().map(AsRef::as_ref)
}

/// The certificates that the client presented and that were verified in the handshake, to verify them again later.
pub fn client_certificates<IO>(stream: &ServerStream<IO>) -> Option<ClientCertificates> {
    let chain = stream.get_ref().1.peer_certificates()?;
    (!chain.is_empty())
        .then(|| ClientCertificates(chain.iter().cloned().map(CertificateDer::into_owned).collect()))
}

/// The certificates of a client, its own first.
#[derive(Debug, Clone)]
pub struct ClientCertificates(Vec<CertificateDer<'static>>);

/// The settings of a TLS listener. Its files may change; see [`ServerTls::reload`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSettings {
    /// The certificates. If several are for one name, the first is used. The first of all is the default for clients without
    /// SNI or with an unknown one.
    pub certificates: Vec<CertEntry>,
    /// Client certificate policies by host.
    pub policies: Vec<TlsPolicy>,
    /// The client certificate policy for all other hosts.
    pub client_auth: ClientAuth,
    /// The allowed TLS versions.
    pub versions: Versions,
    /// The application protocols (ALPN), preferred first.
    pub alpn: Vec<Alpn>,
}

impl ServerSettings {
    /// Settings that use these certificates, request no client certificates, allow all versions and prefer h2 to HTTP/1.1.
    pub fn new(certificates: Vec<CertEntry>) -> Self {
        Self {
            certificates,
            policies: Vec::new(),
            client_auth: ClientAuth::None,
            versions: Versions::default(),
            alpn: vec![Alpn::H2, Alpn::Http1],
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        let certificates =
            self.certificates.iter().flat_map(|entry| [&entry.identity.chain, &entry.identity.key]);
        let auths = self.policies.iter().map(|policy| &policy.client_auth).chain([&self.client_auth]);
        let pems = certificates.chain(auths.filter_map(ClientAuth::roots));
        pems.filter_map(Pem::file).map(Path::to_path_buf).collect()
    }
}

/// A certificate and the hosts that it is used for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertEntry {
    /// The certificate.
    pub identity: Identity,
    /// The hosts; if empty, the DNS names in the certificate.
    pub names: Vec<SniPattern>,
}

/// The client certificate policy of some hosts. As in routes, `*.` matches any number of labels: if it matched one, deeper
/// hosts would be open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsPolicy {
    /// The hosts.
    pub hosts: Vec<SniPattern>,
    /// Whether clients of these hosts need a certificate, and from which roots.
    pub client_auth: ClientAuth,
}

/// Whether clients must present a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ClientAuth {
    /// No certificate is requested.
    None,
    /// A certificate is requested. Clients may present none; one that is presented must chain to these roots.
    Optional(Pem),
    /// Clients must present a certificate that chains to these roots.
    Required(Pem),
}

impl ClientAuth {
    fn roots(&self) -> Option<&Pem> {
        match self {
            Self::None => None,
            Self::Optional(roots) | Self::Required(roots) => Some(roots),
        }
    }
}

/// The policy of a connection or of a host. Equal across reloads if the settings are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyId(Arc<ClientAuth>);

impl PolicyId {
    /// Whether a connection with this policy may carry a request for a host with the policy `host`. If not, the response is
    /// 421: otherwise a client could reach a protected host by naming an open one in its handshake.
    pub fn admits(&self, host: &Self) -> bool {
        use ClientAuth::{None, Optional, Required};
        match (&*self.0, &*host.0) {
            (_, None) => true,
            (Required(shown), Required(wanted) | Optional(wanted)) | (Optional(shown), Optional(wanted)) => {
                shown == wanted
            }
            (None | Optional(_), _) => false,
        }
    }

    /// The client certificates that it requires.
    pub fn client_auth(&self) -> &ClientAuth {
        &self.0
    }
}

/// The result of a TLS handshake with a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsHandshake {
    /// The SNI of the client, in lower case.
    pub sni: Option<Box<str>>,
    /// The negotiated application protocol.
    pub alpn: Option<Alpn>,
    /// Whether the client presented a certificate, which was then verified.
    pub client_cert: bool,
    /// The policy of the connection.
    pub policy: PolicyId,
}

/// A certificate in use by a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedCertificate {
    /// The path of its file, or a description of the data.
    pub file: String,
    /// The end of its validity; `None` if the certificate does not say it in a form that can be read.
    pub expires: Option<SystemTime>,
}

/// The TLS server of a listener.
#[derive(Debug)]
pub struct ServerTls {
    serving: ArcSwap<Serving>,
    /// The lock also serializes reloads: otherwise a slow reload could overwrite the result of a later one.
    wanted: Mutex<Wanted>,
}

/// The configured settings, even if their files do not exist yet.
#[derive(Debug)]
struct Wanted {
    settings: ServerSettings,
    seen: Seen,
}

impl ServerTls {
    /// Reads all files.
    pub fn new(settings: ServerSettings) -> Result<(Self, Vec<Warning>), LoadError> {
        let (mut seen, mut warnings) = (Seen::default(), Vec::new());
        let serving = seen.load(settings.files(), || Serving::load(&settings, None, &mut warnings))?;
        let wanted = Mutex::new(Wanted { settings, seen });
        Ok((Self { serving: ArcSwap::from_pointee(serving), wanted }, warnings))
    }

    /// Reads the files again and uses them from the next handshake on. On an error, the old ones stay in use. Sessions can still
    /// be resumed, except under policies whose roots changed.
    pub fn reload(&self) -> Result<Vec<Warning>, LoadError> {
        let Wanted { settings, seen } = &mut *self.wanted();
        seen.load(settings.files(), || self.swap(settings))
    }

    /// Like [`reload`](Self::reload), with new settings, which are tried again when their files change. Existing connections
    /// keep their policy.
    pub fn replace(&self, settings: ServerSettings) -> Result<Vec<Warning>, LoadError> {
        let Wanted { settings: wanted, seen } = &mut *self.wanted();
        *wanted = settings;
        seen.load(wanted.files(), || self.swap(wanted))
    }

    /// Reloads whenever a file changes, and calls `tell` with the result, until cancelled.
    pub async fn watch(
        self: Arc<Self>,
        cancel: CancellationToken,
        mut tell: impl FnMut(Result<Vec<Warning>, LoadError>),
    ) {
        file_watch::watch(cancel, move || self.look(), |news| news.map_or((), &mut tell)).await;
    }

    fn look(&self) -> Option<Result<Vec<Warning>, LoadError>> {
        let Wanted { settings, seen } = &mut *self.wanted();
        seen.look(settings.files(), || self.swap(settings))
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn swap(&self, settings: &ServerSettings) -> Result<Vec<Warning>, LoadError> {
        let mut warnings = Vec::new();
        let serving = Serving::load(settings, Some(&self.serving.load()), &mut warnings)?;
        self.serving.store(Arc::new(serving));
        Ok(warnings)
    }

    /// The certificates in use: those of the last reload that succeeded.
    pub fn served(&self) -> Arc<[ServedCertificate]> {
        Arc::clone(&self.serving.load().certificates)
    }

    /// The policy of requests for `host`; `None`: of requests without a host.
    pub fn policy_of(&self, host: Option<&Host<'_>>) -> PolicyId {
        self.serving.load().lane(host.map(Host::name)).policy.clone()
    }

    /// Whether certificates that an earlier handshake verified are still accepted at `now`, with the present roots of hosts without
    /// a policy: a connection may live longer than the certificate of its client or the trust in its authority.
    pub fn still_accepts(&self, certificates: &ClientCertificates, now: SystemTime) -> bool {
        let serving = self.serving.load();
        let ClientCertificates(chain) = certificates;
        let (Some(verifier), Some((own, intermediates))) = (&serving.open.verifier, chain.split_first())
        else {
            return false;
        };
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        verifier.verify_client_cert(own, intermediates, UnixTime::since_unix_epoch(now)).is_ok()
    }

    /// Does the TLS handshake with a client. Dropping the future drops the connection.
    pub async fn accept<IO>(
        &self,
        stream: IO,
        deadline: Instant,
    ) -> Result<(ServerStream<IO>, TlsHandshake), TlsError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let handshake = async {
            let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
            let hello = start.client_hello();
            let sni = hello.server_name().and_then(sni).map(|host| host.name().into());
            let (config, policy) = {
                let serving = self.serving.load();
                let lane = serving.lane(sni.as_deref());
                (Arc::clone(&lane.config), lane.policy.clone())
            };
            let stream = start.into_stream(config).await?;
            let session = stream.get_ref().1;
            let alpn = session.alpn_protocol().and_then(Alpn::of);
            let client_cert = session.peer_certificates().is_some_and(|chain| !chain.is_empty());
            Ok((stream, TlsHandshake { sni, alpn, client_cert, policy }))
        };
        match timeout_at(deadline, handshake).await {
            Ok(done) => done.map_err(TlsError::of_io),
            Err(_) => Err(TlsError::Timeout),
        }
    }
}

/// The loaded configuration, replaced as a whole.
#[derive(Debug)]
struct Serving {
    policies: Hosts<Arc<Lane>>,
    /// For hosts under no policy.
    open: Arc<Lane>,
    certificates: Arc<[ServedCertificate]>,
}

/// The configuration of one policy. Session tickets are per policy: one issued without a client certificate must not resume
/// where a client certificate is required.
#[derive(Debug)]
struct Lane {
    policy: PolicyId,
    roots: RootCertStore,
    /// `None`: no client certificate is requested.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    config: Arc<ServerConfig>,
}

impl Serving {
    fn load(
        settings: &ServerSettings,
        old: Option<&Self>,
        warnings: &mut Vec<Warning>,
    ) -> Result<Self, LoadError> {
        let shown = Arc::new(Shown::load(&settings.certificates, warnings)?);
        let certificates = Arc::clone(&shown.served);
        let mut lanes: Vec<Arc<Lane>> = Vec::new();
        let mut lane = |auth: &ClientAuth| {
            if let Some(lane) = lanes.iter().find(|lane| lane.policy.client_auth() == auth) {
                return Ok(Arc::clone(lane));
            }
            let lane = Arc::new(Lane::load(auth, settings, old, Arc::clone(&shown), warnings)?);
            lanes.push(Arc::clone(&lane));
            Ok(lane)
        };
        let open = lane(&settings.client_auth)?;
        let mut policies = Hosts::new();
        for policy in &settings.policies {
            let lane = lane(&policy.client_auth)?;
            for host in &policy.hosts {
                policies.claim(host.clone(), Arc::clone(&lane));
            }
        }
        Ok(Self { policies, open, certificates })
    }

    /// `host` is a [`Host::name`].
    fn lane(&self, host: Option<&str>) -> &Arc<Lane> {
        host.and_then(|host| self.policies.any_depth(host)).unwrap_or(&self.open)
    }

    fn lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.policies.values().chain([&self.open])
    }
}

impl Lane {
    fn load(
        auth: &ClientAuth,
        settings: &ServerSettings,
        old: Option<&Serving>,
        shown: Arc<Shown>,
        warnings: &mut Vec<Warning>,
    ) -> Result<Self, LoadError> {
        let mut roots = RootCertStore::empty();
        if let Some(bundle) = auth.roots() {
            files::add_roots(&mut roots, bundle, warnings)?;
        }
        let same = |lane: &&Arc<Lane>| lane.policy.client_auth() == auth && lane.roots.roots == roots.roots;
        let before = old.and_then(|old| old.lanes().find(same));
        let verifier = verifier(auth, &roots)?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&settings.versions.supported())
            .map_err(refused)?
            .with_client_cert_verifier(verifier.clone().unwrap_or_else(WebPkiClientVerifier::no_client_auth))
            .with_cert_resolver(shown);
        config.alpn_protocols = Alpn::ids(&settings.alpn);
        (config.ticketer, config.session_storage) = match before {
            Some(lane) => (Arc::clone(&lane.config.ticketer), Arc::clone(&lane.config.session_storage)),
            None => (Ticketer::new().map_err(refused)?, Arc::clone(&config.session_storage)),
        };
        let policy = before.map_or_else(|| PolicyId(Arc::new(auth.clone())), |lane| lane.policy.clone());
        Ok(Self { policy, roots, verifier, config: Arc::new(config) })
    }
}

fn verifier(
    auth: &ClientAuth,
    roots: &RootCertStore,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, LoadError> {
    let builder = || WebPkiClientVerifier::builder_with_provider(Arc::new(roots.clone()), provider());
    let built = match auth {
        ClientAuth::None => return Ok(None),
        ClientAuth::Optional(_) => builder().allow_unauthenticated().build(),
        ClientAuth::Required(_) => builder().build(),
    };
    built
        .map(|verifier| Some(verifier as _))
        .map_err(|error| refused(rustls::Error::General(error.to_string())))
}

fn refused(error: rustls::Error) -> LoadError {
    LoadError { file: "tls".into(), reason: LoadProblem::Setup(error) }
}

/// Selects the certificate for a client.
#[derive(Debug)]
struct Shown {
    by_name: Hosts<Arc<CertifiedKey>>,
    default: Arc<CertifiedKey>,
    served: Arc<[ServedCertificate]>,
}

impl Shown {
    fn load(entries: &[CertEntry], warnings: &mut Vec<Warning>) -> Result<Self, LoadError> {
        let (mut by_name, mut default, mut served) = (Hosts::new(), None, Vec::new());
        for entry in entries {
            let certified = Arc::new(files::identity(&entry.identity, warnings)?);
            let expires = certified.cert.first().and_then(expiry);
            served.push(ServedCertificate { file: entry.identity.chain.to_string(), expires });
            let own = if entry.names.is_empty() { files::names(&certified) } else { entry.names.clone() };
            if own.is_empty() && default.is_some() {
                warnings.push(entry.identity.chain.warns(CertificateWarningKind::NeverChosen));
            }
            for name in own {
                by_name.claim(name, Arc::clone(&certified));
            }
            default.get_or_insert(certified);
        }
        let none = || LoadError { file: "tls".into(), reason: LoadProblem::Empty };
        Ok(Self { by_name, default: default.ok_or_else(none)?, served: served.into() })
    }
}

/// The SNI of a handshake. An invalid host counts as no SNI.
fn sni(name: &str) -> Option<Host<'_>> {
    Host::parse_without_port(name).ok()
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let host = hello.server_name().and_then(sni);
        let named = host.and_then(|host| self.by_name.one_label(host.name()));
        Some(Arc::clone(named.unwrap_or(&self.default)))
    }
}

//! The server side of TLS: certificates by SNI, client certificates by policy, both reloaded in place.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use rouse_core::host::Host;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{Acceptor, ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::LazyConfigAcceptor;
use tokio_util::sync::CancellationToken;

use super::files::{self, Seen};
use super::hosts::{Hosts, SniPattern};
use super::{Alpn, CertificateWarningKind, Identity, LoadError, LoadProblem, Pem, TlsError, Versions, Warning, provider};

/// A connection that a client made to us.
pub type ServerStream<IO> = tokio_rustls::server::TlsStream<IO>;

/// What a TLS listener is made of. The files behind it may change; see [`ServerTls::reload`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSettings {
    /// Of certificates for the same name the first is shown; the very first also to clients that name no known host.
    pub certificates: Vec<CertEntry>,
    /// Hosts whose clients must show a certificate.
    pub policies: Vec<TlsPolicy>,
    /// What holds for all other hosts.
    pub client_auth: ClientAuth,
    /// The versions that are spoken.
    pub versions: Versions,
    /// The protocols that are spoken inside, the preferred first.
    pub alpn: Vec<Alpn>,
}

impl ServerSettings {
    /// These certificates, no client certificates, all versions, h2 before HTTP/1.1.
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

/// A certificate and the hosts it is shown for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertEntry {
    /// The certificate.
    pub identity: Identity,
    /// The hosts; if there are none, those that the certificate names.
    pub names: Vec<SniPattern>,
}

/// What holds for the clients of some hosts. Here, as in routes, `*.` stands for any number of labels: one label only
/// would leave deeper hosts open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsPolicy {
    /// The hosts.
    pub hosts: Vec<SniPattern>,
    /// Whether clients of these hosts need a certificate, and from which roots.
    pub client_auth: ClientAuth,
}

/// Whether clients must show a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ClientAuth {
    /// They are not asked.
    None,
    /// They are asked, and what they show must lead to these roots; they may show nothing.
    Optional(Pem),
    /// They must show one that leads to these roots.
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

/// Under which policy a connection was made, or a host falls. Equal across reloads, as long as the settings are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyId(Arc<ClientAuth>);

impl PolicyId {
    /// Whether a connection made under this policy may carry a request for a host under `host`'s. If not, the
    /// answer is 421: a client could else reach a guarded host by naming an open one in its handshake.
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

    /// What its clients must show.
    pub fn client_auth(&self) -> &ClientAuth {
        &self.0
    }
}

/// The client at the other end of an accepted connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsHandshake {
    /// The host that the client named, in lower case.
    pub sni: Option<Box<str>>,
    /// What is spoken inside.
    pub alpn: Option<Alpn>,
    /// Whether the client showed a certificate, which was then verified.
    pub client_cert: bool,
    /// Under which policy.
    pub policy: PolicyId,
}

/// The TLS of a listener.
#[derive(Debug)]
pub struct ServerTls {
    serving: ArcSwap<Serving>,
    /// Also makes sure that one reload at a time goes on: a slow one would else put back what a later one replaced.
    wanted: Mutex<Wanted>,
}

/// What is to be served, also while its files are not there yet.
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

    /// Reads the files again and serves what they hold from the next handshake on; in case of an error, what was
    /// served before. Sessions can be resumed still, except under policies whose roots changed.
    pub fn reload(&self) -> Result<Vec<Warning>, LoadError> {
        let Wanted { settings, seen } = &mut *self.wanted();
        seen.load(settings.files(), || self.swap(settings))
    }

    /// Like [`reload`](Self::reload), with new settings, which are tried again when their files change. Connections keep the policy they were made under.
    pub fn replace(&self, settings: ServerSettings) -> Result<Vec<Warning>, LoadError> {
        let Wanted { settings: wanted, seen } = &mut *self.wanted();
        *wanted = settings;
        seen.load(wanted.files(), || self.swap(wanted))
    }

    /// Reloads whenever a file changed, and tells how that went, until cancelled.
    pub async fn watch(
        self: Arc<Self>,
        cancel: CancellationToken,
        mut tell: impl FnMut(Result<Vec<Warning>, LoadError>),
    ) {
        files::watch(cancel, move || self.look(), |news| news.map_or((), &mut tell)).await;
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

    /// The policy that requests for `host` fall under, or those that name none.
    pub fn policy_of(&self, host: Option<&Host<'_>>) -> PolicyId {
        self.serving.load().lane(host.map(Host::name)).policy.clone()
    }

    /// Shakes hands with a client. Dropping it drops the connection.
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

/// All that a handshake needs, swapped as a whole.
#[derive(Debug)]
struct Serving {
    policies: Hosts<Arc<Lane>>,
    /// For hosts under no policy.
    open: Arc<Lane>,
}

/// What the handshakes under one policy share. Tickets are per policy: one got without a certificate must not resume
/// where a certificate is due.
#[derive(Debug)]
struct Lane {
    policy: PolicyId,
    roots: RootCertStore,
    config: Arc<ServerConfig>,
}

impl Serving {
    fn load(
        settings: &ServerSettings,
        old: Option<&Self>,
        warnings: &mut Vec<Warning>,
    ) -> Result<Self, LoadError> {
        let shown = Arc::new(Shown::load(&settings.certificates, warnings)?);
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
        Ok(Self { policies, open })
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
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&settings.versions.supported())
            .map_err(refused)?
            .with_client_cert_verifier(verifier(auth, &roots)?)
            .with_cert_resolver(shown);
        config.alpn_protocols = Alpn::ids(&settings.alpn);
        (config.ticketer, config.session_storage) = match before {
            Some(lane) => (Arc::clone(&lane.config.ticketer), Arc::clone(&lane.config.session_storage)),
            None => (Ticketer::new().map_err(refused)?, Arc::clone(&config.session_storage)),
        };
        let policy = before.map_or_else(|| PolicyId(Arc::new(auth.clone())), |lane| lane.policy.clone());
        Ok(Self { policy, roots, config: Arc::new(config) })
    }
}

fn verifier(auth: &ClientAuth, roots: &RootCertStore) -> Result<Arc<dyn ClientCertVerifier>, LoadError> {
    let builder = || WebPkiClientVerifier::builder_with_provider(Arc::new(roots.clone()), provider());
    let built = match auth {
        ClientAuth::None => return Ok(WebPkiClientVerifier::no_client_auth()),
        ClientAuth::Optional(_) => builder().allow_unauthenticated().build(),
        ClientAuth::Required(_) => builder().build(),
    };
    built.map_err(|error| refused(rustls::Error::General(error.to_string())))
}

fn refused(error: rustls::Error) -> LoadError {
    LoadError { file: "tls".into(), reason: LoadProblem::Setup(error) }
}

/// Which certificate is shown to which client.
#[derive(Debug)]
struct Shown {
    by_name: Hosts<Arc<CertifiedKey>>,
    default: Arc<CertifiedKey>,
}

impl Shown {
    fn load(entries: &[CertEntry], warnings: &mut Vec<Warning>) -> Result<Self, LoadError> {
        let (mut by_name, mut default) = (Hosts::new(), None);
        for entry in entries {
            let certified = Arc::new(files::identity(&entry.identity, warnings)?);
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
        Ok(Self { by_name, default: default.ok_or_else(none)? })
    }
}

/// The server name of a handshake. What is no host is as good as none.
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

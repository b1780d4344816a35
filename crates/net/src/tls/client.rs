//! TLS to a service's pods: one configuration per service, so that its sessions are resumed.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use rustls::client::Resumption;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::{Connect, TlsConnector};

use super::files::{self, Seen};
use super::verify::{PodCertificatePolicy, PodCertificates, Trusted};
use super::{Alpn, Identity, LoadError, LoadProblem, Pem, TlsError, Versions, Warning, provider};

/// A connection that we made to a pod.
pub type ClientStream<IO> = tokio_rustls::client::TlsStream<IO>;

/// The certificate authorities that we trust.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Roots {
    /// Those issued by the CAs in these bundles.
    Pem(Vec<Pem>),
    /// Those that this machine trusts.
    System,
    /// Both.
    SystemAnd(Vec<Pem>),
}

impl Roots {
    fn bundles(&self) -> &[Pem] {
        match self {
            Self::Pem(bundles) | Self::SystemAnd(bundles) => bundles,
            Self::System => &[],
        }
    }

    fn load(&self, warnings: &mut Vec<Warning>) -> Result<Trusted, LoadError> {
        let (mut store, mut pinned) = (RootCertStore::empty(), Vec::new());
        for bundle in self.bundles() {
            pinned.extend(files::add_roots(&mut store, bundle, warnings)?);
        }
        if matches!(self, Self::System | Self::SystemAnd(_)) {
            // Half of a system's store may be unreadable, and the other half enough.
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        if store.is_empty() {
            return Err(LoadError { file: "trusted roots".into(), reason: LoadProblem::NoRoots });
        }
        Ok(Trusted { roots: store, pinned })
    }
}

/// What TLS to a service is made of. Services with equal settings share a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientSettings {
    /// The name that is sent (SNI) and verified; an address is verified and not sent.
    pub server_name: ServerName<'static>,
    /// Names that the certificate may be for instead.
    pub accepted: Vec<ServerName<'static>>,
    /// The trusted certificate authorities.
    pub roots: Roots,
    /// What we show if the pod asks.
    pub identity: Option<Identity>,
    /// The protocols that are offered inside, the preferred first; none: nothing is said of it.
    pub alpn: Vec<Alpn>,
    /// The versions that are spoken.
    pub versions: Versions,
    /// Whether the pod's certificate is verified. Without it, a man in the middle can read and alter everything, so it is
    /// off only where the operator explicitly turned it off.
    pub verify: bool,
}

impl ClientSettings {
    /// Verified by `roots`, without a certificate of ours, in all versions, h2 before HTTP/1.1.
    pub fn new(server_name: ServerName<'static>, roots: Roots) -> Self {
        Self {
            server_name,
            accepted: Vec::new(),
            roots,
            identity: None,
            alpn: vec![Alpn::H2, Alpn::Http1],
            versions: Versions::default(),
            verify: true,
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        let bundles = if self.verify { self.roots.bundles() } else { &[] };
        let identity = self.identity.iter().flat_map(|identity| [&identity.chain, &identity.key]);
        bundles.iter().chain(identity).filter_map(Pem::file).map(Path::to_path_buf).collect()
    }

    fn load(&self, warnings: &mut Vec<Warning>) -> Result<ClientConfig, LoadError> {
        let policy = if self.verify {
            let (trusted, names) = (self.roots.load(warnings)?, self.accepted.clone());
            PodCertificatePolicy::Verified { trusted, names }
        } else {
            PodCertificatePolicy::Any
        };
        let verifier = Arc::new(PodCertificates { policy, provider: provider() });
        let refused = |error| LoadError { file: "tls".into(), reason: LoadProblem::Setup(error) };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&self.versions.supported())
            .map_err(refused)?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match &self.identity {
            Some(identity) => {
                let shown = SingleCertAndKey::from(files::identity(identity, warnings)?);
                builder.with_client_cert_resolver(Arc::new(shown))
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = Alpn::ids(&self.alpn);
        Ok(config)
    }
}

/// TLS to a service.
#[derive(Debug)]
pub struct ClientTls {
    settings: ClientSettings,
    terms: ArcSwap<ClientTlsConfig>,
    seen: Mutex<Seen>,
}

/// What TLS to a service means at one time, between two reloads. A connection that was made on other terms proves
/// nothing on these.
#[derive(Debug)]
pub struct ClientTlsConfig {
    config: Arc<ClientConfig>,
    server_name: ServerName<'static>,
}

impl ClientTls {
    /// Reads all files.
    pub fn new(settings: ClientSettings) -> Result<(Self, Vec<Warning>), LoadError> {
        let (mut seen, mut warnings) = (Seen::default(), Vec::new());
        let terms = seen.load(settings.files(), || ClientTlsConfig::new(&settings, &mut warnings))?;
        Ok((Self { settings, terms: ArcSwap::from_pointee(terms), seen: Mutex::new(seen) }, warnings))
    }

    /// What probes use: nothing is verified, offered or resumed, as kubelet does it.
    pub(crate) fn for_probes() -> Result<Self, LoadError> {
        let unused = ServerName::from(IpAddr::from([0, 0, 0, 0]));
        let settings =
            ClientSettings { verify: false, alpn: Vec::new(), ..ClientSettings::new(unused, Roots::System) };
        let mut config = settings.load(&mut Vec::new())?;
        // A resumed session would prove less of the pod than a whole handshake.
        config.resumption = Resumption::disabled();
        let terms = ClientTlsConfig { config: Arc::new(config), server_name: settings.server_name.clone() };
        Ok(Self { settings, terms: ArcSwap::from_pointee(terms), seen: Mutex::default() })
    }

    /// What it was made of.
    pub fn settings(&self) -> &ClientSettings {
        &self.settings
    }

    /// Whether every certificate is accepted: worth a warning at every start.
    pub fn is_unverified(&self) -> bool {
        !self.settings.verify
    }

    /// Reads the files again; in case of an error, what was read before stays in use. Sessions are forgotten: they
    /// were made with what is no longer trusted or shown.
    pub fn reload(&self) -> Result<Vec<Warning>, LoadError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.load(self.settings.files(), || self.swap())
    }

    /// Reloads if a file changed.
    pub(super) fn look(&self) -> Option<Result<Vec<Warning>, LoadError>> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.look(self.settings.files(), || self.swap())
    }

    fn swap(&self) -> Result<Vec<Warning>, LoadError> {
        let mut warnings = Vec::new();
        self.terms.store(Arc::new(ClientTlsConfig::new(&self.settings, &mut warnings)?));
        Ok(warnings)
    }

    /// What it means now.
    pub fn terms(&self) -> Arc<ClientTlsConfig> {
        self.terms.load_full()
    }

    /// Shakes hands with the server at the other end of `stream`. Dropping it drops the connection.
    pub async fn connect<IO>(
        &self,
        stream: IO,
        deadline: Instant,
    ) -> Result<(ClientStream<IO>, Option<Alpn>), TlsError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        self.terms().connect(stream, None, deadline).await
    }

    pub(crate) async fn connect_to<IO>(
        &self,
        name: ServerName<'static>,
        stream: IO,
        deadline: Instant,
    ) -> Result<(ClientStream<IO>, Option<Alpn>), TlsError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let connector = TlsConnector::from(Arc::clone(&self.terms.load().config));
        finish(connector.connect(name, stream), deadline).await
    }
}

impl ClientTlsConfig {
    fn new(settings: &ClientSettings, warnings: &mut Vec<Warning>) -> Result<Self, LoadError> {
        let config = Arc::new(settings.load(warnings)?);
        Ok(Self { config, server_name: settings.server_name.clone() })
    }

    /// Shakes hands with the server at the other end of `stream`. `only`: no other protocol is offered inside.
    pub async fn connect<IO>(
        &self,
        stream: IO,
        only: Option<Alpn>,
        deadline: Instant,
    ) -> Result<(ClientStream<IO>, Option<Alpn>), TlsError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let (connector, name) = (TlsConnector::from(Arc::clone(&self.config)), self.server_name.clone());
        match only {
            None => finish(connector.connect(name, stream), deadline).await,
            Some(only) => {
                finish(connector.with_alpn(Alpn::ids(&[only])).connect(name, stream), deadline).await
            }
        }
    }
}

async fn finish<IO>(
    handshake: Connect<IO>,
    deadline: Instant,
) -> Result<(ClientStream<IO>, Option<Alpn>), TlsError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    match timeout_at(deadline, handshake).await {
        Ok(Ok(stream)) => {
            let alpn = stream.get_ref().1.alpn_protocol().and_then(Alpn::of);
            Ok((stream, alpn))
        }
        Ok(Err(error)) => Err(TlsError::of_io(error)),
        Err(_) => Err(TlsError::Timeout),
    }
}

//! The client side of TLS, to the pods of a service: trusted roots, own certificate, ALPN, session resumption and reload.

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

use super::files;
use super::verify::{PodCertificatePolicy, PodCertificates, Trusted};
use super::{Alpn, Identity, LoadError, LoadProblem, Pem, TlsError, Versions, Warning, provider};
use crate::file_watch::Seen;

/// A TLS connection to a pod.
pub type ClientStream<IO> = tokio_rustls::client::TlsStream<IO>;

/// Which root certificates are trusted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Roots {
    /// The certificates in these bundles.
    Pem(Vec<Pem>),
    /// The root certificates of this machine.
    System,
    /// The root certificates of this machine and those in these bundles.
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
            // Ignore unreadable certificates of the system store: the others may be enough.
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        if store.is_empty() {
            return Err(LoadError { file: "trusted roots".into(), reason: LoadProblem::NoRoots });
        }
        Ok(Trusted { roots: store, pinned })
    }
}

/// The TLS settings for the pods of a service. Services with equal settings share a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientSettings {
    /// The server name that is sent (SNI) and verified. An IP address is verified, but not sent.
    pub server_name: ServerName<'static>,
    /// Other names that the certificate may be valid for instead.
    pub accepted: Vec<ServerName<'static>>,
    /// The trusted certificate authorities.
    pub roots: Roots,
    /// Our client certificate, presented if the pod requests one.
    pub identity: Option<Identity>,
    /// The offered application protocols, preferred first. If empty, no ALPN extension is sent.
    pub alpn: Vec<Alpn>,
    /// The allowed TLS versions.
    pub versions: Versions,
    /// Whether the pod's certificate is verified. Without it, a man in the middle can read and alter everything, so it is
    /// off only where the operator explicitly turned it off.
    pub verify: bool,
}

impl ClientSettings {
    /// Settings that verify with `roots`, present no client certificate, allow all versions and prefer h2 to HTTP/1.1.
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

/// The TLS client for the pods of a service. Its configuration is replaced when its files change.
#[derive(Debug)]
pub struct ClientTls {
    settings: ClientSettings,
    terms: ArcSwap<ClientTlsConfig>,
    seen: Mutex<Seen>,
}

/// The TLS configuration between two reloads. A connection made with another one must not be reused: it may have been
/// verified with other roots.
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

    /// The client for probes: like kubelet, it verifies no certificate, offers no ALPN and resumes no session.
    pub(crate) fn for_probes() -> Result<Self, LoadError> {
        let unused = ServerName::from(IpAddr::from([0, 0, 0, 0]));
        let settings =
            ClientSettings { verify: false, alpn: Vec::new(), ..ClientSettings::new(unused, Roots::System) };
        let mut config = settings.load(&mut Vec::new())?;
        // A resumed session proves less about the pod than a full handshake.
        config.resumption = Resumption::disabled();
        let terms = ClientTlsConfig { config: Arc::new(config), server_name: settings.server_name.clone() };
        Ok(Self { settings, terms: ArcSwap::from_pointee(terms), seen: Mutex::default() })
    }

    /// The settings.
    pub fn settings(&self) -> &ClientSettings {
        &self.settings
    }

    /// Whether every certificate is accepted. Callers should warn about it at every start.
    pub fn is_unverified(&self) -> bool {
        !self.settings.verify
    }

    /// Reads the files again. On an error, the old configuration stays in use. Drops all sessions: they were made with the old
    /// roots and client certificate.
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

    /// The current configuration.
    pub fn terms(&self) -> Arc<ClientTlsConfig> {
        self.terms.load_full()
    }

    /// Does the TLS handshake over `stream`. Dropping the future drops the connection.
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

    /// Does the TLS handshake over `stream`. With `only`, no other application protocol is offered.
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

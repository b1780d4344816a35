//! How the pods of a service are spoken to: in the clear, or over TLS with the service's own name, roots and
//! certificate.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use rouse_core::endpoint::ServiceId;
use rouse_kube::service::{AppProtocol, ResolvedPort, TlsFacts, UPSTREAM_CA, UPSTREAM_CLIENT_CERT};
use rouse_net::tls::{
    ClientConfigs, ClientSettings, ClientTls, Identity, LoadError, Pem, Roots, ServerName, Warning,
};
use rouse_proxy::gateway::Upstream;

use crate::gateway::settings::{Settings, UpstreamTls};

/// Services with TLS settings of their own whose sessions are kept.
const MOST: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// What all services have in common. Clones share the configurations.
#[derive(Debug, Clone)]
pub struct Upstreams {
    configs: Arc<ClientConfigs>,
    tls: UpstreamTls,
    verify: bool,
    /// Whose certificates are trusted where a service does not say.
    roots: Roots,
    cluster_domain: Arc<str>,
    /// KEDA asks pods for `svc.ns`, without the `.svc`.
    short_names: bool,
}

impl Upstreams {
    /// As the operator says.
    pub fn new(settings: &Settings) -> Self {
        let trusted: Vec<Pem> = trusted(settings).map(|(_, file)| Pem::File(file.to_owned())).collect();
        Self {
            configs: Arc::new(ClientConfigs::new(MOST)),
            tls: settings.upstream.tls,
            verify: !settings.upstream.skip_verify,
            roots: if trusted.is_empty() { Roots::System } else { Roots::SystemAnd(trusted) },
            cluster_domain: settings.kubernetes.cluster_domain.as_str().into(),
            short_names: settings.headers.keda_compat,
        }
    }

    /// Reads the roots that the operator names, each with its setting, and says what is odd about them. Otherwise the
    /// first to hear of a file that is not there would be whoever sends the first request.
    pub(super) fn read_roots(
        settings: &Settings,
    ) -> impl Iterator<Item = (&'static str, Result<Vec<Warning>, LoadError>)> {
        trusted(settings).filter_map(|(setting, file)| {
            let anybody = ServerName::try_from("pod").ok()?;
            let roots = Roots::Pem(vec![Pem::File(file.to_owned())]);
            let read = ClientTls::new(ClientSettings::new(anybody, roots));
            Some((setting, read.map(|(_, warnings)| warnings)))
        })
    }

    /// The configurations, whose files somebody must watch.
    pub(super) fn configs(&self) -> &Arc<ClientConfigs> {
        &self.configs
    }

    /// What the pods of `port` are spoken to with; and where that is something else, with what if the request itself
    /// came over TLS. `verify`: the route does not say otherwise.
    pub(super) fn of(&self, port: &ResolvedPort, verify: bool) -> (Upstream, Option<Upstream>) {
        let plain = match port.protocol {
            AppProtocol::H2c => Upstream::H2c,
            AppProtocol::Http | AppProtocol::Https => Upstream::Http1,
        };
        let said = port.tls.on.or((port.protocol == AppProtocol::Https).then_some(true));
        match (said, self.tls) {
            (Some(true), _) | (None, UpstreamTls::On) => (self.over_tls(port, verify), None),
            (Some(false), _) | (None, UpstreamTls::Off) => (plain, None),
            (None, UpstreamTls::AsReceived) => (plain, Some(self.over_tls(port, verify))),
        }
    }

    fn over_tls(&self, port: &ResolvedPort, verify: bool) -> Upstream {
        if port.tls.fault.is_some() {
            // Anonymous clients read this, and the fault may quote the API server: it is on the status of the routes.
            let service = &port.service;
            let sentence = format!(
                "the TLS settings of Service {service} cannot be used; the status of its routes says why"
            );
            return Upstream::Unusable(sentence.into());
        }
        let settings = match self.settings(port, verify) {
            Ok(settings) => settings,
            Err(name) => return Upstream::Unusable(format!("{name:?} is not a server name").into()),
        };
        // What is odd about roots is told where they are from: in the route's status, or at the start.
        match self.configs.get(&settings, |_| {}) {
            Ok(tls) => Upstream::Tls(tls),
            Err(error) => {
                Upstream::Unusable(format!("TLS to {} cannot be set up: {error}", port.service).into())
            }
        }
    }

    fn settings(&self, port: &ResolvedPort, verify: bool) -> Result<ClientSettings, String> {
        let name = |text: String| ServerName::try_from(text.clone()).map_err(|_| text);
        let facts = &port.tls;
        let (server_name, accepted) = if let Some(own) = &facts.server_name {
            (name(own.to_string())?, Vec::new())
        } else {
            let [short, svc, full] = names(&port.service, &self.cluster_domain);
            let asked = if self.short_names { &short } else { &svc };
            (name(asked.clone())?, vec![name(short)?, name(svc)?, name(full)?])
        };
        let roots = own_roots(facts).unwrap_or_else(|| self.roots.clone());
        let identity = own_identity(facts);
        let verify = verify && self.verify;
        Ok(ClientSettings { accepted, identity, verify, ..ClientSettings::new(server_name, roots) })
    }
}

/// The files of the roots that the operator names, each with its setting.
fn trusted(settings: &Settings) -> impl Iterator<Item = (&'static str, &Path)> {
    let ca = settings.upstream.ca.iter().map(|ca| ("upstream-ca", &**ca));
    // KEDA's interceptor trusts what it shows itself.
    let shown = settings.tls.certs.iter().filter(|_| settings.headers.keda_compat);
    ca.chain(shown.map(|pair| ("tls-cert", &*pair.cert)))
}

/// Whom the Service itself says to trust.
fn own_roots(facts: &TlsFacts) -> Option<Roots> {
    facts.ca.as_ref().map(|ca| Roots::Pem(vec![Pem::Bytes(Arc::clone(ca))]))
}

/// What we show to the pods of a Service.
fn own_identity(facts: &TlsFacts) -> Option<Identity> {
    let (chain, key) = facts.client.as_ref()?;
    Some(Identity { chain: Pem::Bytes(Arc::clone(chain)), key: Pem::Bytes(Arc::clone(key)) })
}

/// What is wrong with the certificates that a Service names, in words. Without this its routes would say that they are
/// ready while every request is refused.
pub(super) fn judge(facts: &TlsFacts) -> Option<String> {
    let anybody = ServerName::try_from("pod").ok()?;
    let wrong = |annotation: &str, settings: ClientSettings| {
        let error = ClientTls::new(settings).err()?;
        Some(format!("TLS cannot be set up: what {annotation} names: {}", error.reason))
    };
    let of_ca =
        own_roots(facts).and_then(|roots| wrong(UPSTREAM_CA, ClientSettings::new(anybody.clone(), roots)));
    let of_client = || {
        let identity = Some(own_identity(facts)?);
        let unverified = ClientSettings { verify: false, ..ClientSettings::new(anybody, Roots::System) };
        wrong(UPSTREAM_CLIENT_CERT, ClientSettings { identity, ..unverified })
    };
    of_ca.or_else(of_client)
}

/// The names that a certificate of a service's pods may be for.
fn names(service: &ServiceId, domain: &str) -> [String; 3] {
    let (name, namespace) = (service.name(), service.namespace());
    [
        format!("{name}.{namespace}"),
        format!("{name}.{namespace}.svc"),
        format!("{name}.{namespace}.svc.{domain}"),
    ]
}

//! Chooses the protocol to the pods of a service: plain text, or TLS with the server name, roots and client certificate of the
//! service.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use rouse_config::settings::{AnySetting, Values};
use rouse_core::endpoint::ServiceId;
use rouse_kube::objects::service_summary::{
    AppProtocol, ResolvedPort, TlsFacts, UPSTREAM_CA, UPSTREAM_CLIENT_CERT,
};
use rouse_net::tls::{
    ClientConfigs, ClientSettings, ClientTls, Identity, LoadError, Pem, Roots, ServerName, Warning,
};
use rouse_proxy::upstream::UpstreamProtocol;

use super::settings::{self as set, UpstreamTls};

/// The most TLS configurations that are kept.
const MOST: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// The TLS settings that all services share. Clones share the configurations.
#[derive(Debug, Clone)]
pub struct Upstreams {
    configs: Arc<ClientConfigs>,
    tls: UpstreamTls,
    verify: bool,
    /// The roots for services that name none.
    roots: Roots,
    cluster_domain: Arc<str>,
    /// True to use KEDA's server name `svc.ns`, without the `.svc`.
    short_names: bool,
}

impl Upstreams {
    /// Takes the settings of the gateway.
    pub fn new(values: &Values) -> Self {
        let trusted: Vec<Pem> = trusted(values).into_iter().map(|(_, file)| Pem::File(file)).collect();
        Self {
            configs: Arc::new(ClientConfigs::new(MOST)),
            tls: values.get(&set::UPSTREAM_TLS),
            verify: !values.get(&set::UPSTREAM_SKIP_VERIFY),
            roots: if trusted.is_empty() { Roots::System } else { Roots::SystemAnd(trusted) },
            cluster_domain: values.get(&set::CLUSTER_DOMAIN).into(),
            short_names: values.get(&set::KEDA_COMPAT),
        }
    }

    /// Reads the root files that the settings name, and returns the warnings or the error of each. Otherwise only the first
    /// request would reveal a missing file.
    pub(super) fn read_roots(
        values: &Values,
    ) -> impl Iterator<Item = (&'static dyn AnySetting, Result<Vec<Warning>, LoadError>)> {
        trusted(values).into_iter().filter_map(|(setting, file)| {
            let any_name = ServerName::try_from("pod").ok()?;
            let roots = Roots::Pem(vec![Pem::File(file)]);
            let read = ClientTls::new(ClientSettings::new(any_name, roots));
            Some((setting, read.map(|(_, warnings)| warnings)))
        })
    }

    /// The TLS configurations; the caller watches their files.
    pub(super) fn configs(&self) -> &Arc<ClientConfigs> {
        &self.configs
    }

    /// The protocol to the pods of `port`; and the protocol for requests that came over TLS, if that differs. `verify` is false
    /// if the route turns verification off.
    pub(super) fn of(
        &self,
        port: &ResolvedPort,
        verify: bool,
    ) -> (UpstreamProtocol, Option<UpstreamProtocol>) {
        let plain = match port.protocol {
            AppProtocol::H2c => UpstreamProtocol::H2c,
            AppProtocol::Http | AppProtocol::Https => UpstreamProtocol::Http1,
        };
        let said = port.tls.on.or((port.protocol == AppProtocol::Https).then_some(true));
        match (said, self.tls) {
            (Some(true), _) | (None, UpstreamTls::On) => (self.over_tls(port, verify), None),
            (Some(false), _) | (None, UpstreamTls::Off) => (plain, None),
            (None, UpstreamTls::AsReceived) => (plain, Some(self.over_tls(port, verify))),
        }
    }

    fn over_tls(&self, port: &ResolvedPort, verify: bool) -> UpstreamProtocol {
        if port.tls.fault.is_some() {
            // Any client can read this, and the fault may quote the API server: only the status of the routes has it.
            let service = &port.service;
            let sentence =
                format!("the TLS settings of Service {service} cannot be used; see the status of its routes");
            return UpstreamProtocol::Unusable(sentence.into());
        }
        let settings = match self.settings(port, verify) {
            Ok(settings) => settings,
            Err(name) => {
                return UpstreamProtocol::Unusable(format!("{name:?} is not a valid TLS server name").into());
            }
        };
        // Warnings about roots are reported at their source: in the route's status, or at the start.
        match self.configs.get(&settings, |_| {}) {
            Ok(tls) => UpstreamProtocol::Tls(tls),
            Err(error) => UpstreamProtocol::Unusable(
                format!("TLS to {} cannot be set up: {error}", port.service).into(),
            ),
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

/// The root files that the settings name, each with its setting.
fn trusted(values: &Values) -> Vec<(&'static dyn AnySetting, PathBuf)> {
    let ca = values
        .get(&set::UPSTREAM_CA)
        .into_iter()
        .map(|ca| (&set::UPSTREAM_CA as &'static dyn AnySetting, ca));
    // KEDA's interceptor trusts the certificates that it presents itself.
    let own = if values.get(&set::KEDA_COMPAT) { values.get(&set::TLS_CERT) } else { Vec::new() };
    ca.chain(own.into_iter().map(|cert| (&set::TLS_CERT as &'static dyn AnySetting, cert))).collect()
}

/// The roots that the Service itself names.
fn own_roots(facts: &TlsFacts) -> Option<Roots> {
    facts.ca.as_ref().map(|ca| Roots::Pem(vec![Pem::Bytes(Arc::clone(ca))]))
}

/// The client certificate for the pods of a Service.
fn own_identity(facts: &TlsFacts) -> Option<Identity> {
    let (chain, key) = facts.client.as_ref()?;
    Some(Identity { chain: Pem::Bytes(Arc::clone(chain)), key: Pem::Bytes(Arc::clone(key)) })
}

/// The problem with the certificates that a Service names, if there is one. Without this check its routes would report ready
/// while every request fails.
pub(super) fn check(facts: &TlsFacts) -> Option<String> {
    let any_name = ServerName::try_from("pod").ok()?;
    let wrong = |annotation: &str, settings: ClientSettings| {
        let error = ClientTls::new(settings).err()?;
        Some(format!("TLS cannot be set up: annotation {annotation}: {}", error.reason))
    };
    let of_ca =
        own_roots(facts).and_then(|roots| wrong(UPSTREAM_CA, ClientSettings::new(any_name.clone(), roots)));
    let of_client = || {
        let identity = Some(own_identity(facts)?);
        let unverified = ClientSettings { verify: false, ..ClientSettings::new(any_name, Roots::System) };
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

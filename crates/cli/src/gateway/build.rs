//! The values of the table → the typed settings.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use rouse_core::budget::{Rate, WakeRates};
use rouse_core::hold::Bounds;
use rouse_proxy::gateway::Timeouts;
use rouse_proxy::headers::TrustedProxies;

use super::settings::{
    AccessLog, Cert, ClientAuth, ClientAuthMode, DirectPodRouting, Headers, HostOverlap, Kubernetes, Limits,
    Listed, Settings, Tls, TlsVersion, Upstream, UpstreamTls,
};
use super::value::Value;
use crate::config::Span;
use crate::process::files::Capacity;

/// The setting of this name is not in the table, or not of the kind that is asked for here. Any test would see it.
#[derive(Debug)]
pub(super) struct Misfit(pub(super) &'static str);

/// What is `listed`, as types.
pub(super) fn settings(listed: Vec<Listed>) -> Result<Settings, Misfit> {
    let all = Values(&listed);
    let settings = Settings {
        listen: all.addresses("listen")?,
        admin: all.address("admin")?,
        tls: tls(&all)?,
        upstream: Upstream {
            tls: all.word("upstream-tls", UpstreamTls::from_word)?,
            ca: all.any_path("upstream-ca")?,
            skip_verify: all.switch("upstream-skip-verify")?,
        },
        direct_pod_routing: all.word("direct-pod-routing", DirectPodRouting::from_word)?,
        allow_manual_endpoints: all.switch("allow-manual-endpoints")?,
        manual_endpoints_of: all.list("manual-endpoints-of", text)?.into_iter().collect(),
        probe: all.switch("probe")?,
        headers: Headers {
            trusted_proxies: all.networks("trusted-proxies")?,
            cold_start: all.switch("cold-start-header")?,
            keda_compat: all.switch("keda-compat")?,
        },
        timeouts: Timeouts {
            readiness: all.span("readiness-timeout")?.limit(),
            request: all.span("request-timeout")?.limit(),
            response_header: all.span("response-header-timeout")?.limit(),
            connect: all.time("connect-timeout")?,
        },
        holds: Bounds {
            per_service: all.count("max-holds")?,
            total: all.count("max-holds-total")?,
            bytes: all.any_count("hold-memory")?.unwrap_or_else(|| Capacity::now().holds),
            longest: all.time("max-hold")?,
        },
        wakes: WakeRates {
            namespace: all.rate("namespace-wakes-per-second", "namespace-wake-burst")?,
            total: all.rate("wakes-per-second", "wake-burst")?,
        },
        limits: limits(&all)?,
        workers: all.any_count("workers")?,
        shutdown_delay: all.time("shutdown-delay")?,
        drain_timeout: all.time("drain-timeout")?,
        access_log: all.word("access-log", AccessLog::from_word)?,
        kubernetes: Kubernetes {
            watch_namespace: all.any_text("watch-namespace")?,
            assigned_hosts: all.list("assigned-hosts", assignment)?.into_iter().collect(),
            host_overlap: all.word("host-overlap", HostOverlap::from_word)?,
            kubeconfig: all.any_path("kubeconfig")?,
            context: all.any_text("context")?,
            cluster_domain: all.any_text("cluster-domain")?.unwrap_or_default(),
        },
        listed: Vec::new(),
    };
    Ok(Settings { listed, ..settings })
}

fn tls(all: &Values<'_>) -> Result<Tls, Misfit> {
    let ca = all.any_path("tls-client-ca")?;
    let client_auth = match (all.word("tls-client-auth", ClientAuthMode::from_word)?, ca) {
        // Without roots nobody could show anything; that is told.
        (ClientAuthMode::None, _) | (_, None) => ClientAuth::None,
        (ClientAuthMode::Optional, Some(ca)) => ClientAuth::Optional(ca),
        (ClientAuthMode::Required, Some(ca)) => ClientAuth::Required(ca),
    };
    // If there are more of one than of the other, that is told.
    let pairs = all.paths("tls-cert")?.into_iter().zip(all.paths("tls-key")?);
    Ok(Tls {
        listen: all.addresses("tls-listen")?,
        certs: pairs.map(|(cert, key)| Cert { cert, key }).collect(),
        cert_dirs: all.paths("tls-cert-dir")?,
        min_version: all.word("tls-min-version", TlsVersion::from_word)?,
        max_version: all.word("tls-max-version", TlsVersion::from_word)?,
        client_auth,
    })
}

fn limits(all: &Values<'_>) -> Result<Limits, Misfit> {
    Ok(Limits {
        connections: all.any_count("max-connections")?,
        streams: all.small("max-streams")?,
        header_timeout: all.time("header-timeout")?,
        idle_timeout: all.time("idle-timeout")?,
        stream_idle_timeout: all.time("stream-idle-timeout")?,
        header_size: all.count("max-header-size")?,
        headers: all.count("max-headers")?,
        request_line: all.count("max-request-line")?,
        idle_per_pod: all.count("max-idle-connections-per-pod")?,
        idle: all.count("max-idle-connections")?,
        pod_connections_per_client: all.count("max-pod-connections-per-client")?,
        buffers: all.any_count("buffer-memory")?,
        buffers_per_connection: all.count("buffer-memory-per-connection")?,
    })
}

/// The values by name. `any_…` is for what may be nothing.
struct Values<'l>(&'l [Listed]);

impl<'l> Values<'l> {
    fn any<T>(
        &self,
        name: &'static str,
        of: impl FnOnce(&'l Value) -> Option<T>,
    ) -> Result<Option<T>, Misfit> {
        let listed = self.0.iter().find(|listed| listed.name == name).ok_or(Misfit(name))?;
        listed.value.as_ref().map(|value| of(value).ok_or(Misfit(name))).transpose()
    }

    fn get<T>(&self, name: &'static str, of: impl FnOnce(&'l Value) -> Option<T>) -> Result<T, Misfit> {
        self.any(name, of)?.ok_or(Misfit(name))
    }

    /// Nothing is an empty list.
    fn list<T>(&self, name: &'static str, of: impl Fn(&Value) -> Option<T>) -> Result<Vec<T>, Misfit> {
        let all = self.any(name, |value| match value {
            Value::List(values) => values.iter().map(of).collect(),
            _ => None,
        });
        all.map(Option::unwrap_or_default)
    }

    fn switch(&self, name: &'static str) -> Result<bool, Misfit> {
        self.get(name, |value| if let Value::Switch(on) = value { Some(*on) } else { None })
    }

    fn word<T>(&self, name: &'static str, of: impl FnOnce(&str) -> Option<T>) -> Result<T, Misfit> {
        self.get(name, |value| if let Value::Word(word) = value { of(word) } else { None })
    }

    fn span(&self, name: &'static str) -> Result<Span, Misfit> {
        self.get(name, |value| if let Value::Span(span) = value { Some(*span) } else { None })
    }

    fn time(&self, name: &'static str) -> Result<Duration, Misfit> {
        self.span(name).map(Span::get)
    }

    fn count(&self, name: &'static str) -> Result<usize, Misfit> {
        self.get(name, number)
    }

    fn small(&self, name: &'static str) -> Result<u32, Misfit> {
        u32::try_from(self.count(name)?).map_err(|_| Misfit(name))
    }

    fn any_count(&self, name: &'static str) -> Result<Option<usize>, Misfit> {
        self.any(name, number)
    }

    fn rate(&self, per_second: &'static str, burst: &'static str) -> Result<Rate, Misfit> {
        Ok(Rate { per_second: self.small(per_second)?, burst: self.small(burst)? })
    }

    fn address(&self, name: &'static str) -> Result<SocketAddr, Misfit> {
        self.get(name, address)
    }

    fn addresses(&self, name: &'static str) -> Result<Vec<SocketAddr>, Misfit> {
        self.list(name, address)
    }

    fn paths(&self, name: &'static str) -> Result<Vec<PathBuf>, Misfit> {
        self.list(name, path)
    }

    fn any_path(&self, name: &'static str) -> Result<Option<PathBuf>, Misfit> {
        self.any(name, path)
    }

    fn any_text(&self, name: &'static str) -> Result<Option<String>, Misfit> {
        self.any(name, text)
    }

    fn networks(&self, name: &'static str) -> Result<TrustedProxies, Misfit> {
        self.get(
            name,
            |value| if let Value::Networks(networks, _) = value { Some(networks.clone()) } else { None },
        )
    }
}

fn text(value: &Value) -> Option<String> {
    if let Value::Text(text) = value { Some(text.clone()) } else { None }
}

fn number(value: &Value) -> Option<usize> {
    match value {
        Value::Count(number) | Value::Size(number) => usize::try_from(*number).ok(),
        _ => None,
    }
}

fn address(value: &Value) -> Option<SocketAddr> {
    if let Value::Address(address) = value { Some(*address) } else { None }
}

fn assignment(value: &Value) -> Option<(String, String)> {
    let Value::Assignment(host, namespace) = value else { return None };
    Some((host.to_string(), namespace.clone()))
}

fn path(value: &Value) -> Option<PathBuf> {
    if let Value::Path(path) = value { Some(path.clone()) } else { None }
}

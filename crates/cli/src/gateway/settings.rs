//! The settings of a gateway: what each of them is, and where that comes from.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use rouse_core::budget::WakeRates;
use rouse_core::hold::Bounds;
use rouse_kube::route::hosts::Assigned;
use rouse_proxy::gateway::Timeouts;
use rouse_proxy::headers::TrustedProxies;
use std::time::Duration;

pub use super::read::read;
use super::sources::Origin;
use super::value::Value;
pub use crate::config::Cert;

/// Everything an operator decides about a gateway. Beyond [`read`] nobody meets a raw string, or a value that is not
/// allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where requests come in; at least one. Port 0 is any free port.
    pub listen: Vec<SocketAddr>,
    /// Where the admin API is; never all addresses of the machine.
    pub admin: SocketAddr,
    /// TLS at the door.
    pub tls: Tls,
    /// TLS to pods.
    pub upstream: Upstream,
    /// When requests go straight to a pod.
    pub direct_pod_routing: DirectPodRouting,
    /// Whether endpoints that name no pod get requests.
    pub allow_manual_endpoints: bool,
    /// The namespaces whose Services may allow endpoints that name no pod.
    pub manual_endpoints_of: BTreeSet<String>,
    /// Whether starting pods are probed.
    pub probe: bool,
    /// What is told along the way.
    pub headers: Headers,
    /// How long a request may take, if its route does not say otherwise.
    pub timeouts: Timeouts,
    /// How many requests may wait, and how long.
    pub holds: Bounds,
    /// How often services may be woken.
    pub wakes: WakeRates,
    /// What clients and pods may take up.
    pub limits: Limits,
    /// How many threads serve requests; `None`: one per core.
    pub workers: Option<usize>,
    /// How long to go on accepting after a signal to stop.
    pub shutdown_delay: Duration,
    /// How long requests under way may take to finish after that.
    pub drain_timeout: Duration,
    /// Whether each request is a line on standard output.
    pub access_log: AccessLog,
    /// Which cluster, and what of it.
    pub kubernetes: Kubernetes,
    pub(super) listed: Vec<Listed>,
}

/// One setting as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name in the table.
    pub name: &'static str,
    /// What it is; `None` if there is nothing, as its default may say.
    pub value: Option<Value>,
    /// Where that comes from.
    pub origin: Origin,
}

impl Settings {
    /// Every setting, in the order of the table.
    pub fn listed(&self) -> &[Listed] {
        &self.listed
    }

    /// Where the setting `name` comes from, if there is one.
    pub fn origin(&self, name: &str) -> Option<&Origin> {
        self.listed.iter().find(|listed| listed.name == name).map(|listed| &listed.origin)
    }
}

/// TLS at the door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// Where requests come in over TLS; if there is such a place, there is a certificate or a folder.
    pub listen: Vec<SocketAddr>,
    /// The certificates; the first is for whoever names no known host.
    pub certs: Vec<Cert>,
    /// Folders with pairs of certificates and keys.
    pub cert_dirs: Vec<PathBuf>,
    /// The lowest version that is spoken; not above the highest.
    pub min_version: TlsVersion,
    /// The highest version that is spoken.
    pub max_version: TlsVersion,
    /// Whether clients show a certificate.
    pub client_auth: ClientAuth,
}

/// Whether clients show a certificate, and the PEM file with the roots that it must lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientAuth {
    /// They are not asked.
    None,
    /// They may.
    Optional(PathBuf),
    /// They must.
    Required(PathBuf),
}

/// TLS to pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Whether pods are spoken to over TLS, if neither annotation nor `appProtocol` says so.
    pub tls: UpstreamTls,
    /// A PEM file with roots that are trusted beside the system's, where a Service names none.
    pub ca: Option<PathBuf>,
    /// Whether their certificates are not verified.
    pub skip_verify: bool,
}

/// What is told along the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headers {
    /// Whose word on the client counts.
    pub trusted_proxies: TrustedProxies,
    /// Whether responses say that their request waited for a pod.
    pub cold_start: bool,
    /// Whether KEDA's names of headers and metrics are there beside ours, and TLS to pods is spoken as KEDA does.
    pub keda_compat: bool,
}

/// What clients and pods may take up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Client connections; `None`: as many as there are files and memory for.
    pub connections: Option<usize>,
    /// Requests under way on one HTTP/2 connection.
    pub streams: u32,
    /// How long the head of a request may take.
    pub header_timeout: Duration,
    /// How long a client connection may be without a request, and the body of an HTTP/1 request without a byte.
    pub idle_timeout: Duration,
    /// How long a stream or an upgraded connection may be silent.
    pub stream_idle_timeout: Duration,
    /// Bytes of a request's head.
    pub header_size: usize,
    /// Headers of a request.
    pub headers: usize,
    /// Bytes of a request's first line; not over `header_size`.
    pub request_line: usize,
    /// Connections to one pod that are kept, on each worker.
    pub idle_per_pod: usize,
    /// Connections to all pods that are kept, on all workers together.
    pub idle: usize,
    /// HTTP/1 connections to pods that one client connection may use at a time.
    pub pod_connections_per_client: usize,
    /// Bytes of all bodies in buffers; `None`: by the memory there is.
    pub buffers: Option<usize>,
    /// The same for one client connection.
    pub buffers_per_connection: usize,
}

/// Which cluster, and what of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubernetes {
    /// The only namespace that is looked at; `None`: all.
    pub watch_namespace: Option<String>,
    /// Which namespace a host belongs to, whatever routes claim.
    pub assigned_hosts: Assigned,
    /// Whether an exact host may lie below a wildcard of another namespace.
    pub host_overlap: HostOverlap,
    /// How to reach the cluster; `None`: as the pod is told, else as kubectl does.
    pub kubeconfig: Option<PathBuf>,
    /// Which context of it; `None`: the current one.
    pub context: Option<String>,
    /// What the names of Services end with in this cluster.
    pub cluster_domain: String,
}

/// A setting that is one of a few words.
macro_rules! words {
    ($(#[$doc:meta])+ $name:ident { $($(#[$of:meta])+ $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$of])+ $variant,)+
        }

        impl $name {
            /// How they are written.
            pub const WORDS: &[&str] = &[$($word),+];

            /// Which one is written so.
            pub fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

words! {
    /// A version of TLS.
    TlsVersion {
        /// 1.2.
        V12 = "1.2",
        /// 1.3.
        V13 = "1.3",
    }
}

words! {
    /// Whether clients show a certificate.
    ClientAuthMode {
        /// They are not asked.
        None = "none",
        /// They may.
        Optional = "optional",
        /// They must.
        Required = "required",
    }
}

words! {
    /// Whether pods are spoken to over TLS.
    UpstreamTls {
        /// Only where an annotation or `appProtocol` says so.
        Off = "off",
        /// Always.
        On = "on",
        /// If the request came over TLS.
        AsReceived = "as-received",
    }
}

words! {
    /// When requests go straight to a pod.
    DirectPodRouting {
        /// Never: once a pod is ready, through the `ClusterIP`.
        Disabled = "disabled",
        /// Until the `ClusterIP` has answered once.
        ColdStartOnly = "cold-start-only",
        /// As long as an endpoint offers the port.
        Always = "always",
    }
}

words! {
    /// Whether an exact host may lie below a wildcard of another namespace.
    HostOverlap {
        /// The first claim keeps the other one out.
        Deny = "deny",
        /// The exact host goes before the wildcard.
        Allow = "allow",
    }
}

words! {
    /// How requests are logged.
    AccessLog {
        /// Not at all.
        Off = "off",
        /// A JSON object a line.
        Json = "json",
        /// The line that Apache made common.
        Combined = "combined",
    }
}

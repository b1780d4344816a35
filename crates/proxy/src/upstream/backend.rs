//! The backend of a route: Service, port, protocol of its pods, `ClusterIP` and routing mode.

use std::sync::Arc;

use rouse_core::routing_mode::RoutingMode;
use rouse_core::service::Port;
use rouse_core::service::Service;
use rouse_core::snapshot::PortView;
use rouse_net::tls::ClientTls;

use super::cluster_ip::ClusterIp;

/// A port of a service.
#[derive(Debug, Clone)]
pub struct Backend {
    /// The service.
    pub service: Arc<Service>,
    /// Its port.
    pub port: Arc<Port>,
    /// The protocol of its pods.
    pub protocol: UpstreamProtocol,
    /// Their protocol for requests that came over TLS; `None`: the same.
    pub over_tls: Option<UpstreamProtocol>,
    /// When requests go straight to a pod.
    pub direct: RoutingMode,
    /// The `ClusterIP` of the service, if it has one.
    pub cluster_ip: Option<Arc<ClusterIp>>,
}

impl Backend {
    /// Straight to the pods of `port`, with one protocol for all clients.
    pub fn direct(service: Arc<Service>, port: Arc<Port>, protocol: UpstreamProtocol) -> Self {
        Self { service, port, protocol, over_tls: None, direct: RoutingMode::Always, cluster_ip: None }
    }

    /// Whether a pod, or the `ClusterIP`, takes a request at once.
    pub(crate) fn is_available(&self) -> bool {
        let snapshot = self.service.snapshot();
        snapshot.port(self.port.name()).is_some_and(PortView::routable)
            || (self.cluster_ip.is_some() && snapshot.routable())
    }

    /// Whether pods take requests, but none of them offers the port.
    pub(crate) fn lacks_port(&self) -> bool {
        let snapshot = self.service.snapshot();
        snapshot.routable() && !snapshot.port(self.port.name()).is_some_and(PortView::routable)
    }

    /// The protocol of the pods for a request that came with or without TLS.
    pub(crate) fn protocol(&self, over_tls: bool) -> &UpstreamProtocol {
        self.over_tls.as_ref().filter(|_| over_tls).unwrap_or(&self.protocol)
    }
}

/// The protocol that pods speak.
#[derive(Debug, Clone)]
pub enum UpstreamProtocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 without TLS, with prior knowledge.
    H2c,
    /// HTTP/2 or HTTP/1.1 over TLS, as the handshake agrees. The server name is that of the service; the address is that of
    /// a pod.
    Tls(Arc<ClientTls>),
    /// TLS that cannot be used, and why: for example, a certificate is missing. Requests fail: they are never sent without TLS.
    Unusable(Arc<str>),
}

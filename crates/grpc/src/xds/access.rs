//! Which clients may connect, and who they are: by the names in their certificates, never by what they say of themselves.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rouse_net::fair_limiter::network;

/// Which clients may connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// All that can connect.
    Any,
    /// Those with one of these names (SAN, a URI or a DNS name) in their client certificate.
    Sans(Vec<String>),
}

/// Who a client is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientIdentity {
    /// The name (SAN) in its certificate: the one that is allowed, or else its first; `None` without a certificate.
    pub san: Option<Arc<str>>,
    /// Where it connects from.
    pub peer: SocketAddr,
}

/// What shares one limit of streams: all that have a certificate with one name, or that come from one source without any.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum LimitKey {
    San(Arc<str>),
    Source(IpAddr),
}

impl Access {
    /// Who a client with a certificate of these names is; `None`: it may not connect.
    pub(crate) fn identify(&self, names: &[String], peer: SocketAddr) -> Option<ClientIdentity> {
        let san = match self {
            Self::Any => names.first().map(|name| name.as_str().into()),
            Self::Sans(allowed) => Some(names.iter().find(|name| allowed.contains(name))?.as_str().into()),
        };
        Some(ClientIdentity { san, peer })
    }
}

impl ClientIdentity {
    pub(crate) fn limit_key(&self) -> LimitKey {
        let source = || LimitKey::Source(network(self.peer.ip()));
        self.san.as_ref().map_or_else(source, |san| LimitKey::San(Arc::clone(san)))
    }
}

impl fmt::Display for ClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.san {
            Some(san) => write!(f, "{san} at {}", self.peer),
            None => write!(f, "{}", self.peer),
        }
    }
}

//! What request and upstream code may know of a client connection: address, TLS session, whether it is still there, what it
//! uses.

mod presence;
mod state;

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::host::Host;
use rouse_core::shutdown::InFlightGuard;
use rouse_net::tls::{PolicyId, ServerTls};

use self::presence::Presence;
pub(crate) use self::presence::{PresenceCheck, SharedWriteHalf, has_unread, lock};
#[cfg(test)]
pub(crate) use self::state::MIN_PROGRESS;
pub(crate) use self::state::{ClientState, ReaderCounters, RequestGuard};
use crate::runtime::Runtime;

/// How often a waiting request checks whether its client is still there.
const PRESENCE_INTERVAL: Duration = Duration::from_millis(250);

/// One client connection.
pub(crate) struct ClientConnection {
    pub(crate) address: SocketAddr,
    pub(crate) presence: PresenceCheck,
    /// What the TLS handshake agreed on; `None` without TLS.
    pub(crate) tls: Option<TlsSession>,
    /// Counts the connection as under way until its first request does: a drain must not overlook a request that has arrived.
    pub(crate) arrival: Cell<Option<InFlightGuard>>,
    pub(crate) state: Rc<ClientState>,
    /// Keeps the connection's place in the connection limiter: an upgraded connection outlives its HTTP connection.
    pub(crate) _permit: Rc<dyn Any>,
}

/// What a TLS handshake with a client agreed on.
#[derive(Debug)]
pub(crate) struct TlsSession {
    pub(crate) tls: Arc<ServerTls>,
    pub(crate) policy: PolicyId,
}

impl TlsSession {
    /// Whether a request for `host` may come on this connection.
    pub(crate) fn admits(&self, host: Option<&Host<'_>>) -> bool {
        self.policy.admits(&self.tls.policy_of(host))
    }
}

impl ClientConnection {
    /// Ends when the client has reset its connection, or has closed its sending side for longer than `half_closed`. hyper
    /// notices that only while it reads.
    pub(crate) async fn leaves(&self, runtime: &Runtime, half_closed: Duration) {
        let mut closed_since = None;
        loop {
            let now = runtime.now();
            match self.presence.check() {
                Presence::There => {}
                Presence::HalfClosed => {
                    let since = *closed_since.get_or_insert(now);
                    if now >= since + half_closed {
                        return;
                    }
                }
                Presence::Gone => return,
            }
            runtime.deadline(now + PRESENCE_INTERVAL).await;
        }
    }
}

impl fmt::Debug for ClientConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConnection").field("address", &self.address).finish_non_exhaustive()
    }
}

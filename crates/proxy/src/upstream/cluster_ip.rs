//! The `ClusterIP` of a Service, and whether it accepts connections: kube-proxy lags a second or more behind the pods.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use super::pool::connect;
use crate::runtime::Runtime;

/// How long to wait after an attempt that was refused.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How long one attempt to connect in the background may take.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// How many attempts are made in the background; after that a request starts them again.
const MAX_ATTEMPTS: u32 = 1200;

/// The `ClusterIP` of one port of a service. Keep it as long as the addresses stay the same: it remembers whether they accept
/// connections.
#[derive(Debug)]
pub struct ClusterIp {
    addresses: Arc<[SocketAddr]>,
    /// It has accepted a connection since the service was last without pods.
    accepts: AtomicBool,
    /// A task tries to connect in the background.
    watched: AtomicBool,
}

impl ClusterIp {
    /// One address per family; `None` if there is no address.
    pub fn new(addresses: Arc<[SocketAddr]>) -> Option<Arc<Self>> {
        let (accepts, watched) = (AtomicBool::new(false), AtomicBool::new(false));
        (!addresses.is_empty()).then(|| Arc::new(Self { addresses, accepts, watched }))
    }

    /// One address per family.
    pub fn addresses(&self) -> &Arc<[SocketAddr]> {
        &self.addresses
    }

    pub(crate) fn accepts(&self) -> bool {
        self.accepts.load(Ordering::Relaxed)
    }

    /// There were no pods just now, or a connection was refused: forgets that connections were accepted.
    pub(crate) fn went_cold(&self) {
        self.accepts.store(false, Ordering::Relaxed);
    }

    /// Tries to connect in the background until a connection is accepted, so that no request has to.
    pub(crate) fn watch(self: &Arc<Self>, runtime: &Rc<Runtime>) {
        if self.watched.swap(true, Ordering::Relaxed) {
            return;
        }
        let (ip, own) = (Arc::clone(self), Rc::clone(runtime));
        runtime.spawn(async move {
            let _watched = Watched(Arc::clone(&ip));
            for _ in 0..MAX_ATTEMPTS {
                for &address in &*ip.addresses {
                    if let Ok(Ok(_)) = timeout(CONNECT_TIMEOUT, connect(address)).await {
                        return ip.accepts.store(true, Ordering::Relaxed);
                    }
                }
                let due = own.now() + RETRY_PAUSE;
                tokio::select! {
                    () = own.deadline(due) => {}
                    () = own.drain.cancelled() => return,
                }
            }
        });
    }
}

/// Lets another task try when this one ends, also when its thread ends.
struct Watched(Arc<ClusterIp>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.watched.store(false, Ordering::Relaxed);
    }
}

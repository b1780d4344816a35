//! The address that a Service has for all its pods, and whether somebody answers there: the cluster's plumbing lags a
//! second or more behind the pods.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rouse_core::time::Clock as _;
use tokio::time::timeout;

use crate::pool::connect;
use crate::worker::Worker;

/// How long to wait after an attempt that nobody took.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);
/// How long one attempt to find out may take.
const PATIENCE: Duration = Duration::from_millis(500);
/// So often it is tried; after that somebody must ask again.
const MOST_LOOKS: u32 = 1200;

/// When requests go straight to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direct {
    /// Never: once a pod is ready, through the `ClusterIP`.
    Disabled,
    /// Until the `ClusterIP` has accepted a connection.
    ColdStartOnly,
    /// As long as an endpoint offers the port.
    #[default]
    Always,
}

/// The `ClusterIP` of one port of a service. Keep it as long as the addresses stay: it knows whether they answer.
#[derive(Debug)]
pub struct ClusterIp {
    addresses: Arc<[SocketAddr]>,
    /// It has accepted a connection since the service was last without pods.
    accepts: AtomicBool,
    /// Somebody is finding out.
    watched: AtomicBool,
}

impl ClusterIp {
    /// One address per family. `None` without any.
    pub fn new(addresses: Arc<[SocketAddr]>) -> Option<Arc<Self>> {
        let (accepts, watched) = (AtomicBool::new(false), AtomicBool::new(false));
        (!addresses.is_empty()).then(|| Arc::new(Self { addresses, accepts, watched }))
    }

    /// Where it is.
    pub fn addresses(&self) -> &Arc<[SocketAddr]> {
        &self.addresses
    }

    pub(crate) fn accepts(&self) -> bool {
        self.accepts.load(Ordering::Relaxed)
    }

    /// There were no pods just now, or nobody took a connection: what it knew of them is void.
    pub(crate) fn went_cold(&self) {
        self.accepts.store(false, Ordering::Relaxed);
    }

    /// Finds out whether it accepts connections, so that no request has to.
    pub(crate) fn watch(self: &Arc<Self>, worker: &Rc<Worker>) {
        if self.watched.swap(true, Ordering::Relaxed) {
            return;
        }
        let (ip, worker) = (Arc::clone(self), Rc::clone(worker));
        worker.tasks.clone().spawn_local(async move {
            let _watched = Watched(Arc::clone(&ip));
            for _ in 0..MOST_LOOKS {
                for &address in &*ip.addresses {
                    if let Ok(Ok(_)) = timeout(PATIENCE, connect(address)).await {
                        return ip.accepts.store(true, Ordering::Relaxed);
                    }
                }
                let due = worker.gateway.settings.clock.now() + PAUSE;
                tokio::select! {
                    () = worker.deadlines.at(due) => {}
                    () = worker.drain.cancelled() => return,
                }
            }
        });
    }
}

/// Also when its thread ends, somebody else may look.
struct Watched(Arc<ClusterIp>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.watched.store(false, Ordering::Relaxed);
    }
}

//! The sidecars of local pods: how they are started, and whether a pod that registers is one that the engine started.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::{PodUid, PortName, ServiceId};
use rouse_net::auth::{BoxFuture, Claim, ClaimError, ClaimGrant, Ownership};

use super::spec::{AppSpec, PORT_NAME, Readiness};
use super::status::{LocalPodStatus, PodStage};
use super::{LocalEngine, lock};

/// What a sidecar is told about its pod.
#[derive(Debug)]
pub struct SidecarPod<'a> {
    /// The service of the app.
    pub service: &'a ServiceId,
    /// The pod.
    pub name: &'a str,
    /// Its incarnation.
    pub uid: &'a PodUid,
    /// Where the sidecar listens: the address of the pod.
    pub listen: SocketAddr,
    /// Where the app listens.
    pub app: SocketAddr,
    /// Whether the app uses HTTP/2 without TLS.
    pub h2c: bool,
    /// How the sidecar finds out whether the app is ready.
    pub readiness: &'a Readiness,
    /// How long the pod may take to stop.
    pub grace: Duration,
}

type CommandLine = dyn Fn(&SidecarPod<'_>) -> Vec<String> + Send + Sync;

/// How sidecars are started.
#[derive(Clone)]
pub struct SidecarLauncher {
    command_line: Arc<CommandLine>,
    input: Arc<[u8]>,
}

impl SidecarLauncher {
    /// `command_line` makes the command of a sidecar, which reads `input`, a secret, from its standard input.
    pub fn new(
        input: Arc<[u8]>,
        command_line: impl Fn(&SidecarPod<'_>) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        Self { command_line: Arc::new(command_line), input }
    }

    pub(super) fn command_line(&self, pod: &SidecarPod<'_>) -> Vec<String> {
        (self.command_line)(pod)
    }

    pub(super) fn input(&self) -> &Arc<[u8]> {
        &self.input
    }
}

impl fmt::Debug for SidecarLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The input is a secret.
        f.debug_struct("SidecarLauncher").finish_non_exhaustive()
    }
}

impl AppSpec {
    /// What the sidecar of a pod is told.
    pub(super) fn sidecar_pod<'a>(
        &'a self,
        (name, uid): (&'a str, &'a PodUid),
        listen: SocketAddr,
        app: SocketAddr,
    ) -> SidecarPod<'a> {
        SidecarPod {
            service: &self.service,
            name,
            uid,
            listen,
            app,
            h2c: self.h2c,
            readiness: &self.readiness,
            grace: self.stop_grace,
        }
    }
}

impl LocalEngine {
    fn pod(&self, service: &ServiceId, uid: &PodUid) -> Option<LocalPodStatus> {
        let handles = self.read_handles();
        let status = lock(&handles.by_service.get(service)?.status);
        status.pods.iter().find(|pod| pod.uid == *uid).cloned()
    }

    fn decide(&self, claim: &Claim) -> Result<ClaimGrant, ClaimError> {
        let denied = |what: &str| Err(ClaimError::Denied(format!("{what} is not that of the pod")));
        let Some(pod) = self.pod(&claim.service, &claim.uid) else {
            // A pod is listed a moment after its processes were started.
            return Err(ClaimError::Unavailable(format!("{} has no such pod", claim.service)));
        };
        let ports = BTreeMap::from([(PortName::new(PORT_NAME), pod.address.port())]);
        if *pod.name != *claim.pod {
            return denied("the name");
        }
        if claim.ips.iter().any(|ip| *ip != pod.address.ip()) {
            return denied("an address");
        }
        if claim.ports != ports {
            return denied("a port");
        }
        let leaving = matches!(pod.phase, PodStage::Draining | PodStage::Stopping);
        Ok(ClaimGrant { mode: None, leaving, host_network: false })
    }
}

impl Ownership for LocalEngine {
    fn check<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<ClaimGrant, ClaimError>> {
        Box::pin(async { self.decide(claim) })
    }

    fn granted(&self, claim: &Claim) -> Option<ClaimGrant> {
        self.decide(claim).ok()
    }
}

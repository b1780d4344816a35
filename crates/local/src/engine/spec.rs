//! The specification of an app: command, port, readiness check, scaling policy and concurrency limits.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use rouse_core::probe::{ProbeCheck, ProbePlan, ProbeSpec, ReadinessProbe};
use rouse_core::scale::ScalePolicy;
use rouse_core::snapshot::ConcurrencyLimits;

use crate::command::CommandSpec;

/// Each app is a service with this one port.
pub const PORT_NAME: &str = "http";

/// One app: a command whose processes are pods.
#[derive(Debug, Clone, PartialEq)]
pub struct AppSpec {
    /// Its service: `local/<name>`.
    pub service: ServiceId,
    /// The command of a pod; the working directory is absolute.
    pub command: CommandSpec,
    /// Which port a pod gets.
    pub port: PortChoice,
    /// Whether it uses HTTP/2 without TLS.
    pub h2c: bool,
    /// The readiness check.
    pub readiness: Readiness,
    /// How often a ready pod is probed.
    pub probe_interval: Duration,
    /// The scaling policy.
    pub policy: ScalePolicy,
    /// How many requests one pod may have.
    pub concurrency: ConcurrencyLimits,
    /// How long a pod may take to finish its requests, and then again to exit after SIGTERM.
    pub stop_grace: Duration,
    /// Whether its pods have a sidecar.
    pub sidecar: bool,
}

impl AppSpec {
    /// Whether the pods must be replaced when `other` becomes this spec.
    pub(super) fn makes_other_pods(&self, other: &Self) -> bool {
        let pod = |spec: &Self| {
            let parts =
                (spec.command.clone(), spec.port, spec.h2c, spec.readiness.clone(), spec.service.clone());
            (parts, spec.sidecar)
        };
        pod(self) != pod(other)
    }
}

/// Which port a pod gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortChoice {
    /// A free port on 127.0.0.1.
    Auto,
    /// This port, on a loopback address of the pod's own.
    Fixed(NonZeroU16),
}

/// The readiness check of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// The port accepts a connection.
    Tcp,
    /// A GET of this path, with its query, returns a status from 200 to 399.
    Http(String),
    /// The gRPC health service reports SERVING for this service; empty: for the server as a whole.
    Grpc(String),
}

impl Readiness {
    /// The check for a pod that listens on `port`.
    pub fn check(&self, port: u16) -> ProbeCheck {
        match self {
            Readiness::Tcp => ProbeCheck::Tcp { port },
            Readiness::Http(path) => {
                ProbeCheck::Http { port, path: path.clone(), tls: false, headers: Vec::new() }
            }
            Readiness::Grpc(service) => ProbeCheck::Grpc { port, service: service.clone() },
        }
    }

    /// The probe plan for a pod that listens on `port`. Never `None`: all three kinds can be probed.
    pub(super) fn plan(&self, port: u16) -> Option<Arc<ProbePlan>> {
        let probe = ReadinessProbe { check: self.check(port), foreign_host: false };
        let spec = ProbeSpec { containers: vec![Some(probe)], readiness_gates: 0 };
        ProbePlan::new(&spec, port, true).ok().map(Arc::new)
    }
}

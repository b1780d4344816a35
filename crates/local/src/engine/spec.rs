//! The specification of an app: command, number of pods, readiness check.

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
    /// The service that its pods make up: `local/<name>`.
    pub service: ServiceId,
    /// What a pod runs; the working directory is absolute.
    pub command: CommandSpec,
    /// Which port a pod gets.
    pub port: PortChoice,
    /// It speaks HTTP/2 without TLS.
    pub h2c: bool,
    /// How we learn that a pod is ready.
    pub readiness: Readiness,
    /// How often a ready pod is asked again.
    pub probe_interval: Duration,
    /// How many pods there are.
    pub policy: ScalePolicy,
    /// How requests are spread over them.
    pub spread: ConcurrencyLimits,
    /// How long a pod may take to finish its requests, and again to stop after SIGTERM.
    pub stop_grace: Duration,
}

impl AppSpec {
    /// Whether a pod of this app would be another than one of `other`.
    pub(super) fn makes_other_pods(&self, other: &Self) -> bool {
        let pod = |spec: &Self| {
            (spec.command.clone(), spec.port, spec.h2c, spec.readiness.clone(), spec.service.clone())
        };
        pod(self) != pod(other)
    }
}

/// Which port a pod gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortChoice {
    /// A free one on 127.0.0.1.
    Auto,
    /// This one, on a loopback address of the pod's own.
    Fixed(NonZeroU16),
}

/// How we learn that a pod is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// Its port accepts a connection.
    Tcp,
    /// A GET of this path, with its query, answers 200..399.
    Http(String),
    /// The gRPC health service says SERVING of this service; empty: of the server as a whole.
    Grpc(String),
}

impl Readiness {
    /// The question for a pod that listens on `port`.
    pub fn check(&self, port: u16) -> ProbeCheck {
        match self {
            Readiness::Tcp => ProbeCheck::Tcp { port },
            Readiness::Http(path) => {
                ProbeCheck::Http { port, path: path.clone(), tls: false, headers: Vec::new() }
            }
            Readiness::Grpc(service) => ProbeCheck::Grpc { port, service: service.clone() },
        }
    }

    /// What the prober asks of a pod that listens on `port`. Always there: all three kinds can be asked.
    pub(super) fn plan(&self, port: u16) -> Option<Arc<ProbePlan>> {
        let probe = ReadinessProbe { check: self.check(port), foreign_host: false };
        let spec = ProbeSpec { containers: vec![Some(probe)], readiness_gates: 0 };
        ProbePlan::new(&spec, port, true).ok().map(Arc::new)
    }
}

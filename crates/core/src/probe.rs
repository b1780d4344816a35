//! Probe plans: turns the readiness probes of a pod's spec into the checks that Rouse runs itself.
//!
//! Our probe may replace kubelet's only if it runs the same checks. So a [`ProbePlan`] is made from the pod's own spec,
//! and only a plan can promote an endpoint.

/// The readiness probe in the spec of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadinessProbe {
    /// The check.
    pub check: ProbeCheck,
    /// The probe sets `host`. We probe only the pod's verified address, so we cannot run this check.
    pub foreign_host: bool,
}

/// The check of one container's readiness probe.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ProbeCheck {
    /// The port must accept a connection.
    Tcp {
        /// The port to connect to.
        port: u16,
    },
    /// A GET must return a status from 200 to 399.
    Http {
        /// The port to connect to.
        port: u16,
        /// The path, with its query.
        path: String,
        /// Use TLS without verification, as kubelet does.
        tls: bool,
        /// Extra request headers.
        headers: Vec<(String, String)>,
    },
    /// The gRPC health service must return SERVING.
    Grpc {
        /// The port to connect to.
        port: u16,
        /// The gRPC service to check; empty for the server as a whole.
        service: String,
    },
    /// A command inside the container, or an unknown kind of probe: we cannot run it from outside.
    Unsupported,
}

/// The readiness probes and gates of a pod's spec.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProbeSpec {
    /// One entry per container, including restartable init containers; `None` for a container without a probe.
    pub containers: Vec<Option<ReadinessProbe>>,
    /// How many readiness gates the pod has: conditions that other controllers set.
    pub readiness_gates: usize,
}

/// A set of checks that together mean the same as kubelet's readiness probes. All of them must pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbePlan {
    checks: Vec<ProbeCheck>,
}

/// Why a pod has no probe plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProbePlanError {
    /// Other controllers decide about its readiness.
    #[error("the pod has readiness gates, which no probe can check")]
    ReadinessGates,
    /// The probe works only inside the container.
    #[error("a container's readiness probe is neither tcp, http nor grpc")]
    UnsupportedProbe,
    /// The probe's `host` field.
    #[error("a container's readiness probe sets a host, and Rouse probes only the pod's own address")]
    ForeignHost,
    /// A mesh sidecar accepts every TCP connection, so a TCP connect alone proves nothing there.
    #[error(
        "the only check of the pod would be a TCP connect, and TCP-only probes are turned off for this route"
    )]
    TcpOnly,
}

impl ProbePlan {
    /// The plan for a pod, or why there is none. If no container has a probe, the plan is a TCP connect to `endpoint_port`:
    /// kubelet then calls the pod ready as soon as it runs, and a listening port shows that it runs.
    pub fn new(spec: &ProbeSpec, endpoint_port: u16, allow_tcp: bool) -> Result<Self, ProbePlanError> {
        if spec.readiness_gates > 0 {
            return Err(ProbePlanError::ReadinessGates);
        }
        let mut checks = Vec::new();
        for probe in spec.containers.iter().flatten() {
            if probe.foreign_host {
                return Err(ProbePlanError::ForeignHost);
            }
            if probe.check == ProbeCheck::Unsupported {
                return Err(ProbePlanError::UnsupportedProbe);
            }
            if !checks.contains(&probe.check) {
                checks.push(probe.check.clone());
            }
        }
        if checks.is_empty() {
            checks.push(ProbeCheck::Tcp { port: endpoint_port });
        }
        if !allow_tcp && checks.iter().all(|check| matches!(check, ProbeCheck::Tcp { .. })) {
            return Err(ProbePlanError::TcpOnly);
        }
        Ok(Self { checks })
    }

    /// The checks; at least one. All of them must pass.
    pub fn checks(&self) -> &[ProbeCheck] {
        &self.checks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(port: u16) -> ReadinessProbe {
        ReadinessProbe { check: ProbeCheck::Tcp { port }, foreign_host: false }
    }

    fn plan(
        containers: Vec<Option<ReadinessProbe>>,
        gates: usize,
    ) -> Result<Vec<ProbeCheck>, ProbePlanError> {
        let spec = ProbeSpec { containers, readiness_gates: gates };
        ProbePlan::new(&spec, 8080, true).map(|plan| plan.checks().to_vec())
    }

    #[test]
    fn every_container_is_asked_its_own_question() {
        assert_eq!(
            plan(vec![Some(tcp(1)), None, Some(tcp(2)), Some(tcp(1))], 0),
            Ok(vec![ProbeCheck::Tcp { port: 1 }, ProbeCheck::Tcp { port: 2 }])
        );
    }

    #[test]
    fn a_pod_without_probes_is_asked_at_its_own_port() {
        assert_eq!(plan(vec![None], 0), Ok(vec![ProbeCheck::Tcp { port: 8080 }]));
    }

    #[test]
    fn what_we_cannot_ask_ourselves_is_never_promoted() {
        let opaque = Some(ReadinessProbe { check: ProbeCheck::Unsupported, foreign_host: false });
        let foreign = Some(ReadinessProbe { check: ProbeCheck::Tcp { port: 1 }, foreign_host: true });
        assert_eq!(plan(vec![Some(tcp(1)), opaque], 0), Err(ProbePlanError::UnsupportedProbe));
        assert_eq!(plan(vec![foreign], 0), Err(ProbePlanError::ForeignHost));
        assert_eq!(plan(vec![Some(tcp(1))], 1), Err(ProbePlanError::ReadinessGates));
    }

    #[test]
    fn bare_tcp_can_be_turned_off() {
        let spec = ProbeSpec { containers: vec![Some(tcp(1))], readiness_gates: 0 };
        assert_eq!(ProbePlan::new(&spec, 8080, false), Err(ProbePlanError::TcpOnly));
    }
}

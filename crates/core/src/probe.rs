//! Probe plans: the checks that let our own probe stand in for the readiness probes of kubelet.
//!
//! A probe stands in for kubelet's only if it asks the same questions. So a [`ProbePlan`] is made from the
//! pod's own spec, and only a plan can promote an endpoint.

/// How a container says in its spec that it wants to be probed for readiness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadinessProbe {
    /// The question.
    pub check: ProbeCheck,
    /// The probe names a host of its own: we probe only the pod's verified address, so we cannot ask this.
    pub foreign_host: bool,
}

/// A question that one container's readiness probe asks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ProbeCheck {
    /// Does the port accept a connection?
    Tcp {
        /// The port to connect to.
        port: u16,
    },
    /// Does a GET answer with 200..399?
    Http {
        /// The port to connect to.
        port: u16,
        /// The path, with its query.
        path: String,
        /// Over TLS, without verification, as kubelet does.
        tls: bool,
        /// Extra request headers.
        headers: Vec<(String, String)>,
    },
    /// Does the gRPC health service say SERVING?
    Grpc {
        /// The port to connect to.
        port: u16,
        /// The service asked about; empty for the server as a whole.
        service: String,
    },
    /// A command inside the container, or a kind from the future: nothing we can ask from outside.
    Unsupported,
}

/// What the pod's spec says about readiness, container by container; `None` for a container without a probe.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProbeSpec {
    /// One entry per container (restartable init containers included).
    pub containers: Vec<Option<ReadinessProbe>>,
    /// How many readiness gates the pod has: conditions that other controllers set.
    pub readiness_gates: usize,
}

/// A set of questions which, all answered well, mean what kubelet's probes mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbePlan {
    checks: Vec<ProbeCheck>,
}

/// Why a pod's readiness cannot be known by probing it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProbePlanError {
    /// Other controllers decide.
    #[error("the pod has readiness gates, which no probe can see")]
    ReadinessGates,
    /// A kind of probe that works only inside the container.
    #[error("a container's readiness probe is neither tcp, http nor grpc")]
    OpaqueProbe,
    /// The probe's `host` field.
    #[error("a container's readiness probe names a host of its own")]
    ForeignHost,
    /// TCP alone proves nothing behind a mesh sidecar that accepts every connection.
    #[error("the pod could be asked by a bare TCP connect only, and that is turned off for this route")]
    TcpOnly,
}

impl ProbePlan {
    /// The plan for a pod, or why there is none. `endpoint_port` is asked by TCP when no container has a
    /// probe: kubelet then calls the pod ready as soon as it runs, and a listening port shows that it runs.
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
                return Err(ProbePlanError::OpaqueProbe);
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

    /// The questions; at least one. All of them must be answered well.
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

    fn plan(containers: Vec<Option<ReadinessProbe>>, gates: usize) -> Result<Vec<ProbeCheck>, ProbePlanError> {
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
        assert_eq!(plan(vec![Some(tcp(1)), opaque], 0), Err(ProbePlanError::OpaqueProbe));
        assert_eq!(plan(vec![foreign], 0), Err(ProbePlanError::ForeignHost));
        assert_eq!(plan(vec![Some(tcp(1))], 1), Err(ProbePlanError::ReadinessGates));
    }

    #[test]
    fn bare_tcp_can_be_turned_off() {
        let spec = ProbeSpec { containers: vec![Some(tcp(1))], readiness_gates: 0 };
        assert_eq!(ProbePlan::new(&spec, 8080, false), Err(ProbePlanError::TcpOnly));
    }
}

//! A route: its name, its service, its timeouts, and what it does while it has no pod.

use std::sync::Arc;

use rouse_core::endpoint::ServiceId;
use rouse_core::load_meter::LoadMeter;

use super::no_pod::NoPodPolicy;
use crate::error::Failure;
use crate::telemetry::metrics::RouteName;
use crate::upstream::{Backend, Timeouts};

/// Where the requests of a route go, and how.
#[derive(Debug)]
pub struct Route {
    /// The name in metrics.
    pub name: RouteName,
    /// The service that the route names.
    pub service: ServiceId,
    /// The service and port behind that name.
    pub target: Target,
    /// How long its requests may take.
    pub timeouts: Timeouts,
    /// What it does while it has no pod.
    pub no_pod: NoPodPolicy,
    /// Meters the requests that it takes, if the load of routes is reported.
    pub meter: Option<Arc<LoadMeter>>,
}

/// The service and port that a route names.
#[derive(Debug, Clone)]
pub enum Target {
    /// The service and the port exist.
    Backend(Backend),
    /// There is no such service.
    NoService,
    /// The service has no such port.
    BadPort,
}

impl Target {
    /// Where requests go.
    pub(crate) fn backend(&self) -> Result<&Backend, Failure> {
        match self {
            Target::Backend(backend) => Ok(backend),
            Target::NoService => Err(Failure::NoService),
            Target::BadPort => Err(Failure::BadPort),
        }
    }

    /// Whether a request would be taken at once, as far as pods are ready for it.
    pub(crate) fn is_available(&self) -> bool {
        matches!(self, Target::Backend(backend) if backend.is_available())
    }
}

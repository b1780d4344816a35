//! The policies that are compared: our own autoscaler with fixed and learned idle policies, KEDA, and Knative.

mod keda;
mod knative;
mod rouse;

use std::fmt;
use std::time::Duration;

use rouse_config::duration::HumanDuration;
use rouse_core::scale::BadPolicy;

use super::replay::Scaler;
use super::service::ServiceModel;

/// One policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    /// Rouse, with a fixed `idle-after`.
    Fixed(Duration),
    /// Rouse, with an idle policy that learns; the cost of a cold start.
    Learned(Duration),
    /// A `ScaledObject` that is polled.
    Keda,
    /// KEDA with the HTTP add-on, whose scaler pushes.
    KedaHttp,
    /// Knative's KPA.
    Knative,
}

impl Policy {
    /// A scaler of one service. `number` is that of the service: not all are polled at the same moment.
    pub(super) fn scaler(self, model: &ServiceModel, number: usize) -> Result<Box<dyn Scaler>, BadPolicy> {
        Ok(match self {
            Self::Fixed(idle_after) => Box::new(rouse::Rouse::fixed(model, idle_after)?),
            Self::Learned(cost) => Box::new(rouse::Rouse::learned(model, cost)?),
            Self::Keda => Box::new(keda::Keda::new(model, false, number)),
            Self::KedaHttp => Box::new(keda::Keda::new(model, true, number)),
            Self::Knative => Box::new(knative::Knative::new()),
        })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(idle_after) => write!(f, "fixed {}", minutes(*idle_after)),
            Self::Learned(cost) => write!(f, "learned {}", minutes(*cost)),
            Self::Keda => f.write_str("keda"),
            Self::KedaHttp => f.write_str("keda-http-add-on"),
            Self::Knative => f.write_str("knative"),
        }
    }
}

/// An hour as `60m`: the names of policies differ in the number only.
fn minutes(length: Duration) -> String {
    match length.as_secs() {
        seconds if seconds > 0 && seconds % 60 == 0 && length.subsec_nanos() == 0 => {
            format!("{}m", seconds / 60)
        }
        _ => HumanDuration::from(length).to_string(),
    }
}
